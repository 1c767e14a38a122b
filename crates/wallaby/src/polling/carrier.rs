//! What carries a peer's messages: a stream, or a session over datagrams.

use std::time::Duration;

use wallaby_proto::CallId;
use wallaby_proto::connection::{Connection, Mark, MethodDefinition, Refusal};
use wallaby_proto::datagram::{MessageNumber, Session};
use wallaby_proto::wire::{Message, Request, Response};

/// A peer's messages go one of these ways.
#[derive(Debug)]
pub(super) enum Carrier<'a> {
    Stream(&'a mut Connection),
    Session(&'a mut Session),
}

/// Does the same with either.
macro_rules! either {
    ($carrier:expr, $way:ident => $what:expr) => {
        match $carrier {
            Carrier::Stream($way) => $what,
            Carrier::Session($way) => $what,
        }
    };
}

/// Where a message stands in a session's output: it has left when it was acknowledged.
fn mark(message: MessageNumber) -> Mark {
    Mark::Written(message.index() + 1)
}

impl Carrier<'_> {
    /// Whether a request may go now to a peer that was silent for long: over datagrams it is asked first.
    pub(super) fn confirm(&mut self, now: Duration) -> bool {
        match self {
            Self::Stream(_) => true,
            Self::Session(session) => session.confirm(now),
        }
    }

    pub(super) fn send_request(
        &mut self,
        request: &mut Request,
        method: &MethodDefinition,
        now: Duration,
    ) -> Result<Mark, Refusal> {
        match self {
            Self::Stream(connection) => {
                if connection.tells_time(request) {
                    connection.set_time(now);
                }
                connection.send_request(request, method)?;
                Ok(connection.mark())
            }
            Self::Session(session) => Ok(mark(session.send_request(request, method)?)),
        }
    }

    pub(super) fn send_response(
        &mut self,
        response: &Response,
        counted: bool,
    ) -> Result<Mark, Refusal> {
        match self {
            Self::Stream(connection) => {
                connection.send_response(response, counted)?;
                Ok(connection.mark())
            }
            Self::Session(session) => Ok(mark(session.send_response(response, counted)?)),
        }
    }

    pub(super) fn send_control(&mut self, message: Message) -> Result<Mark, Refusal> {
        match self {
            Self::Stream(connection) => {
                connection.send_control(message)?;
                Ok(connection.mark())
            }
            Self::Session(session) => Ok(mark(session.send_control(message)?)),
        }
    }

    pub(super) fn takes_requests(&self) -> bool {
        either!(self, way => way.takes_requests())
    }

    pub(super) fn takes_responses(&self, call: CallId) -> bool {
        either!(self, way => way.takes_responses(call))
    }

    pub(super) fn forget_calls(&mut self, oldest: CallId) {
        either!(self, way => way.forget_calls(oldest));
    }

    pub(super) fn grant_request(&mut self, payload: usize) {
        either!(self, way => way.grant_request(payload));
    }

    pub(super) fn grant_call(&mut self, call: CallId, responses: u64, payload: u64) {
        either!(self, way => way.grant_call(call, responses, payload));
    }

    pub(super) fn close(&mut self, reason: &str) {
        either!(self, way => way.close(reason));
    }

    pub(super) fn refuse(&mut self, reason: &str) {
        match self {
            Self::Stream(connection) => connection.refuse(reason),
            Self::Session(session) => session.close(reason),
        }
    }

    pub(super) fn is_over_datagrams(&self) -> bool {
        matches!(self, Self::Session(_))
    }
}
