//! Certificates, keys and roots: by file or by function, and read again when they change.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use rustls::client::Resumption;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, RootCertStore, ServerConfig, SupportedProtocolVersion};
use thiserror::Error;
use wallaby::{Code, Status};

use crate::transport::Tls;

/// What both sides say they speak inside, so that no server of another protocol is mistaken for an endpoint.
const PROTOCOL: &[u8] = b"wallaby/1";

/// How long after a reading that failed the next one is.
const AGAIN: Duration = Duration::from_secs(1);

/// Why there are no usable certificates.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// What the system said.
        r#source: std::io::Error,
    },
    /// There is no such thing in a file or text, or it cannot be read.
    #[error("{what}: {why}")]
    Unreadable {
        /// What was looked for.
        what: String,
        /// What was found.
        why: String,
    },
    /// The key is not that of the certificate, or both cannot be used.
    #[error("the certificate and its key cannot be used: {0}")]
    Unusable(String),
    /// Certificates of clients are required, but there are no roots to verify them by.
    #[error("mutual authentication needs roots")]
    NoRoots,
    /// Mutual authentication needs a certificate of one's own.
    #[error("mutual authentication needs a certificate and its key")]
    NoCertificate,
    /// A function that gives certificates failed.
    #[error("no certificate was given: {0}")]
    NotGiven(String),
}

impl TlsError {
    /// What kind of error it is.
    pub fn code(&self) -> Code {
        match self {
            Self::File { r#source, .. } => Status::from(io::Error::from(r#source.kind())).code(),
            Self::Unreadable { .. } | Self::Unusable(_) => Code::InvalidArgument,
            Self::NoRoots | Self::NoCertificate => Code::FailedPrecondition,
            Self::NotGiven(_) => Code::Unavailable,
        }
    }
}

/// A certificate with those that lead to its root, and its key.
#[derive(Clone)]
pub struct Certificate(pub(crate) Arc<CertifiedKey>);

impl Certificate {
    /// From PEM: the certificates, its own first, and the key.
    ///
    /// # Errors
    ///
    /// If one of them is missing, cannot be read, or they do not belong together.
    pub fn from_pem(chain: &[u8], key: &[u8]) -> Result<Self, TlsError> {
        let chain = certificates(chain, "certificates")?;
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| TlsError::Unreadable {
            what: "a private key".into(),
            why: error.to_string(),
        })?;
        let unusable = |error: rustls::Error| TlsError::Unusable(error.to_string());
        let key =
            CertifiedKey::from_der(chain, key, &ring::default_provider()).map_err(unusable)?;
        Ok(Self(Arc::new(key)))
    }
}

impl fmt::Debug for Certificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.0.cert.first().map(|own| crate::names::of(own));
        f.debug_tuple("Certificate")
            .field(&names.unwrap_or_default())
            .finish()
    }
}

fn certificates(pem: &[u8], what: &str) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let unreadable = |why: String| TlsError::Unreadable {
        what: what.into(),
        why,
    };
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match all {
        Ok(all) if all.is_empty() => Err(unreadable("there are none".into())),
        Ok(all) => Ok(all),
        Err(error) => Err(unreadable(error.to_string())),
    }
}

type Giver = dyn Fn() -> Result<Certificate, TlsError> + Send + Sync;

/// Where certificates come from.
#[derive(Clone)]
enum Source {
    Memory { chain: Vec<u8>, key: Vec<u8> },
    Files { chain: PathBuf, key: PathBuf },
    Function(Arc<Giver>),
}

/// Sets up a [`Tls`].
#[derive(Clone, Default)]
#[must_use = "a builder does nothing until it is built"]
pub struct Builder {
    roots: Option<PathBuf>,
    trusted: Vec<Vec<u8>>,
    source: Option<Source>,
    mutual: bool,
    tls12: bool,
}

impl Builder {
    /// Trusts these authorities, the *roots*, and those whose certificates they have signed: PEM, one or several. No others are
    /// trusted but those of [`Builder::roots_file`]: not those of the system.
    pub fn trust(mut self, authorities: &[u8]) -> Self {
        self.trusted.push(authorities.to_vec());
        self
    }

    /// Trusts those in this PEM file, too. It is looked at with each handshake and read again when it has changed.
    pub fn roots_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.roots = Some(path.into());
        self
    }

    /// Shows this certificate (PEM, with those that lead to its root, its own first) and has this key (PEM).
    pub fn certificate(mut self, chain: &[u8], key: &[u8]) -> Self {
        let (chain, key) = (chain.to_vec(), key.to_vec());
        self.source = Some(Source::Memory { chain, key });
        self
    }

    /// The same from files. They are looked at with each handshake and read again when they have changed; while they do not fit
    /// each other, or cannot be read, the last ones are used, and they are tried again a second later.
    pub fn certificate_files(mut self, chain: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        let (chain, key) = (chain.into(), key.into());
        self.source = Some(Source::Files { chain, key });
        self
    }

    /// Shows the certificate that this returns. It is asked with each handshake and must not block; if it fails, the last one
    /// is used, and it is asked again a second later.
    pub fn certificate_by(
        mut self,
        give: impl Fn() -> Result<Certificate, TlsError> + Send + Sync + 'static,
    ) -> Self {
        self.source = Some(Source::Function(Arc::new(give)));
        self
    }

    /// Takes connections only of those who show a certificate that the roots have signed, as servers do anyway.
    pub fn mutual(mut self) -> Self {
        self.mutual = true;
        self
    }

    /// Speaks TLS 1.2 with those who cannot do 1.3.
    pub fn allow_tls12(mut self) -> Self {
        self.tls12 = true;
        self
    }

    /// The transport, once its files were read.
    ///
    /// # Errors
    ///
    /// If they cannot be used.
    pub fn build(self) -> Result<Arc<Tls>, TlsError> {
        if self.mutual && self.roots.is_none() && self.trusted.is_empty() {
            return Err(TlsError::NoRoots);
        }
        if self.mutual && self.source.is_none() {
            return Err(TlsError::NoCertificate);
        }
        let credentials = Credentials::read(self)?;
        Ok(Arc::new(Tls::new(credentials)))
    }
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("roots", &self.roots)
            .field("mutual", &self.mutual)
            .field("tls12", &self.tls12)
            .finish_non_exhaustive()
    }
}

/// By what handshakes are done now.
#[derive(Clone)]
pub(crate) struct Configs {
    /// `None` without roots.
    pub(crate) client: Option<Arc<ClientConfig>>,
    /// `None` without a certificate.
    pub(crate) server: Option<Arc<ServerConfig>>,
}

/// What a file is known by, as long as it does not change.
type Stamp = Option<(SystemTime, u64, u64)>;

struct State {
    /// Of the files when they were read last, whether they could be used or not.
    stamps: Vec<Stamp>,
    /// What was read or given last cannot be used: it is tried again then.
    again: Option<Instant>,
    certificate: Option<Certificate>,
    configs: Configs,
}

/// Credentials that are always those of now.
pub(crate) struct Credentials {
    settings: Builder,
    state: Mutex<State>,
}

impl Credentials {
    fn read(settings: Builder) -> Result<Self, TlsError> {
        // Before they are read: what changes meanwhile is read again.
        let stamps = settings.stamps();
        let certificate = settings.own()?;
        let configs = settings.configs(certificate.as_ref())?;
        let state = Mutex::new(State {
            stamps,
            again: None,
            certificate,
            configs,
        });
        Ok(Self { settings, state })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// For the next handshake.
    pub(crate) fn now(&self) -> Configs {
        let mut state = self.lock();
        let stamps = self.settings.stamps();
        let is_due = state.again.is_some_and(|again| again <= Instant::now());
        let is_news = is_due || stamps != state.stamps;
        // What has failed is not tried for each handshake: strangers begin as many as they like.
        if is_news || self.settings.is_asked() && state.again.is_none() {
            state.stamps = stamps;
            let failed = self.refresh(&mut state, is_news).err();
            state.again = failed.map(|error| {
                tracing::warn!(%error, "certificates cannot be replaced: the last ones are used");
                Instant::now() + AGAIN
            });
        }
        state.configs.clone()
    }

    /// Uses what there is now; without news only if it is another certificate.
    fn refresh(&self, state: &mut State, is_news: bool) -> Result<(), TlsError> {
        let certificate = self.settings.own()?;
        let is_same = match (&certificate, &state.certificate) {
            (Some(now), Some(last)) => Arc::ptr_eq(&now.0, &last.0),
            _ => false,
        };
        if is_same && !is_news {
            return Ok(());
        }
        state.configs = self.settings.configs(certificate.as_ref())?;
        state.certificate = certificate;
        if is_news {
            tracing::info!("certificates were read again");
        }
        Ok(())
    }
}

impl Builder {
    fn stamps(&self) -> Vec<Stamp> {
        let mut files: Vec<&Path> = self.roots.iter().map(PathBuf::as_path).collect();
        if let Some(Source::Files { chain, key }) = &self.source {
            files.extend([chain.as_path(), key.as_path()]);
        }
        files.into_iter().map(stamp).collect()
    }

    /// Whether a function is asked with each handshake.
    fn is_asked(&self) -> bool {
        matches!(self.source, Some(Source::Function(_)))
    }

    fn own(&self) -> Result<Option<Certificate>, TlsError> {
        match &self.source {
            None => Ok(None),
            Some(Source::Memory { chain, key }) => Certificate::from_pem(chain, key).map(Some),
            Some(Source::Files { chain, key }) => {
                Certificate::from_pem(&read(chain)?, &read(key)?).map(Some)
            }
            Some(Source::Function(give)) => give().map(Some),
        }
    }

    fn roots(&self) -> Result<Option<Arc<RootCertStore>>, TlsError> {
        let file = self.roots.as_deref().map(read).transpose()?;
        let mut roots = RootCertStore::empty();
        for pem in self.trusted.iter().chain(&file) {
            for root in certificates(pem, "roots")? {
                roots.add(root).map_err(unusable)?;
            }
        }
        Ok((!roots.is_empty()).then(|| Arc::new(roots))) // some, unless none were named
    }

    fn versions(&self) -> &'static [&'static SupportedProtocolVersion] {
        static ALL: [&SupportedProtocolVersion; 2] = [&TLS13, &TLS12];
        if self.tls12 { &ALL } else { &ALL[..1] }
    }

    fn configs(&self, certificate: Option<&Certificate>) -> Result<Configs, TlsError> {
        let provider = Arc::new(ring::default_provider());
        let roots = self.roots()?;
        let own = certificate.map(|own| Arc::new(SingleCertAndKey::from(Arc::clone(&own.0))));
        let client = roots
            .clone()
            .map(|roots| self.client(&provider, roots, own.clone()));
        let server = own.map(|own| self.server(&provider, roots, own));
        Ok(Configs {
            client: client.transpose()?.map(Arc::new),
            server: server.transpose()?.map(Arc::new),
        })
    }

    fn client(
        &self,
        provider: &Arc<CryptoProvider>,
        roots: Arc<RootCertStore>,
        own: Option<Arc<SingleCertAndKey>>,
    ) -> Result<ClientConfig, TlsError> {
        let builder = ClientConfig::builder_with_provider(Arc::clone(provider))
            .with_protocol_versions(self.versions())
            .map_err(unusable)?
            .with_root_certificates(roots);
        let mut config = match own {
            Some(own) => builder.with_client_cert_resolver(own),
            None => builder.with_no_client_auth(),
        };
        config.alpn_protocols = vec![PROTOCOL.into()];
        // Each connection proves anew who it is, by the certificates and roots of now.
        config.resumption = Resumption::disabled();
        Ok(config)
    }

    fn server(
        &self,
        provider: &Arc<CryptoProvider>,
        roots: Option<Arc<RootCertStore>>,
        own: Arc<SingleCertAndKey>,
    ) -> Result<ServerConfig, TlsError> {
        let builder = ServerConfig::builder_with_provider(Arc::clone(provider))
            .with_protocol_versions(self.versions())
            .map_err(unusable)?;
        let builder = match roots.filter(|_| self.mutual) {
            Some(roots) => {
                let verifier =
                    WebPkiClientVerifier::builder_with_provider(roots, Arc::clone(provider));
                let verifier = verifier.build();
                builder.with_client_cert_verifier(
                    verifier.map_err(|error| TlsError::Unusable(error.to_string()))?,
                )
            }
            None => builder.with_no_client_auth(),
        };
        let mut config = builder.with_cert_resolver(own);
        config.alpn_protocols = vec![PROTOCOL.into()];
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(config)
    }
}

fn unusable(error: rustls::Error) -> TlsError {
    TlsError::Unusable(error.to_string())
}

fn stamp(path: &Path) -> Stamp {
    let file = fs::metadata(path).ok()?;
    Some((file.modified().ok()?, file.len(), inode(&file)))
}

#[cfg(unix)]
fn inode(file: &fs::Metadata) -> u64 {
    std::os::unix::fs::MetadataExt::ino(file)
}

/// Where files have no number, a change shows in the time and the length alone.
#[cfg(not(unix))]
fn inode(_: &fs::Metadata) -> u64 {
    0
}

fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    fs::read(path).map_err(|source| TlsError::File {
        path: path.into(),
        source,
    })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    fn certificate() -> Certificate {
        let key = rcgen::KeyPair::generate().expect("a key");
        let params = rcgen::CertificateParams::new(["localhost".to_owned()]).expect("a name");
        let own = params.self_signed(&key).expect("a certificate");
        let own = Certificate::from_pem(own.pem().as_bytes(), key.serialize_pem().as_bytes());
        own.expect("they fit each other")
    }

    /// Else whoever begins handshakes decides how much is logged.
    #[test]
    fn a_function_that_fails_is_asked_once_a_second() {
        let (asked, own) = (Arc::new(AtomicU32::new(0)), certificate());
        let asking = Arc::clone(&asked);
        let give = move || match asking.fetch_add(1, Ordering::Relaxed) {
            0 => Ok(own.clone()),
            _ => Err(TlsError::NotGiven("not now".into())),
        };
        let tls = Builder::default().certificate_by(give);
        let credentials = Credentials::read(tls).expect("there is one");
        let begun = Instant::now();
        for _ in 0..1000 {
            assert!(credentials.now().server.is_some(), "the last one is used");
        }
        let most = 2 + begun.elapsed().as_secs();
        assert!(u64::from(asked.load(Ordering::Relaxed)) <= most);
    }
}
