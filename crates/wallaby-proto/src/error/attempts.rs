//! What became of the attempts of a call that was made again.

use thiserror::Error;

use super::CallError;
use crate::{Address, Code};

/// What became of the attempts of a call.
#[derive(Clone, PartialEq, Eq, Error)]
#[error("{}", self.describe())]
#[non_exhaustive]
pub struct AttemptsFailed {
    /// How many attempts were made.
    pub made: u32,
    /// Why no further one followed.
    pub why: NoMore,
    /// How many failed before those that are told of.
    pub untold: u32,
    /// What became of the attempts before the last, in brief: of the latest, if there were very many.
    pub before: Vec<FailedAttempt>,
    /// What became of the last one.
    pub last: CallError,
}

/// An attempt that failed, in brief.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{server}: {error}")]
#[non_exhaustive]
pub struct FailedAttempt {
    /// Which server it went to.
    pub server: Address,
    /// What went wrong.
    pub error: String,
}

/// Why a call is not attempted again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum NoMore {
    /// All attempts that it may have were made.
    #[error("no more are allowed")]
    Limit,
    /// The last one may have been executed, and what may have been is not made again.
    #[error("it may have been executed, and is not to be executed twice")]
    Executed,
    /// The client's budget for further attempts is used up.
    #[error("the retry budget is used up")]
    Budget,
    /// An answer was delivered to the application already.
    #[error("an answer had been delivered already")]
    Delivered,
    /// Its requests were not kept: there was no room (`Limits::kept_call`, `Limits::kept`).
    #[error("there was no room to keep its requests")]
    NotKept,
    /// A status had told how a part of it ended.
    #[error("a status had told how a part of it ended")]
    Status,
    /// No server could be connected to for as long as was to be waited.
    #[error("no server was there for as long as it was to wait")]
    Absent,
    /// No time is left before the deadline.
    #[error("no time is left before the deadline")]
    Deadline,
}

impl FailedAttempt {
    /// An attempt at this server that failed so.
    pub fn new(server: Address, error: String) -> Self {
        Self { server, error }
    }
}

impl AttemptsFailed {
    /// What kind of error it is: that of the last attempt.
    pub fn code(&self) -> Code {
        self.last.code()
    }

    /// So many attempts were made, and the last one ended so; see the fields for the others.
    pub fn new(
        made: u32,
        why: NoMore,
        untold: u32,
        before: Vec<FailedAttempt>,
        last: CallError,
    ) -> Self {
        Self {
            made,
            why,
            untold,
            before,
            last,
        }
    }

    fn describe(&self) -> String {
        let mut text = format!(
            "attempt {} failed, and no other follows, since {}: {}",
            self.made, self.why, self.last
        );
        // The same again and again is told once.
        let mut attempts = (1 + self.untold..).zip(&self.before).peekable();
        while let Some((number, attempt)) = attempts.next() {
            let mut last = number;
            while let Some((next, _)) = attempts.next_if(|(_, other)| *other == attempt) {
                last = next;
            }
            text += &match last {
                _ if last == number => format!("; attempt {number} at {attempt}"),
                _ => format!("; attempts {number} to {last} at {attempt}"),
            };
        }
        text
    }
}

crate::debug_as_text!(AttemptsFailed);
