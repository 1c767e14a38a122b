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

/// Names that are looked up at a time in this process. Each lookup has a thread, for as long as the system takes.
static LOOKUPS: Semaphore = Semaphore::const_new(16);

/// The same of names that peers have given, who may have chosen them so that nobody answers.
static LOOKUPS_FOR_PEERS: Semaphore = Semaphore::const_new(4);

/// Addresses of a name that are tried.
const MOST: usize = 16;

/// The next address is tried besides if there is no answer from one for so long, as RFC 8305 (5) recommends.
const PAUSE: Duration = Duration::from_millis(250);

/// Where a `tcp:` or `udp:` address leads: at least to one place.
pub(crate) async fn look_up(address: &Address, for_peer: bool) -> io::Result<Vec<SocketAddr>> {
    let found = match address {
        Address::Tcp(socket) | Address::Udp(socket) => vec![*socket],
        Address::Other(name) => find(name.text().to_owned(), MOST, for_peer).await?,
        _ => Vec::new(),
    };
    some(found)
}

/// Where the host's name in an address leads: to so many places at most.
pub(crate) async fn look_up_all(name: &str, most: usize) -> io::Result<Vec<SocketAddr>> {
    some(find(name.to_owned(), most, false).await?)
}

fn some(found: Vec<SocketAddr>) -> io::Result<Vec<SocketAddr>> {
    match found.is_empty() {
        true => Err(nowhere("the name has no addresses")),
        false => Ok(found),
    }
}

async fn find(name: String, most: usize, for_peer: bool) -> io::Result<Vec<SocketAddr>> {
    #[cfg(feature = "turmoil")]
    if turmoil::in_simulation() {
        return Ok(turmoil::net::lookup_host(name).await?.collect());
    }
    let places = match for_peer {
        true => &LOOKUPS_FOR_PEERS,
        false => &LOOKUPS,
    };
    let permit = places.acquire().await.map_err(io::Error::other)?;
    let found = spawn_blocking(move || {
        let _permit = permit; // until the system has answered, though nobody may wait for that any more
        let found = name.to_socket_addrs()?;
        Ok::<_, io::Error>(found.take(most).collect())
    });
    // Of whatever kind the error of the name server is, it says nothing of who listens.
    let found = found.await.map_err(io::Error::other)?;
    found.map_err(|error| io::Error::other(error.to_string()))
}

fn nowhere(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::AddrNotAvailable, why)
}

/// Where datagrams go: nobody tells soon that they do not arrive, so only one place is tried. IPv4, if there is any: who listens at
/// all addresses mostly listens there, too.
pub(crate) fn for_datagrams(
    found: &[SocketAddr],
    mut may_dial: impl FnMut(SocketAddr) -> bool,
) -> io::Result<SocketAddr> {
    let (v4, v6) = found.iter().partition::<Vec<_>, _>(|at| at.is_ipv4());
    let first = v4.into_iter().chain(v6).copied().find(|at| may_dial(*at));
    first.ok_or_else(|| nowhere(FORBIDDEN))
}

const FORBIDDEN: &str = "none of its IP addresses may be dialled now";

/// Opens a stream to the first of these that answers.
pub(crate) async fn dial(
    found: Vec<SocketAddr>,
    mut may_dial: impl FnMut(SocketAddr) -> bool,
) -> io::Result<Stream> {
    let mut rest = found.into_iter().filter(|at| may_dial(*at));
    let (mut dials, mut failed) = (JoinSet::new(), nowhere(FORBIDDEN));
    loop {
        if let Some(at) = rest.next() {
            #[cfg(feature = "turmoil")]
            if turmoil::in_simulation() {
                return super::simulated::dial(at).await;
            }
            dials.spawn(TcpStream::connect(at));
        }
        match timer::timeout_at(Instant::now() + PAUSE, dials.join_next()).await {
            Some(Some(Ok(Ok(stream)))) => return super::tcp(stream),
            Some(Some(Ok(Err(error)))) => failed = error,
            Some(Some(Err(error))) => failed = io::Error::other(error),
            Some(None) => return Err(failed),
            None => {}
        }
    }
}
