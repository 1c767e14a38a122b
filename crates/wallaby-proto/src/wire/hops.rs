//! What servers say of themselves: who handles a request, and the hops of a traced call.

use std::sync::Arc;
use std::time::Duration;

use bytes::BufMut;

use crate::address::Address;
use crate::id::{NodeId, Path, RequestId};
use crate::varint::{self, Reader};
use crate::wire::WireError;

/// Most trace records in one message.
pub const MAX_TRACE_RECORDS: usize = 32;

/// Most parts of its time that a hop of a traced call tells apart.
pub const MAX_TRACE_PARTS: usize = 4;

/// Longest name of such a part, in bytes.
pub const MAX_PART_NAME: usize = 32;

pub(super) const MAX_METHOD_NAME: usize = 255;

/// One hop of a traced call, as its server saw it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceRecord {
    /// Which request.
    pub request: RequestId,
    /// The server's incarnation.
    pub node: NodeId,
    /// Where the server listens, if it does.
    pub server: Option<Address>,
    /// The method's name.
    pub method: String,
    /// When the request arrived, in microseconds since 1970 by the server's clock.
    pub arrived_us: u64,
    /// How long it waited for its handler, in microseconds.
    pub queued_us: u64,
    /// How long its handler ran, in microseconds.
    pub ran_us: u64,
    /// What of that it tells apart: at most [`MAX_TRACE_PARTS`].
    pub parts: Vec<TracePart>,
}

/// A part of the time that a handler ran.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TracePart {
    /// What it was for: at most [`MAX_PART_NAME`] bytes.
    pub name: Arc<str>,
    /// How long it took, in microseconds.
    pub took_us: u64,
}

impl TracePart {
    /// A part of this name, of which what is too long is left out.
    pub fn new(name: &str, took: Duration) -> Self {
        let end = name.floor_char_boundary(MAX_PART_NAME);
        Self {
            name: name[..end].into(),
            took_us: u64::try_from(took.as_micros()).unwrap_or(u64::MAX),
        }
    }
}

/// Who handles a request, as its server says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HandledBy {
    /// The server's incarnation.
    pub node: NodeId,
    /// Where the server listens, if it does.
    pub server: Option<Address>,
    /// The method's name.
    pub method: Arc<str>,
}

impl HandledBy {
    pub(super) fn put(&self, out: &mut Vec<u8>) {
        self.node.put(out);
        put_server(out, self.server.as_ref());
        varint::put_bytes(out, self.method.as_bytes());
    }

    pub(super) fn read(reader: &mut Reader<'_>) -> Result<Self, WireError> {
        let what = "who handles it";
        Ok(Self {
            node: NodeId::read(reader)?,
            server: read_server(reader, what)?,
            method: reader.str(MAX_METHOD_NAME, what)?.into(),
        })
    }
}

/// Appends where a server listens, if it does.
fn put_server(out: &mut Vec<u8>, server: Option<&Address>) {
    out.put_u8(u8::from(server.is_some()));
    if let Some(server) = server {
        server.put(out);
    }
}

fn read_server(reader: &mut Reader<'_>, what: &'static str) -> Result<Option<Address>, WireError> {
    match reader.u8(what)? {
        0 => Ok(None),
        1 => Ok(Some(Address::read(reader)?)),
        _ => Err(WireError::Malformed {
            what,
            why: "a server that is neither there nor not",
        }),
    }
}

/// Appends trace records: their number, then each.
pub(super) fn put_records(out: &mut Vec<u8>, records: &[TraceRecord]) {
    let records = &records[..records.len().min(MAX_TRACE_RECORDS)];
    varint::put(out, records.len() as u64);
    for record in records {
        record.request.path.put(out);
        varint::put(out, u64::from(record.request.hop));
        record.node.put(out);
        put_server(out, record.server.as_ref());
        varint::put_bytes(out, record.method.as_bytes());
        varint::put(out, record.arrived_us);
        varint::put(out, record.queued_us);
        varint::put(out, record.ran_us);
        let parts = &record.parts[..record.parts.len().min(MAX_TRACE_PARTS)];
        varint::put(out, parts.len() as u64);
        for part in parts {
            varint::put_bytes(out, part.name.as_bytes());
            varint::put(out, part.took_us);
        }
    }
}

pub(super) fn read_records(reader: &mut Reader<'_>) -> Result<Vec<TraceRecord>, WireError> {
    let what = "trace records";
    let count = reader.varint(what)?;
    if count > MAX_TRACE_RECORDS as u64 {
        return Err(WireError::TooLong {
            what,
            len: count,
            limit: MAX_TRACE_RECORDS,
        });
    }
    (0..count).map(|_| read_record(reader)).collect()
}

fn read_record(reader: &mut Reader<'_>) -> Result<TraceRecord, WireError> {
    let what = "trace record";
    Ok(TraceRecord {
        request: RequestId {
            path: Path::read(reader)?,
            hop: reader.u32(what)?,
        },
        node: NodeId::read(reader)?,
        server: read_server(reader, what)?,
        method: reader.str(MAX_METHOD_NAME, what)?.to_owned(),
        arrived_us: reader.varint(what)?,
        queued_us: reader.varint(what)?,
        ran_us: reader.varint(what)?,
        parts: read_parts(reader)?,
    })
}

fn read_parts(reader: &mut Reader<'_>) -> Result<Vec<TracePart>, WireError> {
    let what = "parts of a trace record";
    let count = reader.varint(what)?;
    if count > MAX_TRACE_PARTS as u64 {
        return Err(WireError::TooLong {
            what,
            len: count,
            limit: MAX_TRACE_PARTS,
        });
    }
    let read = |_| {
        Ok(TracePart {
            name: reader.str(MAX_PART_NAME, what)?.into(),
            took_us: reader.varint(what)?,
        })
    };
    (0..count).map(read).collect()
}
