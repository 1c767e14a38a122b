//! The program `wallaby`: `demo` shows what multi-hop calls are good for, `bench` measures it, `list`, `call`, `health` and `top`
//! ask endpoints that run, `chain` runs chains, `onc` compiles interface files of ONC RPC and knows where its programs are, `proto`
//! compiles .proto files, `sidecar` serves what unmodified servers behind it serve.

#[cfg(feature = "bench")]
mod bench;
#[cfg(feature = "chain")]
mod chain;
mod demo;
#[cfg(feature = "onc")]
mod onc;
mod output;
mod progress;
#[cfg(feature = "proto")]
mod proto;
mod remote;
#[cfg(feature = "sidecar")]
mod sidecar;
#[cfg(feature = "bench")]
mod thesis;
mod time;

use clap::{Parser, Subcommand};
use std::io::IsTerminal;
use std::process::ExitCode;
use wallaby_program::ending::Interrupted;
use wallaby_program::output::Gone;

/// Calls that travel from server to server and are answered by whoever finishes them
#[derive(Debug, Parser)]
#[command(name = "wallaby", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Search text files on a cluster of processes: by multi-hop calls, then by plain RPC
    Demo(Box<demo::Demo>),
    /// List what an endpoint serves: services, methods, types
    List(remote::List),
    /// Call a method of an endpoint, with arguments in JSON
    Call(Box<remote::Call>),
    /// Ask whether an endpoint, or a service of it, takes work
    Health(remote::Health),
    /// Show how much endpoints have to do, live
    Top(remote::Top),
    /// Run or walk a chain that a file describes: functions say where answers go next
    #[cfg(feature = "chain")]
    #[command(subcommand)]
    Chain(chain::Chain),
    /// Measure multi-hop calls against plain RPC and raw sockets; against other systems: 'make bench-peers'
    #[cfg(feature = "bench")]
    #[command(subcommand)]
    Bench(bench::Bench),
    /// Work with ONC RPC, the protocol of rpcgen and NFS
    #[cfg(feature = "onc")]
    #[command(subcommand)]
    Onc(onc::Onc),
    /// Work with .proto files, the interfaces of Protocol Buffers
    #[cfg(feature = "proto")]
    #[command(subcommand)]
    Proto(proto::Proto),
    /// Serve what servers of HTTP, gRPC and ONC RPC serve, as methods of Wallaby
    #[cfg(feature = "sidecar")]
    Sidecar(sidecar::Run),
    /// A server of a benchmark, which starts it itself
    #[cfg(feature = "bench")]
    #[command(hide = true)]
    BenchServer { arguments: Vec<String> },
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Demo(demo) => demo.run(),
        Command::List(list) => list.run(),
        Command::Call(call) => call.run(),
        Command::Health(health) => health.run(),
        Command::Top(top) => top.run(),
        #[cfg(feature = "chain")]
        Command::Chain(chain) => chain.run(),
        #[cfg(feature = "bench")]
        Command::Bench(bench) => bench.run(),
        #[cfg(feature = "onc")]
        Command::Onc(onc) => onc.run(),
        #[cfg(feature = "proto")]
        Command::Proto(proto) => proto.run(),
        #[cfg(feature = "sidecar")]
        Command::Sidecar(sidecar) => sidecar.run(),
        #[cfg(feature = "bench")]
        Command::BenchServer { arguments } => {
            wallaby_bench::server_main(&wallaby_bench::Own::ALL, arguments)
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failed(&error),
    }
}

/// Says what went wrong, where there is something to say; the exit status for it.
fn failed(error: &anyhow::Error) -> ExitCode {
    const INTERRUPTED: u8 = 130;
    if error.is::<Gone>() {
        return ExitCode::SUCCESS;
    }
    if let Some(output::Exit(status)) = error.downcast_ref() {
        return ExitCode::from(*status);
    }
    if error.is::<Interrupted>() {
        if std::io::stderr().is_terminal() {
            eprintln!(); // ends the line in which ^C stands
        }
        return ExitCode::from(INTERRUPTED);
    }
    #[cfg(any(feature = "onc", feature = "proto"))]
    if error.is::<output::Reported>() {
        eprintln!("{error}");
        return ExitCode::FAILURE;
    }
    eprintln!("error: {}", output::plain(&format!("{error:#}")));
    ExitCode::FAILURE
}
