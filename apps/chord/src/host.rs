//! An endpoint that hosts ring nodes: hands them what comes from outside, and carries out what they say.

use crate::id::RingId;
use crate::message::{Ask, Copying, Lookup, Peer, Refusal, Told, Trouble, Wish};
use crate::node::{Action, Config, Errand, Node, Tables, take_on};
use crate::search::Miss;
use crate::service::{Change, hosting, ring};
use crate::store::Key;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::task::JoinSet;
use wallaby::{Address, CallError, Client, Code, Endpoint, Failure, ServeError};

/// How long a question to another node may take.
const ASK_DEADLINE: Duration = Duration::from_secs(2);
/// How often servers of a maintenance call are asked about it, and for how long silence is no failure.
const PING: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));
/// How many nodes of an endpoint do maintenance at a time.
const AT_ONCE: usize = 64;
/// How often a lookup is handed in again after it was found out who is there.
const CONFIRMED: u32 = 4;

/// An endpoint's nodes. One value serves all services: see [`Host::serve`].
#[derive(Debug)]
pub struct Host {
    endpoint: Endpoint,
    address: Address,
    config: Config,
    nodes: Mutex<Nodes>,
    rounds: AtomicU64,
    /// Endpoints that hosted the ring once.
    others: Mutex<Vec<Address>>,
}

#[derive(Debug, Default)]
struct Nodes {
    by_id: BTreeMap<RingId, Hosted>,
    lives: u64,
    /// Errands of nodes that began to leave between rounds.
    waiting: Vec<(Asker, Errand)>,
}

#[derive(Debug)]
struct Hosted {
    node: Node,
    /// A node that comes back at its place is another life: what the former one asked is not its business.
    life: u64,
}

/// Which life of which node asks.
#[derive(Clone, Copy, Debug)]
struct Asker {
    id: RingId,
    life: u64,
}

impl Host {
    /// Serves nodes on an endpoint that listens at this address; none yet.
    ///
    /// # Errors
    ///
    /// If the endpoint serves a ring already.
    pub fn serve(
        endpoint: &Endpoint,
        address: Address,
        config: Config,
    ) -> Result<Arc<Self>, ServeError> {
        let host = Arc::new(Self {
            endpoint: endpoint.clone(),
            address,
            config,
            nodes: Mutex::default(),
            rounds: AtomicU64::new(0),
            others: Mutex::default(),
        });
        endpoint.serve(ring::service(Arc::clone(&host)))?;
        endpoint.serve(hosting::service(Arc::clone(&host)))?;
        Ok(host)
    }

    /// Where it is.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Hosts those of a ring's members that have its address; the ring begins with all of them. They are sorted by place.
    pub fn settle(&self, members: &[Peer]) {
        for peer in members.iter().filter(|peer| peer.host == self.address) {
            self.add(Node::settled(peer.clone(), members, self.config.clone()));
        }
    }

    /// Names endpoints that host nodes of the ring: where nodes that are to join ask if nobody else is known.
    pub fn meet(&self, others: &[Address]) {
        let mut known = self.others.lock().unwrap_or_else(PoisonError::into_inner);
        others.clone_into(&mut known);
    }

    /// Hosts the first node of a ring.
    pub fn create(&self, id: RingId) {
        self.add(Node::create(self.peer(id), self.config.clone()));
    }

    /// Changes the nodes that are hosted here.
    ///
    /// # Errors
    ///
    /// If there is no such node, or, for one that is to join, no ring.
    pub fn change_nodes(&self, change: Change) -> Result<(), Refusal> {
        match change {
            Change::Join(id, at) => self.join(id, at),
            Change::Leave(id) => self.leave(id),
            Change::Crash(id) => {
                let crashed = self.lock().by_id.remove(&id);
                crashed
                    .map(drop)
                    .ok_or_else(|| Refusal::Gone(self.peer(id)))
            }
        }
    }

    /// A round of maintenance of all nodes; over when all that they asked is answered.
    pub async fn round(self: &Arc<Self>) {
        let ids: Vec<RingId> = self.lock().by_id.keys().copied().collect();
        let mut errands = std::mem::take(&mut self.lock().waiting);
        let mut running = JoinSet::new();
        let mut ids = ids.into_iter();
        loop {
            while running.len() < AT_ONCE {
                let next = match errands.pop() {
                    Some(errand) => vec![errand],
                    None => match ids.next() {
                        Some(id) => self.tick(id),
                        None => break,
                    },
                };
                for (asker, errand) in next {
                    running.spawn(Arc::clone(self).run(asker, errand));
                }
            }
            match running.join_next().await {
                // What a task that panicked was about is asked again in a later round.
                Some(ended) => errands.extend(ended.unwrap_or_default()),
                None => break,
            }
        }
        self.rounds.fetch_add(1, Ordering::Relaxed);
    }

    /// Rounds without end. Each begins so long after the one before began, or when that is over.
    pub async fn keep_up(self: Arc<Self>, period: Duration) {
        let mut ticks = tokio::time::interval(period.max(Duration::from_millis(1)));
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.round().await;
        }
    }

    /// What becomes of a lookup that came here.
    pub(crate) async fn act_on_lookup(&self, mut lookup: Lookup) -> Action {
        if let Wish::Get(key) | Wish::Put { key, .. } = &lookup.wish
            && (key.id != lookup.id || *key != Key::new(&key.name))
        {
            return Action::Refuse(Refusal::Misplaced(key.id));
        }
        for _ in 0..CONFIRMED {
            let (id, action) = {
                let mut nodes = self.lock();
                let local = nodes.by_id.values().map(|hosted| &hosted.node);
                let id = match take_on(&mut lookup, &self.address, local) {
                    Ok(id) => id,
                    Err(refusal) => return Action::Refuse(refusal),
                };
                let Some(hosted) = nodes.by_id.get_mut(&id) else {
                    return Action::Refuse(Refusal::NobodyHere);
                };
                (id, hosted.node.handle_lookup(lookup))
            };
            let Action::Confirm(peer, unconfirmed) = action else {
                return action;
            };
            lookup = *unconfirmed;
            let told = self.ask(&peer, Ask::Ping).await;
            if let Some(hosted) = self.lock().by_id.get_mut(&id) {
                let is_there = told.is_ok();
                hosted.node.handle_confirmed(&peer, is_there, &mut lookup);
            }
        }
        Action::Refuse(Refusal::NotReady(lookup.to))
    }

    pub(crate) fn act_on_copying(&self, copying: Copying) -> Action {
        let to = copying.to;
        if copying.key != Key::new(&copying.key.name) {
            return Action::Refuse(Refusal::Misplaced(copying.key.id));
        }
        match self.lock().by_id.get_mut(&to) {
            Some(hosted) => hosted.node.handle_copying(copying),
            None => Action::Refuse(Refusal::Gone(self.peer(to))),
        }
    }

    pub(crate) fn answer(&self, node: RingId, ask: Ask) -> Result<Told, Refusal> {
        match self.lock().by_id.get_mut(&node) {
            Some(hosted) => hosted.node.handle_ask(ask),
            None => Err(Refusal::Gone(self.peer(node))),
        }
    }

    pub(crate) fn tables_behind(&self, behind: Option<RingId>, most: usize) -> Vec<Tables> {
        let start = behind.map_or(Bound::Unbounded, Bound::Excluded);
        let nodes = self.lock();
        let range = nodes.by_id.range((start, Bound::Unbounded));
        range
            .take(most)
            .map(|(_, hosted)| hosted.node.tables())
            .collect()
    }

    fn join(&self, id: RingId, at: Option<Address>) -> Result<(), Refusal> {
        let contact = match at {
            // Any place will do: whoever is nearest before it takes the lookup on.
            Some(host) => Peer { id, host },
            None => self.contact(&self.lock(), id).ok_or(Refusal::NobodyHere)?,
        };
        if self.lock().by_id.contains_key(&id) {
            return Err(Refusal::Taken(id));
        }
        self.add(Node::join(self.peer(id), contact, self.config.clone()));
        Ok(())
    }

    /// A node of the ring that another one can ask for its place: one of here, or at an endpoint that was named.
    fn contact(&self, nodes: &Nodes, id: RingId) -> Option<Peer> {
        let mut local = nodes.by_id.values().map(|hosted| &hosted.node);
        let local = local.find(|node| node.can_route() && node.peer().id != id);
        let elsewhere = || {
            let others = self.others.lock().unwrap_or_else(PoisonError::into_inner);
            let turn = self.rounds.load(Ordering::Relaxed) as usize % others.len().max(1);
            let host = others.get(turn)?.clone();
            Some(Peer { id, host }).filter(|peer| peer.host != self.address)
        };
        local.map(|node| node.peer().clone()).or_else(elsewhere)
    }

    fn leave(&self, id: RingId) -> Result<(), Refusal> {
        let mut nodes = self.lock();
        let gone = || Refusal::Gone(self.peer(id));
        let hosted = nodes.by_id.get_mut(&id).ok_or_else(gone)?;
        let life = hosted.life;
        let errands = hosted.node.leave();
        if hosted.node.is_gone() {
            nodes.by_id.remove(&id);
        }
        let errands = errands
            .into_iter()
            .map(|errand| (Asker { id, life }, errand));
        nodes.waiting.extend(errands);
        Ok(())
    }

    fn peer(&self, id: RingId) -> Peer {
        let host = self.address.clone();
        Peer { id, host }
    }

    fn add(&self, node: Node) {
        let mut nodes = self.lock();
        nodes.lives += 1;
        let life = nodes.lives;
        nodes.by_id.insert(node.peer().id, Hosted { node, life });
    }

    fn lock(&self) -> MutexGuard<'_, Nodes> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tick(&self, id: RingId) -> Vec<(Asker, Errand)> {
        let mut nodes = self.lock();
        let is_seeking = nodes.by_id.get(&id).is_some_and(|at| at.node.is_seeking());
        let contact = is_seeking.then(|| self.contact(&nodes, id)).flatten();
        let Some(hosted) = nodes.by_id.get_mut(&id) else {
            return Vec::new();
        };
        let life = hosted.life;
        if let Some(contact) = contact {
            hosted.node.add_contact(contact);
        }
        let errands = hosted.node.tick().into_iter();
        errands.map(|errand| (Asker { id, life }, errand)).collect()
    }

    /// Runs an errand; those that follow from it.
    async fn run(self: Arc<Self>, asker: Asker, errand: Errand) -> Vec<(Asker, Errand)> {
        let told = match &errand.ask {
            Ask::Find { lookup } => self.find(&errand.to, lookup).await,
            ask => self.ask(&errand.to, ask.clone()).await,
        };
        let mut nodes = self.lock();
        let hosted = nodes.by_id.get_mut(&asker.id);
        let Some(hosted) = hosted.filter(|hosted| hosted.life == asker.life) else {
            return Vec::new();
        };
        let errands = hosted.node.handle_told(&errand, told);
        if hosted.node.is_gone() {
            nodes.by_id.remove(&asker.id);
        }
        errands.into_iter().map(|errand| (asker, errand)).collect()
    }

    async fn ask(&self, peer: &Peer, ask: Ask) -> Result<Told, Trouble> {
        let told = ring::within(self.client(&peer.host))
            .ask(peer.id, ask)
            .await;
        match told {
            Ok(told) => told.map_err(Trouble::Refused),
            Err(_) => Err(Trouble::Lost),
        }
    }

    async fn find(&self, start: &Peer, lookup: &Lookup) -> Result<Told, Trouble> {
        debug_assert!(matches!(lookup.wish, Wish::Owner));
        let found = ring::within(self.client(&start.host))
            .find(lookup.clone())
            .await;
        match found {
            Ok(found) => found
                .map(|found| Told::Found(Box::new(found)))
                .map_err(Trouble::Refused),
            Err(_) => Err(Trouble::Lost),
        }
    }

    fn client(&self, server: &Address) -> Client {
        Client::new(&self.endpoint, server)
            .deadline(ASK_DEADLINE)
            .ping(PING.0, PING.1)
    }
}

/// What a failed call says of who does not answer.
pub fn miss_of(error: &CallError) -> Miss {
    let is_silent = match error {
        CallError::Status(status) => status.code() == Code::Unavailable,
        CallError::Failed(failure) => matches!(failure, Failure::NotSent { .. } | Failure::Lost(_)),
        _ => false,
    };
    Miss::Lost(error.server().filter(|_| is_silent).cloned())
}
