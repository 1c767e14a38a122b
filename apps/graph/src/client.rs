//! Who asks: an endpoint that knows the servers.

use crate::model::Vertex;
use crate::placement::Placement;
use std::sync::Arc;
use wallaby::{Call, CallError, Endpoint, Trace};

/// Makes the calls of queries and inserts. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Client {
    endpoint: Endpoint,
    placement: Arc<Placement>,
    traced: bool,
}

/// The rows of a call that is complete, and its tree of hops.
#[derive(Debug)]
pub struct Answers<R> {
    /// In the order in which they came.
    pub rows: Vec<R>,
    /// The tree, if the client traces.
    pub trace: Option<Trace>,
}

impl Client {
    /// A client of these servers. Servers answer it directly if the endpoint listens, else along the way that its
    /// requests went.
    pub fn new(endpoint: Endpoint, placement: Placement) -> Self {
        Self {
            endpoint,
            placement: placement.into(),
            traced: false,
        }
    }

    /// The same, but every hop tells when it ran.
    #[must_use]
    pub fn traced(mut self) -> Self {
        self.traced = true;
        self
    }

    /// Calls to the server of a vertex.
    pub fn at(&self, vertex: impl Into<Vertex>) -> wallaby::Client {
        self.call(self.placement.server(vertex))
    }

    /// Calls to the server of this number, from 0, if there is one.
    pub fn server(&self, number: u32) -> Option<wallaby::Client> {
        let server = self.placement.servers().get(number as usize);
        server.map(|server| self.call(server))
    }

    /// Calls to each server.
    pub fn servers(&self) -> impl Iterator<Item = wallaby::Client> {
        let servers = self.placement.servers().iter();
        servers.map(|server| self.call(server))
    }

    /// All rows of a call, of which an answer has some: one or none (`Option`), or any number (`Vec`).
    pub async fn rows<A: wallaby::Answers, R>(
        &self,
        mut call: Call<A>,
    ) -> Result<Answers<R>, CallError>
    where
        A::Item: IntoIterator<Item = R>,
        wallaby::codec::Postcard: wallaby::codec::Codec<A::Item>,
    {
        let mut rows = Vec::new();
        while let Some(answer) = call.next().await {
            rows.extend(answer?);
        }
        let trace = self.traced.then(|| call.trace());
        Ok(Answers { rows, trace })
    }

    /// The servers.
    pub fn placement(&self) -> &Placement {
        &self.placement
    }

    /// What it calls from.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    fn call(&self, server: &wallaby::Address) -> wallaby::Client {
        let client = wallaby::Client::new(&self.endpoint, server);
        match self.traced {
            true => client.traced(),
            false => client,
        }
    }
}
