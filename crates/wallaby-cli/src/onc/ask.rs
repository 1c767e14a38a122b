//! `wallaby onc list` and `wallaby onc ping`: what is registered at a machine, and whether it answers.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::Args;
use serde_json::json;
use wallaby_onc::client::{ClientOptions, TcpChannel, UdpChannel};
use wallaby_onc::rpcbind::{self, Rpcbind};
use wallaby_onc::xdr::Xdr;
use wallaby_onc::{Channel, Peer, Procedure, RpcError, service};
use wallaby_program::output;

use crate::output::{json_line, plain};
use crate::remote::block_on;

/// How a machine is asked.
#[derive(Debug, Args)]
struct Asking {
    /// The machine: a name or an address
    host: String,
    /// How long a call may take, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0, value_parser = seconds)]
    timeout: f64,
    /// Say it in JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  wallaby onc list localhost
  wallaby onc list 192.0.2.1 --json | jq '.[] | select(.program == 100003)'

Exit status: 0 if there was an answer, 1 if not, 2 if the command line is wrong.")]
pub(crate) struct List {
    #[command(flatten)]
    asking: Asking,
    /// The port of its rpcbind
    #[arg(long, default_value_t = rpcbind::PORT)]
    port: u16,
    /// Ask over UDP; without it, over TCP
    #[arg(long)]
    udp: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  wallaby onc ping localhost 100003 3               NFS version 3 over TCP, at the port that rpcbind says
  wallaby onc ping localhost 100003 3 --udp --count 5
  wallaby onc ping 192.0.2.1 0x20000001 1 --port 4711

Exit status: 0 if all calls were answered, 1 if not, 2 if the command line is wrong.")]
pub(crate) struct Ping {
    #[command(flatten)]
    asking: Asking,
    /// The program's number, also as 0x..
    #[arg(value_parser = number)]
    program: u32,
    /// Its version
    #[arg(value_parser = number)]
    version: u32,
    /// Call over UDP; without it, over TCP
    #[arg(long)]
    udp: bool,
    /// Call over TCP, as without it
    #[arg(long, conflicts_with = "udp")]
    tcp: bool,
    /// The program's port; without it, rpcbind is asked
    #[arg(long)]
    port: Option<u16>,
    /// The port of the machine's rpcbind
    #[arg(long, default_value_t = rpcbind::PORT, conflicts_with = "port")]
    rpcbind_port: u16,
    /// How often it is called
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    count: u32,
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.001..=86_400.0).contains(&seconds) => Ok(seconds),
        _ => Err("expected a number of seconds from 0.001 to 86400".to_owned()),
    }
}

fn number(text: &str) -> Result<u32, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed
        .map_err(|_| "expected a number of at most 32 bits, as in 100003 or 0x20000001".to_owned())
}

impl Asking {
    fn options(&self) -> ClientOptions {
        ClientOptions::default().timeout(Duration::from_secs_f64(self.timeout))
    }

    /// The machine's addresses, with this port.
    async fn addresses(&self, port: u16) -> anyhow::Result<Vec<SocketAddr>> {
        let found = tokio::net::lookup_host((self.host.as_str(), port));
        let found: Vec<_> = found
            .await
            .with_context(|| format!("cannot find {}", self.host))?
            .collect();
        match found.is_empty() {
            true => bail!("{} has no address", self.host),
            false => Ok(found),
        }
    }

    /// The rpcbind there, at the first address that has one.
    async fn rpcbind(&self, port: u16, udp: bool) -> anyhow::Result<Rpcbind> {
        let mut last = None;
        for address in self.addresses(port).await? {
            let asked = match udp {
                true => Rpcbind::over_udp(address, self.options()).await,
                false => Rpcbind::over_tcp(address, self.options()).await,
            };
            match asked {
                Ok(rpcbind) => return Ok(rpcbind),
                Err(error) => last = Some((address, error)),
            }
        }
        match last {
            Some((address, error)) => Err(error).context(format!("no rpcbind at {address}")),
            None => bail!("{} has no address", self.host),
        }
    }
}

impl List {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        block_on(async {
            let rpcbind = self.asking.rpcbind(self.port, self.udp).await?;
            let mut mappings = rpcbind.dump().await?;
            mappings.sort();
            if self.asking.json {
                let rows = mappings.iter().map(|mapping| {
                    json!({
                        "program": mapping.program,
                        "version": mapping.version,
                        "netid": mapping.netid,
                        "address": mapping.address,
                        "owner": mapping.owner,
                    })
                });
                return json_line(&json!(rows.collect::<Vec<_>>()));
            }
            let heads = ["program", "version", "netid", "address", "owner"];
            let rows = mappings.iter().map(|mapping| {
                [
                    mapping.program.to_string(),
                    mapping.version.to_string(),
                    // Escaped: these are the machine's words, and this may be a terminal.
                    plain(&mapping.netid),
                    plain(&mapping.address),
                    plain(&mapping.owner),
                ]
            });
            output::text(output::table(0..2, &heads, rows))
        })
    }
}

impl Ping {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        block_on(async {
            let address = match self.port {
                Some(port) => self.asking.addresses(port).await?.remove(0),
                None => self.find().await?,
            };
            let options = self.asking.options();
            if self.udp {
                let channel = UdpChannel::connect(address, options).await?;
                return self.call(&channel).await;
            }
            let channel = TcpChannel::connect(address, options).await;
            let channel = channel.with_context(|| format!("nothing answers at tcp:{address}"))?;
            self.call(&channel).await
        })
    }

    /// Where the program is, as rpcbind says.
    async fn find(&self) -> anyhow::Result<SocketAddr> {
        let network = if self.udp { "UDP" } else { "TCP" };
        let (program, version) = (self.program, self.version);
        let rpcbind = self.asking.rpcbind(self.rpcbind_port, self.udp).await?;
        let at = rpcbind.peer().and_then(|peer| peer.socket_address());
        let found = match at {
            // Over IPv6 only the later versions know addresses.
            Some(at) if at.is_ipv6() => {
                let netid = if self.udp { "udp6" } else { "tcp6" };
                let found = rpcbind.address(program, version, netid).await?;
                found.and_then(|peer| peer.socket_address())
            }
            at => {
                let port = rpcbind.port(program, version, !self.udp).await?;
                at.zip(port)
                    .map(|(at, port)| SocketAddr::new(at.ip(), port))
            }
        };
        found.with_context(|| {
            format!(
                "program {program} is not registered for {network} at {}",
                self.asking.host
            )
        })
    }

    async fn call(&self, channel: &impl Channel) -> anyhow::Result<()> {
        let procedure = Procedure {
            program: self.program,
            version: self.version,
            number: 0,
        };
        let peer = channel
            .peer()
            .as_ref()
            .map_or(String::new(), Peer::to_string);
        for _ in 0..self.count {
            let began = Instant::now();
            let answer: Result<(), RpcError> =
                service::call(channel, procedure, |_| Ok(()), <()>::decode).await;
            answer?;
            let took = began.elapsed();
            output::text(match self.asking.json {
                true => format!(
                    "{}\n",
                    json!({
                        "program": self.program,
                        "version": self.version,
                        "peer": peer,
                        "microseconds": took.as_secs_f64() * 1e6,
                    })
                ),
                false => format!(
                    "program {} version {} at {peer} answered in {took:.1?}\n",
                    self.program, self.version
                ),
            })?;
        }
        Ok(())
    }
}
