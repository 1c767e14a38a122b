//! Places on the ring, and spans between them.

use serde::{Deserialize, Serialize};
use siphasher::sip::SipHasher24;
use std::fmt;
use std::hash::Hasher;

/// A place on the ring of 2^64 places. Counting up goes clockwise, and after the last place comes 0.
///
/// Keys and nodes get theirs by SipHash-2-4 with a key of zeros: it spreads well, is the same on every machine, and keys
/// that fall on one place are told apart all the same, so nothing depends on it being hard to invert.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RingId(pub u64);

/// The places after `after`, clockwise, up to and including `to`: all places if the two are the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Span {
    /// The place before the first.
    pub after: RingId,
    /// The last place.
    pub to: RingId,
}

impl RingId {
    /// How many bits a place has, and so how many fingers a node.
    pub const BITS: u32 = u64::BITS;

    /// The place of a key.
    pub fn of_key(key: &str) -> Self {
        Self::of(b"key:", key.as_bytes())
    }

    /// The place of the node with this number, among those that a seed makes.
    pub fn of_node(seed: u64, number: u64) -> Self {
        let mut name = [0; 16];
        name[..8].copy_from_slice(&seed.to_le_bytes());
        name[8..].copy_from_slice(&number.to_le_bytes());
        Self::of(b"node:", &name)
    }

    fn of(kind: &[u8], name: &[u8]) -> Self {
        let mut hasher = SipHasher24::new();
        hasher.write(kind);
        hasher.write(name);
        Self(hasher.finish())
    }

    /// How many places clockwise another one is, below 2^64.
    pub fn distance_to(self, other: Self) -> u64 {
        other.0.wrapping_sub(self.0)
    }

    /// Where finger `number` begins: 2^`number` places clockwise.
    pub fn finger(self, number: u32) -> Self {
        Self(self.0.wrapping_add(1u64.wrapping_shl(number)))
    }

    /// Whether this lies clockwise of `after` and before `before`; if the two are the same, whether it is another one.
    pub fn is_between(self, after: Self, before: Self) -> bool {
        self != before && Span { after, to: before }.contains(self)
    }
}

impl Span {
    /// Whether a place is in it.
    pub fn contains(self, id: RingId) -> bool {
        let length = self.after.distance_to(self.to);
        // Distance 0 stands for a whole turn.
        length.wrapping_sub(1) >= self.after.distance_to(id).wrapping_sub(1)
    }
}

impl fmt::Display for RingId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Debug for RingId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_do_not_change() {
        // Rings of different versions must agree.
        assert_eq!(RingId::of_key("wallaby").to_string(), "0253bb8d038931a4");
        assert_eq!(RingId::of_node(1, 2).to_string(), "bf0b68d45f95c1c0");
    }
}
