//! Connections over streams: dialled and accepted, driven, and ended.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, Weak};
use std::task::Poll;
use std::time::Duration;

use tokio::sync::oneshot;
use wallaby_proto::connection::{Connection, ConnectionError, NamedBy};
use wallaby_proto::{Address, NodeId};

use super::{Inner, locked};
use crate::dispatch::Dispatcher;
use crate::driver::peer::{self, Peer};
use crate::driver::way::Way;
use crate::error::{ConnectError, dial_failed};
use crate::pool::{Opening, Stranger};
use crate::timer::{self, Instant};
use crate::transport::{self, Accepted, Incoming, Opened as Stream, StreamListener};

/// A peer, and who learns when its handshake is done.
pub(super) type Opened = (Arc<Peer>, oneshot::Receiver<Result<(), ConnectError>>);

/// What a connection that is dialled has until it is open.
type Dialled = (Address, oneshot::Sender<Result<(), ConnectError>>, Opening);

/// Where streams come in, until the endpoint is closed.
pub(super) type Listening = Mutex<Option<StreamListener>>;

impl Inner {
    /// The connection to a server, dialled if need be; several who need it wait for the same one.
    pub(crate) async fn connect(
        self: &Arc<Self>,
        server: &Address,
    ) -> Result<Arc<Peer>, ConnectError> {
        self.connect_named(server, NamedBy::Application).await
    }

    /// The same for an address that others may have named; [`Pool::begin_dial`](crate::pool::Pool::begin_dial) has allowed it.
    async fn connect_named(
        self: &Arc<Self>,
        server: &Address,
        named_by: NamedBy,
    ) -> Result<Arc<Peer>, ConnectError> {
        if let Some(peer) = self.pool.ready(server) {
            return Ok(peer);
        }
        if !self.config.dial_policy.permits_call(server) {
            return Err(self.forbid(server));
        }
        let (after, begun) = (self.config.dial_timeout, Instant::now());
        loop {
            let mut own = false;
            let dial = || {
                own = true;
                self.dial(server, None, named_by, after)
            };
            match self.dial_once(server, dial).await {
                // Somebody else's dial, which began earlier, had less time or wanted a certain life, says nothing about
                // this one.
                Err(ConnectError::TimedOut { .. }) if !own && begun.elapsed() < 2 * after => {}
                Err(ConnectError::Handshake {
                    source: ConnectionError::WrongNode { .. },
                    ..
                }) => {}
                result => return result,
            }
        }
    }

    /// Several who need a connection to the same address at the same time wait for one dial.
    async fn dial_once<F>(
        &self,
        server: &Address,
        dial: impl FnOnce() -> F,
    ) -> Result<Arc<Peer>, ConnectError>
    where
        F: Future<Output = Result<Arc<Peer>, ConnectError>>,
    {
        let slot = self.pool.slot(server);
        let result = slot.get_or_init(dial).await.clone();
        if result.is_err() {
            self.pool.forget(server, &slot);
        }
        result
    }

    /// A connection to an initiator, to answer it.
    pub(crate) async fn connect_initiator(
        self: &Arc<Self>,
        address: &Address,
        node: NodeId,
    ) -> Result<Arc<Peer>, ConnectError> {
        let after = self.config.dial_back_timeout;
        if !self.config.dial_policy.permits(address) {
            return Err(self.forbid(address));
        }
        let named_by = NamedBy::Peer;
        let connected = match self.pool.ready(address) {
            Some(peer) => Ok(peer),
            None => {
                self.may_dial(address, Some(node), named_by)?;
                let dial = || self.dial(address, Some(node), named_by, after);
                self.dial_once(address, dial).await
            }
        };
        match connected {
            Ok(peer) if peer.node() == Some(node) => Ok(peer),
            Ok(peer) => Err(ConnectError::Closed {
                server: address.clone(),
                reason: format!("node {node} is gone: {:?} answers there", peer.node()),
            }),
            Err(error) => {
                self.pool.dial_failed(address, &error);
                Err(error)
            }
        }
    }

    /// A connection to a server of which others say that a request is there, to ask about it.
    pub(crate) async fn connect_asked(
        self: &Arc<Self>,
        address: &Address,
        wanted: Option<NodeId>,
        named_by: NamedBy,
    ) -> Result<Arc<Peer>, ConnectError> {
        if let Some(peer) = self.pool.ready(address) {
            return Ok(peer);
        }
        let was_met = wanted.is_some() && self.pool.was_at(address, wanted);
        self.may_dial(address, wanted, named_by)?;
        let connected = self.connect_named(address, named_by).await;
        match &connected {
            Ok(_) => {}
            Err(ConnectError::Closed { .. }) => self.pool.dial_closed(address, was_met),
            Err(error) => self.pool.dial_failed(address, error),
        }
        connected
    }

    fn may_dial(
        &self,
        address: &Address,
        wanted: Option<NodeId>,
        named_by: NamedBy,
    ) -> Result<(), ConnectError> {
        let begun = self.pool.begin_dial(address, wanted, named_by);
        begun.map_err(|source| {
            self.meters.dials_held.add();
            ConnectError::held(address, source)
        })
    }

    /// The dial policy forbids an address: that is counted and logged.
    #[cold]
    pub(crate) fn forbid(&self, server: &Address) -> ConnectError {
        self.meters.dials_forbidden.add();
        if let Some(more) = self.sparse.forbidden.pass(self.age()) {
            tracing::warn!(%server, more, "not dialled: the dial policy forbids it");
        }
        ConnectError::Forbidden {
            server: server.clone(),
        }
    }

    async fn dial(
        self: &Arc<Self>,
        server: &Address,
        expected: Option<NodeId>,
        named_by: NamedBy,
        after: Duration,
    ) -> Result<Arc<Peer>, ConnectError> {
        if self.closed.load(Ordering::Acquire) {
            let reason = "this endpoint was closed".into();
            let server = server.clone();
            return Err(ConnectError::Unreachable { server, reason });
        }
        let opening = self.make_room().map_err(|limit| ConnectError::TooMany {
            server: server.clone(),
            limit,
        })?;
        let timed_out = || ConnectError::TimedOut {
            server: server.clone(),
            after,
        };
        let end = Instant::now() + after;
        let near = timer::timeout_at(end, self.dial_same_host(server));
        let (peer, opened) = match (near.await.ok_or_else(timed_out)?, server) {
            (Some(stream), _) => self.open_stream(server, expected, stream, opening),
            (None, Address::Udp(to)) => self.dial_session(*to, expected, named_by, opening)?,
            (None, _) => {
                let dialled = timer::timeout_at(end, self.dial_stream(server));
                let stream = dialled.await.ok_or_else(timed_out)??;
                self.open_stream(server, expected, stream, opening)
            }
        };
        // Whoever wants it has not used it yet when it opens: others that need room must not close it before.
        let _wanted = peer.want();
        match timer::timeout_at(end, opened).await {
            Some(Ok(Ok(()))) => Ok(Arc::clone(&peer)),
            Some(Ok(Err(error))) => Err(error),
            Some(Err(_)) => Err(ConnectError::Closed {
                server: server.clone(),
                reason: "it ended early".into(),
            }),
            None => {
                peer.end("the handshake took too long");
                Err(timed_out())
            }
        }
    }

    async fn dial_stream(&self, server: &Address) -> Result<Stream, ConnectError> {
        let stream = transport::dial(server, self.config.ring, &self.config.transports).await;
        let stream = stream.ok_or_else(|| ConnectError::NoTransport {
            server: server.clone(),
        })?;
        stream.map_err(|error| dial_failed(server, &error))
    }

    /// Drives a new connection that was dialled.
    fn open_stream(
        self: &Arc<Self>,
        server: &Address,
        expected: Option<NodeId>,
        stream: Stream,
        opening: Opening,
    ) -> Opened {
        let connection = Connection::dial(Arc::clone(&self.hello), expected).bounded(&self.bounds);
        let (opened, receiver) = oneshot::channel();
        let dialled = Some((server.clone(), opened, opening));
        (self.adopt(connection, stream, dialled), receiver)
    }

    /// Room for one more connection; the one that is closed for it, if any, is counted as ended.
    pub(super) fn make_room(&self) -> Result<Opening, usize> {
        let (opening, closed) = self.pool.make_room()?;
        if closed {
            self.meters.connections_evicted.add();
            self.meters.connections_ended.add();
        }
        Ok(opening)
    }

    pub(super) async fn accept(inner: Weak<Self>, listening: Arc<Listening>) {
        loop {
            let accepted = poll_fn(|cx| match locked(&listening).as_mut() {
                Some(listener) => listener.poll_accept(cx).map(Some),
                None => Poll::Ready(None),
            });
            let (Some(accepted), Some(endpoint)) = (accepted.await, inner.upgrade()) else {
                return;
            };
            match accepted {
                Ok(Incoming::Open(stream)) => endpoint.let_in(stream),
                Ok(Incoming::Opening(accepted)) => {
                    let (id, place) = (peer::next_id(), oneshot::channel());
                    endpoint.welcome(id, Stranger::Opening(place.0));
                    let opened = Arc::clone(&endpoint).open_accepted(accepted, id, place.1);
                    endpoint.spawn(opened);
                }
                Err(error) => {
                    // Out of file descriptors, most likely: accepting again at once would only burn the processor.
                    tracing::error!(%error, "cannot accept a connection");
                    timer::sleep_until(Instant::now() + Duration::from_millis(20)).await;
                }
            }
        }
    }

    /// Somebody has connected, and must show soon that it wants something. If there are too many of these, the oldest goes.
    pub(super) fn welcome(self: &Arc<Self>, id: u64, stranger: Stranger) {
        let (oldest, unwatched) = self.pool.welcome(id, stranger);
        if let Some(oldest) = oldest {
            let reason = "others have connected since, and it has said nothing";
            self.dismiss(oldest, reason);
        }
        if unwatched {
            let endpoint = Arc::downgrade(self);
            self.spawn(async move { Self::dismiss_the_silent(endpoint).await });
        }
    }

    async fn dismiss_the_silent(endpoint: Weak<Self>) {
        while let Some(inner) = endpoint.upgrade() {
            let (silent, next) = inner.pool.expired();
            for stranger in silent {
                inner.dismiss(stranger, "the handshake took too long");
            }
            let Some(next) = next else { return };
            drop(inner);
            timer::sleep_until(next).await;
        }
    }

    /// A stranger has to go; if this side has taken its connection to send something, it is none.
    fn dismiss(&self, stranger: Stranger, reason: &str) {
        match stranger {
            Stranger::Peer(peer) => {
                if peer.uses.ever.load(Ordering::Relaxed) && self.settle(&peer).is_ok() {
                    return;
                }
                peer.end(reason);
            }
            Stranger::Opening(place) => {
                drop(place);
                self.not_accepted(reason);
            }
        }
        self.meters.strangers_dismissed.add();
    }

    /// Drives a connection that somebody else has opened.
    fn let_in(self: &Arc<Self>, stream: Stream) {
        let connection = Connection::accept(Arc::clone(&self.hello)).bounded(&self.bounds);
        self.adopt(connection, stream, None);
    }

    /// Waits for what the transport of an accepted stream has to do first, as long as it has its place among the strangers.
    async fn open_accepted(
        self: Arc<Self>,
        accepted: Accepted,
        id: u64,
        mut place: oneshot::Receiver<()>,
    ) {
        let mut accepted = pin!(accepted);
        let opened = poll_fn(|cx| match Pin::new(&mut place).poll(cx) {
            Poll::Ready(_) => Poll::Ready(None),
            Poll::Pending => accepted.as_mut().poll(cx).map(Some),
        });
        let Some(opened) = opened.await else {
            return; // it was dismissed
        };
        self.pool.stranger_left(id);
        match opened {
            Ok(stream) => self.let_in(stream.into()),
            Err(error) => self.not_accepted(&error.to_string()),
        }
    }

    /// A stream that came in does not become a connection: that is counted and logged.
    #[cold]
    fn not_accepted(&self, reason: &str) {
        self.meters.accepts_failed.add();
        if let Some(more) = self.sparse.not_accepted.pass(self.age()) {
            tracing::warn!(reason, more, "a stream that came in was not accepted");
        }
    }

    /// A stranger has shown that it wants something: it is none any more, if there is room for it.
    ///
    /// # Errors
    ///
    /// In words, if there is none.
    pub(crate) fn settle(&self, peer: &Arc<Peer>) -> Result<(), String> {
        let room = self.make_room();
        let _opening = room.map_err(|limit| format!("all {limit} connections are in use"))?;
        self.pool.settle(peer);
        Ok(())
    }

    /// Drives a new connection in a task of its own: one that was dialled, with who learns when its handshake is done and the
    /// place that it has until then, or a stranger's.
    fn adopt(
        self: &Arc<Self>,
        connection: Connection,
        stream: Stream,
        dialled: Option<Dialled>,
    ) -> Arc<Peer> {
        let (dialled, opened, opening) = match dialled {
            Some((server, opened, opening)) => (Some(server), Some(opened), Some(opening)),
            None => (None, None, None),
        };
        let is_stranger = dialled.is_none();
        let Stream {
            reader,
            writer,
            identity,
        } = stream;
        let way = Way::Stream(connection, writer);
        let (delay, liveness) = (self.delay.clone(), Arc::clone(&self.liveness));
        let peer = Peer::new(way, identity, delay, liveness);
        peer.flush_now();
        if is_stranger {
            let stranger = Stranger::Peer(Arc::clone(&peer));
            self.welcome(peer.id, stranger); // before anything of it arrives
        }
        let mut dispatcher = Dispatcher::new(Arc::clone(self), dialled, opened, opening);
        let (driven, endpoint) = (Arc::clone(&peer), Arc::clone(self));
        let drive = async move {
            let end = driven.drive(reader, &mut dispatcher).await;
            endpoint.connection_ended(&driven, &dispatcher.ended(end));
        };
        self.spawn(drive);
        peer
    }

    /// A connection's handshake is done.
    pub(crate) fn connection_opened(&self, peer: &Arc<Peer>, dialled: Option<&Address>) {
        self.meters.connections_opened.add();
        self.session_opened(peer);
        for stale in self.pool.opened(peer, dialled) {
            stale.end("another life answers at this address");
        }
        if dialled.is_none()
            && let Some(server) = peer.proven_address()
        {
            self.pool.serve_by(server, peer);
        }
        if let Some(node) = peer.node() {
            self.invite_claiming(peer, node);
        }
        if self.closed.load(Ordering::Acquire) {
            peer.end("the endpoint was closed");
        }
    }

    #[cold]
    #[inline(never)]
    pub(crate) fn connection_ended(self: &Arc<Self>, peer: &Arc<Peer>, reason: &str) {
        if self.pool.remove(peer) {
            self.meters.connections_ended.add();
        }
        tracing::debug!(?peer, reason, "connection ended");
        if self.closed.load(Ordering::Acquire) {
            return;
        }
        self.session_ended(peer);
    }
}
