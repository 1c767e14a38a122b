//! Places for connections: few and short ones for strangers, and the order in which the others make room.
//!
//! A stranger is who has connected and not shown yet that it wants anything: over a stream its hello has not come, over
//! datagrams it has opened a session and said nothing. When all their places are taken, the one that came first goes.
//! Strangers never take the place of anybody else.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Connections that were needed when room was wanted and are looked at again in a search, whether anybody has said that they
/// are free.
const EXAMINED: usize = 64;

/// How many strangers there are at a time, and for how long each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StrangerLimits {
    /// Most at a time.
    pub count: usize,
    /// How long one may stay a stranger.
    pub time: Duration,
}

impl Default for StrangerLimits {
    /// 256, for 2 seconds.
    fn default() -> Self {
        Self {
            count: 256,
            time: Duration::from_secs(2),
        }
    }
}

/// How much a connection is of use: the least goes first when room is needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Usefulness {
    /// Whether it has ever brought a request, or was dialled or taken to send something.
    pub ever: bool,
    /// When that was last, or when it was opened, by a count of the driver's own.
    pub last: u64,
}

/// A search for a connection that may make room: it comes to an end.
#[derive(Debug, Default)]
pub struct Search {
    /// How many of those that were needed it has looked at again.
    examined: usize,
}

#[derive(Debug, Clone, Copy)]
enum SlotState {
    Stranger(u64),
    Settled(Usefulness),
    /// It was needed when it was to make room.
    Needed(u64),
}

/// The connections of an endpoint, by their keys.
#[derive(Debug)]
pub struct ConnectionSlots<K> {
    limits: StrangerLimits,
    places: BTreeMap<K, SlotState>,
    /// By when they came, and until when they may stay.
    strangers: BTreeMap<u64, (Duration, K)>,
    /// Those that may make room.
    settled: BTreeSet<(Usefulness, K)>,
    /// Those that are needed, in the order in which that was found.
    needed: BTreeMap<u64, K>,
    arrivals: u64,
}

impl<K: Copy + Ord> ConnectionSlots<K> {
    /// No connections yet.
    pub fn new(limits: StrangerLimits) -> Self {
        Self {
            limits,
            places: BTreeMap::new(),
            strangers: BTreeMap::new(),
            settled: BTreeSet::new(),
            needed: BTreeMap::new(),
            arrivals: 0,
        }
    }

    /// A stranger has connected. Returns the one that must go for it: the oldest if there are too many, perhaps itself.
    #[must_use]
    pub fn welcome(&mut self, now: Duration, key: K) -> Option<K> {
        self.leave(key);
        self.arrivals += 1;
        self.places.insert(key, SlotState::Stranger(self.arrivals));
        let until = now.saturating_add(self.limits.time);
        self.strangers.insert(self.arrivals, (until, key));
        if self.strangers.len() <= self.limits.count {
            return None;
        }
        let oldest = self.strangers.first_key_value()?.1.1;
        self.leave(oldest);
        Some(oldest)
    }

    /// A stranger that has been one for too long: it has no place any more.
    pub fn expired(&mut self, now: Duration) -> Option<K> {
        let &(until, key) = self.strangers.first_key_value()?.1;
        if until > now {
            return None;
        }
        self.leave(key);
        Some(key)
    }

    /// When the next stranger has been one for too long.
    pub fn next_timeout(&self) -> Option<Duration> {
        Some(self.strangers.first_key_value()?.1.0)
    }

    /// Whether it is a stranger.
    pub fn is_stranger(&self, key: K) -> bool {
        matches!(self.places.get(&key), Some(SlotState::Stranger(_)))
    }

    /// It is no stranger, or not any more.
    pub fn settle(&mut self, key: K, usefulness: Usefulness) {
        self.leave(key);
        self.places.insert(key, SlotState::Settled(usefulness));
        self.settled.insert((usefulness, key));
    }

    /// It is gone.
    pub fn leave(&mut self, key: K) {
        match self.places.remove(&key) {
            Some(SlotState::Stranger(number)) => drop(self.strangers.remove(&number)),
            Some(SlotState::Settled(usefulness)) => drop(self.settled.remove(&(usefulness, key))),
            Some(SlotState::Needed(number)) => drop(self.needed.remove(&number)),
            None => {}
        }
    }

    /// How many are no strangers.
    pub fn settled(&self) -> usize {
        self.settled.len() + self.needed.len()
    }

    /// Whether it is known to be needed.
    pub fn is_needed(&self, key: K) -> bool {
        self.has_needed() && matches!(self.places.get(&key), Some(SlotState::Needed(_)))
    }

    /// Whether any is known to be needed: none is as long as there was room.
    pub fn has_needed(&self) -> bool {
        !self.needed.is_empty()
    }

    /// It may make room again, if it was needed.
    pub fn free(&mut self, key: K, usefulness: Usefulness) {
        if let Some(SlotState::Needed(_)) = self.places.get(&key) {
            self.settle(key, usefulness);
        }
    }

    /// The next connection that may make room: the one of least use that is no stranger, where `usefulness` says how much each is
    /// of use now; after all of these some that were needed before, in the order in which that was found. It counts as
    /// needed from now on. If it is not, close it and say that it [left](Self::leave); one that is closed already has left, too.
    pub fn next_for_room(
        &mut self,
        search: &mut Search,
        usefulness: impl Fn(K) -> Option<Usefulness>,
    ) -> Option<K> {
        while let Some(&(known, key)) = self.settled.first() {
            match usefulness(key) {
                Some(now) if now > known => self.settle(key, now), // it was used since
                Some(_) => return Some(self.need(key)),
                None => self.leave(key),
            }
        }
        if search.examined == EXAMINED {
            return None;
        }
        search.examined += 1;
        let key = *self.needed.first_key_value()?.1;
        Some(self.need(key))
    }

    fn need(&mut self, key: K) -> K {
        self.leave(key);
        self.arrivals += 1;
        self.places.insert(key, SlotState::Needed(self.arrivals));
        self.needed.insert(self.arrivals, key);
        key
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: StrangerLimits = StrangerLimits {
        count: 3,
        time: Duration::from_secs(2),
    };

    fn use_of(ever: bool, last: u64) -> Usefulness {
        Usefulness { ever, last }
    }

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn the_oldest_stranger_goes_and_nobody_else() {
        let mut places = ConnectionSlots::new(LIMITS);
        places.settle(100, use_of(false, 0));
        for key in 1..=3 {
            assert_eq!(places.welcome(seconds(1), key), None);
        }
        places.settle(1, use_of(false, 1));
        assert_eq!(places.welcome(seconds(1), 4), None);
        assert_eq!(places.welcome(seconds(1), 5), Some(2));
        places.leave(3);
        assert_eq!(places.welcome(seconds(1), 6), None);
        let strangers = (1..=6).filter(|key| places.is_stranger(*key));
        assert_eq!(strangers.collect::<Vec<_>>(), [4, 5, 6]);
        assert_eq!(places.settled(), 2);
        let mut none = ConnectionSlots::new(StrangerLimits { count: 0, ..LIMITS });
        assert_eq!(none.welcome(seconds(1), 7), Some(7));
    }

    #[test]
    fn nobody_stays_a_stranger() {
        let mut places = ConnectionSlots::new(LIMITS);
        assert_eq!(places.next_timeout(), None);
        assert_eq!(places.welcome(seconds(1), 1), None);
        assert_eq!(places.welcome(seconds(2), 2), None);
        places.settle(3, use_of(false, 0));
        assert_eq!(places.next_timeout(), Some(seconds(3)));
        assert_eq!(places.expired(seconds(2)), None);
        assert_eq!(places.expired(seconds(9)), Some(1));
        assert_eq!(places.expired(seconds(9)), Some(2));
        assert_eq!(places.expired(seconds(9)), None);
    }

    #[test]
    fn who_was_never_of_use_makes_room_first() {
        let mut places = ConnectionSlots::new(LIMITS);
        places.settle(1, use_of(true, 1));
        places.settle(2, use_of(false, 2));
        places.settle(3, use_of(false, 3));
        // The second was used since.
        let now = |key| Some(use_of(key != 3, if key == 2 { 9 } else { key }));
        let mut search = Search::default();
        assert_eq!(places.next_for_room(&mut search, now), Some(3));
        places.leave(3);
        assert_eq!(places.next_for_room(&mut search, now), Some(1));
        assert_eq!(places.next_for_room(&mut search, now), Some(2));
        assert_eq!(places.settled(), 2, "both are needed");
        places.free(2, use_of(true, 9));
        let next = places.next_for_room(&mut search, |_| None);
        assert_eq!(next, Some(1), "the other is gone");
        places.leave(1);
        let next = places.next_for_room(&mut search, now);
        assert_eq!((places.settled(), next), (0, None));
    }

    #[test]
    fn who_is_needed_is_looked_at_once_until_it_is_free() {
        let mut places = ConnectionSlots::new(LIMITS);
        (1..=100).for_each(|key| places.settle(key, use_of(true, key)));
        let used = |key| Some(use_of(true, key));
        let mut search = Search::default();
        for key in 1..=100 {
            assert_eq!(places.next_for_room(&mut search, used), Some(key));
        }
        places.free(7, use_of(true, 7));
        places.free(8, use_of(true, 200));
        places.free(1000, use_of(true, 0));
        let first = places.next_for_room(&mut Search::default(), used);
        assert_eq!((first, places.settled()), (Some(7), 100));
    }

    /// However many are needed, a search ends, and the next one goes on where it ended.
    #[test]
    fn a_search_looks_at_so_many_that_were_needed() {
        let mut places = ConnectionSlots::new(LIMITS);
        (1..=100).for_each(|key| places.settle(key, use_of(true, key)));
        let used = |key| Some(use_of(true, key));
        let mut search = Search::default();
        let looked_at = std::iter::from_fn(|| places.next_for_room(&mut search, used));
        assert_eq!(looked_at.count(), 100 + EXAMINED);
        let mut search = Search::default();
        let again = std::iter::from_fn(|| places.next_for_room(&mut search, used));
        let again: Vec<_> = again.collect();
        let next = EXAMINED as u64 + 1;
        assert_eq!((again[0], again[35], again[36]), (next, 100, 1));
        assert_eq!(again.len(), EXAMINED);
    }
}
