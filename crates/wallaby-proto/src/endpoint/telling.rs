//! What a server tells of requests: to initiators that ask, and to those that may not know of them.

use std::time::Duration;

use crate::call::records::{
    MessageOrigin, RecordAction, ReleasedMessage, StopReason, Ticket, invitation,
};
use crate::call::watch::Location;
use crate::connection::{Features, NamedBy};
use crate::wire::{Message, Ping, Pong, ReplyTo};
use crate::{Code, ConnId, NodeId, Status};

use super::Endpoint;
use super::conn::{Asked, Asks, Cargo, OutAnswer, Parcel};
use super::probe::{Note, Probe};
use super::streams::MarkOwner;
use crate::error::ConnectError;

impl<P: Probe> Endpoint<P> {
    /// The initiator asks about a request, or aborts its call.
    pub(super) fn handle_ping(&mut self, from: ConnId, ping: &Ping) {
        let Some(node) = self.conns.get(from).and_then(|conn| conn.node()) else {
            return;
        };
        let now = self.now;
        let origin = MessageOrigin {
            conn: from,
            peer: node,
            transit: Duration::ZERO,
        };
        let next = self.records.relay_target(ping, origin, now);
        let next = next.filter(|next| next.node != Some(self.node));
        // Back to where it came from it does not go.
        if let Some(next) = next.filter(|next| !self.directory.leads_to(&next.server, from)) {
            self.found_route(ping.call, ping.token);
            let met = self.dialling.was_found(&next.server, next.node);
            let next = Location {
                address: Some(next.server),
                node: next.node,
            };
            let held = match next.address.as_ref().map(|at| (self.conn_at(at), at)) {
                Some((None, at)) => self.may_dial(at, next.node, NamedBy::Peer).err(),
                _ => None,
            };
            // Of other servers on the way this says nothing.
            let relayed_from = self.records.has_handed_on(ping).then_some(from);
            let asked = Asked {
                to: next,
                met,
                relayed_from,
            };
            match held {
                Some(held) => self.tell_gone(ping, &asked, Some(&held)),
                None => {
                    self.metrics.pings_relayed += 1;
                    self.post(Parcel::new(Cargo::Ping(ping.clone(), Asks::At(asked))));
                }
            }
            if !ping.abort {
                self.note_written();
                return self.records.tell_of_relaying(ping, origin);
            }
        }
        self.note_written();
        if self.records.handle_ping(ping, origin, now) {
            self.found_route(ping.call, ping.token);
        }
        if ping.abort {
            self.withdraw_delegations(ping);
            self.forget_relayed(ping.call, ping.token);
        }
    }

    /// This endpoint handed a request on to who is asked about it for another initiator, who may never have reached that server: it
    /// learns from here that the server is gone for certain.
    pub(super) fn tell_gone(&mut self, ping: &Ping, asked: &Asked, why: Option<&ConnectError>) {
        let told = asked.relayed_from.filter(|_| asked.met);
        let Some(from) = told.filter(|_| self.is_gone_for_certain(&asked.to, why)) else {
            return;
        };
        let node = self.conns.get(from).and_then(|conn| conn.node());
        let pong = Pong {
            call: ping.call,
            distance: 0,
            token: (node != Some(ping.call.initiator)).then_some(ping.token),
            request: ping.request,
            attempt: 0,
            announced: false,
            writing: false,
            evicted: false,
            gone: true,
            heartbeats: false,
            progress: None,
        };
        self.send_gone(from, Message::Pong(pong));
    }

    /// Says so to who understands it.
    pub(super) fn send_gone(&mut self, to: ConnId, pong: Message) {
        let hello = self.conns.get(to).and_then(|conn| conn.hello());
        if hello.is_some_and(|hello| hello.features.contains(Features::GONE)) {
            self.probe.notes(Note::ToldGone);
            self.try_control(to, pong);
        }
    }

    /// Whether who is there may be told that heartbeats come of a request: if it is its initiator. Nobody knows whether those arrive
    /// that others pass on.
    pub(super) fn hears_heartbeats(&self, id: ConnId, initiator: NodeId) -> bool {
        let hello = self.conns.get(id).and_then(|conn| conn.hello());
        hello.is_some_and(|hello| {
            hello.node == initiator && hello.features.contains(Features::HEARTBEATS)
        })
    }

    pub(super) fn act_on_records(&mut self, action: RecordAction) {
        match action {
            RecordAction::Pong {
                conn,
                mut pong,
                ticket,
            } => {
                self.say_who_handles(&mut pong, ticket);
                let is_known = pong.progress.is_some() || pong.writing;
                self.metrics.unknown_pings += u64::from(!is_known);
                self.probe.tells(&mut pong);
                self.try_control(conn, Message::Pong(pong));
            }
            RecordAction::Announce {
                mut pong,
                reply_to,
                conn,
                ticket,
            } => {
                self.say_who_handles(&mut pong, ticket);
                self.probe.tells(&mut pong);
                self.announce(pong, (&reply_to, conn), ticket);
            }
            RecordAction::Resend {
                ticket,
                conn: id,
                response,
            } => {
                let (call, request, index) = (response.call, response.request, response.index);
                self.probe.notes(Note::Resent(call, request, index));
                let sent = ReleasedMessage::Response(index);
                if !self.conns.contains(id) {
                    return self.records.dropped(ticket, sent);
                }
                self.post(Parcel::new(Cargo::Again(response, id, (ticket, sent))));
            }
            RecordAction::Stop {
                ticket,
                call,
                request,
                reason,
            } => {
                self.probe.notes(Note::Stopped(call, request, reason));
                if let Some(key) = self.tickets.get(&ticket).copied() {
                    let status = Status::new(Code::Cancelled, reason.to_string());
                    match reason {
                        StopReason::Aborted => self.stop_aborted(key, status),
                        _ if self.is_stopping(key) => self.end_unasked(key),
                        _ => self.stop(key, status),
                    }
                }
            }
        }
    }

    /// What runs here is told with its method and address.
    fn say_who_handles(&mut self, pong: &mut Pong, ticket: Option<Ticket>) {
        let key = ticket.and_then(|ticket| self.tickets.get(&ticket).copied());
        if let (Some((handler, context)), Some(progress)) =
            (key.and_then(|key| self.handled(key)), &mut pong.progress)
        {
            progress.handled_by = Some(Box::new(handler.handled_by(&context)));
        }
    }

    /// Tells the initiator of a request that it may not know of, the way that the request's answers go.
    fn announce(
        &mut self,
        pong: Pong,
        (reply_to, conn): (&ReplyTo, ConnId),
        ticket: Option<Ticket>,
    ) {
        if pong.call.initiator == self.node {
            if let Some(ticket) = ticket {
                self.records
                    .announcement_left(ticket, Some(self.node), self.now);
            }
            return self.local.push_back(Message::Pong(pong));
        }
        let came = Some(conn);
        let came = came.filter(|came| self.conns.contains(*came));
        let address = self.initiator_address(reply_to, came);
        if came.is_none()
            && address.is_none()
            && let Some(token) = pong.token
        {
            // It came over a connection that has ended: who says that it is the initiator is asked to prove it.
            for claiming in self.claiming(pong.call.initiator) {
                self.probe.notes(Note::Invited);
                let invitation = invitation(pong.call, token, pong.request, self.node);
                self.try_control(claiming, Message::Pong(invitation));
            }
            return;
        }
        self.post(Parcel::new(Cargo::Answer(OutAnswer {
            message: Message::Pong(pong),
            address,
            came,
            own: *reply_to == ReplyTo::Peer,
            small: true,
            oldest: 0,
            owner: ticket.map(MarkOwner::Announced),
            by: None,
        })));
    }
}
