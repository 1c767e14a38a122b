//! A copy of the workspace that has mutants in it, and its tests.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::instrument::instrument;
use crate::mutant::{self, Mutant};
use crate::results::{Outcome, Results};

/// What is changed.
pub(crate) const PACKAGE: &str = "wallaby-proto";

/// The compiler's number for a match that does not say what to do with each value.
const NOT_EXHAUSTIVE: &str = "E0004";

/// How far from an error a mutant is suspected, in lines, step by step.
const NEAR: [usize; 5] = [1, 2, 4, 8, 16];

/// A workspace and its copy, in which sources are changed.
pub(crate) struct Tree {
    root: PathBuf,
    copy: PathBuf,
}

/// Tests with all mutants that compile.
pub(crate) struct Built {
    pub(crate) programs: Vec<PathBuf>,
    pub(crate) placed: BTreeSet<usize>,
    refused: BTreeSet<usize>,
    suspected: BTreeSet<usize>,
}

impl Built {
    /// Why a mutant is not in it.
    pub(crate) fn left_out(&self, number: usize) -> Option<Outcome> {
        match number {
            _ if self.placed.contains(&number) => None,
            _ if self.refused.contains(&number) => Some(Outcome::Refused),
            _ if self.suspected.contains(&number) => Some(Outcome::Suspected),
            _ => Some(Outcome::Switchless),
        }
    }
}

impl Tree {
    pub(crate) fn new(root: &str, copy: &str) -> Self {
        let (root, copy) = (root.into(), copy.into());
        Self { root, copy }
    }

    /// Where the copy of the package is.
    pub(crate) fn package(&self) -> PathBuf {
        self.copy.join("crates").join(PACKAGE)
    }

    /// What could be changed.
    pub(crate) fn mutants(&self) -> Result<Vec<Mutant>> {
        mutant::list(&self.root, PACKAGE)
    }

    /// Writes mutants into the sources and compiles; leaves out what the compiler refuses until it refuses nothing.
    pub(crate) fn build(&self, mutants: &[Mutant], results: &Results) -> Result<Built> {
        let known = |wanted: Outcome| {
            let all = mutants.iter().enumerate();
            let known = all.filter(move |(_, mutant)| results.before(&mutant.name) == Some(wanted));
            known.map(|(number, _)| number).collect::<BTreeSet<usize>>()
        };
        let mut refused = known(Outcome::Refused);
        let mut suspected = known(Outcome::Suspected);
        loop {
            let left_out: BTreeSet<usize> = refused.union(&suspected).copied().collect();
            let placed = self.write(mutants, &left_out)?;
            let messages = self.cargo(&["check", "--lib"])?;
            let errors: Vec<&Value> = messages
                .iter()
                .filter(|message| is_error(message))
                .collect();
            let Some(first) = errors.first() else {
                let programs = self.compile()?;
                return Ok(Built {
                    programs,
                    placed,
                    refused,
                    suspected,
                });
            };
            for error in &errors {
                refused.extend(self.within(error)?);
            }
            for error in &errors {
                suspected.extend(self.near(error)?.difference(&refused));
            }
            if refused.len() + suspected.len() == left_out.len() {
                bail!(
                    "an error that no mutant is to blame for: {}",
                    first["message"]["rendered"]
                );
            }
        }
    }

    /// The tests, with nothing but one mutant in the sources; nothing if that does not compile.
    pub(crate) fn alone(&self, mutant: &Mutant) -> Result<Option<Vec<PathBuf>>> {
        let source = fs::read_to_string(self.root.join(&mutant.file))?;
        self.put(&mutant.file, &mutant.apply(&source))?;
        let refused = self.cargo(&["check", "--lib"])?.iter().any(is_error);
        let programs = if refused { None } else { Some(self.compile()?) };
        self.put(&mutant.file, &source)?;
        Ok(programs)
    }

    /// Writes all but some into the sources, and says which have been placed.
    fn write(&self, mutants: &[Mutant], left_out: &BTreeSet<usize>) -> Result<BTreeSet<usize>> {
        let mut files: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        for (number, mutant) in mutants.iter().enumerate() {
            files.entry(&mutant.file).or_default().push(number);
        }
        let mut placed = BTreeSet::new();
        let library = format!("crates/{PACKAGE}/src/lib.rs");
        files.entry(&library).or_default();
        for (file, numbers) in files {
            let source =
                fs::read_to_string(self.root.join(file)).with_context(|| file.to_owned())?;
            let numbers = numbers.iter().filter(|number| !left_out.contains(number));
            let written = instrument(&source, numbers.map(|number| (*number, &mutants[*number])))?;
            placed.extend(written.placed);
            let switch = if file == library {
                include_str!("switch.rs")
            } else {
                ""
            };
            self.put(file, &(written.text + switch))?;
        }
        Ok(placed)
    }

    /// Only what has changed is written, so that only this is compiled.
    fn put(&self, file: &str, text: &str) -> Result<()> {
        let path = self.copy.join(file);
        if fs::read_to_string(&path).is_ok_and(|before| before == text) {
            return Ok(());
        }
        fs::write(&path, text).with_context(|| path.display().to_string())
    }

    /// What cargo says about the copy. What is not mutated is compiled to be fast, the rest so that both take seconds.
    fn cargo(&self, arguments: &[&str]) -> Result<Vec<Value>> {
        let output = Command::new("cargo")
            .args(arguments)
            .args(["--package", PACKAGE, "--message-format=json", "--quiet"])
            .arg("--config=profile.dev.package.\"*\".opt-level=2")
            .env("RUSTFLAGS", "--cap-lints=allow")
            .env("CARGO_PROFILE_DEV_OPT_LEVEL", "1")
            .env("CARGO_PROFILE_DEV_DEBUG", "0")
            .env("CARGO_INCREMENTAL", "1")
            .env("CARGO_TARGET_DIR", self.copy.with_extension("build"))
            .current_dir(&self.copy)
            .stderr(Stdio::null())
            .output()
            .context("running cargo")?;
        let lines = output.stdout.split(|byte| *byte == b'\n');
        let messages = lines.filter(|line| line.starts_with(b"{"));
        messages
            .map(|line| Ok(serde_json::from_slice(line)?))
            .collect()
    }

    fn compile(&self) -> Result<Vec<PathBuf>> {
        let messages = self.cargo(&["test", "--lib", "--tests", "--no-run"])?;
        let tests = messages
            .iter()
            .filter(|message| message["profile"]["test"] == true);
        let programs: Vec<PathBuf> = tests
            .filter_map(|message| message["executable"].as_str().map(PathBuf::from))
            .collect();
        ensure!(
            !programs.is_empty(),
            "the tests of {PACKAGE} do not compile"
        );
        Ok(programs)
    }

    /// The mutants whose switches are in lines that an error is about.
    fn within(&self, error: &Value) -> Result<BTreeSet<usize>> {
        if is_incomplete_match(error) {
            return Ok(BTreeSet::new());
        }
        self.switches(error, 0)
    }

    /// The mutants next to an error that is not about the line of any.
    fn near(&self, error: &Value) -> Result<BTreeSet<usize>> {
        if is_incomplete_match(error) {
            return self.deleted_arms(error);
        }
        if !self.switches(error, 0)?.is_empty() {
            return Ok(BTreeSet::new());
        }
        for margin in NEAR {
            let found = self.switches(error, margin)?;
            if !found.is_empty() {
                return Ok(found);
            }
        }
        Ok(BTreeSet::new())
    }

    fn switches(&self, error: &Value, margin: usize) -> Result<BTreeSet<usize>> {
        for (file, start, end) in places(error)? {
            let text = fs::read_to_string(self.copy.join(file))?;
            let first = start.saturating_sub(margin + 1);
            let lines = text.lines().skip(first).take(end + margin - first);
            let found: BTreeSet<usize> = lines.filter_map(switch).collect();
            if !found.is_empty() {
                return Ok(found);
            }
        }
        Ok(BTreeSet::new())
    }

    /// Without one of these arms a match is not complete, but which of them, the compiler does not say.
    fn deleted_arms(&self, error: &Value) -> Result<BTreeSet<usize>> {
        const LONGEST_MATCH: usize = 60;
        let mut found = BTreeSet::new();
        if let Some((file, start, _)) = places(error)?.first() {
            let text = fs::read_to_string(self.copy.join(file))?;
            let lines = text.lines().skip(start - 1).take(LONGEST_MATCH);
            let deleted = lines.filter(|line| line.starts_with("!crate::mutant("));
            found.extend(deleted.filter_map(switch));
        }
        Ok(found)
    }
}

fn is_error(message: &Value) -> bool {
    let spans = message["message"]["spans"].as_array();
    message["message"]["level"] == "error" && spans.is_some_and(|spans| !spans.is_empty())
}

fn is_incomplete_match(error: &Value) -> bool {
    error["message"]["code"]["code"] == NOT_EXHAUSTIVE
}

/// Files, first and last lines that an error is about, the most important first.
fn places(error: &Value) -> Result<Vec<(&str, usize, usize)>> {
    let mut spans: Vec<&Value> = error["message"]["spans"]
        .as_array()
        .into_iter()
        .flatten()
        .collect();
    spans.sort_by_key(|span| span["is_primary"] != true);
    let place = |span: &&'_ Value| -> Option<_> {
        let line = |key: &str| span[key].as_u64().map(|line| line as usize);
        Some((line("line_start")?, line("line_end")?))
    };
    let all = spans.iter().map(|span| {
        let (start, end) = place(span).context("the lines of an error")?;
        let file = span["file_name"].as_str().context("the file of an error")?;
        Ok((file, start, end))
    });
    all.collect()
}

/// The mutant whose switch is on a line.
fn switch(line: &str) -> Option<usize> {
    let (_, rest) = line.split_once("crate::mutant(")?;
    rest.split_once(')')?.0.parse().ok()
}
