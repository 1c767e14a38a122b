//! One endpoint among peers that speak the protocol and may say anything.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use wallaby_proto::carrier::Carrier;
use wallaby_proto::connection::{
    Charge, Connection, ConnectionError, ConnectionLimits, Event, Hello, KeepAliveSettings,
    MethodDefinition, StrangerLimits,
};
use wallaby_proto::endpoint::{
    Config, ConnId, Endpoint, InputOutcome, Output, Schemes, Seeds, Serving, StreamEnd,
};
use wallaby_proto::error::ConnectError;
use wallaby_proto::wire::{Message, ReplyTo};
use wallaby_proto::{Address, NodeId};

use crate::choices::Choices;
use crate::things::{SECRET, address, hello, method, node};

/// No stream, and no call, ends sooner by itself.
pub(crate) const LONG: Duration = Duration::from_secs(86_400);

/// More than this is not done at once.
const MOST_TURNS: usize = 1000;

/// An endpoint, the other ends of its streams, and what came there.
pub(crate) struct Alone {
    pub(crate) endpoint: Endpoint,
    pub(crate) method: Arc<MethodDefinition>,
    pub(crate) now: Duration,
    peers: BTreeMap<ConnId, Peer>,
    /// Who is found at an address that the endpoint dials; nobody, if it is not here.
    pub(crate) found: BTreeMap<Address, NodeId>,
    /// Messages that peers got, and over which connection.
    pub(crate) heard: Vec<(ConnId, Message)>,
}

/// The other end of a stream.
struct Peer {
    node: NodeId,
    connection: Connection,
    input: BytesMut,
}

impl Alone {
    pub(crate) fn new(me: NodeId, config: Config) -> Self {
        let config = Config {
            schemes: Schemes::new(["mem"]),
            keep_alive: KeepAliveSettings {
                period: LONG,
                timeout: LONG,
            },
            strangers: StrangerLimits {
                time: LONG,
                ..StrangerLimits::default()
            },
            ..config
        };
        let seeds = Seeds {
            tokens: SECRET,
            cookies: SECRET,
        };
        let method = Arc::new(method(0));
        let mut endpoint = Endpoint::new(config, me, Some(address(9)), seeds);
        let served = endpoint.serve(Arc::clone(&method), Serving::default());
        assert_eq!(served, Ok(0));
        Self {
            endpoint,
            method,
            now: Duration::ZERO,
            peers: BTreeMap::new(),
            found: (0..3)
                .map(|number| (address(number), node(u64::from(number))))
                .collect(),
            heard: Vec::new(),
        }
    }

    /// Somebody who says that it is this node connects.
    pub(crate) fn connect(&mut self, node: NodeId) -> ConnId {
        let conn = self.endpoint.handle_accepted();
        let connection = Connection::dial(own_hello(node), None);
        self.add(conn, node, connection);
        conn
    }

    fn add(&mut self, conn: ConnId, node: NodeId, connection: Connection) {
        let input = BytesMut::new();
        self.peers.insert(
            conn,
            Peer {
                node,
                connection,
                input,
            },
        );
    }

    /// One of the connections, but not this one.
    pub(crate) fn any_peer(
        &self,
        choices: &mut Choices<'_>,
        but: Option<ConnId>,
    ) -> Option<ConnId> {
        let peers: Vec<ConnId> = self.peers.keys().copied().collect();
        any(&peers, choices).filter(|conn| Some(*conn) != but)
    }

    /// All streams end.
    pub(crate) fn cut_all(&mut self) {
        let conns: Vec<ConnId> = self.peers.keys().copied().collect();
        conns.into_iter().for_each(|conn| self.cut(conn));
    }

    /// The peer at the other end says something, if its connection takes it.
    pub(crate) fn say(&mut self, conn: ConnId, message: Message) {
        let Some(peer) = self.peers.get_mut(&conn) else {
            return;
        };
        let connection = &mut peer.connection;
        let said = match message {
            Message::Request(mut request) => {
                // Only an initiator can say that it is the one to be answered.
                if request.reply_to == ReplyTo::Peer && request.call.initiator != peer.node {
                    request.reply_to = ReplyTo::Relay;
                }
                connection.send_request(&mut request, &self.method)
            }
            Message::Response(response) => connection.send_response(&response, Charge::Counted),
            control => connection.send_control(control),
        };
        drop(said.map_err(|refusal| refusal.to_string()));
    }

    /// A stream ends, for both.
    pub(crate) fn cut(&mut self, conn: ConnId) {
        if self.peers.remove(&conn).is_some() {
            let rest = &mut BytesMut::new();
            self.endpoint.handle_ended(conn, rest, StreamEnd::Closed);
        }
    }

    /// Time goes on; what is due is done.
    pub(crate) fn pass(&mut self, time: Duration) {
        self.now += time;
        self.endpoint.set_time(self.now);
        for peer in self.peers.values_mut() {
            peer.connection.set_time(self.now);
        }
        self.endpoint.handle_timeout();
    }

    /// Carries all that was said, each way. What the application is told is returned.
    pub(crate) fn settle(&mut self) -> Vec<Output> {
        let mut told = Vec::new();
        for _ in 0..MOST_TURNS {
            let mut some = self.carry();
            while let Some(output) = self.endpoint.poll_output() {
                some = true;
                match output {
                    Output::Write(conn) => self.write(conn),
                    Output::Dial(conn, to) => self.dial(conn, &to),
                    Output::Close(conn, _) => drop(self.peers.remove(&conn)),
                    output => told.push(output),
                }
            }
            if !some {
                return told;
            }
        }
        panic!("they say more and more");
    }

    fn dial(&mut self, conn: ConnId, to: &Address) {
        match self.found.get(to).copied() {
            Some(node) => self.add(conn, node, Connection::accept(own_hello(node))),
            None => {
                let (server, reason) = (to.clone(), "nobody is there".to_owned());
                let refused = ConnectError::Refused { server, reason };
                self.endpoint.handle_dial_failed(conn, refused);
            }
        }
    }

    fn write(&mut self, conn: ConnId) {
        loop {
            let output = self.endpoint.output(conn);
            let written = output.len();
            if written == 0 {
                break;
            }
            if let Some(peer) = self.peers.get_mut(&conn) {
                peer.input.extend_from_slice(output);
            }
            self.endpoint.advance(conn, written);
        }
        self.endpoint.handle_written(conn);
    }

    /// Lets peers read what was written, and the endpoint what they say; whether there was anything.
    fn carry(&mut self) -> bool {
        let mut some = false;
        let conns: Vec<ConnId> = self.peers.keys().copied().collect();
        for conn in conns {
            let Some(peer) = self.peers.get_mut(&conn) else {
                continue;
            };
            let is_meant = loop {
                match peer.connection.handle_input(&mut peer.input) {
                    Ok(Some(event)) => peer.take(event, conn, &mut self.heard),
                    Ok(None) => break true,
                    Err(ConnectionError::WrongNode { .. }) => break false,
                    Err(error) => panic!("an endpoint says what is not the protocol: {error}"),
                }
            };
            let mut said = BytesMut::from(peer.connection.output());
            peer.connection.advance(said.len());
            some |= !said.is_empty();
            while !said.is_empty()
                && self.endpoint.handle_input(conn, &mut said) == InputOutcome::More
            {}
            if !is_meant {
                self.cut(conn);
            }
        }
        some
    }
}

impl Peer {
    /// It keeps what is said to it, and grants the credit at once.
    fn take(&mut self, event: Event, conn: ConnId, heard: &mut Vec<(ConnId, Message)>) {
        let Event::Message(message) = event else {
            return;
        };
        match &message {
            Message::Request(request) => self.connection.grant_request(request.payload.len()),
            Message::Response(response) => {
                let size = response.payload.len() as u64;
                self.connection.grant_call(response.call, 1, size);
            }
            _ => {}
        }
        heard.push((conn, message));
    }
}

/// One of these.
pub(crate) fn any<T: Copy>(all: &[T], choices: &mut Choices<'_>) -> Option<T> {
    let place = choices.byte() as usize;
    (!all.is_empty()).then(|| all[place % all.len()])
}

fn own_hello(node: NodeId) -> Arc<Hello> {
    Arc::new(hello(node, ConnectionLimits::default()))
}
