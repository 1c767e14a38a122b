//! Certificates for a cluster that talks over TLS, made for one run: a root, and one for each process.

use std::fs;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use wallaby_tls::Tls;

/// Signs the certificates of one run; its key is nowhere but here.
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    root: String,
}

impl Authority {
    pub(crate) fn new() -> anyhow::Result<Self> {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let name = "a run of wallaby demo";
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate()?;
        let root = params.self_signed(&key)?.pem();
        let issuer = Issuer::new(params, key);
        Ok(Self { issuer, root })
    }

    /// Makes a folder with a certificate for the process of this name: good for this machine's address, and for `NAME.demo`.
    pub(crate) fn issue(&self, folder: &Path, name: &str) -> anyhow::Result<PathBuf> {
        let folder = folder.join(name);
        let names = vec!["127.0.0.1".to_owned(), format!("{name}.demo")];
        let key = KeyPair::generate()?;
        let certificate = CertificateParams::new(names)?.signed_by(&key, &self.issuer)?;
        let files = [
            (ROOTS, &self.root),
            (CERTIFICATE, &certificate.pem()),
            (KEY, &key.serialize_pem()),
        ];
        let made = fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&folder);
        made.and_then(|()| {
            files
                .into_iter()
                .try_for_each(|(file, text)| write(&folder.join(file), text))
        })
        .with_context(|| format!("certificates can't be written to {}", folder.display()))?;
        Ok(folder)
    }
}

const ROOTS: &str = "roots.pem";
const CERTIFICATE: &str = "certificate.pem";
const KEY: &str = "key.pem";

fn write(path: &Path, text: &str) -> std::io::Result<()> {
    use std::io::Write;
    let options = fs::OpenOptions::new()
        .create(true)
        .truncate(true)
        .write(true)
        .mode(0o600)
        .open(path);
    options?.write_all(text.as_bytes())
}

/// Mutual authentication by the files in such a folder.
pub(crate) fn transport(folder: &Path) -> anyhow::Result<Arc<Tls>> {
    let tls = Tls::builder()
        .roots_file(folder.join(ROOTS))
        .certificate_files(folder.join(CERTIFICATE), folder.join(KEY))
        .mutual();
    tls.build()
        .with_context(|| format!("the certificates in {}", folder.display()))
}
