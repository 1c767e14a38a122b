//! Bytes as values.

use std::mem;

use bytes::{Buf, Bytes};

use super::{DecodeError, MAX_DEPTH, Malformed, Text, padding};

/// What a reader allows besides the limits that the interface states.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct XdrLimits {
    /// Memory that the elements of arrays, lists and optional values may take up together, in bytes. Strings and opaque
    /// data are not counted: they are slices of what arrived.
    pub memory: usize,
    /// Length of strings, opaque data and arrays for which the interface states no limit.
    pub length: u32,
}

impl Default for XdrLimits {
    /// 64 MiB of memory, lengths to 16 Mi.
    fn default() -> Self {
        Self {
            memory: 64 << 20,
            length: 16 << 20,
        }
    }
}

/// Reads values from bytes, one after another.
#[derive(Debug)]
pub struct Reader {
    bytes: Bytes,
    offset: usize,
    depth: u32,
    memory: usize,
    limits: XdrLimits,
}

impl Reader {
    /// Begins at the first of these bytes.
    #[must_use]
    pub fn new(bytes: Bytes, limits: XdrLimits) -> Self {
        Self {
            bytes,
            offset: 0,
            depth: 0,
            memory: 0,
            limits,
        }
    }

    /// How many bytes have been read.
    #[must_use]
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// How many bytes are left.
    #[must_use]
    #[inline]
    pub fn left(&self) -> usize {
        self.bytes.len()
    }

    /// Ends the reading.
    ///
    /// # Errors
    /// There are bytes left.
    pub fn finish(self) -> Result<(), DecodeError> {
        match self.left() {
            0 => Ok(()),
            left => Err(self.error(Malformed::Trailing { left })),
        }
    }

    /// All bytes that are left, as they are.
    #[must_use]
    pub fn rest(self) -> Bytes {
        self.bytes
    }

    /// An error at the place that was reached.
    fn error(&self, problem: Malformed) -> DecodeError {
        DecodeError {
            offset: self.offset,
            problem,
        }
    }

    /// An error about the four bytes that were read last.
    pub(super) fn error_before(&self, problem: Malformed) -> DecodeError {
        DecodeError {
            offset: self.offset.saturating_sub(4),
            problem,
        }
    }

    /// The error that the four bytes that were read last are none of the values of an enum or union.
    #[must_use]
    pub fn unknown(&self, expected: &'static str, found: i64) -> DecodeError {
        self.error_before(Malformed::Unknown { expected, found })
    }

    /// Four bytes: `unsigned int`.
    ///
    /// # Errors
    /// The bytes end.
    #[inline]
    pub fn u32(&mut self) -> Result<u32, DecodeError> {
        let Some(value) = self.bytes.first_chunk().copied() else {
            return Err(self.ended(4));
        };
        self.bytes.advance(4);
        self.offset += 4;
        Ok(u32::from_be_bytes(value))
    }

    /// Eight bytes: `unsigned hyper`.
    ///
    /// # Errors
    /// The bytes end.
    pub fn u64(&mut self) -> Result<u64, DecodeError> {
        self.need(8)?;
        self.offset += 8;
        Ok(self.bytes.get_u64())
    }

    /// Opaque data of variable length, at most `limit` bytes: a slice of what arrived, not a copy. What fills up the
    /// last four bytes is skipped, whatever it is: other implementations do not look at it either.
    ///
    /// # Errors
    /// The data is longer, or the bytes end.
    #[inline]
    pub fn opaque(&mut self, limit: Option<u32>) -> Result<Bytes, DecodeError> {
        let length = self.length(limit)? as usize;
        if length == 0 {
            return Ok(Bytes::new());
        }
        self.need(length.saturating_add(padding(length)))?;
        let data = self.bytes.split_to(length);
        self.bytes.advance(padding(length));
        self.offset += length + padding(length);
        Ok(data)
    }

    /// Opaque data of fixed length.
    ///
    /// # Errors
    /// The bytes end.
    pub fn fixed_opaque<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        self.need(N.saturating_add(padding(N)))?;
        let mut data = [0; N];
        self.bytes.copy_to_slice(&mut data);
        self.bytes.advance(padding(N));
        self.offset += N + padding(N);
        Ok(data)
    }

    /// A string of at most `limit` bytes.
    ///
    /// # Errors
    /// The string is longer, or the bytes end.
    pub fn text(&mut self, limit: Option<u32>) -> Result<Text, DecodeError> {
        self.opaque(limit).map(Text::from)
    }

    /// An array of variable length, at most `limit` elements.
    ///
    /// # Errors
    /// The array is longer, an element is no such value, or the bytes end.
    pub fn array<T>(
        &mut self,
        limit: Option<u32>,
        element: impl FnMut(&mut Self) -> Result<T, DecodeError>,
    ) -> Result<Vec<T>, DecodeError> {
        let length = self.length(limit)?;
        self.elements(length as usize, element)
    }

    /// An array of fixed length.
    ///
    /// # Errors
    /// An element is no such value, or the bytes end.
    pub fn fixed_array<T, const N: usize>(
        &mut self,
        element: impl FnMut(&mut Self) -> Result<T, DecodeError>,
    ) -> Result<[T; N], DecodeError> {
        match self.elements(N, element)?.try_into() {
            Ok(array) => Ok(array),
            Err(_) => unreachable!("`elements` gives as many as it is asked for"),
        }
    }

    /// A value that may be there or not.
    ///
    /// # Errors
    /// What stands before it is no bool, it is no such value, or the bytes end.
    pub fn optional<T>(
        &mut self,
        value: impl FnOnce(&mut Self) -> Result<T, DecodeError>,
    ) -> Result<Option<T>, DecodeError> {
        if !self.bool()? {
            return Ok(None);
        }
        self.account::<T>()?;
        self.deeper(value).map(Some)
    }

    /// A linked list: elements that are each announced by a 1, then a 0. This is how a struct whose last field points
    /// to the next such struct is written, so lists of any length are read without recursion.
    ///
    /// # Errors
    /// An announcement is no bool, an element is no such value, or the bytes end.
    pub fn list<T>(
        &mut self,
        mut element: impl FnMut(&mut Self) -> Result<T, DecodeError>,
    ) -> Result<Vec<T>, DecodeError> {
        self.deeper(|reader| {
            let mut elements = Vec::new();
            while reader.bool()? {
                reader.account::<T>()?;
                elements.push(element(reader)?);
            }
            Ok(elements)
        })
    }

    /// Four bytes that are 0 or 1.
    pub(super) fn bool(&mut self) -> Result<bool, DecodeError> {
        match self.u32()? {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(self.error_before(Malformed::Bool(other))),
        }
    }

    fn elements<T>(
        &mut self,
        length: usize,
        mut element: impl FnMut(&mut Self) -> Result<T, DecodeError>,
    ) -> Result<Vec<T>, DecodeError> {
        self.deeper(|reader| {
            // No more room than the bytes that arrived would fill; the rest grows with the elements.
            let room = reader.left() / mem::size_of::<T>().max(1);
            let mut elements = Vec::with_capacity(length.min(room));
            for _ in 0..length {
                reader.account::<T>()?;
                elements.push(element(reader)?);
            }
            Ok(elements)
        })
    }

    /// Counts the memory of one value. Values without a size count a byte: else an array of them would never end.
    fn account<T>(&mut self) -> Result<(), DecodeError> {
        self.memory = self.memory.saturating_add(mem::size_of::<T>().max(1));
        let limit = self.limits.memory;
        if self.memory > limit {
            return Err(self.error(Malformed::TooLarge { limit }));
        }
        Ok(())
    }

    fn deeper<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<T, DecodeError>,
    ) -> Result<T, DecodeError> {
        if self.depth == MAX_DEPTH {
            return Err(self.error(Malformed::TooDeep { limit: MAX_DEPTH }));
        }
        self.depth += 1;
        let value = read(self);
        self.depth -= 1;
        value
    }

    #[inline]
    fn length(&mut self, limit: Option<u32>) -> Result<u32, DecodeError> {
        let limit = limit.unwrap_or(self.limits.length);
        let found = self.u32()?;
        if found > limit {
            return Err(self.error_before(Malformed::TooLong { limit, found }));
        }
        Ok(found)
    }

    #[inline]
    fn need(&self, needed: usize) -> Result<(), DecodeError> {
        match self.left() < needed {
            true => Err(self.ended(needed)),
            false => Ok(()),
        }
    }

    fn ended(&self, needed: usize) -> DecodeError {
        let left = self.left();
        self.error(Malformed::Ended { needed, left })
    }
}
