//! What a peer can make a connection hold, whatever it sends and however little it reads.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use wallaby_proto::carrier::Carrier;
use wallaby_proto::connection::{
    Bounds, Charge, Connection, ConnectionError, ConnectionLimits, Event, KeepAlive,
    KeepAliveSettings, PartialLimits, Partials, SendRefusal,
};
use wallaby_proto::wire::{MAX_FRAME, Message, Pong};

use crate::chance::Random;
use crate::protocol::limits::request;
use crate::protocol::pair::{Pair, hello, method, written};
use crate::protocol::samples::{self, alice, bob, response};

const KIB: usize = 1024;
/// Kinds of frames.
const PART: u8 = 0x04;
const PROBE: u8 = 0x06;
const REQUEST: u8 = 0x10;
const PERIOD: Duration = Duration::from_secs(10);

fn frame(kind: u8, body: &[u8]) -> Vec<u8> {
    let len = (body.len() as u32).to_le_bytes();
    [&len[..3], &[kind], body].concat()
}

/// A server, and a peer that believes it has been granted `believed`.
struct Hostile {
    peer: Connection,
    server: Connection,
    input: BytesMut,
}

impl Hostile {
    fn new(limits: ConnectionLimits, bounds: &Bounds, believed: ConnectionLimits) -> Self {
        let mut peer =
            Connection::dial(Arc::new(hello(alice(), ConnectionLimits::default())), None);
        let mut server = Connection::accept(Arc::new(hello(bob(), limits))).bounded(bounds);
        let mut lie = Connection::accept(Arc::new(hello(bob(), believed)));
        let first = written(&mut peer);
        for side in [&mut server, &mut lie] {
            let opened = side.handle_input(&mut BytesMut::from(&first[..]));
            assert!(matches!(opened, Ok(Some(Event::Opened(_)))), "{opened:?}");
        }
        let told = written(&mut lie);
        let opened = peer.handle_input(&mut BytesMut::from(&told[..]));
        assert!(matches!(opened, Ok(Some(Event::Opened(_)))), "{opened:?}");
        drop(written(&mut server));
        let input = BytesMut::new();
        Self {
            peer,
            server,
            input,
        }
    }

    /// The server reads this much of what its peer has to say.
    fn carry(&mut self, most: usize) -> Result<Vec<Event>, ConnectionError> {
        let output = self.peer.output();
        let len = output.len().min(most);
        self.input.extend_from_slice(&output[..len]);
        self.peer.advance(len);
        self.read()
    }

    fn read(&mut self) -> Result<Vec<Event>, ConnectionError> {
        let mut events = Vec::new();
        while let Some(event) = self.server.handle_input(&mut self.input)? {
            events.push(event);
        }
        Ok(events)
    }

    /// The peer learns what the server grants.
    fn answer(&mut self) {
        let mut bytes = BytesMut::from(&written(&mut self.server)[..]);
        while let Some(event) = self.peer.handle_input(&mut bytes).expect("legal bytes") {
            drop(event);
        }
    }
}

fn generous() -> ConnectionLimits {
    ConnectionLimits {
        requests: 1 << 40,
        parts: 1 << 40,
        ..ConnectionLimits::default()
    }
}

#[test]
fn requests_beyond_the_window_and_one_message_close_the_connection() {
    let limits = ConnectionLimits {
        requests: 10_000,
        ..ConnectionLimits::default()
    };
    for payload in [0, 1000, MAX_FRAME, 200 * KIB] {
        let mut hostile = Hostile::new(limits, &Bounds::default(), generous());
        let (mut arrived, mut sent) = (0, 0);
        let error = loop {
            hostile
                .peer
                .send_request(&mut request(payload), &method())
                .expect("it believes that it may");
            match hostile.carry(usize::MAX) {
                Ok(events) => arrived += payload_of(&events),
                Err(error) => break error,
            }
            sent += 1;
            assert!(sent < 10_000, "as many requests as one likes");
            hostile.answer();
        };
        let what = "requests";
        assert_eq!(error, ConnectionError::Overdrawn { what });
        // The window, a message of the highest cost, and of each message its cost without payload.
        let most = 10_000 + MAX_FRAME + payload;
        assert!(arrived <= most, "{arrived} bytes of {payload} each");
    }
}

fn payload_of(events: &[Event]) -> usize {
    let payload = |event: &Event| match event {
        Event::Message(Message::Request(request)) => request.payload.len(),
        _ => 0,
    };
    events.iter().map(payload).sum()
}

/// Small and large requests overtake each other, and credit comes when it likes: an honest sender is never accused.
#[test]
fn who_keeps_to_the_window_is_never_accused() {
    for seed in 1..200 {
        println!("WALLABY_SEED={seed}");
        let mut random = Random(seed);
        let limits = ConnectionLimits {
            requests: 1 + random.below(300_000),
            parts: 32 * 1024 + random.below(100_000),
            streams: 1 + random.below(4) as u32,
            ..ConnectionLimits::default()
        };
        let mut pair = Pair::open(limits);
        let mut waiting = Vec::new();
        for _ in 0..300 {
            match random.below(4) {
                0 => {
                    let payload = match random.below(3) {
                        0 => random.below(100),
                        1 => random.below(70_000),
                        _ => random.below(700_000),
                    };
                    let _ = pair
                        .alice
                        .send_request(&mut request(payload as usize), &method());
                }
                1 if !waiting.is_empty() => {
                    let one = random.below(waiting.len() as u64) as usize;
                    pair.bob.grant_request(waiting.swap_remove(one));
                }
                2 => drop(pair.carry_to_alice(usize::MAX).expect("legal bytes")),
                _ => {
                    let most = random.below(200_000) as usize;
                    for event in pair.carry_to_bob(most).expect("legal bytes") {
                        if let Event::Message(Message::Request(request)) = event {
                            waiting.push(request.payload.len());
                        }
                    }
                }
            }
        }
    }
}

fn budget(bytes: u64) -> Bounds {
    let limits = PartialLimits {
        bytes,
        ..PartialLimits::default()
    };
    Bounds {
        partials: Partials::new(limits),
        ..Bounds::default()
    }
}

#[test]
fn parts_beyond_the_window_close_the_connection_where_credit_is_withheld() {
    let bounds = budget(100_000);
    let mut first = Hostile::new(ConnectionLimits::default(), &bounds, generous());
    let mut second = Hostile::new(ConnectionLimits::default(), &bounds, generous());
    let large = |hostile: &mut Hostile| {
        hostile
            .peer
            .send_request(&mut request(8 << 20), &method())
            .expect("it believes that it may");
    };
    large(&mut first);
    large(&mut second);
    while bounds.partials.held() < 100_000 {
        first.carry(32 * KIB).expect("there is room");
    }
    let error = loop {
        match second.carry(32 * KIB) {
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    let what = "parts of messages";
    assert_eq!(error, ConnectionError::Overdrawn { what });
    let held = bounds.partials.held();
    let most = 100_000 + 3 * 32 * 1024 + ConnectionLimits::default().parts + 2 * MAX_FRAME as u64;
    assert!(held <= most, "{held}");
    drop((first, second));
    assert_eq!(bounds.partials.held(), 0, "who is gone holds nothing");
}

/// Many large messages at a time, of which the budget takes a few: each comes through, and little is held.
#[test]
fn messages_that_fill_the_budget_together_wait_for_each_other() {
    let bounds = budget(1 << 20);
    let limits = ConnectionLimits::default();
    let mut all: Vec<Hostile> = (0..20)
        .map(|_| Hostile::new(limits, &bounds, limits))
        .collect();
    for hostile in &mut all {
        for _ in 0..4 {
            hostile
                .peer
                .send_request(&mut request(700_000), &method())
                .expect("room");
        }
    }
    let (mut arrived, mut most, mut waited) = (0, 0, false);
    for _ in 0..100_000 {
        for hostile in &mut all {
            for event in hostile.carry(50_000).expect("honest") {
                if let Event::Message(Message::Request(request)) = event {
                    arrived += 1;
                    hostile.server.grant_request(request.payload.len());
                }
            }
            waited |= hostile.server.is_withholding();
            hostile.server.grant_withheld();
            hostile.answer();
            most = most.max(bounds.partials.held());
        }
        if arrived == 80 {
            break;
        }
    }
    assert_eq!(arrived, 80);
    assert!(waited, "there was not room for all");
    // The budget, what each had been granted before, and the one whose turn it is.
    let bound = (1 << 20) + 20 * (limits.parts + 2 * MAX_FRAME as u64) + 4 * 700_100;
    assert!(most <= bound, "{most}");
    assert_eq!(bounds.partials.held(), 0);
}

#[test]
fn a_message_must_gain_its_least_rate_and_more_where_room_is_short() {
    let run = |bytes: u64, each: usize| {
        let bounds = budget(bytes);
        let mut hostile = Hostile::new(ConnectionLimits::default(), &bounds, generous());
        let mut body = vec![0];
        body.extend([0x80, 0x80, 0x80, 0x04, 0x10]); // 8 MiB, a request
        body.extend([7; 1000]);
        hostile.input.extend_from_slice(&frame(PART, &body));
        hostile.read().expect("a part");
        let mut now = Duration::ZERO;
        (0..5).find_map(|_| {
            now += PERIOD;
            let ended = hostile.server.check_stalled(now).err();
            let mut part = vec![0];
            part.extend(vec![7; each]);
            hostile.input.extend_from_slice(&frame(PART, &part));
            hostile.read().expect("a part");
            hostile.answer();
            ended
        })
    };
    let stalled = |rate| Some(ConnectionError::Stalled { rate });
    // What 16 KiB a second make in 10 s, less a frame that may be on its way.
    let least = 10 * 16 * KIB - 2 * MAX_FRAME;
    assert_eq!(run(1 << 30, 4), stalled(16_384));
    assert_eq!(run(1 << 30, least - 1), stalled(16_384));
    assert_eq!(run(1 << 30, least), None);
    assert_eq!(run(100, least), stalled(16 * 16_384), "room is short");
}

#[test]
fn who_is_held_back_is_not_accused_of_being_slow() {
    let bounds = budget(100_000);
    let limits = ConnectionLimits::default();
    let mut first = Hostile::new(limits, &bounds, limits);
    let mut second = Hostile::new(limits, &bounds, limits);
    for hostile in [&mut first, &mut second] {
        hostile
            .peer
            .send_request(&mut request(8 << 20), &method())
            .expect("room");
    }
    // The first one takes the room and its turn.
    for _ in 0..10 {
        first.carry(usize::MAX).expect("honest");
        first.answer();
    }
    let mut now = Duration::ZERO;
    for _ in 0..6 {
        second.carry(usize::MAX).expect("honest");
        second.answer();
        now += PERIOD;
        assert_eq!(second.server.check_stalled(now), Ok(()));
        second.server.grant_withheld();
    }
    assert!(second.server.is_withholding());
    drop(first);
    second.server.grant_withheld();
    assert!(!second.server.is_withholding());
    // Now it may, and does not.
    let ended = (0..3).find_map(|_| {
        now += PERIOD;
        second.server.check_stalled(now).err()
    });
    assert!(
        matches!(ended, Some(ConnectionError::Stalled { .. })),
        "{ended:?}"
    );
}

/// A part of the message of this stream, and its length if it is the first one.
fn part(stream: u8, begins: Option<u64>, bytes: usize) -> Vec<u8> {
    let mut body = vec![stream];
    if let Some(mut len) = begins {
        while len >= 0x80 {
            body.push(len as u8 | 0x80);
            len >>= 7;
        }
        body.extend([len as u8, REQUEST]);
    }
    body.extend(vec![7; bytes]);
    frame(PART, &body)
}

impl Hostile {
    fn says(&mut self, bytes: &[u8]) -> Result<Vec<Event>, ConnectionError> {
        self.input.extend_from_slice(bytes);
        let events = self.read();
        drop(written(&mut self.server));
        events
    }

    /// The peer is honest and sends a large request.
    fn with_request(bounds: &Bounds, payload: usize) -> Self {
        let limits = ConnectionLimits::default();
        let mut honest = Self::new(limits, bounds, limits);
        (honest.peer)
            .send_request(&mut request(payload), &method())
            .expect("room");
        honest
    }

    /// Goes on as far as it may; whether its request has come.
    fn goes_on(&mut self) -> bool {
        self.server.grant_withheld();
        self.answer();
        let events = self.carry(usize::MAX).expect("honest");
        payload_of(&events) > 0
    }
}

/// Its first message is whole, but it has begun the next one by then, and so on.
#[test]
fn who_always_has_an_unfinished_message_does_not_keep_its_turn() {
    let bounds = budget(100_000);
    let limits = ConnectionLimits::default();
    let mut hostile = Hostile::new(limits, &bounds, generous());
    let payload = 300_000;
    let begin = |hostile: &mut Hostile| {
        let sent = (hostile.peer).send_request(&mut request(payload), &method());
        sent.expect("it believes that it may");
    };
    begin(&mut hostile);
    while bounds.partials.held() < 100_000 {
        hostile.carry(usize::MAX).expect("it has credit");
        hostile.answer();
    }
    let mut honest = Hostile::with_request(&bounds, payload);
    let (mut begun, mut whole) = (1, 0);
    let arrived = (0..1000).any(|_| {
        // The next one has begun when one is whole.
        while begun < whole + 2 {
            begun += 1;
            begin(&mut hostile);
        }
        hostile.server.grant_withheld();
        hostile.answer();
        for event in hostile.carry(usize::MAX).expect("it has credit") {
            if let Event::Message(Message::Request(request)) = event {
                whole += 1;
                hostile.server.grant_request(request.payload.len());
            }
        }
        honest.goes_on()
    });
    assert!(arrived, "though {whole} of the other one have");
}

#[test]
fn turns_pass_on_in_the_order_in_which_connections_began_to_wait() {
    let bounds = budget(100_000);
    let mut first = Hostile::with_request(&bounds, 1 << 20);
    for _ in 0..4 {
        first.goes_on();
    }
    assert!(bounds.partials.held() > 100_000);
    let mut others = Vec::new();
    for _ in 0..5 {
        let mut one = Hostile::with_request(&bounds, 1 << 20);
        assert!(!one.goes_on() && !one.goes_on());
        assert!(one.server.is_withholding());
        others.push(one);
    }
    while !first.goes_on() {}
    // More wait than there is room for; they are asked in another order.
    let mut order = Vec::new();
    for _ in 0..1000 {
        for index in (0..others.len()).rev() {
            if others[index].goes_on() {
                order.push(index);
            }
        }
    }
    assert_eq!(order, [0, 1, 2, 3, 4]);
}

#[test]
fn who_has_its_turn_and_does_not_read_is_not_excused() {
    let bounds = Bounds {
        output: 1000,
        ..budget(1000)
    };
    let mut hostile = Hostile::new(ConnectionLimits::default(), &bounds, generous());
    hostile
        .says(&part(0, Some(1 << 20), 2000))
        .expect("it is legal");
    hostile.input.extend_from_slice(&pings(1000));
    hostile.read().expect("legal bytes");
    assert!(!hostile.server.takes_input());
    let ended = (1..=4).find_map(|period| hostile.server.check_stalled(PERIOD * period).err());
    let rate = 16 * 16_384;
    assert_eq!(ended, Some(ConnectionError::Stalled { rate }));
}

/// One goes on fast enough and is not done; the others wait and fill the budget.
#[test]
fn who_holds_most_is_closed_when_no_turn_ends() {
    let bounds = budget(32 << 20);
    let mut others: Vec<Hostile> = Vec::new();
    for kib in [6200, 12_000, 6200] {
        let mut other = Hostile::new(ConnectionLimits::default(), &bounds, generous());
        other.says(&part(0, Some(15 << 20), 1)).expect("legal");
        for _ in 0..kib / 100 {
            other.says(&part(0, None, 100 * KIB)).expect("legal");
        }
        others.push(other);
    }
    let mut slow = Hostile::new(ConnectionLimits::default(), &bounds, generous());
    slow.says(&part(0, Some(15 << 20), 1000)).expect("legal");
    for _ in 0..62 {
        slow.says(&part(0, None, 100 * KIB)).expect("its turn");
    }
    for other in &mut others {
        other.says(&part(0, None, 1)).expect("its window");
        other.server.grant_withheld();
        assert!(other.server.is_withholding());
    }
    let nobody = Arc::new(hello(bob(), ConnectionLimits::default()));
    let mut closed = Vec::new();
    for period in 1..=4 {
        let now = PERIOD * period;
        assert_eq!(slow.server.check_stalled(now), Ok(()), "{closed:?}");
        for (index, other) in others.iter_mut().enumerate() {
            if let Err(error) = other.server.check_stalled(now) {
                assert!(matches!(error, ConnectionError::Crowding { .. }), "{error}");
                closed.push(index);
                other.server = Connection::accept(Arc::clone(&nobody));
            }
        }
        if !closed.is_empty() {
            break;
        }
        for _ in 0..26 {
            slow.says(&part(0, None, 100 * KIB)).expect("its turn");
        }
    }
    assert_eq!(closed, [1], "{closed:?}");
}

#[test]
fn who_has_waited_for_six_periods_is_closed() {
    let bounds = budget(32 << 20);
    let [mut waiting, mut busy] = [12_000, 12_700].map(|kib| {
        let mut one = Hostile::new(ConnectionLimits::default(), &bounds, generous());
        one.says(&part(0, Some(15 << 20), 1)).expect("legal");
        for _ in 0..kib / 100 {
            one.says(&part(0, None, 100 * KIB)).expect("legal");
        }
        one
    });
    busy.says(&part(0, None, 1)).expect("its turn");
    assert!(!busy.server.is_withholding());
    waiting.says(&part(0, None, 1)).expect("its window");
    waiting.server.grant_withheld();
    assert!(waiting.server.is_withholding());
    let mut ended = Vec::new();
    for period in 1..=9 {
        let ends = waiting.server.check_stalled(PERIOD * period);
        ended.extend(ends.err().map(|error| (period, error)));
        if !ended.is_empty() {
            break;
        }
    }
    // The first look is when the time begins.
    let [(8, ConnectionError::Crowding { .. })] = ended[..] else {
        panic!("{ended:?}");
    };
}

/// Others come and go, so that there is room for a moment in each period: that is no progress.
#[test]
fn who_waits_again_and_again_and_never_goes_on_is_closed() {
    let bounds = budget(32 << 20);
    let begin = |kib: usize| {
        let mut one = Hostile::new(ConnectionLimits::default(), &bounds, generous());
        one.says(&part(0, Some(15 << 20), 1)).expect("legal");
        for _ in 0..kib / 100 {
            one.says(&part(0, None, 100 * KIB)).expect("legal");
        }
        one
    };
    let (mut waiting, mut busy) = (begin(12_000), begin(12_700));
    let mut ended = None;
    for period in 1..=9 {
        busy.says(&part(0, None, 1)).expect("its turn");
        waiting.says(&part(0, None, 1)).expect("its window");
        waiting.server.grant_withheld();
        assert!(waiting.server.is_withholding());
        ended = waiting.server.check_stalled(PERIOD * period).err();
        if ended.is_some() {
            break;
        }
        drop(busy);
        waiting.server.grant_withheld();
        assert!(!waiting.server.is_withholding());
        busy = begin(12_700);
    }
    assert!(
        matches!(ended, Some(ConnectionError::Crowding { .. })),
        "{ended:?}"
    );
}

/// Two hold three quarters of the budget and finish nothing; a third one's messages take less than a third of the rest.
#[test]
fn who_holds_less_than_an_equal_share_does_not_wait() {
    let bounds = budget(24 << 20);
    let mut hostiles: Vec<Hostile> = Vec::new();
    for _ in 0..2 {
        let mut hostile = Hostile::new(ConnectionLimits::default(), &bounds, generous());
        hostile.says(&part(0, Some(15 << 20), 1)).expect("legal");
        for _ in 0..94 {
            hostile.says(&part(0, None, 100 * KIB)).expect("legal");
        }
        hostiles.push(hostile);
    }
    assert!(bounds.partials.held() > 18 << 20);
    let waits = hostiles.iter_mut().map(|hostile| {
        hostile.says(&part(0, None, 1)).expect("its window");
        hostile.server.is_withholding()
    });
    assert_eq!(waits.collect::<Vec<_>>(), [true, false], "one has its turn");
    let mut honest = Hostile::new(
        ConnectionLimits::default(),
        &bounds,
        ConnectionLimits::default(),
    );
    for _ in 0..20 {
        let request = &mut request(1 << 20);
        honest.peer.send_request(request, &method()).expect("room");
        for _ in 0..40 {
            honest.carry(usize::MAX).expect("honest");
            honest.answer();
            assert!(!honest.server.is_withholding());
        }
        assert!(honest.peer.is_idle(), "it is whole");
        honest.server.grant_request(1 << 20);
        honest.answer();
    }
    // One that takes more waits as the others do.
    let request = &mut request(8 << 20);
    honest.peer.send_request(request, &method()).expect("room");
    for _ in 0..200 {
        honest.carry(usize::MAX).expect("honest");
        honest.answer();
    }
    assert!(honest.server.is_withholding());
}

/// Each completes a message in its turn, and has begun others that stay.
#[test]
fn no_turn_leaves_more_and_more_behind() {
    let bounds = budget(1 << 20);
    let all = 30;
    let mut hostiles: Vec<Hostile> = (0..all)
        .map(|_| {
            Hostile::new(
                ConnectionLimits::default(),
                &bounds,
                ConnectionLimits::default(),
            )
        })
        .collect();
    for hostile in &mut hostiles {
        for len in [200_000, 4 << 20, 4 << 20, 4 << 20] {
            (hostile.peer)
                .send_request(&mut request(len), &method())
                .expect("room");
        }
    }
    let mut most = 0;
    for _ in 0..2000 {
        for hostile in &mut hostiles {
            hostile.goes_on();
            most = most.max(bounds.partials.held());
        }
    }
    let windows = all * (ConnectionLimits::default().parts + 2 * MAX_FRAME as u64);
    let bound = (1 << 20) * 5 / 4 + 3 * (4 << 20) + 200_000 + windows;
    assert!(most <= bound, "{most}, of {bound}");
}

#[test]
fn a_connection_that_has_ended_gives_its_turn_back() {
    let bounds = budget(100_000);
    let mut gone = Hostile::with_request(&bounds, 1 << 20);
    for _ in 0..4 {
        gone.goes_on();
    }
    let mut other = Hostile::with_request(&bounds, 1 << 20);
    assert!((0..20).all(|_| !other.goes_on()));
    drop(gone);
    assert!((0..100).any(|_| other.goes_on()));
}

fn pings(count: usize) -> Vec<u8> {
    let mut probes = Vec::new();
    for _ in 0..count {
        probes.extend(frame(PROBE, &[0, 1]));
    }
    probes
}

#[test]
fn who_does_not_read_is_not_read() {
    let bounds = Bounds {
        output: 10_000,
        ..Bounds::default()
    };
    let mut hostile = Hostile::new(ConnectionLimits::default(), &bounds, generous());
    hostile.input.extend_from_slice(&pings(100_000));
    hostile.read().expect("legal bytes");
    let waiting = hostile.server.waiting();
    assert!((10_001..10_100).contains(&waiting), "{waiting} bytes wait");
    assert!(!hostile.server.takes_input());
    let unread = hostile.input.len();
    assert!(unread > 0);
    // Nothing else is added either.
    let message = samples::all()
        .into_iter()
        .map(|sample| sample.message)
        .find(|message| matches!(message, Message::Pong(_)))
        .expect("a pong");
    assert_eq!(
        hostile.server.send_control(message),
        Err(SendRefusal::Blocked)
    );
    let uncounted = hostile.server.send_response(&response(&[0]), Charge::Free);
    assert_eq!(uncounted, Err(SendRefusal::Blocked));
    assert_eq!(hostile.server.waiting(), waiting);
    // When it reads, it is read.
    hostile.answer();
    hostile.read().expect("legal bytes");
    assert!(hostile.input.len() < unread);
}

#[test]
fn who_does_not_read_for_long_is_given_up() {
    let bounds = Bounds {
        output: 1000,
        ..Bounds::default()
    };
    let settings = KeepAliveSettings::default();
    let interval = settings.interval().expect("it is on");
    let mut hostile = Hostile::new(ConnectionLimits::default(), &bounds, generous());
    let (mut keep_alive, mut now) = (KeepAlive::default(), Duration::ZERO);
    let given_up = (0..100).find_map(|_| {
        hostile.input.extend_from_slice(&pings(1000));
        hostile.read().expect("legal bytes");
        now += interval;
        keep_alive
            .look(&settings, &mut hostile.server, false, now)
            .err()
    });
    let Some(ConnectionError::Unread { waiting, silence }) = given_up else {
        panic!("{given_up:?}");
    };
    assert!(waiting < 1100, "{waiting}");
    assert!(silence >= settings.timeout && silence < settings.timeout + interval);
}

/// One of two sides that have much to say, over a transport that takes a few frames.
struct Talker {
    connection: Connection,
    input: BytesMut,
}

impl Talker {
    fn sample(is: impl Fn(&Message) -> bool) -> Message {
        let all = samples::all().into_iter().map(|sample| sample.message);
        all.into_iter().find(is).expect("there is one")
    }

    /// Reads what it takes, and answers each ping as long as that is accepted.
    fn read(&mut self, pong: &Message) {
        while let Some(event) = self
            .connection
            .handle_input(&mut self.input)
            .expect("legal")
        {
            if matches!(event, Event::Message(Message::Ping(_))) {
                let _ = self.connection.send_control(pong.clone());
            }
        }
    }

    fn write_to(&mut self, other: &mut Self) {
        let room = (32 * KIB).saturating_sub(other.input.len());
        let output = self.connection.output();
        let len = output.len().min(room);
        other.input.extend_from_slice(&output[..len]);
        self.connection.advance(len);
    }
}

/// One side asks, the other asks, too, or has ends or answers to tell: when they have said it, all of it arrives.
#[test]
fn who_has_much_to_ask_goes_on_reading() {
    let ping = Talker::sample(|message| matches!(message, Message::Ping(_)));
    let lists = |pong: &Pong| {
        let progress = pong.progress.as_ref();
        progress.is_some_and(|progress| !progress.children.is_empty())
    };
    let pong = Talker::sample(|message| matches!(message, Message::Pong(pong) if lists(pong)));
    let end = Talker::sample(|message| matches!(message, Message::End(_)));
    let mut long = pong.clone();
    if let Message::Pong(Pong {
        progress: Some(progress),
        ..
    }) = &mut long
    {
        let child = progress.children[0].clone();
        progress.children = vec![child; 60];
    }
    let says = |talker: &mut Talker, what: Option<&Message>| match what {
        Some(message) => talker.connection.send_control(message.clone()).is_ok(),
        None => talker
            .connection
            .send_response(&response(&[0]), Charge::Free)
            .is_ok(),
    };
    let others = [Some(&ping), Some(&end), None];
    let cases = others
        .iter()
        .flat_map(|other| [(*other, &pong), (*other, &long)]);
    let bounds = Bounds {
        output: 128 * KIB,
        ..Bounds::default()
    };
    for (other, pong) in cases {
        let pair = Pair::open(ConnectionLimits::default());
        let [mut alice, mut bob] = [pair.alice, pair.bob].map(|connection| Talker {
            connection: connection.bounded(&bounds),
            input: BytesMut::new(),
        });
        for round in 0..40 {
            if round < 20 {
                while says(&mut alice, Some(&ping)) {}
                while says(&mut bob, other) {}
            }
            alice.write_to(&mut bob);
            bob.write_to(&mut alice);
            alice.read(pong);
            bob.read(pong);
        }
        for talker in [&mut alice, &mut bob] {
            let waiting = talker.connection.waiting();
            assert_eq!(waiting, 0, "pings and {other:?}");
        }
    }
}

#[test]
fn large_answers_do_not_pile_up_for_who_says_that_it_takes_any() {
    let mine = ConnectionLimits {
        message: 1 << 20,
        ..ConnectionLimits::default()
    };
    let theirs = ConnectionLimits {
        message: u64::MAX,
        call: u64::MAX,
        ..ConnectionLimits::default()
    };
    let mut pair = Pair::closed(hello(alice(), theirs), hello(bob(), mine));
    pair.carry_to_bob(usize::MAX).expect("a hello");
    pair.carry_to_alice(usize::MAX).expect("a hello");
    let mut answer = response(&[0]);
    answer.payload = Bytes::from(vec![1; 300_000]);
    let taken = (0..100)
        .take_while(|_| pair.bob.send_response(&answer, Charge::Counted).is_ok())
        .count();
    assert_eq!(taken, 3, "as many as make up the longest message");
}
