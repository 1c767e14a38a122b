//! Seals: a cluster's servers take work only from who shares their key, as what a request says of its call decides where
//! their messages go and how long they work.
//!
//! A seal is SipHash-2-4 with 128 bits, keyed, over what `docs/protocol.md` lists. SipHash is made for this: a keyed
//! function of short inputs that nobody can predict without its 128-bit key, in a few hundred instructions and a few more
//! for each byte of the payload. A function for long inputs as BLAKE3 would cost more here where payloads are short, and promise no
//! more than the key has.
//!
//! What is sealed is what stands in this message, so each server seals anew what it delegates: the remaining time and the
//! budgets have become less. A seal names who is to read it and the request's place in its call: shown again it is a
//! duplicate there, and elsewhere it is wrong. It does not hide anything: TLS does that.

use std::fmt;
use std::hash::Hasher as _;

use bytes::{BufMut, Bytes};
use siphasher::sip128::{Hasher128, SipHasher24};
use thiserror::Error;

use crate::address::Address;
use crate::id::NodeId;
use crate::status::Code;
use crate::varint;
use crate::wire::{MessageOptions, ReplyTo, Request};

/// Shortest secret of a cluster key, in bytes.
pub const MIN_SECRET: usize = 16;

/// Longest secret of a cluster key, in bytes.
pub const MAX_SECRET: usize = 32;

const LABEL: &[u8] = b"wallaby cluster key 2";

/// A secret that the endpoints of a cluster share. It does not appear in logs.
#[derive(Clone, PartialEq, Eq)]
pub struct ClusterKey([u8; 16]);

/// Why bytes are no cluster key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("a secret of {len} bytes: a cluster key has {MIN_SECRET} to {MAX_SECRET}")]
#[non_exhaustive]
pub struct ClusterKeyError {
    /// How many there were.
    pub len: usize,
}

impl ClusterKeyError {
    /// What kind of error it is: always [`Code::InvalidArgument`].
    pub fn code(&self) -> Code {
        Code::InvalidArgument
    }
}

/// Why a request is not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum SealError {
    /// It has no seal.
    #[error("the request is not sealed, and this server takes only what its cluster has sealed")]
    Missing,
    /// Its seal was made with another key, for another server, or for other contents.
    #[error(
        "the request's seal is wrong: another key, another server, something was changed, or its sender is older than this server"
    )]
    Wrong,
}

impl ClusterKey {
    /// The key that this secret makes: 16 to 32 random bytes, the same at all endpoints of the cluster.
    ///
    /// # Errors
    ///
    /// If it is shorter or longer.
    pub fn new(secret: &[u8]) -> Result<Self, ClusterKeyError> {
        let len = secret.len();
        let (Some((first, rest)), true) = (secret.split_first_chunk(), len <= MAX_SECRET) else {
            return Err(ClusterKeyError { len });
        };
        let mut hasher = SipHasher24::new_with_key(first);
        hasher.write(LABEL);
        hasher.write(rest);
        Ok(Self(hasher.finish128().as_bytes()))
    }

    /// Seals a request of this method for the server with this node id; `own` is the address that the sender's handshake gave.
    pub fn seal(
        &self,
        request: &mut Request,
        method: &str,
        receiver: NodeId,
        own: Option<&Address>,
    ) {
        let seal = self.mac(request, method, receiver, own).to_be_bytes();
        let options = request.options.get_or_insert_default();
        options.seal = Some(Bytes::copy_from_slice(&seal));
    }

    fn mac(
        &self,
        request: &Request,
        method: &str,
        receiver: NodeId,
        peer: Option<&Address>,
    ) -> u128 {
        let mut out = Vec::with_capacity(128);
        receiver.put(&mut out);
        request.call.initiator.put(&mut out);
        out.put_u64(request.call.sequence);
        request.token.put(&mut out);
        request.id.path.put(&mut out);
        let options = request.options.as_deref();
        let attempt = options.map_or(0, |options| options.attempt);
        for number in [request.id.hop, request.depth, request.base, attempt] {
            out.put_u32(number);
        }
        out.put_u64(request.oldest);
        let (how, address) = match &request.reply_to {
            ReplyTo::Peer => (0, peer),
            ReplyTo::At(address) => (1, Some(address)),
            ReplyTo::Relay => (2, None),
        };
        out.put_u8(how);
        put_option(&mut out, address, |out, address| address.put(out));
        put_option(&mut out, request.deadline, varint::put_duration);
        let budgets = options.and_then(|options| options.budgets);
        put_option(&mut out, budgets, |out, budgets| budgets.put(out));
        let ping = options.and_then(|options| options.ping);
        put_option(&mut out, ping, |out, ping| {
            varint::put_duration(out, ping.period);
            varint::put_duration(out, ping.timeout);
        });
        out.put_u8(u8::from(request.traced) | u8::from(request.compressed) << 1);
        varint::put_bytes(&mut out, method.as_bytes());
        options
            .map_or_else(MessageOptions::default, MessageOptions::sealed)
            .put(&mut out);
        let mut hasher = SipHasher24::new_with_key(&self.0);
        hasher.write(&out);
        hasher.write(&request.payload);
        u128::from_be_bytes(hasher.finish128().as_bytes())
    }
}

/// Whether one of these keys has sealed the request of this method for `receiver`; `peer` is the address that its sender's
/// handshake gave.
///
/// # Errors
///
/// If none has.
pub fn verify(
    keys: &[ClusterKey],
    request: &Request,
    method: &str,
    receiver: NodeId,
    peer: Option<&Address>,
) -> Result<(), SealError> {
    let seal = request.options.as_deref();
    let seal = seal.and_then(|options| options.seal.as_ref());
    let seal = seal.ok_or(SealError::Missing)?;
    let shown = <[u8; 16]>::try_from(seal.as_ref()).map_err(|_| SealError::Wrong)?;
    let shown = u128::from_be_bytes(shown);
    // All keys are tried, and all bits are compared at once: how long it takes says nothing about the right seal.
    let fits = keys.iter().fold(false, |fits, key| {
        fits | (key.mac(request, method, receiver, peer) ^ shown == 0)
    });
    fits.then_some(()).ok_or(SealError::Wrong)
}

fn put_option<T>(out: &mut Vec<u8>, value: Option<T>, put: impl FnOnce(&mut Vec<u8>, T)) {
    out.put_u8(u8::from(value.is_some()));
    if let Some(value) = value {
        put(out, value);
    }
}

impl fmt::Debug for ClusterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClusterKey(..)")
    }
}
