//! How long it takes to copy files over the network of the paper, beside what the links themselves take (RPC Chains, 5.3).

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use clap::Args;
use serde::Serialize;
use wallaby::Address;
use wallaby_chain::Repository;
use wallaby_link::{Topology, Wan, Way};
use wallaby_program::output::{line, text};
use wallaby_program::scratch::Scratch;

use crate::copy::{By, Copier, FUNCTIONS, PART};
use crate::nfs::{Export, Patience, caller};
use crate::server::{Place, Replica, endpoint, wan};
use crate::yard::{Plan, Stand};

/// Where the paper has the servers, and the backup of the second one.
const SERVERS: &str = "mountain-view";
const BACKUP: &str = "redmond";
/// Where it has clients that copy, and the one that copies to a server with a backup.
const CLIENTS: [&str; 3] = ["mountain-view", "redmond", "beijing"];
const REPLICATING: &str = "cambridge";
/// Parts under way: more than the largest file has.
const WINDOW: usize = 64;

#[derive(Debug, Args)]
pub(crate) struct Measure {
    /// How often each file is copied each way
    #[arg(long, value_name = "NUMBER", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rounds: u32,
    /// Sizes of files, in bytes
    #[arg(long, value_name = "BYTES,...", value_delimiter = ',', default_value = "25000,100000,250000,500000",
        value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    sizes: Vec<u32>,
    /// The network, with the sites of the paper [default: its figure 7]
    #[arg(long, value_name = "FILE")]
    topology: Option<PathBuf>,
    /// A line of JSON for each client and size
    #[arg(long)]
    json: bool,
}

/// What copying took, as medians in milliseconds, one way and another, and what the links take of that. To move the bytes is what
/// differs; the whole copy looks the file up, creates the new one, and gives it its name as well.
#[derive(Debug, Serialize)]
struct Row {
    client: &'static str,
    bytes: u32,
    rounds: u32,
    /// What is compared, one way and the other.
    ways: [&'static str; 2],
    moved_ms: [f64; 2],
    moved_ideal_ms: [f64; 2],
    saved_percent: f64,
    saved_ideal_percent: f64,
    whole_ms: [f64; 2],
    whole_saved_percent: f64,
}

/// One way to copy: its name, to which address, how, and over which links.
struct One<'a>(&'static str, &'a Address, By, Links);

/// What the messages of a part go over: those before it, those with its bytes, those after it.
struct Links {
    before: Vec<Way>,
    with: Vec<Way>,
    after: Vec<Way>,
}

impl Measure {
    pub(crate) async fn run(self) -> anyhow::Result<()> {
        let rows = self.rows().await?;
        if !self.json {
            return text(table(&rows));
        }
        for row in rows {
            line(serde_json::to_string(&row)?)?;
        }
        Ok(())
    }

    async fn rows(&self) -> anyhow::Result<Vec<Row>> {
        let scratch = Scratch::create("wallaby-storage")?;
        let folder = scratch.path();
        let topology = self
            .topology
            .clone()
            .unwrap_or_else(|| folder.join("topology"));
        if self.topology.is_none() {
            std::fs::write(&topology, Topology::FIGURE_7)?;
        }
        let network = wan(&topology)?;
        let place = |site: &str| Place {
            topology: topology.clone(),
            site: site.to_owned(),
        };
        let plan = |site| Plan {
            place: Some(place(site)),
            ..Plan::default()
        };
        let a = Stand::start(folder, (1, "a"), plan(SERVERS)).await?;
        let c = Stand::start(folder, (3, "c"), plan(BACKUP)).await?;
        let backup = c.at()?.clone();
        let replicas = [false, true].map(|is_composed| Replica {
            backup: backup.clone(),
            is_composed,
        });
        let replicas = Plan {
            replicas: replicas.to_vec(),
            ..plan(SERVERS)
        };
        let b = Stand::start(folder, (2, "b"), replicas).await?;
        for bytes in &self.sizes {
            std::fs::write(a.files.join(name(*bytes)), made_up(*bytes))?;
        }
        let links = |before: &[_], with: &[_], after: &[_]| -> anyhow::Result<Links> {
            Ok(Links {
                before: ways(&network, before)?,
                with: ways(&network, with)?,
                after: ways(&network, after)?,
            })
        };
        let mut rows = Vec::new();
        for client in CLIENTS {
            let (there, back, between) = ((client, SERVERS), (SERVERS, client), (SERVERS, SERVERS));
            let calls = links(&[there], &[back, there], &[back])?;
            let chain = links(&[there], &[between], &[back])?;
            let to = b.at()?;
            let compared = [
                One("calls", to, By::Calls, calls),
                One("chain", to, By::Chain, chain),
            ];
            rows.extend(
                self.compare((client, &place(client)), (&a, &[&b]), compared)
                    .await?,
            );
        }
        let [apart, composed] = &b.told()?.primaries[..] else {
            anyhow::bail!("b has two primaries");
        };
        let (client, there) = (REPLICATING, (REPLICATING, SERVERS));
        let data = [(SERVERS, SERVERS), (SERVERS, BACKUP)];
        let two = links(&[there], &data, &[(BACKUP, SERVERS), (SERVERS, client)])?;
        let one = links(&[there], &data, &[(BACKUP, client)])?;
        let compared = [
            One("two chains", apart, By::Chain, two),
            One("one chain", composed, By::Chain, one),
        ];
        rows.extend(
            self.compare((client, &place(client)), (&a, &[&b, &c]), compared)
                .await?,
        );
        for stand in [a, b, c] {
            stand.end().await;
        }
        Ok(rows)
    }

    /// Copies files of all sizes in both ways, in turns, and compares them with what they were, byte by byte.
    async fn compare(
        &self,
        (client, place): (&'static str, &Place),
        (from, to): (&Stand, &[&Stand]),
        ways: [One<'_>; 2],
    ) -> anyhow::Result<Vec<Row>> {
        let repository = Repository::new();
        let builder = endpoint(Some(place))?.serve(repository.service());
        let here = builder.listen(&format!("wan://{client}:0")).bind().await?;
        let functions = repository
            .keep(FUNCTIONS)?
            .at(here.address().context("it listens")?);
        let (caller, patience) = (caller(&here)?, Patience(Duration::ZERO));
        let source = Export::mount(caller.clone(), from.at()?, patience).await?;
        let mut rows = Vec::new();
        for bytes in &self.sizes {
            let mut moved = [Vec::new(), Vec::new()];
            let mut whole = [Vec::new(), Vec::new()];
            for _ in 0..=self.rounds {
                for (number, One(_, address, by, _)) in ways.iter().enumerate() {
                    let (functions, caller) = (functions.clone(), caller.clone());
                    let target = Export::mount(caller.clone(), address, patience).await?;
                    let copier = Copier {
                        caller,
                        functions,
                        by: *by,
                        window: WINDOW,
                        patience,
                    };
                    let begun = Instant::now();
                    let name = name(*bytes);
                    let copied = copier.copy((&source, &name), (&target, &name)).await?;
                    whole[number].push(begun.elapsed());
                    moved[number].push(copied.moving);
                    check(&name, from, to)?;
                }
            }
            // The first ones made connections, and brought the function along.
            let median = |times: Vec<Duration>| milliseconds(median(times.into_iter().skip(1)));
            let (moved, whole) = (moved.map(median), whole.map(median));
            let ideal = ways.each_ref().map(|way| milliseconds(way.3.ideal(*bytes)));
            let saved = |[one, other]: [f64; 2]| tenths(100.0 - 100.0 * other / one);
            rows.push(Row {
                client,
                bytes: *bytes,
                rounds: self.rounds,
                ways: ways.each_ref().map(|way| way.0),
                moved_ms: moved,
                moved_ideal_ms: ideal,
                saved_percent: saved(moved),
                saved_ideal_percent: saved(ideal),
                whole_ms: whole,
                whole_saved_percent: saved(whole),
            });
        }
        Ok(rows)
    }
}

/// The file is the same everywhere, and gone where it was copied to, so that it has to be copied again.
fn check(name: &str, from: &Stand, to: &[&Stand]) -> anyhow::Result<()> {
    let source = std::fs::read(from.files.join(name))?;
    for stand in to {
        let copy = stand.files.join(name);
        let same = std::fs::read(&copy).with_context(|| copy.display().to_string())? == source;
        ensure!(
            same,
            "{} is not the same as what was copied",
            copy.display()
        );
        std::fs::remove_file(copy)?;
    }
    Ok(())
}

impl Links {
    /// What links take for the parts of a file, of which each goes as soon as it has come and the link is free.
    fn ideal(&self, bytes: u32) -> Duration {
        let half = |ways: &[Way]| ways.iter().map(|way| way.round_trip / 2).sum::<Duration>();
        let (begun, mut end) = (half(&self.before), Duration::ZERO);
        let mut free = vec![Duration::ZERO; self.with.len()];
        for offset in (0..bytes).step_by(PART as usize) {
            let part = f64::from((bytes - offset).min(PART));
            let mut at = begun;
            for (way, free) in self.with.iter().zip(&mut free) {
                let bits_per_second = way.bits_per_second.get() as f64;
                *free = at.max(*free) + Duration::from_secs_f64(part * 8.0 / bits_per_second);
                at = *free + way.round_trip / 2;
            }
            end = at;
        }
        end + half(&self.after)
    }
}

fn ways(network: &Wan, ways: &[(&str, &str)]) -> anyhow::Result<Vec<Way>> {
    let found = ways.iter().map(|(from, to)| {
        let way = network.topology().way(from, to);
        way.with_context(|| format!("there is no link from {from} to {to}"))
    });
    found.collect()
}

fn table(rows: &[Row]) -> String {
    let mut table = String::new();
    for (number, row) in rows.iter().enumerate() {
        let is_new = |before: &Row| (before.client, before.ways) != (row.client, row.ways);
        if number == 0 || is_new(&rows[number - 1]) {
            let [one, other] = row.ways;
            let head = format!("client in {}", row.client);
            table.push_str(&format!(
                "{}{head:25} {one:>10} (links) {other:>13} (links)     saved (links)   whole copies\n",
                if number == 0 { "" } else { "\n" }
            ));
        }
        let times = |at: usize| {
            format!(
                "{:>7.1} ms {:>7.1}",
                row.moved_ms[at], row.moved_ideal_ms[at]
            )
        };
        let (saved, saved_ideal) = (row.saved_percent, row.saved_ideal_percent);
        let [one, other] = row.whole_ms;
        table.push_str(&format!(
            "{:>22} B  {}   {}   {saved:>5.1} % {saved_ideal:>6.1}   {one:>6.0} and {other:.0} ms\n",
            row.bytes,
            times(0),
            times(1),
        ));
    }
    let rounds = rows.first().map_or(0, |row| row.rounds);
    table.push_str(&format!("\nMedians of {rounds} rounds.\n"));
    table
}

fn milliseconds(time: Duration) -> f64 {
    tenths(time.as_secs_f64() * 1e3)
}

fn tenths(number: f64) -> f64 {
    (number * 10.0).round() / 10.0
}

fn median(times: impl Iterator<Item = Duration>) -> Duration {
    let mut times: Vec<Duration> = times.collect();
    times.sort();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

fn name(bytes: u32) -> String {
    format!("{bytes}-bytes")
}

/// So many bytes, of which no two parts are the same.
fn made_up(bytes: u32) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(bytes.into());
    std::iter::repeat_with(|| random.u8(..))
        .take(bytes as usize)
        .collect()
}
