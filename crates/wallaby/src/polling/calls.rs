//! Calls with one initial request, and the same to many servers.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use wallaby_proto::connection::MethodDefinition;
use wallaby_proto::endpoint::{
    CallKey, CallOptions, Endpoint as Core, NewInitial, ReportedEnd, RequestKey,
};
use wallaby_proto::{Address, CallId, RequestId};

use super::attempts::Retried;
use super::bodies::Bodies;
use super::datagrams::Datagrams;
use super::event::Call;
use super::{Endpoint, Notification};
use crate::body::{self, Attached, Body};
use crate::call::{CallEnd, CallWatch};
use crate::client::{CallInterceptor, Outgoing};
use crate::codec::Codec;
use crate::error::Failure;
use crate::method::{Answers, Target};
use crate::metrics::Meters;

impl<D: Datagrams> Endpoint<D> {
    /// Calls the same method with the same arguments at all these servers, side by side: each is a call of its own, with its own
    /// events, and one that fails leaves the others alone. The arguments are encoded once. All of them count against
    /// [`Limits::calls`](super::Limits::calls). With [`CallOptions::durable`] each has a name of its own, by its place.
    ///
    /// # Errors
    ///
    /// For each server, in the order of `servers`, as of [`call`](Self::call). A body goes to the first server: for the others the
    /// error says so.
    pub fn multicast<A: Answers, C: Codec<A::Item>>(
        &mut self,
        servers: impl IntoIterator<Item = impl Into<Address>>,
        target: Target<A, C>,
        options: &CallOptions,
    ) -> Vec<Result<Call<A, C>, Failure>> {
        let (payload, mut body) = (target.payload, target.body);
        let is_followed = body.is_some();
        let mut own = options.clone();
        let call = |(place, server): (usize, Address)| {
            let mut target = Target::raw(Arc::clone(&target.definition), payload.clone()?);
            target.body = body.take();
            if is_followed && target.body.is_none() {
                return Err(body::is_gone(server));
            }
            own.durable = options.durable_of(place as u32);
            self.call(server, target, &own)
        };
        let servers = servers.into_iter().map(Into::into);
        servers.enumerate().map(call).collect()
    }
}

/// What calls have beside the endpoint without IO: bodies that follow them, attempts, code of the application's that sees them, and
/// what it is told.
pub(super) struct Calling {
    pub(super) bodies: Bodies,
    pub(super) retried: Retried,
    pub(super) meters: Arc<Meters>,
    /// What the application is told next, and how often there was something.
    pub(super) told: VecDeque<Notification>,
    pub(super) news: u64,
    interceptors: Vec<Arc<dyn CallInterceptor>>,
    /// Who wants to know how calls end.
    watched: HashMap<CallKey, Vec<CallWatch>>,
}

/// A request that a call is to begin with, and what follows it.
pub(super) struct Initial<'a> {
    pub(super) server: Address,
    pub(super) method: &'a Arc<MethodDefinition>,
    pub(super) payload: Bytes,
    pub(super) body: Option<Body>,
}

impl<'a> Initial<'a> {
    pub(super) fn new(
        server: impl Into<Address>,
        method: &'a Arc<MethodDefinition>,
        payload: Bytes,
        body: Option<Body>,
    ) -> Self {
        Self {
            server: server.into(),
            method,
            payload,
            body,
        }
    }

    /// As interceptors see it.
    fn outgoing(&mut self, options: CallOptions, attempt: u32) -> Outgoing {
        Outgoing {
            server: self.server.clone(),
            method: Arc::clone(self.method),
            payload: std::mem::take(&mut self.payload),
            options: Arc::new(options),
            attempt,
            body: self.body.take().map(Attached::new),
            visit: None,
            watches: Vec::new(),
        }
    }
}

impl Calling {
    pub(super) fn new(interceptors: Vec<Arc<dyn CallInterceptor>>) -> Self {
        Self {
            bodies: Bodies::default(),
            retried: Retried::default(),
            meters: Arc::default(),
            told: VecDeque::new(),
            news: 0,
            interceptors,
            watched: HashMap::new(),
        }
    }

    /// Makes a call of one request, on behalf of another one perhaps. If it cannot be sent, whoever asked is told that here, and by no
    /// event.
    pub(super) fn call(
        &mut self,
        core: &mut Core,
        within: Option<RequestKey>,
        options: &CallOptions,
        initial: Initial<'_>,
    ) -> Result<CallKey, Failure> {
        if !self.interceptors.is_empty() {
            let made = self.attempt(core, (within, 0), options.clone(), initial);
            return made.map_err(|unsent| unsent.failure);
        }
        let call = begin(core, within, options)?;
        let sent = self.send_only(core, call, initial);
        sent.inspect_err(|_| core.forget(call)).map(|()| call)
    }

    /// The same after the request has passed the interceptors, which learn which attempt it is.
    #[cold]
    pub(super) fn attempt(
        &mut self,
        core: &mut Core,
        (within, number): (Option<RequestKey>, u32),
        options: CallOptions,
        mut initial: Initial<'_>,
    ) -> Result<CallKey, Unsent> {
        let mut outgoing = initial.outgoing(options, number);
        let passed = outgoing.pass(&self.interceptors);
        let call = match begin(core, within, &outgoing.options) {
            Ok(call) => call,
            Err(failure) => {
                let id = CallId::none(core.node());
                let failure = passed.err().unwrap_or(failure);
                let end = CallEnd::new(id, &ReportedEnd::failed(&failure));
                CallWatch::tell(&outgoing.watches, &end);
                let call = None;
                return Err(Unsent { call, failure });
            }
        };
        let body = outgoing.body.as_ref().and_then(Attached::take);
        let initial = Initial::new(outgoing.server, &outgoing.method, outgoing.payload, body);
        if let Err(failure) = &passed {
            core.fail_call(call, failure.clone()); // counted as failed, not as given up
        }
        let sent = passed.and_then(|()| self.send_only(core, call, initial));
        self.watch(core, call, outgoing.watches, sent.as_ref().err());
        sent.map(|()| call).map_err(|failure| {
            core.forget(call);
            let call = Some(call);
            Unsent { call, failure }
        })
    }

    fn send_only(
        &mut self,
        core: &mut Core,
        call: CallKey,
        initial: Initial<'_>,
    ) -> Result<(), Failure> {
        let Initial {
            server,
            method,
            payload,
            body,
        } = initial;
        let new = NewInitial {
            followed: body.is_some(),
            ..NewInitial::new(&server, method, payload)
        };
        let (_, out) = core.send_only(call, new)?;
        if let Some((out, body)) = out.zip(body) {
            self.bodies.send(core, out, body);
        }
        Ok(())
    }

    /// Sends one of several initial requests of a call that has begun, if it passes the interceptors.
    pub(super) fn send(
        &mut self,
        core: &mut Core,
        call: CallKey,
        mut initial: Initial<'_>,
    ) -> Result<RequestId, Failure> {
        let (mut method, mut own) = (Arc::clone(initial.method), None);
        if !self.interceptors.is_empty() {
            let options = core.options(call).cloned().unwrap_or_default();
            let mut outgoing = initial.outgoing(options, 0);
            let passed = outgoing.pass(&self.interceptors);
            let passed = passed.inspect_err(|failure| core.fail_call(call, failure.clone()));
            self.watch(core, call, outgoing.watches, None);
            passed?;
            (initial.server, initial.payload) = (outgoing.server, outgoing.payload);
            initial.body = outgoing.body.as_ref().and_then(Attached::take);
            (method, own) = (outgoing.method, Some(outgoing.options));
        }
        let new = NewInitial {
            server: &initial.server,
            method: &method,
            payload: initial.payload,
            own: own.as_deref(),
            followed: initial.body.is_some(),
        };
        let (request, out) = core.send_with(call, new)?;
        if let Some((out, body)) = out.zip(initial.body) {
            self.bodies.send(core, out, body);
        }
        Ok(request)
    }

    /// These are told how a call ends: now, if it has, or has `failed` to begin.
    fn watch(
        &mut self,
        core: &mut Core,
        call: CallKey,
        watches: Vec<CallWatch>,
        failed: Option<&Failure>,
    ) {
        if watches.is_empty() {
            return;
        }
        let ended = match failed {
            Some(failure) => Some(ReportedEnd::failed(failure)),
            None => core.report_end(call),
        };
        self.watched.entry(call).or_default().extend(watches);
        if let Some(end) = ended {
            self.ended(core.call_id(call), call, &end);
        }
    }

    /// A call has ended: who wanted to know is told.
    pub(super) fn ended(&mut self, id: CallId, call: CallKey, end: &ReportedEnd) {
        if let Some(watches) = self.watched.remove(&call) {
            CallWatch::tell(&watches, &CallEnd::new(id, end));
        }
    }
}

/// Nothing of a call was sent.
#[derive(Debug)]
pub(super) struct Unsent {
    /// The call, if it could begin.
    pub(super) call: Option<CallKey>,
    pub(super) failure: Failure,
}

fn begin(
    core: &mut Core,
    within: Option<RequestKey>,
    options: &CallOptions,
) -> Result<CallKey, Failure> {
    match within {
        Some(request) => core.begin_within(request, options),
        None => core.begin(options),
    }
}
