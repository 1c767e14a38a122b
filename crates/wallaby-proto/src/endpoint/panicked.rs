//! What becomes of an endpoint in which something has panicked: what it has left half changed is not used any more.

use std::sync::LazyLock;

use bytes::BytesMut;

use super::draining::Lifecycle;
use super::event::{CallKey, Closed, Outcome, Output, ReportedEnd};
use super::probe::Probe;
use super::server::HandledRequest;
use super::{Endpoint, Seeds};
use crate::error::{Breakdown, ConnectError, Failure};

const PANICKED: Breakdown = Breakdown::Panicked;

impl Endpoint {
    /// A panic has come out of this endpoint, which is a bug. From now on it is closed and has nothing of what it had before: its calls
    /// have failed with [`Failure::BrokenDown`], also those whose end was not taken yet, and its requests were stopped and its connections
    /// have ended without a word to anybody, as when its process dies. [`Output`]s say so of each that they have not said it of before.
    #[cold]
    pub fn handle_panic(&mut self) {
        let seeds = Seeds {
            tokens: self.secret,
            cookies: [0; 16],
        };
        let mut after = Self::new(self.config.clone(), self.node, self.address.clone(), seeds);
        (after.epoch, after.metrics) = (self.epoch, self.metrics());
        after.set_time(self.raw);
        after.reach(Lifecycle::Closed);
        after.breakdown = Some(PANICKED);
        let before = std::mem::replace(self, after);
        // What was to be told already is told: nobody else knows of it any more.
        let tells = |output: &Output| {
            use Output::{Close, Ended, Stopped, Stuck};
            matches!(output, Ended(..) | Stopped(..) | Stuck(_) | Close(..))
        };
        self.outputs
            .extend(before.outputs.into_iter().filter(tells));
        for (sequence, call) in before.calls.all() {
            let key = CallKey(sequence);
            if call.reported {
                let end = ReportedEnd::failed(&Failure::BrokenDown(PANICKED));
                self.outputs.push_back(Output::Ended(key, Box::new(end)));
            }
            self.metrics.calls_failed += u64::from(!call.client.has_ended());
            if !call.taken {
                self.outputs.push_back(Output::Call(key));
            }
        }
        for key in before.handlers.those(|_| true) {
            let handler = before.handlers.get(key);
            if handler.is_some_and(HandledRequest::is_worked_for) {
                self.outputs
                    .push_back(Output::Stopped(key, Box::new(PANICKED.status())));
            }
        }
        for (id, conn) in before.conns.iter() {
            let why = ConnectError::Closed {
                server: conn.server(),
                reason: PANICKED.to_string(),
            };
            if before.dialling.is_awaited(id) {
                let result = Err(Box::new(why.clone()));
                self.outputs.push_back(Output::Connected(id, result));
            }
            let closed = Closed {
                last_words: BytesMut::new(),
                why,
            };
            self.outputs.push_back(Output::Close(id, Box::new(closed)));
        }
    }
}

impl<P: Probe> Endpoint<P> {
    /// How calls end that are not known any more, if that is since something has [panicked](Endpoint::handle_panic).
    pub(super) fn outcome_of_unknown(&self) -> Option<&Outcome> {
        static FAILED: LazyLock<Outcome> =
            LazyLock::new(|| Outcome::Failed(Failure::BrokenDown(PANICKED)));
        self.has_panicked().then(|| &*FAILED)
    }

    pub(super) fn has_panicked(&self) -> bool {
        self.breakdown == Some(PANICKED)
    }

    /// Why nothing begins any more.
    #[cold]
    pub(super) fn why_closed(&self) -> Failure {
        self.breakdown.map_or(Failure::Closed, Failure::BrokenDown)
    }

    /// The runtime that drives it has ended, so it is closed next: its calls fail with [`Breakdown::RuntimeEnded`].
    pub fn runtime_ended(&mut self) {
        self.breakdown.get_or_insert(Breakdown::RuntimeEnded);
    }
}
