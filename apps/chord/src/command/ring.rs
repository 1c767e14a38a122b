//! `wallaby-chord ring`: who is where, and whether it is one ring.

use super::Page;
use crate::census::{Problem, problems};
use crate::client::Client;
use crate::draw;
use crate::node::Tables;
use crate::output;
use clap::Args;
use serde_json::json;
use std::process::ExitCode;
use std::time::Duration;
use wallaby::Address;

/// How it is shown.
#[derive(Debug, Args)]
pub(super) struct Ring {
    /// Print a line of JSON for each node
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    page: Page,
}

impl Ring {
    pub(super) async fn run(self) -> anyhow::Result<ExitCode> {
        let client = self.page.client().await?;
        let (tables, silent) = survey(&client).await;
        if self.json {
            for node in &tables {
                output::line(format_args!("{}", line(node)))?;
            }
        } else {
            output::text(&draw::ring(&tables))?;
        }
        for host in &silent {
            eprintln!("{host} does not answer");
        }
        let problems = problems(&tables);
        report(&problems);
        match (problems.is_empty(), self.json) {
            (false, _) => return Ok(ExitCode::FAILURE),
            (true, true) => {}
            (true, false) => output::line(format_args!("\none ring of {} nodes", tables.len()))?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Says what is wrong with a ring.
pub(super) fn report(problems: &[Problem]) {
    const MOST: usize = 10;
    for problem in problems.iter().take(MOST) {
        eprintln!("{problem}");
    }
    if problems.len() > MOST {
        eprintln!("… and {} more", problems.len() - MOST);
    }
}

/// What all nodes know, by place, and which endpoints do not answer.
pub(super) async fn survey(client: &Client) -> (Vec<Tables>, Vec<Address>) {
    const AT_ONCE: u32 = 32;
    // More nodes than any ring has here: an endpoint that never comes to an end is not believed.
    const MOST: usize = 1 << 20;
    let (mut all, mut silent) = (Vec::new(), Vec::new());
    for host in client.hosts() {
        let server = wallaby::Client::new(client.endpoint(), host).deadline(Duration::from_secs(5));
        let server = crate::service::hosting::within(server);
        let mut behind = None;
        loop {
            match server.tables(behind, AT_ONCE).await {
                Ok(tables) => {
                    let last = tables.last().map(|tables| tables.peer.id);
                    let goes_on = last > behind && all.len() < MOST;
                    all.extend(tables);
                    if !goes_on {
                        break;
                    }
                    behind = last;
                }
                Err(_) => {
                    silent.push(host.clone());
                    break;
                }
            }
        }
    }
    all.sort_by(|one: &Tables, other| one.peer.cmp(&other.peer));
    (all, silent)
}

fn line(node: &Tables) -> serde_json::Value {
    let ids = |peers: &[crate::message::Peer]| -> Vec<String> {
        peers.iter().map(|peer| peer.id.to_string()).collect()
    };
    json!({
        "node": node.peer.id.to_string(),
        "at": node.peer.host.to_string(),
        "serving": node.serving,
        "predecessor": node.predecessor.as_ref().map(|peer| peer.id.to_string()),
        "successors": ids(&node.successors),
        "fingers": ids(&node.fingers),
        "own_keys": node.own_keys,
        "keys": node.keys,
    })
}
