//! A chain that runs, for who has started it: it hears of it before its end, and has it made again when it is lost.

use std::collections::hash_map::RandomState;
use std::collections::{HashSet, VecDeque};
use std::fmt;
use std::hash::BuildHasher;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::Instant;
use wallaby::codec::{Codec, CodecError, Postcard};
use wallaby::extension::{number, sleep};
use wallaby::intercept::DelegatedRequest;
use wallaby::{Address, CallError, Caller, ConnectError, DurableId, Failure, RawCall, Trace};

use crate::chain::{ChainError, Chained, First};
use crate::said::{Line, MOST_SAID, Message, Told};
use crate::stack::{Asked, Level, MOST_AVOIDED, Runs};
use crate::walk::{Home, Walk, is_broken};
use crate::ways::{Kind, Way};

/// How long is waited before a chain is made again for the first time, and at most.
const PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

/// Of so many steps it is known that they have been heard of.
const MOST_HEARD: usize = 4096;

/// How a chain is run ([`Chain::run`](crate::Chain::run)): what is heard of it besides its end, and what becomes of it if it is
/// lost.
#[derive(Debug, Clone, Default)]
#[must_use = "it does nothing until a chain is run by it"]
pub struct Run {
    asked: Asked,
    retries: u32,
    home: Option<Home>,
    adaptive: bool,
    most_said: Option<usize>,
}

impl Run {
    /// Nothing is heard but the end, and it is made once.
    pub fn new() -> Self {
        Self::default()
    }

    /// The lines that functions log ([`Step::log`](crate::Step::log)) are heard. It costs a message for each step that says
    /// anything. Those that nobody wants are logged by their servers, for debugging.
    pub fn lines(mut self) -> Self {
        self.asked.lines = true;
        self
    }

    /// The values that functions tell ([`Step::tell`](crate::Step::tell)) are heard, at the same price. Those that nobody wants are
    /// dropped.
    pub fn told(mut self) -> Self {
        self.asked.told = true;
        self
    }

    /// What one step says may be so many bytes at most, as of [`ChainLimits::said`](crate::ChainLimits::said): 64 KiB if nothing is said. A
    /// server that sends more, or what was not asked for, ends the call by an error.
    pub fn most_said(mut self, bytes: usize) -> Self {
        self.most_said = Some(bytes);
        self
    }

    /// A chain that is lost on its way is made again, so many times at most, as long as there is time: because a server cannot be
    /// reached, has died, or was closed. Servers keep for a while what its links have come to, and do not run them again
    /// ([`ChainLimits::records`](crate::ChainLimits::records)); only a link that was lost in the middle, or whose server has forgotten it
    /// with all else, runs twice. So methods that are links of such a chain may run twice, or keep records of their own. A handler
    /// that goes on after it was stopped, as shielded sections do and blocking handlers that have their `Request`, is waited for at
    /// its server, and runs again; blocking ones without it may run twice at once. A chain that ends by an exception is not made
    /// again.
    ///
    /// The chain has the durable id of its caller ([`Caller::durable`]), or one that is drawn by chance: servers answer from their
    /// records who has it, so it is a secret. It is one for one chain.
    ///
    /// All servers on the way need to be of a release that knows this; an older one refuses.
    pub fn retries(mut self, retries: u32) -> Self {
        self.retries = retries;
        self.asked.record = retries > 0;
        self
    }

    /// What is known here: the names of servers ([`Chains::servers`](crate::Chains::servers)) that the first link may have, and
    /// functions. If the chain is lost for the last time that [`retries`](Self::retries) allows, and that is more than none, it is
    /// [walked](crate::Chain::walk) from here: links that have come to something are asked for it and do not run again. Either it
    /// comes to its end so, or it is known which link breaks it ([`Running::broken`]). Behind a link that hands its work on, or
    /// answers by a chain, it is not walked: the names under which later links may have run are not known here.
    pub fn home(mut self, home: &Home) -> Self {
        self.home = Some(home.clone());
        self
    }

    /// A state that is too large to travel within requests stays here, if that is quicker: the chain is
    /// [walked](crate::Chain::walk) then by its [`home`](Self::home), which needs to have all of its functions. Both ways are gone
    /// three times each for chains that begin alike and have about as much state, then the one that has been quicker, and now and
    /// then the other one, to see whether that is still so. What is more than may travel at all is walked. It holds for chains that
    /// are not made again and have no durable id.
    pub fn adaptive(mut self) -> Self {
        self.adaptive = true;
        self
    }
}

/// Something of a chain that runs.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum ChainEvent<T> {
    /// A function has logged this.
    Line(Line),
    /// A function has told this.
    Told(Told),
    /// The chain has come to this. What its hosts have said before may still be on its way: who wants all of it reads on. If some
    /// of it is lost then, it does not come, and that is no error.
    End(T),
}

/// A link that breaks its chain: it cannot be called, or is lost whenever it is.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct BrokenLink {
    /// Which one of those that were called, from 1.
    pub number: u32,
    /// Its server.
    pub server: Address,
    /// Its method.
    pub method: Arc<str>,
}

impl fmt::Display for BrokenLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            number,
            server,
            method,
        } = self;
        write!(f, "link {number}, {method} at {server}")
    }
}

/// A chain that runs: a stream of what it says, and its end. Dropping it gives the chain up.
///
/// What the functions of one step have said comes in its order. What different hosts say comes as it comes: hosts send it to who
/// has started the chain, not along the chain.
#[must_use = "a chain that is dropped is given up"]
pub struct Running<T, C = Postcard> {
    start: Box<Start>,
    now: Now<T>,
    /// What one message has brought and nobody has taken yet.
    heard: VecDeque<ChainEvent<T>>,
    /// Its end was heard.
    ended: bool,
    /// Which way it goes, if that was looked at, and since when.
    way: Option<(Kind, Way, Instant)>,
    attempts: u32,
    broken: Option<BrokenLink>,
    codec: PhantomData<fn() -> C>,
}

/// What it takes to make a chain again.
struct Start {
    first: First,
    caller: Caller,
    how: Run,
    /// The name under which it is.
    durable: DurableId,
    until: Instant,
    /// Hashes of the branches and hops of which all has been heard: their names are said by servers, so they are not kept.
    heard: HashSet<u64>,
    hasher: RandomState,
}

/// What a chain that runs does now.
enum Now<T> {
    Runs(RawCall),
    /// It is made again then, because it was lost by this.
    Waits {
        until: Instant,
        lost: CallError,
    },
    Walks(Walking<T>),
    Over,
}

/// A chain that was walked did not come to its end.
struct Broken {
    error: CallError,
    /// Where, if it is a link that cannot be called.
    link: Option<BrokenLink>,
}

/// A chain that is walked by a task of its own.
struct Walking<T> {
    events: mpsc::Receiver<Result<ChainEvent<T>, Broken>>,
    task: AbortHandle,
}

impl<T> Drop for Walking<T> {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Start {
    fn call(&self) -> Result<RawCall, ChainError> {
        let mut first = self.first.clone();
        if let Some(home) = &self.how.home {
            let hop = (&first.server, self.recorded());
            let resolved = home.resolve(hop, &first.stack, &self.caller);
            first.server =
                resolved.map_err(|status| ChainError::NoServers(status.message().to_owned()))?;
        }
        first.check_server()?;
        let client = self.caller.clone().at(first.server.clone());
        let (continuation, state) = first.continuation()?;
        let client = client.continuation(continuation);
        let client = match self.recorded() {
            None => client,
            Some(id) => client.durable(id).deadline(self.left()),
        };
        Ok(match state {
            Some(state) => client.call_raw_with_body(&first.method, first.payload, state.into()),
            None => client.call_raw(&first.method, first.payload),
        })
    }

    /// Which way it goes, if its state may stay here, and what that depends on, if anything.
    fn way(&self) -> Result<Option<(Way, Option<Kind>)>, ChainError> {
        let Self {
            first, how, caller, ..
        } = self;
        // A walk is a call for each link, and no two of them have one name.
        let may_walk = how.adaptive && how.retries == 0 && caller.durable_id().is_none();
        let Some(home) = how.home.as_ref().filter(|_| may_walk) else {
            return Ok(None);
        };
        let size = match first.continuation() {
            Ok((_, None)) => return Ok(None),
            Ok((_, Some(state))) => state.len().ilog2(),
            Err(ChainError::TooLarge(_)) => return Ok(Some((Way::Walked, None))),
            Err(error) => return Err(error),
        };
        let function = match first.stack.levels.last().map(Level::function) {
            Some(Runs::Native(name) | Runs::Code { function: name, .. }) => name.clone(),
            Some(Runs::Pipe(_)) | None => String::new(),
        };
        let kind = Kind {
            method: Arc::clone(first.method.name()),
            function,
            size,
        };
        Ok(Some((home.1.pick(&kind), Some(kind))))
    }

    /// It is walked by its home, if it has one: because it was lost by this, or from the beginning.
    fn walk<T: Send + 'static, C: Codec<T>>(
        &self,
        again: Option<(DurableId, Instant)>,
        lost: Option<CallError>,
    ) -> Now<T> {
        let Some(home) = self.how.home.clone() else {
            return Now::Over;
        };
        let First {
            server,
            method,
            payload,
            mut stack,
        } = self.first.clone();
        stack.marked = false;
        let first = (DelegatedRequest::new(server, method, payload), stack);
        let walk = Walk::<T, C>::new(home, self.caller.clone(), first, again);
        let (told, events) = mpsc::channel(16);
        let task = tokio::spawn(tell(walk, told, lost)).abort_handle();
        Now::Walks(Walking { events, task })
    }

    /// The same after it was lost: with as many servers to avoid as there is room for.
    fn call_again(&mut self) -> Result<RawCall, ChainError> {
        loop {
            match self.call() {
                Err(ChainError::TooLarge(_)) if self.first.stack.tail.avoid.pop().is_some() => {}
                call => return call,
            }
        }
    }

    fn left(&self) -> Duration {
        self.until.saturating_duration_since(Instant::now())
    }

    /// The name under which servers know it, if it may be made again.
    fn recorded(&self) -> Option<DurableId> {
        (self.how.retries > 0).then_some(self.durable)
    }

    /// Whether a step of an attempt before has said the same.
    fn has_heard(&self, chain: &str, hop: u32) -> bool {
        self.heard.contains(&self.step(chain, hop))
    }

    /// The same, and from now on it has.
    fn hears_again(&mut self, chain: &str, hop: u32) -> bool {
        let known = self.has_heard(chain, hop);
        if self.how.retries > 0 && self.heard.len() < MOST_HEARD {
            self.heard.insert(self.step(chain, hop));
        }
        known
    }

    /// Which step it is, whatever the number of the call.
    fn step(&self, chain: &str, hop: u32) -> u64 {
        let (_, branch) = chain.split_once('.').unwrap_or_default();
        self.hasher.hash_one((branch, hop))
    }
}

impl<T: Send + 'static, C: Codec<T>> Running<T, C> {
    pub(crate) fn begin(mut first: First, caller: Caller, how: Run) -> Result<Self, ChainError> {
        first.stack.tail.asked = how.asked;
        // Nobody can guess it, so nobody else can ask servers for what the links have come to. People read the second number.
        let drawn = || DurableId::new(number(), number() >> 32);
        let start = Box::new(Start {
            durable: caller.durable_id().unwrap_or_else(drawn),
            until: Instant::now() + caller.time().min(Duration::from_secs(365 * 86_400)),
            first,
            caller,
            how,
            heard: HashSet::new(),
            hasher: RandomState::new(),
        });
        let way = start.way()?;
        let now = match &way {
            Some((Way::Walked, _)) => start.walk::<T, C>(None, None),
            _ => Now::Runs(start.call()?),
        };
        let way = way.and_then(|(way, kind)| Some((kind?, way, Instant::now())));
        Ok(Self {
            start,
            now,
            heard: VecDeque::new(),
            ended: false,
            way,
            attempts: 1,
            broken: None,
            codec: PhantomData,
        })
    }

    /// Waits for what comes next; `None` when the chain is over and all has come. What the chain has said before it was lost is
    /// not said again when it is made again.
    ///
    /// # Errors
    ///
    /// As of the chain's call: the exception that nobody has caught, as a status, or why the call failed; of a chain that was made
    /// several times the last one.
    pub async fn next(&mut self) -> Option<Result<ChainEvent<T>, CallError>> {
        loop {
            // Of a message that came before it was over.
            if let Some(event) = self.heard.pop_front() {
                return Some(Ok(event));
            }
            let error = match &mut self.now {
                Now::Over => return None,
                Now::Waits { until, lost } => {
                    sleep(until.saturating_duration_since(Instant::now())).await;
                    match self.start.call_again() {
                        Ok(call) => {
                            self.attempts += 1;
                            self.now = Now::Runs(call);
                        }
                        Err(_) => {
                            let lost = lost.clone();
                            self.now = Now::Over;
                            return Some(Err(lost));
                        }
                    }
                    continue;
                }
                Now::Runs(call) => match call.next().await {
                    None => {
                        self.now = Now::Over;
                        continue;
                    }
                    Some(Ok(answer)) => match self.read(answer.payload) {
                        Ok(()) => continue,
                        Err(error) => {
                            let now = std::mem::replace(&mut self.now, Now::Over);
                            return Some(Err(match now {
                                Now::Runs(call) => call.unreadable(answer.request, error),
                                _ => CallError::unreadable(answer.request, error),
                            }));
                        }
                    },
                    Some(Err(error)) => error,
                },
                Now::Walks(walking) => match walking.events.recv().await {
                    Some(Ok(event)) => {
                        let (start, asked) = (&self.start, self.start.how.asked);
                        let is_for_nobody = match &event {
                            ChainEvent::Line(line) => {
                                !asked.lines || start.has_heard(&line.chain, line.hop)
                            }
                            ChainEvent::Told(told) => {
                                !asked.told || start.has_heard(&told.chain, told.hop)
                            }
                            ChainEvent::End(_) => {
                                self.note_time();
                                false
                            }
                        };
                        if is_for_nobody {
                            continue;
                        }
                        return Some(Ok(event));
                    }
                    Some(Err(Broken { error, link })) => {
                        self.broken = link;
                        self.now = Now::Over;
                        return Some(Err(error));
                    }
                    None => {
                        self.now = Now::Over;
                        continue;
                    }
                },
            };
            if self.ended {
                self.now = Now::Over; // what is missing was said before the end
                return None;
            }
            if !self.makes_again(&error) {
                return Some(Err(error));
            }
        }
    }

    /// Takes what a message brings.
    fn read(&mut self, payload: Bytes) -> Result<(), CodecError> {
        let (asked, most) = (self.start.how.asked, self.start.how.most_said);
        let Some(message) = Message::read(&payload, asked, most.unwrap_or(MOST_SAID)) else {
            let end = Chained::<C>::decode(payload)?;
            if self.ended {
                return Err(CodecError::new("chain", "it has ended before"));
            }
            self.ended = true;
            self.note_time();
            self.heard.push_back(ChainEvent::End(end));
            return Ok(());
        };
        let message = message.map_err(|error| CodecError::new("chain", error))?;
        if !self.start.hears_again(&message.chain, message.hop) {
            self.heard.extend(events(message));
        }
        Ok(())
    }

    /// Whether the chain goes on though it was lost by this.
    fn makes_again(&mut self, error: &CallError) -> bool {
        let start = &mut self.start;
        if start.how.retries == 0 || !is_lost(error) || start.left().is_zero() {
            return false;
        }
        let avoid = &mut start.first.stack.tail.avoid;
        if let Some(server) = error.server()
            && !avoid.contains(server)
        {
            avoid.truncate(MOST_AVOIDED - 1);
            avoid.insert(0, server.clone());
        }
        if self.attempts <= start.how.retries {
            let pause = PAUSE.0 * 2u32.saturating_pow(self.attempts - 1);
            let until = Instant::now() + pause.min(PAUSE.1).min(start.left());
            let lost = error.clone();
            self.now = Now::Waits { until, lost };
            return true;
        }
        if start.how.home.is_none() {
            return false;
        }
        let again = Some((start.durable, start.until));
        self.now = start.walk::<T, C>(again, Some(error.clone()));
        true
    }

    /// It has come to its end.
    fn note_time(&mut self) {
        if let (Some((kind, way, begun)), Some(home)) = (self.way.take(), &self.start.how.home) {
            home.1.note(&kind, way, begun.elapsed());
        }
    }

    /// Waits for what the chain comes to. What else it says is not looked at.
    ///
    /// # Errors
    ///
    /// As [`next`](Self::next).
    pub async fn answer(&mut self) -> Result<T, CallError> {
        loop {
            match self.next().await {
                Some(Ok(ChainEvent::End(end))) => return Ok(end),
                Some(Ok(ChainEvent::Line(_) | ChainEvent::Told(_))) => {}
                Some(Err(error)) => return Err(error),
                None => return Err(Failure::NoAnswer.into()),
            }
        }
    }

    /// How many times the chain was made; that it is walked at last does not count.
    pub fn attempts(&self) -> u32 {
        self.attempts
    }

    /// The link that breaks the chain, if it was walked at last ([`Run::home`]) and one does.
    pub fn broken(&self) -> Option<&BrokenLink> {
        self.broken.as_ref()
    }

    /// The tree of hops of the latest call, as far as it is known now; `None` where there is none.
    pub fn trace(&self) -> Option<Trace> {
        match &self.now {
            Now::Runs(call) => Some(call.trace()),
            _ => None,
        }
    }
}

/// Whether a chain has ended by this without coming to its end, in a way that it may not come to again.
fn is_lost(error: &CallError) -> bool {
    match error {
        CallError::Failed(Failure::Lost(_)) => true,
        // These come again.
        CallError::Failed(Failure::NotSent { error, .. }) => !matches!(
            error,
            ConnectError::NoTransport { .. }
                | ConnectError::Forbidden { .. }
                | ConnectError::Rejected { .. }
        ),
        CallError::Status(status) => is_broken(status),
        _ => false,
    }
}

/// Walks a chain that was perhaps lost by this, and tells of it.
async fn tell<T, C: Codec<T>>(
    mut walk: Walk<T, C>,
    told: mpsc::Sender<Result<ChainEvent<T>, Broken>>,
    lost: Option<CallError>,
) {
    while let Some(events) = walk.step().await {
        let events = match events {
            Ok(events) => events,
            Err(error) => {
                let (error, link) = match lost {
                    Some(lost) if walk.is_unable() => (lost, None),
                    _ => (error, walk.broken()),
                };
                let _gone = told.send(Err(Broken { error, link })).await;
                return;
            }
        };
        for event in events {
            if told.send(Ok(event)).await.is_err() {
                return;
            }
        }
    }
}

pub(crate) fn events<T>(mut message: Message) -> impl Iterator<Item = ChainEvent<T>> {
    let (chain, host, hop) = (
        Arc::<str>::from(&*message.chain),
        message.host.clone(),
        message.hop,
    );
    let lines = std::mem::take(&mut message.lines)
        .into_iter()
        .map(move |text| {
            ChainEvent::Line(Line {
                chain: chain.clone(),
                host: host.clone(),
                hop,
                text,
            })
        });
    lines.chain(message.told().map(ChainEvent::Told))
}

impl<T, C> fmt::Debug for Running<T, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let call = match &self.now {
            Now::Runs(call) => Some(call),
            _ => None,
        };
        f.debug_struct("Running")
            .field("call", &call)
            .field("attempts", &self.attempts)
            .finish_non_exhaustive()
    }
}
