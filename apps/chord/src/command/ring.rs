//! `wallaby-chord ring`: who is where, and whether it is one ring.

use super::Page;
use crate::census::problems;
use crate::client::Client;
use crate::draw;
use crate::node::Tables;
use clap::Args;
use std::process::ExitCode;
use std::time::Duration;
use wallaby::Address;
use wallaby_program::output;

/// Which one.
#[derive(Debug, Args)]
pub(super) struct Show {
    #[command(flatten)]
    page: Page,
}

impl Show {
    pub(super) async fn run(self) -> anyhow::Result<ExitCode> {
        const MOST: usize = 10;
        let client = self.page.client().await?;
        let (tables, silent) = survey(&client).await;
        output::text(draw::ring(&tables))?;
        for host in &silent {
            eprintln!("{host} does not answer");
        }
        let problems = problems(&tables);
        for problem in problems.iter().take(MOST) {
            eprintln!("{problem}");
        }
        if problems.len() > MOST {
            eprintln!("… and {} more", problems.len() - MOST);
        }
        if !problems.is_empty() {
            return Ok(ExitCode::FAILURE);
        }
        output::line(format_args!("\none ring of {} nodes", tables.len()))?;
        Ok(ExitCode::SUCCESS)
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
