//! Writes gathered: while a batch of messages is handled, what its handlers send is kept and written at its end.

use std::cell::RefCell;
use std::sync::Arc;

use crate::driver::peer::Peer;

thread_local! {
    static CORKED: RefCell<Corked> = const { RefCell::new(Corked { depth: 0, kept: Vec::new() }) };
}

struct Corked {
    /// Batches that run on this thread, one within the other.
    depth: u32,
    kept: Vec<Arc<Peer>>,
}

/// Runs `batch`; what it sends on this thread is written afterwards, a connection at a time.
pub(crate) fn batch<R>(batch: impl FnOnce() -> R) -> R {
    CORKED.with_borrow_mut(|corked| corked.depth += 1);
    let _uncork = Uncork;
    batch()
}

/// Writes what was kept, also if the batch panicked.
struct Uncork;

impl Drop for Uncork {
    fn drop(&mut self) {
        // Writing wakes tasks and may come back here, so the list must not be borrowed meanwhile.
        let last = CORKED.with_borrow_mut(|corked| {
            corked.depth -= 1;
            corked.depth == 0
        });
        while last && let Some(peer) = CORKED.with_borrow_mut(|corked| corked.kept.pop()) {
            peer.uncork();
        }
    }
}

/// Whether what is sent now on this thread is kept; `peer` is written to at the end of the batch then.
pub(crate) fn keep(peer: &Arc<Peer>) -> bool {
    CORKED.with_borrow_mut(|corked| {
        let keeps = corked.depth > 0;
        if keeps {
            corked.kept.push(Arc::clone(peer));
        }
        keeps
    })
}

/// Whether a batch runs on this thread.
pub(crate) fn is_corked() -> bool {
    CORKED.with_borrow(|corked| corked.depth > 0)
}
