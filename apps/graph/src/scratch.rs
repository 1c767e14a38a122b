//! Folders that go with who made them.

use anyhow::Context;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A folder of its own in the system's folder for temporary files; removed with this value.
#[derive(Debug)]
pub struct Scratch(PathBuf);

impl Scratch {
    /// Makes one, whose name says what it is for.
    ///
    /// # Errors
    ///
    /// If it cannot be made.
    pub fn new(what: &str) -> anyhow::Result<Self> {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let name = format!("wallaby-graph-{what}-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let made = std::fs::create_dir(&path);
        made.with_context(|| format!("{} can't be made", path.display()))?;
        Ok(Self(path))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What can't be removed is for the system to clean up.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
