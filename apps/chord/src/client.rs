//! Who asks: lookups by delegation and by iteration.

use crate::host::{answered, miss_of};
use crate::id::RingId;
use crate::message::{Found, Lookup, Miss, Refusal, Step, Wish};
use crate::search::{Next, Search};
use crate::service::ring;
use crate::store::Key;
use fastrand::Rng;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use wallaby::{Address, Endpoint, Trace};

/// How a lookup gets from node to node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Each node forwards it, the owner answers.
    Delegation,
    /// Each node answers, the client asks the next one.
    Iteration,
}

/// Asks a ring. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Client {
    endpoint: Endpoint,
    /// Where lookups begin: any of these.
    hosts: Arc<[Address]>,
    chance: Arc<Mutex<Rng>>,
    traced: bool,
    attempts: u32,
}

/// What a lookup found, and what it took.
#[derive(Clone, Debug)]
pub struct Answered {
    /// What was found.
    pub found: Found,
    /// How many attempts it took.
    pub attempts: u32,
    /// Why the others failed.
    pub misses: Vec<Miss>,
    /// How long the last attempt took.
    pub took: Duration,
    /// Its tree of hops, if the client traces and the lookup went by delegation.
    pub trace: Option<Trace>,
}

/// A lookup that found nothing out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LookupError {
    /// All attempts failed.
    #[error("no answer in {attempts} attempts; the last one: {last}")]
    Failed {
        /// How many were made.
        attempts: u32,
        /// How the last one failed.
        last: Miss,
    },
    /// A node refused, and would again.
    #[error(transparent)]
    Refused(Refusal),
    /// The client knows no endpoint of the ring.
    #[error("no endpoint of the ring is known")]
    NoHosts,
}

impl Client {
    /// A client of the ring that these endpoints host. The owner of a place answers it straight if its endpoint listens.
    pub fn new(endpoint: Endpoint, hosts: &[Address], seed: u64) -> Self {
        Self {
            endpoint,
            hosts: hosts.into(),
            chance: Arc::new(Mutex::new(Rng::with_seed(seed))),
            traced: false,
            attempts: Search::MOST,
        }
    }

    /// The same, but lookups tell which nodes they came by, and calls when each hop ran.
    #[must_use]
    pub fn traced(mut self) -> Self {
        self.traced = true;
        self
    }

    /// The same with another limit for how many attempts a lookup has: [`Search::MOST`], if nothing is said. Pauses between
    /// them grow from 25 ms to half a second.
    #[must_use]
    pub fn attempts(mut self, attempts: u32) -> Self {
        self.attempts = attempts;
        self
    }

    /// Where lookups begin.
    pub fn hosts(&self) -> &[Address] {
        &self.hosts
    }

    /// What it calls from.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// The value of a key, if it has one.
    ///
    /// # Errors
    ///
    /// If no attempt was answered.
    pub async fn get(&self, key: &str, form: Form) -> Result<Answered, LookupError> {
        let key = Key::new(key);
        self.look_up(key.id, Wish::Get(key), form).await
    }

    /// Gives a key a value. When it is acknowledged, all nodes have it that should.
    ///
    /// # Errors
    ///
    /// If no attempt was answered, which leaves open whether some nodes have it; if it is too large.
    pub async fn put(&self, key: &str, value: Vec<u8>) -> Result<Answered, LookupError> {
        let key = Key::new(key);
        let put = self.random();
        let wish = Wish::Put {
            key: key.clone(),
            value,
            put,
        };
        self.look_up(key.id, wish, Form::Delegation).await
    }

    /// Who owns a place.
    ///
    /// # Errors
    ///
    /// If no attempt was answered.
    pub async fn owner(&self, id: RingId, form: Form) -> Result<Answered, LookupError> {
        self.look_up(id, Wish::Owner, form).await
    }

    async fn look_up(&self, id: RingId, wish: Wish, form: Form) -> Result<Answered, LookupError> {
        const MOMENT: Duration = Duration::from_millis(25);
        let mut search = Search::new(id, wish, self.attempts);
        let mut misses = Vec::new();
        loop {
            let host = self.start(&search).ok_or(LookupError::NoHosts)?;
            let mut lookup = search.attempt(RingId(self.random()));
            lookup.trail = self.traced.then(Vec::new);
            let begun = Instant::now();
            let result = match form {
                Form::Delegation => self.delegate(&host, lookup).await,
                Form::Iteration => self.iterate(&host, lookup).await,
            };
            let miss = match result {
                Ok((found, trace)) => {
                    return Ok(Answered {
                        found,
                        attempts: search.made(),
                        misses,
                        took: begun.elapsed(),
                        trace,
                    });
                }
                Err(miss) => miss,
            };
            let next = search.handle_miss(&miss);
            misses.push(miss.clone());
            match (next, miss) {
                (Next::AtOnce, _) => {}
                (Next::InAMoment, _) => {
                    tokio::time::sleep(MOMENT * search.made().min(20)).await;
                }
                (Next::Never, Miss::Refused(refusal)) if search.may_go_on() => {
                    return Err(LookupError::Refused(refusal));
                }
                (Next::Never, last) => {
                    let attempts = search.made();
                    return Err(LookupError::Failed { attempts, last });
                }
            }
        }
    }

    /// One call, however many hops.
    async fn delegate(
        &self,
        host: &Address,
        lookup: Lookup,
    ) -> Result<(Found, Option<Trace>), Miss> {
        let mut call = ring::within(self.client(host)).find(lookup);
        let found = answered(call.answer().await)?;
        Ok((found, self.traced.then(|| call.trace())))
    }

    /// A call for each hop.
    async fn iterate(
        &self,
        host: &Address,
        mut lookup: Lookup,
    ) -> Result<(Found, Option<Trace>), Miss> {
        // Nodes refuse lookups that have come too far, but they say themselves how far that is.
        const MOST: u32 = 4096;
        let mut host = host.clone();
        for _ in 0..MOST {
            let step = ring::within(self.client(&host)).step(lookup).await;
            match step {
                Ok(Step::Done(found)) => return Ok((*found, None)),
                Ok(Step::Next(next, further)) => (host, lookup) = (next, *further),
                Ok(Step::Refused(refusal)) => return Err(Miss::Refused(refusal)),
                Err(error) => return Err(miss_of(&error)),
            }
        }
        Err(Miss::Refused(Refusal::TooManyHops { limit: MOST }))
    }

    fn client(&self, host: &Address) -> wallaby::Client {
        const DEADLINE: Duration = Duration::from_secs(5);
        const PING: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));
        let client = wallaby::Client::new(&self.endpoint, host)
            .deadline(DEADLINE)
            .ping(PING.0, PING.1);
        match self.traced {
            true => client.traced(),
            false => client,
        }
    }

    /// An endpoint to begin at.
    fn start(&self, search: &Search) -> Option<Address> {
        let hosts = self.hosts.iter().filter(|host| !search.avoids(host));
        let mut chance = self.chance.lock().unwrap_or_else(PoisonError::into_inner);
        let host = chance.choice(hosts.collect::<Vec<_>>());
        host.or_else(|| chance.choice(&*self.hosts)).cloned()
    }

    fn random(&self) -> u64 {
        let mut chance = self.chance.lock().unwrap_or_else(PoisonError::into_inner);
        chance.u64(..)
    }
}
