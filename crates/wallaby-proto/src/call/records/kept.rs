//! Responses that are kept so that they can be sent again (PROTOCOL-NOTES 26), within a budget of bytes.
//!
//! Small payloads, which most are, are copied into a ring: as slices they would keep whole buffers alive, and a copy is
//! cheaper than two counts of references. Half of the budget is for them, half for large ones.

use std::collections::VecDeque;

use bytes::Bytes;

use crate::manifest::Manifest;
use crate::wire::Response;

/// Payloads up to this size are copied.
const COPIED: usize = 4096;

/// What an entry costs besides its payload.
const ENTRY: u64 = 128;

/// All responses that an endpoint keeps, oldest first.
#[derive(Debug)]
pub(super) struct Kept {
    /// What each half may hold.
    budget: u64,
    /// What all entries cost, and those with large payloads.
    bytes: u64,
    shared: u64,
    /// The number of the first entry.
    first: u64,
    entries: VecDeque<Option<Entry>>,
    ring: Ring,
}

/// A response without what its request's record says.
#[derive(Debug)]
struct Entry {
    index: u32,
    last: bool,
    status: bool,
    compressed: bool,
    manifest: Option<Manifest>,
    payload: Payload,
    /// The entry of the same request before it.
    previous: Option<u64>,
}

#[derive(Debug)]
enum Payload {
    Copied { position: u64, len: u32 },
    Shared(Bytes),
}

impl Entry {
    fn cost(&self) -> u64 {
        ENTRY
            + match &self.payload {
                Payload::Copied { len, .. } => u64::from(*len),
                Payload::Shared(bytes) => bytes.len() as u64,
            }
    }

    fn is_shared(&self) -> bool {
        matches!(self.payload, Payload::Shared(_))
    }
}

impl Kept {
    pub(super) fn new(budget: u64) -> Self {
        Self {
            budget: budget / 2,
            bytes: 0,
            shared: 0,
            first: 0,
            entries: VecDeque::new(),
            ring: Ring::new(budget / 2),
        }
    }

    /// Keeps a response of a request whose entry before it has this number; returns its own.
    #[inline]
    pub(super) fn keep(&mut self, response: &Response, previous: Option<u64>) -> Option<u64> {
        let len = response.payload.len();
        let cost = ENTRY + len as u64;
        if cost > self.budget {
            return previous;
        }
        let payload = if len > COPIED {
            self.share(response)
        } else {
            while self.bytes - self.shared + cost > self.budget {
                self.drop_first();
            }
            let position = loop {
                match self.ring.push(&response.payload) {
                    Some(position) => break position,
                    None => self.drop_first(),
                }
            };
            let len = len as u32;
            Payload::Copied { position, len }
        };
        self.bytes += cost;
        self.entries.push_back(Some(Entry {
            index: response.index,
            last: response.last,
            status: response.status,
            compressed: response.compressed,
            manifest: response.manifest,
            payload,
            previous,
        }));
        Some(self.first + self.entries.len() as u64 - 1)
    }

    #[inline(never)]
    fn share(&mut self, response: &Response) -> Payload {
        let cost = ENTRY + response.payload.len() as u64;
        while self.shared + cost > self.budget {
            self.drop_first();
        }
        self.shared += cost;
        Payload::Shared(response.payload.clone())
    }

    /// Writes the response with this number, of the request whose last entry is given, into `response`; `false` if it
    /// is not kept.
    pub(super) fn restore(&self, last: Option<u64>, index: u32, response: &mut Response) -> bool {
        let mut next = last;
        while let Some(entry) = next.and_then(|number| self.entry(number)) {
            if entry.index == index {
                response.index = entry.index;
                response.last = entry.last;
                response.status = entry.status;
                response.compressed = entry.compressed;
                response.manifest = entry.manifest;
                response.payload = match &entry.payload {
                    Payload::Copied { position, len } => self.ring.copy(*position, *len as usize),
                    Payload::Shared(bytes) => bytes.clone(),
                };
                return true;
            }
            next = entry.previous;
        }
        false
    }

    /// Puts a status in place of a response of the request whose last entry is given, if that is kept.
    pub(super) fn replace(&mut self, last: Option<u64>, status: &Response) {
        let mut next = last;
        while let Some(number) = next {
            let Some(entry) = self.entry_mut(number) else {
                return;
            };
            if entry.index != status.index {
                next = entry.previous;
                continue;
            }
            let (before, was_shared) = (entry.cost(), entry.is_shared());
            (entry.status, entry.compressed) = (status.status, status.compressed);
            entry.payload = Payload::Shared(status.payload.clone());
            let cost = entry.cost();
            self.bytes = self.bytes - before + cost;
            self.shared = self.shared - before * u64::from(was_shared) + cost;
            while self.shared > self.budget {
                self.drop_first();
            }
            return;
        }
    }

    /// Forgets all responses of the request whose last entry is given.
    pub(super) fn forget(&mut self, last: Option<u64>) {
        let mut next = last;
        while let Some(entry) = next.and_then(|number| self.take(number)) {
            self.discount(&entry);
            next = entry.previous;
        }
        let before = self.first;
        while let Some(None) = self.entries.front() {
            self.entries.pop_front();
            self.first += 1;
        }
        if self.first != before {
            self.free_ring();
        }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    fn entry(&self, number: u64) -> Option<&Entry> {
        let position = number.checked_sub(self.first)?;
        self.entries.get(usize::try_from(position).ok()?)?.as_ref()
    }

    fn entry_mut(&mut self, number: u64) -> Option<&mut Entry> {
        let position = number.checked_sub(self.first)?;
        let slot = self.entries.get_mut(usize::try_from(position).ok()?)?;
        slot.as_mut()
    }

    fn take(&mut self, number: u64) -> Option<Entry> {
        let position = number.checked_sub(self.first)?;
        let slot = self.entries.get_mut(usize::try_from(position).ok()?)?;
        slot.take()
    }

    #[inline(never)]
    fn drop_first(&mut self) {
        if let Some(dropped) = self.entries.pop_front() {
            self.first += 1;
            if let Some(entry) = dropped {
                self.discount(&entry);
            }
        }
        self.free_ring();
    }

    fn discount(&mut self, entry: &Entry) {
        let cost = entry.cost();
        self.bytes -= cost;
        if entry.is_shared() {
            self.shared -= cost;
        }
    }

    /// What stands in the ring before the first entry's copy is free.
    fn free_ring(&mut self) {
        match self.entries.front() {
            Some(Some(Entry {
                payload: Payload::Copied { position, .. },
                ..
            })) => self.ring.free_before(*position),
            Some(_) => {}
            None => self.ring.clear(),
        }
    }
}

/// Bytes one behind the other, the oldest overwritten when they are free.
#[derive(Debug)]
struct Ring {
    /// Made when the first byte comes.
    bytes: Vec<u8>,
    size: u64,
    /// What is in use. Positions count up for ever; a position's place is its remainder by the size.
    from: u64,
    to: u64,
    /// The place of `to`.
    place: u64,
}

impl Ring {
    fn new(size: u64) -> Self {
        Self {
            bytes: Vec::new(),
            size,
            from: 0,
            to: 0,
            place: 0,
        }
    }

    /// Copies bytes to where they stand in one piece, and says where; `None` if there is no room.
    fn push(&mut self, bytes: &[u8]) -> Option<u64> {
        let len = bytes.len() as u64;
        let left = self.size - self.place;
        let (position, place) = match len > left {
            true => (self.to + left, 0),
            false => (self.to, self.place),
        };
        let to = position + len;
        if to - self.from > self.size {
            return None;
        }
        if self.bytes.is_empty() {
            self.make();
        }
        let start = place as usize;
        self.bytes[start..start + bytes.len()].copy_from_slice(bytes);
        (self.to, self.place) = (to, place + len);
        Some(position)
    }

    #[cold]
    #[inline(never)]
    fn make(&mut self) {
        self.bytes = vec![0; self.size as usize];
    }

    fn copy(&self, position: u64, len: usize) -> Bytes {
        let start = (position % self.size) as usize;
        Bytes::copy_from_slice(&self.bytes[start..start + len])
    }

    fn free_before(&mut self, position: u64) {
        self.from = position;
    }

    fn clear(&mut self) {
        (self.from, self.to, self.place) = (0, 0, 0);
    }
}
