//! One connection of a server: records in, replies out as they are ready.

use std::collections::VecDeque;
use std::future::{Future, pending, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::Interest;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{Instant, sleep_until};

use super::counters::count;
use super::{Phase, Shared, ends, job};
use crate::deadline::after;
use crate::message::{BadMessage, CallBody, Denial, MessageBody, Reply, RpcMessage};
use crate::peer::Origin;
use crate::record::{self, MAX_FRAGMENT, RecordReader};
use crate::scratch::Scratch;
use crate::stream::Stream;

/// How much is read at a time.
const READ: usize = 64 << 10;

#[derive(Debug)]
pub(super) struct Connection {
    id: u64,
    stream: Stream,
    origin: Origin,
    output: Mutex<Output>,
    /// A place for each request that is handled. It is taken until the reply is with the system.
    places: Arc<Semaphore>,
    max_places: usize,
    last_used: AtomicU64,
    is_over: AtomicBool,
    /// The connection's task has something to do: to write, to read on, to end.
    changed: Notify,
}

/// What has to be written.
#[derive(Debug, Default)]
struct Output {
    unsent: BytesMut,
    sent: u64,
    /// Where replies end in the stream, and the places of their requests.
    replies: VecDeque<(u64, Places)>,
}

/// The places that a request takes, in its connection and in the server.
#[derive(Debug)]
struct Places {
    _own: OwnedSemaphorePermit,
    _shared: OwnedSemaphorePermit,
}

type Admission = Pin<Box<dyn Future<Output = Option<Places>> + Send>>;

impl Connection {
    pub(super) fn new(shared: &Shared, stream: Stream, origin: Origin) -> Arc<Self> {
        let max_places = shared.options.max_requests_per_connection;
        let max_places = max_places.clamp(1, Semaphore::MAX_PERMITS);
        let id = shared.connections.tick();
        Arc::new(Self {
            id,
            stream,
            origin,
            output: Mutex::default(),
            places: Arc::new(Semaphore::new(max_places)),
            max_places,
            last_used: AtomicU64::new(id),
            is_over: AtomicBool::new(false),
            changed: Notify::new(),
        })
    }

    pub(super) fn id(&self) -> u64 {
        self.id
    }

    /// When it was used last, on the clock of uses.
    pub(super) fn last_used(&self) -> u64 {
        self.last_used.load(Ordering::Relaxed)
    }

    /// Whether no request of it is handled and no reply on its way.
    pub(super) fn is_idle(&self) -> bool {
        self.places.available_permits() == self.max_places
    }

    /// Ends it, as soon as its task looks.
    pub(super) fn end(&self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.changed.notify_one();
    }

    fn output(&self) -> MutexGuard<'_, Output> {
        self.output.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes a reply, as far as the system takes it now; the task does the rest, and looks whether there is one.
    fn reply(&self, xid: u32, reply: Option<Reply>, places: Places) {
        // Nobody has memory for one that is longer.
        let reply = reply.filter(|reply| reply.length() <= MAX_FRAGMENT);
        let written = reply.map(|reply| {
            Scratch::write(|writer| {
                writer.u32(0); // the mark's place
                reply.write(xid, writer)
            })
        });
        let Some(Ok(mut record)) = written else {
            return;
        };
        record::set_mark(&mut record, 0);
        let mut output = self.output();
        let sent = match output.unsent.is_empty() {
            true => self.stream.try_write(&record),
            false => Ok(0),
        };
        let sent = match sent {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => {
                return self.is_over.store(true, Ordering::Relaxed);
            }
            sent => sent.unwrap_or(0),
        };
        output.sent += sent as u64;
        let rest = record.get(sent..).unwrap_or_default();
        if rest.is_empty() {
            return;
        }
        output.unsent.extend_from_slice(rest);
        let end = output.sent + output.unsent.len() as u64;
        output.replies.push_back((end, places));
    }

    /// Writes what waits, as far as the system takes it. Whether anything was written.
    fn write(&self, output: &mut Output) -> io::Result<bool> {
        let before = output.sent;
        while !output.unsent.is_empty() {
            match self.stream.try_write(&output.unsent) {
                Ok(length) => {
                    output.unsent.advance(length);
                    output.sent += length as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        let sent = output.sent;
        while output.replies.front().is_some_and(|(end, _)| *end <= sent) {
            output.replies.pop_front();
        }
        Ok(sent > before)
    }
}

/// Serves a connection until it or the server ends.
pub(super) fn spawn(shared: &Arc<Shared>, connection: Arc<Connection>) {
    let shared = Arc::clone(shared);
    tokio::spawn(async move {
        Task::new(&shared, &connection).run().await;
        shared.connections.remove(&connection);
        // Requests that are still handled have nobody to answer, and no place to keep.
        connection.output().replies.clear();
    });
}

/// A connection ends: it did, or has to.
struct Over;

struct Task<'a> {
    shared: &'a Arc<Shared>,
    connection: &'a Arc<Connection>,
    records: RecordReader,
    buffer: Vec<u8>,
    /// A call that waits for its places.
    waiting: Option<(Bytes, Admission)>,
    /// Nothing more is read: the peer has ended its half, or the server drains.
    is_closing: bool,
    is_draining: bool,
    /// When the peer took something last, or began to be waited for.
    progress: Instant,
    /// Something waited for it when it was looked last.
    had_unsent: bool,
}

impl<'a> Task<'a> {
    fn new(shared: &'a Arc<Shared>, connection: &'a Arc<Connection>) -> Self {
        Self {
            shared,
            connection,
            records: RecordReader::new(shared.options.max_record),
            buffer: vec![0; READ],
            waiting: None,
            is_closing: false,
            is_draining: false,
            progress: Instant::now(),
            had_unsent: false,
        }
    }

    async fn run(mut self) {
        let phase = self.shared.phase.subscribe();
        let mut ended = pin!(ended_at(phase.clone(), Phase::Draining));
        loop {
            match self.turn(ended.as_mut()).await {
                Ok(true) => {}
                Ok(false) => ended.set(ended_at(phase.clone(), Phase::Stopped)),
                Err(Over) => return,
            }
        }
    }

    /// Waits until there is something to do, and does it; whether the server's phase is as it was.
    async fn turn(&mut self, ended: impl Future<Output = ()>) -> Result<bool, Over> {
        let connection = self.connection;
        let has_unsent = !connection.output().unsent.is_empty();
        if has_unsent && !self.had_unsent {
            self.progress = Instant::now();
        }
        self.had_unsent = has_unsent;
        let is_idle = connection.is_idle() && !has_unsent;
        if connection.is_over.load(Ordering::Relaxed) || self.is_closing && is_idle {
            return Err(Over);
        }
        let may_read = !self.is_closing && self.waiting.is_none();
        let interest = match (may_read, has_unsent) {
            (true, true) => Some(Interest::READABLE | Interest::WRITABLE),
            (true, false) => Some(Interest::READABLE),
            (false, true) => Some(Interest::WRITABLE),
            (false, false) => None,
        };
        let ready = async {
            match interest {
                Some(interest) => connection.stream.ready(interest).await,
                None => pending().await,
            }
        };
        let stalled = after(self.progress, self.shared.options.write_timeout);
        tokio::select! {
            ready = ready => {
                let ready = ready.map_err(|_| Over)?;
                if ready.is_writable() && has_unsent {
                    self.write()?;
                }
                if may_read && (ready.is_readable() || ready.is_read_closed()) {
                    self.read()?;
                    self.handle_records().await?;
                }
            }
            places = admitted(&mut self.waiting) => {
                if let (Some((record, _)), Some(places)) = (self.waiting.take(), places) {
                    self.handle_record(record, places).await?;
                }
                self.handle_records().await?;
            }
            () = connection.changed.notified() => {}
            () = async { sleep_until(stalled).await }, if has_unsent => {
                count(&self.shared.counters.stalled);
                return Err(Over);
            }
            () = ended => {
                if self.is_draining {
                    return Err(Over);
                }
                (self.is_closing, self.is_draining) = (true, true);
                self.waiting = None;
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn write(&mut self) -> Result<(), Over> {
        let mut output = self.connection.output();
        if self.connection.write(&mut output).map_err(|_| Over)? {
            self.progress = Instant::now();
        }
        Ok(())
    }

    fn read(&mut self) -> Result<(), Over> {
        let stream = &self.connection.stream;
        match stream.try_read(&mut self.records, &mut self.buffer) {
            // It may want its replies nevertheless.
            Ok(0) => self.is_closing = true,
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => return Err(Over),
        }
        Ok(())
    }

    /// Begins with all records that are there and have places.
    async fn handle_records(&mut self) -> Result<(), Over> {
        while self.waiting.is_none() {
            let record = self.records.poll_record().map_err(|_| {
                count(&self.shared.counters.too_long_records);
                Over
            })?;
            let Some(record) = record else {
                return Ok(());
            };
            let tick = self.shared.connections.tick();
            self.connection.last_used.store(tick, Ordering::Relaxed);
            match self.places() {
                Some(places) => self.handle_record(record, places).await?,
                None => self.waiting = Some((record, self.admission())),
            }
        }
        Ok(())
    }

    /// Places that are free now.
    fn places(&self) -> Option<Places> {
        Some(Places {
            _own: Arc::clone(&self.connection.places)
                .try_acquire_owned()
                .ok()?,
            _shared: Arc::clone(&self.shared.requests).try_acquire_owned().ok()?,
        })
    }

    /// Places, as soon as there are some.
    fn admission(&self) -> Admission {
        let own = Arc::clone(&self.connection.places);
        let shared = Arc::clone(&self.shared.requests);
        Box::pin(async move {
            // The semaphores are never closed.
            Some(Places {
                _own: own.acquire_owned().await.ok()?,
                _shared: shared.acquire_owned().await.ok()?,
            })
        })
    }

    async fn handle_record(&mut self, record: Bytes, places: Places) -> Result<(), Over> {
        match RpcMessage::decode(record) {
            Ok(RpcMessage {
                xid,
                body: MessageBody::Call(call),
            }) => self.handle_call(xid, call, places).await,
            Err(BadMessage::OtherVersion { xid, .. }) => {
                let denied = Reply::Denied(Denial::other_version());
                self.connection.reply(xid, Some(denied), places);
            }
            Ok(_) | Err(BadMessage::Malformed(_)) => {
                count(&self.shared.counters.malformed);
                return Err(Over);
            }
        }
        Ok(())
    }

    async fn handle_call(&mut self, xid: u32, call: CallBody, places: Places) {
        let origin = self.connection.origin.clone();
        let mut call = Some((call, origin));
        let begun = poll_fn(|context| {
            let begun = call
                .take()
                .map(|(call, origin)| job::run(self.shared, call, origin, context));
            Poll::Ready(begun)
        });
        match begun.await {
            Some(Ok(reply)) => self.connection.reply(xid, reply, places),
            Some(Err(handling)) => {
                let connection = Arc::clone(self.connection);
                job::finish(self.shared, handling, move |reply| async move {
                    connection.reply(xid, reply, places);
                    connection.changed.notify_one();
                });
            }
            None => {}
        }
    }
}

/// When a server is at least this far with its end.
async fn ended_at(mut phase: watch::Receiver<Phase>, at_least: Phase) {
    ends(&mut phase, at_least).await;
}

/// The places for the call that waits; never, if none does.
async fn admitted(waiting: &mut Option<(Bytes, Admission)>) -> Option<Places> {
    match waiting {
        Some((_, admission)) => admission.await,
        None => pending().await,
    }
}
