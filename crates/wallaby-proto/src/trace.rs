//! The tree of hops of a call, as far as its initiator knows it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::call::initiator::Initiator;
use crate::wire::{TracePart, TraceRecord};
use crate::{Address, CallId, NodeId, Path, RequestId};

mod drawing;

/// The tree of hops of a call: what its manifests told, and for a traced call what each hop reported of itself. As text it
/// is drawn.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Trace {
    /// The call.
    pub call: CallId,
    /// From its beginning to its end, or to now.
    pub elapsed: Duration,
    /// Its hops, parents before children.
    pub hops: Vec<TracedHop>,
}

impl Trace {
    /// The tree of a call of which nothing was sent.
    pub fn empty(call: CallId) -> Self {
        Self {
            call,
            elapsed: Duration::ZERO,
            hops: Vec::new(),
        }
    }
}

/// One request of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct TracedHop {
    /// Its branch: the child index of each level, as in `0.1.2`.
    pub path: String,
    /// How many hops of its branch came before it.
    pub hop: u32,
    /// Who sent it: an index into [`Trace::hops`]; `None` if the initiator did or if that is not known.
    pub parent: Option<usize>,
    /// Its server, where that is known.
    pub server: Option<Address>,
    /// Its server's incarnation, where that is known.
    pub node: Option<NodeId>,
    /// Its method, where that is known.
    pub method: Option<String>,
    /// Responses of its branch, where it is the branch's last hop.
    pub responses: u64,
    /// Child requests of its branch, where it is the branch's last hop.
    pub delegated: u64,
    /// What it reported of itself, in a traced call.
    pub timing: Option<Timing>,
    /// What it told apart of its time, in a traced call.
    pub parts: Vec<TimingPart>,
    /// When its branch's latest response arrived at the initiator, since the call began.
    pub answered: Option<Duration>,
}

/// When a hop ran.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Timing {
    /// When the request arrived, since the call began, by the clocks of the two machines.
    pub arrived: Duration,
    /// How long it waited for its handler.
    pub queued: Duration,
    /// How long its handler ran.
    pub ran: Duration,
}

/// A part of the time that a hop took, as its server tells it apart.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct TimingPart {
    /// What it was for.
    pub name: Arc<str>,
    /// How long it took, of the time that the hop ran.
    pub took: Duration,
}

/// What the initiator noted about its own requests and about arrivals.
#[derive(Debug, Clone)]
pub struct Root {
    /// Its place in the tree.
    pub path: Path,
    /// Where it was sent.
    pub server: Address,
    /// The method called.
    pub method: Arc<str>,
    /// Who was there, where that is known.
    pub node: Option<NodeId>,
}

/// Draws up the tree from what the initiator has; `begun` is the Unix time when the call began, and `answered` when each
/// branch's latest response arrived since then.
pub fn assemble(
    initiator: &Initiator,
    begun: Duration,
    elapsed: Duration,
    roots: &[Root],
    answered: &[(Path, Duration)],
) -> Trace {
    let begun_us = begun.as_micros() as u64;
    let mut records: BTreeMap<Path, Vec<&TraceRecord>> = BTreeMap::new();
    for record in initiator.trace() {
        records.entry(record.request.path).or_default().push(record);
    }
    let roots: BTreeMap<_, _> = roots.iter().map(|root| (root.path, root)).collect();
    let answered: BTreeMap<_, _> = answered.iter().copied().collect();
    let parents: Parents = initiator
        .branches()
        .map(|branch| (branch.path, branch.parent.or_else(|| branch.path.parent())))
        .collect();
    let depths = depths(&parents);
    let mut hops = Vec::new();
    for branch in initiator.branches() {
        let records = records.get(&branch.path).into_iter().flatten();
        let mut of_branch: Vec<_> = records.map(|record| reported(record, begun_us)).collect();
        of_branch.sort_by_key(|hop| hop.hop);
        of_branch.dedup_by_key(|hop| hop.hop);
        if of_branch.last().is_none_or(|last| last.hop < branch.hop) {
            of_branch.push(unreported(branch.path, branch.hop));
        }
        if let (Some(root), Some(first)) = (roots.get(&branch.path), of_branch.first_mut())
            && first.hop == 0
        {
            first.server.get_or_insert_with(|| root.server.clone());
            first.method.get_or_insert_with(|| root.method.to_string());
            first.node = first.node.or(root.node);
        }
        for hop in &mut of_branch {
            say_who_handles(initiator, branch.path, hop);
        }
        if let Some(last) = of_branch.last_mut() {
            last.responses = branch
                .facts
                .map_or(branch.received, |facts| facts.responses)
                .into();
            last.delegated = branch.facts.map_or(0, |facts| facts.requests).into();
            last.answered = answered.get(&branch.path).copied();
        }
        hops.extend(of_branch.into_iter().map(|hop| (branch.path, hop)));
    }
    hops.sort_by_key(|(path, hop)| (depths.get(path).copied(), *path, hop.hop));
    Trace {
        call: initiator.call(),
        elapsed,
        hops: link(hops, &parents),
    }
}

/// What a hop that has not reported of itself has said while it ran.
fn say_who_handles(initiator: &Initiator, path: Path, hop: &mut TracedHop) {
    let request = RequestId { path, hop: hop.hop };
    if let Some(by) = initiator.handled_by(request) {
        hop.server = hop.server.take().or_else(|| by.server.clone());
        hop.method.get_or_insert_with(|| by.method.to_string());
        hop.node = hop.node.or(Some(by.node));
    }
}

/// The parent of each branch, where it is known.
type Parents = BTreeMap<Path, Option<Path>>;

/// How deep in the tree each branch is. A folded path does not say it: its parents must be followed.
fn depths(parents: &Parents) -> BTreeMap<Path, u32> {
    let mut depths = BTreeMap::new();
    for path in parents.keys() {
        let mut way = Vec::new();
        let mut next = Some(*path);
        while let Some(path) = next
            && !depths.contains_key(&path)
            && way.len() <= parents.len()
        {
            way.push(path);
            next = parents.get(&path).copied().flatten();
        }
        let mut depth = next
            .and_then(|path| depths.get(&path).copied())
            .unwrap_or(0);
        for path in way.into_iter().rev() {
            // Where a parent is not known, the path itself may say how deep it is.
            depth = path.levels_below(&Path::ROOT).unwrap_or(depth + 1);
            depths.insert(path, depth);
        }
    }
    depths
}

/// Fills in who sent each hop: the one before it in its branch, or the last hop of its parent's branch.
fn link(hops: Vec<(Path, TracedHop)>, parents: &Parents) -> Vec<TracedHop> {
    let mut latest: BTreeMap<Path, usize> = BTreeMap::new();
    let linked = hops.into_iter().enumerate().map(|(index, (path, hop))| {
        let above = parents.get(&path).copied().flatten();
        let above = above.and_then(|above| latest.get(&above).copied());
        let parent = latest.insert(path, index).or(above);
        TracedHop { parent, ..hop }
    });
    linked.collect()
}

fn reported(record: &TraceRecord, begun_us: u64) -> TracedHop {
    let timing = Timing {
        arrived: Duration::from_micros(record.arrived_us.saturating_sub(begun_us)),
        queued: Duration::from_micros(record.queued_us),
        ran: Duration::from_micros(record.ran_us),
    };
    TracedHop {
        server: record.server.clone(),
        node: Some(record.node),
        method: Some(record.method.clone()),
        timing: Some(timing),
        parts: record.parts.iter().map(part).collect(),
        ..unreported(record.request.path, record.request.hop)
    }
}

fn unreported(path: Path, hop: u32) -> TracedHop {
    TracedHop {
        path: path.to_string(),
        hop,
        parent: None,
        server: None,
        node: None,
        method: None,
        responses: 0,
        delegated: 0,
        timing: None,
        parts: Vec::new(),
        answered: None,
    }
}

fn part(part: &TracePart) -> TimingPart {
    TimingPart {
        name: Arc::clone(&part.name),
        took: Duration::from_micros(part.took_us),
    }
}
