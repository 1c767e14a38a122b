//! Bodies that follow initial requests.

use std::sync::Arc;

use wallaby_proto::wire::Request;
use wallaby_proto::{Address, RequestId};

use super::{CallShared, State};
use crate::body::{self, Attached, Body};
use crate::driver::peer::Peer;
use crate::error::Failure;

impl CallShared {
    /// A body is to follow a request. It can be read once, so the request is sent once.
    #[cold]
    #[inline(never)]
    pub(super) fn attach(
        &self,
        request: &mut Request,
        body: &Attached,
        server: &Address,
    ) -> Result<(), Failure> {
        let body = body.take().ok_or_else(|| Failure::Refused {
            request: request.id,
            server: server.clone(),
            reason: "its body went with another request".into(),
        })?;
        // Its number is the connection's business.
        request.options.get_or_insert_default().body = Some(0);
        let mut state = self.lock();
        let path = request.id.path;
        if let Some(sent) = state.roots.find_mut(&path) {
            sent.body = Some(Box::new(body));
        }
        Ok(())
    }

    /// A request was sent: its body follows it.
    #[cold]
    #[inline(never)]
    pub(super) fn send_body(&self, id: RequestId, number: u64, peer: &Arc<Peer>) {
        let body = {
            let mut state = self.lock();
            let sent = state.roots.find_mut(&id.path);
            sent.and_then(|sent| sent.body.take())
        };
        // A call that has ended meanwhile leaves it to the server to be told.
        let shared = self.endpoint.call(self.id.sequence);
        let over = async move {
            if let Some(shared) = shared {
                shared.ended().await;
            }
            body::CALL_ENDED.to_owned()
        };
        // The call may have ended between: then the server is to be told that nothing comes.
        let body = body.map_or_else(Body::given_up, |body| *body);
        let sending = body::send(body, Arc::clone(peer), number, over);
        self.endpoint.runtime.spawn(sending);
    }

    /// Waits until the call has ended.
    async fn ended(&self) {
        loop {
            let changed = self.changed();
            if self.lock().ended.is_some() {
                return;
            }
            changed.await;
        }
    }
}

impl State {
    /// The call has failed: bodies whose requests have not been sent never will be.
    #[cold]
    #[inline(never)]
    pub(super) fn unsent_bodies(&mut self) -> Vec<Body> {
        let bodies = self.roots.iter_mut().filter_map(|sent| sent.body.take());
        bodies.map(|body| *body).collect()
    }
}
