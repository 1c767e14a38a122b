//! The server's side: an interceptor around every method, which has chains go on.

use std::fmt;
use std::future::ready;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use wallaby::extension::{Reserved, token};
use wallaby::intercept::{Admission, Exchange, Exit, Incoming, Intent, Interceptor, SendFuture};
use wallaby::{
    Address, Builder, DurableId, HandlerFuture, RawRequest, SendError, Servers, Service, Status,
};

use crate::away::Coming;
use crate::departure::Departures;
use crate::engine::{
    APPLY, Engine, MERGE, Proxy, RAISE, TELL, UNSENT, answered_again, name, unanswered,
};
use crate::exception::Exception;
use crate::gather::{Arrival, Gathered, Gathers};
use crate::limit::Limit;
use crate::place::{At, Place};
use crate::records::{Claim, Look, Outcome, Records};
use crate::runtime::{CodeLimits, Codes, Runtime};
use crate::said::{MOST_SAID, Message, Told};
use crate::stack::{Asked, Level, Stack};
use crate::state::{Answer, State};
use crate::step::Step;
use crate::walk::Home;

/// What only servers that take part in chains serve, and nobody [catches](Service::catch_all).
const NAME: &str = "wallaby.Chains";

/// Bytes that a continuation may have.
pub(crate) const MOST_BYTES: usize = 16 << 10;

/// Limits of what chains use up at a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChainLimits {
    /// Hops of a chain, sub-chains included. Default 2,000.
    pub hops: u32,
    /// Bytes of all that travels with a request of a chain besides its arguments: functions, states, the path. Default, and at
    /// most, 16 KiB. What is more than that of states follows the request.
    pub bytes: usize,
    /// Bytes of states that are too large for that: they follow the request while its link runs. More than 16 MiB no client sends.
    /// Default 1 MiB.
    pub state: usize,
    /// Bytes of all such states that are on their way here, and from here to the next servers. Default 64 MiB.
    pub states: usize,
    /// Levels of the stack: functions that wait for the end of a chain inside theirs. Default 64.
    pub levels: usize,
    /// Branches of a split. Default 64.
    pub branches: usize,
    /// Splits inside each other. Default 8.
    pub splits: usize,
    /// Splits of which some branches have arrived here to be merged, and some not. Default 1,024.
    pub merges: usize,
    /// Bytes of the answers that these keep and of what came along with them, all together, each branch with 1 KiB more. Default
    /// 64 MiB.
    pub merge_bytes: usize,
    /// How long a branch that has arrived waits for the others. Default one minute.
    pub merge_wait: Duration,
    /// Links of which it is known for a while what they have come to, for chains that may be made again
    /// ([`Run::retries`](crate::Run::retries)): of more, the oldest are forgotten. As many others may run at the same time that are
    /// to be known. Default 4,096.
    pub records: usize,
    /// Bytes that these have come to, all together. Default 64 MiB.
    pub record_bytes: usize,
    /// Bytes of one of them: one that is longer is not kept, so its link runs again. Default 1 MiB.
    pub record: usize,
    /// For how long it is known, at least: it is forgotten when the next one is looked for after that. Default one minute.
    pub record_life: Duration,
    /// Bytes of what functions log and tell in one step, each line and value with 16 more. Default 64 KiB.
    pub said: usize,
    /// Code that clients bring.
    pub code: CodeLimits,
}

impl Default for ChainLimits {
    fn default() -> Self {
        Self {
            hops: 2000,
            bytes: MOST_BYTES,
            state: 1 << 20,
            states: 64 << 20,
            levels: 64,
            branches: 64,
            splits: 8,
            merges: 1024,
            merge_bytes: 64 << 20,
            merge_wait: Duration::from_secs(60),
            records: 4096,
            record_bytes: 64 << 20,
            record: 1 << 20,
            record_life: Duration::from_secs(60),
            said: MOST_SAID,
            code: CodeLimits::default(),
        }
    }
}

impl ChainLimits {
    pub(crate) fn check_size(&self, size: usize) -> Result<(), Status> {
        if size <= self.bytes {
            return Ok(());
        }
        let most = self.bytes;
        let message =
            format!("a chain with {size} bytes of functions and state: at most {most} are allowed");
        Err(Limit::Bytes.exceeded(message))
    }

    pub(crate) fn check_levels(&self, levels: usize) -> Result<(), Status> {
        if levels <= self.levels {
            return Ok(());
        }
        let most = self.levels;
        let message = format!("{levels} chains inside each other: at most {most} are allowed");
        Err(Limit::Levels.exceeded(message))
    }
}

pub(crate) type Policy = dyn Fn(&Incoming) -> bool + Send + Sync;

/// Makes an endpoint's methods links of chains, as they are, and has functions for chains. See the example of the [crate].
#[must_use = "chains run where this is added to an endpoint"]
#[derive(Default)]
pub struct Chains {
    engine: Engine,
    policy: Option<Box<Policy>>,
    code: Option<(Arc<dyn Runtime>, Box<Policy>)>,
}

impl Chains {
    /// Without functions: pipes run, since these have no code.
    pub fn new() -> Self {
        Self::default()
    }

    /// A chaining function: it gets the state that was sent along and the answer of a link that ran here, and says how the chain
    /// goes on. An error is an exception of the chain. One of the same name is replaced. Functions run where answers are sent, so
    /// they must not block.
    pub fn function(
        mut self,
        name: &str,
        function: impl Fn(State, Answer) -> Result<Step, Status> + Send + Sync + 'static,
    ) -> Self {
        self.engine
            .functions
            .insert(name.to_owned(), Arc::new(function));
        self
    }

    /// A function that gets what all branches of a split have come to, in their order ([`Merge`](crate::Merge)).
    pub fn merging(
        mut self,
        name: &str,
        function: impl Fn(State, Vec<Answer>) -> Result<Step, Status> + Send + Sync + 'static,
    ) -> Self {
        self.engine
            .merging
            .insert(name.to_owned(), Arc::new(function));
        self
    }

    /// A function that catches exceptions of chains ([`Chain::catch`](crate::Chain::catch)) and says how they go on instead.
    pub fn catching(
        mut self,
        name: &str,
        function: impl Fn(State, Exception) -> Result<Step, Status> + Send + Sync + 'static,
    ) -> Self {
        self.engine
            .catching
            .insert(name.to_owned(), Arc::new(function));
        self
    }

    /// A function that hears what chains tell that were started here with its name ([`Chain::telling`](crate::Chain::telling)). It runs
    /// where requests come in, so it must not block. An error ends the call.
    pub fn hearing(
        mut self,
        name: &str,
        function: impl Fn(State, Told) -> Result<(), Status> + Send + Sync + 'static,
    ) -> Self {
        self.engine
            .hearing
            .insert(name.to_owned(), Arc::new(function));
        self
    }

    /// The name that these servers have here: what goes on to `service://NAME`, by a chain or from a handler of this endpoint, goes
    /// to one of them, and a branch's merge to one for all branches. Whoever may bring chains may send requests to them so. Where a
    /// chain is made again ([`Run::retries`](crate::Run::retries)), it is one that the chain was not lost at, if there is another.
    /// What that one had begun, the other one does from the beginning, so name servers whose methods may run twice, or that have
    /// one memory of what was done (`docs/extending.md`).
    ///
    /// ```
    /// use wallaby::{Address, Servers};
    /// use wallaby_chain::{Chains, Hop, State, Step};
    /// # #[wallaby::service(package = "example")]
    /// # trait Ads { async fn pick(topic: String) -> String; }
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let agencies = Servers::new(["tcp://10.0.0.2:4000", "tcp://10.0.0.3:4000"].map(|at| at.parse::<Address>().unwrap()))?;
    /// let ads: Address = "service://ads".parse()?;
    /// let chains = Chains::new().servers("ads", agencies).function("advertise", move |_, mail| {
    ///     Ok(Hop::to(&ads, &ads::PICK, (mail.read::<String>()?,)).into())
    /// });
    /// # Ok(())
    /// # }
    /// ```
    pub fn servers(mut self, name: &str, servers: Servers) -> Self {
        let name = name.strip_prefix("service://").unwrap_or(name);
        self.engine.names.insert(name.to_owned(), servers);
        self
    }

    /// What chains may use up here.
    pub fn limits(mut self, limits: ChainLimits) -> Self {
        self.engine.limits = limits;
        self
    }

    /// Who may bring chains here: requests of chains for which this is false are refused, others are not asked about. It sees who
    /// has sent the request, as far as that is proven ([`RequestInfo::identity`](wallaby::RequestInfo::identity),
    /// [`is_sealed`](wallaby::RequestInfo::is_sealed)): the client for the first link, the server before for others. All may if
    /// nothing is said.
    pub fn allow(mut self, policy: impl Fn(&Incoming) -> bool + Send + Sync + 'static) -> Self {
        self.policy = Some(Box::new(policy));
        self
    }

    /// Runs code that clients bring, by this runtime, if the policy says so of the request that brings it: it sees who has sent
    /// that, as far as it is proven, as for [`allow`](Self::allow). Without this, nobody may bring any.
    ///
    /// ```
    /// use wallaby::transport::Proven;
    /// use wallaby_chain::{Chains, Runtime};
    ///
    /// // Who has a certificate that this server trusts may.
    /// fn trusting(runtime: impl Runtime) -> Chains {
    ///     Chains::new().code(runtime, |request| matches!(request.identity().peer, Proven::Certificate { .. }))
    /// }
    /// ```
    pub fn code(
        mut self,
        runtime: impl Runtime,
        policy: impl Fn(&Incoming) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.code = Some((Arc::new(runtime), Box::new(policy)));
        self
    }

    /// Has the code that clients bring run at another server, which has a runtime for it ([`code`](Self::code)): where this one is to
    /// compute nothing, or is too weak. The policy says of whom, as there. What a function is given goes there, and the chain goes on
    /// from there; so of functions by name that come behind it those are meant that are registered there. That server sees this one
    /// as the sender, and asks its own policy. It is not asked here whether it has a runtime, nor whether the code is sound: it is an
    /// exception after the link has run if not. With a runtime here this has no effect.
    pub fn proxy(
        mut self,
        at: impl Into<Address>,
        policy: impl Fn(&Incoming) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.engine.proxy = Some(Proxy {
            at: at.into(),
            policy: Box::new(policy),
        });
        self
    }

    /// Hands code of clients on only if the policy says so of who has sent it: for a server where none runs, but which others let
    /// bring it, by its key ([`is_sealed`](wallaby::RequestInfo::is_sealed)) or its name. Without this, and without a policy of
    /// [`code`](Self::code) or [`proxy`](Self::proxy), which are asked for that as well, all code is handed on.
    pub fn pass_code(mut self, policy: impl Fn(&Incoming) -> bool + Send + Sync + 'static) -> Self {
        self.engine.passing = Some(Box::new(policy));
        self
    }

    /// The endpoint takes part in chains, by all methods that it serves. Interceptors that are added to the builder later are asked
    /// before. Those that were added before it are not asked where a link is not run, as a record says what it has come to
    /// ([`Run::retries`](crate::Run::retries)).
    pub fn add_to(self, builder: Builder) -> Builder {
        let (engine, policy) = self.engine();
        let never = |_: RawRequest| ready(Err(Status::invalid_argument("it is for chains")));
        let own = Service::new(NAME)
            .reserved(Reserved::new(NAME))
            .raw(Arc::clone(MERGE.definition()), never)
            .raw(Arc::clone(RAISE.definition()), never)
            .raw(Arc::clone(APPLY.definition()), never)
            .raw(Arc::clone(TELL.definition()), never)
            .raw(Arc::clone(UNSENT.definition()), never);
        builder.serve(own).interceptor(Admitting {
            engine,
            policy,
            gathers: Arc::default(),
            records: Arc::default(),
        })
    }

    /// The same functions for who walks chains itself, in place of having servers run them: see
    /// [`Chain::walk`](crate::Chain::walk). Code that comes along with a chain runs there if there is a runtime
    /// ([`code`](Self::code)): it is the caller's own, so nobody's leave is asked.
    pub fn at_home(mut self) -> Home {
        self.engine.proxy = None; // that is for requests of others
        Home::new(self.engine().0)
    }

    fn engine(self) -> (Arc<Engine>, Option<Box<Policy>>) {
        let mut engine = self.engine;
        let limits = engine.limits.code.clone();
        let codes = |(runtime, policy)| Codes::new(runtime, policy, limits);
        engine.codes = self.code.map(codes);
        (Arc::new(engine), self.policy)
    }
}

impl fmt::Debug for Chains {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Chains")
            .field("functions", &self.engine.functions.keys())
            .field("merging", &self.engine.merging.keys())
            .field("catching", &self.engine.catching.keys())
            .field("code", &self.code.is_some())
            .field("limits", &self.engine.limits)
            .finish_non_exhaustive()
    }
}

/// Looks at requests before they are handled.
struct Admitting {
    engine: Arc<Engine>,
    policy: Option<Box<Policy>>,
    gathers: Arc<Gathers>,
    records: Arc<Records>,
}

impl Interceptor for Admitting {
    fn admit(&self, request: &Incoming) -> Admission {
        let stack = request.continuation().map_or(Ok(None), |bytes| {
            let stack = Stack::read(&bytes)?;
            Ok(stack.map(|stack| (stack, bytes.len())))
        });
        match stack {
            Ok(Some(stack)) => self.admit_chain(request, stack),
            Ok(None) if !self.engine.names.is_empty() => {
                Admission::around(Named(Arc::clone(&self.engine)))
            }
            // The handler of our own methods refuses what is no chain.
            Ok(None) => Admission::Run,
            Err(status) => Admission::Refuse(status),
        }
    }
}

/// A request that is no link: what its handler hands on, as by a chain that it answers with, may go to servers with a name.
struct Named(Arc<Engine>);

impl Exchange for Named {
    fn sending(&self, mut intent: Intent, exit: &Exit) -> SendFuture {
        if let Intent::Delegation { to, .. } = &mut intent
            && name(&to.server).is_some()
        {
            let place = Place {
                at: At::Server(exit),
                may_bring: false,
                durable: None,
            };
            let resolved = self.0.resolve((&to.server, None), &Stack::default(), place);
            match resolved {
                Ok(server) => to.server = server,
                Err(status) => {
                    let Some(instead) = self.0.not_begun(to, &status, place) else {
                        let error = SendError::Refused(status.message().into());
                        return Box::pin(ready(Err(error)));
                    };
                    let each: Vec<_> = instead.into_iter().map(|one| exit.send(one)).collect();
                    return Box::pin(async move {
                        for one in each {
                            one.await?;
                        }
                        Ok(())
                    });
                }
            }
        }
        exit.send(intent)
    }
}

impl Admitting {
    fn admit_chain(&self, request: &Incoming, (mut stack, size): (Stack, usize)) -> Admission {
        stack.drop_used_code(); // or its sender would say where code is that the server brings itself
        let is_unsent = request.method() == UNSENT.name();
        let unsent = is_unsent.then(|| request.undelivered()).flatten();
        // If a chain has no code when it comes, what it leaves with is the server's own: a handler's, or a function's. What comes back
        // has left here before.
        let may_bring = unsent.is_some() || !stack.has_code() || self.engine.lets_bring(request);
        let place = Place {
            at: At::Server(request),
            may_bring,
            durable: None,
        };
        if let Some(allows) = self.policy.as_ref().filter(|_| unsent.is_none())
            && !allows(request)
        {
            let message = format!("{} may not bring chains here", request.identity());
            return refuse(&stack, &Status::permission_denied(message), place);
        }
        let limits = &self.engine.limits;
        let fits = limits.check_size(size);
        if let Err(status) = fits.and_then(|()| limits.check_levels(stack.levels.len())) {
            return refuse(&stack, &status, place);
        }
        let what = match request.method() {
            method if method == MERGE.name() => match self.arrive(request, &stack, size, place) {
                Ok(gathered) => {
                    stack.branch.pop();
                    stack.hops = gathered.hops;
                    What::Merge(gathered)
                }
                Err(admission) => return *admission,
            },
            method if method == RAISE.name() => match Exception::read(request.payload()) {
                Ok(exception) => What::Catch(exception),
                Err(status) => return refuse(&stack, &status, place),
            },
            method if method == UNSENT.name() => match unsent {
                Some(why) => What::Unsent(Box::new(why)),
                None => {
                    let message = "nobody but this server itself sends this";
                    return refuse(&stack, &Status::invalid_argument(message), place);
                }
            },
            method if method == APPLY.name() => What::Apply(request.payload().clone()),
            method if method == TELL.name() => match self.told(request) {
                Ok(message) => What::Tell(message),
                Err(status) => return refuse(&stack, &status, place),
            },
            _ => What::Link,
        };
        let turn = Turn { stack, what };
        let may_wait = turn.may_wait(&self.engine);
        let (engine, request) = (Arc::clone(&self.engine), request.clone());
        let records = Arc::clone(&self.records);
        let mut admission = Box::pin(async move {
            let place = Place {
                at: At::Server(&request),
                may_bring,
                durable: None,
            };
            turn.take(&engine, &records, (&request, place)).await
        });
        let mut cx = Context::from_waker(Waker::noop());
        match may_wait {
            false if let Poll::Ready(admission) = admission.as_mut().poll(&mut cx) => admission,
            _ => Admission::Wait(admission),
        }
    }

    fn told(&self, request: &Incoming) -> Result<Message, Status> {
        let mut asked = Asked::default();
        asked.told = true;
        let message = Message::read(&request.payload(), asked, self.engine.limits.said);
        let message = message.unwrap_or_else(|| Err("it is no message of a chain".to_owned()));
        message.map_err(Status::invalid_argument)
    }

    /// A branch ends here, which came with so many bytes besides its answer: whether it is the last one.
    fn arrive(
        &self,
        request: &Incoming,
        stack: &Stack,
        more: usize,
        place: Place<'_>,
    ) -> Result<Gathered, Box<Admission>> {
        let refuse = |status| Err(Box::new(refuse(stack, status, place)));
        let Some(Level::Merge(merging)) = stack.levels.last() else {
            let status = Status::invalid_argument("a branch that does not end here");
            return refuse(&status);
        };
        // Other branches may need its connection's credit to come here. What is kept has limits of its own.
        let arrival = merging.what(request.take_payload()).and_then(|what| {
            let bounds = (more, &self.engine.limits);
            let what = (what, stack.hops, request.durable_id());
            let token = token(request).ok_or_else(|| Status::aborted("its request has ended"))?;
            let call = (request.call_id(), token);
            self.gathers.arrive(call, merging, what, bounds)
        });
        match arrival {
            Ok(Arrival::Early(waiting)) => {
                request.shorten_deadline(self.engine.limits.merge_wait);
                drop(request.take_body()); // the last one brings the same
                let given_up = place.exception(stack, &Gathers::given_up()).to_status();
                Err(Box::new(Admission::wait(async move {
                    match waiting.all().await {
                        true => Admission::Replay(Vec::new()),
                        false => Admission::Refuse(given_up),
                    }
                })))
            }
            Ok(Arrival::Last(gathered)) => Ok(gathered),
            Err(status) => refuse(&status),
        }
    }
}

/// What is to be done for a request of a chain.
struct Turn {
    stack: Stack,
    what: What,
}

enum What {
    /// Its link runs, if what comes then can.
    Link,
    /// A function merges.
    Merge(Gathered),
    /// A function catches.
    Catch(Exception),
    /// A function runs in place of another server.
    Apply(Bytes),
    /// A function hears what a chain tells.
    Tell(Message),
    /// What has left here has not got there.
    Unsent(Box<Status>),
}

impl Turn {
    /// Whether there is something that comes, or code of clients that is loaded, or runs, before it is known what becomes of the
    /// request.
    fn may_wait(&self, engine: &Engine) -> bool {
        let Self { stack, what } = self;
        let runs_code = match what {
            What::Link => {
                let may_be_known = stack.tail.asked.record && stack.has_code();
                may_be_known || engine.is_to_load(stack)
            }
            What::Merge(_) | What::Catch(_) | What::Apply(_) => stack.has_code(),
            What::Tell(_) | What::Unsent(_) => return false,
        };
        runs_code || stack.tail.away.is_some()
    }

    async fn take(
        self,
        engine: &Arc<Engine>,
        records: &Arc<Records>,
        (request, mut place): (&Incoming, Place<'_>),
    ) -> Admission {
        let Self { stack, what } = self;
        if let What::Unsent(why) = what {
            return match engine.unsent(stack, (&why, request.payload()), place) {
                Ok(departures) => replay(engine.depart(departures, place)),
                Err(told) => Admission::Refuse(told),
            };
        }
        let coming = match engine.states.come(request, &stack, &engine.limits) {
            Ok(coming) => coming,
            Err(status) => return refuse(&stack, &status, place),
        };
        if let What::Link = what {
            return link(engine, records, (stack, coming), (request, place)).await;
        }
        let departures = match (Coming::whole(coming, stack).await, what) {
            (Err((stack, status)), _) => engine.follow(stack, Err(status), place).await,
            (Ok(stack), What::Link | What::Unsent(_)) => Departures::new(stack, Vec::new()),
            (Ok(stack), What::Merge(gathered)) => {
                place.durable = gathered.durable;
                let merged = engine.merge(stack, gathered.results, place).await;
                drop(gathered.kept);
                merged
            }
            (Ok(stack), What::Catch(exception)) => engine.catch(stack, exception, place).await,
            (Ok(stack), What::Apply(given)) => engine.apply(stack, given, place).await,
            (Ok(stack), What::Tell(message)) => match engine.hear(&stack, message, place) {
                Ok(()) => return Admission::Replay(Vec::new()),
                Err(status) => return refuse(&stack, &status, place),
            },
        };
        replay(engine.depart(departures, place))
    }
}

/// A link runs, if what comes then can, and it has not come to something before.
async fn link(
    engine: &Arc<Engine>,
    records: &Arc<Records>,
    (stack, coming): (Stack, Option<Coming>),
    (request, place): (&Incoming, Place<'_>),
) -> Admission {
    let outcome = match engine.check(&stack, place).await {
        Ok(()) => match known(records, &stack, request, &engine.limits).await {
            Known::Outcome(outcome) => *outcome,
            Known::Nothing(claim) => {
                return Admission::around(Link {
                    engine: Arc::clone(engine),
                    phase: Mutex::new(Phase::Waits),
                    awaits: Mutex::new((claim, coming)),
                    stack,
                    may_bring: place.may_bring,
                });
            }
        },
        // Only who catches it needs the states.
        Err(status) if !stack.is_caught() => return refuse(&stack, &status, place),
        Err(status) => Err(status),
    };
    replay(go_on(engine, (stack, coming), outcome, place).await)
}

/// What is sent because a link has come to this, when its states are here.
async fn go_on(
    engine: &Engine,
    (stack, coming): (Stack, Option<Coming>),
    outcome: Outcome,
    place: Place<'_>,
) -> Vec<Intent> {
    let (stack, outcome) = match Coming::whole(coming, stack).await {
        Ok(stack) => (stack, outcome),
        Err((stack, status)) => (stack, outcome.and(Err(status))),
    };
    let departures = engine.follow(stack, outcome, place).await;
    engine.depart(departures, place)
}

/// What a record says of a link.
enum Known {
    Outcome(Box<Outcome>),
    /// It is to run, and this is where it says what it has come to, if that is to be kept.
    Nothing(Option<Claim>),
}

/// What is known of a link, when another request under its name does not run any more.
async fn known(
    records: &Arc<Records>,
    stack: &Stack,
    request: &Incoming,
    limits: &ChainLimits,
) -> Known {
    let durable: Option<DurableId> = request.durable_id();
    let (true, Some(id)) = (stack.tail.asked.record, durable) else {
        return Known::Nothing(None);
    };
    let payload = request.payload();
    loop {
        match records.look(id, (request.method(), &payload), limits) {
            Look::New(claim) => return Known::Nothing(Some(claim)),
            Look::Full => return Known::Nothing(None),
            Look::Done(outcome) => return Known::Outcome(Box::new(outcome)),
            Look::Runs(mut until) => {
                let _ended = until.changed().await;
            }
        }
    }
}

fn refuse(stack: &Stack, status: &Status, place: Place<'_>) -> Admission {
    Admission::Refuse(place.exception(stack, status).to_status())
}

/// This is sent, and no handler runs.
fn replay(mut intents: Vec<Intent>) -> Admission {
    match intents.pop() {
        Some(Intent::Status(status)) if intents.is_empty() => Admission::Refuse(*status),
        last => {
            intents.extend(last);
            Admission::Replay(intents)
        }
    }
}

/// A request whose answer goes to a function.
struct Link {
    engine: Arc<Engine>,
    phase: Mutex<Phase>,
    /// Where it says what it has come to, and what comes of its states.
    awaits: Mutex<(Option<Claim>, Option<Coming>)>,
    stack: Stack,
    may_bring: bool,
}

/// How far a link is.
enum Phase {
    /// It has not answered.
    Waits,
    /// It has answered, and may do so again, which would be wrong.
    Holds(Intent),
    /// The chain has gone on.
    Over,
}

impl Link {
    /// What its chain goes on by because of this: a message of its handler, or an error. Nothing if that is not known yet.
    fn next(
        &self,
        intent: Option<Intent>,
        method: &str,
    ) -> Result<Option<Result<Intent, Status>>, SendError> {
        let mut phase = self.phase.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut *phase, Phase::Over);
        Ok(match (before, intent) {
            (_, Some(Intent::Status(status))) => Some(Err(*status)),
            (Phase::Over, None) => None,
            (Phase::Over, Some(_)) => {
                return Err(SendError::Refused("its chain has gone on".into()));
            }
            (Phase::Holds(_), Some(_)) => Some(Err(answered_again(method))),
            (Phase::Waits, None) => Some(Err(unanswered(method))),
            (Phase::Waits, Some(intent)) if !intent.is_last() => {
                *phase = Phase::Holds(intent);
                None
            }
            (Phase::Waits, Some(intent)) | (Phase::Holds(intent), None) => Some(Ok(intent)),
        })
    }

    /// The messages that are sent because of that.
    fn follow(
        &self,
        by: Option<Result<Intent, Status>>,
        exit: &Exit,
    ) -> impl Future<Output = Vec<Intent>> + Send + use<> {
        let (engine, stack) = (Arc::clone(&self.engine), self.stack.clone());
        let by = by.map(|outcome| {
            let mut awaits = self.awaits.lock().unwrap_or_else(PoisonError::into_inner);
            let (claim, coming) = std::mem::take(&mut *awaits);
            if let Some(claim) = claim {
                claim.done(&outcome, &engine.limits);
            }
            (outcome, coming)
        });
        let (exit, may_bring) = (exit.clone(), self.may_bring);
        async move {
            let place = Place {
                at: At::Server(&exit),
                may_bring,
                durable: None,
            };
            match by {
                None => Vec::new(),
                Some((outcome, coming)) => go_on(&engine, (stack, coming), outcome, place).await,
            }
        }
    }
}

impl Exchange for Link {
    fn sending(&self, intent: Intent, exit: &Exit) -> SendFuture {
        let intents = match self.next(Some(intent), exit.method()) {
            Ok(by) => self.follow(by, exit),
            Err(error) => return Box::pin(ready(Err(error))),
        };
        let exit = exit.clone();
        Box::pin(async move {
            for intent in intents.await {
                if let Intent::Status(_) = intent {
                    exit.flush().await; // it would take the place of what was said before
                }
                exit.send(intent).await?;
            }
            Ok(())
        })
    }

    fn closing(&self, exit: &Exit) -> HandlerFuture {
        let by = self.next(None, exit.method());
        let intents = by.map(|by| self.follow(by, exit));
        let exit = exit.clone();
        Box::pin(async move {
            for intent in intents?.await {
                match intent {
                    Intent::Status(status) => {
                        exit.flush().await;
                        return Err(*status);
                    }
                    intent => exit.send(intent).await?,
                }
            }
            Ok(())
        })
    }
}
