//! Statuses of requests that are not remembered: that one is on its way, nobody knows but who sends it.

use std::time::Duration;

use wallaby_proto::Code;
use wallaby_proto::call::records::{
    ConnId, Frozen, Judgement, OutputMark, RecordAction, RecordLimits, RefusedRequest, RelayId,
};
use wallaby_proto::call::server::Outbound;
use wallaby_proto::wire::{Budgets, PingSettings, Pong, ReplyTo, Request};

use crate::liveness::desk::{Desk, address, at, node, token};
use crate::liveness::shelf::{Shelf, abort, limits, origin, ping, request, with_options};

/// The connection to a relay, by which answers go back to the initiator.
const RELAY: u64 = 5;

/// A server that remembers one request, and runs it.
fn full(limits: RecordLimits) -> Shelf {
    let mut shelf = Shelf::with(RecordLimits {
        requests: 1,
        ..limits
    });
    shelf
        .records
        .conn_opened(ConnId::from_number(RELAY), node(10 * RELAY));
    shelf.accept(request(7, "1"));
    shelf
}

/// It came over the relay.
fn refuse(shelf: &mut Shelf, request: &Request) -> RefusedRequest {
    let now = shelf.time();
    let came = origin(RELAY, node(10 * RELAY));
    let admission = shelf.records.admit(request, came, now);
    assert!(matches!(admission, Judgement::Refused(_)), "{admission:?}");
    RefusedRequest {
        call: request.call,
        token: request.token,
        request: request.id,
        ping: request.options.as_ref().and_then(|options| options.ping),
        reply_to: Some(request.reply_to.clone()),
        conn: came.conn,
    }
}

fn waits(shelf: &mut Shelf, request: &Request) -> RelayId {
    let refused = refuse(shelf, request);
    let now = shelf.time();
    let passage = shelf.records.refused(&refused, now);
    passage.expect("there is room")
}

fn by_relay(mark: u64) -> Option<OutputMark> {
    Some(OutputMark {
        conn: ConnId::from_number(RELAY),
        mark,
    })
}

/// What the initiator gets over the relay when it asks.
fn asked(shelf: &mut Shelf, id: &str) -> Pong {
    let (pong, others) = shelf.ask_over(ping(7, id), origin(RELAY, node(10 * RELAY)));
    assert_eq!(others, []);
    pong
}

fn is_on_its_way(pong: &Pong) -> bool {
    assert_eq!(pong.progress, None);
    assert_eq!(pong.announced, pong.writing);
    assert_eq!(pong.token, Some(token()));
    pong.writing
}

/// When it is said unasked, and where, that the status of this request is on its way.
fn told(actions: Vec<(u64, RecordAction)>, id: &str, to: &ReplyTo) -> Vec<u64> {
    let tells = |action: &RecordAction| match action {
        RecordAction::Announce {
            pong,
            reply_to,
            conn,
            ..
        } if pong.request == at(id) => {
            assert_eq!((reply_to, *conn), (to, ConnId::from_number(RELAY)));
            is_on_its_way(pong)
        }
        _ => false,
    };
    let tells = actions.iter().filter(|(_, action)| tells(action));
    tells.map(|(time, _)| *time).collect()
}

#[test]
fn the_status_of_a_refused_request_is_told_of_until_it_is_written() {
    let mut shelf = full(limits());
    let request = Request {
        reply_to: ReplyTo::At(address(1)),
        ..with_options(request(7, "0"), |options| {
            options.ping = Some(PingSettings {
                period: Duration::from_millis(60),
                timeout: Duration::from_millis(380),
            });
        })
    };
    let passage = waits(&mut shelf, &request);
    assert!(is_on_its_way(&asked(&mut shelf, "0")));
    assert!(!is_on_its_way(&asked(&mut shelf, "0.1")), "another request");
    let until = |shelf: &mut Shelf, time| told(shelf.until(time), "0", &request.reply_to);
    assert_eq!(until(&mut shelf, 130), [60, 120], "it waits for credit");
    shelf.records.relayed(passage, by_relay(7));
    shelf.records.written(ConnId::from_number(RELAY), 6);
    assert!(is_on_its_way(&asked(&mut shelf, "0")));
    assert_eq!(until(&mut shelf, 190), [180], "it is being written");
    shelf.records.written(ConnId::from_number(RELAY), 7);
    assert!(!is_on_its_way(&asked(&mut shelf, "0")), "it has left");
    assert!(until(&mut shelf, 1000).is_empty());
}

#[test]
fn a_status_that_will_not_be_sent_is_not_told_of() {
    type Ends = fn(&mut Shelf, RelayId);
    let cases: [(&str, Ends); 3] = [
        ("given up", |shelf, passage| {
            shelf.records.relayed(passage, None);
        }),
        ("its connection has ended", |shelf, passage| {
            shelf.records.relayed(passage, by_relay(7));
            let now = shelf.time();
            shelf.records.conn_ended(ConnId::from_number(RELAY), now);
        }),
        ("its call was aborted", |shelf, _| {
            drop(shelf.ask_over(abort(7, "0"), origin(RELAY, node(10 * RELAY))));
        }),
    ];
    for (case, ends) in cases {
        let mut shelf = full(limits());
        let passage = waits(&mut shelf, &request(7, "0"));
        assert!(is_on_its_way(&asked(&mut shelf, "0")), "{case}");
        ends(&mut shelf, passage);
        assert!(!is_on_its_way(&asked(&mut shelf, "0")), "{case}");
        let later = shelf.until(400);
        assert!(!later.iter().any(of_refused), "{case}: {later:?}");
    }
}

fn of_refused((_, action): &(u64, RecordAction)) -> bool {
    matches!(action, RecordAction::Announce { pong, .. } if pong.request == at("0"))
}

/// Nothing is directed to where a stranger says that answers go: it is told over its own connection.
#[test]
fn a_stranger_is_told_where_it_came_from() {
    let mut shelf = full(limits());
    let refused = RefusedRequest {
        reply_to: None,
        ..refuse(&mut shelf, &request(7, "0"))
    };
    let passage = shelf.records.refused(&refused, Duration::ZERO);
    let told = shelf.until(150);
    let pongs = told.iter().filter_map(|(time, action)| match action {
        RecordAction::Pong { conn, pong, .. } => Some((*time, *conn, is_on_its_way(pong))),
        _ => None,
    });
    assert_eq!(
        Vec::from_iter(pongs),
        [(100, ConnId::from_number(RELAY), true)]
    );
    assert!(!told.iter().any(of_refused));
    assert!(passage.is_some());
}

/// Who does not show the token of a call learns nothing of it, and ends nothing.
#[test]
fn a_wrong_token_finds_no_status() {
    let mut shelf = full(limits());
    waits(&mut shelf, &request(7, "0"));
    for abort in [false, true] {
        let mut ping = ping(7, "0");
        (ping.token, ping.abort) = (wallaby_proto::Token::new(1), abort);
        let (pong, _) = shelf.ask_over(ping, origin(9, node(9)));
        assert!(!pong.writing && pong.progress.is_none());
    }
    assert!(is_on_its_way(&asked(&mut shelf, "0")));
}

/// They share their limit with responses that are passed on, and leave nothing behind.
#[test]
fn statuses_that_are_told_of_are_limited() {
    let mut shelf = Shelf::with(RecordLimits {
        requests: 1,
        relays: 2,
        ..limits()
    });
    let handled = shelf.accept(request(7, "1"));
    let one = waits(&mut shelf, &request(7, "0"));
    let two = waits(&mut shelf, &request(7, "2"));
    let refused = refuse(&mut shelf, &request(7, "3"));
    let now = shelf.time();
    assert_eq!(shelf.records.refused(&refused, now), None);
    assert!(!is_on_its_way(&asked(&mut shelf, "3")));
    shelf.records.relayed(one, None);
    assert!(shelf.records.refused(&refused, now).is_some());
    shelf.records.relayed(two, by_relay(1));
    assert_eq!(shelf.records.remembered().requests, 1);
    drop(handled);
}

/// World 278,477 of the simulator: the status waits behind large answers for longer than the timeout. Its initiator asks, and
/// everything else that it asks for goes on.
#[test]
fn a_call_does_not_fail_while_the_status_of_a_refused_request_waits() {
    for is_told in [true, false] {
        let mut shelf = full(limits());
        let request = request(7, "0");
        let refused = refuse(&mut shelf, &request);
        let passage = is_told.then(|| shelf.records.refused(&refused, Duration::ZERO));
        let mut desk = Desk::new();
        let mut failed = None;
        for time in 1..30 {
            let told = asked(&mut shelf, "0");
            desk.hear(1, told);
            let wants = desk.until(100 + 100 * time);
            shelf.until(100 * time);
            failed = failed.or(wants.into_iter().find(|want| want.contains("failed")));
        }
        if let Some(passage) = passage {
            assert_eq!(failed, None);
            shelf.records.relayed(passage.expect("there is room"), None);
            desk.hear(1, asked(&mut shelf, "0"));
            failed = desk
                .until(6000)
                .into_iter()
                .find(|want| want.contains("failed"));
        }
        let failed = failed.expect("nobody knows of it");
        assert!(failed.contains("0 gave no sign of life"), "{failed}");
    }
}

/// What a request that came directly turns out to be.
fn admit(shelf: &mut Shelf, request: &Request) -> Judgement {
    let now = shelf.time();
    shelf.records.admit(request, origin(1, node(1)), now)
}

fn refused_with(admission: &Judgement) -> Option<Code> {
    match admission {
        Judgement::Refused(status) => Some(status.code()),
        _ => None,
    }
}

/// A request that arrives without time is not executed; one that runs when its time is over delegates no more, and what it
/// delegated and was not sent until then is not sent.
#[test]
fn nothing_begins_after_the_deadline() {
    let within = |time| Request {
        deadline: Some(time),
        ..request(1, "0")
    };
    let mut shelf = Shelf::new();
    let late = admit(&mut shelf, &within(Duration::ZERO));
    assert_eq!(refused_with(&late), Some(Code::DeadlineExceeded));
    let waited = |time| Request {
        waited: Duration::from_millis(20),
        ..within(Duration::from_millis(time))
    };
    let late = admit(&mut shelf, &waited(20));
    assert_eq!(refused_with(&late), Some(Code::DeadlineExceeded));
    assert_eq!(shelf.records.remembered().requests, 0);
    let mut handled = shelf.accept(waited(120));
    let mut sent = Vec::new();
    for _ in 0..3 {
        sent.extend(handled.server.delegate(2, "work".into()));
    }
    sent.push(handled.server.finish(None));
    let delegated: Vec<_> = sent
        .iter()
        .filter_map(|outbound| match outbound {
            Outbound::Request(delegated) => Some(delegated),
            _ => None,
        })
        .collect();
    shelf.now += 60;
    assert_eq!(shelf.delegate(handled.ticket, delegated[0]), Ok(()));
    let left = |shelf: &Shelf| shelf.records.time_left(handled.ticket, shelf.time());
    assert_eq!(left(&shelf), Some(Duration::from_millis(40)), "it waits");
    shelf.now += 39;
    assert_eq!(shelf.delegate(handled.ticket, delegated[1]), Ok(()));
    shelf.now += 1;
    let refused = shelf.delegate(handled.ticket, delegated[2]);
    assert_eq!(refused, Err(Frozen::Late));
    assert_eq!(left(&shelf), None, "what waits is not sent");
    let status = Frozen::Late.status();
    assert_eq!(status.code(), Code::DeadlineExceeded);
}

/// An initiator that neither counts nor stops gets as many requests of a call handled here as one may have that keeps to the
/// default. Budgets that are stated are split, and need no count.
#[test]
fn a_server_takes_so_many_requests_of_a_call() {
    let mut shelf = Shelf::with(RecordLimits {
        requests_of_call: 3,
        ..limits()
    });
    for place in 0..3 {
        shelf.accept(request(1, &place.to_string()));
    }
    let more = admit(&mut shelf, &request(1, "3"));
    assert_eq!(refused_with(&more), Some(Code::ResourceExhausted));
    let again = admit(&mut shelf, &request(1, "2"));
    assert_eq!(again, Judgement::Duplicate);
    shelf.accept(request(2, "0"));
    let stated = with_options(request(1, "4"), |options| {
        options.budgets = Some(Budgets::default());
    });
    shelf.accept(stated);
}

/// A peer that does not know a call's token has requests refused in the call's name, with tokens of its own, and takes no
/// statuses. The call's initiator is told of its own status, which is on its way.
#[test]
fn statuses_of_others_do_not_hide_one_that_is_on_its_way() {
    for others in [0, 63, 64] {
        let mut shelf = full(RecordLimits {
            relays: 4096,
            ..limits()
        });
        waits(&mut shelf, &request(7, "0"));
        for number in 0..others {
            let forged = RefusedRequest {
                token: wallaby_proto::Token::new(900 + number),
                conn: ConnId::from_number(66),
                reply_to: None,
                ..refuse(&mut shelf, &request(7, "0"))
            };
            let now = shelf.time();
            assert!(shelf.records.refused(&forged, now).is_some());
        }
        let pong = asked(&mut shelf, "0");
        assert!(is_on_its_way(&pong), "{others} others: {pong:?}");
    }
}
