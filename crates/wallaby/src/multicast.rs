//! One message to many servers side by side, and what became of it at each (FlexRPC III-D, parallel).
//!
//! Each server gets a call of its own that shares the encoded arguments and the options with the others: so a server that
//! fails, fails alone, and what is no longer needed can be aborted without the rest.

use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use futures_core::Stream;
use thiserror::Error;
use wallaby_proto::{Address, Code};

use crate::blocking;
use crate::call::{Call, Outcome};
use crate::codec::{Codec, Postcard};
use crate::error::{CallError, Failure};
use crate::method::{Answers, One};
use wallaby_proto::trace::Trace;

/// Calls of one method with the same arguments at many servers; made by [`crate::Caller::multicast`].
///
/// A stream of what the servers answer, in the order in which it arrives. It ends when all of their calls have. Dropping it
/// aborts those that have not.
#[must_use = "a multicast that is dropped is aborted"]
pub struct Multicast<A, C = Postcard> {
    targets: Vec<Target<A, C>>,
    /// How many of them may deliver more.
    open: usize,
    ready: Arc<Ready>,
}

/// What one server of a multicast delivered.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Delivery<T> {
    /// Which of the servers, counted from 0 as they were given.
    pub target: usize,
    /// Its address.
    pub server: Address,
    /// Its answer, a status, or why its call failed; a failure is the last that is delivered of it.
    pub answer: Result<T, CallError>,
}

/// Fewer servers answered than were needed.
#[derive(Clone, PartialEq, Error)]
#[error("{needed} answers were needed, but only {} servers of {targets} can give one{}", .targets - .failed.len(), first_of(.failed))]
#[non_exhaustive]
pub struct QuorumError {
    /// How many answers were needed.
    pub needed: usize,
    /// How many servers were asked.
    pub targets: usize,
    /// Servers that answered, counted from 0 as they were given, until it was clear that too few would.
    pub answered: Vec<usize>,
    /// Servers that did not, and why.
    pub failed: Vec<(Address, CallError)>,
}

impl QuorumError {
    /// What kind of error it is: that of the first server that failed; [`Code::FailedPrecondition`] if more answers were needed
    /// than servers were asked.
    pub fn code(&self) -> Code {
        let first = self.failed.first();
        first.map_or(Code::FailedPrecondition, |(_, error)| error.code())
    }
}

fn first_of(failed: &[(Address, CallError)]) -> String {
    match failed {
        [] => String::new(),
        [(server, error), ..] => format!("; the first that failed, {server}: {error}"),
    }
}

struct Target<A, C> {
    server: Address,
    call: Call<A, C>,
    /// It delivers nothing more.
    done: bool,
    waker: Arc<TargetWaker>,
}

/// The targets whose calls have something to say.
struct Ready {
    state: Mutex<ReadyState>,
}

struct ReadyState {
    targets: VecDeque<usize>,
    /// Who waits for one.
    waker: Option<Waker>,
}

/// Wakes whoever waits for the multicast, and tells him which target it is: so nobody looks at all of them.
struct TargetWaker {
    ready: Arc<Ready>,
    target: usize,
    queued: AtomicBool,
}

impl Ready {
    fn lock(&self) -> MutexGuard<'_, ReadyState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Wake for TargetWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.queued.swap(true, Ordering::AcqRel) {
            return;
        }
        let mut ready = self.ready.lock();
        ready.targets.push_back(self.target);
        let waker = ready.waker.take();
        drop(ready);
        waker.into_iter().for_each(Waker::wake);
    }
}

impl<A: Answers, C: Codec<A::Item>> Multicast<A, C> {
    pub(crate) fn new(calls: impl Iterator<Item = (Address, Call<A, C>)>) -> Self {
        let state = ReadyState {
            targets: VecDeque::new(),
            waker: None,
        };
        let ready = Arc::new(Ready {
            state: Mutex::new(state),
        });
        let target = |(target, (server, call))| Target {
            server,
            call,
            done: false,
            waker: Arc::new(TargetWaker {
                ready: Arc::clone(&ready),
                target,
                queued: AtomicBool::new(true),
            }),
        };
        let targets: Vec<_> = calls.enumerate().map(target).collect();
        ready.lock().targets.extend(0..targets.len());
        Self {
            open: targets.len(),
            targets,
            ready,
        }
    }

    /// How many servers there are.
    pub fn targets(&self) -> usize {
        self.targets.len()
    }

    /// Waits for what is delivered next; `None` when the calls at all servers have ended.
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

    /// How the call at a server ended; `None` while it goes on, and for a number that no server has.
    pub fn outcome(&self, target: usize) -> Option<Outcome> {
        self.targets.get(target)?.call.outcome()
    }

    /// The tree of hops of the call at a server, as far as it is known now; `None` for a number that no server has.
    pub fn trace(&self, target: usize) -> Option<Trace> {
        Some(self.targets.get(target)?.call.trace())
    }

    fn poll_delivery(&mut self, cx: &mut Context<'_>) -> Poll<Option<Delivery<A::Item>>> {
        while self.open > 0 {
            let Some(index) = self.next_ready(cx) else {
                return Poll::Pending;
            };
            let target = &mut self.targets[index];
            target.waker.queued.store(false, Ordering::Release);
            if target.done {
                continue;
            }
            let waker = Waker::from(Arc::clone(&target.waker));
            let next = Pin::new(&mut target.call).poll_next(&mut Context::from_waker(&waker));
            match next {
                Poll::Pending => continue,
                Poll::Ready(Some(answer)) => {
                    // Behind the others that have something.
                    target.waker.wake_by_ref();
                    if A::ONE {
                        self.finish(index);
                    }
                    let server = self.targets[index].server.clone();
                    return Poll::Ready(Some(Delivery {
                        target: index,
                        server,
                        answer,
                    }));
                }
                Poll::Ready(None) => self.finish(index),
            }
        }
        Poll::Ready(None)
    }

    fn next_ready(&self, cx: &mut Context<'_>) -> Option<usize> {
        let mut ready = self.ready.lock();
        let next = ready.targets.pop_front();
        if next.is_none() {
            ready.waker = Some(cx.waker().clone());
        }
        next
    }

    fn finish(&mut self, target: usize) {
        self.targets[target].done = true;
        self.open -= 1;
    }
}

impl<T: Send + 'static, C: Codec<T>> Multicast<One<T>, C> {
    /// Waits for all servers; what each delivered, in the order in which they were given.
    pub async fn all(mut self) -> Vec<Result<T, CallError>> {
        let mut answers: Vec<_> = self.targets.iter().map(|_| None).collect();
        while let Some(delivery) = self.next().await {
            answers[delivery.target] = Some(delivery.answer);
        }
        let missing = || Err(Failure::NoAnswer.into());
        answers
            .into_iter()
            .map(|answer| answer.unwrap_or_else(missing))
            .collect()
    }

    /// Waits for so many answers, and aborts what is still under way then. Each comes with the number of its server, the
    /// first to arrive first.
    ///
    /// # Errors
    ///
    /// As soon as so many servers have failed, or given a status, that there can't be enough answers any more. The others
    /// are aborted then, too; some of them may have done what they were asked for.
    pub async fn quorum(mut self, needed: usize) -> Result<Vec<(usize, T)>, QuorumError> {
        let targets = self.targets.len();
        quorum(&mut self, targets, needed).await
    }

    /// Waits for the first answer, and aborts the rest: a quorum of one.
    ///
    /// # Errors
    ///
    /// If no server answers.
    pub async fn first(self) -> Result<(usize, T), QuorumError> {
        let targets = self.targets.len();
        first_answer(self.quorum(1).await?, targets)
    }
}

/// Waits until so many have answered, or too few can.
pub(crate) async fn quorum<T>(
    deliveries: &mut (impl Stream<Item = Delivery<T>> + Unpin),
    targets: usize,
    needed: usize,
) -> Result<Vec<(usize, T)>, QuorumError> {
    let mut answers = Vec::new();
    let mut failed = Vec::new();
    while answers.len() < needed && targets - failed.len() >= needed {
        let next = poll_fn(|cx| Pin::new(&mut *deliveries).poll_next(cx)).await;
        match next {
            Some(Delivery {
                target,
                answer: Ok(answer),
                ..
            }) => answers.push((target, answer)),
            Some(Delivery {
                server,
                answer: Err(error),
                ..
            }) => failed.push((server, error)),
            None => break,
        }
    }
    if answers.len() >= needed {
        return Ok(answers);
    }
    let answered = answers.into_iter().map(|(target, _)| target).collect();
    Err(QuorumError {
        needed,
        targets,
        answered,
        failed,
    })
}

/// The answer of a quorum of one.
pub(crate) fn first_answer<T>(
    answers: Vec<(usize, T)>,
    targets: usize,
) -> Result<(usize, T), QuorumError> {
    answers.into_iter().next().ok_or(QuorumError {
        needed: 1,
        targets,
        answered: Vec::new(),
        failed: Vec::new(),
    })
}

impl<A: Answers, C: Codec<A::Item>> Stream for Multicast<A, C> {
    type Item = Delivery<A::Item>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll_delivery(cx)
    }
}

impl<A, C> fmt::Debug for Multicast<A, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Multicast({} servers, {} open)",
            self.targets.len(),
            self.open
        )
    }
}

wallaby_proto::debug_as_text!(QuorumError);
