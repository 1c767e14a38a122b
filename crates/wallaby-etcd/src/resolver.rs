//! Who serves a service, as etcd knows it.

use std::sync::Arc;
use std::thread;

use tokio::sync::oneshot;
use wallaby::{Address, ResolveError, Resolver};

use crate::EtcdError;
use crate::api::Api;

/// The servers of a service: see [`Etcd::servers`](crate::Etcd::servers).
///
/// Values that are no addresses are left out, and logged. A thread waits for changes; one that nobody waits for any more ends after
/// half a minute.
#[derive(Debug)]
pub struct EtcdServers {
    api: Arc<Api>,
    service: String,
    prefix: String,
    /// Of the latest list.
    revision: Option<i64>,
}

impl EtcdServers {
    pub(crate) fn new(api: Arc<Api>, service: &str, prefix: String) -> Self {
        Self {
            api,
            service: service.to_owned(),
            prefix,
            revision: None,
        }
    }

    fn address(&self, value: &str) -> Option<Address> {
        let address = value.parse();
        address
            .inspect_err(|error| {
                let service = &self.service;
                tracing::warn!(%service, value, %error, "a server in etcd is left out");
            })
            .ok()
    }
}

impl Resolver for EtcdServers {
    async fn next(&mut self) -> Result<Vec<Address>, ResolveError> {
        let failed = |error: EtcdError| ResolveError::new(self.service.clone(), error.to_string());
        let (api, prefix, known) = (Arc::clone(&self.api), self.prefix.clone(), self.revision);
        let listed = on_a_thread(move || {
            if let Some(known) = known {
                api.wait(&prefix, known)?;
            }
            api.list(&prefix)
        });
        let listed = listed.await.map_err(failed)?;
        self.revision = Some(listed.revision);
        let values = listed.values.iter();
        Ok(values.filter_map(|value| self.address(value)).collect())
    }
}

/// Does what blocks.
pub(crate) async fn on_a_thread<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, EtcdError> + Send + 'static,
) -> Result<T, EtcdError> {
    let (tell, told) = oneshot::channel();
    let unreachable = |why: String| EtcdError::Unreachable {
        member: "any member".into(),
        why,
    };
    let thread = thread::Builder::new().name("wallaby-etcd".into());
    let begun = thread.spawn(move || drop(tell.send(work())));
    begun.map_err(|error| unreachable(error.to_string()))?;
    match told.await {
        Ok(done) => done,
        Err(_) => Err(unreachable("what asks it has panicked".into())),
    }
}
