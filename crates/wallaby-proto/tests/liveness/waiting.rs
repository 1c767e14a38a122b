//! Answers to which no way leads wait within limits, and leave in order.

use std::time::Duration;

use wallaby_proto::call::waiting::{Waiting, WaitingLimits};

use crate::desk::node;

const LIMITS: WaitingLimits = WaitingLimits {
    answers: 3,
    bytes: 1000,
    time: Duration::from_secs(10),
};

fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[test]
fn answers_leave_in_order_when_there_is_a_way_to_their_initiator() {
    let mut waiting = Waiting::new(LIMITS);
    for (initiator, what, second) in [(1, "a", 0), (2, "b", 1), (1, "c", 2)] {
        let put = waiting.put(node(initiator), 10, what, at(second));
        put.expect("there is room");
    }
    assert!(!waiting.is_empty());
    assert_eq!(waiting.take(node(3)), None);
    assert_eq!(waiting.take(node(1)), Some("a"));
    assert_eq!(waiting.take(node(1)), Some("c"));
    assert_eq!(waiting.take(node(1)), None);
    assert_eq!(waiting.len(), 1);
    assert_eq!(waiting.next_timeout(), Some(at(11)));
}

#[test]
fn nobody_waits_for_ever() {
    let mut waiting = Waiting::new(LIMITS);
    waiting.put(node(1), 10, "a", at(0)).expect("room");
    waiting.put(node(2), 10, "b", at(5)).expect("room");
    assert_eq!(waiting.expired(at(9)), None);
    assert_eq!(waiting.expired(at(10)), Some("a"));
    assert_eq!(waiting.expired(at(10)), None);
    assert_eq!(waiting.take(node(1)), None);
    assert_eq!(waiting.expired(at(100)), Some("b"));
    assert!(waiting.is_empty());
    assert_eq!(waiting.next_timeout(), None);
}

#[test]
fn so_many_may_wait_and_no_more() {
    let mut waiting = Waiting::new(LIMITS);
    let first = waiting.put(node(1), 0, 0, at(0)).expect("room");
    for number in 1..3 {
        waiting.put(node(1), 0, number, at(0)).expect("room");
    }
    let (full, what) = waiting.put(node(2), 0, 3, at(0)).expect_err("no room");
    assert_eq!((full.answers, full.limits, what), (3, LIMITS, 3));
    assert!(full.to_string().contains("at most 3"), "{full}");
    assert_eq!(waiting.remove(first), Some(0));
    assert_eq!(waiting.remove(first), None);
    waiting
        .put(node(2), 0, 3, at(0))
        .expect("there is room again");
}

#[test]
fn so_many_bytes_may_wait_and_no_more() {
    let mut waiting = Waiting::new(LIMITS);
    waiting.put(node(1), 800, 'a', at(0)).expect("room");
    let (full, _) = waiting.put(node(1), 100, 'b', at(0)).expect_err("no room");
    assert_eq!(full.bytes, 864);
    assert!(full.to_string().contains("1000 bytes"), "{full}");
    waiting.put(node(1), 72, 'c', at(0)).expect("just so many");
    assert_eq!(waiting.take(node(1)), Some('a'));
    waiting
        .put(node(1), 800, 'd', at(0))
        .expect("its room is free");
}

#[test]
fn the_room_of_an_answer_that_is_taken_back_is_free_to_the_byte() {
    let mut waiting = Waiting::new(LIMITS);
    let first = waiting.put(node(1), 300, 'a', at(0)).expect("room");
    waiting.put(node(2), 300, 'b', at(0)).expect("room");
    assert_eq!(waiting.len(), 2);
    assert_eq!(waiting.remove(first), Some('a'));
    let (full, _) = waiting.put(node(1), 573, 'c', at(0)).expect_err("too long");
    assert_eq!((full.answers, full.bytes), (1, 364));
    waiting.put(node(1), 572, 'd', at(0)).expect("just so long");
}
