//! Calls that are made again when they fail, or a second time beside a slow attempt: as a [`Plan`] says, here as on a runtime.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use wallaby_proto::Address;
use wallaby_proto::connection::MethodDefinition;
use wallaby_proto::endpoint::{
    Author, CallKey, CallOptions, Endpoint as Core, Next, Outcome, RequestKey,
};
use wallaby_proto::trace::Trace;

use super::calls::{Calling, Initial, Unsent};
use super::datagrams::Datagrams;
use super::event::{Call, Event};
use super::request::RawRequest;
use super::{Endpoint, Notification};
use crate::attempts::plan::{Attempt, Heard, Plan, RetryPolicy};
use crate::codec::Codec;
use crate::error::{CallError, Failure};
use crate::method::{self, Target};
use crate::random;
use crate::retry;
use crate::timer;

/// Most attempts that begin in a turn.
const MOST_BEGUN: usize = 1024;

/// The calls that may have several attempts.
#[derive(Debug, Default)]
pub(super) struct Retried {
    /// By the key that the application knows: that of the first attempt.
    calls: HashMap<CallKey, RetriedCall>,
    /// The application's key, by that of each attempt that may still deliver.
    attempts: HashMap<CallKey, CallKey>,
    /// When calls are looked at again.
    due: BTreeSet<(Duration, CallKey)>,
    /// The calls on behalf of requests, by these.
    within: HashMap<RequestKey, BTreeSet<CallKey>>,
}

#[derive(Debug)]
struct RetriedCall {
    /// Its attempts by their keys: there is none of one whose call could not begin.
    plan: Plan<Option<CallKey>>,
    /// The endpoint's number for it.
    number: u64,
    begun: Duration,
    method: Arc<MethodDefinition>,
    /// The arguments, kept for a further attempt.
    payload: Bytes,
    options: CallOptions,
    /// The request on whose behalf it is made.
    within: Option<RequestKey>,
    /// The tree of hops of the latest attempt that has told its own.
    trace: Option<Box<Trace>>,
    /// When it is looked at again.
    noted: Option<Duration>,
    /// Attempts that do not count any more, but may run.
    past: Vec<CallKey>,
}

impl RetriedCall {
    /// The first attempt, or another one if there may be one now.
    fn begin_attempt(
        &mut self,
        core: &mut Core,
        calling: &mut Calling,
    ) -> Option<Result<CallKey, Unsent>> {
        let passed = core.time().saturating_sub(self.begun);
        let (meters, mut made) = (Arc::clone(&calling.meters), None);
        self.plan.begin(passed, &meters, |new| {
            let payload = self.payload.clone();
            let initial = Initial::new(new.server.clone(), &self.method, payload, None);
            let mut own = new.options(&self.options);
            if let Some(request) = self.within {
                core.share_for(request, Author::Handler, &mut own);
            }
            let attempt = calling.attempt(core, (self.within, new.number), own, initial);
            let key = key_of(&attempt);
            made = Some(attempt);
            key
        });
        made
    }

    /// These do not count any more. What runs of them is known until the call has ended, for who stops it.
    fn leave(&mut self, core: &mut Core, attempts: &[Option<CallKey>]) {
        for attempt in attempts.iter().flatten() {
            core.wait_for_stop(*attempt, Some(Duration::ZERO));
            self.past.push(*attempt);
        }
    }
}

impl<D: Datagrams> Endpoint<D> {
    /// Makes a call, as [`call`](Self::call) does, that is made again when it fails, or a second time when it is slow, as the policy
    /// says. It is one call for the application: it has the key of its first attempt, and comes to one end. Each attempt is a call
    /// of its own otherwise, within the deadline of `options`; the first that delivers is the call from then on. What has become of
    /// an attempt is looked at by [`next_event`](Self::next_event). What may be made again says
    /// the policy's [`Retry`](crate::Retry). A call that a body follows is made once: a body can be read once.
    ///
    /// # Errors
    ///
    /// If as many calls live as may, or the arguments cannot be encoded.
    pub fn call_again<A: method::Answers, C: Codec<A::Item>>(
        &mut self,
        server: impl Into<Address>,
        target: Target<A, C>,
        options: &CallOptions,
        policy: &RetryPolicy,
    ) -> Result<Call<A, C>, Failure> {
        self.look_at_clock();
        let (to, options) = (server.into(), options.clone());
        (self.calling).call_again(&mut self.core, None, (to, target, options), policy)
    }

    /// How many attempts were made, hedged ones included, of a call that [may have several](Self::call_again) and has not ended.
    pub fn attempts(&self, call: CallKey) -> Option<u32> {
        let call = self.calling.retried.calls.get(&call)?;
        Some(call.plan.made())
    }
}

impl RawRequest<'_> {
    /// Makes a [call](Self::call) on behalf of this request that is made again, or a second time, as
    /// [`Endpoint::call_again`] says. All attempts have one durable name, and each a delegation's share of the budgets.
    ///
    /// # Errors
    ///
    /// As `Endpoint::call_again`, or if its metadata are too much.
    pub fn call_again<A: method::Answers, C: Codec<A::Item>>(
        &mut self,
        server: impl Into<Address>,
        target: Target<A, C>,
        options: &CallOptions,
        policy: &RetryPolicy,
    ) -> Result<Call<A, C>, Failure> {
        let (within, left) = (self.handler(), self.remaining());
        let mut options = options.on_behalf(within.metadata(), left, within.is_traced())?;
        if options.durable.is_none() {
            options.durable = self.core.name_next(self.key, Author::Handler);
        }
        let call = (server.into(), target, options);
        (self.calling).call_again(self.core, Some(self.key), call, policy)
    }
}

impl Calling {
    fn call_again<A: method::Answers, C: Codec<A::Item>>(
        &mut self,
        core: &mut Core,
        within: Option<RequestKey>,
        (server, target, options): (Address, Target<A, C>, CallOptions),
        policy: &RetryPolicy,
    ) -> Result<Call<A, C>, Failure> {
        let (payload, body) = (target.payload?, target.body);
        if !RetryPolicy::is_for(body.as_ref()) {
            let mut own = options;
            if let Some(request) = within {
                core.share_for(request, Author::Handler, &mut own);
            }
            let initial = Initial::new(server, &target.definition, payload, body);
            return self.call(core, within, &own, initial).map(Call::new);
        }
        let time = timer::bounded(core.time_of(&options));
        let mut call = RetriedCall {
            plan: Plan::new(Arc::new(policy.clone()), server, None, time),
            number: core.undertake()?,
            begun: core.time(),
            method: target.definition,
            payload,
            options,
            within,
            trace: None,
            noted: None,
            past: Vec::new(),
        };
        let made = call.begin_attempt(core, self);
        let made = made.expect("the first attempt of a call is always made");
        let Some(key) = key_of(&made) else {
            core.decide(call.number);
            return made.map(Call::new).map_err(|unsent| unsent.failure);
        };
        if let Some(request) = within {
            self.retried.within.entry(request).or_default().insert(key);
        }
        self.note_attempt(core, (key, call), made);
        Ok(Call::new(key))
    }

    /// The call that the application knows, if this is an attempt of one.
    pub(super) fn retried_by(&self, attempt: CallKey) -> Option<CallKey> {
        match self.retried.attempts.is_empty() {
            true => None, // nearly always
            false => self.retried.attempts.get(&attempt).copied(),
        }
    }

    /// An attempt of this call was sent, or cannot be.
    fn note_attempt(
        &mut self,
        core: &mut Core,
        (key, call): (CallKey, RetriedCall),
        made: Result<CallKey, Unsent>,
    ) {
        let (attempt, known) = (key_of(&made), &mut self.retried.attempts);
        known.extend(attempt.map(|attempt| (attempt, key)));
        self.retried.calls.insert(key, call);
        self.retried.note_racing(core, key);
        if let Err(Unsent { failure, .. }) = made {
            self.hear_of(core, (attempt, key), Err(failure.into()));
        }
    }

    /// What comes next of an attempt, for the application; nothing if it is told later.
    pub(super) fn next_of_attempt(
        &mut self,
        core: &mut Core,
        attempt: CallKey,
        key: CallKey,
    ) -> Option<Event> {
        let call = self.retried.calls.get_mut(&key)?;
        match core.next_answer(attempt) {
            Next::Pending => {}
            Next::Answer(mut answer) => {
                let came = match call.plan.delivers() {
                    true => Ok(()),
                    false => answer.clone().payload().map(drop),
                };
                if self.hear_of(core, (Some(attempt), key), came) {
                    self.told.push_back(Notification::Call(attempt)); // others have their turn
                    answer.call = key;
                    return Some(Event::Answer(answer));
                }
            }
            Next::Trace(trace) => {
                call.trace = Some(trace);
                self.told.push_front(Notification::Call(attempt));
            }
            Next::Ended(Outcome::Complete { statuses }) => {
                self.hear_of(core, (Some(attempt), key), Ok(()));
                let call = key;
                self.end_retried(core, key, Event::Complete { call, statuses });
            }
            Next::Ended(Outcome::Failed(failure)) => {
                self.hear_of(core, (Some(attempt), key), Err(CallError::Failed(failure)));
            }
        }
        None
    }

    /// Something has come of an attempt. Whether that is the application's.
    fn hear_of(
        &mut self,
        core: &mut Core,
        (attempt, key): (Option<CallKey>, CallKey),
        came: Result<(), CallError>,
    ) -> bool {
        let Some(call) = self.retried.calls.get_mut(&key) else {
            return false;
        };
        let mut racing = call.plan.racing().iter();
        let Some(place) = racing.position(|racing| racing.handle == attempt) else {
            return false;
        };
        let has_failed = came.is_err();
        // What was not sent has left nothing anywhere, and who waits has much of it.
        let is_unsent = came.as_ref().is_err_and(retry::is_unsent);
        let passed = core.time().saturating_sub(call.begun);
        let now = (passed, random::number as fn() -> u64);
        let heard = call.plan.hear(place, came, now, &self.meters);
        if has_failed && !call.plan.delivers() && call.options.traced {
            let known = attempt.and_then(|attempt| core.trace(attempt));
            call.trace = known.map(Box::new).or(call.trace.take());
        }
        match heard {
            Heard::Delivers(others) => {
                call.payload = Bytes::new();
                call.leave(core, &others);
                core.decide(call.number);
                self.retried.give_up(core, &others);
                true
            }
            Heard::GoesOn(failed) => {
                if !is_unsent {
                    call.leave(core, &[failed]);
                }
                self.retried.give_up(core, &[failed]);
                self.retried.note_racing(core, key);
                false
            }
            Heard::Over(failure, all) => {
                self.retried.give_up(core, &all);
                let failure = Box::new(failure);
                self.end_retried(core, key, Event::Failed { call: key, failure });
                false
            }
        }
    }

    /// The call has ended: that is told next, and its tree of hops before.
    fn end_retried(&mut self, core: &mut Core, key: CallKey, end: Event) {
        let Some(mut call) = self.retried.calls.remove(&key) else {
            return;
        };
        core.decide(call.number);
        if let Some(request) = call.within
            && let Some(calls) = self.retried.within.get_mut(&request)
        {
            calls.remove(&key);
            if calls.is_empty() {
                self.retried.within.remove(&request);
            }
        }
        self.retried.give_up(core, &call.plan.give_up());
        for past in call.past {
            core.wait_for_stop(past, None);
        }
        if let Some(noted) = call.noted {
            self.retried.due.remove(&(noted, key));
        }
        self.news += 1;
        self.told.push_front(Notification::Told(end));
        if let Some(trace) = call.trace {
            let trace = Event::Trace { call: key, trace };
            self.told.push_front(Notification::Told(trace));
        }
    }

    /// What a call is to those who wait until nothing of it runs: itself, or its attempts.
    pub(super) fn take_attempts(&mut self, key: CallKey) -> BTreeSet<CallKey> {
        let Some(call) = self.retried.calls.get_mut(&key) else {
            return BTreeSet::from([key]);
        };
        let racing = call.plan.racing().iter();
        let past = std::mem::take(&mut call.past).into_iter();
        past.chain(racing.filter_map(|one| one.handle)).collect()
    }

    /// Gives a call up, if it is one of several attempts.
    pub(super) fn abort_retried(&mut self, core: &mut Core, key: CallKey) -> bool {
        let Some(call) = self.retried.calls.get_mut(&key) else {
            return false;
        };
        let current = call.plan.racing().first();
        let current = current.and_then(|attempt| attempt.handle);
        let failure = current.and_then(|attempt| {
            core.abort(attempt);
            if call.options.traced {
                let known = core.trace(attempt).map(Box::new);
                call.trace = known.or(call.trace.take());
            }
            match core.outcome(attempt)? {
                Outcome::Failed(failure) => Some(failure.clone()),
                Outcome::Complete { .. } => None,
            }
        });
        let failure = Box::new(Plan::<CallKey>::aborted(failure));
        self.end_retried(core, key, Event::Failed { call: key, failure });
        true
    }

    /// A request was stopped: so are calls on its behalf that are made again, of which the core knows nothing but attempts.
    pub(super) fn abort_within(&mut self, core: &mut Core, request: RequestKey) {
        for key in self.retried.within.remove(&request).unwrap_or_default() {
            self.abort_retried(core, key);
        }
    }

    /// Begins attempts whose time has come; of very many, the others in the next turns.
    pub(super) fn begin_attempts(&mut self, core: &mut Core) {
        for _ in 0..MOST_BEGUN {
            let first = self.retried.due.first().copied();
            let Some((at, key)) = first.filter(|(at, _)| *at <= core.time()) else {
                return;
            };
            self.retried.due.remove(&(at, key));
            let Some(mut call) = self.retried.calls.remove(&key) else {
                continue;
            };
            call.noted = None;
            let is_told = |racing: &Attempt<Option<CallKey>>| {
                racing.handle.is_some_and(|key| core.has_next(key))
            };
            let is_decided = call.plan.racing().iter().any(is_told);
            let made = match is_decided {
                true => None, // that decides
                false => call.begin_attempt(core, self),
            };
            match made {
                Some(made) => self.note_attempt(core, (key, call), made),
                None => drop(self.retried.calls.insert(key, call)),
            }
        }
    }
}

impl Retried {
    /// When an attempt may have to begin.
    pub(super) fn next_due(&self) -> Option<Duration> {
        self.due.first().map(|(at, _)| *at)
    }

    /// Other attempts may deliver than before, or the next one has another time.
    fn note_racing(&mut self, core: &mut Core, key: CallKey) {
        let Some(call) = self.calls.get_mut(&key) else {
            return;
        };
        let racing = call.plan.racing().iter();
        core.race(
            call.number,
            racing.filter_map(|attempt| attempt.handle).collect(),
        );
        let due = call.plan.due().map(|at| call.begun.saturating_add(at));
        let before = std::mem::replace(&mut call.noted, due);
        if let Some(before) = before {
            self.due.remove(&(before, key));
        }
        self.due.extend(due.map(|at| (at, key)));
    }

    /// These do not count any more.
    fn give_up(&mut self, core: &mut Core, attempts: &[Option<CallKey>]) {
        for attempt in attempts.iter().flatten() {
            self.attempts.remove(attempt);
            core.forget(*attempt);
        }
    }
}

/// The key of an attempt, if its call has begun.
fn key_of(made: &Result<CallKey, Unsent>) -> Option<CallKey> {
    match made {
        Ok(key) => Some(*key),
        Err(unsent) => unsent.call,
    }
}
