//! What a peer can make an endpoint hold, besides what its windows let pass: output that it does not read, and large
//! messages that it does not finish.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::event::ConnectionError;
use crate::wire::{MAX_BODY, PingSettings};

/// While the budget is used up but for its last quarter, unfinished messages must arrive so many times as fast as otherwise.
const PRESSED: u64 = 16;

/// For how many periods a connection waits for its turn, while the budget is used up. Then it is closed: however many there are
/// that never finish their messages, each of them holds its part for no longer.
const MOST_WAITS: u32 = 6;

/// The shortest time in which the rate of a message is measured.
const SHORTEST: Duration = Duration::from_millis(10);

/// What one side of a connection holds for its peer at most. The peer is not told.
#[derive(Debug, Clone)]
pub struct Bounds {
    /// Bytes of output that wait to be written. While more wait, messages without credit are refused and nothing is read.
    /// Messages with credit are refused from a quarter on (256 KiB at most), pings from three quarters on, pongs from seven
    /// eighths on. Less than 128 KiB is not of use: one message may then be more.
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

/// How much of unfinished messages an endpoint holds, and how fast they must arrive. There may be more fields in any later version:
/// end a literal with `..Default::default()`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartialLimits {
    /// Bytes that have arrived of messages that are not whole, all connections together. The last quarter is for those that
    /// hold less than an equal share of that quarter. Of the others one message at a time has its turn then, and connections
    /// without it get no credit for parts. When a period passes in which no turn ends, the connection that holds most is
    /// closed; so is each that has waited for six periods.
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
pub struct Partials(Arc<SharedBudget>);

#[derive(Debug, Default)]
struct SharedBudget {
    limits: PartialLimits,
    held: AtomicU64,
    /// Connections that hold something.
    holders: AtomicU64,
    /// Touched only while the budget is used up, and by who waited then.
    queue: Mutex<RoomQueue>,
}

/// Connections that wait for room, as they came. The first one has its turn: it may go on.
#[derive(Debug, Default)]
struct RoomQueue {
    last: u64,
    places: BTreeMap<u64, Waiter>,
}

#[derive(Debug)]
struct Waiter {
    /// Bytes of unfinished messages.
    held: u64,
    /// The connection is to be closed.
    condemned: bool,
}

impl Partials {
    /// A budget for one endpoint.
    pub fn new(limits: PartialLimits) -> Self {
        let period = limits.period.clamp(SHORTEST, PingSettings::LONGEST);
        Self(Arc::new(SharedBudget {
            limits: PartialLimits { period, ..limits },
            ..SharedBudget::default()
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
    pub(crate) fn share(&self) -> BudgetShare {
        BudgetShare {
            partials: self.clone(),
            held: 0,
            place: None,
            waited: 0,
            turn: None,
        }
    }

    fn queue(&self) -> MutexGuard<'_, RoomQueue> {
        self.0.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What one connection holds of the budget.
#[derive(Debug)]
pub(crate) struct BudgetShare {
    partials: Partials,
    held: u64,
    /// Its place in the queue, and for how many periods in a row it was held back while a message stood still.
    place: Option<u64>,
    waited: u32,
    turn: Option<MessageTurn>,
}

/// A message that goes on although the budget is used up.
#[derive(Debug)]
struct MessageTurn {
    /// Its stream.
    message: u64,
    /// What the connection held when its turn began.
    held: u64,
    /// How many periods the turn may last.
    most: u64,
    /// How many it has lasted, the first one, of which it had a part, included.
    periods: u64,
}

impl BudgetShare {
    pub(crate) fn add(&mut self, bytes: u64) {
        if self.held == 0 && bytes > 0 {
            self.partials.0.holders.fetch_add(1, Ordering::Relaxed);
        }
        self.held += bytes;
        self.partials.0.held.fetch_add(bytes, Ordering::Relaxed);
        self.note_held();
    }

    pub(crate) fn remove(&mut self, bytes: u64) {
        if self.held > 0 && self.held == bytes {
            self.partials.0.holders.fetch_sub(1, Ordering::Relaxed);
        }
        self.held -= bytes;
        self.partials.0.held.fetch_sub(bytes, Ordering::Relaxed);
        match self.held {
            0 => self.leave(),
            _ => self.note_held(),
        }
    }

    fn note_held(&self) {
        if let Some(place) = self.place
            && let Some(place) = self.partials.queue().places.get_mut(&place)
        {
            place.held = self.held;
        }
    }

    /// Whether the budget is used up, but for its last quarter.
    pub(crate) fn is_pressed(&self) -> bool {
        let bytes = self.limits().bytes;
        self.partials.held() >= bytes - bytes / 4
    }

    /// Whether it holds less than an equal share of the budget's last quarter, and something of that is left.
    fn is_small(&self) -> bool {
        let bytes = self.limits().bytes;
        let holders = self.partials.0.holders.load(Ordering::Relaxed);
        self.held < bytes / 4 / holders.max(1) && self.partials.held() < bytes
    }

    /// Whether more may come: there is room, little is held here, or it is this connection's turn. `next` is the message
    /// whose turn it then is, and its length.
    pub(crate) fn may_grow(&mut self, next: impl FnOnce() -> Option<(u64, u64)>) -> bool {
        if self.turn.is_some() {
            return true;
        }
        if self.held == 0 || !self.is_pressed() || self.is_small() {
            self.leave();
            return true;
        }
        let mut queue = self.partials.queue();
        let own = *self.place.get_or_insert_with(|| queue.join(self.held));
        let is_first = queue.places.first_key_value().map(|(place, _)| *place) == Some(own);
        drop(queue);
        if let (true, Some((message, len))) = (is_first, next()) {
            self.turn = Some(MessageTurn {
                message,
                held: self.held,
                most: 2 + self.periods(len),
                periods: 0,
            });
        }
        is_first
    }

    /// How many periods a message of this length takes at the rate it must gain while the budget is used up.
    fn periods(&self, len: u64) -> u64 {
        let PartialLimits { rate, period, .. } = self.limits();
        let rate = rate.saturating_mul(PRESSED).max(1);
        u64::try_from(u128::from(len) * 1000 / u128::from(rate) / period.as_millis())
            .unwrap_or(u64::MAX)
    }

    /// This message is whole. Its turn passes on, unless the connection has come to hold more in it and all together hold too
    /// much: then the `next` message of this connection goes on, so that nobody leaves more and more behind.
    pub(crate) fn completed(&mut self, message: u64, next: impl FnOnce() -> Option<(u64, u64)>) {
        let Some(turn) = self.turn.as_mut().filter(|turn| turn.message == message) else {
            return;
        };
        let bytes = self.partials.0.limits.bytes;
        let too_much = self.partials.held() >= bytes.saturating_add(bytes / 4);
        match next().filter(|_| too_much && self.held > turn.held) {
            Some((next, _)) => turn.message = next,
            None => self.leave(),
        }
    }

    /// To be called each period, and told whether the last call was one ago, and whether a message was held back since and stood
    /// still. Returns whether it was this connection's turn for all of that time.
    ///
    /// # Errors
    ///
    /// If the connection is to be closed: its turn has lasted too long, it has waited for too long, with a little room now and then
    /// or without, or it [holds most](Self::close_largest).
    pub(crate) fn look(&mut self, in_time: bool, stood: bool) -> Result<bool, ConnectionError> {
        if self.place.is_some() && !self.is_pressed() {
            self.leave();
        }
        if (self.place).is_some_and(|place| self.partials.queue().is_condemned(place)) {
            return Err(ConnectionError::Crowding { held: self.held });
        }
        if !in_time {
            return Ok(false);
        }
        let Some(turn) = &mut self.turn else {
            self.waited = if stood { self.waited + 1 } else { 0 };
            return match self.waited > MOST_WAITS {
                true => Err(ConnectionError::Crowding { held: self.held }),
                false => Ok(false),
            };
        };
        turn.periods += 1;
        match turn.periods {
            periods if periods > turn.most => Err(self.stalled()),
            periods => Ok(periods > 1),
        }
    }

    /// A period has passed in which no turn ended: who holds most is to be closed.
    ///
    /// # Errors
    ///
    /// If that is this connection.
    pub(crate) fn close_largest(&mut self) -> Result<(), ConnectionError> {
        let mut queue = self.partials.queue();
        let largest = queue.places.values_mut().max_by_key(|place| place.held);
        largest.into_iter().for_each(|place| place.condemned = true);
        match self.place.is_some_and(|place| queue.is_condemned(place)) {
            true => Err(ConnectionError::Crowding { held: self.held }),
            false => Ok(()),
        }
    }

    /// Why a connection ends whose messages are too slow.
    pub(crate) fn stalled(&self) -> ConnectionError {
        ConnectionError::Stalled { rate: self.rate() }
    }

    pub(crate) fn limits(&self) -> PartialLimits {
        self.partials.0.limits
    }

    /// Bytes a second that each message must gain.
    fn rate(&self) -> u64 {
        let factor = if self.is_pressed() { PRESSED } else { 1 };
        self.limits().rate.saturating_mul(factor)
    }

    /// Least that a message must have gained in this time. What has come of a frame is not counted before that is whole.
    pub(crate) fn least(&self, time: Duration) -> u64 {
        Self::least_of(self.rate(), time)
    }

    /// The same where there is room.
    pub(crate) fn least_unpressed(&self, time: Duration) -> u64 {
        Self::least_of(self.limits().rate, time)
    }

    fn least_of(rate: u64, time: Duration) -> u64 {
        let bytes = u128::from(rate) * time.as_millis() / 1000;
        u64::try_from(bytes)
            .unwrap_or(u64::MAX)
            .saturating_sub(MAX_BODY as u64)
            .max(1)
    }

    /// It waits no more, and its turn passes on.
    fn leave(&mut self) {
        self.turn = None;
        if let Some(place) = self.place.take() {
            self.partials.queue().places.remove(&place);
        }
    }
}

impl Drop for BudgetShare {
    fn drop(&mut self) {
        self.remove(self.held);
    }
}

impl RoomQueue {
    fn join(&mut self, held: u64) -> u64 {
        self.last += 1;
        let place = Waiter {
            held,
            condemned: false,
        };
        self.places.insert(self.last, place);
        self.last
    }

    fn is_condemned(&self, place: u64) -> bool {
        self.places.get(&place).is_some_and(|place| place.condemned)
    }
}

/// Since when unfinished messages are watched.
#[derive(Debug, Default)]
pub(crate) struct StallWatch {
    looked: Option<Duration>,
    /// This side has held them back since.
    held_back: bool,
}

impl StallWatch {
    pub(crate) fn hold_back(&mut self) {
        self.held_back = true;
    }

    /// How long messages have been watched that were there at the latest look, and whether any was held back; `None` if
    /// nothing can be said of them: nobody looked in time.
    pub(crate) fn look(&mut self, now: Duration, period: Duration) -> (Option<Duration>, bool) {
        let before = self.looked.replace(now);
        let held_back = std::mem::take(&mut self.held_back);
        let time = before.map(|before| now.saturating_sub(before));
        let in_time = |time: &Duration| *time <= period + period / 2;
        (time.filter(in_time), held_back)
    }
}

/// How much a message has gained since the latest look.
#[derive(Debug)]
pub(crate) struct Gain {
    gained: u64,
    /// It was not there then.
    fresh: bool,
}

impl Default for Gain {
    fn default() -> Self {
        Self {
            gained: 0,
            fresh: true,
        }
    }
}

impl Gain {
    pub(crate) fn gain(&mut self, bytes: usize) {
        self.gained += bytes as u64;
    }

    /// Whether it was there at the latest look, and has gained less than this since.
    pub(crate) fn stands(&self, least: u64) -> bool {
        !self.fresh && self.gained < least
    }

    /// Whether it has gained too little since the latest look; `None` if that is not asked.
    pub(crate) fn look(&mut self, least: Option<u64>) -> bool {
        let gained = std::mem::take(&mut self.gained);
        let fresh = std::mem::replace(&mut self.fresh, false);
        !fresh && least.is_some_and(|least| gained < least)
    }
}
