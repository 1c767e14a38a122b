//! How an endpoint comes to rest without loss.

use super::Endpoint;
use super::conn::ConnId;
use super::event::{Output, RequestKey};
use super::probe::Probe;
use super::requests::Stage;
use crate::{Code, Status};

impl<P: Probe> Endpoint<P> {
    /// Finishes what runs, and begins nothing: what came before is still handled, new requests get the status `Unavailable`,
    /// handlers cannot delegate any more ([`SendError::Draining`](crate::error::SendError::Draining)), and peers are told to send
    /// their next requests elsewhere. [`Output::Drained`] says when that is done.
    pub fn drain(&mut self) {
        if std::mem::replace(&mut self.draining, true) {
            return;
        }
        for id in self.conns.ids() {
            self.say_that_it_drains(id);
        }
    }

    /// A peer learns that this side takes no new requests, if it is known who it is; else it learns that when it is.
    #[cold]
    pub(super) fn say_that_it_drains(&mut self, id: ConnId) {
        let is_open = self.peer(id).is_some();
        if is_open && let Some(mut carrier) = self.carrier(id) {
            carrier.go_away();
        }
    }

    /// Whether it finishes what it has begun, and begins nothing.
    pub fn is_draining(&self) -> bool {
        self.draining
    }

    /// What is to be done next while it comes to rest, if nothing else is.
    #[cold]
    pub(super) fn poll_draining(&mut self) -> Option<Output> {
        let datagrams = self.sockets.tell().map(Output::Datagrams);
        if datagrams.is_some() {
            return datagrams;
        }
        let drained = self.is_drained();
        let before = std::mem::replace(&mut self.drained, drained);
        (drained && !before).then_some(Output::Drained)
    }

    /// Whether no handler runs, no request waits, no call lives, and all that was sent has left. It looks at all connections.
    pub fn is_drained(&self) -> bool {
        let is_idle = self.load().is_idle() && self.calls.len() == 0;
        is_idle && self.conns.iter().all(|(id, _)| self.is_idle(id))
    }

    /// Ends all requests that wait, for their turn or for something that their handlers put them aside for, with the status
    /// `Unavailable`. It looks at all requests.
    pub fn stop_all(&mut self) {
        // First what waits for a place: each that becomes free would be given to it.
        let is_queued = |stage| matches!(stage, Stage::Queued(_));
        let waits = |stage| stage != Stage::Runs;
        self.stop_those(is_queued);
        self.stop_those(waits);
    }

    fn stop_those(&mut self, which: impl Fn(Stage) -> bool) {
        let those: Vec<RequestKey> = self.handlers.those(which).collect();
        for key in those {
            self.stop(key, shutting_down());
        }
    }
}

#[cold]
pub(super) fn shutting_down() -> Status {
    Status::new(Code::Unavailable, "this server is shutting down")
}
