//! Writes gathered: while a batch of messages is handled, what its handlers send is kept and written at its end.

use std::cell::RefCell;
use std::sync::Arc;

use crate::driver::peer::Peer;

thread_local! {
    static CORKED: RefCell<Option<Vec<Arc<Peer>>>> = const { RefCell::new(None) };
}

/// Runs `batch`; what it sends on this thread is written afterwards, a connection at a time.
pub(crate) fn batch<R>(batch: impl FnOnce() -> R) -> R {
    let outermost = CORKED.with_borrow_mut(|corked| {
        let outermost = corked.is_none();
        corked.get_or_insert_default();
        outermost
    });
    let _uncork = outermost.then_some(Uncork);
    batch()
}

/// Writes what was kept, also if the batch panicked.
struct Uncork;

impl Drop for Uncork {
    fn drop(&mut self) {
        // Flushing wakes tasks and may come back here: the list must not be borrowed then.
        let kept = CORKED.with_borrow_mut(Option::take);
        for peer in kept.into_iter().flatten() {
            peer.uncork();
        }
    }
}

/// Whether what is sent now on this thread is kept; `peer` is written to at the end of the batch then.
pub(crate) fn keep(peer: &Arc<Peer>) -> bool {
    CORKED.with_borrow_mut(|corked| match corked {
        Some(kept) => {
            kept.push(Arc::clone(peer));
            true
        }
        None => false,
    })
}

/// Whether a batch runs on this thread.
pub(crate) fn is_corked() -> bool {
    CORKED.with_borrow(Option::is_some)
}
