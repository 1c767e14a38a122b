//! Connections that have ended by which answers went on to initiators at their other side, or that brought requests for others or
//! took some on: any record may be concerned.
//!
//! To look at all records each time would let peers that connect and leave keep a server busy whose table is full. So records
//! are looked at in passes, each for all connections that had ended when it began, and a step of a pass at a time.

use std::collections::BTreeMap;
use std::mem;
use std::time::Duration;

use crate::call::records::outputs::OutputMark;
use crate::call::records::table::Record;
use crate::call::records::time::Nanoseconds;
use crate::call::records::{ConnId, Records, Ticket};

/// Records that a step looks at: a small fraction of a millisecond.
const STEP: u32 = 4096;

/// Ping periods after which an initiator has asked where a request went on.
const KNOWN: u64 = 3;

/// From one step to the next, unless a pass is done: so passes take a fraction of the time, however many connections end.
const PAUSE: Duration = Duration::from_millis(1);

/// Passes to be made.
#[derive(Debug, Default)]
pub(super) struct LostConns {
    /// For which connections the pass under way is, and what each other end has confirmed.
    sought: BTreeMap<ConnId, Option<u64>>,
    /// The same of those that ended since it began.
    later: BTreeMap<ConnId, Option<u64>>,
    /// Where it goes on.
    next: u32,
    /// Not before that.
    due: Nanoseconds,
}

impl LostConns {
    pub(super) fn note(&mut self, conn: ConnId, confirmed: Option<u64>) {
        match self.next {
            0 => self.sought.insert(conn, confirmed),
            _ => self.later.insert(conn, confirmed),
        };
    }

    pub(super) fn next_due(&self) -> Option<Nanoseconds> {
        (!self.sought.is_empty()).then_some(self.due)
    }

    /// Whether a request came over one of them, or was handed on.
    fn has_handed(&self, record: &Record) -> bool {
        let ended = |conn: &ConnId| self.sought.contains_key(conn);
        !record.direct && ended(&record.conn)
            || record.outputs.any_delegated(|output| ended(&output.conn))
    }

    fn has_lost(&self, output: &OutputMark) -> bool {
        let ended = self.sought.get(&output.conn);
        ended.is_some_and(|confirmed| confirmed.is_none_or(|mark| output.mark > mark))
    }
}

impl Records {
    /// Whether the initiator may not know where a request is, or where it went on: one that ended long ago has been asked since.
    fn may_be_unknown(&self, record: &Record, now: Nanoseconds) -> bool {
        let call = self.table.calls.get(record.call);
        let known = record
            .since
            .saturating_add(call.settings.quiet().saturating_mul(KNOWN));
        let runs = !record.ended || record.outputs.are_being_written(&self.conns);
        !call.aborted && (runs || record.has_delegated() && known > now)
    }

    /// A request that came by a connection was handed on by datagrams: if this endpoint goes, its initiator is told, and who has
    /// the request now is not. So the initiator is told of that one, once for all that are handed on in a turn.
    pub fn announce_after_delegation(&mut self, ticket: Ticket, now: Duration) {
        if self.to_announce.last() != Some(&ticket) {
            self.to_announce.push(ticket);
            self.note_due(now.into());
        }
    }

    /// This endpoint is about to be closed: initiators are told where requests went on of which they may not know that yet.
    pub fn announce_handed_on(&mut self, now: Duration) {
        let now = now.into();
        for slot in self.table.records.all() {
            let record = self.table.records.get(slot);
            if record.has_delegated() && self.may_be_unknown(record, now) {
                self.announce(slot, now);
            }
        }
    }

    /// Tells of these.
    pub(super) fn announce_delegating(&mut self, now: Nanoseconds) {
        for ticket in mem::take(&mut self.to_announce) {
            if let Some(slot) = self.slot(ticket) {
                self.announce(slot, now);
            }
        }
    }

    /// A connection has ended that may concern any record: a pass is to be made, or goes on.
    pub(super) fn note_lost(&mut self, conn: ConnId, confirmed: Option<u64>, now: Nanoseconds) {
        self.lost.note(conn, confirmed);
        self.note_due(self.lost.due);
        self.look_for_lost(now);
    }

    /// The next step, if it is time: whose answers may have been lost is announced, and what came from there or went there.
    pub(super) fn look_for_lost(&mut self, now: Nanoseconds) {
        if self.lost.next_due().is_none_or(|due| due > now) {
            return;
        }
        let slots = self.table.records.all();
        let from = self.lost.next.min(slots.end);
        let to = from.saturating_add(STEP).min(slots.end);
        for slot in from..to {
            let record = self.table.records.get(slot);
            let is_lost = record.outputs.any(|output| self.lost.has_lost(output));
            if is_lost || self.lost.has_handed(record) && self.may_be_unknown(record, now) {
                self.announce(slot, now);
            }
        }
        let is_done = to == slots.end;
        self.lost.next = if is_done { 0 } else { to };
        if is_done {
            self.lost.sought = mem::take(&mut self.lost.later);
        }
        self.lost.due = now.saturating_add(PAUSE.into());
        if let Some(due) = self.lost.next_due() {
            self.note_due(due);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::records::MessageOrigin;
    use crate::call::records::collect::tests::{answer, node, request};
    use crate::call::records::table::looks;
    use crate::call::records::{RecordAction, RecordLimits};
    use crate::wire::ReplyTo;

    const FRONT: ConnId = ConnId::from_number(1);

    /// So many requests whose initiator cannot be dialled have come over a connection and were answered, which nobody confirms.
    fn answered(requests: u64) -> Records {
        let limits = RecordLimits::default();
        let mut records = Records::new(limits);
        records.conn_opened(FRONT, node(1));
        for sequence in 1..=requests {
            let mut request = request(1000, sequence);
            (request.reply_to, request.depth) = (ReplyTo::Relay, 1);
            answer(&mut records, 1, request, 9);
        }
        records
    }

    fn announced(records: &mut Records) -> usize {
        let actions = std::iter::from_fn(|| records.poll());
        let is_it = |action: &RecordAction| matches!(action, RecordAction::Announce { .. });
        actions.filter(is_it).count()
    }

    #[test]
    fn all_that_was_lost_is_announced_step_by_step() {
        step_by_step(answered);
    }

    /// The initiator's own connection has brought all of them.
    #[test]
    fn what_very_many_requests_of_one_client_have_lost_is_announced_step_by_step() {
        step_by_step(|requests| {
            let mut records = Records::new(RecordLimits::default());
            records.conn_opened(FRONT, node(1));
            for sequence in 1..=requests {
                answer(&mut records, 1, request(1, sequence), 9);
            }
            records
        });
    }

    /// A client leaves right after a pass for another one has ended.
    #[test]
    fn who_leaves_right_after_a_pass_is_looked_for_soon() {
        let mut records = Records::new(RecordLimits::default());
        for client in [1, 2] {
            records.conn_opened(ConnId::from_number(client), node(client));
            for sequence in 1..=u64::from(STEP) + 1 {
                answer(&mut records, client, request(client, sequence), 9);
            }
        }
        let mut now = Duration::ZERO;
        records.conn_ended(ConnId::from_number(1), now);
        while records.lost.next_due().is_some() {
            now += PAUSE;
            records.handle_timeout(now);
        }
        records.take_sooner();
        records.conn_ended(ConnId::from_number(2), now);
        assert_eq!(records.take_sooner(), Some(now + PAUSE));
    }

    fn step_by_step(answered: impl FnOnce(u64) -> Records) {
        let (requests, mut now) = (3 * u64::from(STEP) - 5, Duration::ZERO);
        let mut records = answered(requests);
        records.conn_ended(FRONT, now);
        let mut all = announced(&mut records);
        assert!(all > 0 && all <= STEP as usize, "{all}");
        for _ in 0..2 {
            now += PAUSE;
            records.handle_timeout(now);
            all += announced(&mut records);
        }
        assert_eq!(all as u64, requests);
    }

    /// A table is full, and peers connect, have one request answered, and leave.
    #[test]
    fn who_comes_and_leaves_does_not_make_all_records_be_looked_at() {
        let mut records = answered(10_000);
        let now = Duration::ZERO;
        let mut most = 0;
        for conn in 2..200 {
            records.conn_opened(ConnId::from_number(conn), node(conn));
            let mut request = request(1001, conn);
            (request.reply_to, request.depth) = (ReplyTo::Relay, 1);
            answer(&mut records, conn, request, 9);
            looks::take();
            records.conn_ended(ConnId::from_number(conn), now);
            if conn > 2 {
                most = most.max(looks::take());
            }
        }
        assert!(most < 100, "{most}");
        looks::take();
        records.handle_timeout(now + PAUSE);
        assert!(looks::take() <= 3 * STEP as usize);
    }

    /// One client has many requests remembered, of which some came over more connections than are told apart. From then on it, or
    /// whoever claims its node id, connects, says hello and leaves.
    #[test]
    fn a_connection_that_brought_nothing_ends_without_a_look_at_requests() {
        const REQUESTS: u64 = 50_000;
        let mut records = Records::new(RecordLimits::default());
        let victim = node(1000);
        for conn in 1..=17 {
            records.conn_opened(ConnId::from_number(conn), victim);
            let origin = MessageOrigin {
                conn: ConnId::from_number(conn),
                peer: victim,
                transit: Duration::ZERO,
            };
            records.admit(&request(1000, conn), origin, Duration::ZERO);
        }
        let origin = MessageOrigin {
            conn: ConnId::from_number(1),
            peer: victim,
            transit: Duration::ZERO,
        };
        for sequence in 18..REQUESTS {
            records.admit(&request(1000, sequence), origin, Duration::ZERO);
        }
        looks::take();
        let mut most = 0;
        for conn in 100..110 {
            records.conn_opened(ConnId::from_number(conn), victim);
            records.conn_ended(ConnId::from_number(conn), Duration::ZERO);
            most = most.max(looks::take());
        }
        assert!(most <= 3 * STEP as usize, "{most} records for one hello");
    }
}
