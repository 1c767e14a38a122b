//! Datagrams in memory and time that only passes when the test says so.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use fastrand::Rng;
use wallaby::Address;
use wallaby::polling::{Builder, Datagrams, Endpoint, Event, Wait};

/// What links do to datagrams, of a thousand each.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Faults {
    pub(crate) lost: u64,
    pub(crate) doubled: u64,
    pub(crate) damaged: u64,
    /// Sockets have no room for so many.
    pub(crate) full: u64,
    /// Up to how many microseconds a datagram takes longer than another.
    pub(crate) jitter: u64,
}

#[derive(Debug, Default)]
struct State {
    now: Duration,
    faults: Faults,
    random: Rng,
    sent: u64,
    /// Datagrams under way, by when they arrive, with receiver and sender.
    under_way: BTreeMap<(Duration, u64), (SocketAddr, SocketAddr, Vec<u8>)>,
    /// Hosts between which nothing passes.
    cut: Vec<SocketAddr>,
    /// Who is there. What goes to others is lost.
    bound: BTreeSet<SocketAddr>,
    ports: u16,
    /// The next one that receives panics.
    panics: bool,
}

/// A network.
#[derive(Debug, Clone, Default)]
pub(crate) struct World(Rc<RefCell<State>>);

/// A socket of it.
#[derive(Debug)]
pub(crate) struct Link {
    world: World,
    local: SocketAddr,
    arrived: Vec<(SocketAddr, Vec<u8>)>,
    /// What was gathered.
    kept: VecDeque<(SocketAddr, Vec<u8>)>,
    /// Not all of it could be sent: it has to be flushed first.
    blocked: bool,
}

const LATENCY: Duration = Duration::from_micros(50);

impl State {
    fn chance(&mut self, of_thousand: u64) -> bool {
        of_thousand > 0 && self.random.u64(..1000) < of_thousand
    }
}

impl World {
    pub(crate) fn new(seed: u64) -> Self {
        let world = Self::default();
        world.0.borrow_mut().random = Rng::with_seed(seed);
        world
    }

    pub(crate) fn random(&self, below: u64) -> u64 {
        self.0.borrow_mut().random.u64(..below)
    }

    pub(crate) fn now(&self) -> Duration {
        self.0.borrow().now
    }

    pub(crate) fn set_faults(&self, faults: Faults) {
        self.0.borrow_mut().faults = faults;
    }

    /// Nothing passes to and from this address any more, or again.
    pub(crate) fn cut(&self, at: &Address, cut: bool) {
        let Address::Udp(at) = at else {
            panic!("{at} is no address here")
        };
        let mut state = self.0.borrow_mut();
        state.cut.retain(|other| other != at);
        if cut {
            state.cut.push(*at);
        }
    }

    /// Time passes in which nobody turns anything.
    pub(crate) fn pass(&self, time: Duration) {
        self.0.borrow_mut().now += time;
    }

    /// The next one who turns panics.
    pub(crate) fn panic_next(&self) {
        self.0.borrow_mut().panics = true;
    }

    pub(crate) fn bind(&self, builder: Builder) -> Endpoint<Link> {
        let mut state = self.0.borrow_mut();
        state.ports += 1;
        let local = (Ipv4Addr::new(10, 0, 0, 1), 1000 + state.ports).into();
        drop(state);
        self.bind_at(builder, local)
    }

    pub(crate) fn bind_at(&self, builder: Builder, local: SocketAddr) -> Endpoint<Link> {
        self.0.borrow_mut().bound.insert(local);
        let link = Link {
            world: self.clone(),
            local,
            arrived: Vec::new(),
            kept: VecDeque::new(),
            blocked: false,
        };
        builder.bind_to(link).expect("nothing can go wrong")
    }

    /// All turn once; time passes until the next of them has something to do, but at most so much.
    pub(crate) fn step(&self, endpoints: &mut [&mut Endpoint<Link>], most: Duration) {
        for endpoint in endpoints.iter_mut() {
            endpoint.turn(Wait::Not).expect("it cannot fail");
        }
        let waits = endpoints
            .iter_mut()
            .filter_map(|endpoint| endpoint.next_timeout());
        let wait = waits.min().unwrap_or(most).min(most);
        let here: Vec<SocketAddr> = endpoints
            .iter_mut()
            .map(|endpoint| endpoint.datagrams().local)
            .collect();
        let mut state = self.0.borrow_mut();
        let mut arrivals = state
            .under_way
            .iter()
            .filter(|(_, (to, ..))| here.contains(to));
        let arrival = arrivals.next().map(|(key, _)| key.0);
        let now = state.now;
        state.now = arrival.unwrap_or(Duration::MAX).clamp(now, now + wait);
    }

    /// Turns them until this one has an event, and takes it; `None` after so long.
    pub(crate) fn event(
        &self,
        endpoints: &mut [&mut Endpoint<Link>],
        whose: usize,
        within: Duration,
    ) -> Option<Event> {
        let end = self.now() + within;
        loop {
            if let Some(event) = endpoints[whose].next_event() {
                return Some(event);
            }
            if self.now() >= end {
                return None;
            }
            self.step(endpoints, end - self.now());
        }
    }
}

impl Link {
    fn room(&self) -> io::Result<()> {
        let mut state = self.world.0.borrow_mut();
        let full = state.faults.full;
        match state.chance(full) {
            true => Err(io::ErrorKind::WouldBlock.into()),
            false => Ok(()),
        }
    }

    fn transmit(&mut self, datagram: &[u8], to: SocketAddr) {
        let mut state = self.world.0.borrow_mut();
        let faults = state.faults;
        let cut = state.cut.contains(&to) || state.cut.contains(&self.local);
        if state.chance(faults.lost) || cut || !state.bound.contains(&to) {
            return;
        }
        for _ in 0..1 + u32::from(state.chance(faults.doubled)) {
            let mut datagram = datagram.to_vec();
            if state.chance(faults.damaged) {
                let at = state.random.usize(..datagram.len());
                datagram[at] ^= 1 << state.random.u8(..8);
            }
            let late = state.random.u64(..=faults.jitter);
            state.sent += 1;
            let key = (
                state.now + LATENCY + Duration::from_micros(late),
                state.sent,
            );
            state.under_way.insert(key, (to, self.local, datagram));
        }
    }
}

impl Datagrams for Link {
    fn now(&self) -> Duration {
        self.world.now()
    }

    fn local(&self) -> SocketAddr {
        self.local
    }

    fn send(&mut self, datagram: &[u8], to: SocketAddr) -> io::Result<()> {
        if !self.kept.is_empty() {
            return self.gather(datagram, to);
        }
        self.room()?;
        self.transmit(datagram, to);
        Ok(())
    }

    fn gather(&mut self, datagram: &[u8], to: SocketAddr) -> io::Result<()> {
        assert!(!self.blocked, "what is left is flushed first");
        self.room()?;
        self.kept.push_back((to, datagram.to_vec()));
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.blocked = false;
        while !self.kept.is_empty() {
            self.room().inspect_err(|_| self.blocked = true)?;
            if let Some((to, datagram)) = self.kept.pop_front() {
                self.transmit(&datagram, to);
            }
        }
        Ok(())
    }

    fn receive(&mut self, _: Duration, _: bool) -> io::Result<usize> {
        let mut state = self.world.0.borrow_mut();
        assert!(!std::mem::take(&mut state.panics), "as it was told");
        let now = state.now;
        let mine = state.under_way.iter();
        let mine = mine.filter(|((at, _), (to, ..))| *at <= now && *to == self.local);
        let mine: Vec<_> = mine.map(|(key, _)| *key).take(self.batch()).collect();
        let taken = mine.iter().filter_map(|key| state.under_way.remove(key));
        self.arrived = taken.map(|(_, from, datagram)| (from, datagram)).collect();
        Ok(self.arrived.len())
    }

    fn batch(&self) -> usize {
        4
    }

    fn received(&self, index: usize) -> Option<(&[u8], SocketAddr)> {
        let (from, datagram) = self.arrived.get(index)?;
        Some((datagram, *from))
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        let mut state = self.world.0.borrow_mut();
        state.bound.remove(&self.local);
        let local = self.local;
        state.under_way.retain(|_, (to, ..)| *to != local);
    }
}
