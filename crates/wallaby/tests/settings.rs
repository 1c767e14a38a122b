//! What settings make of times and counts that nobody means: each does what its documentation says, and none spins, overflows
//! or panics.

mod common;

use std::time::Duration;

use common::{Net, at, patience, service, work};
use wallaby::{
    Budgets, Builder, Client, Endpoint, ExecutorConfig, Hedge, Many, Request, Retry, RetryBudget,
    Service,
};

const TIMES: [Duration; 5] = [
    Duration::ZERO,
    Duration::from_nanos(1),
    Duration::from_millis(3),
    Duration::from_secs(u64::MAX),
    Duration::MAX,
];

const COUNTS: [u32; 3] = [0, 1, u32::MAX];

/// It takes some turns, and asks once what time is left.
fn slow() -> Service {
    service().method(
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
        builder.wait_for_ways(10, 1000, time)
    }),
];

#[tokio::test]
async fn every_time_of_an_endpoint() {
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
        let builder = || Endpoint::builder().link_delay(time);
        let net = Net::mem();
        patience(call(&net, builder, |client| client)).await;
    }
}

type Adapted = (&'static str, fn(Client, Duration) -> Client);

const OF_CALLS: [Adapted; 9] = [
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
    ("observed", |client, time| {
        client.hedge(Hedge::idempotent_observed(time))
    }),
];

#[tokio::test]
async fn every_time_of_a_call() {
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
        let builders: [Counted; 6] = [
            |builder, (count, bytes, ..)| builder.remember(count as usize, bytes),
            |builder, (count, bytes, ..)| {
                builder.wait_for_ways(count as usize, bytes, Duration::from_secs(1))
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
