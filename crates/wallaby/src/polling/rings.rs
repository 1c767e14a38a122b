//! Streams over shared memory among the peers: whose rings are looked at, and when the system is asked besides.
//!
//! Rings that were found to have something stay *awake*: they are looked at in each turn, and their peers need not ring. Before
//! a turn waits, all are put to rest, and the bells are waited for with everything else.

use std::time::Duration;

use bytes::BytesMut;
use wallaby_proto::endpoint::{ConnId, Endpoint as Core};

use super::stream::Stream;
use super::streams::Streams;
use crate::error::dial_failed;
use crate::transport::end_of;

/// Most connections that are looked at in turns that do not wait. If more are awake, those that have nothing go to rest.
const AWAKE: usize = 64;

/// While there is something to look at, turns that do not wait ask the system for the rest after so long, or so many turns,
/// whatever the clock says: if others send by sockets, and if they only come and go there.
const ASK: (Duration, u32) = (Duration::from_micros(10), 100);
const ASK_SELDOM: (Duration, u32) = (Duration::from_micros(200), 2_000);

/// Connections over shared memory.
#[derive(Debug, Default)]
pub(super) struct Rings {
    count: usize,
    /// Those that are awake, and some that are there no more.
    awake: Vec<ConnId>,
    /// When the system was asked last, and how many turns have not since then.
    asked: Duration,
    turns: u32,
}

impl Rings {
    /// A stream's rings are looked at from now on.
    pub(super) fn wake(&mut self, id: ConnId, stream: &mut Stream) {
        if let Some(rings) = stream.rings_mut() {
            rings.wake();
            if !std::mem::replace(&mut stream.awake, true) {
                self.awake.push(id);
            }
        }
    }

    /// One connection more, or one less.
    pub(super) fn begin(&mut self) {
        self.count += 1;
    }

    pub(super) fn end(&mut self) {
        self.count -= 1;
    }

    pub(super) fn len(&self) -> usize {
        self.count
    }

    /// One of those that are awake.
    pub(super) fn awake(&self, index: usize) -> Option<ConnId> {
        self.awake.get(index).copied()
    }

    /// Whether a turn that does not wait need not ask the system: there is something to look at, and it was asked just now.
    /// `alone`: nobody sends by sockets.
    pub(super) fn come_first(&mut self, now: Duration, alone: bool) -> bool {
        if self.awake.is_empty() {
            return false;
        }
        self.turns += 1;
        let (after, turns) = if alone { ASK_SELDOM } else { ASK };
        let just_now = now < self.asked.saturating_add(after) && self.turns < turns;
        if !just_now {
            (self.asked, self.turns) = (now, 0);
        }
        just_now
    }
}

impl Streams {
    /// Before a turn waits so long: how long it may. Rings that have nothing go to rest.
    pub(super) fn rest_rings(&mut self, wait: Duration) -> Duration {
        if self.rings.awake.is_empty() {
            return wait;
        }
        let few = self.rings.awake.len() <= AWAKE;
        // While there is no wait, nobody needs to ring.
        if few && (wait.is_zero() || self.have_rings_something()) {
            return Duration::ZERO;
        }
        let (table, awake) = (&mut self.table, &mut self.rings.awake);
        awake.retain(|id| table.get_mut(*id).is_some_and(|stream| !stream.rest()));
        match awake.is_empty() {
            true => wait,
            false => Duration::ZERO,
        }
    }

    /// Whether there is something to do with rings that are awake.
    pub(super) fn have_rings_something(&mut self) -> bool {
        let (table, awake) = (&mut self.table, &self.rings.awake);
        let mut streams = awake.iter();
        streams.any(|id| {
            let stream = table.get_mut(*id);
            stream.is_some_and(|stream| !stream.look().is_nothing())
        })
    }

    /// A peer has rung.
    pub(super) fn wake_rings(&mut self, id: ConnId) {
        if let Some(stream) = self.table.get_mut(id) {
            self.rings.wake(id, stream);
        }
    }

    /// Looks at rings that are awake: whether there is something to read.
    pub(super) fn look_at_rings(&mut self, core: &mut Core, id: ConnId) -> bool {
        let Some(stream) = self.table.get_mut(id) else {
            return false;
        };
        let found = stream.look();
        if found.writable {
            self.writable(core, id);
        }
        found.readable
    }

    /// The socket of a peer that shares memory, or is to, can be read: the set-up goes on, or the peer has ended.
    pub(super) fn attend_life(&mut self, core: &mut Core, id: ConnId) {
        let Some(rings) = self.table.get_mut(id).and_then(Stream::rings_mut) else {
            return;
        };
        let was_open = rings.bell().is_some();
        match rings.attend() {
            Ok(true) => {
                if let Some(bell) = rings.bell() {
                    self.await_bell(core, id, bell);
                }
                self.wake_rings(id);
                self.writable(core, id);
            }
            Ok(false) => {
                if was_open {
                    self.wake_rings(id); // what the peer has put in before its end is still read
                }
            }
            Err(error) => match core.server(id).filter(|_| !was_open) {
                None => core.handle_ended(id, &mut BytesMut::new(), end_of(&error)),
                Some(to) => self.fail_dial(core, id, dial_failed(&to, &error)),
            },
        }
    }
}
