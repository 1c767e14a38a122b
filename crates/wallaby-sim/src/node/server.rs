//! The server's side of a node: requests that run, as their tasks say.

use std::collections::VecDeque;
use std::time::Duration;

use wallaby_proto::call::records::{Admission, Frozen, Passage, RefusedRequest, Sent, Ticket};
use wallaby_proto::call::server::{Delegated, Inherited, Outbound, Server, undelivered};
use wallaby_proto::wire::{
    Child, End, Message, MethodRef, Options, PingSettings, Pong, ReplyTo, Request, Response,
};
use wallaby_proto::{Address, CallId, Code, Facts, RequestId, Status};

use super::client::mark_of;
use super::peers::{Destination, Parcel};
use super::{Node, address};
use crate::broken::Broken;
use crate::context::{Context, note};
use crate::coverage::Point;
use crate::network::Socket;
use crate::oracle::{self, Place, Released};
use crate::plan::ROOMY;
use crate::queue::Timer;
use crate::workload::{Act, Finale, Task};
use wallaby_proto::numbers::SMALL_ANSWER;

/// One request that is handled.
#[derive(Debug)]
pub(super) struct Job {
    /// Where a delegation goes, and the number of its task.
    server: Server<(u32, u32)>,
    /// What records call it.
    ticket: Ticket,
    /// How its call is watched.
    ping: Option<PingSettings>,
    /// Which attempt of it this is, and whether there may be several.
    attempt: u32,
    repeatable: bool,
    acts: VecDeque<Act>,
    finale: Option<Finale>,
    came: Socket,
    reply_to: ReplyTo,
    /// Where the initiator says that it is reached.
    initiator: Option<Address>,
    /// When it has no time left.
    deadline: Duration,
    /// Messages that were released and have not been posted.
    outbound: VecDeque<Leaving>,
    waiting: Waiting,
    /// How many messages it has sent.
    sent: u32,
    /// Where the delegation goes that the handler asked for last, if that was the last message.
    delegated: Option<u32>,
    /// When it arrived.
    arrived: Duration,
}

/// A message that exists and has not left yet.
#[derive(Debug)]
enum Leaving {
    As(Outbound<(u32, u32)>),
    /// A delegation that records have refused: its status.
    Instead(Response),
}

/// Why a handler does not go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Waiting {
    No,
    /// It waits for something of its own.
    Asleep,
    /// A message has not been accepted.
    Sending,
}

impl Node {
    /// A request came; whether it is handled.
    pub(super) fn handle_request(
        &mut self,
        from: Socket,
        mut request: Request,
        context: &mut Context<'_>,
    ) -> bool {
        if !self.peers.contains_key(&from) {
            return false;
        }
        if let Some(mut carrier) = self.carrier(from) {
            carrier.grant_request(request.payload.len());
        }
        self.cover_request(&request, context);
        let Some(origin) = self.origin(from, context) else {
            return false;
        };
        let now = self.now();
        let admission = self.records.admit(&request, origin, now);
        let (call, id) = (request.call, request.id);
        let task = Task::from_payload(&request.payload);
        let number = task.as_ref().map(|task| task.number);
        let (attempt, repeatable) = match &request.options {
            Some(options) => (options.attempt, options.repeatable),
            None => (0, false),
        };
        let ticket = match admission {
            Admission::Accepted(ticket) => ticket,
            Admission::Duplicate => {
                context.hit(Point::RequestDuplicate);
                return false;
            }
            Admission::Refused(status) => {
                context.hit(Point::RequestRefused);
                note!(context, self.index, "refuses {id} of {call}: {status}");
                let now = context.queue.now();
                context.oracle.reruns.started(now, call, id, attempt);
                context
                    .oracle
                    .started(context.queue.now(), call, (id, self.id), number);
                self.refuse(&request, from, &status, context);
                return false;
            }
        };
        let at = context.queue.now();
        context.oracle.reruns.started(at, call, id, attempt);
        context
            .oracle
            .started(context.queue.now(), call, (id, self.id), number);
        // A small table may have had to forget that a call was aborted.
        if self.plan.requests >= ROOMY {
            context.oracle.runs(context.queue.now(), self.id, call, id);
        }
        note!(context, self.index, "runs {id} of {call}");
        let Task { acts, finale, .. } = task.unwrap_or(Task::NOTHING);
        let time = request.time(Duration::from_secs(60));
        let ping = request.options.as_ref().and_then(|options| options.ping);
        let job = Job {
            server: Server::new(&mut request),
            ticket,
            ping,
            attempt,
            repeatable,
            acts: acts.into(),
            finale: Some(finale),
            came: from,
            initiator: self.initiator_address(&request.reply_to, from),
            reply_to: request.reply_to,
            deadline: context.now() + time,
            outbound: VecDeque::new(),
            waiting: Waiting::No,
            sent: 0,
            delegated: None,
            arrived: now,
        };
        self.last_job += 1;
        let number = self.last_job;
        self.wake(time, Timer::JobDeadline(number), context);
        self.jobs.insert(number, job);
        self.tickets.insert(ticket, number);
        self.ready.push_back(number);
        true
    }

    /// A request is not handled: a status goes in its name (PROTOCOL-NOTES 11).
    fn refuse(
        &mut self,
        request: &Request,
        came: Socket,
        status: &Status,
        context: &mut Context<'_>,
    ) {
        let response = undelivered(request, status);
        let message = if context.is(Broken::LostStatus) {
            let what = oracle::Sent::Answer(Place::End(request.id.path), true);
            let released = Released {
                call: request.call,
                by: self.id,
                what,
            };
            context
                .oracle
                .released(context.queue.now(), request.id, &released, true);
            let facts = Facts {
                requests: 0,
                responses: request.base,
            };
            let (call, token, manifest) = (response.call, response.token, response.manifest);
            Message::End(End {
                call,
                distance: 0,
                token,
                request: request.id,
                facts,
                manifest,
                options: None,
            })
        } else {
            context
                .oracle
                .replaced(context.queue.now(), self.id, &response);
            self.tell_of_refusal(request, came, &response);
            Message::Response(response)
        };
        let address = self.initiator_address(&request.reply_to, came);
        let to = Destination::Initiator {
            address,
            came,
            small: true,
        };
        self.post(
            Parcel {
                message,
                to,
                job: None,
                released: None,
                waits: 0,
            },
            context,
        );
    }

    /// The status of a refused request may have to wait, and no record says so.
    fn tell_of_refusal(&mut self, request: &Request, came: Socket, status: &Response) {
        let refused = RefusedRequest {
            call: request.call,
            token: request.token,
            request: request.id,
            ping: request.options.as_ref().and_then(|options| options.ping),
            reply_to: Some(request.reply_to.clone()),
            session: super::peers::session(came),
        };
        let passage = self.records.refused(&refused, self.now());
        self.tell_of(status, passage);
    }

    /// The initiator is told of this answer until it has been written.
    fn tell_of(&mut self, answer: &Response, passage: Option<Passage>) {
        let key = (answer.call, answer.request, answer.index);
        let before = match passage {
            Some(passage) => self.passages.insert(key, passage),
            None => None,
        };
        if let Some(before) = before {
            self.records.passed_on(before, None);
        }
    }

    fn cover_request(&self, request: &Request, context: &mut Context<'_>) {
        if request.id.hop > 0 {
            context.hit(Point::RequestContinued);
        } else if request.depth > 0 {
            context.hit(Point::RequestChild);
        }
        if request.id.path.is_folded() {
            context.hit(Point::RequestFolded);
        }
        if let Some(manifest) = request.manifest {
            context.hit(Point::RequestCarriesManifest);
            context
                .oracle
                .given(request.call, request.id, manifest.owner);
        }
        if request.payload.len() > wallaby_proto::wire::MAX_FRAME {
            context.hit(Point::ConnectionParts);
        }
    }

    /// A handler's wait is over.
    pub(super) fn resume(&mut self, number: u64, context: &mut Context<'_>) {
        if let Some(job) = self.jobs.get_mut(&number)
            && job.waiting == Waiting::Asleep
        {
            job.waiting = Waiting::No;
            let (call, id) = (job.server.call(), job.server.id());
            context.oracle.progressed(context.queue.now(), call, id);
            let (ticket, now) = (job.ticket, self.now());
            self.records.progressed(ticket, now);
            self.ready.push_back(number);
        }
    }

    /// A request has no time left.
    pub(super) fn job_deadline(&mut self, number: u64, context: &mut Context<'_>) {
        if self
            .jobs
            .get(&number)
            .is_some_and(|job| !job.server.has_ended())
        {
            context.hit(Point::RequestDeadline);
            self.stop_job(
                number,
                &Status::new(Code::DeadlineExceeded, "no time is left"),
                context,
            );
        }
    }

    /// A request ends with a status.
    pub(super) fn stop_job(&mut self, number: u64, status: &Status, context: &mut Context<'_>) {
        let Some(mut job) = self.jobs.remove(&number) else {
            return;
        };
        if !job.server.has_ended() {
            self.fail(&mut job, status, context);
        }
        if job.waiting == Waiting::Asleep {
            job.waiting = Waiting::No;
        }
        self.jobs.insert(number, job);
        self.ready.push_back(number);
    }

    /// Lets a handler go on until it waits; a message that was accepted wakes it here, too.
    pub(super) fn run(&mut self, number: u64, context: &mut Context<'_>) {
        if let Some(job) = self.jobs.get_mut(&number)
            && job.waiting == Waiting::Sending
        {
            job.waiting = Waiting::No;
        }
        loop {
            let Some(job) = self.jobs.get_mut(&number) else {
                return;
            };
            if job.waiting != Waiting::No {
                return;
            }
            if let Some(outbound) = job.outbound.pop_front() {
                job.waiting = Waiting::Sending;
                let parcel = self.address(number, outbound, context);
                self.post_all(parcel, context);
                return;
            }
            if job.server.has_ended() {
                self.tickets.remove(&job.ticket);
                self.jobs.remove(&number);
                return;
            }
            let Some(mut job) = self.jobs.remove(&number) else {
                return;
            };
            let wait = self.step(&mut job, context);
            self.jobs.insert(number, job);
            if let (Some(wait), Some(job)) = (wait, self.jobs.get_mut(&number)) {
                job.waiting = Waiting::Asleep;
                // What the wait releases goes out at once; the handler does not go on before its time.
                let released: Vec<_> = job.outbound.drain(..).collect();
                for outbound in released {
                    let parcel = self.address(number, outbound, context);
                    self.post_all(
                        parcel.map(|parcel| Parcel {
                            job: None,
                            ..parcel
                        }),
                        context,
                    );
                }
                self.wake(wait, Timer::Resume(number), context);
                return;
            }
        }
    }

    /// The message as it leaves this node.
    fn address(&self, number: u64, leaving: Leaving, context: &Context<'_>) -> Option<Parcel> {
        let job = self.jobs.get(&number)?;
        let (message, to, sent) = match leaving {
            Leaving::As(Outbound::Request(delegated)) => {
                let quiet = self.records.quiet(job.ticket, self.now());
                let inherited = Inherited {
                    reply_to: self.onward(job),
                    deadline: Some(job.deadline.saturating_sub(context.now())),
                    oldest: self.records.oldest(job.ticket).unwrap_or(0),
                    options: Some(Box::new(Options {
                        ping: job.ping,
                        quiet,
                        attempt: job.attempt,
                        repeatable: job.repeatable,
                        ..Options::default()
                    })),
                };
                let (call, token) = (job.server.call(), job.server.token());
                let ((server, _), request) =
                    delegated.into_request(call, token, MethodRef::Number(0), inherited);
                (
                    Message::Request(request),
                    Destination::Server(server),
                    Some(Sent::Delegation),
                )
            }
            Leaving::As(Outbound::Response(response)) => {
                let small = job.sent == 1 && response.payload.len() <= SMALL_ANSWER;
                let sent = Sent::Response(response.index);
                (
                    Message::Response(response),
                    job.initiator(small),
                    Some(sent),
                )
            }
            Leaving::As(Outbound::End(end)) => {
                (Message::End(end), job.initiator(true), Some(Sent::End))
            }
            Leaving::Instead(response) => (Message::Response(response), job.initiator(false), None),
        };
        let released = sent.map(|sent| (job.ticket, sent));
        Some(Parcel {
            message,
            to,
            job: Some(number),
            released,
            waits: 0,
        })
    }

    /// Where answers to what this request delegates go.
    fn onward(&self, job: &Job) -> ReplyTo {
        match (&job.reply_to, &job.initiator) {
            (ReplyTo::Relay, _) | (_, None) => ReplyTo::Relay,
            (_, Some(address)) => ReplyTo::At(address.clone()),
        }
    }

    /// An answer in the name of a request that this node could not deliver.
    pub(super) fn answer_for(
        &mut self,
        request: &Request,
        message: Message,
        released: Option<(Ticket, Sent)>,
        context: &mut Context<'_>,
    ) {
        let address = match &request.reply_to {
            ReplyTo::At(address) => Some(address.clone()),
            ReplyTo::Peer | ReplyTo::Relay => None,
        };
        let came = released.and_then(|(ticket, _)| self.records.came(ticket));
        let came = came.or_else(|| self.records.way_back(request.call, request.token));
        let to = Destination::Initiator {
            address,
            came: came.map_or(Socket::NONE, super::peers::socket),
            small: false,
        };
        self.post(
            Parcel {
                message,
                to,
                job: None,
                released,
                waits: 0,
            },
            context,
        );
    }

    /// An answer passes by on its way to an initiator that cannot be dialled.
    pub(super) fn relay(&mut self, from: Socket, mut message: Message, context: &mut Context<'_>) {
        context
            .oracle
            .relayed(context.queue.now(), &message, Some(self.id));
        context.hit(Point::AnswerRelayed);
        if let Message::Pong(pong) = &message {
            let now = self.now();
            self.records.pong_passes(pong, now);
        }
        let call = message.call();
        let token = message.token();
        let distance = message.distance().map_or(0, |far| *far);
        let next = token.and_then(|token| self.way_onward(call, token, distance));
        let next = next.map(|(next, _)| next).filter(|next| *next != from);
        if let Message::Response(response) = &message {
            if let Some(mut carrier) = self.carrier(from) {
                carrier.grant_call(response.call, 1, response.payload.len() as u64);
            }
            self.pump(from, context);
            let session = super::peers::session(next.unwrap_or(Socket::NONE));
            let passage = self.records.passing(response, session, self.now());
            self.tell_of(response, passage);
        }
        let initiator = call.initiator;
        let to = match self.peers.get(&from).and_then(super::Peer::node) {
            // It comes from the initiator's own server side: not over the connection of its request, so it shows its token.
            Some(node) if node == initiator => Destination::Over(from),
            _ => Destination::Onward(distance),
        };
        self.post(
            Parcel {
                message,
                to,
                job: None,
                released: None,
                waits: 0,
            },
            context,
        );
    }
}

impl Job {
    fn initiator(&self, small: bool) -> Destination {
        Destination::Initiator {
            address: self.initiator.clone(),
            came: self.came,
            small,
        }
    }
}

impl Node {
    /// What a node that is broken so makes of a pong.
    pub(super) fn spoil(&self, pong: &mut Pong, context: &mut Context<'_>) {
        let ended = pong.progress.as_mut().filter(|progress| progress.finished);
        if let Some(progress) = ended.filter(|ended| ended.manifest.is_some()) {
            context.hit(Point::PongManifest);
            if context.is(Broken::ManifestForgotten) {
                progress.manifest = None;
            }
        }
        let of = |job: &&Job| (job.server.call(), job.server.id()) == (pong.call, pong.request);
        let Some(job) = self.jobs.values().find(of) else {
            return;
        };
        if context.is(Broken::PongListsHeld)
            && job.server.holds_back()
            && let (Some(server), Some(progress)) = (job.delegated, &mut pong.progress)
        {
            progress.children.push(Child {
                server: address(context.plan, server),
                node: None,
            });
        }
        if context.is(Broken::GcFromArrival) {
            let ping = job.ping.unwrap_or_default();
            if self.now() > job.arrived + ping.gc_timeout() {
                pong.progress = None;
            }
        }
    }

    /// Whether anything of a call runs here.
    pub(super) fn runs(&self, call: CallId) -> bool {
        self.jobs.values().any(|job| job.server.call() == call)
    }

    /// The next thing that a task says; for how long it waits, if that is it.
    fn step(&mut self, job: &mut Job, context: &mut Context<'_>) -> Option<Duration> {
        let call = mark_of(job.server.call());
        let (released, wait) = match job.acts.pop_front() {
            Some(Act::Reply(answer)) => {
                job.delegated = None;
                (job.server.reply(answer.to_payload(call)), None)
            }
            Some(Act::Delegate(hop)) => {
                let to = (hop.server, hop.task.number);
                job.delegated = Some(hop.server);
                (job.server.delegate(to, hop.task.to_payload()), None)
            }
            Some(Act::Wait(wait)) if context.is(Broken::PongListsHeld) => (None, Some(wait)),
            Some(Act::Wait(wait)) => (job.server.flush(), Some(wait)),
            None => {
                self.end(job, context);
                return None;
            }
        };
        self.release(job, released, false, context);
        wait
    }

    fn end(&mut self, job: &mut Job, context: &mut Context<'_>) {
        let call = mark_of(job.server.call());
        let released = match job.finale.take() {
            None | Some(Finale::Return) => {
                let last = Some(job.server.finish(None));
                return self.release(job, last, true, context);
            }
            Some(Finale::Respond(answer)) => job.server.respond(answer.to_payload(call), None),
            Some(Finale::Forward(hop)) => {
                let to = (hop.server, hop.task.number);
                job.server.forward(to, hop.task.to_payload(), None)
            }
            Some(Finale::Fail) => {
                context.hit(Point::EndStatus);
                return self.fail(job, &Status::new(Code::Internal, "as planned"), context);
            }
            Some(Finale::Panic) => {
                context.hit(Point::EndPanic);
                return self.fail(job, &Status::new(Code::Panicked, "as planned"), context);
            }
        };
        let before = released.before.map(|before| *before);
        self.release(job, before, false, context);
        self.release(job, Some(released.last), true, context);
    }

    fn fail(&mut self, job: &mut Job, status: &Status, context: &mut Context<'_>) {
        job.acts.clear();
        let last = job.server.fail(status, None);
        self.release(job, Some(last), true, context);
    }

    /// A message exists from now on.
    fn release(
        &mut self,
        job: &mut Job,
        outbound: Option<Outbound<(u32, u32)>>,
        last: bool,
        context: &mut Context<'_>,
    ) {
        let Some(outbound) = outbound else { return };
        let (call, id) = (job.server.call(), job.server.id());
        cover_end(&outbound, id, last, job.sent, context);
        job.sent += 1;
        let what = match &outbound {
            Outbound::Request(delegated) => {
                let (server, task) = delegated.to;
                oracle::Sent::Request(delegated.id, task, server)
            }
            Outbound::Response(response) => oracle::Sent::Answer(
                Place::Response(response.request.path, response.index),
                response.status,
            ),
            Outbound::End(end) => oracle::Sent::Answer(Place::End(end.request.path), false),
        };
        let by = self.id;
        context
            .oracle
            .released(context.queue.now(), id, &Released { call, by, what }, last);
        if let Outbound::Response(response) = &outbound {
            context.oracle.says(response);
        }
        let now = self.now();
        let leaving = match outbound {
            Outbound::Response(response) => {
                self.records
                    .response_released(job.ticket, &response, None, now);
                Leaving::As(Outbound::Response(response))
            }
            Outbound::End(end) => {
                self.records.end_released(job.ticket, &end, None, now);
                Leaving::As(Outbound::End(end))
            }
            Outbound::Request(delegated) => self.release_request(job, delegated, now, context),
        };
        job.outbound.push_back(leaving);
    }

    fn release_request(
        &mut self,
        job: &Job,
        delegated: Delegated<(u32, u32)>,
        now: Duration,
        context: &mut Context<'_>,
    ) -> Leaving {
        let server = delegated.to.0;
        let to = Child {
            server: address(context.plan, server),
            node: self.found.get(&server).copied(),
        };
        let released = self
            .records
            .delegation_released(job.ticket, &delegated, to, None, now);
        let Err(frozen) = released else {
            return Leaving::As(Outbound::Request(delegated));
        };
        // Requests end here at their deadline to the moment, so none is late.
        if frozen == Frozen::Aborted {
            context.hit(Point::DelegationFrozen);
        }
        let inherited = Inherited {
            reply_to: ReplyTo::Relay,
            deadline: None,
            oldest: 0,
            options: None,
        };
        let (call, token) = (job.server.call(), job.server.token());
        let (_, request) = delegated.into_request(call, token, MethodRef::Number(0), inherited);
        let response = undelivered(&request, &frozen.status());
        context
            .oracle
            .replaced(context.queue.now(), self.id, &response);
        Leaving::Instead(response)
    }
}

/// Notes how a branch ends.
fn cover_end(
    outbound: &Outbound<(u32, u32)>,
    id: RequestId,
    last: bool,
    sent: u32,
    context: &mut Context<'_>,
) {
    if !last {
        return;
    }
    match outbound {
        Outbound::Response(response) if response.last => context.hit(Point::EndLast),
        Outbound::Response(_) => context.hit(Point::EndOwnManifest),
        Outbound::Request(delegated) if delegated.id.path != id.path => {
            context.hit(Point::EndOwnManifestOnRequest)
        }
        Outbound::Request(_) => {}
        Outbound::End(_) if sent == 0 => context.hit(Point::EndNull),
        Outbound::End(_) => context.hit(Point::EndLate),
    }
}
