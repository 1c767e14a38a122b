//! One UDP socket: as many threads receive on it as calls are executed at a time, and one more.

use std::cell::RefCell;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use nix::sys::socket::{Shutdown, shutdown};
use std::os::fd::AsRawFd;
use tokio::time::Instant;

use super::{ServerOptions, Shared};
use crate::blocking::socket::{is_timeout, settable};
use crate::message::{AcceptError, BadMessage, Body, Call, Denial, Message, Reply};
use crate::peer::{Origin, Peer};
use crate::server::counters::count;
use crate::server::seen::{Key, Limits, Seen, Verdict};
use crate::udp::{self, Bound, Buffer, Way};

/// A socket, and the calls that came over it of late.
#[derive(Debug)]
pub(super) struct Port {
    socket: UdpSocket,
    bound: Bound,
    seen: Mutex<Seen>,
    /// Threads that wait for a datagram, or are about to.
    receiving: AtomicUsize,
    patience: Mutex<Patience>,
}

/// How long the socket's reads wait.
#[derive(Debug)]
struct Patience {
    /// If one thread receives.
    alone: Duration,
    /// If more do: others may need them.
    among_others: Duration,
    is_alone: bool,
}

impl Port {
    pub(super) fn bind(address: SocketAddr, options: &ServerOptions) -> io::Result<Arc<Self>> {
        let socket = UdpSocket::bind(address)?;
        socket.set_read_timeout(Some(settable(options.keep_workers)))?;
        Ok(Arc::new(Self {
            bound: Bound::new(&socket, address, socket.local_addr()?)?,
            socket,
            seen: Mutex::new(Seen::new(Limits {
                replies: options.max_kept_replies,
                bytes: options.max_kept_bytes,
                age: options.keep_replies,
            })),
            receiving: AtomicUsize::new(0),
            patience: Mutex::new(Patience {
                alone: options.keep_workers,
                among_others: options.linger,
                is_alone: true,
            }),
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

    /// Reads wait as long as they are to with as many threads as receive now. The last one that comes here knows of all.
    fn limit_reads(&self) {
        let mut patience = self.patience.lock().unwrap_or_else(PoisonError::into_inner);
        let is_alone = self.receiving.load(Ordering::Acquire) <= 1;
        if is_alone == patience.is_alone {
            return;
        }
        let limit = match is_alone {
            true => patience.alone,
            false => patience.among_others,
        };
        if self.socket.set_read_timeout(Some(settable(limit))).is_ok() {
            patience.is_alone = is_alone;
        }
    }

    /// One thread less receives, if others do: whether it is so.
    fn leave(&self) -> bool {
        let less = |receiving: usize| (receiving > 1).then(|| receiving - 1);
        let left = self
            .receiving
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, less);
        self.limit_reads();
        left.is_ok()
    }
}

/// Serves a socket until the server ends; an error if there is no thread for it.
pub(super) fn serve(shared: &Arc<Shared>, port: &Arc<Port>) -> io::Result<()> {
    shared.workers.allow_one_more();
    if start(shared, port) {
        return Ok(());
    }
    shared.workers.allow_one_less();
    Err(io::Error::other("there is no thread to receive"))
}

/// One more thread receives, if there may be one: whether it does.
fn start(shared: &Arc<Shared>, port: &Arc<Port>) -> bool {
    let (for_job, port_of_job) = (Arc::clone(shared), Arc::clone(port));
    port.receiving.fetch_add(1, Ordering::AcqRel);
    let is_started = shared
        .workers
        .try_submit(move || receive(&for_job, &port_of_job));
    if !is_started {
        port.receiving.fetch_sub(1, Ordering::AcqRel);
    }
    is_started
}

fn receive(shared: &Arc<Shared>, port: &Arc<Port>) {
    let _runtime = shared.runtime.as_ref().map(|runtime| runtime.enter());
    BUFFER.with_borrow_mut(|buffer| {
        while !shared.is_over() {
            match port.bound.receive(&port.socket, buffer.room()) {
                Ok((length, way)) => {
                    pause(shared, port, || {
                        handle(shared, port, buffer.received(length), way);
                    });
                    // Connections wait for a thread.
                    if shared.workers.is_short() && port.leave() {
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

/// While this thread executes a call, another one is to receive.
fn pause(shared: &Arc<Shared>, port: &Arc<Port>, execute: impl FnOnce()) {
    if port.receiving.fetch_sub(1, Ordering::AcqRel) == 1 {
        start(shared, port);
    }
    execute();
    port.receiving.fetch_add(1, Ordering::AcqRel);
    port.limit_reads();
}

fn handle(shared: &Shared, port: &Port, datagram: Bytes, way: Way) {
    let length = datagram.len();
    match Message::decode(datagram) {
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

fn handle_call(shared: &Shared, port: &Port, xid: u32, call: Call, way: Way) {
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
    let reply = match shared.reply(xid, call, origin) {
        Some(reply) if reply.len() > udp::max_payload(way.peer) => {
            count(&counters.too_long_replies);
            Reply::accepted(Err(AcceptError::SystemError)).message(xid)
        }
        other => other,
    };
    if let Some(key) = key {
        port.seen().finish(key, reply.clone(), Instant::now());
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
