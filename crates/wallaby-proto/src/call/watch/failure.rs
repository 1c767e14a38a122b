//! Why a call failed: which request, where, how it was reached, and what may have happened all the same.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;

use crate::call::initiator::{LimitReached, Violation};
use crate::call::missing::{Missing, brief, listed, named};
use crate::call::watch::Location;
use crate::id::{CallId, RequestId};
use crate::status::Code;

/// The end of a call that cannot be completed; never taken back.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{}", self.describe())]
#[non_exhaustive]
pub struct Loss {
    /// The call.
    pub call: CallId,
    /// What went wrong.
    pub kind: FailureKind,
    /// The request that it went wrong with.
    pub request: RequestId,
    /// That request's method, if anybody has told.
    pub method: Option<Arc<str>>,
    /// Where that request was last known to be.
    pub server: Location,
    /// The requests that led to it, from the initiator on, as far as known; of more than 64 the last ones, and of a call that
    /// goes on without what is lost only the last one once its losses name very many.
    pub path: Vec<LossStep>,
    /// Branches of the call that are known.
    pub known: u64,
    /// Those of them that have finished and whose responses have all arrived.
    pub finished: u64,
    /// Responses that have arrived.
    pub responses: u64,
    /// Whether anything of the call may have been executed.
    pub executed: Executed,
    /// A server has forgotten requests before their time, for want of room; the request may have been among them.
    pub evicted: bool,
    /// All that was missing: that request, and others.
    pub missing: Missing,
}

/// A request on the way to the one that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LossStep {
    /// Its place.
    pub request: RequestId,
    /// Where it is handled.
    pub server: Location,
}

/// What ended a call.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum FailureKind {
    /// Nobody has shown for this long that the request lives.
    #[error("gave no sign of life for {:?}{}", brief(*silence), after(*absence))]
    Silent {
        /// Since something was heard of it last.
        silence: Duration,
        /// What was found in its server's place, if that is not there any more.
        absence: Option<Absence>,
    },
    /// The request has finished, and a response that it sent does not arrive.
    #[error("sent response {index}, which was lost")]
    ResponseLost {
        /// The response's number.
        index: u32,
    },
    /// The request's server lives, but its handler makes no progress.
    #[error("has made no progress for {:?}", brief(*idle))]
    Stalled {
        /// How long, by the server's clock.
        idle: Duration,
    },
    /// What it leads to goes beyond a limit that the initiator has set.
    #[error("leads to too much: {0}")]
    LimitReached(LimitReached),
    /// A peer did what the protocol forbids.
    #[error("broke the protocol: {0}")]
    Violation(Violation),
    /// The call was sent again, and this request did something else than the first time: its handlers are not deterministic, or a
    /// server refused what it did before.
    #[error(
        "did something else when the call was sent again, as its handlers are not deterministic or a server refused it: {0}"
    )]
    Diverged(Violation),
}

impl From<Violation> for FailureKind {
    fn from(violation: Violation) -> Self {
        match violation {
            Violation::Limit(limit) => Self::LimitReached(limit),
            violation => Self::Violation(violation),
        }
    }
}

/// What is known of a server that is not where it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Absence {
    /// What was found at its address.
    pub found: Found,
    /// There was a connection with it, and none is left.
    pub disconnected: bool,
}

/// What was found at the address of a server that is not there any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Found {
    /// Connections are refused: nobody listens.
    Nobody,
    /// It cannot be connected to: its host is not there, or has no answer.
    NoHost,
    /// Another process, perhaps the same program that was started again.
    Another,
}

impl fmt::Display for Absence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.disconnected {
            f.write_str("its connection ended and ")?;
        }
        f.write_str(match self.found {
            Found::Nobody => "its address refuses connections",
            Found::NoHost => "it cannot be connected to",
            Found::Another => "another process answers at its address",
        })
    }
}

/// What became of a silent server, if that is known.
fn after(absence: Option<Absence>) -> String {
    absence.map_or_else(String::new, |absence| format!(": {absence}"))
}

/// What is known of a failed call's effects: whether it is safe to make it again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Executed {
    /// Requests were sent; nobody has told what became of them.
    Unknown,
    /// At least one server has taken a request of the call.
    Executed,
}

impl fmt::Display for Executed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unknown => "it is unknown whether anything was executed",
            Self::Executed => "some of it was executed",
        })
    }
}

impl Loss {
    /// Whether another call may fare better: nothing was heard of a server, or of what it has sent.
    pub fn may_pass(&self) -> bool {
        matches!(
            self.kind,
            FailureKind::Silent { .. }
                | FailureKind::ResponseLost { .. }
                | FailureKind::Stalled { .. }
        )
    }

    /// What kind of error it is: [`Code::Unavailable`], unless a limit was reached, or the protocol broken.
    pub fn code(&self) -> Code {
        match self.kind {
            FailureKind::LimitReached(_) => Code::ResourceExhausted,
            FailureKind::Violation(_) | FailureKind::Diverged(_) => Code::Internal,
            _ => Code::Unavailable,
        }
    }

    fn describe(&self) -> String {
        let at = Some(&self.server);
        let named = named(self.request, self.method.as_deref(), at);
        let mut text = format!("{named} {}", self.kind);
        if !self.path.is_empty() {
            let steps: Vec<String> = self.path.iter().map(LossStep::to_string).collect();
            text += &format!("; reached by {}", steps.join(", "));
        }
        text += &format!(
            "; {} of {} known branches have finished, {} responses have arrived; {}",
            self.finished, self.known, self.responses, self.executed
        );
        let others = self.missing.branches.iter();
        let others = others.filter(|branch| branch.request.path != self.request.path);
        if self.evicted {
            text += "; a server had to forget requests, this one may have been among them";
        }
        // Last, as a list that is long.
        let mut others: Vec<String> = others.map(ToString::to_string).collect();
        if self.missing.more > 0 {
            others.push(format!("{} more", self.missing.more));
        }
        if !others.is_empty() {
            text += &format!("; also missing: {}", listed(&others));
        }
        text
    }
}

impl fmt::Display for LossStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}", self.request, self.server)
    }
}
