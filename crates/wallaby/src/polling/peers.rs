//! Whom an endpoint talks to: sessions, who is behind them, and messages that wait for one.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use wallaby_proto::call::records::{Output, Sent, Session, Ticket};
use wallaby_proto::call::watch::Location;
use wallaby_proto::connection::{Features, Hello, MethodDefinition};
use wallaby_proto::datagram::{Cause, Ended, MessageNumber, Refusal, SessionId, TooManySessions};
use wallaby_proto::wire::{Message, Request, Response};
use wallaby_proto::{Address, CallId, Code, NodeId, RequestId, Status};

use super::core::Core;
use crate::error::{ConnectError, hint};
use crate::handling::make_too_large;

/// How long an address that could not be dialled for others is not tried again.
const UNREACHABLE_FOR: Duration = Duration::from_secs(1);

/// Times that a message of which no byte was sent moves to another session.
const MOVES: u8 = 3;

/// What a message costs of the room for waiting ones besides its payload.
const MESSAGE_COST: usize = 64;

/// The credit of calls that are over is forgotten for so many at a time.
const WORTH_FORGETTING: u64 = 64;

/// Addresses of which something is remembered, for each connection that there may be.
const REMEMBERED: usize = 4;

/// The other end of a session.
#[derive(Debug)]
pub(super) struct Peer {
    /// What records call the session.
    pub(super) number: u64,
    at: SocketAddr,
    /// It was dialled: for whoever is there, or for one life.
    dialled: Option<Option<NodeId>>,
    /// When it is given up if it is not open.
    until: Option<Duration>,
    hello: Option<Arc<Hello>>,
    node: Option<NodeId>,
    /// When it was used last.
    used: u64,
    /// Calls and requests that need it.
    pub(super) busy: u32,
    /// The credit of its calls before this one was forgotten last.
    over: Option<CallId>,
    /// What its method numbers mean here.
    pub(super) methods: Vec<Result<usize, Refused>>,
    queues: Option<Box<Queues>>,
}

/// A method that is not served so, and the status that says why.
#[derive(Debug)]
pub(super) struct Refused(pub(super) Box<(MethodDefinition, Status)>);

/// Messages that wait for the handshake, for credit, or for room.
#[derive(Debug, Default)]
struct Queues {
    controls: VecDeque<Parcel>,
    requests: VecDeque<Parcel>,
    answers: BTreeMap<CallId, VecDeque<Parcel>>,
}

/// A message on its way out.
#[derive(Debug)]
pub(super) struct Parcel {
    pub(super) message: Message,
    pub(super) towards: Towards,
    /// The method of a request.
    pub(super) method: Option<Arc<MethodDefinition>>,
    /// What records call it.
    pub(super) released: Option<(Ticket, Sent)>,
    /// When its call began, as far as known, for a request onward.
    pub(super) born: Option<Duration>,
    pub(super) moves: u8,
}

/// Where a message goes.
#[derive(Debug, Clone)]
pub(super) enum Towards {
    Server(SocketAddr),
    /// A life by an open session, or whoever is at the address.
    Asked(Location),
    /// The other end of a session, as long as that is open.
    Over(SessionId),
    /// The call's initiator.
    Initiator {
        /// Where it says that it is reached.
        address: Option<Address>,
        /// The session that the request came over, and whether that was the initiator's own.
        came: SessionId,
        own: bool,
        /// It is the one small answer of its branch.
        small: bool,
        /// The initiator's oldest live call.
        oldest: u64,
    },
}

/// How an answer is sent in a session.
#[derive(Debug, Clone, Copy)]
pub(super) struct Manner {
    /// Back over its request's own session: it shows no token, and need not be counted if it is small.
    pub(super) direct: bool,
    pub(super) counted: bool,
    pub(super) oldest: u64,
    pub(super) ticket: Option<Ticket>,
}

/// The way that a message takes.
enum Way {
    Over(SessionId),
    Dial(SocketAddr, Option<NodeId>),
    Nowhere(ConnectError),
}

/// What became of a request that was to be handed to a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Attempt {
    Sent,
    /// It is not sent at all: its call is over, or another answer goes in its place.
    Settled,
    /// The session does not take it yet.
    Waits,
}

impl Peer {
    pub(super) fn node(&self) -> Option<NodeId> {
        self.node
    }

    pub(super) fn hello(&self) -> Option<&Arc<Hello>> {
        self.hello.as_ref()
    }

    /// Whether so many more calls are over that it is worth the while to forget their credit.
    fn is_news(&self, over: CallId) -> bool {
        self.over.is_none_or(|last| {
            let more = over.sequence.checked_sub(last.sequence);
            last.initiator != over.initiator || more.is_none_or(|more| more >= WORTH_FORGETTING)
        })
    }

    fn queues(&mut self) -> &mut Queues {
        self.queues.get_or_insert_default()
    }

    /// Whether requests wait.
    pub(super) fn holds_requests(&self) -> bool {
        let queues = self.queues.as_ref();
        queues.is_some_and(|queues| !queues.requests.is_empty())
    }

    /// Whether answers of this call wait.
    pub(super) fn holds_answers(&self, call: CallId) -> bool {
        let queues = self.queues.as_ref();
        queues.is_some_and(|queues| queues.answers.contains_key(&call))
    }
}

impl Queues {
    fn is_empty(&self) -> bool {
        self.controls.is_empty() && self.requests.is_empty() && self.answers.is_empty()
    }

    fn push(&mut self, parcel: Parcel) {
        match &parcel.message {
            Message::Request(_) => self.requests.push_back(parcel),
            Message::Response(response) => self
                .answers
                .entry(response.call)
                .or_default()
                .push_back(parcel),
            _ => self.controls.push_back(parcel),
        }
    }

    fn all(self) -> impl Iterator<Item = Parcel> {
        let others = self.controls.into_iter().chain(self.requests);
        others.chain(self.answers.into_values().flatten())
    }
}

impl Parcel {
    pub(super) fn new(message: Message, towards: Towards) -> Self {
        Self {
            message,
            towards,
            method: None,
            released: None,
            born: None,
            moves: 0,
        }
    }

    fn cost(&self) -> usize {
        let payload = match &self.message {
            Message::Request(request) => request.payload.len(),
            Message::Response(response) => response.payload.len(),
            _ => 0,
        };
        payload + MESSAGE_COST
    }
}

/// Whether the session's mark names a message: it is written when that was acknowledged.
fn output(number: u64, message: MessageNumber) -> Output {
    Output {
        session: Session(number),
        mark: message.index() + 1,
    }
}

/// The socket's address, if this transport leads there.
pub(super) fn socket(address: &Address) -> Result<SocketAddr, ConnectError> {
    match address {
        Address::Udp(socket) => Ok(*socket),
        other => Err(ConnectError::NoTransport {
            server: other.clone(),
        }),
    }
}

impl Core {
    // Who is where.

    /// The session with a server, open or being opened.
    pub(super) fn session_at(&mut self, to: SocketAddr) -> Option<SessionId> {
        if let Some((at, id)) = self.last_address
            && at == to
        {
            return Some(id);
        }
        let id = *self.by_address.get(&to)?;
        self.last_address = Some((to, id));
        Some(id)
    }

    /// An open session with a life.
    pub(super) fn session_with(&mut self, node: NodeId) -> Option<SessionId> {
        if let Some((known, id)) = self.last_node
            && known == node
        {
            return Some(id);
        }
        let id = *self.by_node.get(&node)?.first()?;
        self.last_node = Some((node, id));
        Some(id)
    }

    /// How many open sessions there are with a life.
    pub(super) fn sessions_with(&self, node: NodeId) -> usize {
        self.by_node.get(&node).map_or(0, Vec::len)
    }

    /// Opens a session, if there is room for it.
    fn dial(
        &mut self,
        to: SocketAddr,
        expected: Option<NodeId>,
    ) -> Result<SessionId, ConnectError> {
        let server = Address::Udp(to);
        self.make_room().map_err(|limit| ConnectError::TooMany {
            server: server.clone(),
            limit,
        })?;
        let dialled = self.gate.dial(self.now, to, expected);
        let id =
            dialled.map_err(|TooManySessions(limit)| ConnectError::TooMany { server, limit })?;
        let patience = match expected {
            None => self.config.dial_timeout,
            Some(_) => self.config.dial_back_timeout,
        };
        self.add_peer(id, to, Some(expected));
        if let Some(peer) = self.peers.get_mut(&id) {
            peer.until = Some(self.now.saturating_add(patience));
        }
        self.opening.push(id);
        if expected.is_none() {
            self.by_address.insert(to, id);
            self.last_address = None;
        }
        Ok(id)
    }

    fn add_peer(&mut self, id: SessionId, at: SocketAddr, dialled: Option<Option<NodeId>>) {
        self.last_number += 1;
        let number = self.last_number;
        self.by_number.insert(number, id);
        let peer = Peer {
            number,
            at,
            dialled,
            until: None,
            hello: None,
            node: None,
            used: self.used,
            busy: 0,
            over: None,
            methods: Vec::new(),
            queues: None,
        };
        self.peers.insert(id, peer);
    }

    /// Makes room for another session, if need be: the least recently used one that nobody needs is closed.
    fn make_room(&mut self) -> Result<(), usize> {
        let limit = self.config.limits.connections;
        if self.peers.len() < limit {
            return Ok(());
        }
        let gate = &self.gate;
        let idle = self.peers.iter().filter(|(id, peer)| {
            let rests = gate.peek(**id).is_none_or(|session| session.is_idle());
            peer.busy == 0 && peer.until.is_none() && peer.queues.is_none() && rests
        });
        let oldest = idle.min_by_key(|(_, peer)| peer.used).map(|(id, _)| *id);
        let id = oldest.ok_or(limit)?;
        self.close_session(id, "room is needed for another connection");
        Ok(())
    }

    /// Ends a session from this side.
    pub(super) fn close_session(&mut self, id: SessionId, reason: &str) {
        if let Some(session) = self.gate.session(id) {
            session.close(reason);
        }
        let at = self.peers.get(&id).map(|peer| peer.at);
        let server = at.map_or(Address::Mem("nobody".into()), Address::Udp);
        let reason = reason.to_owned();
        self.remove_peer(id, ConnectError::Closed { server, reason });
    }

    /// The handshake of a session is done; of one that somebody else opened, this is the first that is heard.
    pub(super) fn opened(&mut self, id: SessionId, hello: &Arc<Hello>) {
        if !self.peers.contains_key(&id) {
            let Some(at) = self.gate.peek(id).map(|session| session.remote()) else {
                return;
            };
            if let Err(limit) = self.make_room() {
                if let Some(session) = self.gate.session(id) {
                    session.close(&format!("all {limit} connections are in use"));
                }
                return;
            }
            self.add_peer(id, at, None);
        }
        let Some(peer) = self.peers.get_mut(&id) else {
            return;
        };
        let (at, number) = (peer.at, peer.number);
        peer.hello = Some(Arc::clone(hello));
        peer.node = Some(hello.node);
        peer.until = None;
        self.opening.retain(|opening| *opening != id);
        self.by_node.entry(hello.node).or_default().push(id);
        // Who is there has shown that it receives what is sent to this address.
        self.by_address.entry(at).or_insert(id);
        self.records.session_opened(Session(number), hello.node);
        self.found_at(at, Some(hello.node));
        self.pump(id);
    }

    /// The peer is going away: what was sent is still answered, and new requests go elsewhere.
    pub(super) fn going_away(&mut self, id: SessionId) {
        self.by_address.retain(|_, known| *known != id);
        self.last_address = None;
        let requests = self
            .peers
            .get_mut(&id)
            .and_then(|peer| peer.queues.as_mut());
        let requests = requests.map(|queues| std::mem::take(&mut queues.requests));
        self.post_again(requests.into_iter().flatten());
    }

    /// A session has ended.
    pub(super) fn session_ended(&mut self, id: SessionId, ended: &Ended) {
        let Some(peer) = self.peers.get(&id) else {
            return; // this side has closed it
        };
        let (at, server, reason) = (peer.at, Address::Udp(peer.at), ended.to_string());
        if let Some(peer) = self.peers.get(&id) {
            self.records
                .written(Session(peer.number), ended.acknowledged);
            self.records
                .confirmed(Session(peer.number), ended.acknowledged);
        }
        let error = match &ended.cause {
            Cause::Handshake(source) => ConnectError::Handshake {
                server,
                source: source.clone(),
            },
            Cause::Unreachable => ConnectError::Refused { server, reason },
            Cause::NoAnswer(_) => ConnectError::Unreachable { server, reason },
            _ => ConnectError::Closed { server, reason },
        };
        match &ended.cause {
            Cause::Restarted { now, .. } => self.found_at(at, Some(*now)),
            Cause::Unreachable => self.found_at(at, None),
            _ => {}
        }
        self.remove_peer(id, error);
    }

    /// When the next session must be open.
    pub(super) fn opening_until(&self) -> Option<Duration> {
        let opening = self
            .opening
            .iter()
            .filter_map(|id| self.peers.get(id)?.until);
        opening.min()
    }

    /// Gives up sessions that take too long to open.
    pub(super) fn end_dials(&mut self) {
        let late = |id: &&SessionId| {
            let until = self.peers.get(*id).and_then(|peer| peer.until);
            until.is_some_and(|until| until <= self.now)
        };
        let late: Vec<SessionId> = self.opening.iter().filter(late).copied().collect();
        for id in late {
            if let Some(session) = self.gate.session(id) {
                session.close("no answer");
            }
            let Some(peer) = self.peers.get(&id) else {
                continue;
            };
            let back = peer.dialled != Some(None);
            let error = ConnectError::TimedOut {
                server: Address::Udp(peer.at),
                after: if back {
                    self.config.dial_back_timeout
                } else {
                    self.config.dial_timeout
                },
            };
            self.remove_peer(id, error);
        }
    }

    /// A session is gone: what was not sent may go another way.
    fn remove_peer(&mut self, id: SessionId, error: ConnectError) {
        let Some(mut peer) = self.peers.remove(&id) else {
            return;
        };
        self.by_number.remove(&peer.number);
        self.opening.retain(|opening| *opening != id);
        (self.last_address, self.last_node) = (None, None);
        if self.by_address.get(&peer.at) == Some(&id) {
            self.by_address.remove(&peer.at);
        }
        let queued = peer
            .queues
            .take()
            .into_iter()
            .flat_map(|queues| queues.all());
        let queued: Vec<Parcel> = queued
            .inspect(|parcel| self.waiting -= parcel.cost())
            .collect();
        if let Some(node) = peer.node {
            if let Some(known) = self.by_node.get_mut(&node) {
                known.retain(|known| *known != id);
                if known.is_empty() {
                    self.by_node.remove(&node);
                }
            }
            self.records.session_ended(Session(peer.number), self.now);
            self.disconnected(id, node);
            return self.post_again(queued.into_iter());
        }
        if peer.dialled != Some(None) {
            self.note_unreachable(peer.at);
        }
        for parcel in queued {
            match (&parcel.towards, &parcel.message) {
                (Towards::Server(_) | Towards::Asked(_), _) => self.undeliverable(parcel, &error),
                _ => self.post(parcel),
            }
        }
    }

    /// Messages of which no byte was sent go another way.
    fn post_again(&mut self, parcels: impl Iterator<Item = Parcel>) {
        for mut parcel in parcels {
            parcel.moves += 1;
            if parcel.moves > MOVES {
                let reason = "its connections end before it is sent".to_owned();
                let server = Address::Mem("several".into());
                self.undeliverable(parcel, &ConnectError::Closed { server, reason });
            } else {
                self.post(parcel);
            }
        }
    }

    pub(super) fn note_unreachable(&mut self, at: SocketAddr) {
        let now = self.now;
        self.unreachable.retain(|_, until| *until > now);
        if self.unreachable.len() < REMEMBERED * self.config.limits.connections {
            self.unreachable
                .insert(at, now.saturating_add(UNREACHABLE_FOR));
        }
    }

    pub(super) fn is_unreachable(&self, at: SocketAddr) -> bool {
        self.unreachable
            .get(&at)
            .is_some_and(|until| *until > self.now)
    }

    /// A life, or nobody, was found at an address: who was there before is gone.
    fn found_at(&mut self, at: SocketAddr, node: Option<NodeId>) {
        if self.found.len() >= REMEMBERED * self.config.limits.connections.max(MIN_FOUND) {
            self.found.clear(); // what is found later is news again
        }
        let before = match node {
            Some(node) => {
                self.unreachable.remove(&at); // what was so may be no more
                self.found.insert(at, node)
            }
            None => self.found.remove(&at),
        };
        if let Some(gone) = before.filter(|before| Some(*before) != node) {
            self.node_gone(gone);
        }
    }

    // Messages.

    /// Whether so many bytes more may wait.
    pub(super) fn has_room(&self, payload: usize) -> bool {
        self.waiting + payload + MESSAGE_COST <= self.config.limits.waiting
    }

    /// Sends a message, now or when that is possible.
    pub(super) fn post(&mut self, parcel: Parcel) {
        let way = self.way(&parcel);
        let dialled = match way {
            Way::Over(id) => return self.enqueue(id, parcel),
            Way::Dial(to, expected) => self.dial(to, expected),
            Way::Nowhere(error) => Err(error),
        };
        match dialled {
            Ok(id) => self.enqueue(id, parcel),
            Err(error) => self.undeliverable(parcel, &error),
        }
    }

    fn enqueue(&mut self, id: SessionId, parcel: Parcel) {
        let Some(peer) = self.peers.get(&id) else {
            return;
        };
        let waits = match (&parcel.message, &peer.queues) {
            _ if peer.node.is_none() => true,
            (_, None) => false,
            (Message::Request(_), Some(queues)) => !queues.requests.is_empty(),
            (Message::Response(response), Some(_)) => peer.holds_answers(response.call),
            (_, Some(queues)) => !queues.controls.is_empty(),
        };
        let waiting = if waits {
            Some(parcel)
        } else {
            self.attempt(id, parcel)
        };
        if let (Some(parcel), Some(peer)) = (waiting, self.peers.get_mut(&id)) {
            self.waiting += parcel.cost();
            peer.queues().push(parcel);
        }
    }

    fn way(&mut self, parcel: &Parcel) -> Way {
        match &parcel.towards {
            Towards::Server(to) => match self.session_at(*to) {
                Some(id) => Way::Over(id),
                None => Way::Dial(*to, None),
            },
            Towards::Over(id) if self.peers.contains_key(id) => Way::Over(*id),
            Towards::Over(_) => Way::Nowhere(gone()),
            Towards::Asked(Location { address, node }) => {
                if let Some(id) = node.and_then(|node| self.session_with(node)) {
                    return Way::Over(id);
                }
                match address.as_ref().map(socket) {
                    Some(Ok(to)) => match self.session_at(to) {
                        Some(id) => Way::Over(id),
                        None => Way::Dial(to, None),
                    },
                    Some(Err(error)) => Way::Nowhere(error),
                    None => Way::Nowhere(gone()),
                }
            }
            Towards::Initiator { address, came, .. } => {
                let (address, came) = (address.clone(), *came);
                self.way_to_initiator(parcel.message.call().initiator, address, came)
            }
        }
    }

    /// The open session by which an answer goes straight to its initiator.
    pub(super) fn way_back(&mut self, initiator: NodeId, came: SessionId) -> Option<SessionId> {
        let node = self.peers.get(&came).and_then(|peer| peer.node);
        if node == Some(initiator) {
            return Some(came);
        }
        self.session_with(initiator)
    }

    fn way_to_initiator(
        &mut self,
        initiator: NodeId,
        address: Option<Address>,
        came: SessionId,
    ) -> Way {
        if let Some(id) = self.way_back(initiator, came) {
            return Way::Over(id);
        }
        let error = match address.as_ref().map(|address| (address, socket(address))) {
            Some((address, _)) if !self.config.dial_policy.permits(address) => {
                ConnectError::Forbidden {
                    server: address.clone(),
                }
            }
            Some((_, Ok(to))) if !self.is_unreachable(to) => {
                let opening = self.opening.iter().find(|id| {
                    let peer = self.peers.get(id);
                    peer.is_some_and(|peer| peer.at == to && peer.dialled == Some(Some(initiator)))
                });
                return match opening {
                    Some(id) => Way::Over(*id),
                    None => Way::Dial(to, Some(initiator)),
                };
            }
            Some((address, Ok(_))) => ConnectError::Unreachable {
                server: address.clone(),
                reason: "it was not reached a moment ago".into(),
            },
            Some((_, Err(error))) => error,
            None => gone(),
        };
        // Back along the way that the request came; who is there passes it on.
        let relays = self
            .peers
            .get(&came)
            .is_some_and(|peer| peer.node.is_some());
        if relays {
            Way::Over(came)
        } else {
            Way::Nowhere(error)
        }
    }

    /// Sends what can be sent.
    pub(super) fn pump(&mut self, id: SessionId) {
        let queues = self.peers.get_mut(&id).and_then(|peer| peer.queues.take());
        let Some(mut queues) = queues else {
            return;
        };
        self.pump_queue(id, &mut queues.controls);
        self.pump_queue(id, &mut queues.requests);
        queues.answers.retain(|_, answers| {
            self.pump_queue(id, answers);
            !answers.is_empty()
        });
        match self.peers.get_mut(&id) {
            // What was sent may have set off more, which now waits here, too.
            Some(peer) => {
                let newer = peer.queues.take();
                newer
                    .into_iter()
                    .flat_map(|newer| newer.all())
                    .for_each(|parcel| queues.push(parcel));
                peer.queues = Some(queues).filter(|queues| !queues.is_empty());
            }
            None => {
                let left: Vec<Parcel> = queues.all().collect();
                self.waiting -= left.iter().map(Parcel::cost).sum::<usize>();
                self.post_again(left.into_iter());
            }
        }
    }

    fn pump_queue(&mut self, id: SessionId, queue: &mut VecDeque<Parcel>) {
        while let Some(parcel) = queue.pop_front() {
            let cost = parcel.cost();
            if let Some(parcel) = self.attempt(id, parcel) {
                queue.push_front(parcel);
                return;
            }
            self.waiting -= cost;
        }
    }

    /// Hands a message to a session; gives it back if it has to wait.
    fn attempt(&mut self, id: SessionId, parcel: Parcel) -> Option<Parcel> {
        let Parcel {
            message,
            towards,
            method,
            released,
            born,
            moves,
        } = parcel;
        let message = match (message, &towards, &method) {
            (Message::Request(mut request), _, Some(method)) => {
                match self.attempt_request(id, &mut request, method, released, born, &towards) {
                    Attempt::Waits => Message::Request(request),
                    Attempt::Sent => {
                        self.note_taken(id, released, request.id);
                        return None;
                    }
                    Attempt::Settled => return None,
                }
            }
            (
                mut message,
                Towards::Initiator {
                    own,
                    came,
                    small,
                    oldest,
                    ..
                },
                _,
            ) => {
                let direct = *own && *came == id;
                let manner = Manner {
                    direct,
                    counted: !(direct && *small),
                    oldest: *oldest,
                    ticket: released.map(|released| released.0),
                };
                if let Some(output) = self.attempt_answer(id, &mut message, manner) {
                    if let Some((ticket, sent)) = released {
                        self.records.placed(ticket, sent, output);
                    }
                    return None;
                }
                message
            }
            (Message::Response(response), ..) => {
                if self.attempt_again(id, &response, released) {
                    return None;
                }
                Message::Response(response)
            }
            (message, ..) => {
                if let (Message::Ping(ping), Towards::Asked(to)) = (&message, &towards)
                    && !self.is_meant(id, to)
                {
                    self.ping_elsewhere(ping, to, None);
                    return None;
                }
                if self.attempt_control(id, message.clone()).is_some() {
                    return None;
                }
                message
            }
        };
        Some(Parcel {
            message,
            towards,
            method,
            released,
            born,
            moves,
        })
    }

    /// Whether who is behind a session is who was meant.
    fn is_meant(&self, id: SessionId, to: &Location) -> bool {
        let found = self.peers.get(&id).and_then(|peer| peer.node);
        to.node.is_none() || to.node == found
    }

    /// A delegation that has waited was taken by a session whose life may not have been known when it was released.
    fn note_taken(&mut self, id: SessionId, released: Option<(Ticket, Sent)>, request: RequestId) {
        let node = self.peers.get(&id).and_then(|peer| peer.node());
        if let (Some((ticket, _)), Some(node)) = (released, node) {
            self.records.delegation_taken(ticket, request, node);
        }
    }

    /// Hands a request to a session.
    pub(super) fn attempt_request(
        &mut self,
        id: SessionId,
        request: &mut Request,
        method: &Arc<MethodDefinition>,
        released: Option<(Ticket, Sent)>,
        born: Option<Duration>,
        towards: &Towards,
    ) -> Attempt {
        let initial =
            released.is_none() && request.call.initiator == self.node && request.depth == 0;
        if initial && self.is_over(request.call.sequence) {
            return Attempt::Settled;
        }
        if let Some((ticket, sent)) = released
            && !self.records.may_send(ticket)
        {
            self.records.dropped(ticket, sent);
            return Attempt::Settled;
        }
        match self.send_request(id, request, method, born) {
            Ok(number) => {
                match released {
                    Some((ticket, sent)) => {
                        let mark = self.peers.get(&id).map_or(0, |peer| peer.number);
                        self.records.placed(ticket, sent, output(mark, number));
                    }
                    None => self.root_sent(request.call.sequence, request.id, id),
                }
                Attempt::Sent
            }
            Err(Refusal::Blocked | Refusal::NotOpen | Refusal::Closing) => Attempt::Waits,
            Err(refusal) => {
                if let Towards::Server(to) = towards {
                    self.request_refused(request, *to, released, refusal);
                }
                Attempt::Settled
            }
        }
    }

    /// Hands a request to a session.
    pub(super) fn send_request(
        &mut self,
        id: SessionId,
        request: &mut Request,
        method: &MethodDefinition,
        born: Option<Duration>,
    ) -> Result<MessageNumber, Refusal> {
        let session = self.gate.session(id).ok_or(Refusal::NotOpen)?;
        if !session.confirm(self.now) {
            return Err(Refusal::Blocked);
        }
        let Some(peer) = session.peer() else {
            return Err(Refusal::NotOpen);
        };
        if let (Some(born), true) = (born, peer.features.contains(Features::AGE)) {
            request.options.get_or_insert_default().age = Some(self.raw.saturating_sub(born));
        }
        if let Some(key) = self.config.cluster_keys.first() {
            key.seal(request, peer.node, self.address.as_ref());
        }
        let number = session.send_request(request, method)?;
        self.use_peer(id);
        Ok(number)
    }

    pub(super) fn use_peer(&mut self, id: SessionId) {
        if let Some(peer) = self.peers.get_mut(&id) {
            peer.used = self.used;
        }
    }

    /// Hands an answer to a session; `None` if it has to wait. One that its initiator does not take becomes a status.
    pub(super) fn attempt_answer(
        &mut self,
        id: SessionId,
        message: &mut Message,
        manner: Manner,
    ) -> Option<Output> {
        let Message::Response(response) = message else {
            return self.attempt_control(id, shown(message.clone(), manner.direct));
        };
        let token = response.token;
        if manner.direct {
            response.token = None;
        }
        let sent = self.send_response(id, response, manner);
        if sent.is_none() {
            response.token = token;
        }
        sent
    }

    fn send_response(
        &mut self,
        id: SessionId,
        response: &mut Response,
        manner: Manner,
    ) -> Option<Output> {
        let peer = self.peers.get_mut(&id)?;
        let number = peer.number;
        let session = self.gate.session(id)?;
        let over = CallId {
            sequence: manner.oldest,
            ..response.call
        };
        if manner.counted && peer.is_news(over) {
            session.forget_calls(over);
            peer.over = Some(over);
        }
        let (size, limit) = match session.send_response(response, manner.counted) {
            Ok(sent) => return Some(output(number, sent)),
            Err(Refusal::TooLarge { size, limit }) => (size, limit),
            Err(Refusal::TooLargeForDatagrams { size }) => {
                (size, wallaby_proto::datagram::MAX_MESSAGE as u64)
            }
            Err(_) => return None,
        };
        make_too_large(
            response,
            (size, limit),
            hint(limit, true),
            self.address.as_ref(),
        );
        if let Some(ticket) = manner.ticket {
            self.records.response_replaced(ticket, response);
        }
        // Not counted: it is small, and counting it could only make it wait.
        match session.send_response(response, false) {
            Ok(sent) => Some(output(number, sent)),
            Err(Refusal::Blocked | Refusal::NotOpen | Refusal::Closing) => None,
            Err(_) => {
                self.counters.undeliverable += 1;
                Some(Output {
                    session: Session(number),
                    mark: 0,
                })
            }
        }
    }

    /// Sends an answer again; if that has to wait, the initiator asks for it once more. Whether it is out of the way.
    fn attempt_again(
        &mut self,
        id: SessionId,
        response: &Response,
        released: Option<(Ticket, Sent)>,
    ) -> bool {
        let (Some((ticket, sent)), Some(peer)) = (released, self.peers.get(&id)) else {
            return true;
        };
        let number = peer.number;
        let Some(session) = self.gate.session(id) else {
            self.records.dropped(ticket, sent);
            return true;
        };
        match session.send_response(response, true) {
            Ok(message) => self.records.placed(ticket, sent, output(number, message)),
            // No status goes in its place: the first copy may still arrive, by a way that takes it.
            Err(Refusal::TooLarge { .. } | Refusal::TooLargeForDatagrams { .. }) => {
                self.records.too_large(ticket, response.index);
            }
            Err(_) => self.records.dropped(ticket, sent),
        }
        true
    }

    /// Hands a message that needs no credit to a session; `None` if it has to wait.
    pub(super) fn attempt_control(&mut self, id: SessionId, message: Message) -> Option<Output> {
        let number = self.peers.get(&id)?.number;
        let session = self.gate.session(id)?;
        let sent = session.send_control(message).ok()?;
        Some(output(number, sent))
    }

    /// A message reaches nobody.
    fn undeliverable(&mut self, parcel: Parcel, error: &ConnectError) {
        let Parcel {
            message,
            towards,
            released,
            ..
        } = parcel;
        match (message, towards) {
            (Message::Request(request), Towards::Server(to)) => match released {
                Some(_) => self.answer_for(
                    &request,
                    to,
                    released,
                    Code::Unavailable,
                    &error.to_string(),
                ),
                None => self.not_sent(request.call.sequence, request.id, error.clone()),
            },
            (Message::Ping(ping), Towards::Asked(to)) => {
                self.ping_elsewhere(&ping, &to, Some(error));
            }
            _ => {
                self.counters.undeliverable += 1;
                if let Some((ticket, sent)) = released {
                    self.records.dropped(ticket, sent);
                }
            }
        }
    }

    /// A request is not taken by its server's session at all.
    fn request_refused(
        &mut self,
        request: &Request,
        to: SocketAddr,
        released: Option<(Ticket, Sent)>,
        refusal: Refusal,
    ) {
        if released.is_none() {
            return self.root_refused(request.call.sequence, request.id, to, refusal);
        }
        let hint = match refusal {
            Refusal::TooLarge { limit, .. } => hint(limit, true),
            _ => "",
        };
        self.answer_for(
            request,
            to,
            released,
            Code::ResourceExhausted,
            &format!("{refusal}{hint}"),
        );
    }
}

/// Fewest addresses whose lives are remembered, in fourths.
const MIN_FOUND: usize = 64;

fn gone() -> ConnectError {
    ConnectError::Closed {
        server: Address::Mem("initiator".into()),
        reason: "its connection has ended, and it is not reached elsewhere".into(),
    }
}

/// A message as it must be over this session: one that comes directly shows no token.
fn shown(mut message: Message, direct: bool) -> Message {
    match &mut message {
        Message::End(end) if direct => end.token = None,
        Message::Pong(pong) if direct => pong.token = None,
        _ => {}
    }
    message
}
