//! Names of work that outlive the process that asks for it.

use std::hash::Hasher as _;

use bytes::BufMut;
use siphasher::sip128::{Hasher128, SipHasher24};

use crate::varint::{self, Reader, WireError};

/// The name of a piece of work that its initiator chose, under which it can be asked for again, by another incarnation of the
/// initiator too, and be recognised: `client` and `sequence` name the call, `branch` the request in its tree.
///
/// It is not the [`CallId`](crate::CallId), which names one incarnation's call and is new each time. It travels beside it. What a
/// request leads to gets names that follow from its own ([`child`](Self::child)): asked for again, a handler that does the same
/// gives the same names to what it delegates, wherever it runs then. What is done about a name that is known already is the
/// business of whoever keeps a record of what was done: by its [`key`](Self::key), since lease and what is acknowledged change from
/// one time to the next. `client` is what the sender says; a record for clients that do not trust each other also keeps who that
/// has proven to be.
///
/// ```
/// use wallaby_proto::DurableId;
///
/// let transfer = DurableId::new(17, 4);
/// assert_eq!(transfer.child(0), DurableId::new(17, 4).child(0));
/// assert_ne!(transfer.child(0).key(), transfer.child(1).key());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DurableId {
    /// Who asks: a number that all incarnations of one initiator have in common.
    pub client: u64,
    /// Which of its calls.
    pub sequence: u64,
    /// Under which lease the client has its number: records of one that has run out need not be kept. 0 if there are none.
    pub lease: u64,
    /// All calls before this one are done with: their records need not be kept.
    pub acknowledged: u64,
    branch: u128,
}

const CHILD: u8 = 0;
const INITIAL: u8 = 1;
const INTERCEPTOR: u8 = 2;

impl DurableId {
    /// The name of a client's call, without a lease, and with nothing acknowledged.
    pub const fn new(client: u64, sequence: u64) -> Self {
        Self {
            client,
            sequence,
            lease: 0,
            acknowledged: 0,
            branch: 0,
        }
    }

    /// Which request of the call's tree it names: 0 is the first initial one, and who asks for it again names it so.
    pub fn branch(&self) -> u128 {
        self.branch
    }

    /// What tells it from all others, as bytes: `client`, `sequence` and `branch`.
    pub fn key(&self) -> [u8; 32] {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&self.client.to_be_bytes());
        key[8..16].copy_from_slice(&self.sequence.to_be_bytes());
        key[16..].copy_from_slice(&self.branch.to_be_bytes());
        key
    }

    /// The name of what this request's handler hands on or calls, `index` counted from 0 in the order in which it says so.
    #[must_use]
    pub fn child(&self, index: u32) -> Self {
        self.derive(CHILD, index)
    }

    /// From which the names follow of what an interceptor hands on or calls for this request: which one of those that are
    /// registered, so that its names are no others if somebody else has more to say.
    #[must_use]
    pub fn interceptor(&self, index: u32) -> Self {
        self.derive(INTERCEPTOR, index)
    }

    /// The name of this call's initial request with this index.
    #[must_use]
    pub fn initial(&self, index: u32) -> Self {
        match index {
            0 => *self,
            _ => self.derive(INITIAL, index),
        }
    }

    fn derive(&self, kind: u8, index: u32) -> Self {
        let mut hasher = SipHasher24::new_with_keys(self.client, self.sequence);
        hasher.write(&self.branch.to_be_bytes());
        hasher.write(&[kind]);
        hasher.write(&index.to_be_bytes());
        let branch = u128::from_be_bytes(hasher.finish128().as_bytes()).max(1);
        Self { branch, ..*self }
    }

    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        out.put_u64(self.client);
        varint::put(out, self.sequence);
        varint::put(out, self.lease);
        varint::put(out, self.acknowledged);
        if self.branch != 0 {
            out.put_u128(self.branch);
        }
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Self, WireError> {
        let what = "durable id";
        let client = u64::from_be_bytes(reader.array(what)?);
        let (sequence, lease) = (reader.varint(what)?, reader.varint(what)?);
        let acknowledged = reader.varint(what)?;
        let branch = match reader.is_empty() {
            true => 0,
            false => u128::from_be_bytes(reader.array(what)?),
        };
        if branch == 0 && !reader.is_empty() {
            let why = "a branch that is 0";
            return Err(WireError::Malformed { what, why });
        }
        Ok(Self {
            client,
            sequence,
            lease,
            acknowledged,
            branch,
        })
    }
}
