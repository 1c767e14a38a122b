//! Delegations that have something of their own.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::verbs::{HandlerMessage, note_refused};
use super::{Author, Destination, HandledRequest, LONGEST, TimedOptions};
use crate::connection::MethodDefinition;
use crate::endpoint::Endpoint;
use crate::endpoint::bodies::OutBody;
use crate::endpoint::conn::Times;
use crate::endpoint::event::RequestKey;
use crate::endpoint::probe::Probe;
use crate::error::{CodecError, SendError};
use crate::wire::{Continuation, Metadata, MetadataError, Options, Request};
use crate::{Address, DurableId, RequestId, Status};

/// What a delegation has of its own: see [`Endpoint::delegate_with`]. What it does not say is as with any other.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
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
    /// It has its place in the call's tree whatever happens: the endpoint takes it even while it is drained, and where as much waits
    /// as [`Limits::waiting`](crate::endpoint::Limits::waiting) says, up to as much again. If it may not go there, or there is no room
    /// for it even so, a status in its server's name says so in place of an error.
    pub always: bool,
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
    fn of(self, request: Option<&Options>, now: Duration) -> Result<TimedOptions, MetadataError> {
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
        })
    }
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

/// A delegation that leaves.
#[derive(Debug, Clone, Copy)]
pub struct AcceptedDelegation {
    /// Its place in the call's tree.
    pub place: RequestId,
    /// What is to be written behind it.
    pub body: Option<OutBody>,
}

impl Destination {
    /// What is handed on by a request with a durable id has one that follows from it, unless it has a name already.
    #[inline]
    pub(super) fn inherit_name(&mut self, handler: &mut HandledRequest) {
        if handler.durable().is_some() {
            self.set_name(handler);
        }
    }

    #[cold]
    fn set_name(&mut self, handler: &mut HandledRequest) {
        let own = self.own.get_or_insert_default();
        if own.durable.is_none() {
            own.durable = handler.name_next(Author::Handler);
        }
    }
}

impl TimedOptions {
    /// It takes the place of what the delegation would have inherited.
    #[cold]
    pub(super) fn apply(&self, request: &mut Request, times: &mut Times, now: Duration) {
        let Self {
            metadata,
            until,
            traced,
            continuation,
            durable,
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
    /// goes on or not: that is to be [written](Self::write_body). More may follow.
    ///
    /// # Errors
    ///
    /// As [`delegate`](Self::delegate), or if its metadata is too much. That bodies do not go over `udp:` shows as a status among the
    /// call's answers.
    pub fn delegate_with(
        &mut self,
        request: RequestKey,
        delegation: NewDelegation,
    ) -> Result<Option<OutBody>, SendError> {
        let hold = |endpoint: &mut Self, handler: &mut HandledRequest, sending| {
            endpoint.send_more(handler, sending)
        };
        let ((), body) = self.hand_on(request, delegation, How::More, hold)?;
        Ok(body)
    }

    /// The same, and it leaves now, where it would else be held back until more is sent: so its place is told. If it is the
    /// [last](How::Last) message the request ends, as by [`forward`](Self::forward).
    ///
    /// # Errors
    ///
    /// As [`delegate_with`](Self::delegate_with) and [`forward`](Self::forward).
    pub fn delegate_now(
        &mut self,
        request: RequestKey,
        delegation: NewDelegation,
        how: How,
    ) -> Result<AcceptedDelegation, SendError> {
        let send = |endpoint: &mut Self, handler: &mut HandledRequest, sending| {
            match how {
                How::Last => endpoint.send_last(handler, sending)?,
                How::More => {
                    endpoint.send_more(handler, sending)?;
                    endpoint.flush_held(handler);
                }
            }
            Ok(handler.server.latest_delegation())
        };
        let (place, body) = self.hand_on(request, delegation, how, send)?;
        Ok(AcceptedDelegation { place, body })
    }

    fn hand_on<T>(
        &mut self,
        request: RequestKey,
        mut delegation: NewDelegation,
        how: How,
        send: impl FnOnce(&mut Self, &mut HandledRequest, HandlerMessage) -> Result<T, SendError>,
    ) -> Result<(T, Option<OutBody>), SendError> {
        let handler = self.handlers.get_mut(request);
        let handler = handler.ok_or_else(|| SendError::Ended("it is over".into()))?;
        let (deadline, now) = (handler.deadline, self.raw);
        let options = delegation.options.as_ref();
        let (servers, always) = options.map_or((0, false), |own| (own.servers, own.always));
        let own = delegation
            .options
            .take()
            .map(|own| own.of(handler.options.as_deref(), now));
        let own = own.transpose().map_err(|error| {
            let error = SendError::Codec(CodecError::new("metadata", error.to_string()));
            note_refused(handler, &error, how == How::Last);
            error
        });
        let own = own?.map(Box::new);
        let refused = match always {
            true => self.why_not_there(request, &delegation),
            false => None,
        };
        let body = delegation.followed && refused.is_none();
        let body = body.then(|| self.begin_delegated_body(request, deadline));
        let to = Destination {
            server: delegation.server,
            method: delegation.method,
            body,
            always,
            refused,
            own,
        };
        let sending = HandlerMessage::Delegation(to, delegation.payload);
        let sent = self.with(request, |endpoint, handler| {
            if servers == 0 {
                return send(endpoint, handler, sending);
            }
            endpoint.flush_held(handler);
            handler.announce_line(servers);
            let sent = send(endpoint, handler, sending);
            endpoint.flush_held(handler);
            handler.announce_line(0);
            sent
        });
        if let (Err(_), Some(body)) = (&sent, body) {
            self.forget_body(body);
        }
        sent.map(|sent| (sent, body))
    }

    /// Why a request that goes whatever happens may not go to this server.
    #[cold]
    fn why_not_there(
        &mut self,
        request: RequestKey,
        delegation: &NewDelegation,
    ) -> Option<Box<Status>> {
        let (server, payload) = (&delegation.server, delegation.payload.len());
        let handler = self.handlers.take(request)?;
        let why = match self.check_size(&handler, Some(server), payload) {
            Ok(()) => self.check_delegation(&handler, server).err(),
            Err(why) => Some(why),
        };
        self.handlers.put(request, handler);
        let why = why.or_else(|| {
            let room = self.config.limits.waiting.saturating_mul(2);
            let fits = self.has_room_of(room, payload);
            let goes = fits || self.takes_request(server, delegation.followed);
            (!goes).then_some(SendError::Full)
        });
        why.map(|why| Box::new(Status::from(why)))
    }

    /// Whether anything may go to this server.
    pub(super) fn check_delegation(
        &mut self,
        handler: &HandledRequest,
        server: &Address,
    ) -> Result<(), SendError> {
        if !self.config.dial_policy.permits(server) {
            self.metrics.dials_forbidden += 1;
            let server = server.clone();
            return Err(SendError::Forbidden { server });
        }
        let (depth, limit) = (
            handler.server.depth().saturating_add(1),
            self.config.max_depth,
        );
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
