//! Every pattern of messages on every stack, for real but briefly. This program is the client, and started again it is each of the servers; so it
//! brings its own `main`. Nothing here depends on how long anything takes.

use std::env;
use std::error::Error;
use std::time::Duration;
use wallaby_bench::pattern::Query;
use wallaby_bench::stack::Stack;
use wallaby_bench::thesis::{LatencyOptions, LoadOptions, latency, load};
use wallaby_bench::{
    FanoutOptions, HopsOptions, LargeOptions, Launcher, Own, Row, RunOptions, ScaleOptions,
    ThroughputOptions, Transport, fanout, hops, scale, server_main, throughput,
};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = env::args().skip(1).peekable();
    if arguments
        .next_if(|argument| argument == "bench-server")
        .is_some()
    {
        return Ok(server_main(&Own::ALL, arguments)?);
    }
    if arguments.any(|argument| argument == "--list") {
        return Ok(());
    }
    every_floor_answers_when_messages_are_forwarded()?;
    every_floor_answers_when_messages_are_spread()?;
    a_link_delays_every_message()?;
    wallaby_carries_out_every_pattern()?;
    the_polling_driver_carries_out_every_pattern()?;
    shared_memory_is_measured_beside_its_floors()?;
    small_calls_pass_large_messages()?;
    many_calls_are_under_way()?;
    many_of_something_are_measured()?;
    the_thesis_patterns_take_its_messages()?;
    processor_time_is_split_without_changing_what_is_done()?;
    every_process_is_client_and_server_under_load()?;
    an_impossible_processor_is_a_clear_error()
}

fn brief(stacks: &[&'static dyn Stack]) -> RunOptions {
    RunOptions {
        transports: vec![Transport::Unix, Transport::Tcp, Transport::Udp],
        stacks: stacks.to_vec(),
        rounds: 2,
        turn: Duration::from_micros(100),
        launcher: Launcher::this_program().ok(),
        ..RunOptions::default()
    }
}

const FLOORS: [&dyn Stack; 3] = [&Own::FloorBlocking, &Own::FloorEpoll, &Own::FloorTokio];

fn every_floor_answers_when_messages_are_forwarded() -> Result<(), Box<dyn Error>> {
    let rows = hops(
        &HopsOptions {
            hops: vec![1, 3],
            run: brief(&FLOORS),
        },
        |_| (),
    )?;
    assert_eq!(
        rows.len(),
        3 * 3 * 2 * 2,
        "transports, stacks, patterns, numbers of hops"
    );
    for row in rows {
        let messages = if row.system.starts_with("floor-forward") {
            row.n + 1
        } else {
            2 * row.n
        };
        assert_eq!(row.messages, Some(messages as f64), "{row:?}");
        assert!(
            row.p50_us > 0.0 && row.p99_us >= row.p50_us && row.cpu_us_per_op > 0.0,
            "{row:?}"
        );
    }
    Ok(())
}

fn every_floor_answers_when_messages_are_spread() -> Result<(), Box<dyn Error>> {
    let rows = fanout(
        &FanoutOptions {
            fanout: vec![1, 5],
            run: brief(&FLOORS),
        },
        |_| (),
    )?;
    assert_eq!(rows.len(), 3 * 3 * 2 * 2);
    assert!(
        rows.iter()
            .all(|row| row.bench == "fanout" && row.p50_us > 0.0)
    );
    Ok(())
}

fn a_link_delays_every_message() -> Result<(), Box<dyn Error>> {
    let run = RunOptions {
        link: Duration::from_micros(300),
        ..brief(&FLOORS)
    };
    for row in hops(&HopsOptions { hops: vec![2], run }, |_| ())? {
        let messages = row.messages.unwrap_or_default();
        assert!(
            row.p50_us >= 300.0 * messages,
            "no message may be early: {row:?}"
        );
    }
    Ok(())
}

fn wallaby_carries_out_every_pattern() -> Result<(), Box<dyn Error>> {
    let mut run = brief(&[&Own::Wallaby]);
    run.transports.push(Transport::Shm);
    let mut rows = hops(
        &HopsOptions {
            hops: vec![1, 3],
            run: run.clone(),
        },
        |_| (),
    )?;
    rows.extend(fanout(
        &FanoutOptions {
            fanout: vec![1, 4],
            run,
        },
        |_| (),
    )?);
    assert_eq!(
        rows.len(),
        4 * 2 * 2 * 2,
        "transports, forms, numbers, benchmarks: {rows:?}"
    );
    for row in rows {
        // At least as many as the pattern has; more where a protocol sends messages of its own.
        let least = match (row.bench.as_str(), row.system.as_str()) {
            ("hops", "wallaby-dpc") => row.n + 1,
            ("hops", _) => 2 * row.n,
            (_, "wallaby-dpc") => 2 * row.n + 1,
            _ => 2 * row.n + 2,
        };
        assert!(
            row.messages
                .is_some_and(|messages| messages >= least as f64),
            "{row:?}"
        );
        assert!(
            row.bytes
                .is_some_and(|bytes| bytes >= (least * row.payload) as f64),
            "{row:?}"
        );
    }
    Ok(())
}

fn the_polling_driver_carries_out_every_pattern() -> Result<(), Box<dyn Error>> {
    for link in [Duration::ZERO, Duration::from_micros(300)] {
        let run = RunOptions {
            link,
            ..brief(&[&Own::WallabyPolling, &Own::WallabyPollingEpoll])
        };
        let hop_options = HopsOptions {
            hops: vec![1, 3],
            run: run.clone(),
        };
        let fanout_options = FanoutOptions {
            fanout: vec![1, 4],
            run,
        };
        let mut rows = hops(&hop_options, |_| ())?;
        rows.extend(fanout(&fanout_options, |_| ())?);
        // Both ways to wait over UDP, and the streams; links are only emulated where it waits in its receive.
        let ways = if link.is_zero() { 4 } else { 1 };
        assert_eq!(
            rows.len(),
            ways * 2 * 2 * 2,
            "ways, forms, numbers, benchmarks: {rows:?}"
        );
        for row in rows {
            let epoll = row.system.starts_with("wallaby-polling-epoll");
            assert!(!epoll || row.transport == "udp", "{row:?}");
            let least = match (row.bench.as_str(), row.system.as_str()) {
                ("hops", "wallaby-polling-dpc") => row.n + 1,
                ("hops", _) => 2 * row.n,
                (_, "wallaby-polling-dpc") => 3,
                _ => 4,
            };
            let least = link.as_secs_f64() * 1e6 * least as f64;
            assert!(row.p50_us >= least, "no message may be early: {row:?}");
        }
    }
    Ok(())
}

fn shared_memory_is_measured_beside_its_floors() -> Result<(), Box<dyn Error>> {
    let run = RunOptions {
        transports: vec![Transport::Shm],
        ..brief(&Own::ALL)
    };
    let hop_options = |hops, run| HopsOptions { hops, run };
    let fanout_options = FanoutOptions {
        fanout: vec![1, 4],
        run: run.clone(),
    };
    let mut rows = hops(&hop_options(vec![1, 3], run.clone()), |_| ())?;
    rows.extend(fanout(&fanout_options, |_| ())?);
    assert_eq!(
        rows.len(),
        3 * 2 * 2 * 2,
        "a floor and two drivers, forms, numbers, benchmarks: {rows:?}"
    );
    for row in &rows {
        let floor = wallaby_bench::ratio::floor(row, &rows);
        assert_eq!(floor.is_none(), row.system.starts_with("floor"), "{row:?}");
    }
    if std::thread::available_parallelism()?.get() < 2 {
        println!("not measured: what keeps a processor busy needs one for each side");
        return Ok(());
    }
    let apart = RunOptions {
        pin: Some(0),
        server_pin: Some(1),
        servers: Some(1),
        ..run
    };
    let rows = hops(&hop_options(vec![1], apart), |_| ())?;
    let names: Vec<&str> = rows.iter().map(|row| &*row.system).collect();
    for busy in ["floor-forward-spinning", "wallaby-polling-busy-dpc"] {
        assert!(names.contains(&busy), "{names:?}");
    }
    assert!(rows.iter().all(|row| row.server_pin == Some(1)));
    Ok(())
}

fn small_calls_pass_large_messages() -> Result<(), Box<dyn Error>> {
    let large = 256;
    let run = RunOptions {
        transports: vec![Transport::Unix, Transport::Tcp, Transport::Shm],
        ..brief(&[])
    };
    let options = LargeOptions { large, run };
    let rows = wallaby_bench::large(&options, |_| ())?;
    assert_eq!(rows.len(), 3 * 5, "transports, what goes on beside");
    for row in rows {
        let (alone, traffic) = (row.n == 0, row.bytes.zip(row.ops_per_s));
        assert_eq!(alone, row.system == "wallaby-rpc", "{row:?}");
        assert!(traffic.is_some() && row.p50_us > 0.0, "{row:?}");
        assert!(
            !alone || row.messages == Some(2.0),
            "nothing goes on beside: {row:?}"
        );
    }
    Ok(())
}

fn many_calls_are_under_way() -> Result<(), Box<dyn Error>> {
    for payload in [0, 100, 1 << 20] {
        let run = RunOptions {
            payload,
            ..brief(&Own::ALL)
        };
        let options = ThroughputOptions {
            calls: vec![1, 16],
            run,
        };
        let rows = throughput(&options, |_| ())?;
        let transports = if payload > 65_507 { 2 } else { 3 };
        let epoll = usize::from(transports == 3);
        assert_eq!(
            rows.len(),
            2 * (2 * transports + 2 + epoll),
            "both drivers over all transports, one also by an epoll over UDP, a floor over streams: {rows:?}"
        );
        assert!(rows.iter().all(|row| row.ops_per_s > Some(0.0)), "{rows:?}");
    }
    Ok(())
}

fn many_of_something_are_measured() -> Result<(), Box<dyn Error>> {
    let options = ScaleOptions {
        calls: vec![1, 50],
        connections: vec![1, 3],
        requests: vec![1, 20],
        run: brief(&[]),
        ..ScaleOptions::default()
    };
    let rows = scale(&options, |_| ())?;
    let (floors, rows): (Vec<_>, Vec<_>) = rows
        .into_iter()
        .partition(|row| row.system.starts_with("floor-"));
    let streams = |row: &&Row| row.transport != "udp";
    assert_eq!(rows.len(), 3 * 3 * 2, "transports, benchmarks, numbers");
    assert_eq!(floors.iter().filter(streams).count(), floors.len());
    assert_eq!(floors.len(), 2 * 2, "transports, numbers of connections");
    for row in &floors {
        assert!(row.cpu_us_per_op > 0.0 && row.p50_us > 0.0, "{row:?}");
        assert!(
            row.scale
                .is_some_and(|figures| figures.longest_us.is_some())
        );
    }
    for row in rows {
        assert!(row.cpu_us_per_op > 0.0 && row.p50_us > 0.0, "{row:?}");
        let figures = row.scale.ok_or("no figures of scale")?;
        assert!(figures.longest_us.is_some_and(|longest| longest > 0.0));
        assert!(
            figures
                .server_longest_us
                .is_some_and(|longest| longest > 0.0)
        );
        assert_eq!(figures.client_bytes, None, "too few to tell");
    }
    Ok(())
}

/// Figure 6.6: the meter stands beside the same work without it, and every part of its has some time.
fn processor_time_is_split_without_changing_what_is_done() -> Result<(), Box<dyn Error>> {
    let mut options = LatencyOptions::split();
    options.run = RunOptions {
        servers: Some(6),
        ..brief(&options.run.stacks)
    };
    let rows = latency(&options, |_| ())?;
    assert_eq!(rows.len(), 3 * 2 * 2 * options.queries.len());
    let (metered, plain): (Vec<_>, Vec<_>) = rows.into_iter().partition(|row| row.split.is_some());
    assert_eq!(metered.len(), plain.len());
    for row in &metered {
        let name = row.system.replace("-split", "");
        let same = |other: &&Row| other.system == name && other.comparable(row);
        let same = plain.iter().find(same).ok_or("no such row without")?;
        if row.transport != "udp" {
            assert_eq!(row.messages, same.messages, "{row:?}");
        }
        let split = row.split.ok_or("no split")?;
        let used = split.client.sum() + split.servers.sum() + split.clock_us;
        assert!(used < row.cpu_us_per_op * 1.05 + 0.1, "{row:?}");
        for parts in [split.client, split.servers] {
            assert!(
                parts.interface_us > 0.0 && parts.application_us > 0.0,
                "{row:?}"
            );
        }
    }
    Ok(())
}

/// Table 6.3: with the thesis' inputs, exactly its messages, whatever carries them.
fn the_thesis_patterns_take_its_messages() -> Result<(), Box<dyn Error>> {
    let published = [
        ("is1", 4, 4, 4),
        ("is2", 61, 21, 82),
        ("is3", 22, 12, 22),
        ("is4", 2, 2, 2),
        ("is5", 3, 2, 4),
        ("is6a", 6, 3, 8),
        ("is6b", 7, 3, 10),
        ("is7", 54, 23, 66),
        ("rays", 9, 4, 12),
    ];
    let options = LatencyOptions {
        hops: vec![],
        fanout: vec![],
        bounces: vec![3],
        run: RunOptions {
            servers: Some(6), // some requests meet at one server
            ..brief(&Own::ALL)
        },
        ..LatencyOptions::default()
    };
    let rows = latency(&options, |_| ())?;
    assert_eq!(rows.len(), published.len() * 2 * (5 * 3 + 1));
    for row in rows {
        let of = |(bench, ..): &&(&str, _, _, _)| *bench == row.bench;
        let (_, messages, client, calls) = *published.iter().find(of).ok_or("no such query")?;
        let (messages, client) = match row.system.as_str() {
            system if system.ends_with("-dpc") || system.starts_with("floor-forward") => {
                (messages, client)
            }
            _ => (calls, calls),
        };
        let counted = (row.messages, row.client_messages);
        let expected = (Some(f64::from(messages)), Some(f64::from(client)));
        if row.system.starts_with("wallaby-polling") {
            assert_eq!(counted, (None, None), "nobody counts there: {row:?}");
        } else if row.transport != "udp" {
            assert_eq!(counted, expected, "{row:?}");
        } else if counted.0.is_some() {
            // What comes late is asked about, and on a busy machine it may be.
            assert!(
                counted.0 >= expected.0 && counted.1 >= expected.1,
                "{row:?}"
            );
        }
        assert!(row.client_cpu_us <= Some(row.cpu_us_per_op), "{row:?}");
    }
    Ok(())
}

fn every_process_is_client_and_server_under_load() -> Result<(), Box<dyn Error>> {
    let options = LoadOptions {
        queries: vec![Query::Is2],
        loads: vec![20],
        under_way: 2,
        run: RunOptions {
            transports: vec![Transport::Unix, Transport::Udp],
            servers: Some(4),
            turn: Duration::from_millis(200),
            ..brief(&[])
        },
    };
    let rows = load(&options, |_| ())?;
    assert_eq!(rows.len(), 2 * 2 * 2, "transports, forms, loads: {rows:?}");
    for row in rows {
        assert_eq!(row.bench, "load-is2");
        assert_eq!(row.offered_per_s.is_some(), row.n == 20, "{row:?}");
        assert!(
            row.ops_per_s > Some(0.0) && row.cpu_us_per_op > 0.0,
            "{row:?}"
        );
    }
    Ok(())
}

fn an_impossible_processor_is_a_clear_error() -> Result<(), Box<dyn Error>> {
    let run = RunOptions {
        pin: Some(1_000),
        ..brief(&FLOORS)
    };
    match hops(&HopsOptions { hops: vec![1], run }, |_| ()) {
        Ok(_) => Err("there is no such processor".into()),
        Err(error) if error.to_string().contains("processor 1000") => Ok(()),
        Err(error) => Err(error.into()),
    }
}
