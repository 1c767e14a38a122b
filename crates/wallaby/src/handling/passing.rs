//! How a request goes on down its line before its handler has it.

use std::sync::Arc;

use bytes::Bytes;
use wallaby_proto::Status;
use wallaby_proto::call::server::{Delegated, Outbound};

use super::{Destination, Handling, Sending};
use crate::error::SendError;
use crate::pipeline::Held;

impl Handling {
    /// Passes the request on to the next server of its line: its first delegation, whatever its handler does afterwards, so
    /// that the initiator can tell by its place which server it is. It goes on even while this server shuts down.
    ///
    /// If it may not go there, a status in the next server's name says that it did not.
    pub(crate) fn pass_on(self: &Arc<Self>, to: Destination, payload: Bytes, left: u32) {
        let message = Sending::Onward(to, payload);
        let refused = message.check_onward(self).err();
        let Sending::Onward(to, payload) = message else {
            return;
        };
        let mut state = self.lock();
        if state.server.has_ended() {
            return;
        }
        // Each of those that are left, this one included, may use up as much.
        if let Some(allowance) = state.server.allowance_mut() {
            allowance.announce_line(left);
        }
        if let Err(exhausted) = state.server.afford_request() {
            self.exhaust(state, exhausted);
            return;
        }
        // Nothing was held back: it is the first. One that may be sent again is released at once.
        let released = state.server.delegate(to, payload);
        let released = released.or_else(|| state.server.flush());
        drop(state);
        match (refused, released) {
            (Some(why), Some(Outbound::Request(delegated))) => self.refuse_onward(delegated, why),
            (_, Some(released)) => drop(self.dispatch_one(released)),
            (_, None) => {}
        }
    }

    /// What its arguments take counts until its handler starts.
    pub(crate) fn keep_until_start(&self, held: Option<Held>) {
        self.lock().held = held.map(Box::new);
    }

    /// Whether the request has ended: nothing may be sent for it any more.
    pub(crate) fn has_ended(&self) -> bool {
        self.lock().server.has_ended()
    }

    #[cold]
    fn refuse_onward(self: &Arc<Self>, delegated: Delegated<Destination>, why: SendError) {
        let status = Status::from(why);
        let (to, request) = match self.pack(delegated, None) {
            Ok((to, request)) | Err((to, request, _)) => (to, request),
        };
        self.answer_for(&to, &request, status.code(), status.message());
    }
}
