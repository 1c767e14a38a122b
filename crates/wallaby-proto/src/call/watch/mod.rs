//! The client half of failure detection, abort and winding down (thesis 4.4, 4.5).
//!
//! A [`Watch`] watches over one call. It is made when the call has lasted a ping period, or is aborted: a call that is
//! quicker pays nothing for it. From then on it has what is known of the call's tree. It asks the servers of all requests that
//! have not ended (*pings*), learns from their answers (*pongs*) where the call went on, and decides when silence, a lost response
//! or a handler without progress is a failure. After a failure or an abort it stops what still runs.
//!
//! A [`ClientCall`](crate::endpoint::client::ClientCall) begins and drives it: it tells the watch what it has shown the initiator,
//! which connections have ended and which nodes are gone, and says what is still being written before
//! [`Watch::handle_timeout`]. After each of these it asks [`Watch::poll`] and [`Watch::next_timeout`].
//!
//! `now` is the time of a [`crate::call::clock::Clock`]: it never goes backwards and stands still while the process
//! does. A call is *live* (`oldest` in requests, docs/protocol.md, rule 29) until it is complete or [`WatchAction::Quiet`] has come.
//! Once [`Initiator::is_complete`], the watch is dropped. After [`WatchAction::Failed`] or an abort the outcome is settled:
//! responses are no longer delivered, but the initiator is still shown them, as their facts say what has ended.
//!
//! An announcement (an unasked pong) for a call that is not live any more is answered with [`dismiss`].

mod ask;
mod branch;
mod failure;
mod hints;
mod judge;
mod learn;
mod located;
mod location;
mod pace;
mod queue;
mod root;
mod running;
mod wind;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::time::Duration;

use self::branch::WatchedBranch;
pub use self::failure::{Absence, Executed, FailureKind, Found, Loss, LossStep};
use self::hints::{Hints, NodeHint};
use self::located::Located;
pub use self::location::{Location, Source};
pub use self::pace::MOST_ASKED;
use self::pace::PingPace;
use self::queue::DueQueue;
use self::root::Roots;
pub use self::running::{MOST_WINDING, StillFrozen, Unstopped, UnstoppedHop};
use crate::call::initiator::Initiator;
use crate::id::{NodeId, Path, RequestId, Token};
use crate::wire::{Heartbeats, Ping, PingSettings, Pong};

/// Most nodes that are remembered as gone though nothing of the call is there any more.
const MAX_UNNAMED: usize = 64;

/// Branches that are looked at in one go, and steps from one to its parent: the rest is due at once, and whoever drives this
/// does something else between.
const MOST_LOOKED_AT: usize = 4096;

/// How one call is watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WatchSettings {
    /// Ping period and timeout: those that the call's requests carry.
    pub ping: PingSettings,
    /// Those that the call's requests ask for, if it is to be told unasked of its servers: their timeout takes the place of the
    /// one above, and who is not late is not asked.
    pub heartbeats: Option<Heartbeats>,
    /// How long a running handler may make no progress; `None` is for ever.
    pub stall: Option<Duration>,
    /// How often an initial request may be sent again after a failure below it (thesis 7.3). Only for calls whose
    /// handlers all are deterministic: the second run must send exactly what the first one did.
    pub resends: u32,
    /// What is lost does not end the call: it goes on without it, and tells of it by [`WatchAction::Lost`]. Nothing is sent again
    /// then.
    pub tolerant: bool,
}

impl WatchSettings {
    /// How long who runs a request may say nothing.
    fn quiet(&self) -> Duration {
        let period = self.ping.period;
        let every = self.heartbeats.map(|heartbeats| heartbeats.every);
        every.map_or(period, |every| every.max(period))
    }
}

/// What the driver does next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WatchAction {
    /// Send this ping, by an open connection with the node or else to the address. If that is certain to reach nobody,
    /// [`Watch::handle_gone`] or [`Watch::handle_not_found`].
    Ping {
        /// Where to.
        to: Location,
        /// What.
        ping: Ping,
    },
    /// Send the initial request again, with this attempt number among its options, and say so with [`Watch::sent`].
    Resend {
        /// The initial request.
        request: RequestId,
        /// Which attempt it is now.
        attempt: u32,
        /// Why.
        failure: Box<Loss>,
    },
    /// Something of a call that goes on all the same is lost. If [`Initiator::is_complete`] now, nothing else is missing: then
    /// the driver ends the call, and stops what may still run ([`Watch::abort`]).
    Lost(Box<Loss>),
    /// The call has failed; what still runs is being stopped.
    Failed(Box<Loss>),
    /// After an abort or a failure: no new request of the call can be sent, as far as its servers are known.
    Frozen,
    /// After an abort or a failure: nothing of the call runs any more, as far as its servers can be reached. Nothing
    /// follows.
    Quiet,
}

/// Watches over one call.
#[derive(Debug)]
pub struct Watch {
    /// What is known of its tree.
    tree: Initiator,
    settings: WatchSettings,
    phase: Phase,
    /// By the position of the branch in the initiator's table.
    branches: Vec<WatchedBranch>,
    /// How many hops all branches know together.
    hops: usize,
    /// Branches by the nodes that they have a hop at; made when one is lost.
    located: Option<Box<Located>>,
    /// Branches that have to be looked at, by time.
    queue: DueQueue,
    /// How many of them may be asked about in a period.
    pace: PingPace,
    /// Where branches are handled that the application itself has placed.
    placed: BTreeMap<Path, Location>,
    /// Nodes of this call that are gone.
    gone: BTreeMap<NodeId, Gone>,
    /// Nodes that live although they were not found from here: only others can reach them.
    beyond: BTreeSet<NodeId>,
    /// Some server has forgotten requests before their time.
    evicted: bool,
    /// Some server has taken a request.
    taken: bool,
    /// How many times initial requests were sent again.
    resends: u32,
    /// Pings that went to requests which the call has no room for.
    strays: u32,
    /// How many of these may be told in a period: those that somebody names, and besides those that announce themselves.
    named_strays: PingPace,
    announced_strays: PingPace,
    /// Steps that led to what was lost, of all losses together.
    told_steps: usize,
    /// The highest attempt of any initial request.
    latest_attempt: u32,
    /// The initial requests above branches, once one of them was sent again.
    roots: Roots,
    /// Until when the branches above show that one of a further attempt may still come, as far as that was looked up.
    excused: BTreeMap<u32, Duration>,
    /// Branches looked at, and steps from one to its parent, in this turn.
    steps: usize,
    /// What a turn had no time for: branches whose ancestors are to be asked, ends of connections that are looked into, and
    /// branches that are to be stopped.
    climbs: VecDeque<u32>,
    hints: Hints,
    unwound: Range<u32>,
    /// The initiator has learnt of branches that were not looked at yet.
    unseen: bool,
    /// When the latest turn was.
    turn: Duration,
    /// Until when somebody waits for handlers that go on although they were told to stop.
    asked_until: Duration,
    /// Branches that are not yet frozen, and those not yet quiet.
    unfrozen: usize,
    unquiet: usize,
    actions: VecDeque<WatchAction>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Watching,
    /// The outcome is settled; what still runs is being stopped.
    Winding {
        since: Duration,
        frozen: bool,
    },
    /// Nothing runs any more.
    Quiet,
}

/// What is known of a node that is gone.
#[derive(Debug, Clone, Copy)]
struct Gone {
    since: Duration,
    /// This endpoint had reached it before; else it was only told of it, and has not found it.
    was_met: bool,
    /// What was found in its place.
    found: Found,
    /// Nobody can hear of it any more but from others: since when that is known, and how soon these are heard.
    certain: Option<(Duration, Duration)>,
}

/// The ping with which an initiator answers an announcement of a call that it does not know or that has ended: stop
/// (rule 31).
pub fn dismiss(announcement: &Pong, token: Token) -> Ping {
    Ping {
        abort: true,
        ..about(announcement, token)
    }
}

/// Whether a pong that was not asked for shows, in place of the token, that this server knows it ([`Token::vouch`]).
pub fn is_vouched(pong: &Pong, token: Token, server: Option<NodeId>) -> bool {
    let vouch = server.map(|server| token.vouch(pong.call, server));
    pong.announced && vouch.is_some() && pong.token == vouch
}

/// What to answer a pong that [`is_vouched`] and says nothing of its request: its server wants to be shown the token, so that
/// answers of what others brought may come over this connection.
pub fn show(pong: &Pong, token: Token) -> Option<Ping> {
    let says_nothing = pong.announced && !pong.writing && pong.progress.is_none();
    says_nothing.then(|| Ping {
        shows: true,
        ..about(pong, token)
    })
}

fn about(pong: &Pong, token: Token) -> Ping {
    Ping {
        call: pong.call,
        token,
        request: pong.request,
        abort: false,
        children_from: 0,
        missing: Vec::new(),
        shows: false,
    }
}

impl Watch {
    /// Begins to watch over a call whose initial requests, in order, went to these servers; all of what is known to run
    /// is asked about at once.
    pub fn new(
        tree: Initiator,
        settings: WatchSettings,
        servers: impl IntoIterator<Item = Location>,
        now: Duration,
    ) -> Self {
        let heartbeats = settings.heartbeats.map(Heartbeats::bounded);
        let mut ping = settings.ping.bounded();
        ping.timeout = heartbeats.map_or(ping.timeout, |heartbeats| heartbeats.timeout);
        let mut watch = Self {
            tree,
            settings: WatchSettings {
                ping,
                heartbeats,
                ..settings
            },
            phase: Phase::Watching,
            branches: Vec::new(),
            hops: 0,
            located: None,
            placed: BTreeMap::new(),
            queue: DueQueue::default(),
            pace: PingPace::default(),
            gone: BTreeMap::new(),
            beyond: BTreeSet::new(),
            evicted: false,
            taken: false,
            resends: 0,
            strays: 0,
            named_strays: PingPace::default(),
            announced_strays: PingPace::default(),
            told_steps: 0,
            latest_attempt: 0,
            roots: Roots::default(),
            excused: BTreeMap::new(),
            steps: 0,
            climbs: VecDeque::new(),
            hints: Hints::default(),
            unwound: 0..0,
            unseen: false,
            turn: now,
            asked_until: Duration::ZERO,
            unfrozen: 0,
            unquiet: 0,
            actions: VecDeque::new(),
        };
        watch.tree.note_changes();
        for (position, server) in (0..).zip(servers) {
            let Some(request) = watch.tree.initial(position) else {
                break;
            };
            watch.sent(request, server, now);
        }
        watch.look_at_changes(now);
        watch
    }

    /// What is known of the call's tree.
    pub fn tree(&self) -> &Initiator {
        &self.tree
    }

    /// The same, to tell it of what has come.
    pub fn tree_mut(&mut self) -> &mut Initiator {
        &mut self.tree
    }

    /// What to do next; `None` when all is done. What was to be asked just before the end stops, and nobody is asked the same twice in
    /// a row.
    pub fn poll(&mut self) -> Option<WatchAction> {
        let stops = self.is_winding_down();
        let mut next = self.actions.pop_front();
        match &mut next {
            None => self.actions = VecDeque::new(), // a ping is rare, and a watched call lasts
            Some(WatchAction::Ping { ping, .. }) => ping.abort |= stops,
            Some(_) => return next,
        }
        while let Some(WatchAction::Ping { ping, .. }) = self.actions.front_mut() {
            ping.abort |= stops;
            if self.actions.front() != next.as_ref() {
                break;
            }
            self.actions.pop_front();
        }
        next
    }

    /// What is lost of a call that goes on all the same, out of turn: before it is said to be complete.
    pub fn take_lost(&mut self) -> Vec<Box<Loss>> {
        let mut lost = Vec::new();
        for action in std::mem::take(&mut self.actions) {
            match action {
                WatchAction::Lost(failure) => lost.push(failure),
                action => self.actions.push_back(action),
            }
        }
        lost
    }

    /// When [`Self::handle_timeout`] has something to do.
    pub fn next_timeout(&self) -> Option<Duration> {
        let due = self.queue.first().map(|first| first.0);
        let behind = self.is_behind().then_some(self.turn);
        behind.into_iter().chain(due).min()
    }

    /// A turn begins: each takes a limited number of steps, whatever the tree looks like.
    fn begin_turn(&mut self, now: Duration) {
        self.steps = 0;
        self.turn = now;
    }

    /// Whether earlier turns have left something to do.
    fn is_behind(&self) -> bool {
        let unwound = self.phase != Phase::Quiet && !self.unwound.is_empty();
        unwound || self.unseen || !self.hints.is_empty() || !self.climbs.is_empty()
    }

    /// Whether the call has failed or was aborted.
    pub fn is_winding_down(&self) -> bool {
        self.phase != Phase::Watching
    }

    /// An initial request was sent to this server: a further one of the call, or one again.
    pub fn sent(&mut self, request: RequestId, server: Location, now: Duration) {
        self.begin_turn(now);
        if let Some(position) = self.tree.find(&request.path) {
            self.locate(position, request.hop, &server, now);
            self.look_at_changes(now);
        }
    }

    /// The application has itself said where the request with this place goes, though another server sends it: as soon as
    /// something is heard of it, it is asked there, even if who sent it can no longer say where it is.
    pub fn place(&mut self, path: Path, server: Location, now: Duration) {
        self.begin_turn(now);
        self.placed.insert(path, server);
        if let Some(position) = self.tree.find(&path) {
            self.look_at(position, now);
        }
    }

    /// What was found in place of the server of a branch, if that is not there any more.
    fn absence(&self, position: u32) -> Option<Absence> {
        let watched = self.branches.get(position as usize)?;
        let node = watched.gone.and(watched.top()?.at.node)?;
        let gone = self.gone.get(&node)?;
        Some(Absence {
            found: gone.found,
            disconnected: gone.certain.is_some(),
        })
    }

    /// The server of a request, as far as that is known.
    pub fn server_of(&self, request: RequestId) -> Option<&Location> {
        let position = self.tree.find(&request.path)?;
        let watched = self.branches.get(position as usize)?;
        let hop = watched.hops.iter().find(|hop| hop.hop == request.hop)?;
        hop.at.is_known().then_some(&hop.at)
    }

    /// The latest request of a branch, if others have said that it was handed on further than its own messages tell.
    pub fn handed_on(&self, request: RequestId) -> Option<RequestId> {
        let position = self.tree.find(&request.path)?;
        let top = self.branches.get(position as usize)?.top()?;
        (top.hop > request.hop).then_some(RequestId {
            hop: top.hop,
            ..request
        })
    }

    /// How long a request has made no progress, if its server has said less than two ping periods ago that it runs, or two periods of
    /// heartbeats.
    pub fn idle(&self, request: RequestId, now: Duration) -> Option<Duration> {
        let position = self.tree.find(&request.path)?;
        let watched = self.branches.get(position as usize)?;
        let hop = watched.hops.iter().find(|hop| hop.hop == request.hop)?;
        let (progressed, said) = hop.progressed?;
        let recent = said.saturating_add(self.settings.quiet().saturating_mul(2)) > now;
        recent.then(|| now.saturating_sub(progressed))
    }

    /// Whether anything that is known of a request's branch was asked about.
    pub fn was_asked(&self, request: RequestId) -> bool {
        let position = self.tree.find(&request.path);
        let watched = position.and_then(|position| self.branches.get(position as usize));
        watched.is_some_and(WatchedBranch::was_asked)
    }

    /// This endpoint's own output still holds an initial request: its parts are on their way, or it waits for credit or
    /// for its connection. No server can show life before it has been written out. The driver says so as long as it is
    /// so, before each [`Self::handle_timeout`].
    pub fn writing(&mut self, request: RequestId, now: Duration) {
        if let Some(position) = self.tree.find(&request.path) {
            self.ensure_line(position, now);
            let watched = self.watched(position);
            watched.evidence = watched.evidence.max(now);
            watched.gone = None;
        }
    }

    /// A response or an end of this request arrived, and the initiator has been shown it.
    pub fn handle_heard(&mut self, request: RequestId, from: &Source, now: Duration) {
        self.begin_turn(now);
        let position = self.tree.find(&request.path);
        // A status may be this endpoint's own, in the name of a request that it could not send.
        let is_own = position.is_some_and(|position| {
            let branch = self.tree.branch_at(position);
            self.tree.is_initial(position) && branch.is_some_and(|branch| branch.undelivered)
        });
        self.taken |= !is_own;
        // Of further attempts only pongs tell: this may be a late word of an earlier one.
        if let Some(position) = position
            && self.attempt_of(position) == 0
        {
            self.locate(position, request.hop, &from.location, now);
        }
        self.look_at_changes(now);
    }

    fn attempt_of(&self, position: u32) -> u32 {
        let watched = self.branches.get(position as usize);
        watched.map_or(0, |watched| watched.attempt)
    }

    /// The attempt that a branch is in: its root's, as far as that is known, else the latest of all.
    fn attempt_now(&mut self, path: &Path) -> u32 {
        if self.resends == 0 {
            return 0;
        }
        let stated = path.initial_index().map(Path::initial);
        let root = match stated {
            Some(root) => self.tree.find(&root),
            None => self
                .tree
                .find(path)
                .map(|position| self.roots.of(&self.tree, position)),
        };
        let root = root.filter(|root| self.tree.is_initial(*root));
        root.map_or(self.latest_attempt, |root| self.attempt_of(root))
    }

    /// A pong or an announcement of this call arrived, over a connection that a request of the call used or with the
    /// call's token.
    ///
    /// The ping that is returned goes back over that connection, or where that is not known over none. A server that tells of
    /// itself but of which nobody has said yet where it is must be asked, or it takes the initiator for dead. And if the call has
    /// failed with more requests than it may have, one that it has no room for must stop all the same.
    pub fn handle_pong(&mut self, pong: &Pong, from: &Source, now: Duration) -> Option<Ping> {
        self.begin_turn(now);
        let attempt = self.attempt_now(&pong.request.path);
        let was_located = from.location.is_known() || self.server_of(pong.request).is_some();
        if pong.progress.is_none() && !pong.announced {
            self.handle_unknown(pong, attempt, from, now);
            return None;
        }
        // How a branch ended in an attempt that was given up says nothing: it may have been by a status.
        let is_past = pong.attempt < attempt && self.phase == Phase::Watching;
        let told = pong.progress.as_ref().filter(|_| !is_past);
        if let Err(violation) = self.tree.handle_progress(pong.request, told) {
            self.violated(pong.request, violation, now);
        }
        let Some(position) = self.tree.find(&pong.request.path) else {
            return self.handle_stray(pong, now);
        };
        self.look_at_changes(now);
        self.ensure_line(position, now);
        match &pong.progress {
            None => self.handle_relayed(position, pong, now),
            // Only this watch begins attempts, and no request has had more of them.
            _ if pong.attempt > self.resends => {}
            _ if pong.attempt < attempt => {}
            Some(progress) => self.handle_known(position, pong, progress, from, now),
        }
        if pong.announced && (self.is_winding_down() || self.watched(position).placed) {
            // Undiscovered branches are reached like this (rule 34), and those that wait for their turn.
            let top = self.watched(position).highest_located();
            if let Some(index) = top {
                self.ping_unless_recent(position, index, now);
            }
        }
        self.look_at(position, now);
        // Over the connection that it came on, even if what it says of itself leads there, too: that may be a long way.
        let top = self.watched(position).top();
        let is_lost = !was_located && top.is_some_and(|top| top.hop == pong.request.hop);
        let needs_no_ping = pong.heartbeats && self.unasked_until(position) > now;
        let asks = pong.announced && is_lost && !needs_no_ping && self.phase != Phase::Quiet;
        asks.then(|| Ping {
            abort: self.is_winding_down(),
            ..about(pong, self.tree.token())
        })
    }

    /// A connection with this node ended, and all that came over it has been read. That is no verdict: but what is
    /// missing from there is asked for at once (rules 18 and 25).
    pub fn handle_disconnect(&mut self, node: NodeId, now: Duration) {
        let ended = NodeHint {
            asks: true,
            ..NodeHint::default()
        };
        self.note_hint(node, ended, now);
    }

    /// As [`Self::handle_disconnect`], and no other connection with this node is open: what was asked when an earlier one
    /// ended may have gone out on one that was dead, too. So this hint is believed whatever came before it.
    pub fn handle_last_disconnect(&mut self, node: NodeId, now: Duration) {
        let ended = NodeHint {
            asks: true,
            alone: true,
            ..NodeHint::default()
        };
        self.note_hint(node, ended, now);
    }

    /// Whoever is at the address of this node took a connection and closed it before it was open: the node was met there before, and
    /// may be about to end (rule 18).
    pub fn handle_turned_away(&mut self, node: NodeId, now: Duration) {
        let ended = NodeHint {
            soon: true,
            ..NodeHint::default()
        };
        self.note_hint(node, ended, now);
    }

    /// The first branch from this position on that has a hop at this node.
    fn line_at(&mut self, node: NodeId, from: u32) -> Option<u32> {
        let branches = &self.branches;
        let located = self
            .located
            .get_or_insert_with(|| Box::new(Located::new(branches)));
        located.first_at(node, from, branches)
    }

    /// This node is gone: its connection ended, and redialling it is refused or answered by another node. What was seen
    /// there last has three ping periods to show life elsewhere.
    pub fn handle_gone(&mut self, node: NodeId, found: Found, now: Duration) {
        self.note_gone(node, (found, true), None, now);
    }

    /// As [`Self::handle_gone`], and no connection is left by which something may come from there. Whoever has a request from
    /// there has lost its connection, too, and says so at once: its word is here `within` this time. Longer than a ping period is
    /// no longer than that.
    pub fn handle_gone_for_certain(
        &mut self,
        (node, found): (NodeId, Found),
        within: Duration,
        now: Duration,
    ) {
        self.note_gone(node, (found, true), Some(within), now);
    }

    /// Who has handed this request on says that its server is gone for certain. Once that is known of the server only this branch is
    /// looked at: peers may say the same ever again.
    pub fn handle_told_gone(&mut self, request: RequestId, within: Duration, now: Duration) {
        let Some(node) = self.server_of(request).and_then(|at| at.node) else {
            return;
        };
        let known = self.gone.get(&node);
        if known.is_none_or(|gone| gone.certain.is_none()) {
            return self.handle_gone_for_certain((node, Found::Nobody), within, now);
        }
        if let Some(position) = self.tree.find(&request.path) {
            self.begin_turn(now);
            let ended = NodeHint {
                node: true,
                certain: true,
                ..NodeHint::default()
            };
            self.look_into(position, node, ended, now);
        }
    }

    /// This node, which others have named as a server of the call, was not found: where they say that it is nobody listens,
    /// or another node does, and this endpoint has never reached it there. It is taken for gone like one that was, until
    /// others pass on a pong from there: then it is they alone who can reach it, and this says nothing any more.
    pub fn handle_not_found(&mut self, node: NodeId, found: Found, now: Duration) {
        if !self.beyond.contains(&node) {
            self.note_gone(node, (found, false), None, now);
        }
    }

    fn note_gone(
        &mut self,
        node: NodeId,
        (found, was_met): (Found, bool),
        within: Option<Duration>,
        now: Duration,
    ) {
        if self.line_at(node, 0).is_none() {
            return; // nothing of the call was ever there
        }
        let is_news = !self.gone.contains_key(&node);
        let news = Gone {
            since: now,
            was_met,
            found,
            certain: None,
        };
        let gone = self.gone.entry(node).or_insert(news);
        gone.was_met |= was_met;
        gone.found = found;
        let is_sure = gone.certain.is_none() && within.is_some();
        let within = within.map(|within| (now, within.min(self.settings.ping.period)));
        gone.certain = gone.certain.or(within);
        if is_news {
            self.forget_unnamed();
        }
        let ended = NodeHint {
            asks: is_news,
            node: true,
            certain: is_sure,
            ..NodeHint::default()
        };
        self.note_hint(node, ended, now);
    }

    /// Nodes that are not where anything is any more are forgotten, so that a server that names ever new ones gets no memory
    /// for them.
    fn forget_unnamed(&mut self) {
        if self.gone.len() + self.beyond.len() <= 2 * self.hops + MAX_UNNAMED {
            return;
        }
        let hops = self.branches.iter().flat_map(|watched| &watched.hops);
        let named: BTreeSet<NodeId> = hops.filter_map(|hop| hop.at.node).collect();
        self.gone.retain(|node, _| named.contains(node));
        self.beyond.retain(|node| named.contains(node));
    }

    /// The application gives the call up, its deadline has passed, or it was dropped: all that runs is stopped.
    pub fn abort(&mut self, now: Duration) {
        self.begin_turn(now);
        self.look_at_changes(now);
        self.wind_down(now);
    }

    /// Time has passed. All input must have been read before (rule 20).
    pub fn handle_timeout(&mut self, now: Duration) {
        self.begin_turn(now);
        self.look_at_changes(now);
        self.catch_up(now);
        while let Some((due, position)) = self.queue.first() {
            if due > now || self.steps >= MOST_LOOKED_AT {
                return;
            }
            self.queue.remove((due, position));
            self.branches[position as usize].due = None;
            self.take_turn(position, now);
        }
    }

    /// Does some of what earlier turns have left, so that there is time for what is due, too.
    fn catch_up(&mut self, now: Duration) {
        const HALF: usize = MOST_LOOKED_AT / 2;
        self.wind_on(HALF, now);
        self.follow_hints(HALF, now);
        while self.steps < HALF
            && let Some(position) = self.climbs.pop_front()
        {
            self.ask_above(position, now);
        }
    }
}
