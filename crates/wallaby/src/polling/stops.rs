//! Calls that were given up, of which the application waits until nothing runs any more.

use std::collections::BTreeSet;
use std::time::Duration;

use wallaby_proto::endpoint::CallKey;

use super::datagrams::Datagrams;
use super::{Endpoint, Notification};
use crate::error::StillRunning;
use crate::timer;

/// Somebody waits.
#[derive(Debug)]
pub(super) struct Stop {
    call: CallKey,
    /// What is waited for, one after the other: more than one if the call was made again.
    attempts: BTreeSet<CallKey>,
    /// What runs of those that were waited for.
    running: StillRunning,
}

impl<D: Datagrams> Endpoint<D> {
    /// [Gives a call up](Self::abort) and waits until nothing of it runs any more, but at most for so long: after its end,
    /// [`Event::Settled`](super::Event::Settled) says so, or what runs on then. What is waited for, and what is not, says
    /// [`Call::stop_within`](crate::Call::stop_within).
    pub fn stop_within(&mut self, call: CallKey, grace: Duration) {
        self.look_at_clock();
        let mut attempts = self.calling.take_attempts(call);
        let waits = self.stops.iter().find(|(_, stop)| stop.call == call);
        let waits = waits.map(|(attempt, _)| *attempt);
        if let Some(mut before) = waits.and_then(|attempt| self.stops.remove(&attempt)) {
            // Who has waited for it is told now.
            attempts.extend(&before.attempts);
            while !before.attempts.is_empty() {
                self.note_stopped(&mut before);
            }
            self.tell_of(Notification::Settled(call, Box::new(before.running)));
        }
        for attempt in &attempts {
            self.core.abort(*attempt);
            let grace = timer::bounded(grace);
            self.core.wait_for_stop(*attempt, Some(grace));
        }
        self.abort(call);
        self.follow();
        let running = StillRunning::default();
        self.wait_for_stop(Stop {
            call,
            attempts,
            running,
        });
    }

    /// Goes on with those of which something runs.
    fn wait_for_stop(&mut self, mut stop: Stop) {
        while let Some(key) = stop.attempts.first().copied() {
            if self.core.is_live(key) {
                self.stops.insert(key, stop);
                return;
            }
            self.note_stopped(&mut stop);
        }
        self.tell_of(Notification::Settled(stop.call, Box::new(stop.running)));
    }

    /// The first one was waited for.
    fn note_stopped(&mut self, stop: &mut Stop) {
        if let Some(key) = stop.attempts.pop_first() {
            let running = self.core.still_running(key);
            stop.running = std::mem::take(&mut stop.running).and(running);
            self.core.wait_for_stop(key, None);
        }
    }

    /// Nothing of a call runs any more, or the time for that is over.
    pub(super) fn settled(&mut self, key: CallKey) {
        if let Some(mut stop) = self.stops.remove(&key) {
            self.note_stopped(&mut stop);
            self.wait_for_stop(stop);
        }
    }
}
