//! Interface files as text, places in them, and what is wrong there.

use std::fmt;
use std::path::PathBuf;

/// The files that were read: the one to compile and those it includes.
#[derive(Debug, Default)]
pub(super) struct Sources {
    files: Vec<File>,
}

#[derive(Debug)]
pub(super) struct File {
    pub(super) path: PathBuf,
    pub(super) text: String,
    /// Where each line begins.
    lines: Vec<usize>,
}

/// A piece of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) file: usize,
    pub(super) start: usize,
    pub(super) length: usize,
}

/// Something wrong in an interface file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Problem {
    pub(super) place: Place,
    pub(super) message: String,
}

impl Problem {
    pub(super) fn new(place: Place, message: impl Into<String>) -> Self {
        Self {
            place,
            message: message.into(),
        }
    }
}

impl Sources {
    /// Takes in a file; its number.
    pub(super) fn add(&mut self, path: PathBuf, text: String) -> usize {
        let breaks = text.match_indices('\n').map(|(at, _)| at + 1);
        let lines = std::iter::once(0).chain(breaks).collect();
        self.files.push(File { path, text, lines });
        self.files.len() - 1
    }

    pub(super) fn file(&self, number: usize) -> &File {
        &self.files[number]
    }

    pub(super) fn paths(&self) -> impl Iterator<Item = &PathBuf> {
        self.files.iter().map(|file| &file.path)
    }

    /// The line of a place, counted from 1.
    pub(super) fn line(&self, place: Place) -> usize {
        let lines = &self.file(place.file).lines;
        lines.partition_point(|&start| start <= place.start)
    }

    /// The problem for people.
    pub(super) fn diagnostic(&self, problem: &Problem) -> Diagnostic {
        let Place {
            file,
            start,
            length,
        } = problem.place;
        let File { path, text, lines } = self.file(file);
        let line = self.line(problem.place);
        let line_start = lines[line - 1];
        let rest = &text[line_start..];
        let source_line = rest.lines().next().unwrap_or_default();
        let marked = text.get(start..start + length).unwrap_or_default();
        Diagnostic {
            path: path.clone(),
            line,
            column: text[line_start..start].chars().count() + 1,
            width: marked
                .lines()
                .next()
                .map_or(1, |it| it.chars().count().max(1)),
            // A tab is as wide as the reader's terminal likes; the caret has to stand below its letter.
            source_line: source_line.replace('\t', " "),
            message: problem.message.clone(),
        }
    }
}

/// An error in an interface file, as a compiler shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Diagnostic {
    /// The file.
    pub path: PathBuf,
    /// The line, counted from 1.
    pub line: usize,
    /// The character in the line, counted from 1.
    pub column: usize,
    /// How many characters are to blame.
    pub width: usize,
    /// The text of the line, with spaces for tabs.
    pub source_line: String,
    /// What is wrong and what was expected.
    pub message: String,
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            path,
            line,
            column,
            width,
            source_line,
            message,
        } = self;
        writeln!(
            formatter,
            "{}:{line}:{column}: error: {message}",
            path.display()
        )?;
        writeln!(formatter, "{line:>5} | {source_line}")?;
        let indent = column - 1;
        write!(formatter, "      | {:indent$}{:^<width$}", "", "")
    }
}
