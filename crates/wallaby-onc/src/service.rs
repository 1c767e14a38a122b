//! Programs apart from how they are reached: who calls needs a [`Channel`], who serves gives [`Program`]s to
//! [`Programs`].
//!
//! Clients, servers' traits and services are generated from `.x` files. This is what they have in common.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use crate::auth::{AuthError, Credential, Principal};
use crate::failure::{Reason, RpcError};
use crate::message::{
    AcceptError, BadMessage, CallBody, Denial, MessageBody, Procedure, Refusal, Reply, RpcMessage,
};
use crate::peer::{Origin, Peer};
use crate::xdr::{DecodeError, EncodeError, Reader, Writer, XdrLimits};
use bytes::Bytes;

/// A way to a server.
pub trait Channel {
    /// Calls a procedure with arguments in XDR; its results in XDR.
    ///
    /// # Errors
    /// The call was refused ([`Reason::Refused`]), or there is no reply.
    fn call(
        &self,
        procedure: Procedure,
        arguments: Bytes,
    ) -> impl Future<Output = Result<Bytes, Reason>> + Send;

    /// The same with arguments that are written for that: a channel can have them written where they are sent from.
    ///
    /// # Errors
    /// As for [`call`](Self::call), or there are no bytes for the arguments.
    fn call_with(
        &self,
        procedure: Procedure,
        arguments: impl FnOnce(&mut Writer) -> Result<(), EncodeError>,
    ) -> impl Future<Output = Result<Bytes, Reason>> + Send {
        let mut writer = Writer::new();
        let written = arguments(&mut writer);
        let called = written.map(|()| self.call(procedure, writer.into_bytes()));
        async move { called?.await }
    }

    /// Who is called, for errors to say.
    fn peer(&self) -> Option<Peer> {
        None
    }
}

/// A borrowed channel is one, too.
impl<C: Channel + Sync> Channel for &C {
    async fn call(&self, procedure: Procedure, arguments: Bytes) -> Result<Bytes, Reason> {
        C::call(self, procedure, arguments).await
    }

    fn call_with(
        &self,
        procedure: Procedure,
        arguments: impl FnOnce(&mut Writer) -> Result<(), EncodeError>,
    ) -> impl Future<Output = Result<Bytes, Reason>> + Send {
        C::call_with(self, procedure, arguments)
    }

    fn peer(&self) -> Option<Peer> {
        C::peer(self)
    }
}

/// A shared channel is one, too.
impl<C: Channel + Sync + Send> Channel for Arc<C> {
    async fn call(&self, procedure: Procedure, arguments: Bytes) -> Result<Bytes, Reason> {
        C::call(self, procedure, arguments).await
    }

    fn call_with(
        &self,
        procedure: Procedure,
        arguments: impl FnOnce(&mut Writer) -> Result<(), EncodeError>,
    ) -> impl Future<Output = Result<Bytes, Reason>> + Send {
        C::call_with(self, procedure, arguments)
    }

    fn peer(&self) -> Option<Peer> {
        C::peer(self)
    }
}

/// A version of a program, served.
pub trait Program: Send + Sync {
    /// The program's number.
    const PROGRAM: u32;
    /// The version's number.
    const VERSION: u32;
    /// The numbers of its procedures, for who has to know them all beforehand. Generated services state them.
    const PROCEDURES: &'static [u32] = &[];

    /// Executes a procedure with arguments in XDR; its results in XDR.
    ///
    /// # Errors
    /// There is no such procedure, the arguments are malformed, or the procedure failed or refused.
    fn handle(
        &self,
        caller: &Principal,
        procedure: u32,
        arguments: Bytes,
    ) -> impl Future<Output = Result<Bytes, Refusal>> + Send;
}

/// A shared service is one, too: it can be served in several ways at once.
impl<S: Program> Program for Arc<S> {
    const PROGRAM: u32 = S::PROGRAM;
    const VERSION: u32 = S::VERSION;
    const PROCEDURES: &'static [u32] = S::PROCEDURES;

    async fn handle(
        &self,
        caller: &Principal,
        procedure: u32,
        arguments: Bytes,
    ) -> Result<Bytes, Refusal> {
        S::handle(self, caller, procedure, arguments).await
    }
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

/// [`Program`], with a future that can be a trait object's.
trait Handle: Send + Sync {
    fn begin(&self, caller: Principal, procedure: u32, arguments: Bytes) -> Handling;
}

/// A procedure that is executed.
pub(crate) type Handling = Pin<Box<dyn Future<Output = Result<Bytes, Refusal>> + Send>>;

/// A service that calls share.
struct Shared<S>(Arc<S>);

impl<S: Program + 'static> Handle for Shared<S> {
    fn begin(&self, caller: Principal, procedure: u32, arguments: Bytes) -> Handling {
        let service = Arc::clone(&self.0);
        Box::pin(async move { S::handle(&service, &caller, procedure, arguments).await })
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
    pub fn with<S: Program + 'static>(mut self, service: S) -> Self {
        let key = (S::PROGRAM, S::VERSION);
        self.services
            .insert(key, Box::new(Shared(Arc::new(service))));
        self
    }

    /// Programs and versions that are served, in order.
    pub fn served(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        self.services.keys().copied()
    }

    /// Whether the version that this procedure is of is served.
    #[must_use]
    pub fn serves(&self, procedure: Procedure) -> bool {
        self.services
            .contains_key(&(procedure.program, procedure.version))
    }

    /// What to send back for a message that arrived. `None`: nothing, because it is no call, or one that gets no answer.
    pub async fn answer(&self, message: Bytes, origin: Option<Origin>) -> Option<Bytes> {
        match RpcMessage::decode(message) {
            Ok(RpcMessage {
                xid,
                body: MessageBody::Call(call),
            }) => self.answer_call(xid, call, origin).await,
            Err(BadMessage::OtherVersion { xid, .. }) => {
                Reply::Denied(Denial::other_version()).message(xid)
            }
            Ok(_) | Err(BadMessage::Malformed(_)) => None,
        }
    }

    /// What to send back for a call. `None`: nothing, as the service wants it.
    pub async fn answer_call(
        &self,
        xid: u32,
        call: CallBody,
        origin: Option<Origin>,
    ) -> Option<Bytes> {
        let results = match self.begin(call, origin) {
            Ok(handling) => handling.await,
            Err(refusal) => Err(refusal),
        };
        reply(results)?.message(xid)
    }

    /// The procedure that is called, executed as far as it is polled.
    pub(crate) fn begin(
        &self,
        call: CallBody,
        origin: Option<Origin>,
    ) -> Result<Handling, Refusal> {
        let caller = Principal {
            identity: Credential::from_opaque(call.credential)?,
            origin,
        };
        let Procedure {
            program,
            version,
            number,
        } = call.procedure;
        match self.services.get(&(program, version)) {
            Some(service) => Ok(service.begin(caller, number, call.arguments)),
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

/// The reply that says what became of a procedure, if there is one.
pub(crate) fn reply(results: Result<Bytes, Refusal>) -> Option<Reply> {
    match results {
        Ok(results) => Some(Reply::accepted(Ok(results))),
        Err(Refusal::Accept(error)) => Some(Reply::accepted(Err(error))),
        Err(Refusal::Denied(denial)) => Some(Reply::Denied(denial)),
        Err(Refusal::Silent) => None,
    }
}

impl From<AuthError> for Refusal {
    fn from(error: AuthError) -> Self {
        Self::Denied(error.into())
    }
}

/// Calls a procedure, such as one that is given by the numbers of its program, its version and itself: what a generated client
/// does.
///
/// # Errors
/// Anything that can go wrong with a call.
pub async fn call<C: Channel, T>(
    channel: &C,
    procedure: impl Into<Procedure>,
    arguments: impl FnOnce(&mut Writer) -> Result<(), EncodeError>,
    results: impl FnOnce(&mut Reader) -> Result<T, DecodeError>,
) -> Result<T, RpcError> {
    let procedure = procedure.into();
    let answer = async {
        let bytes = channel.call_with(procedure, arguments).await?;
        Ok(whole(bytes, results)?)
    };
    answer.await.map_err(|reason| RpcError {
        procedure,
        peer: channel.peer().map(Box::new),
        reason,
    })
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
    let mut reader = Reader::new(bytes, XdrLimits::default());
    let value = read(&mut reader)?;
    reader.finish()?;
    Ok(value)
}
