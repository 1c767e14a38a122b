//! Calls on behalf of requests: what they inherit, and that they end when their request is stopped.

use super::Endpoint;
use super::calls::CallOptions;
use super::event::{CallKey, RequestKey};
use super::probe::Probe;
use super::server::{Author, HandledRequest};
use crate::error::Failure;

impl<P: Probe> Endpoint<P> {
    /// Begins a call on behalf of a request that is handled here. It has the request's metadata beside its own, which take the place of
    /// those with the same keys, and what [`inherit`](Self::inherit) says. It is aborted when the request is stopped; one whose request
    /// has ended otherwise goes on.
    ///
    /// # Errors
    ///
    /// [`Failure::Aborted`] if the request was stopped, [`Failure::Metadata`] if the metadata are too much, and as
    /// [`begin`](Self::begin).
    pub fn begin_for(
        &mut self,
        request: RequestKey,
        author: Author,
        own: &CallOptions,
    ) -> Result<CallKey, Failure> {
        let options = self.options_for(request, author, own)?;
        self.begin_within(request, &options)
    }

    /// How a call on behalf of a request is made that would be made like this otherwise: as [`begin_for`](Self::begin_for) says.
    ///
    /// # Errors
    ///
    /// [`Failure::Metadata`] if the metadata are too much.
    pub fn options_for(
        &mut self,
        request: RequestKey,
        author: Author,
        own: &CallOptions,
    ) -> Result<CallOptions, Failure> {
        let mut options = own.clone();
        if let Some(inherited) = self
            .handlers
            .get(request)
            .and_then(HandledRequest::metadata)
        {
            options.metadata = inherited.clone();
            options.metadata.insert_all(&own.metadata)?;
        }
        self.inherit(request, author, &mut options);
        Ok(options)
    }

    /// How a call on behalf of a request is made that is otherwise made like this: it has no more time than the request has left, is
    /// traced if that is, may use up a delegation's share of its budgets, its initial requests included, and, unless it has a name,
    /// gets the next one of this author if the request has one. It is begun by [`begin_within`](Self::begin_within).
    pub fn inherit(&mut self, request: RequestKey, author: Author, options: &mut CallOptions) {
        let left = self.remaining(request);
        let Some(handler) = self.handlers.get_mut(request) else {
            return;
        };
        let time = options.deadline;
        options.deadline = Some(time.map_or(left, |time| time.min(left)));
        options.traced |= handler.is_traced();
        if let Some(share) = handler.share_for_call() {
            let own = options.budgets.unwrap_or_default();
            options.budgets = Some(own.at_most(&share));
        }
        if options.durable.is_none() {
            options.durable = handler.name_next(author);
        }
    }

    /// Begins a call that is aborted when this request is stopped. It inherits nothing.
    ///
    /// # Errors
    ///
    /// [`Failure::Aborted`] if the request was stopped, and as [`begin`](Self::begin).
    pub fn begin_within(
        &mut self,
        request: RequestKey,
        options: &CallOptions,
    ) -> Result<CallKey, Failure> {
        if self.is_stopping(request) {
            return Err(Failure::aborted());
        }
        let key = self.begin(options)?;
        if self.handlers.get(request).is_some()
            && let Some(call) = self.calls.get_mut(key.0)
        {
            call.within = Some(request);
            self.within.insert((request, key.0));
        }
        Ok(key)
    }

    /// A request was stopped, and with it the calls on its behalf.
    pub(super) fn abort_calls_within(&mut self, request: RequestKey) {
        if self.within.is_empty() {
            return;
        }
        let calls = self.within.range((request, 0)..=(request, u64::MAX));
        let calls: Vec<u64> = calls.map(|(_, sequence)| *sequence).collect();
        calls
            .into_iter()
            .for_each(|sequence| self.abort(CallKey(sequence)));
    }
}
