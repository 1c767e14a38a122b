//! Servers as processes of their own: this very program, started again.
//!
//! A server prints its address when it serves, and ends when its standard input does: so it never outlives who started it.
//! Its part of the scene it gets by calls.

use crate::server::Server;
use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::process::{Child, ChildStdin, Command};
use wallaby::Address;

/// What processes talk over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Transport {
    /// TCP on this machine.
    Tcp,
    /// Sockets in a folder.
    Unix,
}

/// Servers as processes. They end with [`end`](Self::end), with this value, and with this program.
#[derive(Debug)]
pub struct Processes {
    children: Vec<Process>,
    addresses: Vec<Address>,
    /// Removes the sockets, if they are files; last, when their servers are gone.
    _sockets: Option<Sockets>,
}

#[derive(Debug)]
struct Process {
    number: usize,
    child: Child,
    /// It ends when this is closed.
    input: ChildStdin,
}

/// How the names of folders for sockets begin.
const SOCKETS: &str = "wallaby-raytrace-";

/// A folder that goes with this value.
#[derive(Debug)]
struct Sockets(PathBuf);

/// Where running servers are: a page for the programs that ask them.
#[derive(Debug, Serialize, Deserialize)]
struct Page {
    servers: Vec<Address>,
    /// How long a message is on its way, in microseconds, where a network is emulated.
    #[serde(default)]
    link_us: u64,
}

impl Processes {
    /// Starts so many servers; what each sends is delayed by `link_delay`, to emulate a network.
    ///
    /// # Errors
    ///
    /// If one of them does not come up; what is wrong it says on standard error.
    pub async fn start(
        servers: u16,
        over: Transport,
        link_delay: Duration,
    ) -> anyhow::Result<Self> {
        let sockets = match over {
            Transport::Unix => Some(Sockets::make()?),
            Transport::Tcp => None,
        };
        let mut processes = Self {
            children: Vec::new(),
            addresses: Vec::new(),
            _sockets: sockets,
        };
        let mut outputs = Vec::new();
        for number in 1..=usize::from(servers) {
            let listen = match &processes._sockets {
                Some(Sockets(folder)) => {
                    format!("unix://{}/server-{number}.sock", folder.display())
                }
                None => "tcp://127.0.0.1:0".to_owned(),
            };
            let program =
                std::env::current_exe().context("this program's own file can't be found")?;
            let child = Command::new(program)
                .args(["serve", "--listen", &listen])
                .args(["--link-us", &link_delay.as_micros().to_string()])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                // Ctrl-C reaches this process alone, which ends the others.
                .process_group(0)
                .kill_on_drop(true)
                .spawn();
            let mut child = child.with_context(|| format!("server {number} can't be started"))?;
            let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
                bail!("server {number} has no standard input and output");
            };
            processes.children.push(Process {
                number,
                child,
                input,
            });
            outputs.push(output);
        }
        for (number, output) in (1..).zip(outputs) {
            let line = BufReader::new(output).lines().next_line().await;
            let line = line.with_context(|| format!("server {number} can't be read"))?;
            let line = line.with_context(|| format!("server {number} has ended at its start"))?;
            let address = line
                .parse()
                .with_context(|| format!("'{line}' is no address"))?;
            processes.addresses.push(address);
        }
        Ok(processes)
    }

    /// Where they are, in the order of their numbers.
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// Their process ids, in the order of their numbers.
    pub fn ids(&self) -> Vec<u32> {
        self.children
            .iter()
            .filter_map(|process| process.child.id())
            .collect()
    }

    /// Waits until one of them has ended by itself, and says which.
    pub async fn ended(&mut self) -> String {
        loop {
            for process in &mut self.children {
                if let Ok(Some(status)) = process.child.try_wait() {
                    return format!("server {} has ended ({status})", process.number);
                }
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    /// Ends all servers.
    pub async fn end(mut self) {
        for process in self.children.drain(..) {
            let Process {
                mut child, input, ..
            } = process;
            drop(input);
            // It has ended in any case: nothing more can be done about it.
            let _ = child.wait().await;
        }
    }
}

impl Sockets {
    fn make() -> anyhow::Result<Self> {
        let folder = std::env::temp_dir().join(format!("{SOCKETS}{}", std::process::id()));
        let made = DirBuilder::new().mode(0o700).create(&folder);
        made.with_context(|| format!("the folder {} for sockets can't be made", folder.display()))?;
        Ok(Self(folder))
    }
}

impl Drop for Sockets {
    fn drop(&mut self) {
        // What can't be removed is a few empty files for the system to clean up.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// One such process, until its standard input ends.
///
/// # Errors
///
/// If it cannot listen.
pub async fn serve(listen: &str, link_delay: Duration) -> anyhow::Result<()> {
    let endpoint = Server::endpoint(listen, link_delay).await?;
    Server::serve(&endpoint)?;
    println!("{}", endpoint.address().context("it does not listen")?);
    // Whatever comes, its end is the signal.
    let _ = tokio::io::stdin().read_to_end(&mut Vec::new()).await;
    endpoint.close();
    if let Some(Address::Unix(socket)) = endpoint.address()
        && let Some(folder) = Path::new(&**socket).parent()
        && folder
            .file_name()
            .is_some_and(|name| name.to_string_lossy().starts_with(SOCKETS))
    {
        // If who started this one was killed, nobody else takes the sockets away. All servers try, the last one succeeds.
        let _ = std::fs::remove_dir_all(folder);
    }
    Ok(())
}

/// Writes down where servers are.
///
/// # Errors
///
/// If that cannot be written.
pub fn announce(page: &Path, servers: &[Address], link: Duration) -> anyhow::Result<()> {
    let told = Page {
        servers: servers.to_vec(),
        link_us: u64::try_from(link.as_micros()).unwrap_or(u64::MAX),
    };
    std::fs::write(page, serde_json::to_vec_pretty(&told)?)
        .with_context(|| format!("{} can't be written", page.display()))
}

/// The servers are gone. A page that tells of others by now stays.
pub fn withdraw(page: &Path, servers: &[Address]) {
    if find(page).is_ok_and(|(told, _)| told == servers) {
        // If the page stays, who reads it finds nobody there, and says so.
        let _ = std::fs::remove_file(page);
    }
}

/// Where servers are that were announced, and how long a message to them is on its way.
///
/// # Errors
///
/// If there are none.
pub fn find(page: &Path) -> anyhow::Result<(Vec<Address>, Duration)> {
    let read = std::fs::read(page).with_context(|| {
        let page = page.display();
        format!("no servers are known by {page}: 'wallaby-raytrace up --page {page}' starts some")
    })?;
    let read: Page = serde_json::from_slice(&read)
        .with_context(|| format!("{} is no page of servers", page.display()))?;
    Ok((read.servers, Duration::from_micros(read.link_us)))
}
