//! What the applications of a node do and see: their calls.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use wallaby_proto::call::watch::{Executed, FailureKind};
use wallaby_proto::endpoint::{self, CallKey, CallOptions, IncomingAnswer, NewInitial, Next};
use wallaby_proto::error::{CallError, Failure};
use wallaby_proto::wire::{Message, PingSettings};
use wallaby_proto::{CallId, Token};

use crate::addresses::address;
use crate::bodies::BodyPlan;
use crate::broken::{Broken, Counts};
use crate::context::{Context, note};
use crate::coverage::Point;
use crate::node::Host;
use crate::oracle::{Rule, Verdict};
use crate::plan::NodePlan;
use crate::queue::Timer;
use crate::services::mark_of;
use crate::sight::{FOR_EVER, Sight};
use crate::workload;

/// The calls of a node.
#[derive(Debug, Default)]
pub(crate) struct Applications(BTreeMap<CallKey, Call>);

/// One call, at its initiator.
#[derive(Debug)]
struct Call {
    id: CallId,
    /// Which of the plan's.
    index: usize,
    /// How it ended, as the application learnt, and when.
    outcome: Option<Verdict>,
    ended: Duration,
    /// The application takes its answers a while after they came, and is about to.
    taking: bool,
    /// What a call that only counts would know.
    counts: Counts,
}

impl Applications {
    /// How many calls there are.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// How many of them have not ended, though an application may not have looked.
    pub(crate) fn open(&self, host: &Host) -> usize {
        let open = self
            .0
            .keys()
            .filter(|call| !host.endpoint.has_ended(**call));
        open.count()
    }

    /// Whether this is one of them.
    pub(crate) fn has(&self, id: CallId) -> bool {
        self.0.values().any(|call| call.id == id)
    }

    /// Makes the call of the plan with this index.
    pub(crate) fn begin(
        &mut self,
        index: usize,
        (host, sight): (&mut Host, &mut Sight),
        context: &mut Context<'_>,
    ) {
        let plan = &context.plan.calls[index];
        let mut options = CallOptions::default();
        (options.deadline, options.stall_limit) = (Some(plan.deadline), plan.stall);
        (options.tolerant, options.heartbeats) = (plan.tolerant, plan.heartbeats());
        options.ping = Some(PingSettings {
            period: plan.ping_period,
            timeout: plan.timeout,
        });
        if context.is(Broken::NoWatch) {
            (options.deadline, options.ping) = (Some(FOR_EVER.timeout), Some(FOR_EVER));
        }
        options.resend = (plan.resends > 0).then(|| endpoint::Resend::deterministic(plan.resends));
        let Ok(key) = host.endpoint.begin(&options) else {
            unreachable!("a few calls are within any limit")
        };
        let id = host.endpoint.call_id(key);
        note!(context, host.index, "begins {id}, the plan's c{index}");
        let call = Call {
            id,
            index,
            outcome: None,
            ended: Duration::ZERO,
            taking: false,
            counts: Counts::new(plan.roots.len()),
        };
        self.0.insert(key, call);
        host.endpoint.probe().calls.insert(id);
        let mut roots = Vec::new();
        for root in &plan.roots {
            let to = address(context.plan, root.server);
            let payload = root.task.to_payload();
            context.hit(Point::RequestInitial);
            // One that cannot be sent ends its call, which says so.
            let (endpoint, method) = (&mut host.endpoint, &host.method);
            let body = BodyPlan::of(&root.task);
            let new = NewInitial {
                followed: body.is_some(),
                ..NewInitial::new(&to, method, payload)
            };
            let sent = match plan.roots.len() {
                1 => endpoint.send_only(key, new),
                _ => endpoint.send_with(key, new),
            };
            let Ok((request, out)) = sent else {
                continue;
            };
            roots.push((request, root.task.number, root.server));
            if let (Some(out), Some(body)) = (out, body) {
                host.begin_body(out, body, context);
            }
        }
        host.endpoint.close_call(key);
        sight.begun(id, &roots);
        if plan.resends > 0 {
            return context.oracle.resends.begin(id, plan);
        }
        let token = Token::derive(host.secret, id.sequence);
        let (now, place) = (context.now(), (index, host.index));
        (context.oracle).begin(now, (id, token), place, &roots, context.plan);
    }

    /// A message for a call came.
    pub(crate) fn heard(&mut self, message: &Message, host: &Host, context: &mut Context<'_>) {
        let id = message.call();
        let of = |(_, call): &(&CallKey, &mut Call)| call.id == id;
        let Some((&key, call)) = self.0.iter_mut().find(of) else {
            return;
        };
        if call.outcome.is_some() {
            context.hit(Point::AnswerAfterOutcome);
        }
        let is_new = call.counts.add(message);
        let manifest = match message {
            Message::Response(response) => response
                .manifest
                .filter(|manifest| manifest.owner != response.request.path),
            Message::End(end) => end.manifest,
            _ => None,
        };
        if manifest.is_some() {
            context.hit(Point::AnswerCarriesManifest);
        }
        if let (Some(broken), true) = (context.broken, call.outcome.is_none()) {
            self.mishear(broken, key, (message, is_new), host, context);
        }
    }

    /// What a node that is broken so makes of it.
    fn mishear(
        &mut self,
        broken: Broken,
        key: CallKey,
        (message, is_new): (&Message, bool),
        host: &Host,
        context: &mut Context<'_>,
    ) {
        let Some(call) = self.0.get(&key) else {
            return;
        };
        let now = context.now();
        let counted = match (broken, message) {
            (Broken::CountsAlone, _) => call.counts.are_even(false),
            (Broken::ManifestTwice, _) => call.counts.are_even(true),
            (Broken::ResponseTwice, Message::Response(response)) if !is_new => {
                let place = (response.request.path, response.index);
                return context.oracle.delivered(
                    now,
                    call.id,
                    place,
                    &Ok(response.payload.clone()),
                );
            }
            (Broken::UnknownFails, Message::Pong(pong)) if pong.progress.is_none() => {
                return self.settle(key, Verdict::Failed, host, context);
            }
            _ => false,
        };
        if counted {
            let (id, statuses) = (call.id, call.counts.statuses);
            context.oracle.is_complete(now, id, true);
            self.settle(key, Verdict::Complete { statuses }, host, context);
        }
    }

    /// There is something to take of a call.
    pub(crate) fn look_at(&mut self, key: CallKey, host: &mut Host, context: &mut Context<'_>) {
        let Some(call) = self.0.get_mut(&key) else {
            return;
        };
        let appetite = context.plan.calls[call.index].appetite;
        if appetite.is_zero() || host.endpoint.has_ended(key) {
            self.take_answers(key, host, context);
        } else if !std::mem::replace(&mut call.taking, true) {
            host.wake(appetite, Timer::Take(key), context);
        }
    }

    /// The application takes all answers that wait for it.
    pub(crate) fn take_answers(
        &mut self,
        key: CallKey,
        host: &mut Host,
        context: &mut Context<'_>,
    ) {
        let Some(call) = self.0.get_mut(&key) else {
            return;
        };
        call.taking = false;
        if host.plan.tokio && call.outcome.is_some() {
            return; // it is forgotten
        }
        let id = call.id;
        loop {
            match host.endpoint.next_answer(key) {
                Next::Pending => return,
                Next::Trace(_) => {}
                Next::Answer(answer) => deliver(id, answer, host, context),
                Next::Ended(outcome) => {
                    let outcome = judge(id, outcome, host, context);
                    self.settle(key, outcome, host, context);
                    if host.plan.tokio {
                        return host.endpoint.forget(key);
                    }
                }
            }
        }
    }

    /// The application learns how a call ended.
    fn settle(&mut self, key: CallKey, outcome: Verdict, host: &Host, context: &mut Context<'_>) {
        let Some(call) = self.0.get_mut(&key) else {
            return;
        };
        (call.outcome, call.ended) = (Some(outcome), context.now());
        let id = call.id;
        context.hit(match outcome {
            Verdict::Complete { statuses: false } => Point::OutcomeComplete,
            Verdict::Complete { statuses: true } => Point::OutcomeStatuses,
            Verdict::Failed => Point::OutcomeFailed,
            Verdict::Aborted => Point::OutcomeAborted,
            Verdict::Deadline => Point::OutcomeDeadline,
            Verdict::TooLarge => Point::OutcomeTooLarge,
            Verdict::InitiatorGone => Point::OutcomeInitiatorGone,
        });
        note!(context, host.index, "{id} ended: {outcome:?}");
        let now = context.now();
        if !matches!(outcome, Verdict::Complete { .. }) {
            let judged = (context.plan, &mut context.coverage);
            let failed = outcome == Verdict::Failed;
            context.oracle.judge_detection(now, id, judged, failed);
        }
        context.oracle.ended(now, id, outcome);
        context.oracle.resends.ended(now, id, outcome);
    }

    /// Gives that call up.
    pub(crate) fn abort(&mut self, index: usize, host: &mut Host, context: &mut Context<'_>) {
        let found = self.0.iter().find(|(_, call)| call.index == index);
        if let Some((&key, _)) = found {
            self.take_answers(key, host, context);
            host.endpoint.abort(key);
        }
    }

    /// The applications look at calls that have ended, whatever they wait for.
    pub(crate) fn take_ended(&mut self, host: &mut Host, context: &mut Context<'_>) {
        let ended = |(key, call): (&CallKey, &Call)| {
            (call.outcome.is_none() && host.endpoint.has_ended(*key)).then_some(*key)
        };
        let ended: Vec<CallKey> = self.0.iter().filter_map(ended).collect();
        for key in ended {
            self.take_answers(key, host, context);
        }
    }

    /// Whether these calls, of which something came, and those that have ended are where they must be. What is over is forgotten.
    pub(crate) fn check(
        &mut self,
        touched: BTreeSet<CallId>,
        host: &mut Host,
        context: &mut Context<'_>,
    ) {
        let now = context.now();
        for id in touched {
            let call = self.0.values().find(|call| call.id == id);
            if call.is_some_and(|call| call.outcome.is_none()) {
                context.oracle.is_complete(now, id, false);
            }
            if let Some(call) = call.filter(|_| context.is(Broken::OutcomeChanges))
                && matches!(call.outcome, Some(Verdict::Failed | Verdict::Aborted))
                && call.counts.are_even(false)
            {
                context
                    .oracle
                    .ended(now, id, Verdict::Complete { statuses: false });
            }
        }
        // Where a small table has forgotten a request, others have to be found that came of it.
        let roomy = context.plan.nodes.iter().all(NodePlan::is_roomy);
        if roomy && context.plan.is_calm() {
            self.look_for_lingering(host, context);
        }
        let endpoint = &mut host.endpoint;
        self.0.retain(|key, call| {
            let is_live = endpoint.is_live(*key) || call.outcome.is_none();
            if !is_live {
                endpoint.probe().calls.remove(&call.id);
            }
            is_live
        });
    }

    /// Where nothing goes wrong a call that has ended is soon over, whatever goes on at its servers.
    fn look_for_lingering(&self, host: &Host, context: &mut Context<'_>) {
        let now = context.now();
        let stays = |(key, call): &(&CallKey, &Call)| {
            let planned = &context.plan.calls[call.index];
            let soon = planned.timeout * 4 + planned.ping_period * 16;
            call.outcome.is_some() && host.endpoint.is_live(**key) && now > call.ended + soon
        };
        if let Some((_, call)) = self.0.iter().find(stays) {
            let what = format!("{} stays, though it ended at {:?}", call.id, call.ended);
            context.violate(Rule::Leftover, what);
        }
    }
}

/// An answer, or the word that a branch is lost.
fn deliver(id: CallId, answer: IncomingAnswer, host: &Host, context: &mut Context<'_>) {
    let Some(loss) = answer.loss() else {
        return give(id, answer, context);
    };
    if context.is(Broken::LossUntold) {
        return;
    }
    note!(context, host.index, "{loss}");
    context.hit(Point::LossTolerated);
    let (now, plan, hanging) = (context.now(), context.plan, host.hanging(context));
    context.oracle.lost(now, loss, hanging, plan);
}

/// How a call ended, as the oracle calls it.
fn judge(
    id: CallId,
    outcome: endpoint::Outcome,
    host: &Host,
    context: &mut Context<'_>,
) -> Verdict {
    let (now, plan) = (context.now(), context.plan);
    let failure = match outcome {
        endpoint::Outcome::Complete { statuses } => {
            context.oracle.is_complete(now, id, true);
            let statuses = statuses > 0;
            return Verdict::Complete { statuses };
        }
        endpoint::Outcome::Failed(failure) => failure,
    };
    note!(context, host.index, "{failure}");
    let hanging = host.hanging(context);
    match failure {
        Failure::Aborted { .. } | Failure::FailedFast => return Verdict::Aborted,
        Failure::Closed => return Verdict::InitiatorGone,
        Failure::Deadline { .. } => return Verdict::Deadline,
        Failure::Lost(failure)
            if matches!(
                failure.kind,
                FailureKind::Violation(_) | FailureKind::Diverged(_)
            ) =>
        {
            if !context.oracle.resends.may_differ(id) {
                context.violate(Rule::FalseAccusation, format!("{id}: {failure}"));
            }
        }
        Failure::Lost(mut failure) => {
            if context.is(Broken::ExecutionUntold) {
                failure.executed = Executed::Unknown;
            }
            context.hit(match failure.kind {
                FailureKind::Silent { .. } => Point::FailureSilent,
                FailureKind::ResponseLost { .. } => Point::FailureResponseLost,
                FailureKind::Stalled { .. } => Point::FailureStalled,
                _ => Point::OutcomeFailed,
            });
            context.oracle.failed(now, &failure, hanging, plan);
        }
        Failure::NotSent { request, .. } => {
            context.hit(Point::FailureUndelivered);
            context.oracle.not_sent(now, (id, request), hanging);
        }
        Failure::TooLarge { .. } => return Verdict::TooLarge,
        Failure::Attempts(_) => {}
        other => context.violate(Rule::FalseAccusation, format!("{id}: {other}")),
    }
    Verdict::Failed
}

/// The application gets an answer.
fn give(id: CallId, answer: IncomingAnswer, context: &mut Context<'_>) {
    let (place, now) = ((answer.request.path, answer.index), context.now());
    let said = match answer.payload() {
        Ok(payload) => Ok(payload),
        Err(CallError::Status(status)) => Err(status),
        Err(error) => return context.violate(Rule::Corrupted, format!("{id}: {error}")),
    };
    context.oracle.delivered(now, id, place, &said);
    let known = said
        .as_ref()
        .ok()
        .map(|payload| workload::Answer::from_payload(payload));
    let number = known.flatten().map(|(_, answer)| answer.number);
    context.oracle.resends.delivered(now, id, place, number);
    match known {
        None => {}
        Some(Some((mark, _))) if mark == mark_of(id) => {}
        Some(Some((mark, answer))) => {
            let what = format!("answer {answer} of call {mark:x} came to {id}");
            context.violate(Rule::Misdelivered, what);
        }
        Some(None) => context.violate(Rule::Corrupted, format!("an answer of {id}")),
    }
}
