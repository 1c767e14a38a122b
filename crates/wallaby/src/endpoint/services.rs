//! What an endpoint serves.

use std::future::ready;
use std::sync::Arc;

use wallaby_proto::connection::MethodDefinition;
use wallaby_proto::endpoint::Serving;
use wallaby_proto::error::handler_gone;

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
            ahead: true,
            while_draining: true,
            credit_free: true,
            sealed: true,
            reserved: true,
            ..Serving::default()
        };
        self.enter(|core| {
            if (core.endpoint.serve(Arc::clone(&definition), how)).is_ok() {
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
        if self.settings.reflection {
            self.register(reflection::service())?;
        }
        self.register(health::service())
    }

    pub(super) fn register(self: &Arc<Self>, service: Service) -> Result<(), ServeError> {
        let methods: Vec<Arc<Registered>> = (service.methods.into_iter())
            .map(|method| {
                let all = (service.interceptors.iter()).chain(&self.settings.driver.interceptors);
                // Of the rest it is not known yet which methods these are.
                let asked = all
                    .filter(|interceptor| method.rest || interceptor.concerns(&method.definition));
                Arc::new(Registered {
                    interceptors: asked.map(Arc::clone).collect(),
                    ..method
                })
            })
            .collect();
        let tells = self.settings.reflection && !self.settings.config.require_seals;
        let served = methods.iter().map(|method| {
            let (name, asks) = (method.definition.name(), !method.interceptors.is_empty());
            let how = Serving {
                one: method.one,
                ahead: asks,
                rest: method.rest,
                reserved: service.reserved.iter().any(|service| service.has(name)),
                // Who does not tell its types does not tell those either who have others; nor does who asks first whether somebody may
                // call, as other types are noticed before that.
                tells_types: tells && !asks,
                ..Serving::default()
            };
            (Arc::clone(&method.definition), how)
        });
        let served: Vec<_> = served.collect();
        self.enter(|core| {
            core.endpoint.serve_all(&served)?;
            core.served.extend(methods);
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
            Ok((served, registered.ok_or_else(handler_gone)?))
        })
    }
}
