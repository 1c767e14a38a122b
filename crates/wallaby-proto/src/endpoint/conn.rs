//! One connection: what is known of its other end, messages that wait for it, and the table of all.

use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasherDefault;
use std::sync::Arc;
use std::time::Duration;

use super::answer_queues::AnswerQueues;
use super::bodies::{Followed, OutBody};
use super::event::{Lane, RequestKey};
use super::handler_table::Waiting;
use super::methods::{Meant, RefusedMethod};
use super::relaying::Relayed;
use crate::call::records::{RelayId, ReleasedMessage, Ticket};
use crate::call::shares::Share;
use crate::call::watch::Location;
use crate::carrier::Carrier;
use crate::connection::{Hello, Mark, MethodDefinition, Usefulness};
use crate::datagram::{IdHasher, SessionId};
use crate::detach::detach;
use crate::numbers::MESSAGE_COST;
use crate::slot_map::SlotMap;
use crate::wire::{Message, Ping, Request, Response};
use crate::{Address, CallId, ConnId, NodeId, RequestId, Token};

use super::sockets::{SocketId, Sockets};
use super::streams::{MarkOwner, Stream};

/// The credit of calls that are over is forgotten for so many at a time.
const WORTH_FORGETTING: u64 = 64;

/// Connections.
#[derive(Debug, Default)]
pub(super) struct Conns {
    conns: SlotMap<Box<Conn>>,
    sessions: HashMap<(SocketId, SessionId), ConnId, BuildHasherDefault<IdHasher>>,
    streams: usize,
}

impl Conns {
    pub(super) fn insert(&mut self, conn: Conn) -> ConnId {
        let session = conn.link.session();
        let id = ConnId::new(self.conns.insert(Box::new(conn)));
        match session {
            Some(session) => drop(self.sessions.insert(session, id)),
            None => self.streams += 1,
        }
        id
    }

    /// A connection goes over something else from now on.
    pub(super) fn change(&mut self, id: ConnId, link: Link) {
        let Some(conn) = self.get_mut(id) else { return };
        let now = link.session();
        let before = std::mem::replace(&mut conn.link, link);
        self.streams -= usize::from(before.session().is_none());
        if let Some(session) = now {
            self.sessions.insert(session, id);
        }
    }

    pub(super) fn remove(&mut self, id: ConnId) -> Option<Box<Conn>> {
        let conn = self.conns.remove(id.key())?;
        match conn.link.session() {
            Some(session) => drop(self.sessions.remove(&session)),
            None => self.streams -= 1,
        }
        Some(conn)
    }

    #[inline]
    pub(super) fn get(&self, id: ConnId) -> Option<&Conn> {
        self.conns.get(id.key()).map(|conn| &**conn)
    }

    #[inline]
    pub(super) fn get_mut(&mut self, id: ConnId) -> Option<&mut Conn> {
        self.conns.get_mut(id.key()).map(|conn| &mut **conn)
    }

    pub(super) fn contains(&self, id: ConnId) -> bool {
        self.get(id).is_some()
    }

    /// The connection over a session.
    pub(super) fn over(&self, session: (SocketId, SessionId)) -> Option<ConnId> {
        self.sessions.get(&session).copied()
    }

    pub(super) fn len(&self) -> usize {
        self.conns.len()
    }

    /// How many of them are streams.
    pub(super) fn streams(&self) -> usize {
        self.streams
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (ConnId, &Conn)> {
        self.conns
            .iter()
            .map(|(key, conn)| (ConnId::new(key), &**conn))
    }

    pub(super) fn ids(&self) -> Vec<ConnId> {
        self.iter().map(|(id, _)| id).collect()
    }
}

/// By what a connection's messages go.
#[derive(Debug)]
pub(super) enum Link {
    Session(SocketId, SessionId),
    Stream(Box<Stream>),
}

impl Link {
    fn session(&self) -> Option<(SocketId, SessionId)> {
        match self {
            Self::Session(socket, session) => Some((*socket, *session)),
            Self::Stream(_) => None,
        }
    }

    /// What carries the messages, only to ask it.
    pub(super) fn peek<'a>(&'a self, sockets: &'a Sockets) -> Option<&'a dyn Carrier> {
        match self {
            Self::Session(socket, session) => Some(sockets.peek(*socket, *session)?),
            Self::Stream(stream) => Some(&stream.connection),
        }
    }
}

/// A connection, and what is known of its other end.
#[derive(Debug)]
pub(super) struct Conn {
    pub(super) link: Link,
    /// Where it is; nobody knows it of a stream that came in.
    pub(super) at: Option<Address>,
    /// For whom, if it was dialled.
    pub(super) dialled: Option<DialledFor>,
    /// When it is given up if it is not open, or has not told its last words.
    pub(super) until: Option<Duration>,
    /// Who is there, once it is open.
    pub(super) peer: Option<Peer>,
    /// When it was used last.
    pub(super) used: u64,
    /// It has brought a request, or was dialled or taken to send one.
    pub(super) useful: bool,
    /// It has carried something of a call of this endpoint, or something may still come over it from a node that is gone.
    pub(super) carried_calls: bool,
    /// Calls and requests that need it.
    pub(super) busy: u32,
    /// The credit of its calls before this one was forgotten last.
    pub(super) over: Option<CallId>,
    /// What its method numbers mean here.
    pub(super) methods: Vec<Result<Meant, RefusedMethod>>,
    pub(super) queues: Option<Box<Queues>>,
    /// Bodies that are read or written over it.
    pub(super) followed: Option<Box<Followed>>,
}

/// For whom a connection was dialled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DialledFor {
    /// Whoever is there.
    Anybody,
    /// This initiator, to which an answer goes back.
    Incarnation(NodeId),
    /// The same initiator. The dial takes longer than answers wait, so they have gone another way.
    Late(NodeId),
}

impl DialledFor {
    pub(super) fn new(expected: Option<NodeId>) -> Self {
        expected.map_or(Self::Anybody, Self::Incarnation)
    }

    /// Who must be there.
    pub(super) fn expected(self) -> Option<NodeId> {
        match self {
            Self::Anybody => None,
            Self::Incarnation(node) | Self::Late(node) => Some(node),
        }
    }
}

/// Who has shown to be at the other end of a connection.
#[derive(Debug)]
pub(super) struct Peer {
    /// As its hello says: here it is at hand.
    node: NodeId,
    hello: Arc<Hello>,
}

impl Peer {
    pub(super) fn new(hello: &Arc<Hello>) -> Self {
        let (node, hello) = (hello.node, Arc::clone(hello));
        Self { node, hello }
    }
}

/// Messages that wait for the handshake, for credit, or for room.
#[derive(Debug, Default)]
pub(super) struct Queues {
    pub(super) controls: VecDeque<Parcel>,
    pub(super) requests: VecDeque<Parcel>,
    /// Requests that bodies are to follow: they may wait for others' bodies to end, which holds up nobody else.
    pub(super) followed: VecDeque<Parcel>,
    pub(super) answers: AnswerQueues,
}

/// What a message takes while it waits.
#[derive(Debug, Default)]
pub(super) struct Room {
    /// Of the room for requests.
    pub(super) requests: usize,
    /// Of the room for answers, and who has it.
    pub(super) answers: Option<(Share, usize)>,
    /// What it belongs to, if it is relayed for another server: that has room of its own.
    pub(super) relayed: Option<(CallId, Token)>,
    /// The request whose message waits.
    pub(super) of: Option<Waiting>,
}

/// A message on its way out.
#[derive(Debug)]
pub(super) struct Parcel {
    pub(super) cargo: Cargo,
    /// How many ways it was sent in vain.
    pub(super) moves: u8,
    /// What it takes while it waits for a connection.
    pub(super) room: Room,
}

/// What a parcel brings, with what goes only with messages of its kind.
#[derive(Debug)]
pub(super) enum Cargo {
    /// A request for a server.
    Request(OutRequest),
    /// A question about a request.
    Ping(Ping, Asks),
    /// What goes to an initiator from who handles its request, or stands in for that one.
    Answer(OutAnswer),
    /// An answer that is sent again, over this connection as long as that is open: what its record calls it.
    Again(Response, ConnId, (Ticket, ReleasedMessage)),
    /// The status of a request that has no record, over the connection that this came over. Its initiator is told of it.
    Refusal(Response, ConnId, RelayId),
    /// An answer of another server. Its initiator is told of it, if there was room to remember that.
    Relay(Response, Box<Relayed>, Option<RelayId>),
}

/// A request on its way to its server.
#[derive(Debug)]
pub(super) struct OutRequest {
    pub(super) request: Request,
    pub(super) server: Address,
    pub(super) method: Arc<MethodDefinition>,
    /// What is to follow it.
    pub(super) body: Option<OutBody>,
    /// If a request here has delegated it; others are the application's.
    pub(super) delegated: Option<Delegation>,
    /// What handles it here if it does not get there.
    pub(super) unless_sent: Option<Arc<MethodDefinition>>,
}

/// By whom a request was delegated.
#[derive(Debug, Clone, Copy)]
pub(super) struct Delegation {
    pub(super) by: RequestKey,
    /// What the records call that one.
    pub(super) ticket: Ticket,
    pub(super) times: Times,
}

/// What a delegated request says of the time when it is sent, at last.
#[derive(Debug, Clone, Copy)]
pub(super) struct Times {
    /// When its call began, as far as known.
    pub(super) born: Duration,
    /// When its time is over.
    pub(super) until: Duration,
    /// The delegation has an earlier deadline than the request that made it.
    pub(super) own: bool,
}

/// An answer, an end or an announcement on its way to the initiator.
#[derive(Debug)]
pub(super) struct OutAnswer {
    pub(super) message: Message,
    /// Where the initiator says that it is reached.
    pub(super) address: Option<Address>,
    /// The connection that the request came over, if that is known, and whether it was the initiator's own.
    pub(super) came: Option<ConnId>,
    pub(super) own: bool,
    /// It is the one small answer of its branch.
    pub(super) small: bool,
    /// The initiator's oldest live call.
    pub(super) oldest: u64,
    /// Who is told where it stands.
    pub(super) owner: Option<MarkOwner>,
    /// The request whose handler has sent it.
    pub(super) by: Option<RequestKey>,
}

/// Who is asked a question.
#[derive(Debug)]
pub(super) enum Asks {
    /// The other end of a connection, as long as that is open.
    Over(ConnId),
    /// An incarnation by an open connection, or whoever is at the address.
    At(Asked),
}

/// Who is asked about a request.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) to: Location,
    /// That incarnation was found there before.
    pub(super) met: bool,
    /// The connection that the ping of another initiator came over, if the request that it asks about was handed on from here.
    pub(super) relayed_from: Option<ConnId>,
}

impl Conn {
    pub(super) fn usefulness(&self) -> Usefulness {
        Usefulness {
            ever: self.useful,
            last: self.used,
        }
    }

    pub(super) fn new(link: Link, at: Option<Address>, dialled: Option<DialledFor>) -> Self {
        Self {
            link,
            at,
            dialled,
            until: None,
            peer: None,
            used: 0,
            useful: false,
            carried_calls: false,
            busy: 0,
            over: None,
            methods: Vec::new(),
            queues: None,
            followed: None,
        }
    }

    pub(super) fn stream(&self) -> Option<&Stream> {
        match &self.link {
            Link::Stream(stream) => Some(stream),
            Link::Session(..) => None,
        }
    }

    pub(super) fn stream_mut(&mut self) -> Option<&mut Stream> {
        match &mut self.link {
            Link::Stream(stream) => Some(stream),
            Link::Session(..) => None,
        }
    }

    /// Where it is, for messages.
    pub(super) fn server(&self) -> Option<Address> {
        let told = || self.hello()?.address.clone();
        self.at.clone().or_else(told)
    }

    /// Whether a message that stands there has not left this endpoint yet.
    pub(super) fn is_writing(&self, sockets: &Sockets, mark: Mark) -> bool {
        match (self.link.peek(sockets), mark) {
            (Some(carrier), Mark::Written(mark)) => !carrier.has_left(mark),
            (Some(_), Mark::Parts(_)) => true,
            (None, _) => false,
        }
    }

    /// Whether it is being opened still, and nothing waits for it.
    pub(super) fn is_late(&self) -> bool {
        !self.is_open() && matches!(self.dialled, Some(DialledFor::Late(_)))
    }

    /// Whether the handshake is done.
    pub(super) fn is_open(&self) -> bool {
        self.peer.is_some()
    }

    pub(super) fn node(&self) -> Option<NodeId> {
        self.peer.as_ref().map(|peer| peer.node)
    }

    pub(super) fn hello(&self) -> Option<&Arc<Hello>> {
        self.peer.as_ref().map(|peer| &peer.hello)
    }

    /// Whether so many more calls are over that it is worth the while to forget their credit.
    pub(super) fn is_news(&self, over: CallId) -> bool {
        self.over.is_none_or(|last| {
            let more = over.sequence.checked_sub(last.sequence);
            last.initiator != over.initiator || more.is_none_or(|more| more >= WORTH_FORGETTING)
        })
    }

    pub(super) fn queues(&mut self) -> &mut Queues {
        self.queues.get_or_insert_default()
    }

    /// Whether anything waits.
    pub(super) fn holds_messages(&self) -> bool {
        self.queues.is_some()
    }

    /// Whether requests wait, with bodies or without.
    pub(super) fn holds_requests(&self, followed: bool) -> bool {
        let queues = self.queues.as_ref();
        queues.is_some_and(|queues| match followed {
            true => !queues.followed.is_empty(),
            false => !queues.requests.is_empty(),
        })
    }

    /// Whether answers of this call wait that show this token.
    pub(super) fn holds_answers(&self, call: (CallId, Option<Token>)) -> bool {
        let queues = self.queues.as_ref();
        queues.is_some_and(|queues| queues.answers.contains(&call))
    }
}

impl Queues {
    pub(super) fn is_empty(&self) -> bool {
        let requests = self.requests.is_empty() && self.followed.is_empty();
        self.controls.is_empty() && requests && self.answers.is_empty()
    }

    pub(super) fn push(&mut self, mut parcel: Parcel) {
        parcel.detach();
        match &parcel.cargo {
            Cargo::Request(out) if out.body.is_some() => self.followed.push_back(parcel),
            Cargo::Request(_) => self.requests.push_back(parcel),
            cargo => match cargo.response() {
                Some(response) => self.answers.push((response.call, response.token), parcel),
                None => self.controls.push_back(parcel),
            },
        }
    }

    pub(super) fn all(self) -> impl Iterator<Item = Parcel> {
        let others = self.controls.into_iter().chain(self.requests);
        others.chain(self.followed).chain(self.answers.all())
    }
}

impl Parcel {
    pub(super) fn new(cargo: Cargo) -> Self {
        Self {
            cargo,
            moves: 0,
            room: Room::default(),
        }
    }

    pub(super) fn call(&self) -> CallId {
        match &self.cargo {
            Cargo::Request(out) => out.request.call,
            Cargo::Ping(ping, _) => ping.call,
            Cargo::Answer(out) => out.message.call(),
            Cargo::Again(response, ..)
            | Cargo::Refusal(response, ..)
            | Cargo::Relay(response, ..) => response.call,
        }
    }

    /// The token of the call, if the message shows it.
    pub(super) fn token(&self) -> Option<Token> {
        match &self.cargo {
            Cargo::Request(out) => Some(out.request.token),
            Cargo::Ping(ping, _) => Some(ping.token),
            Cargo::Answer(out) => out.message.token(),
            Cargo::Again(response, ..)
            | Cargo::Refusal(response, ..)
            | Cargo::Relay(response, ..) => response.token,
        }
    }

    /// The request that sent it, and in which direction.
    pub(super) fn of(&self) -> Option<(RequestKey, Lane)> {
        match &self.cargo {
            Cargo::Request(out) => Some((out.delegated?.by, Lane::Requests)),
            Cargo::Answer(out) => Some((out.by?, Lane::Answers)),
            _ => None,
        }
    }

    /// Who is told where it stands: of initial requests, and of what is said again if it is lost, nobody.
    pub(super) fn owner(&self) -> Option<MarkOwner> {
        match &self.cargo {
            Cargo::Request(out) => {
                let ticket = out.delegated?.ticket;
                Some(MarkOwner::Released(ticket, ReleasedMessage::Delegation))
            }
            Cargo::Ping(..) => None,
            Cargo::Answer(out) => out.owner,
            Cargo::Again(_, _, (ticket, sent)) => Some(MarkOwner::Released(*ticket, *sent)),
            Cargo::Refusal(_, _, told) => Some(MarkOwner::Relay(*told)),
            Cargo::Relay(_, _, told) => told.map(MarkOwner::Relay),
        }
    }

    /// What is to follow it.
    pub(super) fn body(&self) -> Option<OutBody> {
        match &self.cargo {
            Cargo::Request(out) => out.body,
            _ => None,
        }
    }

    /// It may be kept for long: it holds on to nothing that it arrived with. Initial requests are the application's, and did not
    /// arrive.
    pub(super) fn detach(&mut self) {
        match &mut self.cargo {
            Cargo::Request(out) if out.delegated.is_some() => detach(&mut out.request.payload),
            Cargo::Request(_) | Cargo::Ping(..) => {}
            Cargo::Answer(out) => out.message.detach(),
            Cargo::Again(response, ..)
            | Cargo::Refusal(response, ..)
            | Cargo::Relay(response, ..) => detach(&mut response.payload),
        }
    }

    /// How long its payload is, in bytes.
    pub(super) fn payload(&self) -> usize {
        match &self.cargo {
            Cargo::Request(out) => out.request.payload.len(),
            cargo => cargo
                .response()
                .map_or(0, |response| response.payload.len()),
        }
    }

    /// What it costs while it waits, in bytes.
    pub(super) fn cost(&self) -> usize {
        self.payload() + MESSAGE_COST as usize
    }

    /// The message, for who looks on.
    pub(super) fn message(&self) -> Message {
        match &self.cargo {
            Cargo::Request(out) => Message::Request(out.request.clone()),
            Cargo::Ping(ping, _) => Message::Ping(ping.clone()),
            Cargo::Answer(out) => out.message.clone(),
            Cargo::Again(response, ..)
            | Cargo::Refusal(response, ..)
            | Cargo::Relay(response, ..) => Message::Response(response.clone()),
        }
    }
}

impl OutAnswer {
    /// Whether it is a status, or no answer at all.
    pub(super) fn is_no_value(&self) -> bool {
        !matches!(&self.message, Message::Response(response) if !response.status)
    }
}

impl Cargo {
    /// The request that it answers, if it is a response or an end.
    pub(super) fn answered(&self) -> Option<RequestId> {
        match self {
            Self::Answer(OutAnswer {
                message: Message::End(end),
                ..
            }) => Some(end.request),
            cargo => cargo.response().map(|response| response.request),
        }
    }

    /// The answer that it is, if it is one.
    pub(super) fn response(&self) -> Option<&Response> {
        match self {
            Self::Answer(out) => match &out.message {
                Message::Response(response) => Some(response),
                _ => None,
            },
            Self::Again(response, ..) | Self::Refusal(response, ..) | Self::Relay(response, ..) => {
                Some(response)
            }
            Self::Request(_) | Self::Ping(..) => None,
        }
    }
}
