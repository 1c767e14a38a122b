//! The table itself: initiators, their calls, the requests of these, each found by its name and listed in order.

use std::hash::{BuildHasher, Hash};

use siphasher::sip::SipHasher13;

use crate::call::records::children::Children;
use crate::call::records::collect::EndedRequests;
use crate::call::records::index::Index;
use crate::call::records::kept::Number;
use crate::call::records::list::{Linked, Links, List, NONE};
use crate::call::records::near::Near;
use crate::call::records::outputs::{Outputs, SessionNumber};
use crate::call::records::relaying::RelayedPing;
use crate::call::records::time::{Nanoseconds, PingTimes};
use crate::call::records::{RelayRoute, Ticket};
use crate::call::shares::Share;
use crate::id::{CallId, NodeId, Path, RequestId, Token};
use crate::manifest::{Facts, Manifest};
use crate::wire::{Child, ReplyTo};

/// Below this many requests of one call a scan beats a map.
const SCANNED: u32 = 8;

/// Calls that an older one may be passed by on its way here, and still be listed in order.
const DISORDER: usize = 32;

/// Hashes under a secret, so that no peer can make names collide.
#[derive(Debug, Clone, Copy)]
pub(super) struct Keyed(pub(super) [u8; 16]);

impl BuildHasher for Keyed {
    type Hasher = SipHasher13;

    fn build_hasher(&self) -> SipHasher13 {
        SipHasher13::new_with_key(&self.0)
    }
}

/// A call is known by its token too: who cannot show it speaks of another call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct RecordedCallKey {
    pub(super) call: CallId,
    pub(super) token: Token,
}

/// Sessions of one initiator that are told apart. The last of them is shared by all sessions beyond that.
const MAX_SESSIONS: usize = 16;

/// The lists that requests are in.
pub(super) const OF_CALL: usize = 0;
pub(super) const OF_FRESH: usize = 1;
pub(super) const OF_ENDED: usize = 2;
/// The list that calls are in.
pub(super) const OF_INITIATOR: usize = 3;
/// The list that initiators are in.
pub(super) const OF_BARE: usize = 4;

/// One life of an initiator.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) node: NodeId,
    /// Its calls, by the session that each came over first.
    pub(super) by_session: Vec<SessionCalls>,
    near: Near,
    /// How long it is remembered when no request of it is: as long as one of its calls wanted to be at most.
    pub(super) gc_timeout: Nanoseconds,
    /// When it was heard of last.
    pub(super) heard: Nanoseconds,
    /// When it came, or was spared last since it had been heard of again: see [`Table::next_peer`].
    pub(super) spared: Nanoseconds,
    links: Links,
}

/// The calls of an initiator that came first over one session. What is said over it of the oldest live call is about these
/// calls alone: a node id is only claimed, so whoever is there may be anybody.
#[derive(Debug)]
pub(super) struct SessionCalls {
    /// `None` if several sessions share it: what they say is not heeded.
    session: Option<SessionNumber>,
    /// The other end says that it is the initiator.
    pub(super) own: bool,
    /// The oldest live call, as was said over the session.
    pub(super) oldest: u64,
    /// By sequence, lowest first.
    pub(super) calls: List,
    /// The last of those that are older than the oldest live one and are still known, or [`NONE`].
    pub(super) older: u32,
}

impl SessionCalls {
    fn new(session: SessionNumber, own: bool) -> Self {
        Self {
            session: Some(session),
            own,
            oldest: 0,
            calls: List::EMPTY,
            older: NONE,
        }
    }

    fn share(&mut self) {
        (self.session, self.own, self.oldest, self.older) = (None, false, 0, NONE);
    }

    /// Whether several sessions share it.
    pub(super) fn is_shared(&self) -> bool {
        self.session.is_none()
    }

    fn is_empty(&self) -> bool {
        self.calls.first().is_none()
    }
}

impl Peer {
    /// Whether no call of it is known.
    pub(super) fn has_no_calls(&self) -> bool {
        self.by_session.iter().all(SessionCalls::is_empty)
    }

    /// The oldest call that lives, as far as all agree who brought calls of which something is still known.
    pub(super) fn oldest(&self) -> u64 {
        let by_session = self.by_session.iter().filter(|calls| !calls.is_empty());
        by_session.map(|calls| calls.oldest).min().unwrap_or(0)
    }
}

/// One call, as far as it has come here.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) key: RecordedCallKey,
    /// That of its key, if it is far from the others.
    hash: u64,
    pub(super) peer: u32,
    pub(super) settings: PingTimes,
    /// The list that its requests are in once they have ended.
    pub(super) class: u8,
    /// In which of its initiator's lists it is.
    pub(super) session_index: u8,
    pub(super) aborted: bool,
    pub(super) requests: List,
    pub(super) count: u32,
    /// How many were taken that state no budgets.
    pub(super) unstated: u32,
    /// The highest attempt of any of its requests.
    latest_attempt: u32,
    links: Links,
}

/// One request.
#[derive(Debug)]
pub(super) struct Record {
    pub(super) generation: u32,
    pub(super) call: u32,
    /// Its place; the root's for the mark of a call that was aborted before any request of it came.
    pub(super) id: RequestId,
    pub(super) attempt: u32,
    pub(super) depth: u32,
    links: [Links; 3],
    pub(super) ended: bool,
    /// Its handler was told to stop.
    pub(super) stopped: bool,
    /// Its branch ended here with a status.
    pub(super) failed: bool,
    pub(super) base: u32,
    pub(super) count: u32,
    pub(super) facts: Option<Facts>,
    pub(super) outputs: Outputs,
    cold: Option<Box<ColdRecord>>,
    /// The number of its last kept response.
    pub(super) kept: Option<Number>,
    pub(super) session: SessionNumber,
    /// Whose place it takes while it runs.
    pub(super) share: Share,
    /// That session's other end is the initiator.
    pub(super) direct: bool,
    /// When the initiator last heard of this line of the call; or when the request came, and how long it had not heard
    /// of it then.
    pub(super) heard: Nanoseconds,
    pub(super) carried: Nanoseconds,
    /// From then on it may not delegate.
    pub(super) deadline: Nanoseconds,
    /// When the initiator last showed that it lives.
    pub(super) pinged: Nanoseconds,
    /// When it made progress last; once it has ended, when it did, or was pinged last after that.
    pub(super) since: Nanoseconds,
    /// When it is looked at, if that has a time of its own.
    pub(super) due: Option<Nanoseconds>,
}

/// What a request of one hop does not have. A slot that had it once keeps its memory, as far as most requests need it.
#[derive(Debug, Default)]
pub(super) struct ColdRecord {
    pub(super) children: Children,
    pub(super) continuation: Option<Child>,
    /// The manifest it was given.
    pub(super) manifest: Option<Manifest>,
    /// Where it said that answers go; `None` is back.
    reply_to: Option<ReplyTo>,
    /// Pings that went on to where its work went.
    pub(super) relayed_pings: Vec<RelayedPing>,
}

/// What a new record begins with.
pub(super) struct NewRecord<'a> {
    pub(super) call: u32,
    pub(super) id: RequestId,
    pub(super) attempt: u32,
    pub(super) depth: u32,
    pub(super) base: u32,
    pub(super) manifest: Option<&'a Manifest>,
    pub(super) session: SessionNumber,
    pub(super) share: Share,
    pub(super) direct: bool,
    pub(super) reply_to: &'a ReplyTo,
    pub(super) carried: Nanoseconds,
    pub(super) deadline: Nanoseconds,
    pub(super) now: Nanoseconds,
}

/// What a look for a call has found, and the hash of its key if that was needed.
pub(super) struct LookUp {
    pub(super) call: Option<u32>,
    pub(super) hash: Option<u64>,
}

/// Slots that are used again.
#[derive(Debug)]
pub(super) struct Slots<T> {
    slots: Vec<T>,
    free: Vec<u32>,
}

impl<T> Slots<T> {
    fn new() -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    fn add(&mut self, new: T) -> u32 {
        match self.free.pop() {
            Some(slot) => {
                self.slots[slot as usize] = new;
                slot
            }
            None => {
                self.slots.push(new);
                self.slots.len() as u32 - 1
            }
        }
    }

    pub(super) fn at(&mut self, slot: u32) -> &mut T {
        #[cfg(test)]
        looks::count();
        &mut self.slots[slot as usize]
    }

    pub(super) fn get(&self, slot: u32) -> &T {
        #[cfg(test)]
        looks::count();
        &self.slots[slot as usize]
    }

    pub(super) fn try_get(&self, slot: u32) -> Option<&T> {
        self.slots.get(slot as usize)
    }

    pub(super) fn slots(&self) -> std::ops::Range<u32> {
        0..self.slots.len() as u32
    }
}

/// How often slots were looked at: tests see what a message costs, however full a table is.
#[cfg(test)]
pub(super) mod looks {
    use std::cell::Cell;

    thread_local!(static LOOKS: Cell<usize> = const { Cell::new(0) });

    pub(super) fn count() {
        LOOKS.set(LOOKS.get() + 1);
    }

    /// How many there were since this was asked last.
    pub(crate) fn take() -> usize {
        LOOKS.take()
    }
}

impl Slots<Record> {
    /// The request of this ticket, if it is still remembered.
    #[inline]
    pub(super) fn named(&mut self, ticket: Ticket) -> Option<&mut Record> {
        let record = self.slots.get_mut(ticket.slot as usize)?;
        (record.generation == ticket.generation).then_some(record)
    }
}

macro_rules! linked {
    ($list:ident, $slots:ty, $record:ident => $links:expr, $shared:expr) => {
        impl Linked<$list> for $slots {
            fn links(&mut self, slot: u32) -> &mut Links {
                let $record = self.at(slot);
                $links
            }

            fn links_of(&self, slot: u32) -> &Links {
                let $record = self.get(slot);
                $shared
            }
        }
    };
}

linked!(OF_CALL, Slots<Record>, record => &mut record.links[OF_CALL], &record.links[OF_CALL]);
linked!(OF_FRESH, Slots<Record>, record => &mut record.links[OF_FRESH], &record.links[OF_FRESH]);
linked!(OF_ENDED, Slots<Record>, record => &mut record.links[OF_ENDED], &record.links[OF_ENDED]);
linked!(OF_INITIATOR, Slots<Call>, call => &mut call.links, &call.links);
linked!(OF_BARE, Slots<Peer>, peer => &mut peer.links, &peer.links);

#[derive(Debug)]
pub(super) struct Table {
    pub(super) peers: Slots<Peer>,
    pub(super) calls: Slots<Call>,
    pub(super) records: Slots<Record>,
    keyed: Keyed,
    by_node: Index,
    /// Calls that have no place near the others of their initiators.
    far: Index,
    /// Requests of calls with more than [`SCANNED`].
    by_request: Index,
    /// The initiator that was looked up last: requests come in rows.
    last_peer: u32,
    /// Initiators of which no request is remembered, in the order in which the last one was forgotten. One that
    /// has a request again may stay here: it comes back soon.
    pub(super) bare: List,
    /// Whose turn it is to make room.
    turn: u32,
}

impl Table {
    pub(super) fn new(secret: [u8; 16]) -> Self {
        Self {
            peers: Slots::new(),
            calls: Slots::new(),
            records: Slots::new(),
            keyed: Keyed(secret),
            by_node: Index::default(),
            far: Index::default(),
            by_request: Index::default(),
            last_peer: NONE,
            bare: List::EMPTY,
            turn: 0,
        }
    }

    pub(super) fn peer(&mut self, node: NodeId) -> Option<u32> {
        let found = self.known_peer(node)?;
        self.last_peer = found;
        Some(found)
    }

    #[inline]
    fn known_peer(&self, node: NodeId) -> Option<u32> {
        if self.last_peer != NONE && self.peers.get(self.last_peer).node == node {
            return Some(self.last_peer);
        }
        self.hashed_peer(node)
    }

    #[inline(never)]
    fn hashed_peer(&self, node: NodeId) -> Option<u32> {
        let hash = self.keyed.hash_one(node);
        self.by_node
            .find(hash, |slot| self.peers.get(slot).node == node)
    }

    pub(super) fn call(&self, key: &RecordedCallKey) -> Option<u32> {
        let peer = self.known_peer(key.call.initiator)?;
        self.look_up(peer, key).call
    }

    /// Looks for a call of this initiator.
    #[inline]
    pub(super) fn look_up(&self, peer: u32, key: &RecordedCallKey) -> LookUp {
        let is = |slot: &u32| self.calls.get(*slot).key == *key;
        let near = self.peers.get(peer).near.find(key.call.sequence);
        let call = near.filter(is);
        if call.is_some() || self.far.is_empty() {
            return LookUp { call, hash: None };
        }
        self.look_afar(key)
    }

    #[inline(never)]
    fn look_afar(&self, key: &RecordedCallKey) -> LookUp {
        let hash = self.keyed.hash_one(key);
        let is = |slot| self.calls.get(slot).key == *key;
        LookUp {
            call: self.far.find(hash, is),
            hash: Some(hash),
        }
    }

    /// The request of a call with this place and attempt.
    pub(super) fn request(&self, call: u32, id: RequestId, attempt: u32) -> Option<u32> {
        let is = |slot: u32| {
            let record = self.records.get(slot);
            record.id == id && record.attempt == attempt && record.call == call
        };
        if self.calls.get(call).count <= SCANNED {
            return self.requests(call).find(|&slot| is(slot));
        }
        let hash = self.keyed.hash_one((call, id, attempt));
        self.by_request.find(hash, is)
    }

    fn hash_of_request(&self, slot: u32) -> u64 {
        let record = self.records.get(slot);
        self.keyed
            .hash_one((record.call, record.id, record.attempt))
    }

    /// The latest attempt of the request of a call with this place.
    pub(super) fn latest_request(&self, call: u32, id: RequestId) -> Option<u32> {
        let latest = self.calls.get(call).latest_attempt;
        (0..=latest)
            .rev()
            .find_map(|attempt| self.request(call, id, attempt))
    }

    /// The requests of a call.
    pub(super) fn requests(&self, call: u32) -> impl Iterator<Item = u32> {
        let first = self.calls.get(call).requests.first();
        std::iter::successors(first, |&slot| {
            Linked::<OF_CALL>::links_of(&self.records, slot).next()
        })
    }

    /// The calls of an initiator.
    pub(super) fn calls_of(&self, peer: u32) -> impl Iterator<Item = u32> {
        let by_session = 0..self.peers.get(peer).by_session.len();
        by_session.flat_map(move |session_index| self.calls_in(peer, session_index as u8))
    }

    /// The calls that came first over a session, lowest sequence first.
    pub(super) fn calls_in(&self, peer: u32, session_index: u8) -> impl Iterator<Item = u32> {
        let calls = self
            .peers
            .get(peer)
            .by_session
            .get(usize::from(session_index));
        let first = calls.and_then(|calls| calls.calls.first());
        std::iter::successors(first, |&slot| {
            Linked::<OF_INITIATOR>::links_of(&self.calls, slot).next()
        })
    }

    /// The list of what comes over a session for an initiator.
    #[inline]
    pub(super) fn session_index(&mut self, peer: u32, session: SessionNumber, own: bool) -> u8 {
        match self.known_session_index(peer, session) {
            Some(session_index) => session_index,
            None => self.add_line(peer, session, own),
        }
    }

    #[inline]
    pub(super) fn known_session_index(&self, peer: u32, session: SessionNumber) -> Option<u8> {
        let by_session = &self.peers.get(peer).by_session;
        let session_index = by_session
            .iter()
            .position(|calls| calls.session == Some(session));
        session_index.map(|session_index| session_index as u8)
    }

    /// Whether some sessions of this initiator's calls are not told apart.
    pub(super) fn shares_a_line(&self, peer: u32) -> bool {
        self.peers
            .get(peer)
            .by_session
            .iter()
            .any(SessionCalls::is_shared)
    }

    #[inline(never)]
    fn add_line(&mut self, peer: u32, session: SessionNumber, own: bool) -> u8 {
        let by_session = &mut self.peers.at(peer).by_session;
        if by_session.len() < MAX_SESSIONS {
            by_session.push(SessionCalls::new(session, own));
            return by_session.len() as u8 - 1;
        }
        match by_session.iter().position(SessionCalls::is_empty) {
            Some(session_index) => {
                by_session[session_index] = SessionCalls::new(session, own);
                session_index as u8
            }
            None => {
                by_session[MAX_SESSIONS - 1].share();
                MAX_SESSIONS as u8 - 1
            }
        }
    }

    pub(super) fn add_peer(
        &mut self,
        node: NodeId,
        gc_timeout: Nanoseconds,
        now: Nanoseconds,
    ) -> u32 {
        let slot = self.peers.add(Peer {
            node,
            by_session: Vec::new(),
            near: Near::default(),
            gc_timeout,
            heard: now,
            spared: now,
            links: Links::UNLISTED,
        });
        self.by_node.insert(self.keyed.hash_one(node), slot);
        self.note_bare(slot);
        slot
    }

    pub(super) fn remove_peer(&mut self, slot: u32) {
        let hash = self.keyed.hash_one(self.peers.get(slot).node);
        self.by_node.remove(hash, slot);
        self.last_peer = NONE;
        self.bare.remove::<OF_BARE>(&mut self.peers, slot);
        self.peers.free.push(slot);
    }

    /// Adds a call of this initiator, with its hash if looking for it took that.
    pub(super) fn add_call(
        &mut self,
        key: RecordedCallKey,
        hash: Option<u64>,
        (peer, session_index): (u32, u8),
        (settings, class): (PingTimes, u8),
    ) -> u32 {
        let slot = self.calls.add(Call {
            key,
            hash: 0,
            peer,
            settings,
            class,
            session_index,
            aborted: false,
            requests: List::EMPTY,
            count: 0,
            unstated: 0,
            latest_attempt: 0,
            links: Links::UNLISTED,
        });
        self.name_call(slot, key.call.sequence, hash, peer);
        if self.bare.last != peer {
            self.bare.remove::<OF_BARE>(&mut self.peers, peer);
        }
        let session_index = usize::from(session_index);
        let before = self.place_among(
            self.peers.get(peer).by_session[session_index].calls,
            key.call.sequence,
        );
        let list = &mut self.peers.at(peer).by_session[session_index].calls;
        list.insert_after::<OF_INITIATOR>(&mut self.calls, slot, before);
        slot
    }

    /// A new call can be found.
    #[inline]
    fn name_call(&mut self, slot: u32, sequence: u64, hash: Option<u64>, peer: u32) {
        let sequence_of = |slot| self.calls.get(slot).key.call.sequence;
        let near = &mut self.peers.at(peer).near;
        if !near.insert(sequence, slot, sequence_of) {
            self.add_afar(slot, hash);
        }
    }

    #[inline(never)]
    fn add_afar(&mut self, slot: u32, hash: Option<u64>) {
        let call = self.calls.at(slot);
        call.hash = hash.unwrap_or_else(|| self.keyed.hash_one(call.key));
        self.far.insert(call.hash, slot);
    }

    /// The call behind which one with this sequence is listed. Calls come nearly in order; one that comes very late is
    /// listed where it is found, which only lets it be forgotten later.
    fn place_among(&self, calls: List, sequence: u64) -> u32 {
        let mut place = calls.last();
        for _ in 0..DISORDER {
            match place {
                Some(call) if self.calls.get(call).key.call.sequence > sequence => {
                    place = Linked::<OF_INITIATOR>::links_of(&self.calls, call).previous();
                }
                _ => break,
            }
        }
        place.unwrap_or(NONE)
    }

    pub(super) fn add_record(&mut self, new: NewRecord<'_>) -> u32 {
        let (call, attempt) = (new.call, new.attempt);
        let slot = match self.records.free.pop() {
            Some(slot) => {
                self.records.at(slot).reset(new);
                slot
            }
            None => self.records.add(Record::make(new)),
        };
        let at_call = self.calls.at(call);
        at_call.count += 1;
        at_call.latest_attempt = at_call.latest_attempt.max(attempt);
        match at_call.count {
            1 => at_call.requests = List::of(slot),
            count => self.add_to_call(slot, call, count),
        }
        slot
    }

    /// A request was added to a call that now has so many.
    #[inline(never)]
    fn add_to_call(&mut self, slot: u32, call: u32, count: u32) {
        let requests = &mut self.calls.at(call).requests;
        requests.push::<OF_CALL>(&mut self.records, slot);
        if count > SCANNED {
            self.index_request(slot, count);
        }
    }

    fn index_request(&mut self, slot: u32, count: u32) {
        let call = self.records.get(slot).call;
        let requests: Vec<u32> = match count == SCANNED + 1 {
            true => self.requests(call).collect(),
            false => vec![slot],
        };
        for slot in requests {
            self.by_request.insert(self.hash_of_request(slot), slot);
        }
    }

    fn forget_index(&mut self, slot: u32, count: u32) {
        self.by_request.remove(self.hash_of_request(slot), slot);
        if count == SCANNED {
            let call = self.records.get(slot).call;
            let requests: Vec<u32> = self.requests(call).collect();
            for slot in requests {
                self.by_request.remove(self.hash_of_request(slot), slot);
            }
        }
    }

    /// Takes a request out of all lists, and its call if it was the last one. Its generation is over.
    pub(super) fn remove_record(&mut self, slot: u32, fresh: &mut List, ended: &mut EndedRequests) {
        let record = self.records.at(slot);
        let call = record.call;
        record.generation = record.generation.wrapping_add(1);
        record.release();
        fresh.remove::<OF_FRESH>(&mut self.records, slot);
        self.records.free.push(slot);
        let at_call = self.calls.at(call);
        let ended = ended.list(at_call.class);
        ended.remove::<OF_ENDED>(&mut self.records, slot);
        at_call.count -= 1;
        let (sequence, hash) = (at_call.key.call.sequence, at_call.hash);
        let (peer, session_index, count) = (
            at_call.peer,
            usize::from(at_call.session_index),
            at_call.count,
        );
        if count > 0 {
            return self.remove_from_call(slot, call, count);
        }
        let at_peer = self.peers.at(peer);
        let of_session = &mut at_peer.by_session[session_index];
        if of_session.older == call {
            let links = Linked::<OF_INITIATOR>::links_of(&self.calls, call);
            of_session.older = links.previous().unwrap_or(NONE);
        }
        of_session
            .calls
            .remove::<OF_INITIATOR>(&mut self.calls, call);
        if !at_peer.near.remove(sequence, call) {
            self.far.remove(hash, call);
        }
        self.calls.free.push(call);
        if self.bare.last != peer && at_peer.has_no_calls() {
            self.note_bare(peer);
        }
    }

    /// The last request of an initiator was forgotten.
    #[inline(never)]
    pub(super) fn note_bare(&mut self, peer: u32) {
        if let Some(last) = self.bare.last()
            && !self.peers.get(last).has_no_calls()
        {
            self.bare.remove::<OF_BARE>(&mut self.peers, last);
        }
        self.bare.remove::<OF_BARE>(&mut self.peers, peer);
        self.bare.push::<OF_BARE>(&mut self.peers, peer);
    }

    /// The next initiator that may make room for another one. They take turns; one that was heard of since its last turn, or
    /// of which nothing is known, is passed over.
    pub(super) fn next_peer(&mut self, now: Nanoseconds) -> Option<u32> {
        let slots = self.peers.slots();
        let peer = if self.turn < slots.end { self.turn } else { 0 };
        self.turn = peer + 1;
        let at_peer = self.peers.at(peer);
        let was_heard = at_peer.heard > at_peer.spared;
        at_peer.spared = now;
        (!was_heard && !at_peer.has_no_calls()).then_some(peer)
    }

    /// The initiator of which no request has been remembered for longest.
    pub(super) fn first_bare(&self) -> Option<u32> {
        let is_bare = |peer: &u32| self.peers.get(*peer).has_no_calls();
        self.bare.first().filter(is_bare)
    }

    /// A request was removed from a call that has so many others.
    #[inline(never)]
    fn remove_from_call(&mut self, slot: u32, call: u32, count: u32) {
        let requests = &mut self.calls.at(call).requests;
        requests.remove::<OF_CALL>(&mut self.records, slot);
        if count >= SCANNED {
            self.forget_index(slot, count);
        }
    }
}

/// Room that a slot keeps for its next request. One that had much more gives it back: else a peer that fills slot after slot,
/// one at a time, would have them all keep as much.
const KEPT_ROOM: usize = 16;

/// Empties what a slot holds of its request.
pub(super) fn empty<T>(all: &mut Vec<T>) {
    all.clear();
    all.shrink_to(KEPT_ROOM);
}

impl Record {
    #[cold]
    #[inline(never)]
    fn make(new: NewRecord<'_>) -> Self {
        let mut record = Self {
            generation: 0,
            call: new.call,
            id: new.id,
            attempt: 0,
            depth: 0,
            links: [Links::UNLISTED; 3],
            ended: false,
            stopped: false,
            failed: false,
            base: 0,
            count: 0,
            facts: None,
            outputs: Outputs::default(),
            cold: None,
            kept: None,
            session: new.session,
            share: new.share,
            direct: false,
            heard: Nanoseconds::ZERO,
            carried: Nanoseconds::ZERO,
            deadline: Nanoseconds::ZERO,
            pinged: Nanoseconds::ZERO,
            since: Nanoseconds::ZERO,
            due: None,
        };
        record.reset(new);
        record
    }

    /// Lets go of what a slot that is not used need not hold.
    fn release(&mut self) {
        self.outputs.clear();
        self.session = SessionNumber::NONE;
        if let Some(cold) = &mut self.cold {
            cold.children.clear();
            cold.continuation = None;
            cold.manifest = None;
            cold.reply_to = None;
            empty(&mut cold.relayed_pings);
        }
    }

    /// Field by field: what the slot has allocated is used again, and its generation goes on.
    #[inline(always)]
    fn reset(&mut self, new: NewRecord<'_>) {
        self.call = new.call;
        self.id = new.id;
        self.attempt = new.attempt;
        self.depth = new.depth;
        self.links[OF_CALL] = Links::ALONE; // the other lists were left before
        self.ended = false;
        self.stopped = false;
        self.failed = false;
        self.base = new.base;
        self.count = new.base;
        self.facts = None;
        self.kept = None;
        self.session = new.session;
        self.share = new.share;
        self.direct = new.direct;
        if new.manifest.is_some() || *new.reply_to != ReplyTo::Peer {
            let cold = self.cold();
            cold.manifest = new.manifest.copied();
            cold.reply_to = Some(new.reply_to.clone());
        }
        self.heard = new.now;
        self.carried = new.carried;
        self.deadline = new.deadline;
        self.pinged = new.now;
        self.since = new.now;
        self.due = None;
    }

    pub(super) fn cold(&mut self) -> &mut ColdRecord {
        self.cold.get_or_insert_default()
    }

    pub(super) fn children(&self) -> &[Child] {
        self.cold.as_ref().map_or(&[], |cold| cold.children.all())
    }

    /// Where the child with this place is handled.
    pub(super) fn child(&self, path: &Path) -> Option<&Child> {
        self.cold.as_ref()?.children.find(&self.id.path, path)
    }

    pub(super) fn continuation(&self) -> Option<&Child> {
        self.cold.as_ref()?.continuation.as_ref()
    }

    /// Whether work of it went on to other servers.
    pub(super) fn has_delegated(&self) -> bool {
        self.continuation().is_some() || !self.children().is_empty()
    }

    /// The route of answers back towards the initiator.
    pub(super) fn route(&self) -> RelayRoute {
        RelayRoute {
            session: self.session,
            distance: self.depth.saturating_add(1),
        }
    }

    /// The manifest it was given.
    pub(super) fn manifest(&self) -> Option<Manifest> {
        self.cold.as_ref()?.manifest
    }

    /// Where it said that answers go.
    pub(super) fn reply_to(&self) -> ReplyTo {
        let stated = self.cold.as_ref().and_then(|cold| cold.reply_to.clone());
        stated.unwrap_or(ReplyTo::Peer)
    }

    /// The initiator hears of this line of the call.
    pub(super) fn hear(&mut self, now: Nanoseconds) {
        self.heard = self.heard.max(now);
        self.carried = Nanoseconds::ZERO;
    }

    /// How long the initiator has not heard of this line of the call.
    pub(super) fn quiet(&self, now: Nanoseconds) -> Nanoseconds {
        now.saturating_sub(self.heard).saturating_add(self.carried)
    }

    /// When the initiator will not have heard of this line for a ping period.
    pub(super) fn announce_at(&self, period: Nanoseconds) -> Nanoseconds {
        self.heard
            .saturating_add(period.saturating_sub(self.carried))
    }

    pub(super) fn is_fresh(&self) -> bool {
        self.links[OF_FRESH].is_member()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_collide_under_one_secret_do_not_under_another() {
        let hashes = [[1; 16], [2; 16]].map(|secret| Keyed(secret).hash_one(7_u64));
        assert_ne!(hashes[0], hashes[1]);
        assert_eq!(hashes[0], Keyed([1; 16]).hash_one(7_u64));
    }
}
