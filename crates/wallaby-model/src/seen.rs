//! What an observer of all endpoints has seen in a run, and what must hold of it. It knows the tree and the messages that
//! were lost, and nothing of manifests, facts or pings.

use wallaby_proto::wire::Message;

use crate::client::Outcome;
use crate::plan::Tree;

/// What happened so far.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Seen {
    /// Requests that were handled, a bit for each.
    handled: u16,
    /// Responses that were delivered, a bit for each.
    delivered: u16,
    handled_twice: bool,
    delivered_twice: bool,
    /// The first outcome of the call.
    outcome: Option<Outcome>,
    changed: bool,
    /// A request, a response or a running handler was lost for good: the call may fail.
    lost: bool,
    /// An end was lost, which pongs make up for, unless its server crashes.
    lost_end: bool,
    /// Responses were cut off that their server, if it does not crash, sends again.
    cut_off: bool,
    crashed: bool,
    /// Anything was lost.
    disturbed: bool,
    pub(crate) started_after_quiet: bool,
    started_after_stop: bool,
}

impl Seen {
    /// A handler of a request started: while the call was over, or its server had been told to stop it.
    pub(crate) fn started(&mut self, request: u8, over: bool, stopped: bool) {
        let bit = 1 << request;
        self.handled_twice |= self.handled & bit != 0;
        self.handled |= bit;
        self.started_after_quiet |= over;
        self.started_after_stop |= stopped;
    }

    pub(crate) fn delivered(&mut self, response: u8) {
        let bit = 1_u16.checked_shl(u32::from(response)).unwrap_or(0);
        // A response that a failing handler had held back must not arrive: it counts as one that came before.
        self.delivered_twice |= bit == 0 || self.delivered & bit != 0;
        self.delivered |= bit;
    }

    pub(crate) fn outcome_is(&mut self, outcome: Option<Outcome>) {
        self.changed |= self.outcome.is_some() && outcome != self.outcome;
        self.outcome = self.outcome.or(outcome);
    }

    /// A message was lost; `cut` with its connection, whose ends both know.
    pub(crate) fn lost(&mut self, message: &Message, cut: bool) {
        self.disturbed = true;
        match message {
            Message::Request(_) => self.lost = true,
            Message::Response(_) if cut => self.cut_off = true,
            Message::Response(_) => self.lost = true,
            Message::End(_) => self.lost_end = true,
            Message::Ping(_) | Message::Pong(_) | Message::Trace(_) => {}
        }
    }

    pub(crate) fn crashed(&mut self, handlers: bool) {
        self.crashed = true;
        self.disturbed = true;
        self.lost |= handlers;
    }

    pub(crate) fn was_cut(&mut self) {
        self.disturbed = true;
    }

    /// How the call ended.
    pub fn outcome(&self) -> Option<Outcome> {
        self.outcome
    }

    /// Whether the call may fail: something was lost that nobody can make up for.
    pub fn may_fail(&self) -> bool {
        self.lost || (self.crashed && (self.lost_end || self.cut_off))
    }

    /// Whether nothing was lost at all.
    pub(crate) fn is_undisturbed(&self) -> bool {
        !self.disturbed
    }

    pub(crate) fn is_crashed(&self) -> bool {
        self.crashed
    }

    /// COMPLETE: every handler of the tree ran, and every response was delivered.
    pub(crate) fn completion_is_true(&self, tree: &Tree) -> bool {
        let all = |count: usize| ((1_u32 << count) - 1) as u16;
        self.outcome != Some(Outcome::Completed)
            || (self.handled == all(tree.handlers.len())
                && self.delivered == all(usize::from(tree.responses)))
    }

    pub(crate) fn is_at_most_once(&self) -> bool {
        !self.handled_twice
    }

    pub(crate) fn stops(&self) -> bool {
        !self.started_after_stop
    }

    pub(crate) fn delivers_once(&self) -> bool {
        !self.delivered_twice
    }

    pub(crate) fn failure_is_true(&self) -> bool {
        self.outcome != Some(Outcome::Failed) || self.may_fail()
    }

    pub(crate) fn is_settled_for_good(&self) -> bool {
        !self.changed
    }
}
