//! Calls over UDP: each is sent again, with the same number, until its reply is there or its time is over.

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;

use bytes::Bytes;
use nix::sys::socket::{MsgFlags, SockaddrStorage, sendmsg};
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep};

use super::counters::{ClientCounters, Counting, count};
use super::xid::{Arrived, Event, Waiting, arrived_in};
use super::{Calling, ClientOptions, Result, set_xid};
use crate::auth::OpaqueAuth;
use crate::deadline::{after as end_after, end_of, rings};
use crate::failure::{NoReply, Reason};
use crate::message::{Procedure, Reply};
use crate::peer::Peer;
use crate::record::HEADER;
use crate::scratch::Scratch;
use crate::service::Channel;
use crate::udp;
use crate::xdr::{EncodeError, Writer};

/// A way to a server over UDP. A clone is the same channel.
///
/// Calls and results have to fit into a datagram, 65,507 bytes with everything. A server may execute a call as often as it
/// was sent, unless it keeps a cache of duplicates, as [`Server`](crate::server::Server) does.
#[derive(Debug, Clone)]
pub struct UdpChannel {
    shared: Arc<Shared>,
    calling: Calling,
}

#[derive(Debug)]
struct Shared {
    inner: Arc<Inner>,
    receiver: AbortHandle,
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.receiver.abort();
    }
}

#[derive(Debug)]
struct Inner {
    socket: udp::Socket,
    server: SocketAddr,
    options: ClientOptions,
    /// Calls that wait, and how often each was sent.
    waiting: Mutex<Waiting<u32>>,
    /// There is another alarm.
    alarmed: Notify,
    /// Nobody receives any more.
    is_over: AtomicBool,
    counters: Counting,
}

/// What may be at a socket after a datagram.
enum Left {
    /// No call waits, and the last one was sent once.
    Nothing,
    /// Another reply, or a second one to a call that was sent more than once.
    Perhaps,
}

impl UdpChannel {
    /// Calls to this server, from a port of our own. Nothing is sent yet.
    ///
    /// # Errors
    /// The system has no socket, or no way to that address.
    pub async fn connect(server: SocketAddr, options: ClientOptions) -> io::Result<Self> {
        let any: SocketAddr = match server {
            SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
            SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
        };
        let socket = UdpSocket::bind(any)?;
        // The system drops what comes from elsewhere, and tells us when nobody is there.
        socket.connect(server)?;
        let calling = Calling::new(&options);
        let inner = Arc::new(Inner {
            socket: udp::Socket::new(socket)?,
            server,
            options,
            waiting: Mutex::new(Waiting::new()?),
            alarmed: Notify::new(),
            is_over: AtomicBool::new(false),
            counters: Counting::default(),
        });
        let receiver = tokio::spawn(receive(Receiving(Arc::clone(&inner)))).abort_handle();
        let shared = Arc::new(Shared { inner, receiver });
        Ok(Self { shared, calling })
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
        self.shared.inner.counters.now()
    }

    /// The address that calls are sent from.
    ///
    /// # Errors
    /// The system does not say.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.shared.inner.socket.get_ref().local_addr()
    }
}

impl UdpChannel {
    async fn call_written(&self, mut written: Scratch, arguments: &[u8]) -> Result<Bytes, Reason> {
        let inner = &*self.shared.inner;
        count(&inner.counters.calls);
        let mut call = Outstanding::begin(inner, self.calling.timeout)?;
        set_xid(&mut written, call.xid);
        let head = written.get(HEADER..).unwrap_or_default();
        let found = head.len() + arguments.len();
        let limit = udp::max_payload(inner.server);
        if found > limit {
            return Err(NoReply::TooLong { limit, found }.into());
        }
        Ok(call.reply([head, arguments]).await?.results()?)
    }
}

impl Channel for UdpChannel {
    async fn call(&self, procedure: Procedure, arguments: Bytes) -> Result<Bytes, Reason> {
        let written = self.calling.written(procedure, |_| Ok(()))?;
        self.call_written(written, &arguments).await
    }

    fn call_with(
        &self,
        procedure: Procedure,
        arguments: impl FnOnce(&mut Writer) -> Result<(), EncodeError>,
    ) -> impl Future<Output = Result<Bytes, Reason>> + Send {
        let written = self.calling.written(procedure, arguments);
        async move { self.call_written(written?, &[]).await }
    }

    fn peer(&self) -> Option<Peer> {
        Some(Peer::Udp(self.shared.inner.server))
    }
}

impl Inner {
    fn waiting(&self) -> MutexGuard<'_, Waiting<u32>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a message, which is not put together for that.
    async fn send(&self, message: [&[u8]; 2]) -> io::Result<()> {
        let send = |socket: &UdpSocket| {
            if let [head, []] = message {
                return socket.send(head).map(drop);
            }
            let (descriptor, none) = (socket.as_raw_fd(), MsgFlags::empty());
            let parts = message.map(IoSlice::new);
            sendmsg::<SockaddrStorage>(descriptor, &parts, &[], none, None)?;
            Ok(())
        };
        self.socket.send(send).await
    }

    /// Handles a datagram, if there is one. After the only reply that can come it is as if there were no other: the system
    /// tells of what the next call is answered with, and to look would be a call of the system for nothing.
    fn receive(&self, socket: &UdpSocket, buffer: &mut [u8]) -> io::Result<()> {
        let (length, from) = socket.recv_from(buffer)?;
        if from != self.server {
            // What came before the socket was connected may be anybody's.
            count(&self.counters.foreign);
            return Ok(());
        }
        match self.handle_datagram(buffer.get(..length).unwrap_or_default()) {
            Left::Nothing => Err(io::ErrorKind::WouldBlock.into()),
            Left::Perhaps => Ok(()),
        }
    }

    fn handle_datagram(&self, datagram: &[u8]) -> Left {
        let (xid, reply) = match arrived_in(datagram) {
            Arrived::Reply(xid, reply) => (xid, Ok(reply)),
            Arrived::Malformed(..) | Arrived::Other => {
                // Anybody who can fake an address can send this: the call waits for a better reply.
                count(&self.counters.malformed);
                return Left::Perhaps;
            }
        };
        let mut waiting = self.waiting();
        let Some((waker, sent)) = waiting.answer(xid, reply) else {
            drop(waiting);
            count(&self.counters.late_replies);
            return Left::Perhaps;
        };
        let is_last = *sent == 1 && waiting.unanswered() == 0;
        drop(waiting);
        count(&self.counters.replies);
        waker.into_iter().for_each(Waker::wake);
        match is_last {
            true => Left::Nothing,
            false => Left::Perhaps,
        }
    }

    /// The system says that a datagram of ours did not arrive, not which: all that wait have nobody who answers.
    fn handle_unreachable(&self, error: &io::Error, except: Option<u32>) {
        self.waiting().answer_all(except, |sent| {
            let error = io::Error::new(error.kind(), error.to_string());
            Err(NoReply::Unreachable { sent: *sent, error })
        });
    }
}

/// No call waits for what nobody receives: the task ends with the channel, or with the runtime that the channel was made in.
struct Receiving(Arc<Inner>);

impl Drop for Receiving {
    fn drop(&mut self) {
        self.0.is_over.store(true, Ordering::SeqCst);
        self.0.waiting().answer_all(None, |_| Err(not_connected()));
    }
}

fn not_connected() -> NoReply {
    NoReply::Send(io::ErrorKind::NotConnected.into())
}

/// Receives for all calls, and tells them when their time has come.
async fn receive(receiving: Receiving) {
    let inner = &receiving.0;
    let mut buffer = vec![0; udp::LARGEST];
    loop {
        let alarm = inner.waiting().alarm();
        let receive = |socket: &UdpSocket| inner.receive(socket, &mut buffer);
        tokio::select! {
            received = inner.socket.receive(receive) => {
                if let Err(error) = received {
                    inner.handle_unreachable(&error, None);
                    sleep(udp::AFTER_ERROR).await;
                }
            }
            () = inner.alarmed.notified() => {}
            () = rings(alarm) => inner.waiting().ring(Instant::now()),
        }
    }
}

/// A call that waits; not any more when this is dropped.
struct Outstanding<'a> {
    inner: &'a Inner,
    xid: u32,
    timeout: Duration,
    end: Instant,
    /// When it is sent again.
    next: Instant,
}

impl<'a> Outstanding<'a> {
    fn begin(inner: &'a Inner, timeout: Duration) -> Result<Self> {
        let limit = inner.options.max_calls;
        let now = Instant::now();
        let end = end_after(now, timeout);
        let next = end_after(now, shortest(inner.options.retransmit_after)).min(end);
        let mut waiting = inner.waiting();
        if waiting.len() >= limit {
            return Err(NoReply::TooManyCalls { limit });
        }
        let (xid, is_set) = waiting.insert(0, next);
        drop(waiting);
        if is_set {
            inner.alarmed.notify_one();
        }
        let outstanding = Self {
            inner,
            xid,
            timeout,
            end,
            next,
        };
        match inner.is_over.load(Ordering::SeqCst) {
            true => Err(not_connected()),
            false => Ok(outstanding),
        }
    }

    /// Sends the call until there is a reply, or no time left.
    async fn reply(&mut self, message: [&[u8]; 2]) -> Result<Reply> {
        let options = &self.inner.options;
        let (mut wait, mut sent) = (options.retransmit_after, 0);
        loop {
            self.send(message).await.map_err(NoReply::Send)?;
            sent += 1;
            if sent > 1 {
                count(&self.inner.counters.retransmissions);
            }
            match poll_fn(|context| self.inner.waiting().poll(self.xid, context)).await {
                Some(Event::Over(outcome)) => return outcome,
                Some(Event::Due) if self.next < self.end => {}
                Some(Event::Due) => {
                    let after = self.timeout;
                    return Err(NoReply::TimedOut { after, sent });
                }
                None => return Err(not_connected()),
            }
            wait = wait.saturating_mul(2).min(options.retransmit_at_most);
            self.next = end_of(shortest(wait)).min(self.end);
            if self.inner.waiting().set_due(self.xid, self.next) {
                self.inner.alarmed.notify_one();
            }
        }
    }

    async fn send(&self, message: [&[u8]; 2]) -> io::Result<()> {
        let sent = self.inner.waiting().get_mut(self.xid).map(|sent| {
            *sent += 1;
            *sent
        });
        match self.inner.send(message).await {
            Ok(()) => Ok(()),
            // The answer to an earlier datagram, in place of sending this one.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                let spared = (sent == Some(1)).then_some(self.xid);
                self.inner.handle_unreachable(&error, spared);
                self.inner.send(message).await
            }
            Err(error) => Err(error),
        }
    }
}

/// A wait that does not keep a core busy.
fn shortest(wait: Duration) -> Duration {
    wait.max(Duration::from_millis(1))
}

impl Drop for Outstanding<'_> {
    fn drop(&mut self) {
        self.inner.waiting().remove(self.xid);
    }
}
