//! What a server's records tell of requests: to who pings, to their handlers, to the driver.

use std::time::Duration;

use wallaby_proto::call::records::{ConnId, RecordAction, RecordLimits};
use wallaby_proto::wire::{PingSettings, Request};
use wallaby_proto::{Code, Facts, Manifest, Status};

use crate::liveness::desk::{at, child, node, token};
use crate::liveness::shelf::{HOME, Shelf, abort, announced, origin, ping, request};

#[test]
fn the_initiator_itself_needs_no_token_to_know_what_it_asked() {
    let mut shelf = Shelf::new();
    let asked = || ping(9, "0");
    let (pong, _) = shelf.ask(asked());
    assert_eq!((pong.token, pong.progress), (None, None));
    shelf.records.conn_opened(ConnId::from_number(5), node(20));
    let (pong, _) = shelf.ask_over(asked(), origin(5, node(20)));
    assert_eq!(pong.token, Some(token()), "another passes it on");
}

/// Rule 12: the manifest that it was given is told by a pong as long as it is remembered, whatever took it along: that may have
/// been lost.
#[test]
fn a_manifest_that_was_given_is_told_as_long_as_the_request_is_remembered() {
    let manifest = Manifest {
        owner: at("0").path,
        facts: Facts {
            requests: 2,
            responses: 0,
        },
    };
    let accept = |shelf: &mut Shelf| {
        let handled = shelf.accept(Request {
            manifest: Some(manifest),
            ..request(1, "0.0")
        });
        shelf.records.written(HOME, 9);
        let told = shelf.ping(1, "0.0").progress.expect("known");
        assert_eq!(told.manifest, Some(manifest), "nothing has left");
        handled
    };
    let told = |shelf: &mut Shelf| shelf.ping(1, "0.0").progress.expect("known").manifest;

    let mut shelf = Shelf::new();
    let mut handled = accept(&mut shelf);
    let mut sent = Vec::new();
    sent.extend(handled.server.reply("answer".into()));
    sent.extend(handled.server.flush());
    shelf.release(handled.ticket, sent, 1);
    assert_eq!(told(&mut shelf), Some(manifest), "with an answer");

    let mut shelf = Shelf::new();
    let mut handled = accept(&mut shelf);
    let mut sent = Vec::new();
    sent.extend(handled.server.delegate(3, "work".into()));
    sent.extend(handled.server.flush());
    shelf.release(handled.ticket, sent, 1);
    assert_eq!(told(&mut shelf), Some(manifest), "with a request");

    let mut shelf = Shelf::new();
    let mut handled = accept(&mut shelf);
    let sent = handled.server.finish(None);
    shelf.release(handled.ticket, [sent], 1);
    assert_eq!(told(&mut shelf), Some(manifest), "with the end");
    // And when the connection that the end went out on has ended.
    let now = shelf.time();
    shelf.records.conn_ended(HOME, now);
    let actions = shelf.actions();
    let [RecordAction::Announce { pong, .. }] = &actions[..] else {
        panic!("{actions:?}");
    };
    let told = pong.progress.as_ref().expect("known");
    assert_eq!(told.manifest, Some(manifest));
    assert_eq!(told.facts.map(|facts| facts.requests), Some(0));
}

#[test]
fn a_handler_that_says_so_makes_progress() {
    let mut shelf = Shelf::new();
    let handled = shelf.accept(request(1, "0"));
    shelf.until(40);
    let idle = |shelf: &mut Shelf| shelf.ping(1, "0").progress.expect("known").idle;
    assert_eq!(idle(&mut shelf), Some(Duration::from_millis(40)));
    let now = shelf.time();
    shelf.records.progressed(handled.ticket, now);
    assert_eq!(idle(&mut shelf), Some(Duration::ZERO));
}

#[test]
fn who_has_ended_or_was_stopped_may_not_delegate() {
    let mut shelf = Shelf::new();
    let handled = shelf.accept(request(1, "0"));
    assert!(shelf.records.may_delegate(handled.ticket));
    let ended = shelf.answer(request(2, "0"), 1);
    assert!(!shelf.records.may_delegate(ended.ticket), "it has ended");
    shelf.ask(abort(1, "0"));
    assert!(!shelf.records.may_delegate(handled.ticket), "it is aborted");
}

/// A handler that does not heed its abort is told of while its initiator may live, and no longer: 100 ms and two times 500 ms.
#[test]
fn who_is_aborted_is_announced_while_its_initiator_asks() {
    let mut shelf = Shelf::new();
    let mut handled = shelf.accept(request(1, "0"));
    let times = |shelf: &mut Shelf, until| {
        let told = announced(&shelf.until(until));
        told.into_iter().map(|(time, _)| time).collect::<Vec<_>>()
    };
    shelf.ask(abort(1, "0"));
    assert_eq!(times(&mut shelf, 250), [100, 200]);
    shelf.ask(abort(1, "0"));
    let first = (350..1350).step_by(100).collect::<Vec<_>>();
    assert_eq!(times(&mut shelf, 3_600_000), first);
    // It was only cut off.
    shelf.ask(abort(1, "0"));
    assert_eq!(times(&mut shelf, 3_600_100), [3_600_100]);
    let status = Status::new(Code::Cancelled, "aborted");
    let sent = handled.server.fail(&status, None);
    shelf.release(handled.ticket, [sent], 7);
    assert_eq!(times(&mut shelf, 7_200_000), []);
}

#[test]
fn a_ping_goes_on_again_after_three_quarters_of_a_period() {
    let mut shelf = Shelf::new();
    let mut handled = shelf.accept(request(1, "0"));
    let mut sent = Vec::new();
    sent.extend(handled.server.delegate(3, "three".into()));
    sent.extend(handled.server.flush());
    sent.push(handled.server.finish(None));
    shelf.release(handled.ticket, sent, 0);
    let mut passes = |after: u64| {
        shelf.now = after;
        let now = shelf.time();
        shelf
            .records
            .relay_target(&ping(1, "0.0"), crate::liveness::shelf::home(), now)
    };
    assert_eq!(passes(0), Some(child(3)));
    assert_eq!([1, 40, 74].map(&mut passes), [const { None }; 3]);
    assert_eq!(passes(75), Some(child(3)));
    assert_eq!(passes(149), None);
    assert_eq!(passes(150), Some(child(3)));
}

/// However many requests fall due at a time, the driver has its turn in between.
#[test]
fn so_many_requests_are_looked_at_in_a_turn() {
    const IN_A_TURN: usize = 4096;
    const COUNT: u64 = 5000;
    let mut shelf = Shelf::new();
    for sequence in 1..=COUNT {
        shelf.accept(request(sequence, "0"));
    }
    // First they are fresh, later each has its own timer; what falls due at a time takes two turns.
    let mut turns = Vec::new();
    while let Some(due) = shelf.records.next_timeout() {
        if due > Duration::from_millis(350) {
            break;
        }
        shelf.now = shelf.now.max(due.as_micros().div_ceil(1000) as u64);
        let now = shelf.time();
        shelf.records.handle_timeout(now);
        let told = shelf.actions();
        let is_announcement =
            |action: &&RecordAction| matches!(action, RecordAction::Announce { .. });
        turns.push(told.iter().filter(is_announcement).count());
        assert!(turns.len() < 100, "{turns:?}");
    }
    turns.retain(|count| *count > 0);
    let rest = COUNT as usize - IN_A_TURN;
    assert!(turns.len() >= 4, "{turns:?}");
    assert!(
        turns.chunks(2).all(|two| *two == [IN_A_TURN, rest]),
        "{turns:?}"
    );
}

/// An endpoint asks for the next time only when it may be another one.
#[test]
fn a_time_that_comes_nearer_is_told_once() {
    let mut shelf = Shelf::new();
    assert_eq!(shelf.records.take_sooner(), None);
    let handled = shelf.accept(request(1, "0"));
    let looked_at = shelf.records.next_timeout();
    assert!(looked_at.is_some());
    assert_eq!(shelf.records.take_sooner(), looked_at);
    assert_eq!(shelf.records.take_sooner(), None, "it was told");
    drop(handled);
}

/// Short times are left out: up to an eighth of a ping period, and less the deeper the hop.
#[test]
fn a_delegation_carries_how_long_the_initiator_was_not_heard_unless_that_is_short() {
    let period = 80;
    let mut shelf = Shelf::with(RecordLimits {
        ping: PingSettings {
            period: Duration::from_millis(period),
            timeout: Duration::from_millis(5 * period),
        },
        ..RecordLimits::default()
    });
    let deep = Request {
        depth: 1,
        ..request(2, "0.0")
    };
    let (first, deeper) = (shelf.accept(request(1, "0")), shelf.accept(deep));
    let mut quiet = |after: u64| {
        shelf.now = after;
        let now = shelf.time();
        [&first, &deeper].map(|handled| shelf.records.quiet(handled.ticket, now))
    };
    let ms = |time| Some(Duration::from_millis(time));
    assert_eq!(quiet(5), [None, None]);
    assert_eq!(quiet(6), [None, ms(6)]);
    assert_eq!(quiet(10), [None, ms(10)]);
    assert_eq!(quiet(11), [ms(11), ms(11)]);
}
