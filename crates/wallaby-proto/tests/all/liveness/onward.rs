//! Pings about requests that came of one handled here go on to where its work went.

use wallaby_proto::Token;
use wallaby_proto::call::records::{ConnId, Judgement, RecordLimits, RelayRoute};
use wallaby_proto::call::server::Outbound;
use wallaby_proto::wire::{Child, Ping, Pong, Progress};

use crate::liveness::desk::{call, child, node, running, token};
use crate::liveness::shelf::{Shelf, abort, limits, origin, ping, request};

/// A server that handled request 0 of call 1: it delegated to server 3, then to 4.
fn delegator() -> Shelf {
    let mut shelf = Shelf::new();
    let mut handled = shelf.accept(request(1, "0"));
    let mut sent: Vec<Outbound<u64>> = Vec::new();
    sent.extend(handled.server.delegate(3, "three".into()));
    sent.extend(handled.server.delegate(4, "four".into()));
    sent.extend(handled.server.flush());
    sent.push(handled.server.finish(None));
    shelf.release(handled.ticket, sent, 0);
    shelf.actions();
    shelf
}

/// A server that handled request 0.2 and forwarded it to server 5.
fn forwarder() -> Shelf {
    let mut shelf = Shelf::new();
    let mut handled = shelf.accept(request(1, "0.2"));
    let sent = handled.server.forward(5, "five".into(), None);
    shelf.release(handled.ticket, sent, 0);
    shelf.actions();
    shelf
}

fn onward(shelf: &mut Shelf, ping: &Ping) -> Option<Child> {
    let now = shelf.time();
    shelf
        .records
        .relay_target(ping, crate::liveness::shelf::home(), now)
}

#[test]
fn a_ping_goes_on_to_the_child_that_its_request_came_of() {
    let mut shelf = delegator();
    assert_eq!(onward(&mut shelf, &ping(1, "0.0")), Some(child(3)));
    assert_eq!(onward(&mut shelf, &ping(1, "0.1.5+2")), Some(child(4)));
    assert_eq!(onward(&mut shelf, &ping(1, "0.2")), None, "no such child");
    assert_eq!(onward(&mut shelf, &ping(1, "1")), None, "elsewhere");
    let shows = Ping {
        shows: true,
        ..ping(1, "0.0")
    };
    assert_eq!(onward(&mut shelf, &shows), None, "nothing is asked");
    assert!(
        shelf
            .records
            .handle_ping(&shows, crate::liveness::shelf::home(), shelf.time())
    );
    assert_eq!(shelf.actions(), []);
}

#[test]
fn a_ping_goes_on_to_where_the_branch_went_on() {
    let mut shelf = forwarder();
    assert_eq!(onward(&mut shelf, &ping(1, "0.2+1")), Some(child(5)));
    assert_eq!(onward(&mut shelf, &ping(1, "0.2+7")), Some(child(5)));
    assert_eq!(onward(&mut shelf, &ping(1, "0.2.1")), Some(child(5)));
    assert_eq!(onward(&mut shelf, &ping(1, "0+1")), None, "above");
}

/// The branch came here again, and its later part went on elsewhere.
#[test]
fn a_ping_about_an_own_delegation_goes_where_that_went() {
    let mut shelf = Shelf::new();
    let mut handled = shelf.accept(request(1, "0"));
    let mut sent: Vec<Outbound<u64>> = Vec::new();
    sent.extend(handled.server.delegate(3, "three".into()));
    sent.extend(handled.server.forward(4, "four".into(), None));
    shelf.release(handled.ticket, sent, 0);
    let mut again = shelf.accept(request(1, "0+2"));
    let sent = again.server.forward(5, "five".into(), None);
    shelf.release(again.ticket, sent, 0);
    shelf.actions();
    assert_eq!(onward(&mut shelf, &ping(1, "0.0")), Some(child(3)));
    assert_eq!(onward(&mut shelf, &ping(1, "0.7")), Some(child(5)));
}

/// What becomes of where a ping goes on to says something of its request only if that itself was handed on from here.
#[test]
fn only_who_was_handed_a_request_is_told_of_as_its_server() {
    let shelf = delegator();
    for (request, own) in [
        ("0.0", true),
        ("0.1", true),
        ("0.1.5", false),
        ("0.0+1", false),
        ("0.2", false),
    ] {
        assert_eq!(
            shelf.records.has_handed_on(&ping(1, request)),
            own,
            "{request}"
        );
    }
    let shelf = forwarder();
    for (request, own) in [
        ("0.2+1", true),
        ("0.2+7", false),
        ("0.2.1", false),
        ("0.2", false),
    ] {
        assert_eq!(
            shelf.records.has_handed_on(&ping(1, request)),
            own,
            "{request}"
        );
    }
}

#[test]
fn what_is_known_here_is_answered_here() {
    let mut shelf = delegator();
    assert_eq!(onward(&mut shelf, &ping(1, "0")), None);
    let mut stranger = ping(1, "0.0");
    stranger.token = Token::new(666);
    assert_eq!(onward(&mut shelf, &stranger), None, "another call");
    assert_eq!(onward(&mut shelf, &ping(2, "0.0")), None, "another call");
}

/// Where servers have forgotten some requests of a line, each may hold the other for the one that leads on.
#[test]
fn nothing_runs_in_a_circle() {
    let mut shelf = forwarder();
    let asked = ping(1, "0.2+4");
    assert!(onward(&mut shelf, &asked).is_some());
    assert_eq!(onward(&mut shelf, &asked), None, "it has come back");
    assert!(
        onward(&mut shelf, &ping(1, "0.2+5")).is_some(),
        "another request"
    );
    assert!(
        onward(&mut shelf, &abort(1, "0.2+4")).is_some(),
        "an abort is news"
    );
    shelf.now += 100;
    assert!(onward(&mut shelf, &asked).is_some(), "the next round");
}

#[test]
fn so_many_go_on_in_a_period_and_no_more() {
    let mut shelf = forwarder();
    let passed = (1..2000).filter(|hop| {
        let ping = ping(1, &format!("0.2+{hop}"));
        onward(&mut shelf, &ping).is_some()
    });
    assert_eq!(passed.count(), 256);
}

/// The request by which pings go on is needed as long as they are answered by who knows what they ask about.
#[test]
fn who_passes_known_pongs_on_remembers_the_way() {
    let asked = ping(1, "0.2+1");
    let pong = |progress| Pong {
        call: asked.call,
        distance: 0,
        token: Some(asked.token),
        request: asked.request,
        attempt: 0,
        announced: false,
        writing: false,
        evicted: false,
        gone: false,
        heartbeats: false,
        progress,
    };
    let remembers = |progress: Option<Progress>| {
        let mut shelf = forwarder();
        for _ in 0..50 {
            shelf.until(shelf.now + 100);
            onward(&mut shelf, &asked);
            let now = shelf.time();
            shelf.records.pong_relayed(&pong(progress.clone()), now);
        }
        shelf.until(shelf.now + 100);
        let known = onward(&mut shelf, &asked).is_some();
        // A ping period and two timeouts later nothing is.
        shelf.until(shelf.now + 1300);
        assert_eq!(onward(&mut shelf, &asked), None);
        known
    };
    assert!(remembers(Some(running())));
    assert!(!remembers(None), "what runs in a circle comes to an end");
}

/// A call may come by a server more than once: answers of others leave towards the initiator, not in a circle.
#[test]
fn answers_leave_by_the_way_that_is_nearest_to_the_initiator() {
    let mut shelf = Shelf::new();
    let came = |shelf: &mut Shelf, conn, id, depth| {
        let mut request = request(1, id);
        request.depth = depth;
        let now = shelf.time();
        let admitted = shelf.records.admit(&request, origin(conn, node(9)), now);
        assert!(matches!(admitted, Judgement::Accepted(_)), "{admitted:?}");
    };
    let call = ping(1, "0").call;
    assert_eq!(shelf.records.route_back(call, token()), None, "unknown");
    came(&mut shelf, 5, "0.1+4", 5);
    assert_eq!(
        shelf.records.route_back(call, token()),
        Some(ConnId::from_number(5))
    );
    came(&mut shelf, 6, "0.1+1", 2);
    came(&mut shelf, 7, "0.1.0", 3);
    assert_eq!(
        shelf.records.route_back(call, token()),
        Some(ConnId::from_number(6))
    );
    let forged = Token::new(666);
    assert_eq!(shelf.records.route_back(call, forged), None, "another call");
}

/// What another server passed on goes by a request that is nearer to the initiator than that server was, or not at all.
#[test]
fn answers_of_others_only_ever_come_nearer() {
    let mut shelf = Shelf::new();
    let call = ping(1, "0").call;
    for (conn, id, depth) in [(5, "0.1+4", 5), (6, "0.1+1", 2)] {
        let now = shelf.time();
        let mut request = request(1, id);
        request.depth = depth;
        shelf.records.admit(&request, origin(conn, node(9)), now);
    }
    let onward = |distance| shelf.records.relay_route((call, token()), distance, None);
    let nearest = Some(RelayRoute {
        conn: ConnId::from_number(6),
        distance: 3,
    });
    assert_eq!(onward(0), nearest, "nobody has passed it on yet");
    assert_eq!(onward(4), nearest);
    assert_eq!(onward(3), None, "it comes from there");
    let forged = Token::new(666);
    assert_eq!(shelf.records.relay_route((call, forged), 0, None), None);
}

/// A relay with little room forgets a request whose work went on, while answers of that still come by.
#[test]
fn the_way_back_outlives_a_request_that_had_to_make_room() {
    let mut shelf = Shelf::with(RecordLimits {
        requests: 1,
        ..limits()
    });
    let mut forwarded = shelf.accept(request(1, "0.2"));
    let sent = forwarded.server.forward(5, "five".into(), None);
    shelf.release(forwarded.ticket, sent, 0);
    let way = |shelf: &Shelf, sequence| {
        let call = ping(sequence, "0").call;
        shelf.records.relay_route((call, token()), 0, None)
    };
    let before = way(&shelf, 1);
    assert!(before.is_some());
    shelf.answer(request(2, "0"), 0);
    assert_eq!(shelf.ping(1, "0.2").progress, None, "forgotten");
    assert_eq!(way(&shelf, 1), before);
    shelf.answer(request(3, "0"), 0);
    assert_eq!(way(&shelf, 2), None, "no work of it went on");
}

/// Of a place that is a digest only its own parent can tell whose child it is.
#[test]
fn a_ping_goes_on_to_a_child_whose_place_is_a_digest() {
    let deep = vec!["0"; 20].join(".");
    let mut shelf = Shelf::new();
    let sequence = call().sequence;
    let mut handled = shelf.accept(request(sequence, &deep));
    let mut sent: Vec<Outbound<u64>> = Vec::new();
    sent.extend(handled.server.delegate(3, "three".into()));
    sent.extend(handled.server.delegate(4, "four".into()));
    sent.extend(handled.server.flush());
    sent.push(handled.server.finish(None));
    shelf.release(handled.ticket, sent, 0);
    let mut towards = |below: &str| onward(&mut shelf, &ping(sequence, &(deep.clone() + below)));
    assert_eq!(towards(".0"), Some(child(3)));
    assert_eq!(towards(".1"), Some(child(4)));
    assert_eq!(towards(".2"), None, "no such child");
    assert_eq!(towards(".1.0"), None, "nobody can tell");
}

/// A request so deep that the places of its children do not tell their numbers; of each it is found out later who took it.
/// With a look at all the others for each of them this would take minutes.
#[test]
fn each_of_very_many_children_is_found() {
    const CHILDREN: u64 = 30_000;
    for place in ["0", "0.1.2.3.4.5.6.7.8.9.10.11.12.13.14.15"] {
        let mut shelf = Shelf::new();
        let mut handled = shelf.accept(request(1, place));
        let mut sent: Vec<Outbound<u64>> = Vec::new();
        for number in 0..CHILDREN {
            sent.extend(handled.server.delegate(10 + number, "work".into()));
        }
        sent.push(handled.server.finish(None));
        let mut ids = Vec::new();
        for outbound in sent {
            if let Outbound::Request(delegated) = outbound {
                let released = shelf.delegate(handled.ticket, &delegated);
                released.expect("it is not aborted");
                ids.push(delegated.id);
            }
        }
        for (number, id) in (0..).zip(&ids) {
            let taken = node(1_000_000 + number);
            shelf.records.delegation_taken(handled.ticket, *id, taken);
        }
        for (number, id) in (0..).zip(&ids).step_by(200) {
            let mut asked = ping(1, "0");
            asked.request = *id;
            let child = onward(&mut shelf, &asked).expect("it went on to there");
            assert_eq!(child.node, Some(node(1_000_000 + number)), "{place}");
        }
        let mut stranger = ids[7];
        stranger.path = stranger.path.child(0, call(), Token::new(666));
        let mut asked = ping(1, "0");
        asked.request = stranger;
        let found = onward(&mut shelf, &asked);
        assert_eq!(found.is_some(), !stranger.path.is_folded(), "{place}");
    }
}

/// However many requests of a call run at a server, whatever their places: they are not looked through.
#[test]
fn a_ping_goes_on_by_any_of_very_many_requests() {
    for deep in [String::from("0"), vec!["0"; 16].join(".")] {
        let mut shelf = Shelf::new();
        let sequence = call().sequence;
        shelf.accept(request(sequence, "1"));
        for number in 0..3000 {
            shelf.answer(request(sequence, &format!("1.{number}")), 0);
        }
        let mut parents = Vec::new();
        for number in [5, 20_000] {
            let place = format!("{deep}.{number}");
            let mut handled = shelf.accept(request(sequence, &place));
            let mut sent: Vec<Outbound<u64>> = Vec::new();
            sent.extend(handled.server.delegate(3, "three".into()));
            sent.extend(handled.server.delegate(number, "last".into()));
            sent.extend(handled.server.flush());
            sent.push(handled.server.finish(None));
            shelf.release(handled.ticket, sent, 0);
            parents.push((place, number));
        }
        for (place, number) in &parents {
            let mut towards = |below: &str| {
                let found = onward(&mut shelf, &ping(sequence, &format!("{place}{below}")));
                found.map(|child| child.server)
            };
            assert_eq!(towards(".0"), Some(child(3).server), "{place}");
            assert_eq!(towards(".1+7"), Some(child(*number).server), "{place}");
            assert_eq!(towards(".2"), None, "{place}");
        }
        // Nothing leads by what is forgotten.
        shelf.until(1_500);
        let (gone, _) = &parents[0];
        assert_eq!(shelf.ping(sequence, gone).progress, None);
        let asked = ping(sequence, &format!("{gone}.0"));
        assert_eq!(onward(&mut shelf, &asked), None);
        assert_eq!(shelf.records.remembered().requests, 1);
    }
}

/// A line comes by again and again.
#[test]
fn a_ping_goes_on_by_the_latest_hop_that_went_on() {
    let mut shelf = Shelf::new();
    for hop in 0..2000 {
        let mut handled = shelf.accept(request(1, &format!("0.2+{}", 2 * hop)));
        let sent = handled.server.forward(10 + hop, "on".into(), None);
        shelf.release(handled.ticket, sent, 0);
    }
    shelf.accept(request(1, "0.2+4000"));
    for (asked, to) in [
        ("0.2+3", 11),
        ("0.2+2999", 1509),
        ("0.2.1", 2009),
        ("0.2+4001", 2009),
    ] {
        assert_eq!(
            onward(&mut shelf, &ping(1, asked)),
            Some(child(to)),
            "{asked}"
        );
    }
}

/// A call's requests came over one connection, were forgotten, and that connection ended; further ones of the same call come over
/// another one and are forgotten, too.
#[test]
fn a_forgotten_way_whose_connection_has_ended_makes_room_for_another_one() {
    let mut shelf = Shelf::with(RecordLimits {
        requests: 1,
        ..limits()
    });
    for conn in [21, 22] {
        let from = origin(conn, ping(1, "0").call.initiator);
        shelf.records.conn_opened(from.conn, from.peer);
        let mut request = request(1, if conn == 21 { "0.2" } else { "0.3" });
        let now = shelf.time();
        let Judgement::Accepted(ticket) = shelf.records.admit(&request, from, now) else {
            panic!("it is taken")
        };
        let mut server = wallaby_proto::call::server::ServerHalf::<u64>::new(&mut request);
        let sent = server.forward(5, "five".into(), None);
        shelf.release(ticket, sent, 0);
        shelf.answer(crate::liveness::shelf::request(conn, "0"), 0); // it has to make room
        if conn == 21 {
            let now = shelf.time();
            shelf.records.conn_ended(from.conn, now);
        }
    }
    let way = shelf.records.route_back(ping(1, "0").call, token());
    assert_eq!(way, Some(ConnId::from_number(22)));
}
