//! Initial requests that are sent again (thesis 7.3): who keeps them, where they go, how it ends.
//!
//! The initiator keeps each initial request until the call ends, within a limit a call and one an endpoint. What its watch finds
//! lost is executed again from its root. The second execution sends what the first one did, under the same ids: what has arrived
//! is not delivered twice.

use std::sync::Arc;
use std::time::Duration;

use super::Endpoint;
use super::client::{CallContext, ClientAction, ClientCall};
use super::conn::{Cargo, OutRequest, Parcel};
use super::probe::Probe;
use crate::call::watch::{FailureKind, Location, Loss};
use crate::connection::MethodDefinition;
use crate::error::{AttemptsFailed, FailedAttempt, Failure, NoMore};
use crate::wire::{PingSettings, Request};
use crate::{Address, ConnId, RequestId};

/// What a kept request takes besides its payload, in bytes.
const KEPT_COST: u64 = 512;

/// Most times that the requests of a call are sent again.
const MOST: u32 = 32;

/// Sends initial requests again below which something was lost: only for methods whose handlers, and those they delegate to, are
/// *deterministic*: executed again, they send the same messages to the same methods in the same order, whatever has changed since.
///
/// Then the call goes on where it was: answers that have arrived are not delivered again. Handlers run at most once in each attempt.
/// If a second execution contradicts the first, the call fails ([`FailureKind::Diverged`]). It is not sent again once a status has
/// arrived, whose reason need not come again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resend {
    times: u32,
    alternates: Vec<Address>,
}

impl Resend {
    /// Up to so many times, 1 to 32, all initial requests of a call together.
    pub fn deterministic(times: u32) -> Self {
        Self {
            times: times.clamp(1, MOST),
            alternates: Vec::new(),
        }
    }

    /// To these servers in turn, after the one that a request was for.
    #[must_use]
    pub fn alternates(mut self, servers: impl IntoIterator<Item = Address>) -> Self {
        self.alternates = servers.into_iter().collect();
        self
    }
}

/// What a call that may be sent again knows of that.
#[derive(Debug)]
pub(super) struct Resending {
    policy: Resend,
    kept: Vec<KeptRequest>,
    bytes: u64,
    /// There was no room for all of them.
    unkept: bool,
    /// How many times requests were sent again.
    times: u32,
    /// Connections that earlier attempts went out on: what comes from there need not show the token.
    pub(super) earlier: Vec<ConnId>,
    failed: Vec<FailedAttempt>,
}

#[derive(Debug)]
struct KeptRequest {
    request: Request,
    method: Arc<MethodDefinition>,
    server: Address,
    /// How many servers it has been tried at.
    turn: usize,
    /// Until when it is tried again, once it was to be sent again or could not be sent.
    until: Option<Duration>,
}

/// An initial request that is sent again.
#[derive(Debug)]
pub struct SentAgain {
    /// The message, but for what it says of the oldest call.
    pub request: Request,
    /// What it calls.
    pub method: Arc<MethodDefinition>,
    /// Where to.
    pub server: Address,
}

impl Resending {
    pub(super) fn new(policy: Resend) -> Self {
        Self {
            policy,
            kept: Vec::new(),
            bytes: 0,
            unkept: false,
            times: 0,
            earlier: Vec::new(),
            failed: Vec::new(),
        }
    }

    /// How many times requests were sent again.
    pub(super) fn resent(&self) -> u32 {
        self.times
    }

    /// How many times requests may be sent again.
    pub(super) fn times(&self) -> u32 {
        match self.unkept {
            true => 0,
            false => self.policy.times,
        }
    }

    /// Keeps a request, if there is room for it: in so many bytes of the call, and so many of all. What it takes; without room,
    /// nothing of the call is sent again any more.
    fn keep(
        &mut self,
        request: &mut Request,
        (server, method): (&Address, &Arc<MethodDefinition>),
        most: u64,
        room: u64,
    ) -> Option<u64> {
        let size = request.payload.len() as u64 + KEPT_COST;
        self.unkept |= self.bytes + size > most || size > room;
        if self.unkept {
            return None;
        }
        self.bytes += size;
        request.options.get_or_insert_default().repeatable = true;
        let mut copy = request.clone();
        crate::detach::detach(&mut copy.payload);
        self.kept.push(KeptRequest {
            request: copy,
            method: Arc::clone(method),
            server: server.clone(),
            turn: 0,
            until: None,
        });
        Some(size)
    }

    /// What was kept is not needed any more: how much that was.
    pub(super) fn release(&mut self) -> u64 {
        self.kept = Vec::new();
        std::mem::take(&mut self.bytes)
    }
}

impl KeptRequest {
    /// The server whose turn it is, and whether it is the last one of a round.
    fn server(&self, alternates: &[Address]) -> (Address, bool) {
        let turn = self.turn % (alternates.len() + 1);
        let server = match turn.checked_sub(1) {
            Some(other) => alternates[other].clone(),
            None => self.server.clone(),
        };
        (server, turn == alternates.len())
    }
}

impl ClientCall {
    /// What was lost below an initial request is to be executed again.
    #[cold]
    pub(super) fn begin_again(
        &mut self,
        id: RequestId,
        attempt: u32,
        failure: Box<Loss>,
        context: &impl CallContext,
    ) {
        let timeout = self.ping(context.config().ping).bounded().timeout;
        let root = self.roots.iter_mut().find(|root| root.request == id);
        let resending = self.resending.as_deref_mut();
        let (Some(root), Some(resending)) = (root, resending) else {
            return self.lose(failure, context);
        };
        // One with a body is not kept: its body can be read once.
        let Some(kept) = kept(&mut resending.kept, id) else {
            return self.lose(failure, context);
        };
        root.lost = false;
        let (server, conn) = (root.server.clone(), root.conn.take());
        kept.turn += 1;
        kept.until = Some(context.now().saturating_add(timeout));
        kept.request.options.get_or_insert_default().attempt = attempt;
        resending.times += 1;
        resending.earlier.extend(conn);
        let error = format!("request {} {}", failure.request, failure.kind);
        resending.failed.push(FailedAttempt { server, error });
        self.push(ClientAction::ExecutedAgain(conn));
        self.send_kept(id, context);
    }

    /// Sends a kept request to the server whose turn it is.
    pub fn send_kept(&mut self, id: RequestId, context: &impl CallContext) {
        if self.has_ended() {
            return;
        }
        let Some(resending) = self.resending.as_deref_mut() else {
            return;
        };
        let Some(kept) = kept(&mut resending.kept, id) else {
            return;
        };
        let (server, _) = kept.server(&resending.policy.alternates);
        let mut request = kept.request.clone();
        request.deadline = Some(self.deadline.saturating_sub(context.raw()));
        let method = Arc::clone(&kept.method);
        if let Some(root) = self.root(id) {
            root.server = server.clone();
        }
        let at = Location {
            address: Some(server.clone()),
            node: None,
        };
        if let Some(watch) = self.initiator.watch_mut() {
            watch.sent(id, at, context.now());
        }
        self.push(ClientAction::SendAgain(Box::new(SentAgain {
            request,
            method,
            server,
        })));
    }

    /// An initial request could not be sent. If it is kept it is tried at the next server, at each of them once a ping period,
    /// until the ping timeout is over: one of them may be about to come back.
    pub(super) fn try_elsewhere(&mut self, id: RequestId, context: &impl CallContext) -> bool {
        let PingSettings { period, timeout } = self.ping(context.config().ping).bounded();
        let now = context.now();
        if self.has_ended() {
            return false;
        }
        let Some(resending) = self.resending.as_deref_mut() else {
            return false;
        };
        let Some(kept) = kept(&mut resending.kept, id) else {
            return false;
        };
        let (_, is_last) = kept.server(&resending.policy.alternates);
        let until = *kept.until.get_or_insert(now.saturating_add(timeout));
        kept.turn += 1;
        if now >= until {
            return false;
        }
        if is_last {
            let again = context.raw().saturating_add(period);
            self.push(ClientAction::SendLater(id, again));
        } else {
            self.send_kept(id, context);
        }
        true
    }
}

fn kept(all: &mut [KeptRequest], id: RequestId) -> Option<&mut KeptRequest> {
    all.iter_mut().find(|kept| kept.request.id.path == id.path)
}

impl<P: Probe> Endpoint<P> {
    /// Keeps an initial request that may have to be sent again, if there is room.
    #[cold]
    pub(super) fn keep(
        &mut self,
        sequence: u64,
        request: &mut Request,
        to: (&Address, &Arc<MethodDefinition>),
    ) {
        let limits = &self.config.limits;
        let room = limits.kept.saturating_sub(self.kept);
        let call = self.calls.get_mut(sequence);
        let Some(resending) = call.and_then(|call| call.client.resending.as_deref_mut()) else {
            return;
        };
        match resending.keep(request, to, limits.kept_call, room) {
            Some(size) => self.kept += size,
            None => {
                self.metrics.resends_unkept += 1;
                self.kept -= resending.release();
            }
        }
    }

    /// A kept request is to be sent, if its turn has come.
    pub(super) fn send_kept(&mut self, sequence: u64, id: RequestId) {
        self.tell(sequence, |call, context| call.send_kept(id, context));
    }

    pub(super) fn send_again(&mut self, again: SentAgain) {
        let SentAgain {
            mut request,
            method,
            server,
        } = again;
        request.oldest = self.calls.oldest();
        self.post(Parcel::new(Cargo::Request(OutRequest {
            request,
            server,
            method,
            body: None,
            delegated: None,
            unless_sent: None,
        })));
    }
}

impl Resending {
    /// How a call fails of which so many statuses have arrived.
    pub(super) fn failure(&mut self, mut failure: Failure, statuses: u64) -> Failure {
        if let Failure::Lost(loss) = &mut failure
            && let FailureKind::Violation(violation) = loss.kind
            && self.times > 0
        {
            loss.kind = FailureKind::Diverged(violation);
        }
        if !failure.is_loss() {
            return failure;
        }
        let why = match () {
            () if self.unkept => NoMore::NotKept,
            () if statuses > 0 => NoMore::Status,
            () => NoMore::Limit,
        };
        Failure::Attempts(Box::new(AttemptsFailed {
            made: self.times + 1,
            why,
            untold: 0,
            before: std::mem::take(&mut self.failed),
            last: failure.into(),
        }))
    }
}
