//! What pongs name is asked about at a limited rate, whatever a server says.

use std::time::Duration;

use wallaby_proto::call::watch::MOST_ASKED;
use wallaby_proto::wire::{MAX_CHILDREN, Progress};
use wallaby_proto::{Path, RequestId};

use crate::liveness::desk::{Desk, PERIOD, TIMEOUT, at, call, child, ended, pong, running, token};

const MOST: usize = MOST_ASKED as usize;

/// Whoever is above those that are asked may be asked where they are.
const ABOVE: usize = 16;

/// So many children of one request.
fn list(children_from: usize, children: usize) -> Progress {
    Progress {
        children_from: children_from as u32,
        children: vec![child(2); children],
        ..running()
    }
}

/// Lets time pass, and tells what was wanted meanwhile.
fn until(desk: &mut Desk, time: u64) -> Vec<String> {
    let mut told = Vec::new();
    while let Some(due) = desk.watch.next_timeout()
        && due <= Duration::from_millis(time)
    {
        desk.now = desk.now.max(due.as_millis() as u64);
        let now = desk.time();
        desk.watch.handle_timeout(now);
        told.extend(desk.actions());
    }
    desk.now = time;
    told
}

/// What is pinged now, as text; whatever the answer is.
fn pings(told: &[String]) -> usize {
    told.iter().filter(|text| text.contains("ping ")).count()
}

/// Each pong names one child, and whoever is asked about it does so again: a chain that is as long as its inventor likes.
#[test]
fn a_chain_that_is_invented_grows_no_faster_than_it_is_asked_about() {
    let mut desk = Desk::new();
    let mut tip = at("0");
    for period in 1..5 {
        let mut asked = 0;
        loop {
            let told = desk.hear(2, pong(tip, Some(list(0, 1))));
            let path = tip.path.child(0, call(), token());
            tip = RequestId { path, hop: 0 };
            if pings(&told) == 0 {
                break; // nobody asks, so nobody answers
            }
            asked += pings(&told);
        }
        assert!(asked <= MOST, "{asked} in period {period}");
        let told = until(&mut desk, PERIOD * (period + 1));
        assert!(pings(&told) <= MOST + ABOVE, "{} besides", told.len());
    }
}

/// Lists of 256 children each, from each child again: however they are asked for, the pings of a period are limited.
#[test]
fn lists_that_are_invented_cause_so_many_pings_a_period() {
    let mut desk = Desk::new();
    let mut all: Vec<Path> = vec![at("0").path];
    let mut next = 0;
    let mut asked = 0;
    while next < all.len() && all.len() < 8 * MOST {
        let path = all[next];
        next += 1;
        let told = desk.hear(
            2,
            pong(RequestId { path, hop: 0 }, Some(list(0, MAX_CHILDREN))),
        );
        all.extend((0..MAX_CHILDREN as u32).map(|index| path.child(index, call(), token())));
        // Besides, a further list is asked for as long as the call has room.
        asked += told
            .iter()
            .filter(|text| !text.contains("from 256"))
            .count();
    }
    assert_eq!(asked, MOST);
    for period in 2..6 {
        let told = until(&mut desk, PERIOD * period);
        let lists = told.iter().filter(|text| text.contains("from 256"));
        assert!(told.len() - lists.count() <= MOST + ABOVE, "{}", told.len());
    }
}

/// An honest tree has thousands of requests under one: all of them are found, and none is called silent before it was asked.
#[test]
fn each_of_many_children_is_asked_in_its_turn_and_not_silent_before() {
    const CHILDREN: usize = 16 * MOST;
    let mut desk = Desk::new();
    let mut asked = 0;
    let mut answer = |desk: &mut Desk, told: &[String]| {
        for text in told.iter().filter(|text| text.starts_with("ping 0.")) {
            let request = text.split(' ').nth(1).expect("a request");
            desk.pong(2, request, ended(0, 0));
            asked += 1;
        }
    };
    for first in (0..CHILDREN).step_by(MAX_CHILDREN) {
        let told = desk.pong(1, "0", list(first, MAX_CHILDREN));
        let further = format!("ping 0 at m1 from {}", first + MAX_CHILDREN);
        assert!(
            told.contains(&further),
            "the next list is asked for at once"
        );
        answer(&mut desk, &told);
    }
    desk.pong(1, "0", ended(CHILDREN as u32, 0));
    let end = PERIOD * (2 + (CHILDREN / MOST) as u64);
    assert!(end > 3 * TIMEOUT);
    while desk.now < end {
        let time = desk.now + PERIOD;
        let told = until(&mut desk, time);
        assert!(desk.failure.is_none(), "{:?}", desk.failure);
        answer(&mut desk, &told);
    }
    assert_eq!(asked, CHILDREN);
    assert!(
        desk.watch.tree_mut().is_complete(),
        "all have told how they ended"
    );
}

/// Who announces itself is asked in any case: else it would take the initiator for dead.
#[test]
fn who_announces_itself_does_not_wait() {
    let mut desk = Desk::new();
    for first in 0..8 {
        desk.pong(1, "0", list(first * MAX_CHILDREN, MAX_CHILDREN));
    }
    let last = format!("0.{}", 8 * MAX_CHILDREN - 1);
    let told = desk.announce(2, &last, running());
    assert_eq!(told, [format!("ping {last} at m2")]);
    desk.abort();
    desk.now += PERIOD;
    let told = desk.announce(2, &last, running());
    assert_eq!(told, [format!("ping {last} at m2 abort")]);
}

/// An abort reaches at once whoever was asked before, and the others by and by.
#[test]
fn an_abort_reaches_a_large_tree() {
    let mut desk = Desk::new();
    for first in 0..8 {
        desk.pong(1, "0", list(first * MAX_CHILDREN, MAX_CHILDREN));
    }
    let told = desk.abort();
    assert_eq!(pings(&told), 1 + MOST, "{}", told.len());
    let told = until(&mut desk, 3 * PERIOD);
    let mut children: Vec<_> = told
        .iter()
        .filter(|text| text.contains("ping 0."))
        .collect();
    children.sort_unstable();
    children.dedup();
    assert!(children.len() >= MOST, "{}", children.len());
}

/// What a call has no room for is told to stop, and who goes on about it is not told for ever.
#[test]
fn a_stray_pong_is_answered_so_many_times() {
    let mut desk = Desk::of_requests(300);
    for first in 0..2 {
        desk.pong(1, "0", list(first * MAX_CHILDREN, MAX_CHILDREN));
    }
    assert!(desk.failure.is_some(), "they are too many");
    let told: usize = (0..2000)
        .map(|_| desk.pong(8, "0.400.1", running()).len())
        .filter(|told| *told > 0)
        .count();
    assert!(
        told <= MOST,
        "they were told as fast as they were named: {told}"
    );
    // Those who announce themselves are told so many times a period besides.
    let mut announced = 0;
    for _ in 0..3 * MOST {
        announced += desk.announce(8, "0.400.2", running()).len();
    }
    assert!(announced <= MOST, "{announced}");
    desk.now += PERIOD;
    assert_eq!(desk.announce(8, "0.400.2", running()).len(), 1);
}

/// Winding down ends, although a server says again and again that its request runs on as if nobody had stopped it.
#[test]
fn who_does_not_say_that_it_was_stopped_shows_no_life() {
    let mut desk = Desk::new();
    desk.abort();
    let mut told = Vec::new();
    for time in 1..20 {
        told.extend(until(&mut desk, PERIOD + 50 * time));
        told.extend(desk.pong(1, "0", running()));
    }
    assert!(told.iter().any(|text| text.contains("quiet")), "{told:?}");
}
