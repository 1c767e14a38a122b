//! Chain replication (van Renesse and Schneider, OSDI 2004): counters that outlive the servers that keep them.
//!
//! ```text
//!   client ──add──▶ head ──update──▶ middle ──update──▶ tail ──▶ client
//!   client ────────────────read────────────────────────▶ tail ──▶ client
//! ```
//!
//! An addition is *one call*: it goes to the head, each replica does it and forwards it, and the tail answers the client
//! straight. What the tail has done, all have done; so reads ask the tail alone, and see what was acknowledged and
//! nothing else.
//!
//! When a replica crashes, whoever notices tells the *master*, which makes a new chain of those that live and counts it (its
//! *epoch*). From head to tail, each replica of the new chain first gets from the one before it what it lacks: updates
//! that were in flight arrive so, whichever replica took them down. Their clients ask again. Each update carries its client's
//! number, all replicas remember the last one of each client, and so none is done twice.
//!
//! As in the paper, servers fail by stopping: one that the master takes for dead is assumed to answer nobody any more, and the
//! master itself, here one small service, would be replicated in earnest.
//!
//! `cargo run --example chain_replication` runs a chain of four, crashes one after the other, and loses nothing.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use wallaby::{Address, CallError, Client, Code, Endpoint, One, Request, Status};

/// How many updates a replica keeps for the one behind it. Who lacks more gets the whole state.
const HISTORY: usize = 1024;
/// How many clients are remembered. Beyond, new ones are refused.
const CLIENTS: usize = 1024;
/// How long the master waits for a replica.
const PATIENCE: Duration = Duration::from_millis(500);

/// Who replicates, from head to tail.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Chain {
    epoch: u64,
    replicas: Vec<Address>,
}

/// Adds to a counter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Addition {
    /// Who, and that one's how manieth: an addition that comes again is not done again.
    client: u64,
    number: u64,
    counter: String,
    amount: i64,
}

/// An addition with its place in the order of all.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Update {
    epoch: u64,
    sequence: u64,
    addition: Addition,
}

/// Why a replica does not do what it is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Refused {
    /// Another chain is in force here, or soon: ask the master.
    Epoch,
    /// The client has made a later addition already.
    Old,
    /// So many clients are remembered already.
    TooManyClients { limit: usize },
}

/// What a replica lacked.
#[derive(Debug, Serialize, Deserialize)]
enum Missing {
    Updates(Vec<Update>),
    All(Counters),
}

/// What is replicated: the same updates in the same order make the same of it everywhere.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Counters {
    /// The last update that was done.
    done: u64,
    values: BTreeMap<String, i64>,
    /// The last addition of each client.
    clients: BTreeMap<u64, Done>,
}

/// An addition that was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Done {
    /// The client's number of it.
    number: u64,
    /// Its place in the order of all.
    sequence: u64,
    /// What it made of the counter.
    value: i64,
}

#[wallaby::service(package = "example")]
trait Replica {
    /// At the head: an addition, and what it makes of the counter.
    async fn add(epoch: u64, addition: Addition) -> Result<i64, Refused>;
    /// Behind it: the same with its place.
    async fn update(update: Update) -> Result<i64, Refused>;
    /// At the tail: a counter.
    async fn read(epoch: u64, counter: String) -> Result<i64, Refused>;
    /// From the replica behind: what comes after an update.
    async fn missing(epoch: u64, after: u64) -> Result<Missing, Refused>;
    /// From the master: a chain. Answered when this replica has all that the one before it has.
    async fn install(chain: Chain) -> ();
    /// From the master: which chain is in force here.
    async fn epoch() -> u64;
}

/// One server of the chain.
struct Server {
    address: Address,
    state: Mutex<State>,
}

struct State {
    chain: Chain,
    /// Has what the replica before it had when this chain began.
    is_ready: bool,
    counters: Counters,
    /// The latest updates, oldest first.
    history: VecDeque<Update>,
}

#[wallaby::serve]
impl Replica for Server {
    async fn add(
        &self,
        request: Request<One<Result<i64, Refused>>>,
        epoch: u64,
        addition: Addition,
    ) -> Result<(), Status> {
        let update = self.state().order(epoch, addition, &self.address);
        match update {
            Ok(update) => self.pass_on(request, update).await,
            Err(refused) => Ok(request.respond(Err(refused)).await?),
        }
    }

    async fn update(
        &self,
        request: Request<One<Result<i64, Refused>>>,
        update: Update,
    ) -> Result<(), Status> {
        let mut fits = self.state().follow(&update);
        if fits == Ok(false) {
            // One before it was overtaken, or its message was lost with a connection.
            self.catch_up(&request).await?;
            fits = self.state().follow(&update);
        }
        match fits {
            Ok(true) => self.pass_on(request, update).await,
            Ok(false) => Err(Status::new(
                Code::Unavailable,
                "an update before it is missing",
            )),
            Err(refused) => Ok(request.respond(Err(refused)).await?),
        }
    }

    async fn read(&self, epoch: u64, counter: String) -> Result<i64, Refused> {
        let state = self.state();
        state.check(epoch)?;
        match state.chain.replicas.last() == Some(&self.address) {
            true => Ok(state.counters.values.get(&counter).copied().unwrap_or(0)),
            false => Err(Refused::Epoch),
        }
    }

    async fn missing(&self, epoch: u64, after: u64) -> Result<Missing, Refused> {
        let state = self.state();
        state.check(epoch)?;
        Ok(state.missing(after))
    }

    async fn install(&self, request: Request<One<()>>, chain: Chain) -> Result<(), Status> {
        {
            let mut state = self.state();
            if chain.epoch < state.chain.epoch {
                return Err(Status::new(
                    Code::FailedPrecondition,
                    "a later chain is in force",
                ));
            }
            (state.chain, state.is_ready) = (chain, false);
        }
        self.catch_up(&request).await?;
        self.state().is_ready = true;
        Ok(request.respond(()).await?)
    }

    async fn epoch(&self) -> u64 {
        self.state().chain.epoch
    }
}

impl Server {
    /// Serves an endpoint, without a chain yet.
    fn serve(endpoint: &Endpoint) -> Result<Address, Error> {
        let address = endpoint.address().ok_or("a replica must listen")?.clone();
        let chain = Chain {
            epoch: 0,
            replicas: Vec::new(),
        };
        let state = State {
            chain,
            is_ready: false,
            counters: Counters::default(),
            history: VecDeque::new(),
        };
        let server = Arc::new(Self {
            address: address.clone(),
            state: Mutex::new(state),
        });
        endpoint.serve(replica::service(server))?;
        Ok(address)
    }

    /// Forwards what is done here, or answers if this is the tail.
    async fn pass_on(
        &self,
        request: Request<One<Result<i64, Refused>>>,
        update: Update,
    ) -> Result<(), Status> {
        let (next, answer) = {
            let state = self.state();
            let next = state.chain.after(&self.address).cloned();
            (next, state.counters.answer(&update.addition))
        };
        match next {
            Some(next) => request.forward(next, replica::update(update)).await?,
            None => request.respond(answer).await?,
        }
        Ok(())
    }

    /// Gets what the replica before this one has and this one has not.
    async fn catch_up<A>(&self, request: &Request<A>) -> Result<(), Status> {
        let (before, epoch, done) = {
            let state = self.state();
            let before = state.chain.before(&self.address).cloned();
            (before, state.chain.epoch, state.counters.done)
        };
        let Some(before) = before else {
            return Ok(());
        };
        let client = request.call().deadline(PATIENCE).at(before);
        let missing = replica::within(client).missing(epoch, done).await;
        let missing = missing.map_err(|error| Status::new(Code::Unavailable, error.to_string()))?;
        let missing = missing
            .map_err(|_| Status::new(Code::Unavailable, "the replica before has another chain"))?;
        self.state().fill(missing);
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn check(&self, epoch: u64) -> Result<(), Refused> {
        match epoch == self.chain.epoch && self.is_ready {
            true => Ok(()),
            false => Err(Refused::Epoch),
        }
    }

    /// At the head: gives an addition its place and does it. One that was done already gets no second place, but goes
    /// down the chain again: perhaps the tail does not have it.
    fn order(&mut self, epoch: u64, addition: Addition, me: &Address) -> Result<Update, Refused> {
        self.check(epoch)?;
        if self.chain.replicas.first() != Some(me) {
            return Err(Refused::Epoch);
        }
        let known = self.counters.clients.get(&addition.client);
        let sequence = match known {
            Some(done) if done.number > addition.number => return Err(Refused::Old),
            Some(done) if done.number == addition.number => done.sequence,
            None if self.counters.clients.len() >= CLIENTS => {
                return Err(Refused::TooManyClients { limit: CLIENTS });
            }
            _ => self.counters.done + 1,
        };
        let update = Update {
            epoch,
            sequence,
            addition,
        };
        if sequence > self.counters.done {
            self.carry_out(update.clone());
        }
        Ok(update)
    }

    /// Behind the head: does an update, unless it is done; `false` if one before it is missing.
    fn follow(&mut self, update: &Update) -> Result<bool, Refused> {
        self.check(update.epoch)?;
        if update.sequence == self.counters.done + 1 {
            self.carry_out(update.clone());
        }
        Ok(update.sequence <= self.counters.done)
    }

    fn carry_out(&mut self, update: Update) {
        self.counters.carry_out(&update);
        self.history.push_back(update);
        if self.history.len() > HISTORY {
            self.history.pop_front();
        }
    }

    fn missing(&self, after: u64) -> Missing {
        let is_kept = |update: &Update| update.sequence <= after.saturating_add(1);
        if after >= self.counters.done || self.history.front().is_some_and(is_kept) {
            let updates = self.history.iter();
            let missing = updates.filter(|update| update.sequence > after);
            return Missing::Updates(missing.cloned().collect());
        }
        Missing::All(self.counters.clone())
    }

    fn fill(&mut self, missing: Missing) {
        match missing {
            Missing::Updates(updates) => {
                for update in updates {
                    if update.sequence == self.counters.done + 1 {
                        self.carry_out(update);
                    }
                }
            }
            Missing::All(counters) if counters.done > self.counters.done => {
                self.counters = counters;
                self.history.clear();
            }
            Missing::All(_) => {}
        }
    }
}

impl Counters {
    fn carry_out(&mut self, update: &Update) {
        let addition = &update.addition;
        let value = self.values.entry(addition.counter.clone()).or_default();
        *value = value.saturating_add(addition.amount);
        let done = Done {
            number: addition.number,
            sequence: update.sequence,
            value: *value,
        };
        self.clients.insert(addition.client, done);
        self.done = update.sequence;
    }

    /// What an addition that was done made of its counter.
    fn answer(&self, addition: &Addition) -> Result<i64, Refused> {
        match self.clients.get(&addition.client) {
            Some(done) if done.number == addition.number => Ok(done.value),
            _ => Err(Refused::Old),
        }
    }
}

impl Chain {
    fn after(&self, replica: &Address) -> Option<&Address> {
        let at = self.replicas.iter().position(|other| other == replica)?;
        self.replicas.get(at + 1)
    }

    fn before(&self, replica: &Address) -> Option<&Address> {
        let at = self.replicas.iter().position(|other| other == replica)?;
        self.replicas.get(at.checked_sub(1)?)
    }
}

#[wallaby::service(package = "example")]
trait Master {
    /// The chain in force.
    async fn chain() -> Chain;
    /// Somebody got no answer from a replica: the chain in force when that was looked into.
    async fn suspect(replica: Address) -> Chain;
}

/// Decides who is in the chain.
struct Overseer {
    endpoint: Endpoint,
    chain: tokio::sync::Mutex<Chain>,
}

#[wallaby::serve]
impl Master for Overseer {
    async fn chain(&self) -> Chain {
        self.chain.lock().await.clone()
    }

    async fn suspect(&self, replica: Address) -> Result<Chain, Status> {
        let mut chain = self.chain.lock().await;
        if chain.replicas.contains(&replica) && !self.lives(&replica).await {
            *chain = self.without(chain.clone(), &replica).await?;
        }
        Ok(chain.clone())
    }
}

impl Overseer {
    /// Serves an endpoint, and makes a chain of these replicas.
    async fn serve(endpoint: &Endpoint, replicas: Vec<Address>) -> Result<Address, Error> {
        let address = endpoint.address().ok_or("the master must listen")?.clone();
        let nobody = Chain { epoch: 0, replicas };
        let overseer = Self {
            endpoint: endpoint.clone(),
            chain: tokio::sync::Mutex::new(nobody.clone()),
        };
        *overseer.chain.lock().await = overseer.without(nobody, &address).await?;
        // Whoever gives up waiting leaves no chain behind that only some replicas have.
        endpoint.serve(master::service(Arc::new(overseer)).shielded())?;
        Ok(address)
    }

    async fn lives(&self, replica: &Address) -> bool {
        replica::within(self.client(replica)).epoch().await.is_ok()
    }

    /// The next chain, without a replica and without any other that does not answer; in force when this returns.
    async fn without(&self, mut chain: Chain, gone: &Address) -> Result<Chain, Status> {
        let mut gone = gone.clone();
        loop {
            chain.replicas.retain(|replica| *replica != gone);
            chain.epoch += 1;
            match self.install(&chain).await {
                None if chain.replicas.is_empty() => {
                    return Err(Status::new(Code::DataLoss, "no replica is left"));
                }
                None => return Ok(chain),
                Some(failed) => gone = failed,
            }
        }
    }

    /// From head to tail, so that what one has in this chain the next one gets. Who does not answer?
    async fn install(&self, chain: &Chain) -> Option<Address> {
        for replica in &chain.replicas {
            let install = replica::within(self.client(replica)).install(chain.clone());
            if install.await.is_err() {
                // The one before it may be the one that failed: then the next attempt finds that out.
                return Some(match chain.before(replica) {
                    Some(before) if !self.lives(before).await => before.clone(),
                    _ => replica.clone(),
                });
            }
        }
        None
    }

    fn client(&self, replica: &Address) -> Client {
        Client::new(&self.endpoint, replica).deadline(2 * PATIENCE)
    }
}

/// Adds and reads. One addition at a time: so a number says which ones are done.
struct Adder {
    endpoint: Endpoint,
    master: Address,
    chain: Chain,
    id: u64,
    number: u64,
}

impl Adder {
    async fn new(endpoint: &Endpoint, master: &Address, id: u64) -> Result<Self, Error> {
        Ok(Self {
            chain: master::at(endpoint, master).chain().await?,
            endpoint: endpoint.clone(),
            master: master.clone(),
            id,
            number: 0,
        })
    }

    /// Adds to a counter, once, whatever crashes; what that made of it.
    async fn add(&mut self, counter: &str, amount: i64) -> Result<i64, Error> {
        self.number += 1;
        let addition = Addition {
            client: self.id,
            number: self.number,
            counter: counter.to_owned(),
            amount,
        };
        for attempt in 0..Self::ATTEMPTS {
            let head = self.chain.replicas.first().ok_or("no replica is left")?;
            let client = self.client(head);
            let added = replica::within(client).add(self.chain.epoch, addition.clone());
            match added.await {
                Ok(Ok(value)) => return Ok(value),
                Ok(Err(Refused::Epoch)) => self.look_again(attempt).await?,
                Ok(Err(refused)) => {
                    return Err(format!("the addition was refused: {refused:?}").into());
                }
                Err(error) => self.report(&error).await?,
            }
        }
        Err("the chain did not come to rest".into())
    }

    /// A counter.
    async fn read(&mut self, counter: &str) -> Result<i64, Error> {
        for attempt in 0..Self::ATTEMPTS {
            let tail = self.chain.replicas.last().ok_or("no replica is left")?;
            let read =
                replica::within(self.client(tail)).read(self.chain.epoch, counter.to_owned());
            match read.await {
                Ok(Ok(value)) => return Ok(value),
                Ok(Err(_)) => self.look_again(attempt).await?,
                Err(error) => self.report(&error).await?,
            }
        }
        Err("the chain did not come to rest".into())
    }

    const ATTEMPTS: u32 = 100;

    fn client(&self, replica: &Address) -> Client {
        Client::new(&self.endpoint, replica)
            .deadline(4 * PATIENCE)
            .ping(PATIENCE / 10, PATIENCE)
    }

    /// A chain is being installed, or was.
    async fn look_again(&mut self, attempt: u32) -> Result<(), Error> {
        if attempt > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        self.chain = master::at(&self.endpoint, &self.master).chain().await?;
        Ok(())
    }

    /// Tells the master who did not answer: the error knows, wherever in the chain that was; or all are to be looked at.
    async fn report(&mut self, error: &CallError) -> Result<(), Error> {
        let suspects = match error.server() {
            Some(silent) => vec![silent.clone()],
            None => self.chain.replicas.clone(),
        };
        for suspect in suspects {
            let looked_into = master::at(&self.endpoint, &self.master).suspect(suspect);
            self.chain = looked_into.await?;
        }
        Ok(())
    }
}

type Error = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let mut servers = Vec::new();
    let mut replicas = Vec::new();
    for _ in 0..4 {
        let endpoint = Endpoint::bind("tcp://127.0.0.1:0").await?;
        replicas.push(Server::serve(&endpoint)?);
        servers.push(endpoint);
    }
    let overseer = Endpoint::bind("tcp://127.0.0.1:0").await?;
    let master = Overseer::serve(&overseer, replicas).await?;
    let endpoint = Endpoint::bind("tcp://127.0.0.1:0").await?;
    let mut client = Adder::new(&endpoint, &master, 1).await?;
    for (crashing, at) in [
        ("nobody", None),
        ("the head", Some(0)),
        ("a middle", Some(1)),
        ("the tail", Some(1)),
    ] {
        if let Some(at) = at {
            // Whoever is there now: what runs in it stops, and nobody is told.
            servers.remove(at).kill();
        }
        for _ in 0..100 {
            client.add("visits", 1).await?;
        }
        let visits = client.read("visits").await?;
        let left = client.chain.replicas.len();
        println!(
            "{crashing:9} has crashed: {visits} visits, {left} replicas, epoch {}",
            client.chain.epoch
        );
    }
    overseer.close();
    Ok(())
}
