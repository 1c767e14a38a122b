//! A picture's file.

use crate::picture::Picture;
use anyhow::Context;
use std::path::{Path, PathBuf};

/// Writes a picture as PNG. Whoever reads the file at the same time sees the one before or this one.
///
/// # Errors
///
/// If it cannot be written.
pub fn write(file: &Path, picture: &Picture) -> anyhow::Result<()> {
    let bytes = picture
        .png()
        .context("the picture is too large for a PNG file")?;
    let part = unfinished(file);
    let written = std::fs::write(&part, bytes).and_then(|()| std::fs::rename(&part, file));
    if written.is_err() {
        // Perhaps it was not even made.
        let _ = std::fs::remove_file(&part);
    }
    written.with_context(|| format!("{} can't be written", file.display()))
}

/// Whether a file can be written, before hours are spent on what is to be in it.
pub fn check_writable(file: &Path) -> anyhow::Result<()> {
    let shown = file.display();
    anyhow::ensure!(!file.is_dir(), "{shown} can't be written: it is a folder");
    let part = unfinished(file);
    let made = std::fs::write(&part, []).and_then(|()| std::fs::remove_file(&part));
    made.with_context(|| format!("{shown} can't be written"))
}

/// Where a file is until it is whole.
fn unfinished(file: &Path) -> PathBuf {
    let mut name = file.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.part", std::process::id()));
    file.with_file_name(name)
}
