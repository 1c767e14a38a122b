//! What carries a peer's messages, a stream or a session over datagrams: one face of both.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use crate::connection::{Connection, Counters, Hello, Mark, MethodDefinition, Refusal};
use crate::datagram::{MessageNumber, Session};
use crate::wire::{Message, Request, Response};
use crate::{Address, CallId};

/// A peer's messages go one of these ways. A driver keeps them as it likes, and borrows one: for changes to send by it,
/// otherwise to ask it.
#[derive(Debug)]
pub enum Carrier<C, S> {
    /// A stream's [`Connection`].
    Stream(C),
    /// A [`Session`] over datagrams.
    Session(S),
}

/// Does the same with either.
macro_rules! either {
    ($carrier:expr, $carried:ident => $what:expr) => {
        match $carrier {
            Carrier::Stream($carried) => $what,
            Carrier::Session($carried) => $what,
        }
    };
}

impl<C: Deref<Target = Connection>, S: Deref<Target = Session>> Carrier<C, S> {
    /// What the peer said of itself, once the handshake is done.
    pub fn peer(&self) -> Option<&Arc<Hello>> {
        either!(self, carried => carried.peer())
    }

    /// Where the peer certainly listens, if that is known without dialling it: it says that this is where its datagrams come
    /// from, and the handshake has shown that it receives there. Requests for it need no session of their own then, and
    /// acknowledgements can go with them.
    pub fn proven_address(&self) -> Option<Address> {
        let Self::Session(session) = self else {
            return None;
        };
        let remote = Address::Udp(session.remote());
        let stated = session.peer()?.address.as_ref();
        (stated == Some(&remote)).then_some(remote)
    }

    /// Whether a small request would be accepted now.
    pub fn takes_requests(&self) -> bool {
        either!(self, carried => carried.takes_requests())
    }

    /// Whether messages with credit are sent now, whatever credit there is.
    pub fn takes_output(&self) -> bool {
        either!(self, carried => carried.takes_output())
    }

    /// Whether a small response of this call would be accepted now.
    pub fn takes_responses(&self, call: CallId) -> bool {
        either!(self, carried => carried.takes_responses(call))
    }

    /// Whether there is credit for responses of this call, be there room for them or not.
    pub fn has_credit(&self, call: CallId) -> bool {
        either!(self, carried => carried.has_credit(call))
    }

    /// How much of its output has left, in the measure of its marks, and how much the peer has confirmed if it does: bytes of a
    /// stream, messages of a session.
    pub fn progress(&self) -> (u64, Option<u64>) {
        match self {
            Self::Stream(connection) => (connection.counters().bytes_sent, None),
            Self::Session(session) => (session.left(), Some(session.acknowledged())),
        }
    }

    /// Whether nothing is under way.
    pub fn is_idle(&self) -> bool {
        either!(self, carried => carried.is_idle())
    }

    /// Whether it has named so many methods that few more can be: requests are to go elsewhere.
    pub fn names_are_scarce(&self) -> bool {
        either!(self, carried => carried.names_are_scarce())
    }

    /// What it has carried.
    pub fn counters(&self) -> Counters {
        either!(self, carried => carried.counters())
    }
}

impl Carrier<&mut Connection, &mut Session> {
    /// Whether a request may go `now`: over datagrams a peer that was silent for long is asked first ([`Session::confirm`]).
    #[inline]
    pub fn confirm(&mut self, now: Duration) -> bool {
        match self {
            Self::Stream(_) => true,
            Self::Session(session) => session.confirm(now),
        }
    }

    /// Sends a request by this method, and returns where it stands. A stream is told the time first if the request tells it;
    /// `now` is not asked otherwise. See [`confirm`](Self::confirm) before.
    ///
    /// # Errors
    ///
    /// If it is not accepted now or not at all; nothing was sent then.
    pub fn send_request(
        &mut self,
        request: &mut Request,
        method: &MethodDefinition,
        now: impl FnOnce() -> Duration,
    ) -> Result<Mark, Refusal> {
        match self {
            Self::Stream(connection) => {
                if connection.tells_time(request) {
                    connection.set_time(now());
                }
                connection.send_request(request, method)?;
                Ok(connection.mark())
            }
            Self::Session(session) => Ok(mark(session.send_request(request, method)?)),
        }
    }

    /// Sends a response, and returns where it stands. Only what is `counted` needs the call's credit.
    ///
    /// # Errors
    ///
    /// If it is not accepted now or not at all; nothing was sent then.
    #[inline]
    pub fn send_response(&mut self, response: &Response, counted: bool) -> Result<Mark, Refusal> {
        match self {
            Self::Stream(connection) => {
                connection.send_response(response, counted)?;
                Ok(connection.mark())
            }
            Self::Session(session) => Ok(mark(session.send_response(response, counted)?)),
        }
    }

    /// Sends a message that needs no credit, anything but requests and responses, and returns where it stands.
    ///
    /// # Errors
    ///
    /// If the handshake is not done, or too much waits.
    pub fn send_control(&mut self, message: Message) -> Result<Mark, Refusal> {
        match self {
            Self::Stream(connection) => {
                connection.send_control(message)?;
                Ok(connection.mark())
            }
            Self::Session(session) => Ok(mark(session.send_control(message)?)),
        }
    }

    /// A request that came has left the queue for its handler, or was refused: so many bytes of payload.
    pub fn grant_request(&mut self, payload: usize) {
        either!(self, carried => carried.grant_request(payload));
    }

    /// The application took so many responses of a call that came, with payloads of so many bytes in all.
    pub fn grant_call(&mut self, call: CallId, responses: u64, payload: u64) {
        either!(self, carried => carried.grant_call(call, responses, payload));
    }

    /// Calls of this initiator before `oldest` are over: their credit is not kept.
    pub fn forget_calls(&mut self, oldest: CallId) {
        either!(self, carried => carried.forget_calls(oldest));
    }

    /// Tells the peer that nothing new comes.
    pub fn go_away(&mut self) {
        either!(self, carried => carried.go_away());
    }

    /// Tells the peer of a stream how much of it was handled: nothing that comes after is. Over datagrams messages may overtake each
    /// other, so nothing is said there.
    pub fn stop_reading(&mut self) {
        if let Self::Stream(connection) = self {
            connection.stop_reading();
        }
    }

    /// Ends it, and tells the peer why.
    pub fn close(&mut self, reason: &str) {
        either!(self, carried => carried.close(reason));
    }

    /// Ends it for want of room, and tells the peer so.
    pub fn refuse(&mut self, reason: &str) {
        match self {
            Self::Stream(connection) => connection.refuse(reason),
            Self::Session(session) => session.close(reason),
        }
    }
}

/// Where a message stands in a session's output: its marks count messages.
fn mark(message: MessageNumber) -> Mark {
    Mark::Written(message.index() + 1)
}
