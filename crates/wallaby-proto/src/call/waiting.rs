//! Answers to which no way leads: they wait until a connection proves to be their initiator's, or a way is learnt.
//!
//! An initiator that cannot be dialled is answered along the way its requests came. When a relay on that way is gone,
//! the answers of all servers behind it would be lost, though the initiator lives and may come by another way at any
//! time. How many wait, how large they are together and for how long is limited: nobody has to come.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use thiserror::Error;

use crate::id::NodeId;

/// What an answer costs of the limit in bytes, besides its payload.
const ANSWER_COST: u64 = 64;

/// How much may wait for ways that are gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WaitingLimits {
    /// Answers. Beyond, further ones are refused.
    pub answers: usize,
    /// Bytes of their payloads, and 64 for each. Beyond, further ones are refused.
    pub bytes: u64,
    /// How long each waits.
    pub time: Duration,
}

/// 4,096 answers of 16 MiB in all, for 10 s each.
impl Default for WaitingLimits {
    fn default() -> Self {
        Self {
            answers: 4096,
            bytes: 16 << 20,
            time: Duration::from_secs(10),
        }
    }
}

/// Why an answer may not wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error(
    "no way to its initiator, and {answers} answers of {bytes} bytes wait already: at most {} of {} bytes may",
    limits.answers, limits.bytes
)]
pub struct Full {
    /// How many wait.
    pub answers: usize,
    /// What they take.
    pub bytes: u64,
    /// What is allowed.
    pub limits: WaitingLimits,
}

/// Names an answer that waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct WaitingId {
    due: Duration,
    number: u64,
}

/// Answers that wait, as `T` of the driver's.
#[derive(Debug)]
pub struct Waiting<T> {
    limits: WaitingLimits,
    answers: BTreeMap<WaitingId, Answer<T>>,
    by_initiator: BTreeSet<(NodeId, WaitingId)>,
    bytes: u64,
    next: u64,
}

#[derive(Debug)]
struct Answer<T> {
    initiator: NodeId,
    cost: u64,
    what: T,
}

impl<T> Waiting<T> {
    /// Nothing waits.
    pub fn new(limits: WaitingLimits) -> Self {
        Self {
            limits,
            answers: BTreeMap::new(),
            by_initiator: BTreeSet::new(),
            bytes: 0,
            next: 0,
        }
    }

    /// How many answers wait.
    pub fn len(&self) -> usize {
        self.answers.len()
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.answers.is_empty()
    }

    /// An answer with a payload of so many bytes waits for a way to this initiator.
    ///
    /// # Errors
    ///
    /// If too many wait already; `what` comes back.
    pub fn put(
        &mut self,
        initiator: NodeId,
        payload: usize,
        what: T,
        now: Duration,
    ) -> Result<WaitingId, (Full, T)> {
        let cost = payload as u64 + ANSWER_COST;
        let (answers, bytes) = (self.answers.len(), self.bytes);
        if answers >= self.limits.answers || bytes.saturating_add(cost) > self.limits.bytes {
            let limits = self.limits;
            let full = Full {
                answers,
                bytes,
                limits,
            };
            return Err((full, what));
        }
        let due = now.saturating_add(self.limits.time);
        let number = self.next;
        let id = WaitingId { due, number };
        self.next += 1;
        self.bytes += cost;
        self.by_initiator.insert((initiator, id));
        let answer = Answer {
            initiator,
            cost,
            what,
        };
        self.answers.insert(id, answer);
        Ok(id)
    }

    /// An answer does not wait any more; `None` if it did not.
    pub fn remove(&mut self, id: WaitingId) -> Option<T> {
        let answer = self.answers.remove(&id)?;
        self.bytes -= answer.cost;
        self.by_initiator.remove(&(answer.initiator, id));
        Some(answer.what)
    }

    /// There is a way to this initiator: the next answer that waits for it, in the order in which they came.
    pub fn take(&mut self, initiator: NodeId) -> Option<T> {
        let first = (
            initiator,
            WaitingId {
                due: Duration::ZERO,
                number: 0,
            },
        );
        let (found, id) = *self.by_initiator.range(first..).next()?;
        if found != initiator {
            return None;
        }
        self.remove(id)
    }

    /// The next answer that has waited for too long.
    pub fn expired(&mut self, now: Duration) -> Option<T> {
        let (&id, _) = self.answers.first_key_value()?;
        if id.due > now {
            return None;
        }
        self.remove(id)
    }

    /// When the next one will have.
    pub fn next_timeout(&self) -> Option<Duration> {
        self.answers.first_key_value().map(|(id, _)| id.due)
    }
}
