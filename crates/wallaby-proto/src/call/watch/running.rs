//! What runs on of a call that is wound down, and how long its servers are asked about that.

use std::time::Duration;

use crate::call::watch::branch::{Stopped, WatchedBranch};
use crate::call::watch::{Found, Location, LossStep, Watch};
use crate::id::{Path, RequestId};
use crate::wire::PingSettings;

/// For so many ping periods a branch is asked about that cannot go on any further, though nobody waits for its handlers: most of
/// them are done when they are asked again.
const ASKED: u32 = 2;

/// For so many ping periods and a timeout a call is wound down in all: long enough to ask about all requests that it may have by
/// default, [`MOST_ASKED`] in a period.
///
/// [`MOST_ASKED`]: crate::call::watch::MOST_ASKED
pub const MOST_WINDING: u32 = 300;

/// What goes on of a call that is wound down, as its servers have said last.
#[derive(Debug, Default)]
pub struct StillFrozen {
    /// Requests whose handlers go on although they were told to stop.
    pub running: Unstopped,
    /// Of branches that have not said whether they have stopped, the latest request each.
    pub unheard: Unstopped,
}

/// Requests that have not stopped, or have not said so.
#[derive(Debug, Default)]
pub struct Unstopped {
    /// Some of them.
    pub named: Vec<UnstoppedHop>,
    /// How many more there are.
    pub more: u64,
}

/// One of them.
#[derive(Debug)]
pub struct UnstoppedHop {
    /// The request.
    pub request: RequestId,
    /// Where it was, as far as known, if it is one of an attempt before the latest.
    pub before: Option<Location>,
    /// The requests that led to it, as far as known.
    pub path: Vec<LossStep>,
    /// Its server is gone, and nobody who has what that had handed on can tell of it.
    pub gone: bool,
}

impl Unstopped {
    fn add(&mut self, most: usize, hop: impl FnOnce() -> UnstoppedHop) {
        match self.named.len() < most {
            true => self.named.push(hop()),
            false => self.more += 1,
        }
    }

    /// Those are among them, too.
    pub fn extend(&mut self, others: Self, most: usize) {
        self.more += others.more;
        for hop in others.named {
            self.add(most, || hop);
        }
    }
}

impl Watch {
    /// Somebody waits until then for handlers that go on, or nobody any more.
    pub fn wait_for_stop(&mut self, until: Option<Duration>) {
        self.asked_until = until.map_or(Duration::ZERO, |until| self.asked_until.max(until));
    }

    /// When a branch is asked no more whose handler goes on although it was told to stop: a server that always says so must not
    /// keep the call for ever.
    pub(super) fn let_go_at(&self, position: u32) -> Option<Duration> {
        let frozen = self.branches[position as usize].frozen?;
        let asked = self.settings.ping.period.saturating_mul(ASKED);
        Some(frozen.saturating_add(asked).max(self.asked_until))
    }

    /// When nothing is asked any more of a call that is wound down since then, whatever its servers say: one that is told to stop
    /// and says each time that it has handed its work on must not keep the call for ever.
    pub(super) fn ends_winding_at(&self, since: Duration) -> Duration {
        let PingSettings { period, timeout } = self.settings.ping;
        let most = period.saturating_mul(MOST_WINDING).saturating_add(timeout);
        since.saturating_add(most).max(self.asked_until)
    }

    /// What is known of handlers that go on, and what nobody has told of; so many of each by name. Of requests that `waits` says no
    /// server has one yet. Whether servers that nobody knows yet can reach this endpoint: then they have told of themselves.
    pub fn still_running(
        &self,
        most: usize,
        waits: impl Fn(&Path) -> bool,
        listens: bool,
    ) -> StillFrozen {
        let mut still = StillFrozen::default();
        for (position, watched) in (0..).zip(&self.branches) {
            let Some(branch) = self.tree.branch_at(position) else {
                continue;
            };
            let named = |hop, before: Option<Location>| {
                let request = RequestId {
                    path: branch.path,
                    hop,
                };
                let position = before.is_none().then_some(position);
                UnstoppedHop {
                    request,
                    path: self.path_to(position, request),
                    before,
                    gone: false,
                }
            };
            let latest = || {
                let top = watched.top().map_or(0, |top| top.hop);
                named(top.max(branch.hop), None)
            };
            let is_sent = watched.attempt > 0 || !waits(&branch.path);
            if watched.told_stop(branch) == Stopped::Frozen && !self.is_over(watched) {
                still.running.add(most, latest);
            } else if let Some((hop, at)) = &watched.left_behind {
                // Nobody asks about an earlier attempt any more.
                still.unheard.add(most, || named(*hop, Some(at.clone())));
            } else if self.is_winding_down() && is_sent && self.may_run(position) {
                // One that is asked no more has not said so either.
                still.unheard.add(most, latest);
            } else if !listens && self.may_have_gone_on(position) {
                let gone = || UnstoppedHop {
                    gone: true,
                    ..latest()
                };
                still.unheard.add(most, gone);
            }
        }
        still
    }

    /// Whether anything of a branch may run, as far as anybody has told.
    pub(super) fn may_run(&self, position: u32) -> bool {
        let watched = &self.branches[position as usize];
        let stopped = |branch| watched.told_stop(branch) == Stopped::Quiet;
        let unknown = watched.top().is_some_and(|top| top.unknown);
        !(unknown || self.is_over(watched) || self.tree.branch_at(position).is_none_or(stopped))
    }

    /// Whether a branch was at a process that has ended, and may have been handed on there.
    fn may_have_gone_on(&self, position: u32) -> bool {
        let watched = &self.branches[position as usize];
        let ended = |branch| watched.told_stop(branch) == Stopped::Quiet;
        self.is_over(watched) && !self.tree.branch_at(position).is_none_or(ended)
    }

    /// Whether the process that runs a branch has ended: where it was reached before nobody listens now, or another one does. That no
    /// way leads there proves nothing, nor does another server at a host's name.
    fn is_over(&self, watched: &WatchedBranch) -> bool {
        let Some(at) = watched.top().map(|top| &top.at) else {
            return false;
        };
        let gone = at.node.and_then(|node| self.gone.get(&node));
        let is_name = at.address.as_ref().is_some_and(|at| at.is_name());
        gone.is_some_and(|gone| gone.was_met && gone.found != Found::NoHost) && !is_name
    }
}
