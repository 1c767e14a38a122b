//! Answers of a line's servers on their way back along it: those from behind wait at each server for its own, and then all
//! leave together by the connection that the message came over.
//!
//! They are the messages that would otherwise go to the initiator directly, so it sees the same outcomes. A server stops
//! waiting when nothing more can come from behind, when there is no room for more, or when a quarter of the time is left:
//! then what it has leaves, and what comes later goes on at once.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::task::AbortHandle;
use wallaby_proto::detach::detach;
use wallaby_proto::wire::{Message, Response};
use wallaby_proto::{CallId, Path, Token};

use crate::driver::peer::Peer;
use crate::endpoint::Inner;
use crate::handling::Handling;
use crate::relay::Passing;
use crate::timer;

/// What a message costs besides its payload.
const EACH: u64 = size_of::<Other>() as u64;

/// Requests of lines whose answers are gathered, while they wait for those from behind.
#[derive(Debug, Default)]
pub(crate) struct Gatherings(Mutex<State>);

/// A call and its token: whoever makes up a call of the same number gathers apart from it.
type Key = (CallId, Token);

#[derive(Debug, Default)]
struct State {
    waiting: HashMap<Key, Gathering>,
    /// Those whose message was passed on over a connection, by its id.
    over: HashMap<u64, HashSet<Key>>,
    /// What all of them hold.
    bytes: u64,
}

/// One request and what it waits for.
#[derive(Debug)]
struct Gathering {
    handling: Arc<Handling>,
    /// The place of the next server in the call's tree, and those of all from there on.
    next: Path,
    behind: HashSet<Path>,
    /// The connection that the message was passed on over, which is watched as long as this waits.
    over: Option<Waited>,
    own_ended: bool,
    /// Nothing more comes from the next server.
    next_ended: bool,
    own: Vec<Message>,
    others: Vec<Other>,
    bytes: u64,
    /// Ends the waiting.
    alarm: AbortHandle,
}

/// What came from behind.
#[derive(Debug)]
enum Other {
    Answer(Passing),
    End(Arc<Peer>, Message),
}

impl Other {
    fn leave(self, endpoint: &Arc<Inner>) {
        match self {
            Self::Answer(passing) => endpoint.relay.pass(endpoint, passing),
            Self::End(from, mut end) => endpoint.pass_on_now(&from, &mut end),
        }
    }
}

/// Silence of this connection is found out, since somebody waits for what comes over it.
#[derive(Debug)]
struct Waited(Arc<Peer>);

impl Waited {
    fn new(peer: &Arc<Peer>) -> Self {
        peer.hold();
        Self(Arc::clone(peer))
    }
}

impl Drop for Waited {
    fn drop(&mut self) {
        self.0.release();
    }
}

/// What leaves now.
pub(crate) struct Gathered(Gathering);

impl Gatherings {
    /// A message is about to be passed on to so many servers: what they answer waits here for what this request does.
    pub(super) fn begin(&self, handling: &Arc<Handling>, behind: usize) {
        let endpoint = Arc::clone(&handling.endpoint);
        let (call, token) = (handling.call, handling.token);
        let end = handling.gathers_until();
        let alarm = async move {
            timer::sleep_until(end).await;
            let late = endpoint.gatherings.take(call, token);
            leave(late, &endpoint);
        };
        let alarm = handling.endpoint.runtime.spawn(alarm).abort_handle();
        let onward = |place: &Path| Some(place.child(0, call, token));
        let next = handling.id.path.child(0, call, token);
        let places = std::iter::successors(Some(next), onward);
        let gathering = Gathering {
            next,
            handling: Arc::clone(handling),
            behind: places.take(behind).collect(),
            over: None,
            own_ended: false,
            next_ended: false,
            own: Vec::new(),
            others: Vec::new(),
            bytes: 0,
            alarm,
        };
        let before = self.lock().add(gathering);
        leave(before, &handling.endpoint);
    }

    /// The message was passed on over this connection.
    pub(crate) fn passed_on(&self, handling: &Handling, over: &Arc<Peer>) {
        let mut state = self.lock();
        state.passed_on(key_of(handling), over);
        drop(state);
        // It may have ended before it was noted.
        if over.is_closed() {
            self.connection_ended(&handling.endpoint, over);
        }
    }

    /// A message that this request sends, or that is sent in the name of the next server. It is kept if it waits; `None` if
    /// that is so.
    pub(crate) fn keep_own(&self, handling: &Handling, mut message: Message) -> Option<Message> {
        let mut state = self.lock();
        let Some(gathering) = state.find(handling.call, handling.token) else {
            return Some(message);
        };
        gathering.note_end(&message);
        let bytes = cost(&message);
        message.detach();
        gathering.own.push(message);
        let over = state.count(handling, bytes);
        drop(state);
        leave(over, &handling.endpoint);
        None
    }

    /// An answer of another server, or the end of its branch, arrives on its way to its initiator. It is kept if it is of a
    /// server behind this one, and waits; whether that is so.
    pub(crate) fn keep(&self, endpoint: &Arc<Inner>, from: &Arc<Peer>, message: &Message) -> bool {
        let (call, Some(token)) = (message.call(), message.token()) else {
            return false;
        };
        let Some(handling) = self.lock().waits_for(call, token, message) else {
            return false;
        };
        let other = match message {
            Message::Response(response) => {
                let next = (Arc::clone(&handling.peer), response.distance);
                let mut response = Response::clone(response);
                detach(&mut response.payload);
                let mut passing = Passing::new(from, response);
                passing.leads(Some(next));
                // Its initiator may ask for it meanwhile, and its server has sent it.
                passing.note_slow(endpoint);
                Other::Answer(passing)
            }
            end => Other::End(Arc::clone(from), end.clone()),
        };
        let mut state = self.lock();
        let Some(gathering) = state.find(call, token) else {
            drop(state); // it has left meanwhile
            other.leave(endpoint);
            return true;
        };
        gathering.note_end(message);
        gathering.others.push(other);
        let over = state.count(&handling, cost(message));
        drop(state);
        leave(over, endpoint);
        true
    }

    /// Nothing more comes over this connection.
    pub(crate) fn connection_ended(&self, endpoint: &Arc<Inner>, over: &Peer) {
        let mut state = self.lock();
        let ended = state.over.remove(&over.id).unwrap_or_default();
        let done = ended.into_iter().filter_map(|key| {
            state.waiting.get_mut(&key)?.next_ended = true;
            state.take_done(key)
        });
        let done: Vec<_> = done.collect();
        drop(state);
        for gathered in done {
            leave(Some(gathered), endpoint);
        }
    }

    /// The request was stopped, or waits no longer.
    pub(crate) fn take(&self, call: CallId, token: Token) -> Option<Gathered> {
        self.lock().remove((call, token))
    }

    /// The endpoint is closed.
    pub(crate) fn clear(&self) {
        let state = std::mem::take(&mut *self.lock());
        let waiting = state.waiting.values();
        waiting.for_each(|gathering| gathering.alarm.abort());
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// What an earlier attempt of the same request has gathered is returned.
    fn add(&mut self, gathering: Gathering) -> Option<Gathered> {
        let key = key_of(&gathering.handling);
        let before = self.remove(key);
        self.waiting.insert(key, gathering);
        before
    }

    fn passed_on(&mut self, key: Key, over: &Arc<Peer>) {
        self.forget_over(key);
        if let Some(gathering) = self.waiting.get_mut(&key) {
            gathering.over = Some(Waited::new(over));
            self.over.entry(over.id).or_default().insert(key);
        }
    }

    /// The request is not asked for by a connection any more.
    fn forget_over(&mut self, key: Key) {
        let gathering = self.waiting.get_mut(&key);
        let Some(over) = gathering.and_then(|gathering| gathering.over.take()) else {
            return;
        };
        if let Entry::Occupied(mut keys) = self.over.entry(over.0.id) {
            keys.get_mut().remove(&key);
            if keys.get().is_empty() {
                keys.remove();
            }
        }
    }

    fn find(&mut self, call: CallId, token: Token) -> Option<&mut Gathering> {
        self.waiting.get_mut(&(call, token))
    }

    /// The request that waits for this message.
    fn waits_for(
        &mut self,
        call: CallId,
        token: Token,
        message: &Message,
    ) -> Option<Arc<Handling>> {
        let gathering = self.find(call, token)?;
        let waits = gathering.is_behind(message);
        waits.then(|| Arc::clone(&gathering.handling))
    }

    /// Something more is held: what leaves, if that is complete or too much.
    fn count(&mut self, handling: &Handling, bytes: u64) -> Option<Gathered> {
        let (key, limits) = (key_of(handling), &handling.endpoint.config.limits);
        self.bytes += bytes;
        let gathering = self.waiting.get_mut(&key)?;
        gathering.bytes += bytes;
        // What waits here is not credited: the servers behind must not wait for that.
        if self.bytes > limits.gathered || gathering.bytes > limits.call / 2 {
            return self.remove(key);
        }
        self.take_done(key)
    }

    fn take_done(&mut self, key: Key) -> Option<Gathered> {
        let gathering = self.waiting.get(&key)?;
        let done = gathering.own_ended && gathering.next_ended;
        done.then(|| self.remove(key)).flatten()
    }

    fn remove(&mut self, key: Key) -> Option<Gathered> {
        self.forget_over(key);
        let gathering = self.waiting.remove(&key)?;
        self.bytes -= gathering.bytes;
        gathering.alarm.abort();
        Some(Gathered(gathering))
    }
}

fn key_of(handling: &Handling) -> Key {
    (handling.call, handling.token)
}

impl Gathering {
    /// Whether a message is of one of the servers behind.
    fn is_behind(&self, message: &Message) -> bool {
        path_of(message).is_some_and(|path| self.behind.contains(&path))
    }

    /// Notes whether a message tells the end of this request's branch or of the next one's: nothing follows it then.
    fn note_end(&mut self, message: &Message) {
        let (ends, requests) = match message {
            Message::End(end) => (Some(end.request.path), end.facts.requests),
            Message::Response(response) if response.last => (Some(response.request.path), 0),
            Message::Response(response) => {
                let own =
                    |manifest: &&wallaby_proto::Manifest| manifest.owner == response.request.path;
                let manifest = response.manifest.as_ref().filter(own);
                let requests = manifest.map_or(0, |manifest| manifest.facts.requests);
                (manifest.map(|manifest| manifest.owner), requests)
            }
            _ => (None, 0),
        };
        if ends == Some(self.next) {
            self.next_ended = true;
        }
        if ends == Some(self.handling.id.path) {
            self.own_ended = true;
            // It has passed nothing on.
            self.next_ended |= requests == 0;
        }
    }
}

fn path_of(message: &Message) -> Option<Path> {
    match message {
        Message::Response(response) => Some(response.request.path),
        Message::End(end) => Some(end.request.path),
        _ => None,
    }
}

fn cost(message: &Message) -> u64 {
    match message {
        Message::Response(response) => EACH + response.payload.len() as u64,
        _ => EACH,
    }
}

/// Sends what was gathered: those from behind first, so that this server's end says that they are all.
pub(crate) fn leave(gathered: Option<Gathered>, endpoint: &Arc<Inner>) {
    let Some(Gathered(gathering)) = gathered else {
        return;
    };
    for other in gathering.others {
        other.leave(endpoint);
    }
    for message in gathering.own {
        gathering.handling.leave_by(message);
    }
}
