//! Abort and winding down.

use std::time::Duration;

use std::collections::BTreeSet;

use wallaby_proto::call::watch::{Found, WatchSettings, dismiss};
use wallaby_proto::wire::{Child, MAX_CHILDREN, Pong, Progress};

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

/// Rules 34 and 35: all that runs is told; frozen when nothing new can come, quiet when nothing runs.
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

/// Rule 35: a handler that ignores its token keeps the call from being quiet as long as somebody waits for it.
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
    let still = desk.watch.still_running(8, |_| false, true);
    assert_eq!((still.running.named.len(), still.running.more), (1, 0));
    let still = desk.watch.still_running(0, |_| false, true);
    assert_eq!((still.running.named.len(), still.running.more), (0, 1));
    assert!(still.unheard.named.is_empty());
    assert_eq!(desk.response(1, "0", 0, true, None), ["quiet"]);
    let still = desk.watch.still_running(8, |_| false, true);
    assert!(still.running.named.is_empty());
}

/// How many branches of a call have not said that they stopped, when nothing is asked any more.
fn unheard(happens: impl FnOnce(&mut Desk)) -> usize {
    let mut desk = Desk::new();
    desk.pong(1, "0", running());
    desk.abort();
    desk.watch.wait_for_stop(Some(Duration::from_secs(3600)));
    happens(&mut desk);
    let milestones = desk.until(10_000);
    let last = milestones.last().expect("it ends");
    assert!(last.ends_with("quiet"), "{last}");
    let still = desk.watch.still_running(8, |_| false, true);
    assert_eq!((still.running.named.len(), still.running.more), (0, 0));
    still.unheard.named.len()
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

/// Who hands work on may not know yet which incarnation is to have it, and hands nothing on any more when it is told to stop.
#[test]
fn who_does_not_know_what_never_reached_it_does_not_run_it() {
    let told = unheard(|desk| {
        let not_met = Child {
            node: None,
            ..child(2)
        };
        let stopped = Progress {
            children: vec![not_met],
            ..aborted(ended(1, 0))
        };
        desk.pong(1, "0", stopped);
        desk.unknown(2, "0.0");
    });
    assert_eq!(told, 0);
}

/// What an attempt before this one has led to is asked by nobody any more, and may run.
#[test]
fn what_an_earlier_attempt_led_to_has_not_said_that_it_has_stopped() {
    let mut desk = Desk::with(WatchSettings {
        resends: 1,
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
    let still = desk.watch.still_running(8, |_| true, true);
    let named = still.unheard.named.iter().map(|hop| {
        let at = hop.before.as_ref().and_then(|at| at.node);
        (hop.request.to_string(), at)
    });
    let before = [
        ("0".to_owned(), Some(node(10))),
        ("0.0".to_owned(), Some(node(30))),
    ];
    assert_eq!(named.collect::<Vec<_>>(), before);
}

/// Nor has it when the latest attempt has: it is another execution.
#[test]
fn that_the_latest_attempt_has_stopped_says_nothing_of_earlier_ones() {
    for (first, unheard) in [(running(), 1), (ended(0, 1), 0)] {
        let mut desk = Desk::with(WatchSettings {
            resends: 1,
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
        let still = desk.watch.still_running(8, |_| false, true);
        assert_eq!(still.unheard.named.len(), unheard);
    }
}

/// Where nobody waits a server that says so again and again does not keep the call.
#[test]
fn a_stubborn_handler_is_let_go_where_nobody_waits() {
    let mut desk = Desk::new();
    desk.abort();
    let mut milestones = Vec::new();
    for time in 1..30 {
        milestones.extend(desk.pong(1, "0", aborted(running())));
        milestones.extend(desk.until(100 + 100 * time));
    }
    let quiet = milestones.iter().filter(|text| text.contains("quiet"));
    assert_eq!(quiet.count(), 1, "{milestones:?}");
    let still = desk.watch.still_running(8, |_| false, true);
    assert_eq!(still.running.named.len(), 1);
}

/// A server that says of each request that it was stopped, and went on elsewhere, keeps the call no longer than it takes to ask
/// about all that a call may have; or than somebody waits.
#[test]
fn a_line_that_goes_on_for_ever_is_let_go() {
    for (waits, quiet_at) in [(0, 100 + 300 * 100 + 500), (40_000, 40_100)] {
        let mut desk = Desk::new();
        let mut told = desk.abort();
        desk.watch
            .wait_for_stop((waits > 0).then_some(Duration::from_millis(100 + waits)));
        let mut hop = 0;
        while hop < 1000 && desk.watch.next_timeout().is_some() {
            told.extend(desk.until(desk.now + 50));
            told.extend(desk.pong(1, &format!("0+{hop}"), aborted(continued(0, 1))));
            hop += 1;
        }
        let milestones = told.iter().filter(|text| !text.contains("ping"));
        let expected = ["frozen", "quiet"].map(|text| format!("{quiet_at}: {text}"));
        assert_eq!(milestones.collect::<Vec<_>>(), expected.each_ref());
        assert!(
            desk.pong(1, &format!("0+{hop}"), aborted(continued(0, 1)))
                .is_empty()
        );
    }
}

/// Rule 35: winding down ends although a server is dead.
#[test]
fn a_silent_server_is_given_up_after_the_timeout() {
    let mut desk = Desk::new();
    desk.until(300);
    desk.abort();
    let told = desk.until(2000);
    let milestones: Vec<_> = told.iter().filter(|text| !text.contains("ping")).collect();
    assert_eq!(milestones, ["800: frozen", "800: quiet"]);
}

/// Rule 36: "unknown" does not count as stopped, whatever the server remembers of the call: hop 12 forwarded, its server
/// restarted; hop 14 runs on.
#[test]
fn unknown_does_not_count_as_stopped() {
    let mut desk = Desk::new();
    desk.abort();
    assert!(desk.unknown(1, "0").is_empty());
    desk.until(550);
    // Rule 34: it announces itself and is told.
    assert_eq!(
        desk.announce(4, "0+14", running()),
        ["ping 0+14 at m4 abort"]
    );
    desk.pong(4, "0+14", aborted(running()));
    assert_eq!(desk.pong(4, "0+14", aborted(ended(0, 1))), ["quiet"]);
}

/// How far an earlier attempt got is not how far this one has to be stopped.
#[test]
fn what_an_earlier_attempt_led_to_is_not_waited_for() {
    let mut desk = Desk::with(WatchSettings {
        resends: 1,
        ..settings()
    });
    desk.announce(4, "0+5", running());
    let told = desk.until(1000);
    let retry = told.iter().find(|text| text.contains("retry"));
    assert_eq!(retry.map(String::as_str), Some("600: retry 0 attempt 1"));
    let now = desk.time();
    desk.watch.sent(at("0"), location(1), now);
    desk.abort();
    // It ended with a status, which is lost.
    let failed = Progress {
        facts: None,
        ..aborted(ended(0, 1))
    };
    let mut second = pong(at("0"), Some(failed));
    second.attempt = 1;
    let told = desk.hear(1, second);
    assert!(told.contains(&"quiet".to_owned()), "{told:?}");
}

/// The branch went on before the abort came: the new hop is told.
#[test]
fn a_continuation_is_followed() {
    let mut desk = Desk::new();
    desk.abort();
    assert_eq!(
        desk.pong(1, "0", aborted(continued(0, 2))),
        ["ping 0+1 at m2 abort"]
    );
    assert_eq!(desk.pong(2, "0+1", aborted(running())), ["frozen"]);
    assert_eq!(desk.end(2, "0+1", facts(0, 0)), ["quiet"]);
}

/// Facts that arrive after the abort name children that must be found and stopped.
#[test]
fn late_facts_name_children_to_stop() {
    let mut desk = Desk::new();
    desk.abort();
    assert!(
        desk.end(1, "0", facts(1, 0))
            .iter()
            .all(|text| text != "quiet")
    );
    let told = desk.until(200);
    assert_eq!(told, ["200: ping 0 at m1 abort"]);
    let finished = Progress {
        children: vec![child(2)],
        ..aborted(ended(1, 0))
    };
    assert_eq!(desk.pong(1, "0", finished), ["ping 0.0 at m2 abort"]);
    assert_eq!(
        desk.pong(2, "0.0", aborted(ended(0, 0))),
        ["frozen", "quiet"]
    );
}

/// Rule 33: a failed call is wound down like an aborted one.
#[test]
fn a_failed_call_is_wound_down() {
    let mut desk = Desk::new();
    desk.pong(
        1,
        "0",
        Progress {
            children: vec![child(2)],
            ..running()
        },
    );
    desk.until(550);
    desk.pong(1, "0", running());
    let told = desk.until(600);
    assert!(told.contains(&"600: failed: 0.0 gave no sign of life for 500ms".to_owned()));
    assert!(
        told.contains(&"600: ping 0 at m1 abort from 1".to_owned())
            || told.contains(&"600: ping 0 at m1 abort".to_owned()),
        "{told:?}"
    );
    desk.pong(1, "0", aborted(ended(1, 1)));
    let told = desk.until(3000);
    assert_eq!(told.last().map(String::as_str), Some("1100: quiet"));
}

/// A call that had ended when it was aborted is quiet at once.
#[test]
fn what_has_ended_is_quiet_at_once() {
    let mut desk = Desk::new();
    desk.pong(1, "0", ended(0, 1));
    assert_eq!(desk.abort(), ["frozen", "quiet"]);
    assert!(desk.abort().is_empty());
}

/// The driver has forgotten the call by then. An announcement, a page of children, a hop that is located now: nobody is
/// asked about any of them.
#[test]
fn nothing_follows_quiet() {
    let mut by_announcement = Desk::new();
    by_announcement.abort();
    by_announcement.now += 60;
    let told = by_announcement.announce(1, "0", aborted(ended(0, 1)));
    assert_eq!(told, ["frozen", "quiet"]);

    let mut by_facts = Desk::new();
    by_facts.abort();
    assert_eq!(by_facts.end(1, "0", facts(0, 1)), ["frozen", "quiet"]);
    by_facts.now += 60;
    assert!(by_facts.announce(2, "0+1", running()).is_empty());
    let page = Progress {
        children: vec![child(2); MAX_CHILDREN],
        ..running()
    };
    assert!(by_facts.pong(1, "0", page).is_empty());
}

/// Rule 34: the call fails with more requests than it may have, and has no room for what it learns of then. That is told to
/// stop all the same: children that are listed beyond the budget, who announces himself, and what that led to.
#[test]
fn what_a_call_has_no_room_for_is_stopped() {
    let mut desk = Desk::of_requests(2);
    let listed = Progress {
        children: vec![child(2), child(3), child(4)],
        ..running()
    };
    let told = desk.pong(1, "0", listed);
    let failed = "failed: 0 leads to too much: the call has more than 2 requests, which is its budget (`Client::budgets`)";
    assert!(told.contains(&failed.to_owned()), "{told:?}");
    for ping in ["0.0 at m2", "0.1 at m3", "0.2 at m4"] {
        assert!(told.contains(&format!("ping {ping} abort")), "{told:?}");
    }
    // It tells where its own work went once it has been stopped: that list is final.
    let stopped = Progress {
        children: vec![child(5)],
        ..aborted(running())
    };
    assert_eq!(desk.pong(3, "0.1", stopped), ["ping 0.1.0 at m5 abort"]);
    let went_on = desk.pong(5, "0.1.0", aborted(continued(0, 6)));
    assert_eq!(went_on, ["ping 0.1.0+1 at m6 abort"]);
    assert!(desk.pong(6, "0.1.0+1", aborted(running())).is_empty());
    // Nobody has named it.
    let told = desk.announce(7, "0.2.3", running());
    assert_eq!(told, ["back: ping 0.2.3 abort"]);
    assert!(desk.announce(7, "0.2.3", aborted(running())).is_empty());
}

/// A branch that nobody had named takes the call over its budget.
#[test]
fn an_announcement_over_the_budget_fails_the_call_and_is_answered() {
    let mut desk = Desk::of_requests(1);
    let listed = Progress {
        children: vec![child(3)],
        ..running()
    };
    let told = desk.announce(2, "0.0", listed);
    let failed = "failed: 0.0 leads to too much: the call has more than 1 requests, which is its budget (`Client::budgets`)";
    assert!(told.contains(&failed.to_owned()), "{told:?}");
    assert!(told.contains(&"ping 0 at m1 abort".to_owned()), "{told:?}");
    assert!(told.contains(&"ping 0.0.0 at m3 abort".to_owned()));
    assert_eq!(told.last().expect("not none"), "back: ping 0.0 abort");
}

/// A server that names ever more requests does not make the initiator write to all of them.
#[test]
fn what_a_call_has_no_room_for_is_told_within_limits() {
    let mut desk = Desk::of_requests(300);
    let page = |children_from| Progress {
        children_from,
        children: vec![child(9); MAX_CHILDREN],
        ..aborted(running())
    };
    let mut told = desk.pong(1, "0", page(0));
    assert!(told.contains(&"ping 0 at m1 from 256".to_owned()));
    told = desk.pong(1, "0", page(256));
    // Who was not asked before is told in the next period.
    told.extend(desk.until(200));
    let beyond: BTreeSet<_> = told
        .iter()
        .filter(|text| text.contains("m9 abort"))
        .map(|text| text.trim_start_matches("200: "))
        .collect();
    assert_eq!(beyond.len(), 299 + 513 - 300);
    // The next page of one that there is no room for, and then no more of it.
    let told = desk.pong(8, "0.400", page(0));
    assert_eq!(told.len(), 300 - 213);
    assert!(desk.pong(8, "0.401", page(0)).is_empty());
    assert_eq!(
        desk.announce(8, "0.402", running()),
        ["back: ping 0.402 abort"]
    );
}

/// Rule 31: an initiator that has finished with a call answers its announcements with "stop".
#[test]
fn announcements_of_calls_that_are_over_are_dismissed() {
    let told = pong(at("0.3"), Some(running()));
    let ping = dismiss(&told, token());
    assert!(ping.abort);
    assert_eq!((ping.call, ping.request), (call(), at("0.3")));
}
