//! The connections of a server, as many as may be.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::connection::Connection;

#[derive(Debug)]
pub(super) struct Connections {
    limit: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    open: HashMap<u64, Arc<Connection>>,
    /// A clock that ticks whenever a connection is used.
    tick: u64,
}

/// What became of a connection that wants in.
pub(super) enum Admission {
    /// It has a place.
    Admitted,
    /// It has the place of one that was idle and is ended now.
    InPlaceOf(Arc<Connection>),
    /// All others are busy.
    Refused,
}

impl Connections {
    pub(super) fn new(limit: usize) -> Self {
        Self {
            limit: limit.max(1),
            state: Mutex::default(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.state().open.len()
    }

    /// The time on the clock of uses.
    pub(super) fn tick(&self) -> u64 {
        let mut state = self.state();
        state.tick += 1;
        state.tick
    }

    pub(super) fn admit(&self, connection: &Arc<Connection>) -> Admission {
        let mut state = self.state();
        let admission = match state.open.len() < self.limit {
            true => Admission::Admitted,
            false => match state.least_recently_used() {
                Some(idle) => Admission::InPlaceOf(idle),
                None => return Admission::Refused,
            },
        };
        state.open.insert(connection.id(), Arc::clone(connection));
        admission
    }

    pub(super) fn remove(&self, connection: &Connection) {
        self.state().open.remove(&connection.id());
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Takes out the connection that has been idle for longest.
    fn least_recently_used(&mut self) -> Option<Arc<Connection>> {
        let idle = self.open.values().filter(|each| each.is_idle());
        let id = idle.min_by_key(|each| each.last_used())?.id();
        self.open.remove(&id)
    }
}
