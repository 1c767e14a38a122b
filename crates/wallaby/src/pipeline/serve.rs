//! A server of a line: passes on what arrives, and has its own handler run.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::{Bytes, BytesMut};
use wallaby_proto::{Code, Status};

use super::head::{self, Head};
use super::tee;
use crate::body::{Attached, Body};
use crate::driver::shared::Inner;
use crate::handling::{Handling, WaitingHandler};
use crate::intercept::{Admission, DelegatedRequest, Incoming, Interceptor};
use crate::service::Registered;

/// Decides about messages that come down lines: they go on at once, and the handlers that they are for get them, if there are
/// any.
pub(crate) struct PipelineInterceptor;

impl Interceptor for PipelineInterceptor {
    fn admit(&self, request: &Incoming) -> Admission {
        let head = match Head::read(&request.payload()) {
            Ok(head) => head,
            Err(status) => return Admission::Refuse(status),
        };
        request.handling.set_method(&head.method);
        let body = request.take_body();
        if body.is_none() && head.has_body() {
            let why = "a message down a line whose bytes do not follow";
            return Admission::Refuse(Status::new(Code::InvalidArgument, why));
        }
        let stage = Stage {
            handling: Arc::clone(&request.handling),
            served: served(&request.handling.endpoint, &head),
            head,
        };
        match body {
            Some(body) if stage.head.store => Admission::wait(stage.store(body)),
            body => stage.cut_through(body),
        }
    }
}

/// Who handles it here.
fn served(endpoint: &Inner, head: &Head) -> Result<(usize, Arc<Registered>), Status> {
    let limits = &endpoint.settings.config.limits;
    limits.admit("arguments", head.following)?;
    endpoint.method(&head.method)
}

/// Room for arguments is made for at most so many times what has arrived of them: they are hardly ever moved, and a peer
/// that only announces them gets none.
const GROWTH: u64 = 16;

/// A message at one server of its line.
struct Stage {
    handling: Arc<Handling>,
    head: Head,
    served: Result<(usize, Arc<Registered>), Status>,
}

impl Stage {
    /// Each piece is passed on when it arrives.
    fn cut_through(self, body: Option<Body>) -> Admission {
        let (onward, own) = match body {
            Some(body) if !self.head.rest.is_empty() => {
                let window = self.handling.endpoint.settings.config.limits.call;
                let (onward, own) = tee::split(body, window);
                (Some(onward), Some(own))
            }
            body => (None, body),
        };
        self.pass_on(onward);
        match own {
            Some(own) if self.served.is_ok() && self.head.following > 0 => {
                Admission::wait(self.take_arguments(own))
            }
            own => {
                let arguments = self.head.arguments.clone();
                self.run(arguments, own, None)
            }
        }
    }

    async fn take_arguments(self, mut body: Body) -> Admission {
        let mut held = StoredBytes::new(&self.handling.endpoint);
        match held.read(&mut body, self.head.following).await {
            Ok(arguments) => self.run(arguments, Some(body), Some(held)),
            Err(status) => Admission::Refuse(status),
        }
    }

    /// All of it is passed on when all of it is here.
    async fn store(self, mut body: Body) -> Admission {
        let mut held = StoredBytes::new(&self.handling.endpoint);
        let read = held.read(&mut body, self.head.following).await;
        let rest = match read {
            Ok(arguments) => held.read_all(body).await.map(|rest| (arguments, rest)),
            Err(status) => Err(status),
        };
        let (arguments, rest) = match rest {
            Ok(whole) => whole,
            Err(status) => return Admission::Refuse(status),
        };
        let held = Arc::new(held);
        let onward = self.head.has_body().then(|| {
            let body = Body::stored(rest.clone(), Arc::clone(&held) as _);
            body.after(arguments.clone())
        });
        self.pass_on(onward);
        let arguments = match self.head.following {
            0 => self.head.arguments.clone(),
            _ => arguments,
        };
        self.run(arguments, Some(Body::stored(rest, held as _)), None)
    }

    fn pass_on(&self, body: Option<Body>) {
        let left = self.head.rest.len() as u32;
        let Some((server, head)) = self.head.onward() else {
            return;
        };
        let mut to = DelegatedRequest::new(server, Arc::clone(head::definition()), head.write());
        to.body = body.map(Attached::new);
        // The initiator tells by its place which server it is: it is the first delegation, whatever the handler does afterwards.
        (to.options_mut().servers, to.options_mut().always) = (left, true);
        self.handling.send_now(to);
    }

    /// The arguments are here: the handler's turn, or the status that says why it has none.
    fn run(self, arguments: Bytes, body: Option<Body>, held: Option<StoredBytes>) -> Admission {
        let Self {
            handling,
            head,
            served,
        } = self;
        if handling.has_ended() {
            let why = "what passing it on costs was not there";
            return Admission::Refuse(Status::new(Code::ResourceExhausted, why));
        }
        let (place, served) = match served {
            Ok(served) => served,
            Err(status) => return Admission::Refuse(status),
        };
        if let (true, Some(body)) = (head.body, body) {
            handling.put_body(body);
        }
        handling.reroute(WaitingHandler::new(place, served, arguments, held));
        Admission::Run
    }
}

/// Bytes that an endpoint keeps of messages which came down lines, until they are whole.
#[derive(Debug, Default)]
pub(crate) struct Store(AtomicU64);

/// Those of one request.
pub(crate) struct StoredBytes {
    endpoint: Arc<Inner>,
    bytes: u64,
}

impl StoredBytes {
    fn new(endpoint: &Arc<Inner>) -> Self {
        Self {
            endpoint: Arc::clone(endpoint),
            bytes: 0,
        }
    }

    /// Reads so many bytes; what was read beyond them is left in the body.
    async fn read(&mut self, body: &mut Body, wanted: u64) -> Result<Bytes, Status> {
        let mut all = BytesMut::new();
        while (all.len() as u64) < wanted {
            let mut chunk = next(body).await?.ok_or_else(|| {
                let got = all.len();
                let what = format!("{wanted} bytes of arguments were to come, and {got} came");
                Status::new(Code::InvalidArgument, what)
            })?;
            let missing = (wanted - all.len() as u64).min(chunk.len() as u64);
            self.keep(missing)?;
            if all.capacity() - all.len() < missing as usize {
                let arrived = all.len() as u64 + missing;
                let room = wanted.min(arrived.saturating_mul(GROWTH));
                all.reserve(room as usize - all.len());
            }
            all.extend_from_slice(&chunk.split_to(missing as usize));
            if !chunk.is_empty() {
                body.put_back(chunk);
            }
        }
        Ok(all.freeze())
    }

    /// Reads the rest.
    async fn read_all(&mut self, mut body: Body) -> Result<Vec<Bytes>, Status> {
        let mut all = Vec::new();
        while let Some(chunk) = next(&mut body).await? {
            self.keep(chunk.len() as u64 + tee::EACH)?;
            all.push(chunk);
        }
        Ok(all)
    }

    fn keep(&mut self, bytes: u64) -> Result<(), Status> {
        let limit = self.endpoint.settings.driver.stored;
        let stored = &self.endpoint.stored.0;
        let more = |stored: u64| stored.checked_add(bytes).filter(|all| *all <= limit);
        let kept = stored.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        if kept.is_err() {
            let what = format!(
                "{limit} bytes of messages that are not whole are kept here: there is no room for more"
            );
            return Err(Status::new(Code::ResourceExhausted, what));
        }
        self.bytes += bytes;
        Ok(())
    }
}

impl Drop for StoredBytes {
    fn drop(&mut self) {
        let stored = &self.endpoint.stored.0;
        stored.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

async fn next(body: &mut Body) -> Result<Option<Bytes>, Status> {
    let chunk = body.next().await.transpose();
    chunk.map_err(|error| {
        let what = format!("the message broke off on its way here: {error}");
        Status::new(Code::Unavailable, what)
    })
}
