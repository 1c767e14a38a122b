//! How initial requests of a call are sent again (thesis 7.3): who keeps them, where they go, how it ends.
//!
//! The initiator keeps each initial request until the call ends, within a limit a call and one an endpoint
//! ([`crate::Limits`]). What its watch finds lost is executed again from its root. The second execution sends what the first
//! one did, under the same ids: what has arrived is not delivered twice.

use std::sync::Arc;

use wallaby_proto::call::watch::{Failure as Loss, FailureKind, Location};
use wallaby_proto::connection::MethodDefinition;
use wallaby_proto::wire::Request;
use wallaby_proto::{Address, RequestId};

use super::{CallShared, State};
use crate::error::{AttemptsFailed, FailedAttempt, Failure, NoMore};
use crate::timer::{self, Instant};

/// What a kept request takes besides its payload.
const KEPT_COST: u64 = 512;

/// Most times that the requests of a call are sent again.
const MOST: u32 = 32;

/// Sends initial requests again below which something was lost: only for methods whose handlers, and those they delegate
/// to, are *deterministic*. See [`crate::Client::resend`].
///
/// That means: executed again, they send the same messages to the same methods in the same order, whatever has changed
/// since. Then the call goes on where it was: answers that have arrived, also those that were delivered to the application,
/// are not delivered again. Handlers run at most once in each attempt. If a second execution contradicts the first, the
/// call fails ([`Failure::Diverged`]); it is not sent again once a status has arrived, whose reason need not come again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resend {
    pub(crate) times: u32,
    pub(crate) others: Vec<Address>,
}

impl Resend {
    /// Up to so many times, 1 to 32, all initial requests of a call together.
    pub fn deterministic(times: u32) -> Self {
        Self {
            times: times.clamp(1, MOST),
            others: Vec::new(),
        }
    }
}

/// What a call that may be sent again knows of that.
#[derive(Debug, Default)]
pub(super) struct Resending {
    kept: Vec<Kept>,
    bytes: u64,
    /// There was no room for all of them.
    unkept: bool,
    /// How many times requests were sent again.
    times: u32,
    /// Connections that earlier attempts went out on: what comes from there need not show the token.
    earlier: Vec<u64>,
    failed: Vec<FailedAttempt>,
}

#[derive(Debug)]
struct Kept {
    request: Request,
    method: Arc<MethodDefinition>,
    /// Where it went first.
    server: Address,
    /// How many servers it has been tried at.
    turn: usize,
}

/// A request that the watch wants sent again.
pub(super) struct Again {
    pub(super) request: RequestId,
    pub(super) attempt: u32,
    pub(super) failure: Box<Loss>,
}

impl Resending {
    /// Whether an earlier attempt went out on this connection.
    pub(super) fn knows(&self, connection: u64) -> bool {
        self.earlier.contains(&connection)
    }
}

impl CallShared {
    /// How many times requests of the call were sent again.
    pub(crate) fn resent(&self) -> u32 {
        let state = self.lock();
        let resending = state.resending();
        resending.map_or(0, |resending| resending.times)
    }

    /// Keeps an initial request that may have to be sent again, if there is room.
    #[cold]
    #[inline(never)]
    pub(super) fn keep(&self, request: &mut Request, method: &MethodDefinition, server: &Address) {
        let size = request.payload.len() as u64 + KEPT_COST;
        let mut state = self.lock();
        if state.ended.is_some() {
            return;
        }
        let resending = state
            .rare
            .get_or_insert_default()
            .resending
            .get_or_insert_default();
        let limits = &self.endpoint.config.limits;
        let fits = resending.bytes + size <= limits.kept_call;
        if resending.unkept || !fits || !self.endpoint.keep(size) {
            resending.unkept = true;
            self.endpoint.meters.resends_unkept.add();
            tracing::debug!(call = %self.id, request = %request.id, size, "no room to keep it: the call is not sent again");
            return self.release(&mut state);
        }
        resending.bytes += size;
        request.options.get_or_insert_default().repeatable = true;
        resending.kept.push(Kept {
            request: request.clone(),
            method: Arc::new(method.clone()),
            server: server.clone(),
            turn: 0,
        });
    }

    /// What was kept is not needed any more.
    pub(super) fn release(&self, state: &mut State) {
        if let Some(resending) = state.resending_mut() {
            resending.kept = Vec::new();
            self.endpoint.unkeep(std::mem::take(&mut resending.bytes));
        }
    }

    /// How many times requests may be sent again.
    pub(super) fn resends(&self, state: &State) -> u32 {
        let kept = state.resending();
        match (&self.options.resend, kept) {
            (Some(resend), Some(resending)) if !resending.unkept => resend.times,
            _ => 0,
        }
    }

    /// What was lost below an initial request is to be executed again. What cannot be any more ends the call: returned is
    /// how.
    pub(super) fn begin_again(&self, state: &mut State, again: &Again) -> Result<(), Failure> {
        let Again {
            request,
            attempt,
            failure,
        } = again;
        tracing::debug!(call = %self.id, %request, attempt, %failure, "is sent again");
        let sent = state.roots.find_mut(&request.path);
        let resending = state.rare.as_mut().and_then(|rare| rare.resending.as_mut());
        let kept = resending.and_then(|resending| {
            let place = resending.place_of(*request)?;
            Some((resending, place))
        });
        let (Some(sent), Some((resending, place))) = (sent, kept) else {
            return Err(Failure::Lost(failure.clone()));
        };
        resending.times += 1;
        resending.failed.push(FailedAttempt {
            server: sent.server.clone(),
            error: format!("request {} {}", failure.request, failure.kind),
        });
        let kept = &mut resending.kept[place];
        kept.turn += 1;
        let options = kept.request.options.get_or_insert_default();
        options.attempt = *attempt;
        sent.lost = false;
        if let Some(peer) = sent.peer.take() {
            peer.release();
            resending.earlier.push(peer.id);
        }
        self.endpoint.meters.resends.add();
        Ok(())
    }

    /// Sends a kept request to the server whose turn it is, or to the next one that can be reached. Until the ping timeout
    /// is over they are tried again and again: one of them may be about to come back.
    pub(super) async fn send_kept(self: Arc<Self>, id: RequestId) {
        let begun = Instant::now();
        let settings = self.ping();
        loop {
            let Some((server, method, request, is_last)) = self.next_kept(id) else {
                return;
            };
            let Err(failure) = self.send(&server, &method, request).await else {
                return self.note_resent(id, server);
            };
            if !failure.is_loss() || begun.elapsed() >= settings.timeout {
                let failure = self.after_attempts(&self.lock(), failure);
                return self.fail(failure);
            }
            self.lock().skip(id);
            if is_last {
                let pause = Instant::now() + settings.period;
                if timer::timeout_at(pause, self.over()).await.is_some() {
                    return;
                }
            }
        }
    }

    /// The request as it is sent now, where to, and whether that is the last of the servers; `None` if the call is over.
    fn next_kept(&self, id: RequestId) -> Option<(Address, Arc<MethodDefinition>, Request, bool)> {
        let mut state = self.lock();
        if state.ended.is_some() {
            return None;
        }
        let others = &self.options.resend.as_ref()?.others;
        let resending = state.resending()?;
        let kept = &resending.kept[resending.place_of(id)?];
        let turn = kept.turn % (others.len() + 1);
        let server = match turn.checked_sub(1) {
            Some(other) => others[other].clone(),
            None => kept.server.clone(),
        };
        let (mut request, method) = (kept.request.clone(), Arc::clone(&kept.method));
        if let Some(sent) = state.roots.find_mut(&id.path) {
            sent.server = server.clone();
        }
        drop(state);
        request.deadline = self.stated_deadline();
        request.oldest = self.endpoint.oldest_call();
        Some((server, method, request, turn == others.len()))
    }

    /// The watch asks about it from now on.
    fn note_resent(self: &Arc<Self>, id: RequestId, server: Address) {
        let now = self.endpoint.liveness.now();
        let mut state = self.lock();
        let sent = state.roots.find(&id.path);
        let at = Location {
            address: Some(server),
            node: sent.and_then(|sent| sent.node),
        };
        if let (initiator, Some(watch)) = state.parts() {
            watch.sent(initiator, id, at, now);
            self.act(state);
        }
    }

    /// Whether a request that could not be sent is kept, and may be sent elsewhere.
    pub(super) fn is_kept(&self, id: RequestId, failure: &Failure) -> bool {
        let mut state = self.lock();
        let resending = state.resending();
        let kept = failure.is_loss()
            && state.ended.is_none()
            && resending.is_some_and(|resending| resending.place_of(id).is_some());
        if kept {
            state.skip(id);
        }
        kept
    }

    /// How a call ends that may have been sent again.
    #[cold]
    #[inline(never)]
    pub(super) fn after_attempts(&self, state: &State, failure: Failure) -> Failure {
        let Some(resending) = state.resending() else {
            return failure;
        };
        let violation = match &failure {
            Failure::Violation(violation) => Some(*violation),
            Failure::Lost(loss) => match loss.kind {
                FailureKind::Violation(violation) => Some(violation),
                _ => None,
            },
            _ => None,
        };
        match violation {
            Some(violation) if resending.times > 0 => return Failure::Diverged(violation),
            None if failure.is_loss() => {}
            _ => return failure,
        }
        let why = match () {
            () if resending.unkept => NoMore::NotKept,
            () if state.initiator.responses().1 > 0 => NoMore::Status,
            () => NoMore::Limit,
        };
        Failure::Attempts(Box::new(AttemptsFailed {
            made: resending.times + 1,
            why,
            before: resending.failed.clone(),
            last: failure.into(),
        }))
    }

    /// Sends again what is to be executed again, or ends the call.
    #[cold]
    #[inline(never)]
    pub(super) fn again(&self, mut state: std::sync::MutexGuard<'_, State>, again: &[Again]) {
        for what in again {
            if let Err(failure) = self.begin_again(&mut state, what) {
                let failure = self.after_attempts(&state, failure);
                return self.end(state, failure.into());
            }
        }
        drop(state);
        let Some(call) = self.endpoint.call(self.id.sequence) else {
            return;
        };
        for what in again {
            let sending = Arc::clone(&call).send_kept(what.request);
            self.endpoint.runtime.spawn(sending);
        }
    }
}

impl Resending {
    fn place_of(&self, id: RequestId) -> Option<usize> {
        let mut kept = self.kept.iter();
        kept.position(|kept| kept.request.id.path == id.path)
    }
}

impl State {
    /// A request is tried at the next server.
    fn skip(&mut self, id: RequestId) {
        if let Some(resending) = self.resending_mut()
            && let Some(place) = resending.place_of(id)
        {
            resending.kept[place].turn += 1;
        }
    }
}
