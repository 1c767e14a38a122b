//! What calls ask about their endpoint, and what is done for them then, to their ends.

use std::time::Duration;

use crate::call::watch::{Location, Source};
use crate::connection::Mark;
use crate::wire::Message;
use crate::{Address, ConnId, NodeId};

use super::client::{CallContext, ClientAction, ClientCall};
use super::config::Config;
use super::conn::Conns;
use super::directory::Directory;
use super::event::{CallKey, Outcome, Output};
use super::probe::{Note, Probe};
use super::sockets::Sockets;
use super::{Alarm, Endpoint};
use crate::error::Failure;

/// What calls ask about their endpoint.
pub(super) struct Surroundings<'a> {
    config: &'a Config,
    now: Duration,
    raw: Duration,
    own: (NodeId, Option<&'a Address>),
    conns: &'a Conns,
    sockets: &'a Sockets,
    directory: &'a Directory,
}

impl CallContext for Surroundings<'_> {
    fn config(&self) -> &Config {
        self.config
    }

    fn now(&self) -> Duration {
        self.now
    }

    fn raw(&self) -> Duration {
        self.raw
    }

    fn source(&self, from: Option<ConnId>) -> Source {
        let Some(from) = from else {
            let (node, address) = self.own;
            let location = Location {
                address: address.cloned(),
                node: Some(node),
            };
            return Source {
                location,
                alone: false,
            };
        };
        let Some(conn) = self.conns.get(from) else {
            return Source::default();
        };
        let node = conn.node();
        let connections = node.map_or(0, |node| self.directory.with(node).len());
        Source {
            location: Location {
                address: conn.hello().and_then(|hello| hello.address.clone()),
                node,
            },
            alone: node.is_some() && connections <= 1,
        }
    }

    fn is_open(&self, conn: ConnId) -> bool {
        self.conns.contains(conn)
    }

    fn messages_received(&self, conn: ConnId) -> u64 {
        let conn = self.conns.get(conn);
        let carrier = conn.and_then(|conn| conn.link.peek(self.sockets));
        carrier.map_or(0, |carrier| carrier.counters().messages_received)
    }

    fn is_writing(&self, conn: ConnId, mark: Mark) -> bool {
        let conn = self.conns.get(conn);
        conn.is_some_and(|conn| conn.is_writing(self.sockets, mark))
    }
}

/// Of calls that lose something no more are told than one in this time: all calls may have lost the same server.
const LOST_PAUSE: Duration = Duration::from_millis(100);

/// When a loss is told again, and how many were left out since the last one.
#[derive(Debug, Default)]
pub(super) struct LostCalls {
    next: Duration,
    left_out: u64,
}

impl<P: Probe> Endpoint<P> {
    /// A call, as long as anything of it may run, and what it may ask.
    #[inline]
    pub(super) fn call(&mut self, sequence: u64) -> Option<(&mut ClientCall, Surroundings<'_>)> {
        let call = &mut self.calls.get_mut(sequence)?.client;
        let surroundings = Surroundings {
            config: &self.config,
            now: self.now,
            raw: self.raw,
            own: (self.node, self.address.as_ref()),
            conns: &self.conns,
            sockets: &self.sockets,
            directory: &self.directory,
        };
        Some((call, surroundings))
    }

    /// Tells a call something, and does what it wants done then.
    pub(super) fn tell(
        &mut self,
        sequence: u64,
        event: impl FnOnce(&mut ClientCall, &Surroundings<'_>),
    ) {
        if let Some((call, context)) = self.call(sequence) {
            event(call, &context);
            self.follow(sequence);
        }
    }

    /// Does what a call wants done.
    pub(super) fn follow(&mut self, sequence: u64) {
        let Some(call) = self.calls.get_mut(sequence) else {
            return;
        };
        let answers = call.client.take_untold();
        self.untaken += answers;
        if answers > 0 && !call.taken && !std::mem::replace(&mut call.told, true) {
            self.outputs.push_back(Output::Call(CallKey(sequence)));
        }
        // What is being done for it may tell it more: that is followed there.
        if !call.client.has_work() || std::mem::replace(&mut call.followed, true) {
            return;
        }
        while let Some((call, context)) = self.call(sequence)
            && let Some(action) = call.poll(&context)
        {
            self.act_on_call(sequence, action);
        }
        let Some(call) = self.calls.get_mut(sequence) else {
            return;
        };
        call.followed = false;
        let (is_watched, due) = (call.client.is_watched(), call.client.next_timeout());
        if is_watched && call.client.initiator.has_adopted() {
            self.tell_of(sequence);
        }
        if is_watched || due.is_some() {
            self.watch_at(sequence, due);
        }
    }

    fn act_on_call(&mut self, sequence: u64, action: ClientAction) {
        match action {
            ClientAction::Answers(more) => {
                self.untaken += more;
                self.tell_of(sequence);
            }
            ClientAction::Sent => self.outputs.push_back(Output::Sent(CallKey(sequence))),
            ClientAction::SendAgain(again) => self.send_again(*again),
            ClientAction::SendLater(request, at) => {
                self.alarms.insert((at, Alarm::Resend(sequence, request)));
            }
            ClientAction::ExecutedAgain(conn) => {
                self.metrics.resends += 1;
                if let Some(conn) = conn {
                    self.needs_less(conn);
                }
            }
            ClientAction::Replaced(status) => {
                self.probe.replaced(&status);
                self.local.push_back(Message::Response(*status));
            }
            ClientAction::Grant(conn, answers, bytes) => {
                let id = self.call_id(CallKey(sequence));
                if let Some(carrier) = self.carrier(conn) {
                    carrier.grant_call(id, answers, bytes);
                }
            }
            ClientAction::Ping(asked) => self.send_ping(asked.0, asked.1),
            // Where there is no room, the next announcement asks for it again.
            ClientAction::PingOver(conn, ping) => {
                self.note_asked(sequence, conn);
                self.try_control(conn, Message::Ping(*ping));
            }
            ClientAction::Watched => {
                self.probe.notes(Note::Watched);
                self.set_deadline(sequence); // it may not have been looked at yet, and its watch may have nothing to wait for
            }
            ClientAction::Noted(note) => self.probe.notes(note),
            ClientAction::Ended => self.call_ended(sequence),
            ClientAction::Quiet => {
                let call = self.calls.get(sequence);
                if call.is_some_and(|call| call.client.is_watched()) {
                    self.probe.notes(Note::Quiet);
                }
                self.call_over(sequence);
            }
        }
    }

    /// The application learns that there is something to take of a call.
    pub(super) fn tell_of(&mut self, sequence: u64) {
        if let Some(call) = self.calls.kept(sequence)
            && !call.taken
            && !std::mem::replace(&mut call.told, true)
        {
            self.outputs.push_back(Output::Call(CallKey(sequence)));
        }
    }

    // How calls end.

    pub(super) fn call_deadline(&mut self, sequence: u64) {
        self.tell(sequence, |call, context| call.handle_deadline(context));
    }

    /// A call comes to its outcome, unless it has before.
    pub(super) fn end_call(&mut self, sequence: u64, outcome: Result<(), Failure>) {
        self.tell(sequence, |call, _| call.end(outcome));
    }

    /// A call has come to its outcome: that is told, and it needs less from now on.
    fn call_ended(&mut self, sequence: u64) {
        let Some(call) = self.calls.get_mut(sequence) else {
            return;
        };
        match call.client.outcome() {
            Some(Outcome::Failed(failure)) => match *failure {
                Failure::Aborted { .. } | Failure::FailedFast => self.metrics.calls_aborted += 1,
                _ => self.metrics.calls_failed += 1,
            },
            _ => self.metrics.calls_completed += 1,
        }
        let loss = call.client.first_loss().filter(|loss| loss.may_pass());
        if let Some(loss) = loss {
            let lost = &mut self.lost;
            if lost.next <= self.raw {
                lost.next = self.raw.saturating_add(LOST_PAUSE);
                let left_out = std::mem::take(&mut lost.left_out);
                let loss = Box::new(loss.clone());
                self.outputs.push_back(Output::Lost(loss, left_out));
            } else {
                lost.left_out += 1;
            }
        }
        if std::mem::take(&mut call.reported)
            && let Some(end) = call.client.reported_end()
        {
            self.outputs
                .push_back(Output::Ended(CallKey(sequence), Box::new(end)));
        }
        if let Some(resending) = &mut call.client.resending {
            self.kept -= resending.release();
        }
        let mut rested = Vec::new();
        for root in call.client.roots.iter() {
            if let Some(conn) = root.conn.and_then(|id| self.conns.get_mut(id)) {
                conn.busy = conn.busy.saturating_sub(1);
                let rests = conn.busy == 0 && self.places.has_needed();
                rested.extend(root.conn.filter(|_| rests));
            }
        }
        let is_over = call.client.is_over();
        rested.into_iter().for_each(|id| self.may_rest(id));
        if !self.bodies.is_empty() {
            self.break_bodies_of_call(sequence);
        }
        self.tell_of(sequence);
        if is_over {
            self.call_over(sequence);
        }
    }

    /// Nothing of a call runs any more.
    pub(super) fn call_over(&mut self, sequence: u64) {
        self.watch_at(sequence, None);
        if let Some(call) = self.calls.get(sequence) {
            let alarm = (call.client.deadline, Alarm::Call(sequence));
            if !self.alarms.is_empty() {
                self.alarms.remove(&alarm);
            }
            if let Some(request) = call.within {
                self.call_within_over(request, sequence);
            }
        }
        self.calls.finish(sequence);
        self.note_space();
        let keeps = self.config.shell.keep_ended;
        if (self.calls.peek(sequence)).is_some_and(|call| keeps || call.stop_by.is_some()) {
            self.outputs.push_back(Output::Settled(CallKey(sequence)));
        }
        while let Some((_, first)) = self.fresh.front()
            && self.calls.get(*first).is_none()
        {
            self.fresh.pop_front();
        }
    }

    /// A call has lasted for a while: from now on its deadline is among the alarms.
    pub(super) fn set_deadline(&mut self, sequence: u64) {
        let call = self.calls.get(sequence).map(|call| &call.client);
        if let Some(call) = call.filter(|call| !call.has_ended()) {
            self.alarms.insert((call.deadline, Alarm::Call(sequence)));
        }
    }

    /// A call does not need a connection any more.
    pub(super) fn needs_less(&mut self, id: ConnId) {
        if let Some(conn) = self.conns.get_mut(id) {
            conn.busy = conn.busy.saturating_sub(1);
            self.may_rest(id);
        }
    }

    pub(super) fn is_over(&self, sequence: u64) -> bool {
        let call = self.calls.get(sequence);
        call.is_none_or(|call| call.client.has_ended())
    }
}
