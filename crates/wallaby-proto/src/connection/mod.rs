//! One connection of one incarnation to another over a stream: handshake, frames, parts of large messages, bodies. What it has in
//! common with a session over datagrams is in [`carrier`](crate::carrier).
//!
//! The driver's contract: give it what arrived by [`Connection::handle_input`] until that returns `None` or nothing is
//! left, then write what [`Connection::output`] shows and say how much by [`Connection::advance`]. Everything that sends
//! only appends to the output. Any error means: close the transport, after what the output still shows (the reason, for
//! the peer) was written as far as that does not wait.

mod arriving;
mod bodies;
mod dials;
mod following;
mod keep_alive;
mod leaving;
mod output;
mod pace;
mod parts;
mod slots;
mod time;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

pub use self::bodies::{BodyRefusal, MAX_BODIES};
pub use self::dials::{DialBackoff, DialLimits, Dials, NamedBy};
pub use self::keep_alive::{KeepAlive, KeepAliveSettings};
pub use self::slots::{ConnectionSlots, Search, StrangerLimits, Usefulness};
pub use crate::carrier::bounds::{Bounds, PartialLimits, Partials};
pub use crate::carrier::credit::MAX_CALLS;
pub use crate::carrier::event::{BodyEvent, ConnectionError, Event, Granted, SendRefusal};
pub(crate) use crate::carrier::hello::LEAST_PARTS;
pub use crate::carrier::hello::{ConnectionLimits, Features, Hello, VERSION};
pub use crate::carrier::methods::{MAX_METHOD_NAME, MAX_METHODS, MethodDefinition, is_reserved};
pub use crate::carrier::{Carried, Charge, Mark};

use self::output::OutputBuffer;
use self::pace::Pace;
use self::parts::{Left, PartsInbox, PartsOutbox};
use crate::carrier::credit::Grants;
use crate::carrier::output::{OutputLimit, Priority};
use crate::carrier::transit::{Telling, Transit};
use crate::carrier::{Carrier, Peering};
use crate::id::{CallId, NodeId};
use crate::wire::{MAX_BODY, kind};

/// Parts are granted anew after so many bytes: less than a sender has under way that keeps them few.
const PARTS_GRANT: u64 = 4 * 1024;

/// Most messages in parts that are remembered to have left.
const MAX_LEFT: usize = 4096;

/// One connection, as one of its two sides sees it.
#[derive(Debug)]
pub struct Connection {
    role: Role,
    peering: Peering,
    output: OutputBuffer,
    outbox: PartsOutbox,
    pace: Pace,
    inbox: PartsInbox,
    bodies: bodies::SendingBodies,
    bodies_in: bodies::ReceivingBodies,
    parts_grants: Grants,
    telling: Telling,
    /// What the peer's times tell, once it has told one.
    transit: Option<Box<Transit>>,
    /// Bytes of a frame that has not arrived as a whole, at the latest look.
    arriving: usize,
    /// How many probes were sent.
    probes: u64,
    /// Messages in parts that have left the outbox: their streams, and how far the output must be written for them.
    left: VecDeque<(u64, u64)>,
    /// Answers in parts that the peer is to pass on, by their streams.
    large_relayed: Vec<(CallId, u64)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    /// Speaks first; may insist on an incarnation.
    Dialer {
        expected: Option<NodeId>,
    },
    Acceptor,
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
        let output = OutputLimit::of_stream(bounds.output);
        Self {
            role,
            peering: Peering::new(me, u64::MAX, output),
            output: OutputBuffer::default(),
            outbox: PartsOutbox::default(),
            pace: Pace::default(),
            inbox: PartsInbox::new(bounds.partials.share()),
            bodies: bodies::SendingBodies::default(),
            bodies_in: bodies::ReceivingBodies::default(),
            parts_grants: Grants::new(limits.parts, MAX_BODY as u64, PARTS_GRANT.min(limits.parts)),
            telling: Telling::default(),
            transit: None,
            arriving: 0,
            probes: 0,
            left: VecDeque::new(),
            large_relayed: Vec::new(),
        }
    }

    /// Holds no more than this for the peer.
    pub fn bounded(mut self, bounds: &Bounds) -> Self {
        self.inbox = PartsInbox::new(bounds.partials.share());
        self.peering.output = OutputLimit::of_stream(bounds.output);
        self
    }

    /// Bytes that have come from the peer, also those of a frame that is not whole yet: it lives while this grows.
    pub fn heard(&self) -> u64 {
        self.peering.counters.bytes_received + self.arriving as u64
    }

    /// Whether this side needs something of its peer: to take output, or credit for what was refused.
    pub(crate) fn needs_peer(&self) -> bool {
        !self.is_idle() || self.peering.refused
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
            let streams = self.peer().map_or(1, |peer| peer.limits.streams);
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
                    self.large_relayed.retain(|(_, large)| *large != stream);
                    self.bodies.request_left(stream);
                }
                Some(Left::Body(number)) => self.bodies.left(number),
                None => {}
            }
        }
    }

    /// How far the output must be written for all that is in it now.
    pub fn end(&self) -> u64 {
        self.peering.counters.bytes_sent + self.output.len() as u64
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
        self.peering.now = Some(now);
    }

    fn next_part(&self) -> Option<usize> {
        if self.outbox.is_empty() || self.output.is_shut() {
            return None;
        }
        self.pace.next_part(self.output.len())
    }

    /// So much of the output was written.
    pub fn advance(&mut self, written: usize) {
        self.output.advance(written);
        self.pace.written(written);
        self.peering.counters.bytes_sent += written as u64;
    }

    /// The transport takes nothing more. From now on there is no output, messages are refused, and input is handled as long as some
    /// comes: nothing can pile up. What waited counts as not written.
    pub fn shut_output(&mut self) {
        self.output.shut();
    }

    /// Whether input is handled. It is not while more output waits than [`Bounds::output`]: a peer that does not read must not
    /// make this side owe it more and more. Questions and what answers them are refused before, so that two sides that have
    /// much to ask each other do not both stop reading.
    pub fn takes_input(&self) -> bool {
        let waiting = self.output.len();
        !self.peering.output.is_reached(Priority::Needed, waiting)
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

    fn send_hello(&mut self, expected: Option<NodeId>) {
        let me = &self.peering.me;
        self.output
            .put_frame(kind::HELLO, |out| me.put(out, expected));
    }
}
