//! What settings make of times and counts that nobody means: a call ends, by an answer or an error, and nothing spins or panics.

use std::time::Duration;

use wallaby::polling::{Builder, CallOptions, Endpoint, Event, Limits};
use wallaby::{Budgets, DialPolicy, ExecutorConfig};

use super::alone::{LONG, work};
use super::world::World;

const TIMES: [Duration; 5] = [
    Duration::ZERO,
    Duration::from_nanos(1),
    Duration::from_millis(3),
    Duration::from_secs(u64::MAX),
    Duration::MAX,
];

const COUNTS: [u64; 3] = [0, 1, u64::MAX];

fn size(count: u64) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}

fn small(count: u64) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

fn limited(builder: Builder, set: impl FnOnce(&mut Limits)) -> Builder {
    let mut limits = Limits::default();
    set(&mut limits);
    builder.limits(limits)
}

type Timed = fn(Builder, Duration) -> Builder;
type Counted = fn(Builder, u64) -> Builder;

const TIMED: [Timed; 13] = [
    |builder, time| builder.default_deadline(time),
    |builder, time| builder.dial_timeout(time),
    |builder, time| builder.strangers(16, time),
    |builder, time| builder.ping(time, Duration::from_secs(1)),
    |builder, time| builder.ping(Duration::from_millis(10), time),
    |builder, time| builder.ping(time, time),
    |builder, time| builder.keep_alive(time, Duration::from_secs(1)),
    |builder, time| builder.keep_alive(time, time),
    |builder, time| builder.confirm_after(time),
    |builder, time| builder.stall_limit(time),
    |builder, time| builder.initiator_timeout(time),
    |builder, time| builder.shortest_heartbeat(time),
    |builder, time| limited(builder, |limits| limits.partials.period = time),
];

const COUNTED: [Counted; 19] = [
    |builder, count| builder.strangers(size(count), Duration::from_secs(1)),
    |builder, count| builder.remember(size(count), count),
    |builder, count| builder.max_depth(small(count)),
    |builder, count| builder.max_requests_of_call(small(count)),
    |builder, count| builder.shared_memory(size(count)),
    |builder, count| {
        builder.executor(ExecutorConfig {
            concurrency: size(count),
            ..ExecutorConfig::default()
        })
    },
    |builder, count| {
        builder.executor(ExecutorConfig {
            concurrency: 1,
            queue: size(count),
            ..ExecutorConfig::default()
        })
    },
    |builder, count| {
        builder.max_budgets(Budgets {
            requests: small(count),
            responses: small(count),
            bytes: count,
            depth: small(count),
        })
    },
    |builder, count| builder.dial_policy(DialPolicy::default().rate(small(count), small(count))),
    |builder, count| limited(builder, |limits| limits.message = count),
    |builder, count| limited(builder, |limits| limits.requests = count),
    |builder, count| limited(builder, |limits| limits.call = count),
    |builder, count| limited(builder, |limits| limits.partials.bytes = count),
    |builder, count| limited(builder, |limits| limits.partials.rate = count),
    |builder, count| limited(builder, |limits| limits.output = size(count)),
    |builder, count| limited(builder, |limits| limits.waiting = size(count)),
    |builder, count| limited(builder, |limits| limits.connections = size(count)),
    |builder, count| limited(builder, |limits| limits.calls = size(count)),
    |builder, count| limited(builder, |limits| limits.branches = count),
];

/// A call ends by itself, and few turns are needed for that.
fn check(what: &str, builder: impl Fn() -> Builder, options: &CallOptions) {
    println!("{what}");
    let world = World::new(90);
    let (mut client, mut server) = (world.bind(builder()), world.bind(builder()));
    let serve = server.serve(&work::ONE, |request, (what,)| Ok(request.respond(&what)?));
    serve.expect("no other has its name");
    let target = work::one("hop".into());
    let Ok(_call) = client.call(server.address(), target, options) else {
        return; // and says why
    };
    for _ in 0..100_000 {
        match world.event(&mut [&mut client, &mut server], 0, LONG) {
            Some(Event::Complete { .. } | Event::Failed { .. }) => return,
            Some(_) => {}
            None => panic!("{what}: it does not end"),
        }
    }
    panic!("{what}: it goes on and on");
}

#[test]
fn every_setting_of_an_endpoint() {
    let mut soon = CallOptions::default();
    soon.deadline = Some(Duration::from_secs(2));
    for (number, set) in TIMED.iter().enumerate() {
        for time in TIMES {
            // The default deadline is one of them.
            let options = match number {
                0 => CallOptions::default(),
                _ => soon.clone(),
            };
            let what = format!("time {number} {time:?}");
            check(&what, || set(Endpoint::builder(), time), &options);
        }
    }
    for (number, set) in COUNTED.iter().enumerate() {
        for count in COUNTS {
            let what = format!("count {number} {count}");
            check(&what, || set(Endpoint::builder(), count), &soon);
        }
    }
}
