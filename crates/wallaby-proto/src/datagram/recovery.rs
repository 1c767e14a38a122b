//! What is under way: round-trip times, loss, retransmission, and how much may be under way at a time.
//!
//! Loss is found as in RFC 9002: by later packets that were acknowledged, or, where none is, by a probe after a time
//! that doubles with each. A packet's number is never used again, so every acknowledgement measures the round trip.
//! The window is that of NewReno (RFC 5681): it doubles each round trip until something is lost, then is halved and
//! grows by a datagram a round trip.

use std::collections::VecDeque;
use std::time::Duration;

use crate::datagram::GateSettings;
use crate::datagram::packet::Ack;
use crate::datagram::received::ACK_DELAY;

/// The round trip that is assumed before one was measured.
const FIRST_RTT: Duration = Duration::from_millis(100);

/// What a timer is off by.
const GRANULARITY: Duration = Duration::from_millis(1);

/// Probes are not further apart than this, nor than two of the shortest round trips. A way that was cut or lost much, or a
/// peer that was stopped and has spoilt what is known of round trips, is heard again before calls take the silence for a
/// failure; and that little is no burden to any way.
const MOST_BETWEEN_PROBES: Duration = Duration::from_millis(250);

/// A packet is lost if one sent so many later was acknowledged; more where packets turn out to overtake each other.
const REORDERED: (u64, u64) = (3, 128);

/// Silence for so many times as long as the first probe waited, were it for what is known of round trips alone, and the
/// window starts anew.
const PAUSES_TO_COLLAPSE: u64 = 3;

/// So many probes in a row without an acknowledgement, and nobody may be there.
const UNANSWERED: u32 = 5;

/// Most packets that are kept in mind.
const MAX_PACKETS: usize = 4096;

/// A timer that comes later than this says that this process, not the other side, was asleep (docs/protocol.md, rule 20).
pub(super) const ASLEEP: Duration = Duration::from_millis(100);

/// A piece of a message, by the message's number and the piece's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Chunk {
    pub(super) number: u64,
    pub(super) piece: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    UnderWay,
    /// Counts as lost; its acknowledgement may come late after all.
    Lost,
    /// Acknowledged, or without need of it.
    Settled,
}

/// A packet that was sent. Times are in nanoseconds, here and below, since each packet is computed with several of them.
#[derive(Debug)]
struct SentPacket {
    at: u64,
    size: u32,
    state: State,
    chunks: u32,
    /// Where its chunks begin, counted from the first chunk ever.
    first_chunk: u64,
    /// It acknowledged packets of the other side below this number.
    acknowledges: u64,
}

/// The packets of one session that are under way.
#[derive(Debug)]
pub(super) struct Recovery {
    packets: VecDeque<SentPacket>,
    /// Number of the first of `packets`.
    first: u64,
    chunks: VecDeque<Chunk>,
    /// How many chunks came before the first of `chunks`.
    first_chunk: u64,
    /// Of the packets under way.
    bytes: usize,
    under_way: usize,
    largest_acknowledged: Option<u64>,
    rtt: Rtt,
    window: CongestionWindow,
    reordered: u64,
    /// When the next packet counts as lost.
    loss_at: Option<u64>,
    /// When the last packet was sent that asks for an acknowledgement.
    last_sent: u64,
    /// When the other side last acknowledged something, or had everything.
    progress: u64,
    /// When the newest packet was sent that the other side has acknowledged: it lived after that.
    alive: u64,
    /// Probes since then.
    probes: u32,
    lost: u64,
    patience: (u64, u32),
}

/// What a timeout says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Timeout {
    /// Something counts as lost, or it was too early.
    Nothing,
    /// So many packets should be sent, whatever the window says.
    Probe { packets: u32 },
    /// The other side has not acknowledged anything for so long, in spite of so many probes.
    GiveUp { silent: Duration, probes: u32 },
}

/// What an acknowledgement said.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct News {
    /// The other side has all acknowledgements of packets of its own below this number.
    pub(super) acknowledged_below: u64,
}

/// Something was acknowledged that had not been sent.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NeverSent;

impl Recovery {
    pub(super) fn new(settings: &GateSettings) -> Self {
        Self {
            packets: VecDeque::new(),
            first: 0,
            chunks: VecDeque::new(),
            first_chunk: 0,
            bytes: 0,
            under_way: 0,
            largest_acknowledged: None,
            rtt: Rtt::default(),
            window: CongestionWindow::new(settings),
            reordered: REORDERED.0,
            loss_at: None,
            last_sent: 0,
            progress: 0,
            alive: 0,
            probes: 0,
            lost: 0,
            patience: (nanoseconds(settings.patience), settings.probes),
        }
    }

    /// The number of the next packet.
    pub(super) fn next_number(&self) -> u64 {
        self.first + self.packets.len() as u64
    }

    /// The chunks of the packet that is being written are appended here.
    pub(super) fn chunks(&mut self) -> &mut VecDeque<Chunk> {
        &mut self.chunks
    }

    /// How many chunks were appended since the last packet was sent.
    fn new_chunks(&self) -> u64 {
        let known = self.packets.back().map_or(self.first_chunk, |sent| {
            sent.first_chunk + u64::from(sent.chunks)
        });
        self.first_chunk + self.chunks.len() as u64 - known
    }

    /// The packet with the next number is sent. It `asks` for an acknowledgement if it holds more than one itself, and
    /// `acknowledges` packets below a number.
    pub(super) fn handle_sent(
        &mut self,
        now: Duration,
        size: usize,
        asks: bool,
        acknowledges: u64,
    ) {
        let now = nanoseconds(now);
        let chunks = self.new_chunks();
        if asks {
            if self.under_way == 0 {
                self.progress = now;
            }
            self.bytes += size;
            self.under_way += 1;
            self.last_sent = now;
        }
        self.packets.push_back(SentPacket {
            at: now,
            size: size as u32,
            state: if asks {
                State::UnderWay
            } else {
                State::Settled
            },
            chunks: chunks as u32,
            first_chunk: self.first_chunk + self.chunks.len() as u64 - chunks,
            acknowledges,
        });
        if self.packets[0].state != State::UnderWay {
            self.forget(now);
        }
    }

    /// Whether another packet with messages may leave.
    pub(super) fn has_room(&self) -> bool {
        self.bytes < self.window.size && self.packets.len() < MAX_PACKETS
    }

    /// Whether a packet may leave that only acknowledges. A peer that wants acknowledgements and gives none does not
    /// make this side remember more and more of them.
    pub(super) fn may_acknowledge(&self) -> bool {
        self.packets.len() < 2 * MAX_PACKETS
    }

    /// Whether no packet with messages may leave after one of this size.
    pub(super) fn is_last(&self, size: usize) -> bool {
        self.bytes + size >= self.window.size
    }

    /// Whether something waits for its acknowledgement.
    pub(super) fn is_waiting(&self) -> bool {
        self.under_way > 0
    }

    /// Whether it waits for its acknowledgement in spite of probes.
    pub(super) fn is_probing(&self) -> bool {
        self.probes > 0
    }

    /// Whether the other side acknowledges what it gets, as far as known: of so many probes one arrives.
    pub(super) fn is_answered(&self) -> bool {
        self.probes < UNANSWERED
    }

    /// Takes an acknowledgement: `settled` gets the chunks that arrived, `lost` those to be sent again.
    pub(super) fn handle_ack(
        &mut self,
        now: Duration,
        ack: &Ack,
        mut settled: impl FnMut(Chunk),
        lost: impl FnMut(Chunk),
    ) -> Result<News, NeverSent> {
        if ack.largest() >= self.next_number() {
            return Err(NeverSent);
        }
        let now = nanoseconds(now);
        let full = self.bytes * 2 >= self.window.size;
        let mut news = News::default();
        let mut progress = false;
        let (mut next, mut older) = (Some(ack.newest()), ack.older());
        while let Some((first, last)) = next
            && last >= self.first
        {
            next = older.next();
            for number in (first.max(self.first)..last + 1).rev() {
                let index = (number - self.first) as usize;
                let sent = &mut self.packets[index];
                let acknowledges = std::mem::take(&mut sent.acknowledges);
                news.acknowledged_below = news.acknowledged_below.max(acknowledges);
                match std::mem::replace(&mut sent.state, State::Settled) {
                    State::Settled => continue,
                    State::UnderWay => {
                        self.bytes -= sent.size as usize;
                        self.under_way -= 1;
                        self.window.handle_acknowledged(sent.size, sent.at, full);
                        if number == ack.largest() {
                            let delay = nanoseconds(ack.delay);
                            self.rtt.measure(now.saturating_sub(sent.at), delay);
                        }
                    }
                    State::Lost => {
                        let behind = ack.largest() - number + 1;
                        self.reordered = self.reordered.max(behind).min(REORDERED.1);
                    }
                }
                progress = true;
                self.alive = self.alive.max(sent.at);
                let begin = (sent.first_chunk - self.first_chunk) as usize;
                for index in begin..begin + sent.chunks as usize {
                    settled(self.chunks[index]);
                }
            }
        }
        if progress {
            self.progress = now;
            self.probes = 0;
        }
        self.largest_acknowledged = self.largest_acknowledged.max(Some(ack.largest()));
        self.forget(now);
        self.find_losses(now, lost);
        Ok(news)
    }

    /// Datagrams may be so long from now on.
    pub(super) fn set_datagram(&mut self, datagram: usize) {
        self.window.set_datagram(datagram);
    }

    /// When [`Recovery::handle_timeout`] has something to do, in nanoseconds.
    pub(super) fn timeout(&self) -> Option<u64> {
        if self.under_way == 0 {
            return None;
        }
        let next = self.loss_at.unwrap_or_else(|| self.probe_at());
        let given_up = self.progress.saturating_add(self.patience.0);
        Some(next.min(given_up))
    }

    pub(super) fn handle_timeout(&mut self, now: Duration, mut lost: impl FnMut(Chunk)) -> Timeout {
        let now = nanoseconds(now);
        let Some(due) = self.timeout().filter(|due| *due <= now) else {
            return Timeout::Nothing;
        };
        let late = now - due;
        if late > nanoseconds(ASLEEP) {
            self.progress = self.progress.saturating_add(late); // silence counts only while this side listens
        }
        if self.loss_at.is_some_and(|loss| loss <= now) {
            self.find_losses(now, lost);
            return Timeout::Nothing;
        }
        let silent = now.saturating_sub(self.progress);
        if silent >= self.patience.0 || self.probes >= self.patience.1 {
            return Timeout::GiveUp {
                silent: Duration::from_nanos(silent),
                probes: self.probes,
            };
        }
        if now < self.probe_at() {
            return Timeout::Nothing;
        }
        self.probes += 1;
        let pause = self.rtt.probe_after;
        if silent >= pause.saturating_mul(PAUSES_TO_COLLAPSE) {
            self.window.collapse(now);
        }
        // The oldest packet's chunks are worth more than an empty probe: if it was lost, this repairs it.
        let oldest = self
            .packets
            .iter()
            .find(|sent| sent.state == State::UnderWay);
        if let Some(sent) = oldest {
            let begin = (sent.first_chunk - self.first_chunk) as usize;
            let end = begin + sent.chunks as usize;
            self.chunks.range(begin..end).copied().for_each(&mut lost);
        }
        // After one in vain two (RFC 9002 section 6.2.4): on a way that loses much the pauses, which double, would add up to
        // a silence that calls take for a failure.
        let packets = if self.probes > 1 { 2 } else { 1 };
        Timeout::Probe { packets }
    }

    /// What the round trip and the window are now, and how many packets were lost.
    pub(super) fn path(&self) -> PathStats {
        PathStats {
            round_trip: self.rtt.smoothed.map(Duration::from_nanos),
            window: self.window.size,
            under_way: self.bytes,
            lost: self.lost,
        }
    }

    /// The handshake took so long.
    pub(super) fn measure(&mut self, round_trip: Duration) {
        self.rtt.measure(nanoseconds(round_trip), 0);
    }

    /// The handshake has shown that the other side lived after this.
    pub(super) fn lived(&mut self, after: Duration) {
        self.alive = nanoseconds(after);
    }

    /// The other side has shown that it lived after this: it has answered what was sent then. That something arrives says less,
    /// as it may have waited for this side in the socket's buffer, while this process was stopped.
    pub(super) fn alive(&self) -> Duration {
        Duration::from_nanos(self.alive)
    }

    /// The shortest round trip: no stop of this process has made it longer.
    pub(super) fn round_trip(&self) -> Duration {
        match self.rtt.smoothed {
            Some(_) => Duration::from_nanos(self.rtt.least),
            None => FIRST_RTT,
        }
    }

    /// When the other side is asked for an acknowledgement, if none has come.
    fn probe_at(&self) -> u64 {
        let backed_off = (self.rtt.probe_after).saturating_mul(1 << self.probes.min(16));
        (self.last_sent).saturating_add(backed_off.min(self.rtt.most))
    }

    fn find_losses(&mut self, now: u64, mut lost: impl FnMut(Chunk)) {
        self.loss_at = None;
        let Some(largest) = self.largest_acknowledged else {
            return;
        };
        if largest < self.first {
            return; // the common case: all is settled up to there
        }
        let patience = self.rtt.loss_after(self.reordered > REORDERED.0);
        let mut newest_lost = None;
        let before = largest.saturating_sub(self.first) as usize;
        for (index, sent) in self.packets.iter_mut().take(before).enumerate() {
            if sent.state != State::UnderWay {
                continue;
            }
            let number = self.first + index as u64;
            let lost_at = sent.at.saturating_add(patience);
            if largest - number < self.reordered && lost_at > now {
                // Those behind it were sent later.
                self.loss_at = Some(self.loss_at.map_or(lost_at, |earlier| earlier.min(lost_at)));
                continue;
            }
            sent.state = State::Lost;
            self.bytes -= sent.size as usize;
            self.under_way -= 1;
            self.lost += 1;
            newest_lost = newest_lost.max(Some(sent.at));
            let begin = (sent.first_chunk - self.first_chunk) as usize;
            let end = begin + sent.chunks as usize;
            self.chunks.range(begin..end).copied().for_each(&mut lost);
        }
        if let Some(sent_at) = newest_lost {
            self.window.handle_lost(sent_at, now);
            self.forget(now);
        }
    }

    /// Forgets the oldest packets, as far as they matter no more.
    fn forget(&mut self, now: u64) {
        while let Some(sent) = self.packets.front() {
            let over = match sent.state {
                State::UnderWay => false,
                State::Lost => {
                    let late = self.rtt.probe_after.saturating_mul(2);
                    sent.at.saturating_add(late) <= now || self.packets.len() >= MAX_PACKETS
                }
                State::Settled => true,
            };
            if !over {
                return;
            }
            match sent.chunks {
                0 => {}
                1 => drop(self.chunks.pop_front()), // mostly
                chunks => drop(self.chunks.drain(..chunks as usize)),
            }
            self.first_chunk += u64::from(sent.chunks);
            self.packets.pop_front();
            self.first += 1;
        }
    }
}

/// What a session has found out about the way to its peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PathStats {
    /// The smoothed round-trip time; `None` before one was measured.
    pub round_trip: Option<Duration>,
    /// How many bytes of datagrams may be under way.
    pub window: usize,
    /// How many are.
    pub under_way: usize,
    /// Datagrams that were lost, or seemed to be.
    pub lost: u64,
}

/// The round-trip time (RFC 6298, RFC 9002 section 5), and what follows from it until the next one is measured; in
/// nanoseconds, since each acknowledgement computes with all of it.
#[derive(Debug)]
struct Rtt {
    smoothed: Option<u64>,
    variation: u64,
    least: u64,
    latest: u64,
    /// After so long without an acknowledgement the other side is asked for one.
    probe_after: u64,
    /// However long round trips seem to be, silence for longer than this is worth asking.
    most: u64,
}

impl Default for Rtt {
    fn default() -> Self {
        Self {
            smoothed: None,
            variation: 0,
            least: 0,
            latest: 0,
            // As a session that opens asks again. On a longer way that is one probe too many.
            probe_after: nanoseconds(FIRST_RTT),
            most: nanoseconds(MOST_BETWEEN_PROBES),
        }
    }
}

impl Rtt {
    /// `delay` is how long the other side waited before it acknowledged.
    fn measure(&mut self, latest: u64, delay: u64) {
        self.latest = latest;
        let (smoothed, variation) = match self.smoothed {
            None => {
                self.least = latest;
                (latest, latest / 2)
            }
            Some(smoothed) => {
                self.least = self.least.min(latest);
                let delay = delay.min(nanoseconds(ACK_DELAY));
                let adjusted = if latest >= self.least.saturating_add(delay) {
                    latest - delay
                } else {
                    latest
                };
                (
                    weighted(smoothed, adjusted, 3),
                    weighted(self.variation, smoothed.abs_diff(adjusted), 2),
                )
            }
        };
        self.smoothed = Some(smoothed);
        self.variation = variation;
        let spread = variation.saturating_mul(4).max(nanoseconds(GRANULARITY));
        self.probe_after = (smoothed.saturating_add(spread)).saturating_add(nanoseconds(ACK_DELAY));
        self.most = nanoseconds(MOST_BETWEEN_PROBES).max(self.least.saturating_mul(2));
    }

    /// How long after a packet that was acknowledged an earlier one may still be under way.
    fn loss_after(&self, reordered: bool) -> u64 {
        let rtt = self.smoothed.unwrap_or(nanoseconds(FIRST_RTT));
        let rtt = rtt.max(self.latest);
        let rtt = rtt.saturating_add(if reordered { rtt } else { rtt / 8 });
        rtt.clamp(nanoseconds(GRANULARITY), self.most)
    }
}

/// A running mean, into which the new value goes by one part in two to the power of `shift`.
fn weighted(mean: u64, new: u64, shift: u32) -> u64 {
    mean - (mean >> shift) + (new >> shift)
}

/// A duration in nanoseconds; above the 584 years that 64 bits of them hold, it is that.
pub(super) const fn nanoseconds(duration: Duration) -> u64 {
    (duration.as_secs().saturating_mul(1_000_000_000))
        .saturating_add(duration.subsec_nanos() as u64)
}

/// How many bytes may be under way.
#[derive(Debug)]
struct CongestionWindow {
    size: usize,
    /// Below, it doubles each round trip; above, it grows by a datagram.
    threshold: usize,
    /// What was acknowledged since it last grew by a datagram.
    acknowledged: usize,
    /// When it was last made smaller: what was sent before says nothing about the new size.
    shrunk_at: Option<u64>,
    datagram: usize,
    most: usize,
}

impl CongestionWindow {
    fn new(settings: &GateSettings) -> Self {
        let datagram = settings.datagram;
        Self {
            size: (10 * datagram).min(14_720.max(2 * datagram)),
            threshold: usize::MAX,
            acknowledged: 0,
            shrunk_at: None,
            datagram,
            most: settings.unacknowledged.max(2 * datagram),
        }
    }

    /// Of the longest ones two may always be under way.
    fn set_datagram(&mut self, datagram: usize) {
        self.datagram = datagram;
        self.most = self.most.max(2 * datagram);
        self.size = self.size.max(2 * datagram);
    }

    /// `full` if the window was used: one that is not used is not known to be good.
    fn handle_acknowledged(&mut self, size: u32, sent_at: u64, full: bool) {
        if !full || self.shrunk_at.is_some_and(|shrunk| sent_at <= shrunk) {
            return;
        }
        if self.size < self.threshold {
            self.size += size as usize;
        } else {
            self.acknowledged += size as usize;
            if self.acknowledged >= self.size {
                self.acknowledged -= self.size;
                self.size += self.datagram;
            }
        }
        self.size = self.size.min(self.most);
    }

    fn handle_lost(&mut self, sent_at: u64, now: u64) {
        if self.shrunk_at.is_some_and(|shrunk| sent_at <= shrunk) {
            return; // once a round trip
        }
        self.shrunk_at = Some(now);
        self.size = (self.size / 2).max(2 * self.datagram);
        self.threshold = self.size;
        self.acknowledged = 0;
    }

    /// Nothing came back for long: what was known of the way is of no use.
    fn collapse(&mut self, now: u64) {
        let least = 2 * self.datagram;
        self.shrunk_at = Some(now);
        if self.size > least {
            self.threshold = (self.size / 2).max(least);
            self.size = least;
            self.acknowledged = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::datagram::packet;
    use crate::datagram::received::ReceivedPackets;
    use crate::varint::Reader;

    const DATAGRAM: usize = 1000;

    fn ms(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    fn us(microseconds: u64) -> Duration {
        Duration::from_micros(microseconds)
    }

    fn ack(numbers: impl IntoIterator<Item = u64>) -> Ack {
        let mut received = ReceivedPackets::default();
        numbers
            .into_iter()
            .for_each(|number| received.insert(number));
        let mut out = Vec::new();
        packet::put_ack(&mut out, &received, Duration::ZERO, 1000);
        Ack::read(&mut Reader::new(&out)).expect("what was written")
    }

    /// One side's packets, all of the longest size, with a chunk each that has the packet's number.
    struct Side {
        recovery: Recovery,
        lost: Vec<u64>,
    }

    impl Side {
        fn new() -> Self {
            let settings = GateSettings {
                datagram: DATAGRAM,
                unacknowledged: 40 * DATAGRAM,
                ..GateSettings::default()
            };
            Self {
                recovery: Recovery::new(&settings),
                lost: Vec::new(),
            }
        }

        fn send(&mut self, now: Duration, count: usize) {
            for _ in 0..count {
                let number = self.recovery.next_number();
                let chunk = Chunk { number, piece: 0 };
                self.recovery.chunks().push_back(chunk);
                self.recovery.handle_sent(now, DATAGRAM, true, 0);
            }
        }

        /// Returns what has settled.
        fn acknowledge(
            &mut self,
            now: Duration,
            numbers: impl IntoIterator<Item = u64>,
        ) -> Vec<u64> {
            let mut settled = Vec::new();
            let arrived = |chunk: Chunk| settled.push(chunk.number);
            let lost = |chunk: Chunk| self.lost.push(chunk.number);
            self.recovery
                .handle_ack(now, &ack(numbers), arrived, lost)
                .expect("all were sent");
            settled.sort_unstable();
            settled
        }

        fn timeout(&self) -> Option<Duration> {
            self.recovery.timeout().map(Duration::from_nanos)
        }

        fn time_out(&mut self, now: Duration) -> Timeout {
            let lost = |chunk: Chunk| self.lost.push(chunk.number);
            self.recovery.handle_timeout(now, lost)
        }

        fn window(&self) -> usize {
            self.recovery.path().window / DATAGRAM
        }
    }

    fn averages(rtt: &Rtt) -> (Duration, Duration) {
        let smoothed = rtt.smoothed.expect("one was measured");
        let [smoothed, variation] = [smoothed, rtt.variation].map(Duration::from_nanos);
        (smoothed, variation)
    }

    fn lost_after(rtt: &Rtt, reordered: bool) -> Duration {
        Duration::from_nanos(rtt.loss_after(reordered))
    }

    #[test]
    fn round_trips_are_averaged_as_the_standard_says() {
        let mut rtt = Rtt::default();
        assert_eq!(lost_after(&rtt, false), us(112_500), "nothing is known yet");
        rtt.measure(nanoseconds(ms(40)), 0);
        assert_eq!(averages(&rtt), (ms(40), ms(20)));
        assert_eq!(Duration::from_nanos(rtt.probe_after), ms(40 + 4 * 20 + 10));
        // The delay is the other side's doing: 52 ms it was.
        rtt.measure(nanoseconds(ms(56)), nanoseconds(ms(4)));
        assert_eq!(averages(&rtt), (us(41_500), ms(18)));
        assert_eq!(
            Duration::from_nanos(rtt.probe_after),
            us(41_500) + ms(4 * 18 + 10)
        );
        assert_eq!(lost_after(&rtt, false), ms(63), "9/8 of the latest");
        assert_eq!(
            lost_after(&rtt, true),
            ms(112),
            "where packets overtake each other"
        );
        // It may not make a round trip shorter than any was, nor be longer than it may be.
        rtt.measure(nanoseconds(us(41_500)), nanoseconds(ms(4)));
        assert_eq!(averages(&rtt).0, us(41_500));
        rtt.measure(nanoseconds(us(51_500)), nanoseconds(ms(11)));
        assert_eq!(averages(&rtt).0, us(41_500));
        assert_eq!(lost_after(&rtt, false), us(51_500) * 9 / 8);
    }

    #[test]
    fn of_a_steady_round_trip_only_timers_remain_to_be_waited_for() {
        let mut rtt = Rtt::default();
        (0..100).for_each(|_| rtt.measure(nanoseconds(us(200)), 0));
        assert_eq!(
            Duration::from_nanos(rtt.probe_after),
            us(200) + GRANULARITY + ACK_DELAY
        );
        assert_eq!(lost_after(&rtt, false), GRANULARITY);
        assert_eq!(Duration::from_nanos(rtt.most), MOST_BETWEEN_PROBES);
        let mut far = Rtt::default();
        (0..100).for_each(|_| far.measure(nanoseconds(ms(600)), 0));
        assert_eq!(
            Duration::from_nanos(far.most),
            ms(1200),
            "two of the shortest round trips"
        );
        assert_eq!(lost_after(&far, false), ms(675));
    }

    #[test]
    fn the_window_doubles_is_halved_and_grows_by_a_datagram() {
        let mut side = Side::new();
        side.send(ms(0), 9);
        assert!(side.recovery.has_room() && side.recovery.is_last(DATAGRAM));
        assert!(!side.recovery.is_last(DATAGRAM - 1));
        side.send(ms(0), 1);
        assert!(!side.recovery.has_room());
        assert_eq!(side.acknowledge(ms(10), 0..10), Vec::from_iter(0..10));
        assert_eq!(side.window(), 20);
        // 17 of 20 are lost: three later ones are known to have arrived, or must be.
        side.send(ms(10), 20);
        assert_eq!(side.acknowledge(ms(20), [29]), [29]);
        assert_eq!(side.lost, Vec::from_iter(10..27));
        let path = side.recovery.path();
        assert_eq!((path.lost, path.under_way), (17, 2 * DATAGRAM));
        assert_eq!(path.window, 21 * DATAGRAM / 2, "half of it");
        // What was sent before neither shrinks it again nor lets it grow.
        side.acknowledge(ms(21), [27, 28, 29]);
        assert_eq!(side.recovery.path().window, 21 * DATAGRAM / 2);
        // From here on a whole window makes it grow by one datagram.
        side.send(ms(30), 11);
        side.acknowledge(ms(40), 30..40);
        assert_eq!(side.recovery.path().window, 21 * DATAGRAM / 2);
        side.send(ms(40), 10);
        side.acknowledge(ms(50), 40..51);
        assert_eq!(side.recovery.path().window, 23 * DATAGRAM / 2);
    }

    #[test]
    fn a_window_that_is_not_used_does_not_grow_and_none_without_end() {
        let mut side = Side::new();
        side.send(ms(0), 4);
        side.acknowledge(ms(10), 0..4);
        assert_eq!(side.window(), 10, "of ten datagrams four were under way");
        side.send(ms(10), 5);
        side.acknowledge(ms(20), 4..9);
        assert_eq!(side.window(), 15, "half of it is enough");
        for (turn, first) in (2..6).zip((9..).step_by(40)) {
            side.send(ms(10 * turn), 40);
            side.acknowledge(ms(10 * turn + 10), first..first + 40);
        }
        assert_eq!(side.window(), 40, "as many as may be unacknowledged");
    }

    #[test]
    fn probes_are_further_and_further_apart_and_repeat_what_is_oldest() {
        let mut side = Side::new();
        side.recovery.measure(ms(10));
        side.send(ms(0), 2);
        let mut probes = Vec::new();
        while probes.len() < 5 {
            let due = side.timeout().expect("it waits");
            assert_eq!(side.time_out(due - us(1)), Timeout::Nothing);
            let Timeout::Probe { packets } = side.time_out(due) else {
                panic!("a probe")
            };
            side.send(due, 1);
            probes.push((due, packets));
        }
        // 10 ms, four of its variations, and the longest wait for an acknowledgement make 40 ms.
        let at = [(40, 1), (120, 2), (280, 2), (530, 2), (780, 2)];
        assert_eq!(probes, at.map(|(at, packets)| (ms(at), packets)));
        assert_eq!(side.lost, [0; 5]);
        assert!(side.recovery.is_probing());
        side.acknowledge(ms(785), [0]);
        assert!(!side.recovery.is_probing() && side.recovery.is_waiting());
    }

    #[test]
    fn after_long_silence_the_window_starts_anew() {
        let mut side = Side::new();
        side.recovery.measure(ms(10));
        side.send(ms(0), 10);
        for _ in 0..2 {
            let due = side.timeout().expect("it waits");
            side.time_out(due);
            assert_eq!(side.window(), if due < ms(120) { 10 } else { 2 });
            side.send(due, 1);
        }
        // All were lost. It doubles up to half of what it was, then grows by one.
        side.acknowledge(ms(130), [0, 11]);
        assert_eq!(side.lost[2..], Vec::from_iter(1..11));
        for now in [140, 150] {
            let first = side.recovery.next_number();
            let count = side.window();
            side.send(ms(now), count);
            side.acknowledge(ms(now + 5), first..first + count as u64);
        }
        assert_eq!(side.window(), 5);
    }

    #[test]
    fn who_overtakes_is_not_taken_for_proof_of_a_loss_again() {
        let mut side = Side::new();
        side.send(ms(0), 13);
        side.acknowledge(ms(100), [0, 1, 2, 8]);
        assert_eq!(side.lost, [3, 4, 5]);
        assert_eq!(side.acknowledge(ms(101), [3, 8]), [3], "it comes after all");
        side.acknowledge(ms(102), [12]);
        assert_eq!(side.lost, [3, 4, 5, 6], "six later ones it takes now");
        // The others have twice the round trip.
        let due = side.timeout().expect("four are under way");
        assert_eq!(due, lost_after(&side.recovery.rtt, true));
        assert_eq!(side.time_out(due), Timeout::Nothing);
        assert_eq!(side.lost, [3, 4, 5, 6, 7, 9, 10, 11]);
    }

    #[test]
    fn what_is_remembered_of_a_peer_that_acknowledges_nothing_is_bounded() {
        let mut side = Side::new();
        side.send(ms(0), 1);
        for sent in 1..2 * MAX_PACKETS {
            assert!(side.recovery.may_acknowledge());
            assert_eq!(side.recovery.has_room(), sent < MAX_PACKETS, "{sent}");
            side.recovery.handle_sent(ms(1), 20, false, 0);
        }
        assert!(!side.recovery.may_acknowledge() && !side.recovery.has_room());
        assert_eq!(side.acknowledge(ms(2), [0]), [0]);
        assert!(side.recovery.may_acknowledge() && side.recovery.has_room());
    }

    #[test]
    fn what_was_never_sent_cannot_be_acknowledged() {
        let mut side = Side::new();
        side.send(ms(0), 1);
        let never = (side.recovery).handle_ack(ms(1), &ack([1]), |_| (), |_| ());
        assert_eq!(never, Err(NeverSent));
    }

    #[test]
    fn two_of_the_longest_datagrams_may_always_be_under_way() {
        let settings = GateSettings {
            datagram: DATAGRAM,
            unacknowledged: DATAGRAM,
            ..GateSettings::default()
        };
        let mut window = CongestionWindow::new(&settings);
        window.set_datagram(30 * DATAGRAM);
        assert_eq!(window.size, 60 * DATAGRAM);
        window.handle_acknowledged(1, 1, true);
        assert_eq!(window.size, 60 * DATAGRAM, "whatever may be unacknowledged");
        window.handle_lost(1, 2);
        assert_eq!(window.size, 60 * DATAGRAM, "whatever is lost");
    }

    #[test]
    fn what_is_acknowledged_beyond_a_window_counts_for_the_next_datagram() {
        let mut window = CongestionWindow::new(&GateSettings {
            datagram: DATAGRAM,
            ..GateSettings::default()
        });
        window.handle_lost(0, 0);
        let mut sizes = vec![window.size / DATAGRAM];
        for _ in 0..3 {
            window.handle_acknowledged(4 * DATAGRAM as u32, 1, true);
            sizes.push(window.size / DATAGRAM);
        }
        assert_eq!(
            sizes,
            [5, 5, 6, 7],
            "8 datagrams for the first, 3 of them over"
        );
    }

    #[test]
    fn of_long_silence_the_first_notice_says_how_large_the_window_was() {
        let mut window = CongestionWindow::new(&GateSettings {
            datagram: DATAGRAM,
            ..GateSettings::default()
        });
        (0..3).for_each(|turn| window.collapse(turn));
        assert_eq!(window.size, 2 * DATAGRAM);
        for _ in 0..3 {
            window.handle_acknowledged(DATAGRAM as u32, 10, true);
        }
        assert_eq!(window.size, 5 * DATAGRAM, "it doubles up to half of that");
    }

    #[test]
    fn what_was_lost_long_ago_is_forgotten() {
        let mut side = Side::new();
        side.send(ms(0), 10);
        side.acknowledge(ms(10), [9]);
        assert_eq!(side.lost, Vec::from_iter(0..7));
        side.acknowledge(ms(11), [7, 8]);
        side.send(ms(12), 1);
        assert_eq!(side.recovery.packets.len(), 11, "they may come late");
        side.send(ms(10_000), 1);
        assert_eq!(side.recovery.packets.len(), 2);
    }

    #[test]
    fn where_nothing_overtakes_a_packet_is_missed_after_little_more_than_a_round_trip() {
        let mut side = Side::new();
        side.send(ms(0), 2);
        side.acknowledge(ms(100), [1]);
        assert_eq!(side.timeout(), Some(us(112_500)));
        assert_eq!(side.time_out(us(112_500)), Timeout::Nothing);
        assert_eq!(side.lost, [0]);
    }
}
