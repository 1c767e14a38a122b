//! What an endpoint serves, and which requests for that it takes.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLockWriteGuard};

use wallaby_proto::connection::MethodDefinition;
use wallaby_proto::detach::detach;
use wallaby_proto::executor::Admitted;
use wallaby_proto::{Code, Status};

use super::{Inner, locked};
use crate::error::ServeError;
use crate::handling::{Handling, Job};
use crate::service::{Handler, Registered, Service};
use crate::timer::Instant;

impl Inner {
    pub(super) fn services_mut(&self) -> RwLockWriteGuard<'_, HashMap<Arc<str>, Arc<Registered>>> {
        self.services
            .write()
            .unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn register(&self, service: Service) -> Result<(), ServeError> {
        let mut services = self.services_mut();
        // Under the lock: `close` takes them away once.
        if self.is_closed() {
            return Err(ServeError::Closed);
        }
        for method in &service.methods {
            let name = method.definition.name();
            if name.starts_with("wallaby.") {
                return Err(ServeError::Reserved {
                    name: name.to_string(),
                });
            }
            let twice = service
                .methods
                .iter()
                .filter(|other| other.definition.name() == name)
                .count()
                > 1;
            if twice || services.contains_key(name) {
                return Err(ServeError::Taken {
                    name: name.to_string(),
                });
            }
        }
        for method in service.methods {
            let name = Arc::clone(method.definition.name());
            let wrap = |inner, layer: &Arc<dyn crate::service::Layer>| layer.wrap(&name, inner);
            let handler = self.config.layers.iter().fold(method.handler, wrap);
            services.insert(
                Arc::clone(&name),
                Arc::new(Registered {
                    definition: method.definition,
                    handler,
                }),
            );
        }
        Ok(())
    }

    /// What this endpoint does with a method that a caller names.
    pub(crate) fn method(&self, caller: &MethodDefinition) -> Result<Arc<Registered>, Status> {
        let services = self.services.read().unwrap_or_else(PoisonError::into_inner);
        let Some(method) = services.get(caller.name()) else {
            return Err(Status::new(
                Code::Unimplemented,
                format!("no method {} here", caller.name()),
            ));
        };
        method.check(caller).map(|()| Arc::clone(method))
    }

    /// A request is ready for its handler. It may start now, waits in the queue, or was refused.
    pub(crate) fn admit(
        &self,
        handling: &Arc<Handling>,
        handler: &Arc<dyn Handler>,
        payload: bytes::Bytes,
    ) -> Admitted<Job> {
        let job = Job {
            handling: Arc::clone(handling),
            handler: Arc::clone(handler),
            payload,
        };
        let since = |instant: Instant| instant.saturating_duration_since(self.epoch);
        let (deadline, arrived) = (since(handling.deadline), since(handling.arrived));
        let mut executor = locked(&self.executor);
        let urgency = executor.urgency(|| handling.age_on_arrival(), deadline, arrived);
        let admission = executor.admit(job, handling.owner(), urgency, |job| {
            detach(&mut job.payload);
        });
        drop(executor);
        match &admission {
            Admitted::Run(_) => {}
            Admitted::Queued(_) => handling.enlist(),
            Admitted::Refused(job) => self.refuse(job),
        }
        admission
    }

    #[cold]
    #[inline(never)]
    fn refuse(&self, job: &Job) {
        self.meters.requests_refused.add();
        let message = locked(&self.executor).why_refused(job.handling.owner());
        job.handling
            .fail(&Status::new(Code::ResourceExhausted, message));
    }

    /// A handler is done: the next request in the queue takes its place.
    pub(crate) fn release(handling: &Handling) {
        let next = locked(&handling.endpoint.executor).release(handling.owner());
        if let Some(job) = next {
            handling.endpoint.spawn_late(job);
        }
    }

    #[inline(never)]
    fn spawn_late(&self, job: Job) {
        self.spawn(async move { job.start_late() });
    }
}
