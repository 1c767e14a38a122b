//! Tasks that wait for something of an endpoint.

use std::collections::HashMap;
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
            None => drop(self.tasks.insert(what, Tasks::One(task.clone()))),
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
        self.tasks.remove(&what).into_iter().flat_map(Tasks::all)
    }

    /// Nothing comes any more: all are to be woken.
    pub(crate) fn take_all(&mut self) -> Vec<Waker> {
        let all = std::mem::take(&mut self.tasks).into_values();
        all.flat_map(Tasks::all).collect()
    }
}

impl Tasks {
    fn all(self) -> impl Iterator<Item = Waker> {
        let (one, many) = match self {
            Self::One(one) => (Some(one), Vec::new()),
            Self::Many(many) => (None, many),
        };
        one.into_iter().chain(many)
    }

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

/// Mixes the few numbers that a key consists of (Fibonacci hashing). Ours, as it is one multiplication for each number on the way
/// of every answer, and a crate for it would be one more for everybody.
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
}
