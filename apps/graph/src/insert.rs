//! How an insert reaches all vertices that it concerns: one call that is forwarded from server to server.
//!
//! ```text
//!   client ──▶ the comment ──▶ the message above it ──▶ its author ──▶ client
//! ```
//!
//! The first server learns its fact and forwards the others to the server of the next one; the last answers. A new vertex
//! is the first: only when it is there do others point to it. So a query sees a comment with all that belongs to it, or no
//! trace of it. Facts can be learned twice without harm, so that an insert that was lost on its way may be made again.

use crate::client::Client;
use crate::fact::Fact;
use crate::model::Insert;
use crate::server::Server;
use wallaby::{CallError, One, Request, Retry, Status};

/// Takes inserts.
#[wallaby::service(package = "graph")]
pub trait Inserts {
    /// Learns the facts, one after the other, each at its own server: the first of them is here.
    async fn learn(facts: Vec<Fact>);
}

#[wallaby::serve]
impl Inserts for Server {
    async fn learn(&self, request: Request<One<()>>, facts: Vec<Fact>) -> Result<(), Status> {
        let mut facts = facts.into_iter().peekable();
        while let Some(fact) = facts.next_if(|fact| self.seat.has(fact.vertex())) {
            Server::learn(self, fact)?;
        }
        let Some(next) = facts.peek() else {
            return Ok(request.respond(()).await?);
        };
        let server = self.at(next.vertex());
        let rest = inserts::learn(facts.collect());
        Ok(request.forward(server, rest).await?)
    }
}

/// Inserts something, and is done when every server that it concerns has it. The status is `AlreadyExists` if something
/// else has its id.
pub async fn insert(client: &Client, insert: Insert) -> Result<(), CallError> {
    const ATTEMPTS: u32 = 3;
    let facts = insert.facts();
    let Some(first) = facts.first() else {
        return Ok(());
    };
    let server = client.at(first.vertex()).retry(Retry::idempotent(ATTEMPTS));
    inserts::within(server).learn(facts).await
}
