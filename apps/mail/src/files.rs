//! Files that are written whole or not at all, and what is said if they cannot be.

use anyhow::Context;
use std::io::Write;
use std::path::Path;
use wallaby::Status;

/// Writes a file, for this user alone; who reads it sees what it was, or all of this, also after the machine was off.
pub(crate) fn write(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    let written = || -> anyhow::Result<()> {
        let folder = path.parent().context("it is in no folder")?;
        std::fs::create_dir_all(folder)?;
        let mut file = tempfile::NamedTempFile::new_in(folder)?;
        file.write_all(bytes)?;
        file.as_file().sync_all()?;
        file.persist(path)?;
        std::fs::File::open(folder)?.sync_all()?;
        Ok(())
    };
    written().with_context(|| format!("{} can't be written", path.display()))
}

/// What went wrong at a server, which callers can do nothing about.
pub(crate) fn internal(error: impl Into<anyhow::Error>) -> Status {
    Status::internal(format!("{:#}", error.into()))
}
