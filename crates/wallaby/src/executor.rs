//! Which requests run now, which wait, and which are refused.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use wallaby_proto::NodeId;
use wallaby_proto::call::records::Session;
use wallaby_proto::call::shares::Shares;

use crate::timer::Instant;

/// How many handlers run at a time, how many requests wait, and in which order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecutorConfig {
    /// Handlers that run at a time; one that waits for something counts as running. One client can use up seven eighths of
    /// them at most, or all if there are eight or fewer: the rest is for others. See `docs/security.md`, *Shares*. Default
    /// 4,096.
    pub concurrency: usize,
    /// Requests that wait for handlers; one more, or one of a client that has its share of them, is refused with the status
    /// `ResourceExhausted`. Shared like handlers. Default 4,096.
    pub queue: usize,
    /// Which of the waiting requests runs next. Default: first come, first served.
    pub schedule: Schedule,
}

impl Default for ExecutorConfig {
    fn default() -> Self {
        Self {
            concurrency: 4096,
            queue: 4096,
            schedule: Schedule::Fifo,
        }
    }
}

/// Which of the waiting requests runs next, of those whose clients have equally few handlers that run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Schedule {
    /// The one that has waited longest.
    Fifo,
    /// The one whose call began first: calls that are under way finish before new ones begin (the run-to-completion of
    /// the thesis, for whole calls).
    OldestCall,
    /// The one whose deadline comes first.
    EarliestDeadline,
}

/// The connection that a request came over, and its initiator.
pub(crate) type Owner = (Session, NodeId);

/// Admits jobs of type `J`.
///
/// Handlers that run and requests that wait are shared: see [`Shares`]. A place that becomes free goes to the connection with
/// the fewest handlers that run, and of its initiators to the one with the fewest; who has its share waits even if there are
/// places.
#[derive(Debug)]
pub(crate) struct Executor<J> {
    config: ExecutorConfig,
    /// What urgency counts from.
    epoch: Instant,
    state: Mutex<State<J>>,
}

#[derive(Debug)]
struct State<J> {
    running: Shares,
    waiting: Shares,
    /// What waits, by connection, and these by whose turn it is. Whoever is first here has its share, or nothing would wait.
    lines: BTreeMap<Session, Line<J>>,
    order: BTreeSet<(Rank, Session)>,
    arrivals: u64,
}

/// How many handlers run of an initiator or connection, then the urgency and arrival of what waits: the lowest is next.
type Rank = (usize, u64, u64);

/// What waits of one connection, by initiator, and these by whose turn it is.
#[derive(Debug)]
struct Line<J> {
    rank: Rank,
    queues: BTreeMap<NodeId, Queue<J>>,
    order: BTreeSet<(Rank, NodeId)>,
}

/// What waits of one initiator.
#[derive(Debug)]
struct Queue<J> {
    rank: Rank,
    jobs: BinaryHeap<Waiting<J>>,
}

/// What became of a job.
pub(crate) enum Admitted<J> {
    /// It runs now; [`Executor::release`] when it is done.
    Run(J),
    /// It waits; a release returns it.
    Queued,
    /// There is no room.
    Refused(J),
}

impl<J> Executor<J> {
    pub(crate) fn new(config: ExecutorConfig) -> Self {
        let state = State {
            running: Shares::new(config.concurrency.max(1)),
            waiting: Shares::new(config.queue),
            lines: BTreeMap::new(),
            order: BTreeSet::new(),
            arrivals: 0,
        };
        Self {
            config,
            epoch: Instant::now(),
            state: Mutex::new(state),
        }
    }

    /// How urgent a request is that arrives now: smaller for what should run earlier. It is about points in time, so
    /// that it does not matter when a request arrived.
    pub(crate) fn urgency(&self, age: impl FnOnce() -> Duration, deadline: Instant) -> u64 {
        let micros = |duration: Duration| duration.as_micros() as u64;
        match self.config.schedule {
            Schedule::Fifo => 0,
            // Calls may have begun before this endpoint did.
            Schedule::OldestCall => {
                (1 << 62) + micros(self.epoch.elapsed()) - micros(age()).min(1 << 62)
            }
            Schedule::EarliestDeadline => micros(deadline.saturating_duration_since(self.epoch)),
        }
    }

    /// Admits a job; `urgency` is smaller for what should run earlier. One that has to wait is told so by `waits`.
    pub(crate) fn admit(
        &self,
        job: J,
        owner: Owner,
        urgency: u64,
        waits: impl FnOnce(&mut J),
    ) -> Admitted<J> {
        let mut state = self.lock();
        if state.running.try_take(owner.0, owner.1).is_ok() {
            if !state.lines.is_empty() {
                state.list(owner);
            }
            return Admitted::Run(job);
        }
        state.queue(job, owner, urgency, waits)
    }

    /// A job of this owner is done; returns the one that runs in its place.
    pub(crate) fn release(&self, owner: Owner) -> Option<J> {
        let mut state = self.lock();
        let share = state.running.name(owner.0, owner.1);
        state.running.give_back(share);
        if state.lines.is_empty() {
            return None;
        }
        state.list(owner);
        state.next()
    }

    /// How many jobs run and how many wait.
    pub(crate) fn load(&self) -> (usize, usize) {
        let state = self.lock();
        (state.running.taken(), state.waiting.taken())
    }

    /// Why a job of this owner was refused.
    #[cold]
    pub(crate) fn why_refused(&self, (session, initiator): Owner) -> String {
        let mut state = self.lock();
        let (running, waiting) = (state.running.taken(), state.waiting.taken());
        if waiting >= self.config.queue {
            return format!(
                "{running} handlers run and {waiting} requests wait: no more are taken"
            );
        }
        let share = state.waiting.name(session, initiator);
        let own = state.waiting.taken_by_connection(share);
        format!(
            "{running} handlers run and {waiting} requests wait of {}, of this connection {own}: it has its share",
            self.config.queue
        )
    }

    fn lock(&self) -> MutexGuard<'_, State<J>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<J> State<J> {
    #[inline(never)]
    fn queue(
        &mut self,
        mut job: J,
        owner: Owner,
        urgency: u64,
        waits: impl FnOnce(&mut J),
    ) -> Admitted<J> {
        let (session, initiator) = owner;
        if self.waiting.try_take(session, initiator).is_err() {
            return Admitted::Refused(job);
        }
        waits(&mut job);
        self.arrivals += 1;
        let arrival = self.arrivals;
        let line = self.lines.entry(session).or_insert_with(|| Line {
            rank: Rank::default(),
            queues: BTreeMap::new(),
            order: BTreeSet::new(),
        });
        let queue = line.queues.entry(initiator).or_insert_with(|| Queue {
            rank: Rank::default(),
            jobs: BinaryHeap::new(),
        });
        queue.jobs.push(Waiting {
            urgency,
            arrival,
            job,
        });
        self.list(owner);
        Admitted::Queued
    }

    /// Something has changed of an owner: what runs of it, or what waits. If something waits, its turn may be another one.
    #[inline(never)]
    fn list(&mut self, (session, initiator): Owner) {
        let Some(line) = self.lines.get_mut(&session) else {
            return;
        };
        let share = self.running.name(session, initiator);
        if let Some(queue) = line.queues.get_mut(&initiator) {
            line.order.remove(&(queue.rank, initiator));
            if let Some(first) = queue.jobs.peek() {
                let (urgency, arrival) = first.rank();
                queue.rank = (self.running.taken_by(share), urgency, arrival);
                line.order.insert((queue.rank, initiator));
            } else {
                line.queues.remove(&initiator);
            }
        }
        self.order.remove(&(line.rank, session));
        let Some(((_, urgency, arrival), first)) = line.order.first().copied() else {
            self.lines.remove(&session);
            return;
        };
        let share = self.running.name(session, first);
        line.rank = (self.running.weight(share), urgency, arrival);
        self.order.insert((line.rank, session));
    }

    /// What runs next, if somebody who waits may have another place.
    #[inline(never)]
    fn next(&mut self) -> Option<J> {
        let ((weight, ..), session) = *self.order.first()?;
        if !self.running.allows(weight) {
            return None;
        }
        let line = self.lines.get_mut(&session)?;
        let (_, initiator) = *line.order.first()?;
        let first = line.queues.get_mut(&initiator)?.jobs.pop()?;
        self.running.take(session, initiator);
        let share = self.waiting.name(session, initiator);
        self.waiting.give_back(share);
        self.list((session, initiator));
        Some(first.job)
    }
}

#[derive(Debug)]
struct Waiting<J> {
    urgency: u64,
    arrival: u64,
    job: J,
}

impl<J> Waiting<J> {
    fn rank(&self) -> (u64, u64) {
        (self.urgency, self.arrival)
    }
}

/// The greatest is the most urgent: the heap yields it first.
impl<J> Ord for Waiting<J> {
    fn cmp(&self, other: &Self) -> Ordering {
        other.rank().cmp(&self.rank())
    }
}

impl<J> PartialOrd for Waiting<J> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<J> PartialEq for Waiting<J> {
    fn eq(&self, other: &Self) -> bool {
        self.rank() == other.rank()
    }
}

impl<J> Eq for Waiting<J> {}

#[cfg(test)]
mod tests {
    use super::*;

    /// A client by its own connection.
    fn owner(number: u64) -> Owner {
        behind(number, number)
    }

    fn behind(session: u64, initiator: u64) -> Owner {
        let node = NodeId::new(initiator).expect("not zero");
        (Session(session), node)
    }

    fn executor<J>(concurrency: usize, queue: usize) -> Executor<J> {
        Executor::new(ExecutorConfig {
            concurrency,
            queue,
            schedule: Schedule::Fifo,
        })
    }

    #[test]
    fn runs_up_to_the_limit_then_queues_then_refuses() {
        let executor = Executor::new(ExecutorConfig {
            concurrency: 1,
            queue: 2,
            schedule: Schedule::OldestCall,
        });
        assert!(matches!(
            executor.admit("runs", owner(1), 9, |_| ()),
            Admitted::Run("runs")
        ));
        assert!(matches!(
            executor.admit("later", owner(1), 5, |_| ()),
            Admitted::Queued
        ));
        assert!(matches!(
            executor.admit("sooner", owner(1), 3, |_| ()),
            Admitted::Queued
        ));
        assert!(matches!(
            executor.admit("refused", owner(1), 1, |_| ()),
            Admitted::Refused("refused")
        ));
        assert_eq!(executor.load(), (1, 2));
        assert_eq!(executor.release(owner(1)), Some("sooner"));
        assert_eq!(executor.release(owner(1)), Some("later"));
        assert_eq!(executor.release(owner(1)), None);
        assert_eq!(executor.load(), (0, 0));
    }

    #[test]
    fn urgency_does_not_depend_on_when_a_request_arrives() {
        let schedule = |schedule| {
            let config = ExecutorConfig {
                schedule,
                ..ExecutorConfig::default()
            };
            Executor::<()> {
                epoch: Instant::now() - Duration::from_secs(100),
                ..Executor::new(config)
            }
        };
        let later = |executor: &Executor<()>| Executor::<()> {
            epoch: executor.epoch - Duration::from_secs(10),
            ..Executor::new(executor.config.clone())
        };
        let secs = Duration::from_secs;

        let first = schedule(Schedule::OldestCall);
        let ten_later = later(&first);
        let deadline = Instant::now();
        assert!(first.urgency(|| secs(5), deadline) < ten_later.urgency(|| secs(12), deadline));
        assert!(first.urgency(|| secs(5), deadline) > ten_later.urgency(|| secs(18), deadline));
        assert!(first.urgency(|| secs(1_000), deadline) < first.urgency(|| secs(999), deadline));

        let executor = schedule(Schedule::EarliestDeadline);
        let none = || unreachable!("the age does not matter");
        assert!(executor.urgency(none, deadline) < executor.urgency(none, deadline + secs(1)));
        assert_eq!(executor.urgency(none, executor.epoch - secs(1)), 0);
    }

    #[test]
    fn equal_urgency_is_first_come_first_served() {
        let executor = Executor::new(ExecutorConfig {
            concurrency: 1,
            queue: 9,
            schedule: Schedule::Fifo,
        });
        for job in 0..5 {
            executor.admit(job, owner(1), 0, |_| ());
        }
        let order: Vec<_> = std::iter::from_fn(|| executor.release(owner(1))).collect();
        assert_eq!(order, [1, 2, 3, 4]);
    }

    /// Offers so many jobs of an owner; how many run, how many wait, and how many were refused.
    fn offer(executor: &Executor<Owner>, owner: Owner, count: usize) -> (usize, usize, usize) {
        let mut became = (0, 0, 0);
        for _ in 0..count {
            match executor.admit(owner, owner, 0, |_| ()) {
                Admitted::Run(_) => became.0 += 1,
                Admitted::Queued => became.1 += 1,
                Admitted::Refused(_) => became.2 += 1,
            }
        }
        became
    }

    #[test]
    fn handlers_that_hang_leave_room_for_others() {
        let executor = executor(4096, 4096);
        let (running, waiting, refused) = offer(&executor, owner(1), 100_000);
        assert!((3500..3700).contains(&running), "{running}");
        assert!((3500..3700).contains(&waiting), "{waiting}");
        assert_eq!(running + waiting + refused, 100_000);
        assert!(executor.why_refused(owner(1)).contains("share"));
        for client in 2..100 {
            assert_eq!(offer(&executor, owner(client), 3), (3, 0, 0), "{client}");
            // A place that was another's is not the greedy one's.
            let next: Vec<_> = (0..3).map(|_| executor.release(owner(client))).collect();
            assert_eq!(next, [None; 3]);
        }
        // What the greedy one gives back it gets again.
        assert_eq!(executor.release(owner(1)), Some(owner(1)));
        assert_eq!(executor.load(), (running, waiting - 1));
    }

    /// Jobs of one tick each: whoever has few gets all of them done, and no place is idle that could be used.
    #[test]
    fn many_short_jobs_of_one_client_do_not_delay_others() {
        let executor = executor(64, 64);
        let (mut running, mut good, mut of_greedy, mut most) = (Vec::new(), 0, 0, 0);
        for tick in 0..500 {
            for owner in std::mem::take(&mut running) {
                running.extend(executor.release(owner));
                match owner.0 {
                    Session(1) => of_greedy += 1,
                    _ => good += 1,
                }
            }
            for (client, count) in [(1, 200), (2 + tick % 10, 1)] {
                for _ in 0..count {
                    if let Admitted::Run(job) =
                        executor.admit(owner(client), owner(client), 0, |_| ())
                    {
                        running.push(job);
                    }
                }
            }
            most = most.max(running.len());
        }
        assert!(good >= 499, "{good}");
        assert!(of_greedy > 499 * 64 * 3 / 4, "{of_greedy}");
        assert!(most <= 64);
    }

    #[test]
    fn places_go_to_those_who_have_fewest() {
        let executor = executor(8, 100);
        assert_eq!(offer(&executor, owner(1), 20), (8, 12, 0));
        assert_eq!(offer(&executor, owner(2), 3), (0, 3, 0));
        assert_eq!(offer(&executor, behind(3, 30), 3), (0, 3, 0));
        assert_eq!(offer(&executor, behind(3, 31), 1), (0, 1, 0));
        let order: Vec<Owner> = (0..7).filter_map(|_| executor.release(owner(1))).collect();
        let [one, two] = [owner(1), owner(2)];
        let [first, second] = [behind(3, 30), behind(3, 31)];
        assert_eq!(order, [two, first, second, two, first, one, one]);
    }

    /// What waits is found by what it is waiting behind, not by looking through it.
    #[test]
    fn everything_that_waits_runs_in_the_end() {
        let executor = executor(5, 1000);
        let mut running = Vec::new();
        let mut offered = 0;
        for round in 0..40 {
            for session in 1..=round % 9 + 1 {
                for initiator in 1..=round % 4 + 1 {
                    offered += 1;
                    let owner = behind(session, initiator);
                    match executor.admit(owner, owner, round * 7 % 5, |_| ()) {
                        Admitted::Run(owner) => running.push(owner),
                        Admitted::Queued => {}
                        Admitted::Refused(_) => panic!("there is room"),
                    }
                }
            }
        }
        let mut done = 0;
        while let Some(owner) = running.pop() {
            done += 1;
            running.extend(executor.release(owner));
        }
        assert_eq!(done, offered);
        assert_eq!(executor.load(), (0, 0));
        let state = executor.lock();
        assert!(state.lines.is_empty() && state.order.is_empty());
    }
}
