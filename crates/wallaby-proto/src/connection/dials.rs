//! Dials that others cause: which addresses that peers have named may be dialled now.
//!
//! A request names the address at which its initiator is reached, and a pong the servers that work was delegated to. Nothing
//! proves that whoever is there wants to be dialled. So such an address is dialled once at a time and, if that was in vain,
//! not again for a second, whoever names it and whomever it is to lead to; and all such dials together have a rate. Who is there
//! and leaves again each time is dialled a few times a second.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use thiserror::Error;

use crate::id::NodeId;

/// How long an address is left alone after it was dialled in vain.
const AGAIN: Duration = Duration::from_secs(1);

/// Most dials of an address in that time, though somebody is there each time.
const MOST_BEGUN: u32 = 4;

/// Most addresses that are remembered.
const REMEMBERED: usize = 16_384;

/// How often addresses are dialled because others have named them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DialLimits {
    /// Dials a second, all addresses together.
    pub rate: u32,
    /// So many may come at once, after a pause.
    pub burst: u32,
}

impl Default for DialLimits {
    /// 256 a second, 1,024 at once.
    fn default() -> Self {
        Self {
            rate: 256,
            burst: 1024,
        }
    }
}

/// Who wants an address to be dialled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NamedBy {
    /// The application.
    Application,
    /// A peer: nothing proves that whoever is there wants that.
    Peer,
}

/// Why an address is not dialled now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum DialBackoff {
    /// It is being dialled, or was a moment ago and in vain.
    #[error("it was dialled a moment ago")]
    Recent,
    /// Nobody was there a moment ago.
    #[error("nobody was there a moment ago")]
    Refused,
    /// Too many addresses were dialled because others named them.
    #[error("too many addresses that others have named were dialled lately")]
    TooMany,
}

/// When an address was dialled, or when that turned out to be in vain.
#[derive(Debug)]
struct DialAttempt {
    at: Duration,
    /// Who was there in place of the incarnation that was wanted.
    found: Option<NodeId>,
    /// Nobody was there.
    refused: bool,
}

/// What is remembered of dials that others cause.
#[derive(Debug)]
pub struct Dials<A> {
    interval: Option<Duration>,
    /// How far dials may run ahead of their rate.
    ahead: Duration,
    /// When the bucket would be full again: later by `interval` with each dial.
    full_at: Duration,
    attempts: BTreeMap<A, DialAttempt>,
    /// The attempts by age, with some that are no more.
    ages: VecDeque<(Duration, A)>,
    /// How often each address was dialled in the second that began with the first time, whatever was found there.
    begun: BTreeMap<A, u32>,
    seconds: VecDeque<(Duration, A)>,
}

impl<A: Clone + Ord> Dials<A> {
    /// Nothing was dialled yet.
    pub fn new(limits: DialLimits) -> Self {
        let interval = Duration::from_secs(1).checked_div(limits.rate);
        let further = limits.burst.saturating_sub(1);
        Self {
            interval,
            ahead: interval.unwrap_or_default().saturating_mul(further),
            full_at: Duration::ZERO,
            attempts: BTreeMap::new(),
            ages: VecDeque::new(),
            begun: BTreeMap::new(),
            seconds: VecDeque::new(),
        }
    }

    /// Whether this address may be dialled now, to reach this incarnation or whoever is there. If so the dial has begun. What the
    /// application has named is not limited by the rate.
    ///
    /// # Errors
    ///
    /// Why not.
    pub fn begin(
        &mut self,
        now: Duration,
        to: &A,
        wanted: Option<NodeId>,
        named_by: NamedBy,
    ) -> Result<(), DialBackoff> {
        self.forget_old(now);
        if let Some(attempt) = self.attempts.get(to) {
            let is_there = |found| wanted.is_none_or(|wanted| found == wanted);
            if !attempt.found.is_some_and(is_there) {
                return Err(match attempt.refused {
                    true => DialBackoff::Refused,
                    false => DialBackoff::Recent,
                });
            }
        }
        if self.begun.get(to).is_some_and(|begun| *begun >= MOST_BEGUN) {
            return Err(DialBackoff::Recent);
        }
        if named_by == NamedBy::Peer {
            let interval = self.interval.ok_or(DialBackoff::TooMany)?;
            if self.ages.len() >= REMEMBERED || self.full_at > now.saturating_add(self.ahead) {
                return Err(DialBackoff::TooMany);
            }
            self.full_at = self.full_at.max(now).saturating_add(interval);
        }
        self.note(now, to, None, false);
        self.count(now, to);
        Ok(())
    }

    fn count(&mut self, now: Duration, to: &A) {
        if let Some(begun) = self.begun.get_mut(to) {
            *begun += 1;
        } else if self.seconds.len() < 2 * REMEMBERED {
            self.begun.insert(to.clone(), 1);
            self.seconds.push_back((now, to.clone()));
        }
    }

    /// Nobody was there: who asks within the second learns that, too.
    pub fn refused(&mut self, now: Duration, to: &A) {
        self.forget_old(now);
        self.note(now, to, None, true);
    }

    /// A dial was in vain: nobody was reached, or another incarnation than the one that was wanted.
    pub fn failed(&mut self, now: Duration, to: &A, found: Option<NodeId>) {
        self.forget_old(now);
        self.note(now, to, found, false);
    }

    /// Who is there took the connection and closed it before it was open. One that `was_met` there may be about to die: that is
    /// found out by the next dial, which may begin at once. Of others nothing says that they want to be dialled.
    pub fn closed(&mut self, now: Duration, to: &A, was_met: bool) {
        match was_met {
            true => self.found(to),
            false => self.failed(now, to, None),
        }
    }

    /// Somebody was found there, by whatever dial: what was known before is no more.
    pub fn found(&mut self, to: &A) {
        self.attempts.remove(to);
    }

    /// Somebody who has connected says that it is reached there: that nobody was may be no longer so.
    pub fn claimed(&mut self, to: &A) {
        // While it may not be dialled all the same, what is known of it is worth more.
        let may_begin = self.begun.get(to).is_none_or(|begun| *begun < MOST_BEGUN);
        if may_begin && self.attempts.get(to).is_some_and(|attempt| attempt.refused) {
            self.found(to);
        }
    }

    fn note(&mut self, at: Duration, to: &A, found: Option<NodeId>, refused: bool) {
        if self.ages.len() < 2 * REMEMBERED {
            let attempt = DialAttempt { at, found, refused };
            self.attempts.insert(to.clone(), attempt);
            self.ages.push_back((at, to.clone()));
        }
    }

    fn forget_old(&mut self, now: Duration) {
        while let Some((at, to)) = self.ages.front()
            && at.saturating_add(AGAIN) <= now
        {
            if self.attempts.get(to).is_some_and(|known| known.at == *at) {
                self.attempts.remove(to);
            }
            self.ages.pop_front();
        }
        while let Some((at, to)) = self.seconds.front()
            && at.saturating_add(AGAIN) <= now
        {
            self.begun.remove(to);
            self.seconds.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: DialLimits = DialLimits { rate: 10, burst: 4 };

    fn seconds(seconds: f64) -> Duration {
        Duration::from_secs_f64(seconds)
    }

    fn node(number: u64) -> Option<NodeId> {
        NodeId::new(number)
    }

    fn begin(
        dials: &mut Dials<u32>,
        now: f64,
        to: u32,
        wanted: Option<NodeId>,
    ) -> Option<DialBackoff> {
        (dials.begin(seconds(now), &to, wanted, NamedBy::Peer)).err()
    }

    #[test]
    fn an_address_is_dialled_once_a_second_whoever_is_wanted_there() {
        let mut dials = Dials::new(DialLimits::default());
        assert_eq!(begin(&mut dials, 1.0, 7, node(1)), None);
        for wanted in 1..6000 {
            let held = begin(&mut dials, 1.1, 7, node(wanted));
            assert_eq!(held, Some(DialBackoff::Recent), "it is under way");
        }
        dials.failed(seconds(1.2), &7, None);
        for wanted in 1..6000 {
            let held = begin(&mut dials, 2.1, 7, node(wanted));
            assert_eq!(held, Some(DialBackoff::Recent), "it was in vain");
        }
        assert_eq!(begin(&mut dials, 2.1, 8, node(1)), None, "another address");
        assert_eq!(begin(&mut dials, 2.2, 7, node(2)), None, "a second later");
    }

    #[test]
    fn an_address_that_accepts_and_closes_is_dialled_once_a_second_unless_its_incarnation_was_met()
    {
        for (was_met, held) in [(false, Some(DialBackoff::Recent)), (true, None)] {
            let mut dials = Dials::new(DialLimits::default());
            assert_eq!(begin(&mut dials, 1.0, 7, node(1)), None);
            dials.closed(seconds(1.1), &7, was_met);
            assert_eq!(begin(&mut dials, 1.2, 7, node(1)), held);
            assert_eq!(begin(&mut dials, 2.3, 7, node(1)), None, "a second later");
        }
    }

    /// A server that is restarted and dies again within a second is found to be gone as soon as the first time.
    #[test]
    fn an_address_is_dialled_again_once_another_incarnation_was_found_there() {
        let mut dials = Dials::new(DialLimits::default());
        assert_eq!(begin(&mut dials, 1.0, 7, node(1)), None);
        dials.failed(seconds(1.1), &7, None);
        assert_eq!(
            begin(&mut dials, 1.2, 7, node(2)),
            Some(DialBackoff::Recent)
        );
        dials.found(&7);
        assert_eq!(begin(&mut dials, 1.3, 7, node(2)), None);
    }

    #[test]
    fn an_address_where_nobody_was_is_dialled_again_once_somebody_says_that_it_is_there() {
        let mut dials = Dials::new(DialLimits::default());
        assert_eq!(begin(&mut dials, 1.0, 7, node(1)), None);
        dials.claimed(&7);
        let under_way = begin(&mut dials, 1.0, 7, node(1));
        assert_eq!(under_way, Some(DialBackoff::Recent));
        dials.refused(seconds(1.1), &7);
        assert_eq!(
            begin(&mut dials, 1.2, 7, node(1)),
            Some(DialBackoff::Refused)
        );
        dials.claimed(&7);
        assert_eq!(begin(&mut dials, 1.3, 7, node(1)), None);
        // Whoever says that again and again does not hide that nobody is.
        for _ in 0..9 {
            dials.refused(seconds(1.4), &7);
            dials.claimed(&7);
            let _held = begin(&mut dials, 1.5, 7, node(1));
        }
        dials.refused(seconds(1.6), &7);
        dials.claimed(&7);
        assert_eq!(
            begin(&mut dials, 1.7, 7, node(1)),
            Some(DialBackoff::Refused)
        );
    }

    #[test]
    fn a_dial_for_an_incarnation_that_is_not_there_does_not_hinder_one_for_that_which_is() {
        let mut dials = Dials::new(DialLimits::default());
        assert_eq!(begin(&mut dials, 1.0, 7, node(1)), None);
        dials.failed(seconds(1.1), &7, node(2));
        assert_eq!(
            begin(&mut dials, 1.2, 7, node(3)),
            Some(DialBackoff::Recent)
        );
        assert_eq!(begin(&mut dials, 1.2, 7, node(2)), None);
        assert_eq!(
            begin(&mut dials, 1.2, 7, node(2)),
            Some(DialBackoff::Recent)
        );
    }

    #[test]
    fn who_is_there_and_leaves_each_time_is_dialled_a_few_times_a_second() {
        for named_by in [NamedBy::Application, NamedBy::Peer] {
            let mut dials = Dials::new(DialLimits::default());
            let mut begun = 0;
            for millisecond in 0..3000 {
                let now = Duration::from_millis(millisecond);
                if dials.begin(now, &7, node(1), named_by).is_ok() {
                    begun += 1;
                    dials.found(&7);
                }
            }
            assert_eq!(begun, 3 * MOST_BEGUN);
        }
    }

    #[test]
    fn all_addresses_together_have_a_rate() {
        let mut dials = Dials::new(LIMITS);
        let dialled = |dials: &mut Dials<u32>, now: f64, from: u32| {
            let held = (from..from + 100).map(|to| begin(dials, now, to, None));
            held.filter(Option::is_none).count()
        };
        assert_eq!(dialled(&mut dials, 10.0, 0), 4);
        assert_eq!(dialled(&mut dials, 10.05, 100), 0);
        assert_eq!(dialled(&mut dials, 10.1, 200), 1);
        assert_eq!(dialled(&mut dials, 10.3, 300), 2);
        assert_eq!(dialled(&mut dials, 99.0, 400), 4);
        let own = dials.begin(seconds(99.0), &999, None, NamedBy::Application);
        assert_eq!(own, Ok(()), "the application has named it");
        let none = DialLimits { rate: 0, burst: 9 };
        assert_eq!(dialled(&mut Dials::new(none), 10.0, 0), 0);
    }

    #[test]
    fn what_is_remembered_is_bounded_and_goes_by_age() {
        let limits = DialLimits {
            rate: u32::MAX,
            burst: u32::MAX,
        };
        let mut dials = Dials::new(limits);
        let count = 4 * REMEMBERED as u32;
        let mut begun = 0;
        for to in 0..count {
            begun += usize::from(begin(&mut dials, 1.0, to, None).is_none());
            dials.failed(seconds(1.0), &to, None);
            dials.found(&to);
            dials.failed(seconds(1.0), &to, None);
        }
        assert!((1..=REMEMBERED).contains(&begun), "{begun}");
        assert!(dials.attempts.len() <= 2 * REMEMBERED);
        assert!(dials.ages.len() <= 2 * REMEMBERED);
        assert!(dials.seconds.len() <= 2 * REMEMBERED);
        assert_eq!(begin(&mut dials, 2.0, count, None), None);
        assert_eq!((dials.attempts.len(), dials.ages.len()), (1, 1));
        assert_eq!((dials.begun.len(), dials.seconds.len()), (1, 1));
    }
}
