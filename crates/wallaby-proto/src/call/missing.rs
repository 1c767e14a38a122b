//! What a call has not got when it ends without being complete: each branch in a line, with all that anybody has told.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::address::Address;
use crate::call::watch::Location;
use crate::id::RequestId;

/// The branches that were missing when a call ended.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Missing {
    /// At most 8 ([`Missing::MOST`]), parents before children.
    pub branches: Vec<MissingBranch>,
    /// How many more there were.
    pub more: u64,
}

/// A branch that had not reported its end, or whose answers had not all come.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct MissingBranch {
    /// Its latest request: the path is its place in the tree.
    pub request: RequestId,
    /// That request's method, if anybody has told.
    pub method: Option<Arc<str>>,
    /// Where that request is handled, as far as anybody has told.
    pub server: Location,
    /// How many answers of it have come, statuses included.
    pub received: u32,
    /// How many it has sent, once it has ended.
    pub sent: Option<u32>,
    /// What was known of it.
    pub state: MissingState,
}

/// How a missing branch was, as far as known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum MissingState {
    /// Its request was not sent yet.
    NotSent,
    /// Its request was sent, and nobody was asked about it yet: a call is watched over once it has lasted a ping period, or half of its
    /// time.
    Unasked,
    /// It was asked about, and nothing was ever heard of it.
    Unheard,
    /// Its server says that it runs.
    Running {
        /// How long it had made no progress.
        idle: Duration,
    },
    /// It was silent for this long.
    Silent {
        /// Since something was heard of it last.
        silence: Duration,
    },
    /// It has ended, and answers that it sent had not come.
    Ended,
    /// The connection that its request was sent over has ended.
    Disconnected,
}

impl Missing {
    /// Most branches that are named.
    pub const MOST: usize = 8;

    /// Whether nothing was missing, or nothing is known of it.
    pub fn is_empty(&self) -> bool {
        self.branches.is_empty()
    }

    /// The server of the first branch of which that is known.
    pub fn server(&self) -> Option<&Address> {
        let mut servers = self.branches.iter();
        servers.find_map(|branch| branch.server.address.as_ref())
    }
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut branches: Vec<String> = self.branches.iter().map(ToString::to_string).collect();
        if self.more > 0 {
            branches.push(format!("{} more", self.more));
        }
        f.write_str(&listed(&branches))
    }
}

/// One list of branches: each has commas of its own.
pub(crate) fn listed(branches: &[String]) -> String {
    match branches {
        [before @ .., last] if !before.is_empty() => format!("{}; and {last}", before.join("; ")),
        all => all.concat(),
    }
}

impl MissingBranch {
    /// The request, its method and its server, as far as known.
    fn name(&self) -> String {
        let method = self.method.as_deref();
        named(self.request, method, Some(&self.server))
    }
}

/// A request with its method and its server, as far as they are known.
pub(crate) fn named(request: RequestId, method: Option<&str>, at: Option<&Location>) -> String {
    let mut text = format!("request {request}");
    if let Some(method) = method {
        text += &format!(" ({method})");
    }
    if let Some(at) = at.filter(|at| at.is_known()) {
        text += &format!(" at {at}");
    }
    text
}

impl fmt::Display for MissingBranch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.name())?;
        let answers = match (self.sent, self.received) {
            (Some(sent), received) => format!("{received} of {sent} answers"),
            (None, 0) => "no answer".to_owned(),
            (None, 1) => "1 answer".to_owned(),
            (None, received) => format!("{received} answers"),
        };
        match self.state {
            MissingState::NotSent => f.write_str("not sent yet"),
            MissingState::Unasked => write!(f, "{answers}, not asked yet whether it runs"),
            MissingState::Unheard => f.write_str("it was asked, and nothing was heard of it"),
            MissingState::Running { idle } => {
                write!(f, "{answers}, running, no progress for {:?}", brief(idle))
            }
            MissingState::Silent { silence } => {
                write!(f, "{answers}, silent for {:?}", brief(silence))
            }
            MissingState::Ended => write!(f, "{answers}, has ended"),
            MissingState::Disconnected => write!(f, "{answers}, its connection has ended"),
        }
    }
}

/// A time without digits that nobody reads.
pub(crate) fn brief(time: Duration) -> Duration {
    match time.as_millis() {
        0 => Duration::from_micros(time.as_micros() as u64),
        millis => Duration::from_millis(millis as u64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::watch::FailureKind;
    use crate::id::Path;

    fn branch(state: MissingState) -> MissingBranch {
        MissingBranch {
            request: RequestId {
                path: Path::FIRST,
                hop: 1,
            },
            method: Some("test.Work/many".into()),
            server: Location::at("mem://shard".parse().expect("an address")),
            received: 2,
            sent: None,
            state,
        }
    }

    #[test]
    fn a_branch_is_told_in_a_line() {
        let millis = Duration::from_micros(2_900_123);
        let told = [
            (MissingState::NotSent, "not sent yet"),
            (
                MissingState::Unheard,
                "it was asked, and nothing was heard of it",
            ),
            (
                MissingState::Unasked,
                "2 answers, not asked yet whether it runs",
            ),
            (
                MissingState::Running { idle: millis },
                "2 answers, running, no progress for 2.9s",
            ),
            (
                MissingState::Silent { silence: millis },
                "2 answers, silent for 2.9s",
            ),
            (
                MissingState::Disconnected,
                "2 answers, its connection has ended",
            ),
        ];
        for (state, words) in told {
            let line = format!("request 0+1 (test.Work/many) at mem://shard: {words}");
            assert_eq!(branch(state).to_string(), line);
        }
        let mut ended = branch(MissingState::Ended);
        (ended.sent, ended.method, ended.server) = (Some(3), None, Location::default());
        assert_eq!(ended.to_string(), "request 0+1: 2 of 3 answers, has ended");
    }

    #[test]
    fn what_ended_a_call_is_told_as_briefly() {
        let time = Duration::from_nanos(569_956_872);
        let (silent, stalled) = (
            FailureKind::Silent {
                silence: time,
                absence: None,
            },
            FailureKind::Stalled { idle: time },
        );
        assert_eq!(silent.to_string(), "gave no sign of life for 569ms");
        assert_eq!(stalled.to_string(), "has made no progress for 569ms");
    }

    #[test]
    fn what_is_too_much_to_name_is_counted() {
        let missing = Missing {
            branches: vec![branch(MissingState::NotSent); 2],
            more: 7,
        };
        let text = missing.to_string();
        assert_eq!(text.matches("not sent yet; ").count(), 2, "{text}");
        assert_eq!(text.matches("; and ").count(), 1, "{text}");
        assert!(text.ends_with("; and 7 more"), "{text}");
        assert!(Missing::default().is_empty() && Missing::default().to_string().is_empty());
    }
}
