//! Statuses of requests of which nothing is remembered here: no record tells that one waits, so it is registered apart.

use crate::Status;
use crate::call::records::{RefusedRequest, RelayId};
use crate::call::server::{Outbound, Server};
use crate::connection::{Mark, Refusal};
use crate::wire::{Message, Request, Response};

use super::Endpoint;
use super::conn::{Conn, ConnId, Parcel, Towards};
use super::event::RequestKey;
use super::probe::Probe;
use super::sending::output;
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
            session: handler.from.session(),
        };
        self.records.refused(&refused, self.now)
    }

    /// It was taken by a connection: it may be a while until that is written.
    #[cold]
    pub(super) fn note_refusal_taken(&mut self, key: RequestKey, by: ConnId, mark: Mark) {
        if self.is_blocked(by) {
            let relay_id = self.tell_of_refusal(key);
            self.note_relay(by, relay_id, mark);
        }
    }

    /// What was told of stands there in a peer's output.
    pub(super) fn note_relay(&mut self, by: ConnId, relay_id: Option<RelayId>, mark: Mark) {
        let Some(relay_id) = relay_id else { return };
        match mark {
            Mark::Written(mark) => self.records.relayed(relay_id, Some(output(by, mark))),
            Mark::Parts(number) => self.note_large(by, number, MarkOwner::Relay(relay_id)),
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
            session: from.session(),
        };
        let Outbound::Response(mut response) = Server::<()>::new(request).fail(status, None) else {
            return;
        };
        self.metrics.statuses_sent += 1;
        match self.hand_response(from, &mut response, false) {
            Ok(mark) if self.is_blocked(from) => {
                let relay_id = self.records.refused(&refused, self.now);
                self.note_relay(from, relay_id, mark);
            }
            Ok(_) => {}
            Err(Refusal::Blocked) => self.answer_later(from, response, &refused),
            Err(_) => self.metrics.undeliverable += 1,
        }
    }

    /// One that had to wait is sent, unless it still has to. Whether it is out of the way.
    pub(super) fn attempt_refusal(
        &mut self,
        id: ConnId,
        status: &mut Response,
        refused: Option<RelayId>,
    ) -> bool {
        match (self.hand_response(id, status, false), refused) {
            (Ok(mark), _) => self.note_relay(id, refused, mark),
            (Err(Refusal::Blocked | Refusal::NotOpen), _) => return false,
            (_, Some(relay_id)) => self.records.relayed(relay_id, None),
            (_, None) => {}
        }
        true
    }

    /// As many wait as are told of.
    fn answer_later(&mut self, from: ConnId, status: Response, refused: &RefusedRequest) {
        let relay_id = self.records.refused(refused, self.now);
        if relay_id.is_none() {
            self.metrics.undeliverable += 1;
            return;
        }
        let mut parcel = Parcel::new(Message::Response(status), Towards::Over(from));
        parcel.relay_id = relay_id;
        self.post(parcel);
    }
}
