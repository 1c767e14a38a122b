//! One UDP socket: one thread receives and executes what it got, others when it takes long ([`relief`](super::relief)).

use std::cell::RefCell;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{Shutdown, shutdown};
use tokio::time::Instant;

use super::relief::{Relief, TICK};
use super::turns::{Moment, Turns};
use super::{ServerOptions, Shared};
use crate::blocking::socket::{is_timeout, settable};
use crate::message::{BadMessage, Body, Call, Denial, Message, Reply};
use crate::peer::{Origin, Peer};
use crate::server::counters::count;
use crate::server::seen::{Key, Limits, Seen, Verdict};
use crate::udp::{self, Bound, Buffer, Way, Written};

/// A call that has taken so many ticks is a long one.
const LONG: u64 = 2;
/// If calls wait while others are executed, this many looks in a row, one thread is too few.
const BUSY: u32 = 4;

/// A socket, and the calls that came over it of late.
#[derive(Debug)]
pub(super) struct Port {
    socket: UdpSocket,
    bound: Bound,
    seen: Mutex<Seen>,
    turns: Turns,
    /// Threads that receive, or execute what they received.
    threads: Mutex<usize>,
    /// How long a read waits if there are several: others may need the thread.
    linger: Duration,
    /// Until when, in ticks, another thread is to receive as soon as one has got something.
    eager_until: AtomicU64,
    looked: Mutex<Looked>,
}

/// What was seen when it was looked last.
#[derive(Debug, Default)]
struct Looked {
    moment: Moment,
    busy: u32,
}

impl Port {
    pub(super) fn bind(address: SocketAddr, options: &ServerOptions) -> io::Result<Arc<Self>> {
        let socket = UdpSocket::bind(address)?;
        Ok(Arc::new(Self {
            bound: Bound::new(&socket, address, socket.local_addr()?)?,
            socket,
            seen: Mutex::new(Seen::new(Limits {
                replies: options.max_kept_replies,
                bytes: options.max_kept_bytes,
                age: options.keep_replies,
            })),
            turns: Turns::default(),
            threads: Mutex::default(),
            linger: settable(options.linger),
            eager_until: AtomicU64::new(0),
            looked: Mutex::default(),
        }))
    }

    pub(super) fn local_addr(&self) -> SocketAddr {
        self.bound.local_addr()
    }

    /// Wakes all who wait for a datagram.
    pub(super) fn end(&self) {
        // The system says that there is no connection to end, and wakes them. Replies still leave.
        let _ = shutdown(self.socket.as_raw_fd(), Shutdown::Read);
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// More threads are at this socket, or less. One that is alone has no reason to stop waiting.
    fn change_threads(&self, change: impl FnOnce(&mut usize)) {
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        let were_several = *threads > 1;
        change(&mut threads);
        let are_several = *threads > 1;
        if were_several != are_several {
            // A thread that waits too long, or not long enough, is no harm to calls.
            let _ = self
                .socket
                .set_read_timeout(are_several.then_some(self.linger));
        }
    }

    /// One thread less receives, if others do: whether it is so.
    fn leave(&self) -> bool {
        let is_left = self.turns.leave();
        if is_left {
            self.change_threads(|threads| *threads -= 1);
        }
        is_left
    }

    fn is_eager(&self, now: u64) -> bool {
        now < self.eager_until.load(Ordering::Relaxed)
    }

    /// A call takes long, or calls wait: the next ones may be like that.
    fn be_eager(&self, now: u64) {
        let ticks = self.linger.as_nanos() / TICK.as_nanos();
        let until = now.saturating_add(u64::try_from(ticks).unwrap_or(u64::MAX).max(1));
        self.eager_until.store(until, Ordering::Relaxed);
    }

    /// Whether a datagram waits.
    fn is_readable(&self) -> bool {
        let mut socket = [PollFd::new(self.socket.as_fd(), PollFlags::POLLIN)];
        matches!(poll(&mut socket, PollTimeout::ZERO), Ok(1..))
    }
}

/// Serves a socket until the server ends; an error if there is no thread for it.
pub(super) fn serve(shared: &Arc<Shared>, port: &Arc<Port>) -> io::Result<()> {
    Relief::start(shared)?;
    shared.workers.allow_one_more();
    if start(shared, port) {
        return Ok(());
    }
    shared.workers.allow_one_less();
    Err(io::Error::other("there is no thread to receive"))
}

/// One more thread receives, if there may be one: whether it does. It is counted once that is certain, or another one might
/// leave the socket to it in vain.
fn start(shared: &Arc<Shared>, port: &Arc<Port>) -> bool {
    let (for_job, port_of_job) = (Arc::clone(shared), Arc::clone(port));
    let receive = move || receive(&for_job, &port_of_job);
    shared.workers.try_submit(receive, || {
        port.turns.enter();
        port.change_threads(|threads| *threads += 1);
    })
}

/// Looks whether the threads of a socket come back, and has another one receive if they don't; whether nothing goes on.
pub(super) fn look(shared: &Arc<Shared>, port: &Arc<Port>) -> bool {
    let mut looked = port.looked.lock().unwrap_or_else(PoisonError::into_inner);
    let now = port.turns.now();
    let is_same = std::mem::replace(&mut looked.moment, now).turn == now.turn;
    if now.receiving > 0 {
        looked.busy = 0;
        return is_same;
    }
    looked.busy = match !is_same && shared.is_parallel && port.is_readable() {
        true => looked.busy + 1,
        false => 0,
    };
    if is_same || looked.busy >= BUSY {
        port.be_eager(shared.relief.now());
        start(shared, port);
    }
    false
}

fn receive(shared: &Arc<Shared>, port: &Arc<Port>) {
    let _runtime = shared.runtime.as_ref().map(|runtime| runtime.enter());
    BUFFER.with_borrow_mut(|buffer| {
        while !shared.is_over() {
            match port.bound.receive(&port.socket, buffer.room()) {
                Ok((length, way)) => {
                    let began = begin(shared, port);
                    handle(shared, port, buffer.message(length), length, way);
                    if end(shared, port, began) {
                        return;
                    }
                }
                Err(error) if is_timeout(&error) => {
                    if port.leave() {
                        return;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // The system tells of datagrams that did not arrive: their receivers ask again, or do not.
                Err(_) if shared.is_over() => {}
                Err(_) => thread::sleep(udp::AFTER_ERROR),
            }
        }
    });
}

/// This thread has got a datagram; when that was, in ticks.
fn begin(shared: &Arc<Shared>, port: &Arc<Port>) -> u64 {
    let is_last = port.turns.begin().receiving == 0;
    let now = shared.relief.now();
    if is_last && port.is_eager(now) {
        start(shared, port);
    }
    shared.relief.notice();
    now
}

/// This thread has done what the datagram asked for; whether it leaves the socket to others.
fn end(shared: &Shared, port: &Port, began: u64) -> bool {
    let now = shared.relief.now();
    if now.saturating_sub(began) >= LONG {
        port.be_eager(now);
    }
    let others = port.turns.enter().receiving > 1;
    // Connections may wait for a thread.
    others && (!port.is_eager(now) || shared.workers.is_short()) && port.leave()
}

/// This thread waits for something within a call.
fn pause(shared: &Arc<Shared>, port: &Arc<Port>) {
    if port.turns.now().receiving == 0 {
        start(shared, port);
    }
}

fn handle(
    shared: &Arc<Shared>,
    port: &Arc<Port>,
    message: Result<Message, BadMessage>,
    length: usize,
    way: Way,
) {
    match message {
        Ok(Message {
            xid,
            body: Body::Call(call),
        }) => handle_call(shared, port, xid, call, way),
        Err(BadMessage::OtherVersion { xid, .. }) => {
            let denied = Reply::Denied(Denial::other_version()).message(xid);
            // Nobody gets more than they sent: the address may be somebody else's.
            match denied.filter(|reply| reply.len() <= length) {
                Some(reply) => send(shared, port, &reply, way),
                None => count(&shared.counters.malformed),
            }
        }
        Ok(_) | Err(BadMessage::Malformed(_)) => count(&shared.counters.malformed),
    }
}

fn handle_call(shared: &Arc<Shared>, port: &Arc<Port>, xid: u32, call: Call, way: Way) {
    let counters = &shared.counters;
    let key = match recognize(shared, port, xid, &call, way) {
        Ok(key) => key,
        Err(Verdict::Answered(reply)) => {
            count(&counters.duplicates_answered);
            return send(shared, port, &reply, way);
        }
        Err(_) => return count(&counters.duplicates_dropped),
    };
    let origin = Origin {
        peer: Peer::Udp(way.peer),
        local: Peer::Udp(way.local),
        uid: None,
    };
    let reply = shared.reply(call, origin, || pause(shared, port));
    let too_long = || count(&counters.too_long_replies);
    let reply = Written::new(reply, xid, way.peer, too_long);
    if let Some(key) = key {
        let kept = reply.as_ref().map(Written::kept);
        port.seen().finish(key, kept, Instant::now());
    }
    if let Some(reply) = reply {
        send(shared, port, &reply, way);
    }
}

/// Where to keep the answer of a call that is new, if it is kept at all; else what is known of it.
fn recognize(
    shared: &Shared,
    port: &Port,
    xid: u32,
    call: &Call,
    way: Way,
) -> Result<Option<Key>, Verdict> {
    // Refusals of what is not there, and procedure 0, which does nothing, would only push others out.
    if call.procedure.number == 0 || !shared.programs.serves(call.procedure) {
        return Ok(None);
    }
    let mut seen = port.seen();
    let key = seen.key(way.peer, xid, call);
    match seen.begin(key, Instant::now) {
        Verdict::New => Ok(Some(key)),
        known => Err(known),
    }
}

fn send(shared: &Shared, port: &Port, reply: &[u8], way: Way) {
    if port.bound.send(&port.socket, reply, way).is_err() {
        count(&shared.counters.unsent_replies);
    }
}

thread_local! {
    /// What a thread receives into.
    static BUFFER: RefCell<Buffer> = RefCell::default();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blocking::Server;
    use crate::service::Programs;

    /// A socket that only the test looks at, and one thread that receives, as if there were one.
    fn port(server: &Server) -> Arc<Port> {
        let port = Port::bind(([127, 0, 0, 1], 0).into(), &server.shared.options).unwrap();
        port.turns.enter();
        assert!(look(&server.shared, &port), "nothing goes on");
        port
    }

    fn server() -> Server {
        Server::new(Programs::new(), ServerOptions::default()).unwrap()
    }

    fn started(server: &Server) -> u64 {
        server.shared.workers.counters().started
    }

    #[test]
    fn a_thread_that_comes_back_stays_alone() {
        let server = server();
        let port = port(&server);
        for _ in 0..100 {
            begin(&server.shared, &port);
            assert!(!look(&server.shared, &port));
            assert!(!end(&server.shared, &port, 0));
            assert!(look(&server.shared, &port));
        }
        assert_eq!(started(&server), 0);
    }

    #[test]
    fn a_thread_that_does_not_come_back_gets_company() {
        let server = server();
        let port = port(&server);
        let began = begin(&server.shared, &port);
        look(&server.shared, &port);
        assert_eq!(started(&server), 0);
        look(&server.shared, &port);
        assert_eq!((started(&server), port.turns.now().receiving), (1, 1));
        begin(&server.shared, &port);
        assert_eq!(started(&server), 2, "at once while calls take long");
        assert!(!end(&server.shared, &port, began), "and nobody leaves");
        port.eager_until.store(0, Ordering::Relaxed);
        begin(&server.shared, &port);
        assert!(end(&server.shared, &port, began), "now one is enough");
        drop(server);
        port.end();
    }

    #[test]
    fn a_thread_that_always_leaves_calls_waiting_gets_company() {
        let server = server();
        if !server.shared.is_parallel {
            return;
        }
        let port = port(&server);
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        client.send_to(b"no call", port.local_addr()).unwrap();
        for turn in 0..BUSY {
            assert_eq!(started(&server), 0, "turn {turn}");
            begin(&server.shared, &port);
            look(&server.shared, &port);
            end(&server.shared, &port, 0);
        }
        assert_eq!(started(&server), 1);
        drop(server);
        port.end();
    }

    #[test]
    fn a_thread_that_waits_within_a_call_gets_company_at_once() {
        let server = server();
        let port = port(&server);
        begin(&server.shared, &port);
        let shared = &server.shared;
        let ready = crate::blocking::wait_after(std::future::ready(7), || pause(shared, &port));
        assert_eq!((ready, started(&server)), (7, 0));
        let yielding = tokio::task::yield_now();
        crate::blocking::wait_after(yielding, || pause(shared, &port));
        assert_eq!(started(&server), 1);
        drop(server);
        port.end();
    }
}
