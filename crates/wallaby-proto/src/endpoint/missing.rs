//! What is told of the branches that are missing when a call ends.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::answers::cost_of;
use super::client::{CallContext, ClientCall, InitialRequest};
use super::event::IncomingAnswer;
use crate::call::initiator::Violation;
use crate::call::missing::{Missing, MissingBranch, MissingState};
use crate::call::watch::{Location, Loss, LossStep};
use crate::error::Failure;
use crate::wire::HandledBy;
use crate::{Code, RequestId};

impl ClientCall {
    /// It fails because something of it was lost: with the names of all that is missing.
    pub(super) fn lose(&mut self, mut loss: Box<Loss>, context: &impl CallContext) {
        self.fill_in(&mut loss);
        loss.missing = self.missing(context);
        self.end(Err(Failure::Lost(loss)));
    }

    /// What a peer has sent of a request breaks the protocol, or leads to more than the call may have.
    #[cold]
    pub(super) fn violated(
        &mut self,
        request: RequestId,
        violation: Violation,
        context: &impl CallContext,
    ) {
        if self.initiator.watch().is_none() {
            self.watch_over(context);
        }
        match self.initiator.watch_mut() {
            Some(watch) => {
                let loss = watch.describe_violation(request, violation, context.now());
                self.lose(Box::new(loss), context);
            }
            None => self.abort(context),
        }
    }

    /// It may be complete because its watch has just given up what was missing.
    pub(super) fn note_losses(&mut self) {
        let watch = self
            .initiator
            .watch_mut()
            .filter(|_| self.tolerant.is_some());
        let losses = watch.map(|watch| watch.take_lost()).unwrap_or_default();
        for loss in losses {
            self.note_loss(*loss);
        }
    }

    /// Something is lost of a call that goes on without it: the application learns that in place of what is missing. Each loss
    /// names only itself, as there may be as many as branches.
    #[cold]
    pub(super) fn note_loss(&mut self, mut loss: Loss) {
        self.fill_in(&mut loss);
        let view = self.initiator.branch_view(&loss.request.path);
        let Some(tolerance) = &mut self.tolerant else {
            return;
        };
        self.status.get_or_insert(Code::Unavailable);
        let loss = Arc::new(loss);
        tolerance.losses.push(Arc::clone(&loss));
        self.own += cost_of(0); // as an answer of this endpoint's
        let answer = IncomingAnswer {
            call: self.key(),
            request: loss.request,
            index: view.map_or(0, |view| view.received),
            status: true,
            payload: Bytes::new(),
            from: None,
            method: None, // the loss says it
            root: None,
            loss: Some(loss),
            not_executed: false,
        };
        self.keep_answer(answer);
    }

    /// The branches of which something is to come.
    pub(super) fn missing(&self, context: &impl CallContext) -> Missing {
        let mut missing = self.initiator.missing();
        let branches = missing.by_ref().take(Missing::MOST);
        let now = context.now();
        let branches = branches.map(|request| self.missing_branch(request, now));
        Missing {
            branches: branches.collect(),
            more: missing.count() as u64,
        }
    }

    /// What an endpoint knows of a loss besides what its watch does.
    fn fill_in(&self, loss: &mut Loss) {
        loss.method = self.method_of(loss.request);
        if !loss.server.is_known() {
            loss.server = self.server_of(loss.request);
        }
        self.locate(&mut loss.path);
    }

    /// Says where the steps of a way are, of which its watch does not know it.
    pub(super) fn locate(&self, path: &mut [LossStep]) {
        for step in path.iter_mut().filter(|step| !step.server.is_known()) {
            step.server = self.server_of(step.request);
        }
    }

    fn missing_branch(&self, request: RequestId, now: Duration) -> MissingBranch {
        let view = self.initiator.branch_view(&request.path);
        let watch = self.initiator.watch();
        let handed_on = watch.and_then(|watch| watch.handed_on(request));
        let request = handed_on.unwrap_or(request);
        MissingBranch {
            request,
            method: self.method_of(request),
            server: self.server_of(request),
            received: view.map_or(0, |view| view.received),
            sent: view
                .and_then(|view| view.facts)
                .map(|facts| facts.responses),
            state: self.state_of(request, handed_on.is_some(), now),
        }
    }

    pub(super) fn root_of(&self, request: RequestId) -> Option<&InitialRequest> {
        let root = self.roots.get(request.path.initial_index()? as usize);
        root.filter(|root| root.request == request)
    }

    pub(super) fn method_of(&self, request: RequestId) -> Option<Arc<str>> {
        if let Some(root) = self.root_of(request) {
            return Some(Arc::clone(root.method.name()));
        }
        let by = self.initiator.handled_by(request)?;
        Some(Arc::clone(&by.method)).filter(|method| !method.is_empty())
    }

    pub(super) fn server_of(&self, request: RequestId) -> Location {
        if let Some(root) = self.root_of(request) {
            return Location {
                address: Some(root.server.clone()),
                node: root.node,
            };
        }
        let watch = self.initiator.watch();
        if let Some(at) = watch.and_then(|watch| watch.server_of(request)) {
            return at.clone();
        }
        let by = self.initiator.handled_by(request);
        by.map_or_else(Location::default, HandledBy::location)
    }

    /// How a branch is of which this request is the latest; whether only others have told of that.
    fn state_of(&self, request: RequestId, is_named: bool, now: Duration) -> MissingState {
        let view = self.initiator.branch_view(&request.path);
        if view.is_some_and(|view| view.facts.is_some()) {
            return MissingState::Ended;
        }
        match self.root_of(request) {
            Some(root) if root.conn.is_none() => return MissingState::NotSent,
            Some(root) if root.lost => return MissingState::Disconnected,
            _ => {}
        }
        let Some(watch) = self.initiator.watch() else {
            return MissingState::Unasked;
        };
        if let Some(idle) = watch.idle(request, now) {
            return MissingState::Running { idle };
        }
        // What was heard before was of an earlier one.
        let heard = self.initiator.heard(&request.path);
        match heard.filter(|_| !is_named) {
            Some(heard) => MissingState::Silent {
                silence: now.saturating_sub(heard),
            },
            None if watch.was_asked(request) => MissingState::Unheard,
            None => MissingState::Unasked,
        }
    }
}
