//! `wallaby bench thesis`: chapter 6 of the DPC thesis anew, measured and simulated.

use crate::bench::show_rows;
use crate::progress::Progress;
use anyhow::{Context, bail, ensure};
use clap::{Args, ValueEnum};
use std::path::PathBuf;
use std::time::Duration;
use wallaby_bench::cluster::{Check, Costs, MOST_DEVIATION, check};
use wallaby_bench::thesis::{
    ClusterOptions, LatencyOptions, LoadOptions, calibrate, cluster, cluster_load, latency, load,
};
use wallaby_bench::{Row, Transport};
use wallaby_program::output::text;

/// What `wallaby bench thesis` takes.
#[derive(Debug, Args)]
pub(crate) struct Thesis {
    /// What to measure or to predict
    #[arg(
        long,
        value_name = "PART,...",
        value_delimiter = ',',
        default_value = "latency,load,cluster,cluster-load"
    )]
    part: Vec<Part>,
    /// What messages are carried by: unix, tcp, udp, shm [default: unix and udp; under load unix]
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    transport: Vec<Transport>,
    /// Put the client and all servers on this processor [default: the system places them]
    #[arg(long, value_name = "CPU")]
    pin: Option<u32>,
    /// Delay every message on its way, as a link would: 250us, 1ms; not under load
    #[arg(long, value_name = "DELAY", default_value = "0", value_parser = wallaby_link::parse_delay)]
    link: Duration,
    /// Rounds; in each, every system has one turn. Under load there are a sixth as many, of a second each
    #[arg(long, value_name = "NUMBER", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Write what messages cost, as measured here over this one transport on one processor, into this file
    #[arg(long, value_name = "FILE", requires = "pin")]
    calibrate: Option<PathBuf>,
    /// Simulated: what messages cost, thesis, wallaby, or a file that --calibrate wrote
    #[arg(long, value_name = "NAME", default_value = "wallaby")]
    costs: String,
    /// Simulated: compare the model with what the thesis published, and neither measure nor predict anything
    #[arg(long, conflicts_with_all = ["part", "calibrate", "sites", "json"])]
    check: bool,
    /// Servers; on one processor each finds its caches as others left them, so fewer may be nearer to a cluster
    #[arg(long, value_name = "NUMBER", default_value_t = 20)]
    servers: usize,
    /// Simulated: sites that the hosts are spread over
    #[arg(long, value_name = "NUMBER", requires = "between_sites")]
    sites: Option<usize>,
    /// Simulated: how long a bit is on its way from site to site
    #[arg(long, value_name = "DELAY", requires = "sites", value_parser = wallaby_link::parse_delay)]
    between_sites: Option<Duration>,
    /// Print a line of JSON for each result
    #[arg(long)]
    json: bool,
}

/// A part of the chapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Latency, messages and processor time: figures 6.1, 6.2, 6.4 to 6.6, table 6.3
    Latency,
    /// Whose the processor time of the queries is, beside the same without the meter: figure 6.6
    Split,
    /// Latency over throughput: figure 6.7
    Load,
    /// Simulated: the latencies in a cluster
    Cluster,
    /// Simulated: latency over throughput in a cluster
    ClusterLoad,
}

impl Thesis {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        if self.check {
            return self.check_model();
        }
        let mut rows = Vec::new();
        for &part in &self.part {
            rows.extend(self.rows(part)?);
        }
        if let Some(file) = &self.calibrate {
            self.write_costs(&rows, file)?;
        }
        show_rows(&rows, self.json)
    }

    fn rows(&self, part: Part) -> anyhow::Result<Vec<Row>> {
        let mut progress = Progress::new("measuring");
        let show = |now: wallaby_bench::Progress<'_>| progress.set(now.done, now.total);
        match part {
            Part::Latency => {
                let options = LatencyOptions::default().over_link(self.link);
                latency(&self.one_by_one(options), show)
            }
            Part::Split => latency(&self.one_by_one(LatencyOptions::split()), show),
            Part::Load => {
                let mut options = LoadOptions::default();
                let run = &mut options.run;
                (run.pin, run.rounds) = (self.pin, self.rounds.div_ceil(6));
                run.servers = Some(self.servers);
                run.transports = self.transports(&run.transports);
                load(&options, show)
            }
            Part::Cluster => cluster(&self.simulated()?),
            Part::ClusterLoad => cluster_load(&self.simulated()?),
        }
    }

    /// How operations are measured one at a time.
    fn one_by_one(&self, mut options: LatencyOptions) -> LatencyOptions {
        let run = &mut options.run;
        (run.pin, run.rounds, run.servers) = (self.pin, self.rounds, Some(self.servers));
        run.transports = self.transports(&run.transports);
        options
    }

    fn transports(&self, defaults: &[Transport]) -> Vec<Transport> {
        match self.transport.is_empty() {
            true => defaults.to_vec(),
            false => self.transport.clone(),
        }
    }

    fn simulated(&self) -> anyhow::Result<ClusterOptions> {
        let mut costs = Costs::named(&self.costs)?;
        if let Some((sites, between)) = self.sites.zip(self.between_sites) {
            costs.network.sites = sites;
            costs.network.between_sites_us = between.as_secs_f64() * 1e6;
        }
        Ok(ClusterOptions {
            costs,
            servers: self.servers,
            ..ClusterOptions::default()
        })
    }

    fn check_model(&self) -> anyhow::Result<()> {
        let checks = check(&self.simulated()?.costs)?;
        let lines: String = (checks.iter().map(|check| format!("{check}\n"))).collect();
        text(lines)?;
        ensure!(
            checks.iter().all(Check::holds),
            "these costs do not reproduce what the thesis published: at most {:.0} % are allowed",
            MOST_DEVIATION * 100.0
        );
        Ok(())
    }

    fn write_costs(&self, rows: &[Row], file: &PathBuf) -> anyhow::Result<()> {
        let [transport] = self.transport[..] else {
            bail!("what messages cost is written for one --transport");
        };
        let costs = calibrate(rows, &transport.to_string())?;
        let mut text = serde_json::to_string_pretty(&costs)?;
        text.push('\n');
        std::fs::write(file, text).with_context(|| format!("{} can't be written", file.display()))
    }
}
