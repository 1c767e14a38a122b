//! `wallaby-graph` as its users run it: as a program, with servers that are processes.
#![allow(clippy::unwrap_used, reason = "a test that fails says where")]

use crate::common::files::{write_compressed, write_snapshot, write_streams};
use crate::common::{Reference, network, store};
use flate2::read::GzDecoder;
use serde_json::{Value, json};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::iter;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Instant;
use wallaby::{Address, Endpoint};
use wallaby_graph::client::Client;
use wallaby_graph::insert::insert;
use wallaby_graph::model::Insert;
use wallaby_graph::placement::Placement;
use wallaby_graph::query::{Form, Query};
use wallaby_program::testing::{check_that_a_reader_may_leave, start, stdout};

fn program(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_wallaby-graph"));
    command.args(arguments).stdin(Stdio::null());
    command
}

fn run(arguments: &[&str]) -> Output {
    program(arguments).output().unwrap()
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Files of expected results: all that the reference says, some of them.
fn expect(folder: &Path, reference: &Reference) -> Vec<String> {
    let lines = reference.queries().into_iter().step_by(5).map(|query| {
        let (name, about, id) = query.parts();
        let parameter = format!("{about}Id");
        let name = name.to_uppercase();
        let result = reference.result(query);
        json!({"query": name, "params": {parameter: id}, "result": result}).to_string()
    });
    let lines: Vec<String> = lines.collect();
    write_compressed(&folder.join("expected.jsonl.gz"), &lines.join("\n"));
    lines
}

#[test]
fn check_compares_all_results_with_those_that_are_expected() {
    let inserts = network(30, 21);
    let scratch = tempfile::tempdir().unwrap();
    let folder = scratch.path();
    let (snapshot, updates) = inserts.split_at(inserts.len() / 2);
    write_snapshot(folder, snapshot);
    let updates = write_streams(folder, updates);
    let expected = folder.join("expected.jsonl.gz");
    let data = text(folder);

    for (count, servers) in [(0, "1"), (updates.len() / 3, "3"), (updates.len(), "4")] {
        let mut reference = Reference::of(snapshot);
        updates[..count]
            .iter()
            .for_each(|one| reference.insert(one.clone()));
        let lines = expect(folder, &reference);
        let number = match count == updates.len() {
            true => "all".to_owned(),
            false => count.to_string(),
        };
        let output = run(&[
            "check",
            text(&expected),
            "--data",
            data,
            "--updates",
            &number,
            "--servers",
            servers,
        ]);
        let last = format!("{} checked, 0 mismatches\n", lines.len());
        assert_eq!(stdout(&output), last, "after {number} updates");
    }

    let wrong = folder.join("wrong.jsonl");
    let line = r#"{"query":"IS3","params":{"personId":8},"result":[["no"]]}"#;
    fs::write(
        &wrong,
        format!("{line}\n{{\"query\":\"IS1\",\"params\":{{\"personId\":-1}},\"result\":[]}}\n"),
    )
    .unwrap();
    let output = run(&["check", text(&wrong), "--data", data]);
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(
        said.contains("wrong.jsonl, line 1: IS3 {\"personId\":8} by DPC found"),
        "{said}"
    );
    assert!(said.ends_with("\n2 checked, 1 mismatches\n"), "{said}");
}

/// A cluster that is killed when this is dropped.
struct Up(Child);

impl Up {
    fn start(store: &str, servers: &str) -> Self {
        Self::start_with(store, &["--servers", servers])
    }

    fn start_with(store: &str, more: &[&str]) -> Self {
        let mut command = program(&[&["up", "--store", store], more].concat());
        Self(start(command.stderr(Stdio::piped()), "serving"))
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
        // The servers have this, too: it ends when all of them have, and nobody has the store.
        let mut said = String::new();
        let stderr = self.0.stderr.take().unwrap();
        BufReader::new(stderr).read_to_string(&mut said).unwrap();
        print!("{said}");
    }
}

#[test]
fn a_store_is_loaded_once_and_served_by_any_number_of_servers() {
    let reference = Reference::of(&network(30, 22));
    let scratch = tempfile::tempdir().unwrap();
    let store = text(scratch.path());
    let load = ["load", "--generate", "30", "--seed", "22", "--store", store];
    assert!(stdout(&run(&load)).contains("30 persons"));
    assert!(stdout(&run(&load)).contains("loaded already"));
    for servers in ["2", "3"] {
        // The first one is killed; its servers end with it.
        let _up = Up::start(store, servers);
        for query in reference.queries().into_iter().step_by(37) {
            for form in [&[][..], &["--rpc"]] {
                let words = query.to_string();
                let words: Vec<&str> = words.split(' ').collect();
                let ask = [&["query", "--json", "--store", store], &words[..], form].concat();
                let rows: Vec<Value> = stdout(&run(&ask))
                    .lines()
                    .map(|row| serde_json::from_str(row).unwrap())
                    .collect();
                assert_eq!(
                    Value::from(rows),
                    reference.result(query),
                    "{query} {form:?}"
                );
            }
        }
    }
}

#[test]
fn links_are_emulated() {
    const LINK: u128 = 20_000;
    let scratch = tempfile::tempdir().unwrap();
    let store = text(scratch.path());
    stdout(&run(&["load", "--generate", "30", "--store", store]));
    let _up = Up::start_with(store, &["--servers", "2", "--link", "20ms"]);
    let page = fs::read_to_string(scratch.path().join("cluster.json")).unwrap();
    assert!(page.contains(&format!("\"link_us\": {LINK}")), "{page}");
    // The request is on its way once, and the answer once.
    let begun = Instant::now();
    let ask = ["query", "is1", "--person", "0", "--store", store];
    run(&ask);
    assert!(begun.elapsed().as_micros() >= 2 * LINK);
}

#[test]
fn explain_draws_the_tree_as_it_ran() {
    let reference = Reference::of(&network(30, 23));
    let most = |query: &Query| reference.result(*query).as_array().unwrap().len();
    let queries = reference.queries().into_iter();
    let query = queries
        .filter(|query| matches!(query, Query::Is7(_)))
        .max_by_key(most)
        .unwrap();
    let replies = most(&query);
    let scratch = tempfile::tempdir().unwrap();
    let store = text(scratch.path());
    stdout(&run(&[
        "load",
        "--generate",
        "30",
        "--seed",
        "23",
        "--store",
        store,
    ]));
    let _up = Up::start(store, "4");
    let words = query.to_string();
    let explain: Vec<&str> = ["explain", "--store", store]
        .into_iter()
        .chain(words.split(' '))
        .collect();
    let drawn = stdout(&run(&explain));
    let hops = |method| drawn.lines().filter(|line| line.contains(method)).count();
    assert_eq!(hops("└─ Replies/message"), 1, "{drawn}");
    // Each of the other servers is asked once by the first one, and once at most by each of these.
    let onward = hops("─ Replies/onward");
    assert!((1..=3 + 3 * 3).contains(&onward), "{drawn}");
    assert!(drawn.contains(&format!("{} hops, ", 1 + onward)), "{drawn}");
    assert!(
        drawn.contains(&format!("DPC: {replies} rows in ")),
        "{drawn}"
    );
}

#[test]
fn mistakes_are_told() {
    let scratch = tempfile::tempdir().unwrap();
    let store = text(scratch.path());
    let says = |arguments: &[&str], code: i32, words: &str| {
        let output = run(arguments);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{said}");
        assert!(said.contains(words), "{said}");
    };
    says(
        &["query", "is2", "--person", "1", "--store", store],
        1,
        "no cluster serves",
    );
    says(&["query", "is2", "--message", "1"], 2, "--person");
    says(&["up", "--link", "1h"], 2, "'1h' is too long");
    says(&["query", "is9", "--message", "1"], 2, "is9");
    says(&["up", "--store", store], 1, "nothing was loaded");
    says(&["load", store, "--store", store], 1, "no data set");
    fs::write(scratch.path().join("person_0_0.csv"), "id\n1|A\n").unwrap();
    says(
        &["load", store, "--store", store],
        1,
        "person_0_0.csv, line 2",
    );
    says(
        &["load", store, "--store", store],
        1,
        "note: the data set has no file 'post'",
    );
    fs::write(scratch.path().join("forum_0_0.csv"), b"id\n1|\xff\xfe\n").unwrap();
    fs::write(scratch.path().join("person_0_0.csv"), "id\n").unwrap();
    says(
        &["load", store, "--store", store],
        1,
        "forum_0_0.csv, line 2: can't be read",
    );
    says(&["up", "--store", store], 1, "nothing was loaded");
    stdout(&run(&["load", "--generate", "20", "--store", store]));
    let _up = Up::start(store, "1");
    let again = ["load", "--replace", "--generate", "20", "--store", store];
    says(&again, 1, "in use by another process, perhaps by a cluster");
}

/// A server, as other commands start it.
struct Serving {
    child: Child,
    address: Address,
}

impl Serving {
    /// Starts the server of a whole store, and waits until it serves.
    fn start(store: &str) -> Self {
        let listen = "tcp://127.0.0.1:0";
        let serve = [
            "serve", "--store", store, "--seat", "1/1", "--listen", listen,
        ];
        let mut command = program(&serve);
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let address = lines.next().unwrap().unwrap();
        let input = child.stdin.as_mut().unwrap();
        writeln!(input, "[\"{address}\"]").unwrap();
        assert_eq!(lines.next().unwrap().unwrap(), "serving");
        let address = address.parse().unwrap();
        Self { child, address }
    }

    async fn client(&self) -> Client {
        let placement = Placement::new(vec![self.address.clone()]).unwrap();
        Client::new(Endpoint::client().unwrap(), placement)
    }

    /// Ends it as who started it does; what it said.
    fn end(self) -> String {
        let output = self.child.wait_with_output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    }
}

#[tokio::test]
async fn an_insert_that_was_acknowledged_outlives_a_server_that_is_killed() {
    let inserts = network(20, 24);
    let (loaded, inserted) = inserts.split_at(inserts.len() / 2);
    let reference = Reference::of(&inserts);
    let (scratch, _store) = store(loaded);
    let folder = text(scratch.path());
    for some in inserted.chunks(inserted.len() / 3) {
        let mut server = Serving::start(folder);
        let client = server.client().await;
        for one in some {
            insert(&client, one.clone()).await.unwrap();
        }
        // By SIGKILL.
        server.child.kill().unwrap();
        server.child.wait().unwrap();
    }
    let server = Serving::start(folder);
    let client = server.client().await;
    for query in reference.queries() {
        let found = query.ask(Form::Dpc, &client).await.unwrap().rows;
        let found: Value = found.into_iter().map(Value::from).collect();
        assert_eq!(found, reference.result(query), "{query}");
    }
    assert_eq!(server.end(), "");
}

#[test]
fn a_damaged_store_is_not_served() {
    let scratch = tempfile::tempdir().unwrap();
    let store = text(scratch.path());
    let load = ["load", "--generate", "20", "--store", store];
    stdout(&run(&load));
    let file = scratch.path().join("007.redb");
    let whole = fs::read(&file).unwrap();
    fs::write(&file, &whole[..whole.len() / 2]).unwrap();
    let up = run(&["up", "--servers", "2", "--store", store]);
    let said = String::from_utf8_lossy(&up.stderr);
    let damaged = format!("{} is damaged: ", text(&file));
    assert!(!up.status.success() && said.contains(&damaged), "{said}");
    fs::write(scratch.path().join("graph.json"), "{}").unwrap();
    let said = run(&load);
    assert!(String::from_utf8_lossy(&said.stderr).contains("--replace"));
    stdout(&run(&[&load[..], &["--replace"]].concat()));
    assert_eq!(Serving::start(store).end(), "");
}

#[test]
fn the_demo_runs() {
    let shown = stdout(&run(&["demo", "--persons", "40", "--servers", "2"]));
    for part in [
        "40 persons",
        "RecentMessages/person",
        "Replies/onward",
        "RPC:",
    ] {
        assert!(shown.contains(part), "{shown}");
    }
}

#[test]
fn a_reader_who_has_had_enough_ends_it_without_a_word() {
    let scratch = tempfile::tempdir().unwrap();
    let store = scratch.path().join("store");
    let load = ["load", "--generate", "10", "--store", text(&store)];
    check_that_a_reader_may_leave(&mut program(&load));
}

#[test]
fn a_data_set_that_is_not_whole_is_not_loaded() {
    let scratch = tempfile::tempdir().unwrap();
    let (data, store) = (scratch.path().join("data"), scratch.path().join("store"));
    fs::create_dir(&data).unwrap();
    let inserts = network(10, 4);
    write_snapshot(&data, &inserts);
    let person = "person_0_0.csv";
    let gone = inserts.iter().find_map(|insert| match insert {
        Insert::Friendship(one, ..) => Some(one.0),
        _ => None,
    });
    let gone = gone.unwrap();
    let load = || run(&["load", text(&data), "--store", text(&store)]);
    let whole = read_any(&data, person);
    let lines = || whole.lines().map(str::to_owned);
    let starts = |line: &String| line.starts_with(&format!("{gone}|"));
    let says = |words: &str| {
        let output = load();
        let told = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{told}");
        assert!(told.contains(words), "{told}");
    };

    write_any(&data, person, lines().filter(|line| !starts(line)));
    says(&format!("person {gone}, is missing"));
    says("_0_0.csv");
    says(", line ");
    let twice = lines().chain(lines().filter(starts));
    write_any(&data, person, twice);
    let last = whole.lines().count() + 1;
    says(&format!("line {last}: person {gone} is there already"));
    write_any(&data, person, lines());
    assert!(load().status.success());

    let expected = scratch.path().join("expected.jsonl");
    fs::write(&expected, "").unwrap();
    let stream = format!("7|0|5|77|{gone}|7");
    write_any(&data, "updateStream_0_0_forum.csv", iter::once(stream));
    let check = ["check", text(&expected), "--data", text(&data)];
    let output = run(&[&check[..], &["--updates", "1"]].concat());
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{told}");
    let words = "updateStream_0_0_forum.csv, line 1: its forum, 77, is missing";
    assert!(told.contains(words), "{told}");
}

/// A file of a data set, compressed or not.
fn read_any(folder: &Path, name: &str) -> String {
    let compressed = folder.join(format!("{name}.gz"));
    match compressed.exists() {
        false => fs::read_to_string(folder.join(name)).unwrap(),
        true => {
            let mut text = String::new();
            let mut file = GzDecoder::new(fs::File::open(compressed).unwrap());
            file.read_to_string(&mut text).unwrap();
            text
        }
    }
}

/// Writes one that is not compressed in its place.
fn write_any(folder: &Path, name: &str, lines: impl Iterator<Item = String>) {
    let _ = fs::remove_file(folder.join(format!("{name}.gz")));
    let lines: Vec<String> = lines.collect();
    fs::write(folder.join(name), lines.join("\n")).unwrap();
}
