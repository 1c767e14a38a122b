//! The bytes that wait to be written to the transport.

use crate::wire::FRAME_HEADER;

/// What was written is dropped from the front when it is at least this long and half of all: each byte moves once.
const WORTH_MOVING: usize = 32 * 1024;

/// More room than this is given back when nothing waits: it was needed for one large burst.
const KEPT: usize = 1024 * 1024;

/// Frames, in order; some of the first may have been written already.
#[derive(Debug, Default)]
pub(super) struct OutputBuffer {
    bytes: Vec<u8>,
    written: usize,
    /// Bytes that were taken to be written, and are not known to be.
    taken: usize,
    /// What is added is dropped.
    is_shut: bool,
}

impl OutputBuffer {
    pub(super) fn waiting(&self) -> &[u8] {
        &self.bytes[self.written..]
    }

    pub(super) fn len(&self) -> usize {
        self.taken + self.bytes.len() - self.written
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether something waits that was not taken.
    pub(super) fn has_waiting(&self) -> bool {
        self.bytes.len() > self.written
    }

    /// Whether some of it may have been written.
    pub(super) fn was_taken(&self) -> bool {
        self.taken > 0
    }

    /// All that waits, in exchange for an empty buffer: until [`advance`](Self::advance) it counts as not written.
    pub(super) fn take(&mut self, buffer: &mut Vec<u8>) {
        buffer.clear();
        if self.written > 0 {
            self.bytes.drain(..self.written);
            self.written = 0;
        }
        std::mem::swap(&mut self.bytes, buffer);
        self.taken += buffer.len();
    }

    /// The transport takes nothing more: what waits is dropped, and what will be added.
    pub(super) fn shut(&mut self) {
        *self = Self {
            is_shut: true,
            ..Self::default()
        };
    }

    pub(super) fn is_shut(&self) -> bool {
        self.is_shut
    }

    /// So many bytes were written, those that were taken first.
    pub(super) fn advance(&mut self, written: usize) {
        if self.is_shut {
            return; // by another thread, just before the transport failed
        }
        assert!(written <= self.len(), "no more was written than waited");
        let of_taken = written.min(self.taken);
        self.taken -= of_taken;
        self.written += written - of_taken;
        if !self.has_waiting() {
            self.bytes.clear();
            self.bytes.shrink_to(KEPT);
            self.written = 0;
        } else if self.written >= WORTH_MOVING && self.written >= self.bytes.len() - self.written {
            self.bytes.drain(..self.written);
            self.written = 0;
        }
    }

    /// Appends a frame: its length and kind, and whatever `body` appends.
    #[inline]
    pub(super) fn put_frame(&mut self, kind: u8, body: impl FnOnce(&mut Vec<u8>)) {
        if self.is_shut {
            return;
        }
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&[0; FRAME_HEADER]);
        body(&mut self.bytes);
        let len = (self.bytes.len() - start - FRAME_HEADER) as u32;
        let header = len | u32::from(kind) << 24;
        self.bytes[start..start + FRAME_HEADER].copy_from_slice(&header.to_le_bytes());
    }
}
