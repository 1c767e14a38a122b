//! The simulator's command line: many seeds, or one of them in every detail.

use std::io::{IsTerminal, Write};
use std::process::ExitCode;

use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};
use wallaby_sim::{Broken, Kind, Options, Summary, run, shrink};

/// Most failing seeds that are shrunk and shown; the others are only named.
const SHOWN: usize = 3;

/// The protocol under virtual time, with faults, watched by an oracle
#[derive(Debug, Parser)]
#[command(name = "wallaby-sim", version)]
struct Cli {
    /// How many seeds to run
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..))]
    seeds: u64,
    /// The first of them
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Run this seed alone; if it fails, it is shrunk and shown
    #[arg(long, conflicts_with_all = ["seeds", "from"])]
    seed: Option<u64>,
    /// Show what happens in it, event by event
    #[arg(long, requires = "seed")]
    log: bool,
    /// With --log: show the events of the shrunk plan, too
    #[arg(long, requires = "log")]
    shrunk: bool,
    /// Run worlds in which only this goes wrong
    #[arg(long, value_enum)]
    kind: Option<Kind>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Run with something deliberately wrong, to see that it is noticed
    #[arg(long, value_enum)]
    broken: Option<Broken>,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let good = match cli.seed {
        Some(seed) => one(seed, &cli),
        None => many(&cli),
    };
    match good {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        // Whoever reads the output has had enough.
        Err(error) if is_gone(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs one seed; whether all was well.
fn one(seed: u64, cli: &Cli) -> anyhow::Result<bool> {
    let options = Options {
        log: cli.log,
        broken: cli.broken,
        kind: cli.kind,
    };
    let plan = options.plan(seed);
    let report = run(&plan, options);
    if cli.log {
        print(&format!("{plan}\n{}\n", report.log))?;
    }
    if cli.json {
        let summary = Summary::of(
            seed,
            1,
            Options {
                log: false,
                ..options
            },
            |_| {},
        );
        print(&format!("{}\n", summary.to_json()?))?;
        return Ok(report.violations.is_empty());
    }
    if report.violations.is_empty() {
        print(&format!(
            "seed {seed}: no violation, {} calls\n",
            report.outcomes.len()
        ))?;
        return Ok(true);
    }
    print(&describe(seed, options, cli.shrunk))?;
    Ok(false)
}

/// Runs many seeds; whether all was well.
fn many(cli: &Cli) -> anyhow::Result<bool> {
    let options = Options {
        log: false,
        broken: cli.broken,
        kind: cli.kind,
    };
    let bar = match std::io::stderr().is_terminal() {
        true => ProgressBar::new(cli.seeds)
            .with_style(style())
            .with_message("seeds"),
        false => ProgressBar::hidden(),
    };
    let summary = Summary::of(cli.from, cli.seeds, options, |done| bar.set_position(done));
    bar.finish_and_clear();
    if cli.json {
        print(&format!("{}\n", summary.to_json()?))?;
    } else {
        print(&summary.to_string())?;
    }
    for (index, (seed, violation)) in summary.failed.iter().enumerate() {
        eprintln!("seed {seed}: {violation}");
        if index < SHOWN {
            eprint!("{}", describe(*seed, options, false));
        }
    }
    if !summary.is_good() && summary.failed.is_empty() {
        for point in summary.uncovered() {
            eprintln!("not reached: {}", point.words());
        }
    }
    Ok(summary.is_good())
}

/// A failing seed: how to run it again, and its plan made small.
fn describe(seed: u64, options: Options, log: bool) -> String {
    let broken = match options.broken {
        Some(broken) => format!(" --broken {}", broken.name()),
        None => String::new(),
    };
    let kind = match options.kind {
        Some(kind) => format!(" --kind {}", kind.name()),
        None => String::new(),
    };
    let mut text = format!(
        "replay: cargo run -p wallaby-sim --profile sim -- --seed {seed}{kind}{broken} --log\n"
    );
    if let Some(small) = shrink(&options.plan(seed), options) {
        let report = run(
            &small.plan,
            Options {
                log: true,
                ..options
            },
        );
        text += &format!("shrunk in {} worlds to:\n{}", small.tries, small.plan);
        if log {
            text += &report.log;
        }
        for violation in &report.violations {
            text += &format!("violation: {violation}\n");
        }
    }
    text
}

pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}

fn is_gone(error: &anyhow::Error) -> bool {
    let mut causes = error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<std::io::Error>());
    causes.any(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
}

fn style() -> ProgressStyle {
    ProgressStyle::with_template("{msg:20} {bar:40.green/dim} {human_pos} of {human_len}")
        .map(|style| style.progress_chars("━━╌"))
        .unwrap_or_else(|_| ProgressStyle::default_bar())
}
