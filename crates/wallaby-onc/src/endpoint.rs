//! Programs at an [`Endpoint`](::wallaby::Endpoint): the same services and clients over Wallaby's own transports.
//!
//! A procedure is a method of Wallaby, `onc.PROGRAM.VERSION/PROCEDURE`, with arguments and results in XDR. So an old
//! interface has deadlines, failure detection, at most one execution over UDP too, and traces, without a change: what is
//! given to [`Programs`](crate::Programs) is given to [`service()`] as well, and a generated client calls over an
//! [`EndpointChannel`]. With [`Compiler::methods`](https://docs.rs/wallaby-idl) each procedure is a [`Method`] besides,
//! which can be served by a handler of its own, and delegated.
//!
//! ```
//! # use std::sync::Arc;
//! # use wallaby_onc::{Program, Programs};
//! # fn example<S: Program + 'static>(of_the_interface: S, endpoint: wallaby::Endpoint)
//! # -> Result<(), Box<dyn std::error::Error>> {
//! let shared = Arc::new(of_the_interface);
//! let programs = Programs::new().with(Arc::clone(&shared));
//! endpoint.serve(wallaby_onc::endpoint::service(shared))?;
//! # Ok(())
//! # }
//! ```

use std::sync::Arc;

use ::wallaby::codec::{Codec, CodecError, Format};
use ::wallaby::{CallError, Client, Code, MethodDefinition, RawRequest, Status};
use bytes::Bytes;

pub use ::wallaby::{Method, One};

use crate::auth::{AuthError, Credential, OpaqueAuth, Principal};
use crate::failure::Reason;
use crate::message::{AcceptError, Denial, Procedure, Refusal};
use crate::service::{Channel, Program};
use crate::xdr::{self, Xdr, XdrLimits};

/// The key of the call's metadata under which its credential travels, in XDR.
pub const CREDENTIAL: &str = "onc-credential";

/// XDR as a format of Wallaby's payloads.
#[derive(Debug, Clone, Copy)]
pub struct XdrCodec;

impl Format for XdrCodec {
    const NAME: &'static str = "xdr";
}

impl<T: Xdr> Codec<T> for XdrCodec {
    fn encode(value: &T) -> Result<Bytes, CodecError> {
        xdr::encode(value).map_err(|error| CodecError::new(Self::NAME, error.to_string()))
    }

    fn decode(payload: Bytes) -> Result<T, CodecError> {
        let value = xdr::decode(payload, XdrLimits::default());
        value.map_err(|error| CodecError::new(Self::NAME, error.to_string()))
    }
}

/// The name of a procedure as a method: `onc.PROGRAM.VERSION/PROCEDURE`, in numbers, which are what an interface is known by.
#[must_use]
pub fn method_name(procedure: Procedure) -> String {
    let Procedure {
        program,
        version,
        number,
    } = procedure;
    format!("onc.{program}.{version}/{number}")
}

fn definition(procedure: Procedure) -> Option<Arc<MethodDefinition>> {
    // Fingerprints of 0: the numbers say which types these are.
    let name = method_name(procedure);
    MethodDefinition::new(&name, XdrCodec::NAME, 0, 0).map(Arc::new)
}

/// A service for an endpoint: all procedures of a version, answered as [`Programs`](crate::Programs) answers them.
///
/// A refusal is a status. The caller's credential comes with the call's metadata, and there is no
/// [`origin`](Principal::origin). A service that does not state its [`PROCEDURES`](Program::PROCEDURES), as generated ones do,
/// has no methods.
pub fn service<S: Program + 'static>(service: S) -> ::wallaby::Service {
    service_without(service, &[])
}

/// [`service()`] without the procedures of these numbers, which are served as [`Method`]s by handlers of their own.
pub fn service_without<S: Program + 'static>(service: S, without: &[u32]) -> ::wallaby::Service {
    let service = Arc::new(service);
    let mut methods = ::wallaby::Service::new("onc");
    let numbers = S::PROCEDURES.iter().copied();
    for number in numbers.filter(|number| !without.contains(number)) {
        let procedure = Procedure {
            program: S::PROGRAM,
            version: S::VERSION,
            number,
        };
        // Such a name is not too long.
        let Some(definition) = definition(procedure) else {
            continue;
        };
        let service = Arc::clone(&service);
        methods = methods.raw(definition, move |request| {
            handle(Arc::clone(&service), number, request)
        });
    }
    methods
}

async fn handle<S: Program>(
    service: Arc<S>,
    number: u32,
    request: RawRequest,
) -> Result<(), Status> {
    let caller = Principal {
        identity: identity(&request).map_err(|error| status(error.into()))?,
        origin: None,
    };
    let arguments = request.payload().clone();
    let results = service.handle(&caller, number, arguments).await;
    let results = results.map_err(status)?;
    // A call that is over needs no answer.
    let _ = request.respond(results).await;
    Ok(())
}

fn identity(request: &RawRequest) -> Result<Credential, AuthError> {
    let Some(bytes) = request.metadata().get_bin(CREDENTIAL) else {
        return Ok(Credential::Anonymous);
    };
    let credential = xdr::decode(bytes.clone(), XdrLimits::default());
    Credential::from_opaque(credential.map_err(|_| AuthError::BadCredential)?)
}

/// A way to a server at an endpoint, for generated clients. Cheap to clone.
#[derive(Clone)]
pub struct EndpointChannel {
    client: Client,
}

impl std::fmt::Debug for EndpointChannel {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("EndpointChannel")
            .field("server", &self.client.server())
            .finish()
    }
}

impl EndpointChannel {
    /// Calls over this client, with its deadline and other settings.
    #[must_use]
    pub fn new(client: Client) -> Self {
        Self { client }
    }

    /// Says who calls: the credential goes with the metadata of every call, and down its tree.
    ///
    /// # Errors
    /// The credential is longer than [`MAX_AUTH_BYTES`](crate::auth::MAX_AUTH_BYTES).
    pub fn credential(self, credential: &OpaqueAuth) -> Result<Self, xdr::EncodeError> {
        let bytes = xdr::encode(credential)?;
        let client = self.client.metadata_bin(CREDENTIAL, bytes);
        Ok(Self { client })
    }
}

impl Channel for EndpointChannel {
    async fn call(&self, procedure: Procedure, arguments: Bytes) -> Result<Bytes, Reason> {
        let no_name = || Reason::Channel("the procedure has no name as a method".into());
        let definition = definition(procedure).ok_or_else(no_name)?;
        let mut call = self.client.call_raw(&definition, arguments);
        match call.next().await {
            Some(Ok(answer)) => Ok(answer.payload),
            Some(Err(error)) => Err(reason(error)),
            None => Err(Reason::Channel("the call ended without an answer".into())),
        }
    }
}

/// A refusal as a status: so procedures that are methods are refused.
#[must_use]
pub fn status(refusal: Refusal) -> Status {
    let code = match refusal {
        Refusal::Accept(error) => match error {
            AcceptError::ProcedureUnavailable => Code::Unimplemented,
            AcceptError::GarbageArguments => Code::InvalidArgument,
            AcceptError::SystemError => Code::Internal,
            AcceptError::ProgramUnavailable => Code::NotFound,
            AcceptError::ProgramMismatch { .. } => Code::FailedPrecondition,
        },
        Refusal::Denied(Denial::Auth(error)) => {
            let message = format!("{error} ({AUTH_STAT}{})", error.number());
            return Status::new(Code::Unauthenticated, message);
        }
        Refusal::Denied(Denial::RpcMismatch { .. }) => Code::FailedPrecondition,
        Refusal::Silent => Code::Unanswered,
    };
    Status::new(code, refusal.to_string())
}

/// What stands before the number of an authentication error in a status.
const AUTH_STAT: &str = "auth_stat ";

/// The refusal that a status is, where it is one.
fn reason(error: CallError) -> Reason {
    let refusal = error.status().and_then(|status| {
        Some(match status.code() {
            Code::Unimplemented => AcceptError::ProcedureUnavailable.into(),
            Code::InvalidArgument => AcceptError::GarbageArguments.into(),
            Code::Internal | Code::Panicked => AcceptError::SystemError.into(),
            Code::NotFound => AcceptError::ProgramUnavailable.into(),
            Code::Unauthenticated => {
                let (_, number) = status.message().rsplit_once(AUTH_STAT)?;
                let number = number.trim_end_matches(')').parse().ok()?;
                Refusal::from(AuthError::from_number(number))
            }
            _ => return None,
        })
    });
    match refusal {
        Some(refusal) => Reason::Refused(refusal),
        None => Reason::Channel(Box::new(error)),
    }
}
