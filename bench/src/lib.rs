//! Benchmarks of Wallaby: workloads, raw-socket floors, and the one harness and result row for all of them.
//!
//! Every figure comes from a run in which all systems took turns, is compared with a floor of the same pattern of
//! messages on bare sockets, and ends up in one kind of row. Where to start:
//!
//! - [`hops()`] and [`fanout()`] measure what the DPC thesis shows in its figures 6.1 and 6.2; [`large()`] what small
//!   calls notice of large messages on their connection.
//! - [`row`]: the result row, one line of JSON. [`table`] and [`chart`] show rows, with what
//!   [`ratio`] compares them with.
//! - [`mod@report`]: all of it, as published in `docs/performance.md`; [`target`]: what is promised there.
//! - [`harness`]: interleaved rounds, latencies, processor time; what a new benchmark builds on.
//! - [`pattern`]: who sends what to whom; `floor`: the same with bare loops.
//! - [`fleet`]: the servers, processes started from this very program, which hands their command to [`server_main`].
//! - [`process`], [`random`]: pinning and processor time; choices that a seed repeats.

pub mod chart;
mod comparison;
mod fanout;
pub mod fleet;
mod floor;
pub mod harness;
mod hops;
mod large;
mod on_wallaby;
mod patience;
pub mod pattern;
pub mod process;
pub mod random;
pub mod ratio;
pub mod report;
pub mod row;
pub mod table;
pub mod target;
mod workload;

pub use comparison::RunOptions;
pub use fanout::{FanoutOptions, fanout};
pub use fleet::{Launcher, Stack, Transport};
pub use harness::Progress;
pub use hops::{HopsOptions, hops};
pub use large::{LargeOptions, large};
pub use report::{ReportOptions, report};
pub use row::Row;

use anyhow::{Context, Result};
use fleet::ServerConfig;

/// Runs a server until its client has gone. For the hidden command that a [`Launcher`] starts; `arguments` are what
/// follows that command.
///
/// # Errors
/// The arguments are not a launcher's, or what the server met with.
pub fn server_main(arguments: impl IntoIterator<Item = String>) -> Result<()> {
    let config = arguments
        .into_iter()
        .next()
        .context("a server's configuration is missing")?;
    let config: ServerConfig = serde_json::from_str(&config)
        .context("this is no server's configuration; only benchmarks start servers")?;
    process::die_with_parent(config.parent)?;
    match config.stack {
        Stack::FloorBlocking | Stack::FloorTokio => floor::serve(&config),
        Stack::Wallaby => on_wallaby::serve(&config),
    }
}
