//! A sidecar before a server of NFS, as a process: this very program, started again. It says where it is, and ends with who started it.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use serde::{Deserialize, Serialize};
use wallaby::{Address, Builder, Endpoint, Limits};
use wallaby_chain::Chains;
use wallaby_link::Wan;
use wallaby_program::child::{Parent, die_with};
use wallaby_program::output::line;
use wallaby_sidecar::{Config, Sidecar};

use crate::replica::Primary;

/// What such a process is told.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Birth {
    /// Who has started it.
    pub(crate) parent: u32,
    /// Where the server of NFS is, and where it has mounts.
    pub(crate) ports: (u16, u16),
    /// The interface file.
    pub(crate) interface: PathBuf,
    /// The sidecar's unix socket.
    pub(crate) socket: PathBuf,
    /// The network, and the site of it where the sidecar is. Without, others reach it by its socket.
    pub(crate) place: Option<Place>,
    /// The backups for which it is a primary as well.
    pub(crate) replicas: Vec<Replica>,
}

/// A site of a network.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Place {
    pub(crate) topology: PathBuf,
    pub(crate) site: String,
}

/// A primary, which is an endpoint of its own, before the sidecar.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Replica {
    pub(crate) backup: Address,
    pub(crate) is_composed: bool,
}

/// Where it is.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Told {
    /// The sidecar.
    pub(crate) at: Address,
    /// The primaries, in the order of their backups.
    pub(crate) primaries: Vec<Address>,
}

/// One sidecar.
#[derive(Debug, Args)]
pub(crate) struct Serve {
    /// What who has started it says, as JSON
    birth: String,
}

impl Serve {
    pub(crate) async fn run(self) -> anyhow::Result<()> {
        let birth: Birth = serde_json::from_str(&self.birth)?;
        die_with(birth.parent)?;
        let config = Config::parse(&config(&birth)?)?;
        let sidecar =
            Sidecar::start_on(endpoint(birth.place.as_ref())?, config, Vec::new()).await?;
        let own: Address = format!("unix://{}", birth.socket.display()).parse()?;
        let mut primaries = Vec::new();
        for (number, replica) in birth.replicas.iter().enumerate() {
            let Replica {
                backup,
                is_composed,
            } = replica.clone();
            let primary = Primary::service(own.clone(), backup, is_composed);
            let builder = endpoint(birth.place.as_ref())?.serve(primary);
            let socket = birth.socket.with_extension(format!("primary-{number}"));
            let builder = builder.listen(&listen(birth.place.as_ref(), &socket));
            primaries.push(Chains::new().add_to(builder).bind().await?);
        }
        let at = |endpoint: &Endpoint| endpoint.address().cloned().context("it does not listen");
        let told = Told {
            at: at(sidecar.endpoint())?,
            primaries: primaries.iter().map(at).collect::<Result<_, _>>()?,
        };
        line(serde_json::to_string(&told)?)?;
        Parent::of_this().gone().await;
        Ok(())
    }
}

/// The file that `wallaby sidecar --config` would be given. Over its socket this host's processes call; in the emulated network, all.
fn config(birth: &Birth) -> anyhow::Result<String> {
    let (nfs, mounts) = birth.ports;
    let interface = birth.interface.display();
    let socket = format!("unix://{}", birth.socket.display());
    let (listen, allow) = match &birth.place {
        Some(_) => (
            vec![listen(birth.place.as_ref(), &birth.socket), socket],
            "anybody",
        ),
        None => (vec![socket], "local"),
    };
    let mut config =
        format!("listen = {listen:?}\nallow = \"{allow}\"\ncode = {{ allow = \"callers\" }}\n");
    for (program, port) in [("NFS_PROGRAM", nfs), ("MOUNT_PROGRAM", mounts)] {
        write!(
            config,
            "[[onc]]\nserver = \"tcp://127.0.0.1:{port}\"\ninterface = \"{interface}\"\nprograms = [\"{program}\"]\n"
        )?;
    }
    Ok(config)
}

fn listen(place: Option<&Place>, socket: &Path) -> String {
    match place {
        Some(place) => format!("wan://{}:0", place.site),
        None => format!("unix://{}", socket.display()),
    }
}

/// How long a server may take to connect to a client for its answer, which is up to two round trips; else it goes back by the servers
/// that the request came by.
const DIALLING_BACK: Duration = Duration::from_secs(2);

/// An endpoint at this site. Of long messages so much may be under way as the paper's links hold.
pub(crate) fn endpoint(place: Option<&Place>) -> anyhow::Result<Builder> {
    let mut limits = Limits::default();
    limits.parts = 2 << 20;
    let builder = Endpoint::builder()
        .limits(limits)
        .dial_back_timeout(DIALLING_BACK);
    Ok(match place {
        Some(place) => builder.transport(wan(&place.topology)?.at(&place.site)?),
        None => builder,
    })
}

/// The network of a file.
pub(crate) fn wan(file: &Path) -> anyhow::Result<Wan> {
    let can_not = || format!("{} can't be read", file.display());
    let text = std::fs::read_to_string(file).with_context(can_not)?;
    Ok(Wan::new(text.parse().with_context(can_not)?))
}
