//! Faults for a ring of processes, and books about what its clients were told.
//!
//! Faults keep to what copies promise: after a crash, of up to r - 1 nodes in a row or of a process with all its nodes, no
//! other crash follows until every process has done [`REPAIR`] rounds of maintenance. Joins and leaves go on all the time. So
//! every value that was acknowledged must be there in the end.

use crate::census::problems;
use crate::chance::Chance;
use crate::client::{Client, Form};
use crate::id::RingId;
use crate::message::Peer;
use crate::node::{Config, Tables};
use crate::process::{Processes, client_endpoint};
use crate::service::{Change, hosting};
use anyhow::Context;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};
use wallaby::{Address, Endpoint};

/// Rounds in which a ring puts a crash right: those that lost a neighbour find out, learn the next one, and copies are
/// compared twice.
pub const REPAIR: u64 = 24;

/// What is done to a ring.
#[derive(Debug)]
pub struct Faults {
    processes: Processes,
    endpoint: Endpoint,
    chance: Chance,
    /// The nodes that should be there.
    members: BTreeMap<RingId, Address>,
    /// How many there were at the beginning.
    usual: usize,
    /// Nodes that are no more; they may come back.
    gone: Vec<RingId>,
    /// Where processes are now, for clients.
    hosts: Arc<RwLock<Vec<Address>>>,
    /// The rounds that processes had done when the latest crash came.
    crashed_at: Option<BTreeMap<Address, u64>>,
    number: u64,
    /// Nodes that have joined.
    pub joins: u64,
    /// Nodes that have left.
    pub leaves: u64,
    /// Nodes that have crashed alone or in a row.
    pub crashes: u64,
    /// Processes that were killed.
    pub kills: u64,
}

/// What clients were told.
#[derive(Debug)]
pub struct Books {
    keys: Vec<Mutex<Key>>,
    tally: Mutex<Tally>,
}

/// What is known of a key. Its values are numbers that count up.
#[derive(Debug, Default)]
struct Key {
    /// The last value that was sent.
    sent: u64,
    /// The last value that was acknowledged.
    acknowledged: u64,
    /// A put is under way: there is one at a time, so that it is known which one is the latest.
    busy: bool,
}

/// Sums.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Gets that were answered.
    pub gets: u64,
    /// Puts that were acknowledged.
    pub puts: u64,
    /// Lookups that were not, in all their attempts.
    pub failed: u64,
    /// Lookups that needed more than one attempt.
    pub retried: u64,
    /// Answers that cannot be.
    pub wrong: Vec<String>,
    /// How many lookups took how many hops.
    pub hops: Vec<u64>,
}

impl Faults {
    /// For a ring that has these members.
    ///
    /// # Errors
    ///
    /// If there can be no client.
    pub async fn new(
        processes: Processes,
        members: Vec<Peer>,
        chance: Chance,
    ) -> anyhow::Result<Self> {
        let hosts = processes.hosts();
        Ok(Self {
            endpoint: client_endpoint(&hosts, Duration::ZERO).await?,
            processes,
            chance,
            usual: members.len(),
            number: members.len() as u64,
            members: members
                .into_iter()
                .map(|peer| (peer.id, peer.host))
                .collect(),
            gone: Vec::new(),
            hosts: Arc::new(RwLock::new(hosts)),
            crashed_at: None,
            joins: 0,
            leaves: 0,
            crashes: 0,
            kills: 0,
        })
    }

    /// A client of the ring, as it is now.
    ///
    /// # Errors
    ///
    /// If it cannot have an endpoint.
    pub async fn client(&self, seed: u64) -> anyhow::Result<Client> {
        Ok(Client::new(
            self.endpoint.clone(),
            &self.processes.hosts(),
            seed,
        ))
    }

    /// Where processes are: clients learn of new ones here.
    pub fn hosts(&self) -> Arc<RwLock<Vec<Address>>> {
        Arc::clone(&self.hosts)
    }

    /// How many nodes there should be.
    pub fn nodes(&self) -> usize {
        self.members.len()
    }

    /// Does something to the ring: a join, a leave, or, if it has put the latest one right, a crash.
    ///
    /// # Errors
    ///
    /// If a process does not answer, or none can be started.
    pub async fn change(&mut self) -> anyhow::Result<()> {
        let few = self.members.len() * 4 < self.usual * 3;
        match self.chance.below(8) {
            0 if !few && self.is_repaired().await? => self.crash_row().await,
            1 if !few && self.is_repaired().await? => self.kill().await,
            2 | 3 if !few => self.leave().await,
            _ if self.members.len() * 4 < self.usual * 5 => self.join().await,
            _ => self.leave().await,
        }
    }

    /// Waits until it is one ring again, and how long that took; `None` if it does not become one.
    ///
    /// # Errors
    ///
    /// If a process does not answer.
    pub async fn wait_until_healed(&mut self) -> anyhow::Result<Option<Duration>> {
        const ROUNDS: u64 = 200;
        let begun = Instant::now();
        let first = self.rounds().await?;
        loop {
            let tables = self.tables().await?;
            // A node that came back while its former life was leaving was refused; whoever is there must have its place.
            let is_whole = problems(&tables).is_empty() && tables.iter().all(|node| node.serving);
            if is_whole {
                return Ok(Some(begun.elapsed()));
            }
            let now = self.rounds().await?;
            let waited = now
                .iter()
                .map(|(host, rounds)| rounds.saturating_sub(first.get(host).copied().unwrap_or(0)));
            if waited.min().unwrap_or(u64::MAX) > ROUNDS {
                return Ok(None);
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Ends all processes.
    pub async fn end(self) {
        self.processes.end().await;
    }

    async fn join(&mut self) -> anyhow::Result<()> {
        let back = self.gone.len() > 8 && self.chance.below(2) == 0;
        let id = match back.then(|| self.chance.below(self.gone.len())) {
            Some(at) => self.gone.swap_remove(at),
            None => {
                self.number += 1;
                RingId::of_node(!0, self.number)
            }
        };
        if self.members.contains_key(&id) {
            return Ok(());
        }
        let hosts = self.processes.hosts();
        let host = self.chance.one_of(&hosts).context("no process runs")?;
        let contact = self.chance.one_of(&hosts).cloned();
        self.tell(host, Change::Join(id, contact)).await?;
        self.members.insert(id, host.clone());
        self.joins += 1;
        Ok(())
    }

    async fn leave(&mut self) -> anyhow::Result<()> {
        let ids: Vec<RingId> = self.members.keys().copied().collect();
        if let Some(id) = self.chance.one_of(&ids)
            && let Some(host) = self.members.remove(id)
        {
            self.tell(&host, Change::Leave(*id)).await?;
            self.gone.push(*id);
            self.leaves += 1;
        }
        Ok(())
    }

    async fn crash_row(&mut self) -> anyhow::Result<()> {
        let most = Config::default().replicas - 1;
        let row = self.chance.below(most) + 1;
        let start = self.chance.below(self.members.len());
        let ids: Vec<RingId> = self.members.keys().copied().collect();
        self.crashed_at = Some(self.rounds().await?);
        for id in ids.iter().cycle().skip(start).take(row.min(ids.len())) {
            if let Some(host) = self.members.remove(id) {
                self.tell(&host, Change::Crash(*id)).await?;
                self.gone.push(*id);
                self.crashes += 1;
            }
        }
        Ok(())
    }

    async fn kill(&mut self) -> anyhow::Result<()> {
        let hosts = self.processes.hosts();
        if hosts.len() < 3 {
            return self.join().await;
        }
        let host = self.chance.one_of(&hosts).context("no process runs")?;
        self.processes.kill(host).await?;
        self.kills += 1;
        self.members.retain(|id, at| {
            if at == host {
                self.gone.push(*id);
            }
            at != host
        });
        self.processes.add().await?;
        let hosts = self.processes.hosts();
        hosts.clone_into(&mut self.hosts.write().unwrap_or_else(PoisonError::into_inner));
        self.crashed_at = Some(self.rounds().await?);
        Ok(())
    }

    /// Whether all processes have done enough rounds since the latest crash.
    async fn is_repaired(&mut self) -> anyhow::Result<bool> {
        let Some(crashed_at) = &self.crashed_at else {
            return Ok(true);
        };
        let now = self.rounds().await?;
        let is_repaired = now.iter().all(|(host, rounds)| {
            let then = crashed_at.get(host).copied().unwrap_or(0);
            rounds.saturating_sub(then) >= REPAIR
        });
        if is_repaired {
            self.crashed_at = None;
        }
        Ok(is_repaired)
    }

    async fn rounds(&self) -> anyhow::Result<BTreeMap<Address, u64>> {
        let mut rounds = BTreeMap::new();
        for host in self.processes.hosts() {
            let work = hosting::at(&self.endpoint, &host).work().await?;
            rounds.insert(host, work.rounds);
        }
        Ok(rounds)
    }

    async fn tables(&self) -> anyhow::Result<Vec<Tables>> {
        const MOST: u32 = 32;
        let mut all: Vec<Tables> = Vec::new();
        for host in self.processes.hosts() {
            let mut behind = None;
            loop {
                let at = hosting::at(&self.endpoint, &host);
                let tables = at.tables(behind, MOST).await?;
                let Some(last) = tables.last() else {
                    break;
                };
                behind = Some(last.peer.id);
                all.extend(tables);
            }
        }
        Ok(all)
    }

    async fn tell(&self, host: &Address, change: Change) -> anyhow::Result<()> {
        let told = hosting::at(&self.endpoint, host).change(vec![change]).await;
        // A node may be gone already, if it could not join.
        told.with_context(|| format!("{host} does not answer"))
            .map(drop)
    }
}

impl Books {
    /// About so many keys.
    pub fn new(keys: usize) -> Self {
        Self {
            keys: (0..keys).map(|_| Mutex::default()).collect(),
            tally: Mutex::default(),
        }
    }

    /// The sums.
    pub fn tally(&self) -> Tally {
        self.sums().clone()
    }

    /// Gets and puts, one after the other, until an instant.
    pub async fn load(
        self: Arc<Self>,
        client: Client,
        hosts: Arc<RwLock<Vec<Address>>>,
        seed: u64,
        end: Instant,
    ) {
        let mut chance = Chance(seed.wrapping_mul(0x5851_f42d_4c95_7f2d));
        while Instant::now() < end {
            let now = hosts.read().unwrap_or_else(PoisonError::into_inner).clone();
            let client = Client::new(client.endpoint().clone(), &now, chance.next_number());
            let key = chance.below(self.keys.len());
            match chance.below(4) {
                0 => self.put(&client, key).await,
                1 => self.get(&client, key, Form::Iteration).await,
                _ => self.get(&client, key, Form::Delegation).await,
            }
        }
    }

    /// Gives a key its next value, unless somebody else is about it.
    pub async fn put(&self, client: &Client, key: usize) {
        let Some(value) = self.key(key).and_then(|mut known| {
            let begins = !std::mem::replace(&mut known.busy, true);
            known.sent += u64::from(begins);
            begins.then_some(known.sent)
        }) else {
            return;
        };
        let bytes = value.to_le_bytes().to_vec();
        let result = client.put(&name(key), bytes).await;
        if let Some(mut known) = self.key(key) {
            known.busy = false;
            if result.is_ok() {
                known.acknowledged = value;
            }
        }
        let mut sums = self.sums();
        match result {
            Ok(answered) => {
                sums.puts += 1;
                sums.count(answered.attempts, answered.found.hops);
            }
            Err(_) => sums.failed += 1,
        }
    }

    /// Gets a key, and whether the answer can be right.
    pub async fn get(&self, client: &Client, key: usize, form: Form) {
        let Some(least) = self.key(key).map(|known| known.acknowledged) else {
            return;
        };
        let result = client.get(&name(key), form).await;
        let Some(most) = self.key(key).map(|known| known.sent) else {
            return;
        };
        let mut sums = self.sums();
        match result {
            Ok(answered) => {
                sums.gets += 1;
                sums.count(answered.attempts, answered.found.hops);
                let value = number(answered.found.value);
                if !value.is_some_and(|value| (least..=most).contains(&value)) {
                    let owner = answered.found.owner;
                    sums.wrong.push(format!(
                        "{}: {value:?} in place of {least} to {most}, by {owner}",
                        name(key)
                    ));
                }
            }
            Err(_) => sums.failed += 1,
        }
    }

    /// Keys that do not have their latest value: which ones, and what they have.
    pub async fn check_all(&self, client: &Client) -> Vec<String> {
        let mut lost = Vec::new();
        for key in 0..self.keys.len() {
            let Some((least, most)) = self.key(key).map(|known| (known.acknowledged, known.sent))
            else {
                continue;
            };
            let name = name(key);
            match client.get(&name, Form::Delegation).await {
                Ok(answered) => {
                    let value = number(answered.found.value);
                    if !value.is_some_and(|value| (least..=most).contains(&value)) {
                        lost.push(format!("{name}: {value:?} in place of {least} to {most}"));
                    }
                }
                Err(error) => lost.push(format!("{name}: {error}")),
            }
        }
        lost
    }

    fn key(&self, key: usize) -> Option<MutexGuard<'_, Key>> {
        let key = self.keys.get(key)?;
        Some(key.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn sums(&self) -> MutexGuard<'_, Tally> {
        self.tally.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Tally {
    fn count(&mut self, attempts: u32, hops: u32) {
        // Nodes refuse lookups that come too far.
        const MOST: usize = 256;
        self.retried += u64::from(attempts > 1);
        let hops = (hops as usize).min(MOST);
        if self.hops.len() <= hops {
            self.hops.resize(hops + 1, 0);
        }
        if let Some(count) = self.hops.get_mut(hops) {
            *count += 1;
        }
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} joins, {} leaves, {} crashes of nodes, {} processes killed; {} nodes now",
            self.joins,
            self.leaves,
            self.crashes,
            self.kills,
            self.members.len()
        )
    }
}

fn name(key: usize) -> String {
    format!("key {key}")
}

/// A key without a value has 0, which is no value of a put.
fn number(value: Option<Vec<u8>>) -> Option<u64> {
    match value {
        None => Some(0),
        Some(bytes) => bytes.try_into().ok().map(u64::from_le_bytes),
    }
}
