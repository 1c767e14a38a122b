//! Calls with one initial request.

use std::sync::Arc;

use bytes::Bytes;
use wallaby_proto::Address;
use wallaby_proto::connection::MethodDefinition;
use wallaby_proto::endpoint::{CallKey, Endpoint as Core};

use super::event::Call;
use crate::codec::Codec;
use crate::error::Failure;
use crate::method::{Answer, Target};

/// Sends the only initial request of a call that has begun.
pub(super) fn send_target<A: Answer, C: Codec<A::Item>>(
    core: &mut Core,
    call: CallKey,
    server: &Address,
    target: Target<A, C>,
) -> Result<Call<A, C>, Failure> {
    let payload = target.payload.inspect_err(|_| core.forget(call))?;
    let call = send_only(core, call, server, &target.definition, payload)?;
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
    if let Err(failure) = core.send(call, server, method, payload) {
        core.forget(call); // its outcome says the same
        return Err(failure);
    }
    core.close_call(call);
    Ok(call)
}
