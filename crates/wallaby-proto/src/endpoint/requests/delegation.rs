//! Delegations that have something of their own.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::verbs::over;
use crate::connection::MethodDefinition;
use crate::endpoint::bodies::OutBody;
use crate::endpoint::conn::Times;
use crate::endpoint::event::RequestKey;
use crate::endpoint::probe::Probe;
use crate::endpoint::server::{Destination, Outline, Sending};
use crate::endpoint::{Endpoint, LONGEST};
use crate::error::SendError;
use crate::wire::{Continuation, MessageOptions, Metadata, MetadataError, Request};
use crate::{Address, DurableId, RequestId, Status};

/// What a delegation has of its own: see [`Endpoint::delegate_with`]. What it does not say is as with any other.
/// There may be more fields in any later version: end a literal with `..Default::default()`.
#[derive(Debug, Clone, Default)]
pub struct DelegateOptions {
    /// Pairs beside the metadata that came with the request, in place of those with the same keys.
    pub metadata: Metadata,
    /// Keys whose pairs it does not inherit.
    pub without: Vec<String>,
    /// How much time it has, from now on; never more than the request has left.
    pub deadline: Option<Duration>,
    /// Whether its hops report their timings although its request does not.
    pub traced: bool,
    /// What goes along with it alone.
    pub continuation: Option<Continuation>,
    /// In place of the durable id that follows from its request's and from how much its handler has handed on before.
    pub durable: Option<DurableId>,
    /// Through how many servers it goes, one behind the other and the next one included: each of them may use up as much of the
    /// call's budgets, and it is not held back. 0: it has what any other delegation has.
    pub servers: u32,
    /// It has its place in the call's tree whatever happens: the endpoint takes it even where as much waits
    /// as [`Limits::waiting`](crate::endpoint::Limits::waiting) says, up to as much again. If it may not go there, or there is no room
    /// for it even so, a status in its server's name says so in place of an error.
    pub always: bool,
    /// If it certainly does not reach its server, or may not go there, it is handled here in its place, as a request of this method:
    /// with its arguments, its continuation and all else that it would have had there, but for a body. Its
    /// [`undelivered`](crate::endpoint::HandledRequest::undelivered) says why. So whoever has sent it may answer it, or hand it on to
    /// another server. If that is impossible, as this endpoint is being closed, has no address, or does not serve that method, a status
    /// goes in its name, as of any other.
    pub unless_sent: Option<Arc<MethodDefinition>>,
}

impl DelegateOptions {
    /// What metadata it has if its request has come with this.
    ///
    /// # Errors
    ///
    /// If that is too much.
    pub fn metadata_beside(&self, inherited: &Metadata) -> Result<Metadata, MetadataError> {
        let mut all = inherited.clone();
        for key in &self.without {
            all.remove(key);
        }
        all.insert_all(&self.metadata)?;
        Ok(all)
    }

    /// How many bytes its metadata and its continuation have.
    pub fn size(&self) -> usize {
        let continuation = self.continuation.as_ref();
        let without: usize = self.without.iter().map(String::len).sum();
        let continuation = continuation.map_or(0, |continuation| continuation.bytes().len());
        self.metadata.size() + without + continuation
    }

    /// What it has of its own of a request with these optional fields.
    fn of(
        self,
        request: Option<&MessageOptions>,
        now: Duration,
    ) -> Result<TimedOptions, MetadataError> {
        let changes = !(self.metadata.is_empty() && self.without.is_empty());
        let metadata = changes.then(|| match request {
            Some(options) => self.metadata_beside(&options.metadata),
            None => self.metadata_beside(&Metadata::default()),
        });
        let time = self.deadline.map(|time| time.min(LONGEST));
        Ok(TimedOptions {
            metadata: metadata.transpose()?,
            until: time.map(|time| now.saturating_add(time)),
            traced: self.traced,
            continuation: self.continuation,
            durable: self.durable,
            line: self.servers,
            always: self.always,
            unless_sent: self.unless_sent,
            refused: None,
        })
    }
}

/// What a delegation has of its own.
#[derive(Debug, Default)]
pub(in crate::endpoint) struct TimedOptions {
    /// All that it has, in place of what its request has.
    metadata: Option<Metadata>,
    /// When its time is over.
    until: Option<Duration>,
    traced: bool,
    continuation: Option<Continuation>,
    durable: Option<DurableId>,
    /// Through how many servers it goes, if it is not held back.
    pub(in crate::endpoint) line: u32,
    /// It has its place in the tree [whatever happens](DelegateOptions::always).
    pub(in crate::endpoint) always: bool,
    /// What [handles it](DelegateOptions::unless_sent) if it does not get there.
    pub(in crate::endpoint) unless_sent: Option<Arc<MethodDefinition>>,
    /// Why it must not go to its server even so.
    pub(in crate::endpoint) refused: Option<Box<Status>>,
}

/// Work that is handed to another server.
#[derive(Debug)]
pub struct NewDelegation {
    /// The server.
    pub server: Address,
    /// The method.
    pub method: Arc<MethodDefinition>,
    /// The arguments.
    pub payload: Bytes,
    /// What it has of its own.
    pub options: Option<DelegateOptions>,
    /// Whether a body follows it.
    pub followed: bool,
}

/// What comes after a delegation that leaves now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// More may follow.
    More,
    /// It is the last message, which ends the request.
    Last,
}

impl TimedOptions {
    /// It is called this, unless it has a name already.
    pub(in crate::endpoint) fn name(&mut self, name: impl FnOnce() -> Option<DurableId>) {
        self.durable = self.durable.or_else(name);
    }

    /// It takes the place of what the delegation would have inherited.
    #[cold]
    pub(in crate::endpoint) fn apply(
        &self,
        request: &mut Request,
        times: &mut Times,
        now: Duration,
    ) {
        let Self {
            metadata,
            until,
            traced,
            continuation,
            durable,
            ..
        } = self;
        request.traced |= traced;
        if let Some(metadata) = metadata {
            request.options.get_or_insert_default().metadata = metadata.clone();
        }
        if let Some(continuation) = continuation {
            let bytes = Some(continuation.bytes().clone());
            request.options.get_or_insert_default().continuation = bytes;
        }
        if durable.is_some() {
            request.options.get_or_insert_default().durable = *durable;
        }
        if request
            .options
            .as_ref()
            .is_some_and(|options| options.is_empty())
        {
            request.options = None;
        }
        if let Some(until) = until.filter(|until| *until < times.until) {
            (times.until, times.own) = (until, true);
            request.deadline = Some(until.saturating_sub(now));
        }
    }
}

impl<P: Probe> Endpoint<P> {
    /// Hands work to another server with what it has of its own, and perhaps with a body that follows the request, whether the handler
    /// goes on or not: that is to be [written](Self::write_body). If it is the [last](How::Last) message the request ends, as by
    /// [`forward`](Self::forward).
    ///
    /// # Errors
    ///
    /// As [`delegate`](Self::delegate) and [`forward`](Self::forward), or if its metadata is too much. That bodies do not go over
    /// `udp:` shows as a status among the call's answers.
    pub fn delegate_with(
        &mut self,
        request: RequestKey,
        delegation: NewDelegation,
        how: How,
    ) -> Result<Option<OutBody>, SendError> {
        let now = self.raw;
        let handler = self.handlers.get_mut(request).ok_or_else(over)?;
        let deadline = handler.deadline;
        let mut to = Destination::new(delegation.server, &delegation.method);
        let mut is_refused = false;
        if let Some(own) = delegation.options {
            let own = own.of(handler.options.as_deref(), now).map_err(|error| {
                let error = SendError::from(error);
                handler.refuse(&error, how);
                error
            });
            let mut own = Box::new(own?);
            if own.always || own.unless_sent.is_some() {
                let outline = Outline {
                    server: Some(&to.server),
                    payload: delegation.payload.len(),
                    followed: delegation.followed,
                };
                own.refused = self.why_not_there(request, outline, own.always);
                is_refused = own.refused.is_some();
            }
            to.own = Some(own);
        }
        if delegation.followed && !is_refused {
            to.body = Some(self.begin_delegated_body(request, deadline));
        }
        let body = to.body;
        let sent = self.send_message(request, Sending::Delegation(to, delegation.payload), how);
        if let (Err(_), Some(body)) = (&sent, body) {
            self.forget_body(body);
        }
        sent.map(|()| body)
    }

    /// The place in the call's tree of what a request has delegated last. If that is held back, it leaves now.
    ///
    /// # Errors
    ///
    /// If its key means nothing any more.
    pub fn latest_delegation(&mut self, request: RequestKey) -> Result<RequestId, SendError> {
        self.flush_held(request);
        let handler = self.handlers.get(request).ok_or_else(over)?;
        Ok(handler.server.latest_delegation())
    }

    /// Why a delegation that has its place even so may not go to its server. One that has it `always` does not wait for room.
    #[cold]
    fn why_not_there(
        &mut self,
        request: RequestKey,
        outline: Outline<'_>,
        always: bool,
    ) -> Option<Box<Status>> {
        let server = outline.server?;
        let why = self.check_size(request, outline.server, outline.payload);
        let why = why.and_then(|()| self.check_delegation(request, server));
        let why = why.and_then(|()| {
            if !always {
                return Ok(());
            }
            let room = self.config.limits.waiting.saturating_mul(2);
            let fits = self.queue_room.has_room_of(room, outline.payload);
            let goes = fits || self.takes_request(server, outline.followed);
            goes.then_some(()).ok_or(SendError::Full)
        });
        why.err().map(|why| Box::new(Status::from(why)))
    }

    /// Whether an address may be dialled that peers name.
    ///
    /// # Errors
    ///
    /// If the dial policy forbids it.
    pub fn check_named(&mut self, server: &Address) -> Result<(), SendError> {
        if self.config.dial_policy.permits(server) {
            return Ok(());
        }
        self.metrics.dials_forbidden += 1;
        let server = server.clone();
        Err(SendError::Forbidden { server })
    }

    /// Whether anything may go to this server.
    pub(super) fn check_delegation(
        &mut self,
        request: RequestKey,
        server: &Address,
    ) -> Result<(), SendError> {
        let handler = self.handlers.get(request).ok_or_else(over)?;
        let depth = handler.depth();
        self.check_named(server)?;
        let (depth, limit) = (depth.saturating_add(1), self.config.max_depth);
        if depth > limit {
            return Err(SendError::TooDeep { depth, limit });
        }
        if !self.config.schemes.lead_to(server) {
            let server = server.clone();
            return Err(SendError::NoTransport { server });
        }
        Ok(())
    }
}
