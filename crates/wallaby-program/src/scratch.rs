//! Folders for the sockets and books of one run.

use anyhow::Context;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use tempfile::TempDir;

/// A folder of this run's own, for this user alone; gone with this value.
#[derive(Debug)]
pub struct Scratch(TempDir);

impl Scratch {
    /// Makes one in the folder for temporary files. `program` is how its name begins. That of a run that is killed stays there.
    ///
    /// # Errors
    ///
    /// If it cannot be made.
    pub fn create(program: &str) -> anyhow::Result<Self> {
        Self::create_in(&std::env::temp_dir(), program)
    }

    /// Makes one in another folder.
    ///
    /// # Errors
    ///
    /// If it cannot be made.
    pub fn create_in(all: &Path, program: &str) -> anyhow::Result<Self> {
        let made = tempfile::Builder::new()
            .prefix(&format!("{program}-{}-", std::process::id()))
            .permissions(Permissions::from_mode(0o700))
            .tempdir_in(all);
        let made = made.with_context(|| format!("no folder can be made in {}", all.display()))?;
        Ok(Self(made))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.0.path()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_folder_is_for_its_user_alone_and_goes_with_the_run() -> anyhow::Result<()> {
        let all = tempfile::tempdir()?;
        let own = Scratch::create_in(all.path(), "program")?;
        let path = own.path().to_owned();
        assert_eq!(fs::metadata(&path)?.permissions().mode() & 0o777, 0o700);
        drop(own);
        assert!(!path.exists());
        Ok(())
    }
}
