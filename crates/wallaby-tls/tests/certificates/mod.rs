//! Certificates made on the fly, in folders of their own.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use wallaby_tls::Tls;

/// Signs certificates.
#[derive(Clone)]
pub(crate) struct Authority(Arc<(Issuer<'static, KeyPair>, String)>);

impl Authority {
    pub(crate) fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().expect("a key");
        let certificate = params.self_signed(&key).expect("a certificate");
        let pem = certificate.pem();
        Self(Arc::new((Issuer::new(params, key), pem)))
    }

    /// A certificate with these names, and its key, as PEM.
    pub(crate) fn sign(&self, names: &[&str], expired: bool) -> (String, String) {
        let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).expect("names");
        if expired {
            params.not_before = rcgen::date_time_ymd(2020, 1, 1);
            params.not_after = rcgen::date_time_ymd(2020, 2, 1);
        }
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.0.0).expect("a certificate");
        (certificate.pem(), key.serialize_pem())
    }

    /// Its own key, which is none of its certificates'.
    pub(crate) fn key(&self) -> String {
        self.0.0.key().serialize_pem()
    }

    pub(crate) fn issue(&self, folder: &Folder, names: &[&str]) {
        self.write(folder, self.sign(names, false));
    }

    pub(crate) fn issue_expired(&self, folder: &Folder, names: &[&str]) {
        self.write(folder, self.sign(names, true));
    }

    fn write(&self, folder: &Folder, (chain, key): (String, String)) {
        for (path, text) in [
            (folder.roots(), &self.0.1),
            (folder.chain(), &chain),
            (folder.key(), &key),
        ] {
            std::fs::write(path, text).expect("it can be written");
        }
    }
}

/// A temporary folder with roots, a certificate and its key.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new() -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("wallaby-tls-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).expect("a temporary folder");
        Self(folder)
    }

    pub(crate) fn roots(&self) -> PathBuf {
        self.0.join("roots.pem")
    }

    pub(crate) fn chain(&self) -> PathBuf {
        self.0.join("chain.pem")
    }

    pub(crate) fn key(&self) -> PathBuf {
        self.0.join("key.pem")
    }

    /// Mutual authentication by these files.
    pub(crate) fn mutual(&self) -> Arc<Tls> {
        let tls = Tls::builder().roots_file(self.roots());
        let tls = tls.certificate_files(self.chain(), self.key()).mutual();
        tls.build().expect("the files are right")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
