//! Calls on behalf of requests: what they inherit, and that they end when their request is stopped.

use std::time::Duration;

use super::Endpoint;
use super::call_options::CallOptions;
use super::event::{CallKey, RequestKey};
use super::probe::Probe;
use super::server::Author;
use crate::error::Failure;
use crate::wire::{Metadata, MetadataError};

impl CallOptions {
    /// How a call on behalf of a request is made that would be made like this otherwise: with the request's metadata beside its own,
    /// which take the place of those with the same keys, in no more time than the request has left, and traced if that is.
    ///
    /// # Errors
    ///
    /// If the metadata are too much.
    pub fn on_behalf(
        &self,
        metadata: Option<&Metadata>,
        left: Duration,
        traced: bool,
    ) -> Result<Self, MetadataError> {
        let mut options = self.clone();
        if let Some(inherited) = metadata {
            options.metadata = inherited.clone();
            options.metadata.insert_all(&self.metadata)?;
        }
        options.deadline = Some(self.deadline.map_or(left, |own| own.min(left)));
        options.traced |= traced;
        Ok(options)
    }
}

impl<P: Probe> Endpoint<P> {
    /// Begins a call on behalf of a request that is handled here, as [`options_for`](Self::options_for) says. It is aborted when the
    /// request is stopped; one whose request has ended otherwise goes on.
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

    /// How a call on behalf of a request is made that would be made like this otherwise: as [`CallOptions::on_behalf`] says, and with
    /// [its share](Self::share_for). It is begun by [`begin_within`](Self::begin_within). Like this if the request has ended.
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
        let Some(handler) = self.handlers.get(request) else {
            return Ok(own.clone());
        };
        let left = self.remaining(request);
        let mut options = own.on_behalf(handler.metadata(), left, handler.is_traced())?;
        self.share_for(request, author, &mut options);
        Ok(options)
    }

    /// A call on behalf of a request may use up a delegation's share of its budgets, its initial requests included, and, unless it has a
    /// name, gets the next one of this author if the request has one. Nothing if that has ended.
    pub fn share_for(&mut self, request: RequestKey, author: Author, options: &mut CallOptions) {
        let Some(handler) = self.handlers.get_mut(request) else {
            return;
        };
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
        self.calls_within(request)
            .into_iter()
            .for_each(|sequence| self.abort(CallKey(sequence)));
    }

    /// Calls on behalf of a request of which something may run.
    pub(super) fn calls_within(&self, request: RequestKey) -> Vec<u64> {
        if self.within.is_empty() {
            return Vec::new();
        }
        let calls = self.within.range((request, 0)..=(request, u64::MAX));
        calls.map(|(_, sequence)| *sequence).collect()
    }
}
