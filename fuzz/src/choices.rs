//! Bytes as choices: what a target does next. Not by the crate `arbitrary`: what the inputs of the corpus mean must not change with
//! the version of a crate.

use std::time::Duration;

/// Bytes that are used up one after the other; zeros follow.
#[derive(Debug)]
pub(crate) struct Choices<'a>(&'a [u8]);

impl<'a> Choices<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn byte(&mut self) -> u8 {
        match self.0.split_first() {
            Some((&first, rest)) => {
                self.0 = rest;
                first
            }
            None => 0,
        }
    }

    /// A number below `limit`, which is not 0 and at most 256.
    pub(crate) fn below(&mut self, limit: u32) -> u32 {
        u32::from(self.byte()) % limit
    }

    /// True once in so many times.
    pub(crate) fn once_in(&mut self, times: u32) -> bool {
        self.below(times) == 1
    }

    /// Mostly small numbers, sometimes any.
    pub(crate) fn number(&mut self) -> u32 {
        match self.byte() {
            small @ 0..=239 => u32::from(small % 16),
            240..=249 => u32::from(self.byte()),
            250 => u32::MAX,
            251 => u32::MAX - 1,
            252 => 1 << 31,
            _ => self.long() as u32,
        }
    }

    pub(crate) fn long(&mut self) -> u64 {
        let bytes = self.bytes(8);
        bytes
            .iter()
            .fold(0, |number, byte| number << 8 | u64::from(*byte))
    }

    /// A time from nothing to minutes; mostly up to some hundred milliseconds.
    pub(crate) fn time(&mut self) -> Duration {
        match self.byte() {
            short @ 0..=199 => Duration::from_millis(u64::from(short) * 4),
            long @ 200..=250 => Duration::from_secs(u64::from(long) - 199),
            _ => Duration::from_micros(u64::from(self.byte())),
        }
    }

    /// So many bytes, or what is left.
    pub(crate) fn bytes(&mut self, len: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        taken
    }

    pub(crate) fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }
}
