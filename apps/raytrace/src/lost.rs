//! Why there is no picture: which server, and by which hops the rays came to it.

use crate::client::Client;
use thiserror::Error;
use wallaby::{Address, CallError, Failure};

/// A picture that was not finished because of the servers.
#[derive(Debug, Error)]
#[error("{sentence}")]
pub struct Lost {
    sentence: String,
    /// The server, where that is known: its number from 1.
    pub server: Option<usize>,
}

impl Lost {
    /// Of a call by this client.
    pub fn new(client: &Client, error: &CallError) -> Self {
        let name = |address: Option<&Address>| {
            address.map_or_else(|| "?".to_owned(), |address| client.name(address))
        };
        let way = match error {
            CallError::Status(status) => match status.request() {
                Some(request) => format!("; rays came to it by client ─▶ request {request}"),
                None => String::new(),
            },
            CallError::Failed(Failure::Lost(loss)) => {
                let steps = loss.path.iter().map(|step| &step.server);
                let servers = steps.chain([&loss.server]);
                let way: Vec<String> = servers
                    .map(|server| name(server.address.as_ref()))
                    .collect();
                format!("; rays came to it by client ─▶ {}", way.join(" ─▶ "))
            }
            CallError::Failed(Failure::NotSent { .. }) => "; rays came to it by client".to_owned(),
            _ => String::new(),
        };
        let who = match error.server() {
            Some(address) => format!("{} ({address})", client.name(address)),
            None => "a server".to_owned(),
        };
        let sentence = format!("{who} failed in the middle of the work{way}: {error}");
        let server = error.server().and_then(|server| client.number(server));
        Self { sentence, server }
    }
}
