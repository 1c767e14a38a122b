//! Answers of other servers on their way to initiators that cannot be dialled, and answers to which no route leads.
//!
//! An answer is credited to who brought it when the next connection has taken it: so the server before sends no more than its
//! call's window, and a slow initiator holds up its own calls alone.

use super::Endpoint;
use super::conn::{Cargo, Conn, Parcel};
use super::handler_table::Waiting;
use super::probe::{Note, Probe};
use super::streams::MarkOwner;
use crate::call::records::{RelayId, invitation};
use crate::call::server::make_too_large_to_pass_on;
use crate::call::shares::Share;
use crate::call::waiting::Awaited;
use crate::connection::{Charge, Mark, SendRefusal};
use crate::error::hint;
use crate::numbers::MOST_MOVES;
use crate::wire::{MAX_FRAME, Message, Response};
use crate::{CallId, ConnId, NodeId, Token};

/// What a relayed answer that waits costs besides its payload and its optional fields, in bytes: it may have a queue of its own.
const ANSWER_COST: usize = 2048;

/// An answer of another server, where it waits.
#[derive(Debug)]
pub(super) struct Relayed {
    /// The connection that it came over.
    from: ConnId,
    /// How far from its initiator it was when it came.
    distance: u32,
    /// Its payload when it came, in bytes: what is credited.
    size: usize,
    /// Its room among all that wait, and how much that is.
    room: Option<(Share, usize)>,
}

/// What became of an attempt to send a relayed answer.
enum RelayOutcome {
    /// There, if it has a place there already.
    At(Mark),
    /// There is no credit or no room now.
    Blocked,
    /// The connection takes no such message.
    Refused,
}

impl<P: Probe> Endpoint<P> {
    // What comes from other servers.

    /// A message for another initiator came.
    pub(super) fn relay(&mut self, from: Option<ConnId>, message: &mut Message) {
        let Some(from) = from else {
            return; // what runs here sends by itself
        };
        let response = match &*message {
            Message::Response(response) => Some(response),
            _ => None,
        };
        let named = (message.call(), message.token());
        let next = self.relay_route(named, response, (distance(message), from));
        match (message, next) {
            (Message::Response(response), next) => self.relay_response(from, response, next),
            (other, Some((next, nearer))) => {
                if let Some(distance) = other.distance() {
                    *distance = nearer;
                }
                if let Message::Pong(pong) = other {
                    self.records.pong_relayed(pong, self.now);
                }
                self.metrics.relayed += 1;
                match other {
                    Message::Pong(pong) if pong.gone => self.send_gone(next, other.clone()),
                    _ => drop(self.try_control(next, other.clone())),
                }
            }
            // Whatever it says, the initiator will ask.
            (other, None) => {
                if P::LOOKS {
                    self.probe.stranded(other.clone());
                }
                self.metrics.undeliverable += 1;
            }
        }
    }

    fn relay_response(
        &mut self,
        from: ConnId,
        response: &mut Response,
        next: Option<(ConnId, u32)>,
    ) {
        let relayed = Box::new(Relayed {
            from,
            distance: response.distance,
            size: response.payload.len(),
            room: None,
        });
        // Anybody can make up answers of calls that never came by here.
        if next.is_none() && self.may_wait(response, relayed.distance).is_none() {
            if P::LOOKS {
                self.probe.stranded(Message::Response(response.clone()));
            }
            self.metrics.undeliverable += 1;
            self.credit_relayed(response.call, &relayed);
            return;
        }
        let mut told = None;
        if let Some((id, nearer)) = next {
            response.distance = nearer;
            let large = response.payload.len() > MAX_FRAME;
            if large || self.is_blocked(id) {
                told = self.begin_relay(response, id);
            }
            let conn = self.conns.get(id);
            let waits = conn.is_none_or(|conn| conn.holds_answers((response.call, response.token)));
            if !waits && let RelayOutcome::At(mark) = self.try_relayed(id, response, &relayed) {
                return self.note_placed(id, told.map(MarkOwner::Relay), mark);
            }
        }
        self.keep_relayed(response, relayed, (next, told));
    }

    /// The initiator is told of a relayed answer until it has been written, if there is room to remember it.
    fn begin_relay(&mut self, response: &Response, conn: ConnId) -> Option<RelayId> {
        self.records.begin_relay(response, conn, self.now)
    }

    /// A relayed answer has to wait, if there is room for that.
    fn keep_relayed(
        &mut self,
        response: &Response,
        mut relayed: Box<Relayed>,
        (next, told): (Option<(ConnId, u32)>, Option<RelayId>),
    ) {
        let conn = next.map(|(id, _)| id);
        let conn = conn
            .or_else(|| self.may_wait(response, relayed.distance))
            .unwrap_or(relayed.from);
        let told = told.or_else(|| self.begin_relay(response, conn));
        let fields = response
            .options
            .as_ref()
            .map_or(0, |options| options.size());
        let cost = relayed.size.saturating_add(fields + ANSWER_COST);
        let share = self
            .relayed
            .try_take_all(conn, response.call.initiator, cost);
        relayed.room = share.ok().map(|share| (share, cost));
        let has_room = relayed.room.is_some();
        let parcel = Parcel::new(Cargo::Relay(response.clone(), relayed, told));
        match has_room {
            true => self.post(parcel),
            false => self.drop_answer(parcel),
        }
    }

    /// Hands a relayed answer to a connection.
    fn try_relayed(
        &mut self,
        id: ConnId,
        response: &mut Response,
        relayed: &Relayed,
    ) -> RelayOutcome {
        loop {
            if !self.conns.contains(id) {
                return RelayOutcome::Refused;
            }
            match self.hand_response(id, response, Charge::Counted) {
                Ok(mark) => {
                    self.metrics.relayed += 1;
                    self.credit_relayed(response.call, relayed);
                    return RelayOutcome::At(mark);
                }
                Err(SendRefusal::TooLarge { size, limit }) if !response.status => {
                    let hint = hint(limit, self.is_session(id));
                    let own = self.address.as_ref();
                    make_too_large_to_pass_on(response, (size, limit), hint, own);
                }
                Err(SendRefusal::Blocked | SendRefusal::NotOpen) => return RelayOutcome::Blocked,
                Err(_) => return RelayOutcome::Refused,
            }
        }
    }

    /// Hands one that has waited to a connection; gives it back if it has to wait on.
    pub(super) fn try_relay(&mut self, id: ConnId, mut parcel: Parcel) -> Option<Parcel> {
        let Cargo::Relay(response, relayed, told) = &mut parcel.cargo else {
            return None;
        };
        match self.try_relayed(id, response, relayed) {
            RelayOutcome::Blocked => return Some(parcel),
            RelayOutcome::Refused => self.drop_answer(parcel),
            RelayOutcome::At(mark) => {
                self.note_placed(id, told.map(MarkOwner::Relay), mark);
                self.leave_relayed(&mut parcel);
            }
        }
        None
    }

    /// It waits no longer.
    fn leave_relayed(&mut self, parcel: &mut Parcel) {
        if let Cargo::Relay(_, relayed, _) = &mut parcel.cargo
            && let Some((share, cost)) = relayed.room.take()
        {
            self.relayed.give_back_all(share, cost);
        }
    }

    /// It has gone on, or goes nowhere: who brought it may bring more.
    fn credit_relayed(&mut self, call: CallId, relayed: &Relayed) {
        if let Some(carrier) = self.carrier(relayed.from) {
            carrier.grant_call(call, 1, relayed.size as u64);
        }
    }

    // Routes.

    /// The connection that leads on to the initiator of a call, for what came from `from` and is so far from there; and how far it
    /// is then. What the initiator says as a server of its own call goes back to it: it may know of that server only by this
    /// endpoint.
    fn relay_route(
        &self,
        (call, token): (CallId, Option<Token>),
        response: Option<&Response>,
        (distance, from): (u32, ConnId),
    ) -> Option<(ConnId, u32)> {
        let node = self.conns.get(from).and_then(Conn::node);
        if node == Some(call.initiator) {
            return Some((from, distance));
        }
        let route = (self.records).relay_route((call, token?), distance, Some(from));
        let Some(route) = route else {
            // Who asks is told of all else.
            let (came, distance) = self.came_back(response?)?;
            let direct = self.direct_route(call.initiator, came)?;
            return (direct != from).then_some((direct, distance));
        };
        let id = route.conn;
        let next = match self.direct_route(call.initiator, id) {
            Some(direct) => direct,
            // Where the requests before it were forgotten, one that this endpoint has sent to itself leads in a circle.
            None if self.conns.get(id)?.node() == Some(self.node) => return None,
            None => id,
        };
        (next != from).then_some((next, route.distance))
    }

    /// Where a relayed answer goes now.
    pub(super) fn route_of_relayed(
        &self,
        response: &Response,
        relayed: &Relayed,
    ) -> Option<(ConnId, u32)> {
        let named = (response.call, response.token);
        self.relay_route(named, Some(response), (relayed.distance, relayed.from))
    }

    /// An answer of this endpoint has come back: no server on the way to its initiator knew a way but by here. The connection that
    /// its request came over, and how far from the initiator that was. Only the initiator itself can take it now.
    fn came_back(&self, response: &Response) -> Option<(ConnId, u32)> {
        let named = (response.call, response.token?);
        let own = self.records.route_of(named, response.request)?;
        Some((own.conn, own.distance))
    }

    /// Whether an answer may wait for a route: a request of its call came by here that is nearer to the initiator than where it comes
    /// from, or it is of this endpoint. By which connection that request came.
    fn may_wait(&self, response: &Response, distance: u32) -> Option<ConnId> {
        let named = (response.call, response.token?);
        let nearer = self.records.relay_route(named, distance, None);
        let nearer = nearer.map(|route| route.conn);
        nearer.or_else(|| Some(self.came_back(response)?.0))
    }

    // Without a route.

    /// No route leads to the initiator of an answer now: it waits for one. Whatever else is said again, or asked for.
    pub(super) fn wait_for_route(&mut self, mut parcel: Parcel) {
        if P::LOOKS {
            self.probe.stranded(parcel.message());
        }
        let (call, payload) = (parcel.call(), parcel.payload());
        let Some(request) = parcel.cargo.answered() else {
            return self.drop_answer(parcel);
        };
        parcel.moves += 1;
        // Who shows no token is not told apart from others.
        let token = parcel.token();
        let Some(token) = token.filter(|_| parcel.moves <= MOST_MOVES) else {
            return self.drop_answer(parcel);
        };
        if let Cargo::Relay(response, relayed, _) = &parcel.cargo
            && self.may_wait(response, relayed.distance).is_none()
        {
            return self.drop_answer(parcel);
        }
        let awaited = Awaited {
            call,
            token,
            request,
        };
        if self.unrouted.conn(call, token).is_none() {
            for claiming in self.claiming(call.initiator) {
                self.invite_to(claiming, awaited);
            }
        }
        parcel.detach();
        let came = self.records.route_back(call, token);
        let came = came.unwrap_or(ConnId::from_number(0)); // it was forgotten
        // A request waits for a route once, so that its handler is not held up for each of its answers.
        let of = parcel.of();
        let of = of.filter(|(key, _)| self.handlers.waits_for_route(*key));
        if let Some((key, lane)) = of {
            let ahead = false;
            let of = Waiting { key, lane, ahead };
            self.handlers.begin_wait(of);
            parcel.room.of = Some(of);
        }
        let put = self
            .unrouted
            .put((awaited, came), payload, parcel, self.now);
        match put {
            Ok(()) => self.metrics.waited_for_routes += 1,
            Err(parcel) => self.drop_answer(parcel),
        }
        if let Some(due) = self.unrouted.next_timeout() {
            self.note_due(due);
        }
    }

    /// Somebody has shown the token of a call: what waits for a route to its initiator goes on.
    pub(super) fn found_route(&mut self, call: CallId, token: Token) {
        if self.unrouted.is_empty() {
            return;
        }
        let waiting = std::iter::from_fn(|| self.unrouted.take(call, token));
        let waiting: Vec<Parcel> = waiting.collect();
        for mut parcel in waiting {
            self.probe.notes(Note::FoundRoute);
            self.end_wait(parcel.room.of.take());
            self.post(parcel);
        }
    }

    /// The call is over, says somebody who shows this token: nobody takes what is relayed of it.
    pub(super) fn forget_relayed(&mut self, call: CallId, token: Token) {
        let mut dropped: Vec<Parcel> = Vec::new();
        while let Some(parcel) = self.unrouted.take(call, token) {
            dropped.push(parcel);
        }
        // They wait for the connections that led on when each of them came.
        for id in self.queue_room.relaying(call, token) {
            let queues = self.conns.get_mut(id).and_then(|conn| conn.queues.as_mut());
            let answers = queues.and_then(|queues| queues.answers.remove(&(call, Some(token))));
            let (mut relayed, own): (Vec<_>, Vec<_>) = (answers.into_iter().flatten())
                .partition(|parcel| matches!(parcel.cargo, Cargo::Relay(..)));
            for parcel in &mut relayed {
                self.leave_queue(id, std::mem::take(&mut parcel.room));
            }
            if let Some(conn) = self.conns.get_mut(id) {
                own.into_iter()
                    .for_each(|parcel| conn.queues().push(parcel));
                conn.queues.take_if(|queues| queues.is_empty());
            }
            dropped.extend(relayed);
        }
        for parcel in dropped {
            self.drop_answer(parcel);
        }
    }

    /// Answers that have waited for too long.
    pub(super) fn give_up_unrouted(&mut self) {
        while let Some(parcel) = self.unrouted.expired(self.now) {
            if let Some((request, _)) = parcel.of() {
                self.handlers.note_unrouted(request);
            }
            self.drop_answer(parcel);
        }
    }

    /// A connection opened whose other end says that it is this incarnation. If answers wait for that, it is asked to prove it.
    pub(super) fn invite_claiming(&mut self, id: ConnId, node: NodeId) {
        for awaited in self.unrouted.of(node) {
            self.invite_to(id, awaited);
        }
    }

    fn invite_to(&mut self, id: ConnId, of: Awaited) {
        self.probe.notes(Note::Invited);
        let pong = invitation(of.call, of.token, of.request, self.node);
        self.try_control(id, Message::Pong(pong));
    }

    /// A message goes nowhere.
    pub(super) fn drop_answer(&mut self, mut parcel: Parcel) {
        if parcel.cargo.answered().is_some() {
            self.probe.notes(Note::Dropped);
            self.metrics.undeliverable += 1;
        }
        self.end_wait(parcel.room.of.take());
        self.leave_relayed(&mut parcel);
        if let Cargo::Relay(response, relayed, _) = &parcel.cargo {
            self.credit_relayed(response.call, relayed);
        }
        if let Some(owner) = parcel.owner() {
            self.note_dropped(owner);
        }
    }
}

fn distance(message: &Message) -> u32 {
    match message {
        Message::Response(response) => response.distance,
        Message::End(end) => end.distance,
        Message::Pong(pong) => pong.distance,
        Message::Trace(report) => report.distance,
        Message::Request(_) | Message::Ping(_) => 0,
    }
}
