//! The page `peers-performance.md`: what is measured for it, and its tables.

use crate::peers::PEERS;
use crate::table;
use anyhow::Result;
use wallaby_bench::chart::Chart;
use wallaby_bench::publish::{Job, Page, publish};
use wallaby_bench::stack::Stack;
use wallaby_bench::{
    FanoutOptions, HopsOptions, MOST_BYTES, Own, Progress, Row, RunOptions, ThroughputOptions,
    Transport, fanout, hops, throughput,
};

pub use wallaby_bench::ReportOptions;

/// Measures everything with all peers that are there, and brings `peers-performance.md` up to date.
///
/// # Errors
/// The jobs that failed and why, or what can't be read or written.
pub fn report(options: &ReportOptions, progress: impl FnMut(&str, Progress<'_>)) -> Result<()> {
    let page = page();
    page.skipped.iter().for_each(|notice| eprintln!("{notice}"));
    publish(&page, options, progress)
}

/// Throughput for several sizes of payload.
#[derive(Clone, Debug)]
pub struct Throughput {
    /// The numbers of calls under way.
    pub calls: Vec<usize>,
    /// Their payloads, in bytes.
    pub payloads: Vec<usize>,
}

impl Throughput {
    /// Measures one size after the other. What would have too many bytes under way is left out, and said on standard
    /// error.
    ///
    /// # Errors
    /// Options that can't be measured, and whatever fails while measuring.
    pub fn measure(
        &self,
        run: &RunOptions,
        mut progress: &mut dyn FnMut(Progress<'_>),
    ) -> Result<Vec<Row>> {
        let mut rows = Vec::new();
        for &payload in &self.payloads {
            let fits = |calls: &usize| calls.saturating_mul(payload) <= MOST_BYTES;
            let (calls, too_many): (Vec<usize>, Vec<usize>) =
                self.calls.iter().copied().partition(fits);
            for calls in too_many {
                let most = MOST_BYTES >> 20;
                eprintln!("{calls} calls of {payload} bytes are left out: more than {most} MiB");
            }
            let run = RunOptions {
                payload,
                ..run.clone()
            };
            rows.extend(throughput(
                &ThroughputOptions { calls, run },
                &mut progress,
            )?);
        }
        Ok(rows)
    }
}

fn page() -> Page {
    Page {
        file: "peers-performance.md",
        program: "wallaby-bench-peers",
        jobs: jobs(),
        summaries: vec![("peers", |_| versions())],
        skipped: PEERS.iter().filter_map(|peer| peer.notice()).collect(),
    }
}

fn jobs() -> Vec<Job> {
    let latency = |name, command, pin| Job {
        name,
        command,
        measure: Box::new(move |rounds, progress| {
            let run = everything(pin, rounds, RunOptions::default());
            let hops_options = HopsOptions {
                run,
                ..HopsOptions::default()
            };
            hops(&hops_options, progress)
        }),
        chart: Some(Chart::hops().into()),
        table: table::latency,
    };
    let parallel = |name, command, pin| Job {
        name,
        command,
        measure: Box::new(move |rounds, progress| {
            let run = everything(pin, rounds, RunOptions::default());
            let fanout_options = FanoutOptions {
                fanout: vec![10],
                run,
            };
            fanout(&fanout_options, progress)
        }),
        chart: None, // one number of servers makes no line
        table: table::latency,
    };
    let load = |name, command, pin, payloads: &'static [usize]| Job {
        name,
        command,
        measure: Box::new(move |rounds, progress| {
            let defaults = ThroughputOptions::default();
            let run = everything(pin, rounds, defaults.run);
            let throughput = Throughput {
                calls: defaults.calls,
                payloads: payloads.to_vec(),
            };
            throughput.measure(&run, progress)
        }),
        chart: None, // it would show latency
        table: table::throughput,
    };
    vec![
        latency("peers-hops-pinned", "hops --pin 0", Some(0)),
        latency("peers-hops-free", "hops", None),
        parallel("peers-fanout-pinned", "fanout --pin 0", Some(0)),
        parallel("peers-fanout-free", "fanout", None),
        load(
            "peers-throughput-pinned",
            "throughput --pin 0 --payload 0,100,4096,65536,1048576",
            Some(0),
            &[0, 100, 4_096, 65_536, 1_048_576],
        ),
        load("peers-throughput-free", "throughput", None, &[100]),
    ]
}

fn everything(pin: Option<u32>, rounds: u32, defaults: RunOptions) -> RunOptions {
    let peers = PEERS.iter().flat_map(|peer| peer.stacks());
    let stacks: Vec<&'static dyn Stack> = Own::ALL.iter().chain(peers).copied().collect();
    RunOptions {
        transports: vec![Transport::Unix, Transport::Tcp, Transport::Udp],
        stacks,
        pin,
        rounds,
        ..defaults
    }
}

/// What there is of each peer where this is run.
fn versions() -> String {
    let mut text = "| peer | version | what is measured |\n|---|---|---|\n".to_owned();
    for peer in PEERS {
        let version = peer.version().unwrap_or_else(|| "not installed".into());
        text.push_str(&format!("| {} | {version} | {} |\n", peer.name, peer.about));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;
    use wallaby_bench::publish;

    #[test]
    fn the_page_in_the_tree_has_a_place_for_everything() {
        let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
        publish::check(&page(), &docs).unwrap();
    }
}
