//! What was done to processes and links, and when: what failures are compared with.

use serde::Serialize;
use std::time::Duration;

/// What can be done to a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Fault {
    /// A process killed by SIGKILL; another incarnation takes its address later.
    Kill,
    /// A process stopped by SIGSTOP, and continued.
    Stop,
    /// Nothing passes between two hosts.
    CutBoth,
    /// Nothing passes from one host to another.
    CutOne,
}

impl Fault {
    pub(crate) fn words(self) -> &'static str {
        match self {
            Self::Kill => "killed and restarted",
            Self::Stop => "stopped and continued",
            Self::CutBoth => "link cut",
            Self::CutOne => "link cut one way",
        }
    }
}

/// Something that was done.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Harm {
    pub(crate) fault: Fault,
    /// The seat; the other end of a link, if it is one.
    pub(crate) seat: usize,
    pub(crate) other: Option<usize>,
    pub(crate) from: u64,
    /// Connections do not end by themselves when a process does.
    pub(crate) unnoticed: bool,
    /// `u64::MAX` while it lasts.
    pub(crate) until: u64,
}

impl Harm {
    /// Until when calls may feel it. A process is itself again at once, but for what waits in its sockets. TCP sends into
    /// a dead link at growing intervals: after it is mended it takes up to as long again until something passes, and whoever
    /// waits for a dial that had begun before waits for a second. Nobody
    /// tells the peers of a UDP socket that its process was killed: each notices with the first thing that it sends.
    pub(crate) fn felt_until(&self) -> u64 {
        let slack = SLACK.as_nanos() as u64;
        let after = match self.fault {
            Fault::Kill if self.unnoticed => return u64::MAX,
            Fault::Kill | Fault::Stop => slack,
            Fault::CutBoth | Fault::CutOne => {
                let lasted = self.until.saturating_sub(self.from);
                slack + lasted.max(REDIAL.as_nanos() as u64)
            }
        };
        self.until.saturating_add(after)
    }

    /// Whether it was felt at some time between these two.
    pub(crate) fn is_within(&self, begun: u64, ended: u64) -> bool {
        self.from <= ended && self.felt_until() >= begun
    }

    /// Whether it hurt one of these seats, or a link between two of them and `initiator`.
    pub(crate) fn touches(&self, seats: &[usize], initiator: usize) -> bool {
        let is_one = |seat: usize| seats.contains(&seat);
        match self.other {
            None => is_one(self.seat),
            Some(other) => {
                (is_one(self.seat) && (is_one(other) || other == initiator))
                    || (self.seat == initiator && is_one(other))
            }
        }
    }
}

const SLACK: Duration = Duration::from_millis(300);

/// When TCP says the first word of a dial again that was lost (RFC 6298, section 2.1).
const REDIAL: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    fn harm(fault: Fault, seat: usize, other: Option<usize>) -> Harm {
        Harm {
            fault,
            seat,
            other,
            unnoticed: false,
            from: 1_000_000_000,
            until: 2_000_000_000,
        }
    }

    #[test]
    fn a_link_is_between_two_that_take_part() {
        let cut = harm(Fault::CutOne, 1, Some(2));
        assert!(cut.touches(&[1, 2], 9));
        assert!(cut.touches(&[1], 2));
        assert!(cut.touches(&[2], 1));
        assert!(!cut.touches(&[1], 9));
        assert!(!cut.touches(&[3], 1));
        assert!(harm(Fault::Kill, 1, None).touches(&[0, 1], 9));
        assert!(!harm(Fault::Kill, 1, None).touches(&[0], 1));
    }

    #[test]
    fn a_mended_link_is_felt_for_as_long_again() {
        let (kill, cut) = (harm(Fault::Kill, 1, None), harm(Fault::CutBoth, 1, Some(2)));
        let later = 2_900_000_000;
        assert!(!kill.is_within(later, later + 1));
        assert!(cut.is_within(later, later + 1));
        assert!(!cut.is_within(0, 999_999_999));
        assert!(!cut.is_within(3_300_000_001, 4_000_000_000));
        let short = Harm {
            from: 1_990_000_000,
            ..cut
        };
        assert!(short.is_within(3_299_999_999, 4_000_000_000), "a dial");
        assert!(!short.is_within(3_300_000_001, 4_000_000_000));
    }
}
