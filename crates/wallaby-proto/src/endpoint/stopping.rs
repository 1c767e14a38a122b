//! What goes on of a call that was aborted: requests end when their handlers do, and who has given the call up may wait for that.

use std::time::Duration;

use super::Endpoint;
use super::event::{CallKey, RequestKey};
use super::probe::Probe;
use super::server::Place;
use crate::Status;
use crate::call::missing::Missing;
use crate::call::watch::Unstopped;
use crate::error::{StillRunning, UnstoppedRequest};

impl<P: Probe> Endpoint<P> {
    // At servers.

    /// The call of a request was aborted. If its handler may go on for a while, the request ends only when that is done:
    /// until then its initiator, who asks, is told that it was not stopped yet. Else it ends here and now.
    pub(super) fn stop_aborted(&mut self, key: RequestKey, status: Status) {
        let Some(handler) = self.handlers.get_mut(key) else {
            return;
        };
        if handler.place != Place::Permit || handler.has_ended() {
            return self.stop(key, status);
        }
        handler.server.discard_held();
        handler.stopping = Some(Box::new(status.clone()));
        let body = handler.body;
        self.stopping += 1;
        self.tell_stopped(key, body, status);
    }

    /// How many handlers go on although their call was aborted.
    pub fn stopping(&self) -> usize {
        self.stopping
    }

    /// Whether nothing but the end of its handler is waited for.
    #[inline]
    pub(super) fn is_stopping(&self, key: RequestKey) -> bool {
        self.stopping > 0 && self.was_told_to_stop(key)
    }

    #[cold]
    fn was_told_to_stop(&self, key: RequestKey) -> bool {
        let handler = self.handlers.get(key);
        handler.is_some_and(|handler| handler.stopping.is_some())
    }

    /// The handler of a request is done, whose permit is given back: nobody says so once more, though the request may go on.
    #[inline]
    pub(super) fn note_done(&mut self, key: RequestKey) {
        if self.is_stopping(key) {
            self.end_stopped(key);
        } else if let Some(handler) = self.handlers.get_mut(key) {
            handler.place = Place::None;
        }
    }

    #[cold]
    fn end_stopped(&mut self, key: RequestKey) {
        let handler = self.handlers.get(key);
        if let Some(status) = handler.and_then(|handler| handler.stopping.clone()) {
            self.end_with(key, &status);
            self.settle();
        }
    }

    // At initiators.

    /// Somebody waits until nothing runs any more of a call that has failed or was aborted, for so long: its servers are asked
    /// until then about handlers that go on. Without, such a call is over soon after all of them have said that they were told; and
    /// with `None` nobody waits any more.
    pub fn wait_for_stop(&mut self, key: CallKey, within: Option<Duration>) {
        let now = self.now;
        if let Some(call) = self.calls.get_mut(key.0)
            && let Some(watch) = call.client.initiator.watch_mut()
        {
            watch.wait_for_stop(within.map(|within| now.saturating_add(within)));
        }
    }

    /// What runs on of a call that has failed or was aborted, as its servers have said last.
    pub fn still_running(&self, key: CallKey) -> StillRunning {
        let Some(call) = self.calls.peek(key.0) else {
            return StillRunning::default();
        };
        let (call, is_over) = (&call.client, call.over);
        let Some(watch) = call.initiator.watch() else {
            return StillRunning::default();
        };
        let mut still = watch.still_running(Missing::MOST, |path| {
            let mut roots = call.roots.iter();
            roots.any(|root| root.request.path == *path && root.session.is_none())
        });
        if is_over {
            // Who is not asked any more may have stopped since.
            still
                .unheard
                .extend(std::mem::take(&mut still.running), Missing::MOST);
        }
        let named = |unstopped: Unstopped| {
            let named = unstopped.named.into_iter().map(|mut hop| {
                call.locate(&mut hop.path);
                UnstoppedRequest {
                    request: hop.request,
                    method: call.method_of(hop.request),
                    server: hop.before.unwrap_or_else(|| call.server_of(hop.request)),
                    path: hop.path,
                }
            });
            (named.collect(), unstopped.more)
        };
        let (handlers, more) = named(still.running);
        let (unheard, more_unheard) = named(still.unheard);
        StillRunning {
            call: Some(call.initiator.call()),
            handlers,
            more,
            unheard,
            more_unheard,
        }
    }
}
