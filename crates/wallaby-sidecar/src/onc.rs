//! Servers of ONC RPC: their procedures are methods, `onc.PROGRAM.VERSION/PROCEDURE`, with their arguments and results as payloads,
//! in XDR.
//!
//! A client of Rust has them by `wallaby onc gen --methods`. Who calls is the credential that travels with the call's metadata
//! ([`CREDENTIAL`]); the server gets it as it is, and without one `AUTH_NONE`.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::OnceCell;
use wallaby::{Address, Code, MethodDefinition, RawRequest, Service, Status};
use wallaby_idl::onc::Compiler;
use wallaby_onc::auth::{AuthError, OpaqueAuth};
use wallaby_onc::client::{ClientOptions, TcpChannel, UdpChannel, UnixChannel};
use wallaby_onc::endpoint::{CREDENTIAL, XdrCodec, method_name, status};
use wallaby_onc::xdr::{self, XdrLimits};
use wallaby_onc::{Channel, NoReply, Procedure, Reason, Refusal};

use crate::config::OncConfig;
use crate::dial::Dialling;
use crate::sidecar::StartError;
use crate::upstream::{Checked, Gate, Upstream};

/// Bytes of a record besides the results.
const HEAD: usize = 4096;

/// A server of ONC RPC behind a sidecar.
#[derive(Debug)]
pub(crate) struct Onc {
    server: Address,
    procedures: Vec<Procedure>,
    options: ClientOptions,
    dialling: Dialling,
    /// It connects anew by itself, once it was there.
    channel: OnceCell<Way>,
    gate: Gate,
}

#[derive(Debug)]
enum Way {
    Tcp(TcpChannel),
    Udp(UdpChannel),
    Unix(UnixChannel),
}

impl Way {
    async fn connect(server: &Address, options: ClientOptions) -> io::Result<Self> {
        match server {
            Address::Tcp(at) => Ok(Self::Tcp(TcpChannel::connect(*at, options).await?)),
            Address::Udp(at) => Ok(Self::Udp(UdpChannel::connect(*at, options).await?)),
            Address::Unix(path) => {
                let path = std::path::Path::new(&**path);
                Ok(Self::Unix(UnixChannel::connect(path, options).await?))
            }
            _ => Err(io::ErrorKind::Unsupported.into()), // the configuration takes no other
        }
    }

    async fn call(
        &self,
        procedure: Procedure,
        arguments: Bytes,
        (credential, time): (OpaqueAuth, Duration),
    ) -> Result<Bytes, Reason> {
        match self {
            Self::Tcp(channel) => {
                let channel = channel.credential(credential).timeout(time);
                channel.call(procedure, arguments).await
            }
            Self::Udp(channel) => {
                let channel = channel.credential(credential).timeout(time);
                channel.call(procedure, arguments).await
            }
            Self::Unix(channel) => {
                let channel = channel.credential(credential).timeout(time);
                channel.call(procedure, arguments).await
            }
        }
    }
}

/// The flavor of credentials that are not passed on (RFC 2203).
const RPCSEC_GSS: u32 = 6;

impl Onc {
    /// The server that has the procedures of an interface file.
    ///
    /// # Errors
    ///
    /// What is wrong with the file, or that it has no such program.
    pub(crate) fn new(config: &OncConfig) -> Result<Self, StartError> {
        let model = Compiler::new().model(&config.interface)?;
        let wanted = config.programs.iter().flatten();
        let mut missing = wanted.filter(|name| !model.programs.iter().any(|it| it.name == **name));
        if let Some(program) = missing.next() {
            return Err(StartError::NoProgram {
                program: program.clone(),
                interface: config.interface.clone(),
            });
        }
        let is_wanted =
            |name: &String| (config.programs.as_ref()).is_none_or(|wanted| wanted.contains(name));
        let programs = model
            .programs
            .iter()
            .filter(|program| is_wanted(&program.name));
        let procedures = programs.flat_map(|program| {
            program.versions.iter().flat_map(|version| {
                let procedures = version.procedures.iter();
                procedures.map(|procedure| Procedure {
                    program: program.number,
                    version: version.number,
                    number: procedure.number,
                })
            })
        });
        let limits = &config.limits;
        Ok(Self {
            server: config.server.clone(),
            procedures: procedures.collect(),
            options: ClientOptions {
                timeout: limits.timeout,
                max_calls: limits.at_once.saturating_add(1), // whether it is there is asked as well
                max_record: limits.answer.max(crate::config::LONGEST) + HEAD,
                ..ClientOptions::default()
            },
            dialling: Dialling::default(),
            channel: OnceCell::new(),
            gate: Gate::new(format!("{}", config.server), limits.clone()),
        })
    }

    async fn handle(&self, procedure: Procedure, request: RawRequest) -> Result<(), Status> {
        let _place = self.gate.enter()?;
        let credential = match request.metadata().get_bin(CREDENTIAL) {
            None => OpaqueAuth::none(),
            Some(bytes) => xdr::decode(bytes.clone(), XdrLimits::default())
                .map_err(|_| status(Refusal::from(AuthError::BadCredential)))?,
        };
        // Its sequence numbers are those of one caller and one connection.
        if credential.flavor == RPCSEC_GSS {
            return Err(status(Refusal::from(AuthError::TooWeak)));
        }
        let (arguments, remaining) = (request.payload().clone(), request.remaining());
        let time = self.gate.limits().timeout.min(remaining);
        let work = self.call(procedure, arguments, (credential, time));
        let results = self.gate.within(remaining, work).await?;
        let (found, most) = (results.len(), self.gate.limits().answer);
        if found > most {
            let message =
                format!("{procedure} has answered with {found} bytes: at most {most} are allowed");
            return Err(Status::resource_exhausted(message));
        }
        Ok(request.respond(results).await?)
    }

    async fn call(
        &self,
        procedure: Procedure,
        arguments: Bytes,
        with: (OpaqueAuth, Duration),
    ) -> Result<Bytes, Status> {
        let called = async {
            let connect = async || {
                let options = self.options.clone();
                let dialled = self.dialling.dial(Way::connect(&self.server, options));
                dialled.await.map_err(NoReply::Connect)
            };
            let way = self.channel.get_or_try_init(connect).await?;
            way.call(procedure, arguments, with).await
        };
        called.await.map_err(|reason| self.status_of(reason))
    }

    fn status_of(&self, reason: Reason) -> Status {
        let server = &self.server;
        let Reason::NoReply(none) = reason else {
            return match reason {
                Reason::Refused(refusal) => status(refusal),
                other => Status::internal(format!("{server}: {other}")),
            };
        };
        let message = format!("{server}: {none}");
        match none {
            NoReply::TooManyCalls { .. }
            | NoReply::TooMuchUnsent { .. }
            | NoReply::TooLong { .. } => Status::resource_exhausted(message),
            NoReply::TimedOut { .. } => Status::deadline_exceeded(message),
            NoReply::Malformed(_) => Status::data_loss(message),
            none if none.may_have_run() => Status::unfinished(message),
            _ => Status::unavailable(message),
        }
    }
}

impl Upstream for Onc {
    fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = Vec::new();
        for procedure in &self.procedures {
            let method = method_name(*procedure);
            let name = method.split('/').next().unwrap_or_default();
            if names.last().is_none_or(|last| last != name) {
                names.push(name.to_owned());
            }
        }
        names
    }

    fn service(self: Arc<Self>) -> Service {
        let mut service = Service::new("onc");
        for procedure in self.procedures.clone() {
            let name = method_name(procedure);
            // Fingerprints of 0: the numbers say which types these are. Such a name is not too long.
            let Some(definition) =
                MethodDefinition::new(&name, <XdrCodec as wallaby::codec::Format>::NAME, 0, 0)
            else {
                continue;
            };
            let onc = Arc::clone(&self);
            service = service.raw(Arc::new(definition), move |request| {
                let onc = Arc::clone(&onc);
                async move { onc.handle(procedure, request).await }
            });
        }
        service
    }

    /// By procedure 0 of the first program, which does nothing.
    fn check(&self) -> Checked<'_> {
        Box::pin(async {
            let Some(first) = self.procedures.first() else {
                return Ok(());
            };
            let nothing = Procedure {
                number: 0,
                ..*first
            };
            let with = (OpaqueAuth::none(), self.options.timeout);
            match self.call(nothing, Bytes::new(), with).await {
                Ok(_) => Ok(()),
                // It is there.
                Err(status)
                    if matches!(status.code(), Code::Unimplemented | Code::Unauthenticated) =>
                {
                    Ok(())
                }
                Err(status) => Err(status.message().to_owned()),
            }
        })
    }
}
