//! The program, run as users run it: short runs with a fixed and with a new seed, and what becomes of its processes.

#![allow(missing_docs, reason = "a test program has no items for others to use")]

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;
use wallaby_program::testing::signal;

const PROGRAM: &str = env!("CARGO_BIN_EXE_wallaby-chaos");

/// Tests that break processes, or see what becomes of them, take turns; what is lost, and that ends are detected, is found out beside
/// them, as that mostly waits.
static TURN: Mutex<()> = Mutex::new(());

fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs the program; its JSON if all was well.
fn chaos(arguments: &[&str]) -> Value {
    let output: Output = Command::new(PROGRAM)
        .args(arguments)
        .arg("--json")
        .output()
        .expect("the program starts");
    let (out, said) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    // Seeds and skipped faults are to be seen in the output of the test, too.
    println!("{arguments:?}: {said}");
    assert!(output.status.success(), "{out}\n{said}");
    serde_json::from_str(&out).expect("one JSON object")
}

fn count(report: &Value, pointer: &str) -> u64 {
    let number = report.pointer(pointer).and_then(Value::as_u64);
    number.unwrap_or_else(|| panic!("no {pointer} in {report}"))
}

#[test]
fn processes_over_tcp_with_a_fixed_seed() {
    let _turn = turn();
    let report = chaos(&["run", "--seconds", "15", "--seed", "1"]);
    assert_eq!(report["violations"], Value::Array(Vec::new()));
    assert!(count(&report, "/outcomes/complete") > 0);
    assert!(count(&report, "/calm_calls") > 0);
    assert!(count(&report, "/faults/kill") > 0);
}

#[test]
fn processes_over_udp_with_a_new_seed() {
    let _turn = turn();
    let report = chaos(&["run", "--seconds", "15", "--transport", "udp"]);
    assert!(count(&report, "/outcomes/complete") > 0);
    assert!(count(&report, "/datagrams/dropped") > 0);
}

#[test]
fn no_call_over_a_lossy_network_fails() {
    let report = chaos(&["loss", "--calls", "300"]);
    for row in 0..3 {
        assert_eq!(count(&report, &format!("/rows/{row}/calls")), 300);
        assert_eq!(count(&report, &format!("/rows/{row}/failed")), 0);
    }
    for fault in ["dropped", "duplicated", "reordered", "corrupted"] {
        assert!(count(&report, &format!("/datagrams/{fault}")) > 0);
    }
}

/// How quickly is measured where nothing else runs; here, that it happens.
#[test]
fn every_kind_of_end_is_detected() {
    for transport in ["tcp", "udp", "unix", "shm"] {
        let arguments = ["detect", "--times", "2", "--lanes", "2", "--margin-ms"];
        let report = chaos(&[&arguments[..], &["20000", "--transport", transport]].concat());
        let rows = report["rows"].as_array().expect("rows");
        assert!(rows.len() >= 6, "{report}");
        assert!(rows.iter().all(|row| row["times"] == 2), "{report}");
    }
}

#[test]
fn a_director_that_is_killed_takes_its_processes_with_it() {
    let _turn = turn();
    let mut director = start();
    let children = children(&director);
    director.kill().expect("it runs");
    director.wait().expect("it was not waited for");
    until("all processes have ended", || {
        !children.iter().any(is_alive)
    });
}

#[test]
fn a_director_that_is_interrupted_cleans_up() {
    let _turn = turn();
    let mut director = start();
    let children = children(&director);
    let name = format!("wallaby-chaos-{}-", director.id());
    let places = [PathBuf::from("/dev/shm"), std::env::temp_dir()];
    let folders = || {
        let all = places
            .iter()
            .flat_map(|place| fs::read_dir(place).expect("it is there"));
        all.flatten()
            .filter(|entry| entry.file_name().to_string_lossy().starts_with(&name))
    };
    assert_eq!(folders().count(), 1);
    signal("INT", director.id());
    let status = director.wait().expect("it was not waited for");
    assert_eq!(status.code(), Some(130));
    until("all processes have ended", || {
        !children.iter().any(is_alive)
    });
    assert_eq!(folders().count(), 0);
}

#[test]
fn what_makes_no_sense_is_refused() {
    for arguments in [
        &["run", "--transport", "pigeon"][..],
        &["run", "--servers", "1"],
        &["run", "--transport", "unix", "--network", "namespaces"],
        &["run", "--transport", "shm", "--network", "namespaces"],
        &["process", "{}"],
        &["loss", "--calls", "0"],
        &["hostile", "--attack", "politeness"],
        &["hostile", "--rate", "0"],
    ] {
        let output = Command::new(PROGRAM).args(arguments).output();
        let output = output.expect("the program starts");
        assert!(!output.status.success(), "{arguments:?}");
        assert!(output.stdout.is_empty() && !output.stderr.is_empty());
    }
}

/// A director with all its processes running.
fn start() -> Child {
    let director = Command::new(PROGRAM)
        .args(["run", "--seconds", "60", "--servers", "2", "--clients", "1"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the program starts");
    until("it has started its processes", || {
        children(&director).len() >= 3
    });
    director
}

fn children(director: &Child) -> Vec<u32> {
    let processes = fs::read_dir("/proc").expect("Linux").flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid| stat(*pid).is_some_and(|(_, parent)| parent == director.id()))
        .collect()
}

/// A process that has ended may be there until somebody asks how.
fn is_alive(pid: &u32) -> bool {
    stat(*pid).is_some_and(|(state, _)| state != "Z")
}

/// State and parent of a process.
fn stat(pid: u32) -> Option<(String, u32)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    let state = fields.next()?.to_owned();
    Some((state, fields.next()?.parse().ok()?))
}

fn until(what: &str, done: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !done() {
        assert!(Instant::now() < end, "not in a minute: {what}");
        std::thread::yield_now();
    }
}
