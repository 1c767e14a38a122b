//! When a slow call gets a second attempt beside the first.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How many of a method's latest calls say how long it takes.
const SAMPLES: usize = 128;

/// So many of them are needed before they say anything.
const ENOUGH: usize = 20;

/// Most methods that are observed; further ones are hedged after the time that was given.
const METHODS: usize = 256;

/// Makes a second attempt beside a call that takes long: whichever delivers first wins, the other is aborted. For
/// methods that may run twice. See [`crate::Client::hedge`].
///
/// It goes to the next of the client's servers, or to the same one if there is no other. A call is hedged once, and only
/// if its [budget](crate::RetryBudget) allows it. Of a method with many answers, the attempt with the first answer
/// delivers all of them.
#[derive(Debug, Clone)]
pub struct Hedge {
    after: Duration,
    observed: Option<Arc<Observed>>,
}

impl Hedge {
    /// Hedges after a fixed time. Only for methods whose handlers may run twice, also at the same time.
    pub fn idempotent(after: Duration) -> Self {
        Self {
            after,
            observed: None,
        }
    }

    /// Hedges calls that take longer than 95 % of the latest 128 calls of their method that this client, or a clone of
    /// it, has made, counted to their first answer; after `first` as long as there were fewer than 20, and with more
    /// than 256 methods for the rest of them. Only for methods whose handlers may run twice, also at the same time.
    pub fn idempotent_observed(first: Duration) -> Self {
        Self {
            after: first,
            observed: Some(Arc::default()),
        }
    }

    /// How long a call of this method may take before it is hedged.
    pub(crate) fn after(&self, method: &Arc<str>) -> Duration {
        let observed = self.observed.as_ref();
        let told = observed.and_then(|observed| observed.usual(method));
        told.unwrap_or(self.after)
    }

    /// A call of this method got its first answer after so long.
    pub(crate) fn note(&self, method: &Arc<str>, took: Duration) {
        if let Some(observed) = &self.observed {
            observed.note(method, took);
        }
    }
}

/// How long calls took lately, by method.
#[derive(Debug, Default)]
struct Observed(Mutex<BTreeMap<Arc<str>, Latest>>);

/// The latest calls of a method, in microseconds; the oldest one is overwritten.
#[derive(Debug)]
struct Latest {
    took: [u32; SAMPLES],
    count: usize,
}

impl Observed {
    fn usual(&self, method: &Arc<str>) -> Option<Duration> {
        let methods = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        methods.get(method)?.usual()
    }

    fn note(&self, method: &Arc<str>, took: Duration) {
        let mut methods = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if methods.len() >= METHODS && !methods.contains_key(method) {
            return;
        }
        let latest = methods.entry(Arc::clone(method)).or_insert(Latest {
            took: [0; SAMPLES],
            count: 0,
        });
        latest.note(took);
    }
}

impl Latest {
    fn note(&mut self, took: Duration) {
        self.took[self.count % SAMPLES] = u32::try_from(took.as_micros()).unwrap_or(u32::MAX);
        self.count += 1;
    }

    /// What 95 % of them stay within.
    fn usual(&self) -> Option<Duration> {
        if self.count < ENOUGH {
            return None;
        }
        let mut took = self.took;
        let took = &mut took[..self.count.min(SAMPLES)];
        let place = took.len() * 95 / 100;
        let (_, usual, _) = took.select_nth_unstable(place);
        Some(Duration::from_micros(u64::from(*usual)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_calls_of_a_method_say_how_long_it_takes() {
        let first = Duration::from_secs(1);
        let hedge = Hedge::idempotent_observed(first);
        let (quick, slow): (Arc<str>, Arc<str>) = ("a/quick".into(), "a/slow".into());
        for took in 1..ENOUGH {
            hedge.note(&quick, Duration::from_millis(took as u64));
            assert_eq!(hedge.after(&quick), first);
        }
        hedge.note(&quick, Duration::from_millis(20));
        assert_eq!(hedge.after(&quick), Duration::from_millis(20));
        assert_eq!(hedge.after(&slow), first);
        for took in 1..=SAMPLES {
            hedge
                .clone()
                .note(&quick, Duration::from_micros(took as u64));
        }
        assert_eq!(hedge.after(&quick), Duration::from_micros(122));
        hedge.note(&quick, Duration::MAX);
        assert_eq!(hedge.after(&quick), Duration::from_micros(123));
    }

    #[test]
    fn not_more_methods_are_observed_than_there_is_room_for() {
        let hedge = Hedge::idempotent_observed(Duration::ZERO);
        for number in 0..METHODS + 10 {
            let method: Arc<str> = format!("a/{number}").into();
            (0..ENOUGH).for_each(|_| hedge.note(&method, Duration::from_secs(1)));
        }
        assert_eq!(hedge.after(&"a/0".into()), Duration::from_secs(1));
        let beyond: Arc<str> = format!("a/{METHODS}").into();
        assert_eq!(hedge.after(&beyond), Duration::ZERO);
    }
}
