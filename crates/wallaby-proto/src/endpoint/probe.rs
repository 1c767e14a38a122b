//! What a simulator or a test sees of an endpoint from inside, and may spoil.

use crate::call::records::{Judgement, StopReason};
use crate::connection::{Hello, Mark};
use crate::datagram::Cause;
use crate::wire::{End, Message, Pong, Request, Response};
use crate::{Address, CallId, ConnId, RequestId};

/// Sees what an endpoint does with messages, where that shows neither in what it says nor in the bytes that it sends; and may
/// change messages on their way in and out, to see whether a fault is noticed.
///
/// What users run has `()` for it, which does nothing and costs nothing.
pub trait Probe {
    /// Whether it looks at all: what it sees is made ready only then.
    const LOOKS: bool = true;

    /// A connection is open.
    fn opened(&mut self, _conn: ConnId, _hello: &Hello) {}

    /// A session over datagrams has ended.
    fn session_ended(&mut self, _conn: ConnId, _cause: &Cause) {}

    /// A message came, over a connection or from this endpoint itself. `false`: nothing becomes of it.
    fn comes(&mut self, _from: Option<ConnId>, _message: &mut Message) -> bool {
        true
    }

    /// A message that comes once more after the one that was handled last, as from a transport that filters nothing.
    fn echoes(&mut self) -> Option<Message> {
        None
    }

    /// The records have judged a request that came.
    fn judged(&mut self, _request: &Request, _admission: &Judgement) {}

    /// A request that is handled here sends this: it has its place in the call's tree from now on. Whether it is its `last` word.
    fn released(&mut self, _by: (CallId, RequestId), _message: Released<'_>, _last: bool) {}

    /// This status stands in for a request that certainly reaches no server.
    fn replaced(&mut self, _status: &Response) {}

    /// A message is about to be handed to a connection, which may not take it yet.
    fn leaves(&mut self, _over: ConnId, _message: Leaving<'_>) {}

    /// A connection has taken a message, which stands there in its output.
    fn sent(&mut self, _over: ConnId, _message: Leaving<'_>, _mark: Mark) {}

    /// Now it is known where a message stands that was sent in parts: of [`Mark::Parts`], up to this mark.
    fn placed(&mut self, _over: ConnId, _parts: u64, _mark: u64) {}

    /// A message waits for credit or for room.
    fn waits(&mut self, _message: Message) {}

    /// No route leads to where a message is to go.
    fn stranded(&mut self, _message: Message) {}

    /// The records tell of a request that is remembered here, or say that it is not.
    fn tells(&mut self, _pong: &mut Pong) {}

    /// Something else happened.
    fn notes(&mut self, _note: Note) {}
}

impl Probe for () {
    const LOOKS: bool = false;
}

/// A message that a handler sends.
#[derive(Debug)]
pub enum Released<'a> {
    /// A delegation: its place, where it goes, and its payload.
    Request(RequestId, &'a Address, &'a [u8]),
    /// An answer, or a status in place of one.
    Response(&'a Response),
    /// The word that no more comes.
    End(&'a End),
}

/// A message on its way out.
#[derive(Debug)]
pub enum Leaving<'a> {
    /// A request.
    Request(&'a mut Request),
    /// An answer, or a status in place of one.
    Response(&'a mut Response),
    /// What needs no credit.
    Control(&'a mut Message),
}

/// Something that happens inside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Note {
    /// A request waits for its turn.
    Queued,
    /// A request is refused: as many wait as may.
    QueueFull,
    /// A call is watched over from now on.
    Watched,
    /// A call is told that a connection with one of its servers has ended.
    Disconnected,
    /// A call is told that one of its servers is gone.
    Gone,
    /// A call is told that one of its servers is not where others say.
    NotFound,
    /// Another initiator is told that a server is gone which this endpoint had handed its request on to, or passed that on.
    ToldGone,
    /// Nothing new of a call can start any more.
    Frozen,
    /// Nothing of a call runs any more.
    Quiet,
    /// Somebody who says that it is the initiator is asked to prove it.
    Invited,
    /// An initiator proves that.
    TokenShown,
    /// Somebody who works for a call that is over is told so.
    Dismissed,
    /// An answer has found a route to its initiator.
    FoundRoute,
    /// An answer reaches nobody.
    Dropped,
    /// A response is sent again.
    Resent(CallId, RequestId, u32),
    /// An address that a peer has named is not dialled now.
    DialHeld,
    /// A delegation is refused: its call was aborted, or is over.
    RefusedDelegation,
    /// A connection that was dialled has not opened in time.
    TimedOut(ConnId),
    /// A request was not delivered.
    Undelivered(CallId, RequestId),
    /// The server of an initial request was closed before it had read it.
    Unread,
    /// The records have a request stopped.
    Stopped(CallId, RequestId, StopReason),
}
