//! The mutants as cargo-mutants lists them.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// A place in a file; lines and columns count from 1, columns in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    pub(crate) line: usize,
    pub(crate) column: usize,
}

/// What is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Body,
    Binary,
    Unary,
    Arm,
    Guard,
    Field,
}

impl Place {
    /// How many bytes of `source` come before it.
    pub(crate) fn offset(self, source: &str) -> usize {
        let lines = source.split_inclusive('\n').take(self.line - 1);
        let start: usize = lines.map(str::len).sum();
        let columns = source[start..].chars().take(self.column - 1);
        start + columns.map(char::len_utf8).sum::<usize>()
    }
}

impl Mutant {
    /// The file with nothing but this changed.
    pub(crate) fn apply(&self, source: &str) -> String {
        let (start, end) = (self.start.offset(source), self.end.offset(source));
        format!("{}{}{}", &source[..start], self.replacement, &source[end..])
    }
}

/// One change of one file.
#[derive(Clone, Debug)]
pub(crate) struct Mutant {
    pub(crate) name: String,
    pub(crate) file: String,
    pub(crate) kind: Kind,
    pub(crate) start: Place,
    pub(crate) end: Place,
    pub(crate) replacement: String,
}

/// All mutants of a package, in cargo-mutants' order.
pub(crate) fn list(root: &Path, package: &str) -> Result<Vec<Mutant>> {
    let listed = Command::new("cargo")
        .args(["mutants", "--package", package, "--list", "--json"])
        .current_dir(root)
        .output()
        .context("running cargo mutants")?;
    let errors = String::from_utf8_lossy(&listed.stderr);
    ensure!(listed.status.success(), "cargo mutants --list: {errors}");
    let values: Vec<Value> = serde_json::from_slice(&listed.stdout)?;
    values.iter().map(parse).collect()
}

fn parse(value: &Value) -> Result<Mutant> {
    let text = |key: &str| {
        let found = value[key].as_str().map(str::to_owned);
        found.with_context(|| format!("{key} of {value}"))
    };
    let place = |end: &str| {
        let number = |key: &str| {
            value["span"][end][key]
                .as_u64()
                .map(|number| number as usize)
        };
        let found = number("line").zip(number("column"));
        let (line, column) = found.with_context(|| format!("{end} of {value}"))?;
        anyhow::Ok(Place { line, column })
    };
    let kind = match text("genre")?.as_str() {
        "FnValue" => Kind::Body,
        "BinaryOperator" => Kind::Binary,
        "UnaryOperator" => Kind::Unary,
        "MatchArm" => Kind::Arm,
        "MatchArmGuard" => Kind::Guard,
        "StructField" => Kind::Field,
        other => anyhow::bail!("a kind of mutant that is not known: {other}"),
    };
    Ok(Mutant {
        name: text("name")?,
        file: text("file")?,
        kind,
        start: place("start")?,
        end: place("end")?,
        replacement: text("replacement")?,
    })
}
