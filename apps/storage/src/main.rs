//! `wallaby-storage`: files of NFS servers that know nothing of Wallaby. A sidecar before each makes their procedures methods, so
//! files are copied from one to the other without coming here, and written to two servers by a chain (RPC Chains, NSDI 2009,
//! sections 4.1 and 5.3).
//!
//! To see how, read [`copy`], which has plain calls (`by_calls`) and the chain (`by_chain`) side by side, and [`replica`], where a
//! server answers with a chain of its own.
//!
//! | part | what it is |
//! |---|---|
//! | [`nfs`] | what a client says to a server of NFS |
//! | [`copy`] | files copied by plain calls and by chains, many parts at a time |
//! | [`replica`] | a server whose files another one has as well |
//! | [`yard`], [`server`] | servers of NFS that others wrote, each with a sidecar, as processes in a network of their own |
//! | [`command`], [`measure`] | the program; both ways over the network of the paper |

mod command;
mod copy;
mod measure;
mod nfs;
mod replica;
mod server;
mod yard;

use clap::Parser;
use std::process::ExitCode;
use wallaby_program::ending::status;

// One thread: servers share the machine's cores already.
#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    status(command::Cli::parse().run().await)
}
