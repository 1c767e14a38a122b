//! How long it takes to copy files over the network of the paper, beside what the links themselves take (RPC Chains, 5.3).

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use clap::Args;
use serde::Serialize;
use tokio::task::JoinSet;
use wallaby::{Address, Caller, Endpoint};
use wallaby_chain::{ChainCode, Repository};
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
/// Where it has the client that copies many files at a time, and how long these are.
const BUSY: &str = "redmond";
const FILE: u32 = 256_000;
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
    /// How many files of 256 KB are copied at a time, for throughput; 0: leave that out
    #[arg(long, value_name = "NUMBER,...", value_delimiter = ',', default_value = "1,2,4,8,16",
        value_parser = clap::value_parser!(u16).range(0..=256))]
    at_a_time: Vec<u16>,
    /// The network, with the sites of the paper [default: its figure 7]
    #[arg(long, value_name = "FILE")]
    topology: Option<PathBuf>,
    /// A line of JSON for each client and size, and for each number of files at a time
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

/// Many files copied at a time, again and again: what they took, one way and another, and what the links alone would take.
#[derive(Debug, Serialize)]
struct Load {
    client: &'static str,
    bytes: u32,
    at_a_time: u16,
    rounds: u32,
    ways: [&'static str; 2],
    /// Of all files together.
    megabytes_per_second: [f64; 2],
    ideal_megabytes_per_second: [f64; 2],
    /// Of one whole copy, as median.
    whole_ms: [f64; 2],
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
        let (rows, loads) = self.rows().await?;
        if !self.json {
            return text(table(&rows) + &load_table(&loads));
        }
        for row in rows {
            line(serde_json::to_string(&row)?)?;
        }
        for load in loads {
            line(serde_json::to_string(&load)?)?;
        }
        Ok(())
    }

    async fn rows(&self) -> anyhow::Result<(Vec<Row>, Vec<Load>)> {
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
        for bytes in self.sizes.iter().chain([&FILE]) {
            std::fs::write(a.files.join(name(*bytes)), made_up(*bytes))?;
        }
        let links = |before: &[_], with: &[_], after: &[_]| -> anyhow::Result<Links> {
            Ok(Links {
                before: ways(&network, before)?,
                with: ways(&network, with)?,
                after: ways(&network, after)?,
            })
        };
        let (mut rows, mut loads) = (Vec::new(), Vec::new());
        for client in CLIENTS {
            let (there, back, between) = ((client, SERVERS), (SERVERS, client), (SERVERS, SERVERS));
            let calls = links(&[there], &[back, there], &[back])?;
            let chain = links(&[there], &[between], &[back])?;
            let to = b.at()?;
            let compared = [
                One("calls", to, By::Calls, calls),
                One("chain", to, By::Chain, chain),
            ];
            let here = Client::at((client, &place(client)), &a).await?;
            rows.extend(self.compare(&here, (&a, &[&b]), &compared).await?);
            if client == BUSY {
                let round_trip = ways(&network, &[there, back])?[0].round_trip;
                loads = self.load(&here, (&a, &b), &compared, round_trip).await?;
            }
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
        let here = Client::at((client, &place(client)), &a).await?;
        rows.extend(self.compare(&here, (&a, &[&b, &c]), &compared).await?);
        for stand in [a, b, c] {
            stand.end().await;
        }
        Ok((rows, loads))
    }

    /// Copies files of all sizes in both ways, in turns, and compares them with what they were, byte by byte.
    async fn compare(
        &self,
        client: &Client,
        (from, to): (&Stand, &[&Stand]),
        ways: &[One<'_>; 2],
    ) -> anyhow::Result<Vec<Row>> {
        let mut rows = Vec::new();
        for bytes in &self.sizes {
            let mut moved = [Vec::new(), Vec::new()];
            let mut whole = [Vec::new(), Vec::new()];
            for _ in 0..=self.rounds {
                for (number, One(_, address, by, _)) in ways.iter().enumerate() {
                    let target = client.mount(address).await?;
                    let (copier, source) = (client.copier(*by), &client.source);
                    let begun = Instant::now();
                    let name = name(*bytes);
                    let copied = copier.copy((source, &name), (&target, &name)).await?;
                    whole[number].push(begun.elapsed());
                    moved[number].push(copied.moving);
                    check((from, &name), to, &name)?;
                }
            }
            // The first ones made connections, and brought the function along.
            let median = |times: Vec<Duration>| milliseconds(median(times.into_iter().skip(1)));
            let (moved, whole) = (moved.map(median), whole.map(median));
            let ideal = ways.each_ref().map(|way| milliseconds(way.3.ideal(*bytes)));
            let saved = |[one, other]: [f64; 2]| tenths(100.0 - 100.0 * other / one);
            rows.push(Row {
                client: client.site,
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

    /// Copies a file to so many others at a time, again and again, and compares these with it, byte by byte.
    async fn load(
        &self,
        client: &Client,
        (from, to): (&Stand, &Stand),
        ways: &[One<'_>; 2],
        round_trip: Duration,
    ) -> anyhow::Result<Vec<Load>> {
        let mut loads = Vec::new();
        for at_a_time in self.at_a_time.iter().copied().filter(|number| *number > 0) {
            let (mut rate, mut ideal, mut whole) = ([0.0; 2], [0.0; 2], [0.0; 2]);
            for (number, One(_, address, by, links)) in ways.iter().enumerate() {
                let target = client.mount(address).await?;
                let copies = |rounds| copies(client, *by, &target, at_a_time, rounds);
                copies(1).await?;
                let begun = Instant::now();
                let times = copies(self.rounds).await?;
                let bytes = times.len() as f64 * f64::from(FILE);
                rate[number] = tenths(bytes / begun.elapsed().as_secs_f64() / 1e6);
                whole[number] = milliseconds(median(times.into_iter()));
                // A copy alone asks three times besides, and no link brings more than it can.
                let alone = links.ideal(FILE) + 3 * round_trip;
                let all = f64::from(at_a_time) * f64::from(FILE) / alone.as_secs_f64();
                ideal[number] = tenths(all.min(links.bytes_per_second()) / 1e6);
                for copy in 0..at_a_time {
                    check((from, &name(FILE)), &[to], &numbered(copy))?;
                }
            }
            loads.push(Load {
                client: client.site,
                bytes: FILE,
                at_a_time,
                rounds: self.rounds,
                ways: ways.each_ref().map(|way| way.0),
                megabytes_per_second: rate,
                ideal_megabytes_per_second: ideal,
                whole_ms: whole,
            });
        }
        Ok(loads)
    }
}

/// So many at a time, each so often: how long each took.
async fn copies(
    client: &Client,
    by: By,
    target: &Export,
    at_a_time: u16,
    rounds: u32,
) -> anyhow::Result<Vec<Duration>> {
    let mut copying = JoinSet::new();
    for copy in 0..at_a_time {
        let (copier, source, target) = (client.copier(by), client.source.clone(), target.clone());
        copying.spawn(async move {
            let (from, to) = (name(FILE), numbered(copy));
            let mut times = Vec::new();
            for _ in 0..rounds {
                let begun = Instant::now();
                copier.copy((&source, &from), (&target, &to)).await?;
                times.push(begun.elapsed());
            }
            anyhow::Ok(times)
        });
    }
    let mut times = Vec::new();
    while let Some(done) = copying.join_next().await {
        times.extend(done??);
    }
    Ok(times)
}

/// Who copies: an endpoint at a site.
struct Client {
    site: &'static str,
    caller: Caller,
    functions: ChainCode,
    /// What the first server exports.
    source: Export,
    _here: Endpoint,
}

impl Client {
    async fn at((site, place): (&'static str, &Place), from: &Stand) -> anyhow::Result<Self> {
        let repository = Repository::new();
        let builder = endpoint(Some(place))?.serve(repository.service());
        let here = builder.listen(&format!("wan://{site}:0")).bind().await?;
        let functions = repository
            .keep(FUNCTIONS)?
            .at(here.address().context("it listens")?);
        let caller = caller(&here)?;
        let source = Export::mount(caller.clone(), from.at()?, Patience(Duration::ZERO)).await?;
        Ok(Self {
            site,
            caller,
            functions,
            source,
            _here: here,
        })
    }

    async fn mount(&self, server: &Address) -> anyhow::Result<Export> {
        Export::mount(self.caller.clone(), server, Patience(Duration::ZERO)).await
    }

    fn copier(&self, by: By) -> Copier {
        Copier {
            caller: self.caller.clone(),
            functions: self.functions.clone(),
            by,
            window: WINDOW,
            patience: Patience(Duration::ZERO),
        }
    }
}

/// The file is the same everywhere, and gone where it was copied to, so that it has to be copied again.
fn check((from, name): (&Stand, &str), to: &[&Stand], copy: &str) -> anyhow::Result<()> {
    let source = std::fs::read(from.files.join(name))?;
    for stand in to {
        let copy = stand.files.join(copy);
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

    /// What the slowest of those that bytes go over brings.
    fn bytes_per_second(&self) -> f64 {
        let bits = self.with.iter().map(|way| way.bits_per_second.get());
        bits.min().map_or(f64::INFINITY, |bits| bits as f64 / 8.0)
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

fn load_table(loads: &[Load]) -> String {
    let mut table = String::new();
    for (number, load) in loads.iter().enumerate() {
        let [one, other] = load.ways;
        if number == 0 {
            let head = format!("{}, files of {} B", load.client, load.bytes);
            table.push_str(&format!(
                "\n{head:28} {one:>10} (links) {other:>13} (links)   each: {one}, {other}\n"
            ));
        }
        let rate = |at: usize| {
            let (rate, ideal) = (&load.megabytes_per_second, &load.ideal_megabytes_per_second);
            format!("{:>5.1} MB/s {:>6.1}", rate[at], ideal[at])
        };
        let [one, other] = load.whole_ms;
        table.push_str(&format!(
            "{:>18} at a time    {}     {}     {one:>6.0} ms {other:>6.0} ms\n",
            load.at_a_time,
            rate(0),
            rate(1)
        ));
    }
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

fn numbered(copy: u16) -> String {
    format!("copy-{copy}")
}

/// So many bytes, of which no two parts are the same.
fn made_up(bytes: u32) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(bytes.into());
    std::iter::repeat_with(|| random.u8(..))
        .take(bytes as usize)
        .collect()
}
