//! The tree of hops of a call, as far as its initiator knows it.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use wallaby_proto::call::initiator::Initiator;
use wallaby_proto::wire::TraceRecord;
use wallaby_proto::{Address, CallId, NodeId, Path, RequestId};

/// The tree of hops of a call: what its manifests told, and for a traced call what each hop reported of itself.
#[derive(Debug, Clone)]
pub struct Trace {
    /// The call.
    pub call: CallId,
    /// From its beginning to its end, or to now.
    pub elapsed: Duration,
    /// Its hops, parents before children.
    pub hops: Vec<Hop>,
}

/// One request of a call.
#[derive(Debug, Clone)]
pub struct Hop {
    /// Its branch: the child index of each level, as in `0.1.2`.
    pub path: String,
    /// How many hops of its branch came before it.
    pub hop: u32,
    /// Who sent it: an index into [`Trace::hops`]; `None` if the initiator did or if that is not known.
    pub parent: Option<usize>,
    /// Its server, where that is known.
    pub server: Option<Address>,
    /// Its server's life, where that is known.
    pub node: Option<NodeId>,
    /// Its method, where that is known.
    pub method: Option<String>,
    /// Responses of its branch, where it is the branch's last hop.
    pub responses: u64,
    /// Child requests of its branch, where it is the branch's last hop.
    pub delegated: u64,
    /// What it reported of itself, in a traced call.
    pub timing: Option<Timing>,
    /// When its branch's latest response arrived at the initiator, since the call began.
    pub answered: Option<Duration>,
}

/// When a hop ran.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timing {
    /// When the request arrived, since the call began, by the clocks of the two machines.
    pub arrived: Duration,
    /// How long it waited for its handler.
    pub queued: Duration,
    /// How long its handler ran.
    pub ran: Duration,
}

/// What the initiator noted about its own requests and about arrivals.
#[derive(Debug, Clone)]
pub(crate) struct Root {
    pub(crate) path: Path,
    pub(crate) server: Address,
    pub(crate) method: Arc<str>,
    pub(crate) node: Option<NodeId>,
}

/// Draws up the tree from what the initiator has.
pub(crate) fn assemble(
    initiator: &Initiator,
    begun: SystemTime,
    elapsed: Duration,
    roots: &[Root],
    answered: &[(Path, Duration)],
) -> Trace {
    let begun_us = begun
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_micros() as u64;
    let mut hops: Vec<(RequestId, Option<Path>, Hop)> = Vec::new();
    for branch in initiator.branches() {
        let records = initiator
            .trace()
            .iter()
            .filter(|record| record.request.path == branch.path);
        let mut of_branch: Vec<_> = records.map(|record| reported(record, begun_us)).collect();
        of_branch.sort_by_key(|hop| hop.hop);
        of_branch.dedup_by_key(|hop| hop.hop);
        if of_branch.last().is_none_or(|last| last.hop < branch.hop) {
            of_branch.push(unreported(branch.path, branch.hop));
        }
        if let (Some(root), Some(first)) = (
            roots.iter().find(|root| root.path == branch.path),
            of_branch.first_mut(),
        ) && first.hop == 0
        {
            first.server.get_or_insert_with(|| root.server.clone());
            first.method.get_or_insert_with(|| root.method.to_string());
            first.node = first.node.or(root.node);
        }
        if let Some(last) = of_branch.last_mut() {
            last.responses = branch
                .facts
                .map_or(branch.received, |facts| facts.responses)
                .into();
            last.delegated = branch.facts.map_or(0, |facts| facts.requests).into();
            last.answered = answered
                .iter()
                .find(|(path, _)| *path == branch.path)
                .map(|(_, at)| *at);
        }
        let parent = branch
            .parent
            .or_else(|| branch.path.parent())
            .filter(|parent| !parent.is_root());
        hops.extend(of_branch.into_iter().map(|hop| {
            (
                RequestId {
                    path: branch.path,
                    hop: hop.hop,
                },
                parent,
                hop,
            )
        }));
    }
    hops.sort_by_key(|(id, ..)| depth_order(id));
    Trace {
        call: initiator.call(),
        elapsed,
        hops: link(hops),
    }
}

/// Parents before children: shorter literal paths first, folded ones last.
fn depth_order(id: &RequestId) -> (bool, u32, Path, u32) {
    (
        id.path.is_folded(),
        id.path.levels_below(&Path::ROOT).unwrap_or(u32::MAX),
        id.path,
        id.hop,
    )
}

/// Fills in who sent each hop: the one before it in its branch, or the last hop of its parent's branch.
fn link(hops: Vec<(RequestId, Option<Path>, Hop)>) -> Vec<Hop> {
    let keys: Vec<_> = hops.iter().map(|(id, ..)| *id).collect();
    let linked = hops.into_iter().map(|(id, parent, hop)| {
        let before = keys
            .iter()
            .rposition(|key| key.path == id.path && key.hop < id.hop);
        let above = || parent.and_then(|parent| keys.iter().rposition(|key| key.path == parent));
        Hop {
            parent: before.or_else(above),
            ..hop
        }
    });
    linked.collect()
}

fn reported(record: &TraceRecord, begun_us: u64) -> Hop {
    let timing = Timing {
        arrived: Duration::from_micros(record.arrived_us.saturating_sub(begun_us)),
        queued: Duration::from_micros(record.queued_us),
        ran: Duration::from_micros(record.ran_us),
    };
    Hop {
        server: record.server.clone(),
        node: Some(record.node),
        method: Some(record.method.clone()),
        timing: Some(timing),
        ..unreported(record.request.path, record.request.hop)
    }
}

fn unreported(path: Path, hop: u32) -> Hop {
    Hop {
        path: path.to_string(),
        hop,
        parent: None,
        server: None,
        node: None,
        method: None,
        responses: 0,
        delegated: 0,
        timing: None,
        answered: None,
    }
}
