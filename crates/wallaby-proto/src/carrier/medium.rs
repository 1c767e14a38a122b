//! What a stream and a session over datagrams do each in its own way, and what only [`Carrier`](super::Carrier) may ask of them: to
//! send, it looks for room and credit first.

use super::methods::{MethodDefinition, Naming};
use super::output::Priority;
use super::{Mark, Peering};
use crate::CallId;
use crate::carrier::event::SendRefusal;
use crate::wire::{Message, Request, Response};

/// The inside of a [`Carrier`](super::Carrier).
pub(crate) trait Medium {
    /// What is the same for all.
    fn peering(&self) -> &Peering;

    /// The same, to change it.
    fn peering_mut(&mut self) -> &mut Peering;

    /// Whether too much waits for a message of this priority, whose payload has so many bytes.
    fn is_congested(&self, priority: Priority, payload: usize) -> bool;

    /// Whether answers of this call wait for one that must not be overtaken.
    fn is_behind(&self, _call: CallId) -> bool {
        false
    }

    /// A request with options may need a body behind it: names that.
    ///
    /// # Errors
    ///
    /// If none can follow now, or ever.
    fn name_body(&mut self, request: &mut Request) -> Result<(), SendRefusal>;

    /// Adds a request for which there is room and credit to the output.
    fn put_request(&mut self, request: &mut Request, method: (&MethodDefinition, Naming)) -> Mark;

    /// Adds a response for which there is room and credit.
    fn put_response(&mut self, response: &Response) -> Mark;

    /// Adds a message that needs no credit.
    fn put_control(&mut self, message: &Message) -> Mark;

    /// Adds what concerns the connection alone.
    fn put_own(&mut self, kind: u8, body: &mut dyn FnMut(&mut Vec<u8>));
}
