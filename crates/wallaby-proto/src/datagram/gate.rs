//! All that one socket does: who a datagram is for, who may open a session, whose turn it is, what the time is.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::fmt;
use std::hash::{BuildHasherDefault, Hasher};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use thiserror::Error;

use crate::carrier::Carrier;
use crate::connection::{ConnectionError, Event, Granted, Hello, NamedBy, Partials};
use crate::datagram::arriving::Dropped;
use crate::datagram::cookies::{self, Cookies};
use crate::datagram::leaving::SessionFate;
use crate::datagram::packet::{self, AMPLIFICATION, Datagram, Flags, Unreadable};
use crate::datagram::recovery::nanoseconds;
use crate::datagram::session::{Session, SessionState};
use crate::datagram::{Cause, DATAGRAM_SIZES, GateSettings, SessionEnd};
use crate::id::NodeId;
use crate::varint::Reader;

/// Most answers to strangers that wait to be sent; more are dropped, as if the datagrams had been lost.
const MAX_ANSWERS: usize = 256;

/// Most sessions that others open from one address: all of them are looked at for each that opens, or is said to be gone. A
/// peer needs one, and a few more while earlier ones end.
const MOST_AT_ADDRESS: usize = 32;

/// Datagrams of a session in a row, while others wait.
const BURST: u32 = 16;

/// A session of a gate. It is a secret: who knows it can forge what the peer sends.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(u64);

impl fmt::Debug for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SessionId(..)")
    }
}

/// A datagram that is to be sent: the last `len` bytes of the buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transmit {
    /// Where to.
    pub to: SocketAddr,
    /// How long it is, in bytes.
    pub len: usize,
}

/// This side has opened as many sessions as it may.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("{0} sessions are open, more are not allowed")]
pub struct TooManySessions(pub usize);

/// What a gate has seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct GateCounters {
    /// Datagrams received, whatever became of them.
    pub received: u64,
    /// Datagrams sent.
    pub sent: u64,
    /// Dropped: damaged on their way.
    pub corrupt: u64,
    /// Dropped: not what the protocol says.
    pub malformed: u64,
    /// Dropped: they had arrived before.
    pub duplicate: u64,
    /// Dropped: more at a time than this side has to take.
    pub overrun: u64,
    /// Dropped: for a session, but not from its peer's address or not at its time.
    pub stray: u64,
    /// Dropped: for no session of this incarnation. Their senders were told.
    pub unknown: u64,
    /// Answered with a challenge.
    pub challenged: u64,
    /// Asks that were not answered: the challenge is more than three times as long.
    pub short: u64,
    /// Sessions refused for want of room.
    pub refused: u64,
    /// Answers to strangers that were dropped for want of room.
    pub unanswered: u64,
}

/// What has happened to a session; after an error nothing more does.
pub type SessionEvent = (SessionId, Result<Event, Box<SessionEnd>>);

type Sessions = HashMap<u64, Box<Session>, BuildHasherDefault<IdHasher>>;

/// Everything that one socket does.
#[derive(Debug)]
pub struct Gate {
    me: Arc<Hello>,
    partials: Partials,
    /// What challenges say of this side.
    hello: Bytes,
    settings: GateSettings,
    cookies: Cookies,
    sessions: Sessions,
    /// How many of them others opened.
    accepted: usize,
    by_address: BTreeSet<(SocketAddr, u64)>,
    /// Sessions that may have something to send.
    ready: VecDeque<u64>,
    /// Datagrams that the first of them has sent in a row.
    burst: u32,
    /// At most one for each session: when to look at it, in nanoseconds.
    timers: BTreeSet<(u64, u64)>,
    answers: VecDeque<(SocketAddr, Vec<u8>)>,
    events: VecDeque<SessionEvent>,
    counters: GateCounters,
}

impl Gate {
    /// The gate of a socket. `secret` is random and new in each incarnation: ids that no other side may guess come from it.
    pub fn new(me: Arc<Hello>, secret: [u8; 16], settings: GateSettings) -> Self {
        let (least, most) = DATAGRAM_SIZES;
        let datagram = settings.datagram.clamp(least, most);
        let settings = GateSettings {
            datagram,
            loopback: settings.loopback.clamp(datagram, most),
            ..settings
        };
        Self {
            hello: hello_bytes(&me, None),
            me,
            partials: Partials::default(),
            settings,
            cookies: Cookies::new(secret),
            sessions: Sessions::default(),
            accepted: 0,
            by_address: BTreeSet::new(),
            ready: VecDeque::new(),
            burst: 0,
            timers: BTreeSet::new(),
            answers: VecDeque::new(),
            events: VecDeque::new(),
            counters: GateCounters::default(),
        }
    }

    /// Counts unfinished messages together with others of the endpoint.
    pub fn sharing(mut self, partials: Partials) -> Self {
        self.partials = partials;
        self
    }

    /// Opens a session with whoever is at this address, or with the `expected` incarnation only. An event tells when it is
    /// open, or why it can't be.
    ///
    /// # Errors
    ///
    /// If this side has opened [`GateSettings::sessions`] that have not ended.
    pub fn dial(
        &mut self,
        now: Duration,
        to: SocketAddr,
        expected: Option<NodeId>,
    ) -> Result<SessionId, TooManySessions> {
        self.dial_named(now, to, expected, NamedBy::Application)
    }

    /// The same for an address that a peer may have named: it is sent little until it has proven itself.
    ///
    /// # Errors
    ///
    /// As [`Gate::dial`].
    pub fn dial_named(
        &mut self,
        now: Duration,
        to: SocketAddr,
        expected: Option<NodeId>,
        named_by: NamedBy,
    ) -> Result<SessionId, TooManySessions> {
        if self.sessions.len() - self.accepted >= self.settings.sessions {
            return Err(TooManySessions(self.settings.sessions));
        }
        let id = self.cookies.next_client();
        let state = SessionState::Asking {
            hello: hello_bytes(&self.me, expected),
            expected,
            named_by,
            since: now,
            asked: None,
            tries: 0,
        };
        let session = self.begin(to, (id, 0), state, now);
        self.insert(session);
        Ok(SessionId(id))
    }

    /// A session, to send in it or to ask it: `None` once its end was told, or after it was closed and the peer knows.
    pub fn session(&mut self, id: SessionId) -> Option<&mut Session> {
        let session = self.sessions.get_mut(&id.0)?;
        queue(&mut self.ready, session);
        Some(session)
    }

    /// A request that came in a session has left the queue for its handler, or was refused: as
    /// [`Session::grant_request`], but the session is not asked for output unless there is any, which is seldom. `None` if
    /// there is no such session.
    pub fn grant_request(&mut self, id: SessionId, payload: usize) -> Option<()> {
        let session = self.sessions.get_mut(&id.0)?;
        session.grant_request(payload);
        if session.outgoing.is_sending() {
            queue(&mut self.ready, session);
        }
        Some(())
    }

    /// A session, only to ask it.
    pub fn peek(&self, id: SessionId) -> Option<&Session> {
        self.sessions.get(&id.0).map(Box::as_ref)
    }

    /// How many sessions there are.
    pub fn len(&self) -> usize {
        self.sessions.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.sessions.is_empty()
    }

    /// What this gate has seen.
    pub fn counters(&self) -> GateCounters {
        self.counters
    }

    /// What happened to which session; a session that is not known yet was opened by its peer. `Err` is the last of its
    /// session.
    pub fn poll_event(&mut self) -> Option<SessionEvent> {
        self.events.pop_front()
    }

    /// Whether [`Gate::poll_event`] has anything to tell.
    pub fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// Whether [`Gate::poll_transmit`] has anything to look at.
    pub fn has_output(&self) -> bool {
        !self.answers.is_empty() || !self.ready.is_empty()
    }

    /// Appends the next datagram that is to be sent now to `out`; `None` if there is none. A session's datagrams come
    /// in a row.
    pub fn poll_transmit(&mut self, now: Duration, out: &mut Vec<u8>) -> Option<Transmit> {
        if let Some((to, answer)) = self.answers.pop_front() {
            out.extend_from_slice(&answer);
            self.counters.sent += 1;
            let len = answer.len();
            return Some(Transmit { to, len });
        }
        while let Some(&id) = self.ready.front() {
            let Some(session) = self.sessions.get_mut(&id) else {
                self.ready.pop_front();
                continue;
            };
            let start = out.len();
            if session.poll_transmit(now, out) {
                let to = session.remote;
                self.counters.sent += 1;
                let len = out.len() - start;
                if session.has_sent_all(now) {
                    session.rest(); // mostly: it need not be asked again
                    session.queued = false;
                    self.burst = 0;
                    self.ready.pop_front();
                    arm(&mut self.timers, session);
                } else {
                    self.burst += 1;
                    if self.burst >= BURST {
                        self.burst = 0;
                        self.ready.rotate_left(1);
                    }
                }
                return Some(Transmit { to, len });
            }
            session.queued = false;
            self.burst = 0;
            self.ready.pop_front();
            if session.is_over() {
                self.remove(now, id);
            } else {
                arm(&mut self.timers, session);
            }
        }
        None
    }

    /// When [`Gate::handle_timeout`] should be called, if nothing else happens before. Ask when there is nothing to
    /// send any more.
    pub fn next_timeout(&self) -> Option<Duration> {
        let first = self.timers.first();
        first.map(|timer| Duration::from_nanos(timer.0))
    }

    /// Timers that are due by `until`, but whose sessions do not want anything then any more, are moved to when they do. They
    /// are not while that is far away, since seldom anything comes of it; a driver for which a short wait is dear asks for it.
    pub fn put_off_timers(&mut self, until: Duration) {
        let until = nanoseconds(until);
        while let Some(&(time, id)) = self.timers.first()
            && time <= until
        {
            self.timers.pop_first();
            if let Some(session) = self.sessions.get_mut(&id) {
                session.armed = None;
                arm(&mut self.timers, session);
                if session.armed.is_some_and(|time| time <= until) {
                    return;
                }
            }
        }
    }

    /// It is `now`. Give the gate all that has arrived before.
    pub fn handle_timeout(&mut self, now: Duration) {
        while let Some(&(time, id)) = self.timers.first()
            && time <= nanoseconds(now)
        {
            self.timers.pop_first();
            let Some(session) = self.sessions.get_mut(&id) else {
                continue;
            };
            session.armed = None;
            if session.stop_asking(now) {
                let granted = Event::Credit(Granted::Requests);
                self.events.push_back((SessionId(id), Ok(granted)));
            }
            match session.handle_timeout(now) {
                SessionFate::GoesOn => self.wake(id),
                SessionFate::Ends(cause) => self.end(now, id, cause),
                SessionFate::Breaks(error) => self.break_off(id, error),
                SessionFate::IsOver => drop(self.remove(now, id)),
            }
        }
    }

    /// The network says that nobody listens at this address. Anybody can forge that, so it ends only sessions that
    /// nobody has answered yet; to others it is a reason to ask.
    pub fn handle_unreachable(&mut self, now: Duration, at: SocketAddr) {
        for id in self.at(at) {
            let Some(session) = self.sessions.get_mut(&id) else {
                continue;
            };
            if matches!(session.state, SessionState::Asking { .. }) {
                self.end(now, id, Cause::Unreachable);
            } else if !session.recovery.is_waiting() {
                session.probe = true;
                self.wake(id);
            }
        }
    }

    /// A datagram has arrived. Payloads of messages are slices of it.
    pub fn handle_datagram(&mut self, now: Duration, from: SocketAddr, datagram: Bytes) {
        self.counters.received += 1;
        let (kind, reader) = match packet::read(&datagram) {
            Ok(read) => read,
            Err(Unreadable::Corrupt) => {
                self.counters.corrupt += 1;
                return;
            }
            Err(Unreadable::Malformed) => {
                self.counters.malformed += 1;
                return;
            }
        };
        match kind {
            Datagram::Data { session, flags } => {
                self.handle_packet(now, from, session, flags, reader, &datagram);
            }
            Datagram::Ask { client, len } => self.handle_ask(now, from, client, len),
            Datagram::Challenge {
                client,
                server,
                issued,
                hello,
            } => self.handle_challenge(now, from, client, (server, issued), hello),
            Datagram::Open {
                server,
                client,
                issued,
                hello,
                flags,
            } => {
                if self.sessions.contains_key(&server)
                    || self.accept(now, from, (server, client), issued, hello)
                {
                    self.handle_packet(now, from, server, flags, reader, &datagram);
                }
            }
            Datagram::Gone { session, node } => self.handle_gone(now, from, session, node),
        }
    }

    fn handle_packet(
        &mut self,
        now: Duration,
        from: SocketAddr,
        id: u64,
        flags: Flags,
        reader: Reader<'_>,
        datagram: &Bytes,
    ) {
        let Some(session) = self.sessions.get_mut(&id) else {
            return self.answer_gone(from, id);
        };
        if session.remote != from {
            self.counters.stray += 1;
            return;
        }
        let events = &mut self.events;
        let event = |event| events.push_back((SessionId(id), Ok(event)));
        match session.handle_packet(now, flags, reader, datagram, event) {
            Ok(None) if session.is_over() => drop(self.remove(now, id)),
            Ok(None) if session.has_sent_all(now) => arm(&mut self.timers, session),
            Ok(None) => queue(&mut self.ready, session),
            Ok(Some(reason)) => {
                // It ends here; the peer should know that, or it will ask again.
                let mut answer = Vec::new();
                if session.write_packet(now, &mut answer, None) {
                    self.answer(from, answer);
                }
                self.end(now, id, Cause::Closed(reason));
            }
            Err(Dropped::Broken(error)) => self.break_off(id, error),
            Err(dropped) => {
                match dropped {
                    Dropped::Duplicate => self.counters.duplicate += 1,
                    Dropped::Overrun => self.counters.overrun += 1,
                    Dropped::Malformed | Dropped::Broken(_) => self.counters.malformed += 1,
                }
                self.wake(id); // its acknowledgements may have counted
            }
        }
    }

    /// Somebody wants a session: with the id in the answer it can show that it receives what is sent to its address.
    fn handle_ask(&mut self, now: Duration, from: SocketAddr, client: u64, len: usize) {
        let issued = cookies::micros(now);
        let server = self.cookies.issue(client, from, issued);
        let mut answer = Vec::new();
        packet::put_challenge(&mut answer, client, server, issued, &self.hello);
        if answer.len() > AMPLIFICATION * len {
            self.counters.short += 1;
            return;
        }
        self.counters.challenged += 1;
        self.answer(from, answer);
    }

    fn handle_challenge(
        &mut self,
        now: Duration,
        from: SocketAddr,
        client: u64,
        (server, issued): (u64, u64),
        hello: &[u8],
    ) {
        let Some(session) = self.sessions.get_mut(&client) else {
            self.counters.unknown += 1;
            return;
        };
        let SessionState::Asking {
            hello: own,
            expected,
            named_by,
            asked: Some(asked),
            tries,
            since,
        } = &session.state
        else {
            self.counters.stray += 1; // the answer to an ask that was sent again, or duplicated
            return;
        };
        if session.remote != from {
            self.counters.stray += 1;
            return;
        }
        let peer = match (read_hello(&self.me, hello), *expected) {
            (Ok(peer), Some(expected)) if peer.node != expected => {
                Err(ConnectionError::WrongNode {
                    expected,
                    found: peer.node,
                })
            }
            (peer, _) => peer,
        };
        let peer = match peer {
            Ok(peer) => peer,
            Err(error) => return self.end(now, client, Cause::Handshake(error)),
        };
        if *tries == 1 {
            session.recovery.measure(now.saturating_sub(*asked));
        }
        session.recovery.lived(*asked);
        let (hello, named_by, asked_first) = (own.clone(), *named_by, *since);
        session.state = SessionState::Opening {
            hello,
            issued,
            named_by,
        };
        session.remote_id = server;
        session.since = now;
        session.probe = true;
        session.peering.open(Arc::clone(&peer));
        let node = peer.node;
        self.events
            .push_back((SessionId(client), Ok(Event::Opened(peer))));
        self.wake(client);
        self.end_former_incarnations(now, from, node, asked_first);
    }

    /// Opens the session that a cookie is good for; `false` if it is good for none.
    fn accept(
        &mut self,
        now: Duration,
        from: SocketAddr,
        (server, client): (u64, u64),
        issued: u64,
        hello: &[u8],
    ) -> bool {
        if !(self.cookies).is_good(now, server, client, from, issued) {
            self.answer_gone(from, server);
            return false;
        }
        let Ok(peer) = read_hello(&self.me, hello) else {
            self.counters.malformed += 1;
            return false;
        };
        if self.accepted >= self.settings.sessions || self.at(from).len() >= MOST_AT_ADDRESS {
            return self.refuse(now, from, server, issued);
        }
        // A datagram from a former incarnation may come late: it must not end sessions of the next one.
        let since = Duration::from_micros(issued);
        let outlived = self.at(from).into_iter().any(|id| {
            self.sessions.get(&id).is_some_and(|other| {
                let node = other.peer().map(|peer| peer.node);
                node.is_some_and(|node| node != peer.node) && other.since > since
            })
        });
        if outlived {
            return self.refuse(now, from, server, issued);
        }
        self.end_former_incarnations(now, from, peer.node, since);
        let state = SessionState::Open {
            issued: Some(issued),
        };
        let mut session = self.begin(from, (server, client), state, since);
        session.peering.open(Arc::clone(&peer));
        // The challenge went there, and this came back.
        session.recovery.measure(now.saturating_sub(since));
        session.recovery.lived(since);
        self.accepted += 1;
        self.insert(session);
        self.events
            .push_back((SessionId(server), Ok(Event::Opened(peer))));
        true
    }

    fn refuse(&mut self, now: Duration, to: SocketAddr, server: u64, issued: u64) -> bool {
        self.counters.refused += 1;
        self.cookies.end(now, server, issued);
        self.answer_gone(to, server);
        false
    }

    /// A peer does not know a session. Only who got datagrams of the session can say that.
    fn handle_gone(&mut self, now: Duration, from: SocketAddr, remote_id: u64, node: NodeId) {
        let meant = self.at(from).into_iter().find(|id| {
            self.sessions.get(id).is_some_and(|session| {
                session.remote_id == remote_id
                    && !matches!(session.state, SessionState::Asking { .. })
            })
        });
        let Some(id) = meant else {
            self.counters.stray += 1;
            return;
        };
        let Some(session) = self.sessions.get(&id) else {
            return;
        };
        match (&session.state, session.peer()) {
            (SessionState::Closing { .. }, _) => drop(self.remove(now, id)),
            (_, Some(peer)) if peer.node != node => {
                let was = peer.node;
                self.end(now, id, Cause::Restarted { was, now: node });
            }
            _ => self.end(now, id, Cause::Forgotten(node)),
        }
    }

    /// This node was at this address at this time: sessions with others there that were opened before are over.
    fn end_former_incarnations(
        &mut self,
        now: Duration,
        at: SocketAddr,
        node: NodeId,
        seen: Duration,
    ) {
        for id in self.at(at) {
            let Some(session) = self.sessions.get(&id) else {
                continue;
            };
            let peer = session.peer().filter(|peer| peer.node != node);
            if let Some(was) = peer.map(|peer| peer.node)
                && session.since <= seen
            {
                self.end(now, id, Cause::Restarted { was, now: node });
            }
        }
    }

    /// The sessions with this address.
    fn at(&self, address: SocketAddr) -> Vec<u64> {
        self.by_address
            .range((address, 0)..=(address, u64::MAX))
            .map(|&(_, id)| id)
            .collect()
    }

    fn answer_gone(&mut self, to: SocketAddr, session: u64) {
        self.counters.unknown += 1;
        let mut answer = Vec::new();
        packet::put_gone(&mut answer, session, self.me.node);
        self.answer(to, answer);
    }

    fn answer(&mut self, to: SocketAddr, answer: Vec<u8>) {
        if self.answers.len() >= MAX_ANSWERS {
            self.counters.unanswered += 1;
        } else {
            self.answers.push_back((to, answer));
        }
    }

    fn begin(
        &self,
        to: SocketAddr,
        ids: (u64, u64),
        state: SessionState,
        since: Duration,
    ) -> Session {
        let me = Arc::clone(&self.me);
        Session::new(me, to, ids, (state, since), &self.settings, &self.partials)
    }

    fn insert(&mut self, session: Session) {
        let id = session.local_id;
        self.by_address.insert((session.remote, id));
        self.sessions.insert(id, Box::new(session));
        self.wake(id);
    }

    /// This session may have something to send.
    fn wake(&mut self, id: u64) {
        if let Some(session) = self.sessions.get_mut(&id) {
            queue(&mut self.ready, session);
        }
    }

    fn end(&mut self, now: Duration, id: u64, cause: Cause) {
        let Some(session) = self.remove(now, id) else {
            return;
        };
        if matches!(session.state, SessionState::Closing { .. }) {
            return; // the driver has closed it and waits for nothing
        }
        self.events
            .push_back((SessionId(id), Err(ended(&session, cause))));
    }

    /// The peer breaks the rules of a session: it is told so, and the session ends.
    fn break_off(&mut self, id: u64, error: ConnectionError) {
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        if !matches!(session.state, SessionState::Closing { .. }) {
            let reason = error.to_string();
            let ended = ended(session, Cause::Broken(error));
            self.events.push_back((SessionId(id), Err(ended)));
            session.close(&reason);
        }
        self.wake(id);
    }

    fn remove(&mut self, now: Duration, id: u64) -> Option<Box<Session>> {
        let session = self.sessions.remove(&id)?;
        self.by_address.remove(&(session.remote, id));
        if let Some(armed) = session.armed {
            self.timers.remove(&(armed, id));
        }
        if let SessionState::Open { issued } | SessionState::Closing { issued, .. } = session.state
            && let Some(issued) = issued
        {
            self.accepted -= 1;
            self.cookies.end(now, id, issued);
        }
        Some(session)
    }
}

fn ended(session: &Session, cause: Cause) -> Box<SessionEnd> {
    Box::new(SessionEnd {
        cause,
        pending: session.pending().collect(),
        acknowledged: session.acknowledged(),
        counters: session.counters(),
    })
}

/// This session may have something to send.
fn queue(ready: &mut VecDeque<u64>, session: &mut Session) {
    if !session.queued {
        session.queued = true;
        ready.push_back(session.local_id);
    }
}

/// Looks at this session when it next has something to do, or before: a timer that comes too early costs less than one
/// that is moved with every datagram.
fn arm(timers: &mut BTreeSet<(u64, u64)>, session: &mut Session) {
    let Some(time) = session.timeout() else {
        return;
    };
    match session.armed {
        Some(armed) if armed <= time => return,
        Some(armed) => {
            timers.remove(&(armed, session.local_id));
        }
        None => {}
    }
    session.armed = Some(time);
    timers.insert((time, session.local_id));
}

/// Hashes nothing: ids come out of a keyed hash already, and only this side's own are in the tables.
#[derive(Debug, Default)]
pub struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(byte);
        }
    }

    fn write_u64(&mut self, id: u64) {
        self.0 = id;
    }
}

/// A hello as the first frame of a stream has it.
fn hello_bytes(me: &Hello, expected: Option<NodeId>) -> Bytes {
    let mut bytes = Vec::new();
    me.put(&mut bytes, expected);
    bytes.into()
}

/// Reads a hello as a stream does that was dialled.
fn read_hello(me: &Hello, hello: &[u8]) -> Result<Arc<Hello>, ConnectionError> {
    let mut reader = Reader::new(hello);
    let versions = Hello::read_versions(&mut reader)?;
    me.read_peer(&mut reader, versions).map(Arc::new)
}
