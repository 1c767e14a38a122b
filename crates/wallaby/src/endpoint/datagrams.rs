//! Peers that are reached by UDP.

use std::net::SocketAddr;
use std::sync::{Arc, PoisonError};

use tokio::sync::oneshot;
use wallaby_proto::connection::NamedBy;
use wallaby_proto::datagram::{Gate, LOOPBACK_DATAGRAM, Settings, TooManySessions};
use wallaby_proto::{Address, NodeId};

use super::connections::Opened;
use super::{Inner, locked};
use crate::dispatch::Dispatcher;
use crate::driver::peer::Peer;
use crate::driver::port::{Port, PortSession};
use crate::driver::way::Way;
use crate::error::{BindError, ConnectError};
use crate::pool::{Opening, Stranger};
use crate::random;
use crate::transport::Identity;
use crate::transport::udp::Socket;

/// Sessions that a socket has room for, each way, however few connections an endpoint may have.
const MIN_SESSIONS: usize = 64;

impl Inner {
    /// Drives a socket in a task of its own until the endpoint is closed.
    pub(super) fn open_port(&self, socket: Socket, listens: bool) -> Result<Arc<Port>, BindError> {
        let secret = random::bytes()?;
        let settings = Settings {
            // The pool counts connections; those that are being closed are still sessions for a while.
            sessions: (self.config.limits.connections)
                .saturating_mul(2)
                .max(MIN_SESSIONS),
            confirm_after: self.config.confirm_after,
            loopback: LOOPBACK_DATAGRAM,
            ..Settings::default()
        };
        let delay = self.delay.clone();
        let hello = Arc::clone(&self.hello);
        let gate = Gate::new(hello, secret, settings).sharing(self.bounds.partials.clone());
        let port = Port::new(socket, listens, gate, delay);
        self.spawn(Arc::clone(&port).drive(self.me.clone()));
        Ok(port)
    }

    /// Opens a session; the receiver learns when its handshake is done.
    pub(super) fn dial_session(
        self: &Arc<Self>,
        to: SocketAddr,
        expected: Option<NodeId>,
        named_by: NamedBy,
        opening: Opening,
    ) -> Result<Opened, ConnectError> {
        let server = Address::Udp(to);
        let port = self.port_towards(to)?;
        let (opened, receiver) = oneshot::channel();
        let mut adopted = None;
        let dialled = port.dial(to, expected, named_by, |session| {
            let peer = self.session_peer(session);
            adopted = Some(Arc::clone(&peer));
            let dispatcher = Dispatcher::new(
                Arc::clone(self),
                Some(server.clone()),
                Some(opened),
                Some(opening),
            );
            (peer, dispatcher)
        });
        match (dialled, adopted) {
            (Ok(()), Some(peer)) => Ok((peer, receiver)),
            (Err(TooManySessions(limit)), _) => Err(ConnectError::TooMany { server, limit }),
            (Ok(()), None) => unreachable!("a session that is dialled has a peer"),
        }
    }

    /// The socket over which this address is dialled: one that listens, so that the peer finds this endpoint where it
    /// says it is; else one that was opened for it.
    fn port_towards(&self, to: SocketAddr) -> Result<Arc<Port>, ConnectError> {
        let mut ports = self.ports.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(port) = ports.iter().find(|port| port.reaches(to)) {
            return Ok(Arc::clone(port));
        }
        let unreachable = |reason: String| ConnectError::Unreachable {
            server: Address::Udp(to),
            reason,
        };
        let socket = Socket::towards(to).map_err(|error| unreachable(error.to_string()))?;
        let port = self
            .open_port(socket, false)
            .map_err(|error| unreachable(error.to_string()))?;
        ports.push(Arc::clone(&port));
        Ok(port)
    }

    /// Somebody has opened a session: its peer, unless there is no room for it.
    pub(crate) fn adopt_session(
        self: &Arc<Self>,
        session: PortSession,
        listens: bool,
    ) -> Option<(Arc<Peer>, Dispatcher)> {
        let peer = self.session_peer(session);
        if !listens {
            peer.end("this endpoint does not listen");
            return None;
        }
        self.welcome(peer.id, Stranger::Peer(Arc::clone(&peer)));
        let dispatcher = Dispatcher::new(Arc::clone(self), None, None, None);
        Some((peer, dispatcher))
    }

    fn session_peer(&self, session: PortSession) -> Arc<Peer> {
        let liveness = Arc::clone(&self.liveness);
        Peer::new(Way::Session(session), Identity::default(), None, liveness)
    }

    /// Says goodbye to all peers over UDP and frees the addresses.
    pub(super) fn close_ports(&self) {
        for port in locked(&self.ports).drain(..) {
            port.close();
        }
    }
}
