//! What calls do: trees of requests, drawn at random, each request with a number that occurs once in a run.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use wallaby_bench::Transport;
use wallaby_bench::random::Random;

/// A request and what it leads to.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Step {
    /// Its number in the whole run.
    pub(crate) id: u64,
    /// Who handles it.
    pub(crate) server: u8,
    /// How long the handler works before it says anything.
    pub(crate) work_us: u32,
    /// How often it answers, and with how much.
    pub(crate) answers: u16,
    pub(crate) answer_bytes: u32,
    /// What it hands on afterwards.
    pub(crate) then: Vec<Self>,
    /// How long it goes on after that.
    pub(crate) hold_ms: u32,
    /// Makes the request large.
    pub(crate) filler: Bytes,
}

/// A tree that grows by as many requests at each hop, for so many hops.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Spread {
    pub(crate) wide: u16,
    pub(crate) deep: u16,
    /// How long the handler of its first request goes on.
    pub(crate) hold_ms: u32,
    /// When nothing of it should run any more ([`crate::moment::now`]); 0: whenever.
    pub(crate) until: u64,
}

impl Spread {
    pub(crate) fn of(wide: u16, deep: u16) -> Self {
        Self {
            wide,
            deep,
            hold_ms: 0,
            until: 0,
        }
    }
}

/// An answer.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Receipt {
    /// The request that it answers.
    pub(crate) id: u64,
    /// Which of its answers, from 0 on.
    pub(crate) index: u16,
    /// As long as was asked for.
    pub(crate) filler: Bytes,
}

impl Receipt {
    pub(crate) fn new(step: &Step, index: u16) -> Self {
        Self {
            id: step.id,
            index,
            filler: filler(step.id, index, step.answer_bytes as usize),
        }
    }

    /// Whether all its bytes are what was sent.
    pub(crate) fn is_intact(&self) -> bool {
        let expected = fill(self.id, self.index);
        self.filler.iter().all(|byte| *byte == expected)
    }
}

fn filler(id: u64, index: u16, size: usize) -> Bytes {
    if size == 0 {
        return Bytes::new();
    }
    Bytes::from(vec![fill(id, index); size])
}

fn fill(id: u64, index: u16) -> u8 {
    (id.wrapping_mul(31) ^ u64::from(index)) as u8
}

/// The number of a request: its client, that client's incarnation, the call, and the place in the call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Number {
    pub(crate) client: u8,
    pub(crate) incarnation: u16,
    pub(crate) call: u32,
    pub(crate) node: u8,
}

impl Number {
    /// Calls of clients from here on are not written down: those to servers that lie, by the client with the number that is left.
    pub(crate) const UNRECORDED: u8 = 128;
    /// Requests of clients that lie.
    pub(crate) const HOSTILE: u8 = 255;

    /// Whether servers write down what they do for it.
    pub(crate) fn is_recorded(self) -> bool {
        self.client < Self::UNRECORDED
    }

    pub(crate) fn pack(self) -> u64 {
        u64::from(self.client) << 56
            | u64::from(self.incarnation) << 40
            | u64::from(self.call) << 8
            | u64::from(self.node)
    }

    pub(crate) fn unpack(id: u64) -> Self {
        Self {
            client: (id >> 56) as u8,
            incarnation: (id >> 40) as u16,
            call: (id >> 8) as u32,
            node: id as u8,
        }
    }
}

/// What kind of tree a call is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Shape {
    /// Handed on until the last server answers once.
    Line,
    /// Handed to several servers at once, each of which answers.
    Fanout,
    /// Many answers by one server.
    Stream,
    /// Any tree.
    Tree,
    /// Large answers, some from the second hop.
    LargeAnswers,
    /// A large request that is handed on.
    LargeRequest,
    /// A line whose last server goes on for long after its answer; never drawn.
    Lasting,
}

/// What calls are drawn from.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Drawing {
    pub(crate) servers: u8,
    pub(crate) transport: Transport,
    /// Longest work of a handler, in microseconds.
    pub(crate) work_us: u32,
    /// Longest work of one in fifty handlers, which is longer than silence may last.
    pub(crate) long_work_us: u32,
}

/// A tree under construction.
struct Planner<'a> {
    drawing: Drawing,
    random: &'a mut Random,
    root: Number,
    nodes: u8,
}

/// Draws a call.
pub(crate) fn draw(drawing: Drawing, root: Number, random: &mut Random) -> (Shape, Step) {
    let shape = match random.below(20) {
        0..=8 => Shape::Line,
        9..=12 => Shape::Fanout,
        13..=14 => Shape::Stream,
        15..=17 => Shape::Tree,
        18 => Shape::LargeAnswers,
        _ => Shape::LargeRequest,
    };
    let mut planner = Planner {
        drawing,
        random,
        root,
        nodes: 0,
    };
    let step = match shape {
        Shape::Line | Shape::Lasting => {
            let hops = [1, 1, 2, 4][planner.random.below(4)];
            planner.line(hops, 1, 0)
        }
        Shape::Fanout => planner.fanout(),
        Shape::Stream => {
            let answers = planner.random.between(10, 80) as u16;
            let bytes = planner.random.between(0, 2000) as u32;
            planner.leaf(answers, bytes)
        }
        Shape::Tree => planner.tree(3),
        Shape::LargeAnswers => {
            let (hops, answers) = (planner.random.below(2) + 1, planner.random.between(1, 3));
            let bytes = planner.large();
            planner.line(hops, answers as u16, bytes)
        }
        Shape::LargeRequest => {
            let size = planner.large() as usize;
            let mut step = planner.line(2, 1, 0);
            // The first hop carries it as a part of what it hands on.
            step.then[0].filler = Bytes::from(vec![7; size]);
            step
        }
    };
    (shape, step)
}

/// A line of requests at these servers; the last one answers and then holds on.
pub(crate) fn line(root: Number, servers: &[u8], hold_ms: u32) -> Step {
    let mut then = Vec::new();
    for (node, server) in servers.iter().enumerate().rev() {
        let is_last = node + 1 == servers.len();
        let id = Number {
            node: node as u8,
            ..root
        };
        then = vec![Step {
            id: id.pack(),
            server: *server,
            work_us: 0,
            answers: u16::from(is_last),
            answer_bytes: 0,
            then,
            hold_ms: if is_last { hold_ms } else { 0 },
            filler: Bytes::new(),
        }];
    }
    then.swap_remove(0)
}

impl Planner<'_> {
    fn leaf(&mut self, answers: u16, answer_bytes: u32) -> Step {
        let id = Number {
            node: self.nodes,
            ..self.root
        };
        self.nodes += 1;
        let most = match self.random.per_mille(20) {
            true => self.drawing.long_work_us,
            false => self.drawing.work_us,
        };
        // One in three does not wait at all: it is handled without a task switch.
        let work_us = match self.random.below(3) {
            0 => 0,
            _ => self.random.between(0, u64::from(most)) as u32,
        };
        Step {
            id: id.pack(),
            server: self.random.below(usize::from(self.drawing.servers)) as u8,
            work_us,
            answers,
            answer_bytes,
            then: Vec::new(),
            hold_ms: 0,
            filler: Bytes::new(),
        }
    }

    fn line(&mut self, hops: usize, answers: u16, answer_bytes: u32) -> Step {
        if hops <= 1 {
            return self.leaf(answers, answer_bytes);
        }
        let mut step = self.leaf(0, 0);
        step.then = vec![self.line(hops - 1, answers, answer_bytes)];
        step
    }

    fn fanout(&mut self) -> Step {
        let mut step = self.leaf(0, 0);
        for _ in 0..self.random.between(2, 6) {
            let answers = self.random.between(0, 3) as u16;
            let leaf = self.leaf(answers, 20);
            step.then.push(leaf);
        }
        step
    }

    fn tree(&mut self, depth: u64) -> Step {
        let answers = self.random.between(0, 2) as u16;
        let mut step = self.leaf(answers, 10);
        if depth > 0 {
            for _ in 0..self.random.between(0, 3) {
                let child = self.tree(depth - 1);
                step.then.push(child);
            }
        }
        step
    }

    /// Over UDP a message has at most 64 KiB, all around it included.
    fn large(&mut self) -> u32 {
        let most = match self.drawing.transport {
            Transport::Udp => 60_000,
            Transport::Tcp | Transport::Unix | Transport::Shm => 1_500_000,
        };
        self.random.between(20_000, most) as u32
    }
}

/// What a call's end is compared with: a request of its tree.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Planned {
    pub(crate) id: u64,
    pub(crate) server: u8,
    pub(crate) answers: u16,
    /// Who hands it on; None: the initiator itself.
    pub(crate) delegator: Option<u8>,
}

impl Step {
    /// All requests of the tree.
    pub(crate) fn planned(&self) -> Vec<Planned> {
        let mut all = Vec::new();
        self.collect(None, &mut all);
        all
    }

    fn collect(&self, delegator: Option<u8>, all: &mut Vec<Planned>) {
        let Self {
            id,
            server,
            answers,
            ..
        } = *self;
        all.push(Planned {
            id,
            server,
            answers,
            delegator,
        });
        for step in &self.then {
            step.collect(Some(server), all);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn numbers_unpack_to_what_was_packed() {
        let number = Number {
            client: 200,
            incarnation: 4_000,
            call: u32::MAX,
            node: 255,
        };
        assert_eq!(Number::unpack(number.pack()), number);
    }

    #[test]
    fn requests_of_a_call_have_numbers_of_their_own() {
        let drawing = Drawing {
            servers: 4,
            transport: Transport::Udp,
            work_us: 100,
            long_work_us: 1000,
        };
        let mut random = Random::new(1);
        let mut shapes = HashSet::new();
        for call in 0..2000 {
            let root = Number {
                client: 1,
                incarnation: 0,
                call,
                node: 0,
            };
            let (shape, step) = draw(drawing, root, &mut random);
            shapes.insert(shape);
            let planned = step.planned();
            let ids: HashSet<u64> = planned.iter().map(|request| request.id).collect();
            assert_eq!(ids.len(), planned.len());
            assert!(planned.iter().all(|request| request.server < 4));
        }
        assert_eq!(shapes.len(), 6);
    }
}
