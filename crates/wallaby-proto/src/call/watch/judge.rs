//! What a watch decides: silence, lost responses, handlers without progress, and what is said of them.

use std::time::Duration;

use crate::call::initiator::Violation;
use crate::call::missing::Missing;
use crate::call::watch::branch::{Stopped, WatchedBranch, WatchedHop};
use crate::call::watch::failure::{Executed, FailureKind, Loss, LossStep};
use crate::call::watch::{Location, Phase, Source, Watch, WatchAction};
use crate::id::RequestId;
use crate::wire::{Pong, Progress};

/// Silence that is a failure where a node is known to be gone, in ping periods: a successor that nobody knows yet
/// needs one to announce itself (docs/protocol.md, rule 18).
const GONE: u32 = 3;

/// Most requests that a failure names of those that led to the one that failed.
pub(super) const MOST_STEPS: usize = 64;

/// Most that all losses of one call name together, but for the last one of each.
const MOST_STEPS_OF_LOSSES: usize = 16_384;

impl Watch {
    /// When a branch last showed life, or who has sent it was still writing it.
    pub(super) fn evidence_of(&self, position: u32) -> Duration {
        let parent_writes = self
            .tree
            .parent_of(position)
            .and_then(|parent| self.branches.get(parent as usize)?.top()?.writing);
        self.branches[position as usize].last_evidence(parent_writes)
    }

    /// When a branch will have been silent for too long, if nothing happens until then.
    pub(super) fn silent_at(&self, position: u32) -> Duration {
        let watched = &self.branches[position as usize];
        let mut evidence = self.evidence_of(position);
        if watched.is_awaited() {
            evidence = evidence.max(self.excused.get(&position).copied().unwrap_or_default());
        }
        let early = self.silent_early(watched, evidence);
        match watched
            .gone
            .and_then(|gone| self.given_up_soon(watched, evidence, gone))
        {
            Some(soon) => early.min(soon),
            None => early,
        }
    }

    /// When a branch of which nothing was heard since then has been silent for too long: earlier if its server is gone.
    fn silent_early(&self, watched: &WatchedBranch, evidence: Duration) -> Duration {
        let limit = evidence.saturating_add(self.settings.ping.timeout);
        match watched.gone {
            Some(gone) => limit.min(self.given_up_early(evidence, gone)),
            None => limit,
        }
    }

    /// When a branch is given up whose server is gone for certain: whoever has it now has been told so, too, and is heard soon.
    /// Who passes on a response of it may hold that back for as long as it likes, and says so once a period.
    fn given_up_soon(
        &self,
        watched: &WatchedBranch,
        evidence: Duration,
        gone: Duration,
    ) -> Option<Duration> {
        let node = watched.top()?.at.node?;
        let (since, within) = self.gone.get(&node)?.certain?;
        let period = self.settings.ping.period;
        let last = evidence.max(gone).max(since);
        let passed_on = watched
            .on_its_way
            .map(|said| said.saturating_add(period.saturating_mul(2)));
        let is_held = passed_on.is_some_and(|until| until > last);
        (!is_held).then(|| last.saturating_add(within))
    }

    /// What an earlier attempt knew comes again only when the requests above it get so far: so long they excuse its silence.
    /// Looks for one that does, and notes for all on the way what was found: nothing takes life back that was shown.
    fn excuse(&mut self, position: u32, now: Duration) {
        let enough = now.saturating_sub(self.settings.ping.timeout);
        let mut passed = Vec::new();
        let mut place = position;
        while self.branches[place as usize].is_awaited()
            && let Some(above) = self.tree.parent_of(place)
            && let Some(watched) = self.branches.get(above as usize)
        {
            self.steps += 1;
            let known = self.excused.get(&above).copied().unwrap_or_default();
            let evidence = watched.evidence.max(known);
            passed.push((place, evidence));
            place = above;
            if evidence > enough {
                break;
            }
        }
        let mut latest = Duration::ZERO;
        for (place, evidence) in passed.into_iter().rev() {
            latest = latest.max(evidence);
            self.excused.insert(place, latest);
        }
    }

    /// When the longest missing response of a branch will be lost.
    pub(super) fn lost_at(&self, position: u32) -> Option<Duration> {
        let timeout = self.settings.ping.timeout;
        let watched = &self.branches[position as usize];
        let since = watched.gaps.oldest()?;
        let limit = since.saturating_add(timeout);
        Some(match self.all_gone(watched) {
            Some(gone) => limit.min(self.given_up_early(since, gone)),
            None => limit,
        })
    }

    /// Since when all servers of a branch are known to be gone; never if none of them is known, as is so where another
    /// branch brought its manifest.
    fn all_gone(&self, watched: &WatchedBranch) -> Option<Duration> {
        let gone = |hop: &WatchedHop| Some(self.gone.get(&hop.at.node?)?.since);
        let mut hops = watched.hops.iter();
        hops.try_fold(None, |latest, hop| Some(latest.max(Some(gone(hop)?))))?
    }

    /// When that is given up which was last seen at a server that is gone: its successor has one period to announce itself
    /// and one to be heard.
    fn given_up_early(&self, evidence: Duration, gone: Duration) -> Duration {
        let period = match self.phase {
            Phase::Watching => self.settings.quiet(),
            _ => self.settings.ping.period, // now it is asked
        };
        let shrunk = evidence.saturating_add(period.saturating_mul(GONE));
        shrunk.max(gone.saturating_add(period.saturating_mul(GONE - 1)))
    }

    pub(super) fn verdict_due(&self, position: u32) -> Option<Duration> {
        let branch = self.tree.branch_at(position)?;
        match self.phase {
            Phase::Watching => {
                let watched = &self.branches[position as usize];
                let silent = (branch.facts.is_none() || watched.is_rerun())
                    .then(|| self.silent_at(position));
                silent.into_iter().chain(self.lost_at(position)).min()
            }
            Phase::Winding { since, .. } => Some(self.given_up_at(position, since)),
            Phase::Quiet => None,
        }
    }

    /// When a branch that does not answer is no longer asked to stop (rule 35).
    pub(super) fn given_up_at(&self, position: u32, since: Duration) -> Duration {
        let watched = &self.branches[position as usize];
        // Not sooner, even if its server is gone for certain: what that has handed on announces itself once in a period.
        let silent = self.silent_early(watched, watched.evidence.max(since));
        let let_go = self.let_go_at(position);
        let settled = let_go.map_or(silent, |let_go| silent.min(let_go));
        settled.min(self.ends_winding_at(since))
    }

    /// Decides whether a branch has been silent for too long; returns whether there is nothing more to do for it now.
    pub(super) fn judge(&mut self, position: u32, now: Duration) -> bool {
        if let Phase::Winding { since, .. } = self.phase {
            if self.given_up_at(position, since) > now {
                return false;
            }
            self.stopped(position, Stopped::Quiet);
            return true;
        }
        if self.branches[position as usize].is_awaited() && self.silent_at(position) <= now {
            self.excuse(position, now);
        }
        let Some(branch) = self.tree.branch_at(position) else {
            return true;
        };
        let watched = &self.branches[position as usize];
        let request = RequestId {
            path: branch.path,
            hop: branch.hop.max(watched.top().map_or(0, |hop| hop.hop)),
        };
        let runs = branch.facts.is_none() || watched.is_rerun();
        if runs && self.silent_at(position) <= now {
            let evidence = self.branches[position as usize].evidence;
            let silence = now.saturating_sub(evidence);
            let absence = self.absence(position);
            let kind = FailureKind::Silent { silence, absence };
            self.fail_at(Some(position), request, kind, now);
            return true;
        }
        if self.lost_at(position).is_some_and(|lost| lost <= now) {
            let bound = self.branches[position as usize].gaps.bound();
            let missing = branch.received.missing(0, bound).next();
            if let Some(index) = missing {
                let kind = FailureKind::ResponseLost { index };
                let request = self.sender_of(position, request, index);
                self.fail_at(Some(position), request, kind, now);
                return true;
            }
        }
        false
    }

    /// The hop of a branch that sent a response, as far as known.
    pub(super) fn sender_of(&self, position: u32, top: RequestId, response: u32) -> RequestId {
        let watched = &self.branches[position as usize];
        let sent = |hop: &&WatchedHop| hop.base.is_some_and(|base| base <= response);
        let hop = watched.hops.iter().rev().find(sent);
        RequestId {
            hop: hop.map_or(top.hop, |hop| hop.hop),
            ..top
        }
    }

    /// What a pong says that ends the call at once.
    pub(super) fn judge_pong(
        &mut self,
        position: u32,
        pong: &Pong,
        progress: &Progress,
        from: &Source,
        now: Duration,
    ) {
        let Some(branch) = self.tree.branch_at(position) else {
            return;
        };
        let missing = |index: &&u32| {
            index
                .checked_add(1)
                .is_some_and(|next| branch.received.missing(**index, next).next().is_some())
        };
        // What went out on a connection that is still open here may yet be read (rule 25).
        let lost = progress.lost.iter().find(missing).filter(|_| from.alone);
        // Its server may not know that the next one has it. Who passes it on says so each period.
        let period = self.settings.ping.period;
        let said = self.branches[position as usize].on_its_way;
        let on_its_way =
            said.is_some_and(|said| now < said.saturating_add(period.saturating_mul(2)));
        let lost = lost.filter(|_| !on_its_way);
        let stalled = match (progress.idle, self.settings.stall) {
            (Some(idle), Some(limit)) if idle >= limit && !progress.finished && !pong.writing => {
                Some(idle)
            }
            _ => None,
        };
        let kind = match (lost, stalled) {
            (Some(&index), _) => FailureKind::ResponseLost { index },
            (None, Some(idle)) => FailureKind::Stalled { idle },
            (None, None) => return,
        };
        self.fail_at(Some(position), pong.request, kind, now);
    }

    pub(super) fn violated(&mut self, request: RequestId, violation: Violation, now: Duration) {
        self.look_at_changes(now);
        let position = self.tree.find(&request.path);
        self.fail_at(position, request, violation.into(), now);
    }

    /// What is told of a message of this request that cannot be taken.
    pub fn describe_violation(
        &mut self,
        request: RequestId,
        violation: Violation,
        now: Duration,
    ) -> Loss {
        self.look_at_changes(now);
        let position = self.tree.find(&request.path);
        self.describe(position, request, violation.into())
    }

    pub(super) fn fail_at(
        &mut self,
        position: Option<u32>,
        request: RequestId,
        kind: FailureKind,
        now: Duration,
    ) {
        if self.is_winding_down() {
            return;
        }
        let failure = Box::new(self.describe(position, request, kind));
        let lost = matches!(
            failure.kind,
            FailureKind::Silent { .. }
                | FailureKind::ResponseLost { .. }
                | FailureKind::Stalled { .. }
        );
        if let Some(position) = position.filter(|_| lost && self.settings.tolerant) {
            return self.go_on_without(position, failure, now);
        }
        // A status has told the application how a branch ended, for reasons that need not come again.
        let (_, statuses) = self.tree.responses();
        let again = lost && statuses == 0 && self.resends < self.settings.resends;
        if let Some(position) = position.filter(|_| again) {
            return self.resend(position, failure, now);
        }
        self.actions.push_back(WatchAction::Failed(failure));
        self.wind_down(now);
    }

    /// The call goes on without what is missing of a branch.
    fn go_on_without(&mut self, position: u32, mut failure: Box<Loss>, now: Duration) {
        let request = failure.request;
        // Each loss is told once, however often a server says so.
        if self.tree.is_complete() || self.tree.branch_at(position).is_some_and(|at| at.lost) {
            return;
        }
        // The application keeps them all: a server that names ever more requests must not make each of them a long story.
        let room = MOST_STEPS_OF_LOSSES.saturating_sub(self.told_steps).max(1);
        let excess = failure.path.len().saturating_sub(room);
        failure.path.drain(..excess);
        failure.path.shrink_to_fit();
        self.told_steps += failure.path.len();
        self.actions.push_back(WatchAction::Lost(failure));
        match self.tree.give_up(position) {
            Ok(()) => self.look_at_changes(now),
            Err(violation) => self.violated(request, violation, now),
        }
    }

    /// Lets the initial request above a branch be sent again: all below it, as far as it has not ended, begins anew.
    pub(super) fn resend(&mut self, position: u32, failure: Box<Loss>, now: Duration) {
        let root = self.roots.of(&self.tree, position);
        let Some(branch) = self.tree.branch_at(root) else {
            return;
        };
        let request = RequestId {
            path: branch.path,
            hop: 0,
        };
        if let Some(last) = self.tree.branch_count().checked_sub(1) {
            self.ensure_line(last, now); // so that each of them is in the new attempt
        }
        self.resends += 1;
        self.tree.execute_again();
        let attempt = self.watched(root).attempt + 1;
        for place in 0..self.branches.len() as u32 {
            if self.roots.of(&self.tree, place) != root {
                continue;
            }
            let runs_on = self.may_run(place).then(|| {
                let top = self.branches[place as usize].top();
                top.map_or_else(Default::default, |top| (top.hop, top.at.clone()))
            });
            self.tree.forget_end(place);
            self.begin_attempt(place, attempt, now);
            if runs_on.is_some() {
                self.watched(place).left_behind = runs_on;
            }
        }
        self.actions.push_back(WatchAction::Resend {
            request,
            attempt,
            failure,
        });
    }

    /// What was known of a branch's hops is over; what it has to tell begins anew.
    pub(super) fn begin_attempt(&mut self, position: u32, attempt: u32, now: Duration) {
        let next_ping = now.saturating_add(self.settings.ping.period);
        let watched = &mut self.branches[position as usize];
        self.hops -= watched.hops.len();
        if self.tree.is_initial(position) {
            self.latest_attempt = self.latest_attempt.max(attempt);
        }
        *watched = WatchedBranch {
            attempt,
            evidence: now,
            next_ping,
            seen: watched.seen,
            due: watched.due,
            stopped: watched.stopped,
            frozen: watched.frozen,
            wound: watched.wound,
            left_behind: watched.left_behind.take(),
            ..WatchedBranch::default()
        };
        self.look_at(position, now);
    }

    /// The requests that led to one, from the initiator on, as far as known: of the branches above it, and of its own. Of a
    /// long way only the end, so that many losses along it take no more than a part of it each.
    pub(super) fn path_to(&self, position: Option<u32>, request: RequestId) -> Vec<LossStep> {
        let mut path = Vec::new();
        let mut place = position;
        while let Some(position) = place
            && path.len() < MOST_STEPS
        {
            let Some(branch) = self.tree.branch_at(position) else {
                break;
            };
            let own = branch.path == request.path;
            let hops = match self.branches.get(position as usize) {
                Some(watched) => &watched.hops[..],
                None => &[],
            };
            // The latest one of a branch above is known to have been there, even if not where.
            let latest = (!own && hops.iter().all(|hop| hop.hop < branch.hop))
                .then(|| (branch.hop, Location::default()));
            let known = hops.iter().map(|hop| (hop.hop, hop.at.clone()));
            let steps = known
                .filter(|(hop, _)| !own || *hop < request.hop)
                .chain(latest);
            let first = path.len();
            path.extend(steps.map(|(hop, server)| LossStep {
                request: RequestId {
                    path: branch.path,
                    hop,
                },
                server,
            }));
            path[first..].reverse(); // so that the latest comes first, like the branches
            place = self.tree.parent_of(position);
        }
        path.truncate(MOST_STEPS);
        path.reverse();
        path
    }

    pub(super) fn describe(
        &mut self,
        position: Option<u32>,
        request: RequestId,
        kind: FailureKind,
    ) -> Loss {
        let located = |position: u32, hop: u32| {
            let watched = self.branches.get(position as usize)?;
            let known = watched.hops.iter().rev().find(|known| known.hop == hop)?;
            Some(known.at.clone())
        };
        let path = self.path_to(position, request);
        let counts = self.tree.counts();
        let (responses, statuses) = self.tree.responses();
        // A status may be this endpoint's own, in the name of a request that it could not send: that one led to nothing.
        let told = responses > statuses || u64::from(counts.ended) > statuses || counts.went_on;
        let executed = match self.taken || told {
            true => Executed::Executed,
            false => Executed::Unknown,
        };
        Loss {
            call: self.tree.call(),
            kind,
            request,
            method: None,
            server: position
                .and_then(|position| located(position, request.hop))
                .unwrap_or_default(),
            path,
            known: u64::from(self.tree.branch_count()),
            finished: counts.settled.into(),
            responses,
            executed,
            evicted: self.evicted,
            missing: Missing::default(),
        }
    }
}
