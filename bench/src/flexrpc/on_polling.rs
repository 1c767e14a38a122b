//! Wallaby's polling driver over UDP: one thread that turns its endpoint.

use super::line::argument;
use super::{Caller, Load};
use crate::fleet::{Fleet, ServerConfig};
use crate::harness::Latencies;
use crate::on_polling::{Delayed, LOOK, Waiting};
use crate::on_wallaby::{TAKE, addresses};
use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use std::time::{Duration, Instant};
use wallaby::Address;
use wallaby::polling::{CallOptions, Endpoint, Event};

/// The client's side.
pub(super) struct Polling {
    fleet: Fleet,
    endpoint: Endpoint<Delayed>,
    server: Address,
    options: CallOptions,
}

impl Polling {
    pub(super) fn connect(fleet: Fleet, config: &ServerConfig) -> Result<Self> {
        let server = addresses(fleet.addresses())?.into_iter().next();
        Ok(Self {
            endpoint: Delayed::bind(config.link, Waiting::Own)?,
            server: server.context("no server")?,
            fleet,
            options: CallOptions::default(),
        })
    }

    fn call(&mut self, argument: Bytes, end: Instant) -> Result<()> {
        let method = TAKE.definition();
        self.endpoint
            .call_raw(self.server.clone(), method, argument, &self.options)?;
        loop {
            while let Some(event) = self.endpoint.next_event() {
                match event {
                    Event::Answer(answer) => {
                        ensure!(answer.payload()?.is_empty(), "an answer that is none")
                    }
                    Event::Complete { .. } => return Ok(()),
                    other => bail!("a call ended by {other:?}"),
                }
            }
            ensure!(Instant::now() < end, "no answer came in time");
            self.endpoint.turn(LOOK)?;
        }
    }
}

impl Caller for Polling {
    fn run(
        &mut self,
        load: &Load,
        operations: u64,
        limit: Duration,
        latencies: &mut Latencies,
    ) -> Result<()> {
        ensure!(
            load.callers == 1,
            "one thread makes one call after the other"
        );
        let (argument, end) = (Bytes::from(argument(load.bytes)), Instant::now() + limit);
        for _ in 0..operations {
            let start = Instant::now();
            self.call(argument.clone(), end)?;
            latencies.record(start.elapsed());
        }
        Ok(())
    }

    fn processes(&self) -> Vec<u32> {
        self.fleet.processes()
    }
}
