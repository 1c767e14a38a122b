//! Where programs are reached: rpcbind, versions 3 and 4, and the port mapper, which is its version 2 (RFC 1833).
//!
//! [`Rpcbind`] asks and registers, a [`Registration`] keeps a server registered for as long as it lives, and a
//! [`Directory`] is an rpcbind itself.
//!
//! ```no_run
//! # use wallaby_onc::server::Server;
//! # async fn example(server: Server) -> Result<(), Box<dyn std::error::Error>> {
//! use wallaby_onc::rpcbind::{Registration, Rpcbind};
//!
//! let registration = Registration::new(&server, Rpcbind::local().await?).await?;
//! tokio::signal::ctrl_c().await?;
//! registration.unregister().await?;
//! server.shutdown().await;
//! # Ok(())
//! # }
//! ```

mod client;
mod directory;
mod forward;
mod registration;
mod service;
mod statistics;
mod universal;

#[allow(
    clippy::use_self,
    clippy::module_inception,
    reason = "what is generated names each type as the interface does"
)]
pub mod interface {
    //! The programs and values of `interfaces/rpcbind.x`, as generated.
    include!("../interfaces/rpcbind.rs");
}

pub use client::{Mapping, Rpcbind};
pub use directory::{Directory, DirectoryOptions, Forward};
pub use registration::{NotRegistered, Registration};
pub use universal::{netid, parse, universal_address};

/// The port of rpcbind, over TCP and UDP.
pub const PORT: u16 = 111;

/// The unix socket of rpcbind. Over it, it knows which user registers something.
pub const SOCKET: &str = "/run/rpcbind.sock";

/// The program's number.
pub const PROGRAM: u32 = interface::rpcbind::PROGRAM;
