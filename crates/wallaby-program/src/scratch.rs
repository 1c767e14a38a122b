//! Folders for the sockets and books of one run.

use anyhow::Context;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, SystemTime};
use tempfile::TempDir;

/// A folder of this run's own, for this user alone; gone with this value.
#[derive(Debug)]
pub struct Scratch(TempDir);

impl Scratch {
    /// Makes one in the folder for temporary files. `program` is how its name begins; what runs of that program that were
    /// killed have left behind there is removed.
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
        sweep(all, program);
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

/// Removes what has been left behind a while ago.
fn sweep(all: &Path, program: &str) {
    const OLD: Duration = Duration::from_secs(3600);
    for entry in fs::read_dir(all).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let rest = name.to_str().and_then(|name| name.strip_prefix(program));
        let rest = rest.and_then(|rest| rest.strip_prefix('-')?.split_once('-'));
        let Some((pid, _)) = rest else { continue };
        let changed = entry.metadata().and_then(|metadata| metadata.modified());
        let age = changed.map(|changed| SystemTime::now().duration_since(changed));
        let is_old = matches!(age, Ok(Ok(age)) if age > OLD);
        if is_old && !Path::new("/proc").join(pid).exists() {
            let _ = fs::remove_dir_all(entry.path()); // somebody else's, then
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn folders_of_runs_that_were_killed_are_removed() -> anyhow::Result<()> {
        let all = tempfile::tempdir()?;
        let make = |name: &str, age| {
            let folder = all.path().join(name);
            fs::create_dir(&folder)?;
            File::open(&folder)?.set_modified(SystemTime::now() - Duration::from_secs(age))?;
            anyhow::Ok(folder)
        };
        // No process has this id: they end below 2^22.
        let old = make("program-4000000000-0", 4000)?;
        let young = make("program-4000000000-1", 10)?;
        let alive = make(&format!("program-{}-0", std::process::id()), 4000)?;
        let other = make("other-4000000000-0", 4000)?;
        let own = Scratch::create_in(all.path(), "program")?;
        assert!(!old.exists());
        assert!([&*young, &*alive, &*other, own.path()].map(Path::exists) == [true; 4]);
        let path = own.path().to_owned();
        assert_eq!(fs::metadata(&path)?.permissions().mode() & 0o777, 0o700);
        drop(own);
        assert!(!path.exists());
        Ok(())
    }
}
