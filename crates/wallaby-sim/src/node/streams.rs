//! Streams of a node: bytes between its endpoint and the network.

use bytes::{Bytes, BytesMut};
use wallaby_proto::Address;
use wallaby_proto::connection::ConnectionError;
use wallaby_proto::endpoint::{Closed, ConnId, InputOutcome, StreamEnd};
use wallaby_proto::error::ConnectError;

use super::{Host, Node};
use crate::addresses::node_at;
use crate::broken::Broken;
use crate::context::{Context, note};
use crate::coverage::Point;
use crate::network::{Side, Socket};
use crate::oracle::Rule;

/// One end of a stream.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) socket: Socket,
    /// Where it was dialled.
    pub(crate) server: Option<Address>,
    /// The transport is there; the handshake may not be done.
    connected: bool,
    input: BytesMut,
    /// Bytes that are left in the transport, since the peer does not read.
    unread: usize,
}

impl Stream {
    fn new(socket: Socket, server: Option<Address>) -> Self {
        Self {
            socket,
            connected: server.is_none(),
            server,
            input: BytesMut::new(),
            unread: 0,
        }
    }
}

impl Node {
    pub(super) fn answered(&mut self, socket: Socket, accepted: bool, context: &mut Context<'_>) {
        let Some((conn, stream)) = self.host.stream_of(socket) else {
            return self.ghosts.stir(socket, &Bytes::new(), &self.host, context);
        };
        let server = stream.server.clone();
        if context.is(Broken::NeverGone) && !self.has_always_been(socket, accepted, context) {
            return;
        }
        if accepted {
            self.host
                .streams
                .entry(conn)
                .and_modify(|stream| stream.connected = true);
            return self.write(conn, context);
        }
        context.hit(Point::ConnectionRefused);
        if let Some(server) = server {
            self.host.endpoint.handle_dial_failed(conn, refused(server));
        }
    }

    pub(super) fn handle_bytes(
        &mut self,
        socket: Socket,
        bytes: &Bytes,
        context: &mut Context<'_>,
    ) {
        if let Some((conn, stream)) = self.host.stream_of(socket) {
            stream.input.extend_from_slice(bytes);
            stream.unread += bytes.len();
            self.read(conn, context);
        } else {
            self.ghosts.stir(socket, bytes, &self.host, context);
        }
    }

    /// Hands what has arrived to the endpoint.
    fn read(&mut self, conn: ConnId, context: &mut Context<'_>) {
        loop {
            let Some(stream) = self.host.streams.get_mut(&conn) else {
                return;
            };
            let read = self.host.endpoint.handle_input(conn, &mut stream.input);
            if read != InputOutcome::Held {
                let unread = std::mem::take(&mut stream.unread);
                context
                    .network
                    .read(stream.socket, unread, &mut context.queue);
            }
            self.follow(context);
            if read != InputOutcome::More {
                return;
            }
        }
    }

    pub(super) fn stream_ended(&mut self, socket: Socket, context: &mut Context<'_>) {
        if let Some((conn, stream)) = self.host.stream_of(socket) {
            let mut input = std::mem::take(&mut stream.input);
            note!(context, self.host.index, "loses {socket:?}");
            self.host
                .endpoint
                .handle_ended(conn, &mut input, StreamEnd::Closed);
        }
    }

    pub(super) fn writable(&mut self, socket: Socket, context: &mut Context<'_>) {
        if let Some((conn, _)) = self.host.stream_of(socket) {
            self.write(conn, context);
        }
    }

    /// Writes what a stream has.
    pub(super) fn write(&mut self, conn: ConnId, context: &mut Context<'_>) {
        let Some(stream) = self
            .host
            .streams
            .get(&conn)
            .filter(|stream| stream.connected)
        else {
            return;
        };
        let (network, queue) = (&mut context.network, &mut context.queue);
        let blocked = loop {
            let output = self.host.endpoint.output(conn);
            let len = output.len();
            let taken = network.write(stream.socket, output, queue, &mut context.coverage);
            let has_more = self.host.endpoint.advance(conn, taken);
            if taken < len || !has_more {
                break taken < len;
            }
        };
        let is_read = match blocked {
            true => self.host.endpoint.handle_blocked(conn),
            false => self.host.endpoint.handle_written(conn),
        };
        self.note_written(context);
        if is_read
            && self
                .host
                .streams
                .get(&conn)
                .is_some_and(|stream| stream.unread > 0)
        {
            self.read(conn, context);
        }
    }

    /// A stream has ended for the endpoint.
    pub(super) fn close(&mut self, conn: ConnId, closed: &Closed, context: &mut Context<'_>) {
        self.ghosts.haunt(conn, &self.host, context);
        let Some(stream) = self.host.streams.remove(&conn) else {
            return;
        };
        note!(
            context,
            self.host.index,
            "ends {:?}: {}",
            stream.socket,
            closed.why
        );
        match &closed.why {
            ConnectError::TimedOut { .. } => context.hit(Point::ConnectionTimedOut),
            ConnectError::Handshake { source, .. } => match source {
                ConnectionError::WrongNode { .. } => context.hit(Point::ConnectionWrongIncarnation),
                error if error.is_violation() => {
                    let what = format!("n{} on {:?}: {error}", self.host.index, stream.socket);
                    context.violate(Rule::FalseAccusation, what);
                }
                _ => context.hit(Point::ConnectionSilent),
            },
            _ => {}
        }
        let (network, queue) = (&mut context.network, &mut context.queue);
        if stream.connected {
            network.write(
                stream.socket,
                &closed.last_words,
                queue,
                &mut context.coverage,
            );
        }
        self.host.sockets.remove(&stream.socket);
        network.close(stream.socket, queue, &mut context.coverage);
    }

    /// Whether the first incarnation that was met at a server still is there: one that is broken so hears of nothing else.
    fn has_always_been(&mut self, socket: Socket, accepted: bool, context: &Context<'_>) -> bool {
        let side = Side::Acceptor;
        let end = context.network.end(Socket { side, ..socket });
        accepted && *self.sight.met.entry(end.node).or_insert(end.incarnation) == end.incarnation
    }
}

impl Host {
    pub(super) fn accepted(&mut self, socket: Socket) {
        let conn = self.endpoint.handle_accepted();
        self.add_stream(conn, Stream::new(socket, None));
    }

    pub(super) fn dial(&mut self, conn: ConnId, to: &Address, context: &mut Context<'_>) {
        let Some(server) = node_at(to) else {
            return self.endpoint.handle_dial_failed(conn, refused(to.clone()));
        };
        if let Address::Udp(at) = to {
            return self.endpoint.dial_datagrams(conn, *at); // nobody is on the same host
        }
        let from = (self.index, self.incarnation);
        let link = context.network.dial(from, server, &mut context.queue);
        note!(context, self.index, "dials n{server} ({link:?})");
        let side = Side::Dialler;
        let stream = Stream::new(Socket { link, side }, Some(to.clone()));
        self.add_stream(conn, stream);
    }

    fn add_stream(&mut self, conn: ConnId, stream: Stream) {
        self.sockets.insert(stream.socket, conn);
        self.streams.insert(conn, stream);
    }

    fn stream_of(&mut self, socket: Socket) -> Option<(ConnId, &mut Stream)> {
        let conn = *self.sockets.get(&socket)?;
        Some((conn, self.streams.get_mut(&conn)?))
    }

    /// Streams that are being dialled and were cut off without this node's knowledge: to which servers, and when.
    pub(crate) fn hanging(&self, context: &Context<'_>) -> Vec<(u32, std::time::Duration)> {
        let dials = self
            .streams
            .iter()
            .filter(|(conn, _)| self.endpoint.peer(**conn).is_none());
        let hanging = dials.filter_map(|(_, stream)| {
            let server = node_at(stream.server.as_ref()?)?;
            Some((server, context.network.cut_since(stream.socket.link)?))
        });
        hanging.collect()
    }
}

/// Nobody is there, or nobody says so.
fn refused(server: Address) -> ConnectError {
    ConnectError::Refused {
        server,
        reason: "nobody listens there".into(),
    }
}
