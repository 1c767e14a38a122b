//! How a chain goes on after an answer, an exception or a merge: what leaves because of that, without sending it.

use std::any::Any;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use sha2::{Digest, Sha256};
use wallaby::codec::{Codec, Postcard, Raw};
use wallaby::intercept::{DelegatedRequest, Incoming, Intent};
use wallaby::{Address, Code, DurableId, Many, Method, MethodDefinition, Servers, Status};

use crate::away::States;
use crate::chains::{ChainLimits, Policy};
use crate::code::Hash;
use crate::departure::{Departure, Departures, missed};
use crate::exception::Exception;
use crate::guest;
use crate::limit::Limit;
use crate::place::{At, Place};
use crate::runtime::{Codes, Module};
use crate::said::{Message, Said, Told};
use crate::stack::{Level, Merging, Runs, Stack};
use crate::state::{Answer, State};
use crate::step::{Hop, Merge, Step};

/// A branch has come to this.
pub(crate) static MERGE: Method<(Bytes,), Many<Bytes>, Raw> = Method::new("wallaby.Chains/merge");

/// A chain that was started here has come to this exception.
pub(crate) static RAISE: Method<(Bytes,), Many<Bytes>, Raw> = Method::new("wallaby.Chains/raise");

/// A function is to run at another server than the one that has what it is given.
pub(crate) static APPLY: Method<(Bytes,), Many<Bytes>, Raw> = Method::new("wallaby.Chains/apply");

/// A chain inside another one tells something to who has started it.
pub(crate) static TELL: Method<(Bytes,), Many<Bytes>, Raw> = Method::new("wallaby.Chains/tell");

/// What was to go to another server has not got there: who has sent it says how the chain goes on.
pub(crate) static UNSENT: Method<(Bytes,), Many<Bytes>, Raw> = Method::new("wallaby.Chains/unsent");

/// The scheme of names that stand for several servers.
const SERVICE: &str = "service";

/// A function that is registered here.
pub(crate) type Native<Input> = Arc<dyn Fn(State, Input) -> Result<Step, Status> + Send + Sync>;

/// A function that hears what a chain tells.
pub(crate) type Hears = Arc<dyn Fn(State, Told) -> Result<(), Status> + Send + Sync>;

/// Functions by their names.
pub(crate) type Natives<Input> = HashMap<String, Native<Input>>;

/// Runs functions.
#[derive(Default)]
pub(crate) struct Engine {
    pub(crate) functions: Natives<Answer>,
    pub(crate) merging: Natives<Vec<Answer>>,
    pub(crate) catching: Natives<Exception>,
    pub(crate) hearing: HashMap<String, Hears>,
    /// Whom names of servers stand for.
    pub(crate) names: HashMap<String, Servers>,
    pub(crate) limits: ChainLimits,
    /// None if it runs no code that clients bring.
    pub(crate) codes: Option<Codes>,
    /// Where such code runs, if not here.
    pub(crate) proxy: Option<Proxy>,
    /// Whose code is handed on, where none runs for this server.
    pub(crate) passing: Option<Box<Policy>>,
    /// What is too large to travel within requests.
    pub(crate) states: Arc<States>,
}

/// A server that runs code in place of this one.
pub(crate) struct Proxy {
    pub(crate) at: Address,
    /// Who may bring any.
    pub(crate) policy: Box<Policy>,
}

/// The name that an address is, if it is none of a server.
pub(crate) fn name(server: &Address) -> Option<&str> {
    match server {
        Address::Other(other) if other.scheme() == SERVICE => Some(other.text()),
        _ => None,
    }
}

/// One of several by the highest hash of a name with each (rendezvous hashing): the same wherever and whenever it is asked, also if
/// others come and go.
fn highest(servers: &Servers, id: DurableId, avoid: &[Address]) -> Address {
    let weigh = |server: &Address| {
        let weighed = Sha256::new().chain_update(id.key());
        weighed.chain_update(server.to_string()).finalize()
    };
    let all = servers.list().into_iter().map(|(server, _)| server);
    let best = all.max_by_key(|server| (!avoid.contains(server), weigh(server)));
    best.unwrap_or_else(|| servers.pick())
}

/// What a function is to say something about.
pub(crate) enum Given {
    Answer(Bytes),
    Results(Vec<Answer>),
    Exception(Exception),
}

impl Given {
    /// For a server that runs the function: what it is, and that.
    fn to_bytes(&self) -> Result<Bytes, Status> {
        let (kind, bytes) = match self {
            Self::Answer(answer) => (0, Ok(answer.clone())),
            Self::Results(results) => {
                let results: Vec<Vec<u8>> = results.iter().map(|Answer(it)| it.to_vec()).collect();
                (1, Postcard::encode(&results))
            }
            Self::Exception(exception) => (2, Postcard::encode(exception)),
        };
        let bytes = bytes.map_err(|error| Status::internal(error.to_string()))?;
        Ok([&[kind], &bytes[..]].concat().into())
    }

    /// Reads that, of at most so many results.
    fn read(mut payload: Bytes, most: usize) -> Result<Self, Status> {
        let unreadable = || Status::invalid_argument("what a function is given cannot be read");
        if payload.is_empty() {
            return Err(unreadable());
        }
        match payload.split_to(1)[..] {
            [0] => Ok(Self::Answer(payload)),
            [1] => {
                // A byte each is enough to say that there are millions.
                let count = postcard::take_from_bytes::<usize>(&payload);
                let (count, _) = count.map_err(|_| unreadable())?;
                if count > most {
                    let message = format!("{count} results to merge: at most {most} are allowed");
                    return Err(Limit::Branches.exceeded(message));
                }
                let results: Vec<Vec<u8>> = Postcard::decode(payload).map_err(|_| unreadable())?;
                let results = results.into_iter().map(|it| Answer(it.into()));
                Ok(Self::Results(results.collect()))
            }
            [2] => Exception::read(payload).map(Self::Exception),
            _ => Err(unreadable()),
        }
    }
}

impl Engine {
    /// Whether who has sent this may bring code.
    pub(crate) fn lets_bring(&self, request: &Incoming) -> bool {
        match (&self.codes, &self.proxy, &self.passing) {
            (Some(codes), ..) => codes.allows(request),
            (None, Some(proxy), _) => (proxy.policy)(request),
            (None, None, Some(passes)) => passes(request),
            (None, None, None) => false,
        }
    }

    /// Whether a chain may go on with the code that it has, wherever in it that is. Where it comes next, this server is its sender, and
    /// has perhaps the leave, or the key, that who has sent it here has not.
    ///
    /// # Errors
    ///
    /// Who has sent it may not bring code here.
    pub(crate) fn may_leave(&self, stack: &Stack, place: Place<'_>) -> Result<(), Status> {
        let asks = self.codes.is_some() || self.proxy.is_some() || self.passing.is_some();
        match asks && stack.has_code() && !place.may_bring {
            true => Err(may_not_bring(place)),
            false => Ok(()),
        }
    }

    /// Who runs the code that was brought here, if it is another one.
    fn proxy(&self, place: Place<'_>) -> Result<Option<&Proxy>, Status> {
        match (&self.codes, &self.proxy) {
            (None, Some(proxy)) if place.may_bring => Ok(Some(proxy)),
            (None, Some(_)) => Err(may_not_bring(place)),
            _ => Ok(None),
        }
    }

    /// Whether the function that is to run on the answer can run here. This is asked first, so that no service function runs in
    /// vain.
    ///
    /// # Errors
    ///
    /// Why not.
    pub(crate) async fn check(&self, stack: &Stack, place: Place<'_>) -> Result<(), Status> {
        let most = self.limits.hops;
        if stack.hops > most {
            let message =
                format!("a chain of more than {most} hops, the most that this server takes");
            return Err(Limit::Hops.exceeded(message));
        }
        match stack.levels.last() {
            Some(Level::Run { .. }) => self.check_top(stack, place).await,
            _ => Ok(()),
        }
    }

    /// Whether the function on top can run here, whatever it is for.
    ///
    /// # Errors
    ///
    /// Why not.
    pub(crate) async fn check_top(&self, stack: &Stack, place: Place<'_>) -> Result<(), Status> {
        let Some(top) = stack.levels.last() else {
            return Ok(());
        };
        match (top.function(), top) {
            (_, Level::Merge(merging)) if merging.raised => Ok(()),
            (Runs::Pipe(_), _) => Ok(()),
            (Runs::Native(name), Level::Run { .. }) => {
                find(&self.functions, "chaining", name, place).map(drop)
            }
            (Runs::Native(name), Level::Merge(_)) => {
                find(&self.merging, "merging", name, place).map(drop)
            }
            (Runs::Native(name), Level::Catch { .. }) => {
                find(&self.catching, "catching", name, place).map(drop)
            }
            (_, Level::Tell { .. }) => Ok(()), // nothing waits for it
            (Runs::Code { code, function }, _) => {
                if self.proxy(place)?.is_some() {
                    return Ok(()); // who runs it looks at it
                }
                let (_, module) = self.module(*code, stack, place).await?;
                module.check(function)
            }
        }
    }

    /// Whether [`check`](Self::check) will have to wait for the code of the function on top.
    pub(crate) fn is_to_load(&self, stack: &Stack) -> bool {
        match (stack.levels.last(), &self.codes) {
            (
                Some(Level::Run {
                    function: Runs::Code { code, .. },
                    ..
                }),
                Some(codes),
            ) => codes.loaded(*code).is_none(),
            _ => false,
        }
    }

    /// Code that somebody brings.
    async fn module(
        &self,
        hash: Hash,
        stack: &Stack,
        place: Place<'_>,
    ) -> Result<(&Codes, Arc<dyn Module>), Status> {
        let Some(codes) = &self.codes else {
            return Err(Status::unimplemented(format!(
                "code {hash} comes with a client: this server runs pipes and functions that are registered by name"
            )));
        };
        if !place.may_bring {
            return Err(may_not_bring(place));
        }
        let module = codes.find(hash, stack.code(hash), place).await?;
        Ok((codes, module))
    }

    /// A link has come to this.
    pub(crate) async fn follow(
        &self,
        stack: Stack,
        outcome: Result<Intent, Status>,
        place: Place<'_>,
    ) -> Departures {
        let status = match outcome {
            Ok(Intent::Answer { payload, .. }) => {
                return self.go_on(stack, Ok(Step::End(payload)), place).await;
            }
            Ok(Intent::Delegation { to, .. }) => return self.hand_on(stack, to, place).await,
            Ok(Intent::Status(status)) => *status,
            Ok(_) => Status::internal("a link has sent what no chain can go on by"),
            Err(status) => status,
        };
        let exception = place.exception(&stack, &status);
        self.raise(stack, &exception)
    }

    /// The server itself, or the one that its name stands for now (`service://NAME`): one of those that the chain is not to avoid,
    /// if there is any. For a hop with a durable id it is always the same one of them, as what the link has come to is recorded
    /// there.
    pub(crate) fn resolve(
        &self,
        (server, durable): (&Address, Option<DurableId>),
        stack: &Stack,
        place: Place<'_>,
    ) -> Result<Address, Status> {
        let Some(name) = name(server) else {
            return Ok(server.clone());
        };
        let servers = self.names.get(name).ok_or_else(|| {
            let here = place.here();
            Status::not_found(format!("no servers are known as {name:?} {here}"))
        })?;
        let avoid = &stack.tail.avoid;
        Ok(match durable {
            Some(id) if stack.tail.asked.record => highest(servers, id, avoid),
            _ => servers.pick_except(avoid),
        })
    }

    /// The answer of a link is as the end of a chain: it goes to the function on top, and the result of that one to the next.
    pub(crate) async fn go_on(
        &self,
        mut stack: Stack,
        mut step: Result<Step, Status>,
        place: Place<'_>,
    ) -> Departures {
        let (mut said, mut telling) = (Said::default(), Vec::new());
        loop {
            let each = match step {
                Ok(Step::Saying { lines, told, then }) => {
                    let added = said.add(lines, told, self.limits.said);
                    telling.extend(said.apart(&stack));
                    step = added.map(|()| *then);
                    continue;
                }
                Ok(Step::End(answer)) => match stack.levels.pop() {
                    None => Ok(vec![Departure::End(answer)]),
                    Some(Level::Catch { .. } | Level::Tell { .. }) => {
                        step = Ok(Step::End(answer));
                        continue;
                    }
                    Some(Level::Run { function, state }) => {
                        let given = Given::Answer(answer);
                        step = self.run(&stack, function, state, given, place).await;
                        continue;
                    }
                    Some(Level::Merge(merging)) => {
                        Ok(vec![to_merge(stack.clone(), *merging, answer)])
                    }
                },
                Ok(Step::Next(hop)) => next(stack.clone(), *hop).map(|hop| vec![hop]),
                Ok(Step::Split(branches, merge)) => self.split(&stack, branches, &merge, place),
                Err(status) => Err(status),
            };
            return self.leaving(stack, each, place).saying(said, telling);
        }
    }

    /// All that leaves, or the exception that it is.
    fn leaving(
        &self,
        from: Stack,
        each: Result<Vec<Departure>, Status>,
        place: Place<'_>,
    ) -> Departures {
        match each {
            Ok(each) => Departures::new(from, each),
            Err(status) => {
                let exception = place.exception(&from, &status);
                self.raise(from, &exception)
            }
        }
    }

    /// Runs a function on what it is given. The request's trace tells that time apart from its service's.
    async fn run(
        &self,
        stack: &Stack,
        function: Runs,
        state: State,
        given: Given,
        place: Place<'_>,
    ) -> Result<Step, Status> {
        let begun = Instant::now();
        let step = self.step(stack, function, state, given, place).await;
        if let At::Server(request) = place.at {
            request.note_time("chaining function", begun.elapsed());
        }
        step
    }

    async fn step(
        &self,
        stack: &Stack,
        function: Runs,
        state: State,
        given: Given,
        place: Place<'_>,
    ) -> Result<Step, Status> {
        if let Runs::Code { .. } = &function
            && let Some(proxy) = self.proxy(place)?
        {
            let mut hop = Hop::to_raw(&proxy.at, APPLY.definition(), given.to_bytes()?);
            (hop.function, hop.state) = (function, state);
            return Ok(hop.into());
        }
        match (function, given) {
            (Runs::Pipe(links), Given::Answer(answer)) => {
                let mut links = links.into_iter();
                let Some(link) = links.next() else {
                    return Ok(Step::End(answer));
                };
                let mut hop = Hop::to_raw(&link.server, &link.definition()?, answer);
                hop.function = Runs::Pipe(links.collect());
                Ok(hop.into())
            }
            (Runs::Pipe(_), _) => Err(Status::invalid_argument("a pipe that merges or catches")),
            (Runs::Native(name), Given::Answer(answer)) => {
                let function = find(&self.functions, "chaining", &name, place)?;
                call(function, &name, state, Answer(answer))
            }
            (Runs::Native(name), Given::Results(results)) => {
                let function = find(&self.merging, "merging", &name, place)?;
                call(function, &name, state, results)
            }
            (Runs::Native(name), Given::Exception(exception)) => {
                let function = find(&self.catching, "catching", &name, place)?;
                call(function, &name, state, exception)
            }
            (Runs::Code { code, function }, given) => {
                let (codes, module) = self.module(code, stack, place).await?;
                module.check(&function)?;
                let input = guest::input(state, given)?;
                let output = codes.run(module, (function, input.into()), place).await?;
                guest::step(&output, code)
            }
        }
    }

    fn split(
        &self,
        stack: &Stack,
        branches: Vec<Hop>,
        merge: &Merge,
        place: Place<'_>,
    ) -> Result<Vec<Departure>, Status> {
        let (count, most) = (branches.len(), self.limits.branches);
        if !(1..=most).contains(&count) {
            let message =
                format!("a split into {count} branches: at least 1 and at most {most} are allowed");
            return Err(Limit::Branches.exceeded(message));
        }
        let merges = |level: &&Level| matches!(level, Level::Merge(_));
        let inside = stack.levels.iter().filter(merges).count() + 1;
        if inside > self.limits.splits {
            let most = self.limits.splits;
            let message = format!("{inside} splits inside each other: at most {most} are allowed");
            return Err(Limit::Splits.exceeded(message));
        }
        let of = u32::try_from(count).unwrap_or(u32::MAX);
        let at = self.resolve((&merge.at, place.durable_id()), stack, place)?; // one for all
        let branches = (1..).zip(branches).map(|(number, hop)| {
            let mut stack = stack.clone();
            stack.branch.push(number);
            stack.bring(merge.code.clone());
            stack.levels.push(Level::Merge(Box::new(Merging {
                at: at.clone(),
                function: merge.function.clone(),
                state: merge.state.clone(),
                split: place.split(),
                number,
                of,
                raised: false,
            })));
            next(stack, hop)
        });
        branches.collect()
    }

    /// All branches have ended, each with an answer or an exception, in their order.
    pub(crate) async fn merge(
        &self,
        mut stack: Stack,
        results: Vec<Result<Answer, Exception>>,
        place: Place<'_>,
    ) -> Departures {
        let Some(Level::Merge(merging)) = stack.levels.pop() else {
            let status = Status::invalid_argument("branches that do not end here");
            return self.raise(stack.clone(), &place.exception(&stack, &status));
        };
        match results.into_iter().collect() {
            Ok(answers) => {
                let (function, given) = (merging.function, Given::Results(answers));
                let run = self.run(&stack, function, merging.state, given, place);
                let step = run.await;
                self.go_on(stack, step, place).await
            }
            Err(exception) => self.raise(stack, &exception),
        }
    }

    /// The function on top was to catch this exception.
    pub(crate) async fn catch(
        &self,
        mut stack: Stack,
        exception: Exception,
        place: Place<'_>,
    ) -> Departures {
        let Some(Level::Catch {
            function, state, ..
        }) = stack.levels.pop()
        else {
            let status = Status::invalid_argument("an exception that nobody was to catch here");
            return self.raise(stack.clone(), &place.exception(&stack, &status));
        };
        // A function of ours that was asked says what it likes; of others it is told what they were to catch.
        let caught = match &function {
            Runs::Native(name) if self.catching.contains_key(name) => None,
            _ => Some(exception.message().to_owned()),
        };
        let given = Given::Exception(exception);
        let step = self.run(&stack, function, state, given, place).await;
        let step = step.map_err(|status| match caught {
            None => status,
            Some(caught) => {
                let message = format!("{}; it was to catch: {caught}", status.message());
                Status::new(status.code(), message)
            }
        });
        self.go_on(stack, step, place).await
    }

    /// A chain inside another one has told this to the function on top.
    ///
    /// # Errors
    ///
    /// It is not here, or does not want that.
    pub(crate) fn hear(
        &self,
        stack: &Stack,
        message: Message,
        place: Place<'_>,
    ) -> Result<(), Status> {
        let Some(Level::Tell {
            function: Runs::Native(name),
            state,
            ..
        }) = stack.levels.last()
        else {
            return Err(Status::invalid_argument(
                "nobody is to hear what a chain tells here",
            ));
        };
        let hears = find(&self.hearing, "hearing", name, place)?;
        message.told().try_for_each(|told| {
            let hear = AssertUnwindSafe(|| hears(state.clone(), told));
            catch_unwind(hear).unwrap_or_else(|panic| Err(panicked(name, &*panic)))
        })
    }

    /// Another server has handed the function on top here, with what it is given. It runs here or not at all.
    pub(crate) async fn apply(
        &self,
        mut stack: Stack,
        given: Bytes,
        place: Place<'_>,
    ) -> Departures {
        if let Err(status) = self.check(&stack, place).await {
            let exception = place.exception(&stack, &status);
            return self.raise(stack, &exception);
        }
        let step = match stack.levels.pop() {
            Some(Level::Run {
                function: function @ Runs::Code { .. },
                state,
            }) if self.codes.is_some() => match Given::read(given, self.limits.branches) {
                Ok(given) => self.run(&stack, function, state, given, place).await,
                Err(status) => Err(status),
            },
            _ => Err(Status::unimplemented(
                "a function that another server has handed on: only code runs here so, where there is a runtime for it",
            )),
        };
        self.go_on(stack, step, place).await
    }

    /// An exception goes to who has started the innermost chain and catches it; at last to the initiator.
    pub(crate) fn raise(&self, mut stack: Stack, exception: &Exception) -> Departures {
        // If nobody catches it, nor need who merges know: the initiator's call ends.
        while stack.is_caught()
            && let Ok(payload) = Postcard::encode(exception)
        {
            let from = stack.clone();
            let departure = match stack.levels.last().cloned() {
                Some(Level::Catch { at, .. }) => {
                    let to = DelegatedRequest::new(at, Arc::clone(RAISE.definition()), payload);
                    Departure::Hop(Box::new((to, stack)))
                }
                Some(Level::Merge(mut merging)) => {
                    merging.raised = true;
                    stack.levels.pop();
                    to_merge(stack, *merging, payload)
                }
                _ => {
                    stack.levels.pop();
                    continue;
                }
            };
            return Departures::of(exception, from, departure);
        }
        let failed = Departure::Failed(Box::new(exception.clone()));
        Departures::new(stack, vec![failed])
    }

    /// A request of the chain, with this payload, has not got to its server, as the status says: that is an exception.
    ///
    /// # Errors
    ///
    /// If nobody catches it: what the initiator is told. Of a branch that cannot be merged others have not heard, so each would be
    /// caught; what is told beside the chain does not end it; of what may be made again it is not known yet that it has ended; and the
    /// states of who catches may have been lost with the request.
    pub(crate) fn unsent(
        &self,
        mut stack: Stack,
        (why, payload): (&Status, Bytes),
        place: Place<'_>,
    ) -> Result<Departures, Status> {
        let called = why.method().unwrap_or_default();
        let mut exception = place.exception(&stack, why);
        let mut told = exception.to_status().message().to_owned();
        // Who was to catch another one: what that was is not lost.
        if called == RAISE.name()
            && let Ok(caught) = Exception::read(payload)
        {
            stack.levels.pop();
            let caught_as = caught.to_status();
            told = format!(
                "{}; it was to catch: {}",
                why.message(),
                caught_as.message()
            );
            exception = place.exception(&stack, &missed(why, &caught));
        }
        let is_beside = called == MERGE.name() || called == TELL.name();
        let is_lost = stack.tail.asked.record || stack.tail.away.is_some();
        match stack.is_caught() && !is_beside && !is_lost {
            true => Ok(self.raise(stack, &exception)),
            false => Err(why.with_message(told)),
        }
    }

    /// A handler hands its request on: who answers that is the link, then. What it brings along is a chain inside this one.
    async fn hand_on(
        &self,
        outer: Stack,
        mut to: DelegatedRequest,
        place: Place<'_>,
    ) -> Departures {
        let mut stack = outer;
        let own = self.own_chain(&mut to).await;
        let each = own.map(|own| {
            if let Some(own) = own {
                stack.levels.extend(own.levels);
                own.codes
                    .into_iter()
                    .for_each(|code| stack.bring(Some(code)));
            }
            vec![Departure::Hop(Box::new((to, stack.clone())))]
        });
        self.leaving(stack, each, place)
    }

    /// The chain by which a handler answers a request that is no link has nobody to begin with, as the status says: what is sent in its
    /// place, if it catches that itself.
    pub(crate) fn not_begun(
        &self,
        to: &DelegatedRequest,
        why: &Status,
        place: Place<'_>,
    ) -> Option<Vec<Intent>> {
        let continuation = to.options()?.continuation.as_ref()?;
        let stack = Stack::read(continuation.bytes()).ok()??;
        if !stack.is_caught() || stack.tail.away.is_some() {
            return None;
        }
        let exception = place.exception(&stack, why);
        let departures = self.raise(stack, &exception);
        Some(self.depart(departures, place))
    }
}

impl Engine {
    /// The chain by which a handler has answered, with all of its states.
    async fn own_chain(&self, to: &mut DelegatedRequest) -> Result<Option<Stack>, Status> {
        let options = to.options();
        let Some(own) = options.and_then(|options| options.continuation.as_ref()) else {
            return Ok(None);
        };
        let mut own = Stack::read(own.bytes())?.ok_or_else(|| {
            Status::failed_precondition(
                "a link of a chain has handed on a continuation that is no chain",
            )
        })?;
        if own.tail.away.is_some()
            && let Some(body) = to.take_body()
        {
            own.put_back(&body.collect(self.limits.state).await?)?;
        }
        Ok(Some(own))
    }
}

fn next(mut stack: Stack, hop: Hop) -> Result<Departure, Status> {
    let payload = hop
        .payload
        .map_err(|error| Status::internal(error.to_string()))?;
    stack.bring(hop.code);
    stack.push(hop.function, hop.state);
    Ok(onward(stack, hop.server, &hop.method, payload))
}

fn to_merge(mut stack: Stack, merging: Merging, payload: Bytes) -> Departure {
    let at = merging.at.clone();
    stack.levels.push(Level::Merge(Box::new(merging)));
    onward(stack, at, MERGE.definition(), payload)
}

fn onward(
    stack: Stack,
    server: Address,
    method: &Arc<MethodDefinition>,
    payload: Bytes,
) -> Departure {
    let to = DelegatedRequest::new(server, Arc::clone(method), payload);
    Departure::Hop(Box::new((to, stack)))
}

fn find<'a, F>(
    natives: &'a HashMap<String, F>,
    kind: &str,
    name: &str,
    place: Place<'_>,
) -> Result<&'a F, Status> {
    natives.get(name).ok_or_else(|| {
        let here = place.here();
        Status::not_found(format!("there is no {kind} function {name:?} {here}"))
    })
}

fn call<Input>(
    native: &Native<Input>,
    name: &str,
    state: State,
    input: Input,
) -> Result<Step, Status> {
    let run = AssertUnwindSafe(|| native(state, input));
    catch_unwind(run).unwrap_or_else(|panic| Err(panicked(name, &*panic)))
}

fn panicked(name: &str, panic: &(dyn Any + Send)) -> Status {
    let why = text_of(panic);
    let message = format!("function {name:?} has panicked: {why}");
    Status::new(Code::Panicked, message)
}

fn may_not_bring(place: Place<'_>) -> Status {
    Status::permission_denied(format!("{} may not bring code here", place.sender()))
}

/// A link has given two answers.
pub(crate) fn answered_again(method: &str) -> Status {
    let message = format!("a link of a chain answers once, {method} has answered again");
    Status::failed_precondition(message)
}

/// A link has given none.
pub(crate) fn unanswered(method: &str) -> Status {
    let message = format!("{method} has ended without an answer");
    Status::new(Code::Unanswered, message)
}

/// Why somebody has panicked.
pub(crate) fn text_of(panic: &(dyn Any + Send)) -> &str {
    match panic.downcast_ref::<&str>() {
        Some(text) => text,
        None => panic
            .downcast_ref::<String>()
            .map_or("it says not why", String::as_str),
    }
}
