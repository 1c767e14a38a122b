//! A chain that is walked from where it was started, one link at a time: each answer comes back, and functions run there.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use bytes::Bytes;
use tokio::time::Instant;
use wallaby::codec::{Codec, Postcard};
use wallaby::extension::Token;
use wallaby::intercept::DelegatedRequest;
use wallaby::{
    Address, CallError, CallId, Caller, Code, DurableId, Failure, MethodDefinition, RequestId,
    Status,
};

use crate::departure::{Departure, Departures, names};
use crate::engine::{Engine, MERGE, RAISE, answered_again, unanswered};
use crate::exception::{Exception, bare};
use crate::gather::{Arrival, Gathers, Waiting as Early};
use crate::place::{At, Place};
use crate::running::{self, BrokenLink, ChainEvent};
use crate::stack::{Level, Runs, Stack};
use crate::state::State;
use crate::step::Step;
use crate::ways::Ways;

/// What runs functions of chains that are [walked](crate::Chain::walk): made by [`Chains::at_home`](crate::Chains::at_home). Clones
/// are the same.
#[derive(Clone)]
pub struct Home(Arc<Engine>, pub(crate) Arc<Ways>);

impl Home {
    pub(crate) fn new(engine: Arc<Engine>) -> Self {
        Self(engine, Arc::default())
    }

    /// The server that a name stands for now, or the server itself.
    pub(crate) fn resolve(
        &self,
        hop: (&Address, Option<DurableId>),
        stack: &Stack,
        caller: &Caller,
    ) -> Result<Address, Status> {
        let (call, step) = (0, 0);
        let at = At::Home { caller, call, step };
        let place = Place {
            at,
            may_bring: true,
            durable: None,
        };
        self.0.resolve(hop, stack, place)
    }
}

impl fmt::Debug for Home {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Home")
            .field("functions", &self.0.functions.keys())
            .finish_non_exhaustive()
    }
}

/// A chain that is walked from where it was started: each link is a call of its own, whose answer comes back, and all functions run
/// here. It takes longer than a chain, and shows each link and each function before it runs, and lets them be changed.
///
/// Branches are walked one after the other, in their order. A function that merges or catches runs with what leads to it.
#[must_use = "a walk goes no further than it is told to"]
pub struct Walk<T, C = Postcard> {
    home: Home,
    caller: Caller,
    /// The durable name of a chain that is made again so, and when its time is over; none if each link has its own.
    again: Option<(DurableId, Instant)>,
    /// The next one is the last.
    waiting: Vec<Waiting>,
    gathers: Arc<Gathers>,
    /// Branches that have come to their merge.
    early: Vec<Early>,
    /// The latest call.
    call: Option<CallId>,
    steps: u64,
    /// How many links were called.
    links: u32,
    /// The latest step was not taken, since a function is not here or may not run.
    unable: bool,
    types: PhantomData<fn() -> (T, C)>,
}

/// Something that comes.
struct Waiting {
    what: What,
    /// The name of the request that it is, or is the answer of.
    durable: Option<DurableId>,
}

enum What {
    Leaves(Departure),
    /// A link has answered.
    Answered(Box<Stack>, Bytes),
}

/// What comes next in a [`Walk`].
#[derive(Debug)]
#[non_exhaustive]
pub enum Stop<'a> {
    /// This link is called.
    #[non_exhaustive]
    Link {
        /// Which chain: behind the number of the latest call are those of the branches where it was split, as in `74.2`.
        chain: String,
        /// Its server.
        server: &'a mut Address,
        /// Its method.
        method: &'a mut Arc<MethodDefinition>,
        /// Its arguments, as the method's codec writes them.
        arguments: &'a mut Bytes,
    },
    /// This function runs.
    #[non_exhaustive]
    Function {
        /// Which chain.
        chain: String,
        /// Its name.
        name: &'a str,
        /// Its state.
        state: &'a mut State,
        /// The answer of the link before.
        answer: &'a mut Bytes,
    },
    /// The chain ends by this exception, which nobody has caught.
    Exception(&'a Exception),
}

impl<T, C: Codec<T>> Walk<T, C> {
    /// With a durable name, under which servers record what links come to, and know what they have recorded; and until when all of
    /// it is to be done.
    pub(crate) fn new(
        home: Home,
        caller: Caller,
        (first, stack): (DelegatedRequest, Stack),
        again: Option<(DurableId, Instant)>,
    ) -> Self {
        let hop = Departure::Hop(Box::new((first, stack)));
        Self {
            home,
            caller,
            again,
            waiting: vec![Waiting {
                what: What::Leaves(hop),
                durable: again.map(|(id, _)| id),
            }],
            gathers: Arc::default(),
            early: Vec::new(),
            call: None,
            steps: 0,
            links: 0,
            unable: false,
            types: PhantomData,
        }
    }

    /// What comes next, to be looked at and changed; `None` if the chain is over.
    pub fn stop(&mut self) -> Option<Stop<'_>> {
        let call = self.number();
        Some(match &mut self.waiting.last_mut()?.what {
            What::Leaves(Departure::Hop(hop)) => {
                let (to, stack) = &mut **hop;
                Stop::Link {
                    chain: stack.name(call),
                    server: &mut to.server,
                    method: &mut to.method,
                    arguments: &mut to.payload,
                }
            }
            What::Answered(stack, answer) => {
                let chain = stack.name(call);
                let Some(Level::Run { function, state }) = stack.levels.last_mut() else {
                    return None;
                };
                Stop::Function {
                    chain,
                    name: match function {
                        Runs::Native(name) | Runs::Code { function: name, .. } => name,
                        Runs::Pipe(_) => return None,
                    },
                    state,
                    answer,
                }
            }
            What::Leaves(Departure::Failed(exception)) => Stop::Exception(exception),
            What::Leaves(Departure::End(_)) => return None,
        })
    }

    /// Calls the link, or runs the function, that comes next, and all that is neither until the next one does. It yields what
    /// functions have said, and at last what the chain has come to. `None` if it is over.
    ///
    /// Who drops the future before it is done has lost what came next: the walk cannot go on then.
    ///
    /// # Errors
    ///
    /// The exception that nobody has caught, as a status; the chain is over then. Or why a link could not be called, or is lost, or
    /// what comes next cannot be done here, since a function is not at home or may not run: it comes next still, and may be tried
    /// again. Nobody catches that.
    pub async fn step(&mut self) -> Option<Result<Vec<ChainEvent<T>>, CallError>> {
        let next = self.waiting.pop()?;
        let mut said = Vec::new();
        if let Err(error) = self.take(next, &mut said).await {
            return Some(Err(error));
        }
        while let Some(next) = self.waiting.pop_if(|next| !next.is_stop()) {
            match self.take(next, &mut said).await {
                Ok(()) => {}
                // It is said first; what comes next fails again.
                Err(_) if !said.is_empty() && !self.waiting.is_empty() => break,
                Err(error) => return Some(Err(error)),
            }
        }
        Some(Ok(said))
    }

    /// Walks to the end.
    ///
    /// # Errors
    ///
    /// As [`step`](Self::step).
    pub async fn answer(&mut self) -> Result<T, CallError> {
        while let Some(events) = self.step().await {
            for event in events? {
                if let ChainEvent::End(end) = event {
                    return Ok(end);
                }
            }
        }
        Err(Failure::NoAnswer.into())
    }

    async fn take(
        &mut self,
        next: Waiting,
        said: &mut Vec<ChainEvent<T>>,
    ) -> Result<(), CallError> {
        self.steps += 1;
        self.unable = false;
        let Waiting { what, mut durable } = next;
        let departures = match what {
            What::Leaves(Departure::End(answer)) => {
                self.waiting.clear();
                let request = RequestId::FIRST;
                let end = C::decode(answer);
                let end = end.map_err(|error| CallError::unreadable(request, error))?;
                said.push(ChainEvent::End(end));
                return Ok(());
            }
            What::Leaves(Departure::Failed(exception)) => {
                self.waiting.clear();
                return Err(exception.to_status().into());
            }
            What::Leaves(Departure::Hop(hop)) => {
                let (to, mut stack) = *hop;
                if !is_link(&to) {
                    let before = stack.clone();
                    stack.advance(&to.server);
                    let place = self.place(durable);
                    if let Err(status) = self.home.0.check_top(&stack, place).await {
                        self.unable = true;
                        let what = What::Leaves(Departure::Hop(Box::new((to, before))));
                        self.waiting.push(Waiting { what, durable });
                        return Err(status.into());
                    }
                }
                match &**to.method.name() {
                    name if name == MERGE.name() => {
                        self.merge(stack, to.payload, &mut durable).await
                    }
                    name if name == RAISE.name() => self.catch(stack, to.payload, durable).await,
                    _ => self.link(to, stack, durable).await?,
                }
            }
            What::Answered(stack, answer) => {
                let (step, place) = (Ok(Step::End(answer)), self.place(durable));
                Some(self.home.0.go_on(*stack, step, place).await)
            }
        };
        if let Some(departures) = departures {
            self.leave(departures, durable, said);
        }
        Ok(())
    }

    /// What leaves waits for its turn.
    fn leave(
        &mut self,
        departures: Departures,
        durable: Option<DurableId>,
        events: &mut Vec<ChainEvent<T>>,
    ) {
        let Departures {
            from,
            said,
            telling,
            each,
            ..
        } = departures;
        let telling = telling.into_iter().map(|it| (it.from, it.said));
        for (from, said) in telling.chain([(from, said)]) {
            events.extend(running::events(said.message(&from, self.number())));
        }
        let waiting = each.into_iter().zip(names(durable));
        let waiting = waiting.map(|(departure, durable)| Waiting {
            what: What::Leaves(departure),
            durable,
        });
        let at = self.waiting.len();
        self.waiting.extend(waiting);
        self.waiting[at..].reverse();
    }

    /// Calls a link, as a server would let it run.
    async fn link(
        &mut self,
        to: DelegatedRequest,
        before: Stack,
        durable: Option<DurableId>,
    ) -> Result<Option<Departures>, CallError> {
        let engine = Arc::clone(&self.home.0);
        let mut stack = before.clone();
        let place = self.place(durable);
        let resolved = engine.resolve((&to.server, durable), &stack, place);
        let may_run = match resolved.and_then(|server| {
            stack.advance(&server);
            // Links may have been called before under durable names: one whose name is not known is not called.
            if self.again.is_some() && durable.is_none() {
                let message = "what a link has handed on has led to names that are not known here";
                return Err(Status::failed_precondition(message));
            }
            engine.limits.check_levels(stack.levels.len())?;
            Ok(server)
        }) {
            Ok(server) => engine.check(&stack, place).await.map(|()| server),
            Err(status) => Err(status),
        };
        self.unable = may_run.is_err();
        let answer = match may_run {
            Ok(server) => self.call(&to, (server, &stack), durable).await,
            Err(status) => Err(status.into()),
        };
        match answer {
            Ok(Ok((request, answer))) => {
                // In the chain, names would follow from that of the request that has answered.
                let durable = durable.filter(|_| request == RequestId::FIRST);
                let what = What::Answered(Box::new(stack), answer);
                self.waiting.push(Waiting { what, durable });
                Ok(None)
            }
            Ok(Err(status)) => {
                let exception = self.place(durable).exception(&stack, &status);
                Ok(Some(engine.raise(stack, &exception)))
            }
            Err(error) => {
                let what = What::Leaves(Departure::Hop(Box::new((to, before))));
                self.waiting.push(Waiting { what, durable });
                Err(error)
            }
        }
    }

    /// What a link answers, and by which request, or the status with which it ends.
    async fn call(
        &mut self,
        to: &DelegatedRequest,
        (server, stack): (Address, &Stack),
        durable: Option<DurableId>,
    ) -> Result<Result<(RequestId, Bytes), Status>, CallError> {
        self.links = self.links.saturating_add(1);
        let mut client = self.caller.clone().at(server);
        if let Some(durable) = durable {
            client = client.durable(durable);
        }
        if let Some((_, until)) = self.again {
            client = client.deadline(until.saturating_duration_since(Instant::now()));
        }
        let recorded = stack.recorded();
        let is_recorded = recorded.is_some();
        if let Some(recorded) = recorded {
            client = client.continuation(recorded);
        }
        let mut call = client.call_raw(&to.method, to.payload.clone());
        self.call = Some(call.id());
        let mut answer = None;
        while let Some(next) = call.next().await {
            match next {
                Ok(next) if answer.is_none() => {
                    answer = Some((next.request, next.payload));
                }
                Ok(_) => return Ok(Err(answered_again(to.method.name()))),
                Err(CallError::Status(status)) if !is_broken(&status) => {
                    return Ok(Err(match is_recorded {
                        true => bare(status),
                        false => status,
                    }));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(answer.ok_or_else(|| unanswered(to.method.name())))
    }

    /// A branch has come to its end.
    async fn merge(
        &mut self,
        mut stack: Stack,
        payload: Bytes,
        durable: &mut Option<DurableId>,
    ) -> Option<Departures> {
        let engine = Arc::clone(&self.home.0);
        let merged = match (stack.levels.last(), self.call) {
            (Some(Level::Merge(merging)), Some(call)) => merging.what(payload).and_then(|what| {
                // All of its calls are one here.
                let call = CallId {
                    sequence: 0,
                    ..call
                };
                let what = (what, stack.hops, *durable);
                self.gathers
                    .arrive((call, Token::new(0)), merging, what, (0, &engine.limits))
            }),
            _ => Err(Status::invalid_argument("a branch that does not end here")),
        };
        match merged {
            Ok(Arrival::Early(early)) => {
                self.early.push(early);
                None
            }
            Ok(Arrival::Last(gathered)) => {
                stack.branch.pop();
                stack.hops = gathered.hops;
                *durable = gathered.durable;
                let place = self.place(*durable);
                Some(engine.merge(stack, gathered.results, place).await)
            }
            Err(status) => {
                let exception = self.place(*durable).exception(&stack, &status);
                stack.levels.pop();
                Some(engine.raise(stack, &exception))
            }
        }
    }

    /// Somebody is to catch an exception.
    async fn catch(
        &mut self,
        stack: Stack,
        payload: Bytes,
        durable: Option<DurableId>,
    ) -> Option<Departures> {
        let (engine, place) = (&self.home.0, self.place(durable));
        Some(match Exception::read(payload) {
            Ok(exception) => engine.catch(stack, exception, place).await,
            Err(status) => engine.raise(stack.clone(), &place.exception(&stack, &status)),
        })
    }

    fn place(&self, durable: Option<DurableId>) -> Place<'_> {
        let at = At::Home {
            caller: &self.caller,
            call: self.number(),
            step: self.steps,
        };
        Place {
            at,
            may_bring: true,
            durable,
        }
    }

    /// The link that comes next, which was called in vain.
    pub(crate) fn broken(&self) -> Option<BrokenLink> {
        match &self.waiting.last()?.what {
            What::Leaves(Departure::Hop(hop)) if is_link(&hop.0) => Some(BrokenLink {
                number: self.links,
                server: hop.0.server.clone(),
                method: Arc::clone(hop.0.method.name()),
            }),
            _ => None,
        }
    }

    /// Whether the latest step was not taken, for want of something here.
    pub(crate) fn is_unable(&self) -> bool {
        self.unable
    }

    /// The number of the chain, or of the latest call.
    fn number(&self) -> u64 {
        let call = self.call.map_or(0, |call| call.sequence);
        self.again.map_or(call, |(id, _)| id.sequence)
    }
}

impl Waiting {
    /// Whether it is shown before it comes.
    fn is_stop(&self) -> bool {
        match &self.what {
            What::Leaves(Departure::Hop(hop)) => is_link(&hop.0),
            What::Leaves(Departure::Failed(_)) => true,
            What::Leaves(Departure::End(_)) => false,
            What::Answered(stack, _) => matches!(
                stack.levels.last(),
                Some(Level::Run {
                    function: Runs::Native(_) | Runs::Code { .. },
                    ..
                })
            ),
        }
    }
}

fn is_link(to: &DelegatedRequest) -> bool {
    ![MERGE.name(), RAISE.name()].contains(&&**to.method.name())
}

/// Whether it is the protocol's, of a link that was not executed, or not to its end.
pub(crate) fn is_broken(status: &Status) -> bool {
    match status.code() {
        Code::Unavailable => status.is_not_executed() || status.loss().is_some(),
        code => code == Code::Unfinished,
    }
}

impl<T, C> fmt::Debug for Walk<T, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Walk")
            .field("home", &self.home)
            .field("steps", &self.steps)
            .finish_non_exhaustive()
    }
}
