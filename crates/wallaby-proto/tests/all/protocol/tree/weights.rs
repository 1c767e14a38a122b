//! Exact fractions of a call, the oracle for completion.
//!
//! The call is worth 1. A request passes all of its worth on to what it sends; what the initiator gets adds up. So the
//! sum is 1 when nothing is left on its way, and not before. Shares are powers of two: the sum is a set of exponents.

use std::collections::BTreeSet;

/// The share 1/2^n.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Share(u32);

impl Share {
    /// All of a call.
    pub(super) const ALL: Self = Self(0);

    /// This share in `parts` parts: a half, a quarter, an eighth, and so on; the last is as large as the one before.
    pub(super) fn split(self, parts: usize) -> impl Iterator<Item = Self> {
        let last = parts as u32 - 1;
        (0..=last).map(move |part| Self(self.0 + last.min(part + 1)))
    }
}

/// The sum of shares.
#[derive(Debug, Default)]
pub(super) struct Sum {
    /// The binary digits that are 1.
    digits: BTreeSet<u32>,
}

impl Sum {
    pub(super) fn add(&mut self, share: Share) {
        let mut digit = share.0;
        while self.digits.remove(&digit) {
            digit = digit
                .checked_sub(1)
                .expect("a call is worth 1 and not more");
        }
        self.digits.insert(digit);
    }

    pub(super) fn is_all(&self) -> bool {
        self.digits.contains(&0)
    }
}

#[test]
fn parts_add_up_to_the_whole_in_any_order() {
    for parts in 1..20 {
        let shares: Vec<_> = Share::ALL.split(parts).collect();
        for first in 0..parts {
            let mut sum = Sum::default();
            for share in shares.iter().cycle().skip(first).take(parts) {
                assert!(!sum.is_all());
                sum.add(*share);
            }
            assert!(sum.is_all());
        }
    }
}
