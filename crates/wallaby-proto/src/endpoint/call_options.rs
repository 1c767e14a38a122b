//! How a call is made, and what follows its requests.

use std::time::Duration;

use super::resending::Resend;
use crate::DurableId;
use crate::wire::{Budgets, Continuation, Heartbeats, Metadata, PingSettings};

/// How a call is made. There may be more fields in any later version: end a literal with `..Default::default()`.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct CallOptions {
    /// How much time the call has; the endpoint's default (60 s) if not set.
    pub deadline: Option<Duration>,
    /// Whether the first status ends the call; the rest of the tree is aborted then.
    pub fail_fast: bool,
    /// Pairs that travel down the tree.
    pub metadata: Metadata,
    /// What goes along with each of its initial requests, and with nothing that comes of them.
    pub continuation: Option<Continuation>,
    /// The name under which it may be asked for again: its first initial request has it, the others have names that follow from it.
    pub durable: Option<DurableId>,
    /// What the call's tree may use up.
    pub budgets: Option<Budgets>,
    /// How often its servers are asked about it, and how long silence may last; as the endpoint says if not set. What is
    /// beyond [`PingSettings::bounded`] is taken for the nearest that is not.
    pub ping: Option<PingSettings>,
    /// Its servers show unasked that they live, and are asked only if they do not; as long as none is late no ping is sent. What is
    /// beyond [`Heartbeats::bounded`] is taken for the nearest that is not. Not by default.
    pub heartbeats: Option<Heartbeats>,
    /// How long a handler may make no progress; as the endpoint says if not set.
    pub stall_limit: Option<Duration>,
    /// Whether each hop reports its timings: [`Next::Trace`](super::Next::Trace).
    pub traced: bool,
    /// Whether its initial requests are sent again below which something was lost.
    pub resend: Option<Resend>,
    /// Whether the answers of each branch are told in the order in which they were sent.
    pub in_order: bool,
    /// Whether it goes on without what is lost of it: a status takes the place of what is missing of that branch
    /// ([`Status::loss`](crate::Status::loss)), nothing of it is sent again, and it is complete, with statuses, when nothing
    /// else is missing. With `fail_fast` a loss is the end all the same. Of several initial requests each may fail to reach its
    /// server; if the only one does, the call fails.
    pub tolerant: bool,
}

impl CallOptions {
    /// The name of one initial request of a call, or of one of several calls that are made alike: it follows from its place among
    /// them.
    pub fn durable_of(&self, place: u32) -> Option<DurableId> {
        self.durable.map(|id| id.initial(place))
    }
}
