//! When a slow call gets a second attempt beside the first.

use std::time::Duration;

/// Makes a second attempt beside a call that takes long: whichever delivers first wins, the other is aborted. For
/// methods that may run twice. See [`crate::Client::hedge`].
///
/// It goes to the next of the client's servers, or to the same one if there is no other. A call is hedged once, and only
/// if its [budget](crate::RetryBudget) allows it. Of a method with many answers, the attempt with the first answer
/// delivers all of them.
#[derive(Debug, Clone)]
pub struct Hedge {
    after: Duration,
}

impl Hedge {
    /// Hedges after a fixed time. Only for methods whose handlers may run twice, also at the same time.
    pub fn idempotent(after: Duration) -> Self {
        Self { after }
    }

    /// How long a call may take before it is hedged.
    pub(crate) fn after(&self) -> Duration {
        self.after
    }
}
