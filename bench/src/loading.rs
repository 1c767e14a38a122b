//! A server of Wallaby as a client, too: operations that it begins itself, at random times or whenever one is done.

use crate::fleet::{LoadOrder, Loaded};
use crate::operator::Operator;
use crate::pattern::{Pattern, Routes};
use crate::process::wake_exactly;
use crate::random::Random;
use anyhow::{Context, Result, ensure};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use wallaby::{Address, Endpoint};

/// Begins operations from a thread beside the runtime that carries them out.
pub(crate) struct Loading {
    endpoint: Endpoint,
    servers: Vec<Address>,
    own: u8,
    runtime: Handle,
    done: Sender<Done>,
    results: Receiver<Done>,
}

/// An operation is over; the operator is free for another one.
struct Done {
    operator: Operator,
    latency: Result<Duration>,
}

/// What goes on during an order.
struct Work<'loading> {
    loading: &'loading Loading,
    pattern: Pattern,
    routes: Routes,
    idle: Vec<Operator>,
    under_way: usize,
    loaded: Loaded,
}

impl Loading {
    pub(crate) fn new(endpoint: Endpoint, servers: Vec<Address>, own: u8, runtime: Handle) -> Self {
        let (done, results) = channel();
        Self {
            endpoint,
            servers,
            own,
            runtime,
            done,
            results,
        }
    }

    /// Carries out an order; returns when all of its operations are over.
    pub(crate) fn carry_out(&mut self, order: &LoadOrder) -> Result<Loaded> {
        ensure!(order.under_way > 0, "no operation may be under way");
        let operator = || Operator::new(&self.endpoint, self.servers.clone(), order.payload);
        let mut work = Work {
            pattern: order.pattern,
            routes: Routes::new(u8::try_from(self.servers.len())?, order.seed).without(self.own),
            idle: (0..order.under_way).map(|_| operator()).collect(),
            under_way: 0,
            loaded: Loaded::default(),
            loading: self,
        };
        let end = Instant::now() + order.time;
        match order.per_second {
            Some(per_second) => work.begin_at_random(per_second, order.seed, end)?,
            None => work.keep_under_way(end)?,
        }
        while work.under_way > 0 {
            work.take(Instant::now() + PATIENCE)?;
        }
        Ok(work.loaded)
    }
}

impl Work<'_> {
    fn begin_at_random(&mut self, per_second: f64, seed: u64, end: Instant) -> Result<()> {
        wake_exactly();
        // Not the numbers that choose the servers.
        let mut random = Random::new(!seed);
        let mut next = Instant::now();
        loop {
            let pause = random.pause(per_second);
            next = match next.checked_add(pause) {
                Some(next) if next < end => next,
                _ => return Ok(()),
            };
            thread::sleep(next.saturating_duration_since(Instant::now()));
            while self.take_one()? {}
            match self.idle.pop() {
                Some(operator) => self.begin(operator, next),
                None => self.loaded.refused += 1,
            }
        }
    }

    fn keep_under_way(&mut self, end: Instant) -> Result<()> {
        while Instant::now() < end {
            while let Some(operator) = self.idle.pop() {
                self.begin(operator, Instant::now());
            }
            self.take(end + PATIENCE)?;
        }
        Ok(())
    }

    /// Begins an operation that was due at some time: how long it takes is counted from then.
    fn begin(&mut self, mut operator: Operator, due: Instant) {
        let (pattern, done) = (self.pattern, self.loading.done.clone());
        operator.operation += 1;
        let number = operator.operation;
        operator.plan.draw(pattern, &mut self.routes, number);
        self.under_way += 1;
        self.loading.runtime.spawn(async move {
            let latency = operator.operate(pattern).await.map(|()| due.elapsed());
            // Nobody listens if the server is about to end.
            let _ = done.send(Done { operator, latency });
        });
    }

    /// Waits for an operation's end.
    fn take(&mut self, end: Instant) -> Result<()> {
        let left = end.saturating_duration_since(Instant::now());
        let done = self.loading.results.recv_timeout(left);
        self.count(done.context("operations under load did not end")?)
    }

    fn take_one(&mut self) -> Result<bool> {
        match self.loading.results.try_recv() {
            Ok(done) => self.count(done).map(|()| true),
            Err(_) => Ok(false),
        }
    }

    fn count(&mut self, done: Done) -> Result<()> {
        self.under_way -= 1;
        let nanoseconds = u64::try_from(done.latency?.as_nanos()).unwrap_or(u64::MAX);
        self.loaded.latencies.push(nanoseconds);
        self.idle.push(done.operator);
        Ok(())
    }
}

/// How long operations may take to end.
const PATIENCE: Duration = Duration::from_secs(10);
