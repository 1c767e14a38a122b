//! What a request sends: noted as its server half releases it.

use std::time::Duration;

use crate::call::records::table::{NewRecord, Record, RecordedCallKey};
use crate::call::records::time::Nanoseconds;
use crate::call::records::{ConnId, Frozen, OutputMark, Records, ReleasedMessage, Ticket};
use crate::call::server::Delegated;
use crate::call::shares::Share;
use crate::id::{CallId, NodeId, RequestId, Token};
use crate::manifest::{Facts, Manifest};
use crate::wire::{Child, End, Message, Request, Response};

impl Records {
    /// The server half of a request released an answer: a response or the end of its branch. Nothing is remembered of one without a
    /// ticket.
    pub fn answer_released(
        &mut self,
        ticket: Option<Ticket>,
        message: &Message,
        output: Option<OutputMark>,
        now: Duration,
    ) {
        match (ticket, message) {
            (Some(ticket), Message::Response(response)) => {
                self.response_released(ticket, response, output, now);
            }
            (Some(ticket), Message::End(end)) => self.end_released(ticket, end, output, now),
            _ => {}
        }
    }

    /// The server half of a request released a response, or a status. `output` is its place in a connection's output, if it
    /// has one yet.
    pub fn response_released(
        &mut self,
        ticket: Ticket,
        response: &Response,
        output: Option<OutputMark>,
        now: Duration,
    ) {
        let Some(slot) = self.slot(ticket) else {
            return;
        };
        let record = self.table.records.at(slot);
        let now = Nanoseconds::from(now);
        record.count = response.index.saturating_add(1);
        if !self.table.calls.get(record.call).aborted {
            record.kept = self.kept.keep(response, record.kept);
        }
        // Heartbeats come beside answers: that they leave is what their initiator is believed in for.
        if self
            .table
            .calls
            .get(record.call)
            .settings
            .heartbeats
            .is_none()
        {
            record.hear(now);
        }
        record.learn(&response.manifest);
        if response.last {
            record.facts = Some(Facts {
                requests: 0,
                responses: record.count,
            });
        }
        record.failed = response.status && record.facts.is_some();
        self.note_release(slot, ReleasedMessage::Response(response.index), output, now);
    }

    /// The server half of a request released the end of its branch.
    pub fn end_released(
        &mut self,
        ticket: Ticket,
        end: &End,
        output: Option<OutputMark>,
        now: Duration,
    ) {
        if let Some(slot) = self.slot(ticket) {
            self.table.records.at(slot).facts = Some(end.facts);
            self.note_release(slot, ReleasedMessage::End, output, now.into());
        }
    }

    /// The server half of a request released a delegation to this server.
    ///
    /// # Errors
    ///
    /// If it must not be sent, as the call was aborted meanwhile or its deadline has passed: what the server half counts as sent is answered with a
    /// status, in its name ([`crate::call::server::undelivered`]).
    pub fn delegation_released<T>(
        &mut self,
        ticket: Ticket,
        delegated: &Delegated<T>,
        to: Child,
        output: Option<OutputMark>,
        now: Duration,
    ) -> Result<(), Frozen> {
        let Some(slot) = self.slot(ticket) else {
            return Err(Frozen::Aborted);
        };
        let now = Nanoseconds::from(now);
        let may = self.may_delegate(ticket);
        let record = self.table.records.at(slot);
        let late = record.deadline <= now;
        record.learn(&delegated.manifest);
        if delegated.id.path == record.id.path {
            record.cold().continuation = Some(to);
        } else {
            self.table.add_child(slot, delegated.id.path, to);
        }
        if may && !late {
            self.note_release(slot, ReleasedMessage::Delegation, output, now);
            return Ok(());
        }
        self.end_if_over(slot, now);
        Err(if may { Frozen::Late } else { Frozen::Aborted })
    }

    /// A released delegation was handed to a connection with this incarnation, which was not known when it was released: from now
    /// on the initiator is told of it.
    #[inline(never)]
    pub fn delegation_taken(&mut self, ticket: Ticket, request: RequestId, node: NodeId) {
        if let Some(slot) = self.slot(ticket)
            && let Some(child) = self.child_mut(slot, request)
        {
            child.node = Some(node);
        }
    }

    /// Where a request was handed on to, by the one at this slot.
    fn child_mut(&mut self, slot: u32, request: RequestId) -> Option<&mut Child> {
        let record = self.table.records.at(slot);
        let own = record.id.path;
        if request.path == own {
            return record.cold().continuation.as_mut();
        }
        record.cold().children.find_mut(&own, &request.path)
    }

    /// A released delegation certainly was not delivered: this server answers or handles it in its name
    /// ([`crate::call::server::undelivered`], docs/protocol.md, rule 19), and is from now on where the initiator finds it. `own`
    /// says where that is. What is returned names the delegated request, and says whether it may be handled here: only if that is
    /// `wanted`, and if its connection, its initiator and its call may have one more. `None` if there is no room, then it is answered
    /// without being remembered.
    pub fn delegation_undelivered(
        &mut self,
        ticket: Ticket,
        (request, wanted): (&Request, bool),
        own: Child,
        now: Duration,
    ) -> Option<(Ticket, bool)> {
        let slot = self.slot(ticket)?;
        let now = Nanoseconds::from(now);
        self.dropped(ticket, ReleasedMessage::Delegation);
        let record = self.table.records.at(slot);
        let attempt = record.attempt;
        *self.child_mut(slot, request.id)? = own;
        let record = self.table.records.get(slot);
        let (call, depth, conn, direct) = (record.call, record.depth, record.conn, record.direct);
        let (reply_to, carried) = (record.reply_to(), record.quiet(now));
        let deadline = record.deadline;
        if self.table.request(call, request.id, attempt).is_some() || !self.has_room(now) {
            return None;
        }
        self.slot(ticket)?; // it may have been forgotten to make room
        let share = match wanted {
            true => self.share_of_undelivered(call, request, conn),
            false => None,
        };
        let slot = self.table.add_record(NewRecord {
            call,
            id: request.id,
            attempt,
            depth: depth.saturating_add(1),
            base: request.base,
            manifest: request.manifest.as_ref(),
            conn,
            share: share.unwrap_or(Share::NOBODY), // it ends at once
            direct,
            reply_to: &reply_to,
            carried,
            deadline,
            now,
        });
        self.look_at(slot, now);
        Some((self.ticket(slot), share.is_some()))
    }

    /// What a request that is handled in place of another server takes, as one that comes: `None` if there is none.
    fn share_of_undelivered(
        &mut self,
        call: u32,
        request: &Request,
        conn: ConnId,
    ) -> Option<Share> {
        let is_stated = (request.options.as_ref()).is_some_and(|options| options.budgets.is_some());
        let unstated = u32::from(!is_stated);
        let taken = self.table.calls.get(call).unstated;
        if unstated > 0 && taken >= self.limits.requests_of_call {
            return None;
        }
        let share = (self.shares.try_take(conn, request.call.initiator)).ok()?;
        self.table.calls.at(call).unstated += unstated;
        Some(share)
    }

    /// A released message, or a response that is sent again, got its place in a connection's output.
    pub fn placed(&mut self, ticket: Ticket, sent: ReleasedMessage, output: OutputMark) {
        if let Some(slot) = self.slot(ticket) {
            self.place(slot, sent, output);
        }
    }

    /// A released message, or a response that should be sent again, will not be sent. It may have had its place already.
    pub fn dropped(&mut self, ticket: Ticket, sent: ReleasedMessage) {
        let Some(slot) = self.slot(ticket) else {
            return;
        };
        let outputs = &mut self.table.records.at(slot).outputs;
        match sent {
            ReleasedMessage::Response(index) => outputs.drop_response(index),
            ReleasedMessage::End | ReleasedMessage::Delegation => {
                outputs.waiting = outputs.waiting.saturating_sub(1)
            }
        }
    }

    /// A response that should be sent again is larger than its connection takes. It is not sent again there, and is lost if
    /// nothing of it can arrive any more: the initiator must learn that, not wait.
    pub fn too_large(&mut self, ticket: Ticket, index: u32) {
        if let Some(slot) = self.slot(ticket) {
            self.table.records.at(slot).outputs.refuse(index);
        }
    }

    /// A status was put in place of a response that was released, as its initiator takes none so large: it is what is sent
    /// again from now on.
    pub fn response_replaced(&mut self, ticket: Ticket, status: &Response) {
        if let Some(slot) = self.slot(ticket) {
            let record = self.table.records.at(slot);
            let ends = status.last
                || status
                    .manifest
                    .is_some_and(|own| own.owner == record.id.path);
            record.failed |= ends;
            self.kept.replace(record.kept, status);
        }
    }

    /// The handler made progress: it started, got something it waited for, or said so itself. Messages that it releases
    /// count without this.
    pub fn progressed(&mut self, ticket: Ticket, now: Duration) {
        if let Some(slot) = self.slot(ticket) {
            self.table.records.at(slot).progress(now.into());
        }
    }

    /// Whether the request may still delegate.
    pub fn may_delegate(&self, ticket: Ticket) -> bool {
        self.slot(ticket).is_some_and(|slot| {
            let record = self.table.records.get(slot);
            !record.ended && !record.stopped && !self.table.calls.get(record.call).aborted
        })
    }

    /// The time that a delegation has which was released, and has waited for its connection or for credit: it says so when
    /// it is sent. `None` if it must not be sent any more, as its call was aborted meanwhile or is over, or its deadline has
    /// passed. Then it is [`Self::dropped`].
    pub fn time_left(&self, ticket: Ticket, now: Duration) -> Option<Duration> {
        let record = self.table.records.get(self.slot(ticket)?);
        let left = record.deadline.saturating_sub(now.into());
        let may = left > Nanoseconds::ZERO && !self.table.calls.get(record.call).aborted;
        may.then(|| left.into())
    }

    /// Whether the call of a request was aborted.
    pub fn is_aborted(&self, ticket: Ticket) -> bool {
        let record = self.slot(ticket).map(|slot| self.table.records.get(slot));
        record.is_some_and(|record| self.table.calls.get(record.call).aborted)
    }

    /// Whether something that a request has released has no place in a connection's output yet.
    pub fn has_waiting(&self, (call, token): (CallId, Token), request: RequestId) -> bool {
        let call = self.table.call(&RecordedCallKey { call, token });
        let slot = call.and_then(|call| self.table.latest_request(call, request));
        slot.is_some_and(|slot| self.table.records.get(slot).outputs.waiting > 0)
    }

    /// How long the initiator has not heard of this line of the call: what a delegation carries (rule 14).
    ///
    /// Short times are left out, as most hops are short and the field takes four bytes. The deeper the hop, the shorter
    /// they have to be: what is left out on a whole line adds up to less than a quarter of a ping period.
    pub fn quiet(&self, ticket: Ticket, now: Duration) -> Option<Duration> {
        let record = self.table.records.get(self.slot(ticket)?);
        let quiet = record.quiet(now.into());
        let period = self.table.calls.get(record.call).settings.quiet();
        let halvings = 1_u32.checked_shl(record.depth).unwrap_or(u32::MAX);
        let worth = period.divided_by(8 * u64::from(halvings));
        (quiet > worth).then(|| quiet.into())
    }

    /// The oldest live call of the request's initiator, as far as all agree who brought calls of it: what a delegation
    /// carries. So nobody can say through this server what is not believed here.
    pub fn oldest(&self, ticket: Ticket) -> Option<u64> {
        let record = self.table.records.get(self.slot(ticket)?);
        let call = self.table.calls.get(record.call);
        let oldest = self.table.peers.get(call.peer).oldest();
        Some(oldest.min(call.key.call.sequence))
    }

    /// A message of a request was released.
    pub(super) fn note_release(
        &mut self,
        slot: u32,
        sent: ReleasedMessage,
        output: Option<OutputMark>,
        now: Nanoseconds,
    ) {
        let record = self.table.records.at(slot);
        record.progress(now);
        record.outputs.waiting += 1;
        if let Some(output) = output {
            self.place(slot, sent, output);
        }
        self.end_if_over(slot, now);
    }

    pub(super) fn place(&mut self, slot: u32, sent: ReleasedMessage, output: OutputMark) {
        let record = self.table.records.at(slot);
        match sent {
            ReleasedMessage::Response(index) => record.outputs.place(index, output),
            ReleasedMessage::End => record.outputs.place(record.count, output),
            ReleasedMessage::Delegation => {
                record.outputs.place_delegated(output, &self.conns);
                if let Some(conn) = self.conns.get_mut(&output.conn) {
                    conn.handed = true;
                }
                return;
            }
        }
        if !record.direct || record.conn != output.conn {
            self.note_relay(slot, output.conn);
        }
    }

    /// An answer went out on another connection than that of its request.
    #[inline(never)]
    fn note_relay(&mut self, slot: u32, conn: ConnId) {
        let call = self.table.records.get(slot).call;
        let initiator = self.table.calls.get(call).key.call.initiator;
        if let Some(conn) = self.conns.get_mut(&conn) {
            conn.relays |= conn.peer != initiator;
            conn.foreign = true;
        }
    }

    /// If the last message has been released, the request has ended.
    pub(super) fn end_if_over(&mut self, slot: u32, now: Nanoseconds) {
        let record = self.table.records.at(slot);
        if record.ended || (record.facts.is_none() && record.continuation().is_none()) {
            return;
        }
        record.ended = true;
        record.since = now;
        self.shares.give_back(record.share);
        let call = self.table.calls.get(record.call);
        self.ended.push(call.class, slot);
        if self.collect_at == Nanoseconds::NEVER {
            self.collect_at(now.saturating_add(self.gc_timeout));
        }
    }
}

impl Record {
    /// Its handler made progress.
    fn progress(&mut self, now: Nanoseconds) {
        if !self.ended {
            self.since = now;
        }
    }

    /// The branch's own manifest says that it has ended.
    fn learn(&mut self, manifest: &Option<Manifest>) {
        if let Some(manifest) = manifest
            && manifest.owner == self.id.path
        {
            self.facts = Some(manifest.facts);
        }
    }
}
