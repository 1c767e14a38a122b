//! Servers that are killed while files are copied.

use wallaby_program::testing::signal;

use crate::world::{Yard, bytes, done, failed, is_possible};

/// Large enough that a copy can be stopped before its end.
const LARGE: usize = 3 << 20;

#[test]
fn a_copy_goes_on_when_a_server_comes_back() {
    if !is_possible("a_copy_goes_on_when_a_server_comes_back") {
        return;
    }
    let mut yard = Yard::start();
    let file = bytes(LARGE, 1);
    yard.put("a", "song", &file);
    let (b, composed) = (yard.at("b"), yard.primaries[0].clone());
    for (to, by, server) in [
        (&b, "chain", "a"),
        (&b, "chain", "b"),
        (&b, "chain", "sidecar a"),
        (&b, "chain", "sidecar b"),
        (&b, "calls", "a"),
        (&b, "calls", "sidecar b"),
        (&composed, "chain", "c"),
    ] {
        let more = ["--by", by, "--window", "8", "--patience", "30s"];
        let copying = yard.begin(yard.copy("song", to, &more));
        yard.tell(&format!("kill {server}"));
        assert_eq!(yard.get("b", "song"), None, "it is killed in between");
        signal("CONT", copying.id());
        yard.tell(&format!("start {server}"));
        let output = copying.wait_with_output().unwrap();
        assert!(output.status.success(), "{server} by {by}: {output:?}");
        assert!(
            yard.get("b", "song").as_ref() == Some(&file),
            "{server} by {by}"
        );
        std::fs::remove_file(yard.folder("b").join("song")).unwrap();
        let _ = std::fs::remove_file(yard.folder("c").join("song"));
    }
}

#[test]
fn a_server_that_is_gone_is_named_and_no_file_is_wrong() {
    if !is_possible("a_server_that_is_gone_is_named_and_no_file_is_wrong") {
        return;
    }
    let mut yard = Yard::start();
    let (old, new) = (bytes(70_000, 1), bytes(LARGE, 2));
    yard.put("a", "song", &new);
    let [composed, apart] = yard.primaries.clone();
    let b = yard.at("b");
    for (to, by, server) in [
        (&b, "chain", "a"),
        (&b, "calls", "a"),
        (&b, "chain", "b"),
        (&b, "calls", "b"),
        (&b, "chain", "sidecar b"),
        (&composed, "chain", "c"),
        (&apart, "chain", "c"),
    ] {
        for server in ["b", "c"] {
            yard.put(server, "song", &old);
        }
        let more = ["--by", by, "--window", "8", "--patience", "0s"];
        // In between, and before.
        let copying = yard.begin(yard.copy("song", to, &more));
        yard.tell(&format!("kill {server}"));
        signal("CONT", copying.id());
        let output = copying.wait_with_output().unwrap();
        let between = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(
            output.status.code(),
            Some(1),
            "{server} by {by}: {output:?}"
        );
        let before = failed(yard.copy("song", to, &more));
        let (socket, port) = match server.split_whitespace().last().unwrap() {
            "a" => (yard.at("a"), "tcp://127.0.0.1:20491"),
            "b" => (yard.at("b"), "tcp://127.0.0.1:20492"),
            _ => (yard.at("c"), "tcp://127.0.0.1:20493"),
        };
        for said in [between, before] {
            let is_named = said.contains(&socket)
                || said.contains(port)
                || said.contains(&port.replace("204", "205"));
            assert!(is_named, "{server} by {by}: {said}");
        }
        for server in ["b", "c"] {
            assert!(
                yard.get(server, "song").as_ref() == Some(&old),
                "{server} has what it had"
            );
        }
        yard.tell(&format!("start {server}"));
    }
    // All goes well again.
    done(yard.copy("song", &composed, &[]));
    assert!(yard.get("c", "song").as_ref() == Some(&new));
}
