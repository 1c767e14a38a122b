//! Runs tests, and on each mutant only those that reach it.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::results::Outcome;

/// Tests that are too long to be run this often.
const SKIPPED: &str = "every_small_pair_of_trees";

/// One test, how long it takes where nothing is changed, and which mutants it reaches.
pub(crate) struct Test {
    pub(crate) program: PathBuf,
    pub(crate) name: String,
    pub(crate) time: Duration,
    pub(crate) reached: Vec<usize>,
}

/// After how many seconds of computing a test is stopped: all of them together take less than two.
pub(crate) const SECONDS: u32 = 4;

/// How much memory a test may ask for, in KiB; some mutants ask for more and more.
const MEMORY: u32 = 4_000_000;

/// Where tests run, and with how much memory and time each.
fn limited(folder: &Path, program: &Path) -> Command {
    let mut command = Command::new("bash");
    command
        .args([
            "-c",
            &format!("ulimit -c 0 -v {MEMORY} -t {SECONDS}; exec \"$@\""),
            "bash",
        ])
        .arg(program)
        .env("WALLABY_CASES", "0.05")
        .env("PROPTEST_MAX_SHRINK_ITERS", "0")
        .env("RUST_BACKTRACE", "0")
        .current_dir(folder)
        .stdin(Stdio::null())
        .stderr(Stdio::null());
    command
}

/// All tests, each run once by itself.
pub(crate) fn tests(folder: &Path, programs: &[PathBuf]) -> Result<Vec<Test>> {
    let mut tests = Vec::new();
    for program in programs {
        let listed = limited(folder, program)
            .args(["--list", "--format=terse"])
            .output()?;
        let listed = String::from_utf8(listed.stdout)?;
        let names = listed
            .lines()
            .filter_map(|line| line.strip_suffix(": test"));
        for name in names.filter(|name| !name.contains(SKIPPED)) {
            tests.push(trace(folder, program, name)?);
        }
    }
    tests.sort_by_key(|test| test.time);
    Ok(tests)
}

fn trace(folder: &Path, program: &Path, name: &str) -> Result<Test> {
    let trace = program.with_extension("trace");
    let _ = std::fs::remove_file(&trace);
    let start = Instant::now();
    let status = limited(folder, program)
        .args(["--exact", name])
        .env("MUTANT_TRACE", &trace)
        .stdout(Stdio::null())
        .status()?;
    ensure!(status.success(), "{name} fails though nothing is changed");
    let time = start.elapsed();
    let reached = std::fs::read_to_string(&trace).unwrap_or_default();
    let reached: Result<Vec<usize>, _> = reached.lines().map(str::parse).collect();
    Ok(Test {
        program: program.to_owned(),
        name: name.to_owned(),
        time,
        reached: reached.context("a trace")?,
    })
}

/// Runs the tests that reach a mutant, quick ones first, up to the first that fails.
pub(crate) fn run(folder: &Path, mutant: usize, tests: &[&Test]) -> Result<(Outcome, String)> {
    if tests.is_empty() {
        return Ok((Outcome::Unreached, String::new()));
    }
    let mut rest = tests;
    for most in [8, 64, usize::MAX] {
        let (batch, later) = rest.split_at(most.min(rest.len()));
        rest = later;
        let mut programs: BTreeMap<&Path, Vec<&str>> = BTreeMap::new();
        for test in batch {
            programs.entry(&test.program).or_default().push(&test.name);
        }
        for (program, names) in programs {
            let arguments = [&["--exact"], &*names].concat();
            if let Some(outcome) = fails(folder, program, Some(mutant), &arguments)? {
                return Ok(outcome);
            }
        }
    }
    Ok((Outcome::Missed, String::new()))
}

/// Runs all tests of programs that have been compiled with a mutant.
pub(crate) fn run_all(folder: &Path, programs: &[PathBuf]) -> Result<(Outcome, String)> {
    for program in programs {
        let names = ["--skip", SKIPPED];
        if let Some(outcome) = fails(folder, program, None, &names)? {
            return Ok(outcome);
        }
    }
    Ok((Outcome::Missed, String::new()))
}

fn fails(
    folder: &Path,
    program: &Path,
    mutant: Option<usize>,
    arguments: &[&str],
) -> Result<Option<(Outcome, String)>> {
    let mut child = limited(folder, program)
        .arg("--test-threads=1")
        .args(arguments)
        .env(
            "MUTANT",
            mutant.map_or(String::new(), |mutant| mutant.to_string()),
        )
        .stdout(Stdio::piped())
        .spawn()?;
    let output = child.stdout.take().context("its output")?;
    let mut last = String::new();
    for line in BufReader::new(output).split(b'\n') {
        let line = line?;
        let line = String::from_utf8_lossy(&line);
        let Some(test) = line.strip_prefix("test ") else {
            continue;
        };
        last = test.split(' ').next().unwrap_or_default().to_owned();
        if test.ends_with("FAILED") {
            child.kill()?;
            child.wait()?;
            return Ok(Some((Outcome::Caught, last)));
        }
    }
    let status = child.wait()?;
    const OUT_OF_TIME: [Option<i32>; 2] = [Some(24), Some(9)];
    Ok(match status.success() {
        true => None,
        false if OUT_OF_TIME.contains(&status.signal()) => Some((Outcome::Endless, last)),
        false => Some((Outcome::Caught, last)),
    })
}
