//! What every endpoint serves itself: [`reflection`](crate::reflection) and [`health`](crate::health).

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use wallaby_proto::connection::MethodDefinition;
use wallaby_proto::endpoint::RequestKey;

use super::Endpoint;
use super::datagrams::Datagrams;
use crate::error::{SendError, ServeError};
use crate::health::{self, CHECK, Health, Said, WATCH};
use crate::reflection::{self, DESCRIPTORS, Described, Description, LOAD, LoadReport, METHODS};

/// What is told.
#[derive(Default)]
pub(super) struct Own {
    /// Methods in the order in which the endpoint knows them.
    pub(super) served: Vec<(Arc<MethodDefinition>, Description)>,
    pub(super) said: Said,
    /// Who watches the health of what, and what each was told last.
    pub(super) watches: BTreeMap<RequestKey, (String, Health)>,
}

impl Own {
    /// The methods whose names begin so.
    fn methods<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = Described<'a>> {
        let all = self.served.iter().map(|(method, told)| (&**method, told));
        all.filter(move |(method, _)| method.name().starts_with(prefix))
    }

    fn health(&self, service: &str) -> Health {
        let methods = self.served.iter().map(|(method, _)| method);
        let unsaid = || health::unsaid(methods, service);
        self.said.of(service).unwrap_or_else(unsaid)
    }
}

impl<D: Datagrams> Endpoint<D> {
    /// Says whether a service (`package.Service`) takes work, for who asks [`crate::health`]; `""` is the endpoint as a whole.
    pub fn set_health(&mut self, service: &str, health: Health) {
        self.own.borrow_mut().said.set(service, health);
        self.tell_health();
    }

    pub(super) fn serve_own(&mut self) -> Result<(), ServeError> {
        let [own, of, to] = [(); 3].map(|()| Rc::clone(&self.own));
        self.serve_as(&CHECK, true, move |request, (service,)| {
            let health = health::checked(&service, own.borrow().health(&service))?;
            Ok(request.respond(&health)?)
        })?;
        self.serve_as(&WATCH, true, move |mut request, (service,)| {
            let health = of.borrow().health(&service);
            request.reply(&health)?;
            let watches = &mut of.borrow_mut().watches;
            watches.insert(request.hold(), (service, health));
            Ok(())
        })?;
        if !self.reflects {
            return Ok(());
        }
        let (own, began) = (Rc::clone(&self.own), self.now);
        self.serve_as(&METHODS, true, move |mut request, (prefix,)| {
            for method in to.borrow().methods(&prefix) {
                match request.reply(reflection::told(method)) {
                    Err(SendError::TooLarge { .. }) => {
                        request.reply(&reflection::told_briefly(method.0))?;
                    }
                    told => told?,
                }
            }
            Ok(())
        })?;
        self.serve_as(&DESCRIPTORS, true, move |mut request, (prefix,)| {
            for set in reflection::descriptors(own.borrow().methods(&prefix)) {
                request.reply(&set.to_vec())?;
            }
            Ok(())
        })?;
        self.serve_as(&LOAD, true, move |mut request, ()| {
            let raw = request.raw();
            let up = raw.core.time().saturating_sub(began);
            let told = LoadReport::tell(raw.core, up, &raw.calling.meters)?;
            Ok(request.respond(&told)?)
        })
    }

    /// Those who watch are told what has changed, if there is room for it.
    pub(super) fn tell_health(&mut self) {
        let own = Rc::clone(&self.own);
        let mut watches = std::mem::take(&mut own.borrow_mut().watches);
        let own_now = own.borrow();
        watches.retain(|key, (service, told)| {
            let Some(request) = self.request(*key) else {
                return false;
            };
            let (mut request, health) = (request.typed(&WATCH), own_now.health(service));
            if *told != health && request.reply(&health).is_ok() {
                *told = health;
            }
            let goes_on = !own_now.said.draining;
            if goes_on {
                request.hold();
            }
            goes_on
        });
        drop(own_now);
        own.borrow_mut().watches = watches;
    }
}
