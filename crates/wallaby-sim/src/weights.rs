//! Exact fractions of a call: how the oracle knows of completion without the code it watches.
//!
//! The call is worth 1. A request passes all of its worth on to what it sends; what the initiator gets adds up. So the
//! sum is 1 when nothing is left on its way, and not before. Shares are powers of two: the sum is a set of exponents.

use std::collections::BTreeSet;

/// The share 1/2^n.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Share(u32);

impl Share {
    /// All of a call.
    pub(crate) const ALL: Self = Self(0);

    /// Splits one half off; the other half stays.
    pub(crate) fn half(&mut self) -> Self {
        self.0 += 1;
        *self
    }
}

/// The sum of shares.
#[derive(Debug, Default)]
pub(crate) struct Sum {
    /// The binary digits that are 1.
    digits: BTreeSet<u32>,
}

impl Sum {
    /// Adds a share; `false` if there is more than a whole then.
    #[must_use]
    pub(crate) fn add(&mut self, share: Share) -> bool {
        let mut digit = share.0;
        while self.digits.remove(&digit) {
            let Some(carry) = digit.checked_sub(1) else {
                return false;
            };
            digit = carry;
        }
        self.digits.insert(digit)
    }

    pub(crate) fn is_all(&self) -> bool {
        self.digits.contains(&0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_add_up_to_the_whole_in_any_order() {
        for parts in 1..20_usize {
            let mut rest = Share::ALL;
            let mut shares: Vec<_> = (1..parts).map(|_| rest.half()).collect();
            shares.push(rest);
            for first in 0..parts {
                let mut sum = Sum::default();
                for share in shares.iter().cycle().skip(first).take(parts) {
                    assert!(!sum.is_all());
                    assert!(sum.add(*share));
                }
                assert!(sum.is_all());
                assert!(!sum.add(Share::ALL));
            }
        }
    }
}
