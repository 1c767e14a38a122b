//! What a watch asks, whom, and when: work is proportional to what is due.

use std::time::Duration;

use crate::call::watch::branch::{State, Stopped, WatchedBranch, WatchedHop};
use crate::call::watch::{MOST_LOOKED_AT, Phase, Watch, WatchAction};
use crate::id::{NodeId, RequestId};
use crate::wire::{MAX_MISSING, Ping};

/// How long it takes until a process that is being killed takes no connections any more. The dials of an address are limited
/// besides ([`crate::connection::Dials`]).
const MOMENT: Duration = Duration::from_millis(20);

impl Watch {
    /// Whether something of the branch itself is still to come.
    pub(super) fn is_open(&self, position: u32) -> bool {
        match self.phase {
            Phase::Watching => self
                .tree
                .branch_at(position)
                .is_some_and(|branch| !branch.is_settled()),
            Phase::Winding { .. } => {
                let watched = self.branches.get(position as usize);
                watched.is_none_or(|watched| watched.stopped < Stopped::Quiet)
            }
            Phase::Quiet => false,
        }
    }

    /// A branch's time has come: it is judged, and asked about if that is due.
    pub(super) fn take_turn(&mut self, position: u32, now: Duration) {
        self.steps += 1;
        self.wind(position, now);
        if !self.is_open(position) {
            return;
        }
        if self.judge(position, now) {
            return;
        }
        let unasked = self.unasked_until(position);
        let watched = &mut self.branches[position as usize];
        if watched.next_ping <= now && unasked > now {
            (watched.placed, watched.next_ping) = (false, unasked);
        } else if watched.next_ping <= now
            && unasked > Duration::ZERO
            && watched.highest_located().is_none()
        {
            // It has to be found by who is above it, and who was never asked is not silent.
            (watched.asked, watched.evidence) = (true, now);
        }
        let watched = &self.branches[position as usize];
        // No peer has named what the application has sent, and one ping to who is above is for all that are below.
        let is_free = self.tree.is_initial(position) || watched.highest_located().is_none();
        if watched.next_ping <= now && (is_free || self.has_place(position, now)) {
            let watched = &mut self.branches[position as usize];
            (watched.placed, watched.next_ping) =
                (false, now.saturating_add(self.settings.ping.period));
            self.ask(position, now);
        }
        self.arm(position);
    }

    /// Until when a branch is not asked about, as its servers show unasked that they live: not if one of them does not, or has more
    /// to tell than that, nor if something is missing for long. Who holds a response of it back may wait for a ping to show the way.
    pub(super) fn unasked_until(&self, position: u32) -> Duration {
        let heartbeats = self
            .settings
            .heartbeats
            .filter(|_| self.phase == Phase::Watching);
        let Some(heartbeats) = heartbeats else {
            return Duration::ZERO;
        };
        let watched = &self.branches[position as usize];
        if watched.asked || watched.hops.iter().any(|hop| hop.mute || hop.more) {
            return Duration::ZERO;
        }
        let evidence = self.evidence_of(position);
        let is_missed = watched.gaps.oldest().is_some();
        let said = watched.on_its_way;
        if said.is_some_and(|said| is_missed || said >= evidence) {
            return Duration::ZERO;
        }
        let since = watched
            .gaps
            .oldest()
            .map_or(evidence, |gap| gap.min(evidence));
        since.saturating_add(heartbeats.patience())
    }

    /// Whether a branch that wants to be asked about has its place among the pings of this period; if these are too many, it
    /// gets one in a later period.
    pub(super) fn has_place(&mut self, position: u32, now: Duration) -> bool {
        let watched = &mut self.branches[position as usize];
        if watched.placed {
            watched.placed = watched.next_ping > now;
            return !watched.placed;
        }
        let place = self.pace.next(self.settings.ping.period, now);
        if place <= now {
            return true;
        }
        (watched.placed, watched.next_ping) = (true, place);
        if !watched.was_asked() && self.phase == Phase::Watching {
            // Who was never asked is not silent.
            watched.evidence = watched.evidence.max(place);
            watched.gaps.restart(0, place);
        }
        false
    }

    /// A hint says that asking now may tell something; one in a ping period is believed.
    pub(super) fn ask_out_of_turn(&mut self, position: u32, now: Duration) {
        let period = self.settings.ping.period;
        let watched = &mut self.branches[position as usize];
        if watched
            .hinted
            .is_some_and(|hinted| hinted.saturating_add(period) > now)
        {
            return;
        }
        watched.hinted = Some(now);
        // What was asked before the hint tells nothing about it.
        watched.hops.iter_mut().for_each(|hop| hop.pinged = None);
        self.ask(position, now);
    }

    /// Whoever was to be asked is about to end, perhaps: in a moment that is certain.
    pub(super) fn ask_in_a_moment(&mut self, position: u32, node: NodeId, now: Duration) {
        let watched = &mut self.branches[position as usize];
        if watched.placed {
            return; // it has its turn among very many
        }
        let there = |hop: &&mut WatchedHop| hop.at.node == Some(node);
        watched
            .hops
            .iter_mut()
            .filter(there)
            .for_each(|hop| hop.pinged = None);
        watched.next_ping = watched.next_ping.min(now.saturating_add(MOMENT));
        self.arm(position);
    }

    /// Asks all that can tell something about a branch.
    pub(super) fn ask(&mut self, position: u32, now: Duration) {
        let Some(branch) = self.tree.branch_at(position) else {
            return;
        };
        let watched = &self.branches[position as usize];
        let top = watched.highest_located();
        let seen = watched.top().is_some_and(|hop| hop.state != State::Unseen);
        let bound = watched.gaps.bound();
        let mut to = u32::MAX;
        let mut asked: Vec<usize> = Vec::new();
        for (index, hop) in watched.hops.iter().enumerate().rev() {
            let from = hop.base.unwrap_or(0);
            let misses = branch.received.missing(from, to.min(bound)).next();
            // Who has sent the highest hop is asked too, as long as nobody has seen that one.
            let sender = !seen && index + 2 == watched.hops.len();
            if hop.at.is_known() && (Some(index) == top || sender || misses.is_some()) {
                asked.push(index);
            }
            to = hop.base.unwrap_or(to);
        }
        asked.reverse();
        let alone = asked.iter().all(|&index| Some(index) == top);
        // Who announces itself is alive, but must be asked as well, or it takes the initiator for dead.
        let found = watched.top().is_some_and(|hop| hop.at.is_known());
        for (others, index) in asked.into_iter().enumerate() {
            let pinged = self.ping_unless_recent(position, index, now);
            if pinged && others > 0 {
                self.take_place(now);
            }
        }
        if (!seen || !found) && alone {
            self.ask_above(position, now);
        }
    }

    /// Asks the nearest ancestor that can be asked: it knows where its children are (docs/protocol.md, rule 17). Branches above
    /// that cannot be asked are passed by once in half a ping period, whoever below them asks.
    pub(super) fn ask_above(&mut self, position: u32, now: Duration) {
        let mut place = position;
        while let Some(above) = self.tree.parent_of(place) {
            if self.steps >= MOST_LOOKED_AT {
                return self.climbs.push_back(place);
            }
            self.steps += 1;
            self.ensure_line(above, now);
            self.wind(above, now);
            let child = self.tree.branch_at(place).map_or(0, |branch| branch.index);
            let recent = self.recent();
            let watched = &mut self.branches[above as usize];
            watched.wanted = Some(watched.wanted.map_or(child, |wanted| wanted.min(child)));
            if let Some(index) = watched.highest_located() {
                if self.ping_unless_recent(above, index, now) {
                    self.take_place(now);
                }
                return;
            }
            if watched
                .climbed
                .is_some_and(|climbed| climbed.saturating_add(recent) > now)
            {
                return;
            }
            watched.climbed = Some(now);
            place = above;
        }
    }

    /// What is asked besides takes a place, too, and waits for none.
    fn take_place(&mut self, now: Duration) {
        self.pace.next(self.settings.ping.period, now);
    }

    /// Who was asked less long ago is not asked again.
    fn recent(&self) -> Duration {
        self.settings.ping.period / 2
    }

    /// Many children may want to ask the same parent. Returns whether it is asked.
    pub(super) fn ping_unless_recent(
        &mut self,
        position: u32,
        index: usize,
        now: Duration,
    ) -> bool {
        self.wind(position, now);
        let recent = self.recent();
        let pinged = self.branches[position as usize].hops[index].pinged;
        let asks = pinged.is_none_or(|pinged| pinged.saturating_add(recent) <= now);
        if asks {
            self.ping(position, index, now);
        }
        asks
    }

    pub(super) fn ping(&mut self, position: u32, index: usize, now: Duration) {
        if self.phase == Phase::Quiet {
            return; // nothing follows
        }
        let Some(branch) = self.tree.branch_at(position) else {
            return;
        };
        let abort = self.is_winding_down();
        let watched = &mut self.branches[position as usize];
        let (from, to) = watched.range(index);
        let to = to.min(watched.gaps.bound());
        let missing = match abort {
            true => Vec::new(),
            false => branch
                .received
                .missing(from, to)
                .take(MAX_MISSING)
                .collect(),
        };
        let hop = &mut watched.hops[index];
        if !hop.at.is_known() {
            return;
        }
        hop.pinged = Some(now);
        watched.asked = true;
        self.actions.push_back(WatchAction::Ping {
            to: hop.at.clone(),
            ping: Ping {
                call: self.tree.call(),
                token: self.tree.token(),
                request: RequestId {
                    path: branch.path,
                    hop: hop.hop,
                },
                abort,
                children_from: watched
                    .wanted
                    .map_or(watched.listed, |wanted| wanted.min(watched.listed)),
                missing,
                shows: false,
            },
        });
    }

    /// Enters the queue for the next time at which something is to be done for a branch.
    pub(super) fn arm(&mut self, position: u32) {
        let due = match self.is_open(position) {
            true => {
                let watched = &self.branches[position as usize];
                let verdict = self.verdict_due(position);
                Some(verdict.map_or(watched.next_ping, |verdict| verdict.min(watched.next_ping)))
            }
            false => None,
        };
        let watched = &mut self.branches[position as usize];
        if watched.due != due {
            if let Some(before) = watched.due {
                self.queue.remove((before, position));
            }
            watched.due = due;
            if let Some(due) = due {
                self.queue.insert((due, position));
            }
        }
    }

    pub(super) fn watched(&mut self, position: u32) -> &mut WatchedBranch {
        &mut self.branches[position as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::call::initiator::Initiator;
    use crate::call::watch::{Found, Location, Source, WatchSettings};
    use crate::id::{CallId, NodeId, Path, Token};
    use crate::manifest::Facts;
    use crate::wire::{Budgets, End, PingSettings, Pong, Progress};

    /// What turns have cost.
    #[derive(Debug, Default)]
    struct Cost {
        /// The most steps of one turn.
        most: usize,
        /// The steps of all.
        all: usize,
        pings: usize,
    }

    impl Cost {
        fn add(&mut self, watch: &mut Watch) {
            self.most = self.most.max(watch.steps);
            self.all += watch.steps;
            while let Some(action) = watch.poll() {
                self.pings += usize::from(matches!(action, WatchAction::Ping { .. }));
            }
        }

        /// All turns until then.
        fn run(&mut self, watch: &mut Watch, until: Duration) {
            while let Some(due) = watch.next_timeout().filter(|due| *due <= until) {
                watch.handle_timeout(due);
                self.add(watch);
            }
        }

        fn check(&self, branches: usize, rounds: usize) {
            // A turn ends with the branch that takes its last step, and one branch has a few.
            assert!(self.most <= MOST_LOOKED_AT + 8, "{branches}: {self:?}");
            assert!(self.all <= 8 * branches * rounds, "{branches}: {self:?}");
        }
    }

    fn node(number: u64) -> NodeId {
        NodeId::new(number).expect("not zero")
    }

    fn at(number: u64) -> Location {
        Location {
            address: None,
            node: Some(node(number)),
        }
    }

    /// A chain of so many branches, each with a leaf beside the next. The chain has ended, and nobody knows where it was; the
    /// leaves may run.
    fn chain(length: u32) -> (Initiator, Vec<Path>) {
        let call = CallId {
            initiator: node(1),
            sequence: 1,
        };
        let token = Token::new(5);
        let mut initiator = Initiator::new(call, token, Budgets::default());
        let mut path = initiator.send().expect("within the budget").path;
        initiator.close();
        let mut paths = Vec::new();
        for _ in 0..length {
            let end = End {
                call,
                distance: 0,
                token: None,
                request: RequestId { path, hop: 0 },
                facts: Facts {
                    requests: 2,
                    responses: 0,
                },
                manifest: None,
                options: None,
            };
            initiator.handle_end(&end).expect("within the budget");
            paths.push(path);
            path = path.child(0, call, token);
        }
        (initiator, paths)
    }

    fn settings() -> WatchSettings {
        WatchSettings {
            ping: PingSettings {
                period: Duration::from_secs(1),
                timeout: Duration::from_secs(10),
            },
            ..WatchSettings::default()
        }
    }

    const LENGTHS: [u32; 3] = [100, 4_000, 16_000];

    #[test]
    fn a_long_chain_is_climbed_once_for_all_its_leaves() {
        for length in LENGTHS {
            for server in [Location::default(), at(1)] {
                let known = server.is_known();
                let (initiator, _) = chain(length);
                let (now, mut cost) = (Duration::from_secs(1), Cost::default());
                let mut watch = Watch::new(initiator, settings(), [server], now);
                cost.add(&mut watch);
                let until = now + Duration::from_secs(9);
                cost.run(&mut watch, until);
                cost.check(2 * length as usize, 10);
                assert_eq!(cost.pings, if known { 10 } else { 0 }, "{length}");
                // Silence is found out all the same, then all is stopped.
                cost.run(&mut watch, until + Duration::from_secs(30));
                cost.check(2 * length as usize, 20);
                assert!(watch.next_timeout().is_none() && watch.is_winding_down());
            }
        }
    }

    /// Who is at the end of a long chain is asked about when nobody has climbed it for a while.
    #[test]
    fn the_end_of_a_long_chain_is_climbed_from_in_several_turns() {
        const LENGTH: u32 = 16_000;
        let (initiator, paths) = chain(LENGTH);
        let (now, mut cost) = (Duration::from_secs(1), Cost::default());
        let mut watch = Watch::new(initiator, settings(), [Location::default()], now);
        cost.run(&mut watch, now);
        let last = paths.last().and_then(|path| watch.tree.find(path));
        let later = now + settings().ping.period;
        watch.begin_turn(later);
        watch.ask_above(last.expect("it is known"), later);
        cost.add(&mut watch);
        assert!(cost.most <= MOST_LOOKED_AT + 8, "{cost:?}");
        assert_eq!(watch.next_timeout(), Some(later), "the rest is due at once");
        cost.run(&mut watch, later);
        assert!(watch.climbs.is_empty());
        assert!(cost.most <= MOST_LOOKED_AT + 8, "{cost:?}");
    }

    fn pong(watch: &Watch, path: Path, attempt: u32, children: u32) -> Pong {
        Pong {
            call: watch.tree.call(),
            distance: 0,
            token: None,
            request: RequestId { path, hop: 0 },
            attempt,
            announced: false,
            writing: false,
            evicted: false,
            gone: false,
            heartbeats: false,
            progress: Some(Progress {
                finished: false,
                aborted: false,
                base: 0,
                count: 0,
                children_from: 0,
                children: vec![
                    crate::wire::Child {
                        server: "mem://server".parse().expect("an address"),
                        node: Some(node(2)),
                    };
                    children as usize
                ],
                continuation: None,
                facts: None,
                manifest: None,
                idle: None,
                lost: vec![],
                handled_by: None,
            }),
        }
    }

    #[test]
    fn a_further_attempt_of_a_long_chain_costs_each_branch_little() {
        for length in LENGTHS {
            let (initiator, paths) = chain(length);
            let (mut now, mut cost) = (Duration::from_secs(1), Cost::default());
            let settings = WatchSettings {
                resends: 1,
                ..settings()
            };
            let mut watch = Watch::new(initiator, settings, [at(1)], now);
            cost.add(&mut watch);
            let source = Source {
                location: at(1),
                alone: false,
            };
            // The initial request lives, and so excuses all that is not known again.
            for second in 1..=30 {
                now = Duration::from_secs(1 + second);
                cost.run(&mut watch, now);
                let answer = pong(&watch, paths[0], watch.attempt_of(0), 0);
                watch.handle_pong(&answer, &source, now);
                cost.add(&mut watch);
            }
            assert_eq!(
                (watch.resends, watch.is_winding_down()),
                (1, false),
                "{length}"
            );
            // Below the deepest branch something says that it runs.
            let deepest = *paths.last().expect("there are some");
            for _ in 0..100 {
                let answer = pong(&watch, deepest, 1, 0);
                watch.handle_pong(&answer, &source, now);
                cost.add(&mut watch);
            }
            cost.run(&mut watch, now + Duration::from_secs(60));
            assert!(watch.is_winding_down() && watch.next_timeout().is_none());
            assert!(
                cost.all <= 8 * 2 * 100 * length as usize,
                "{length}: {cost:?}"
            );
        }
    }

    #[test]
    fn what_ends_at_a_node_of_many_branches_is_looked_into_by_and_by() {
        for length in [100, 16_000] {
            let (initiator, paths) = chain(2);
            let (now, mut cost) = (Duration::from_secs(1), Cost::default());
            let mut watch = Watch::new(initiator, settings(), [at(1)], now);
            let source = Source {
                location: at(1),
                alone: false,
            };
            for first in (0..length).step_by(200) {
                let mut pong = pong(
                    &watch,
                    paths[1].child(1, watch.tree.call(), watch.tree.token()),
                    0,
                    200,
                );
                let progress = pong.progress.as_mut().expect("known");
                progress.children_from = first;
                watch.handle_pong(&pong, &source, now);
            }
            while watch.poll().is_some() {}
            let branches = length as usize + 5;
            for _ in 0..10 {
                watch.handle_last_disconnect(node(2), now);
                cost.add(&mut watch);
                cost.run(&mut watch, now);
            }
            cost.check(branches, 30);
            assert!(cost.pings >= 10 * length as usize, "{length}: {cost:?}");
            watch.handle_gone(node(2), Found::Nobody, now);
            cost.add(&mut watch);
            watch.abort(now);
            cost.add(&mut watch);
            cost.run(&mut watch, now + Duration::from_secs(30));
            cost.check(branches, 60);
            assert!(watch.next_timeout().is_none());
        }
    }

    /// Two bytes say that a request has led to tens of thousands.
    #[test]
    fn requests_that_a_message_adds_are_looked_at_by_and_by() {
        const CHILDREN: u32 = 60_000;
        for aborts in [false, true] {
            let (initiator, paths) = chain(1);
            let (now, mut cost) = (Duration::from_secs(1), Cost::default());
            let mut watch = Watch::new(initiator, settings(), [at(1)], now);
            cost.add(&mut watch);
            let end = End {
                call: watch.tree.call(),
                distance: 0,
                token: None,
                request: RequestId {
                    path: paths[0].child(0, watch.tree.call(), watch.tree.token()),
                    hop: 0,
                },
                facts: Facts {
                    requests: CHILDREN,
                    responses: 0,
                },
                manifest: None,
                options: None,
            };
            watch.tree.handle_end(&end).expect("within the budget");
            let source = Source::default();
            watch.handle_heard(end.request, &source, now);
            cost.add(&mut watch);
            let known = watch.branches.len();
            assert!(known <= MOST_LOOKED_AT + 8, "{known} lines in a turn");
            assert_eq!(watch.next_timeout(), Some(now), "the rest is due at once");
            // Any of them may be heard of meanwhile.
            let last = end
                .request
                .path
                .child(CHILDREN - 1, watch.tree.call(), watch.tree.token());
            let pong = pong(&watch, last, 0, 0);
            watch.handle_pong(&pong, &source, now);
            cost.add(&mut watch);
            if aborts {
                watch.abort(now);
                cost.add(&mut watch);
            }
            cost.run(&mut watch, now);
            assert_eq!(watch.branches.len(), CHILDREN as usize + 3);
            assert!(!watch.unseen && watch.is_winding_down() == aborts);
            cost.run(&mut watch, now + Duration::from_secs(60));
            assert!(watch.is_winding_down() && watch.next_timeout().is_none());
            cost.check(CHILDREN as usize, 30);
        }
    }

    #[test]
    fn whatever_the_period_is_a_watch_does_not_spin() {
        let times = [Duration::ZERO, Duration::from_nanos(1), Duration::MAX];
        for (period, timeout) in times
            .into_iter()
            .flat_map(|one| times.map(|two| (one, two)))
        {
            let (initiator, _) = chain(2);
            let now = Duration::from_secs(1);
            let settings = WatchSettings {
                ping: PingSettings { period, timeout },
                ..WatchSettings::default()
            };
            let mut watch = Watch::new(initiator, settings, [at(1)], now);
            watch.handle_timeout(now);
            let next = watch.next_timeout().expect("it asks again");
            assert!(
                next >= now + PingSettings::SHORTEST,
                "{period:?} {timeout:?}"
            );
        }
    }
}
