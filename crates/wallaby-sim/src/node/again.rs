//! Initial requests that may be sent again (thesis 7.3).

use wallaby_proto::RequestId;
use wallaby_proto::wire::{Message, Request};

use super::liveness::location;
use super::peers::{Destination, Parcel};
use super::{Node, Short};
use crate::context::{Context, note};
use crate::coverage::Point;

/// The initial requests of a call, kept for a further attempt.
#[derive(Debug, Default)]
pub(super) struct Again {
    kept: Vec<(u32, Request)>,
}

impl Again {
    pub(super) fn keep(&mut self, server: u32, request: &Request) {
        self.kept.push((server, request.clone()));
    }
}

impl Node {
    /// The watch wants an initial request executed again.
    pub(super) fn send_again(
        &mut self,
        sequence: u64,
        id: RequestId,
        attempt: u32,
        context: &mut Context<'_>,
    ) {
        let now = self.now();
        let Some(call) = self.calls.get_mut(&sequence) else {
            return;
        };
        let mut kept = call.again.kept.iter();
        let Some((server, request)) = kept.find(|(_, request)| request.id == id) else {
            return;
        };
        let (server, mut request) = (*server, request.clone());
        request.options.get_or_insert_default().attempt = attempt;
        call.unsent.insert(id);
        context.hit(Point::Resent);
        context.oracle.reruns.again(request.call);
        if let Some(watch) = &mut call.watch {
            let at = location(context.plan, server);
            watch.sent(&mut call.initiator, id, at, now);
        }
        let message = Message::Request(request);
        note!(context, self.index, "sends again: {}", Short(&message));
        self.post(
            Parcel {
                message,
                to: Destination::Server(server),
                job: None,
                released: None,
                waits: 0,
            },
            context,
        );
    }
}
