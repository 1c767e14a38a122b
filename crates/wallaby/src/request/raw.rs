//! A request whose payloads are bytes.

use std::borrow::Borrow;
use std::fmt;
use std::future::Future;
use std::ops::Deref;
use std::sync::Arc;

use bytes::Bytes;
use wallaby_proto::connection::MethodDefinition;
use wallaby_proto::{Address, NodeId, Status};

use super::delegation::{Delegation, Departure};
use super::info::RequestInfo;
use crate::body::Body;
use crate::error::SendError;
use crate::handling::Handling;
use crate::intercept::{DelegatedRequest, Exit, Intent};
use crate::method::sealed::Followed;

/// A request whose payloads are bytes: what [`Request`](super::Request) is built on, for tools, gateways and other formats.
///
/// The request ends when this is dropped, wherever that happens; the call goes on wherever it was delegated to.
pub struct RawRequest {
    pub(crate) exit: Exit,
    payload: Bytes,
}

impl Followed for RawRequest {
    fn method(&self) -> Arc<str> {
        Arc::clone(self.handling.method().name())
    }

    fn sender(&self) -> (Option<NodeId>, Option<Address>) {
        (self.handling.delegator, self.handling.delegator_address())
    }

    fn longest_item(&self) -> u64 {
        self.handling.endpoint.settings.driver.item
    }

    fn take_body(&mut self) -> Option<Body> {
        self.handling.take_body()
    }
}

impl Borrow<Exit> for RawRequest {
    fn borrow(&self) -> &Exit {
        &self.exit
    }
}

impl Borrow<Exit> for &RawRequest {
    fn borrow(&self) -> &Exit {
        &self.exit
    }
}

impl RawRequest {
    pub(crate) fn new(handling: &Arc<Handling>, payload: Bytes) -> Self {
        let exit = Exit::of(handling);
        Self { exit, payload }
    }

    pub(crate) fn take_payload(&mut self) -> Bytes {
        std::mem::take(&mut self.payload)
    }

    /// The arguments.
    pub fn payload(&self) -> &Bytes {
        &self.payload
    }

    /// Sends an answer to the initiator; more may follow.
    ///
    /// # Errors
    ///
    /// If the answer is too large or the request has ended.
    pub fn reply(&self, payload: Bytes) -> impl Future<Output = Result<(), SendError>> + Send {
        Departure::of(self, Ok(Intent::answer(payload)), false)
    }

    /// Like [`reply`](Self::reply), but fails with [`SendError::Full`] where that would wait.
    ///
    /// # Errors
    ///
    /// As `reply`, or if there is no credit or room now.
    pub fn try_reply(&self, payload: Bytes) -> Result<(), SendError> {
        self.handling.try_send(Intent::answer(payload))
    }

    /// Sends the last answer and ends the request.
    ///
    /// # Errors
    ///
    /// If the answer is too large or the request has ended.
    pub fn respond(self, payload: Bytes) -> impl Future<Output = Result<(), SendError>> + Send {
        Departure::of(self, Ok(Intent::answer(payload)), true)
    }

    /// Hands work to another server, which answers the initiator directly; more may follow.
    ///
    /// A server that cannot be reached shows as a status among the call's answers. It leaves when the handler waits for something or
    /// goes on, as [`reply`](Self::reply) says; if the handler returns an error before that, the status takes its place.
    ///
    /// # Errors
    ///
    /// If the request is too large, too deep in the tree, or has ended.
    pub fn delegate(
        &self,
        server: impl Into<Address>,
        method: &Arc<MethodDefinition>,
        payload: Bytes,
    ) -> Delegation<&Self> {
        Delegation::of(self, Ok(onward(server.into(), method, payload)), false)
    }

    /// Like [`delegate`](Self::delegate), but fails with [`SendError::Full`] where that would wait.
    ///
    /// # Errors
    ///
    /// As `delegate`, or if there is no credit or room now.
    pub fn try_delegate(
        &self,
        server: impl Into<Address>,
        method: &Arc<MethodDefinition>,
        payload: Bytes,
    ) -> Result<(), SendError> {
        self.handling
            .try_send(onward(server.into(), method, payload).into())
    }

    /// Hands the rest of the work to another server and ends the request: a tail call. What becomes of it only the
    /// initiator learns, as of all that is delegated.
    ///
    /// # Errors
    ///
    /// As [`delegate`](Self::delegate).
    pub fn forward(
        self,
        server: impl Into<Address>,
        method: &Arc<MethodDefinition>,
        payload: Bytes,
    ) -> Delegation<Self> {
        Delegation::of(self, Ok(onward(server.into(), method, payload)), true)
    }

    /// Hands the request on to another server as it came, and ends it here: its method, arguments, body and continuation.
    ///
    /// # Errors
    ///
    /// As [`forward`](Self::forward).
    pub fn pass_on(mut self, server: impl Into<Address>) -> Delegation<Self> {
        let (body, continuation) = (self.take_body(), self.continuation());
        let (method, payload) = (Arc::clone(self.definition()), self.take_payload());
        let mut onward = self.forward(server, &method, payload);
        if let Some(body) = body {
            onward = onward.body(body);
        }
        match continuation {
            Some(continuation) => onward.continuation(continuation),
            None => onward,
        }
    }

    /// Sends the message that is held back because it might be the last one.
    pub async fn flush(&self) {
        self.exit.flush().await;
    }

    /// Ends the request with a status.
    pub fn fail(self, status: &Status) {
        self.handling.fail(status);
    }
}

impl Deref for RawRequest {
    type Target = RequestInfo;

    fn deref(&self) -> &RequestInfo {
        &self.exit
    }
}

impl Drop for RawRequest {
    fn drop(&mut self) {
        self.handling.handle_dropped();
    }
}

impl fmt::Debug for RawRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.handling.fmt(f)
    }
}

fn onward(server: Address, method: &Arc<MethodDefinition>, payload: Bytes) -> DelegatedRequest {
    DelegatedRequest::new(server, Arc::clone(method), payload)
}
