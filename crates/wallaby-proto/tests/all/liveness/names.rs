//! Calls are told apart, whatever their sequences and tokens are: whether their places near each other are free or taken.

use std::collections::BTreeSet;

use wallaby_proto::call::records::Judgement;
use wallaby_proto::{CallId, Token};

use crate::chance::Random;
use crate::liveness::desk::node;
use crate::liveness::shelf::{HOME, Shelf, origin, request};

const INITIATORS: u64 = 3;

/// More steps than an initiator has places for calls that are near each other.
const STEPS: u64 = 6_000;

/// By initiator, sequence and token.
type Name = (u64, u64, u64);

/// Records, and the names of all calls that they must know: one answered request of each.
struct Known {
    shelf: Shelf,
    names: BTreeSet<Name>,
    /// The oldest call of each initiator.
    oldest: [u64; INITIATORS as usize],
}

impl Known {
    fn new() -> Self {
        Self {
            shelf: Shelf::new(),
            names: BTreeSet::new(),
            oldest: [1; INITIATORS as usize],
        }
    }

    /// In a row, or wanting the same place as others, or anywhere.
    fn any_name(&self, random: &mut Random, step: u64) -> Name {
        let initiator = random.below(INITIATORS);
        let ahead = match random.below(3) {
            0 => step / 2,
            1 => random.below(8) << (10 + random.below(30)),
            _ => random.below(4_000),
        };
        let sequence = self.oldest[initiator as usize] + ahead;
        (initiator, sequence, random.below(2))
    }

    fn admit(&mut self, (initiator, sequence, token): Name) {
        let peer = node(initiator + 1);
        let mut request = request(sequence, "0");
        request.call.initiator = peer;
        request.token = Token::new(token);
        request.oldest = self.oldest[initiator as usize];
        let now = self.shelf.time();
        let origin = origin(HOME.number(), peer);
        match self.shelf.records.admit(&request, origin, now) {
            Judgement::Accepted(ticket) => {
                assert!(
                    self.names.insert((initiator, sequence, token)),
                    "it was new"
                );
                let mut server = wallaby_proto::call::server::ServerHalf::new(&mut request);
                let sent = server.respond("answer".into(), None);
                self.shelf.release(ticket, sent, 0);
            }
            Judgement::Duplicate => assert!(self.names.contains(&(initiator, sequence, token))),
            other => panic!("{other:?}"),
        }
    }

    fn is_known(&self, (initiator, sequence, token): Name) -> bool {
        let call = CallId {
            initiator: node(initiator + 1),
            sequence,
        };
        let conn = self.shelf.records.route_back(call, Token::new(token));
        conn.is_some()
    }

    /// Calls below a higher oldest one are over, for whoever asks next.
    fn advance(&mut self, initiator: u64, oldest: u64) {
        self.oldest[initiator as usize] = oldest;
        self.names
            .retain(|&(of, sequence, _)| of != initiator || sequence >= oldest);
    }
}

#[test]
fn every_call_is_found_by_its_name_until_it_is_over() {
    for seed in 0..6 {
        println!("seed {seed}");
        let mut random = Random(seed);
        let mut known = Known::new();
        for step in 0..STEPS {
            let name = known.any_name(&mut random, step);
            known.admit(name);
            let (_, sequence, _) = name;
            if random.one_in(200) && seed % 2 == 0 {
                known.advance(name.0, sequence);
            }
            let other = known.any_name(&mut random, step);
            let is_current = other.1 >= known.oldest[other.0 as usize];
            let is_known = known.is_known(other);
            assert!(!is_current || is_known == known.names.contains(&other));
        }
        assert!(known.names.iter().all(|&name| known.is_known(name)));
        // Each request that says so forgets a part of them.
        let steps = known.shelf.records.remembered().calls as u64 / 256 + 1;
        for (initiator, step) in
            (0..INITIATORS).flat_map(|of| (0..=steps).map(move |step| (of, step)))
        {
            let sequence = u64::MAX - steps + step;
            known.advance(initiator, sequence);
            known.admit((initiator, sequence, 0));
        }
        let remembered = known.shelf.records.remembered();
        assert_eq!(remembered.calls as u64, INITIATORS, "all others are over");
        assert_eq!(remembered.requests as u64, INITIATORS);
    }
}
