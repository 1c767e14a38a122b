//! How an endpoint comes to rest without loss.

use std::collections::BTreeMap;
use std::time::Duration;

use super::event::{CallKey, Outcome, Output, RequestKey};
use super::probe::Probe;
use super::server::HandlerState;
use super::{Alarm, Endpoint};
use crate::error::{CLOSED, Failure};
use crate::{Code, ConnId, Status};

/// How an endpoint ends, step by step, though it may leave some out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Lifecycle {
    Open,
    /// It finishes what it has begun, and begins nothing.
    Draining,
    /// All its requests have ended, as it is about to be closed: nothing is dialled any more.
    Ending,
    /// It was closed.
    Closed,
}

/// What is between two attempts has so much time to begin the next one: nobody may wait for it any more.
const BETWEEN: Duration = Duration::from_secs(3);

/// How far a draining endpoint is from its rest.
#[derive(Debug, Default)]
pub(super) struct Draining {
    /// Nothing was left to be done when it was looked last, and that was told.
    told: bool,
    /// Attempts that may still deliver, of each undertaking that may have further ones.
    undecided: BTreeMap<u64, Vec<CallKey>>,
    latest: u64,
    /// Until when these alone are waited for.
    until: Option<Duration>,
}

impl<P: Probe> Endpoint<P> {
    /// Whether it comes to this now: else it has before.
    pub(super) fn reach(&mut self, lifecycle: Lifecycle) -> bool {
        let begins = self.lifecycle < lifecycle;
        self.lifecycle = self.lifecycle.max(lifecycle);
        begins
    }

    /// Finishes what runs, and begins nothing: what came before is still handled, handlers go on to answer, delegate and call, new
    /// requests (its own, too) get the status `Unavailable`, and peers are told to send their next requests elsewhere.
    /// [`Output::Drained`] says when that is done.
    pub fn drain(&mut self) {
        if !self.reach(Lifecycle::Draining) {
            return;
        }
        for id in self.conns.ids() {
            self.say_that_it_drains(id);
        }
        self.wait_less_for_calls();
    }

    /// A peer learns that this side takes no new requests, if it is known who it is; else it learns that when it is.
    #[cold]
    pub(super) fn say_that_it_drains(&mut self, id: ConnId) {
        let is_open = self.peer(id).is_some();
        if is_open && let Some(carrier) = self.carrier(id) {
            carrier.go_away();
        }
    }

    /// Whether it finishes what it has begun, and begins nothing.
    pub fn is_draining(&self) -> bool {
        self.lifecycle >= Lifecycle::Draining
    }

    /// Whether nothing is dialled any more, and requests that come are refused.
    pub(super) fn is_ending(&self) -> bool {
        self.lifecycle >= Lifecycle::Ending
    }

    /// Whether it was closed.
    pub fn is_closed(&self) -> bool {
        self.lifecycle >= Lifecycle::Closed
    }

    /// What is to be done next while it comes to rest, if nothing else is.
    #[cold]
    pub(super) fn poll_draining(&mut self) -> Option<Output> {
        let datagrams = self.sockets.tell().map(Output::Datagrams);
        if datagrams.is_some() {
            return datagrams;
        }
        if !self.rests() {
            self.wait_again();
        } else if self.draining.until.is_none() && !self.is_decided() {
            let until = self.raw.saturating_add(BETWEEN);
            self.draining.until = Some(until);
            self.alarms.insert((until, Alarm::Rest));
        }
        let drained = self.is_drained();
        let before = std::mem::replace(&mut self.draining.told, drained);
        (drained && !before).then_some(Output::Drained)
    }

    /// Whether no handler runs, no request waits, no call lives or is to be made again, and all that was sent has left. It looks at all
    /// connections.
    pub fn is_drained(&self) -> bool {
        let is_over = |until| self.raw >= until;
        self.rests() && (self.is_decided() || self.draining.until.is_some_and(is_over))
    }

    fn rests(&self) -> bool {
        let is_idle = self.load().is_idle() && self.calls.len() == 0;
        is_idle && self.conns.iter().all(|(id, _)| self.is_idle(id))
    }

    // Calls that are made again.

    /// What is to be done may take several calls, which are its attempts: its number. Until it [is decided](Self::decide), an endpoint
    /// that is drained waits for the next of them, for three seconds.
    ///
    /// # Errors
    ///
    /// If as many are undecided as there may be calls: while one pauses, no attempt of it counts among these.
    pub fn undertake(&mut self) -> Result<u64, Failure> {
        let limit = self.config.limits.calls;
        if self.draining.undecided.len() >= limit {
            return Err(Failure::TooManyCalls { limit });
        }
        self.draining.latest += 1;
        self.race(self.draining.latest, Vec::new());
        Ok(self.draining.latest)
    }

    /// These of its attempts may still deliver; without any it pauses.
    pub fn race(&mut self, number: u64, attempts: Vec<CallKey>) {
        self.draining.undecided.insert(number, attempts);
        self.wait_again();
    }

    /// It has no further attempts.
    pub fn decide(&mut self, number: u64) {
        self.draining.undecided.remove(&number);
    }

    fn wait_again(&mut self) {
        if let Some(until) = self.draining.until.take() {
            self.alarms.remove(&(until, Alarm::Rest));
        }
    }

    /// Whether there is no further attempt: of what has delivered there is none, though its application may not have looked, and once the
    /// endpoint is closed there is none of anything.
    fn is_decided(&self) -> bool {
        let delivers = |attempt: &CallKey| {
            let outcome = self.outcome(*attempt);
            matches!(outcome, Some(Outcome::Complete { statuses: 0 }))
        };
        let mut undecided = self.draining.undecided.values();
        self.is_closed() || undecided.all(|racing| racing.iter().any(delivers))
    }

    /// Ends all requests, as the endpoint is about to be [closed](Self::close), or what runs its handlers has ended: those whose handlers
    /// have not begun with the status `Unavailable`, which says that they were not executed; the others with `Unfinished`. What waits to
    /// be delegated ends as undelivered. Nothing is said of requests that may be sent again, which a status would prevent: they are lost,
    /// and found to be. New requests are refused, and nothing is dialled from now on. Its own calls fail, and those of their servers are
    /// told to stop that connections lead to; the others find out. It looks at all requests, calls and connections.
    pub fn stop_all(&mut self) {
        if !self.reach(Lifecycle::Ending) {
            return;
        }
        self.records.announce_handed_on(self.now);
        self.settle();
        for key in self.all_requests() {
            match self.handlers.get(key) {
                Some(handler) if handler.is_repeatable() => self.stop_silently(key, unfinished()),
                Some(handler) if handler.has_begun() => self.stop(key, unfinished()),
                _ => self.stop(key, shutting_down()),
            }
        }
        for id in self.conns.ids() {
            self.take_requests_back(id);
        }
        let why = self.why_closed();
        for sequence in self.calls.live() {
            self.end_call(sequence, Err(why.clone()));
        }
        self.settle();
    }

    /// Requests that are left end without a word to their initiators; whoever works for one is told.
    pub(super) fn leave_requests(&mut self) {
        for key in self.all_requests() {
            self.stop_silently(key, Status::new(Code::Cancelled, CLOSED));
        }
    }

    /// First those that wait for a place: each that becomes free would be given to them.
    fn all_requests(&self) -> Vec<RequestKey> {
        let waits = |state| matches!(state, HandlerState::Queued(_));
        let waiting = self.handlers.those(waits);
        waiting
            .chain(self.handlers.those(|state| !waits(state)))
            .collect()
    }
}

#[cold]
pub(super) fn shutting_down() -> Status {
    let why = "this server is shutting down and has not executed the request";
    Status::new(Code::Unavailable, why).not_executed(true)
}

/// How a request ends that was begun, and that nobody works for any more.
#[cold]
fn unfinished() -> Status {
    let why =
        "this server was closed before the request was done: it is unknown how much of it was";
    Status::new(Code::Unfinished, why)
}
