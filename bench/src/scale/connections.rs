//! Connections: `n` endpoints of the client, each with one to the server, called in turn.

use super::Many;
use super::pauses::Pauses;
use super::rig::{Memory, PATIENCE, Place, Rig, message};
use super::server::ECHO;
use crate::comparison::micros;
use crate::harness::{Latencies, System, Traffic};
use crate::row::Scale;
use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use std::time::{Duration, Instant};
use wallaby::{Client, Endpoint};

/// See the module.
pub(super) struct Connections {
    rig: Rig,
    endpoints: Vec<Endpoint>,
    /// None after a failure.
    operator: Option<Operator>,
    /// Before there was an endpoint, when all were there, and when all were connected.
    memory: [Memory; 3],
}

impl Connections {
    pub(super) fn set_up(place: &Place<'_>, n: usize) -> Result<Self> {
        let rig = Rig::start(place)?;
        // What is loaded when first used is so before anything counts.
        let first = rig.endpoint()?;
        let mut operator = Operator {
            clients: vec![rig.client(&first)],
            message: message(0, place.payload),
            next: 0,
            pauses: Pauses::new()?,
        };
        operator = rig.run(PATIENCE, operator.turn(1))?.0;
        operator.clients.reserve_exact(n);
        let mut endpoints = Vec::with_capacity(n);
        endpoints.push(first);
        let before = rig.memory()?;
        for _ in 1..n {
            endpoints.push(rig.endpoint()?);
        }
        operator.clients = endpoints
            .iter()
            .map(|endpoint| rig.client(endpoint))
            .collect();
        let made = rig.memory()?;
        operator = rig.run(PATIENCE, operator.turn(n as u64))?.0;
        let connected = rig.memory()?;
        Ok(Self {
            rig,
            endpoints,
            operator: Some(operator),
            memory: [before, made, connected],
        })
    }
}

impl System for Connections {
    fn name(&self) -> String {
        format!("{} connections", self.endpoints.len())
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
        self.rig.traffic(&self.endpoints)
    }
}

impl Many for Connections {
    fn about(&self) -> &'static str {
        "connections"
    }

    fn n(&self) -> usize {
        self.endpoints.len()
    }

    fn figures(&mut self) -> Result<Scale> {
        let operator = self
            .operator
            .as_ref()
            .context("an operation failed before")?;
        let first = operator.clients.first().context("there is no client")?;
        let [before, made, connected] = self.memory;
        let more = self.endpoints.len() - 1;
        let (client_bytes, server_bytes) = connected.since(made, more);
        Ok(Scale {
            client_bytes,
            server_bytes,
            endpoint_bytes: made.since(before, more).0,
            longest_us: Some(micros(operator.pauses.longest())),
            p9999_us: Some(micros(operator.pauses.nearly_longest())),
            server_longest_us: Some(self.rig.server_pause(first)?),
        })
    }
}

/// The task's.
struct Operator {
    clients: Vec<Client>,
    message: Bytes,
    next: usize,
    pauses: Pauses,
}

impl Operator {
    async fn turn(mut self, operations: u64) -> Result<(Self, Vec<Duration>)> {
        let mut taken = Vec::with_capacity(usize::try_from(operations)?);
        self.pauses.skip()?;
        for _ in 0..operations {
            let client = &self.clients[self.next];
            self.next = (self.next + 1) % self.clients.len();
            let start = Instant::now();
            let answer = client.call(&ECHO, (self.message.clone(),)).await?;
            ensure!(answer == self.message, "another message was echoed");
            taken.push(start.elapsed());
            self.pauses.step()?;
        }
        Ok((self, taken))
    }
}
