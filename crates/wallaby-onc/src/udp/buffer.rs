//! What datagrams are received into.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

use crate::auth::OpaqueAuth;
use crate::message::{BadMessage, CallBody, MessageBody, RpcMessage};

/// Room for the largest datagram, used over and over.
#[derive(Debug)]
pub(crate) struct Buffer(Arc<[u8]>);

impl Default for Buffer {
    fn default() -> Self {
        Self(Arc::from([]))
    }
}

impl Buffer {
    /// The room, or another one if somebody has kept something of it.
    pub(crate) fn room(&mut self) -> &mut [u8] {
        if self.0.len() != super::LARGEST || Arc::get_mut(&mut self.0).is_none() {
            self.0 = Arc::from(vec![0; super::LARGEST]);
        }
        Arc::get_mut(&mut self.0).unwrap_or_default()
    }

    /// The message in so many bytes that were received.
    pub(crate) fn message(&self, length: usize) -> Result<RpcMessage, BadMessage> {
        let plain = self.0.get(..length).and_then(CallBody::plain);
        let Some((xid, procedure, arguments)) = plain else {
            return RpcMessage::decode(self.received(0..length));
        };
        let body = MessageBody::Call(CallBody {
            procedure,
            credential: OpaqueAuth::none(),
            verifier: OpaqueAuth::none(),
            arguments: self.received(arguments..length),
        });
        Ok(RpcMessage { xid, body })
    }

    /// What was received. Who keeps some bytes of it is not to keep the whole buffer: only what is large stays where it is.
    fn received(&self, part: Range<usize>) -> Bytes {
        match self.0.get(part.clone()) {
            Some(bytes) if bytes.len() <= COPIED => Bytes::copy_from_slice(bytes),
            _ => Bytes::from_owner(Received(Arc::clone(&self.0), part)),
        }
    }
}

/// Most bytes of a datagram that is copied out of the buffer.
const COPIED: usize = 8 << 10;

/// What was received, where it was: arguments may be large, and are mostly gone when the next datagram comes.
struct Received(Arc<[u8]>, Range<usize>);

impl AsRef<[u8]> for Received {
    fn as_ref(&self) -> &[u8] {
        self.0.get(self.1.clone()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_of_a_small_datagram_does_not_keep_the_buffer() {
        let mut buffer = Buffer::default();
        buffer.room()[..4].copy_from_slice(b"abcd");
        let small = buffer.received(0..4);
        assert_eq!(
            (&small[..], Arc::strong_count(&buffer.0)),
            (&b"abcd"[..], 1)
        );
        let large = buffer.received(3..COPIED + 4);
        assert_eq!((large.len(), Arc::strong_count(&buffer.0)), (COPIED + 1, 2));
        buffer.room()[3] = b'z';
        assert_eq!(large[0], b'd', "it has its own room now");
    }
}
