//! What goes on of requests that were stopped: their handlers, which keep their places for a while, and the requests of a call that was
//! aborted, which end when their handlers do. Who has given the call up may wait for that.

use std::time::Duration;

use super::event::{CallKey, Output, RequestKey, StuckHandler};
use super::probe::Probe;
use super::server::Place;
use super::{Alarm, Endpoint};
use crate::call::missing::Missing;
use crate::call::watch::Unstopped;
use crate::error::{StillRunning, UnstoppedRequest};
use crate::executor::Owner;
use crate::{Path, Status};

/// A stopped request waits no longer for calls on its behalf, though its initiator asks.
const LONGEST_WAIT: Duration = Duration::from_secs(600);

/// Servers are asked about a call for so much longer than somebody waits for it, who is to be told first what runs.
const LONGER: Duration = Duration::from_secs(1);

/// While as many requests go on as this that were stopped, further ones do not wait for calls on their behalf: each takes a place among
/// the requests, and anybody can have servers call those that say nothing.
const MOST_GOING_ON: usize = 1024;

/// A handler goes on though its request was stopped.
#[derive(Debug)]
pub(super) enum GoesOn {
    /// Its place is its own for however long it takes.
    Kept,
    /// Its place is its own until then.
    Until(Duration, Owner, Box<StuckHandler>),
    /// Its place was given to others.
    Stuck,
    /// It is done, but calls on behalf of its request go on, or may: until then its initiator is told that it was not stopped yet.
    Calls(Duration),
}

impl<P: Probe> Endpoint<P> {
    // At servers.

    /// The call of a request was aborted. If its handler may go on for a while, or calls on its behalf do, the request ends only when
    /// that is done: until then its initiator, who asks, is told that it was not stopped yet. Else it ends here and now.
    pub(super) fn stop_aborted(&mut self, key: RequestKey, status: Status) {
        let calls = self.calls_within(key);
        let Some(handler) = self.handlers.get_mut(key) else {
            return;
        };
        if handler.has_ended() || (!handler.goes_on_without() && calls.is_empty()) {
            return self.stop(key, status);
        }
        handler.server.discard_held();
        handler.stopping = Some(Box::new(status.clone()));
        let body = handler.body;
        self.begin_grace(key);
        self.tell_stopped(key, body, status);
        if !self.is_draining() {
            calls
                .into_iter()
                .for_each(|sequence| self.wait_for(sequence, Some(LONGEST_WAIT)));
        }
        if !self.going_on.contains_key(&key) {
            self.wait_for_calls(key);
        }
    }

    /// A request is stopped. If its handler may go on without it, it keeps its place for a while.
    pub(super) fn begin_grace(&mut self, key: RequestKey) {
        let Some(handler) = self.handlers.get(key) else {
            return;
        };
        if self.going_on.contains_key(&key) {
            return;
        }
        let goes_on = match handler.place {
            Place::None | Place::Request => return,
            Place::Kept => GoesOn::Kept,
            Place::Permit => {
                let until = self.raw.saturating_add(self.config.grace);
                self.alarms.insert((until, Alarm::Grace(key)));
                let stuck = StuckHandler {
                    call: handler.call(),
                    request: handler.id(),
                    method: self.method_of(key).cloned(),
                };
                GoesOn::Until(until, handler.owner(), Box::new(stuck))
            }
        };
        self.going_on.insert(key, goes_on);
    }

    /// A handler has gone on for too long after its request was stopped: the next request that waits gets its place. Or what calls on
    /// behalf of a request do was waited for long enough.
    pub(super) fn end_grace(&mut self, key: RequestKey) {
        if let Some(GoesOn::Calls(_)) = self.going_on.get(&key) {
            return self.end_as_stopped(key);
        }
        let goes_on = self.going_on.insert(key, GoesOn::Stuck);
        if let Some(GoesOn::Until(_, owner, stuck)) = goes_on {
            self.metrics.stuck += 1;
            self.outputs.push_back(Output::Stuck(stuck));
            self.free_place(owner);
        }
    }

    /// How many handlers go on although their requests were stopped.
    pub fn stopping(&self) -> usize {
        let handlers = self.going_on.values();
        let handlers = handlers.filter(|goes_on| !matches!(goes_on, GoesOn::Calls(_)));
        handlers.count()
    }

    /// Whether nothing but the end of its handler is waited for.
    #[inline]
    pub(super) fn is_stopping(&self, key: RequestKey) -> bool {
        !self.going_on.is_empty() && self.was_told_to_stop(key)
    }

    #[cold]
    fn was_told_to_stop(&self, key: RequestKey) -> bool {
        let handler = self.handlers.get(key);
        handler.is_some_and(|handler| handler.stopping.is_some())
    }

    /// A handler is done that went on though its request was stopped: this ends now, if it has not.
    #[cold]
    pub(super) fn end_stopped(&mut self, key: RequestKey, owner: Owner, goes_on: &GoesOn) {
        if let GoesOn::Until(until, ..) = goes_on {
            self.alarms.remove(&(*until, Alarm::Grace(key)));
        }
        if !matches!(goes_on, GoesOn::Stuck) {
            self.free_place(owner);
        }
        self.wait_for_calls(key);
        self.settle();
    }

    /// The handler of a request that was stopped is done. It ends, if it has not, when calls on its behalf have stopped.
    fn wait_for_calls(&mut self, key: RequestKey) {
        let waits = self.was_told_to_stop(key) && !self.calls_within(key).is_empty();
        if !waits || self.going_on.len() >= MOST_GOING_ON {
            return self.end_as_stopped(key);
        }
        self.leave_line(key);
        self.free_credit(key);
        if let Some(handler) = self.handlers.get_mut(key)
            && handler.place == Place::Request
        {
            handler.place = Place::None;
            let owner = handler.owner();
            self.free_place(owner);
        }
        let until = self.raw.saturating_add(LONGEST_WAIT);
        self.alarms.insert((until, Alarm::Grace(key)));
        self.going_on.insert(key, GoesOn::Calls(until));
        if let Some(ticket) = self.handlers.get(key).and_then(|handler| handler.ticket) {
            self.tickets.insert(ticket, key);
        }
    }

    /// Nobody asks any more about a request that was stopped: nothing waits for what its calls do.
    pub(super) fn end_unasked(&mut self, key: RequestKey) {
        if let Some(GoesOn::Calls(_)) = self.going_on.get(&key) {
            self.end_as_stopped(key);
        }
    }

    /// A request is over that may wait for calls on its behalf.
    #[cold]
    pub(super) fn leave_calls(&mut self, key: RequestKey) {
        if let Some(GoesOn::Calls(until)) = self.going_on.get(&key) {
            self.alarms.remove(&(*until, Alarm::Grace(key)));
            self.going_on.remove(&key);
            let ticket = self.handlers.get(key).and_then(|handler| handler.ticket);
            ticket.map(|ticket| self.tickets.remove(&ticket));
        }
    }

    /// It ends, and nobody waits any more for calls on its behalf than for others.
    fn end_as_stopped(&mut self, key: RequestKey) {
        for sequence in self.calls_within(key) {
            self.within.remove(&(key, sequence));
            self.wait_for(sequence, None);
        }
        let handler = self.handlers.get(key);
        if let Some(status) = handler.and_then(|handler| handler.stopping.clone()) {
            self.end_with(key, &status);
        }
    }

    /// Nothing of a call on behalf of a request runs any more, as far as its servers could be asked. If that is not for sure, and the
    /// request was stopped, its initiator must not be told that all of it has.
    #[cold]
    pub(super) fn call_within_over(&mut self, request: RequestKey, sequence: u64) {
        let was_stopped = self.was_told_to_stop(request);
        if was_stopped && !self.still_running(CallKey(sequence)).is_empty() {
            return;
        }
        self.within.remove(&(request, sequence));
        if !was_stopped || !self.calls_within(request).is_empty() {
            return;
        }
        if let Some(GoesOn::Calls(_)) = self.going_on.get(&request) {
            self.end_as_stopped(request);
        }
    }

    // At initiators.

    /// Somebody waits until nothing runs any more of a call that has failed or was aborted, for so long: its servers are asked
    /// until then about handlers that go on. Without, such a call is over soon after all of them have said that they were told; and
    /// with `None` nobody waits any more. [`Output::Settled`] tells when nothing runs, or time is up; until nobody waits it is known
    /// [what does](Self::still_running), though the call be over.
    pub fn wait_for_stop(&mut self, key: CallKey, within: Option<Duration>) {
        let until = within.map(|within| self.raw.saturating_add(within));
        if let Some(call) = self.calls.kept(key.0) {
            let alarm = Alarm::Awaited(key.0);
            if let Some(before) = std::mem::replace(&mut call.stop_by, until) {
                self.alarms.remove(&(before, alarm));
            }
            self.alarms.extend(until.map(|until| (until, alarm)));
            self.calls.leave(key.0);
        }
        let of = self.calls.get(key.0).and_then(|call| call.within);
        let within = within.map(|within| within.saturating_add(LONGER));
        // Who has stopped the request that it was made for waits, too.
        if within.is_some() || !of.is_some_and(|request| self.was_told_to_stop(request)) {
            self.wait_for(key.0, within);
        }
    }

    fn wait_for(&mut self, sequence: u64, within: Option<Duration>) {
        let now = self.now;
        if let Some(call) = self.calls.get_mut(sequence)
            && let Some(watch) = call.client.initiator.watch_mut()
        {
            watch.wait_for_stop(within.map(|within| now.saturating_add(within)));
        }
    }

    /// It drains: nobody waits any more for calls on behalf of requests that were stopped, but for as long as any others.
    pub(super) fn wait_less_for_calls(&mut self) {
        let within = self.within.iter();
        let within: Vec<u64> = (within.filter(|(request, _)| self.was_told_to_stop(*request)))
            .map(|(_, sequence)| *sequence)
            .collect();
        within
            .into_iter()
            .for_each(|sequence| self.wait_for(sequence, None));
    }

    /// What runs on of a call that has failed or was aborted, as its servers have said last.
    pub fn still_running(&self, key: CallKey) -> StillRunning {
        let Some(call) = self.calls.peek(key.0) else {
            return StillRunning::default();
        };
        let (call, is_over) = (&call.client, call.over);
        let Some(watch) = call.initiator.watch() else {
            return StillRunning::default();
        };
        let waits = |path: &Path| {
            let mut roots = call.roots.iter();
            roots.any(|root| root.request.path == *path && root.conn.is_none())
        };
        let listens = self.address.is_some();
        let mut still = watch.still_running(Missing::MOST, waits, listens);
        if is_over {
            // Who is not asked any more may have stopped since.
            still
                .unheard
                .extend(std::mem::take(&mut still.running), Missing::MOST);
        }
        let named = |unstopped: Unstopped| {
            let named = unstopped.named.into_iter().map(|mut hop| {
                call.locate(&mut hop.path);
                UnstoppedRequest {
                    request: hop.request,
                    method: call.method_of(hop.request),
                    server: hop.before.unwrap_or_else(|| call.server_of(hop.request)),
                    path: hop.path,
                    gone: hop.gone,
                }
            });
            (named.collect(), unstopped.more)
        };
        let (handlers, more) = named(still.running);
        let (unheard, more_unheard) = named(still.unheard);
        StillRunning {
            call: Some(call.initiator.call()),
            handlers,
            more,
            unheard,
            more_unheard,
        }
    }
}
