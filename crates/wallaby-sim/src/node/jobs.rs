//! Requests that run at a node, as their tasks say.

use std::collections::VecDeque;
use std::time::Duration;

use wallaby_proto::endpoint::{Permit, RequestKey};
use wallaby_proto::error::SendError;
use wallaby_proto::wire::Child;
use wallaby_proto::{CallId, Code, RequestId, Status};

use super::{Node, address};
use crate::broken::Broken;
use crate::context::{Context, note};
use crate::coverage::Point;
use crate::queue::Timer;
use crate::workload::{Act, Answer, Finale, Hop, Task};

/// How long a handler waits for room to send something.
const FULL: Duration = Duration::from_millis(5);

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
}

/// How far a handler got.
enum Step {
    /// It goes on after so long.
    Waits(Duration),
    Returned(Result<(), Status>),
}

impl Node {
    /// A request is to be handled.
    pub(super) fn run(&mut self, key: RequestKey, context: &mut Context<'_>) {
        let Some(incoming) = self.endpoint.take_request(key) else {
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

    /// A request has ended that its handler has put aside.
    pub(super) fn stopped(&mut self, key: RequestKey, why: &Status, context: &mut Context<'_>) {
        if why.code() == Code::DeadlineExceeded {
            context.hit(Point::RequestDeadline);
        }
        // Who is tardy finds out only when it goes on.
        match self.plan.tardy {
            true if self.plan.places.is_none() && context.random.one_in(8) => {
                self.wake(STUBBORN, Timer::Resume(key), context)
            }
            true => self.wake(TARDY, Timer::Resume(key), context),
            false => drop(self.jobs.remove(&key)),
        }
    }

    /// Lets a handler go on until it waits, or returns.
    fn go_on(&mut self, key: RequestKey, mut job: Job, context: &mut Context<'_>) {
        let place = (job.call, job.id);
        self.endpoint.probe().upcoming.remove(&place);
        match self.step(key, &mut job, context) {
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
            let sent = match &act {
                Act::Wait(wait) => return Step::Waits(*wait),
                Act::Reply(answer) => self.endpoint.reply(key, said(answer, job)),
                Act::Delegate(hop) => {
                    let (to, payload) = self.hop(hop, context);
                    self.endpoint.delegate(key, to, &self.method, payload)
                }
            };
            match sent {
                Ok(()) => {}
                Err(SendError::Full) => {
                    job.acts.push_front(act);
                    return Step::Waits(FULL);
                }
                Err(error) => return Step::Returned(Err(error.into())),
            }
        }
        let sent = match &job.finale {
            None | Some(Finale::Return) => Ok(()),
            Some(Finale::Respond(answer)) => self.endpoint.respond(key, said(answer, job)),
            Some(Finale::Forward(hop)) => {
                let (to, payload) = self.hop(hop, context);
                self.endpoint.forward(key, to, &self.method, payload)
            }
            Some(Finale::Fail) => {
                context.hit(Point::EndStatus);
                let status = Status::new(Code::Internal, "as planned");
                return Step::Returned(Err(status));
            }
            Some(Finale::Panic) => {
                context.hit(Point::EndPanic);
                self.endpoint.note_panic();
                let status = Status::new(Code::Panicked, "as planned");
                return Step::Returned(Err(status));
            }
        };
        match sent {
            Err(SendError::Full) => Step::Waits(FULL),
            sent => Step::Returned(sent.map_err(Status::from)),
        }
    }

    fn hop(&self, hop: &Hop, context: &Context<'_>) -> (wallaby_proto::Address, bytes::Bytes) {
        (address(context.plan, hop.server), hop.task.to_payload())
    }
}

/// What an answer of a request says.
fn said(answer: &Answer, job: &Job) -> bytes::Bytes {
    answer.to_payload(mark_of(job.call))
}

/// What answers of a call say of it.
pub(super) fn mark_of(call: CallId) -> u64 {
    call.initiator.get().rotate_left(17) ^ call.sequence
}
