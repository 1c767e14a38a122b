//! Pings: how servers are asked about requests of calls, and what is learnt where they are not there.

use crate::call::watch::{Found, Location};
use crate::connection::{Mark, NamedBy};
use crate::wire::{Message, Ping};
use crate::{Address, CallId, ConnId, NodeId, RequestId};

use super::Endpoint;
use super::conn::{Asked, Asks, Cargo, Parcel};
use super::probe::{Note, Probe};
use crate::error::ConnectError;

impl<P: Probe> Endpoint<P> {
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
        let open = open.or_else(|| self.leaving_at(&to));
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

    /// The connection with a server that takes no new requests, and still answers questions: one that this side has dialled.
    fn leaving_at(&self, to: &Location) -> Option<ConnId> {
        let claiming = self.claiming(to.node?);
        claiming.into_iter().find(|id| {
            let conn = self.conns.get(*id);
            conn.is_some_and(|conn| conn.dialled.is_some() && conn.at == to.address)
        })
    }

    /// The connection with this node that one of the initial requests went out on.
    fn root_with(&self, sequence: u64, node: NodeId) -> Option<ConnId> {
        let roots = self.calls.get(sequence)?.client.roots.iter();
        let mut routes = roots.filter_map(|root| root.conn);
        routes.find(|route| {
            self.conns
                .get(*route)
                .is_some_and(|conn| conn.node() == Some(node))
        })
    }

    /// A ping about an initial request goes out behind what its server's stream has not taken yet: until then no answer can come.
    /// Servers of later hops have read theirs, and tell of themselves where they are not asked.
    fn note_ping_behind(&mut self, sequence: u64, request: RequestId, id: ConnId) {
        if request.hop > 0 {
            return;
        }
        let stream = self.conns.get(id).and_then(|conn| conn.stream());
        let end = stream.map(|stream| stream.connection.end());
        let call = self.calls.get_mut(sequence);
        let root = call.and_then(|call| call.client.root(request));
        if let (Some(end), Some(root)) = (end, root)
            && root.conn == Some(id)
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
    pub(super) fn is_gone_for_certain(&self, to: &Location, why: Option<&ConnectError>) -> bool {
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

    /// Asks about a request whose server cannot be reached from here along the route that it went: over the connections of the
    /// initial requests that it may have come of.
    fn ping_by_relays(&mut self, ping: &Ping) {
        let Some(call) = self.calls.get(ping.call.sequence) else {
            return;
        };
        let path = &ping.request.path;
        let above = (call.client.roots.iter())
            .filter(|root| path.is_folded() || path.levels_below(&root.request.path).is_some());
        let mut routes: Vec<ConnId> = above.filter_map(|root| root.conn).collect();
        routes.sort_unstable();
        routes.dedup();
        for route in routes {
            self.try_control(route, Message::Ping(ping.clone()));
        }
    }
}
