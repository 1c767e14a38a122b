//! One UDP socket of a server.

mod socket;

use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use super::counters::count;
use super::seen::{Key, Limits, Seen, Verdict};
use super::{Phase, Shared, ends, job};
use crate::message::{AcceptError, BadMessage, Body, Call, Denial, Message, Reply};
use crate::peer::{Origin, Peer};
use crate::udp::{self, Buffer, Way};

pub(super) use socket::Socket;

/// The places that a request takes, in its socket and in the server.
struct Places {
    _own: OwnedSemaphorePermit,
    _shared: OwnedSemaphorePermit,
}

/// What the requests of a socket share.
struct Port {
    shared: Arc<Shared>,
    socket: Socket,
    seen: Mutex<Seen>,
    places: Arc<Semaphore>,
}

/// Serves a socket until the server ends.
pub(super) fn spawn(shared: &Arc<Shared>, socket: Socket) {
    let options = &shared.options;
    let places = options.max_requests_over_udp;
    let port = Arc::new(Port {
        shared: Arc::clone(shared),
        socket,
        seen: Mutex::new(Seen::new(Limits {
            replies: options.max_kept_replies,
            bytes: options.max_kept_bytes,
            age: options.keep_replies,
        })),
        places: Arc::new(Semaphore::new(places.clamp(1, Semaphore::MAX_PERMITS))),
    });
    let mut phase = shared.phase.subscribe();
    tokio::spawn(async move {
        let mut buffer = Buffer::default();
        loop {
            tokio::select! {
                received = port.socket.receive(buffer.room()) => {
                    let Ok((length, way)) = received else {
                        // The system tells of datagrams that did not arrive: their receivers ask again, or do not.
                        tokio::time::sleep(udp::AFTER_ERROR).await;
                        continue;
                    };
                    port.handle(buffer.message(length), length, way).await;
                }
                () = ends(&mut phase, Phase::Draining) => return,
            }
        }
    });
}

impl Port {
    async fn handle(
        self: &Arc<Self>,
        message: Result<Message, BadMessage>,
        length: usize,
        way: Way,
    ) {
        let counters = &self.shared.counters;
        match message {
            Ok(Message {
                xid,
                body: Body::Call(call),
            }) => self.handle_call(xid, call, way).await,
            Err(BadMessage::OtherVersion { xid, .. }) => {
                let denied = Reply::Denied(Denial::other_version()).message(xid);
                // Nobody gets more than they sent: the address may be somebody else's.
                match denied.filter(|reply| reply.len() <= length) {
                    Some(reply) => self.send(&reply, way).await,
                    None => count(&counters.malformed),
                }
            }
            Ok(_) | Err(BadMessage::Malformed(_)) => count(&counters.malformed),
        }
    }

    async fn handle_call(self: &Arc<Self>, xid: u32, call: Call, way: Way) {
        let counters = &self.shared.counters;
        let key = match self.recognize(xid, &call, way) {
            Ok(key) => key,
            Err(Verdict::Answered(reply)) => {
                count(&counters.duplicates_answered);
                return self.send(&reply, way).await;
            }
            Err(_) => return count(&counters.duplicates_dropped),
        };
        let Some(places) = self.places() else {
            // It was never here: the client will ask again.
            if let Some(key) = key {
                self.seen().finish(key, None, Instant::now());
            }
            return count(&counters.overloaded);
        };
        let job = Arc::clone(self).execute(xid, call, way, key, places);
        let mut job = Some((self.shared.phase.subscribe(), job));
        poll_fn(|context| {
            if let Some((phase, job)) = job.take() {
                job::run(context, phase, job);
            }
            Poll::Ready(())
        })
        .await;
    }

    async fn execute(
        self: Arc<Self>,
        xid: u32,
        call: Call,
        way: Way,
        key: Option<Key>,
        _places: Places,
    ) {
        let origin = Origin {
            peer: Peer::Udp(way.peer),
            local: Peer::Udp(way.local),
            uid: None,
        };
        let reply = job::reply(Arc::clone(&self.shared), xid, call, origin).await;
        let reply = match reply {
            Some(reply) if reply.len() > udp::max_payload(way.peer) => {
                count(&self.shared.counters.too_long_replies);
                Reply::accepted(Err(AcceptError::SystemError)).message(xid)
            }
            other => other,
        };
        if let Some(key) = key {
            self.seen().finish(key, reply.clone(), Instant::now());
        }
        if let Some(reply) = reply {
            self.send(&reply, way).await;
        }
    }

    /// Where to keep the answer of a call that is new, if it is kept at all; else what is known of it.
    fn recognize(&self, xid: u32, call: &Call, way: Way) -> Result<Option<Key>, Verdict> {
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
    fn is_worth_keeping(&self, call: &Call) -> bool {
        call.procedure.number != 0 && self.shared.programs.serves(call.procedure)
    }

    fn places(&self) -> Option<Places> {
        Some(Places {
            _own: Arc::clone(&self.places).try_acquire_owned().ok()?,
            _shared: Arc::clone(&self.shared.requests).try_acquire_owned().ok()?,
        })
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn send(&self, reply: &[u8], way: Way) {
        if self.socket.send(reply, way).await.is_err() {
            count(&self.shared.counters.unsent_replies);
        }
    }
}
