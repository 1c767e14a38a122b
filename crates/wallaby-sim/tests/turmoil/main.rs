//! Endpoints as users have them, with pool, relay and driver, in random worlds: a simulated network that delays, cuts
//! and loses, hosts that crash and come back, virtual time, and an oracle that saw every handler.
//! Apart from other tests, as it needs a feature that changes the network and the time of all endpoints.
//!
//! `cargo test -p wallaby-sim --profile sim --test turmoil -- --seeds N [--from S]` runs other seeds than CI does,
//! `--seed S` one of them with its log, `--lines` only those of lines of servers, `--chains` only those of chains.

mod chains;
mod faults;
mod lines;
mod oracle;
mod plan;
#[path = "../../../wallaby/tests/common/random.rs"]
mod random;
mod tasks;
mod world;

use std::process::ExitCode;

use oracle::Verdict;

/// Worlds that CI looks at.
const SEEDS: u64 = 300;

struct Arguments {
    from: u64,
    seeds: u64,
    log: bool,
    /// Only these.
    only: Option<fn(&Self) -> bool>,
}

fn main() -> ExitCode {
    let arguments = match arguments(std::env::args().skip(1)) {
        Ok(arguments) => arguments,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::from(2);
        }
    };
    hide_planned_panics();
    let failed = match arguments.only {
        Some(only) => only(&arguments),
        None => worlds(&arguments) | lines(&arguments) | chains(&arguments),
    };
    if failed {
        println!(
            "again, with a log: cargo test -p wallaby-sim --profile sim --test turmoil -- --seed S"
        );
    }
    ExitCode::from(u8::from(failed))
}

/// Random trees; whether something was wrong.
fn worlds(arguments: &Arguments) -> bool {
    let mut sum = Verdict::default();
    let mut failed = false;
    for seed in arguments.from..arguments.from + arguments.seeds {
        let verdict = world::run(seed, arguments.log);
        for violation in &verdict.violations {
            failed = true;
            println!("seed {seed}: {violation}");
        }
        sum.add(&verdict);
    }
    println!("{} worlds: {sum}", arguments.seeds);
    let first = world::run(arguments.from, false);
    if first != world::run(arguments.from, false) {
        failed = true;
        println!("seed {} does not repeat", arguments.from);
    }
    failed | is_unreached(arguments, sum.least())
}

/// Random lines of servers; whether something was wrong.
fn lines(arguments: &Arguments) -> bool {
    let mut sum = lines::Seen::default();
    let mut failed = false;
    for seed in arguments.from..arguments.from + arguments.seeds {
        let seen = lines::run(seed, arguments.log);
        for violation in &seen.violations {
            failed = true;
            println!("seed {seed}, the line: {violation}");
        }
        sum.add(&seen);
    }
    println!("{} lines: {sum}", arguments.seeds);
    failed | is_unreached(arguments, sum.least())
}

/// Random chains; whether something was wrong.
fn chains(arguments: &Arguments) -> bool {
    let mut sum = chains::Seen::default();
    let mut failed = false;
    for seed in arguments.from..arguments.from + arguments.seeds {
        let seen = chains::run(seed, arguments.log);
        for violation in &seen.violations {
            failed = true;
            println!("seed {seed}, the chain: {violation}");
        }
        sum.add(&seen);
    }
    println!("{} chains: {sum}", arguments.seeds);
    failed | is_unreached(arguments, sum.least())
}

/// Whether something has not been reached that must be; one world need not have everything.
fn is_unreached(
    arguments: &Arguments,
    counts: impl IntoIterator<Item = (&'static str, u64)>,
) -> bool {
    let mut unreached = false;
    for (what, count) in counts {
        if count == 0 && arguments.seeds >= SEEDS {
            unreached = true;
            println!("not reached: {what}");
        }
    }
    unreached
}

/// Handlers panic on purpose; other panics are told as ever.
fn hide_planned_panics() {
    let tell = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if panic.payload_as_str() != Some(tasks::PANIC) {
            tell(panic);
        }
    }));
}

fn arguments(mut words: impl Iterator<Item = String>) -> Result<Arguments, String> {
    let mut arguments = Arguments {
        from: 0,
        seeds: SEEDS,
        log: false,
        only: None,
    };
    while let Some(word) = words.next() {
        let mut number = || -> Result<u64, String> {
            let text = words.next().ok_or(format!("{word} wants a number"))?;
            text.parse()
                .map_err(|_| format!("{word} wants a number, not {text:?}"))
        };
        match word.as_str() {
            "--seeds" => arguments.seeds = number()?,
            "--from" => arguments.from = number()?,
            "--seed" => {
                (arguments.from, arguments.seeds, arguments.log) = (number()?, 1, true);
            }
            "--lines" => arguments.only = Some(lines),
            "--chains" => arguments.only = Some(chains),
            _ => {} // what `cargo test` passes on is meant for other tests
        }
    }
    Ok(arguments)
}
