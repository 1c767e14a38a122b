//! A sidecar that runs: an endpoint, the servers behind it, and who looks after their health.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use wallaby::intercept::{Admission, Incoming};
use wallaby::transport::{Identity, Name};
use wallaby::{
    BindError, Builder, ClusterKey, ClusterKeyError, Code, Endpoint, Health, RawRequest, Service,
    Status,
};
use wallaby_chain::Chains;
#[cfg(feature = "code")]
use wallaby_chain_wasm::{EngineError, WebAssembly};
use wallaby_idl::onc::CompileError;
use wallaby_tls::{Tls, TlsError};

use crate::config::{Allow, CodeAllow, CodeConfig, Config, OncConfig};
use crate::grpc::{Answers, Grpc};
use crate::http::Http;
use crate::reflection::describe;
use crate::upstream::{PATIENCE, Upstream};

/// Why a sidecar has not started.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum StartError {
    /// A file of the configuration cannot be read.
    #[error("{}: {error}", path.display())]
    File {
        /// Which one.
        path: PathBuf,
        /// Why not.
        error: io::Error,
    },
    /// The cluster's key is none.
    #[error("the cluster's key: {0}")]
    Key(#[from] ClusterKeyError),
    /// The certificates are none.
    #[error("certificates: {0}")]
    Tls(#[from] TlsError),
    /// An interface file cannot be read, or something is wrong in it.
    #[error("{0}")]
    Interface(#[from] CompileError),
    /// An interface file has no program of this name.
    #[error("{} has no program {program}", interface.display())]
    NoProgram {
        /// The program.
        program: String,
        /// The file.
        interface: PathBuf,
    },
    /// There is no engine for code on this machine.
    #[cfg(feature = "code")]
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// It is to run code, and was built without what does.
    #[error(
        "this sidecar was built without the feature `code`: [code] needs `at`, a server that runs it"
    )]
    NoRuntime,
    /// Servers of ONC RPC are reached on Unix only.
    #[error("servers of ONC RPC are reached on Unix only")]
    NoOnc,
    /// It cannot listen, or two servers have a method of the same name.
    #[error(transparent)]
    Bind(#[from] BindError),
}

impl StartError {
    /// What kind of error it is: [`Code::FailedPrecondition`] if something is wrong with its configuration or what it was built with.
    pub fn code(&self) -> Code {
        match self {
            Self::Key(error) => error.code(),
            Self::Tls(error) => error.code(),
            Self::Bind(error) => error.code(),
            _ => Code::FailedPrecondition,
        }
    }
}

/// Servers behind an endpoint of Wallaby. They are served until this is dropped, or its endpoint is closed.
#[derive(Debug)]
pub struct Sidecar {
    endpoint: Endpoint,
    /// Who looks after the servers' health.
    _watching: JoinSet<()>,
}

impl Sidecar {
    /// Starts one. Its servers need not be there yet.
    ///
    /// # Errors
    ///
    /// What is wrong with the files of the configuration, or its addresses.
    pub async fn start(config: Config) -> Result<Self, StartError> {
        Self::start_with(config, Vec::new()).await
    }

    /// Starts one that has these servers besides those of its configuration.
    ///
    /// # Errors
    ///
    /// As [`start`](Self::start).
    pub async fn start_with(
        config: Config,
        others: Vec<Arc<dyn Upstream>>,
    ) -> Result<Self, StartError> {
        Self::start_on(Endpoint::builder(), config, others).await
    }

    /// Starts one at an endpoint that the program has begun: with transports of its own, limits, or interceptors.
    ///
    /// # Errors
    ///
    /// As [`start`](Self::start).
    pub async fn start_on(
        builder: Builder,
        config: Config,
        others: Vec<Arc<dyn Upstream>>,
    ) -> Result<Self, StartError> {
        let mut upstreams = others;
        for http in &config.http {
            upstreams.push(Arc::new(Http::new(http)));
        }
        for onc in &config.onc {
            upstreams.push(self::onc(onc)?);
        }
        let grpc: Arc<[Arc<Grpc>]> = config
            .grpc
            .iter()
            .map(|grpc| Arc::new(Grpc::new(grpc)))
            .collect();
        for grpc in &*grpc {
            upstreams.push(Arc::clone(grpc) as Arc<dyn Upstream>);
        }
        let builder = upstreams
            .iter()
            .fold(listening(builder, &config)?, |builder, upstream| {
                builder.serve(Arc::clone(upstream).service())
            });
        let builder = match grpc.is_empty() {
            true => builder,
            false => builder.serve(caught(Arc::clone(&grpc))),
        };
        let builder = match config.chains {
            true => chains(config.code, config.cluster_key.is_some())?.add_to(builder),
            false => builder,
        };
        let endpoint = guarded(builder, &config.allow).bind().await?;
        let mut watching = JoinSet::new();
        for upstream in upstreams {
            watching.spawn(watch(endpoint.clone(), upstream, config.health_every));
        }
        let told = config.grpc.iter().zip(&*grpc);
        for (_, grpc) in told.filter(|(config, _)| config.reflection) {
            let (grpc, endpoint) = (Arc::clone(grpc), endpoint.clone());
            watching.spawn(describe(grpc, endpoint, config.health_every));
        }
        Ok(Self {
            endpoint,
            _watching: watching,
        })
    }

    /// The endpoint, which others call.
    #[must_use]
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }
}

/// Methods of gRPC are caught, as their names are not known.
fn caught(servers: Arc<[Arc<Grpc>]>) -> Service {
    Service::new("grpc").catch_all(move |request: RawRequest| {
        let method = request.method().to_owned();
        let server = servers.iter().find(|grpc| grpc.has(&method)).cloned();
        async move {
            match server {
                Some(grpc) => grpc.handle(request, Answers::Many).await,
                None => Err(Status::unimplemented(format!(
                    "{method} is not served here"
                ))),
            }
        }
    })
}

#[cfg(unix)]
fn onc(config: &OncConfig) -> Result<Arc<dyn Upstream>, StartError> {
    Ok(Arc::new(crate::onc::Onc::new(config)?))
}

#[cfg(not(unix))]
fn onc(_: &OncConfig) -> Result<Arc<dyn Upstream>, StartError> {
    Err(StartError::NoOnc)
}

/// An endpoint that listens where the configuration says.
fn listening(mut builder: Builder, config: &Config) -> Result<Builder, StartError> {
    for address in &config.listen {
        builder = builder.listen(&address.to_string());
    }
    if let Some(advertise) = &config.advertise {
        builder = builder.advertise(advertise.clone());
    }
    if let Some(tls) = &config.tls {
        let tls = Tls::builder()
            .roots_file(&tls.roots)
            .certificate_files(&tls.certificate, &tls.key)
            .mutual();
        builder = builder.transport(tls.build()?);
    }
    if let Some(path) = &config.cluster_key {
        let key = std::fs::read(path).map_err(|error| StartError::File {
            path: path.clone(),
            error,
        })?;
        builder = builder.cluster_key(ClusterKey::new(key.trim_ascii())?);
    }
    Ok(builder)
}

/// Chains, and the functions that clients may bring. A member of a cluster hands on those of members only, since it seals what it sends.
fn chains(code: Option<CodeConfig>, is_member: bool) -> Result<Chains, StartError> {
    let Some(CodeConfig { allow, at }) = code else {
        let chains = Chains::new();
        return Ok(match is_member {
            true => chains.pass_code(|request| request.is_sealed()),
            false => chains,
        });
    };
    let policy = move |request: &Incoming| match &allow {
        CodeAllow::Callers => true, // others are not heard
        CodeAllow::Cluster => request.is_sealed(),
        CodeAllow::Names(names) => has_name(request.identity(), names),
    };
    match at {
        Some(at) => Ok(Chains::new().proxy(at, policy)),
        None => run_here(policy),
    }
}

#[cfg(feature = "code")]
fn run_here(
    policy: impl Fn(&Incoming) -> bool + Send + Sync + 'static,
) -> Result<Chains, StartError> {
    let runtime = WebAssembly::new(wallaby_chain_wasm::WasmLimits::default())?;
    Ok(Chains::new().code(runtime, policy))
}

#[cfg(not(feature = "code"))]
fn run_here(_: impl Fn(&Incoming) -> bool + Send + Sync + 'static) -> Result<Chains, StartError> {
    Err(StartError::NoRuntime)
}

/// An endpoint for those who may call.
fn guarded(builder: Builder, allow: &Allow) -> Builder {
    let allowed = match allow {
        Allow::Local | Allow::Anybody => return builder, // its addresses say who reaches it
        Allow::Cluster => return builder.require_seals(),
        Allow::Names(names) => names.clone(),
    };
    // Asked before whatever was added to it already: chains are refused as well.
    builder.interceptor(move |request: &Incoming| {
        let identity = request.identity();
        match has_name(identity, &allowed) {
            true => Admission::Run,
            false => {
                let message = format!("{identity} may not call this sidecar");
                Admission::Refuse(Status::permission_denied(message))
            }
        }
    })
}

fn has_name(identity: &Identity, allowed: &[String]) -> bool {
    identity.names().iter().any(|name| {
        allowed.iter().any(|allowed| match name {
            Name::Dns(name) => name.eq_ignore_ascii_case(allowed),
            Name::Uri(uri) => uri == allowed,
            Name::Ip(ip) => allowed
                .parse()
                .is_ok_and(|allowed: std::net::IpAddr| allowed == *ip),
            _ => false,
        })
    })
}

/// Tells whether a server takes work, for as long as the sidecar is there.
async fn watch(endpoint: Endpoint, upstream: Arc<dyn Upstream>, every: Duration) {
    let mut told = None;
    loop {
        let checked = timeout(PATIENCE, upstream.check()).await;
        let checked =
            checked.unwrap_or_else(|_| Err(format!("it says nothing within {PATIENCE:?}")));
        let health = match &checked {
            Ok(()) => Health::Serving,
            Err(_) => Health::NotServing,
        };
        if told != Some(health) {
            for name in upstream.names() {
                match &checked {
                    Ok(()) => tracing::info!(%name, "takes work"),
                    Err(why) => tracing::warn!(%name, %why, "takes no work"),
                }
                endpoint.set_health(&name, health);
            }
            told = Some(health);
        }
        sleep(every).await;
    }
}
