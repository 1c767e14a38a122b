//! How the servers of a call show that they live: asked, or by heartbeats.

use std::time::Duration;

use crate::varint::Reader;
use crate::wire::WireError;

/// The ping period and timeout that a call's initiator uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PingSettings {
    /// How often it asks.
    pub period: Duration,
    /// How long silence lasts before it is a failure.
    pub timeout: Duration,
}

impl PingSettings {
    /// The shortest period of all: who asked more often would do nothing else.
    pub const SHORTEST: Duration = Duration::from_millis(1);

    /// The longest period of all: a server need not believe for long in an initiator that does not ask.
    pub const LONGEST_PERIOD: Duration = Duration::from_secs(5);

    /// The longest timeout of all, a year.
    pub const LONGEST: Duration = Duration::from_secs(365 * 86_400);

    /// These, or what comes nearest of what makes sense: the period is between [`Self::SHORTEST`] and
    /// [`Self::LONGEST_PERIOD`], and the timeout between the period and [`Self::LONGEST`].
    #[must_use]
    pub fn bounded(self) -> Self {
        let period = self.period.clamp(Self::SHORTEST, Self::LONGEST_PERIOD);
        let timeout = self.timeout.clamp(period, Self::LONGEST);
        Self { period, timeout }
    }
}

/// How the servers of a call that wants heartbeats show their initiator that they live: unasked, and it does not ask.
///
/// The time until the next one is due travels with the call. Each server takes off what it has spent of it, and `hop` for the way
/// there; the one at which nothing is left of it says how far its request is, and begins anew. So a line of servers makes one
/// heartbeat in each period, however many they are, and branches of a call make their own.
///
/// An initiator that has missed a heartbeat by a quarter of the time that is left until the timeout, or by 2.5 s if that is less, asks
/// all the same, in the rhythm of [`PingSettings::period`]: a heartbeat that is lost ends no call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heartbeats {
    /// How long an initiator hears nothing of a branch at most.
    pub every: Duration,
    /// How long silence lasts before it is a failure.
    pub timeout: Duration,
    /// What the way from one server to the next is taken for: better too long than too short, then a heartbeat comes early. A
    /// longer one that was measured counts in its place.
    pub hop: Duration,
}

impl Heartbeats {
    /// The shortest period of all. Servers have a limit of their own besides.
    pub const SHORTEST: Duration = Duration::from_millis(10);

    /// These, or what comes nearest of what makes sense: the period is between [`Self::SHORTEST`] and
    /// [`PingSettings::LONGEST_PERIOD`], the timeout between two periods and [`PingSettings::LONGEST`], and a hop takes half a
    /// period at most.
    #[must_use]
    pub fn bounded(self) -> Self {
        let longest = PingSettings::LONGEST_PERIOD; // who is too old for heartbeats must be asked in time
        let every = self.every.clamp(Self::SHORTEST, longest);
        Self {
            every,
            timeout: self.timeout.clamp(every * 2, PingSettings::LONGEST),
            hop: self.hop.min(every / 2),
        }
    }

    /// How long a branch may be silent before it is asked about: less than a server that is too old for heartbeats runs on unasked, and
    /// than an answer waits that only a ping shows the way.
    pub(crate) fn patience(self) -> Duration {
        let left = self.timeout.saturating_sub(self.every);
        let late = (left / 4).min(PingSettings::LONGEST_PERIOD / 2);
        self.every.saturating_add(late)
    }

    pub(super) fn read(field: &mut Reader<'_>) -> Result<Self, WireError> {
        let what = "heartbeats";
        Ok(Self {
            every: field.duration(what)?,
            timeout: field.duration(what)?,
            hop: field.duration(what)?,
        })
    }
}

impl Default for Heartbeats {
    /// One in 3 s, after 6 s of silence a failure, and 200 ms a hop.
    fn default() -> Self {
        Self {
            every: Duration::from_secs(3),
            timeout: Duration::from_secs(6),
            hop: Duration::from_millis(200),
        }
    }
}
