//! How a chain is made: by a client, or by a handler that answers with one.

use std::marker::PhantomData;
use std::sync::Arc;

use bytes::Bytes;
use thiserror::Error;
use wallaby::codec::{Codec, CodecError, Format, Postcard, Raw};
use wallaby::intercept::DelegatedRequest;
use wallaby::{
    Address, Answers, Call, Caller, Code, Continuation, Delegation, Method, MethodDefinition, One,
    RawRequest, Request, Status, Target,
};

use crate::chains::MOST_BYTES;
use crate::code::{ChainCode, Function, TypedFunction};
use crate::engine::{UNSENT, name};
use crate::running::{Run, Running};
use crate::stack::{Level, Link, MARK, Runs, Stack};
use crate::state::State;
use crate::step::Hop;
use crate::types::Type;
use crate::walk::{Home, Walk};

/// Bytes of states that may follow a request.
const MOST_STATE: usize = 16 << 20;

/// A chain that has not begun: its first link, and what is done with answers. It comes to a `T`.
#[derive(Debug, Clone)]
#[must_use = "a chain begins when it is called or forwarded"]
pub struct Chain<T, C = Postcard> {
    server: Address,
    method: Arc<MethodDefinition>,
    payload: Result<Bytes, CodecError>,
    /// The levels that are its own, the outermost first.
    levels: Vec<Level>,
    /// The code of its functions.
    codes: Vec<ChainCode>,
    types: PhantomData<fn() -> (T, C)>,
}

/// A chain whose functions say how it goes on. What it comes to is a `T`, written by [`Postcard`]: the caller promises that, since
/// no compiler sees the functions.
///
/// See the example of the [crate].
pub fn start<T>(first: Hop) -> Chain<T>
where
    Postcard: Codec<T>,
{
    start_by(first)
}

/// The same if what it comes to is written by another codec.
pub fn start_by<T, C: Codec<T>>(first: Hop) -> Chain<T, C> {
    let mut stack = Stack::default();
    let mut state = first.state;
    if first.typed {
        state.put_type(Type::END, Type::of::<T, C>().as_ref());
    }
    stack.push(first.function, state);
    Chain {
        server: first.server,
        method: first.method,
        payload: first.payload,
        levels: stack.levels,
        codes: first.code.into_iter().collect(),
        types: PhantomData,
    }
}

/// A chain without code: the answer of this method is the argument of the next one ([`Chain::then`]), and the last answer is the
/// chain's. The compiler checks that they fit.
///
/// ```
/// # use wallaby::{Address, Endpoint};
/// #[wallaby::service]
/// trait Shelf { async fn fetch(id: u32) -> String; }
///
/// #[wallaby::service]
/// trait Words { async fn count(text: String) -> u64; }
///
/// # async fn example(endpoint: Endpoint, a: Address, b: Address) -> Result<(), Box<dyn std::error::Error>> {
/// let chain = wallaby_chain::pipe(&a, &shelf::FETCH, (7,)).then(&b, &words::COUNT);
/// let words: u64 = chain.call(endpoint.caller())?.await?;
/// # Ok(())
/// # }
/// # fn main() {}
/// ```
///
/// ```compile_fail
/// # use wallaby::Address;
/// #[wallaby::service]
/// trait Shelf { async fn fetch(id: u32) -> String; }
///
/// # fn example(a: Address) {
/// // What `fetch` answers is no `u32`.
/// let chain = wallaby_chain::pipe(&a, &shelf::FETCH, (7,)).then(&a, &shelf::FETCH);
/// # }
/// # fn main() {}
/// ```
pub fn pipe<Args, A, C>(
    server: impl Into<Address>,
    method: &'static Method<Args, A, C>,
    arguments: Args,
) -> Chain<A::Item, C>
where
    A: Answers,
    C: Codec<Args> + Codec<A::Item>,
{
    start_by(Hop::to(server, method, arguments))
}

/// A codec by which the arguments of a method that takes one value look like that value: then an answer can be passed on as it is.
pub trait Passes: Format {}

impl Passes for Postcard {}

impl Passes for Raw {}

impl<T: Send + 'static, C: Codec<T>> Chain<T, C> {
    /// This method gets the result so far as its argument, and its answer is the new result.
    pub fn then<A>(
        mut self,
        server: impl Into<Address>,
        method: &'static Method<(T,), A, C>,
    ) -> Chain<A::Item, C>
    where
        A: Answers,
        C: Codec<(T,)> + Codec<A::Item> + Passes,
    {
        let link = Link::new(server.into(), method.definition());
        match self.levels.first_mut() {
            Some(Level::Run {
                function: Runs::Pipe(links),
                ..
            }) => links.push(link),
            _ => {
                let function = Runs::Pipe(vec![link]);
                let state = State::new();
                self.levels.insert(0, Level::Run { function, state });
            }
        }
        Chain {
            server: self.server,
            method: self.method,
            payload: self.payload,
            levels: self.levels,
            codes: self.codes,
            types: PhantomData,
        }
    }

    /// Exceptions of all that is said of the chain until here go to the server `at`, where this function is asked how it goes on.
    /// A name is one of those that the server has ([`Chains::catching`](crate::Chains::catching)). For chains that a handler
    /// starts, `at` is its own server. Without it, and of what that function returns as an error, who started the chain outside
    /// of this one is asked, at last the caller: it gets a status.
    pub fn catch(
        mut self,
        at: impl Into<Address>,
        function: impl Into<Function>,
        state: State,
    ) -> Self {
        let (at, function, mut state) = (at.into(), function.into(), state);
        if function.is_typed() {
            state.put_type(Type::END, Type::of::<T, C>().as_ref());
        }
        let (function, code) = function.parts();
        self.codes.extend(code);
        let catch = Level::Catch {
            at,
            function,
            state,
        };
        self.levels.insert(0, catch);
        self
    }

    /// What the functions of all that is said of the chain until here tell ([`Step::tell`](crate::Step::tell)) is for the server `at`,
    /// where this function hears it ([`Chains::hearing`](crate::Chains::hearing)), in place of who has started the chain around this
    /// one, at last the caller. For a handler that answers with a chain, and wants to know of it: `at` is its own server. Each step that
    /// tells something costs a request; if the chain is made again, it may be heard again.
    pub fn telling(mut self, at: impl Into<Address>, function: &str, state: State) -> Self {
        let tell = Level::Tell {
            at: at.into(),
            function: Runs::Native(function.to_owned()),
            state,
        };
        self.levels.insert(0, tell);
        self
    }

    /// Makes the call. It has the options of `caller`: deadline, metadata, trace, budgets. How it ends, and what its failures
    /// tell, is as for any call.
    ///
    /// # Errors
    ///
    /// If the chain is too large to travel, the first arguments cannot be encoded, or the first link is at a server with a name
    /// (`service://NAME`): only [`run`](Self::run) with a [home](Run::home) knows whom that stands for.
    pub fn call(self, caller: Caller) -> Result<Call<One<T>, Chained<C>>, ChainError> {
        let first = self.first(true)?;
        first.check_server()?;
        let (continuation, state) = first.continuation()?;
        let client = caller.at(first.server).continuation(continuation);
        let target = Target::raw(first.method, first.payload);
        Ok(client.call_target(match state {
            Some(state) => target.with_body(state.into()),
            None => target,
        }))
    }

    /// Makes the call, and hears more of it than its end: what `how` asks for.
    ///
    /// ```
    /// # use wallaby::{Address, CallError, Endpoint};
    /// # use wallaby_chain::{ChainEvent, Hop, Run, State, start};
    /// # #[wallaby::service(package = "example")]
    /// # trait Mail { async fn fetch(id: u32) -> String; }
    /// # async fn example(endpoint: Endpoint, mail: Address) -> Result<(), Box<dyn std::error::Error>> {
    /// let first = Hop::to(&mail, &mail::FETCH, (7,)).then("advertise", State::new());
    /// let mut running = start::<String>(first).run(endpoint.caller(), Run::new().lines())?;
    /// while let Some(event) = running.next().await {
    ///     match event? {
    ///         ChainEvent::Line(line) => println!("{} at hop {}: {}", line.chain, line.hop, line.text),
    ///         ChainEvent::End(page) => println!("{page}"),
    ///         _ => {}
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// # fn main() {}
    /// ```
    ///
    /// # Errors
    ///
    /// As [`call`](Self::call).
    pub fn run(self, caller: Caller, how: Run) -> Result<Running<T, C>, ChainError> {
        Running::begin(self.first(true)?, caller, how)
    }

    /// Walks the chain from here, in place of having it run at its servers: each link is a call of its own by `caller`, and the
    /// functions run here, so `home` must have them. For who looks for what is wrong, and for chains whose servers know no chains.
    ///
    /// The options of `caller` hold for each link.
    /// What servers have recorded of a chain that was run ([`Run::retries`]) is not asked for: all links run.
    ///
    /// ```
    /// # use wallaby::{Address, Endpoint};
    /// # use wallaby_chain::{Chains, Hop, State, Step, Stop, start};
    /// # #[wallaby::service(package = "example")]
    /// # trait Mail { async fn fetch(id: u32) -> String; }
    /// # async fn example(endpoint: Endpoint, mail: Address) -> Result<(), Box<dyn std::error::Error>> {
    /// let home = Chains::new().function("advertise", |_, mail| Step::end(&mail.read::<String>()?));
    /// let first = Hop::to(&mail, &mail::FETCH, (7,)).then("advertise", State::new());
    /// let mut walk = start::<String>(first).walk(endpoint.caller(), &home.at_home())?;
    /// while let Some(stop) = walk.stop() {
    ///     match stop {
    ///         Stop::Link { server, method, .. } => println!("{} at {server}", method.name()),
    ///         Stop::Function { name, answer, .. } => println!("{name} gets {} bytes", answer.len()),
    ///         _ => {}
    ///     }
    ///     if let Some(events) = walk.step().await {
    ///         println!("{:?}", events?);
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// # fn main() {}
    /// ```
    ///
    /// # Errors
    ///
    /// If the first arguments cannot be encoded, or `caller` has a durable id, which all links would have.
    pub fn walk(self, caller: Caller, home: &Home) -> Result<Walk<T, C>, ChainError> {
        let First {
            server,
            method,
            payload,
            stack,
        } = self.first(false)?;
        let first = (DelegatedRequest::new(server, method, payload), stack);
        if caller.durable_id().is_some() {
            return Err(ChainError::Durable);
        }
        Ok(Walk::new(home.clone(), caller, first, None))
    }

    /// Answers a request with what the chain comes to. If the request is itself a link of a chain, that one goes on then, at the
    /// server where this one ends; the handler need not know.
    ///
    /// # Errors
    ///
    /// As [`call`](Self::call). The request ends with a status then.
    pub fn forward<A: Answers<Item = T>>(
        self,
        request: Request<A, C>,
    ) -> Result<Delegation<RawRequest>, ChainError> {
        let first = self.first(false);
        let first = first.and_then(|first| Ok((first.continuation()?, first)));
        match first {
            Ok(((continuation, state), first)) => {
                let request = request.into_raw();
                let onward = request.forward(first.server, &first.method, first.payload);
                let onward = onward.continuation(continuation);
                let onward = onward.unless_sent(UNSENT.definition());
                Ok(match state {
                    Some(state) => onward.body(state.into()),
                    None => onward,
                })
            }
            Err(error) => {
                request.fail(&Status::from(error.clone()));
                Err(error)
            }
        }
    }

    fn first(self, marked: bool) -> Result<First, ChainError> {
        let mut stack = Stack {
            marked,
            levels: self.levels,
            ..Stack::default()
        };
        for code in self.codes {
            stack.bring(Some(code));
        }
        Ok(First {
            server: self.server,
            method: self.method,
            payload: self.payload?,
            stack,
        })
    }
}

impl<T: Send + 'static> Chain<T> {
    /// This function runs on the result so far, at the server that has it, with this state, and says how the chain goes on. The compiler
    /// checks that the function reads such a result; what the chain comes to then is an `E`, as the caller promises.
    ///
    /// ```
    /// # use wallaby::Address;
    /// # use wallaby_chain::{ChainCode, State, TypedFunction, pipe};
    /// #[wallaby::service]
    /// trait Shelf { async fn fetch(id: u32) -> String; }
    ///
    /// // `#[glue]` makes this of `pub fn words(_: State, Read(text): Read<String>) -> ..`.
    /// fn words(code: &ChainCode) -> TypedFunction<String> {
    ///     code.function("words").reading()
    /// }
    ///
    /// # fn example(a: Address, code: ChainCode) {
    /// let chain = pipe(&a, &shelf::FETCH, (7,)).apply::<u64>(words(&code), State::new());
    /// # }
    /// # fn main() {}
    /// ```
    ///
    /// ```compile_fail
    /// # use wallaby::Address;
    /// # use wallaby_chain::{ChainCode, State, TypedFunction, pipe};
    /// #[wallaby::service]
    /// trait Shelf { async fn fetch(id: u32) -> String; }
    ///
    /// fn doubled(code: &ChainCode) -> TypedFunction<u32> {
    ///     code.function("doubled").reading()
    /// }
    ///
    /// # fn example(a: Address, code: ChainCode) {
    /// // What `fetch` answers is no `u32`.
    /// let chain = pipe(&a, &shelf::FETCH, (7,)).apply::<u64>(doubled(&code), State::new());
    /// # }
    /// # fn main() {}
    /// ```
    pub fn apply<E>(mut self, function: TypedFunction<T>, mut state: State) -> Chain<E>
    where
        Postcard: Codec<T> + Codec<E>,
    {
        let function = Function::from(function);
        if function.is_typed() {
            state.put_type(Type::ANSWER, Type::of::<T, Postcard>().as_ref());
            state.put_type(Type::END, Type::of::<E, Postcard>().as_ref());
        }
        let (function, code) = function.parts();
        self.codes.extend(code);
        self.levels.insert(0, Level::Run { function, state });
        Chain {
            server: self.server,
            method: self.method,
            payload: self.payload,
            levels: self.levels,
            codes: self.codes,
            types: PhantomData,
        }
    }
}

/// The first request of a chain.
#[derive(Debug, Clone)]
pub(crate) struct First {
    pub(crate) server: Address,
    pub(crate) method: Arc<MethodDefinition>,
    pub(crate) payload: Bytes,
    /// Where the chain is before it leaves.
    pub(crate) stack: Stack,
}

impl First {
    /// Whether it can be sent there.
    pub(crate) fn check_server(&self) -> Result<(), ChainError> {
        match name(&self.server) {
            None => Ok(()),
            Some(name) => Err(ChainError::NoServers(format!(
                "nobody knows here which servers are {name:?}: `Run::home` says it"
            ))),
        }
    }

    /// What goes along with it, and what of its states follows it.
    pub(crate) fn continuation(&self) -> Result<(Bytes, Option<Bytes>), ChainError> {
        let mut stack = self.stack.clone();
        stack.advance(&self.server);
        let written = stack.write(MOST_BYTES);
        let (bytes, state) =
            written.map_err(|error| CodecError::new("chain", error.to_string()))?;
        let size = state.as_ref().map_or(0, Bytes::len);
        if size > MOST_STATE {
            let message = format!("{size} bytes: at most {MOST_STATE} are allowed");
            return Err(ChainError::TooLarge(message));
        }
        match Continuation::new(bytes.clone()) {
            Ok(_) => Ok((bytes, state)),
            Err(error) => Err(ChainError::TooLarge(error.to_string())),
        }
    }
}

/// Why a chain cannot begin.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ChainError {
    /// The first arguments cannot be encoded.
    #[error(transparent)]
    Codec(#[from] CodecError),
    /// Its functions and states are too much to travel with a request.
    #[error("the chain's functions and states are {0}")]
    TooLarge(String),
    /// Its first link is at a server that has a name, and nobody knows whom that stands for ([`Run::home`]).
    #[error("{0}")]
    NoServers(String),
    /// It is to be walked by a caller with a durable id, which all of its links would have.
    #[error("a chain that is walked has a call for each link: the caller is to have no durable id")]
    Durable,
}

impl ChainError {
    /// What kind of error it is.
    pub fn code(&self) -> Code {
        match self {
            Self::Codec(error) => error.code(),
            Self::TooLarge(_) => Code::ResourceExhausted,
            Self::NoServers(_) => Code::NotFound,
            Self::Durable => Code::InvalidArgument,
        }
    }
}

impl From<ChainError> for Status {
    fn from(error: ChainError) -> Self {
        Self::new(error.code(), error.to_string())
    }
}

/// The codec of what a chain comes to: as `C`, and in front of it a mark that only the end of a chain sets. So the answer of a
/// server that knows no chains, and has answered the caller in place of passing its answer on, is an error and not a wrong answer.
#[derive(Debug)]
pub struct Chained<C>(PhantomData<fn() -> C>);

impl<C: Format> Format for Chained<C> {
    const NAME: &'static str = C::NAME;
}

impl<T, C: Codec<T>> Codec<T> for Chained<C> {
    fn encode(value: &T) -> Result<Bytes, CodecError> {
        Ok([&MARK[..], &C::encode(value)?].concat().into())
    }

    fn decode(payload: Bytes) -> Result<T, CodecError> {
        if !payload.starts_with(&MARK) {
            let why = "it is the answer of a link, not of the chain: is a `Chains` at that server?";
            return Err(CodecError::new("chain", why));
        }
        C::decode(payload.slice(MARK.len()..))
    }
}
