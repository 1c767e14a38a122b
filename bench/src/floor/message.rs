//! The floors' messages on a stream: four bytes with the length of what follows, and the payload.

use crate::plan::{PREFIX, is_answer};
use anyhow::{Result, ensure};

/// Cuts a stream into frames.
#[derive(Debug)]
pub(crate) struct Frames {
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
}

impl Frames {
    /// For payloads up to this size.
    pub(crate) fn new(largest_payload: usize) -> Self {
        // Room for several, as a real server would have, so that reading has no reason to stop at a frame's end.
        let size = 2 * (PREFIX + largest_payload) + 4_096;
        Self {
            buffer: vec![0; size].into_boxed_slice(),
            start: 0,
            end: 0,
        }
    }

    /// The next whole frame, prefix included, if there is one.
    pub(crate) fn take(&mut self) -> Result<Option<&mut [u8]>> {
        let Some(size) = self.whole()? else {
            return Ok(None);
        };
        let start = self.start;
        self.start += size;
        Ok(Some(&mut self.buffer[start..start + size]))
    }

    /// The next whole frames that go to the client as they are, to be written at once; empty if there are none.
    pub(crate) fn take_answers(&mut self) -> Result<&[u8]> {
        let start = self.start;
        while let Some(size) = self.whole()?
            && is_answer(&self.buffer[self.start + PREFIX..self.start + size])
        {
            self.start += size;
        }
        Ok(&self.buffer[start..self.start])
    }

    /// The size of the next frame, prefix included, if it is there as a whole.
    fn whole(&self) -> Result<Option<usize>> {
        let filled = &self.buffer[self.start..self.end];
        let Some(prefix) = filled.first_chunk::<PREFIX>() else {
            return Ok(None);
        };
        let size = PREFIX + u32::from_le_bytes(*prefix) as usize;
        ensure!(
            size <= self.buffer.len(),
            "a frame of {size} bytes is too large"
        );
        Ok((filled.len() >= size).then_some(size))
    }

    /// Where to read further bytes to; never empty while [`Frames::take`] yields nothing.
    pub(crate) fn space(&mut self) -> &mut [u8] {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.end == self.buffer.len() {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        &mut self.buffer[self.end..]
    }

    /// So many bytes were read to there.
    pub(crate) fn filled(&mut self, count: usize) {
        self.end = (self.end + count).min(self.buffer.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_found_however_the_stream_is_cut() {
        let stream: Vec<u8> = (0..200_u32)
            .flat_map(|number| {
                let size = number % 37;
                [&size.to_le_bytes()[..], &vec![number as u8; size as usize]].concat()
            })
            .collect();
        for step in [1, 3, 50, 5_000] {
            let mut frames = Frames::new(40);
            let (mut read, mut found) = (0, Vec::new());
            while read < stream.len() {
                let space = frames.space();
                let count = step.min(space.len()).min(stream.len() - read);
                assert!(count > 0);
                space[..count].copy_from_slice(&stream[read..read + count]);
                frames.filled(count);
                read += count;
                while let Some(frame) = frames.take().unwrap() {
                    found.extend_from_slice(frame);
                }
            }
            assert_eq!(found, stream, "in steps of {step}");
        }
    }

    #[test]
    fn an_oversized_frame_is_an_error() {
        let mut frames = Frames::new(10);
        frames.space()[..4].copy_from_slice(&u32::MAX.to_le_bytes());
        frames.filled(4);
        assert!(frames.take().is_err());
    }
}
