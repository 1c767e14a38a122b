//! Every peer that is installed, in every pattern it has, for real but briefly. One that is not is named and skipped.
//! Nothing here depends on how long anything takes.

use anyhow::{Result, ensure};
use std::time::Duration;
use wallaby_bench::stack::Stack;
use wallaby_bench::{
    FanoutOptions, HopsOptions, Launcher, Own, Row, RunOptions, ThroughputOptions, Transport,
    fanout, hops, throughput,
};
use wallaby_bench_peers::peers::PEERS;

/// All rows of a peer with such payloads; none if it is not installed.
fn measure(name: &str, payload: usize) -> Result<Option<Vec<Row>>> {
    let peer = PEERS.iter().find(|peer| peer.name == name);
    let peer = peer.ok_or_else(|| anyhow::anyhow!("there is no peer {name}"))?;
    if let Some(notice) = peer.notice() {
        eprintln!("NOT TESTED: {notice}");
        return Ok(None);
    }
    let beside: &'static dyn Stack = &Own::FloorTokio;
    let run = RunOptions {
        transports: vec![Transport::Unix, Transport::Tcp, Transport::Udp],
        // Beside something that can do everything, since a benchmark of nothing is an error.
        stacks: [&[beside], peer.stacks()].concat(),
        payload,
        rounds: 2,
        turn: Duration::from_micros(100),
        launcher: Some(Launcher {
            program: env!("CARGO_BIN_EXE_wallaby-bench-peers").into(),
            arguments: vec!["bench-server".into()],
        }),
        ..RunOptions::default()
    };
    let mut rows = hops(
        &HopsOptions {
            hops: vec![1, 3],
            run: run.clone(),
        },
        |_| (),
    )?;
    let parallel = FanoutOptions {
        fanout: vec![4],
        run: run.clone(),
    };
    rows.extend(fanout(&parallel, |_| ())?);
    let calls = vec![1, 16];
    rows.extend(throughput(&ThroughputOptions { calls, run }, |_| ())?);
    rows.retain(|row| !row.system.starts_with("floor"));
    for row in &rows {
        let sane = row.p50_us > 0.0 && row.p99_us >= row.p50_us && row.cpu_us_per_op > 0.0;
        ensure!(sane, "{row:?}");
    }
    Ok(Some(rows))
}

/// How many rows there are for each system, over each transport.
fn check(name: &str, expected: &[(&str, &str, usize)]) {
    for payload in [100, 4_096] {
        let rows = match measure(name, payload) {
            Ok(Some(rows)) => rows,
            Ok(None) => return,
            Err(error) => panic!("{error:#}"),
        };
        for &(system, transport, count) in expected {
            let of_it = |row: &&Row| row.system == system && row.transport == transport;
            assert_eq!(
                rows.iter().filter(of_it).count(),
                count,
                "{system}: {rows:#?}"
            );
        }
        let all: usize = expected.iter().map(|(_, _, count)| count).sum();
        assert_eq!(rows.len(), all, "{rows:#?}");
    }
}

/// Two numbers of hops, one of parallel servers, two of calls under way.
const CALLS: usize = 5;
/// Two numbers of hops, one of parallel servers.
const FORWARDED: usize = 3;

#[test]
fn tonic_makes_calls() {
    check(
        "tonic",
        &[("tonic", "tcp", CALLS), ("tonic-threads", "tcp", CALLS)],
    );
}

#[test]
fn tarpc_makes_calls() {
    check("tarpc", &[("tarpc", "tcp", CALLS)]);
}

#[test]
fn capn_proto_makes_calls() {
    check("capnp", &[("capnp", "tcp", CALLS)]);
}

#[test]
fn nats_makes_requests_and_passes_them_on() {
    check(
        "nats",
        &[("nats", "tcp", CALLS), ("nats-forward", "tcp", FORWARDED)],
    );
}

#[test]
fn onc_rpc_makes_calls_over_tcp_and_udp() {
    let without_parallel = CALLS - 1;
    let over = |transport| ("onc", transport, without_parallel);
    check("onc", &[over("tcp"), over("udp")]);
}

#[test]
fn thrift_makes_calls() {
    check("thrift", &[("thrift", "tcp", CALLS)]);
}

/// Each fault has its row, with what both callers read.
#[test]
fn faults_are_told_by_both() {
    let program = env!("CARGO_BIN_EXE_wallaby-bench-peers");
    let output = std::process::Command::new(program).arg("faults").output();
    let output = output.expect("the program runs");
    let text = String::from_utf8_lossy(&output.stdout);
    let rows: Vec<Vec<&str>> = (text.lines().skip(2))
        .map(|line| line.split(" | ").collect())
        .collect();
    assert_eq!(rows.len(), 6, "{text}");
    assert!(rows.iter().all(|cells| cells.len() == 5), "{text}");
    let killed = &rows[1];
    assert!(killed[1].contains("transport error"), "{text}");
    assert!(
        killed[3].contains("request 0.1 (bench.Shard/find)"),
        "{text}"
    );
    assert!(
        killed[3].contains("its address refuses connections"),
        "{text}"
    );
}
