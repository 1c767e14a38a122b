//! Bodies that follow requests: who writes them and who reads them.
//!
//! How long a body is stands in the task of its request, and each of its bytes follows from its place and the task's number: so its
//! reader knows whether it is whole.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use wallaby_proto::connection::BodyRefusal;
use wallaby_proto::endpoint::{BodyEnd, BodyNext, InBody, OutBody};
use wallaby_proto::{CallId, RequestId};

use crate::broken::Broken;
use crate::context::{Context, note};
use crate::coverage::Point;
use crate::node::Host;
use crate::oracle::Rule;
use crate::queue::Timer;
use crate::workload::Task;

/// So many bytes are written at a time.
const CHUNK: u32 = 1000;

/// How long a slow writer waits before it writes more.
const PAUSE: Duration = Duration::from_millis(10);

/// What a body says that its writer breaks off.
const BROKEN_OFF: &str = "as planned";

/// The bodies that a node writes.
#[derive(Debug, Default)]
pub(crate) struct Written(BTreeMap<OutBody, Writing>);

/// One body, and how much of it was accepted.
#[derive(Debug, Clone, Copy)]
struct Writing {
    body: BodyPlan,
    done: u32,
}

/// A body as it is planned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BodyPlan {
    /// The number of its request's task.
    number: u32,
    len: u32,
}

/// How much of a body a handler has read.
#[derive(Debug)]
pub(crate) struct Reading {
    pub(crate) body: InBody,
    plan: BodyPlan,
    done: u32,
}

impl BodyPlan {
    /// The body that follows the request of this task, if one does.
    pub(crate) fn of(task: &Task) -> Option<Self> {
        let number = task.number;
        task.body().map(|len| Self { number, len })
    }

    /// Whether its writer breaks it off in the middle.
    fn breaks_off(self) -> bool {
        self.number % 8 == 1
    }

    /// Whether there is not all of it at once.
    fn is_slow(self) -> bool {
        self.number.is_multiple_of(3)
    }

    /// Whether its reader drops it without a look.
    fn is_ignored(self) -> bool {
        self.number % 8 == 2
    }

    fn bytes(self, from: u32, to: u32) -> Bytes {
        let byte = |at: u32| (at % 251 + self.number) as u8;
        (from..to).map(byte).collect()
    }
}

impl Written {
    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

impl Host {
    /// A body is to be written.
    pub(crate) fn begin_body(&mut self, body: OutBody, plan: BodyPlan, context: &mut Context<'_>) {
        let writing = Writing {
            body: plan,
            done: 0,
        };
        self.written.0.insert(body, writing);
        self.write_body(body, context);
    }

    /// Writes as much of a body as is accepted.
    pub(crate) fn write_body(&mut self, body: OutBody, context: &mut Context<'_>) {
        let Some(mut writing) = self.written.0.remove(&body) else {
            return;
        };
        let plan = writing.body;
        let (len, how) = match plan.breaks_off() {
            true => (plan.len / 2, Err(BROKEN_OFF)),
            false => (plan.len, Ok(())),
        };
        loop {
            let to = (writing.done + CHUNK).min(len);
            let written = if writing.done < len {
                let mut chunk = plan.bytes(writing.done, to);
                let written = self.endpoint.write_body(body, &mut chunk);
                writing.done = to - chunk.len() as u32;
                if context.is(Broken::BodyGap) && written.is_ok() {
                    writing.done = to;
                }
                written
            } else {
                let ended = self.endpoint.end_body(body, how);
                if ended.is_ok() {
                    return;
                }
                ended
            };
            match written {
                Ok(()) if plan.is_slow() => {
                    self.written.0.insert(body, writing);
                    return self.wake(PAUSE, Timer::Write(body), context);
                }
                Ok(()) => {}
                Err(BodyRefusal::Blocked) => {
                    context.hit(Point::BodyBlocked);
                    self.written.0.insert(body, writing);
                    return;
                }
                Err(BodyRefusal::Stopped) => return context.hit(Point::BodyStopped),
            }
        }
    }

    /// Reads what has come of a body that belongs to this request; whether that was all.
    pub(crate) fn read_body(
        &mut self,
        (call, id): (CallId, RequestId),
        reading: &mut Reading,
        context: &mut Context<'_>,
    ) -> bool {
        let plan = reading.plan;
        if plan.is_ignored() {
            self.endpoint.drop_body(reading.body);
            return true;
        }
        loop {
            match self.endpoint.read_body(reading.body) {
                BodyNext::Chunk(chunk) => {
                    let end = reading.done + chunk.len() as u32;
                    if end > plan.len || chunk != plan.bytes(reading.done, end) {
                        let what = format!("{} bytes of the body of {id} of {call}", chunk.len());
                        context.violate(Rule::Corrupted, what);
                    }
                    reading.done = end;
                }
                BodyNext::Pending => return false,
                BodyNext::End(how) => {
                    note!(
                        context,
                        self.index,
                        "read {} bytes behind {id}: {how:?}",
                        reading.done
                    );
                    reading.judge((call, id), how, context);
                    return true;
                }
            }
        }
    }
}

impl Reading {
    /// The body that has come with the request of this task.
    pub(crate) fn new(body: InBody, task: &Task) -> Option<Self> {
        let (plan, done) = (BodyPlan::of(task)?, 0);
        Some(Self { body, plan, done })
    }

    /// It has ended so.
    fn judge(
        &self,
        (call, id): (CallId, RequestId),
        how: Result<(), BodyEnd>,
        context: &mut Context<'_>,
    ) {
        let (plan, done) = (self.plan, self.done);
        match how {
            Ok(()) => {
                context.hit(Point::BodyWhole);
                if done < plan.len || plan.breaks_off() {
                    let what = format!("{done} bytes behind {id} of {call} are said to be all");
                    context.violate(Rule::Corrupted, what);
                }
            }
            Err(BodyEnd::Broken(why)) if why == BROKEN_OFF && plan.breaks_off() => {
                context.hit(Point::BodyBroken);
                if done > plan.len / 2 {
                    let what = format!("{done} bytes behind {id} of {call} came before its break");
                    context.violate(Rule::Corrupted, what);
                }
            }
            Err(why) => {
                context.hit(Point::BodyLost);
                // Nothing is lost, and its call goes on.
                if context.plan.is_calm() && context.oracle.is_open(call) {
                    let what = format!("the body of {id} of {call}: {why}");
                    context.violate(Rule::FalseFailure, what);
                }
            }
        }
    }
}
