//! A wide-area network on this machine: endpoints at sites, and the links between these.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::io;
use std::num::NonZeroU64;
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use thiserror::Error;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use wallaby::OtherAddress;
use wallaby::transport::{
    Accepted, Connector, Dialled, Listened, Listener, Stream, Transport, Wrap,
};

use crate::emulated::Link;
use crate::parse_delay;

/// The scheme of addresses of a [`Wan`].
const SCHEME: &str = "wan";

/// Sites, and the links between them. As text, each link is a line: two sites, the time of a round trip, a bandwidth. What follows
/// a `#` is a comment. Two hosts of one site have a link, too: the one from that site to itself.
///
/// ```
/// use std::time::Duration;
/// use wallaby_link::Topology;
///
/// let topology: Topology = "\
///     redmond        redmond  2ms         10MB/s    # two hosts of one site
///     mountain-view  redmond  32ms        6.3MB/s
/// ".parse()?;
/// let way = topology.way("redmond", "mountain-view").ok_or("there is one")?;
/// assert_eq!(way.round_trip, Duration::from_millis(32));
/// assert_eq!(way.bits_per_second.get(), 50_400_000);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    ways: BTreeMap<(String, String), Way>,
}

/// How a message comes from one site to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way {
    /// There and back.
    pub round_trip: Duration,
    /// In each direction.
    pub bits_per_second: NonZeroU64,
}

/// What is wrong with the text of a topology.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("line {line} of the topology: {what}")]
pub struct TopologyError {
    /// Which line, from 1.
    pub line: usize,
    what: String,
}

impl Topology {
    /// The network of the evaluation of RPC Chains (NSDI 2009, figure 7): four sites of a company, 32 to 354 ms apart, and what TCP
    /// brought from one to the other. Hosts of one site are in different networks of it (5.3.1).
    pub const FIGURE_7: &str = include_str!("figure-7.topology");

    /// The sites, by name.
    pub fn sites(&self) -> impl Iterator<Item = &str> {
        let sites: BTreeSet<&str> = self.ways.keys().map(|(from, _)| &**from).collect();
        sites.into_iter()
    }

    /// How a message comes from one site to another, if there is a link.
    pub fn way(&self, from: &str, to: &str) -> Option<Way> {
        self.ways.get(&(from.to_owned(), to.to_owned())).copied()
    }
}

impl FromStr for Topology {
    type Err = TopologyError;

    fn from_str(text: &str) -> Result<Self, TopologyError> {
        let mut ways = BTreeMap::new();
        for (line, text) in (1..).zip(text.lines()) {
            let wrong = |what: String| TopologyError { line, what };
            let text = text.split('#').next().unwrap_or_default();
            let words: Vec<&str> = text.split_whitespace().collect();
            let (from, to, way) = match words[..] {
                [] => continue,
                [from, to, round_trip, bandwidth] => {
                    (from, to, way(round_trip, bandwidth).map_err(wrong)?)
                }
                _ => {
                    return Err(wrong(
                        "expected two sites, a round trip and a bandwidth".into(),
                    ));
                }
            };
            if [from, to].iter().any(|site| !is_site(site)) {
                return Err(wrong(format!(
                    "{from} or {to} is no site: expected letters, digits and -"
                )));
            }
            let there = ways.insert((from.to_owned(), to.to_owned()), way);
            let back = ways.insert((to.to_owned(), from.to_owned()), way);
            if there.or(back.filter(|_| from != to)).is_some() {
                return Err(wrong(format!(
                    "there are two links between {from} and {to}"
                )));
            }
        }
        Ok(Self { ways })
    }
}

fn way(round_trip: &str, bandwidth: &str) -> Result<Way, String> {
    let round_trip = parse_delay(round_trip).map_err(|error| error.to_string())?;
    let megabytes = bandwidth
        .strip_suffix("MB/s")
        .and_then(|number| number.parse::<f64>().ok());
    let bits = megabytes
        .map(|megabytes| (megabytes * 8e6) as u64)
        .and_then(NonZeroU64::new);
    match bits {
        Some(bits_per_second) => Ok(Way {
            round_trip,
            bits_per_second,
        }),
        None => Err(format!(
            "{bandwidth} is no bandwidth: expected a number and MB/s, as in 6.3MB/s"
        )),
    }
}

fn is_site(name: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    (1..=LONGEST_SITE).contains(&name.len()) && name.bytes().all(is_letter)
}

const LONGEST_SITE: usize = 64;

/// A wide-area network on this machine. [`Wan::at`] gives the transport for [`Builder::transport`](wallaby::Builder::transport) that
/// puts an endpoint at a site. Its addresses are `wan://SITE:PORT`; the port is one of this machine's loopback interface. All that
/// endpoints of one process send from one site to another shares a link; each process has links of its own. To dial takes a round
/// trip. Streams begin at full speed: no congestion control of TCP is emulated.
///
/// ```
/// use wallaby::Endpoint;
/// use wallaby_link::Wan;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let wan = Wan::new("mountain-view redmond 32ms 6.3MB/s".parse()?);
/// let server = Endpoint::builder().transport(wan.at("redmond")?).listen("wan://redmond:0").bind().await?;
/// let client = Endpoint::builder().transport(wan.at("mountain-view")?).bind().await?;
/// client.connect(server.address().ok_or("it listens")?).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Wan(Arc<Network>);

#[derive(Debug)]
struct Network {
    topology: Topology,
    /// Those that are in use, by where they begin and end.
    links: Mutex<HashMap<(String, String), Arc<Link>>>,
}

impl Wan {
    /// A network of these sites.
    pub fn new(topology: Topology) -> Self {
        let links = Mutex::default();
        Self(Arc::new(Network { topology, links }))
    }

    /// Its sites, and the links between them.
    pub fn topology(&self) -> &Topology {
        &self.0.topology
    }

    /// What carries the bytes of an endpoint at this site.
    ///
    /// # Errors
    /// There is no such site.
    pub fn at(&self, site: &str) -> io::Result<Arc<dyn Transport>> {
        if !self.0.topology.sites().any(|known| known == site) {
            return Err(no_way(format!("there is no site {site}")));
        }
        let (network, site) = (Arc::clone(&self.0), site.to_owned());
        Ok(Arc::new(Host { network, site }))
    }
}

impl Network {
    fn way(&self, from: &str, to: &str) -> io::Result<Way> {
        let way = self.topology.way(from, to);
        way.ok_or_else(|| no_way(format!("there is no link from {from} to {to}")))
    }

    /// A stream whose sending end is at the link to this site.
    fn open(&self, socket: TcpStream, from: &str, to: &str) -> io::Result<Stream> {
        let way = self.way(from, to)?;
        let stream = Stream::tcp(socket)?;
        let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        let ends = (from.to_owned(), to.to_owned());
        let link = match links.get(&ends) {
            Some(link) => Arc::clone(link),
            None => {
                let link = Link::new(way.round_trip / 2, Some(way.bits_per_second))?;
                Arc::clone(links.entry(ends).or_insert(Arc::new(link)))
            }
        };
        Ok(link.stream(stream))
    }
}

fn no_way(why: String) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, why)
}

/// Where an address is: a site, and a port.
fn place(address: &OtherAddress) -> io::Result<(&str, u16)> {
    let place = address.text().split_once(':');
    let place = place.and_then(|(site, port)| Some((site, port.parse().ok()?)));
    place.ok_or_else(|| no_way(format!("{} is no SITE:PORT", address.text())))
}

/// An endpoint's place.
struct Host {
    network: Arc<Network>,
    site: String,
}

impl Transport for Host {
    fn schemes(&self) -> &[&str] {
        &[SCHEME]
    }

    fn dial<'a>(&'a self, to: &'a OtherAddress, by: Connector<'a>) -> Dialled<'a> {
        Box::pin(async move {
            let (site, port) = place(to)?;
            let way = self.network.way(&self.site, site)?;
            let mut socket = by.tcp(&format!("127.0.0.1:{port}")).await?;
            tokio::time::sleep(way.round_trip).await;
            socket.write_all(&[self.site.len() as u8]).await?; // it is a short name
            socket.write_all(self.site.as_bytes()).await?;
            self.network.open(socket, &self.site, site)
        })
    }

    fn listen<'a>(&'a self, at: &'a OtherAddress) -> Listened<'a> {
        Box::pin(async move {
            let (site, port) = place(at)?;
            if site != self.site {
                return Err(no_way(format!(
                    "this endpoint is at {}, not at {site}",
                    self.site
                )));
            }
            let listener = TcpListener::bind(("127.0.0.1", port)).await?;
            let here = format!("{site}:{}", listener.local_addr()?.port());
            let here = OtherAddress::new(SCHEME, &here).map_err(io::Error::other)?;
            let (network, site) = (Arc::clone(&self.network), self.site.clone());
            let entrance = Entrance {
                listener,
                network,
                site,
            };
            Ok((Box::new(entrance) as Box<dyn Listener>, here))
        })
    }
}

/// Where connections come in.
#[derive(Debug)]
struct Entrance {
    listener: TcpListener,
    network: Arc<Network>,
    site: String,
}

impl Listener for Entrance {
    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Accepted>> {
        let (mut socket, _) = ready!(self.listener.poll_accept(cx))?;
        let (network, site) = (Arc::clone(&self.network), self.site.clone());
        Poll::Ready(Ok(Accepted::Opening(Box::pin(async move {
            let mut from = vec![0; usize::from(socket.read_u8().await?)];
            socket.read_exact(&mut from).await?;
            network.open(socket, &site, &String::from_utf8_lossy(&from))
        }))))
    }
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a host at {}", self.site)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;
    use wallaby::{Address, Endpoint};

    #[wallaby::service]
    trait Echo {
        async fn back(bytes: Vec<u8>) -> u64;
    }

    struct Server;

    #[wallaby::serve]
    impl Echo for Server {
        async fn back(&self, bytes: Vec<u8>) -> u64 {
            bytes.len() as u64
        }
    }

    const THREE: &str =
        "near near 1ms 100MB/s\nnear far 40ms 0.2MB/s # slow\n\nnear island 2ms 1MB/s";

    async fn endpoint(wan: &Wan, site: &str) -> (Endpoint, Address) {
        let builder = Endpoint::builder()
            .transport(wan.at(site).unwrap())
            .serve(echo::service(Server));
        let endpoint = builder
            .listen(&format!("wan://{site}:0"))
            .bind()
            .await
            .unwrap();
        let address = endpoint.address().unwrap().clone();
        (endpoint, address)
    }

    #[tokio::test]
    async fn each_pair_of_sites_has_its_own_link() {
        let wan = Wan::new(THREE.parse().unwrap());
        let (client, _) = endpoint(&wan, "near").await;
        let ((_beside, beside), (_far, far)) =
            (endpoint(&wan, "near").await, endpoint(&wan, "far").await);
        let call = async |to: &Address, bytes| {
            let begun = Instant::now();
            let heard = echo::at(&client, to).back(vec![0; bytes]).await.unwrap();
            assert_eq!(heard, bytes as u64);
            begun.elapsed()
        };
        // The first calls dial.
        call(&beside, 1).await;
        call(&far, 1).await;
        // The mean of a line is what it is told to be, so one may be a little early.
        assert!(call(&far, 1).await > Duration::from_millis(39));
        let long = call(&far, 60_000).await;
        assert!(
            long > Duration::from_millis(339),
            "300 ms for its bytes, and 40: {long:?}"
        );
        // The only upper bound is what the other link would take at least: the machine may be busy.
        let mut least = Duration::MAX;
        for _ in 0..20 {
            least = least.min(call(&beside, 60_000).await);
        }
        assert!(
            least < Duration::from_millis(300),
            "not the link to far: {least:?}"
        );
    }

    #[tokio::test]
    async fn where_there_is_no_link_nobody_is_reached() {
        let wan = Wan::new(THREE.parse().unwrap());
        let ((island, _), (_far, far)) =
            (endpoint(&wan, "island").await, endpoint(&wan, "far").await);
        let failed = island.connect(&far).await.unwrap_err().to_string();
        assert!(failed.contains("no link from island to far"), "{failed}");
        assert!(wan.at("moon").is_err());
        let elsewhere = Endpoint::builder()
            .transport(wan.at("far").unwrap())
            .listen("wan://near:0")
            .bind()
            .await;
        assert!(
            elsewhere
                .unwrap_err()
                .to_string()
                .contains("at far, not at near")
        );
    }

    #[test]
    fn what_is_wrong_in_a_topology_is_said_with_its_line() {
        for (text, line, what) in [
            ("\na b 1ms", 2, "two sites"),
            ("a b 1 1MB/s", 1, "span of time"),
            ("a b 1ms 1", 1, "no bandwidth"),
            ("a b 1ms 0MB/s", 1, "no bandwidth"),
            ("a b:1 1ms 1MB/s", 1, "no site"),
            ("a b 1ms 1MB/s\nb a 1ms 1MB/s", 2, "two links"),
            ("a a 1ms 1MB/s\na a 1ms 1MB/s", 2, "two links"),
        ] {
            let error = text.parse::<Topology>().unwrap_err();
            assert_eq!(error.line, line, "{text}");
            assert!(error.to_string().contains(what), "{error}");
        }
        let topology: Topology = THREE.parse().unwrap();
        assert_eq!(
            topology.sites().collect::<Vec<_>>(),
            ["far", "island", "near"]
        );
        let paper: Topology = Topology::FIGURE_7.parse().unwrap();
        let sites: Vec<&str> = paper.sites().collect();
        assert_eq!(sites, ["beijing", "cambridge", "mountain-view", "redmond"]);
        for (from, to) in sites
            .iter()
            .flat_map(|from| sites.iter().map(move |to| (from, to)))
        {
            assert!(paper.way(from, to).is_some(), "{from} to {to}");
        }
    }
}
