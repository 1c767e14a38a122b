//! Which way has been quicker for large states: along with the chain, or kept at home.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Of so many kinds of chains it is known; the oldest goes.
const MOST: usize = 256;

/// Each way is gone so many times before it is known which one is quicker.
const FIRST: u32 = 3;

/// So often the other one is gone then, as things change.
const AGAIN: u32 = 16;

/// How a chain is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// Its state travels along.
    Chained,
    /// Its state stays here, and all answers come here.
    Walked,
}

/// Chains that are alike.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Kind {
    /// Of the first link.
    pub(crate) method: Arc<str>,
    /// What runs on its answer.
    pub(crate) function: String,
    /// Of the state's size, the power of two.
    pub(crate) size: u32,
}

/// How long chains have taken.
#[derive(Default)]
pub(crate) struct Ways(Mutex<Table>);

#[derive(Default)]
struct Table {
    known: HashMap<Kind, [Times; 2]>,
    /// As they came.
    order: VecDeque<Kind>,
}

/// Of one way.
#[derive(Debug, Clone, Copy, Default)]
struct Times {
    begun: u32,
    /// About the latest four; none if none has come to its end.
    average: Option<Duration>,
}

impl Ways {
    /// How to run one that begins now.
    pub(crate) fn pick(&self, kind: &Kind) -> Way {
        let mut table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let [chained, walked] = table.times(kind);
        let time = |times: &Times| times.average.unwrap_or(Duration::MAX);
        let quicker = match time(walked) < time(chained) {
            true => Way::Walked,
            false => Way::Chained,
        };
        let way = match chained.begun.min(walked.begun) < FIRST {
            true if walked.begun < chained.begun => Way::Walked,
            true => Way::Chained,
            false if (chained.begun.wrapping_add(walked.begun)).is_multiple_of(AGAIN) => {
                quicker.other()
            }
            false => quicker,
        };
        let begun = match way {
            Way::Chained => &mut chained.begun,
            Way::Walked => &mut walked.begun,
        };
        *begun = begun.saturating_add(1);
        way
    }

    /// One has taken so long.
    pub(crate) fn note(&self, kind: &Kind, way: Way, time: Duration) {
        let mut table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let [chained, walked] = table.times(kind);
        let average = match way {
            Way::Chained => &mut chained.average,
            Way::Walked => &mut walked.average,
        };
        *average = Some(average.map_or(time, |before| (before * 3 + time) / 4));
    }
}

impl Table {
    fn times(&mut self, kind: &Kind) -> &mut [Times; 2] {
        if !self.known.contains_key(kind) {
            self.order.push_back(kind.clone());
        }
        if self.order.len() > MOST
            && let Some(oldest) = self.order.pop_front()
        {
            self.known.remove(&oldest);
        }
        self.known.entry(kind.clone()).or_default()
    }
}

impl Way {
    fn other(self) -> Self {
        match self {
            Self::Chained => Self::Walked,
            Self::Walked => Self::Chained,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(size: u32) -> Kind {
        Kind {
            method: "a.B/c".into(),
            function: "f".into(),
            size,
        }
    }

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn the_quicker_way_is_gone_and_the_other_one_tried_again() {
        let ways = Ways::default();
        let go = |size, chained: Duration, walked: Duration| {
            let way = ways.pick(&kind(size));
            let time = match way {
                Way::Chained => chained,
                Way::Walked => walked,
            };
            ways.note(&kind(size), way, time);
            way
        };
        let first: Vec<Way> = (0..6).map(|_| go(20, MS * 9, MS * 2)).collect();
        let (chained, walked) = (Way::Chained, Way::Walked);
        assert_eq!(first, [chained, walked, chained, walked, chained, walked]);
        let next = (0..64).map(|_| go(20, MS * 9, MS * 2));
        assert_eq!(next.filter(|way| *way == chained).count(), 4);
        // Another kind is another matter.
        let other: Vec<Way> = (0..8).map(|_| go(15, MS, MS * 2)).collect();
        assert_eq!(other[6..], [chained, chained]);
        // What has changed is noticed.
        let changed = (0..256).map(|_| go(20, MS, MS * 20));
        assert!(changed.filter(|way| *way == chained).count() > 200);
    }

    #[test]
    fn a_way_that_never_comes_to_an_end_is_not_the_quicker_one() {
        let ways = Ways::default();
        for turn in 0..32 {
            let way = ways.pick(&kind(20));
            assert!(turn < 6 || way == Way::Chained || turn % 16 == 0, "{turn}");
            if way == Way::Chained {
                ways.note(&kind(20), way, MS * 1000);
            }
        }
    }

    #[test]
    fn the_oldest_are_forgotten() {
        let ways = Ways::default();
        for size in 0..1000 {
            ways.pick(&kind(size));
        }
        let table = ways.0.lock().expect("no panic");
        assert_eq!((table.known.len(), table.order.len()), (MOST, MOST));
        assert!(table.known.contains_key(&kind(999)));
    }
}
