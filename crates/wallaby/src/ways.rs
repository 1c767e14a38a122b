//! Ways to initiators: which connection leads on, and waiting for one where none does.

use std::fmt;
use std::sync::Arc;

use tokio::sync::oneshot;
use wallaby_proto::call::records::{Session, Way, invitation};
use wallaby_proto::call::waiting::{Awaited, WaitingId};
use wallaby_proto::wire::{Message, Response};
use wallaby_proto::{CallId, NodeId, Token};

use crate::driver::peer::Peer;
use crate::endpoint::Inner;
use crate::liveness::{Liveness, session};

/// An answer that waits for a way to its initiator.
pub(crate) struct Wait {
    liveness: Arc<Liveness>,
    id: WaitingId,
    found: oneshot::Receiver<()>,
}

impl Wait {
    /// Waits for it; `false` if none was found in time.
    pub(crate) async fn found(mut self) -> bool {
        (&mut self.found).await.is_ok()
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        self.liveness.end_wait(self.id);
    }
}

impl fmt::Debug for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.id.fmt(f)
    }
}

impl Inner {
    /// An answer with a payload of so many bytes waits for a way to the initiator of its call, unless too much does
    /// already. To be called before the last look for a way, so that none is missed.
    pub(crate) fn wait_for_way(&self, awaited: Awaited, payload: usize) -> Option<Wait> {
        let (sender, found) = oneshot::channel();
        match self.liveness.begin_wait(awaited, payload, sender) {
            Ok((id, is_first)) => {
                self.meters.waited_for_ways.add();
                self.look_again();
                let liveness = Arc::clone(&self.liveness);
                if is_first {
                    for claiming in self.pool.claiming(awaited.call.initiator) {
                        self.invite(&claiming, awaited);
                    }
                }
                Some(Wait {
                    liveness,
                    id,
                    found,
                })
            }
            Err(full) => {
                if let Some(more) = self.sparse.no_way.pass(self.age()) {
                    tracing::warn!(call = %awaited.call, %full, more, "an answer may not wait");
                }
                None
            }
        }
    }

    /// Somebody has shown the token of this call: what waits for a way to its initiator goes on.
    pub(crate) fn found_way(&self, call: CallId, token: Token) {
        for waits in self.liveness.end_waits(call, token) {
            // Nobody may be waiting any more.
            let _ = waits.send(());
        }
    }

    /// A connection opened whose other end says that it is this life. If answers wait for that, it is asked to prove it.
    pub(crate) fn invite_claiming(&self, peer: &Arc<Peer>, node: NodeId) {
        for awaited in self.liveness.awaited(node) {
            self.invite(peer, awaited);
        }
    }

    /// Asks whoever is there to show the token of a call, as only its initiator would.
    pub(crate) fn invite(&self, peer: &Arc<Peer>, of: Awaited) {
        let pong = invitation(of.call, of.token, of.request, self.node);
        peer.control(Message::Pong(pong));
    }

    /// An answer goes back over the connection that its request came over. If its initiator seems to be connected itself,
    /// it is asked to prove it: what comes the same way is then answered straight.
    #[cold]
    pub(crate) fn invite_from(&self, came: &Arc<Peer>, of: Awaited) {
        for claiming in self.pool.claiming(of.call.initiator) {
            let named = (of.call, of.token, of.request);
            let sessions = (session(came), session(&claiming));
            if let Some(pong) = self.liveness.invite(named, sessions, self.node) {
                claiming.control(Message::Pong(pong));
            }
        }
    }

    /// The connection that a call's initiator has proven to be its own, for what came over another one.
    pub(crate) fn way_direct(&self, initiator: NodeId, came: Session) -> Option<Arc<Peer>> {
        let session = self.liveness.way_direct(initiator, came)?;
        let peer = self.pool.by_id(session.0)?;
        (!peer.is_closed()).then_some(peer)
    }

    /// The connection by which answers of a call go back: the one that its request came over or what took its place; the
    /// initiator's own, if it has proven one.
    pub(crate) fn way_back(&self, call: CallId, token: Token) -> Option<Arc<Peer>> {
        let (peer, _) = self.nearer(call, token, 0)?;
        Some(peer)
    }

    /// Where an answer goes on to that is so far from its initiator, and how far it is then.
    fn nearer(&self, call: CallId, token: Token, distance: u32) -> Option<(Arc<Peer>, u32)> {
        let Way { session, distance } = self.liveness.way_onward(call, token, distance)?;
        if let Some(direct) = self.way_direct(call.initiator, session) {
            return Some((direct, distance));
        }
        let peer = self.pool.by_id(session.0)?;
        // Where the requests before it were forgotten, one that this endpoint has sent to itself leads in a circle.
        (!peer.is_closed() && peer.node() != Some(self.node)).then_some((peer, distance))
    }

    /// Whether an answer may wait for a way: a request of its call came by here that is nearer to the initiator than where it
    /// comes from.
    pub(crate) fn may_wait(&self, response: &Response) -> bool {
        let Response { call, distance, .. } = *response;
        let way = |token| self.liveness.way_onward(call, token, distance);
        response.token.and_then(way).is_some()
    }

    /// The connection that leads on to the initiator of a call, for what came from `from`, shows this token and is so far from
    /// there; and how far it is then. What the initiator says as a server of its own call goes back to it: it may know of that
    /// server only by this endpoint.
    pub(crate) fn way_onward(
        &self,
        (call, token, distance): (CallId, Option<Token>, u32),
        from: &Arc<Peer>,
    ) -> Option<(Arc<Peer>, u32)> {
        if from.node() == Some(call.initiator) {
            return Some((Arc::clone(from), distance));
        }
        let (way, nearer) = self.nearer(call, token?, distance)?;
        (way.id != from.id).then_some((way, nearer))
    }
}
