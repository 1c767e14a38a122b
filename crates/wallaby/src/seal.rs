//! Which requests are sealed, and which are not taken (`wallaby_proto::seal`).

use std::sync::Arc;

use wallaby_proto::seal::verify;
use wallaby_proto::wire::Request;
use wallaby_proto::{Code, Status};

use crate::driver::peer::Peer;
use crate::endpoint::Inner;

impl Inner {
    /// Seals a request for the server that this connection leads to, if this endpoint has a cluster key.
    #[inline]
    pub(crate) fn seal(&self, request: &mut Request, peer: &Peer) {
        if !self.config.cluster_keys.is_empty() {
            self.seal_now(request, peer);
        }
    }

    #[cold]
    #[inline(never)]
    fn seal_now(&self, request: &mut Request, peer: &Peer) {
        if let (Some(key), Some(receiver)) = (self.config.cluster_keys.first(), peer.node()) {
            key.seal(request, receiver, self.address.as_ref());
        }
    }

    /// Whether a request may be taken; one that may not is answered over its own connection: the address to which it
    /// wants its answers may be a stranger's.
    #[cold]
    #[inline(never)]
    pub(crate) fn takes(self: &Arc<Self>, request: &mut Request, peer: &Arc<Peer>) -> bool {
        let address = peer.hello().and_then(|hello| hello.address.as_ref());
        let keys = &self.config.cluster_keys;
        let Err(error) = verify(keys, request, self.node, address) else {
            return true;
        };
        self.meters.unsealed_refused.add();
        if let Some(more) = self.sparse.unsealed.pass(self.age()) {
            tracing::warn!(call = %request.call, ?peer, %error, more, "a request was refused");
        }
        let status = Status::new(Code::PermissionDenied, error.to_string());
        let status = status.by(self.address.as_ref());
        self.answer_stranger(peer, request, &status);
        false
    }
}
