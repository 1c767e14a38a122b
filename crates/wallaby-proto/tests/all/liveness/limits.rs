//! Every table is bounded, and says so.

use std::time::Duration;

use bytes::Bytes;
use wallaby_proto::call::records::{ConnId, Judgement, MAX_ATTEMPT, RecordLimits};
use wallaby_proto::call::watch::Found;
use wallaby_proto::wire::{Ping, PingSettings, Request};
use wallaby_proto::{CallId, Code, Status};

use crate::liveness::desk::{Desk, at, continued, node};
use crate::liveness::shelf::{
    HOME, Shelf, abort, limits, origin, other_token, ping, request, with_options,
};

fn refusal(admission: &Judgement) -> &Status {
    match admission {
        Judgement::Refused(status) => status,
        other => panic!("{other:?}"),
    }
}

/// Rule 32: ended requests make room, oldest first; only if all run, a new one is refused.
#[test]
fn a_full_table_forgets_what_has_ended_and_refuses_otherwise() {
    let mut shelf = Shelf::with(RecordLimits {
        requests: 3,
        ..limits()
    });
    shelf.accept(request(1, "0"));
    shelf.answer(request(2, "0"), 0);
    shelf.answer(request(3, "0"), 0);
    assert!(!shelf.ping(9, "0").evicted);
    shelf.accept(request(4, "0"));
    assert_eq!(shelf.ping(2, "0").progress, None);
    assert!(
        shelf.ping(2, "0").evicted,
        "it says that it may have been forgotten"
    );
    let known = shelf.ping(3, "0");
    assert!(known.progress.is_some() && known.evicted, "others are");
    shelf.accept(request(5, "0"));
    let admission = shelf.admit(&request(6, "0"));
    assert_eq!(refusal(&admission).code(), Code::ResourceExhausted);
    assert!(refusal(&admission).message().contains('3'), "{admission:?}");
    assert_eq!(shelf.records.remembered().requests, 3);
    shelf.until(100);
    shelf.now = 20_000;
    assert!(
        !shelf.ping(9, "0").evicted,
        "what was forgotten then would be forgotten by now"
    );
}

/// A request that has ended and whose output is still being written is what the initiator is told so by: it stays.
#[test]
fn what_is_being_written_makes_no_room() {
    let mut shelf = Shelf::with(RecordLimits {
        requests: 3,
        ..limits()
    });
    shelf.answer(request(1, "0"), 1);
    shelf.answer(request(2, "0"), 0);
    shelf.accept(request(3, "0"));
    shelf.accept(request(4, "0"));
    assert!(
        shelf.ping(1, "0").writing,
        "the one that ended after it made room"
    );
    let admission = shelf.admit(&request(5, "0"));
    assert_eq!(refusal(&admission).code(), Code::ResourceExhausted);
    shelf.records.written(HOME, 1);
    shelf.accept(request(5, "0"));
    assert_eq!(shelf.ping(1, "0").progress, None);
}

/// An initiator that does not read its answers keeps nobody else out.
#[test]
fn what_nobody_reads_makes_room_for_others() {
    let mut shelf = Shelf::with(RecordLimits {
        requests: 100,
        ..limits()
    });
    for sequence in 1..=100 {
        shelf.answer(request(sequence, "0"), sequence);
    }
    shelf.accept(request(101, "0"));
    assert_eq!(shelf.ping(1, "0").progress, None);
}

#[test]
fn initiators_are_limited() {
    let mut shelf = Shelf::with(RecordLimits {
        initiators: 2,
        ..limits()
    });
    let of = |number: u64| Request {
        call: CallId {
            initiator: node(number),
            sequence: 1,
        },
        ..request(1, "0")
    };
    shelf.accept(of(1));
    shelf.answer(of(2), 0);
    shelf.accept(of(3)); // nothing of 2 runs: it is forgotten
    assert_eq!(shelf.records.remembered().initiators, 2);
    let admission = shelf.admit(&of(4));
    assert_eq!(refusal(&admission).code(), Code::ResourceExhausted);
    assert!(refusal(&admission).message().contains("initiators"));
}

/// An initiator that is being written to stays.
#[test]
fn initiators_to_whom_something_is_being_written_make_no_room() {
    let mut shelf = Shelf::with(RecordLimits {
        initiators: 1,
        ..limits()
    });
    shelf.answer(request(1, "0"), 1);
    let other = Request {
        call: CallId {
            initiator: node(2),
            sequence: 1,
        },
        ..request(1, "0")
    };
    let admission = shelf.admit(&other);
    assert_eq!(refusal(&admission).code(), Code::ResourceExhausted);
    shelf.records.written(HOME, 1);
    shelf.accept(other);
    assert_eq!(shelf.ping(1, "0").progress, None);
}

/// Beyond the limit responses are passed on without a word.
#[test]
fn responses_that_are_passed_on_are_limited() {
    let mut shelf = Shelf::with(RecordLimits {
        relays: 2,
        ..limits()
    });
    let status = Status::new(Code::Unavailable, "large");
    let response = wallaby_proto::call::server::undelivered(&request(1, "0"), &status);
    let one = shelf.records.begin_relay(&response, HOME, Duration::ZERO);
    assert!(
        shelf
            .records
            .begin_relay(&response, HOME, Duration::ZERO)
            .is_some()
    );
    assert_eq!(
        shelf.records.begin_relay(&response, HOME, Duration::ZERO),
        None
    );
    shelf.records.relayed(one.expect("the first one"), None);
    assert!(
        shelf
            .records
            .begin_relay(&response, HOME, Duration::ZERO)
            .is_some()
    );
}

/// An initiator that takes nothing of what is passed on to it keeps nobody from being told what is on its way to others.
#[test]
fn what_is_passed_on_is_shared() {
    const MOST: usize = 64;
    let mut shelf = Shelf::with(RecordLimits {
        relays: MOST,
        ..limits()
    });
    let status = Status::new(Code::Unavailable, "large");
    let pass = |shelf: &mut Shelf, sequence, conn| {
        let request = request(sequence, "0");
        let response = wallaby_proto::call::server::undelivered(&request, &status);
        shelf
            .records
            .begin_relay(&response, ConnId::from_number(conn), Duration::ZERO)
    };
    let mut greedy: Vec<_> = (0..MOST as u64)
        .map_while(|sequence| pass(&mut shelf, sequence + 1, 1))
        .collect();
    assert!(
        (MOST * 3 / 4..MOST).contains(&greedy.len()),
        "{}",
        greedy.len()
    );
    assert!(pass(&mut shelf, 1000, 2).is_some(), "another connection's");
    // What it takes makes room for more.
    for passage in greedy.drain(..) {
        shelf.records.relayed(passage, None);
    }
    for sequence in 0..MOST as u64 / 2 {
        assert!(pass(&mut shelf, sequence + 1, 1).is_some());
    }
}

#[test]
fn kept_responses_are_limited_by_their_bytes() {
    let kept_bytes = 20_000;
    let mut shelf = Shelf::with(RecordLimits {
        kept_bytes,
        ..limits()
    });
    let mut handled = shelf.accept(request(1, "0"));
    for size in [
        10, 500, 4096, 5000, 4000, 3000, 9000, 20_000, 1, 0, 4500, 4096, 4096, 4096,
    ] {
        let payload = Bytes::from(vec![size as u8; size]);
        let sent: Vec<_> = handled
            .server
            .reply(payload)
            .into_iter()
            .chain(handled.server.flush())
            .collect();
        shelf.release(handled.ticket, sent, 1);
        assert!(shelf.records.remembered().kept_bytes <= kept_bytes);
    }
    shelf.records.conn_ended(HOME, Duration::ZERO);
    while shelf.records.poll().is_some() {}
    shelf.records.conn_opened(ConnId::from_number(2), node(1));
    let missing = Ping {
        missing: (0..14).collect(),
        ..ping(1, "0")
    };
    let (pong, actions) = shelf.ask_over(missing, origin(2, node(1)));
    let lost = pong.progress.expect("it is known").lost;
    assert_eq!(lost.len() + actions.len(), 14);
    assert!(
        lost.contains(&0) && !lost.contains(&13),
        "the oldest go first: {lost:?}"
    );
    for action in actions {
        let wallaby_proto::call::records::RecordAction::Resend { response, .. } = action else {
            panic!("{action:?}")
        };
        let size = response.payload.len();
        assert!(
            response.payload.iter().all(|&byte| byte == size as u8),
            "its own bytes"
        );
    }
}

#[test]
fn what_is_kept_goes_with_its_record() {
    let mut shelf = Shelf::new();
    for sequence in 1..100 {
        shelf.answer(request(sequence, "0"), 1);
    }
    assert!(shelf.records.remembered().kept_bytes > 0);
    shelf.answer(
        Request {
            oldest: 100,
            ..request(100, "0")
        },
        1,
    );
    assert_eq!(
        shelf.records.remembered().kept_bytes,
        128 + "answer".len() as u64
    );
}

/// A peer states times; what it states is kept within the limits.
#[test]
fn stated_times_are_bounded() {
    let mut shelf = Shelf::with(RecordLimits {
        shortest_period: Duration::from_millis(50),
        longest_timeout: Duration::from_secs(2),
        ..limits()
    });
    let hasty = PingSettings {
        period: Duration::ZERO,
        timeout: Duration::ZERO,
    };
    shelf.accept(with_options(request(1, "0"), |options| {
        options.ping = Some(hasty)
    }));
    assert!(shelf.until(1000).len() <= 21, "no faster than each 50 ms");
    let eternal = PingSettings {
        period: Duration::from_secs(1 << 20),
        timeout: Duration::from_secs(1 << 22),
    };
    shelf.answer(
        with_options(request(2, "0"), |options| options.ping = Some(eternal)),
        0,
    );
    shelf.until(20_000);
    assert_eq!(shelf.ping(2, "0").progress, None);
}

#[test]
fn attempts_are_limited() {
    let mut shelf = Shelf::new();
    for (attempt, fits) in [
        (MAX_ATTEMPT, true),
        (MAX_ATTEMPT + 1, false),
        (u32::MAX, false),
    ] {
        let request = with_options(request(1, "0"), |options| options.attempt = attempt);
        let admission = shelf.admit(&request);
        assert_eq!(matches!(admission, Judgement::Accepted(_)), fits);
        if !fits {
            assert_eq!(refusal(&admission).code(), Code::InvalidArgument);
        }
    }
    assert_eq!(shelf.ping(1, "0").attempt, MAX_ATTEMPT);
}

/// Marks of aborted calls take room like requests, and are forgotten like ended ones.
#[test]
fn marks_of_aborted_calls_are_bounded() {
    let mut shelf = Shelf::with(RecordLimits {
        requests: 10,
        ..limits()
    });
    let running = shelf.accept(request(1, "0"));
    for sequence in 2..1000 {
        let (pong, _) = shelf.ask(abort(sequence, "0"));
        // A request of that may still come, and is not refused then: its initiator is to know.
        assert_eq!(pong.evicted, sequence > 5, "{sequence}");
    }
    assert_eq!(shelf.records.remembered().requests, 5);
    assert!(shelf.records.may_delegate(running.ticket));
    assert_eq!(shelf.ping(1, "0").request, at("0"));
    let _ = other_token(request(1, "0"));
}

/// A server may name another incarnation in each pong, none of which is found.
#[test]
fn nodes_that_are_not_found_get_no_memory() {
    let mut desk = Desk::new();
    for number in 0..1000 {
        desk.pong(1, "0", continued(0, 100 + number));
        let (node, now) = (node(10 * (100 + number)), desk.time());
        desk.watch.handle_not_found(node, Found::Nobody, now);
    }
    let text = format!("{:?}", desk.watch);
    assert!(text.matches("Gone {").count() <= 100, "{text}");
}
