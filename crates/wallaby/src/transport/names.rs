//! Hosts' names: looked up whenever they are dialled, and all of their addresses tried.

use std::fmt;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::task::{JoinSet, spawn_blocking};

use super::foreign::Stream;
use crate::timer::{self, Instant};

/// Names that are looked up at a time in this process. Each lookup has a thread, for as long as the system takes.
static LOOKUPS: Semaphore = Semaphore::const_new(16);

/// The same of names that peers have given, who may have chosen them so that nobody answers.
static LOOKUPS_FOR_PEERS: Semaphore = Semaphore::const_new(4);

/// Addresses of a name that are tried.
pub(crate) const MOST: usize = 16;

/// The next address is tried besides if there is no answer from one for so long, as RFC 8305 (5) recommends.
const PAUSE: Duration = Duration::from_millis(250);

/// Opens TCP connections for a transport from outside, to addresses that are `HOST:PORT`: see [`Transport::dial`].
///
/// It does what is done for `tcp:` addresses. A host's name is looked up, a few at a time of those that peers have named. The next
/// one of its IP addresses is tried besides if there is no answer within 250 ms, 16 of them at most. Each must be one that may be
/// dialled now ([`DialPolicy`](crate::DialPolicy)).
///
/// [`Transport::dial`]: super::Transport::dial
#[derive(Clone, Copy)]
pub struct Connector<'a> {
    for_peer: bool,
    may_dial: &'a (dyn Fn(SocketAddr) -> bool + Send + Sync),
}

impl<'a> Connector<'a> {
    /// For an address that a peer has named, or somebody of this process; each place that a name leads to must be one that may be
    /// dialled.
    pub(crate) fn new(
        for_peer: bool,
        may_dial: &'a (dyn Fn(SocketAddr) -> bool + Send + Sync),
    ) -> Self {
        Self { for_peer, may_dial }
    }

    /// A connection to this `HOST:PORT`, where HOST is a name or an IP address, one of IPv6 in brackets.
    ///
    /// # Errors
    ///
    /// If the name leads nowhere, none of its addresses may be dialled now, or nobody answers at any of them.
    pub async fn tcp(self, to: &str) -> io::Result<TcpStream> {
        match to.parse() {
            Ok(at) => connect([at]).await, // whether that may be dialled was decided by the address itself
            Err(_) => connect(self.places(to).await?).await,
        }
    }

    /// The same as a stream of Wallaby's own, for a name.
    pub(crate) async fn open(self, name: &str) -> io::Result<Stream> {
        let places = self.places(name).await?;
        #[cfg(feature = "turmoil")]
        if turmoil::in_simulation() {
            let first = { places }.next().ok_or_else(|| nowhere(FORBIDDEN))?;
            return super::simulated::dial(first).await;
        }
        Stream::tcp(connect(places).await?)
    }

    /// Where datagrams for a name go: nobody tells soon that they do not arrive, so only one place is tried. IPv4, if there is any:
    /// who listens at all addresses mostly listens there, too.
    pub(crate) async fn datagrams(self, name: &str) -> io::Result<SocketAddr> {
        let mut found = look_up(name, MOST, self.for_peer).await?;
        found.sort_by_key(SocketAddr::is_ipv6);
        let first = found.into_iter().find(|at| (self.may_dial)(*at));
        first.ok_or_else(|| nowhere(FORBIDDEN))
    }

    /// Where a name leads and may be dialled; that is asked for one after the other.
    async fn places(self, name: &str) -> io::Result<impl Iterator<Item = SocketAddr>> {
        let found = look_up(name, MOST, self.for_peer).await?;
        Ok(found.into_iter().filter(move |at| (self.may_dial)(*at)))
    }
}

impl fmt::Debug for Connector<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connector").finish_non_exhaustive()
    }
}

/// Where a host's name with a port leads: to one place at least, and so many at most.
pub(crate) async fn look_up(
    name: &str,
    most: usize,
    for_peer: bool,
) -> io::Result<Vec<SocketAddr>> {
    let found = find(name.to_owned(), most, for_peer).await?;
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

const FORBIDDEN: &str = "none of its IP addresses may be dialled now";

/// Connects to the first of these that answers.
async fn connect(places: impl IntoIterator<Item = SocketAddr>) -> io::Result<TcpStream> {
    let mut rest = places.into_iter();
    let (mut dials, mut failed) = (JoinSet::new(), nowhere(FORBIDDEN));
    loop {
        if let Some(at) = rest.next() {
            dials.spawn(TcpStream::connect(at));
        }
        match timer::timeout_at(Instant::now() + PAUSE, dials.join_next()).await {
            Some(Some(Ok(Ok(stream)))) => return Ok(stream),
            Some(Some(Ok(Err(error)))) => failed = error,
            Some(Some(Err(error))) => failed = io::Error::other(error),
            Some(None) => return Err(failed),
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    const ANY: &(dyn Fn(SocketAddr) -> bool + Send + Sync) = &|_| true;

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn a_place_that_does_not_answer_holds_up_no_other() {
        let socket = || tokio::net::TcpSocket::new_v4().expect("a socket");
        let any = ([127, 0, 0, 1], 0).into();
        let (full, other) = (socket(), socket());
        full.bind(any).expect("a port is free");
        other.bind(any).expect("a port is free");
        let (full, other) = (full.listen(1), other.listen(1));
        let (full, other) = (full.expect("it listens"), other.expect("it listens"));
        let at = [&full, &other].map(|one| one.local_addr().expect("it is bound"));
        let waiting = [at[0]; 4].map(super::super::connecting::tcp); // more than the queue has room for
        let begun = Instant::now();
        let stream = connect(at).await.expect("one of them answers");
        assert_eq!(stream.peer_addr().expect("it is open"), at[1]);
        assert!(begun.elapsed() >= PAUSE, "the other one was tried first");
        drop(waiting);
    }

    #[tokio::test]
    async fn names_of_peers_wait_for_each_other_and_hold_up_nobody_else() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let port = listener.local_addr().expect("it is bound").port();
        let name = format!("localhost:{port}");
        let all = LOOKUPS_FOR_PEERS.acquire_many(4).await.expect("it is open");
        let mut held = pin!(Connector::new(true, ANY).tcp(&name));
        let at_once = held.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(matches!(at_once, Poll::Pending));
        Connector::new(false, ANY)
            .tcp(&name)
            .await
            .expect("its own");
        assert_eq!(LOOKUPS_FOR_PEERS.available_permits(), 0);
        drop(all);
        held.await.expect("its turn has come");
    }
}
