//! Replies as datagrams.

use std::net::SocketAddr;
use std::ops::Deref;

use bytes::Bytes;

use crate::message::{AcceptError, Reply};
use crate::scratch::Scratch;

/// A reply that is written: what is small is copied to be kept, which costs less than to share it.
#[derive(Debug)]
pub(crate) enum Written {
    Small(Scratch),
    Large(Bytes),
}

impl Written {
    /// The reply to a call, if there is one. One that does not fit into a datagram is a failure, which is told.
    pub(crate) fn new(
        reply: Option<Reply>,
        xid: u32,
        to: SocketAddr,
        too_long: impl FnOnce(),
    ) -> Option<Self> {
        let mut reply = reply?;
        if reply.length() > super::max_payload(to) {
            too_long();
            reply = Reply::accepted(Err(AcceptError::SystemError));
        }
        match reply.length() {
            ..=COPIED => Scratch::write(|writer| reply.write(xid, writer))
                .ok()
                .map(Self::Small),
            _ => reply.message(xid).map(Self::Large),
        }
    }

    /// The same to be kept.
    pub(crate) fn kept(&self) -> Bytes {
        match self {
            Self::Small(reply) => Bytes::copy_from_slice(reply),
            Self::Large(reply) => reply.clone(),
        }
    }
}

impl Deref for Written {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Small(reply) => reply,
            Self::Large(reply) => reply,
        }
    }
}

/// Most bytes of a reply that is copied.
const COPIED: usize = 1 << 10;
