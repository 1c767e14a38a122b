//! `wallaby-mail` as its users run it.

use crate::town::{program, put_user};
use std::fs;
use std::path::Path;
use wallaby_program::testing::{check_that_a_reader_may_leave, signal, start, stdout};

/// Both ways over the network of the paper: what comes is the same, which `measure` compares, and the chain is a long way shorter.
#[test]
fn a_chain_saves_a_long_link() {
    let output = program(&["measure", "--json", "--rounds", "1", "--sizes", "1000"])
        .output()
        .unwrap();
    let row: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
    let ms = |name: &str| row[name].as_f64().unwrap();
    assert_eq!(
        (ms("calls_ideal_ms").round(), ms("chain_ideal_ms").round()),
        (327.0, 181.0)
    );
    // The mean of a line is what it is told to be: one may be a little early.
    assert!(ms("calls_ms") > 0.99 * ms("calls_ideal_ms"), "{row}");
    assert!(ms("chain_ms") > 0.99 * ms("chain_ideal_ms"), "{row}");
    assert!(ms("chain_ms") < ms("calls_ms"), "{row}");
}

#[test]
fn users_stay_in_a_folder_and_passwords_do_not() {
    let data = Path::new(env!("CARGO_TARGET_TMPDIR")).join("users");
    let _ = fs::remove_dir_all(&data);
    let short = put_user(&data, "dora", "short");
    assert_eq!(short.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&short.stderr).contains("10 characters at least, not 5"));
    assert_eq!(
        put_user(&data, "../dora", "a long password").status.code(),
        Some(1)
    );
    assert!(put_user(&data, "dora", "a long password").status.success());
    let users = fs::read_to_string(data.join("users.json")).unwrap();
    assert!(
        users.contains("$argon2id$v=19$m=19456,t=2,p=1$") && !users.contains("a long"),
        "{users}"
    );
}

#[test]
fn without_a_folder_there_are_two_users_and_nothing_stays() {
    let mut up = start(
        &mut program(&["up", "--web", "127.0.0.1:0"]),
        "open http://",
    );
    let scratch = |up: u32| {
        let all = fs::read_dir(std::env::temp_dir())
            .unwrap()
            .map_while(Result::ok);
        all.map(|file| file.path()).find(|path| {
            path.to_string_lossy()
                .contains(&format!("wallaby-mail-{up}-"))
        })
    };
    let folder = scratch(up.id()).unwrap();
    for file in [
        "data/users.json",
        "data/mails/anna/inbox/welcome.eml",
        "data/book/anna.json",
        "data/key",
    ] {
        assert!(folder.join(file).exists(), "{file}");
    }
    signal("TERM", up.id());
    assert!(up.wait().unwrap().success());
    assert!(!folder.exists());
}

#[test]
fn what_is_missing_is_said() {
    let output = program(&[
        "server",
        "storage",
        "--directory",
        "/nonexistent",
        "--data",
        "/nonexistent",
    ])
    .output()
    .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("there is no /nonexistent"));
    assert_eq!(
        program(&["server", "storage", "--data", "x"])
            .output()
            .unwrap()
            .status
            .code(),
        Some(2)
    );
    assert_eq!(
        program(&["measure", "--rounds", "0"])
            .output()
            .unwrap()
            .status
            .code(),
        Some(2)
    );
}

#[test]
fn a_reader_who_has_had_enough_ends_it_without_a_word() {
    check_that_a_reader_may_leave(&mut program(&["up", "--web", "127.0.0.1:0"]));
}
