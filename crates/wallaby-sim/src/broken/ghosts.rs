//! What must never be: requests that go out again on another connection when their own is reset.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use wallaby_proto::carrier::Carrier;
use wallaby_proto::connection::{Connection, Event};
use wallaby_proto::endpoint::ConnId;
use wallaby_proto::wire::Request;

use crate::addresses::node_at;
use crate::context::Context;
use crate::network::{Side, Socket};
use crate::node::Host;

/// Connections of a node that its endpoint knows nothing of.
#[derive(Debug, Default)]
pub(crate) struct Ghosts {
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
    /// A request went out.
    pub(crate) fn keep(&mut self, over: ConnId, request: Request) {
        self.kept.entry(over).or_default().push(request);
    }

    /// A stream has ended: what went out on it goes out once more.
    pub(crate) fn haunt(&mut self, conn: ConnId, host: &Host, context: &mut Context<'_>) {
        let requests = self.kept.remove(&conn).unwrap_or_default();
        let stream = host.streams.get(&conn);
        let server = stream.and_then(|stream| stream.server.as_ref());
        let Some(server) = server.and_then(node_at).filter(|_| !requests.is_empty()) else {
            return;
        };
        let from = (host.index, host.incarnation);
        let link = context.network.dial(from, server, &mut context.queue);
        let side = Side::Dialler;
        let ghost = Ghost {
            connection: Connection::dial(Arc::clone(host.endpoint.hello()), None),
            input: BytesMut::new(),
            requests,
        };
        self.open.insert(Socket { link, side }, ghost);
    }

    /// Something came for a ghost, or it may write.
    pub(crate) fn stir(
        &mut self,
        socket: Socket,
        bytes: &Bytes,
        host: &Host,
        context: &mut Context<'_>,
    ) {
        let Some(ghost) = self.open.get_mut(&socket) else {
            return;
        };
        let (network, queue) = (&mut context.network, &mut context.queue);
        network.read(socket, bytes.len(), queue);
        ghost.input.extend_from_slice(bytes);
        while let Ok(Some(event)) = ghost.connection.handle_input(&mut ghost.input) {
            if let Event::Opened(_) = event {
                for request in &mut ghost.requests {
                    let _ = ghost.connection.send_request(request, &host.method);
                }
            }
        }
        let output = ghost.connection.output();
        let taken = network.write(socket, output, queue, &mut context.coverage);
        ghost.connection.advance(taken);
    }
}
