//! What single nodes do: cases that are rare in a ring.
#![allow(clippy::unwrap_used, reason = "a test that fails says where")]

use wallaby_chord::id::{RingId, Span};
use wallaby_chord::message::{Ask, Copying, Found, Lookup, Miss, Peer, Refusal, Told, Wish};
use wallaby_chord::node::{Action, Config, Node};
use wallaby_chord::store::{Key, Store};

fn peer(id: u64) -> Peer {
    Peer {
        id: RingId(id),
        host: format!("mem://host-{}", id % 3).parse().unwrap(),
    }
}

/// A node of the ring 10, 20, ... 80.
fn node(id: u64) -> Node {
    let members: Vec<Peer> = (1..=8).map(|number| peer(number * 10)).collect();
    Node::settled(peer(id), &members, Config::default())
}

/// A node has joined before this one: nobody else knows yet.
fn join_before(node: &mut Node, id: u64) {
    let from = peer(id);
    let told = node.handle_ask(Ask::Notify {
        from,
        joining: true,
    });
    assert!(
        matches!(
            told,
            Ok(Told::Accepted {
                hand_over: true,
                ..
            })
        ),
        "{told:?}"
    );
}

fn copying(to: u64, rest: &[u64]) -> Copying {
    let key = Key {
        id: RingId(15),
        name: "k".into(),
    };
    let entry = Store::new(1).put(&key, vec![1], 7, 0).unwrap();
    let found = Found {
        owner: peer(20),
        span: None,
        hops: 0,
        trail: None,
        value: None,
        copies: 1,
    };
    Copying {
        to: RingId(to),
        previous: RingId(20),
        reached: RingId(20),
        rest: rest.iter().map(|id| peer(*id)).collect(),
        avoid: Default::default(),
        key,
        entry,
        found,
    }
}

#[test]
fn copies_come_by_who_has_just_joined() {
    let (mut node_30, mut node_40) = (node(30), node(40));
    join_before(&mut node_30, 25);
    // The owner, 20, knows 30 and 40; 25 stands before 30.
    let Action::Copy(next, copy) = node_30.handle_copying(copying(30, &[40])) else {
        panic!("it goes on");
    };
    assert_eq!(next, peer(25));
    let mut joined = Node::settled(peer(25), &[peer(20), peer(25), peer(30)], Config::default());
    let Action::Copy(next, copy) = joined.handle_copying(*copy) else {
        panic!("it goes on behind 30, which has its copy");
    };
    assert_eq!(next, peer(40));
    let Action::Answer(found) = node_40.handle_copying(*copy) else {
        panic!("it is at its end");
    };
    assert_eq!(found.copies, 4);
    for keeper in [&node_30, &joined, &node_40] {
        assert_eq!(keeper.store().len(), 1);
    }
}

#[test]
fn lookups_go_back_to_who_has_just_joined() {
    let mut node = node(30);
    join_before(&mut node, 25);
    let mut lookup = Lookup::new(RingId(23), RingId(30), Wish::Owner);
    lookup.claimed = Some(RingId(20));
    let Action::Forward(to, _) = node.handle_lookup(lookup.clone()) else {
        panic!("it is 25's");
    };
    assert_eq!(to, peer(25));

    // Somebody says that 25 does not answer: that is looked into before 30 answers for it.
    lookup.avoid.add(peer(25));
    let Action::Confirm(whom, mut unconfirmed) = node.handle_lookup(lookup.clone()) else {
        panic!("hearsay is not believed");
    };
    assert_eq!(whom, peer(25));
    node.handle_confirmed(&whom, true, &mut unconfirmed);
    let Action::Forward(to, _) = node.handle_lookup(*unconfirmed) else {
        panic!("it answers after all");
    };
    assert_eq!(to, peer(25));
    node.handle_confirmed(&whom, false, &mut lookup);
    assert!(matches!(node.handle_lookup(lookup), Action::Answer(found) if found.owner == peer(30)));
}

#[test]
fn the_next_best_finger_is_taken() {
    let mut node = node(10);
    let mut lookup = Lookup::new(RingId(75), RingId(10), Wish::Owner);
    let Action::Forward(best, _) = node.handle_lookup(lookup.clone()) else {
        panic!("75 is far away");
    };
    assert_eq!(best, peer(70));
    lookup.avoid.add(best);
    let Action::Forward(next, forwarded) = node.handle_lookup(lookup.clone()) else {
        panic!("there are others");
    };
    assert_eq!((next, forwarded.hops), (peer(60), 1));
    lookup.avoid.add_host(peer(60).host);
    let Action::Forward(next, _) = node.handle_lookup(lookup.clone()) else {
        panic!("there are others still");
    };
    assert_eq!(next, peer(50));
    for host in 0..3 {
        lookup.avoid.add_host(peer(host).host);
    }
    let refused = Action::Refuse(Refusal::NotReady(RingId(10)));
    assert_eq!(
        node.handle_lookup(lookup),
        refused,
        "it does not count itself owner of all"
    );
}

#[test]
fn lookups_that_go_in_circles_end() {
    // Whatever nodes know of each other, a lookup ends at some node.
    let lookup = |hops| {
        let mut lookup = Lookup::new(RingId(75), RingId(10), Wish::Owner);
        lookup.hops = hops;
        lookup
    };
    let limit = Config::default().hop_limit;
    let mut node = node(10);
    assert!(matches!(
        node.handle_lookup(lookup(limit - 1)),
        Action::Forward(..)
    ));
    let refused = Action::Refuse(Refusal::TooManyHops { limit });
    assert_eq!(node.handle_lookup(lookup(limit)), refused);
}

#[test]
fn a_place_is_taken_once() {
    let mut node = node(30);
    for taken in [30, 20] {
        let mut from = peer(taken);
        from.host = "mem://elsewhere".parse().unwrap();
        let told = node.handle_ask(Ask::Notify {
            from,
            joining: true,
        });
        assert_eq!(told, Err(Refusal::Taken(RingId(taken))));
    }
    // Who looks for its place and finds another node there is gone.
    let mut twin = peer(30);
    twin.host = "mem://elsewhere".parse().unwrap();
    let mut twin = Node::join(twin, peer(10), Config::default());
    let errand = twin.tick().pop().unwrap();
    let Ask::Find { lookup } = &errand.ask else {
        panic!("a lookup comes first");
    };
    let Action::Answer(found) = node.handle_lookup(*lookup.clone()) else {
        panic!("30 is where it is");
    };
    twin.handle_told(&errand, Ok(Told::Found(found)));
    assert!(twin.is_gone());
}

#[test]
fn a_node_that_joins_answers_only_when_it_has_what_it_answers_for() {
    let mut behind = node(30);
    let key = |name: &str, id| Key {
        id: RingId(id),
        name: name.into(),
    };
    let entry = |key: &Key| Store::new(1).put(key, vec![1], 7, 0).unwrap();
    let entries: Vec<_> = [key("its", 25), key("not its", 28), key("a copy", 15)]
        .into_iter()
        .map(|key| (key.clone(), entry(&key)))
        .collect();
    behind.handle_ask(Ask::Keep { entries }).unwrap();

    let mut new = Node::join(peer(26), peer(10), Config::default());
    let get = || {
        let wish = Wish::Get(key("its", 25));
        let mut lookup = Lookup::new(RingId(25), RingId(26), wish);
        lookup.claimed = Some(RingId(20));
        lookup
    };
    let not_ready = Action::Refuse(Refusal::NotReady(RingId(26)));
    let find = new.tick().pop().unwrap();
    assert_eq!(new.handle_lookup(get()), not_ready);
    let found = Found {
        owner: peer(30),
        span: None,
        hops: 0,
        trail: None,
        value: None,
        copies: 0,
    };
    let notify = new
        .handle_told(&find, Ok(Told::Found(Box::new(found))))
        .pop()
        .unwrap();
    let accepted = behind.handle_ask(notify.ask.clone()).unwrap();
    let hand_over = new.handle_told(&notify, Ok(accepted)).pop().unwrap();
    assert_eq!(new.handle_lookup(get()), not_ready);
    let all = behind.handle_ask(hand_over.ask.clone()).unwrap();
    new.handle_told(&hand_over, Ok(all));
    assert!(
        matches!(new.handle_lookup(get()), Action::Answer(found) if found.value == Some(vec![1]))
    );
    // What is the next node's stays there; copies come along.
    assert_eq!(new.store().len(), 2);
    assert!(new.store().find(&key("not its", 28)).is_none());

    // Had the next node crashed meanwhile, it would look for its place again.
    let mut new = Node::join(peer(26), peer(10), Config::default());
    let find = new.tick().pop().unwrap();
    new.handle_told(&find, Err(Miss::Lost(None)));
    assert!(new.is_seeking());
}

#[test]
fn what_is_handed_over_comes_in_parts() {
    let mut behind = node(30);
    let whole = Span {
        after: RingId(30),
        to: RingId(20),
    };
    let key = |number: u64| Key {
        id: RingId((1 << 40) + number),
        name: String::new(),
    };
    for number in 0..2000 {
        let entry = Store::new(1).put(&key(number), vec![1], 7, 0).unwrap();
        let entries = vec![(key(number), entry)];
        behind.handle_ask(Ask::Keep { entries }).unwrap();
    }
    let mut span = whole;
    let (mut parts, mut all) = (0, std::collections::BTreeSet::new());
    loop {
        let Ok(Told::Entries(entries, more)) = behind.handle_ask(Ask::HandOver { span }) else {
            panic!("entries");
        };
        assert!(entries.len() <= 256);
        all.extend(entries.into_iter().map(|(key, _)| key));
        parts += 1;
        match more {
            Some(last) => span.after = RingId(last.0 - 1),
            None => break,
        }
    }
    assert_eq!(all.len(), 2000);
    assert!(parts >= 4, "{parts}");
}
