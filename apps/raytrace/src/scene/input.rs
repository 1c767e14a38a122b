//! Files of text or bytes, compressed or not, read within limits.

use super::{Limits, SceneError};
use flate2::bufread::MultiGzDecoder;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

/// A file that is read from its beginning.
pub struct Input {
    path: PathBuf,
    reader: Box<dyn BufRead>,
    /// Bytes that may still come.
    left: u64,
    limits: Limits,
    line: u64,
}

impl Input {
    /// Opens a file. What is compressed shows by its first bytes.
    ///
    /// # Errors
    ///
    /// If it cannot be opened.
    pub fn open(path: &Path, limits: &Limits) -> Result<Self, SceneError> {
        let failed = |source| SceneError::Read {
            path: path.to_owned(),
            source,
        };
        let file = File::open(path).map_err(failed)?;
        let mut file = BufReader::with_capacity(1 << 16, file);
        let is_compressed = file.fill_buf().map_err(failed)?.starts_with(&[0x1f, 0x8b]);
        let reader: Box<dyn BufRead> = match is_compressed {
            true => Box::new(BufReader::with_capacity(1 << 16, MultiGzDecoder::new(file))),
            false => Box::new(file),
        };
        Ok(Self {
            path: path.to_owned(),
            reader,
            left: limits.bytes,
            limits: *limits,
            line: 0,
        })
    }

    /// The next line without its end, in `line`; whether there was one.
    ///
    /// # Errors
    ///
    /// If it cannot be read, is too long, or is no text.
    pub fn line(&mut self, line: &mut String) -> Result<bool, SceneError> {
        line.clear();
        self.line += 1;
        let most = self.limits.line as u64 + 1;
        let mut bytes = Vec::new();
        let read = (&mut self.reader).take(most).read_until(b'\n', &mut bytes);
        let read = read.map_err(|source| self.failed(source))?;
        if read as u64 == most && bytes.last() != Some(&b'\n') {
            return Err(self.too_much("bytes in a line", self.limits.line as u64));
        }
        self.spend(read)?;
        // Names may be in any encoding; numbers are ASCII.
        let text = String::from_utf8_lossy(&bytes);
        line.push_str(text.trim_end_matches(['\n', '\r']));
        Ok(read > 0)
    }

    fn spend(&mut self, bytes: usize) -> Result<(), SceneError> {
        let left = self.left.checked_sub(bytes as u64);
        self.left = left.ok_or_else(|| self.too_much("bytes in a file", self.limits.bytes))?;
        Ok(())
    }

    /// The limits it is read with.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The file and the line that was read last.
    pub fn place(&self) -> String {
        format!("{}, line {}", self.path.display(), self.line)
    }

    /// An error about the line that was read last.
    pub fn wrong(&self, what: impl Into<String>) -> SceneError {
        SceneError::Wrong {
            place: self.place(),
            what: what.into(),
        }
    }

    /// The error that there is too much of something.
    pub fn too_much(&self, what: &'static str, limit: u64) -> SceneError {
        SceneError::TooMuch {
            place: self.place(),
            what,
            limit,
        }
    }

    fn failed(&self, source: io::Error) -> SceneError {
        SceneError::Read {
            path: self.path.clone(),
            source,
        }
    }
}

/// A number that a scene can be made of.
pub fn number(text: &str) -> Result<f64, String> {
    // Beyond this, squares and cubes of lengths are no numbers any more.
    const LARGEST: f64 = 1e60;
    let number = text
        .parse::<f64>()
        .map_err(|_| format!("'{}' is no number", shown(text)))?;
    match number.abs() <= LARGEST {
        true => Ok(number),
        false => Err(format!("'{}' is no number to draw with", shown(text))),
    }
}

/// The beginning of a text, for messages.
pub fn shown(text: &str) -> String {
    const MOST: usize = 40;
    let cut: String = text.chars().take(MOST).collect();
    match cut.len() < text.len() {
        true => format!("{cut}…"),
        false => cut,
    }
}
