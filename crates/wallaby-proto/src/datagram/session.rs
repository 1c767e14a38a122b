//! One session of one incarnation with another: what the driver may ask of it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut, Bytes};

use crate::connection::credit::{CallWindows, Grants};
use crate::connection::transit::{Transit, microseconds};
use crate::connection::{Counters, Features, Hello, MethodDefinition, NamedBy, Partials};
use crate::datagram::assembly::Assembly;
use crate::datagram::methods::{self, CalledMethods, Introduced};
use crate::datagram::outbound::{MessageNumber, NewMessage, OutboundQueue};
use crate::datagram::packet::{self, ACK_ROOM, CHECKSUM, INTRODUCTION, PIECE_OVERHEAD, TIMED};
use crate::datagram::received::ReceivedPackets;
use crate::datagram::recovery::{ASLEEP, PathStats, Recovery};
use crate::datagram::sizing::Sizing;
use crate::datagram::window::{ReplayWindow, WINDOW};
use crate::datagram::{MAX_MESSAGE, Pending, SessionRefusal, Settings};
use crate::id::{CallId, NodeId};
use crate::numbers::{MAX_REASON, MESSAGE_COST};
use crate::varint;
use crate::wire::{LinkEnds, Message, MethodRef, Request, Response, kind};

/// Of the numbers for messages that are not acknowledged, so many are kept for those that need no credit.
const CONTROL_NUMBERS: u64 = WINDOW / 4;

/// The window of requests, as a credit names it.
pub(super) const REQUESTS: u8 = 0;

/// A peer is not asked whether it is still there before it was silent for so many round trips.
const ROUND_TRIPS: u32 = 8;

/// How long requests wait for a peer that is asked whether it is still there.
const ASKING: Duration = Duration::from_millis(500);

/// What a packet takes at most besides frames and acknowledgement: kind, session, number, checksum.
const PACKET_OVERHEAD: usize = 1 + 8 + varint::MAX_LEN + CHECKSUM;

/// One session, as one of its two sides sees it. It is reached through its [`super::Gate`].
#[derive(Debug)]
pub struct Session {
    pub(super) me: Arc<Hello>,
    /// The peer, once its hello was read.
    pub(super) peer: Option<Arc<Hello>>,
    pub(super) remote: SocketAddr,
    /// The ids that this side and the other one know the session by.
    pub(super) local_id: u64,
    pub(super) remote_id: u64,
    pub(super) stage: Stage,
    pub(super) received: ReceivedPackets,
    pub(super) window: ReplayWindow,
    pub(super) assembly: Assembly,
    pub(super) introduced: Introduced,
    pub(super) calls: CalledMethods,
    pub(super) outgoing: OutboundQueue,
    pub(super) recovery: Recovery,
    pub(super) sizing: Sizing,
    pub(super) request_window: i64,
    pub(super) call_windows: CallWindows,
    pub(super) request_grants: Grants,
    /// When a request was about to be sent last.
    now: Option<Duration>,
    /// What the peer's times tell, once it has told one.
    pub(super) transit: Option<Box<Transit>>,
    /// The next packet asks for an acknowledgement even if it holds no message.
    pub(super) probe: bool,
    /// So many packets may leave whatever the congestion window says.
    pub(super) probes: u32,
    /// How long the packet is, without its checksum, that leaves before the next one; 0 if none leaves now.
    pub(super) length_before: usize,
    /// When it was opened, by this side's clock.
    pub(super) since: Duration,
    presence: Presence,
    pub(super) settings: Settings,
    pub(super) counters: Counters,
    /// It waits in its gate's queue of sessions that may have something to send.
    pub(super) queued: bool,
    /// The earliest of its gate's timers that will look at it, in nanoseconds.
    pub(super) armed: Option<u64>,
}

/// How far a session is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Stage {
    /// This side asks for it.
    Asking {
        hello: Bytes,
        /// The incarnation that is wanted, if not any.
        expected: Option<NodeId>,
        named_by: NamedBy,
        since: Duration,
        asked: Option<Duration>,
        tries: u32,
    },
    /// The peer has handed out its id, but may not have opened it yet: each packet carries what that needs.
    Opening {
        hello: Bytes,
        issued: u64,
        named_by: NamedBy,
    },
    /// Both sides know it; `issued` says when, if the other side asked for it.
    Open { issued: Option<u64> },
    /// This side has closed it, and tells the other.
    Closing {
        issued: Option<u64>,
        until: Option<Duration>,
    },
}

/// Whether the peer's incarnation goes on, as far as known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Presence {
    /// It does, unless it has shown no life for long.
    Assumed,
    /// It was asked then, and requests wait.
    Asked(Duration),
    /// It was asked then, in vain: requests are sent, and their calls find out what becomes of them.
    Unknown(Duration),
}

impl Session {
    pub(super) fn new(
        me: Arc<Hello>,
        remote: SocketAddr,
        ids: (u64, u64),
        stage: Stage,
        now: Duration,
        settings: &Settings,
        partials: &Partials,
    ) -> Self {
        let requests = me.limits.requests;
        let grants = Grants::new(requests, MAX_MESSAGE as u64 + MESSAGE_COST, requests / 2);
        Self {
            me,
            peer: None,
            remote,
            local_id: ids.0,
            remote_id: ids.1,
            stage,
            received: ReceivedPackets::default(),
            window: ReplayWindow::default(),
            assembly: Assembly::new(partials.share()),
            introduced: Introduced::default(),
            calls: CalledMethods::default(),
            outgoing: OutboundQueue::default(),
            recovery: Recovery::new(settings),
            sizing: Sizing::new(settings, remote),
            request_window: 0,
            call_windows: CallWindows::default(),
            request_grants: grants,
            now: None,
            transit: None,
            probe: false,
            probes: 0,
            length_before: 0,
            since: now,
            presence: Presence::Assumed,
            settings: *settings,
            counters: Counters::default(),
            queued: false,
            armed: None,
        }
    }

    /// The peer has said who it is.
    pub(super) fn set_peer(&mut self, peer: Arc<Hello>) {
        self.request_window = peer.limits.requests.min(i64::MAX as u64) as i64;
        self.peer = Some(peer);
    }

    /// The peer, once the handshake is done.
    pub fn peer(&self) -> Option<&Arc<Hello>> {
        self.peer.as_ref()
    }

    /// Where the peer is.
    pub fn remote(&self) -> SocketAddr {
        self.remote
    }

    /// What this session has carried: messages, and the bytes of their datagrams.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Whether it has named so many methods that few more can be.
    pub fn names_are_scarce(&self) -> bool {
        self.calls.are_scarce()
    }

    /// What it has found out about the way to the peer.
    pub fn path(&self) -> PathStats {
        self.recovery.path()
    }

    /// Whether nothing waits to be sent or acknowledged.
    pub fn is_idle(&self) -> bool {
        self.outgoing.is_empty()
    }

    /// Whether the peer has acknowledged this message: its incarnation has received it (PROTOCOL-NOTES 25).
    pub fn is_acknowledged(&self, message: MessageNumber) -> bool {
        self.outgoing.has_arrived(message.0)
    }

    /// How many messages have left without a gap: all whose [`MessageNumber::index`] is below. One has when it was sent
    /// wholly; if it went in pieces of which some have arrived, when all have. What is lost on its way is sent again, but a
    /// peer that stays silent is not waited for (PROTOCOL-NOTES 18): after five probes in vain all counts as having left.
    pub fn left(&self) -> u64 {
        match self.recovery.is_answered() {
            true => self.outgoing.left(),
            false => self.outgoing.next(),
        }
    }

    /// Whether the message that was sent last leaves later than with the next datagrams: it goes in pieces, or no more may
    /// be under way.
    pub fn is_behind(&self) -> bool {
        self.outgoing.ends_in_pieces() || self.recovery.is_last(0)
    }

    /// How many messages the peer has acknowledged without a gap: all whose [`MessageNumber::index`] is below.
    pub fn acknowledged(&self) -> u64 {
        self.outgoing.first()
    }

    /// The messages that the peer has not acknowledged.
    pub fn pending(&self) -> impl Iterator<Item = Pending> + '_ {
        self.outgoing.pending().map(|(number, sent)| Pending {
            number: MessageNumber(number),
            sent,
        })
    }

    /// Whether a request should be sent now. A peer that has shown no life for long is asked first whether it is still there,
    /// so that a request is not spent on an incarnation or a session that is over: nobody could tell whether that had executed it.
    /// When it has answered, or has not in half a second, [`crate::connection::Event::Credit`] says that requests may go on.
    ///
    /// A sign of life is that it has acknowledged something, as old as what it has acknowledged.
    pub fn confirm(&mut self, now: Duration) -> bool {
        self.now = Some(now);
        let silent = now.saturating_sub(self.recovery.alive());
        match self.presence {
            Presence::Unknown(_) => true,
            Presence::Asked(_) => false,
            Presence::Assumed if self.is_established() && silent > self.confirm_after() => {
                self.ask(now);
                false
            }
            Presence::Assumed => true,
        }
    }

    /// Silence for longer than this, and the peer may be another incarnation by now.
    fn confirm_after(&self) -> Duration {
        let round_trips = self.recovery.round_trip() * ROUND_TRIPS;
        round_trips.max(self.settings.confirm_after)
    }

    /// Whether both sides have it and none has closed it, as far as known.
    fn is_established(&self) -> bool {
        matches!(self.stage, Stage::Opening { .. } | Stage::Open { .. })
    }

    /// The peer has acknowledged something; whether requests waited for that.
    pub(super) fn note_alive(&mut self) -> bool {
        let (Presence::Asked(asked) | Presence::Unknown(asked)) = self.presence else {
            return false;
        };
        if self.recovery.alive() < asked {
            return false; // that it has acknowledged before, or while nobody listened here
        }
        let before = std::mem::replace(&mut self.presence, Presence::Assumed);
        matches!(before, Presence::Asked(_))
    }

    /// When requests do not wait any longer for a peer that was asked.
    pub(super) fn asked_until(&self) -> Option<Duration> {
        match self.presence {
            Presence::Asked(since) => Some(since.saturating_add(ASKING)),
            Presence::Assumed | Presence::Unknown(_) => None,
        }
    }

    /// It is `now`; whether requests have waited long enough.
    pub(super) fn stop_asking(&mut self, now: Duration) -> bool {
        let Presence::Asked(asked) = self.presence else {
            return false;
        };
        let waited = now.saturating_sub(asked);
        if waited < ASKING {
            return false;
        }
        if waited > ASKING + ASLEEP {
            self.ask(now); // nobody listened for the answer
            return false;
        }
        self.presence = Presence::Unknown(asked);
        true
    }

    fn ask(&mut self, now: Duration) {
        self.presence = Presence::Asked(now);
        self.probes = self.probes.max(1);
    }

    /// Sends a request by this method; how it is named is filled in here. See [`Session::confirm`] first.
    ///
    /// # Errors
    ///
    /// If it is not accepted now or not at all; nothing was sent then.
    pub fn send_request(
        &mut self,
        request: &mut Request,
        method: &MethodDefinition,
    ) -> Result<MessageNumber, SessionRefusal> {
        let size = request.payload.len();
        self.check(size)?;
        if self.request_window <= 0 || self.is_congested() {
            return Err(SessionRefusal::Blocked);
        }
        if request.body().is_some() {
            return Err(SessionRefusal::NoBodies);
        }
        let named = self
            .calls
            .name(method)
            .ok_or(SessionRefusal::NoMethodName)?;
        self.request_window -= (size as u64 + MESSAGE_COST) as i64;
        request.method = MethodRef::Hash(named.hash);
        let mut header = self.outgoing.buffer();
        let mut kind = kind::REQUEST;
        if named.introduces.is_some() {
            methods::put(&mut header, method);
            kind = INTRODUCTION;
        } else if let Some(now) = self.time_for(request) {
            varint::put(&mut header, microseconds(now));
            kind = TIMED;
        }
        if let Some(link) = self.link() {
            request.put_header(&mut header, link);
        }
        self.counters.messages_sent += 1;
        let payload = request.payload.clone();
        Ok(self.push(header, kind, payload, false, named.introduces))
    }

    /// What the clock shows, if the receiver wants to know that of this request.
    fn time_for(&self, request: &Request) -> Option<Duration> {
        let wants = |peer: &Arc<Hello>| peer.features.contains(Features::TIME);
        let is_told = request.is_timed() && self.peer.as_ref().is_some_and(wants);
        self.now.filter(|_| is_told)
    }

    /// Sends a response. Only what is `counted` needs the call's credit: a server need not count the one small answer
    /// to a request that came in this very session.
    ///
    /// # Errors
    ///
    /// If it is not accepted now or not at all; nothing was sent then.
    pub fn send_response(
        &mut self,
        response: &Response,
        counted: bool,
    ) -> Result<MessageNumber, SessionRefusal> {
        let size = response.payload.len();
        self.check(size)?;
        let accepted = if counted {
            let limit = self.peer.as_ref().map_or(0, |peer| peer.limits.call);
            let cost = size as u64 + MESSAGE_COST;
            !self.is_congested() && self.call_windows.take(response.call, cost, limit)
        } else {
            !self.is_full()
        };
        if !accepted {
            return Err(SessionRefusal::Blocked);
        }
        let mut header = self.outgoing.buffer();
        if let Some(link) = self.link() {
            response.put_header(&mut header, link);
        }
        self.counters.messages_sent += 1;
        let payload = response.payload.clone();
        Ok(self.push(header, kind::RESPONSE, payload, false, None))
    }

    /// Sends a message that needs no credit, anything but requests and responses, before those that wait.
    ///
    /// # Errors
    ///
    /// If the handshake is not done, or if more is unacknowledged than even such messages may add to.
    pub fn send_control(&mut self, message: Message) -> Result<MessageNumber, SessionRefusal> {
        let payload = message.payload().clone();
        self.check(payload.len())?;
        if self.is_full() {
            return Err(SessionRefusal::Blocked);
        }
        let mut header = self.outgoing.buffer();
        if let Some(link) = self.link() {
            message.put_header(&mut header, link);
        }
        self.counters.messages_sent += 1;
        Ok(self.push(header, message.kind(), payload, true, None))
    }

    /// Whether a small request would be accepted now.
    pub fn takes_requests(&self) -> bool {
        self.check(0).is_ok() && self.request_window > 0 && !self.is_congested()
    }

    /// Whether messages with credit are sent now, whatever credit there is.
    pub fn takes_output(&self) -> bool {
        !self.is_congested()
    }

    /// Whether a small response of this call would be accepted now.
    pub fn takes_responses(&self, call: CallId) -> bool {
        self.check(0).is_ok() && self.has_credit(call) && !self.is_congested()
    }

    /// Whether there is credit for responses of this call, be there room for them or not.
    pub fn has_credit(&self, call: CallId) -> bool {
        let limit = self.peer.as_ref().map_or(0, |peer| peer.limits.call);
        self.call_windows.has_room(call, limit)
    }

    /// A request that came in this session has left the queue for its handler, or was refused.
    pub fn grant_request(&mut self, payload: usize) {
        if let Some(bytes) = self.request_grants.add(payload as u64 + MESSAGE_COST) {
            self.push_own(kind::CREDIT, |out| {
                out.put_u8(REQUESTS);
                varint::put(out, bytes);
            });
        }
    }

    /// The application took responses of a call that came in this session: so many, with payloads of so many bytes in
    /// all. Call it for at least a quarter of the limit at a time.
    pub fn grant_call(&mut self, call: CallId, responses: u64, payload: u64) {
        self.push_own(kind::CALL_CREDIT, |out| {
            call.initiator.put(out);
            varint::put(out, call.sequence);
            varint::put(out, payload + responses * MESSAGE_COST);
        });
    }

    /// Calls of this initiator before `oldest` are over: their credit is not kept.
    pub fn forget_calls(&mut self, oldest: CallId) {
        self.call_windows.forget(oldest);
    }

    /// Tells the peer that nothing new comes. What was sent before may arrive after it.
    pub fn go_away(&mut self) {
        let received = self.counters.messages_received;
        self.push_own(kind::GOING_AWAY, |out| varint::put(out, received));
    }

    /// Closes the session and tells the peer why. What was not acknowledged is not sent again: wait until
    /// [`Session::is_idle`] if it should be. There are no more events.
    pub fn close(&mut self, reason: &str) {
        let issued = match self.stage {
            Stage::Open { issued } => issued,
            Stage::Asking { .. } | Stage::Opening { .. } => None,
            Stage::Closing { .. } => return,
        };
        self.outgoing.clear();
        self.presence = Presence::Assumed;
        let reason = &reason[..reason.floor_char_boundary(MAX_REASON)];
        self.push_own(kind::CLOSE, |out| out.put_slice(reason.as_bytes()));
        // Who opened it and said nothing is told once: else sessions that strangers open would take up room as they end.
        let was_silent = issued.is_some() && self.counters.messages_received == 0;
        self.stage = Stage::Closing {
            issued,
            until: was_silent.then_some(Duration::ZERO),
        };
    }

    /// Whether no more may be sent with credit until something is acknowledged.
    pub(super) fn is_congested(&self) -> bool {
        self.outgoing.bytes() >= self.settings.unacknowledged
            || self.outgoing.numbers() >= WINDOW - CONTROL_NUMBERS
    }

    /// Whether not even messages without credit may be sent. Some numbers are left for what concerns the session.
    fn is_full(&self) -> bool {
        self.outgoing.bytes() >= 2 * self.settings.unacknowledged
            || self.outgoing.numbers() >= WINDOW - CONTROL_NUMBERS / 4
    }

    /// Whether a message with a payload of this size may be sent at all.
    fn check(&self, payload: usize) -> Result<(), SessionRefusal> {
        let peer = match (&self.peer, &self.stage) {
            (_, Stage::Closing { .. }) => return Err(SessionRefusal::Closing),
            (None, _) => return Err(SessionRefusal::NotOpen),
            (Some(peer), _) => peer,
        };
        let size = payload as u64;
        let limit = peer.limits.message.min(self.me.limits.message);
        if payload > MAX_MESSAGE {
            Err(SessionRefusal::TooLargeForDatagrams { size })
        } else if size > limit {
            Err(SessionRefusal::TooLarge { size, limit })
        } else {
            Ok(())
        }
    }

    fn link(&self) -> Option<LinkEnds> {
        Some(LinkEnds::new(self.me.node, self.peer.as_ref()?.node))
    }

    /// Sends something that concerns the session alone.
    fn push_own(&mut self, kind: u8, body: impl FnOnce(&mut Vec<u8>)) {
        // Numbers run out only if the peer acknowledges nothing; then the session ends anyway.
        if self.peer.is_some() && self.outgoing.numbers() < WINDOW {
            let mut header = self.outgoing.buffer();
            body(&mut header);
            self.push(header, kind, Bytes::new(), true, None);
        }
    }

    fn push(
        &mut self,
        header: Vec<u8>,
        kind: u8,
        payload: Bytes,
        control: bool,
        introduces: Option<u16>,
    ) -> MessageNumber {
        let len = header.len() + payload.len();
        let room = self.frame_room(len);
        if len + PIECE_OVERHEAD > room {
            self.sizing.want_more();
        }
        let message = NewMessage {
            kind,
            payload,
            control,
            introduces,
            room,
        };
        self.outgoing.push(header, message)
    }

    /// Most bytes of a frame of a message of this length. While packets carry the hello there is less; only what would
    /// be too many pieces then waits until they don't.
    fn frame_room(&self, len: usize) -> usize {
        let whole = self.sizing.datagram() - PACKET_OVERHEAD - ACK_ROOM;
        let Stage::Opening { hello, .. } = &self.stage else {
            return whole;
        };
        let beside_hello = whole.saturating_sub(packet::OPEN_OVERHEAD + hello.len());
        let piece = beside_hello.saturating_sub(PIECE_OVERHEAD);
        if len <= piece * crate::datagram::outbound::MAX_PIECES {
            beside_hello
        } else {
            whole
        }
    }
}
