//! Values as bytes.

use bytes::Bytes;

use super::{EncodeError, MAX_DEPTH, Text, padding};

/// Appends values to bytes, one after another.
#[derive(Debug, Default)]
pub struct Writer {
    bytes: Vec<u8>,
    depth: u32,
}

impl Writer {
    /// Begins with no bytes.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Begins with room for so many bytes: one that gets exactly these allocates nothing else.
    #[must_use]
    pub fn with_capacity(capacity: usize) -> Self {
        Self {
            bytes: Vec::with_capacity(capacity),
            depth: 0,
        }
    }

    /// Begins after these bytes, in the same memory.
    #[cfg(all(feature = "net", unix))]
    pub(crate) fn onto(bytes: Vec<u8>) -> Self {
        Self { bytes, depth: 0 }
    }

    /// What was written, in the memory that it was written to.
    #[cfg(all(feature = "net", unix))]
    pub(crate) fn into_vec(self) -> Vec<u8> {
        self.bytes
    }

    /// What was written.
    #[must_use]
    pub fn into_bytes(self) -> Bytes {
        self.bytes.into()
    }

    /// Four bytes: `unsigned int`.
    #[inline]
    pub fn u32(&mut self, value: u32) {
        self.put(&value.to_be_bytes());
    }

    /// Eight bytes: `unsigned hyper`.
    pub fn u64(&mut self, value: u64) {
        self.put(&value.to_be_bytes());
    }

    /// Bytes that are XDR already, as they are.
    #[inline]
    pub fn raw(&mut self, bytes: &[u8]) {
        self.put(bytes);
    }

    /// Opaque data of variable length, at most `limit` bytes.
    ///
    /// # Errors
    /// The data is longer.
    #[inline]
    pub fn opaque(&mut self, data: &[u8], limit: Option<u32>) -> Result<(), EncodeError> {
        let length = length(data.len(), limit)?;
        self.make_room(4 + data.len() + padding(data.len()));
        self.u32(length);
        self.fixed_opaque(data);
        Ok(())
    }

    /// Opaque data of fixed length: the length is not written.
    #[inline]
    pub fn fixed_opaque(&mut self, data: &[u8]) {
        self.put(data);
        self.put(&[0; 3][..padding(data.len())]);
    }

    /// A string of at most `limit` bytes.
    ///
    /// # Errors
    /// The string is longer.
    pub fn text(&mut self, text: &Text, limit: Option<u32>) -> Result<(), EncodeError> {
        self.opaque(text, limit)
    }

    /// An array of variable length, at most `limit` elements.
    ///
    /// # Errors
    /// The array is longer, or an element cannot be written.
    pub fn array<T>(
        &mut self,
        elements: &[T],
        limit: Option<u32>,
        element: impl FnMut(&mut Self, &T) -> Result<(), EncodeError>,
    ) -> Result<(), EncodeError> {
        self.u32(length(elements.len(), limit)?);
        self.fixed_array(elements, element)
    }

    /// An array of fixed length: the length is not written.
    ///
    /// # Errors
    /// An element cannot be written.
    pub fn fixed_array<T>(
        &mut self,
        elements: &[T],
        mut element: impl FnMut(&mut Self, &T) -> Result<(), EncodeError>,
    ) -> Result<(), EncodeError> {
        self.deeper(|writer| elements.iter().try_for_each(|each| element(writer, each)))
    }

    /// A value that may be there or not.
    ///
    /// # Errors
    /// The value cannot be written.
    pub fn optional<T>(
        &mut self,
        value: Option<&T>,
        write: impl FnOnce(&mut Self, &T) -> Result<(), EncodeError>,
    ) -> Result<(), EncodeError> {
        self.u32(u32::from(value.is_some()));
        match value {
            Some(value) => self.deeper(|writer| write(writer, value)),
            None => Ok(()),
        }
    }

    /// A linked list: each element announced by a 1, then a 0.
    ///
    /// # Errors
    /// An element cannot be written.
    pub fn list<T>(
        &mut self,
        elements: &[T],
        mut element: impl FnMut(&mut Self, &T) -> Result<(), EncodeError>,
    ) -> Result<(), EncodeError> {
        self.deeper(|writer| {
            for each in elements {
                writer.u32(1);
                element(writer, each)?;
            }
            writer.u32(0);
            Ok(())
        })
    }

    fn deeper(
        &mut self,
        write: impl FnOnce(&mut Self) -> Result<(), EncodeError>,
    ) -> Result<(), EncodeError> {
        if self.depth == MAX_DEPTH {
            return Err(EncodeError::TooDeep { limit: MAX_DEPTH });
        }
        self.depth += 1;
        let written = write(self);
        self.depth -= 1;
        written
    }

    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        self.make_room(bytes.len());
        self.bytes.extend_from_slice(bytes);
    }

    /// Room for so many bytes more.
    #[inline]
    fn make_room(&mut self, more: usize) {
        // It would begin with a few bytes and double them, which costs more than to write most messages.
        let more = match self.bytes.capacity() {
            0 => more.max(FIRST_ROOM),
            _ => more,
        };
        self.bytes.reserve(more);
    }
}

/// The length of what has no fixed one, if it may be so long.
fn length(found: usize, limit: Option<u32>) -> Result<u32, EncodeError> {
    let limit = limit.unwrap_or(u32::MAX);
    match u32::try_from(found) {
        Ok(length) if length <= limit => Ok(length),
        _ => Err(EncodeError::TooLong { limit, found }),
    }
}

/// Room that is made when the first byte is written.
const FIRST_ROOM: usize = 64;
