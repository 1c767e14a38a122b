//! Calls that do not ask: their servers show unasked that they live, in a time that travels with the call.

use std::time::Duration;

use wallaby_proto::call::records::{Judgement, RecordAction, RecordLimits, StopReason};
use wallaby_proto::call::server::ServerHalf;
use wallaby_proto::call::watch::{Found, WatchSettings};
use wallaby_proto::wire::{HandledBy, Heartbeats, MAX_CHILDREN, Pong, Progress, Request};

use crate::liveness::desk::{
    Desk, NOWHERE, PERIOD, address, at, child, continued, facts, node, pong, running, settings,
    token,
};
use crate::liveness::shelf::{HOME, Shelf, announced, limits, origin, request, with_options};

const EVERY: u64 = 300;
const LOST: u64 = 600;
/// So long after the last sign of life a branch is asked about.
const LATE: u64 = EVERY + (LOST - EVERY) / 4;

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn heartbeats() -> Heartbeats {
    Heartbeats {
        every: ms(EVERY),
        timeout: ms(LOST),
        hop: ms(20),
    }
}

// The servers' half.

/// A request of a call of which its initiator had not heard for so long when it was sent.
fn beating(id: &str, quiet: u64) -> Request {
    with_options(request(1, id), |options| {
        options.heartbeats = Some(heartbeats());
        options.quiet = (quiet > 0).then(|| ms(quiet));
    })
}

/// Lets time pass; what is announced leaves for the initiator.
fn until(shelf: &mut Shelf, time: u64) -> Vec<(u64, RecordAction)> {
    let mut actions = Vec::new();
    while shelf.now < time {
        let step = (shelf.now + 50).min(time);
        for (at, action) in shelf.until(step) {
            if let RecordAction::Announce { ticket, .. } = &action {
                let ticket = ticket.expect("a request that is known");
                let to = Some(node(1));
                shelf.records.announcement_left(ticket, to, shelf.time());
            }
            actions.push((at, action));
        }
    }
    actions
}

#[test]
fn a_server_at_which_the_time_is_over_shows_life_and_begins_anew() {
    let mut shelf = Shelf::new();
    let handled = shelf.accept(beating("0+3", 200));
    let told = shelf.until(700);
    // A hop was taken off, whatever it took.
    assert_eq!(
        announced(&told),
        [80, 380, 680].map(|time| (time, at("0+3")))
    );
    for (_, action) in &told {
        assert!(matches!(action, RecordAction::Announce { pong, .. } if pong.heartbeats));
    }
    shelf.now = 730;
    let quiet = shelf.records.quiet(handled.ticket, shelf.time());
    assert_eq!(quiet, Some(ms(50)), "what goes on takes along what is left");
}

#[test]
fn what_a_server_delegates_wants_heartbeats_too() {
    let request = beating("0", 200);
    let options = request.options.expect("set").inherited();
    assert_eq!(options.heartbeats, Some(heartbeats()));
    assert_eq!(options.quiet, None, "each says that of itself");
}

/// An initiator that does not ask is believed in as long as something is on its way to it.
#[test]
fn a_request_runs_on_unasked_while_heartbeats_leave() {
    let mut shelf = Shelf::new();
    shelf.accept(beating("0", 0));
    let told = until(&mut shelf, 60_000);
    assert_eq!(told.len(), announced(&told).len(), "nothing was stopped");
    assert!((199..=200).contains(&told.len()), "{}", told.len());
    // From now on none of them leaves.
    let told = shelf.until(70_000);
    let stopped = |(at, action): &(u64, RecordAction)| match action {
        RecordAction::Stop { reason, .. } => Some((*at, *reason)),
        _ => None,
    };
    let stopped: Vec<_> = told.iter().filter_map(stopped).collect();
    let [(time, StopReason::InitiatorSilent)] = stopped[..] else {
        panic!("{stopped:?}");
    };
    // A period and two timeouts.
    assert!((61_200..=61_500).contains(&time), "{time}");
}

/// A handler that answers all the time has heartbeats besides: nobody asks about it, and it is not stopped for that.
#[test]
fn answers_take_the_place_of_no_heartbeat() {
    let mut shelf = Shelf::new();
    let mut handled = shelf.accept(beating("0", 0));
    for time in 1..=600 {
        let told = until(&mut shelf, 100 * time);
        assert_eq!(told.len(), announced(&told).len(), "nothing was stopped");
        let sent = handled.server.reply("answer".into());
        shelf.release(handled.ticket, sent, time);
        shelf.records.written(HOME, time);
    }
}

/// One whose heartbeats go to others does not know whether they arrive, and nothing of them is a reason to go on.
#[test]
fn heartbeats_that_others_pass_on_keep_nothing_alive() {
    let mut shelf = Shelf::new();
    shelf.accept(beating("0", 0));
    let mut stopped = false;
    for time in 1..=60 {
        for (_, action) in shelf.until(50 * time) {
            if let RecordAction::Announce {
                ticket: Some(ticket),
                ..
            } = &action
            {
                shelf
                    .records
                    .announcement_left(*ticket, Some(node(77)), shelf.time());
            }
            stopped |= matches!(
                action,
                RecordAction::Stop {
                    reason: StopReason::InitiatorSilent,
                    ..
                }
            );
        }
    }
    assert!(stopped);
}

/// What a peer states makes nobody send more than it is set to.
#[test]
fn a_server_has_a_shortest_period_of_its_own() {
    let mut shelf = Shelf::with(RecordLimits {
        shortest_heartbeat: ms(200),
        ..limits()
    });
    shelf.accept(with_options(request(1, "0"), |options| {
        options.heartbeats = Some(Heartbeats {
            every: Duration::ZERO,
            timeout: Duration::ZERO,
            hop: Duration::MAX,
        });
    }));
    let told = announced(&until(&mut shelf, 1000));
    // The hop takes half of the first period.
    assert_eq!(told, [100, 300, 500, 700, 900].map(|time| (time, at("0"))));
}

/// Whatever heartbeats it wants, one that asks is answered, and told whether they come.
#[test]
fn a_pong_says_whether_heartbeats_come() {
    let mut shelf = Shelf::new();
    shelf.accept(beating("0", 0));
    shelf.accept(request(2, "0"));
    assert!(shelf.ping(1, "0").heartbeats);
    assert!(!shelf.ping(2, "0").heartbeats);
    assert!(
        !shelf.ping(3, "0").heartbeats,
        "of what is not known nothing is said"
    );
}

/// The way by which a heartbeat goes on is remembered, and not only the request that the heartbeat's came of.
#[test]
fn who_passes_heartbeats_on_remembers_the_way_back() {
    let mut shelf = Shelf::new();
    let mut first = shelf.accept(beating("0", 0));
    let sent = first.server.forward(9, "here".into(), None);
    shelf.release(first.ticket, sent, 0);
    let own = origin(2, node(90));
    shelf.records.conn_opened(own.conn, own.peer);
    let mut again = beating("0+1", 0);
    again.depth = 1;
    let admission = shelf.records.admit(&again, own, shelf.time());
    let Judgement::Accepted(ticket) = admission else {
        panic!("{admission:?}")
    };
    let mut second: ServerHalf<u64> = ServerHalf::new(&mut again);
    let sent = second.forward(3, "there".into(), None);
    shelf.release(ticket, sent, 0);
    for _ in 0..20 {
        let time = shelf.now + EVERY;
        shelf.until(time);
        let passing = Pong {
            token: Some(token()),
            announced: true,
            heartbeats: true,
            ..pong(at("0+2"), Some(running()))
        };
        let passing = Pong {
            call: again.call,
            ..passing
        };
        shelf.records.pong_relayed(&passing, shelf.time());
    }
    let back = shelf.records.route_back(again.call, token());
    assert_eq!(back, Some(HOME));
}

/// So is the way by which those of a request go that came here again by others, as nobody asks about the request that has shown it.
#[test]
fn who_has_sent_heartbeats_straight_remembers_the_way_back() {
    let mut shelf = Shelf::new();
    let mut first = shelf.accept(beating("0", 0));
    let sent = first.server.forward(9, "here again".into(), None);
    shelf.release(first.ticket, sent, 0);
    let further = origin(2, node(90));
    shelf.records.conn_opened(further.conn, further.peer);
    let mut again = beating("0+1", 0);
    again.depth = 1;
    let admission = shelf.records.admit(&again, further, shelf.time());
    assert!(matches!(admission, Judgement::Accepted(_)));
    until(&mut shelf, 60_000);
    let back = shelf.records.route_back(again.call, token());
    assert_eq!(back, Some(HOME));
}

/// What goes back by a request that still runs here does not stand for the heartbeats of that one.
#[test]
fn a_request_by_which_others_go_back_has_heartbeats_of_its_own() {
    let mut shelf = Shelf::new();
    shelf.accept(beating("0", 0));
    let mut further = beating("0.0", 100);
    further.depth = 1;
    let admission = shelf
        .records
        .admit(&further, origin(1, node(1)), shelf.time());
    assert!(matches!(admission, Judgement::Accepted(_)));
    let told = announced(&until(&mut shelf, 900));
    let of = |id: &str| told.iter().filter(|(_, told)| *told == at(id)).count();
    assert_eq!((of("0"), of("0.0")), (3, 3), "{told:?}");
}

// The initiator's half.

fn desk() -> Desk {
    Desk::with(WatchSettings {
        heartbeats: Some(heartbeats()),
        ..settings()
    })
}

/// A heartbeat from this machine.
fn beat(desk: &mut Desk, server: u64, request: &str, progress: Progress) -> Vec<String> {
    desk.hear(
        server,
        Pong {
            announced: true,
            heartbeats: true,
            ..pong(at(request), Some(progress))
        },
    )
}

#[test]
fn who_hears_heartbeats_asks_nothing() {
    let mut desk = desk();
    let children = vec![child(2), child(3)];
    let listing = Progress {
        children,
        ..running()
    };
    for round in 1..20 {
        let time = PERIOD + EVERY * round;
        assert!(desk.until(time).is_empty());
        assert!(beat(&mut desk, 1, "0", listing.clone()).is_empty());
        assert!(beat(&mut desk, 2, "0.0", running()).is_empty());
        // Nobody knows yet where the second has gone on.
        assert!(beat(&mut desk, 0, "0.1+7", running()).is_empty());
    }
}

#[test]
fn who_misses_a_heartbeat_asks_until_the_timeout() {
    let mut desk = desk();
    let late = PERIOD + LATE;
    let asked = [0, 1, 2].map(|round| late + round * PERIOD);
    let expected = asked.map(|time| format!("{time}: ping 0 at m1"));
    assert_eq!(desk.until(PERIOD + LOST - 1), expected);
    let told = desk.until(PERIOD + LOST);
    assert!(
        told[0].starts_with("700: failed: 0 gave no sign of life"),
        "{told:?}"
    );
    assert!(desk.failure.is_some());
}

#[test]
fn a_lost_heartbeat_is_asked_for_once() {
    let mut desk = desk();
    for round in 0..5 {
        let late = PERIOD + (round + 1) * LATE;
        assert_eq!(desk.until(late), [format!("{late}: ping 0 at m1")]);
        let answer = Pong {
            heartbeats: true,
            ..pong(at("0"), Some(running()))
        };
        assert!(desk.hear(1, answer).is_empty());
    }
}

/// It does not know the option, or who passes its words on does not know what they say of it.
#[test]
fn a_server_that_sends_no_heartbeats_is_asked_as_ever() {
    let mut desk = desk();
    let heard = PERIOD + 50;
    desk.until(heard);
    desk.announce(1, "0", running());
    for round in 1..20 {
        let time = heard + round * PERIOD;
        assert_eq!(desk.until(time), [format!("{time}: ping 0 at m1")]);
        desk.pong(1, "0", running());
    }
}

/// The one that runs has to show life, not those before it.
#[test]
fn a_line_lives_by_its_latest_hop() {
    let mut desk = desk();
    desk.until(350);
    assert!(beat(&mut desk, 2, "0+1", running()).is_empty());
    let late = 350 + LATE;
    assert_eq!(desk.until(late), [format!("{late}: ping 0+1 at m2")]);
    let gone_on = Pong {
        heartbeats: true,
        ..pong(at("0+1"), Some(continued(0, 3)))
    };
    assert_eq!(desk.hear(2, gone_on), ["ping 0+2 at m3"]);
    let late = late + PERIOD;
    // Who has sent it knows more than who has not got it.
    let asked = ["0+1 at m2", "0+2 at m3"].map(|at| format!("{late}: ping {at}"));
    assert_eq!(desk.until(late), asked);
}

/// What a question finds out is followed at once, until who runs the latest of it shows life.
#[test]
fn what_an_answer_names_is_asked_at_once() {
    let mut desk = desk();
    let late = PERIOD + LATE;
    assert_eq!(desk.until(late), [format!("{late}: ping 0 at m1")]);
    let told = |progress| Pong {
        heartbeats: true,
        ..pong(at("0"), Some(progress))
    };
    let asked = desk.hear(1, told(continued(0, 2)));
    assert_eq!(asked, ["ping 0+1 at m2"]);
    let listing = Progress {
        children: vec![child(3)],
        ..running()
    };
    let answer = Pong {
        heartbeats: true,
        ..pong(at("0+1"), Some(listing))
    };
    assert_eq!(desk.hear(2, answer), ["ping 0.0 at m3"]);
    let answer = Pong {
        heartbeats: true,
        ..pong(at("0.0"), Some(running()))
    };
    assert!(desk.hear(3, answer).is_empty());
    assert!(desk.until(late + LATE - 1).is_empty(), "all run");
}

/// A heartbeat says where it comes from, as nobody asks back.
#[test]
fn who_has_shown_life_is_asked_where_it_says() {
    let mut desk = desk();
    desk.until(350);
    let handled_by = HandledBy {
        node: node(20),
        server: Some(address(2)),
        method: "m".into(),
    };
    let told = Progress {
        handled_by: Some(Box::new(handled_by)),
        ..running()
    };
    assert!(beat(&mut desk, NOWHERE, "0+5", told).is_empty());
    let late = 350 + LATE;
    assert_eq!(desk.until(late), [format!("{late}: ping 0+5 at m2")]);
}

/// It may wait for a ping to show it a route to the initiator.
#[test]
fn a_response_that_is_held_back_is_asked_for_as_ever() {
    let mut desk = desk();
    desk.until(200);
    for time in [200, 300, 400, 500] {
        let on_its_way = Pong {
            announced: true,
            writing: true,
            ..pong(at("0"), None)
        };
        assert!(desk.hear(NOWHERE, on_its_way).is_empty());
        let next = time + PERIOD;
        assert_eq!(desk.until(next), [format!("{next}: ping 0 at m1")]);
    }
}

#[test]
fn a_response_that_is_missing_for_long_is_asked_for() {
    let mut desk = desk();
    desk.until(200);
    let sent = Progress {
        count: 1,
        ..running()
    };
    for time in [200, 400] {
        desk.until(time);
        assert!(
            beat(&mut desk, 1, "0", sent.clone()).is_empty(),
            "it may be on its way"
        );
    }
    let late = 200 + LATE;
    assert_eq!(
        desk.until(late),
        [format!("{late}: ping 0 at m1 missing [0]")]
    );
}

/// A heartbeat lists the first children alone.
#[test]
fn more_children_than_a_heartbeat_lists_are_asked_for() {
    let mut desk = desk();
    let listing = Progress {
        children: vec![child(2); MAX_CHILDREN],
        ..running()
    };
    let asked = beat(&mut desk, 1, "0", listing);
    assert_eq!(asked, [format!("ping 0 at m1 from {MAX_CHILDREN}")]);
}

/// Whoever has work from there says so within a period of heartbeats, not of pings.
#[test]
fn what_was_at_a_server_that_is_gone_has_three_periods_of_heartbeats() {
    let mut desk = Desk::with(WatchSettings {
        heartbeats: Some(Heartbeats {
            timeout: ms(2000),
            ..heartbeats()
        }),
        ..settings()
    });
    let now = desk.time();
    desk.watch.handle_gone(node(10), Found::Nobody, now);
    desk.actions();
    let told = desk.until(PERIOD + 3 * EVERY - 1);
    assert!(told.iter().all(|told| told.contains("ping")), "{told:?}");
    assert!(
        beat(&mut desk, 2, "0+1", running()).is_empty(),
        "it has gone on"
    );
    assert!(desk.until(PERIOD + 4 * EVERY).is_empty());
}

#[test]
fn an_abort_is_told_to_who_was_never_asked() {
    let mut desk = desk();
    beat(
        &mut desk,
        1,
        "0",
        Progress {
            children: vec![child(2)],
            ..running()
        },
    );
    let told = desk.abort();
    for asked in ["ping 0 at m1 abort", "ping 0.0 at m2 abort"] {
        let is_told = told.iter().any(|told| told.starts_with(asked));
        assert!(is_told, "{asked}: {told:?}");
    }
}

/// A manifest comes by the heartbeat of who was given it.
#[test]
fn how_a_branch_ended_is_told_by_what_it_led_to() {
    let mut desk = desk();
    desk.until(350);
    let manifest = wallaby_proto::Manifest {
        owner: at("0").path,
        facts: facts(1, 0),
    };
    let told = Progress {
        manifest: Some(manifest),
        ..running()
    };
    assert!(beat(&mut desk, 2, "0.0", told).is_empty());
    let missing: Vec<_> = desk.watch.tree_mut().missing().collect();
    assert_eq!(missing, [at("0.0")]);
}

/// It has to be looked for by who is above it, and that begins late.
#[test]
fn who_is_nowhere_yet_is_silent_from_the_first_question_on() {
    let mut desk = desk();
    assert!(desk.end(1, "0", facts(1, 0)).is_empty());
    let late = PERIOD + LATE;
    let told = desk.until(late + LOST - 1);
    assert_eq!(told[0], format!("{late}: ping 0 at m1"));
    assert!(
        told.iter().all(|told| told.ends_with("ping 0 at m1")),
        "{told:?}"
    );
    let told = desk.until(late + LOST);
    let failed = format!("{}: failed: 0.0 gave no sign of life", late + LOST);
    assert!(
        told.iter().any(|told| told.starts_with(&failed)),
        "{told:?}"
    );
}
