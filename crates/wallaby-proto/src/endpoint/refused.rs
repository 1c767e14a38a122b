//! Statuses of requests of which nothing is remembered here: no record tells that one waits, so it is registered apart.

use crate::ConnId;
use crate::Status;
use crate::call::records::{RefusedRequest, RelayId};
use crate::call::server::{Outbound, ServerHalf};
use crate::connection::{Charge, Mark, SendRefusal};
use crate::wire::{Request, Response};

use super::Endpoint;
use super::conn::{Cargo, Conn, Parcel};
use super::event::RequestKey;
use super::probe::Probe;
use super::streams::MarkOwner;

impl<P: Probe> Endpoint<P> {
    /// The status of a request that has no record waits: its initiator is told, if there is room to remember it.
    #[cold]
    pub(super) fn tell_of_refusal(&mut self, key: RequestKey) -> Option<RelayId> {
        let handler = self.handlers.get(key)?;
        let refused = RefusedRequest {
            call: handler.server.call(),
            token: handler.server.token(),
            request: handler.server.id(),
            ping: handler.options.as_ref().and_then(|options| options.ping),
            reply_to: Some(handler.reply_to.clone()),
            conn: handler.from,
        };
        self.tell_of_refused(&refused)
    }

    fn tell_of_refused(&mut self, refused: &RefusedRequest) -> Option<RelayId> {
        self.records.refused(refused, self.now)
    }

    /// It was taken by a connection: it may be a while until that is written.
    #[cold]
    pub(super) fn note_refusal_taken(&mut self, key: RequestKey, by: ConnId, mark: Mark) {
        if self.is_blocked(by) {
            let owner = self.tell_of_refusal(key).map(MarkOwner::Relay);
            self.note_placed(by, owner, mark);
        }
    }

    /// Whether the transport takes nothing now.
    pub(super) fn is_blocked(&self, id: ConnId) -> bool {
        let stream = self.conns.get(id).and_then(Conn::stream);
        stream.is_some_and(|stream| stream.blocked)
    }

    /// A status in the name of a request that is not looked at further. Without credit: it is small, and nothing of the call
    /// runs here that could send more.
    #[cold]
    pub(super) fn answer_stranger(&mut self, from: ConnId, request: &mut Request, status: &Status) {
        let refused = RefusedRequest {
            call: request.call,
            token: request.token,
            request: request.id,
            ping: request.options.as_ref().and_then(|options| options.ping),
            reply_to: None,
            conn: from,
        };
        let Outbound::Response(mut response) = ServerHalf::<()>::new(request).fail(status, None)
        else {
            return;
        };
        self.metrics.statuses_sent += 1;
        match self.hand_response(from, &mut response, Charge::Free) {
            Ok(mark) if self.is_blocked(from) => {
                let owner = self.tell_of_refused(&refused).map(MarkOwner::Relay);
                self.note_placed(from, owner, mark);
            }
            Ok(_) => {}
            Err(SendRefusal::Blocked) => self.answer_later(from, response, &refused),
            Err(_) => self.metrics.undeliverable += 1,
        }
    }

    /// One that had to wait is sent, unless it still has to. Whether it is out of the way.
    pub(super) fn try_refusal(
        &mut self,
        id: ConnId,
        status: &mut Response,
        refused: RelayId,
    ) -> bool {
        match self.hand_response(id, status, Charge::Free) {
            Ok(mark) => self.note_placed(id, Some(MarkOwner::Relay(refused)), mark),
            Err(SendRefusal::Blocked | SendRefusal::NotOpen) => return false,
            Err(_) => self.records.relayed(refused, None),
        }
        true
    }

    /// As many wait as are told of.
    fn answer_later(&mut self, from: ConnId, status: Response, refused: &RefusedRequest) {
        match self.tell_of_refused(refused) {
            Some(told) => self.post(Parcel::new(Cargo::Refusal(status, from, told))),
            None => self.metrics.undeliverable += 1,
        }
    }
}
