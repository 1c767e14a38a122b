//! Who takes much leaves room for those who take little: as records see it.

use std::time::Duration;

use wallaby_proto::call::records::{ConnId, Judgement, RecordLimits};
use wallaby_proto::call::server::ServerHalf;
use wallaby_proto::wire::{PingSettings, Request};
use wallaby_proto::{CallId, Code};

use crate::liveness::desk::node;
use crate::liveness::shelf::{Handled, Shelf, limits, origin, request, with_options};

/// The table of these tests.
const TABLE: usize = 1000;

fn shelf() -> Shelf {
    Shelf::with(RecordLimits {
        requests: TABLE,
        ..limits()
    })
}

fn of(initiator: u64, sequence: u64) -> Request {
    Request {
        call: CallId {
            initiator: node(initiator),
            sequence,
        },
        ..request(1, "0")
    }
}

/// A request of this initiator comes over this connection.
fn admit(shelf: &mut Shelf, conn: u64, initiator: u64, sequence: u64) -> Option<Handled> {
    try_admit(shelf, conn, of(initiator, sequence))
}

fn try_admit(shelf: &mut Shelf, conn: u64, mut request: Request) -> Option<Handled> {
    let now = shelf.time();
    let came = origin(conn, node(conn));
    match shelf.records.admit(&request, came, now) {
        Judgement::Accepted(ticket) => Some(Handled {
            ticket,
            server: ServerHalf::new(&mut request),
            request,
        }),
        Judgement::Refused(status) => {
            assert_eq!(status.code(), Code::ResourceExhausted);
            None
        }
        other => panic!("{other:?}"),
    }
}

fn end(shelf: &mut Shelf, mut handled: Handled) {
    let sent = handled.server.respond("answer".into(), None);
    shelf.release(handled.ticket, sent, 0);
}

fn ends(shelf: &mut Shelf, conn: u64, initiator: u64, sequence: u64) -> bool {
    match admit(shelf, conn, initiator, sequence) {
        Some(handled) => {
            end(shelf, handled);
            true
        }
        None => false,
    }
}

#[test]
fn hanging_calls_of_one_client_do_not_shut_others_out() {
    let mut shelf = shelf();
    let greedy: Vec<Handled> = (1..=100 * TABLE as u64)
        .filter_map(|sequence| admit(&mut shelf, 2, 2, sequence))
        .collect();
    assert!(greedy.len() > TABLE * 8 / 10, "{}", greedy.len());
    for left in [false, true] {
        if left {
            shelf
                .records
                .conn_ended(ConnId::from_number(2), shelf.time());
        }
        for client in 3..13 {
            let several: Vec<Handled> = (1..=5)
                .map(|sequence| {
                    let sequence = sequence + 10 * u64::from(left);
                    admit(&mut shelf, client, client, sequence).expect("it has few")
                })
                .collect();
            for handled in several {
                end(&mut shelf, handled);
            }
        }
    }
    let status = match shelf
        .records
        .admit(&of(2, 1 << 40), origin(2, node(2)), Duration::ZERO)
    {
        Judgement::Refused(status) => status,
        other => panic!("{other:?}"),
    };
    assert!(status.message().contains("share"), "{status}");
    // What it gives back it may have again.
    for handled in greedy {
        end(&mut shelf, handled);
    }
    assert!(admit(&mut shelf, 2, 2, 1 << 41).is_some());
}

/// Each of its calls lasts 100 ms, and it always has more; ten others make 50 calls each, one after another.
#[test]
fn a_client_with_many_short_calls_leaves_others_theirs() {
    let mut shelf = shelf();
    let mut running = std::collections::VecDeque::new();
    let (mut sequence, mut good, mut of_greedy) = (0, 0, 0);
    for tick in 0..500 {
        shelf.now = tick * 10;
        while running
            .front()
            .is_some_and(|(until, _)| *until <= shelf.now)
        {
            let (_, handled): (u64, Handled) = running.pop_front().expect("there is one");
            end(&mut shelf, handled);
        }
        for _ in 0..200 {
            sequence += 1;
            if let Some(handled) = admit(&mut shelf, 2, 2, sequence) {
                running.push_back((shelf.now + 100, handled));
                of_greedy += 1;
            }
        }
        let client = 3 + tick % 10;
        good += usize::from(ends(&mut shelf, client, client, tick + 1));
    }
    assert_eq!(good, 500);
    assert!(of_greedy > 500 / 10 * TABLE * 7 / 10, "{of_greedy}");
}

/// Subscribers that wait for something have old requests that run, and nothing that could be forgotten.
#[test]
fn idle_subscribers_cost_a_busy_client_nothing() {
    let mut shelf = shelf();
    let idle: Vec<Handled> = (3..11)
        .map(|client| admit(&mut shelf, client, client, 1).expect("there is room"))
        .collect();
    for sequence in 1..10 * TABLE as u64 {
        assert!(ends(&mut shelf, 2, 2, sequence), "{sequence}");
    }
    assert_eq!(shelf.records.remembered().requests, TABLE);
    for handled in &idle {
        assert!(shelf.records.may_delegate(handled.ticket));
    }
}

/// The calls have ended, though their client says that they live: ended requests make room, whoever's they are.
#[test]
fn calls_that_are_declared_live_keep_nobody_out() {
    let mut shelf = shelf();
    for client in 3..13 {
        assert!(ends(&mut shelf, client, client, 1));
    }
    for sequence in 1..=TABLE as u64 + 50 {
        assert!(ends(&mut shelf, 2, 2, sequence), "{sequence}");
    }
    for client in 3..300 {
        assert!(ends(&mut shelf, client, client, 2), "{client}");
    }
}

/// What has ended first is forgotten first, whatever its call said how long it wants to be remembered.
#[test]
fn a_timeout_of_minutes_buys_no_place() {
    let mut shelf = shelf();
    let minutes = PingSettings {
        period: Duration::from_secs(60),
        timeout: Duration::from_secs(600),
    };
    for sequence in 1..=TABLE as u64 {
        let request = with_options(of(2, sequence), |options| options.ping = Some(minutes));
        let handled = try_admit(&mut shelf, 2, request).expect("there is room");
        shelf.now += 1;
        end(&mut shelf, handled);
    }
    for sequence in 1..=50 {
        shelf.now += 1;
        assert!(ends(&mut shelf, 3, 3, sequence));
    }
    // Those of the first client went, though the others' will be forgotten long before.
    for sequence in 1..=50 {
        let now = shelf.time();
        let came = origin(3, node(3));
        let again = shelf.records.admit(&of(3, sequence), came, now);
        assert_eq!(again, Judgement::Duplicate);
    }
    shelf.until(shelf.now + 60_000);
    assert_eq!(shelf.records.remembered().requests, TABLE - 50);
    shelf.until(shelf.now + 1_300_000);
    assert_eq!(shelf.records.remembered(), Default::default());
}

/// A front server brings the requests of many initiators over one connection: one of them does not shut the others out.
#[test]
fn initiators_behind_one_connection_share_it() {
    let mut shelf = shelf();
    let greedy = (1..=2 * TABLE as u64)
        .filter_map(|sequence| admit(&mut shelf, 2, 100, sequence))
        .count();
    assert!(greedy > TABLE * 8 / 10, "{greedy}");
    for initiator in 200..300 {
        assert!(ends(&mut shelf, 2, initiator, 1), "{initiator}");
    }
    // Who invents initiators gets no more than its connection has.
    let invented = (1000..3000)
        .filter_map(|initiator| admit(&mut shelf, 2, initiator, 1))
        .count();
    assert!(greedy + invented < TABLE * 9 / 10, "{invented}");
    for client in 3..13 {
        assert!(ends(&mut shelf, client, client, 1));
    }
}

/// A stranger who names another client's initiator takes nothing of that client's share.
#[test]
fn a_share_is_not_used_up_by_those_who_name_its_initiator() {
    let mut shelf = shelf();
    let stranger = (1..=2 * TABLE as u64)
        .filter_map(|sequence| admit(&mut shelf, 2, 3, 1_000_000 + sequence))
        .count();
    assert!(stranger > TABLE / 2);
    for sequence in 1..50 {
        assert!(ends(&mut shelf, 3, 3, sequence));
    }
}

/// Initiators that come once make room for each other, at the same cost however many there are.
#[test]
fn initiators_that_come_once_leave_room() {
    let mut shelf = Shelf::with(RecordLimits {
        requests: TABLE,
        initiators: 100,
        ..limits()
    });
    let subscriber = admit(&mut shelf, 2, 2, 1).expect("there is room");
    for initiator in 1000..5000 {
        assert!(ends(&mut shelf, 3, initiator, 1), "{initiator}");
    }
    assert_eq!(shelf.records.remembered().initiators, 100);
    assert!(shelf.records.may_delegate(subscriber.ticket));
}
