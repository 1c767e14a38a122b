//! What a server remembers, tells and forgets.

use std::time::Duration;

use bytes::Bytes;
use wallaby_proto::call::records::{
    ConnId, Frozen, Judgement, OutputMark, RecordAction, RecordLimits, ReleasedMessage, Remembered,
    StopReason,
};
use wallaby_proto::call::server::{Outbound, undelivered};
use wallaby_proto::wire::{Child, MAX_CHILDREN, Ping, ReplyTo, Request, Response};
use wallaby_proto::{Code, Facts, Manifest, Status};

use crate::liveness::desk::{address, at, child, node};
use crate::liveness::shelf::{
    HOME, Shelf, abort, announced, home, limits, origin, other_token, ping, request, stopped,
    with_options,
};

#[test]
fn a_request_is_handled_once_in_each_attempt() {
    let mut shelf = Shelf::new();
    shelf.answer(request(1, "0"), 0);
    assert_eq!(shelf.admit(&request(1, "0")), Judgement::Duplicate);
    assert!(matches!(
        shelf.admit(&request(1, "0+1")),
        Judgement::Accepted(_)
    ));
    let again = with_options(request(1, "0"), |options| options.attempt = 1);
    assert!(matches!(shelf.admit(&again), Judgement::Accepted(_)));
    assert_eq!(shelf.admit(&again), Judgement::Duplicate);
    let pong = shelf.ping(1, "0");
    assert_eq!(pong.attempt, 1, "the latest attempt is told of");
}

/// Many requests of one call are found as one is.
#[test]
fn a_large_fan_out_is_found() {
    let mut shelf = Shelf::new();
    let ids: Vec<String> = (0..500).map(|number| format!("0.{number}")).collect();
    for id in &ids {
        shelf.answer(request(1, id), 0);
    }
    for id in &ids {
        assert_eq!(shelf.admit(&request(1, id)), Judgement::Duplicate);
        assert_eq!(shelf.ping(1, id).request, at(id));
    }
    assert_eq!(shelf.ping(1, "0.500").progress, None);
    shelf.until(10_000);
    assert_eq!(shelf.records.remembered(), Remembered::default());
}

/// Rule 12: what a pong says, while a request runs and after.
#[test]
fn a_pong_tells_what_was_released() {
    let mut shelf = Shelf::new();
    let carried = Manifest {
        owner: at("0").path,
        facts: Facts {
            requests: 2,
            responses: 0,
        },
    };
    let mut handled = shelf.accept(Request {
        manifest: Some(carried),
        ..request(1, "0.1")
    });
    shelf.now = 30;
    // Rule 3: what is held back does not exist.
    assert!(handled.server.delegate(2, Bytes::new()).is_none());
    let told = shelf.known(1, "0.1");
    assert!(!told.finished && told.children.is_empty() && told.count == 0);
    assert_eq!(told.manifest, Some(carried));
    assert_eq!(told.idle, Some(Duration::from_millis(30)));
    let sent = handled.server.flush();
    shelf.release(handled.ticket, sent, 0);
    let told = shelf.known(1, "0.1");
    assert_eq!(told.children, [child(2)]);
    assert_eq!(
        told.manifest,
        Some(carried),
        "the delegation took it along and may be lost"
    );
    assert_eq!(told.idle, Some(Duration::ZERO));
    let sent = handled.server.respond("done".into(), None);
    shelf.release(handled.ticket, sent, 0);
    let told = shelf.known(1, "0.1");
    assert!(told.finished && told.idle.is_none());
    assert_eq!(
        told.facts,
        Some(Facts {
            requests: 1,
            responses: 1
        })
    );
    assert_eq!((told.base, told.count), (0, 1));
}

/// A status says itself how its branch ended: a pong would complete a call that was sent again and has an answer in that
/// place.
#[test]
fn a_pong_does_not_tell_that_a_branch_ended_with_a_status() {
    let mut shelf = Shelf::new();
    let mut handled = shelf.accept(request(1, "0"));
    let status = Status::new(Code::Internal, "no");
    let sent = handled.server.fail(&status, None);
    shelf.release(handled.ticket, [sent], 0);
    let told = shelf.known(1, "0");
    assert_eq!((told.facts, told.count, told.finished), (None, 1, true));
    // The same if one took the place of its last answer.
    let mut handled = shelf.accept(request(2, "0"));
    let sent = handled.server.respond("large".into(), None);
    let status = match &sent.last {
        Outbound::Response(response) => Some(Response {
            status: true,
            ..response.clone()
        }),
        _ => None,
    };
    shelf.release(handled.ticket, sent, 0);
    assert!(shelf.known(2, "0").facts.is_some());
    let status = status.expect("it answers");
    shelf.records.response_replaced(handled.ticket, &status);
    assert_eq!(shelf.known(2, "0").facts, None);
}

#[test]
fn a_pong_tells_where_a_branch_went_on() {
    let mut shelf = Shelf::new();
    let mut handled = shelf.accept(request(1, "0"));
    let sent: Vec<_> = [
        handled.server.reply("one".into()),
        handled.server.reply("two".into()),
    ]
    .into_iter()
    .flatten()
    .chain(handled.server.forward(3, Bytes::new(), None))
    .collect();
    shelf.release(handled.ticket, sent, 0);
    let told = shelf.known(1, "0");
    assert_eq!(told.continuation, Some(child(3)));
    assert_eq!((told.facts, told.count, told.finished), (None, 2, true));
}

#[test]
fn children_are_told_page_by_page() {
    let mut shelf = Shelf::new();
    let mut handled = shelf.accept(request(1, "0"));
    for number in 1..=300 {
        let sent: Vec<_> = handled
            .server
            .delegate(number, Bytes::new())
            .into_iter()
            .chain(handled.server.flush())
            .collect();
        shelf.release(handled.ticket, sent, 0);
    }
    let first = shelf.known(1, "0");
    assert_eq!(
        (first.children_from, first.children.len()),
        (0, MAX_CHILDREN)
    );
    let (second, _) = shelf.ask(Ping {
        children_from: 256,
        ..ping(1, "0")
    });
    let second = second.progress.expect("it is known");
    assert_eq!((second.children_from, second.children.len()), (256, 44));
    assert_eq!(second.children[43], child(300));
    let (third, _) = shelf.ask(Ping {
        children_from: u32::MAX,
        ..ping(1, "0")
    });
    assert!(third.progress.expect("it is known").children.is_empty());
}

/// Rule 12: "still writing" until the connection's output has been written.
#[test]
fn output_is_being_written_until_its_mark() {
    let mut shelf = Shelf::new();
    shelf.answer(request(1, "0"), 7);
    assert!(shelf.ping(1, "0").writing);
    shelf.records.written(HOME, 6);
    assert!(shelf.ping(1, "0").writing);
    shelf.records.written(HOME, 7);
    assert!(!shelf.ping(1, "0").writing);
}

/// What waits for a connection or for credit has no place yet: it is being written too.
#[test]
fn output_without_a_place_is_being_written() {
    let mut shelf = Shelf::new();
    let mut handled = shelf.accept(request(1, "0"));
    for message in handled.server.respond("late".into(), None) {
        let Outbound::Response(response) = message else {
            panic!("a response")
        };
        shelf
            .records
            .response_released(handled.ticket, &response, None, Duration::ZERO);
    }
    assert!(shelf.ping(1, "0").writing);
    let output = OutputMark {
        conn: HOME,
        mark: 0,
    };
    shelf
        .records
        .placed(handled.ticket, ReleasedMessage::Response(0), output);
    assert!(!shelf.ping(1, "0").writing);
}

/// Rule 14: what runs is announced when the initiator has heard nothing for a period; pings count as hearing.
#[test]
fn running_requests_announce_themselves() {
    let mut shelf = Shelf::new();
    shelf.accept(request(1, "0"));
    let told = announced(&shelf.until(350));
    assert_eq!(told.len(), 3);
    assert!(
        told[0].0 >= 100 && told[0].0 <= 113,
        "within an eighth of a period: {told:?}"
    );
    shelf.ping(1, "0");
    assert_eq!(announced(&shelf.until(449)), []);
    assert_eq!(announced(&shelf.until(450)), [(450, at("0"))]);
}

/// Rule 14: a chain of short hops. No hop lasts a period, but the initiator has heard nothing for one.
#[test]
fn quiet_time_travels_with_delegations() {
    let mut shelf = Shelf::new();
    let quiet = Some(Duration::from_millis(70));
    let handled = shelf.accept(with_options(request(1, "0+3"), |options| {
        options.quiet = quiet
    }));
    shelf.now = 20;
    let told = shelf.records.quiet(handled.ticket, shelf.time());
    assert_eq!(told, Some(Duration::from_millis(90)));
    assert_eq!(announced(&shelf.until(40)), [(30, at("0+3"))]);
    let told = shelf.records.quiet(handled.ticket, shelf.time());
    assert_eq!(told, None, "it was announced a moment ago");
}

/// Time under way is quiet time as well.
#[test]
fn transit_is_quiet_time() {
    let mut shelf = Shelf::new();
    let far = wallaby_proto::call::records::MessageOrigin {
        transit: Duration::from_millis(60),
        ..home()
    };
    let admission = shelf.records.admit(&request(1, "0+3"), far, Duration::ZERO);
    let Judgement::Accepted(ticket) = admission else {
        panic!("{admission:?}")
    };
    shelf.now = 10;
    assert_eq!(
        shelf.records.quiet(ticket, shelf.time()),
        Some(Duration::from_millis(70))
    );
}

/// What is left out on a line of any length adds up to less than a quarter of a period.
#[test]
fn quiet_time_left_out_is_bounded() {
    let mut left_out = Duration::ZERO;
    for depth in 0..4000 {
        let mut shelf = Shelf::new();
        let handled = shelf.accept(Request {
            depth,
            ..request(1, "0")
        });
        // The longest time that is not told.
        let told = |micros: u64| {
            shelf
                .records
                .quiet(handled.ticket, Duration::from_micros(micros))
        };
        let longest = (0..13_000).rev().find(|&micros| told(micros).is_none());
        left_out += Duration::from_micros(longest.unwrap_or(0));
        if longest == Some(0) {
            break;
        }
    }
    assert!(
        left_out > Duration::ZERO && left_out < Duration::from_millis(25),
        "{left_out:?}"
    );
}

/// Rule 14: what still owes output is announced too, though its handler has ended.
#[test]
fn unwritten_output_is_announced() {
    let mut shelf = Shelf::new();
    shelf.answer(request(1, "0"), 7);
    assert_eq!(announced(&shelf.until(250)).len(), 2);
    shelf.records.written(HOME, 7);
    assert_eq!(announced(&shelf.until(1000)), []);
}

/// Rule 17: the connection on which output went out ends: it is announced, once, if it was not confirmed.
#[test]
fn unconfirmed_output_of_a_connection_is_announced_once() {
    let mut shelf = Shelf::new();
    shelf.answer(request(1, "0"), 3);
    shelf.answer(request(2, "0"), 4);
    shelf.records.written(HOME, 4);
    shelf.records.confirmed(HOME, 3);
    let now = shelf.time();
    shelf.records.conn_ended(HOME, now);
    let actions = shelf.actions();
    assert_eq!(actions.len(), 1);
    let RecordAction::Announce {
        pong,
        reply_to,
        conn,
        ..
    } = &actions[0]
    else {
        panic!("{actions:?}")
    };
    assert_eq!((pong.call.sequence, pong.announced), (2, true));
    assert_eq!((reply_to, *conn), (&ReplyTo::Peer, HOME));
    shelf.records.conn_ended(HOME, now);
    assert!(shelf.actions().is_empty());
}

/// Rule 17, where answers went through a relay.
#[test]
fn output_that_went_through_a_relay_is_announced() {
    let mut shelf = Shelf::new();
    let relay = ConnId::from_number(5);
    shelf.records.conn_opened(relay, node(5));
    let admission = shelf
        .records
        .admit(&request(1, "0"), origin(5, node(5)), Duration::ZERO);
    let Judgement::Accepted(ticket) = admission else {
        panic!("{admission:?}")
    };
    let mut server: wallaby_proto::call::server::ServerHalf<u64> =
        wallaby_proto::call::server::ServerHalf::new(&mut request(1, "0"));
    let Outbound::End(end) = server.finish(None) else {
        panic!("an end")
    };
    let output = OutputMark {
        conn: relay,
        mark: 1,
    };
    shelf
        .records
        .end_released(ticket, &end, Some(output), Duration::ZERO);
    shelf.records.conn_ended(relay, Duration::ZERO);
    assert_eq!(shelf.actions().len(), 1);
}

/// A large response of another server is passed on: its server has written it, only this one knows that it is under way.
#[test]
fn what_is_passed_on_is_announced_until_it_is_written() {
    let mut shelf = Shelf::new();
    let response = undelivered(
        &request(1, "0.3"),
        &Status::new(Code::Unavailable, "as large as can be"),
    );
    let passage = shelf
        .records
        .begin_relay(&response, ConnId::from_number(5), Duration::ZERO);
    let passage = passage.expect("there is room");
    let told = |actions: Vec<(u64, RecordAction)>| -> Vec<u64> {
        let tells = |action: &RecordAction| match action {
            RecordAction::Announce {
                conn,
                reply_to: ReplyTo::Relay,
                pong,
                ..
            } if *conn == ConnId::from_number(5) => {
                let unknown = pong.progress.is_none() && pong.announced;
                assert!(unknown && pong.writing && pong.token.is_some());
                pong.request == at("0.3")
            }
            _ => false,
        };
        let tells = actions.iter().filter(|(_, action)| tells(action));
        tells.map(|(time, _)| *time).collect()
    };
    assert_eq!(told(shelf.until(250)), [100, 200], "it waits for credit");
    let output = OutputMark {
        conn: HOME,
        mark: 7,
    };
    shelf.records.relayed(passage, Some(output));
    shelf.records.written(HOME, 6);
    assert_eq!(told(shelf.until(350)), [300], "it is being written");
    shelf.records.written(HOME, 7);
    assert!(told(shelf.until(1000)).is_empty());
    // What is given up, and what goes down with its connection, is not announced any more.
    let now = shelf.time();
    let one = shelf
        .records
        .begin_relay(&response, ConnId::from_number(5), now);
    let two = shelf
        .records
        .begin_relay(&response, ConnId::from_number(5), now);
    shelf.records.relayed(one.expect("there is room"), None);
    let output = OutputMark {
        conn: HOME,
        mark: 8,
    };
    shelf
        .records
        .relayed(two.expect("there is room"), Some(output));
    assert_eq!(told(shelf.until(1150)), [1100]);
    let now = shelf.time();
    shelf.records.conn_ended(HOME, now);
    assert!(told(shelf.until(5000)).is_empty());
    assert_eq!(shelf.records.next_timeout(), None);
    // Its call is over: the initiator answers the news with an abort.
    let now = shelf.time();
    shelf
        .records
        .begin_relay(&response, ConnId::from_number(5), now);
    assert_eq!(told(shelf.until(5100)), [5100]);
    shelf.ask(abort(1, "0.3"));
    assert!(told(shelf.until(10_000)).is_empty());
}

/// Rule 26: a response is sent again over the connection that asks, if it went out on another one; not if it is on its way.
#[test]
fn missing_responses_are_sent_again() {
    let mut shelf = Shelf::new();
    let mut handled = shelf.accept(request(1, "0"));
    let sent = handled
        .server
        .reply("one".into())
        .into_iter()
        .chain(handled.server.flush());
    let sent: Vec<_> = sent
        .chain(handled.server.respond("two".into(), None))
        .collect();
    shelf.release(handled.ticket, sent, 1);
    let missing = |indexes: &[u32]| Ping {
        missing: indexes.to_vec(),
        ..ping(1, "0")
    };
    let (_, actions) = shelf.ask(missing(&[0, 1]));
    assert!(
        actions.is_empty(),
        "they are on their way on this connection"
    );
    shelf.records.conn_ended(HOME, Duration::ZERO);
    shelf.actions();
    shelf.records.conn_opened(ConnId::from_number(2), node(1));
    let (pong, actions) = shelf.ask_over(missing(&[0, 1, 2, 77]), origin(2, node(1)));
    assert_eq!(pong.progress.expect("it is known").lost, []);
    let again: Vec<_> = actions
        .iter()
        .map(|action| match action {
            RecordAction::Resend { conn, response, .. } if *conn == ConnId::from_number(2) => (
                response.index,
                response.last,
                &response.payload[..],
                response.request,
            ),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(
        again,
        [
            (0, false, &b"one"[..], at("0")),
            (1, true, &b"two"[..], at("0"))
        ]
    );
    let (_, actions) = shelf.ask_over(missing(&[0]), origin(2, node(1)));
    assert!(
        actions.is_empty(),
        "now it is on its way on that connection"
    );
}

/// What is still being written will arrive: it is not sent again, over whatever connection it is asked for.
#[test]
fn what_is_still_being_written_is_not_sent_again() {
    let mut shelf = Shelf::new();
    let handled = shelf.answer(request(1, "0"), 9);
    shelf.records.conn_opened(ConnId::from_number(2), node(1));
    shelf.records.conn_opened(ConnId::from_number(3), node(1));
    let missing = Ping {
        missing: vec![0],
        ..ping(1, "0")
    };
    let (pong, actions) = shelf.ask_over(missing.clone(), origin(2, node(1)));
    assert!(pong.writing && actions.is_empty(), "{actions:?}");
    shelf.records.written(HOME, 9);
    let (_, actions) = shelf.ask_over(missing.clone(), origin(2, node(1)));
    assert_eq!(actions.len(), 1, "now it is missing");
    // The same holds for what is sent again, while it waits and while it is written.
    let (pong, actions) = shelf.ask_over(missing.clone(), origin(3, node(1)));
    assert!(pong.writing && actions.is_empty(), "{actions:?}");
    let output = OutputMark {
        conn: ConnId::from_number(2),
        mark: 5,
    };
    shelf
        .records
        .placed(handled.ticket, ReleasedMessage::Response(0), output);
    let (pong, actions) = shelf.ask_over(missing.clone(), origin(3, node(1)));
    assert!(pong.writing && actions.is_empty(), "{actions:?}");
    shelf
        .records
        .conn_ended(ConnId::from_number(2), Duration::ZERO);
    shelf.actions();
    let (_, actions) = shelf.ask_over(missing, origin(3, node(1)));
    assert_eq!(actions.len(), 1, "it went down with that connection");
}

/// Responses of one request that go out on two connections are lost with their own only.
#[test]
fn each_response_is_lost_with_its_own_connection() {
    let mut shelf = Shelf::with(wallaby_proto::call::records::RecordLimits {
        kept_bytes: 0,
        ..limits()
    });
    let other = ConnId::from_number(2);
    shelf.records.conn_opened(other, node(1));
    let mut handled = shelf.accept(request(1, "0"));
    for conn in [HOME, other] {
        handled.server.reply("answer".into());
        let Some(Outbound::Response(response)) = handled.server.flush() else {
            panic!("it was held back")
        };
        let output = Some(OutputMark { conn, mark: 1 });
        let now = shelf.time();
        (shelf.records).response_released(handled.ticket, &response, output, now);
    }
    let missing = Ping {
        missing: vec![0, 1],
        ..ping(1, "0")
    };
    shelf.records.conn_ended(HOME, Duration::ZERO);
    shelf.actions();
    let (pong, _) = shelf.ask_over(missing.clone(), origin(2, node(1)));
    assert_eq!(pong.progress.expect("it is known").lost, [0]);
    shelf.records.conn_ended(other, Duration::ZERO);
    shelf.records.conn_opened(ConnId::from_number(3), node(1));
    shelf.actions();
    let (pong, _) = shelf.ask_over(missing, origin(3, node(1)));
    assert_eq!(pong.progress.expect("it is known").lost, [0, 1]);
}

/// Rules 25 and 26: what is not kept and went out on a connection that has ended is lost, and the pong says so.
#[test]
fn what_is_not_kept_is_told_to_be_lost() {
    let mut shelf = Shelf::with(wallaby_proto::call::records::RecordLimits {
        kept_bytes: 0,
        ..limits()
    });
    shelf.answer(request(1, "0"), 1);
    let missing = Ping {
        missing: vec![0],
        ..ping(1, "0")
    };
    shelf.records.conn_opened(ConnId::from_number(2), node(1));
    let (pong, _) = shelf.ask_over(missing.clone(), origin(2, node(1)));
    assert_eq!(
        pong.progress.expect("it is known").lost,
        [],
        "that connection may yet be read"
    );
    shelf.records.conn_ended(HOME, Duration::ZERO);
    shelf.actions();
    let (pong, _) = shelf.ask_over(missing, origin(2, node(1)));
    assert_eq!(pong.progress.expect("it is known").lost, [0]);
}

#[test]
fn a_response_that_was_given_up_is_lost_or_sent_again() {
    for (kept_bytes, lost) in [(0, vec![0]), (1 << 20, vec![])] {
        let limits = wallaby_proto::call::records::RecordLimits {
            kept_bytes,
            ..limits()
        };
        let mut shelf = Shelf::with(limits);
        let handled = shelf.answer(request(1, "0"), 1);
        shelf
            .records
            .dropped(handled.ticket, ReleasedMessage::Response(0));
        let (pong, actions) = shelf.ask(Ping {
            missing: vec![0],
            ..ping(1, "0")
        });
        assert_eq!(pong.progress.expect("it is known").lost, lost);
        assert_eq!(actions.len(), usize::from(lost.is_empty()));
    }
}

/// A connection may take less than the one that a response went out on: what does not fit is not promised again and again.
#[test]
fn what_its_connection_does_not_take_is_lost_or_goes_another_way() {
    let mut shelf = Shelf::new();
    let handled = shelf.answer(request(1, "0"), 1);
    shelf.records.written(HOME, 1);
    shelf.records.conn_opened(ConnId::from_number(2), node(1));
    let missing = Ping {
        missing: vec![0],
        ..ping(1, "0")
    };
    let (_, actions) = shelf.ask_over(missing.clone(), origin(2, node(1)));
    assert_eq!(actions.len(), 1, "it is missing, and kept");
    shelf.records.too_large(handled.ticket, 0);
    let (pong, actions) = shelf.ask_over(missing.clone(), origin(2, node(1)));
    assert!(!pong.writing && actions.is_empty(), "{actions:?}");
    let lost = pong.progress.expect("it is known").lost;
    assert_eq!(lost, [], "the first copy may yet be read");
    shelf.records.conn_ended(HOME, Duration::ZERO);
    shelf.actions();
    let (pong, actions) = shelf.ask_over(missing.clone(), origin(2, node(1)));
    assert!(!pong.writing && actions.is_empty(), "{actions:?}");
    assert_eq!(pong.progress.expect("it is known").lost, [0]);
    // Another connection may take it.
    shelf.records.conn_opened(ConnId::from_number(3), node(1));
    let (pong, actions) = shelf.ask_over(missing, origin(3, node(1)));
    assert_eq!(actions.len(), 1, "it is tried there");
    assert_eq!(pong.progress.expect("it is known").lost, []);
}

/// What could not be sent again does not make an earlier copy lost that may still be read.
#[test]
fn a_response_that_was_not_sent_again_may_still_arrive() {
    let mut shelf = Shelf::with(wallaby_proto::call::records::RecordLimits {
        kept_bytes: 512,
        ..limits()
    });
    let handled = shelf.answer(request(1, "0"), 1);
    shelf.records.written(HOME, 1);
    shelf.records.conn_opened(ConnId::from_number(2), node(1));
    let missing = Ping {
        missing: vec![0],
        ..ping(1, "0")
    };
    let (_, actions) = shelf.ask_over(missing.clone(), origin(2, node(1)));
    assert_eq!(actions.len(), 1, "it is missing, and kept");
    shelf
        .records
        .dropped(handled.ticket, ReleasedMessage::Response(0));
    shelf.answer(request(2, "0"), 0); // there is room for one response only
    shelf.answer(request(3, "0"), 0);
    let (pong, actions) = shelf.ask_over(missing.clone(), origin(2, node(1)));
    assert!(actions.is_empty(), "{actions:?}");
    assert_eq!(pong.progress.expect("it is known").lost, []);
    shelf.records.conn_ended(HOME, Duration::ZERO);
    shelf.actions();
    let (pong, _) = shelf.ask_over(missing, origin(2, node(1)));
    assert_eq!(pong.progress.expect("it is known").lost, [0]);
}

/// A status went out in place of a response that its initiator does not take: if it is lost, it is what comes again.
#[test]
fn a_status_in_place_of_a_response_is_what_is_sent_again() {
    for len in [0, 100, 100_000] {
        let mut shelf = Shelf::new();
        let mut handled = shelf.accept(request(1, "0"));
        let sent = handled.server.respond(vec![7; len].into(), None);
        let released = match &sent.last {
            Outbound::Response(response) => Some(response.clone()),
            _ => None,
        };
        shelf.release(handled.ticket, sent, 1);
        let status = Response {
            status: true,
            payload: Status::new(Code::ResourceExhausted, "too large").to_payload(),
            ..released.expect("it answers")
        };
        shelf.records.response_replaced(handled.ticket, &status);
        shelf.records.conn_ended(HOME, Duration::ZERO);
        shelf.actions();
        shelf.records.conn_opened(ConnId::from_number(2), node(1));
        let missing = Ping {
            missing: vec![0],
            ..ping(1, "0")
        };
        let (_, actions) = shelf.ask_over(missing, origin(2, node(1)));
        let [RecordAction::Resend { response, .. }] = &actions[..] else {
            panic!("{actions:?}");
        };
        let again = (response.status, response.last, &response.payload);
        assert_eq!(again, (true, true, &status.payload));
        shelf.until(10_000);
        assert_eq!(shelf.records.remembered(), Remembered::default());
    }
}

/// Rule 34: an abort stops all requests of the call on this server; what they still wanted to delegate is refused.
#[test]
fn an_abort_freezes_every_request_of_its_call() {
    let mut shelf = Shelf::new();
    let mut one = shelf.accept(request(1, "0.0"));
    shelf.accept(request(1, "0.1"));
    shelf.answer(request(1, "0.2"), 0);
    shelf.accept(request(2, "0"));
    one.server.delegate(2, Bytes::new());
    let (pong, actions) = shelf.ask(abort(1, "0.2"));
    assert!(pong.progress.expect("it is known").aborted);
    assert_eq!(stopped(&actions), [at("0.0"), at("0.1")]);
    let Some(Outbound::Request(delegated)) = one.server.flush() else {
        panic!("it was held back")
    };
    assert!(!shelf.records.may_delegate(one.ticket));
    assert_eq!(shelf.delegate(one.ticket, &delegated), Err(Frozen::Aborted));
    let (_, actions) = shelf.ask(abort(1, "0.0"));
    assert!(actions.is_empty(), "they were told");
    // Rule 11: the end is a status; then the request has ended.
    let status = Status::new(Code::Cancelled, "aborted");
    let sent = one.server.fail(&status, None);
    shelf.release(one.ticket, [sent], 0);
    let told = shelf.known(1, "0.0");
    assert!(told.finished && told.aborted && told.count == 1);
    assert!(matches!(
        shelf.admit(&request(1, "0.3")),
        Judgement::Refused(_)
    ));
}

/// Rule 37: responses of an aborted call are of no use any more, and their room is free at once.
#[test]
fn an_abort_frees_what_was_kept() {
    let mut shelf = Shelf::new();
    shelf.answer(request(1, "0.0"), 1);
    let mut running = shelf.accept(request(1, "0.1"));
    shelf.ask(abort(1, "0.0"));
    assert_eq!(shelf.records.remembered().kept_bytes, 0);
    let sent = running
        .server
        .fail(&Status::new(Code::Cancelled, "aborted"), None);
    shelf.release(running.ticket, [sent], 2);
    assert_eq!(shelf.records.remembered().kept_bytes, 0);
}

/// The time that a request has which states none.
const DEADLINE: Duration = Duration::from_secs(60);

/// A delegation waits for credit for so long that its call is over: where it would go nobody may remember that.
#[test]
fn delegations_of_calls_that_are_over_are_not_sent() {
    for over in ["aborted", "forgotten"] {
        let mut shelf = Shelf::new();
        let mut handled = shelf.accept(request(1, "0"));
        let sent = handled.server.forward(2, Bytes::new(), None);
        for message in sent {
            let Outbound::Request(delegated) = message else {
                panic!("a delegation")
            };
            let now = shelf.time();
            let released =
                shelf
                    .records
                    .delegation_released(handled.ticket, &delegated, child(2), None, now);
            assert_eq!(released, Ok(()));
        }
        let left = |shelf: &Shelf| shelf.records.time_left(handled.ticket, shelf.time());
        assert_eq!(left(&shelf), Some(DEADLINE));
        match over {
            "aborted" => drop(shelf.ask(abort(1, "0"))),
            _ => drop(shelf.until(5000)),
        }
        assert_eq!(left(&shelf), None, "{over}");
    }
}

/// An abort overtakes its request: the request is refused, and the abort answered "unknown" (rule 36).
#[test]
fn an_abort_that_overtakes_its_request_is_remembered() {
    let mut shelf = Shelf::new();
    let (pong, _) = shelf.ask(abort(1, "0"));
    assert_eq!(pong.progress, None);
    let admission = shelf.admit(&request(1, "0"));
    let Judgement::Refused(status) = admission else {
        panic!("{admission:?}")
    };
    assert_eq!(status.code(), Code::Cancelled);
    assert_eq!(shelf.ping(1, "0").progress, None);
    shelf.until(3000);
    assert_eq!(shelf.records.remembered(), Remembered::default());
}

/// A mark is no reason to forget what was handled, and takes no more than half of the room.
#[test]
fn marks_of_aborted_calls_push_nothing_out() {
    let mut shelf = Shelf::with(wallaby_proto::call::records::RecordLimits {
        requests: 4,
        initiators: 2,
        ..crate::liveness::shelf::limits()
    });
    shelf.answer(request(1, "0"), 0);
    for sequence in 2..10 {
        shelf.ask(abort(sequence, "0"));
    }
    assert_eq!(shelf.records.remembered().requests, 2);
    assert!(shelf.ping(1, "0").progress.is_some());
    assert!(!shelf.ping(1, "0").evicted);
    // Nor do those of others push out an initiator.
    let mut other = abort(1, "0");
    other.call.initiator = node(2);
    shelf.ask_over(other.clone(), origin(2, node(2)));
    other.call.initiator = node(3);
    shelf.ask_over(other, origin(3, node(3)));
    assert_eq!(shelf.records.remembered().initiators, 1);
}

/// Who does not show the token speaks of another call.
#[test]
fn a_wrong_token_does_no_harm() {
    let mut shelf = Shelf::new();
    shelf.accept(request(1, "0"));
    let forged = Ping {
        token: other_token(request(1, "0")).token,
        ..abort(1, "0")
    };
    let (pong, actions) = shelf.ask(forged);
    assert!(pong.progress.is_none() && actions.is_empty());
    assert!(!shelf.known(1, "0").aborted);
}

/// Rule 29: requests below the oldest live call are not handled, ended ones forgotten, running ones stopped.
#[test]
fn calls_below_the_oldest_live_one_are_over() {
    let mut shelf = Shelf::new();
    shelf.answer(request(1, "0"), 0);
    let running = shelf.accept(request(2, "0"));
    shelf.answer(request(3, "0"), 0);
    shelf.accept(Request {
        oldest: 3,
        ..request(5, "0")
    });
    let actions = shelf.actions();
    assert!(matches!(
        actions[..],
        [RecordAction::Stop { ticket, reason: StopReason::BelowOldest, .. }] if ticket == running.ticket
    ));
    assert_eq!(shelf.ping(1, "0").progress, None);
    assert!(
        shelf.ping(3, "0").progress.is_some(),
        "it is the oldest live one itself"
    );
    let Judgement::Refused(status) = shelf.admit(&request(2, "1")) else {
        panic!("it is over")
    };
    assert_eq!(status.code(), Code::Cancelled);
    assert_eq!(shelf.records.oldest(running.ticket), Some(2));
}

/// Calls come nearly in order; the watermark finds all of them.
#[test]
fn calls_that_come_out_of_order_are_forgotten_too() {
    let mut shelf = Shelf::new();
    for sequence in [5, 2, 8, 1, 7, 3, 6, 4] {
        shelf.answer(request(sequence, "0"), 0);
    }
    shelf.accept(Request {
        oldest: 7,
        ..request(9, "0")
    });
    assert_eq!(shelf.records.remembered().calls, 3);
}

/// Rule 30: the gc timeout counts from the end of the request and restarts with each ping; what runs stays.
#[test]
fn ended_requests_are_forgotten_after_the_gc_timeout() {
    let mut shelf = Shelf::new();
    shelf.now = 900;
    let mut slow = shelf.accept(request(1, "0"));
    shelf.now = 1000;
    shelf.answer(request(2, "0"), 0);
    shelf.until(1500);
    shelf.ping(1, "0");
    let sent = slow.server.finish(None);
    shelf.release(slow.ticket, [sent], 0);
    shelf.until(2000);
    shelf.ping(2, "0");
    shelf.until(2599);
    assert!(shelf.records.remembered().requests == 2);
    shelf.until(2600);
    assert_eq!(shelf.records.remembered().requests, 1, "1500 + 1100");
    shelf.until(3099);
    assert_eq!(shelf.records.remembered().requests, 1);
    shelf.until(3100);
    assert_eq!(shelf.records.remembered().requests, 0, "2000 + 1100");
    shelf.until(10_000);
    assert_eq!(shelf.records.remembered(), Remembered::default());
}

/// A call that asks for longer times is remembered longer.
#[test]
fn the_gc_timeout_comes_from_the_call() {
    let mut shelf = Shelf::new();
    let slow = with_options(request(1, "0"), |options| {
        options.ping = Some(wallaby_proto::wire::PingSettings {
            period: Duration::from_secs(1),
            timeout: Duration::from_secs(5),
        });
    });
    shelf.answer(slow, 0);
    shelf.until(10_999);
    assert!(shelf.ping(1, "0").progress.is_some());
}

/// Rule 31: nobody asks about a running request for the gc timeout: its initiator is dead.
#[test]
fn requests_of_dead_initiators_are_stopped() {
    let mut shelf = Shelf::new();
    shelf.accept(request(1, "0"));
    shelf.until(600);
    shelf.ping(1, "0");
    assert!(stops(shelf.until(1699)).is_empty());
    assert_eq!(stops(shelf.until(5000)), [1700]);
}

/// When a request was stopped as its initiator is silent.
fn stops(actions: Vec<(u64, RecordAction)>) -> Vec<u64> {
    let stop = |action: &RecordAction| {
        matches!(
            action,
            RecordAction::Stop {
                reason: StopReason::InitiatorSilent,
                ..
            }
        )
    };
    actions
        .into_iter()
        .filter(|(_, action)| stop(action))
        .map(|(time, _)| time)
        .collect()
}

/// A call may state a timeout of minutes: its handlers do not outlive its initiator by more than their server allows. One that
/// asks is believed, though it asks as seldom as may be.
#[test]
fn a_timeout_of_minutes_keeps_no_handler_of_a_dead_initiator() {
    let states = |period, timeout| {
        with_options(request(1, "0"), move |options| {
            options.ping = Some(wallaby_proto::wire::PingSettings { period, timeout });
        })
    };
    let (second, ages) = (Duration::from_secs(1), Duration::MAX);
    let cases = [
        // What is stated, and for how long such an initiator is believed: 30 s, five periods at least, the gc timeout at most.
        (second, 300 * second, 30_000),
        (ages, ages, 30_000),
        (second, 5 * second, 11_000),
    ];
    for (period, timeout, belief) in cases {
        let mut shelf = Shelf::with(limits());
        shelf.accept(states(period, timeout));
        for asked in [5_000, 10_000, 15_000] {
            assert_eq!(stops(shelf.until(asked)), []);
            shelf.ping(1, "0");
        }
        assert_eq!(stops(shelf.until(15_000 + belief - 1)), []);
        assert_eq!(stops(shelf.until(100_000)), [15_000 + belief]);
    }
    let mut shelf = Shelf::with(RecordLimits {
        patience: Duration::ZERO,
        ..limits()
    });
    shelf.accept(states(second, 300 * second));
    assert_eq!(stops(shelf.until(100_000)), [5_000]);
}

/// Rule 19: a delegation that certainly was not delivered is answered by who wanted to send it, and found there.
#[test]
fn a_delegator_stands_in_for_a_request_that_was_not_delivered() {
    let mut shelf = Shelf::new();
    let mut handled = shelf.accept(request(1, "0"));
    let sent: Vec<_> = handled
        .server
        .delegate(2, Bytes::new())
        .into_iter()
        .chain(handled.server.delegate(3, Bytes::new()))
        .chain([handled.server.finish(None)])
        .collect();
    let last = sent.len() - 1;
    let mut lost = None;
    for (number, message) in sent.into_iter().enumerate() {
        let Outbound::Request(delegated) = message else {
            panic!("a delegation")
        };
        shelf
            .delegate(handled.ticket, &delegated)
            .expect("not aborted");
        if number == last {
            lost = Some(Request {
                id: delegated.id,
                manifest: delegated.manifest,
                ..handled.request.clone()
            });
        }
    }
    let lost = lost.expect("the last one");
    let own = Child {
        server: address(1),
        node: Some(node(10)),
    };
    let now = shelf.time();
    let (ticket, _) = shelf
        .records
        .delegation_undelivered(handled.ticket, (&lost, false), own.clone(), now)
        .expect("there is room");
    let response = undelivered(&lost, &Status::new(Code::Unavailable, "nobody there"));
    shelf.release(ticket, [Outbound::Response(response)], 1);
    let told = shelf.known(1, "0");
    assert_eq!(told.children, [child(2), own]);
    let told = shelf.known(1, "0.1");
    assert!(told.finished && told.count == 1, "{told:?}");
}

/// A delegation may have had to wait for its connection: whose incarnation took it is told as soon as that is known, of children
/// as of a continuation.
#[test]
fn the_incarnation_that_took_a_delegation_is_told() {
    for continues in [true, false] {
        let mut shelf = Shelf::new();
        let mut handled = shelf.accept(request(1, "0"));
        let delegations = if continues { 1 } else { 2 };
        let mut sent: Vec<_> = (0..delegations)
            .filter_map(|_| handled.server.delegate(2, Bytes::new()))
            .collect();
        sent.push(handled.server.finish(None));
        let now = shelf.time();
        let mut taken = Vec::new();
        for outbound in sent {
            let Outbound::Request(delegated) = outbound else {
                continue;
            };
            let to = Child {
                node: None,
                ..child(2)
            };
            (shelf.records)
                .delegation_released(handled.ticket, &delegated, to, None, now)
                .expect("it is not aborted");
            taken.push(delegated.id);
        }
        let id = taken.pop().expect("something was delegated");
        assert_eq!(id.path == at("0").path, continues);
        shelf.records.delegation_taken(handled.ticket, id, node(20));
        let told = shelf.known(1, "0");
        let nodes: Vec<_> = (told.children.iter().chain(&told.continuation))
            .map(|child| child.node)
            .collect();
        match continues {
            true => assert_eq!(nodes, [Some(node(20))]),
            false => assert_eq!(nodes, [None, Some(node(20))]),
        }
    }
}
