//! Programs apart from how they are reached: who calls needs a [`Channel`], who serves gives [`Service`]s to
//! [`Programs`].
//!
//! Clients, servers' traits and services are generated from `.x` files. This is what they have in common.

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt;
use std::future::Future;
use std::pin::Pin;

use bytes::Bytes;
use thiserror::Error;

use crate::auth::{AuthError, Caller};
use crate::message::{
    AcceptError, BadMessage, Body, Call, Denial, Message, Procedure, Refusal, Reply,
};
use crate::xdr::{DecodeError, EncodeError, Limits, Reader, Writer};

/// A way to a server.
pub trait Channel {
    /// Calls a procedure with arguments in XDR; its results in XDR.
    ///
    /// # Errors
    /// The call was refused ([`CallError::Refused`]), or there is no reply ([`CallError::Channel`]).
    fn call(
        &self,
        procedure: Procedure,
        arguments: Bytes,
    ) -> impl Future<Output = Result<Bytes, CallError>> + Send;
}

/// Why a call has no answer.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CallError {
    /// The server refused.
    #[error("refused: {0}")]
    Refused(#[from] Refusal),
    /// The interface has no bytes for the arguments. Nothing was sent.
    #[error("the arguments cannot be sent: {0}")]
    Arguments(#[from] EncodeError),
    /// The bytes of the reply are no such answer.
    #[error("the reply is malformed: {0}")]
    Results(#[from] DecodeError),
    /// The channel brought no reply.
    #[error("there is no reply: {0}")]
    Channel(Box<dyn Error + Send + Sync>),
}

/// A version of a program, served.
pub trait Service: Send + Sync {
    /// The program's number.
    const PROGRAM: u32;
    /// The version's number.
    const VERSION: u32;

    /// Executes a procedure with arguments in XDR; its results in XDR.
    ///
    /// # Errors
    /// There is no such procedure, the arguments are malformed, or the procedure failed or refused.
    fn handle(
        &self,
        caller: &Caller,
        procedure: u32,
        arguments: Bytes,
    ) -> impl Future<Output = Result<Bytes, Refusal>> + Send;
}

/// The services of a server, by program and version.
#[derive(Default)]
pub struct Programs {
    services: BTreeMap<(u32, u32), Box<dyn Handle>>,
}

impl fmt::Debug for Programs {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_set().entries(self.services.keys()).finish()
    }
}

/// [`Service`], with a future that can be a trait object's.
trait Handle: Send + Sync {
    fn handle<'a>(&'a self, caller: &'a Caller, procedure: u32, arguments: Bytes) -> Handling<'a>;
}

type Handling<'a> = Pin<Box<dyn Future<Output = Result<Bytes, Refusal>> + Send + 'a>>;

impl<S: Service> Handle for S {
    fn handle<'a>(&'a self, caller: &'a Caller, procedure: u32, arguments: Bytes) -> Handling<'a> {
        Box::pin(Service::handle(self, caller, procedure, arguments))
    }
}

impl Programs {
    /// A server of nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Serves this, too; in place of what served the same version of the same program.
    #[must_use]
    pub fn with<S: Service + 'static>(mut self, service: S) -> Self {
        let key = (S::PROGRAM, S::VERSION);
        self.services.insert(key, Box::new(service));
        self
    }

    /// Programs and versions that are served, in order.
    pub fn served(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        self.services.keys().copied()
    }

    /// What to send back for a message that arrived. `None`: nothing, because it is no call.
    pub async fn answer(&self, message: Bytes) -> Option<Bytes> {
        let (xid, reply) = match Message::decode(message) {
            Ok(Message {
                xid,
                body: Body::Call(call),
            }) => (xid, self.reply(call).await),
            Ok(_) | Err(BadMessage::Malformed(_)) => return None,
            Err(BadMessage::OtherVersion { xid, .. }) => {
                (xid, Reply::Denied(Denial::other_version()))
            }
        };
        let body = Body::Reply(reply);
        // Replies have no verifier that could be too long.
        Message { xid, body }.encode().ok()
    }

    async fn reply(&self, call: Call) -> Reply {
        match self.results(call).await {
            Ok(results) => Reply::accepted(Ok(results)),
            Err(Refusal::Accept(error)) => Reply::accepted(Err(error)),
            Err(Refusal::Denied(denial)) => Reply::Denied(denial),
        }
    }

    async fn results(&self, call: Call) -> Result<Bytes, Refusal> {
        let caller = Caller::from_credential(call.credential)?;
        let Procedure {
            program,
            version,
            number,
        } = call.procedure;
        match self.services.get(&(program, version)) {
            Some(service) => service.handle(&caller, number, call.arguments).await,
            None => Err(self.no_version_of(program).into()),
        }
    }

    fn no_version_of(&self, program: u32) -> AcceptError {
        let mut versions = self.services.range((program, 0)..=(program, u32::MAX));
        match (versions.next(), versions.next_back()) {
            (None, _) => AcceptError::ProgramUnavailable,
            (Some((&(_, low), _)), None) => AcceptError::ProgramMismatch { low, high: low },
            (Some((&(_, low), _)), Some((&(_, high), _))) => {
                AcceptError::ProgramMismatch { low, high }
            }
        }
    }
}

impl From<AuthError> for Refusal {
    fn from(error: AuthError) -> Self {
        Self::Denied(error.into())
    }
}

/// Calls a procedure: what a generated client does.
///
/// # Errors
/// Anything that can go wrong with a call.
pub async fn call<C: Channel, T>(
    channel: &C,
    procedure: Procedure,
    arguments: impl FnOnce(&mut Writer) -> Result<(), EncodeError>,
    results: impl FnOnce(&mut Reader) -> Result<T, DecodeError>,
) -> Result<T, CallError> {
    let mut writer = Writer::new();
    arguments(&mut writer)?;
    let bytes = channel.call(procedure, writer.into_bytes()).await?;
    Ok(whole(bytes, results)?)
}

/// Reads arguments: what a generated service does first.
///
/// # Errors
/// They are malformed.
pub fn arguments<T>(
    bytes: Bytes,
    read: impl FnOnce(&mut Reader) -> Result<T, DecodeError>,
) -> Result<T, Refusal> {
    whole(bytes, read).map_err(|_| AcceptError::GarbageArguments.into())
}

/// Writes results: what a generated service does last.
///
/// # Errors
/// The interface has no bytes for what the server answered, which is the server's mistake.
pub fn results(
    write: impl FnOnce(&mut Writer) -> Result<(), EncodeError>,
) -> Result<Bytes, Refusal> {
    let mut writer = Writer::new();
    match write(&mut writer) {
        Ok(()) => Ok(writer.into_bytes()),
        Err(_) => Err(AcceptError::SystemError.into()),
    }
}

fn whole<T>(
    bytes: Bytes,
    read: impl FnOnce(&mut Reader) -> Result<T, DecodeError>,
) -> Result<T, DecodeError> {
    let mut reader = Reader::new(bytes, Limits::default());
    let value = read(&mut reader)?;
    reader.finish()?;
    Ok(value)
}
