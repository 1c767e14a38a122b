//! Answers on their way that no record tells of: responses of other servers that are relayed towards initiators that
//! cannot be dialled, and statuses that answer requests which are refused.
//!
//! The server of a response has written it out, and a refused request is not remembered: so nobody but who sends them now
//! can tell the initiator that one is still on its way, and not lost.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::call::records::outputs::{Conns, is_written};
use crate::call::records::table::RecordedCallKey;
use crate::call::records::time::{Nanoseconds, PingTimes};
use crate::call::records::{ConnId, MessageOrigin, OutputMark, RecordAction, Records};
use crate::call::shares::{Share, Shares};
use crate::id::{CallId, Path, RequestId, Token};
use crate::wire::{Ping, PingSettings, Pong, ReplyTo, Response};

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
    /// Where it says that answers go; `None` if its status goes over no other connection than it came on: whoever sent it may
    /// be a stranger, who must not direct anything to others.
    pub reply_to: Option<ReplyTo>,
    /// The connection that it came on.
    pub conn: ConnId,
}

/// At most so many relays of one request are looked at, the latest first: they are written in order.
const MOST_LOOKED_AT: usize = 64;

/// Names a response that is relayed, or the status of a refused request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct RelayId {
    // What initiators ask about. Who does not know the token of a call hides none of its.
    call: RecordedCallKey,
    request: RequestId,
    number: u64,
}

/// All of them that could not be written at once.
#[derive(Debug)]
pub(super) struct Relays {
    open: BTreeMap<RelayId, Relay>,
    queue: BTreeSet<(Nanoseconds, RelayId)>,
    next: u64,
    /// Whose they are: who does not take what is sent to it keeps nobody else's from being told of.
    shares: Shares,
}

#[derive(Debug)]
struct Relay {
    share: Share,
    /// What announcements name.
    reply_to: Option<ReplyTo>,
    conn: ConnId,
    /// Its place in a connection's output, once it has one.
    output: Option<OutputMark>,
    due: Nanoseconds,
    period: Nanoseconds,
}

impl Relays {
    pub(super) fn new(most: usize) -> Self {
        Self {
            open: BTreeMap::new(),
            queue: BTreeSet::new(),
            next: 0,
            shares: Shares::new(most),
        }
    }

    pub(super) fn next_due(&self) -> Option<Nanoseconds> {
        self.queue.first().map(|first| first.0)
    }

    fn remove(&mut self, relay_id: RelayId) {
        if let Some(relay) = self.open.remove(&relay_id) {
            self.queue.remove(&(relay.due, relay_id));
            self.shares.give_back(relay.share);
        }
    }

    /// The call is over: nobody wants to know any more.
    pub(super) fn forget(&mut self, call: RecordedCallKey) {
        let request = RequestId {
            path: Path::ROOT,
            hop: 0,
        };
        let from = RelayId {
            call,
            request,
            number: 0,
        };
        while let Some((&relay_id, _)) = self.open.range(from..).next()
            && relay_id.call == call
        {
            self.remove(relay_id);
        }
    }
}

impl Records {
    /// A response of another server goes on towards its initiator, but waits or goes in parts: until it has been written
    /// out the initiator is told each ping period that it is on its way. [`RecordAction::Announce`] names `conn`: the one
    /// that it goes on by, as far as the driver knows, else the one that it came on.
    ///
    /// [`Self::relayed`] must follow, unless the call is aborted. `None` if there are too many
    /// ([`super::RecordLimits::relays`]), or if the response shows no token: then the initiator is not told.
    pub fn begin_relay(
        &mut self,
        response: &Response,
        conn: ConnId,
        now: Duration,
    ) -> Option<RelayId> {
        let key = RecordedCallKey {
            call: response.call,
            token: response.token?,
        };
        let known = self.table.call(&key);
        let settings = known.map_or(self.ping, |call| self.table.calls.get(call).settings);
        let reply_to = Some(ReplyTo::Relay);
        self.tell_of(key, response.request, (reply_to, conn), settings, now)
    }

    /// A request that is not remembered is answered with a status that does not leave at once: it waits for credit, for a
    /// route, or behind what the transport does not take. Until it has been written out the initiator is told that it is on
    /// its way, each ping period and when it asks about the request.
    ///
    /// As with [`Self::begin_relay`] there may be too many, and [`Self::relayed`] must follow.
    pub fn refused(&mut self, refused: &RefusedRequest, now: Duration) -> Option<RelayId> {
        let key = RecordedCallKey {
            call: refused.call,
            token: refused.token,
        };
        let settings = refused.ping.map_or(self.ping, |ping| self.bounded(ping));
        let route = (refused.reply_to.clone(), refused.conn);
        self.tell_of(key, refused.request, route, settings, now)
    }

    fn tell_of(
        &mut self,
        call: RecordedCallKey,
        request: RequestId,
        (reply_to, conn): (Option<ReplyTo>, ConnId),
        PingTimes { period, .. }: PingTimes,
        now: Duration,
    ) -> Option<RelayId> {
        let share = self.relays.shares.try_take(conn, call.call.initiator);
        let share = share.ok()?;
        let due = Nanoseconds::from(now).saturating_add(period);
        let relay_id = RelayId {
            call,
            request,
            number: self.relays.next,
        };
        self.relays.next += 1;
        self.relays.queue.insert((due, relay_id));
        self.note_due(due);
        self.relays.open.insert(
            relay_id,
            Relay {
                share,
                reply_to,
                conn,
                output: None,
                due,
                period,
            },
        );
        Some(relay_id)
    }

    /// What is told of a request that has no record, but whose answer is on its way through this endpoint.
    pub(super) fn relayed_pong(&self, call: RecordedCallKey, request: RequestId) -> Option<Pong> {
        let named = |number| RelayId {
            call,
            request,
            number,
        };
        let of_request = self.relays.open.range(named(0)..=named(u64::MAX));
        let mut few = of_request.rev().take(MOST_LOOKED_AT);
        let found = few.find(|(_, relay)| !relay.is_written(&self.conns));
        found.map(|(relay_id, _)| relay_id.pong())
    }

    /// A ping goes on to where its request is said to be. If a response of that is on its way through this endpoint, its
    /// initiator is told so: nobody further on may be there any more.
    pub fn tell_of_relaying(&mut self, ping: &Ping, origin: MessageOrigin) {
        let key = RecordedCallKey {
            call: ping.call,
            token: ping.token,
        };
        if let Some(pong) = self.relayed_pong(key, ping.request) {
            let token = pong.token.filter(|_| origin.peer != ping.call.initiator);
            self.actions.push_back(RecordAction::Pong {
                conn: origin.conn,
                pong: Pong { token, ..pong },
                ticket: None,
            });
        }
    }

    /// What is told of got its place in a connection's output, or will not be sent after all.
    pub fn relayed(&mut self, relay_id: RelayId, output: Option<OutputMark>) {
        match (self.relays.open.get_mut(&relay_id), output) {
            (Some(relay), Some(_)) => relay.output = output,
            _ => self.relays.remove(relay_id),
        }
    }

    /// Tells initiators what is still on its way to them.
    pub(super) fn announce_relays(&mut self, now: Nanoseconds) {
        while let Some(&(due, relay_id)) = self.relays.queue.first() {
            if due > now {
                return;
            }
            self.relays.queue.pop_first();
            let Some(relay) = self.relays.open.get_mut(&relay_id) else {
                continue;
            };
            if relay.is_written(&self.conns) {
                self.relays.remove(relay_id);
                continue;
            }
            relay.due = now.saturating_add(relay.period);
            self.relays.queue.insert((relay.due, relay_id));
            let (conn, pong) = (relay.conn, relay_id.pong());
            self.actions.push_back(match relay.reply_to.clone() {
                Some(reply_to) => RecordAction::Announce {
                    pong,
                    reply_to,
                    conn,
                    ticket: None,
                },
                None => RecordAction::Pong {
                    conn,
                    pong,
                    ticket: None,
                },
            });
        }
    }
}

impl Relay {
    fn is_written(&self, conns: &Conns) -> bool {
        let written = |output| is_written(output, conns);
        self.output.is_some_and(written)
    }
}

impl RelayId {
    /// "I do not handle it, but what it sent is still being written."
    fn pong(&self) -> Pong {
        Pong {
            call: self.call.call,
            distance: 0,
            token: Some(self.call.token),
            request: self.request,
            attempt: 0,
            announced: true,
            writing: true,
            evicted: false,
            gone: false,
            heartbeats: false,
            progress: None,
        }
    }
}
