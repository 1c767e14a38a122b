//! A ring in one thread, under virtual rounds: messages are late, overtake each other, and meet nodes that have crashed.
//!
//! Here the real [`Node`]s run, with the answers that endpoints would give in place of endpoints. Everything follows from
//! one seed.

use fastrand::Rng;
use std::collections::{BTreeMap, BTreeSet};
use wallaby::Address;
use wallaby_chord::id::RingId;
use wallaby_chord::message::{Copying, Found, Lookup, Miss, Peer, Refusal, Told, Wish};
use wallaby_chord::node::{Action, Config, Errand, Node, Tables};
use wallaby_chord::search::{Next, Search};

/// How many steps a round has. A message takes up to [`LATEST`] of them.
const STEPS: u64 = 10;
/// The longest that a message is under way, in steps.
const LATEST: usize = 4;

/// Nodes, messages under way between them, and clients.
#[derive(Debug)]
pub(crate) struct World {
    chance: Rng,
    config: Config,
    hosts: Vec<Address>,
    alive: BTreeSet<Address>,
    nodes: BTreeMap<RingId, Hosted>,
    incarnations: u64,
    now: u64,
    sent: u64,
    queue: BTreeMap<(u64, u64, u64), Message>,
    searches: BTreeMap<u64, Search>,
    ended: Vec<(u64, Result<Found, Miss>)>,
    next_search: u64,
}

#[derive(Debug)]
struct Hosted {
    node: Node,
    /// A node that comes back at its place is another incarnation.
    incarnation: u64,
}

#[derive(Debug)]
enum Message {
    Ask(Asker, Errand),
    Told(Asker, Errand, Result<Told, Miss>),
    Lookup(Client, Address, Lookup),
    Copying(Client, Address, Copying),
    Ended(Client, Result<Found, Miss>),
    Again(u64),
}

/// Who asks: an incarnation of a node.
#[derive(Clone, Copy, Debug)]
struct Asker {
    id: RingId,
    incarnation: u64,
}

/// Who made a lookup.
#[derive(Clone, Debug)]
enum Client {
    Node(Asker, Box<Errand>),
    Search(u64),
}

impl World {
    /// One without nodes and with so many endpoints.
    pub(crate) fn new(seed: u64, hosts: usize, config: Config) -> Self {
        let hosts: Vec<Address> = (0..hosts)
            .filter_map(|number| format!("mem://host-{number}").parse().ok())
            .collect();
        Self {
            chance: Rng::with_seed(seed),
            config,
            alive: hosts.iter().cloned().collect(),
            hosts,
            nodes: BTreeMap::new(),
            incarnations: 0,
            now: 0,
            sent: 0,
            queue: BTreeMap::new(),
            searches: BTreeMap::new(),
            ended: Vec::new(),
            next_search: 0,
        }
    }

    /// One whose nodes all know each other, as after many rounds.
    pub(crate) fn settled(seed: u64, hosts: usize, nodes: u64, config: Config) -> Self {
        let mut world = Self::new(seed, hosts, config);
        let mut members: Vec<Peer> = (0..nodes)
            .filter_map(|number| world.peer(RingId::of_node(seed, number), number as usize))
            .collect();
        members.sort();
        for peer in &members {
            let node = Node::settled(peer.clone(), &members, world.config.clone());
            world.add(node);
        }
        world
    }

    /// The nodes that there are, in order.
    pub(crate) fn ids(&self) -> Vec<RingId> {
        self.nodes.keys().copied().collect()
    }

    /// A node.
    pub(crate) fn node(&self, id: RingId) -> Option<&Node> {
        self.nodes.get(&id).map(|hosted| &hosted.node)
    }

    /// The endpoints that live.
    pub(crate) fn hosts(&self) -> Vec<Address> {
        self.alive.iter().cloned().collect()
    }

    /// What all nodes know.
    pub(crate) fn tables(&self) -> Vec<Tables> {
        let nodes = self.nodes.values();
        nodes.map(|hosted| hosted.node.tables()).collect()
    }

    /// A node joins, or is the first one. Its endpoint is the one with this number of those that live.
    pub(crate) fn join(&mut self, id: RingId, host: usize) {
        let Some(me) = self.peer(id, host) else {
            return;
        };
        let node = match self.contact(id) {
            Some(contact) => Node::join(me, contact, self.config.clone()),
            None => Node::create(me, self.config.clone()),
        };
        self.add(node);
    }

    /// Any node of the ring but this one.
    fn contact(&mut self, id: RingId) -> Option<Peer> {
        let nodes = self.nodes.values().map(|hosted| &hosted.node);
        let others: Vec<&Peer> = nodes
            .filter(|node| node.can_route() && node.peer().id != id)
            .map(Node::peer)
            .collect();
        self.chance
            .choice(&others)
            .map(|contact| (*contact).clone())
    }

    /// A node leaves in good order.
    pub(crate) fn leave(&mut self, id: RingId) {
        if let Some(hosted) = self.nodes.get_mut(&id) {
            hosted.node.leave();
            self.bury(id);
        }
    }

    /// A node is gone from one moment to the next, with all that it kept.
    pub(crate) fn crash(&mut self, id: RingId) {
        self.nodes.remove(&id);
    }

    /// An endpoint is gone, with all its nodes; another one comes in its place.
    pub(crate) fn kill(&mut self, host: &Address) {
        self.nodes
            .retain(|_, hosted| hosted.node.peer().host != *host);
        self.alive.remove(host);
        self.hosts.retain(|other| other != host);
        let number = self.chance.u64(..);
        if let Ok(next) = format!("mem://host-{number}").parse::<Address>() {
            self.alive.insert(next.clone());
            self.hosts.push(next);
        }
    }

    /// A client looks something up; the number of the lookup.
    pub(crate) fn search(&mut self, id: RingId, wish: Wish) -> u64 {
        let number = self.next_search;
        self.next_search += 1;
        self.searches
            .insert(number, Search::new(id, wish, Search::MOST));
        self.send(Message::Again(number));
        number
    }

    /// Lookups that have ended since this was last called.
    pub(crate) fn ended(&mut self) -> Vec<(u64, Result<Found, Miss>)> {
        std::mem::take(&mut self.ended)
    }

    /// All nodes begin a round; messages move.
    pub(crate) fn round(&mut self) {
        let mut ids = self.ids();
        for step in 0..STEPS {
            // Nodes have clocks of their own: some begin early in the round, some late.
            let share = ids.len() / usize::try_from(STEPS - step).unwrap_or(1);
            for _ in 0..share {
                let id = ids.swap_remove(self.chance.usize(..ids.len()));
                let is_seeking = self.node(id).is_some_and(Node::is_seeking);
                let contact = is_seeking.then(|| self.contact(id)).flatten();
                if let Some(hosted) = self.nodes.get_mut(&id) {
                    let asker = Asker {
                        id,
                        incarnation: hosted.incarnation,
                    };
                    if let Some(contact) = contact {
                        hosted.node.add_contact(contact);
                    }
                    let errands = hosted.node.tick();
                    self.send_errands(asker, errands);
                }
            }
            self.now += 1;
            while let Some(entry) = self.queue.first_entry()
                && entry.key().0 <= self.now
            {
                let message = entry.remove();
                self.deliver(message);
            }
        }
    }

    /// Looks a place up, beginning at a node, while nothing else moves.
    ///
    /// # Errors
    ///
    /// Why it is not found.
    pub(crate) fn walk(&mut self, start: RingId, id: RingId) -> Result<Found, Miss> {
        let mut lookup = Lookup::new(id, start, Wish::Owner);
        lookup.trail = Some(Vec::new());
        loop {
            let Some(hosted) = self.nodes.get_mut(&lookup.to) else {
                return Err(Miss::Lost(None));
            };
            match hosted.node.handle_lookup(lookup) {
                Action::Answer(found) => return Ok(*found),
                Action::Forward(_, next) => lookup = *next,
                Action::Refuse(refusal) => return Err(Miss::Refused(refusal)),
                Action::Confirm(peer, _) | Action::Copy(peer, _) => {
                    return Err(Miss::Lost(Some(peer.host)));
                }
            }
        }
    }

    fn peer(&self, id: RingId, host: usize) -> Option<Peer> {
        let host = self.hosts.get(host % self.hosts.len().max(1))?.clone();
        Some(Peer { id, host })
    }

    fn add(&mut self, node: Node) {
        self.incarnations += 1;
        let incarnation = self.incarnations;
        self.nodes
            .insert(node.peer().id, Hosted { node, incarnation });
    }

    fn bury(&mut self, id: RingId) {
        if self.node(id).is_some_and(Node::is_gone) {
            self.nodes.remove(&id);
        }
    }

    fn send(&mut self, message: Message) {
        let due = self.now + 1 + self.chance.usize(..LATEST) as u64;
        self.post(due, message);
    }

    fn post(&mut self, due: u64, message: Message) {
        self.sent += 1;
        let turn = self.chance.u64(..);
        self.queue.insert((due, turn, self.sent), message);
    }

    fn send_errands(&mut self, asker: Asker, errands: Vec<Errand>) {
        for errand in errands {
            self.send(Message::Ask(asker, errand));
        }
    }

    fn deliver(&mut self, message: Message) {
        match message {
            Message::Ask(asker, errand) => self.deliver_ask(asker, errand),
            Message::Told(asker, errand, told) => {
                let hosted = self.nodes.get_mut(&asker.id);
                if let Some(hosted) =
                    hosted.filter(|hosted| hosted.incarnation == asker.incarnation)
                {
                    let errands = hosted.node.handle_told(&errand, told);
                    self.send_errands(asker, errands);
                    self.bury(asker.id);
                }
            }
            Message::Lookup(client, host, lookup) => self.deliver_lookup(client, &host, lookup),
            Message::Copying(client, host, copying) => {
                let peer = Peer {
                    id: copying.to,
                    host: host.clone(),
                };
                match self.at(&peer) {
                    Some(node) => {
                        let action = node.handle_copying(copying);
                        self.act(client, action);
                    }
                    None => self.miss(client, &peer),
                }
            }
            Message::Ended(client, result) => self.end(client, result),
            Message::Again(number) => self.attempt(number),
        }
    }

    fn deliver_ask(&mut self, asker: Asker, errand: Errand) {
        if let wallaby_chord::message::Ask::Find { lookup } = &errand.ask {
            let (host, lookup) = (errand.to.host.clone(), lookup.as_ref().clone());
            let client = Client::Node(asker, Box::new(errand));
            return self.deliver_lookup(client, &host, lookup);
        }
        let ask = errand.ask.clone();
        let is_alive = self.alive.contains(&errand.to.host);
        let told = match self.at(&errand.to) {
            Some(node) => node.handle_ask(ask).map_err(Miss::Refused),
            None if is_alive => Err(Miss::Refused(Refusal::Gone(errand.to.clone()))),
            None => Err(Miss::Lost(Some(errand.to.host.clone()))),
        };
        self.send(Message::Told(asker, errand, told));
    }

    fn deliver_lookup(&mut self, client: Client, host: &Address, mut lookup: Lookup) {
        if !self.alive.contains(host) {
            let result = Err(Miss::Lost(Some(host.clone())));
            return self.send(Message::Ended(client, result));
        }
        let local = self.nodes.values().map(|hosted| &hosted.node);
        let local = local.filter(|node| node.peer().host == *host);
        match wallaby_chord::node::take_on(&mut lookup, host, local) {
            Ok(id) => {
                let Some(hosted) = self.nodes.get_mut(&id) else {
                    return;
                };
                let action = hosted.node.handle_lookup(lookup);
                self.act_at(id, client, action);
            }
            Err(refusal) => self.send(Message::Ended(client, Err(Miss::Refused(refusal)))),
        }
    }

    fn act_at(&mut self, id: RingId, client: Client, action: Action) {
        let Action::Confirm(peer, mut lookup) = action else {
            return self.act(client, action);
        };
        let is_there = self.at(&peer).is_some_and(|node| node.can_route());
        if let Some(hosted) = self.nodes.get_mut(&id) {
            hosted.node.handle_confirmed(&peer, is_there, &mut lookup);
            let host = hosted.node.peer().host.clone();
            self.send(Message::Lookup(client, host, *lookup));
        }
    }

    fn act(&mut self, client: Client, action: Action) {
        let message = match action {
            Action::Answer(found) => Message::Ended(client, Ok(*found)),
            Action::Refuse(refusal) => Message::Ended(client, Err(Miss::Refused(refusal))),
            Action::Forward(peer, lookup) => Message::Lookup(client, peer.host, *lookup),
            Action::Copy(peer, copying) => Message::Copying(client, peer.host, *copying),
            Action::Confirm(peer, _) => Message::Ended(client, Err(Miss::Lost(Some(peer.host)))),
        };
        self.send(message);
    }

    fn miss(&mut self, client: Client, peer: &Peer) {
        let miss = match self.alive.contains(&peer.host) {
            true => Miss::Refused(Refusal::Gone(peer.clone())),
            false => Miss::Lost(Some(peer.host.clone())),
        };
        self.send(Message::Ended(client, Err(miss)));
    }

    fn at(&mut self, peer: &Peer) -> Option<&mut Node> {
        let hosted = self.nodes.get_mut(&peer.id)?;
        (hosted.node.peer() == peer).then_some(&mut hosted.node)
    }

    fn end(&mut self, client: Client, result: Result<Found, Miss>) {
        match client {
            Client::Node(asker, errand) => {
                let told = result.map(|found| Told::Found(Box::new(found)));
                self.deliver(Message::Told(asker, *errand, told));
            }
            Client::Search(number) => self.end_search(number, result),
        }
    }

    fn end_search(&mut self, number: u64, result: Result<Found, Miss>) {
        let Some(search) = self.searches.get_mut(&number) else {
            return;
        };
        let next = match &result {
            Ok(_) => Next::Never,
            Err(miss) => search.handle_miss(miss),
        };
        match next {
            Next::AtOnce => self.attempt(number),
            Next::InAMoment => {
                let due = self.now + STEPS / 2 + self.chance.usize(..STEPS as usize) as u64;
                self.post(due, Message::Again(number));
            }
            Next::Never => {
                self.searches.remove(&number);
                self.ended.push((number, result));
            }
        }
    }

    fn attempt(&mut self, number: u64) {
        let starts: Vec<Peer> = self
            .nodes
            .values()
            .map(|hosted| hosted.node.peer().clone())
            .collect();
        let Some(search) = self.searches.get_mut(&number) else {
            return;
        };
        match self.chance.choice(&starts) {
            Some(start) => {
                let lookup = search.attempt(start.id);
                let client = Client::Search(number);
                self.send(Message::Lookup(client, start.host.clone(), lookup));
            }
            None => {
                self.searches.remove(&number);
                let result = Err(Miss::Refused(Refusal::NobodyHere));
                self.ended.push((number, result));
            }
        }
    }
}
