//! Servers of NFS that others wrote: nfs-ganesha, in user space. Several of them, each with a sidecar, are in a network of their own,
//! since they want port 111 and one place each for what they keep beside their files. Files and unix sockets are those of the machine.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command as Blocking;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use tokio::process::Command;
use tokio::time::{Instant, sleep};
use wallaby::Address;
use wallaby_onc::rpcbind::{self, Directory};
use wallaby_onc::server::{self, Server};
use wallaby_program::child::{Child, this_program};

use crate::server::{Birth, Place, Replica, Told};

/// Says to this program that it is in the yard's network.
const INSIDE: &str = "WALLABY_STORAGE_INSIDE";
/// How long a server has to come up.
const PATIENCE: Duration = Duration::from_secs(20);
/// What it writes into its log then.
const UP: &str = "NFS SERVER INITIALIZED";

/// One server of NFS and its sidecar. Both are killed with this value.
#[derive(Debug)]
pub(crate) struct Stand {
    name: &'static str,
    /// What it exports.
    pub(crate) files: PathBuf,
    own: PathBuf,
    ports: (u16, u16),
    nfs: Option<Child>,
    sidecar: Option<Child>,
    birth: Birth,
    told: Option<Told>,
}

/// What a stand is besides its number and name.
#[derive(Clone, Debug, Default)]
pub(crate) struct Plan {
    pub(crate) place: Option<Place>,
    pub(crate) replicas: Vec<Replica>,
}

impl Stand {
    /// Starts one: its files are in a folder of this name.
    ///
    /// # Errors
    ///
    /// It does not come up; what it says itself is in a file that the error names.
    pub(crate) async fn start(
        folder: &Path,
        (number, name): (u16, &'static str),
        plan: Plan,
    ) -> anyhow::Result<Self> {
        let files = folder.join(name);
        let own = folder.join(format!(".{name}"));
        for each in [&files, &own] {
            std::fs::create_dir_all(each).with_context(|| each.display().to_string())?;
        }
        let interface = own.join("nfs3.x");
        std::fs::write(&interface, INTERFACE)?;
        // Below those that the system gives away by itself.
        let ports = (20_490 + number, 20_590 + number);
        let birth = Birth {
            parent: std::process::id(),
            ports,
            interface,
            socket: folder.join(format!("{name}.sock")),
            place: plan.place,
            replicas: plan.replicas,
        };
        let (nfs, sidecar, told) = (None, None, None);
        let mut stand = Self {
            name,
            files,
            own,
            ports,
            nfs,
            sidecar,
            birth,
            told,
        };
        stand.start_nfs().await?;
        stand.start_sidecar().await?;
        Ok(stand)
    }

    /// Where the sidecar is, and the primaries.
    pub(crate) fn told(&self) -> anyhow::Result<&Told> {
        self.told
            .as_ref()
            .with_context(|| format!("{} has not started", self.name))
    }

    pub(crate) fn at(&self) -> anyhow::Result<&Address> {
        Ok(&self.told()?.at)
    }

    /// Kills the server of NFS. Its sidecar stays.
    pub(crate) async fn kill_nfs(&mut self) -> anyhow::Result<()> {
        match self.nfs.take() {
            Some(mut nfs) => Ok(nfs.kill().await?),
            None => bail!("{} does not run", self.name),
        }
    }

    /// Starts the server of NFS, again perhaps.
    pub(crate) async fn start_nfs(&mut self) -> anyhow::Result<()> {
        ensure!(self.nfs.is_none(), "{} runs already", self.name);
        let (config, log) = (self.own.join("ganesha.conf"), self.own.join("ganesha.log"));
        std::fs::write(&config, self.config())?;
        let _ = std::fs::remove_file(&log); // of its life before
        // It registers with an rpcbind, or ends; nobody asks that afterwards. So each has an empty one, while it starts.
        let directory = Directory::new(rpcbind::DirectoryOptions::default());
        let rpcbind = Server::new(directory.programs(), server::ServerOptions::default());
        let anywhere = (std::net::Ipv4Addr::UNSPECIFIED, rpcbind::PORT).into();
        rpcbind.listen_tcp(anywhere).await.context("port 111")?;
        rpcbind.listen_udp(anywhere).await.context("port 111")?;
        let _ = std::fs::remove_file(rpcbind::SOCKET);
        rpcbind
            .listen_unix(Path::new(rpcbind::SOCKET))
            .await
            .context(rpcbind::SOCKET)?;
        directory.add_itself(&rpcbind);

        let mut command = Command::new("setpriv");
        command.args([
            "--pdeathsig",
            "KILL",
            "ganesha.nfsd",
            "-F",
            "-N",
            "NIV_EVENT",
            "-f",
        ]);
        command
            .arg(&config)
            .arg("-L")
            .arg(&log)
            .arg("-p")
            .arg(self.own.join("ganesha.pid"));
        let nfs = self.nfs.insert(Child::start(
            format!("the NFS server of {}", self.name),
            &mut command,
        )?);
        let end = Instant::now() + PATIENCE;
        // Only its log says when it has registered all that it will.
        while !std::fs::read_to_string(&log).is_ok_and(|log| log.contains(UP)) {
            if let Some(ended) = nfs.ended()? {
                bail!("{ended}; {} says why", log.display());
            }
            ensure!(
                Instant::now() < end,
                "{} does not come up; {} says why",
                nfs.name(),
                log.display()
            );
            sleep(Duration::from_millis(10)).await;
        }
        rpcbind.shutdown().await;
        Ok(())
    }

    /// Kills the sidecar. The server of NFS stays.
    pub(crate) async fn kill_sidecar(&mut self) -> anyhow::Result<()> {
        match self.sidecar.take() {
            Some(mut sidecar) => Ok(sidecar.kill().await?),
            None => bail!("the sidecar of {} does not run", self.name),
        }
    }

    /// Starts the sidecar, again perhaps. By its socket it is found where it was.
    pub(crate) async fn start_sidecar(&mut self) -> anyhow::Result<()> {
        ensure!(
            self.sidecar.is_none(),
            "the sidecar of {} runs already",
            self.name
        );
        let mut command = this_program()?;
        command
            .arg("serve")
            .arg(serde_json::to_string(&self.birth)?);
        let mut sidecar = Child::start(format!("the sidecar of {}", self.name), &mut command)?;
        let line = sidecar.line().await?;
        self.told = Some(serde_json::from_str(&line).with_context(|| line.clone())?);
        self.sidecar = Some(sidecar);
        Ok(())
    }

    /// Kills both, and waits until they are gone.
    pub(crate) async fn end(self) {
        for mut child in [self.sidecar, self.nfs].into_iter().flatten() {
            // It has ended in any case: nothing more can be done about it.
            let _ = child.kill().await;
        }
    }

    fn config(&self) -> String {
        let (nfs, mounts) = self.ports;
        let (files, own) = (self.files.display(), self.own.display());
        format!(
            "NFS_CORE_PARAM {{ NFS_Port = {nfs}; MNT_Port = {mounts}; Protocols = 3; Enable_NLM = false;\n  \
             Enable_RQUOTA = false; Enable_UDP = false; mount_path_pseudo = true;\n  \
             Plugins_Dir = /usr/lib/{}-linux-gnu/ganesha; }}\n\
             NFS_KRB5 {{ Active_krb5 = false; }}\n\
             NFSv4 {{ RecoveryRoot = \"{own}\"; Graceless = true; }}\n\
             EXPORT {{ Export_Id = 1; Path = \"{files}\"; Pseudo = /; Access_Type = RW; Protocols = 3; Transports = TCP;\n  \
             SecType = sys; Squash = No_Root_Squash; Attr_Expiration_Time = 0;\n  \
             FSAL {{ Name = VFS; }} }}\n",
            std::env::consts::ARCH
        )
    }
}

/// What is needed, for who is to run servers here.
///
/// # Errors
///
/// What is missing.
pub(crate) fn check() -> anyhow::Result<()> {
    let unpacked = unpacked()?;
    let made = unshare()
        .args(["sh", "-c", &furnish(unpacked.as_deref())])
        .output();
    let made = made.context("unshare, which makes networks")?;
    let said = String::from_utf8_lossy(&made.stderr);
    ensure!(
        made.status.success(),
        "no network of its own can be made here: {}",
        said.trim()
    );
    Ok(())
}

/// Runs this program in the yard's network, if it is not there.
///
/// # Errors
///
/// That cannot be done.
pub(crate) fn enter() -> anyhow::Result<()> {
    if std::env::var_os(INSIDE).is_none() {
        let program = std::env::current_exe()?;
        let mut inside = unshare();
        inside
            .arg(program)
            .args(std::env::args_os().skip(1))
            .env(INSIDE, "1");
        return Err(inside.exec()).context("unshare, which makes networks");
    }
    let furnished = Blocking::new("sh")
        .args(["-c", &furnish(unpacked()?.as_deref())])
        .status()?;
    ensure!(
        furnished.success(),
        "no network of its own can be made here: wallaby-storage check says more"
    );
    Ok(())
}

fn unshare() -> Blocking {
    let mut unshare = Blocking::new("unshare");
    unshare.args(["--net", "--mount", "--"]);
    unshare
}

/// A network with nothing but loopback, a `/run` that is empty, and nfs-ganesha as if it were installed.
fn furnish(unpacked: Option<&Path>) -> String {
    let mut script = "ip link set lo up && mount -t tmpfs tmpfs /run".to_owned();
    if let Some(folder) = unpacked {
        let folder = folder.display();
        script.push_str(&format!(
            " && mount -t overlay overlay -o 'lowerdir={folder}/usr:/usr' /usr"
        ));
    }
    script
}

/// Where `scripts/setup.sh` has unpacked nfs-ganesha; nowhere if it is installed.
fn unpacked() -> anyhow::Result<Option<PathBuf>> {
    const PROGRAM: &str = "usr/bin/ganesha.nfsd";
    if Path::new("/").join(PROGRAM).exists() {
        return Ok(None);
    }
    let program = std::env::current_exe()?;
    let mut folders = program.ancestors().map(|above| above.join("tools/ganesha"));
    let found = folders.find(|folder| folder.join(PROGRAM).exists());
    let missing =
        "there is no nfs-ganesha: 'scripts/setup.sh test' unpacks it below the build output";
    found.context(missing).map(Some)
}

const INTERFACE: &str = include_str!("../../../crates/wallaby-sidecar/tests/nfs3.x");
