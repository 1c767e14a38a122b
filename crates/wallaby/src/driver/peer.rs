//! A connection to a peer: shared by all who send on it, read by one task.

use std::cell::Cell;
use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, Waker, ready};
use std::time::{Duration, Instant};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use tokio::sync::Notify;
use wallaby_proto::call::records::{Output, Sent, Session, Ticket};
use wallaby_proto::connection::{
    Connection, ConnectionError, Counters, Event, Hello, Mark, MethodDefinition, Refusal,
};
use wallaby_proto::wire::{Message, Request, Response};
use wallaby_proto::{CallId, NodeId};

use crate::driver::cork;
use crate::link::DelayLine;
use crate::liveness::Liveness;
use crate::timer;
use crate::transport::{ReadHalf, WriteHalf};

/// Least and most room for one read from the transport. A small room is used over and over and stays in the cache.
const READ: (usize, usize) = (2 * 1024, 64 * 1024);

/// Output above this is written even while a batch is handled.
const CORK_LIMIT: usize = 64 * 1024;

/// How long the last words of a peer that takes nothing more may take to arrive: they are on their way already.
const DRAIN: Duration = Duration::from_secs(1);

/// Reads handled before other tasks get their turn. The second mostly finds that nothing more is there; where much
/// arrives, whoever waits for some of it goes first.
const READS_A_TURN: usize = 2;

/// One open connection.
pub(crate) struct Peer {
    /// Unique in this process.
    pub(crate) id: u64,
    writer: WriteHalf,
    state: Mutex<State>,
    hello: OnceLock<Arc<Hello>>,
    closed: AtomicBool,
    leaving: AtomicBool,
    /// Something may be accepted that was not before; also told when the connection ends.
    room: Notify,
    /// Tick of the last use, for the pool.
    pub(crate) used: AtomicU64,
    /// Calls and requests that need this connection.
    pub(crate) busy: AtomicU32,
    delay: Option<Arc<DelayLine<Delayed>>>,
    liveness: Arc<Liveness>,
}

/// A message that a request released: its record waits for its place in the output.
pub(crate) type Place = (Ticket, Sent);

/// Bytes that leave after the emulated delay of a link.
pub(crate) struct Delayed {
    pub(crate) peer: Arc<Peer>,
    pub(crate) bytes: Bytes,
}

struct State {
    connection: Connection,
    opened: Instant,
    /// Bytes whose delay is over and that did not fit yet (only with an emulated link).
    late: BytesMut,
    /// The transport takes no more; the driver waits for it.
    blocked: bool,
    /// Somebody will write the output at the end of a batch.
    kept: bool,
    /// Messages of requests that travel in parts, by stream.
    large: Vec<(u64, Ticket, Sent)>,
    /// The driver, while it waits.
    driver: Option<Waker>,
    /// Why the connection ends.
    ended: Option<String>,
    /// It ends since the peer takes nothing more; what the peer had sent before is still read.
    broken: bool,
}

/// What a driver does with what arrives.
pub(crate) trait Dispatch {
    /// An event of the connection; what is in it may be taken out.
    fn handle(&mut self, peer: &Arc<Peer>, event: &mut Event);
    /// All events of a read were handled.
    fn batch_done(&mut self, peer: &Arc<Peer>);
}

impl Peer {
    pub(crate) fn new(
        connection: Connection,
        writer: WriteHalf,
        delay: Option<Arc<DelayLine<Delayed>>>,
        liveness: Arc<Liveness>,
    ) -> Arc<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Arc::new(Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            writer,
            state: Mutex::new(State {
                connection,
                opened: Instant::now(),
                late: BytesMut::new(),
                blocked: false,
                kept: false,
                large: Vec::new(),
                driver: None,
                ended: None,
                broken: false,
            }),
            hello: OnceLock::new(),
            closed: AtomicBool::new(false),
            leaving: AtomicBool::new(false),
            room: Notify::new(),
            used: AtomicU64::new(0),
            busy: AtomicU32::new(0),
            delay,
            liveness,
        })
    }

    /// What the peer said of itself; `None` before the handshake is done.
    pub(crate) fn hello(&self) -> Option<&Arc<Hello>> {
        self.hello.get()
    }

    /// The peer's life; `None` before the handshake is done.
    pub(crate) fn node(&self) -> Option<NodeId> {
        self.hello.get().map(|hello| hello.node)
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Whether it takes new requests: it is open, and its peer is not going away.
    pub(crate) fn is_usable(&self) -> bool {
        !self.is_closed() && !self.leaving.load(Ordering::Acquire)
    }

    /// The peer is going away: what was sent is still answered.
    pub(crate) fn set_leaving(&self) {
        self.leaving.store(true, Ordering::Release);
    }

    /// Tells the peer that this side is going away.
    pub(crate) fn go_away(self: &Arc<Self>) {
        let mut state = self.lock();
        if state.ended.is_none() {
            state.connection.go_away();
            self.written(&mut state);
        }
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.busy.load(Ordering::Relaxed) == 0 && self.lock().connection.is_idle()
    }

    pub(crate) fn counters(&self) -> Counters {
        self.lock().connection.counters()
    }

    /// Sends a request, if it is accepted.
    pub(crate) fn try_request(
        self: &Arc<Self>,
        request: &mut Request,
        method: &MethodDefinition,
        place: Option<Place>,
    ) -> Result<(), Refused> {
        let mut state = self.lock();
        if let Some(ended) = &state.ended {
            return Err(Refused::Ended(ended.clone()));
        }
        state.connection.send_request(request, method)?;
        self.sent(&mut state, place);
        Ok(())
    }

    /// Sends a response, if it is accepted. `oldest` is the initiator's oldest live call, as far as known.
    pub(crate) fn try_response(
        self: &Arc<Self>,
        response: &Response,
        counted: bool,
        oldest: u64,
        place: Option<Place>,
    ) -> Result<Output, Refused> {
        let mut state = self.lock();
        if let Some(ended) = &state.ended {
            return Err(Refused::Ended(ended.clone()));
        }
        if counted {
            state.connection.forget_calls(CallId {
                sequence: oldest,
                ..response.call
            });
        }
        state.connection.send_response(response, counted)?;
        Ok(self.sent(&mut state, place))
    }

    /// Sends a message that needs no credit; `false` if the connection has ended.
    pub(crate) fn control(self: &Arc<Self>, message: Message) -> bool {
        self.try_control(message, None).is_some()
    }

    /// The same for a message that a request released.
    pub(crate) fn try_control(
        self: &Arc<Self>,
        message: Message,
        place: Option<Place>,
    ) -> Option<Output> {
        let mut state = self.lock();
        if state.ended.is_some() || state.connection.send_control(message).is_err() {
            return None;
        }
        Some(self.sent(&mut state, place))
    }

    /// A message was added to the output: where it stands, and at once or later the records know.
    fn sent(self: &Arc<Self>, state: &mut State, place: Option<Place>) -> Output {
        let mark = state.connection.mark();
        if let (Mark::Parts(stream), Some((ticket, sent))) = (mark, place) {
            state.large.push((stream, ticket, sent));
        }
        self.written(state);
        let session = Session(self.id);
        match (mark, place) {
            (Mark::Written(mark), place) => {
                let output = Output { session, mark };
                if let Some((ticket, sent)) = place {
                    self.liveness.placed(ticket, sent, output);
                }
                output
            }
            (Mark::Parts(_), _) => Output { session, mark: 0 },
        }
    }

    /// Whether a request would be accepted now.
    pub(crate) fn takes_requests(&self) -> bool {
        self.lock().connection.takes_requests()
    }

    /// Whether a response to this call would be accepted now.
    pub(crate) fn takes_responses(&self, call: CallId) -> bool {
        self.lock().connection.takes_responses(call)
    }

    /// Requests that came over this connection left the queue for their handlers.
    pub(crate) fn grant_requests(self: &Arc<Self>, payloads: impl Iterator<Item = usize>) {
        let mut state = self.lock();
        payloads.for_each(|payload| state.connection.grant_request(payload));
        self.written(&mut state);
    }

    /// The application took responses of a call that came over this connection.
    pub(crate) fn grant_call(self: &Arc<Self>, call: CallId, responses: u64, payload: u64) {
        let mut state = self.lock();
        state.connection.grant_call(call, responses, payload);
        self.written(&mut state);
    }

    /// Waits until something may be accepted that was not before. Create it before trying, so that nothing is missed.
    pub(crate) fn room(&self) -> tokio::sync::futures::Notified<'_> {
        self.room.notified()
    }

    /// Ends the connection: the peer is told why, what was accepted is written as far as the transport takes it now.
    pub(crate) fn end(self: &Arc<Self>, reason: &str) {
        let mut state = self.lock();
        if state.ended.is_none() {
            state.connection.close(reason);
            self.flush(&mut state);
            self.fail(state, reason);
        }
    }

    /// Writes what a new connection has to say at once.
    pub(crate) fn flush_now(self: &Arc<Self>) {
        let mut state = self.lock();
        self.flush(&mut state);
    }

    /// Ends the connection if a large message that arrives has stopped to grow.
    pub(crate) fn check_stalled(self: &Arc<Self>) {
        let stalled = self.lock().connection.check_stalled();
        if let Err(error) = stalled {
            self.end(&error.to_string());
        }
    }

    /// The end of a batch.
    pub(crate) fn uncork(self: &Arc<Self>) {
        let mut state = self.lock();
        state.kept = false;
        self.flush(&mut state);
    }

    /// Bytes of an emulated link have reached its end.
    pub(crate) fn arrive_late(self: &Arc<Self>, bytes: &[u8]) {
        let mut state = self.lock();
        state.late.put_slice(bytes);
        self.flush(&mut state);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Output was added: it is written now, or at the end of the batch that this thread handles.
    fn written(self: &Arc<Self>, state: &mut State) {
        if state.blocked {
            return;
        }
        if cork::is_corked() && state.connection.waiting() < CORK_LIMIT {
            if !state.kept {
                state.kept = cork::keep(self);
            }
            return;
        }
        self.flush(state);
    }

    /// Writes what the transport takes.
    fn flush(self: &Arc<Self>, state: &mut State) {
        if state.blocked || state.ended.is_some() {
            return;
        }
        state.tell_time();
        let result = match &self.delay {
            Some(delay) => self.flush_delayed(state, delay),
            None => self.flush_output(state),
        };
        if !state.large.is_empty() {
            self.note_left(state);
        }
        if let Err(error) = result {
            self.mark_broken(state, &error);
        }
    }

    /// The records learn which large messages have left.
    #[inline(never)]
    fn note_left(&self, state: &mut State) {
        let session = Session(self.id);
        while let Some((stream, mark)) = state.connection.next_left() {
            let known = state.large.iter().position(|large| large.0 == stream);
            if let Some(position) = known {
                let (_, ticket, sent) = state.large.swap_remove(position);
                self.liveness.placed(ticket, sent, Output { session, mark });
            }
        }
    }

    #[cold]
    #[inline(never)]
    fn mark_broken(&self, state: &mut State, error: &io::Error) {
        state.broken = true;
        self.mark_ended(state, &format!("cannot write: {error}"));
    }

    fn flush_output(&self, state: &mut State) -> io::Result<()> {
        loop {
            let output = state.connection.output();
            if output.is_empty() {
                return Ok(());
            }
            match self.writer.try_write(output) {
                Ok(written) => state.connection.advance(written),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    state.block();
                    return Ok(());
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// With an emulated link, output goes to the delay line and comes back as late bytes.
    #[cold]
    #[inline(never)]
    fn flush_delayed(
        self: &Arc<Self>,
        state: &mut State,
        delay: &DelayLine<Delayed>,
    ) -> io::Result<()> {
        loop {
            let bytes = Bytes::copy_from_slice(state.connection.output());
            if bytes.is_empty() {
                break;
            }
            let len = bytes.len();
            if delay
                .send(Delayed {
                    peer: Arc::clone(self),
                    bytes,
                })
                .is_err()
            {
                return Err(io::Error::other("the emulated link is full"));
            }
            state.connection.advance(len);
        }
        while !state.late.is_empty() {
            match self.writer.try_write(&state.late) {
                Ok(written) => state.late.advance(written),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    state.block();
                    break;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn mark_ended(&self, state: &mut State, reason: &str) {
        state.ended.get_or_insert_with(|| reason.to_owned());
        self.closed.store(true, Ordering::Release);
        self.room.notify_waiters();
        state.driver.take().into_iter().for_each(Waker::wake);
        for (_, ticket, sent) in state.large.drain(..) {
            self.liveness.dropped(ticket, sent);
        }
    }

    fn fail(&self, mut state: MutexGuard<'_, State>, reason: &str) {
        self.mark_ended(&mut state, reason);
    }

    /// Reads and dispatches until the connection ends; returns why.
    pub(crate) async fn drive(
        self: &Arc<Self>,
        mut reader: ReadHalf,
        dispatch: &mut impl Dispatch,
    ) -> Result<String, ConnectionError> {
        let mut input = Input {
            bytes: BytesMut::new(),
            room: READ.0,
            drained: None,
        };
        let end = poll_fn(|cx| {
            let mut scratch = SCRATCH.take();
            scratch.lend(&mut input);
            let end = self.poll(cx, &mut reader, &mut input, &mut scratch.events, dispatch);
            scratch.take_back(&mut input);
            SCRATCH.set(scratch);
            end
        })
        .await;
        self.driven(end)
    }

    #[cold]
    #[inline(never)]
    fn driven(
        self: &Arc<Self>,
        end: Result<String, ConnectionError>,
    ) -> Result<String, ConnectionError> {
        if let Err(error) = &end {
            self.end(&error.to_string());
        }
        let mut state = self.lock();
        let reason = end.as_ref().map_or_else(ToString::to_string, Clone::clone);
        self.mark_ended(&mut state, &reason);
        drop(state);
        self.writer.shutdown();
        end
    }

    fn poll(
        self: &Arc<Self>,
        cx: &mut Context<'_>,
        reader: &mut ReadHalf,
        input: &mut Input,
        events: &mut Vec<Event>,
        dispatch: &mut impl Dispatch,
    ) -> Poll<Result<String, ConnectionError>> {
        let (ended, broken) = self.poll_write(cx);
        if let (Some(ended), false) = (&ended, broken) {
            return Poll::Ready(Ok(ended.clone()));
        }
        for _ in 0..READS_A_TURN {
            let Poll::Ready(read) = input.poll_read(reader, cx) else {
                let Some(ended) = ended else {
                    return Poll::Pending;
                };
                return input.poll_drained(cx).map(|()| Ok(ended));
            };
            match read {
                Ok(0) => return Poll::Ready(Ok("the peer closed it".into())),
                Ok(_) => {}
                Err(error) => return Poll::Ready(Ok(format!("cannot read: {error}"))),
            }
            match self.handle_input(&mut input.bytes, events, dispatch) {
                Ok(false) => {}
                // What this turn's messages set off goes first.
                Ok(true) => break,
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Goes on writing if the transport takes something again; says why if the connection has ended, and whether there
    /// may be something left to read.
    fn poll_write(self: &Arc<Self>, cx: &mut Context<'_>) -> (Option<String>, bool) {
        let mut state = self.lock();
        while state.blocked && state.ended.is_none() {
            match self.writer.poll_writable(cx) {
                Poll::Pending => break,
                Poll::Ready(_) => {
                    state.blocked = false;
                    self.flush(&mut state);
                    self.room.notify_waiters();
                }
            }
        }
        if !state.blocked && !state.kept && state.connection.has_output() {
            self.flush(&mut state);
            self.room.notify_waiters();
        }
        if !state
            .driver
            .as_ref()
            .is_some_and(|driver| driver.will_wake(cx.waker()))
        {
            state.driver = Some(cx.waker().clone());
        }
        (state.ended.clone(), state.broken)
    }

    /// Returns whether there is something to write, in the next turn of the driver.
    fn handle_input(
        self: &Arc<Self>,
        input: &mut BytesMut,
        events: &mut Vec<Event>,
        dispatch: &mut impl Dispatch,
    ) -> Result<bool, ConnectionError> {
        let mut state = self.lock();
        state.tell_time();
        let failed = loop {
            match state.connection.handle_input(input) {
                Ok(Some(event)) => events.push(event),
                Ok(None) => break None,
                Err(error) => break Some(error),
            }
        };
        // The handshake's answer, credit for parts, and parts of ours that credit has freed.
        let has_output = state.connection.has_output();
        drop(state);
        cork::batch(|| {
            for event in &mut *events {
                match event {
                    Event::Opened(hello) => {
                        let _ = self.hello.set(Arc::clone(hello));
                    }
                    Event::Credit => self.room.notify_waiters(),
                    _ => {}
                }
                dispatch.handle(self, event);
            }
            events.clear();
            dispatch.batch_done(self);
        });
        failed.map_or(Ok(has_output), Err)
    }
}

impl State {
    /// The connection wants to know the time only while large messages leave.
    fn tell_time(&mut self) {
        if self.connection.wants_time() {
            self.connection.set_time(self.opened.elapsed());
        }
    }

    fn block(&mut self) {
        self.blocked = true;
        if let Some(driver) = &self.driver {
            driver.wake_by_ref();
        }
    }
}

/// Why a peer did not accept a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Refused {
    /// It may later, or never: see the refusal.
    Now(Refusal),
    /// The connection has ended; why.
    Ended(String),
}

impl From<Refusal> for Refused {
    fn from(refusal: Refusal) -> Self {
        Self::Now(refusal)
    }
}

thread_local! {
    static SCRATCH: Cell<Scratch> = Cell::default();
}

/// What connections use while they are driven, one after the other: so it stays in the cache, and those that are idle
/// have no memory of their own for it.
#[derive(Default)]
struct Scratch {
    bytes: BytesMut,
    events: Vec<Event>,
}

impl Scratch {
    /// A connection in the midst of a frame has a buffer of its own.
    fn lend(&mut self, input: &mut Input) {
        if input.bytes.is_empty() {
            std::mem::swap(&mut self.bytes, &mut input.bytes);
        }
    }

    fn take_back(&mut self, input: &mut Input) {
        self.events.clear();
        if input.bytes.is_empty() && input.room == READ.0 {
            std::mem::swap(&mut self.bytes, &mut input.bytes);
            input.bytes = BytesMut::new();
        }
    }
}

/// Where arriving bytes gather.
struct Input {
    bytes: BytesMut,
    /// Room for the next read: grows while reads fill it.
    room: usize,
    /// When nothing more is expected of a peer that takes nothing more.
    drained: Option<timer::Sleep>,
}

impl Input {
    fn poll_drained(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let drained = self
            .drained
            .get_or_insert_with(|| timer::sleep_until(Instant::now() + DRAIN));
        Pin::new(drained).poll(cx)
    }

    fn poll_read(
        &mut self,
        reader: &mut ReadHalf,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        if self.bytes.capacity() - self.bytes.len() < self.room {
            self.bytes.reserve(2 * self.room);
        }
        let read = ready!(reader.poll_read(cx, &mut self.bytes))?;
        if read >= self.room {
            self.room = (self.room * 2).min(READ.1);
        } else if read < self.room / 4 {
            self.room = (self.room / 2).max(READ.0);
        }
        Poll::Ready(Ok(read))
    }
}

impl fmt::Debug for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Peer({}, {:?})", self.id, self.node())
    }
}
