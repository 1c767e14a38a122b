//! The server's side: which requests are handled, what they send, and how they end.

use std::any::Any;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use wallaby_proto::call::records::{Admission, Frozen, Origin, Output, Sent, Ticket};
use wallaby_proto::call::server::{Delegated, Inherited, Outbound, Released, Server, undelivered};
use wallaby_proto::connection::{Mark, MethodDefinition};
use wallaby_proto::seal::verify;
use wallaby_proto::wire::{
    Child, Message, MethodRef, Options, ReplyTo, Request, Response, TraceRecord,
};
use wallaby_proto::{Address, Code, Status};

use super::calls::most_to;
use super::core::{Alarm, Core};
use super::event::{Event, RequestKey};
use super::peer::{Parcel, PeerId, Refused, Times, Towards};
use super::peers::reachable;
use super::sending::{Attempt, Manner, output};
use crate::blocking::panic_message;
use crate::endpoint::DEFAULT_DEADLINE;
use crate::error::SendError;
use wallaby_proto::numbers::SMALL_ANSWER;

/// How long after the deadline a server stops by itself: the initiator's abort, which comes first, is the rule.
const BEHIND: Duration = Duration::from_millis(10);

/// Longer times than this are as good as none.
const LONGEST: Duration = Duration::from_secs(365 * 86_400);

/// Where a delegated request goes.
#[derive(Debug)]
pub(super) struct Destination {
    pub(super) server: Address,
    pub(super) method: Arc<MethodDefinition>,
}

/// One request that is handled.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) server: Server<Destination>,
    /// What records call it; `None` if it was refused.
    ticket: Option<Ticket>,
    /// The session that it came over.
    pub(super) from: PeerId,
    pub(super) reply_to: ReplyTo,
    oldest: u64,
    /// The request's optional fields: what children inherit.
    pub(super) options: Option<Box<Options>>,
    /// When it has no time left, and when it came.
    pub(super) deadline: Duration,
    arrived: Duration,
    /// Which of the methods served it calls.
    pub(super) served: usize,
    /// Its initiator expects exactly one answer.
    pub(super) owes_answer: bool,
    /// What was refused to the handler so that its request must not end as if all were well.
    refused: Option<Status>,
    pub(super) exhausted: bool,
    /// Its key, once it was put aside.
    pub(super) key: Option<RequestKey>,
}

impl Job {
    /// When it is stopped without a word of its initiator. Deadlines are rounded down on their way, by a thousandth.
    fn given_up_at(&self) -> Duration {
        let time = self.deadline.saturating_sub(self.arrived);
        self.deadline.saturating_add(time / 512 + BEHIND)
    }
}

/// Requests that were put aside.
#[derive(Debug, Default)]
pub(super) struct Held {
    slots: Vec<(u32, Option<Box<Job>>)>,
    free: Vec<u32>,
}

impl Held {
    /// Room for a request: its key.
    fn key(&mut self) -> RequestKey {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push((0, None));
            self.slots.len() as u32 - 1
        });
        let generation = self.slots[slot as usize].0;
        RequestKey { slot, generation }
    }

    fn put(&mut self, key: RequestKey, job: Box<Job>) {
        if let Some((generation, place)) = self.slots.get_mut(key.slot as usize)
            && *generation == key.generation
        {
            *place = Some(job);
        }
    }

    fn take(&mut self, key: RequestKey) -> Option<Box<Job>> {
        let (generation, place) = self.slots.get_mut(key.slot as usize)?;
        if *generation == key.generation {
            place.take()
        } else {
            None
        }
    }

    /// The key is not used any more.
    fn release(&mut self, key: RequestKey) {
        if let Some((generation, place)) = self.slots.get_mut(key.slot as usize)
            && *generation == key.generation
        {
            *generation = generation.wrapping_add(1);
            *place = None;
            self.free.push(key.slot);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}

/// A message that a handler sends.
#[derive(Debug)]
pub(super) enum Sending {
    Answer(Bytes),
    Onward(Address, Arc<MethodDefinition>, Bytes),
}

impl Core {
    // What arrives.

    /// A request came; if it is handled: what is to be done.
    pub(super) fn admit(
        &mut self,
        from: PeerId,
        request: &mut Request,
    ) -> Option<(Box<Job>, Bytes)> {
        let MethodRef::Number(number) = request.method else {
            return None;
        };
        let payload = std::mem::take(&mut request.payload);
        self.grant_request(from, payload.len())?;
        self.use_peer(from);
        let node = self.peers.get(from)?.node()?;
        if self.config.require_seals && !self.takes(from, request) {
            return None;
        }
        let peer = self.peers.get(from)?;
        let origin = Origin {
            session: from.session(),
            peer: node,
            transit: Duration::ZERO,
        };
        let (ticket, refusal) = match self.records.admit(request, origin, self.now) {
            Admission::Accepted(ticket) => (Some(ticket), None),
            Admission::Refused(status) => (None, Some(status)),
            Admission::Duplicate => {
                self.counters.requests_dropped += 1;
                return None;
            }
        };
        let body = request.options.as_ref().and_then(|options| options.body);
        let (served, refusal) = match (peer.methods.get(number as usize), refusal) {
            (_, Some(status)) => (0, Some(status)),
            _ if body.is_some() => (0, Some(no_bodies())),
            (Some(Ok(served)), None) => (*served, None),
            (Some(Err(Refused(refused))), None) => (0, Some(refused.1.clone())),
            (None, None) => (
                0,
                Some(Status::new(Code::Internal, "its method was not named")),
            ),
        };
        let job = self.job(from, request, ticket, served);
        match refusal {
            None => Some((job, payload)),
            Some(status) => {
                self.fail(job, &status);
                None
            }
        }
    }

    fn job(
        &self,
        from: PeerId,
        request: &mut Request,
        ticket: Option<Ticket>,
        served: usize,
    ) -> Box<Job> {
        let time = request.time(DEFAULT_DEADLINE);
        Box::new(Job {
            server: Server::bounded(request, self.config.max_budgets.as_ref()),
            ticket,
            from,
            reply_to: std::mem::replace(&mut request.reply_to, ReplyTo::Peer),
            oldest: request.oldest,
            options: request.options.take(),
            deadline: self.raw.saturating_add(time.min(LONGEST)),
            arrived: self.raw,
            served,
            owes_answer: false,
            refused: None,
            exhausted: false,
            key: None,
        })
    }

    /// Whether a request may be taken; one that may not is answered over its own session: the address to which it wants its
    /// answers may be a stranger's.
    #[cold]
    fn takes(&mut self, from: PeerId, request: &mut Request) -> bool {
        let peer = self.peers.get(from).and_then(|peer| peer.hello());
        let address = peer.and_then(|hello| hello.address.as_ref());
        let Err(error) = verify(&self.config.cluster_keys, request, self.node, address) else {
            return true;
        };
        self.counters.unsealed_refused += 1;
        let status = self.own(Status::new(Code::PermissionDenied, error.to_string()));
        self.answer_stranger(from, request, &status);
        false
    }

    /// A message above the limit came: a request gets a status, of an answer the application gets one in its place.
    #[cold]
    pub(super) fn handle_too_large(&mut self, from: PeerId, message: &mut Message, size: u64) {
        let limit = self.config.limits.message;
        let status = |what: &str| {
            let text = format!("{what} of {size} bytes: at most {limit} are taken");
            self.own(Status::new(Code::ResourceExhausted, text))
        };
        match message {
            Message::Request(request) => {
                let status = status("a request");
                self.answer_stranger(from, request, &status);
            }
            Message::Response(response) => {
                let payload = status("an answer").to_payload();
                let response = Response {
                    status: true,
                    payload,
                    ..response.clone()
                };
                self.handle_answer(Some(from), &mut Message::Response(response));
            }
            _ => {}
        }
    }

    /// The handler has returned.
    pub(super) fn handled(&mut self, result: Result<Result<(), Status>, Box<dyn Any + Send>>) {
        let (job, aside) = (self.returned.take(), self.put_aside.take());
        let status = match result {
            Ok(Ok(())) => {
                if let Some(job) = job {
                    self.finish(job);
                }
                return;
            }
            Ok(Err(status)) => status,
            Err(panic) => {
                self.counters.panics += 1;
                Status::new(Code::Panicked, panic_message(&*panic))
            }
        };
        let aside = aside.and_then(|key| self.take_held(key));
        match job.or(aside) {
            Some(job) => self.fail(job, &status),
            None => self.counters.late_errors += 1,
        }
    }

    // Requests that are put aside.

    /// A request waits for something of the application's.
    pub(super) fn hold(&mut self, mut job: Box<Job>) -> RequestKey {
        self.flush_request(&mut job);
        let key = match job.key {
            Some(key) => key,
            None => {
                let key = self.held.key();
                job.key = Some(key);
                if let Some(ticket) = job.ticket {
                    self.tickets.insert(ticket, key);
                }
                self.alarms.insert((job.given_up_at(), Alarm::Request(key)));
                if let Some(peer) = self.peers.get_mut(job.from) {
                    peer.busy += 1;
                }
                key
            }
        };
        self.held.put(key, job);
        key
    }

    /// A request that was put aside goes on.
    pub(super) fn take_held(&mut self, key: RequestKey) -> Option<Box<Job>> {
        let job = self.held.take(key)?;
        if let Some(ticket) = job.ticket {
            self.records.progressed(ticket, self.now);
        }
        Some(job)
    }

    /// A request that was put aside has ended.
    fn release_key(&mut self, job: &Job) {
        let Some(key) = job.key else { return };
        self.held.release(key);
        if let Some(ticket) = job.ticket {
            self.tickets.remove(&ticket);
        }
        self.alarms
            .remove(&(job.given_up_at(), Alarm::Request(key)));
        if let Some(peer) = self.peers.get_mut(job.from) {
            peer.busy = peer.busy.saturating_sub(1);
            self.may_rest(job.from);
        }
    }

    pub(super) fn request_deadline(&mut self, key: RequestKey) {
        let why = "the call's deadline passed before the request was done";
        self.stop(key, Status::new(Code::DeadlineExceeded, why));
    }

    /// A request that was put aside ends here and now.
    pub(super) fn stop(&mut self, key: RequestKey, status: Status) {
        if let Some(job) = self.held.take(key) {
            self.fail(job, &status);
            self.tell(Event::Stopped {
                request: key,
                status: Box::new(status),
            });
        }
    }

    /// The handler says that it makes progress.
    pub(super) fn progress(&mut self, job: &Job) {
        if let Some(ticket) = job.ticket {
            self.records.progressed(ticket, self.now);
        }
    }

    // What handlers send.

    /// A message after which more may follow.
    pub(super) fn send(&mut self, job: &mut Job, sending: Sending) -> Result<(), SendError> {
        let sending = self
            .check(job, sending)
            .inspect_err(|error| note_refused(job, error, false))?;
        let released = match sending {
            Checked::Answer(payload) => {
                let afforded = job.server.afford_answer(payload.len());
                afforded.map(|()| job.server.reply(payload))
            }
            Checked::Onward(to, payload) => {
                let afforded = job.server.afford_request();
                afforded.map(|()| job.server.delegate(to, payload))
            }
        };
        match released {
            Ok(Some(released)) => {
                self.leave_one(job, released);
                Ok(())
            }
            Ok(None) => Ok(()),
            Err(exhausted) => Err(self.exhaust(job, exhausted)),
        }
    }

    /// The last message.
    pub(super) fn send_last(&mut self, job: &mut Job, sending: Sending) -> Result<(), SendError> {
        let sending = self
            .check(job, sending)
            .inspect_err(|error| note_refused(job, error, true))?;
        let afforded = match &sending {
            Checked::Answer(payload) => job.server.afford_answer(payload.len()),
            Checked::Onward(..) => job.server.afford_request(),
        };
        if let Err(exhausted) = afforded {
            return Err(self.exhaust(job, exhausted));
        }
        let record = self.record(job);
        let released = match sending {
            Checked::Answer(payload) => job.server.respond(payload, record),
            Checked::Onward(to, payload) => job.server.forward(to, payload, record),
        };
        self.leave(job, released);
        Ok(())
    }

    /// The message held back leaves now.
    pub(super) fn flush_request(&mut self, job: &mut Job) {
        if let Some(released) = job.server.flush() {
            self.leave_one(job, released);
        }
    }

    fn check(&mut self, job: &Job, sending: Sending) -> Result<Checked, SendError> {
        if job.server.has_ended() {
            let why = if job.exhausted {
                "a budget was used up"
            } else {
                "it was answered or failed before"
            };
            return Err(SendError::Ended(why.into()));
        }
        let (Sending::Answer(payload) | Sending::Onward(_, _, payload)) = &sending;
        let (size, mut limit) = (payload.len() as u64, self.config.limits.message);
        if let Sending::Onward(server, ..) = &sending {
            limit = most_to(server, limit);
        }
        if size > limit {
            let peer = match &sending {
                Sending::Answer(_) => "the initiator".to_owned(),
                Sending::Onward(server, ..) => server.to_string(),
            };
            return Err(SendError::TooLarge { size, limit, peer });
        }
        if !self.has_room(payload.len()) && !self.would_leave(job, &sending) {
            return Err(SendError::Full);
        }
        let (server, method, payload) = match sending {
            Sending::Answer(payload) => return Ok(Checked::Answer(payload)),
            Sending::Onward(server, method, payload) => (server, method, payload),
        };
        if !self.config.dial_policy.permits(&server) {
            return Err(SendError::Forbidden { server });
        }
        let (depth, limit) = (job.server.depth().saturating_add(1), self.config.max_depth);
        if depth > limit {
            return Err(SendError::TooDeep { depth, limit });
        }
        if self.onward_reply_to(job) == ReplyTo::Relay {
            return Err(SendError::NoRelay);
        }
        if reachable(&server).is_err() {
            return Err(SendError::NoTransport { server });
        }
        Ok(Checked::Onward(Destination { server, method }, payload))
    }

    /// Whether a message would leave at once, as far as can be told: then it needs no room to wait.
    #[cold]
    fn would_leave(&mut self, job: &Job, sending: &Sending) -> bool {
        let call = job.server.call();
        let (way, waits) = match sending {
            Sending::Answer(_) if call.initiator == self.node => return true,
            Sending::Answer(_) => {
                let way = self.way_of(job);
                let peer = way.and_then(|id| self.peers.get(id));
                (way, peer.is_none_or(|peer| peer.holds_answers(call)))
            }
            Sending::Onward(server, ..) => {
                let way = self.peer_at(server);
                let peer = way.and_then(|id| self.peers.get(id));
                (way, peer.is_none_or(|peer| peer.holds_requests()))
            }
        };
        let carrier = way.and_then(|id| self.carrier(id));
        !waits
            && carrier.is_some_and(|carrier| match sending {
                Sending::Answer(_) => carrier.takes_responses(call),
                Sending::Onward(..) => carrier.takes_requests(),
            })
    }

    /// A budget is used up: the request ends here and now, with a status (PROTOCOL-NOTES 11).
    #[cold]
    fn exhaust(
        &mut self,
        job: &mut Job,
        exhausted: wallaby_proto::call::allowance::Exhausted,
    ) -> SendError {
        let record = self.record(job);
        let status = self.own(Status::from(exhausted));
        let released = job.server.exhaust(&status, record);
        job.exhausted = true;
        self.leave(job, released);
        SendError::Exhausted(exhausted)
    }

    /// The handler lets its request end.
    pub(super) fn finish(&mut self, mut job: Box<Job>) {
        if !job.server.has_ended() {
            self.finish_open(&mut job);
        }
        self.release_key(&job);
    }

    fn finish_open(&mut self, job: &mut Job) {
        let record = self.record(job);
        if let Some(refused) = job.refused.take() {
            let released = job.server.exhaust(&self.own(refused), record);
            return self.leave(job, released);
        }
        let last = if job.owes_answer && !job.server.holds_back() {
            let name = self
                .served
                .get(job.served)
                .map_or("the request", |method| method.name());
            let message = format!("{name} ended without an answer");
            job.server
                .fail(&self.own(Status::new(Code::Unanswered, message)), record)
        } else {
            job.server.finish(record)
        };
        self.leave_one(job, last);
    }

    /// A request ends with a status.
    #[cold]
    #[inline(never)]
    pub(super) fn fail(&mut self, mut job: Box<Job>, status: &Status) {
        if job.server.has_ended() {
            if !(job.exhausted && status.code() == Code::ResourceExhausted) {
                self.counters.late_errors += 1;
            }
        } else {
            let record = self.record(&job);
            let last = job.server.fail(&self.own(status.clone()), record);
            self.leave_one(&job, last);
        }
        self.release_key(&job);
    }

    // How it leaves.

    pub(super) fn leave(&mut self, job: &Job, released: Released<Destination>) {
        if let Some(before) = released.before {
            self.leave_one(job, *before);
        }
        self.leave_one(job, released.last);
    }

    fn leave_one(&mut self, job: &Job, outbound: Outbound<Destination>) {
        match outbound {
            Outbound::Response(response) => {
                let small =
                    response.last && response.index == 0 && response.payload.len() <= SMALL_ANSWER;
                self.send_answer(job, Message::Response(response), small);
            }
            Outbound::End(end) => self.send_answer(job, Message::End(end), true),
            Outbound::Request(delegated) => self.send_onward(job, delegated),
        }
    }

    /// The open connection by which answers of a request go straight to its initiator.
    fn way_of(&mut self, job: &Job) -> Option<PeerId> {
        let initiator = job.server.call().initiator;
        self.way_back(initiator, job.from, |core| {
            core.initiator_address(&job.reply_to, job.from)
        })
    }

    fn send_answer(&mut self, job: &Job, mut message: Message, small: bool) {
        let initiator = job.server.call().initiator;
        if initiator == self.node {
            let output = output(job.from, 0);
            self.note_released(job.ticket, &message, Some(output));
            return self.local.push_back(message);
        }
        let own = job.reply_to == ReplyTo::Peer;
        if let Some(id) = self.way_of(job) {
            let direct = own && id == job.from;
            let manner = Manner {
                direct,
                counted: !(direct && small),
                oldest: job.oldest,
                ticket: job.ticket,
            };
            if let Some(mark) = self.attempt_answer(id, &mut message, manner) {
                return match job.ticket {
                    Some(_) => self.note_left_for(id, job.ticket, &message, mark),
                    None => self.note_refusal_taken(job, id, mark),
                };
            }
        }
        self.note_released(job.ticket, &message, None);
        let sent = sent(&message);
        let towards = Towards::Initiator {
            address: self.initiator_address(&job.reply_to, job.from),
            came: job.from,
            own,
            small,
            oldest: job.oldest,
        };
        let mut parcel = Parcel::new(message, towards);
        match job.ticket {
            Some(ticket) => parcel.released = Some((ticket, sent)),
            None => parcel.refused = self.tell_of_refusal(job),
        }
        self.post(parcel);
    }

    /// An answer was taken by a connection.
    fn note_left_for(&mut self, id: PeerId, ticket: Option<Ticket>, message: &Message, mark: Mark) {
        match mark {
            Mark::Written(mark) => self.note_released(ticket, message, Some(output(id, mark))),
            Mark::Parts(_) => {
                self.note_released(ticket, message, None);
                let released = ticket.map(|ticket| (ticket, sent(message)));
                self.note_placed(id, released, mark);
            }
        }
    }

    /// The record of a request learns of an answer, and where it stands in a session's output.
    fn note_released(&mut self, ticket: Option<Ticket>, message: &Message, output: Option<Output>) {
        let Some(ticket) = ticket else { return };
        match message {
            Message::Response(response) => self
                .records
                .response_released(ticket, response, output, self.now),
            Message::End(end) => self.records.end_released(ticket, end, output, self.now),
            _ => {}
        }
    }

    fn send_onward(&mut self, job: &Job, delegated: Delegated<Destination>) {
        let known = self.peer_at(&delegated.to.server);
        let node = known.and_then(|id| self.peers.get(id)?.node());
        let child = Child {
            server: delegated.to.server.clone(),
            node,
        };
        let noted = match job.ticket {
            Some(ticket) => {
                let quiet = self.records.quiet(ticket, self.now);
                let oldest = self.records.oldest(ticket);
                let noted = self
                    .records
                    .delegation_released(ticket, &delegated, child, None, self.now);
                noted.map(|()| (ticket, quiet, oldest))
            }
            None => Err(Frozen::Aborted),
        };
        let (call, token) = (job.server.call(), job.server.token());
        let mut inherited = Inherited {
            reply_to: self.onward_reply_to(job),
            deadline: Some(job.deadline.saturating_sub(self.raw)),
            oldest: job.oldest,
            options: (job.options.as_ref()).map(|options| Box::new(options.inherited())),
        };
        if let Ok((_, quiet, oldest)) = noted {
            inherited.oldest = oldest.unwrap_or(job.oldest);
            if quiet.is_some() {
                inherited.options.get_or_insert_default().quiet = quiet;
            }
        }
        let (to, mut request) =
            delegated.into_request(call, token, MethodRef::Number(0), inherited);
        let ticket = match noted {
            Ok((ticket, ..)) => ticket,
            Err(frozen) => {
                let status = frozen.status();
                let why = (status.code(), status.message());
                return self.answer_over(&request, &to.server, (None, job.from), why);
            }
        };
        let released = Some((ticket, Sent::Delegation));
        let times = Some(Times {
            born: job.arrived.saturating_sub(age(job)),
            until: job.deadline,
        });
        if let Some(id) = known
            && self
                .peers
                .get(id)
                .is_some_and(|peer| !peer.holds_requests())
        {
            let towards = Towards::Server(to.server.clone());
            let method = &to.method;
            match self.attempt_request(id, &mut request, method, released, times, &towards) {
                Attempt::Waits => {}
                Attempt::Sent | Attempt::Settled => return,
            }
        }
        let mut parcel = Parcel::new(Message::Request(request), Towards::Server(to.server));
        parcel.method = Some(to.method);
        (parcel.released, parcel.times) = (released, times);
        self.post(parcel);
    }

    /// Where servers further on send their answers.
    fn onward_reply_to(&self, job: &Job) -> ReplyTo {
        match &job.reply_to {
            ReplyTo::Peer => match self.initiator_address(&job.reply_to, job.from) {
                Some(address) => ReplyTo::At(address),
                None => ReplyTo::Relay,
            },
            other => other.clone(),
        }
    }

    /// Where the initiator of a request that came over this session says that it is reached.
    pub(super) fn initiator_address(&self, reply_to: &ReplyTo, from: PeerId) -> Option<Address> {
        match reply_to {
            ReplyTo::Peer => self.peers.get(from)?.hello()?.address.clone(),
            ReplyTo::At(address) => Some(address.clone()),
            ReplyTo::Relay => None,
        }
    }

    /// A status in the name of a request onward that certainly did not reach its server.
    #[cold]
    pub(super) fn answer_for(
        &mut self,
        request: &Request,
        to: &Address,
        released: Option<(Ticket, Sent)>,
        why: (Code, &str),
    ) {
        let came = released.and_then(|(ticket, _)| self.records.came(ticket));
        let came = came.or_else(|| self.records.way_back(request.call, request.token));
        let came = came.map_or(PeerId::NOBODY, |session| PeerId::from_number(session.0));
        self.answer_over(request, to, (released, came), why);
    }

    /// The same of a request that came of one over this connection: along which its status goes back, if it must.
    fn answer_over(
        &mut self,
        request: &Request,
        to: &Address,
        (released, came): (Option<(Ticket, Sent)>, PeerId),
        (code, why): (Code, &str),
    ) {
        let status = Status::new(code, why).by(Some(to));
        let response = undelivered(request, &status);
        let mut parcel_of = None;
        if let (Some((ticket, _)), Some(server)) = (released, self.address.clone()) {
            let own = Child {
                server,
                node: Some(self.node),
            };
            let stands_in = self
                .records
                .delegation_undelivered(ticket, request, own, self.now);
            if let Some(ticket) = stands_in {
                self.records
                    .response_released(ticket, &response, None, self.now);
                parcel_of = Some((ticket, Sent::Response(response.index)));
            }
        }
        let initiator = request.call.initiator;
        if initiator == self.node {
            return self.local.push_back(Message::Response(response));
        }
        let address = match &request.reply_to {
            ReplyTo::At(address) => Some(address.clone()),
            ReplyTo::Peer | ReplyTo::Relay => None,
        };
        let towards = Towards::Initiator {
            address,
            came,
            own: false,
            small: false,
            oldest: request.oldest,
        };
        let mut parcel = Parcel::new(Message::Response(response), towards);
        parcel.released = parcel_of;
        self.post(parcel);
    }

    /// What a traced hop reports of itself when it ends.
    fn record(&self, job: &Job) -> Option<TraceRecord> {
        job.server.is_traced().then(|| self.make_record(job))
    }

    #[cold]
    #[inline(never)]
    fn make_record(&self, job: &Job) -> TraceRecord {
        let ran = self.raw.saturating_sub(job.arrived);
        let arrived = SystemTime::now().checked_sub(ran).unwrap_or(UNIX_EPOCH);
        let method = self.served.get(job.served);
        TraceRecord {
            request: job.server.id(),
            node: self.node,
            server: self.address.clone(),
            method: method.map_or_else(String::new, |method| method.name().to_string()),
            arrived_us: arrived
                .duration_since(UNIX_EPOCH)
                .unwrap_or_default()
                .as_micros() as u64,
            queued_us: 0,
            ran_us: ran.as_micros() as u64,
        }
    }
}

#[cold]
fn no_bodies() -> Status {
    let why = "this server takes no bodies of requests";
    Status::new(Code::FailedPrecondition, why)
}

/// A message that may be sent.
enum Checked {
    Answer(Bytes),
    Onward(Destination, Bytes),
}

/// What records call an answer.
fn sent(message: &Message) -> Sent {
    match message {
        Message::Response(response) => Sent::Response(response.index),
        _ => Sent::End,
    }
}

/// How old the call was when the request came, as far as hosts know.
fn age(job: &Job) -> Duration {
    let options = job.options.as_ref();
    options.and_then(|options| options.age).unwrap_or_default()
}

/// A message was refused: what the request ends with if its handler lets it end all the same.
#[cold]
pub(super) fn note_refused(job: &mut Job, error: &SendError, last: bool) {
    if last || matches!(error, SendError::TooDeep { .. }) {
        job.refused = Some(Status::from(error.clone()));
    }
}
