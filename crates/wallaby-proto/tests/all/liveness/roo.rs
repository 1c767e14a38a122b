//! The defects of Roo, the thesis' own implementation, one test each: what Wallaby must never do again.
//!
//! What concerns datagrams alone (a packet that is lost, a copy that arrives twice) is tested once more where connections
//! are, in `tests/all/datagram`.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use wallaby_proto::call::initiator::Initiator;
use wallaby_proto::call::records::{ConnId, Judgement, OutputMark, RecordAction, ReleasedMessage};
use wallaby_proto::call::watch::{self, Watch, WatchSettings};
use wallaby_proto::wire::{Budgets, LinkEnds, MAX_CHILDREN, Message, PingSettings, Progress};

use crate::liveness::desk::{
    Desk, PERIOD, TIMEOUT, at, call, child, ended, facts, location, node, pong, running, settings,
    token,
};
use crate::liveness::shelf::{HOME, Shelf, origin, ping, request, with_options};

/// Roo's timer was armed only by messages: a call that idled before its first send was never looked at.
#[test]
fn a_call_that_idles_before_its_first_send_keeps_its_timer() {
    let initiator = Initiator::new(call(), token(), Budgets::default());
    let start = Duration::from_millis(PERIOD);
    let watch = Watch::new(initiator, settings(), [], start);
    let mut desk = Desk {
        watch,
        now: PERIOD,
        failure: None,
    };
    assert!(desk.until(60_000).is_empty(), "nothing runs");
    let first = desk.watch.tree_mut().send().expect("within the budget");
    let now = desk.time();
    desk.watch.sent(first, location(1), now);
    assert_eq!(desk.actions(), ["ping 0 at m1"]);
    let told = desk.until(60_000 + TIMEOUT);
    let verdict = told.iter().find(|text| text.contains("failed"));
    assert_eq!(
        verdict.map(String::as_str),
        Some("60500: failed: 0 gave no sign of life for 500ms"),
        "the timeout counts from the send on"
    );
}

/// A large response that is late is waited for; one that comes after the verdict changes nothing.
#[test]
fn a_large_response_that_is_late_does_not_turn_failed_into_complete() {
    let mut desk = Desk::new();
    for period in 2..20 {
        let mut told = pong(at("0"), Some(ended(0, 1)));
        told.writing = true;
        desk.hear(1, told);
        let actions = desk.until(period * PERIOD);
        assert!(!actions.iter().any(|text| text.contains("failed")));
    }
    let actions = desk.until(5000).join("\n");
    assert_eq!(actions.matches("failed").count(), 1, "{actions}");
    let after = desk.response(1, "0", 0, true, None);
    assert!(desk.watch.is_winding_down(), "the outcome is settled");
    let more = desk.until(10_000);
    assert!(
        !after
            .iter()
            .chain(&more)
            .any(|text| text.contains("failed"))
    );
}

/// The server lists a delegation that it still holds back, as child 0; then it leaves alone, and no such child exists.
#[test]
fn a_ping_that_races_with_the_last_send_invents_no_branch() {
    let (mut shelf, mut desk) = (Shelf::new(), Desk::new());
    let mut handled = shelf.accept(request(7, "0"));
    assert!(handled.server.delegate(2, Bytes::new()).is_none(), "held");
    let before = shelf.ping(7, "0");
    let last = handled.server.finish(None);
    shelf.release(handled.ticket, [last], 0);
    shelf.records.written(HOME, 1);
    let after = shelf.ping(7, "0");
    // They overtake each other, too.
    for told in [before.clone(), after.clone(), before, after] {
        desk.hear(1, told);
    }
    assert_eq!(desk.watch.tree_mut().branches().count(), 1);
    desk.end(2, "0+1", facts(0, 0));
    assert!(desk.watch.tree_mut().is_complete());
}

/// What a call may still ask about is there, however long its own timeout is.
#[test]
fn metadata_outlives_the_timeout_of_its_call() {
    let patient = PingSettings {
        period: Duration::from_secs(10),
        timeout: Duration::from_secs(100),
    };
    for (sequence, ping) in [(1, None), (2, Some(patient))] {
        let mut shelf = Shelf::new();
        let stated = with_options(request(sequence, "0"), |options| options.ping = ping);
        shelf.answer(stated, 0);
        let PingSettings { period, timeout } = ping.unwrap_or(settings().ping);
        let last_ping = (period + timeout).as_millis() as u64;
        shelf.until(last_ping);
        assert!(shelf.known(sequence, "0").finished, "{timeout:?}");
        // Each ping starts the time anew.
        shelf.until(2 * last_ping);
        assert!(shelf.known(sequence, "0").finished, "{timeout:?}");
    }
}

#[test]
fn duplicates_are_not_executed_twice() {
    let mut shelf = Shelf::new();
    let running = shelf.accept(request(1, "0"));
    assert_eq!(shelf.admit(&running.request), Judgement::Duplicate);
    shelf.answer(request(1, "0.1"), 0);
    assert_eq!(shelf.admit(&request(1, "0.1")), Judgement::Duplicate);
}

/// A response, and the end that a server reports, are recovered when what carried them is lost.
#[test]
fn a_lost_packet_is_recovered() {
    let (mut shelf, mut desk) = (Shelf::new(), Desk::new());
    shelf.answer(request(7, "0"), 1);
    shelf.records.written(HOME, 1);
    shelf.records.conn_ended(HOME, Duration::ZERO);
    shelf.actions();
    shelf.records.conn_opened(ConnId::from_number(2), node(1));
    // The pong tells the facts that the response carried, and so what is missing.
    let (told, _) = shelf.ask_over(ping(7, "0"), origin(2, node(1)));
    desk.hear(1, told);
    assert!(!desk.watch.tree_mut().is_complete());
    let mut asks = ping(7, "0");
    asks.missing = vec![0];
    let (_, more) = shelf.ask_over(asks, origin(2, node(1)));
    let [
        RecordAction::Resend {
            ticket,
            conn,
            response,
        },
    ] = &more[..]
    else {
        panic!("{more:?}");
    };
    let (conn, mark) = (*conn, 1);
    let sent = ReleasedMessage::Response(response.index);
    shelf
        .records
        .placed(*ticket, sent, OutputMark { conn, mark });
    desk.response(1, "0", response.index, response.last, None);
    assert!(desk.watch.tree_mut().is_complete());
}

/// Every beginning of every message is refused with an error, as is any length in it that is too large.
#[test]
fn lengths_are_checked() {
    let mut shelf = Shelf::new();
    let told = Progress {
        children: vec![child(2); MAX_CHILDREN],
        ..running()
    };
    let messages = [
        (0x10, Message::Request(request(1, "0.1.2"))),
        (0x13, Message::Ping(ping(1, "0.1"))),
        (0x14, Message::Pong(pong(at("0"), Some(told)))),
        (0x14, Message::Pong(shelf.ping(1, "0"))),
    ];
    let link = LinkEnds::new(node(1), node(2));
    for (kind, message) in messages {
        let mut bytes = BytesMut::new();
        message.encode(&mut bytes, link);
        let body = bytes.freeze();
        assert_eq!(
            Message::decode(kind, body.clone(), link).as_ref(),
            Ok(&message)
        );
        for len in 0..body.len() {
            // A payload takes all that is left; it has no length of its own here.
            if let Ok(shorter) = Message::decode(kind, body.slice(..len), link) {
                assert_ne!(shorter, message, "{len} of {} bytes", body.len());
            }
        }
        for place in 0..body.len() {
            let mut wrong = body.to_vec();
            wrong[place] = 0xff;
            let _typed = Message::decode(kind, wrong.into(), link);
        }
    }
}

/// Roo named requests by hashes that collide under fan-out; paths are places, and their digests wide and keyed.
#[test]
fn names_do_not_collide_under_fan_out() {
    let deep = (0..16).fold(at("0").path, |path, _| path.child(200, call(), token()));
    assert!(deep.is_folded());
    let mut seen = BTreeSet::new();
    for above in [at("0").path, deep] {
        for first in 0..300 {
            let child = above.child(first, call(), token());
            for second in 0..300 {
                assert!(seen.insert(child.child(second, call(), token())));
            }
        }
    }
}

/// Five thousand branches live, each due at a time of its own: a turn asks about the one that is due and no other.
#[test]
fn a_tick_looks_at_what_is_due_and_at_nothing_else() {
    const BRANCHES: u64 = 5_000;
    let initiator = Initiator::new(call(), token(), Budgets::default());
    let settings = WatchSettings {
        ping: PingSettings {
            period: Duration::from_millis(BRANCHES),
            timeout: Duration::from_millis(10 * BRANCHES),
        },
        ..WatchSettings::default()
    };
    let mut watch = Watch::new(initiator, settings, [], Duration::ZERO);
    for branch in 0..BRANCHES {
        let now = Duration::from_millis(branch);
        let request = watch.tree_mut().send().expect("within the budget");
        watch.sent(request, location(branch + 1), now);
        assert!(watch.poll().is_some(), "it is asked about at once");
        assert_eq!(watch.poll(), None, "nothing else is due");
    }
    for branch in 0..BRANCHES {
        let due = Duration::from_millis(BRANCHES + branch);
        assert_eq!(watch.next_timeout(), Some(due));
        watch.handle_timeout(due);
        let Some(watch::WatchAction::Ping { ping, .. }) = watch.poll() else {
            panic!("branch {branch} is not asked about");
        };
        assert_eq!(ping.request, at(&branch.to_string()));
        assert_eq!(watch.poll(), None);
    }
}
