//! The servers of a service in [etcd](https://etcd.io): servers write down where they are, clients learn it, and learn at once when it
//! changes.
//!
//! ```no_run
//! use std::time::Duration;
//! use wallaby::{Client, Endpoint, Servers};
//! use wallaby_etcd::Etcd;
//!
//! # async fn example(server: Endpoint, client: Endpoint) -> Result<(), Box<dyn std::error::Error>> {
//! let etcd = Etcd::new(["http://127.0.0.1:2379"])?;
//!
//! // A server: as long as this value lives, and ten seconds longer if its process dies.
//! let address = server.address().ok_or("it listens")?;
//! let registration = etcd.register("shelf", address, Duration::from_secs(10)).await?;
//!
//! // A client: each call goes to one of those that are there.
//! let shelves = Servers::watch(etcd.servers("shelf")).await?;
//! let client = Client::among(&client, &shelves);
//! # Ok(())
//! # }
//! ```
//!
//! The key of a server is `wallaby/SERVICE/ADDRESS` ([`Etcd::prefix`]), its value the address. Other programs may write such keys as
//! well: `etcdctl put wallaby/shelf/1 tcp://10.0.0.2:4000`. In the name of a service `/` becomes `%2F`, and `%` becomes `%25`: so no
//! service is below another.
//!
//! It speaks etcd's JSON over HTTP, or over HTTPS with certificates and a password ([`Etcd::builder`]):
//!
//! ```no_run
//! # use wallaby_etcd::Etcd;
//! # fn example(password: &str) -> Result<(), Box<dyn std::error::Error>> {
//! let etcd = Etcd::builder(["https://10.0.0.1:2379", "https://10.0.0.2:2379"])
//!     .trust(&std::fs::read("authority.pem")?)
//!     .certificate(&std::fs::read("client.pem")?, &std::fs::read("client.key")?)
//!     .password("wallaby", password)
//!     .build()?;
//! # Ok(())
//! # }
//! ```

#![cfg_attr(docsrs, feature(doc_cfg))]

mod api;
mod builder;
mod lease;
#[cfg(feature = "chain")]
mod modules;
mod resolver;

use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use wallaby::{Address, Code};

use self::api::Api;
pub use self::builder::Builder;
pub use self::lease::Lease;
#[cfg(feature = "chain")]
pub use self::modules::EtcdModules;
pub use self::resolver::EtcdServers;

/// An etcd, by the URLs of its members. Clones are the same one.
#[derive(Debug, Clone)]
pub struct Etcd {
    api: Arc<Api>,
    prefix: String,
}

/// What etcd did not do.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum EtcdError {
    /// There is no URL of a member.
    #[error("no member of etcd is named: at least one URL such as http://127.0.0.1:2379")]
    NoMember,
    /// What TLS needs is missing or makes no sense.
    #[error("etcd over TLS: {0}")]
    Tls(String),
    /// No member could be reached.
    #[error("etcd cannot be reached at {member}: {why}")]
    Unreachable {
        /// The one that was tried last.
        member: String,
        /// Why not.
        why: String,
    },
    /// It has refused what it was asked.
    #[error("etcd at {member} has refused {what}: {why}")]
    Refused {
        /// Which one.
        member: String,
        /// What it was asked.
        what: &'static str,
        /// Its reason.
        why: String,
    },
    /// What it has answered cannot be read.
    #[error("the answer of etcd at {member} to {what} cannot be read: {why}")]
    Unreadable {
        /// Which one.
        member: String,
        /// What it was asked.
        what: &'static str,
        /// What is wrong with it.
        why: String,
    },
}

impl EtcdError {
    /// What kind of error it is. Why etcd refuses something only its words say: that is [`Code::Unknown`].
    pub fn code(&self) -> Code {
        match self {
            Self::NoMember | Self::Tls(_) => Code::InvalidArgument,
            Self::Unreachable { .. } => Code::Unavailable,
            Self::Refused { .. } => Code::Unknown,
            Self::Unreadable { .. } => Code::Internal,
        }
    }
}

impl Etcd {
    /// The etcd whose members have these URLs, as `http://127.0.0.1:2379`. They are tried in turn.
    ///
    /// # Errors
    ///
    /// As [`Builder::build`]'s.
    pub fn new(members: impl IntoIterator<Item = impl Into<String>>) -> Result<Self, EtcdError> {
        Self::builder(members).build()
    }

    /// An etcd that is reached over TLS, or wants a password.
    pub fn builder(members: impl IntoIterator<Item = impl Into<String>>) -> Builder {
        Builder::new(members.into_iter().map(Into::into).collect())
    }

    /// What keys begin with; `wallaby` if nothing is said. All that is below a prefix is of its services: `a` and `a/b` do not go
    /// together, as the servers of a service `b` would be at `a/b`, too.
    #[must_use]
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Who serves this, for [`Servers::watch`](wallaby::Servers::watch).
    pub fn servers(&self, service: &str) -> EtcdServers {
        EtcdServers::new(Arc::clone(&self.api), service, self.key(service, ""))
    }

    /// Writes down that this server serves that, until the value is dropped. etcd forgets it by itself after `life` if nobody says
    /// that it is still there: when the process has died. That is said three times in that time; `life` is at least 2 s.
    ///
    /// # Errors
    ///
    /// If etcd cannot be reached, or refuses it.
    pub async fn register(
        &self,
        service: &str,
        server: &Address,
        life: Duration,
    ) -> Result<Lease, EtcdError> {
        let key = self.key(service, &server.to_string());
        let (api, value) = (Arc::clone(&self.api), server.to_string());
        Lease::begin(api, key, value, life).await
    }

    /// The modules of chains that are kept here, for repositories on several machines: what one keeps, all have. Their keys are
    /// `wallaby/%modules/HASH/SIZE`, which no service has; each is at most 1 MiB. Errors are logged, and told to those who ask the
    /// repository without saying where etcd is.
    ///
    /// ```no_run
    /// use wallaby::Endpoint;
    /// use wallaby_chain::Repository;
    /// use wallaby_etcd::Etcd;
    ///
    /// # async fn example(module: Vec<u8>) -> Result<(), Box<dyn std::error::Error>> {
    /// let etcd = Etcd::new(["http://127.0.0.1:2379"])?;
    /// let repository = Repository::backed(etcd.modules());
    /// let server = Endpoint::builder().serve(repository.service()).listen("tcp://127.0.0.1:4000").bind().await?;
    /// // It waits for etcd.
    /// let code = tokio::task::spawn_blocking(move || repository.keep(module)).await??;
    /// # Ok(())
    /// # }
    /// ```
    #[cfg(feature = "chain")]
    pub fn modules(&self) -> EtcdModules {
        EtcdModules::new(Arc::clone(&self.api), format!("{}/%modules/", self.prefix))
    }

    fn key(&self, service: &str, server: &str) -> String {
        let service = service.replace('%', "%25").replace('/', "%2F");
        format!("{}/{service}/{server}", self.prefix)
    }
}
