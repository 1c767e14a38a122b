//! Why there is no picture: which server, and by which hops the rays came to it.

use crate::client::Client;
use thiserror::Error;
use wallaby::{Address, CallError, Failure, RequestId};

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
        let address = error.server().cloned();
        let way = match error {
            CallError::Status(status) => status.request().map(way_of).unwrap_or_default(),
            CallError::Failed(Failure::Lost(loss)) => {
                let steps = loss.path.iter().map(|step| &step.server);
                let servers = steps.chain([&loss.server]);
                let way: Vec<String> = servers
                    .map(|server| place(client, server.address.as_ref()))
                    .collect();
                format!("client ─▶ {}", way.join(" ─▶ "))
            }
            CallError::Failed(Failure::NotSent { .. }) => "client".to_owned(),
            _ => String::new(),
        };
        let server = address.as_ref().and_then(|address| {
            let number = client
                .servers()
                .iter()
                .position(|server| server == address)?;
            Some(number + 1)
        });
        let who = match &address {
            Some(address) => format!("{} ({address})", client.name(address)),
            None => "a server".to_owned(),
        };
        let way = match way.is_empty() {
            true => String::new(),
            false => format!("; rays came to it by {way}"),
        };
        let sentence = format!("{who} failed in the middle of the work{way}: {error}");
        Self { sentence, server }
    }
}

/// The way to a request that a status names: its place in the call's tree.
fn way_of(request: RequestId) -> String {
    format!("client ─▶ request {request}")
}

fn place(client: &Client, address: Option<&Address>) -> String {
    address.map_or_else(|| "?".to_owned(), |address| client.name(address))
}
