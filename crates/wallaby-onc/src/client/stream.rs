//! Calls over TCP and unix sockets: one connection at a time, made anew for later calls when it ended.

mod connection;

use std::io;
use std::marker::PhantomData;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::Mutex;
use tokio::time::timeout_at;

use self::connection::Connection;
use super::counters::{ClientCounters, Counting, count};
use super::{Calling, ClientOptions, Result};
use crate::auth::OpaqueAuth;
use crate::deadline::end_of;
use crate::failure::{Lost, NoReply, Reason};
use crate::message::Procedure;
use crate::peer::Peer;
use crate::scratch::Scratch;
use crate::service::Channel;
use crate::xdr::{EncodeError, Writer};

/// A way to a server over streams of this kind: a [`TcpChannel`], a [`UnixChannel`]. A clone is the same channel.
///
/// When the connection ends, calls of which a byte may have left fail with [`NoReply::Unknown`]: they are never sent again.
/// The next call connects anew.
#[derive(Debug)]
pub struct StreamChannel<Kind> {
    shared: Arc<Shared>,
    calling: Calling,
    kind: PhantomData<fn() -> Kind>,
}

/// Streams over TCP.
#[derive(Debug)]
pub enum Tcp {}

/// Streams over unix sockets.
#[derive(Debug)]
pub enum Unix {}

/// A way to a server over TCP.
pub type TcpChannel = StreamChannel<Tcp>;

/// A way to a server over a unix socket. rpcbind takes registrations over one.
pub type UnixChannel = StreamChannel<Unix>;

impl TcpChannel {
    /// Connects to this server.
    ///
    /// # Errors
    /// There is no connection within the options' time.
    pub async fn connect(server: SocketAddr, options: ClientOptions) -> io::Result<Self> {
        Self::to(Peer::Tcp(server), options).await
    }
}

impl UnixChannel {
    /// Connects to this socket.
    ///
    /// # Errors
    /// There is no connection within the options' time.
    pub async fn connect(path: &Path, options: ClientOptions) -> io::Result<Self> {
        Self::to(Peer::Unix(Some(path.into())), options).await
    }
}

impl<Kind> StreamChannel<Kind> {
    async fn to(server: Peer, options: ClientOptions) -> io::Result<Self> {
        Ok(Self {
            calling: Calling::new(&options),
            shared: Shared::connect(server, options).await?,
            kind: PhantomData,
        })
    }

    /// The same channel, for calls that may take this long.
    #[must_use]
    pub fn timeout(&self, timeout: Duration) -> Self {
        let mut other = self.clone();
        other.calling.timeout = timeout;
        other
    }

    /// The same channel, for calls of this caller.
    #[must_use]
    pub fn credential(&self, credential: OpaqueAuth) -> Self {
        let mut other = self.clone();
        other.calling.credential = credential;
        other
    }

    /// What happened so far.
    #[must_use]
    pub fn counters(&self) -> ClientCounters {
        self.shared.counters.now()
    }

    /// Ends the connection now, and every call that waits for a reply. The next call connects anew.
    pub async fn disconnect(&self) {
        self.shared.disconnect().await;
    }
}

impl<Kind> Clone for StreamChannel<Kind> {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
            calling: self.calling.clone(),
            kind: PhantomData,
        }
    }
}

impl<Kind> Channel for StreamChannel<Kind> {
    async fn call(&self, procedure: Procedure, arguments: Bytes) -> Result<Bytes, Reason> {
        let written = self.calling.written(procedure, |_| Ok(()))?;
        self.shared.call(&self.calling, written, &arguments).await
    }

    fn call_with(
        &self,
        procedure: Procedure,
        arguments: impl FnOnce(&mut Writer) -> Result<(), EncodeError>,
    ) -> impl Future<Output = Result<Bytes, Reason>> + Send {
        let written = self.calling.written(procedure, arguments);
        async move { self.shared.call(&self.calling, written?, &[]).await }
    }

    fn peer(&self) -> Option<Peer> {
        Some(self.shared.server.clone())
    }
}

#[derive(Debug)]
struct Shared {
    server: Peer,
    options: ClientOptions,
    /// The connection of late. Locked while one is made, so that all calls meanwhile wait for the same.
    connection: Mutex<Arc<Connection>>,
    outstanding: AtomicUsize,
    counters: Arc<Counting>,
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.connection.get_mut().close(Lost::Here);
    }
}

impl Shared {
    async fn connect(server: Peer, options: ClientOptions) -> io::Result<Arc<Self>> {
        let counters = Arc::new(Counting::default());
        let end = end_of(options.timeout);
        let connection = timeout_at(end, Connection::open(&server, &options, &counters));
        let connection = connection
            .await
            .unwrap_or_else(|_| Err(in_vain(options.timeout)))?;
        Ok(Arc::new(Self {
            server,
            options,
            connection: Mutex::new(connection),
            outstanding: AtomicUsize::new(0),
            counters,
        }))
    }

    async fn disconnect(&self) {
        self.connection.lock().await.close(Lost::Here);
    }

    async fn call(
        &self,
        calling: &Calling,
        mut written: Scratch,
        arguments: &[u8],
    ) -> Result<Bytes, Reason> {
        count(&self.counters.calls);
        let end = end_of(calling.timeout);
        let _outstanding = Outstanding::begin(self)?;
        let connection = match self.connection_now() {
            Some(connection) => connection,
            None => timeout_at(end, self.connection())
                .await
                .unwrap_or_else(|_| Err(in_vain(calling.timeout)))
                .map_err(NoReply::Connect)?,
        };
        let call = connection.begin(&mut written, arguments, &self.options, end)?;
        let after = calling.timeout;
        let late = NoReply::TimedOut { after, sent: 1 };
        Ok(call.reply().await.unwrap_or(Err(late))?.results()?)
    }

    /// A connection that has not ended, as far as we know, if there is one.
    fn connection_now(&self) -> Option<Arc<Connection>> {
        let connection = self.connection.try_lock().ok()?;
        (!connection.has_ended()).then(|| Arc::clone(&connection))
    }

    /// The same, or one that is made for that.
    async fn connection(&self) -> io::Result<Arc<Connection>> {
        let mut connection = self.connection.lock().await;
        if connection.has_ended() {
            *connection = Connection::open(&self.server, &self.options, &self.counters).await?;
        }
        Ok(Arc::clone(&connection))
    }
}

/// The error of a connection that took too long to be made.
fn in_vain(after: Duration) -> io::Error {
    let what = format!("not connected within {after:?}");
    io::Error::new(io::ErrorKind::TimedOut, what)
}

/// One of the calls that may be outstanding.
struct Outstanding<'a>(&'a AtomicUsize);

impl<'a> Outstanding<'a> {
    fn begin(shared: &'a Shared) -> Result<Self> {
        let limit = shared.options.max_calls;
        let one = Self(&shared.outstanding);
        // Counted before it is looked at: two that come at once don't take the same place.
        match one.0.fetch_add(1, Ordering::Relaxed) {
            others if others < limit => Ok(one),
            _ => Err(NoReply::TooManyCalls { limit }),
        }
    }
}

impl Drop for Outstanding<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
