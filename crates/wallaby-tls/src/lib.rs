//! TLS for Wallaby: endpoints at `tls://HOST:PORT`, by rustls over TCP.
//!
//! A [`Tls`] is a [transport](wallaby::transport) that an endpoint is given. It proves by its certificate who it is, verifies
//! who it dials by the host in the address, and with [`Builder::mutual`] takes connections only of those whose certificate it
//! trusts. Handlers see the names of a peer's certificate by [`wallaby::RequestInfo::identity`].
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use wallaby::Endpoint;
//! use wallaby_tls::Tls;
//!
//! let tls = Tls::builder()
//!     .roots_file("/etc/cluster/ca.pem")
//!     .certificate_files("/etc/cluster/me.pem", "/etc/cluster/me.key")
//!     .mutual()
//!     .build()?;
//! let endpoint = Endpoint::builder().transport(tls).listen("tls://a.cluster.example:7443").bind().await?;
//! # Ok(())
//! # }
//! ```
//!
//! Files are read again when they change, so that certificates and roots are replaced without a restart: the next handshake
//! uses the new ones, and open connections go on with what they have proven. Who has them in memory uses [`Builder::trust`] and
//! [`Builder::certificate`]. What all this protects, and what not, is said in `docs/security.md`.
//!
//! - *credentials*: certificates, keys and roots, and when they are read again;
//! - *transport*: dialling, listening, the handshake;
//! - *stream*: an open stream in two halves;
//! - *names*: the names in a certificate.

mod credentials;
mod names;
mod stream;
mod transport;

pub use credentials::{Builder, Certificate, TlsError};
pub use transport::Tls;
