//! Places for connections: few and short ones for strangers, and the order in which the others make room.
//!
//! A stranger is who has connected and not shown yet that it wants anything: over a stream its hello has not come, over
//! datagrams it has opened a session and said nothing. When all their places are taken, the one that came first goes.
//! Strangers never take the place of anybody else.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

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

#[derive(Debug, Clone, Copy)]
enum Place {
    Stranger(u64),
    Settled(Usefulness),
    /// It was needed when it was to make room.
    Needed(u64),
}

/// The connections of an endpoint, by their keys.
#[derive(Debug)]
pub struct Places<K> {
    limits: StrangerLimits,
    places: BTreeMap<K, Place>,
    /// By when they came, and until when they may stay.
    strangers: BTreeMap<u64, (Duration, K)>,
    /// Those that may make room.
    settled: BTreeSet<(Usefulness, K)>,
    /// Those that are needed, in the order in which that was found.
    needed: BTreeMap<u64, K>,
    arrivals: u64,
}

impl<K: Copy + Ord> Places<K> {
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
        self.places.insert(key, Place::Stranger(self.arrivals));
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
        matches!(self.places.get(&key), Some(Place::Stranger(_)))
    }

    /// It is no stranger, or not any more.
    pub fn settle(&mut self, key: K, usefulness: Usefulness) {
        self.leave(key);
        self.places.insert(key, Place::Settled(usefulness));
        self.settled.insert((usefulness, key));
    }

    /// It is gone.
    pub fn leave(&mut self, key: K) {
        match self.places.remove(&key) {
            Some(Place::Stranger(number)) => drop(self.strangers.remove(&number)),
            Some(Place::Settled(usefulness)) => drop(self.settled.remove(&(usefulness, key))),
            Some(Place::Needed(number)) => drop(self.needed.remove(&number)),
            None => {}
        }
    }

    /// How many are no strangers.
    pub fn settled(&self) -> usize {
        self.settled.len() + self.needed.len()
    }

    /// It is needed: it is not to make room before somebody [frees](Self::free) it.
    pub fn need(&mut self, key: K) {
        if let Some(Place::Settled(_) | Place::Needed(_)) = self.places.get(&key) {
            self.leave(key);
            self.arrivals += 1;
            self.places.insert(key, Place::Needed(self.arrivals));
            self.needed.insert(self.arrivals, key);
        }
    }

    /// Whether it is known to be needed.
    pub fn is_needed(&self, key: K) -> bool {
        self.has_needed() && matches!(self.places.get(&key), Some(Place::Needed(_)))
    }

    /// Whether any is known to be needed: none is as long as there was room.
    pub fn has_needed(&self) -> bool {
        !self.needed.is_empty()
    }

    /// It may make room again, if it was needed.
    pub fn free(&mut self, key: K, usefulness: Usefulness) {
        if let Some(Place::Needed(_)) = self.places.get(&key) {
            self.settle(key, usefulness);
        }
    }

    /// The one of which it was found first that it is needed; it becomes the last. Perhaps it is not needed any more, and nobody
    /// has said so.
    pub fn next_needed(&mut self) -> Option<K> {
        let key = *self.needed.first_key_value()?.1;
        self.need(key);
        Some(key)
    }

    /// The one of least use that is no stranger; `usefulness` says how much each is of use now. If it is needed, say
    /// [so](Self::need), and ask again.
    pub fn least_useful(&mut self, usefulness: impl Fn(K) -> Option<Usefulness>) -> Option<K> {
        loop {
            let &(known, key) = self.settled.first()?;
            match usefulness(key) {
                Some(now) if now > known => self.settle(key, now), // it was used since
                Some(_) => return Some(key),
                None => self.leave(key),
            }
        }
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
        let mut places = Places::new(LIMITS);
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
        let mut none = Places::new(StrangerLimits { count: 0, ..LIMITS });
        assert_eq!(none.welcome(seconds(1), 7), Some(7));
    }

    #[test]
    fn nobody_stays_a_stranger() {
        let mut places = Places::new(LIMITS);
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
        let mut places = Places::new(LIMITS);
        places.settle(1, use_of(true, 1));
        places.settle(2, use_of(false, 2));
        places.settle(3, use_of(false, 3));
        // The second was used since.
        let now = |key| Some(use_of(key != 3, if key == 2 { 9 } else { key }));
        assert_eq!(places.least_useful(now), Some(3));
        places.leave(3);
        assert_eq!(places.least_useful(now), Some(1));
        places.need(1);
        assert_eq!(places.least_useful(now), Some(2));
        assert_eq!(places.settled(), 2);
        assert_eq!(places.least_useful(|_| None), None, "all are gone");
        assert_eq!(places.next_needed(), Some(1));
        places.leave(1);
        assert_eq!((places.settled(), places.next_needed()), (0, None));
    }

    #[test]
    fn who_is_needed_is_looked_at_once_until_it_is_free() {
        let mut places = Places::new(LIMITS);
        (1..=100).for_each(|key| places.settle(key, use_of(true, key)));
        let used = |key| Some(use_of(true, key));
        for key in 1..=99 {
            assert_eq!(places.least_useful(used), Some(key));
            places.need(key);
        }
        assert_eq!(places.least_useful(used), Some(100));
        places.leave(100);
        assert_eq!(places.least_useful(used), None);
        places.free(7, use_of(true, 7));
        assert_eq!(places.least_useful(used), Some(7));
        places.free(8, use_of(true, 200));
        places.free(1000, use_of(true, 0));
        assert_eq!((places.least_useful(used), places.settled()), (Some(7), 99));
        let turns: Vec<_> = (0..98).filter_map(|_| places.next_needed()).collect();
        assert_eq!((turns[0], turns[1], turns[97]), (1, 2, 1), "round by round");
    }
}
