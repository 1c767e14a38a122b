//! What every handler of a call does.

use crate::chance::Random;

/// What one handler does, one act after the other; each takes a while.
#[derive(Debug, Clone, Default)]
pub(crate) struct Plan {
    pub(crate) acts: Vec<(u64, Act)>,
    pub(crate) ending: Ending,
}

#[derive(Debug, Clone)]
pub(crate) enum Act {
    /// An answer that takes so long to write.
    Reply(u64),
    /// To this machine.
    Delegate(usize, Plan),
    Flush,
}

#[derive(Debug, Clone, Default)]
pub(crate) enum Ending {
    #[default]
    Finish,
    Respond(u64),
    Forward(usize, Box<Plan>),
    Fail,
}

/// How large trees are and how long their handlers take.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) servers: (usize, usize),
    pub(crate) depth: u32,
    pub(crate) fanout: u64,
    /// Milliseconds that an act takes at most.
    pub(crate) act: u64,
    /// Milliseconds that a large answer takes to write; 0 for none.
    pub(crate) bulk: u64,
}

impl Plan {
    pub(crate) fn random(shape: Shape, random: &mut Random) -> Self {
        let mut acts = Vec::new();
        let children = match shape.depth {
            0 => 0,
            _ => random.below(shape.fanout + 1),
        };
        let below = Shape {
            depth: shape.depth.saturating_sub(1),
            ..shape
        };
        for _ in 0..children {
            acts.push(Act::Delegate(
                shape.server(random),
                Self::random(below, random),
            ));
        }
        for _ in 0..random.below(3) {
            let place = random.below(acts.len() as u64 + 1) as usize;
            acts.insert(place, Act::Reply(shape.bulk(random)));
        }
        if random.one_in(3) {
            let place = random.below(acts.len() as u64 + 1) as usize;
            acts.insert(place, Act::Flush);
        }
        let ending = match (random.below(8), acts.pop()) {
            (0, _) => Ending::Fail,
            (1..=4, Some(Act::Delegate(to, plan))) => Ending::Forward(to, Box::new(plan)),
            (1..=4, Some(Act::Reply(bulk))) => Ending::Respond(bulk),
            (_, last) => {
                acts.extend(last);
                Ending::Finish
            }
        };
        let acts = acts
            .into_iter()
            .map(|act| (shape.time(random), act))
            .collect();
        Self { acts, ending }
    }

    /// A chain of this many hops that answers at its end.
    pub(crate) fn chain(hops: u32, act: u64, shape: Shape, random: &mut Random) -> Self {
        let mut plan = Self {
            acts: vec![(act, Act::Flush)],
            ending: Ending::Respond(0),
        };
        for _ in 1..hops {
            plan = Self {
                acts: vec![(act, Act::Flush)],
                ending: Ending::Forward(shape.server(random), Box::new(plan)),
            };
        }
        plan
    }
}

impl Shape {
    pub(crate) fn server(&self, random: &mut Random) -> usize {
        let (from, to) = self.servers;
        from + random.below((to - from) as u64) as usize
    }

    fn bulk(&self, random: &mut Random) -> u64 {
        match self.bulk > 0 && random.one_in(3) {
            true => random.below(self.bulk),
            false => 0,
        }
    }

    /// Most acts are short, some long.
    fn time(&self, random: &mut Random) -> u64 {
        match random.below(4) {
            0 => random.below(self.act + 1),
            1 => random.below(self.act / 8 + 1),
            _ => 0,
        }
    }
}
