//! Two builds of one program understand each other, whichever of them calls, answers, or is between the two.
#![allow(clippy::unwrap_used, reason = "a test that fails says where")]

mod kinds;

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

const OLD: &str = env!("CARGO_BIN_EXE_library-v1");
const NEW: &str = env!("CARGO_BIN_EXE_library-v2");

/// A server that does not outlive its test.
struct Server {
    process: Child,
    address: String,
}

impl Server {
    fn start(program: &str, next: Option<&Self>) -> Self {
        let mut command = Command::new(program);
        command.arg("serve");
        command.args(next.map(|next| &next.address));
        let mut process = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut address = String::new();
        let output = process.stdout.take().unwrap();
        BufReader::new(output).read_line(&mut address).unwrap();
        let address = address.trim_end().to_owned();
        Self { process, address }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The lines that a client prints.
fn ask(program: &str, arguments: &[&str]) -> Vec<String> {
    let output = Command::new(program).args(arguments).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(str::to_owned).collect()
}

#[test]
fn a_new_server_behind_an_old_one() {
    let last = Server::start(NEW, None);
    let first = Server::start(OLD, Some(&last));
    assert_eq!(
        ask(OLD, &["find", &first.address, "hop"]),
        [
            "Audio Hops: unknown enumeration value 2",
            "Hop and Skip: Paper",
            "Hopping for Beginners: Paper",
        ]
    );
    // The old server does not know of years: the new one behind it is not asked for those since 1980. Its answers do not pass the
    // old one, and have theirs.
    assert_eq!(
        ask(NEW, &["find", &first.address, "hop"]),
        [
            "Audio Hops: Audio, 1999",
            "Hop and Skip: Paper, 1971",
            "Hopping for Beginners: Paper, no year",
        ]
    );
}

#[test]
fn an_old_server_behind_a_new_one() {
    let last = Server::start(OLD, None);
    let first = Server::start(NEW, Some(&last));
    assert_eq!(
        ask(OLD, &["find", &first.address, "hop"]),
        [
            "Audio Hops: unknown enumeration value 2",
            "Hop and Skip: Paper",
            "Hopping for Beginners: Paper",
        ]
    );
    assert_eq!(
        ask(NEW, &["find", &first.address, "hop"]),
        [
            "Audio Hops: Audio, 1999",
            "Hopping for Beginners: Paper, no year"
        ]
    );
}

#[test]
fn items_of_another_version_are_read() {
    let (old, new) = (Server::start(OLD, None), Server::start(NEW, None));
    assert_eq!(ask(NEW, &["count", &old.address]), ["2 books"]);
    assert_eq!(ask(OLD, &["count", &new.address]), ["1 books"]);
}

/// In MessagePack, each with each, and one behind the other.
#[test]
fn serde_types_of_another_version_are_read() {
    let sorted = |program, server: &Server| {
        let mut lines = ask(program, &["lend", &server.address, "Hopping"]);
        lines.sort();
        lines
    };
    let old = Server::start(OLD, None);
    let new = Server::start(NEW, Some(&old));
    let old_first = Server::start(OLD, Some(&new));
    let as_old = r#"Loan { title: "Hopping" }"#;
    assert_eq!(sorted(OLD, &old), [as_old]);
    assert_eq!(sorted(OLD, &old_first), [as_old; 3]);
    // What an old server was asked, and hands on, has no card.
    let of_old = r#"Loan { days: None, card: None, title: "Hopping" }"#;
    let without = r#"Loan { days: Some(7), card: None, title: "Hopping" }"#;
    let with = r#"Loan { days: Some(28), card: Number(7), title: "Hopping" }"#;
    assert_eq!(sorted(NEW, &new), [of_old, with]);
    assert_eq!(sorted(NEW, &old_first), [of_old, of_old, without]);
}
