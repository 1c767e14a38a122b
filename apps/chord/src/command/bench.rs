//! `wallaby-chord bench`: how long lookups take, by delegation and by iteration.

use super::span;
use crate::chance::Chance;
use crate::client::{Client, Form};
use crate::id::RingId;
use crate::output;
use crate::process::{self, Plan, Processes, Transport};
use anyhow::Context;
use clap::Args;
use indicatif::ProgressBar;
use std::time::Duration;
use wallaby_bench::Row;
use wallaby_bench::process::processor_time;

/// What is measured.
#[derive(Debug, Args)]
pub(super) struct Bench {
    /// Rings of so many nodes
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_values_t = [16, 64, 256, 1024, 4096], value_parser = clap::value_parser!(u64).range(1..=100_000))]
    nodes: Vec<u64>,
    /// How many processes host them
    #[arg(long, value_name = "P", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=256))]
    processes: u16,
    /// How many lookups there are of each form
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(10..=1_000_000))]
    lookups: u32,
    /// Rounds, in which the two forms take turns
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// What the processes talk over
    #[arg(long, value_enum, default_value_t = Transport::Tcp)]
    transport: Transport,
    /// Delay every message on its way, as a link would: 250us, 1ms
    #[arg(long, value_name = "DELAY", default_value = "0", value_parser = wallaby::link::parse_delay)]
    link: Duration,
    /// Where the nodes are, and what is looked up: the same number chooses the same
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,
    /// Print a line of JSON for each result, in the row of all benchmarks
    #[arg(long)]
    json: bool,
}

/// What came of one form.
struct Measured {
    form: Form,
    times: Vec<Duration>,
    hops: u64,
    cpu: Duration,
}

impl Bench {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        if !self.json {
            output::line(format_args!(
                "{:>6}  {:12}  {:>5}  {:>10}  {:>10}  {:>10}  {:>9}  {:>12}",
                "nodes", "form", "hops", "1/2 log2 n", "p50", "p99", "messages", "of iteration"
            ))?;
        }
        for nodes in &self.nodes {
            let measured = self.measure(*nodes).await?;
            let slow = measured
                .iter()
                .map(Measured::median)
                .max()
                .unwrap_or_default();
            for measured in &measured {
                self.print(*nodes, measured, slow)?;
            }
        }
        Ok(())
    }

    async fn measure(&self, nodes: u64) -> anyhow::Result<[Measured; 2]> {
        let processes = Processes::start(Plan {
            processes: self.processes.into(),
            nodes,
            seed: self.seed,
            // The ring is whole from the beginning, and its upkeep is not what is measured.
            period: Duration::from_secs(3600),
            transport: self.transport,
            link: self.link,
        })
        .await?;
        let hosts = processes.hosts();
        let endpoint = process::client_endpoint(&hosts, self.link).await?;
        // Of one seed, so that both forms begin at the same nodes.
        let client = || Client::new(endpoint.clone(), &hosts, self.seed);
        let mut chance = Chance(self.seed ^ nodes);
        let ids: Vec<RingId> = (0..self.lookups)
            .map(|_| RingId(chance.next_number()))
            .collect();
        let forms = [Form::Delegation, Form::Iteration];
        let mut forms = forms.map(|form| (client(), Measured::new(form)));
        let progress = ProgressBar::new(u64::from(self.lookups) * 2);
        // Connects all that talk to each other.
        for id in ids.iter().take(200) {
            for (client, measured) in &forms {
                client.owner(*id, measured.form).await?;
            }
        }
        for part in ids.chunks(ids.len().div_ceil(self.rounds as usize).max(1)) {
            for (client, measured) in &mut forms {
                let before = cpu(&processes)?;
                for id in part {
                    let answered = client.owner(*id, measured.form).await?;
                    measured.times.push(answered.took);
                    measured.hops += u64::from(answered.found.hops);
                    progress.inc(1);
                }
                measured.cpu += cpu(&processes)?.saturating_sub(before);
            }
        }
        progress.finish_and_clear();
        processes.end().await;
        Ok(forms.map(|(_, mut measured)| {
            measured.times.sort();
            measured
        }))
    }

    fn print(&self, nodes: u64, measured: &Measured, slow: Duration) -> anyhow::Result<()> {
        let row = self.row(nodes, measured);
        if self.json {
            return wallaby_bench::row::write(&[row], std::io::stdout().lock());
        }
        let name = match measured.form {
            Form::Delegation => "delegation",
            Form::Iteration => "iteration",
        };
        output::line(format_args!(
            "{nodes:6}  {name:12}  {:5.2}  {:10.2}  {:>10}  {:>10}  {:9.1}  {:>10.0} %",
            measured.mean_hops(),
            (nodes as f64).log2() / 2.0,
            span::show(measured.percentile(50)),
            span::show(measured.percentile(99)),
            row.messages.unwrap_or_default(),
            measured.median().as_secs_f64() / slow.as_secs_f64().max(1e-9) * 100.0,
        ))?;
        Ok(())
    }

    fn row(&self, nodes: u64, measured: &Measured) -> Row {
        let hops = measured.mean_hops();
        // By delegation the request to the first node, a request a hop, and the answer; by iteration a request and an
        // answer for each node.
        let (system, messages, at_client) = match measured.form {
            Form::Delegation => ("wallaby-dpc", hops + 2.0, 2.0),
            Form::Iteration => ("wallaby-rpc", 2.0 * (hops + 1.0), 2.0 * (hops + 1.0)),
        };
        let micros = |time: Duration| time.as_secs_f64() * 1e6;
        Row {
            bench: "chord".into(),
            system: system.into(),
            transport: match self.transport {
                Transport::Tcp => "tcp",
                Transport::Unix => "unix",
                Transport::Udp => "udp",
            }
            .into(),
            n: nodes,
            payload: 0,
            link_us: u64::try_from(self.link.as_micros()).unwrap_or(u64::MAX),
            pin: None,
            link_mbit: None,
            server_pin: None,
            rounds: self.rounds.into(),
            p50_us: micros(measured.percentile(50)),
            p99_us: micros(measured.percentile(99)),
            cpu_us_per_op: micros(measured.cpu) / measured.times.len().max(1) as f64,
            messages: Some(messages),
            client_messages: Some(at_client),
            ..Row::default()
        }
    }
}

impl Measured {
    fn new(form: Form) -> Self {
        Self {
            form,
            times: Vec::new(),
            hops: 0,
            cpu: Duration::ZERO,
        }
    }

    fn mean_hops(&self) -> f64 {
        self.hops as f64 / self.times.len().max(1) as f64
    }

    fn median(&self) -> Duration {
        self.percentile(50)
    }

    /// Of times that are sorted.
    fn percentile(&self, percent: usize) -> Duration {
        let at = self.times.len() * percent / 100;
        let time = self.times.get(at).or(self.times.last());
        time.copied().unwrap_or_default()
    }
}

/// What the processes of a ring and this one have used of the processors.
fn cpu(processes: &Processes) -> anyhow::Result<Duration> {
    let own = std::iter::once(std::process::id());
    let times = own.chain(processes.ids()).map(processor_time);
    times
        .sum::<anyhow::Result<Duration>>()
        .context("processor time can't be read")
}
