//! Programs that peers need beside this one.

use std::env;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where a program is: in `PATH`, where Debian has servers, or where Go installs to.
pub(crate) fn find(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let go = env::var_os("HOME").map(|home| Path::new(&home).join("go/bin"));
    env::split_paths(&path)
        .chain(["/usr/sbin".into()])
        .chain(go)
        .map(|folder| folder.join(name))
        .find(|program| program.is_file())
}

/// A command whose process is killed when this program ends, however it ends.
pub(crate) fn dies_with_us(program: &Path) -> Command {
    let mut command = Command::new(program);
    let parent = std::process::id();
    // SAFETY: between fork and exec only system calls are made.
    unsafe {
        command.pre_exec(move || {
            wallaby_program::child::die_with(parent)
                .map_err(|_| std::io::ErrorKind::NotConnected.into())
        });
    }
    command
}
