//! `shm:`: rings in memory that two processes of one host share.
//!
//! Bytes are put into a ring and taken out without a system call. Only who is about to sleep says so, and is woken over an
//! event descriptor, its *bell*. The unix socket over which the memory came stays open as a sign of life.
//!
//! - [`memory`] is the shared memory, [`ring`] the rings in it, [`setup`] how two processes come to share them;
//! - here the rings wait by means of tokio. It waits for descriptors: so a bell is an eventfd and no futex, for which a thread
//!   would have to sleep;
//! - [`turned`] is a connection of the polling driver: it looks at the rings while it is awake, and announces itself before it
//!   sleeps at last.

mod memory;
mod ring;
mod setup;
#[cfg(test)]
mod tests;
pub(crate) mod turned;

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::BytesMut;
use rustix::io::Errno;
use rustix::net::{RecvFlags, Shutdown};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinSet;

use self::ring::{Consumer, Producer};
use self::setup::{Agreed, Offer, SetupError};
use super::foreign::{Accepted, Listener, ReadHalf, Stream, WriteHalf};
use super::identity::Identity;
use crate::timer::{self, Instant};

/// How long a stranger may take to say what it has to say at once.
const SETUP_LIMIT: Duration = Duration::from_secs(1);

/// Strangers at a time that may take so long; more wait until they are accepted.
const SETUPS: usize = 64;

/// The two ends that one side of a stream holds.
type Ends = (Reader, Writer);

/// What both ends have to do with the peer, apart from its rings.
#[derive(Debug)]
struct PeerLink {
    life: AsyncFd<OwnedFd>,
    bell: AsyncFd<OwnedFd>,
    peer_bell: OwnedFd,
    /// The peer has ended, or this side has.
    gone: AtomicBool,
    /// Who the peer is.
    identity: Identity,
}

#[derive(Debug)]
struct Reader {
    link: Arc<PeerLink>,
    consumer: Consumer,
}

#[derive(Debug)]
struct Writer {
    link: Arc<PeerLink>,
    producer: Mutex<Producer>,
}

#[derive(Debug)]
pub(super) struct ShmListener {
    listener: UnixListener,
    setups: JoinSet<Option<Result<Ends, SetupError>>>,
}

/// Opens a connection to who listens at this path, with rings of this capacity.
pub(super) async fn dial(path: &str, capacity: usize) -> io::Result<Stream> {
    let (agreed, dialled) = offer(path, capacity).await?;
    Ok(stream(PeerLink::open(agreed, dialled)?))
}

async fn offer(path: &str, capacity: usize) -> Result<(Agreed, UnixStream), SetupError> {
    let stream = UnixStream::connect(path).await?;
    let mut offer = Offer::send(&stream, capacity)?;
    let agreed = when_readable(&stream, || offer.answered(&stream)).await?;
    Ok((agreed, stream))
}

/// Does a step of a set-up, again whenever the peer has said something.
async fn when_readable<T>(
    stream: &UnixStream,
    mut step: impl FnMut() -> Result<Option<T>, SetupError>,
) -> Result<T, SetupError> {
    if let Some(done) = step()? {
        return Ok(done);
    }
    let again = || match step() {
        Ok(None) => Err(io::ErrorKind::WouldBlock.into()),
        Ok(Some(done)) => Ok(Ok(done)),
        Err(error) => Ok(Err(error)),
    };
    stream.async_io(Interest::READABLE, again).await?
}

impl ShmListener {
    /// Listens at a path, to which only this user may connect.
    pub(super) fn bind(path: &Path) -> io::Result<Self> {
        Ok(Self {
            listener: UnixListener::from_std(setup::listen(path)?.into())?,
            setups: JoinSet::new(),
        })
    }
}

impl Listener for ShmListener {
    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Accepted>> {
        loop {
            while self.setups.len() < SETUPS {
                let Poll::Ready(accepted) = self.listener.poll_accept(cx) else {
                    break;
                };
                self.setups.spawn(set_up(accepted?.0, SETUP_LIMIT));
            }
            match ready!(self.setups.poll_join_next(cx)) {
                Some(Ok(Some(Ok(ends)))) => {
                    return Poll::Ready(Ok(Accepted::Open(stream(ends))));
                }
                Some(Ok(Some(Err(error)))) => {
                    tracing::debug!(%error, "memory is not shared with somebody who dialled");
                }
                Some(Ok(None)) => tracing::debug!("somebody who dialled says nothing"),
                Some(Err(error)) => tracing::error!(%error, "a set-up of shared memory failed"),
                None => return Poll::Pending,
            }
        }
    }
}

/// `None` if it takes too long.
async fn set_up(stream: UnixStream, limit: Duration) -> Option<Result<Ends, SetupError>> {
    let accepting = when_readable(&stream, || setup::accept(&stream));
    let accepted = timer::timeout_at(Instant::now() + limit, accepting).await;
    accepted.map(|agreed| agreed.and_then(|agreed| PeerLink::open(agreed, stream)))
}

impl PeerLink {
    /// The ends of a connection whose set-up is done.
    fn open(agreed: Agreed, stream: UnixStream) -> Result<Ends, SetupError> {
        let identity = Identity::of_local(&stream);
        let life = stream.into_std()?;
        let link = Arc::new(Self {
            life: memory::register(life.into())?,
            bell: memory::register(agreed.bell)?,
            peer_bell: agreed.peer_bell,
            gone: AtomicBool::new(false),
            identity,
        });
        let (producer, consumer) = ring::ends(agreed.memory, agreed.capacity, agreed.side);
        let writer = Writer {
            link: Arc::clone(&link),
            producer: Mutex::new(producer),
        };
        Ok((Reader { link, consumer }, writer))
    }

    fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    /// Ends it in both directions.
    fn end(&self) {
        self.gone.store(true, Ordering::Release);
        // An error means that the peer was faster.
        let _ = rustix::net::shutdown(self.life.get_ref(), Shutdown::Both);
    }

    /// Who has lied once is not asked again.
    #[cold]
    fn fail(&self, error: io::Error) -> io::Error {
        self.end();
        error
    }

    #[cold]
    fn broken(&self, error: ring::Broken) -> io::Error {
        self.fail(io::Error::new(io::ErrorKind::InvalidData, error))
    }

    /// Wakes the peer.
    fn ring(&self) {
        // A bell that cannot be rung any more has not been heard for 2^64 times, or is none: its owner's affair.
        let _ = rustix::io::write(&self.peer_bell, &1u64.to_ne_bytes());
    }

    /// Ready when the bell was rung since the last look, or the peer has ended.
    fn poll_rung(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Poll::Ready(ready) = self.life.poll_read_ready(cx) {
            let mut ready = ready?;
            match rustix::net::recv(ready.get_inner(), &mut [0; 1], RecvFlags::DONTWAIT) {
                Ok((_, 0)) | Err(Errno::CONNRESET) => {
                    self.gone.store(true, Ordering::Release);
                    return Poll::Ready(Ok(()));
                }
                Ok(_) => {
                    let what = "the peer talks beside the shared memory";
                    let error = io::Error::new(io::ErrorKind::InvalidData, what);
                    return Poll::Ready(Err(self.fail(error)));
                }
                Err(Errno::AGAIN) => ready.clear_ready(),
                Err(Errno::INTR) => {}
                Err(error) => return Poll::Ready(Err(self.fail(error.into()))),
            }
        }
        // The bell is not read, which saves a system call a message: the kernel tells of each ring, not of a state.
        ready!(self.bell.poll_read_ready(cx))?.clear_ready();
        Poll::Ready(Ok(()))
    }
}

fn stream((reader, writer): Ends) -> Stream {
    let identity = reader.link.identity.clone();
    Stream::new(reader, writer, identity)
}

impl ReadHalf for Reader {
    fn poll_read(&mut self, cx: &mut Context<'_>, input: &mut BytesMut) -> Poll<io::Result<usize>> {
        loop {
            // First: what the peer put in before it ended must be found after it is known to have ended.
            let gone = self.link.is_gone();
            let read = self.consumer.read(input);
            let read = read.map_err(|error| self.link.broken(error))?;
            if read > 0 {
                self.consumer.withdraw();
                if self.consumer.wakes_writer() {
                    self.link.ring();
                }
                return Poll::Ready(Ok(read));
            }
            if gone {
                return Poll::Ready(Ok(0));
            }
            if !self.consumer.announce() {
                ready!(self.link.poll_rung(cx))?;
                self.consumer.withdraw(); // so it is announced anew: who rings takes that back
            }
        }
    }
}

impl Writer {
    fn producer(&self) -> std::sync::MutexGuard<'_, Producer> {
        self.producer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl WriteHalf for Writer {
    fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        let mut producer = self.producer();
        if self.link.is_gone() {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let written = producer.write(bytes);
        let written = written.map_err(|error| self.link.broken(error))?;
        if written == 0 && !bytes.is_empty() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        if producer.wakes_reader() {
            self.link.ring();
        }
        Ok(written)
    }

    /// By the task that reads: both wait for the same bell, and it wakes one task.
    fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut producer = self.producer();
        loop {
            let room = match self.link.is_gone() {
                true => u64::MAX, // to be seen by writing
                false => producer.room().map_err(|error| self.link.broken(error))?,
            };
            if room > 0 {
                producer.withdraw();
                return Poll::Ready(Ok(()));
            }
            if !producer.announce() {
                ready!(self.link.poll_rung(cx))?;
                producer.withdraw();
            }
        }
    }

    fn shutdown(&self) {
        self.link.end();
    }
}
