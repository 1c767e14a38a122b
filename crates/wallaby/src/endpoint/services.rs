//! What an endpoint serves.

use std::future::ready;
use std::sync::Arc;

use wallaby_proto::Code;
use wallaby_proto::connection::{MethodDefinition, is_reserved};
use wallaby_proto::endpoint::Serving;

use crate::driver::shared::Inner;
use crate::error::ServeError;
use crate::reflection::{self, Description};
use crate::service::{Registered, Service};
use crate::{health, pipeline};
use wallaby_proto::Status;

impl Inner {
    /// Messages come down lines of servers, whatever is served.
    pub(super) fn serve_pipelines(self: &std::sync::Arc<Self>) {
        let definition = Arc::clone(pipeline::definition());
        // Whoever has a cluster's key seals what it passes on, and what is kept of messages is bounded by itself (`Store`).
        let how = Serving {
            one: false,
            ahead: true,
            while_draining: true,
            credit_free: true,
            sealed: true,
        };
        self.enter(|core| {
            if (core.endpoint.serve(Arc::clone(&definition), how)).is_some() {
                let elsewhere = |_| ready(Err(Status::internal("it is for another method")));
                core.served.push(Arc::new(Registered {
                    interceptors: Box::new([Arc::new(pipeline::PipelineInterceptor)]),
                    ..Registered::new(definition, elsewhere, Description::default())
                }));
            }
        });
    }

    /// What Wallaby itself serves everywhere; who is asked about requests is asked about these, too.
    pub(super) fn serve_own(self: &Arc<Self>) -> Result<(), ServeError> {
        if self.settings.driver.reflection {
            self.register(reflection::service())?;
        }
        self.register(health::service())
    }

    pub(super) fn register(self: &Arc<Self>, service: Service) -> Result<(), ServeError> {
        let names = || {
            service
                .methods
                .iter()
                .map(|method| method.definition.name())
        };
        for (index, name) in names().enumerate() {
            let name = name.to_string();
            let granted = || service.reserved.iter().any(|service| service.has(&name));
            if is_reserved(&name) && !granted() {
                return Err(ServeError::Reserved { name });
            }
            if names().take(index).any(|other| **other == *name) {
                return Err(ServeError::Taken { name });
            }
        }
        let methods: Vec<Registered> = (service.methods.into_iter())
            .map(|method| {
                let all = (service.interceptors.iter()).chain(&self.settings.driver.interceptors);
                // Of the rest it is not known yet which methods these are.
                let asked = all
                    .filter(|interceptor| method.rest || interceptor.concerns(&method.definition));
                Registered {
                    interceptors: asked.map(Arc::clone).collect(),
                    ..method
                }
            })
            .collect();
        let tells = self.settings.driver.reflection && !self.settings.config.require_seals;
        self.enter(|core| {
            if core.endpoint.is_closed() {
                return Err(ServeError::Closed);
            }
            let taken = methods.iter().find(|method| match method.rest {
                true => core.endpoint.serves_rest(),
                false => core.endpoint.serves(method.definition.name()),
            });
            if let Some(taken) = taken {
                let name = taken.definition.name().to_string();
                return Err(ServeError::Taken { name });
            }
            for method in methods {
                // Who does not tell its types does not tell those either who have others; nor does who asks first whether somebody may
                // call, as other types are noticed before that.
                let definition = match tells && method.interceptors.is_empty() {
                    true => Arc::clone(&method.definition),
                    false => Arc::new((*method.definition).clone().with_types(None)),
                };
                let how = Serving {
                    one: method.one,
                    ahead: !method.interceptors.is_empty(),
                    ..Serving::default()
                };
                let served = match method.rest {
                    true => core.endpoint.serve_rest(how),
                    false => core.endpoint.serve(definition, how),
                };
                if served.is_some() {
                    core.served.push(Arc::new(method));
                }
            }
            Ok(())
        })?;
        self.health.look_again();
        Ok(())
    }

    /// What this endpoint does with a method that a caller names: its place among those served.
    pub(crate) fn method(
        &self,
        caller: &MethodDefinition,
    ) -> Result<(usize, Arc<Registered>), Status> {
        self.ask(|core| {
            let served = core.endpoint.method(caller)?;
            let registered = core.served.get(served).map(Arc::clone);
            let closed = || Status::new(Code::Unavailable, "the endpoint was closed");
            Ok((served, registered.ok_or_else(closed)?))
        })
    }
}
