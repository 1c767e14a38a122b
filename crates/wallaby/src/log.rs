//! Whether anybody listens to what is logged: what makes up events stays out of the way of calls.

use std::time::Duration;

use tracing::level_filters::LevelFilter;
use wallaby_proto::NodeId;

/// Whether a subscriber may want events and spans of level DEBUG.
pub(crate) fn debugs() -> bool {
    LevelFilter::current() >= LevelFilter::DEBUG
}

/// What the endpoint without IO counts and that somebody should know of. It is told once a second at most: what peers can cause
/// must not fill the log.
#[derive(Debug, Default)]
pub(crate) struct Watcher {
    known: [u64; TROUBLES.len()],
    /// The sum of these.
    all: u64,
    /// When each may be told next.
    next: [Duration; TROUBLES.len()],
}

/// Something that was counted, and how often since it was told last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Trouble {
    what: &'static str,
    times: u64,
}

const TROUBLES: [&str; 5] = [
    "messages without the token of their call were dropped",
    "answers are undeliverable: no route leads to their initiators",
    "requests were refused: they are not sealed with a key of the cluster",
    "addresses were not dialled: the dial policy forbids them",
    "connections were given up: their peers were silent",
];

impl Watcher {
    /// What is to be told now.
    pub(crate) fn look(
        &mut self,
        counted: [u64; TROUBLES.len()],
        now: Duration,
    ) -> Option<Trouble> {
        let all: u64 = counted.iter().sum();
        if all == self.all {
            return None;
        }
        let changed = (0..TROUBLES.len())
            .find(|which| counted[*which] != self.known[*which] && now >= self.next[*which])?;
        self.next[changed] = now.saturating_add(Duration::from_secs(1));
        let before = std::mem::replace(&mut self.known[changed], counted[changed]);
        self.all += counted[changed] - before;
        Some(Trouble {
            what: TROUBLES[changed],
            times: counted[changed] - before,
        })
    }
}

impl Trouble {
    pub(crate) fn tell(self, endpoint: NodeId) {
        tracing::warn!(%endpoint, times = self.times, "{}", self.what);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_event_of_a_kind_a_second_passes() {
        let mut watcher = Watcher::default();
        let at = Duration::from_millis;
        let mut look = |counted, now| watcher.look(counted, at(now)).map(|told| told.times);
        assert_eq!(look([0; 5], 5), None);
        assert_eq!(look([1, 0, 0, 0, 0], 5), Some(1));
        assert_eq!(look([2, 0, 0, 0, 0], 6), None);
        assert_eq!(look([3, 0, 0, 0, 1], 1004), Some(1));
        assert_eq!(look([3, 0, 0, 0, 1], 1005), Some(2));
        assert_eq!(look([3, 0, 0, 0, 1], 9000), None);
    }
}
