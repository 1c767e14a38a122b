//! What can be asked about a request.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use wallaby_proto::connection::MethodDefinition;
use wallaby_proto::endpoint::Author;
use wallaby_proto::wire::{Budgets, Metadata};
use wallaby_proto::{Address, CallId, DurableId, NodeId, RequestId, Status, Token};

use crate::body::Body;
use crate::client::{Caller, Client};
use crate::error::SendError;
use crate::handling::Handling;
use crate::intercept::Extensions;
use crate::transport::Identity;

/// What can be asked about a request, and what can be said of it besides what it sends: [`RawRequest`](super::RawRequest)
/// and [`Request`](super::Request) give it to handlers.
#[derive(Clone)]
pub struct RequestInfo {
    pub(crate) handling: Arc<Handling>,
    /// Who has it.
    pub(crate) author: Author,
}

impl RequestInfo {
    pub(crate) fn new(handling: &Arc<Handling>, author: Author) -> Self {
        Self {
            handling: Arc::clone(handling),
            author,
        }
    }

    /// What interceptors have put there for its handler.
    pub fn extensions(&self) -> &Extensions {
        &self.handling.extensions
    }

    /// The body that follows the request, if one does; `None` once it was taken. One that nobody has taken is stopped when
    /// the request ends.
    pub fn take_body(&self) -> Option<Body> {
        self.handling.take_body()
    }

    /// The method's name, `package.Service/method`.
    pub fn method(&self) -> &str {
        self.handling.method().name()
    }

    /// What the caller says of the method: its name, its codec, and fingerprints of its types. So a gateway can hand the request on
    /// whose methods it does not know.
    pub fn definition(&self) -> &Arc<MethodDefinition> {
        self.handling.method()
    }

    /// The call that the request belongs to.
    pub fn call_id(&self) -> CallId {
        self.handling.call
    }

    /// The request's place in the call's tree.
    pub fn id(&self) -> RequestId {
        self.handling.id
    }

    /// How many hops led here: 0 if the initiator sent it.
    pub fn depth(&self) -> u32 {
        self.handling.depth
    }

    /// The endpoint that made the call.
    pub fn initiator(&self) -> NodeId {
        self.handling.call.initiator
    }

    /// The endpoint that sent this request: the initiator, or the server before.
    pub fn delegator(&self) -> Option<NodeId> {
        self.handling.delegator
    }

    /// Who sent this request, as far as the transport that brought it has proven: the initiator, or the server before. What
    /// they say of others, as of the initiator, they may invent.
    pub fn identity(&self) -> &Identity {
        &self.handling.identity
    }

    /// Who made the call, if that is proven: only where the initiator itself sent this request.
    pub fn initiator_identity(&self) -> Option<&Identity> {
        let own = self.depth() == 0 && self.delegator() == Some(self.initiator());
        own.then(|| self.identity())
    }

    /// Whether somebody who has one of this endpoint's [cluster keys](crate::Builder::cluster_key) has sent this request as it is:
    /// its arguments, metadata and [continuation](Self::continuation) are what he has sealed, but not the bytes of a body. Of a
    /// message down a line it is who has passed that on. It is `false` if there is no key here, or the request has ended.
    ///
    /// ```
    /// use wallaby::Status;
    /// use wallaby::intercept::{Admission, Incoming};
    ///
    /// // All may ask, and only members of the cluster may change something.
    /// fn admit(request: &Incoming) -> Admission {
    ///     match request.method() {
    ///         "example.Index/put" if !request.is_sealed() => Admission::Refuse(Status::permission_denied("for the cluster only")),
    ///         _ => Admission::Run,
    ///     }
    /// }
    /// ```
    pub fn is_sealed(&self) -> bool {
        self.handling.is_sealed()
    }

    /// The call's metadata.
    pub fn metadata(&self) -> &Metadata {
        &self.handling.metadata
    }

    /// Bytes that the sender gave along with this request alone: what is to be done with its answer
    /// ([`Client::continuation`](crate::Client::continuation)). What is delegated does not inherit them. `None` if there are none,
    /// or the request has ended.
    pub fn continuation(&self) -> Option<Bytes> {
        self.handling.continuation()
    }

    /// Why this request is handled here, if a request here has handed it on to another server, which it certainly did not reach, and
    /// has named a method for that case ([`Delegation::unless_sent`](super::Delegation::unless_sent)). The status names that server and
    /// what was called there; who fails with it tells the initiator what it would have been told otherwise. `None` of all that others
    /// have sent, or if the request has ended.
    pub fn undelivered(&self) -> Option<Status> {
        self.handling.undelivered()
    }

    /// The name under which this work may have been asked for before, by an earlier incarnation of its initiator perhaps
    /// ([`Client::durable`](crate::Client::durable)). What is delegated or called has a name that follows from it, and from how
    /// much its handler has delegated and called before: a handler that does the same again gives the same names, whoever is around
    /// it, and whenever it leaves. `None` if it has none, or the request has ended.
    pub fn durable_id(&self) -> Option<DurableId> {
        self.handling.durable_id()
    }

    /// How much time remains until the call's deadline.
    pub fn remaining(&self) -> Duration {
        self.handling.remaining()
    }

    /// Whether the request was stopped: the call was aborted, or its deadline passed. Nothing can be sent any more.
    pub fn is_cancelled(&self) -> bool {
        self.handling.is_cancelled()
    }

    /// Waits until the request is stopped. For what must know of it, and is not dropped then: [shielded](Self::shield) sections,
    /// and tasks that a handler has started. The handler itself is dropped at its next await.
    pub fn cancelled(&self) -> impl Future<Output = ()> + Send + use<> {
        let handling = Arc::clone(&self.handling);
        async move { handling.cancelled().await }
    }

    /// A section of the handler that must finish once it has begun.
    ///
    /// When a request is stopped (its call was aborted or dropped, its deadline has passed, its server shuts down), its handler is
    /// dropped where it waits, at an `.await`: what comes after that is not done. While a shielded section is under way the handler
    /// runs on, to the first `.await` behind it that waits. What it runs beside the section, by a `join!` perhaps, runs on as well.
    ///
    /// A section that takes longer than the grace period ([`crate::Builder::grace`]) after the stop gives its place in the executor
    /// to others. It can see that it is late ([`is_cancelled`](Self::is_cancelled)); nothing can be sent then. Whole handlers are
    /// shielded by [`Service::shielded`](crate::Service::shielded); blocking ones always are, and look at `is_cancelled`.
    ///
    /// ```
    /// # use wallaby::{One, Request, Status};
    /// # struct Store;
    /// # impl Store {
    /// #     async fn read(&self) -> u64 { 1 }
    /// #     async fn take(&self, from: u64) {}
    /// #     async fn put(&self, to: u64) {}
    /// # }
    /// async fn transfer(request: Request<One<u64>>, store: &Store) -> Result<(), Status> {
    ///     let account = store.read().await; // perhaps the last that is done
    ///     request
    ///         .shield(async {
    ///             store.take(account).await; // both, or neither
    ///             store.put(account + 1).await;
    ///         })
    ///         .await;
    ///     Ok(request.respond(account).await?)
    /// }
    /// # fn main() {}
    /// ```
    pub fn shield<F: Future>(&self, section: F) -> impl Future<Output = F::Output> + use<F> {
        let handling = Arc::clone(&self.handling);
        async move {
            let _shield = handling.shield();
            section.await
        }
    }

    /// Says that the handler makes progress, for initiators that limit how long it may make none. What it sends, and
    /// coming back from something it waited for, says so too.
    pub fn progress(&self) {
        self.handling.progress();
    }

    /// Tells a part of this hop's time apart in the call's [trace](crate::Trace), if the call is traced: how long the handler has
    /// waited for a disk, say. At most four names of 32 bytes count, times of the same name are added up, and what is noted after
    /// the request's last message left is not told.
    pub fn note_time(&self, name: &str, took: Duration) {
        self.handling.note_time(name, took);
    }

    /// What this request and all that it leads to may still use up: `None` unless the call's budgets are stated
    /// ([`crate::Client::budgets`]) or this server has a maximum ([`crate::Builder::max_budgets`]).
    ///
    /// A message beyond it is an error ([`SendError::Exhausted`](crate::SendError::Exhausted)) and ends the request with a
    /// status; a handler that can do with less looks here before.
    pub fn budgets(&self) -> Option<Budgets> {
        self.handling.budgets()
    }

    /// Says how many delegations will come: each gets an equal part of what is left of the budgets.
    ///
    /// Without, half of what the request was given stays with it, and of the other half the k-th delegation gets 1/(k(k+1)):
    /// 1/2, 1/6, 1/12... The last message of a handler, if it is a request, always takes all that is left along. It changes
    /// nothing where no budgets are stated.
    pub fn share_among(&self, times: u32) {
        self.handling.share_among(times);
    }

    /// Makes calls on behalf of this request: they inherit its deadline, metadata and trace, and end when it is stopped.
    /// Where budgets are stated, each gets the share of a delegation.
    pub fn call(&self) -> Caller {
        Caller::within(self)
    }

    /// For calls to a server that a peer has named, as in an argument: the [dial policy](crate::Builder::dial_policy) is asked, as about
    /// servers that work is delegated to. Calls by [`call`](Self::call) are the application's own, which it restricts only if it is
    /// [told to](crate::DialPolicy::for_calls). These calls belong to the endpoint and not to the request: nothing of its metadata or
    /// deadline goes along, and they go on when it ends.
    ///
    /// # Errors
    ///
    /// [`SendError::Forbidden`] if the policy forbids that server.
    pub fn client_named(&self, server: &Address) -> Result<Client, SendError> {
        let endpoint = &self.handling.endpoint;
        endpoint.ask(|core| core.endpoint.check_named(server))?;
        Ok(Caller::beside(self).at(server))
    }
}

/// What tells the request's call from one of a stranger that has the same [id](RequestInfo::call_id): `None` if it has ended.
#[doc(hidden)]
pub fn token(request: &RequestInfo) -> Option<Token> {
    request.handling.token()
}

impl fmt::Debug for RequestInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.handling.fmt(f)
    }
}
