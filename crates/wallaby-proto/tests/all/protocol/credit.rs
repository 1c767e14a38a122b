//! Credit: how much may be sent before the other side has processed something.

use wallaby_proto::carrier::Carrier;
use wallaby_proto::connection::{
    Charge, Connection, ConnectionLimits, Event, Granted, SendRefusal,
};
use wallaby_proto::wire::Response;
use wallaby_proto::{CallId, NodeId};

use crate::protocol::limits::request;
use crate::protocol::pair::{Pair, messages, method};
use crate::protocol::samples::{alice, call, response};

/// What each message costs besides its payload.
const COST: u64 = 64;

fn limits() -> ConnectionLimits {
    ConnectionLimits {
        requests: 1000,
        call: 1000,
        ..ConnectionLimits::default()
    }
}

fn send(alice: &mut Connection, payload: usize) -> Result<(), SendRefusal> {
    let sent = alice.send_request(&mut request(payload), &method());
    sent.map(drop)
}

fn respond(bob: &mut Connection, call: CallId, payload: usize) -> Result<(), SendRefusal> {
    let response = Response {
        call,
        payload: vec![7; payload].into(),
        ..response(&[0])
    };
    bob.send_response(&response, Charge::Counted).map(drop)
}

#[test]
fn a_window_is_overdrawn_by_one_message_and_no_more() {
    let mut pair = Pair::open(limits());
    assert!(pair.alice.takes_requests());
    assert_eq!(send(&mut pair.alice, 0), Ok(()));
    assert_eq!(
        send(&mut pair.alice, 5000),
        Ok(()),
        "larger than the window, but something was left of it"
    );
    assert_eq!(send(&mut pair.alice, 0), Err(SendRefusal::Blocked));
    assert!(!pair.alice.takes_requests());
    assert_eq!(
        messages(pair.carry_to_bob(usize::MAX).expect("legal bytes")).len(),
        2
    );
}

#[test]
fn a_window_that_is_used_up_exactly_is_closed() {
    let mut pair = Pair::open(limits());
    assert_eq!(send(&mut pair.alice, 1000 - 2 * COST as usize - 1), Ok(()));
    assert_eq!(send(&mut pair.alice, 0), Ok(()), "one byte over 64 is left");
    assert_eq!(send(&mut pair.alice, 0), Ok(()), "one byte is left");
    assert_eq!(send(&mut pair.alice, 0), Err(SendRefusal::Blocked));
    let mut pair = Pair::open(limits());
    assert_eq!(send(&mut pair.alice, 1000 - COST as usize), Ok(()));
    assert_eq!(
        send(&mut pair.alice, 0),
        Err(SendRefusal::Blocked),
        "nothing is left"
    );
}

#[test]
fn a_refused_request_comes_back_and_leaves_nothing_behind() {
    let mut pair = Pair::open(limits());
    send(&mut pair.alice, 5000).expect("an open window");
    pair.carry_to_bob(usize::MAX).expect("legal bytes");
    let refusal = pair
        .alice
        .send_request(&mut request(10), &method())
        .expect_err("a closed window");
    assert_eq!(refusal, SendRefusal::Blocked);
    assert!(pair.alice.is_idle());
    assert_eq!(pair.alice.counters().messages_sent, 1);
}

#[test]
fn what_was_processed_opens_the_window_again() {
    let mut pair = Pair::open(limits());
    send(&mut pair.alice, 5000).expect("an open window");
    pair.carry_to_bob(usize::MAX).expect("legal bytes");
    pair.bob.grant_request(100);
    assert!(pair.bob.is_idle(), "too little to be worth a frame");
    pair.bob.grant_request(3000);
    assert_eq!(
        pair.carry_to_alice(usize::MAX),
        Ok(vec![Event::Credit(Granted::Requests)])
    );
    assert_eq!(
        send(&mut pair.alice, 0),
        Err(SendRefusal::Blocked),
        "still overdrawn"
    );
    pair.bob.grant_request(1000);
    assert_eq!(
        pair.carry_to_alice(usize::MAX),
        Ok(vec![Event::Credit(Granted::Requests)])
    );
    assert_eq!(send(&mut pair.alice, 0), Ok(()));
}

#[test]
fn whoever_processes_all_it_gets_never_blocks_its_peer_for_good() {
    let mut pair = Pair::open(limits());
    for turn in 0..2000 {
        while send(&mut pair.alice, turn * 37 % 900).is_err() {
            for message in messages(pair.carry_to_bob(usize::MAX).expect("legal bytes")) {
                let wallaby_proto::wire::Message::Request(request) = message else {
                    panic!("requests only")
                };
                pair.bob.grant_request(request.payload.len());
            }
            let events = pair.carry_to_alice(usize::MAX).expect("legal bytes");
            assert!(!events.is_empty(), "after {turn} requests");
        }
    }
}

#[test]
fn answers_of_one_call_wait_for_its_application_and_those_of_others_do_not() {
    let mut pair = Pair::open(limits());
    let other = CallId {
        sequence: call().sequence + 1,
        ..call()
    };
    assert!(pair.bob.takes_responses(call()));
    assert_eq!(
        respond(&mut pair.bob, call(), 2000),
        Ok(()),
        "overdrawn by one"
    );
    assert_eq!(respond(&mut pair.bob, call(), 0), Err(SendRefusal::Blocked));
    assert!(!pair.bob.takes_responses(call()));
    assert_eq!(respond(&mut pair.bob, other, 0), Ok(()));
    assert_eq!(
        pair.bob
            .send_response(&response(&[0]), Charge::Free)
            .map(drop),
        Ok(()),
        "not counted"
    );
    pair.carry_to_alice(usize::MAX).expect("legal bytes");
    pair.alice.grant_call(call(), 1, 2000);
    assert_eq!(
        pair.carry_to_bob(usize::MAX),
        Ok(vec![Event::Credit(Granted::Call(call()))])
    );
    assert_eq!(respond(&mut pair.bob, call(), 0), Ok(()));
}

#[test]
fn a_calls_window_that_is_used_up_exactly_is_closed() {
    let mut pair = Pair::open(limits());
    assert_eq!(respond(&mut pair.bob, call(), 1000 - COST as usize), Ok(()));
    assert_eq!(respond(&mut pair.bob, call(), 0), Err(SendRefusal::Blocked));
}

#[test]
fn more_credit_than_was_used_is_worth_nothing() {
    let mut pair = Pair::open(limits());
    pair.alice.grant_call(call(), 1000, 1 << 30);
    pair.carry_to_bob(usize::MAX).expect("legal bytes");
    assert_eq!(respond(&mut pair.bob, call(), 2000), Ok(()));
    assert_eq!(respond(&mut pair.bob, call(), 0), Err(SendRefusal::Blocked));
}

#[test]
fn calls_that_are_over_are_forgotten() {
    let mut pair = Pair::open(limits());
    let at = |sequence| CallId {
        initiator: alice(),
        sequence,
    };
    for sequence in 1..=4 {
        respond(&mut pair.bob, at(sequence), 2000).expect("a fresh window");
        assert_eq!(
            respond(&mut pair.bob, at(sequence), 0),
            Err(SendRefusal::Blocked)
        );
    }
    pair.bob.forget_calls(at(3));
    assert_eq!(respond(&mut pair.bob, at(1), 0), Ok(()), "forgotten");
    assert_eq!(respond(&mut pair.bob, at(2), 0), Ok(()), "forgotten");
    assert_eq!(
        respond(&mut pair.bob, at(3), 0),
        Err(SendRefusal::Blocked),
        "the oldest that lives"
    );
    assert_eq!(respond(&mut pair.bob, at(4), 0), Err(SendRefusal::Blocked));
}

#[test]
fn of_too_many_calls_the_least_recently_used_is_forgotten_first() {
    let mut pair = Pair::open(ConnectionLimits {
        call: 1,
        ..limits()
    });
    let at = |sequence| CallId {
        initiator: alice(),
        sequence,
    };
    for sequence in 1..=4096 {
        respond(&mut pair.bob, at(sequence), 0).expect("a fresh window");
        pair.bob.advance_all();
    }
    assert_eq!(respond(&mut pair.bob, at(1), 0), Err(SendRefusal::Blocked));
    assert_eq!(
        respond(&mut pair.bob, at(4097), 0),
        Ok(()),
        "the table is full: one makes room"
    );
    assert_eq!(
        respond(&mut pair.bob, at(1), 0),
        Err(SendRefusal::Blocked),
        "it was used again"
    );
    assert_eq!(respond(&mut pair.bob, at(3), 0), Err(SendRefusal::Blocked));
    assert_eq!(
        respond(&mut pair.bob, at(2), 0),
        Ok(()),
        "it had been forgotten"
    );
}

#[test]
fn credit_without_end_is_refused() {
    let mut pair = Pair::open(limits());
    let mut most = vec![11, 0, 0, 0x03, 0];
    most.extend([0xff; 9]);
    most.push(0x01);
    let error = pair
        .bob_reads(&most)
        .expect_err("more than a window can hold");
    assert!(
        error.to_string().contains("more than a window can hold"),
        "{error}"
    );
    let mut pair = Pair::open(limits());
    let error = pair
        .bob_reads(&[2, 0, 0, 0x03, 2, 1])
        .expect_err("no such window");
    assert!(error.to_string().contains("unknown window"), "{error}");
}

#[test]
fn messages_wait_while_too_much_is_not_written_yet() {
    let mut pair = Pair::open(ConnectionLimits::default());
    let sent = (0..)
        .take_while(|_| send(&mut pair.alice, 60_000).is_ok())
        .count();
    assert_eq!(sent, 5, "256 KiB and the message that exceeds them");
    assert!(!pair.alice.takes_requests());
    pair.alice.advance_all();
    assert_eq!(send(&mut pair.alice, 60_000), Ok(()));
}

/// The transport takes it all.
trait Advance {
    fn advance_all(&mut self);
}

impl Advance for Connection {
    fn advance_all(&mut self) {
        let len = self.output().len();
        self.advance(len);
    }
}

#[test]
fn small_requests_are_not_kept_back_by_large_ones() {
    let mut pair = Pair::open(ConnectionLimits::default());
    // More bytes than the window has, all of them waiting for the peer.
    send(&mut pair.alice, 15 << 20).expect("room");
    assert_eq!(send(&mut pair.alice, 10), Ok(()));
    for _ in 0..8 {
        // A large one more is refused only for those that wait in front of it.
        let _ = send(&mut pair.alice, 1 << 20);
    }
    assert_eq!(send(&mut pair.alice, 10), Ok(()));
}

/// Bob passes on what is not his: in the order in which it was sent.
#[test]
fn answers_to_be_passed_on_wait_for_a_large_one_of_their_call() {
    let mut pair = Pair::open(ConnectionLimits::default());
    let mine = |sequence| CallId {
        initiator: alice(),
        sequence,
    };
    let others = |sequence| CallId {
        initiator: NodeId::new(77).expect("not zero"),
        sequence,
    };
    for call in [others(1), mine(1)] {
        assert_eq!(respond(&mut pair.bob, call, 500_000), Ok(()));
    }
    assert!(!pair.bob.takes_responses(others(1)));
    assert_eq!(
        respond(&mut pair.bob, others(1), 10),
        Err(SendRefusal::Blocked)
    );
    for call in [others(2), mine(1)] {
        assert!(pair.bob.takes_responses(call));
        assert_eq!(respond(&mut pair.bob, call, 10), Ok(()));
    }
    while !pair.bob.is_idle() {
        pair.carry_to_alice(usize::MAX).expect("legal bytes");
        pair.carry_to_bob(usize::MAX).expect("legal bytes");
    }
    assert!(pair.bob.takes_responses(others(1)));
    assert_eq!(respond(&mut pair.bob, others(1), 10), Ok(()));
}
