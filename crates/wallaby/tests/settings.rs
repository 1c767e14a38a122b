//! What settings make of times and counts that nobody means: each does what its documentation says, and none spins, overflows
//! or panics. Apart from other tests, as each panic ends the process.

mod common;

use std::sync::Once;
use std::time::Duration;

use common::{Net, at, patience, service, work};
use wallaby::{
    Budgets, Builder, Client, DialPolicy, Endpoint, ExecutorConfig, Hedge, Limits, Many, One,
    PipelineSettings, Request, Retry, RetryBudget, Service,
};

const TIMES: [Duration; 5] = [
    Duration::ZERO,
    Duration::from_nanos(1),
    Duration::from_millis(3),
    Duration::from_secs(u64::MAX),
    Duration::MAX,
];

/// A call that nothing becomes of ends after this.
const SOON: Duration = Duration::from_millis(500);

const COUNTS: [u32; 3] = [0, 1, u32::MAX];

/// Nothing panics: not in tasks of endpoints either, where nobody would notice.
fn no_panics() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            before(panic);
            std::process::exit(1);
        }));
    });
}

/// It takes some turns, and asks once what time is left.
fn slow() -> Service {
    let service = service().method(&work::ONE, |request: Request<One<_>>, (what,)| async move {
        Ok(request.respond(what).await?)
    });
    service.method(
        &work::MANY,
        |request: Request<Many<String>>, (_,): (String,)| async move {
            for _ in 0..20 {
                tokio::task::yield_now().await;
            }
            let left = request.remaining().as_secs();
            Ok(request.respond(left.to_string()).await?)
        },
    )
}

/// A call ends, whatever becomes of it.
async fn call(net: &Net, builder: impl Fn() -> Builder, adapt: impl Fn(Client) -> Client) {
    let server = net.bind(builder().serve(slow())).await;
    let client = net.bind(builder()).await;
    let adapted = adapt(Client::new(&client, at(&server)).deadline(Duration::from_millis(500)));
    let mut call = work::within(adapted).many(String::new());
    while call.next().await.is_some() {}
    drop(call);
    server.close();
    client.close();
}

type Timed = (&'static str, fn(Builder, Duration) -> Builder);

const OF_ENDPOINTS: [Timed; 12] = [
    ("default_deadline", |builder, time| {
        builder.default_deadline(time)
    }),
    ("dial_timeout", |builder, time| builder.dial_timeout(time)),
    ("dial_back_timeout", |builder, time| {
        builder.dial_back_timeout(time)
    }),
    ("ping period", |builder, time| {
        builder.ping(time, Duration::from_secs(1))
    }),
    ("ping timeout", |builder, time| {
        builder.ping(Duration::from_millis(10), time)
    }),
    ("ping", |builder, time| builder.ping(time, time)),
    ("keep_alive period", |builder, time| {
        builder.keep_alive(time, Duration::from_secs(1))
    }),
    ("keep_alive", |builder, time| builder.keep_alive(time, time)),
    ("confirm_after", |builder, time| builder.confirm_after(time)),
    ("stall_limit", |builder, time| builder.stall_limit(time)),
    ("grace", |builder, time| builder.grace(time)),
    ("wait_for_ways", |builder, time| {
        builder.wait_for_routes(10, 1000, time)
    }),
];

#[tokio::test]
async fn every_time_of_an_endpoint() {
    no_panics();
    for net in [Net::mem(), Net::tcp(), Net::udp()] {
        for (what, set) in OF_ENDPOINTS {
            for time in TIMES {
                println!("{what} {time:?}");
                patience(call(
                    &net,
                    || set(Endpoint::builder(), time),
                    |client| client,
                ))
                .await;
            }
        }
    }
    // A link on which everything takes a year brings nothing.
    for time in [TIMES[0], TIMES[1], TIMES[2], TIMES[4]] {
        let builder = || wallaby_link::emulate(Endpoint::builder(), time, None).expect("a thread");
        let net = Net::mem();
        patience(call(&net, builder, |client| client)).await;
    }
}

type Adapted = (&'static str, fn(Client, Duration) -> Client);

const OF_CALLS: [Adapted; 8] = [
    ("deadline", |client, time| client.deadline(time)),
    ("ping period", |client, time| {
        client.ping(time, Duration::from_secs(1))
    }),
    ("ping timeout", |client, time| {
        client.ping(Duration::from_millis(10), time)
    }),
    ("ping", |client, time| client.ping(time, time)),
    ("stall_limit", |client, time| client.stall_limit(time)),
    ("backoff", |client, time| {
        client.retry(Retry::idempotent(3).backoff(time, time))
    }),
    ("each", |client, time| {
        client.retry(Retry::idempotent(3).each(time))
    }),
    ("hedge", |client, time| {
        client.hedge(Hedge::idempotent(time))
    }),
];

#[tokio::test]
async fn every_time_of_a_call() {
    no_panics();
    let net = Net::tcp();
    for (what, set) in OF_CALLS {
        for time in TIMES {
            println!("{what} {time:?}");
            let adapt = |client: Client| set(client, time).deadline(Duration::from_millis(500));
            patience(call(&net, Endpoint::builder, adapt)).await;
        }
    }
    for time in TIMES {
        let endpoint = net.endpoint().await;
        patience(async { endpoint.drain(time).await.expect("nothing runs") }).await;
    }
}

type Counts = (u32, u64, Budgets, ExecutorConfig);
type Counted = fn(Builder, Counts) -> Builder;

#[tokio::test]
async fn every_count() {
    no_panics();
    let net = Net::tcp();
    for count in COUNTS {
        let (number, bytes) = (count as usize, u64::from(count) << 32);
        let executor = ExecutorConfig {
            concurrency: number,
            queue: number,
            ..ExecutorConfig::default()
        };
        let budgets = Budgets {
            requests: count,
            responses: count,
            bytes,
            depth: count,
        };
        let builders: [Counted; 8] = [
            |builder, (_, bytes, ..)| builder.longest_item(bytes),
            |builder, (_, bytes, ..)| builder.stored(bytes),
            |builder, (count, bytes, ..)| builder.remember(count as usize, bytes),
            |builder, (count, bytes, ..)| {
                builder.wait_for_routes(count as usize, bytes, Duration::from_secs(1))
            },
            |builder, (count, ..)| builder.max_depth(count),
            |builder, (_, _, budgets, _)| builder.max_budgets(budgets),
            |builder, (.., executor)| builder.executor(executor),
            |builder, (count, ..)| builder.shared_memory(count as usize),
        ];
        for set in builders {
            let builder = || {
                set(
                    Endpoint::builder(),
                    (count, bytes, budgets, executor.clone()),
                )
            };
            patience(call(&net, builder, |client| client)).await;
        }
        let retries = |client: Client| {
            let budget = RetryBudget::new(count, count);
            client.retry(Retry::idempotent(count)).retry_budget(budget)
        };
        patience(call(&net, Endpoint::builder, retries)).await;
        patience(call(&net, Endpoint::builder, |client| {
            client.budgets(budgets)
        }))
        .await;
    }
}

type Limited = (&'static str, fn(&mut Limits, u64));

/// What a limit of that many bytes or things is, of whatever type.
fn size(count: u64) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}

const OF_LIMITS: [Limited; 16] = [
    ("message", |limits, count| limits.message = count),
    ("requests", |limits, count| limits.requests = count),
    ("call", |limits, count| limits.call = count),
    ("parts", |limits, count| limits.parts = count),
    ("streams", |limits, count| {
        limits.streams = u32::try_from(count).unwrap_or(u32::MAX);
    }),
    ("partials.bytes", |limits, count| {
        limits.partials.bytes = count;
    }),
    ("partials.rate", |limits, count| {
        limits.partials.rate = count;
    }),
    ("partials.period", |limits, count| {
        limits.partials.period = Duration::from_nanos(count);
    }),
    ("partials.period in seconds", |limits, count| {
        limits.partials.period = Duration::from_secs(count);
    }),
    ("output", |limits, count| limits.output = size(count)),
    ("relayed", |limits, count| limits.relayed = count),
    ("connections", |limits, count| {
        limits.connections = size(count)
    }),
    ("calls", |limits, count| limits.calls = size(count)),
    ("branches", |limits, count| limits.branches = count),
    ("kept_call", |limits, count| limits.kept_call = count),
    ("kept", |limits, count| limits.kept = count),
];

/// Whatever a limit is, a small call and a large one end, by an answer or by an error that says why.
#[tokio::test]
async fn every_limit() {
    no_panics();
    for net in [Net::tcp(), Net::udp()] {
        for (what, set) in OF_LIMITS {
            for count in [0, 1, u64::MAX] {
                println!("{what} {count}");
                let mut limits = Limits::default();
                set(&mut limits, count);
                let builder = || Endpoint::builder().limits(limits.clone());
                patience(async {
                    let server = net.bind(builder().serve(slow())).await;
                    let client = net.bind(builder()).await;
                    for large in [0, 200_000] {
                        let within = Client::new(&client, at(&server)).deadline(SOON);
                        let mut call = work::within(within).many("x".repeat(large));
                        while let Some(answer) = call.next().await {
                            println!("{large}: {answer:?}");
                        }
                    }
                    server.close();
                    client.close();
                })
                .await;
            }
        }
    }
}

/// A quorum of none is there at once, one of more than there are servers never is; a line is as long as it may be.
#[tokio::test]
async fn every_count_of_a_multicast() {
    no_panics();
    let net = Net::tcp();
    let servers = [net.serve(slow()).await, net.serve(slow()).await];
    let client = net.endpoint().await;
    let all = || servers.iter().map(at);
    for (needed, answers) in [(0, Ok(0)), (2, Ok(2)), (3, Err(())), (usize::MAX, Err(()))] {
        patience(async {
            let what = || work::one(String::new());
            let votes = client
                .caller()
                .multicast(all(), what())
                .quorum(needed)
                .await;
            assert_eq!(
                votes.map(|votes| votes.len()).map_err(drop),
                answers,
                "{needed}"
            );
            let votes = client.caller().pipeline(all(), what()).quorum(needed).await;
            assert_eq!(
                votes.map(|votes| votes.len()).map_err(drop),
                answers,
                "{needed}"
            );
        })
        .await;
    }
    for (limit, fits) in [(0, false), (1, false), (2, true), (usize::MAX, true)] {
        patience(async {
            let settings = PipelineSettings {
                limit,
                ..PipelineSettings::default()
            };
            let caller = client.caller();
            let line = caller.pipeline_with(&settings, all(), work::one(String::new()));
            assert_eq!(line.quorum(2).await.is_ok(), fits, "{limit}");
        })
        .await;
    }
}

/// The times and counts of an endpoint that the other tests have not.
#[tokio::test]
async fn every_other_setting() {
    no_panics();
    let net = Net::tcp();
    let builders: [Timed; 4] = [
        ("shortest_heartbeat", |builder, time| {
            builder.shortest_heartbeat(time)
        }),
        ("initiator_timeout", |builder, time| {
            builder.initiator_timeout(time)
        }),
        ("strangers' time", |builder, time| {
            builder.strangers(16, time)
        }),
        ("dials", |builder, time| {
            let rate = u32::try_from(time.as_secs()).unwrap_or(u32::MAX);
            builder.dial_policy(DialPolicy::default().rate(rate, rate))
        }),
    ];
    for (what, set) in builders {
        for time in TIMES {
            println!("{what} {time:?}");
            patience(call(
                &net,
                || set(Endpoint::builder(), time),
                |client| client,
            ))
            .await;
        }
    }
    let counted: [fn(Builder, u32) -> Builder; 2] = [
        |builder, count| builder.max_requests_of_call(count),
        |builder, count| builder.strangers(count as usize, Duration::from_secs(1)),
    ];
    for set in counted {
        for count in COUNTS {
            patience(call(
                &net,
                || set(Endpoint::builder(), count),
                |client| client,
            ))
            .await;
        }
    }
}
