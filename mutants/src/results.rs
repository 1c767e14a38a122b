//! What became of each mutant: a file with a line for each, which an interrupted run goes on with.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::sync::Mutex;

use anyhow::{Context, Result, bail};

/// What became of a mutant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Outcome {
    /// A test fails.
    Caught,
    /// A test was stopped after [`SECONDS`](crate::run::SECONDS) of computing.
    Endless,
    /// All tests that reach it pass.
    Missed,
    /// No test reaches it.
    Unreached,
    /// It does not compile.
    Refused,
    /// What does not compile is near to it: to be compiled by itself.
    Suspected,
    /// It can't have a switch: to be compiled by itself.
    Switchless,
}

impl Outcome {
    pub(crate) const ALL: [Self; 7] = [
        Self::Caught,
        Self::Endless,
        Self::Missed,
        Self::Unreached,
        Self::Refused,
        Self::Suspected,
        Self::Switchless,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Caught => "caught",
            Self::Endless => "endless",
            Self::Missed => "missed",
            Self::Unreached => "unreached",
            Self::Refused => "refused",
            Self::Suspected => "suspected",
            Self::Switchless => "switchless",
        }
    }

    /// Whether it is to be compiled by itself.
    pub(crate) fn is_alone(self) -> bool {
        matches!(self, Self::Suspected | Self::Switchless)
    }

    /// Whether no test would notice it.
    pub(crate) fn survives(self) -> bool {
        matches!(self, Self::Missed | Self::Unreached)
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}

/// The outcomes of a run so far; of two for one mutant the later counts.
pub(crate) struct Results {
    known: BTreeMap<String, Outcome>,
    file: Mutex<File>,
}

/// What a file says of each mutant, by its name; nothing if there is no file.
pub(crate) fn read(path: &Path) -> Result<BTreeMap<String, Outcome>> {
    if !path.exists() {
        return Ok(BTreeMap::new());
    }
    let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
    text.lines().map(parse).collect()
}

fn parse(line: &str) -> Result<(String, Outcome)> {
    let mut fields = line.split('\t');
    let name = fields.next().unwrap_or_default();
    let outcome = fields.next().unwrap_or_default();
    let Some(outcome) = Outcome::ALL
        .into_iter()
        .find(|known| known.name() == outcome)
    else {
        bail!("a mutant, a tab and an outcome were expected: {line}");
    };
    Ok((name.to_owned(), outcome))
}

impl Results {
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let known = read(path)?;
        let file = File::options().create(true).append(true).open(path);
        let file = Mutex::new(file.with_context(|| path.display().to_string())?);
        Ok(Self { known, file })
    }

    /// What was known of a mutant when the run began.
    pub(crate) fn before(&self, name: &str) -> Option<Outcome> {
        self.known.get(name).copied()
    }

    /// Writes an outcome down, and by which test.
    pub(crate) fn add(&self, name: &str, outcome: Outcome, test: &str) -> Result<()> {
        let mut file = self.file.lock().expect("nobody panics with it");
        match test {
            "" => writeln!(file, "{name}\t{outcome}")?,
            test => writeln!(file, "{name}\t{outcome}\t{test}")?,
        }
        Ok(())
    }
}

/// How many came to which outcome, and the share of those that compile that was caught.
pub(crate) fn summary(known: &BTreeMap<String, Outcome>) -> String {
    let count = |wanted| known.values().filter(|outcome| **outcome == wanted).count();
    let mut text = String::new();
    for outcome in Outcome::ALL {
        text += &format!("{outcome}: {}\n", count(outcome));
    }
    let caught = count(Outcome::Caught) + count(Outcome::Endless);
    let viable = caught + count(Outcome::Missed) + count(Outcome::Unreached);
    let share = 100.0 * caught as f64 / viable.max(1) as f64;
    text + &format!("score: {caught} of {viable}, {share:.1} %\n")
}
