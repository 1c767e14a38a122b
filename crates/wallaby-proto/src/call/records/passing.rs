//! Answers on their way that no record tells of: responses of other servers that are passed on towards initiators that
//! cannot be dialled, and statuses that answer requests which are refused.
//!
//! The server of a response has written it out, and a refused request is not remembered: so nobody but who sends them now
//! can tell the initiator that one is still on its way, and not lost.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::call::records::outputs::{Sessions, is_written};
use crate::call::records::table::CallKey;
use crate::call::records::time::{Nanoseconds, PingTimes};
use crate::call::records::{Action, Output, Records, Session};
use crate::call::shares::{Share, Shares};
use crate::id::{CallId, Path, RequestId, Token};
use crate::wire::{PingSettings, Pong, ReplyTo, Response};

/// A request that is answered with a status and not remembered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusedRequest {
    /// Its call.
    pub call: CallId,
    /// The call's token.
    pub token: Token,
    /// Which of the call's requests it is.
    pub request: RequestId,
    /// The call's ping settings, if it states any.
    pub ping: Option<PingSettings>,
    /// Where it says that answers go; `None` if its status goes over no other session than it came on: whoever sent it may
    /// be a stranger, who must not direct anything to others.
    pub reply_to: Option<ReplyTo>,
    /// The session that it came on.
    pub session: Session,
}

/// At most so many passages of one request are looked at, the latest first: they are written in order.
const MOST_LOOKED_AT: usize = 64;

/// Names a response that is passed on, or the status of a refused request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Passage {
    call: CallId,
    number: u64,
}

/// All of them that could not be written at once.
#[derive(Debug)]
pub(super) struct Passages {
    open: BTreeMap<Passage, Passing>,
    /// The same by what initiators ask about. Who does not know the token of a call hides none of its.
    by_request: BTreeSet<(CallId, Token, RequestId, u64)>,
    queue: BTreeSet<(Nanoseconds, Passage)>,
    next: u64,
    /// Whose they are: who does not take what is sent to it keeps nobody else's from being told of.
    shares: Shares,
}

#[derive(Debug)]
struct Passing {
    share: Share,
    token: Token,
    request: RequestId,
    /// What announcements name.
    reply_to: Option<ReplyTo>,
    session: Session,
    /// Its place in a session's output, once it has one.
    output: Option<Output>,
    due: Nanoseconds,
    period: Nanoseconds,
}

impl Passages {
    pub(super) fn new(most: usize) -> Self {
        Self {
            open: BTreeMap::new(),
            by_request: BTreeSet::new(),
            queue: BTreeSet::new(),
            next: 0,
            shares: Shares::new(most),
        }
    }

    pub(super) fn next_due(&self) -> Option<Nanoseconds> {
        self.queue.first().map(|first| first.0)
    }

    fn remove(&mut self, passage: Passage) {
        if let Some(passing) = self.open.remove(&passage) {
            self.queue.remove(&(passing.due, passage));
            let Passage { call, number } = passage;
            let place = (call, passing.token, passing.request, number);
            self.by_request.remove(&place);
            self.shares.give_back(passing.share);
        }
    }

    /// The call is over: nobody wants to know any more.
    pub(super) fn forget(&mut self, key: CallKey) {
        let of_call: Vec<Passage> = self.of_call(key).collect();
        of_call.into_iter().for_each(|passage| self.remove(passage));
    }

    fn of_call(&self, key: CallKey) -> impl Iterator<Item = Passage> {
        let first = RequestId {
            path: Path::ROOT,
            hop: 0,
        };
        let from = (key.call, key.token, first, 0);
        self.by_request.range(from..).map_while(move |place| {
            let (call, token, _, number) = *place;
            ((call, token) == (key.call, key.token)).then_some(Passage { call, number })
        })
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
        let key = CallKey {
            call: response.call,
            token: response.token?,
        };
        let known = self.table.call(&key);
        let settings = known.map_or(self.ping, |call| self.table.calls.get(call).settings);
        let reply_to = Some(ReplyTo::Relay);
        self.tell_of(key, response.request, (reply_to, session), settings, now)
    }

    /// A request that is not remembered is answered with a status that does not leave at once: it waits for credit, for a
    /// way, or behind what the transport does not take. Until it has been written out the initiator is told that it is on
    /// its way, each ping period and when it asks about the request.
    ///
    /// As with [`Self::passing`] there may be too many, and [`Self::passed_on`] must follow.
    pub fn refused(&mut self, refused: &RefusedRequest, now: Duration) -> Option<Passage> {
        let key = CallKey {
            call: refused.call,
            token: refused.token,
        };
        let settings = refused.ping.map_or(self.ping, |ping| self.bounded(ping));
        let way = (refused.reply_to.clone(), refused.session);
        self.tell_of(key, refused.request, way, settings, now)
    }

    fn tell_of(
        &mut self,
        CallKey { call, token }: CallKey,
        request: RequestId,
        (reply_to, session): (Option<ReplyTo>, Session),
        PingTimes { period, .. }: PingTimes,
        now: Duration,
    ) -> Option<Passage> {
        let share = self.passages.shares.try_take(session, call.initiator);
        let share = share.ok()?;
        let due = Nanoseconds::from(now).saturating_add(period);
        let number = self.passages.next;
        let passage = Passage { call, number };
        self.passages.next += 1;
        self.passages.queue.insert((due, passage));
        self.passages
            .by_request
            .insert((call, token, request, number));
        self.note_due(due);
        self.passages.open.insert(
            passage,
            Passing {
                share,
                token,
                request,
                reply_to,
                session,
                output: None,
                due,
                period,
            },
        );
        Some(passage)
    }

    /// What is told of a request that has no record, but whose answer is on its way through this endpoint.
    pub(super) fn passing_pong(&self, key: CallKey, request: RequestId) -> Option<Pong> {
        let (call, of) = (key.call, |number| (key.call, key.token, request, number));
        let of_request = self.passages.by_request.range(of(0)..=of(u64::MAX));
        let mut few = of_request
            .rev()
            .take(MOST_LOOKED_AT)
            .filter_map(|(.., number)| {
                let number = *number;
                self.passages.open.get(&Passage { call, number })
            });
        let found = few.find(|passing| !passing.is_written(&self.sessions));
        found.map(|passing| passing.pong(call))
    }

    /// What is told of got its place in a session's output, or will not be sent after all.
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
            if passing.is_written(&self.sessions) {
                self.passages.remove(passage);
                continue;
            }
            passing.due = now.saturating_add(passing.period);
            self.passages.queue.insert((passing.due, passage));
            let (session, pong) = (passing.session, passing.pong(passage.call));
            self.actions.push_back(match passing.reply_to.clone() {
                Some(reply_to) => Action::Announce {
                    pong,
                    reply_to,
                    session,
                    ticket: None,
                },
                None => Action::Pong {
                    session,
                    pong,
                    ticket: None,
                },
            });
        }
    }
}

impl Passing {
    fn is_written(&self, sessions: &Sessions) -> bool {
        let written = |output| is_written(output, sessions);
        self.output.is_some_and(written)
    }

    /// "I do not handle it, but what it sent is still being written."
    fn pong(&self, call: CallId) -> Pong {
        Pong {
            call,
            distance: 0,
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
