//! The table itself: initiators, their calls, the requests of these, each found by its name and listed in order.

use std::cell::Cell;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Excluded, Unbounded};

use crate::call::records::children::Children;
use crate::call::records::kept::Number;
use crate::call::records::outputs::Outputs;
use crate::call::records::queues::Queues;
use crate::call::records::relaying::RelayedPing;
use crate::call::records::time::{Nanoseconds, PingTimes};
use crate::call::records::{RelayRoute, Ticket};
use crate::call::shares::Share;
use crate::id::{CallId, ConnId, NodeId, Path, RequestId, Token};
use crate::manifest::{Facts, Manifest};
use crate::slots::Slots;
use crate::wire::{Child, ReplyTo};

/// A call is known by its token too: who cannot show it speaks of another call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RecordedCallKey {
    pub(super) call: CallId,
    pub(super) token: Token,
}

impl RecordedCallKey {
    /// What tells it from its initiator's other calls.
    fn name(&self) -> (u64, Token) {
        (self.call.sequence, self.token)
    }
}

/// So many requests of a branch are looked at for the one that it went on from.
const MOST_HOPS: usize = 64;

/// Connections of one initiator that are told apart. The last of them is shared by all connections beyond that.
const MAX_CONNS: usize = 16;

/// One incarnation of an initiator.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) node: NodeId,
    /// Its calls, by the connection that each came over first.
    pub(super) by_conn: Vec<ConnCalls>,
    /// How long it is remembered when no request of it is: as long as one of its calls wanted to be at most.
    pub(super) gc_timeout: Nanoseconds,
    /// When it was heard of last.
    pub(super) heard: Nanoseconds,
    /// When it came, or was spared last since it had been heard of again: see [`Table::next_peer`].
    pub(super) spared: Nanoseconds,
}

/// The calls of an initiator that came first over one connection. What is said over it of the oldest live call is about these
/// calls alone: a node id is only claimed, so whoever is there may be anybody.
#[derive(Debug)]
pub(super) struct ConnCalls {
    /// `None` if several connections share it: what they say is not heeded.
    pub(super) conn: Option<ConnId>,
    /// The other end says that it is the initiator.
    pub(super) own: bool,
    /// The oldest live call, as was said over the connection.
    pub(super) oldest: u64,
    /// By sequence: calls of strangers may have the same one, under other tokens.
    calls: BTreeMap<(u64, Token), u32>,
    /// Up to this one calls were looked at since they are over.
    over: (u64, Token),
}

impl ConnCalls {
    fn new(conn: ConnId, own: bool) -> Self {
        Self {
            conn: Some(conn),
            own,
            oldest: 0,
            calls: BTreeMap::new(),
            over: (0, Token::new(0)),
        }
    }

    fn share(&mut self) {
        (self.conn, self.own, self.oldest) = (None, false, 0);
    }

    /// Whether several connections share it.
    pub(super) fn is_shared(&self) -> bool {
        self.conn.is_none()
    }

    fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// The call with this name. Most that are looked for are new, and behind all others.
    fn find(&self, name: (u64, Token)) -> Option<u32> {
        let (last, call) = self.calls.last_key_value()?;
        match name.cmp(last) {
            Ordering::Greater => None,
            Ordering::Equal => Some(*call),
            Ordering::Less => self.calls.get(&name).copied(),
        }
    }

    /// The next call that is older than the oldest live one and was not looked at yet.
    pub(super) fn next_over(&mut self) -> Option<u32> {
        let mut first = self.calls.first_key_value()?;
        if *first.0 <= self.over {
            // Those before it still run.
            first = self.calls.range((Excluded(self.over), Unbounded)).next()?;
        }
        let (name, call) = first;
        if name.0 >= self.oldest {
            return None;
        }
        self.over = *name;
        Some(*call)
    }
}

impl Peer {
    /// Whether no call of it is known.
    pub(super) fn has_no_calls(&self) -> bool {
        self.by_conn.iter().all(ConnCalls::is_empty)
    }

    /// The oldest call that lives, as far as all agree who brought calls of which something is still known.
    pub(super) fn oldest(&self) -> u64 {
        let by_conn = self.by_conn.iter().filter(|calls| !calls.is_empty());
        by_conn.map(|calls| calls.oldest).min().unwrap_or(0)
    }
}

/// One call, as far as it has come here.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) key: RecordedCallKey,
    pub(super) peer: u32,
    pub(super) settings: PingTimes,
    /// The queue that its requests are in once they have ended.
    pub(super) class: u32,
    /// In which of its initiator's lists it is.
    pub(super) conn_index: u8,
    pub(super) aborted: bool,
    /// One of its requests; `None` only while it is made.
    first: Option<u32>,
    /// All others, by place and attempt: most calls have none.
    further: BTreeMap<(RequestId, u32), u32>,
    /// How many were taken that state no budgets.
    pub(super) unstated: u32,
    /// When the request was last renewed by which heartbeats go back.
    pub(super) way_back: Option<Nanoseconds>,
    /// That of its requests which is nearest to the initiator, and whether its connection was open when it was looked for: see
    /// [`Records::nearest_to_initiator`](super::Records::nearest_to_initiator).
    pub(super) nearest: Cell<Option<(u32, bool)>>,
}

/// One request.
#[derive(Debug)]
pub(super) struct Record {
    /// Another one for each that is made.
    pub(super) generation: u32,
    pub(super) call: u32,
    /// Its place; the root's for the mark of a call that was aborted before any request of it came.
    pub(super) id: RequestId,
    pub(super) attempt: u32,
    pub(super) depth: u32,
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
    /// Names its kept responses.
    pub(super) kept: Option<Number>,
    pub(super) conn: ConnId,
    /// Whose place it takes while it runs.
    pub(super) share: Share,
    /// That connection's other end is the initiator.
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

/// What a request of one hop does not have.
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
    pub(super) conn: ConnId,
    pub(super) share: Share,
    pub(super) direct: bool,
    pub(super) reply_to: &'a ReplyTo,
    pub(super) carried: Nanoseconds,
    pub(super) deadline: Nanoseconds,
    pub(super) now: Nanoseconds,
}

impl<T> Slots<T> {
    pub(super) fn at(&mut self, slot: u32) -> &mut T {
        #[cfg(test)]
        looks::count();
        &mut self[slot]
    }

    pub(super) fn get(&self, slot: u32) -> &T {
        #[cfg(test)]
        looks::count();
        &self[slot]
    }
}

impl Slots<Record> {
    /// The slot of this ticket, if its request is still remembered.
    #[inline]
    pub(super) fn slot(&self, ticket: Ticket) -> Option<u32> {
        let record = self.find(ticket.slot)?;
        (record.generation == ticket.generation).then_some(ticket.slot)
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

#[derive(Debug)]
pub(super) struct Table {
    pub(super) peers: Slots<Peer>,
    pub(super) calls: Slots<Call>,
    pub(super) records: Slots<Record>,
    by_node: BTreeMap<NodeId, u32>,
    /// Children whose places do not tell whose they are, by their calls, and the slots of their parents.
    folded: BTreeSet<(u32, Path, u32)>,
    /// The last that was given to a record, or to its slot once it was forgotten.
    generation: u32,
    /// Initiators of which no request is remembered, in the order in which the last one was forgotten. One that
    /// has a request again may stay here: it comes back soon.
    bare: Queues,
    /// Whose turn it is to make room.
    turn: u32,
}

impl Table {
    pub(super) fn new() -> Self {
        Self {
            peers: Slots::default(),
            calls: Slots::default(),
            records: Slots::default(),
            by_node: BTreeMap::new(),
            folded: BTreeSet::new(),
            generation: 0,
            bare: Queues::new(1),
            turn: 0,
        }
    }

    pub(super) fn peer(&self, node: NodeId) -> Option<u32> {
        self.by_node.get(&node).copied()
    }

    pub(super) fn call(&self, key: &RecordedCallKey) -> Option<u32> {
        let peer = self.peer(key.call.initiator)?;
        self.call_of(peer, key)
    }

    /// A call of this initiator.
    #[inline]
    pub(super) fn call_of(&self, peer: u32, key: &RecordedCallKey) -> Option<u32> {
        let mut by_conn = self.peers.get(peer).by_conn.iter();
        by_conn.find_map(|of_conn| of_conn.find(key.name()))
    }

    /// The request of a call with this place and attempt.
    pub(super) fn request(&self, call: u32, id: RequestId, attempt: u32) -> Option<u32> {
        let Call { first, further, .. } = self.calls.get(call);
        let first = first.filter(|first| self.records.get(*first).name() == (id, attempt));
        first.or_else(|| further.get(&(id, attempt)).copied())
    }

    /// The latest attempt of the request of a call with this place.
    pub(super) fn latest_request(&self, call: u32, id: RequestId) -> Option<u32> {
        let Call { first, further, .. } = self.calls.get(call);
        let first = first.filter(|first| self.records.get(*first).id == id);
        let last = further.range((id, 0)..=(id, u32::MAX)).next_back();
        let last = last.map(|(_, last)| *last);
        let attempt = |slot: &u32| self.records.get(*slot).attempt;
        first.into_iter().chain(last).max_by_key(attempt)
    }

    /// The latest requests of a branch up to this one, not in order. Where one of them did not hand its work on, those far before it
    /// lead in a circle.
    pub(super) fn hops(&self, call: u32, last: RequestId) -> impl Iterator<Item = u32> {
        let Call { first, further, .. } = self.calls.get(call);
        let is_one = |slot: &u32| {
            let id = self.records.get(*slot).id;
            id.path == last.path && id.hop <= last.hop
        };
        let start = RequestId { hop: 0, ..last };
        let others = further.range((start, 0)..=(last, u32::MAX)).rev();
        let others = others.take(MOST_HOPS).map(|(_, slot)| *slot);
        first.filter(is_one).into_iter().chain(others)
    }

    /// The requests of a call of which this folded place is a child.
    pub(super) fn parents(&self, call: u32, child: Path) -> impl Iterator<Item = u32> {
        let found = (self.folded).range((call, child, 0)..=(call, child, u32::MAX));
        found.take(MOST_HOPS).map(|(.., slot)| *slot)
    }

    /// A request was handed on, as a child with this place.
    pub(super) fn add_child(&mut self, slot: u32, path: Path, to: Child) {
        let record = self.records.at(slot);
        record.cold().children.push(path, to);
        if path.is_folded() {
            self.folded.insert((record.call, path, slot));
        }
    }

    /// The requests of a call.
    pub(super) fn requests(&self, call: u32) -> impl Iterator<Item = u32> {
        let Call { first, further, .. } = self.calls.get(call);
        first.iter().chain(further.values()).copied()
    }

    /// The request of a call behind this one, which is known. So that both can be forgotten one after the other, it is asked before the
    /// first is.
    #[inline]
    pub(super) fn request_after(&self, call: u32, slot: u32) -> Option<u32> {
        let Call { first, further, .. } = self.calls.get(call);
        let next = match *first == Some(slot) {
            true => further.first_key_value(),
            false => {
                let name = self.records.get(slot).name();
                further.range((Excluded(name), Unbounded)).next()
            }
        };
        next.map(|(_, next)| *next)
    }

    /// The calls of an initiator.
    pub(super) fn calls_of(&self, peer: u32) -> impl Iterator<Item = u32> {
        let by_conn = 0..self.peers.get(peer).by_conn.len();
        by_conn.flat_map(move |conn_index| self.calls_in(peer, conn_index as u8))
    }

    /// The calls that came first over a connection, lowest sequence first.
    pub(super) fn calls_in(&self, peer: u32, conn_index: u8) -> impl Iterator<Item = u32> {
        let by_conn = &self.peers.get(peer).by_conn;
        let of_conn = by_conn.get(usize::from(conn_index));
        of_conn
            .into_iter()
            .flat_map(|of_conn| of_conn.calls.values().copied())
    }

    /// The calls that came first over a connection, to be changed.
    pub(super) fn of_conn(&mut self, peer: u32, conn_index: u8) -> &mut ConnCalls {
        &mut self.peers.at(peer).by_conn[usize::from(conn_index)]
    }

    /// The list of what comes over a connection for an initiator.
    #[inline]
    pub(super) fn conn_index(&mut self, peer: u32, conn: ConnId, own: bool) -> u8 {
        match self.known_conn_index(peer, conn) {
            Some(conn_index) => conn_index,
            None => self.add_line(peer, conn, own),
        }
    }

    #[inline]
    pub(super) fn known_conn_index(&self, peer: u32, conn: ConnId) -> Option<u8> {
        let by_conn = &self.peers.get(peer).by_conn;
        let conn_index = by_conn.iter().position(|calls| calls.conn == Some(conn));
        conn_index.map(|conn_index| conn_index as u8)
    }

    /// Whether some connections of this initiator's calls are not told apart.
    pub(super) fn shares_a_line(&self, peer: u32) -> bool {
        self.peers
            .get(peer)
            .by_conn
            .iter()
            .any(ConnCalls::is_shared)
    }

    #[inline(never)]
    fn add_line(&mut self, peer: u32, conn: ConnId, own: bool) -> u8 {
        let by_conn = &mut self.peers.at(peer).by_conn;
        if by_conn.len() < MAX_CONNS {
            by_conn.push(ConnCalls::new(conn, own));
            return by_conn.len() as u8 - 1;
        }
        match by_conn.iter().position(ConnCalls::is_empty) {
            Some(conn_index) => {
                by_conn[conn_index] = ConnCalls::new(conn, own);
                conn_index as u8
            }
            None => {
                by_conn[MAX_CONNS - 1].share();
                MAX_CONNS as u8 - 1
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
            by_conn: Vec::new(),
            gc_timeout,
            heard: now,
            spared: now,
        });
        self.by_node.insert(node, slot);
        self.note_bare(slot);
        slot
    }

    pub(super) fn remove_peer(&mut self, slot: u32) {
        let node = self.peers.get(slot).node;
        self.by_node.remove(&node);
        self.bare.remove(slot);
        self.peers.free(slot);
    }

    /// Adds a call of this initiator: a request of it must follow.
    pub(super) fn add_call(
        &mut self,
        key: RecordedCallKey,
        (peer, conn_index): (u32, u8),
        (settings, class): (PingTimes, u32),
    ) -> u32 {
        let slot = self.calls.add(Call {
            key,
            peer,
            settings,
            class,
            conn_index,
            aborted: false,
            first: None,
            further: BTreeMap::new(),
            unstated: 0,
            way_back: None,
            nearest: Cell::new(None),
        });
        if self.bare.last(0) != Some(peer) {
            self.bare.remove(peer);
        }
        let of_conn = self.of_conn(peer, conn_index);
        of_conn.calls.insert(key.name(), slot);
        slot
    }

    pub(super) fn add_record(&mut self, new: NewRecord<'_>) -> u32 {
        let (call, name) = (new.call, (new.id, new.attempt));
        let generation = self.next_generation();
        let depth = new.depth;
        let slot = self.records.add(Record::new(new, generation));
        let at_call = self.calls.at(call);
        if let Some((nearest, was_open)) = at_call.nearest.get() {
            let before = self.records.get(nearest).depth;
            if depth < before || (depth == before && !was_open) {
                at_call.nearest.set(Some((slot, true))); // it has just come
            }
        }
        if at_call.first.is_none() {
            at_call.first = Some(slot);
        } else {
            at_call.further.insert(name, slot);
        }
        slot
    }

    /// Forgets a request that has ended, and its call if it was the last one. Whoever looks through all slots finds the free one
    /// ended, without outputs.
    pub(super) fn remove_record(&mut self, slot: u32) {
        let generation = self.next_generation();
        let record = self.records.at(slot);
        debug_assert!(record.ended, "what runs is not forgotten");
        let (call, name) = (record.call, record.name());
        // Its slot need not hold what takes memory, and is named by no ticket.
        record.outputs = Outputs::default();
        if let Some(cold) = record.cold.take() {
            for child in cold.children.folded() {
                self.folded.remove(&(call, *child, slot));
            }
        }
        record.generation = generation;
        self.records.free(slot);
        let at_call = self.calls.at(call);
        at_call
            .nearest
            .get_mut()
            .take_if(|(nearest, _)| *nearest == slot);
        if at_call.first != Some(slot) {
            at_call.further.remove(&name);
            return;
        }
        at_call.first = at_call.further.pop_first().map(|(_, next)| next);
        if at_call.first.is_none() {
            self.remove_call(call);
        }
    }

    fn next_generation(&mut self) -> u32 {
        self.generation = self.generation.wrapping_add(1);
        self.generation
    }

    fn remove_call(&mut self, slot: u32) {
        let call = self.calls.at(slot);
        let (name, peer, conn_index) = (call.key.name(), call.peer, call.conn_index);
        self.of_conn(peer, conn_index).calls.remove(&name);
        self.calls.free(slot);
        if self.bare.last(0) != Some(peer) && self.peers.get(peer).has_no_calls() {
            self.note_bare(peer);
        }
    }

    /// The last request of an initiator was forgotten.
    #[inline(never)]
    pub(super) fn note_bare(&mut self, peer: u32) {
        if let Some(last) = self.bare.last(0)
            && !self.peers.get(last).has_no_calls()
        {
            self.bare.remove(last);
        }
        self.bare.remove(peer);
        self.bare.push(0, peer);
    }

    /// The next initiator that may make room for another one. They take turns; one that was heard of since its last turn, or
    /// of which nothing is known, is passed over.
    pub(super) fn next_peer(&mut self, now: Nanoseconds) -> Option<u32> {
        let slots = self.peers.all();
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
        self.bare.first(0).filter(is_bare)
    }
}

impl Record {
    #[inline(always)]
    fn new(new: NewRecord<'_>, generation: u32) -> Self {
        let is_cold = new.manifest.is_some() || *new.reply_to != ReplyTo::Peer;
        let cold = is_cold.then(|| {
            Box::new(ColdRecord {
                manifest: new.manifest.copied(),
                reply_to: Some(new.reply_to.clone()),
                ..ColdRecord::default()
            })
        });
        Self {
            generation,
            call: new.call,
            id: new.id,
            attempt: new.attempt,
            depth: new.depth,
            ended: false,
            stopped: false,
            failed: false,
            base: new.base,
            count: new.base,
            facts: None,
            outputs: Outputs::default(),
            cold,
            kept: None,
            conn: new.conn,
            share: new.share,
            direct: new.direct,
            heard: new.now,
            carried: new.carried,
            deadline: new.deadline,
            pinged: new.now,
            since: new.now,
            due: None,
        }
    }

    /// What tells it from the other requests of its call.
    pub(super) fn name(&self) -> (RequestId, u32) {
        (self.id, self.attempt)
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
            conn: self.conn,
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
}
