//! The oracle: it sees everything that happens and says what must never be ("Never" in the design).
//!
//! It knows of each call what was released anywhere, what arrived at its initiator, and what each message is worth
//! (see [`crate::weights`]). It never uses the protocol's own idea of completion.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use wallaby_proto::call::watch::{FailureKind, Loss};
use wallaby_proto::wire::{Message, Pong, Response};
use wallaby_proto::{CallId, NodeId, Path, RequestId, Status, Token};

use crate::coverage::{Coverage, Point};
use crate::detection::{Cause, Detection, Terms};
use crate::plan::{NodePlan, Plan, Reach};
use crate::resends::Resends;
use crate::trail::{Flight, Incarnations, Item, Trail};
use crate::weights::{Share, Sum};
use crate::workload::Hop;

/// How a call ended, as its application learnt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// All answers are there.
    Complete {
        /// Some of them are statuses.
        statuses: bool,
    },
    /// The protocol gave it up.
    Failed,
    /// The application gave it up.
    Aborted,
    /// Its time was over.
    Deadline,
    /// One of its initial requests is longer than its server takes.
    TooLarge,
    /// The node that made it is gone.
    InitiatorGone,
}

/// Something that must never be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// When it was noticed.
    pub at: Duration,
    /// Which rule it breaks.
    pub rule: Rule,
    /// What happened.
    pub what: String,
}

/// The "never" list, and what follows from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rule {
    /// COMPLETE while something is missing.
    EarlyCompletion,
    /// Everything is here and the call is not COMPLETE.
    LateCompletion,
    /// A handler ran twice for one request.
    TwiceRun,
    /// A response was delivered twice.
    TwiceDelivered,
    /// A response was delivered to another call, or to another incarnation of its node.
    Misdelivered,
    /// A call neither completed nor failed.
    NeverEnded,
    /// A terminal status changed.
    OutcomeChanged,
    /// A failure while nothing was lost for good.
    FalseFailure,
    /// What a failure says of the call is not true.
    WrongFailure,
    /// A failure was told later than the call's ping period and timeout promise.
    LateFailure,
    /// A status was lost: refused or failed work looks like ordinary ends.
    LostStatus,
    /// Something is left in a table when it should be empty.
    Leftover,
    /// An endpoint says that it is drained while it has something to do.
    DrainedEarly,
    /// The same place in the tree was given twice.
    TwiceNumbered,
    /// The protocol's machine called its honest peers liars.
    FalseAccusation,
    /// Messages cause each other without end.
    Storm,
    /// Something of a call started on a node that had been told to abort it.
    StartedAfterAbort,
    /// Bytes arrived other than they were sent.
    Corrupted,
    /// A request was executed of which it was said that it certainly was not.
    ExecutedAfterAll,
}

/// A message for an initiator, by its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Place {
    Response(Path, u32),
    End(Path),
}

/// What the oracle knows of one call.
#[derive(Debug)]
struct Record {
    /// Which of the plan's.
    index: usize,
    /// Which node.
    node: u32,
    outcome: Option<Verdict>,
    /// What requests have left to give away; gone when they have ended.
    requests: BTreeMap<RequestId, Share>,
    started: BTreeSet<RequestId>,
    /// Requests whose handlers ran.
    executed: BTreeSet<RequestId>,
    /// Which task a request was released for.
    released: BTreeMap<RequestId, u32>,
    answers: BTreeMap<Place, Share>,
    arrived: BTreeSet<Place>,
    delivered: BTreeSet<Place>,
    sum: Sum,
    /// Work of it was refused or failed.
    statuses: u64,
    /// What it has gone on without, as its application was told.
    losses: u64,
    /// Pongs have told of it.
    ponged: bool,
    /// What its responses say.
    payloads: BTreeMap<Place, Bytes>,
    /// Where its messages and handlers are.
    trail: Trail,
    /// What its initiator could know of them.
    detection: Detection,
}

/// Sees everything.
#[derive(Debug, Default)]
pub(crate) struct Oracle {
    calls: BTreeMap<CallId, Record>,
    incarnations: Incarnations,
    /// Nodes that were told to abort a call, and until when each knows that at least.
    told: BTreeMap<(NodeId, CallId), Duration>,
    violations: Vec<Violation>,
    /// Calls whose requests may be sent again have rules of their own.
    pub(crate) resends: Resends,
}

impl Oracle {
    pub(crate) fn violate(&mut self, at: Duration, rule: Rule, what: impl Into<String>) {
        let what = what.into();
        self.violations.push(Violation { at, rule, what });
    }

    /// Whether a call has not ended yet.
    pub(crate) fn is_open(&self, call: CallId) -> bool {
        let record = self.calls.get(&call);
        record.is_some_and(|record| record.outcome.is_none())
    }

    pub(crate) fn violations(&self) -> &[Violation] {
        &self.violations
    }

    /// A call begins; `roots` are its initial requests.
    pub(crate) fn begin(
        &mut self,
        now: Duration,
        (call, token): (CallId, Token),
        (index, node): (usize, u32),
        roots: &[(RequestId, u32, u32)],
        plan: &Plan,
    ) {
        let terms = Terms::of(plan, node, &plan.calls[index], now);
        let mut record = Record {
            index,
            node,
            outcome: None,
            requests: BTreeMap::new(),
            started: BTreeSet::new(),
            executed: BTreeSet::new(),
            released: BTreeMap::new(),
            answers: BTreeMap::new(),
            arrived: BTreeSet::new(),
            delivered: BTreeSet::new(),
            sum: Sum::default(),
            statuses: 0,
            losses: 0,
            ponged: false,
            payloads: BTreeMap::new(),
            trail: Trail::default(),
            detection: Detection::new(call, token, now, now + terms.period),
        };
        let mut rest = Share::ALL;
        for (place, (id, task, server)) in roots.iter().enumerate() {
            let share = if place + 1 < roots.len() {
                rest.half()
            } else {
                rest
            };
            record.requests.insert(*id, share);
            record.released.insert(*id, *task);
            let item = Item::Request(*id);
            record
                .trail
                .released((None, item), call.initiator, Some(*server));
            record.detection.begin(id.path, now);
        }
        self.calls.insert(call, record);
    }

    /// An incarnation of a node begins.
    pub(crate) fn began(&mut self, now: Duration, incarnation: NodeId, node: u32) {
        self.incarnations.began(incarnation, node, now);
    }

    /// Which node an incarnation is one of.
    pub(crate) fn node_of(&self, incarnation: NodeId) -> Option<u32> {
        self.incarnations.node(incarnation)
    }

    /// A message goes out on a connection between two incarnations.
    pub(crate) fn sent(
        &mut self,
        now: Duration,
        (call, item): (CallId, Option<Item>),
        flight: Flight,
    ) {
        if let Some(record) = self.calls.get_mut(&call) {
            match item {
                Some(item) => record.trail.sent(item, flight.0),
                None => record.trail.control_sent(flight, now),
            }
        }
    }

    /// A message is in its sender's output, for the first time or again.
    pub(crate) fn leaves(&mut self, call: CallId, item: Item) {
        if let Some(record) = self.calls.get_mut(&call) {
            record.trail.leaves(item);
        }
    }

    /// A message has been written out as far as its sender is concerned.
    pub(crate) fn left(&mut self, now: Duration, call: CallId, item: Item) {
        if let Some(record) = self.calls.get_mut(&call) {
            record.trail.left(item, now);
            if let Item::Request(request) = item {
                record.detection.left(request, now);
            }
        }
    }

    /// What an initiator asks about a request has had to wait for its own output.
    pub(crate) fn asked_late(&mut self, now: Duration, call: CallId, request: RequestId) {
        if let Some(record) = self.calls.get_mut(&call) {
            record.detection.asked_late(request, now);
        }
    }

    /// A server tells of a request.
    pub(crate) fn pongs(&mut self, now: Duration, pong: &Pong) {
        if let Some(record) = self.calls.get_mut(&pong.call)
            && pong.writing
            && record.trail.is_writing(pong.request, now)
        {
            record.detection.excuses(pong.request);
        }
    }

    /// A message came over a connection between two incarnations.
    pub(crate) fn came(&mut self, message: &Message, flight: Flight) {
        if let Some(record) = self.calls.get_mut(&message.call())
            && item(message).is_none()
        {
            record.trail.control_arrived(flight);
        }
    }

    /// An incarnation passes a message on, or has no way for it.
    pub(crate) fn relayed(&mut self, now: Duration, message: &Message, by: Option<NodeId>) {
        let Some(record) = self.calls.get_mut(&message.call()) else {
            return;
        };
        match (item(message), by) {
            (item, Some(by)) => record.trail.relayed(item, by),
            (Some(item), None) => record.trail.nowhere(item),
            (None, None) => record.trail.control_stranded(now),
        }
    }

    /// A handler goes on.
    pub(crate) fn progressed(&mut self, now: Duration, call: CallId, request: RequestId) {
        if let Some(record) = self.calls.get_mut(&call) {
            record.trail.progressed(request, now, false);
        }
    }

    /// A request's handler runs.
    pub(crate) fn executes(&mut self, call: CallId, request: RequestId) {
        if let Some(record) = self.calls.get_mut(&call) {
            record.executed.insert(request);
        }
    }

    /// What was noticed of calls whose requests may be sent again.
    pub(crate) fn judge_resends(&mut self) {
        self.violations.extend(self.resends.take_violations());
    }

    /// A server takes a request up: runs its handler, or refuses it. `task` is what its payload says.
    pub(crate) fn started(
        &mut self,
        now: Duration,
        call: CallId,
        (id, incarnation): (RequestId, NodeId),
        task: Option<u32>,
    ) {
        let Some(record) = self.calls.get_mut(&call) else {
            if self.resends.knows(call) {
                return;
            }
            self.violate(
                now,
                Rule::Corrupted,
                format!("a request of the unknown call {call}"),
            );
            return;
        };
        let twice = !record.started.insert(id);
        record.trail.started(id, incarnation, now);
        // What it has gone on without may start all the same.
        let complete =
            matches!(record.outcome, Some(Verdict::Complete { .. })) && record.losses == 0;
        let released = record.released.get(&id).copied();
        if twice {
            self.violate(now, Rule::TwiceRun, format!("request {id} of {call}"));
        }
        if complete {
            self.violate(
                now,
                Rule::EarlyCompletion,
                format!("{call} was complete, then {id} started"),
            );
        }
        if released.is_none() || task != released {
            self.violate(
                now,
                Rule::Corrupted,
                format!("request {id} of {call}: {task:?} is not {released:?}"),
            );
        }
    }

    /// A node was told that nothing of a call may start there any more. It forgets that after the call's gc timeout
    /// (docs/protocol.md, rule 36); a fast clock forgets a little earlier.
    pub(crate) fn told_to_abort(&mut self, now: Duration, node: NodeId, call: CallId, plan: &Plan) {
        let Some(record) = self.calls.get(&call) else {
            return;
        };
        let planned = &plan.calls[record.index];
        let gc_timeout = planned.ping_period + planned.timeout * 2;
        self.told.insert((node, call), now + gc_timeout * 9 / 10);
    }

    /// A node lets a handler run.
    pub(crate) fn runs(&mut self, now: Duration, node: NodeId, call: CallId, id: RequestId) {
        let told = self.told.get(&(node, call));
        if told.is_some_and(|until| now < *until) {
            self.violate(
                now,
                Rule::StartedAfterAbort,
                format!("request {id} of {call}"),
            );
        }
    }

    /// A request sends a message; `last` if nothing more will come of it.
    pub(crate) fn released(
        &mut self,
        now: Duration,
        from: RequestId,
        message: &Released,
        last: bool,
    ) {
        let call = message.call;
        if matches!(message.what, Sent::Answer(_, true)) {
            self.resends.status(call);
        }
        let Some(record) = self.calls.get_mut(&call) else {
            return;
        };
        let Some(rest) = record.requests.get_mut(&from) else {
            self.violate(
                now,
                Rule::TwiceRun,
                format!("request {from} of {call} sends after its end"),
            );
            return;
        };
        let share = if last { *rest } else { rest.half() };
        if last {
            record.requests.remove(&from);
        }
        record.trail.progressed(from, now, last);
        let fresh = match message.what {
            Sent::Request(id, task, server) => {
                record
                    .trail
                    .released((Some(from), Item::Request(id)), message.by, Some(server));
                record.requests.insert(id, share);
                record.released.insert(id, task).is_none()
            }
            Sent::Answer(place, status) => {
                let item = (Some(from), Item::Answer(place));
                record.trail.released(item, message.by, None);
                record.statuses += u64::from(status);
                record.answers.insert(place, share).is_none()
            }
        };
        if !fresh {
            self.violate(
                now,
                Rule::TwiceNumbered,
                format!("{:?} of {call}, released by {from}", message.what),
            );
        }
    }

    /// A request certainly never reaches a server; a status in its name was released.
    pub(crate) fn replaced(&mut self, now: Duration, by: NodeId, response: &Response) {
        let (call, request) = (response.call, response.request);
        let what = Sent::Answer(Place::Response(request.path, response.index), true);
        self.released(now, request, &Released { call, by, what }, true);
        self.says(response);
        if let Some(record) = self.calls.get_mut(&call) {
            record.trail.arrived(Item::Request(request), now);
        }
    }

    /// What a response says; a status may have to take the place of one that is too large.
    pub(crate) fn says(&mut self, response: &Response) {
        if response.status {
            self.resends.status(response.call); // an execution that answered over another transport differs
        }
        if let Some(record) = self.calls.get_mut(&response.call) {
            let place = Place::Response(response.request.path, response.index);
            record.payloads.insert(place, response.payload.clone());
        }
    }

    /// An incarnation takes a message for an answer to one of its calls.
    pub(crate) fn taken(&mut self, now: Duration, incarnation: NodeId, message: &Message) {
        let call = message.call();
        if call.initiator != incarnation {
            self.violate(
                now,
                Rule::Misdelivered,
                format!("{:?} of {call} is taken by {incarnation}", place(message)),
            );
        }
    }

    /// A message arrived at the initiator of its call, which lives; `true` if it is worth something.
    pub(crate) fn arrived(&mut self, now: Duration, message: &Message) {
        let Some(place) = place(message) else { return };
        let call = message.call();
        let Some(record) = self.calls.get_mut(&call) else {
            return;
        };
        let Some(share) = record.answers.get(&place).copied() else {
            self.violate(
                now,
                Rule::Corrupted,
                format!("{place:?} of {call} was never sent"),
            );
            return;
        };
        // A status may be the initiator's own.
        if !matches!(message, Message::Response(response) if response.status) {
            record.trail.told(now);
        }
        record.trail.arrived(Item::Answer(place), now);
        let new = record.arrived.insert(place);
        if new {
            record.detection.heard(message, now);
        }
        if new && !record.sum.add(share) {
            self.violate(
                now,
                Rule::TwiceNumbered,
                format!("{call} got more than all with {place:?}"),
            );
        }
    }

    /// A pong arrived at the initiator of its call: its facts count as the end of the branch (rule 13).
    pub(crate) fn pong_arrived(&mut self, now: Duration, pong: &Pong) {
        let Some(record) = self.calls.get_mut(&pong.call) else {
            return;
        };
        record.ponged = true;
        record.detection.ponged(pong, now);
        if pong.progress.is_some() {
            record.trail.told(now);
            record.trail.told_of(pong.request);
        }
        let place = Place::End(pong.request.path);
        let told = pong
            .progress
            .as_ref()
            .is_some_and(|progress| progress.facts.is_some());
        let share = record.answers.get(&place).copied().filter(|_| told);
        if let Some(share) = share
            && record.arrived.insert(place)
            && !record.sum.add(share)
        {
            self.violate(
                now,
                Rule::TwiceNumbered,
                format!("{} got more than all with {place:?}", pong.call),
            );
        }
    }

    /// A request was given the manifest of this branch.
    pub(crate) fn given(&mut self, call: CallId, request: RequestId, owner: Path) {
        if let Some(record) = self.calls.get_mut(&call) {
            record.trail.given(request, owner);
        }
    }

    /// The protocol gives a call up, and says why.
    /// `hanging` are dials of the initiator that were cut off without being told, by their servers, and when.
    pub(crate) fn failed(
        &mut self,
        now: Duration,
        failure: &Loss,
        hanging: Vec<(u32, Duration)>,
        plan: &Plan,
    ) {
        let Some(record) = self.calls.get_mut(&failure.call) else {
            return;
        };
        let planned = &plan.calls[record.index];
        let incarnations = &self.incarnations;
        let is_known = record.trail.is_known_to_have_ended(failure);
        let terms = Terms::of(plan, record.node, planned, now);
        let is_silent = matches!(failure.kind, FailureKind::Silent { .. });
        // Who cannot be dialled hears only those who have a connection with it, or a way to one.
        let hears_all =
            terms.prompt.is_some() && plan.nodes[record.node as usize].reach == Reach::Open;
        let is_held = is_silent && hears_all && record.trail.lost(incarnations).next().is_none();
        let wrong = record
            .trail
            .failed(now, failure, hanging, planned, incarnations);
        if let Some(words) = wrong {
            let what = format!("{}: {failure}: {words}", failure.call);
            self.violate(now, Rule::WrongFailure, what);
        }
        if is_known {
            let what = format!(
                "{}: {failure}: who holds its manifest has told",
                failure.call
            );
            self.violate(now, Rule::FalseFailure, what);
        }
        if is_held {
            let what = format!("{}: {failure}: who lives has all of it", failure.call);
            self.violate(now, Rule::FalseFailure, what);
        }
    }

    /// A call goes on without a branch, and its application is told why: it must be as lost as if the call had failed.
    pub(crate) fn lost(
        &mut self,
        now: Duration,
        loss: &Loss,
        hanging: Vec<(u32, Duration)>,
        plan: &Plan,
    ) {
        self.failed(now, loss, hanging, plan);
        let Some(record) = self.calls.get_mut(&loss.call) else {
            return;
        };
        record.losses += 1;
        if !plan.calls[record.index].tolerant {
            let what = format!("{}: {loss}: the call does not go on without", loss.call);
            self.violate(now, Rule::WrongFailure, what);
        }
    }

    /// An initial request certainly was not sent, says its initiator.
    pub(crate) fn not_sent(
        &mut self,
        now: Duration,
        (call, request): (CallId, RequestId),
        hanging: Vec<(u32, Duration)>,
    ) {
        let Some(record) = self.calls.get_mut(&call) else {
            return;
        };
        let wrong = record
            .trail
            .not_sent(now, request, hanging, &self.incarnations);
        if let Some(words) = wrong {
            self.violate(now, Rule::WrongFailure, format!("{call}: {words}"));
        }
    }

    /// In place of this status goes the word that no more comes.
    pub(crate) fn loses(&mut self, status: &Response) {
        if let Some(record) = self.calls.get_mut(&status.call) {
            let path = status.request.path;
            let share = record.answers.remove(&Place::Response(path, status.index));
            let share = share.map(|share| (Place::End(path), share));
            record.answers.extend(share);
        }
    }

    /// A server gives up a request of a call that lives, as its initiator or the next server seems to be gone: not where
    /// nothing goes wrong.
    pub(crate) fn gave_up(&mut self, now: Duration, call: CallId, plan: &Plan, what: &str) {
        // Nobody asks any more about what it has gone on without.
        let lives = |record: &Record| record.outcome.is_none() && record.losses == 0;
        // A small table may have forgotten the only request that knew where this one is.
        let roomy = plan.nodes.iter().all(NodePlan::is_roomy);
        if plan.is_calm() && roomy && self.calls.get(&call).is_some_and(lives) {
            self.violate(now, Rule::FalseFailure, format!("{call}: {what}"));
        }
    }

    /// The application gets an answer, or a status in place of one.
    pub(crate) fn delivered(
        &mut self,
        now: Duration,
        call: CallId,
        (path, index): (Path, u32),
        answer: &Result<Bytes, Status>,
    ) {
        let place = Place::Response(path, index);
        let Some(record) = self.calls.get_mut(&call) else {
            return;
        };
        let over = record.outcome;
        let claimed = (answer.as_ref().err()).filter(|status| status.is_not_executed());
        let claimed = claimed.and_then(Status::request);
        let is_lie = claimed.is_some_and(|request| record.executed.contains(&request));
        let is_what_was_sent = record
            .payloads
            .get(&place)
            .is_some_and(|sent| match answer {
                Ok(payload) => sent == payload,
                Err(status) => Status::from_payload(sent).is_ok_and(|sent| {
                    (sent.code(), sent.message()) == (status.code(), status.message())
                }),
            });
        if !is_what_was_sent {
            let what = format!("{place:?} of {call} is not what was sent");
            return self.violate(now, Rule::Corrupted, what);
        }
        if is_lie {
            let what = format!("{place:?} of {call} says that it was not");
            return self.violate(now, Rule::ExecutedAfterAll, what);
        }
        if !record.delivered.insert(place) {
            self.violate(now, Rule::TwiceDelivered, format!("{place:?} of {call}"));
        } else if let Some(outcome) = over {
            self.violate(
                now,
                Rule::OutcomeChanged,
                format!("{place:?} of {call} after {outcome:?}"),
            );
        }
    }

    /// Whether the initiator says that a living call is complete, after each message.
    pub(crate) fn is_complete(&mut self, now: Duration, call: CallId, says: bool) {
        let Some(record) = self.calls.get(&call) else {
            return;
        };
        let (all, arrived, ponged) = (record.sum.is_all(), record.arrived.len(), record.ponged);
        // What is missing of what was lost nobody knows: then the call has statuses.
        if says && !all && record.losses == 0 {
            self.violate(
                now,
                Rule::EarlyCompletion,
                format!("{call} with {arrived} messages"),
            );
        }
        if all && !says && !ponged {
            self.violate(
                now,
                Rule::LateCompletion,
                format!("{call} has all of its {arrived} messages"),
            );
        }
    }

    /// The application learns how a call ended.
    pub(crate) fn ended(&mut self, now: Duration, call: CallId, outcome: Verdict) {
        let Some(record) = self.calls.get_mut(&call) else {
            return;
        };
        if let Some(before) = record.outcome {
            self.violate(
                now,
                Rule::OutcomeChanged,
                format!("{call}: {before:?}, then {outcome:?}"),
            );
            return;
        }
        record.outcome = Some(outcome);
        if let Verdict::Complete { statuses } = outcome {
            let missing = record.answers.keys().find(|place| {
                matches!(place, Place::Response(..)) && !record.delivered.contains(*place)
            });
            let missing = missing.copied();
            let hidden = record.statuses + record.losses > 0 && !statuses;
            if let Some(place) = missing.filter(|_| record.losses == 0) {
                self.violate(
                    now,
                    Rule::EarlyCompletion,
                    format!("{call} without {place:?}"),
                );
            } else if hidden {
                self.violate(
                    now,
                    Rule::LostStatus,
                    format!("{call} is complete and tells of no status"),
                );
            }
        }
    }

    /// A call that is not complete ends: what was lost of it must not have been due to be told before.
    pub(crate) fn judge_detection(
        &mut self,
        now: Duration,
        call: CallId,
        (plan, coverage): (&Plan, &mut Coverage),
        failed: bool,
    ) {
        let Some(record) = self.calls.get(&call) else {
            return;
        };
        if record.outcome.is_some() {
            return;
        }
        let terms = Terms::of(plan, record.node, &plan.calls[record.index], now);
        if record.losses > 0 {
            return; // some of it was told before
        }
        let mut late = None;
        for lost in record.trail.lost(&self.incarnations) {
            let Some(verdict) = record.detection.verdict(lost, &terms) else {
                coverage.hit(Point::LossUnknown);
                continue;
            };
            if failed {
                coverage.hit(match lost.what {
                    Cause::Handler(_) => Point::LossOfHandler,
                    Cause::Request(_) => Point::LossOfRequest,
                    Cause::Response | Cause::End => Point::LossOfAnswer,
                });
                if terms.prompt.is_some() {
                    coverage.hit(Point::LossPrompt);
                }
                if verdict.limit < terms.timeout {
                    coverage.hit(Point::LossGone);
                }
                if verdict.excused.is_some() {
                    coverage.hit(Point::LossExcused);
                }
            }
            if now > verdict.due {
                late.get_or_insert(verdict);
            }
        }
        if let Some(verdict) = late {
            let index = record.index;
            self.violate(
                now,
                Rule::LateFailure,
                format!("{call}, the plan's c{index}: {verdict}"),
            );
        }
    }

    /// A node's incarnation is over, and so are its calls; whether there were any.
    pub(crate) fn incarnation_ended(
        &mut self,
        now: Duration,
        initiator: NodeId,
        (plan, coverage): (&Plan, &mut Coverage),
    ) -> bool {
        let own = self.calls.keys().filter(|call| call.initiator == initiator);
        for call in own.copied().collect::<Vec<_>>() {
            self.judge_detection(now, call, (plan, coverage), false);
        }
        self.incarnations.ended(initiator, now);
        let mut any = self.resends.initiator_gone(initiator);
        for (_, record) in self
            .calls
            .iter_mut()
            .filter(|(call, _)| call.initiator == initiator)
        {
            any |= record.outcome.is_none();
            record.outcome.get_or_insert(Verdict::InitiatorGone);
        }
        any
    }

    /// Nothing happens any more: every call must have ended, and only those may have failed that a fault concerned.
    pub(crate) fn at_rest(&mut self, now: Duration, plan: &Plan) {
        self.resends.at_rest(now, plan);
        self.judge_resends();
        let mut found = Vec::new();
        // Servers with few places for handlers, where one of any call is stuck: others may wait there for as long.
        let roots = plan.calls.iter().flat_map(|planned| &planned.roots);
        let stuck = roots.fold(0, |marks, root| marks | root.stuck());
        let few = plan
            .nodes
            .iter()
            .zip(0..)
            .filter(|(node, _)| node.places.is_some());
        let held = few.fold(0, |marks, (_, node)| marks | 1 << node) & stuck;
        for (call, record) in &self.calls {
            let Some(outcome) = record.outcome else {
                found.push((
                    Rule::NeverEnded,
                    format!("{call}, the plan's c{}", record.index),
                ));
                continue;
            };
            let planned = &plan.calls[record.index];
            let cause = match outcome {
                Verdict::Failed => record.trail.cause(plan, planned, &self.incarnations),
                // The margin is for clocks that run at different rates.
                Verdict::Deadline if planned.deadline > Duration::from_secs(15) => {
                    let stuck = planned.roots.iter().any(Hop::is_stuck);
                    let waited = planned.servers() & held != 0;
                    let down = self.incarnations.were_down(planned);
                    (stuck || waited || down).then_some(
                        "a handler is stuck, or waits behind one, or dials one by one who is not there",
                    )
                }
                _ => continue,
            };
            if cause.is_none() {
                let missing = record.missing();
                found.push((
                    Rule::FalseFailure,
                    format!("{call}, the plan's c{}: {outcome:?}{missing}", record.index),
                ));
            }
        }
        for (rule, what) in found {
            self.violate(now, rule, what);
        }
    }

    /// How each call ended.
    pub(crate) fn outcomes(&self) -> impl Iterator<Item = Verdict> {
        let resends = self.resends.outcomes();
        let calls = self.calls.values();
        calls.filter_map(|record| record.outcome).chain(resends)
    }
}

impl Record {
    /// What has not come to its end, in words.
    fn missing(&self) -> String {
        let mut words = String::new();
        for id in self.requests.keys() {
            let state = if self.started.contains(id) {
                "runs"
            } else {
                "never started"
            };
            words += &format!("; request {id} {state}");
        }
        for place in self
            .answers
            .keys()
            .filter(|place| !self.arrived.contains(place))
        {
            words += &format!("; {place:?} never arrived");
        }
        words
    }
}

/// A message that a request sends.
#[derive(Debug)]
pub(crate) struct Released {
    pub(crate) call: CallId,
    /// Who sends it.
    pub(crate) by: NodeId,
    pub(crate) what: Sent,
}

#[derive(Debug)]
pub(crate) enum Sent {
    /// A request, for a task, and the node that it goes to.
    Request(RequestId, u32, u32),
    /// A message for the initiator; whether it is a status.
    Answer(Place, bool),
}

/// The call of a message, and what it is in its trail.
pub(crate) fn sending(message: &Message) -> (CallId, Option<Item>) {
    (message.call(), item(message))
}

/// What a message is in its call's trail; `None` if it only tells of others.
fn item(message: &Message) -> Option<Item> {
    match message {
        Message::Request(request) => Some(Item::Request(request.id)),
        message => place(message).map(Item::Answer),
    }
}

/// The place of a message that is worth something.
pub(crate) fn place(message: &Message) -> Option<Place> {
    match message {
        Message::Response(response) => Some(Place::Response(response.request.path, response.index)),
        Message::End(end) => Some(Place::End(end.request.path)),
        _ => None,
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} at {:?}: {}", self.rule, self.at, self.what)
    }
}
