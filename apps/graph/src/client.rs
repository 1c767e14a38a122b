//! Who asks: an endpoint that knows the servers.

use crate::fact::Vertex;
use crate::placement::Placement;
use wallaby::{Answer, Call, CallError, Endpoint, Trace};

/// Makes the calls of queries and inserts. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Client {
    endpoint: Endpoint,
    placement: std::sync::Arc<Placement>,
    traced: bool,
}

/// The answers of a call that is complete, and its tree of hops.
#[derive(Debug)]
pub struct Answers<T> {
    /// In the order in which they came.
    pub items: Vec<T>,
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
        self.server(self.placement.index(vertex))
    }

    /// Calls to the server of this number, from 0.
    pub fn server(&self, index: usize) -> wallaby::Client {
        let server = &self.placement.servers()[index];
        let client = wallaby::Client::new(&self.endpoint, server);
        match self.traced {
            true => client.traced(),
            false => client,
        }
    }

    /// All answers of a call.
    ///
    /// # Errors
    ///
    /// The first status or failure.
    pub async fn collect<A: Answer>(&self, mut call: Call<A>) -> Result<Answers<A::Item>, CallError>
    where
        wallaby::codec::Postcard: wallaby::codec::Codec<A::Item>,
    {
        let mut items = Vec::new();
        while let Some(answer) = call.next().await {
            items.push(answer?);
        }
        Ok(Answers {
            items,
            trace: self.traced.then(|| call.trace()),
        })
    }

    /// The servers.
    pub fn placement(&self) -> &Placement {
        &self.placement
    }

    /// What it calls from.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }
}

impl<T> Answers<Vec<T>> {
    /// What a call has found that answers several rows at a time.
    pub fn concat(self) -> Answers<T> {
        Answers {
            items: self.items.into_iter().flatten().collect(),
            trace: self.trace,
        }
    }
}

impl<T> Answers<Option<T>> {
    /// What a call with one answer has found, as rows.
    pub fn found(self) -> Answers<T> {
        Answers {
            items: self.items.into_iter().flatten().collect(),
            trace: self.trace,
        }
    }
}
