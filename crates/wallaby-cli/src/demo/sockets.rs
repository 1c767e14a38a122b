//! Where the processes of the demo listen: any free TCP port, or sockets in a folder that goes with the demo.

use super::Transport;
use super::certificates::Authority;
use anyhow::Context;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;

/// The addresses of a cluster.
pub(crate) enum Sockets {
    Tcp,
    /// Ports, and certificates in a folder.
    Tls {
        authority: Box<Authority>,
        folder: PathBuf,
    },
    /// Of connections, or for the set-up of shared memory.
    Files {
        scheme: &'static str,
        folder: PathBuf,
    },
}

impl Sockets {
    pub(crate) fn new(transport: Transport) -> anyhow::Result<Self> {
        if transport == Transport::Tcp {
            return Ok(Self::Tcp);
        }
        let folder = std::env::temp_dir().join(format!("wallaby-demo-{}", std::process::id()));
        let made = std::fs::DirBuilder::new().mode(0o700).create(&folder);
        made.with_context(|| format!("the folder {} can't be made", folder.display()))?;
        let files = |scheme, folder| Ok(Self::Files { scheme, folder });
        match transport {
            Transport::Tcp => Ok(Self::Tcp),
            Transport::Unix => files("unix", folder),
            Transport::Shm => files("shm", folder),
            Transport::Tls => {
                let authority = Box::new(Authority::new()?);
                Ok(Self::Tls { authority, folder })
            }
        }
    }

    /// Where the process of this name listens.
    pub(crate) fn address(&self, name: &str) -> String {
        match self {
            Self::Tcp => "tcp://127.0.0.1:0".to_owned(),
            Self::Tls { .. } => "tls://127.0.0.1:0".to_owned(),
            Self::Files { scheme, folder } => format!(
                "{scheme}://{}/{}.sock",
                folder.display(),
                name.replace(' ', "-")
            ),
        }
    }

    /// The folder with the certificate of the process of this name, made now; none but over TLS.
    pub(crate) fn certificate(&self, name: &str) -> anyhow::Result<Option<PathBuf>> {
        match self {
            Self::Tls { authority, folder } => {
                authority.issue(folder, &name.replace(' ', "-")).map(Some)
            }
            Self::Tcp | Self::Files { .. } => Ok(None),
        }
    }
}

impl Drop for Sockets {
    fn drop(&mut self) {
        if let Self::Files { folder, .. } | Self::Tls { folder, .. } = self {
            // What can't be removed is a few files for the system to clean up.
            let _ = std::fs::remove_dir_all(folder);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn socket_folders_go_with_their_owner() {
        let sockets = Sockets::new(Transport::Unix).unwrap();
        let address = sockets.address("documents 1");
        assert!(address.ends_with("/documents-1.sock"), "{address}");
        let folder = PathBuf::from(address.trim_start_matches("unix://"))
            .parent()
            .unwrap()
            .to_owned();
        assert!(folder.is_dir());
        drop(sockets);
        assert!(!folder.exists());
    }
}
