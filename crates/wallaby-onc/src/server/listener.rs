//! Accepts connections.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, UnixListener};
use tokio::time::sleep;

use super::connection::{self, Connection};
use super::connections::Admission;
use super::counters::count;
use super::{Phase, Shared, ends};
use crate::peer::{Origin, Peer};
use crate::stream::Stream;

/// How long a listener waits when the system has no descriptors or memory for a connection.
const EXHAUSTED: Duration = Duration::from_millis(50);

pub(super) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener, PathBuf),
}

/// Accepts connections until the server ends.
pub(super) fn spawn(shared: &Arc<Shared>, listener: Listener) {
    let shared = Arc::clone(shared);
    let mut phase = shared.phase.subscribe();
    tokio::spawn(async move {
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                () = ends(&mut phase, Phase::Draining) => return,
            };
            match accepted {
                Ok((stream, origin)) => admit(&shared, stream, origin),
                // Mostly a peer that is gone already; if it is the system, it needs time.
                Err(_) => sleep(EXHAUSTED).await,
            }
        }
    });
}

fn admit(shared: &Arc<Shared>, stream: Stream, origin: Origin) {
    let connection = Connection::new(shared, stream, origin);
    match shared.connections.admit(&connection) {
        Admission::Admitted => {}
        Admission::InPlaceOf(idle) => {
            count(&shared.counters.idle_ended);
            idle.end();
        }
        Admission::Refused => return count(&shared.counters.refused),
    }
    count(&shared.counters.connections);
    connection::spawn(shared, connection);
}

impl Listener {
    async fn accept(&self) -> io::Result<(Stream, Origin)> {
        match self {
            Self::Tcp(listener) => {
                let (stream, peer) = listener.accept().await?;
                stream.set_nodelay(true)?;
                let origin = Origin {
                    peer: Peer::Tcp(peer),
                    local: Peer::Tcp(stream.local_addr()?),
                    uid: None,
                };
                Ok((Stream::Tcp(stream), origin))
            }
            Self::Unix(listener, path) => {
                let (stream, peer) = listener.accept().await?;
                let origin = Origin {
                    peer: Peer::Unix(peer.as_pathname().map(PathBuf::from)),
                    local: Peer::Unix(Some(path.clone())),
                    uid: Some(stream.peer_cred()?.uid()),
                };
                Ok((Stream::Unix(stream), origin))
            }
        }
    }
}
