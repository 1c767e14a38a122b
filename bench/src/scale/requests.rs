//! Requests in one call: calls of `n` initial requests, each echoed. An operation is one request.

use super::Many;
use super::pauses::Pauses;
use super::rig::{PATIENCE, Place, Rig, message};
use super::server::ECHO;
use crate::comparison::micros;
use crate::harness::{Latencies, System, Traffic};
use crate::row::Scale;
use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::{Duration, Instant};
use wallaby::{Address, CallError, Caller, Client, Endpoint, RawAnswer, RawCall};

/// See the module.
pub(super) struct Requests {
    n: usize,
    rig: Rig,
    endpoint: Endpoint,
    client: Client,
    /// None after a failure.
    operator: Option<Operator>,
}

impl Requests {
    pub(super) fn set_up(place: &Place<'_>, n: usize) -> Result<Self> {
        let rig = Rig::start(place)?;
        let endpoint = rig.endpoint()?;
        let client = rig.client(&endpoint);
        let operator = Operator {
            n,
            caller: endpoint.caller(),
            server: rig.server.clone(),
            message: message(0, place.payload),
            pauses: Pauses::new()?,
        };
        Ok(Self {
            n,
            rig,
            endpoint,
            client,
            operator: Some(operator),
        })
    }
}

impl System for Requests {
    fn name(&self) -> String {
        format!("calls of {} requests", self.n)
    }

    fn warm_up(&mut self) -> Result<()> {
        let mut latencies = Latencies::new()?;
        self.run(self.n as u64, &mut latencies)
    }

    fn under_way(&self) -> u64 {
        self.n as u64
    }

    fn run(&mut self, operations: u64, latencies: &mut Latencies) -> Result<()> {
        let operator = self.operator.take().context("an operation failed before")?;
        let calls = operations.div_ceil(self.n as u64);
        let (operator, taken) = self.rig.run(PATIENCE, operator.turn(calls))?;
        self.operator = Some(operator);
        for each in taken {
            let share = each / u32::try_from(self.n)?;
            (0..self.n).for_each(|_| latencies.record(share));
        }
        Ok(())
    }

    fn processes(&self) -> Vec<u32> {
        self.rig.fleet.processes()
    }

    fn traffic(&mut self) -> Result<Option<Traffic>> {
        self.rig.traffic(std::slice::from_ref(&self.endpoint))
    }
}

impl Many for Requests {
    fn about(&self) -> &'static str {
        "requests"
    }

    fn n(&self) -> usize {
        self.n
    }

    fn figures(&mut self) -> Result<Scale> {
        let operator = self
            .operator
            .as_ref()
            .context("an operation failed before")?;
        Ok(Scale {
            client_bytes: None,
            server_bytes: None,
            endpoint_bytes: None,
            longest_us: Some(micros(operator.pauses.longest())),
            p9999_us: Some(micros(operator.pauses.nearly_longest())),
            server_longest_us: Some(self.rig.server_pause(&self.client)?),
        })
    }
}

/// The task's.
struct Operator {
    n: usize,
    caller: Caller,
    server: Address,
    message: Bytes,
    pauses: Pauses,
}

impl Operator {
    async fn turn(mut self, calls: u64) -> Result<(Self, Vec<Duration>)> {
        let mut taken = Vec::with_capacity(usize::try_from(calls)?);
        self.pauses.skip()?;
        for _ in 0..calls {
            let start = Instant::now();
            self.operate().await?;
            taken.push(start.elapsed());
        }
        Ok((self, taken))
    }

    /// One call. What is there of answers is taken while requests are still sent: servers wait for whoever does not.
    async fn operate(&mut self) -> Result<()> {
        let mut call = self.caller.begin();
        let mut missing = self.n;
        for _ in 0..self.n {
            let sent = call.send(self.server.clone(), ECHO.definition(), self.message.clone());
            sent.await?;
            while let Some(answer) = there(&mut call).await {
                self.take(answer?)?;
                missing -= 1;
            }
            self.pauses.step()?;
        }
        call.close();
        while let Some(answer) = call.next().await {
            self.take(answer?)?;
            missing = missing.checked_sub(1).context("too many answers came")?;
        }
        ensure!(missing == 0, "{missing} answers are missing");
        Ok(())
    }

    fn take(&mut self, answer: RawAnswer) -> Result<()> {
        ensure!(answer.payload == self.message, "another message was echoed");
        self.pauses.step()
    }
}

/// An answer that is there already.
async fn there(call: &mut RawCall) -> Option<Result<RawAnswer, CallError>> {
    let mut next = pin!(call.next());
    poll_fn(|context| {
        Poll::Ready(match next.as_mut().poll(context) {
            Poll::Ready(answer) => answer,
            Poll::Pending => None,
        })
    })
    .await
}
