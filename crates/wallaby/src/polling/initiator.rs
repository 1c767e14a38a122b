//! The calls that an endpoint makes, and what comes of them.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use wallaby_proto::connection::MethodDefinition;
use wallaby_proto::endpoint::{CallKey, CallOptions, IncomingAnswer, Next, Outcome};
use wallaby_proto::{Address, RequestId};

use super::bodies::{BodyNews, BodyWriter};
use super::calls::Initial;
use super::datagrams::Datagrams;
use super::event::{Call, Event};
use super::{Endpoint, Notification, Wait};
use crate::body::Body;
use crate::codec::Codec;
use crate::error::{CallError, ConnectError, Failure};
use crate::method::{self, One, Target};

impl<D: Datagrams> Endpoint<D> {
    /// Makes a call with one initial request, and with the body of the target, if it has one. It leaves at the latest in the next
    /// [`turn`](Self::turn).
    ///
    /// A body is asked for its bytes in turns, when there is room for them, and must not block: it is what another request was
    /// followed by, for instance, or what an iterator yields ([`crate::items`]), or is written piece by piece
    /// ([`body_writer`](Self::body_writer)). Somebody who wakes it on another thread does not wake the endpoint.
    ///
    /// # Errors
    ///
    /// If it cannot be sent; there is no event of the call then.
    pub fn call<A: method::Answers, C: Codec<A::Item>>(
        &mut self,
        server: impl Into<Address>,
        target: Target<A, C>,
        options: &CallOptions,
    ) -> Result<Call<A, C>, Failure> {
        let (method, body) = (&target.definition, target.body);
        let initial = Initial::new(server, method, target.payload?, body);
        self.make_call(options, initial).map(Call::new)
    }

    /// The same with its payload as bytes.
    ///
    /// # Errors
    ///
    /// As [`call`](Self::call).
    pub fn call_raw(
        &mut self,
        server: impl Into<Address>,
        method: &Arc<MethodDefinition>,
        payload: Bytes,
        options: &CallOptions,
    ) -> Result<CallKey, Failure> {
        self.make_call(options, Initial::new(server, method, payload, None))
    }

    fn make_call(
        &mut self,
        options: &CallOptions,
        initial: Initial<'_>,
    ) -> Result<CallKey, Failure> {
        self.look_at_clock();
        self.calling.call(&mut self.core, None, options, initial)
    }

    /// Begins a call of several initial requests. It can complete only when no more can come: after
    /// [`close_call`](Self::close_call).
    ///
    /// # Errors
    ///
    /// If as many calls live as may.
    pub fn begin(&mut self, options: &CallOptions) -> Result<CallKey, Failure> {
        self.look_at_clock();
        self.core.begin(options)
    }

    /// Sends an initial request of a call.
    ///
    /// # Errors
    ///
    /// If it cannot be sent, or the call is closed or has ended. The call has failed, and an event says so.
    pub fn send(
        &mut self,
        call: CallKey,
        server: impl Into<Address>,
        method: &Arc<MethodDefinition>,
        payload: Bytes,
    ) -> Result<RequestId, Failure> {
        self.look_at_clock();
        let initial = Initial::new(server, method, payload, None);
        self.calling.send(&mut self.core, call, initial)
    }

    /// Sends an initial request of a call, and then a body, as [`call`](Self::call) says. It is not sent again, whatever the call's
    /// options say.
    ///
    /// # Errors
    ///
    /// As [`send`](Self::send).
    pub fn send_with_body(
        &mut self,
        call: CallKey,
        server: impl Into<Address>,
        method: &Arc<MethodDefinition>,
        payload: Bytes,
        body: Body,
    ) -> Result<RequestId, Failure> {
        self.look_at_clock();
        let initial = Initial::new(server, method, payload, Some(body));
        self.calling.send(&mut self.core, call, initial)
    }

    /// A body that is written piece by piece, to be sent with a call or a delegation.
    pub fn body_writer(&mut self) -> (BodyWriter, Body) {
        self.calling.bodies.writer()
    }

    /// Says how many initial requests of a call will come: each gets an equal part of its budgets, if these are stated.
    pub fn share_among(&mut self, call: CallKey, requests: u32) {
        self.core.share_among(call, requests);
    }

    /// No further initial request of a call comes.
    pub fn close_call(&mut self, call: CallKey) {
        self.core.close_call(call);
    }

    /// Gives a call up: it fails with [`Failure::Aborted`], and what runs of it elsewhere is stopped.
    pub fn abort(&mut self, call: CallKey) {
        self.look_at_clock();
        if !self.calling.abort_retried(&mut self.core, call) {
            self.core.abort(call);
        }
    }

    /// Connects to a server ahead of the first call. [`Event::Connected`] tells when it is done, or why it cannot be; at once if
    /// there is a connection already.
    ///
    /// # Errors
    ///
    /// If it is not dialled; there is no event then.
    pub fn connect(&mut self, server: impl Into<Address>) -> Result<(), ConnectError> {
        self.look_at_clock();
        let server = server.into();
        match self.core.connect(&server)? {
            Some(id) => drop(self.connecting.insert(id, server)),
            None => {
                let result = Ok(());
                self.tell_of(Notification::Told(Event::Connected { server, result }));
            }
        }
        Ok(())
    }

    /// What happened next, if anything has.
    pub fn next_event(&mut self) -> Option<Event> {
        self.end_after_panic();
        if self.calling.told.is_empty() {
            self.follow();
        }
        loop {
            match self.calling.told.pop_front()? {
                Notification::Stopped(request, status) => {
                    return Some(Event::Stopped { request, status });
                }
                // Nobody waits for it if it has ended.
                Notification::Room(request) if self.core.request(request).is_none() => {}
                Notification::Room(request) => return Some(Event::Room { request }),
                Notification::Body(BodyNews::Came(request)) => {
                    return Some(Event::Body { request });
                }
                Notification::Body(BodyNews::Room(body)) => return Some(Event::BodyRoom { body }),
                // Its end comes first.
                Notification::Settled(call, running) if self.is_to_be_told(call) => {
                    let settled = Notification::Settled(call, running);
                    self.calling.told.push_back(settled);
                }
                Notification::Settled(call, running) => {
                    let stopped = match running.is_empty() {
                        true => Ok(()),
                        false => Err(running),
                    };
                    return Some(Event::Settled { call, stopped });
                }
                Notification::Told(event) => return Some(event),
                Notification::Call(call) => {
                    let event = match self.calling.retried_by(call) {
                        Some(key) => self.calling.next_of_attempt(&mut self.core, call, key),
                        None => self.next_of_call(call),
                    };
                    if event.is_some() {
                        return event;
                    }
                }
            }
        }
    }

    fn is_to_be_told(&self, call: CallKey) -> bool {
        let mut told = self.calling.told.iter();
        told.any(|told| matches!(told, Notification::Call(key) if *key == call))
    }

    fn next_of_call(&mut self, call: CallKey) -> Option<Event> {
        Some(match self.core.next_answer(call) {
            Next::Answer(answer) => {
                self.calling.told.push_back(Notification::Call(call)); // others have their turn
                Event::Answer(answer)
            }
            Next::Trace(trace) => {
                self.calling.told.push_front(Notification::Call(call));
                Event::Trace { call, trace }
            }
            Next::Ended(Outcome::Complete { statuses }) => Event::Complete { call, statuses },
            Next::Ended(Outcome::Failed(failure)) => Event::Failed {
                call,
                failure: Box::new(failure),
            },
            Next::Pending => return None,
        })
    }

    /// Whether there is something that the application was not told.
    pub(super) fn has_event(&mut self) -> bool {
        while let Some(Notification::Call(call)) = self.calling.told.front()
            && !self.core.has_next(*call)
        {
            let call = *call;
            let _ = self.core.next_answer(call); // so that it is told again when there is more
            self.calling.told.pop_front();
        }
        !self.calling.told.is_empty()
    }

    /// Makes a call of a method that answers once, and turns the endpoint until it is over; events of other calls are kept
    /// meanwhile. `wait` is how each turn waits: [`Wait::Not`] keeps the processor busy.
    ///
    /// # Errors
    ///
    /// How the call failed, or the status in place of its answer. [`Failure::Closed`] if the socket fails, which is logged: then nothing
    /// comes any more.
    pub fn ask<T: Send + 'static, C: Codec<T>>(
        &mut self,
        server: impl Into<Address>,
        target: Target<One<T>, C>,
        options: &CallOptions,
        wait: Wait,
    ) -> Result<T, CallError> {
        let call = self.call(server, target, options)?;
        self.asked = Some(call.key());
        let ended = self.wait_for(call, wait);
        self.asked = None;
        let answer = ended.map_err(|error| {
            tracing::error!(%error, "nothing can be received any more");
            self.core.forget(call.key());
            Failure::Closed
        })?;
        answer?.ok_or(Failure::NoAnswer)?
    }

    /// An answer of a call that this endpoint makes, as [`Call::read`] gives it.
    ///
    /// # Errors
    ///
    /// The status that came in its place, or that it cannot be read, with its method and its server as far as they are known: they
    /// are forgotten once the end of the call was [told](Event::Complete).
    pub fn read<A, C>(&self, call: Call<A, C>, answer: IncomingAnswer) -> Result<A::Item, CallError>
    where
        A: method::Answers,
        C: Codec<A::Item>,
    {
        call.read(answer).map_err(|error| match error {
            CallError::Decode(unread) => {
                (self.core).unreadable(call.key(), unread.request, unread.error)
            }
            error => error,
        })
    }

    /// Turns until a call of one answer has ended, with the last answer that has come.
    fn wait_for<T: Send + 'static, C: Codec<T>>(
        &mut self,
        call: Call<One<T>, C>,
        wait: Wait,
    ) -> io::Result<Result<Option<Result<T, CallError>>, Failure>> {
        let mut answer = None;
        loop {
            match self.core.next_answer(call.key()) {
                Next::Answer(found) => answer = Some(self.read(call, found)),
                Next::Trace(_) => {} // nobody asks for it
                Next::Ended(Outcome::Complete { .. }) => return Ok(Ok(answer)),
                Next::Ended(Outcome::Failed(failure)) => return Ok(Err(failure)),
                Next::Pending => self.receive(wait)?,
            }
        }
    }
}
