//! Whether an endpoint takes work: the service `wallaby.Health`, in the manner of gRPC's.
//!
//! Every endpoint serves it, and interceptors of the endpoint are asked about it as about all methods. `""` is the
//! endpoint as a whole, which serves unless the application says otherwise. So does each service of which the endpoint has a
//! method (`package.Service`). An application says more with [`Endpoint::set_health`](crate::Endpoint::set_health), also about
//! names that are no services. An endpoint that is [drained](crate::Endpoint::drain) tells who watches that it does not serve,
//! and refuses to be asked, as it refuses all new requests, with [`Unavailable`](wallaby_proto::Code::Unavailable).
//!
//! The program `wallaby` asks it (`wallaby health`). Who watches takes the place of one handler in the executor.
//!
//! ```
//! use wallaby::{Address, Client, Endpoint, Health, health};
//!
//! # async fn example(endpoint: Endpoint, server: Address) -> Result<(), wallaby::CallError> {
//! endpoint.set_health("example.Index", Health::NotServing); // until it is loaded
//!
//! let client = Client::new(&endpoint, server);
//! let state = client.call(&health::CHECK, ("example.Index".into(),)).await?;
//! # Ok(())
//! # }
//! ```

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use wallaby_proto::connection::MethodDefinition;
use wallaby_proto::{Code, Status};

use crate::driver::shared::Inner;
use crate::method::{Many, Method, One};
use crate::request::Request;
use crate::service::{Reserved, Service};

const NAME: &str = "wallaby.Health";

/// How the endpoint (`""`) or a service of it is. One that is not known is the status `NotFound`.
pub static CHECK: Method<(String,), One<Health>> = Method::new("wallaby.Health/check");

/// The same at once and each time that it has changed, [`Health::Unknown`] among it. It ends when the endpoint is drained. Of
/// changes that come faster than they can be sent only the last one may be told.
pub static WATCH: Method<(String,), Many<Health>> = Method::new("wallaby.Health/watch");

/// Whether work is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Health {
    /// Work is taken.
    Serving,
    /// It is known, and takes no work now.
    NotServing,
    /// It is not known.
    Unknown,
}

impl fmt::Display for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Serving => "serving",
            Self::NotServing => "not serving",
            Self::Unknown => "unknown",
        })
    }
}

/// What the application has said, and who waits for news of it.
#[derive(Debug, Default)]
pub(crate) struct HealthBoard(watch::Sender<Said>);

#[derive(Debug, Default)]
pub(crate) struct Said {
    services: BTreeMap<String, Health>,
    pub(crate) draining: bool,
}

impl HealthBoard {
    pub(crate) fn set(&self, service: &str, health: Health) {
        self.0.send_modify(|said| said.set(service, health));
    }

    pub(crate) fn drain(&self) {
        self.0.send_modify(|said| said.draining = true);
    }

    /// More is served.
    pub(crate) fn look_again(&self) {
        self.0.send_modify(|_| {});
    }
}

impl Said {
    pub(crate) fn set(&mut self, service: &str, health: Health) {
        self.services.insert(service.to_owned(), health);
    }

    /// How a service is, as far as that was said.
    pub(crate) fn of(&self, service: &str) -> Option<Health> {
        match self.draining {
            true => Some(Health::NotServing),
            false => self.services.get(service).copied(),
        }
    }
}

/// How a service is of which nothing was said, where these methods are served.
pub(crate) fn unsaid<'a>(
    mut methods: impl Iterator<Item = &'a Arc<MethodDefinition>>,
    service: &str,
) -> Health {
    let is_of = |method: &Arc<MethodDefinition>| {
        let rest = method.name().strip_prefix(service);
        rest.is_some_and(|rest| rest.starts_with('/'))
    };
    match service.is_empty() || methods.any(is_of) {
        true => Health::Serving,
        false => Health::Unknown,
    }
}

/// The same at an endpoint. The board is not borrowed meanwhile: if something has panicked in the endpoint, that is
/// found here, and what it sets off may write on the board.
fn unsaid_at(endpoint: &Inner, service: &str) -> Health {
    endpoint.ask(|core| {
        let methods = core.served.iter().map(|method| &method.definition);
        unsaid(methods, service)
    })
}

/// The answer of [`CHECK`].
pub(crate) fn checked(service: &str, health: Health) -> Result<Health, Status> {
    match health {
        Health::Unknown => {
            let message = format!("no service {service:?} here");
            Err(Status::new(Code::NotFound, message))
        }
        known => Ok(known),
    }
}

/// The service.
pub(crate) fn service() -> Service {
    Service::new(NAME)
        .reserved(Reserved::new(NAME))
        .method(&CHECK, |request, (service,)| check(request, service))
        .method(&WATCH, |request, (service,)| watch(request, service))
}

async fn check(request: Request<One<Health>>, service: String) -> Result<(), Status> {
    let endpoint = &request.handling.endpoint;
    let said = endpoint.health.0.borrow().of(&service);
    let health = said.unwrap_or_else(|| unsaid_at(endpoint, &service));
    let health = checked(&service, health)?;
    Ok(request.respond(health).await?)
}

async fn watch(request: Request<Many<Health>>, service: String) -> Result<(), Status> {
    let endpoint = &request.handling.endpoint;
    let mut board = endpoint.health.0.subscribe();
    let mut told = None;
    loop {
        let (said, last) = {
            let said = board.borrow_and_update();
            (said.of(&service), said.draining)
        };
        let health = said.unwrap_or_else(|| unsaid_at(endpoint, &service));
        if told != Some(health) {
            request.reply(health).await?;
            told = Some(health);
        }
        if last || board.changed().await.is_err() {
            return Ok(());
        }
    }
}
