//! A connection of a peer that lies, over whatever the honest ones use.

use anyhow::{Context, Result, bail};
use bytes::BytesMut;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket, UnixStream};
use tokio::time::timeout;
use wallaby::{Address, MethodDefinition, NodeId};
use wallaby_proto::wire::{LinkEnds, Message, MethodRef, Request};

use super::datagrams::{self, Arrived, Session};
use super::wire::{self, Frame, put_definition};

/// Who takes nothing for so long has stopped reading, and a volley is over.
const PATIENCE: Duration = Duration::from_secs(2);

/// A stream of either kind.
pub(crate) trait Stream:
    tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send
{
}
impl<S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send> Stream for S {}

/// A connection with one honest endpoint.
pub(crate) struct Line {
    pub(crate) link: LinkEnds,
    carrier: Carrier,
    input: BytesMut,
    methods: Vec<u64>,
}

enum Carrier {
    Stream(Box<dyn Stream>),
    Datagrams { socket: UdpSocket, session: Session },
}

/// Connects a stream, and says nothing.
pub(crate) async fn connect(to: &Address) -> Result<Box<dyn Stream>> {
    let stream: Box<dyn Stream> = match to {
        Address::Tcp(address) => {
            let stream = timeout(PATIENCE, TcpStream::connect(address)).await??;
            stream.set_nodelay(true)?;
            Box::new(stream)
        }
        Address::Unix(path) | Address::Shm(path) => {
            Box::new(timeout(PATIENCE, UnixStream::connect(Path::new(&**path))).await??)
        }
        other => bail!("{other} is no stream"),
    };
    Ok(stream)
}

/// A socket from which this address is reached.
pub(crate) async fn socket(to: SocketAddr) -> Result<UdpSocket> {
    let socket = UdpSocket::bind((to.ip(), 0)).await?;
    socket.connect(to).await?;
    Ok(socket)
}

impl Line {
    /// Connects and says that it is this node, reached at this address.
    pub(crate) async fn dial(to: &Address, node: NodeId, address: Option<Address>) -> Result<Self> {
        Self::dial_by(to, node, &wire::hello(node, address)).await
    }

    /// The same with a hello of one's own.
    pub(crate) async fn dial_by(to: &Address, node: NodeId, hello: &[u8]) -> Result<Self> {
        if let Address::Udp(to) = to {
            return Self::ask(*to, node, hello).await;
        }
        let mut stream = connect(to).await?;
        write(&mut stream, hello).await?;
        let mut line = Self {
            link: LinkEnds::new(node, node),
            carrier: Carrier::Stream(stream),
            input: BytesMut::new(),
            methods: Vec::new(),
        };
        let frame = line.next(PATIENCE).await?.context("no handshake")?;
        if frame.kind != wire::kind::HELLO {
            bail!("refused: {}", String::from_utf8_lossy(&frame.body));
        }
        line.link = LinkEnds::new(node, wire::node_of(&frame.body)?);
        Ok(line)
    }

    async fn ask(to: SocketAddr, node: NodeId, hello: &[u8]) -> Result<Self> {
        let socket = socket(to).await?;
        let id = node.get() ^ u64::from(socket.local_addr()?.port()).rotate_left(48);
        socket.send(&datagrams::ask(id)).await?;
        let mut buffer = vec![0; 65_536];
        loop {
            let len = timeout(PATIENCE, socket.recv(&mut buffer)).await??;
            let Some(Arrived::Challenge {
                client,
                server,
                issued,
                hello: theirs,
            }) = datagrams::read(&buffer[..len])
            else {
                continue;
            };
            if client != id {
                continue;
            }
            let mut session = Session::new(to, id, server);
            session.opening = Some((issued, hello[wallaby_proto::wire::FRAME_HEADER..].to_vec()));
            socket.send(&session.probe()).await?;
            let mut line = Self {
                link: LinkEnds::new(node, wire::node_of(&theirs)?),
                carrier: Carrier::Datagrams { socket, session },
                input: BytesMut::new(),
                methods: Vec::new(),
            };
            line.drain().await?;
            return Ok(line);
        }
    }

    /// Writes these frames; over UDP as many to a datagram as fit.
    pub(crate) async fn send(&mut self, frames: &[Frame]) -> Result<()> {
        match &mut self.carrier {
            Carrier::Stream(stream) => {
                let mut out = Vec::new();
                frames.iter().for_each(|frame| frame.put(&mut out));
                write(stream, &out).await
            }
            Carrier::Datagrams { socket, session } => {
                let mut left = frames;
                while !left.is_empty() {
                    let mut room = 1100;
                    let fit = left.iter().take_while(|frame| {
                        let fits = frame.body.len() + 16 <= room;
                        room = room.saturating_sub(frame.body.len() + 16);
                        fits
                    });
                    let (now, later) = left.split_at(fit.count().max(1));
                    send_to(socket, &session.pack(now)).await?;
                    left = later;
                }
                Ok(())
            }
        }
    }

    /// Writes bytes that need not be right.
    pub(crate) async fn send_bytes(&mut self, bytes: &[u8]) -> Result<()> {
        match &mut self.carrier {
            Carrier::Stream(stream) => write(stream, bytes).await,
            Carrier::Datagrams { socket, .. } => send_to(socket, bytes).await,
        }
    }

    /// Over UDP: the first byte of a message that is said to have so many.
    pub(crate) async fn send_piece(&mut self, total: u64) -> Result<()> {
        match &mut self.carrier {
            Carrier::Stream(_) => bail!("streams have no pieces"),
            Carrier::Datagrams { socket, session } => send_to(socket, &session.piece(total)).await,
        }
    }

    pub(crate) async fn send_message(&mut self, message: Message) -> Result<()> {
        let frame = Frame::of(&message, self.link);
        self.send(&[frame]).await
    }

    /// Frames of requests of this method, the definition first if it is new here.
    pub(crate) fn requests(
        &mut self,
        method: &MethodDefinition,
        requests: impl IntoIterator<Item = Request>,
    ) -> Vec<Frame> {
        let hash = wire::method_hash(method);
        let (mut frames, known) = (Vec::new(), self.methods.iter().position(|m| *m == hash));
        let is_udp = matches!(self.carrier, Carrier::Datagrams { .. });
        let number = known.unwrap_or(self.methods.len());
        if known.is_none() {
            self.methods.push(hash);
            if !is_udp {
                frames.push(Frame::method(method, number as u32));
            }
        }
        for (index, mut request) in requests.into_iter().enumerate() {
            request.method = match is_udp {
                true => MethodRef::Hash(hash),
                false => MethodRef::Number(number as u32),
            };
            let sequence = request.call.sequence;
            let is_own = request.call.initiator == self.link.sender
                && request.reply_to == wallaby_proto::wire::ReplyTo::Peer;
            let mut frame = Frame::of(&Message::Request(request), self.link);
            if is_udp && index == 0 {
                let mut body = Vec::new();
                put_definition(&mut body, method);
                body.extend_from_slice(&frame.body);
                frame = Frame::new(wire::kind::INTRODUCTION, body);
            } else if !is_udp && is_own {
                self.link.previous = sequence;
            }
            frames.push(frame);
        }
        frames
    }

    /// The next frame, if one comes in time; nothing if the peer is silent.
    pub(crate) async fn next(&mut self, within: Duration) -> Result<Option<Frame>> {
        let Carrier::Stream(stream) = &mut self.carrier else {
            bail!("datagrams are taken all at once");
        };
        loop {
            if let Some(frame) = Frame::take(&mut self.input) {
                return Ok(Some(frame));
            }
            match timeout(within, stream.read_buf(&mut self.input)).await {
                Err(_) => return Ok(None),
                Ok(Ok(0)) => bail!("closed by the peer"),
                Ok(read) => drop(read?),
            }
        }
    }

    /// Whatever frames come within a moment.
    pub(crate) async fn drain(&mut self) -> Result<Vec<Frame>> {
        self.listen(Duration::from_millis(20)).await
    }

    /// Whatever frames come until nothing has come for so long, or for eight times as long in all.
    pub(crate) async fn listen(&mut self, quiet: Duration) -> Result<Vec<Frame>> {
        let end = tokio::time::Instant::now() + 8 * quiet;
        let mut frames = Vec::new();
        while tokio::time::Instant::now() < end {
            if let Carrier::Stream(_) = &self.carrier {
                match self.next(quiet).await? {
                    Some(frame) => frames.push(frame),
                    None => break,
                }
                continue;
            }
            let Carrier::Datagrams { socket, session } = &mut self.carrier else {
                break;
            };
            let mut buffer = [0; 65_536];
            let Ok(len) = timeout(quiet, socket.recv(&mut buffer)).await else {
                break;
            };
            if let Some(Arrived::Data {
                packet,
                flags,
                session: id,
            }) = datagrams::read(&buffer[..len?])
                && id == session.own_id
            {
                frames.extend(session.unpack(&packet, flags));
                if let Some(answer) = session.acknowledge() {
                    send_to(socket, &answer).await?;
                }
            }
        }
        Ok(frames)
    }

    /// The messages among the frames that [`Line::listen`] hears.
    pub(crate) async fn heard(&mut self, quiet: Duration) -> Result<Vec<Message>> {
        let frames = self.listen(quiet).await?;
        let link = LinkEnds::new(self.link.receiver, self.link.sender);
        Ok(frames
            .iter()
            .filter_map(|frame| frame.message(link))
            .collect())
    }
}

async fn write(stream: &mut Box<dyn Stream>, bytes: &[u8]) -> Result<()> {
    Ok(timeout(PATIENCE, stream.write_all(bytes)).await??)
}

async fn send_to(socket: &UdpSocket, datagram: &[u8]) -> Result<()> {
    Ok(timeout(PATIENCE, socket.send(datagram))
        .await
        .map(|sent| sent.map(drop))??)
}
