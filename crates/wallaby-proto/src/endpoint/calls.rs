//! Calls: how they begin, what the application asks and takes of them, and how it gives them up.

use std::sync::Arc;
use std::time::Duration;

use crate::call::initiator::Initiator;
use crate::call::watch::Loss;
use crate::{Address, CallId, Path, RequestId, Token};

use super::Endpoint;
use super::call_options::CallOptions;
use super::client::ClientCall;
use super::event::{CallKey, Next, Outcome, ReportedEnd, RequestKey};
use super::probe::Probe;
use crate::error::{CallError, CodecError, Failure, UnreadableAnswer};
use crate::trace::{self, Trace};

/// A call of an endpoint.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) client: ClientCall,
    /// It is being followed: what that tells it is followed, too.
    pub(super) followed: bool,
    /// When it wants to be looked at.
    pub(super) watch_due: Option<Duration>,
    /// The application was told that there is something to take.
    pub(super) told: bool,
    /// The request on whose behalf it was made.
    pub(super) within: Option<RequestKey>,
    /// Its end is told by itself, and was not yet.
    pub(super) reported: bool,
    /// Nobody wants to know how it ends, or somebody knows already.
    pub(super) taken: bool,
    /// Somebody waits until then for nothing of it to run any more, by the shell's clock, and wants to know what does.
    pub(super) stop_by: Option<Duration>,
    /// It has ended, and nothing of it runs any more: it is only kept for its outcome.
    pub(super) over: bool,
}

impl Call {
    #[inline]
    pub(super) fn new(client: ClientCall) -> Self {
        Self {
            client,
            followed: false,
            watch_due: None,
            told: false,
            within: None,
            reported: false,
            taken: false,
            stop_by: None,
            over: false,
        }
    }
}

impl<P: Probe> Endpoint<P> {
    /// Begins a call without initial requests. It can complete only when no more can come: after [`close_call`](Self::close_call).
    ///
    /// # Errors
    ///
    /// If there are as many calls as may be.
    pub fn begin(&mut self, options: &CallOptions) -> Result<CallKey, Failure> {
        let limit = self.config.limits.calls;
        if self.is_ending() {
            return Err(self.why_closed());
        }
        if self.calls.len().max(self.calls.over) >= limit {
            return Err(Failure::TooManyCalls { limit });
        }
        let sequence = self.calls.next();
        let id = CallId {
            initiator: self.node,
            sequence,
        };
        let token = Token::derive(self.secret, sequence);
        self.metrics.calls_started += 1;
        let (config, raw) = (&self.config, self.raw);
        self.calls.add(sequence, || {
            Call::new(ClientCall::new(id, token, options, config, raw))
        });
        let call = self.calls.get_mut(sequence).ok_or(Failure::Closed)?;
        call.client.initiator.count_in(&self.branches);
        let ping = options.ping.unwrap_or(self.config.ping).bounded();
        // After half its time there is still some to ask who is slow.
        let unwatched = ping.period.min(call.client.time / 2);
        // Calls that are over sooner cost no place among the alarms: their deadline is set when they are first looked at.
        if unwatched < self.config.ping.period {
            self.watch_at(sequence, Some(self.now.saturating_add(unwatched)));
        } else {
            self.note_due(self.now.saturating_add(self.fresh_for));
            self.fresh.push_back((self.now, sequence));
        }
        Ok(CallKey(sequence))
    }

    /// No further initial request of a call comes.
    pub fn close_call(&mut self, key: CallKey) {
        self.tell(key.0, |call, _| call.close());
    }

    /// Says how many initial requests of a call will come: each gets an equal part of its budgets, if these are stated.
    pub fn share_among(&mut self, key: CallKey, requests: u32) {
        if let Some(call) = self.calls.get_mut(key.0)
            && let Some(allowance) = &mut call.client.allowance
        {
            allowance.announce(requests);
        }
    }

    /// From now on the end of a call is told as soon as it comes, whoever takes its answers: [`Output::Ended`](super::Output::Ended).
    /// If it has come, this is it.
    pub fn report_end(&mut self, key: CallKey) -> Option<ReportedEnd> {
        let call = self.calls.get_mut(key.0);
        if let Some(call) = call.filter(|call| !call.client.has_ended()) {
            call.reported = true;
            return None;
        }
        let call = self.calls.peek(key.0);
        let end = call.and_then(|call| call.client.reported_end());
        Some(end.unwrap_or_else(|| match self.has_panicked() {
            true => ReportedEnd::failed(&self.why_closed()),
            false => ReportedEnd::failed(&Failure::aborted()),
        }))
    }

    /// Gives a call up: it fails with [`Failure::Aborted`], and what runs of it elsewhere is stopped.
    pub fn abort(&mut self, key: CallKey) {
        self.tell(key.0, |call, context| call.abort(context));
    }

    /// Nobody wants to hear of a call any more: it is aborted if it lives, and forgotten when nothing of it runs.
    pub fn forget(&mut self, key: CallKey) {
        self.end_call(key.0, Err(Failure::aborted()));
        if let Some(call) = self.calls.kept(key.0) {
            call.taken = true;
            self.untaken -= call.client.forget_answers();
            self.calls.leave(key.0);
        }
    }

    /// The tree of hops of a call, as far as it is known now; what hops report of themselves only of a traced one.
    pub fn trace(&self, key: CallKey) -> Option<Trace> {
        let call = &self.calls.peek(key.0)?.client;
        let begun = call.deadline.saturating_sub(call.time);
        let ended = call.traced.as_ref().and_then(|traced| traced.ended);
        let roots = call.roots.iter().map(|root| trace::Root {
            path: root.request.path,
            server: root.server.clone(),
            method: Arc::clone(root.method.name()),
            node: root.node,
        });
        let roots: Vec<trace::Root> = roots.collect();
        let answered = call.traced.iter().flat_map(|traced| traced.answered.iter());
        let answered: Vec<(Path, Duration)> = answered.map(|(path, at)| (*path, *at)).collect();
        let elapsed = ended.unwrap_or(self.raw).saturating_sub(begun);
        let begun = self.epoch.saturating_add(begun);
        let tree = &call.initiator;
        Some(trace::assemble(tree, begun, elapsed, &roots, &answered))
    }

    /// The next answer of a call, or how it ended: then it is forgotten. What is taken makes room for more.
    pub fn next_answer(&mut self, key: CallKey) -> Next {
        let Some(call) = self.calls.kept(key.0) else {
            let ended = self.outcome_of_unknown().cloned();
            return ended.map_or(Next::Pending, Next::Ended);
        };
        if call.taken {
            return Next::Pending;
        }
        if let Some(answer) = call.client.next_answer(self.config.limits.call) {
            self.untaken -= 1;
            match answer.from {
                Some(_) if call.client.has_work() => self.follow(key.0),
                Some(_) => {}
                None => self.note_space(),
            }
            return Next::Answer(answer);
        }
        let Some(outcome) = &call.client.outcome else {
            call.told = false;
            return Next::Pending;
        };
        if self.config.shell.keep_ended {
            return Next::Ended(outcome.clone());
        }
        if call.client.traced.is_some() {
            return self.take_trace(key);
        }
        let Some(outcome) = call.client.outcome.take() else {
            return Next::Pending;
        };
        call.taken = true;
        self.calls.leave(key.0);
        Next::Ended(outcome)
    }

    #[cold]
    fn take_trace(&mut self, key: CallKey) -> Next {
        let trace = self.trace(key);
        if let Some(call) = self.calls.kept(key.0) {
            call.client.traced = None;
        }
        trace.map_or(Next::Pending, |trace| Next::Trace(Box::new(trace)))
    }

    /// Whether [`next_answer`](Self::next_answer) has something of a call.
    pub fn has_next(&self, key: CallKey) -> bool {
        match self.calls.peek(key.0) {
            Some(call) if call.taken => false,
            Some(Call { client, .. }) => !client.answers.is_empty() || client.outcome.is_some(),
            None => self.has_panicked(),
        }
    }

    /// Whether a call has come to its outcome, though the application may not have taken all of its answers.
    pub fn has_ended(&self, key: CallKey) -> bool {
        let call = self.calls.peek(key.0);
        call.is_none_or(|call| call.client.has_ended())
    }

    /// How a call has ended; `None` while it goes on, and once it is forgotten.
    pub fn outcome(&self, key: CallKey) -> Option<&Outcome> {
        match self.calls.peek(key.0) {
            Some(call) => call.client.outcome(),
            None => self.outcome_of_unknown(),
        }
    }

    /// What is known of a call's tree.
    pub fn tree(&mut self, key: CallKey) -> Option<&mut Initiator> {
        Some(self.calls.kept(key.0)?.client.tree())
    }

    /// Says of an answer that a shell could not read whose it was, as far as that is known.
    #[cold]
    pub fn unreadable(&self, key: CallKey, request: RequestId, error: CodecError) -> CallError {
        let mut answer = UnreadableAnswer::new(request, error);
        if let Some(call) = self.calls.peek(key.0) {
            answer.method = call.client.method_of(request);
            answer.server = call.client.server_of(request).address;
        }
        answer.into()
    }

    /// What a call has gone on without ([`CallOptions::tolerant`]).
    pub fn losses(&self, key: CallKey) -> &[Arc<Loss>] {
        let call = self.calls.peek(key.0);
        call.map_or(&[], |call| call.client.losses())
    }

    /// The first delegation of a call's first request goes to the first of these servers, the first one of that to the next, and so
    /// on: so a call that goes on without what is lost can go on without each of them. Said before it is watched over.
    pub fn expect_servers(&mut self, key: CallKey, servers: &[Address]) {
        if let Some(call) = self.calls.kept(key.0)
            && let Some(tolerant) = &mut call.client.tolerant
        {
            tolerant.expected = servers.to_vec();
        }
    }

    /// How many times initial requests of a call were sent again.
    pub fn resent(&self, key: CallKey) -> u32 {
        let call = self.calls.peek(key.0);
        let resending = call.and_then(|call| call.client.resending.as_ref());
        resending.map_or(0, |resending| resending.resent())
    }

    /// A call has failed for a reason of the application's, before it was sent perhaps.
    pub fn fail_call(&mut self, key: CallKey, failure: Failure) {
        self.end_call(key.0, Err(failure));
    }

    /// Whether anything of a call may still run.
    pub fn is_live(&self, key: CallKey) -> bool {
        self.calls.get(key.0).is_some()
    }

    /// How a call is made; `None` if it was not told to be made in any special way, or is forgotten.
    pub fn options(&self, key: CallKey) -> Option<&CallOptions> {
        self.calls.peek(key.0)?.client.options.as_deref()
    }

    /// The name that a call has everywhere.
    pub fn call_id(&self, key: CallKey) -> CallId {
        CallId {
            initiator: self.node,
            sequence: key.0,
        }
    }
}
