//! How a call is watched over: the client half of failure detection (`wallaby_proto::call::watch`), driven.

use std::sync::Arc;
use std::time::Duration;

use wallaby_proto::call::watch::{
    self, Action, Location, Source, Watch, WatchSettings, is_vouched,
};
use wallaby_proto::connection::NamedBy;
use wallaby_proto::wire::{Message, Ping, PingSettings, Pong};
use wallaby_proto::{Address, NodeId, Path, RequestId};

use super::resending::Again;
use super::{CallShared, State};
use crate::driver::peer::{Peer, Place};
use crate::endpoint::Inner;
use crate::error::{ConnectError, Failure};
use crate::timer::Instant;

impl CallShared {
    pub(crate) fn begun(&self) -> Instant {
        self.endpoint.moment(self.begun)
    }

    /// How often its servers are asked, and how long silence may last.
    pub(crate) fn ping(&self) -> PingSettings {
        self.options.ping.unwrap_or(self.endpoint.config.ping)
    }

    /// Whether it has a ping period that is not the endpoint's.
    pub(crate) fn has_own_ping(&self) -> bool {
        self.options.ping.is_some()
    }

    /// It is looked at once it has lasted its own ping period.
    #[cold]
    #[inline(never)]
    pub(crate) fn look_after_own_period(&self) {
        let due = self.liveness_time() + self.ping().period;
        let mut state = self.lock();
        if state.settled {
            return;
        }
        let liveness = &self.endpoint.liveness;
        liveness.watch(self.id.sequence, state.watch_due(), Some(due));
        state.watched.get_or_insert_default().due = Some(due);
        drop(state);
        self.endpoint.note_due(liveness.moment(due));
    }

    /// When it began, as the state machines count the time.
    fn liveness_time(&self) -> Duration {
        self.endpoint.liveness.time(self.begun())
    }

    /// The call has lasted a ping period, or its watch wants to look at it.
    pub(crate) fn look(self: &Arc<Self>, now: Duration) {
        let mut state = self.lock();
        if state.settled {
            return;
        }
        // It was looked at since it has lasted the endpoint's period.
        if !state.is_watched() && self.has_own_ping() && self.begun().elapsed() < self.ping().period
        {
            return;
        }
        self.note_writing(&mut state, now);
        state.note_unsent(now);
        match state.parts() {
            (initiator, Some(watch)) => watch.handle_timeout(initiator, now),
            (_, None) => self.begin_watch(&mut state, now),
        }
        self.act(state);
    }

    /// What this endpoint itself still writes no server can know.
    fn note_writing(&self, state: &mut State, now: Duration) {
        let call = self.id.sequence;
        let State {
            roots,
            initiator,
            watched: Some(watched),
            ..
        } = state
        else {
            return;
        };
        let Some(watch) = &mut watched.watch else {
            return;
        };
        let sent = roots.iter().filter(|sent| !sent.lost);
        for sent in sent.filter(|sent| sent.peer.as_ref().is_some_and(|peer| peer.is_writing(call)))
        {
            let request = RequestId {
                path: sent.path(),
                hop: 0,
            };
            watch.writing(initiator, request, now);
        }
    }

    /// A connection with this node ended, and all that came over it has been read; perhaps it was the last one.
    pub(crate) fn handle_disconnect(self: &Arc<Self>, peer: &Peer, node: NodeId, was_last: bool) {
        let now = self.endpoint.liveness.now();
        let mut state = self.lock();
        let concerned = state.note_lost(peer);
        if state.settled || !concerned && !state.is_watched() {
            return;
        }
        if !state.is_watched() {
            self.begin_watch(&mut state, now);
        }
        match state.parts() {
            (initiator, Some(watch)) if was_last => {
                watch.handle_last_disconnect(initiator, node, now);
            }
            (initiator, Some(watch)) => watch.handle_disconnect(initiator, node, now),
            (_, None) => {}
        }
        self.act(state);
    }

    /// A node was not reached by a dial, for this reason or because another life answers there. `met` says that it was
    /// reached there before.
    fn handle_missed(self: &Arc<Self>, node: NodeId, met: bool, why: Option<&ConnectError>) {
        let now = self.endpoint.liveness.now();
        let mut state = self.lock();
        let (initiator, Some(watch)) = state.parts() else {
            return;
        };
        match why {
            None | Some(ConnectError::Refused { .. } | ConnectError::Unreachable { .. }) if met => {
                watch.handle_gone(initiator, node, now);
            }
            None | Some(ConnectError::Refused { .. }) => {
                watch.handle_not_found(initiator, node, now);
            }
            // A server that only others can reach was never reached: that it still cannot be says nothing.
            Some(_) => return,
        }
        self.act(state);
    }

    /// A server tells how far a request is, asked or not.
    pub(crate) fn handle_pong(self: &Arc<Self>, peer: Option<&Arc<Peer>>, pong: &Pong) {
        let now = self.endpoint.liveness.now();
        let mut state = self.lock();
        let is_vouched = is_vouched(pong, self.token, peer.and_then(|peer| peer.node()));
        if is_vouched && let (Some(peer), Some(ping)) = (peer, watch::show(pong, self.token)) {
            drop(state);
            return self.ask(peer, ping);
        }
        let shown = pong.token.filter(|_| !is_vouched);
        let asked = peer.is_some_and(|peer| state.was_asked_over(peer.id));
        if !asked && !state.may_answer(self.token, shown, peer, &pong.request.path) {
            return self.note_forged(peer);
        }
        peer.inspect(|peer| peer.uses.note_call());
        if state.settled {
            return;
        }
        if !state.is_watched() {
            self.begin_watch(&mut state, now);
        }
        let source = self.source(peer, shown.is_some());
        let stop = match state.parts() {
            (initiator, Some(watch)) => watch.handle_pong(initiator, pong, &source, now),
            (_, None) => None,
        };
        if state.ended.is_none() && state.initiator.is_complete() {
            let ended = state.completed();
            return self.end(state, ended);
        }
        self.act(state);
        if let (Some(peer), Some(stop)) = (peer, stop) {
            self.ask(peer, stop);
        }
    }

    /// An answer was shown to the initiator.
    pub(super) fn note_heard(
        &self,
        state: &mut State,
        message: &Message,
        peer: Option<&Arc<Peer>>,
    ) {
        if !state.is_watched() {
            return;
        }
        let (request, token) = match message {
            Message::Response(response) => (response.request, response.token),
            Message::End(end) => (end.request, end.token),
            _ => return,
        };
        let now = self.endpoint.liveness.now();
        let source = self.source(peer, token.is_some());
        if let (initiator, Some(watch)) = state.parts() {
            watch.handle_heard(initiator, request, &source, now);
        }
    }

    /// Who sent a message; unknown for one that may have been passed on, as it shows the call's token.
    fn source(&self, peer: Option<&Arc<Peer>>, shown: bool) -> Source {
        let Some(peer) = peer.filter(|_| !shown) else {
            return Source::default();
        };
        let node = peer.node();
        Source {
            location: Location {
                address: peer.hello().and_then(|hello| hello.address.clone()),
                node,
            },
            alone: node.is_some_and(|node| self.endpoint.pool.count(node) <= 1),
        }
    }

    /// The call is watched over from now on; later if a request waits to be sent, as nobody could know it.
    fn begin_watch(&self, state: &mut State, now: Duration) {
        if state.roots.iter().any(|sent| sent.peer.is_none()) && state.ended.is_none() {
            let due = Some(now + self.ping().period);
            self.endpoint
                .liveness
                .watch(self.id.sequence, state.watch_due(), due);
            state.watched.get_or_insert_default().due = due;
            return;
        }
        let settings = WatchSettings {
            ping: self.ping(),
            stall: self
                .options
                .stall_limit
                .or(self.endpoint.config.stall_limit),
            retries: self.resends(state),
            partial: self.options.partial,
        };
        let servers: Vec<_> = state
            .roots
            .iter()
            .map(|sent| Location {
                address: Some(sent.server.clone()),
                node: sent.node,
            })
            .collect();
        let mut watch = Watch::new(&mut state.initiator, settings, servers, now);
        self.place_line(state, &mut watch, now);
        state.watched.get_or_insert_default().watch = Some(watch);
    }

    /// The call has failed or was given up: what still runs is stopped. Returns whether anything may still run.
    pub(super) fn wind_down(&self, state: &mut State) -> bool {
        let sent = state.roots.iter().any(|sent| sent.peer.is_some());
        // A watched call was sent; what is to be sent again is with nobody now.
        let sent = sent || state.is_watched();
        if !sent || self.endpoint.is_closed() {
            return false;
        }
        let now = self.endpoint.liveness.now();
        if !state.is_watched() {
            self.begin_watch(state, now);
        }
        if let (initiator, Some(watch)) = state.parts()
            && !watch.is_winding_down()
        {
            watch.abort(initiator, now);
        }
        true
    }

    /// Does what the watch wants done.
    pub(super) fn act(&self, mut state: std::sync::MutexGuard<'_, State>) {
        if state.initiator.has_adopted() {
            state.wake();
        }
        let (mut pings, mut failed, mut quiet) = (Vec::new(), None, false);
        let mut again = Vec::new();
        let watch = state.watch();
        let winding = watch.is_some_and(|watch| watch.is_winding_down());
        while let Some(action) = state.watch_mut().and_then(|watch| watch.poll()) {
            match action {
                Action::Ping { to, mut ping } => {
                    ping.abort |= winding; // it was to be asked just before the end
                    if pings.last() != Some(&(to.clone(), ping.clone())) {
                        pings.push((to, ping));
                    }
                }
                Action::Failed(failure) => failed = Some(failure),
                Action::Lost(failure) => state.note_lost_for_good(*failure),
                Action::Quiet => quiet = true,
                Action::Retry {
                    request,
                    attempt,
                    failure,
                } => again.push(Again {
                    request,
                    attempt,
                    failure,
                }),
                Action::Frozen => {}
            }
        }
        let due = state.watch().and_then(|watch| watch.next_timeout());
        if state.is_watched() && due != state.watch_due() {
            let liveness = &self.endpoint.liveness;
            liveness.watch(self.id.sequence, state.watch_due(), due);
            state.watched.get_or_insert_default().due = due;
            if let Some(due) = due {
                self.endpoint.note_due(liveness.moment(due));
            }
        }
        if quiet {
            self.settle(&mut state);
        }
        match failed {
            Some(failure) if state.ended.is_none() => {
                let failure = self.after_attempts(&state, Failure::Lost(failure));
                self.end(state, failure.into());
            }
            // Nothing is missing besides what is lost.
            None if state.ended.is_none() && state.is_complete_but_for_losses() => {
                let ended = state.completed();
                self.end(state, ended);
            }
            _ if !again.is_empty() => self.again(state, &again),
            _ => drop(state),
        }
        if quiet {
            self.endpoint.forget_call(self.id.sequence);
            self.tell();
        }
        for (to, ping) in pings {
            self.endpoint.send_ping(to, ping);
        }
    }

    /// Nothing of the call runs any more.
    pub(super) fn settle(&self, state: &mut State) {
        state.settled = true;
        let Some(watched) = &mut state.watched else {
            return;
        };
        watched.watch = None;
        if let Some(due) = watched.due.take() {
            self.endpoint
                .liveness
                .watch(self.id.sequence, Some(due), None);
        }
    }

    /// Waits until nothing of the call runs any more, as far as its servers can be reached.
    pub(crate) async fn settled(&self) {
        loop {
            let changed = self.changed();
            if self.lock().settled {
                return;
            }
            changed.await;
        }
    }

    /// The open connection with this node that one of the initial requests went out on.
    fn connection_with(&self, node: NodeId) -> Option<Arc<Peer>> {
        let state = self.lock();
        let ways = state.roots.iter().filter_map(|sent| sent.peer.as_ref());
        let mut ways = ways.filter(|way| way.node() == Some(node) && !way.is_closed());
        ways.next().map(Arc::clone)
    }

    /// Whether the application has sent one of the initial requests there.
    fn was_sent_to(&self, server: &Address) -> bool {
        let state = self.lock();
        state.roots.iter().any(|sent| sent.server == *server)
    }

    /// Asks about a request whose server cannot be reached from here along the way that it went: over the connections of
    /// the initial requests that it may have come of.
    fn ping_by_relays(&self, ping: &Ping) {
        let state = self.lock();
        let path = &ping.request.path;
        let above = |root: &Path| path.is_folded() || path.levels_below(root).is_some();
        let roots = state.roots.iter().filter(|sent| above(&sent.path()));
        let ways = roots.filter_map(|sent| sent.peer.clone());
        let mut ways: Vec<_> = ways.filter(|way| !way.is_closed()).collect();
        drop(state);
        ways.dedup_by_key(|way| way.id);
        for way in ways {
            way.control(Message::Ping(ping.clone()));
        }
    }

    /// Asks over this connection. As long as the ping waits for those before it to be written, no answer can come.
    fn ask(&self, peer: &Arc<Peer>, ping: Ping) {
        let mut state = self.lock();
        if !state.was_asked_over(peer.id) {
            let watched = state.watched.get_or_insert_default();
            watched.pinged.push(peer.id);
        }
        drop(state);
        peer.uses.note_call();
        let place = Some(Place::Initiator(self.id.sequence));
        peer.try_control(Message::Ping(ping), place);
    }
}

impl State {
    /// Both halves that watching needs, if the call is watched over.
    pub(super) fn parts(
        &mut self,
    ) -> (
        &mut wallaby_proto::call::initiator::Initiator,
        Option<&mut Watch>,
    ) {
        {
            let watched = self.watched.as_mut();
            (
                &mut self.initiator,
                watched.and_then(|watched| watched.watch.as_mut()),
            )
        }
    }

    /// Initial requests that wait to be sent again have no server yet that could show life. Once the call has ended they
    /// are not sent any more.
    fn note_unsent(&mut self, now: Duration) {
        let watched = self.watched.as_mut();
        let (initiator, Some(watch)) = (
            &self.initiator,
            watched.and_then(|watched| watched.watch.as_mut()),
        ) else {
            return;
        };
        if watch.is_winding_down() {
            return;
        }
        for sent in self.roots.iter().filter(|sent| sent.peer.is_none()) {
            let (path, hop) = (sent.path(), 0);
            watch.writing(initiator, RequestId { path, hop }, now);
        }
    }

    /// A connection has ended: initial requests that went out on it may be lost. Returns whether there are any.
    fn note_lost(&mut self, peer: &Peer) -> bool {
        if let Some(watched) = &mut self.watched {
            watched.pinged.retain(|id| *id != peer.id);
        }
        let mut concerned = false;
        for sent in self.roots.iter_mut() {
            if sent.peer.as_ref().is_some_and(|used| used.id == peer.id) {
                sent.lost = true;
                concerned = true;
            }
        }
        concerned
    }
}

impl Inner {
    /// Asks a server about a request, over an open connection or a new one.
    fn send_ping(self: &Arc<Self>, to: Location, ping: Ping) {
        let Some(call) = self.call(ping.call.sequence) else {
            return;
        };
        let at = to.address.as_ref();
        let open = match to.node {
            Some(node) => {
                let known = at.and_then(|address| self.pool.at(address, node));
                known.or_else(|| call.connection_with(node))
            }
            None => at.and_then(|address| self.pool.ready(address)),
        };
        if let Some(peer) = open {
            return call.ask(&peer, ping);
        }
        let Some(address) = to.address.clone() else {
            return;
        };
        // Servers say where they delegated to; the application has named the first ones itself.
        if !self.config.dial_policy.permits(&address) && !call.was_sent_to(&address) {
            self.forbid(&address);
            return call.ping_by_relays(&ping);
        }
        let named_by = match call.was_sent_to(&address) {
            true => NamedBy::Application,
            false => NamedBy::Peer,
        };
        let endpoint = Arc::clone(self);
        self.runtime.spawn(async move {
            let met = to.node.is_some() && endpoint.pool.was_at(&address, to.node);
            let connected = endpoint.connect_asked(&address, to.node, named_by).await;
            let why = match connected {
                Err(ConnectError::Held { .. }) => return call.ping_by_relays(&ping),
                Ok(peer) if to.node.is_none() || peer.node() == to.node => {
                    return call.ask(&peer, ping);
                }
                Ok(_) => None,
                Err(error) => Some(error),
            };
            if let Some(node) = to.node {
                call.handle_missed(node, met, why.as_ref());
            }
            call.ping_by_relays(&ping);
        });
    }
}
