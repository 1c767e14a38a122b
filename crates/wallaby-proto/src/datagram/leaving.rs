//! What a session sends, and when.

use std::time::Duration;

use crate::call::clock::earliest;
use crate::carrier::Carrier;
use crate::connection::{ConnectionError, NamedBy};
use crate::datagram::Cause;
use crate::datagram::outbound::Streams;
use crate::datagram::packet::{self, ACK_ROOM, CHECKSUM, Flags};
use crate::datagram::recovery::{ASLEEP, Timeout, nanoseconds};
use crate::datagram::session::{Session, SessionState};
use crate::varint;

/// How long the first ask waits for its challenge before it is repeated, and each further one.
const ASK_AGAIN: (Duration, Duration) = (Duration::from_millis(100), Duration::from_millis(200));

/// Asks at that pace to an address that a peer has named: whoever is there may not have wanted any. The next one follows after
/// a second, and each one takes twice as long as the one before it: a way that was cut for a while is found again.
const QUICK_ASKS: u32 = 3;

/// How long a closed session tells its peer so, unless that confirms it.
const CLOSING: Duration = Duration::from_secs(1);

/// By so much a packet is made as long as the one before it: the system sends those of one length at once, and the first one
/// mostly has an acknowledgement that the others have not.
const MOST_PADDING: usize = 16;

/// What becomes of a session.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum SessionFate {
    /// It goes on.
    GoesOn,
    /// It ends, and the driver learns why.
    Ends(Cause),
    /// It ends since the peer breaks the rules; the peer is told, too.
    Breaks(ConnectionError),
    /// This side had closed it, and the peer knows or has been told often enough.
    IsOver,
}

impl Session {
    /// Appends the next datagram that is to be sent; `false` if there is none now.
    pub(super) fn poll_transmit(&mut self, now: Duration, out: &mut Vec<u8>) -> bool {
        if let SessionState::Asking {
            named_by,
            asked,
            tries,
            ..
        } = &mut self.state
        {
            if asked.is_some_and(|asked| now < asked.saturating_add(ask_again(*named_by, *tries))) {
                return false;
            }
            *asked = Some(now);
            *tries += 1;
            let len = match named_by {
                NamedBy::Application => packet::ASK_LEN,
                NamedBy::Peer => packet::SHORT_ASK_LEN,
            };
            packet::put_ask(out, self.peering.me.versions, self.local_id, len);
            self.peering.counters.bytes_sent += len as u64;
            return true;
        }
        let Some(peer) = self.peer() else {
            return false;
        };
        let streams = Streams::of(&peer.limits);
        if let SessionState::Closing { until, .. } = &mut self.state {
            until.get_or_insert(now + CLOSING);
        }
        let may_send = self.probes > 0 || self.recovery.has_room();
        if matches!(self.state, SessionState::Open { .. })
            && may_send
            && let Some(length) = self.sizing.due(now)
        {
            self.write_long_probe(now, out, length);
            return true;
        }
        let messages = may_send && self.outgoing.has_work(streams);
        let ack = self.ack_due().is_some_and(|due| due <= nanoseconds(now));
        let probes = self.probe || self.probes > 0;
        if !messages && !ack && !probes {
            self.rest();
            return false;
        }
        self.write_packet(now, out, messages.then_some(streams))
    }

    /// Whether there is certainly nothing to be sent until something happens.
    pub(super) fn has_sent_all(&self, now: Duration) -> bool {
        matches!(self.state, SessionState::Open { .. })
            && !(self.probe || self.sizing.is_wanted() || self.outgoing.is_sending())
            && self.probes == 0
            && self.received.due().is_none_or(|due| due > nanoseconds(now))
    }

    /// Nothing is sent for now.
    pub(super) fn rest(&mut self) {
        self.length_before = 0;
    }

    /// Appends a packet with what fits; with messages if they may be sent, so many of them in pieces at a time.
    pub(super) fn write_packet(
        &mut self,
        now: Duration,
        out: &mut Vec<u8>,
        streams: Option<Streams>,
    ) -> bool {
        let start = out.len();
        let flags_at = match &self.state {
            SessionState::Opening { hello, issued, .. } => {
                packet::put_open(out, self.remote_id, self.local_id, *issued, hello)
            }
            _ => packet::put_data(out, self.remote_id),
        };
        let mut flags = Flags::NONE;
        varint::put(out, self.recovery.next_number());
        let limit = start + self.sizing.datagram() - CHECKSUM;
        let mut acknowledged = 0;
        // Nothing comes through, as it seems: then what was said of the other side's packets did not either.
        let again = self.recovery.is_probing() && self.received.has_any();
        if self.received.wants_ack() || again {
            flags = flags.with(Flags::ACK);
            let room = if streams.is_some() {
                ACK_ROOM
            } else {
                limit - out.len()
            };
            let (newest, delay) = self.received.take_ack(now);
            packet::put_ack(out, &self.received, delay, room);
            acknowledged = newest + 1;
        }
        let before = out.len();
        if let Some(streams) = streams {
            let room = limit.saturating_sub(before);
            (self.outgoing).fill(out, room, streams, self.recovery.chunks());
            if self.outgoing.is_waiting() {
                self.sizing.want_more();
            }
        }
        if out.len() == before && (self.probe || self.probes > 0) {
            packet::put_probe(out);
        }
        let asks = out.len() > before;
        if !asks && acknowledged == 0 {
            out.truncate(start); // what waits does not fit beside the hello
            return false;
        }
        if asks && (self.probes > 0 || self.is_stuck_after(out.len() - start, streams)) {
            flags = flags.with(Flags::URGENT);
        }
        out[flags_at] = flags.byte();
        if let SessionState::Opening {
            named_by: NamedBy::Peer,
            ..
        } = self.state
        {
            // The ask was short: now that the address is proven, this finds out whether longer datagrams come through.
            let length = out.len() - start + CHECKSUM;
            packet::put_padding(out, packet::ASK_LEN.saturating_sub(length));
        }
        if streams.is_some() {
            self.pad(out, start);
        }
        packet::seal(out, start);
        let size = out.len() - start;
        self.recovery.handle_sent(now, size, asks, acknowledged);
        if asks {
            self.probe = false;
            self.probes = self.probes.saturating_sub(1);
        }
        self.peering.counters.bytes_sent += size as u64;
        true
    }

    /// Appends a packet that finds out whether datagrams of this length come through: see [`crate::datagram::sizing`].
    #[cold]
    fn write_long_probe(&mut self, now: Duration, out: &mut Vec<u8>, length: usize) {
        let start = out.len();
        let flags_at = packet::put_data(out, self.remote_id);
        let number = self.recovery.next_number();
        varint::put(out, number);
        packet::put_probe(out);
        let padding = length.saturating_sub(out.len() - start + CHECKSUM);
        packet::put_padding(out, padding);
        out[flags_at] = Flags::NONE.with(Flags::URGENT).byte();
        packet::seal(out, start);
        let size = out.len() - start;
        // Nothing is missing if it is lost.
        self.recovery.handle_sent(now, size, false, 0);
        self.sizing.handle_sent(now, number);
        self.length_before = 0;
        self.peering.counters.bytes_sent += size as u64;
    }

    /// Makes a packet as long as the one before it that leaves now, too, if it nearly is.
    fn pad(&mut self, out: &mut Vec<u8>, start: usize) {
        let length = out.len() - start;
        let missing = self.length_before.saturating_sub(length);
        if missing > 0 && missing <= MOST_PADDING {
            packet::put_padding(out, missing);
        }
        self.length_before = out.len() - start;
    }

    /// When [`Session::handle_timeout`] or [`Session::poll_transmit`] has something to do, in nanoseconds; `None` if never.
    pub(super) fn timeout(&self) -> Option<u64> {
        match &self.state {
            SessionState::Asking {
                since,
                named_by,
                asked,
                tries,
                ..
            } => {
                let again = ask_again(*named_by, *tries);
                let again = asked.map_or(*since, |asked| asked.saturating_add(again));
                let given_up = since.saturating_add(self.settings.patience);
                Some(nanoseconds(again.min(given_up)))
            }
            SessionState::Closing { until, .. } => {
                earliest(until.map(nanoseconds), self.recovery.timeout())
            }
            SessionState::Opening { .. } | SessionState::Open { .. } => {
                let sent = self.recovery.timeout();
                let sent = sent.unwrap_or_else(|| nanoseconds(self.idle_at()));
                let next = earliest(Some(sent), self.ack_due());
                let next = earliest(next, self.assembly.due().map(nanoseconds));
                earliest(next, self.asked_until().map(nanoseconds))
            }
        }
    }

    /// It is `now`.
    pub(super) fn handle_timeout(&mut self, now: Duration) -> SessionFate {
        let due = self.timeout();
        match &mut self.state {
            SessionState::Asking { since, .. } => {
                let late = due.map_or(Duration::ZERO, |due| {
                    now.saturating_sub(Duration::from_nanos(due))
                });
                if late > ASLEEP {
                    *since += late; // silence counts only while this side listens
                }
                let waited = now.saturating_sub(*since);
                if waited >= self.settings.patience {
                    return SessionFate::Ends(Cause::NoAnswer(waited));
                }
                return SessionFate::GoesOn;
            }
            SessionState::Closing {
                until: Some(until), ..
            } if *until <= now => return SessionFate::IsOver,
            _ => {}
        }
        if let Err(error) = self.assembly.check(now) {
            return SessionFate::Breaks(error);
        }
        if !self.recovery.is_waiting() && self.idle_at() <= now {
            self.probe = true;
        }
        let Self {
            recovery, outgoing, ..
        } = self;
        match recovery.handle_timeout(now, |chunk| outgoing.resend(chunk)) {
            Timeout::Nothing => SessionFate::GoesOn,
            Timeout::Probe { packets } => {
                self.probe = true;
                self.probes = packets;
                SessionFate::GoesOn
            }
            Timeout::GiveUp { .. } if self.is_closing() => SessionFate::IsOver,
            Timeout::GiveUp { silent, probes } => {
                SessionFate::Ends(Cause::Silent { silent, probes })
            }
        }
    }

    /// Whether nothing more can be sent after a packet of this size until something is acknowledged.
    fn is_stuck_after(&mut self, size: usize, streams: Option<Streams>) -> bool {
        let (last, waits) = (self.recovery.is_last(size), self.outgoing.is_waiting());
        last || !self.takes_output()
            || streams.is_some_and(|streams| waits && !self.outgoing.has_work(streams))
    }

    /// When its peer has shown no life for so long that it is asked whether it is still there.
    fn idle_at(&self) -> Duration {
        self.recovery.alive().saturating_add(self.settings.idle)
    }

    /// When an acknowledgement must leave that nothing has taken along.
    fn ack_due(&self) -> Option<u64> {
        self.received
            .due()
            .filter(|_| self.recovery.may_acknowledge())
    }

    fn is_closing(&self) -> bool {
        matches!(self.state, SessionState::Closing { .. })
    }

    /// Whether this side has closed it, and the peer knows.
    pub(super) fn is_over(&self) -> bool {
        self.is_closing() && self.outgoing.is_empty()
    }
}

/// How long after the latest ask the next one follows.
fn ask_again(named_by: NamedBy, tries: u32) -> Duration {
    match (named_by, tries.checked_sub(QUICK_ASKS)) {
        (NamedBy::Peer, Some(slow)) => Duration::from_secs(1) * 2u32.saturating_pow(slow.min(16)),
        _ if tries <= 1 => ASK_AGAIN.0,
        _ => ASK_AGAIN.1,
    }
}
