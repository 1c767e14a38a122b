//! What carries a peer's messages: a stream, or a session over datagrams.

use std::time::Duration;

use wallaby_proto::connection::{
    Connection, ConnectionError, Counters, KeepAlive, KeepAliveSettings, Mark, MethodDefinition,
    Refusal,
};
use wallaby_proto::wire::{Message, Request, Response};
use wallaby_proto::{Address, CallId};

use crate::driver::port::PortSession;
use crate::transport::StreamWriter;

/// A peer's messages go one of these ways.
#[expect(clippy::large_enum_variant, reason = "most are streams")]
pub(crate) enum Carrier {
    Stream(Connection, StreamWriter),
    Session(PortSession),
}

/// Does the same with either.
macro_rules! either {
    ($carrier:expr, $way:ident => $what:expr) => {
        match $carrier {
            Carrier::Stream($way, _) => $what,
            Carrier::Session($way) => $what,
        }
    };
}

impl Carrier {
    pub(crate) fn send_request(
        &mut self,
        request: &mut Request,
        method: &MethodDefinition,
    ) -> Result<(), Refusal> {
        either!(self, way => way.send_request(request, method))
    }

    /// A stream wants to know the time before a request is sent that it tells the time of.
    pub(crate) fn tell_time_of(&mut self, request: &Request, now: impl FnOnce() -> Duration) {
        if let Self::Stream(connection, _) = self
            && connection.tells_time(request)
        {
            connection.set_time(now());
        }
    }

    pub(crate) fn send_response(
        &mut self,
        response: &Response,
        counted: bool,
    ) -> Result<(), Refusal> {
        either!(self, way => way.send_response(response, counted))
    }

    pub(crate) fn send_control(&mut self, message: Message) -> Result<(), Refusal> {
        either!(self, way => way.send_control(message))
    }

    /// Where the message stands in the output that was sent last.
    pub(crate) fn mark(&self) -> Mark {
        either!(self, way => way.mark())
    }

    /// Whether the message sent last stays here for some time, though the transport takes what comes.
    pub(crate) fn is_behind(&self) -> bool {
        matches!(self, Self::Session(session) if session.is_behind())
    }

    /// Where the peer certainly listens, if that is known without dialling it.
    pub(crate) fn proven_address(&self) -> Option<Address> {
        match self {
            Self::Stream(..) => None,
            Self::Session(session) => session.proven_address(),
        }
    }

    /// How much of its output has left, in the measure of its marks, and how much the peer has confirmed if it does.
    pub(crate) fn progress(&self) -> (u64, Option<u64>) {
        match self {
            Self::Stream(connection, _) => (connection.counters().bytes_sent, None),
            Self::Session(session) => session.progress(),
        }
    }

    pub(crate) fn forget_calls(&mut self, oldest: CallId) {
        either!(self, way => way.forget_calls(oldest));
    }

    pub(crate) fn takes_requests(&self) -> bool {
        either!(self, way => way.takes_requests())
    }

    pub(crate) fn takes_output(&self) -> bool {
        either!(self, way => way.takes_output())
    }

    pub(crate) fn takes_responses(&self, call: CallId) -> bool {
        either!(self, way => way.takes_responses(call))
    }

    pub(crate) fn grant_requests(&mut self, payloads: impl Iterator<Item = usize>) {
        match self {
            Self::Stream(connection, _) => {
                payloads.for_each(|payload| connection.grant_request(payload));
            }
            Self::Session(session) => session.grant_requests(payloads),
        }
    }

    pub(crate) fn grant_call(&mut self, call: CallId, responses: u64, payload: u64) {
        either!(self, way => way.grant_call(call, responses, payload));
    }

    pub(crate) fn go_away(&mut self) {
        either!(self, way => way.go_away());
    }

    pub(crate) fn close(&mut self, reason: &str) {
        either!(self, way => way.close(reason));
    }

    pub(crate) fn refuse(&mut self, reason: &str) {
        match self {
            Self::Stream(connection, _) => connection.refuse(reason),
            Self::Session(session) => session.close(reason),
        }
    }

    /// Whether parts of large messages or of bodies wait to leave.
    pub(crate) fn has_parts(&self) -> bool {
        match self {
            Self::Stream(connection, _) => connection.has_parts(),
            Self::Session(_) => false,
        }
    }

    pub(crate) fn is_idle(&self) -> bool {
        either!(self, way => way.is_idle())
    }

    pub(crate) fn counters(&self) -> Counters {
        either!(self, way => way.counters())
    }

    /// Bytes that wait to be written to a stream.
    pub(crate) fn waiting(&self) -> usize {
        match self {
            Self::Stream(connection, _) => connection.waiting(),
            Self::Session(_) => 0,
        }
    }

    /// Before output is asked for, a stream wants to know the time only while large messages leave.
    pub(crate) fn tell_pace(&mut self, now: impl FnOnce() -> Duration) {
        if let Self::Stream(connection, _) = self
            && connection.keeps_pace()
        {
            connection.set_time(now());
        }
    }

    /// A stream wants to know the time before input is handled only while large messages leave, or its peer tells its own; a session's socket has its own.
    pub(crate) fn tell_time(&mut self, now: impl FnOnce() -> Duration) {
        if let Self::Stream(connection, _) = self
            && connection.wants_time()
        {
            connection.set_time(now());
        }
    }

    /// The next large message that has left, and its mark.
    pub(crate) fn next_left(&mut self) -> Option<(u64, u64)> {
        match self {
            Self::Stream(connection, _) => connection.next_left(),
            Self::Session(_) => None,
        }
    }

    /// The stream, on which bodies may follow requests.
    pub(crate) fn stream(&mut self) -> Option<&mut Connection> {
        match self {
            Self::Stream(connection, _) => Some(connection),
            Self::Session(_) => None,
        }
    }

    /// Looks whether a stream's peer is silent: see [`KeepAlive::look`]. Sessions see to it by themselves.
    pub(crate) fn look(
        &mut self,
        keep_alive: &mut KeepAlive,
        settings: &KeepAliveSettings,
        waits: bool,
        now: Duration,
    ) -> Result<bool, ConnectionError> {
        match self {
            Self::Stream(connection, _) => keep_alive.look(settings, connection, waits, now),
            Self::Session(_) => Ok(false),
        }
    }

    /// Whether large messages arrive too slowly. Sessions see to it by themselves.
    pub(crate) fn check_stalled(&mut self, now: Duration) -> Result<(), ConnectionError> {
        match self {
            Self::Stream(connection, _) => connection.check_stalled(now),
            Self::Session(_) => Ok(()),
        }
    }

    /// The connection has ended: see [`Connection::drop_unfinished`]. Sessions go from their port.
    pub(crate) fn drop_unfinished(&mut self) {
        if let Self::Stream(connection, _) = self {
            connection.drop_unfinished();
        }
    }

    /// Whether what comes is handled: see [`Connection::takes_input`]. A session drops what it need not take.
    pub(crate) fn takes_input(&self) -> bool {
        match self {
            Self::Stream(connection, _) => connection.takes_input(),
            Self::Session(_) => true,
        }
    }

    /// Whether credit for parts is withheld: see [`Connection::is_withholding`].
    pub(crate) fn is_withholding(&self) -> bool {
        match self {
            Self::Stream(connection, _) => connection.is_withholding(),
            Self::Session(_) => false,
        }
    }
}
