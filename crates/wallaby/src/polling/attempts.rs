//! Calls that are made again when they fail, or a second time beside a slow attempt: as a [`Plan`] says, here as on a runtime.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use wallaby_proto::Address;
use wallaby_proto::connection::MethodDefinition;
use wallaby_proto::endpoint::{CallKey, CallOptions, Endpoint as Core, Next, Outcome};
use wallaby_proto::trace::Trace;

use super::calls::Initial;
use super::datagrams::Datagrams;
use super::event::{Call, Event};
use super::{Endpoint, Notification};
use crate::attempts::plan::{NewAttempt, Plan, RetryPolicy, Verdict};
use crate::codec::Codec;
use crate::error::{CallError, Failure};
use crate::method::{self, Target};
use crate::{random, timer};

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
    plan: Plan,
    begun: Duration,
    method: Arc<MethodDefinition>,
    /// The arguments, kept for a further attempt.
    payload: Bytes,
    options: CallOptions,
    /// Attempts that may still deliver, with their numbers.
    racing: Vec<(u32, CallKey)>,
    /// When the next attempt begins, after one that has failed.
    again_at: Option<Duration>,
    /// One of them has delivered: it is the call.
    delivers: bool,
    /// The tree of hops of the latest attempt that has told its own.
    trace: Option<Box<Trace>>,
    /// When it is looked at again.
    noted: Option<Duration>,
}

impl RetriedCall {
    fn due(&self) -> Option<Duration> {
        let hedge_at = self.plan.hedge_at().map(|at| self.begun.saturating_add(at));
        self.again_at.or(hedge_at)
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
    pub fn call_again<A: method::Answer, C: Codec<A::Item>>(
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
        // While a call pauses, no attempt of it counts.
        let limit = self.core.limits().calls;
        if self.retried.calls.len() >= limit {
            return Err(Failure::TooManyCalls { limit });
        }
        let time = options.deadline.unwrap_or(self.core.default_deadline());
        let mut plan = Plan::new(Arc::new(policy.clone()), server, None, timer::bounded(time));
        let first = plan.begin(Duration::ZERO, &self.meters);
        self.look_at_clock();
        let initial = Initial {
            server: first.server.clone(),
            method: &target.definition,
            payload: payload.clone(),
            body: None,
        };
        let (new, own) = ((None, first.number), first.options(options));
        let (key, sent) = self.calling.attempt(&mut self.core, new, own, initial);
        if key == CallKey::NONE {
            return sent.map(|()| Call::new(key)); // there is no call
        }
        let call = RetriedCall {
            plan,
            begun: self.now,
            method: target.definition,
            payload,
            options: options.clone(),
            racing: Vec::with_capacity(1),
            again_at: None,
            delivers: false,
            trace: None,
            noted: None,
        };
        self.retried.calls.insert(key, call);
        self.note_attempt(key, first.number, sent.map(|()| key));
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

    /// Makes a further attempt.
    fn make_attempt(&mut self, key: CallKey, new: &NewAttempt) {
        let Some(call) = self.retried.calls.get(&key) else {
            return;
        };
        let initial = Initial {
            server: new.server.clone(),
            method: &call.method,
            payload: call.payload.clone(),
            body: None,
        };
        let (of, own) = ((None, new.number), new.options(&call.options));
        let (attempt, sent) = self.calling.attempt(&mut self.core, of, own, initial);
        self.note_attempt(key, new.number, sent.map(|()| attempt));
    }

    /// An attempt was sent, or cannot be.
    fn note_attempt(&mut self, key: CallKey, number: u32, sent: Result<CallKey, Failure>) {
        let Some(call) = self.retried.calls.get_mut(&key) else {
            return;
        };
        match sent {
            Ok(attempt) => {
                call.racing.push((number, attempt));
                self.retried.attempts.insert(attempt, key);
                self.retried.note_due(key);
            }
            Err(failure) => self.fail_attempt(key, number, failure.into()),
        }
    }

    /// What comes next of an attempt, for the application; nothing if it is told later.
    pub(super) fn next_of_attempt(&mut self, attempt: CallKey, key: CallKey) -> Option<Event> {
        let now = self.now;
        let call = self.retried.calls.get_mut(&key)?;
        let of_it = |(_, racing): &&(u32, CallKey)| *racing == attempt;
        let number = call.racing.iter().find(of_it)?.0;
        match self.core.next_answer(attempt) {
            Next::Pending => None,
            Next::Answer(mut answer) => {
                let passed = now.saturating_sub(call.begun);
                if !call.delivers
                    && let Err(error) = answer.clone().payload()
                    && call.plan.is_retried(&error, passed)
                {
                    self.fail_attempt(key, number, error);
                    return None;
                }
                self.deliver(key, number);
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
                self.deliver(key, number);
                let call = key;
                self.end_retried(key, Event::Complete { call, statuses });
                None
            }
            Next::Ended(Outcome::Failed(failure)) if call.delivers => {
                let failure = Box::new(call.plan.delivered_and_failed(*failure));
                self.end_retried(key, Event::Failed { call: key, failure });
                None
            }
            Next::Ended(Outcome::Failed(failure)) => {
                self.fail_attempt(key, number, CallError::Failed(*failure));
                None
            }
        }
    }

    /// An attempt delivers: the other one is given up.
    fn deliver(&mut self, key: CallKey, number: u32) {
        let Some(call) = self.retried.calls.get_mut(&key) else {
            return;
        };
        if std::mem::replace(&mut call.delivers, true) {
            return;
        }
        call.plan.win(number, &self.meters);
        call.payload = Bytes::new();
        let (delivers, others): (Vec<_>, Vec<_>) = std::mem::take(&mut call.racing)
            .into_iter()
            .partition(|racing| racing.0 == number);
        call.racing = delivers;
        self.retried.give_up(&mut self.core, &others);
    }

    /// An attempt has failed before it delivered anything.
    fn fail_attempt(&mut self, key: CallKey, number: u32, error: CallError) {
        let Some(call) = self.retried.calls.get_mut(&key) else {
            return;
        };
        let passed = self.now.saturating_sub(call.begun);
        let verdict = call
            .plan
            .fail(number, error, passed, random::number(), &self.meters);
        let (failed, others): (Vec<_>, Vec<_>) = std::mem::take(&mut call.racing)
            .into_iter()
            .partition(|racing| racing.0 == number);
        call.racing = others;
        if call.options.traced {
            let known = failed
                .iter()
                .find_map(|(_, attempt)| self.core.trace(*attempt));
            call.trace = known.map(Box::new).or(call.trace.take());
        }
        if let Verdict::Again(at) = verdict {
            call.again_at = Some(call.begun.saturating_add(at));
        }
        self.retried.give_up(&mut self.core, &failed);
        match verdict {
            Verdict::Beside => {}
            Verdict::Again(_) => self.retried.note_due(key),
            Verdict::Over(failure) => {
                let failure = Box::new(failure);
                self.end_retried(key, Event::Failed { call: key, failure });
            }
        }
    }

    /// The call has ended: that is told next, and its tree of hops before.
    fn end_retried(&mut self, key: CallKey, end: Event) {
        let Some(call) = self.retried.calls.remove(&key) else {
            return;
        };
        self.retried.give_up(&mut self.core, &call.racing);
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
        let is_one = self.retried.calls.contains_key(&key);
        let failure = Box::new(Failure::aborted());
        self.end_retried(key, Event::Failed { call: key, failure });
        is_one
    }

    /// Begins the attempts whose time has come.
    pub(super) fn begin_attempts(&mut self) {
        while let Some((at, key)) = self.retried.due.first().copied()
            && at <= self.now
        {
            self.retried.due.pop_first();
            let Some(call) = self.retried.calls.get_mut(&key) else {
                continue;
            };
            call.noted = None;
            let passed = self.now.saturating_sub(call.begun);
            let is_told = |(_, attempt): &(u32, CallKey)| self.core.has_next(*attempt);
            let new = match call.again_at.take() {
                Some(_) => Some(call.plan.begin(passed, &self.meters)),
                None if call.racing.iter().any(is_told) => None, // that decides
                None => call.plan.hedge(passed, &self.meters),
            };
            if let Some(new) = new {
                self.make_attempt(key, &new);
            }
        }
    }
}

impl Retried {
    /// When an attempt may have to begin.
    pub(super) fn next_due(&self) -> Option<Duration> {
        self.due.first().map(|(at, _)| *at)
    }

    fn note_due(&mut self, key: CallKey) {
        let Some(call) = self.calls.get_mut(&key) else {
            return;
        };
        let due = call.due();
        let before = std::mem::replace(&mut call.noted, due);
        if let Some(before) = before {
            self.due.remove(&(before, key));
        }
        self.due.extend(due.map(|at| (at, key)));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// These do not count any more.
    fn give_up(&mut self, core: &mut Core, attempts: &[(u32, CallKey)]) {
        for (_, attempt) in attempts {
            self.attempts.remove(attempt);
            core.forget(*attempt);
        }
    }
}
