//! What calls do: random trees of tasks. A request's payload is its subtree, so that any server can execute it.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};

use crate::random::Random;

/// For how long a stuck handler waits: for longer than any call lasts.
const STUCK: Duration = Duration::from_secs(900);

/// What the handler of one request does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Task {
    /// Its number among the tasks and answers of its call.
    pub(crate) number: u32,
    pub(crate) acts: Vec<Act>,
    pub(crate) finale: Finale,
    /// Bytes of arguments besides the subtree.
    pub(crate) padding: u32,
}

/// One thing that a handler does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Act {
    Reply(Answer),
    Delegate(Hop),
    /// The handler yields for a while: what is held back leaves.
    Wait(Duration),
    /// It reads the body that follows its request, of so many bytes, to its end.
    Read(u32),
}

/// How a handler ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Finale {
    /// It returns; what it sent last, if anything, was its last message.
    Return,
    Respond(Answer),
    Forward(Hop),
    /// It returns an error.
    Fail,
    /// It panics.
    Panic,
}

/// A request for another server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Hop {
    /// The server's index among the nodes.
    pub(crate) server: u32,
    pub(crate) task: Box<Task>,
}

/// An answer that can be told from all others of its call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) number: u32,
    /// Bytes of payload besides what names it.
    pub(crate) padding: u32,
}

/// Bounds for random trees.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    /// Number of nodes.
    pub(crate) nodes: u32,
    /// Hops on the longest way from the initiator.
    pub(crate) depth: u32,
    /// Delegations of one request.
    pub(crate) fanout: u32,
    /// Answers of one request.
    pub(crate) replies: u32,
    /// Messages in all, about.
    pub(crate) messages: u32,
    /// Longest wait of a handler, in milliseconds.
    pub(crate) wait: u64,
    /// One of so many handlers is stuck; 0 is none.
    pub(crate) stuck: u64,
    /// One of so many payloads is large; 0 is none.
    pub(crate) large: u64,
}

impl Hop {
    /// A random tree of about as many messages as `shape` says, or fewer; numbers go on from `number`.
    pub(crate) fn random(shape: Shape, number: &mut u32, random: &mut Random) -> Self {
        let server = random.below(u64::from(shape.nodes)) as u32;
        let task = Box::new(Task::random(shape, number, random));
        Self { server, task }
    }

    /// A line of forwards, with a wait and an answer here and there.
    pub(crate) fn chain(shape: Shape, number: &mut u32, random: &mut Random) -> Self {
        let mut acts = Vec::new();
        let mine = take(number);
        if random.one_in(4) {
            acts.push(Act::Reply(Answer::random(shape, number, random)));
        }
        if shape.wait > 0 && random.one_in(4) {
            acts.push(Act::Wait(random.millis(0, shape.wait)));
        }
        let finale = match shape.depth {
            0 => Finale::Respond(Answer::random(shape, number, random)),
            _ => Finale::Forward(Self::chain(
                Shape {
                    depth: shape.depth - 1,
                    ..shape
                },
                number,
                random,
            )),
        };
        let server = random.below(u64::from(shape.nodes)) as u32;
        let task = Task {
            number: mine,
            acts,
            finale,
            padding: random_padding(shape, random),
        };
        Self {
            server,
            task: Box::new(task),
        }
    }

    /// A line of children, each of which has a sibling: so paths grow with each hop.
    pub(crate) fn ladder(shape: Shape, number: &mut u32, random: &mut Random) -> Self {
        let mine = take(number);
        let mut acts = Vec::new();
        if shape.depth > 0 {
            let below = Shape {
                depth: shape.depth - 1,
                ..shape
            };
            acts.push(Act::Delegate(Self::ladder(below, number, random)));
        }
        acts.push(Act::Reply(Answer::random(shape, number, random)));
        let task = Task {
            number: mine,
            acts,
            finale: Finale::Return,
            padding: 0,
        };
        Self {
            server: random.below(u64::from(shape.nodes)) as u32,
            task: Box::new(task),
        }
    }

    /// A task that waits and answers nothing.
    pub(crate) fn waiting(server: u32, wait: Duration) -> Self {
        let acts = vec![Act::Wait(wait)];
        let task = Box::new(Task {
            acts,
            ..Task::NOTHING
        });
        Self { server, task }
    }

    /// A task that sends one request on and waits a little for what becomes of it.
    pub(crate) fn sending_on(server: u32, mut hop: Self) -> Self {
        hop.task.number = 1;
        let acts = vec![Act::Delegate(hop), Act::Wait(Duration::from_millis(5))];
        let task = Box::new(Task {
            acts,
            ..Task::NOTHING
        });
        Self { server, task }
    }

    /// Adds the numbers of all answers that the tree gives; whether none of its handlers is to fail.
    pub(crate) fn add_answers(&self, answers: &mut BTreeSet<u32>) -> bool {
        let task = &*self.task;
        answers.extend(task.acts.iter().filter_map(|act| match act {
            Act::Reply(answer) => Some(answer.number),
            Act::Delegate(_) | Act::Wait(_) | Act::Read(_) => None,
        }));
        if let Finale::Respond(answer) = &task.finale {
            answers.insert(answer.number);
        }
        let fails = matches!(task.finale, Finale::Fail | Finale::Panic);
        let below = task.hops().map(|hop| hop.add_answers(answers));
        below.fold(!fails, |all, none_fails| all && none_fails)
    }

    /// Has bodies follow some requests of the tree, but no more than `left`.
    pub(crate) fn add_bodies(&mut self, left: &mut u32, random: &mut Random) {
        let task = &mut *self.task;
        if *left > 0 && random.one_in(4) {
            *left -= 1;
            let len = match random.one_in(8) {
                true => random.between(1000, 200_000),
                false => random.below(4000),
            };
            let at = random_place(&task.acts, random);
            task.acts.insert(at, Act::Read(len as u32));
        }
        task.hops_mut().for_each(|hop| hop.add_bodies(left, random));
    }

    /// No request of the tree is followed by one.
    pub(crate) fn drop_bodies(&mut self) {
        self.task.acts.retain(|act| !matches!(act, Act::Read(_)));
        self.task.hops_mut().for_each(Self::drop_bodies);
    }

    /// Marks the servers of the whole tree.
    pub(crate) fn servers(&self) -> u64 {
        let below = self.task.hops().map(Self::servers);
        below.fold(1 << self.server, |marks, more| marks | more)
    }

    /// Whether one of its handlers is stuck.
    pub(crate) fn is_stuck(&self) -> bool {
        self.stuck() != 0
    }

    /// The servers where one of its handlers is stuck, a bit each.
    pub(crate) fn stuck(&self) -> u64 {
        let own = u64::from(self.task.acts.contains(&Act::Wait(STUCK))) << self.server;
        let below = self.task.hops().map(Self::stuck);
        below.fold(own, |marks, more| marks | more)
    }

    /// How long its handlers wait, at most, one after the other.
    pub(crate) fn longest_wait(&self) -> Duration {
        let waits = self.task.acts.iter().map(|act| match act {
            Act::Wait(wait) => *wait,
            _ => Duration::ZERO,
        });
        let below = self.task.hops().map(Self::longest_wait).max();
        waits.sum::<Duration>() + below.unwrap_or_default()
    }

    /// Applies simplification number `index` of the tree; `None` if it was applied, else the number that is left.
    pub(crate) fn simplify(&mut self, index: usize) -> Option<usize> {
        let own = self.task.acts.len();
        if index < own {
            self.task.acts.remove(index);
            return None;
        }
        let mut left = index - own;
        if self.task.finale != Finale::Return {
            if left == 0 {
                self.task.finale = Finale::Return;
                return None;
            }
            left -= 1;
        }
        if self.task.padding > 0 {
            if left == 0 {
                self.task.padding = 0;
                return None;
            }
            left -= 1;
        }
        for hop in self.task.hops_mut() {
            left = hop.simplify(left)?;
        }
        Some(left)
    }
}

impl Task {
    /// A handler that does nothing.
    pub(crate) const NOTHING: Self = Self {
        number: 0,
        acts: Vec::new(),
        finale: Finale::Return,
        padding: 0,
    };

    fn random(shape: Shape, number: &mut u32, random: &mut Random) -> Self {
        let mine = take(number);
        let most = match shape.depth {
            0 => 0,
            _ => u64::from(shape.fanout.min(shape.messages)),
        };
        // Some stop early, so that trees are neither all deep nor all shallow.
        let children = if most == 0 || random.one_in(u64::from(shape.depth) + 4) {
            0
        } else {
            random.between(1, most) as u32
        };
        let replies = random.below(u64::from(shape.replies) + 1) as u32;
        let mut acts: Vec<Act> = (0..replies)
            .map(|_| Act::Reply(Answer::random(shape, number, random)))
            .collect();
        let mut left = shape.messages.saturating_sub(children + replies);
        for child in 0..children {
            // Often one child gets it all: so trees grow deep as well as broad.
            let messages = match random.below(3) {
                _ if child + 1 == children => left,
                0 => 0,
                1 => left,
                _ => random.below(u64::from(left) + 1) as u32,
            };
            left -= messages;
            let below = Shape {
                depth: shape.depth - 1,
                messages,
                ..shape
            };
            let hop = Hop::random(below, number, random);
            acts.insert(random_place(&acts, random), Act::Delegate(hop));
        }
        let waits = if shape.wait > 0 { random.below(3) } else { 0 };
        for _ in 0..waits {
            // Mostly short, now and then up to the longest.
            let most = if random.one_in(4) {
                shape.wait
            } else {
                shape.wait.min(5)
            };
            acts.insert(
                random_place(&acts, random),
                Act::Wait(random.millis(0, most)),
            );
        }
        if shape.stuck > 0 && random.one_in(shape.stuck) {
            acts.insert(random_place(&acts, random), Act::Wait(STUCK));
        }
        let finale = Finale::random(&mut acts, random);
        Self {
            number: mine,
            acts,
            finale,
            padding: random_padding(shape, random),
        }
    }

    /// How many bytes follow its request, if a body does.
    pub(crate) fn body(&self) -> Option<u32> {
        self.acts.iter().find_map(|act| match act {
            Act::Read(len) => Some(*len),
            _ => None,
        })
    }

    fn hops(&self) -> impl Iterator<Item = &Hop> {
        let acts = self.acts.iter().filter_map(|act| match act {
            Act::Delegate(hop) => Some(hop),
            Act::Reply(_) | Act::Wait(_) | Act::Read(_) => None,
        });
        acts.chain(match &self.finale {
            Finale::Forward(hop) => Some(hop),
            _ => None,
        })
    }

    fn hops_mut(&mut self) -> impl Iterator<Item = &mut Hop> {
        let acts = self.acts.iter_mut().filter_map(|act| match act {
            Act::Delegate(hop) => Some(hop),
            Act::Reply(_) | Act::Wait(_) | Act::Read(_) => None,
        });
        acts.chain(match &mut self.finale {
            Finale::Forward(hop) => Some(hop),
            _ => None,
        })
    }

    /// The task as the payload of a request.
    pub(crate) fn to_payload(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(64 + self.padding as usize);
        self.put(&mut out);
        out.put_bytes(self.number as u8, self.padding as usize);
        out.freeze()
    }

    /// The task in a request's payload; `None` if it is not whole.
    pub(crate) fn from_payload(payload: &[u8]) -> Option<Self> {
        let mut rest = payload;
        let task = Self::read(&mut rest)?;
        is_padding(rest, task.number, task.padding).then_some(task)
    }

    fn put(&self, out: &mut BytesMut) {
        out.put_u32(self.number);
        out.put_u32(self.padding);
        out.put_u32(self.acts.len() as u32);
        for act in &self.acts {
            match act {
                Act::Reply(answer) => answer.put(out, 0),
                Act::Delegate(hop) => hop.put(out, 1),
                Act::Wait(wait) => {
                    out.put_u8(2);
                    out.put_u64(wait.as_micros() as u64);
                }
                Act::Read(len) => {
                    out.put_u8(3);
                    out.put_u32(*len);
                }
            }
        }
        match &self.finale {
            Finale::Return => out.put_u8(0),
            Finale::Respond(answer) => answer.put(out, 1),
            Finale::Forward(hop) => hop.put(out, 2),
            Finale::Fail => out.put_u8(3),
            Finale::Panic => out.put_u8(4),
        }
    }

    fn read(bytes: &mut &[u8]) -> Option<Self> {
        let (number, padding, count) = (read_u32(bytes)?, read_u32(bytes)?, read_u32(bytes)?);
        let mut acts = Vec::new();
        for _ in 0..count {
            acts.push(match read_u8(bytes)? {
                0 => Act::Reply(Answer::read(bytes)?),
                1 => Act::Delegate(Hop::read(bytes)?),
                2 => Act::Wait(Duration::from_micros(u64::from_be_bytes(take_array(
                    bytes,
                )?))),
                3 => Act::Read(read_u32(bytes)?),
                _ => return None,
            });
        }
        let finale = match read_u8(bytes)? {
            0 => Finale::Return,
            1 => Finale::Respond(Answer::read(bytes)?),
            2 => Finale::Forward(Hop::read(bytes)?),
            3 => Finale::Fail,
            4 => Finale::Panic,
            _ => return None,
        };
        Some(Self {
            number,
            acts,
            finale,
            padding,
        })
    }
}

impl Hop {
    fn put(&self, out: &mut BytesMut, tag: u8) {
        out.put_u8(tag);
        out.put_u32(self.server);
        self.task.put(out);
    }

    fn read(bytes: &mut &[u8]) -> Option<Self> {
        let server = read_u32(bytes)?;
        let task = Box::new(Task::read(bytes)?);
        Some(Self { server, task })
    }
}

impl Finale {
    /// The last act becomes the finale half of the time, where it can.
    fn random(acts: &mut Vec<Act>, random: &mut Random) -> Self {
        match (random.below(16), acts.pop()) {
            (0, last) => {
                acts.extend(last);
                Self::Fail
            }
            (1, last) => {
                acts.extend(last);
                Self::Panic
            }
            (2..=9, Some(Act::Delegate(hop))) => Self::Forward(hop),
            (2..=9, Some(Act::Reply(answer))) => Self::Respond(answer),
            (_, last) => {
                acts.extend(last);
                Self::Return
            }
        }
    }
}

impl Answer {
    fn random(shape: Shape, number: &mut u32, random: &mut Random) -> Self {
        Self {
            number: take(number),
            padding: random_padding(shape, random),
        }
    }

    /// The answer as the payload of a response of the call with this mark.
    pub(crate) fn to_payload(self, call: u64) -> Bytes {
        let mut out = BytesMut::with_capacity(16 + self.padding as usize);
        out.put_u64(call);
        out.put_u32(self.number);
        out.put_u32(self.padding);
        out.put_bytes(self.number as u8, self.padding as usize);
        out.freeze()
    }

    /// The answer in a response's payload and the mark of its call; `None` if it is not whole.
    pub(crate) fn from_payload(payload: &[u8]) -> Option<(u64, Self)> {
        let mut rest = payload;
        let call = u64::from_be_bytes(take_array(&mut rest)?);
        let answer = Self::read(&mut rest)?;
        is_padding(rest, answer.number, answer.padding).then_some((call, answer))
    }

    fn put(self, out: &mut BytesMut, tag: u8) {
        out.put_u8(tag);
        out.put_u32(self.number);
        out.put_u32(self.padding);
    }

    fn read(bytes: &mut &[u8]) -> Option<Self> {
        Some(Self {
            number: read_u32(bytes)?,
            padding: read_u32(bytes)?,
        })
    }
}

impl fmt::Display for Hop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "n{}:{}", self.server, self.task)
    }
}

impl fmt::Display for Task {
    /// `n2:7{a8 wait(3ms) n0:9{.} > n1:10{a11.}}`: server, number, acts and end of a task; `.` returns, `!` fails.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{{", self.number)?;
        for act in &self.acts {
            match act {
                Act::Reply(answer) => write!(f, "{answer} ")?,
                Act::Delegate(hop) => write!(f, "{hop} ")?,
                Act::Wait(wait) => write!(f, "wait({wait:?}) ")?,
                Act::Read(len) => write!(f, "read({len}) ")?,
            }
        }
        match &self.finale {
            Finale::Return => f.write_str(".}")?,
            Finale::Respond(answer) => write!(f, "= {answer}}}")?,
            Finale::Forward(hop) => write!(f, "> {hop}}}")?,
            Finale::Fail => f.write_str("!}")?,
            Finale::Panic => f.write_str("panic!}")?,
        }
        match self.padding {
            0 => Ok(()),
            padding => write!(f, "+{padding}"),
        }
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.padding {
            0 => write!(f, "a{}", self.number),
            padding => write!(f, "a{}+{padding}", self.number),
        }
    }
}

fn take(number: &mut u32) -> u32 {
    *number += 1;
    *number - 1
}

fn random_place(acts: &[Act], random: &mut Random) -> usize {
    random.below(acts.len() as u64 + 1) as usize
}

/// Most payloads are small, a few need several frames or parts.
fn random_padding(shape: Shape, random: &mut Random) -> u32 {
    match shape.large {
        0 => 0,
        large if random.one_in(large) => random.between(1000, 300_000) as u32,
        _ if random.one_in(4) => random.below(300) as u32,
        _ => 0,
    }
}

fn is_padding(bytes: &[u8], number: u32, len: u32) -> bool {
    bytes.len() == len as usize && bytes.iter().all(|byte| *byte == number as u8)
}

fn take_array<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (array, rest) = bytes.split_first_chunk::<N>()?;
    *bytes = rest;
    Some(*array)
}

fn read_u32(bytes: &mut &[u8]) -> Option<u32> {
    take_array(bytes).map(u32::from_be_bytes)
}

fn read_u8(bytes: &mut &[u8]) -> Option<u8> {
    take_array::<1>(bytes).map(|[byte]| byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape = Shape {
        nodes: 5,
        depth: 6,
        fanout: 4,
        replies: 3,
        messages: 40,
        wait: 20,
        stuck: 20,
        large: 8,
    };

    #[test]
    fn tasks_survive_as_payloads() {
        for seed in 0..200 {
            let hop = Hop::random(SHAPE, &mut 0, &mut Random::new(seed));
            let payload = hop.task.to_payload();
            assert_eq!(
                Task::from_payload(&payload).as_ref(),
                Some(&*hop.task),
                "seed {seed}"
            );
            assert_eq!(Task::from_payload(&payload[..payload.len() - 1]), None);
        }
    }

    #[test]
    fn simplifications_end_at_a_task_that_only_returns() {
        for seed in 0..50 {
            let mut hop = Hop::random(SHAPE, &mut 0, &mut Random::new(seed));
            let mut steps = 0;
            while hop.simplify(0).is_none() {
                steps += 1;
                assert!(steps < 10_000, "seed {seed}: it never ends");
            }
            assert!(hop.task.acts.is_empty() && hop.task.finale == Finale::Return);
        }
    }
}
