//! Answers passed on towards initiators that cannot be dialled, in the order in which they came.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::task::AbortHandle;
use wallaby_proto::connection::Refusal;
use wallaby_proto::wire::Response;
use wallaby_proto::{CallId, Token};

use crate::driver::peer::{Peer, Refused};
use crate::endpoint::Inner;
use crate::handling::make_too_large;

/// Answers that wait for credit, by call. What waits here was not credited itself, so the server before sends no more
/// than the call's window.
#[derive(Debug, Default)]
pub(crate) struct Relay {
    waiting: Mutex<HashMap<CallId, Queue>>,
}

/// Answers of one call, and the task that sends them.
#[derive(Debug)]
struct Queue {
    answers: VecDeque<Passing>,
    /// Shown by the first of them.
    token: Option<Token>,
    task: AbortHandle,
}

/// An answer on its way from one connection to another.
#[derive(Debug)]
pub(crate) struct Passing {
    from: Arc<Peer>,
    next: Arc<Peer>,
    response: Response,
    /// Its payload when it came, in bytes: what is credited.
    size: u64,
}

impl Passing {
    pub(crate) fn new(from: &Arc<Peer>, next: Arc<Peer>, response: Response) -> Self {
        let size = response.payload.len() as u64;
        Self {
            from: Arc::clone(from),
            next,
            response,
            size,
        }
    }
}

impl Relay {
    /// Passes an answer on: at once if nothing of its call waits, else behind that.
    pub(crate) fn pass(&self, endpoint: &Arc<Inner>, mut passing: Passing) {
        let call = passing.response.call;
        if let Some(queue) = self.lock().get_mut(&call) {
            queue.answers.push_back(passing);
            return;
        }
        if attempt(endpoint, &mut passing) {
            return;
        }
        match self.lock().entry(call) {
            Entry::Occupied(mut queue) => queue.get_mut().answers.push_back(passing),
            Entry::Vacant(place) => {
                let draining = Arc::clone(endpoint);
                let drain = async move { draining.relay.drain(&draining, call).await };
                let task = endpoint.runtime.spawn(drain).abort_handle();
                let token = passing.response.token;
                let answers = VecDeque::from([passing]);
                place.insert(Queue {
                    answers,
                    token,
                    task,
                });
            }
        }
    }

    /// The call is over, says somebody who shows this token: nobody takes what waits for it.
    pub(crate) fn forget(&self, call: CallId, token: Token) {
        let mut waiting = self.lock();
        if let Entry::Occupied(queue) = waiting.entry(call)
            && queue.get().token == Some(token)
        {
            queue.remove().task.abort();
        }
    }

    async fn drain(&self, endpoint: &Arc<Inner>, call: CallId) {
        while let Some(mut passing) = self.first(call) {
            loop {
                let next = Arc::clone(&passing.next);
                let room = next.room();
                if attempt(endpoint, &mut passing) {
                    break;
                }
                room.await;
            }
        }
    }

    /// The answer to send next; if there is none, the queue is gone.
    fn first(&self, call: CallId) -> Option<Passing> {
        let mut waiting = self.lock();
        let first = waiting.get_mut(&call)?.answers.pop_front();
        if first.is_none() {
            waiting.remove(&call);
        }
        first
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<CallId, Queue>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Sends an answer; `false` if it has to wait.
fn attempt(endpoint: &Inner, passing: &mut Passing) -> bool {
    let call = passing.response.call;
    loop {
        match passing.next.try_response(&passing.response, true, 0, None) {
            Ok(_) => {
                passing.from.grant_call(call, 1, passing.size);
                return true;
            }
            Err(Refused::Now(Refusal::TooLarge { size, limit })) if !passing.response.status => {
                make_too_large(&mut passing.response, size, limit, None);
            }
            Err(Refused::Now(Refusal::Blocked)) => return false,
            Err(refused) => {
                endpoint.meters.undeliverable.add();
                tracing::warn!(%call, ?refused, "an answer cannot be passed on");
                return true;
            }
        }
    }
}
