//! One UDP socket of a server.

mod socket;

use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

use super::counters::count;
use super::seen::{Key, Limits, Seen, Verdict};
use super::{Phase, Shared, ends, job};
use crate::message::{BadMessage, CallBody, Denial, MessageBody, Reply, RpcMessage};
use crate::peer::{Origin, Peer};
use crate::udp::{self, Buffer, Way, Written};

pub(super) use socket::Socket;

/// What the requests of a socket share.
struct Port {
    shared: Arc<Shared>,
    socket: Socket,
    seen: Mutex<Seen>,
    /// Requests that are handled now.
    handled: AtomicUsize,
}

/// A request that is handled, in its socket and in the server.
struct Place {
    port: Arc<Port>,
    _shared: OwnedSemaphorePermit,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.port.handled.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What is to be known of a call when it is over.
#[derive(Clone, Copy)]
struct Asked {
    xid: u32,
    way: Way,
    key: Option<Key>,
}

/// Serves a socket until the server ends.
pub(super) fn spawn(shared: &Arc<Shared>, socket: Socket) {
    let options = &shared.options;
    let port = Arc::new(Port {
        shared: Arc::clone(shared),
        socket,
        seen: Mutex::new(Seen::new(Limits {
            replies: options.max_kept_replies,
            bytes: options.max_kept_bytes,
            age: options.keep_replies,
        })),
        handled: AtomicUsize::new(0),
    });
    let mut phase = shared.phase.subscribe();
    tokio::spawn(async move {
        let mut ended = pin!(ends(&mut phase, Phase::Draining));
        let mut buffer = Buffer::default();
        loop {
            let received = tokio::select! {
                biased;
                () = &mut ended => return,
                received = port.socket.receive(buffer.room()) => received,
            };
            let Ok((length, way)) = received else {
                // The system tells of datagrams that did not arrive: their receivers ask again, or do not.
                tokio::time::sleep(udp::AFTER_ERROR).await;
                continue;
            };
            let mut message = Some(buffer.message(length));
            poll_fn(|context| {
                if let Some(message) = message.take() {
                    port.handle(message, length, way, context);
                }
                Poll::Ready(())
            })
            .await;
        }
    });
}

impl Port {
    fn handle(
        self: &Arc<Self>,
        message: Result<RpcMessage, BadMessage>,
        length: usize,
        way: Way,
        context: &mut Context<'_>,
    ) {
        let counters = &self.shared.counters;
        match message {
            Ok(RpcMessage {
                xid,
                body: MessageBody::Call(call),
            }) => self.handle_call(xid, call, way, context),
            Err(BadMessage::OtherVersion { xid, .. }) => {
                let denied = Reply::Denied(Denial::other_version()).message(xid);
                // Nobody gets more than they sent: the address may be somebody else's.
                match denied.filter(|reply| reply.len() <= length) {
                    Some(reply) => self.send(Written::Large(reply), way, None),
                    None => count(&counters.malformed),
                }
            }
            Ok(_) | Err(BadMessage::Malformed(_)) => count(&counters.malformed),
        }
    }

    fn handle_call(
        self: &Arc<Self>,
        xid: u32,
        call: CallBody,
        way: Way,
        context: &mut Context<'_>,
    ) {
        let counters = &self.shared.counters;
        let key = match self.recognize(xid, &call, way) {
            Ok(key) => key,
            Err(Verdict::Answered(reply)) => {
                count(&counters.duplicates_answered);
                return self.send(Written::Large(reply), way, None);
            }
            Err(_) => return count(&counters.duplicates_dropped),
        };
        let Some(place) = self.place() else {
            // It was never here: the client will ask again.
            self.keep(key, None);
            return count(&counters.overloaded);
        };
        let origin = Origin {
            peer: Peer::Udp(way.peer),
            local: Peer::Udp(way.local),
            uid: None,
        };
        let asked = Asked { xid, way, key };
        match job::run(&self.shared, call, origin, context) {
            Ok(reply) => self.answer(asked, reply, place),
            Err(handling) => {
                let port = Arc::clone(self);
                job::finish(&self.shared, handling, move |reply| async move {
                    port.answer(asked, reply, place);
                });
            }
        }
    }

    /// A call was executed.
    fn answer(self: &Arc<Self>, asked: Asked, reply: Option<Reply>, place: Place) {
        let too_long = || count(&self.shared.counters.too_long_replies);
        let reply = Written::new(reply, asked.xid, asked.way.peer, too_long);
        self.keep(asked.key, reply.as_ref());
        if let Some(reply) = reply {
            self.send(reply, asked.way, Some(place));
        }
    }

    fn keep(&self, key: Option<Key>, reply: Option<&Written>) {
        if let Some(key) = key {
            let kept = reply.map(Written::kept);
            self.seen().finish(key, kept, Instant::now());
        }
    }

    /// Where to keep the answer of a call that is new, if it is kept at all; else what is known of it.
    fn recognize(&self, xid: u32, call: &CallBody, way: Way) -> Result<Option<Key>, Verdict> {
        if !self.is_worth_keeping(call) {
            return Ok(None);
        }
        let mut seen = self.seen();
        let key = seen.key(way.peer, xid, call);
        match seen.begin(key, Instant::now) {
            Verdict::New => Ok(Some(key)),
            known => Err(known),
        }
    }

    /// Whether an answer may be asked for again with effect: refusals of what is not there, and procedure 0, which does
    /// nothing, would only push others out.
    fn is_worth_keeping(&self, call: &CallBody) -> bool {
        call.procedure.number != 0 && self.shared.programs.serves(call.procedure)
    }

    /// A place for one request more, if there is one.
    fn place(self: &Arc<Self>) -> Option<Place> {
        let shared = Arc::clone(&self.shared.requests).try_acquire_owned().ok()?;
        let others = self.handled.fetch_add(1, Ordering::Relaxed);
        // It is given back with this if it is one too many.
        let place = Place {
            port: Arc::clone(self),
            _shared: shared,
        };
        (others < self.shared.options.max_requests_over_udp.max(1)).then_some(place)
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a reply at once. If it has a place, it waits in a task of its own for room, and the place is taken until then;
    /// others are dropped where there is none: as many could wait as somebody asks for, and who needs one asks again.
    fn send(self: &Arc<Self>, reply: Written, way: Way, place: Option<Place>) {
        match self.socket.try_send(&reply, way) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && place.is_some() => {
                let port = Arc::clone(self);
                job::spawn(&self.shared, async move {
                    if port.socket.send(&reply, way).await.is_err() {
                        count(&port.shared.counters.unsent_replies);
                    }
                    drop(place);
                });
            }
            Err(_) => count(&self.shared.counters.unsent_replies),
        }
    }
}
