//! A UDP socket: received from by one task, sent from by whoever has something to send.

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, Weak};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use wallaby_proto::endpoint::SocketId;

use super::effects::Inside;
use super::shared::Inner;
use crate::log::Limiter;
use crate::timer::{self, Instant, Sleep};
use crate::transport::PAUSE;
use crate::transport::udp::{Inbox, Outbox, Socket};

/// Datagrams that are read in a row before their messages are handled, and as many more as the system had joined.
const BATCH: usize = 64;

/// Datagrams that are handled before others may use the endpoint.
const AT_ONCE: usize = 16;

/// Batches of datagrams that one thread sends before it does something else.
const SENDS_A_TURN: usize = 16;

/// How often one thread looks whether others want something sent meanwhile.
const FLUSHES: usize = 4;

/// News of datagrams that could not be delivered that are taken at a time.
const MOST_UNREACHABLE: usize = 64;

/// Errors in a row that are taken for news of datagrams that were sent. A socket that has more of them can most likely receive nothing.
const MOST_ERRORS: u32 = 16;

/// A socket, and what waits to be sent from it.
pub(crate) struct Port {
    id: SocketId,
    /// Whoever uses it holds it, so that its address is free when it was closed.
    socket: RwLock<Option<Socket>>,
    /// What is being sent; between turns what the socket did not take.
    outbox: Mutex<Outbox>,
    /// Who wants something sent, while one of them sends: the others need not wait for that.
    wanted: AtomicUsize,
    /// Several answers came at once: what those who waited for them send next leaves together, in the reader's next turn, which
    /// comes after theirs.
    gathering: AtomicBool,
    /// The reader, while it waits.
    reader: Mutex<Option<Waker>>,
}

impl Port {
    fn new(id: SocketId, socket: Socket) -> Arc<Self> {
        let outbox = socket.outbox();
        Arc::new(Self {
            id,
            socket: RwLock::new(Some(socket)),
            outbox: Mutex::new(outbox),
            wanted: AtomicUsize::new(0),
            gathering: AtomicBool::new(false),
            reader: Mutex::default(),
        })
    }

    /// Not to be held while anybody's code runs, which may close it: see [`Inside`].
    fn socket(&self) -> RwLockReadGuard<'_, Option<Socket>> {
        self.socket.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn outbox(&self) -> MutexGuard<'_, Outbox> {
        self.outbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self) {
        let known = self.reader.lock().unwrap_or_else(PoisonError::into_inner);
        let reader = known.clone();
        drop(known); // whoever is woken may read it
        reader.into_iter().for_each(Waker::wake);
    }

    /// Sends what may be sent now, unless the reader is about to.
    pub(super) fn flush(&self, endpoint: &Arc<Inner>) {
        if self.gathering.load(Ordering::Acquire) {
            return;
        }
        // What this sets off comes when the socket and the outbox are free again.
        let _inside = Inside::enter();
        if let Some(socket) = self.socket().as_ref() {
            self.flush_from(socket, endpoint);
        }
    }

    /// The same, or lets who sends already do that.
    fn flush_from(&self, socket: &Socket, endpoint: &Arc<Inner>) {
        let mut wanted = self.wanted.fetch_add(1, Ordering::AcqRel) + 1;
        if wanted > 1 {
            return;
        }
        for _ in 0..FLUSHES {
            self.transmit_from(socket, endpoint);
            let done =
                (self.wanted).compare_exchange(wanted, 0, Ordering::AcqRel, Ordering::Acquire);
            match done {
                Ok(_) => return,
                Err(more) => wanted = more,
            }
        }
        self.wanted.store(0, Ordering::Release);
        self.leave_to_reader();
    }

    /// Others go on to send: the reader does the rest, as this thread has more to do.
    fn leave_to_reader(&self) {
        self.gathering.store(true, Ordering::Release);
        self.wake();
    }

    fn transmit(&self, endpoint: &Arc<Inner>) {
        // What this sets off comes when the socket and the outbox are free again.
        let _inside = Inside::enter();
        if let Some(socket) = self.socket().as_ref() {
            self.transmit_from(socket, endpoint);
        }
    }

    /// The same until nothing is left.
    fn transmit_all(&self, endpoint: &Arc<Inner>) {
        self.transmit(endpoint);
        while self.gathering.swap(false, Ordering::AcqRel) {
            self.transmit(endpoint);
        }
    }

    fn transmit_from(&self, socket: &Socket, endpoint: &Arc<Inner>) {
        let mut outbox = self.outbox();
        let mut rounds = 0..SENDS_A_TURN;
        loop {
            if rounds.next().is_none() {
                self.leave_to_reader();
                break;
            }
            let goes_on = endpoint.enter(|core| {
                while !outbox.is_full() {
                    let core = &mut core.endpoint;
                    let Some(transmit) = core.poll_datagram(self.id, outbox.buffer()) else {
                        return false;
                    };
                    outbox.push(transmit.to, transmit.len);
                }
                true
            });
            if outbox.is_empty() {
                break;
            }
            if socket.send_all(&mut outbox).is_err() {
                return self.wake(); // there is no room
            }
            if !goes_on {
                break;
            }
        }
        drop(outbox);
        // On the same machine the system knows at once that nobody listens.
        if endpoint.ask(|core| core.endpoint.is_opening()) {
            self.note_unreachable(endpoint, socket);
        }
    }

    /// The endpoint learns what the network says of datagrams that could not be delivered.
    fn note_unreachable(&self, endpoint: &Arc<Inner>, socket: &Socket) {
        for to in std::iter::from_fn(|| socket.take_unreachable()).take(MOST_UNREACHABLE) {
            endpoint.enter(|core| core.endpoint.handle_unreachable(self.id, to));
        }
    }

    /// Sends what may be sent now, a last time, and frees the address.
    fn close(&self, endpoint: &Arc<Inner>) {
        self.transmit_all(endpoint);
        let socket = self.socket.write();
        drop(socket.unwrap_or_else(PoisonError::into_inner).take());
        self.wake();
    }

    /// Receives until the port is closed or its endpoint is gone.
    async fn drive(self: Arc<Self>, endpoint: Weak<Inner>) {
        let mut reader = Reader {
            inbox: Inbox::new(),
            arrived: Vec::new(),
            errors: 0,
            told: Limiter::default(),
            pause: None,
        };
        poll_fn(|cx| match endpoint.upgrade() {
            Some(endpoint) => self.poll(cx, &endpoint, &mut reader),
            None => Poll::Ready(()),
        })
        .await;
    }

    fn poll(&self, cx: &mut Context<'_>, endpoint: &Arc<Inner>, reader: &mut Reader) -> Poll<()> {
        {
            let mut known = self.reader.lock().unwrap_or_else(PoisonError::into_inner);
            if !known
                .as_ref()
                .is_some_and(|known| known.will_wake(cx.waker()))
            {
                *known = Some(cx.waker().clone());
            }
        }
        let Some(empty) = self.receive(cx, endpoint, reader) else {
            return Poll::Ready(());
        };
        let arrived = &mut reader.arrived;
        if !arrived.is_empty() {
            endpoint.note_listening();
            // What this sets off comes when all of it was handled.
            let _inside = Inside::enter();
            let mut answers = 0;
            while !arrived.is_empty() {
                let some = arrived.drain(..arrived.len().min(AT_ONCE));
                answers += endpoint.enter(|core| {
                    let core = &mut core.endpoint;
                    let before = core.counted().responses_received;
                    for (from, datagram) in some {
                        core.handle_datagram(self.id, from, datagram);
                    }
                    core.settle();
                    core.counted().responses_received - before
                });
            }
            if answers > 1 {
                self.gathering.store(true, Ordering::Release);
            }
        }
        if !empty || self.gathering.load(Ordering::Acquire) {
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    }

    /// Sends what had to wait, and reads what there is; whether that is all. `None` if the port is closed.
    fn receive(
        &self,
        cx: &mut Context<'_>,
        endpoint: &Arc<Inner>,
        reader: &mut Reader,
    ) -> Option<bool> {
        // What this sets off comes when the socket is free again.
        let _inside = Inside::enter();
        let socket = self.socket();
        let socket = socket.as_ref()?;
        let gathered = self.gathering.swap(false, Ordering::AcqRel);
        let unsent = self
            .outbox
            .try_lock()
            .is_ok_and(|outbox| !outbox.is_empty());
        if gathered || unsent && socket.poll_writable(cx).is_ready() {
            self.flush_from(socket, endpoint);
        }
        if reader.is_pausing(cx) {
            return Some(true);
        }
        let Reader { inbox, arrived, .. } = reader;
        while arrived.len() < BATCH {
            match socket.poll_receive(cx, inbox) {
                Poll::Pending => {
                    reader.errors = 0;
                    return Some(true);
                }
                Poll::Ready(Ok(())) => {
                    reader.errors = 0;
                    inbox.take(|from, datagram| arrived.push((from, datagram)));
                }
                // Of a datagram that was sent: see `take_unreachable`.
                Poll::Ready(Err(error)) => {
                    self.note_unreachable(endpoint, socket);
                    reader.note(&error);
                    break;
                }
            }
        }
        Some(false)
    }
}

/// What has come, and whether anything can.
struct Reader {
    inbox: Inbox,
    arrived: Vec<(SocketAddr, Bytes)>,
    /// How often in a row that has failed.
    errors: u32,
    told: Limiter,
    pause: Option<Sleep>,
}

impl Reader {
    #[cold]
    fn note(&mut self, error: &io::Error) {
        self.errors = self.errors.saturating_add(1);
        if self.errors >= MOST_ERRORS {
            if let Some(left_out) = self.told.pass() {
                tracing::error!(%error, left_out, "cannot receive datagrams");
            }
            self.pause = Some(timer::sleep_until(Instant::now() + PAUSE));
        }
    }

    fn is_pausing(&mut self, cx: &mut Context<'_>) -> bool {
        let Some(pause) = &mut self.pause else {
            return false;
        };
        let pausing = Pin::new(pause).poll(cx).is_pending();
        if !pausing {
            // An error that came meanwhile must not keep datagrams from being read: there is a second attempt.
            (self.pause, self.errors) = (None, MOST_ERRORS - 2);
        }
        pausing
    }
}

impl Inner {
    /// Receives from a socket that listens.
    pub(crate) fn add_port(self: &Arc<Self>, socket: Socket) {
        let local = socket.local();
        let port = self.enter(|core| {
            let id = core.endpoint.add_listening_socket(local);
            let port = Port::new(id, socket);
            core.ports.push((id, Arc::clone(&port)));
            port
        });
        self.runtime.spawn(port.drive(self.me.clone()));
    }

    /// Opens a socket for the endpoint from which this address is reached.
    pub(super) fn open_socket(self: &Arc<Self>, id: SocketId, towards: SocketAddr) {
        let _runtime = self.runtime.enter(); // its sockets are the runtime's
        let socket = match Socket::towards(towards, &self.settings.driver.transports) {
            Ok(socket) => socket,
            Err(error) => {
                let why = error.to_string();
                return self.enter(|core| core.endpoint.handle_socket_failed(id, why));
            }
        };
        let port = Port::new(id, socket);
        let wanted = self.enter(|core| {
            let wanted = !core.endpoint.is_closed();
            if wanted {
                core.ports.push((id, Arc::clone(&port)));
                super::effects::send(self, &port);
            }
            wanted
        });
        if wanted {
            self.runtime.spawn(port.drive(self.me.clone()));
        }
    }

    /// Sends what sessions have taken: one that is closed sends nothing but that.
    pub(crate) fn flush_ports(self: &Arc<Self>) {
        let ports = self.ask(|core| core.ports.clone());
        for (_, port) in ports {
            port.transmit_all(self);
        }
    }

    /// Sends the last datagrams and frees the addresses.
    pub(crate) fn close_ports(self: &Arc<Self>) {
        let ports = self.ask(|core| std::mem::take(&mut core.ports));
        for (_, port) in ports {
            port.close(self);
        }
    }
}

impl fmt::Debug for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Port({:?})", self.id)
    }
}
