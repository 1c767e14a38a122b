//! `docs/protocol.md` has every number of the protocol, with its name, and the sizes of the golden vectors.

use crate::protocol::sizes::header;

const DOC: &str = include_str!("../../../../../docs/protocol.md");
const SOURCES: &[(&str, &str)] = &[
    ("address", include_str!("../../../src/address.rs")),
    ("bodies", include_str!("../../../src/connection/bodies.rs")),
    ("credit", include_str!("../../../src/carrier/credit.rs")),
    ("hello", include_str!("../../../src/carrier/hello.rs")),
    ("id", include_str!("../../../src/id.rs")),
    ("initiator", include_str!("../../../src/call/initiator.rs")),
    ("methods", include_str!("../../../src/carrier/methods.rs")),
    ("output", include_str!("../../../src/carrier/output.rs")),
    ("connection", include_str!("../../../src/connection/mod.rs")),
    ("parts", include_str!("../../../src/connection/parts.rs")),
    ("pace", include_str!("../../../src/connection/pace.rs")),
    ("status", include_str!("../../../src/status.rs")),
    ("wire", include_str!("../../../src/wire/mod.rs")),
    ("options", include_str!("../../../src/wire/options.rs")),
    ("request", include_str!("../../../src/wire/request.rs")),
    ("response", include_str!("../../../src/wire/response.rs")),
    ("control", include_str!("../../../src/wire/control.rs")),
    (
        "datagram assembly",
        include_str!("../../../src/datagram/assembly.rs"),
    ),
    (
        "datagram cookies",
        include_str!("../../../src/datagram/cookies.rs"),
    ),
    (
        "datagram gate",
        include_str!("../../../src/datagram/gate.rs"),
    ),
    ("datagram mod", include_str!("../../../src/datagram/mod.rs")),
    (
        "datagram outgoing",
        include_str!("../../../src/datagram/outbound.rs"),
    ),
    (
        "datagram packet",
        include_str!("../../../src/datagram/packet.rs"),
    ),
    (
        "datagram received",
        include_str!("../../../src/datagram/received.rs"),
    ),
    (
        "datagram recovery",
        include_str!("../../../src/datagram/recovery.rs"),
    ),
    (
        "datagram session",
        include_str!("../../../src/datagram/session.rs"),
    ),
    (
        "datagram window",
        include_str!("../../../src/datagram/window.rs"),
    ),
];

/// Names and values of the constants of a type in a source file, in lower case and with spaces.
fn constants(source: &str, kind: &str) -> Vec<(String, String)> {
    let (_, text) = SOURCES
        .iter()
        .find(|(name, _)| *name == source)
        .expect("a source");
    text.lines()
        .filter_map(|line| {
            let (_, rest) = line.split_once("const ")?;
            let (name, value) = rest.split_once(&format!(": {kind} = "))?;
            let name = name.to_lowercase().replace('_', " ");
            Some((name, value.split(';').next()?.to_owned()))
        })
        .collect()
}

/// Part of the page: from this heading to the next of the same or a higher level.
fn section(heading: &str) -> &'static str {
    let start = DOC
        .find(&format!("\n{heading}\n"))
        .unwrap_or_else(|| panic!("a heading {heading}"))
        + 1;
    let level = heading.chars().take_while(|char| *char == '#').count();
    let rest = &DOC[start + heading.len()..];
    let ends = (1..=level).filter_map(|level| rest.find(&format!("\n{} ", "#".repeat(level))));
    &rest[..ends.min().unwrap_or(rest.len())]
}

fn assert_row(heading: &str, number: &str, name: &str) {
    let row = format!("\n| {number} | {name} |");
    assert!(
        section(heading).contains(&row),
        "{heading} has no row for {number}, {name}"
    );
}

#[test]
fn every_kind_of_frame_is_listed() {
    let mut kinds = constants("wire", "u8");
    kinds.retain(|(name, _)| !name.starts_with("max "));
    assert_eq!(kinds.len(), 17);
    for (name, number) in kinds {
        assert_row("## Frames", &number, &name);
    }
}

#[test]
fn every_flag_is_listed() {
    let flags = |source| {
        let all = constants(source, "u64").into_iter();
        all.filter_map(|(name, value)| Some((name, value.strip_prefix("1 << ")?.to_owned())))
    };
    assert_eq!(
        (
            flags("request").count(),
            flags("response").count(),
            flags("control").count()
        ),
        (11, 10, 20)
    );
    flags("request").for_each(|(name, bit)| assert_row("### Request", &bit, &name));
    flags("response").for_each(|(name, bit)| assert_row("### Response", &bit, &name));
    for (name, bit) in flags("control") {
        let of_ping = ["direct", "abort", "missing", "shows"].contains(&name.as_str());
        assert_row(if of_ping { "### Ping" } else { "### Pong" }, &bit, &name);
    }
}

#[test]
fn every_tag_is_listed() {
    let tags = constants("options", "u64");
    assert_eq!(tags.len(), 17);
    tags.iter()
        .for_each(|(name, tag)| assert_row("### Optional fields", tag, name));
    let addresses = constants("address", "u8");
    assert_eq!(addresses.len(), 8);
    addresses
        .iter()
        .for_each(|(name, tag)| assert_row("## Conventions", tag, name));
    for (name, number) in constants("connection", "u8").iter().take(2) {
        assert_row("## Frames of the connection", number, name);
    }
}

#[test]
fn every_limit_is_listed() {
    let mut limits = 0;
    for (source, _) in SOURCES {
        for kind in ["u8", "usize", "u32", "u64"] {
            for (name, _) in constants(source, kind)
                .iter()
                .filter(|(name, _)| name.starts_with("max "))
            {
                let name = name.to_uppercase().replace(' ', "_");
                assert!(
                    section("## Limits").contains(&format!("| `{name}` |")),
                    "{name} is not listed"
                );
                limits += 1;
            }
        }
    }
    assert!(limits >= 20, "{limits} limits");
}

#[test]
fn the_sizes_are_those_of_the_vectors() {
    let rows = section("## How many bytes it takes")
        .lines()
        .filter_map(|line| line.strip_prefix("| "));
    let mut sizes = 0;
    for row in rows.filter(|row| !row.starts_with("vector")) {
        let (name, rest) = row.split_once(" | ").expect("two columns");
        assert_eq!(
            rest.trim_end_matches(" |"),
            header(name).to_string(),
            "{name}"
        );
        sizes += 1;
    }
    assert!(sizes >= 15);
}
