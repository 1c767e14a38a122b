//! Calls with one initial request, and the same to many servers.

use std::sync::Arc;

use bytes::Bytes;
use wallaby_proto::connection::MethodDefinition;
use wallaby_proto::endpoint::{CallKey, CallOptions, Endpoint as Core};
use wallaby_proto::{Address, RequestId};

use super::Endpoint;
use super::bodies::Bodies;
use super::datagrams::Datagrams;
use super::event::Call;
use crate::codec::Codec;
use crate::error::Failure;
use crate::method::{Answer, Target};

impl<D: Datagrams> Endpoint<D> {
    /// Calls the same method with the same arguments at all these servers, side by side: each is a call of its own, with its own
    /// events, and one that fails leaves the others alone. The arguments are encoded once. All of them count against
    /// [`Limits::calls`](super::Limits::calls). With [`CallOptions::durable`] each has a name of its own, by its place.
    ///
    /// # Errors
    ///
    /// For each server, in the order of `servers`, as of [`call`](Self::call). A body goes to the first server: for the others the
    /// error says so.
    pub fn multicast<A: Answer, C: Codec<A::Item>>(
        &mut self,
        servers: impl IntoIterator<Item = impl Into<Address>>,
        target: Target<A, C>,
        options: &CallOptions,
    ) -> Vec<Result<Call<A, C>, Failure>> {
        let (payload, mut body) = (target.payload, target.body);
        let is_followed = body.is_some();
        let mut own = options.clone();
        let call = |(number, server): (usize, Address)| {
            let mut target = Target::raw(Arc::clone(&target.definition), payload.clone()?);
            target.body = body.take();
            if is_followed && target.body.is_none() {
                return Err(Failure::Refused {
                    request: RequestId::FIRST,
                    server,
                    reason: "its body went with another request".into(),
                });
            }
            own.durable = options.durable.map(|id| id.initial(number as u32));
            self.call(server, target, &own)
        };
        let servers = servers.into_iter().map(Into::into);
        servers.enumerate().map(call).collect()
    }
}

/// Sends the only initial request of a call that has begun. If it cannot be sent, whoever asked is told that here, and by no event.
pub(super) fn send_target<A: Answer, C: Codec<A::Item>>(
    (core, bodies): (&mut Core, &mut Bodies),
    call: CallKey,
    server: &Address,
    target: Target<A, C>,
) -> Result<Call<A, C>, Failure> {
    let payload = target.payload.inspect_err(|_| core.forget(call))?;
    let (method, followed) = (&target.definition, target.body.is_some());
    let sent = core.send_only(call, server, method, payload, followed);
    let (_, out) = sent.inspect_err(|_| core.forget(call))?;
    if let Some((out, body)) = out.zip(target.body) {
        bodies.send(core, out, body);
    }
    Ok(Call::new(call))
}

/// The same with its payload as bytes.
pub(super) fn send_only(
    core: &mut Core,
    call: CallKey,
    server: &Address,
    method: &Arc<MethodDefinition>,
    payload: Bytes,
) -> Result<CallKey, Failure> {
    let sent = core.send_only(call, server, method, payload, false);
    sent.inspect_err(|_| core.forget(call)).map(|_| call)
}
