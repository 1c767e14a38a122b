//! `wallaby onc rpcbind`: an rpcbind, for machines without one.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};
use wallaby_onc::rpcbind::{self, Directory, Forward};
use wallaby_onc::server::{self, Server};
use wallaby_program::output;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  wallaby onc rpcbind                               as root: port 111, TCP and UDP, and the unix socket
  wallaby onc rpcbind --listen 127.0.0.1 --json     for this machine alone, told in JSON
  wallaby onc rpcbind --port 11111 --socket none    as anybody

Programs are registered from this machine only. It ends with SIGINT or SIGTERM, and then exits with 0; with 1 if it
cannot listen.")]
pub(crate) struct Rpcbind {
    /// The port, over TCP and UDP. Clients expect 111; 0 is any that is free
    #[arg(long, default_value_t = rpcbind::PORT)]
    port: u16,
    /// Listen at this address only; without it, at all
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<IpAddr>,
    /// Listen at this unix socket, over which the user of a registration is known; 'none': at none
    #[arg(long, value_name = "PATH", default_value = rpcbind::SOCKET)]
    socket: PathBuf,
    /// Whose calls are passed on to programs here; to these, they come from this machine
    #[arg(long, value_enum, default_value_t = Whose::Local)]
    forward: Whose,
    /// Most programs, versions and networks that can be registered
    #[arg(long, value_name = "NUMBER", default_value_t = 4096)]
    max_mappings: usize,
    /// Say where it listens, and in the end what happened, as a JSON object a line
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Whose {
    Nobody,
    Local,
    Everybody,
}

impl Rpcbind {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        crate::remote::block_on(async {
            // Before anybody knows that there is something to end.
            let mut interrupt = signal(SignalKind::interrupt())?;
            let mut terminate = signal(SignalKind::terminate())?;
            let directory = Directory::new(rpcbind::DirectoryOptions {
                max_mappings: self.max_mappings,
                forward: match self.forward {
                    Whose::Nobody => Forward::Nobody,
                    Whose::Local => Forward::Local,
                    Whose::Everybody => Forward::Everybody,
                },
                ..rpcbind::DirectoryOptions::default()
            });
            let server = self.listen(&directory).await?;
            directory.add_itself(&server);
            self.say_where(&server)?;
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
            self.say_what(&server)?;
            server.shutdown().await;
            Ok(())
        })
    }

    /// Listens at the same port over TCP and UDP.
    async fn listen(&self, directory: &Directory) -> anyhow::Result<Server> {
        const ATTEMPTS: usize = 20;
        for _ in 0..ATTEMPTS {
            let server = Server::new(directory.programs(), server::ServerOptions::default());
            let tcp = self.listen_tcp(&server).await?;
            match server.listen_udp(tcp).await {
                Ok(_) => {}
                // The system gave a port that is not free over UDP: another one may be.
                Err(error) if self.port == 0 && error.kind() == io::ErrorKind::AddrInUse => {
                    continue;
                }
                Err(error) => return Err(error).context(format!("cannot listen at udp:{tcp}")),
            }
            if self.socket.as_os_str() != "none" {
                let listening = server.listen_unix(&self.socket).await;
                listening.with_context(|| {
                    format!(
                        "cannot listen at {}; --socket none does without",
                        self.socket.display()
                    )
                })?;
                self.open_to_everybody()?;
            }
            return Ok(server);
        }
        bail!("no port is free over both TCP and UDP; name one with --port")
    }

    async fn listen_tcp(&self, server: &Server) -> anyhow::Result<SocketAddr> {
        let addresses: &[IpAddr] = match &self.listen {
            Some(address) => &[*address],
            // Where there is IPv6, its socket takes both.
            None => &[
                IpAddr::V6(Ipv6Addr::UNSPECIFIED),
                IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            ],
        };
        let mut last = None;
        for ip in addresses {
            let address = SocketAddr::new(*ip, self.port);
            match server.listen_tcp(address).await {
                Ok(address) => return Ok(address),
                Err(error) => last = Some((address, error)),
            }
        }
        match last {
            Some((address, error)) => Err(error).context(format!("cannot listen at tcp:{address}")),
            None => bail!("there is no address to listen at"),
        }
    }

    /// Whoever may run programs here may register them, too: who it is, the system tells.
    fn open_to_everybody(&self) -> anyhow::Result<()> {
        use std::os::unix::fs::PermissionsExt;
        let everybody = std::fs::Permissions::from_mode(0o666);
        Ok(std::fs::set_permissions(&self.socket, everybody)?)
    }

    fn say_where(&self, server: &Server) -> anyhow::Result<()> {
        let addresses = server.addresses().into_iter();
        let addresses: Vec<String> = addresses.map(|address| address.to_string()).collect();
        match self.json {
            true => output::text(format!("{}\n", json!({ "listening": addresses }))),
            false => output::text(format!("rpcbind listens at {}\n", addresses.join(", "))),
        }
    }

    fn say_what(&self, server: &Server) -> anyhow::Result<()> {
        let counters = server.counters();
        match self.json {
            true => output::text(format!(
                "{}\n",
                json!({
                    "calls": counters.calls,
                    "malformed": counters.malformed,
                    "duplicates_answered": counters.duplicates_answered,
                    "duplicates_dropped": counters.duplicates_dropped,
                    "overloaded": counters.overloaded,
                    "connections": counters.connections,
                    "connections_refused": counters.refused,
                })
            )),
            false => output::text(format!(
                "{} calls over {} connections and UDP; {} malformed messages dropped\n",
                counters.calls, counters.connections, counters.malformed
            )),
        }
    }
}
