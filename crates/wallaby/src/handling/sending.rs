//! How what a handler sends leaves: at once if there is a connection and credit, else in order from a lane of its own.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::Poll;
use std::time::Duration;

use wallaby_proto::call::records::{Frozen, Output, Sent};
use wallaby_proto::call::server::{Delegated, Inherited, Outbound, Released, undelivered};
use wallaby_proto::call::waiting::Awaited;
use wallaby_proto::connection::{Features, Refusal};
use wallaby_proto::detach::detach;
use wallaby_proto::wire::{MAX_FRAME, Message, MethodRef, ReplyTo, Request, Response};
use wallaby_proto::{Address, Code, Status};

use super::{Destination, Handling, Sending};
use crate::body::{self, Attached};
use crate::driver::peer::{Peer, Place, Refused};
use crate::error::ConnectError;
use crate::liveness::{child, session};
use crate::timer::{self, Instant};
use wallaby_proto::call::server::make_too_large;
use wallaby_proto::error::hint;
use wallaby_proto::numbers::{MOST_MOVES, SMALL_ANSWER};

/// How long after the deadline messages of a call may still wait: its initiator's clock decides, not this one.
pub(super) const LATE: Duration = Duration::from_secs(1);

/// What waits of a request, each direction for itself.
#[derive(Debug, Default)]
pub(super) struct Lanes {
    answers: Lane,
    requests: Lane,
    /// An answer has waited in vain for a way to the initiator: no other waits.
    wayless: AtomicBool,
    /// Of a request without a record, whose status waits: who is told its place.
    pub(super) refused: OnceLock<Place>,
}

impl Lanes {
    fn lane(&self, onward: bool) -> &Lane {
        if onward {
            &self.requests
        } else {
            &self.answers
        }
    }
}

/// Messages of a request, all answers or all onward, that wait for a connection or for credit. One task sends them in
/// order, as long as there are any.
#[derive(Debug, Default)]
struct Lane {
    /// How many wait, the one included that the task is about to send.
    count: AtomicUsize,
    parcels: Mutex<VecDeque<Parcel>>,
}

impl Lane {
    fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    /// Adds a parcel; returns whether it is alone, and a task is needed.
    fn push(&self, parcel: Parcel) -> bool {
        let mut parcels = self.lock();
        parcels.push_back(parcel);
        self.count.fetch_add(1, Ordering::AcqRel) == 0
    }

    /// The parcel to send next; it still counts as waiting.
    fn first(&self) -> Option<Parcel> {
        self.lock().pop_front()
    }

    /// It was sent; returns whether no other waits.
    fn done(&self) -> bool {
        let _parcels = self.lock();
        self.count.fetch_sub(1, Ordering::AcqRel) == 1
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Parcel>> {
        self.parcels.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ready when what could not be sent at once was sent.
pub(crate) type Delivery = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A message ready for its connection.
#[derive(Debug)]
pub(super) enum Parcel {
    Request(Destination, Request),
    /// A response, or the end of a branch.
    Answer(Message),
}

impl Parcel {
    /// Whether it travels in parts.
    fn is_large(&self) -> bool {
        matches!(self, Self::Answer(Message::Response(response)) if response.payload.len() > MAX_FRAME)
    }

    /// It waits from now on.
    fn detach(&mut self) {
        match self {
            Self::Request(_, request) => detach(&mut request.payload),
            Self::Answer(answer) => answer.detach(),
        }
    }

    fn payload_length(&self) -> usize {
        match self {
            Self::Answer(Message::Response(response)) => response.payload.len(),
            Self::Request(..) | Self::Answer(_) => 0,
        }
    }

    /// What its record calls it.
    fn sent(&self) -> Sent {
        match self {
            Self::Request(..) => Sent::Delegation,
            Self::Answer(Message::Response(response)) => Sent::Response(response.index),
            Self::Answer(_) => Sent::End,
        }
    }

    fn is_onward(&self) -> bool {
        matches!(self, Self::Request(..))
    }

    /// Whether the call's credit is needed for it.
    fn is_counted(&self) -> bool {
        matches!(self, Self::Answer(Message::Response(response)) if is_counted(response))
    }
}

/// The only answer of a branch need not be counted if it is small.
fn is_counted(response: &Response) -> bool {
    !response.last || response.index > 0 || response.payload.len() > SMALL_ANSWER
}

/// Ready when both are.
fn in_order(before: Option<Delivery>, last: Option<Delivery>) -> Option<Delivery> {
    match (before, last) {
        (Some(before), Some(last)) => Some(Box::pin(async {
            before.await;
            last.await;
        })),
        (before, last) => before.or(last),
    }
}

impl Handling {
    /// Waits until no earlier message of the same kind waits, or the request is stopped. So little waits and order is
    /// kept; and a handler that gives up waiting does so before its message has a number.
    #[inline(never)]
    pub(crate) fn ready(self: Arc<Self>, onward: bool) -> Delivery {
        Box::pin(async move {
            loop {
                let changed = self.changed.notified();
                if !self.has_waiting(onward) || self.is_cancelled() {
                    return;
                }
                changed.await;
            }
        })
    }

    /// Whether an earlier message waits: one onward, or an answer.
    pub(crate) fn has_waiting(&self, onward: bool) -> bool {
        let lanes = self.lanes.get();
        lanes.is_some_and(|lanes| !lanes.lane(onward).is_empty())
    }

    fn lane(&self, onward: bool) -> &Lane {
        self.lanes.get_or_init(Box::default).lane(onward)
    }

    /// Sends at once what can be sent; the rest leaves in order, and can be waited for.
    pub(super) fn dispatch(self: &Arc<Self>, released: Released<Destination>) -> Option<Delivery> {
        let before = released.before;
        let before = before.and_then(|outbound| self.dispatch_one(*outbound));
        in_order(before, self.dispatch_one(released.last))
    }

    /// The same with messages of which each may be missing.
    pub(super) fn dispatch_both(
        self: &Arc<Self>,
        released: [Option<Outbound<Destination>>; 2],
    ) -> Option<Delivery> {
        let [before, last] = released;
        let before = before.and_then(|outbound| self.dispatch_one(outbound));
        let last = last.and_then(|outbound| self.dispatch_one(outbound));
        in_order(before, last)
    }

    /// The same with a single message.
    pub(super) fn dispatch_one(
        self: &Arc<Self>,
        outbound: Outbound<Destination>,
    ) -> Option<Delivery> {
        match outbound {
            Outbound::Response(response) => self.dispatch_answer(Message::Response(response)),
            Outbound::End(end) => self.dispatch_answer(Message::End(end)),
            Outbound::Request(delegated) => self.dispatch_request(delegated),
        }
    }

    fn dispatch_answer(self: &Arc<Self>, answer: Message) -> Option<Delivery> {
        let mut parcel = Parcel::Answer(answer);
        // A large one gets its place when its last part leaves: until then its record says that it waits.
        let waits = self.has_waiting(false) || parcel.is_large();
        if !waits && let Some(output) = self.attempt(&mut parcel, None) {
            self.note_released(&parcel, Some(output));
            return None;
        }
        self.note_released(&parcel, None);
        match parcel {
            Parcel::Answer(answer) => self.send_released(answer),
            Parcel::Request(..) => None,
        }
    }

    /// Sends an answer of which its record knows already.
    pub(super) fn send_released(self: &Arc<Self>, answer: Message) -> Option<Delivery> {
        let mut parcel = Parcel::Answer(answer);
        let place = self.place(&parcel);
        if !self.has_waiting(false) && self.attempt(&mut parcel, place).is_some() {
            return None;
        }
        self.deliver_later(parcel);
        Some(Arc::clone(self).ready(false))
    }

    #[inline(never)]
    fn dispatch_request(self: &Arc<Self>, delegated: Delegated<Destination>) -> Option<Delivery> {
        let peer = self.endpoint.pool.ready(&delegated.to.server);
        let mut parcel = match self.pack(delegated, peer.as_ref()) {
            Ok((to, request)) => Parcel::Request(to, request),
            Err((to, request, frozen)) => {
                let status = frozen.status();
                self.answer_for(&to, &request, status.code(), status.message());
                return None;
            }
        };
        let sent = match (peer, &mut parcel) {
            (Some(peer), Parcel::Request(to, request))
                if !self.has_waiting(true) && !self.must_follow(request) =>
            {
                self.attempt_request(&peer, to, request)
            }
            _ => false,
        };
        if sent {
            return None;
        }
        self.deliver_later(parcel);
        Some(Arc::clone(self).ready(true))
    }

    /// The record of the request learns of an answer, and where it stands in a connection's output.
    fn note_released(&self, parcel: &Parcel, output: Option<Output>) {
        if let (Some(ticket), Parcel::Answer(answer)) = (self.ticket, parcel) {
            let moment = self.moment();
            self.endpoint
                .liveness
                .released(ticket, answer, output, moment);
        }
    }

    /// The time that a delegation has which has waited; `None` if it must not be sent any more.
    fn time_left(&self) -> Option<Duration> {
        let left = self.remaining();
        let may = self
            .ticket
            .is_none_or(|ticket| self.endpoint.liveness.time_left(ticket).is_some());
        (may && !left.is_zero()).then_some(left)
    }

    /// The time, as far as it matters to records: a handler that has not waited yet began just now.
    fn moment(&self) -> Instant {
        if self.listed.load(Ordering::Relaxed) {
            Instant::now()
        } else {
            self.arrived
        }
    }

    /// Whose record waits for a parcel's place in a connection's output.
    fn place(&self, parcel: &Parcel) -> Option<Place> {
        match self.ticket {
            Some(ticket) => Some(Place::Released(ticket, parcel.sent())),
            None => self.lanes.get()?.refused.get().copied(),
        }
    }

    /// A parcel will never be sent.
    fn note_dropped(&self, parcel: &Parcel) {
        if let Some(place) = self.place(parcel) {
            self.endpoint.liveness.dropped(place);
        }
    }

    /// Leaves a parcel to a task, one for each direction: it has its number, so the call cannot complete without it,
    /// even if the handler gives up waiting.
    #[inline(never)]
    fn deliver_later(self: &Arc<Self>, parcel: Parcel) {
        let onward = parcel.is_onward();
        if !self.lane(onward).push(parcel) {
            return;
        }
        let handling = Arc::clone(self);
        self.endpoint.runtime.spawn(async move {
            let lane = handling.lane(onward);
            let mut done = false;
            while !done && let Some(parcel) = lane.first() {
                handling.deliver(parcel).await;
                done = lane.done();
                handling.changed.notify_waiters();
            }
        });
    }

    /// The request for the next server, or one that must not be sent, and why.
    pub(super) fn pack(
        &self,
        delegated: Delegated<Destination>,
        peer: Option<&Arc<Peer>>,
    ) -> Result<(Destination, Request), (Destination, Request, Frozen)> {
        let to = child(&delegated.to.server, peer);
        let (liveness, now) = (&self.endpoint.liveness, Instant::now());
        let noted = match self.ticket {
            Some(ticket) => liveness.delegated(ticket, &delegated, to, now),
            None => Err(Frozen::Aborted),
        };
        let mut inherited = Inherited {
            reply_to: self.onward_reply_to(),
            deadline: Some(self.deadline.saturating_duration_since(now)),
            oldest: self.oldest,
            options: (self.options.as_ref()).map(|options| Box::new(options.inherited())),
        };
        if delegated.to.body.is_some() {
            // Its number is the connection's business.
            inherited.options.get_or_insert_default().body = Some(0);
        }
        if let Ok(carried) = &noted {
            inherited.oldest = carried.oldest.unwrap_or(self.oldest);
            if carried.quiet.is_some() {
                inherited.options.get_or_insert_default().quiet = carried.quiet;
            }
        }
        let number = MethodRef::Number(0);
        let packed = delegated.into_request(self.call, self.token, number, inherited);
        match noted {
            Ok(_) => Ok(packed),
            Err(frozen) => Err((packed.0, packed.1, frozen)),
        }
    }

    /// Where servers further on send their answers.
    fn onward_reply_to(&self) -> ReplyTo {
        match &self.reply_to {
            ReplyTo::Peer => match self.peer.hello().and_then(|hello| hello.address.clone()) {
                Some(address) => ReplyTo::At(address),
                None => ReplyTo::Relay,
            },
            other => other.clone(),
        }
    }

    /// Whether a message would be accepted without waiting, as far as can be told.
    pub(super) fn has_room(&self, message: &Sending) -> bool {
        match message {
            Sending::Answer(_) if self.is_own_call() => self.has_own_room(),
            Sending::Answer(_) => self
                .way_back()
                .is_none_or(|peer| peer.takes_responses(self.call)),
            Sending::Onward(to, _) => self
                .endpoint
                .pool
                .ready(&to.server)
                .is_none_or(|peer| peer.takes_requests()),
        }
    }

    /// Sends at once if there is a connection and credit; `None` if the parcel has to wait.
    pub(super) fn attempt(
        self: &Arc<Self>,
        parcel: &mut Parcel,
        place: Option<Place>,
    ) -> Option<Output> {
        match parcel {
            Parcel::Request(to, request) => {
                let peer = self.endpoint.pool.ready(&to.server)?;
                let sent = self.attempt_request(&peer, to, request);
                sent.then(|| self.no_output())
            }
            parcel if self.is_own_call() && parcel.is_counted() && !self.has_own_room() => None,
            Parcel::Answer(message) if self.is_own_call() => {
                if let Some(place) = place {
                    self.endpoint.liveness.placed(place, self.no_output());
                }
                self.endpoint.handle_answer(None, message);
                Some(self.no_output())
            }
            Parcel::Answer(message) => {
                let peer = self.way_back()?;
                self.attempt_answer(&peer, message, place)
            }
        }
    }

    /// The place of what does not stand in any output.
    fn no_output(&self) -> Output {
        Output {
            session: session(&self.peer),
            mark: 0,
        }
    }

    fn attempt_request(
        self: &Arc<Self>,
        peer: &Arc<Peer>,
        to: &Destination,
        request: &mut Request,
    ) -> bool {
        if self.endpoint.is_closed() {
            return false;
        }
        if peer
            .hello()
            .is_some_and(|hello| hello.features.contains(Features::AGE))
        {
            request.options.get_or_insert_default().age = Some(self.age());
        }
        self.endpoint.seal(request, peer);
        let place = self.ticket;
        let place = place.map(|ticket| Place::Released(ticket, Sent::Delegation));
        match peer.try_request(request, &to.method, place) {
            Ok(()) => {
                if let Some(body) = &to.body {
                    self.send_body(body, peer, request);
                }
                // Its server's life may not have been known when it was released.
                if let (true, Some(ticket), Some(node)) =
                    (self.has_waiting(true), self.ticket, peer.node())
                {
                    self.endpoint.liveness.taken(ticket, request.id, node);
                }
                true
            }
            Err(Refused::Ended(_) | Refused::Now(Refusal::Blocked | Refusal::NotOpen)) => false,
            Err(Refused::Now(refusal)) => {
                let hint = match refusal {
                    Refusal::TooLarge { limit, .. } => hint(limit, peer.is_over_datagrams()),
                    _ => "",
                };
                let why = format!("{refusal}{hint}");
                self.answer_for(to, request, Code::ResourceExhausted, &why);
                true
            }
        }
    }

    /// The body of a delegation follows it, whether the handler goes on or not.
    #[cold]
    #[inline(never)]
    fn send_body(&self, body: &Attached, peer: &Arc<Peer>, request: &Request) {
        let number = request.options.as_ref().and_then(|options| options.body);
        if let (Some(body), Some(number)) = (body.take(), number) {
            let (peer, deadline) = (Arc::clone(peer), self.deadline + LATE);
            let over = async move {
                timer::sleep_until(deadline).await;
                "the deadline of its call has passed".to_owned()
            };
            let sending = body::send(body, peer, number, over);
            self.endpoint.runtime.spawn(sending);
        }
    }

    fn attempt_answer(
        &self,
        peer: &Arc<Peer>,
        message: &mut Message,
        place: Option<Place>,
    ) -> Option<Output> {
        // Its connections end one after another: what the end of one does to a handler is not told over the next.
        if self.endpoint.is_closed() {
            return None;
        }
        // Not so for what the initiator delegated to itself on the way: it sent that as a server.
        let own = peer.id == self.peer.id && self.reply_to == ReplyTo::Peer;
        let token = (!own).then_some(self.token);
        match message {
            Message::Response(response) => {
                response.token = token;
                let counted = !own || is_counted(response);
                self.attempt_response(peer, response, counted, place)
            }
            Message::End(end) => {
                end.token = token;
                peer.try_control(Message::End(end.clone()), place)
            }
            other => unreachable!("{other:?} is no answer"),
        }
    }

    fn attempt_response(
        &self,
        peer: &Arc<Peer>,
        response: &mut Response,
        counted: bool,
        place: Option<Place>,
    ) -> Option<Output> {
        match peer.try_response(response, counted, self.oldest, place) {
            Ok(output) => Some(output),
            Err(Refused::Now(Refusal::TooLarge { size, limit })) => {
                let hint = hint(limit, peer.is_over_datagrams());
                make_too_large(
                    response,
                    (size, limit),
                    hint,
                    self.endpoint.address.as_ref(),
                );
                if let Some(ticket) = self.ticket {
                    self.endpoint.liveness.replaced(ticket, response);
                }
                self.attempt_status(peer, response, counted, place)
            }
            Err(_) => None,
        }
    }

    #[cold]
    #[inline(never)]
    fn attempt_status(
        &self,
        peer: &Arc<Peer>,
        status: &Response,
        counted: bool,
        place: Option<Place>,
    ) -> Option<Output> {
        match peer.try_response(status, counted, self.oldest, place) {
            Ok(output) => Some(output),
            Err(Refused::Ended(_) | Refused::Now(Refusal::Blocked)) => None,
            Err(Refused::Now(refusal)) => {
                self.endpoint.meters.undeliverable.add();
                tracing::warn!(call = %self.call, %refusal, "not even a status is taken");
                if let Some(place) = place {
                    self.endpoint.liveness.placed(place, self.no_output());
                }
                Some(self.no_output())
            }
        }
    }

    /// The call is this endpoint's own, so that answers go nowhere.
    fn is_own_call(&self) -> bool {
        self.call.initiator == self.endpoint.node
    }

    /// Whether the application of this endpoint takes more answers of its own call.
    fn has_own_room(&self) -> bool {
        let call = self.endpoint.call(self.call.sequence);
        call.is_none_or(|call| call.takes_own())
    }

    /// Waits until it does.
    async fn deliver_own(self: &Arc<Self>, mut parcel: Parcel) {
        let Some(call) = self.endpoint.call(self.call.sequence) else {
            return self.endpoint.meters.late_dropped.add();
        };
        loop {
            let changed = call.changed();
            let place = self.place(&parcel);
            if self.attempt(&mut parcel, place).is_some() {
                return;
            }
            if !self.still_wanted(changed).await {
                return self.note_dropped(&parcel);
            }
        }
    }

    /// Whether a request has to wait for answers before it: one that goes on with this branch, whose answers come behind them.
    /// If those passed this server first they could take all credit, and an initiator that wants them in order would wait for
    /// the others.
    fn must_follow(&self, request: &Request) -> bool {
        self.has_waiting(false) && request.id.path == self.id.path
    }

    /// Sends, and waits for a connection and for credit.
    async fn deliver(self: &Arc<Self>, mut parcel: Parcel) {
        parcel.detach();
        if self.is_own_call() && !parcel.is_onward() {
            return self.deliver_own(parcel).await;
        }
        if let Parcel::Request(_, request) = &parcel
            && self.must_follow(request)
        {
            Arc::clone(self).ready(false).await;
        }
        for _ in 0..MOST_MOVES {
            let peer = match &parcel {
                Parcel::Request(to, request) => match self.endpoint.connect(&to.server).await {
                    Ok(peer) => peer,
                    Err(error) => {
                        self.answer_for(to, request, Code::Unavailable, &error.to_string());
                        return;
                    }
                },
                Parcel::Answer(_) => match self.find_way_back().await {
                    Ok(peer) => peer,
                    Err(_) if self.wait_for_way(&parcel).await => continue,
                    Err(error) => {
                        self.endpoint.meters.undeliverable.add();
                        let (endpoint, initiator) = (&self.endpoint, self.call.initiator);
                        if let Some(more) = endpoint.sparse.no_way.pass(endpoint.age()) {
                            tracing::warn!(call = %self.call, request = %self.id, %initiator, %error, more, "undeliverable");
                        }
                        return self.note_dropped(&parcel);
                    }
                },
            };
            let mut waiting = peer.waiting();
            loop {
                let room = peer.room();
                let place = self.place(&parcel);
                let sent = match &mut parcel {
                    Parcel::Request(to, request) => {
                        let Some(left) = self.time_left() else {
                            return self.note_dropped(&parcel);
                        };
                        request.deadline = Some(left);
                        self.attempt_request(&peer, to, request)
                    }
                    Parcel::Answer(message) => self.attempt_answer(&peer, message, place).is_some(),
                };
                if sent {
                    return;
                }
                // Answers still leave by it while its peer is going away.
                if peer.is_closed() || parcel.is_onward() && !peer.is_usable() {
                    break;
                }
                let want = match &parcel {
                    Parcel::Request(_, request) => Peer::request_waits_for(request),
                    Parcel::Answer(_) => peer.answer_waits_for(parcel.payload_length()),
                };
                if !self.still_wanted(waiting.room(want, room)).await {
                    return self.note_dropped(&parcel);
                }
            }
        }
        match &parcel {
            Parcel::Request(to, request) => {
                let why = "its connections end before the request is sent";
                self.answer_for(to, request, Code::Unavailable, why);
            }
            Parcel::Answer(_) => {
                self.endpoint.meters.undeliverable.add();
                self.note_dropped(&parcel);
            }
        }
    }

    /// Waits until a way leads to the initiator; `false` if none does in time, or nobody waits for the answer any more.
    /// A request waits once, so that its handler is not held up for each of its answers.
    async fn wait_for_way(&self, parcel: &Parcel) -> bool {
        let wayless = &self.lanes.get_or_init(Box::default).wayless;
        if wayless.load(Ordering::Acquire) {
            return false;
        }
        let payload = parcel.payload_length();
        let Some(wait) = self.endpoint.wait_for_way(self.awaited(), payload) else {
            return false;
        };
        // One that was found meanwhile would not be told of.
        if self.way_back().or_else(|| self.way_by_relay()).is_some() {
            return true;
        }
        let mut found = false;
        let waited = self.still_wanted(async { found = wait.found().await });
        found &= waited.await;
        wayless.store(!found, Ordering::Release);
        found
    }

    /// Waits for room; `false` if the call is over before: nobody will ever make room for its messages then.
    async fn still_wanted(&self, room: impl Future<Output = ()>) -> bool {
        let (mut room, mut over) = (pin!(room), pin!(self.cancelled()));
        let room = poll_fn(|cx| match room.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(true),
            Poll::Pending => over.as_mut().poll(cx).map(|()| false),
        });
        let end = self.deadline + LATE;
        timer::timeout_at(end, room).await.unwrap_or(false)
    }

    /// A status in the name of a request that certainly did not reach its server.
    #[cold]
    #[inline(never)]
    pub(super) fn answer_for(
        self: &Arc<Self>,
        to: &Destination,
        request: &Request,
        code: Code,
        why: &str,
    ) {
        let status = Status::new(code, why).by(Some(&to.server));
        self.endpoint.meters.statuses_sent.add();
        let answer = Message::Response(undelivered(request, &status));
        if let (Some(ticket), Some(own)) = (self.ticket, self.endpoint.own_place()) {
            let liveness = &self.endpoint.liveness;
            if let Some(ticket) = liveness.undelivered(ticket, request, own) {
                // If it does not arrive, the initiator will ask for it.
                liveness.released(ticket, &answer, Some(self.no_output()), Instant::now());
            }
        }
        let mut answer = Parcel::Answer(answer);
        if self.attempt(&mut answer, None).is_none() {
            let handling = Arc::clone(self);
            // Boxed, since sending an answer may end here again.
            let deliver: Pin<Box<dyn Future<Output = ()> + Send>> =
                Box::pin(async move { handling.deliver(answer).await });
            self.endpoint.runtime.spawn(deliver);
        }
    }

    /// The open connection on which an answer reaches the initiator directly.
    pub(super) fn way_back(&self) -> Option<Arc<Peer>> {
        if self.peer.node() == Some(self.call.initiator) && !self.peer.is_closed() {
            return Some(Arc::clone(&self.peer));
        }
        self.way_straight()
    }

    /// The open connection of the initiator for a request that somebody else has brought: with the address that the request
    /// names, or one that has proven to be the initiator's.
    fn way_straight(&self) -> Option<Arc<Peer>> {
        let initiator = self.call.initiator;
        let known = self.reply_address();
        let known = known.and_then(|address| self.endpoint.pool.at(&address, initiator));
        known.or_else(|| self.endpoint.way_direct(initiator, session(&self.peer)))
    }

    /// Where the request says that its initiator is reached.
    fn reply_address(&self) -> Option<Address> {
        match &self.reply_to {
            ReplyTo::At(address) => Some(address.clone()),
            ReplyTo::Peer => self.peer.hello().and_then(|hello| hello.address.clone()),
            ReplyTo::Relay => None,
        }
    }

    /// What an answer without a way waits for.
    fn awaited(&self) -> Awaited {
        Awaited {
            call: self.call,
            token: self.token,
            request: self.id,
        }
    }

    /// The same, but dials the initiator; failing that, the way the request came.
    async fn find_way_back(&self) -> Result<Arc<Peer>, ConnectError> {
        if let Some(peer) = self.way_back() {
            return Ok(peer);
        }
        let failed = match self.reply_address() {
            Some(address) => match self
                .endpoint
                .connect_initiator(&address, self.call.initiator)
                .await
            {
                Ok(peer) => return Ok(peer),
                Err(error) => error,
            },
            None => ConnectError::Closed {
                server: Address::Mem("initiator".into()),
                reason: "it does not listen and its connection has ended".into(),
            },
        };
        self.way_by_relay().ok_or(failed)
    }

    /// The way that the request came, or what took its place.
    fn way_by_relay(&self) -> Option<Arc<Peer>> {
        let relay = !self.peer.is_closed() && self.peer.node() != Some(self.call.initiator);
        if relay {
            self.endpoint.invite_from(&self.peer, self.awaited());
            return Some(Arc::clone(&self.peer));
        }
        self.endpoint.way_back(self.call, self.token)
    }
}
