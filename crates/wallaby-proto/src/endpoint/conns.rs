//! Whom an endpoint talks to: connections, who is behind them, and who was found where.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::call::records::Records;
use crate::carrier::Carrier;
use crate::connection::{Connection, Hello, NamedBy, Search};
use crate::datagram::{Cause, SessionEnd, SessionId, TooManySessions};
use crate::dial::DialPolicy;
use crate::wire::Message;
use crate::{Address, Code, ConnId, NodeId, Status};

use super::Endpoint;
use super::conn::{Asks, Cargo, Conn, DialledFor, Link, Parcel, Peer};
use super::event::Output;
use super::probe::{Note, Probe};
use super::routing::ended;
use super::sockets::SocketId;
use super::streams::Stream;
use crate::error::ConnectError;
use crate::numbers::MAX_CLAIMING;

/// Why a connection is closed that nobody needs.
const ROOM_NEEDED: &str = "room is needed for another connection";

impl<P: Probe> Endpoint<P> {
    /// The address, if the shell dials such ones.
    pub(super) fn reachable<'a>(&self, address: &'a Address) -> Result<&'a Address, ConnectError> {
        if self.config.schemes.lead_to(address) {
            return Ok(address);
        }
        let server = address.clone();
        Err(ConnectError::NoTransport { server })
    }

    // Who is where.

    /// The connection with a server, open or being opened.
    pub(super) fn conn_at(&mut self, to: &Address) -> Option<ConnId> {
        self.directory.at(to)
    }

    /// The open connection with what is reached at an address, if it says that it is this incarnation.
    pub(super) fn incarnation_at(&mut self, at: &Address, node: NodeId) -> Option<ConnId> {
        let id = self.conn_at(at)?;
        let found = self.conns.get(id)?.node();
        (found == Some(node)).then_some(id)
    }

    /// Open connections whose other end says that it is this incarnation, a few of them: perhaps none of them is.
    pub(super) fn claiming(&self, node: NodeId) -> Vec<ConnId> {
        let peers = self.directory.with(node).iter();
        // Those that came last: a stranger that claims it first must not be the only one.
        peers.rev().take(MAX_CLAIMING).copied().collect()
    }

    /// A connection carries something of a call of this endpoint: a request, a question about one, or what has shown that it may
    /// answer.
    pub(super) fn note_call(&mut self, id: Option<ConnId>) {
        if let Some(conn) = id.and_then(|id| self.conns.get_mut(id)) {
            conn.carried_calls = true;
        }
    }

    /// Whether no connection with an incarnation is left by which calls of this endpoint may hear of it.
    pub(super) fn was_last(&self, node: NodeId) -> bool {
        let mut peers = self.directory.with(node).iter();
        !peers.any(|id| self.conns.get(*id).is_some_and(|conn| conn.carried_calls))
    }

    /// The incarnation at the other end of a connection, once the handshake is done.
    pub fn peer(&self, id: ConnId) -> Option<NodeId> {
        self.conns.get(id)?.node()
    }

    /// Where the peer of a connection says that it is reached.
    pub fn peer_address(&self, id: ConnId) -> Option<&Address> {
        self.conns.get(id)?.hello()?.address.as_ref()
    }

    /// How many open connections there are with an incarnation.
    pub(super) fn connections_with(&self, node: NodeId) -> usize {
        self.directory.with(node).len()
    }

    /// What carries a peer's messages, to send by it.
    pub(super) fn carrier(&mut self, id: ConnId) -> Option<&mut dyn Carrier> {
        match &mut self.conns.get_mut(id)?.link {
            Link::Session(socket, session) => Some(self.sockets.session(*socket, *session)?),
            Link::Stream(stream) => {
                if !std::mem::replace(&mut stream.told, true) {
                    self.outputs.push_back(Output::Write(id));
                }
                Some(&mut stream.connection)
            }
        }
    }

    /// Waits for a connection with a server, which is dialled if need be: `None` if there is one already. Of the other ones
    /// [`Output::Connected`] tells what became of them.
    ///
    /// # Errors
    ///
    /// If it is not dialled.
    pub fn connect(&mut self, to: &Address) -> Result<Option<ConnId>, ConnectError> {
        self.reachable(to)?;
        if !self.config.dial_policy.permits_call(to) {
            self.metrics.dials_forbidden += 1;
            let server = to.clone();
            return Err(ConnectError::Forbidden { server });
        }
        let id = match self.conn_at(to) {
            Some(id) if self.conns.get(id).is_some_and(Conn::is_open) => {
                return Ok(None);
            }
            Some(id) => id,
            None => self.dial(to, None, NamedBy::Application)?,
        };
        self.dialling.wait_for(id);
        Ok(Some(id))
    }

    /// Connects to a server that will have something to say, if there is no connection yet.
    ///
    /// # Errors
    ///
    /// If it is not dialled.
    pub fn meet(&mut self, to: &Address) -> Result<(), ConnectError> {
        self.connect(to).map(drop)
    }

    /// Whether connections are being opened.
    pub fn is_opening(&self) -> bool {
        self.dialling.is_opening()
    }

    /// Whoever waits for a connection learns what became of it.
    fn tell_connected(&mut self, id: ConnId, result: Result<(), &ConnectError>) {
        if self.dialling.end_wait(id) {
            let result = result.map_err(|error| Box::new(error.clone()));
            self.outputs.push_back(Output::Connected(id, result));
        }
    }

    /// A request that came from a peer is handled, or was refused.
    pub(super) fn grant_request(&mut self, id: ConnId, payload: usize) -> Option<()> {
        if let Link::Session(socket, session) = self.conns.get(id)?.link {
            let gate = self.sockets.gate_mut(socket)?;
            return gate.grant_request(session, payload);
        }
        self.carrier(id)?.grant_request(payload);
        Some(())
    }

    /// How far the output of a connection has left, in the terms of [`Mark::Written`](crate::connection::Mark), and how far its
    /// peer has confirmed it where the transport tells.
    pub fn written(&self, id: ConnId) -> Option<(u64, Option<u64>)> {
        self.has_left(self.conns.get(id)?)
    }

    /// How far a peer's output has left, and how far the peer has confirmed it if it does.
    pub(super) fn has_left(&self, conn: &Conn) -> Option<(u64, Option<u64>)> {
        Some(conn.link.peek(&self.sockets)?.progress())
    }

    /// Opens a connection, if there is room for it.
    pub(super) fn dial(
        &mut self,
        to: &Address,
        expected: Option<NodeId>,
        named_by: NamedBy,
    ) -> Result<ConnId, ConnectError> {
        if self.is_ending() {
            return Err(ended(to));
        }
        self.make_room().map_err(|limit| ConnectError::TooMany {
            server: to.clone(),
            limit,
        })?;
        let link = match to {
            Address::Udp(at) if !self.config.shell.streams_first => {
                self.dial_session(*at, expected, named_by)?
            }
            _ => {
                let me = Arc::clone(&self.hello);
                let connection = Connection::dial(me, expected).bounded(&self.bounds);
                Link::Stream(Box::new(Stream::new(connection)))
            }
        };
        let dialled = DialledFor::new(expected);
        let patience = self.patience(dialled);
        let mut conn = Conn::new(link, Some(to.clone()), Some(dialled));
        (conn.used, conn.useful) = (self.used, true);
        let usefulness = conn.usefulness();
        let id = self.conns.insert(conn);
        self.places.settle(id, usefulness);
        self.open_until(id, patience);
        let conn = self.conns.get_mut(id).and_then(Conn::stream_mut);
        if let Some(stream) = conn {
            stream.named_by = named_by;
            self.outputs
                .push_back(Output::Dial(id, Box::new(to.clone())));
            self.begin_stream(id);
        }
        self.directory.dialled(to, id, expected.is_some());
        Ok(id)
    }

    /// The application, too, wants a connection that may be being opened.
    pub(super) fn name_by_application(&mut self, id: ConnId) {
        let opening = self.conns.get_mut(id).filter(|conn| !conn.is_open());
        match opening.map(|conn| &mut conn.link) {
            Some(Link::Stream(stream)) => stream.named_by = NamedBy::Application,
            Some(Link::Session(socket, session)) => {
                if let Some(session) = self.sockets.session(*socket, *session) {
                    session.name_by_application();
                }
            }
            None => {}
        }
    }

    /// Whether a connection is dialled because a peer has named its address.
    pub fn is_named_by_peer(&self, id: ConnId) -> bool {
        let stream = self.conns.get(id).and_then(Conn::stream);
        stream.is_some_and(|stream| stream.named_by == NamedBy::Peer)
    }

    /// Whether one of the addresses that a host's name has led to may be dialled for this connection: it must lead to one server, and
    /// if a peer has named it, it is counted as if the peer had said the address itself.
    pub fn may_dial_found(&mut self, id: ConnId, at: &Address) -> bool {
        DialPolicy::default().permits(at)
            && (!self.is_named_by_peer(id) || self.may_dial(at, None, NamedBy::Peer).is_ok())
    }

    /// A stream that was to be opened to an address of datagrams is a session over these instead, with a peer there: because a stream
    /// does not lead there ([`Shell::streams_first`](super::Shell::streams_first)), or because the address has a host's name, which
    /// was looked up.
    pub fn dial_datagrams(&mut self, id: ConnId, at: SocketAddr) {
        let conn = self.conns.get(id);
        let Some(stream) = conn.and_then(Conn::stream) else {
            return;
        };
        let expected = conn.and_then(|conn| conn.dialled?.expected());
        match self.dial_session(at, expected, stream.named_by) {
            Ok(link) => self.conns.change(id, link),
            Err(error) => self.remove_conn(id, error),
        }
        self.settle();
    }

    /// Opens a session.
    fn dial_session(
        &mut self,
        to: SocketAddr,
        expected: Option<NodeId>,
        named_by: NamedBy,
    ) -> Result<Link, ConnectError> {
        let (raw, socket) = (self.raw, self.socket_towards(to));
        let server = Address::Udp(to);
        let Some(gate) = self.sockets.gate_mut(socket) else {
            let reason = "there is no socket to dial it from".to_owned();
            return Err(ConnectError::Local { server, reason });
        };
        match gate.dial_named(raw, to, expected, named_by) {
            Ok(session) => Ok(Link::Session(socket, session)),
            Err(TooManySessions(limit)) => Err(ConnectError::TooMany { server, limit }),
        }
    }

    /// A connection is given up if it is not open after so long.
    pub(super) fn open_until(&mut self, id: ConnId, patience: Duration) {
        let until = self.now.saturating_add(patience);
        if let Some(conn) = self.conns.get_mut(id) {
            let before = conn.until.replace(until);
            self.dialling.open_until(id, before, until);
            self.note_due(until);
        }
    }

    /// How long a dial may take; for an initiator, how long answers wait for it.
    fn patience(&self, dialled: DialledFor) -> Duration {
        match dialled {
            DialledFor::Incarnation(_) => self.config.dial_back_timeout,
            DialledFor::Late(_) | DialledFor::Anybody => self.config.dial_timeout,
        }
    }

    /// A connection that was dialled is open, or refused: that has taken a round trip or two.
    fn note_trip(&mut self, dialled: Option<DialledFor>, until: Option<Duration>) {
        let (Some(dialled), Some(until)) = (dialled, until) else {
            return;
        };
        let begun = until.saturating_sub(self.patience(dialled));
        let taken = self.now.saturating_sub(begun);
        self.dialling.note_trip(taken);
    }

    /// How soon others are heard who have work of a server that is gone for certain.
    pub(super) fn heard_within(&self) -> Duration {
        let trips = self.dialling.trips();
        self.config.gone_after.saturating_add(trips)
    }

    /// Makes room for another connection that is no stranger's, if need be: of those that nobody needs, one that was never of
    /// use is closed, or else the one used least recently. One that is found to be needed is not looked at again before it may
    /// be free, so that each costs one look for each time that it was free.
    pub(super) fn make_room(&mut self) -> Result<(), usize> {
        let (limit, mut search) = (self.config.limits.connections, Search::default());
        while self.places.settled() >= limit {
            let conns = &self.conns;
            let usefulness = |id| Some(conns.get(id)?.usefulness());
            let next = self.places.next_for_room(&mut search, usefulness);
            let id = next.ok_or(limit)?;
            if self.is_idle(id) {
                self.metrics.connections_evicted += 1;
                self.close_conn(id, ROOM_NEEDED);
            }
        }
        Ok(())
    }

    /// A connection may have become one that nobody needs.
    #[inline]
    pub(super) fn may_rest(&mut self, id: ConnId) {
        if self.places.has_needed() {
            self.rest(id);
        }
    }

    #[cold]
    fn rest(&mut self, id: ConnId) {
        if self.places.is_needed(id)
            && self.is_idle(id)
            && let Some(conn) = self.conns.get(id)
        {
            self.places.free(id, conn.usefulness());
        }
    }

    /// Whether nobody needs a connection.
    pub(super) fn is_idle(&self, id: ConnId) -> bool {
        let Some(conn) = self.conns.get(id) else {
            return true;
        };
        let carrier = conn.link.peek(&self.sockets);
        let rests = carrier.is_none_or(|carrier| carrier.is_idle());
        conn.busy == 0
            && !self.dialling.is_awaited(id)
            && (conn.until.is_none() || conn.is_late())
            && conn.queues.is_none()
            && rests
    }

    /// Somebody has connected, and must show soon that it wants something. If there are too many of these, the oldest goes.
    pub(super) fn welcome(&mut self, link: Link, at: Option<Address>) -> ConnId {
        let mut conn = Conn::new(link, at, None);
        conn.used = self.used;
        let id = self.conns.insert(conn);
        if let Some(oldest) = self.places.welcome(self.now, id) {
            self.dismiss_conn(
                oldest,
                "others have connected since, and it has said nothing",
            );
        }
        if let Some(due) = self.places.next_timeout() {
            self.note_due(due);
        }
        id
    }

    /// A stranger has to go; if this side has taken its connection to send something, it is none.
    fn dismiss_conn(&mut self, id: ConnId, reason: &str) {
        if self.conns.get(id).is_some_and(|conn| conn.useful) && self.settle_stranger(id).is_ok() {
            return;
        }
        self.metrics.strangers_dismissed += 1;
        self.close_conn(id, reason);
    }

    /// Strangers that have been there for too long go.
    pub(super) fn dismiss_the_silent(&mut self) {
        while let Some(id) = self.places.expired(self.now) {
            self.dismiss_conn(id, "the handshake took too long");
        }
    }

    /// A stranger has shown that it wants something: it is none any more, if there is room for it.
    fn settle_stranger(&mut self, id: ConnId) -> Result<(), String> {
        if let Err(limit) = self.make_room() {
            self.metrics.connections_refused += 1;
            return Err(format!("all {limit} connections are in use"));
        }
        if let Some(conn) = self.conns.get(id) {
            self.places.settle(id, conn.usefulness());
        }
        Ok(())
    }

    /// Ends a connection for which there is no room.
    fn refuse(&mut self, id: ConnId, reason: String) {
        if let Some(carrier) = self.carrier(id) {
            carrier.refuse(&reason);
        }
        let server = self.server(id);
        self.remove_conn(id, ConnectError::Closed { server, reason });
    }

    /// A message has come; whether it is handled. Over datagrams the first one makes a stranger a connection; if there is no
    /// room for that, a request gets a status, since the message counts as received.
    pub(super) fn heard(&mut self, id: ConnId, message: &mut Message) -> bool {
        let is_useful = self.conns.get(id).is_some_and(|conn| conn.useful);
        if !is_useful
            && self.places.is_stranger(id)
            && let Err(full) = self.settle_stranger(id)
        {
            if let Message::Request(request) = message {
                let status = self.own(Status::new(Code::Unavailable, full));
                self.answer_stranger(id, request, &status);
                self.grant_request(id, request.payload.len());
            }
            return false;
        }
        if let Message::Request(_) = message {
            self.use_conn(id);
        }
        true
    }

    /// Ends a connection from this side: its peer is told why.
    pub fn close_conn(&mut self, id: ConnId, reason: &str) {
        let Some(server) = self.conns.get(id).map(Conn::server) else {
            return;
        };
        let reason = reason.to_owned();
        self.say_goodbye(id, &reason);
        self.remove_conn(id, ConnectError::Closed { server, reason });
    }

    /// Tells the peer why its connection is closed.
    pub(super) fn say_goodbye(&mut self, id: ConnId, reason: &str) {
        if let Some(carrier) = self.carrier(id) {
            carrier.close(reason);
        }
    }

    /// The handshake of a session is done; of one that somebody else opened, this is the first that is heard.
    pub(super) fn session_opened(
        &mut self,
        (socket, session): (SocketId, SessionId),
        hello: &Arc<Hello>,
    ) {
        if let Some(id) = self.conns.over((socket, session)) {
            return self.opened(id, hello);
        }
        if !self.takes_strangers(socket, session) {
            return;
        }
        let Some(at) = (self.sockets.peek(socket, session)).map(|session| session.remote()) else {
            return;
        };
        let at = Some(Address::Udp(at));
        let id = self.welcome(Link::Session(socket, session), at);
        self.opened(id, hello);
    }

    /// The handshake is done.
    pub(super) fn opened(&mut self, id: ConnId, hello: &Arc<Hello>) {
        let is_stream = self
            .conns
            .get(id)
            .is_some_and(|conn| conn.stream().is_some());
        if is_stream
            && self.places.is_stranger(id)
            && let Err(full) = self.settle_stranger(id)
        {
            return self.refuse(id, full);
        }
        let Some(conn) = self.conns.get_mut(id) else {
            return;
        };
        self.probe.opened(id, hello);
        self.metrics.connections_opened += 1;
        conn.peer = Some(Peer::new(hello));
        let until = conn.until.take();
        let (at, dialled) = (conn.at.clone(), conn.dialled);
        let is_dialled = dialled.is_some();
        self.note_trip(dialled, until);
        self.dialling.end(id, until);
        self.directory.opened(at.as_ref(), hello.node, id);
        self.records.conn_opened(id, hello.node);
        if let Some(claimed) = hello.address.as_ref().filter(|_| !is_dialled) {
            self.dialling.dials.claimed(claimed);
        }
        if let Some(at) = at.filter(|_| is_dialled) {
            self.dialling.found(&at, hello.node);
        }
        if self.is_draining() {
            self.say_that_it_drains(id);
        }
        self.pump(id);
        self.invite_claiming(id, hello.node);
        let is_awaited = self.dialling.is_awaited(id);
        if is_dialled && !is_stream && !is_awaited {
            self.end_unused(id);
        }
        if is_awaited {
            self.tell_connected(id, Ok(()));
        }
    }

    /// A session was dialled for something that is not sent any more. Its peer takes this side for a stranger and ends it soon,
    /// perhaps just when it is used at last: so it ends now.
    fn end_unused(&mut self, id: ConnId) {
        let Some(conn) = self.conns.get(id).filter(|conn| !conn.holds_messages()) else {
            return;
        };
        let carrier = conn.link.peek(&self.sockets);
        if carrier.is_some_and(|carrier| carrier.counters().messages_sent == 0) {
            self.close_conn(id, "nothing is left to be sent");
        }
    }

    /// The peer is going away: what was sent is still answered, and new requests go elsewhere.
    pub(super) fn going_away(&mut self, id: ConnId) {
        let at = self.conns.get(id).and_then(|conn| conn.at.as_ref());
        self.directory.leave_address(at, id);
        self.take_requests_back(id);
    }

    /// Requests that wait for a connection go another way.
    pub(super) fn take_requests_back(&mut self, id: ConnId) {
        let requests = self.conns.get_mut(id).and_then(|conn| conn.queues.as_mut());
        let requests = requests.map(|queues| {
            let followed = std::mem::take(&mut queues.followed);
            let requests = std::mem::take(&mut queues.requests);
            requests.into_iter().chain(followed)
        });
        let requests = self.take_back(id, requests.into_iter().flatten());
        let server = self.server(id);
        let reason = "it takes no more requests".to_owned();
        self.post_again(requests, &ConnectError::Closed { server, reason });
    }

    /// Messages wait for this connection no longer.
    pub(super) fn take_back(
        &mut self,
        id: ConnId,
        parcels: impl Iterator<Item = Parcel>,
    ) -> Vec<Parcel> {
        let mut parcels: Vec<Parcel> = parcels.collect();
        for parcel in &mut parcels {
            self.leave_queue(id, std::mem::take(&mut parcel.room));
        }
        parcels
    }

    /// A session has ended.
    pub(super) fn session_ended(&mut self, session: (SocketId, SessionId), ended: &SessionEnd) {
        if self.sockets.peek(session.0, session.1).is_none() {
            self.metrics.add_carried(ended.counters);
        }
        let Some(id) = self.conns.over(session) else {
            return; // this side has closed it
        };
        self.probe.session_ended(id, &ended.cause);
        let progress = (ended.acknowledged, Some(ended.acknowledged));
        note_progress(&mut self.records, id, progress);
        let at = self.conns.get(id).and_then(|conn| conn.at.clone());
        let Some(server) = at else {
            return;
        };
        if let Cause::Restarted { now, .. } = &ended.cause {
            self.dialling.found(&server, *now);
        }
        let reason = ended.to_string();
        let error = match &ended.cause {
            Cause::Handshake(source) => ConnectError::Handshake {
                server: Some(server),
                source: source.clone(),
            },
            Cause::Unreachable => ConnectError::Refused { server, reason },
            Cause::NoAnswer(_) => ConnectError::Unreachable { server, reason },
            _ => ConnectError::Closed {
                server: Some(server),
                reason,
            },
        };
        self.remove_conn(id, error);
    }

    /// Gives up connections that take too long to open, or to tell their last words.
    pub(super) fn end_dials(&mut self) {
        while let Some(id) = self.dialling.overdue(self.now) {
            if self.dial_on(id) {
                continue;
            }
            self.probe.notes(Note::TimedOut(id));
            let is_open = self.conns.get(id).is_some_and(Conn::is_open);
            let reason = match is_open {
                true => "it takes nothing more",
                false => "the handshake took too long",
            };
            self.say_goodbye(id, reason);
            let Some(conn) = self.conns.get(id) else {
                continue;
            };
            let is_stream = conn.stream().is_some();
            let error = match (conn.dialled, conn.server()) {
                (Some(dialled), Some(server)) if !is_open => {
                    self.metrics.dials_failed += u64::from(is_stream);
                    ConnectError::TimedOut {
                        server,
                        after: self.patience(dialled),
                    }
                }
                (_, server) => ConnectError::Closed {
                    server,
                    reason: reason.to_owned(),
                },
            };
            self.remove_conn(id, error);
        }
    }

    /// It takes longer to reach an initiator than its answers wait: they go another way, and those that come later go straight. Not
    /// over datagrams: who is reached there takes this side for a stranger if nothing is sent.
    fn dial_on(&mut self, id: ConnId) -> bool {
        let more = (self.config.dial_timeout).saturating_sub(self.config.dial_back_timeout);
        let Some(conn) = self.conns.get_mut(id) else {
            return false;
        };
        let Some(DialledFor::Incarnation(node)) = conn.dialled else {
            return false;
        };
        if conn.is_open() || conn.stream().is_none() || more.is_zero() {
            return false;
        }
        conn.dialled = Some(DialledFor::Late(node));
        let queues = conn.queues.take().into_iter();
        self.open_until(id, more);
        for parcel in self.take_back(id, queues.flat_map(|queues| queues.all())) {
            self.post(parcel);
        }
        self.may_rest(id); // nobody waits for it
        true
    }

    /// A connection is gone: what was not sent may go another way.
    pub(super) fn remove_conn(&mut self, id: ConnId, error: ConnectError) {
        let Some(mut conn) = self.conns.remove(id) else {
            return;
        };
        if let ConnectError::Refused { .. } = &error {
            self.note_trip(conn.dialled, conn.until);
        }
        self.dialling.end(id, conn.until);
        self.directory.remove(conn.at.as_ref(), conn.node(), id);
        self.places.leave(id);
        if let Some(carrier) = conn.link.peek(&self.sockets) {
            self.metrics.add_carried(carrier.counters());
        }
        self.metrics.connections_ended += u64::from(conn.is_open());
        self.tell_connected(id, Err(&error));
        let queues = conn.queues.take().into_iter();
        let queued = self.take_back(id, queues.flat_map(|queues| queues.all()));
        if let Some(followed) = conn.followed.take() {
            self.lose_bodies(*followed, &error);
        }
        let read = conn.stream().and_then(|stream| stream.read);
        if let Some(stream) = conn.stream_mut() {
            self.stream_removed(id, stream, &error);
        }
        if let Some(node) = conn.node() {
            self.note_written(); // what is announced says whether its output has left
            self.records.conn_ended(id, self.now);
            if conn.carried_calls {
                self.disconnected((id, node), read);
            }
            return self.post_again(queued, &error);
        }
        if let (Some(_), Some(at)) = (conn.dialled.and_then(DialledFor::expected), &conn.at) {
            error.note_in_vain(&mut self.dialling.dials, self.now, at);
        }
        for parcel in queued {
            match &parcel.cargo {
                Cargo::Request(_) | Cargo::Ping(_, Asks::At(_)) => {
                    self.undeliverable(parcel, &error)
                }
                _ => self.post(parcel),
            }
        }
    }

    /// A dial begins of an address that others may have named; whether it may.
    pub(super) fn may_dial(
        &mut self,
        at: &Address,
        wanted: Option<NodeId>,
        named_by: NamedBy,
    ) -> Result<(), ConnectError> {
        let begun = self.dialling.dials.begin(self.now, at, wanted, named_by);
        begun.map_err(|source| {
            self.probe.notes(Note::DialHeld);
            self.metrics.dials_held += 1;
            ConnectError::held(at, source)
        })
    }
}

/// The records learn how far the output of a connection has left, and how far its peer has confirmed it if it does.
pub(super) fn note_progress(
    records: &mut Records,
    id: ConnId,
    (left, confirmed): (u64, Option<u64>),
) {
    records.written(id, left);
    if let Some(confirmed) = confirmed {
        records.confirmed(id, confirmed);
    }
}
