//! Tasks that wait for something of an endpoint.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::task::Waker;

use wallaby_proto::endpoint::{CallKey, InBody, Lane, OutBody, RequestKey};

/// What a task waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Wait {
    /// The next answer of a call, or its end.
    Answer(CallKey),
    /// That an initial request of a call was taken by a connection, or the call has ended.
    Sent(CallKey),
    /// That nothing of a call runs any more.
    Settled(CallKey),
    /// That the endpoint is drained.
    Drained,
    /// That no message of a request waits in this direction.
    Room(RequestKey, Lane),
    /// That a message of a request may be taken which was refused for want of room.
    Space(RequestKey),
    /// Something of a body to read.
    Read(InBody),
    /// That more of a body may be written.
    Write(OutBody),
}

/// Who waits for what. Keys are numbers of the endpoint's own, which nobody else chooses.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    tasks: HashMap<Wait, Tasks, BuildHasherDefault<Mixed>>,
    /// Requests that wait for room, in the order in which they began to.
    for_space: BTreeMap<u64, RequestKey>,
    turns: HashMap<RequestKey, u64, BuildHasherDefault<Mixed>>,
    latest: u64,
}

/// Nearly always there is one.
#[derive(Debug)]
enum Tasks {
    One(Waker),
    Many(Vec<Waker>),
}

impl Waiters {
    /// A task waits. Returns what takes its place: to be dropped when the endpoint's lock is free.
    #[must_use = "what a waker drops may be anything: it is dropped when the endpoint's lock is free"]
    pub(crate) fn wait(&mut self, what: Wait, task: &Waker) -> Option<Waker> {
        match self.tasks.get_mut(&what) {
            None => {
                if let Wait::Space(request) = what {
                    self.latest += 1;
                    self.for_space.insert(self.latest, request);
                    self.turns.insert(request, self.latest);
                }
                self.tasks.insert(what, Tasks::One(task.clone()));
            }
            Some(Tasks::One(known)) if known.will_wake(task) => {}
            // One reads a call's answers, and one a body.
            Some(Tasks::One(known)) if matches!(what, Wait::Answer(_) | Wait::Read(_)) => {
                return Some(std::mem::replace(known, task.clone()));
            }
            Some(tasks) => tasks.add(task),
        }
        None
    }

    /// It has happened: whom to wake.
    pub(crate) fn take(&mut self, what: Wait) -> impl Iterator<Item = Waker> + use<> {
        if let Wait::Space(request) = what
            && let Some(turn) = self.turns.remove(&request)
        {
            self.for_space.remove(&turn);
        }
        let (one, many) = match self.tasks.remove(&what) {
            None => (None, Vec::new()),
            Some(Tasks::One(one)) => (Some(one), Vec::new()),
            Some(Tasks::Many(many)) => (None, many),
        };
        one.into_iter().chain(many)
    }

    /// Nothing comes any more: all are to be woken.
    pub(crate) fn take_all(&mut self) -> Vec<Waker> {
        let all: Vec<Wait> = self.tasks.keys().copied().collect();
        all.into_iter().flat_map(|what| self.take(what)).collect()
    }

    /// Whether any wait for room.
    pub(crate) fn wait_for_space(&self) -> bool {
        !self.for_space.is_empty()
    }

    /// There may be room for what was refused: whose messages that were.
    pub(crate) fn those_without_space(&self) -> Vec<RequestKey> {
        self.for_space.values().copied().collect()
    }
}

impl Tasks {
    fn add(&mut self, task: &Waker) {
        let mut many = match std::mem::replace(self, Self::Many(Vec::new())) {
            Self::One(one) => vec![one],
            Self::Many(many) => many,
        };
        if !many.iter().any(|known| known.will_wake(task)) {
            many.push(task.clone());
        }
        *self = Self::Many(many);
    }
}

/// Mixes the few numbers that a key consists of (Fibonacci hashing).
#[derive(Debug, Default)]
struct Mixed(u64);

impl Hasher for Mixed {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes
            .iter()
            .for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u32(&mut self, number: u32) {
        self.write_u64(u64::from(number));
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = (self.0.rotate_left(23) ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn write_isize(&mut self, number: isize) {
        self.write_u64(number as u64);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn waits(waiters: &mut Waiters, what: Wait, task: &Arc<Woken>) {
        let before = waiters.wait(what, &Waker::from(Arc::clone(task)));
        assert!(before.is_none());
    }

    fn requests(count: u64) -> Vec<RequestKey> {
        (0..count).map(RequestKey::from_number).collect()
    }

    #[test]
    fn each_task_is_woken_once() {
        let mut waiters = Waiters::default();
        let woken: Vec<Arc<Woken>> = (0..3).map(|_| Arc::default()).collect();
        let what = Wait::Room(requests(1)[0], Lane::Answers);
        for _ in 0..2 {
            woken
                .iter()
                .for_each(|task| waits(&mut waiters, what, task));
        }
        waiters.take(what).for_each(Waker::wake);
        assert!(woken.iter().all(|task| task.0.load(Ordering::Relaxed) == 1));
        assert_eq!(waiters.take(what).count(), 0);
    }

    /// Who calls and gives up again, while there is no room, leaves nothing behind.
    #[test]
    fn requests_that_have_ended_wait_for_no_room() {
        let mut waiters = Waiters::default();
        let requests = requests(1000);
        let task: Arc<Woken> = Arc::default();
        for request in &requests {
            waits(&mut waiters, Wait::Space(*request), &task);
        }
        for request in &requests[..998] {
            waiters.take(Wait::Space(*request)).for_each(Waker::wake);
        }
        assert_eq!(waiters.those_without_space(), requests[998..]);
        assert_eq!((waiters.tasks.len(), waiters.turns.len()), (2, 2));
        assert_eq!(Arc::strong_count(&task), 3, "as many are kept as wait");
    }
}
