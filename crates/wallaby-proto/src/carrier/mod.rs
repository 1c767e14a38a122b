//! What carries a peer's messages: a stream's [`Connection`](crate::connection::Connection) or a
//! [`Session`](crate::datagram::Session) over datagrams.
//!
//! Most of it is the same by either: who the peer is, how methods are named, what there is credit for, what is refused because
//! too much waits, and what is made of a message that came. It is here, once, in `Peering` and in the methods that [`Carrier`]
//! provides. How bytes travel differs, and so does what follows from that:
//!
//! - A stream keeps order, so a method's definition and the time go ahead of requests, and a body behind one. Datagrams overtake
//!   each other, so definition and time are in the requests, and there are no bodies.
//! - A stream has no limit to a message, so large ones travel in parts, with credit and a pace of their own. Over datagrams pieces
//!   are numbered, repeated, and under way as far as the congestion window lets them.
//! - A stream can be half open and is asked by probes if somebody waits ([`KeepAlive`](crate::connection::KeepAlive)). A session
//!   knows by acknowledgements, so it is asked only before a request to a peer that was silent for long.
//! - The output of a stream is what was not written; that of a session is what was not acknowledged.
//!
//! | module | what is in it |
//! |---|---|
//! | `medium` | what each does in its own way, and nobody outside may do |
//! | `peering` | one side's view of a peer |
//! | `hello` | who a side is, and what it takes |
//! | `methods` | the methods that two sides call |
//! | `credit`, `output` | what may be sent, and what may wait |
//! | `receiving` | messages that arrive |
//! | `bounds` | what a peer can make an endpoint hold |
//! | `transit` | how long requests wait on their way |
//! | `event` | what arrived, and what is refused |

pub(crate) mod bounds;
pub(crate) mod credit;
pub(crate) mod event;
pub(crate) mod hello;
mod medium;
pub(crate) mod methods;
pub(crate) mod output;
mod peering;
pub(crate) mod receiving;
pub(crate) mod transit;

use std::ops::AddAssign;
use std::sync::Arc;
use std::time::Duration;

use bytes::BufMut;

pub(crate) use self::medium::Medium;
pub(crate) use self::methods::Naming;
pub(crate) use self::output::Priority;
pub(crate) use self::peering::Peering;

use self::credit::REQUESTS;
use self::event::SendRefusal;
use self::hello::Hello;
use self::methods::MethodDefinition;
use crate::CallId;
use crate::numbers::MESSAGE_COST;
use crate::varint;
use crate::wire::{Message, Request, Response, kind};

/// Where a message stands in the output of what carries it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    /// It has been written out when [`Carried::bytes_sent`] is so much; over datagrams it has left when so many messages have.
    Written(u64),
    /// It travels in parts, as this stream: [`Connection::next_left`](crate::connection::Connection::next_left) tells.
    Parts(u64),
}

/// Whether a response costs its call's credit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Charge {
    /// It does.
    Counted,
    /// It does not: a server need not count the one small answer to a request that came from this very peer.
    Free,
}

/// What was carried.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Carried {
    /// Messages sent (not frames or datagrams: a message in several of them is one).
    pub messages_sent: u64,
    /// Messages received.
    pub messages_received: u64,
    /// Bytes handed to the transport.
    pub bytes_sent: u64,
    /// Bytes taken from the transport.
    pub bytes_received: u64,
}

impl AddAssign for Carried {
    fn add_assign(&mut self, other: Self) {
        self.messages_sent += other.messages_sent;
        self.messages_received += other.messages_received;
        self.bytes_sent += other.bytes_sent;
        self.bytes_received += other.bytes_received;
    }
}

/// One that carries a peer's messages.
#[expect(
    private_bounds,
    reason = "nobody outside sends without a look for room and credit, or makes a carrier"
)]
pub trait Carrier: Medium {
    // What each does in its own way.

    /// How much of its output has left, in the measure of its marks, and how much the peer has confirmed if it does: bytes of a
    /// stream, messages of a session.
    fn progress(&self) -> (u64, Option<u64>);

    /// Whether a message of this mark has left. Over datagrams one may have that is behind another which has not.
    fn has_left(&self, mark: u64) -> bool {
        self.progress().0 >= mark
    }

    /// Whether nothing waits: to be written, or over datagrams to be acknowledged.
    fn is_idle(&self) -> bool;

    /// Whether this request may go `now`: over datagrams a peer that was silent for long is asked first
    /// ([`Session::confirm`](crate::datagram::Session::confirm)). To be asked before each one that may have to tell the time.
    fn is_ready_for(&mut self, request: &Request, now: Duration) -> bool;

    /// Ends it, and tells the peer why.
    fn close(&mut self, reason: &str);

    /// Ends it for want of room, and tells the peer so.
    fn refuse(&mut self, reason: &str) {
        self.close(reason);
    }

    /// Tells the peer of a stream how much of it was handled: nothing that comes after is. Over datagrams messages may overtake each
    /// other, so nothing is said there.
    fn stop_reading(&mut self) {}

    // What all do alike.

    /// The peer, once the handshake is done.
    fn peer(&self) -> Option<&Arc<Hello>> {
        self.peering().peer.as_ref()
    }

    /// What was carried.
    fn counters(&self) -> Carried {
        self.peering().counters
    }

    /// Whether so many methods were named that few more can be: requests are to go elsewhere.
    fn names_are_scarce(&self) -> bool {
        self.peering().called.are_scarce()
    }

    /// Whether a small request would be accepted now.
    fn takes_requests(&self) -> bool {
        let peering = self.peering();
        peering.is_open && peering.requests.is_open() && self.takes_output()
    }

    /// Whether small messages with credit are taken now, whatever credit there is.
    fn takes_output(&self) -> bool {
        !self.is_congested(Priority::Credited, 0)
    }

    /// Whether a small response of this call would be accepted now.
    fn takes_responses(&self, call: CallId) -> bool {
        let has_credit = self.peering().is_open && self.has_credit(call);
        has_credit && self.takes_output() && !self.is_behind(call)
    }

    /// Whether there is credit for responses of this call, be there room for them or not.
    fn has_credit(&self, call: CallId) -> bool {
        self.peering().has_credit(call)
    }

    /// Sends a request by this method, and returns where it stands; how it names the method is filled in here, and the number of
    /// its body if its options say that one follows. See [`is_ready_for`](Self::is_ready_for) first.
    ///
    /// # Errors
    ///
    /// If it is not accepted now or not at all; nothing was sent then.
    fn send_request(
        &mut self,
        request: &mut Request,
        method: &MethodDefinition,
    ) -> Result<Mark, SendRefusal> {
        let payload = request.payload.len();
        self.peering().check(payload)?;
        if !self.peering().requests.is_open() || self.is_congested(Priority::Credited, payload) {
            return Err(self.peering_mut().blocked());
        }
        if request.options.is_some() {
            self.name_body(request)?;
        }
        let peering = self.peering_mut();
        let naming = (peering.called.name(method)).ok_or(SendRefusal::NoMethodName)?;
        peering.requests.spend(payload);
        Ok(self.put_request(request, (method, naming)))
    }

    /// Sends a response, and returns where it stands. Only what is counted needs the call's credit.
    ///
    /// # Errors
    ///
    /// If it is not accepted now or not at all; nothing was sent then.
    fn send_response(&mut self, response: &Response, charge: Charge) -> Result<Mark, SendRefusal> {
        let (call, payload) = (response.call, response.payload.len());
        self.peering().check(payload)?;
        let (priority, counted) = match charge {
            Charge::Counted => (Priority::Credited, true),
            Charge::Free => (Priority::Needed, false),
        };
        if self.is_behind(call)
            || self.is_congested(priority, payload)
            || counted && !self.peering_mut().spend(call, payload)
        {
            return Err(self.peering_mut().blocked());
        }
        Ok(self.put_response(response))
    }

    /// Sends a message that needs no credit, anything but requests and responses, and returns where it stands.
    ///
    /// # Errors
    ///
    /// If the handshake is not done, or too much waits.
    fn send_control(&mut self, message: Message) -> Result<Mark, SendRefusal> {
        self.peering().check(0)?;
        if self.is_congested(Priority::of(&message), 0) {
            return Err(self.peering_mut().blocked());
        }
        Ok(self.put_control(&message))
    }

    /// A request that came has left the queue for its handler, or was refused: so many bytes of payload.
    fn grant_request(&mut self, payload: usize) {
        if let Some(bytes) = self.peering_mut().requests.give_back(payload) {
            self.put_own(kind::CREDIT, &mut |out| {
                out.put_u8(REQUESTS);
                varint::put(out, bytes);
            });
        }
    }

    /// The application took so many responses of a call that came, with payloads of so many bytes in all. Call it for at least a
    /// quarter of the limit at a time.
    fn grant_call(&mut self, call: CallId, responses: u64, payload: u64) {
        if self.peering().is_open {
            self.put_own(kind::CALL_CREDIT, &mut |out| {
                call.initiator.put(out);
                varint::put(out, call.sequence);
                varint::put(out, payload + responses * MESSAGE_COST);
            });
        }
    }

    /// Calls of this initiator before `oldest` are over: their credit is not kept.
    fn forget_calls(&mut self, oldest: CallId) {
        self.peering_mut().calls.forget(oldest);
    }

    /// Tells the peer that nothing new comes. What was sent before may arrive after it over datagrams.
    fn go_away(&mut self) {
        let received = self.counters().messages_received;
        self.put_own(kind::GOING_AWAY, &mut |out| varint::put(out, received));
    }
}
