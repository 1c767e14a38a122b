//! What a peer can make an endpoint hold, besides what its windows let pass: output that it does not read, and large
//! messages that it does not finish.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::connection::MAX_BODY;
use crate::wire::PingSettings;

/// While the budget is used up, unfinished messages must arrive so many times as fast as otherwise.
const PRESSED: u64 = 16;

/// Messages are watched for at least so long.
const SHORTEST: Duration = Duration::from_millis(10);

/// What one side of a connection holds for its peer at most. The peer is not told.
#[derive(Debug, Clone)]
pub struct Bounds {
    /// Bytes of output that wait to be written. While more wait, messages without credit are refused and nothing is read.
    pub output: usize,
    /// Where unfinished messages of the whole endpoint are counted.
    pub partials: Partials,
}

impl Default for Bounds {
    /// 1 MiB of output, and a budget of its own for unfinished messages.
    fn default() -> Self {
        Self {
            output: 1 << 20,
            partials: Partials::default(),
        }
    }
}

/// How much of unfinished messages an endpoint holds, and how fast they must arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartialLimits {
    /// Bytes that have arrived of messages that are not whole, all connections together. While there are more, one
    /// connection at a time may go on, and the others get no credit for parts.
    pub bytes: u64,
    /// Bytes a second that each unfinished message must gain, and 16 times as many while the budget is used up. A
    /// connection with a slower one is closed.
    pub rate: u64,
    /// How long a message is watched before that is decided: 10 ms at least, a year at most.
    pub period: Duration,
}

impl Default for PartialLimits {
    /// 256 MiB, 16 KiB a second, 10 s.
    fn default() -> Self {
        Self {
            bytes: 256 << 20,
            rate: 16 << 10,
            period: Duration::from_secs(10),
        }
    }
}

/// Counts the unfinished messages of all connections of an endpoint. Clones count together.
#[derive(Debug, Clone, Default)]
pub struct Partials(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    limits: PartialLimits,
    held: AtomicU64,
    /// The share that may go on although the budget is used up; 0 if none needs to.
    turn: AtomicU64,
    shares: AtomicU64,
}

impl Partials {
    /// A budget for one endpoint.
    pub fn new(limits: PartialLimits) -> Self {
        let period = limits.period.clamp(SHORTEST, PingSettings::LONGEST);
        Self(Arc::new(Shared {
            limits: PartialLimits { period, ..limits },
            ..Shared::default()
        }))
    }

    /// How many bytes are held now.
    pub fn held(&self) -> u64 {
        self.0.held.load(Ordering::Relaxed)
    }

    /// What it keeps to.
    pub fn limits(&self) -> PartialLimits {
        self.0.limits
    }

    /// The share of one connection.
    pub(crate) fn share(&self) -> Share {
        Share {
            id: 1 + self.0.shares.fetch_add(1, Ordering::Relaxed),
            partials: self.clone(),
            held: 0,
        }
    }
}

/// What one connection holds of the budget.
#[derive(Debug)]
pub(crate) struct Share {
    partials: Partials,
    /// Never 0.
    id: u64,
    held: u64,
}

impl Share {
    pub(crate) fn add(&mut self, bytes: u64) {
        self.held += bytes;
        self.partials.0.held.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn remove(&mut self, bytes: u64) {
        self.held -= bytes;
        self.partials.0.held.fetch_sub(bytes, Ordering::Relaxed);
        if self.held == 0 {
            self.end_turn();
        }
    }

    /// Whether the budget is used up.
    pub(crate) fn is_pressed(&self) -> bool {
        self.partials.held() >= self.partials.0.limits.bytes
    }

    /// Whether more may come: there is room, or it is this connection's turn until its messages are whole.
    pub(crate) fn may_grow(&mut self) -> bool {
        let turn = &self.partials.0.turn;
        if !self.is_pressed() || turn.load(Ordering::Relaxed) == self.id {
            return true;
        }
        self.held > 0
            && turn
                .compare_exchange(0, self.id, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
    }

    pub(crate) fn limits(&self) -> PartialLimits {
        self.partials.0.limits
    }

    /// Bytes a second that each message must gain.
    pub(crate) fn rate(&self) -> u64 {
        let factor = if self.is_pressed() { PRESSED } else { 1 };
        self.limits().rate.saturating_mul(factor)
    }

    /// Least that a message must have gained in this time. What has come of a frame is not counted before that is whole.
    pub(crate) fn least(&self, time: Duration) -> u64 {
        let bytes = u128::from(self.rate()) * time.as_millis() / 1000;
        u64::try_from(bytes)
            .unwrap_or(u64::MAX)
            .saturating_sub(MAX_BODY as u64)
            .max(1)
    }

    fn end_turn(&self) {
        let turn = &self.partials.0.turn;
        let _ = turn.compare_exchange(self.id, 0, Ordering::Relaxed, Ordering::Relaxed);
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.partials.0.held.fetch_sub(self.held, Ordering::Relaxed);
        self.end_turn();
    }
}

/// Since when unfinished messages are watched.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    looked: Option<Duration>,
    /// This side has held them back since.
    held_back: bool,
}

impl Watch {
    pub(crate) fn hold_back(&mut self) {
        self.held_back = true;
    }

    /// How long messages have been watched that were there at the latest look; `None` if nothing can be said of them: they
    /// were held back, or nobody looked in time.
    pub(crate) fn look(&mut self, now: Duration, period: Duration) -> Option<Duration> {
        let before = self.looked.replace(now);
        let held_back = std::mem::take(&mut self.held_back);
        let time = now.saturating_sub(before?);
        (!held_back && time <= period + period / 2).then_some(time)
    }
}

/// How much a message has gained since the latest look.
#[derive(Debug)]
pub(crate) struct Progress {
    gained: u64,
    /// It was not there then.
    fresh: bool,
}

impl Default for Progress {
    fn default() -> Self {
        Self {
            gained: 0,
            fresh: true,
        }
    }
}

impl Progress {
    pub(crate) fn gain(&mut self, bytes: usize) {
        self.gained += bytes as u64;
    }

    /// Whether it has gained too little since the latest look; `None` if that is not asked.
    pub(crate) fn look(&mut self, least: Option<u64>) -> bool {
        let gained = std::mem::take(&mut self.gained);
        let fresh = std::mem::replace(&mut self.fresh, false);
        !fresh && least.is_some_and(|least| gained < least)
    }
}
