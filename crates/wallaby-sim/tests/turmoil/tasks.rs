//! What calls do: a tree of tasks. A request's argument is its subtree, so that any host can execute it.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::random::Random;

/// What handlers say that panic on purpose.
pub(crate) const PANIC: &str = "as planned";

/// What one handler does, step by step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Task {
    /// Unique in its call.
    pub(crate) number: u32,
    pub(crate) steps: Vec<Step>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum Step {
    Reply(Answer),
    /// To the host with this index.
    Delegate(u32, Task),
    /// As the last step.
    Forward(u32, Task),
    /// Milliseconds.
    Wait(u64),
    /// The handler returns an error.
    Fail,
    Panic,
}

/// An answer that can be told from all others of its call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Answer {
    pub(crate) number: u32,
    pub(crate) padding: Vec<u8>,
}

/// Bounds of random trees.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    /// Hosts that listen have the indices below it.
    pub(crate) servers: u32,
    pub(crate) depth: u32,
    /// Longest wait of a handler, in milliseconds.
    pub(crate) wait: u64,
    /// Largest answer and, about, argument in bytes.
    pub(crate) padding: u64,
    /// Handlers fail and panic.
    pub(crate) errors: bool,
}

impl Answer {
    fn random(number: &mut u32, shape: Shape, random: &mut Random) -> Self {
        let len = if random.one_in(8) {
            random.between(0..=shape.padding)
        } else {
            random.between(0..=200)
        };
        let number = take(number);
        let padding = vec![number as u8; len as usize];
        Self { number, padding }
    }

    /// Whether it is as its server made it.
    pub(crate) fn is_whole(&self) -> bool {
        self.padding.iter().all(|byte| *byte == self.number as u8)
    }
}

impl Task {
    pub(crate) fn random(number: &mut u32, shape: Shape, random: &mut Random) -> Self {
        let mine = take(number);
        let below = Shape {
            depth: shape.depth.saturating_sub(1),
            ..shape
        };
        let mut steps = Vec::new();
        for _ in 0..random.between(0..=4) {
            steps.push(match random.between(0..=9) {
                0..=2 if shape.depth > 0 => Step::Delegate(
                    random.index(shape.servers as usize) as u32,
                    Self::random(number, below, random),
                ),
                3 | 4 if shape.wait > 0 => Step::Wait(random.between(1..=shape.wait)),
                5 if shape.errors && random.one_in(4) => Step::Fail,
                6 if shape.errors && random.one_in(8) => Step::Panic,
                _ => Step::Reply(Answer::random(number, shape, random)),
            });
        }
        if shape.depth > 0 && random.one_in(2) {
            steps.push(Step::Forward(
                random.index(shape.servers as usize) as u32,
                Self::random(number, below, random),
            ));
        }
        Self {
            number: mine,
            steps,
        }
    }

    /// The numbers of all answers that the tree gives.
    pub(crate) fn answers(&self) -> BTreeSet<u32> {
        let mut answers = BTreeSet::new();
        self.visit(&mut |step| {
            if let Step::Reply(answer) = step {
                answers.insert(answer.number);
            }
        });
        answers
    }

    /// Whether a handler of it fails or panics.
    pub(crate) fn has_errors(&self) -> bool {
        let mut errors = false;
        self.visit(&mut |step| errors |= matches!(step, Step::Fail | Step::Panic));
        errors
    }

    fn visit(&self, act: &mut impl FnMut(&Step)) {
        for step in &self.steps {
            act(step);
            if let Step::Delegate(_, below) | Step::Forward(_, below) = step {
                below.visit(act);
            }
        }
    }
}

fn take(number: &mut u32) -> u32 {
    *number += 1;
    *number - 1
}
