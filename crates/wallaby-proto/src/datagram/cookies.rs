//! Proof of address without state: the session id that a challenge hands out is a keyed hash of whom it was given to.
//!
//! Who shows it received the challenge at that address. Each is good for one session, and only for a while. So that a
//! late copy of a datagram cannot open a session a second time after it ended (its request would run twice), ended
//! sessions are remembered as long as their cookies are good. If more end than are remembered, a floor rises that older
//! cookies are below: what is accepted only moves forward.

use std::collections::BTreeSet;
use std::hash::Hasher;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use siphasher::sip::SipHasher24;

/// How long a cookie is good for: many times what a round trip takes.
pub(super) const LIFETIME: Duration = Duration::from_secs(10);

/// Most ended sessions that are remembered.
const MAX_ENDED: usize = 4096;

/// Session ids: those handed out in challenges, and those of sessions that this side asks for.
#[derive(Debug)]
pub(super) struct Cookies {
    secret: Secret,
    /// Counts the ids of sessions that this side asked for.
    asked: u64,
    /// Cookies issued up to then, in microseconds, are not good any more.
    floor: Option<u64>,
    /// Sessions that ended: when their cookies were issued, and their ids.
    ended: BTreeSet<(u64, u64)>,
}

/// Keys are not shown in logs.
struct Secret([u8; 16]);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(..)")
    }
}

const OF_CLIENT: u8 = 1;
const OF_SERVER: u8 = 2;

impl Cookies {
    /// `secret` is new in each incarnation: what was handed out by another one is no good here.
    pub(super) fn new(secret: [u8; 16]) -> Self {
        Self {
            secret: Secret(secret),
            asked: 0,
            floor: None,
            ended: BTreeSet::new(),
        }
    }

    /// An id for a session that this side asks for.
    pub(super) fn next_client(&mut self) -> u64 {
        self.asked += 1;
        let mut hasher = self.hasher(OF_CLIENT);
        hasher.write_u64(self.asked);
        hasher.finish()
    }

    /// The id of the session that `client` at this address may open.
    pub(super) fn issue(&self, client: u64, from: SocketAddr, issued: u64) -> u64 {
        let mut hasher = self.hasher(OF_SERVER);
        hasher.write_u64(client);
        match from.ip() {
            IpAddr::V4(ip) => hasher.write(&ip.octets()),
            IpAddr::V6(ip) => hasher.write(&ip.octets()),
        }
        hasher.write_u16(from.port());
        hasher.write_u64(issued);
        hasher.finish()
    }

    /// Whether `session` may be opened now by `client` at this address, as far as cookies go.
    pub(super) fn is_good(
        &self,
        now: Duration,
        session: u64,
        client: u64,
        from: SocketAddr,
        issued: u64,
    ) -> bool {
        session == self.issue(client, from, issued)
            && issued <= micros(now)
            && !self.is_over(now, issued)
            && !self.ended.contains(&(issued, session))
    }

    /// A session that was opened with a cookie has ended.
    pub(super) fn end(&mut self, now: Duration, session: u64, issued: u64) {
        while let Some(&(oldest, _)) = self.ended.first()
            && self.is_over(now, oldest)
        {
            self.ended.pop_first();
        }
        if self.is_over(now, issued) {
            return;
        }
        self.ended.insert((issued, session));
        if self.ended.len() > MAX_ENDED {
            self.floor = self.ended.pop_first().map(|(issued, _)| issued);
        }
    }

    fn is_over(&self, now: Duration, issued: u64) -> bool {
        self.floor.is_some_and(|floor| issued <= floor)
            || micros(now).saturating_sub(issued) > micros(LIFETIME)
    }

    fn hasher(&self, purpose: u8) -> SipHasher24 {
        let mut hasher = SipHasher24::new_with_key(&self.secret.0);
        hasher.write_u8(purpose);
        hasher
    }
}

/// A time as cookies state it.
pub(super) fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(100);

    fn from(port: u16) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, 1], port))
    }

    #[test]
    fn a_cookie_is_good_for_its_address_its_client_its_time_and_its_incarnation() {
        let cookies = Cookies::new([1; 16]);
        let issued = micros(NOW);
        let session = cookies.issue(7, from(1), issued);
        let good = |cookies: &Cookies, now, client, port, issued| {
            cookies.is_good(now, session, client, from(port), issued)
        };
        assert!(good(&cookies, NOW, 7, 1, issued));
        assert!(good(&cookies, NOW + LIFETIME, 7, 1, issued));
        assert!(!good(
            &cookies,
            NOW + LIFETIME + Duration::from_micros(1),
            7,
            1,
            issued
        ));
        assert!(!good(&cookies, NOW, 8, 1, issued));
        assert!(!good(&cookies, NOW, 7, 2, issued));
        assert!(!good(&cookies, NOW, 7, 1, issued - 1));
        assert!(
            !good(&cookies, NOW - Duration::from_secs(1), 7, 1, issued),
            "from the future"
        );
        assert!(!good(&Cookies::new([2; 16]), NOW, 7, 1, issued));
    }

    #[test]
    fn an_ended_session_is_never_opened_again_however_many_end() {
        let mut cookies = Cookies::new([1; 16]);
        let count = 3 * MAX_ENDED as u64;
        let session = |cookies: &Cookies, n| (cookies.issue(n, from(1), n), n);
        for n in 0..count {
            let (session, issued) = session(&cookies, n);
            assert!(cookies.is_good(LIFETIME, session, n, from(1), issued));
            cookies.end(LIFETIME, session, issued);
        }
        assert!(cookies.ended.len() <= MAX_ENDED);
        for n in 0..count {
            let (session, issued) = session(&cookies, n);
            assert!(
                !cookies.is_good(LIFETIME, session, n, from(1), issued),
                "{n}"
            );
        }
        let (fresh, issued) = session(&cookies, count);
        assert!(cookies.is_good(LIFETIME, fresh, count, from(1), issued));
    }

    #[test]
    fn what_has_expired_is_not_remembered() {
        let mut cookies = Cookies::new([1; 16]);
        (0..100).for_each(|n| cookies.end(Duration::from_secs(1), n, n));
        cookies.end(3 * LIFETIME, 200, micros(3 * LIFETIME));
        assert_eq!(cookies.ended.len(), 1);
    }

    #[test]
    fn ids_of_one_incarnation_differ() {
        let mut cookies = Cookies::new([1; 16]);
        let ids: BTreeSet<u64> = (0..1000).map(|_| cookies.next_client()).collect();
        assert_eq!(ids.len(), 1000);
    }

    #[test]
    fn as_many_ended_sessions_as_are_remembered_cost_nobody_his_cookie() {
        let mut cookies = Cookies::new([1; 16]);
        let asked_before = cookies.issue(7, from(1), 0);
        for n in 1..=MAX_ENDED as u64 {
            cookies.end(LIFETIME, n, n);
        }
        assert!(cookies.is_good(LIFETIME, asked_before, 7, from(1), 0));
        cookies.end(LIFETIME, 0, MAX_ENDED as u64 + 1);
        assert!(!cookies.is_good(LIFETIME, asked_before, 7, from(1), 0));
    }
}
