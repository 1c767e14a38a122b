//! What the other end of a connection says of itself proves nothing: what it may free, stop, learn and be sent.

use std::time::Duration;

use wallaby_proto::call::records::{
    ConnId, Judgement, MessageOrigin, OutputMark, RecordAction, StopReason, Ticket,
};
use wallaby_proto::call::server::{Outbound, ServerHalf};
use wallaby_proto::wire::{Ping, ReplyTo, Request};
use wallaby_proto::{Code, Token};

use crate::liveness::desk::{node, token};
use crate::liveness::shelf::{
    HOME, Shelf, abort, home, origin, other_token, ping, request, stopped,
};

/// A connection of a server that passes on requests of node 1, and others.
const FRONT: ConnId = ConnId::from_number(5);

fn front() -> MessageOrigin {
    origin(FRONT.number(), node(5))
}

/// Somebody whose hello names the initiator's node id.
fn thief() -> MessageOrigin {
    origin(66, node(1))
}

fn shelf() -> Shelf {
    let mut shelf = Shelf::new();
    for origin in [front(), thief()] {
        shelf.records.conn_opened(origin.conn, origin.peer);
    }
    shelf
}

fn admit_over(shelf: &mut Shelf, request: &Request, origin: MessageOrigin) -> Judgement {
    shelf.records.admit(request, origin, shelf.time())
}

fn accept_over(shelf: &mut Shelf, request: &Request, origin: MessageOrigin) -> Ticket {
    match admit_over(shelf, request, origin) {
        Judgement::Accepted(ticket) => ticket,
        other => panic!("{other:?}"),
    }
}

fn oldest(oldest: u64, request: Request) -> Request {
    Request { oldest, ..request }
}

fn delegated(sequence: u64, id: &str) -> Request {
    Request {
        reply_to: ReplyTo::Relay,
        depth: 1,
        ..request(sequence, id)
    }
}

/// A stolen node id and a huge sequence: nothing of the initiator's is forgotten, stopped or refused.
#[test]
fn who_claims_to_be_the_initiator_stops_nothing_of_its() {
    let mut shelf = shelf();
    shelf.answer(request(1, "0"), 0);
    let running = shelf.accept(request(2, "0"));
    let huge = other_token(oldest(1 << 40, request(1 << 40, "0")));
    accept_over(&mut shelf, &huge, thief());
    assert_eq!(shelf.actions(), []);
    assert!(shelf.known(1, "0").finished);
    assert!(!shelf.known(2, "0").aborted);
    shelf.accept(request(3, "0"));
    assert_eq!(shelf.records.oldest(running.ticket), Some(1));
    // What came over its own connection it may stop.
    accept_over(
        &mut shelf,
        &other_token(oldest(1 << 41, request(1 << 41, "0"))),
        thief(),
    );
    assert!(matches!(
        shelf.actions()[..],
        [RecordAction::Stop { call, reason: StopReason::BelowOldest, .. }] if call.sequence == 1 << 40
    ));
}

/// A server that lies about the oldest live call frees what it brought itself, and no server behind this one believes it.
#[test]
fn who_delegates_frees_only_what_it_brought() {
    let mut shelf = shelf();
    shelf.answer(request(1, "0"), 0);
    accept_over(&mut shelf, &delegated(2, "0.0"), front());
    let ticket = accept_over(&mut shelf, &oldest(900, delegated(900, "0.0")), front());
    assert_eq!(shelf.actions(), [], "what it says stops nothing");
    assert!(shelf.known(1, "0").finished);
    shelf.accept(request(3, "0"));
    assert_eq!(
        shelf.records.oldest(ticket),
        Some(1),
        "as long as another connection brings calls that are older"
    );
}

/// A server that passes on requests of many initiators over one connection keeps this one's memory as small as if they came
/// themselves.
#[test]
fn what_a_front_server_brought_is_freed_by_what_it_says() {
    let mut shelf = shelf();
    let initiators = 100;
    for sequence in 1..=20 {
        for initiator in 0..initiators {
            let mut request = oldest(sequence, delegated(sequence, "0.0"));
            request.call.initiator = node(100 + initiator);
            let ticket = accept_over(&mut shelf, &request, front());
            let mut server = wallaby_proto::call::server::ServerHalf::<u64>::new(&mut request);
            let sent = server.respond("answer".into(), None);
            shelf.release(ticket, sent, 0);
        }
    }
    let remembered = shelf.records.remembered();
    assert_eq!(remembered.requests as u64, initiators, "one of each");
    assert_eq!(remembered.calls as u64, initiators);
}

/// However many connections say that they are the same initiator's, each frees what came over it; beyond sixteen nobody does,
/// and what came is forgotten in time.
#[test]
fn many_connections_of_one_initiator_are_told_apart() {
    let mut shelf = shelf();
    for conn in 100..140 {
        let from = origin(conn, node(1));
        shelf.records.conn_opened(from.conn, node(1));
        accept_over(&mut shelf, &request(conn, "0"), from);
    }
    for conn in 100..140 {
        let from = origin(conn, node(1));
        let next = oldest(1000 + conn, request(1000 + conn, "0"));
        accept_over(&mut shelf, &next, from);
        let stopped = stopped(&shelf.actions());
        assert_eq!(stopped.len(), usize::from(conn < 115), "{conn}");
    }
    assert_eq!(shelf.records.remembered().calls, 80);
}

/// Sixteen strangers say that they are the initiator, too. When its own connection ends, what it may not have got is announced
/// all the same, also if one of the strangers has left before its last request.
#[test]
fn however_many_claim_a_node_what_its_connection_leaves_open_is_announced() {
    for one_leaves in [false, true] {
        let mut shelf = shelf();
        for conn in 100..116 {
            let from = origin(conn, node(1));
            shelf.records.conn_opened(from.conn, node(1));
            let ticket = accept_over(&mut shelf, &request(conn, "0"), from);
            let mut server = ServerHalf::<u64>::new(&mut request(conn, "0"));
            let sent = server.respond("answer".into(), None).into_iter();
            let output = OutputMark {
                conn: from.conn,
                mark: 0,
            };
            for message in sent.filter(|_| conn == 100 && one_leaves) {
                if let Outbound::Response(response) = message {
                    let now = shelf.time();
                    let records = &mut shelf.records;
                    records.response_released(ticket, &response, Some(output), now);
                }
            }
        }
        let mut handled = shelf.accept(request(1, "0"));
        let mut sent = Vec::from_iter(handled.server.reply("answer".into()));
        sent.extend(handled.server.flush());
        shelf.release(handled.ticket, sent, 7);
        if one_leaves {
            for _ in 0..40 {
                shelf.until(shelf.now + 100);
                shelf.ping(1, "0");
            }
            assert!(shelf.records.remembered().calls < 17);
            shelf.accept(request(200, "0"));
        }
        shelf.actions();
        let now = shelf.time();
        shelf.records.conn_ended(HOME, now);
        let announced = shelf
            .actions()
            .into_iter()
            .filter_map(|action| match action {
                RecordAction::Announce { pong, .. } => Some(pong.call.sequence),
                _ => None,
            });
        assert_eq!(Vec::from_iter(announced), [1], "{one_leaves}");
    }
}

/// Only where its requests came is a call below the oldest one refused, and that is told.
#[test]
fn what_is_refused_as_over_is_refused_only_there() {
    let mut shelf = shelf();
    accept_over(&mut shelf, &oldest(9, request(9, "0")), thief());
    let Judgement::Refused(status) = admit_over(&mut shelf, &request(3, "0"), thief()) else {
        panic!("it is over, as was said here")
    };
    assert_eq!(status.code(), Code::Cancelled);
    shelf.accept(request(3, "0"));
    accept_over(&mut shelf, &delegated(4, "0.0"), front());
}

/// Other servers know the token, too: kept answers go to the initiator and to who brought the request.
#[test]
fn kept_answers_are_not_for_other_servers_of_the_call() {
    let mut shelf = shelf();
    shelf.answer(request(1, "0"), 1);
    shelf.records.conn_ended(HOME, Duration::ZERO);
    shelf.actions();
    let missing = Ping {
        missing: vec![0],
        ..ping(1, "0")
    };
    let (pong, others) = shelf.ask_over(missing.clone(), front());
    assert_eq!(others, []);
    let lost = pong.progress.expect("it is known").lost;
    assert_eq!(lost, [0_u32; 0], "nor is it said to be lost");
    let again = origin(7, node(1));
    shelf.records.conn_opened(again.conn, again.peer);
    let (_, others) = shelf.ask_over(missing, again);
    assert!(matches!(others[..], [RecordAction::Resend { conn, .. }] if conn == again.conn));
}

/// Over another connection the initiator shows the token of a call that came by a server: what comes by that server is
/// answered straight from then on. Another server's requests prove themselves.
#[test]
fn who_shows_a_token_is_the_initiator_of_what_came_the_same_way() {
    let mut shelf = shelf();
    let initiator = node(1);
    accept_over(&mut shelf, &delegated(1, "0.0"), front());
    assert_eq!(shelf.records.direct_route(initiator, FRONT), None);
    let forged = Ping {
        token: Token::new(9),
        ..ping(1, "0.0")
    };
    shelf.ask_over(forged, home());
    assert_eq!(shelf.records.direct_route(initiator, FRONT), None);
    shelf.ask(ping(1, "0.0"));
    assert_eq!(shelf.records.direct_route(initiator, FRONT), Some(HOME));
    assert_eq!(shelf.records.direct_route(node(2), FRONT), None);
    assert_eq!(
        shelf
            .records
            .direct_route(initiator, ConnId::from_number(8)),
        None
    );
    shelf.records.conn_ended(HOME, Duration::ZERO);
    assert_eq!(shelf.records.direct_route(initiator, FRONT), None);
}

/// Who brings a request knows its token, as it may have made it up: that proves nothing of requests that others bring.
#[test]
fn a_call_that_was_made_up_proves_nothing_of_others() {
    let mut shelf = shelf();
    accept_over(&mut shelf, &delegated(1, "0.0"), front());
    let liar = origin(77, node(7));
    shelf.records.conn_opened(liar.conn, liar.peer);
    let made_up = other_token(delegated(2, "0.0"));
    accept_over(&mut shelf, &made_up, liar);
    let shown = Ping {
        token: made_up.token,
        ..ping(2, "0.0")
    };
    shelf.ask_over(shown, thief());
    assert_eq!(shelf.records.direct_route(node(1), FRONT), None);
    let fooled = shelf.records.direct_route(node(1), liar.conn);
    assert_eq!(fooled, Some(thief().conn), "it fooled itself");
}

/// When the way that a request came is gone, who shows the token takes its place: the initiator itself, or, of a
/// delegated request, any server. Whoever claims to be the initiator does not.
#[test]
fn the_way_back_is_where_the_token_is_shown() {
    let mut shelf = shelf();
    accept_over(&mut shelf, &delegated(1, "0.0"), front());
    let way = |shelf: &Shelf| shelf.records.route_back(request(1, "0").call, token());
    assert_eq!(way(&shelf), Some(FRONT));
    let again = origin(8, node(5));
    shelf.records.conn_opened(again.conn, again.peer);
    shelf.ask_over(ping(1, "0.0"), again);
    assert_eq!(way(&shelf), Some(FRONT), "it is still there");
    shelf.records.conn_ended(FRONT, Duration::ZERO);
    let wrong = Ping {
        token: Token::new(9),
        ..ping(1, "0.0")
    };
    shelf.ask_over(wrong, thief());
    assert_eq!(way(&shelf), Some(FRONT));
    shelf.ask_over(ping(1, "0.0"), again);
    assert_eq!(way(&shelf), Some(again.conn));
}

/// The way that the first request came is of no use, and the initiator has asked about a later one, which came another way: answers
/// of others go straight to it.
#[test]
fn the_way_back_is_where_the_initiator_has_shown_the_token_of_a_later_request() {
    let mut shelf = shelf();
    accept_over(&mut shelf, &delegated(1, "0.0"), front());
    let onward = origin(8, node(6));
    shelf.records.conn_opened(onward.conn, onward.peer);
    let mut later = delegated(1, "0.0.0");
    later.depth += 1;
    accept_over(&mut shelf, &later, onward);
    shelf.ask_over(ping(1, "0.0.0"), home());
    let named = (request(1, "0").call, token());
    let way = |shelf: &Shelf, from| {
        let route = shelf.records.relay_route(named, 0, from);
        route.map(|route| route.conn)
    };
    assert_eq!(way(&shelf, None), Some(FRONT));
    assert_eq!(way(&shelf, Some(FRONT)), Some(HOME), "it comes from there");
    shelf.records.conn_ended(FRONT, Duration::ZERO);
    assert_eq!(way(&shelf, None), Some(HOME), "it is gone");
}

/// A connection that claims to be the initiator's is asked once to show the token, and is not shown it.
#[test]
fn who_claims_to_be_the_initiator_is_invited_to_prove_it() {
    let mut shelf = shelf();
    accept_over(&mut shelf, &delegated(1, "0.0"), front());
    let own = node(50);
    let named = (request(1, "0").call, token(), request(1, "0.0").id);
    let mut invite = |claims: MessageOrigin| {
        let claims = (claims.conn, own);
        shelf.records.invite(named, FRONT, claims)
    };
    assert_eq!(invite(front()), None, "it came there");
    let pong = invite(thief()).expect("it is asked");
    assert_eq!(invite(thief()), None, "once");
    assert!(pong.announced && pong.progress.is_none());
    assert_eq!(pong.token, Some(token().vouch(named.0, own)));
    assert_ne!(pong.token, Some(token()));
    assert_ne!(pong.token, Some(token().vouch(named.0, node(51))));
    assert_ne!(pong.token, Some(Token::new(9).vouch(named.0, own)));
    let other_call = request(2, "0").call;
    assert_ne!(pong.token, Some(token().vouch(other_call, own)));
}

/// Whoever knows the token may still stop the call, wherever it says so.
#[test]
fn an_abort_needs_the_token_alone() {
    let mut shelf = shelf();
    accept_over(&mut shelf, &delegated(1, "0.0"), front());
    let (_, actions) = shelf.ask_over(abort(1, "0.0"), thief());
    assert_eq!(stopped(&actions).len(), 1);
}

/// To show the token is all that a server has asked for. It says nothing of the request, which might make its initiator ask
/// for answers that are on their way by a relay.
#[test]
fn what_only_shows_the_token_is_not_answered() {
    let mut shelf = shelf();
    accept_over(&mut shelf, &delegated(1, "0.0"), front());
    let shows = |id| Ping {
        shows: true,
        ..ping(1, id)
    };
    let now = Duration::ZERO;
    let unknown = Ping {
        token: Token::new(9),
        ..shows("0.0")
    };
    assert!(!shelf.records.handle_ping(&unknown, home(), now));
    assert_eq!(shelf.records.direct_route(node(1), FRONT), None);
    assert!(shelf.records.handle_ping(&shows("0.0"), home(), now));
    assert_eq!(shelf.records.direct_route(node(1), FRONT), Some(HOME));
    assert_eq!(shelf.actions(), []);
    // Now there is no relay any more: what could not be announced is told.
    shelf.records.conn_ended(HOME, now);
    shelf.records.conn_ended(FRONT, now);
    shelf.actions();
    let again = origin(9, node(1));
    shelf.records.conn_opened(again.conn, again.peer);
    let (pong, _) = shelf.ask_over(shows("0.0"), again);
    assert!(pong.progress.is_some());
}

/// Two requests came over a connection that is gone. When the token is shown of one of them, the answers of both have a way;
/// before, nobody is told that there is one, since who looks for it asks for the token again.
#[test]
fn a_token_that_is_shown_opens_the_way_of_the_whole_call() {
    let mut shelf = shelf();
    accept_over(&mut shelf, &delegated(1, "0.0"), front());
    accept_over(&mut shelf, &delegated(1, "0.1"), front());
    let now = Duration::ZERO;
    shelf.records.conn_ended(FRONT, now);
    shelf.actions();
    let shows = Ping {
        shows: true,
        ..ping(1, "0.1")
    };
    let call = shows.call;
    let wrong = Ping {
        token: Token::new(9),
        ..shows.clone()
    };
    assert!(!shelf.records.handle_ping(&wrong, thief(), now));
    assert!(shelf.records.handle_ping(&shows, home(), now));
    assert_eq!(shelf.records.route_back(call, token()), Some(HOME));
}

/// So many others claim to be the initiator that their connections are not told apart. When its own ends, it still hears of the
/// answers that were lost with it.
#[test]
fn who_shares_a_line_with_others_hears_what_was_lost() {
    let mut shelf = shelf();
    for conn in 100..120 {
        let claims = origin(conn, node(1));
        shelf.records.conn_opened(claims.conn, claims.peer);
        accept_over(&mut shelf, &other_token(request(conn, "0")), claims);
    }
    shelf.answer(request(1, "0"), 7);
    shelf.actions();
    shelf.records.conn_ended(HOME, Duration::ZERO);
    let announced = |action: &RecordAction| matches!(action, RecordAction::Announce { pong, .. } if pong.call == request(1, "0").call);
    assert!(shelf.actions().iter().any(announced));
}

/// A server that passes on requests has been connected for long; since then many strangers have said hello and left. Its
/// connection breaks, it comes again and shows the token: answers have their way.
#[test]
fn strangers_that_say_hello_and_leave_do_not_take_the_way_of_a_server_that_comes_again() {
    for strangers in [0, 1023, 1024] {
        let mut shelf = shelf();
        accept_over(&mut shelf, &delegated(1, "0.0"), front());
        for stranger in 0..strangers {
            let from = origin(1000 + stranger, node(10_000 + stranger));
            shelf.records.conn_opened(from.conn, from.peer);
            shelf.records.conn_ended(from.conn, Duration::ZERO);
        }
        shelf.records.conn_ended(FRONT, Duration::ZERO);
        let again = origin(5000, node(5));
        shelf.records.conn_opened(again.conn, again.peer);
        shelf.ask_over(ping(1, "0.0"), again);
        let way = shelf.records.route_back(request(1, "0").call, token());
        assert_eq!(way, Some(again.conn), "{strangers} strangers");
    }
}
