//! Which requests are handled.

use std::time::Duration;

use crate::call::records::collect::class;
use crate::call::records::table::{NewRecord, RecordedCallKey};
use crate::call::records::time::{Nanoseconds, PingTimes};
use crate::call::records::{ConnId, Judgement, MAX_ATTEMPT, MessageOrigin, Records, StopReason};
use crate::call::shares::Share;
use crate::id::{NodeId, RequestId};
use crate::status::{Code, Status};
use crate::wire::{Heartbeats, MessageOptions, PingSettings, Request};

/// Calls that are forgotten for one request at most: an initiator's oldest live call may end after very many that came later.
const MOST_FORGOTTEN: usize = 256;

impl Records {
    /// A request arrived: is it handled?
    pub fn admit(&mut self, request: &Request, origin: MessageOrigin, now: Duration) -> Judgement {
        let key = RecordedCallKey {
            call: request.call,
            token: request.token,
        };
        let options = request.options.as_deref();
        let attempt = options.map_or(0, |options| options.attempt);
        if attempt > MAX_ATTEMPT || request.id.path.is_root() {
            return invalid(request.id, attempt);
        }
        let now = Nanoseconds::from(now);
        let states =
            |options: &&MessageOptions| options.ping.is_some() || options.heartbeats.is_some();
        let stated = options.filter(states);
        let settings = stated.map_or((self.ping, 0), |options| self.class(options));
        let peer = self.table.peer(key.call.initiator);
        let known = peer.and_then(|peer| self.table.call_of(peer, &key));
        if let Some(call) = known
            && let Some(refused) = self.admit_to(call, request.id, (attempt, origin.conn))
        {
            return refused;
        }
        let Some(peer) = self.admit_peer(peer, key.call.initiator, now) else {
            return full("initiators", self.limits.initiators);
        };
        let own = origin.peer == key.call.initiator;
        let conn_index = self.table.conn_index(peer, origin.conn, own);
        self.handle_oldest(peer, conn_index, request.oldest);
        let of_conn = &self.table.peers.get(peer).by_conn[usize::from(conn_index)];
        if of_conn.own && key.call.sequence < of_conn.oldest {
            return over();
        }
        let time = request.time(self.limits.deadline);
        if time.is_zero() {
            return late();
        }
        let share = match self.shares.try_take(origin.conn, key.call.initiator) {
            Ok(share) => share,
            Err(share) => return self.beyond_share(share),
        };
        if !self.has_room(now) {
            self.shares.give_back(share);
            return full("requests", self.limits.requests);
        }
        // What was forgotten to make room may have been the last of this call.
        let known = known.and_then(|_| self.table.call_of(peer, &key));
        let unstated = u32::from(options.is_none_or(|options| options.budgets.is_none()));
        let taken = known.map_or(0, |call| self.table.calls.get(call).unstated);
        if unstated > 0 && taken >= self.limits.requests_of_call {
            self.shares.give_back(share);
            return too_many(self.limits.requests_of_call);
        }
        let call = known.unwrap_or_else(|| {
            let place = (peer, conn_index);
            self.table.add_call(key, place, settings)
        });
        self.table.calls.at(call).unstated += unstated;
        if let Some(state) = self.conns.get_mut(&origin.conn) {
            state.brought = true;
            state.handed |= !own;
        }
        let transit = Nanoseconds::from(origin.transit);
        let carried = options.and_then(|options| options.quiet);
        let quiet = carried.map_or(transit, |carried| transit.saturating_add(carried.into()));
        let quiet = match stated.and_then(|options| options.heartbeats) {
            Some(heartbeats) => quiet.max(self.on_the_way(carried, heartbeats)),
            None => quiet,
        };
        let slot = self.table.add_record(NewRecord {
            call,
            id: request.id,
            attempt,
            depth: request.depth,
            base: request.base,
            manifest: request.manifest.as_ref(),
            conn: origin.conn,
            share,
            direct: own,
            reply_to: &request.reply_to,
            carried: quiet,
            deadline: now.saturating_add(time.into()),
            now,
        });
        if quiet < self.prompt && (stated.is_none() || settings.0 == self.ping) {
            if self.fresh.first(0).is_none() {
                self.fresh_from = now;
                self.note_due(now.saturating_add(self.fresh_for));
            }
            self.fresh.push(0, slot);
        } else {
            let at_peer = self.table.peers.at(peer);
            at_peer.gc_timeout = at_peer.gc_timeout.max(settings.0.gc_timeout());
            self.look_at(slot, now);
        }
        Judgement::Accepted(self.ticket(slot))
    }

    /// A request is refused as others would have no room if it were not.
    #[cold]
    #[inline(never)]
    fn beyond_share(&mut self, share: Share) -> Judgement {
        let text = format!(
            "{} requests of this connection run here, and {} in all, of at most {}: it has its share",
            self.shares.taken_by_connection(share),
            self.shares.taken(),
            self.limits.requests,
        );
        Judgement::Refused(Status::new(Code::ResourceExhausted, text))
    }

    /// Whether a further request of a known call is not handled.
    #[inline(never)]
    fn admit_to(
        &mut self,
        call: u32,
        id: RequestId,
        (attempt, conn): (u32, ConnId),
    ) -> Option<Judgement> {
        if self.table.request(call, id, attempt).is_some() {
            return Some(Judgement::Duplicate);
        }
        let at_call = self.table.calls.get(call);
        if at_call.aborted {
            let status = Status::new(Code::Cancelled, "the call was aborted");
            return Some(Judgement::Refused(status));
        }
        // It is among the calls of another connection, where the end of this one does not look.
        if self.table.known_conn_index(at_call.peer, conn) != Some(at_call.conn_index)
            && let Some(state) = self.conns.get_mut(&conn)
        {
            state.foreign = true;
        }
        None
    }

    /// What a call asks for, within the limits, and the queue that its requests are in once they have ended.
    #[inline(never)]
    fn class(&self, options: &MessageOptions) -> (PingTimes, u32) {
        let mut settings = options.ping.map_or(self.ping, |ping| self.bounded(ping));
        if let Some(heartbeats) = options.heartbeats {
            let longest = self.limits.longest_timeout;
            let every = self.heartbeat_period(heartbeats);
            settings.timeout = heartbeats.timeout.clamp(every, longest.max(every)).into();
            settings.heartbeats = Some(every.into());
        }
        (settings, class(settings, self.ping))
    }

    /// How often a heartbeat comes: nobody makes a server send more of them than it is set to.
    fn heartbeat_period(&self, heartbeats: Heartbeats) -> Duration {
        let shortest = self.limits.shortest_heartbeat;
        let longest = PingSettings::LONGEST_PERIOD.max(shortest);
        heartbeats.every.clamp(shortest, longest)
    }

    /// How long the initiator of a call with heartbeats has not heard of a line when a request arrives, as nobody can know how long
    /// that was on its way.
    #[cold]
    fn on_the_way(&self, carried: Option<Duration>, heartbeats: Heartbeats) -> Nanoseconds {
        let hop = heartbeats.hop.min(self.heartbeat_period(heartbeats) / 2);
        carried.unwrap_or_default().saturating_add(hop).into()
    }

    /// What a call asks for, within the limits.
    #[inline(never)]
    pub(super) fn bounded(&self, ping: PingSettings) -> PingTimes {
        let longest = self.limits.longest_timeout;
        let longest_period = longest.min(PingSettings::LONGEST_PERIOD);
        let period = ping.period.clamp(
            self.limits.shortest_period.min(longest_period),
            longest_period,
        );
        let timeout = ping.timeout.clamp(period, longest);
        PingTimes::from(PingSettings { period, timeout })
    }

    /// An initiator is heard of, who may be `known`.
    pub(super) fn admit_peer(
        &mut self,
        known: Option<u32>,
        node: NodeId,
        now: Nanoseconds,
    ) -> Option<u32> {
        let Some(peer) = known else {
            return self.add_peer(node, now);
        };
        self.table.peers.at(peer).heard = now;
        known
    }

    #[inline(never)]
    fn add_peer(&mut self, node: NodeId, now: Nanoseconds) -> Option<u32> {
        if self.table.peers.len() >= self.limits.initiators && !self.evict_peer(now) {
            return None;
        }
        self.collect_at(now.saturating_add(self.gc_timeout));
        Some(self.table.add_peer(node, self.gc_timeout, now))
    }

    /// The initiator's oldest live call, as was said over a connection: it is about the calls that came over it alone. It
    /// frees memory; where the other end says that it is the initiator, it also stops what still runs. Each call is looked at
    /// once, as others may remain; and no more of them than [`MOST_FORGOTTEN`] for one request, the others for those that follow.
    #[inline]
    pub(super) fn handle_oldest(&mut self, peer: u32, conn_index: u8, oldest: u64) {
        let of_conn = self.table.of_conn(peer, conn_index);
        if of_conn.is_shared() {
            return;
        }
        of_conn.oldest = oldest.max(of_conn.oldest);
        let own = of_conn.own;
        for _ in 0..MOST_FORGOTTEN {
            let Some(call) = self.table.of_conn(peer, conn_index).next_over() else {
                return;
            };
            self.forget_call(call, own);
        }
    }

    /// A call is over: its ended requests are forgotten, the others stopped if that is certain. Of an aborted call they are
    /// remembered for as long as without that: what servers have sent on before they knew may still come, and must be refused.
    pub(super) fn forget_call(&mut self, call: u32, certain: bool) {
        let aborted = self.table.calls.get(call).aborted;
        let mut next = self.table.requests(call).next();
        while let Some(slot) = next {
            next = self.table.request_after(call, slot);
            if self.table.records.get(slot).ended {
                if !aborted {
                    self.forget(slot);
                }
            } else if certain {
                self.stop(slot, StopReason::BelowOldest);
            }
        }
    }
}

#[cold]
#[inline(never)]
fn invalid(id: RequestId, attempt: u32) -> Judgement {
    let text = format!("no request of a call is {id} in attempt {attempt}");
    Judgement::Refused(Status::new(Code::InvalidArgument, text))
}

/// Time has run out on the way: nothing is executed in vain.
#[cold]
#[inline(never)]
fn late() -> Judgement {
    let text = "the deadline passed before the request arrived";
    Judgement::Refused(Status::new(Code::DeadlineExceeded, text))
}

/// No initiator that keeps to the default lets a call grow so much: it is one that neither counts nor stops.
#[cold]
#[inline(never)]
fn too_many(most: u32) -> Judgement {
    let text = format!("this server takes {most} requests of a call that states no budgets");
    Judgement::Refused(Status::new(Code::ResourceExhausted, text))
}

#[cold]
#[inline(never)]
fn over() -> Judgement {
    let text = "the call is over: its initiator has named a later one as the oldest that lives";
    Judgement::Refused(Status::new(Code::Cancelled, text))
}

#[cold]
#[inline(never)]
fn full(what: &str, limit: usize) -> Judgement {
    let text =
        format!("this server remembers {limit} {what}, and none of them can be forgotten yet");
    Judgement::Refused(Status::new(Code::ResourceExhausted, text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::records::RecordLimits;
    use crate::call::records::collect::tests::{answer, node, request};

    /// A call that has lasted ends after very many short ones: all of these are over for their server at once.
    #[test]
    fn one_request_forgets_few_of_very_many_calls() {
        let mut records = Records::new(RecordLimits::default());
        records.conn_opened(ConnId::from_number(1), node(1));
        let calls = 3 * MOST_FORGOTTEN as u64;
        for sequence in 1..=calls {
            answer(&mut records, 1, request(1, sequence), 9);
        }
        for step in 1..=4 {
            let before = records.remembered().calls;
            let mut next = request(1, calls + step);
            next.oldest = calls + 1;
            answer(&mut records, 1, next, 9);
            let forgotten = before + 1 - records.remembered().calls;
            assert!(forgotten <= MOST_FORGOTTEN, "{forgotten} at once");
        }
        assert_eq!(records.remembered().calls, 4, "those that came last");
    }
}
