//! Pings that go on to servers which their initiator cannot reach itself, and answers that go on to initiators which
//! cannot be dialled.
//!
//! An initiator that cannot reach a server asks along the route that its requests went. A server that does not know the
//! request, but handled one that it came of, passes the ping on to where that handed its work; the answer comes back
//! along the same way. So do answers of all other kinds.

use std::time::Duration;

use crate::call::records::table::{Record, RecordedCallKey};
use crate::call::records::time::Nanoseconds;
use crate::call::records::{ConnId, MessageOrigin, Records};
use crate::id::{CallId, NodeId, Path, RequestId, Token};
use crate::wire::{Child, Ping, Pong};

/// At most so many requests of a call are searched for the one that is nearest to the initiator.
const MAX_SEARCHED: usize = 1024;

/// The share of a ping period in which a ping about the same request is relayed once.
const ONCE_A: (u64, u64) = (3, 4);

/// In a ping period one request passes on pings about so many different ones at most.
const MAX_RELAYED: usize = 256;

/// A ping that went on.
#[derive(Debug, Clone, Copy)]
pub(super) struct RelayedPing {
    request: RequestId,
    abort: bool,
    /// Until then no other like it does.
    until: Nanoseconds,
}

/// A call may come back to this server so often; before that, its answers are not routed past those that it went to.
const MOST_TURNS: usize = 16;

/// A route on towards an initiator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RelayRoute {
    /// Where it leads.
    pub conn: ConnId,
    /// How many hops from the initiator the request is by which it leads, counted from 1.
    pub distance: u32,
}

impl Records {
    /// Where a ping goes on to: it asks about a request that is not known, but came of one that is. To be asked before
    /// [`Self::handle_ping`], which is then only called for an abort. A driver passes nothing on to itself.
    ///
    /// A ping about the same request goes on only once in three quarters of a ping period: where servers have forgotten
    /// some requests of a line, routes can form a circle. What still runs in one ends with what is remembered, since only
    /// answers that know the request make that last: see [`Self::pong_relayed`].
    #[inline(never)]
    pub fn relay_target(
        &mut self,
        ping: &Ping,
        origin: MessageOrigin,
        now: Duration,
    ) -> Option<Child> {
        if ping.shows {
            return None;
        }
        let now = Nanoseconds::from(now);
        let key = RecordedCallKey {
            call: ping.call,
            token: ping.token,
        };
        let call = self.table.call(&key)?;
        if self.table.latest_request(call, ping.request).is_some() {
            return None;
        }
        let (slot, child) = self.nearest(call, ping.request)?;
        self.note_shown(slot, origin);
        let period = self.table.calls.get(call).settings.period;
        let record = self.table.records.at(slot);
        let relayed = &mut record.cold().relayed_pings;
        relayed.retain(|relayed| now < relayed.until);
        let again =
            |relayed: &RelayedPing| (relayed.request, relayed.abort) == (ping.request, ping.abort);
        if relayed.iter().any(again) || relayed.len() >= MAX_RELAYED {
            return None;
        }
        relayed.push(RelayedPing {
            request: ping.request,
            abort: ping.abort,
            until: now.saturating_add(period.divided_by(ONCE_A.1).saturating_mul(ONCE_A.0)),
        });
        Some(child)
    }

    /// Whether the request that a ping asks about was itself handed on from here: else [`Self::relay_target`] is where another one went
    /// that it came of.
    pub fn has_handed_on(&self, ping: &Ping) -> bool {
        let key = RecordedCallKey {
            call: ping.call,
            token: ping.token,
        };
        let Some(call) = self.table.call(&key) else {
            return false;
        };
        let RequestId { path, hop } = ping.request;
        let record = |slot| self.table.records.get(slot);
        if let Some(hop) = hop.checked_sub(1) {
            let before = RequestId { path, hop };
            let mut hops = self.table.hops(call, before).map(record);
            return hops.any(|record| record.id == before && record.continuation().is_some());
        }
        let hands_on = |record: &Record| record.child(&path).is_some();
        if path.is_folded() {
            return self.table.parents(call, path).map(record).any(hands_on);
        }
        let hop = u32::MAX;
        path.parent().is_some_and(|path| {
            let mut hops = self.table.hops(call, RequestId { path, hop }).map(record);
            hops.any(hands_on)
        })
    }

    /// A pong of another server passes by on its way to the initiator. If it knows its request, the one here that this
    /// came of is remembered for longer: pings may have to go on by it. So is, if no pings come, the one by which it goes on.
    #[inline(never)]
    pub fn pong_relayed(&mut self, pong: &Pong, now: Duration) {
        let (Some(token), Some(_)) = (pong.token, &pong.progress) else {
            return;
        };
        let now = Nanoseconds::from(now);
        let key = RecordedCallKey {
            call: pong.call,
            token,
        };
        let Some(call) = self.table.call(&key) else {
            return;
        };
        if let Some((onward, _)) = self.nearest(call, pong.request) {
            self.renew_relaying(onward, now);
        }
        if self.table.calls.get(call).settings.heartbeats.is_some() {
            self.renew_way_back(call, now);
        }
    }

    /// Heartbeats of a call leave: the request by which they go back is remembered for longer. It is looked for once in half a period,
    /// however many they are.
    pub(super) fn renew_way_back(&mut self, call: u32, now: Nanoseconds) {
        let known = self.table.calls.at(call);
        let pause = known.settings.quiet().divided_by(2);
        if known
            .way_back
            .is_some_and(|renewed| now < renewed.saturating_add(pause))
        {
            return;
        }
        known.way_back = Some(now);
        if let Some(back) = self.nearest_to_initiator(call) {
            self.renew_relaying(back, now);
        }
    }

    /// What others send, or what runs here now, goes on by this request: it is remembered for longer.
    pub(super) fn renew_relaying(&mut self, slot: u32, now: Nanoseconds) {
        let record = self.table.records.at(slot);
        record.pinged = now;
        // One that runs has heartbeats of its own, which must not come later for those of others.
        if record.ended
            || self
                .table
                .calls
                .get(record.call)
                .settings
                .heartbeats
                .is_none()
        {
            record.hear(now);
        }
        self.look_at(slot, now);
    }

    /// The connection that an answer of this call leaves by, if its initiator cannot be reached: that of the request here
    /// which is nearest to the initiator, or what took its place: see [`Self::direct_route`].
    pub fn route_back(&self, call: CallId, token: Token) -> Option<ConnId> {
        let route = self.relay_route((call, token), 0, None)?;
        Some(route.conn)
    }

    /// The same for an answer of another server that is so far from the initiator: see
    /// [`Response::distance`](crate::wire::Response::distance). Only a request that is nearer leads on, and not over the connection
    /// that the answer came `from`, nor over one that has ended, if the initiator has asked over its own about any request of the
    /// call.
    pub fn relay_route(
        &self,
        (call, token): (CallId, Token),
        distance: u32,
        from: Option<ConnId>,
    ) -> Option<RelayRoute> {
        let key = RecordedCallKey { call, token };
        let known = self.table.call(&key);
        let nearest = known.and_then(|call| self.nearest_to_initiator(call));
        let nearest = nearest.map(|slot| self.table.records.get(slot).route());
        let is_closed = |route: &RelayRoute| !self.conns.contains_key(&route.conn);
        // Nobody can take the place of the connection of a request that was forgotten.
        let forgotten = self.forgotten.get(&key).filter(|route| !is_closed(route));
        let routes = nearest.into_iter().chain(forgotten);
        let nearer = routes.filter(|route| distance == 0 || route.distance < distance);
        let nearest = nearer.min_by_key(|route| (route.distance, is_closed(route)))?;
        if Some(nearest.conn) != from && !is_closed(&nearest) {
            return Some(nearest);
        }
        let own = |(_, record): (u32, &Record)| self.direct_route(call.initiator, record.conn);
        let mut requests = known.into_iter().flat_map(|call| self.requests_of(call));
        let conn = requests.find_map(own).unwrap_or(nearest.conn);
        Some(RelayRoute { conn, ..nearest })
    }

    /// The route of a request that came here.
    pub fn route_of(
        &self,
        (call, token): (CallId, Token),
        request: RequestId,
    ) -> Option<RelayRoute> {
        let call = self.table.call(&RecordedCallKey { call, token })?;
        let slot = self.table.latest_request(call, request)?;
        Some(self.table.records.get(slot).route())
    }

    /// Where an answer of this request leaves that came over a connection of a peer which has it from here: that one's way back
    /// would lead here again. It is the connection of the request here that it came of, or, if who brought that has it from here,
    /// too, of the one before.
    pub fn route_before(
        &self,
        (call, token): (CallId, Token),
        mut request: RequestId,
        (mut came, mut peer): (ConnId, NodeId),
    ) -> Option<ConnId> {
        let call = self.table.call(&RecordedCallKey { call, token })?;
        let mut found = None;
        for _ in 0..MOST_TURNS {
            let Some((slot, _)) =
                (self.nearest(call, request)).filter(|(_, handed_to)| handed_to.node == Some(peer))
            else {
                break;
            };
            let before = self.table.records.get(slot);
            request = before.id;
            if before.conn == came {
                continue;
            }
            let Some(conn) = self.conns.get(&before.conn) else {
                break;
            };
            (came, peer) = (before.conn, conn.peer);
            found = Some(came);
        }
        found
    }

    /// The request of a call that is the fewest hops from the initiator; of equals one whose connection is open. It is looked for once,
    /// and again if it was forgotten or its connection has ended since: what passes by is asked about it, and there may be many requests.
    pub(super) fn nearest_to_initiator(&self, call: u32) -> Option<u32> {
        let nearest = &self.table.calls.get(call).nearest;
        let is_open = |record: &Record| self.conns.contains_key(&record.conn);
        if let Some((known, was_open)) = nearest.get()
            && (!was_open || is_open(self.table.records.get(known)))
        {
            return Some(known);
        }
        let known = self.requests_of(call);
        let found = known.min_by_key(|(_, record)| (record.depth, !is_open(record)));
        nearest.set(found.map(|(slot, record)| (slot, is_open(record))));
        found.map(|(slot, _)| slot)
    }

    /// Requests of a call, as many as are searched.
    fn requests_of(&self, call: u32) -> impl Iterator<Item = (u32, &Record)> {
        let searched = self.table.requests(call).take(MAX_SEARCHED);
        let records = searched.map(|slot| (slot, self.table.records.get(slot)));
        // The mark of an aborted call came with no request.
        records.filter(|(_, record)| record.id.path != Path::ROOT)
    }

    /// The request here that another one came of, the nearest on its line, and where that handed it on.
    pub(super) fn nearest(&self, call: u32, request: RequestId) -> Option<(u32, Child)> {
        let RequestId { path, hop } = request;
        let before = hop.checked_sub(1).and_then(|hop| {
            let hops = self.table.hops(call, RequestId { path, hop });
            self.latest(hops, Record::continuation)
        });
        let parent = || match path.is_folded() {
            true => self.latest(self.table.parents(call, path), |record| record.child(&path)),
            false => self.nearest_above(call, path),
        };
        let (slot, child) = before.or_else(parent)?;
        Some((slot, child.clone()))
    }

    /// The same of the branches above a place.
    fn nearest_above(&self, call: u32, mut below: Path) -> Option<(u32, &Child)> {
        while let Some(path) = below.parent() {
            let hop = u32::MAX;
            let hops = || self.table.hops(call, RequestId { path, hop });
            // A branch may have come here again and gone on elsewhere since.
            let itself = self.latest(hops(), |record| record.child(&below));
            let further = || self.latest(hops(), Record::continuation);
            if let Some(found) = itself.or_else(further) {
                return Some(found);
            }
            below = path;
        }
        None
    }

    /// The latest of some requests that handed work on, and where.
    fn latest<'a>(
        &'a self,
        slots: impl Iterator<Item = u32>,
        towards: impl Fn(&'a Record) -> Option<&'a Child>,
    ) -> Option<(u32, &'a Child)> {
        let handed = slots.filter_map(|slot| {
            let record = self.table.records.get(slot);
            Some((record.name(), slot, towards(record)?))
        });
        let latest = handed.max_by_key(|(name, ..)| *name);
        latest.map(|(_, slot, child)| (slot, child))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::records::collect::tests::{node, request};
    use crate::call::records::table::looks;
    use crate::call::records::{Judgement, RecordLimits};
    use crate::wire::{ReplyTo, Request};

    /// A request with this place comes over a connection, so many hops from its initiator.
    fn come(records: &mut Records, number: u32, (conn, depth): (u64, u32)) -> u32 {
        let mut request = Request {
            depth,
            reply_to: ReplyTo::Relay,
            ..request(9, 1)
        };
        request.id.path = Path::ROOT.child(number, request.call, request.token);
        let origin = MessageOrigin {
            conn: ConnId::from_number(conn),
            peer: node(conn),
            transit: Duration::ZERO,
        };
        match records.admit(&request, origin, Duration::ZERO) {
            Judgement::Accepted(ticket) => records.slot(ticket).expect("it is known"),
            other => panic!("{other:?}"),
        }
    }

    /// However many requests of its call are here, what passes by does not have them all looked at.
    #[test]
    fn the_way_back_of_a_large_call_is_looked_for_once() {
        const FEW: usize = 16;
        let mut records = Records::new(RecordLimits::default());
        for conn in 1..=3 {
            records.conn_opened(ConnId::from_number(conn), node(conn));
        }
        let Request { call, token, .. } = request(9, 1);
        let expect = |records: &Records, expected: Option<(u64, u32)>, most| {
            looks::take();
            let from = Some(ConnId::from_number(3));
            let route = records.relay_route((call, token), 9, from);
            let expected = expected.map(|(conn, distance)| RelayRoute {
                conn: ConnId::from_number(conn),
                distance,
            });
            assert_eq!(route, expected);
            let looks = looks::take();
            assert!(looks <= most, "{looks} looks");
        };
        expect(&records, None, FEW);
        for number in 0..1000 {
            come(&mut records, number, (1, 3));
            expect(&records, Some((1, 4)), FEW);
        }
        let nearer = come(&mut records, 1000, (2, 1));
        expect(&records, Some((2, 2)), FEW);
        come(&mut records, 1001, (1, 2));
        expect(&records, Some((2, 2)), FEW);
        records.table.records.at(nearer).ended = true;
        records.table.remove_record(nearer);
        expect(&records, Some((1, 3)), 2 * MAX_SEARCHED);
        expect(&records, Some((1, 3)), FEW);
        // Once its connection has ended, only for what took the place of that.
        records.conn_ended(ConnId::from_number(1), Duration::ZERO);
        expect(&records, Some((1, 3)), 2 * MAX_SEARCHED);
        expect(&records, Some((1, 3)), MAX_SEARCHED + FEW);
        // Only one that is nearer leads on.
        let route = records.relay_route((call, token), 3, None);
        assert_eq!(route, None);
    }
}
