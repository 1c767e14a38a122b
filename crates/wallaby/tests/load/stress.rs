//! Many clients, many calls, random trees over endpoints of all transports, on several threads: every answer arrives
//! exactly once, and in the end nothing is left.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::common::{Net, at, until};
use fastrand::Rng;
use serde::{Deserialize, Serialize};
use wallaby::{
    Address, Builder, CallError, Code, Endpoint, ExecutorConfig, Many, Metrics, Outcome, Request,
    Schedule, Status,
};

const HOUR: Duration = Duration::from_secs(3600);

/// What a request does, and what the requests that it sends do.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Plan {
    steps: Vec<Step>,
    end: End,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
enum Step {
    /// Answers with this number, and this many bytes.
    Reply(u32, u32),
    /// Sends a request to this server.
    Delegate(usize, Plan),
    Yield,
    Flush,
    /// Goes on in another task.
    Move,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
enum End {
    Drop,
    Respond(u32),
    Forward(usize, Box<Plan>),
    /// The handler returns a status; nothing must be held back then.
    Fail,
    Panic,
}

/// Grows as it is told.
#[wallaby::service(package = "test")]
trait Tree {
    async fn grow(plan: Plan) -> Many<(u32, Vec<u8>)>;
}

struct Grower {
    servers: Arc<OnceLock<Vec<Address>>>,
}

#[wallaby::serve]
impl Tree for Grower {
    async fn grow(&self, request: Request<Many<(u32, Vec<u8>)>>, plan: Plan) -> Result<(), Status> {
        let servers = Arc::clone(&self.servers);
        let mut steps = plan.steps.into_iter();
        while let Some(step) = steps.next() {
            match step {
                Step::Reply(number, size) => {
                    request.reply((number, vec![7; size as usize])).await?
                }
                Step::Delegate(server, plan) => {
                    request
                        .delegate(&servers.get().expect("set")[server], tree::grow(plan))
                        .await?;
                }
                Step::Yield => tokio::task::yield_now().await,
                Step::Flush => request.flush().await,
                Step::Move => {
                    let rest = Plan {
                        steps: steps.collect(),
                        end: plan.end,
                    };
                    let same = Self { servers };
                    tokio::spawn(async move {
                        // Boxed, since it contains itself.
                        let moved: std::pin::Pin<Box<dyn Future<Output = _> + Send>> =
                            Box::pin(async move { finish(&same, request, rest).await });
                        let _ = moved.await;
                    });
                    return Ok(());
                }
            }
        }
        end(&servers, request, plan.end).await
    }
}

/// The rest of a plan, in a task.
async fn finish(
    grower: &Grower,
    request: Request<Many<(u32, Vec<u8>)>>,
    plan: Plan,
) -> Result<(), Status> {
    let servers = Arc::clone(&grower.servers);
    for step in plan.steps {
        match step {
            Step::Reply(number, size) => request.reply((number, vec![7; size as usize])).await?,
            Step::Delegate(server, plan) => {
                request
                    .delegate(&servers.get().expect("set")[server], tree::grow(plan))
                    .await?;
            }
            Step::Yield | Step::Move => tokio::task::yield_now().await,
            Step::Flush => request.flush().await,
        }
    }
    match plan.end {
        // Nobody hears what a task returns.
        End::Fail | End::Panic => {
            // The handler may still be at its end, on another thread, and the latest message be held back until then.
            request.flush().await;
            request.fail(&Status::new(Code::Aborted, "as planned"));
            Ok(())
        }
        other => end(&servers, request, other).await,
    }
}

async fn end(
    servers: &OnceLock<Vec<Address>>,
    request: Request<Many<(u32, Vec<u8>)>>,
    end: End,
) -> Result<(), Status> {
    match end {
        End::Drop => drop(request),
        End::Respond(number) => request.respond((number, Vec::new())).await?,
        End::Forward(server, plan) => {
            request
                .forward(&servers.get().expect("set")[server], tree::grow(*plan))
                .await?
        }
        End::Fail => {
            request.flush().await;
            return Err(Status::new(Code::Aborted, "as planned"));
        }
        End::Panic => {
            request.flush().await;
            // Without the hook, which would print it.
            std::panic::resume_unwind(Box::new("as planned"));
        }
    }
    Ok(())
}

/// What a plan leads to.
#[derive(Debug, Default, Clone, PartialEq)]
struct Expected {
    requests: u64,
    answers: Vec<u32>,
    statuses: u64,
    panics: u64,
}

fn plan(random: &mut Rng, levels: u32, servers: usize, expected: &mut Expected) -> Plan {
    expected.requests += 1;
    let number = |expected: &mut Expected| {
        expected.answers.push(expected.answers.len() as u32);
        expected.answers.len() as u32 - 1
    };
    let mut steps = Vec::new();
    let mut moved = false;
    for _ in 0..random.u64(..5) {
        steps.push(match random.u64(..10) {
            0..4 => {
                let size = if random.u64(..40) == 0 {
                    100_000
                } else {
                    random.u64(..50)
                };
                Step::Reply(number(expected), size as u32)
            }
            4..7 if levels > 0 => {
                let server = random.usize(..servers);
                Step::Delegate(server, plan(random, levels - 1, servers, expected))
            }
            7 => Step::Flush,
            8 if !moved => {
                moved = true;
                Step::Move
            }
            _ => Step::Yield,
        });
    }
    let end = match random.u64(..12) {
        0..5 => End::Drop,
        5..7 => End::Respond(number(expected)),
        7..10 if levels > 0 => {
            let server = random.usize(..servers);
            End::Forward(
                server,
                Box::new(plan(random, levels - 1, servers, expected)),
            )
        }
        10 => {
            expected.statuses += 1;
            End::Fail
        }
        11 => {
            expected.statuses += 1;
            expected.panics += u64::from(!moved);
            End::Panic
        }
        _ => End::Drop,
    };
    Plan { steps, end }
}

/// Makes calls one after the other, each another tree.
async fn client(endpoint: Endpoint, servers: Vec<Address>, seed: u64, calls: u32) -> Expected {
    let mut random = Rng::with_seed(seed);
    let mut total = Expected::default();
    for call in 0..calls {
        let mut expected = Expected::default();
        let plan = plan(&mut random, 4, servers.len(), &mut expected);
        let server = &servers[random.usize(..servers.len())];
        let mut call_ = tree::at(&endpoint, server).grow(plan.clone());
        let mut got = Expected {
            requests: expected.requests,
            panics: expected.panics,
            ..Expected::default()
        };
        while let Some(item) = call_.next().await {
            match item {
                Ok((number, _)) => got.answers.push(number),
                Err(CallError::Status(status)) => {
                    assert!(
                        matches!(status.code(), Code::Aborted | Code::Panicked),
                        "{status}"
                    );
                    got.statuses += 1;
                }
                Err(other) => panic!("seed {seed}, call {call}: {other}\n{plan:#?}"),
            }
        }
        got.answers.sort_unstable();
        assert_eq!(got, expected, "seed {seed}, call {call}: {plan:#?}");
        assert_eq!(
            call_.outcome(),
            Some(Outcome::Complete {
                statuses: expected.statuses
            })
        );
        total.requests += expected.requests;
        total.answers.extend(&expected.answers);
        total.statuses += expected.statuses;
        total.panics += expected.panics;
    }
    total
}

fn sum(endpoints: &[Endpoint], field: impl Fn(Metrics) -> u64) -> u64 {
    endpoints
        .iter()
        .map(|endpoint| field(endpoint.metrics()))
        .sum()
}

/// An endpoint that gives up no connection because the machine is busy: what was written on it would not be in the sums.
fn patient() -> Builder {
    Endpoint::builder()
        .dial_timeout(HOUR)
        .dial_back_timeout(HOUR)
}

/// Random trees over six servers, by eight clients, of which half cannot be dialled.
async fn storm(executor: ExecutorConfig, calls: u32, seed: u64) {
    let given = std::env::var("WALLABY_SEED").ok();
    let seed = given.and_then(|given| given.parse().ok()).unwrap_or(seed);
    println!("to repeat: WALLABY_SEED={seed}");
    let nets = [Net::mem(), Net::tcp(), Net::unix()];
    let servers = Arc::new(OnceLock::new());
    let mut endpoints = Vec::new();
    for net in nets.iter().chain(&nets) {
        let grower = Grower {
            servers: Arc::clone(&servers),
        };
        let builder = patient()
            .executor(executor.clone())
            .serve(tree::service(grower));
        endpoints.push(net.bind(builder).await);
    }
    let addresses: Vec<_> = endpoints.iter().map(at).collect();
    servers.set(addresses.clone()).expect("set once");
    let mut tasks = Vec::new();
    for number in 0..8 {
        // Nothing is asked about: on a busy machine it might be learnt so before it is told.
        let builder = patient().ping(HOUR, 2 * HOUR);
        let endpoint = match number % 2 {
            0 => nets[number % 3].bind(builder).await,
            _ => builder.bind().await.expect("there is a runtime"),
        };
        endpoints.push(endpoint.clone());
        tasks.push(tokio::spawn(client(
            endpoint,
            addresses.clone(),
            seed + number as u64,
            calls,
        )));
    }
    let mut total = Expected::default();
    for task in tasks {
        let part = task.await.expect("no panic");
        total.requests += part.requests;
        total.answers.extend(&part.answers);
        total.statuses += part.statuses;
        total.panics += part.panics;
    }

    until(|| endpoints.iter().all(|endpoint| endpoint.load().is_idle())).await;
    until(|| {
        sum(&endpoints, |metrics| metrics.messages_sent)
            == sum(&endpoints, |metrics| metrics.messages_received)
    })
    .await;
    until(|| {
        sum(&endpoints, |metrics| metrics.bytes_sent)
            == sum(&endpoints, |metrics| metrics.bytes_received)
    })
    .await;
    let count = |field: fn(Metrics) -> u64| sum(&endpoints, field);
    assert_eq!(count(|metrics| metrics.calls_started), 8 * u64::from(calls));
    assert_eq!(
        count(|metrics| metrics.calls_completed),
        8 * u64::from(calls)
    );
    assert_eq!(count(|metrics| metrics.requests_received), total.requests);
    assert_eq!(
        count(|metrics| metrics.responses_received),
        total.answers.len() as u64 + total.statuses
    );
    assert_eq!(count(|metrics| metrics.statuses_received), total.statuses);
    assert_eq!(count(|metrics| metrics.statuses_sent), total.statuses);
    assert_eq!(count(|metrics| metrics.panics), total.panics);
    assert!(count(|metrics| metrics.relayed) > 0);
    for (name, none) in [
        ("duplicates", count(|metrics| metrics.duplicates_dropped)),
        ("forged", count(|metrics| metrics.forged_dropped)),
        ("undeliverable", count(|metrics| metrics.undeliverable)),
        ("late", count(|metrics| metrics.late_dropped)),
        ("late errors", count(|metrics| metrics.late_errors)),
        ("refused", count(|metrics| metrics.requests_refused)),
        ("stuck", count(|metrics| metrics.stuck)),
        (
            "connections ended",
            count(|metrics| metrics.connections_ended),
        ),
    ] {
        assert_eq!(none, 0, "{name}");
    }
}

/// Calls of which many are given up after some answers, or at once.
async fn fickle(endpoint: Endpoint, servers: Vec<Address>, seed: u64, calls: u32) -> u64 {
    let mut random = Rng::with_seed(seed);
    let mut aborted = 0;
    for _ in 0..calls {
        let mut expected = Expected::default();
        let plan = plan(&mut random, 4, servers.len(), &mut expected);
        let server = &servers[random.usize(..servers.len())];
        let mut call = tree::at(&endpoint, server).grow(plan);
        let patience = random.u64(..4);
        for _ in 0..patience {
            if call.next().await.is_none() {
                break;
            }
        }
        aborted += u64::from(call.outcome().is_none());
        drop(call);
    }
    aborted
}

fn executor(concurrency: usize, schedule: Schedule) -> ExecutorConfig {
    ExecutorConfig {
        concurrency,
        queue: 100_000,
        schedule,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn with_room_for_all() {
    let _alone = crate::ALONE.lock().await;
    storm(ExecutorConfig::default(), 150, 1).await;
}

/// Most requests wait in the queue for a while, the oldest call's first.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn with_little_room() {
    let _alone = crate::ALONE.lock().await;
    storm(executor(2, Schedule::OldestCall), 100, 1000).await;
}

#[tokio::test]
async fn on_one_thread() {
    let _alone = crate::ALONE.lock().await;
    storm(executor(3, Schedule::EarliestDeadline), 60, 2000).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn calls_that_are_given_up_leave_nothing() {
    let _alone = crate::ALONE.lock().await;
    let nets = [Net::mem(), Net::tcp(), Net::unix()];
    let servers = Arc::new(OnceLock::new());
    let mut endpoints = Vec::new();
    for net in nets.iter().chain(&nets) {
        let grower = Grower {
            servers: Arc::clone(&servers),
        };
        let builder = Endpoint::builder()
            .executor(executor(3, Schedule::Fifo))
            .serve(tree::service(grower));
        endpoints.push(net.bind(builder).await);
    }
    let addresses: Vec<_> = endpoints.iter().map(at).collect();
    servers.set(addresses.clone()).expect("set once");
    let mut tasks = Vec::new();
    for number in 0..8 {
        let endpoint = match number % 2 {
            0 => nets[number % 3].endpoint().await,
            _ => crate::common::client(),
        };
        endpoints.push(endpoint.clone());
        tasks.push(tokio::spawn(fickle(
            endpoint,
            addresses.clone(),
            3000 + number as u64,
            120,
        )));
    }
    let mut aborted = 0;
    for task in tasks {
        aborted += task.await.expect("no panic");
    }
    assert!(aborted > 100, "{aborted} were given up");
    until(|| endpoints.iter().all(|endpoint| endpoint.load().is_idle())).await;
    let count = |field: fn(Metrics) -> u64| sum(&endpoints, field);
    assert_eq!(count(|metrics| metrics.calls_started), 960);
    let ended = count(|metrics| metrics.calls_completed) + count(|metrics| metrics.calls_aborted);
    assert_eq!(ended, 960);
    assert_eq!(count(|metrics| metrics.forged_dropped), 0);
    assert_eq!(count(|metrics| metrics.stuck), 0);
    // All is as good as new.
    for endpoint in &endpoints {
        for server in &addresses {
            let plan = Plan {
                steps: vec![Step::Reply(7, 0)],
                end: End::Drop,
            };
            let answers = tree::at(endpoint, server).grow(plan).collect().await;
            assert_eq!(answers, Ok(vec![(7, Vec::new())]));
        }
    }
}
