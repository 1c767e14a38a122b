//! A stream: read by one task, written by whoever has something to write.

use std::cell::Cell;
use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker, ready};

use bytes::BytesMut;
use wallaby_proto::endpoint::{ConnId, InputOutcome as Taken, StreamEnd};

use super::effects::Inside;
use super::shared::Inner;
use crate::panics::{carried, polled};
use crate::transport::{Identity, ReadHalf, ReadRoom, WriteHalf, end_of};

/// Reads handled before other tasks get their turn. The second mostly finds that nothing more is there; where much
/// arrives, whoever waits for some of it goes first.
const READS_A_TURN: usize = 2;

/// Writes by one thread, each of all that there is, before it does something else.
const WRITES_A_TURN: usize = 16;

/// A stream that is open.
pub(crate) struct Stream {
    pub(super) id: ConnId,
    /// What its transport has proven of its peer.
    pub(super) identity: Arc<Identity>,
    writer: Box<dyn WriteHalf>,
    out: Mutex<Out>,
    /// Several answers came at once: what those who waited for them send next is written together, in the reader's next turn,
    /// which comes after theirs.
    gathering: AtomicBool,
    /// The endpoint takes no more input before more of the output is written.
    held: AtomicBool,
    ended: AtomicBool,
    /// Its last words were said.
    closed: AtomicBool,
    /// The reader, while it waits.
    reader: Mutex<Option<Waker>>,
}

/// What is being written.
#[derive(Default)]
struct Out {
    /// Taken from the endpoint; the first `written` bytes of it have left.
    bytes: Vec<u8>,
    written: usize,
    /// The transport takes no more now; the reader waits for it.
    blocked: bool,
}

impl Stream {
    pub(super) fn new(id: ConnId, identity: Identity, writer: Box<dyn WriteHalf>) -> Arc<Self> {
        Arc::new(Self {
            id,
            identity: Arc::new(identity),
            writer,
            out: Mutex::default(),
            gathering: AtomicBool::new(false),
            held: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            reader: Mutex::default(),
        })
    }

    fn out(&self) -> MutexGuard<'_, Out> {
        self.out.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self) {
        let known = self.reader.lock().unwrap_or_else(PoisonError::into_inner);
        let reader = known.clone();
        drop(known); // whoever is woken may read it
        reader.into_iter().for_each(Waker::wake);
    }

    // Writing.

    /// Writes what the endpoint has for it, as much as the transport takes now.
    pub(super) fn flush(self: &Arc<Self>, endpoint: &Arc<Inner>) {
        if self.gathering.load(Ordering::Acquire) {
            return; // the reader does it
        }
        // What this sets off comes when the output is free again.
        let _inside = Inside::enter();
        let mut out = self.out();
        if out.blocked || self.ended.load(Ordering::Acquire) {
            return;
        }
        if out.bytes.is_empty() {
            let bytes = &mut out.bytes;
            endpoint.ask(|core| core.endpoint.take_output(self.id, bytes));
        }
        for _ in 0..WRITES_A_TURN {
            match self.write(&mut out) {
                Ok(true) => {}
                Ok(false) => return self.block(endpoint, &mut out),
                Err(error) => return self.fail(endpoint, out, &error),
            }
            let written = std::mem::take(&mut out.written);
            let bytes = &mut out.bytes;
            let takes_input = endpoint.enter(|core| {
                let core = &mut core.endpoint;
                core.advance(self.id, written);
                core.take_output(self.id, bytes);
                bytes.is_empty().then(|| core.handle_written(self.id))
            });
            if let Some(takes_input) = takes_input {
                return self.note_input(takes_input);
            }
        }
        // Others go on to send: the reader does the rest, as this thread has more to do.
        self.gathering.store(true, Ordering::Release);
        self.wake();
    }

    /// The transport takes no more: the reader goes on when it does.
    fn block(self: &Arc<Self>, endpoint: &Arc<Inner>, out: &mut Out) {
        out.blocked = true;
        self.note_blocked(endpoint, out);
        self.wake();
    }

    /// So much was written as the transport takes now.
    fn note_blocked(self: &Arc<Self>, endpoint: &Arc<Inner>, out: &mut Out) {
        let written = std::mem::take(&mut out.written);
        out.bytes.drain(..written);
        let takes_input = endpoint.enter(|core| {
            core.endpoint.advance(self.id, written);
            core.endpoint.handle_blocked(self.id)
        });
        self.note_input(takes_input);
    }

    fn fail(&self, endpoint: &Arc<Inner>, mut out: MutexGuard<'_, Out>, error: &io::Error) {
        out.blocked = false;
        (out.bytes, out.written) = (Vec::new(), 0);
        drop(out);
        tracing::debug!(peer = %self.identity, %error, "a connection takes nothing more");
        endpoint.enter(|core| core.endpoint.handle_write_failed(self.id));
        self.note_input(true);
    }

    /// Whether the endpoint takes input of this peer now.
    fn note_input(&self, takes: bool) {
        if takes && self.held.swap(false, Ordering::AcqRel) {
            self.wake();
        }
    }

    /// Writes what was taken; whether the transport took all of it.
    fn write(&self, out: &mut Out) -> io::Result<bool> {
        carried(|| self.write_all(out))
    }

    fn write_all(&self, out: &mut Out) -> io::Result<bool> {
        while out.written < out.bytes.len() {
            let rest = &out.bytes[out.written..];
            match self.writer.try_write(rest) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                // It is code from outside.
                Ok(written) if written > rest.len() => {
                    return Err(io::Error::other("it says that it took more than there was"));
                }
                Ok(written) => out.written += written,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Ends it; this is still said if the transport takes it.
    pub(super) fn close(&self, last_words: &[u8]) {
        let mut out = self.out();
        let written = out.written;
        let _ = carried(|| {
            let more = self.writer.try_write(&out.bytes[written..])?;
            match written + more == out.bytes.len() && !last_words.is_empty() {
                true => self.writer.try_write(last_words),
                false => Ok(0),
            }
        });
        (out.bytes, out.written) = (Vec::new(), 0);
        self.closed.store(true, Ordering::Release);
        let reader_is_over = self.ended.swap(true, Ordering::AcqRel);
        drop(out);
        if reader_is_over {
            self.shut();
        }
        self.wake();
    }

    /// Nothing more is written.
    fn shut(&self) {
        let _ = carried(|| {
            self.writer.shutdown();
            Ok(())
        });
    }

    // Reading.

    /// Reads until the stream ends.
    pub(super) fn drive(
        self: Arc<Self>,
        reader: Box<dyn ReadHalf>,
        endpoint: &Arc<Inner>,
    ) -> impl Future<Output = ()> + Send + use<> {
        let reading = Reading {
            stream: self,
            endpoint: Arc::downgrade(endpoint),
            is_over: false,
        };
        async move {
            reading.stream.read_by(reader, &reading.endpoint).await;
            reading.end();
        }
    }

    async fn read_by(self: &Arc<Self>, mut reader: Box<dyn ReadHalf>, endpoint: &Weak<Inner>) {
        let mut input = InputBuffer {
            bytes: BytesMut::new(),
            room: ReadRoom::default(),
            unread: false,
        };
        poll_fn(|cx| {
            let Some(endpoint) = endpoint.upgrade() else {
                return Poll::Ready(());
            };
            let mut scratch = SCRATCH.take();
            // A connection in the midst of a frame has a buffer of its own.
            if input.bytes.is_empty() {
                std::mem::swap(&mut scratch, &mut input.bytes);
            }
            let end = self.poll(cx, &mut *reader, &mut input, &endpoint);
            if input.bytes.is_empty() && input.room.is_least() {
                std::mem::swap(&mut scratch, &mut input.bytes);
                input.bytes = BytesMut::new();
            }
            SCRATCH.set(scratch);
            end
        })
        .await;
    }

    fn poll(
        self: &Arc<Self>,
        cx: &mut Context<'_>,
        reader: &mut dyn ReadHalf,
        input: &mut InputBuffer,
        endpoint: &Arc<Inner>,
    ) -> Poll<()> {
        {
            let mut known = self.reader.lock().unwrap_or_else(PoisonError::into_inner);
            if !known
                .as_ref()
                .is_some_and(|known| known.will_wake(cx.waker()))
            {
                *known = Some(cx.waker().clone());
            }
        }
        if self.gathering.swap(false, Ordering::AcqRel) {
            self.flush(endpoint);
        }
        if self.ended.load(Ordering::Acquire) {
            return Poll::Ready(());
        }
        self.poll_write(cx, endpoint);
        for _ in 0..READS_A_TURN {
            if self.held.load(Ordering::Acquire) {
                return Poll::Pending; // until the transport takes something
            }
            if !std::mem::take(&mut input.unread) {
                let ended = match ready!(input.poll_read(reader, cx)) {
                    Ok(0) => Some(StreamEnd::Closed),
                    Ok(_) => None,
                    Err(error) => Some(end_of(&error)),
                };
                if let Some(end) = ended {
                    endpoint.enter(|core| {
                        core.endpoint.handle_ended(self.id, &mut input.bytes, end);
                    });
                    return Poll::Ready(());
                }
            }
            self.handle_input(endpoint, input);
            if self.ended.load(Ordering::Acquire) {
                return Poll::Ready(());
            }
            if self.gathering.load(Ordering::Acquire) {
                break; // what this turn's messages set off goes first
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Goes on writing if the transport takes something again.
    fn poll_write(self: &Arc<Self>, cx: &mut Context<'_>, endpoint: &Arc<Inner>) {
        loop {
            // What this sets off comes when the output is free again.
            let _inside = Inside::enter();
            let mut out = self.out();
            if !out.blocked {
                return;
            }
            match polled(|| self.writer.poll_writable(cx)) {
                Poll::Pending => return,
                Poll::Ready(Err(error)) => return self.fail(endpoint, out, &error),
                Poll::Ready(Ok(())) => {}
            }
            match self.write(&mut out) {
                Ok(true) => {
                    out.blocked = false;
                    drop(out);
                    self.flush(endpoint);
                }
                // Its peer is slow, and reads.
                Ok(false) => self.note_blocked(endpoint, &mut out),
                Err(error) => return self.fail(endpoint, out, &error),
            }
        }
    }

    fn handle_input(self: &Arc<Self>, endpoint: &Arc<Inner>, input: &mut InputBuffer) {
        endpoint.note_listening();
        loop {
            let bytes = &mut input.bytes;
            let taken = endpoint.enter(|core| {
                let answers = core.endpoint.counted().responses_received;
                let taken = core.endpoint.handle_input(self.id, bytes);
                // Whoever waits for them has something to send next, often.
                if core.endpoint.counted().responses_received - answers > 1 {
                    self.gathering.store(true, Ordering::Release);
                }
                taken
            });
            match taken {
                Taken::More => {}
                Taken::Held => {
                    input.unread = true;
                    self.held.store(true, Ordering::Release);
                    // It may have been written since.
                    if endpoint.ask(|core| core.endpoint.takes_input(self.id)) {
                        self.held.store(false, Ordering::Release);
                    }
                    return;
                }
                Taken::All => return,
                Taken::Ended => {
                    self.ended.store(true, Ordering::Release);
                    return;
                }
            }
        }
    }
}

/// Whoever reads a stream. If it is dropped before that is over, as its runtime ends, so does the stream, behind its last words.
struct Reading {
    stream: Arc<Stream>,
    endpoint: Weak<Inner>,
    is_over: bool,
}

impl Reading {
    fn end(mut self) {
        self.is_over = true;
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        let endpoint = self.endpoint.upgrade();
        if let Some(endpoint) = endpoint.as_ref().filter(|_| !self.is_over) {
            endpoint.note_dropped();
        }
        if !self.stream.ended.swap(true, Ordering::AcqRel)
            && let Some(endpoint) = endpoint
        {
            endpoint.enter(|core| {
                let why = "nobody reads it any more: the runtime of its endpoint has ended";
                let end = StreamEnd::Lost(why.to_owned());
                core.endpoint
                    .handle_ended(self.stream.id, &mut BytesMut::new(), end);
            });
        }
        // Who has ended it, on another thread perhaps, may have last words to say, and shuts it then.
        if !self.is_over || self.stream.closed.load(Ordering::Acquire) {
            self.stream.shut();
        }
    }
}

thread_local! {
    /// What streams read into, one after the other: so it stays in the cache, and those that are idle have no memory of their own
    /// for it.
    static SCRATCH: Cell<BytesMut> = Cell::default();
}

/// Where arriving bytes gather.
struct InputBuffer {
    bytes: BytesMut,
    room: ReadRoom,
    /// Some of it was not handled, since too much waits to be written.
    unread: bool,
}

impl InputBuffer {
    fn poll_read(
        &mut self,
        reader: &mut dyn ReadHalf,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        self.room.make(&mut self.bytes);
        let read = ready!(polled(|| reader.poll_read(cx, &mut self.bytes)))?;
        self.room.note(read);
        Poll::Ready(Ok(read))
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stream({:?}, {})", self.id, self.identity)
    }
}
