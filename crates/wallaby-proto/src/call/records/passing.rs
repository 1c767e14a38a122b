//! Responses of other servers that are passed on towards initiators that cannot be dialled.
//!
//! Their server has written them out, so nobody but who passes them on can tell the initiator that a large one is still
//! on its way, and not lost.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::call::records::outputs::is_written;
use crate::call::records::table::CallKey;
use crate::call::records::time::Nanoseconds;
use crate::call::records::{Action, Output, Records, Session};
use crate::id::{CallId, RequestId, Token};
use crate::wire::{Pong, ReplyTo, Response};

/// Names a response that is passed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Passage {
    call: CallId,
    number: u64,
}

/// All responses that are passed on and could not be written at once.
#[derive(Debug, Default)]
pub(super) struct Passages {
    open: BTreeMap<Passage, Passing>,
    queue: BTreeSet<(Nanoseconds, Passage)>,
    next: u64,
}

#[derive(Debug)]
struct Passing {
    token: Token,
    request: RequestId,
    /// The session that announcements name.
    session: Session,
    /// Its place in a session's output, once it has one.
    output: Option<Output>,
    due: Nanoseconds,
    period: Nanoseconds,
}

impl Passages {
    pub(super) fn next_due(&self) -> Option<Nanoseconds> {
        self.queue.first().map(|first| first.0)
    }

    pub(super) fn len(&self) -> usize {
        self.open.len()
    }

    fn remove(&mut self, passage: Passage) {
        if let Some(passing) = self.open.remove(&passage) {
            self.queue.remove(&(passing.due, passage));
        }
    }

    /// The call is over: nobody wants to know any more.
    pub(super) fn forget(&mut self, key: CallKey) {
        let call = key.call;
        let passage = |number| Passage { call, number };
        let open = self.open.range(passage(0)..=passage(u64::MAX));
        let of_call = open.filter(|(_, passing)| passing.token == key.token);
        let of_call: Vec<Passage> = of_call.map(|(passage, _)| *passage).collect();
        of_call.into_iter().for_each(|passage| self.remove(passage));
    }
}

impl Records {
    /// A response of another server goes on towards its initiator, but waits or goes in parts: until it has been written
    /// out the initiator is told each ping period that it is on its way. [`Action::Announce`] names `session`: the one
    /// that it goes on by, as far as the driver knows, else the one that it came on.
    ///
    /// [`Self::passed_on`] must follow, unless the call is aborted. `None` if there are too many
    /// ([`super::RecordLimits::passing`]), or if the response shows no token: then the initiator is not told.
    pub fn passing(
        &mut self,
        response: &Response,
        session: Session,
        now: Duration,
    ) -> Option<Passage> {
        let (call, token) = (response.call, response.token?);
        if self.passages.len() >= self.limits.passing {
            return None;
        }
        let key = CallKey { call, token };
        let known = self.table.call(&key);
        let settings = known.map_or(self.ping, |call| self.table.calls.get(call).settings);
        let due = Nanoseconds::from(now).saturating_add(settings.period);
        let number = self.passages.next;
        let passage = Passage { call, number };
        self.passages.next += 1;
        self.passages.queue.insert((due, passage));
        self.note_due(due);
        self.passages.open.insert(
            passage,
            Passing {
                token,
                request: response.request,
                session,
                output: None,
                due,
                period: settings.period,
            },
        );
        Some(passage)
    }

    /// A response that is passed on got its place in a session's output, or will not be sent after all.
    pub fn passed_on(&mut self, passage: Passage, output: Option<Output>) {
        match (self.passages.open.get_mut(&passage), output) {
            (Some(passing), Some(_)) => passing.output = output,
            _ => self.passages.remove(passage),
        }
    }

    /// Tells initiators what is still on its way to them.
    pub(super) fn announce_passages(&mut self, now: Nanoseconds) {
        while let Some(&(due, passage)) = self.passages.queue.first() {
            if due > now {
                return;
            }
            self.passages.queue.pop_first();
            let Some(passing) = self.passages.open.get_mut(&passage) else {
                continue;
            };
            let written = |output| is_written(output, &self.sessions);
            if passing.output.is_some_and(written) {
                self.passages.open.remove(&passage);
                continue;
            }
            passing.due = now.saturating_add(passing.period);
            self.passages.queue.insert((passing.due, passage));
            self.actions.push_back(Action::Announce {
                pong: passing.pong(passage.call),
                reply_to: ReplyTo::Relay,
                session: passing.session,
            });
        }
    }
}

impl Passing {
    /// "I do not handle it, but what it sent is still being written."
    fn pong(&self, call: CallId) -> Pong {
        Pong {
            call,
            relays: 0,
            token: Some(self.token),
            request: self.request,
            attempt: 0,
            announced: true,
            writing: true,
            evicted: false,
            progress: None,
        }
    }
}
