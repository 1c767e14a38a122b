//! Messages above [`MAX_FRAME`] travel in parts that other messages may overtake.
//!
//! Each part is a frame: the number of its stream, and in the first part the total length and the kind of the message.
//! Parts of several large messages take turns. The receiver grants room for a few parts at a time, so that the
//! transport's own buffers do not fill with them and small messages wait behind little.

use std::collections::VecDeque;
use std::collections::btree_map::{BTreeMap, Entry};
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};

use crate::carrier::bounds::{BudgetShare, Gain, StallWatch};
use crate::carrier::transit::PeerTime;
use crate::connection::output::OutputBuffer;
use crate::connection::{ConnectionError, ConnectionLimits, bodies};
use crate::varint::{self, Reader};
use crate::wire::{MAX_FRAME, WireError, kind};

/// Room for a message is made for at most so many times what has arrived of it: often enough that little is moved,
/// seldom enough that a peer which only announces gets none.
const GROWTH: u64 = 4;

/// A large message, or some of a body, on its way out.
#[derive(Debug)]
struct OutgoingMessage {
    what: OutgoingKind,
    header: Bytes,
    payload: Bytes,
    /// When it was sent, if that has to be told ahead of its first part.
    told: Option<Duration>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OutgoingKind {
    Message { stream: u64, kind: u8, begun: bool },
    Body(u64),
}

/// What has left as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Left {
    /// The message of this stream.
    Message(u64),
    /// What waited of this body.
    Body(u64),
}

impl OutgoingMessage {
    fn left(&self) -> usize {
        self.header.len() + self.payload.len()
    }
}

/// The large messages that wait to be sent.
#[derive(Debug, Default)]
pub(super) struct PartsOutbox {
    /// Those that take turns, at most as many as the peer allows, then those that wait.
    queue: VecDeque<OutgoingMessage>,
    /// Bytes of messages that wait.
    bytes: usize,
    next_stream: u64,
}

impl PartsOutbox {
    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Bytes of messages that wait. Those of bodies have limits of their own and hold up no message.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    #[inline(never)]
    /// Adds a message; returns its stream.
    pub(super) fn push(&mut self, kind: u8, header: Vec<u8>, payload: &Bytes) -> u64 {
        let (header, payload) = (Bytes::from(header), payload.clone());
        let stream = self.next_stream;
        self.next_stream += 1;
        self.bytes += header.len() + payload.len();
        self.queue.push_back(OutgoingMessage {
            what: OutgoingKind::Message {
                stream,
                kind,
                begun: false,
            },
            header,
            payload,
            told: None,
        });
        stream
    }

    /// The message that was added last is a request that was sent at this time, as was told.
    pub(super) fn latest_was_sent_at(&mut self, told: Option<Duration>) {
        if let Some(outgoing) = self.queue.back_mut() {
            outgoing.told = told;
        }
    }

    /// When the next message was sent, if it begins now and that has to be told ahead of it.
    pub(super) fn begins_with_time(&mut self) -> Option<Duration> {
        self.queue.front_mut()?.told.take()
    }

    /// Adds some of a body, of which nothing waits.
    #[inline(never)]
    pub(super) fn push_body(&mut self, number: u64, payload: Bytes) {
        self.queue.push_back(OutgoingMessage {
            what: OutgoingKind::Body(number),
            header: Bytes::new(),
            payload,
            told: None,
        });
    }

    /// What waits of a body is not sent.
    pub(super) fn drop_body(&mut self, number: u64) {
        let waits = |outgoing: &OutgoingMessage| outgoing.what == OutgoingKind::Body(number);
        if let Some(position) = self.queue.iter().position(waits) {
            self.queue.remove(position);
        }
    }

    /// Appends the next part, of at most `size` bytes of its message or body, as a frame; returns how many there were,
    /// and what has left if they were the last.
    pub(super) fn write_part(
        &mut self,
        output: &mut OutputBuffer,
        streams: u32,
        size: usize,
    ) -> (usize, Option<Left>) {
        let Some(mut outgoing) = self.queue.pop_front() else {
            return (0, None);
        };
        let before = outgoing.left();
        match &mut outgoing.what {
            OutgoingKind::Message {
                stream,
                kind,
                begun,
            } => output.put_frame(kind::PART, |out| {
                varint::put(out, *stream);
                if !*begun {
                    varint::put(out, before as u64);
                    out.put_u8(*kind);
                    *begun = true;
                }
                let header = outgoing.header.split_to(outgoing.header.len().min(size));
                out.put_slice(&header);
                let room = size - header.len();
                out.put_slice(&outgoing.payload.split_to(outgoing.payload.len().min(room)));
            }),
            OutgoingKind::Body(number) => {
                let bytes = outgoing.payload.split_to(outgoing.payload.len().min(size));
                bodies::put_bytes(output, *number, &bytes);
            }
        }
        let written = before - outgoing.left();
        if matches!(outgoing.what, OutgoingKind::Message { .. }) {
            self.bytes -= written;
        }
        if outgoing.left() == 0 {
            let left = match outgoing.what {
                OutgoingKind::Message { stream, .. } => Left::Message(stream),
                OutgoingKind::Body(number) => Left::Body(number),
            };
            return (written, Some(left));
        }
        // Back in turn: behind the others that take turns, before those that wait.
        let turn = self.queue.len().min(streams as usize - 1);
        self.queue.insert(turn, outgoing);
        (written, None)
    }
}

/// A large message on its way in.
#[derive(Debug)]
struct IncomingMessage {
    kind: u8,
    total: u64,
    /// What arrived; only the beginning, if the message is too large to be taken.
    bytes: BytesMut,
    arrived: u64,
    too_large: bool,
    /// The latest time that the peer had told when its first part came.
    told: Option<PeerTime>,
    progress: Gain,
}

/// The large messages that are arriving.
#[derive(Debug)]
pub(super) struct PartsInbox {
    streams: BTreeMap<u64, IncomingMessage>,
    share: BudgetShare,
    watch: StallWatch,
    /// What has come and gets no credit before there is room for more.
    withheld: u64,
}

/// A message that is whole, or the beginning of one that is too large: the rest of that is dropped.
#[derive(Debug)]
pub(super) struct Assembled {
    pub(super) kind: u8,
    pub(super) body: Bytes,
    /// How long it is as a whole.
    pub(super) size: u64,
    /// The latest time that the peer had told before its first part.
    pub(super) told: Option<PeerTime>,
}

impl PartsInbox {
    pub(super) fn new(share: BudgetShare) -> Self {
        Self {
            streams: BTreeMap::new(),
            share,
            watch: StallWatch::default(),
            withheld: 0,
        }
    }

    /// Takes one part, before which the peer has told its time so; returns how many bytes of the message were in it, and
    /// what it completed.
    pub(super) fn handle_part(
        &mut self,
        body: &[u8],
        limits: ConnectionLimits,
        told: Option<PeerTime>,
    ) -> Result<(u64, Option<Assembled>), WireError> {
        let what = "part";
        let mut reader = Reader::new(body);
        let stream = reader.varint(what)?;
        let malformed = |why| WireError::Malformed { what, why };
        let is_full = self.streams.len() >= limits.streams as usize;
        let incoming = match self.streams.entry(stream) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(_) if is_full => {
                return Err(malformed("more messages in parts than were allowed"));
            }
            Entry::Vacant(place) => {
                let (total, kind) = (reader.varint(what)?, reader.u8(what)?);
                if !matches!(kind, kind::REQUEST | kind::RESPONSE) {
                    return Err(malformed("of a message that is no request and no response"));
                }
                place.insert(IncomingMessage {
                    kind,
                    total,
                    bytes: BytesMut::new(),
                    arrived: 0,
                    too_large: total > limits.message.saturating_add(MAX_FRAME as u64),
                    told,
                    progress: Gain::default(),
                })
            }
        };
        let bytes = &body[reader.position()..];
        if bytes.is_empty() {
            return Err(malformed("nothing in it"));
        }
        let held = incoming.bytes.len() as u64;
        let assembled = incoming.take(bytes)?;
        match &assembled {
            None => self.share.add(incoming.bytes.len() as u64 - held),
            Some(_) if incoming.too_large => {}
            Some(_) => self.share.remove(held),
        }
        if incoming.arrived == incoming.total {
            self.streams.remove(&stream);
            self.share.completed(stream, || first(&self.streams));
        }
        Ok((bytes.len() as u64, assembled))
    }

    /// Bytes of parts have come; how many of all that have come may be granted anew now.
    pub(super) fn grantable(&mut self, bytes: u64) -> u64 {
        self.withheld += bytes;
        if self.withheld == 0 {
            return 0;
        }
        if self.streams.is_empty() || self.share.may_grow(|| first(&self.streams)) {
            return std::mem::take(&mut self.withheld);
        }
        self.watch.hold_back();
        0
    }

    /// Whether credit is withheld for want of room.
    pub(super) fn is_withholding(&self) -> bool {
        self.withheld > 0
    }

    /// Looks whether each message has gained enough since this was last asked. Who was not read all the time, or got no
    /// credit, is excused, unless it was its turn.
    pub(super) fn check(&mut self, now: Duration, is_read: bool) -> Result<(), ConnectionError> {
        if !is_read || self.is_withholding() {
            self.watch.hold_back();
        }
        let (time, held_back) = self.watch.look(now, self.share.limits().period);
        let least = time.map(|time| self.share.least_unpressed(time));
        let stands =
            |incoming: &IncomingMessage| least.is_some_and(|least| incoming.progress.stands(least));
        let stood = is_read && held_back && self.streams.values().any(stands);
        let had_turn = self.share.look(time.is_some(), stood)?;
        let time = time.filter(|_| had_turn || !held_back);
        let least = time.map(|time| self.share.least(time));
        let mut stalled = false;
        for incoming in self.streams.values_mut() {
            stalled |= incoming.progress.look(least);
        }
        match (stalled, had_turn) {
            (true, _) => Err(self.share.stalled()),
            (false, true) => self.share.close_largest(),
            (false, false) => Ok(()),
        }
    }
}

/// The first message that takes room, and its length.
fn first(streams: &BTreeMap<u64, IncomingMessage>) -> Option<(u64, u64)> {
    let mut kept = streams.iter().filter(|(_, incoming)| !incoming.too_large);
    kept.next()
        .map(|(stream, incoming)| (*stream, incoming.total))
}

impl IncomingMessage {
    fn take(&mut self, bytes: &[u8]) -> Result<Option<Assembled>, WireError> {
        let first = self.arrived == 0;
        self.progress.gain(bytes.len());
        self.arrived += bytes.len() as u64;
        if self.arrived > self.total {
            return Err(WireError::Malformed {
                what: "part",
                why: "more bytes than its message has",
            });
        }
        if self.too_large {
            return Ok(first.then(|| self.assembled(Bytes::copy_from_slice(bytes))));
        }
        if self.bytes.capacity() - self.bytes.len() < bytes.len() {
            let room = self.total.min(self.arrived * GROWTH) - self.bytes.len() as u64;
            self.bytes.reserve(room as usize);
        }
        self.bytes.extend_from_slice(bytes);
        if self.arrived < self.total {
            return Ok(None);
        }
        let body = std::mem::take(&mut self.bytes).freeze();
        Ok(Some(self.assembled(body)))
    }

    fn assembled(&self, body: Bytes) -> Assembled {
        Assembled {
            kind: self.kind,
            body,
            size: self.total,
            told: self.told,
        }
    }
}
