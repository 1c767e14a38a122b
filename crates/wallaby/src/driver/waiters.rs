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
    /// That no message of a request waits in this direction.
    Room(RequestKey, Lane),
    /// That something may be taken which was refused for want of room.
    Space,
    /// Something of a body to read.
    Read(InBody),
    /// That more of a body may be written.
    Write(OutBody),
}

/// Who waits for what. Keys are numbers of the endpoint's own, which nobody else chooses.
#[derive(Debug, Default)]
pub(crate) struct Waiters(HashMap<Wait, Tasks, BuildHasherDefault<Mixed>>);

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
        match self.0.get_mut(&what) {
            None => drop(self.0.insert(what, Tasks::One(task.clone()))),
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
        let (one, many) = match self.0.remove(&what) {
            None => (None, Vec::new()),
            Some(Tasks::One(one)) => (Some(one), Vec::new()),
            Some(Tasks::Many(many)) => (None, many),
        };
        one.into_iter().chain(many)
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

    #[test]
    fn each_task_is_woken_once() {
        let mut waiters = Waiters::default();
        let woken: Vec<Arc<Woken>> = (0..3).map(|_| Arc::default()).collect();
        for _ in 0..2 {
            for task in &woken {
                let before = waiters.wait(Wait::Space, &Waker::from(Arc::clone(task)));
                assert!(before.is_none());
            }
        }
        waiters.take(Wait::Space).for_each(Waker::wake);
        assert!(woken.iter().all(|task| task.0.load(Ordering::Relaxed) == 1));
        assert_eq!(waiters.take(Wait::Space).count(), 0);
    }
}
