//! The command line: what is to be done to which processes, and the exit status that says whether all was well.

use clap::Parser;
use std::process::ExitCode;
use wallaby_chaos::Command;
use wallaby_program::ending::status;

/// Kills, stops and cuts off processes under load, then compares what was promised with what happened
#[derive(Debug, Parser)]
#[command(name = "wallaby-chaos", version, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  wallaby-chaos run                                 20 seconds over TCP, a new seed
  wallaby-chaos run --seconds 600 --transport udp   ten minutes over UDP, 5 % of all datagrams dropped, ...
  wallaby-chaos run --seed 7 --json                 the faults of seed 7, the result as one JSON object
  wallaby-chaos detect --times 100                  how long a failure goes unnoticed
  wallaby-chaos hostile --seconds 600               ten minutes among peers that do all they can
  wallaby-chaos hostile --each --seconds 10         each of the attacks by itself
  wallaby-chaos loss --calls 100000                 calls of 1, 2 and 4 hops over a lossy network

The exit status is 0 if all was well, 1 if something was not as it must be.
Links are cut where network namespaces can be made (as root, with iproute2).";

fn main() -> ExitCode {
    let result = Cli::parse().command.run();
    status(result.map(|is_well| match is_well {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }))
}
