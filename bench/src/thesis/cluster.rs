//! The cluster that is not there: what its model says about the same trees.

use crate::cluster::{Costs, Load, Prediction, Setting, predict};
use crate::comparison::round;
use crate::pattern::{Form, Query, Shape};
use crate::row::Row;
use anyhow::Result;
use std::time::Duration;

use super::LatencyOptions;

/// What to predict.
#[derive(Clone, Debug)]
pub struct ClusterOptions {
    /// What messages cost, and the network.
    pub costs: Costs,
    /// Hosts that handle requests.
    pub servers: usize,
    /// Bytes of payload in each message.
    pub payload: usize,
    /// Operations of each kind.
    pub operations: usize,
    /// Of all random choices.
    pub seed: u64,
}

impl Default for ClusterOptions {
    fn default() -> Self {
        Self {
            costs: Costs::wallaby(),
            servers: 20,
            payload: 100,
            operations: 301,
            seed: 1,
        }
    }
}

/// Predicts the latencies that [`super::latency()`] measures, of one operation at a time.
///
/// # Errors
/// What can't be predicted.
pub fn cluster(options: &ClusterOptions) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for shape in LatencyOptions::default().shapes() {
        for form in [Form::Multihop, Form::Calls] {
            let prediction = options.predict(shape, form, Load::One)?;
            rows.push(options.row(shape.bench().into(), shape.n(), form, &prediction));
        }
    }
    Ok(rows)
}

/// Predicts latency over throughput where every host is client and server, as [`super::load()`] measures it.
///
/// # Errors
/// What can't be predicted.
pub fn cluster_load(options: &ClusterOptions) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for query in [Query::Is2, Query::Is7] {
        let shape = Shape::Query(query);
        let options = ClusterOptions {
            // Enough at each host to see a tail.
            operations: options.operations.max(250 * options.servers),
            ..options.clone()
        };
        let bench = format!("load-{}", shape.bench());
        let most = options.predict(shape, Form::Calls, Load::UnderWay(MANY))?;
        for form in [Form::Multihop, Form::Calls] {
            let own = options.predict(shape, form, Load::UnderWay(MANY))?;
            rows.push(options.row(bench.clone(), 0, form, &own));
            for share in LOADS {
                let rate = most.per_second * share as f64 / 100.0;
                let prediction = options.predict(shape, form, Load::PerSecond(rate))?;
                rows.push(Row {
                    offered_per_s: Some(round(rate)),
                    ..options.row(bench.clone(), share, form, &prediction)
                });
            }
        }
    }
    rows.sort_by(|a, b| (&a.bench, a.n).cmp(&(&b.bench, b.n)));
    Ok(rows)
}

impl ClusterOptions {
    fn predict(&self, shape: Shape, form: Form, load: Load) -> Result<Prediction> {
        let setting = Setting {
            servers: self.servers,
            payload: self.payload,
            load,
            operations: self.operations,
            seed: self.seed,
        };
        predict(&shape.tree(), form, &self.costs, &setting)
    }

    fn row(&self, bench: String, n: usize, form: Form, seen: &Prediction) -> Row {
        let micros = |time: Duration| round(time.as_secs_f64() * 1e6);
        Row {
            bench,
            system: match form {
                Form::Multihop => "simulated-dpc".into(),
                Form::Calls => "simulated-rpc".into(),
            },
            transport: "model".into(),
            link_us: match self.costs.network.sites {
                1 => 0,
                _ => self.costs.network.between_sites_us as u64,
            },
            n: n as u64,
            payload: self.payload as u64,
            rounds: 1,
            p50_us: micros(seen.p50),
            p99_us: micros(seen.p99),
            cpu_us_per_op: micros(seen.cpu),
            client_cpu_us: Some(micros(seen.client_cpu)),
            ops_per_s: Some(round(seen.per_second)),
            messages: Some(round(seen.messages)),
            client_messages: Some(round(seen.client_messages)),
            bytes: Some(round(seen.bytes)),
            simulated: Some(self.costs.name.clone()),
            ..Row::default()
        }
    }
}

/// Operations under way at a host that let no core be idle.
const MANY: usize = 16;
/// In percent of what plain calls can do at most.
const LOADS: [usize; 5] = [20, 40, 60, 80, 90];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_is_predicted_is_marked() {
        let options = ClusterOptions {
            operations: 5,
            costs: Costs::thesis(),
            ..ClusterOptions::default()
        };
        let rows = cluster(&options).unwrap();
        let marked = |row: &Row| row.simulated.as_deref() == Some("thesis");
        assert!(rows.iter().all(marked));
        assert!(crate::table::markdown(&rows).contains("SIMULATED"));
    }

    #[test]
    fn hosts_at_several_sites_are_farther_from_each_other() {
        let mut options = ClusterOptions {
            operations: 5,
            ..ClusterOptions::default()
        };
        let near = cluster(&options).unwrap();
        let network = &mut options.costs.network;
        (network.sites, network.between_sites_us) = (3, 20e3);
        let far = cluster(&options).unwrap();
        assert!(
            near.iter()
                .zip(&far)
                .all(|(near, far)| far.p50_us >= near.p50_us)
        );
        assert!(
            far.iter()
                .any(|row| row.p50_us > 20e3 && row.link_us == 20_000)
        );
    }
}
