//! What a watch knows of one branch besides what completion needs: its hops, and since when it waits for what.

use std::collections::VecDeque;
use std::time::Duration;

use crate::call::branches::{Branch, ReceivedResponses};
use crate::call::watch::Location;

/// Most hops of one branch that are known at a time.
pub(super) const MAX_HOPS: usize = 256;

/// Most times that are kept at which responses became known to be missing.
const MAX_GAPS: usize = 16;

/// One branch under watch: its hops one behind the other.
#[derive(Debug, Default)]
pub(super) struct WatchedBranch {
    /// Known hops, the lowest first. Those that can have nothing to tell any more are left out.
    pub(super) hops: Vec<WatchedHop>,
    /// Which attempt of its requests counts.
    pub(super) attempt: u32,
    /// When the branch became known or last showed life.
    pub(super) evidence: Duration,
    /// Since when its responses are known to be missing.
    pub(super) gaps: Gaps,
    /// It was asked since a server that runs it last showed life: what was found out so far is followed at once.
    pub(super) asked: bool,
    /// When a server that passes on a response of it said so last.
    pub(super) on_its_way: Option<Duration>,
    /// Children below this number have been located, or were known without.
    pub(super) listed: u32,
    /// A child from this number on was not found where it should be, so this branch is asked although it has finished.
    pub(super) wanted: Option<u32>,
    /// When its regular ping is due.
    pub(super) next_ping: Duration,
    /// That time is a place among the pings of its period.
    pub(super) placed: bool,
    /// When a hint last caused a ping out of turn.
    pub(super) hinted: Option<Duration>,
    /// When its ancestors were asked last for one below it, as it could not be asked itself.
    pub(super) climbed: Option<Duration>,
    /// When it is looked at again; its key in the queue.
    pub(super) due: Option<Duration>,
    /// Since when its server is known to be gone.
    pub(super) gone: Option<Duration>,
    /// Its highest hop and its number of responses when it was last looked at.
    pub(super) seen: (u32, u32),
    /// Winding down: nothing of it can start any more; nothing of it runs any more.
    pub(super) stopped: Stopped,
    /// Since when only its handler may go on.
    pub(super) frozen: Option<Duration>,
    /// Winding down: it has begun.
    pub(super) wound: bool,
    /// Handlers of an earlier attempt may still run, and nobody asks about them any more: its latest hop, and where that was.
    pub(super) left_behind: Option<(u32, Location)>,
}

/// How far a branch has been wound down.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(super) enum Stopped {
    #[default]
    No,
    /// No new request can come from it.
    Frozen,
    /// Nothing of it runs.
    Quiet,
}

/// One request of a branch.
#[derive(Debug)]
pub(super) struct WatchedHop {
    pub(super) hop: u32,
    pub(super) at: Location,
    /// Number of its first response.
    pub(super) base: Option<u32>,
    pub(super) state: State,
    /// The server has said that nothing new comes from it.
    pub(super) aborted: bool,
    /// Told to stop it, the server has said that it does not know it: so it takes it no more, either.
    pub(super) unknown: bool,
    /// The branch went on elsewhere.
    pub(super) continued: bool,
    /// Its pong listed as many children as one can hold.
    pub(super) more: bool,
    /// Its server does not show unasked that it lives, though the call wants that: it is too old for it, or who passes its words on.
    pub(super) mute: bool,
    /// When it last said that its output is still being written.
    pub(super) writing: Option<Duration>,
    pub(super) pinged: Option<Duration>,
    /// When it made progress last, and when it said so, while it runs.
    pub(super) progressed: Option<(Duration, Duration)>,
}

/// What a request's server has said of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// Nothing, or that it does not know it.
    Unseen,
    Running,
    Ended,
}

impl WatchedHop {
    pub(super) fn new(hop: u32) -> Self {
        Self {
            hop,
            at: Location::default(),
            base: (hop == 0).then_some(0),
            state: State::Unseen,
            aborted: false,
            unknown: false,
            continued: false,
            more: false,
            mute: false,
            writing: None,
            pinged: None,
            progressed: None,
        }
    }

    /// Whether hops below have nothing to tell any more: this one has been seen, and their responses have arrived.
    fn settles(&self, received: &ReceivedResponses) -> bool {
        let base = self.base.is_some_and(|base| received.has_all_below(base));
        base && self.state != State::Unseen
    }
}

impl WatchedBranch {
    pub(super) fn top(&self) -> Option<&WatchedHop> {
        self.hops.last()
    }

    /// A further attempt has not got so far yet as to tell of the branch.
    pub(super) fn is_awaited(&self) -> bool {
        self.attempt > 0 && self.hops.is_empty()
    }

    /// A further attempt of the branch has not ended, as far as known: what an earlier one told does not say what is
    /// missing.
    pub(super) fn is_rerun(&self) -> bool {
        let ended = |top: &WatchedHop| top.state == State::Ended && !top.continued;
        self.attempt > 0 && !self.top().is_some_and(ended)
    }

    /// Whether any of the requests that are known of it was asked about.
    pub(super) fn was_asked(&self) -> bool {
        self.hops.iter().any(|hop| hop.pinged.is_some())
    }

    /// The highest hop that can be asked.
    pub(super) fn highest_located(&self) -> Option<usize> {
        self.hops.iter().rposition(|hop| hop.at.is_known())
    }

    /// Numbers of responses that the hop at `index` may have sent: from the first on, below the second. Hops in between
    /// may be unknown, so the range may be too wide, never too narrow.
    pub(super) fn range(&self, index: usize) -> (u32, u32) {
        let base = self.hops[index].base;
        let next = self.hops[index + 1..].iter().find_map(|hop| hop.base);
        (base.unwrap_or(0), next.unwrap_or(u32::MAX))
    }

    /// The highest number below which all responses have been sent, as the hops say.
    pub(super) fn sent_below(&self) -> u32 {
        let bases = self.hops.iter().rev().find_map(|hop| hop.base);
        bases.unwrap_or(0)
    }

    /// Forgets hops below one that lives, or has lived, if none of their responses is missing: only the highest needs
    /// to live. The last of them that can be asked knows the way to those above.
    pub(super) fn forget_settled_hops(&mut self, received: &ReceivedResponses) {
        if let Some(index) = self.hops.iter().rposition(|hop| hop.settles(received)) {
            let located = self.highest_located().unwrap_or(index);
            self.hops.drain(..index.min(located));
        }
    }

    /// Whether a hop is one of those that [`Self::forget_settled_hops`] forgets.
    pub(super) fn has_settled(&self, number: u32, received: &ReceivedResponses) -> bool {
        let lowest = self.hops.first();
        self.highest_located().is_some()
            && lowest.is_some_and(|lowest| number < lowest.hop && lowest.settles(received))
    }

    /// When the branch last showed life. What its sender is still writing cannot show any.
    pub(super) fn last_evidence(&self, parent_writes: Option<Duration>) -> Duration {
        let [.., top] = &self.hops[..] else {
            return self.evidence.max(parent_writes.unwrap_or_default());
        };
        if top.state != State::Unseen {
            return self.evidence;
        }
        let sender = match self.hops.iter().rev().nth(1) {
            Some(before) => before.writing,
            None => parent_writes,
        };
        self.evidence.max(sender.unwrap_or_default())
    }

    /// How far the branch has been wound down, as its highest hop said.
    pub(super) fn told_stop(&self, branch: &Branch) -> Stopped {
        if branch.facts.is_some() {
            return Stopped::Quiet;
        }
        match self.top() {
            // How far an earlier attempt got says nothing of this one.
            Some(top) if self.attempt == 0 && top.hop < branch.hop => Stopped::No,
            Some(top) if top.aborted && !top.continued && !top.more => match top.state {
                State::Ended => Stopped::Quiet,
                _ => Stopped::Frozen,
            },
            _ => Stopped::No,
        }
    }
}

/// Since when responses are known to be missing: each from the time on at which it was known that it should be here
/// (docs/protocol.md, rule 24).
#[derive(Debug, Default)]
pub(super) struct Gaps {
    /// Below the first number something is missing since the time; both ascend, but for times that were set anew.
    known: VecDeque<(u32, Duration)>,
}

impl Gaps {
    /// All responses below `bound` were sent.
    pub(super) fn know(&mut self, bound: u32, received: &ReceivedResponses, now: Duration) {
        self.settle(received);
        let covered = self.known.back().map_or(0, |gap| gap.0);
        if bound <= covered || received.has_all_below(bound) {
            return;
        }
        if self.known.len() >= MAX_GAPS {
            // More often than that it is only told by who sends all the time. The later time is the safe one.
            self.known.pop_back();
        }
        self.known.push_back((bound, now));
    }

    /// Forgets what has arrived.
    pub(super) fn settle(&mut self, received: &ReceivedResponses) {
        while self
            .known
            .front()
            .is_some_and(|gap| received.has_all_below(gap.0))
        {
            self.known.pop_front();
        }
    }

    /// Responses from `base` on are still being written: their time begins anew.
    pub(super) fn restart(&mut self, base: u32, now: Duration) {
        let Some(first) = self.known.iter().position(|gap| gap.0 > base) else {
            return;
        };
        let from = match first {
            0 => 0,
            _ => self.known[first - 1].0,
        };
        let since = self.known[first].1;
        self.known
            .iter_mut()
            .skip(first)
            .for_each(|gap| gap.1 = now);
        if from < base && self.known.len() < MAX_GAPS {
            self.known.insert(first, (base, since));
        }
    }

    /// Since when the longest missing one is.
    pub(super) fn oldest(&self) -> Option<Duration> {
        self.known.iter().map(|gap| gap.1).min()
    }

    /// All known bounds together.
    pub(super) fn bound(&self) -> u32 {
        self.known.back().map_or(0, |gap| gap.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: u64) -> Duration {
        Duration::from_secs(second)
    }

    fn known(gaps: &Gaps) -> Vec<(u32, u64)> {
        let known = gaps.known.iter();
        known
            .map(|(bound, since)| (*bound, since.as_secs()))
            .collect()
    }

    #[test]
    fn what_is_being_written_is_missing_anew_and_the_rest_as_long_as_before() {
        let (mut received, mut gaps) = (ReceivedResponses::default(), Gaps::default());
        assert_eq!((gaps.oldest(), gaps.bound()), (None, 0));
        gaps.know(3, &received, at(1));
        gaps.know(3, &received, at(2));
        gaps.know(2, &received, at(2));
        gaps.know(7, &received, at(2));
        assert_eq!(known(&gaps), [(3, 1), (7, 2)]);
        gaps.restart(0, at(5));
        assert_eq!(known(&gaps), [(3, 5), (7, 5)], "all is being written");
        gaps.restart(5, at(9));
        assert_eq!(known(&gaps), [(3, 5), (5, 5), (7, 9)]);
        gaps.restart(3, at(11));
        assert_eq!(known(&gaps), [(3, 5), (5, 11), (7, 11)]);
        gaps.restart(7, at(12));
        assert_eq!((gaps.oldest(), gaps.bound()), (Some(at(5)), 7));
        (0..3).for_each(|index| assert!(received.insert(index)));
        gaps.settle(&received);
        assert_eq!((gaps.oldest(), gaps.bound()), (Some(at(11)), 7));
        (3..7).for_each(|index| assert!(received.insert(index)));
        gaps.know(7, &received, at(13));
        assert_eq!(known(&gaps), []);
    }

    #[test]
    fn who_tells_of_gaps_all_the_time_takes_little_room() {
        let (received, mut gaps) = (ReceivedResponses::default(), Gaps::default());
        for told in 1..=100 {
            gaps.know(10 * told, &received, at(told.into()));
        }
        assert_eq!(known(&gaps).len(), MAX_GAPS);
        assert_eq!((gaps.oldest(), gaps.bound()), (Some(at(1)), 1000));
        gaps.restart(25, at(200));
        assert_eq!(
            known(&gaps).len(),
            MAX_GAPS,
            "there is no room to split one"
        );
        assert_eq!((gaps.oldest(), gaps.bound()), (Some(at(1)), 1000));
    }

    fn hop(number: u32, base: Option<u32>, state: State) -> WatchedHop {
        WatchedHop {
            base,
            state,
            ..WatchedHop::new(number)
        }
    }

    fn located(number: u32, base: u32, state: State) -> WatchedHop {
        let node = crate::NodeId::new(number.into());
        let at = Location {
            node: node.or(crate::NodeId::new(100)),
            ..Location::default()
        };
        WatchedHop {
            at,
            ..hop(number, Some(base), state)
        }
    }

    #[test]
    fn an_attempt_runs_again_until_its_highest_hop_has_ended() {
        let mut watched = WatchedBranch::default();
        assert!(
            !watched.is_rerun() && !watched.is_awaited(),
            "the first attempt"
        );
        watched.attempt = 1;
        assert!(watched.is_rerun() && watched.is_awaited());
        watched.hops.push(hop(0, Some(0), State::Running));
        assert!(watched.is_rerun() && !watched.is_awaited());
        watched.hops[0].state = State::Ended;
        assert!(!watched.is_rerun());
        watched.hops[0].continued = true;
        assert!(watched.is_rerun(), "it went on elsewhere");
        watched.attempt = 0;
        assert!(!watched.is_rerun());
    }

    #[test]
    fn hops_settle_below_one_that_was_seen_when_their_responses_are_here() {
        let mut received = ReceivedResponses::default();
        let mut watched = WatchedBranch {
            hops: vec![
                located(0, 0, State::Ended),
                located(1, 2, State::Running),
                hop(2, None, State::Unseen),
            ],
            ..WatchedBranch::default()
        };
        assert_eq!(
            (watched.range(0), watched.range(1)),
            ((0, 2), (2, u32::MAX))
        );
        assert_eq!(
            (watched.sent_below(), watched.highest_located()),
            (2, Some(1))
        );
        watched.forget_settled_hops(&received);
        assert_eq!(watched.hops.len(), 3, "two responses are missing");
        assert!(!watched.has_settled(0, &received));
        (0..2).for_each(|index| assert!(received.insert(index)));
        watched.forget_settled_hops(&received);
        assert_eq!(watched.hops.len(), 2);
        let settled = [0, 1, 2].map(|number| watched.has_settled(number, &received));
        assert_eq!(settled, [true, false, false]);
        watched.hops[0].state = State::Unseen;
        assert!(!watched.has_settled(0, &received), "nobody has told of it");
        watched.hops[0] = hop(1, Some(2), State::Running);
        assert!(!watched.has_settled(0, &received), "nobody can be asked");
    }
}
