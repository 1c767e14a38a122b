//! What a request sends is kept until it is committed.

use std::fmt;
use std::future::{Future, pending, ready};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use wallaby_proto::{Code, Status};

use super::{Exchange, Exit, Intent, SendFuture};
use crate::error::SendError;
use crate::service::HandlerFuture;

/// How much of one request is kept at most until it is committed. There may be more fields in any later version: end a literal with
/// `..Default::default()`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HoldLimits {
    /// Messages. Default 1,024.
    pub messages: usize,
    /// Bytes of their payloads, metadata and continuations. Default 1 MiB.
    pub bytes: usize,
}

impl Default for HoldLimits {
    fn default() -> Self {
        Self {
            messages: 1024,
            bytes: 1 << 20,
        }
    }
}

/// Keeps all that a handler sends until it is done and `commit` has said so; then it leaves, in order. So a record of it can be
/// made before anybody has seen it.
///
/// ```
/// use std::sync::{Arc, Mutex};
/// use wallaby::intercept::{Admission, Hold, HoldLimits, Incoming, Intent};
/// use wallaby::{Endpoint, Status};
///
/// /// In earnest a database.
/// type Records = Arc<Mutex<Vec<Vec<Intent>>>>;
///
/// fn record(records: Records) -> impl Fn(&Incoming) -> Admission {
///     move |_| {
///         let records = Arc::clone(&records);
///         Admission::around(Hold::new(HoldLimits::default(), move |sent| async move {
///             let mut records = records.lock().map_err(|_| Status::unavailable("no records"))?;
///             records.push(sent.to_vec());
///             Ok(())
///         }))
///     }
/// }
///
/// let records = Records::default();
/// let builder = Endpoint::builder().interceptor(record(records));
/// ```
///
/// What cannot be sent is an error where it is sent. A request that sends more than the limits say ([`SendError::TooMuchHeld`]), or
/// a body, ends with a status, and nothing of it is committed or leaves. So does one that `commit` refuses. If a request is stopped
/// while
/// `commit` runs, that is finished all the same: what it has recorded holds, but nothing leaves. Until then it keeps the handler's
/// place in the executor, so that there are no more of them than handlers, and who drains the endpoint waits for them. What holds a
/// request that its handler has given to somebody else takes a place that is free, if there is one.
///
/// Add it after the interceptors that change what is sent, so that it sees what leaves as it is, and before those that decide who
/// may have the request, since they are to be asked first.
pub struct Hold {
    limits: HoldLimits,
    state: Mutex<State>,
}

type Commit = Box<dyn FnOnce(Arc<[Intent]>) -> HandlerFuture + Send>;

struct State {
    kept: Vec<Intent>,
    bytes: usize,
    /// Why it is not committed.
    refused: Option<Status>,
    commit: Option<Commit>,
}

impl Hold {
    /// Keeps at most so much, until this says that it may leave: it gets all of it, the status with which the handler has ended,
    /// too.
    pub fn new<F>(
        limits: HoldLimits,
        commit: impl FnOnce(Arc<[Intent]>) -> F + Send + 'static,
    ) -> Self
    where
        F: Future<Output = Result<(), Status>> + Send + 'static,
    {
        Self {
            limits,
            state: Mutex::new(State {
                kept: Vec::new(),
                bytes: 0,
                refused: None,
                commit: Some(Box::new(|kept| Box::pin(commit(kept)))),
            }),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn keep(&self, intent: Intent, exit: &Exit) -> Result<(), SendError> {
        let may = exit.handling.check_message(&intent);
        let mut state = self.lock();
        if state.commit.is_none() {
            return Err(SendError::Ended("what it sent was committed before".into()));
        }
        let (messages, bytes) = (state.kept.len() + 1, state.bytes + intent.size());
        let (most_messages, most_bytes) = (self.limits.messages, self.limits.bytes);
        let refused = if let Err(error) = may {
            // As without this one, a handler may do something else instead.
            if !error.is_final(intent.is_last()) {
                return Err(error);
            }
            (Status::from(error.clone()), error)
        } else if matches!(&intent, Intent::Delegation { to, .. } if to.has_body()) {
            let why = "what a request sends is recorded here, and a body cannot be";
            (
                Status::new(Code::FailedPrecondition, why),
                SendError::Refused(why.into()),
            )
        } else if messages > most_messages || bytes > most_bytes {
            let error = SendError::TooMuchHeld {
                messages,
                bytes,
                most_messages,
                most_bytes,
            };
            (Status::from(error.clone()), error)
        } else {
            state.bytes = bytes;
            state.kept.push(intent);
            return Ok(());
        };
        let (status, error) = refused;
        state.refused.get_or_insert(status);
        Err(error)
    }
}

impl Exchange for Hold {
    fn sending(&self, intent: Intent, exit: &Exit) -> SendFuture {
        Box::pin(ready(self.keep(intent, exit)))
    }

    fn closing(&self, exit: &Exit) -> HandlerFuture {
        let mut state = self.lock();
        let (kept, refused) = (std::mem::take(&mut state.kept), state.refused.take());
        let commit = state.commit.take();
        drop(state);
        let exit = exit.clone();
        Box::pin(async move {
            if let Some(status) = refused {
                return Err(status);
            }
            let kept: Arc<[Intent]> = kept.into();
            let Some(commit) = commit else {
                return Ok(());
            };
            let committing = exit.handling.finish_all(commit(Arc::clone(&kept)));
            let Ok((committed, _place)) = committing.await else {
                return pending().await; // the runtime has ended, and takes this along
            };
            committed?;
            exit.send_all(kept.to_vec()).await
        })
    }
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hold")
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}
