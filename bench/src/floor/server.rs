//! What the servers of all floors have in common: whom they write to, and how a message is passed on.

use super::{await_departure, departure};
use crate::plan::{CLIENT, Targets};
use anyhow::{Context, Result, anyhow};
use std::sync::OnceLock;
use std::time::Duration;

/// The streams a server writes to.
pub(super) struct Outlets<W> {
    servers: Vec<Option<W>>,
    client: OnceLock<W>,
}

impl<W> Outlets<W> {
    /// Those to other servers, in their order; none to oneself. The client connects later.
    pub(super) fn new(servers: Vec<Option<W>>) -> Self {
        Self {
            servers,
            client: OnceLock::new(),
        }
    }

    pub(super) fn set_client(&self, stream: W) -> Result<()> {
        let set = self.client.set(stream);
        set.map_err(|_| anyhow!("a second client connected"))
    }

    pub(super) fn of(&self, target: u8) -> Result<&W> {
        let outlet = match target {
            CLIENT => self.client.get(),
            server => self
                .servers
                .get(usize::from(server))
                .and_then(Option::as_ref),
        };
        outlet.with_context(|| format!("no connection to {target}"))
    }
}

/// Passes a message on, of which so many bytes stand before the payload: `send` gets what goes to each target.
pub(super) fn pass_on(
    message: &mut [u8],
    prefix: usize,
    targets: &mut Targets,
    link: Duration,
    mut send: impl FnMut(u8, &[u8]) -> Result<()>,
) -> Result<()> {
    targets.of(&mut message[prefix..])?;
    await_departure(departure(link));
    for (place, &target) in targets.as_slice().iter().enumerate() {
        targets.address(place, &mut message[prefix..]);
        send(target, message)?;
    }
    Ok(())
}
