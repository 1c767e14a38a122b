//! Answers to which no route leads: they wait until somebody shows the token of their call.
//!
//! An initiator that cannot be dialled is answered along the route its requests came. When a relay on that route is gone,
//! the answers of all servers behind it would be lost, though the initiator lives and may come by another route at any
//! time. How many wait, how large they are together and for how long is limited: nobody has to come.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::call::shares::{Share, Shares};
use crate::id::{CallId, ConnId, NodeId, RequestId, Token};
use crate::numbers::MESSAGE_COST;

/// How much may wait for routes that are gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WaitingLimits {
    /// Answers. Beyond, further ones are refused; so are those of a connection that has its share of them.
    pub answers: usize,
    /// Bytes of their payloads, and 64 for each. As with `answers`.
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

/// What an answer waits for: a route for answers of this call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Awaited {
    /// The call.
    pub call: CallId,
    /// Its token.
    pub token: Token,
    /// The request that it answers.
    pub request: RequestId,
}

/// Most calls of which an initiator that may have come is told.
const MAX_TOLD: usize = 16;

/// Of these so many by one connection.
const MAX_OF_CONN: usize = 4;

/// Calls of an initiator that are looked through for them.
const MOST_SEARCHED: usize = 1024;

/// Names an answer that waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct WaitingId {
    due: Duration,
    number: u64,
}

/// Answers that wait, as `T` of the driver's.
#[derive(Debug)]
pub struct WaitingAnswers<T> {
    /// How long each waits.
    time: Duration,
    answers: BTreeMap<WaitingId, WaitingAnswer<T>>,
    by_call: BTreeSet<(CallId, Token, WaitingId)>,
    /// Who has how many of the answers, and of their bytes.
    shares: (Shares, Shares),
    next: u64,
}

const FIRST: WaitingId = WaitingId {
    due: Duration::ZERO,
    number: 0,
};

const LAST: WaitingId = WaitingId {
    due: Duration::MAX,
    number: u64::MAX,
};

#[derive(Debug)]
struct WaitingAnswer<T> {
    wanted: Awaited,
    conn: ConnId,
    cost: usize,
    shares: (Share, Share),
    what: T,
}

impl<T> WaitingAnswers<T> {
    /// Nothing waits.
    pub fn new(limits: WaitingLimits) -> Self {
        Self {
            time: limits.time,
            answers: BTreeMap::new(),
            by_call: BTreeSet::new(),
            shares: (
                Shares::new(limits.answers),
                Shares::new(usize::try_from(limits.bytes).unwrap_or(usize::MAX)),
            ),
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

    /// The connection that answers of this call were put here for, if any wait.
    pub fn conn(&self, call: CallId, token: Token) -> Option<ConnId> {
        let (of, by, id) = self.by_call.range((call, token, FIRST)..).next()?;
        let answer = self.answers.get(id)?;
        ((*of, *by) == (call, token)).then_some(answer.conn)
    }

    /// An answer with a payload of so many bytes waits for a route to its initiator. The connection is the one that a request of
    /// its call came over, though it may have ended: it and the initiator have a share of what may wait.
    ///
    /// # Errors
    ///
    /// If too many wait already, or its connection has its share: `what` comes back.
    pub fn put(
        &mut self,
        (awaited, conn): (Awaited, ConnId),
        payload: usize,
        what: T,
        now: Duration,
    ) -> Result<(), T> {
        let cost = payload.saturating_add(MESSAGE_COST as usize);
        let Some(shares) = self.share((conn, awaited.call.initiator), cost) else {
            return Err(what);
        };
        let due = now.saturating_add(self.time);
        let number = self.next;
        let id = WaitingId { due, number };
        self.next += 1;
        self.by_call.insert((awaited.call, awaited.token, id));
        let answer = WaitingAnswer {
            wanted: awaited,
            conn,
            cost,
            shares,
            what,
        };
        self.answers.insert(id, answer);
        Ok(())
    }

    fn share(&mut self, (conn, of): (ConnId, NodeId), cost: usize) -> Option<(Share, Share)> {
        let (answers, bytes) = &mut self.shares;
        let answer = answers.try_take(conn, of).ok()?;
        match bytes.try_take_all(conn, of, cost) {
            Ok(share) => Some((answer, share)),
            Err(_) => {
                answers.give_back(answer);
                None
            }
        }
    }

    /// An answer does not wait any more; `None` if it did not.
    fn remove(&mut self, id: WaitingId) -> Option<T> {
        let answer = self.answers.remove(&id)?;
        self.shares.0.give_back(answer.shares.0);
        self.shares.1.give_back_all(answer.shares.1, answer.cost);
        let Awaited { call, token, .. } = answer.wanted;
        self.by_call.remove(&(call, token, id));
        Some(answer.what)
    }

    /// There is a route for answers of this call: the next one that waits for it, in the order in which they came.
    pub fn take(&mut self, call: CallId, token: Token) -> Option<T> {
        let (found, shown, id) = *self.by_call.range((call, token, FIRST)..).next()?;
        if (found, shown) != (call, token) {
            return None;
        }
        self.remove(id)
    }

    /// What waits for a route to this initiator: a few of its calls, each by one answer, and of those whose requests came over one
    /// connection fewer still: anybody can make up calls of others.
    pub fn of(&self, initiator: NodeId) -> Vec<Awaited> {
        let mut found: Vec<Awaited> = Vec::new();
        let mut conns: BTreeMap<ConnId, usize> = BTreeMap::new();
        let mut searched = 0;
        let sequence = 0;
        let mut from = (
            CallId {
                initiator,
                sequence,
            },
            Token::new(0),
            FIRST,
        );
        while found.len() < MAX_TOLD
            && searched < MOST_SEARCHED
            && let Some((call, token, id)) = self.by_call.range(from..).next()
            && call.initiator == initiator
        {
            searched += 1;
            if let Some(answer) = self.answers.get(id) {
                let of_conn = conns.entry(answer.conn).or_default();
                *of_conn += 1;
                found.extend((*of_conn <= MAX_OF_CONN).then_some(answer.wanted));
            }
            from = (*call, *token, LAST);
        }
        found
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
