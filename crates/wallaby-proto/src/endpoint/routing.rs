//! Which way messages go: the connection that leads to where each is to go, or the address that is to be dialled.

use crate::connection::NamedBy;
use crate::error::ConnectError;
use crate::wire::Message;
use crate::{Address, ConnId, NodeId, RequestId};

use super::Endpoint;
use super::conn::{Asks, Cargo, DialledFor, Parcel};
use super::probe::{Note, Probe};

/// The route that a message takes.
pub(super) enum Route {
    Over(ConnId),
    Dial(Address, Option<NodeId>, NamedBy),
    Nowhere(ConnectError),
}

impl<P: Probe> Endpoint<P> {
    pub(super) fn route(&mut self, parcel: &mut Parcel) -> Route {
        match &mut parcel.cargo {
            Cargo::Relay(response, relayed, _) => match self.route_of_relayed(response, relayed) {
                None => Route::Nowhere(gone()),
                Some((id, nearer)) => {
                    response.distance = nearer;
                    Route::Over(id)
                }
            },
            Cargo::Request(out) if self.is_ending() => Route::Nowhere(ended(&out.server)),
            Cargo::Request(out) => self.route_to(&out.server, NamedBy::Application),
            Cargo::Ping(_, Asks::Over(id)) | Cargo::Again(_, id, _) | Cargo::Refusal(_, id, _) => {
                match self.conns.contains(*id) {
                    true => Route::Over(*id),
                    false => Route::Nowhere(gone()),
                }
            }
            Cargo::Ping(ping, Asks::At(asked)) => {
                match asked.to.address.as_ref().map(|at| self.reachable(at)) {
                    Some(Ok(to)) => self.route_to(to, self.named_by(ping.call, to)),
                    Some(Err(error)) => Route::Nowhere(error),
                    None => Route::Nowhere(gone()),
                }
            }
            Cargo::Answer(out) => {
                self.route_to_initiator(&out.message, out.address.clone(), out.came)
            }
        }
    }

    /// The connection with a server, or its address, to be dialled. One that is being opened since a peer has named the address is
    /// opened like the application's own once that wants it, too: a stranger's address is asked seldom.
    fn route_to(&mut self, to: &Address, named_by: NamedBy) -> Route {
        let Some(id) = self.conn_at(to) else {
            return Route::Dial(to.clone(), None, named_by);
        };
        if named_by == NamedBy::Application {
            self.name_by_application(id);
        }
        Route::Over(id)
    }

    /// The open connection by which an answer goes straight to its initiator: the one that its request came over, if the
    /// initiator brought it itself; one with the address that the request names; one that has proven to be the initiator's.
    pub(super) fn route_back(
        &mut self,
        initiator: NodeId,
        came: Option<ConnId>,
        address: impl FnOnce(&Self) -> Option<Address>,
    ) -> Option<ConnId> {
        let node = came.and_then(|came| self.conns.get(came)?.node());
        if node == Some(initiator) {
            return came;
        }
        let known = address(self).and_then(|address| self.incarnation_at(&address, initiator));
        known.or_else(|| self.direct_route(initiator, came?))
    }

    /// The connection that an initiator has proven to be its own, for what came over another one.
    pub(super) fn direct_route(&self, initiator: NodeId, came: ConnId) -> Option<ConnId> {
        let id = self.records.direct_route(initiator, came)?;
        self.conns.contains(id).then_some(id)
    }

    fn route_to_initiator(
        &mut self,
        message: &Message,
        address: Option<Address>,
        came: Option<ConnId>,
    ) -> Route {
        let call = message.call();
        let initiator = call.initiator;
        if let Some(id) = self.route_back(initiator, came, |_| address.clone()) {
            return Route::Over(id);
        }
        let brought = message.token();
        let brought = brought.and_then(|token| self.records.brought_by_initiator(call, token));
        if let Some(id) = brought.filter(|id| self.conns.contains(*id)) {
            return Route::Over(id);
        }
        let error = match address
            .as_ref()
            .map(|address| (address, self.reachable(address)))
        {
            Some((address, _)) if self.is_ending() => ended(address),
            Some((address, _)) if !self.config.dial_policy.permits(address) => {
                self.metrics.dials_forbidden += 1;
                ConnectError::Forbidden {
                    server: address.clone(),
                }
            }
            Some((_, Ok(to))) => {
                let opening = self.directory.back_to(to);
                let opening = opening.and_then(|id| Some((id, self.conns.get(id)?.dialled?)));
                match opening.filter(|(_, dialled)| dialled.expected() == Some(initiator)) {
                    Some((_, DialledFor::Late(_))) => ConnectError::TimedOut {
                        server: to.clone(),
                        after: self.config.dial_back_timeout,
                    },
                    Some((id, _)) => return Route::Over(id),
                    None => match self.may_dial(to, Some(initiator), NamedBy::Peer) {
                        Ok(()) => return Route::Dial(to.clone(), Some(initiator), NamedBy::Peer),
                        Err(held) => held,
                    },
                }
            }
            Some((_, Err(error))) => error,
            None => gone(),
        };
        // Back along the route that the request came; who is there passes it on.
        let relays = came.and_then(|came| Some((came, self.conns.get(came)?.node()?)));
        if let Some((came, peer)) = relays {
            let id = self.route_round(message, (came, peer)).unwrap_or(came);
            self.invite(message, id);
            return Route::Over(id);
        }
        // Where somebody has shown the call's token since.
        let now = message
            .token()
            .and_then(|token| self.records.route_back(call, token));
        let now = now.map(|id| self.direct_route(initiator, id).unwrap_or(id));
        match now.filter(|id| self.conns.contains(*id)) {
            Some(id) => Route::Over(id),
            None => Route::Nowhere(error),
        }
    }

    /// The connection that leads on where the one that a request came over leads back here: see [`Records::route_before`].
    ///
    /// [`Records::route_before`]: crate::call::records::Records::route_before
    pub(super) fn route_round(
        &self,
        message: &Message,
        (came, peer): (ConnId, NodeId),
    ) -> Option<ConnId> {
        let (request, call) = (from(message)?, message.call());
        let id = self
            .records
            .route_before((call, message.token()?), request, (came, peer))?;
        let id = self.direct_route(call.initiator, id).unwrap_or(id);
        self.conns.contains(id).then_some(id)
    }

    /// An answer goes back over the connection that its request came over. If its initiator seems to be connected itself,
    /// it is asked to prove it: what comes the same way is then answered straight.
    fn invite(&mut self, message: &Message, came: ConnId) {
        let (Some(request), Some(token)) = (from(message), message.token()) else {
            return;
        };
        let call = message.call();
        for claiming in self.claiming(call.initiator) {
            let claims = (claiming, self.node);
            let named = (call, token, request);
            if let Some(pong) = self.records.invite(named, came, claims) {
                self.probe.notes(Note::Invited);
                self.try_control(claiming, Message::Pong(pong));
            }
        }
    }
}

pub(super) fn gone() -> ConnectError {
    ConnectError::Closed {
        server: None,
        reason: "its connection has ended, and it is not reached elsewhere".into(),
    }
}

/// Which request sends this towards its initiator.
fn from(message: &Message) -> Option<RequestId> {
    match message {
        Message::Response(response) => Some(response.request),
        Message::End(end) => Some(end.request),
        Message::Pong(pong) => Some(pong.request),
        _ => None,
    }
}

/// Why an endpoint that is about to be closed dials nobody.
#[cold]
pub(super) fn ended(server: &Address) -> ConnectError {
    ConnectError::Unreachable {
        server: server.clone(),
        reason: "this endpoint was closed".into(),
    }
}
