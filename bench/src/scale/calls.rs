//! Live calls: one task has `n` under way all the time; the server answers the oldest when another one comes.

use super::Many;
use super::pauses::Pauses;
use super::rig::{PATIENCE, Place, Rig, message};
use super::server::HOLD;
use crate::comparison::micros;
use crate::harness::{Latencies, System, Traffic};
use crate::row::Scale;
use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use std::collections::VecDeque;
use std::time::{Duration, Instant};
use tokio::task::yield_now;
use wallaby::{Address, Caller, Client, Endpoint, RawCall};

/// See the module.
pub(super) struct LiveCalls {
    n: usize,
    rig: Rig,
    endpoint: Endpoint,
    client: Client,
    /// None after a failure.
    operator: Option<Operator>,
    client_bytes: Option<f64>,
    server_bytes: Option<f64>,
}

impl LiveCalls {
    /// Makes all calls but the one that each operation makes.
    pub(super) fn set_up(place: &Place<'_>, n: usize) -> Result<Self> {
        let rig = Rig::start(place)?;
        let endpoint = rig.endpoint()?;
        let client = rig.client(&endpoint);
        let mut operator = Operator {
            caller: endpoint.caller(),
            server: rig.server.clone(),
            message: message(n - 1, place.payload),
            live: VecDeque::with_capacity(n),
            pauses: Pauses::new()?,
        };
        // The connection is there, and whatever is loaded when it is first used, before anything counts.
        let warm = message(0, place.payload);
        operator = rig.run(PATIENCE, async move {
            let call = operator.begin(warm).await?;
            finish(call).await?;
            Ok(operator)
        })?;
        let before = rig.memory()?;
        operator = rig.run(PATIENCE, operator.fill(n - 1))?;
        if place.ping <= SOON {
            rig.run(PATIENCE, pass(place.ping * 2))?;
        }
        let (client_bytes, server_bytes) = rig.memory()?.since(before, n - 1);
        Ok(Self {
            n,
            rig,
            endpoint,
            client,
            operator: Some(operator),
            client_bytes,
            server_bytes,
        })
    }
}

impl System for LiveCalls {
    fn name(&self) -> String {
        format!("{} live calls", self.n)
    }

    fn warm_up(&mut self) -> Result<()> {
        Ok(())
    }

    fn run(&mut self, operations: u64, latencies: &mut Latencies) -> Result<()> {
        let operator = self.operator.take().context("an operation failed before")?;
        let (operator, taken) = self.rig.run(PATIENCE, operator.turn(operations))?;
        self.operator = Some(operator);
        taken.into_iter().for_each(|each| latencies.record(each));
        Ok(())
    }

    fn processes(&self) -> Vec<u32> {
        self.rig.fleet.processes()
    }

    fn traffic(&mut self) -> Result<Option<Traffic>> {
        self.rig.traffic(std::slice::from_ref(&self.endpoint))
    }
}

impl Many for LiveCalls {
    fn about(&self) -> &'static str {
        "calls"
    }

    fn n(&self) -> usize {
        self.n
    }

    fn figures(&mut self) -> Result<Scale> {
        let operator = self.operator.take().context("an operation failed before")?;
        let pauses = &operator.pauses;
        let figures = Scale {
            client_bytes: self.client_bytes,
            server_bytes: self.server_bytes,
            endpoint_bytes: None,
            longest_us: Some(micros(pauses.longest())),
            p9999_us: Some(micros(pauses.nearly_longest())),
            server_longest_us: Some(self.rig.server_pause(&self.client)?),
        };
        // All of them end as they should: nothing was lost meanwhile.
        self.rig.run(PATIENCE, operator.drain())?;
        Ok(figures)
    }
}

/// The task's.
struct Operator {
    caller: Caller,
    server: Address,
    message: Bytes,
    /// The oldest first.
    live: VecDeque<RawCall>,
    pauses: Pauses,
}

impl Operator {
    async fn begin(&self, message: Bytes) -> Result<RawCall> {
        let mut call = self.caller.begin();
        call.send(self.server.clone(), HOLD.definition(), message)
            .await?;
        call.close();
        Ok(call)
    }

    async fn fill(mut self, calls: usize) -> Result<Self> {
        self.pauses.skip()?;
        for made in 0..calls {
            let call = self.begin(self.message.clone()).await?;
            self.live.push_back(call);
            if made % YIELDS == 0 {
                yield_now().await; // sockets and timers have their turn, and count
            }
            self.pauses.step()?;
        }
        Ok(self)
    }

    async fn turn(mut self, operations: u64) -> Result<(Self, Vec<Duration>)> {
        let mut taken = Vec::with_capacity(usize::try_from(operations)?);
        self.pauses.skip()?;
        for _ in 0..operations {
            let start = Instant::now();
            let call = self.begin(self.message.clone()).await?;
            self.live.push_back(call);
            let oldest = self.live.pop_front().context("no call is live")?;
            finish(oldest).await?;
            taken.push(start.elapsed());
            self.pauses.step()?;
        }
        Ok((self, taken))
    }

    /// Lets all of them end.
    async fn drain(mut self) -> Result<()> {
        let last = self.begin(message(0, self.message.len())).await?;
        self.live.push_back(last);
        for call in self.live {
            finish(call).await?;
        }
        Ok(())
    }
}

/// Waits for a call's answer and its end.
async fn finish(mut call: RawCall) -> Result<()> {
    let answer = call
        .next()
        .await
        .context("a call ended without an answer")??;
    ensure!(!answer.payload.is_empty(), "an answer is empty");
    ensure!(call.next().await.is_none(), "a call has two answers");
    Ok(())
}

/// Lets others have their turns for so long.
async fn pass(time: Duration) -> Result<()> {
    let begun = Instant::now();
    while begun.elapsed() < time {
        yield_now().await;
    }
    Ok(())
}

/// Where servers are asked so often, all calls are watched over before their memory is read.
const SOON: Duration = Duration::from_secs(10);
/// Calls that are made at once.
const YIELDS: usize = 16;
