//! Servers as processes of their own: this very program, started again.
//!
//! A server prints its address when it listens, reads the addresses of all servers from its standard input, prints a
//! second line when it serves, and ends when its standard input does: so it never outlives who started it.

use crate::client::Client;
use crate::placement::{Placement, Seat};
use crate::server::Server;
use crate::store::Store;
use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use wallaby::{Address, Endpoint};

/// Where servers and clients listen.
const LOCAL: &str = "tcp://127.0.0.1:0";

/// Servers as processes. They end with [`Processes::end`], with this value, and with this program.
#[derive(Debug)]
pub struct Processes {
    children: Vec<Process>,
    running: Running,
}

#[derive(Debug)]
struct Process {
    seat: Seat,
    child: Child,
    /// It ends when this is closed.
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

/// Where a running cluster is: a page in its store's folder, for the programs that ask it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Running {
    servers: Vec<Address>,
    /// How long a message is on its way, in microseconds, where a network is emulated.
    link_us: u64,
}

impl Processes {
    /// Starts so many servers on the store in a folder; what each sends is delayed by `link`, to emulate a network.
    pub async fn start(folder: &Path, servers: u32, link: Duration) -> anyhow::Result<Self> {
        let mut running = Running {
            servers: Vec::new(),
            link_us: u64::try_from(link.as_micros())?,
        };
        let children = Seat::all(servers).map(|seat| Process::spawn(folder, seat, running.link_us));
        let mut children: Vec<Process> = children.collect::<anyhow::Result<_>>()?;
        for child in &mut children {
            let line = child.line().await?;
            let address = line.parse();
            running
                .servers
                .push(address.with_context(|| format!("'{line}' is no address"))?);
        }
        let addresses = serde_json::to_string(&running.servers)? + "\n";
        for child in &mut children {
            let told = child.input.write_all(addresses.as_bytes()).await;
            told.with_context(|| format!("server {} has ended", child.seat))?;
        }
        for child in &mut children {
            child.line().await?;
        }
        Ok(Self { children, running })
    }

    /// Where they are.
    pub fn running(&self) -> &Running {
        &self.running
    }

    /// Waits until one of them has ended by itself, and says which.
    pub async fn ended(&mut self) -> String {
        loop {
            for child in &mut self.children {
                if let Ok(Some(status)) = child.child.try_wait() {
                    return format!("server {} has ended ({status})", child.seat);
                }
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    /// Ends all servers when what they are doing is done.
    pub async fn end(self) {
        for mut process in self.children {
            drop(process.input);
            // It has ended in any case: nothing more can be done about it.
            let _ = process.child.wait().await;
        }
    }
}

impl Process {
    fn spawn(folder: &Path, seat: Seat, link_us: u64) -> anyhow::Result<Self> {
        let program = std::env::current_exe().context("this program's own file can't be found")?;
        let child = Command::new(program)
            .arg("serve")
            .arg("--store")
            .arg(folder)
            .args(["--seat", &seat.to_string(), "--listen", LOCAL])
            .args(["--link-us", &link_us.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // Ctrl-C reaches this process alone, which ends the others.
            .process_group(0)
            .kill_on_drop(true)
            .spawn();
        let mut child = child.with_context(|| format!("server {seat} can't be started"))?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            bail!("server {seat} has no standard input and output");
        };
        Ok(Self {
            seat,
            child,
            input,
            output: BufReader::new(output).lines(),
        })
    }

    /// The next line that it prints.
    async fn line(&mut self) -> anyhow::Result<String> {
        let line = self.output.next_line().await;
        let line = line.with_context(|| format!("server {} can't be read", self.seat))?;
        line.with_context(|| format!("server {} has ended before it was ready", self.seat))
    }
}

/// One such process, until its standard input ends.
pub async fn serve(folder: &Path, seat: Seat, listen: &str, link: Duration) -> anyhow::Result<()> {
    const PATIENCE: Duration = Duration::from_secs(2);
    let store = Store::find(folder)?.with_context(|| nothing_in(folder))?;
    let endpoint = Endpoint::builder()
        .listen(listen)
        .link_delay(link)
        .bind()
        .await?;
    let address = endpoint.address().context("it does not listen")?;
    println!("{address}");
    let mut input = BufReader::new(tokio::io::stdin());
    let mut line = String::new();
    input.read_line(&mut line).await?;
    let addresses: Vec<Address> = serde_json::from_str(&line).context("no addresses were told")?;
    let placement = Placement::new(addresses).context("there are no servers")?;
    let server = Server::serve(&endpoint, &store, seat, placement)?;
    println!("serving");
    // Whatever comes, its end is the signal.
    let _ = input.read_to_end(&mut Vec::new()).await;
    // Who still waits for an answer after that learns that the server is gone.
    let _ = endpoint.drain(PATIENCE).await;
    server.close();
    Ok(())
}

/// What is wrong with a folder that is no store.
pub fn nothing_in(folder: &Path) -> String {
    let folder = folder.display();
    format!("nothing was loaded into {folder}: 'wallaby-graph load' does that")
}

impl Running {
    /// Where the cluster of a store is.
    pub fn find(folder: &Path) -> anyhow::Result<Self> {
        let path = page(folder);
        let running = match std::fs::read(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => bail!(
                "no cluster serves {}: start one with 'wallaby-graph up'",
                folder.display()
            ),
            read => read.and_then(|page| Ok(serde_json::from_slice::<Self>(&page)?)),
        };
        running.with_context(|| format!("{} can't be read", path.display()))
    }

    /// Writes down where the cluster of a store is.
    pub fn announce(&self, folder: &Path) -> anyhow::Result<()> {
        let path = page(folder);
        std::fs::write(&path, serde_json::to_vec_pretty(self)?)
            .with_context(|| format!("{} can't be written", path.display()))
    }

    /// A client of this cluster, as far away from the servers as these from each other.
    pub async fn client(&self) -> anyhow::Result<Client> {
        let placement = Placement::new(self.servers.clone()).context("there are no servers")?;
        let link = Duration::from_micros(self.link_us);
        let endpoint = Endpoint::builder().listen(LOCAL).link_delay(link);
        Ok(Client::new(endpoint.bind().await?, placement))
    }
}

/// The cluster of a store is gone.
pub fn withdraw(folder: &Path) {
    // If the page stays, who reads it finds nobody there, and says so.
    let _ = std::fs::remove_file(page(folder));
}

fn page(folder: &Path) -> PathBuf {
    folder.join("cluster.json")
}
