//! Servers as processes, in a network of their own, and files.

use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::sync::LazyLock;

use tempfile::TempDir;
use wallaby_program::testing::{signal, stdout};

/// The program under test.
pub(crate) fn program(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_wallaby-storage"));
    command.args(arguments).stdin(Stdio::null());
    command
}

/// Whether servers can be run here. If not, the test is left out, and that is said past the harness, which keeps the words of tests
/// that pass to itself.
pub(crate) fn is_possible(test: &str) -> bool {
    static CHECK: LazyLock<Output> = LazyLock::new(|| program(&["check"]).output().unwrap());
    let why = String::from_utf8_lossy(&CHECK.stderr);
    if !CHECK.status.success() {
        let _ = writeln!(io::stderr(), "SKIPPED: {test}: {}", why.trim());
    }
    CHECK.status.success()
}

/// The servers `a`, `b` and `c`, until this is dropped.
pub(crate) struct Yard {
    up: Child,
    lines: io::Lines<BufReader<ChildStdout>>,
    data: TempDir,
    /// Where `b` and its backup `c` are as one server, whose chains are composed, and where they are not.
    pub(crate) primaries: [String; 2],
}

impl Yard {
    pub(crate) fn start() -> Self {
        // Below the folder for temporary files: the path of a unix socket is short.
        let data = tempfile::tempdir().unwrap();
        let mut up = program(&["up", "--data", data.path().to_str().unwrap()]);
        let mut up = up
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(up.stdout.take().unwrap()).lines();
        let until = |line: &String| !line.starts_with("kill NAME");
        let said: Vec<String> = lines
            .by_ref()
            .map_while(Result::ok)
            .take_while(until)
            .collect();
        let primaries: Vec<String> = said
            .iter()
            .filter_map(|line| line.strip_prefix("b + c"))
            .filter_map(|line| line.split_whitespace().next())
            .map(str::to_owned)
            .collect();
        let primaries = primaries.try_into().expect("the servers come up");
        Self {
            up,
            lines,
            data,
            primaries,
        }
    }

    /// Kills a server, or starts it again.
    pub(crate) fn tell(&mut self, line: &str) {
        writeln!(self.up.stdin.as_mut().unwrap(), "{line}").unwrap();
        let said = self.lines.next().expect("it goes on").unwrap();
        assert_eq!(said, format!("done: {line}"));
    }

    pub(crate) fn folder(&self, server: &str) -> PathBuf {
        self.data.path().join(server)
    }

    /// The sidecar before a server.
    pub(crate) fn at(&self, server: &str) -> String {
        format!(
            "unix://{}",
            self.data.path().join(format!("{server}.sock")).display()
        )
    }

    /// Makes a file that a server has.
    pub(crate) fn put(&self, server: &str, name: &str, bytes: &[u8]) {
        fs::write(self.folder(server).join(name), bytes).unwrap();
    }

    /// What a server has by this name.
    pub(crate) fn get(&self, server: &str, name: &str) -> Option<Vec<u8>> {
        fs::read(self.folder(server).join(name)).ok()
    }

    /// The names of all that a server has.
    pub(crate) fn names(&self, server: &str) -> Vec<String> {
        let files = fs::read_dir(self.folder(server)).unwrap();
        let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names.collect();
        names.sort();
        names
    }

    /// Copies a file of `a` to what is at this address, and keeps its name.
    pub(crate) fn copy(&self, name: &str, to: &str, more: &[&str]) -> Command {
        let from = self.at("a");
        let mut copy = program(&["copy", &from, name, to, name]);
        copy.args(more)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        copy
    }

    /// Begins a copy to `b`, and holds it (by a signal, `STOP`) when a part of the file has come there.
    pub(crate) fn begin(&self, mut copy: Command) -> Child {
        let parts = || {
            let files = fs::read_dir(self.folder("b")).unwrap();
            let files = files.map(|file| file.unwrap().path());
            files.filter(|file| file.extension().is_some_and(|end| end == "part"))
        };
        for left in parts() {
            fs::remove_file(left).unwrap(); // of a copy whose server was gone
        }
        let copying = copy.spawn().unwrap();
        let has_begun = |file: PathBuf| file.metadata().is_ok_and(|known| known.len() > 0);
        while !parts().any(has_begun) {
            std::thread::yield_now();
        }
        signal("STOP", copying.id());
        copying
    }
}

impl Drop for Yard {
    fn drop(&mut self) {
        signal("TERM", self.up.id());
        let _ = self.up.wait();
    }
}

/// So many bytes, of which no two parts are the same.
pub(crate) fn bytes(length: usize, seed: u64) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    std::iter::repeat_with(|| random.u8(..))
        .take(length)
        .collect()
}

pub(crate) fn done(mut command: Command) {
    stdout(&command.output().unwrap());
}

/// What a program says that fails.
pub(crate) fn failed(mut command: Command) -> String {
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}
