//! What most calls do not have: a million of them may be live.

use std::time::Duration;

use wallaby_proto::call::allowance::Allowance;
use wallaby_proto::call::watch::{Failure as Loss, Watch};
use wallaby_proto::{Address, Path};

use super::order::Order;
use super::resending::Resending;
use super::{CallOptions, State};

/// What a call has that asks for it.
#[derive(Debug, Default)]
pub(super) struct Rare {
    /// What was taken of the answers, if they are taken in order.
    pub(super) order: Option<Order>,
    /// What its initial requests may use up, if budgets are stated.
    pub(super) allowance: Option<Allowance>,
    /// What is kept to send it again.
    pub(super) resending: Option<Resending>,
    /// When each branch's latest response arrived, in a traced call.
    pub(super) answered: Vec<(Path, Duration)>,
    /// How long a traced call took.
    pub(super) ended_after: Option<Duration>,
    /// Where the servers of its line are, behind the first.
    pub(super) line: Vec<Address>,
    /// What is lost of a call that goes on all the same.
    pub(super) losses: Vec<Loss>,
    /// Bytes of answers that came from this endpoint itself and wait for the application.
    own: u64,
}

impl Rare {
    /// What a call with these options begins with.
    pub(super) fn new(options: &CallOptions) -> Option<Box<Self>> {
        if !options.in_order && options.budgets.is_none() {
            return None;
        }
        Some(Box::new(Self {
            order: options.in_order.then(Order::default),
            allowance: options.budgets.map(Allowance::new),
            ..Self::default()
        }))
    }
}

/// How a call is watched over, once it has lasted a ping period.
#[derive(Debug, Default)]
pub(super) struct Watched {
    pub(super) watch: Option<Watch>,
    /// When the watch wants to look at it.
    pub(super) due: Option<Duration>,
    /// Connections over which its servers were asked: they need not show the token when they answer.
    pub(super) pinged: Vec<u64>,
}

impl State {
    pub(super) fn allowance(&mut self) -> Option<&mut Allowance> {
        self.rare.as_mut()?.allowance.as_mut()
    }

    pub(super) fn resending(&self) -> Option<&Resending> {
        self.rare.as_ref()?.resending.as_ref()
    }

    pub(super) fn resending_mut(&mut self) -> Option<&mut Resending> {
        self.rare.as_mut()?.resending.as_mut()
    }

    pub(super) fn own(&mut self) -> &mut u64 {
        &mut self.rare.get_or_insert_default().own
    }

    pub(super) fn has_own_below(&self, limit: u64) -> bool {
        self.rare.as_ref().map_or(0, |rare| rare.own) < limit
    }

    pub(super) fn losses(&self) -> &[Loss] {
        self.rare.as_ref().map_or(&[], |rare| &rare.losses)
    }

    pub(super) fn watch(&self) -> Option<&Watch> {
        self.watched.as_ref()?.watch.as_ref()
    }

    pub(super) fn watch_mut(&mut self) -> Option<&mut Watch> {
        self.watched.as_mut()?.watch.as_mut()
    }

    pub(super) fn is_watched(&self) -> bool {
        self.watch().is_some()
    }

    pub(super) fn watch_due(&self) -> Option<Duration> {
        self.watched.as_ref()?.due
    }

    pub(super) fn was_asked_over(&self, connection: u64) -> bool {
        let watched = self.watched.as_ref();
        watched.is_some_and(|watched| watched.pinged.contains(&connection))
    }
}
