//! Hosts' names: looked up whenever they are dialled, and all of their addresses tried.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::task::{JoinSet, spawn_blocking};
use wallaby_proto::Address;

use super::foreign::Stream;
use crate::timer::{self, Instant};

/// Names that are looked up at a time in this process: each lookup has a thread, for as long as the system takes, and others may
/// say what is dialled.
static LOOKUPS: Semaphore = Semaphore::const_new(16);

/// Addresses of a name that are tried.
const MOST: usize = 16;

/// The next address is tried besides if there is no answer from one for so long, as RFC 8305 (5) recommends.
const PAUSE: Duration = Duration::from_millis(250);

/// Where a `tcp:` or `udp:` address leads: at least to one place.
pub(crate) async fn look_up(address: &Address) -> io::Result<Vec<SocketAddr>> {
    let name = match address {
        Address::Tcp(socket) | Address::Udp(socket) => return Ok(vec![*socket]),
        Address::Other(name) => name.text().to_owned(),
        _ => return Err(io::ErrorKind::Unsupported.into()),
    };
    let found = find(name).await?;
    match found.is_empty() {
        true => Err(io::Error::new(
            io::ErrorKind::AddrNotAvailable,
            "the name has no addresses",
        )),
        false => Ok(found),
    }
}

async fn find(name: String) -> io::Result<Vec<SocketAddr>> {
    #[cfg(feature = "turmoil")]
    if turmoil::in_simulation() {
        return Ok(turmoil::net::lookup_host(name).await?.collect());
    }
    let Ok(permit) = LOOKUPS.acquire().await else {
        return Err(io::ErrorKind::Unsupported.into()); // nobody closes it
    };
    let found = spawn_blocking(move || {
        let _permit = permit; // until the system has answered, though nobody may wait for that any more
        let found = name.to_socket_addrs()?;
        Ok(found.take(MOST).collect())
    });
    found
        .await
        .unwrap_or_else(|error| Err(io::Error::other(error)))
}

/// Where datagrams to this address go: nobody tells soon that they do not arrive, so only one place is tried. IPv4, if the host has
/// it: who listens at all addresses mostly listens there, too.
pub(crate) async fn look_up_datagrams(address: &Address) -> io::Result<SocketAddr> {
    let found = look_up(address).await?;
    let v4 = found.iter().find(|at| at.is_ipv4()).or(found.first());
    v4.copied()
        .ok_or_else(|| io::ErrorKind::AddrNotAvailable.into())
}

/// Opens a stream to the first of a name's addresses that answers.
pub(super) async fn dial(address: &Address) -> io::Result<Stream> {
    let mut rest = look_up(address).await?.into_iter();
    #[cfg(feature = "turmoil")]
    if let (Some(at), true) = (rest.as_slice().first(), turmoil::in_simulation()) {
        return super::simulated::dial(*at).await;
    }
    let (mut dials, mut failed) = (JoinSet::new(), None);
    loop {
        if let Some(at) = rest.next() {
            dials.spawn(TcpStream::connect(at));
        }
        match timer::timeout_at(Instant::now() + PAUSE, dials.join_next()).await {
            Some(Some(Ok(Ok(stream)))) => return super::tcp(stream),
            Some(Some(Ok(Err(error)))) => failed = Some(error),
            Some(Some(Err(error))) => failed = Some(io::Error::other(error)),
            Some(None) => {
                return Err(failed.unwrap_or_else(|| io::ErrorKind::AddrNotAvailable.into()));
            }
            None => {}
        }
    }
}
