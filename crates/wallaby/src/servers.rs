//! The servers of one service: who tells their addresses, and which of them gets a call.

mod place;
mod resolver;

use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, Weak};
use std::time::Duration;

use fastrand::Rng;
use tokio::task::AbortHandle;
use wallaby_proto::Address;

use self::place::Place;
pub(crate) use self::place::Visit;
pub use self::resolver::{Dns, ResolveError, Resolver, Static};
use crate::timer::{self, Instant};

/// How long after the first error a resolver is asked again, and at the most.
const AGAIN: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// The servers of one service, any of which can do the same: whom a [`Client`](crate::Client) made by
/// [`Client::among`](crate::Client::among) calls.
///
/// Each call goes to one of two that are drawn by chance: to the one at which fewer calls of this process are under way. So load
/// is even, and a slow server gets less, without anybody counting for all. A server that cannot be connected to is left out for a
/// while, a second at first and half a minute at most, unless there is no other; then one call shows whether it is back. The call
/// that has found it away is made at another server, as is one that a server refuses because it shuts down: each that has not been
/// tried is tried once ([`Retry::unexecuted`](crate::Retry::unexecuted)). What may have been executed is made again only if
/// [`Client::retry`](crate::Client::retry) says so.
///
/// Clones are the same servers. What watches their resolver ends with the last of them.
///
/// ```
/// # use wallaby::{Client, Dns, Endpoint, Servers};
/// #[wallaby::service]
/// trait Shelf {
///     async fn read(volume: u32) -> String;
/// }
///
/// # async fn example(endpoint: Endpoint) -> Result<(), Box<dyn std::error::Error>> {
/// let shelves = Servers::watch(Dns::new("tcp://shelves.example:4000".parse()?)).await?;
/// let shelf = shelf::within(Client::among(&endpoint, &shelves));
/// println!("{}", shelf.read(7).await?);
/// # Ok(())
/// # }
/// # fn main() {}
/// ```
#[derive(Clone)]
pub struct Servers(Arc<State>);

struct State {
    /// Never empty.
    places: RwLock<Arc<[Arc<Place>]>>,
    /// Who draws. In a simulation its seed decides, so it is not the thread's generator.
    dice: Mutex<Rng>,
    /// What follows the resolver; it ends with this.
    follower: OnceLock<AbortHandle>,
}

impl Servers {
    /// Most servers of a service; those after the first so many are left out, and a warning is logged. One call tries 64 of them at
    /// most.
    pub const MOST: usize = 1024;

    /// These servers, for ever.
    ///
    /// # Errors
    ///
    /// If there are none.
    pub fn new(
        servers: impl IntoIterator<Item = impl Into<Address>>,
    ) -> Result<Self, ResolveError> {
        let servers: Vec<Address> = servers.into_iter().map(Into::into).collect();
        let places = places(servers, &[]).ok_or_else(ResolveError::none)?;
        let seed = crate::random::bytes().map_or(0, u64::from_ne_bytes);
        Ok(Self(Arc::new(State {
            places: RwLock::new(places),
            dice: Mutex::new(Rng::with_seed(seed)),
            follower: OnceLock::new(),
        })))
    }

    /// The servers that a resolver tells, and tells anew: waits for the first list. A task of tokio's waits for the others. While a
    /// resolver fails, or tells of no server at all, the last list holds.
    ///
    /// # Errors
    ///
    /// What the resolver says if it has no list at first.
    pub async fn watch(mut resolver: impl Resolver) -> Result<Self, ResolveError> {
        let servers = Self::new(resolver.next().await?)?;
        let state = Arc::downgrade(&servers.0);
        let task = tokio::spawn(async move {
            let _ends = Ends;
            follow(resolver, state).await;
        });
        let _first = servers.0.follower.set(task.abort_handle());
        Ok(servers)
    }

    /// Their addresses, and how many calls of this process are under way at each.
    pub fn list(&self) -> Vec<(Address, usize)> {
        let places = self.0.places();
        let told = |place: &Arc<Place>| (place.address().clone(), place.under_way());
        places.iter().map(told).collect()
    }

    /// The one that the next call would go to: for whom a handler delegates or forwards to. That is not counted as load, as who
    /// delegates does not learn when it is done.
    pub fn pick(&self) -> Address {
        self.pick_except(&[])
    }

    /// The same, and none of these if there is another: those that were tried in vain.
    pub fn pick_except(&self, tried: &[Address]) -> Address {
        self.0.pick(tried).address().clone()
    }

    /// All of them, this one first.
    pub(crate) fn after(&self, first: &Address) -> Vec<Address> {
        let places = self.0.places();
        let mut all: Vec<_> = places.iter().map(|place| place.address().clone()).collect();
        let place = all.iter().position(|server| server == first);
        all.rotate_left(place.unwrap_or_default());
        all
    }

    /// Whether there is one that was not tried.
    pub(crate) fn has_another(&self, tried: &[Address]) -> bool {
        let places = self.0.places();
        places.iter().any(|place| !tried.contains(place.address()))
    }

    /// A call goes to one of them, but for those that it has tried, if there is another.
    pub(crate) fn visit(&self, tried: &[Address]) -> Arc<Visit> {
        Arc::new(Visit::begin(self.0.pick(tried)))
    }
}

/// A list without what stands there twice, or `None` if it is empty. What is known of those that stay is kept.
fn places(servers: Vec<Address>, before: &[Arc<Place>]) -> Option<Arc<[Arc<Place>]>> {
    let mut servers = servers;
    let mut seen = std::collections::BTreeSet::new();
    servers.retain(|server| seen.insert(server.to_string()));
    if servers.len() > Servers::MOST {
        let (told, most) = (servers.len(), Servers::MOST);
        tracing::warn!(
            told,
            most,
            "a service has too many servers: some are left out"
        );
        servers.truncate(most);
    }
    let kept = |server: &Address| {
        before
            .iter()
            .find(|place| place.address() == server)
            .cloned()
    };
    let place = |server| kept(&server).unwrap_or_else(|| Arc::new(Place::new(server)));
    let places: Arc<[Arc<Place>]> = servers.into_iter().map(place).collect();
    (!places.is_empty()).then_some(places)
}

/// Says so if a resolver panics: nobody waits for the task that follows it.
struct Ends;

impl Drop for Ends {
    fn drop(&mut self) {
        if std::thread::panicking() {
            tracing::error!("a resolver of servers has panicked: the last list holds from now on");
        }
    }
}

/// Keeps the list as the resolver tells it, as long as anybody wants it.
async fn follow(mut resolver: impl Resolver, state: Weak<State>) {
    let mut pause = AGAIN.0;
    loop {
        let told = resolver.next().await;
        let Some(state) = state.upgrade() else {
            return;
        };
        let before = state.places();
        let list = told.and_then(|told| places(told, &before).ok_or_else(ResolveError::none));
        match list {
            Ok(list) => {
                pause = AGAIN.0;
                *state.places.write().unwrap_or_else(PoisonError::into_inner) = list;
            }
            Err(error) => {
                tracing::warn!(%error, "the servers of a service are not known anew: the last list holds");
                drop((before, state));
                timer::sleep_until(Instant::now() + pause).await;
                pause = AGAIN.1.min(pause * 2);
            }
        }
    }
}

impl State {
    fn places(&self) -> Arc<[Arc<Place>]> {
        Arc::clone(&self.places.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The less loaded of two by chance, out of those that are there and have not been tried.
    fn pick(&self, tried: &[Address]) -> Arc<Place> {
        let (places, now) = (self.places(), Instant::now());
        // Those that are there before those that are not, and any that was not tried before those that were.
        let rank = |place: &Arc<Place>| (tried.contains(place.address()), place.is_left_out(now));
        let ranked: Vec<_> = places.iter().map(|place| (rank(place), place)).collect();
        let best = ranked.iter().map(|(rank, _)| *rank).min();
        let choice = ranked.iter().filter(|(rank, _)| Some(*rank) == best);
        let choice: Vec<&Arc<Place>> = choice.map(|(_, place)| *place).collect();
        let (first, second) = self.draw_two(choice.len());
        let less = choice[second].under_way() < choice[first].under_way();
        let chosen = choice[if less { second } else { first }];
        chosen.choose(now);
        Arc::clone(chosen)
    }

    /// Two numbers below this one; different ones, if there are two.
    fn draw_two(&self, below: usize) -> (usize, usize) {
        let mut dice = self.dice.lock().unwrap_or_else(PoisonError::into_inner);
        let first = dice.usize(..below);
        match below {
            1 => (first, first),
            _ => (first, (first + 1 + dice.usize(..below - 1)) % below),
        }
    }
}

impl Drop for State {
    fn drop(&mut self) {
        if let Some(follower) = self.follower.get() {
            follower.abort();
        }
    }
}

impl fmt::Debug for Servers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.list()).finish()
    }
}
