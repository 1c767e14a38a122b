//! Who waits to send something that a peer does not take now.

use tokio::sync::futures::Notified;
use tokio::sync::{Notify, Semaphore, SemaphorePermit};

/// Told whenever something may be accepted that was not before.
#[derive(Debug)]
pub(crate) struct Room {
    changed: Notify,
    requests: Semaphore,
    answers: Semaphore,
}

/// What one of many waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Want {
    /// What every request waits for: credit, and that the transport takes something.
    Request,
    /// What every answer waits for: that the transport takes something.
    Answer,
    /// Something of its own: the credit of a call, a place for a body, memory for a large message.
    Own,
}

/// Someone who waits.
///
/// Of those that want the same only the first looks whenever something changes, the others wait for their turn. Else each
/// change would wake all of them for a few, and what a thousand wait for would take a million looks. Who has its turn must go
/// on by itself, in a task: nobody else would.
#[derive(Debug)]
pub(crate) struct Waiting<'a> {
    room: &'a Room,
    turn: Option<(Want, SemaphorePermit<'a>)>,
}

impl Room {
    pub(crate) fn new() -> Self {
        Self {
            changed: Notify::new(),
            requests: Semaphore::new(1),
            answers: Semaphore::new(1),
        }
    }

    /// Something may be accepted, or the connection has ended.
    pub(crate) fn tell(&self) {
        self.changed.notify_waiters();
    }

    /// The next change. Create it before trying, so that nothing is missed.
    pub(crate) fn changed(&self) -> Notified<'_> {
        self.changed.notified()
    }

    /// Somebody who will perhaps have to wait.
    pub(crate) fn waiting(&self) -> Waiting<'_> {
        Waiting {
            room: self,
            turn: None,
        }
    }

    /// The turns of those who want the same.
    fn turns(&self, want: Want) -> Option<&Semaphore> {
        match want {
            Want::Request => Some(&self.requests),
            Want::Answer => Some(&self.answers),
            Want::Own => None,
        }
    }
}

impl Waiting<'_> {
    /// Waits until it is worth another try: for a change since `changed` was created, or for its turn.
    pub(crate) async fn room(&mut self, want: Want, changed: Notified<'_>) {
        if self.turn.as_ref().is_some_and(|(had, _)| *had != want) {
            self.turn = None;
        }
        match self.room.turns(want) {
            Some(turns) if self.turn.is_none() => {
                let turn = turns.acquire().await;
                self.turn = turn.ok().map(|turn| (want, turn));
            }
            _ => changed.await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::{Cell, RefCell};
    use std::future::Future;
    use std::task::{Context, Waker};

    /// So many wait for places that come by threes: how often they looked, and in which order they got one.
    fn wait(waiters: usize, want: Want) -> (usize, Vec<usize>) {
        let room = Room::new();
        let (places, looks, served) = (Cell::new(0), Cell::new(0), RefCell::default());
        let waiter = async |number: usize| {
            let mut waiting = room.waiting();
            loop {
                let changed = room.changed();
                looks.set(looks.get() + 1);
                if places.get() > 0 {
                    places.set(places.get() - 1);
                    Vec::push(&mut served.borrow_mut(), number);
                    return;
                }
                waiting.room(want, changed).await;
            }
        };
        let mut waiters: Vec<_> = (0..waiters).map(|at| Box::pin(waiter(at))).collect();
        let mut cx = Context::from_waker(Waker::noop());
        while !waiters.is_empty() {
            waiters.retain_mut(|waiter| waiter.as_mut().poll(&mut cx).is_pending());
            places.set(3);
            room.tell();
        }
        drop(waiters);
        (looks.get(), served.into_inner())
    }

    #[test]
    fn who_waits_for_the_same_looks_in_turn() {
        let all: Vec<usize> = (0..999).collect();
        for want in [Want::Request, Want::Answer] {
            let (looks, served) = wait(999, want);
            assert_eq!(served, all, "{want:?}");
            assert!(looks <= 3 * 999, "{looks} looks by {want:?}");
        }
        let (looks, served) = wait(999, Want::Own);
        assert_eq!(served, all);
        assert!(looks > 100 * 999, "each looks whenever something changes");
    }

    #[test]
    fn who_wants_something_else_or_gives_up_leaves_its_turn_to_the_next() {
        let room = Room::new();
        let mut cx = Context::from_waker(Waker::noop());
        let (mut first, mut second) = (room.waiting(), room.waiting());
        let turn = |waiting: &mut Waiting<'_>, want, cx: &mut Context<'_>| {
            let changed = room.changed();
            Box::pin(waiting.room(want, changed))
                .as_mut()
                .poll(cx)
                .is_ready()
        };
        assert!(
            turn(&mut first, Want::Answer, &mut cx),
            "nobody else is there"
        );
        assert!(!turn(&mut second, Want::Answer, &mut cx));
        assert!(turn(&mut second, Want::Request, &mut cx), "another queue");
        assert!(!turn(&mut first, Want::Own, &mut cx), "nothing has changed");
        assert!(turn(&mut second, Want::Answer, &mut cx));
        assert!(!turn(&mut first, Want::Answer, &mut cx));
        drop(second);
        assert!(turn(&mut first, Want::Answer, &mut cx));
    }
}
