//! Why files were not compiled.

use std::error::Error;
use std::fmt;
use std::io;
use std::path::PathBuf;

/// Why files were not compiled.
#[derive(Debug)]
#[non_exhaustive]
pub enum CompileError {
    /// Something is wrong in a file, or in one that it imports.
    Proto(Vec<Diagnostic>),
    /// A file cannot be read or written.
    File {
        /// The file.
        path: PathBuf,
        /// Why not.
        error: io::Error,
    },
    /// What was set for prost, or as an external type, cannot be.
    Settings(String),
}

/// What is wrong, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diagnostic {
    /// The file, and where it is known the line and the column in it, which count from 1. Empty where no file is to blame.
    pub place: String,
    /// What was expected.
    pub message: String,
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gap = if self.place.is_empty() { "" } else { ": " };
        write!(formatter, "{}{gap}error: {}", self.place, self.message)
    }
}

impl fmt::Display for CompileError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Proto(diagnostics) => {
                for (at, diagnostic) in diagnostics.iter().enumerate() {
                    let gap = if at > 0 { "\n" } else { "" };
                    write!(formatter, "{gap}{diagnostic}")?;
                }
                Ok(())
            }
            Self::File { path, error } => write!(formatter, "{}: {error}", path.display()),
            Self::Settings(what) => formatter.write_str(what),
        }
    }
}

impl Error for CompileError {}
