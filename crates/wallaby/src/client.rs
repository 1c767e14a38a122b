//! Where typed calls start: a server, and how to call it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use wallaby_proto::connection::MethodDefinition;
use wallaby_proto::wire::{
    Budgets, Continuation, Heartbeats, Metadata, MetadataError, PingSettings,
};
use wallaby_proto::{Address, AddressError, DurableId, IntoAddress, Status};

use crate::attempts::Attempts;
use crate::attempts::plan::RetryPolicy;
use crate::body::{Attached, Body};
use crate::budget::RetryBudget;
use crate::call::{Call, CallEnd, CallOptions, CallShared, CallWatch, RawCall, Resend};
use crate::codec::Codec;
use crate::driver::shared::Inner;
use crate::endpoint::Endpoint;
use crate::error::Failure;
use crate::handling::Handling;
use crate::hedge::Hedge;
use crate::method::{Answers, Method, Target};
use crate::multicast::Multicast;
use crate::request::RequestInfo;
use crate::retry::Retry;
use crate::servers::{Servers, Visit};

/// An initial request that is about to leave, as interceptors see it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Outgoing {
    /// The server.
    pub server: Address,
    /// The method.
    pub method: Arc<MethodDefinition>,
    /// The arguments.
    pub payload: Bytes,
    /// How the call is made; all calls of a client share it ([`Arc::make_mut`] changes it for this one). Of a call that was
    /// begun by hand ([`Caller::begin`]) only what is changed of the metadata, the continuation and the durable id counts, for this
    /// request.
    pub options: Arc<CallOptions>,
    /// Which attempt of a retried or hedged call this is; 0 is the first.
    pub attempt: u32,
    /// What follows the request: only the first attempt has it.
    pub(crate) body: Option<Attached>,
    /// It is drawn among several servers, of which it tells one how the call ends.
    pub(crate) visit: Option<Arc<Visit>>,
    /// Who else wants to know that.
    pub(crate) watches: Vec<CallWatch>,
}

impl Outgoing {
    /// Whether a body follows the request: what signs requests does not see it.
    pub fn has_body(&self) -> bool {
        self.body.is_some()
    }

    /// Tells how the call ends which this request is of, once, whoever waits for it: when all of it is complete, or it has failed
    /// or was given up, and at once if the request may not leave. It runs where that is found out, before those are woken who wait
    /// for the call, so it must not block. Of several threads one may see the end while another still tells it.
    ///
    /// ```
    /// use std::time::Instant;
    /// use wallaby::{CallInterceptor, Outgoing, Status};
    ///
    /// struct Timed;
    ///
    /// impl CallInterceptor for Timed {
    ///     fn outgoing(&self, outgoing: &mut Outgoing) -> Result<(), Status> {
    ///         let (method, begun) = (outgoing.method.clone(), Instant::now());
    ///         outgoing.on_end(move |end| {
    ///             println!("{} took {:?}: {:?}", method.name(), begun.elapsed(), end.code());
    ///         });
    ///         Ok(())
    ///     }
    /// }
    /// ```
    pub fn on_end(&mut self, told: impl Fn(&CallEnd) + Send + Sync + 'static) {
        self.watches.push(CallWatch(Arc::new(told)));
    }

    /// It passes these, the one that was added last first.
    pub(crate) fn pass(
        &mut self,
        interceptors: &[Arc<dyn CallInterceptor>],
    ) -> Result<(), Failure> {
        for interceptor in interceptors.iter().rev() {
            let passed = interceptor.outgoing(self);
            passed.map_err(|status| Failure::Intercepted {
                server: self.server.clone(),
                method: Arc::clone(self.method.name()),
                status: Box::new(status),
            })?;
        }
        Ok(())
    }
}

/// Sees every initial request of an endpoint's calls before it leaves, whatever makes them: typed clients, each attempt of a
/// retried or hedged call, multicasts, lines of servers, calls on behalf of requests, and those begun by hand
/// ([`Caller::begin`]). It may add credentials, send the request to another server, or refuse it.
///
/// It is not asked about what handlers delegate or forward: that belongs to the call of somebody else, whose metadata travel
/// with it, **to every server of the tree**. So put only what all of them may see into metadata: a token for this call, not a
/// password.
///
/// ```
/// use std::sync::Arc;
/// use wallaby::{CallInterceptor, Code, Endpoint, Outgoing, Status};
///
/// struct Credentials(String);
///
/// impl CallInterceptor for Credentials {
///     fn outgoing(&self, outgoing: &mut Outgoing) -> Result<(), Status> {
///         let metadata = &mut Arc::make_mut(&mut outgoing.options).metadata;
///         let added = metadata.insert("authorization", &self.0);
///         added.map_err(|error| Status::new(Code::ResourceExhausted, error.to_string()))
///     }
/// }
///
/// let builder = Endpoint::builder().call_interceptor(Credentials("Bearer abc".into()));
/// ```
#[doc(alias = "middleware")]
#[doc(alias = "layer")]
pub trait CallInterceptor: Send + Sync + 'static {
    /// A request is about to leave. It runs where the request is sent, so it must not block.
    ///
    /// # Errors
    ///
    /// Why the request must not leave: its call fails with [`Failure::Intercepted`].
    fn outgoing(&self, outgoing: &mut Outgoing) -> Result<(), Status>;
}

/// Makes calls for an endpoint, or on behalf of a request (see [`crate::RequestInfo::call`]).
#[derive(Clone)]
pub struct Caller {
    endpoint: Arc<Inner>,
    /// Keeps the endpoint open.
    open: Option<Endpoint>,
    parent: Option<RequestInfo>,
    options: Arc<CallOptions>,
    /// Why calls fail at once: an option that cannot be.
    refused: Option<Failure>,
}

impl Caller {
    pub(crate) fn new(endpoint: &Endpoint) -> Self {
        Self {
            endpoint: Arc::clone(endpoint.inner()),
            open: Some(endpoint.clone()),
            parent: None,
            options: Arc::default(),
            refused: None,
        }
    }

    pub(crate) fn within(request: &RequestInfo) -> Self {
        Self {
            endpoint: Arc::clone(&request.handling.endpoint),
            open: None,
            parent: Some(request.clone()),
            options: Arc::default(),
            refused: None,
        }
    }

    /// Calls to the server at this address. If that is text and no address, they fail with [`Failure::Address`].
    pub fn at(self, server: impl IntoAddress) -> Client {
        Client {
            caller: self,
            server: server.into_address(),
            among: None,
            policy: None,
        }
    }

    /// How much time its next call has.
    pub fn time(&self) -> Duration {
        let left = self.request().map(Handling::remaining);
        (self.endpoint.settings.config).time(self.options.deadline, left)
    }

    /// The name of its next call, if it was given one ([`durable`](Self::durable)).
    pub fn durable_id(&self) -> Option<DurableId> {
        self.options.durable
    }

    /// Calls to one of these servers, each to another one: see [`Servers`].
    pub fn among(self, servers: &Servers) -> Client {
        let mut client = self.at(servers.pick());
        client.among = Some(servers.clone());
        client.retry(Retry::once_each())
    }

    /// Calls the same method with the same arguments at all these servers, side by side: what
    /// [`Multicast`] tells of each. The arguments are encoded once.
    ///
    /// A body can be read once: it goes to one of the servers, and the calls to the others are refused
    /// ([`Failure::Refused`]). [`pipeline`](Self::pipeline) brings one to all.
    ///
    /// Each server has its own outcome; one that fails leaves the others alone. The requests leave at once where there are
    /// connections, else as soon as there are. All of them count against [`crate::Limits::calls`].
    ///
    /// ```
    /// # use wallaby::{Address, Endpoint};
    /// #[wallaby::service]
    /// trait Store {
    ///     async fn put(key: String, value: Vec<u8>);
    /// }
    ///
    /// # async fn example(endpoint: Endpoint, replicas: Vec<Address>) -> Result<(), wallaby::QuorumError> {
    /// let put = store::put("a".into(), vec![1]);
    /// let stored = endpoint.caller().multicast(replicas, put).quorum(2).await?;
    /// # Ok(())
    /// # }
    /// # fn main() {}
    /// ```
    pub fn multicast<A: Answers, C: Codec<A::Item>>(
        &self,
        servers: impl IntoIterator<Item = impl Into<Address>>,
        target: Target<A, C>,
    ) -> Multicast<A, C> {
        let Target {
            definition,
            payload,
            body,
            ..
        } = target;
        let body = body.map(Attached::new);
        let call = |(place, server): (usize, Address)| {
            let mut client = self.clone().at(server.clone());
            if let Some(id) = self.options.durable_of(place as u32) {
                client.caller.change().durable = Some(id);
            }
            let call = match &payload {
                Ok(payload) => client.call_once(&definition, payload.clone(), body.clone()),
                Err(error) => client.caller.failed(Failure::Codec(error.clone())),
            };
            (server, Call::new(call))
        };
        Multicast::new(servers.into_iter().map(Into::into).enumerate().map(call))
    }

    /// A call with any number of initial requests and with payloads as bytes.
    ///
    /// It is made once: what [`Client::retry`], [`Client::hedge`] and [`Client::resend`] do is for calls with one initial
    /// request. Who begins a call by hand knows what its requests were, and how much of it may be done again.
    pub fn begin(&self) -> RawCall {
        match self.next_options() {
            Ok(options) => RawCall::new(CallShared::begin(&self.endpoint, self.request(), options)),
            Err(failure) => self.failed(failure),
        }
    }

    fn change_metadata(&mut self, change: impl FnOnce(&mut Metadata) -> Result<(), MetadataError>) {
        if let Err(error) = change(&mut self.change().metadata) {
            self.refused = Some(error.into());
        }
    }

    /// For calls of this request's endpoint that do not belong to it.
    pub(crate) fn beside(request: &RequestInfo) -> Self {
        Self {
            endpoint: Arc::clone(&request.handling.endpoint),
            open: None,
            parent: None,
            options: Arc::default(),
            refused: None,
        }
    }

    /// A call that has failed before it began.
    #[cold]
    pub(crate) fn failed(&self, failure: Failure) -> RawCall {
        RawCall::new(CallShared::failed(&self.endpoint, failure))
    }

    /// A call that asks nobody anything.
    pub(crate) fn nothing(&self) -> RawCall {
        let mut call = RawCall::new(CallShared::begin(&self.endpoint, None, Arc::default()));
        call.close();
        call
    }

    /// Connects to servers that will have answers, so that they need not find a way back: an initiator that cannot be dialled
    /// would else hear of them only by way of each other. Whether that works is of no importance otherwise.
    pub(crate) fn meet(&self, servers: &[Address]) {
        for server in servers {
            if let Err(error) = self.endpoint.enter(|core| core.endpoint.meet(server)) {
                tracing::debug!(%error, "answers will have to find a way back");
            }
        }
    }

    /// Longest payload of a message.
    pub(crate) fn message_limit(&self) -> u64 {
        self.endpoint.settings.config.limits.message
    }

    /// How the next call is made, or why it is not.
    fn next_options(&self) -> Result<Arc<CallOptions>, Failure> {
        match (&self.refused, &self.parent) {
            (Some(refused), _) => Err(refused.clone()),
            (None, None) => Ok(Arc::clone(&self.options)),
            (None, Some(of)) => {
                let options = of.handling.options_for(of.author, &self.options);
                options.map(Arc::new)
            }
        }
    }

    /// The request with which its calls end.
    fn request(&self) -> Option<&Handling> {
        self.parent.as_ref().map(|parent| &*parent.handling)
    }

    /// All attempts of the next call have one name.
    fn keep_name(&mut self) {
        if let (Some(parent), None) = (&self.parent, &self.options.durable)
            && let Some(name) = parent.handling.name_next(parent.author)
        {
            self.change().durable = Some(name);
        }
    }

    fn change(&mut self) -> &mut CallOptions {
        Arc::make_mut(&mut self.options)
    }
}

/// A server and how it is called. Cheap to clone; the options apply to all calls made with it.
///
/// ```
/// # use wallaby::{Client, Endpoint, Method, One, Address};
/// # use std::time::Duration;
/// static DOUBLE: Method<(u64,), One<u64>> = Method::new("example.Math/double");
///
/// # async fn example(endpoint: Endpoint, server: Address) -> Result<(), wallaby::CallError> {
/// let client = Client::new(&endpoint, server).deadline(Duration::from_millis(100));
/// let doubled = client.call(&DOUBLE, (21,)).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Client {
    caller: Caller,
    /// Or why calls fail at once: it was named by text that is no address.
    server: Result<Address, AddressError>,
    /// Each call goes to one of them.
    among: Option<Servers>,
    /// How calls are made again.
    policy: Option<Arc<RetryPolicy>>,
}

impl Client {
    /// Calls from `endpoint` to the server at this address. If that is text and no address, they fail with [`Failure::Address`].
    ///
    /// ```
    /// # use wallaby::{Client, Code, Endpoint, Method, One};
    /// static DOUBLE: Method<(u64,), One<u64>> = Method::new("example.Math/double");
    ///
    /// # async fn example(endpoint: Endpoint) {
    /// let client = Client::new(&endpoint, "127.0.0.1:4000"); // the scheme is missing
    /// let error = client.call(&DOUBLE, (21,)).await.expect_err("nobody was asked");
    /// assert_eq!(error.code(), Code::InvalidArgument);
    /// # }
    /// ```
    pub fn new(endpoint: &Endpoint, server: impl IntoAddress) -> Self {
        Caller::new(endpoint).at(server)
    }

    /// Calls from `endpoint` to one of these servers, each to another one: see [`Servers`].
    pub fn among(endpoint: &Endpoint, servers: &Servers) -> Self {
        Caller::new(endpoint).among(servers)
    }

    /// The server; of a client [among](Self::among) several one of them. `None` if it was named by text that is no address.
    pub fn server(&self) -> Option<&Address> {
        self.server.as_ref().ok()
    }

    /// Makes calls again that have failed, as [`Retry`] says.
    ///
    /// A call that is to be made again is so while the application waits for its answers. Each attempt passes the
    /// interceptors of calls and is a call of its own: [`Call::id`] and [`Call::trace`] tell of the latest or, once it has
    /// delivered, of the one that did; [`Call::attempts`] says how many were made. The arguments, encoded, are kept until
    /// the call is dropped. An error that no further attempt could mend is [`Failure::Attempts`].
    #[must_use]
    pub fn retry(mut self, retry: Retry) -> Self {
        self.change_policy().retry = Some(retry);
        self
    }

    /// Makes a second attempt beside calls that take long, as [`Hedge`] says. Only for methods that may run twice. What
    /// [`retry`](Self::retry) says of attempts holds here too.
    #[must_use]
    pub fn hedge(mut self, hedge: Hedge) -> Self {
        self.change_policy().hedge = Some(hedge);
        self
    }

    /// How many further attempts all calls of this client and its clones may make, retries and hedges together: a tenth
    /// of the calls and ten at once, if nothing is said. A budget may be shared with other clients.
    #[must_use]
    pub fn retry_budget(mut self, budget: RetryBudget) -> Self {
        self.change_policy().budget = budget;
        self
    }

    /// Further servers that can do the same: each attempt, and each request that is sent again, after the first goes to the next
    /// one, and after the last to the first again. Of a client [among](Self::among) several servers each attempt goes to one of these
    /// in any case.
    #[must_use]
    pub fn alternates(mut self, servers: impl IntoIterator<Item = impl Into<Address>>) -> Self {
        self.change_policy().alternates = servers.into_iter().map(Into::into).collect();
        self
    }

    /// Sends initial requests again below which something was lost, as [`Resend`] says. Only for methods whose handlers,
    /// and those they delegate to, are deterministic. Unlike [`retry`](Self::retry) it is the same call, answers that have
    /// arrived are kept, and it works after the first answer, too. It costs a small message a request, since a server
    /// holds nothing back that it might have to repeat; the request is kept as [`crate::Limits::kept_call`] says.
    /// [`Call::resent`] counts.
    ///
    /// If the answers of an earlier execution arrive after all, the call completes with these, and a request that was sent again may
    /// still be on its way: it can begin after [`Call::stop`] has said that nothing runs.
    #[must_use]
    pub fn resend(mut self, resend: Resend) -> Self {
        self.change_policy().resend = Some(resend);
        self
    }

    fn change_policy(&mut self) -> &mut RetryPolicy {
        Arc::make_mut(self.policy.get_or_insert_default())
    }

    /// Calls a method. The request leaves at once if there is a connection, else as soon as there is one.
    pub fn call<Args, A, C>(
        &self,
        method: &'static Method<Args, A, C>,
        arguments: Args,
    ) -> Call<A, C>
    where
        A: Answers,
        C: Codec<Args> + Codec<A::Item>,
    {
        let payload = <C as Codec<Args>>::encode(&arguments);
        Call::new(match payload {
            Ok(payload) => self.call_raw(method.definition(), payload),
            Err(error) => self.caller.failed(Failure::Codec(error)),
        })
    }

    /// Calls a method with a body that follows the request: see [`Body`].
    ///
    /// It is made once, whatever the client says of retries and hedges: a body can be read once.
    pub fn call_with_body<Args, A, C>(
        &self,
        method: &'static Method<Args, A, C>,
        arguments: Args,
        body: Body,
    ) -> Call<A, C>
    where
        A: Answers,
        C: Codec<Args> + Codec<A::Item>,
    {
        self.call_target(method.target(arguments).with_body(body))
    }

    /// Calls what a request could be delegated to.
    pub fn call_target<A: Answers, C: Codec<A::Item>>(&self, target: Target<A, C>) -> Call<A, C> {
        let Target {
            definition,
            payload,
            body,
            ..
        } = target;
        Call::new(match (payload, body) {
            (Ok(payload), None) => self.call_raw(&definition, payload),
            (Ok(payload), Some(body)) => self.call_raw_with_body(&definition, payload, body),
            (Err(error), _) => self.caller.failed(Failure::Codec(error)),
        })
    }

    /// Calls a method with payloads as bytes.
    pub fn call_raw(&self, method: &Arc<MethodDefinition>, payload: Bytes) -> RawCall {
        self.call_with(method, payload, None)
    }

    /// The same, and this body follows the request. It is made once, whatever the policy says.
    pub fn call_raw_with_body(
        &self,
        method: &Arc<MethodDefinition>,
        payload: Bytes,
        body: Body,
    ) -> RawCall {
        self.call_with(method, payload, Some(body))
    }

    fn call_with(
        &self,
        method: &Arc<MethodDefinition>,
        payload: Bytes,
        body: Option<Body>,
    ) -> RawCall {
        match &self.policy {
            Some(policy) if RetryPolicy::is_for(body.as_ref()) => {
                self.call_by(policy, method, payload)
            }
            _ => self.call_once(method, payload, body.map(Attached::new)),
        }
    }

    /// Makes a call that may be made again.
    #[cold]
    #[inline(never)]
    fn call_by(
        &self,
        policy: &Arc<RetryPolicy>,
        method: &Arc<MethodDefinition>,
        payload: Bytes,
    ) -> RawCall {
        let mut client = self.clone().with_resend(policy);
        client.caller.keep_name();
        if let (true, Ok(server)) = (policy.has_attempts(), &self.server) {
            return Attempts::begin(client, server.clone(), policy, method, payload);
        }
        client.call_once(method, payload, None)
    }

    pub(crate) fn call_once(
        &self,
        method: &Arc<MethodDefinition>,
        payload: Bytes,
        body: Option<Attached>,
    ) -> RawCall {
        let server = match &self.server {
            Ok(server) => server,
            Err(error) => return self.caller.failed(Failure::Address(error.clone())),
        };
        let options = match self.caller.next_options() {
            Ok(options) => options,
            Err(failure) => return self.caller.failed(failure),
        };
        let visit = self.among.as_ref().map(|servers| servers.visit(&[]));
        let server = visit.as_ref().map_or(server, |visit| visit.server());
        self.send(Outgoing {
            server: server.clone(),
            method: Arc::clone(method),
            payload,
            options,
            attempt: 0,
            body,
            visit,
            watches: Vec::new(),
        })
    }

    /// Makes a call, once.
    pub(crate) fn send(&self, mut outgoing: Outgoing) -> RawCall {
        let checked = self.caller.endpoint.intercept(&mut outgoing);
        let mut watches = std::mem::take(&mut outgoing.watches);
        // An interceptor may have sent it elsewhere: of that server it says nothing.
        let visit = outgoing.visit.take();
        watches.extend(
            visit
                .filter(|visit| visit.server() == &outgoing.server)
                .map(Visit::watch),
        );
        let call = match checked {
            Ok(()) => Inner::send(&self.caller.endpoint, self.caller.request(), outgoing),
            Err(failure) => self.caller.failed(failure),
        };
        call.shared().watch(watches);
        call
    }
}

/// Options that callers and clients have alike: what each sets at its caller.
macro_rules! options {
    ($($(#[$about:meta])* $name:ident($($argument:ident: $of:ty),*) = |$caller:ident| $set:expr;)*) => {
        /// How calls are made.
        impl Caller {
            $(
                $(#[$about])*
                #[must_use]
                pub fn $name(mut self, $($argument: $of),*) -> Self {
                    let $caller = &mut self;
                    $set;
                    self
                }
            )*
        }

        /// How calls are made.
        impl Client {
            $(
                $(#[$about])*
                #[must_use]
                pub fn $name(mut self, $($argument: $of),*) -> Self {
                    self.caller = self.caller.$name($($argument),*);
                    self
                }
            )*
        }
    };
}

options! {
    /// All of these, in place of what a caller was told before: as calls of [`polling`](crate::polling) endpoints have them. What only
    /// clients have (retries, hedges, alternates, [`Client::resend`]) stays, and a way to resend among these counts if the client has none.
    options(options: CallOptions) = |caller| *caller.change() = options;

    /// How much time a call has (60 s if nothing is said); on behalf of a request, not more than that has left.
    #[doc(alias = "timeout")]
    deadline(after: Duration) = |caller| caller.change().deadline = Some(after);

    /// Each hop reports its timings for [`Call::trace`].
    traced() = |caller| caller.change().traced = true;

    /// Lets calls go on without what is lost of them, as when a server dies: a status says so in place of that branch's answers
    /// ([`Status::loss`](crate::Status::loss) has the facts), and the others' answers come. The call is complete, with statuses,
    /// when nothing else is missing. Without, a call fails as soon as something is lost, as its answers can't be whole any more.
    ///
    /// Who hangs is not lost, and takes the call to its deadline: against that give each delegation one of its own
    /// ([`Delegation::deadline`](crate::Delegation::deadline)).
    ///
    /// Nothing of such a call is sent again ([`Client::resend`]), and with `fail_fast` the first loss ends it all the same.
    tolerant() = |caller| caller.change().tolerant = true;

    /// The first status ends a call and aborts the rest of its tree.
    fail_fast() = |caller| caller.change().fail_fast = true;

    /// The answers of each server are delivered in the order in which it sent them, and after those of the server that
    /// delegated to it alone. Without it large answers are overtaken by small ones, over `udp:` any by any, and those that other
    /// servers pass on by those that come directly, once there is a connection.
    ///
    /// So answers may be the chunks of something long: they come no faster than they are taken, and [`Call::into_body`] reads
    /// them like a file.
    in_order() = |caller| caller.change().in_order = true;

    /// A pair that travels down the tree of each call. If all pairs together exceed 8 KiB, calls fail and say so.
    metadata(key: &str, value: &str) =
        |caller| caller.change_metadata(|metadata| metadata.insert(key, value));

    /// The same with a value that is bytes. A server that is too old for that fails the call ([`Failure::NotUnderstood`]), or its
    /// part of it ([`wallaby_proto::Code::Mismatch`]).
    metadata_bin(key: &str, value: impl Into<Bytes>) =
        |caller| caller.change_metadata(|metadata| metadata.insert_bin(key, value));

    /// Bytes that go along with each initial request of a call, and with nothing that comes of them: what who handles it is to do
    /// with its answer ([`crate::RequestInfo::continuation`]). If they exceed 16 KiB, calls fail and say so.
    continuation(bytes: impl Into<Bytes>) = |caller| match Continuation::new(bytes) {
        Ok(continuation) => caller.change().continuation = Some(continuation),
        Err(error) => caller.refused = Some(Failure::Continuation(error)),
    };

    /// The name under which the call may be asked for again, by another incarnation of this endpoint too: whoever handles it sees
    /// it ([`crate::RequestInfo::durable_id`]), and what it leads to has names that follow from it. Each attempt of a
    /// [retried](Client::retry) call has the same. So a client has one name for one call: it sets it before each. Of a call with
    /// several initial requests each has a name of its own, by its number.
    ///
    /// Wallaby itself does nothing about a name that was seen before: that is for a record of what was done. A server that does not
    /// know such names would do the work twice, so it does not get the request: the call fails ([`Failure::NotUnderstood`]), or its
    /// part of it ([`wallaby_proto::Code::Mismatch`]).
    durable(id: DurableId) = |caller| caller.change().durable = Some(id);

    /// How often the servers of a call are asked about it, and for how long silence is no failure; see
    /// [`crate::Builder::ping`].
    ping(period: Duration, timeout: Duration) =
        |caller| caller.change().ping = Some(PingSettings { period, timeout }.bounded());

    /// The servers of a call show unasked that they live, and are asked only if a heartbeat is late. Without, they are asked each
    /// period of [`ping`](Client::ping).
    ///
    /// The time until the next heartbeat travels along with the call, so a long line of servers, or a chain, makes one in each
    /// period, and branches that run side by side make their own. Who is silent for the timeout is lost. While none is late nothing is
    /// asked; when one is, by a quarter of the time that is left until the timeout or by 2.5 s, its branch is asked about once in each
    /// period of pings until it is heard again. So what is on its way for longer, or lost, fails nothing. Servers that are too old for this, and
    /// what they lead to, are asked as ever, and so are those whose words come by way of such a server.
    ///
    /// A period is between 10 ms and 5 s, and no shorter than each server has it ([`crate::Builder::shortest_heartbeat`]); a timeout
    /// is two periods at least and a year at most, and servers take 10 minutes for more. Of a hop at most half a period is believed.
    /// A server stops what it runs for a call when no heartbeat of it could leave for a period and two timeouts, or for
    /// [`crate::Builder::initiator_timeout`] if that is less. Where others pass them on to a caller, that asks as ever.
    heartbeats(heartbeats: Heartbeats) =
        |caller| caller.change().heartbeats = Some(heartbeats.bounded());

    /// How long a handler may make no progress before the call fails; see [`crate::Builder::stall_limit`].
    stall_limit(limit: Duration) = |caller| caller.change().stall_limit = Some(limit);

    /// What the tree of each call may use up, 65,536 requests, 1,048,576 responses, 1 TiB and 4,096 hops if nothing is said.
    ///
    /// The call fails when more comes. Budgets that are said also travel with the call's requests, and servers split them
    /// among what they delegate (see [`crate::RequestInfo::share_among`]), so that the tree ends even if nobody stops it; a
    /// tree that is not announced may find the share of a branch too small before the whole is used up.
    budgets(budgets: Budgets) = |caller| caller.change().budgets = Some(budgets);
}

// What a call of several attempts needs of its client.
impl Client {
    /// This client as a call keeps it: the endpoint may close before the call ends.
    pub(crate) fn kept(mut self) -> Self {
        self.caller.open = None;
        self
    }

    /// This client with the policy's way to send requests again among its options.
    fn with_resend(mut self, policy: &RetryPolicy) -> Self {
        let resend = policy.resend.clone();
        let resend = resend.or_else(|| self.caller.options.resend.clone());
        self.caller.change().resend = resend.map(|resend| match &self.among {
            // Those after one that is drawn: not all calls go to the same.
            Some(servers) => resend.alternates(servers.after(&servers.pick())),
            None => resend.alternates(policy.alternates.iter().cloned()),
        });
        self
    }

    /// Those of which each call goes to one.
    pub(crate) fn servers(&self) -> Option<&Servers> {
        self.among.as_ref()
    }

    /// How the next attempt is made, or why it is not.
    pub(crate) fn next_options(&self) -> Result<Arc<CallOptions>, Failure> {
        self.caller.next_options()
    }

    /// A call that has failed before it began.
    pub(crate) fn failed(&self, failure: Failure) -> RawCall {
        self.caller.failed(failure)
    }

    /// How much time a call has.
    pub(crate) fn time(&self) -> Duration {
        self.caller.time()
    }

    pub(crate) fn endpoint(&self) -> &Arc<Inner> {
        &self.caller.endpoint
    }
}

impl fmt::Debug for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Caller")
            .field("node", &self.endpoint.node)
            .field("within", &self.parent)
            .finish()
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let open = self.caller.open.is_some();
        f.debug_struct("Client")
            .field("server", &self.server)
            .field("owns_endpoint", &open)
            .finish()
    }
}
