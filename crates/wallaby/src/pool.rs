//! Connections: one per server, cached, bounded; found by address for requests and for answers.

mod recent;

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OnceCell, oneshot};
use wallaby_proto::connection::{
    Counters, DialLimits, Dials, Held, NamedBy, Places, Search, StrangerLimits, Usefulness,
};
use wallaby_proto::{Address, NodeId};

use self::recent::Recent;
use crate::driver::peer::Peer;
use crate::error::ConnectError;
use crate::timer::Instant;
use wallaby_proto::numbers::MAX_CLAIMING;

/// Most addresses whose lives are remembered.
const REMEMBERED: usize = 16_384;

/// Who has connected and not shown yet that it wants anything.
#[derive(Debug)]
pub(crate) enum Stranger {
    Peer(Arc<Peer>),
    /// A stream whose transport has something to do first, until this is dropped.
    Opening(oneshot::Sender<()>),
}

/// What a connection was of use for.
#[derive(Debug, Default)]
pub(crate) struct Uses {
    /// It has brought a request, or was taken to send something.
    pub(crate) ever: AtomicBool,
    /// Tick of the last time.
    last: AtomicU64,
    /// It has carried something of a call of this endpoint.
    calls: AtomicBool,
}

impl Uses {
    /// It carries something of a call of this endpoint: a request, a question about one, or what has shown that it may answer.
    pub(crate) fn note_call(&self) {
        self.calls.store(true, Ordering::Relaxed);
    }

    /// Whether calls of this endpoint are concerned if it ends.
    pub(crate) fn has_carried_calls(&self) -> bool {
        self.calls.load(Ordering::Relaxed)
    }
}

/// Connections that were needed when room was wanted, and perhaps are not any more.
#[derive(Debug, Default)]
pub(crate) struct Freed(Mutex<Vec<u64>>);

impl Freed {
    fn lock(&self) -> MutexGuard<'_, Vec<u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn note(&self, connection: u64) {
        self.lock().push(connection);
    }
}

/// A connection that several may be waiting for.
pub(crate) type Slot = Arc<OnceCell<Result<Arc<Peer>, ConnectError>>>;

/// All connections of an endpoint.
#[derive(Debug)]
pub(crate) struct Pool {
    /// Most connections that are no strangers.
    limit: usize,
    /// When it was made.
    born: Instant,
    /// Connections whose handshake is not done.
    opening: Arc<AtomicUsize>,
    state: Mutex<State>,
    freed: Arc<Freed>,
    ticks: AtomicU64,
}

#[derive(Debug)]
struct State {
    /// Those for requests, by their servers' addresses: the one that was dialled, or where a peer that dialled this endpoint
    /// has shown that it is.
    by_address: HashMap<Address, Slot>,
    /// Those of them that were used lately.
    recent: Recent,
    /// The life that was last found at an address.
    lives: HashMap<Address, NodeId>,
    /// All that are open, whoever dialled.
    open: HashMap<u64, Open>,
    /// What those have carried that were open and have ended.
    carried: Counters,
    /// By what their peers say that they are: that proves nothing of those who dialled this endpoint.
    by_node: HashMap<NodeId, BTreeMap<u64, Arc<Peer>>>,
    /// Which of them are strangers, and in which order the others make room.
    places: Places<u64>,
    /// The strangers.
    strangers: HashMap<u64, Stranger>,
    /// Somebody looks for strangers that have been there for too long.
    watched: bool,
    /// Dials of addresses that peers have named.
    dials: Dials<Address>,
}

/// An open connection.
#[derive(Debug)]
struct Open {
    peer: Arc<Peer>,
    /// The addresses that it may be found by.
    addresses: Vec<Address>,
}

fn usefulness(peer: &Arc<Peer>) -> Usefulness {
    Usefulness {
        ever: peer.uses.ever.load(Ordering::Relaxed),
        last: peer.uses.last.load(Ordering::Relaxed),
    }
}

impl State {
    fn all(&self) -> Vec<Arc<Peer>> {
        let open = self.open.values();
        open.map(|open| Arc::clone(&open.peer)).collect()
    }

    /// Connections to what has shown at this address that it is this life.
    fn found_at(&self, address: &Address, node: NodeId) -> Vec<Arc<Peer>> {
        let claiming = self.by_node.get(&node).into_iter().flatten();
        let open = claiming.filter_map(|(id, _)| self.open.get(id));
        let found = open.filter(|open| open.addresses.contains(address));
        found.map(|open| Arc::clone(&open.peer)).collect()
    }

    /// Connections that were needed, and perhaps are not any more, may make room again.
    fn take_freed(&mut self, freed: &Freed) {
        for id in std::mem::take(&mut *freed.lock()) {
            if let Some(open) = self.open.get(&id) {
                self.places.free(id, usefulness(&open.peer));
            }
        }
    }

    fn new(strangers: StrangerLimits, dials: DialLimits) -> Self {
        Self {
            places: Places::new(strangers),
            strangers: HashMap::new(),
            watched: false,
            by_address: HashMap::new(),
            recent: Recent::default(),
            lives: HashMap::new(),
            open: HashMap::new(),
            carried: Counters::default(),
            by_node: HashMap::new(),
            dials: Dials::new(dials),
        }
    }
}

/// A place among the connections for one that is being opened.
#[derive(Debug)]
pub(crate) struct Opening(Arc<AtomicUsize>);

impl Opening {
    fn new(opening: &Arc<AtomicUsize>) -> Self {
        opening.fetch_add(1, Ordering::AcqRel);
        Self(Arc::clone(opening))
    }
}

impl Drop for Opening {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Pool {
    pub(crate) fn new(limit: usize, strangers: StrangerLimits, dials: DialLimits) -> Self {
        Self {
            limit,
            born: Instant::now(),
            opening: Arc::default(),
            state: Mutex::new(State::new(strangers, dials)),
            freed: Arc::default(),
            ticks: AtomicU64::new(1),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn use_now(&self, peer: &Peer) {
        peer.uses.ever.store(true, Ordering::Relaxed);
        peer.uses.last.store(
            self.ticks.fetch_add(1, Ordering::Relaxed),
            Ordering::Relaxed,
        );
    }

    /// The open connection to a server, if there is one.
    pub(crate) fn ready(&self, server: &Address) -> Option<Arc<Peer>> {
        let mut state = self.lock();
        if let Some(peer) = state.recent.get(server)
            && peer.is_usable()
        {
            self.use_now(peer);
            return Some(Arc::clone(peer));
        }
        let peer = state.by_address.get(server)?.get()?.as_ref().ok()?;
        if !peer.is_usable() {
            return None;
        }
        self.use_now(peer);
        let peer = Arc::clone(peer);
        state.recent.keep(server.clone(), Arc::clone(&peer));
        Some(peer)
    }

    /// The slot in which the connection to a server is or will be; one that failed or ended is replaced.
    pub(crate) fn slot(&self, server: &Address) -> Slot {
        let mut state = self.lock();
        let slot = state.by_address.entry(server.clone()).or_default();
        let over = match slot.get() {
            Some(Ok(peer)) => !peer.is_usable(),
            Some(Err(_)) => true,
            None => false,
        };
        if over {
            *slot = Slot::default();
        }
        Arc::clone(slot)
    }

    /// A dial has failed: nothing is kept of an address that is perhaps never used again.
    pub(crate) fn forget(&self, server: &Address, slot: &Slot) {
        let mut state = self.lock();
        if state
            .by_address
            .get(server)
            .is_some_and(|known| Arc::ptr_eq(known, slot))
        {
            state.by_address.remove(server);
        }
    }

    /// The open connection with what is reached at an address, if it says that it is this life: one that was dialled there,
    /// or whose other end has shown that it is there.
    pub(crate) fn at(&self, address: &Address, node: NodeId) -> Option<Arc<Peer>> {
        let state = self.lock();
        let recent = state.recent.get(address).map(Arc::clone);
        let known = || {
            Some(Arc::clone(
                state.by_address.get(address)?.get()?.as_ref().ok()?,
            ))
        };
        let peer = recent.or_else(known)?;
        if peer.is_closed() || peer.node() != Some(node) {
            return None;
        }
        self.use_now(&peer);
        Some(peer)
    }

    /// Open connections whose other end says that it is this life, a few of them: perhaps none of them is.
    pub(crate) fn claiming(&self, node: NodeId) -> Vec<Arc<Peer>> {
        let state = self.lock();
        let peers = state.by_node.get(&node).into_iter();
        let peers = peers.flat_map(BTreeMap::values);
        // A stranger that claims it first must not be the only one: those that were of use come first, and of equals the latest.
        let open = peers.filter(|peer| !peer.is_closed());
        let (of_use, others): (Vec<_>, Vec<_>) =
            open.partition(|peer| peer.uses.ever.load(Ordering::Relaxed));
        let few = of_use.into_iter().rev().chain(others.into_iter().rev());
        few.take(MAX_CLAIMING).cloned().collect()
    }

    /// An open connection.
    pub(crate) fn by_id(&self, id: u64) -> Option<Arc<Peer>> {
        let state = self.lock();
        state.open.get(&id).map(|open| Arc::clone(&open.peer))
    }

    /// How many connections to a life are open.
    pub(crate) fn count(&self, node: NodeId) -> usize {
        let state = self.lock();
        let peers = state.by_node.get(&node);
        peers.map_or(0, |peers| {
            peers.values().filter(|peer| !peer.is_closed()).count()
        })
    }

    /// Whether no connection with a life is left by which calls of this endpoint may hear of it.
    pub(crate) fn was_last(&self, node: NodeId) -> bool {
        let state = self.lock();
        let peers = state.by_node.get(&node).into_iter();
        let mut peers = peers.flat_map(BTreeMap::values);
        !peers.any(|peer| !peer.is_closed() && peer.uses.has_carried_calls())
    }

    /// Makes room for one more connection that is no stranger's: of those that nobody needs, one that was never of use is
    /// closed, or else the one used least recently. Returns whether one was. One that is found to be needed is not looked at
    /// again before it may be free, so that each costs one look for each time that it was free. One that has ended gives its
    /// place up, however long its last words take.
    ///
    /// # Errors
    ///
    /// The limit, if all of them are needed.
    pub(crate) fn make_room(&self) -> Result<(Opening, bool), usize> {
        let mut search = Search::default();
        loop {
            let mut state = self.lock();
            state.take_freed(&self.freed);
            let settled = state.places.settled();
            if settled + self.opening.load(Ordering::Acquire) < self.limit {
                return Ok((Opening::new(&self.opening), false));
            }
            let State { places, open, .. } = &mut *state;
            let usefulness = |id| Some(usefulness(&open.get(&id)?.peer));
            let next = places.next_for_room(&mut search, usefulness);
            let id = next.ok_or(self.limit)?;
            let Some(peer) = open.get(&id).map(|open| Arc::clone(&open.peer)) else {
                continue;
            };
            if peer.is_closed() {
                places.leave(id);
                continue;
            }
            drop(state);
            peer.pass_over(&self.freed); // first, as it may come to rest meanwhile
            if let Some(opening) = self.close_idle(&peer) {
                return Ok((opening, true));
            }
        }
    }

    /// Closes a connection for another one, unless somebody needs it.
    fn close_idle(&self, peer: &Arc<Peer>) -> Option<Opening> {
        if !peer.is_idle() {
            return None;
        }
        let opening = Opening::new(&self.opening);
        peer.end("room is needed for another connection");
        self.remove(peer).then_some(opening)
    }

    // Strangers.

    /// A stranger has connected. Returns one that must go for it, and whether nobody waits for strangers to be there for too
    /// long.
    pub(crate) fn welcome(&self, id: u64, stranger: Stranger) -> (Option<Stranger>, bool) {
        let now = self.born.elapsed();
        let mut state = self.lock();
        state.strangers.insert(id, stranger);
        let oldest = state.places.welcome(now, id);
        let oldest = oldest.and_then(|oldest| state.strangers.remove(&oldest));
        (oldest, !std::mem::replace(&mut state.watched, true))
    }

    /// Strangers that have been there for too long, and when the next one will; `None` if there are no more.
    pub(crate) fn expired(&self) -> (Vec<Stranger>, Option<Instant>) {
        let now = self.born.elapsed();
        let mut state = self.lock();
        let State {
            places, strangers, ..
        } = &mut *state;
        let expired = std::iter::from_fn(|| places.expired(now));
        let expired = expired.filter_map(|id| strangers.remove(&id)).collect();
        let next = state.places.next_timeout();
        state.watched = next.is_some();
        (expired, next.map(|next| self.born + next))
    }

    /// A stranger is none any more, or gone.
    pub(crate) fn stranger_left(&self, id: u64) {
        let mut state = self.lock();
        state.strangers.remove(&id);
        state.places.leave(id);
    }

    /// A stranger has shown that it wants something, and there is room.
    pub(crate) fn settle(&self, peer: &Arc<Peer>) {
        let mut state = self.lock();
        state.strangers.remove(&peer.id);
        match state.open.contains_key(&peer.id) {
            true => state.places.settle(peer.id, usefulness(peer)),
            false => state.places.leave(peer.id), // it is about to be opened
        }
    }

    /// A connection has brought requests.
    pub(crate) fn has_brought(&self, peer: &Peer) {
        peer.uses.ever.store(true, Ordering::Relaxed);
        let now = self.ticks.load(Ordering::Relaxed);
        peer.uses.last.store(now, Ordering::Relaxed);
    }

    /// A connection is open; its peer's life is known. Returns connections to an earlier life that was found at the same
    /// address: that life is over, and so are they. Others whose other end claims to be that life were never there.
    pub(crate) fn opened(&self, peer: &Arc<Peer>, dialled: Option<&Address>) -> Vec<Arc<Peer>> {
        let tick = self.ticks.fetch_add(1, Ordering::Relaxed);
        peer.uses.last.store(tick, Ordering::Relaxed);
        peer.uses.ever.store(dialled.is_some(), Ordering::Relaxed);
        let Some(node) = peer.node() else {
            return Vec::new();
        };
        let mut state = self.lock();
        let open = Open {
            peer: Arc::clone(peer),
            addresses: dialled.cloned().into_iter().collect(),
        };
        if !state.places.is_stranger(peer.id) {
            state.places.settle(peer.id, usefulness(peer));
        }
        state.open.insert(peer.id, open);
        let of_node = state.by_node.entry(node).or_default();
        of_node.insert(peer.id, Arc::clone(peer));
        let Some(address) = dialled else {
            return Vec::new();
        };
        state.dials.found(address);
        if state.lives.len() >= REMEMBERED {
            state.lives.clear();
        }
        match state.lives.insert(address.clone(), node) {
            Some(before) if before != node => state.found_at(address, before),
            _ => Vec::new(),
        }
    }

    /// Requests to this address may use a connection that its peer has dialled, unless they have another one, or wait for
    /// it. Of who was there before it says nothing: lives are what peers say they are, and only who was dialled is believed
    /// to have replaced another.
    pub(crate) fn serve_by(&self, address: Address, peer: &Arc<Peer>) {
        let mut state = self.lock();
        let known = state.by_address.get(&address);
        let has_other = known.is_some_and(|slot| match slot.get() {
            Some(Ok(other)) => other.is_usable(),
            Some(Err(_)) => false,
            None => true,
        });
        if !has_other && let Some(open) = state.open.get_mut(&peer.id) {
            open.addresses.push(address.clone());
            let slot = OnceCell::new_with(Some(Ok(Arc::clone(peer))));
            state.by_address.insert(address, Arc::new(slot));
        }
    }

    /// Whether this life was found at this address when it was last dialled.
    pub(crate) fn was_at(&self, address: &Address, node: Option<NodeId>) -> bool {
        self.lock().lives.get(address).copied() == node
    }

    /// How often a connection was taken, by whomever.
    pub(crate) fn uses(&self) -> u64 {
        self.ticks.load(Ordering::Relaxed) - 1 // the clock begins with 1
    }

    /// A connection has ended. Returns whether it was open.
    pub(crate) fn remove(&self, peer: &Arc<Peer>) -> bool {
        let mut state = self.lock();
        if let Some(node) = peer.node()
            && let Some(peers) = state.by_node.get_mut(&node)
        {
            peers.remove(&peer.id);
            if peers.is_empty() {
                state.by_node.remove(&node);
            }
        }
        state.recent.forget(peer);
        state.places.leave(peer.id);
        state.strangers.remove(&peer.id);
        let Some(open) = state.open.remove(&peer.id) else {
            return false;
        };
        for address in open.addresses {
            let slot = state.by_address.get(&address);
            let is_its = |slot: &Slot| matches!(slot.get(), Some(Ok(it)) if it.id == peer.id);
            if slot.is_some_and(is_its) {
                state.by_address.remove(&address);
            }
        }
        state.carried += peer.counters();
        true
    }

    /// What all connections have carried, open or not: each is counted as one or the other.
    pub(crate) fn carried(&self) -> Counters {
        let (mut carried, open) = {
            let state = self.lock();
            (state.carried, state.all())
        };
        for peer in open {
            carried += peer.counters();
        }
        carried
    }

    /// All open connections.
    pub(crate) fn open(&self) -> Vec<Arc<Peer>> {
        self.lock().all()
    }

    /// A dial of this address begins, for an answer of this life or a question to it; one that is under way is shared.
    ///
    /// # Errors
    ///
    /// If it is not dialled now: see [`Dials`].
    pub(crate) fn begin_dial(
        &self,
        address: &Address,
        wanted: Option<NodeId>,
        named_by: NamedBy,
    ) -> Result<(), Held> {
        let now = self.born.elapsed();
        let mut state = self.lock();
        let slot = state.by_address.get(address);
        if slot.is_some_and(|slot| slot.get().is_none()) {
            return Ok(());
        }
        state.dials.begin(now, address, wanted, named_by)
    }

    /// Who is there took the connection and closed it; `was_met` says that the life that was wanted was found there before.
    pub(crate) fn dial_closed(&self, address: &Address, was_met: bool) {
        let now = self.born.elapsed();
        self.lock().dials.closed(now, address, was_met);
    }

    /// That dial was in vain; another life may have been there.
    pub(crate) fn dial_failed(&self, address: &Address, why: &ConnectError) {
        let now = self.born.elapsed();
        why.note_in_vain(&mut self.lock().dials, now, address);
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Weak;
    use std::sync::mpsc;
    use std::task::{Context, Poll};
    use std::time::Duration;

    use wallaby_proto::call::records::RecordLimits;
    use wallaby_proto::call::waiting::WaitingLimits;
    use wallaby_proto::connection::{Connection, Event, Features, Hello, Limits, VERSION};

    use super::*;
    use crate::driver::way::Way;
    use crate::liveness::Liveness;
    use crate::transport::{Identity, StreamWriter, WriteHalf};

    /// A stream that takes nothing.
    #[derive(Debug)]
    struct Full;

    impl WriteHalf for Full {
        fn try_write(&self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::WouldBlock.into())
        }

        fn poll_writable(&self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Pending
        }

        fn shutdown(&self) {}
    }

    fn pool(limit: usize) -> Pool {
        Pool::new(limit, StrangerLimits::default(), DialLimits::default())
    }

    /// A connection whose other end says that it is this node.
    fn peer(node: u64) -> Arc<Peer> {
        let hello = Arc::new(Hello {
            versions: (VERSION, VERSION),
            node: NodeId::new(node).expect("not zero"),
            expected: None,
            address: None,
            features: Features::default(),
            limits: Limits::default(),
        });
        let connection = Connection::accept(Arc::clone(&hello));
        let way = Way::Stream(connection, StreamWriter::Foreign(Box::new(Full)));
        let (records, waiting) = (RecordLimits::default(), WaitingLimits::default());
        let liveness = Liveness::new(records, waiting, [0; 16], Weak::new());
        let peer = Peer::new(way, Identity::default(), None, Arc::new(liveness));
        peer.note_event(&Event::Opened(hello));
        peer
    }

    /// It gives its place up at once, however long its last words take.
    #[test]
    fn a_connection_that_has_ended_and_is_needed_makes_room() {
        let pool = Arc::new(pool(1));
        let needed = peer(1);
        pool.opened(&needed, None);
        needed.hold();
        needed.end("it was silent");
        let (done, room) = mpsc::channel();
        let searched = Arc::clone(&pool);
        std::thread::spawn(move || done.send(searched.make_room().is_ok()));
        let room = room.recv_timeout(Duration::from_secs(20));
        assert_eq!(room, Ok(true), "the search ends");
        assert!(pool.by_id(needed.id).is_some(), "it is still driven");
    }

    /// Somebody was found at an address as one node and then as another: that says nothing of who was never there.
    #[test]
    fn only_what_was_found_at_an_address_ends_when_another_life_is_there() {
        let pool = pool(10);
        let at: Address = "tcp://127.0.0.1:1".parse().expect("an address");
        let elsewhere: Address = "tcp://127.0.0.1:2".parse().expect("an address");
        let (came, dialled, found, next) = (peer(1), peer(1), peer(1), peer(2));
        assert!(pool.opened(&came, None).is_empty());
        assert!(pool.opened(&dialled, Some(&elsewhere)).is_empty());
        assert!(pool.opened(&found, Some(&at)).is_empty());
        let stale = pool.opened(&next, Some(&at));
        let stale: Vec<u64> = stale.iter().map(|peer| peer.id).collect();
        assert_eq!(stale, [found.id]);
    }

    #[test]
    fn a_dial_that_failed_leaves_nothing_behind() {
        let pool = Pool::new(1, StrangerLimits::default(), DialLimits::default());
        let server: Address = "tcp://127.0.0.1:1".parse().expect("an address");
        let (first, also) = (pool.slot(&server), pool.slot(&server));
        assert!(Arc::ptr_eq(&first, &also), "both wait for the same dial");
        let error = ConnectError::NoTransport {
            server: server.clone(),
        };
        first.set(Err(error)).expect("set once");
        pool.forget(&server, &first);
        assert!(pool.lock().by_address.is_empty());
        // The next dial is not forgotten with an earlier one.
        let next = pool.slot(&server);
        pool.forget(&server, &also);
        assert!(Arc::ptr_eq(&next, &pool.slot(&server)));
    }
}
