//! Answers passed on towards initiators that cannot be dialled, in the order in which they came.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::task::AbortHandle;
use wallaby_proto::call::records::Session;
use wallaby_proto::call::shares::{Share, Shares};
use wallaby_proto::call::waiting::Awaited;
use wallaby_proto::connection::Refusal;
use wallaby_proto::detach::detach;
use wallaby_proto::wire::{MAX_FRAME, Response};
use wallaby_proto::{CallId, Token};

use crate::driver::peer::{Peer, Place, Refused};
use crate::endpoint::Inner;
use crate::liveness::session;
use crate::ways::Wait;
use wallaby_proto::call::server::make_too_large;
use wallaby_proto::error::hint;
use wallaby_proto::numbers::MOST_MOVES;

/// What an answer that waits costs besides its payload and its optional fields, in bytes: it may have a queue and a task of its own.
const ANSWER_COST: usize = 2048;

const NO_WAY: &str = "no connection towards its initiator took it";

/// What an answer belongs to, as it says: whoever does not know the token of a call holds nothing of it up.
type Key = (CallId, Option<Token>);

/// Answers that wait for credit or for a way, by call. What waits here was not credited itself, so the server before
/// sends no more than the call's window.
#[derive(Debug)]
pub(crate) struct Relay {
    waiting: Mutex<HashMap<Key, Queue>>,
    /// What all of them cost, in bytes, and whose they are: a client that takes none must not use up what others need.
    shares: Arc<Mutex<Shares>>,
}

/// What an answer costs that waits, as long as it does.
#[derive(Debug)]
struct Room {
    shares: Arc<Mutex<Shares>>,
    share: Share,
    cost: usize,
}

impl Drop for Room {
    fn drop(&mut self) {
        locked(&self.shares).give_back_all(self.share, self.cost);
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Answers of one call, and the task that sends them.
#[derive(Debug)]
struct Queue {
    answers: VecDeque<Passing>,
    /// No way leads on: each of them has its room among those that wait for one.
    stuck: bool,
    task: AbortHandle,
}

/// An answer on its way from one connection to another.
#[derive(Debug)]
pub(crate) struct Passing {
    from: Arc<Peer>,
    next: Option<Arc<Peer>>,
    response: Response,
    /// How far from its initiator it was when it came.
    distance: u32,
    /// Its payload when it came, in bytes: what is credited.
    size: u64,
    /// Whoever waits for its place in the output, if it does not leave at once.
    place: Option<Place>,
    /// Its room among those that wait for a way.
    wait: Option<Wait>,
    /// Its room among all that wait.
    room: Option<Room>,
}

/// Whether it has gone on or goes nowhere: who brought it may bring more.
impl Drop for Passing {
    fn drop(&mut self) {
        self.from.grant_call(self.response.call, 1, self.size);
    }
}

/// What became of an attempt to send an answer.
enum Attempt {
    Sent,
    /// There is no credit or no room now.
    Blocked,
    /// The connection has ended, or takes no such message.
    Refused,
}

impl Passing {
    /// An answer that came from this connection.
    pub(crate) fn new(from: &Arc<Peer>, response: Response) -> Self {
        let size = response.payload.len() as u64;
        Self {
            from: Arc::clone(from),
            next: None,
            distance: response.distance,
            response,
            size,
            place: None,
            wait: None,
            room: None,
        }
    }

    /// It leaves by this connection, and is so far from its initiator then.
    pub(crate) fn leads(&mut self, next: Option<(Arc<Peer>, u32)>) {
        self.next = next.map(|(peer, distance)| {
            self.response.distance = distance;
            peer
        });
    }

    fn key(&self) -> Key {
        (self.response.call, self.response.token)
    }

    /// The connection that it waits for: the next one, or without a way the one that a request of its call came over.
    fn towards(&self, endpoint: &Inner) -> Session {
        if let Some(next) = &self.next {
            return session(next);
        }
        let (call, token) = self.key();
        let way = |token| endpoint.liveness.way_onward(call, token, self.distance);
        let came = token.and_then(way).map(|way| way.session);
        came.unwrap_or_else(|| session(&self.from))
    }

    /// It will be a while until it has left: its initiator is told that it is on its way.
    fn note_slow(&mut self, endpoint: &Inner) {
        if let (None, Some(next)) = (self.place, &self.next) {
            self.place = endpoint.liveness.passing(&self.response, next);
            endpoint.look_again();
        }
    }

    /// Its room among those that wait for a way; `false` if there is none.
    fn make_room(&mut self, endpoint: &Arc<Inner>) -> bool {
        // Who shows no token is not told apart from others.
        if let (None, Some(token)) = (&self.wait, self.response.token) {
            let awaited = Awaited {
                call: self.response.call,
                token,
                request: self.response.request,
            };
            self.wait = endpoint.wait_for_way(awaited, self.response.payload.len());
        }
        self.wait.is_some()
    }

    /// Sends it, if it is accepted now.
    fn attempt(&mut self, endpoint: &Inner) -> Attempt {
        let Some(next) = &self.next else {
            return Attempt::Refused;
        };
        loop {
            match next.try_response(&self.response, true, 0, self.place) {
                Ok(_) => {
                    endpoint.meters.relayed.add();
                    return Attempt::Sent;
                }
                Err(Refused::Now(Refusal::TooLarge { size, limit })) if !self.response.status => {
                    let hint = hint(limit, next.is_over_datagrams());
                    make_too_large(&mut self.response, (size, limit), hint, None);
                }
                Err(Refused::Now(Refusal::Blocked)) => return Attempt::Blocked,
                Err(_) => return Attempt::Refused,
            }
        }
    }

    /// Sends it, and waits for a way and for credit.
    async fn deliver(&mut self, endpoint: &Arc<Inner>) {
        for _ in 0..MOST_MOVES {
            if self.next.as_ref().is_none_or(|next| next.is_closed()) {
                let next = self.way_onward(endpoint);
                self.leads(next);
            }
            let Some(next) = self.next.clone() else {
                if !self.wait(endpoint).await {
                    break;
                }
                continue;
            };
            loop {
                let room = next.room();
                match self.attempt(endpoint) {
                    Attempt::Sent => return,
                    Attempt::Blocked => room.await,
                    Attempt::Refused => break,
                }
            }
        }
        self.give_up(endpoint, NO_WAY);
    }

    /// Waits for a way; `false` if none was found in time, or too much waits already.
    async fn wait(&mut self, endpoint: &Arc<Inner>) -> bool {
        endpoint.relay.make_room(endpoint, self.key());
        if !self.make_room(endpoint) {
            return false;
        }
        // One that was found meanwhile would not be told of.
        let found = self.way_onward(endpoint);
        let wait = self.wait.take();
        let found = match wait {
            Some(wait) if found.is_none() => wait.found().await,
            _ => true,
        };
        endpoint.relay.note_way(self.key(), found);
        found
    }

    fn way_onward(&self, endpoint: &Inner) -> Option<(Arc<Peer>, u32)> {
        let Response { call, token, .. } = self.response;
        endpoint.way_onward((call, token, self.distance), &self.from)
    }

    fn give_up(&mut self, endpoint: &Inner, why: &str) {
        if let Some(place) = self.place.take() {
            endpoint.liveness.dropped(place);
        }
        endpoint.cannot_pass_on(self.response.call, &why);
    }
}

impl Inner {
    /// A message for another initiator ends here.
    pub(crate) fn cannot_pass_on(&self, call: CallId, why: &dyn fmt::Display) {
        self.meters.undeliverable.add();
        if let Some(more) = self.sparse.no_way.pass(self.age()) {
            tracing::warn!(%call, %why, more, "an answer cannot be passed on");
        }
    }
}

impl Relay {
    /// So many bytes may wait.
    pub(crate) fn new(limit: u64) -> Self {
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        Self {
            waiting: Mutex::default(),
            shares: Arc::new(Mutex::new(Shares::new(limit))),
        }
    }

    /// Passes an answer on: at once if nothing of its call waits, else behind that.
    pub(crate) fn pass(&self, endpoint: &Arc<Inner>, mut passing: Passing) {
        let key = passing.key();
        let waits = self.lock().contains_key(&key);
        let large = passing.response.payload.len() > MAX_FRAME;
        if large || passing.next.as_ref().is_some_and(|next| next.is_blocked()) {
            passing.note_slow(endpoint);
        }
        if !waits && matches!(passing.attempt(endpoint), Attempt::Sent) {
            return;
        }
        passing.note_slow(endpoint);
        detach(&mut passing.response.payload);
        passing.room = self.room(endpoint, &passing);
        if passing.room.is_none() {
            return passing.give_up(
                endpoint,
                "too much waits to be passed on already, or too much for one connection",
            );
        }
        match self.lock().entry(key) {
            Entry::Occupied(mut queue) => {
                let queue = queue.get_mut();
                if queue.stuck && !passing.make_room(endpoint) {
                    return passing.give_up(endpoint, NO_WAY);
                }
                queue.answers.push_back(passing);
            }
            Entry::Vacant(place) => {
                let draining = Arc::clone(endpoint);
                let drain = async move { draining.relay.drain(&draining, key).await };
                let task = endpoint.runtime.spawn(drain).abort_handle();
                place.insert(Queue {
                    answers: VecDeque::from([passing]),
                    stuck: false,
                    task,
                });
            }
        }
    }

    /// Room for one more answer, unless too much waits already, or too much for this connection.
    fn room(&self, endpoint: &Inner, passing: &Passing) -> Option<Room> {
        let Response {
            payload, options, ..
        } = &passing.response;
        let fields = options.as_ref().map_or(0, |options| options.size());
        let cost = payload.len().saturating_add(fields + ANSWER_COST);
        let (session, initiator) = (passing.towards(endpoint), passing.response.call.initiator);
        let share = locked(&self.shares).try_take_all(session, initiator, cost);
        let share = share.ok()?;
        let shares = Arc::clone(&self.shares);
        Some(Room {
            shares,
            share,
            cost,
        })
    }

    /// The call is over, says somebody who shows this token: nobody takes what waits for it.
    pub(crate) fn forget(&self, call: CallId, token: Token) {
        if let Some(queue) = self.lock().remove(&(call, Some(token))) {
            queue.task.abort();
        }
    }

    async fn drain(&self, endpoint: &Arc<Inner>, key: Key) {
        while let Some(mut passing) = self.first(key) {
            passing.deliver(endpoint).await;
        }
    }

    /// The answer to send next; if there is none, the queue is gone.
    fn first(&self, key: Key) -> Option<Passing> {
        let mut waiting = self.lock();
        let first = waiting.get_mut(&key)?.answers.pop_front();
        if first.is_none() {
            waiting.remove(&key);
        }
        first
    }

    /// No way leads to the initiator of this call: what waits for it must have its room, or is given up.
    fn make_room(&self, endpoint: &Arc<Inner>, key: Key) {
        if let Some(queue) = self.lock().get_mut(&key) {
            queue.stuck = true;
            let mut full = false; // they are all of one call: where one has no room, those behind it have none
            queue.answers.retain_mut(|passing| {
                let fits = !full && passing.make_room(endpoint);
                full |= !fits;
                if !fits {
                    passing.give_up(endpoint, NO_WAY);
                }
                fits
            });
        }
    }

    /// The first answer of this call need not wait for a way any more; if one was found, neither need the others.
    fn note_way(&self, key: Key, found: bool) {
        if let (true, Some(queue)) = (found, self.lock().get_mut(&key)) {
            queue.stuck = false;
            queue
                .answers
                .iter_mut()
                .for_each(|passing| passing.wait = None);
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Queue>> {
        locked(&self.waiting)
    }
}
