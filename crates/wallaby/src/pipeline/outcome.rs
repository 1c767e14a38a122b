//! What comes back of a message that went down a line, and what became of it at each server.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::future::poll_fn;
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_core::Stream;
use wallaby_proto::{Address, CallId, Path};

use super::line::{ServerPaths, ServerState};
use crate::blocking;
use crate::call::{Outcome, RawAnswer, RawCall};
use crate::codec::{Codec, Postcard};
use crate::error::{CallError, Failure};
use crate::method::{Answers, One};
use crate::multicast::{self, Delivery, QuorumError};
use wallaby_proto::trace::Trace;

/// What became of a message at one server of a line: only what is known for certain.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum TargetOutcome {
    /// It is under way.
    Pending,
    /// The server has it: its handler has answered. It tells by its answer what it has done with a body.
    Answered,
    /// The server reports a status, or an answer that cannot be read. It may have some of the message or all of it.
    Failed(CallError),
    /// Nothing of it was sent to the server.
    NotDelivered(Failure),
    /// Nobody knows: it was, or may have been, sent to the server, and nothing has come back.
    Unknown(Failure),
}

/// A message on its way down a line of servers; made by [`crate::Caller::pipeline`].
///
/// A stream of what the servers answer, in the order in which it arrives. It ends when all that is to come has come. Each
/// server that gives no answer, or not all, has an error delivered in its place: its own status, or why nothing is known of
/// it or nothing has reached it. Dropping it aborts the call, all down the line.
#[must_use = "a multicast that is dropped is aborted"]
pub struct Pipeline<A: Answers, C = Postcard> {
    call: RawCall,
    /// In the order in which they stand in the line, and so their states.
    servers: Vec<Address>,
    states: Vec<TargetState>,
    places: ServerPaths,
    /// All servers from this place in the line on were cut off.
    cut: usize,
    /// Answers of which it is not known yet whose they are, by the place of which it is to become known.
    unplaced: HashMap<Path, Vec<Result<RawAnswer, CallError>>>,
    ready: VecDeque<Delivery<A::Item>>,
    ended: bool,
    types: PhantomData<fn() -> (A, C)>,
}

/// A server of the line.
struct TargetState {
    outcome: TargetOutcome,
    /// The first error among its answers, where it may give several.
    error: Option<CallError>,
}

impl<A: Answers, C: Codec<A::Item>> Pipeline<A, C> {
    /// A message on its way to these servers, by a call that goes to them in this order.
    pub(super) fn new(call: RawCall, servers: Vec<Address>) -> Self {
        let stage = |_: &Address| TargetState {
            outcome: TargetOutcome::Pending,
            error: None,
        };
        let mut pipeline = Self {
            places: ServerPaths::new(call.shared(), servers.len()),
            states: servers.iter().map(stage).collect(),
            cut: servers.len(),
            call,
            servers,
            unplaced: HashMap::new(),
            ready: VecDeque::new(),
            ended: false,
            types: PhantomData,
        };
        // What cannot even begin is known at once.
        if let Some(Outcome::Failed(failure)) = pipeline.call.outcome()
            && !pipeline.call.shared().was_sent()
        {
            pipeline.end(Some(failure));
        }
        pipeline
    }

    /// How many servers there are.
    pub fn targets(&self) -> usize {
        self.servers.len()
    }

    /// The call's id.
    pub fn id(&self) -> CallId {
        self.call.id()
    }

    /// Waits for what is delivered next; `None` when all that is to come has come.
    pub async fn next(&mut self) -> Option<Delivery<A::Item>> {
        poll_fn(|cx| self.poll_delivery(cx)).await
    }

    /// [`next`](Self::next) for code that is not async.
    ///
    /// # Errors
    ///
    /// On a thread of an async runtime, which it would stop.
    pub fn blocking_next(&mut self) -> Result<Option<Delivery<A::Item>>, Failure> {
        blocking::wait(self.next()).map_err(|_| Failure::WouldBlock)
    }

    /// What became of the message at each server, in the order in which they were given, as far as it was delivered by
    /// [`next`](Self::next): all of it is once that has returned `None`.
    pub fn outcomes(&self) -> Vec<TargetOutcome> {
        let outcomes = self.states.iter().map(|stage| stage.outcome.clone());
        outcomes.collect()
    }

    /// How the call as a whole ended; `None` while it goes on.
    pub fn outcome(&self) -> Option<Outcome> {
        self.call.outcome()
    }

    /// The tree of hops, as far as it is known now: the line, and what its handlers delegated.
    pub fn trace(&self) -> Trace {
        self.call.trace()
    }

    fn poll_delivery(&mut self, cx: &mut Context<'_>) -> Poll<Option<Delivery<A::Item>>> {
        loop {
            if let Some(delivery) = self.ready.pop_front() {
                return Poll::Ready(Some(delivery));
            }
            if self.ended {
                return Poll::Ready(None);
            }
            if self.place_more() {
                continue;
            }
            match self.call.poll_answer(cx) {
                // It may have become known since, when nobody was there to be told.
                Poll::Pending if self.place_more() => {}
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Some(Err(CallError::Failed(failure)))) => self.end(Some(failure)),
                Poll::Ready(Some(answer)) => self.take(answer),
                Poll::Ready(None) => self.end(None),
            }
        }
    }

    /// An answer, or an error in its place, has come from somewhere in the tree.
    fn take(&mut self, answer: Result<RawAnswer, CallError>) {
        let path = match &answer {
            Ok(answer) => Some(answer.request.path),
            Err(error) => error.request().map(|request| request.path),
        };
        let Some(path) = path else {
            return; // what arrives says whence
        };
        let places = &mut self.places;
        let placed = self.call.shared().look_at_tree(|tree| {
            let placed = places.above(&path, tree);
            placed.inspect_err(|_| tree.note_adopted(true))
        });
        match placed.unwrap_or(Err(path)) {
            Ok(position) => self.deliver(position, &path, answer),
            Err(place) => self.unplaced.entry(place).or_default().push(answer),
        }
    }

    /// Answers of which it has become known meanwhile whose they are; whether there may be any.
    fn place_more(&mut self) -> bool {
        if self.unplaced.is_empty() {
            return false;
        }
        let call = self.call.shared();
        let adopted = call.look_at_tree(|tree| tree.take_adopted());
        let adopted = adopted.unwrap_or_default();
        for place in &adopted {
            let answers = self.unplaced.remove(place).into_iter().flatten();
            answers.for_each(|answer| self.take(answer));
        }
        if self.unplaced.is_empty() {
            self.call
                .shared()
                .look_at_tree(|tree| tree.note_adopted(false));
        }
        !adopted.is_empty()
    }

    fn deliver(&mut self, position: usize, path: &Path, answer: Result<RawAnswer, CallError>) {
        // A server that owes one answer has given it.
        if self.states[position].outcome != TargetOutcome::Pending {
            return;
        }
        if let Err(CallError::Status(status)) = &answer
            && status.loss().is_some()
        {
            return; // how it ended with that server is known at the end
        }
        if let Err(CallError::Status(status)) = &answer
            && self
                .places
                .is_undelivered(position, path, self.call.shared())
        {
            return self.cut_off(position, status.message());
        }
        let answer = answer.and_then(|answer| {
            let request = answer.request;
            C::decode(answer.payload).map_err(|error| self.call.shared().unreadable(request, error))
        });
        let stage = &mut self.states[position];
        match &answer {
            Ok(_) if A::ONE => stage.outcome = TargetOutcome::Answered,
            Err(error) if A::ONE => stage.outcome = TargetOutcome::Failed(error.clone()),
            Err(error) => _ = stage.error.get_or_insert_with(|| error.clone()),
            Ok(_) => {}
        }
        self.push(position, answer);
    }

    /// Nothing was sent to this server, and so to none behind it.
    fn cut_off(&mut self, position: usize, why: &str) {
        let server = self.servers[position].clone();
        for behind in position..self.cut {
            let reason = match behind == position {
                true => why.to_owned(),
                false => format!("it stands behind {server}, which was not reached: {why}"),
            };
            let server = self.servers[behind].clone();
            self.settle(
                behind,
                TargetOutcome::NotDelivered(Failure::NotPassedOn { server, reason }),
            );
        }
        self.cut = self.cut.min(position);
    }

    /// How it ended with a server; it is told unless its own answer says so.
    fn settle(&mut self, position: usize, outcome: TargetOutcome) {
        let stage = &mut self.states[position];
        if stage.outcome != TargetOutcome::Pending {
            return;
        }
        let error = match &outcome {
            TargetOutcome::NotDelivered(failure) | TargetOutcome::Unknown(failure) => {
                Some(failure.clone())
            }
            TargetOutcome::Failed(CallError::Failed(failure)) => Some(failure.clone()),
            _ => None,
        };
        stage.outcome = outcome;
        if let Some(failure) = error {
            self.push(position, Err(failure.into()));
        }
    }

    fn push(&mut self, position: usize, answer: Result<A::Item, CallError>) {
        self.ready.push_back(Delivery {
            target: position,
            server: self.servers[position].clone(),
            answer,
        });
    }

    /// The call has ended: what is known of each server now is all that will be.
    fn end(&mut self, failure: Option<Failure>) {
        for answer in std::mem::take(&mut self.unplaced).into_values().flatten() {
            self.take(answer);
        }
        // What has no place now will never have one: its server's outcome is not known then.
        self.unplaced = HashMap::new();
        let told = self.places.told(self.call.shared());
        let sent = self.call.shared().was_sent();
        let mut losses = self.losses();
        for (position, told) in told.into_iter().enumerate() {
            let outcome = match (&failure, told) {
                (Some(failure), _) if !sent => TargetOutcome::NotDelivered(failure.clone()),
                (_, ServerState::Undelivered) => {
                    self.cut_off(position, "who was to send it says so");
                    continue;
                }
                (_, ServerState::Whole) => self.whole(position),
                (_, ServerState::Open) => {
                    let known = losses[position].take().or_else(|| failure.clone());
                    TargetOutcome::Unknown(known.unwrap_or(Failure::NoAnswer))
                }
            };
            self.settle(position, outcome);
            self.note_kept(position);
        }
        self.ended = true;
    }

    /// What is lost of each server's part of the tree.
    fn losses(&mut self) -> Vec<Option<Failure>> {
        let call = self.call.shared();
        let (all, places) = (call.losses(), &mut self.places);
        let mut losses = vec![None; self.states.len()];
        call.look_at_tree(|tree| {
            for loss in all {
                if let Ok(position) = places.above(&loss.request.path, tree) {
                    losses[position]
                        .get_or_insert_with(|| Failure::Lost(Box::new((*loss).clone())));
                }
            }
        });
        losses
    }

    /// The outcome of a server of which nothing is missing.
    fn whole(&self, position: usize) -> TargetOutcome {
        match &self.states[position].error {
            Some(error) => TargetOutcome::Failed(error.clone()),
            None if A::ONE => TargetOutcome::Failed(Failure::NoAnswer.into()),
            None => TargetOutcome::Answered,
        }
    }

    /// A server that has ended without a delegation has passed nothing on.
    fn note_kept(&mut self, position: usize) {
        let next = position + 1;
        if next < self.states.len() && self.places.has_kept(position, self.call.shared()) {
            let why = match &self.states[position].outcome {
                TargetOutcome::Failed(error) => error.to_string(),
                _ => "its request ended before".into(),
            };
            let why = format!("{} did not pass it on: {why}", self.servers[position]);
            self.cut_off(next, &why);
        }
    }
}

impl<T: Send + 'static, C: Codec<T>> Pipeline<One<T>, C> {
    /// Waits for all servers; what each delivered, in the order in which they were given.
    pub async fn all(mut self) -> Vec<Result<T, CallError>> {
        let mut answers: Vec<_> = self.servers.iter().map(|_| None).collect();
        while let Some(delivery) = self.next().await {
            answers[delivery.target] = Some(delivery.answer);
        }
        let missing = || Err(Failure::NoAnswer.into());
        answers
            .into_iter()
            .map(|answer| answer.unwrap_or_else(missing))
            .collect()
    }

    /// Waits for so many answers, and aborts what is still under way then, all down the line. Each comes with the number of
    /// its server, the first to arrive first.
    ///
    /// # Errors
    ///
    /// As soon as so many servers have failed, or given a status, that there can't be enough answers any more. The others
    /// are aborted then, too; some of them may have done what they were asked for.
    pub async fn quorum(mut self, needed: usize) -> Result<Vec<(usize, T)>, QuorumError> {
        let targets = self.targets();
        multicast::quorum(&mut self, targets, needed).await
    }

    /// Waits for the first answer, and aborts the rest: a quorum of one.
    ///
    /// # Errors
    ///
    /// If no server answers.
    pub async fn first(self) -> Result<(usize, T), QuorumError> {
        let targets = self.targets();
        multicast::first_answer(self.quorum(1).await?, targets)
    }
}

impl<A: Answers, C: Codec<A::Item>> Stream for Pipeline<A, C>
where
    Self: Unpin,
{
    type Item = Delivery<A::Item>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll_delivery(cx)
    }
}

/// Nothing in it is pinned.
impl<A: Answers, C> Unpin for Pipeline<A, C> {}

impl<A: Answers, C> fmt::Debug for Pipeline<A, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Pipeline({:?}, {} servers)",
            self.call,
            self.servers.len()
        )
    }
}
