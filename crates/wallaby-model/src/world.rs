//! The whole: endpoints, what is under way between them, time, faults; every order of them.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use stateright::{Model, Property};

use crate::client::{self, Client, Outcome};
use crate::host::{self, Host};
use crate::letter::{CLIENT, Letter};
use crate::local::{Digest, Space};
use crate::plan::Tree;
use crate::scope::{PERIOD, Scope};
use crate::seen::Seen;

/// All runs of a scope.
pub struct World {
    scope: Scope,
    trees: Vec<Arc<Tree>>,
    clients: Space<Client>,
    hosts: Space<Host>,
}

/// One state of the whole.
#[derive(Clone, PartialEq, Hash)]
pub struct State {
    tree: usize,
    /// Ticks that have passed.
    now: u8,
    client: (Digest, client::View),
    /// The servers, from endpoint 1 on.
    hosts: Vec<Server>,
    /// What is under way, in order of comparison: the network keeps none.
    net: Vec<Flight>,
    faults: u8,
    seen: Seen,
}

#[derive(Debug, Clone, PartialEq, Hash)]
struct Server {
    state: Digest,
    view: host::View,
    lives: bool,
    /// The initiator has been told that it is gone.
    missed: bool,
}

/// A message under way.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Flight {
    to: u8,
    from: u8,
    sent: u8,
    letter: Letter,
    /// It has arrived once.
    copy: bool,
}

/// What happens next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// The message at this place arrives.
    Deliver(usize),
    /// It arrives, and again later.
    Duplicate(usize),
    /// It is lost.
    Lose(usize),
    /// A handler of this server goes on until it yields or ends.
    Act(u8, u8),
    /// The server crashes, and what it had under way is lost or not.
    Crash(u8, bool),
    /// The connection between the initiator and this server ends, and there is a new one.
    Cut(u8),
    /// The initiator is told that the server is gone.
    Gone(u8),
    /// The application gives the call up.
    Abort,
    /// A ping period passes.
    Tick,
}

impl World {
    /// All runs of this scope.
    pub fn new(scope: Scope) -> Self {
        Self {
            trees: scope.trees.iter().cloned().map(Arc::new).collect(),
            scope,
            clients: Space::new(),
            hosts: Space::new(),
        }
    }

    /// A run for the reader: its tree, and all that happened.
    pub fn tell(&self, run: Vec<(State, Option<Action>)>) -> String {
        let mut text = String::new();
        if let Some((first, _)) = run.first() {
            text += &format!("{:?}\n", self.trees[first.tree]);
        }
        for (state, action) in run {
            text += &match action {
                Some(Action::Deliver(place)) => {
                    format!("{:3} arrives: {:?}\n", state.now, state.net[place])
                }
                Some(Action::Duplicate(place)) => {
                    format!(
                        "{:3} arrives, not for the last time: {:?}\n",
                        state.now, state.net[place]
                    )
                }
                Some(Action::Lose(place)) => {
                    format!("{:3} is lost: {:?}\n", state.now, state.net[place])
                }
                Some(action) => format!("{:3} {action:?}\n", state.now),
                None => format!("{state:?}\n"),
            };
        }
        text
    }

    /// How many states of single endpoints were reached, and how many inputs were run.
    pub fn endpoint_states(&self) -> (usize, usize) {
        let (clients, hosts) = (self.clients.size(), self.hosts.size());
        (clients.0 + hosts.0, clients.1 + hosts.1)
    }

    fn begin(&self, tree: usize) -> State {
        let shape = &self.trees[tree];
        let first = self.scope.endpoint(shape, 0);
        let hosts = (0..self.scope.servers_of(shape)).map(|_| {
            let seed = host::Seed::of(&self.scope, shape);
            let (state, view) = self.hosts.begin(seed);
            Server {
                state,
                view,
                lives: true,
                missed: false,
            }
        });
        let mut state = State {
            tree,
            now: 0,
            client: self.clients.begin(client::Seed::of(&self.scope, first)),
            hosts: hosts.collect(),
            net: Vec::new(),
            faults: self.scope.faults,
            seen: Seen::default(),
        };
        self.client_does(&mut state, client::Event::Send);
        state
    }

    fn client_does(&self, state: &mut State, event: client::Event) {
        let reached = self.clients.step(state.client.0, event);
        state.client = (reached.state, reached.view);
        for effect in &reached.outputs {
            match effect {
                client::Effect::Send { to, letter } => state.send(CLIENT, *to, letter.clone()),
                client::Effect::Deliver(response) => state.seen.delivered(*response),
            }
        }
        state.seen.outcome_is(reached.view.outcome);
    }

    fn host_does(&self, state: &mut State, endpoint: u8, event: host::Event) {
        let over = state.client.1.over;
        let reached = self.hosts.step(state.host(endpoint).state, event);
        let host = state.host(endpoint);
        (host.state, host.view) = (reached.state, reached.view);
        for effect in &reached.outputs {
            match effect {
                host::Effect::Send { to, letter } => state.send(endpoint, *to, letter.clone()),
                host::Effect::Started { request, stopped } => {
                    state.seen.started(*request, over, *stopped);
                }
            }
        }
    }

    fn deliver(&self, state: &mut State, flight: &Flight) {
        let (from, letter, now) = (flight.from, flight.letter.clone(), state.time());
        match flight.to {
            CLIENT => self.client_does(state, client::Event::Receive { from, letter, now }),
            to => self.host_does(state, to, host::Event::Receive { from, letter, now }),
        }
    }

    fn crash(&self, state: &mut State, endpoint: u8, with_output: bool) {
        let host = state.host(endpoint);
        host.lives = false;
        let running = std::mem::take(&mut host.view.running);
        state.seen.crashed(running != 0);
        let lost =
            |flight: &Flight| flight.to == endpoint || (with_output && flight.from == endpoint);
        state.lose(lost, false);
    }

    fn cut(&self, state: &mut State, server: u8) {
        let now = state.time();
        state.seen.was_cut();
        let ends = [CLIENT, server];
        let lost = |flight: &Flight| ends.contains(&flight.from) && ends.contains(&flight.to);
        state.lose(lost, true);
        self.host_does(state, server, host::Event::Reconnected { now });
        self.client_does(state, client::Event::Disconnected { server, now });
    }

    fn tick(&self, state: &mut State) {
        state.now += 1;
        let now = state.time();
        self.client_does(state, client::Event::Tick { now });
        for endpoint in 1..=state.hosts.len() as u8 {
            if state.host(endpoint).lives {
                self.host_does(state, endpoint, host::Event::Tick { now });
            }
        }
    }

    /// Whether time may pass: no message is under way for too long, and no handler dawdles for too long.
    fn may_tick(&self, state: &State) -> bool {
        let Some(delay) = self.scope.delay else {
            return false;
        };
        let late = |flight: &Flight| flight.letter.is_control() || state.now >= flight.sent + delay;
        let dawdles = state.hosts.iter().any(|host| host.view.running != 0);
        !state.client.1.over
            && !state.net.iter().any(late)
            && (state.now < self.scope.slow || !dawdles)
    }

    fn ended(&self, state: &State) -> bool {
        match self.scope.delay {
            Some(_) => state.client.1.over,
            // Where no time passes nobody finds out what is lost.
            None => {
                state.client.1.over
                    || state.seen.outcome().is_some()
                    || !state.seen.is_undisturbed()
            }
        }
    }
}

impl State {
    /// What was seen.
    pub fn seen(&self) -> &Seen {
        &self.seen
    }

    fn time(&self) -> Duration {
        PERIOD * u32::from(self.now)
    }

    fn host(&mut self, endpoint: u8) -> &mut Server {
        &mut self.hosts[usize::from(endpoint) - 1]
    }

    fn send(&mut self, from: u8, to: u8, letter: Letter) {
        if to != CLIENT && !self.host(to).lives {
            return self.seen.lost(&letter.message, false);
        }
        let flight = Flight {
            to,
            from,
            sent: self.now,
            letter,
            copy: false,
        };
        let place = self
            .net
            .binary_search(&flight)
            .unwrap_or_else(|place| place);
        self.net.insert(place, flight);
    }

    fn lose(&mut self, lost: impl Fn(&Flight) -> bool, cut: bool) {
        let seen = &mut self.seen;
        self.net.retain(|flight| {
            let lost = lost(flight);
            if lost && !flight.copy {
                seen.lost(&flight.letter.message, cut);
            }
            !lost
        });
    }
}

impl Model for World {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        (0..self.trees.len()).map(|tree| self.begin(tree)).collect()
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        let scope = &self.scope;
        let over = state.client.1.over;
        let faulty = state.faults > 0 && !over;
        for (place, flight) in state.net.iter().enumerate() {
            if place > 0 && state.net[place - 1] == *flight {
                continue; // all the same
            }
            actions.push(Action::Deliver(place));
            if faulty && scope.duplication && !flight.copy {
                actions.push(Action::Duplicate(place));
            }
            if faulty && scope.loss {
                actions.push(Action::Lose(place));
            }
        }
        for (endpoint, host) in (1..).zip(&state.hosts) {
            let slots = (0..16).filter(|slot| host.view.running & 1 << slot != 0);
            actions.extend(slots.map(|slot| Action::Act(endpoint, slot)));
            if faulty && host.lives && scope.crash {
                actions.push(Action::Crash(endpoint, false));
                if state.net.iter().any(|flight| flight.from == endpoint) {
                    actions.push(Action::Crash(endpoint, true));
                }
            }
            if faulty && host.lives && scope.cut {
                actions.push(Action::Cut(endpoint));
            }
            let drained = || !state.net.iter().any(|flight| flight.from == endpoint);
            if scope.hints && !over && !host.lives && !host.missed && drained() {
                actions.push(Action::Gone(endpoint));
            }
        }
        if scope.abort && state.client.1.outcome.is_none() {
            actions.push(Action::Abort);
        }
        if self.may_tick(state) {
            actions.push(Action::Tick);
        }
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut state = state.clone();
        let now = state.time();
        match action {
            Action::Deliver(place) => {
                let flight = state.net.remove(place);
                self.deliver(&mut state, &flight);
            }
            Action::Duplicate(place) => {
                state.faults -= 1;
                let flight = state.net[place].clone();
                state.net[place].copy = true;
                state.net.sort();
                self.deliver(&mut state, &flight);
            }
            Action::Lose(place) => {
                state.faults -= 1;
                let flight = state.net.remove(place);
                if !flight.copy {
                    state.seen.lost(&flight.letter.message, false);
                }
            }
            Action::Act(endpoint, slot) => {
                self.host_does(&mut state, endpoint, host::Event::Act { slot, now });
            }
            Action::Crash(endpoint, with_output) => {
                state.faults -= 1;
                self.crash(&mut state, endpoint, with_output);
            }
            Action::Cut(endpoint) => {
                state.faults -= 1;
                self.cut(&mut state, endpoint);
            }
            Action::Gone(server) => {
                state.host(server).missed = true;
                // Whoever has read all that came from there is told as well.
                for other in (1..).take(state.hosts.len()) {
                    if state.host(other).lives {
                        let peer = server;
                        self.host_does(&mut state, other, host::Event::PeerGone { peer, now });
                    }
                }
                self.client_does(&mut state, client::Event::Gone { server, now });
            }
            Action::Abort => self.client_does(&mut state, client::Event::Abort { now }),
            Action::Tick => self.tick(&mut state),
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always(COMPLETE, |world: &Self, state| {
                state.seen.completion_is_true(&world.trees[state.tree])
            }),
            Property::always(ONCE, |_, state: &State| state.seen.delivers_once()),
            Property::always(AT_MOST_ONCE, |_, state: &State| {
                state.seen.is_at_most_once()
            }),
            Property::always(FINAL, |_, state: &State| state.seen.is_settled_for_good()),
            Property::always(TRUE_FAILURE, |_, state: &State| {
                state.seen.failure_is_true()
            }),
            Property::always(ENDS, ends),
            Property::always(QUIET, |_, state: &State| is_quiet(state)),
            Property::always(STOPPED, |_, state: &State| state.seen.stops()),
            Property::always(NO_STORM, |_, state: &State| {
                state.net.len() <= MOST_UNDER_WAY
            }),
            Property::always(NO_LIARS, |_, state: &State| !state.client.1.accuses),
            Property::always(FORGOTTEN, is_forgotten),
            Property::sometimes("a call completes", |_, state: &State| {
                state.seen.outcome() == Some(Outcome::Completed)
            }),
        ];
        if self.scope.delay.is_some() && self.scope.loss {
            let failed = |_: &Self, state: &State| {
                state.seen.outcome() == Some(Outcome::Failed) && state.client.1.over
            };
            properties.push(Property::sometimes(
                "a call fails, and all is quiet",
                failed,
            ));
        }
        properties
    }
}

/// COMPLETE only if every handler ran and every response was delivered.
pub const COMPLETE: &str = "complete only if everything arrived";
/// No response is delivered twice, and none that was not sent.
pub const ONCE: &str = "each response is delivered once";
/// No handler runs twice for one request.
pub const AT_MOST_ONCE: &str = "each request is handled at most once";
/// A terminal status never changes.
pub const FINAL: &str = "a terminal status never changes";
/// No failure while nothing was lost that others cannot make up for.
pub const TRUE_FAILURE: &str = "no failure without a loss";
/// Every run ends, in time, and a call that lost nothing completes.
pub const ENDS: &str = "every run ends";
/// After an abort or a failure: once the initiator is told that all is quiet, nothing runs that it could reach, and
/// nothing starts if nothing was lost.
pub const QUIET: &str = "after quiet nothing runs and nothing starts";

/// No request starts at a server that has been told to stop the call.
pub const STOPPED: &str = "nothing starts at a server that was told to stop";
/// Messages do not cause each other without end.
pub const NO_STORM: &str = "few messages are under way at a time";
/// Everybody here is honest.
pub const NO_LIARS: &str = "nobody is said to have broken the protocol";
/// Once the call is over and its initiator has left, servers forget all of it.
pub const FORGOTTEN: &str = "in the end all is forgotten";

/// Far more than calls of this size can have a use for.
const MOST_UNDER_WAY: usize = 24;

fn is_forgotten(world: &World, state: &State) -> bool {
    if !state.client.1.over || !state.net.is_empty() {
        return true;
    }
    let now = state.time();
    let idle = |host: &&Server| host.lives && host.view.running == 0;
    let forgets = |host: &Server| {
        let left = world.hosts.step(host.state, host::Event::Left { now });
        left.view.forgotten
    };
    state.hosts.iter().filter(idle).all(forgets)
}

fn ends(world: &World, state: &State) -> bool {
    let mut actions = Vec::new();
    if !world.ended(state) {
        world.actions(state, &mut actions);
        if actions.is_empty() {
            return false;
        }
    }
    state.now <= world.scope.horizon()
}

fn is_quiet(state: &State) -> bool {
    if !state.client.1.over {
        return true;
    }
    let runs = state.hosts.iter().any(|host| host.view.running != 0);
    let started = state.seen.started_after_quiet;
    (!runs || state.seen.is_crashed()) && (!started || !state.seen.is_undisturbed())
}

impl fmt::Debug for Flight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} to {}: {}", self.from, self.to, self.letter)
    }
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State")
            .field("tree", &self.tree)
            .field("now", &self.now)
            .field("client", &self.client.1)
            .field("under_way", &self.net)
            .field("seen", &self.seen)
            .finish_non_exhaustive()
    }
}
