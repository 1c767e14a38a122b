//! The methods that an endpoint serves: how their requests are taken, and which of them a caller means.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::Endpoint;
use super::draining::shutting_down;
use super::event::RequestKey;
use super::probe::Probe;
use crate::connection::{MethodDefinition, is_reserved};
use crate::error::ServeError;
use crate::wire::MethodRef;
use crate::{Code, ConnId, Status};

/// How the requests of a method are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Serving {
    /// Its initiators expect exactly one answer.
    pub one: bool,
    /// They are handed out at once, whatever runs, for somebody to decide what becomes of them:
    /// [`run_as`](Endpoint::run_as) says when they are to have a place. What they take of their connection's credit is not free before,
    /// unless somebody [frees it](Endpoint::free_credit).
    pub ahead: bool,
    /// They are taken also while the endpoint is drained: servers behind it wait for what their handlers hand on.
    pub while_draining: bool,
    /// What they take of their connection's credit is free at once even so: whoever decides bounds what they hold in another way.
    pub credit_free: bool,
    /// With a cluster's key they must be sealed, even where [others need not](super::Config::require_seals).
    pub sealed: bool,
    /// It stands for all methods that are not served by their names, but for those whose names begin with `wallaby.`: which one a
    /// request calls tells [`method_of`](Endpoint::method_of). Whoever serves them checks what callers say of their types.
    pub rest: bool,
    /// Its name may be one of Wallaby's own.
    pub reserved: bool,
    /// Callers that mean other types are told which these are.
    pub tells_types: bool,
}

/// A method that a caller means.
#[derive(Debug, Clone)]
pub(super) struct Meant {
    /// Which of those served.
    pub(super) served: usize,
    /// As the peer has named it, where it is served only as one of the rest.
    pub(super) named: Option<Arc<MethodDefinition>>,
}

/// A method that is not served so, and the status that says why.
#[derive(Debug)]
pub(super) struct RefusedMethod(pub(super) Box<(MethodDefinition, Status)>);

/// Methods that are served, in the order in which they were registered.
#[derive(Debug, Default)]
pub(super) struct Methods {
    names: BTreeMap<Arc<str>, usize>,
    served: Vec<(Arc<MethodDefinition>, Serving)>,
    /// Which of them is for all others.
    rest: Option<usize>,
}

impl Methods {
    /// All of these are served, or none; the place of the first, which the others follow.
    fn add(&mut self, methods: &[(Arc<MethodDefinition>, Serving)]) -> Result<usize, ServeError> {
        let mut new = BTreeSet::new();
        for (definition, how) in methods {
            let name = &**definition.name();
            if is_reserved(name) && !how.reserved {
                let name = name.to_owned();
                return Err(ServeError::Reserved { name });
            }
            let is_taken = match how.rest {
                true => self.rest.is_some(),
                false => self.names.contains_key(name),
            };
            if is_taken || !new.insert(name) {
                let name = name.to_owned();
                return Err(ServeError::Taken { name });
            }
        }
        let first = self.served.len();
        for ((definition, how), place) in methods.iter().zip(first..) {
            match how.rest {
                true => self.rest = Some(place),
                false => drop(self.names.insert(Arc::clone(definition.name()), place)),
            }
            let definition = match how.tells_types {
                true => Arc::clone(definition),
                false => Arc::new((**definition).clone().with_types(None)),
            };
            self.served.push((definition, *how));
        }
        Ok(first)
    }

    pub(super) fn definition(&self, served: usize) -> Option<&Arc<MethodDefinition>> {
        Some(&self.served.get(served)?.0)
    }

    pub(super) fn serving(&self, served: usize) -> Serving {
        let served = self.served.get(served);
        served.map_or_else(Serving::default, |served| served.1)
    }

    /// The method that a caller means.
    pub(super) fn find(&self, caller: &MethodDefinition) -> Result<Meant, RefusedMethod> {
        let name = caller.name();
        let refused = |status| Err(RefusedMethod(Box::new((caller.clone(), status))));
        let place = self.names.get(name).copied();
        let Some((place, definition)) = place.and_then(|at| Some((at, self.definition(at)?)))
        else {
            return match self.rest.filter(|_| !is_reserved(name)) {
                Some(rest) => Ok(Meant {
                    served: rest,
                    named: Some(Arc::new(caller.clone())),
                }),
                None => refused(Status::new(
                    Code::Unimplemented,
                    format!("no method {name} here"),
                )),
            };
        };
        match definition.check(caller) {
            Ok(()) => Ok(Meant {
                served: place,
                named: None,
            }),
            Err(status) => refused(status),
        }
    }
}

impl<P: Probe> Endpoint<P> {
    /// Serves a method from now on; returns its place among those served.
    ///
    /// # Errors
    ///
    /// As [`serve_all`](Self::serve_all).
    pub fn serve(
        &mut self,
        definition: Arc<MethodDefinition>,
        how: Serving,
    ) -> Result<usize, ServeError> {
        self.serve_all(&[(definition, how)])
    }

    /// Serves these methods from now on; returns the place of the first among those served, which the others follow.
    ///
    /// # Errors
    ///
    /// If one of them is served already or is among them twice, or its name is reserved, or the endpoint was closed: then none is
    /// served.
    pub fn serve_all(
        &mut self,
        methods: &[(Arc<MethodDefinition>, Serving)],
    ) -> Result<usize, ServeError> {
        if self.is_closed() {
            return Err(ServeError::Closed);
        }
        let first = self.methods.add(methods)?;
        self.look_up_again();
        Ok(first)
    }

    /// Which of the methods served a caller means.
    ///
    /// # Errors
    ///
    /// The status that refuses its requests.
    pub fn method(&self, caller: &MethodDefinition) -> Result<usize, Status> {
        let meant = self.methods.find(caller).map_err(|refused| refused.0.1)?;
        match self.takes(self.methods.serving(meant.served)) {
            true => Ok(meant.served),
            false => Err(shutting_down()),
        }
    }

    /// Whether requests of such a method are still taken.
    pub(super) fn takes(&self, how: Serving) -> bool {
        !self.is_ending() && (how.while_draining || !self.is_draining())
    }

    /// The method that a request calls.
    pub fn method_of(&self, key: RequestKey) -> Option<&Arc<MethodDefinition>> {
        let handler = self.handlers.get(key)?;
        let served = || self.methods.definition(handler.served?);
        handler.named.as_ref().or_else(served)
    }

    /// The peer names a method.
    pub(super) fn learn_method(&mut self, id: ConnId, definition: &MethodDefinition) {
        let meant = self.methods.find(definition);
        if let Some(conn) = self.conns.get_mut(id) {
            conn.methods.push(meant);
        }
    }

    /// Methods that are registered later may be meant by names that peers have told before.
    fn look_up_again(&mut self) {
        for id in self.conns.ids() {
            let Some(conn) = self.conns.get_mut(id) else {
                continue;
            };
            for known in &mut conn.methods {
                let found = match known {
                    Ok(Meant { named: None, .. }) => continue,
                    Ok(Meant {
                        named: Some(named), ..
                    }) => self.methods.find(named),
                    Err(RefusedMethod(refused)) => self.methods.find(&refused.0),
                };
                *known = found;
            }
        }
    }

    /// The name that a peer has given to a method.
    pub(super) fn name_of(&self, from: ConnId, method: MethodRef) -> &str {
        let MethodRef::Number(number) = method else {
            return "";
        };
        let conn = self.conns.get(from);
        match conn.and_then(|conn| conn.methods.get(number as usize)) {
            Some(Ok(Meant {
                named: Some(named), ..
            })) => named.name(),
            Some(Ok(meant)) => {
                let served = self.methods.definition(meant.served);
                served.map_or("", |served| served.name())
            }
            Some(Err(RefusedMethod(refused))) => refused.0.name(),
            None => "",
        }
    }
}
