//! A picture's file.

use crate::picture::Picture;
use anyhow::Context;
use std::path::Path;
use tempfile::NamedTempFile;

/// Writes a picture as PNG. Whoever reads the file at the same time sees the one before or this one.
///
/// # Errors
///
/// If it cannot be written.
pub fn write(file: &Path, picture: &Picture) -> anyhow::Result<()> {
    let bytes = picture
        .png()
        .context("the picture is too large for a PNG file")?;
    let written = beside(file).and_then(|part| {
        std::fs::write(&part, bytes)?;
        Ok(part.persist(file)?)
    });
    written.with_context(|| format!("{} can't be written", file.display()))?;
    Ok(())
}

/// Whether a file can be written, before hours are spent on what is to be in it.
///
/// # Errors
///
/// If it cannot.
pub fn check_writable(file: &Path) -> anyhow::Result<()> {
    let shown = file.display();
    anyhow::ensure!(!file.is_dir(), "{shown} can't be written: it is a folder");
    let made = beside(file).map(drop);
    made.with_context(|| format!("{shown} can't be written"))
}

/// What a file is until it is whole.
fn beside(file: &Path) -> std::io::Result<NamedTempFile> {
    let folder = file
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    // As others make files, too: not for this user alone.
    let permissions = std::os::unix::fs::PermissionsExt::from_mode(0o666);
    let mut part = tempfile::Builder::new();
    part.permissions(permissions)
        .tempfile_in(folder.unwrap_or(Path::new(".")))
}
