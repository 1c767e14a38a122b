//! Which requests run now, which wait, and which are refused.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::call::shares::Shares;
use crate::id::{ConnId, NodeId};

/// How many handlers run at a time, how many requests wait, and in which order. There may be more fields in any later version: end a
/// literal with `..Default::default()`.
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
#[non_exhaustive]
pub enum Schedule {
    /// The one that has waited longest.
    Fifo,
    /// The one whose call began first: calls that are under way finish before new ones begin (the run-to-completion of
    /// the thesis, for whole calls).
    OldestCall,
    /// The one whose deadline comes first.
    EarliestDeadline,
}

/// How many handlers run, and how many requests wait for one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Load {
    /// Handlers that run, or have kept their places.
    pub running: usize,
    /// Requests that wait.
    pub waiting: usize,
}

impl Load {
    /// Nothing runs, and nothing waits.
    pub fn is_idle(&self) -> bool {
        *self == Self::default()
    }
}

/// The connection that a request came over, and its initiator.
pub type Owner = (ConnId, NodeId);

/// Admits jobs of type `J`. All times are since its shell's clock began.
///
/// Handlers that run and requests that wait are shared as `call/shares.rs` says. A place that becomes free goes to the connection with
/// the fewest handlers that run, and of its initiators to the one with the fewest; who has its share waits even if there are
/// places.
#[derive(Debug)]
pub struct Executor<J> {
    config: ExecutorConfig,
    running: Shares,
    waiting: Shares,
    /// What waits, by connection, and these by whose turn it is. Whoever is first here has its share, or nothing would wait.
    connections: BTreeMap<ConnId, ConnectionQueue<J>>,
    order: BTreeSet<(Rank, ConnId)>,
    /// The same connections by how many of their jobs wait: who has most makes room for who has less.
    by_waiting: BTreeSet<(usize, ConnId)>,
    arrivals: u64,
}

/// How many handlers run of an initiator or connection, then the turn of what waits: the lowest is next.
type Rank = (usize, Turn);

/// When it is the turn of a job that waits, among those of the same owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Turn {
    urgency: u64,
    arrival: u64,
}

/// What waits of one connection, by initiator, and these by whose turn it is.
#[derive(Debug)]
struct ConnectionQueue<J> {
    rank: Rank,
    waiting: usize,
    queues: BTreeMap<NodeId, InitiatorQueue<J>>,
    order: BTreeSet<(Rank, NodeId)>,
}

/// What waits of one initiator.
#[derive(Debug)]
struct InitiatorQueue<J> {
    rank: Rank,
    jobs: BTreeMap<Turn, J>,
}

impl<J> Executor<J> {
    /// One that admits so many jobs.
    pub fn new(config: ExecutorConfig) -> Self {
        Self {
            running: Shares::new(config.concurrency.max(1)),
            waiting: Shares::new(config.queue),
            connections: BTreeMap::new(),
            order: BTreeSet::new(),
            by_waiting: BTreeSet::new(),
            arrivals: 0,
            config,
        }
    }

    /// How urgent a request is that arrives `now`: smaller for what should run earlier. It is about points in time, so
    /// that it does not matter when a request arrived.
    pub fn urgency(
        &self,
        age: impl FnOnce() -> Duration,
        deadline: Duration,
        now: Duration,
    ) -> u64 {
        let micros = |duration: Duration| duration.as_micros() as u64;
        match self.config.schedule {
            Schedule::Fifo => 0,
            // Calls may have begun before this endpoint did.
            Schedule::OldestCall => (1 << 62) + micros(now) - micros(age()).min(1 << 62),
            Schedule::EarliestDeadline => micros(deadline),
        }
    }

    /// Whether a job of this owner may run now: if so, it has a place.
    #[inline]
    pub fn try_run(&mut self, owner: Owner) -> bool {
        let runs = self.running.try_take(owner.0, owner.1).is_ok();
        if runs && !self.connections.is_empty() {
            self.list(owner);
        }
        runs
    }

    /// Whether another job of this owner may wait.
    pub fn has_room(&mut self, (session, initiator): Owner) -> bool {
        let share = self.waiting.name(session, initiator);
        self.waiting.has_room(share)
    }

    /// A job waits that may not run now, and may wait.
    #[inline(never)]
    pub fn queue(&mut self, job: J, owner: Owner, urgency: u64) -> Turn {
        let (session, initiator) = owner;
        self.waiting.take(session, initiator);
        self.arrivals += 1;
        let turn = Turn {
            urgency,
            arrival: self.arrivals,
        };
        let connection = self
            .connections
            .entry(session)
            .or_insert_with(|| ConnectionQueue {
                rank: Rank::default(),
                waiting: 0,
                queues: BTreeMap::new(),
                order: BTreeSet::new(),
            });
        let queue = connection
            .queues
            .entry(initiator)
            .or_insert_with(|| InitiatorQueue {
                rank: Rank::default(),
                jobs: BTreeMap::new(),
            });
        queue.jobs.insert(turn, job);
        self.list(owner);
        turn
    }

    /// A job makes room for one of this owner, which has no [room](Self::has_room): the last one of the connection that has most
    /// of them. `None` if that connection would have fewer than the owner's then. However many connections fill the queue
    /// together, one that has little there loses nothing.
    #[cold]
    pub fn displace(&mut self, (session, _): Owner) -> Option<J> {
        let own = self.connections.get(&session).map_or(0, |own| own.waiting);
        let (most, largest) = *self.by_waiting.last()?;
        if most <= own + 1 {
            return None;
        }
        let connection = self.connections.get_mut(&largest)?;
        let (_, initiator) = *connection.order.last()?;
        let (_, job) = connection.queues.get_mut(&initiator)?.jobs.pop_last()?;
        let share = self.waiting.name(largest, initiator);
        self.waiting.give_back(share);
        self.list((largest, initiator));
        Some(job)
    }

    /// A job does not wait any more. `None` if it did not.
    #[inline(never)]
    pub fn withdraw(&mut self, owner: Owner, turn: Turn) -> Option<J> {
        let (session, initiator) = owner;
        let connection = self.connections.get_mut(&session)?;
        let job = connection.queues.get_mut(&initiator)?.jobs.remove(&turn)?;
        let share = self.waiting.name(session, initiator);
        self.waiting.give_back(share);
        self.list(owner);
        Some(job)
    }

    /// A job of this owner is done; returns the one that runs in its place.
    #[inline]
    pub fn release(&mut self, owner: Owner) -> Option<J> {
        let share = self.running.name(owner.0, owner.1);
        self.running.give_back(share);
        if self.connections.is_empty() {
            return None;
        }
        self.list(owner);
        self.next()
    }

    /// How many jobs run and how many wait.
    pub fn load(&self) -> Load {
        Load {
            running: self.running.taken(),
            waiting: self.waiting.taken(),
        }
    }

    /// Why a job of this owner was refused.
    #[cold]
    pub fn why_refused(&mut self, (session, initiator): Owner) -> String {
        let Load { running, waiting } = self.load();
        if waiting >= self.config.queue {
            return format!(
                "{running} handlers run and {waiting} requests wait: no more are taken"
            );
        }
        let share = self.waiting.name(session, initiator);
        let own = self.waiting.taken_by_connection(share);
        format!(
            "{running} handlers run and {waiting} requests wait of {}, of this connection {own}: it has its share",
            self.config.queue
        )
    }

    /// Something has changed of an owner: what runs of it, or what waits. If something waits, its turn may be another one.
    #[inline(never)]
    fn list(&mut self, (session, initiator): Owner) {
        let Some(connection) = self.connections.get_mut(&session) else {
            return;
        };
        let share = self.waiting.name(session, initiator);
        let waiting = self.waiting.taken_by_connection(share);
        if waiting != connection.waiting {
            self.by_waiting.remove(&(connection.waiting, session));
            connection.waiting = waiting;
            if waiting > 0 {
                self.by_waiting.insert((waiting, session));
            }
        }
        let share = self.running.name(session, initiator);
        if let Some(queue) = connection.queues.get_mut(&initiator) {
            connection.order.remove(&(queue.rank, initiator));
            if let Some((turn, _)) = queue.jobs.first_key_value() {
                queue.rank = (self.running.taken_by(share), *turn);
                connection.order.insert((queue.rank, initiator));
            } else {
                connection.queues.remove(&initiator);
            }
        }
        self.order.remove(&(connection.rank, session));
        let Some(((_, turn), first)) = connection.order.first().copied() else {
            self.connections.remove(&session);
            return;
        };
        let share = self.running.name(session, first);
        connection.rank = (self.running.weight(share), turn);
        self.order.insert((connection.rank, session));
    }

    /// What runs next, if somebody who waits may have another place.
    #[inline(never)]
    fn next(&mut self) -> Option<J> {
        let ((weight, _), session) = *self.order.first()?;
        if !self.running.allows(weight) {
            return None;
        }
        let connection = self.connections.get_mut(&session)?;
        let (_, initiator) = *connection.order.first()?;
        let (_, job) = connection.queues.get_mut(&initiator)?.jobs.pop_first()?;
        self.running.take(session, initiator);
        let share = self.waiting.name(session, initiator);
        self.waiting.give_back(share);
        self.list((session, initiator));
        Some(job)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A client by its own connection.
    fn owner(number: u64) -> Owner {
        behind(number, number)
    }

    fn behind(session: u64, initiator: u64) -> Owner {
        let node = NodeId::new(initiator).expect("not zero");
        (ConnId::from_number(session), node)
    }

    fn load(running: usize, waiting: usize) -> Load {
        Load { running, waiting }
    }

    /// What became of a job.
    enum Admitted<J> {
        Run(J),
        Queued(Turn),
        Refused(J),
    }

    impl<J> Executor<J> {
        fn admit(&mut self, job: J, owner: Owner, urgency: u64) -> Admitted<J> {
            if self.try_run(owner) {
                return Admitted::Run(job);
            }
            if !self.has_room(owner) {
                return Admitted::Refused(job);
            }
            Admitted::Queued(self.queue(job, owner, urgency))
        }
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
        let mut executor = Executor::new(ExecutorConfig {
            concurrency: 1,
            queue: 2,
            schedule: Schedule::OldestCall,
        });
        assert!(matches!(
            executor.admit("runs", owner(1), 9),
            Admitted::Run("runs")
        ));
        assert!(matches!(
            executor.admit("later", owner(1), 5),
            Admitted::Queued(_)
        ));
        assert!(matches!(
            executor.admit("sooner", owner(1), 3),
            Admitted::Queued(_)
        ));
        assert!(matches!(
            executor.admit("refused", owner(1), 1),
            Admitted::Refused("refused")
        ));
        assert_eq!(executor.load(), load(1, 2));
        assert_eq!(executor.release(owner(1)), Some("sooner"));
        assert_eq!(executor.release(owner(1)), Some("later"));
        assert_eq!(executor.release(owner(1)), None);
        assert_eq!(executor.load(), Load::default());
    }

    /// However many fill the queue together: who has little there gets a place, and who has most gives it.
    #[test]
    fn who_has_most_makes_room_for_who_has_little() {
        let mut executor = executor(1, 64);
        offer(&mut executor, owner(1), 1);
        while (1..=40).any(|from| offer(&mut executor, owner(from), 1).1 == 1) {}
        let (full, newcomer) = (executor.load().waiting, owner(99));
        assert_eq!(offer(&mut executor, newcomer, 1), (0, 0, 1));

        let displaced = executor.displace(newcomer).expect("one who has more");
        assert_ne!(displaced, newcomer);
        executor.queue(newcomer, newcomer, 0);
        assert_eq!(executor.load(), load(1, full));
        assert_eq!(
            executor.displace(displaced),
            None,
            "nobody has more than one over these"
        );

        let mut runs = owner(1);
        let mut all = Vec::new();
        while let Some(next) = executor.release(runs) {
            all.push(next);
            runs = next;
        }
        assert_eq!((all.len(), executor.load()), (full, Load::default()));
        assert!(all.contains(&newcomer));
    }

    #[test]
    fn urgency_does_not_depend_on_when_a_request_arrives() {
        let secs = Duration::from_secs;
        let executor = |schedule| {
            Executor::<()>::new(ExecutorConfig {
                schedule,
                ..ExecutorConfig::default()
            })
        };
        let oldest = executor(Schedule::OldestCall);
        let urgency = |age, now| oldest.urgency(|| secs(age), secs(7), secs(now));
        assert!(urgency(5, 100) < urgency(12, 110));
        assert!(urgency(5, 100) > urgency(18, 110));
        assert!(urgency(1_000, 100) < urgency(999, 100));

        let earliest = executor(Schedule::EarliestDeadline);
        let none = || unreachable!("the age does not matter");
        let urgency = |deadline, now| earliest.urgency(none, secs(deadline), secs(now));
        assert!(urgency(7, 3) < urgency(8, 1));
        assert_eq!(urgency(7, 3), urgency(7, 1));
    }

    #[test]
    fn equal_urgency_is_first_come_first_served() {
        let mut executor = Executor::new(ExecutorConfig {
            concurrency: 1,
            queue: 9,
            schedule: Schedule::Fifo,
        });
        for job in 0..5 {
            executor.admit(job, owner(1), 0);
        }
        let order: Vec<_> = std::iter::from_fn(|| executor.release(owner(1))).collect();
        assert_eq!(order, [1, 2, 3, 4]);
    }

    /// Offers so many jobs of an owner; how many run, how many wait, and how many were refused.
    fn offer(executor: &mut Executor<Owner>, owner: Owner, count: usize) -> (usize, usize, usize) {
        let mut became = (0, 0, 0);
        for _ in 0..count {
            match executor.admit(owner, owner, 0) {
                Admitted::Run(_) => became.0 += 1,
                Admitted::Queued(_) => became.1 += 1,
                Admitted::Refused(_) => became.2 += 1,
            }
        }
        became
    }

    #[test]
    fn handlers_that_hang_leave_room_for_others() {
        let mut executor = executor(4096, 4096);
        let (running, waiting, refused) = offer(&mut executor, owner(1), 100_000);
        assert!((3500..3700).contains(&running), "{running}");
        assert!((3500..3700).contains(&waiting), "{waiting}");
        assert_eq!(running + waiting + refused, 100_000);
        assert!(executor.why_refused(owner(1)).contains("share"));
        for client in 2..100 {
            assert_eq!(
                offer(&mut executor, owner(client), 3),
                (3, 0, 0),
                "{client}"
            );
            // A place that was another's is not the greedy one's.
            let next: Vec<_> = (0..3).map(|_| executor.release(owner(client))).collect();
            assert_eq!(next, [None; 3]);
        }
        // What the greedy one gives back it gets again.
        assert_eq!(executor.release(owner(1)), Some(owner(1)));
        assert_eq!(executor.load(), load(running, waiting - 1));
    }

    /// Jobs of one tick each: whoever has few gets all of them done, and no place is idle that could be used.
    #[test]
    fn many_short_jobs_of_one_client_do_not_delay_others() {
        let mut executor = executor(64, 64);
        let (mut running, mut good, mut of_greedy, mut most) = (Vec::new(), 0, 0, 0);
        for tick in 0..500 {
            for owner in std::mem::take(&mut running) {
                running.extend(executor.release(owner));
                match owner.0.number() {
                    1 => of_greedy += 1,
                    _ => good += 1,
                }
            }
            for (client, count) in [(1, 200), (2 + tick % 10, 1)] {
                for _ in 0..count {
                    if let Admitted::Run(job) = executor.admit(owner(client), owner(client), 0) {
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
        let mut executor = executor(8, 100);
        assert_eq!(offer(&mut executor, owner(1), 20), (8, 12, 0));
        assert_eq!(offer(&mut executor, owner(2), 3), (0, 3, 0));
        assert_eq!(offer(&mut executor, behind(3, 30), 3), (0, 3, 0));
        assert_eq!(offer(&mut executor, behind(3, 31), 1), (0, 1, 0));
        let order: Vec<Owner> = (0..7).filter_map(|_| executor.release(owner(1))).collect();
        let [one, two] = [owner(1), owner(2)];
        let [first, second] = [behind(3, 30), behind(3, 31)];
        assert_eq!(order, [two, first, second, two, first, one, one]);
    }

    #[test]
    fn what_is_withdrawn_makes_room_and_is_passed_over() {
        let mut executor = executor(1, 3);
        let admit = |executor: &mut Executor<&'static str>, name, client| match executor.admit(
            name,
            owner(client),
            0,
        ) {
            Admitted::Queued(turn) => Some(turn),
            Admitted::Run(_) | Admitted::Refused(_) => None,
        };
        assert_eq!(admit(&mut executor, "runs", 1), None);
        let [first, second] = ["first", "second"].map(|name| admit(&mut executor, name, 1));
        let other = admit(&mut executor, "other", 2).expect("it waits");
        let first = first.expect("it waits");
        assert_eq!(executor.withdraw(owner(1), first), Some("first"));
        assert_eq!(executor.withdraw(owner(1), first), None, "it is gone");
        assert_eq!(executor.load(), load(1, 2));
        assert!(admit(&mut executor, "third", 1).is_some(), "there is room");
        assert_eq!(executor.withdraw(owner(2), other), Some("other"));
        assert_eq!(executor.release(owner(1)), Some("second"));
        assert_eq!(
            executor.withdraw(owner(1), second.expect("it waited")),
            None
        );
        assert_eq!(executor.release(owner(1)), Some("third"));
        assert_eq!(executor.release(owner(1)), None);
        assert_eq!(executor.load(), Load::default());
        assert!(executor.connections.is_empty() && executor.order.is_empty());
    }

    /// What waits is found by what it is waiting behind, not by looking through it.
    #[test]
    fn everything_that_waits_runs_in_the_end() {
        let mut executor = executor(5, 1000);
        let mut running = Vec::new();
        let mut offered = 0;
        for round in 0..40 {
            for session in 1..=round % 9 + 1 {
                for initiator in 1..=round % 4 + 1 {
                    offered += 1;
                    let owner = behind(session, initiator);
                    match executor.admit(owner, owner, round * 7 % 5) {
                        Admitted::Run(owner) => running.push(owner),
                        Admitted::Queued(_) => {}
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
        assert_eq!(executor.load(), Load::default());
        assert!(executor.connections.is_empty() && executor.order.is_empty());
    }
}
