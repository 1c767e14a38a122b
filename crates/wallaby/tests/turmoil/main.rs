//! Endpoints as users have them, with pool, relay and driver, in random worlds: a simulated network that delays, cuts
//! and loses, hosts that crash and come back, virtual time, and an oracle that saw every handler.
//!
//! `cargo test -p wallaby --features turmoil --test turmoil -- --seeds N [--from S]` runs other seeds than CI does,
//! `--seed S` one of them with its log.

mod lines;
mod oracle;
mod plan;
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
    let mut seen = lines::Seen::default();
    for seed in arguments.from..arguments.from + arguments.seeds {
        let line = lines::run(seed, arguments.log);
        for violation in &line.violations {
            failed = true;
            println!("seed {seed}, the line: {violation}");
        }
        seen.add(&line);
    }
    println!("{} lines: {seen}", arguments.seeds);
    let first = world::run(arguments.from, false);
    if first != world::run(arguments.from, false) {
        failed = true;
        println!("seed {} does not repeat", arguments.from);
    }
    for (what, count) in sum.least().into_iter().chain(seen.least()) {
        // One world need not have everything.
        if count == 0 && arguments.seeds >= SEEDS {
            failed = true;
            println!("not reached: {what}");
        }
    }
    if failed {
        println!(
            "again, with a log: cargo test -p wallaby --features turmoil --test turmoil -- --seed S"
        );
    }
    ExitCode::from(u8::from(failed))
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
            _ => {} // what `cargo test` passes on is meant for other tests
        }
    }
    Ok(arguments)
}
