//! Endpoints at emulated links.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use tokio::runtime::Handle;
use wallaby::Builder;
use wallaby::transport::{DatagramSocket, ReadHalf, Stream, Wrap, WriteHalf};

use crate::{DelayLine, Pacer};

/// How many bytes of one stream may be under way: as many as a link of 8 Gbit/s holds in 16 ms. A stream that has more waits, as
/// for a peer that does not read.
const WINDOW: usize = 16 << 20;

/// The same of pieces, and of the datagrams of a link. Further datagrams are lost.
const PIECES: usize = DelayLine::<()>::DEFAULT_CAPACITY;

const YEAR: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// Puts an endpoint at an emulated link: all that it sends, to whomever, arrives after `delay`, order kept. With a bandwidth it shares
/// so many bits a second as well; bytes handed to transports count, not the headers that a network puts around them. A delay of
/// zero without a bandwidth changes nothing, one above a year counts as a year.
///
/// A stream whose bytes find no room on the link waits; datagrams are lost then, as in networks.
///
/// ```
/// use std::time::Duration;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let builder = wallaby::Endpoint::builder().listen("tcp://127.0.0.1:0");
/// let server = wallaby_link::emulate(builder, Duration::from_millis(20), None)?.bind().await?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The operating system refused another thread.
pub fn emulate(
    builder: Builder,
    delay: Duration,
    bandwidth: Option<NonZeroU64>,
) -> io::Result<Builder> {
    let delay = delay.min(YEAR);
    if delay.is_zero() && bandwidth.is_none() {
        return Ok(builder);
    }
    Ok(builder.wrap_transports(Arc::new(Link::new(delay, bandwidth)?)))
}

/// What an endpoint's transports are wrapped in.
pub(crate) struct Link {
    line: Arc<DelayLine<UnderWay>>,
    /// How many are under way.
    datagrams: Arc<AtomicUsize>,
}

impl Link {
    pub(crate) fn new(delay: Duration, bandwidth: Option<NonZeroU64>) -> io::Result<Self> {
        // Who sends is held back before that.
        let most = usize::MAX;
        let line = DelayLine::start(delay, bandwidth.map(Pacer::new), most, UnderWay::arrive)?;
        Ok(Self {
            line: Arc::new(line),
            datagrams: Arc::default(),
        })
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.line.fmt(f)
    }
}

/// What a link carries.
enum UnderWay {
    Bytes(Arc<FarEnd>, Bytes),
    /// The stream ends after what was sent before.
    End(Arc<FarEnd>),
    Datagram {
        socket: Arc<dyn DatagramSocket>,
        to: SocketAddr,
        datagram: Bytes,
        under_way: Arc<AtomicUsize>,
    },
}

impl UnderWay {
    /// It has come to the end of the link.
    fn arrive(self) {
        match self {
            Self::Bytes(end, bytes) => end.arrive(|arrived| {
                arrived.pieces -= 1;
                arrived.bytes.extend_from_slice(&bytes);
            }),
            Self::End(end) => end.arrive(|arrived| arrived.ended = true),
            Self::Datagram {
                socket,
                to,
                datagram,
                under_way,
            } => {
                under_way.fetch_sub(1, Ordering::Relaxed);
                let _ = socket.try_send(&datagram, to); // lost if there is no room
            }
        }
    }
}

impl Wrap for Link {
    fn stream(&self, stream: Stream) -> Stream {
        let mut far = None;
        let stream = stream.map_writer(|writer| {
            let end = Arc::new(FarEnd {
                writer,
                arrived: Mutex::default(),
                runtime: Handle::current(),
            });
            far = Some(Arc::clone(&end));
            DelayedWriter {
                line: Arc::clone(&self.line),
                end,
            }
        });
        stream.map_reader(|reader| Reader { reader, end: far })
    }

    fn datagrams(&self, socket: Box<dyn DatagramSocket>) -> Box<dyn DatagramSocket> {
        Box::new(DelayedSocket {
            line: Arc::clone(&self.line),
            under_way: Arc::clone(&self.datagrams),
            socket: socket.into(),
        })
    }
}

/// Where a stream leaves the link, and the transport begins.
///
/// A transport tells the task that reads, and no other, when it takes more. So that one writes what it has not taken at first; a task
/// of its own does as soon as nobody reads any more.
struct FarEnd {
    writer: Box<dyn WriteHalf>,
    arrived: Mutex<Arrived>,
    runtime: Handle,
}

#[derive(Default)]
struct Arrived {
    /// What the transport has not taken yet.
    bytes: BytesMut,
    /// How many bytes are on the link or here.
    under_way: usize,
    /// How many pieces are on the link.
    pieces: usize,
    /// Nothing more comes.
    ended: bool,
    /// The transport takes no more now.
    blocked: bool,
    /// The transport takes nothing any more, and this is why.
    broken: Option<io::ErrorKind>,
    /// Who reads, and waits.
    reader: Option<Waker>,
    /// Nobody reads any more.
    unread: bool,
}

impl FarEnd {
    fn lock(&self) -> MutexGuard<'_, Arrived> {
        self.arrived.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn arrive(self: &Arc<Self>, arrival: impl FnOnce(&mut Arrived)) {
        let mut arrived = self.lock();
        let (was_full, was_blocked) = (arrived.is_full(), arrived.blocked);
        arrival(&mut arrived);
        if !was_blocked {
            arrived.blocked = !self.write(&mut arrived);
        }
        let blocks = arrived.blocked && !was_blocked;
        if blocks && arrived.unread {
            drop(arrived);
            return self.go_on_alone();
        }
        // It waits for the transport, or for room on the link.
        let waits = blocks || was_full && !arrived.is_full();
        let reader = arrived.reader.take_if(|_| waits);
        drop(arrived);
        reader.into_iter().for_each(Waker::wake);
    }

    /// Writes what has arrived; whether nothing of it is left.
    fn write(&self, arrived: &mut Arrived) -> bool {
        while !arrived.bytes.is_empty() {
            let written = match arrived.broken {
                Some(_) => Ok(arrived.bytes.len()), // as if lost
                None => self.writer.try_write(&arrived.bytes),
            };
            match written {
                Ok(written) => {
                    arrived.bytes.advance(written);
                    arrived.under_way -= written;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
                Err(error) => arrived.broken = Some(error.kind()),
            }
        }
        if arrived.ended {
            self.writer.shutdown();
        }
        true
    }

    /// Goes on writing if the transport has taken no more and does now.
    fn poll_write(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut arrived = self.lock();
        let was_full = arrived.is_full();
        while arrived.blocked {
            match self.writer.poll_writable(cx) {
                Poll::Pending => break,
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(error)) => arrived.broken = Some(error.kind()),
            }
            arrived.blocked = !self.write(&mut arrived);
        }
        if was_full && !arrived.is_full() {
            cx.waker().wake_by_ref(); // who reads may write again
        }
        match arrived.blocked {
            true => Poll::Pending,
            false => Poll::Ready(()),
        }
    }

    /// Whoever reads is woken when something is to be written, or there is room on the link again.
    fn note_reader(&self, cx: &Context<'_>) {
        self.lock().reader = Some(cx.waker().clone());
    }

    #[cold]
    fn go_on_alone(self: &Arc<Self>) {
        let end = Arc::clone(self);
        let go_on = std::future::poll_fn(move |cx| end.poll_write(cx));
        self.runtime.spawn(go_on);
    }
}

impl Arrived {
    fn is_full(&self) -> bool {
        self.under_way >= WINDOW || self.pieces >= PIECES
    }
}

/// The receiving end of a stream. What is received has been delayed by who has sent it.
struct Reader {
    reader: Box<dyn ReadHalf>,
    end: Option<Arc<FarEnd>>,
}

impl ReadHalf for Reader {
    fn poll_read(&mut self, cx: &mut Context<'_>, input: &mut BytesMut) -> Poll<io::Result<usize>> {
        if let Some(end) = &self.end {
            end.note_reader(cx);
            let _ = end.poll_write(cx);
        }
        self.reader.poll_read(cx, input)
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let Some(end) = &self.end else {
            return;
        };
        let mut arrived = end.lock();
        arrived.unread = true;
        arrived.reader = None;
        if arrived.blocked {
            drop(arrived);
            end.go_on_alone();
        }
    }
}

impl fmt::Debug for Reader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.reader.fmt(f)
    }
}

/// The sending end of a stream whose bytes go over the link first.
struct DelayedWriter {
    line: Arc<DelayLine<UnderWay>>,
    end: Arc<FarEnd>,
}

impl WriteHalf for DelayedWriter {
    fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        let mut arrived = self.end.lock();
        if let Some(why) = arrived.broken {
            return Err(why.into());
        }
        if arrived.is_full() && !bytes.is_empty() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let room = bytes.len().min(WINDOW - arrived.under_way);
        // Nothing arrives while this holds the lock, so the sums stay right.
        let bytes = Bytes::copy_from_slice(&bytes[..room]);
        let mut taken = 0;
        for piece in self.line.pieces(room) {
            let len = piece.len();
            if arrived.pieces >= PIECES {
                break;
            }
            let sent = UnderWay::Bytes(Arc::clone(&self.end), bytes.slice(piece));
            if self.line.send_bytes(sent, len).is_err() {
                return Err(io::Error::other("the emulated link has stopped"));
            }
            arrived.under_way += len;
            arrived.pieces += 1;
            taken += len;
        }
        Ok(taken)
    }

    fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Only the task that reads waits here.
        self.end.note_reader(cx);
        let _ = self.end.poll_write(cx);
        let arrived = self.end.lock();
        match arrived.is_full() && arrived.broken.is_none() {
            true => Poll::Pending,
            false => Poll::Ready(Ok(())),
        }
    }

    fn shutdown(&self) {
        let end = UnderWay::End(Arc::clone(&self.end));
        if let Err(stopped) = self.line.send(end) {
            stopped.into_item().arrive();
        }
    }
}

impl fmt::Debug for DelayedWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?}, delayed by {:?}",
            self.end.writer,
            self.line.delay()
        )
    }
}

/// A socket whose datagrams go over the link first.
#[derive(Debug)]
struct DelayedSocket {
    line: Arc<DelayLine<UnderWay>>,
    under_way: Arc<AtomicUsize>,
    socket: Arc<dyn DatagramSocket>,
}

impl DatagramSocket for DelayedSocket {
    fn local(&self) -> SocketAddr {
        self.socket.local()
    }

    fn poll_receive(
        &self,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<(usize, SocketAddr)>> {
        self.socket.poll_receive(cx, buffer)
    }

    fn try_send(&self, datagram: &[u8], to: SocketAddr) -> io::Result<()> {
        if self.under_way.fetch_add(1, Ordering::Relaxed) >= PIECES {
            self.under_way.fetch_sub(1, Ordering::Relaxed);
            return Ok(()); // lost, as there is no room on the link
        }
        let bytes = datagram.len();
        let datagram = UnderWay::Datagram {
            socket: Arc::clone(&self.socket),
            to,
            datagram: Bytes::copy_from_slice(datagram),
            under_way: Arc::clone(&self.under_way),
        };
        let _ = self.line.send_bytes(datagram, bytes); // as if lost, if the link has stopped
        Ok(())
    }

    fn poll_writable(&self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn take_unreachable(&self) -> Option<SocketAddr> {
        self.socket.take_unreachable()
    }
}
