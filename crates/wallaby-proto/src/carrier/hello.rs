//! The first frame of each side: who it is, which versions it speaks, what it takes.

use bytes::BufMut;

use super::event::ConnectionError;
use crate::address::Address;
use crate::id::NodeId;
use crate::varint::{self, Reader};
use crate::wire::{MAX_FRAME, WireError};

/// The version of the protocol that this crate speaks.
pub const VERSION: u8 = 1;

/// Begins every connection, so that another protocol on the port is told at once.
pub(crate) const MAGIC: [u8; 4] = *b"WLBY";

const MAX_EXTENSIONS: usize = 1024;

/// Bytes of parts under way that each side takes at least.
pub(crate) const LEAST_PARTS: u64 = MAX_FRAME as u64 / 2;

/// What one side says of itself when a connection opens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello {
    /// The lowest and the highest version it speaks.
    pub versions: (u8, u8),
    /// Its incarnation.
    pub node: NodeId,
    /// The incarnation that it wants to reach; `None` if any will do.
    pub expected: Option<NodeId>,
    /// Where others reach it; `None` if it does not listen.
    pub address: Option<Address>,
    /// Optional features it knows, a bit each: see [`Features`].
    pub features: Features,
    /// What it takes.
    pub limits: ConnectionLimits,
}

/// Optional features, a bit each; both sides use what both know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Features(pub u64);

impl Features {
    /// Requests should carry their call's age: this side schedules by it.
    pub const AGE: Self = Self(1 << 0);
    /// The time should be told ahead of requests with deadlines: this side counts how long they have waited on their way.
    pub const TIME: Self = Self(1 << 1);
    /// Metadata may have values that are bytes: this side reads them.
    pub const BINARY_METADATA: Self = Self(1 << 2);
    /// Requests may have a durable id: this side reads it.
    pub const DURABLE: Self = Self(1 << 3);
    /// A stream's end may be told with how much of it was read: this side reads that.
    pub const READ: Self = Self(1 << 4);
    /// A pong may say that the server of a request is gone: this side reads that.
    pub const GONE: Self = Self(1 << 5);
    /// A pong may say that heartbeats come of its request: this side reads that.
    pub const HEARTBEATS: Self = Self(1 << 6);

    /// What every [endpoint](crate::endpoint) understands.
    pub(crate) const OF_ENDPOINTS: Self = Self::TIME
        .and(Self::BINARY_METADATA)
        .and(Self::DURABLE)
        .and(Self::READ)
        .and(Self::GONE)
        .and(Self::HEARTBEATS);

    /// These and those.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether all of `other` are among these.
    pub fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// What one side of a connection takes before it has processed something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// Longest message, in bytes of payload.
    pub message: u64,
    /// Bytes of requests that wait for their handlers.
    pub requests: u64,
    /// Bytes of responses of one call that wait for its application.
    pub call: u64,
    /// Bytes of parts under way.
    pub parts: u64,
    /// How many messages may travel in parts at a time.
    pub streams: u32,
}

impl Default for ConnectionLimits {
    /// Messages of 16 MiB; 4 MiB of requests, 1 MiB of responses a call, 128 KiB of parts of 4 messages under way.
    fn default() -> Self {
        Self {
            message: 16 << 20,
            requests: 4 << 20,
            call: 1 << 20,
            parts: 128 << 10,
            streams: 4,
        }
    }
}

impl Hello {
    /// Appends it, for whom is `expected`.
    pub(crate) fn put(&self, out: &mut Vec<u8>, expected: Option<NodeId>) {
        out.put_slice(&MAGIC);
        out.put_u8(self.versions.0);
        out.put_u8(self.versions.1);
        self.node.put(out);
        out.put_u64(expected.map_or(0, NodeId::get));
        out.put_u8(u8::from(self.address.is_some()));
        if let Some(address) = &self.address {
            address.put(out);
        }
        varint::put(out, self.features.0);
        varint::put(out, self.limits.message);
        varint::put(out, self.limits.requests);
        varint::put(out, self.limits.call);
        varint::put(out, self.limits.parts);
        varint::put(out, u64::from(self.limits.streams));
        varint::put_bytes(out, &[]); // room for later versions' fields
    }

    /// Reads the beginning, which is the same in all versions: a later one may go on otherwise.
    pub(crate) fn read_versions(reader: &mut Reader<'_>) -> Result<(u8, u8), WireError> {
        let what = "hello";
        if reader.array(what)? != MAGIC {
            return Err(WireError::Malformed {
                what,
                why: "not the beginning of a Wallaby connection",
            });
        }
        Ok((reader.u8(what)?, reader.u8(what)?))
    }

    /// Reads what follows the versions in the hello of a peer, if it speaks one that this side speaks too.
    pub(crate) fn read_peer(
        &self,
        reader: &mut Reader<'_>,
        versions: (u8, u8),
    ) -> Result<Self, ConnectionError> {
        match self.common_version(versions) {
            Some(_) => Ok(Self::read(reader, versions)?),
            None => Err(ConnectionError::Version {
                ours: self.versions,
                theirs: versions,
            }),
        }
    }

    /// Reads what follows the versions.
    fn read(reader: &mut Reader<'_>, versions: (u8, u8)) -> Result<Self, WireError> {
        let what = "hello";
        let node = NodeId::read(reader)?;
        let expected = NodeId::new(u64::from_be_bytes(reader.array(what)?));
        let address = match reader.u8(what)? {
            0 => None,
            1 => Some(Address::read(reader)?),
            _ => {
                return Err(WireError::Malformed {
                    what,
                    why: "an address that is neither there nor not",
                });
            }
        };
        let features = Features(reader.varint(what)?);
        let limits = ConnectionLimits {
            message: reader.varint(what)?,
            requests: reader.varint(what)?,
            call: reader.varint(what)?,
            parts: reader.varint(what)?,
            streams: reader.u32(what)?,
        };
        if limits.parts < LEAST_PARTS
            || limits.streams == 0
            || limits.requests == 0
            || limits.call == 0
        {
            return Err(WireError::Malformed {
                what,
                why: "limits that let nothing pass",
            });
        }
        reader.bytes(MAX_EXTENSIONS, what)?;
        reader.finish(what)?;
        Ok(Self {
            versions,
            node,
            expected,
            address,
            features,
            limits,
        })
    }

    /// The highest version that both sides speak.
    fn common_version(&self, theirs: (u8, u8)) -> Option<u8> {
        let version = self.versions.1.min(theirs.1);
        (version >= self.versions.0.max(theirs.0)).then_some(version)
    }
}
