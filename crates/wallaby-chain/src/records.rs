//! What links have come to, for a while: a chain that is made again under the same id finds it here, and no link runs twice.

use std::collections::hash_map::{Entry, RandomState};
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::hash::BuildHasher;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;
use tokio::time::Instant;
use wallaby::intercept::Intent;
use wallaby::{DurableId, Status};

use crate::chains::ChainLimits;
use crate::state::detach;

/// What a link has come to: what its handler has said, or the status with which it has ended.
pub(crate) type Outcome = Result<Intent, Status>;

/// Links whose chains are to be recovered.
#[derive(Default)]
pub(crate) struct Records {
    table: Mutex<Table>,
    /// What requests are compared by.
    hasher: RandomState,
}

#[derive(Default)]
struct Table {
    known: HashMap<Key, Progress>,
    /// Those that are done, the oldest first, and until when they are kept; none is for ever.
    done: VecDeque<(Option<Instant>, Key)>,
    /// What these take.
    bytes: usize,
}

/// The durable id of a link's request, and a hash of its method and arguments: another request is another link.
type Key = ([u8; 32], u64);

enum Progress {
    /// It ends when this does.
    Runs(watch::Receiver<()>),
    Done(Outcome),
}

/// What is known of a link.
pub(crate) enum Look {
    /// Nothing: it is to run, and to say here what it has come to.
    New(Claim),
    /// It has come to this.
    Done(Outcome),
    /// It runs, until this ends.
    Runs(watch::Receiver<()>),
    /// Nothing, and there is no room to keep it.
    Full,
}

/// A link that runs. If nothing is said of it before this is dropped, it is as if it had never begun.
pub(crate) struct Claim {
    records: Arc<Records>,
    key: Key,
    _runs: watch::Sender<()>,
}

impl Records {
    pub(crate) fn look(
        self: &Arc<Self>,
        id: DurableId,
        request: (&str, &[u8]),
        limits: &ChainLimits,
    ) -> Look {
        let key = (id.key(), self.hasher.hash_one(request));
        let mut table = self.lock();
        table.forget(limits);
        let is_full = table.known.len() >= limits.records.saturating_mul(2);
        match table.known.entry(key) {
            Entry::Occupied(known) => match known.get() {
                Progress::Done(outcome) => Look::Done(outcome.clone()),
                Progress::Runs(until) => Look::Runs(until.clone()),
            },
            Entry::Vacant(_) if is_full => Look::Full,
            Entry::Vacant(place) => {
                let (runs, until) = watch::channel(());
                place.insert(Progress::Runs(until));
                Look::New(Claim {
                    records: Arc::clone(self),
                    key,
                    _runs: runs,
                })
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Claim {
    /// The link has come to this.
    pub(crate) fn done(self, outcome: &Outcome, limits: &ChainLimits) {
        if matches!(outcome, Ok(Intent::Delegation { to, .. }) if to.has_body()) {
            return; // it can be sent once
        }
        let size = size(outcome);
        if size > limits.record {
            return; // others' would have to go
        }
        let mut table = self.records.lock();
        let Some(record) = table.known.get_mut(&self.key) else {
            return;
        };
        *record = Progress::Done(kept(outcome));
        table.bytes += size;
        let until = Instant::now().checked_add(limits.record_life);
        table.done.push_back((until, self.key));
        table.forget(limits);
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut table = self.records.lock();
        if let Entry::Occupied(known) = table.known.entry(self.key)
            && let Progress::Runs(_) = known.get()
        {
            known.remove();
        }
    }
}

impl Table {
    /// What is too old, or too much.
    fn forget(&mut self, limits: &ChainLimits) {
        let now = Instant::now();
        while let Some((until, key)) = self.done.front()
            && (until.is_some_and(|until| until <= now)
                || self.bytes > limits.record_bytes
                || self.done.len() > limits.records)
        {
            if let Some(Progress::Done(outcome)) = self.known.remove(key) {
                self.bytes -= size(&outcome);
            }
            self.done.pop_front();
        }
    }
}

/// The same, to be kept.
fn kept(outcome: &Outcome) -> Outcome {
    let mut kept = outcome.clone();
    match &mut kept {
        Ok(Intent::Answer { payload, .. }) => detach(payload),
        Ok(Intent::Delegation { to, .. }) => detach(&mut to.payload),
        _ => {}
    }
    kept
}

/// About how many bytes it takes.
fn size(outcome: &Outcome) -> usize {
    let own = match outcome {
        Ok(Intent::Answer { payload, .. }) => payload.len(),
        Ok(Intent::Delegation { to, .. }) => {
            to.payload.len() + to.options().map_or(0, |options| options.size())
        }
        Ok(_) => 0,
        Err(status) => status.message().len(),
    };
    own + size_of::<(Key, Progress)>()
}

impl fmt::Debug for Records {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let table = self.lock();
        f.debug_struct("Records")
            .field("known", &table.known.len())
            .field("bytes", &table.bytes)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_keeps_no_buffer() {
        let records: Arc<Records> = Arc::default();
        let mut buffer = bytes::BytesMut::from(&[7; 128 * 1024][..]);
        let answer = buffer.split_to(9).freeze();
        buffer.clear();
        let limits = ChainLimits::default();
        let look = || records.look(DurableId::new(7, 1), ("test.A/b", b""), &limits);
        let Look::New(claim) = look() else {
            panic!("it is new");
        };
        claim.done(&Ok(Intent::answer(answer)), &limits);
        assert!(buffer.try_reclaim(128 * 1024), "it is free");
        let Look::Done(Ok(Intent::Answer { payload, .. })) = look() else {
            panic!("it is known");
        };
        assert_eq!(payload, vec![7; 9]);
    }
}
