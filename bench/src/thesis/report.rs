//! The page `thesis.md`: what is measured and predicted for it, and what was promised.

use super::{ClusterOptions, LatencyOptions, LoadOptions, cluster, cluster_load, latency, load};
use super::{draw, promise, split, split_options, tables};
use crate::fleet::Transport;
use crate::harness::Progress;
use crate::publish::{self, Drawing, Page, ReportOptions, publish};
use crate::row::Row;
use anyhow::Result;
use std::fmt::Write as _;
use std::time::Duration;
use wallaby_sim::cluster::{Costs, MOST_DEVIATION, Network, check};

/// Runs the jobs of `thesis.md` and brings the page up to date; see [`publish()`].
///
/// # Errors
/// The jobs that failed and why, or what can't be read or written.
pub fn report(options: &ReportOptions, progress: impl FnMut(&str, Progress<'_>)) -> Result<()> {
    publish(&page(), options, progress)
}

/// Rows of latencies, and those of loads, as tables in Markdown.
pub fn tables(rows: &[Row]) -> String {
    let (loads, others): (Vec<Row>, Vec<Row>) = rows.iter().cloned().partition(is_load);
    let work = match others.iter().any(|row| row.split.is_some()) {
        true => split::table(&others),
        false => tables::latency(&others),
    };
    work + &tables::load(&loads)
}

fn is_load(row: &Row) -> bool {
    row.bench.starts_with("load-")
}

type Measurement = fn(u32, &mut dyn FnMut(Progress<'_>)) -> Result<Vec<Row>>;

const JOBS: [(&str, &str, Measurement); 12] = [
    (
        "thesis-pinned",
        "thesis --part latency --pin 0",
        |rounds, progress| {
            let mut options = LatencyOptions::default();
            (options.run.pin, options.run.rounds) = (Some(0), rounds);
            latency(&options, progress)
        },
    ),
    (
        "thesis-split",
        "thesis --part split --pin 0",
        |rounds, progress| {
            let mut options = split_options();
            (options.run.pin, options.run.rounds) = (Some(0), rounds);
            split::split(&options, progress)
        },
    ),
    (
        "thesis-few",
        "thesis --part latency --pin 0 --servers 4",
        |rounds, progress| {
            let mut options = LatencyOptions::default();
            (options.run.pin, options.run.rounds) = (Some(0), rounds);
            options.run.servers = Some(4);
            latency(&options, progress)
        },
    ),
    (
        "thesis-link-250us",
        "thesis --part latency --transport unix --link 250us",
        |rounds, progress| over_link(Duration::from_micros(250), rounds, progress),
    ),
    (
        "thesis-link-1ms",
        "thesis --part latency --transport unix --link 1ms",
        |rounds, progress| over_link(Duration::from_millis(1), rounds, progress),
    ),
    (
        "thesis-link-10ms",
        "thesis --part latency --transport unix --link 10ms",
        // There is less to be disturbed, and more to wait for.
        |rounds, progress| over_link(Duration::from_millis(10), rounds.div_ceil(6), progress),
    ),
    (
        "thesis-load",
        "thesis --part load --pin 0",
        |rounds, progress| {
            let mut options = LoadOptions::default();
            (options.run.pin, options.run.rounds) = (Some(0), rounds.div_ceil(6));
            load(&options, progress)
        },
    ),
    (
        "thesis-cluster-own",
        "thesis --part cluster --costs thesis",
        |_, _| cluster(&costs(Costs::thesis(), 20)),
    ),
    ("thesis-cluster", "thesis --part cluster", |_, _| {
        cluster(&costs(Costs::wallaby(), 20))
    }),
    (
        "thesis-cluster-load",
        "thesis --part cluster-load",
        |_, _| cluster_load(&costs(Costs::wallaby(), 20)),
    ),
    (
        "thesis-cluster-1000",
        "thesis --part cluster --servers 1000",
        |_, _| cluster(&costs(Costs::wallaby(), 1_000)),
    ),
    (
        "thesis-cluster-wan",
        "thesis --part cluster --sites 3 --between-sites 20ms",
        |_, _| {
            let mut costs = costs(Costs::wallaby(), 20);
            costs.costs.network = Network {
                sites: 3,
                between_sites_us: 20_000.0,
                ..costs.costs.network
            };
            cluster(&costs)
        },
    ),
];

fn costs(costs: Costs, servers: usize) -> ClusterOptions {
    ClusterOptions {
        costs,
        servers,
        ..ClusterOptions::default()
    }
}

fn over_link(
    link: Duration,
    rounds: u32,
    progress: &mut dyn FnMut(Progress<'_>),
) -> Result<Vec<Row>> {
    let mut options = LatencyOptions::default().over_link(link);
    (options.run.transports, options.run.rounds) = (vec![Transport::Unix], rounds);
    latency(&options, progress)
}

fn page() -> Page {
    let job = |(name, command, measure): (&'static str, &'static str, Measurement)| publish::Job {
        name,
        command,
        measure: Box::new(measure),
        chart: Some(Drawing::Own(match name.rsplit('-').next() {
            Some("load") => draw::load,
            Some("split") => split::draw,
            _ => draw::latency,
        })),
        table: tables,
    };
    Page {
        file: "thesis.md",
        program: "wallaby bench",
        jobs: JOBS.map(job).into(),
        summaries: vec![
            ("promises", promises),
            ("model", model),
            ("costs", used_costs),
        ],
        skipped: Vec::new(),
    }
}

fn promises(jobs: &[Vec<Row>]) -> String {
    let mut text =
        "| promised | where | measured by | found | |\n|---|---|---|---:|---|\n".to_owned();
    for ((job, ..), rows) in JOBS.iter().zip(jobs) {
        for promise in promise::of(rows) {
            let kept = if promise.kept { "kept" } else { "**not kept**" };
            // Writing to a string can't fail.
            let _ = writeln!(
                text,
                "| {} | {} | {job} | {} | {kept} |",
                promise.what, promise.place, promise.found
            );
        }
    }
    text
}

/// What the model makes of the thesis' own figures.
fn model(_: &[Vec<Row>]) -> String {
    let checks = match check(&Costs::thesis()) {
        Ok(checks) => checks,
        Err(error) => return format!("The model can't be checked: {error:#}.\n"),
    };
    let mut text = format!(
        "| published | figure | model | latency is off by | |\n|---|---:|---:|---:|---|\n\
         {}",
        checks.iter().fold(String::new(), |mut text, check| {
            let unit = if check.in_micros { "µs" } else { "% less" };
            let holds = if check.holds() {
                "reproduced"
            } else {
                "**not reproduced**"
            };
            let _ = writeln!(
                text,
                "| {} | {} {unit} | {:.1} {unit} | {:+.1} % | {holds} |",
                check.what,
                check.published,
                check.predicted,
                check.deviation() * 100.0
            );
            text
        })
    );
    let good = checks.iter().all(|check| check.holds());
    let _ = writeln!(
        text,
        "\nThe limit is {:.0} %: {}.",
        MOST_DEVIATION * 100.0,
        if good {
            "kept"
        } else {
            "**not kept, so its predictions do not count**"
        }
    );
    text
}

fn used_costs(_: &[Vec<Row>]) -> String {
    let mut text =
        "| costs | form | send | receive | pass on | afterwards | wake | call | one way |\n|---|---|---:|---:|---:|---:|---:|---:|---:|\n"
            .to_owned();
    for costs in [Costs::thesis(), Costs::wallaby()] {
        for (form, each) in [("multi-hop", costs.multihop), ("calls", costs.calls)] {
            let _ = writeln!(
                text,
                "| {} | {form} | {} | {} | {} | {} | {} | {} | {} |",
                costs.name,
                each.send_us,
                each.receive_us,
                each.pass_on_us,
                each.afterwards_us,
                each.wake_us,
                each.call_us,
                costs.network.one_way_us
            );
        }
    }
    for costs in [Costs::thesis(), Costs::wallaby()] {
        let _ = writeln!(text, "\n{}: {}", costs.name, costs.source);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn the_page_in_the_tree_has_a_place_for_everything() {
        let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
        publish::check(&page(), &docs).unwrap();
    }

    #[test]
    fn all_that_is_predicted_is_marked() {
        let options = ClusterOptions {
            operations: 5,
            ..costs(Costs::thesis(), 20)
        };
        let rows = cluster(&options).unwrap();
        assert!(
            rows.iter()
                .all(|row| row.simulated.as_deref() == Some("thesis"))
        );
        assert!(tables(&rows).contains("SIMULATED"));
        assert!(draw::latency(&rows).contains("SIMULATED"));
    }
}
