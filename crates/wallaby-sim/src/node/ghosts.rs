//! What must never be: requests that go out again on another connection when their own is reset.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use wallaby_proto::carrier::Carrier;
use wallaby_proto::connection::{Connection, Event, Hello};
use wallaby_proto::endpoint::ConnId;
use wallaby_proto::wire::Request;

use super::{Node, node_at};
use crate::context::Context;
use crate::network::{Side, Socket};

/// Connections of a node that its endpoint knows nothing of.
#[derive(Debug)]
pub(super) struct Ghosts {
    hello: Arc<Hello>,
    /// Requests that went out, by their connections.
    kept: BTreeMap<ConnId, Vec<Request>>,
    open: BTreeMap<Socket, Ghost>,
}

#[derive(Debug)]
struct Ghost {
    connection: Connection,
    input: BytesMut,
    requests: Vec<Request>,
}

impl Ghosts {
    pub(super) fn new(hello: Arc<Hello>) -> Self {
        Self {
            hello,
            kept: BTreeMap::new(),
            open: BTreeMap::new(),
        }
    }

    /// A request went out.
    pub(super) fn keep(&mut self, over: ConnId, request: Request) {
        self.kept.entry(over).or_default().push(request);
    }
}

impl Node {
    /// A stream has ended: what went out on it goes out once more.
    pub(super) fn haunt(&mut self, conn: ConnId, context: &mut Context<'_>) {
        let requests = self.ghosts.kept.remove(&conn).unwrap_or_default();
        let server = self
            .streams
            .get(&conn)
            .and_then(|stream| stream.server.as_ref());
        let Some(server) = server.and_then(node_at).filter(|_| !requests.is_empty()) else {
            return;
        };
        let from = (self.index, self.life);
        let link = context.network.dial(from, server, &mut context.queue);
        let side = Side::Dialler;
        let ghost = Ghost {
            connection: Connection::dial(Arc::clone(&self.ghosts.hello), None),
            input: BytesMut::new(),
            requests,
        };
        self.ghosts.open.insert(Socket { link, side }, ghost);
    }

    /// Something came for a ghost, or it may write.
    pub(super) fn stir(&mut self, socket: Socket, bytes: &Bytes, context: &mut Context<'_>) {
        let Some(ghost) = self.ghosts.open.get_mut(&socket) else {
            return;
        };
        let (network, queue) = (&mut context.network, &mut context.queue);
        network.read(socket, bytes.len(), queue);
        ghost.input.extend_from_slice(bytes);
        while let Ok(Some(event)) = ghost.connection.handle_input(&mut ghost.input) {
            if let Event::Opened(_) = event {
                for request in &mut ghost.requests {
                    let _ = ghost.connection.send_request(request, &self.method);
                }
            }
        }
        let output = ghost.connection.output();
        let taken = network.write(socket, output, queue, &mut context.coverage);
        ghost.connection.advance(taken);
    }
}
