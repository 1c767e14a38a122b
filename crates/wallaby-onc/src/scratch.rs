//! Memory that a thread writes its messages into, over and over.

use std::cell::Cell;
use std::ops::{Deref, DerefMut};

use crate::xdr::Writer;

/// A message, in memory that the next one is written into.
#[derive(Debug, Default)]
pub(crate) struct Scratch(Vec<u8>);

impl Scratch {
    /// Writes something.
    pub(crate) fn write<E>(write: impl FnOnce(&mut Writer) -> Result<(), E>) -> Result<Self, E> {
        let mut bytes = KEPT.take();
        bytes.clear();
        let mut writer = Writer::onto(bytes);
        write(&mut writer)?;
        Ok(Self(writer.into_vec()))
    }
}

impl Deref for Scratch {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl DerefMut for Scratch {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let bytes = std::mem::take(&mut self.0);
        if bytes.capacity() <= MOST_KEPT {
            // A thread that ends keeps nothing.
            let _ = KEPT.try_with(|kept| kept.set(bytes));
        }
    }
}

thread_local! {
    static KEPT: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// More than any datagram; what is longer takes so long to send that the memory does not matter.
const MOST_KEPT: usize = 128 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    fn written(length: usize) -> Scratch {
        let write = |writer: &mut Writer| {
            writer.raw(&vec![7; length]);
            Ok::<_, ()>(())
        };
        Scratch::write(write).unwrap()
    }

    #[test]
    fn memory_is_used_again_unless_it_is_large() {
        let first = written(1_000);
        let place = first.as_ptr();
        drop(first);
        let second = written(1_000);
        assert_eq!((second.as_ptr(), &*second), (place, &[7; 1_000][..]));
        assert_eq!(written(10).len(), 10, "two at a time");
        drop(written(MOST_KEPT + 1));
        assert!(KEPT.take().capacity() <= MOST_KEPT);
    }
}
