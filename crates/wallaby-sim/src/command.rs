//! `wallaby-sim cluster`: predictions for the trees of the thesis, and how the model itself is checked.

use std::fmt::Write as _;
use std::time::Duration;

use clap::Args;
use serde_json::json;
use wallaby_sim::cluster::{
    Check, Costs, Load, MOST_DEVIATION, Prediction, Setting, check, predict,
};
use wallaby_sim::tree::{Form, Query, Shape};

use crate::print;

/// What `wallaby-sim cluster` takes.
#[derive(Debug, Args)]
pub(crate) struct Cluster {
    /// What messages cost: thesis, wallaby, or a file such as those in crates/wallaby-sim/costs
    #[arg(long, value_name = "NAME", default_value = "wallaby")]
    costs: String,
    /// Compare the model with what the thesis published, and predict nothing
    #[arg(long, conflicts_with_all = ["load", "under_way", "sites"])]
    check: bool,
    /// Servers; the client is another host, unless there is a load
    #[arg(long, value_name = "NUMBER", default_value_t = 20)]
    servers: usize,
    /// Operations a second of all hosts together, each of which is client and server, at random times
    #[arg(long, value_name = "NUMBER", conflicts_with = "under_way")]
    load: Option<f64>,
    /// As many operations as this under way at each host: how much can be done at most
    #[arg(long, value_name = "NUMBER")]
    under_way: Option<usize>,
    /// Microseconds of a bit's way from host to host [default: the costs']
    #[arg(long, value_name = "MICROSECONDS")]
    one_way: Option<f64>,
    /// Gbit/s of each network card [default: the costs']
    #[arg(long, value_name = "NUMBER")]
    gigabits: Option<f64>,
    /// Sites that the hosts are spread over
    #[arg(long, value_name = "NUMBER", requires = "between_sites")]
    sites: Option<usize>,
    /// Milliseconds of a bit's way from site to site
    #[arg(long, value_name = "MILLISECONDS", requires = "sites")]
    between_sites: Option<f64>,
    /// Operations of each kind
    #[arg(long, value_name = "NUMBER", default_value_t = 1_000)]
    operations: usize,
    /// Bytes of payload in each message
    #[arg(long, value_name = "BYTES", default_value_t = 100)]
    payload: usize,
    /// The seed of all chance
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,
    /// Print a line of JSON for each prediction
    #[arg(long)]
    json: bool,
}

impl Cluster {
    /// Predicts; whether all is as it should be.
    pub(crate) fn run(&self) -> anyhow::Result<bool> {
        let costs = self.costs()?;
        if self.check {
            let checks = check(&costs)?;
            print(&self.show_checks(&checks))?;
            return Ok(checks.iter().all(|check| check.holds()));
        }
        let setting = self.setting();
        let mut lines = String::new();
        if !self.json {
            lines += &format!(
                "simulated with the costs of {}: {}\n\n",
                costs.name, costs.source
            );
            lines += "                form        p50 µs      p99 µs  messages  client  CPU µs  client    ops/s\n";
        }
        for shape in shapes() {
            for form in [Form::Multihop, Form::Calls] {
                let prediction = predict(&shape.tree(), form, &costs, &setting)?;
                lines += &self.show(shape, form, &costs, &prediction);
            }
        }
        print(&lines)?;
        Ok(true)
    }

    fn costs(&self) -> anyhow::Result<Costs> {
        let mut costs = Costs::named(&self.costs)?;
        let network = &mut costs.network;
        network.one_way_us = self.one_way.unwrap_or(network.one_way_us);
        network.gigabits_per_s = self.gigabits.unwrap_or(network.gigabits_per_s);
        network.sites = self.sites.unwrap_or(network.sites);
        let between = self.between_sites.map(|millis| millis * 1e3);
        network.between_sites_us = between.unwrap_or(network.between_sites_us);
        Ok(costs)
    }

    fn setting(&self) -> Setting {
        Setting {
            servers: self.servers,
            payload: self.payload,
            load: match (self.load, self.under_way) {
                (Some(rate), _) => Load::PerSecond(rate),
                (None, Some(count)) => Load::UnderWay(count),
                (None, None) => Load::One,
            },
            operations: self.operations,
            seed: self.seed,
        }
    }

    fn show(&self, shape: Shape, form: Form, costs: &Costs, seen: &Prediction) -> String {
        let micros = |time: Duration| (time.as_secs_f64() * 1e8).round() / 100.0;
        let form = match form {
            Form::Multihop => "multi-hop",
            Form::Calls => "calls",
        };
        if self.json {
            let object = json!({
                "simulated": costs.name, "tree": shape.bench(), "n": shape.n(), "form": form,
                "servers": self.servers, "p50_us": micros(seen.p50), "p99_us": micros(seen.p99),
                "messages": seen.messages, "client_messages": seen.client_messages,
                "bytes": seen.bytes, "cpu_us": micros(seen.cpu),
                "client_cpu_us": micros(seen.client_cpu), "ops_per_s": seen.per_second,
            });
            return format!("{object}\n");
        }
        format!(
            "{:14}  {form:9}  {:>9.2}  {:>10.2}  {:>8.1}  {:>6.1}  {:>6.1}  {:>6.1}  {:>7.0}\n",
            shape.to_string(),
            micros(seen.p50),
            micros(seen.p99),
            seen.messages,
            seen.client_messages,
            micros(seen.cpu),
            micros(seen.client_cpu),
            seen.per_second
        )
    }

    fn show_checks(&self, checks: &[Check]) -> String {
        let mut text = String::new();
        for check in checks {
            let deviation = check.deviation() * 100.0;
            let unit = if check.in_micros { "µs" } else { "% less" };
            // Writing to a string can't fail.
            let _ = match self.json {
                true => writeln!(
                    text,
                    "{}",
                    json!({
                        "what": check.what, "published": check.published, "predicted": check.predicted,
                        "unit": unit, "deviation": check.deviation(),
                        "holds": check.holds(),
                    })
                ),
                false => writeln!(
                    text,
                    "{:26}  published {:>6.2} {unit:6}  model {:>6.2}  latency {deviation:>+5.1} %{}",
                    check.what,
                    check.published,
                    check.predicted,
                    if check.holds() {
                        ""
                    } else {
                        "  NOT REPRODUCED"
                    },
                ),
            };
        }
        if !self.json {
            let _ = writeln!(text, "at most {:.0} % are allowed", MOST_DEVIATION * 100.0);
        }
        text
    }
}

fn shapes() -> Vec<Shape> {
    let mut shapes: Vec<Shape> = [1, 2, 4, 10].map(|servers| Shape::Chain { servers }).into();
    shapes.extend([1, 5, 10, 20].map(|servers| Shape::Fan { servers }));
    shapes.extend([1, 3, 10].map(|bounces| Shape::Ray { bounces }));
    shapes.extend(Query::ALL.map(Shape::Query));
    shapes
}
