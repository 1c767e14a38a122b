//! Services: methods by name, and their handlers.

use std::fmt;
use std::future::{Future, ready};
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use wallaby_proto::connection::MethodDefinition;
use wallaby_proto::{Code, Status};

use crate::codec::Codec;
use crate::intercept::Interceptor;
use crate::method::{Answers, Method, RequestBody};
use crate::reflection::{Described, Description, Signature};
use crate::request::{RawRequest, Request};

/// What a handler returns: a future that ends when it has nothing more to do. If its request is stopped before, it is dropped
/// where it waits ([`RequestInfo::shield`](crate::RequestInfo::shield)).
pub type HandlerFuture = Pin<Box<dyn Future<Output = Result<(), Status>> + Send>>;

/// Handles requests of one method, with payloads as bytes. An async closure that takes a [`RawRequest`] is one, too.
///
/// ```
/// use std::sync::Arc;
/// use wallaby::{Handler, HandlerFuture, MethodDefinition, RawRequest, Service};
///
/// /// Answers what it is sent, as many times.
/// struct Echo {
///     times: usize,
/// }
///
/// impl Handler for Echo {
///     fn handle(&self, request: RawRequest) -> HandlerFuture {
///         let (times, payload) = (self.times, request.payload().clone());
///         Box::pin(async move {
///             for _ in 0..times {
///                 request.reply(payload.clone()).await?;
///             }
///             Ok(()) // the request is dropped, which ends it
///         })
///     }
/// }
///
/// // Its name, its codec, and no fingerprints of types: callers with any types are served.
/// let echo = MethodDefinition::new("example.Echo/echo", "raw", 0, 0).expect("the names are short");
/// let service = Service::new("example.Echo").raw(Arc::new(echo), Echo { times: 2 });
/// ```
pub trait Handler: Send + Sync + 'static {
    /// Handles one request. The request ends when it is dropped, or with the status returned.
    fn handle(&self, request: RawRequest) -> HandlerFuture;
}

impl<F, Fut> Handler for F
where
    F: Fn(RawRequest) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<(), Status>> + Send + 'static,
{
    fn handle(&self, request: RawRequest) -> HandlerFuture {
        Box::pin(self(request))
    }
}

/// A handler whose future is in a box already.
struct Boxed<F>(F);

impl<F: Fn(RawRequest) -> HandlerFuture + Send + Sync + 'static> Handler for Boxed<F> {
    fn handle(&self, request: RawRequest) -> HandlerFuture {
        (self.0)(request)
    }
}

/// A set of methods to register with an endpoint. `#[wallaby::service]` makes one from a trait's implementation.
pub struct Service {
    name: &'static str,
    pub(crate) methods: Vec<Registered>,
    pub(crate) interceptors: Vec<Arc<dyn Interceptor>>,
    /// Of Wallaby's own names, those of these services may be among the methods'.
    pub(crate) reserved: Vec<Reserved>,
}

/// A method that an endpoint serves.
pub(crate) struct Registered {
    pub(crate) definition: Arc<MethodDefinition>,
    pub(crate) handler: Arc<dyn Handler>,
    /// Its initiators expect exactly one answer.
    pub(crate) one: bool,
    /// It is for all methods that are not served by their names.
    pub(crate) rest: bool,
    /// Its handlers finish what they have begun.
    pub(crate) shielded: bool,
    /// Who is asked about its requests, the last one first.
    pub(crate) interceptors: Box<[Arc<dyn Interceptor>]>,
    /// What is said of it to tools.
    pub(crate) description: Description,
}

impl Registered {
    pub(crate) fn new(
        definition: Arc<MethodDefinition>,
        handler: impl Handler,
        description: Description,
    ) -> Self {
        Self {
            definition,
            handler: Arc::new(handler),
            one: false,
            rest: false,
            shielded: false,
            interceptors: Box::default(),
            description,
        }
    }

    /// It and what is said of it to tools.
    pub(crate) fn described(&self) -> Described<'_> {
        (&self.definition, &self.description)
    }
}

/// The right to serve names of one of Wallaby's own services: for crates of this repository.
#[doc(hidden)]
#[derive(Debug, Clone, Copy)]
pub struct Reserved(&'static str);

impl Reserved {
    /// For the service with this name, as `wallaby.Chains`.
    pub const fn new(service: &'static str) -> Self {
        Self(service)
    }

    /// Whether this is a name of one of the service's methods.
    pub(crate) fn has(&self, method: &str) -> bool {
        let rest = method.strip_prefix(self.0);
        rest.is_some_and(|rest| rest.starts_with('/'))
    }
}

impl Service {
    /// A service without methods; `name` (`package.Service`) is for messages only.
    pub fn new(name: &'static str) -> Self {
        Self {
            name,
            methods: Vec::new(),
            interceptors: Vec::new(),
            reserved: Vec::new(),
        }
    }

    /// The service's name.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Adds a method whose handler is a future.
    #[must_use]
    pub fn method<Args, A, C, F, Fut>(self, method: &'static Method<Args, A, C>, handler: F) -> Self
    where
        Args: Send + 'static,
        A: Answers,
        C: Codec<Args> + Codec<A::Item>,
        F: Fn(Request<A, C>, Args) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), Status>> + Send + 'static,
    {
        let handler = move |mut raw: RawRequest| -> HandlerFuture {
            match <C as Codec<Args>>::decode(raw.take_payload()) {
                Ok(arguments) => Box::pin(handler(Request::new(raw), arguments)),
                Err(error) => Box::pin(ready(Err(undecodable(&error)))),
            }
        };
        self.push::<Args, A, C, ()>(method.definition(), handler)
    }

    /// Adds a method whose handler blocks: it runs on a pool of threads that grows and shrinks with need.
    #[must_use]
    pub fn blocking_method<Args, A, C, F>(
        self,
        method: &'static Method<Args, A, C>,
        handler: F,
    ) -> Self
    where
        Args: Send + 'static,
        A: Answers,
        C: Codec<Args> + Codec<A::Item>,
        F: Fn(Request<A, C>, Args) -> Result<(), Status> + Send + Sync + 'static,
    {
        let handler = Arc::new(handler);
        self.method(method, move |request, arguments| {
            let handler = Arc::clone(&handler);
            async move { blocking_with(request, move |request| handler(request, arguments)).await }
        })
    }

    /// Adds a method whose requests are followed by bytes ([`crate::Body`]) or items ([`crate::Streaming`]): its handler
    /// gets them last, and reads them while they arrive.
    #[must_use]
    pub fn streaming_method<Args, A, C, B, F, Fut>(
        self,
        method: &'static Method<Args, A, C, B>,
        handler: F,
    ) -> Self
    where
        Args: Send + 'static,
        A: Answers,
        C: Codec<Args> + Codec<A::Item>,
        B: RequestBody,
        F: Fn(Request<A, C>, Args, B) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), Status>> + Send + 'static,
    {
        let handler = move |mut raw: RawRequest| -> HandlerFuture {
            let arguments = match <C as Codec<Args>>::decode(raw.take_payload()) {
                Ok(arguments) => arguments,
                Err(error) => return Box::pin(ready(Err(undecodable(&error)))),
            };
            match B::receive(&mut raw) {
                Ok(body) => Box::pin(handler(Request::new(raw), arguments, body)),
                Err(status) => Box::pin(ready(Err(status))),
            }
        };
        self.push::<Args, A, C, B>(method.definition(), handler)
    }

    /// Adds a method with payloads as bytes.
    #[must_use]
    pub fn raw(mut self, definition: Arc<MethodDefinition>, handler: impl Handler) -> Self {
        let method = Registered::new(definition, handler, Description::default());
        self.methods.push(method);
        self
    }

    /// [`raw`](Self::raw), of a method whose types are known when the program runs: tools are told of them
    /// ([`reflection`](crate::reflection)). `descriptors` is the `FileDescriptorSet` that says what the names in the signature mean,
    /// where its codec is `protobuf`, and else empty. If the signature says that there is one answer, a handler that ends without one
    /// has failed.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use wallaby::reflection::{Follows, Signature};
    /// use wallaby::{MethodDefinition, RawRequest, Service};
    ///
    /// let length = MethodDefinition::new("example.Text/length", "raw", 0, 0).expect("the names are short");
    /// let signature = Signature { one: true, follows: Follows::Nothing, arguments: None, answer: None };
    /// let service = Service::new("example.Text").described(
    ///     Arc::new(length),
    ///     signature,
    ///     Default::default(),
    ///     |request: RawRequest| async move {
    ///         let length = request.payload().len().to_string();
    ///         Ok(request.respond(length.into()).await?)
    ///     },
    /// );
    /// ```
    #[must_use]
    pub fn described(
        mut self,
        definition: Arc<MethodDefinition>,
        signature: Signature,
        descriptors: Bytes,
        handler: impl Handler,
    ) -> Self {
        let one = signature.one;
        let description = Description::given(signature, descriptors);
        self.methods.push(Registered {
            one,
            ..Registered::new(definition, handler, description)
        });
        self
    }

    /// Handles requests of all methods that nobody serves by their names at the endpoint, whatever their service: for gateways and
    /// proxies. Names that begin with `wallaby.` are Wallaby's own and excepted. [`RawRequest::method`](crate::RequestInfo::method)
    /// says which one is called. Codec and types are what the caller says, and nobody has checked them:
    /// [`RequestInfo::definition`](crate::RequestInfo::definition).
    ///
    /// An endpoint keeps at most 4,096 names a connection that its peer calls. Interceptors are asked about each request whose
    /// method concerns them. Of several services of an endpoint only one can catch all: with another one, binding or
    /// [`Endpoint::serve`](crate::Endpoint::serve) fails with [`ServeError::Taken`](crate::ServeError::Taken), and calls it `*`.
    ///
    /// ```
    /// use wallaby::{Address, RawRequest, Service};
    ///
    /// fn gateway(behind: Address) -> Service {
    ///     Service::new("gateway").catch_all(move |request: RawRequest| {
    ///         let onward = request.pass_on(&behind);
    ///         async move { Ok(onward.await?) }
    ///     })
    /// }
    /// ```
    #[must_use]
    pub fn catch_all(mut self, handler: impl Handler) -> Self {
        let definition = Arc::clone(MethodDefinition::rest());
        self.methods.push(Registered {
            rest: true,
            ..Registered::new(definition, handler, Description::default())
        });
        self
    }

    /// Its methods may have names of this one of Wallaby's own services.
    #[doc(hidden)]
    #[must_use]
    pub fn reserved(mut self, service: Reserved) -> Self {
        self.reserved.push(service);
        self
    }

    /// Asks this interceptor about requests of all methods of the service, whenever they were added. Of several the one added
    /// last is asked first, and those of the endpoint before all of them.
    #[must_use]
    pub fn interceptor(mut self, interceptor: impl Interceptor) -> Self {
        self.interceptors.push(Arc::new(interceptor));
        self
    }

    /// Handlers of the methods added before this run to their end, even if their request is stopped meanwhile. Others are dropped
    /// where they wait, but for sections that are [shielded](crate::RequestInfo::shield).
    #[must_use]
    pub fn shielded(mut self) -> Self {
        let methods = self.methods.iter_mut();
        methods.for_each(|method| method.shielded = true);
        self
    }

    fn push<Args, A, C, B>(
        mut self,
        definition: &Arc<MethodDefinition>,
        handler: impl Fn(RawRequest) -> HandlerFuture + Send + Sync + 'static,
    ) -> Self
    where
        A: Answers,
        C: Codec<Args> + Codec<A::Item>,
        B: RequestBody,
    {
        let description = Description::of::<Args, A, C, B>();
        self.methods.push(Registered {
            one: A::ONE,
            ..Registered::new(Arc::clone(definition), Boxed(handler), description)
        });
        self
    }
}

impl fmt::Debug for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let methods = self.methods.iter().map(|method| method.definition.name());
        f.debug_struct("Service")
            .field("name", &self.name)
            .field("methods", &methods.collect::<Vec<_>>())
            .finish()
    }
}

/// Runs a blocking handler on a worker thread. Its request does not end before the handler returns, since a status that
/// it returns must still end the request. Nobody can drop it: it looks at
/// [`is_cancelled`](crate::RequestInfo::is_cancelled) to give up early.
///
/// # Panics
///
/// If the handler does.
pub async fn blocking_with<A: Answers, C: 'static, T: Send + 'static>(
    request: Request<A, C>,
    handler: impl FnOnce(Request<A, C>) -> T + Send + 'static,
) -> T {
    let (_keep, _shield) = (request.keep(), request.handling.shield());
    crate::blocking::run(move || handler(request)).await
}

/// The same for a handler that does not take its request.
///
/// # Panics
///
/// If the handler does.
pub async fn blocking_beside<A: Answers, C, T: Send + 'static>(
    request: &Request<A, C>,
    handler: impl FnOnce() -> T + Send + 'static,
) -> T {
    let (_keep, _shield) = (request.keep(), request.handling.shield());
    crate::blocking::run(handler).await
}

/// What a handler may return for an answer of type `T`: the value, or a status in its place.
#[diagnostic::on_unimplemented(
    message = "the handler returns `{Self}`, but the answer of its method is `{T}`",
    label = "expected `{T}` or `Result<{T}, Status>`"
)]
pub trait IntoAnswer<T> {
    /// The answer, or the status in its place.
    fn into_answer(self) -> Result<T, Status>;
}

impl<T> IntoAnswer<T> for T {
    fn into_answer(self) -> Result<T, Status> {
        Ok(self)
    }
}

impl<T> IntoAnswer<T> for Result<T, Status> {
    fn into_answer(self) -> Self {
        self
    }
}

/// The answer to a request from what its handler returned.
///
/// # Errors
///
/// The status that the handler returned.
pub fn into_answer<A: Answers, C, O: IntoAnswer<A::Item>>(
    _: &Request<A, C>,
    output: O,
) -> Result<A::Item, Status> {
    output.into_answer()
}

pub(crate) fn undecodable(error: &crate::codec::CodecError) -> Status {
    Status::new(
        Code::InvalidArgument,
        format!("the arguments cannot be read: {error}"),
    )
}
