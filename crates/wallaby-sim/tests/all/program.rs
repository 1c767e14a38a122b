//! The command line: exit statuses, the JSON object, and the command that replays a failing seed.

use std::process::{Command, Output};

fn sim(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_wallaby-sim"));
    command.args(arguments).output().expect("the program runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("it prints text")
}

#[test]
fn a_summary_is_one_json_object() {
    let output = sim(&["--seeds", "20", "--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let object: serde_json::Value = serde_json::from_slice(&output.stdout).expect("it is JSON");
    assert_eq!(object["seeds"], 20);
    assert_eq!(object["violations"], serde_json::json!([]));
    let ended: u64 = [
        "completed",
        "failed",
        "aborted",
        "deadline",
        "too_large",
        "initiator_gone",
    ]
    .iter()
    .map(|field| object[*field].as_u64().expect("a count"))
    .sum();
    assert_eq!(object["calls"].as_u64(), Some(ended));
    assert!(object["uncovered"].is_array() && object["faults"].is_object());
    assert!(object["virtual_s"].as_f64() > object["wall_s"].as_f64());
}

#[test]
fn a_violation_is_exit_status_1_with_the_command_that_replays_it() {
    let output = sim(&["--seeds", "20", "--broken", "counts-alone"]);
    assert_eq!(output.status.code(), Some(1));
    let shown = text(&output.stderr);
    let replay = shown
        .lines()
        .find_map(|line| line.strip_prefix("replay: cargo run -p wallaby-sim --profile sim -- "));
    let arguments: Vec<&str> = replay.expect("the command is shown").split(' ').collect();
    let again = sim(&arguments);
    assert_eq!(again.status.code(), Some(1));
    assert!(
        text(&again.stdout).contains("violation: EarlyCompletion"),
        "{}",
        text(&again.stdout)
    );
    assert_eq!(
        sim(&arguments).stdout,
        again.stdout,
        "it is the same each time"
    );
}

#[test]
fn a_log_shows_the_plan_and_what_happened() {
    let output = sim(&["--seed", "1", "--log"]);
    assert_eq!(output.status.code(), Some(0));
    let shown = text(&output.stdout);
    for part in [
        "links: ",
        "node n0: ",
        "call c0: ",
        "begins",
        "gets request",
    ] {
        assert!(shown.contains(part), "no {part:?} in\n{shown}");
    }
}

#[test]
fn bad_usage_is_exit_status_2() {
    for arguments in [
        &["--seeds", "none"][..],
        &["--log"],
        &["--seed", "1", "--seeds", "2"],
        &["--seeds", "0"],
    ] {
        assert_eq!(sim(arguments).status.code(), Some(2), "{arguments:?}");
    }
}
