//! The optional fields of requests and responses: each a tag, a length and a value.
//!
//! An even tag may be skipped by who does not know it, an odd one may not: so the wire grows without breaking.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut, Bytes};
use thiserror::Error;

use crate::Code;
use crate::durable::DurableId;
use crate::varint::{self, Reader};
use crate::wire::WireError;
use crate::wire::hops::{HandledBy, MAX_METHOD_NAME, TraceRecord, put_records, read_records};
use crate::wire::liveness::{Heartbeats, PingSettings};
use crate::wire::metadata::{Metadata, put_pairs};

/// Most bytes of a continuation.
pub const MAX_CONTINUATION: usize = 16 * 1024;

const MAX_OPTIONS: usize = 48 * 1024;

const MAX_SEAL: usize = 64;

mod tag {
    pub(super) const PING: u64 = 2;
    pub(super) const BUDGETS: u64 = 4;
    pub(super) const AGE: u64 = 6;
    pub(super) const QUIET: u64 = 8;
    pub(super) const METADATA: u64 = 10;
    pub(super) const TRACE: u64 = 12;
    pub(super) const UNDELIVERED: u64 = 14;
    pub(super) const ATTEMPT: u64 = 15;
    pub(super) const HANDLED_BY: u64 = 16;
    pub(super) const SEAL: u64 = 17;
    pub(super) const METHOD: u64 = 18;
    pub(super) const CONTINUATION: u64 = 19;
    pub(super) const HEARTBEATS: u64 = 20;
    pub(super) const BODY: u64 = 21;
    pub(super) const REPEATABLE: u64 = 23;
    pub(super) const BINARY_METADATA: u64 = 25;
    pub(super) const DURABLE: u64 = 27;
}

/// The optional fields of a message; absent ones cost nothing.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MessageOptions {
    /// How the initiator of this call watches over it.
    pub ping: Option<PingSettings>,
    /// What the rest of the tree may use up.
    pub budgets: Option<Budgets>,
    /// How long ago the call began, as far as hosts know (time on the network is not counted).
    pub age: Option<Duration>,
    /// How long the initiator has not heard of this line of the call (docs/protocol.md, rule 14).
    pub quiet: Option<Duration>,
    /// Pairs that travel down the tree. Those whose values are bytes go only to who has
    /// [`Features::BINARY_METADATA`](crate::connection::Features::BINARY_METADATA).
    pub metadata: Metadata,
    /// What finished requests of a traced call report of themselves, on their way to the initiator.
    pub trace: Vec<TraceRecord>,
    /// In a status: its request certainly did not reach its server, and who would have sent it says so.
    pub undelivered: bool,
    /// Which attempt of a retried request this is; 0 is the first.
    pub attempt: u32,
    /// In the first response of a request that may send more: who handles it.
    pub handled_by: Option<HandledBy>,
    /// In a status in the name of a request that did not reach its server: what that called.
    pub method: Option<Arc<str>>,
    /// Shows that the sender has the cluster's key ([`crate::seal`]).
    pub seal: Option<Bytes>,
    /// What is to be done with this request's answer: see [`Continuation`].
    pub continuation: Option<Bytes>,
    /// How servers show the initiator that they live, if it does not ask them.
    pub heartbeats: Option<Heartbeats>,
    /// A body with this number follows in frames of its own ([`crate::connection`] numbers them).
    pub body: Option<u64>,
    /// The request may come again in another attempt: nothing that it sends is held back, so that its messages get the same
    /// places whenever its handler yields.
    pub repeatable: bool,
    /// The name under which this work may be asked for again. It goes only to who has
    /// [`Features::DURABLE`](crate::connection::Features::DURABLE).
    pub durable: Option<DurableId>,
}

/// What a call may use up. In a request: what it and all that it leads to may use up, itself not counted; servers split it
/// among their delegations (see [`crate::call::allowance`]).
///
/// A call that states none has those of [`Budgets::default`], as its initiator counts them: it fails, and stops, when they are
/// exceeded. Servers then bound each request by itself: budgets that are not stated are not split.
///
/// A status that ends a branch is paid for by its request: it counts neither as a response nor with its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budgets {
    /// Requests, the initial ones included.
    pub requests: u32,
    /// Responses.
    pub responses: u32,
    /// Bytes of responses.
    pub bytes: u64,
    /// Hops on the longest way from the initiator.
    pub depth: u32,
}

impl Default for Budgets {
    /// 65,536 requests, 1,048,576 responses, 1 TiB of responses, 4,096 hops deep.
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// Bytes beside the arguments of one request, which say what is to be done with its answer: the stack of a chain, for instance. At
/// most [`MAX_CONTINUATION`]. Unlike [`Metadata`] they are this request's only: what its handler delegates does not inherit them.
///
/// What it prints for debugging has their number only.
#[derive(Clone, PartialEq, Eq)]
pub struct Continuation(Bytes);

/// Why bytes are no [`Continuation`].
#[derive(Clone, Copy, PartialEq, Eq, Error)]
#[error("a continuation of {size} bytes: at most {MAX_CONTINUATION} are allowed")]
pub struct ContinuationError {
    /// How many there are.
    pub size: usize,
}

impl ContinuationError {
    /// What kind of error it is: always [`Code::ResourceExhausted`].
    pub fn code(&self) -> Code {
        Code::ResourceExhausted
    }
}

impl Continuation {
    /// A continuation of these bytes.
    ///
    /// # Errors
    ///
    /// If they are more than [`MAX_CONTINUATION`].
    pub fn new(bytes: impl Into<Bytes>) -> Result<Self, ContinuationError> {
        let bytes = bytes.into();
        match bytes.len() {
            size if size > MAX_CONTINUATION => Err(ContinuationError { size }),
            _ => Ok(Self(bytes)),
        }
    }

    /// The bytes.
    pub fn bytes(&self) -> &Bytes {
        &self.0
    }
}

impl fmt::Debug for Continuation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Continuation({} bytes)", self.0.len())
    }
}

impl MessageOptions {
    /// About how much memory they take.
    pub fn size(&self) -> usize {
        let bytes = |field: &Option<Bytes>| field.as_ref().map_or(0, Bytes::len);
        let metadata = &self.metadata;
        let pairs = metadata.texts.len() + metadata.binary.len();
        let pairs = metadata.size() + pairs * (size_of::<(String, Bytes)>() + 64);
        let records = self.trace.len() * (size_of::<TraceRecord>() + 768);
        let handled_by = self.handled_by.as_ref().map_or(0, |handled_by| {
            handled_by.method.len() + size_of::<HandledBy>()
        });
        size_of::<Self>()
            + bytes(&self.seal)
            + bytes(&self.continuation)
            + pairs
            + records
            + handled_by
            + self.method.as_ref().map_or(0, |method| method.len())
    }

    /// What a request inherits that a server delegates: all that is said of the call and of its tree, and not what is of this one
    /// request: how long the initiator has not heard of it, its seal, its continuation, its body, its trace records, its durable
    /// id.
    pub fn inherited(&self) -> Self {
        Self {
            ping: self.ping,
            budgets: self.budgets,
            age: self.age,
            metadata: self.metadata.clone(),
            attempt: self.attempt,
            heartbeats: self.heartbeats,
            repeatable: self.repeatable,
            ..Self::default()
        }
    }

    /// Whether no optional field is set.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Appends the length of all fields and the fields.
    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        let mut fields = Vec::new();
        if let Some(ping) = self.ping {
            put_field(&mut fields, tag::PING, |field| {
                varint::put_duration(field, ping.period);
                varint::put_duration(field, ping.timeout);
            });
        }
        if let Some(budgets) = &self.budgets {
            put_field(&mut fields, tag::BUDGETS, |field| budgets.put(field));
        }
        if let Some(age) = self.age {
            put_field(&mut fields, tag::AGE, |field| {
                varint::put_duration(field, age)
            });
        }
        if let Some(quiet) = self.quiet {
            put_field(&mut fields, tag::QUIET, |field| {
                varint::put_duration(field, quiet)
            });
        }
        if !self.metadata.texts.is_empty() {
            put_field(&mut fields, tag::METADATA, |field| {
                put_pairs(field, &self.metadata.texts)
            });
        }
        if !self.trace.is_empty() {
            put_field(&mut fields, tag::TRACE, |field| {
                put_records(field, &self.trace)
            });
        }
        if self.undelivered {
            put_field(&mut fields, tag::UNDELIVERED, |_| ());
        }
        if self.attempt > 0 {
            put_field(&mut fields, tag::ATTEMPT, |field| {
                varint::put(field, u64::from(self.attempt))
            });
        }
        if let Some(handled_by) = &self.handled_by {
            put_field(&mut fields, tag::HANDLED_BY, |field| handled_by.put(field));
        }
        if let Some(seal) = &self.seal {
            put_field(&mut fields, tag::SEAL, |field| field.put_slice(seal));
        }
        if let Some(method) = &self.method {
            put_field(&mut fields, tag::METHOD, |field| {
                varint::put_bytes(field, method.as_bytes())
            });
        }
        if let Some(continuation) = &self.continuation {
            put_field(&mut fields, tag::CONTINUATION, |field| {
                field.put_slice(continuation)
            });
        }
        if let Some(heartbeats) = self.heartbeats {
            put_field(&mut fields, tag::HEARTBEATS, |field| {
                varint::put_duration(field, heartbeats.every);
                varint::put_duration(field, heartbeats.timeout);
                varint::put_duration(field, heartbeats.hop);
            });
        }
        if let Some(body) = self.body {
            put_field(&mut fields, tag::BODY, |field| varint::put(field, body));
        }
        if self.repeatable {
            put_field(&mut fields, tag::REPEATABLE, |_| ());
        }
        if !self.metadata.binary.is_empty() {
            put_field(&mut fields, tag::BINARY_METADATA, |field| {
                put_pairs(field, &self.metadata.binary)
            });
        }
        if let Some(durable) = &self.durable {
            put_field(&mut fields, tag::DURABLE, |field| durable.put(field));
        }
        varint::put_bytes(out, &fields);
    }

    /// What a seal covers of them besides what directs messages. The number of a body is its connection's business.
    pub(crate) fn sealed(&self) -> Self {
        Self {
            metadata: self.metadata.clone(),
            continuation: self.continuation.clone(),
            body: self.body.map(|_| 0),
            repeatable: self.repeatable,
            durable: self.durable,
            ..Self::default()
        }
    }

    /// Most messages have none: their code stays out of the way of what reads each message.
    #[inline(never)]
    pub(super) fn read_boxed(reader: &mut Reader<'_>) -> Result<Box<Self>, WireError> {
        Self::read(reader).map(Box::new)
    }

    pub(super) fn read(reader: &mut Reader<'_>) -> Result<Self, WireError> {
        let what = "optional fields";
        let mut fields = Reader::new(reader.bytes(MAX_OPTIONS, what)?);
        let mut options = Self::default();
        let mut last_tag = None;
        while !fields.is_empty() {
            let tag = fields.varint(what)?;
            if last_tag.is_some_and(|last| last >= tag) {
                return Err(WireError::Malformed {
                    what,
                    why: "tags that do not ascend",
                });
            }
            last_tag = Some(tag);
            let mut field = Reader::new(fields.bytes(MAX_OPTIONS, what)?);
            if options.read_field(tag, &mut field)? {
                field.finish(what)?;
            } else if tag % 2 == 1 {
                return Err(WireError::NotUnderstood { what, bits: tag });
            }
        }
        Ok(options)
    }

    /// Reads one field; `false` if its tag is unknown.
    fn read_field(&mut self, tag: u64, field: &mut Reader<'_>) -> Result<bool, WireError> {
        match tag {
            tag::PING => {
                let what = "ping settings";
                self.ping = Some(PingSettings {
                    period: field.duration(what)?,
                    timeout: field.duration(what)?,
                });
            }
            tag::BUDGETS => self.budgets = Some(Budgets::read(field)?),
            tag::AGE => self.age = Some(field.duration("age")?),
            tag::QUIET => self.quiet = Some(field.duration("quiet time")?),
            tag::METADATA => self.metadata.read_texts(field)?,
            tag::TRACE => self.trace = read_records(field)?,
            tag::UNDELIVERED => self.undelivered = true,
            tag::ATTEMPT => self.attempt = field.u32("attempt")?,
            tag::HANDLED_BY => self.handled_by = Some(HandledBy::read(field)?),
            tag::SEAL => self.seal = Some(read_all(field, MAX_SEAL, "seal")?),
            tag::METHOD => {
                let method = field.str(MAX_METHOD_NAME, "method of a status")?;
                self.method = Some(method.into());
            }
            tag::CONTINUATION => {
                self.continuation = Some(read_all(field, MAX_CONTINUATION, "continuation")?)
            }
            tag::HEARTBEATS => self.heartbeats = Some(Heartbeats::read(field)?),
            tag::BODY => self.body = Some(field.varint("body")?),
            tag::REPEATABLE => self.repeatable = true,
            tag::BINARY_METADATA => self.metadata.read_binary(field)?,
            tag::DURABLE => self.durable = Some(DurableId::read(field)?),
            _ => return Ok(false),
        }
        Ok(true)
    }
}

impl Budgets {
    pub(crate) const DEFAULT: Self = Self {
        requests: 1 << 16,
        responses: 1 << 20,
        bytes: 1 << 40,
        depth: 4096,
    };

    /// The smaller of both, each for itself.
    #[must_use]
    pub fn at_most(self, most: &Self) -> Self {
        Self {
            requests: self.requests.min(most.requests),
            responses: self.responses.min(most.responses),
            bytes: self.bytes.min(most.bytes),
            depth: self.depth.min(most.depth),
        }
    }

    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        varint::put(out, u64::from(self.requests));
        varint::put(out, u64::from(self.responses));
        varint::put(out, self.bytes);
        varint::put(out, u64::from(self.depth));
    }

    fn read(field: &mut Reader<'_>) -> Result<Self, WireError> {
        let what = "budgets";
        Ok(Self {
            requests: field.u32(what)?,
            responses: field.u32(what)?,
            bytes: field.varint(what)?,
            depth: field.u32(what)?,
        })
    }
}

fn put_field(out: &mut Vec<u8>, tag: u64, value: impl FnOnce(&mut Vec<u8>)) {
    let mut field = Vec::new();
    value(&mut field);
    varint::put(out, tag);
    varint::put_bytes(out, &field);
}

fn read_all(field: &mut Reader<'_>, limit: usize, what: &'static str) -> Result<Bytes, WireError> {
    let mut all = Vec::new();
    while !field.is_empty() {
        all.push(field.u8(what)?);
        if all.len() > limit {
            return Err(WireError::TooLong {
                what,
                len: all.len() as u64,
                limit,
            });
        }
    }
    Ok(all.into())
}

crate::debug_as_text!(ContinuationError);

#[cfg(test)]
mod tests {
    use crate::id::NodeId;

    use super::*;

    #[test]
    fn unknown_even_fields_are_skipped_and_odd_ones_refused() {
        let even = [4, 200, 1, 1, 9];
        assert_eq!(
            MessageOptions::read(&mut Reader::new(&even)),
            Ok(MessageOptions::default())
        );
        let odd = [4, 201, 1, 1, 9];
        assert_eq!(
            MessageOptions::read(&mut Reader::new(&odd)),
            Err(WireError::NotUnderstood {
                what: "optional fields",
                bits: 201
            })
        );
    }

    /// A child must not get its parent's stack, whoever sends it on.
    #[test]
    fn what_is_of_one_request_is_not_inherited() {
        let ping = PingSettings {
            period: Duration::from_secs(1),
            timeout: Duration::from_secs(2),
        };
        let mut metadata = Metadata::default();
        metadata.insert("key", "value").expect("small");
        let inherited = MessageOptions {
            ping: Some(ping),
            budgets: Some(Budgets::default()),
            age: Some(Duration::from_secs(3)),
            metadata,
            attempt: 4,
            repeatable: true,
            ..MessageOptions::default()
        };
        let own = MessageOptions {
            quiet: Some(Duration::from_secs(5)),
            seal: Some(Bytes::from_static(b"seal")),
            continuation: Some(Bytes::from_static(b"stack")),
            body: Some(6),
            durable: Some(DurableId::new(7, 8)),
            undelivered: true,
            method: Some("test.Work/one".into()),
            handled_by: Some(HandledBy {
                node: NodeId::new(7).expect("not zero"),
                server: None,
                method: "test.Work/one".into(),
            }),
            ..inherited.clone()
        };
        assert_eq!(own.inherited(), inherited);
    }
}
