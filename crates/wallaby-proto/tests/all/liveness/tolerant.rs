//! Calls that go on without what is lost: they end when nothing else is missing, and tell of each loss once.

use std::time::Duration;

use wallaby_proto::call::watch::{WatchAction, WatchSettings};
use wallaby_proto::wire::{PingSettings, Progress};

use crate::liveness::desk::{
    Desk, NOWHERE, PERIOD, TIMEOUT, at, child, ended, facts, location, running,
};

fn desk() -> Desk {
    Desk::with(WatchSettings {
        ping: PingSettings {
            period: Duration::from_millis(PERIOD),
            timeout: Duration::from_millis(TIMEOUT),
        },
        tolerant: true,
        ..WatchSettings::default()
    })
}

/// What was lost, without the pings.
fn lost(actions: &[String]) -> Vec<&str> {
    let lost = actions.iter().filter(|text| text.contains("lost"));
    lost.map(String::as_str).collect()
}

/// A server may say it as often as it likes: that a loss was told takes no more room.
#[test]
fn a_loss_that_a_server_repeats_is_told_once() {
    let mut desk = Desk::with(WatchSettings {
        ping: PingSettings {
            period: Duration::from_millis(PERIOD),
            timeout: Duration::from_millis(TIMEOUT),
        },
        stall: Some(Duration::from_millis(200)),
        resends: 0,
        heartbeats: None,
        tolerant: true,
    });
    let stalled = || Progress {
        idle: Some(Duration::from_secs(9)),
        ..running()
    };
    let children = vec![child(2)];
    desk.pong(
        1,
        "0",
        Progress {
            children,
            ..running()
        },
    );
    let mut told = Vec::new();
    for _ in 0..5 {
        told.extend(desk.pong(2, "0.0", stalled()));
    }
    assert_eq!(lost(&told).len(), 1, "{told:?}");
}

/// The one request of the call lives on, one that it delegated is silent, and another one has ended.
#[test]
fn a_silent_branch_is_not_waited_for_and_the_others_are() {
    let mut desk = desk();
    desk.pong(
        1,
        "0",
        Progress {
            children: vec![child(2), child(3)],
            ..running()
        },
    );
    desk.pong(2, "0.0", running());
    desk.until(300);
    desk.pong(1, "0", running());
    desk.response(3, "0.1", 0, true, None);
    let actions = desk.until(650);
    assert_eq!(
        lost(&actions),
        ["600: lost: 0.0 gave no sign of life for 500ms"]
    );
    assert!(!desk.watch.tree_mut().is_complete(), "request 0 runs");
    desk.response(1, "0", 0, false, Some(("0", facts(2, 1))));
    assert!(desk.watch.tree_mut().is_complete());
    let missing: Vec<_> = desk.watch.tree_mut().missing().collect();
    assert_eq!(missing, []);
    let views: Vec<_> = desk.watch.tree_mut().branches().collect();
    let lost = views.iter().filter(|view| view.lost);
    assert_eq!(
        lost.map(|view| view.path).collect::<Vec<_>>(),
        [at("0.0").path]
    );
}

/// What a lost request led to may live, and then it is waited for; what it reports of the lost one changes nothing.
#[test]
fn what_lives_below_a_lost_branch_is_waited_for() {
    let mut desk = desk();
    desk.response(1, "0", 0, false, Some(("0", facts(1, 1))));
    desk.pong(
        2,
        "0.0",
        Progress {
            children: vec![child(3)],
            ..running()
        },
    );
    for time in [300, 600] {
        desk.until(time - 1);
        desk.pong(3, "0.0.0", running());
    }
    let actions = desk.until(700);
    assert_eq!(lost(&actions).len(), 1, "{actions:?}");
    assert!(!desk.watch.tree_mut().is_complete(), "0.0.0 runs");
    desk.response(3, "0.0.0", 0, true, None);
    assert!(desk.watch.tree_mut().is_complete());
    // It was alive after all, but what is complete stays so.
    desk.response(2, "0.0", 0, false, Some(("0.0", facts(2, 2))));
    assert!(desk.watch.tree_mut().is_complete());
}

/// As long as something else is missing, a lost branch that lives after all may still tell what it led to.
#[test]
fn what_a_lost_branch_reports_in_time_is_waited_for() {
    let mut desk = desk();
    desk.pong(
        1,
        "0",
        Progress {
            children: vec![child(2)],
            ..running()
        },
    );
    desk.until(300);
    desk.pong(1, "0", running());
    assert_eq!(lost(&desk.until(650)).len(), 1);
    desk.response(2, "0.0", 0, false, Some(("0.0", facts(1, 1))));
    desk.response(1, "0", 0, false, Some(("0", facts(1, 1))));
    let missing: Vec<_> = desk.watch.tree_mut().missing().collect();
    assert_eq!(missing, [at("0.0.0")]);
    desk.response(3, "0.0.0", 0, true, None);
    assert!(desk.watch.tree_mut().is_complete());
}

/// A response that does not come is a loss as well, and one that comes late is welcome.
#[test]
fn a_lost_response_is_not_waited_for() {
    let mut desk = desk();
    desk.pong(1, "0", ended(0, 2));
    desk.response(1, "0", 1, false, None);
    let actions = desk.until(2000);
    assert_eq!(
        lost(&actions),
        ["600: lost: 0 sent response 0, which was lost"]
    );
    assert!(desk.watch.tree_mut().is_complete());
    desk.response(1, "0", 0, false, None);
    assert!(desk.watch.tree_mut().is_complete());
    assert_eq!(desk.watch.tree_mut().responses(), (2, 0));
    assert_eq!(lost(&desk.until(5000)), Vec::<&str>::new());
}

/// After all that, what may still run is stopped.
#[test]
fn what_was_lost_is_told_to_stop() {
    let mut desk = desk();
    desk.pong(1, "0", running());
    assert_eq!(lost(&desk.until(600)).len(), 1);
    assert!(desk.watch.tree_mut().is_complete());
    let now = desk.time();
    desk.watch.abort(now);
    assert_eq!(desk.actions(), ["ping 0 at m1 abort"]);
}

/// The server of request 0 dies before it can say where request 0.0 is; but the application knows, and so it is asked there.
#[test]
fn who_was_placed_by_the_application_is_asked_there() {
    let mut desk = desk();
    let now = desk.time();
    for (place, server) in [("0.0", 2), ("0.0.0", 3)] {
        let (path, at) = (at(place).path, location(server));
        desk.watch.place(path, at, now);
    }
    assert_eq!(
        desk.actions(),
        Vec::<String>::new(),
        "nothing is heard of them"
    );
    let asked = desk.response(NOWHERE, "0.0.0", 0, true, Some(("0.0", facts(1, 1))));
    assert_eq!(asked, ["ping 0.0 at m2"]);
}

/// Each of many losses says what was so before it, and takes no look at all the others.
#[test]
fn many_losses_are_told_one_by_one() {
    const LOST: u32 = 20_000;
    let mut desk = desk();
    desk.response(1, "0", 0, false, Some(("0", facts(LOST, 1))));
    let mut finished = Vec::new();
    // Each turn looks at some of them.
    let now = desk.time();
    while desk.watch.next_timeout().is_some_and(|due| due <= now) {
        desk.watch.handle_timeout(now);
    }
    desk.now += TIMEOUT;
    let now = desk.time();
    while desk.watch.next_timeout().is_some_and(|due| due <= now) {
        desk.watch.handle_timeout(now);
        while let Some(action) = desk.watch.poll() {
            if let WatchAction::Lost(failure) = action {
                assert_eq!(failure.known, u64::from(LOST) + 1);
                finished.push(failure.finished);
            }
        }
    }
    assert!(finished.into_iter().eq(1..=u64::from(LOST)));
    assert!(desk.watch.tree_mut().is_complete());
}

/// Of a way of two hundred requests the last ones are named, so that all losses along it take little room together.
#[test]
fn of_a_long_way_a_loss_names_the_end() {
    let mut desk = desk();
    let mut place = "0".to_owned();
    for server in 1..200 {
        let children = vec![child(server + 1)];
        desk.pong(
            server,
            &place,
            Progress {
                children,
                ..running()
            },
        );
        place += ".0";
    }
    desk.now += TIMEOUT;
    let now = desk.time();
    desk.watch.handle_timeout(now);
    let mut longest = 0;
    while let Some(action) = desk.watch.poll() {
        if let WatchAction::Lost(failure) = action {
            longest = longest.max(failure.path.len());
        }
    }
    assert_eq!(longest, 64);
    assert!(desk.watch.tree_mut().is_complete());
}

/// Of many losses at the end of a long way each names the request that it came of; the whole way only as long as they are few.
#[test]
fn losses_take_limited_room_however_many_there_are() {
    let mut desk = desk();
    let mut place = "0".to_owned();
    for _ in 0..12 {
        desk.response(1, &place, 0, false, Some((&place, facts(1, 1))));
        place += ".0";
    }
    desk.response(1, &place, 0, false, Some((&place, facts(5_000, 1))));
    let (mut losses, mut steps) = (0, 0);
    while let Some(due) = desk.watch.next_timeout() {
        desk.watch.handle_timeout(due);
        while let Some(action) = desk.watch.poll() {
            let WatchAction::Lost(failure) = action else {
                continue;
            };
            let last = failure.path.last().expect("what it came of");
            assert_eq!(last.request, at(&place));
            assert!(losses >= 1_000 || failure.path.len() == 13, "{failure}");
            steps += failure.path.len();
            losses += 1;
        }
    }
    assert_eq!(losses, 5_000);
    assert!(steps <= 16_384 + 5_000, "{steps}");
}
