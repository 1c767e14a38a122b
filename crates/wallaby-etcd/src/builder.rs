//! How an etcd is reached: TLS and passwords.

use std::fmt;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use ureq::tls::{Certificate, ClientCert, PrivateKey, RootCerts, TlsConfig};

use crate::api::{Api, Password};
use crate::{Etcd, EtcdError};

/// Says how an etcd is reached; made by [`Etcd::builder`].
#[derive(Default)]
#[must_use = "a builder does nothing until `build` is called"]
pub struct Builder {
    members: Vec<String>,
    trusted: Vec<u8>,
    certificate: Option<(Vec<u8>, Vec<u8>)>,
    password: Option<Password>,
}

/// Without keys and passwords.
impl fmt::Debug for Builder {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = out.debug_struct("Builder");
        shown
            .field("members", &self.members)
            .finish_non_exhaustive()
    }
}

impl Builder {
    pub(crate) fn new(members: Vec<String>) -> Self {
        Self {
            members,
            ..Self::default()
        }
    }

    /// Members over `https:` have a certificate by one of these authorities: PEM, one or several. No others are trusted.
    pub fn trust(mut self, authorities: &[u8]) -> Self {
        self.trusted.extend_from_slice(authorities);
        self.trusted.push(b'\n');
        self
    }

    /// What members over `https:` know this process by: a certificate, with those between it and the authority, and its key. PEM.
    /// An etcd that asks for passwords, too, refuses certificates with a common name.
    pub fn certificate(mut self, chain: &[u8], key: &[u8]) -> Self {
        self.certificate = Some((chain.to_vec(), key.to_vec()));
        self
    }

    /// A user of etcd's, where it asks for one (`etcdctl auth enable`); servers need a role that may read and write their keys.
    /// Over `http:` the password can be read on the way.
    pub fn password(mut self, user: &str, password: &str) -> Self {
        self.password = Some(Password {
            name: user.to_owned(),
            password: password.to_owned(),
        });
        self
    }

    /// The etcd. Nothing is sent yet.
    ///
    /// # Errors
    ///
    /// If there is no member, and if a member is reached over `https:` and no authority is trusted, or what is to be PEM is not,
    /// or the key does not fit its certificate.
    pub fn build(self) -> Result<Etcd, EtcdError> {
        if self.members.is_empty() {
            return Err(EtcdError::NoMember);
        }
        let tls = self.tls()?;
        Ok(Etcd {
            api: Arc::new(Api::new(self.members, tls, self.password)),
            prefix: "wallaby".into(),
        })
    }

    /// Without an authority nobody is trusted: ureq would panic if nothing were said of it.
    fn tls(&self) -> Result<TlsConfig, EtcdError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let authorities = certificates("an authority", &self.trusted)?;
        let mut members = self.members.iter();
        let encrypted = members.find(|member| {
            let scheme = member.split(':').next();
            scheme.is_some_and(|scheme| scheme.eq_ignore_ascii_case("https"))
        });
        if let Some(member) = encrypted.filter(|_| authorities.is_empty()) {
            let why = format!("no authority is trusted to name {member}: see Builder::trust");
            return Err(EtcdError::Tls(why));
        }
        let mut config = TlsConfig::builder()
            .root_certs(RootCerts::new_with_certs(&for_ureq(&authorities)))
            .unversioned_rustls_crypto_provider(Arc::clone(&provider));
        if let Some((chain, key)) = &self.certificate {
            let chain = certificates("the certificate", chain)?;
            let own = PrivateKey::from_pem(key).map_err(|error| wrong("the key", error))?;
            let client = ClientCert::new_with_certs(&for_ureq(&chain), own);
            let key =
                PrivateKeyDer::from_pem_slice(key).map_err(|error| wrong("the key", error))?;
            // ureq takes for granted that they fit each other, and would panic at the first request.
            ClientConfig::builder_with_provider(provider)
                .with_protocol_versions(rustls::ALL_VERSIONS)
                .map_err(|error| wrong("TLS", error))?
                .with_root_certificates(RootCertStore::empty())
                .with_client_auth_cert(chain, key)
                .map_err(|error| wrong("the certificate with this key", error))?;
            config = config.client_cert(Some(client));
        }
        Ok(config.build())
    }
}

fn certificates(what: &str, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, EtcdError> {
    let all: Result<_, _> = CertificateDer::pem_slice_iter(pem).collect();
    all.map_err(|error| wrong(what, error))
}

fn for_ureq(certificates: &[CertificateDer]) -> Vec<Certificate<'static>> {
    let certificates = certificates.iter();
    certificates
        .map(|certificate| Certificate::from_der(certificate).to_owned())
        .collect()
}

fn wrong(what: &str, why: impl fmt::Display) -> EtcdError {
    EtcdError::Tls(format!("{what} cannot be used: {why}"))
}
