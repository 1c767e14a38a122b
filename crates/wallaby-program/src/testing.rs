//! What the tests of such programs have in common: to run a program, to wait until it is up, to end it. A test that cannot go on
//! panics.
#![allow(clippy::unwrap_used, reason = "a test that fails says where")]

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};

/// What a program says, which has to succeed.
///
/// # Panics
///
/// If it does not.
pub fn stdout(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Starts a program, and waits until it says a line that has these words.
///
/// # Panics
///
/// If it does not start, or ends before that.
pub fn start(command: &mut Command, words: &str) -> Child {
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let said = lines
        .map_while(Result::ok)
        .find(|line| line.contains(words));
    assert!(said.is_some(), "it has ended before it said '{words}'");
    child
}

/// Sends a signal to a process, by its name, such as `KILL`.
///
/// # Panics
///
/// If there is no such process.
pub fn signal(name: &str, process: u32) {
    let mut kill = Command::new("kill");
    let sent = kill.args(["-s", name, &process.to_string()]).status();
    assert!(sent.unwrap().success());
}

/// A program whose output nobody reads any more ends without a word.
///
/// # Panics
///
/// If it does not.
pub fn check_that_a_reader_may_leave(command: &mut Command) {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let child = command.stdout(writer).stderr(Stdio::piped()).spawn();
    let output = child.unwrap().wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(141), "{output:?}");
    assert!(output.stderr.is_empty(), "{output:?}");
}
