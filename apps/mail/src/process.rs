//! Servers as processes: this very program, started again. A server says where it is when it listens, is told where the others are,
//! says a second line when it serves, and ends with who started it.

use crate::ads::AdServer;
use crate::auth::{AuthServer, Guard, Users};
use crate::book::BookServer;
use crate::mail::{By, MailServer};
use crate::secret::random;
use crate::services;
use crate::storage::StorageServer;
use crate::web::Site;
use anyhow::Context;
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::net::TcpListener;
use wallaby::{Address, Builder, ClusterKey, Endpoint, ExecutorConfig, Limits};
use wallaby_chain::Chains;
use wallaby_link::{Topology, Wan};
use wallaby_program::child::{Cluster, Parent, die_with, this_program};
use wallaby_program::ending::interrupted;
use wallaby_program::output::line;
use wallaby_program::page;

/// The kinds of servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Role {
    /// Pages and forms
    Web,
    /// Users, passwords, sessions
    Auth,
    /// Address books
    Book,
    /// What users do with their mails; it asks the others
    Mail,
    /// Folders of mails
    Storage,
    /// What fits a mail
    Ads,
}

/// Where servers reach each other.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Directory(BTreeMap<Role, Address>);

/// What servers have in common.
#[derive(Clone, Debug, Args, Serialize, Deserialize)]
pub(crate) struct Settings {
    /// The folder with users, address books and mails, and the key by which servers know each other
    #[arg(long, value_name = "FOLDER")]
    pub(crate) data: Option<PathBuf>,
    /// Where browsers reach the web server; port 0 for any
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:8025")]
    pub(crate) web: SocketAddr,
    /// Browsers come by HTTPS, through a proxy: cookies are for that alone
    #[arg(long)]
    pub(crate) https: bool,
    /// How a mail and its advertisements are fetched
    #[arg(long, value_enum, default_value = "chain")]
    pub(crate) by: By,
    /// Servers are as far from each other as those of the paper, by emulated links
    #[arg(long)]
    pub(crate) far: bool,
}

/// One server.
#[derive(Debug, Args)]
pub(crate) struct Serve {
    /// Which one
    role: Role,
    /// The file that says where servers reach each other: {"auth": "tcp://127.0.0.1:4001", "book": ...}
    #[arg(long, value_name = "FILE", required_unless_present = "child")]
    directory: Option<PathBuf>,
    #[command(flatten)]
    settings: Settings,
    /// What who has started it says, as JSON
    #[arg(long, hide = true, conflicts_with = "directory")]
    child: Option<String>,
}

/// What is said to a child: the process that has started it, and the settings.
#[derive(Serialize, Deserialize)]
struct Birth(u32, Settings);

/// Handlers of the authentication server that run at a time: each hash of a password takes 19 MiB.
const HASHES: usize = 8;

impl Settings {
    pub(crate) fn data(&self) -> anyhow::Result<&Path> {
        let data = self.data.as_deref();
        data.context("--data is needed: the folder with users and mails")
    }
}

impl Directory {
    pub(crate) fn of(&self, role: Role) -> anyhow::Result<Address> {
        let address = self.0.get(&role).cloned();
        address.with_context(|| format!("nobody says where the {} server is", role.name()))
    }
}

impl Serve {
    /// Serves until it is asked to end, or who has started it is gone.
    pub(crate) async fn run(self) -> anyhow::Result<()> {
        let role = self.role;
        let Some(birth) = &self.child else {
            let file = self.directory.unwrap_or_default();
            let others: Option<Directory> = page::find(&file)?;
            let others = others.with_context(|| format!("there is no {}", file.display()))?;
            let at = others.0.get(&role).map(ToString::to_string);
            let endpoint = role.builder(&self.settings, at)?.bind().await?;
            let end = async { drop(interrupted().await) };
            return role.serve(endpoint, self.settings, others, end).await;
        };
        let Birth(parent, settings) = serde_json::from_str(birth)?;
        die_with(parent)?;
        let endpoint = role.builder(&settings, None)?.bind().await?;
        line(endpoint.address().context("it does not listen")?)?;
        let mut parent = Parent::of_this();
        let others = serde_json::from_str(&parent.line().await?).context("no servers were told")?;
        role.serve(endpoint, settings, others, parent.gone()).await
    }
}

impl Role {
    fn name(self) -> String {
        let value = self.to_possible_value();
        value.map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// Where the paper has it (5.4). The web server is beside the browser, and the mail server near.
    pub(crate) const fn site(self) -> &'static str {
        match self {
            Self::Web => "mountain-view",
            Self::Auth | Self::Mail => "redmond",
            Self::Book | Self::Storage | Self::Ads => "beijing",
        }
    }

    /// An endpoint that takes requests of the other servers only.
    fn builder(self, settings: &Settings, at: Option<String>) -> anyhow::Result<Builder> {
        let builder = endpoint(settings.data()?)?;
        let (builder, anywhere) = match settings.far {
            true => (
                builder.transport(wan()?.at(self.site())?),
                format!("wan://{}:0", self.site()),
            ),
            false => (builder, "tcp://127.0.0.1:0".to_owned()),
        };
        let builder = builder.require_seals().listen(&at.unwrap_or(anywhere));
        Ok(match self {
            Self::Auth => builder.executor(ExecutorConfig {
                concurrency: HASHES,
                ..ExecutorConfig::default()
            }),
            // This makes their methods links of chains. Nothing else is needed.
            Self::Storage | Self::Ads => Chains::new().add_to(builder),
            _ => builder,
        })
    }

    async fn serve(
        self,
        endpoint: Endpoint,
        settings: Settings,
        others: Directory,
        end: impl Future<Output = ()>,
    ) -> anyhow::Result<()> {
        let guard = Guard(services::auth::at(&endpoint, &others.of(Self::Auth)?));
        let data = settings.data()?;
        let service = match self {
            Self::Web => {
                let listener = TcpListener::bind(settings.web).await;
                let listener =
                    listener.with_context(|| format!("can't listen at {}", settings.web))?;
                line(format_args!("http://{}", listener.local_addr()?))?;
                let site = Site::new(endpoint, &others, &settings)?;
                tokio::select! {
                    () = site.serve(listener) => {}
                    () = end => {}
                }
                return Ok(());
            }
            Self::Auth => services::auth::service(AuthServer::new(Users::of(data))?),
            Self::Book => services::book::service(BookServer::new(data.join("book"), guard)),
            Self::Mail => services::mail::service(MailServer {
                endpoint: endpoint.clone(),
                guard,
                storage: others.of(Self::Storage)?,
                ads: others.of(Self::Ads)?,
            }),
            Self::Storage => services::storage::service(StorageServer::new(data.join("mails"))),
            Self::Ads => services::ads::service(AdServer::new()?),
        };
        endpoint.serve(service)?;
        line(format_args!("{} serves", self.name()))?;
        end.await;
        // Who still waits for an answer after that learns that the server is gone.
        let _ = endpoint.drain(Duration::from_secs(2)).await;
        Ok(())
    }
}

/// An endpoint that servers know as one of them. Of long messages so much may be under way as the paper's links hold.
pub(crate) fn endpoint(data: &Path) -> anyhow::Result<Builder> {
    let mut limits = Limits::default();
    limits.parts = 2 << 20;
    Ok(Endpoint::builder().limits(limits).cluster_key(key(data)?))
}

/// The network of the paper.
pub(crate) fn wan() -> anyhow::Result<Wan> {
    Ok(Wan::new(Topology::FIGURE_7.parse()?))
}

/// The key of the servers of a folder, which is made if there is none.
fn key(data: &Path) -> anyhow::Result<ClusterKey> {
    let file = data.join("key");
    if !file.exists() {
        crate::files::write(&file, &random::<32>()?)?;
    }
    let can_not = || format!("{} can't be read", file.display());
    let bytes = std::fs::read(&file).with_context(can_not)?;
    Ok(ClusterKey::new(&bytes)?)
}

/// Servers as processes. They end with [`Servers::end`], with this value, and with this program.
#[derive(Debug)]
pub(crate) struct Servers {
    cluster: Cluster<Address>,
    pub(crate) directory: Directory,
    /// What browsers open.
    pub(crate) page: String,
}

impl Servers {
    /// Starts one of each kind.
    pub(crate) async fn start(settings: &Settings) -> anyhow::Result<Self> {
        key(settings.data()?)?;
        let birth = serde_json::to_string(&Birth(std::process::id(), settings.clone()))?;
        let all = Role::value_variants();
        let start = |role: &Role| {
            let mut command = this_program()?;
            command.args(["server", &role.name(), "--child", &birth]);
            Ok((format!("the {} server", role.name()), command))
        };
        let mut cluster = Cluster::start(all.iter().map(start), |line| Ok(line.parse()?)).await?;
        let addresses = cluster.said().iter().cloned();
        let directory = Directory(all.iter().copied().zip(addresses).collect());
        let page = cluster.tell(&directory).await?.swap_remove(0);
        Ok(Self {
            cluster,
            directory,
            page,
        })
    }

    /// Each server, its process and its address, for people.
    pub(crate) fn list(&mut self) -> impl Iterator<Item = String> {
        let processes = self.cluster.children().iter();
        let processes: Vec<_> = processes
            .map(|child| child.id().unwrap_or_default())
            .collect();
        let servers = self.directory.0.iter().zip(processes);
        servers.map(|((role, at), process)| format!("{:8} process {process}  {at}", role.name()))
    }

    /// Waits until one of them has ended by itself, and says which.
    pub(crate) async fn ended(&mut self) -> String {
        self.cluster.first_ended().await
    }

    /// Lets all of them end what they do.
    pub(crate) async fn end(self) {
        self.cluster.end().await;
    }
}
