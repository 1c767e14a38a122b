//! Who saw everything: what really happened to each call, and whether what was said of it is true.

use std::collections::{BTreeMap, BTreeSet};

use wallaby_proto::call::watch::{FailureKind, Loss};
use wallaby_proto::{CallId, NodeId, Path, RequestId};

/// A request in one of its attempts.
pub(crate) type Run = (RequestId, u32);

#[derive(Debug, Default)]
pub(crate) struct Oracle {
    pub(crate) calls: BTreeMap<CallId, Truth>,
    pub(crate) counts: BTreeMap<&'static str, u64>,
}

/// What really happened to a call.
#[derive(Debug, Default)]
pub(crate) struct Truth {
    sent: BTreeSet<Run>,
    executed: BTreeSet<Run>,
    /// Handlers that run, and where.
    running: BTreeMap<Run, NodeId>,
    responses: BTreeSet<(Path, u32)>,
    delivered: BTreeSet<(Path, u32)>,
    /// Lives that handled requests of it.
    servers: BTreeSet<NodeId>,
    refused: bool,
    lost_request: bool,
    lost_answer: bool,
    killed: bool,
    crashed_server: bool,
    disturbed: bool,
    outcome: Option<&'static str>,
    quiet: bool,
}

impl Oracle {
    pub(crate) fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    pub(crate) fn of(&mut self, call: CallId) -> &mut Truth {
        self.calls.entry(call).or_default()
    }

    pub(crate) fn request_sent(&mut self, call: CallId, run: Run) {
        assert!(
            self.of(call).sent.insert(run),
            "{call}: {run:?} was sent twice"
        );
    }

    /// It was not sent, and who wanted to says so in its name.
    pub(crate) fn request_refused(&mut self, call: CallId, run: Run) {
        let truth = self.of(call);
        truth.sent.remove(&run);
        truth.refused = true;
    }

    pub(crate) fn handler_started(&mut self, call: CallId, run: Run, node: NodeId) {
        let truth = self.of(call);
        assert!(
            truth.executed.insert(run),
            "{call}: {run:?} was executed twice"
        );
        assert!(
            !truth.quiet,
            "{call}: {run:?} began after the call was quiet"
        );
        truth.running.insert(run, node);
        truth.servers.insert(node);
    }

    pub(crate) fn handler_ended(&mut self, call: CallId, run: Run) {
        self.of(call).running.remove(&run);
    }

    pub(crate) fn response_sent(&mut self, call: CallId, id: (Path, u32)) {
        assert!(
            self.of(call).responses.insert(id),
            "{call}: {id:?} was sent twice"
        );
    }

    pub(crate) fn response_delivered(&mut self, call: CallId, id: (Path, u32)) {
        let truth = self.of(call);
        assert!(
            truth.outcome.is_none(),
            "{call}: a response after {:?}",
            truth.outcome
        );
        assert!(
            truth.responses.contains(&id),
            "{call}: {id:?} was never sent"
        );
        assert!(
            truth.delivered.insert(id),
            "{call}: {id:?} was delivered twice"
        );
    }

    pub(crate) fn request_lost(&mut self, call: CallId) {
        self.of(call).lost_request = true;
        self.count("requests lost");
    }

    pub(crate) fn answer_lost(&mut self, call: CallId) {
        self.of(call).lost_answer = true;
        self.count("answers lost");
    }

    /// The world did something that may be taken for a failure: a pause, or lost control messages.
    pub(crate) fn disturbed(&mut self) {
        self.calls
            .values_mut()
            .for_each(|truth| truth.disturbed = true);
    }

    pub(crate) fn crashed(&mut self, node: NodeId) {
        for (call, truth) in &mut self.calls {
            truth.crashed_server |= truth.servers.contains(&node);
            let before = truth.running.len();
            truth.running.retain(|_, at| *at != node);
            truth.killed |= truth.running.len() < before;
            if call.initiator == node && truth.outcome.is_none() {
                truth.outcome = Some("initiator died");
            }
        }
    }

    pub(crate) fn completed(&mut self, call: CallId) {
        self.count("completed");
        let truth = self.of(call);
        assert_eq!(
            truth.outcome.replace("complete"),
            None,
            "{call}: a second outcome"
        );
        assert_eq!(
            truth.delivered, truth.responses,
            "{call}: complete without all responses"
        );
        assert!(
            truth.running.is_empty(),
            "{call}: complete, but {:?} run",
            truth.running
        );
        assert_eq!(
            truth.sent, truth.executed,
            "{call}: complete, but not all requests ran"
        );
    }

    pub(crate) fn failed(&mut self, call: CallId, failure: &Loss) {
        self.count(match failure.kind {
            FailureKind::Silent { .. } => "failed: silent",
            FailureKind::ResponseLost { .. } => "failed: response lost",
            FailureKind::Stalled { .. } => "failed: stalled",
            FailureKind::Undelivered => "failed: undelivered",
            _ => "failed: violation",
        });
        let truth = self.of(call);
        assert_eq!(
            truth.outcome.replace("failed"),
            None,
            "{call}: a second outcome"
        );
        let lost_answer = truth.lost_answer && truth.crashed_server;
        let excused = truth.lost_request || truth.killed || lost_answer || truth.disturbed;
        let told = matches!(failure.kind, FailureKind::Undelivered);
        assert!(
            excused || told,
            "{call} failed falsely: {failure}\n{truth:#?}"
        );
    }

    pub(crate) fn aborted(&mut self, call: CallId) {
        self.count("aborted");
        assert_eq!(self.of(call).outcome.replace("aborted"), None);
    }

    /// `certain`: every server could be asked.
    pub(crate) fn quiet(&mut self, call: CallId, certain: bool) {
        self.count("quiet");
        let truth = self.of(call);
        if certain && !truth.crashed_server && !truth.lost_request && !truth.disturbed {
            assert!(
                truth.running.is_empty(),
                "{call} is quiet, but {:?} run",
                truth.running
            );
            truth.quiet = true;
        }
    }

    /// When nothing happens any more.
    pub(crate) fn check_end(&self) {
        for (call, truth) in &self.calls {
            assert!(
                truth.outcome.is_some(),
                "{call} neither completes nor fails: {truth:#?}"
            );
            assert!(
                truth.running.is_empty(),
                "{call}: {:?} run for ever",
                truth.running
            );
        }
    }
}
