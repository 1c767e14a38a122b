//! How long it takes to read a mail, by plain calls and by a chain, beside what the links themselves take (RPC Chains, 5.4).

use crate::command::invent;
use crate::mail::By;
use crate::process::{Role, Servers, Settings, endpoint, wan};
use crate::secret::{Secret, Token};
use crate::services::{Folder, Reading, auth, mail};
use anyhow::{Context, ensure};
use clap::Args;
use serde::Serialize;
use std::time::{Duration, Instant};
use wallaby_link::Wan;
use wallaby_program::output;
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
    /// A line of JSON for each size
    #[arg(long)]
    json: bool,
}

/// What reading a mail took, as medians in milliseconds, and beside it what the links take of that. To log in is the same for both;
/// what the links do not take of it is the hash of the password.
#[derive(Debug, Serialize)]
struct Row {
    bytes: u32,
    calls_ms: f64,
    calls_ideal_ms: f64,
    chain_ms: f64,
    chain_ideal_ms: f64,
    login_ms: f64,
    login_ideal_ms: f64,
}

impl Measure {
    pub(crate) async fn run(self) -> anyhow::Result<()> {
        let rows = self.rows().await?;
        if !self.json {
            return output::text(table(&rows));
        }
        for row in rows {
            output::line(serde_json::to_string(&row)?)?;
        }
        Ok(())
    }

    async fn rows(&self) -> anyhow::Result<Vec<Row>> {
        let scratch = Scratch::create("wallaby-mail")?;
        let mails = self.sizes.iter().map(|size| (id(*size), made_up(*size)));
        let mails: Vec<_> = mails.collect();
        let users = invent(scratch.path(), &mails)?;
        let (name, password) = users.first().context("there are users")?;
        let settings = Settings {
            data: Some(scratch.path().to_owned()),
            web: "127.0.0.1:0".parse()?,
            https: false,
            by: By::Chain,
            far: true,
        };
        let servers = Servers::start(&settings).await?;
        let network = wan()?;
        let client = endpoint(scratch.path())?.transport(network.at(CLIENT)?);
        let client = client.bind().await?;

        let (mut logins, mut token) = (Vec::new(), None);
        for _ in 0..=self.rounds.min(5) {
            let begun = Instant::now();
            let auth = auth::at(&client, &servers.directory.of(Role::Auth)?);
            let login = auth.login((*name).into(), Secret(password.clone()), CLIENT.into());
            token = login.await?.ok();
            logins.push(begun.elapsed());
        }
        let token = token.context("the password is right")?;
        let login = median(logins);

        let mail = mail::at(&client, &servers.directory.of(Role::Mail)?);
        let mut rows = Vec::new();
        for bytes in &self.sizes {
            let (mut by_calls, mut by_chain) = (Vec::new(), Vec::new());
            for _ in 0..=self.rounds {
                let one = read(&mail, &token, *bytes, By::Calls, &mut by_calls).await?;
                let other = read(&mail, &token, *bytes, By::Chain, &mut by_chain).await?;
                ensure!(one == other, "{bytes} bytes are not the same both ways");
            }
            let (calls, chain) = (median(by_calls), median(by_chain));
            rows.push(row(*bytes, login, calls, chain, &network)?);
        }
        servers.end().await;
        Ok(rows)
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

fn row(
    bytes: u32,
    login: Duration,
    calls: Duration,
    chain: Duration,
    network: &Wan,
) -> anyhow::Result<Row> {
    // Requests are short; the mail travels with answers, and to the ad server with a request.
    let (asked, answered) = ((CLIENT, OFFICE, 0), (OFFICE, CLIENT, bytes));
    let (check, fetch) = ((OFFICE, OFFICE, 0), (OFFICE, STORE, 0));
    let (there, back) = ((OFFICE, STORE, bytes), (STORE, OFFICE, bytes));
    let by_calls = [asked, check, check, fetch, back, there, back, answered];
    let between = (STORE, STORE, bytes);
    let by_chain = [asked, check, check, fetch, between, back, answered];
    let milliseconds = |time: Duration| (time.as_secs_f64() * 1e4).round() / 10.0;
    Ok(Row {
        bytes,
        calls_ms: milliseconds(calls),
        calls_ideal_ms: milliseconds(ideal(network, &by_calls)?),
        chain_ms: milliseconds(chain),
        chain_ideal_ms: milliseconds(ideal(network, &by_chain)?),
        login_ms: milliseconds(login),
        login_ideal_ms: milliseconds(ideal(network, &[asked, (OFFICE, CLIENT, 0)])?),
    })
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
    let saved = |calls: f64, chain: f64| format!("{:.1}", 100.0 - 100.0 * chain / calls);
    let cells = rows.iter().map(|row| {
        [
            row.bytes.to_string(),
            format!("{:.1}", row.calls_ms),
            format!("{:.1}", row.calls_ideal_ms),
            format!("{:.1}", row.chain_ms),
            format!("{:.1}", row.chain_ideal_ms),
            saved(row.calls_ms, row.chain_ms),
            saved(row.calls_ideal_ms, row.chain_ideal_ms),
            saved(row.login_ms + row.calls_ms, row.login_ms + row.chain_ms),
            format!("{:.1}", row.login_ms),
            format!("{:.1}", row.login_ideal_ms),
        ]
    });
    let heads = [
        "bytes",
        "calls ms",
        "links",
        "chain ms",
        "links",
        "saved %",
        "links",
        "with login",
        "login ms",
        "links",
    ];
    output::table(.., &heads, cells)
}

/// Of all but the first one, which made connections.
fn median(mut times: Vec<Duration>) -> Duration {
    let times = &mut times[1..];
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
