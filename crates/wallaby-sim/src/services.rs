//! What a node serves: requests that run as their tasks say.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use wallaby_proto::endpoint::{
    Destination, Endpoint, How, InBody, Lane, NewDelegation, Offer, Offered, Outline, Permit,
    RequestKey, Sending, StuckHandler,
};
use wallaby_proto::error::SendError;
use wallaby_proto::wire::Child;
use wallaby_proto::{CallId, Code, RequestId, Status};

use crate::addresses::address;
use crate::bodies::{BodyPlan, Reading};
use crate::broken::Broken;
use crate::context::{Context, note};
use crate::coverage::Point;
use crate::node::Host;
use crate::oracle::Rule;
use crate::queue::Timer;
use crate::sight::Eyes;
use crate::workload::{Act, Answer, Finale, Hop, Task};

/// By how much some handlers stop late.
const TARDY: Duration = Duration::from_millis(10);

/// By how much a few of these do: longer than anybody asks.
const STUBBORN: Duration = Duration::from_secs(25);

/// The requests that run at a node.
#[derive(Debug, Default)]
pub(crate) struct Services(BTreeMap<RequestKey, Job>);

/// One request that is handled.
#[derive(Debug)]
struct Job {
    call: CallId,
    id: RequestId,
    acts: VecDeque<Act>,
    finale: Finale,
    /// Of one that goes on when it is told to stop.
    permit: Option<Permit>,
    /// Which of the methods served it calls.
    served: usize,
    /// What it waits for, if it goes on as soon as it is told of that.
    awaits: Option<Awaited>,
    /// The body that follows its request.
    body: Option<Reading>,
    /// Nobody waits any more for it to stop.
    stuck: bool,
}

/// What a handler waits for that cannot send something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Awaited {
    /// That none of its messages wait any more in this direction.
    Room(Lane),
    /// That there may be room again.
    Space,
    /// More of its request's body.
    Body,
    /// That interceptors let it pass.
    Decision,
    /// Its turn, after that.
    Turn,
}

/// How far a handler got.
enum Step {
    /// It goes on after so long.
    Waits(Duration),
    /// It goes on when it may send more.
    Awaits(Awaited),
    Returned(Result<(), Status>),
}

impl Services {
    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// How many of them somebody waits for.
    pub(crate) fn running(&self) -> usize {
        self.0.values().filter(|job| !job.stuck).count()
    }

    /// A handler that was told to stop goes on for long.
    pub(crate) fn stuck(&mut self, which: &StuckHandler, context: &mut Context<'_>) {
        context.hit(Point::HandlerStuck);
        let mut jobs = self.0.values_mut();
        let job = jobs.find(|job| (job.call, job.id) == (which.call, which.request));
        if let Some(job) = job {
            job.stuck = true;
        }
    }

    /// A request is to be handled.
    pub(crate) fn run(&mut self, key: RequestKey, host: &mut Host, context: &mut Context<'_>) {
        if self.0.contains_key(&key) {
            return self.told((key, Awaited::Turn), host, context);
        }
        let Ok(incoming) = host.endpoint.take_request(key) else {
            return;
        };
        let Some(handler) = host.endpoint.request(key) else {
            return;
        };
        let (call, id) = (handler.call(), handler.id());
        let task = Task::from_payload(&incoming.payload).unwrap_or(Task::NOTHING);
        let body = incoming.body.and_then(|body| Reading::new(body, &task));
        let mut job = Job {
            call,
            id,
            served: incoming.method,
            acts: task.acts.into(),
            finale: task.finale,
            permit: None,
            awaits: None,
            body,
            stuck: false,
        };
        if host.plan.intercepted {
            job.put_aside(key, Some(Awaited::Decision), host);
            let decided = context.random.millis(0, 20);
            host.wake(decided, Timer::Resume(key), context);
            self.0.insert(key, job);
        } else {
            self.begin(key, job, host, context);
        }
    }

    /// Its turn has come.
    fn begin(&mut self, key: RequestKey, mut job: Job, host: &mut Host, context: &mut Context<'_>) {
        let (call, id) = (job.call, job.id);
        note!(context, host.index, "runs {id} of {call}");
        let now = context.now();
        context.oracle.progressed(now, call, id); // it may have waited for its turn
        context.oracle.executes(call, id);
        if host.plan.tardy {
            job.permit = host.endpoint.keep_permit(key);
        }
        self.go_on(key, job, host, context);
    }

    /// Interceptors let a request pass: it runs when it is its turn.
    fn enqueue(
        &mut self,
        key: RequestKey,
        mut job: Job,
        host: &mut Host,
        context: &mut Context<'_>,
    ) {
        context.hit(Point::RequestAhead);
        job.awaits = Some(Awaited::Turn);
        match host.endpoint.run_as(key, job.served) {
            Ok(()) => drop(self.0.insert(key, job)),
            Err(_) => {
                context.hit(Point::RequestAheadRefused);
                job.done(host);
            }
        }
    }

    /// A handler's wait is over.
    pub(crate) fn resume(&mut self, key: RequestKey, host: &mut Host, context: &mut Context<'_>) {
        let Some(job) = self.0.remove(&key) else {
            return;
        };
        if job.awaits == Some(Awaited::Decision) {
            self.enqueue(key, job, host, context);
        } else if !host.endpoint.resume(key) {
            job.done(host);
        } else {
            let now = context.now();
            context.oracle.progressed(now, job.call, job.id);
            self.go_on(key, job, host, context);
        }
    }

    /// What a handler may have waited for is so.
    pub(crate) fn told(
        &mut self,
        (key, what): (RequestKey, Awaited),
        host: &mut Host,
        context: &mut Context<'_>,
    ) {
        let job = self.0.get_mut(&key);
        if job.is_none_or(|job| job.awaits.take_if(|awaited| *awaited == what).is_none()) {
            return;
        }
        match (what, self.0.remove(&key)) {
            (Awaited::Turn, Some(job)) => self.begin(key, job, host, context),
            (_, Some(job)) => {
                self.0.insert(key, job);
                self.resume(key, host, context);
            }
            _ => {}
        }
    }

    /// A request has ended that its handler has put aside.
    pub(crate) fn stopped(
        &mut self,
        (key, why): (RequestKey, &Status),
        host: &mut Host,
        context: &mut Context<'_>,
    ) {
        if why.code() == Code::DeadlineExceeded {
            context.hit(Point::RequestDeadline);
        }
        // Who is tardy finds out only when it goes on.
        match host.plan.tardy {
            true if context.random.one_in(8) => host.wake(STUBBORN, Timer::Resume(key), context),
            true => host.wake(TARDY, Timer::Resume(key), context),
            false => {
                if let Some(job) = self.0.remove(&key) {
                    job.done(host);
                }
            }
        }
    }

    /// More of a body may be read.
    pub(crate) fn body_told(&mut self, body: InBody, host: &mut Host, context: &mut Context<'_>) {
        let is_its = |job: &Job| job.body.as_ref().is_some_and(|read| read.body == body);
        let reader = self.0.iter().find(|(_, job)| is_its(job));
        if let Some(key) = reader.map(|(key, _)| *key) {
            self.told((key, Awaited::Body), host, context);
        }
    }

    /// Lets a handler go on until it waits, or returns.
    fn go_on(&mut self, key: RequestKey, mut job: Job, host: &mut Host, context: &mut Context<'_>) {
        let place = (job.call, job.id);
        host.endpoint.probe().upcoming.remove(&place);
        match job.step(key, host, context) {
            Step::Awaits(what) => {
                job.put_aside(key, Some(what), host);
                self.0.insert(key, job);
            }
            Step::Waits(wait) => {
                if context.is(Broken::PongListsHeld)
                    && let Some(Act::Delegate(hop)) = job.acts.front()
                {
                    let server = address(context.plan, hop.server);
                    let next = Child { server, node: None };
                    host.endpoint.probe().upcoming.insert(place, next);
                }
                job.put_aside(key, None, host);
                host.wake(wait, Timer::Resume(key), context);
                self.0.insert(key, job);
            }
            Step::Returned(result) => {
                job.end(key, result, host);
                job.done(host);
            }
        }
    }
}

impl Job {
    /// Reads on in the body of its request; whether it has ended.
    fn read(&mut self, host: &mut Host, context: &mut Context<'_>) -> bool {
        let request = (self.call, self.id);
        let Some(body) = &mut self.body else {
            let what = format!("{} of {} has come without its body", self.id, self.call);
            context.violate(Rule::Corrupted, what);
            return true;
        };
        host.read_body(request, body, context)
    }

    fn put_aside(&mut self, key: RequestKey, awaits: Option<Awaited>, host: &mut Host) {
        self.awaits = awaits;
        host.endpoint.put_aside(key);
    }

    /// Its request ends, as each driver ends it.
    fn end(&self, key: RequestKey, result: Result<(), Status>, host: &mut Host) {
        match result {
            Ok(()) if host.plan.tokio => drop(host.endpoint.finish_request(key)),
            result => drop(host.endpoint.returned(key, result)),
        }
    }

    /// Its handler is done.
    fn done(self, host: &mut Host) {
        if let Some(permit) = self.permit {
            host.endpoint.release_permit(permit);
        }
        if let Some(read) = self.body {
            host.endpoint.drop_body(read.body);
        }
    }

    fn step(&mut self, key: RequestKey, host: &mut Host, context: &mut Context<'_>) -> Step {
        while let Some(act) = self.acts.pop_front() {
            let message = match &act {
                Act::Wait(wait) => return Step::Waits(*wait),
                Act::Read(_) if self.read(host, context) => continue,
                Act::Read(_) => {
                    self.acts.push_front(act);
                    return Step::Awaits(Awaited::Body);
                }
                Act::Reply(answer) => said(answer, self.call),
                Act::Delegate(hop) => delegation(hop, host, context),
            };
            match offer((key, message), How::More, host, context) {
                Ok(Offered::Sent(None)) => {}
                Ok(Offered::Sent(Some(lane))) => return Step::Awaits(Awaited::Room(lane)),
                Ok(offered) => {
                    self.acts.push_front(act);
                    return wait_to_offer(offered);
                }
                Err(error) => return Step::Returned(Err(error.into())),
            }
        }
        let message = match &self.finale {
            Finale::Return => return Step::Returned(Ok(())),
            Finale::Respond(answer) => said(answer, self.call),
            Finale::Forward(hop) => delegation(hop, host, context),
            Finale::Fail => {
                context.hit(Point::EndStatus);
                let status = Status::new(Code::Internal, "as planned");
                return Step::Returned(Err(status));
            }
            Finale::Panic => {
                context.hit(Point::EndPanic);
                let status = host.endpoint.panicked("as planned".to_owned());
                return Step::Returned(Err(status));
            }
        };
        match offer((key, message), How::Last, host, context) {
            Ok(Offered::Sent(_)) => Step::Returned(Ok(())),
            Ok(offered) => wait_to_offer(offered),
            Err(error) => Step::Returned(Err(error.into())),
        }
    }
}

/// Sends a message, as the drivers do: only on tokio handlers wait for what they have sent before.
fn offer(
    (key, message): (RequestKey, Message),
    how: How,
    host: &mut Host,
    context: &mut Context<'_>,
) -> Result<Offered, SendError> {
    let mut following = None;
    let mut send = |endpoint: &mut Endpoint<Eyes>, message| match message {
        Message::Alone(message) => endpoint.send_message(key, message, how),
        Message::Followed(delegation, plan) => {
            let body = endpoint.delegate_with(key, *delegation, how)?;
            following = body.map(|body| (body, plan));
            Ok(())
        }
    };
    let offered = match host.plan.tokio {
        true => {
            let message = &mut Some(message);
            (host.endpoint).offer(key, Offer::Wait, message, Message::outline, send)
        }
        false => match send(&mut host.endpoint, message) {
            Err(SendError::Full) => Ok(Offered::Full),
            sent => sent.map(|()| Offered::Sent(None)),
        },
    };
    if let Some((body, plan)) = following {
        host.begin_body(body, plan, context);
    }
    match offered {
        Ok(Offered::Full) if host.plan.tokio => context.hit(Point::HandlerFull),
        Ok(Offered::Waits(_) | Offered::Sent(Some(_))) => context.hit(Point::HandlerWaits),
        _ => {}
    }
    offered
}

/// What a handler sends.
enum Message {
    Alone(Sending),
    /// A delegation that a body follows.
    Followed(Box<NewDelegation>, BodyPlan),
}

impl Message {
    /// What it needs on its way.
    fn outline(&self) -> Outline<'_> {
        match self {
            Self::Alone(message) => message.outline(),
            Self::Followed(delegation, _) => Outline {
                server: Some(&delegation.server),
                payload: delegation.payload.len(),
                followed: true,
            },
        }
    }
}

/// How a handler waits that could not send something.
fn wait_to_offer(offered: Offered) -> Step {
    match offered {
        Offered::Waits(lane) => Step::Awaits(Awaited::Room(lane)),
        Offered::Sent(_) | Offered::Full => Step::Awaits(Awaited::Space),
    }
}

fn delegation(hop: &Hop, host: &Host, context: &Context<'_>) -> Message {
    let (server, payload) = (address(context.plan, hop.server), hop.task.to_payload());
    let Some(body) = BodyPlan::of(&hop.task) else {
        let to = Destination::new(server, &host.method);
        return Message::Alone(Sending::Delegation(to, payload));
    };
    let delegation = NewDelegation {
        server,
        method: Arc::clone(&host.method),
        payload,
        options: None,
        followed: true,
    };
    Message::Followed(Box::new(delegation), body)
}

/// What an answer of a request says.
fn said(answer: &Answer, call: CallId) -> Message {
    Message::Alone(Sending::Answer(answer.to_payload(mark_of(call))))
}

/// What answers of a call say of it.
pub(crate) fn mark_of(call: CallId) -> u64 {
    call.initiator.get().rotate_left(17) ^ call.sequence
}
