//! What becomes of each message that a connection delivers.

use std::sync::Arc;

use tokio::sync::oneshot;
use wallaby_proto::call::records::Admission;
use wallaby_proto::connection::{BodyEvent, ConnectionError, Event, MethodDefinition};
use wallaby_proto::executor::Admitted;
use wallaby_proto::wire::{Message, MethodRef, Request};
use wallaby_proto::{Address, Code, Status};

use crate::body::{Following, Received};
use crate::driver::peer::{Dispatch, Peer};
use crate::endpoint::Inner;
use crate::error::ConnectError;
use crate::handling::Handling;
use crate::pipeline;
use crate::pool::Opening;
use crate::service::Registered;
use crate::timer::Instant;

/// Dispatches what arrives over one connection.
pub(crate) struct Dispatcher {
    endpoint: Arc<Inner>,
    dialled: Option<Address>,
    opened: Option<oneshot::Sender<Result<(), ConnectError>>>,
    /// Its place among the connections, until it is open: of one that this side has dialled.
    opening: Option<Opening>,
    /// It was not dialled, and has not shown that it wants anything: over a stream its handshake does, over datagrams its
    /// first message.
    stranger: bool,
    /// What the peer's method numbers mean here.
    methods: Vec<Method>,
    /// When the batch that is handled arrived.
    now: Option<Instant>,
    /// Payload sizes of requests that left the queue in this batch.
    granted: Vec<usize>,
    closed: Option<String>,
}

/// A method that the peer has named.
struct Method {
    definition: Arc<MethodDefinition>,
    served: Option<Arc<Registered>>,
}

impl Dispatcher {
    pub(crate) fn new(
        endpoint: Arc<Inner>,
        dialled: Option<Address>,
        opened: Option<oneshot::Sender<Result<(), ConnectError>>>,
        opening: Option<Opening>,
    ) -> Self {
        let stranger = opening.is_none();
        Self {
            endpoint,
            dialled,
            opened,
            opening,
            stranger,
            methods: Vec::new(),
            now: None,
            granted: Vec::new(),
            closed: None,
        }
    }

    /// The connection has ended; whoever waits for its handshake learns why. Returns the reason in words: the peer's own
    /// where it gave one.
    pub(crate) fn ended(&mut self, end: Result<String, ConnectionError>) -> String {
        let reason = end.as_ref().map_or_else(ToString::to_string, Clone::clone);
        let reason = self.closed.clone().unwrap_or(reason);
        self.failed(end);
        reason
    }

    /// The same if nobody is there; the network may have said so.
    #[cold]
    pub(crate) fn unreachable(&mut self, why: String, is_told: bool) -> String {
        if let (Some(opened), Some(server)) = (self.opened.take(), self.dialled.clone()) {
            let reason = why.clone();
            let error = match is_told {
                true => ConnectError::Refused { server, reason },
                false => ConnectError::Unreachable { server, reason },
            };
            // Nobody may be waiting any more.
            let _ = opened.send(Err(error));
        }
        why
    }

    #[cold]
    #[inline(never)]
    fn failed(&mut self, end: Result<String, ConnectionError>) {
        let (Some(opened), Some(server)) = (self.opened.take(), self.dialled.clone()) else {
            return;
        };
        let error = match (self.closed.take(), end) {
            (Some(reason), _) | (None, Ok(reason)) => ConnectError::Closed { server, reason },
            (None, Err(source)) => ConnectError::Handshake { server, source },
        };
        // Nobody may be waiting any more.
        let _ = opened.send(Err(error));
    }

    fn handle_request(&mut self, peer: &Arc<Peer>, request: &mut Request) {
        self.endpoint.meters.requests_received.add();
        let MethodRef::Number(number) = request.method else {
            return;
        };
        let payload = std::mem::take(&mut request.payload);
        // Whatever becomes of the request: one that nobody reads is stopped.
        let body = match request.options {
            None => None,
            Some(_) => self.body_of(request, peer),
        };
        if self.must_be_sealed(number) && !self.endpoint.takes(request, peer) {
            self.granted.push(payload.len());
            return;
        }
        let size = payload.len();
        let arrived = *self.now.get_or_insert_with(Instant::now);
        let Some(method) = self.methods.get_mut(number as usize) else {
            return;
        };
        let Some(node) = peer.node() else {
            return; // messages come only after the handshake
        };
        let admission = self.endpoint.liveness.admit(request, peer, node, arrived);
        let (ticket, refusal) = match admission {
            Admission::Accepted(ticket) => (Some(ticket), None),
            Admission::Refused(status) => (None, Some(status)),
            Admission::Duplicate => {
                self.endpoint.meters.requests_dropped.add();
                self.granted.push(size);
                return;
            }
        };
        // One with settings of its own may have to be looked at sooner.
        match request.options {
            None => self.endpoint.note_request(arrived),
            Some(_) => self.endpoint.look_again(),
        }
        let mut queued = false;
        let served = match refusal {
            None if self.endpoint.is_draining() => Err(shutting_down()),
            None => method.served(&self.endpoint),
            Some(status) => Err(status),
        };
        let handling = Handling::new(
            Arc::clone(&self.endpoint),
            Arc::clone(peer),
            Arc::clone(&method.definition),
            request,
            ticket,
            arrived,
        );
        if let Some(body) = body {
            handling.attach(body);
        }
        match served {
            Ok(served) => match self.endpoint.admit(&handling, &served.handler, payload) {
                Admitted::Run(job) => job.start(),
                Admitted::Queued(_) => queued = true,
                Admitted::Refused(_) => {}
            },
            Err(status) if ticket.is_some() => queued = method.unserved(handling, payload, &status),
            Err(status) => handling.fail(&status),
        }
        // What waits in the queue is credited when it leaves it, what goes down a line when that is done.
        if !queued {
            self.granted.push(size);
        }
    }

    /// Whoever has a cluster's key seals what it passes on: so nothing goes down a line in the cluster's name that did not
    /// come from it.
    fn must_be_sealed(&self, number: u32) -> bool {
        let config = &self.endpoint.config;
        let is_line = || {
            let method = self.methods.get(number as usize);
            method.is_some_and(Method::is_line)
        };
        config.require_seals || (!config.cluster_keys.is_empty() && is_line())
    }

    #[cold]
    #[inline(never)]
    fn body_of(&self, request: &Request, peer: &Arc<Peer>) -> Option<Box<Following>> {
        let number = request.options.as_ref()?.body?;
        let inbound = peer.open_body(number);
        let limit = self.endpoint.config.limits.call;
        let received = Received::new(inbound, Arc::clone(peer), number, limit);
        Some(Box::new(Following::new(received)))
    }

    fn handle_message(&mut self, peer: &Arc<Peer>, message: &mut Message) {
        if self.stranger && !self.hear(peer, message) {
            return;
        }
        match message {
            Message::Request(request) => self.handle_request(peer, request),
            Message::Response(_) | Message::End(_) | Message::Trace(_) | Message::Pong(_) => {
                self.endpoint.handle_answer(Some(peer), message);
            }
            Message::Ping(ping) => self.endpoint.handle_ping(peer, ping),
        }
    }

    /// A message above the limit: a request gets a status, of an answer the application gets one in its place.
    #[cold]
    #[inline(never)]
    fn handle_too_large(&mut self, peer: &Arc<Peer>, message: &mut Message, size: u64) {
        let limit = self.endpoint.config.limits.message;
        let status = |what: &str| {
            let message = format!("{what} of {size} bytes: at most {limit} are taken");
            Status::new(Code::ResourceExhausted, message).by(self.endpoint.address.as_ref())
        };
        match message {
            Message::Request(request) => {
                drop(self.body_of(request, peer));
                let status = status("a request");
                self.endpoint.answer_stranger(peer, request, &status);
            }
            Message::Response(response) => {
                response.status = true;
                response.payload = status("an answer").to_payload();
                self.endpoint.handle_answer(Some(peer), message);
            }
            _ => {}
        }
    }
}

#[cold]
pub(crate) fn shutting_down() -> Status {
    Status::new(Code::Unavailable, "this server is shutting down")
}

impl Method {
    /// The handler, looked up at first use: a service may be registered after the connection was opened.
    fn served(&mut self, endpoint: &Inner) -> Result<Arc<Registered>, Status> {
        if let Some(served) = &self.served {
            return Ok(Arc::clone(served));
        }
        self.look_up(endpoint)
    }

    /// A request for what no handler here is for, or not now: one that goes down a line goes on all the same. Whether it
    /// is credited later.
    #[cold]
    #[inline(never)]
    fn unserved(&self, handling: Arc<Handling>, payload: bytes::Bytes, status: &Status) -> bool {
        if !self.is_line() {
            handling.fail(status);
            return false;
        }
        match pipeline::definition().check(&self.definition) {
            Ok(()) => pipeline::arrive(handling, &payload),
            Err(status) => {
                handling.fail(&status);
                false
            }
        }
    }

    fn is_line(&self) -> bool {
        pipeline::is_line(&self.definition)
    }

    #[cold]
    #[inline(never)]
    fn look_up(&mut self, endpoint: &Inner) -> Result<Arc<Registered>, Status> {
        let served = endpoint.method(&self.definition)?;
        self.served = Some(Arc::clone(&served));
        Ok(served)
    }
}

impl Dispatch for Dispatcher {
    fn handle(&mut self, peer: &Arc<Peer>, event: &mut Event) {
        match event {
            Event::Message(message) => self.handle_message(peer, message),
            Event::TooLarge { message, size } => self.handle_too_large(peer, message, *size),
            event => self.handle_rare(peer, event),
        }
    }

    fn batch_done(&mut self, peer: &Arc<Peer>) {
        self.now = None;
        if !self.granted.is_empty() {
            self.endpoint.pool.has_brought(peer);
            peer.grant_requests(self.granted.drain(..));
        }
    }
}

impl Dispatcher {
    /// The first message over datagrams: with it a peer is no stranger any more. If there is no room for it, its request gets a
    /// status, since the message counts as received.
    #[cold]
    #[inline(never)]
    fn hear(&mut self, peer: &Arc<Peer>, message: &mut Message) -> bool {
        let Err(full) = self.endpoint.settle(peer) else {
            self.stranger = false;
            return true;
        };
        if let Message::Request(request) = message {
            self.granted.push(request.payload.len());
            let status = Status::new(Code::Unavailable, full);
            let status = status.by(self.endpoint.address.as_ref());
            self.endpoint.answer_stranger(peer, request, &status);
        }
        false
    }

    /// What concerns the connection and not a call.
    #[cold]
    #[inline(never)]
    fn handle_rare(&mut self, peer: &Arc<Peer>, event: &mut Event) {
        match event {
            Event::Opened(_) => {
                if self.stranger && !peer.is_over_datagrams() {
                    if let Err(full) = self.endpoint.settle(peer) {
                        return peer.refuse(&full);
                    }
                    self.stranger = false;
                }
                self.endpoint.connection_opened(peer, self.dialled.as_ref());
                self.opening = None;
                if let Some(opened) = self.opened.take() {
                    // Nobody may be waiting any more.
                    let _ = opened.send(Ok(()));
                }
            }
            Event::Method(_, definition) => {
                self.methods.push(Method {
                    definition: Arc::new(definition.clone()),
                    served: None,
                });
            }
            Event::GoingAway { .. } => {
                tracing::debug!(?peer, "the peer is going away");
                peer.set_leaving();
            }
            Event::Body(number, what) => {
                let what = std::mem::replace(what, BodyEvent::Whole);
                peer.handle_body(*number, what);
            }
            Event::Credit | Event::Message(_) | Event::TooLarge { .. } => {}
            Event::Closed(reason) => {
                tracing::debug!(?peer, reason, "the peer closes the connection");
                self.closed = Some(std::mem::take(reason));
            }
        }
    }
}
