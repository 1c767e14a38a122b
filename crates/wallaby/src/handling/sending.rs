//! What the handler of a request sends.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use wallaby_proto::Address;
use wallaby_proto::endpoint::{
    Endpoint as Proto, How, Lane, NewDelegation, Offer, Offered, OutBody,
};

use super::Handling;
use crate::body::{self, Attached, Body, BodyError};
use crate::driver::shared::Core;
use crate::driver::waiters::Wait;
use crate::error::SendError;
use crate::intercept::{DelegatedRequest, Exit, Intent};

/// The bytes behind a delegation, and where they go, if they may. They are let go of outside the endpoint's lock, which a body
/// takes when it is dropped.
#[derive(Default)]
struct Following {
    out: Option<OutBody>,
    attached: Option<Attached>,
}

impl Handling {
    /// Sends a message, perhaps the `last` one, and waits until it is accepted for sending. Before, it waits for earlier messages
    /// of the same kind: so order is kept, little waits, and a handler that gives up waiting does so before its message has a
    /// number.
    ///
    /// `message` is empty once it was sent.
    pub(crate) fn poll_send(
        &self,
        message: &mut Option<Intent>,
        lane: &mut Option<Lane>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), SendError>> {
        if let Some(Intent::Status(status)) = message.take_if(|next| next.is_status()) {
            self.fail_now(&status);
            return Poll::Ready(Ok(()));
        }
        let mut body = Following::default();
        let sent = self.endpoint.enter(|core| {
            let offered = match *lane {
                Some(lane) if core.endpoint.waits(self.key, lane) => Ok(Offered::Waits(lane)),
                Some(_) => Ok(Offered::Sent(None)),
                None => self.offer(core, Offer::Wait, message, &mut body),
            };
            let wait = match offered? {
                Offered::Sent(None) => return Poll::Ready(Ok(())),
                Offered::Sent(Some(waits)) => Wait::Room(self.key, *lane.insert(waits)),
                Offered::Waits(lane) => Wait::Room(self.key, lane),
                Offered::Full => Wait::Space(self.key),
            };
            core.wait(wait, cx.waker());
            Poll::Pending
        });
        self.send_body(body);
        sent.map_err(|error| self.ended(error))
    }

    fn offer(
        &self,
        core: &mut Core,
        how: Offer,
        message: &mut Option<Intent>,
        body: &mut Following,
    ) -> Result<Offered, SendError> {
        let send = |endpoint: &mut Proto, message: Intent| {
            let last = message.is_last();
            self.give(endpoint, message, body)?;
            // Asked under the lock: whose poll is over says so before it takes the lock to flush.
            if !self.is_polling() && !last {
                endpoint.flush(self.key);
            }
            Ok(())
        };
        (core.endpoint).offer(self.key, how, message, Intent::outline, send)
    }

    /// Sends a message after which more may follow, if it need not wait.
    pub(crate) fn try_send(self: &Arc<Self>, message: Intent) -> Result<(), SendError> {
        let around = self.around();
        let (mut message, mut body) = (Some(message), Following::default());
        let offered = self.endpoint.enter(|core| match around {
            None => self.offer(core, Offer::Now, &mut message, &mut body),
            // It passes those around first.
            Some(_) => {
                let outline = &mut message.as_ref().map(Intent::outline);
                let endpoint = &mut core.endpoint;
                endpoint.offer(
                    self.key,
                    Offer::Now,
                    outline,
                    |outline| *outline,
                    |_, _| Ok(()),
                )
            }
        });
        self.send_body(body);
        match offered.map_err(|error| self.ended(error))? {
            Offered::Sent(_) => {}
            Offered::Waits(_) | Offered::Full => return Err(SendError::Full),
        }
        match (around, message) {
            (Some(around), Some(message)) => Exit::of(self).try_pass(&around, message),
            _ => Ok(()),
        }
    }

    fn give(
        &self,
        endpoint: &mut Proto,
        message: Intent,
        body: &mut Following,
    ) -> Result<(), SendError> {
        let key = self.key;
        match message {
            Intent::Answer {
                payload,
                last: false,
            } => endpoint.reply(key, payload),
            Intent::Answer {
                payload,
                last: true,
            } => endpoint.respond(key, payload),
            Intent::Delegation { to, last } => match (&to.body, &to.own, last) {
                (None, None, false) => endpoint.delegate(key, to.server, &to.method, to.payload),
                (None, None, true) => endpoint.forward(key, to.server, &to.method, to.payload),
                (.., last) => self.give_with(endpoint, to, last, body),
            },
            Intent::Status(status) => {
                endpoint.fail(key, &status);
                Ok(())
            }
        }
    }

    #[cold]
    fn give_with(
        &self,
        endpoint: &mut Proto,
        to: DelegatedRequest,
        last: bool,
        body: &mut Following,
    ) -> Result<(), SendError> {
        let followed = to.body.is_some();
        body.attached = to.body;
        let own = to.own.map(|own| *own).unwrap_or_default();
        let delegation = NewDelegation {
            server: to.server,
            method: to.method,
            payload: to.payload,
            options: Some(own.options),
            followed,
        };
        let how = if last { How::Last } else { How::More };
        body.out = endpoint.delegate_with(self.key, delegation, how)?;
        if let Some(place) = own.place {
            let _ = place.set(endpoint.latest_delegation(self.key)?);
        }
        Ok(())
    }

    /// A body follows a delegation, whether the handler goes on or not.
    fn send_body(&self, body: Following) {
        if let (Some(out), Some(attached)) = (body.out, body.attached) {
            let gone = || Body::broken(BodyError::Broken("it went with another request".into()));
            let body = attached.take().unwrap_or_else(gone);
            body::spawn(&self.endpoint, body, out);
        }
    }

    /// Whether a message may be sent, but for budgets, credit and room. What has its place whatever happens only needs a request
    /// that goes on.
    pub(crate) fn check_message(&self, message: &Intent) -> Result<(), SendError> {
        let (server, size) = match message.is_always() {
            true => (None, 0),
            false => (message.server(), message.payload()),
        };
        self.check(server, size)
    }

    pub(super) fn check(&self, server: Option<&Address>, size: usize) -> Result<(), SendError> {
        let check = |core: &mut Core| core.endpoint.check_message(self.key, server, size);
        self.endpoint.ask(check).map_err(|error| self.ended(error))
    }

    /// A message failed before it was given to the endpoint.
    #[cold]
    pub(crate) fn note_refused(&self, error: &SendError, last: bool) {
        self.endpoint
            .ask(|core| core.endpoint.refuse_message(self.key, error, last));
    }

    /// Why nothing may be sent: of a request that was stopped, why that was.
    #[cold]
    fn ended(&self, error: SendError) -> SendError {
        match (error, &self.lock().stopped) {
            (SendError::Ended(_), Some(why)) => SendError::Ended(why.message().to_owned()),
            (error, _) => error,
        }
    }

    /// The message held back leaves now, and all that wait.
    pub(crate) fn poll_flush(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.endpoint.enter(|core| {
            let Some(lane) = core.endpoint.flush(self.key) else {
                return Poll::Ready(());
            };
            core.wait(Wait::Room(self.key, lane), cx.waker());
            Poll::Pending
        })
    }

    pub(super) fn is_polling(&self) -> bool {
        self.polling.load(Ordering::Relaxed)
    }

    /// Hands work to another server at once, whatever its handler does. That it can't be is told when it has
    /// [ended](Self::has_ended).
    pub(crate) fn send_now(&self, to: DelegatedRequest) {
        let mut body = Following::default();
        let _ =
            (self.endpoint).enter(|core| self.give_with(&mut core.endpoint, to, false, &mut body));
        self.send_body(body);
    }
}
