//! What every handler of a tree does.

use crate::chance::Random;

/// What one handler does, from its first act to its end.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Plan {
    pub(super) acts: Vec<Act>,
    pub(super) finale: Finale,
}

/// Something that a handler does before its end.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Act {
    Reply,
    Delegate(Plan),
    /// The handler yields: what was held back leaves (docs/protocol.md, rule 4d).
    Flush,
}

/// How a handler ends.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Finale {
    /// Without a last message of its own: the one held back is the last, if there is one.
    Finish,
    Respond,
    Forward(Box<Plan>),
    /// With a status; what was held back is not sent.
    Fail,
}

/// The size of random trees.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    /// Hops on the longest way from the initiator.
    pub(super) depth: u64,
    /// Delegations of one request.
    pub(super) fanout: u64,
    /// Replies of one request.
    pub(super) replies: u64,
    /// Messages in all, about.
    pub(super) messages: u64,
}

impl Plan {
    /// A handler that does nothing.
    pub(super) const IDLE: Self = Self {
        acts: Vec::new(),
        finale: Finale::Finish,
    };

    /// A random plan that causes about as many messages as `shape` says, or fewer.
    pub(super) fn random(shape: Shape, random: &mut Random) -> Self {
        let most = if shape.depth == 0 {
            0
        } else {
            shape.fanout.min(shape.messages)
        };
        // Some stop early, so that trees are neither all deep nor all shallow.
        let children = if most == 0 || random.below(shape.depth + 4) == 0 {
            0
        } else {
            1 + random.below(most)
        };
        let replies = random.below(shape.replies + 1);
        let below = shape.messages.saturating_sub(children + replies);
        let mut acts: Vec<Act> = (0..replies).map(|_| Act::Reply).collect();
        let mut left = below;
        for child in 0..children {
            // Often one child gets it all: so trees grow deep as well as broad.
            let messages = match random.below(3) {
                _ if child + 1 == children => left,
                0 => 0,
                1 => left,
                _ => random.below(left + 1),
            };
            left -= messages;
            let shape = Shape {
                depth: shape.depth - 1,
                messages,
                ..shape
            };
            let place = random.index(acts.len() + 1);
            acts.insert(place, Act::Delegate(Self::random(shape, random)));
        }
        let flushes = if random.below(3) == 0 {
            random.below(acts.len() as u64 + 1)
        } else {
            0
        };
        for _ in 0..flushes {
            acts.insert(random.index(acts.len() + 1), Act::Flush);
        }
        let finale = Self::random_finale(&mut acts, random);
        Self { acts, finale }
    }

    /// The last act becomes the finale half of the time, where it can.
    fn random_finale(acts: &mut Vec<Act>, random: &mut Random) -> Finale {
        match (random.below(8), acts.pop()) {
            (0, last) => {
                acts.extend(last);
                Finale::Fail
            }
            (1..=4, Some(Act::Delegate(plan))) => Finale::Forward(Box::new(plan)),
            (1..=4, Some(Act::Reply)) => Finale::Respond,
            (_, last) => {
                acts.extend(last);
                Finale::Finish
            }
        }
    }
}
