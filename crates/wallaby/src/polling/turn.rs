//! What an endpoint does in a turn.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use wallaby_proto::call::clock::earliest;
use wallaby_proto::endpoint::{
    CallKey, ConnId, InputOutcome, Output, RequestKey, Returned, SocketId,
};
use wallaby_proto::error::{Breakdown, handler_gone};

use super::builder::DEAR;
use super::datagrams::Datagrams;
use super::event::Event;
use super::request::RawRequest;
use super::streams::Whom;
use super::{Endpoint, Notification, Wait};
use crate::log::{self, Of};
use crate::panics::panic_message;

/// Room for arriving datagrams that is made at a time.
const ROOM: usize = 64 * 1024;

/// Full batches of datagrams after which the endpoint looks at what is due, though more may have arrived.
const BATCHES_UNTIL_TIME: u32 = 16;

impl<D: Datagrams> Endpoint<D> {
    /// Sends what is to be sent, receives what has arrived or waits for it, runs handlers, and does what is due. It returns
    /// after one round of this; it does not wait if there are events that were not taken.
    ///
    /// # Errors
    ///
    /// The socket's, if nothing can be received any more.
    ///
    /// # Panics
    ///
    /// If there is a bug, in Wallaby or in what carries its datagrams. Then the endpoint is closed in the next turn, by
    /// [`next_event`](Self::next_event), or when it is dropped: its calls fail ([`Failure::BrokenDown`](crate::Failure::BrokenDown)), and
    /// requests that were put aside have ended. Until then nothing else is to be done with it. A panic of any other method of the
    /// endpoint may leave it half changed: drop it then. One that comes out of what a handler asks of its request is taken for the
    /// handler's own, and ends that request alone.
    pub fn turn(&mut self, wait: Wait) -> io::Result<()> {
        let wait = if self.has_event() { Wait::Not } else { wait };
        self.receive(wait)
    }

    pub(super) fn receive(&mut self, wait: Wait) -> io::Result<()> {
        self.end_after_panic();
        self.turns = true;
        let received = self.receive_all(wait);
        self.turns = false;
        received
    }

    /// If the latest turn has panicked, nothing is used any more of what that has left half changed, and the application is told.
    pub(super) fn end_after_panic(&mut self) {
        if !std::mem::take(&mut self.turns) {
            return;
        }
        tracing::error!(endpoint = %self.core.node(), "{}", Breakdown::Panicked);
        self.core.handle_panic();
        self.asked = None;
        // Each that is to be told of is told of once more.
        self.calling
            .told
            .retain(|told| !matches!(told, Notification::Call(_)));
        self.follow();
        while let Some(call) = self.stops.keys().next().copied() {
            self.settled(call);
        }
        self.calling.bodies.close();
    }

    fn receive_all(&mut self, wait: Wait) -> io::Result<()> {
        self.look_at_clock();
        let known = self.calling.news;
        let was_away = self
            .core
            .config()
            .reads_first(self.now.saturating_sub(self.read_at));
        self.follow();
        if !was_away {
            self.flush();
        }
        let left = self.time_left();
        let due = self.now.saturating_add(left);
        // What the application does not know yet, or what has to be done first, is no time to wait.
        let busy = was_away
            || self.calling.news > known
            || self.streams.has_output()
            || self.calling.bodies.have_notes();
        let wait = match wait {
            _ if busy => Duration::ZERO,
            Wait::Not => Duration::ZERO,
            Wait::For(most) => left.min(most),
            Wait::Forever => left,
        };
        let wait = self.streams.rest_rings(wait);
        // Before something that is due is done, all that has arrived is to be handled.
        let spared = wait.is_zero() && !left.is_zero() && self.do_rings_come_first();
        if spared && !self.streams.has_unread() && !self.streams.have_rings_something() {
            return Ok(());
        }
        let (received, ready) = match spared {
            true => (0, 0),
            false => self.wait(wait)?,
        };
        if !wait.is_zero() {
            self.look_at_clock();
        }
        self.read_at = self.now;
        self.core.begin_turn();
        self.take_datagrams(received);
        self.serve_unread();
        let all = self.serve_streams(ready) & self.serve_rings();
        self.follow();
        let empty = all && received < self.datagrams.batch();
        self.full_batches = if empty { 0 } else { self.full_batches + 1 };
        // What came to be due meanwhile is done in the next turn.
        if due <= self.now && (empty || self.full_batches >= BATCHES_UNTIL_TIME) {
            self.streams.accept_again(self.now);
            self.core.handle_timeout();
            self.calling.begin_attempts(&mut self.core);
            self.follow();
        }
        self.flush();
        if log::warns()
            && let Some(now) = self.began.checked_add(self.now)
            && let Some(trouble) = self.watcher.look(self.core.counted(), now)
        {
            trouble.tell(self.core.node());
        }
        Ok(())
    }

    pub(super) fn look_at_clock(&mut self) {
        self.now = self.datagrams.now();
        self.core.set_time(self.now);
    }

    /// Does what the endpoint wants done, but for writing.
    #[inline]
    pub(super) fn follow(&mut self) {
        if self.core.has_output() || self.core.is_draining() || self.calling.bodies.have_notes() {
            self.follow_all();
        }
    }

    #[inline(never)]
    fn follow_all(&mut self) {
        self.follow_core();
        if self.calling.bodies.have_notes() {
            for news in self.calling.bodies.attend(&mut self.core) {
                self.tell_of(Notification::Body(news));
            }
            self.follow_core();
        }
    }

    fn follow_core(&mut self) {
        while let Some(output) = self.core.poll_output() {
            match output {
                Output::Run(key) => self.run(key),
                Output::Call(call) => self.tell(call),
                Output::Stopped(key, _) if self.own.borrow_mut().watches.remove(&key).is_some() => {
                }
                Output::Stopped(key, status) => {
                    self.tell_of(Notification::Stopped(key, status));
                    self.calling.abort_within(&mut self.core, key);
                }
                Output::Space(key) if self.own.borrow().watches.contains_key(&key) => {
                    self.tell_health();
                }
                Output::Space(key) => self.tell_of(Notification::Room(key)),
                Output::Body(body) => {
                    if let Some(news) = self.calling.bodies.read(&mut self.core, body) {
                        self.tell_of(Notification::Body(news));
                    }
                }
                Output::BodyRoom(body) => self.calling.bodies.write(&mut self.core, body),
                Output::Write(id) => self.streams.unwritten.push(id),
                Output::Socket(socket, to) => self.open_socket(socket, to),
                Output::Datagrams(_) => {} // they leave at the end of the turn
                Output::Dial(id, to) => self.streams.dial(&mut self.core, id, &to, self.ring),
                Output::Close(id, closed) => self.streams.close(self.core.node(), id, &closed),
                Output::Lost(loss, left_out) => log::lost(&loss, left_out),
                Output::Drained => log::drained(self.core.node()),
                Output::Ended(call, end) => {
                    self.calling.ended(self.core.call_id(call), call, &end);
                }
                Output::Settled(call) => self.settled(call),
                Output::Connected(id, result) => {
                    if let Some(server) = self.connecting.remove(&id) {
                        self.tell_of(Notification::Told(Event::Connected { server, result }));
                    }
                }
                // Nobody is kept waiting here, and no handler goes on without its request.
                Output::Stuck(_) | Output::Sent(_) | Output::Room(..) | Output::Placed(..) => {}
            }
        }
    }

    /// Something is dialled that the endpoint's socket does not reach; if it has none yet, it is opened when something is sent.
    #[cold]
    fn open_socket(&mut self, socket: SocketId, to: SocketAddr) {
        if self.socket.is_none() {
            self.socket = Some(socket);
            return;
        }
        let local = self.datagrams.local();
        let why = format!("the endpoint's only UDP socket, at {local}, does not reach {to}");
        self.core.handle_socket_failed(socket, why);
    }

    fn has_datagrams(&self) -> bool {
        (self.socket).is_some_and(|socket| self.core.has_datagrams(socket))
    }

    pub(super) fn tell_of(&mut self, what: Notification) {
        self.calling.news += 1;
        self.calling.told.push_back(what);
    }

    fn tell(&mut self, call: CallKey) {
        self.calling.news += 1;
        if self.asked != Some(call) {
            self.calling.told.push_back(Notification::Call(call));
        }
    }

    /// Runs the handler of a request.
    fn run(&mut self, key: RequestKey) {
        let Ok(incoming) = self.core.take_request(key) else {
            return;
        };
        let of = log::warns().then(|| Of::new(&self.core, key)).flatten();
        let Some(handler) = self.handlers.get_mut(incoming.method) else {
            return self.core.fail(key, &handler_gone());
        };
        self.calling.bodies.offer(incoming.body);
        let request = RawRequest::new(&mut self.core, &mut self.calling, key, true);
        let result = catch_unwind(AssertUnwindSafe(|| handler(request, incoming.payload)));
        let panicked = result.is_err();
        let result = result.unwrap_or_else(|panic| {
            let text = panic_message("the handler", &*panic);
            Err(self.core.panicked(text))
        });
        if let Some(body) = self.calling.bodies.withdraw() {
            self.core.drop_body(body); // nobody reads it
        }
        self.look_at_clock(); // it may have taken its time
        let failed = of.zip(result.as_ref().err().cloned());
        let returned = self.core.returned(key, result);
        if let Some((of, status)) = failed {
            let logs = &self.streams.logs;
            if panicked {
                logs.panicked(&of, status.message());
            }
            if returned == Returned::Late {
                logs.late_error(&of, &status);
            }
        }
    }

    fn do_rings_come_first(&mut self) -> bool {
        let alone = self.is_silent() && self.streams.are_all_rings();
        self.streams.rings.come_first(self.now, alone)
    }

    /// Nobody sends datagrams to who neither listens for them nor has a session.
    fn is_silent(&self) -> bool {
        !self.takes_datagrams && !self.core.has_sessions()
    }

    /// Waits until something arrives: how many datagrams have, and how many sockets are ready.
    fn wait(&mut self, wait: Duration) -> io::Result<(usize, usize)> {
        if !self.streams.are_there() {
            let received = self.datagrams.receive(wait, self.is_full())?;
            return Ok((received, 0));
        }
        let (silent, full) = (self.is_silent(), self.is_full());
        let watched = match (silent, self.datagrams.descriptor()) {
            (false, Some(socket)) => {
                let socket = socket.as_raw_fd();
                self.streams.watch_datagrams(socket, full)?;
                true
            }
            _ => false,
        };
        let wait = if silent || watched {
            wait
        } else {
            wait.min(DEAR)
        };
        let ready = self.streams.wait(wait)?;
        let arrived = |(whom, _)| matches!(whom, Whom::Datagrams);
        let mut whom = (0..ready).filter_map(|index| self.streams.ready(index));
        let received = match !silent && (!watched || whom.any(arrived)) {
            true => self.datagrams.receive(Duration::ZERO, false)?,
            false => 0,
        };
        Ok((received, ready))
    }

    /// Hands the datagrams that were received to their sessions.
    fn take_datagrams(&mut self, received: usize) {
        let Some(socket) = self.socket else {
            return;
        };
        if received == 0 {
            // Perhaps since the network said what became of a datagram.
            while let Some(at) = self.datagrams.take_unreachable() {
                self.core.handle_unreachable(socket, at);
            }
        }
        for index in 0..received {
            if let Some((datagram, from)) = self.datagrams.received(index) {
                let kept = keep(&mut self.arrived, datagram);
                self.core.handle_datagram(socket, from, kept);
            }
        }
    }

    /// Does what can be done with the sockets that are ready; whether that is all there is to do.
    fn serve_streams(&mut self, ready: usize) -> bool {
        let mut all = !self.streams.is_full();
        for index in 0..ready {
            match self.streams.ready(index) {
                Some((Whom::Listener(listener), _)) => {
                    self.streams.accept(&mut self.core, listener, self.now);
                }
                Some((Whom::Peer(id), what)) => {
                    if what.writable {
                        self.streams.writable(&mut self.core, id);
                    }
                    all &= !what.readable || self.read_stream(id);
                }
                Some((Whom::Life(id), _)) => self.streams.attend_life(&mut self.core, id),
                Some((Whom::Bell(id), _)) => self.streams.wake_rings(id),
                Some((Whom::Datagrams, _)) | None => {}
            }
        }
        all
    }

    /// Does what can be done with rings that are awake; whether that is all there is to do.
    fn serve_rings(&mut self) -> bool {
        let (mut all, mut index) = (true, 0);
        while let Some(id) = self.streams.rings.awake(index) {
            all &= !self.streams.look_at_rings(&mut self.core, id) || self.read_stream(id);
            index += 1;
        }
        all
    }

    /// Goes on with what had arrived from peers that did not read, and do now.
    fn serve_unread(&mut self) {
        if !self.streams.has_unread() {
            return;
        }
        let mut input = std::mem::take(&mut self.input);
        while let Some(id) = self.streams.take_unread(&mut input) {
            let held = self.handle_stream(id, &mut input);
            self.streams.keep_input(id, &mut input, held);
        }
        self.input = input;
    }

    /// Handles what has arrived on a stream; whether that is all.
    fn read_stream(&mut self, id: ConnId) -> bool {
        let mut input = std::mem::take(&mut self.input);
        let more = self.streams.read(&mut self.core, id, &mut input);
        if more.is_some() {
            let held = self.handle_stream(id, &mut input);
            self.streams.keep_input(id, &mut input, held);
        }
        self.input = input;
        more != Some(true)
    }

    /// Handles all whole messages; whether some are held back for now.
    fn handle_stream(&mut self, id: ConnId, input: &mut BytesMut) -> bool {
        loop {
            let read = self.core.handle_input(id, input);
            self.follow();
            match read {
                InputOutcome::More => {}
                InputOutcome::All => return false,
                InputOutcome::Held => return true,
                InputOutcome::Ended => {
                    input.clear();
                    return false;
                }
            }
        }
    }

    /// How long nothing has to be done.
    fn time_left(&mut self) -> Duration {
        self.due()
            .map_or(Duration::MAX, |due| due.saturating_sub(self.now))
    }

    fn due(&mut self) -> Option<Duration> {
        let due = earliest(self.core.poll_timeout(), self.streams.due());
        earliest(due, self.calling.retried.next_due())
    }

    /// How long until the next [`turn`](Self::turn) has something to do, even if nothing arrives; `None` is for ever. For
    /// applications that wait for other things as well.
    pub fn next_timeout(&mut self) -> Option<Duration> {
        self.look_at_clock();
        let full = self.is_full();
        let unsent = self.has_datagrams() && !full || self.calling.bodies.have_notes();
        if unsent || self.core.has_output() || self.streams.has_output() {
            return Some(Duration::ZERO);
        }
        let due = self.due();
        let left = due.map(|due| due.saturating_sub(self.now));
        if full {
            return Some(left.map_or(DEAR, |left| left.min(DEAR)));
        }
        left
    }

    /// Sends what may be sent now.
    pub(super) fn flush(&mut self) {
        while let Some(id) = self.streams.unwritten.pop() {
            self.streams.write(&mut self.core, id);
            if self.core.has_output() {
                self.follow(); // there is room for more now
            }
        }
        if self.has_datagrams() || self.is_full() {
            self.send_datagrams();
        }
    }

    #[inline(never)]
    fn send_datagrams(&mut self) {
        if self.keeps && !self.send_gathered() {
            return;
        }
        while let Some(to) = self.next_datagram() {
            // Mostly it is the only one.
            let sent = if self.has_datagrams() {
                self.keeps = true;
                self.datagrams.gather(&self.datagram, to)
            } else {
                self.datagrams.send(&self.datagram, to)
            };
            match sent {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.refused = Some(to);
                    break;
                }
                Err(error) => tracing::debug!(%to, %error, "a datagram was not sent"), // as if lost
                Ok(()) => {}
            }
        }
        if self.keeps {
            self.send_gathered();
        }
    }

    /// The one that was refused, or the next one of the sessions.
    fn next_datagram(&mut self) -> Option<SocketAddr> {
        if let Some(to) = self.refused.take() {
            return Some(to);
        }
        let socket = self.socket?;
        if !self.core.has_datagrams(socket) {
            return None;
        }
        self.datagram.clear();
        let transmit = self.core.poll_datagram(socket, &mut self.datagram)?;
        Some(transmit.to)
    }

    /// Sends what was gathered; whether nothing of it is left.
    fn send_gathered(&mut self) -> bool {
        let flushed = self.datagrams.flush();
        self.keeps = flushed.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock);
        !self.keeps
    }

    /// Whether something waits for room.
    fn is_full(&self) -> bool {
        self.refused.is_some() || self.keeps
    }
}

/// A datagram that was received, where it can be referred to.
fn keep(arrived: &mut BytesMut, datagram: &[u8]) -> Bytes {
    if arrived.capacity() < datagram.len() {
        arrived.reserve(ROOM);
    }
    arrived.extend_from_slice(datagram);
    arrived.split().freeze()
}
