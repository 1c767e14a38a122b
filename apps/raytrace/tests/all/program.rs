//! `wallaby-raytrace` as its users run it: as a program, with servers that are processes.
#![allow(clippy::unwrap_used, reason = "a test that fails says where")]

use crate::common::{Folder, cornell_box};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStderr, Command, Output, Stdio};
use wallaby_program::testing::{check_that_a_reader_may_leave, signal, stdout};

fn program(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_wallaby-raytrace"));
    command.args(arguments).stdin(Stdio::null());
    command
}

fn run(arguments: &[&str]) -> Output {
    program(arguments).output().unwrap()
}

const SMALL: [&str; 6] = ["--size", "32x24", "--samples", "4", "--seed", "3"];

#[test]
fn pictures_are_the_same_files_however_they_are_made() {
    let folder = Folder::new();
    let out = |name: &str| folder.file(name);
    let local = out("local.png");
    stdout(&run(&[
        &["render", "box:3000", "--local", "--out", &local],
        &SMALL[..],
    ]
    .concat()));
    let expected = std::fs::read(&local).unwrap();
    let same = |name: &str, arguments: &[&str]| {
        let out = out(name);
        let json = stdout(&run(
            &[arguments, &["--json", "--out", &out], &SMALL].concat()
        ));
        let about: Value = serde_json::from_str(&json).unwrap();
        assert_eq!(
            (about["width"].as_u64(), about["paths"].as_u64()),
            (Some(32), Some(3072))
        );
        assert!(std::fs::read(&out).unwrap() == expected, "{arguments:?}");
    };
    same("a.png", &["render", "box:3000", "--servers", "4"]);
    same(
        "b.png",
        &[
            "render",
            "box:3000",
            "--servers",
            "9",
            "--batch",
            "50",
            "--rpc",
        ],
    );
    same(
        "c.png",
        &["render", "box:3000", "--servers", "3", "--link", "300us"],
    );
}

/// A picture that would take hours, and its standard error.
fn endless(out: &str, more: &[&str]) -> (Child, BufReader<ChildStderr>) {
    let endless = ["render", "box:3000", "--samples", "65536", "--out", out];
    let mut render = program(&[&endless[..], more].concat())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(render.stderr.take().unwrap());
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    assert!(line.contains("first light"), "{line}");
    (render, said)
}

/// The processes that another one has started, in this order.
fn children(of: u32) -> Vec<u32> {
    let told = std::fs::read_to_string(format!("/proc/{of}/task/{of}/children")).unwrap();
    let told = told.split_whitespace();
    told.map(|process| process.parse().unwrap()).collect()
}

#[test]
fn a_server_that_is_killed_in_the_middle_of_a_picture_is_named_with_its_way() {
    for form in [&[][..], &["--rpc"]] {
        let folder = Folder::new();
        let (mut render, mut said) = endless(&folder.file("never.png"), form);
        signal("KILL", children(render.id())[2]);
        let mut error = String::new();
        said.read_to_string(&mut error).unwrap();
        assert_eq!(render.wait().unwrap().code(), Some(3), "{error}");
        let error = error.lines().last().unwrap();
        assert!(error.contains("server 3 (tcp://"), "{error}");
        assert!(error.contains("rays came to it by client"), "{error}");
    }
}

#[test]
fn interrupted_or_killed_it_leaves_nothing_behind() {
    for (name, status) in [("INT", Some(130)), ("TERM", Some(130)), ("KILL", None)] {
        let folder = Folder::new();
        let out = folder.file("never.png");
        let (mut render, mut said) = endless(&out, &[]);
        signal(name, render.id());
        // The servers have this, too: it ends when all of them have.
        let mut rest = String::new();
        said.read_to_string(&mut rest).unwrap();
        assert_eq!(render.wait().unwrap().code(), status, "{rest}");
        let left = std::fs::read_dir(std::path::Path::new(&out).parent().unwrap()).unwrap();
        assert_eq!(left.count(), 0);
    }
}

#[test]
fn check_tells_rays_that_are_not_as_expected() {
    let folder = Folder::new();
    let scene = cornell_box();
    // Straight down to the floor from under the lamp, and past everything.
    let down = r#"{"origin":[500,100,50],"dir":[0,-1,0],"hit":true,"t":100,"tri":0}"#;
    let past = r#"{"origin":[0,5000,0],"dir":[1,0,0],"hit":false,"t":null,"tri":null}"#;
    let good = folder.write("good.jsonl", format!("{down}\n\n{past}\n"));
    let output = run(&["check", &good, "--scene", &scene, "--servers", "2"]);
    assert_eq!(stdout(&output), "2 checked, 0 mismatches\n");
    let wrong = [
        down.replace("100,\"tri", "100.01,\"tri"),
        down.replace("\"tri\":0", "\"tri\":20"),
        past.replace("false,\"t\":null,\"tri\":null", "true,\"t\":1,\"tri\":1"),
    ];
    let wrong = folder.write("wrong.jsonl", format!("{down}\n{}\n", wrong.join("\n")));
    let output = run(&["check", &wrong, &good, "--scene", &scene]);
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.contains("wrong.jsonl, line 2: by DPC hits triangle 0 at 100"),
        "{said}"
    );
    assert!(said.ends_with("\n6 checked, 3 mismatches\n"), "{said}");
}

#[test]
fn explain_draws_the_tree() {
    let drawn = stdout(&run(&["explain", "box:3000", "--servers", "4"]));
    for part in [
        "└─ Hops/bounce ",
        "─ Hops/shadow ",
        " server 4 ",
        "hops, ",
        " of them at the client, in ",
        "by plain calls: ",
    ] {
        assert!(drawn.contains(part), "'{part}' is not in {drawn}");
    }
    assert!(drawn.starts_with("pixel "), "{drawn}");
}

#[test]
fn mistakes_are_told() {
    let says = |arguments: &[&str], code: i32, words: &str| {
        let output = run(arguments);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{said}");
        assert!(said.contains(words), "'{said}' does not say '{words}'");
        // What went wrong is told once.
        assert!(said.matches("os error").count() <= 1, "{said}");
    };
    says(&["render", "nothing.obj"], 1, "nothing.obj can't be read");
    says(&["render", "picture.jpg"], 1, "neither .obj nor");
    // At once, not when the picture is ready: this one would take days.
    let large = ["--size", "8192x8192", "--samples", "65536", "--out"];
    for (out, words) in [
        ("/no/such/folder/p.png", "p.png can't be written"),
        ("/", "it is a folder"),
    ] {
        says(&[&["render"], &large[..], &[out]].concat(), 1, words);
    }
    says(
        &["render", "box:many"],
        2,
        "'many' is no number of triangles",
    );
    says(&["render", "--size", "0x5"], 2, "'0x5' is no size");
    says(
        &["render", "--size", "99999x99999"],
        2,
        "more than 67108864 pixels",
    );
    says(&["render", "--camera", "1,2"], 2, "is no camera");
    says(&["render", "--batch", "0"], 2, "--batch");
    says(&["render", "--servers", "257"], 2, "--servers");
    says(&["render", "--local", "--rpc"], 2, "cannot be used with");
    says(
        &["render", "box:1000", "--max-triangles", "10"],
        1,
        "more than 10 triangles",
    );
    let help = stdout(&run(&["--help"]));
    assert!(help.contains("Examples:") && help.contains("Exit status:"));
}

#[test]
fn a_reader_who_has_had_enough_ends_it_without_a_word() {
    check_that_a_reader_may_leave(&mut program(&["explain", "--servers", "1"]));
}
