//! Who tells the addresses of a service: a fixed list, the names of hosts, or whatever a user has.

use std::future::{Future, pending};
use std::time::Duration;

use thiserror::Error;
use wallaby_proto::{Address, Code};

use super::Servers;
use crate::timer::{self, Instant};
use crate::transport::names;

/// Tells where the servers of a service are, and how that changes.
///
/// ```
/// use wallaby::{Address, ResolveError, Resolver};
///
/// /// Whoever is written in a file, a line each.
/// struct File(&'static str);
///
/// impl Resolver for File {
///     async fn next(&mut self) -> Result<Vec<Address>, ResolveError> {
///         // ... wait until it has changed, unless this is the first time ...
///         let text = std::fs::read_to_string(self.0);
///         let text = text.map_err(|error| ResolveError::new(self.0, error.to_string()))?;
///         let servers = text.lines().map(str::parse).collect::<Result<_, _>>();
///         servers.map_err(|error: wallaby::AddressError| ResolveError::new(self.0, error.to_string()))
///     }
/// }
/// ```
pub trait Resolver: Send + 'static {
    /// All servers as they are now; from the second time on it waits until they may be others. It is dropped where it waits when
    /// nobody wants to know any more. After an error it is asked again in 1 s, later in up to 30 s.
    ///
    /// # Errors
    ///
    /// Why they are not known.
    fn next(&mut self) -> impl Future<Output = Result<Vec<Address>, ResolveError>> + Send;
}

/// Why the servers of a service are not known.
#[derive(Clone, PartialEq, Eq, Error)]
#[error("cannot find the servers of {service}: {why}")]
pub struct ResolveError {
    service: String,
    why: String,
}

wallaby_proto::debug_as_text!(ResolveError);

impl ResolveError {
    /// Of this service, for this reason.
    pub fn new(service: impl Into<String>, why: impl Into<String>) -> Self {
        Self {
            service: service.into(),
            why: why.into(),
        }
    }

    /// What kind of error it is: always [`Code::Unavailable`].
    pub fn code(&self) -> Code {
        Code::Unavailable
    }

    pub(super) fn none() -> Self {
        Self::new("a service", "there are none")
    }
}

/// A list that stays as it is: what [`Servers::new`] does, as a resolver.
#[derive(Debug, Clone)]
pub struct Static(Option<Vec<Address>>);

impl Static {
    /// These servers.
    pub fn new(servers: impl IntoIterator<Item = impl Into<Address>>) -> Self {
        Self(Some(servers.into_iter().map(Into::into).collect()))
    }
}

impl Resolver for Static {
    async fn next(&mut self) -> Result<Vec<Address>, ResolveError> {
        match self.0.take() {
            Some(servers) => Ok(servers),
            None => pending().await,
        }
    }
}

/// All IP addresses of a host's name, as the system finds them (`/etc/hosts`, DNS): each is a server, at the port of the address.
///
/// The system does not say for how long they hold. So they are looked up again every 30 s ([`Self::every`]).
#[derive(Debug, Clone)]
pub struct Dns {
    address: Address,
    period: Duration,
    next: Option<Instant>,
}

impl Dns {
    /// Those of the host in this address, `tcp://HOST:PORT` or `udp://HOST:PORT`. With another one it tells that address itself.
    pub fn new(address: Address) -> Self {
        Self {
            address,
            period: Duration::from_secs(30),
            next: None,
        }
    }

    /// How often they are looked up; at least a millisecond passes in between.
    #[must_use]
    pub fn every(mut self, period: Duration) -> Self {
        self.period = period.max(Duration::from_millis(1));
        self
    }
}

impl Resolver for Dns {
    async fn next(&mut self) -> Result<Vec<Address>, ResolveError> {
        if let Some(next) = self.next {
            timer::sleep_until(next).await;
        }
        let host = match &self.address {
            Address::Other(other) if self.address.has_host_name() => other.text(),
            address if self.next.is_none() => {
                self.next = Some(Instant::now() + timer::bounded(Duration::MAX));
                return Ok(vec![address.clone()]);
            }
            _ => pending().await,
        };
        let found = names::look_up(host, Servers::MOST, false).await;
        let mut found = found
            .map_err(|error| ResolveError::new(self.address.to_string(), error.to_string()))?;
        found.sort_unstable();
        self.next = Some(Instant::now() + timer::bounded(self.period)); // after an error it is asked sooner
        let is_udp = self.address.is_udp();
        let of = |socket| {
            if is_udp {
                Address::Udp(socket)
            } else {
                Address::Tcp(socket)
            }
        };
        Ok(found.into_iter().map(of).collect())
    }
}
