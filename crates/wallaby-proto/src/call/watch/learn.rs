//! What a watch learns: from pongs, from messages of the call, from what the initiator makes of them.

use std::time::Duration;

use crate::call::watch::branch::{MAX_HOPS, State, WatchedBranch, WatchedHop};
use crate::call::watch::{Location, MOST_LOOKED_AT, Phase, Source, Watch, WatchAction, dismiss};
use crate::id::RequestId;
use crate::wire::{Child, MAX_CHILDREN, Ping, Pong, Progress};

impl Watch {
    /// A server that was asked about a request does not know it. That is neither a verdict nor a sign of life
    /// (docs/protocol.md, rule 18): the ping may have overtaken the request, or the request may be forgotten while its successor
    /// lives. Whoever sent it is asked at once.
    pub(super) fn handle_unknown(
        &mut self,
        pong: &Pong,
        attempt: u32,
        from: &Source,
        now: Duration,
    ) {
        let Some(position) = self.tree.find(&pong.request.path) else {
            return;
        };
        if pong.attempt < attempt || pong.attempt > self.resends {
            return;
        }
        self.evicted |= pong.evicted;
        self.look_at_changes(now);
        self.ensure_line(position, now);
        let winds_down = self.is_winding_down();
        let watched = self.watched(position);
        if let Ok(index) = watched
            .hops
            .binary_search_by_key(&pong.request.hop, |hop| hop.hop)
        {
            let hop = &mut watched.hops[index];
            hop.state = State::Unseen;
            // Who passes the ping on does not know the request either. Which incarnation was to have it may not be known.
            let Location { node, address } = &from.location;
            let is_its_server = match hop.at.node {
                Some(_) => *node == hop.at.node,
                None => address.is_some() && *address == hop.at.address,
            };
            hop.unknown = winds_down && !pong.evicted && is_its_server;
            if self.is_open(position) {
                self.ask(position, now);
            }
        }
        self.look_at(position, now);
    }

    /// Who passes a response on says that it is still on its way: it shows life when it arrives. It is of no importance
    /// which attempt has sent it.
    pub(super) fn handle_relayed(&mut self, position: u32, pong: &Pong, now: Duration) {
        let (may_wait, period) = (
            self.settings.heartbeats.is_some(),
            self.settings.ping.period,
        );
        let watched = self.watched(position);
        let number = pong.request.hop;
        let hop = watched.hops.iter().find(|hop| hop.hop == number);
        let base = hop.and_then(|hop| hop.base);
        watched.gaps.restart(base.unwrap_or(0), now);
        watched.on_its_way = Some(now);
        if may_wait && !watched.placed {
            watched.next_ping = watched.next_ping.min(now.saturating_add(period));
        }
        if watched.top().is_none_or(|top| top.hop <= number) {
            watched.evidence = now;
        }
    }

    pub(super) fn handle_known(
        &mut self,
        position: u32,
        pong: &Pong,
        progress: &Progress,
        from: &Source,
        now: Duration,
    ) {
        self.taken = true;
        let number = pong.request.hop;
        match from.location.node {
            Some(node) => drop(self.gone.remove(&node)),
            None => self.note_beyond(position, pong.request.hop),
        }
        if pong.attempt > self.watched(position).attempt {
            // What earlier attempts knew of hops and children is over.
            self.begin_attempt(position, pong.attempt, now);
        }
        let shows_life = pong.heartbeats && !progress.finished && !self.is_winding_down();
        let watched = self.watched(position);
        if shows_life && watched.top().is_none_or(|top| top.hop <= number) {
            // Where that is need not be asked back.
            (watched.asked, watched.evidence) = (false, now);
        }
        self.locate(position, number, &from.location, now);
        // Nobody asks back where it is, so that a later question finds it.
        if let Some(by) = progress.handled_by.as_ref().filter(|_| pong.heartbeats) {
            self.locate_named(position, number, &by.location(), now);
        }
        let Some(index) = self.hop(position, number, now) else {
            return;
        };
        let is_winding = self.is_winding_down();
        let is_mute = self.settings.heartbeats.is_some() && !pong.heartbeats;
        let period = self.settings.ping.period;
        let watched = self.watched(position);
        if is_mute && !watched.placed {
            // Until now it was not to be asked.
            watched.next_ping = watched.next_ping.min(now.saturating_add(period));
        }
        let hop = &mut watched.hops[index];
        hop.base = Some(progress.base);
        hop.mute = is_mute;
        hop.state = match progress.finished {
            true => State::Ended,
            false if hop.state == State::Ended => State::Ended, // pongs overtake each other
            false => State::Running,
        };
        let idle = progress.idle.filter(|_| hop.state == State::Running);
        hop.progressed = idle.map(|idle| (now.saturating_sub(idle), now));
        hop.aborted |= progress.aborted;
        hop.continued |= progress.continuation.is_some();
        if pong.writing {
            hop.writing = Some(now);
            watched.gaps.restart(progress.base, now);
        }
        // Who was told to stop, and does not say so, was not there when it was told.
        if index + 1 == watched.hops.len() && (progress.aborted || !is_winding) {
            watched.evidence = now;
            watched.gone = None;
        }
        if let Some(continuation) = &progress.continuation {
            self.handle_continuation(position, pong, progress.count, continuation, now);
        }
        let was_asked = !pong.announced;
        self.handle_children(position, (pong.request, was_asked), progress, now);
        if let Some(branch) = self.tree.branch_at(position) {
            let gaps = &mut self.branches[position as usize].gaps;
            gaps.know(progress.count, &branch.received, now);
        }
        if !self.is_winding_down() {
            self.judge_pong(position, pong, progress, from, now);
        }
    }

    /// Others have passed on a pong of this hop: if its server was not found from here, it lives all the same. One that was
    /// reached before and is gone may have said this before its end.
    fn note_beyond(&mut self, position: u32, number: u32) {
        let hops = &self.branches[position as usize].hops;
        let hop = hops.iter().find(|hop| hop.hop == number);
        let Some(node) = hop.and_then(|hop| hop.at.node) else {
            return;
        };
        if self.gone.get(&node).is_some_and(|gone| !gone.was_met) {
            self.gone.remove(&node);
            self.beyond.insert(node);
        }
    }

    /// The branch went on: only its next hop needs to live (rule 15).
    pub(super) fn handle_continuation(
        &mut self,
        position: u32,
        pong: &Pong,
        base: u32,
        to: &Child,
        now: Duration,
    ) {
        let Some(next) = pong.request.hop.checked_add(1) else {
            return;
        };
        self.locate_named(position, next, &to.location(), now);
        if let Some(index) = self.hop(position, next, now) {
            self.watched(position).hops[index].base = Some(base);
        }
    }

    pub(super) fn handle_children(
        &mut self,
        position: u32,
        (request, was_asked): (RequestId, bool),
        progress: &Progress,
        now: Duration,
    ) {
        let listed = progress.children.len();
        let end = progress.children_from.saturating_add(listed as u32);
        let watched = self.watched(position);
        let before = watched.listed;
        if progress.children_from <= before {
            watched.listed = before.max(end);
        }
        let mut has_room = true;
        for (place, child) in progress.children.iter().zip(progress.children_from..) {
            match self.tree.discover(position, child) {
                Ok(found) => {
                    self.look_at_changes(now);
                    if was_asked && self.settings.heartbeats.is_some() {
                        self.follow(found, now);
                    }
                    self.locate_named(found, 0, &place.location(), now);
                    self.look_at(found, now);
                }
                Err(violation) => {
                    has_room = false;
                    self.violated(request, violation, now);
                    if !self.stop_child(request, child, place, now) {
                        break; // what is beyond is not even looked at
                    }
                }
            }
        }
        let watched = self.watched(position);
        let is_last = progress.finished && progress.continuation.is_none();
        watched.wanted = watched
            .wanted
            .filter(|&wanted| !is_last && (listed == 0 || progress.children_from > wanted));
        let Ok(index) = watched
            .hops
            .binary_search_by_key(&request.hop, |hop| hop.hop)
        else {
            return;
        };
        if end >= watched.listed || (listed == 0 && (progress.finished || progress.aborted)) {
            watched.hops[index].more = listed >= MAX_CHILDREN;
        }
        // A whole list of requests that nothing had listed before: as many as the call has room for are asked for at once.
        let goes_on = listed >= MAX_CHILDREN && progress.children_from == before;
        if goes_on && (has_room || self.may_stop_strays(now)) {
            self.ping(position, index, now);
        }
    }

    /// Something is late, and who was asked for it names this branch, of which nobody who has it has told yet: it is asked at once,
    /// though it might tell of itself.
    fn follow(&mut self, position: u32, now: Duration) {
        self.ensure_line(position, now);
        let watched = &mut self.branches[position as usize];
        if watched.top().is_none_or(|top| top.state == State::Unseen) && !watched.placed {
            watched.asked = true;
            watched.next_ping = watched.next_ping.min(now);
        }
    }

    /// A request of a call that has failed tells of itself, and the call has no room for it (rule 34). Who has not
    /// been told to stop is told over the connection that the pong came on; all that it led to is told in any case.
    pub(super) fn handle_stray(&mut self, pong: &Pong, now: Duration) -> Option<Ping> {
        let (request, progress) = (pong.request, pong.progress.as_ref()?);
        for (place, child) in progress.children.iter().zip(progress.children_from..) {
            if !self.stop_child(request, child, place, now) {
                break;
            }
        }
        if let (Some(place), Some(hop)) = (&progress.continuation, request.hop.checked_add(1)) {
            self.stop_stray(RequestId { hop, ..request }, place, now);
        }
        let listed = progress.children.len();
        if progress.aborted && listed < MAX_CHILDREN {
            return None;
        }
        let announced = pong.announced && !progress.aborted;
        let may = self.take_stray(now)
            || (announced && self.announced_strays.take(self.settings.ping.period, now));
        let children_from = match progress.aborted {
            true => progress.children_from.saturating_add(listed as u32),
            false => 0,
        };
        may.then(|| Ping {
            children_from,
            ..dismiss(pong, self.tree.token())
        })
    }

    /// A child of this request, which the call has no room for. Returns whether further ones may be told.
    fn stop_child(&mut self, parent: RequestId, index: u32, at: &Child, now: Duration) -> bool {
        if !self.may_stop_strays(now) {
            return false;
        }
        let path = parent
            .path
            .child(index, self.tree.call(), self.tree.token());
        self.stop_stray(RequestId { path, hop: 0 }, at, now);
        true
    }

    fn stop_stray(&mut self, request: RequestId, at: &Child, now: Duration) {
        if self.take_stray(now) {
            self.actions.push_back(WatchAction::Ping {
                to: at.location(),
                ping: Ping {
                    call: self.tree.call(),
                    token: self.tree.token(),
                    request,
                    abort: true,
                    children_from: 0,
                    missing: Vec::new(),
                    shows: false,
                },
            });
        }
    }

    /// A peer that names ever more requests does not make the initiator write to all of them, nor as fast as it names them:
    /// so many are told in a period, and as many in all as the call may have requests, and at least one list of children. The
    /// others are told when they announce themselves.
    fn take_stray(&mut self, now: Duration) -> bool {
        let may = self.may_stop_strays(now);
        if may {
            self.strays += 1;
            self.named_strays.take(self.settings.ping.period, now);
        }
        may
    }

    fn may_stop_strays(&self, now: Duration) -> bool {
        let most = self.tree.budgets().requests.max(MAX_CHILDREN as u32);
        let has_place = self.named_strays.has_place(self.settings.ping.period, now);
        self.phase != Phase::Quiet && self.strays < most && has_place
    }

    /// Where a request is handled became known, perhaps again. New requests are asked about at once (rule 22).
    pub(super) fn locate(&mut self, position: u32, number: u32, at: &Location, now: Duration) {
        if let Some(index) = self.note_location(position, number, at, now) {
            self.ping(position, index, now);
        }
    }

    /// The same, as another server says: when it is its turn among all that servers name.
    fn locate_named(&mut self, position: u32, number: u32, at: &Location, now: Duration) {
        if let Some(index) = self.note_location(position, number, at, now)
            && self.has_place(position, now)
        {
            self.ping(position, index, now);
        }
    }

    /// The latest request of a branch is where its messages say that it is handled, if nobody else has told: so it can be asked
    /// when nobody is left who brought it there (rule 17). What they said of an earlier attempt is over.
    fn locate_as_told(&mut self, position: u32, now: Duration) {
        let watched = &self.branches[position as usize];
        let is_located = watched.top().is_some_and(|top| top.at.is_known());
        if is_located || watched.attempt > 0 || !self.is_open(position) {
            return;
        }
        let Some(branch) = self.tree.branch_at(position) else {
            return;
        };
        let hop = branch.hop.max(watched.top().map_or(0, |top| top.hop));
        let by = branch.handled_by(hop);
        if let Some(by) = by.filter(|by| by.server.is_some()) {
            let at = by.location();
            self.locate_named(position, hop, &at, now);
        }
    }

    /// Returns which hop of the branch is to be asked now.
    fn note_location(
        &mut self,
        position: u32,
        number: u32,
        at: &Location,
        now: Duration,
    ) -> Option<usize> {
        let index = self.hop(position, number, now)?;
        let watched = &mut self.branches[position as usize];
        let is_top = index + 1 == watched.hops.len();
        let hop = &mut watched.hops[index];
        let was_known = hop.at.is_known();
        hop.at.learn(at);
        if let (Some(located), Some(node)) = (&mut self.located, hop.at.node) {
            located.note(node, position);
        }
        self.located.take_if(|located| located.is_old(self.hops));
        let located = !was_known && hop.at.is_known();
        if is_top && let Some(node) = at.node {
            // A request that was not written before an incarnation ended goes to the next one.
            let gone = self.gone.contains_key(&node);
            watched.gone = gone.then(|| watched.gone.unwrap_or(now));
        }
        if !located {
            return None;
        }
        let wanted = watched.wanted.is_some() && watched.highest_located() == Some(index);
        let (from, to) = watched.range(index);
        let to = to.min(watched.gaps.bound());
        let misses = self
            .tree
            .branch_at(position)
            .is_some_and(|branch| branch.received.missing(from, to).next().is_some());
        // The way to a hop that has only announced itself leads over this one: it is gone at once, not a hop a period.
        let leads = watched.highest_located() == Some(index);
        let is_gone_along = leads && !is_top;
        let is_unasked = self.unasked_until(position) > now;
        if is_gone_along {
            // Each step of that way is a sign of life: a long line must not be given up while it is gone along.
            self.branches[position as usize].evidence = now;
        }
        // Overtaken requests are asked if they have something to tell.
        let tells = is_gone_along || (!is_unasked && (leads || misses));
        let asks = wanted || (self.is_open(position) && tells);
        asks.then_some(index)
    }

    /// The position among its branch of a hop, which may be heard of for the first time; `None` if there is no room, or if
    /// it has nothing to tell any more.
    pub(super) fn hop(&mut self, position: u32, number: u32, now: Duration) -> Option<usize> {
        self.ensure_line(position, now);
        let watched = &mut self.branches[position as usize];
        let index = match watched.hops.binary_search_by_key(&number, |hop| hop.hop) {
            Ok(index) => return Some(index),
            Err(index) => index,
        };
        let branch = self.tree.branch_at(position)?;
        if watched.has_settled(number, &branch.received) {
            return None;
        }
        let is_top = index == watched.hops.len();
        // Most branches have one hop, and a vector that grows by itself takes room for four.
        watched
            .hops
            .reserve_exact(usize::from(watched.hops.is_empty()));
        watched.hops.insert(index, WatchedHop::new(number));
        self.hops += 1;
        if is_top {
            // A new hop is a sign of life, and only the highest needs to live (rules 15 and 16).
            watched.evidence = now;
            watched.gone = None;
        }
        let most = self.tree.budgets().requests as usize;
        let full = self.hops > most || watched.hops.len() > MAX_HOPS;
        if full && watched.hops.len() > 1 {
            // A peer that invents hops gets no memory for them.
            watched.hops.remove(0);
            self.hops -= 1;
            return index.checked_sub(1);
        }
        Some(index)
    }

    pub(super) fn ensure_line(&mut self, position: u32, now: Duration) {
        while self.branches.len() <= position as usize {
            self.branches
                .reserve_exact(usize::from(self.branches.is_empty()));
            self.branches.push(WatchedBranch {
                evidence: now,
                next_ping: now,
                wound: self.is_winding_down(),
                ..WatchedBranch::default()
            });
            if self.is_winding_down() {
                self.unfrozen += 1;
                self.unquiet += 1;
            }
        }
    }

    /// Looks at branches of which the initiator has learnt something, as far as this turn goes. A few bytes may add tens of
    /// thousands.
    pub(super) fn look_at_changes(&mut self, now: Duration) {
        self.unseen = true; // not all are counted yet that may be at their end
        while self.steps < MOST_LOOKED_AT
            && let Some(position) = self.tree.next_change()
        {
            self.steps += 1;
            self.look_at(position, now);
        }
        self.unseen = self.tree.has_changes();
        self.check_milestones();
    }

    /// Something about a branch may have changed.
    pub(super) fn look_at(&mut self, position: u32, now: Duration) {
        let Some(branch) = self.tree.branch_at(position) else {
            return;
        };
        let (path, seen) = (branch.path, (branch.hop, branch.received.count));
        self.ensure_line(position, now);
        self.wind(position, now);
        let watched = &mut self.branches[position as usize];
        if seen.0 > watched.seen.0 || seen.1 > watched.seen.1 {
            watched.evidence = now;
        }
        watched.seen = seen;
        if watched.attempt == 0 && seen.0 > watched.top().map_or(0, |top| top.hop) {
            self.hop(position, seen.0, now);
        }
        if self.branches[position as usize].hops.is_empty()
            && let Some(at) = self.placed.get(&path).cloned()
        {
            self.locate(position, 0, &at, now);
        }
        self.locate_as_told(position, now);
        let Some(branch) = self.tree.branch_at(position) else {
            return;
        };
        let watched = &mut self.branches[position as usize];
        let bound = match branch.facts {
            _ if watched.is_rerun() => watched.sent_below(),
            Some(facts) => facts.responses,
            None => branch.received.bound().max(watched.sent_below()),
        };
        watched.gaps.know(bound, &branch.received, now);
        let before = watched.hops.len();
        watched.forget_settled_hops(&branch.received);
        self.hops -= before - watched.hops.len();
        if self.is_winding_down() {
            let told = self.branches[position as usize].told_stop(branch);
            self.stopped(position, told);
        }
        let is_new = self.is_open(position) && self.watched(position).due.is_none();
        if is_new && self.steps < MOST_LOOKED_AT {
            self.take_turn(position, now);
        } else {
            self.arm(position);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::call::initiator::Initiator;
    use crate::call::watch::{Found, MAX_UNNAMED, WatchSettings};
    use crate::id::{CallId, NodeId, Path, RequestId, Token};
    use crate::wire::Budgets;

    const NOW: Duration = Duration::from_secs(1);

    fn node(number: u64) -> NodeId {
        NodeId::new(number).expect("not zero")
    }

    fn at(number: u64) -> Location {
        Location {
            address: None,
            node: Some(node(number)),
        }
    }

    fn watched(budgets: Budgets) -> Watch {
        let call = CallId {
            initiator: node(1),
            sequence: 1,
        };
        let mut initiator = Initiator::new(call, Token::new(5), budgets);
        initiator.send().expect("within the budget");
        initiator.close();
        let settings = WatchSettings::default();
        Watch::new(initiator, settings, [at(1)], NOW)
    }

    /// Somebody at this node says that he runs this request; each hop before has sent a response, which is missing.
    fn hear(watch: &mut Watch, path: Path, hop: u32, from: u64) {
        let pong = Pong {
            call: watch.tree.call(),
            distance: 0,
            token: None,
            request: RequestId { path, hop },
            attempt: 0,
            announced: true,
            writing: false,
            evicted: false,
            gone: false,
            heartbeats: false,
            progress: Some(Progress {
                finished: false,
                aborted: false,
                base: hop,
                count: hop,
                children_from: 0,
                children: vec![],
                continuation: None,
                facts: None,
                manifest: None,
                idle: Some(Duration::ZERO),
                lost: vec![],
                handled_by: None,
            }),
        };
        let source = Source {
            location: at(from),
            alone: true,
        };
        watch.handle_pong(&pong, &source, NOW);
    }

    fn hops(watch: &Watch) -> Vec<Vec<u32>> {
        let branches = watch.branches.iter();
        let hops: Vec<Vec<u32>> = branches
            .map(|watched| watched.hops.iter().map(|hop| hop.hop).collect())
            .collect();
        assert_eq!(watch.hops, hops.iter().map(Vec::len).sum::<usize>());
        hops
    }

    #[test]
    fn a_line_remembers_its_latest_hops_and_no_more_than_it_may() {
        let mut watch = watched(Budgets::default());
        let path = watch.tree.initial(0).expect("sent").path;
        let most = MAX_HOPS as u32;
        for hop in 0..most {
            hear(&mut watch, path, hop, 7);
        }
        assert_eq!(hops(&watch), [Vec::from_iter(0..most)]);
        for hop in most..most + 5 {
            hear(&mut watch, path, hop, 7);
        }
        assert_eq!(hops(&watch), [Vec::from_iter(5..most + 5)]);
    }

    #[test]
    fn all_lines_together_remember_as_many_hops_as_there_may_be_requests() {
        let mut watch = watched(Budgets {
            requests: 4,
            ..Budgets::default()
        });
        let root = watch.tree.initial(0).expect("sent").path;
        for hop in 0..4 {
            hear(&mut watch, root, hop, 7);
        }
        assert_eq!(hops(&watch), [[0, 1, 2, 3]]);
        hear(&mut watch, root, 4, 7);
        assert_eq!(hops(&watch), [[1, 2, 3, 4]]);
        // Each branch keeps one, whatever others have.
        let child = root.child(0, watch.tree.call(), watch.tree.token());
        hear(&mut watch, child, 0, 8);
        assert_eq!(hops(&watch), [&[1, 2, 3, 4][..], &[0]]);
        hear(&mut watch, child, 1, 8);
        assert_eq!(hops(&watch), [&[1, 2, 3, 4][..], &[1]]);
        hear(&mut watch, root, 5, 7);
        assert_eq!(hops(&watch), [&[2, 3, 4, 5][..], &[1]]);
    }

    /// A server that says each time that it is another node.
    #[test]
    fn nodes_that_are_gone_are_remembered_while_they_are_few() {
        let mut watch = watched(Budgets::default());
        let path = watch.tree.initial(0).expect("sent").path;
        for number in 1..=3 * MAX_UNNAMED as u64 {
            hear(&mut watch, path, 0, 100 + number);
            watch.handle_gone(node(100 + number), Found::Nobody, NOW);
            let known = watch.gone.len();
            assert!(known <= MAX_UNNAMED + 2, "{known}"); // twice the hop
            if number <= MAX_UNNAMED as u64 {
                assert_eq!(known as u64, number);
            }
        }
    }

    /// Peers may say so as often as they like: only what is new is looked into.
    #[test]
    fn a_node_that_is_known_to_be_gone_is_looked_into_once() {
        let mut watch = watched(Budgets::default());
        let path = watch.tree.initial(0).expect("sent").path;
        hear(&mut watch, path, 0, 7);
        let mut steps = || {
            watch.handle_told_gone(RequestId { path, hop: 0 }, NOW, NOW);
            std::mem::take(&mut watch.steps)
        };
        assert!(steps() > 0);
        assert_eq!([steps(), steps()], [0, 0]);
    }

    #[test]
    fn a_node_that_nothing_is_at_is_of_no_importance() {
        let mut watch = watched(Budgets::default());
        while watch.poll().is_some() {}
        watch.handle_disconnect(node(99), NOW);
        watch.handle_last_disconnect(node(99), NOW);
        watch.handle_gone(node(99), Found::Nobody, NOW);
        assert!(watch.poll().is_none() && watch.gone.is_empty());
        watch.handle_disconnect(node(1), NOW);
        assert!(watch.poll().is_some(), "the request is there");
    }

    fn pong(watch: &Watch, number: u32, progress: Progress) -> Pong {
        let path = watch.tree.initial(0).expect("sent").path;
        Pong {
            call: watch.tree.call(),
            distance: 0,
            token: None,
            request: RequestId { path, hop: number },
            attempt: 0,
            announced: false,
            writing: false,
            evicted: false,
            gone: false,
            heartbeats: false,
            progress: Some(progress),
        }
    }

    /// What a request that runs and has sent nothing says, with children from this number on.
    fn listing(children_from: u32, children: usize) -> Progress {
        let child = Child {
            server: crate::Address::Mem("m".into()),
            node: Some(node(9)),
        };
        Progress {
            finished: false,
            aborted: false,
            base: 0,
            count: 0,
            children_from,
            children: vec![child; children],
            continuation: None,
            facts: None,
            manifest: None,
            idle: Some(Duration::ZERO),
            lost: vec![],
            handled_by: None,
        }
    }

    fn at_first() -> Source {
        Source {
            location: at(1),
            alone: true,
        }
    }

    #[test]
    fn a_page_that_comes_late_does_not_end_the_list() {
        let finished = |from, children| Progress {
            finished: true,
            facts: None,
            ..listing(from, children)
        };
        let after_a_page = |then: &[Progress]| {
            let mut watch = watched(Budgets::default());
            for progress in [&[listing(0, MAX_CHILDREN)], then].concat() {
                let pong = pong(&watch, 0, progress);
                watch.handle_pong(&pong, &at_first(), NOW);
            }
            let watched = &watch.branches[0];
            (watched.hops[0].more, watched.listed as usize - MAX_CHILDREN)
        };
        assert_eq!(after_a_page(&[]), (true, 0), "a full page");
        assert_eq!(after_a_page(&[listing(0, 10)]), (true, 0), "an earlier one");
        assert_eq!(after_a_page(&[finished(0, 10)]), (true, 0), "that too");
        assert_eq!(after_a_page(&[listing(0, 0)]), (true, 0), "one of nothing");
        assert_eq!(
            after_a_page(&[finished(0, 0)]),
            (false, 0),
            "there are no more"
        );
        let next = listing(MAX_CHILDREN as u32, 5);
        assert_eq!(after_a_page(&[next]), (false, 5), "the last");
    }

    #[test]
    fn a_child_that_is_looked_for_is_until_a_list_must_have_named_it() {
        let wanted_after = |progress: Progress| {
            let mut watch = watched(Budgets::default());
            watch.branches[0].wanted = Some(3);
            let pong = pong(&watch, 0, progress);
            watch.handle_pong(&pong, &at_first(), NOW);
            watch.branches[0].wanted
        };
        assert_eq!(wanted_after(listing(0, 0)), Some(3), "it names nobody yet");
        assert_eq!(wanted_after(listing(5, 2)), Some(3), "others");
        assert_eq!(wanted_after(listing(0, 5)), None);
        let finished = Progress {
            finished: true,
            ..listing(0, 0)
        };
        assert_eq!(wanted_after(finished), None, "it never will");
    }

    #[test]
    fn a_branch_that_went_on_elsewhere_did_whatever_comes_late() {
        let mut watch = watched(Budgets::default());
        let child = listing(0, 1).children.pop();
        let went_on = Progress {
            finished: true,
            aborted: true,
            count: 1,
            continuation: child,
            idle: None,
            ..listing(0, 0)
        };
        for progress in [went_on, listing(0, 0)] {
            let pong = pong(&watch, 0, progress);
            watch.handle_pong(&pong, &at_first(), NOW);
            let hop = &watch.branches[0].hops[0];
            assert!(hop.continued && hop.aborted && hop.state == State::Ended);
        }
    }

    #[test]
    fn a_request_runs_as_long_as_its_server_says_so() {
        let mut watch = watched(Budgets::default());
        let request = watch.tree.initial(0).expect("sent");
        assert_eq!(watch.idle(request, NOW), None, "nobody said so");
        let idle = Duration::from_millis(300);
        let running = Progress {
            idle: Some(idle),
            ..listing(0, 0)
        };
        let running = pong(&watch, 0, running);
        watch.handle_pong(&running, &at_first(), NOW);
        assert_eq!(watch.idle(request, NOW), Some(idle));
        let period = watch.settings.ping.period;
        let later = NOW + period;
        let since = watch.idle(request, later);
        assert_eq!(since, Some(idle + period));
        let silent = watch.idle(request, later + period);
        assert_eq!(silent, None, "two periods ago");
        let ended = Progress {
            finished: true,
            idle: None,
            ..listing(0, 0)
        };
        let ended = pong(&watch, 0, ended);
        watch.handle_pong(&ended, &at_first(), later);
        assert_eq!(watch.idle(request, later), None);
    }

    #[test]
    fn hops_that_have_nothing_to_tell_any_more_do_not_count() {
        let mut watch = watched(Budgets::default());
        for number in [0, 1, 5] {
            let pong = pong(&watch, number, listing(0, 0));
            watch.handle_pong(&pong, &at_first(), NOW);
            assert_eq!(hops(&watch), [[number]]);
        }
        // Two more, each of which has sent a response that is missing.
        let path = watch.tree.initial(0).expect("sent").path;
        for hop in [6, 7] {
            hear(&mut watch, path, hop, 7);
        }
        assert_eq!(hops(&watch), [[5, 6, 7]]);
        watch.begin_attempt(0, 1, NOW);
        assert_eq!(hops(&watch), [[]; 1], "nothing is known of another attempt");
    }

    /// It may have said so before its end; one that was never reached may be beyond this endpoint's reach.
    #[test]
    fn what_others_pass_on_of_a_node_that_was_met_does_not_bring_it_back() {
        for (was_met, is_gone) in [(false, false), (true, true)] {
            let mut watch = watched(Budgets::default());
            watch.handle_not_found(node(1), Found::Nobody, NOW);
            if was_met {
                watch.handle_gone(node(1), Found::Nobody, NOW);
            }
            assert!(watch.gone.contains_key(&node(1)));
            let passed_on = pong(&watch, 0, listing(0, 0));
            watch.handle_pong(&passed_on, &Source::default(), NOW);
            assert_eq!(watch.gone.contains_key(&node(1)), is_gone);
            assert_eq!(watch.beyond.contains(&node(1)), !is_gone);
        }
    }
}
