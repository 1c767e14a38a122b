//! Ways to initiators: which connection leads on, and waiting for one where none does.

use std::fmt;
use std::sync::Arc;

use tokio::sync::oneshot;
use wallaby_proto::call::waiting::WaitingId;
use wallaby_proto::{CallId, NodeId, Token};

use crate::driver::peer::Peer;
use crate::endpoint::Inner;
use crate::liveness::Liveness;

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
    pub(crate) fn wait_for_way(&self, call: CallId, payload: usize) -> Option<Wait> {
        let (sender, found) = oneshot::channel();
        match self.liveness.begin_wait(call.initiator, payload, sender) {
            Ok(id) => {
                self.meters.waited_for_ways.add();
                self.look_again();
                let liveness = Arc::clone(&self.liveness);
                Some(Wait {
                    liveness,
                    id,
                    found,
                })
            }
            Err(full) => {
                if let Some(more) = self.sparse.no_way.pass(self.age()) {
                    tracing::warn!(%call, %full, more, "an answer may not wait");
                }
                None
            }
        }
    }

    /// There is a way to this initiator: what waits for one goes on.
    pub(crate) fn found_way(&self, initiator: NodeId) {
        for waits in self.liveness.end_waits(initiator) {
            // Nobody may be waiting any more.
            let _ = waits.send(());
        }
    }

    /// The connection that leads on to the initiator of a call, for what came from `from` and shows this token: its own,
    /// else the one that a request of the call came over, else one that other requests of its initiator did. What the
    /// initiator says as a server of its own call goes back to it: it may know of that server only by this endpoint.
    pub(crate) fn way_onward(
        &self,
        call: CallId,
        token: Option<Token>,
        from: &Arc<Peer>,
    ) -> Option<Arc<Peer>> {
        if from.node() == Some(call.initiator) {
            return Some(Arc::clone(from));
        }
        let direct = self.pool.by_node(call.initiator);
        let came = || {
            let session = self.liveness.way_back(call, token?)?;
            let peer = self.pool.by_id(session.0);
            peer.filter(|peer| !peer.is_closed())
        };
        let way = direct
            .or_else(came)
            .or_else(|| self.pool.route(call.initiator))?;
        (way.id != from.id).then_some(way)
    }
}
