//! A connection to a peer: shared by all who send on it, read by one task.

use std::cell::Cell;
use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use wallaby_proto::call::records::{Output, Passage, Sent, Session, Ticket};
use wallaby_proto::connection::{
    BodyEvent, BodyRefusal, Connection, ConnectionError, Counters, Event, Hello, KeepAlive,
    KeepAliveSettings, Mark, MethodDefinition, Refusal,
};
use wallaby_proto::datagram::Ended;
use wallaby_proto::wire::{MAX_FRAME, Message, Request, Response};
use wallaby_proto::{Address, CallId, NodeId};

use crate::body::Inbound;
use crate::driver::cork;
use crate::driver::own::OwnOutput;
use crate::driver::room::{Room, Waiting, Want};
use crate::driver::way::Way;
use crate::link::DelayLine;
use crate::liveness::Liveness;
use crate::pool::{Freed, Uses};
use crate::timer::{self, Instant};
use crate::transport::udp::Socket;
use crate::transport::{Identity, StreamReader};

/// Least and most room for one read from the transport. A small room is used over and over and stays in the cache.
const READ: (usize, usize) = (2 * 1024, 64 * 1024);

/// Output above this is written even while a batch is handled.
const CORK_LIMIT: usize = 64 * 1024;

/// How long the last words of a peer that takes nothing more may take to arrive: they are on their way already.
const DRAIN: Duration = Duration::from_secs(1);

/// How often it is looked whether there is room for more of large messages again.
const RETRY: Duration = Duration::from_millis(50);

/// Reads handled before other tasks get their turn. The second mostly finds that nothing more is there; where much
/// arrives, whoever waits for some of it goes first.
const READS_A_TURN: usize = 2;

/// One open connection.
pub(crate) struct Peer {
    /// Unique in this process.
    pub(crate) id: u64,
    /// What its transport has proven of it.
    pub(crate) identity: Identity,
    state: Mutex<State>,
    hello: OnceLock<Arc<Hello>>,
    closed: AtomicBool,
    leaving: AtomicBool,
    /// Something may be accepted that was not before; also told when the connection ends.
    room: Room,
    pub(crate) uses: Uses,
    /// Calls and requests that need this connection.
    busy: AtomicU32,
    passed_over: PassedOver,
    delay: Option<Arc<DelayLine<Delayed>>>,
    liveness: Arc<Liveness>,
}

/// A number for a connection, unique in this process.
pub(crate) fn next_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Somebody needs a connection, whether anything is under way on it or not.
pub(crate) struct Wanted<'a>(&'a Peer);

impl Drop for Wanted<'_> {
    fn drop(&mut self) {
        self.0.release();
    }
}

/// Whether it was needed when the pool wanted room, and who is to learn when it may not be any more.
#[derive(Debug, Default)]
struct PassedOver {
    was: AtomicBool,
    freed: OnceLock<Arc<Freed>>,
}

/// Whoever waits for a message's place in the output.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Place {
    /// A request released it: its record.
    Released(Ticket, Sent),
    /// It is another server's answer that is passed on, or the status of a request that is not remembered.
    Passing(Passage),
    /// It is an initial request of this endpoint's call with this sequence, or a ping about it: see [`Peer::is_writing`].
    Initiator(u64),
}

/// What leaves after the emulated delay of a link.
pub(crate) enum Delayed {
    /// Bytes of a stream.
    Bytes { peer: Arc<Peer>, bytes: Bytes },
    /// A datagram.
    Datagram {
        socket: Arc<Socket>,
        to: SocketAddr,
        datagram: Bytes,
    },
}

impl Delayed {
    /// The emulated link of an endpoint, if it has one.
    pub(crate) fn link(
        delay: Option<Duration>,
        bandwidth: Option<NonZeroU64>,
    ) -> io::Result<Option<Arc<DelayLine<Self>>>> {
        let line = match (delay, bandwidth) {
            (None, None) => return Ok(None),
            (Some(delay), None) => DelayLine::new(delay, Self::arrive),
            (delay, Some(bandwidth)) => {
                DelayLine::with_bandwidth(delay.unwrap_or_default(), bandwidth, Self::arrive)
            }
        };
        Ok(Some(Arc::new(line?)))
    }

    /// It has reached the end of the link.
    pub(crate) fn arrive(self) {
        match self {
            Self::Bytes { peer, bytes } => peer.arrive_late(&bytes),
            Self::Datagram {
                socket,
                to,
                datagram,
            } => {
                let _ = socket.send(&datagram, to); // lost if there is no room, as in networks
            }
        }
    }
}

struct State {
    way: Way,
    opened: Instant,
    /// Bytes whose delay is over and that did not fit yet (only with an emulated link).
    late: BytesMut,
    /// The transport takes no more; the driver waits for it.
    blocked: bool,
    /// Somebody will write the output at the end of a batch.
    kept: bool,
    /// Several answers came at once: what those who waited for them send next is written together, in the driver's next
    /// turn, which comes after theirs.
    gathering: bool,
    /// Messages that travel in parts and whose places are waited for, by stream.
    large: Vec<(u64, Place)>,
    /// Calls whose initial requests or pings are in the output.
    own: OwnOutput,
    /// Bodies that arrive and that somebody reads, by number.
    bodies: Vec<(u64, Arc<Inbound>)>,
    /// Somebody waits until parts have left: of a body, or of a large answer before others.
    parts_awaited: bool,
    /// The driver, while it waits.
    driver: Option<Waker>,
    /// It does not read before more of the output is written.
    unread: bool,
    /// Why the connection ends.
    ended: Option<String>,
    /// It ends since the peer takes nothing more; what the peer had sent before is still read.
    broken: bool,
    keep_alive: KeepAlive,
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
        way: Way,
        identity: Identity,
        delay: Option<Arc<DelayLine<Delayed>>>,
        liveness: Arc<Liveness>,
    ) -> Arc<Self> {
        Arc::new(Self {
            id: next_id(),
            identity,
            state: Mutex::new(State {
                way,
                opened: Instant::now(),
                late: BytesMut::new(),
                blocked: false,
                kept: false,
                gathering: false,
                large: Vec::new(),
                own: OwnOutput::default(),
                bodies: Vec::new(),
                parts_awaited: false,
                driver: None,
                unread: false,
                ended: None,
                broken: false,
                keep_alive: KeepAlive::default(),
            }),
            hello: OnceLock::new(),
            closed: AtomicBool::new(false),
            leaving: AtomicBool::new(false),
            room: Room::new(),
            uses: Uses::default(),
            busy: AtomicU32::new(0),
            passed_over: PassedOver::default(),
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

    /// The peer is going away: what was sent is still answered, and requests of which no byte was written move.
    pub(crate) fn set_leaving(&self) {
        self.leaving.store(true, Ordering::Release);
        self.room.tell();
    }

    /// Tells the peer that this side is going away.
    pub(crate) fn go_away(self: &Arc<Self>) {
        let mut state = self.lock();
        if state.ended.is_none() {
            state.way.with(|mut carrier| carrier.go_away());
            self.written(&mut state);
        }
    }

    /// It is not idle as long as this lives.
    pub(crate) fn want(&self) -> Wanted<'_> {
        self.hold();
        Wanted(self)
    }

    /// A call or a request needs it, until it is released.
    pub(crate) fn hold(&self) {
        self.busy.fetch_add(1, Ordering::SeqCst);
    }

    pub(crate) fn release(&self) {
        if self.busy.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.note_free();
        }
    }

    /// Room was wanted while it was needed: the pool learns when that may have changed.
    pub(crate) fn pass_over(&self, freed: &Arc<Freed>) {
        self.passed_over.freed.get_or_init(|| Arc::clone(freed));
        self.passed_over.was.store(true, Ordering::SeqCst);
    }

    fn note_free(&self) {
        let passed_over = &self.passed_over;
        if passed_over.was.load(Ordering::SeqCst)
            && let Some(freed) = passed_over.freed.get()
            && passed_over.was.swap(false, Ordering::SeqCst)
        {
            freed.note(self.id);
        }
    }

    /// Whether nobody needs it, and nothing is under way on it.
    pub(crate) fn is_idle(&self) -> bool {
        self.busy.load(Ordering::Relaxed) == 0 && self.lock().way.is_idle()
    }

    pub(crate) fn counters(&self) -> Counters {
        self.lock().way.counters()
    }

    /// Whether it carries messages of up to 64 KiB only.
    pub(crate) fn is_over_datagrams(&self) -> bool {
        matches!(self.lock().way, Way::Session(_))
    }

    /// How much of its output has left, in the measure of its marks, and how much the peer has confirmed if it does.
    pub(crate) fn progress(&self) -> (u64, Option<u64>) {
        self.lock().way.progress()
    }

    /// Where the peer certainly listens, if that is known without dialling it.
    pub(crate) fn proven_address(&self) -> Option<Address> {
        (self.lock().way).ask(|carrier| carrier.proven_address())?
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
        let opened = state.opened;
        let mark = (state.way).send_request(request, method, || opened.elapsed())?;
        self.sent(&mut state, place, mark);
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
        let sent = state.way.send(|mut carrier| {
            if counted {
                carrier.forget_calls(CallId {
                    sequence: oldest,
                    ..response.call
                });
            }
            carrier.send_response(response, counted)
        });
        if sent == Err(Refusal::Blocked) {
            state.parts_awaited |= state.way.stream().is_some_and(Connection::has_parts);
        }
        Ok(self.sent(&mut state, place, sent?))
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
        if state.ended.is_some() {
            return None;
        }
        let sent = (state.way).send(|mut carrier| carrier.send_control(message));
        Some(self.sent(&mut state, place, sent.ok()?))
    }

    /// A message was added to the output and stands there: at once or later the records know.
    fn sent(self: &Arc<Self>, state: &mut State, place: Option<Place>, mark: Mark) -> Output {
        if let (Mark::Parts(stream), Some(place)) = (mark, place) {
            state.large.push((stream, place));
        }
        self.written(state);
        let session = Session(self.id);
        match (mark, place) {
            (Mark::Written(mark), place) => {
                let output = Output { session, mark };
                match place {
                    Some(Place::Initiator(call)) if state.blocked || state.way.is_behind() => {
                        state.note_own(call, mark);
                    }
                    Some(place) => self.liveness.placed(place, output),
                    None => {}
                }
                output
            }
            (Mark::Parts(_), _) => Output { session, mark: 0 },
        }
    }

    /// Whether an initial request of this call, or a ping about it, has been sent here and is still on its way out.
    pub(crate) fn is_writing(&self, call: u64) -> bool {
        let mut state = self.lock();
        state.forget_written();
        let waits =
            |(_, place): &(u64, Place)| matches!(place, Place::Initiator(of) if *of == call);
        state.own.has(call) || state.large.iter().any(waits)
    }

    /// Whether the transport takes nothing now.
    pub(crate) fn is_blocked(&self) -> bool {
        self.lock().blocked
    }

    /// What a refused request waits for.
    pub(crate) fn request_waits_for(request: &Request) -> Want {
        let body = request.options.as_ref().and_then(|options| options.body);
        match body {
            None if request.payload.len() <= MAX_FRAME => Want::Request,
            _ => Want::Own,
        }
    }

    /// What a refused answer waits for.
    pub(crate) fn answer_waits_for(&self, payload: usize) -> Want {
        let takes_output = || self.lock().way.ask(|carrier| carrier.takes_output());
        match payload <= MAX_FRAME && takes_output() == Some(false) {
            true => Want::Answer,
            false => Want::Own,
        }
    }

    /// Whether a request would be accepted now.
    pub(crate) fn takes_requests(&self) -> bool {
        self.lock().way.ask(|carrier| carrier.takes_requests()) == Some(true)
    }

    /// Whether a response to this call would be accepted now.
    pub(crate) fn takes_responses(&self, call: CallId) -> bool {
        (self.lock().way).ask(|carrier| carrier.takes_responses(call)) == Some(true)
    }

    /// Requests that came over this connection left the queue for their handlers.
    pub(crate) fn grant_requests(self: &Arc<Self>, payloads: impl Iterator<Item = usize>) {
        let mut state = self.lock();
        state.way.grant_requests(payloads);
        self.written(&mut state);
    }

    /// The application took responses of a call that came over this connection.
    pub(crate) fn grant_call(self: &Arc<Self>, call: CallId, responses: u64, payload: u64) {
        let mut state = self.lock();
        (state.way).with(|mut carrier| carrier.grant_call(call, responses, payload));
        self.written(&mut state);
    }

    /// A request came whose body has this number: what will arrive of it.
    pub(crate) fn open_body(&self, number: u64) -> Arc<Inbound> {
        let inbound = Arc::<Inbound>::default();
        let mut state = self.lock();
        match &state.ended {
            Some(reason) if !state.broken => inbound.lost(reason),
            _ => state.bodies.push((number, Arc::clone(&inbound))),
        }
        inbound
    }

    /// Something of a body has arrived.
    pub(crate) fn handle_body(&self, number: u64, event: BodyEvent) {
        let mut state = self.lock();
        let known = state.bodies.iter().position(|body| body.0 == number);
        if let Some(position) = known
            && state.bodies[position].1.handle(event)
        {
            state.bodies.swap_remove(position);
        }
    }

    /// So many bytes of a body were read.
    pub(crate) fn grant_body(self: &Arc<Self>, number: u64, bytes: u64) {
        let mut state = self.lock();
        if let Some(connection) = state.way.stream_mut() {
            connection.grant_body(number, bytes);
            self.written(&mut state);
        }
    }

    /// Nobody reads a body any more.
    pub(crate) fn stop_body(self: &Arc<Self>, number: u64) {
        let mut state = self.lock();
        state.bodies.retain(|body| body.0 != number);
        if let Some(connection) = state.way.stream_mut() {
            connection.stop_body(number);
            self.written(&mut state);
        }
    }

    /// Whether more of a body that is sent here is wanted.
    pub(crate) fn wants_body(&self, number: u64) -> bool {
        let state = self.lock();
        let stream = state.way.stream();
        state.ended.is_none() && stream.is_some_and(|connection| connection.wants_body(number))
    }

    /// Sends some of a body, as much as is accepted: see [`room`](Self::room).
    pub(crate) fn try_body(
        self: &Arc<Self>,
        number: u64,
        chunk: &mut Bytes,
    ) -> Result<(), BodyRefusal> {
        self.on_body(|connection| connection.send_body(number, chunk))
    }

    /// Ends a body.
    pub(crate) fn end_body(
        self: &Arc<Self>,
        number: u64,
        end: Result<(), &str>,
    ) -> Result<(), BodyRefusal> {
        self.on_body(|connection| connection.end_body(number, end))?;
        // Whoever waits to send a request with another body may do so now.
        self.room.tell();
        Ok(())
    }

    fn on_body(
        self: &Arc<Self>,
        act: impl FnOnce(&mut Connection) -> Result<(), BodyRefusal>,
    ) -> Result<(), BodyRefusal> {
        let mut state = self.lock();
        if state.ended.is_some() {
            return Err(BodyRefusal::Stopped);
        }
        let connection = state.way.stream_mut().ok_or(BodyRefusal::Stopped)?;
        let done = act(connection);
        match done {
            Ok(()) => self.written(&mut state),
            Err(BodyRefusal::Blocked) => state.parts_awaited = true,
            Err(BodyRefusal::Stopped) => {}
        }
        done
    }

    /// Waits until something may be accepted that was not before. Create it before trying, so that nothing is missed.
    pub(crate) fn room(&self) -> tokio::sync::futures::Notified<'_> {
        self.room.changed()
    }

    /// Somebody who sends something for which there is perhaps no room now.
    pub(crate) fn waiting(&self) -> Waiting<'_> {
        self.room.waiting()
    }

    /// Ends a connection for which there is no room.
    pub(crate) fn refuse(self: &Arc<Self>, reason: &str) {
        let mut state = self.lock();
        if state.ended.is_none() {
            state.way.refuse(reason);
            self.flush(&mut state);
            self.fail(state, reason);
        }
    }

    /// Ends the connection: the peer is told why, what was accepted is written as far as the transport takes it now.
    pub(crate) fn end(self: &Arc<Self>, reason: &str) {
        let mut state = self.lock();
        if state.ended.is_none() {
            state.way.close(reason);
            self.flush(&mut state);
            self.fail(state, reason);
        }
    }

    /// Writes what a new connection has to say at once.
    pub(crate) fn flush_now(self: &Arc<Self>) {
        let mut state = self.lock();
        self.flush(&mut state);
    }

    /// Ends the connection if a large message arrives too slowly.
    pub(crate) fn check_stalled(self: &Arc<Self>, now: Duration) {
        let stalled = (self.lock().way.stream_mut()).map(|stream| stream.check_stalled(now));
        if let Some(Err(error)) = stalled {
            self.end(&error.to_string());
        }
    }

    /// Looks whether the peer is silent while something waits for it; returns whether anything does.
    ///
    /// # Errors
    ///
    /// If it is to be given up; the connection has ended then.
    pub(crate) fn look(
        self: &Arc<Self>,
        settings: &KeepAliveSettings,
        now: Duration,
    ) -> Result<bool, ConnectionError> {
        let busy = self.busy.load(Ordering::Relaxed) > 0;
        let mut state = self.lock();
        if state.ended.is_some() {
            return Ok(false);
        }
        let State {
            way, keep_alive, ..
        } = &mut *state;
        let looked = match way {
            Way::Stream(connection, _) => keep_alive.look(settings, connection, busy, now),
            Way::Session(_) => Ok(false),
        };
        if looked.is_ok() {
            self.flush(&mut state);
        }
        drop(state);
        looked.inspect_err(|error| self.end(&error.to_string()))
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
        if state.ended.is_some() {
            return;
        }
        // As a network does: what the connection has to say meanwhile is none of its business.
        let written = match state.late.is_empty() {
            true => state.write_late(bytes),
            false => Ok(0),
        };
        match written {
            Ok(written) => state.late.put_slice(&bytes[written..]),
            Err(error) => self.mark_broken(&mut state, &error),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Output was added: it is written now, at the end of the batch that this thread handles, or in the driver's turn.
    fn written(self: &Arc<Self>, state: &mut State) {
        if state.blocked || state.gathering && state.way.waiting() < CORK_LIMIT {
            return;
        }
        if cork::is_corked() && state.way.waiting() < CORK_LIMIT {
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
        if let Way::Stream(connection, _) = &mut state.way
            && connection.keeps_pace()
        {
            connection.set_time(state.opened.elapsed());
        }
        let result = match &self.delay {
            Some(delay) => self.flush_delayed(state, delay),
            None => self.flush_output(state),
        };
        if !state.large.is_empty() {
            self.note_left(state);
        }
        if std::mem::take(&mut state.parts_awaited) {
            self.room.tell();
        }
        if state.unread && state.way.takes_input() {
            state.unread = false;
            self.room.tell();
            state.driver.iter().for_each(Waker::wake_by_ref);
        }
        if let Err(error) = result {
            self.mark_broken(state, &error);
        }
        if self.passed_over.was.load(Ordering::Relaxed) && state.way.is_idle() {
            self.note_free();
        }
    }

    /// The records learn which large messages have left.
    #[inline(never)]
    fn note_left(&self, state: &mut State) {
        let session = Session(self.id);
        while let Some((stream, mark)) = state.way.stream_mut().and_then(Connection::next_left) {
            let known = state.large.iter().position(|large| large.0 == stream);
            if let Some(position) = known {
                match state.large.swap_remove(position).1 {
                    Place::Initiator(call) => state.note_own(call, mark),
                    place => self.liveness.placed(place, Output { session, mark }),
                }
            }
        }
    }

    #[cold]
    #[inline(never)]
    fn mark_broken(&self, state: &mut State, error: &io::Error) {
        state.broken = true;
        // What has come is still read: bodies that arrive end when that does.
        self.mark_closed(state, &format!("cannot write: {error}"));
    }

    fn flush_output(&self, state: &mut State) -> io::Result<()> {
        loop {
            let (connection, writer) = match &mut state.way {
                Way::Stream(connection, writer) => (connection, writer),
                Way::Session(session) => {
                    session.flush();
                    return Ok(());
                }
            };
            let output = connection.output();
            if output.is_empty() {
                return Ok(());
            }
            match writer.try_write(output) {
                Ok(written) => connection.advance(written),
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
        let Way::Stream(connection, _) = &mut state.way else {
            return Ok(()); // a session's port has its own
        };
        loop {
            let bytes = Bytes::copy_from_slice(connection.output());
            if bytes.is_empty() {
                break;
            }
            let len = bytes.len();
            for piece in delay.pieces(len) {
                let size = piece.len();
                let piece = Delayed::Bytes {
                    peer: Arc::clone(self),
                    bytes: bytes.slice(piece),
                };
                if delay.send_bytes(piece, size).is_err() {
                    return Err(io::Error::other("the emulated link is full"));
                }
            }
            connection.advance(len);
        }
        let mut late = std::mem::take(&mut state.late);
        let written = state.write_late(&late)?;
        late.advance(written);
        state.late = late;
        Ok(())
    }

    fn mark_ended(&self, state: &mut State, reason: &str) {
        self.mark_closed(state, reason);
        if let Some(connection) = state.way.stream_mut() {
            connection.drop_unfinished(); // handlers may keep this for long
        }
        state.broken = false;
        for (_, body) in state.bodies.drain(..) {
            body.lost(reason);
        }
    }

    /// Nothing is sent any more.
    fn mark_closed(&self, state: &mut State, reason: &str) {
        state.ended.get_or_insert_with(|| reason.to_owned());
        self.closed.store(true, Ordering::Release);
        self.room.tell();
        state.driver.take().into_iter().for_each(Waker::wake);
        for (_, place) in state.large.drain(..) {
            self.liveness.dropped(place);
        }
    }

    fn fail(&self, mut state: MutexGuard<'_, State>, reason: &str) {
        self.mark_ended(&mut state, reason);
    }

    /// Reads and dispatches until the connection ends; returns why.
    pub(crate) async fn drive(
        self: &Arc<Self>,
        mut reader: StreamReader,
        dispatch: &mut impl Dispatch,
    ) -> Result<String, ConnectionError> {
        let mut input = Input {
            bytes: BytesMut::new(),
            room: READ.0,
            unread: false,
            drained: None,
            retry: None,
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
        if let Way::Stream(_, writer) = &state.way {
            writer.shutdown();
        }
        end
    }

    /// A session has told this.
    pub(crate) fn note_event(&self, event: &Event) {
        match event {
            Event::Opened(hello) => {
                let _ = self.hello.set(Arc::clone(hello));
            }
            Event::Credit => self.room.tell(),
            _ => {}
        }
    }

    /// A session has ended.
    #[cold]
    pub(crate) fn session_ended(&self, reason: &str, ended: &Ended) {
        let mut state = self.lock();
        if let Way::Session(session) = &mut state.way {
            session.note_end(ended);
        }
        self.mark_ended(&mut state, reason);
    }

    fn poll(
        self: &Arc<Self>,
        cx: &mut Context<'_>,
        reader: &mut StreamReader,
        input: &mut Input,
        events: &mut Vec<Event>,
        dispatch: &mut impl Dispatch,
    ) -> Poll<Result<String, ConnectionError>> {
        let Written {
            ended,
            broken,
            unread,
            withholds,
        } = self.poll_write(cx);
        if let (Some(ended), false) = (&ended, broken && !unread) {
            return Poll::Ready(Ok(ended.clone()));
        }
        if withholds || input.retry.is_some() {
            self.poll_withheld(cx, input, withholds);
        }
        if unread {
            return Poll::Pending; // until the transport takes something
        }
        for _ in 0..READS_A_TURN {
            if !std::mem::take(&mut input.unread) {
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
            }
            match self.handle_input(input, events, dispatch) {
                Ok(false) => {}
                // What this turn's messages set off goes first.
                Ok(true) => break,
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Grants credit for parts that was withheld, as soon as there is room.
    #[cold]
    #[inline(never)]
    fn poll_withheld(self: &Arc<Self>, cx: &mut Context<'_>, input: &mut Input, withholds: bool) {
        if !withholds {
            input.retry = None;
            return;
        }
        let retry = input
            .retry
            .get_or_insert_with(|| timer::sleep_until(Instant::now() + RETRY));
        if Pin::new(retry).poll(cx).is_pending() {
            return;
        }
        input.retry = None;
        let mut state = self.lock();
        if let Some(connection) = state.way.stream_mut() {
            connection.grant_withheld();
            self.written(&mut state);
        }
        drop(state);
        cx.waker().wake_by_ref();
    }

    /// Goes on writing if the transport takes something again.
    fn poll_write(self: &Arc<Self>, cx: &mut Context<'_>) -> Written {
        let mut state = self.lock();
        state.gathering = false;
        while state.blocked && state.ended.is_none() {
            let Way::Stream(_, writer) = &state.way else {
                break;
            };
            match writer.poll_writable(cx) {
                Poll::Pending => break,
                Poll::Ready(Err(error)) => self.mark_broken(&mut state, &error),
                Poll::Ready(Ok(())) => {
                    state.blocked = false;
                    self.flush(&mut state);
                    self.room.tell();
                }
            }
        }
        if !state.blocked && !state.kept && state.way.has_output() {
            self.flush(&mut state);
            self.room.tell();
        }
        if !state
            .driver
            .as_ref()
            .is_some_and(|driver| driver.will_wake(cx.waker()))
        {
            state.driver = Some(cx.waker().clone());
        }
        state.unread = !state.way.takes_input();
        Written {
            ended: state.ended.clone(),
            broken: state.broken,
            unread: state.unread,
            withholds: state.way.stream().is_some_and(Connection::is_withholding),
        }
    }

    /// Returns whether there is something to write, in the next turn of the driver.
    fn handle_input(
        self: &Arc<Self>,
        input: &mut Input,
        events: &mut Vec<Event>,
        dispatch: &mut impl Dispatch,
    ) -> Result<bool, ConnectionError> {
        let Input {
            bytes: input,
            unread,
            ..
        } = input;
        let mut state = self.lock();
        let State { way, opened, .. } = &mut *state;
        let Way::Stream(connection, _) = way else {
            return Ok(false); // sessions are driven by their port
        };
        if connection.wants_time() {
            connection.set_time(opened.elapsed());
        }
        // Most messages come alone. They are large: the first one stays where it was read to.
        let mut first = connection.handle_input(input);
        let failed = match &first {
            Ok(Some(_)) if !input.is_empty() => take_further(connection, input, events),
            _ => None,
        };
        *unread = !connection.takes_input();
        // The handshake's answer, credit for parts, and parts of ours that credit has freed.
        let has_output = connection.has_output();
        state.gathering =
            !events.is_empty() && several_answers(first.iter().flatten().chain(&*events));
        let goes_on = has_output || state.gathering;
        drop(state);
        cork::batch(|| {
            if let Ok(Some(event)) = &mut first {
                self.note_event(event);
                dispatch.handle(self, event);
            }
            if !events.is_empty() {
                self.handle_further(events, dispatch);
            }
            dispatch.batch_done(self);
        });
        first?;
        failed.map_or(Ok(goes_on), Err)
    }

    #[inline(never)]
    fn handle_further(self: &Arc<Self>, events: &mut Vec<Event>, dispatch: &mut impl Dispatch) {
        for event in &mut *events {
            self.note_event(event);
            dispatch.handle(self, event);
        }
        events.clear();
    }
}

/// What a driver finds before it reads.
struct Written {
    /// Why the connection has ended.
    ended: Option<String>,
    /// There may be something left to read, though it has.
    broken: bool,
    /// So much waits to be written that nothing is read.
    unread: bool,
    /// There is no room for more of large messages.
    withholds: bool,
}

/// Takes what came with the first event off `input`; returns why the connection has to end.
#[inline(never)]
fn take_further(
    connection: &mut Connection,
    input: &mut BytesMut,
    events: &mut Vec<Event>,
) -> Option<ConnectionError> {
    loop {
        match connection.handle_input(input) {
            Ok(Some(event)) => events.push(event),
            Ok(None) => return None,
            Err(error) => return Some(error),
        }
    }
}

/// Whether more than one of these events may set off what waits for it: whoever does has something to send next, often.
pub(crate) fn several_answers<'a>(events: impl Iterator<Item = &'a Event>) -> bool {
    let answers = events.filter(|event| {
        matches!(
            event,
            Event::Message(Message::Response(_) | Message::End(_))
        )
    });
    answers.take(2).count() == 2
}

impl State {
    /// What this call has sent here is written when the output is so far.
    #[cold]
    fn note_own(&mut self, call: u64, mark: u64) {
        self.forget_written();
        self.own.note(call, mark);
    }

    fn forget_written(&mut self) {
        self.own.written(self.way.progress().0);
    }

    /// Bytes whose delay is over; returns how many of them the transport has taken.
    fn write_late(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut written = 0;
        while written < bytes.len() && !self.blocked {
            let Way::Stream(_, writer) = &self.way else {
                break;
            };
            match writer.try_write(&bytes[written..]) {
                Ok(more) => written += more,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.block(),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(written)
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
    /// Some of it was not handled, since too much waits to be written.
    unread: bool,
    /// When nothing more is expected of a peer that takes nothing more.
    drained: Option<timer::Sleep>,
    /// When it is looked again whether there is room for more of large messages.
    retry: Option<timer::Sleep>,
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
        reader: &mut StreamReader,
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
