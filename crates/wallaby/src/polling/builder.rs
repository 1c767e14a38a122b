//! How a polling endpoint is set up.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::time::Duration;

use wallaby_proto::Address;
use wallaby_proto::endpoint::Shell;

use super::datagrams::Datagrams;
use super::streams::Streams;
use super::{Endpoint, Udp};
use crate::error::BindError;
use crate::transport;

/// A wait for less is dear where the kernel counts in ticks: timers of sessions wait so long.
pub(super) const DEAR: Duration = Shell::TURNED.timers_wait;

/// What it dials.
const SCHEMES: [&str; 4] = ["udp", "tcp", "unix", "shm"];

/// The driver that the application turns: it has no settings of its own.
#[derive(Debug, Default)]
pub struct Polling;

/// Sets up a polling [`Endpoint`].
///
/// ```
/// use std::time::Duration;
/// use wallaby::polling::Endpoint;
///
/// let endpoint = Endpoint::builder()
///     .default_deadline(Duration::from_secs(1))
///     .bind("udp://127.0.0.1:0")?;
/// # Ok::<(), wallaby::BindError>(())
/// ```
pub type Builder = crate::Builder<Polling>;

impl crate::Builder<Polling> {
    /// An endpoint that listens at this address, and at those of [`listen`](Self::listen): `udp://HOST:PORT`,
    /// `tcp://HOST:PORT`, port 0 for any, `unix:///PATH` or `shm:///PATH`. It tells this address to others, and dials whatever
    /// transports addresses name. One of them at most may be `udp:`; `mem:` is not offered.
    ///
    /// # Errors
    ///
    /// If an address is of another scheme or unknown, or cannot be listened on.
    pub fn bind(mut self, address: &str) -> Result<Endpoint, BindError> {
        self.listen.insert(0, address.to_owned());
        let all = self.resolved()?;
        let udp = all.iter().find_map(|address| match address {
            Address::Udp(socket) => Some(*socket),
            _ => None,
        });
        let datagrams = match udp {
            None => Udp::unbound(),
            Some(socket) => Udp::bind(socket).map_err(|source| BindError::Listen {
                address: Address::Udp(socket),
                source,
            })?,
        };
        self.build(datagrams, &all)
    }

    /// An endpoint that sends and receives datagrams by this, and listens at the addresses of [`listen`](Self::listen).
    ///
    /// # Errors
    ///
    /// If one of those cannot be listened on, the system gives no random numbers, or seals are required and there is no key.
    pub fn bind_to<D: Datagrams>(self, datagrams: D) -> Result<Endpoint<D>, BindError> {
        let mut all = self.resolved()?;
        all.insert(0, Address::Udp(datagrams.local()));
        self.build(datagrams, &all)
    }

    /// The addresses to listen at.
    fn resolved(&self) -> Result<Vec<Address>, BindError> {
        self.listen.iter().map(|address| resolve(address)).collect()
    }

    fn build<D: Datagrams>(
        mut self,
        datagrams: D,
        addresses: &[Address],
    ) -> Result<Endpoint<D>, BindError> {
        self.config.shell = Shell::TURNED;
        let (streams, addresses) = listen(addresses, datagrams.local())?;
        let here = transport::advertised(self.advertise.clone(), &addresses)?;
        let core = self.core(here, SCHEMES)?;
        let mut endpoint = Endpoint::new(self, core, streams, datagrams, addresses);
        endpoint.serve_own()?;
        Ok(endpoint)
    }
}

/// Listens everywhere; the socket of datagrams is there already. Returns the addresses as others see them.
fn listen(all: &[Address], local: SocketAddr) -> Result<(Streams, Vec<Address>), BindError> {
    let mut streams = Streams::default();
    let mut found = Vec::with_capacity(all.len());
    for address in all {
        let here = match address {
            Address::Udp(_) => Address::Udp(local),
            stream => streams.listen(stream)?,
        };
        if found.contains(&here) {
            let why = "an endpoint of the polling driver has one socket for datagrams";
            return Err(BindError::Listen {
                address: address.clone(),
                source: io::Error::new(io::ErrorKind::AddrInUse, why),
            });
        }
        found.push(here);
    }
    Ok((streams, found))
}

/// The address: that of a host's name is the first one found.
fn resolve(text: &str) -> Result<Address, BindError> {
    let address: Address = text.parse()?;
    let Address::Other(name) = &address else {
        return Ok(address);
    };
    if !address.has_host_name() {
        return Ok(address);
    }
    let first = name.text().to_socket_addrs().and_then(|mut found| {
        found
            .next()
            .ok_or_else(|| io::ErrorKind::AddrNotAvailable.into())
    });
    match first {
        Ok(socket) if address.is_udp() => Ok(Address::Udp(socket)),
        Ok(socket) => Ok(Address::Tcp(socket)),
        Err(source) => Err(BindError::Resolve {
            address: text.into(),
            source,
        }),
    }
}
