//! Explores larger scopes on demand and prints states, depth and time.

use std::process::ExitCode;

use clap::Parser;
use wallaby_model::{Scope, Tree, explore};

/// Explores every tree of a size with every order of messages and every fault, exhaustively. Other scopes are written in the tests.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    /// Messages that a call causes at most: requests, responses, ends
    #[arg(long, default_value_t = 4)]
    messages: usize,
    /// Messages that a call causes at least
    #[arg(long, default_value_t = 2)]
    from: usize,
    /// Servers; 0 is one for each request
    #[arg(long, default_value_t = 0)]
    servers: usize,
    /// Faults in one run, of any kind
    #[arg(long, default_value_t = 1)]
    faults: u8,
    /// The application may abort the call
    #[arg(long)]
    abort: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let mut trees = Tree::all(arguments.messages);
    trees.retain(|tree| tree.messages >= arguments.from);
    let scope = Scope {
        servers: arguments.servers,
        hints: true,
        abort: arguments.abort,
        delay: Some(0),
        ..Scope::of(trees).with_faults(arguments.faults)
    };
    let explored = explore(scope);
    println!("{explored}");
    for (property, run) in &explored.violations {
        println!("does not hold: {property}\n{run}");
    }
    ExitCode::from(u8::from(!explored.violations.is_empty()))
}
