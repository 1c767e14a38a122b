//! Where the processes of the demo listen: any free TCP port, or sockets in a folder that goes with the demo.

use super::Transport;
use super::certificates::Authority;
use std::path::PathBuf;
use wallaby_program::scratch::Scratch;

/// The addresses of a cluster.
pub(crate) enum Sockets {
    Tcp,
    /// Ports, and certificates in a folder.
    Tls {
        authority: Box<Authority>,
        folder: Scratch,
    },
    /// Of connections, or for the set-up of shared memory.
    Files {
        scheme: &'static str,
        folder: Scratch,
    },
}

impl Sockets {
    pub(crate) fn new(transport: Transport) -> anyhow::Result<Self> {
        if transport == Transport::Tcp {
            return Ok(Self::Tcp);
        }
        let folder = Scratch::create("wallaby-demo")?;
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
                folder.path().display(),
                name.replace(' ', "-")
            ),
        }
    }

    /// The folder with the certificate of the process of this name, made now; none but over TLS.
    pub(crate) fn certificate(&self, name: &str) -> anyhow::Result<Option<PathBuf>> {
        match self {
            Self::Tls { authority, folder } => authority
                .issue(folder.path(), &name.replace(' ', "-"))
                .map(Some),
            Self::Tcp | Self::Files { .. } => Ok(None),
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
