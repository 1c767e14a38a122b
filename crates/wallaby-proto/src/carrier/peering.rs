//! What two incarnations know of each other, owe each other and have named to each other, by whatever their messages go.

use std::sync::Arc;
use std::time::Duration;

use super::Carried;
use super::credit::{CallWindows, RequestWindows};
use super::event::{ConnectionError, Event, Granted, SendRefusal};
use super::hello::{Features, Hello};
use super::methods::{CalledMethods, NamedMethods};
use super::output::OutputLimit;
use crate::id::{CallId, NodeId};
use crate::numbers::MESSAGE_COST;
use crate::varint::Reader;
use crate::wire::{LinkEnds, MAX_FRAME, Request, WireError};

/// One side's view of a peer: it is the same over streams and over datagrams.
#[derive(Debug)]
pub(crate) struct Peering {
    pub(crate) me: Arc<Hello>,
    /// What the peer said of itself, once the handshake is done.
    pub(crate) peer: Option<Arc<Hello>>,
    pub(crate) counters: Carried,
    pub(crate) called: CalledMethods,
    pub(crate) named: NamedMethods,
    pub(crate) requests: RequestWindows,
    pub(crate) calls: CallWindows,
    pub(crate) output: OutputLimit,
    /// Longest payload that both sides take, and what carries their messages.
    pub(crate) longest: u64,
    /// The same of this side alone: what it takes costs its window as much as it has bytes, or travels in parts.
    taken: u64,
    /// Messages may be sent: the handshake is done, and it is not closed.
    pub(crate) is_open: bool,
    /// Something was refused for want of credit; over a stream, and none has come since.
    pub(crate) refused: bool,
    /// The sequence of the latest request of a call of this side's own that was sent, and that no other could overtake.
    pub(crate) last_sent: u64,
    /// The same of the peer's, as it arrived.
    pub(crate) last_received: u64,
    /// The time, once somebody wants to know it.
    pub(crate) now: Option<Duration>,
}

impl Peering {
    /// Nobody is known yet. Payloads are carried up to the `longest`.
    pub(crate) fn new(me: Arc<Hello>, longest: u64, output: OutputLimit) -> Self {
        let limits = me.limits;
        Self {
            me,
            peer: None,
            counters: Carried::default(),
            called: CalledMethods::default(),
            named: NamedMethods::default(),
            requests: RequestWindows::new(limits.requests, longest),
            calls: CallWindows::default(),
            output,
            longest: longest.min(limits.message),
            taken: longest.min(limits.message),
            is_open: false,
            refused: false,
            last_sent: 0,
            last_received: 0,
            now: None,
        }
    }

    /// The peer has said who it is.
    pub(crate) fn open(&mut self, peer: Arc<Hello>) {
        self.requests.open(peer.limits.requests);
        self.longest = self.longest.min(peer.limits.message);
        self.is_open = true;
        self.peer = Some(peer);
    }

    /// Whether a message with a payload of this size may be sent at all.
    pub(crate) fn check(&self, payload: usize) -> Result<(), SendRefusal> {
        let (size, limit) = (payload as u64, self.longest);
        match self.is_open {
            false => Err(SendRefusal::NotOpen),
            true if size > limit => Err(SendRefusal::TooLarge { size, limit }),
            true => Ok(()),
        }
    }

    #[cold]
    pub(crate) fn blocked(&mut self) -> SendRefusal {
        self.refused = true;
        SendRefusal::Blocked
    }

    /// What the peer takes of each call's answers.
    fn call_limit(&self) -> u64 {
        self.peer.as_ref().map_or(0, |peer| peer.limits.call)
    }

    /// Whether there is credit for answers of this call.
    pub(crate) fn has_credit(&self, call: CallId) -> bool {
        self.calls.has_room(call, self.call_limit())
    }

    /// Takes credit for an answer of this call; `false` if there is none.
    pub(crate) fn spend(&mut self, call: CallId, payload: usize) -> bool {
        let limit = self.call_limit();
        self.calls.take(call, payload as u64 + MESSAGE_COST, limit)
    }

    /// Whether the peer wants to know when this request was sent.
    pub(crate) fn wants_time(&self, request: &Request) -> bool {
        let wants = |hello: &Arc<Hello>| hello.features.contains(Features::TIME);
        request.is_timed() && self.peer.as_ref().is_some_and(wants)
    }

    /// One more message leaves on this link.
    #[inline]
    pub(crate) fn leaving(&mut self, in_turn: bool) -> LinkEnds {
        self.counters.messages_sent += 1;
        let peer = self.peer.as_ref().unwrap_or(&self.me);
        LinkEnds {
            previous: if in_turn { self.last_sent } else { 0 },
            ..LinkEnds::new(self.me.node, peer.node)
        }
    }

    /// What messages arrive on, those `in_turn` or others.
    #[inline]
    pub(crate) fn arriving(&self, in_turn: bool) -> LinkEnds {
        let peer = self.peer.as_ref().unwrap_or(&self.me);
        LinkEnds {
            previous: if in_turn { self.last_received } else { 0 },
            ..LinkEnds::new(peer.node, self.me.node)
        }
    }

    /// A message was read that has this size, and a payload of so many bytes: counts it. Whether it is too large to be taken.
    #[inline(always)]
    pub(crate) fn is_too_large(&mut self, payload: usize, size: u64) -> bool {
        self.counters.messages_received += 1;
        let limit = self.taken;
        size > limit && (payload as u64 > limit || size > limit.saturating_add(MAX_FRAME as u64))
    }

    /// A request has come that will wait for its handler: it must have been granted.
    #[inline(always)]
    pub(crate) fn take_request(&mut self, payload: usize) -> Result<(), ConnectionError> {
        match self.requests.take(payload) {
            true => Ok(()),
            false => Err(ConnectionError::Overdrawn { what: "requests" }),
        }
    }

    /// The peer takes more answers of a call.
    pub(crate) fn handle_call_credit(&mut self, body: &[u8]) -> Result<Event, WireError> {
        let what = "call credit";
        let mut reader = Reader::new(body);
        let call = CallId {
            initiator: NodeId::read(&mut reader)?,
            sequence: reader.varint(what)?,
        };
        let bytes = reader.varint(what)?;
        reader.finish(what)?;
        self.refused = false;
        self.calls.grant(call, bytes);
        Ok(Event::Credit(Granted::Call(call)))
    }
}
