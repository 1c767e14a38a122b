//! The server half of failure detection, abort and collection (thesis 4.4, 4.5): what an endpoint remembers of the
//! requests that came to it.
//!
//! One [`Records`] serves a whole endpoint. It decides which requests are handled, answers pings, announces requests
//! that their initiators cannot know of, says which handlers must stop, keeps responses that may have to be sent again,
//! and forgets all of it in time.
//!
//! # How a driver uses it
//!
//! ```text
//! a connection opened, ended:        records.conn_opened(..), records.conn_ended(..)
//! a request arrived:                 match records.admit(&request, origin, now) {
//!                                        Accepted(ticket) => handle it,
//!                                        Refused(status)  => send server::undelivered(&request, &status),
//!                                        Duplicate       => drop it,
//!                                    }
//! the server half released a         records.response_released(..), end_released(..) or delegation_released(..): each,
//! message:                           in order, before it is sent. If a delegation is refused: send server::undelivered.
//! it was queued only later:          records.placed(ticket, ..), or records.dropped(ticket, ..) if it never will be;
//!                                    a delegation only if there still is records.time_left(ticket, now), which it says
//! a response is too large for its    the first time a status goes in its place: records.response_replaced(ticket, ..);
//! connection:                        sent again it does not go there: records.too_large(ticket, ..)
//! a delegation leaves:               options.quiet = records.quiet(ticket, now), oldest = records.oldest(ticket)
//! a connection's output was written: records.written(conn, mark)
//! a request of a stream goes on by    records.announce_after_delegation(ticket, now)
//! datagrams:
//! the endpoint is to be closed:      records.announce_handed_on(now)
//! its peer has confirmed receipt:    records.confirmed(conn, mark), where the transport tells
//! another server's response goes     relay_id = records.begin_relay(&response, conn, now),
//! on, but waits or goes in parts:    then records.relayed(relay_id, output)
//! the status of a refused request    relay_id = records.refused(&request, now), then the same
//! does not leave at once:
//! a ping arrived:                    if records.relay_target(&ping, origin, now) names a server, it goes on there, and
//!                                    records.tell_of_relaying(&ping, origin); unless it did, and in any case if it aborts:
//!                                    records.handle_ping(&ping, origin, now)
//! a pong for another initiator       records.pong_relayed(&pong, now)
//! passes by:
//! an announcement left:              records.announcement_left(ticket, to, now)
//! its timer fired:                   read all input, then records.handle_timeout(now)
//! after each of these:               while let Some(action) = records.poll() { .. }; wait until records.next_timeout()
//! ```
//!
//! `now` is the time of a [`crate::call::clock::Clock`]. A request ends with the released message that ends it: nobody
//! says so apart. So a handler that was stopped, lost or never started must still end its request, with
//! [`ServerHalf::fail`].
//!
//! Names are the choice of peers, so what is found by name is in ordered maps: no choice makes one slow, and none of them
//! moves all of itself at once. A request of one hop with one answer has its call in one such map, and costs no allocation else
//! (`crates/wallaby-proto/examples/cost.rs` measures it).
//!
//! [`ServerHalf::fail`]: crate::call::server::ServerHalf::fail

mod admit;
mod answer;
mod children;
mod collect;
mod forgotten;
mod kept;
mod lost;
mod outputs;
mod queues;
mod relaying;
mod relays;
mod release;
mod routes;
mod table;
mod time;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use thiserror::Error;

use self::collect::CLASSES;
use self::forgotten::ForgottenRoutes;
use self::kept::KeptResponses;
use self::lost::LostConns;
use self::outputs::{ConnState, Conns};
pub use self::outputs::{OutputMark, written_next};
use self::queues::Queues;
pub use self::relaying::RelayRoute;
use self::relays::Relays;
pub use self::relays::{RefusedRequest, RelayId};
use self::routes::FormerConns;
pub use self::routes::invitation;
use self::table::Table;
use self::time::{Nanoseconds, PingTimes};
use crate::call::shares::Shares;
pub use crate::id::ConnId;
use crate::id::{CallId, NodeId, RequestId};
use crate::status::{Code, Status};
use crate::wire::{PingSettings, Pong, ReplyTo, Response};

/// How much an endpoint remembers, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordLimits {
    /// Requests, running and ended ones. Beyond it ended ones are forgotten, oldest first; if all run or are being
    /// written, a new one is refused. Before that, one is refused whose connection, or whose initiator on it, has more than
    /// its share of the running ones (`call/shares.rs`). 65,536 by default.
    pub requests: usize,
    /// Initiators. Beyond it those of which nothing runs or is being written are forgotten; if something of all does,
    /// requests of further ones are refused. 4,096 by default.
    pub initiators: usize,
    /// Bytes of responses that are kept to be sent again, with 128 for each. 16 MiB by default; 0 keeps none.
    pub kept_bytes: u64,
    /// Responses of other servers that are relayed, and statuses of refused requests, that are told of meanwhile. 4,096
    /// by default, shared by initiators and connections as requests are.
    pub relays: usize,
    /// Ping settings of calls that state none.
    pub ping: PingSettings,
    /// The shortest ping period that a call may ask for: 10 ms by default.
    pub shortest_period: Duration,
    /// The shortest period of heartbeats that a call may ask for: 100 ms by default.
    pub shortest_heartbeat: Duration,
    /// The longest timeout that a call may ask for: 10 minutes by default.
    pub longest_timeout: Duration,
    /// A request runs on for so long at most if its initiator does not ask about it, or if no heartbeat for it leaves, whatever
    /// timeout that has stated; but for five ping periods, or periods of heartbeats, at least. 30 s by default.
    pub patience: Duration,
    /// The time that a request has which states none: 60 s by default.
    pub deadline: Duration,
    /// Requests of one call that are taken while the call is remembered, if they state no budgets. 65,536 by default: all
    /// that an initiator lets such a call have at all servers together.
    pub requests_of_call: u32,
}

impl Default for RecordLimits {
    fn default() -> Self {
        Self {
            requests: 1 << 16,
            initiators: 4096,
            kept_bytes: 16 << 20,
            relays: 4096,
            ping: PingSettings::default(),
            shortest_period: Duration::from_millis(10),
            shortest_heartbeat: Duration::from_millis(100),
            longest_timeout: Duration::from_secs(600),
            patience: Duration::from_secs(30),
            deadline: Duration::from_secs(60),
            requests_of_call: 1 << 16,
        }
    }
}

/// Requests that are looked at in one go: the rest is due at once, and whoever drives this does something else between.
const MOST_LOOKED_AT: usize = 4096;

/// Highest attempt of a request.
pub const MAX_ATTEMPT: u32 = 64;

/// Where a message came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MessageOrigin {
    /// The connection.
    pub conn: ConnId,
    /// Its other end.
    pub peer: NodeId,
    /// How long a message takes over it, as far as the driver can tell: half a round trip, better too long than too
    /// short; zero where it is far below a ping period. Time under way is time in which the initiator hears nothing.
    pub transit: Duration,
}

/// Names an accepted request as long as it is remembered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket {
    slot: u32,
    generation: u32,
}

/// A message that a request released.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReleasedMessage {
    /// The response with this number.
    Response(u32),
    /// The end of the branch.
    End,
    /// A delegation.
    Delegation,
}

/// Whether a request is handled.
#[derive(Debug, Clone, PartialEq)]
pub enum Judgement {
    /// Handle it.
    Accepted(Ticket),
    /// It came before, in this attempt: drop it.
    Duplicate,
    /// Answer with this status in its name (docs/protocol.md, rule 11): its call was aborted, or is over (rule 29), or there is no
    /// room.
    Refused(Status),
}

/// Why a delegation must not be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Frozen {
    /// Its call was aborted, or its request does not run.
    #[error("the call was aborted")]
    Aborted,
    /// Its call's deadline has passed.
    #[error("the deadline passed before the request was sent")]
    Late,
}

impl Frozen {
    /// What is answered in the delegation's name.
    pub fn status(self) -> Status {
        let code = match self {
            Self::Aborted => Code::Cancelled,
            Self::Late => Code::DeadlineExceeded,
        };
        Status::new(code, self.to_string())
    }
}

/// Why a handler has to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum StopReason {
    /// The initiator has aborted the call.
    #[error("the call was aborted")]
    Aborted,
    /// Nobody has asked about the request for the gc timeout, or for [`RecordLimits::patience`] (rule 31).
    #[error("the initiator does not ask about the call any more")]
    InitiatorSilent,
    /// The initiator has finished with the call (rule 29).
    #[error("the call is over")]
    BelowOldest,
}

/// What the driver does next.
#[derive(Debug, Clone, PartialEq)]
pub enum RecordAction {
    /// Answer a ping, over the connection that it came on; or tell unasked what may only be told there.
    Pong {
        /// The connection.
        conn: ConnId,
        /// The answer.
        pong: Pong,
        /// The ticket of the request, if it is handled here.
        ticket: Option<Ticket>,
    },
    /// Tell the initiator of a request that it may not know of, or of an answer that is on its way, the way the request's
    /// answers go.
    Announce {
        /// What to tell.
        pong: Pong,
        /// Where the request said that answers go.
        reply_to: ReplyTo,
        /// The connection that the request, or the response, came on.
        conn: ConnId,
        /// As in [`Self::Pong`].
        ticket: Option<Ticket>,
    },
    /// Send a response again, over this connection.
    Resend {
        /// The request's ticket. As with a released message, [`Records::placed`] or [`Records::dropped`] must follow, or
        /// [`Records::too_large`]: until then the response counts as being written.
        ticket: Ticket,
        /// The connection.
        conn: ConnId,
        /// The response, with the call's token.
        response: Response,
    },
    /// Stop the handler of a request: its request ends with a status, now ([`ServerHalf::fail`]); the handler is told.
    ///
    /// [`ServerHalf::fail`]: crate::call::server::ServerHalf::fail
    Stop {
        /// The request's ticket.
        ticket: Ticket,
        /// The call.
        call: CallId,
        /// The request.
        request: RequestId,
        /// Why.
        reason: StopReason,
    },
}

/// How much is remembered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Remembered {
    /// Initiators.
    pub initiators: usize,
    /// Calls.
    pub calls: usize,
    /// Requests, and marks of aborted calls.
    pub requests: usize,
    /// Bytes of kept responses.
    pub kept_bytes: u64,
}

/// What an endpoint remembers of the requests that came to it.
#[derive(Debug)]
pub struct Records {
    limits: RecordLimits,
    /// Those of calls that state none.
    ping: PingTimes,
    /// How long their requests are remembered.
    gc_timeout: Nanoseconds,
    /// A request that was quiet for less is announced a little late.
    prompt: Nanoseconds,
    table: Table,
    conns: Conns,
    kept: KeptResponses,
    relays: Relays,
    lost: LostConns,
    /// Requests whose initiators are to be told where they went on.
    to_announce: Vec<Ticket>,
    former: FormerConns,
    /// Of requests that were forgotten although answers of others may still go back by them.
    forgotten: ForgottenRoutes,
    /// Requests with default settings that were not looked at yet, in the order in which they came.
    fresh: Queues,
    /// The first of them came then or later: to look at itself would cost memory that is not at hand.
    fresh_from: Nanoseconds,
    /// How long they are left alone. They come in quick succession: they are looked at an eighth of a period late, many
    /// at a time.
    fresh_for: Nanoseconds,
    /// Requests that are looked at a second time, or have times of their own.
    queue: BTreeSet<(Nanoseconds, u32)>,
    /// Those that have ended, by class.
    ended: Queues,
    /// When these and the initiators are looked through.
    collect_at: Nanoseconds,
    /// The earliest of the times that were set since [`Self::take_sooner`] was asked last.
    sooner: Option<Nanoseconds>,
    /// Whose the requests are that have not ended.
    shares: Shares,
    /// Until then a request that is not known may be one that was forgotten before its time.
    evicted_until: Nanoseconds,
    actions: VecDeque<RecordAction>,
}

impl Records {
    /// No records.
    pub fn new(limits: RecordLimits) -> Self {
        let ping = PingTimes::from(limits.ping);
        Self {
            limits,
            ping,
            gc_timeout: ping.gc_timeout(),
            prompt: ping.period.divided_by(16),
            table: Table::new(),
            conns: BTreeMap::new(),
            kept: KeptResponses::new(limits.kept_bytes),
            relays: Relays::new(limits.relays),
            lost: LostConns::default(),
            to_announce: Vec::new(),
            former: FormerConns::default(),
            forgotten: ForgottenRoutes::default(),
            fresh: Queues::new(1),
            fresh_from: Nanoseconds::ZERO,
            fresh_for: ping.period.saturating_add(ping.period.divided_by(8)),
            queue: BTreeSet::new(),
            ended: Queues::new(CLASSES),
            collect_at: Nanoseconds::NEVER,
            sooner: None,
            shares: Shares::new(limits.requests),
            evicted_until: Nanoseconds::ZERO,
            actions: VecDeque::new(),
        }
    }

    /// Whether there is something to do.
    pub fn has_actions(&self) -> bool {
        !self.actions.is_empty()
    }

    /// What to do next; `None` when all is done.
    pub fn poll(&mut self) -> Option<RecordAction> {
        self.actions.pop_front()
    }

    /// When [`Self::handle_timeout`] has something to do.
    pub fn next_timeout(&self) -> Option<Duration> {
        let fresh = self.fresh.first(0);
        let fresh = fresh.map(|_| self.fresh_from.saturating_add(self.fresh_for));
        let queued = self.queue.first().map(|first| first.0);
        let collection = Some(self.collect_at).filter(|due| *due != Nanoseconds::NEVER);
        let relay_id = self.relays.next_due();
        let lost = self.lost.next_due();
        let told = self.to_announce.first().map(|_| Nanoseconds::ZERO);
        let all = [fresh, queued, collection, relay_id, lost, told];
        all.into_iter().flatten().min().map(Duration::from)
    }

    /// What [`Self::next_timeout`] has become since this was asked last; `None` if it has not come nearer.
    #[inline]
    pub fn take_sooner(&mut self) -> Option<Duration> {
        self.sooner.take().map(Duration::from)
    }

    /// How much is remembered now.
    pub fn remembered(&self) -> Remembered {
        Remembered {
            initiators: self.table.peers.len(),
            calls: self.table.calls.len(),
            requests: self.table.records.len(),
            kept_bytes: self.kept.bytes(),
        }
    }

    /// A connection to this node opened.
    pub fn conn_opened(&mut self, conn: ConnId, peer: NodeId) {
        let state = ConnState {
            peer,
            written: 0,
            confirmed: None,
            relays: false,
            foreign: false,
            brought: false,
            handed: false,
            initiators: BTreeMap::new(),
        };
        self.conns.insert(conn, state);
    }

    /// Output up to this mark has been handed to the operating system; where the transport sends it again if it is lost, for
    /// the first time. From then on a delegation does not excuse its server's silence any more.
    pub fn written(&mut self, conn: ConnId, mark: u64) {
        if let Some(state) = self.conns.get_mut(&conn) {
            state.written = state.written.max(mark);
        }
    }

    /// The other end has confirmed that it has read what was sent up to this mark. Where a transport tells, answers count as
    /// being written until then.
    pub fn confirmed(&mut self, conn: ConnId, mark: u64) {
        if let Some(state) = self.conns.get_mut(&conn) {
            state.confirmed = state.confirmed.max(Some(mark));
        }
    }

    /// A connection ended. Requests whose answers went out on it and are not confirmed are announced, once: nobody else
    /// may know where they are (rule 17). So are those that came over it for others, and those that were handed on
    /// over it: its other end may be gone, and nobody else may know who has them, or that they are lost.
    pub fn conn_ended(&mut self, conn: ConnId, now: Duration) {
        let Some(state) = self.conns.remove(&conn) else {
            return;
        };
        if state.brought {
            self.former.note(conn, state.peer);
        }
        let now = Nanoseconds::from(now);
        // Who comes as one of many shares a list with others, at least of its earlier calls. To look at all of its initiator's
        // requests at once would let who connects and leaves keep a server busy.
        let peer = self.table.peer(state.peer);
        let anywhere = peer
            .is_some_and(|peer| state.foreign || state.brought && self.table.shares_a_line(peer));
        if state.relays || state.handed || anywhere {
            return self.note_lost(conn, state.confirmed, now);
        }
        let conn_index =
            peer.and_then(|peer| Some((peer, self.table.known_conn_index(peer, conn)?)));
        let Some((peer, conn_index)) = conn_index else {
            return;
        };
        let calls: Vec<u32> = self.table.calls_in(peer, conn_index).collect();
        let requests = calls.iter().flat_map(|&call| self.table.requests(call));
        let concerned: Vec<u32> = requests.take(MOST_LOOKED_AT + 1).collect();
        if concerned.len() > MOST_LOOKED_AT {
            return self.note_lost(conn, state.confirmed, now);
        }
        for slot in concerned {
            let record = self.table.records.get(slot);
            if record.outputs.has_unconfirmed(conn, state.confirmed) {
                self.announce(slot, now);
            }
        }
    }

    /// Time has passed. All input must have been read before (rule 20).
    pub fn handle_timeout(&mut self, now: Duration) {
        let now = Nanoseconds::from(now);
        let mut looked_at = 0;
        while let Some(slot) = self.fresh.first(0) {
            // Who is pinged is not fresh any more: this is when it came.
            self.fresh_from = self.table.records.get(slot).pinged;
            let is_due = self.fresh_from.saturating_add(self.ping.period) <= now;
            if !is_due || looked_at >= MOST_LOOKED_AT {
                break;
            }
            looked_at += 1;
            self.look_at(slot, now);
        }
        while let Some(&(due, slot)) = self.queue.first() {
            if due > now || looked_at >= MOST_LOOKED_AT {
                break;
            }
            looked_at += 1;
            self.look_at(slot, now);
        }
        self.look_for_lost(now);
        self.announce_delegating(now);
        self.announce_relays(now);
        if self.collect_at <= now {
            self.collect(now);
        }
    }
}

impl Records {
    fn note_due(&mut self, due: Nanoseconds) {
        self.sooner = Some(self.sooner.map_or(due, |sooner| sooner.min(due)));
    }

    fn ticket(&self, slot: u32) -> Ticket {
        let generation = self.table.records.get(slot).generation;
        Ticket { slot, generation }
    }

    fn slot(&self, ticket: Ticket) -> Option<u32> {
        self.table.records.slot(ticket)
    }
}
