//! Streams over shared memory among the peers: whose rings are looked at, and when the system is asked besides.
//!
//! Rings that were found to have something stay *awake*: they are looked at in each turn, and their peers need not ring. Before
//! a turn waits, all are put to rest, and the bells are waited for with everything else.

use std::time::Duration;

use super::core::Core;
use super::peer::{Peer, PeerId};
use super::stream::Stream;
use crate::error::ConnectError;

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
    awake: Vec<PeerId>,
    /// When the system was asked last, and how many turns have not since then.
    asked: Duration,
    turns: u32,
}

impl Rings {
    /// A stream's rings are looked at from now on.
    pub(super) fn wake(&mut self, id: PeerId, stream: &mut Stream) {
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
    pub(super) fn awake(&self, index: usize) -> Option<PeerId> {
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

impl Core {
    /// Before a turn waits so long: how long it may. Rings that have nothing go to rest.
    pub(super) fn rest_rings(&mut self, wait: Duration) -> Duration {
        if self.streams.rings.awake.is_empty() {
            return wait;
        }
        let few = self.streams.rings.awake.len() <= AWAKE;
        // While there is no wait, nobody needs to ring.
        if few && (wait.is_zero() || self.have_rings_something()) {
            return Duration::ZERO;
        }
        let mut awake = std::mem::take(&mut self.streams.rings.awake);
        awake.retain(|id| {
            let stream = self.peers.get_mut(*id).and_then(Peer::stream_mut);
            stream.is_some_and(|stream| !stream.rest())
        });
        self.streams.rings.awake = awake;
        match self.streams.rings.awake.is_empty() {
            true => wait,
            false => Duration::ZERO,
        }
    }

    /// Whether there is something to do with rings that are awake.
    pub(super) fn have_rings_something(&mut self) -> bool {
        let (peers, awake) = (&mut self.peers, &self.streams.rings.awake);
        awake.iter().any(|id| {
            let stream = peers.get_mut(*id).and_then(Peer::stream_mut);
            stream.is_some_and(|stream| !stream.look().is_nothing())
        })
    }

    /// A peer has rung.
    pub(super) fn wake_rings(&mut self, id: PeerId) {
        if let Some(stream) = self.peers.get_mut(id).and_then(Peer::stream_mut) {
            self.streams.rings.wake(id, stream);
        }
    }

    /// Looks at rings that are awake: whether there is something to read.
    pub(super) fn look_at_rings(&mut self, id: PeerId) -> bool {
        let Some(stream) = self.peers.get_mut(id).and_then(Peer::stream_mut) else {
            return false;
        };
        let found = stream.look();
        if found.writable {
            self.stream_writable(id);
        }
        found.readable
    }

    /// The socket of a peer that shares memory, or is to, can be read: the set-up goes on, or the peer has ended.
    pub(super) fn attend_life(&mut self, id: PeerId) {
        let Some(peer) = self.peers.get_mut(id) else {
            return;
        };
        let server = peer.server();
        let Some(rings) = peer.stream_mut().and_then(Stream::rings_mut) else {
            return;
        };
        let was_open = rings.bell().is_some();
        match rings.attend() {
            Ok(true) => {
                if let Some(bell) = rings.bell() {
                    self.await_bell(id, bell);
                }
                self.wake_rings(id);
                self.stream_writable(id);
            }
            Ok(false) => {
                if was_open {
                    self.wake_rings(id); // what the peer has put in before its end is still read
                }
            }
            Err(error) => {
                tracing::debug!(%server, %error, "memory is not shared");
                let broken = error.kind() == std::io::ErrorKind::InvalidData;
                self.counters.connections_broken += u64::from(broken);
                let ended = match was_open {
                    false => ConnectError::from_dial(&server, &error),
                    true => ConnectError::Closed {
                        server,
                        reason: error.to_string(),
                    },
                };
                self.stream_ended(id, ended);
            }
        }
    }
}
