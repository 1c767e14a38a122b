//! The numbers of calls, and the calls that wait for replies with them.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;

use bytes::Bytes;

use crate::message::{BadMessage, Body, Message, Reply};
use crate::xdr::DecodeError;

/// Calls that wait, each with what is needed to tell it.
#[derive(Debug)]
pub(super) struct Waiting<T> {
    next: u32,
    calls: HashMap<u32, T>,
}

impl<T> Waiting<T> {
    /// None yet; numbers start at random, so that the replies to an earlier life's calls are not taken for this one's.
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            next: getrandom::u32().map_err(|error| io::Error::other(error.to_string()))?,
            calls: HashMap::new(),
        })
    }

    pub(super) fn len(&self) -> usize {
        self.calls.len()
    }

    /// One more call; its number, which no other has that waits.
    pub(super) fn insert(&mut self, call: T) -> u32 {
        loop {
            let xid = self.next;
            self.next = self.next.wrapping_add(1);
            if let Entry::Vacant(vacant) = self.calls.entry(xid) {
                vacant.insert(call);
                return xid;
            }
        }
    }

    /// The call of this number waits, after all.
    pub(super) fn restore(&mut self, xid: u32, call: T) {
        self.calls.insert(xid, call);
    }

    pub(super) fn get(&self, xid: u32) -> Option<&T> {
        self.calls.get(&xid)
    }

    pub(super) fn get_mut(&mut self, xid: u32) -> Option<&mut T> {
        self.calls.get_mut(&xid)
    }

    pub(super) fn remove(&mut self, xid: u32) -> Option<T> {
        self.calls.remove(&xid)
    }

    pub(super) fn drain(&mut self) -> impl Iterator<Item = T> + '_ {
        self.calls.drain().map(|(_, call)| call)
    }
}

/// What arrived from a server.
pub(crate) enum Arrived {
    /// The reply to the call of this number.
    Reply(u32, Reply),
    /// Nothing that can be read, with the number of a call in front.
    Malformed(u32, DecodeError),
    /// Something else.
    Other,
}

/// Looks at a datagram from a server. Of most, only the results are copied.
pub(crate) fn arrived_in(datagram: &[u8]) -> Arrived {
    match Reply::plain(datagram) {
        Some((xid, results)) => {
            let results = datagram.get(results..).unwrap_or_default();
            let results = Bytes::copy_from_slice(results);
            Arrived::Reply(xid, Reply::accepted(Ok(results)))
        }
        None => arrived(Bytes::copy_from_slice(datagram)),
    }
}

/// Looks at a message from a server.
pub(crate) fn arrived(message: Bytes) -> Arrived {
    let xid = message.first_chunk().copied().map(u32::from_be_bytes);
    match (Message::decode(message), xid) {
        (
            Ok(Message {
                xid,
                body: Body::Reply(reply),
            }),
            _,
        ) => Arrived::Reply(xid, reply),
        (Err(BadMessage::Malformed(error)), Some(xid)) => Arrived::Malformed(xid, error),
        _ => Arrived::Other,
    }
}
