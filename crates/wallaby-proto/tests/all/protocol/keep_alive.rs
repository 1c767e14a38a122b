//! Half-open connections: who waits asks, who is not answered gives up, and who does not wait does nothing.

use std::time::Duration;

use bytes::{BufMut, BytesMut};
use wallaby_proto::carrier::Carrier;
use wallaby_proto::connection::{
    ConnectionError, ConnectionLimits, KeepAlive, KeepAliveSettings, SendRefusal,
};
use wallaby_proto::wire::FRAME_HEADER;

use crate::protocol::limits::request;
use crate::protocol::pair::{Pair, hello, method, written};
use crate::protocol::samples::{self, alice, bob};

const SETTINGS: KeepAliveSettings = KeepAliveSettings {
    period: Duration::from_secs(3),
    timeout: Duration::from_secs(10),
};

/// Alice's side of a connection, looked at as its driver would.
struct Watched {
    pair: Pair,
    keep_alive: KeepAlive,
    now: Duration,
}

impl Watched {
    fn new(pair: Pair) -> Self {
        let (keep_alive, now) = (KeepAlive::default(), Duration::from_secs(100));
        Self {
            pair,
            keep_alive,
            now,
        }
    }

    fn open() -> Self {
        let mut watched = Self::new(Pair::open(ConnectionLimits::default()));
        assert_eq!(watched.look(false), Ok(false), "the handshake is no wait");
        watched
    }

    fn look(&mut self, waits: bool) -> Result<bool, ConnectionError> {
        let alice = &mut self.pair.alice;
        self.keep_alive.look(&SETTINGS, alice, waits, self.now)
    }

    /// An interval later.
    fn look_again(&mut self, waits: bool) -> Result<bool, ConnectionError> {
        self.now += SETTINGS.interval().expect("it is on");
        self.look(waits)
    }

    /// Looks until the connection is given up; after how long, and how many bytes were written meanwhile.
    fn look_to_the_end(&mut self, waits: bool) -> (Duration, usize) {
        let (begun, mut bytes) = (self.now, 0);
        for _ in 0..100 {
            if let Err(error) = self.look_again(waits) {
                let ConnectionError::Silent { silence } = error else {
                    panic!("another error: {error}")
                };
                assert!(silence >= SETTINGS.timeout, "{silence:?}");
                return (self.now - begun, bytes);
            }
            bytes += written(&mut self.pair.alice).len();
        }
        panic!("a silent peer is believed in for ever");
    }
}

/// A probe as a frame.
const PROBE: usize = 6;

#[test]
fn a_connection_on_which_nobody_waits_is_left_alone() {
    let mut watched = Watched::open();
    for _ in 0..100 {
        assert_eq!(watched.look_again(false), Ok(false));
        assert!(!watched.pair.alice.has_output());
    }
}

#[test]
fn a_peer_that_answers_is_believed_in_for_ever() {
    let mut watched = Watched::open();
    let mut probes = 0;
    for _ in 0..200 {
        assert_eq!(watched.look_again(true), Ok(true));
        probes += usize::from(watched.pair.alice.has_output());
        watched.pair.carry_to_bob(usize::MAX).expect("legal bytes");
        watched.pair.carry_all_to_alice();
    }
    let seconds = (watched.now - Duration::from_secs(100)).as_secs() as usize;
    assert!(
        (seconds / 4..=seconds / 3).contains(&probes),
        "a probe each period: {probes} in {seconds} s"
    );
}

#[test]
fn a_peer_that_is_gone_is_given_up_by_who_waits_for_an_answer() {
    let mut watched = Watched::open();
    assert_eq!(watched.look(true), Ok(true));
    let (after, bytes) = watched.look_to_the_end(true);
    assert!(after >= SETTINGS.timeout, "{after:?}");
    assert!(
        after < SETTINGS.timeout + Duration::from_secs(1),
        "{after:?}"
    );
    assert_eq!(bytes, PROBE, "it is asked once");
}

#[test]
fn what_was_written_is_waited_for_until_the_peer_is_heard() {
    let mut watched = Watched::open();
    let ping = samples::all()
        .into_iter()
        .find(|sample| sample.name == "ping");
    watched
        .pair
        .alice
        .send_control(ping.expect("a sample").message)
        .expect("open");
    written(&mut watched.pair.alice);
    assert_eq!(watched.look_again(false), Ok(true));
    let (after, _) = watched.look_to_the_end(false);
    assert!(after >= SETTINGS.timeout, "{after:?}");

    // The same with a peer that is there: one probe, and nothing more is to be done.
    let mut watched = Watched::open();
    watched.pair.alice.go_away();
    let mut bytes = 0;
    for look in 0..20 {
        let waits = watched.look_again(false).expect("it answers");
        assert!(look < 6 || !waits, "it was confirmed");
        bytes += written_to_bob(&mut watched.pair);
    }
    assert_eq!(bytes, 5 + PROBE);
}

fn written_to_bob(pair: &mut Pair) -> usize {
    let bytes = written(&mut pair.alice);
    pair.bob_reads(&bytes).expect("legal bytes");
    pair.carry_all_to_alice();
    bytes.len()
}

#[test]
fn who_was_refused_for_want_of_credit_waits_until_some_comes() {
    let limits = ConnectionLimits {
        requests: 100,
        ..ConnectionLimits::default()
    };
    let mut watched = Watched::new(Pair::closed(
        hello(alice(), ConnectionLimits::default()),
        hello(bob(), limits),
    ));
    watched.pair.carry_to_bob(usize::MAX).expect("legal bytes");
    watched
        .pair
        .carry_to_alice(usize::MAX)
        .expect("legal bytes");
    let mut request = request(200);
    let alice = &mut watched.pair.alice;
    alice
        .send_request(&mut request, &method())
        .expect("a window");
    let refused = alice.send_request(&mut request, &method());
    assert_eq!(refused, Err(SendRefusal::Blocked));
    written_to_bob(&mut watched.pair);
    assert_eq!(watched.look_again(false), Ok(true));
    // The peer lives, and takes its time: it is asked and answers.
    for _ in 0..50 {
        assert_eq!(watched.look_again(false), Ok(true));
        written_to_bob(&mut watched.pair);
    }
    // It is gone.
    let (after, _) = watched.look_to_the_end(false);
    assert!(after >= SETTINGS.timeout, "{after:?}");
    // Or it has made room.
    watched.pair.bob.grant_request(200);
    watched.pair.carry_all_to_alice();
    assert_eq!(watched.look_again(false), Ok(false));
}

#[test]
fn a_frame_that_grows_is_a_sign_of_life() {
    let mut watched = Watched::open();
    watched.pair.bob.close(&"x".repeat(1000));
    for _ in 0..100 {
        watched.pair.carry_to_alice(10).expect("legal bytes");
        assert_eq!(watched.look_again(true), Ok(true));
        assert!(!watched.pair.alice.has_output(), "there is no need to ask");
    }
    watched.look_to_the_end(true);
}

#[test]
fn a_full_transport_that_takes_some_bytes_is_a_sign_of_life() {
    let mut watched = Watched::open();
    while watched.pair.alice.takes_output() {
        let sent = (watched.pair.alice).send_request(&mut request(10_000), &method());
        sent.expect("there is credit");
    }
    for _ in 0..70 {
        assert_eq!(watched.look_again(false), Ok(true));
        watched.pair.alice.advance(3500);
    }
    assert!(watched.pair.alice.has_output());
    // It takes no more.
    let begun = watched.now;
    while watched.look_again(false).is_ok() {}
    assert!(watched.now - begun >= SETTINGS.timeout);
}

/// Alice has output of so many bytes, of which the transport takes some at each look; when she gives up.
fn given_up(each: usize) -> Option<Duration> {
    let mut watched = Watched::open();
    while watched.pair.alice.waiting() < 200_000 {
        let sent = (watched.pair.alice).send_request(&mut request(10_000), &method());
        sent.expect("there is credit");
    }
    let begun = watched.now;
    watched.look(false).expect("just now");
    while watched.pair.alice.waiting() > 0 && watched.now < begun + SETTINGS.timeout * 10 {
        let some = watched.pair.alice.waiting().min(each);
        watched.pair.alice.advance(some);
        match watched.look_again(false) {
            Ok(_) => {}
            Err(ConnectionError::Unread { waiting, silence }) => {
                assert_eq!(waiting, watched.pair.alice.waiting());
                assert!(silence >= SETTINGS.timeout);
                return Some(watched.now - begun);
            }
            Err(error) => panic!("another error: {error}"),
        }
    }
    None
}

#[test]
fn who_takes_a_byte_now_and_then_is_given_up() {
    let interval = SETTINGS.interval().expect("it is on");
    // 4 KiB a second are enough.
    let enough = (4096 * interval.as_millis() / 1000) as usize;
    assert_eq!(given_up(enough + 1), None);
    for each in [1, enough / 2] {
        let after = given_up(each).expect("it takes too little");
        assert!(after < SETTINGS.timeout + 2 * interval, "{after:?}");
    }
}

#[test]
fn who_was_stopped_has_not_listened() {
    let mut watched = Watched::open();
    assert_eq!(watched.look(true), Ok(true));
    watched.now += Duration::from_secs(1000);
    assert_eq!(watched.look(true), Ok(true), "it counts for one interval");
    assert!(!watched.pair.alice.has_output());
    let (after, _) = watched.look_to_the_end(true);
    let interval = SETTINGS.interval().expect("it is on");
    assert!(after >= SETTINGS.timeout - interval, "{after:?}");
}

#[test]
fn it_can_be_switched_off() {
    let off = KeepAliveSettings {
        period: Duration::MAX,
        ..SETTINGS
    };
    assert_eq!(off.interval(), None);
    let mut pair = Pair::open(ConnectionLimits::default());
    let mut keep_alive = KeepAlive::default();
    for second in 0..1000 {
        let now = Duration::from_secs(second);
        assert_eq!(keep_alive.look(&off, &mut pair.alice, true, now), Ok(false));
    }
    assert!(!pair.alice.has_output());
}

#[test]
fn each_byte_is_heard_once_by_who_asks_for_nothing_after_all_bytes_were_taken() {
    let mut pair = Pair::open(ConnectionLimits::default());
    pair.alice.go_away();
    let frame = written(&mut pair.alice);
    let (before, mut input) = (pair.bob.heard(), BytesMut::new());
    for came in 1..=2 * frame.len() {
        let of_frame = (came - 1) % frame.len() + 1;
        input.put_u8(frame[of_frame - 1]);
        let event = pair.bob.handle_input(&mut input).expect("legal bytes");
        assert_eq!(event.is_some(), of_frame == frame.len(), "{came} bytes");
        assert_eq!(input.is_empty(), event.is_some(), "{came} bytes");
        // A frame is counted as soon as its length is there.
        if of_frame >= FRAME_HEADER {
            assert_eq!(pair.bob.heard() - before, came as u64);
        }
    }
}
