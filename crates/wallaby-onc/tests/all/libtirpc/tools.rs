//! Programs that nobody here wrote, and C code that rpcgen makes: found, compiled, run, and ended again.

use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::{env, fs};

use super::namespace;

/// Where `scripts/setup.sh` unpacks rpcbind and rpcinfo, so that no daemon is installed for a test.
fn unpacked() -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent();
    target.unwrap_or("".as_ref()).join("tools/rpcbind")
}

/// A program of the system, or an unpacked one.
pub(crate) fn find(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let mut folders: Vec<PathBuf> = env::split_paths(&path).collect();
    folders.extend(["/usr/sbin", "/sbin"].map(PathBuf::from));
    folders.extend(["usr/bin", "usr/sbin", "sbin"].map(|folder| unpacked().join(folder)));
    let mut found = folders.into_iter().map(|folder| folder.join(name));
    found.find(|program| program.is_file())
}

/// A program to run, with the libraries that were unpacked beside it.
pub(crate) fn command(program: &Path) -> Command {
    let mut command = Command::new(program);
    let libraries = fs::read_dir(unpacked().join("usr/lib"));
    let folders = libraries.into_iter().flatten().flatten();
    let folders: Vec<PathBuf> = folders.map(|entry| entry.path()).collect();
    if let Ok(path) = env::join_paths(folders)
        && !path.is_empty()
    {
        let mut path: OsString = path;
        if let Some(before) = env::var_os("LD_LIBRARY_PATH") {
            path.push(":");
            path.push(before);
        }
        command.env("LD_LIBRARY_PATH", path);
    }
    command
}

/// Says that a test is not run, and why: past the harness, which keeps the words of tests that pass to itself.
pub(crate) fn skip(why: &str) {
    // Who has closed the output does not want to know.
    let _ = writeln!(io::stderr(), "SKIPPED: {why}");
}

/// What a program says in all.
pub(crate) fn said(output: &Output) -> String {
    let text = [&output.stdout[..], &output.stderr].concat();
    String::from_utf8_lossy(&text).into_owned()
}

/// A process that ends with its guard.
pub(crate) struct Process(Child);

impl Process {
    pub(crate) fn start(command: &mut Command) -> Self {
        Self(command.spawn().expect("what was found runs"))
    }

    /// The first line that it says.
    pub(crate) fn line(&mut self) -> String {
        let out = self.0.stdout.as_mut().expect("it is a pipe");
        let mut line = String::new();
        BufReader::new(out)
            .read_line(&mut line)
            .expect("it is text");
        line
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.0.try_wait().expect("it is ours").is_some()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The programs in C.
pub(crate) struct Made {
    /// Calls everything: network, port.
    pub(crate) client: PathBuf,
    /// Serves at ports of its own.
    pub(crate) server: PathBuf,
    /// Serves, and registers with rpcbind, as rpcgen has it.
    pub(crate) registered: PathBuf,
}

fn run(folder: &Path, program: &str, arguments: &str) -> Result<(), String> {
    let mut command = Command::new(program);
    command.current_dir(folder).args(arguments.split(' '));
    match command.stdin(Stdio::null()).output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(format!("{program} {arguments}: {}", said(&output))),
        Err(error) => Err(format!("{program}: {error}")),
    }
}

fn make() -> Result<Made, String> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("libtirpc");
    // Who runs a test in another network has made them.
    if !namespace::is_inside() {
        compile(&folder)?;
    }
    Ok(Made {
        client: folder.join("client"),
        server: folder.join("server"),
        registered: folder.join("registered"),
    })
}

fn compile(folder: &Path) -> Result<(), String> {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let _ = fs::remove_dir_all(folder);
    fs::create_dir_all(folder).map_err(|error| error.to_string())?;
    for file in [
        "interfaces/cross.x",
        "all/libtirpc/client.c",
        "all/libtirpc/server.c",
        "all/libtirpc/unregistered.c",
    ] {
        let from = tests.join(file);
        let to = folder.join(from.file_name().unwrap_or_default());
        fs::copy(from, to).map_err(|error| error.to_string())?;
    }
    for (what, out) in [
        ("-h", "cross.h"),
        ("-c", "values.c"),
        ("-l", "stubs.c"),
        ("-m", "dispatch.c"),
        ("-s tcp -s udp", "main.c"),
    ] {
        run(folder, "rpcgen", &format!("-C {what} -o {out} cross.x"))?;
    }
    for (sources, out) in [
        ("client.c stubs.c", "client"),
        ("server.c unregistered.c dispatch.c", "server"),
        ("server.c main.c", "registered"),
    ] {
        let arguments = format!("-w -I/usr/include/tirpc {sources} values.c -ltirpc -o {out}");
        run(folder, "cc", &arguments)?;
    }
    Ok(())
}

/// The programs in C, made once. `None`: something is missing here, and it has been said.
pub(crate) fn made() -> Option<&'static Made> {
    static MADE: OnceLock<Result<Made, String>> = OnceLock::new();
    match MADE.get_or_init(make) {
        Ok(made) => Some(made),
        Err(error) => {
            skip(&format!("rpcgen, cc or libtirpc is missing: {error}"));
            None
        }
    }
}
