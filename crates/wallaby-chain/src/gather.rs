//! What branches have come to, until all of a split have.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;
use wallaby::extension::Token;
use wallaby::{CallId, DurableId, Status};

use crate::chains::ChainLimits;
use crate::exception::Exception;
use crate::limit::Limit;
use crate::stack::Merging;
use crate::state::{Answer, detach};

/// About what a branch takes that waits, besides what it came with.
const WAITS: usize = 1 << 10;

/// What a branch has come to.
pub(crate) type Arrived = Result<Answer, Exception>;

/// Splits whose branches end here.
#[derive(Default)]
pub(crate) struct Gathers(Mutex<Table>);

#[derive(Default)]
struct Table {
    open: HashMap<Key, Gather>,
    /// Of all that is kept.
    bytes: usize,
}

/// A split of a call. Ids of calls are only claimed; who brings a branch of another client's call would have to show its token, too.
type Key = (CallId, Token, String);

struct Gather {
    arrived: Vec<Option<Arrived>>,
    bytes: usize,
    hops: u32,
    /// Of the first branch.
    durable: Option<DurableId>,
    /// Those that have arrived before wait until all have.
    waiting: Vec<oneshot::Sender<()>>,
}

/// What becomes of a branch that has arrived.
pub(crate) enum Arrival {
    /// It is the last one.
    Last(Gathered),
    /// Others are still on their way.
    Early(Waiting),
}

/// All branches of a split.
pub(crate) struct Gathered {
    /// In the order of their numbers.
    pub(crate) results: Vec<Arrived>,
    /// How many hops the longest has made.
    pub(crate) hops: u32,
    /// The name of the first one's request, if it has any: so what comes then has the same names whoever is the last.
    pub(crate) durable: Option<DurableId>,
    /// Until they are merged, as the last one may still wait for its state.
    pub(crate) kept: Kept,
}

/// The bytes that they take.
pub(crate) struct Kept {
    gathers: Arc<Gathers>,
    bytes: usize,
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.gathers.lock().bytes -= self.bytes;
    }
}

/// A branch that waits for the others. If it does not any more before they are there, nobody does.
pub(crate) struct Waiting {
    gathers: Arc<Gathers>,
    key: Key,
    all: oneshot::Receiver<()>,
}

impl Gathers {
    /// A branch has come to this, by a request with so many bytes more.
    ///
    /// # Errors
    ///
    /// If that is more than the limits allow, or not as the other branches say.
    pub(crate) fn arrive(
        self: &Arc<Self>,
        (call, token): (CallId, Token),
        merging: &Merging,
        (mut what, hops, durable): (Arrived, u32, Option<DurableId>),
        (more, limits): (usize, &ChainLimits),
    ) -> Result<Arrival, Status> {
        let Merging { number, of, .. } = *merging;
        let index = (number as usize).wrapping_sub(1);
        let key = (call, token, merging.split.clone());
        let size = match &mut what {
            Ok(Answer(answer)) => {
                detach(answer);
                answer.len()
            }
            Err(exception) => exception.size(),
        };
        let size = size + more + WAITS;
        if index >= of as usize {
            let message = format!("branch {number} of {of}: there is none");
            return Err(Status::invalid_argument(message));
        }
        let mut guard = self.lock();
        let table = &mut *guard;
        table.check(&key, of as usize, size, limits)?;
        let mut gather = table.open.remove(&key).unwrap_or_else(|| Gather {
            arrived: vec![None; of as usize],
            bytes: 0,
            hops: 0,
            durable: None,
            waiting: Vec::new(),
        });
        let all = gather.arrived.len();
        let Some(slot @ None) = gather.arrived.get_mut(index).filter(|_| all == of as usize) else {
            table.open.insert(key, gather);
            let why = match all == of as usize {
                true => "it has arrived before".to_owned(),
                false => format!("one that has arrived before says that there are {all}"),
            };
            let message = format!("branch {number} of {of}: {why}");
            return Err(Status::invalid_argument(message));
        };
        *slot = Some(what);
        gather.hops = gather.hops.max(hops);
        if number == 1 {
            gather.durable = durable;
        }
        gather.bytes += size;
        table.bytes += size;
        if gather.arrived.iter().any(Option::is_none) {
            let (told, all) = oneshot::channel();
            gather.waiting.push(told);
            table.open.insert(key.clone(), gather);
            return Ok(Arrival::Early(Waiting {
                gathers: Arc::clone(self),
                key,
                all,
            }));
        }
        drop(guard);
        for told in gather.waiting {
            let _ = told.send(());
        }
        let results = gather.arrived.into_iter().flatten().collect();
        Ok(Arrival::Last(Gathered {
            results,
            hops: gather.hops,
            durable: gather.durable,
            kept: Kept {
                gathers: Arc::clone(self),
                bytes: gather.bytes,
            },
        }))
    }

    /// What is said then.
    pub(crate) fn given_up() -> Status {
        Status::aborted("the merge was given up: another branch did not come in time")
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    /// Whether there is room for one that arrives.
    fn check(&self, key: &Key, of: usize, size: usize, limits: &ChainLimits) -> Result<(), Status> {
        let full = |message: String| Err(Limit::Load.exceeded(message));
        if of > limits.branches {
            let most = limits.branches;
            let message = format!("{of} branches: this server merges at most {most}");
            return Err(Limit::Branches.exceeded(message));
        }
        if size > limits.merge_bytes.saturating_sub(self.bytes) {
            let most = limits.merge_bytes;
            return full(format!("this server keeps at most {most} bytes for merges"));
        }
        if self.open.len() >= limits.merges && !self.open.contains_key(key) {
            let most = limits.merges;
            return full(format!("this server has at most {most} merges at once"));
        }
        Ok(())
    }

    fn remove(&mut self, key: &Key) -> Option<Gather> {
        let gather = self.open.remove(key)?;
        self.bytes -= gather.bytes;
        Some(gather)
    }
}

impl Waiting {
    /// Waits until all are there: false if another one does not wait any more.
    pub(crate) async fn all(mut self) -> bool {
        (&mut self.all).await.is_ok()
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let given_up = self.gathers.lock().remove(&self.key);
        drop(given_up);
    }
}

#[cfg(test)]
mod tests {
    use wallaby::NodeId;

    use super::*;
    use crate::stack::Runs;
    use crate::state::State;

    fn arrive(gathers: &Arc<Gathers>, number: u32, of: u32) -> Result<Arrival, Status> {
        let call = CallId {
            initiator: NodeId::new(7).expect("not zero"),
            sequence: 1,
        };
        let merging = Merging {
            at: "mem://a".parse().expect("an address"),
            function: Runs::Native("f".into()),
            state: State::new(),
            split: "0".into(),
            number,
            of,
            raised: false,
        };
        let answer = Answer(vec![number as u8].into());
        let durable = Some(DurableId::new(7, u64::from(number)));
        let what = (Ok(answer), number, durable);
        gathers.arrive(
            (call, Token::new(5)),
            &merging,
            what,
            (0, &ChainLimits::default()),
        )
    }

    fn early(arrival: Result<Arrival, Status>) -> Waiting {
        match arrival {
            Ok(Arrival::Early(waiting)) => waiting,
            Ok(Arrival::Last(..)) => panic!("it is the last one"),
            Err(status) => panic!("{status}"),
        }
    }

    /// Peers may say what they like of their branches.
    #[test]
    fn a_branch_arrives_once_and_is_one_of_those_that_there_are() {
        let gathers = Arc::default();
        let second = early(arrive(&gathers, 2, 3));
        for (number, of, expected) in [
            (2, 3, "branch 2 of 3: it has arrived before"),
            (0, 3, "branch 0 of 3: there is none"),
            (4, 3, "branch 4 of 3: there is none"),
            (
                4,
                5,
                "branch 4 of 5: one that has arrived before says that there are 3",
            ),
            (
                2,
                2,
                "branch 2 of 2: one that has arrived before says that there are 3",
            ),
            (
                1,
                4,
                "branch 1 of 4: one that has arrived before says that there are 3",
            ),
            (u32::MAX, 3, "branch 4294967295 of 3: there is none"),
            (
                1,
                u32::MAX,
                "4294967295 branches: this server merges at most 64 (limit: branches)",
            ),
        ] {
            let Err(status) = arrive(&gathers, number, of) else {
                panic!("branch {number} of {of} is none");
            };
            assert_eq!(status.message(), expected);
        }
        let third = early(arrive(&gathers, 3, 3));
        assert_eq!(gathers.lock().bytes, 2 * (1 + WAITS));
        let Ok(Arrival::Last(all)) = arrive(&gathers, 1, 3) else {
            panic!("all are there");
        };
        assert_eq!(all.durable, Some(DurableId::new(7, 1)));
        assert_eq!(
            gathers.lock().bytes,
            3 * (1 + WAITS),
            "until they are merged"
        );
        let (all, hops, kept) = (all.results, all.hops, all.kept);
        drop(kept);
        let all: Vec<u8> = all
            .iter()
            .flatten()
            .flat_map(|one| one.bytes().to_vec())
            .collect();
        assert_eq!((all, hops), (vec![1, 2, 3], 3));
        assert_eq!(gathers.lock().bytes, 0);
        assert!(gathers.lock().open.is_empty());
        drop((second, third));
    }

    /// Nor does what is no branch of a split take the place of one.
    #[tokio::test]
    async fn what_is_no_branch_leaves_nothing() {
        let gathers = Arc::default();
        for number in [0, 4] {
            assert!(arrive(&gathers, number, 3).is_err());
        }
        assert!(gathers.lock().open.is_empty());
    }

    /// What is kept is counted, and keeps nothing else.
    #[test]
    fn what_waits_counts_by_what_it_takes() {
        let gathers: Arc<Gathers> = Arc::default();
        let call = CallId {
            initiator: NodeId::new(7).expect("not zero"),
            sequence: 1,
        };
        let come = |number, what| {
            let merging = Merging {
                at: "mem://a".parse().expect("an address"),
                function: Runs::Native("f".into()),
                state: State::new(),
                split: "0".into(),
                number,
                of: 3,
                raised: false,
            };
            let call = (call, Token::new(5));
            early(gathers.arrive(
                call,
                &merging,
                (what, 1, None),
                (3, &ChainLimits::default()),
            ))
        };
        let mut buffer = bytes::BytesMut::from(&[7; 128 * 1024][..]);
        let answer = buffer.split_to(9).freeze();
        buffer.clear();
        let first = come(1, Ok(Answer(answer)));
        assert_eq!(gathers.lock().bytes, 9 + 3 + WAITS);
        assert!(buffer.try_reclaim(128 * 1024), "it is free");
        let status = Status::internal("x".repeat(1000));
        let exception = Exception::new(&status, "7".into(), crate::HostPath::default());
        let second = come(2, Err(exception));
        assert_eq!(gathers.lock().bytes, 1010 + 2 * (3 + WAITS));
        drop((first, second));
        assert_eq!(gathers.lock().bytes, 0);
    }

    #[tokio::test]
    async fn if_one_does_not_wait_any_more_nobody_does() {
        let gathers = Arc::default();
        let (first, second) = (early(arrive(&gathers, 1, 3)), early(arrive(&gathers, 2, 3)));
        drop(first);
        assert_eq!(gathers.lock().bytes, 0);
        assert!(!second.all().await, "it is given up");
    }
}
