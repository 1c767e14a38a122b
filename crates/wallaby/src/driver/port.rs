//! A UDP socket and the sessions over it: shared by all who send, read by one task.

use std::collections::VecDeque;
use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use wallaby_proto::NodeId;
use wallaby_proto::carrier::Carrier;
use wallaby_proto::connection::{Counters, Event, Mark, MethodDefinition, NamedBy, Refusal};
use wallaby_proto::datagram::{
    BySession, Cause, Ended, Gate, Session, SessionEvent, SessionId, TooManySessions,
};
use wallaby_proto::wire::Request;

use crate::dispatch::Dispatcher;
use crate::driver::cork;
use crate::driver::peer::{Delayed, Dispatch, Peer, several_answers};
use crate::endpoint::Inner;
use crate::link::DelayLine;
use crate::timer::{self, Epoch, Instant};
use crate::transport::udp::{Inbox, Outbox, Socket};

/// Timers that are due before so much time has passed are looked at whenever a port's task goes to sleep: most are for what
/// has come meanwhile.
const SOON: Duration = Duration::from_millis(5);

/// Datagrams that are read in a row before their messages are handled, and as many more as the system had joined.
const BATCH: usize = 64;

/// Batches after which the time is told even if the socket is never found empty.
const BATCHES_UNTIL_TIME: u32 = 16;

/// A socket, its gate and who drives it.
pub(crate) struct Port {
    local: SocketAddr,
    /// Others may open sessions.
    listens: bool,
    /// What the gate's time is counted from.
    epoch: Epoch,
    delay: Option<Arc<DelayLine<Delayed>>>,
    state: Mutex<State>,
}

struct State {
    gate: Gate,
    /// `None` once the port is closed.
    socket: Option<Arc<Socket>>,
    /// What is being sent; between turns what the socket did not take.
    outbox: Outbox,
    /// Sessions that this side opened and the driver does not know yet.
    dialled: Vec<(SessionId, Driven)>,
    /// Sessions that this side closed, and why.
    closed: Vec<(SessionId, String)>,
    /// Several answers came at once: what those who waited for them send next leaves together, in the driver's next turn,
    /// which comes after theirs.
    gathering: bool,
    /// The driver, while it waits.
    driver: Option<Waker>,
    /// When the driver tells the gate the time, if it is not woken before.
    due: Option<Duration>,
}

/// A session's peer, and what becomes of its messages.
type Driven = (Arc<Peer>, Dispatcher);

/// A session, for its peer.
pub(crate) struct PortSession {
    port: Arc<Port>,
    id: SessionId,
    /// Whether the message sent last leaves later than with the next datagrams.
    pub(super) behind: bool,
    /// What is left to tell of a session that has ended: how many messages were acknowledged, and what it carried.
    pub(super) end: Option<(u64, Counters)>,
}

impl Port {
    pub(crate) fn new(
        socket: Socket,
        listens: bool,
        gate: Gate,
        delay: Option<Arc<DelayLine<Delayed>>>,
    ) -> Arc<Self> {
        let outbox = socket.outbox();
        Arc::new(Self {
            local: socket.local(),
            listens,
            epoch: Epoch::now(),
            delay,
            state: Mutex::new(State {
                gate,
                socket: Some(Arc::new(socket)),
                outbox,
                dialled: Vec::new(),
                closed: Vec::new(),
                gathering: false,
                driver: None,
                due: None,
            }),
        })
    }

    /// Whether its datagrams may get to this address.
    pub(crate) fn reaches(&self, to: SocketAddr) -> bool {
        let state = self.lock();
        (state.socket.as_ref()).is_some_and(|socket| socket.reaches(to))
    }

    /// Opens a session; `adopt` makes its peer.
    pub(crate) fn dial(
        self: &Arc<Self>,
        to: SocketAddr,
        expected: Option<NodeId>,
        named_by: NamedBy,
        adopt: impl FnOnce(PortSession) -> Driven,
    ) -> Result<(), TooManySessions> {
        let mut state = self.lock();
        let id = state.gate.dial_named(self.now(), to, expected, named_by)?;
        let driven = adopt(PortSession::new(self, id));
        state.dialled.push((id, driven));
        self.flush(&mut state);
        // On the same machine the system knows at once that nobody listens.
        state.note_unreachable(self.now());
        state.wake();
        Ok(())
    }

    /// Sends what may be sent now, a last time, and frees the address. The driver ends.
    pub(crate) fn close(&self) {
        let mut state = self.lock();
        self.flush(&mut state);
        state.socket = None;
        state.wake();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Duration {
        self.epoch.elapsed()
    }

    /// Sends what may be sent now.
    fn flush(&self, state: &mut State) {
        if !state.gate.has_output() && state.outbox.is_empty() {
            return;
        }
        let now = self.now();
        loop {
            let goes_on = state.fill(now);
            if state.outbox.is_empty() {
                break;
            }
            let Some(socket) = &state.socket else {
                return;
            };
            let sent = match &self.delay {
                None => socket.send_all(&mut state.outbox),
                Some(delay) => delayed(delay, socket, &mut state.outbox),
            };
            if sent.is_err() {
                return state.wake(); // there is no room
            }
            if !goes_on {
                break;
            }
        }
        let next = state.gate.next_timeout();
        if next.is_some_and(|next| state.due.is_none_or(|due| next < due)) {
            state.wake();
        }
    }

    /// Reads and dispatches until the port is closed or its endpoint is gone.
    pub(crate) async fn drive(self: Arc<Self>, endpoint: Weak<Inner>) {
        let mut driver = Driver {
            port: self,
            endpoint,
            sessions: BySession::default(),
            inbox: Inbox::new(),
            events: VecDeque::new(),
            batches: 0,
            sleep: timer::sleep_until(Instant::now()),
            sleeps_until: None,
        };
        poll_fn(|cx| driver.poll(cx)).await;
        driver.end();
    }
}

/// Hands datagrams to a link. One that is full drops them, as networks do.
fn delayed(
    delay: &DelayLine<Delayed>,
    socket: &Arc<Socket>,
    outbox: &mut Outbox,
) -> io::Result<()> {
    outbox.send_each(|datagram, to| {
        let bytes = datagram.len();
        let datagram = Delayed::Datagram {
            socket: Arc::clone(socket),
            to,
            datagram: Bytes::copy_from_slice(datagram),
        };
        let _ = delay.send_bytes(datagram, bytes);
        Ok(())
    })
}

impl State {
    /// Gathers what may be sent now; whether there may be more.
    fn fill(&mut self, now: Duration) -> bool {
        while !self.outbox.is_full() {
            let Some(transmit) = self.gate.poll_transmit(now, self.outbox.buffer()) else {
                return false;
            };
            self.outbox.push(transmit.to, transmit.len);
        }
        true
    }

    /// The gate learns what the network says of datagrams that could not be delivered.
    fn note_unreachable(&mut self, now: Duration) {
        while let Some(to) = self
            .socket
            .as_ref()
            .and_then(|socket| socket.take_unreachable())
        {
            self.gate.handle_unreachable(now, to);
        }
    }

    fn wake(&mut self) {
        self.driver.take().into_iter().for_each(Waker::wake);
    }
}

/// The task of a port.
struct Driver {
    port: Arc<Port>,
    endpoint: Weak<Inner>,
    sessions: BySession<Driven>,
    inbox: Inbox,
    events: VecDeque<SessionEvent>,
    /// Batches since the socket was last found empty.
    batches: u32,
    sleep: timer::Sleep,
    sleeps_until: Option<Duration>,
}

impl Driver {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(endpoint) = self.endpoint.upgrade() else {
            return Poll::Ready(());
        };
        let port = Arc::clone(&self.port);
        let mut state = port.lock();
        if !state
            .driver
            .as_ref()
            .is_some_and(|driver| driver.will_wake(cx.waker()))
        {
            state.driver = Some(cx.waker().clone());
            self.sleeps_until = None; // it would wake another task
        }
        self.poll_write(&mut state, cx);
        if std::mem::take(&mut state.gathering) {
            port.flush(&mut state);
        }
        let Some((empty, now)) = self.poll_read(&mut state, cx) else {
            return Poll::Ready(());
        };
        if !state.dialled.is_empty() {
            self.sessions.extend(state.dialled.drain(..));
        }
        let closed = std::mem::take(&mut state.closed);
        state.gate.take_events(&mut self.events);
        state.gathering = self.events.len() > 1 && {
            let events = self.events.iter();
            several_answers(events.filter_map(|(_, event)| event.as_ref().ok()))
        };
        drop(state);
        cork::batch(|| {
            self.dispatch(&endpoint);
            for (id, reason) in closed {
                if let Some((peer, mut dispatcher)) = self.sessions.remove(&id) {
                    endpoint.connection_ended(&peer, &dispatcher.ended(Ok(reason)));
                }
            }
        });
        let mut state = port.lock();
        if !state.gathering {
            port.flush(&mut state);
        }
        if !empty || state.gathering {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        // Being woken for nothing costs more than a call.
        state.gate.put_off_timers(now + SOON);
        state.due = state.gate.next_timeout();
        let due = state.due;
        drop(state);
        self.poll_sleep(due, now, cx);
        Poll::Pending
    }

    /// Goes on writing if the socket takes something again.
    fn poll_write(&self, state: &mut State, cx: &mut Context<'_>) {
        while !state.outbox.is_empty()
            && let Some(socket) = &state.socket
            && socket.poll_writable(cx).is_ready()
        {
            self.port.flush(state);
        }
    }

    /// Reads a batch of datagrams, and tells the time when there are no more: whether that is so, and the time; `None` if
    /// the port is closed.
    fn poll_read(&mut self, state: &mut State, cx: &mut Context<'_>) -> Option<(bool, Duration)> {
        let mut empty = false;
        let mut read_at = None;
        let mut read = 0;
        while read < BATCH {
            match state.socket.as_ref()?.poll_receive(cx, &mut self.inbox) {
                Poll::Pending => {
                    empty = true;
                    break;
                }
                Poll::Ready(Ok(())) => {
                    let now = self.port.now();
                    read_at = Some(now);
                    self.inbox.take(|from, datagram| {
                        read += 1;
                        state.gate.handle_datagram(now, from, datagram);
                    });
                }
                // Of a datagram that was sent: see `take_unreachable`.
                Poll::Ready(Err(_)) => {
                    read += 1;
                    state.note_unreachable(self.port.now());
                }
            }
        }
        self.batches = if empty { 0 } else { self.batches + 1 };
        let now = read_at.unwrap_or_else(|| self.port.now());
        if empty || self.batches >= BATCHES_UNTIL_TIME {
            self.tell_time(state, now);
        }
        Some((empty, now))
    }

    fn tell_time(&self, state: &mut State, now: Duration) {
        if state.gate.next_timeout().is_some_and(|due| due <= now) {
            // Something did not come in time; perhaps the network has said why.
            state.note_unreachable(self.port.now());
            state.gate.handle_timeout(now);
        }
    }

    /// Wakes the task when the gate wants to know the time. The gate's timers are not moved while they are far, so that
    /// this one seldom is.
    fn poll_sleep(&mut self, due: Option<Duration>, now: Duration, cx: &mut Context<'_>) {
        let Some(at) = due else {
            return; // whoever gives the gate something to wait for wakes the task
        };
        if self.sleeps_until == due && now < at {
            return; // it was not over when this poll began: if it is now, the task is woken again
        }
        if self.sleeps_until != due {
            self.sleeps_until = due;
            self.sleep.reset(self.port.epoch.after(at));
        }
        if Pin::new(&mut self.sleep).poll(cx).is_ready() {
            self.sleeps_until = None;
            cx.waker().wake_by_ref();
        }
    }

    fn dispatch(&mut self, endpoint: &Arc<Inner>) {
        let mut touched: Option<SessionId> = None;
        while let Some(mut told) = self.events.pop_front() {
            let (id, event) = &mut told;
            if touched.is_some_and(|touched| touched != *id) {
                self.batch_done(touched);
            }
            touched = Some(*id);
            match event {
                Ok(event) => self.handle(endpoint, *id, event),
                Err(ended) => self.handle_end(endpoint, *id, ended),
            }
        }
        self.batch_done(touched);
    }

    /// The last of the events of a session in a row was handled.
    fn batch_done(&mut self, session: Option<SessionId>) {
        if let Some((peer, dispatcher)) = session.and_then(|id| self.sessions.get_mut(&id)) {
            dispatcher.batch_done(peer);
        }
    }

    fn handle(&mut self, endpoint: &Arc<Inner>, id: SessionId, event: &mut Event) {
        if let Event::Opened(_) = event
            && !self.sessions.contains_key(&id)
        {
            let session = PortSession::new(&self.port, id);
            match endpoint.adopt_session(session, self.port.listens) {
                Some(driven) => self.sessions.insert(id, driven),
                None => return,
            };
        }
        let Some((peer, dispatcher)) = self.sessions.get_mut(&id) else {
            return; // this side has closed it
        };
        peer.note_event(event);
        dispatcher.handle(peer, event);
    }

    fn handle_end(&mut self, endpoint: &Arc<Inner>, id: SessionId, ended: &Ended) {
        let Some((peer, mut dispatcher)) = self.sessions.remove(&id) else {
            return;
        };
        let reason = ended.to_string();
        peer.session_ended(&reason, ended);
        let reason = match &ended.cause {
            Cause::Handshake(error) => dispatcher.ended(Err(error.clone())),
            Cause::Unreachable => dispatcher.unreachable(reason, true),
            Cause::NoAnswer(_) => dispatcher.unreachable(reason, false),
            _ => dispatcher.ended(Ok(reason)),
        };
        endpoint.connection_ended(&peer, &reason);
    }

    /// The port is closed: so are its sessions.
    fn end(&mut self) {
        let mut state = self.port.lock();
        self.sessions.extend(state.dialled.drain(..));
        drop(state);
        let why = "the endpoint was closed";
        for (peer, mut dispatcher) in std::mem::take(&mut self.sessions).into_values() {
            peer.end(why);
            let reason = dispatcher.ended(Ok(why.to_owned()));
            if let Some(endpoint) = self.endpoint.upgrade() {
                endpoint.connection_ended(&peer, &reason);
            }
        }
    }
}

impl PortSession {
    fn new(port: &Arc<Port>, id: SessionId) -> Self {
        Self {
            port: Arc::clone(port),
            id,
            behind: false,
            end: None,
        }
    }

    /// Does something with the session; `None` if it has ended.
    pub(super) fn with<R>(&self, act: impl FnOnce(&mut Session) -> R) -> Option<R> {
        self.port.lock().gate.session(self.id).map(act)
    }

    /// Asks the session something; `None` if it has ended.
    pub(super) fn ask<R>(&self, ask: impl FnOnce(&Session) -> R) -> Option<R> {
        self.port.lock().gate.peek(self.id).map(ask)
    }

    /// Sends a message.
    pub(super) fn send(
        &mut self,
        send: impl FnOnce(&mut Session) -> Result<Mark, Refusal>,
    ) -> Result<Mark, Refusal> {
        let mut state = self.port.lock();
        let session = state.gate.session(self.id).ok_or(Refusal::NotOpen)?;
        let mark = send(session)?;
        self.behind = session.is_behind();
        Ok(mark)
    }

    /// Sends a request, unless the peer is asked first.
    pub(super) fn send_request(
        &mut self,
        request: &mut Request,
        method: &MethodDefinition,
    ) -> Result<Mark, Refusal> {
        let mut state = self.port.lock();
        let now = self.port.now();
        let session = state.gate.session(self.id).ok_or(Refusal::NotOpen)?;
        if !session.confirm(now) {
            drop(state);
            self.flush(); // it is asked
            return Err(Refusal::Blocked);
        }
        let mark = Carrier::Session(&mut *session).send_request(request, method, || now)?;
        self.behind = session.is_behind();
        Ok(mark)
    }

    pub(super) fn grant_requests(&mut self, payloads: impl Iterator<Item = usize>) {
        let mut state = self.port.lock();
        payloads.for_each(|payload| {
            state.gate.grant_request(self.id, payload);
        });
    }

    pub(super) fn close(&mut self, reason: &str) {
        let mut state = self.port.lock();
        // What was accepted leaves first, as far as it does not wait: nothing is sent again afterwards.
        self.port.flush(&mut state);
        let Some(session) = state.gate.session(self.id) else {
            return;
        };
        self.end
            .get_or_insert((session.acknowledged(), session.counters()));
        session.close(reason);
        state.closed.push((self.id, reason.to_owned()));
        state.wake();
    }

    /// The gate has told its end.
    pub(super) fn note_end(&mut self, ended: &Ended) {
        self.end.get_or_insert((ended.acknowledged, ended.counters));
    }

    /// Sends what may be sent now, of this session and the others of its port.
    pub(super) fn flush(&self) {
        let mut state = self.port.lock();
        if !state.gathering {
            self.port.flush(&mut state);
        }
    }
}

impl fmt::Debug for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Port({})", self.local)
    }
}
