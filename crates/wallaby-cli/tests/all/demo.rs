//! `wallaby demo` as its users run it: as a program, on a small folder.
#![allow(clippy::unwrap_used, reason = "a test that fails says where")]

use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio};
use std::sync::mpsc;
use std::time::Duration;

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
        assert_eq!(report["traces"]["dpc"]["hops"].as_array().unwrap().len(), 6);
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
    let servers = ["serve", "documents", "--docs", ".", "--shard", "5/4"];
    for arguments in [
        &servers[..],
        &["--servers", "0"],
        &["--link", "fast"],
        &["search", "hop"],
        &["--json", "-i"],
    ] {
        let output = wallaby().args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{output:?}");
    }
}

/// A server that is started by hand and ends with the test.
struct Server {
    child: Child,
    address: String,
}

impl Server {
    fn start(arguments: &[&str]) -> Self {
        let mut child = wallaby()
            .arg("serve")
            .args(arguments)
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut address = String::new();
        BufReader::new(child.stdout.as_mut().unwrap())
            .read_line(&mut address)
            .unwrap();
        assert!(address.starts_with("tcp://127.0.0.1:"), "{address:?}");
        Self {
            child,
            address: address.trim_end().to_owned(),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn signal(name: &str, process: u32) {
    let process = process.to_string();
    assert!(
        Command::new("kill")
            .args(["-s", name, &process])
            .status()
            .unwrap()
            .success()
    );
}

struct ByHand {
    index: Server,
    documents: Vec<Server>,
}

fn by_hand(name: &str) -> ByHand {
    let folder = folder(name);
    let folder = folder.to_str().unwrap();
    let documents: Vec<_> = ["1/2", "2/2"]
        .map(|shard| Server::start(&["documents", "--docs", folder, "--shard", shard]))
        .into_iter()
        .collect();
    let addresses: Vec<_> = documents
        .iter()
        .map(|server| server.address.as_str())
        .collect();
    let index = Server::start(&["index", "--documents", &addresses.join(",")]);
    ByHand { index, documents }
}

fn search(index: &Server, options: &[&str]) -> Output {
    wallaby()
        .args(["search", "--index", &index.address, "hop"])
        .args(options)
        .output()
        .unwrap()
}

#[test]
fn servers_by_hand_answer_and_killed_ones_are_named() {
    let ByHand {
        index,
        mut documents,
    } = by_hand("killed");
    for options in [&["--json"][..], &["--json", "--rpc"]] {
        let output = search(&index, options);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        assert_eq!(paths(&json(&output)).len(), 5);
    }

    let gone = documents.pop().unwrap();
    let address = gone.address.clone();
    drop(gone);
    for options in [&["--json"][..], &["--json", "--rpc"]] {
        let output = search(&index, options);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let found = json(&output);
        let errors = found["answers"][0]["errors"].to_string();
        assert!(
            errors.contains(&address) && !errors.contains("no complete answer"),
            "{errors}"
        );
        // Those that live answer all the same.
        let alive = &found["answers"][0]["documents"];
        assert!(
            alive
                .as_array()
                .unwrap()
                .iter()
                .all(|document| document["server"] != address.as_str())
        );
    }

    let address = index.address.clone();
    drop(index);
    let output = wallaby()
        .args(["search", "--index", &address, "hop"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        String::from_utf8_lossy(&output.stdout).contains(&address),
        "{output:?}"
    );
}

#[test]
fn stopped_servers_are_named_at_the_deadline() {
    let ByHand { index, documents } = by_hand("stopped");
    signal("STOP", documents[0].child.id());
    for options in [
        &["--json", "--deadline", "1s"][..],
        &["--json", "--rpc", "--deadline", "1s"],
    ] {
        let output = search(&index, options);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let errors = json(&output)["answers"][0]["errors"].to_string();
        assert!(errors.contains(&documents[0].address), "{errors}");
        assert!(errors.contains("within 1 s"), "{errors}");
    }
    signal("CONT", documents[0].child.id());
    assert_eq!(search(&index, &[]).status.code(), Some(0));

    signal("STOP", index.child.id());
    let output = search(&index, &["--deadline", "1s"]);
    assert_eq!(output.status.code(), Some(1));
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        shown.contains(&index.address) && shown.contains("within 1 s"),
        "{shown}"
    );
}

#[test]
fn an_index_without_its_servers_says_so() {
    let output = wallaby()
        .args(["serve", "index", "--documents", "tcp://127.0.0.1:1"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("tcp://127.0.0.1:1"), "{output:?}");
}

/// A demo that waits for words.
struct Waiting {
    demo: Child,
    /// Held open: the end of its input would end it too.
    _input: ChildStdin,
    /// The first of its servers.
    server: u32,
    /// Ends when the last process that could write to it has ended.
    output: BufReader<ChildStdout>,
}

fn waiting_demo(name: &str) -> Waiting {
    // Descriptor 9 goes on to every process that the demo starts, as nobody closes it.
    let script = r#"exec "$0" demo --interactive --docs "$1" 9>&1"#;
    let mut demo = Command::new("sh")
        .args(["-c", script, env!("CARGO_BIN_EXE_wallaby")])
        .arg(folder(name))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut output = BufReader::new(demo.stdout.take().unwrap());
    let mut servers = Vec::new();
    let mut line = String::new();
    while !line.contains("Type a word") {
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
    Waiting {
        _input: demo.stdin.take().unwrap(),
        demo,
        server: servers[0],
        output,
    }
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
        let Waiting {
            mut demo,
            server,
            output,
            _input,
        } = waiting_demo(name);
        // A stopped process must end too.
        signal("STOP", server);
        signal(name, demo.id());
        assert_eq!(demo.wait().unwrap().code(), Some(130));
        assert!(all_end(output));
    }
}

#[test]
fn servers_do_not_outlive_a_killed_demo() {
    let Waiting {
        mut demo,
        server,
        output,
        _input,
    } = waiting_demo("killed-demo");
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
