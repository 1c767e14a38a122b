//! `wallaby-chord` as its users run it: as a program, with processes.
#![allow(clippy::unwrap_used, reason = "a test that fails says where")]

use serde_json::Value;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use wallaby_program::testing::{check_that_a_reader_may_leave, signal, start, stdout};

fn program(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_wallaby-chord"));
    command.args(arguments).stdin(Stdio::null());
    command
}

fn run(arguments: &[&str]) -> Output {
    program(arguments).output().unwrap()
}

/// `wallaby-chord up`, until this is dropped.
struct Up {
    child: Child,
    page: PathBuf,
}

/// Starts a ring, and waits until it is up.
fn up(page: &Path, more: &[&str]) -> Child {
    let up = ["up", "--at", page.to_str().unwrap()];
    start(&mut program(&[&up, more].concat()), "stays until")
}

/// Asks it to end, and waits until it has.
fn end(child: &mut Child) {
    signal("TERM", child.id());
    assert!(child.wait().unwrap().success());
}

impl Up {
    fn start(name: &str, more: &[&str]) -> Self {
        let page = std::env::temp_dir().join(format!("chord-{name}-{}.json", std::process::id()));
        let child = up(&page, more);
        Self { child, page }
    }

    fn ask(&self, arguments: &[&str]) -> Output {
        run(&[arguments, &["--at", self.page.to_str().unwrap()]].concat())
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        end(&mut self.child);
        assert!(!self.page.exists(), "the page of a ring that is gone");
    }
}

#[test]
fn a_ring_is_asked() {
    let up = Up::start(
        "asked",
        &[
            "--processes",
            "3",
            "--nodes",
            "64",
            "--transport",
            "udp",
            "--link",
            "300us",
        ],
    );
    // Who asks is as far away as the page says.
    let page = std::fs::read_to_string(&up.page).unwrap();
    assert!(page.contains("\"link_us\": 300"), "{page}");
    let missing = up.ask(&["get", "wallaby"]);
    assert_eq!(missing.status.code(), Some(1));
    assert_eq!(
        String::from_utf8_lossy(&missing.stderr),
        "'wallaby' has no value\n"
    );
    assert!(stdout(&up.ask(&["put", "wallaby", "jumps"])).starts_with("4 nodes keep it"));
    assert_eq!(stdout(&up.ask(&["get", "wallaby"])), "jumps\n");
    assert_eq!(
        stdout(&up.ask(&["get", "wallaby", "--iterative"])),
        "jumps\n"
    );

    let line = |output: &Output| serde_json::from_str::<Value>(&stdout(output)).unwrap();
    let one = line(&up.ask(&["get", "wallaby", "--json"]));
    let other = line(&up.ask(&["get", "wallaby", "--json", "--iterative"]));
    assert_eq!(one["owner"], other["owner"]);
    assert_eq!(one["value"], "jumps");

    let explained = stdout(&up.ask(&["explain", "wallaby"]));
    assert!(
        explained.contains(one["owner"].as_str().unwrap()),
        "{explained}"
    );
    assert!(explained.contains("by delegation: ") && explained.contains("by iteration: "));
}

#[test]
fn a_ring_that_ends_leaves_the_page_of_another_one_alone() {
    let page = std::env::temp_dir().join(format!("chord-shared-{}.json", std::process::id()));
    let mut first = up(&page, &["--nodes", "4", "--processes", "1"]);
    let mut second = up(&page, &["--nodes", "4", "--processes", "1"]);
    end(&mut first);
    let found = run(&["explain", "key", "--at", page.to_str().unwrap()]);
    assert!(found.status.success(), "{found:?}");
    end(&mut second);
    assert!(!page.exists(), "the page of a ring that is gone");
}

#[test]
fn no_key_is_lost_when_processes_are_killed() {
    let demo = stdout(&run(&["demo", "--nodes", "40"]));
    assert!(demo.contains("killed the process of its owner"), "{demo}");
    assert!(
        demo.contains("$ wallaby-chord get wallaby\njumps\n"),
        "{demo}"
    );
}

#[test]
fn wrong_usage_and_missing_rings_are_told_apart() {
    assert_eq!(run(&["up", "--nodes", "0"]).status.code(), Some(2));
    assert_eq!(run(&["demo", "--link", "1h"]).status.code(), Some(2));
    let output = run(&["get", "key", "--at", "/nonexistent/ring.json"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("start one with 'wallaby-chord up'"));

    // A page that was left behind by a ring that is gone.
    let page = std::env::temp_dir().join(format!("chord-stale-{}.json", std::process::id()));
    let free = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let mut file = std::fs::File::create(&page).unwrap();
    let address: wallaby::Address = format!("tcp://{free}").parse().unwrap();
    let ring = serde_json::json!({"hosts": [address], "link_us": 0});
    file.write_all(&serde_json::to_vec(&ring).unwrap()).unwrap();
    let output = run(&["get", "key", "--at", page.to_str().unwrap()]);
    std::fs::remove_file(&page).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("is gone"),
        "{output:?}"
    );
}

#[test]
fn a_reader_who_has_had_enough_ends_it_without_a_word() {
    check_that_a_reader_may_leave(&mut program(&["demo", "--nodes", "4"]));
}
