//! Messages of the protocol itself: pings, pongs, trace reports. They are exempt from credit and sent first.

use std::time::Duration;

use bytes::BufMut;

use crate::address::Address;
use crate::id::{CallId, NodeId, Path, RequestId, Token};
use crate::manifest::{Facts, Manifest};
use crate::varint::{self, Reader};
use crate::wire::hops::{HandledBy, TraceRecord, put_records, read_records};
use crate::wire::{
    LinkEnds, WireError, check_flags, put_destination, put_initiator, read_destination,
    read_initiator,
};

/// Most children that one pong lists; the rest is asked for from the next index on.
pub const MAX_CHILDREN: usize = 256;

/// Most missing responses that one ping asks for, and that one pong gives up.
pub const MAX_MISSING: usize = 256;

/// The initiator asks a server about a request (thesis 4.4), or aborts it (thesis 4.5).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ping {
    /// The call.
    pub call: CallId,
    /// Shows that the sender knows the call.
    pub token: Token,
    /// The request asked about.
    pub request: RequestId,
    /// Nothing of the call may start any more on this server.
    pub abort: bool,
    /// From which child on the pong lists children.
    pub children_from: u32,
    /// Responses that should have come and have not; who kept them sends them again.
    pub missing: Vec<u32>,
    /// It only shows the token, to who asked for that. It is not passed on, and answered only by who has no other route to the
    /// initiator.
    pub shows: bool,
}

/// What a server knows of a request, asked or (as an *announcement*) unasked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pong {
    /// The call.
    pub call: CallId,
    /// As [`super::Response::distance`].
    pub distance: u32,
    /// Shown unless it goes back over the connection that the ping came on.
    pub token: Option<Token>,
    /// The request.
    pub request: RequestId,
    /// Which attempt of the request this is about: the latest that the server knows; 0 is the first.
    pub attempt: u32,
    /// Nobody asked.
    pub announced: bool,
    /// Some of its output is still being written: by its server, or, in an announcement without progress, by who passes a
    /// response on.
    pub writing: bool,
    /// This incarnation of the server has forgotten requests before their time, for want of room: one that it does not know
    /// may have been among them.
    pub evicted: bool,
    /// Whoever says this had handed the request on, and had reached its server by a stream: that server is gone. Its address
    /// refuses connections, or another incarnation answers there, and no connection with it is left. Then there is no progress.
    pub gone: bool,
    /// The call wants heartbeats, and this server gives them for the request, which it knows. It is said only to who has
    /// [`Features::HEARTBEATS`](crate::connection::Features::HEARTBEATS).
    pub heartbeats: bool,
    /// How far it is; `None` if this incarnation of the server does not know it.
    pub progress: Option<Progress>,
}

/// How far a request is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Progress {
    /// Its handler has ended.
    pub finished: bool,
    /// It was aborted.
    pub aborted: bool,
    /// Number of its branch's first response that is its own.
    pub base: u32,
    /// Number of its branch's next response.
    pub count: u32,
    /// Number of the first child listed; 0 where none is.
    pub children_from: u32,
    /// Children it has released, from that number on: the one that the ping asked for.
    pub children: Vec<Child>,
    /// Where its branch went on, if it ended with a single delegation.
    pub continuation: Option<Child>,
    /// Its branch's facts, if the branch ended here; not if it ended with a status, which says so itself.
    pub facts: Option<Facts>,
    /// The manifest it was given, whether or not a message has taken that along: it may have been lost.
    pub manifest: Option<Manifest>,
    /// How long ago it last made progress, by the server's clock; `None` once its handler has ended.
    pub idle: Option<Duration>,
    /// Responses asked for that will not come any more: they went out on a connection with the initiator that has
    /// ended, or on none, and are not kept (docs/protocol.md, rules 25 and 26).
    pub lost: Vec<u32>,
    /// Who handles it, while it runs.
    pub handled_by: Option<Box<HandledBy>>,
}

impl Progress {
    /// The number of the status that ended the branch here, if one did.
    pub(crate) fn status(&self) -> Option<u32> {
        let ended = self.finished && self.facts.is_none() && self.continuation.is_none();
        self.count.checked_sub(1).filter(|_| ended)
    }
}

/// Where a delegated request went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Child {
    /// The server's address.
    pub server: Address,
    /// The server's incarnation, where the sender knows it.
    pub node: Option<NodeId>,
}

/// Trace records that found no place in another message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceReport {
    /// The call.
    pub call: CallId,
    /// As [`super::Response::distance`].
    pub distance: u32,
    /// Shown unless it goes back over the connection that the request came on.
    pub token: Option<Token>,
    /// At most [`crate::wire::MAX_TRACE_RECORDS`].
    pub records: Vec<TraceRecord>,
}

const DIRECT: u64 = 1 << 0;
const TOKEN: u64 = 1 << 1;
const ABORT: u64 = 1 << 2;
const MISSING: u64 = 1 << 3;
const SHOWS: u64 = 1 << 4;
const KNOWN_OF_PING: u64 = DIRECT | ABORT | MISSING | SHOWS;

impl Ping {
    pub(super) fn put(&self, out: &mut Vec<u8>, link: LinkEnds) {
        let flags = flag(self.call.initiator == link.sender, DIRECT)
            | flag(self.abort, ABORT)
            | flag(!self.missing.is_empty(), MISSING)
            | flag(self.shows, SHOWS);
        varint::put(out, flags);
        put_initiator(out, self.call, link.sender);
        self.token.put(out);
        put_request(out, self.request);
        varint::put(out, u64::from(self.children_from));
        if !self.missing.is_empty() {
            put_indexes(out, &self.missing);
        }
    }

    pub(super) fn read(reader: &mut Reader<'_>, link: LinkEnds) -> Result<Self, WireError> {
        let what = "ping";
        let flags = reader.varint(what)?;
        check_flags(what, flags, KNOWN_OF_PING)?;
        let call = read_initiator(reader, (flags & DIRECT != 0).then_some(link.sender))?;
        let token = Token::read(reader)?;
        let request = read_request(reader, what)?;
        let children_from = reader.u32(what)?;
        let missing = if flags & MISSING != 0 {
            read_indexes(reader, what)?
        } else {
            Vec::new()
        };
        Ok(Self {
            call,
            token,
            request,
            abort: flags & ABORT != 0,
            children_from,
            missing,
            shows: flags & SHOWS != 0,
        })
    }
}

const ANNOUNCED: u64 = 1 << 2;
const WRITING: u64 = 1 << 3;
const KNOWN_REQUEST: u64 = 1 << 4;
const FINISHED: u64 = 1 << 5;
const ABORTED: u64 = 1 << 6;
const CONTINUED: u64 = 1 << 7;
const FACTS: u64 = 1 << 8;
const MANIFEST: u64 = 1 << 9;
const ATTEMPT: u64 = 1 << 10;
const EVICTED: u64 = 1 << 11;
const IDLE: u64 = 1 << 12;
const LOST: u64 = 1 << 13;
const HANDLED_BY: u64 = 1 << 14;
const GONE: u64 = 1 << 15;
const HEARTBEATS: u64 = 1 << 16;
const KNOWN_OF_PONG: u64 = (1 << 17) - 1;
const OF_PROGRESS: u64 =
    FINISHED | ABORTED | CONTINUED | FACTS | MANIFEST | IDLE | LOST | HANDLED_BY | HEARTBEATS;

impl Pong {
    pub(super) fn put(&self, out: &mut Vec<u8>, link: LinkEnds) {
        let flags = flag(self.call.initiator == link.receiver, DIRECT)
            | flag(self.token.is_some(), TOKEN)
            | flag(self.announced, ANNOUNCED)
            | flag(self.writing, WRITING)
            | flag(self.attempt > 0, ATTEMPT)
            | flag(self.evicted, EVICTED)
            | flag(self.gone, GONE)
            | flag(self.heartbeats && self.progress.is_some(), HEARTBEATS)
            | self
                .progress
                .as_ref()
                .map_or(0, |progress| KNOWN_REQUEST | progress.flags());
        varint::put(out, flags);
        put_destination(out, self.call, self.distance, link.receiver);
        if let Some(token) = self.token {
            token.put(out);
        }
        put_request(out, self.request);
        if self.attempt > 0 {
            varint::put(out, u64::from(self.attempt));
        }
        if let Some(progress) = &self.progress {
            progress.put(out, &self.request.path);
        }
    }

    pub(super) fn read(reader: &mut Reader<'_>, link: LinkEnds) -> Result<Self, WireError> {
        let what = "pong";
        let flags = reader.varint(what)?;
        check_flags(what, flags, KNOWN_OF_PONG)?;
        let (call, distance) = read_destination(reader, flags & DIRECT != 0, link.receiver)?;
        let token = if flags & TOKEN != 0 {
            Some(Token::read(reader)?)
        } else {
            None
        };
        let request = read_request(reader, what)?;
        let attempt = if flags & ATTEMPT != 0 {
            reader.u32(what)?
        } else {
            0
        };
        let malformed = |why| Err(WireError::Malformed { what, why });
        let progress = match (flags & KNOWN_REQUEST != 0, flags & OF_PROGRESS) {
            (true, _) if flags & GONE != 0 => {
                return malformed("progress of a server that is gone");
            }
            (true, _) => Some(Progress::read(reader, flags, &request.path)?),
            (false, 0) => None,
            (false, _) => return malformed("progress of an unknown request"),
        };
        Ok(Self {
            call,
            distance,
            token,
            request,
            attempt,
            announced: flags & ANNOUNCED != 0,
            writing: flags & WRITING != 0,
            evicted: flags & EVICTED != 0,
            gone: flags & GONE != 0,
            heartbeats: flags & HEARTBEATS != 0,
            progress,
        })
    }
}

impl Progress {
    fn flags(&self) -> u64 {
        flag(self.finished, FINISHED)
            | flag(self.aborted, ABORTED)
            | flag(self.continuation.is_some(), CONTINUED)
            | flag(self.facts.is_some(), FACTS)
            | flag(self.manifest.is_some(), MANIFEST)
            | flag(self.idle.is_some(), IDLE)
            | flag(!self.lost.is_empty(), LOST)
            | flag(self.handled_by.is_some(), HANDLED_BY)
    }

    fn put(&self, out: &mut Vec<u8>, place: &Path) {
        varint::put(out, u64::from(self.base));
        varint::put(out, u64::from(self.count));
        let children = &self.children[..self.children.len().min(MAX_CHILDREN)];
        varint::put(out, children.len() as u64);
        if !children.is_empty() {
            varint::put(out, u64::from(self.children_from));
        }
        children.iter().for_each(|child| child.put(out));
        if let Some(continuation) = &self.continuation {
            continuation.put(out);
        }
        if let Some(facts) = self.facts {
            facts.put(out);
        }
        if let Some(manifest) = &self.manifest {
            manifest.put(out, place);
        }
        if let Some(idle) = self.idle {
            varint::put_duration(out, idle);
        }
        if !self.lost.is_empty() {
            put_indexes(out, &self.lost);
        }
        if let Some(handled_by) = &self.handled_by {
            handled_by.put(out);
        }
    }

    fn read(reader: &mut Reader<'_>, flags: u64, place: &Path) -> Result<Self, WireError> {
        let what = "pong";
        let has = |flag: u64| flags & flag != 0;
        let base = reader.u32(what)?;
        let count = reader.u32(what)?;
        let children = read_count(reader, MAX_CHILDREN, what)?;
        let children_from = if children > 0 { reader.u32(what)? } else { 0 };
        if children_from.checked_add(children as u32).is_none() {
            return Err(WireError::Malformed {
                what,
                why: "children beyond the last number",
            });
        }
        Ok(Self {
            finished: has(FINISHED),
            aborted: has(ABORTED),
            base,
            count,
            children_from,
            children: (0..children)
                .map(|_| Child::read(reader))
                .collect::<Result<_, _>>()?,
            continuation: if has(CONTINUED) {
                Some(Child::read(reader)?)
            } else {
                None
            },
            facts: if has(FACTS) {
                Some(Facts::read(reader)?)
            } else {
                None
            },
            manifest: if has(MANIFEST) {
                Some(Manifest::read(reader, place)?)
            } else {
                None
            },
            idle: if has(IDLE) {
                Some(reader.duration(what)?)
            } else {
                None
            },
            lost: if has(LOST) {
                read_indexes(reader, what)?
            } else {
                Vec::new()
            },
            handled_by: if has(HANDLED_BY) {
                Some(Box::new(HandledBy::read(reader)?))
            } else {
                None
            },
        })
    }
}

impl Child {
    fn put(&self, out: &mut Vec<u8>) {
        self.server.put(out);
        out.put_u8(u8::from(self.node.is_some()));
        if let Some(node) = self.node {
            node.put(out);
        }
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, WireError> {
        let what = "child";
        let server = Address::read(reader)?;
        let node = match reader.u8(what)? {
            0 => None,
            1 => Some(NodeId::read(reader)?),
            _ => {
                return Err(WireError::Malformed {
                    what,
                    why: "a node that is neither there nor not",
                });
            }
        };
        Ok(Self { server, node })
    }
}

impl TraceReport {
    pub(super) fn put(&self, out: &mut Vec<u8>, link: LinkEnds) {
        varint::put(
            out,
            flag(self.call.initiator == link.receiver, DIRECT) | flag(self.token.is_some(), TOKEN),
        );
        put_destination(out, self.call, self.distance, link.receiver);
        if let Some(token) = self.token {
            token.put(out);
        }
        put_records(out, &self.records);
    }

    pub(super) fn read(reader: &mut Reader<'_>, link: LinkEnds) -> Result<Self, WireError> {
        let what = "trace report";
        let flags = reader.varint(what)?;
        check_flags(what, flags, DIRECT | TOKEN)?;
        let (call, distance) = read_destination(reader, flags & DIRECT != 0, link.receiver)?;
        let token = if flags & TOKEN != 0 {
            Some(Token::read(reader)?)
        } else {
            None
        };
        Ok(Self {
            call,
            distance,
            token,
            records: read_records(reader)?,
        })
    }
}

fn flag(condition: bool, flag: u64) -> u64 {
    if condition { flag } else { 0 }
}

fn put_request(out: &mut Vec<u8>, request: RequestId) {
    request.path.put(out);
    varint::put(out, u64::from(request.hop));
}

fn read_request(reader: &mut Reader<'_>, what: &'static str) -> Result<RequestId, WireError> {
    let path = Path::read(reader)?;
    if path.is_root() {
        return Err(WireError::Malformed {
            what,
            why: "the initiator's own place",
        });
    }
    Ok(RequestId {
        path,
        hop: reader.u32(what)?,
    })
}

/// Appends numbers of responses, the first [`MAX_MISSING`] of them.
fn put_indexes(out: &mut Vec<u8>, indexes: &[u32]) {
    let indexes = &indexes[..indexes.len().min(MAX_MISSING)];
    varint::put(out, indexes.len() as u64);
    indexes
        .iter()
        .for_each(|&index| varint::put(out, u64::from(index)));
}

fn read_indexes(reader: &mut Reader<'_>, what: &'static str) -> Result<Vec<u32>, WireError> {
    let count = read_count(reader, MAX_MISSING, what)?;
    (0..count).map(|_| reader.u32(what)).collect()
}

fn read_count(
    reader: &mut Reader<'_>,
    limit: usize,
    what: &'static str,
) -> Result<usize, WireError> {
    let len = reader.varint(what)?;
    if len > limit as u64 {
        return Err(WireError::TooLong { what, len, limit });
    }
    Ok(len as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::id::NodeId;

    #[test]
    fn a_branch_has_ended_with_a_status_if_nothing_else_is_said_of_its_end() {
        let place = Child {
            server: Address::Mem("m".into()),
            node: NodeId::new(1),
        };
        let facts = Facts {
            requests: 0,
            responses: 3,
        };
        let status = |finished, facts, continuation| {
            let progress = Progress {
                finished,
                aborted: false,
                base: 0,
                count: 3,
                children_from: 0,
                children: vec![],
                continuation,
                facts,
                manifest: None,
                idle: None,
                lost: vec![],
                handled_by: None,
            };
            progress.status()
        };
        assert_eq!(status(true, None, None), Some(2), "the last response");
        assert_eq!(status(false, None, None), None, "it runs");
        assert_eq!(status(true, Some(facts), None), None, "with an answer");
        assert_eq!(status(true, None, Some(place.clone())), None, "elsewhere");
        assert_eq!(status(false, Some(facts), None), None);
        assert_eq!(status(false, None, Some(place)), None);
    }
}
