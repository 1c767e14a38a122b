//! What Wallaby adds to the nodes: the methods by which endpoints that host them talk. Read this first.
//!
//! A lookup is one call. Each node on its way forwards the request, and the owner of the place answers the client straight
//! (thesis, figure 3.2):
//!
//! ```text
//!   client ──▶ node ──▶ node ──▶ … ──▶ owner ──▶ client
//! ```
//!
//! A put goes on from the owner along the nodes that keep copies; the last of these answers.

use crate::host::Host;
use crate::id::RingId;
use crate::message::{Ask, Copying, Found, Lookup, Refusal, Step, Told};
use crate::node::Action;
use wallaby::{One, Request, Status};

/// What ring nodes and their clients ask.
#[wallaby::service(package = "chord")]
pub trait Ring {
    /// A lookup that nodes forward.
    async fn find(lookup: Lookup) -> Result<Found, Refusal>;
    /// A copy that the nodes that keep it forward.
    async fn copy(copying: Copying) -> Result<Found, Refusal>;
    /// One step of a lookup that the client drives.
    async fn step(lookup: Lookup) -> Step;
    /// What one node asks of another.
    async fn ask(node: RingId, ask: Ask) -> Result<Told, Refusal>;
}

#[wallaby::serve]
impl Ring for Host {
    async fn find(
        &self,
        request: Request<One<Result<Found, Refusal>>>,
        lookup: Lookup,
    ) -> Result<(), Status> {
        let action = self.act_on_lookup(lookup).await;
        self.carry_out(action, request).await
    }

    async fn copy(
        &self,
        request: Request<One<Result<Found, Refusal>>>,
        copying: Copying,
    ) -> Result<(), Status> {
        let action = self.act_on_copying(copying);
        self.carry_out(action, request).await
    }

    async fn step(&self, lookup: Lookup) -> Step {
        match self.act_on_lookup(lookup).await {
            Action::Answer(found) => Step::Done(found),
            Action::Forward(peer, lookup) => Step::Next(peer.host, lookup),
            Action::Refuse(refusal) => Step::Refused(refusal),
            Action::Confirm(peer, _) | Action::Copy(peer, _) => {
                Step::Refused(Refusal::NotReady(peer.id))
            }
        }
    }

    async fn ask(&self, node: RingId, ask: Ask) -> Result<Told, Refusal> {
        self.answer(node, ask)
    }
}

impl Host {
    async fn carry_out(
        &self,
        action: Action,
        request: Request<One<Result<Found, Refusal>>>,
    ) -> Result<(), Status> {
        match action {
            Action::Answer(found) => request.respond(Ok(*found)).await?,
            Action::Refuse(refusal) => request.respond(Err(refusal)).await?,
            Action::Forward(peer, lookup) => {
                request.forward(peer.host, ring::find(*lookup)).await?;
            }
            Action::Copy(peer, copying) => {
                request.forward(peer.host, ring::copy(*copying)).await?;
            }
            Action::Confirm(peer, _) => {
                request.respond(Err(Refusal::NotReady(peer.id))).await?;
            }
        }
        Ok(())
    }
}
