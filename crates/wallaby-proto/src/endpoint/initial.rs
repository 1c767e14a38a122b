//! Initial requests: how they leave, and what becomes of them.

use std::sync::Arc;

use crate::connection::{Mark, MethodDefinition, SendRefusal};
use crate::{Address, ConnId, RequestId};
use bytes::Bytes;

use super::Endpoint;
use super::bodies::OutBody;
use super::call_options::CallOptions;
use super::conn::{Cargo, OutRequest, Parcel};
use super::event::CallKey;
use super::probe::{Note, Probe};
use super::streams::MarkOwner;
use crate::error::{ConnectError, Failure};

/// An initial request of a call.
#[derive(Debug)]
pub struct NewInitial<'a> {
    /// The server.
    pub server: &'a Address,
    /// The method.
    pub method: &'a Arc<MethodDefinition>,
    /// The arguments.
    pub payload: Bytes,
    /// Metadata, a continuation and a durable id of its own in place of the call's: nothing else of it counts.
    pub own: Option<&'a CallOptions>,
    /// Whether a body follows it, which is to be [written](Endpoint::write_body). It can be read once, so the request is sent once,
    /// whatever the call says of [`Resend`](super::Resend).
    pub followed: bool,
}

impl<'a> NewInitial<'a> {
    /// It has nothing of its own, and nothing follows it.
    pub fn new(server: &'a Address, method: &'a Arc<MethodDefinition>, payload: Bytes) -> Self {
        Self {
            server,
            method,
            payload,
            own: None,
            followed: false,
        }
    }
}

impl<P: Probe> Endpoint<P> {
    /// Sends an initial request of a call.
    ///
    /// # Errors
    ///
    /// If it cannot be sent, or the call is closed or has ended. The call has failed then.
    pub fn send(
        &mut self,
        key: CallKey,
        server: &Address,
        method: &Arc<MethodDefinition>,
        payload: Bytes,
    ) -> Result<RequestId, Failure> {
        let (request, _) = self.send_with(key, NewInitial::new(server, method, payload))?;
        Ok(request)
    }

    /// The same with what it has of its own, and a body.
    ///
    /// # Errors
    ///
    /// As [`send`](Self::send). That bodies do not go over `udp:` is told when a session to the server is open.
    pub fn send_with(
        &mut self,
        key: CallKey,
        new: NewInitial<'_>,
    ) -> Result<(RequestId, Option<OutBody>), Failure> {
        let request = self.begin_initial(key, new.server, new.method)?;
        let body = new.followed.then(|| self.bodies.begin_root(key.0));
        if let Err(failure) = self.try_initial(key, request, new, body) {
            if let Some(body) = body {
                self.forget_body(body);
            }
            self.give_initial_up(key, request, failure)?;
        }
        Ok((request, body))
    }

    /// Sends the only initial request of a call, which gets all of its budgets, and closes the call.
    ///
    /// # Errors
    ///
    /// As [`send_with`](Self::send_with). The call's outcome says the same, as that of any other that has failed: who does not want to be told twice
    /// [forgets](Self::forget) it.
    pub fn send_only(
        &mut self,
        key: CallKey,
        new: NewInitial<'_>,
    ) -> Result<(RequestId, Option<OutBody>), Failure> {
        self.share_among(key, 1);
        let sent = self.send_with(key, new);
        self.close_call(key);
        sent
    }

    /// Why a call that is over takes no requests.
    fn takes_none(&self) -> Failure {
        match self.is_ending() {
            true => self.why_closed(),
            false => Failure::CallClosed,
        }
    }

    /// A place for an initial request among those of its call.
    fn begin_initial(
        &mut self,
        key: CallKey,
        server: &Address,
        method: &Arc<MethodDefinition>,
    ) -> Result<RequestId, Failure> {
        let none = self.takes_none();
        let call = self.calls.get_mut(key.0).ok_or(none)?;
        let request = call.client.add_root(server, method);
        if request.is_err() {
            self.follow(key.0);
        }
        request
    }

    /// An initial request cannot be sent, as is known at once. A call that goes on without what is lost learns it by a status,
    /// when it is known whether others of its requests are sent.
    #[cold]
    fn give_initial_up(
        &mut self,
        key: CallKey,
        request: RequestId,
        failure: Failure,
    ) -> Result<(), Failure> {
        let call = self.calls.get(key.0);
        if call.is_some_and(|call| call.client.tolerant.is_some()) {
            self.unsent.push((key.0, request, failure));
            return Ok(());
        }
        self.end_call(key.0, Err(failure.clone()));
        Err(failure)
    }

    fn try_initial(
        &mut self,
        key: CallKey,
        id: RequestId,
        new: NewInitial<'_>,
        body: Option<OutBody>,
    ) -> Result<(), Failure> {
        let NewInitial {
            server,
            method,
            payload,
            own,
            ..
        } = new;
        let size = payload.len() as u64;
        let not_sent = |error| Failure::NotSent { request: id, error };
        if !self.config.schemes.lead_to(server) {
            let server = server.clone();
            return Err(not_sent(ConnectError::NoTransport { server }));
        }
        let limit = self.config.longest_to(server);
        if size > limit {
            let server = server.clone();
            return Err(Failure::TooLarge {
                request: id,
                server,
                size,
                limit,
            });
        }
        if !self.config.dial_policy.permits_call(server) {
            let server = server.clone();
            self.metrics.dials_forbidden += 1;
            return Err(not_sent(ConnectError::Forbidden { server }));
        }
        let oldest = self.calls.oldest();
        let none = self.takes_none();
        let (call, context) = self.call(key.0).ok_or(none)?;
        let mut request = call.initial(id, payload, own, &context);
        request.oldest = oldest;
        if body.is_some() {
            request.options.get_or_insert_default().body = Some(0); // its number is the connection's business
        } else if call.resending.is_some() {
            self.keep(key.0, &mut request, (server, method));
        }
        if let Some(id) = self.conn_at(server)
            && self
                .conns
                .get(id)
                .is_some_and(|conn| !conn.holds_requests(body.is_some()))
        {
            match self.send_request(id, &mut request, method, None) {
                Ok(mark) => {
                    self.root_sent(key.0, request.id, id, mark);
                    self.body_sent(body, id, &request);
                    return Ok(());
                }
                Err(SendRefusal::Blocked | SendRefusal::NotOpen) => {}
                Err(refusal) => return Err(refused(request.id, server, refusal)),
            }
        }
        let payload = request.payload.len();
        if !self.queue_room.has_room(payload) {
            self.drop_ended_requests();
        }
        if !self.queue_room.has_room(payload) {
            let reason = "too much waits to be sent already".into();
            return Err(Failure::Refused {
                request: id,
                server: server.clone(),
                reason,
            });
        }
        self.post(Parcel::new(Cargo::Request(OutRequest {
            request,
            server: server.clone(),
            method: Arc::clone(method),
            body,
            delegated: None,
            unless_sent: None,
        })));
        Ok(())
    }

    /// Whether anything of a call may have left this endpoint.
    pub fn was_sent(&self, key: CallKey) -> bool {
        let call = self.calls.peek(key.0);
        call.is_some_and(|call| call.client.was_sent())
    }

    /// Whether a connection has taken this initial request of a call, or the call goes on without. If not,
    /// [`Output::Sent`](super::Output::Sent) tells when one is taken, or the call has ended.
    pub fn is_sent(&mut self, key: CallKey, request: RequestId) -> bool {
        let call = self.calls.kept(key.0);
        call.is_none_or(|call| call.client.is_sent(request))
    }

    /// A connection has taken an initial request.
    pub(super) fn root_sent(&mut self, sequence: u64, request: RequestId, id: ConnId, mark: Mark) {
        let Some(conn) = self.conns.get_mut(id) else {
            return;
        };
        let node = conn.node();
        let Some((call, context)) = self.call(sequence) else {
            return;
        };
        let sent = (id, node);
        let has_news = call.root_sent(request, sent, mark, &context);
        if let Some(conn) = self.conns.get_mut(id) {
            conn.carried_calls = true;
            conn.busy += 1;
        }
        if has_news {
            self.follow(sequence);
        }
        if let Mark::Parts(number) = mark {
            self.note_large(id, number, MarkOwner::Root(sequence, request));
        }
    }

    /// The last part of an initial request has been added to the output.
    pub(super) fn root_left(&mut self, sequence: u64, request: RequestId, mark: u64) {
        if let Some(call) = self.calls.get_mut(sequence) {
            call.client.root_left(request, mark);
        }
    }

    /// An initial request certainly reaches nobody.
    pub(super) fn not_sent(&mut self, sequence: u64, request: RequestId, error: ConnectError) {
        if self.is_ending() {
            return self.end_call(sequence, Err(self.why_closed()));
        }
        if let Some((call, context)) = self.call(sequence) {
            call.not_sent(request, error, &context);
            let id = self.call_id(CallKey(sequence));
            self.probe.notes(Note::Undelivered(id, request));
            self.follow(sequence);
        }
    }

    /// The initial requests of which it was known at once that they cannot be sent.
    pub(super) fn tell_of_unsent(&mut self) {
        while let Some((sequence, request, failure)) = self.unsent.pop() {
            self.tell(sequence, |call, _| call.root_lost(request, failure));
        }
    }

    /// A connection does not take an initial request at all.
    pub(super) fn root_refused(
        &mut self,
        sequence: u64,
        request: RequestId,
        to: &Address,
        refusal: SendRefusal,
    ) {
        let failure = refused(request, to, refusal);
        self.tell(sequence, |call, _| call.root_lost(request, failure));
    }
}

fn refused(request: RequestId, to: &Address, refusal: SendRefusal) -> Failure {
    let server = to.clone();
    match refusal {
        SendRefusal::TooLarge { size, limit } => Failure::TooLarge {
            request,
            server,
            size,
            limit,
        },
        SendRefusal::NotUnderstood { what } => Failure::NotUnderstood {
            request,
            server,
            what,
        },
        refusal => Failure::Refused {
            request,
            server,
            reason: refusal.to_string(),
        },
    }
}
