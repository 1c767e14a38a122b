//! Calls over a UDP network that drops, doubles, reorders and damages datagrams: none of them may fail.

use anyhow::{Result, bail};
use serde::Serialize;
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;
use wallaby_bench::Transport;

use crate::cluster::{Cluster, Settings};
use crate::control::{Announcement, Instruction, Losses, Measured, Watch};
use crate::journal::{self, Event};
use crate::network::Choice;

/// Calls are watched over as an application would have it that says nothing.
const WATCH: Watch = Watch {
    period: Duration::from_millis(500),
    timeout: Duration::from_secs(5),
    deadline: Duration::from_secs(60),
};
/// Longest time that all calls of one kind may take.
const PATIENCE: Duration = Duration::from_secs(3600);

#[derive(Debug, Clone)]
pub(crate) struct Options {
    pub(crate) seed: u64,
    pub(crate) calls: u32,
    pub(crate) hops: Vec<u8>,
    /// In a thousand, of each kind.
    pub(crate) loss: u32,
    pub(crate) workers: u16,
}

#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) command: &'static str,
    pub(crate) seed: u64,
    pub(crate) loss_per_mille: u32,
    pub(crate) workers: u16,
    pub(crate) rows: Vec<Row>,
    pub(crate) datagrams: BTreeMap<String, u64>,
    pub(crate) violations: Vec<String>,
}

#[derive(Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) hops: u8,
    #[serde(flatten)]
    pub(crate) measured: Measured,
}

/// Makes the calls, number of hops by number of hops.
pub(crate) async fn run(options: Options) -> Result<Report> {
    let most = options.hops.iter().copied().max().unwrap_or(1);
    let servers = usize::from(most.max(4));
    let settings = Settings {
        transport: Transport::Udp,
        network: Choice::Loopback,
        servers,
        clients: 1,
        watch: WATCH,
        losses: Some(Losses::each(options.loss)),
        seed: options.seed,
        lane: 0,
        hostile: false,
        budgets: false,
    };
    let mut cluster = Cluster::start(settings).await?;
    let (mut rows, mut violations) = (Vec::new(), Vec::new());
    for hops in options.hops {
        let client = cluster.child(servers)?;
        let instruction = Instruction::Measure {
            seed: options.seed,
            hops,
            calls: options.calls,
            workers: options.workers,
        };
        client.instruct(&instruction).await?;
        let measured = match client.listen(PATIENCE).await? {
            Announcement::Measured(measured) => measured,
            other => bail!("the client said {other:?} instead of what it measured"),
        };
        for words in &measured.failures {
            violations.push(format!("a call of {hops} hops: {words}"));
        }
        violations.extend(count(&cluster, hops, &measured)?);
        rows.push(Row { hops, measured });
        if let Some(words) = cluster.lost()? {
            bail!("{words} without having been killed");
        }
    }
    Ok(Report {
        command: "loss",
        seed: options.seed,
        loss_per_mille: options.loss,
        workers: options.workers,
        rows,
        datagrams: cluster.proxied().await?,
        violations,
    })
}

/// Whether servers executed as much as was asked for, each request once.
fn count(cluster: &Cluster, hops: u8, measured: &Measured) -> Result<Vec<String>> {
    let mut executed: HashMap<u64, u32> = HashMap::new();
    for server in 0..cluster.servers {
        for entry in journal::take(&cluster.books(server))? {
            if entry.event == Event::Begun {
                *executed.entry(entry.id).or_default() += 1;
            }
        }
    }
    let twice = executed.iter().filter(|(_, times)| **times > 1);
    let mut wrong: Vec<String> = twice
        .map(|(id, times)| format!("request {id} was executed {times} times"))
        .collect();
    let (did, asked) = (executed.len() as u64, measured.calls * u64::from(hops));
    if measured.failed == 0 && did != asked {
        wrong.push(format!("{did} requests were executed, not {asked}"));
    }
    Ok(wrong)
}
