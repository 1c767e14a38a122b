//! An endpoint that hosts ring nodes: hands them what comes from outside, and carries out what they say.

use crate::id::RingId;
use crate::message::{Ask, Copying, Lookup, Miss, Peer, Refusal, Told, Wish};
use crate::node::{Action, Config, Errand, Node, Tables, take_on};
use crate::service::ring;
use crate::store::Key;
use std::collections::BTreeMap;
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

/// An endpoint's nodes: see [`Host::serve`].
#[derive(Debug)]
pub struct Host {
    endpoint: Endpoint,
    address: Address,
    config: Config,
    nodes: Mutex<Nodes>,
}

#[derive(Debug, Default)]
struct Nodes {
    by_id: BTreeMap<RingId, Hosted>,
    incarnations: u64,
}

#[derive(Debug)]
struct Hosted {
    node: Node,
    /// A node that comes back at its place is another incarnation: what the former one asked is not its business.
    incarnation: u64,
}

/// Which incarnation of which node asks.
#[derive(Clone, Copy, Debug)]
struct Asker {
    id: RingId,
    incarnation: u64,
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
        });
        endpoint.serve(ring::service(Arc::clone(&host)))?;
        Ok(host)
    }

    /// Where it is.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// What its nodes know, in the order of their places.
    pub fn tables(&self) -> Vec<Tables> {
        let nodes = self.lock();
        let tables = nodes.by_id.values().map(|hosted| hosted.node.tables());
        tables.collect()
    }

    /// Hosts those of a ring's members that have its address; the ring begins with all of them. They are sorted by place.
    pub fn settle(&self, members: &[Peer]) {
        for peer in members.iter().filter(|peer| peer.host == self.address) {
            self.add(Node::settled(peer.clone(), members, self.config.clone()));
        }
    }

    /// Hosts a node that joins the ring of another endpoint, or the one that this is part of. It takes rounds.
    ///
    /// # Errors
    ///
    /// If it is hosted here already, or there is no ring.
    pub fn join(&self, id: RingId, at: Option<Address>) -> Result<(), Refusal> {
        let contact = match at {
            // Any place will do: whoever is nearest before it takes the lookup on.
            Some(host) => Peer { id, host },
            None => contact(&self.lock(), id).ok_or(Refusal::NobodyHere)?,
        };
        if self.lock().by_id.contains_key(&id) {
            return Err(Refusal::Taken(id));
        }
        self.add(Node::join(self.peer(id), contact, self.config.clone()));
        Ok(())
    }

    /// A node leaves in good order, which takes rounds.
    ///
    /// # Errors
    ///
    /// If it is not hosted here.
    pub fn leave(&self, id: RingId) -> Result<(), Refusal> {
        let mut nodes = self.lock();
        let hosted = nodes.by_id.get_mut(&id);
        let hosted = hosted.ok_or_else(|| Refusal::Gone(self.peer(id)))?;
        hosted.node.leave();
        nodes.bury(id);
        Ok(())
    }

    /// A node is gone at once, with all that it keeps.
    ///
    /// # Errors
    ///
    /// If it is not hosted here.
    pub fn crash(&self, id: RingId) -> Result<(), Refusal> {
        let crashed = self.lock().by_id.remove(&id).map(drop);
        crashed.ok_or_else(|| Refusal::Gone(self.peer(id)))
    }

    /// A round of maintenance of all nodes; over when all that they asked is answered.
    pub async fn round(self: &Arc<Self>) {
        let ids: Vec<RingId> = self.lock().by_id.keys().copied().collect();
        let mut ids = ids.into_iter();
        let mut errands = Vec::new();
        let mut running = JoinSet::new();
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

    fn peer(&self, id: RingId) -> Peer {
        let host = self.address.clone();
        Peer { id, host }
    }

    fn add(&self, node: Node) {
        let mut nodes = self.lock();
        nodes.incarnations += 1;
        let incarnation = nodes.incarnations;
        nodes
            .by_id
            .insert(node.peer().id, Hosted { node, incarnation });
    }

    fn lock(&self) -> MutexGuard<'_, Nodes> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tick(&self, id: RingId) -> Vec<(Asker, Errand)> {
        let mut nodes = self.lock();
        let contact = contact(&nodes, id);
        let Some(Hosted { node, incarnation }) = nodes.by_id.get_mut(&id) else {
            return Vec::new();
        };
        // The one that it was told to ask may be gone.
        if let Some(contact) = contact.filter(|_| node.is_seeking()) {
            node.add_contact(contact);
        }
        let asker = Asker {
            id,
            incarnation: *incarnation,
        };
        let errands = node.tick().into_iter();
        errands.map(|errand| (asker, errand)).collect()
    }

    /// Runs an errand; those that follow from it.
    async fn run(self: Arc<Self>, asker: Asker, errand: Errand) -> Vec<(Asker, Errand)> {
        let told = match &errand.ask {
            Ask::Find { lookup } => {
                let lookup = lookup.as_ref().clone();
                let found = ring::within(self.client(&errand.to.host)).find(lookup);
                let found = answered(found.await);
                found.map(|found| Told::Found(Box::new(found)))
            }
            ask => self.ask(&errand.to, ask.clone()).await,
        };
        let mut nodes = self.lock();
        let hosted = nodes.by_id.get_mut(&asker.id);
        let Some(hosted) = hosted.filter(|hosted| hosted.incarnation == asker.incarnation) else {
            return Vec::new();
        };
        let errands = hosted.node.handle_told(&errand, told);
        nodes.bury(asker.id);
        errands.into_iter().map(|errand| (asker, errand)).collect()
    }

    async fn ask(&self, peer: &Peer, ask: Ask) -> Result<Told, Miss> {
        let server = ring::within(self.client(&peer.host));
        answered(server.ask(peer.id, ask).await)
    }

    fn client(&self, server: &Address) -> Client {
        Client::new(&self.endpoint, server)
            .deadline(ASK_DEADLINE)
            .ping(PING.0, PING.1)
    }
}

impl Nodes {
    /// A node that has left is dropped.
    fn bury(&mut self, id: RingId) {
        if self.by_id.get(&id).is_some_and(|at| at.node.is_gone()) {
            self.by_id.remove(&id);
        }
    }
}

/// A node of here that another one can ask for its place.
fn contact(nodes: &Nodes, id: RingId) -> Option<Peer> {
    let mut local = nodes.by_id.values().map(|hosted| &hosted.node);
    let contact = local.find(|node| node.can_route() && node.peer().id != id)?;
    Some(contact.peer().clone())
}

/// What a call brought, in the words of the ring.
pub(crate) fn answered<T>(result: Result<Result<T, Refusal>, CallError>) -> Result<T, Miss> {
    match result {
        Ok(answer) => answer.map_err(Miss::Refused),
        Err(error) => Err(miss_of(&error)),
    }
}

/// What a failed call says of who does not answer.
pub(crate) fn miss_of(error: &CallError) -> Miss {
    let is_silent = match error {
        CallError::Status(status) => status.code() == Code::Unavailable,
        CallError::Failed(failure) => matches!(failure, Failure::NotSent { .. } | Failure::Lost(_)),
        _ => false,
    };
    Miss::Lost(error.server().filter(|_| is_silent).cloned())
}
