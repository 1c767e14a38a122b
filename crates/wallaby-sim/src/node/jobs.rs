//! Requests that run at a node, as their tasks say.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use wallaby_proto::endpoint::{
    Destination, Endpoint, How, Lane, Offer, Offered, Permit, RequestKey, Sending,
};
use wallaby_proto::error::SendError;
use wallaby_proto::wire::Child;
use wallaby_proto::{CallId, Code, RequestId, Status};

use super::eyes::Eyes;
use super::{Node, address};
use crate::broken::Broken;
use crate::context::{Context, note};
use crate::coverage::Point;
use crate::queue::Timer;
use crate::workload::{Act, Answer, Finale, Hop, Task};

/// By how much some handlers stop late.
const TARDY: Duration = Duration::from_millis(10);

/// By how much a few of these do: longer than anybody asks.
const STUBBORN: Duration = Duration::from_secs(25);

/// One request that is handled.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) call: CallId,
    id: RequestId,
    acts: VecDeque<Act>,
    finale: Option<Finale>,
    /// Of one that goes on when it is told to stop.
    permit: Option<Permit>,
    /// What it waits for, if it goes on as soon as it is told of that.
    awaits: Option<Awaited>,
}

/// What a handler waits for that cannot send something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Awaited {
    Room(Lane),
    Space,
}

/// How far a handler got.
enum Step {
    /// It goes on after so long.
    Waits(Duration),
    /// It goes on when it may send more.
    Awaits(Awaited),
    Returned(Result<(), Status>),
}

impl Node {
    /// A request is to be handled.
    pub(super) fn run(&mut self, key: RequestKey, context: &mut Context<'_>) {
        let Ok(incoming) = self.endpoint.take_request(key) else {
            return;
        };
        if let Some(body) = incoming.body {
            self.endpoint.drop_body(body);
        }
        let Some(handler) = self.endpoint.request(key) else {
            return;
        };
        let (call, id) = (handler.call(), handler.id());
        note!(context, self.index, "runs {id} of {call}");
        let now = context.now();
        context.oracle.progressed(now, call, id); // it may have waited for its turn
        context.oracle.executes(call, id);
        let task = Task::from_payload(&incoming.payload).unwrap_or(Task::NOTHING);
        let job = Job {
            call,
            id,
            acts: task.acts.into(),
            finale: Some(task.finale),
            permit: match self.plan.tardy {
                true => self.endpoint.keep_permit(key),
                false => None,
            },
            awaits: None,
        };
        self.go_on(key, job, context);
    }

    /// A handler's wait is over.
    pub(super) fn resume(&mut self, key: RequestKey, context: &mut Context<'_>) {
        let Some(job) = self.jobs.remove(&key) else {
            return;
        };
        if !self.endpoint.resume(key) {
            self.done(job);
        } else {
            let now = context.now();
            context.oracle.progressed(now, job.call, job.id);
            self.go_on(key, job, context);
        }
    }

    /// No message of a request waits any more in this direction.
    pub(super) fn has_room(&mut self, key: RequestKey, lane: Lane, context: &mut Context<'_>) {
        self.go_on_for(key, Awaited::Room(lane), context);
    }

    /// There may be room again for what was refused to a request.
    pub(super) fn has_space(&mut self, key: RequestKey, context: &mut Context<'_>) {
        self.go_on_for(key, Awaited::Space, context);
    }

    fn go_on_for(&mut self, key: RequestKey, what: Awaited, context: &mut Context<'_>) {
        let job = self.jobs.get_mut(&key);
        if job.is_some_and(|job| job.awaits.take_if(|awaited| *awaited == what).is_some()) {
            self.resume(key, context);
        }
    }

    /// A request has ended that its handler has put aside.
    pub(super) fn stopped(&mut self, key: RequestKey, why: &Status, context: &mut Context<'_>) {
        if why.code() == Code::DeadlineExceeded {
            context.hit(Point::RequestDeadline);
        }
        // Who is tardy finds out only when it goes on.
        match self.plan.tardy {
            true if context.random.one_in(8) => self.wake(STUBBORN, Timer::Resume(key), context),
            true => self.wake(TARDY, Timer::Resume(key), context),
            false => drop(self.jobs.remove(&key)),
        }
    }

    /// Lets a handler go on until it waits, or returns.
    fn go_on(&mut self, key: RequestKey, mut job: Job, context: &mut Context<'_>) {
        let place = (job.call, job.id);
        self.endpoint.probe().upcoming.remove(&place);
        match self.step(key, &mut job, context) {
            Step::Awaits(what) => {
                job.awaits = Some(what);
                self.endpoint.put_aside(key);
                self.jobs.insert(key, job);
            }
            Step::Waits(wait) => {
                if context.is(Broken::PongListsHeld)
                    && let Some(Act::Delegate(hop)) = job.acts.front()
                {
                    let server = address(context.plan, hop.server);
                    let next = Child { server, node: None };
                    self.endpoint.probe().upcoming.insert(place, next);
                }
                self.endpoint.put_aside(key);
                self.wake(wait, Timer::Resume(key), context);
                self.jobs.insert(key, job);
            }
            Step::Returned(result) => {
                self.endpoint.returned(key, result);
                self.done(job);
            }
        }
    }

    /// A handler is done.
    fn done(&mut self, job: Job) {
        if let Some(permit) = job.permit {
            self.endpoint.release_permit(permit);
        }
    }

    fn step(&mut self, key: RequestKey, job: &mut Job, context: &mut Context<'_>) -> Step {
        while let Some(act) = job.acts.pop_front() {
            let message = match &act {
                Act::Wait(wait) => return Step::Waits(*wait),
                Act::Reply(answer) => Sending::Answer(said(answer, job)),
                Act::Delegate(hop) => self.hop(hop, context),
            };
            match self.offer(key, message, How::More, context) {
                Ok(Offered::Sent(None)) => {}
                Ok(Offered::Sent(Some(lane))) => return Step::Awaits(Awaited::Room(lane)),
                Ok(offered) => {
                    job.acts.push_front(act);
                    return Self::wait_to_offer(offered);
                }
                Err(error) => return Step::Returned(Err(error.into())),
            }
        }
        let sent = match &job.finale {
            None | Some(Finale::Return) => return Step::Returned(Ok(())),
            Some(Finale::Respond(answer)) => {
                self.offer(key, Sending::Answer(said(answer, job)), How::Last, context)
            }
            Some(Finale::Forward(hop)) => {
                let message = self.hop(hop, context);
                self.offer(key, message, How::Last, context)
            }
            Some(Finale::Fail) => {
                context.hit(Point::EndStatus);
                let status = Status::new(Code::Internal, "as planned");
                return Step::Returned(Err(status));
            }
            Some(Finale::Panic) => {
                context.hit(Point::EndPanic);
                let status = self.endpoint.panicked("as planned".to_owned());
                return Step::Returned(Err(status));
            }
        };
        match sent {
            Ok(Offered::Sent(_)) => Step::Returned(Ok(())),
            Ok(offered) => Self::wait_to_offer(offered),
            Err(error) => Step::Returned(Err(error.into())),
        }
    }

    /// Sends a message, as the drivers do: only on tokio handlers wait for what they have sent before.
    fn offer(
        &mut self,
        key: RequestKey,
        message: Sending,
        how: How,
        context: &mut Context<'_>,
    ) -> Result<Offered, SendError> {
        let send =
            |endpoint: &mut Endpoint<Eyes>, message| endpoint.send_message(key, message, how);
        if !self.plan.tokio {
            return match send(&mut self.endpoint, message) {
                Err(SendError::Full) => Ok(Offered::Full),
                sent => sent.map(|()| Offered::Sent(None)),
            };
        }
        let message = &mut Some(message);
        let offered = (self.endpoint).offer(key, Offer::Wait, message, Sending::outline, send);
        match offered {
            Ok(Offered::Waits(_) | Offered::Sent(Some(_))) => context.hit(Point::HandlerWaits),
            Ok(Offered::Full) => context.hit(Point::HandlerFull),
            _ => {}
        }
        offered
    }

    /// How a handler waits that could not send something.
    fn wait_to_offer(offered: Offered) -> Step {
        match offered {
            Offered::Waits(lane) => Step::Awaits(Awaited::Room(lane)),
            Offered::Sent(_) | Offered::Full => Step::Awaits(Awaited::Space),
        }
    }

    fn hop(&self, hop: &Hop, context: &Context<'_>) -> Sending {
        let to = Destination::new(address(context.plan, hop.server), &self.method);
        Sending::Delegation(to, hop.task.to_payload())
    }
}

/// What an answer of a request says.
fn said(answer: &Answer, job: &Job) -> Bytes {
    answer.to_payload(mark_of(job.call))
}

/// What answers of a call say of it.
pub(super) fn mark_of(call: CallId) -> u64 {
    call.initiator.get().rotate_left(17) ^ call.sequence
}
