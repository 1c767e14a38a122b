//! Answers to which no way leads, and who is asked to prove that it is their initiator.

use wallaby_proto::call::records::{Session, invitation};
use wallaby_proto::call::waiting::Awaited;
use wallaby_proto::numbers::MOST_MOVES;
use wallaby_proto::wire::Message;
use wallaby_proto::{CallId, NodeId, Token};

use super::Node;
use super::peers::{Destination, Parcel, session};
use crate::context::{Context, note};
use crate::coverage::Point;
use crate::network::Socket;

impl Node {
    /// No way leads there now. Answers wait for one; whatever else is said again, or asked for.
    pub(super) fn wait_for_a_way(&mut self, parcel: Parcel, context: &mut Context<'_>) {
        let what = super::Short(&parcel.message);
        note!(context, self.index, "has no way for {what}");
        context
            .oracle
            .relayed(context.queue.now(), &parcel.message, None);
        let call = parcel.message.call();
        if parcel.waits >= MOST_MOVES {
            return self.drop_answer(&parcel, context);
        }
        let Some(token) = parcel.message.token() else {
            return self.drop_answer(&parcel, context);
        };
        let (request, payload) = match &parcel.message {
            Message::Response(response) => (response.request, response.payload.len()),
            Message::End(end) => (end.request, 0),
            _ => return self.drop_answer(&parcel, context),
        };
        if let Destination::Onward(distance) = parcel.to
            && self.records.way_onward(call, token, distance).is_none()
        {
            return self.drop_answer(&parcel, context);
        }
        let awaited = Awaited {
            call,
            token,
            request,
        };
        for claiming in self.claiming(call.initiator) {
            self.invite(claiming, awaited, context);
        }
        let now = self.now();
        // Its handler goes on: what it does next need not concern the initiator.
        self.accepted(&parcel);
        let parcel = Parcel {
            job: None,
            waits: parcel.waits + 1,
            ..parcel
        };
        let came = self.records.way_back(call, token);
        let came = came.unwrap_or(Session(0)); // it was forgotten
        match self.waiting.put((awaited, came), payload, parcel, now) {
            Ok(_) => context.hit(Point::AnswerWaits),
            Err((_, parcel)) => self.drop_answer(&parcel, context),
        }
    }

    /// Asks whoever is there to show the token of a call, as only its initiator would.
    pub(super) fn invite(&mut self, to: Socket, of: Awaited, context: &mut Context<'_>) {
        context.hit(Point::Invited);
        let pong = invitation(of.call, of.token, of.request, self.id);
        self.post_over(to, Message::Pong(pong), context);
    }

    /// A connection opened whose other end says that it is this life. If answers wait for that, it is asked to prove it.
    pub(super) fn invite_claiming(&mut self, to: Socket, node: NodeId, context: &mut Context<'_>) {
        for awaited in self.waiting.of(node) {
            self.invite(to, awaited, context);
        }
    }

    /// An answer goes back over the connection that its request came over. If its initiator seems to be connected itself,
    /// it is asked to prove it.
    pub(super) fn invite_from(
        &mut self,
        came: Socket,
        message: &Message,
        context: &mut Context<'_>,
    ) {
        let request = match message {
            Message::Response(response) => response.request,
            Message::End(end) => end.request,
            Message::Pong(pong) => pong.request,
            _ => return,
        };
        let Some(token) = message.token() else { return };
        let call = message.call();
        for claiming in self.claiming(call.initiator) {
            let claims = (session(claiming), self.id);
            let named = (call, token, request);
            if let Some(pong) = self.records.invite(named, session(came), claims) {
                context.hit(Point::Invited);
                self.post_over(claiming, Message::Pong(pong), context);
            }
        }
    }

    pub(super) fn post_over(&mut self, to: Socket, message: Message, context: &mut Context<'_>) {
        let parcel = Parcel {
            message,
            to: Destination::Over(to),
            job: None,
            released: None,
            waits: 0,
        };
        self.post(parcel, context);
    }

    /// Somebody has shown the token of a call: what waits for a way to its initiator goes on.
    pub(super) fn found_a_way(&mut self, call: CallId, token: Token, context: &mut Context<'_>) {
        let waiting: Vec<_> = std::iter::from_fn(|| self.waiting.take(call, token)).collect();
        if !waiting.is_empty() {
            context.hit(Point::AnswerFoundWay);
        }
        self.post_all(waiting, context);
    }

    /// Answers that have waited for too long.
    pub(super) fn give_up_answers(&mut self, context: &mut Context<'_>) {
        while let Some(parcel) = self.waiting.expired(self.now()) {
            self.drop_answer(&parcel, context);
        }
    }

    /// A message goes nowhere.
    pub(super) fn drop_answer(&mut self, parcel: &Parcel, context: &mut Context<'_>) {
        context.hit(Point::AnswerNowhere);
        self.accepted(parcel);
        if let Message::Response(response) = &parcel.message
            && let Some(passage) =
                self.passages
                    .remove(&(response.call, response.request, response.index))
        {
            self.records.passed_on(passage, None);
        }
        if let Some((ticket, sent)) = parcel.released {
            self.records.dropped(ticket, sent);
        }
    }
}
