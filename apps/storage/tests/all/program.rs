//! The program, and what it measures.

use wallaby_program::testing::stdout;

use crate::world::{is_possible, program};

/// Both ways over the network of the paper: what comes is the same, which `measure` compares, and the further away the client, the
/// more a chain saves.
#[test]
fn a_chain_spares_the_way_over_the_client() {
    if !is_possible("a_chain_spares_the_way_over_the_client") {
        return;
    }
    let few = ["--rounds", "1", "--sizes", "100000", "--at-a-time", "2"];
    let measure = [&["measure", "--json"][..], &few].concat();
    let output = stdout(&program(&measure).output().unwrap());
    let mut rows: Vec<serde_json::Value> = output
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let load = rows.pop().unwrap();
    for way in [0, 1] {
        let rate = |name: &str| load[name][way].as_f64().unwrap();
        let (rate, ideal) = (
            rate("megabytes_per_second"),
            rate("ideal_megabytes_per_second"),
        );
        assert!(0.0 < rate && rate < 1.03 * ideal, "{load}");
    }
    let clients: Vec<_> = rows
        .iter()
        .map(|row| row["client"].as_str().unwrap())
        .collect();
    assert_eq!(
        clients,
        ["mountain-view", "redmond", "beijing", "cambridge"]
    );
    // 360 ms and what 100,000 bytes take at 2.1 MB/s, and a part of them once more; 182 ms and the same at 10 MB/s.
    let beijing = &rows[2]["moved_ideal_ms"];
    let ideal = [0, 1].map(|way| beijing[way].as_f64().unwrap().round());
    assert_eq!(ideal, [415.0, 191.0]);
    for row in &rows {
        let ms = |name: &str, way: usize| row[name][way].as_f64().unwrap();
        for way in [0, 1] {
            // The mean of a line is what it is told to be: one may be a little early.
            assert!(
                ms("moved_ms", way) > 0.97 * ms("moved_ideal_ms", way),
                "{row}"
            );
        }
    }
    let far = &rows[2]["moved_ms"];
    assert!(far[1].as_f64() < far[0].as_f64(), "{far}");
}

#[test]
fn wrong_usage_is_said() {
    for (wrong, status) in [
        (&["copy", "unix:///a", "song", "unix:///b"][..], 2),
        (&["copy", "nowhere", "song", "unix:///b", "song"], 2),
        (&["copy", "unix:///a", "a/song", "unix:///b", "song"], 1),
        (
            &[
                "copy",
                "unix:///nonexistent",
                "song",
                "unix:///b",
                "song",
                "--patience",
                "0s",
            ],
            1,
        ),
        (&["measure", "--rounds", "0"], 2),
    ] {
        let output = program(wrong).output().unwrap();
        assert_eq!(output.status.code(), Some(status), "{wrong:?}: {output:?}");
    }
}
