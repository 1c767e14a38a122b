//! How much is read from a stream at a time, and when after an error.

use std::time::Duration;

use bytes::BytesMut;

/// How long nothing is accepted or received after that has failed: out of file descriptors, most likely, and trying again at once would
/// only burn the processor.
pub(crate) const PAUSE: Duration = Duration::from_millis(20);

/// Least and most room for one read, in bytes. A small room is used over and over and stays in the cache.
const LEAST: usize = 2 * 1024;
const MOST: usize = 64 * 1024;

/// Room for the next read, in bytes: it grows while reads fill it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ReadRoom(usize);

impl Default for ReadRoom {
    fn default() -> Self {
        Self(LEAST)
    }
}

impl ReadRoom {
    /// Makes that room.
    pub(crate) fn make(self, input: &mut BytesMut) {
        if input.capacity() - input.len() < self.0 {
            input.reserve(2 * self.0);
        }
    }

    /// So much was read.
    pub(crate) fn note(&mut self, read: usize) {
        if read >= self.0 {
            self.0 = (self.0 * 2).min(MOST);
        } else if read < self.0 / 4 {
            self.0 = (self.0 / 2).max(LEAST);
        }
    }

    pub(crate) fn is_least(self) -> bool {
        self.0 == LEAST
    }
}
