//! What of a call that was given up has not stopped.

use std::sync::Arc;

use thiserror::Error;

use crate::call::missing::named;
use crate::call::watch::{Location, LossStep};
use crate::{CallId, Code, RequestId};

/// Handlers of a call that was given up which have not stopped, and what has not said whether it has.
///
/// Of each at most 8 are named ([`Missing::MOST`](crate::call::missing::Missing::MOST)).
#[derive(Clone, PartialEq, Eq, Default, Error)]
#[error("{}", self.describe())]
#[non_exhaustive]
pub struct StillRunning {
    /// The call.
    pub call: Option<CallId>,
    /// Handlers that go on although they were told to stop, as their servers have said last.
    pub handlers: Vec<UnstoppedRequest>,
    /// How many more there are.
    pub more: u64,
    /// Requests of which nobody has said yet whether they run, or anything that came of them.
    pub unheard: Vec<UnstoppedRequest>,
    /// How many more there are.
    pub more_unheard: u64,
}

/// A request of a call that was given up which has not stopped, or of which nobody has said whether it has.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct UnstoppedRequest {
    /// Which one.
    pub request: RequestId,
    /// What was called, if anybody has told.
    pub method: Option<Arc<str>>,
    /// Where it is, as far as anybody has told.
    pub server: Location,
    /// The requests that led to it, from the initiator on, as far as known.
    pub path: Vec<LossStep>,
    /// Its server is gone. What that had handed on before may run, and cannot tell of itself, as this endpoint does not listen.
    pub gone: bool,
}

impl StillRunning {
    /// What kind of error it is: always [`Code::DeadlineExceeded`].
    pub fn code(&self) -> Code {
        Code::DeadlineExceeded
    }

    /// Whether nothing runs, and everything has said so that could.
    pub fn is_empty(&self) -> bool {
        self.handlers.is_empty() && self.unheard.is_empty()
    }

    /// Those of several calls.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        self.call = self.call.or(other.call);
        self.handlers.extend(other.handlers);
        self.more += other.more;
        self.unheard.extend(other.unheard);
        self.more_unheard += other.more_unheard;
        self
    }

    fn describe(&self) -> String {
        let running = told(
            &self.handlers,
            self.more,
            "still runs, or a call that it has made does",
            "still run, or calls that they have made do",
        );
        let unheard = told(
            &self.unheard,
            self.more_unheard,
            "has not said whether it has stopped",
            "have not said whether they have stopped",
        );
        let parts = running.chain(unheard).collect::<Vec<String>>().join("; ");
        match (parts.is_empty(), self.call) {
            (true, _) => "nothing of the call runs any more".to_owned(),
            (false, Some(call)) => format!("call {call} was given up: {parts}"),
            (false, None) => parts,
        }
    }
}

/// Each of these requests, what is told of it, and what led to it.
fn told(
    requests: &[UnstoppedRequest],
    more: u64,
    one: &'static str,
    several: &'static str,
) -> impl Iterator<Item = String> {
    let rest = match more {
        0 => None,
        1 => Some(format!("1 more {one}")),
        more => Some(format!("{more} more {several}")),
    };
    let each = requests.iter().map(move |request| {
        let at = Some(&request.server);
        let name = named(request.request, request.method.as_deref(), at);
        let path: Vec<String> = request.path.iter().map(ToString::to_string).collect();
        let what = match request.gone {
            true => "may have been handed on by its server, which is gone",
            false => one,
        };
        match path.is_empty() {
            true => format!("{name} {what}"),
            false => format!("{name} {what}, reached by {}", path.join(", ")),
        }
    });
    each.chain(rest)
}

crate::debug_as_text!(StillRunning);
