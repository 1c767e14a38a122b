//! How long a session's datagrams are: what every path carries, and to a peer on this host more, once one of that length has
//! come through.
//!
//! As in RFC 8899 a packet of a probe and padding finds out. If it is acknowledged, packets may be as long from then on. That
//! it is not says nothing about congestion: somebody on the way, such as a program that passes datagrams on, may take
//! shorter ones only. So recovery does not miss it, and after a few in vain everything stays as it is.

use std::net::SocketAddr;
use std::time::Duration;

use crate::datagram::GateSettings;
use crate::datagram::packet::Ack;

/// Probes that are sent at most.
const TRIES: u8 = 3;

/// How long one waits for its acknowledgement, at least, before another is sent.
const AGAIN: Duration = Duration::from_secs(1);

/// The length of a session's datagrams.
#[derive(Debug)]
pub(super) struct Sizing {
    /// What is known to come through.
    datagram: usize,
    /// What is hoped for.
    longest: usize,
    /// A message was longer than what comes through, or several did not fit into one.
    wanted: bool,
    tries: u8,
    /// The latest probe: its packet's number, and when it was sent.
    probe: Option<(u64, Duration)>,
}

impl Sizing {
    pub(super) fn new(settings: &GateSettings, peer: SocketAddr) -> Self {
        let longest = if peer.ip().to_canonical().is_loopback() {
            settings.loopback
        } else {
            settings.datagram
        };
        Self {
            datagram: settings.datagram,
            longest,
            wanted: false,
            tries: 0,
            probe: None,
        }
    }

    /// Longest datagram that may be sent now.
    pub(super) fn datagram(&self) -> usize {
        self.datagram
    }

    /// A message does not fit into a datagram, or not beside those that are sent with it.
    pub(super) fn want_more(&mut self) {
        self.wanted |= self.datagram < self.longest && self.tries < TRIES;
    }

    /// Whether a probe is to be sent, now or later.
    pub(super) fn is_wanted(&self) -> bool {
        self.wanted
    }

    /// How long a probe is to be, if one should be sent now.
    pub(super) fn due(&self, now: Duration) -> Option<usize> {
        let waits = self.probe.is_some_and(|(_, at)| now < at + AGAIN);
        (self.wanted && !waits).then_some(self.longest)
    }

    /// A probe was sent in the packet with this number.
    pub(super) fn handle_sent(&mut self, now: Duration, number: u64) {
        self.wanted = false;
        self.tries += 1;
        self.probe = Some((number, now));
    }

    /// Returns whether datagrams may be longer from now on.
    pub(super) fn handle_ack(&mut self, ack: &Ack) -> bool {
        let Some((number, _)) = self.probe else {
            return false; // the common case
        };
        if self.datagram >= self.longest
            || !(ack.ranges()).any(|(first, last)| (first..=last).contains(&number))
        {
            return false;
        }
        self.datagram = self.longest;
        self.wanted = false;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::net::Ipv4Addr;

    #[test]
    fn a_probe_that_may_be_lost_is_not_repeated_at_once() {
        let settings = GateSettings {
            loopback: 9000,
            ..GateSettings::default()
        };
        let mut sizing = Sizing::new(&settings, (Ipv4Addr::LOCALHOST, 1).into());
        let now = Duration::from_secs(1);
        assert_eq!(sizing.due(now), None, "no message needs it");
        sizing.want_more();
        assert_eq!(sizing.due(now), Some(9000));
        sizing.handle_sent(now, 7);
        sizing.want_more();
        let later = [Duration::ZERO, AGAIN / 2, AGAIN - Duration::from_nanos(1)];
        assert_eq!(later.map(|after| sizing.due(now + after)), [None; 3]);
        assert_eq!(sizing.due(now + AGAIN), Some(9000));
    }
}
