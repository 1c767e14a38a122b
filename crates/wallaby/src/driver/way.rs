//! By what a peer's messages go: a stream, or a session over datagrams, which is behind its port's lock and may have ended.

use std::time::Duration;

use wallaby_proto::carrier::Carrier;
use wallaby_proto::connection::{Connection, Counters, Mark, MethodDefinition, Refusal};
use wallaby_proto::datagram::Session;
use wallaby_proto::wire::Request;

use crate::driver::port::PortSession;
use crate::transport::StreamWriter;

/// A peer's messages go one of these ways.
#[expect(clippy::large_enum_variant, reason = "most are streams")]
pub(crate) enum Way {
    Stream(Connection, StreamWriter),
    Session(PortSession),
}

impl Way {
    /// Does something with what carries the messages; `None` if that is a session that has ended.
    pub(super) fn with<R>(
        &mut self,
        act: impl FnOnce(Carrier<&mut Connection, &mut Session>) -> R,
    ) -> Option<R> {
        match self {
            Self::Stream(connection, _) => Some(act(Carrier::Stream(connection))),
            Self::Session(session) => session.with(|session| act(Carrier::Session(session))),
        }
    }

    /// Asks what carries the messages something; `None` if that is a session that has ended.
    pub(super) fn ask<R>(
        &self,
        ask: impl FnOnce(Carrier<&Connection, &Session>) -> R,
    ) -> Option<R> {
        match self {
            Self::Stream(connection, _) => Some(ask(Carrier::Stream(connection))),
            Self::Session(session) => session.ask(|session| ask(Carrier::Session(session))),
        }
    }

    /// Sends a request; over datagrams a peer that was silent for long is asked first. `now` is for streams, a session's port
    /// has its own time.
    pub(super) fn send_request(
        &mut self,
        request: &mut Request,
        method: &MethodDefinition,
        now: impl FnOnce() -> Duration,
    ) -> Result<Mark, Refusal> {
        match self {
            Self::Stream(connection, _) => {
                Carrier::Stream(connection).send_request(request, method, now)
            }
            Self::Session(session) => session.send_request(request, method),
        }
    }

    /// Sends any other message.
    pub(super) fn send(
        &mut self,
        send: impl FnOnce(Carrier<&mut Connection, &mut Session>) -> Result<Mark, Refusal>,
    ) -> Result<Mark, Refusal> {
        match self {
            Self::Stream(connection, _) => send(Carrier::Stream(connection)),
            Self::Session(session) => session.send(|session| send(Carrier::Session(session))),
        }
    }

    /// Whether the message sent last stays here for some time, though the transport takes what comes.
    pub(super) fn is_behind(&self) -> bool {
        matches!(self, Self::Session(session) if session.behind)
    }

    /// How much has left, and how much the peer has confirmed: see [`Carrier::progress`].
    pub(super) fn progress(&self) -> (u64, Option<u64>) {
        match self.end() {
            Some((acknowledged, _)) => (acknowledged, Some(acknowledged)),
            None => (self.ask(|carrier| carrier.progress())).unwrap_or((0, Some(0))),
        }
    }

    pub(super) fn counters(&self) -> Counters {
        match self.end() {
            Some((_, counters)) => counters,
            None => (self.ask(|carrier| carrier.counters())).unwrap_or_default(),
        }
    }

    /// What is left to tell of a session that has ended.
    fn end(&self) -> Option<(u64, Counters)> {
        match self {
            Self::Stream(..) => None,
            Self::Session(session) => session.end,
        }
    }

    pub(super) fn grant_requests(&mut self, payloads: impl Iterator<Item = usize>) {
        match self {
            Self::Stream(connection, _) => {
                payloads.for_each(|payload| connection.grant_request(payload));
            }
            Self::Session(session) => session.grant_requests(payloads),
        }
    }

    pub(super) fn close(&mut self, reason: &str) {
        match self {
            Self::Stream(connection, _) => connection.close(reason),
            Self::Session(session) => session.close(reason),
        }
    }

    pub(super) fn refuse(&mut self, reason: &str) {
        match self {
            Self::Stream(connection, _) => connection.refuse(reason),
            Self::Session(session) => session.close(reason),
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.ask(|carrier| carrier.is_idle()) != Some(false)
    }

    /// Whether what comes is handled: see [`Connection::takes_input`]. A session drops what it need not take.
    pub(super) fn takes_input(&self) -> bool {
        self.stream().is_none_or(Connection::takes_input)
    }

    /// Whether something waits to be written to a stream.
    pub(super) fn has_output(&self) -> bool {
        self.stream().is_some_and(Connection::has_output)
    }

    /// Bytes that wait to be written to a stream.
    pub(super) fn waiting(&self) -> usize {
        self.stream().map_or(0, Connection::waiting)
    }

    /// The stream, on which bodies may follow requests, and whose silence and pace its peer's driver sees to: sessions see to
    /// theirs by themselves.
    pub(super) fn stream(&self) -> Option<&Connection> {
        match self {
            Self::Stream(connection, _) => Some(connection),
            Self::Session(_) => None,
        }
    }

    /// The same, to do something with it.
    pub(super) fn stream_mut(&mut self) -> Option<&mut Connection> {
        match self {
            Self::Stream(connection, _) => Some(connection),
            Self::Session(_) => None,
        }
    }
}
