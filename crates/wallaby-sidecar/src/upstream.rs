//! What a server behind a sidecar is to it, and what bounds its requests.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::timeout;
use wallaby::{Service, Status};

use crate::config::UpstreamLimits;

/// How long a server has to say whether it takes work.
pub(crate) const PATIENCE: Duration = Duration::from_secs(2);

/// The answer to whether a server takes work: an error says why not.
pub type Checked<'a> = Pin<Box<dyn Future<Output = Result<(), String>> + Send + 'a>>;

/// A server behind a sidecar. Those of a [`Config`](crate::Config) are made by the sidecar itself;
/// [`Sidecar::start_with`](crate::Sidecar::start_with) takes others besides.
pub trait Upstream: Send + Sync + 'static {
    /// The services by whose names its health is told (`wallaby.Health`).
    fn names(&self) -> Vec<String>;

    /// The methods that are known when the sidecar starts.
    fn service(self: Arc<Self>) -> Service;

    /// Whether it takes work now. It is asked again and again, and has 2 seconds.
    fn check(&self) -> Checked<'_>;
}

/// How many requests of a server are under way, and how long each may take.
#[derive(Debug)]
pub(crate) struct Gate {
    name: String,
    limits: UpstreamLimits,
    places: Semaphore,
}

impl Gate {
    pub(crate) fn new(name: String, limits: UpstreamLimits) -> Self {
        Self {
            name,
            places: Semaphore::new(limits.at_once),
            limits,
        }
    }

    pub(crate) fn limits(&self) -> &UpstreamLimits {
        &self.limits
    }

    /// A place among the requests that are under way.
    ///
    /// # Errors
    ///
    /// There is none.
    pub(crate) fn enter(&self) -> Result<SemaphorePermit<'_>, Status> {
        self.places.try_acquire().map_err(|_| {
            let (name, most) = (&self.name, self.limits.at_once);
            let message = format!("{most} requests to {name} are under way, and no more may be");
            Status::resource_exhausted(message)
        })
    }

    /// Does this, for as long as a request may take of which so much time is left.
    ///
    /// # Errors
    ///
    /// Its own, or that its time is over.
    pub(crate) async fn within<T>(
        &self,
        remaining: Duration,
        work: impl Future<Output = Result<T, Status>>,
    ) -> Result<T, Status> {
        let time = self.limits.timeout.min(remaining);
        match timeout(time, work).await {
            Ok(done) => done,
            Err(_) => {
                let message = format!("{} has not answered within {time:?}", self.name);
                Err(Status::deadline_exceeded(message))
            }
        }
    }
}
