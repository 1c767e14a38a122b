//! Failure detection, abort and collection: what the machines for them want done (thesis 4.4, 4.5).

use std::time::Duration;

use crate::call::initiator::Initiator;
use crate::call::records::{
    Action as RecordAction, Origin, ReleasedMessage, StopReason, Ticket, invitation,
};
use crate::call::watch::{self, Found, Location, Watch, WatchSettings};
use crate::connection::{Features, Mark, NamedBy};
use crate::wire::{Budgets, Message, Ping, Pong, ReplyTo};
use crate::{Address, CallId, Code, ConnId, NodeId, Path, RequestId, Status, Token};

use super::Endpoint;
use super::answers::source;
use super::client::{CallContext, ClientAction, ClientCall, InitialRequest, Tree};
use super::conn::{Asked, Asks, Cargo, OutAnswer, Parcel};
use super::draining::shutting_down;
use super::probe::{Note, Probe};
use super::streams::MarkOwner;
use crate::error::ConnectError;

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
            let is_kept = match root.session {
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
            retries: resending.map_or(0, |resending| resending.times()),
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
                _ if root.session != Some(conn) => false,
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
        let over = |root: &&mut InitialRequest| root.session == Some(conn);
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
        let (server, session) = (root.server.clone(), root.session.take());
        self.push(ClientAction::Noted(Note::Unread));
        if self.try_elsewhere(request, context) {
            return;
        }
        if let Some(root) = self.root(request) {
            root.session = session; // what else went out there is still asked about
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
            self.attempt_control(from, Message::Ping(ping));
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
        self.attempt_control(from, Message::Ping(watch::dismiss(pong, token)));
    }

    // Who is there no longer.

    /// A session with this node has ended, and all that came over it was read. Calls are told when what is
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

    // Pings.

    /// Asks over this connection.
    fn ask(&mut self, sequence: u64, over: ConnId, ping: Ping) {
        let request = ping.request;
        self.note_asked(sequence, over);
        self.post(Parcel::new(Cargo::Ping(ping, Asks::Over(over))));
        self.note_ping_behind(sequence, request, over);
    }

    /// A call asks over this connection: who answers over it need not show the token.
    pub(super) fn note_asked(&mut self, sequence: u64, over: ConnId) {
        if let Some(call) = self.calls.get_mut(sequence) {
            call.client.pinged.insert(over);
        }
        self.note_call(Some(over));
    }

    /// Asks a server about a request.
    pub(super) fn send_ping(&mut self, to: Location, ping: Ping) {
        let sequence = ping.call.sequence;
        let open = self.open_at(&to);
        let open = open.or_else(|| self.root_with(sequence, to.node?));
        if let Some(id) = open {
            return self.ask(sequence, id, ping);
        }
        let address = to.address.as_ref();
        let Some(at) = address.filter(|at| self.config.schemes.lead_to(at)) else {
            return self.ping_by_relays(&ping);
        };
        let named_by = self.named_by(ping.call, at);
        let permitted = named_by == NamedBy::Application || self.config.dial_policy.permits(at);
        self.metrics.dials_forbidden += u64::from(!permitted);
        let (at, wanted) = (at.clone(), to.node);
        let held = match self.conn_at(&at) {
            None if permitted => self.may_dial(&at, wanted, named_by).err(),
            _ => None,
        };
        let met = self.dialling.was_found(&at, to.node);
        if let Some(ConnectError::Refused { .. }) = &held {
            self.note_missed((&ping, &to), met, held.as_ref());
        }
        if !permitted || held.is_some() {
            return self.ping_by_relays(&ping);
        }
        let relayed_from = None;
        let asked = Asked {
            to,
            met,
            relayed_from,
        };
        self.post(Parcel::new(Cargo::Ping(ping, Asks::At(asked))));
    }

    /// The connection with this node that one of the initial requests went out on.
    fn root_with(&self, sequence: u64, node: NodeId) -> Option<ConnId> {
        let roots = self.calls.get(sequence)?.client.roots.iter();
        let mut routes = roots.filter_map(|root| root.session);
        routes.find(|route| {
            self.conns
                .get(*route)
                .is_some_and(|conn| conn.node() == Some(node))
        })
    }

    /// A ping about an initial request goes out behind what its server's stream has not taken yet: until then no answer can come.
    fn note_ping_behind(&mut self, sequence: u64, request: RequestId, id: ConnId) {
        let stream = self.conns.get(id).and_then(|conn| conn.stream());
        let end = stream.map(|stream| stream.connection.end());
        let call = self.calls.get_mut(sequence);
        let root = call.and_then(|call| call.client.root(request));
        if let (Some(end), Some(root)) = (end, root)
            && root.session == Some(id)
            && let Mark::Written(mark) = &mut root.mark
        {
            *mark = end;
        }
    }

    fn open_at(&mut self, to: &Location) -> Option<ConnId> {
        let at = to.address.as_ref()?;
        let id = self.conn_at(at)?;
        let node = self.conns.get(id)?.node()?;
        (to.node.is_none() || to.node == Some(node)).then_some(id)
    }

    /// Whoever was to be asked is not there: for this reason, or because another incarnation is. `met` says that it was found there
    /// before.
    pub(super) fn ping_elsewhere(
        &mut self,
        ping: &Ping,
        asked: &Asked,
        why: Option<&ConnectError>,
    ) {
        let Asked { to, met, .. } = asked;
        let own = ping.call.initiator == self.node;
        if let Some(at) = &to.address {
            match asked.relayed_from {
                None if own => self.note_missed((ping, to), *met, why),
                _ => self.tell_gone(ping, asked, why),
            }
            match why {
                Some(ConnectError::Closed { .. }) => self.dialling.dials.closed(self.now, at, *met),
                None => {} // somebody is there
                Some(error) => error.note_in_vain(&mut self.dialling.dials, self.now, at),
            }
        }
        // That of another initiator goes no further: it asks again, and others must not see its token.
        if own {
            self.ping_by_relays(ping);
            self.follow(ping.call.sequence);
        }
    }

    /// The call learns that; whether this incarnation was `met` there.
    fn note_missed(
        &mut self,
        (ping, to): (&Ping, &Location),
        met: bool,
        why: Option<&ConnectError>,
    ) {
        let is_sure = self.is_gone_for_certain(to, why);
        let within = self.heard_within();
        let found = match why {
            None => Found::Another,
            Some(ConnectError::Unreachable { .. }) => Found::NoHost,
            Some(_) => Found::Nobody,
        };
        let Some(node) = to.node else {
            return;
        };
        let Some((call, context)) = self.call(ping.call.sequence) else {
            return;
        };
        let is_absent = matches!(why, None | Some(ConnectError::Refused { .. }));
        if !call.is_watched() {
            return;
        }
        if met && (is_absent || found == Found::NoHost) {
            let within = Some(within).filter(|_| is_sure);
            call.handle_gone((node, found), within, &context);
            self.probe.notes(Note::Gone);
            if !is_sure {
                self.note_met(node);
            }
        } else if is_absent {
            call.handle_not_found((node, found), &context);
            self.probe.notes(Note::NotFound);
        } else if met && matches!(why, Some(ConnectError::Closed { .. })) {
            call.handle_turned_away(node, &context);
        }
        // A server that only others can reach was never reached: that it still cannot be says nothing.
    }

    /// This endpoint handed a request on to who is asked about it for another initiator, who may never have reached that server: it
    /// learns from here that the server is gone for certain.
    fn tell_gone(&mut self, ping: &Ping, asked: &Asked, why: Option<&ConnectError>) {
        let told = asked.relayed_from.filter(|_| asked.met);
        let Some(from) = told.filter(|_| self.is_gone_for_certain(&asked.to, why)) else {
            return;
        };
        let node = self.conns.get(from).and_then(|conn| conn.node());
        let pong = Pong {
            call: ping.call,
            distance: 0,
            token: (node != Some(ping.call.initiator)).then_some(ping.token),
            request: ping.request,
            attempt: 0,
            announced: false,
            writing: false,
            evicted: false,
            gone: true,
            heartbeats: false,
            progress: None,
        };
        self.send_gone(from, Message::Pong(pong));
    }

    /// Whether who is there may be told that heartbeats come of a request: if it is its initiator. Nobody knows whether those arrive
    /// that others pass on.
    pub(super) fn hears_heartbeats(&self, id: ConnId, initiator: NodeId) -> bool {
        let hello = self.conns.get(id).and_then(|conn| conn.hello());
        hello.is_some_and(|hello| {
            hello.node == initiator && hello.features.contains(Features::HEARTBEATS)
        })
    }

    /// Says so to who understands it.
    pub(super) fn send_gone(&mut self, to: ConnId, pong: Message) {
        let hello = self.conns.get(to).and_then(|conn| conn.hello());
        if hello.is_some_and(|hello| hello.features.contains(Features::GONE)) {
            self.probe.notes(Note::ToldGone);
            self.attempt_control(to, pong);
        }
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

    /// Calls may still hear of an incarnation that is gone: the end of the last connection that is left makes it certain.
    fn note_met(&mut self, node: NodeId) {
        for id in self.directory.with(node) {
            if let Some(conn) = self.conns.get_mut(*id) {
                conn.carried_calls = true;
            }
        }
    }

    /// Whether nothing can come from there any more, and whoever has work from there is told of its end: no connection is left
    /// whose other end says that it is this incarnation, and none of what it has sent came by datagrams, whose end is told to nobody.
    /// Who answers at a host's name may be another server.
    fn is_gone_for_certain(&self, to: &Location, why: Option<&ConnectError>) -> bool {
        let may_be_there = |at: &Address| at.is_udp() || at.is_name();
        let may_be_there = to.address.as_ref().is_none_or(may_be_there);
        let is_told = matches!(why, None | Some(ConnectError::Refused { .. }));
        let left = to.node.map_or(0, |node| self.connections_with(node));
        is_told && !may_be_there && left == 0
    }

    /// Who has named the server of a call's request: the application itself those of its own calls' first requests, peers all others.
    pub(super) fn named_by(&self, call: CallId, at: &Address) -> NamedBy {
        let own = (call.initiator == self.node).then(|| self.calls.get(call.sequence));
        match own.flatten() {
            Some(call) if call.client.roots.iter().any(|root| root.server == *at) => {
                NamedBy::Application
            }
            _ => NamedBy::Peer,
        }
    }

    /// Asks about a request whose server cannot be reached from here along the route that it went: over the sessions of the
    /// initial requests that it may have come of.
    fn ping_by_relays(&mut self, ping: &Ping) {
        let Some(call) = self.calls.get(ping.call.sequence) else {
            return;
        };
        let path = &ping.request.path;
        let above = (call.client.roots.iter())
            .filter(|root| path.is_folded() || path.levels_below(&root.request.path).is_some());
        let mut routes: Vec<ConnId> = above.filter_map(|root| root.session).collect();
        routes.sort_unstable();
        routes.dedup();
        for route in routes {
            self.attempt_control(route, Message::Ping(ping.clone()));
        }
    }

    /// The initiator asks about a request, or aborts its call.
    pub(super) fn handle_ping(&mut self, from: ConnId, ping: &Ping) {
        let Some(node) = self.conns.get(from).and_then(|conn| conn.node()) else {
            return;
        };
        let now = self.now;
        let origin = Origin {
            session: from,
            peer: node,
            transit: Duration::ZERO,
        };
        let next = self.records.relay_target(ping, origin, now);
        let next = next.filter(|next| next.node != Some(self.node));
        // Back to where it came from it does not go.
        if let Some(next) = next.filter(|next| !self.directory.leads_to(&next.server, from)) {
            self.found_route(ping.call, ping.token);
            let met = self.dialling.was_found(&next.server, next.node);
            let next = Location {
                address: Some(next.server),
                node: next.node,
            };
            let held = match next.address.as_ref().map(|at| (self.conn_at(at), at)) {
                Some((None, at)) => self.may_dial(at, next.node, NamedBy::Peer).err(),
                _ => None,
            };
            // Of other servers on the way this says nothing.
            let relayed_from = self.records.has_handed_on(ping).then_some(from);
            let asked = Asked {
                to: next,
                met,
                relayed_from,
            };
            match held {
                Some(held) => self.tell_gone(ping, &asked, Some(&held)),
                None => {
                    self.metrics.pings_relayed += 1;
                    self.post(Parcel::new(Cargo::Ping(ping.clone(), Asks::At(asked))));
                }
            }
            if !ping.abort {
                self.note_written();
                return self.records.tell_of_relaying(ping, origin);
            }
        }
        self.note_written();
        if self.records.handle_ping(ping, origin, now) {
            self.found_route(ping.call, ping.token);
        }
        if ping.abort {
            self.withdraw_delegations(ping);
            self.forget_relayed(ping.call, ping.token);
        }
    }

    // What records want.

    pub(super) fn act_on_records(&mut self, action: RecordAction) {
        match action {
            RecordAction::Pong {
                session,
                mut pong,
                ticket,
            } => {
                self.say_who_handles(&mut pong, ticket);
                let is_known = pong.progress.is_some() || pong.writing;
                self.metrics.unknown_pings += u64::from(!is_known);
                self.probe.tells(&mut pong);
                self.attempt_control(session, Message::Pong(pong));
            }
            RecordAction::Announce {
                mut pong,
                reply_to,
                session,
                ticket,
            } => {
                self.say_who_handles(&mut pong, ticket);
                self.probe.tells(&mut pong);
                self.announce(pong, (&reply_to, session), ticket);
            }
            RecordAction::Resend {
                ticket,
                session: id,
                response,
            } => {
                let (call, request, index) = (response.call, response.request, response.index);
                self.probe.notes(Note::Resent(call, request, index));
                let sent = ReleasedMessage::Response(index);
                if !self.conns.contains(id) {
                    return self.records.dropped(ticket, sent);
                }
                self.post(Parcel::new(Cargo::Again(response, id, (ticket, sent))));
            }
            RecordAction::Stop {
                ticket,
                call,
                request,
                reason,
            } => {
                self.probe.notes(Note::Stopped(call, request, reason));
                if let Some(key) = self.tickets.get(&ticket).copied() {
                    let status = Status::new(Code::Cancelled, reason.to_string());
                    match reason {
                        StopReason::Aborted => self.stop_aborted(key, status),
                        _ => self.stop(key, status),
                    }
                }
            }
        }
    }

    /// What runs here is told with its method and address.
    fn say_who_handles(&mut self, pong: &mut Pong, ticket: Option<Ticket>) {
        let key = ticket.and_then(|ticket| self.tickets.get(&ticket).copied());
        if let (Some((handler, context)), Some(progress)) =
            (key.and_then(|key| self.handled(key)), &mut pong.progress)
        {
            progress.handled_by = Some(Box::new(handler.handled_by(&context)));
        }
    }

    /// Tells the initiator of a request that it may not know of, the way that the request's answers go.
    fn announce(
        &mut self,
        pong: Pong,
        (reply_to, session): (&ReplyTo, ConnId),
        ticket: Option<Ticket>,
    ) {
        if pong.call.initiator == self.node {
            if let Some(ticket) = ticket {
                self.records
                    .announcement_left(ticket, Some(self.node), self.now);
            }
            return self.local.push_back(Message::Pong(pong));
        }
        let came = Some(session);
        let came = came.filter(|came| self.conns.contains(*came));
        let address = self.initiator_address(reply_to, came);
        if came.is_none()
            && address.is_none()
            && let Some(token) = pong.token
        {
            // It came over a session that has ended: who says that it is the initiator is asked to prove it.
            for claiming in self.claiming(pong.call.initiator) {
                self.probe.notes(Note::Invited);
                let invitation = invitation(pong.call, token, pong.request, self.node);
                self.attempt_control(claiming, Message::Pong(invitation));
            }
            return;
        }
        self.post(Parcel::new(Cargo::Answer(OutAnswer {
            message: Message::Pong(pong),
            address,
            came,
            own: *reply_to == ReplyTo::Peer,
            small: true,
            oldest: 0,
            owner: ticket.map(MarkOwner::Announced),
            by: None,
        })));
    }
}
