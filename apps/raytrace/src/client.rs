//! Who asks for a picture: an endpoint that knows the servers.

use anyhow::Context;
use std::sync::Arc;
use std::time::Duration;
use wallaby::{Address, Endpoint};

/// Makes calls to the servers of a scene. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Client {
    endpoint: Endpoint,
    servers: Arc<[Address]>,
    traced: bool,
}

impl Client {
    /// A client of these servers, one for each part of the scene in their order.
    ///
    /// # Errors
    ///
    /// If there are none, or more than 256.
    pub fn new(endpoint: Endpoint, servers: Vec<Address>) -> anyhow::Result<Self> {
        anyhow::ensure!(
            (1..=256).contains(&servers.len()),
            "a scene has 1 to 256 servers, not {}",
            servers.len()
        );
        Ok(Self {
            endpoint,
            servers: servers.into(),
            traced: false,
        })
    }

    /// An endpoint for a client that listens at an address. A server that is lost shows after some seconds at most, a call that
    /// takes long is left alone. It is asked about seldom, as a call may have tens of thousands of branches.
    ///
    /// # Errors
    ///
    /// If it cannot listen.
    pub async fn listening(listen: &str, link_delay: Duration) -> anyhow::Result<Endpoint> {
        const PERIOD: Duration = Duration::from_secs(1);
        // Servers that are busy with rays are slow to accept.
        const DIAL: Duration = Duration::from_secs(10);
        const SILENCE: Duration = Duration::from_secs(15);
        const LONGEST_CALL: Duration = Duration::from_secs(1800);
        let builder = Endpoint::builder().listen(listen).dial_timeout(DIAL);
        let builder = builder.ping(PERIOD, SILENCE).default_deadline(LONGEST_CALL);
        wallaby_link::emulate(builder, link_delay, None)?
            .bind()
            .await
            .with_context(|| format!("the client can't listen at {listen}"))
    }

    /// The same, but every hop tells when it ran.
    #[must_use]
    pub fn traced(mut self) -> Self {
        self.traced = true;
        self
    }

    /// Calls to the server of a part. Parts that do not exist have no server; the first one will say so.
    pub fn server(&self, part: u16) -> wallaby::Client {
        let server = self
            .servers
            .get(usize::from(part))
            .unwrap_or(&self.servers[0]);
        let client = wallaby::Client::new(&self.endpoint, server);
        match self.traced {
            true => client.traced(),
            false => client,
        }
    }

    /// The servers, in the order of their parts.
    pub fn servers(&self) -> &[Address] {
        &self.servers
    }

    /// The number of a server, from 1.
    pub fn number(&self, server: &Address) -> Option<usize> {
        let place = self.servers.iter().position(|other| other == server);
        place.map(|place| place + 1)
    }

    /// What people call a server.
    pub fn name(&self, server: &Address) -> String {
        let number = self.number(server);
        number.map_or_else(|| server.to_string(), |number| format!("server {number}"))
    }

    /// What it calls from.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }
}
