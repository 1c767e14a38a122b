//! Abort and winding down.

use std::time::Duration;

use std::collections::BTreeSet;

use wallaby_proto::call::watch::{Found, WatchSettings, dismiss};
use wallaby_proto::wire::{MAX_CHILDREN, Pong, Progress};

use crate::liveness::desk::{
    Desk, NOWHERE, at, call, child, continued, ended, facts, location, node, pong, running,
    settings, token,
};

fn aborted(progress: Progress) -> Progress {
    Progress {
        aborted: true,
        ..progress
    }
}

/// Notes 34, 35: all that runs is told; frozen when nothing new can come, quiet when nothing runs.
#[test]
fn an_abort_reaches_all_and_has_two_milestones() {
    let mut desk = Desk::new();
    desk.pong(
        1,
        "0",
        Progress {
            children: vec![child(2)],
            ..running()
        },
    );
    assert_eq!(
        desk.abort(),
        ["ping 0 at m1 abort from 1", "ping 0.0 at m2 abort"]
    );
    // It had just released another child: the list is final now, the child is told in turn.
    let last = Progress {
        children_from: 1,
        children: vec![child(3)],
        ..aborted(running())
    };
    assert_eq!(desk.pong(1, "0", last), ["ping 0.1 at m3 abort"]);
    desk.pong(2, "0.0", aborted(running()));
    assert_eq!(desk.pong(3, "0.1", aborted(ended(0, 1))), ["frozen"]);
    desk.pong(2, "0.0", aborted(ended(0, 1)));
    assert_eq!(desk.pong(1, "0", aborted(ended(2, 1))), ["quiet"]);
    assert_eq!(desk.watch.next_timeout(), None);
}

/// Note 35: a handler that ignores its token keeps the call from being quiet as long as somebody waits for it.
#[test]
fn a_stubborn_handler_is_asked_again_and_again() {
    let mut desk = Desk::new();
    desk.abort();
    desk.watch.wait_for_stop(Some(Duration::from_secs(3600)));
    let mut milestones = Vec::new();
    for time in 1..30 {
        milestones.extend(desk.pong(1, "0", aborted(running())));
        milestones.extend(desk.until(100 + 100 * time));
    }
    milestones.retain(|text| !text.contains("ping 0 at m1 abort"));
    assert_eq!(milestones, ["frozen"]);
    let still = desk.watch.still_running(8, |_| false);
    assert_eq!((still.named.len(), still.more, still.unheard), (1, 0, 0));
    let still = desk.watch.still_running(0, |_| false);
    assert_eq!((still.named.len(), still.more, still.unheard), (0, 1, 0));
    assert_eq!(desk.response(1, "0", 0, true, None), ["quiet"]);
    let still = desk.watch.still_running(8, |_| false);
    assert!(still.named.is_empty());
}

/// How many branches of a call have not said that they stopped, when nothing is asked any more.
fn unheard(happens: impl FnOnce(&mut Desk)) -> u64 {
    let mut desk = Desk::new();
    desk.pong(1, "0", running());
    desk.abort();
    desk.watch.wait_for_stop(Some(Duration::from_secs(3600)));
    happens(&mut desk);
    let milestones = desk.until(10_000);
    let last = milestones.last().expect("it ends");
    assert!(last.ends_with("quiet"), "{last}");
    let still = desk.watch.still_running(8, |_| false);
    assert_eq!((still.named.len(), still.more), (0, 0));
    still.unheard
}

/// A server that says nothing any more may run on; one whose process has ended does not. That no way leads to it, or that nobody
/// listens where it was never reached, does not say that it has ended.
#[test]
fn who_is_silent_has_not_said_that_it_has_stopped() {
    assert_eq!(unheard(|_| {}), 1);
    for (found, still) in [(Found::Nobody, 0), (Found::Another, 0), (Found::NoHost, 1)] {
        let gone = unheard(|desk| {
            let now = desk.time();
            desk.watch.handle_gone(node(10), found, now);
        });
        assert_eq!(gone, still, "{found:?}");
    }
    let never_met = unheard(|desk| {
        let now = desk.time();
        desk.watch.handle_not_found(node(10), Found::Nobody, now);
    });
    assert_eq!(never_met, 1);
}

/// It will not take it any more: it was told to stop. Who passes the question on does not know the request either, and cannot say
/// that.
#[test]
fn who_does_not_know_what_it_is_to_stop_does_not_run_it() {
    assert_eq!(unheard(|desk| _ = desk.unknown(1, "0")), 0);
    assert_eq!(
        unheard(|desk| _ = desk.unknown(2, "0")),
        1,
        "another server"
    );
    assert_eq!(
        unheard(|desk| _ = desk.unknown(NOWHERE, "0")),
        1,
        "by relays"
    );
}

/// What an attempt before this one has led to is asked by nobody any more, and may run.
#[test]
fn what_an_earlier_attempt_led_to_has_not_said_that_it_has_stopped() {
    let mut desk = Desk::with(WatchSettings {
        retries: 1,
        ..settings()
    });
    let listed = Progress {
        children: vec![child(3)],
        ..running()
    };
    desk.pong(1, "0", listed);
    desk.pong(3, "0.0", running());
    let mut told = Vec::new();
    for time in 1..20 {
        told.extend(desk.until(50 * time));
        desk.pong(3, "0.0", running());
    }
    let retried = told.iter().any(|text| text.ends_with("retry 0 attempt 1"));
    assert!(retried, "{told:?}");
    desk.abort();
    desk.until(10_000);
    let still = desk.watch.still_running(8, |_| true);
    assert_eq!(still.unheard, 2);
}

/// Nor has it when the latest attempt has: it is another execution.
#[test]
fn that_the_latest_attempt_has_stopped_says_nothing_of_earlier_ones() {
    for (first, unheard) in [(running(), 1), (ended(0, 1), 0)] {
        let mut desk = Desk::with(WatchSettings {
            retries: 1,
            ..settings()
        });
        desk.pong(1, "0", first);
        let is_retry = |text: &String| text.ends_with("retry 0 attempt 1");
        let mut times = (1..100).map(|time| 50 * time);
        assert!(times.any(|time| desk.until(time).iter().any(is_retry)));
        desk.abort();
        let stopped = Pong {
            attempt: 1,
            ..pong(at("0"), Some(aborted(ended(0, 0))))
        };
        assert_eq!(desk.hear(1, stopped), ["frozen", "quiet"]);
        let still = desk.watch.still_running(8, |_| false);
        assert_eq!(still.unheard, unheard);
    }
}
