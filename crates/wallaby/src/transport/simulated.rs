//! `tcp:` and `udp:` inside a simulation of turmoil.

use std::fmt;
use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};

use bytes::{BufMut, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use turmoil::net::{TcpListener, TcpStream, UdpSocket};

use super::datagrams::DatagramSocket;
use super::foreign::{Accepted, Listener, ReadHalf, WriteHalf};
use super::identity::Identity;
use crate::transport;

/// One end of a connection: its reader and its writer share it.
#[derive(Debug, Clone)]
struct Half(Arc<Mutex<Stream>>);

#[derive(Debug)]
struct Stream {
    stream: TcpStream,
    shut: bool,
    reader: Option<Waker>,
}

type Accepting = Pin<Box<dyn Future<Output = io::Result<TcpStream>> + Send>>;

/// Where connections come in.
pub(super) struct SimulatedListener {
    listener: Arc<TcpListener>,
    /// The wait for the next one.
    accepting: Option<Accepting>,
}

/// Opens a connection.
pub(super) async fn dial(to: SocketAddr) -> io::Result<transport::Stream> {
    TcpStream::connect(to).await.map(halves)
}

/// Listens at an address of the simulated host; returns it with its port.
pub(super) async fn listen(at: SocketAddr) -> io::Result<(SimulatedListener, SocketAddr)> {
    let listener = TcpListener::bind(anywhere(at)).await?;
    let port = listener.local_addr()?.port();
    let listener = SimulatedListener {
        listener: Arc::new(listener),
        accepting: None,
    };
    Ok((listener, SocketAddr::new(at.ip(), port)))
}

/// Simulated hosts have one address and bind to the unspecified one.
fn anywhere(at: SocketAddr) -> SocketAddr {
    let ip: IpAddr = match at {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    SocketAddr::new(ip, at.port())
}

/// Whether this is a host that lives: when it crashes, what its tasks held is dropped, and says no goodbyes.
fn is_alive() -> bool {
    turmoil::in_simulation() && tokio::runtime::Handle::try_current().is_ok()
}

fn halves(stream: TcpStream) -> transport::Stream {
    let half = Half(Arc::new(Mutex::new(Stream {
        stream,
        shut: false,
        reader: None,
    })));
    transport::Stream::new(half.clone(), half, Identity::default())
}

impl Half {
    fn lock(&self) -> MutexGuard<'_, Stream> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ReadHalf for Half {
    fn poll_read(&mut self, cx: &mut Context<'_>, input: &mut BytesMut) -> Poll<io::Result<usize>> {
        let mut this = self.lock();
        if this.shut {
            return Poll::Ready(Ok(0));
        }
        let mut room = vec![0; input.capacity() - input.len()];
        let mut buffer = ReadBuf::new(&mut room);
        let Poll::Ready(read) = Pin::new(&mut this.stream).poll_read(cx, &mut buffer) else {
            this.reader = Some(cx.waker().clone());
            return Poll::Pending;
        };
        input.put_slice(buffer.filled());
        Poll::Ready(read.map(|()| buffer.filled().len()))
    }
}

impl WriteHalf for Half {
    fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        let this = self.lock();
        if this.shut || !is_alive() {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        this.stream.try_write(bytes)
    }

    fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.lock();
        pin!(this.stream.writable()).poll(cx)
    }

    fn shutdown(&self) {
        let mut this = self.lock();
        this.shut = true;
        if !is_alive() {
            return;
        }
        // It never waits, and an error means that the peer was faster.
        let mut cx = Context::from_waker(Waker::noop());
        let _ = Pin::new(&mut this.stream).poll_shutdown(&mut cx);
        let reader = this.reader.take();
        drop(this);
        reader.into_iter().for_each(Waker::wake);
    }
}

impl Listener for SimulatedListener {
    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Accepted>> {
        let listener = &self.listener;
        let accepting = self.accepting.get_or_insert_with(|| {
            let listener = Arc::clone(listener);
            Box::pin(async move { listener.accept().await.map(|(stream, _)| stream) })
        });
        let accepted = ready!(accepting.as_mut().poll(cx));
        self.accepting = None;
        Poll::Ready(accepted.map(|stream| Accepted::Open(halves(stream))))
    }
}

impl fmt::Debug for SimulatedListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Listener")
    }
}

/// A UDP socket.
#[derive(Debug)]
pub(super) struct Socket {
    socket: UdpSocket,
    local: SocketAddr,
}

impl Socket {
    pub(super) fn bind(at: SocketAddr) -> io::Result<Self> {
        let bound = pin!(UdpSocket::bind(anywhere(at)));
        let Poll::Ready(socket) = bound.poll(&mut Context::from_waker(Waker::noop())) else {
            return Err(io::ErrorKind::WouldBlock.into()); // it never waits
        };
        let socket = socket?;
        let local = SocketAddr::new(at.ip(), socket.local_addr()?.port());
        Ok(Self { socket, local })
    }
}

impl DatagramSocket for Socket {
    fn local(&self) -> SocketAddr {
        self.local
    }

    fn poll_receive(
        &self,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<(usize, SocketAddr)>> {
        pin!(self.socket.recv_from(buffer)).poll(cx)
    }

    fn try_send(&self, datagram: &[u8], to: SocketAddr) -> io::Result<()> {
        if !is_alive() {
            return Err(io::ErrorKind::NotConnected.into());
        }
        self.socket.try_send_to(datagram, to).map(drop)
    }

    fn poll_writable(&self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
