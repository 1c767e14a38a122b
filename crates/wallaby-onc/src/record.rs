//! Record marking: where messages begin and end in a byte stream (RFC 5531, section 11).
//!
//! A record is one or more fragments, each with four bytes before it: its length, and in the highest bit whether it is
//! the record's last one.

use bytes::{Buf, Bytes, BytesMut};
use thiserror::Error;

/// Most bytes of a fragment.
pub const MAX_FRAGMENT: usize = LENGTH as usize;

const LAST: u32 = 1 << 31;
const LENGTH: u32 = LAST - 1;
/// Bytes before a fragment.
pub(crate) const HEADER: usize = 4;

/// A record is longer than the reader takes. What follows in the stream cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("expected a record of at most {limit} bytes, found one of {found} or more")]
pub struct RecordTooLong {
    /// The limit.
    pub limit: usize,
    /// What the fragments so far add up to, the last of them by its header.
    pub found: usize,
}

/// Finds records in a byte stream.
///
/// Hand over what arrives with [`handle_input`](Self::handle_input), then take records from
/// [`poll_record`](Self::poll_record) until there is none. What is kept in between is no more than was handed over.
#[derive(Debug)]
pub struct RecordReader {
    limit: usize,
    input: BytesMut,
    /// What earlier fragments of the record held, and what has arrived of this one.
    record: BytesMut,
    fragment: Option<Fragment>,
}

/// The fragment whose header was read last.
#[derive(Debug, Clone, Copy)]
struct Fragment {
    left: usize,
    is_last: bool,
}

impl RecordReader {
    /// A reader of a stream whose records have at most `limit` bytes.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self {
            limit,
            input: BytesMut::new(),
            record: BytesMut::new(),
            fragment: None,
        }
    }

    /// These bytes arrived.
    pub fn handle_input(&mut self, bytes: &[u8]) {
        self.input.extend_from_slice(bytes);
    }

    /// Where what comes next belongs, and how many bytes of it, if that is much: to read it elsewhere would be to copy it. What
    /// is read there has arrived.
    #[cfg(all(feature = "net", unix))]
    pub(crate) fn room(&mut self) -> Option<(&mut BytesMut, usize)> {
        let fragment = self.fragment.filter(|fragment| fragment.is_last)?;
        let arrived = self.input.len();
        let missing = fragment.left.checked_sub(arrived)?;
        if missing < MUCH || arrived < MUCH || !self.record.is_empty() {
            return None;
        }
        // Who claims much gets no more room than there was for what arrived.
        self.input.reserve(missing.min(arrived));
        Some((&mut self.input, missing))
    }

    /// The next record that is complete.
    ///
    /// # Errors
    /// The next record is too long. So it is each time this is asked again.
    pub fn poll_record(&mut self) -> Result<Option<Bytes>, RecordTooLong> {
        loop {
            let Some(fragment) = self.fragment()? else {
                return Ok(None);
            };
            // A record that is one fragment, as most are, is not copied.
            if fragment.is_last && self.record.is_empty() {
                if self.input.len() < fragment.left {
                    return Ok(None);
                }
                self.fragment = None;
                return Ok(Some(self.input.split_to(fragment.left).freeze()));
            }
            let arrived = self.input.len().min(fragment.left);
            self.record.extend_from_slice(&self.input[..arrived]);
            self.input.advance(arrived);
            let left = fragment.left - arrived;
            if left > 0 {
                self.fragment = Some(Fragment { left, ..fragment });
                return Ok(None);
            }
            self.fragment = None;
            if fragment.is_last {
                return Ok(Some(self.record.split().freeze()));
            }
        }
    }

    /// Whether the stream may end here: not within a record.
    #[must_use]
    pub fn is_between_records(&self) -> bool {
        self.input.is_empty() && self.record.is_empty() && self.fragment.is_none()
    }

    /// The fragment that is being read, its header taken off the input.
    fn fragment(&mut self) -> Result<Option<Fragment>, RecordTooLong> {
        if self.fragment.is_none()
            && let Some(header) = self.input.first_chunk::<HEADER>()
        {
            let header = u32::from_be_bytes(*header);
            let left = (header & LENGTH) as usize;
            let found = self.record.len().saturating_add(left);
            if found > self.limit {
                let limit = self.limit;
                return Err(RecordTooLong { limit, found });
            }
            self.input.advance(HEADER);
            self.fragment = Some(Fragment {
                left,
                is_last: header & LAST != 0,
            });
        }
        Ok(self.fragment)
    }
}

/// About as much as is read at a time elsewhere.
#[cfg(all(feature = "net", unix))]
const MUCH: usize = 32 << 10;

/// What stands before a message that is one fragment.
#[cfg(all(feature = "net", unix))]
pub(crate) fn mark(length: usize) -> [u8; HEADER] {
    debug_assert!(length <= MAX_FRAGMENT, "its sender has looked at that");
    (length as u32 | LAST).to_be_bytes()
}

/// Fills in what stands before a message that is one fragment, if it can be one. There has to be room for that, and some of
/// the message may be elsewhere.
#[cfg(all(feature = "net", unix))]
pub(crate) fn set_mark(record: &mut [u8], elsewhere: usize) {
    let length = record.len().saturating_sub(HEADER) + elsewhere;
    if let (Some(first), true) = (record.first_chunk_mut(), length <= MAX_FRAGMENT) {
        *first = mark(length);
    }
}

/// Appends a message as a record of fragments that have at most `fragment` bytes (at least 1, at most
/// [`MAX_FRAGMENT`]).
pub fn write(message: &[u8], fragment: usize, out: &mut BytesMut) {
    let fragment = fragment.clamp(1, MAX_FRAGMENT);
    out.reserve(message.len() + HEADER * (message.len() / fragment + 1));
    let mut rest = message;
    loop {
        let (now, later) = rest.split_at(rest.len().min(fragment));
        let last = if later.is_empty() { LAST } else { 0 };
        // No longer than MAX_FRAGMENT, so nothing is cut off.
        out.extend_from_slice(&(now.len() as u32 | last).to_be_bytes());
        out.extend_from_slice(now);
        if later.is_empty() {
            return;
        }
        rest = later;
    }
}
