//! When calls are looked at, and what they learn of their servers (thesis 4.4, 4.5).

use std::time::Duration;

use crate::call::initiator::Initiator;
use crate::call::watch::{self, Found, Location, Watch, WatchSettings};
use crate::connection::Mark;
use crate::wire::{Budgets, Message, Pong};
use crate::{ConnId, NodeId, Path, RequestId, Token};

use super::Endpoint;
use super::answers::source;
use super::client::{CallContext, ClientAction, ClientCall, InitialRequest, Tree};
use super::draining::shutting_down;
use super::probe::{Note, Probe};

/// Most calls that are looked at in a turn, and most deadlines; the others are due at once.
pub(super) const BATCH: usize = 1024;

/// Most places of calls that are looked through in a turn for those that a connection concerned which has ended.
const MOST_TOLD: usize = 8192;

/// A connection that has ended, and which calls are told of that next.
#[derive(Debug)]
pub(super) struct Farewell {
    id: ConnId,
    node: NodeId,
    /// How much of it that node has handled, if that was closed and has said so.
    read: Option<u64>,
    next: usize,
}

impl ClientCall {
    /// Time has passed, and all input was read. Initial requests that its endpoint still keeps no server can know.
    pub fn handle_timeout(&mut self, context: &impl CallContext) {
        let now = context.now();
        let Some(watch) = self.initiator.watch_mut() else {
            return self.begin_watch(context);
        };
        let winds_down = watch.is_winding_down();
        for root in self.roots.iter() {
            let is_kept = match root.conn {
                None => !winds_down,
                Some(conn) => !root.lost && context.is_writing(conn, root.mark),
            };
            if is_kept {
                watch.writing(root.request, now);
            }
        }
        watch.handle_timeout(now);
    }

    /// It is watched over from now on; later if its requests wait to be sent, as nobody could know it.
    fn begin_watch(&mut self, context: &impl CallContext) {
        if !self.has_ended() && !self.was_sent() {
            let period = self.ping(context.config().ping).period;
            self.begin_at = Some(context.now().saturating_add(period));
            return;
        }
        self.watch_over(context);
    }

    pub(super) fn watch_over(&mut self, context: &impl CallContext) {
        let (now, config) = (context.now(), context.config());
        let ping = self.ping(config.ping);
        let own = self.options.as_ref();
        let resending = self.resending.as_ref();
        let heartbeats = own.and_then(|own| own.heartbeats);
        let settings = WatchSettings {
            ping,
            heartbeats,
            stall: own.and_then(|own| own.stall_limit).or(config.stall_limit),
            resends: resending.map_or(0, |resending| resending.times()),
            tolerant: self.tolerant.is_some(),
        };
        let servers = self.roots.iter().map(|root| Location {
            address: Some(root.server.clone()),
            node: root.node,
        });
        let Tree::Alone(tree) = &mut self.initiator else {
            return;
        };
        let (id, token) = (tree.call(), tree.token());
        let nothing = Initiator::new(id, token, Budgets::DEFAULT);
        let tree = std::mem::replace(tree, nothing);
        let mut watch = Box::new(Watch::new(tree, settings, servers, now));
        if let Some(tolerant) = &self.tolerant {
            let next = |path: &Path| Some(path.child(0, id, token));
            let places = std::iter::successors(Some(Path::FIRST), next).skip(1);
            for (path, server) in places.zip(&tolerant.expected) {
                let at = Location {
                    address: Some(server.clone()),
                    node: None,
                };
                watch.place(path, at, now);
            }
        }
        self.initiator = Tree::Watched(watch);
        self.push(ClientAction::Watched);
    }

    /// Whether anything of it may run anywhere.
    pub(super) fn may_run(&self) -> bool {
        self.is_watched() || self.was_sent()
    }

    /// It has failed or was given up: what still runs is stopped.
    pub(super) fn wind_down(&mut self, context: &impl CallContext) {
        if self.initiator.watch().is_none() {
            self.begin_watch(context);
        }
        if let Some(watch) = self.initiator.watch_mut()
            && !watch.is_winding_down()
        {
            watch.abort(context.now());
        }
    }

    /// A server tells how far a request is, asked or not, and may do so: over this connection, and whether it has shown the call's
    /// token.
    pub fn handle_pong(
        &mut self,
        from: (Option<ConnId>, bool),
        pong: &Pong,
        context: &impl CallContext,
    ) {
        if self.initiator.watch().is_none() {
            self.begin_watch(context);
        }
        let now = context.now();
        if pong.progress.is_some() || pong.writing {
            self.initiator.note_heard(&pong.request.path, now);
        }
        if let Some(watch) = self.initiator.watch_mut() {
            let source = source(from, context);
            let stop = watch.handle_pong(pong, &source, now);
            if let (Some(from), Some(ping)) = (from.0, stop) {
                self.push(ClientAction::PingOver(from, Box::new(ping)));
            }
        }
        self.complete();
    }

    /// A connection with this node has ended, and all that came over it was read; whether it `was_last`, so that nothing more can
    /// come from there. If the other end was closed and has said so, it has handled only as much as it has `read`: what stands
    /// behind was not executed.
    pub fn handle_disconnect(
        &mut self,
        (conn, node): (ConnId, NodeId),
        was_last: bool,
        read: Option<u64>,
        context: &impl CallContext,
    ) {
        if let Some(read) = read.filter(|_| !self.has_ended()) {
            let is_unread = |root: &&InitialRequest| match root.sent {
                _ if root.conn != Some(conn) => false,
                Mark::Written(end) => end > read,
                Mark::Parts(_) => true, // its last part has not even left
            };
            let unread = self.roots.iter().filter(is_unread);
            let unread: Vec<RequestId> = unread.map(|root| root.request).collect();
            for request in unread {
                self.not_read(request, context);
            }
        }
        self.pinged.remove(&conn);
        let over = |root: &&mut InitialRequest| root.conn == Some(conn);
        let mut concerned = false;
        for root in self.roots.iter_mut().filter(over) {
            root.lost = true;
            concerned = true;
        }
        if self.initiator.watch().is_none() && concerned {
            self.begin_watch(context);
        }
        let now = context.now();
        if let Some(watch) = self.initiator.watch_mut() {
            match was_last {
                true => watch.handle_last_disconnect(node, now),
                false => watch.handle_disconnect(node, now),
            }
            self.push(ClientAction::Noted(Note::Disconnected));
        }
    }

    /// The server of an initial request was closed, and has said that it has not read it: it is tried elsewhere, or ends with the
    /// status that it would have got there.
    #[cold]
    fn not_read(&mut self, request: RequestId, context: &impl CallContext) {
        let Some(root) = self.root(request) else {
            return;
        };
        let (server, conn) = (root.server.clone(), root.conn.take());
        self.push(ClientAction::Noted(Note::Unread));
        if self.try_elsewhere(request, context) {
            return;
        }
        if let Some(root) = self.root(request) {
            root.conn = conn; // what else went out there is still asked about
        }
        let status = shutting_down().by(Some(&server));
        self.answer_in_its_name(request, &status);
    }

    /// One of its servers is gone, where it had been met before. `within`: nothing can come from there any more, and whoever has
    /// work from there will have said so then.
    pub fn handle_gone(
        &mut self,
        (node, found): (NodeId, Found),
        within: Option<Duration>,
        context: &impl CallContext,
    ) {
        let now = context.now();
        match (self.initiator.watch_mut(), within) {
            (None, _) => {}
            (Some(watch), None) => watch.handle_gone(node, found, now),
            (Some(watch), Some(within)) => {
                watch.handle_gone_for_certain((node, found), within, now);
            }
        }
    }

    /// Who has handed a request on says that its server is gone for certain, and so does whoever has work from there, `within` this.
    pub fn handle_told_gone(
        &mut self,
        request: RequestId,
        within: Duration,
        context: &impl CallContext,
    ) {
        if let Some(watch) = self.initiator.watch_mut() {
            watch.handle_told_gone(request, within, context.now());
        }
    }

    /// One of its servers, which was met before, took a connection and closed it before it was open.
    pub fn handle_turned_away(&mut self, node: NodeId, context: &impl CallContext) {
        if let Some(watch) = self.initiator.watch_mut() {
            watch.handle_turned_away(node, context.now());
        }
    }

    /// A server that others have named is not where they say.
    pub fn handle_not_found(&mut self, (node, found): (NodeId, Found), context: &impl CallContext) {
        if let Some(watch) = self.initiator.watch_mut() {
            watch.handle_not_found(node, found, context.now());
        }
    }
}

impl<P: Probe> Endpoint<P> {
    // What calls are watched.

    /// A call wants to be looked at then.
    pub(super) fn watch_at(&mut self, sequence: u64, due: Option<Duration>) {
        let Some(call) = self.calls.get_mut(sequence) else {
            return;
        };
        if call.watch_due == due {
            return;
        }
        if let Some(before) = std::mem::replace(&mut call.watch_due, due) {
            self.watched.remove(&(before, sequence));
        }
        if let Some(due) = due {
            self.watched.insert((due, sequence));
            self.note_due(due);
        }
    }

    /// Looks at calls that are due, and at those that have lasted a ping period: at some of them in a turn, the rest is due at
    /// once.
    pub(super) fn look_at_calls(&mut self) {
        let now = self.now;
        let before = now.saturating_sub(self.config.ping.period);
        for _ in 0..BATCH {
            let Some(&(begun, sequence)) = self.fresh.front() else {
                break;
            };
            if begun > before && self.calls.get(sequence).is_some() {
                break;
            }
            self.fresh.pop_front();
            self.set_deadline(sequence);
            // One with a longer period of its own is not asked about before that, or before half of its time.
            let (call, ping) = (self.calls.get(sequence), self.config.ping.bounded());
            let unwatched = call.map_or(ping.period, |call| {
                let ping = call.client.ping(ping).bounded();
                ping.period.min(call.client.time / 2)
            });
            match begun.saturating_add(unwatched) {
                due if due > now => self.watch_at(sequence, Some(due)),
                _ => self.look_at_call(sequence),
            }
        }
        let due = self.watched.range(..=(now, u64::MAX));
        let due: Vec<u64> = due.map(|(_, sequence)| *sequence).take(BATCH).collect();
        for sequence in due {
            self.set_deadline(sequence);
            self.look_at_call(sequence);
        }
    }

    fn look_at_call(&mut self, sequence: u64) {
        self.tell(sequence, |call, context| call.handle_timeout(context));
    }

    /// A server tells how far a request is, asked or not.
    pub(super) fn handle_pong(&mut self, from: Option<ConnId>, pong: &Pong) {
        let sequence = pong.call.sequence;
        let Some(call) = self.calls.get(sequence).map(|call| &call.client) else {
            if let Some(from) = from.filter(|_| pong.announced) {
                self.dismiss(from, pong);
            }
            return;
        };
        let token = call.initiator.token();
        let node = from.and_then(|from| self.conns.get(from)?.node());
        let is_vouched = watch::is_vouched(pong, token, node);
        if is_vouched && let (Some(from), Some(ping)) = (from, watch::show(pong, token)) {
            self.probe.notes(Note::TokenShown);
            self.note_asked(sequence, from);
            self.try_control(from, Message::Ping(ping));
            return;
        }
        let shown = pong.token.filter(|_| !is_vouched);
        let asked = from.is_some_and(|from| call.pinged.contains(&from));
        if !asked && !call.may_answer(shown, from, &pong.request.path) {
            self.metrics.forged_dropped += 1;
            return;
        }
        self.note_call(from);
        if pong.gone {
            return self.told_gone(pong);
        }
        let from = (from, shown.is_some());
        self.tell(sequence, |call, context| {
            call.handle_pong(from, pong, context);
        });
    }

    /// Who had handed a request of an own call on says that its server is gone, unless this endpoint is connected with it.
    fn told_gone(&mut self, pong: &Pong) {
        let within = self.heard_within();
        let Some((call, _)) = self.call(pong.call.sequence) else {
            return;
        };
        let watch = call.initiator.watch();
        let node = watch.and_then(|watch| watch.server_of(pong.request)?.node);
        if node.is_none_or(|node| self.connections_with(node) > 0) {
            return;
        }
        self.tell(pong.call.sequence, |call, context| {
            call.handle_told_gone(pong.request, within, context);
        });
    }

    /// The call is over: whoever still works for it is told (docs/protocol.md, rule 31). The token goes along, to who knows it.
    fn dismiss(&mut self, from: ConnId, pong: &Pong) {
        let token = Token::derive(self.secret, pong.call.sequence);
        let to_come = pong.call.sequence > self.calls.last();
        let node = self.conns.get(from).and_then(|conn| conn.node());
        let is_shown = pong.token == Some(token) || watch::is_vouched(pong, token, node);
        if to_come || !is_shown {
            self.metrics.forged_dropped += 1;
            return;
        }
        self.probe.notes(Note::Dismissed);
        self.try_control(from, Message::Ping(watch::dismiss(pong, token)));
    }

    // Who is there no longer.

    /// A connection with this node has ended, and all that came over it was read. Calls are told when what is
    /// being done now is done, since they dial others: of very many some in later turns.
    pub(super) fn disconnected(&mut self, (id, node): (ConnId, NodeId), read: Option<u64>) {
        let next = 0;
        self.farewells.push_back(Farewell {
            id,
            node,
            read,
            next,
        });
        self.note_due(self.now);
    }

    /// Tells calls of connections that have ended, as many as may be in a turn.
    pub(super) fn tell_farewells(&mut self) {
        let mut most = MOST_TOLD;
        while let Some(farewell) = self.farewells.front_mut() {
            let (batch, next) = self.calls.batch(farewell.next, most);
            let (id, node, read) = (farewell.id, farewell.node, farewell.read);
            match next {
                Some(next) => farewell.next = next,
                None => drop(self.farewells.pop_front()),
            }
            let was_last = self.was_last(node);
            for sequence in batch {
                self.tell(sequence, |call, context| {
                    call.handle_disconnect((id, node), was_last, read, context);
                });
            }
            most = match next {
                Some(_) => return,
                None => most / 2, // others have ended, too
            };
            if most == 0 {
                return;
            }
        }
    }
}
