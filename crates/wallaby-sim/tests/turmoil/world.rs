//! Runs a plan.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use turmoil::{Builder, Sim};
use wallaby::{Address, Client, Endpoint, Failure, Many, Outcome, Request, Status};

use crate::oracle::{End, Log, Seen, Verdict};
use crate::plan::{Fault, Host, PING, Plan};
use crate::tasks::{self, Answer, Step, Task};

const PORT: u16 = 4000;

/// After so long a silent connection is given up on which something waits, in milliseconds.
const SILENCE: u64 = 2_000;

/// For so long hosts may take to say what they remember.
const REST: u64 = 10;

/// No world lasts longer, in milliseconds.
const END: u64 = 90_000;

#[wallaby::service(package = "test")]
trait Tree {
    /// Executes the task and its subtree.
    async fn execute(call: u64, task: Task) -> Many<Answer>;
}

/// What all hosts of a world share.
#[derive(Clone)]
struct World {
    plan: Arc<Plan>,
    log: Arc<Mutex<Log>>,
    /// True when all is over.
    rest: watch::Sender<bool>,
}

/// What is to be done in a world, in order.
#[derive(Debug)]
enum Event {
    Fault(Fault),
    Restart(usize),
    Repair(usize, usize),
    RepairOneWay(usize, usize),
    Release(usize, usize),
}

pub(crate) fn run(seed: u64, print: bool) -> Verdict {
    let plan = Arc::new(Plan::random(seed));
    let log = Arc::new(Mutex::new(Log {
        print,
        ..Log::default()
    }));
    let rest = watch::Sender::new(false);
    let world = World { plan, log, rest };
    if print {
        println!("{:#?}", world.plan);
    }
    wallaby::simulation::seed(seed);
    let (low, high) = world.plan.latency;
    let mut sim = Builder::new()
        .rng_seed(seed)
        .epoch(std::time::UNIX_EPOCH)
        .simulation_duration(Duration::from_millis(2 * END))
        .tick_duration(Duration::from_millis(1))
        .min_message_latency(Duration::from_millis(low))
        .max_message_latency(Duration::from_millis(high))
        .tcp_capacity(4096)
        .udp_capacity(4096)
        .build();
    for index in 0..world.plan.hosts.len() {
        let world = world.clone();
        sim.host(name(index), move || world.clone().host(index));
    }
    world.drive(&mut sim);
    world.log().judge(&world.plan)
}

fn name(host: usize) -> String {
    format!("host{host}")
}

fn now() -> u64 {
    turmoil::sim_elapsed().unwrap_or_default().as_millis() as u64
}

impl World {
    fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn address(&self, host: u32) -> Address {
        let socket = SocketAddr::new(turmoil::lookup(name(host as usize)), PORT);
        match self.plan.hosts[host as usize] {
            Host::Udp => Address::Udp(socket),
            Host::Tcp | Host::Client => Address::Tcp(socket),
        }
    }

    /// Lets the time pass and the faults happen.
    fn drive(&self, sim: &mut Sim<'_>) {
        let mut events: Vec<(u64, Event)> = Vec::new();
        for (at, fault) in &self.plan.faults {
            events.push((*at, Event::Fault(*fault)));
            events.push(match *fault {
                Fault::Crash(host, long) => (at + long, Event::Restart(host)),
                Fault::Cut(one, other, long) => (at + long, Event::Repair(one, other)),
                Fault::CutOneWay(one, other, long) => (at + long, Event::RepairOneWay(one, other)),
                Fault::Hold(one, other, long) => (at + long, Event::Release(one, other)),
            });
        }
        events.sort_by_key(|(at, _)| *at);
        let mut events = events.into_iter().peekable();
        let last = self.plan.calls.iter().map(|call| call.at).max();
        let mut quiet = 0;
        for now in 0..END {
            let busy = Some(now) <= last || events.peek().is_some() || self.log().is_busy();
            quiet = if busy { 0 } else { quiet + 1 };
            match (quiet, self.plan.rest) {
                (0, _) => {}
                (_, None) => return,
                (quiet, Some(rest)) if quiet == rest => drop(self.rest.send_replace(true)),
                (quiet, Some(rest)) if quiet == rest + REST => return,
                _ => {}
            }
            while let Some((_, event)) = events.next_if(|(at, _)| *at <= now) {
                self.log().note(now, || format!("{event:?}"));
                self.apply(sim, now, &event);
            }
            if let Err(error) = sim.step() {
                self.log().broken = Some(error.to_string());
                return;
            }
        }
    }

    fn apply(&self, sim: &mut Sim<'_>, now: u64, event: &Event) {
        match *event {
            Event::Fault(fault) => {
                let mut log = self.log();
                log.faults += 1;
                log.first_fault.get_or_insert(now);
                drop(log);
                match fault {
                    Fault::Crash(host, _) => {
                        self.crash(now, host);
                        sim.crash(name(host));
                    }
                    Fault::Cut(one, other, _) => sim.partition(name(one), name(other)),
                    Fault::CutOneWay(one, other, _) => {
                        sim.partition_oneway(name(one), name(other));
                    }
                    Fault::Hold(one, other, _) => sim.hold(name(one), name(other)),
                }
            }
            Event::Restart(host) => {
                self.crash(now, host); // it may run again already
                sim.bounce(name(host));
            }
            Event::Repair(one, other) => sim.repair(name(one), name(other)),
            Event::RepairOneWay(one, other) => sim.repair_oneway(name(one), name(other)),
            Event::Release(one, other) => sim.release(name(one), name(other)),
        }
    }

    /// The calls of this host go with it.
    fn crash(&self, now: u64, host: usize) {
        let mut log = self.log();
        for (index, seen) in &mut log.calls {
            if self.plan.calls[*index].from == host && seen.end.is_none() {
                seen.end = Some((now, End::Gone));
            }
            seen.settled |= self.plan.calls[*index].from == host;
        }
    }

    /// What a host runs, from its start to its crash.
    async fn host(self, index: usize) -> turmoil::Result {
        let silence = Duration::from_millis(SILENCE);
        let mut builder = Endpoint::builder().keep_alive(silence / 4, silence);
        if self.plan.hosts[index] != Host::Client {
            let address = self.address(index as u32).to_string();
            builder = builder
                .listen(&address)
                .serve(tree::service(Server(self.clone())));
        }
        let endpoint = builder.bind().await?;
        let began = now();
        for (number, call) in self.plan.calls.iter().enumerate() {
            if call.from == index && call.at >= began {
                tokio::spawn(self.clone().call(endpoint.clone(), number));
            }
        }
        let mut rest = self.rest.subscribe();
        rest.wait_for(|over| *over).await?;
        let left = endpoint.remembered().requests;
        self.log().left.insert(index, left);
        std::future::pending().await
    }

    async fn call(self, endpoint: Endpoint, index: usize) {
        let plan = &self.plan.calls[index];
        sleep_until(plan.at).await;
        self.log().calls.insert(index, Seen::default());
        let client = Client::new(&endpoint, self.address(plan.to))
            .deadline(Duration::from_millis(plan.deadline))
            .ping(Duration::from_millis(PING.0), Duration::from_millis(PING.1));
        let mut call = tree::within(client).execute(index as u64, plan.task.clone());
        self.log()
            .note(now(), || format!("call {index} begins: {}", call.id()));
        let abort = plan.abort.map(|after| plan.at + after);
        let gave_up = loop {
            let next = call.next();
            let next = match abort {
                None => next.await,
                Some(at) => tokio::select! {
                    biased;
                    next = next => next,
                    () = sleep_until(at) => break true,
                },
            };
            let Some(next) = next else { break false };
            self.log().arrived(now(), index, next);
        };
        let outcome = call.outcome();
        let end = match (gave_up, &outcome) {
            (true, _) => End::Aborted,
            (_, Some(Outcome::Complete { statuses })) => End::Complete(*statuses),
            (_, Some(Outcome::Failed(Failure::Deadline { .. }))) => End::Deadline,
            (_, other) => End::Failed(format!("{other:?}")),
        };
        self.log().ended(now(), index, end);
        let _ = call.stop_within(Duration::from_secs(3600)).await;
        self.log().calls.entry(index).or_default().settled = true;
    }
}

async fn sleep_until(at: u64) {
    let left = at.saturating_sub(now());
    tokio::time::sleep(Duration::from_millis(left)).await;
}

struct Server(World);

#[wallaby::serve]
impl Tree for Server {
    async fn execute(
        &self,
        request: Request<Many<Answer>>,
        call: u64,
        task: Task,
    ) -> Result<(), Status> {
        let world = &self.0;
        world
            .log()
            .started(now(), (call as usize, task.number), request.id());
        for step in task.steps {
            match step {
                Step::Reply(answer) => request.reply(answer).await?,
                Step::Delegate(to, below) => {
                    let target = tree::execute(call, below);
                    request.delegate(world.address(to), target).await?;
                }
                Step::Forward(to, below) => {
                    request
                        .forward(world.address(to), tree::execute(call, below))
                        .await?;
                    return Ok(());
                }
                Step::Wait(millis) => tokio::time::sleep(Duration::from_millis(millis)).await,
                Step::Fail => return Err(Status::new(wallaby::Code::Internal, "as planned")),
                Step::Panic => panic!("{}", tasks::PANIC),
            }
        }
        Ok(())
    }
}
