//! Initial requests that are sent again (thesis 7.3): who keeps them, where they go, how it ends.
//!
//! The initiator keeps each initial request until the call ends, within a limit a call and one an endpoint. What its watch finds
//! lost is executed again from its root. The second execution sends what the first one did, under the same ids: what has arrived
//! is not delivered twice.

use std::sync::Arc;
use std::time::Duration;

use super::conn::{ConnId, Parcel, Towards};
use super::event::Outcome;
use super::probe::Probe;
use super::{Alarm, Endpoint};
use crate::call::watch::{FailureKind, Location, Loss};
use crate::connection::MethodDefinition;
use crate::error::{AttemptsFailed, FailedAttempt, Failure, NoMore};
use crate::wire::{Message, Request};
use crate::{Address, RequestId};

/// What a kept request takes besides its payload, in bytes.
const KEPT_COST: u64 = 512;

/// Most times that the requests of a call are sent again.
const MOST: u32 = 32;

/// Sends initial requests again below which something was lost: only for methods whose handlers, and those they delegate to, are
/// *deterministic*: executed again, they send the same messages to the same methods in the same order, whatever has changed since.
///
/// Then the call goes on where it was: answers that have arrived are not delivered again. Handlers run at most once in each attempt.
/// If a second execution contradicts the first, the call fails ([`Failure::Diverged`]). It is not sent again once a status has
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

    fn kept(&mut self, id: RequestId) -> Option<&mut KeptRequest> {
        let mut kept = self.kept.iter_mut();
        kept.find(|kept| kept.request.id.path == id.path)
    }

    /// The server whose turn it is, and whether it is the last one of a round.
    fn server(&self, kept: &KeptRequest) -> (Address, bool) {
        let alternates = &self.policy.alternates;
        let turn = kept.turn % (alternates.len() + 1);
        let server = match turn.checked_sub(1) {
            Some(other) => alternates[other].clone(),
            None => kept.server.clone(),
        };
        (server, turn == alternates.len())
    }
}

impl<P: Probe> Endpoint<P> {
    /// Keeps an initial request that may have to be sent again, if there is room.
    #[cold]
    pub(super) fn keep(
        &mut self,
        sequence: u64,
        request: &mut Request,
        (server, method): (&Address, &Arc<MethodDefinition>),
    ) {
        let limits = &self.config.limits;
        let Some(resending) = self
            .calls
            .get_mut(sequence)
            .and_then(|call| call.resending())
        else {
            return;
        };
        let size = request.payload.len() as u64 + KEPT_COST;
        let fits = resending.bytes + size <= limits.kept_call && self.kept + size <= limits.kept;
        if resending.unkept || !fits {
            resending.unkept = true;
            self.metrics.resends_unkept += 1;
            return self.release_kept(sequence);
        }
        (resending.bytes, self.kept) = (resending.bytes + size, self.kept + size);
        request.options.get_or_insert_default().repeatable = true;
        let mut copy = request.clone();
        crate::detach::detach(&mut copy.payload);
        resending.kept.push(KeptRequest {
            request: copy,
            method: Arc::clone(method),
            server: server.clone(),
            turn: 0,
            until: None,
        });
    }

    /// What was kept is not needed any more.
    pub(super) fn release_kept(&mut self, sequence: u64) {
        let call = self.calls.get_mut(sequence);
        if let Some(resending) = call.and_then(|call| call.resending()) {
            resending.kept = Vec::new();
            self.kept -= std::mem::take(&mut resending.bytes);
        }
    }

    /// What was lost below an initial request is to be executed again.
    #[cold]
    pub(super) fn begin_again(
        &mut self,
        sequence: u64,
        id: RequestId,
        attempt: u32,
        failure: Box<Loss>,
    ) {
        let until = self.now.saturating_add(self.timeout_of(sequence));
        let Some(call) = self.calls.get_mut(sequence) else {
            return;
        };
        let before = call.root(id).map(|root| {
            root.lost = false;
            (root.server.clone(), root.session.take())
        });
        let resending = call.resending();
        let (Some((server, conn)), Some(resending)) = (before, resending) else {
            return self.lose_call(sequence, failure);
        };
        // One with a body is not kept: its body can be read once.
        if resending.kept(id).is_none() {
            return self.lose_call(sequence, failure);
        }
        resending.times += 1;
        self.metrics.resends += 1;
        resending.earlier.extend(conn);
        let error = format!("request {} {}", failure.request, failure.kind);
        resending.failed.push(FailedAttempt { server, error });
        let Some(kept) = resending.kept(id) else {
            return;
        };
        kept.turn += 1;
        kept.until = Some(until);
        kept.request.options.get_or_insert_default().attempt = attempt;
        if let Some(conn) = conn {
            self.needs_less(conn);
        }
        self.send_kept(sequence, id);
    }

    /// Sends a kept request to the server whose turn it is.
    pub(super) fn send_kept(&mut self, sequence: u64, id: RequestId) {
        let (raw, now, oldest) = (self.raw, self.now, self.calls.oldest());
        let Some(call) = self.calls.get_mut(sequence).filter(|call| !call.ended) else {
            return;
        };
        let deadline = call.deadline.saturating_sub(raw);
        let Some(resending) = call.resending() else {
            return;
        };
        let Some(kept) = resending
            .kept
            .iter()
            .find(|kept| kept.request.id.path == id.path)
        else {
            return;
        };
        let (server, _) = resending.server(kept);
        let (mut request, method) = (kept.request.clone(), Arc::clone(&kept.method));
        (request.deadline, request.oldest) = (Some(deadline), oldest);
        if let Some(root) = call.root(id) {
            root.server = server.clone();
        }
        let at = Location {
            address: Some(server.clone()),
            node: None,
        };
        if let Some(watch) = &mut call.watch {
            watch.sent(&mut call.initiator, id, at, now);
        }
        let mut parcel = Parcel::new(Message::Request(request), Towards::Server(server));
        parcel.method = Some(method);
        self.post(parcel);
    }

    /// An initial request could not be sent. If it is kept it is tried at the next server, at each of them once a ping period,
    /// until the ping timeout is over: one of them may be about to come back.
    pub(super) fn try_elsewhere(&mut self, sequence: u64, id: RequestId) -> bool {
        let (now, timeout) = (self.now, self.timeout_of(sequence));
        let period = self.period_of(sequence);
        let Some(call) = self.calls.get_mut(sequence).filter(|call| !call.ended) else {
            return false;
        };
        let Some(resending) = call.resending().filter(|resending| !resending.unkept) else {
            return false;
        };
        let Some(position) =
            (resending.kept.iter()).position(|kept| kept.request.id.path == id.path)
        else {
            return false;
        };
        let (_, is_last) = resending.server(&resending.kept[position]);
        let kept = &mut resending.kept[position];
        let until = *kept.until.get_or_insert(now.saturating_add(timeout));
        kept.turn += 1;
        if now >= until {
            return false;
        }
        if is_last {
            let again = (self.raw.saturating_add(period), Alarm::Resend(sequence, id));
            self.alarms.insert(again);
        } else {
            self.send_kept(sequence, id);
        }
        true
    }

    /// A call has ended that may have been sent again: its failure says what became of that.
    #[cold]
    pub(super) fn end_resending(&mut self, sequence: u64) {
        self.release_kept(sequence);
        if let Some(call) = self.calls.get_mut(sequence)
            && let Some(resending) = &mut call.resending
            && let Some(Outcome::Failed(failure)) = &mut call.outcome
        {
            let statuses = call.initiator.responses().1;
            **failure = resending.failure((**failure).clone(), statuses);
        }
    }
}

impl Resending {
    /// How a call fails of which so many statuses have arrived.
    fn failure(&mut self, failure: Failure, statuses: u64) -> Failure {
        let violation = match &failure {
            Failure::Violation(violation) => Some(*violation),
            Failure::Lost(loss) => match loss.kind {
                FailureKind::Violation(violation) => Some(violation),
                _ => None,
            },
            _ => None,
        };
        match violation {
            Some(violation) if self.times > 0 => return Failure::Diverged(violation),
            None if failure.is_loss() => {}
            _ => return failure,
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
