//! A cluster that is not there: the trees of the benchmarks on hosts with one core and one network card each.
//!
//! What is sent, and when an operation is complete, is decided by the machines of `wallaby-proto`; what it takes is added
//! up from [`Costs`]. There are no faults, and no chance but in which servers are asked and when operations begin.
//!
//! A prediction is worth as much as its costs. Those of the thesis' own implementation are there to check the model
//! itself: [`check()`] compares it with all that was published, and what it says of other trees counts only if it
//! reproduces what it was given.

mod check;
mod costs;
mod host;
mod operation;
mod run;

use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use check::{Check, MOST_DEVIATION, check};
pub use costs::{Costs, MessageCosts};

use crate::tree::{Form, Tree};

/// What is between hosts.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Network {
    /// How long a bit is on its way from one host's card to another's, in microseconds.
    pub one_way_us: f64,
    /// What each card sends, and receives.
    pub gigabits_per_s: f64,
    /// Sites that the hosts are spread over, evenly.
    #[serde(default = "one")]
    pub sites: usize,
    /// The same from site to site.
    #[serde(default)]
    pub between_sites_us: f64,
}

/// Who does the work, and how much of it.
#[derive(Clone, Debug)]
pub struct Setting {
    /// Hosts that handle requests.
    pub servers: usize,
    /// Bytes of payload in each message.
    pub payload: usize,
    /// How operations begin.
    pub load: Load,
    /// How many; a tenth as many come before them, and are not counted.
    pub operations: usize,
    /// Of all random choices.
    pub seed: u64,
}

/// How operations begin.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Load {
    /// At a client that is no server, each when all before is done and everybody is asleep again.
    One,
    /// So many a second, at random times at random servers.
    PerSecond(f64),
    /// At every server, as many at a time as this.
    UnderWay(usize),
}

/// What the model says. All counts are per operation.
#[derive(Clone, Debug, PartialEq)]
pub struct Prediction {
    /// Median latency.
    pub p50: Duration,
    /// 99th percentile of the latency.
    pub p99: Duration,
    /// Messages sent by anybody.
    pub messages: f64,
    /// Messages that the client sent or received.
    pub client_messages: f64,
    /// Bytes on the wire.
    pub bytes: f64,
    /// Processor time of the client.
    pub client_cpu: Duration,
    /// Processor time of everybody.
    pub cpu: Duration,
    /// Operations per second.
    pub per_second: f64,
}

/// What the model says about a tree in one form.
///
/// # Errors
///
/// A setting without servers or operations, or a load that nothing can begin at.
pub fn predict(
    tree: &Tree,
    form: Form,
    costs: &Costs,
    setting: &Setting,
) -> anyhow::Result<Prediction> {
    costs.network.check()?;
    setting.check(tree)?;
    run::Run::new(tree, form, costs, setting).predict()
}

impl Network {
    /// A network of one site.
    pub fn of_one_site(one_way_us: f64, gigabits_per_s: f64) -> Self {
        Self {
            one_way_us,
            gigabits_per_s,
            sites: 1,
            between_sites_us: 0.0,
        }
    }

    fn check(&self) -> anyhow::Result<()> {
        anyhow::ensure!(
            self.gigabits_per_s > 0.0 && self.gigabits_per_s <= 1e6,
            "a card carries more than 0 and at most 1,000,000 Gbit/s"
        );
        let delays = [self.one_way_us, self.between_sites_us];
        anyhow::ensure!(
            delays.iter().all(|delay| (0.0..=1e9).contains(delay)),
            "a way takes from 0 to 1,000,000,000 µs"
        );
        anyhow::ensure!(self.sites > 0, "hosts are at one site at least");
        Ok(())
    }
}

impl Setting {
    fn check(&self, tree: &Tree) -> anyhow::Result<()> {
        anyhow::ensure!(
            (3..=MOST_SERVERS).contains(&self.servers),
            "there are 3 to {MOST_SERVERS} servers"
        );
        anyhow::ensure!(
            (1..=MOST_OPERATIONS).contains(&self.operations),
            "there are 1 to {MOST_OPERATIONS} operations"
        );
        anyhow::ensure!(
            self.payload <= MOST_PAYLOAD,
            "a payload has at most {MOST_PAYLOAD} bytes"
        );
        anyhow::ensure!(!tree.nodes().is_empty(), "there is nothing to do");
        match self.load {
            Load::PerSecond(rate) => anyhow::ensure!(
                rate > 0.0 && rate <= 1e12,
                "a load is more than 0 and at most 10^12 operations a second"
            ),
            Load::UnderWay(count) => anyhow::ensure!(
                (1..=MOST_UNDER_WAY).contains(&count),
                "1 to {MOST_UNDER_WAY} operations can be under way at a server"
            ),
            Load::One => {}
        }
        Ok(())
    }
}

fn one() -> usize {
    1
}

const MOST_SERVERS: usize = 100_000;
const MOST_OPERATIONS: usize = 10_000_000;
const MOST_PAYLOAD: usize = 1 << 20;
const MOST_UNDER_WAY: usize = 10_000;
