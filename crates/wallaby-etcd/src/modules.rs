//! The modules of chains, in etcd.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use wallaby::Status;
use wallaby_chain::{Backing, Hash};

use crate::EtcdError;
use crate::api::Api;

/// The longest module: etcd itself takes requests of 1.5 MiB.
const LONGEST: usize = 1 << 20;

/// How long all members together may take to answer who looks for a module: a chain's server waits for 5 s by default.
const PATIENCE: Duration = Duration::from_secs(4);

/// Modules in etcd, for several repositories: see [`Etcd::modules`](crate::Etcd::modules).
#[derive(Debug)]
pub struct EtcdModules {
    api: Arc<Api>,
    /// What all keys begin with. A module's is this, its hash, a slash, and how many bytes it has.
    prefix: String,
}

impl EtcdModules {
    pub(crate) fn new(api: Arc<Api>, prefix: String) -> Self {
        Self { api, prefix }
    }

    /// What the keys of this module begin with.
    fn below(&self, hash: Hash) -> String {
        format!("{}{hash}/", self.prefix)
    }

    fn parse(&self, key: &str) -> Option<(Hash, u64)> {
        let (hash, size) = key.strip_prefix(&self.prefix)?.split_once('/')?;
        Some((hash.parse().ok()?, size.parse().ok()?))
    }
}

/// Who asks a repository need not know where its etcd is.
fn failed(error: EtcdError) -> Status {
    tracing::warn!(%error, "modules are in etcd");
    match error {
        EtcdError::Unreachable { .. } | EtcdError::NoMember => {
            Status::unavailable("the etcd of the repository cannot be reached")
        }
        _ => Status::internal("the etcd of the repository has not done it: its log says why"),
    }
}

impl Backing for EtcdModules {
    fn get(&self, hash: Hash) -> Result<Option<Bytes>, Status> {
        let each = PATIENCE / self.api.members().max(1);
        let first = self.api.first(&self.below(hash), each).map_err(failed)?;
        Ok(first.map(|(_, module)| module.into()))
    }

    fn put(&self, hash: Hash, module: &Bytes) -> Result<(), Status> {
        let size = module.len();
        if size > LONGEST {
            let message = format!("a module of {size} bytes: etcd takes at most {LONGEST}");
            return Err(Status::resource_exhausted(message));
        }
        let key = format!("{}{size}", self.below(hash));
        self.api.keep(&key, module).map_err(failed)
    }

    fn remove(&self, hash: Hash) -> Result<bool, Status> {
        self.api.delete(&self.below(hash)).map_err(failed)
    }

    fn list(&self, after: Option<Hash>, most: usize) -> Result<Vec<(Hash, u64)>, Status> {
        // A key of that one has a slash there, before which nothing stands that the next ones have.
        let from = after.map_or_else(
            || self.prefix.clone(),
            |after| format!("{}{after}0", self.prefix),
        );
        let keys = self.api.keys(&self.prefix, &from, most).map_err(failed)?;
        Ok(keys.iter().filter_map(|key| self.parse(key)).collect())
    }
}
