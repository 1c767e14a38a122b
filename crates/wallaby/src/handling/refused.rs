//! How requests are answered of which nothing is remembered here. Their status may have to wait behind answers of other
//! servers; no record tells of it, so it is registered apart, and a ping finds that it is on its way.

use std::sync::Arc;
use std::time::Duration;

use wallaby_proto::Status;
use wallaby_proto::call::records::RefusedRequest;
use wallaby_proto::call::server::{Outbound, Server};
use wallaby_proto::connection::Refusal;
use wallaby_proto::wire::{Message, Request, Response};

use super::Handling;
use super::sending::{LATE, Lanes, Parcel};
use crate::driver::peer::{Peer, Place, Refused};
use crate::endpoint::Inner;
use crate::liveness::session;
use crate::timer::{self, Instant};
use wallaby_proto::numbers::DEFAULT_DEADLINE;

impl Handling {
    /// The status of a request that has no record leaves, at once or when it can.
    #[cold]
    #[inline(never)]
    pub(super) fn leave_refused(self: &Arc<Self>, status: Response) {
        let mut parcel = Parcel::Answer(Message::Response(status));
        let is_free = self.way_back().is_none_or(|peer| !peer.is_blocked());
        if is_free && self.attempt(&mut parcel, None).is_some() {
            return;
        }
        let refused = RefusedRequest {
            call: self.call,
            token: self.token,
            request: self.id,
            ping: self.options.as_ref().and_then(|options| options.ping),
            reply_to: Some(self.reply_to.clone()),
            session: session(&self.peer),
        };
        if let Some(place) = self.endpoint.tell_of_refusal(&refused) {
            let lanes: &Lanes = self.lanes.get_or_init(Box::default);
            // It is the one message of this request, so nothing was registered before.
            let _ = lanes.refused.set(place);
        }
        if let Parcel::Answer(status) = parcel {
            drop(self.send_released(status));
        }
    }
}

impl Inner {
    /// A status in the name of a request that is not looked at further, over its own connection: the address to which it
    /// wants its answers may be a stranger's. Without credit: it is small, and nothing of the call runs here that could
    /// send more.
    #[cold]
    #[inline(never)]
    pub(crate) fn answer_stranger(
        self: &Arc<Self>,
        peer: &Arc<Peer>,
        request: &mut Request,
        status: &Status,
    ) {
        let time = request.time(DEFAULT_DEADLINE);
        let refused = RefusedRequest {
            call: request.call,
            token: request.token,
            request: request.id,
            ping: request.options.as_ref().and_then(|options| options.ping),
            reply_to: None,
            session: session(peer),
        };
        let Outbound::Response(response) = Server::<()>::new(request).fail(status, None) else {
            return;
        };
        self.meters.statuses_sent.add();
        let waits = peer.is_blocked();
        let place = waits.then(|| self.tell_of_refusal(&refused)).flatten();
        let sent = peer.try_response(&response, false, 0, place);
        match (sent, place) {
            (Ok(_), _) => {}
            (Err(Refused::Now(Refusal::Blocked)), place) => {
                match place.or_else(|| self.tell_of_refusal(&refused)) {
                    Some(place) => self.answer_later(peer, response, place, time),
                    None => self.meters.undeliverable.add(),
                }
            }
            (Err(_), place) => self.not_answered(place),
        }
    }

    fn tell_of_refusal(&self, refused: &RefusedRequest) -> Option<Place> {
        let place = self.liveness.refused(refused)?;
        self.look_again();
        Some(place)
    }

    /// There is no room for it behind what is passed on of its call. As many wait as are told of.
    fn answer_later(
        self: &Arc<Self>,
        peer: &Arc<Peer>,
        status: Response,
        place: Place,
        time: Duration,
    ) {
        let (endpoint, peer) = (Arc::clone(self), Arc::clone(peer));
        let end = Instant::now() + time.min(DEFAULT_DEADLINE) + LATE;
        self.runtime.spawn(async move {
            loop {
                let room = peer.room();
                match peer.try_response(&status, false, 0, Some(place)) {
                    Ok(_) => return,
                    Err(Refused::Now(Refusal::Blocked)) => {}
                    Err(_) => break,
                }
                if timer::timeout_at(end, room).await.is_none() {
                    break;
                }
            }
            endpoint.not_answered(Some(place));
        });
    }

    /// A status will not be sent.
    fn not_answered(&self, place: Option<Place>) {
        self.meters.undeliverable.add();
        if let Some(place) = place {
            self.liveness.dropped(place);
        }
    }
}
