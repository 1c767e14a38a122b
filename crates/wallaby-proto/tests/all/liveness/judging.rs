//! What a watch decides, when, and what it says.

use std::time::Duration;

use wallaby_proto::call::clock::Clock;
use wallaby_proto::call::initiator::Violation;
use wallaby_proto::call::watch::{Executed, FailureKind, Found, Source, WatchSettings};
use wallaby_proto::wire::{End, Progress, Response};
use wallaby_proto::{Address, Status};

use crate::liveness::desk::{
    Desk, NOWHERE, at, call, child, continued, ended, facts, location, node, pong, response,
    running, settings, token,
};

fn failed(actions: &[String]) -> Option<&String> {
    actions.iter().find(|text| text.contains("failed"))
}

/// Rule 16, and what the error says.
#[test]
fn silence_for_the_timeout_is_a_failure() {
    let mut desk = Desk::new();
    desk.pong(
        1,
        "0",
        Progress {
            children: vec![child(2)],
            ..ended(1, 1)
        },
    );
    desk.response(1, "0", 0, false, None);
    desk.pong(2, "0.0", continued(0, 3));
    assert_eq!(failed(&desk.until(599)), None);
    let actions = desk.until(600);
    assert_eq!(
        failed(&actions).map(String::as_str),
        Some("600: failed: 0.0+1 gave no sign of life for 500ms")
    );
    let failure = desk.failure.expect("just failed");
    assert_eq!(failure.server, location(3));
    let path: Vec<_> = (failure.path.iter())
        .map(|step| (step.request, step.server.clone()))
        .collect();
    // The branch above, and the hop before it on its own line.
    let expected = [(at("0"), location(1)), (at("0.0"), location(2))];
    assert_eq!(path, expected);
    assert_eq!(
        (failure.known, failure.finished, failure.responses),
        (2, 1, 1)
    );
    assert_eq!(failure.executed, Executed::Executed);
    assert!(!failure.evicted);
    assert_eq!(
        failure.to_string(),
        "request 0.0+1 at mem://m3 gave no sign of life for 500ms; reached by 0 at mem://m1, 0.0 at mem://m2; 1 of 2 known branches \
         have finished, 1 responses have arrived; some of it was executed"
    );
}

#[test]
fn a_request_that_nobody_confirmed_may_not_have_been_executed() {
    let mut desk = Desk::new();
    let mut told = pong(at("0"), None);
    told.evicted = true;
    desk.hear(1, told);
    assert!(failed(&desk.until(600)).is_some());
    let failure = desk.failure.expect("just failed");
    assert_eq!(failure.executed, Executed::Unknown);
    assert!(failure.evicted, "the server may have forgotten it");
}

/// Rule 16: each of these is a sign of life.
#[test]
fn pongs_announcements_new_hops_and_new_responses_are_evidence() {
    let mut desk = Desk::new();
    desk.until(550);
    desk.pong(1, "0", running());
    desk.until(1000);
    desk.response(1, "0", 0, false, None);
    desk.until(1450);
    desk.announce(
        2,
        "0+1",
        Progress {
            base: 1,
            ..running()
        },
    );
    desk.until(1900);
    desk.response(3, "0+2", 1, false, None);
    assert_eq!(failed(&desk.until(2399)), None);
    assert!(failed(&desk.until(2400)).is_some());
}

/// Rule 15: a pong of a lower hop is no sign of life of the highest one, an old response none at all.
#[test]
fn what_is_no_evidence() {
    let mut desk = Desk::new();
    desk.pong(1, "0", continued(1, 2));
    desk.response(1, "0", 0, false, None);
    desk.until(400);
    desk.pong(1, "0", continued(1, 2));
    desk.response(1, "0", 0, false, None);
    assert!(failed(&desk.until(600)).is_some());
}

/// A request that its sender is still writing cannot show any life.
#[test]
fn what_is_still_being_written_is_not_silent() {
    let mut desk = Desk::new();
    for time in 1..20 {
        let mut told = pong(at("0"), Some(continued(0, 2)));
        told.writing = true;
        desk.hear(1, told);
        assert_eq!(failed(&desk.until(100 + 100 * time)), None);
    }
    assert!(failed(&desk.until(2500)).is_some());
}

/// A large initial request, or one that waits behind it, cannot show any life before the initiator itself has written it.
#[test]
fn an_initial_request_that_is_still_being_written_is_not_silent() {
    let mut desk = Desk::new();
    for time in (200..2000).step_by(100) {
        desk.now = time;
        let now = desk.time();
        desk.watch.writing(at("0"), now);
        desk.watch.handle_timeout(now);
        assert_eq!(failed(&desk.actions()), None);
    }
    // It was said to be there last at 1900.
    assert_eq!(failed(&desk.until(2399)), None);
    assert!(failed(&desk.until(2400)).is_some());
}

/// Rule 24: each missing response has a clock of its own, from when it was known to be missing.
#[test]
fn a_missing_response_is_lost_after_the_timeout() {
    let mut desk = Desk::new();
    desk.pong(1, "0", running());
    desk.until(450);
    desk.pong(
        1,
        "0",
        Progress {
            count: 1,
            ..running()
        },
    );
    desk.until(900);
    desk.pong(1, "0", ended(0, 2));
    // The branch shows life all the time; the first response is lost 500 after it was known to be missing.
    assert_eq!(failed(&desk.until(949)), None);
    let actions = desk.until(950);
    assert!(
        failed(&actions).is_some_and(|text| text.contains("0 sent response 0")),
        "{actions:?}"
    );
    assert_eq!(
        desk.failure.expect("just failed").kind,
        FailureKind::ResponseLost { index: 0 }
    );
}

/// Rule 24: Roo turned a late large response into a failure. "Still writing" restarts the clock.
#[test]
fn a_response_that_is_still_being_written_is_not_lost() {
    let mut desk = Desk::new();
    for time in 1..30 {
        let mut told = pong(at("0"), Some(ended(0, 1)));
        told.writing = true;
        desk.hear(1, told);
        assert_eq!(failed(&desk.until(100 + 100 * time)), None);
    }
    desk.response(1, "0", 0, true, None);
    assert!(desk.watch.tree_mut().is_complete());
}

/// Its server has written a large response out and is gone; who passes it on says that it is on its way.
#[test]
fn a_response_that_is_still_passed_on_is_not_lost() {
    for facts_known in [true, false] {
        let mut desk = Desk::new();
        if facts_known {
            desk.pong(1, "0", ended(0, 1));
        }
        let mut told = pong(at("0"), None);
        (told.announced, told.writing) = (true, true);
        for time in 1..30 {
            desk.hear(7, told.clone());
            assert_eq!(failed(&desk.until(100 + 100 * time)), None);
        }
        assert_eq!(failed(&desk.until(3399)), None);
        assert!(failed(&desk.until(3400)).is_some());
    }
}

/// Its server only knows that it has gone out over a connection that has ended. The server at the other end has it.
#[test]
fn what_is_passed_on_is_not_lost_although_its_server_says_so() {
    let mut desk = Desk::new();
    let lost = Progress {
        lost: vec![0],
        ..ended(0, 1)
    };
    let mut told = pong(at("0"), None);
    (told.announced, told.writing) = (true, true);
    desk.hear(7, told);
    desk.pong(1, "0", lost.clone());
    desk.until(299);
    desk.pong(1, "0", lost.clone());
    assert!(desk.failure.is_none());
    desk.until(300);
    desk.pong(1, "0", lost);
    assert!(desk.failure.is_some(), "silent for two ping periods");
}

/// What is passed on of an earlier hop says nothing of the latest one.
#[test]
fn what_is_passed_on_does_not_excuse_a_silent_successor() {
    let mut desk = Desk::new();
    desk.pong(1, "0", continued(1, 2));
    let mut told = pong(at("0"), None);
    (told.announced, told.writing) = (true, true);
    let mut failure = None;
    for time in 1..8 {
        desk.hear(7, told.clone());
        failure = failure.or(failed(&desk.until(100 + 100 * time)).cloned());
    }
    assert!(failure.is_some_and(|text| text.contains("0+1 gave no sign of life")));
}

/// Rule 24: only the clocks of what is still being written restart.
#[test]
fn another_hop_that_writes_does_not_excuse_a_lost_response() {
    let mut desk = Desk::new();
    desk.pong(1, "0", continued(1, 2));
    let mut failure = None;
    for time in 1..8 {
        let mut told = pong(
            at("0+1"),
            Some(Progress {
                base: 1,
                count: 2,
                ..running()
            }),
        );
        told.writing = true;
        desk.hear(2, told);
        failure = failure.or(failed(&desk.until(100 + 100 * time)).cloned());
    }
    assert_eq!(
        failure.as_deref(),
        Some("600: failed: 0 sent response 0, which was lost")
    );
}

/// Rules 25 and 26: the server does not have it any more, and every connection that it could have come on was read.
#[test]
fn what_is_lost_for_certain_fails_at_once() {
    let lost = Progress {
        lost: vec![1],
        ..ended(0, 2)
    };
    let mut desk = Desk::new();
    let mut told = Source {
        location: location(1),
        alone: false,
    };
    let now = desk.time();
    let told_pong = pong(at("0"), Some(lost.clone()));
    desk.watch.handle_pong(&told_pong, &told, now);
    assert_eq!(
        failed(&desk.actions()),
        None,
        "another connection may still bring it"
    );
    told.alone = true;
    desk.watch.handle_pong(&told_pong, &told, now);
    assert_eq!(
        desk.actions()[0],
        "failed: 0 sent response 1, which was lost"
    );
    // What has arrived is not lost, whatever the server says.
    let mut desk = Desk::new();
    desk.response(1, "0", 1, false, None);
    desk.pong(1, "0", lost);
    assert!(desk.failure.is_none());
}

/// Rule 18: a node that is gone has three ping periods instead of the whole timeout.
#[test]
fn a_gone_node_is_given_up_within_three_periods() {
    let mut desk = Desk::new();
    desk.pong(1, "0", running());
    desk.until(150);
    let now = desk.time();
    desk.watch.handle_gone(node(10), Found::Nobody, now);
    assert_eq!(desk.actions(), ["ping 0 at m1"]);
    assert_eq!(failed(&desk.until(399)), None);
    assert!(failed(&desk.until(400)).is_some());
}

const SOON: Duration = Duration::from_millis(30);

/// Nothing can come from there any more but by others, who know as well.
#[test]
fn a_node_that_is_gone_for_certain_is_given_up_soon() {
    for (within, due) in [(SOON, 180), (Duration::MAX, 250)] {
        let mut desk = Desk::new();
        desk.pong(1, "0", running());
        desk.until(150);
        let now = desk.time();
        let watch = &mut desk.watch;
        watch.handle_gone_for_certain((node(10), Found::Nobody), within, now);
        assert_eq!(desk.actions(), ["ping 0 at m1"]);
        assert_eq!(failed(&desk.until(due - 1)), None);
        assert!(
            failed(&desk.until(due)).is_some(),
            "never later than a period"
        );
    }
}

/// First somebody at another connection claimed to be it.
#[test]
fn a_gone_node_may_turn_out_to_be_so_for_sure() {
    let mut desk = Desk::new();
    desk.pong(1, "0", running());
    desk.until(150);
    let now = desk.time();
    desk.watch.handle_gone(node(10), Found::Nobody, now);
    desk.until(200);
    let now = desk.time();
    let watch = &mut desk.watch;
    watch.handle_gone_for_certain((node(10), Found::Nobody), SOON, now);
    assert_eq!(failed(&desk.until(229)), None);
    assert!(failed(&desk.until(230)).is_some());
}

/// Who passes a response on may wait for room, and says so once a period.
#[test]
fn what_is_passed_on_of_a_node_that_is_gone_for_certain_is_waited_for() {
    let mut desk = Desk::new();
    desk.pong(1, "0", running());
    let mut told = pong(at("0"), None);
    (told.announced, told.writing) = (true, true);
    for time in 1..9 {
        desk.until(100 + 100 * time);
        desk.hear(7, told.clone());
        let now = desk.time();
        let watch = &mut desk.watch;
        watch.handle_gone_for_certain((node(10), Found::Nobody), SOON, now);
        assert!(desk.failure.is_none(), "after {time} periods");
    }
}

/// Whoever has it now was told of the end, and says so in time.
#[test]
fn the_successor_of_a_node_that_is_gone_for_certain_saves_the_call() {
    let mut desk = Desk::new();
    desk.pong(1, "0", running());
    desk.until(150);
    let now = desk.time();
    let watch = &mut desk.watch;
    watch.handle_gone_for_certain((node(10), Found::Nobody), SOON, now);
    desk.until(179);
    let mut announced = pong(at("0+1"), Some(running()));
    announced.announced = true;
    desk.hear(2, announced);
    assert_eq!(failed(&desk.until(678)), None, "the whole timeout");
    assert!(failed(&desk.until(679)).is_some());
}

/// Another branch brought the manifest of one that nobody has told of yet: that none of its servers is known does not mean
/// that they are gone. What it misses has the whole timeout.
#[test]
fn a_branch_without_known_servers_has_the_whole_timeout() {
    let mut desk = Desk::new();
    let mut brought = response("0.0.0", 0, true, Some(("0.0", facts(1, 1))));
    brought.token = Some(token());
    desk.watch
        .tree_mut()
        .handle_response(&brought)
        .expect("as told");
    desk.heard(NOWHERE, "0.0.0");
    for time in 2..6 {
        desk.pong(1, "0", running());
        assert_eq!(failed(&desk.until(100 * time)), None);
    }
    assert_eq!(failed(&desk.until(599)), None);
    let actions = desk.until(600);
    assert_eq!(
        failed(&actions).map(String::as_str),
        Some("600: failed: 0.0 sent response 0, which was lost")
    );
}

/// Rule 18: what its server sent last may have been for a while on its way when that is found to be gone.
#[test]
fn a_response_of_a_node_that_is_gone_may_yet_be_announced() {
    let mut desk = Desk::new();
    desk.pong(1, "0", ended(0, 1));
    desk.until(390);
    let now = desk.time();
    desk.watch.handle_gone(node(10), Found::Nobody, now);
    assert_eq!(failed(&desk.until(589)), None);
    assert!(failed(&desk.until(590)).is_some());
}

/// Rules 14 and 18: it had forwarded the request; the successor announces itself in time, and has the whole timeout.
#[test]
fn the_successor_of_a_gone_node_saves_the_call() {
    let mut desk = Desk::new();
    desk.pong(1, "0", running());
    let now = desk.time();
    desk.watch.handle_gone(node(10), Found::Nobody, now);
    desk.until(390);
    desk.announce(2, "0+1", running());
    assert_eq!(failed(&desk.until(889)), None);
    assert!(failed(&desk.until(890)).is_some());
}

/// Rule 18: others have named a server that is not found where they say; its successor has the same time as that of one
/// which was reached before.
#[test]
fn a_node_that_is_not_found_is_given_up_within_three_periods() {
    let mut desk = Desk::new();
    desk.until(150);
    desk.pong(1, "0", continued(0, 2));
    let now = desk.time();
    desk.watch.handle_not_found(node(20), Found::Nobody, now);
    assert_eq!(failed(&desk.until(449)), None);
    let actions = desk.until(450);
    assert_eq!(
        failed(&actions).map(String::as_str),
        Some("450: failed: 0+1 gave no sign of life for 300ms: its address refuses connections")
    );
}

/// Rule 14: it finished or forwarded before it ended; who goes on announces itself in time.
#[test]
fn the_successor_of_a_node_that_is_not_found_saves_the_call() {
    let mut desk = Desk::new();
    desk.pong(1, "0", continued(0, 2));
    let now = desk.time();
    desk.watch.handle_not_found(node(20), Found::Nobody, now);
    desk.until(390);
    desk.announce(3, "0+2", running());
    assert_eq!(failed(&desk.until(889)), None);
    assert!(failed(&desk.until(890)).is_some());
}

/// Only others can reach it: that it is not found from here says nothing, then or later.
#[test]
fn a_node_that_only_others_reach_has_the_whole_timeout() {
    let mut desk = Desk::new();
    desk.pong(1, "0", continued(0, 2));
    for time in 1..8 {
        let now = desk.time();
        desk.watch.handle_not_found(node(20), Found::Nobody, now);
        desk.until(100 + 90 * time);
        desk.pong(NOWHERE, "0+1", running());
    }
    // It was heard of last at 730.
    let now = desk.time();
    desk.watch.handle_not_found(node(20), Found::Nobody, now);
    assert_eq!(failed(&desk.until(1229)), None);
    assert!(failed(&desk.until(1230)).is_some());
}

/// One that was reached before and is gone may have been heard of by others late: it is gone all the same.
#[test]
fn a_late_word_of_a_node_that_is_gone_does_not_bring_it_back() {
    let mut desk = Desk::new();
    desk.pong(1, "0", running());
    let now = desk.time();
    desk.watch.handle_gone(node(10), Found::Nobody, now);
    desk.pong(NOWHERE, "0", running());
    desk.until(150);
    let now = desk.time();
    desk.watch.handle_not_found(node(10), Found::Nobody, now);
    assert_eq!(failed(&desk.until(399)), None);
    assert!(failed(&desk.until(400)).is_some());
}

/// What was not written before an incarnation ended goes to the next one, and that lives.
#[test]
fn a_request_that_moved_to_another_incarnation_is_not_gone() {
    let mut desk = Desk::new();
    desk.pong(1, "0", continued(0, 2));
    let now = desk.time();
    desk.watch.handle_not_found(node(20), Found::Nobody, now);
    desk.until(200);
    desk.pong(1, "0", continued(0, 3));
    assert_eq!(failed(&desk.until(599)), None);
    assert!(failed(&desk.until(600)).is_some());
}

/// That a hop has ended says that some server took a request, even if its answers are still missing, and even before the
/// call was watched.
#[test]
fn what_arrived_before_the_watch_tells_of_execution() {
    let mut desk = Desk::after(|initiator| {
        let end = End {
            call: call(),
            distance: 0,
            token: None,
            request: at("0+1"),
            facts: facts(0, 1),
            manifest: None,
            options: None,
        };
        initiator.handle_end(&end).expect("as the protocol says");
    });
    desk.until(600);
    let failure = desk.failure.expect("the response of the first hop is lost");
    assert_eq!(failure.executed, Executed::Executed);
}

/// A status and an end may be this endpoint's own, but then nothing was delegated.
#[test]
fn a_status_and_an_end_with_a_delegation_tell_of_execution() {
    let mut desk = Desk::after(|initiator| {
        let status = Response {
            status: true,
            ..response("0", 0, false, None)
        };
        let arrived = initiator.handle_response(&status);
        arrived.expect("as the protocol says");
        let end = End {
            call: call(),
            distance: 0,
            token: None,
            request: at("0"),
            facts: facts(1, 1),
            manifest: None,
            options: None,
        };
        initiator.handle_end(&end).expect("as the protocol says");
    });
    desk.until(600);
    let failure = desk.failure.expect("what was delegated is lost");
    assert_eq!(failure.executed, Executed::Executed);
}

/// A hop that is learnt to have gone to a node that is known to be gone.
#[test]
fn a_hop_at_a_node_that_is_gone_already() {
    let mut desk = Desk::new();
    desk.pong(
        1,
        "0",
        Progress {
            children: vec![child(2)],
            ..running()
        },
    );
    desk.pong(2, "0.0", running());
    let now = desk.time();
    desk.watch.handle_gone(node(20), Found::Nobody, now);
    desk.pong(1, "0", continued(0, 2));
    desk.pong(
        1,
        "0",
        Progress {
            children: vec![child(2)],
            ..running()
        },
    );
    assert!(failed(&desk.until(400)).is_some());
}

/// A live server whose handler makes no progress.
#[test]
fn a_stalled_handler_is_a_failure_where_a_limit_is_set() {
    let idle = |millis| Progress {
        idle: Some(Duration::from_millis(millis)),
        ..running()
    };
    let mut desk = Desk::new();
    desk.pong(1, "0", idle(1_000_000));
    assert!(desk.failure.is_none(), "nobody set a limit");
    let mut desk = Desk::with(WatchSettings {
        stall: Some(Duration::from_secs(3)),
        ..settings()
    });
    desk.pong(1, "0", idle(2999));
    assert!(desk.failure.is_none());
    let mut told = pong(at("0"), Some(idle(5000)));
    told.writing = true;
    desk.hear(1, told);
    assert!(
        desk.failure.is_none(),
        "bytes that are being written are progress"
    );
    assert_eq!(
        desk.pong(1, "0", idle(3000))[0],
        "failed: 0 has made no progress for 3s"
    );
}

/// Rule 20: a process that was stopped for a second wakes up; its timer runs before its sockets.
#[test]
fn silence_counts_only_while_the_client_listens() {
    let mut clock = Clock::default();
    let mut desk = Desk::new();
    desk.pong(1, "0", running());
    clock.arm(desk.watch.next_timeout());
    let now = clock.turn(Duration::from_millis(5000));
    desk.watch.handle_timeout(now);
    assert_eq!(desk.actions(), ["ping 0 at m1"]);
    clock.arm(desk.watch.next_timeout());
    let later = clock.turn(Duration::from_millis(5010));
    assert_eq!(later - now, Duration::from_millis(10));
}

/// Rule 9: facts are written once; who contradicts them ends the call.
#[test]
fn contradictions_are_violations() {
    let mut desk = Desk::new();
    desk.pong(1, "0", ended(1, 1));
    let actions = desk.pong(1, "0", ended(0, 1));
    assert!(
        actions[0].starts_with("failed: 0 broke the protocol"),
        "{actions:?}"
    );
}

/// Rule 33: the verdict is terminal, and only one is given.
#[test]
fn a_verdict_is_given_once() {
    let mut desk = Desk::new();
    assert!(failed(&desk.until(600)).is_some());
    assert_eq!(failed(&desk.pong(1, "0", ended(1, 1))), None);
    assert_eq!(failed(&desk.pong(1, "0", ended(0, 1))), None);
    assert_eq!(failed(&desk.until(5000)), None);
}

/// Thesis 7.3: the initial request is sent again, in another attempt; what the first one still says is no evidence, but
/// what it sent counts, and duplicates are dropped as ever.
#[test]
fn a_deterministic_request_is_sent_again() {
    let mut desk = Desk::with(WatchSettings {
        resends: 1,
        ..settings()
    });
    desk.pong(
        1,
        "0",
        Progress {
            children: vec![child(2)],
            ..running()
        },
    );
    desk.response(2, "0.0", 0, false, None);
    let actions = desk.until(600);
    assert_eq!(
        actions.last().map(String::as_str),
        Some("600: retry 0 attempt 1")
    );
    let now = desk.time();
    desk.watch.sent(at("0"), location(5), now);
    assert_eq!(desk.actions(), ["ping 0 at m5"]);
    // The first attempt lives on somewhere; that says nothing of the second.
    desk.until(1000);
    desk.announce(2, "0.0", running());
    let mut second = pong(
        at("0"),
        Some(Progress {
            children: vec![child(6)],
            ..ended(1, 0)
        }),
    );
    second.attempt = 1;
    assert!(desk.hear(5, second).contains(&"ping 0.0 at m6".to_owned()));
    desk.response(6, "0.0", 0, false, None);
    desk.response(6, "0.0", 1, true, None);
    assert!(desk.watch.tree_mut().is_complete());
    assert_eq!(desk.watch.tree_mut().responses().0, 2);
}

/// Rule 18: who does not know a request has not seen it live, and does not tell that there is one.
#[test]
fn unknown_is_no_sign_of_life() {
    let mut desk = Desk::new();
    desk.until(100);
    desk.pong(1, "0", continued(0, 2));
    for time in [200, 300, 400] {
        desk.until(time);
        desk.unknown(1, "0+1");
        desk.unknown(1, "0+9");
    }
    let told = desk.until(1000);
    let failed = told.iter().find(|text| text.contains("failed"));
    assert_eq!(
        failed.map(String::as_str),
        Some("600: failed: 0+1 gave no sign of life for 500ms")
    );
}

#[test]
fn resends_end() {
    let mut desk = Desk::with(WatchSettings {
        resends: 2,
        ..settings()
    });
    let actions = desk.until(5000);
    let told: Vec<_> = actions
        .iter()
        .filter(|text| !text.contains("ping"))
        .collect();
    assert_eq!(
        told,
        [
            "600: retry 0 attempt 1",
            "1100: retry 0 attempt 2",
            "1600: failed: 0 gave no sign of life for 500ms",
            "2100: frozen",
            "2100: quiet",
        ]
    );
}

/// Only the initiator begins attempts: one that it has not made is a peer's invention, which neither takes the place of
/// a true one nor uses up the numbers of those to come.
#[test]
fn attempts_that_nobody_made_are_ignored() {
    let mut desk = Desk::with(WatchSettings {
        resends: 1,
        ..settings()
    });
    let mut invented = pong(at("0"), Some(running()));
    invented.attempt = u32::MAX;
    desk.hear(1, invented.clone());
    invented.attempt = 1;
    desk.hear(1, invented);
    desk.until(550);
    // The true one is heard still.
    desk.pong(1, "0", running());
    let told = desk.until(1100);
    let other = told.iter().find(|text| !text.contains("ping"));
    assert_eq!(
        other.map(String::as_str),
        Some("1050: retry 0 attempt 1"),
        "{told:?}"
    );
}

/// A status is a response like others: it cannot be lost unnoticed (rule 10).
#[test]
fn a_lost_status_is_missed() {
    let mut desk = Desk::new();
    let by = Address::Mem("m1".into());
    let _ = Status::new(wallaby_proto::Code::Internal, "no").by(Some(&by));
    desk.response(1, "0", 0, false, Some(("0", facts(0, 2))));
    assert!(failed(&desk.until(600)).is_some_and(|text| text.contains("response 1")));
}

fn retrying() -> Desk {
    Desk::with(WatchSettings {
        resends: 1,
        ..settings()
    })
}

/// The initial request was sent again, to machine 5, which runs it and says so each 50 ms until then; what else the
/// watch wants but to ask.
fn rerun(desk: &mut Desk, progress: &Progress, time: u64) -> Vec<String> {
    let mut wanted = Vec::new();
    let now = desk.time();
    desk.watch.sent(at("0"), location(5), now);
    desk.actions();
    while desk.now < time {
        let mut told = pong(at("0"), Some(progress.clone()));
        told.attempt = 1;
        wanted.extend(desk.hear(5, told));
        wanted.extend(desk.until(desk.now + 50));
    }
    wanted.retain(|text| !text.contains("ping"));
    wanted
}

/// A handler that runs again may take as long as it likes: what the first attempt told of the rest is no reason to miss
/// it yet.
#[test]
fn what_runs_again_is_not_missed_before_it_is_there() {
    // A child.
    let mut desk = retrying();
    let listing = Progress {
        children: vec![child(2)],
        ..running()
    };
    desk.pong(1, "0", listing);
    assert_eq!(
        desk.until(600).last().map(String::as_str),
        Some("600: retry 0 attempt 1")
    );
    assert_eq!(rerun(&mut desk, &running(), 5000), [""; 0]);
    // A later hop.
    let mut desk = retrying();
    desk.pong(1, "0", continued(0, 2));
    desk.response(2, "0+1", 0, false, None);
    assert_eq!(
        desk.until(700).last().map(String::as_str),
        Some("600: retry 0 attempt 1")
    );
    assert_eq!(rerun(&mut desk, &running(), 5000), [""; 0]);
    // A late word of the first attempt is none of the second.
    desk.response(2, "0+1", 1, false, None);
    assert_eq!(rerun(&mut desk, &running(), 9000), [""; 0]);
    // A response of a branch that had ended, whose facts are known.
    let mut desk = retrying();
    desk.pong(1, "0", ended(0, 2));
    desk.response(1, "0", 0, false, None);
    assert_eq!(
        desk.until(700).last().map(String::as_str),
        Some("600: retry 0 attempt 1")
    );
    assert_eq!(rerun(&mut desk, &running(), 5000), [""; 0]);
    // Once it has ended again, what is missing is lost as ever; and if it dies, it is silent as ever.
    let lost = rerun(&mut desk, &ended(0, 2), 6000);
    assert_eq!(lost[0], "5500: failed: 0 sent response 1, which was lost");
    let mut desk = retrying();
    desk.pong(1, "0", ended(0, 2));
    desk.until(600);
    rerun(&mut desk, &running(), 5000);
    let silent = desk.until(6000);
    assert!(
        failed(&silent).is_some_and(|text| text.contains("0 gave no sign of life")),
        "{silent:?}"
    );
}

/// Its reasons need not come again, but the application has been told.
#[test]
fn nothing_is_sent_again_after_a_status() {
    let mut desk = retrying();
    let by = Address::Mem("m2".into());
    let status = Status::new(wallaby_proto::Code::Unavailable, "no").by(Some(&by));
    let response = wallaby_proto::wire::Response {
        call: crate::liveness::desk::call(),
        distance: 0,
        token: None,
        request: at("0.0"),
        index: 0,
        last: true,
        manifest: None,
        status: true,
        compressed: false,
        options: None,
        payload: status.to_payload(),
    };
    desk.watch
        .tree_mut()
        .handle_response(&response)
        .expect("as the protocol says");
    assert!(failed(&desk.until(600)).is_some_and(|text| text.contains("failed: 0 gave")));
}

/// A branch may have ended by a status that was lost: then the second execution sends more than the first one said.
#[test]
fn how_a_lost_execution_ended_does_not_count() {
    let mut desk = retrying();
    // Told before it is given up, and again after that.
    desk.pong(1, "0", ended(0, 1));
    desk.until(600);
    let now = desk.time();
    desk.watch.sent(at("0"), location(5), now);
    desk.actions();
    desk.pong(1, "0", ended(0, 1));
    desk.announce(1, "0", ended(0, 1));
    desk.announce(2, "0.3", ended(0, 1));
    desk.response(5, "0", 0, false, None);
    assert!(!desk.watch.tree_mut().is_complete());
    let mut again = pong(at("0"), Some(ended(0, 2)));
    again.attempt = 1;
    desk.hear(5, again);
    desk.response(5, "0", 1, true, None);
    assert!(desk.watch.tree_mut().is_complete());
}

/// The second execution was refused what the first one did: the status that says so comes in place of an answer that has
/// been delivered. It must not complete the call as if nothing had been refused.
#[test]
fn executions_that_differ_are_a_violation() {
    let mut desk = retrying();
    desk.pong(1, "0", ended(1, 0));
    desk.response(2, "0.0", 0, false, None);
    assert!(
        desk.until(700)
            .contains(&"600: retry 0 attempt 1".to_owned())
    );
    desk.end(5, "0", facts(1, 0));
    let status = Response {
        status: true,
        ..response("0.0", 0, true, None)
    };
    let differs = Violation::ConflictingResponse {
        path: at("0.0").path,
        index: 0,
    };
    assert_eq!(desk.watch.tree_mut().handle_response(&status), Err(differs));
    assert!(!desk.watch.tree_mut().is_complete());
}

/// The same, and the status was lost: all that is left of it is a pong, which tells no facts.
#[test]
fn a_status_that_is_lost_does_not_complete_what_an_earlier_execution_began() {
    let mut desk = retrying();
    desk.response(1, "0", 0, false, None);
    assert!(
        desk.until(700)
            .contains(&"600: retry 0 attempt 1".to_owned())
    );
    let now = desk.time();
    desk.watch.sent(at("0"), location(5), now);
    desk.actions();
    let mut refused = pong(
        at("0"),
        Some(Progress {
            facts: None,
            ..ended(0, 1)
        }),
    );
    refused.attempt = 1;
    let wanted = desk.hear(5, refused);
    assert!(
        failed(&wanted).is_some_and(|text| text.contains("as an answer and as a status")),
        "{wanted:?}"
    );
    assert!(!desk.watch.tree_mut().is_complete());
}

/// Children that the first execution told of are expected once, whoever tells of them again.
#[test]
fn a_second_execution_has_the_same_children() {
    let mut desk = retrying();
    let listing = Progress {
        children: vec![child(2)],
        ..ended(1, 1)
    };
    desk.pong(1, "0", listing.clone());
    desk.response(2, "0.0", 0, true, None);
    desk.until(600);
    let now = desk.time();
    desk.watch.sent(at("0"), location(5), now);
    let mut again = pong(at("0"), Some(listing));
    again.attempt = 1;
    desk.hear(5, again);
    assert!(!desk.watch.tree_mut().is_complete());
    desk.response(5, "0", 0, false, None);
    assert!(desk.watch.tree_mut().is_complete());
}

/// Nothing else says so: no manifest, no pong, no end.
#[test]
fn an_answer_alone_and_an_end_alone_tell_of_execution() {
    let mut desk = Desk::after(|initiator| {
        let arrived = initiator.handle_response(&response("0", 0, false, None));
        arrived.expect("as the protocol says");
    });
    desk.until(600);
    let failure = desk.failure.expect("it is silent");
    assert_eq!(failure.executed, Executed::Executed);
    let mut desk = Desk::after(|initiator| {
        let end = End {
            call: call(),
            distance: 0,
            token: None,
            request: at("0"),
            facts: facts(0, 2),
            manifest: None,
            options: None,
        };
        initiator.handle_end(&end).expect("as the protocol says");
    });
    desk.until(600);
    let failure = desk.failure.expect("two responses are lost");
    assert_eq!(failure.executed, Executed::Executed);
}

/// The status of a later execution contradicts an answer only where there was one.
#[test]
fn a_status_where_nothing_was_answered_before_is_no_violation() {
    let mut desk = retrying();
    desk.response(1, "0", 0, false, None);
    desk.until(700);
    let now = desk.time();
    desk.watch.sent(at("0"), location(5), now);
    desk.actions();
    let mut refused = pong(
        at("0"),
        Some(Progress {
            facts: None,
            ..ended(0, 2)
        }),
    );
    refused.attempt = 1;
    assert_eq!(failed(&desk.hear(5, refused)), None);
}
