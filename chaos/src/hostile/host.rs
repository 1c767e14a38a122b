//! A server that lies: honest clients call it, and honest servers hand work on to it.

use anyhow::{Context, Result};
use bytes::{Bytes, BytesMut};
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, UdpSocket, UnixListener};
use tokio::time::timeout;
use wallaby::{Address, NodeId, Path as Place, RequestId};
use wallaby_bench::random::Random;
use wallaby_proto::wire::{
    Child, End, LinkEnds, MAX_CHILDREN, Message, Ping, Pong, Progress, ReplyTo, Request, Response,
};
use wallaby_proto::{Facts, Manifest};

use super::datagrams::{self, Arrived, Session};
use super::ground::{self, Ground};
use super::line::Stream;
use super::wire::{self, Frame, kind};

/// Calls whose manner is remembered, of each connection; older ones are treated as they come.
const MOST_CALLS: usize = 256;

/// Sessions that are remembered; whoever has one more of them finds a server that has forgotten all.
const MOST_SESSIONS: usize = 4096;

/// How long a connection takes no more until it is given up.
const PATIENCE: Duration = Duration::from_secs(2);

/// What is done to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Manner {
    /// Answers beyond the call's window.
    Overdraw,
    /// Silence, and children without end whenever it is asked.
    Children,
    /// A chain of children, each below the one before.
    Chain,
    /// An answer that does not become whole.
    Trickle,
    /// Facts and manifests that cannot be.
    Lie,
    /// Word of progress that nobody asked for.
    Announce,
    /// Bytes that are no message.
    Garbage,
    /// Nothing but signs of life.
    Hang,
}

impl Manner {
    const ALL: [Self; 8] = [
        Self::Overdraw,
        Self::Children,
        Self::Chain,
        Self::Trickle,
        Self::Lie,
        Self::Announce,
        Self::Garbage,
        Self::Hang,
    ];

    /// Its name, and what it is.
    fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::Overdraw => (
                "answers-overdrawn",
                "answers beyond the window of their call",
            ),
            Self::Children => (
                "children-invented",
                "256 children in each pong, and as many of each",
            ),
            Self::Chain => (
                "chains-invented",
                "one child in each pong, and so on below it",
            ),
            Self::Trickle => (
                "answers-unfinished",
                "a large answer that does not become whole",
            ),
            Self::Lie => ("facts-invented", "manifests of what nobody sent"),
            Self::Announce => ("announcements", "200 pongs that nobody asked for"),
            Self::Garbage => ("answers-garbage", "bytes that are no message"),
            Self::Hang => ("answers-withheld", "nothing but signs of life"),
        }
    }
}

/// What it does: names, and what they stand for.
pub(crate) fn manners() -> impl Iterator<Item = (&'static str, &'static str)> {
    Manner::ALL.into_iter().map(Manner::words)
}

/// What the server does on one connection.
struct Host {
    ground: Arc<Ground>,
    own: Address,
    manners: Arc<Vec<Manner>>,
    random: Random,
    calls: HashMap<wallaby::CallId, Manner>,
    streams: u64,
    is_udp: bool,
}

/// Accepts whoever comes, until it is dropped.
pub(crate) async fn serve(
    ground: Arc<Ground>,
    own: Address,
    names: &[String],
    mut random: Random,
) -> Result<()> {
    let is_chosen = |manner: &Manner| names.iter().any(|name| name == manner.words().0);
    let manners: Arc<Vec<Manner>> = Arc::new(Manner::ALL.into_iter().filter(is_chosen).collect());
    let node = ground::node(&mut random);
    let mut host = || Host {
        ground: Arc::clone(&ground),
        own: own.clone(),
        manners: Arc::clone(&manners),
        random: Random::new(random.between(0, u64::MAX - 1)),
        calls: HashMap::new(),
        streams: 0,
        is_udp: matches!(own, Address::Udp(_)),
    };
    let can_not = || format!("can't listen at {own}");
    match &own {
        Address::Tcp(at) => {
            let listener = TcpListener::bind(at).await.with_context(can_not)?;
            loop {
                let (stream, _) = listener.accept().await?;
                tokio::spawn(attend(host(), Box::new(stream), node));
            }
        }
        Address::Unix(path) => {
            let listener = UnixListener::bind(Path::new(&**path)).with_context(can_not)?;
            loop {
                let (stream, _) = listener.accept().await?;
                tokio::spawn(attend(host(), Box::new(stream), node));
            }
        }
        Address::Udp(at) => {
            let socket = UdpSocket::bind(at).await.with_context(can_not)?;
            attend_socket(host(), socket, node).await
        }
        other => anyhow::bail!("no hostile server listens at {other}"),
    }
}

/// One connection, until either side has had enough.
async fn attend(mut host: Host, mut stream: Box<dyn Stream>, node: NodeId) {
    let mut input = BytesMut::new();
    let mut link = None;
    let hello = wire::hello(node, Some(host.own.clone()));
    let _ = stream.write_all(&hello).await;
    while let Ok(1..) = stream.read_buf(&mut input).await {
        while let Some(frame) = Frame::take(&mut input) {
            if frame.kind == kind::HELLO {
                link = wire::node_of(&frame.body)
                    .ok()
                    .map(|peer| LinkEnds::new(peer, node));
                continue;
            }
            let Some(link) = &mut link else {
                return;
            };
            let mut out = Vec::new();
            for answer in host.hear(&frame, link) {
                answer.put(&mut out);
            }
            let written = timeout(PATIENCE, stream.write_all(&out)).await;
            if !matches!(written, Ok(Ok(()))) {
                return;
            }
        }
    }
}

/// All sessions of a socket.
async fn attend_socket(mut host: Host, socket: UdpSocket, node: NodeId) -> Result<()> {
    let hello = wire::hello(node, Some(host.own.clone()));
    let hello = &hello[wallaby_proto::wire::FRAME_HEADER..];
    let mut sessions: HashMap<u64, (Session, LinkEnds)> = HashMap::new();
    let mut buffer = vec![0; 65_536];
    let mut next_id = 1;
    loop {
        let Ok((len, from)) = socket.recv_from(&mut buffer).await else {
            continue;
        };
        let (id, packet, flags) = match datagrams::read(&buffer[..len]) {
            Some(Arrived::Ask { client }) => {
                next_id += 1;
                let challenge = datagrams::challenge(client, next_id, hello);
                let _ = socket.send_to(&challenge, from).await;
                continue;
            }
            Some(Arrived::Open {
                server,
                client,
                hello,
                packet,
                flags,
            }) => {
                let Ok(peer) = wire::node_of(&hello) else {
                    continue;
                };
                let new = || {
                    (
                        Session::new(from, server, client),
                        LinkEnds::new(peer, node),
                    )
                };
                if sessions.len() > MOST_SESSIONS {
                    sessions.clear();
                }
                sessions.entry(server).or_insert_with(new);
                (server, packet, flags)
            }
            Some(Arrived::Data {
                session,
                packet,
                flags,
            }) => (session, packet, flags),
            Some(Arrived::Challenge { .. }) | None => continue,
        };
        let Some((session, link)) = sessions.get_mut(&id) else {
            continue;
        };
        for frame in session.unpack(&packet, flags) {
            for answer in host.hear(&frame, link) {
                let datagram = session.pack(&[answer]);
                let _ = socket.send_to(&datagram, session.remote).await;
            }
        }
        if let Some(answer) = session.acknowledge() {
            let _ = socket.send_to(&answer, session.remote).await;
        }
    }
}

impl Host {
    /// What is said to a frame.
    fn hear(&mut self, frame: &Frame, link: &mut LinkEnds) -> Vec<Frame> {
        let back = LinkEnds::new(link.receiver, link.sender);
        match frame.message(*link) {
            Some(Message::Request(request)) => {
                let is_own = request.reply_to == ReplyTo::Peer;
                if is_own && !self.is_udp {
                    link.previous = request.call.sequence;
                }
                self.handle_request(&request, back)
            }
            Some(Message::Ping(ping)) => self.handle_ping(&ping, back),
            _ => Vec::new(),
        }
    }

    fn handle_request(&mut self, request: &Request, back: LinkEnds) -> Vec<Frame> {
        let Some(manner) = self.draw() else {
            return Vec::new();
        };
        if self.calls.len() >= MOST_CALLS {
            self.calls.clear();
        }
        self.calls.insert(request.call, manner);
        self.ground.count(manner.words().0, 1);
        let frame = |message: Message| Frame::of(&message, back);
        let end = |requests, responses, manifest| {
            Message::End(End {
                call: request.call,
                distance: 0,
                token: Some(request.token),
                request: request.id,
                facts: Facts {
                    requests,
                    responses,
                },
                manifest,
                options: None,
            })
        };
        match manner {
            Manner::Overdraw => {
                let size = if self.is_udp { 30_000 } else { 60_000 };
                let answers = (0..100).map(|index| Response {
                    call: request.call,
                    distance: 0,
                    token: Some(request.token),
                    request: request.id,
                    index,
                    last: false,
                    manifest: None,
                    status: false,
                    compressed: false,
                    options: None,
                    payload: Bytes::from(vec![7; size]),
                });
                answers
                    .map(|answer| frame(Message::Response(answer)))
                    .collect()
            }
            Manner::Trickle if !self.is_udp => {
                self.streams += 1;
                vec![Frame::first_part(
                    self.streams,
                    16 << 20,
                    kind::RESPONSE,
                    &[1; 60_000],
                )]
            }
            Manner::Lie => {
                let owner = Place::initial(self.random.below(4) as u32);
                let facts = Facts {
                    requests: u32::MAX / 2,
                    responses: 1,
                };
                let manifest = Some(Manifest { owner, facts });
                vec![
                    frame(end(1 << 20, 1 << 30, manifest)),
                    frame(end(0, 0, None)),
                ]
            }
            Manner::Garbage => {
                let noise: Vec<u8> = (0..40).map(|_| self.random.below(256) as u8).collect();
                vec![Frame::new(kind::RESPONSE, noise)]
            }
            Manner::Announce => {
                let pong = Message::Pong(self.pong(request.call, request.token, request.id, 0, 0));
                let announced = |message| match message {
                    Message::Pong(pong) => Message::Pong(Pong {
                        announced: true,
                        ..pong
                    }),
                    other => other,
                };
                let pong = frame(announced(pong));
                vec![pong; 200]
            }
            Manner::Children | Manner::Chain | Manner::Trickle | Manner::Hang => Vec::new(),
        }
    }

    fn draw(&mut self) -> Option<Manner> {
        let count = self.manners.len();
        (count > 0).then(|| self.manners[self.random.below(count)])
    }

    fn handle_ping(&mut self, ping: &Ping, back: LinkEnds) -> Vec<Frame> {
        let Some(manner) = self.calls.get(&ping.call).copied() else {
            return Vec::new();
        };
        let children = match manner {
            Manner::Children => MAX_CHILDREN as u32,
            Manner::Chain => 1,
            _ => 0,
        };
        if children > 0 {
            self.ground.count("children-told", children.into());
        }
        let mut frames = vec![Frame::of(
            &Message::Pong(self.pong(
                ping.call,
                ping.token,
                ping.request,
                ping.children_from,
                children,
            )),
            back,
        )];
        if manner == Manner::Trickle && !self.is_udp {
            frames.push(Frame::next_part(self.streams, &[1; 4]));
        }
        frames
    }

    /// The request runs, and has handed on so much: here, and where nobody listens.
    fn pong(
        &mut self,
        call: wallaby::CallId,
        token: wallaby_proto::Token,
        request: RequestId,
        from: u32,
        children: u32,
    ) -> Pong {
        let places = (0..children).map(|_| Child {
            server: match self.random.below(4) {
                0 => self.ground.victim(&mut self.random).clone(),
                1 => self.ground.server(&mut self.random).clone(),
                _ => self.own.clone(),
            },
            node: None,
        });
        let children: Vec<Child> = places.collect();
        Pong {
            call,
            distance: 0,
            token: Some(token),
            request,
            attempt: 0,
            announced: false,
            writing: false,
            evicted: false,
            gone: false,
            heartbeats: self.random.below(2) == 0,
            progress: Some(Progress {
                finished: false,
                aborted: false,
                base: 0,
                count: 0,
                children_from: if children.is_empty() { 0 } else { from },
                children,
                continuation: None,
                facts: None,
                manifest: None,
                idle: Some(Duration::from_millis(1)),
                lost: Vec::new(),
                handled_by: None,
            }),
        }
    }
}
