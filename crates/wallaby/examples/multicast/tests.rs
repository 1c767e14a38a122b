//! Processes are killed and stopped under a line: what is told of each server is what it says itself afterwards.

use std::process::Command;
use std::time::Duration;

use bytes::Bytes;
use futures_core::Stream;
use tokio::sync::mpsc;
use wallaby::{Body, Client, Endpoint, Failure, Pipeline, PipelineSettings, TargetOutcome};

use super::server::{GO, PROGRESS, PUT, Server, Sum};
use super::*;

/// Not a test: the servers of the others.
#[test]
#[ignore = "runs until its parent ends"]
fn server() {
    run(server::serve(1 << 20)).expect("it serves");
}

fn run<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.expect("a runtime").block_on(test)
}

fn three() -> Vec<Server> {
    start(3)
}

fn start(count: usize) -> Vec<Server> {
    let server = |_| {
        let mut program = Command::new(std::env::current_exe().expect("this program"));
        program.args(["--exact", "tests::server", "--ignored", "--nocapture"]);
        Server::start(&mut program).expect("it starts")
    };
    (0..count).map(server).collect()
}

/// When a server is killed.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Moment {
    /// Nothing was sent yet.
    Before,
    /// All have some of the bytes.
    During,
    /// All have all of the bytes, and nobody has answered.
    After,
}

/// A body whose chunks the test sends one by one.
fn piped() -> (mpsc::UnboundedSender<Result<Bytes, String>>, Body) {
    let (sender, chunks) = mpsc::unbounded_channel();
    (sender, Body::from_stream(Piped(chunks)))
}

struct Piped(mpsc::UnboundedReceiver<Result<Bytes, String>>);

impl Stream for Piped {
    type Item = Result<Bytes, String>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_recv(cx)
    }
}

const SOME: &[u8] = &[7; 1000];

/// A line on its way, all of whose handlers wait before they answer.
struct Line {
    servers: Vec<Server>,
    endpoint: Endpoint,
    send: mpsc::UnboundedSender<Result<Bytes, String>>,
    call: Pipeline<wallaby::One<Sum>>,
}

impl Line {
    /// Handlers answer when they are let go, or at once.
    fn begin(servers: Vec<Server>, settings: &PipelineSettings, deadline: Duration) -> Self {
        Self::begin_with(servers, settings, deadline, true)
    }

    fn begin_with(
        servers: Vec<Server>,
        settings: &PipelineSettings,
        deadline: Duration,
        wait: bool,
    ) -> Self {
        let endpoint = Endpoint::client().expect("a runtime");
        let (send, body) = piped();
        let line = servers.iter().map(|server| server.address.clone());
        let target = PUT.target((wait,)).with_body(body);
        let caller = endpoint.caller().deadline(deadline);
        let (period, timeout) = (Duration::from_millis(100), Duration::from_secs(5));
        let call = caller
            .ping(period, timeout)
            .pipeline_with(settings, line, target);
        Self {
            servers,
            endpoint,
            send,
            call,
        }
    }

    fn client(&self, server: usize) -> Client {
        Client::new(&self.endpoint, self.servers[server].address.clone())
    }

    fn send(&self) {
        let _ = self.send.send(Ok(Bytes::from_static(SOME)));
    }

    async fn progress(&self, server: usize) -> (u64, bool) {
        let progress = self.client(server).call(&PROGRESS, ());
        progress.await.expect("it lives")
    }

    /// Waits until all servers have got so far.
    async fn until(&self, there: impl Fn((u64, bool)) -> bool) {
        for server in 0..self.servers.len() {
            while !there(self.progress(server).await) {
                tokio::task::yield_now().await;
            }
        }
    }

    async fn finish(&mut self) -> Vec<TargetOutcome> {
        while self.call.next().await.is_some() {}
        self.call.outcomes()
    }

    /// What was told of servers that live is what they say.
    async fn check(&self, outcomes: &[TargetOutcome], victim: usize, all: u64) {
        for (server, outcome) in outcomes.iter().enumerate() {
            if server == victim {
                continue;
            }
            let (got, whole) = self.progress(server).await;
            let told = match outcome {
                TargetOutcome::Answered => whole && got == all,
                TargetOutcome::Failed(_) => !whole,
                TargetOutcome::NotDelivered(_) => got == 0 && !whole,
                TargetOutcome::Unknown(_) => true,
                other => panic!("{other:?}"),
            };
            assert!(told, "server {server} has {got}, {whole}: {outcomes:?}");
        }
    }
}

#[test]
fn what_is_told_of_a_line_is_true_whoever_is_killed_and_when() {
    run(async {
        for victim in 0..3 {
            for moment in [Moment::Before, Moment::During, Moment::After] {
                killed(victim, moment).await;
            }
        }
    });
}

async fn killed(victim: usize, moment: Moment) {
    let mut servers = three();
    let kill = |server: &mut Server| {
        server.process.kill().expect("it lives");
        server.process.wait().expect("it ends");
    };
    if moment == Moment::Before {
        kill(&mut servers[victim]);
    }
    let settings = PipelineSettings::default();
    let mut line = Line::begin(servers, &settings, Duration::from_secs(60));
    let some = SOME.len() as u64;
    let mut all = some;
    line.send();
    match moment {
        Moment::Before => {}
        Moment::During => {
            line.until(|(got, _)| got == some).await;
            kill(&mut line.servers[victim]);
            line.send();
            all += some;
        }
        Moment::After => {}
    }
    let (end, _) = mpsc::unbounded_channel();
    drop(std::mem::replace(&mut line.send, end));
    if moment == Moment::After {
        line.until(|(_, whole)| whole).await;
        kill(&mut line.servers[victim]);
    }
    for server in (0..3).filter(|server| *server != victim) {
        line.client(server).call(&GO, ()).await.expect("it lives");
    }
    let outcomes = line.finish().await;
    line.check(&outcomes, victim, all).await;
    for (server, outcome) in outcomes.iter().enumerate() {
        let expected = match (moment, server.cmp(&victim)) {
            (_, std::cmp::Ordering::Less) => matches!(outcome, TargetOutcome::Answered),
            (Moment::Before, _) => matches!(outcome, TargetOutcome::NotDelivered(_)),
            (_, std::cmp::Ordering::Equal) => {
                matches!(outcome, TargetOutcome::Unknown(Failure::Lost(_)))
            }
            (Moment::During, _) => matches!(outcome, TargetOutcome::Failed(_)),
            (Moment::After, _) => matches!(outcome, TargetOutcome::Answered),
        };
        assert!(expected, "{victim} killed {moment:?}: {outcomes:?}");
    }
}

#[test]
fn what_is_told_of_a_long_line_is_true_at_any_moment() {
    for seed in 0..4 {
        println!("seed {seed}");
        run(killed_at_random(seed));
    }
}

/// The longest line that there is by default. Nobody waits for the others: where the bytes are when one server is killed is
/// chance, as is what has been answered then.
async fn killed_at_random(seed: u64) {
    const SERVERS: usize = 16;
    let mut random = fastrand::Rng::with_seed(seed);
    let settings = PipelineSettings::default();
    let chunks = 1 + random.usize(..200);
    let (moment, victim) = (random.usize(..=chunks), random.usize(..SERVERS));
    let watched = random.usize(..SERVERS);
    let deadline = Duration::from_secs(60);
    let mut line = Line::begin_with(start(SERVERS), &settings, deadline, false);
    for chunk in 0..chunks {
        line.send();
        if chunk == moment {
            // Some of it has come so far, or nothing has left.
            if random.usize(..3) > 0 {
                while line.progress(watched).await.0 == 0 {}
            }
            line.servers[victim].process.kill().expect("it lives");
        }
    }
    let (end, _) = mpsc::unbounded_channel();
    drop(std::mem::replace(&mut line.send, end));
    if moment == chunks {
        let whole = random.usize(..2) > 0;
        while whole && !line.progress(watched).await.1 {}
        line.servers[victim].process.kill().expect("it lives");
    }
    let outcomes = line.finish().await;
    let all = (chunks * SOME.len()) as u64;
    line.check(&outcomes, victim, all).await;
    for (server, outcome) in outcomes.iter().enumerate() {
        let is_known = match server.cmp(&victim) {
            std::cmp::Ordering::Less => matches!(outcome, TargetOutcome::Answered),
            std::cmp::Ordering::Equal => !matches!(outcome, TargetOutcome::Failed(_)),
            // Nobody knows whether the victim sent them anything only where it did not.
            std::cmp::Ordering::Greater => {
                let is_unknown = matches!(outcome, TargetOutcome::Unknown(_));
                !is_unknown || line.progress(server).await == (0, false)
            }
        };
        assert!(
            is_known,
            "seed {seed}: {victim} killed after {moment} of {chunks}: {outcomes:?}"
        );
    }
}

/// A stopped process can't be told from a slow one before the deadline, by those that wait for it.
#[cfg(target_os = "linux")]
#[test]
fn of_a_server_that_is_stopped_nothing_is_known() {
    use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
    run(async {
        for victim in 0..3 {
            let settings = PipelineSettings::default();
            let mut line = Line::begin(three(), &settings, Duration::from_secs(2));
            line.send();
            let some = SOME.len() as u64;
            line.until(|(got, _)| got == some).await;
            let process = Pid::from_child(&line.servers[victim].process);
            kill_process(process, Signal::STOP).expect("it is ours");
            // It may go on for a little.
            waitpid(Some(process), WaitOptions::UNTRACED).expect("it stops");
            line.send();
            let (end, _) = mpsc::unbounded_channel();
            drop(std::mem::replace(&mut line.send, end));
            for server in (0..3).filter(|server| *server != victim) {
                line.client(server).call(&GO, ()).await.expect("it lives");
            }
            let outcomes = line.finish().await;
            assert!(
                matches!(outcomes[victim], TargetOutcome::Unknown(_)),
                "{outcomes:?}"
            );
            line.check(&outcomes, victim, 2 * some).await;
            for outcome in &outcomes[victim + 1..] {
                assert!(!matches!(outcome, TargetOutcome::Answered), "{outcomes:?}");
            }
        }
    });
}

#[test]
fn each_way_brings_the_message_to_all() {
    run(async {
        let servers = three();
        let endpoint = Endpoint::client().expect("a runtime");
        for (name, way) in WAYS {
            // As much as a server may store, but for what its chunks take besides their bytes.
            let sent = send(&endpoint.caller(), &servers, 15, way).await;
            assert!(sent.is_ok(), "{name}: {sent:?}");
        }
    });
}
