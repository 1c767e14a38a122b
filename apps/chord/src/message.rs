//! What ring nodes and their clients say to each other.

use crate::id::{RingId, Span};
use crate::store::{Entry, Key, Version};
use serde::{Deserialize, Serialize};
use std::fmt;
use wallaby::Address;

/// A ring node: its place and the endpoint that hosts it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Peer {
    /// Its place.
    pub id: RingId,
    /// Its endpoint, which may host others too.
    pub host: Address,
}

/// Who is not to be asked, since somebody found that they do not answer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Avoid {
    /// Endpoints, with all nodes that they host.
    pub hosts: Vec<Address>,
    /// Single nodes.
    pub nodes: Vec<Peer>,
}

/// What a lookup is for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Wish {
    /// Who owns the place.
    Owner,
    /// The value of a key.
    Get(Key),
    /// A new value for a key.
    Put {
        /// The key.
        key: Key,
        /// The value.
        value: Vec<u8>,
        /// A number of this put: when it comes again under that number, it is not done again.
        put: u64,
    },
}

/// A lookup on its way: it goes from node to node until it is with the owner of a place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lookup {
    /// The place.
    pub id: RingId,
    /// The node that is asked. If its endpoint does not host it, another node there takes the lookup on.
    pub to: RingId,
    /// A node that took the one that is asked for its successor, and the place for one in between.
    pub claimed: Option<RingId>,
    /// Who is to be passed by.
    pub avoid: Avoid,
    /// How many times it was forwarded.
    pub hops: u32,
    /// The nodes that it came by, if that is wanted.
    pub trail: Option<Vec<Peer>>,
    /// What for.
    pub wish: Wish,
}

/// A put that the owner has done, on its way along the nodes that keep copies; the last one answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Copying {
    /// The node that is to keep a copy.
    pub to: RingId,
    /// All nodes up to this place have their copy.
    pub previous: RingId,
    /// The last node of the row that has its copy.
    pub reached: RingId,
    /// Who comes next.
    pub rest: Vec<Peer>,
    /// Who is to be passed by.
    pub avoid: Avoid,
    /// The key.
    pub key: Key,
    /// What to keep.
    pub entry: Entry,
    /// The answer.
    pub found: Found,
}

/// The answer to a lookup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Found {
    /// The owner of the place.
    pub owner: Peer,
    /// What it owns, if it knows.
    pub span: Option<Span>,
    /// How many times the lookup was forwarded until it was with the owner.
    pub hops: u32,
    /// The nodes that it came by, the owner last, if that was wanted.
    pub trail: Option<Vec<Peer>>,
    /// The value, for a get of a key that has one.
    pub value: Option<Vec<u8>>,
    /// How many nodes keep it now, for a put.
    pub copies: u32,
}

/// One step of a lookup that its client drives.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Step {
    /// It is at its end.
    Done(Box<Found>),
    /// Ask this endpoint next, with this.
    Next(Address, Box<Lookup>),
    /// It cannot go on.
    Refused(Refusal),
}

/// Why a node does not do what it is asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum Refusal {
    /// There is no such node any more.
    #[error("node {} at {} is gone", .0.id, .0.host)]
    Gone(Peer),
    /// The node is about to take its place, or to leave it: ask again in a moment.
    #[error("node {0} is joining or leaving")]
    NotReady(RingId),
    /// The lookup was forwarded too often: the ring is not whole, or it is larger than the limit allows for.
    #[error("the lookup was forwarded {limit} times without finding the owner")]
    TooManyHops {
        /// The limit.
        limit: u32,
    },
    /// The node keeps as many keys as it may.
    #[error("a node keeps {limit} keys already, and may keep no more")]
    Full {
        /// The limit.
        limit: usize,
    },
    /// Key and value are longer than a node takes.
    #[error("key and value have {size} bytes: at most {limit} are taken")]
    TooLarge {
        /// Their length.
        size: usize,
        /// The limit.
        limit: usize,
    },
    /// The place of the key is another one.
    #[error("{0} is not the place of the key")]
    Misplaced(RingId),
    /// Another node has the same place.
    #[error("place {0} is taken by another node")]
    Taken(RingId),
    /// The endpoint hosts no node that could take the lookup on.
    #[error("no node of the ring is hosted here")]
    NobodyHere,
}

/// What one ring node asks of another to keep the ring together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ask {
    /// Are you there?
    Ping,
    /// Who are your predecessor and your successors?
    Neighbours {
        /// Who asks.
        from: Peer,
    },
    /// I take you for my successor: am I your predecessor?
    Notify {
        /// Who asks.
        from: Peer,
        /// It is about to join.
        joining: bool,
    },
    /// What do you keep that is not your own?
    HandOver {
        /// The places before the asking node's successor.
        span: Span,
    },
    /// I leave.
    Depart {
        /// Who leaves.
        from: Peer,
        /// Its predecessor.
        predecessor: Option<Peer>,
        /// Its successors.
        successors: Vec<Peer>,
    },
    /// Is this what you have of these places?
    Compare {
        /// The places.
        span: Span,
        /// [`crate::store::digest`] of what the asking node has.
        digest: u64,
    },
    /// Keep this.
    Keep {
        /// Entries.
        entries: Vec<(Key, Entry)>,
    },
    /// What do you have under these keys?
    Fetch {
        /// The keys.
        keys: Vec<Key>,
    },
    /// Who owns this place? A lookup, not a question to one node.
    Find {
        /// What.
        lookup: Box<Lookup>,
    },
}

/// The answer to an [`Ask`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Told {
    /// It is done, or it is so.
    Yes,
    /// The answer to [`Ask::Neighbours`].
    Neighbours {
        /// The node before.
        predecessor: Option<Peer>,
        /// The nodes behind.
        successors: Vec<Peer>,
    },
    /// You are my predecessor.
    Accepted {
        /// Who was before.
        before: Option<Peer>,
        /// The places of the asking node were mine until now: what I have of them is to be handed over.
        hand_over: bool,
        /// My successors.
        successors: Vec<Peer>,
    },
    /// Another node stands between.
    Between(Peer),
    /// Entries, and the last place that was looked at if there are more.
    Entries(Vec<(Key, Entry)>, Option<RingId>),
    /// No, this is what there is; and the last place that was looked at.
    Versions(Vec<(Key, Version)>, RingId),
    /// The answer to [`Ask::Find`].
    Found(Box<Found>),
}

/// Why there is no answer to a lookup, or to an [`Ask`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Miss {
    /// This endpoint does not answer, or nobody knows which one.
    #[error("{}", lost(.0.as_ref()))]
    Lost(Option<Address>),
    /// A node refused.
    #[error("{0}")]
    Refused(Refusal),
}

impl Avoid {
    /// More than this many of either kind are not kept: the oldest go.
    pub const MOST: usize = 32;

    /// Whether a node is to be passed by.
    pub fn has(&self, peer: &Peer) -> bool {
        self.hosts.contains(&peer.host) || self.nodes.contains(peer)
    }

    /// Passes a node by from now on.
    pub fn add(&mut self, peer: Peer) {
        if !self.has(&peer) {
            self.nodes.push(peer);
        }
        self.trim();
    }

    /// Passes all nodes of an endpoint by from now on.
    pub fn add_host(&mut self, host: Address) {
        if !self.hosts.contains(&host) {
            self.hosts.push(host);
        }
        self.trim();
    }

    /// A node answers after all.
    pub fn remove(&mut self, peer: &Peer) {
        self.hosts.retain(|host| *host != peer.host);
        self.nodes.retain(|node| node != peer);
    }

    /// Forgets the oldest of too many.
    pub fn trim(&mut self) {
        let excess = self.nodes.len().saturating_sub(Self::MOST);
        self.nodes.drain(..excess);
        let excess = self.hosts.len().saturating_sub(Self::MOST);
        self.hosts.drain(..excess);
    }
}

impl Lookup {
    /// One that begins at a node.
    pub fn new(id: RingId, to: RingId, wish: Wish) -> Self {
        Self {
            id,
            to,
            claimed: None,
            avoid: Avoid::default(),
            hops: 0,
            trail: None,
            wish,
        }
    }
}

fn lost(host: Option<&Address>) -> String {
    match host {
        Some(host) => format!("{host} did not answer"),
        None => "it was lost on its way".to_owned(),
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}", self.id, self.host)
    }
}
