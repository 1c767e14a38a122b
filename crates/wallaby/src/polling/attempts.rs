//! Calls that are made again when they fail, or a second time beside a slow attempt: as a [`Plan`] says, here as on a runtime.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use wallaby_proto::Address;
use wallaby_proto::connection::MethodDefinition;
use wallaby_proto::endpoint::{CallKey, CallOptions, Endpoint as Core, Next, Outcome};
use wallaby_proto::trace::Trace;

use super::calls::{Calling, Initial, Unsent};
use super::datagrams::Datagrams;
use super::event::{Call, Event};
use super::{Endpoint, Notification};
use crate::attempts::plan::{Attempt, Heard, Plan, RetryPolicy};
use crate::codec::Codec;
use crate::error::{CallError, Failure};
use crate::method::{self, Target};
use crate::metrics::Meters;
use crate::random;
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
    /// The tree of hops of the latest attempt that has told its own.
    trace: Option<Box<Trace>>,
    /// When it is looked at again.
    noted: Option<Duration>,
}

impl RetriedCall {
    /// The first attempt, or another one if there may be one now.
    fn begin_attempt(
        &mut self,
        (core, calling): (&mut Core, &mut Calling),
        passed: Duration,
        meters: &Meters,
    ) -> Option<Result<CallKey, Unsent>> {
        let mut made = None;
        self.plan.begin(passed, meters, |new| {
            let initial = Initial {
                server: new.server.clone(),
                method: &self.method,
                payload: self.payload.clone(),
                body: None,
            };
            let (of, own) = ((None, new.number), new.options(&self.options));
            let attempt = calling.attempt(core, of, own, initial);
            let key = key_of(&attempt);
            made = Some(attempt);
            key
        });
        made
    }
}

impl<D: Datagrams> Endpoint<D> {
    /// Makes a call, as [`call`](Self::call) does, that is made again when it fails, or a second time when it is slow, as the policy
    /// says. It is one call for the application: it has the key of its first attempt, and comes to one end. Each attempt is a call
    /// of its own otherwise, within the deadline of `options`; the first that delivers is the call from then on. What has become of
    /// an attempt is looked at by [`next_event`](Self::next_event). What may be made again says
    /// the policy's [`Retry`](crate::Retry).
    ///
    /// # Errors
    ///
    /// If as many calls live as may, the arguments cannot be encoded, or a body belongs to them: a body can be read once.
    pub fn call_again<A: method::Answers, C: Codec<A::Item>>(
        &mut self,
        server: impl Into<Address>,
        target: Target<A, C>,
        options: &CallOptions,
        policy: &RetryPolicy,
    ) -> Result<Call<A, C>, Failure> {
        let server = server.into();
        if target.body.is_some() {
            return Err(Failure::Refused {
                request: wallaby_proto::RequestId::FIRST,
                server,
                reason: "a call with a body is made once".into(),
            });
        }
        let payload = target.payload?;
        let time = options.deadline.unwrap_or(self.core.default_deadline());
        let time = timer::bounded(time);
        self.look_at_clock();
        let mut call = RetriedCall {
            plan: Plan::new(Arc::new(policy.clone()), server, None, time),
            number: self.core.undertake()?,
            begun: self.now,
            method: target.definition,
            payload,
            options: options.clone(),
            trace: None,
            noted: None,
        };
        let made = call.begin_attempt(
            (&mut self.core, &mut self.calling),
            Duration::ZERO,
            &self.meters,
        );
        let made = made.expect("the first attempt of a call is always made");
        let Some(key) = key_of(&made) else {
            self.core.decide(call.number);
            return made.map(Call::new).map_err(|unsent| unsent.failure);
        };
        self.retried.calls.insert(key, call);
        self.note_attempt(key, made);
        Ok(Call::new(key))
    }

    /// How many attempts were made, hedged ones included, of a call that [may have several](Self::call_again) and has not ended.
    pub fn attempts(&self, call: CallKey) -> Option<u32> {
        let call = self.retried.calls.get(&call)?;
        Some(call.plan.made())
    }

    /// The call that the application knows, if this is an attempt of one.
    pub(super) fn retried_by(&self, attempt: CallKey) -> Option<CallKey> {
        match self.retried.attempts.is_empty() {
            true => None, // nearly always
            false => self.retried.attempts.get(&attempt).copied(),
        }
    }

    /// An attempt was sent, or cannot be.
    fn note_attempt(&mut self, key: CallKey, made: Result<CallKey, Unsent>) {
        let attempt = key_of(&made);
        self.retried
            .attempts
            .extend(attempt.map(|attempt| (attempt, key)));
        self.retried.note_racing(&mut self.core, key);
        if let Err(Unsent { failure, .. }) = made {
            self.hear_of(attempt, key, Err(failure.into()));
        }
    }

    /// What comes next of an attempt, for the application; nothing if it is told later.
    pub(super) fn next_of_attempt(&mut self, attempt: CallKey, key: CallKey) -> Option<Event> {
        let call = self.retried.calls.get_mut(&key)?;
        match self.core.next_answer(attempt) {
            Next::Pending => None,
            Next::Answer(mut answer) => {
                let came = match call.plan.delivers() {
                    true => Ok(()),
                    false => answer.clone().payload().map(drop),
                };
                if !self.hear_of(Some(attempt), key, came) {
                    return None;
                }
                self.told.push_back(Notification::Call(attempt)); // others have their turn
                answer.call = key;
                Some(Event::Answer(answer))
            }
            Next::Trace(trace) => {
                call.trace = Some(trace);
                self.told.push_front(Notification::Call(attempt));
                None
            }
            Next::Ended(Outcome::Complete { statuses }) => {
                self.hear_of(Some(attempt), key, Ok(()));
                let call = key;
                self.end_retried(key, Event::Complete { call, statuses });
                None
            }
            Next::Ended(Outcome::Failed(failure)) => {
                self.hear_of(Some(attempt), key, Err(CallError::Failed(failure)));
                None
            }
        }
    }

    /// Something has come of an attempt. Whether that is the application's.
    fn hear_of(
        &mut self,
        attempt: Option<CallKey>,
        key: CallKey,
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
        let passed = self.now.saturating_sub(call.begun);
        let now = (passed, random::number as fn() -> u64);
        let heard = call.plan.hear(place, came, now, &self.meters);
        if has_failed && !call.plan.delivers() && call.options.traced {
            let known = attempt.and_then(|attempt| self.core.trace(attempt));
            call.trace = known.map(Box::new).or(call.trace.take());
        }
        match heard {
            Heard::Delivers(others) => {
                call.payload = Bytes::new();
                self.core.decide(call.number);
                self.retried.give_up(&mut self.core, &others);
                true
            }
            Heard::GoesOn(failed) => {
                self.retried.give_up(&mut self.core, &[failed]);
                self.retried.note_racing(&mut self.core, key);
                false
            }
            Heard::Over(failure, all) => {
                self.retried.give_up(&mut self.core, &all);
                let failure = Box::new(failure);
                self.end_retried(key, Event::Failed { call: key, failure });
                false
            }
        }
    }

    /// The call has ended: that is told next, and its tree of hops before.
    fn end_retried(&mut self, key: CallKey, end: Event) {
        let Some(mut call) = self.retried.calls.remove(&key) else {
            return;
        };
        self.core.decide(call.number);
        let racing = call.plan.give_up();
        self.retried.give_up(&mut self.core, &racing);
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

    /// Gives a call up, if it is one of several attempts.
    pub(super) fn abort_retried(&mut self, key: CallKey) -> bool {
        let Some(call) = self.retried.calls.get_mut(&key) else {
            return false;
        };
        let current = call.plan.racing().first();
        let current = current.and_then(|attempt| attempt.handle);
        let failure = current.and_then(|attempt| {
            self.core.abort(attempt);
            if call.options.traced {
                let known = self.core.trace(attempt).map(Box::new);
                call.trace = known.or(call.trace.take());
            }
            match self.core.outcome(attempt)? {
                Outcome::Failed(failure) => Some(failure.clone()),
                Outcome::Complete { .. } => None,
            }
        });
        let failure = Box::new(Plan::<CallKey>::aborted(failure));
        self.end_retried(key, Event::Failed { call: key, failure });
        true
    }

    /// Begins attempts whose time has come; of very many, the others in the next turns.
    pub(super) fn begin_attempts(&mut self) {
        for _ in 0..MOST_BEGUN {
            let first = self.retried.due.first().copied();
            let Some((at, key)) = first.filter(|(at, _)| *at <= self.now) else {
                return;
            };
            self.retried.due.remove(&(at, key));
            let Some(call) = self.retried.calls.get_mut(&key) else {
                continue;
            };
            call.noted = None;
            let is_told = |racing: &Attempt<Option<CallKey>>| {
                racing.handle.is_some_and(|key| self.core.has_next(key))
            };
            if call.plan.racing().iter().any(is_told) {
                continue; // that decides
            }
            let passed = self.now.saturating_sub(call.begun);
            let endpoint = (&mut self.core, &mut self.calling);
            let made = call.begin_attempt(endpoint, passed, &self.meters);
            if let Some(made) = made {
                self.note_attempt(key, made);
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
