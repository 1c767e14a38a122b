//! Half-open connections: a peer that is gone without a word must not hold up who waits for it.
//!
//! A transport may believe in a connection long after the other side has lost it. So whoever waits for something on a
//! connection looks at it now and then; when nothing has come from the peer for a while, it is asked by a probe, and
//! when that is not answered either, the connection is given up. Messages are not concerned: counters are compared at
//! each look, and a connection on which nobody waits for anything is not looked at.

use std::time::Duration;

use crate::carrier::Carrier;
use crate::connection::{Connection, ConnectionError};

/// How long a silent peer is believed in by who waits for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeepAliveSettings {
    /// After so long without a byte the peer is asked. [`Duration::MAX`] switches keep-alive off.
    pub period: Duration,
    /// After so long without a byte, the period included, the connection is given up.
    pub timeout: Duration,
}

/// The peer is asked after 3 s, and given up after 10 s.
impl Default for KeepAliveSettings {
    fn default() -> Self {
        Self {
            period: Duration::from_secs(3),
            timeout: Duration::from_secs(10),
        }
    }
}

impl KeepAliveSettings {
    /// How long it is between two looks at a connection on which something waits: a quarter of the period, and of the
    /// timeout at most. `None` if keep-alive is switched off.
    pub fn interval(&self) -> Option<Duration> {
        let interval = self.period.min(self.timeout) / 4;
        (self.period < Duration::MAX).then_some(interval.max(SHORTEST))
    }
}

/// Bytes a second that a peer must take of what waits for it.
const LEAST: u64 = 4096;

/// Looks are at least so far apart.
const SHORTEST: Duration = Duration::from_millis(1);

/// What one side knows of its peer's silence.
///
/// Its driver calls [`Self::look`] each [`KeepAliveSettings::interval`], at least on connections on which something
/// waits:
///
/// ```
/// # use std::sync::Arc;
/// # use std::time::Duration;
/// # use wallaby_proto::NodeId;
/// # use wallaby_proto::connection::{Connection, Features, Hello, KeepAlive, KeepAliveSettings, ConnectionLimits, VERSION};
/// # let node = NodeId::new(1).unwrap();
/// # let (features, limits) = (Features::default(), ConnectionLimits::default());
/// # let hello = Hello { versions: (VERSION, VERSION), node, expected: None, address: None, features, limits };
/// let mut connection = Connection::dial(Arc::new(hello), None);
/// let settings = KeepAliveSettings::default();
/// let mut keep_alive = KeepAlive::default();
/// // Before the handshake there is nobody to ask: the driver has a time limit for that.
/// let waits = keep_alive.look(&settings, &mut connection, true, Duration::ZERO);
/// assert_eq!(waits, Ok(false));
/// ```
#[derive(Debug, Default)]
pub struct KeepAlive {
    /// The latest look, if something waited then.
    looked: Option<Duration>,
    /// What had been received and written at the latest look.
    seen: Seen,
    /// How much had been written when the peer was last seen to have sent something: the rest is not confirmed.
    confirmed: u64,
    /// How long there has been none.
    silence: Duration,
    asked: bool,
    owed: Owed,
}

/// What waits for the peer.
#[derive(Debug, Default)]
struct Owed {
    /// For how long some has, all the time.
    time: Duration,
    /// How far the output must be written until the timeout has passed, if some waits.
    goal: Option<u64>,
}

/// What tells that a peer lives.
#[derive(Debug, Default, Clone, Copy)]
struct Seen {
    received: u64,
    sent: u64,
    /// Some output could not be written.
    full: bool,
}

impl KeepAlive {
    /// Compares what has come and gone since the last look. Something waits if there is output, if what was written
    /// last was followed by no sign of life, if something was refused for want of credit, or if the driver says so by
    /// `waits`: it knows of answers that are to come. Returns whether that is so: if not, no look is needed until
    /// something was sent.
    ///
    /// A look that comes late counts for one interval only: who was stopped has not listened, and does not know whether
    /// the peer was silent. A probe is added to the connection's output.
    ///
    /// # Errors
    ///
    /// [`ConnectionError::Silent`] if nothing came for the timeout, although the peer was asked;
    /// [`ConnectionError::Unread`] if it was not listened to for so long, because it does not read; or if in so long it took
    /// neither all that waited for it nor 4 KiB a second.
    pub fn look(
        &mut self,
        settings: &KeepAliveSettings,
        connection: &mut Connection,
        waits: bool,
        now: Duration,
    ) -> Result<bool, ConnectionError> {
        let Some(interval) = settings.interval() else {
            return Ok(false);
        };
        let seen = Seen::of(connection);
        let before = std::mem::replace(&mut self.seen, seen);
        if seen.received != before.received {
            self.confirmed = seen.sent;
        }
        let waits = connection.peer().is_some()
            && (waits || connection.needs_peer() || self.confirmed != seen.sent);
        let looked = std::mem::replace(&mut self.looked, waits.then_some(now));
        let elapsed = looked.map_or(Duration::ZERO, |looked| now.saturating_sub(looked));
        let elapsed = elapsed.min(interval);
        let waiting = connection.waiting();
        let slow = self.owed.look(settings, seen.sent, waiting, elapsed);
        let slow = slow.map(|silence| ConnectionError::Unread { waiting, silence });
        if looked.is_none() || !waits || seen.is_sign_of_life_since(before) {
            self.silence = Duration::ZERO;
            self.asked = false;
            return slow.map_or(Ok(waits), Err);
        }
        self.silence += elapsed;
        if self.silence >= settings.timeout {
            let silence = self.silence;
            return Err(match connection.takes_input() {
                true => ConnectionError::Silent { silence },
                false => ConnectionError::Unread { waiting, silence },
            });
        }
        if let Some(error) = slow {
            return Err(error);
        }
        if self.silence >= settings.period && !self.asked {
            self.asked = true;
            connection.probe();
        }
        Ok(waits)
    }
}

impl Owed {
    /// So much was written in all, and so much waits; for how long the peer has taken too little, if it has.
    fn look(
        &mut self,
        settings: &KeepAliveSettings,
        sent: u64,
        waiting: usize,
        elapsed: Duration,
    ) -> Option<Duration> {
        self.time += elapsed;
        if waiting == 0 {
            *self = Self::default();
            return None;
        }
        let goal = self.goal.filter(|_| self.time >= settings.timeout);
        if goal.is_some_and(|goal| sent < goal) {
            return Some(self.time);
        }
        if goal.is_some() || self.goal.is_none() {
            let least = u128::from(LEAST) * settings.timeout.as_millis() / 1000;
            let least = u64::try_from(least).unwrap_or(u64::MAX);
            self.time = Duration::ZERO;
            self.goal = Some(sent.saturating_add(least.min(waiting as u64)));
        }
        None
    }
}

impl Seen {
    fn of(connection: &Connection) -> Self {
        Self {
            received: connection.heard(),
            sent: connection.counters().bytes_sent,
            full: connection.waiting() > 0,
        }
    }

    /// Whether the peer has done something since: a transport that was full takes bytes only after the peer took some.
    fn is_sign_of_life_since(self, before: Self) -> bool {
        self.received != before.received || before.full && self.sent != before.sent
    }
}
