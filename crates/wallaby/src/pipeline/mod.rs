//! One message down a line of servers, each of which passes it on while it arrives (FlexRPC III-D, pipelined).
//!
//! It is one call. Its request goes to the first server, which delegates it to the second before it does anything else with
//! it, and so on: so a server's place in the call's tree says which of the line it is. What its handler answers goes to the
//! initiator directly, and what became of each server is read off the tree: from its answers, from statuses that say that a
//! request was not delivered, and from the manifests, which say who has passed on nothing.
//!
//! *head* is what goes ahead of the bytes, *serve* what a server of the line does, *tee* how its handler and the next server
//! read the same body. *settings*, *outcome* and *line* are the initiator's: who may stand in it, what became of each, and which
//! part of the tree is whose.

mod head;
mod line;
mod outcome;
mod serve;
mod settings;
mod tee;

use bytes::Bytes;
use wallaby_proto::{Address, Path, RequestId};

use self::head::Head;
pub(crate) use self::head::definition;
pub use self::outcome::{Pipeline, TargetOutcome};
pub(crate) use self::serve::{PipelineInterceptor, Store, StoredBytes};
pub use self::settings::{Forwarding, PipelineSettings};
pub(crate) use self::tee::Half;
use crate::body::{Attached, Body};
use crate::call::RawCall;
use crate::client::Caller;
use crate::codec::Codec;
use crate::error::Failure;
use crate::method::{Answers, Target};

impl Caller {
    /// Sends a message to the first of these servers, which passes it on to the second while it arrives, and so on: what
    /// [`Pipeline`] tells of each. The target may have a body ([`Target::with_body`]).
    ///
    /// The initiator sends the message once, however many servers there are; so for long messages this is faster than
    /// [`multicast`](Self::multicast), and for short ones slower. See `docs/guide/one-to-many.md`. The servers must be reached over
    /// `tcp:`, `unix:`, `shm:` or `mem:`. At most 16 stand in a line: [`pipeline_with`](Self::pipeline_with) changes that.
    ///
    /// ```
    /// # use wallaby::{Address, Body, Endpoint, TargetOutcome};
    /// #[wallaby::service]
    /// trait Store {
    ///     async fn put(key: String) -> u64;
    /// }
    ///
    /// # async fn example(endpoint: Endpoint, replicas: Vec<Address>, file: tokio::io::Empty) {
    /// let put = store::put("a".into()).with_body(Body::from_read(file));
    /// let mut stored = endpoint.caller().pipeline(replicas, put);
    /// while let Some(delivery) = stored.next().await {
    ///     println!("{}: {:?}", delivery.server, delivery.answer);
    /// }
    /// let has_it = |outcome: &TargetOutcome| *outcome == TargetOutcome::Answered;
    /// println!("{} have it", stored.outcomes().iter().filter(|outcome| has_it(outcome)).count());
    /// # }
    /// # fn main() {}
    /// ```
    pub fn pipeline<A: Answers, C: Codec<A::Item>>(
        &self,
        servers: impl IntoIterator<Item = impl Into<Address>>,
        target: Target<A, C>,
    ) -> Pipeline<A, C> {
        self.pipeline_with(&PipelineSettings::default(), servers, target)
    }

    /// [`pipeline`](Self::pipeline) with settings: how each of the servers passes the message on, how many there may be.
    pub fn pipeline_with<A: Answers, C: Codec<A::Item>>(
        &self,
        settings: &PipelineSettings,
        servers: impl IntoIterator<Item = impl Into<Address>>,
        target: Target<A, C>,
    ) -> Pipeline<A, C> {
        let servers: Vec<Address> = servers.into_iter().map(Into::into).collect();
        let checked = settings.check(&servers);
        let call = checked.and_then(|()| self.send_down(settings, &servers, target));
        let call = call.unwrap_or_else(|failure| self.failed(failure));
        Pipeline::new(call, servers)
    }

    fn send_down<A, C>(
        &self,
        settings: &PipelineSettings,
        servers: &[Address],
        target: Target<A, C>,
    ) -> Result<RawCall, Failure> {
        let Some((first, rest)) = servers.split_first() else {
            return Ok(self.nothing());
        };
        let client = self.clone().tolerant().at(first);
        let Target {
            definition: method,
            payload,
            body,
            ..
        } = target;
        let (payload, body) = (payload?, body);
        if rest.is_empty() {
            return Ok(client.call_once(&method, payload, body.map(Attached::new)));
        }
        let has_body = body.is_some();
        let (arguments, following, body) = self.split(payload, body, first)?;
        let head = Head {
            method,
            rest: rest.to_vec(),
            store: settings.forwarding == Forwarding::StoreAndForward,
            arguments,
            following,
            body: has_body,
        };
        self.meet(&head.rest);
        let call = client.call_once(definition(), head.write(), body.map(Attached::new));
        call.shared().expect_servers(&head.rest);
        Ok(call)
    }

    /// Arguments go with the head or, if they are long, ahead of the body.
    fn split(
        &self,
        arguments: Bytes,
        body: Option<Body>,
        server: &Address,
    ) -> Result<(Bytes, u64, Option<Body>), Failure> {
        let size = arguments.len() as u64;
        let limit = self.message_limit();
        if size > limit {
            let (path, hop) = (Path::FIRST, 0);
            return Err(Failure::TooLarge {
                request: RequestId { path, hop },
                server: server.clone(),
                size,
                limit,
            });
        }
        if arguments.len() <= head::INLINE {
            return Ok((arguments, 0, body));
        }
        let body = match body {
            Some(body) => body.after(arguments),
            None => Body::from(arguments),
        };
        Ok((Bytes::new(), size, Some(body)))
    }
}
