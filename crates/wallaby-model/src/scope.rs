//! What one exploration tries, and deliberately broken variants that it must find out.

use std::time::Duration;

use wallaby_proto::wire::PingSettings;

use crate::plan::Tree;

/// The ping period: what one tick of the clock advances time by.
pub(crate) const PERIOD: Duration = Duration::from_millis(100);
/// The call timeout in ticks.
const TIMEOUT: u8 = 3;

/// What one exploration tries.
#[derive(Debug, Clone)]
pub struct Scope {
    /// The calls.
    pub trees: Vec<Tree>,
    /// How many servers there are; request `n` goes to server `n` modulo this. 0 is a server for each request.
    pub servers: usize,
    /// How many faults one run may have, each of any of these kinds.
    pub faults: u8,
    /// Messages may be lost.
    pub loss: bool,
    /// Messages may arrive twice.
    pub duplication: bool,
    /// Servers may crash, with or without what they have under way.
    pub crash: bool,
    /// The connection between the initiator and a server may end, with all that is under way on it.
    pub cut: bool,
    /// The initiator may abort the call, which is no fault.
    pub abort: bool,
    /// The initiator may be told that a crashed server is gone, when all that it sent has arrived; so are the other servers.
    pub hints: bool,
    /// For how many ticks a request, a response or an end may be under way: 0 is until the next one, as for pings and pongs. `None`: no
    /// time passes at all, and nobody asks anything.
    pub delay: Option<u8>,
    /// Handlers may dawdle until this tick.
    pub slow: u8,
    /// What is broken.
    pub variant: Variant,
}

/// A deliberately broken variant of what wraps the real machines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Variant {
    /// Nothing is broken.
    #[default]
    Sound,
    /// A call is complete when as many reports and responses have arrived as reports name (against rule 8 of docs/protocol.md).
    CountsAlone,
    /// The latest report of a branch is taken for its facts, that of a running request too (against rule 9).
    FactsOverwritten,
    /// What higher hops of a branch show is no sign of its life (against rule 15).
    HopsDoNotSupersede,
    /// Facts in pongs do not count as the manifest (against rule 13).
    PongsWithoutFacts,
    /// Servers announce nothing (against rule 14).
    NoAnnouncements,
    /// Servers do not notice that the connection has ended by which a request came.
    EndsUnnoticed,
    /// A response that comes again is delivered again.
    DuplicatesDelivered,
    /// A request that comes again is handled again (against rule 28).
    DuplicatesHandled,
    /// Pongs of running requests tell what was sent so far as the branch's facts (against rules 9 and 12).
    EndsToldEarly,
    /// A server that is told to stop a call of which nothing runs there does not remember it (against rule 36).
    AbortsForgotten,
    /// Records are not told of ends.
    EndsNotRecorded,
    /// An aborted call counts as quiet at once (against rule 35).
    QuietAtOnce,
    /// Each pong is answered with two pings.
    PongsAnswered,
    /// Who has given up a call calls it complete when everything has arrived after all (against rules 33 and 37).
    StatusChanges,
}

impl Scope {
    /// These calls, each with its requests at servers of their own, with no faults and no time.
    pub fn of(trees: Vec<Tree>) -> Self {
        Self {
            trees,
            servers: 0,
            faults: 0,
            loss: false,
            duplication: false,
            crash: false,
            cut: false,
            abort: false,
            hints: false,
            delay: None,
            slow: 0,
            variant: Variant::Sound,
        }
    }

    /// All kinds of faults, this many in each run.
    #[must_use]
    pub fn with_faults(self, faults: u8) -> Self {
        Self {
            faults,
            loss: true,
            duplication: true,
            crash: true,
            cut: true,
            ..self
        }
    }

    pub(crate) fn ping() -> PingSettings {
        PingSettings {
            period: PERIOD,
            timeout: PERIOD * u32::from(TIMEOUT),
        }
    }

    /// The server that handles a request of a tree, by the numbers of both. The initiator is endpoint 0, the servers
    /// are the endpoints from 1 on.
    pub(crate) fn endpoint(&self, tree: &Tree, request: u8) -> u8 {
        1 + request % self.servers_of(tree)
    }

    pub(crate) fn servers_of(&self, tree: &Tree) -> u8 {
        match self.servers {
            0 => tree.handlers.len() as u8,
            servers => servers.min(tree.handlers.len()) as u8,
        }
    }

    /// The tick by which every run must have ended: dawdling, a timeout until the failure, one until all is quiet, and
    /// as long for what is found out on the way.
    pub(crate) fn horizon(&self) -> u8 {
        self.slow + 3 * TIMEOUT + 4 * (self.delay.unwrap_or(0) + 1)
    }
}
