//! How answers leave that go back along a line of servers (see [`crate::pipeline`]).

use std::sync::{Arc, MutexGuard};

use wallaby_proto::wire::{Message, TraceRecord};

use super::sending::Delivery;
use super::{Handling, State};
use crate::pipeline;
use crate::timer::Instant;

impl Handling {
    /// Until when it waits for answers from behind: a quarter of its time is left for what is there then.
    pub(crate) fn gathers_until(&self) -> Instant {
        let time = self.deadline.saturating_duration_since(self.arrived);
        self.arrived + time / 4 * 3
    }

    /// The request ends with a message of its own, whatever it sent last: the server before it waits for that.
    #[cold]
    pub(super) fn finish_gathered(
        self: &Arc<Self>,
        mut state: MutexGuard<'_, State>,
        record: Option<TraceRecord>,
    ) -> Option<Delivery> {
        if state.server.has_ended() {
            return None;
        }
        // An answer held back says of the end as much.
        let before = state.server.flush_request();
        let released = [before, Some(state.server.finish(record))];
        drop(state);
        self.dispatch_both(released)
    }

    /// It was stopped: nobody waits for more.
    #[cold]
    pub(super) fn stop_gathering(&self) {
        let gathered = self.endpoint.gatherings.take(self.call, self.token);
        pipeline::leave(gathered, &self.endpoint);
    }

    /// A message that was gathered leaves.
    pub(crate) fn leave_by(self: &Arc<Self>, answer: Message) {
        drop(self.send_released(answer));
    }
}
