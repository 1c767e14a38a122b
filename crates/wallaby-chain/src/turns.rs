//! Turns at something of which there is little: who waits for many of them has one when each of the others has had one.

use std::collections::BTreeMap;
use std::future::pending;
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;
use wallaby::NodeId;

/// Who asks: the server or client that sent the request, and who has started the chain, as that one says. Anybody can invent the second,
/// so turns are among the first, and among the others for each of these. Both are missing at home.
pub(crate) type Who = (Option<NodeId>, Option<NodeId>);

/// Those who have a turn, of so many at once, and those who wait for one.
pub(crate) struct Turns(Mutex<Table>);

struct Table {
    free: usize,
    waiting: Round<Round<BTreeMap<u64, oneshot::Sender<Turn>>>>,
    /// How many have waited.
    count: u64,
}

/// What waits, by who it is of.
struct Round<V> {
    of: BTreeMap<Option<NodeId>, V>,
    /// Who had the latest turn.
    latest: Option<NodeId>,
}

impl<V> Default for Round<V> {
    fn default() -> Self {
        let (of, latest) = (BTreeMap::new(), None);
        Self { of, latest }
    }
}

impl<V> Round<V> {
    /// Whose turn it is: that of the next one behind the latest.
    fn next(&mut self) -> Option<(Option<NodeId>, &mut V)> {
        let mut behind = self.of.range((Excluded(self.latest), Unbounded));
        let next = behind.next().or_else(|| self.of.first_key_value());
        self.latest = *next?.0;
        Some((self.latest, self.of.get_mut(&self.latest)?))
    }
}

/// When it is dropped, the next one has it.
pub(crate) struct Turn(Arc<Turns>);

impl Turns {
    /// So many at once, and one at least.
    pub(crate) fn new(at_once: usize) -> Arc<Self> {
        Arc::new(Self(Mutex::new(Table {
            free: at_once.max(1),
            waiting: Round::default(),
            count: 0,
        })))
    }

    /// Waits for a turn.
    pub(crate) async fn take(self: &Arc<Self>, who: Who) -> Turn {
        let mut waits = {
            let mut table = self.lock();
            if table.free > 0 {
                table.free -= 1;
                table.waiting.latest = who.0;
                return Turn(Arc::clone(self));
            }
            let number = table.count;
            table.count += 1;
            let (gives, given) = oneshot::channel();
            let of_sender = table.waiting.of.entry(who.0).or_default();
            of_sender.of.entry(who.1).or_default().insert(number, gives);
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
    /// The one whose turn it is now.
    fn next(&mut self) -> Option<oneshot::Sender<Turn>> {
        let Some((sender, of_sender)) = self.waiting.next() else {
            self.free += 1;
            return None;
        };
        let (initiator, waiting) = of_sender.next()?;
        let &number = waiting.keys().next()?;
        self.forget((sender, initiator), number)
    }

    fn forget(&mut self, (sender, initiator): Who, number: u64) -> Option<oneshot::Sender<Turn>> {
        let of_sender = self.waiting.of.get_mut(&sender)?;
        let waiting = of_sender.of.get_mut(&initiator)?;
        let gives = waiting.remove(&number);
        if waiting.is_empty() {
            of_sender.of.remove(&initiator);
        }
        if of_sender.of.is_empty() {
            self.waiting.of.remove(&sender);
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A sender that invents initiators has no more turns than another one with a single client.
    #[tokio::test]
    async fn turns_are_among_senders_first() {
        let turns = Turns::new(1);
        let node = |number: u64| NodeId::new(number);
        let first = turns.take((node(1), node(10))).await;
        let order = Arc::new(Mutex::new(Vec::new()));
        let invented = (10..15).map(|initiator| (1, initiator));
        let mut waiting = Vec::new();
        for (sender, initiator) in invented.chain([(2, 20), (2, 20)]) {
            let (turns, order) = (Arc::clone(&turns), Arc::clone(&order));
            waiting.push(tokio::spawn(async move {
                let _turn = turns.take((node(sender), node(initiator))).await;
                order.lock().unwrap().push(sender);
            }));
            tokio::task::yield_now().await;
        }
        drop(first);
        for waits in waiting {
            waits.await.unwrap();
        }
        assert_eq!(*order.lock().unwrap(), [2, 1, 2, 1, 1, 1, 1]);
        assert!(turns.lock().waiting.of.is_empty());
    }
}
