//! The page `performance.md`: what is measured for it, and what was promised.

use crate::chart::Chart;
use crate::comparison::RunOptions;
use crate::fanout::{FanoutOptions, fanout};
use crate::fleet::Transport;
use crate::harness::Progress;
use crate::hops::{HopsOptions, hops};
use crate::large::{LargeOptions, large};
use crate::publish::{self, Page, ReportOptions, publish};
use crate::row::Row;
use crate::scale::{ScaleOptions, scale};
use crate::table;
use crate::target::{self, Target};
use crate::throughput::{ThroughputOptions, throughput};
use anyhow::Result;
use std::fmt::Write as _;
use std::time::Duration;

/// A benchmark with its settings, under the name of its files.
struct Job {
    name: &'static str,
    command: &'static str,
    bench: Bench,
    pin: Option<u32>,
    server_pin: Option<u32>,
    link: Duration,
    transports: &'static [Transport],
}

#[derive(Clone, Copy)]
enum Bench {
    Hops,
    /// One hop to the one server that there is.
    OneHop,
    Fanout,
    Large,
    Throughput,
    Scale,
}

/// What most jobs have: sockets with streams, all on one processor.
const PINNED: Job = Job {
    name: "",
    command: "",
    bench: Bench::Hops,
    pin: Some(0),
    server_pin: None,
    link: NO_LINK,
    transports: &[Transport::Unix, Transport::Tcp],
};

const NO_LINK: Duration = Duration::ZERO;
const MILLISECOND: Duration = Duration::from_millis(1);

const JOBS: [Job; 13] = [
    Job {
        name: "hops-pinned",
        command: "hops --pin 0",
        ..PINNED
    },
    Job {
        name: "hops-udp",
        command: "hops --pin 0 --transport udp",
        transports: &[Transport::Udp],
        ..PINNED
    },
    Job {
        name: "hops-shm",
        command: "hops --pin 0 --transport shm",
        transports: &[Transport::Shm],
        ..PINNED
    },
    Job {
        name: "hops-busy",
        command: "hops --hops 1 --servers 1 --transport shm --pin 0 --server-pin 1",
        bench: Bench::OneHop,
        server_pin: Some(1),
        transports: &[Transport::Shm],
        ..PINNED
    },
    Job {
        name: "hops-free",
        command: "hops",
        pin: None,
        ..PINNED
    },
    Job {
        name: "hops-link",
        command: "hops --link 1ms",
        pin: None,
        link: MILLISECOND,
        ..PINNED
    },
    Job {
        name: "fanout-pinned",
        command: "fanout --pin 0",
        bench: Bench::Fanout,
        ..PINNED
    },
    Job {
        name: "fanout-udp",
        command: "fanout --pin 0 --transport udp",
        bench: Bench::Fanout,
        transports: &[Transport::Udp],
        ..PINNED
    },
    Job {
        name: "fanout-link",
        command: "fanout --link 1ms",
        bench: Bench::Fanout,
        pin: None,
        link: MILLISECOND,
        ..PINNED
    },
    Job {
        name: "large-apart",
        command: "large --pin 0 --server-pin 1",
        bench: Bench::Large,
        server_pin: Some(1),
        ..PINNED
    },
    Job {
        name: "large-pinned",
        command: "large --pin 0",
        bench: Bench::Large,
        ..PINNED
    },
    Job {
        name: "throughput-pinned",
        command: "throughput --pin 0 --transport unix,tcp,udp",
        bench: Bench::Throughput,
        transports: &[Transport::Unix, Transport::Tcp, Transport::Udp],
        ..PINNED
    },
    Job {
        name: "scale",
        command: "scale --pin 0 --transport unix",
        bench: Bench::Scale,
        transports: &[Transport::Unix],
        ..PINNED
    },
];

/// Runs the jobs of `performance.md`, `flexrpc.md` and `thesis.md`, and brings the pages up to date; see [`publish()`].
///
/// # Errors
/// The jobs that failed and why, or what can't be read or written.
pub fn report(options: &ReportOptions, mut progress: impl FnMut(&str, Progress<'_>)) -> Result<()> {
    let only = options.only.iter().cloned();
    let (flexrpc, others): (Vec<_>, Vec<_>) = only.partition(|name| name.starts_with("flexrpc-"));
    let others = others.into_iter();
    let (thesis, ours): (Vec<_>, Vec<_>) = others.partition(|name| name.starts_with("thesis-"));
    let all = options.only.is_empty();
    let of_page = |only: &[String]| ReportOptions {
        only: only.to_vec(),
        ..options.clone()
    };
    if all || !ours.is_empty() {
        publish(&page(), &of_page(&ours), &mut progress)?;
    }
    if all || !flexrpc.is_empty() {
        crate::flexrpc::report(&of_page(&flexrpc), &mut progress)?;
    }
    if all || !thesis.is_empty() {
        crate::thesis::report(&of_page(&thesis), &mut progress)?;
    }
    Ok(())
}

fn page() -> Page {
    Page {
        file: "performance.md",
        program: "wallaby bench",
        jobs: JOBS.iter().map(Job::published).collect(),
        summaries: vec![
            ("targets", |jobs| target_table(jobs, target::of)),
            ("targets-speed", |jobs| {
                target_table(jobs, target::speed::of)
            }),
        ],
        skipped: Vec::new(),
    }
}

impl Job {
    fn published(&'static self) -> publish::Job {
        publish::Job {
            name: self.name,
            command: self.command,
            measure: Box::new(|rounds, progress| self.measure(rounds, progress)),
            chart: match self.bench {
                Bench::Hops => Some(Chart::hops().into()),
                Bench::Fanout => Some(Chart::fanout().into()),
                Bench::OneHop | Bench::Large => None, // one number or two make no line
                Bench::Throughput | Bench::Scale => None,
            },
            table: table::markdown,
        }
    }

    fn measure(&self, rounds: u32, progress: &mut dyn FnMut(Progress<'_>)) -> Result<Vec<Row>> {
        let options = |defaults: RunOptions| RunOptions {
            pin: self.pin,
            server_pin: self.server_pin,
            link: self.link,
            transports: self.transports.to_vec(),
            rounds,
            ..defaults
        };
        match self.bench {
            Bench::Hops => {
                let defaults = HopsOptions::default();
                let run = options(defaults.run);
                hops(&HopsOptions { run, ..defaults }, progress)
            }
            Bench::OneHop => {
                let run = options(RunOptions {
                    servers: Some(1),
                    ..RunOptions::default()
                });
                hops(&HopsOptions { hops: vec![1], run }, progress)
            }
            Bench::Fanout => {
                let defaults = FanoutOptions::default();
                let run = options(defaults.run);
                fanout(&FanoutOptions { run, ..defaults }, progress)
            }
            Bench::Large => {
                let defaults = LargeOptions::default();
                let run = options(defaults.run.clone());
                large(&LargeOptions { run, ..defaults }, progress)
            }
            Bench::Throughput => {
                let defaults = ThroughputOptions::default();
                let run = options(defaults.run);
                throughput(&ThroughputOptions { run, ..defaults }, progress)
            }
            Bench::Scale => {
                let defaults = ScaleOptions::default();
                let run = options(defaults.run.clone());
                scale(&ScaleOptions { run, ..defaults }, progress)
            }
        }
    }
}

fn target_table(jobs: &[Vec<Row>], of: fn(&[Row]) -> Vec<Target>) -> String {
    let mut text = "| target | where | measured | |\n|---|---|---:|---|\n".to_owned();
    for target in jobs.iter().flat_map(|rows| of(rows)) {
        let met = if target.is_met() { "met" } else { "**missed**" };
        let (what, condition, measured) = (&target.what, &target.condition, target.measured);
        // Writing to a string can't fail.
        let _ = writeln!(text, "| {what} | {condition} | {measured:.2} | {met} |");
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
}
