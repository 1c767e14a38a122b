//! Where the messages and handlers of a call are, and what of it may have made the call fail.
//!
//! A failure is true only if it has a cause of its own: something of this very call was lost for good, or a server that
//! it needed, or the way to it, was gone for about as long as the call waits.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use wallaby_proto::call::watch::{Executed, FailureKind, Loss};
use wallaby_proto::{NodeId, Path, RequestId};

use crate::detection::{Cause, Lost};
use crate::oracle::Place;
use crate::plan::{CallPlan, Fault, Manner, NodePlan, Plan, Reach};

/// The keep-alive's patience and what it waits before: a connection is given up that was silent for so long.
const LONGEST_SILENCE: Duration = Duration::from_secs(13);

/// No dial takes longer.
const LONGEST_DIAL: Duration = Duration::from_secs(16);

/// Endpoints ask their connections at least so often what has left.
const LEARNT: Duration = Duration::from_millis(6);

/// Two incarnations, and the connection between them where it has a name: what one of them sent to the other on it.
pub(crate) type Flight = (NodeId, NodeId, u32);

/// A message that must arrive somewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Item {
    Request(RequestId),
    Answer(Place),
}

/// The incarnations of all nodes.
#[derive(Debug, Default)]
pub(crate) struct Incarnations(BTreeMap<NodeId, Incarnation>);

#[derive(Debug)]
struct Incarnation {
    node: u32,
    began: Duration,
    ended: Option<Duration>,
}

impl Incarnations {
    pub(crate) fn began(&mut self, incarnation: NodeId, node: u32, now: Duration) {
        let (began, ended) = (now, None);
        self.0
            .insert(incarnation, Incarnation { node, began, ended });
    }

    pub(crate) fn ended(&mut self, incarnation: NodeId, now: Duration) {
        if let Some(incarnation) = self.0.get_mut(&incarnation) {
            incarnation.ended = Some(now);
        }
    }

    fn had_ended(&self, incarnation: NodeId, at: Duration) -> bool {
        self.end_of(incarnation).is_some_and(|end| end <= at)
    }

    /// When an incarnation ended, if it has.
    fn end_of(&self, incarnation: NodeId) -> Option<Duration> {
        self.0.get(&incarnation)?.ended
    }

    pub(crate) fn node(&self, incarnation: NodeId) -> Option<u32> {
        self.0.get(&incarnation).map(|incarnation| incarnation.node)
    }

    /// Whether a server of a call was not there at some time while that lasted.
    pub(crate) fn were_down(&self, planned: &CallPlan) -> bool {
        let servers = planned.servers();
        let mut servers = (0..64).filter(|node| servers & 1 << node != 0);
        servers.any(|node| self.was_down(node, planned.at, planned.at + planned.deadline))
    }

    /// Whether a node was not there, or died, at some time between these.
    fn was_down(&self, node: u32, from: Duration, to: Duration) -> bool {
        let mut incarnations = self
            .0
            .values()
            .filter(|incarnation| incarnation.node == node);
        !incarnations.any(|incarnation| {
            incarnation.began <= from && incarnation.ended.is_none_or(|ended| ended > to)
        })
    }
}

/// What the oracle saw of one call's messages and handlers.
#[derive(Debug, Default)]
pub(crate) struct Trail {
    letters: BTreeMap<Item, Letter>,
    runs: BTreeMap<RequestId, Run>,
    /// Pings, pongs and announcements that were sent and have not arrived.
    controls: BTreeMap<Flight, VecDeque<Duration>>,
    /// Those that a node had no way for.
    stranded: Vec<Duration>,
    /// Who has passed something on.
    relays: BTreeSet<NodeId>,
    /// Something has told the initiator that a server took a request.
    told: Option<Duration>,
    /// Whose manifest each request was given.
    given: BTreeMap<RequestId, Path>,
    /// Branches whose manifests were given to requests that have told of themselves.
    told_of: BTreeSet<Path>,
    failed: Option<Failed>,
}

#[derive(Debug)]
struct Letter {
    at: Custody,
    /// The node of the server that a request is for.
    to: Option<u32>,
    /// The request that released it; none for an initial one.
    from: Option<RequestId>,
    /// It has left the node that released it.
    sent: bool,
    /// When it had been written out, or its connection ended before; an answer over a session, when it was acknowledged.
    left: Option<Duration>,
    /// When it came to its receiver, or something else took its place.
    arrived: Option<Duration>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Custody {
    Node(NodeId),
    /// On its way from an incarnation, which may still have the rest of it.
    Wire(NodeId),
    /// A node had no way for it.
    Nowhere,
}

/// A request that an incarnation took.
#[derive(Debug)]
struct Run {
    incarnation: NodeId,
    progressed: Duration,
    /// The longest time in which it made no progress, up to the latest.
    idle: Duration,
    ended: bool,
}

/// How things stood when the call failed.
#[derive(Debug)]
struct Failed {
    at: Duration,
    /// `None` if its request was not sent, as its initiator says.
    kind: Option<FailureKind>,
    request: RequestId,
    evicted: bool,
    /// Servers whose dial by the initiator was cut without its knowledge, and when: pings waited for that to open.
    hanging: Vec<(u32, Duration)>,
    /// What had not arrived, and where it was.
    outstanding: Vec<(Item, Custody)>,
    /// Some incarnation that took a request of the branch had ended.
    branch_died: bool,
    /// Some incarnation had ended while a handler of the call ran there.
    died_running: bool,
    /// Some incarnation that took a request of the call had ended.
    died: bool,
}

impl Trail {
    /// An incarnation released a message.
    pub(crate) fn released(
        &mut self,
        (from, item): (Option<RequestId>, Item),
        by: NodeId,
        to: Option<u32>,
    ) {
        let letter = Letter {
            at: Custody::Node(by),
            to,
            from,
            sent: false,
            left: None,
            arrived: None,
        };
        self.letters.insert(item, letter);
    }

    /// It went out on a connection.
    pub(crate) fn sent(&mut self, item: Item, by: NodeId) {
        if let Some(letter) = self.letters.get_mut(&item) {
            (letter.at, letter.sent) = (Custody::Wire(by), true);
        }
    }

    /// A message is in its sender's output, from now on or once more.
    pub(crate) fn leaves(&mut self, item: Item) {
        if let Some(letter) = self.letters.get_mut(&item) {
            letter.left = None;
        }
    }

    /// Its sender need not write it any more.
    pub(crate) fn left(&mut self, item: Item, now: Duration) {
        if let Some(letter) = self.letters.get_mut(&item) {
            letter.left.get_or_insert(now);
        }
    }

    /// Whether something that a request sent is still being written: its own requests until they have left, its answers
    /// until their sender knows that they have arrived.
    pub(crate) fn is_writing(&self, request: RequestId, now: Duration) -> bool {
        let own = |letter: &&Letter| {
            letter.from == Some(request) && letter.left.is_none_or(|left| left + LEARNT >= now)
        };
        let mut letters = self.letters.iter().filter(|(_, letter)| own(letter));
        letters.any(|(item, letter)| match item {
            // A small one that has arrived may have overtaken what the connection still writes.
            Item::Request(_) => letter.sent || letter.arrived.is_none(),
            Item::Answer(_) => true,
        })
    }

    /// Something came to a node that passes it on.
    pub(crate) fn relayed(&mut self, item: Option<Item>, by: NodeId) {
        self.relays.insert(by);
        if let Some(letter) = item.and_then(|item| self.letters.get_mut(&item)) {
            letter.at = Custody::Node(by);
        }
    }

    /// A node has no way for it.
    pub(crate) fn nowhere(&mut self, item: Item) {
        if let Some(letter) = self.letters.get_mut(&item) {
            letter.at = Custody::Nowhere;
        }
    }

    /// It came to its receiver, or something else goes in its place.
    pub(crate) fn arrived(&mut self, item: Item, now: Duration) {
        if let Some(letter) = self.letters.get_mut(&item) {
            letter.arrived.get_or_insert(now);
        }
    }

    /// The initiator is told that a server took a request.
    pub(crate) fn told(&mut self, now: Duration) {
        self.told.get_or_insert(now);
    }

    /// A request was given the manifest of this branch.
    pub(crate) fn given(&mut self, request: RequestId, owner: Path) {
        self.given.insert(request, owner);
    }

    /// The initiator is told of this request: of the manifest that it was given, too (docs/protocol.md, rule 12).
    pub(crate) fn told_of(&mut self, request: RequestId) {
        self.told_of.extend(self.given.get(&request));
    }

    /// Whether a branch is said to be silent although somebody has told how it ended.
    pub(crate) fn is_known_to_have_ended(&self, failure: &Loss) -> bool {
        let is_silent = matches!(failure.kind, FailureKind::Silent { .. });
        is_silent && self.told_of.contains(&failure.request.path)
    }

    pub(crate) fn control_sent(&mut self, flight: Flight, now: Duration) {
        self.controls.entry(flight).or_default().push_back(now);
    }

    pub(crate) fn control_stranded(&mut self, now: Duration) {
        self.stranded.push(now);
    }

    pub(crate) fn control_arrived(&mut self, flight: Flight) {
        if let Some(sent) = self.controls.get_mut(&flight) {
            sent.pop_front();
        }
    }

    /// An incarnation takes a request.
    pub(crate) fn started(&mut self, request: RequestId, incarnation: NodeId, now: Duration) {
        self.arrived(Item::Request(request), now);
        let run = Run {
            incarnation,
            progressed: now,
            idle: Duration::ZERO,
            ended: false,
        };
        self.runs.entry(request).or_insert(run);
    }

    /// Its handler did something; it may have been the last.
    pub(crate) fn progressed(&mut self, request: RequestId, now: Duration, last: bool) {
        if let Some(run) = self.runs.get_mut(&request) {
            run.idle = run.idle.max(now - run.progressed);
            run.progressed = now;
            run.ended |= last;
        }
    }

    /// The call fails now; what of its failure is not true?
    pub(crate) fn failed(
        &mut self,
        now: Duration,
        failure: &Loss,
        hanging: Vec<(u32, Duration)>,
        planned: &CallPlan,
        incarnations: &Incarnations,
    ) -> Option<String> {
        let request = failure.request;
        let here = |path: &Path| {
            let first = RequestId {
                path: *path,
                hop: 0,
            };
            self.letters.contains_key(&Item::Request(first)) || self.runs.contains_key(&first)
        };
        if !self.exists(&request) {
            return Some(format!("request {request} was never sent"));
        }
        if let Some(step) = failure.path.iter().find(|step| !here(&step.request.path)) {
            return Some(format!("no branch is {}", step.request));
        }
        let run = self.runs.get(&request);
        let wrong = match &failure.kind {
            FailureKind::ResponseLost { index } => {
                let place = Place::Response(request.path, *index);
                match self.letters.get(&Item::Answer(place)) {
                    None => Some("was never sent"),
                    // What has come since in this very moment could not be known.
                    Some(letter) if letter.arrived.is_some_and(|at| at < now) => {
                        Some("has arrived")
                    }
                    Some(_) => None,
                }
                .map(|words| format!("{place:?} {words}"))
            }
            FailureKind::Stalled { .. } => {
                let limit = planned.stall.unwrap_or_default() * 9 / 10;
                // It may have gone on while its pong was under way.
                let stuck =
                    run.is_some_and(|run| run.idle >= limit || run.progressed + limit <= now);
                (!stuck).then(|| format!("{request} makes progress"))
            }
            _ => None,
        };
        let (node, at) = (failure.server.node, run.map(|run| run.incarnation));
        let misplaced = node.zip(at).filter(|(says, is)| says != is);
        let wrong = wrong
            .or_else(|| misplaced.map(|(says, is)| format!("{request} is at {is}, not at {says}")))
            .or_else(|| self.wrong_about_execution(failure, now));
        let kind = Some(failure.kind.clone());
        self.note_failed(
            (now, request),
            (kind, failure.evicted),
            hanging,
            incarnations,
        );
        wrong
    }

    /// The call fails now, as an initial request of it certainly was not sent; what of that is not true?
    pub(crate) fn not_sent(
        &mut self,
        now: Duration,
        request: RequestId,
        hanging: Vec<(u32, Duration)>,
        incarnations: &Incarnations,
    ) -> Option<String> {
        if !self.exists(&request) {
            return Some(format!("there is no request {request}"));
        }
        self.note_failed((now, request), (None, false), hanging, incarnations);
        let has_arrived = self.runs.contains_key(&request);
        has_arrived.then(|| format!("{request} has reached its server"))
    }

    fn exists(&self, id: &RequestId) -> bool {
        self.letters.contains_key(&Item::Request(*id)) || self.runs.contains_key(id)
    }

    fn note_failed(
        &mut self,
        (now, request): (Duration, RequestId),
        (kind, evicted): (Option<FailureKind>, bool),
        hanging: Vec<(u32, Duration)>,
        incarnations: &Incarnations,
    ) {
        let dead = || {
            let runs = self.runs.iter();
            runs.filter(|(_, run)| incarnations.had_ended(run.incarnation, now))
        };
        self.failed = Some(Failed {
            at: now,
            kind,
            request,
            evicted,
            hanging,
            outstanding: self
                .letters
                .iter()
                .filter(|(_, letter)| letter.arrived.is_none())
                .map(|(item, letter)| (*item, letter.at))
                .collect(),
            branch_died: dead().any(|(id, _)| id.path == request.path),
            died_running: dead().any(|(_, run)| !run.ended),
            died: dead().next().is_some(),
        });
    }

    /// What a failure says about execution must be what was seen.
    fn wrong_about_execution(&self, failure: &Loss, now: Duration) -> Option<String> {
        let words = match failure.executed {
            Executed::Executed if self.runs.is_empty() => "no server has taken anything",
            Executed::Unknown if self.told.is_some_and(|at| at < now) => {
                "a server has told that it took a request"
            }
            _ => return None,
        };
        Some(format!("it says that {}, but {words}", failure.executed))
    }

    /// Nothing happens any more: what made the call fail, in a word.
    pub(crate) fn cause(
        &self,
        plan: &Plan,
        planned: &CallPlan,
        incarnations: &Incarnations,
    ) -> Option<&'static str> {
        let failed = self.failed.as_ref()?;
        if matches!(failed.kind, Some(FailureKind::Stalled { .. })) {
            return Some("stalled"); // it was looked into when the call failed
        }
        let branch = failed.request.path;
        if plan.is_calm() && !failed.evicted {
            return None; // sessions and connections lose nothing by themselves
        }
        if failed.kind.is_none() {
            let from = failed.at.saturating_sub(LONGEST_DIAL);
            let mut targets = self.targets(branch);
            let cut = |node: u32| {
                let both = 1 << node | 1 << planned.initiator;
                let mut faults = plan.faults.iter();
                faults.any(|fault| match fault {
                    Fault::Cut { at, .. } => {
                        fault.nodes() == both && (from..=failed.at).contains(at)
                    }
                    _ => false,
                })
            };
            if targets.any(|node| incarnations.was_down(node, from, failed.at) || cut(node)) {
                return Some("nobody was there, or the connection was cut before it was open");
            }
        }
        let lost = |item: &Item, at: &Custody| match at {
            Custody::Node(incarnation) => {
                incarnations.had_ended(*incarnation, failed.at) && !self.has_arrived(item)
            }
            Custody::Wire(_) | Custody::Nowhere => !self.has_arrived(item),
        };
        let mut missing = failed
            .outstanding
            .iter()
            .filter(|(item, at)| lost(item, at));
        let concerns = |item: &Item| match (&failed.kind, item) {
            (Some(FailureKind::ResponseLost { index }), Item::Answer(place)) => {
                *place == Place::Response(branch, *index)
            }
            // It is never sent again: the call can't complete, whichever branch shows that first.
            (_, Item::Request(_)) => true,
            (_, Item::Answer(Place::Response(path, _))) => tells_of(path, &branch),
            // Facts can be asked for as long as the servers live that know of them.
            (_, Item::Answer(Place::End(path))) => tells_of(path, &branch) && failed.died,
        };
        // Who was stopped or cut off for a while may have lost its sessions, but finds out before it sends the next request.
        let passed = |fault: &Fault| match fault {
            Fault::Stall { .. } | Fault::Partition { .. } => fault.end() <= planned.at,
            Fault::Drain { .. } => true,
            Fault::Crash { .. } | Fault::Cut { .. } => false,
        };
        let disturbed = !plan.faults.iter().all(passed);
        if disturbed && missing.any(|(item, _)| concerns(item)) {
            return Some("a message was lost");
        }
        let mut outstanding = failed.outstanding.iter();
        if outstanding.any(|(item, _)| concerns(item) && self.hangs(item, failed.at, plan)) {
            return Some("a request waited in a connection to a machine that had crashed");
        }
        if failed.died_running {
            return Some("a handler was lost");
        }
        if failed.branch_died {
            return Some("whoever knew is gone");
        }
        let nodes = || {
            self.runs
                .values()
                .filter_map(|run| incarnations.node(run.incarnation))
        };
        if failed.evicted && nodes().any(|node| is_small(plan, node)) {
            return Some("a record was evicted");
        }
        let silent = self.lost_controls(failed.at, planned);
        if disturbed && silent >= 2 {
            return Some("pings or pongs were lost");
        }
        self.blockage(failed, plan, planned, incarnations)
            .filter(|_| disturbed)
    }

    /// Whether a request may wait in a connection whose other end was on a machine that has crashed: nobody tells of that, so
    /// its sender finds out by silence, which may take longer than the call waits.
    fn hangs(&self, item: &Item, now: Duration, plan: &Plan) -> bool {
        let Some(Letter {
            to: Some(to),
            left: None,
            ..
        }) = self.letters.get(item)
        else {
            return false;
        };
        let since = now.saturating_sub(LONGEST_SILENCE);
        plan.faults.iter().any(|fault| {
            matches!(fault, Fault::Crash { node, at, manner: Manner::Machine, .. }
                if node == to && (since..=now).contains(at))
        })
    }

    fn has_arrived(&self, item: &Item) -> bool {
        self.letters
            .get(item)
            .is_none_or(|letter| letter.arrived.is_some())
    }

    /// The nodes that had requests of a branch, of those above it, which know where it is, or of those below it, which
    /// carry its manifest.
    fn nodes<'a>(
        &'a self,
        path: Path,
        incarnations: &'a Incarnations,
    ) -> impl Iterator<Item = u32> + 'a {
        let of_branch = self
            .runs
            .iter()
            .filter(move |(id, _)| are_related(&id.path, &path));
        of_branch.filter_map(|(_, run)| incarnations.node(run.incarnation))
    }

    /// The nodes that such requests were sent to.
    fn targets(&self, path: Path) -> impl Iterator<Item = u32> + '_ {
        let letters = self.letters.iter();
        letters.filter_map(move |(item, letter)| match item {
            Item::Request(id) if are_related(&id.path, &path) => letter.to,
            _ => None,
        })
    }

    /// What nobody can tell the initiator of any more: handlers whose incarnations have ended, requests that have left their
    /// senders and were never taken, answers that were lost with whoever had them.
    pub(crate) fn lost<'a>(
        &'a self,
        incarnations: &'a Incarnations,
    ) -> impl Iterator<Item = Lost> + 'a {
        let handlers = self.runs.iter().filter(|(_, run)| !run.ended);
        let handlers = handlers.filter_map(|(id, run)| {
            Some(self.lose(
                Item::Request(*id),
                true,
                incarnations.end_of(run.incarnation)?,
            ))
        });
        let letters = self.letters.iter();
        let letters = letters.filter(|(_, letter)| letter.arrived.is_none());
        let letters = letters.filter_map(|(item, letter)| {
            let died = match letter.at {
                Custody::Node(incarnation) | Custody::Wire(incarnation) => {
                    incarnations.end_of(incarnation)
                }
                Custody::Nowhere => None,
            };
            let since = match item {
                Item::Request(_) => letter.left.or(died),
                Item::Answer(_) => died,
            };
            Some(self.lose(*item, false, since?))
        });
        handlers.chain(letters)
    }

    fn lose(&self, item: Item, taken: bool, since: Duration) -> Lost {
        let (path, what) = match item {
            Item::Request(id) if taken => (id.path, Cause::Handler(id)),
            Item::Request(id) => (id.path, Cause::Request(id)),
            Item::Answer(Place::Response(path, _)) => (path, Cause::Response),
            Item::Answer(Place::End(path)) => (path, Cause::End),
        };
        let first = Item::Request(RequestId { path, hop: 0 });
        let above = self.letters.get(&first).and_then(|letter| letter.from);
        Lost {
            path,
            what,
            since,
            depth: self.depth(item),
            above: above.map(|request| request.path),
        }
    }

    /// How many requests led to a message.
    fn depth(&self, item: Item) -> u32 {
        let from = |item: &Item| Some(Item::Request(self.letters.get(item)?.from?));
        std::iter::successors(from(&item), from).count() as u32
    }

    /// How many messages of failure detection never arrived that were sent while the verdict was due.
    fn lost_controls(&self, failed: Duration, planned: &CallPlan) -> usize {
        let from = failed.saturating_sub(planned.timeout * 2);
        let sent = self.controls.values().flatten().chain(&self.stranded);
        sent.filter(|sent| (from..failed).contains(*sent)).count()
    }

    /// Nodes that the branch needs stood still, or could not be reached, for a good part of the call timeout.
    fn blockage(
        &self,
        failed: &Failed,
        plan: &Plan,
        planned: &CallPlan,
        incarnations: &Incarnations,
    ) -> Option<&'static str> {
        let Failed { at, request, .. } = failed;
        let holders = failed
            .outstanding
            .iter()
            .filter_map(|(item, at)| match (item, at) {
                (Item::Request(id), Custody::Node(incarnation) | Custody::Wire(incarnation))
                    if are_related(&id.path, &request.path) =>
                {
                    incarnations.node(*incarnation)
                }
                _ => None,
            });
        // Who can't be dialled hears all over those that it has called.
        let hidden = plan.nodes[planned.initiator as usize].reach != Reach::Open;
        let roots = planned.roots.iter().filter(|_| hidden);
        let relays = self
            .relays
            .iter()
            .filter_map(|incarnation| incarnations.node(*incarnation));
        let needed = self
            .nodes(request.path, incarnations)
            .chain(roots.map(|root| root.server))
            .chain(relays)
            .chain(self.targets(request.path))
            .chain(holders)
            .fold(0, |marks, node| marks | 1 << node);
        let from = at.saturating_sub(planned.timeout * 2);
        let blocked = plan
            .faults
            .iter()
            .filter_map(|fault| match fault {
                Fault::Stall { node, at, lasts } if needed & 1 << node != 0 => Some((at, *lasts)),
                Fault::Partition { at, lasts, .. }
                    if fault.nodes() & (needed | 1 << planned.initiator) != 0 =>
                {
                    // Retransmission notices a while later that the way is open again.
                    Some((at, *lasts + Duration::from_millis(200)))
                }
                _ => None,
            })
            .map(|(begin, lasts)| (*begin + lasts).min(*at).saturating_sub(*begin.max(&from)));
        let hanging = failed.hanging.iter();
        let hanging = hanging.filter(|(node, _)| needed & 1 << node != 0);
        let hanging = hanging.map(|(_, since)| at.saturating_sub(*since.max(&from)));
        let blocked: Duration = blocked.chain(hanging).sum();
        (blocked * 3 >= planned.timeout).then_some("a node or the way to it was blocked")
    }
}

/// Whether a message of a branch may tell of another: of itself, or of one above it, whose manifest it carries.
fn tells_of(path: &Path, other: &Path) -> bool {
    path == other || path.is_folded() || path.levels_below(other).is_some()
}

/// Whether one of two branches is above the other, or may be.
fn are_related(one: &Path, other: &Path) -> bool {
    tells_of(one, other) || tells_of(other, one)
}

fn is_small(plan: &Plan, node: u32) -> bool {
    let node: Option<&NodePlan> = plan.nodes.get(node as usize);
    node.is_some_and(|node| !node.is_roomy())
}
