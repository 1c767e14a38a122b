//! Benchmarks of Wallaby: workloads, raw-socket floors, and the one harness and result row for all of them.
//!
//! Every figure comes from a run in which all systems took turns, is compared with a floor of the same pattern of
//! messages on bare sockets, and ends up in one kind of row. Where to start:
//!
//! - [`hops()`] and [`fanout()`] measure servers in sequence and in parallel; [`large()`] what small
//!   calls notice of large messages on their connection; [`throughput()`] how many calls a second there can be;
//!   [`scale()`] what many live calls, connections and requests cost.
//! - [`chains()`] measures chains beside plain calls, and what their functions cost.
//! - [`thesis`] measures all of the thesis' sixth chapter anew, and predicts it for a [`cluster`] that is not there.
//! - [`flexrpc`] measures what FlexRPC's paper shows in its figures 4 to 8, beside libtirpc, which [`tirpc`] loads.
//! - [`row`]: the result row, one line of JSON. [`table`] and [`picture`] show rows, with what [`ratio`] compares them with.
//! - [`meter`]: whether processor time is the application's, the interface's or the protocol's.
//! - [`harness`]: interleaved rounds, latencies, processor time; what a new benchmark builds on.
//! - [`pattern`]: who sends what to whom, [`plan`]: in one operation.
//! - [`stack`]: what carries that out: Wallaby, bare loops, or an implementation of [`stack::Stack`] elsewhere.
//! - [`fleet`]: the servers, processes started from this very program, which hands their command to [`server_main`].
//! - [`process`], [`patience`], [`random`]: pinning and processor time; giving up; choices that a seed repeats.

mod chains;
pub mod cluster;
mod comparison;
mod fanout;
pub mod fleet;
pub mod flexrpc;
mod floor;
pub mod harness;
mod hops;
mod large;
mod loading;
pub mod meter;
mod on_polling;
mod on_wallaby;
mod operator;
pub mod patience;
pub mod pattern;
pub mod picture;
pub mod plan;
pub mod process;
pub mod random;
pub mod ratio;
pub mod row;
mod scale;
pub mod stack;
pub mod table;
pub mod thesis;
mod throughput;
pub mod tirpc;
mod tree;
mod workload;

pub use chains::{ChainsOptions, Part as ChainsPart, chains};
pub use comparison::RunOptions;
pub use fanout::{FanoutOptions, fanout};
pub use fleet::{Launcher, Transport};
pub use flexrpc::FlexrpcOptions;
pub use harness::Progress;
pub use hops::{HopsOptions, hops};
pub use large::{LargeOptions, large};
pub use row::Row;
pub use scale::{ScaleOptions, scale};
pub use stack::Own;
pub use throughput::{MOST_BYTES, ThroughputOptions, throughput};
pub use workload::take_one;

use anyhow::{Context, Result};
use fleet::ServerConfig;
use stack::Stack;
use wallaby_program::child::die_with;

/// Runs a server of one of these stacks until its client has gone. For the hidden command that a [`Launcher`] starts;
/// `arguments` are what follows that command.
///
/// # Errors
/// The arguments are not a launcher's, or what the server met with.
pub fn server_main(
    stacks: &[&dyn Stack],
    arguments: impl IntoIterator<Item = String>,
) -> Result<()> {
    let config = arguments
        .into_iter()
        .next()
        .context("a server's configuration is missing")?;
    let config: ServerConfig = serde_json::from_str(&config)
        .context("this is no server's configuration; only benchmarks start servers")?;
    die_with(config.parent)?;
    if let Some(served) = scale::serve(&config) {
        return served;
    }
    for of_one_benchmark in [Own::WallabySplit, Own::WallabyThreads] {
        if config.stack == of_one_benchmark.name() {
            return of_one_benchmark.serve(&config);
        }
    }
    if let Some(served) = flexrpc::serve(&config) {
        return served;
    }
    let stack = stacks.iter().find(|stack| stack.name() == config.stack);
    let stack = stack.with_context(|| format!("there is no stack {}", config.stack))?;
    stack.serve(&config)
}
