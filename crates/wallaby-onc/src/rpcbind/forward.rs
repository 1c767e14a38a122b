//! Calls that are passed on to a program of this machine.

use bytes::Bytes;

use super::directory::{Forward, Shared, is_local, merged};
use super::statistics::Asked;
use super::{PROGRAM, netid};
use crate::auth::Principal;
use crate::client::{ClientOptions, TcpChannel, UdpChannel};
use crate::failure::Reason;
use crate::message::{AcceptError, Procedure, Refusal};
use crate::peer::Peer;
use crate::service::Channel;

/// Most bytes of results that are passed on: whoever asked over UDP gets them in a datagram, and in about as many bytes as
/// clients of old are ready for.
const MAX_RESULTS: usize = 8800;

/// A call to be passed on.
pub(super) struct Forwarded {
    pub(super) procedure: Procedure,
    pub(super) arguments: Bytes,
    /// Failures are told.
    pub(super) indirect: bool,
}

impl Shared {
    /// Passes a call on, without credentials, and tells where it went and what came back.
    pub(super) async fn forward(
        &self,
        caller: &Principal,
        asked: Asked,
        call: Forwarded,
    ) -> Result<(Peer, Bytes), Refusal> {
        let Procedure {
            program,
            version,
            number,
        } = call.procedure;
        let indirect = call.indirect;
        let answer = self.pass_on(caller, call).await;
        let network = caller
            .origin
            .as_ref()
            .map_or("local", |origin| netid(&origin.peer));
        let of = (program, version, number);
        self.counting()
            .passed_on(asked, of, network, indirect, answer.is_ok());
        answer
    }

    async fn pass_on(&self, caller: &Principal, call: Forwarded) -> Result<(Peer, Bytes), Refusal> {
        let Procedure {
            program, version, ..
        } = call.procedure;
        let is_allowed = match self.options.forward {
            Forward::Nobody => false,
            Forward::Local => is_local(caller),
            Forward::Everybody => true,
        };
        // What is passed on comes from this machine: to ourselves, it might register programs.
        if !is_allowed || program == PROGRAM {
            return Err(AcceptError::ProgramUnavailable.into());
        }
        let at = ["udp", "udp6", "tcp", "tcp6"]
            .iter()
            .find_map(|netid| self.find(program, version, netid, false))
            .ok_or(AcceptError::ProgramUnavailable)?;
        let target = merged(&at, None);
        if !target.is_local() {
            return Err(AcceptError::ProgramUnavailable.into());
        }
        let _place = self
            .forwarded
            .try_acquire()
            .map_err(|_| AcceptError::SystemError)?;
        let results = self.ask(&target, call).await?;
        if results.len() > MAX_RESULTS {
            return Err(AcceptError::SystemError.into());
        }
        Ok((merged(&at, caller.origin.as_ref()), results))
    }

    async fn ask(&self, target: &Peer, call: Forwarded) -> Result<Bytes, Refusal> {
        let timeout = self.options.forward_timeout;
        // Who asked asks again, if it wants to: nothing is sent twice here.
        let options = ClientOptions {
            retransmit_after: timeout,
            ..ClientOptions::default().timeout(timeout)
        };
        let answer = match *target {
            Peer::Udp(address) => match UdpChannel::connect(address, options).await {
                Ok(channel) => channel.call(call.procedure, call.arguments).await,
                Err(_) => return Err(AcceptError::SystemError.into()),
            },
            Peer::Tcp(address) => match TcpChannel::connect(address, options).await {
                Ok(channel) => channel.call(call.procedure, call.arguments).await,
                Err(_) => return Err(AcceptError::SystemError.into()),
            },
            Peer::Unix(_) => return Err(AcceptError::ProgramUnavailable.into()),
        };
        answer.map_err(|reason| match reason {
            Reason::Refused(refusal) => refusal,
            _ => AcceptError::SystemError.into(),
        })
    }
}
