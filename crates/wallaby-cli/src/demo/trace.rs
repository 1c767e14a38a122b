//! From a call's trace to a timeline.

use super::timeline::{HopRow, Timeline, Work};
use std::time::Duration;
use wallaby::{Address, Hop, Trace};

/// A duration in microseconds, as reports have it.
pub(crate) fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// The timeline of a call that was begun at `begun`, its servers called by `name`.
pub(crate) fn timeline(
    trace: &Trace,
    begun: Duration,
    name: impl Fn(&Address) -> String,
) -> Timeline {
    let row = |hop: &Hop| HopRow {
        path: hop.path.clone(),
        parent: hop.parent,
        method: hop.method.as_deref().map_or_else(|| "?".to_owned(), short),
        server: hop.server.as_ref().map_or_else(|| "?".to_owned(), &name),
        begun_us: micros(begun),
        work: hop.timing.map(|timing| Work {
            arrived_us: micros(begun + timing.arrived),
            queued_us: micros(timing.queued),
            ran_us: micros(timing.ran),
        }),
        answered_us: hop.answered.map(|answered| micros(begun + answered)),
        responses: hop.responses,
        delegated: hop.delegated,
    };
    let hops = trace.hops.iter().map(row).collect();
    Timeline {
        elapsed_us: micros(begun + trace.elapsed),
        hops,
    }
    .in_tree_order()
}

/// A method without its package.
fn short(method: &str) -> String {
    let service = method.split('/').next().unwrap_or_default();
    let package = service.rfind('.').map_or(0, |dot| dot + 1);
    method[package..].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn methods_lose_their_package() {
        assert_eq!(short("demo.search.Index/lookup"), "Index/lookup");
        assert_eq!(short("Index/look.up"), "Index/look.up");
        assert_eq!(short(""), "");
    }
}
