//! One connection of one incarnation to another: handshake, frames, parts, credit, method numbers.
//!
//! The driver's contract: give it what arrived by [`Connection::handle_input`] until that returns `None` or nothing is
//! left, then write what [`Connection::output`] shows and say how much by [`Connection::advance`]. Everything that sends
//! only appends to the output. Any error means: close the transport, after what the output still shows (the reason, for
//! the peer) was written as far as that does not wait.

mod arriving;
mod bodies;
pub(crate) mod bounds;
pub(crate) mod credit;
mod dials;
mod event;
mod hello;
mod keep_alive;
mod messages;
mod methods;
mod output;
mod pace;
mod parts;
mod slots;
pub(crate) mod transit;

use std::collections::VecDeque;
use std::ops::AddAssign;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};

pub use self::bodies::{BodyEvent, BodyRefusal, MAX_BODIES};
pub use self::bounds::{Bounds, PartialLimits, Partials};
pub use self::credit::MAX_CALLS;
pub use self::dials::{DialBackoff, DialLimits, Dials, NamedBy};
pub use self::event::{ConnectionError, Event, Granted, Refusal};
pub(crate) use self::hello::LEAST_PARTS;
pub use self::hello::{ConnectionLimits, Features, Hello, VERSION};
pub use self::keep_alive::{KeepAlive, KeepAliveSettings};
pub(crate) use self::methods::MANY_METHODS;
pub use self::methods::{MAX_METHOD_NAME, MAX_METHODS, MethodDefinition, is_reserved};

pub use self::slots::{ConnectionSlots, Search, StrangerLimits, Usefulness};

use self::bodies::Wish;
use self::credit::{CallWindows, Grants};
use self::methods::{Number, Numbers};
use self::output::OutputBuffer;
use self::pace::Pace;
use self::parts::{Left, PartOutcome, PartsInbox, PartsOutbox};
use self::transit::{Telling, Transit};
use crate::id::{CallId, NodeId};
use crate::numbers::{MAX_REASON, MESSAGE_COST};
use crate::varint::{self, Reader};
use crate::wire::{
    DecodeError, FRAME_HEADER, LinkEnds, MAX_FRAME, Message, MethodRef, ReplyTo, Request, Response,
    kind,
};

/// Messages with credit are refused while more than this waits to be written.
const OUTPUT_LIMIT: usize = 256 * 1024;

/// A frame's body may exceed [`MAX_FRAME`] by what its header takes.
const MAX_BODY: usize = 2 * MAX_FRAME;

/// Longest header that most messages have.
const HEADER_GUESS: usize = 64;

/// Before the handshake is done, a frame's body is at most this long.
const MAX_HELLO: usize = 4096;

/// Parts are granted anew after so many bytes: less than a sender has under way that keeps them few.
const PARTS_GRANT: u64 = 4 * 1024;

/// Most messages in parts that are remembered to have left.
const MAX_LEFT: usize = 4096;

/// One connection, as one of its two sides sees it.
#[derive(Debug)]
pub struct Connection {
    role: Role,
    me: Arc<Hello>,
    /// The peer's hello, once the handshake is done.
    peer: Option<Arc<Hello>>,
    output: OutputBuffer,
    outbox: PartsOutbox,
    pace: Pace,
    inbox: PartsInbox,
    bodies: bodies::SendingBodies,
    bodies_in: bodies::ReceivingBodies,
    numbers: Numbers,
    methods_named: u32,
    /// The sequence of the latest request of a call of this side's own that was sent, but not in parts.
    last_sent: u64,
    /// The same of the peer's, as it arrived.
    last_received: u64,
    request_window: i64,
    /// Most that a request costs of the peer's window.
    highest_cost: u64,
    /// The same of this side's.
    highest_own_cost: u64,
    /// Longest payload that both sides take.
    longest: u64,
    call_windows: CallWindows,
    request_grants: Grants,
    parts_grants: Grants,
    /// The time, once somebody wants to know it.
    now: Option<Duration>,
    telling: Telling,
    /// What the peer's times tell, once it has told one.
    transit: Option<Box<Transit>>,
    /// Most bytes of output that wait before nothing is read and nothing without credit is sent.
    most_output: usize,
    counters: Counters,
    /// Bytes of a frame that has not arrived as a whole, at the latest look.
    arriving: usize,
    /// Something was refused for want of credit, and none has come since.
    refused: bool,
    /// How many probes were sent.
    probes: u64,
    last_mark: Mark,
    /// Messages in parts that have left the outbox: their streams, and how far the output must be written for them.
    left: VecDeque<(u64, u64)>,
    /// Answers in parts that the peer is to pass on, by their streams; some may have left since the last answer.
    large_relayed: Vec<(CallId, u64)>,
}

/// Where a message stands in a connection's output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    /// It has been written out when [`Counters::bytes_sent`] is so much; over datagrams it has left when so many messages have.
    Written(u64),
    /// It travels in parts, as this stream: [`Connection::next_left`] tells.
    Parts(u64),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    /// Speaks first; may insist on an incarnation.
    Dialer {
        expected: Option<NodeId>,
    },
    Acceptor,
}

/// What a connection has carried.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Messages sent (not frames: a message in parts is one).
    pub messages_sent: u64,
    /// Messages received.
    pub messages_received: u64,
    /// Bytes handed to the transport.
    pub bytes_sent: u64,
    /// Bytes taken from the transport.
    pub bytes_received: u64,
}

impl AddAssign for Counters {
    fn add_assign(&mut self, other: Self) {
        self.messages_sent += other.messages_sent;
        self.messages_received += other.messages_received;
        self.bytes_sent += other.bytes_sent;
        self.bytes_received += other.bytes_received;
    }
}

impl Connection {
    /// The side that dialled; it insists on an incarnation if one is `expected`.
    pub fn dial(me: Arc<Hello>, expected: Option<NodeId>) -> Self {
        let mut connection = Self::new(Role::Dialer { expected }, me);
        connection.send_hello(expected);
        connection
    }

    /// The side that was dialled.
    pub fn accept(me: Arc<Hello>) -> Self {
        Self::new(Role::Acceptor, me)
    }

    fn new(role: Role, me: Arc<Hello>) -> Self {
        let limits = me.limits;
        let bounds = Bounds::default();
        let highest_own_cost = highest_cost(limits.requests);
        Self {
            role,
            me,
            peer: None,
            output: OutputBuffer::default(),
            outbox: PartsOutbox::default(),
            pace: Pace::default(),
            inbox: PartsInbox::new(bounds.partials.share()),
            bodies: bodies::SendingBodies::default(),
            bodies_in: bodies::ReceivingBodies::default(),
            numbers: Numbers::default(),
            methods_named: 0,
            last_sent: 0,
            last_received: 0,
            request_window: 0,
            highest_cost: 0,
            highest_own_cost,
            longest: 0,
            call_windows: CallWindows::default(),
            request_grants: Grants::new(
                limits.requests,
                highest_own_cost + MESSAGE_COST,
                limits.requests / 2,
            ),
            parts_grants: Grants::new(limits.parts, MAX_BODY as u64, PARTS_GRANT.min(limits.parts)),
            now: None,
            telling: Telling::default(),
            transit: None,
            most_output: bounds.output,
            counters: Counters::default(),
            arriving: 0,
            refused: false,
            probes: 0,
            last_mark: Mark::Written(0),
            left: VecDeque::new(),
            large_relayed: Vec::new(),
        }
    }

    /// Holds no more than this for the peer.
    pub fn bounded(mut self, bounds: &Bounds) -> Self {
        self.inbox = PartsInbox::new(bounds.partials.share());
        self.most_output = bounds.output;
        self
    }

    /// The peer, once the handshake is done.
    pub fn peer(&self) -> Option<&Arc<Hello>> {
        self.peer.as_ref()
    }

    /// What this connection has carried.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Whether nothing waits to be written, not even parts that need credit.
    pub fn is_idle(&self) -> bool {
        self.output.is_empty() && self.outbox.is_empty()
    }

    /// Whether parts of messages or of bodies wait to be added to the output.
    pub fn has_parts(&self) -> bool {
        !self.outbox.is_empty()
    }

    /// Sends a request by this method; its method number is filled in here, and the number of its body if its options say
    /// that one follows.
    ///
    /// # Errors
    ///
    /// If it is not accepted now or not at all; nothing was sent then.
    pub fn send_request(
        &mut self,
        request: &mut Request,
        method: &MethodDefinition,
    ) -> Result<(), Refusal> {
        let number = self.check_request(request, method)?;
        let has_body = request.options.is_some() && self.name_body(request)?;
        request.method = MethodRef::Number(number);
        let cost = request_cost(request.payload.len(), self.highest_cost);
        self.request_window -= cost as i64;
        let told = match self.tells_time(request) {
            true => self.tell_time(),
            false => None,
        };
        let quiet = self.pace.quiet();
        let in_parts = self.send(kind::REQUEST, &request.payload, |out, link| {
            request.put_header(out, link)
        });
        if in_parts {
            self.outbox.latest_was_sent_at(told);
        } else if request.reply_to == ReplyTo::Peer {
            self.last_sent = request.call.sequence;
        }
        if has_body {
            self.pace.was_a_beginning(quiet);
            self.open_body();
        }
        Ok(())
    }

    /// If a body is to follow a request with options, names it; whether one is.
    #[cold]
    #[inline(never)]
    fn name_body(&mut self, request: &mut Request) -> Result<bool, Refusal> {
        let options = request.options.as_mut();
        let Some(body) = options.and_then(|options| options.body.as_mut()) else {
            return Ok(false);
        };
        if !self.bodies.has_room() {
            return Err(self.blocked());
        }
        *body = self.bodies.next();
        Ok(true)
    }

    #[cold]
    #[inline(never)]
    fn open_body(&mut self) {
        let window = self.peer.as_ref().map_or(0, |peer| peer.limits.call);
        let after = match self.last_mark {
            Mark::Parts(stream) => Some(stream),
            Mark::Written(_) => None,
        };
        self.bodies.open(window, after);
    }

    /// Sends some of a body, at most 64 KiB and as much as there is credit for: what is left in `chunk` was not accepted
    /// yet. More is accepted when that has left.
    ///
    /// # Errors
    ///
    /// If nothing of it is accepted now, or nothing will be any more.
    pub fn send_body(&mut self, number: u64, chunk: &mut Bytes) -> Result<(), BodyRefusal> {
        if chunk.is_empty() {
            return Ok(());
        }
        let outbox = &self.outbox;
        let taken = self
            .bodies
            .take(number, chunk, |stream| outbox.has_message(stream))
            .inspect_err(|refusal| self.refused |= *refusal == BodyRefusal::Blocked)?;
        self.outbox.push_body(number, taken);
        Ok(())
    }

    /// Whether a body goes on: it has not ended, and its receiver wants more.
    pub fn wants_body(&self, number: u64) -> bool {
        self.bodies.is_open(number)
    }

    /// Whether [`send_body`](Self::send_body) would not be [`BodyRefusal::Blocked`] now.
    pub fn takes_body(&self, number: u64) -> bool {
        let is_leaving = |stream| self.outbox.has_message(stream);
        self.bodies.may_take(number, is_leaving) != Err(BodyRefusal::Blocked)
    }

    /// Whether [`end_body`](Self::end_body) would not be [`BodyRefusal::Blocked`] now, of a `whole` one or a broken one.
    pub fn may_end_body(&self, number: u64, whole: bool) -> bool {
        let is_leaving = |stream| self.outbox.has_message(stream);
        self.bodies.may_end(number, whole, is_leaving) != Err(BodyRefusal::Blocked)
    }

    /// Ends a body: it is whole, or why it is not.
    ///
    /// # Errors
    ///
    /// If what was sent of a whole one has not left yet; or the receiver wants no more, or it has ended.
    pub fn end_body(&mut self, number: u64, end: Result<(), &str>) -> Result<(), BodyRefusal> {
        let outbox = &self.outbox;
        self.bodies
            .may_end(number, end.is_ok(), |stream| outbox.has_message(stream))?;
        self.finish_body(number, end);
        Ok(())
    }

    fn finish_body(&mut self, number: u64, end: Result<(), &str>) {
        if self.bodies.end(number) {
            self.outbox.drop_body(number);
            bodies::put_end(&mut self.output, number, end);
        }
    }

    /// The application took so many bytes of a body. Call it for at least a quarter of the limit `call` at a time.
    pub fn grant_body(&mut self, number: u64, bytes: u64) {
        if self.bodies_in.grant(number, bytes) {
            Wish::More(bytes).put(&mut self.output, number);
        }
    }

    /// Nobody here wants more of a body.
    pub fn stop_body(&mut self, number: u64) {
        if self.bodies_in.stop(number) {
            Wish::Stop.put(&mut self.output, number);
        }
    }

    /// Whether it has named so many methods that few more can be.
    pub fn names_are_scarce(&self) -> bool {
        self.numbers.are_scarce()
    }

    fn check_request(
        &mut self,
        request: &Request,
        method: &MethodDefinition,
    ) -> Result<u32, Refusal> {
        self.check_size(request.payload.len())?;
        if self.request_window <= 0 || self.is_congested(request.payload.len()) {
            return Err(self.blocked());
        }
        match self.numbers.number(method) {
            Number::Known(number) => Ok(number),
            Number::New(number) => {
                self.output
                    .put_frame(kind::METHOD, |out| method.put(out, number));
                Ok(number)
            }
            Number::Refused => Err(Refusal::NoMethodNumber),
        }
    }

    /// Sends a response. Only what is `counted` needs the call's credit: a server need not count the one small answer
    /// to a request that came over this very connection.
    ///
    /// None overtakes a large one of its call that the peer is to pass on: it would take the credit of the next connection
    /// from it, and an initiator that wants answers in order would wait for the large one, and that for credit.
    ///
    /// # Errors
    ///
    /// If it is not accepted now or not at all; nothing was sent then.
    pub fn send_response(&mut self, response: &Response, counted: bool) -> Result<(), Refusal> {
        self.check_size(response.payload.len())?;
        if !self.large_relayed.is_empty() {
            self.forget_left();
        }
        if self.is_behind_large(response.call) {
            return Err(self.blocked());
        }
        if counted {
            let limit = self.peer.as_ref().map_or(0, |peer| peer.limits.call);
            let cost = response.payload.len() as u64 + MESSAGE_COST;
            if self.is_congested(response.payload.len())
                || !self.call_windows.take(response.call, cost, limit)
            {
                return Err(self.blocked());
            }
        } else if self.is_above(response.payload.len(), self.most_output) {
            return Err(self.blocked());
        }
        let in_parts = self.send(kind::RESPONSE, &response.payload, |out, link| {
            response.put_header(out, link)
        });
        if in_parts {
            self.note_large(response.call);
        }
        Ok(())
    }

    fn is_behind_large(&self, call: CallId) -> bool {
        let mut large = self.large_relayed.iter();
        large.any(|(of, stream)| *of == call && self.outbox.has_message(*stream))
    }

    #[cold]
    fn note_large(&mut self, call: CallId) {
        let to_initiator = self.peer.as_ref().map(|peer| peer.node) == Some(call.initiator);
        if let (false, Mark::Parts(stream)) = (to_initiator, self.last_mark) {
            self.large_relayed.push((call, stream));
        }
    }

    #[cold]
    fn forget_left(&mut self) {
        let outbox = &self.outbox;
        self.large_relayed
            .retain(|(_, stream)| outbox.has_message(*stream));
    }

    #[cold]
    fn blocked(&mut self) -> Refusal {
        self.refused = true;
        Refusal::Blocked
    }

    /// Whether a small request would be accepted now.
    pub fn takes_requests(&self) -> bool {
        self.peer.is_some() && self.request_window > 0 && !self.is_congested(0)
    }

    /// Whether small messages with credit are written now, whatever credit there is.
    pub fn takes_output(&self) -> bool {
        !self.is_congested(0)
    }

    /// Whether a small response of this call would be accepted now.
    pub fn takes_responses(&self, call: CallId) -> bool {
        self.has_credit(call) && !self.is_congested(0) && !self.is_behind_large(call)
    }

    /// Whether there is credit for responses of this call, be there room for them or not.
    pub fn has_credit(&self, call: CallId) -> bool {
        let limit = self.peer.as_ref().map_or(0, |peer| peer.limits.call);
        self.call_windows.has_room(call, limit)
    }

    /// Sends a message that needs no credit: anything but requests and responses.
    ///
    /// # Errors
    ///
    /// If the handshake is not done, or if more waits to be written than [`Bounds::output`]; than three quarters of it for a ping
    /// or a trace report, seven eighths for a pong.
    pub fn send_control(&mut self, message: Message) -> Result<(), Refusal> {
        if self.peer.is_none() {
            return Err(Refusal::NotOpen);
        }
        let kept_free = match message {
            Message::Ping(_) | Message::Trace(_) => self.most_output / 4,
            Message::Pong(_) => self.most_output / 8,
            _ => 0,
        };
        if self.output.len() > self.most_output - kept_free {
            return Err(self.blocked());
        }
        self.send(message.kind(), message.payload(), |out, link| {
            message.put_header(out, link)
        });
        Ok(())
    }

    /// A request that came over this connection has left the queue for its handler, or was refused.
    pub fn grant_request(&mut self, payload: usize) {
        let cost = request_cost(payload, self.highest_own_cost);
        if let Some(bytes) = self.request_grants.add(cost) {
            put_credit(&mut self.output, REQUESTS, bytes);
        }
    }

    /// The application took responses of a call that came over this connection: so many, with payloads of so many bytes
    /// in all. Call it for at least a quarter of the limit at a time.
    pub fn grant_call(&mut self, call: CallId, responses: u64, payload: u64) {
        if self.peer.is_some() {
            self.output.put_frame(kind::CALL_CREDIT, |out| {
                call.initiator.put(out);
                varint::put(out, call.sequence);
                varint::put(out, payload + responses * MESSAGE_COST);
            });
        }
    }

    /// Calls of this initiator before `oldest` are over: their credit is not kept.
    pub fn forget_calls(&mut self, oldest: CallId) {
        self.call_windows.forget(oldest);
    }

    /// Tells the peer that nothing new comes.
    pub fn go_away(&mut self) {
        let received = self.counters.messages_received;
        self.output
            .put_frame(kind::GOING_AWAY, |out| varint::put(out, received));
    }

    /// Tells the peer that this side is closed, and how much of the connection it has handled: nothing that comes after is. So the
    /// peer knows which of its requests were not taken, if it has [`Features::READ`].
    pub fn stop_reading(&mut self) {
        let understands = |peer: &Arc<Hello>| peer.features.contains(Features::READ);
        if self.peer.as_ref().is_some_and(understands) {
            let Counters {
                messages_received,
                bytes_received,
                ..
            } = self.counters;
            self.output.put_frame(kind::GOING_AWAY, |out| {
                varint::put(out, messages_received);
                varint::put(out, bytes_received);
            });
        }
    }

    /// Tells the peer why the connection is closed now.
    pub fn close(&mut self, reason: &str) {
        let reason = &reason[..reason.floor_char_boundary(MAX_REASON)];
        self.output
            .put_frame(kind::CLOSE, |out| out.put_slice(reason.as_bytes()));
    }

    /// The same for a peer that has just said who it is, and for which there is no room: if this side's hello was not written
    /// yet, it is not, so that the peer knows that nothing of it was taken.
    pub fn refuse(&mut self, reason: &str) {
        if self.counters.bytes_sent == 0 && !self.output.was_taken() {
            self.output = OutputBuffer::default();
        }
        self.close(reason);
    }

    /// Asks the peer whether it is there, if the handshake is done. What it answers only shows in [`Self::heard`].
    pub fn probe(&mut self) {
        if self.peer.is_some() {
            self.probes += 1;
            put_probe(&mut self.output, ASK, self.probes);
        }
    }

    /// Bytes that have come from the peer, also those of a frame that is not whole yet: it lives while this grows.
    pub fn heard(&self) -> u64 {
        self.counters.bytes_received + self.arriving as u64
    }

    /// Whether this side needs something of its peer: to take output, or credit for what was refused.
    pub(crate) fn needs_peer(&self) -> bool {
        !self.is_idle() || self.refused
    }

    /// What is to be written to the transport; parts of large messages are added as long as little waits.
    pub fn output(&mut self) -> &[u8] {
        if !self.outbox.is_empty() {
            self.add_parts();
        }
        self.output.waiting()
    }

    /// The same, taken out in exchange for a buffer whose bytes were written: so nobody need be kept from sending while it is
    /// written. [`advance`](Self::advance) says how much was.
    pub fn take_output(&mut self, buffer: &mut Vec<u8>) {
        if !self.outbox.is_empty() {
            self.add_parts();
        }
        self.output.take(buffer);
    }

    #[inline(never)]
    fn add_parts(&mut self) {
        while let Some(size) = self.next_part() {
            let streams = self.peer.as_ref().map_or(1, |peer| peer.limits.streams);
            if let Some(told) = self.outbox.begins_with_time() {
                self.tell_again(told);
            }
            let (bytes, left) = self.outbox.write_part(&mut self.output, streams, size);
            self.pace.part_sent(bytes);
            match left {
                Some(Left::Message(stream)) => {
                    if self.left.len() >= MAX_LEFT {
                        self.left.pop_front();
                    }
                    self.left.push_back((stream, self.end()));
                }
                Some(Left::Body(number)) => self.bodies.left(number),
                None => {}
            }
        }
    }

    /// How far the output must be written for all that is in it now.
    fn end(&self) -> u64 {
        self.counters.bytes_sent + self.output.len() as u64
    }

    /// Where the message that was sent last stands in the output.
    pub fn mark(&self) -> Mark {
        self.last_mark
    }

    /// The next message in parts whose last part has been added to the output, and how far the output must be written
    /// for it: to be asked for after each look at the output. The latest 4,096 are kept.
    pub fn next_left(&mut self) -> Option<(u64, u64)> {
        self.left.pop_front()
    }

    /// How many bytes wait to be written, parts that were not added yet left out.
    pub fn waiting(&self) -> usize {
        self.output.len()
    }

    /// Whether there is something to write now that was not taken.
    pub fn has_output(&self) -> bool {
        self.output.has_waiting() || self.next_part().is_some()
    }

    /// Whether large messages are leaving, so that [`set_time`](Self::set_time) is of use before output is asked for.
    pub fn keeps_pace(&self) -> bool {
        !self.outbox.is_empty() || self.pace.is_timing()
    }

    /// Whether large messages are leaving, or the peer tells its time, so that [`set_time`](Self::set_time) is of use before
    /// input is handled.
    pub fn wants_time(&self) -> bool {
        self.keeps_pace() || self.transit.is_some()
    }

    /// Tells the time since any one moment, before input is handled, output is asked for, and a request is sent [that tells
    /// it](Self::tells_time). Without it large messages are slow beside small ones where a round trip takes long, and what a
    /// request waits on its way does not count.
    pub fn set_time(&mut self, now: Duration) {
        self.pace.set_time(now);
        self.now = Some(now);
    }

    fn next_part(&self) -> Option<usize> {
        if self.outbox.is_empty() {
            return None;
        }
        self.pace.next_part(self.output.len())
    }

    /// So much of the output was written.
    pub fn advance(&mut self, written: usize) {
        self.output.advance(written);
        self.pace.written(written);
        self.counters.bytes_sent += written as u64;
    }

    /// Whether input is handled. It is not while more output waits than [`Bounds::output`]: a peer that does not read must not
    /// make this side owe it more and more. Questions and what answers them are refused before, so that two sides that have
    /// much to ask each other do not both stop reading.
    pub fn takes_input(&self) -> bool {
        self.output.len() <= self.most_output
    }

    /// Whether parts that have come are not granted anew because unfinished messages of the endpoint take too much room. Ask
    /// for that by [`grant_withheld`](Self::grant_withheld) from time to time.
    pub fn is_withholding(&self) -> bool {
        self.inbox.is_withholding()
    }

    /// Grants what was withheld, if there is room now.
    pub fn grant_withheld(&mut self) {
        self.grant_parts(0);
    }

    /// Takes the next frame off `input`; `None` if it holds no complete frame, or while [input is not
    /// taken](Self::takes_input). Frames that only concern the connection are dealt with on the way. Much of a body is told
    /// before its frame is complete.
    ///
    /// # Errors
    ///
    /// If the connection must be closed.
    pub fn handle_input(&mut self, input: &mut BytesMut) -> Result<Option<Event>, ConnectionError> {
        loop {
            if !self.takes_input() {
                return Ok(None);
            }
            if self.bodies_in.has_begun() {
                let event = self.go_on_with_body(input)?;
                if event.is_some() || self.bodies_in.has_begun() {
                    return Ok(event);
                }
            }
            let Some((kind, len)) = self.next_frame(input)? else {
                return Ok(None);
            };
            if self.peer.is_none() {
                return self.handle_first_frame(kind, take_body(input, len));
            }
            if kind >= kind::REQUEST {
                return self.handle_message(kind, input, len);
            }
            if kind == kind::TIME {
                self.handle_time(&input[FRAME_HEADER..FRAME_HEADER + len])?;
                input.advance(FRAME_HEADER + len);
                continue;
            }
            if let Some(event) = self.handle_frame(kind, take_body(input, len))? {
                return Ok(Some(event));
            }
        }
    }

    /// What messages arrive on, once the handshake is done.
    #[inline]
    fn link(&self) -> LinkEnds {
        let peer = self.peer.as_ref().unwrap_or(&self.me);
        LinkEnds::new(peer.node, self.me.node)
    }

    /// To be called each [`PartialLimits::period`], with the time since any one moment.
    ///
    /// # Errors
    ///
    /// If an unfinished message has gained too little since the last time, although this side took what came or it was its
    /// turn; or if unfinished messages of all connections take too much room for too long, and this one holds most.
    pub fn check_stalled(&mut self, now: Duration) -> Result<(), ConnectionError> {
        let is_read = self.takes_input();
        self.inbox.check(now, is_read)
    }

    /// The connection has ended: what it holds of unfinished messages is given back, also if it is kept.
    pub fn drop_unfinished(&mut self) {
        self.inbox.clear();
    }

    /// Kind and length of the body of the next frame, if it is complete.
    fn next_frame(&mut self, input: &BytesMut) -> Result<Option<(u8, usize)>, ConnectionError> {
        let Some(&[a, b, c, kind]) = input.first_chunk::<FRAME_HEADER>() else {
            return Ok(None);
        };
        let len = u32::from_le_bytes([a, b, c, 0]) as usize;
        let limit = if self.peer.is_some() {
            MAX_BODY
        } else {
            MAX_HELLO
        };
        if len > limit {
            return Err(DecodeError::TooLong {
                what: "frame",
                len: len as u64,
                limit,
            }
            .into());
        }
        let mut len = len;
        if input.len() < FRAME_HEADER + len {
            let Some(begun) = self.begin_frame(kind, &input[FRAME_HEADER..], len) else {
                self.arriving = input.len();
                return Ok(None);
            };
            len = begun;
        }
        self.arriving = 0;
        self.counters.bytes_received += (FRAME_HEADER + len) as u64;
        Ok(Some((kind, len)))
    }

    /// A frame that only concerns the connection.
    #[inline(never)]
    fn handle_frame(&mut self, kind: u8, body: Bytes) -> Result<Option<Event>, ConnectionError> {
        let body = match kind {
            kind::BODY => return self.handle_body(body),
            _ => &*body,
        };
        match kind {
            kind::BODY_CREDIT => self.handle_body_credit(body).map(Some),
            kind::PART => self.handle_part(body),
            kind::METHOD => self.handle_method(body).map(Some),
            kind::CREDIT => self.handle_credit(body).map(Some),
            kind::CALL_CREDIT => self.handle_call_credit(body).map(Some),
            kind::GOING_AWAY => Ok(Some(self.handle_going_away(body)?)),
            kind::PROBE => self.handle_probe(body).map(|()| None),
            kind::CLOSE => Ok(Some(closed(body))),
            kind::HELLO => Err(ConnectionError::OutOfPlace {
                kind,
                when: "after the handshake",
            }),
            kind => Err(DecodeError::UnknownKind { kind }.into()),
        }
    }

    #[cold]
    #[inline(never)]
    fn handle_first_frame(
        &mut self,
        kind: u8,
        body: Bytes,
    ) -> Result<Option<Event>, ConnectionError> {
        match kind {
            kind::HELLO => {}
            kind::CLOSE => return Ok(Some(closed(&body))),
            kind => {
                return Err(ConnectionError::OutOfPlace {
                    kind,
                    when: "before the handshake",
                });
            }
        }
        let mut reader = Reader::new(&body);
        let theirs = Hello::read_versions(&mut reader)?;
        if self.role == Role::Acceptor {
            self.send_hello(None); // also if the versions do not fit: so the dialer learns why
        }
        let peer = self.me.read_peer(&mut reader, theirs)?;
        let (expected, found) = match self.role {
            Role::Dialer { expected } => (expected, peer.node),
            Role::Acceptor => (peer.expected, self.me.node),
        };
        if let Some(expected) = expected.filter(|expected| *expected != found) {
            return Err(ConnectionError::WrongNode { expected, found });
        }
        self.request_window = peer.limits.requests.min(i64::MAX as u64) as i64;
        self.highest_cost = highest_cost(peer.limits.requests);
        self.longest = peer.limits.message.min(self.me.limits.message);
        self.pace.open(peer.limits.parts);
        let peer = Arc::new(peer);
        self.peer = Some(Arc::clone(&peer));
        Ok(Some(Event::Opened(peer)))
    }

    fn handle_part(&mut self, body: &[u8]) -> Result<Option<Event>, ConnectionError> {
        let link = self.link();
        let told = self.told();
        let (bytes, assembled) = self.inbox.handle_part(body, self.me.limits, told)?;
        self.part_arrived(bytes)?;
        let (mut message, size, told) = match assembled {
            PartOutcome::Partly => return Ok(None),
            PartOutcome::Whole { kind, body, told } => {
                let size = body.len() as u64;
                (Message::decode(kind, body, link)?, size, told)
            }
            PartOutcome::TooLarge {
                kind,
                beginning,
                total,
            } => (Message::decode(kind, beginning, link)?, total, None),
        };
        if let Message::Request(request) = &message {
            self.check_method(request.method)?;
            self.begin_body(request)?;
        }
        self.counters.messages_received += 1;
        let limit = self.me.limits.message;
        if size > limit.saturating_add(MAX_FRAME as u64) || message.payload().len() as u64 > limit {
            return Ok(Some(too_large(message, size)));
        }
        if let Message::Request(request) = &mut message {
            if request.is_timed() {
                request.waited = self.waited_since(told);
            }
            self.take_request(request.payload.len())?;
        }
        Ok(Some(Event::Message(message)))
    }

    /// Bytes of parts, or of bodies, have come.
    fn part_arrived(&mut self, bytes: u64) -> Result<(), ConnectionError> {
        if bytes == 0 {
            return Ok(());
        }
        self.pace.part_arrived(bytes as usize);
        if !self.parts_grants.take(bytes) {
            let what = "parts of messages";
            return Err(ConnectionError::Overdrawn { what });
        }
        self.grant_parts(bytes);
        Ok(())
    }

    fn grant_parts(&mut self, bytes: u64) {
        let bytes = self.inbox.grantable(bytes);
        if let Some(bytes) = self.parts_grants.add(bytes) {
            put_credit(&mut self.output, PARTS, bytes);
        }
    }

    /// A request has come that will wait for its handler: it must have been granted.
    #[inline(always)]
    fn take_request(&mut self, payload: usize) -> Result<(), ConnectionError> {
        let cost = request_cost(payload, self.highest_own_cost);
        match self.request_grants.take(cost) {
            true => Ok(()),
            false => Err(ConnectionError::Overdrawn { what: "requests" }),
        }
    }

    /// A request with options that came may have a body.
    #[cold]
    #[inline(never)]
    fn begin_body(&mut self, request: &Request) -> Result<(), DecodeError> {
        match request.body() {
            Some(number) => self.bodies_in.open(number, self.me.limits.call),
            None => Ok(()),
        }
    }

    fn check_method(&self, method: MethodRef) -> Result<(), ConnectionError> {
        match method {
            MethodRef::Number(number) if number < self.methods_named => Ok(()),
            _ => Err(DecodeError::Malformed {
                what: "request",
                why: "a method that was not named before",
            }
            .into()),
        }
    }

    fn handle_method(&mut self, body: &[u8]) -> Result<Event, ConnectionError> {
        let what = "method";
        let (number, definition) = MethodDefinition::read(&mut Reader::new(body))?;
        if number != self.methods_named {
            return Err(DecodeError::Malformed {
                what,
                why: "a number out of turn",
            }
            .into());
        }
        if number as usize >= MAX_METHODS {
            let len = u64::from(number) + 1;
            return Err(DecodeError::TooLong {
                what: "methods of a connection",
                len,
                limit: MAX_METHODS,
            }
            .into());
        }
        self.methods_named += 1;
        Ok(Event::Method(number, definition))
    }

    fn handle_credit(&mut self, body: &[u8]) -> Result<Event, ConnectionError> {
        let what = "credit";
        let mut reader = Reader::new(body);
        let window = reader.u8(what)?;
        let bytes = reader.varint(what)?;
        reader.finish(what)?;
        self.refused = false;
        let (granted, taken) = match window {
            REQUESTS => {
                let more = i64::try_from(bytes).ok();
                let window = more.and_then(|more| self.request_window.checked_add(more));
                let taken = window.map(|window| self.request_window = window);
                (Granted::Requests, taken)
            }
            PARTS => (Granted::Parts, self.pace.granted(bytes)),
            _ => {
                let why = "an unknown window";
                return Err(DecodeError::Malformed { what, why }.into());
            }
        };
        taken.ok_or(DecodeError::Malformed {
            what,
            why: "more than a window can hold",
        })?;
        Ok(Event::Credit(granted))
    }

    fn handle_call_credit(&mut self, body: &[u8]) -> Result<Event, ConnectionError> {
        let what = "call credit";
        let mut reader = Reader::new(body);
        let call = CallId {
            initiator: NodeId::read(&mut reader)?,
            sequence: reader.varint(what)?,
        };
        let bytes = reader.varint(what)?;
        reader.finish(what)?;
        self.refused = false;
        self.call_windows.grant(call, bytes);
        Ok(Event::Credit(Granted::Call(call)))
    }

    fn handle_going_away(&self, body: &[u8]) -> Result<Event, DecodeError> {
        let what = "going away";
        let mut reader = Reader::new(body);
        let received = reader.varint(what)?;
        let may_be_closed = self.me.features.contains(Features::READ);
        let read = match may_be_closed && !reader.is_empty() {
            true => Some(reader.varint(what)?),
            false => None,
        };
        reader.finish(what)?;
        Ok(Event::GoingAway { received, read })
    }

    /// A probe asks whether this side still lives; an answer to a probe of ours proves the same of the peer.
    fn handle_probe(&mut self, body: &[u8]) -> Result<(), ConnectionError> {
        let what = "probe";
        let mut reader = Reader::new(body);
        let answer = reader.u8(what)?;
        let nonce = reader.varint(what)?;
        reader.finish(what)?;
        match answer {
            ANSWER => Ok(()),
            // Who does not read the answers needs no more of them: they must not pile up here.
            ASK if self.output.len() > OUTPUT_LIMIT => Ok(()),
            ASK => {
                put_probe(&mut self.output, ANSWER, nonce);
                Ok(())
            }
            _ => Err(DecodeError::Malformed {
                what,
                why: "neither a question nor an answer",
            }
            .into()),
        }
    }

    fn send_hello(&mut self, expected: Option<NodeId>) {
        let hello = Hello {
            expected,
            ..(*self.me).clone()
        };
        self.output.put_frame(kind::HELLO, |out| hello.put(out));
    }

    fn check_size(&self, payload: usize) -> Result<(), Refusal> {
        if self.peer.is_none() {
            return Err(Refusal::NotOpen);
        }
        let (size, limit) = (payload as u64, self.longest);
        if size > limit {
            Err(Refusal::TooLarge { size, limit })
        } else {
            Ok(())
        }
    }

    /// Whether a message with a payload of this size must wait for others to be written.
    fn is_congested(&self, payload: usize) -> bool {
        self.is_above(payload, OUTPUT_LIMIT.min(self.most_output / 4))
    }

    fn is_above(&self, payload: usize, limit: usize) -> bool {
        if payload > MAX_FRAME {
            let waiting = self.outbox.bytes();
            return waiting > 0 && (waiting + payload) as u64 > self.longest;
        }
        self.output.len() > limit
    }

    /// Sends a message of this kind; `put_header` appends all of it but the payload. Returns whether it travels in parts.
    #[inline]
    fn send(
        &mut self,
        kind: u8,
        payload: &Bytes,
        put_header: impl FnOnce(&mut Vec<u8>, LinkEnds),
    ) -> bool {
        let Some(peer) = &self.peer else { return false };
        let mut link = LinkEnds::new(self.me.node, peer.node);
        self.counters.messages_sent += 1;
        if payload.len() > MAX_FRAME {
            let mut header = Vec::new();
            put_header(&mut header, link);
            self.last_mark = Mark::Parts(self.outbox.push(kind, header, payload));
            true
        } else {
            link.previous = self.last_sent;
            self.pace.small_sent();
            self.output.put_frame(kind, |out| {
                out.reserve(HEADER_GUESS + payload.len());
                put_header(out, link);
                out.extend_from_slice(payload);
            });
            self.last_mark = Mark::Written(self.end());
            false
        }
    }
}

const REQUESTS: u8 = 0;
const PARTS: u8 = 1;

/// What a request costs of a window of which none costs more than `highest`. Both sides reckon so.
fn request_cost(payload: usize, highest: u64) -> u64 {
    (payload as u64).min(highest) + MESSAGE_COST
}

/// Most that the payload of a request costs of a window of this size. One that travels in parts costs at most an eighth of
/// it, so that small requests are not kept back while large ones are under way.
fn highest_cost(window: u64) -> u64 {
    (window / 8).max(MAX_FRAME as u64)
}

const ASK: u8 = 0;
const ANSWER: u8 = 1;

fn put_probe(output: &mut OutputBuffer, side: u8, nonce: u64) {
    output.put_frame(kind::PROBE, |out| {
        out.put_u8(side);
        varint::put(out, nonce);
    });
}

fn put_credit(output: &mut OutputBuffer, window: u8, bytes: u64) {
    output.put_frame(kind::CREDIT, |out| {
        out.put_u8(window);
        varint::put(out, bytes);
    });
}

/// Takes the next frame, whose body has this length, off `input`.
fn take_body(input: &mut BytesMut, len: usize) -> Bytes {
    input.advance(FRAME_HEADER);
    input.split_to(len).freeze()
}

#[cold]
fn too_large(message: Message, size: u64) -> Event {
    Event::TooLarge {
        message: message.without_payload(),
        size,
    }
}

fn closed(body: &[u8]) -> Event {
    let reason = &body[..body.len().min(MAX_REASON)];
    Event::Closed(String::from_utf8_lossy(reason).into_owned())
}

fn read_one(body: &[u8], what: &'static str) -> Result<u64, DecodeError> {
    let mut reader = Reader::new(body);
    let value = reader.varint(what)?;
    reader.finish(what)?;
    Ok(value)
}
