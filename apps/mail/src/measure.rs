//! How long it takes to read a mail, by plain calls and by a chain, beside what the links themselves take (RPC Chains, 5.4).

use crate::command::invent;
use crate::files;
use crate::mail::By;
use crate::process::{Role, Servers, Settings, endpoint, wan};
use crate::secret::{Secret, Token};
use crate::services::{Folder, Reading, auth, mail};
use anyhow::{Context, ensure};
use clap::{Args, Parser};
use serde::Serialize;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use wallaby_link::{Topology, Wan};
use wallaby_program::output::{line, text};
use wallaby_program::scratch::Scratch;

/// Where the paper has who asks, the mail server, and what that asks.
const CLIENT: &str = Role::Web.site();
const OFFICE: &str = Role::Mail.site();
const STORE: &str = Role::Storage.site();

#[derive(Debug, Args)]
pub(crate) struct Measure {
    /// How often each mail is read each way
    #[arg(long, value_name = "NUMBER", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rounds: u32,
    /// Sizes of mails, in bytes
    #[arg(long, value_name = "BYTES,...", value_delimiter = ',', default_value = "1000,10000,50000,100000,200000",
        value_parser = clap::value_parser!(u32).range(500..=8_000_000))]
    sizes: Vec<u32>,
    /// The network, with the sites mountain-view, redmond and beijing [default: the paper's figure 7]
    #[arg(long, value_name = "FILE")]
    topology: Option<PathBuf>,
    /// A line of JSON for each size
    #[arg(long)]
    json: bool,
}

/// What reading a mail took, as medians in milliseconds, and beside it what the links take of that. To log in is the same for both;
/// what the links do not take of it is the hash of the password.
#[derive(Debug, Serialize)]
struct Row {
    bytes: u32,
    rounds: u32,
    calls_ms: f64,
    calls_ideal_ms: f64,
    chain_ms: f64,
    chain_ideal_ms: f64,
    saved_percent: f64,
    saved_ideal_percent: f64,
    /// If the user logs in before, as in the paper.
    saved_with_login_percent: f64,
    login_ms: f64,
    login_ideal_ms: f64,
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
        let scratch = Scratch::create("wallaby-mail")?;
        let topology = self.topology.clone();
        let topology = topology.unwrap_or_else(|| scratch.path().join("topology"));
        if self.topology.is_none() {
            std::fs::write(&topology, Topology::FIGURE_7)?;
        }
        let (data, mails) = (scratch.path().join("data"), scratch.path().join("mails"));
        for bytes in &self.sizes {
            files::write(&mails.join(id(*bytes)), made_up(*bytes).as_bytes())?;
        }
        let users = invent(&data, Some(&mails))?;
        let (name, password) = users.first().context("there are users")?;
        let settings = Settings {
            data: Some(data.clone()),
            topology: Some(topology.clone()),
            ..Settings::parse_from(["", "--web", "127.0.0.1:0"])
        };
        let servers = Servers::start(&settings).await?;
        let network = wan(&topology)?;
        let client = endpoint(&data)?.transport(network.at(CLIENT)?);
        let client = client.bind().await?;

        let (mut logins, mut tokens) = (Vec::new(), Vec::new());
        for _ in 0..=self.rounds.min(5) {
            let begun = Instant::now();
            let auth = auth::at(&client, &servers.directory.of(Role::Auth)?);
            let login = auth.login((*name).into(), Secret(password.clone()), CLIENT.into());
            let login = login.await?.ok();
            tokens.push(login.context("the password is right")?);
            logins.push(begun.elapsed());
        }
        let login = median(logins.split_off(1)); // the first one made a connection

        let mail = mail::at(&client, &servers.directory.of(Role::Mail)?);
        let mut rows = Vec::new();
        for bytes in &self.sizes {
            let (mut by_calls, mut by_chain) = (Vec::new(), Vec::new());
            for _ in 0..=self.rounds {
                let one = read(&mail, &tokens[0], *bytes, By::Calls, &mut by_calls).await?;
                let other = read(&mail, &tokens[0], *bytes, By::Chain, &mut by_chain).await?;
                ensure!(one == other, "{bytes} bytes are not the same both ways");
            }
            // The first ones made connections.
            let (calls, chain) = (median(by_calls.split_off(1)), median(by_chain.split_off(1)));
            let took = [login, calls, chain];
            rows.push(self.row(*bytes, took, &network)?);
        }
        servers.end().await;
        Ok(rows)
    }

    fn row(&self, bytes: u32, took: [Duration; 3], network: &Wan) -> anyhow::Result<Row> {
        // Requests are short; the mail travels with answers, and to the ad server with a request.
        let (asked, answered) = ((CLIENT, OFFICE, 0), (OFFICE, CLIENT, bytes));
        let (check, fetch) = ((OFFICE, OFFICE, 0), (OFFICE, STORE, 0));
        let (there, back) = ((OFFICE, STORE, bytes), (STORE, OFFICE, bytes));
        let by_calls = [asked, check, check, fetch, back, there, back, answered];
        let between = (STORE, STORE, bytes);
        let by_chain = [asked, check, check, fetch, between, back, answered];
        let login_ideal = ideal(network, &[asked, (OFFICE, CLIENT, 0)])?;
        let (calls_ideal, chain_ideal) = (ideal(network, &by_calls)?, ideal(network, &by_chain)?);
        let [login, calls, chain] = took;
        let saved = |calls: Duration, chain: Duration| {
            tenths(100.0 - 100.0 * chain.as_secs_f64() / calls.as_secs_f64())
        };
        Ok(Row {
            bytes,
            rounds: self.rounds,
            calls_ms: milliseconds(calls),
            calls_ideal_ms: milliseconds(calls_ideal),
            chain_ms: milliseconds(chain),
            chain_ideal_ms: milliseconds(chain_ideal),
            saved_percent: saved(calls, chain),
            saved_ideal_percent: saved(calls_ideal, chain_ideal),
            saved_with_login_percent: saved(login + calls, login + chain),
            login_ms: milliseconds(login),
            login_ideal_ms: milliseconds(login_ideal),
        })
    }
}

/// Reads a mail, and notes how long that takes.
async fn read(
    server: &mail::Client,
    token: &Token,
    bytes: u32,
    by: By,
    times: &mut Vec<Duration>,
) -> anyhow::Result<Reading> {
    let begun = Instant::now();
    let reading = server.read(token.clone(), Folder::Inbox, id(bytes), by);
    let reading = reading.await?.what;
    times.push(begun.elapsed());
    let len = reading.message.bytes.len();
    ensure!(len == bytes as usize, "the mail has {len} bytes");
    ensure!(!reading.ads.is_empty(), "no advertisement fits");
    Ok(reading)
}

/// What links take for messages that follow each other: from where, to where, and how many bytes each has.
fn ideal(network: &Wan, messages: &[(&str, &str, u32)]) -> anyhow::Result<Duration> {
    let mut time = Duration::ZERO;
    for (from, to, bytes) in messages {
        let way = network.topology().way(from, to);
        let way = way.with_context(|| format!("there is no link from {from} to {to}"))?;
        let bits = f64::from(*bytes) * 8.0;
        time += way.round_trip / 2;
        time += Duration::from_secs_f64(bits / way.bits_per_second.get() as f64);
    }
    Ok(time)
}

fn table(rows: &[Row]) -> String {
    const HEAD: &str =
        "     mail    plain calls (links)       chain (links)    saved (links)  with login";
    let lines = rows.iter().map(|row| {
        let calls = format!("{:>8.1} ms {:>7.1}", row.calls_ms, row.calls_ideal_ms);
        let chain = format!("{:>7.1} ms {:>7.1}", row.chain_ms, row.chain_ideal_ms);
        let saved = format!(
            "{:>4.1} % {:>7.1}",
            row.saved_percent, row.saved_ideal_percent
        );
        let with_login = row.saved_with_login_percent;
        format!(
            "{:>7} B  {calls}  {chain}   {saved} {with_login:>8.1} %\n",
            row.bytes
        )
    });
    let last = rows.first().map(|row| {
        let (rounds, took, links) = (row.rounds, row.login_ms, row.login_ideal_ms);
        format!(
            "\nMedians of {rounds} rounds. To log in takes {took:.1} ms, of which links take {links:.1}, and the hash of the \
             password nearly all of the rest.\n"
        )
    });
    format!(
        "{HEAD}\n{}{}",
        lines.collect::<String>(),
        last.unwrap_or_default()
    )
}

fn milliseconds(time: Duration) -> f64 {
    tenths(time.as_secs_f64() * 1e3)
}

fn tenths(number: f64) -> f64 {
    (number * 10.0).round() / 10.0
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

fn id(bytes: u32) -> String {
    format!("{bytes}-bytes.eml")
}

/// A mail of so many bytes, of lines as people write them.
fn made_up(bytes: u32) -> String {
    const LINE: &str = "The trail along the ridge should be dry by now, and I have new boots.\r\n";
    let mut mail = format!(
        "From: Ben <ben@mail.example>\r\nTo: Anna <anna@mail.example>\r\nSubject: {bytes} bytes about boots\r\n\
         Date: Sat, 21 Nov 2026 10:15:00 +0100\r\nContent-Type: text/plain; charset=utf-8\r\n\r\n"
    );
    while mail.len() < bytes as usize {
        mail.push_str(LINE);
    }
    mail.truncate(bytes as usize);
    mail
}
