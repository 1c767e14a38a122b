//! One node of the ring as a state machine: no sockets, no clock, no threads.
//!
//! Whoever drives it hands in what came from outside and carries out what comes back:
//!
//! - [`Node::tick`] begins a round of maintenance. It returns [`Errand`]s: questions to other
//!   nodes. The answer of each, or why there is none, goes to [`Node::handle_told`], which may return further errands.
//! - [`Node::handle_ask`] answers the question of another node.
//! - [`Node::handle_lookup`] and [`Node::handle_copying`] say what becomes of a lookup or of a copy: an [`Action`].
//!
//! Every errand is to be answered once, in any order. What a node knows of others is hearsay that rounds put right.

mod membership;
mod replication;
mod routing;

use crate::id::{RingId, Span};
use crate::message::{Ask, Copying, Found, Lookup, Peer, Refusal};
use crate::store::Store;
pub use routing::take_on;
use std::collections::BTreeMap;

/// What a node keeps and does; all nodes of a ring should agree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// How many nodes keep a key: its owner and those behind it. Default 4: three in a row may crash between rounds.
    pub replicas: usize,
    /// How often a lookup may be forwarded. Default 128.
    pub hop_limit: u32,
    /// How many keys a node keeps, copies included. Default 65,536.
    pub keys: usize,
    /// How long key and value may be together, in bytes. Default 32 KiB: over UDP a message
    /// has at most 64 KiB.
    pub entry_bytes: usize,
}

/// On how many endpoints keepers of a key are at least: further nodes keep it, too, until that is so. An endpoint may crash with
/// all that it hosts.
const SPREAD: usize = 2;
/// How many successors a node knows.
const SUCCESSORS: usize = 16;

/// Something to ask of another node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Errand {
    /// Names it when the answer is handed in.
    pub ticket: u64,
    /// Whom. For [`Ask::Find`] it is where the lookup begins.
    pub to: Peer,
    /// What.
    pub ask: Ask,
}

/// What is to be done about a lookup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Answer the client.
    Answer(Box<Found>),
    /// Tell the client that it cannot be done.
    Refuse(Refusal),
    /// Forward it to this node.
    Forward(Peer, Box<Lookup>),
    /// Ask this node whether it is there, tell [`Node::handle_confirmed`], and hand the lookup in again: whether the place
    /// is this node's own depends on it.
    Confirm(Peer, Box<Lookup>),
    /// Forward a copy to this node.
    Copy(Peer, Box<Copying>),
}

/// One node.
#[derive(Clone, Debug)]
pub struct Node {
    me: Peer,
    config: Config,
    phase: Phase,
    predecessor: Option<Peer>,
    /// Nearest first, never this node.
    successors: Vec<Peer>,
    fingers: Vec<Option<Peer>>,
    next_finger: u32,
    store: Store,
    round: u64,
    /// The round in which the predecessor last showed that it is there.
    heard: u64,
    /// Who did not answer, and in which round. What others say about them is not believed for a while.
    suspects: BTreeMap<Peer, u64>,
    errands: BTreeMap<u64, Purpose>,
    next_ticket: u64,
    /// Where the ring is to be found if all others are lost.
    contacts: Vec<Peer>,
    /// Something changed since copies were last compared, in this round.
    comparison_is_due: bool,
    compared: u64,
}

/// What a node is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Looks for its place by asking a node of the ring.
    Seeking,
    /// Gets from its successor what it is to answer for.
    TakingOver,
    /// Part of the ring.
    Serving,
    /// Brings what it has to its successors; whether all of it has arrived until now.
    Leaving { all: bool },
    /// No part of the ring any more.
    Gone,
}

/// What an errand is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    SeekPlace,
    Notify,
    TakeOver,
    Stabilise,
    CheckPredecessor,
    FixFinger(u32),
    CheckSelf,
    Bring,
    Depart,
    Compare,
    Mend,
    FetchNewer,
    FindStrayOwner,
    BringStrays,
}

/// What a node knows, for whoever looks at the ring.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tables {
    /// The node.
    pub peer: Peer,
    /// Whether it has its place: it may be joining or leaving.
    pub serving: bool,
    /// The node before it.
    pub predecessor: Option<Peer>,
    /// The nodes behind it, nearest first.
    pub successors: Vec<Peer>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            replicas: 4,
            hop_limit: 128,
            keys: 1 << 16,
            entry_bytes: 32 << 10,
        }
    }
}

impl Node {
    /// The first node of a ring.
    pub fn create(me: Peer, config: Config) -> Self {
        Self::new(me, config, Phase::Serving)
    }

    /// A node that is to join the ring of `contact`: the next rounds do it.
    pub fn join(me: Peer, contact: Peer, config: Config) -> Self {
        let mut node = Self::new(me, config, Phase::Seeking);
        node.contacts.push(contact);
        node
    }

    /// A node of a ring that begins with all these members, sorted by place: nobody has to join.
    pub fn settled(me: Peer, members: &[Peer], config: Config) -> Self {
        let mut node = Self::new(me, config, Phase::Serving);
        let place = members.partition_point(|peer| peer.id <= node.me.id);
        let behind = || {
            let (before, after) = members.split_at(place);
            after.iter().chain(before)
        };
        let others = || behind().filter(|peer| peer.id != node.me.id);
        let successors: Vec<Peer> = others().take(SUCCESSORS).cloned().collect();
        let predecessor = others().next_back().cloned();
        let first_from = |start: RingId| {
            let at = members.partition_point(|peer| peer.id < start);
            members.get(at).or(members.first()).cloned()
        };
        let fingers = (0..RingId::BITS).map(|number| first_from(node.me.id.finger(number)));
        let fingers: Vec<Option<Peer>> = fingers
            .map(|peer| peer.filter(|peer| *peer != node.me))
            .collect();
        node.contacts.extend(successors.last().cloned());
        (node.successors, node.predecessor, node.fingers) = (successors, predecessor, fingers);
        node
    }

    fn new(me: Peer, config: Config, phase: Phase) -> Self {
        Self {
            store: Store::new(config.keys),
            me,
            config,
            phase,
            predecessor: None,
            successors: Vec::new(),
            fingers: vec![None; RingId::BITS as usize],
            next_finger: 0,
            round: 0,
            heard: 0,
            suspects: BTreeMap::new(),
            errands: BTreeMap::new(),
            next_ticket: 0,
            contacts: Vec::new(),
            comparison_is_due: false,
            compared: 0,
        }
    }

    /// Which one it is.
    pub fn peer(&self) -> &Peer {
        &self.me
    }

    /// Whether it has its place in the ring: it is neither joining nor leaving.
    pub fn is_serving(&self) -> bool {
        self.phase == Phase::Serving
    }

    /// Whether it looks for its place: it may need [`Node::add_contact`].
    pub fn is_seeking(&self) -> bool {
        self.phase == Phase::Seeking
    }

    /// Whether it has left: it can be dropped.
    pub fn is_gone(&self) -> bool {
        self.phase == Phase::Gone
    }

    /// Whether it knows its place, so that it can send lookups on.
    pub fn can_route(&self) -> bool {
        !matches!(self.phase, Phase::Seeking | Phase::Gone)
    }

    /// What it keeps.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// The places that it owns, if it knows its predecessor or is alone.
    pub fn span(&self) -> Option<Span> {
        let after = match &self.predecessor {
            Some(predecessor) => predecessor.id,
            None if self.successors.is_empty() => self.me.id,
            None => return None,
        };
        Some(Span {
            after,
            to: self.me.id,
        })
    }

    /// What it knows.
    pub fn tables(&self) -> Tables {
        Tables {
            peer: self.me.clone(),
            serving: self.is_serving(),
            predecessor: self.predecessor.clone(),
            successors: self.successors.clone(),
        }
    }

    fn errand(&mut self, to: Peer, ask: Ask, purpose: Purpose) -> Errand {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.errands.insert(ticket, purpose);
        Errand { ticket, to, ask }
    }

    fn is_under_way(&self, purpose: Purpose) -> bool {
        self.errands.values().any(|other| *other == purpose)
    }
}
