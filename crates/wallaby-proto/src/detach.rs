//! Messages that wait: they do not keep the buffer alive that they arrived in.
//!
//! What arrives stays where it is in memory, and a byte of it keeps all that was read with it: up to 128 KiB. That costs nothing
//! if it is used at once. What waits is counted by its own length, so it gets memory of its own. What was put together of parts
//! has that already.

use bytes::Bytes;

use crate::wire::{MAX_FRAME, Message};

/// So many that wait in a queue may keep their buffers: as long as there are few, it saves copying them.
pub const FEW: usize = 16;

/// This payload waits from now on.
pub fn detach(payload: &mut Bytes) {
    if (1..=MAX_FRAME).contains(&payload.len()) {
        *payload = Bytes::copy_from_slice(payload);
    }
}

impl Message {
    /// It waits from now on.
    pub fn detach(&mut self) {
        match self {
            Self::Request(request) => detach(&mut request.payload),
            Self::Response(response) => detach(&mut response.payload),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use bytes::BytesMut;

    #[test]
    fn what_waits_leaves_the_buffer_of_what_was_read_with_it() {
        for (len, is_free) in [(1, true), (MAX_FRAME, true), (MAX_FRAME + 1, false)] {
            let mut buffer = BytesMut::from(&[7; 128 * 1024][..]);
            let mut payload = buffer.split_to(len).freeze();
            buffer.clear();
            detach(&mut payload);
            assert_eq!(payload, vec![7; len]);
            assert_eq!(buffer.try_reclaim(128 * 1024), is_free, "{len} bytes");
        }
    }
}
