//! Calls over UDP: each is sent again, with the same number, until its reply is there or its time is over.

use std::io::{self, IoSlice};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use nix::sys::socket::{MsgFlags, SockaddrStorage, sendmsg};
use tokio::sync::oneshot;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, sleep_until};

use super::counters::{Counters, Counting, count};
use super::xid::{Arrived, Waiting, arrived};
use super::{Calling, Options, Result};
use crate::auth::OpaqueAuth;
use crate::deadline::end_of;
use crate::failure::{NoReply, Reason};
use crate::message::{Procedure, Reply};
use crate::peer::Peer;
use crate::service::Channel;
use crate::udp;

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
    options: Options,
    waiting: Mutex<Waiting<Waiter>>,
    counters: Counting,
}

#[derive(Debug)]
struct Waiter {
    sent: u32,
    reply: oneshot::Sender<Result<Reply>>,
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
    pub async fn connect(server: SocketAddr, options: Options) -> io::Result<Self> {
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
            counters: Counting::default(),
        });
        let receiver = tokio::spawn(receive(Arc::clone(&inner))).abort_handle();
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
    pub fn counters(&self) -> Counters {
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

impl Channel for UdpChannel {
    async fn call(&self, procedure: Procedure, arguments: Bytes) -> Result<Bytes, Reason> {
        let inner = &*self.shared.inner;
        count(&inner.counters.calls);
        let (call, reply) = Outstanding::begin(inner, self.calling.timeout)?;
        let head = self.calling.head(call.xid, procedure)?;
        let message = [&head[..], &arguments[..]];
        let found = head.len() + arguments.len();
        let limit = udp::max_payload(inner.server);
        if found > limit {
            return Err(NoReply::TooLong { limit, found }.into());
        }
        let reply = tokio::select! {
            reply = reply => reply.unwrap_or(Err(NoReply::Send(io::ErrorKind::NotConnected.into())))?,
            error = call.transmit(message) => return Err(error.into()),
        };
        Ok(reply.results()?)
    }

    fn peer(&self) -> Option<Peer> {
        Some(Peer::Udp(self.shared.inner.server))
    }
}

impl Inner {
    fn waiting(&self) -> MutexGuard<'_, Waiting<Waiter>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a message, which is not put together for that.
    async fn send(&self, message: [&[u8]; 2]) -> io::Result<()> {
        let parts = message.map(IoSlice::new);
        let send = |socket: &UdpSocket| {
            let (descriptor, none) = (socket.as_raw_fd(), MsgFlags::empty());
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
        let datagram = buffer.get(..length).unwrap_or_default();
        match self.handle_datagram(Bytes::copy_from_slice(datagram)) {
            Left::Nothing => Err(io::ErrorKind::WouldBlock.into()),
            Left::Perhaps => Ok(()),
        }
    }

    fn handle_datagram(&self, datagram: Bytes) -> Left {
        let (xid, reply) = match arrived(datagram) {
            Arrived::Reply(xid, reply) => (xid, Ok(reply)),
            Arrived::Malformed(..) | Arrived::Other => {
                // Anybody who can fake an address can send this: the call waits for a better reply.
                count(&self.counters.malformed);
                return Left::Perhaps;
            }
        };
        let (waiter, others) = {
            let mut waiting = self.waiting();
            (waiting.remove(xid), waiting.len())
        };
        let Some(waiter) = waiter else {
            count(&self.counters.late_replies);
            return Left::Perhaps;
        };
        count(&self.counters.replies);
        // Who dropped the call does not wait.
        let _ = waiter.reply.send(reply);
        match (others, waiter.sent) {
            (0, 1) => Left::Nothing,
            _ => Left::Perhaps,
        }
    }

    /// The system says that a datagram of ours did not arrive, not which: all that wait have nobody who answers.
    fn handle_unreachable(&self, error: &io::Error, except: Option<u32>) {
        let mut waiting = self.waiting();
        let spared = except.and_then(|xid| Some((xid, waiting.remove(xid)?)));
        for waiter in waiting.drain() {
            let error = io::Error::new(error.kind(), error.to_string());
            let sent = waiter.sent;
            let _ = waiter.reply.send(Err(NoReply::Unreachable { sent, error }));
        }
        if let Some((xid, waiter)) = spared {
            waiting.restore(xid, waiter);
        }
    }
}

async fn receive(inner: Arc<Inner>) {
    let mut buffer = vec![0; udp::LARGEST];
    loop {
        let receive = |socket: &UdpSocket| inner.receive(socket, &mut buffer);
        if let Err(error) = inner.socket.receive(receive).await {
            inner.handle_unreachable(&error, None);
            sleep(udp::AFTER_ERROR).await;
        }
    }
}

/// A call that waits; not any more when this is dropped.
struct Outstanding<'a> {
    inner: &'a Inner,
    xid: u32,
    timeout: Duration,
    end: Instant,
}

impl<'a> Outstanding<'a> {
    fn begin(
        inner: &'a Inner,
        timeout: Duration,
    ) -> Result<(Self, oneshot::Receiver<Result<Reply>>)> {
        let end = end_of(timeout);
        let limit = inner.options.max_calls;
        let mut waiting = inner.waiting();
        if waiting.len() >= limit {
            return Err(NoReply::TooManyCalls { limit });
        }
        let (reply, receiver) = oneshot::channel();
        let xid = waiting.insert(Waiter { sent: 0, reply });
        let call = Self {
            inner,
            xid,
            timeout,
            end,
        };
        Ok((call, receiver))
    }

    /// Sends the call until there is no time left. Why it cannot be sent any more.
    async fn transmit(&self, message: [&[u8]; 2]) -> NoReply {
        let Options {
            retransmit_after,
            retransmit_at_most,
            ..
        } = self.inner.options;
        let (mut wait, mut sent) = (retransmit_after, 0);
        loop {
            if let Err(error) = self.send(message).await {
                return NoReply::Send(error);
            }
            sent += 1;
            if sent > 1 {
                count(&self.inner.counters.retransmissions);
            }
            let next = end_of(wait.max(Duration::from_millis(1)));
            sleep_until(next.min(self.end)).await;
            if next >= self.end {
                let after = self.timeout;
                return NoReply::TimedOut { after, sent };
            }
            wait = wait.saturating_mul(2).min(retransmit_at_most);
        }
    }

    async fn send(&self, message: [&[u8]; 2]) -> io::Result<()> {
        if let Some(waiter) = self.inner.waiting().get_mut(self.xid) {
            waiter.sent += 1;
        }
        match self.inner.send(message).await {
            Ok(()) => Ok(()),
            // The answer to an earlier datagram, in place of sending this one.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                let is_first = self
                    .inner
                    .waiting()
                    .get(self.xid)
                    .is_some_and(|w| w.sent == 1);
                self.inner
                    .handle_unreachable(&error, is_first.then_some(self.xid));
                self.inner.send(message).await
            }
            Err(error) => Err(error),
        }
    }
}

impl Drop for Outstanding<'_> {
    fn drop(&mut self) {
        self.inner.waiting().remove(self.xid);
    }
}
