//! Servers as processes of their own: this very program, started again.
//!
//! A server prints its address when it listens, reads the addresses of all servers from its standard input, prints a
//! second line when it serves, and ends when its standard input does: so it never outlives who started it.

use crate::log::InUse;
use crate::placement::{Placement, Seat};
use crate::server::Server;
use crate::store::Store;
use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use wallaby::{Address, Endpoint};

/// What processes talk over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Transport {
    /// TCP on this machine.
    Tcp,
    /// Sockets in a folder.
    Unix,
    /// UDP on this machine.
    Udp,
}

/// Servers as processes. They end with [`Processes::end`], with this value, and with this program.
#[derive(Debug)]
pub struct Processes {
    children: Vec<Process>,
    placement: Placement,
    link: Duration,
    /// The sockets, if they are files.
    sockets: Option<PathBuf>,
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
    #[serde(default)]
    link_us: u64,
}

impl Running {
    /// The servers; none if there are none.
    pub fn placement(&self) -> Option<Placement> {
        Placement::new(self.servers.clone())
    }

    /// How long a message is on its way.
    pub fn link(&self) -> Duration {
        Duration::from_micros(self.link_us)
    }
}

impl Processes {
    /// Starts so many servers on the store in a folder; what each sends is delayed by `link`, to emulate a network.
    ///
    /// # Errors
    ///
    /// If one of them does not come up; what is wrong it says on standard error.
    pub async fn start(
        folder: &Path,
        servers: u32,
        over: Transport,
        link: Duration,
    ) -> anyhow::Result<Self> {
        let sockets = match over {
            Transport::Unix => Some(make_sockets()?),
            Transport::Tcp | Transport::Udp => None,
        };
        let mut children = Vec::new();
        for seat in Seat::all(servers) {
            let listen = match (over, &sockets) {
                (Transport::Unix, Some(folder)) => {
                    format!("unix://{}/server-{}.sock", folder.display(), seat.number())
                }
                (Transport::Udp, _) => "udp://127.0.0.1:0".to_owned(),
                _ => "tcp://127.0.0.1:0".to_owned(),
            };
            children.push(Process::spawn(folder, seat, &listen, link)?);
        }
        let mut addresses = Vec::new();
        for child in &mut children {
            let line = child.line().await?;
            addresses.push(
                line.parse()
                    .with_context(|| format!("'{line}' is no address"))?,
            );
        }
        let line = serde_json::to_string(&addresses)? + "\n";
        for child in &mut children {
            let told = child.input.write_all(line.as_bytes()).await;
            told.with_context(|| format!("server {} has ended", child.seat))?;
        }
        for child in &mut children {
            child.line().await?;
        }
        let placement = Placement::new(addresses).context("there are no servers")?;
        Ok(Self {
            children,
            placement,
            link,
            sockets,
        })
    }

    /// Where they are.
    pub fn placement(&self) -> &Placement {
        &self.placement
    }

    /// Where they are, and how far away.
    pub fn running(&self) -> Running {
        Running {
            servers: self.placement.servers().to_vec(),
            link_us: u64::try_from(self.link.as_micros()).unwrap_or(u64::MAX),
        }
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
    pub async fn end(mut self) {
        for child in self.children.drain(..) {
            let Process {
                mut child, input, ..
            } = child;
            drop(input);
            // It has ended in any case: nothing more can be done about it.
            let _ = child.wait().await;
        }
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        if let Some(folder) = &self.sockets {
            // What can't be removed is a few empty files for the system to clean up.
            let _ = std::fs::remove_dir_all(folder);
        }
    }
}

impl Process {
    fn spawn(folder: &Path, seat: Seat, listen: &str, link: Duration) -> anyhow::Result<Self> {
        let program = std::env::current_exe().context("this program's own file can't be found")?;
        let child = Command::new(program)
            .arg("serve")
            .arg("--store")
            .arg(folder)
            .args(["--seat", &seat.to_string(), "--listen", listen])
            .args(["--link-us", &link.as_micros().to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // Ctrl-C reaches this process alone, which ends the others in order.
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
///
/// # Errors
///
/// If it cannot listen, or its part of the store cannot be opened.
pub async fn serve(folder: &Path, seat: Seat, listen: &str, link: Duration) -> anyhow::Result<()> {
    const PATIENCE: Duration = Duration::from_secs(2);
    let store = Store::find(folder)?;
    let store = store.with_context(|| format!("nothing was loaded into {}", folder.display()))?;
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
    serve_when_free(&endpoint, &store, seat, &placement).await?;
    println!("serving");
    // Whatever comes, its end is the signal.
    let _ = input.read_to_end(&mut Vec::new()).await;
    // Who still waits for an answer after that learns that the server is gone.
    let _ = endpoint.drain(PATIENCE).await;
    if let Some(Address::Unix(socket)) = endpoint.address()
        && let Some(folder) = Path::new(&**socket).parent()
    {
        // If who started this one was killed, the last server takes the folder of the sockets away: an empty one.
        let _ = std::fs::remove_dir(folder);
    }
    Ok(())
}

/// Opens a server's part of the store. A cluster that was killed a moment ago may need another one to end.
async fn serve_when_free(
    endpoint: &Endpoint,
    store: &Store,
    seat: Seat,
    placement: &Placement,
) -> anyhow::Result<()> {
    const PATIENCE: Duration = Duration::from_secs(3);
    let begun = Instant::now();
    loop {
        match Server::serve(endpoint, store, seat, placement.clone()) {
            Err(error) if error.is::<InUse>() && begun.elapsed() < PATIENCE => {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            served => return served.map(|server| warn(&server)),
        }
    }
}

/// Tells what a server found in its part of the store that nobody misses, but that says how the last one ended.
fn warn(server: &Server) {
    for unfinished in server.unfinished() {
        eprintln!("warning: {unfinished}");
    }
}

/// An endpoint for a client of these servers, reached as they are and as far away.
///
/// # Errors
///
/// If it cannot listen.
pub async fn client_endpoint(servers: &Placement, link: Duration) -> anyhow::Result<Endpoint> {
    let listen = match servers.servers().first() {
        Some(Address::Udp(_)) => "udp://127.0.0.1:0".to_owned(),
        Some(Address::Unix(server)) => {
            let folder = Path::new(&**server).parent().unwrap_or(Path::new("/tmp"));
            let client = format!("client-{}.sock", std::process::id());
            format!("unix://{}", folder.join(client).display())
        }
        _ => "tcp://127.0.0.1:0".to_owned(),
    };
    Ok(Endpoint::builder()
        .listen(&listen)
        .link_delay(link)
        .bind()
        .await?)
}

/// Writes down where a cluster is.
///
/// # Errors
///
/// If that cannot be written.
pub fn announce(folder: &Path, running: &Running) -> anyhow::Result<()> {
    let path = page(folder);
    std::fs::write(&path, serde_json::to_vec_pretty(running)?)
        .with_context(|| format!("{} can't be written", path.display()))
}

/// The cluster is gone.
pub fn withdraw(folder: &Path) {
    // If the page stays, who reads it finds nobody there, and says so.
    let _ = std::fs::remove_file(page(folder));
}

/// Where the cluster of a store is.
///
/// # Errors
///
/// If there is none.
pub fn find(folder: &Path) -> anyhow::Result<Running> {
    let path = page(folder);
    let running = match std::fs::read(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => bail!(
            "no cluster serves {}: start one with 'wallaby-graph up'",
            folder.display()
        ),
        read => read.and_then(|page| Ok(serde_json::from_slice::<Running>(&page)?)),
    };
    running.with_context(|| format!("{} can't be read", path.display()))
}

fn page(folder: &Path) -> PathBuf {
    folder.join("cluster.json")
}

fn make_sockets() -> anyhow::Result<PathBuf> {
    let folder = std::env::temp_dir().join(format!("wallaby-graph-{}", std::process::id()));
    let made = DirBuilder::new().mode(0o700).create(&folder);
    made.with_context(|| format!("the folder {} for sockets can't be made", folder.display()))?;
    Ok(folder)
}
