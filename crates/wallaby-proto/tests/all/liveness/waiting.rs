//! Answers to which no route leads wait within limits, and leave in order.

use std::time::Duration;

use wallaby_proto::call::records::ConnId;
use wallaby_proto::call::waiting::{Awaited, WaitingAnswers, WaitingLimits};
use wallaby_proto::{CallId, RequestId, Token};

use crate::liveness::desk::node;

const LIMITS: WaitingLimits = WaitingLimits {
    answers: 3,
    bytes: 1000,
    time: Duration::from_secs(10),
};

/// The first call of an initiator.
fn of(initiator: u64) -> Awaited {
    Awaited {
        call: CallId {
            initiator: node(initiator),
            sequence: 1,
        },
        token: Token::new(initiator),
        request: RequestId::FIRST,
    }
}

fn take<T>(waiting: &mut WaitingAnswers<T>, initiator: u64) -> Option<T> {
    let Awaited { call, token, .. } = of(initiator);
    waiting.take(call, token)
}

fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[test]
fn answers_leave_in_order_when_there_is_a_way_for_their_call() {
    let mut waiting = WaitingAnswers::new(LIMITS);
    for (initiator, what, second) in [(1, "a", 0), (2, "b", 1), (1, "c", 2)] {
        let put = waiting.put(
            (of(initiator), ConnId::from_number(initiator)),
            10,
            what,
            at(second),
        );
        put.expect("there is room");
    }
    assert!(!waiting.is_empty());
    assert_eq!(take(&mut waiting, 3), None);
    assert_eq!(take(&mut waiting, 1), Some("a"));
    assert_eq!(take(&mut waiting, 1), Some("c"));
    assert_eq!(take(&mut waiting, 1), None);
    assert_eq!(waiting.len(), 1);
    assert_eq!(waiting.next_timeout(), Some(at(11)));
}

#[test]
fn nobody_waits_for_ever() {
    let mut waiting = WaitingAnswers::new(LIMITS);
    waiting
        .put((of(1), ConnId::from_number(1)), 10, "a", at(0))
        .expect("room");
    waiting
        .put((of(2), ConnId::from_number(2)), 10, "b", at(5))
        .expect("room");
    assert_eq!(waiting.expired(at(9)), None);
    assert_eq!(waiting.expired(at(10)), Some("a"));
    assert_eq!(waiting.expired(at(10)), None);
    assert_eq!(take(&mut waiting, 1), None);
    assert_eq!(waiting.expired(at(100)), Some("b"));
    assert!(waiting.is_empty());
    assert_eq!(waiting.next_timeout(), None);
}

#[test]
fn so_many_may_wait_and_no_more() {
    let mut waiting = WaitingAnswers::new(LIMITS);
    for number in 0..3 {
        waiting
            .put((of(1), ConnId::from_number(1)), 0, number, at(0))
            .expect("room");
    }
    assert_eq!(
        waiting.put((of(2), ConnId::from_number(2)), 0, 3, at(0)),
        Err(3)
    );
    assert_eq!(take(&mut waiting, 1), Some(0));
    waiting
        .put((of(2), ConnId::from_number(2)), 0, 3, at(0))
        .expect("there is room again");
}

#[test]
fn so_many_bytes_may_wait_and_no_more() {
    let mut waiting = WaitingAnswers::new(LIMITS);
    waiting
        .put((of(1), ConnId::from_number(1)), 800, 'a', at(0))
        .expect("room");
    waiting
        .put((of(1), ConnId::from_number(1)), 100, 'b', at(0))
        .expect_err("no room");
    waiting
        .put((of(2), ConnId::from_number(2)), 33, 'b', at(0))
        .expect_err("its share of what is left is less");
    waiting
        .put((of(2), ConnId::from_number(2)), 32, 'c', at(0))
        .expect("just so many");
    assert_eq!(take(&mut waiting, 1), Some('a'));
    waiting
        .put((of(1), ConnId::from_number(1)), 708, 'd', at(0))
        .expect("its room is free");
}

#[test]
fn the_room_of_an_answer_that_has_gone_is_free_to_the_byte() {
    let mut waiting = WaitingAnswers::new(LIMITS);
    waiting
        .put((of(1), ConnId::from_number(1)), 300, 'a', at(0))
        .expect("room");
    waiting
        .put((of(2), ConnId::from_number(2)), 300, 'b', at(0))
        .expect("room");
    assert_eq!(waiting.len(), 2);
    assert_eq!(take(&mut waiting, 1), Some('a'));
    waiting
        .put((of(1), ConnId::from_number(1)), 476, 'c', at(0))
        .expect_err("too long");
    assert_eq!(waiting.len(), 1);
    waiting
        .put((of(1), ConnId::from_number(1)), 475, 'd', at(0))
        .expect("just so long");
}

/// One client whose initiators are gone leaves room for those of other clients, and its initiators for each other.
#[test]
fn one_connection_leaves_room_for_others() {
    for (answers, bytes) in [(1000, u64::MAX), (1_000_000, 64_000)] {
        let mut waiting = WaitingAnswers::new(WaitingLimits {
            answers,
            bytes,
            ..LIMITS
        });
        let mut fill = |conn: u64, initiator: u64, most: usize| {
            let answers = 0..most;
            let put = |_: &usize| {
                let put = waiting.put((of(initiator), ConnId::from_number(conn)), 0, (), at(0));
                put.is_ok()
            };
            answers.take_while(put).count()
        };
        let greedy = fill(1, 1, 2000);
        assert!((800..900).contains(&greedy), "{greedy}");
        assert_eq!(fill(2, 1, 50), 50, "another client");
        let invented: usize = (3..100).map(|initiator| fill(1, initiator, 9)).sum();
        assert!(invented < 20, "{invented}");
    }
}

/// Whoever only says that it is the initiator is told of what waits, and gets none of it without the call's token.
#[test]
fn a_way_is_for_who_shows_the_token() {
    let mut waiting = WaitingAnswers::new(LIMITS);
    for token in [1, 2] {
        let awaited = Awaited {
            token: Token::new(token),
            ..of(1)
        };
        waiting
            .put((awaited, ConnId::from_number(1)), 0, token, at(0))
            .expect("room");
    }
    waiting
        .put((of(2), ConnId::from_number(2)), 0, 3, at(0))
        .expect("room");
    assert_eq!(waiting.take(of(1).call, Token::new(9)), None);
    let tokens = [1, 2].map(Token::new);
    let awaited: Vec<Token> = waiting.of(node(1)).iter().map(|of| of.token).collect();
    assert_eq!(awaited, tokens);
    assert_eq!(waiting.of(node(3)), []);
    assert_eq!(waiting.take(of(1).call, tokens[1]), Some(2));
    assert_eq!(waiting.take(of(1).call, tokens[1]), None);
}

/// Somebody has calls in the name of an initiator that it has made up, and their answers wait. The initiator is asked about its own
/// all the same.
#[test]
fn made_up_calls_do_not_keep_an_initiator_from_being_asked_about_its_own() {
    let mut waiting = WaitingAnswers::new(WaitingLimits::default());
    let call = |sequence, token| Awaited {
        call: CallId {
            initiator: node(1),
            sequence,
        },
        token: Token::new(token),
        request: RequestId::FIRST,
    };
    let real = call(1000, 4711);
    let mut put = |awaited, conn| {
        let put = waiting.put((awaited, ConnId::from_number(conn)), 10, (), at(0));
        put.expect("room");
    };
    put(real, 1);
    (0..900).for_each(|sequence| put(call(sequence, 66), 66));
    let told = waiting.of(node(1));
    assert!(told.contains(&real));
    assert_eq!(told.len(), 5);
}
