//! `wallaby demo` as its users run it: as a program, on a small folder.
#![allow(clippy::unwrap_used, reason = "a test that fails says where")]

use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::sync::mpsc;
use std::time::Duration;
use wallaby_program::testing::signal;

const TEXTS: [(&str, &str); 6] = [
    (
        "kangaroo.md",
        "# Kangaroos\nA kangaroo goes by hop.\nHop, hop, hop: that is its gait.",
    ),
    (
        "wallaby.md",
        "# Wallabies\nSmaller than a kangaroo, but each hop counts.",
    ),
    ("frog.txt", "A frog may hop or swim."),
    ("sub/train.txt", "A train does neither; you hop on."),
    ("sub/beer.txt", "Beer needs a hop or two."),
    ("sub/stone.txt", "A stone lies still."),
];

fn wallaby() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_wallaby"));
    command
        .arg("demo")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// A folder of its own for each test, filled with the texts.
fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::create_dir_all(folder.join("sub")).unwrap();
    for (path, text) in TEXTS {
        fs::write(folder.join(path), text).unwrap();
    }
    folder
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The paths found for the first word, best first.
fn paths(found: &Value) -> Vec<&str> {
    let documents = found["answers"][0]["documents"].as_array().unwrap();
    documents
        .iter()
        .map(|document| document["path"].as_str().unwrap())
        .collect()
}

#[test]
fn the_whole_demo_as_json() {
    for transport in ["tcp", "unix", "shm", "tls"] {
        let output = wallaby()
            .args([
                "--json",
                "--rounds",
                "2",
                "--servers",
                "3",
                "--transport",
                transport,
                "Hop",
                "stone",
            ])
            .arg("--docs")
            .arg(folder(transport))
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let report = json(&output);
        assert_eq!(report["collection"]["documents"], 6);
        assert_eq!(report["collection"]["servers"].as_array().unwrap().len(), 4);
        assert_eq!(paths(&report)[0], "kangaroo.md", "{report:#}");
        assert_eq!(paths(&report).len(), 5);
        assert_eq!(report["answers"][0]["documents"][0]["snippet"]["line"], 3);
        let comparison = &report["comparison"];
        assert_eq!(comparison["queries"], 4);
        assert_eq!(comparison["same_answers"], true);
        // One request for each word, whatever is found; by plain RPC one more for each document.
        assert_eq!(
            comparison["dpc"]["client_messages_sent"], 1.0,
            "{comparison:#}"
        );
        assert_eq!(
            comparison["rpc"]["client_messages_sent"], 4.0,
            "{comparison:#}"
        );
        let tree = report["traced"]["tree"].as_str().unwrap();
        assert_eq!(tree.matches("Documents/excerpt").count(), 5, "{tree}");
        check_chain(&report["chain"]);
    }
}

/// The chain goes from server to server, the calls come back to the client each time; both come to the same.
fn check_chain(chain: &Value) {
    assert_eq!(chain["document"], "kangaroo.md", "{chain:#}");
    let answer = "Only kangaroo.md says “kangaroos”";
    assert!(
        chain["answer"].as_str().unwrap().contains(answer),
        "{chain:#}"
    );
    assert_eq!(chain["same_answers"], true);
    assert_eq!(chain["link_us"], 20_000.0);
    let code = chain["code"].as_str().unwrap();
    assert!(code.contains("fn choose"), "{code}");
    let way = |way: &str| {
        let messages = chain[way]["messages"].as_array().unwrap();
        let pair = |message: &Value| format!("{} to {}", message["from"], message["to"]);
        messages
            .iter()
            .map(pair)
            .collect::<Vec<_>>()
            .join(", ")
            .replace('"', "")
    };
    assert_eq!(
        way("chain"),
        "client to archive, archive to counter, counter to quotes, quotes to client"
    );
    assert_eq!(
        way("calls"),
        "client to archive, archive to client, client to counter, counter to client, client to quotes, quotes to client"
    );
}

/// What people see of it.
#[test]
fn the_chain_is_drawn() {
    let mut demo = wallaby();
    demo.args([
        "--rounds",
        "1",
        "--servers",
        "1",
        "--link",
        "1ms",
        "hop",
        "--docs",
    ]);
    let folder = folder("drawn");
    fs::write(folder.join("more.txt"), "Kangaroos live elsewhere.").unwrap();
    let output = demo.arg(folder).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    for line in [
        "fn choose(state, words) {",
        "archive   counter",
        "├────────▶│         │         │",
        "│◀────────┼─────────┼─────────┤",
        "kangaroo.md is about “kangaroos”. more.txt:1 says: Kangaroos live elsewhere.",
        "so these take 4 ms and 6 ms at least",
    ] {
        assert!(text.contains(line), "{line} is not in {text}");
    }
}

#[test]
fn an_empty_folder_is_no_failure_and_a_missing_one_is() {
    let empty = Path::new(env!("CARGO_TARGET_TMPDIR")).join("empty");
    fs::create_dir_all(&empty).unwrap();
    let run = |folder: &Path| {
        wallaby()
            .args(["--json", "--docs"])
            .arg(folder)
            .output()
            .unwrap()
    };
    let output = run(&empty);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(json(&output)["comparison"], Value::Null);
    let output = run(&empty.join("missing"));
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).contains("missing can't be read"),
        "{output:?}"
    );
}

#[test]
fn wrong_usage_has_its_own_status() {
    for arguments in [
        ["--servers", "0"],
        ["--link", "fast"],
        ["--transport", "smoke"],
    ] {
        let output = wallaby().args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{output:?}");
    }
}

/// A demo that measures, for seconds.
struct Measuring {
    demo: Child,
    /// The first of its servers.
    server: u32,
    /// Ends when the last process that could write to it has ended.
    output: BufReader<ChildStdout>,
}

fn measuring_demo(name: &str) -> Measuring {
    // Descriptor 9 goes on to every process that the demo starts, as nobody closes it.
    let script =
        r#"exec "$0" demo --rounds 100000 --deadline 1s --docs "$1" hop 9>&1 2>"$1.errors""#;
    let mut demo = Command::new("sh")
        .args(["-c", script, env!("CARGO_BIN_EXE_wallaby")])
        .arg(folder(name))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = BufReader::new(demo.stdout.take().unwrap());
    let mut servers = Vec::new();
    let mut line = String::new();
    while !line.contains("Each word by one call") {
        line.clear();
        assert_ne!(
            output.read_line(&mut line).unwrap(),
            0,
            "the demo ended early"
        );
        servers.extend(
            line.split_once("process ")
                .map(|(_, process)| process.trim().parse::<u32>().unwrap()),
        );
    }
    assert_eq!(servers.len(), 5);
    Measuring {
        demo,
        server: servers[0],
        output,
    }
}

/// What a demo says that cannot go on, after something happened to its first server.
fn complaint(name: &str, what: &str) -> String {
    let Measuring {
        mut demo,
        server,
        output,
    } = measuring_demo(name);
    signal(what, server);
    assert_eq!(demo.wait().unwrap().code(), Some(1));
    assert!(all_end(output));
    fs::read_to_string(folder(name).with_extension("errors")).unwrap()
}

#[test]
fn a_killed_server_is_named() {
    let complaint = complaint("killed", "KILL");
    assert!(
        complaint.contains("documents 1 was killed by signal 9"),
        "{complaint}"
    );
}

#[test]
fn a_stopped_server_is_named_at_the_deadline() {
    let complaint = complaint("stopped", "STOP");
    assert!(
        complaint.contains("documents 1 (tcp://127.0.0.1:") && complaint.contains("within 1 s"),
        "{complaint}"
    );
}

/// Waits for the end of all processes that may write to `output`.
fn all_end(mut output: BufReader<ChildStdout>) -> bool {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || sender.send(output.read_to_end(&mut Vec::new()).is_ok()));
    receiver
        .recv_timeout(Duration::from_secs(60))
        .unwrap_or(false)
}

#[test]
fn an_interrupt_ends_every_process() {
    for name in ["INT", "TERM"] {
        let Measuring {
            mut demo,
            server,
            output,
        } = measuring_demo(name);
        // A stopped process must end too.
        signal("STOP", server);
        signal(name, demo.id());
        assert_eq!(demo.wait().unwrap().code(), Some(130));
        assert!(all_end(output));
    }
}

#[test]
fn servers_do_not_outlive_a_killed_demo() {
    let Measuring {
        mut demo,
        server,
        output,
    } = measuring_demo("killed-demo");
    signal("STOP", server);
    demo.kill().unwrap();
    demo.wait().unwrap();
    assert!(all_end(output));
}

#[test]
fn a_reader_that_leaves_ends_the_demo_quietly() {
    let mut demo = wallaby()
        .args(["--rounds", "1", "hop", "--docs"])
        .arg(folder("leaves"))
        .spawn()
        .unwrap();
    drop(demo.stdout.take());
    let mut complaints = String::new();
    demo.stderr
        .take()
        .unwrap()
        .read_to_string(&mut complaints)
        .unwrap();
    assert_eq!(demo.wait().unwrap().code(), Some(0), "{complaints}");
    assert!(!complaints.contains("error"), "{complaints}");
}
