//! Reading and writing of the integers, strings and durations that all messages are made of.
//!
//! Integers are LEB128 of at most ten bytes and canonical: the shortest form is the only one accepted, so that equal
//! values have equal bytes and a path (see [`crate::id::Path`]) can be compared as bytes.

use std::time::Duration;

use bytes::BufMut;
use thiserror::Error;

/// Why bytes are not a message.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum WireError {
    /// The bytes end inside a field.
    #[error("{what}: the bytes end inside it")]
    Truncated {
        /// The field.
        what: &'static str,
    },
    /// A field holds what it may not hold.
    #[error("{what}: {why}")]
    Malformed {
        /// The field.
        what: &'static str,
        /// What was found.
        why: &'static str,
    },
    /// A field is longer than its limit.
    #[error("{what}: {len} long, at most {limit} are allowed")]
    TooLong {
        /// The field.
        what: &'static str,
        /// How long it claims to be.
        len: u64,
        /// What is allowed.
        limit: usize,
    },
    /// A frame kind that this version does not know.
    #[error("unknown frame kind {kind:#04x}")]
    UnknownKind {
        /// Its number.
        kind: u8,
    },
    /// Flags or an optional field that must be understood, but are not.
    #[error("{what}: {bits:#x} is not known to this version and may not be ignored")]
    NotUnderstood {
        /// Where they were found.
        what: &'static str,
        /// The flags or the field's tag.
        bits: u64,
    },
}

/// Longest encoding of a `u64`.
pub(crate) const MAX_LEN: usize = 10;

/// Appends `value` as a varint (1 to 10 bytes).
#[inline]
pub(crate) fn put(out: &mut impl BufMut, value: u64) {
    if value < 0x80 {
        out.put_u8(value as u8);
    } else if value < 1 << 14 {
        out.put_slice(&[value as u8 | 0x80, (value >> 7) as u8]);
    } else {
        put_long(out, value);
    }
}

#[inline(never)]
fn put_long(out: &mut impl BufMut, value: u64) {
    let groups = [0, 7, 14, 21].map(|shift| (value >> shift) as u8);
    let [first, second, third, fourth] = groups;
    if value < 1 << 21 {
        return out.put_slice(&[first | 0x80, second | 0x80, third]);
    }
    if value < 1 << 28 {
        return out.put_slice(&[first | 0x80, second | 0x80, third | 0x80, fourth]);
    }
    put_longer(out, value);
}

#[inline(never)]
fn put_longer(out: &mut impl BufMut, value: u64) {
    let (bytes, len) = encode(value);
    out.put_slice(&bytes[..len]);
}

/// Appends a signed integer that is mostly near 0 as a varint (1 to 10 bytes): 0, -1, 1, -2 and so on are 0, 1, 2, 3.
#[inline]
pub(crate) fn put_signed(out: &mut impl BufMut, value: i64) {
    put(out, (value << 1 ^ value >> 63).cast_unsigned());
}

/// The varint of `value` and its length.
#[inline]
pub(crate) fn encode(mut value: u64) -> ([u8; MAX_LEN], usize) {
    let mut bytes = [0; MAX_LEN];
    let mut len = 0;
    while value >= 0x80 {
        bytes[len] = value as u8 | 0x80;
        value >>= 7;
        len += 1;
    }
    bytes[len] = value as u8;
    (bytes, len + 1)
}

/// The integer in the first bytes of eight, and how many these are; `None` if none ends there in its shortest form.
#[inline]
fn decode_word(word: u64) -> Option<(u64, usize)> {
    let ends = !word & 0x8080_8080_8080_8080;
    let end = ends & ends.wrapping_neg();
    let used = word & end.checked_sub(1)?;
    let len = end.trailing_zeros() as usize / 8 + 1;
    if used >> (8 * len - 8) == 0 {
        return None;
    }
    // The groups of seven bits move together: by pairs, by fours, all.
    let bits = used & 0x7f7f_7f7f_7f7f_7f7f;
    let bits = bits & 0x007f_007f_007f_007f | (bits & 0x7f00_7f00_7f00_7f00) >> 1;
    let bits = bits & 0x0000_3fff_0000_3fff | (bits & 0x3fff_0000_3fff_0000) >> 2;
    let value = bits & 0x0fff_ffff | bits >> 32 << 28;
    Some((value, len))
}

/// The integer that these bytes begin with, and how many they are: none if it is malformed or they end inside it.
#[inline(never)]
fn decode(bytes: &[u8]) -> (u64, usize) {
    if let Some((&word, _)) = bytes.split_first_chunk()
        && let Some(decoded) = decode_word(u64::from_le_bytes(word))
    {
        return decoded;
    }
    decode_bytewise(bytes).unwrap_or((0, 0))
}

/// Byte by byte: of nine bytes or ten, or at the end of the input. If it is malformed, says why; nothing if the bytes end
/// inside it.
#[cold]
#[inline(never)]
fn decode_bytewise(bytes: &[u8]) -> Result<(u64, usize), Option<&'static str>> {
    let mut value = 0u64;
    for (index, &byte) in bytes.iter().enumerate() {
        if index == MAX_LEN - 1 && byte > 1 {
            return Err(Some("a varint above 64 bits"));
        }
        value |= u64::from(byte & 0x7f) << (7 * index);
        if byte < 0x80 {
            if byte == 0 && index > 0 {
                return Err(Some("a varint that is not the shortest"));
            }
            return Ok((value, index + 1));
        }
    }
    Err(None)
}

/// Why these bytes do not begin with an integer.
#[cold]
#[inline(never)]
fn malformed_varint(bytes: &[u8], what: &'static str) -> WireError {
    match decode_bytewise(bytes) {
        Err(Some(why)) => WireError::Malformed { what, why },
        _ => WireError::Truncated { what },
    }
}

/// Appends a byte string with its length before it.
pub(crate) fn put_bytes(out: &mut impl BufMut, bytes: &[u8]) {
    put(out, bytes.len() as u64);
    out.put_slice(bytes);
}

/// Appends a duration as two bytes: 5 bits of exponent, 11 of mantissa, in microseconds.
///
/// The error is below 0.1 %, rounded down; anything above 50 days is 50 days.
pub(crate) fn put_duration(out: &mut impl BufMut, duration: Duration) {
    let mut mantissa = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
    let mut exponent = 0u16;
    while mantissa >= 1 << 11 {
        mantissa >>= 1;
        exponent += 1;
    }
    if exponent > 31 {
        (mantissa, exponent) = ((1 << 11) - 1, 31);
    }
    out.put_u16(exponent << 11 | mantissa as u16);
}

/// The longest time that is told.
const LONGEST: u64 = ((1 << 11) - 1) << 31;

/// Appends the time that remains, in microseconds: a line of a thousand servers would lose a second in four if each of them rounded it
/// off as [`put_duration`] does.
///
/// What is below a microsecond is left out; anything above 50 days is 50 days.
pub(crate) fn put_deadline(out: &mut impl BufMut, left: Duration) {
    let micros = u64::try_from(left.as_micros()).unwrap_or(u64::MAX);
    put(out, micros.min(LONGEST));
}

/// A cursor over received bytes; every read checks what is left.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
    len: usize,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self {
            rest: bytes,
            len: bytes.len(),
        }
    }

    /// How many bytes were read so far.
    pub(crate) fn position(&self) -> usize {
        self.len - self.rest.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    #[inline]
    pub(crate) fn u8(&mut self, what: &'static str) -> Result<u8, WireError> {
        let (&first, rest) = self
            .rest
            .split_first()
            .ok_or(WireError::Truncated { what })?;
        self.rest = rest;
        Ok(first)
    }

    pub(crate) fn take(&mut self, len: usize, what: &'static str) -> Result<&'a [u8], WireError> {
        if len > self.rest.len() {
            return Err(WireError::Truncated { what });
        }
        let (taken, rest) = self.rest.split_at(len);
        self.rest = rest;
        Ok(taken)
    }

    pub(crate) fn array<const N: usize>(
        &mut self,
        what: &'static str,
    ) -> Result<[u8; N], WireError> {
        let (taken, rest) = self
            .rest
            .split_first_chunk::<N>()
            .ok_or(WireError::Truncated { what })?;
        self.rest = rest;
        Ok(*taken)
    }

    /// At most 16 bytes, behind which the rest is zero: without a loop if as many stand there anyway.
    #[inline]
    pub(crate) fn take_short(
        &mut self,
        len: usize,
        what: &'static str,
    ) -> Result<[u8; 16], WireError> {
        let Some(bytes) = self.rest.first_chunk::<16>().filter(|_| len < 16) else {
            let mut short = [0; 16];
            short[..len].copy_from_slice(self.take(len, what)?);
            return Ok(short);
        };
        let wanted = (1_u128 << (8 * len)) - 1;
        self.rest = &self.rest[len..];
        Ok((u128::from_le_bytes(*bytes) & wanted).to_le_bytes())
    }

    /// Inlined, so that the reader of a message's beginning stays in registers.
    #[inline(always)]
    pub(crate) fn varint(&mut self, what: &'static str) -> Result<u64, WireError> {
        match self.rest {
            [first, rest @ ..] if *first < 0x80 => {
                self.rest = rest;
                Ok(u64::from(*first))
            }
            [first, second @ 1..0x80, rest @ ..] => {
                self.rest = rest;
                Ok(u64::from(first & 0x7f) | u64::from(*second) << 7)
            }
            _ => self.long_varint(what),
        }
    }

    #[inline(always)]
    fn long_varint(&mut self, what: &'static str) -> Result<u64, WireError> {
        let (value, len) = decode(self.rest);
        if len == 0 {
            return Err(malformed_varint(self.rest, what));
        }
        self.rest = &self.rest[len..];
        Ok(value)
    }

    #[inline(always)]
    pub(crate) fn u32(&mut self, what: &'static str) -> Result<u32, WireError> {
        u32::try_from(self.varint(what)?).map_err(|_| WireError::Malformed {
            what,
            why: "a number above 32 bits",
        })
    }

    /// A byte string of at most `limit` bytes, its length before it.
    #[inline(always)]
    pub(crate) fn bytes(
        &mut self,
        limit: usize,
        what: &'static str,
    ) -> Result<&'a [u8], WireError> {
        let len = self.varint(what)?;
        if len > limit as u64 {
            return Err(WireError::TooLong { what, len, limit });
        }
        self.take(len as usize, what)
    }

    pub(crate) fn str(&mut self, limit: usize, what: &'static str) -> Result<&'a str, WireError> {
        std::str::from_utf8(self.bytes(limit, what)?).map_err(|_| WireError::Malformed {
            what,
            why: "text that is not UTF-8",
        })
    }

    #[inline]
    pub(crate) fn signed(&mut self, what: &'static str) -> Result<i64, WireError> {
        let folded = self.varint(what)?;
        Ok((folded >> 1).cast_signed() ^ -(folded & 1).cast_signed())
    }

    pub(crate) fn duration(&mut self, what: &'static str) -> Result<Duration, WireError> {
        let raw = u16::from_be_bytes(self.array(what)?);
        Ok(Duration::from_micros(u64::from(raw & 0x7ff) << (raw >> 11)))
    }

    /// The time that remains. What is longer than anybody may say counts as that.
    pub(crate) fn deadline(&mut self, what: &'static str) -> Result<Duration, WireError> {
        let micros = self.varint(what)?;
        Ok(Duration::from_micros(micros.min(LONGEST)))
    }

    pub(crate) fn finish(&self, what: &'static str) -> Result<(), WireError> {
        if self.is_empty() {
            Ok(())
        } else {
            Err(WireError::Malformed {
                what,
                why: "bytes after its end",
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_survive() {
        for shift in 0..64 {
            for value in [(1u64 << shift) - 1, 1 << shift, u64::MAX >> shift] {
                let mut out = Vec::new();
                put(&mut out, value);
                let mut reader = Reader::new(&out);
                assert_eq!(reader.varint("test"), Ok(value));
                assert!(reader.is_empty());
            }
        }
    }

    #[test]
    fn integers_of_all_lengths_are_read_wherever_they_end() {
        for shift in 0..64 {
            for value in [(1u64 << shift) - 1, 1 << shift, u64::MAX >> shift] {
                let (bytes, len) = encode(value);
                for (more, filling) in [(0, 0), (1, 0xff), (9, 0), (9, 0x80), (9, 0x7f)] {
                    let mut out = bytes[..len].to_vec();
                    out.resize(len + more, filling);
                    let mut reader = Reader::new(&out);
                    assert_eq!(reader.varint("test"), Ok(value));
                    assert_eq!(reader.position(), len);
                }
            }
        }
    }

    #[test]
    fn a_form_that_is_not_the_shortest_is_refused_wherever_it_ends() {
        for len in 2..=MAX_LEN {
            for more in [0, 1, 9] {
                let mut bytes = vec![0x80; len - 1];
                bytes.resize(len + more, 0);
                let error = Reader::new(&bytes).varint("test");
                let why = "a varint that is not the shortest";
                let what = "test";
                assert_eq!(error, Err(WireError::Malformed { what, why }), "{len}");
            }
        }
    }

    #[test]
    fn only_the_shortest_form_is_accepted() {
        assert!(Reader::new(&[0x80, 0x00]).varint("test").is_err());
        assert!(Reader::new(&[0xff; 10]).varint("test").is_err());
        assert!(Reader::new(&[0xff; 11]).varint("test").is_err());
        assert!(Reader::new(&[0x80]).varint("test").is_err());
    }

    #[test]
    fn signed_integers_survive_and_small_ones_are_short() {
        for (value, len) in [
            (0, 1),
            (1, 1),
            (-1, 1),
            (63, 1),
            (-64, 1),
            (64, 2),
            (i64::MAX, 10),
            (i64::MIN, 10),
        ] {
            let mut out = Vec::new();
            put_signed(&mut out, value);
            assert_eq!(out.len(), len, "{value}");
            assert_eq!(Reader::new(&out).signed("test"), Ok(value));
        }
    }

    #[test]
    fn durations_lose_less_than_a_thousandth() {
        for micros in [0, 1, 2_047, 2_048, 1_000_000, 59_999_999, 86_400_000_000] {
            let mut out = Vec::new();
            put_duration(&mut out, Duration::from_micros(micros));
            let read = Reader::new(&out)
                .duration("test")
                .expect("two bytes")
                .as_micros() as u64;
            assert!(
                read <= micros && micros - read <= micros / 1_000,
                "{micros} became {read}"
            );
        }
        let mut out = Vec::new();
        put_duration(&mut out, Duration::MAX);
        assert_eq!(out, [0xff, 0xff]);
    }

    #[test]
    fn what_remains_is_told_to_the_microsecond_up_to_fifty_days() {
        let longest = Duration::from_micros(LONGEST);
        for (left, told) in [
            (Duration::ZERO, Duration::ZERO),
            (Duration::from_nanos(1_999), Duration::from_micros(1)),
            (
                Duration::from_micros(4_999_999),
                Duration::from_micros(4_999_999),
            ),
            (longest, longest),
            (Duration::MAX, longest),
        ] {
            let mut out = Vec::new();
            put_deadline(&mut out, left);
            assert_eq!(Reader::new(&out).deadline("test"), Ok(told));
        }
        let mut out = Vec::new();
        put(&mut out, u64::MAX);
        assert_eq!(Reader::new(&out).deadline("test"), Ok(longest));
    }

    #[test]
    fn an_integer_has_64_bits_and_no_more() {
        let read = |last: u8| {
            let mut bytes = [0xff; 10];
            bytes[9] = last;
            Reader::new(&bytes).varint("test")
        };
        assert_eq!(read(1), Ok(u64::MAX));
        let error = WireError::Malformed {
            what: "test",
            why: "a varint above 64 bits",
        };
        assert!(
            [2, 3, 0x7f]
                .map(read)
                .iter()
                .all(|read| *read == Err(error.clone()))
        );
    }

    #[test]
    fn a_number_of_32_bits_has_no_more() {
        for value in [0, 0x7f, 0x80, 0x3fff, 0x4000, u64::from(u32::MAX), 1 << 32] {
            let mut out = Vec::new();
            put(&mut out, value);
            out.push(9);
            let mut reader = Reader::new(&out);
            let read = reader.u32("test");
            assert_eq!(read.ok(), u32::try_from(value).ok());
            assert_eq!(reader.position(), out.len() - 1);
        }
    }

    #[test]
    fn the_longest_durations_are_no_less_exact() {
        for micros in [1024u64 << 31, 1500 << 31, 2047 << 31] {
            let mut out = Vec::new();
            put_duration(&mut out, Duration::from_micros(micros));
            let read = Reader::new(&out).duration("test");
            assert_eq!(read, Ok(Duration::from_micros(micros)));
        }
    }
}
