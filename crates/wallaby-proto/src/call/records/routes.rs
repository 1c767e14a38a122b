//! Which connections may be taken for an initiator's own.
//!
//! A node id is what the other end of a connection claims, and proves nothing. What does is the token of a call, shown over the
//! connection, and it proves as much as that call's request came with: from then on who shows it is taken for the initiator of
//! all that comes over the connection that the request came over. Not of more: whoever brings a request may have made up its
//! call, and would know the token of that.

use std::collections::{BTreeMap, VecDeque};

use crate::call::records::table::RecordedCallKey;
use crate::call::records::{ConnId, MessageOrigin, Records, Ticket};
use crate::id::{CallId, NodeId, RequestId, Token};
use crate::wire::Pong;

/// Initiators that are kept for a delegating connection; beyond it all are forgotten, and prove themselves anew.
const MAX_INITIATORS: usize = 256;

/// Connections that have ended and whose peers are remembered.
const MAX_FORMER: usize = 1024;

/// Connections that claim to be one initiator's and are asked to prove it.
const MAX_INVITED: usize = 4;

/// The peers of the connections that ended last.
#[derive(Debug, Default)]
pub(super) struct FormerConns {
    peers: BTreeMap<ConnId, NodeId>,
    by_age: VecDeque<ConnId>,
}

impl FormerConns {
    /// A connection with this peer has ended.
    pub(super) fn note(&mut self, conn: ConnId, peer: NodeId) {
        if self.by_age.len() >= MAX_FORMER
            && let Some(oldest) = self.by_age.pop_front()
        {
            self.peers.remove(&oldest);
        }
        self.peers.insert(conn, peer);
        self.by_age.push_back(conn);
    }

    fn peer(&self, conn: ConnId) -> Option<NodeId> {
        self.peers.get(&conn).copied()
    }
}

impl Records {
    /// The connection by which answers go straight to this initiator whose request came over another one: it claims the
    /// initiator's node id, and has shown the token of a request that came the same way.
    pub fn direct_route(&self, initiator: NodeId, came: ConnId) -> Option<ConnId> {
        let known = self.conns.get(&came)?.initiators.get(&initiator)?;
        known.shown.filter(|route| self.conns.contains_key(route))
    }

    /// The open connection over which the initiator itself brought the first request of a call that came here, if it did: what
    /// another server has brought of the same call since goes straight back over it, and not round by that server.
    pub fn brought_by_initiator(&self, call: CallId, token: Token) -> Option<ConnId> {
        let known = self.table.call(&RecordedCallKey { call, token })?;
        let known = self.table.calls.get(known);
        let lists = &self.table.peers.get(known.peer).by_conn;
        let first = lists.get(usize::from(known.conn_index))?;
        let conn = first.conn.filter(|_| first.own)?;
        self.conns.contains_key(&conn).then_some(conn)
    }

    /// The connection that a request came over, or what took its place since.
    pub fn came(&self, ticket: Ticket) -> Option<ConnId> {
        let record = self.table.records.get(self.slot(ticket)?);
        Some(record.conn)
    }

    /// A message over a connection has shown the token of this request's call.
    ///
    /// Where the connection that the request came over has ended, this one takes its place: as the initiator's own, or as the new
    /// one of who brought the request. Not of another server that shows the token: answers might go round in a circle. Returns
    /// whether it does.
    pub(super) fn note_shown(&mut self, slot: u32, origin: MessageOrigin) -> bool {
        let record = self.table.records.at(slot);
        if record.conn == origin.conn {
            return false;
        }
        let initiator = self.table.calls.get(record.call).key.call.initiator;
        let own = origin.peer == initiator;
        match self.conns.get_mut(&record.conn) {
            Some(came) if own && !record.direct => {
                let known = came.initiators.len();
                if known >= MAX_INITIATORS && !came.initiators.contains_key(&initiator) {
                    came.initiators.clear();
                }
                let known = came.initiators.entry(initiator).or_default();
                known.shown = Some(origin.conn);
                false
            }
            Some(_) => false,
            None if own || self.former.peer(record.conn) == Some(origin.peer) => {
                (record.conn, record.direct) = (origin.conn, own);
                if let Some(conn) = self.conns.get_mut(&origin.conn) {
                    conn.foreign = true;
                }
                true
            }
            None => false,
        }
    }

    /// An answer goes back over the connection that its request came over, while another one claims to be its initiator's own:
    /// what to say there, once, so that the initiator shows the call's token. In place of the token it bears what only those
    /// can make who know it ([`Token::vouch`]); `own` is the node id of this incarnation.
    pub fn invite(
        &mut self,
        (call, token, request): (CallId, Token, RequestId),
        came: ConnId,
        (claims, own): (ConnId, NodeId),
    ) -> Option<Pong> {
        if came == claims || !self.conns.contains_key(&claims) {
            return None;
        }
        let initiators = &mut self.conns.get_mut(&came)?.initiators;
        if initiators.len() >= MAX_INITIATORS && !initiators.contains_key(&call.initiator) {
            initiators.clear();
        }
        let known = initiators.entry(call.initiator).or_default();
        if known.invited.len() >= MAX_INVITED || known.invited.contains(&claims) {
            return None;
        }
        known.invited.push(claims);
        Some(invitation(call, token, request, own))
    }
}

/// Asks who says that it is a call's initiator to show the call's token.
pub fn invitation(call: CallId, token: Token, request: RequestId, own: NodeId) -> Pong {
    Pong {
        call,
        distance: 0,
        token: Some(token.vouch(call, own)),
        request,
        attempt: 0,
        announced: true,
        writing: false,
        evicted: false,
        gone: false,
        heartbeats: false,
        progress: None,
    }
}
