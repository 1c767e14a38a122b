//! When an endpoint looks at what: calls whose deadline passes, calls and records that are due, connections that may be
//! silent; and whether its runtime listens meanwhile.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::{Inner, locked, micros};
use crate::timer::{self, Instant};
use wallaby_proto::numbers::DEFAULT_PING;

/// Deadlines that pass within so short a time are looked at together.
const DEADLINE_TICK: Duration = Duration::from_millis(1);

/// A runtime looks at its sockets in the first turn; in the next ones connections read: what came, and that they ended.
const LISTENING_TURNS: u32 = 4;

impl Inner {
    pub(super) fn note_deadline(&self, deadline: Instant) {
        let mut next = self
            .next_alarm
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if next.is_none_or(|next| deadline < next) {
            *next = Some(deadline);
            drop(next);
            self.set_alarm(deadline);
        }
    }

    fn set_alarm(&self, at: Instant) {
        timer::wake_endpoint(self.me.clone(), at);
    }

    /// Fails calls whose deadline has passed, and has connections looked at.
    pub(crate) fn alarm(&self, now: Instant) {
        if self.closed.load(Ordering::Acquire) {
            return;
        }
        let mut next = self
            .next_alarm
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let due = next.take_if(|next| *next <= now).is_some();
        drop(next);
        if due {
            self.end_late_calls(now);
        }
        if now >= locked(&self.next_tending).0 {
            self.tend_by(now + self.stall_check(), true);
            if let Some(endpoint) = self.me.upgrade() {
                self.spawn(async move { endpoint.tend() });
            }
        }
        if now >= self.look_moment() {
            self.next_look.store(u64::MAX, Ordering::Release);
            if let Some(endpoint) = self.me.upgrade() {
                self.spawn(async move { endpoint.look() });
            }
        }
    }

    /// So many nanoseconds after it was made.
    pub(crate) fn moment(&self, nanoseconds: u64) -> Instant {
        self.epoch + Duration::from_nanos(nanoseconds)
    }

    fn look_moment(&self) -> Instant {
        let micros = self.next_look.load(Ordering::Acquire).min(1 << 50); // 35 years
        self.epoch + Duration::from_micros(micros)
    }

    /// Calls or records are to be looked at by then.
    pub(crate) fn note_due(&self, moment: Instant) {
        let micros = moment.saturating_duration_since(self.epoch).as_micros() as u64;
        if micros < self.next_look.load(Ordering::Acquire) {
            self.set_look(moment, micros);
        }
    }

    /// The same, so many microseconds after the endpoint was made.
    pub(super) fn note_due_at(&self, micros: u64) {
        if micros < self.next_look.load(Ordering::Acquire) {
            self.set_look(self.epoch + Duration::from_micros(micros), micros);
        }
    }

    #[inline(never)]
    fn set_look(&self, moment: Instant, micros: u64) {
        if self.next_look.fetch_min(micros, Ordering::AcqRel) > micros {
            self.set_alarm(moment);
        }
    }

    /// A request has arrived: its record is looked at after a ping period.
    pub(crate) fn note_request(&self, arrived: Instant) {
        self.note_due(arrived + DEFAULT_PING.period * 9 / 8);
    }

    fn end_late_calls(&self, now: Instant) {
        let age = now.saturating_duration_since(self.epoch).as_nanos() as u64;
        loop {
            let late = self.calls().late(age); // the lock is not held while they end
            let Some(late) = late else { break };
            late.iter().for_each(|call| call.handle_deadline());
        }
        let next = self.calls().first_deadline();
        if let Some(next) = next {
            self.note_deadline(self.moment(next).max(now + DEADLINE_TICK));
        }
    }

    /// Something may wait on connections: they are looked at soon.
    pub(crate) fn tend_soon(&self) {
        if let Some(interval) = self.config.keep_alive.interval() {
            self.tend_by(Instant::now() + interval, false);
        }
    }

    /// Connections are looked at by then; not before, if they have just been.
    pub(super) fn tend_by(&self, moment: Instant, afresh: bool) {
        let mut next = locked(&self.next_tending);
        if afresh || moment < next.0 {
            next.0 = moment;
            drop(next);
            self.set_alarm(moment);
        }
    }

    /// How often it is looked whether large messages grow.
    pub(super) fn stall_check(&self) -> Duration {
        self.bounds.partials.limits().period
    }

    /// Gives up connections whose peers are silent while something waits for them, or whose large messages have stopped
    /// to grow and would hold their memory for ever. It runs where connections are driven: a runtime that was blocked
    /// has not listened.
    fn tend(&self) {
        let (settings, now) = (&self.config.keep_alive, self.epoch.elapsed());
        self.note_listening(now);
        let peers = self.pool.open();
        let mut waits = false;
        for peer in &peers {
            match peer.look(settings, now) {
                Ok(something) => waits |= something,
                Err(error) => {
                    self.meters.connections_silent.add();
                    tracing::warn!(?peer, %error, "the connection is given up");
                }
            }
        }
        if waits {
            self.tend_soon();
        }
        let late = Instant::now() >= locked(&self.next_tending).1;
        if late {
            locked(&self.next_tending).1 = Instant::now() + self.stall_check();
            peers.iter().for_each(|peer| peer.check_stalled(now));
        }
    }

    // Whether the runtime listens.

    fn note_listening(&self, now: Duration) {
        self.listened.store(micros(now), Ordering::Release);
    }

    /// Whether the runtime may have been blocked for so long that peers believe this endpoint dead by `now`, in nanoseconds
    /// since it was made, and have closed their connections without its having noticed.
    pub(crate) fn was_away(&self, now: u64) -> bool {
        (now / 1000).saturating_sub(self.listened.load(Ordering::Acquire)) > self.away_after
    }

    /// Lets the runtime look at its sockets, and connections take what has arrived meanwhile.
    pub(crate) async fn listen(&self) {
        for _ in 0..LISTENING_TURNS {
            tokio::task::yield_now().await;
        }
        self.note_listening(self.epoch.elapsed());
    }
}
