//! Time as both halves of a call count it, and the times that a call is watched by.

use std::time::Duration;

use crate::wire::PingSettings;

/// Lateness below this is that of any timer, and is not made up for.
const PUNCTUAL: Duration = Duration::from_millis(5);

/// Time that passes only while the process listens (PROTOCOL-NOTES 20).
///
/// A process that was stopped for a second wakes up with a second's silence on all its clocks, and with every answer
/// waiting in its sockets' buffers. Therefore all input is read before timers are judged; and by what the earliest timer
/// comes late, all clocks are set back.
///
/// `raw` is the time since any fixed moment by a clock that never goes backwards; what comes out never does either, and
/// is what [`crate::call::watch`] and [`crate::call::records`] call `now`. One clock serves a whole endpoint:
///
/// ```
/// # use std::time::Duration;
/// use wallaby_proto::call::clock::Clock;
///
/// let at = Duration::from_secs;
/// let mut clock = Clock::default();
/// assert_eq!(clock.turn(at(10), Some(at(11))), at(10));
/// // It is 14, and what was due at 11 was not done: for three seconds nobody listened.
/// assert_eq!(clock.turn(at(14), Some(at(11))), at(11));
/// // What is due at 12 now, must be waited for until 15.
/// assert_eq!(clock.raw(at(12)), at(15));
/// ```
#[derive(Debug, Clone, Default)]
pub struct Clock {
    behind: Duration,
}

impl Clock {
    /// The driver wakes up: the time for all that it does in this turn of its loop. `due` is the earliest time at which
    /// it had to wake up.
    pub fn turn(&mut self, raw: Duration, due: Option<Duration>) -> Duration {
        let now = raw.saturating_sub(self.behind);
        match due.map(|due| now.saturating_sub(due)) {
            Some(late) if late > PUNCTUAL => {
                self.behind = self.behind.saturating_add(late);
                now.saturating_sub(late)
            }
            _ => now,
        }
    }

    /// The raw time at which the driver has to wake up to do what is due then.
    pub fn raw(&self, due: Duration) -> Duration {
        due.saturating_add(self.behind)
    }
}

/// A ping period of half a second and a timeout of ten periods.
impl Default for PingSettings {
    fn default() -> Self {
        Self {
            period: Duration::from_millis(500),
            timeout: Duration::from_secs(5),
        }
    }
}

impl PingSettings {
    /// How long a server remembers a request that has ended, and believes in an initiator that does not ping: the ping
    /// period and two timeouts (PROTOCOL-NOTES 30).
    pub fn gc_timeout(&self) -> Duration {
        let timeouts = self.timeout.saturating_mul(2);
        self.period.saturating_add(timeouts)
    }
}
