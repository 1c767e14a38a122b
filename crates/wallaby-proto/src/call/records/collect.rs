//! What is forgotten, and when: in time, or for want of room.

use crate::call::records::time::{Nanoseconds, PingTimes};
use crate::call::records::{MOST_LOOKED_AT, Records};

/// Ended requests that are looked at to find one that can be forgotten.
const MOST_SEEN: usize = 8;

/// The default's, and one for each power of two of 16 ms that longer ones come to.
pub(super) const CLASSES: u32 = 32;

/// Which queue is for requests of calls with these settings, once they have ended. A queue has those that are remembered for
/// about the same time, in the order in which they ended or were pinged last: so the first of each is the next one to be
/// forgotten in time, and the oldest of all is one of these.
pub(super) fn class(settings: PingTimes, default: PingTimes) -> u32 {
    if settings.gc_timeout() <= default.gc_timeout() {
        return 0;
    }
    settings.gc_timeout().magnitude().clamp(1, CLASSES - 1)
}

impl Records {
    /// Whether another request can be remembered, if need be after forgetting one that has ended.
    pub(super) fn has_room(&mut self, now: Nanoseconds) -> bool {
        self.table.records.len() < self.limits.requests || self.evict(now)
    }

    /// Forgets the request that ended first of all; `false` if all run or are being written.
    #[inline(never)]
    pub(super) fn evict(&mut self, now: Nanoseconds) -> bool {
        let mut unread = None;
        for _ in 0..MOST_SEEN {
            let slot = match self.first_ended() {
                Some(slot) if unread != Some(slot) => slot,
                _ => return false,
            };
            if !self.is_being_written(slot) {
                self.forget_early(slot, now);
                return true;
            }
            // Nobody else may know what is still under way.
            self.renew(slot, now);
            unread = unread.or(Some(slot));
        }
        // Those who do not read what they asked for keep nobody else out.
        if let Some(slot) = unread {
            self.forget_early(slot, now);
        }
        unread.is_some()
    }

    /// The request that ended first.
    fn first_ended(&self) -> Option<u32> {
        let firsts = (0..CLASSES).filter_map(|class| self.ended.first(class));
        firsts.min_by_key(|slot| self.table.records.get(*slot).since)
    }

    /// An ended request counts as one that has ended now.
    pub(super) fn renew(&mut self, slot: u32, now: Nanoseconds) {
        let record = self.table.records.at(slot);
        record.since = now;
        self.ended.remove(slot);
        let call = self.table.calls.get(record.call);
        self.ended.push(call.class, slot);
    }

    /// Forgets an initiator of which nothing runs or is being written, and nothing has come for a while; `false` if none is
    /// found. So who makes up initiators displaces these, and not what is remembered of who is busy.
    #[inline(never)]
    pub(super) fn evict_peer(&mut self, now: Nanoseconds) -> bool {
        if let Some(bare) = self.table.first_bare() {
            self.table.remove_peer(bare);
            return true;
        }
        for _ in 0..MOST_SEEN {
            let next = self.table.next_peer(now);
            let Some(peer) = next.filter(|peer| !self.is_needed(*peer)) else {
                continue;
            };
            let calls: Vec<u32> = self.table.calls_of(peer).collect();
            calls
                .into_iter()
                .for_each(|call| self.forget_ended(call, now));
            if self.table.peers.get(peer).has_no_calls() {
                self.table.remove_peer(peer);
                return true;
            }
        }
        false
    }

    /// Whether something of an initiator runs, or is being written, as far as a few of its requests show.
    fn is_needed(&self, peer: u32) -> bool {
        let calls = self.table.calls_of(peer).take(MOST_SEEN);
        let mut few = calls.flat_map(|call| self.table.requests(call).take(MOST_SEEN));
        few.any(|slot| !self.table.records.get(slot).ended || self.is_being_written(slot))
    }

    /// Forgets the requests of a call that have ended.
    fn forget_ended(&mut self, call: u32, now: Nanoseconds) {
        let mut next = self.table.requests(call).next();
        while let Some(slot) = next {
            next = self.table.request_after(call, slot);
            if self.table.records.get(slot).ended {
                self.forget_early(slot, now);
            }
        }
    }

    fn forget_early(&mut self, slot: u32, now: Nanoseconds) {
        let gc_timeout = self.gc_timeout_of(slot);
        self.evicted_until = self.evicted_until.max(now.saturating_add(gc_timeout));
        let record = self.table.records.get(slot);
        let key = self.table.calls.get(record.call).key;
        if record.has_delegated() {
            let conns = &self.conns;
            self.forgotten
                .note(key, record.route(), |conn| !conns.contains_key(&conn));
        }
        self.forget(slot);
    }

    fn is_being_written(&self, slot: u32) -> bool {
        let outputs = &self.table.records.get(slot).outputs;
        outputs.are_being_written(&self.conns)
    }

    /// How long a request is remembered after its end: its call may want more than the default, but gets no less.
    fn gc_timeout_of(&self, slot: u32) -> Nanoseconds {
        let record = self.table.records.get(slot);
        let settings = self.table.calls.get(record.call).settings;
        settings.gc_timeout().max(self.gc_timeout)
    }

    pub(super) fn forget(&mut self, slot: u32) {
        let record = self.table.records.at(slot);
        if let Some(due) = record.due.take() {
            self.queue.remove(&(due, slot));
        }
        if let Some(first) = record.kept.take() {
            self.kept.forget(first);
        }
        self.fresh.remove(slot);
        self.ended.remove(slot);
        self.table.remove_record(slot);
    }

    /// Sees to it that what has ended is looked through at this time.
    #[inline(never)]
    pub(super) fn collect_at(&mut self, due: Nanoseconds) {
        if due < self.collect_at {
            self.collect_at = due;
            self.note_due(due);
        }
    }

    /// Forgets what has ended long enough ago, and initiators of which nothing is left.
    pub(super) fn collect(&mut self, now: Nanoseconds) {
        let (mut next, mut looked_at) = (Nanoseconds::NEVER, 0);
        for class in 0..CLASSES {
            while let Some(slot) = self.ended.first(class) {
                let since = self.table.records.get(slot).since;
                let due = since.saturating_add(self.gc_timeout_of(slot));
                if due > now || looked_at >= MOST_LOOKED_AT {
                    next = next.min(due.max(now));
                    break;
                }
                looked_at += 1;
                self.forget(slot);
            }
        }
        next = next.min(self.collect_bare(now));
        self.collect_at = Nanoseconds::NEVER;
        if next != Nanoseconds::NEVER {
            self.collect_at(next.min(now.saturating_add(self.gc_timeout)));
        }
    }

    /// The same for initiators alone; when the next one is due.
    fn collect_bare(&mut self, now: Nanoseconds) -> Nanoseconds {
        let mut next = Nanoseconds::NEVER;
        let mut kept = None;
        for _ in 0..MOST_LOOKED_AT {
            let Some(peer) = self.table.first_bare().filter(|peer| kept != Some(*peer)) else {
                break;
            };
            let at_peer = self.table.peers.get(peer);
            let due = at_peer.heard.saturating_add(at_peer.gc_timeout);
            if due <= now {
                self.table.remove_peer(peer);
            } else {
                // It may have been heard of since it came here.
                next = next.min(due);
                kept = kept.or(Some(peer));
                self.table.note_bare(peer);
            }
        }
        match self.table.first_bare() {
            Some(_) if next == Nanoseconds::NEVER => now,
            _ => next,
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::time::Duration;

    use bytes::Bytes;

    use crate::call::records::table::looks;
    use crate::call::records::{
        ConnId, Judgement, MessageOrigin, OutputMark, RecordLimits, Records,
    };
    use crate::call::server::{Outbound, ServerHalf};
    use crate::id::{CallId, NodeId, Path, RequestId, Token};
    use crate::wire::{MethodRef, ReplyTo, Request};

    pub(in crate::call::records) fn node(number: u64) -> NodeId {
        NodeId::new(number).expect("not zero")
    }

    pub(in crate::call::records) fn request(initiator: u64, sequence: u64) -> Request {
        let call = CallId {
            initiator: node(initiator),
            sequence,
        };
        let token = Token::new(7);
        Request {
            call,
            token,
            id: RequestId {
                path: Path::ROOT.child(0, call, token),
                hop: 0,
            },
            depth: 0,
            base: 0,
            reply_to: ReplyTo::Peer,
            manifest: None,
            deadline: None,
            oldest: 1,
            traced: false,
            compressed: false,
            waited: Duration::ZERO,
            options: None,
            method: MethodRef::Number(0),
            payload: Bytes::new(),
        }
    }

    /// A request comes over this connection, and ends with its answer at this mark of its output.
    pub(in crate::call::records) fn answer(
        records: &mut Records,
        conn: u64,
        mut request: Request,
        mark: u64,
    ) {
        let origin = MessageOrigin {
            conn: ConnId::from_number(conn),
            peer: node(conn),
            transit: Duration::ZERO,
        };
        match records.admit(&request, origin, Duration::ZERO) {
            Judgement::Accepted(ticket) => {
                let mut server = ServerHalf::<()>::new(&mut request);
                for sent in server.respond(Bytes::new(), None) {
                    if let Outbound::Response(response) = sent {
                        let output = OutputMark {
                            conn: ConnId::from_number(conn),
                            mark,
                        };
                        records.response_released(ticket, &response, Some(output), Duration::ZERO);
                    }
                }
            }
            Judgement::Refused(_) => {}
            other => panic!("{other:?}"),
        }
    }

    /// The most that one of 200 requests costs once a table of this size is full.
    fn most_looks(
        size: usize,
        spoil: fn(&mut Records, usize),
        next: fn(u64) -> (u64, u64),
    ) -> usize {
        let limits = RecordLimits {
            requests: size,
            initiators: size,
            ..RecordLimits::default()
        };
        let mut records = Records::new(limits);
        for conn in 1..5 {
            records.conn_opened(ConnId::from_number(conn), node(conn));
        }
        spoil(&mut records, size);
        let mut most = 0;
        for number in 0..200 {
            let (initiator, sequence) = next(number);
            looks::take();
            answer(&mut records, 4, request(initiator, sequence), 0);
            most = most.max(looks::take());
        }
        most
    }

    /// A server on the way says that ever more calls are over, while thousands of them still run here.
    #[test]
    fn calls_that_are_over_and_still_run_are_looked_at_once() {
        let mut records = Records::new(RecordLimits::default());
        records.conn_opened(ConnId::from_number(1), node(1));
        let origin = MessageOrigin {
            conn: ConnId::from_number(1),
            peer: node(1),
            transit: Duration::ZERO,
        };
        let (mut most, mut once) = (0, 0);
        for sequence in 1..=5000 {
            let request = Request {
                oldest: if sequence > 4000 { sequence } else { 1 },
                ..request(9, sequence)
            };
            looks::take();
            records.admit(&request, origin, Duration::ZERO);
            let looks = looks::take();
            // At first those are looked at, a part for each request, of which all were said to be over at once.
            match sequence > 4100 {
                true => most = most.max(looks),
                false => once = once.max(looks),
            }
        }
        assert_eq!(records.remembered().requests, 5000);
        assert!(once < 2000, "{once}");
        assert!(most < 100, "{most}");
    }

    #[test]
    fn who_makes_up_initiators_displaces_these() {
        let limits = RecordLimits {
            initiators: 100,
            ..RecordLimits::default()
        };
        let mut records = Records::new(limits);
        for conn in 1..3 {
            records.conn_opened(ConnId::from_number(conn), node(conn));
        }
        let mut now = Duration::ZERO;
        let mut admit = |initiator, sequence, conn| {
            let origin = MessageOrigin {
                conn: ConnId::from_number(conn),
                peer: node(conn),
                transit: Duration::ZERO,
            };
            now += Duration::from_micros(1);
            let mut request = request(initiator, sequence);
            let Judgement::Accepted(ticket) = records.admit(&request, origin, now) else {
                return false;
            };
            let mut server = ServerHalf::<()>::new(&mut request);
            for sent in server.respond(Bytes::new(), None) {
                if let Outbound::Response(response) = sent {
                    let (conn, mark) = (ConnId::from_number(conn), 0);
                    let output = Some(OutputMark { conn, mark });
                    records.response_released(ticket, &response, output, now);
                }
            }
            true
        };
        // One that is busy has the oldest of all requests that have ended.
        for number in 0..5000 {
            if number % 20 == 0 {
                assert!(admit(1, 1 + number / 20, 1));
            }
            assert!(admit(1 << 32 | number, 1, 2), "{number}");
        }
        for sequence in 1..=250 {
            let again = request(1, sequence);
            let origin = MessageOrigin {
                conn: ConnId::from_number(1),
                peer: node(1),
                transit: Duration::ZERO,
            };
            let judgement = records.admit(&again, origin, now);
            assert!(
                matches!(judgement, Judgement::Duplicate),
                "{sequence}: {judgement:?}"
            );
        }
    }

    #[test]
    fn a_request_costs_the_same_however_many_are_remembered() {
        let ended: fn(&mut Records, usize) = |records, size| {
            (1..=size as u64).for_each(|sequence| answer(records, 1, request(1, sequence), 0));
        };
        let unread: fn(&mut Records, usize) = |records, size| {
            (1..=size as u64).for_each(|sequence| answer(records, 1, request(1, sequence), 9));
        };
        let invented: fn(&mut Records, usize) = |records, size| {
            (1..=size as u64).for_each(|number| answer(records, 1, request(9 + number, 1), 0));
        };
        let invented_unread: fn(&mut Records, usize) = |records, size| {
            (1..=size as u64).for_each(|number| answer(records, 1, request(9 + number, 1), 9));
        };
        let known: fn(u64) -> (u64, u64) = |number| (2, number + 1);
        let strangers: fn(u64) -> (u64, u64) = |number| (1 << 32 | number, 1);
        for spoil in [ended, unread, invented, invented_unread] {
            for next in [known, strangers] {
                let [few, many] = [1_000, 10_000].map(|size| most_looks(size, spoil, next));
                println!("{few} looks among 1,000, {many} among 10,000");
                assert!(many < few + 100 && many < 300);
            }
        }
    }
}
