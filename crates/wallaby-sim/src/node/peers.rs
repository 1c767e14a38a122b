//! Connections of a node: dialling, waiting messages, and the way each message takes.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use wallaby_proto::call::records::{Output, Sent, Session, Ticket, Way as Onward};
use wallaby_proto::call::watch::Location;
use wallaby_proto::carrier::Carrier;
use wallaby_proto::connection::{
    Connection, ConnectionError, Event, Held, KeepAliveSettings, NamedBy, Refusal,
};
use wallaby_proto::datagram::{self, Cause, SessionId};
use wallaby_proto::wire::{Message, Response};
use wallaby_proto::{Address, CallId, Code, NodeId, Status, Token};

use super::wire::{Stream, Wire};
use super::{Node, node_at, socket_address};
use crate::broken::Broken;
use crate::context::{Context, note};
use crate::coverage::Point;
use crate::network::{LinkId, Side, Socket};
use crate::oracle::{self, Rule};
use crate::plan::Reach;
use crate::trail::Item;

/// How long a dial for a request may take.
const DIAL_SERVER: Duration = Duration::from_secs(1);

/// How long opening a session for a request may take: longer than the session itself is patient.
const OPEN_SESSION: Duration = Duration::from_secs(15);

/// How long a dial for an answer may take.
const DIAL_BACK: Duration = Duration::from_millis(250);

/// How often dials are looked at.
const LOOK_AT_DIALS: Duration = Duration::from_millis(50);

/// How long silent peers are believed in.
fn keep_alive() -> KeepAliveSettings {
    KeepAliveSettings::default()
}

/// One end of a connection or a session.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) wire: Wire,
    /// Whom it was dialled for: a server, and the life that is wanted.
    wanted: Option<(u32, Option<NodeId>)>,
    /// When it is given up if it is not open.
    until: Option<Duration>,
    /// Who is there, once the handshake is done.
    node: Option<NodeId>,
    requests: VecDeque<Parcel>,
    answers: BTreeMap<CallId, VecDeque<Parcel>>,
    /// Messages that need no credit: they wait only for the handshake.
    controls: VecDeque<Parcel>,
    /// The mark up to which all has been written.
    reached: u64,
    /// Messages of requests here that are being written, with their marks.
    leaving: Leaving,
    /// Requests that went out here, for a node that is broken so.
    sent: Vec<Parcel>,
}

/// What is being written, as the oracle knows it.
#[derive(Debug, Default)]
struct Leaving {
    requests: VecDeque<(u64, CallId, Item)>,
    answers: VecDeque<(u64, CallId, Item)>,
}

impl Leaving {
    fn add(&mut self, mark: u64, call: CallId, item: Item) {
        match item {
            Item::Request(_) => self.requests.push_back((mark, call, item)),
            Item::Answer(_) => self.answers.push_back((mark, call, item)),
        }
    }

    /// What is written up to these marks: requests that have left, and answers that have arrived where that is known.
    fn up_to(&mut self, left: u64, arrived: u64) -> Vec<(CallId, Item)> {
        let mut written = Vec::new();
        for (messages, mark) in [(&mut self.requests, left), (&mut self.answers, arrived)] {
            while let Some((_, call, item)) = messages.pop_front_if(|front| front.0 <= mark) {
                written.push((call, item));
            }
        }
        written
    }
}

/// A message on its way out of a node.
#[derive(Debug, Clone)]
pub(super) struct Parcel {
    pub(super) message: Message,
    pub(super) to: Destination,
    /// The handler that waits until it is accepted.
    pub(super) job: Option<u64>,
    /// What records call it.
    pub(super) released: Option<(Ticket, Sent)>,
    /// How often it has waited for a way.
    pub(super) waits: u8,
}

impl Parcel {
    /// The call that a ping asks about, and the life that it asks.
    pub(super) fn asks(&self) -> Option<(CallId, NodeId)> {
        match (&self.message, &self.to) {
            (Message::Ping(ping), Destination::Asked(to)) => Some((ping.call, to.node?)),
            _ => None,
        }
    }
}

#[derive(Debug, Clone)]
pub(super) enum Destination {
    Server(u32),
    /// A life, by an open connection, or whoever is at the address.
    Asked(Location),
    /// The other end of a connection, as long as that is open.
    Over(Socket),
    /// On towards the call's initiator, for an answer that was so far from there when it came.
    Onward(u32),
    /// The call's initiator.
    Initiator {
        /// Where it says that it is reached.
        address: Option<Address>,
        /// The connection on which the request, or the answer that is relayed, came.
        came: Socket,
        /// It has not to be counted: the one small answer over the connection of its request.
        small: bool,
    },
}

/// How a connection came to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Failed {
    /// Nobody is there.
    Refused,
    /// Another life is there.
    WrongLife(NodeId),
    Ended,
}

/// The way that a message takes.
enum Way {
    Over(Socket),
    Dial(u32, Option<NodeId>, NamedBy),
    Nowhere,
}

impl Peer {
    fn new(wire: Wire, wanted: Option<(u32, Option<NodeId>)>) -> Self {
        Self {
            wire,
            wanted,
            until: None,
            node: None,
            requests: VecDeque::new(),
            answers: BTreeMap::new(),
            controls: VecDeque::new(),
            reached: 0,
            leaving: Leaving::default(),
            sent: Vec::new(),
        }
    }

    pub(super) fn is_open(&self) -> bool {
        self.node.is_some()
    }

    pub(super) fn node(&self) -> Option<NodeId> {
        self.node
    }

    fn queue(&mut self, parcel: Parcel) {
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

    /// Whether messages wait here to be accepted.
    fn has_unsent(&self) -> bool {
        !(self.requests.is_empty() && self.answers.is_empty() && self.controls.is_empty())
    }

    /// Whether the message with this mark has been written.
    pub(super) fn has_written(&self, mark: u64) -> bool {
        self.reached >= mark
    }

    /// All messages of which no byte was written.
    fn unsent(&mut self) -> Vec<Parcel> {
        let mut parcels: Vec<_> = self.controls.drain(..).collect();
        parcels.extend(self.requests.drain(..));
        parcels.extend(std::mem::take(&mut self.answers).into_values().flatten());
        parcels
    }
}

impl Node {
    /// Sends a message, now or when that is possible.
    pub(super) fn post(&mut self, mut parcel: Parcel, context: &mut Context<'_>) {
        match self.way(&mut parcel, context) {
            Way::Over(socket) => self.enqueue(socket, parcel, context),
            Way::Dial(server, wanted, named_by) => {
                let socket = self.dial(server, wanted, named_by, context);
                self.enqueue(socket, parcel, context);
            }
            Way::Nowhere => self.wait_for_a_way(parcel, context),
        }
    }

    fn enqueue(&mut self, socket: Socket, parcel: Parcel, context: &mut Context<'_>) {
        if let Some(peer) = self.peers.get_mut(&socket) {
            peer.queue(parcel);
            self.pump(socket, context);
        }
    }

    fn way(&mut self, parcel: &mut Parcel, context: &mut Context<'_>) -> Way {
        match &parcel.to {
            Destination::Server(server) => match self.dialled.get(&(*server, None)) {
                Some(socket) => Way::Over(*socket),
                None => Way::Dial(*server, None, NamedBy::Application),
            },
            Destination::Over(socket) => match self.peers.contains_key(socket) {
                true => Way::Over(*socket),
                false => Way::Nowhere,
            },
            Destination::Asked(Location { address, node }) => {
                match address.as_ref().and_then(node_at) {
                    Some(server) => match self.dialled.get(&(server, None)) {
                        Some(socket) => Way::Over(*socket),
                        None => match self.may_dial(server, *node, context) {
                            Ok(()) => Way::Dial(server, None, NamedBy::Peer),
                            Err(held) => {
                                if held == Held::Refused {
                                    self.found_at(server, None, context);
                                    self.not_found(
                                        parcel.asks().into_iter().collect(),
                                        None,
                                        context,
                                    );
                                }
                                Way::Nowhere
                            }
                        },
                    },
                    None => Way::Nowhere,
                }
            }
            Destination::Onward(distance) => {
                let (call, distance) = (parcel.message.call(), *distance);
                let token = parcel.message.token();
                match token.and_then(|token| self.way_onward(call, token, distance)) {
                    Some((socket, nearer)) => {
                        if let Some(distance) = parcel.message.distance() {
                            *distance = nearer;
                        }
                        Way::Over(socket)
                    }
                    None => Way::Nowhere,
                }
            }
            Destination::Initiator { address, came, .. } => {
                let (address, came) = (address.clone(), *came);
                self.way_to_initiator(&parcel.message, address, came, context)
            }
        }
    }

    fn way_to_initiator(
        &mut self,
        message: &Message,
        address: Option<Address>,
        came: Socket,
        context: &mut Context<'_>,
    ) -> Way {
        let call = message.call();
        let initiator = call.initiator;
        if self.peers.get(&came).and_then(|peer| peer.node) == Some(initiator) {
            context.hit(Point::AnswerDirect);
            return Way::Over(came);
        }
        let server = address.as_ref().and_then(node_at);
        let known = server.and_then(|server| self.life_at(server, initiator));
        if let Some(socket) = known.or_else(|| self.way_direct(initiator, came)) {
            context.hit(Point::AnswerProven);
            return Way::Over(socket);
        }
        if let Some(node) = server {
            let wanted = Some(initiator);
            if let Some(socket) = self.dialled.get(&(node, wanted)) {
                return Way::Over(*socket);
            }
            if self.may_dial(node, wanted, context).is_ok() {
                context.hit(Point::AnswerDialledBack);
                return Way::Dial(node, wanted, NamedBy::Peer);
            }
        }
        if self.peers.get(&came).is_some_and(Peer::is_open) {
            self.invite_from(came, message, context);
            return Way::Over(came);
        }
        let token = message.token();
        match token.and_then(|token| self.way_back(call, token)) {
            Some(socket) => Way::Over(socket),
            None => Way::Nowhere,
        }
    }

    /// The open connection by which answers of a call go back: the one that its request came over or what took its place; the
    /// initiator's own, if it has proven one.
    pub(super) fn way_back(&self, call: CallId, token: Token) -> Option<Socket> {
        let (socket, _) = self.way_onward(call, token, 0)?;
        Some(socket)
    }

    /// Where an answer goes on to that is so far from its initiator, and how far it is then.
    pub(super) fn way_onward(
        &self,
        call: CallId,
        token: Token,
        distance: u32,
    ) -> Option<(Socket, u32)> {
        let Onward { session, distance } = self.records.way_onward(call, token, distance)?;
        let came = socket(session);
        if let Some(direct) = self.way_direct(call.initiator, came) {
            return Some((direct, distance));
        }
        // Where the requests before it were forgotten, one that this node has sent to itself leads in a circle.
        let peer = self.peers.get(&came)?;
        (peer.node != Some(self.id)).then_some((came, distance))
    }

    fn way_direct(&self, initiator: NodeId, came: Socket) -> Option<Socket> {
        let way = socket(self.records.way_direct(initiator, session(came))?);
        self.peers.contains_key(&way).then_some(way)
    }

    /// The open connection to a server that was dialled, if it says that it is this life.
    fn life_at(&self, server: u32, node: NodeId) -> Option<Socket> {
        let dialled = [None, Some(node)].map(|wanted| self.dialled.get(&(server, wanted)));
        let is_it = |socket: &&Socket| self.peers.get(socket).and_then(Peer::node) == Some(node);
        dialled.into_iter().flatten().find(is_it).copied()
    }

    /// Open connections whose other end says that it is this life: perhaps none of them is.
    pub(super) fn claiming(&self, node: NodeId) -> Vec<Socket> {
        let claiming = self.peers.iter();
        let claiming = claiming.filter(|(_, peer)| peer.node == Some(node));
        claiming.map(|(socket, _)| *socket).collect()
    }

    /// The life at the other end of an open connection that a message to this place would take, whoever it is for.
    pub(super) fn is_found_at(&self, to: &Location) -> Option<NodeId> {
        let server = node_at(to.address.as_ref()?)?;
        let socket = self.dialled.get(&(server, None))?;
        self.peers.get(socket)?.node
    }

    /// An open connection to a life.
    pub(super) fn connection_to(&self, node: NodeId) -> Option<Socket> {
        self.peers
            .iter()
            .find(|(_, peer)| peer.node == Some(node))
            .map(|(socket, _)| *socket)
    }

    /// Whether a node that others have named is dialled now.
    fn may_dial(
        &mut self,
        server: u32,
        wanted: Option<NodeId>,
        context: &mut Context<'_>,
    ) -> Result<(), Held> {
        let begun = (self.dials).begin(context.now(), &server, wanted, NamedBy::Peer);
        if begun.is_err() {
            context.hit(Point::DialHeld);
        }
        begun
    }

    fn dial(
        &mut self,
        server: u32,
        wanted: Option<NodeId>,
        named_by: NamedBy,
        context: &mut Context<'_>,
    ) -> Socket {
        let expected = wanted.filter(|_| !context.is(Broken::AnyLife));
        let by_datagrams = context.plan.nodes[server as usize].udp;
        let session = match by_datagrams {
            true => self
                .gate
                .dial_named(self.raw, socket_address(server), expected, named_by)
                .ok(),
            false => None,
        };
        let (link, wire) = match session {
            Some(id) => (context.network.session(), Wire::Session(id)),
            None => {
                let from = (self.index, self.life);
                let link = context.network.dial(from, server, &mut context.queue);
                let connection = Connection::dial(Arc::clone(&self.hello), expected);
                (link, Wire::stream(connection, false))
            }
        };
        let socket = Socket {
            link,
            side: Side::Dialler,
        };
        note!(context, self.index, "dials n{server} ({link:?})");
        let patience = match (&wire, wanted) {
            (Wire::Session(_), None) => OPEN_SESSION,
            (_, None) => DIAL_SERVER,
            (_, Some(_)) => DIAL_BACK,
        };
        let mut peer = Peer::new(wire, Some((server, wanted)));
        peer.until = Some(self.now() + patience);
        self.peers.insert(socket, peer);
        self.dialled.insert((server, wanted), socket);
        self.sessions.extend(session.map(|id| (id, socket)));
        socket
    }

    /// Servers that are being dialled by connections which were cut off without this node's knowledge, and when.
    pub(super) fn hanging(&self, context: &Context<'_>) -> Vec<(u32, Duration)> {
        let dials = self.peers.iter().filter(|(_, peer)| !peer.is_open());
        let hanging = dials.filter_map(|(socket, peer)| {
            Some((peer.wanted?.0, context.network.cut_since(socket.link)?))
        });
        hanging.collect()
    }

    /// When dials are looked at again: often, since a stop of the process shows only by a timer that comes late.
    pub(super) fn next_look_at_dials(&self) -> Option<Duration> {
        let next = self.peers.values().filter_map(|peer| peer.until).min()?;
        Some(next.min(self.now() + LOOK_AT_DIALS))
    }

    /// Gives up dials that have taken too long.
    pub(super) fn end_dials(&mut self, context: &mut Context<'_>) {
        let now = self.now();
        let late = |peer: &Peer| peer.until.is_some_and(|until| until <= now);
        let late: Vec<Socket> = self
            .peers
            .iter()
            .filter(|(_, peer)| late(peer))
            .map(|(socket, _)| *socket)
            .collect();
        for socket in late {
            context.hit(Point::ConnectionTimedOut);
            self.close(socket, "no answer", context);
        }
    }

    /// Something happened: there may be somebody to wait for.
    pub(super) fn watch_peers(&mut self) {
        if let (None, Some(interval)) = (self.look_at_peers, keep_alive().interval()) {
            self.look_at_peers = Some(self.now() + interval);
        }
    }

    /// Gives up connections whose other end is silent while something waits for it.
    pub(super) fn end_silent_peers(&mut self, context: &mut Context<'_>) {
        let now = self.now();
        if self.look_at_peers.is_none_or(|due| due > now) {
            return;
        }
        self.look_at_peers = None;
        for socket in self.peers.keys().copied().collect::<Vec<_>>() {
            let Some(peer) = self.peers.get_mut(&socket) else {
                continue;
            };
            let unsent = peer.has_unsent();
            let Wire::Stream(stream) = &mut peer.wire else {
                continue; // sessions see to it themselves
            };
            let connection = &mut stream.connection;
            match stream
                .keep_alive
                .look(&keep_alive(), connection, unsent, now)
            {
                Ok(false) => {}
                Ok(true) => {
                    self.flush(socket, context);
                    self.watch_peers();
                }
                Err(error) => {
                    context.hit(Point::ConnectionSilent);
                    note!(context, self.index, "gives up {socket:?}: {error}");
                    self.close(socket, &error.to_string(), context);
                }
            }
        }
    }

    pub(super) fn accept(&mut self, socket: Socket) {
        let connection = Connection::accept(Arc::clone(&self.hello));
        let peer = Peer::new(Wire::stream(connection, true), None);
        self.peers.insert(socket, peer);
    }

    pub(super) fn connected(&mut self, socket: Socket, context: &mut Context<'_>) {
        if let Some(Wire::Stream(stream)) = self.peers.get_mut(&socket).map(|peer| &mut peer.wire) {
            stream.connected = true;
            self.pump(socket, context);
        }
    }

    pub(super) fn handle_bytes(
        &mut self,
        socket: Socket,
        bytes: &Bytes,
        context: &mut Context<'_>,
    ) {
        let Some(stream) = self.stream(socket) else {
            return;
        };
        context
            .network
            .read(socket, bytes.len(), &mut context.queue);
        stream.input.extend_from_slice(bytes);
        let now = self.raw;
        while let Some(stream) = self.stream(socket) {
            if stream.connection.wants_time() {
                stream.connection.set_time(now);
            }
            match stream.connection.handle_input(&mut stream.input) {
                Ok(Some(event)) => self.handle_event(socket, event, context),
                Ok(None) => break,
                Err(error) => return self.handle_error(socket, &error, context),
            }
        }
        self.pump(socket, context);
    }

    /// What carries a peer's messages, to send by it.
    pub(super) fn carrier(
        &mut self,
        socket: Socket,
    ) -> Option<Carrier<&mut Connection, &mut datagram::Session>> {
        self.peers.get_mut(&socket)?.wire.carrier(&mut self.gate)
    }

    fn stream(&mut self, socket: Socket) -> Option<&mut Stream> {
        match &mut self.peers.get_mut(&socket)?.wire {
            Wire::Stream(stream) => Some(stream),
            Wire::Session(_) => None,
        }
    }

    fn handle_error(&mut self, socket: Socket, error: &ConnectionError, context: &mut Context<'_>) {
        let why = match error {
            ConnectionError::WrongNode { found, .. } => {
                context.hit(Point::ConnectionWrongLife);
                Failed::WrongLife(*found)
            }
            _ => {
                context.violate(
                    Rule::FalseAccusation,
                    format!("n{} on {socket:?}: {error}", self.index),
                );
                Failed::Ended
            }
        };
        self.close_for(socket, &error.to_string(), why, context);
    }

    pub(super) fn handle_event(&mut self, socket: Socket, event: Event, context: &mut Context<'_>) {
        match event {
            Event::Opened(peer) => {
                context.hit(match self.stream(socket) {
                    Some(_) => Point::ConnectionOpened,
                    None => Point::SessionOpened,
                });
                note!(
                    context,
                    self.index,
                    "is connected to {} ({:?})",
                    peer.node,
                    socket.link
                );
                let Some(state) = self.peers.get_mut(&socket) else {
                    return;
                };
                state.node = Some(peer.node);
                state.until = None;
                let wanted = state.wanted;
                self.records.session_opened(session(socket), peer.node);
                let asked: Vec<_> = state.controls.iter().filter_map(Parcel::asks).collect();
                if let Some((server, _)) = wanted {
                    self.found_at(server, Some(peer.node), context);
                }
                self.not_found(asked, Some(peer.node), context);
                self.invite_claiming(socket, peer.node, context);
            }
            Event::Message(message) => self.handle_message(socket, message, context),
            Event::TooLarge { message, size } => {
                self.handle_too_large(socket, message, size, context)
            }
            Event::Method(..) | Event::Credit | Event::GoingAway { .. } | Event::Body(..) => {}
            Event::Closed(reason) => note!(context, self.index, "is told on {socket:?}: {reason}"),
        }
    }

    /// A message above this node's limit came in spite of it.
    fn handle_too_large(
        &mut self,
        _: Socket,
        message: Message,
        size: u64,
        context: &mut Context<'_>,
    ) {
        let what = format!(
            "{} of {size} bytes, above the stated limit",
            super::Short(&message)
        );
        context.violate(Rule::FalseAccusation, what);
    }

    pub(super) fn handle_ended(&mut self, socket: Socket, context: &mut Context<'_>) {
        if self.peers.contains_key(&socket) {
            note!(context, self.index, "loses {socket:?}");
            self.hang_up(socket, "", context);
            self.remove_peer(socket, Failed::Ended, context);
        }
    }

    /// Ends a connection from this side.
    pub(super) fn close(&mut self, socket: Socket, reason: &str, context: &mut Context<'_>) {
        self.close_for(socket, reason, Failed::Ended, context);
    }

    fn close_for(&mut self, socket: Socket, reason: &str, why: Failed, context: &mut Context<'_>) {
        if let Some(stream) = self.stream(socket) {
            stream.connection.close(reason);
            self.flush(socket, context);
        }
        self.hang_up(socket, reason, context);
        self.remove_peer(socket, why, context);
    }

    /// Ends all sessions with a node.
    pub(super) fn hang_up_on(&mut self, node: u32, context: &mut Context<'_>) {
        let with = |socket: &&Socket| {
            let known = self.peers.get(socket).and_then(Peer::node);
            known.and_then(|life| context.oracle.node_of(life)) == Some(node)
        };
        let sockets: Vec<Socket> = self.sessions.values().filter(with).copied().collect();
        for socket in sockets {
            self.close(socket, "it is hung up", context);
        }
    }

    /// Lets go of what carries a connection or a session.
    fn hang_up(&mut self, socket: Socket, reason: &str, context: &mut Context<'_>) {
        match self.peers.get(&socket).map(|peer| &peer.wire) {
            Some(Wire::Stream(_)) => {
                let Context {
                    network,
                    queue,
                    coverage,
                    ..
                } = context;
                network.close(socket, queue, coverage);
            }
            Some(Wire::Session(session)) => {
                if let Some(session) = self.gate.session(*session) {
                    session.close(reason);
                }
            }
            None => {}
        }
    }

    /// A connection is gone: what was not written may go another way.
    pub(super) fn remove_peer(&mut self, socket: Socket, why: Failed, context: &mut Context<'_>) {
        let Some(mut peer) = self.peers.remove(&socket) else {
            return;
        };
        self.sessions.retain(|_, known| *known != socket);
        self.dialled.retain(|_, dialled| *dialled != socket);
        for (call, item) in peer.leaving.up_to(u64::MAX, u64::MAX) {
            context.oracle.left(context.queue.now(), call, item);
        }
        if context.is(Broken::ResendAfterReset) {
            self.post_all(std::mem::take(&mut peer.sent), context);
        }
        let unsent = peer.unsent();
        if let Some(node) = peer.node {
            let now = self.now();
            self.records.session_ended(session(socket), now);
            self.disconnected(node, context);
            self.post_all(unsent, context);
            return;
        }
        if let (Some((server, _)), Failed::Refused) = (peer.wanted, why) {
            self.found_at(server, None, context);
        }
        if let Some((server, wanted)) = peer.wanted {
            let found = match why {
                Failed::WrongLife(found) => Some(found),
                _ => None,
            };
            if why == Failed::Refused {
                self.dials.refused(context.now(), &server);
            } else if wanted.is_some() {
                self.dials.failed(context.now(), &server, found);
            }
        }
        if why == Failed::Refused {
            let asked = unsent.iter().filter_map(Parcel::asks).collect();
            self.not_found(asked, None, context);
        }
        for parcel in unsent {
            match (&parcel.to, &parcel.message) {
                (Destination::Server(_), Message::Request(_)) => {
                    self.undelivered(parcel, Code::Unavailable, context);
                }
                // The next round asks again.
                (Destination::Asked(_), _) => {}
                _ => self.post(parcel, context),
            }
        }
    }

    /// Sends what can be sent.
    pub(super) fn pump(&mut self, socket: Socket, context: &mut Context<'_>) {
        let Some(peer) = self.peers.get_mut(&socket) else {
            return;
        };
        if peer.is_open() {
            let controls = std::mem::take(&mut peer.controls);
            for parcel in controls {
                if let Some(parcel) = self.attempt(socket, parcel, context)
                    && let Some(peer) = self.peers.get_mut(&socket)
                {
                    peer.controls.push_back(parcel);
                }
            }
            self.pump_requests(socket, context);
            self.pump_answers(socket, context);
        }
        self.flush(socket, context);
    }

    fn pump_requests(&mut self, socket: Socket, context: &mut Context<'_>) {
        while let Some(parcel) = self
            .peers
            .get_mut(&socket)
            .and_then(|peer| peer.requests.pop_front())
        {
            if let Some(parcel) = self.attempt(socket, parcel, context) {
                context.hit(Point::ConnectionBlockedRequest);
                if let Some(peer) = self.peers.get_mut(&socket) {
                    peer.requests.push_front(parcel);
                }
                return;
            }
        }
    }

    fn pump_answers(&mut self, socket: Socket, context: &mut Context<'_>) {
        let calls: Vec<CallId> = match self.peers.get(&socket) {
            Some(peer) => peer.answers.keys().copied().collect(),
            None => return,
        };
        for call in calls {
            loop {
                let Some(peer) = self.peers.get_mut(&socket) else {
                    return;
                };
                let Some(queue) = peer.answers.get_mut(&call) else {
                    break;
                };
                let Some(parcel) = queue.pop_front() else {
                    peer.answers.remove(&call);
                    break;
                };
                if let Some(parcel) = self.attempt(socket, parcel, context) {
                    context.hit(Point::ConnectionBlockedResponse);
                    if let Some(peer) = self.peers.get_mut(&socket) {
                        peer.answers.entry(call).or_default().push_front(parcel);
                    }
                    break;
                }
            }
        }
    }

    /// Hands a message to a connection; gives it back if it has to wait.
    fn attempt(
        &mut self,
        socket: Socket,
        parcel: Parcel,
        context: &mut Context<'_>,
    ) -> Option<Parcel> {
        let Parcel {
            mut message,
            to,
            job,
            released,
            waits,
        } = parcel;
        let kept = context
            .is(Broken::ResendAfterReset)
            .then(|| message.clone());
        let root = match &message {
            Message::Request(request)
                if request.call.initiator == self.id && request.depth == 0 =>
            {
                Some((request.call.sequence, request.id))
            }
            _ => None,
        };
        // What waited here for longer than its call lasted is not sent any more.
        if root.is_some_and(|(sequence, _)| self.is_over(sequence)) {
            return None;
        }
        if let (Message::Request(request), Some((ticket, sent))) = (&mut message, released) {
            let Some(left) = self.records.time_left(ticket, self.now()) else {
                self.records.dropped(ticket, sent);
                self.ready.extend(job);
                return None;
            };
            request.deadline = Some(left);
        }
        let key = match &message {
            Message::Response(response) => Some((response.call, response.request, response.index)),
            _ => None,
        };
        let request = match &message {
            Message::Request(request) => Some(request.id),
            _ => None,
        };
        let flight = self.flight(socket);
        let sending = oracle::sending(&message);
        let (now, asks) = (self.raw, !context.is(Broken::NoQuestion));
        let peer = self.peers.get_mut(&socket)?;
        let refused = match message {
            Message::Request(mut request) => {
                let refused = peer.wire.send(&mut self.gate, |carrier| {
                    if asks && !carrier.confirm(now) {
                        return Err(Refusal::Blocked);
                    }
                    carrier.send_request(&mut request, &self.method, || now)
                });
                refused.map_err(|refusal| (refusal, Message::Request(request)))
            }
            Message::Response(response) => {
                let (response, counted) = addressed(response, &to, socket, peer.node);
                let refused = peer.wire.send(&mut self.gate, |carrier| {
                    carrier.send_response(&response, counted)
                });
                refused.map_err(|refusal| (refusal, Message::Response(response)))
            }
            mut message => {
                let direct = is_direct(&to, socket, peer.node, message.call().initiator);
                match &mut message {
                    Message::End(end) if direct => end.token = None,
                    Message::Pong(pong) if direct && pong.announced => {
                        pong.token = pong.token.map(|token| token.vouch(pong.call, self.id));
                    }
                    Message::Pong(pong) if direct => pong.token = None,
                    _ => {}
                }
                let sent = peer.wire.send(&mut self.gate, |carrier| {
                    carrier.send_control(message.clone())
                });
                sent.map_err(|refusal| (refusal, message))
            }
        };
        let (refusal, message) = match refused {
            Ok(mark) => {
                note!(context, self.index, "has sent it on {socket:?}");
                if let Some(flight) = flight {
                    context.oracle.sent(context.queue.now(), sending, flight);
                }
                if let (Some(message @ Message::Request(_)), Destination::Server(_)) = (kept, &to) {
                    peer.sent.push(Parcel {
                        message,
                        to: to.clone(),
                        job: None,
                        released: None,
                        waits: 0,
                    });
                }
                if let (call, Some(item)) = sending
                    && (root.is_some() || released.is_some())
                {
                    peer.leaving.add(mark, call, item);
                    context.oracle.leaves(call, item);
                }
                if let Some((sequence, request)) = root {
                    self.root_sent(sequence, (request, socket, mark));
                }
                if let Some(passage) = key.and_then(|key| self.passages.remove(&key)) {
                    let session = session(socket);
                    self.records
                        .passed_on(passage, Some(Output { session, mark }));
                }
                if let Some((ticket, sent)) = released {
                    if let (Sent::Delegation, Some(request), Some((_, node, _))) =
                        (sent, request, flight)
                    {
                        self.records.delegation_taken(ticket, request, node);
                    }
                    self.records.placed(
                        ticket,
                        sent,
                        Output {
                            session: session(socket),
                            mark,
                        },
                    );
                }
                self.ready.extend(job);
                return None;
            }
            Err(refused) => refused,
        };
        let parcel = Parcel {
            message,
            to,
            job,
            released,
            waits,
        };
        note!(
            context,
            self.index,
            "cannot send {} on {socket:?}: {refusal}",
            super::Short(&parcel.message)
        );
        match refusal {
            Refusal::Blocked | Refusal::NotOpen => Some(parcel),
            Refusal::TooLarge { .. } | Refusal::NoMethodNumber | Refusal::NoBodies => {
                self.too_large(socket, parcel, context)
            }
        }
    }

    /// A message is longer than the peer takes: a status goes in its place.
    fn too_large(
        &mut self,
        socket: Socket,
        parcel: Parcel,
        context: &mut Context<'_>,
    ) -> Option<Parcel> {
        if let (Destination::Over(_), Some((ticket, Sent::Response(index)))) =
            (&parcel.to, parcel.released)
        {
            // It is sent again: the first one may still arrive, on a connection that takes it.
            self.records.too_large(ticket, index);
            return None;
        }
        let status = Status::new(Code::ResourceExhausted, "too large for its receiver");
        match parcel.message {
            Message::Request(_) => {
                self.undelivered(parcel, Code::ResourceExhausted, context);
                None
            }
            Message::Response(response) => {
                let response = Response {
                    status: true,
                    payload: status.to_payload(),
                    ..response
                };
                context.oracle.says(&response);
                // Another execution may go a way that takes the answer.
                context.oracle.reruns.status(response.call);
                if let Some((ticket, _)) = parcel.released {
                    self.records.response_replaced(ticket, &response);
                }
                self.attempt(
                    socket,
                    Parcel {
                        message: Message::Response(response),
                        ..parcel
                    },
                    context,
                )
            }
            _ => None,
        }
    }

    pub(super) fn accepted(&mut self, parcel: &Parcel) {
        self.ready.extend(parcel.job);
    }

    /// Writes what the connection has.
    fn flush(&mut self, socket: Socket, context: &mut Context<'_>) {
        while let Some(stream) = self.stream(socket).filter(|stream| stream.connected) {
            let output = stream.connection.output();
            let len = output.len();
            if len == 0 {
                return;
            }
            let Context {
                network,
                queue,
                coverage,
                ..
            } = context;
            let taken = network.write(socket, output, queue, coverage);
            stream.connection.advance(taken);
            self.note_written(socket, context);
            if taken < len {
                return;
            }
        }
    }

    /// Tells the records what has been written, or acknowledged.
    pub(super) fn note_written(&mut self, socket: Socket, context: &mut Context<'_>) {
        let Some(peer) = self.peers.get_mut(&socket) else {
            return;
        };
        let Some((written, confirmed)) = peer.wire.progress(&self.gate) else {
            return;
        };
        let now = context.queue.now();
        for (call, item) in peer.leaving.up_to(written, confirmed.unwrap_or(written)) {
            context.oracle.left(now, call, item);
        }
        let written = match confirmed {
            Some(confirmed) if context.is(Broken::UnacknowledgedExcuses) => confirmed,
            _ => written,
        };
        peer.reached = written;
        self.records.written(session(socket), written);
        if let Some(confirmed) = confirmed {
            self.records.confirmed(session(socket), confirmed);
        }
    }

    /// A session is there that somebody else opened.
    pub(super) fn accept_session(&mut self, id: SessionId, context: &mut Context<'_>) -> Socket {
        let link = context.network.session();
        let socket = Socket {
            link,
            side: Side::Acceptor,
        };
        self.peers
            .insert(socket, Peer::new(Wire::Session(id), None));
        self.sessions.insert(id, socket);
        socket
    }

    /// A session has ended.
    pub(super) fn handle_session_end(
        &mut self,
        socket: Socket,
        cause: &Cause,
        context: &mut Context<'_>,
    ) {
        note!(context, self.index, "loses session {socket:?}: {cause}");
        let server = self
            .peers
            .get(&socket)
            .and_then(|peer| Some(peer.wanted?.0));
        context.hit(match cause {
            Cause::Closed(_) => Point::SessionClosed,
            Cause::NoAnswer(_) => Point::SessionNoAnswer,
            Cause::Unreachable => Point::SessionUnreachable,
            // What came was too little, for as long as silence may last.
            Cause::Silent { .. } | Cause::Broken(_) => Point::SessionSilent,
            Cause::Forgotten(_) => Point::SessionForgotten,
            Cause::Restarted { .. } => Point::SessionRestarted,
            Cause::Handshake(_) => Point::SessionWrongLife,
        });
        match cause {
            Cause::Restarted { now, .. } => {
                if let Some(server) = server {
                    self.found_at(server, Some(*now), context);
                }
            }
            Cause::Handshake(ConnectionError::WrongNode { .. }) => {} // told below
            Cause::Broken(ConnectionError::Stalled { .. }) => {}
            Cause::Handshake(error) | Cause::Broken(error) => {
                context.violate(Rule::FalseAccusation, format!("n{}: {error}", self.index));
            }
            _ => {}
        }
        let why = match cause {
            Cause::Unreachable => Failed::Refused,
            Cause::Handshake(ConnectionError::WrongNode { found, .. }) => Failed::WrongLife(*found),
            _ => Failed::Ended,
        };
        self.remove_peer(socket, why, context);
    }

    /// Whether this node lets itself be dialled.
    pub(crate) fn listens(&self) -> bool {
        self.plan.reach == Reach::Open
    }
}

/// What records call a connection.
pub(super) fn session(Socket { link, side }: Socket) -> Session {
    Session(u64::from(link.0) << 1 | side as u64)
}

/// The connection that records call so.
pub(super) fn socket(Session(number): Session) -> Socket {
    let side = if number & 1 == 0 {
        Side::Dialler
    } else {
        Side::Acceptor
    };
    Socket {
        link: LinkId((number >> 1) as u32),
        side,
    }
}

/// Whether a message goes back over the connection that its request came on.
fn is_direct(to: &Destination, socket: Socket, peer: Option<NodeId>, initiator: NodeId) -> bool {
    matches!(to, Destination::Initiator { came, .. } if *came == socket) && peer == Some(initiator)
}

/// A response as it must be on this connection, and whether it is counted there.
fn addressed(
    mut response: Response,
    to: &Destination,
    socket: Socket,
    peer: Option<NodeId>,
) -> (Response, bool) {
    let direct = is_direct(to, socket, peer, response.call.initiator);
    if direct {
        response.token = None;
    }
    let small = matches!(to, Destination::Initiator { small: true, .. });
    (response, !(direct && small))
}
