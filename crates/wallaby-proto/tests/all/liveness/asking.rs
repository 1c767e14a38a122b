//! Whom a watch asks, and what it learns.

use wallaby_proto::call::initiator::Initiator;
use wallaby_proto::wire::{MAX_CHILDREN, Progress};

use crate::liveness::desk::{
    Desk, NOWHERE, PERIOD, at, child, continued, ended, facts, node, pong, response, running,
};

#[test]
fn asks_once_a_period_while_a_request_runs() {
    let mut desk = Desk::new();
    for round in 1..20 {
        desk.pong(1, "0", running());
        let time = 100 + round * 100;
        assert_eq!(desk.until(time), [format!("{time}: ping 0 at m1")]);
    }
}

/// Rule 13: a null response is lost; the pong says what it said.
#[test]
fn facts_in_a_pong_count_as_the_manifest() {
    let mut desk = Desk::new();
    assert!(desk.pong(1, "0", ended(0, 0)).is_empty());
    assert!(desk.watch.tree_mut().is_complete());
    assert_eq!(desk.watch.next_timeout(), None);
}

/// Rules 12 and 13: a slow handler holds its parent's manifest back; the pong tells it.
#[test]
fn a_carried_manifest_is_learnt_from_a_pong() {
    let mut desk = Desk::new();
    desk.pong(
        1,
        "0",
        Progress {
            children: vec![child(2)],
            ..running()
        },
    );
    let manifest = wallaby_proto::Manifest {
        owner: at("0").path,
        facts: facts(1, 0),
    };
    desk.pong(
        2,
        "0.0",
        Progress {
            manifest: Some(manifest),
            ..running()
        },
    );
    let missing: Vec<_> = desk.watch.tree_mut().missing().collect();
    assert_eq!(missing, [at("0.0")]);
}

/// Rule 22, and discovery within a round: what a pong names is asked about at once.
#[test]
fn new_requests_are_asked_about_at_once() {
    let mut desk = Desk::new();
    let children = vec![child(2), child(3)];
    let progress = Progress {
        children,
        ..running()
    };
    assert_eq!(
        desk.pong(1, "0", progress),
        ["ping 0.0 at m2", "ping 0.1 at m3"]
    );
    assert_eq!(desk.pong(2, "0.0", continued(0, 4)), ["ping 0.0+1 at m4"]);
}

/// Rule 15: only the highest known hop is asked; a lower one that was overtaken says nothing new.
#[test]
fn a_higher_hop_supersedes_lower_ones() {
    let mut desk = Desk::new();
    desk.pong(1, "0", continued(0, 2));
    desk.pong(2, "0+1", continued(0, 3));
    desk.pong(3, "0+2", running());
    assert_eq!(desk.until(200), ["200: ping 0+2 at m3"]);
    assert!(desk.pong(1, "0", running()).is_empty());
    assert_eq!(desk.until(300), ["300: ping 0+2 at m3"]);
}

/// While nobody has seen the next hop, who sent it is asked too: it may still be writing.
#[test]
fn who_sent_an_unseen_request_is_asked_too() {
    let mut desk = Desk::new();
    desk.pong(1, "0", continued(0, 2));
    assert_eq!(
        desk.until(200),
        ["200: ping 0 at m1", "200: ping 0+1 at m2"]
    );
}

/// Rule 18: the ping has overtaken the request, or the successor lives.
#[test]
fn unknown_is_no_verdict() {
    let mut desk = Desk::new();
    for time in 1..5 {
        desk.unknown(1, "0");
        desk.until(100 + 100 * time);
    }
    assert!(desk.failure.is_none());
    assert!(
        desk.announce(2, "0+1", running())
            .contains(&"ping 0+1 at m2".to_owned())
    );
    desk.until(900);
    assert!(desk.failure.is_none());
}

/// Rule 18: the server that confirmed restarts and does not know the request any more; its successor announces itself.
#[test]
fn unknown_to_who_confirmed_is_no_verdict_either() {
    let mut desk = Desk::new();
    desk.pong(1, "0", running());
    desk.unknown(1, "0");
    desk.until(500);
    desk.announce(2, "0+1", running());
    desk.until(950);
    assert!(desk.failure.is_none());
    assert!(
        desk.until(1000)
            .iter()
            .any(|text| text.contains("failed: 0+1"))
    );
}

/// Rule 17: the facts of a branch came with a response, its child has no address: the parent is asked although nothing
/// of it is missing, and asked again while the child is not found.
#[test]
fn the_parent_is_asked_where_a_child_is() {
    let mut desk = Desk::new();
    let asked = desk.response(1, "0", 0, false, Some(("0", facts(1, 1))));
    assert!(asked.is_empty(), "it was asked a moment ago: {asked:?}");
    assert_eq!(desk.until(200), ["200: ping 0 at m1"]);
    let finished = Progress {
        children: vec![child(2)],
        ..ended(1, 1)
    };
    assert_eq!(desk.pong(1, "0", finished), ["ping 0.0 at m2"]);
    desk.pong(2, "0.0", ended(0, 0));
    assert!(desk.watch.tree_mut().is_complete());
}

/// Rule 17: the parent is not located either; its own parent leads there.
#[test]
fn ancestors_are_located_one_after_the_other() {
    let mut desk = Desk::new();
    desk.pong(1, "0", ended(1, 0));
    desk.watch.poll();
    // The facts of 0.0 come from elsewhere: now 0.0.0 is expected, and neither has an address.
    let manifest = Some(("0.0", facts(2, 0)));
    desk.response(9, "0.0.1", 0, true, manifest);
    let asked = desk.until(200);
    assert_eq!(asked, ["200: ping 0 at m1"]);
    let finished = Progress {
        children: vec![child(2)],
        ..ended(1, 0)
    };
    assert_eq!(desk.pong(1, "0", finished), ["ping 0.0 at m2"]);
    let finished = Progress {
        children: vec![child(3), child(9)],
        ..ended(2, 0)
    };
    assert_eq!(desk.pong(2, "0.0", finished), ["ping 0.0.0 at m3"]);
}

/// A branch has ended, all that is known of it came through a relay, and the branch above it still runs: nothing says yet
/// that it is expected. Its children are looked for all the same, within a round: whom nobody asks gives up (rule 31).
#[test]
fn children_of_a_branch_are_located_while_the_branch_above_runs() {
    let end = response("0.0.1", 0, true, Some(("0.0", facts(2, 0))));
    let tell = |initiator: &mut Initiator| {
        initiator
            .handle_response(&end)
            .expect("as the protocol says");
    };
    for told_before in [true, false] {
        let mut desk = match told_before {
            true => Desk::after(tell),
            false => Desk::new(),
        };
        desk.announce(NOWHERE, "0.0.0.0+1", running());
        let root = Progress {
            children: vec![child(2)],
            ..running()
        };
        assert_eq!(desk.pong(1, "0", root), ["ping 0.0 at m2"]);
        if !told_before {
            desk.response(NOWHERE, "0.0.1", 0, true, Some(("0.0", facts(2, 0))));
        }
        let first = Progress {
            children: vec![child(3), child(9)],
            ..ended(2, 0)
        };
        assert_eq!(desk.pong(2, "0.0", first), ["ping 0.0.0 at m3"]);
        let second = Progress {
            children: vec![child(4)],
            ..ended(1, 0)
        };
        assert_eq!(desk.pong(3, "0.0.0", second), ["ping 0.0.0.0 at m4"]);
        assert_eq!(
            desk.pong(4, "0.0.0.0", continued(0, 5)),
            ["ping 0.0.0.0+1 at m5"]
        );
    }
}

/// A line of hops of which only the last announces itself, through a relay, is followed within a round, not a hop a period:
/// whom nobody asks for the gc timeout gives its request up (rule 31). Until it is located, it is asked the way that its words
/// came: it may be far down the line.
#[test]
fn a_hop_that_only_announces_itself_is_located_within_a_round() {
    let mut desk = Desk::new();
    let asked = desk.announce(NOWHERE, "0+5", running());
    // The first hop has just been asked.
    assert_eq!(asked, ["back: ping 0+5"]);
    for hop in 0..5 {
        let (id, next) = (format!("0+{hop}"), hop + 1);
        let asked = desk.pong(1 + hop, &id, continued(0, 1 + next));
        assert_eq!(asked, [format!("ping 0+{next} at m{}", 1 + next)]);
    }
    assert_eq!(desk.announce(NOWHERE, "0+5", running()), [""; 0]);
}

/// A parent learnt meanwhile that its child is somewhere else: it answers in the child's name itself (rule 19).
#[test]
fn a_child_that_moved_is_found() {
    let mut desk = Desk::new();
    desk.pong(
        1,
        "0",
        Progress {
            children: vec![child(2), child(3)],
            ..running()
        },
    );
    desk.pong(2, "0.0", running());
    desk.pong(
        1,
        "0",
        Progress {
            children: vec![child(2), child(3)],
            ..ended(2, 0)
        },
    );
    assert!(
        desk.until(200)
            .contains(&"200: ping 0 at m1 from 1".to_owned())
    );
    let moved = Progress {
        children_from: 1,
        children: vec![child(1)],
        ..ended(2, 0)
    };
    desk.pong(1, "0", moved);
    assert!(desk.until(300).contains(&"300: ping 0.1 at m1".to_owned()));
}

/// The branch has gone on, and a child of it is looked for: pongs of its earlier hops come late, and cause no pings,
/// which would be answered by such pongs.
#[test]
fn late_pongs_of_overtaken_hops_cause_no_pings() {
    let mut desk = Desk::new();
    desk.pong(1, "0", continued(0, 2));
    desk.pong(2, "0+1", running());
    // 0.0 is expected, and nobody knows where it is.
    desk.response(3, "0.1", 0, true, Some(("0", facts(2, 0))));
    assert_eq!(desk.until(200), ["200: ping 0+1 at m2"]);
    for _ in 0..3 {
        assert!(desk.pong(1, "0", continued(0, 2)).is_empty());
    }
    let children = Progress {
        children: vec![child(4), child(3)],
        ..ended(2, 0)
    };
    assert_eq!(desk.pong(2, "0+1", children), ["ping 0.0 at m4"]);
}

/// Its announcement was passed on, so nobody knows where it came from: the hop before knows where it went.
#[test]
fn a_hop_that_shows_life_from_nowhere_is_located() {
    let mut desk = Desk::new();
    assert_eq!(desk.announce(NOWHERE, "0+1", running()), ["back: ping 0+1"]);
    assert_eq!(desk.until(200), ["200: ping 0 at m1"]);
    assert_eq!(desk.pong(1, "0", continued(0, 2)), ["ping 0+1 at m2"]);
    assert_eq!(desk.until(300), ["300: ping 0+1 at m2"]);
}

/// The same of a child that has gone on: its first hop has nothing to tell but the way to the next.
#[test]
fn a_child_that_shows_life_from_nowhere_is_located_and_asked() {
    let mut desk = Desk::new();
    desk.response(NOWHERE, "0.0", 0, false, Some(("0", facts(1, 0))));
    let running = Progress {
        base: 1,
        count: 1,
        ..running()
    };
    desk.announce(NOWHERE, "0.0+1", running.clone());
    assert_eq!(desk.until(200), ["200: ping 0 at m1"]);
    let children = Progress {
        children: vec![child(2)],
        ..ended(1, 0)
    };
    let mut asked = desk.pong(1, "0", children);
    asked.extend(desk.until(300));
    assert!(
        asked.iter().any(|ask| ask.ends_with("ping 0.0 at m2")),
        "{asked:?}"
    );
    assert_eq!(desk.pong(2, "0.0", continued(1, 3)), ["ping 0.0+1 at m3"]);
    assert_eq!(desk.until(400), ["400: ping 0.0+1 at m3"]);
}

#[test]
fn children_are_listed_page_by_page() {
    let mut desk = Desk::new();
    let page = |from: u32, count: usize| Progress {
        children_from: from,
        children: vec![child(2); count],
        ..running()
    };
    let asked = desk.pong(1, "0", page(0, MAX_CHILDREN));
    assert_eq!(asked.len(), MAX_CHILDREN + 1);
    assert_eq!(asked[MAX_CHILDREN], "ping 0 at m1 from 256");
    // The first page comes again, late: nothing is asked twice.
    assert!(desk.pong(1, "0", page(0, MAX_CHILDREN)).is_empty());
    // As many are asked about in a period as a page has; the others follow in the next one, before the first ones again.
    assert!(desk.pong(1, "0", page(256, 3)).is_empty());
    let asked = desk.until(200);
    for child in 256..259 {
        let ping = format!("200: ping 0.{child} at m2");
        assert!(asked.contains(&ping), "{asked:?}");
    }
    assert_eq!(
        desk.watch.tree_mut().branches().count(),
        1 + MAX_CHILDREN + 3
    );
}

/// Roo: a branch was invented by a ping that raced with the last send. A pong names a child; the branch's own end says
/// that there is none beside it.
#[test]
fn a_pong_and_a_manifest_name_the_same_child() {
    let mut desk = Desk::new();
    desk.pong(
        1,
        "0",
        Progress {
            children: vec![child(2)],
            ..running()
        },
    );
    desk.end(1, "0", facts(1, 0));
    desk.response(2, "0.0", 0, true, None);
    assert!(desk.watch.tree_mut().is_complete());
}

/// Rules 23 and 26: finished is not settled; the hop that sent the missing responses is asked for them, though others
/// came after it.
#[test]
fn missing_responses_are_asked_for_where_they_were_sent() {
    let mut desk = Desk::new();
    desk.pong(1, "0", continued(2, 2));
    desk.pong(
        2,
        "0+1",
        Progress {
            base: 2,
            ..ended(0, 3)
        },
    );
    desk.response(2, "0+1", 2, true, None);
    desk.response(1, "0", 1, false, None);
    let asked = desk.until(200);
    assert_eq!(
        asked,
        ["200: ping 0 at m1 missing [0]", "200: ping 0+1 at m2"]
    );
    desk.response(1, "0", 0, false, None);
    assert!(desk.watch.tree_mut().is_complete());
    assert_eq!(desk.watch.next_timeout(), None);
}

/// Rule 25: the connection on which responses should have come ended, and all of it was read: they are asked for at once.
#[test]
fn the_end_of_a_connection_causes_a_round() {
    let mut desk = Desk::new();
    desk.pong(1, "0", ended(0, 2));
    desk.now = 110;
    let now = desk.time();
    desk.watch.handle_disconnect(node(10), now);
    assert_eq!(desk.actions(), ["ping 0 at m1 missing [0, 1]"]);
    desk.watch.handle_disconnect(node(10), now);
    assert!(
        desk.actions().is_empty(),
        "one hint in a period is believed"
    );
    desk.watch.handle_disconnect(node(20), now);
    assert!(desk.actions().is_empty(), "nothing of the call is there");
    // What was asked first may have gone out on another connection that was dead, too.
    desk.watch.handle_last_disconnect(node(10), now);
    assert_eq!(desk.actions(), ["ping 0 at m1 missing [0, 1]"]);
}

/// Work is proportional to what is due (Roo scanned every branch on every tick).
#[test]
fn settled_branches_are_not_asked_about() {
    let mut desk = Desk::new();
    let children = vec![child(2); 200];
    desk.pong(
        1,
        "0",
        Progress {
            children,
            ..ended(200, 0)
        },
    );
    for number in 0..199 {
        desk.response(2, &format!("0.{number}"), 0, true, None);
    }
    let asked = desk.until(200);
    assert_eq!(
        asked,
        ["200: ping 0.199 at m2", "200: ping 0 at m1 from 199"]
    );
}

/// A peer that invents hops gets no memory for them, and nothing breaks.
#[test]
fn hops_are_bounded() {
    let mut desk = Desk::new();
    for hop in (0..40_000).step_by(5) {
        let mut request = at("0");
        request.hop = hop;
        desk.hear(1, pong(request, Some(running())));
    }
    desk.pong(1, "0+4294967295", continued(0, 1));
    assert!(desk.failure.is_none());
}

/// The next hint is believed when a period has passed, not before.
#[test]
fn a_hint_is_believed_once_a_period() {
    let mut desk = Desk::new();
    desk.pong(1, "0", ended(0, 2));
    let mut hint = |time: u64| {
        desk.now = time;
        let now = desk.time();
        desk.watch.handle_disconnect(node(10), now);
        desk.actions().len()
    };
    assert_eq!(hint(110), 1);
    assert_eq!([111, 209].map(&mut hint), [0, 0]);
    assert_eq!(hint(110 + PERIOD), 1);
}

/// A pong names the parent of a branch before its manifest does.
#[test]
fn a_parent_that_is_known_does_not_become_known_again() {
    let mut desk = Desk::new();
    desk.watch.tree_mut().note_adopted(true);
    let listed = Progress {
        children: vec![child(2)],
        ..running()
    };
    desk.pong(1, "0", listed);
    assert_eq!(desk.watch.tree_mut().take_adopted(), [at("0.0").path]);
    desk.end(1, "0", facts(2, 0));
    assert_eq!(desk.watch.tree_mut().take_adopted(), [at("0.1").path]);
}
