//! How many further attempts a client may make: a share of its calls and a small burst.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What one further attempt costs. A call pays in as many as the share has percent.
const ATTEMPT: u64 = 100;

/// How many further attempts, retries and hedges together, all calls that share it may make: a percentage of the calls
/// and a burst. It keeps attempts from multiplying the load of servers that fail because of their load.
///
/// Clones share what is left. See [`crate::Client::retry_budget`].
///
/// ```
/// # use wallaby::RetryBudget;
/// let budget = RetryBudget::new(20, 5); // one attempt in five calls, and five at once
/// assert_eq!(budget.left(), 5);
/// ```
#[derive(Debug, Clone)]
pub struct RetryBudget(Arc<Bucket>);

#[derive(Debug)]
struct Bucket {
    share: u64,
    most: u64,
    left: AtomicU64,
}

impl Default for RetryBudget {
    /// A tenth of the calls, and ten at once.
    fn default() -> Self {
        Self::new(10, 10)
    }
}

impl RetryBudget {
    /// Allows `percent` further attempts a hundred calls, and `burst` at once: so many may be saved up, and so many are
    /// there at the start.
    pub fn new(percent: u32, burst: u32) -> Self {
        let most = u64::from(burst) * ATTEMPT;
        Self(Arc::new(Bucket {
            share: u64::from(percent),
            most,
            left: AtomicU64::new(most),
        }))
    }

    /// How many further attempts may be made now.
    pub fn left(&self) -> u32 {
        (self.0.left.load(Ordering::Relaxed) / ATTEMPT) as u32
    }

    /// A call is made.
    pub(crate) fn pay_in(&self) {
        let bucket = &*self.0;
        let pay = |left: u64| (left < bucket.most).then(|| (left + bucket.share).min(bucket.most));
        let _full = bucket
            .left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, pay);
    }

    /// A further attempt is to be made; whether it may.
    pub(crate) fn take(&self) -> bool {
        let take = |left: u64| left.checked_sub(ATTEMPT);
        let left = &self.0.left;
        left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take)
            .is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_then_a_share_of_the_calls() {
        let budget = RetryBudget::new(10, 3);
        assert_eq!((0..5).filter(|_| budget.take()).count(), 3);
        (0..9).for_each(|_| budget.pay_in());
        assert!(!budget.take());
        budget.pay_in();
        assert!(budget.clone().take());
        assert!(!budget.take());
        (0..1000).for_each(|_| budget.pay_in());
        assert_eq!(budget.left(), 3);
    }
}
