//! Servers that know nothing of Wallaby, as services of it: they stay as they are, and a sidecar in front of them makes methods of
//! what they serve. So they can be links of chains, too.
//!
//! ```no_run
//! use wallaby_sidecar::{Config, Sidecar};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let config = Config::parse(
//!     r#"
//!     listen = ["tcp://127.0.0.1:4000"]
//!
//!     [[http]]
//!     name = "Files"
//!     server = "http://127.0.0.1:8000"
//!     "#,
//! )?;
//! let sidecar = Sidecar::start(config).await?;
//! println!("listens at {}", sidecar.endpoint().address().ok_or("it listens")?);
//! # Ok(())
//! # }
//! ```
//!
//! | module | what it holds |
//! |---|---|
//! | [`config`] | what a sidecar is told, by a file |
//! | [`upstream`] | what a server behind a sidecar is to it, and what bounds its requests |
//! | [`http`] | servers of HTTP |
//! | `grpc` | servers of gRPC |
//! | `onc` | servers of ONC RPC |
//!
//! The page `docs/sidecar.md` of the repository is for those who run one.

#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod config;
pub mod http;
pub mod upstream;

mod dial;
mod grpc;
#[cfg(unix)]
mod onc;
mod reflection;
mod sidecar;

pub use config::{Config, ConfigError};
pub use sidecar::{Sidecar, StartError};
pub use upstream::Upstream;

/// The program of the page compiles.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/sidecar.md")]
struct Page;
