//! Turns at something of which there is little: who waits for many of them has one when each of the others has had one.

use std::collections::BTreeMap;
use std::future::pending;
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;
use wallaby::NodeId;

/// Whose turn it is: who has started the chain, or nobody else.
type Who = Option<NodeId>;

/// Those who have a turn, of so many at once, and those who wait for one.
pub(crate) struct Turns(Mutex<Table>);

struct Table {
    free: usize,
    /// By who waits, in the order in which they came.
    waiting: BTreeMap<Who, BTreeMap<u64, oneshot::Sender<Turn>>>,
    /// Who had the latest turn that somebody had waited for.
    latest: Who,
    /// How many have waited.
    count: u64,
}

/// When it is dropped, the next one has it.
pub(crate) struct Turn(Arc<Turns>);

impl Turns {
    /// So many at once, and one at least.
    pub(crate) fn new(at_once: usize) -> Arc<Self> {
        Arc::new(Self(Mutex::new(Table {
            free: at_once.max(1),
            waiting: BTreeMap::new(),
            latest: None,
            count: 0,
        })))
    }

    /// Waits for a turn.
    pub(crate) async fn take(self: &Arc<Self>, who: Who) -> Turn {
        let mut waits = {
            let mut table = self.lock();
            if table.free > 0 {
                table.free -= 1;
                table.latest = who;
                return Turn(Arc::clone(self));
            }
            let number = table.count;
            table.count += 1;
            let (gives, given) = oneshot::channel();
            table.waiting.entry(who).or_default().insert(number, gives);
            Waits {
                of: self,
                who,
                number,
                given,
            }
        };
        match (&mut waits.given).await {
            Ok(turn) => turn,
            Err(_) => pending().await, // only who gives it up is forgotten
        }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    /// The one whose turn it is now: of the next initiator behind the latest who waits for any.
    fn next(&mut self) -> Option<oneshot::Sender<Turn>> {
        let mut behind = self.waiting.range((Excluded(self.latest), Unbounded));
        let next = behind.next().or_else(|| self.waiting.first_key_value());
        let Some((&who, waiting)) = next else {
            self.free += 1;
            return None;
        };
        self.latest = who;
        let &number = waiting.keys().next()?;
        self.forget(who, number)
    }

    fn forget(&mut self, who: Who, number: u64) -> Option<oneshot::Sender<Turn>> {
        let waiting = self.waiting.get_mut(&who)?;
        let gives = waiting.remove(&number);
        if waiting.is_empty() {
            self.waiting.remove(&who);
        }
        gives
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let next = self.0.lock().next();
        if let Some(next) = next {
            // If that one has just given up, it is dropped, and the next one has it.
            let _ = next.send(Self(Arc::clone(&self.0)));
        }
    }
}

/// Somebody waits.
struct Waits<'a> {
    of: &'a Arc<Turns>,
    who: Who,
    number: u64,
    given: oneshot::Receiver<Turn>,
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        let forgotten = self.of.lock().forget(self.who, self.number);
        drop(forgotten);
    }
}
