//! Explores larger scopes on demand and prints states, depth and time.

use std::process::ExitCode;

use clap::Parser;
use wallaby_model::{Scope, Tree, explore};

/// Explores every tree of a size with every order of messages and every fault, exhaustively.
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
    /// Faults in one run
    #[arg(long, default_value_t = 1)]
    faults: u8,
    /// Kinds of faults
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "loss,duplication,crash,cut,hints"
    )]
    kinds: Vec<String>,
    /// The application may abort the call
    #[arg(long)]
    abort: bool,
    /// Ticks that a request, a response or an end may be under way: 0 is until the next one
    #[arg(long, default_value_t = 0)]
    delay: u8,
    /// Ticks that a ping or a pong may be under way
    #[arg(long, default_value_t = 0)]
    control_delay: u8,
    /// No time passes: completion alone
    #[arg(long)]
    timeless: bool,
    /// Handlers may dawdle until this tick
    #[arg(long, default_value_t = 0)]
    slow: u8,
    /// The call timeout in ticks
    #[arg(long, default_value_t = 3)]
    timeout: u8,
    /// Threads
    #[arg(long, default_value_t = 1)]
    threads: usize,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let mut trees = Tree::all(arguments.messages);
    trees.retain(|tree| tree.messages >= arguments.from);
    let allowed = |kind: &str| arguments.kinds.iter().any(|other| other == kind);
    let scope = Scope {
        servers: arguments.servers,
        faults: arguments.faults,
        loss: allowed("loss"),
        duplication: allowed("duplication"),
        crash: allowed("crash"),
        cut: allowed("cut"),
        hints: allowed("hints"),
        abort: arguments.abort,
        delay: (!arguments.timeless).then_some(arguments.delay),
        control_delay: arguments.control_delay,
        slow: arguments.slow,
        timeout: arguments.timeout,
        ..Scope::of(trees)
    };
    let explored = explore(scope, arguments.threads);
    println!("{explored}");
    for (property, run) in &explored.violations {
        println!("does not hold: {property}\n{run}");
    }
    ExitCode::from(u8::from(!explored.violations.is_empty()))
}
