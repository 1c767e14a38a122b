//! What peers can cause: each of their messages costs little, whatever they have set up before.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use wallaby_proto::carrier::Carrier;
use wallaby_proto::connection::{
    Connection, ConnectionLimits as WireLimits, Event, Features, Hello, MethodDefinition, VERSION,
};
use wallaby_proto::endpoint::{
    CallOptions, Config, ConnId, Endpoint, InputOutcome, Lane, Leaving, Limits, NewInitial, Next,
    Output, Probe, RequestKey, Schemes, Seeds, Serving, StreamEnd,
};
use wallaby_proto::error::SendError;
use wallaby_proto::wire::{Message, MethodRef, ReplyTo, Request};
use wallaby_proto::{Address, CallId, NodeId, RequestId, Status, Token};

/// Calls whose answers wait.
const CALLS: u64 = 500;

/// Counts how often an answer is tried to be sent.
#[derive(Debug, Default)]
struct Attempts(usize);

impl Probe for Attempts {
    fn leaves(&mut self, _over: ConnId, message: Leaving<'_>) {
        self.0 += usize::from(matches!(message, Leaving::Response(_)));
    }
}

/// A server, and a peer that is no endpoint but a connection which the test drives.
struct World {
    server: Endpoint<Attempts>,
    conn: ConnId,
    peer: Connection,
    to_server: BytesMut,
    to_peer: BytesMut,
    runs: Vec<RequestKey>,
    /// How often it was said that there is room again for what was refused.
    spaces: Vec<RequestKey>,
    /// Bytes that the peer takes, at most.
    takes: usize,
}

fn hello(node: u64, limits: WireLimits) -> Arc<Hello> {
    Arc::new(Hello {
        versions: (VERSION, VERSION),
        node: NodeId::new(node).expect("not zero"),
        expected: None,
        address: None,
        features: Features::default(),
        limits,
    })
}

fn method() -> MethodDefinition {
    MethodDefinition::new("test.Feed/follow", "raw", 0, 0).expect("a name")
}

fn call_id(sequence: u64) -> CallId {
    CallId {
        initiator: NodeId::new(2).expect("not zero"),
        sequence,
    }
}

fn request(sequence: u64, oldest: u64) -> Request {
    Request {
        call: call_id(sequence),
        token: Token::new(sequence),
        id: RequestId::FIRST,
        depth: 0,
        base: 0,
        reply_to: ReplyTo::Peer,
        manifest: None,
        deadline: None,
        oldest,
        traced: false,
        compressed: false,
        waited: Duration::ZERO,
        options: None,
        method: MethodRef::Number(0),
        payload: Bytes::new(),
    }
}

impl World {
    /// The peer grants each call this much.
    fn new(granted: u64) -> Self {
        Self::with(granted, Limits::default())
    }

    /// The same, and the server holds no more than this.
    fn with(granted: u64, held: Limits) -> Self {
        let seed = [7; 16];
        let seeds = Seeds {
            tokens: seed,
            cookies: seed,
        };
        let config = Config {
            limits: held,
            schemes: Schemes::new(["mem"]),
            ..Config::default()
        };
        let (node, probe) = (hello(1, WireLimits::default()).node, Attempts::default());
        let mut server = Endpoint::with_probe(config, node, None, seeds, probe);
        let served = server.serve(Arc::new(method()), Serving::default());
        assert_eq!(served, Ok(0));
        let limits = WireLimits {
            call: granted,
            ..WireLimits::default()
        };
        let conn = server.handle_accepted();
        let mut world = Self {
            server,
            conn,
            peer: Connection::dial(hello(2, limits), None),
            to_server: BytesMut::new(),
            to_peer: BytesMut::new(),
            runs: Vec::new(),
            spaces: Vec::new(),
            takes: usize::MAX,
        };
        world.carry();
        world
    }

    fn carry(&mut self) {
        loop {
            let output = self.peer.output().to_vec();
            let before = self.to_peer.len();
            self.peer.advance(output.len());
            self.to_server.extend_from_slice(&output);
            while self.server.handle_input(self.conn, &mut self.to_server) == InputOutcome::More {}
            let mut any = !output.is_empty();
            while let Some(output) = self.server.poll_output() {
                match output {
                    Output::Run(key) => self.runs.push(key),
                    Output::Write(_) => self.write(),
                    Output::Space(key) => self.spaces.push(key),
                    Output::Close(_, closed) => panic!("{closed:?}"),
                    _ => {}
                }
            }
            any |= self.to_peer.len() > before;
            while let Some(_event) = self.peer.handle_input(&mut self.to_peer).expect("legal") {}
            if !any {
                return;
            }
        }
    }

    /// The server writes what the peer takes.
    fn write(&mut self) {
        loop {
            let output = self.server.output(self.conn);
            let taken = output.len().min(self.takes);
            self.to_peer.extend_from_slice(&output[..taken]);
            self.takes -= taken;
            let more = self.server.advance(self.conn, taken);
            if !more || self.takes == 0 {
                match more {
                    true => self.server.handle_blocked(self.conn),
                    false => self.server.handle_written(self.conn),
                };
                return;
            }
        }
    }

    /// The peer calls, and the server begins to handle it.
    fn call(&mut self, sequence: u64) -> RequestKey {
        self.call_since(sequence, 1)
    }

    /// The same, and says that all calls before `oldest` are over.
    fn call_since(&mut self, sequence: u64, oldest: u64) -> RequestKey {
        self.ask(sequence, oldest);
        self.carry();
        let key = self.runs.pop().expect("it runs");
        self.server.take_request(key).expect("it was not stopped");
        key
    }

    /// The peer puts a request into its output.
    fn ask(&mut self, sequence: u64, oldest: u64) {
        self.send(request(sequence, oldest));
    }

    fn send(&mut self, mut request: Request) {
        let sent = self.peer.send_request(&mut request, &method());
        sent.expect("there is credit");
    }

    /// Another peer connects, which grants each call as much as it likes, and has its turn; the one of before is given back.
    fn turn_of(&mut self, node: u64) -> (ConnId, Connection) {
        let conn = std::mem::replace(&mut self.conn, self.server.handle_accepted());
        let other = Connection::dial(hello(node, WireLimits::default()), None);
        let peer = std::mem::replace(&mut self.peer, other);
        self.carry();
        (conn, peer)
    }

    /// A handler sends this, and one more time the same, and goes on.
    fn reply(&mut self, key: RequestKey, payload: &Bytes) {
        self.server.reply(key, payload.clone()).expect("room");
        self.server.flush(key);
    }

    /// How often an answer was tried since.
    fn attempts(&mut self) -> usize {
        std::mem::take(&mut self.server.probe().0)
    }
}

/// So many calls, of which one answer has come and the next waits for credit.
fn many_wait() -> (World, Vec<RequestKey>) {
    let mut world = World::new(1);
    let calls: Vec<RequestKey> = (1..=CALLS).map(|sequence| world.call(sequence)).collect();
    for key in &calls {
        world.reply(*key, &"first".into());
        world.reply(*key, &"second".into());
    }
    world.carry();
    world.attempts();
    (world, calls)
}

#[test]
fn credit_for_a_call_is_a_look_at_that_call() {
    let (mut world, _) = many_wait();
    for sequence in 1..=CALLS {
        world.peer.grant_call(call_id(sequence), 1, 5);
        world.carry();
    }
    let attempts = world.attempts();
    assert!(attempts <= 3 * CALLS as usize, "{attempts}");
    assert_eq!(world.peer.counters().messages_received, 2 * CALLS);
}

#[test]
fn what_is_written_is_no_look_at_what_waits_for_credit() {
    let (mut world, _) = many_wait();
    for sequence in CALLS + 1..=2 * CALLS {
        let key = world.call(sequence);
        let sent = world.server.respond(key, "only".into());
        world.server.returned(key, sent.map_err(Into::into));
        world.carry();
    }
    let attempts = world.attempts();
    assert!(attempts <= 5 * CALLS as usize, "{attempts}");
    assert_eq!(world.peer.counters().messages_received, 2 * CALLS);
}

/// Each read of the peer makes room for some of the answers: only these are tried.
#[test]
fn room_for_some_is_a_look_at_few() {
    let mut world = World::new(1 << 30);
    let calls: Vec<RequestKey> = (1..=CALLS).map(|sequence| world.call(sequence)).collect();
    world.takes = 0;
    let large = Bytes::from(vec![7; 10_000]);
    for key in &calls {
        world.reply(*key, &large);
    }
    world.carry();
    world.attempts();
    let mut reads = 0;
    while world.peer.counters().messages_received < CALLS {
        world.takes = 5_000;
        world.write();
        world.carry();
        reads += 1;
        assert!(reads < 10 * CALLS, "nothing comes any more");
    }
    let attempts = world.attempts();
    assert!(
        attempts <= CALLS as usize + 2 * reads as usize,
        "{attempts} for {reads}"
    );
}

/// Calls that are over need no credit any more, and their answers are out of the way.
#[test]
fn answers_of_calls_that_are_over_do_not_wait_for_ever() {
    let (mut world, calls) = many_wait();
    assert!(world.server.waits(calls[0], Lane::Answers));
    let key = world.call_since(2 * CALLS, 2 * CALLS);
    world.reply(key, &"one".into());
    world.carry();
    let waiting = calls
        .iter()
        .filter(|key| world.server.waits(**key, Lane::Answers));
    assert_eq!(waiting.count(), 0);
}

/// A server of an initiator's call says that the initiator's older calls are over. Its answer goes to the initiator, whose
/// connection keeps in mind what it owes the older ones: else more came of them than was granted, and they would fail.
#[test]
fn what_others_say_of_older_calls_costs_these_no_credit() {
    let mut world = World::new(1);
    let older = world.call(1);
    world.reply(older, &"first".into());
    world.reply(older, &"second".into());
    world.call(100);
    assert_eq!(world.peer.counters().messages_received, 1);
    let (conn, peer) = world.turn_of(3);
    let delegated = Request {
        id: RequestId {
            hop: 1,
            ..RequestId::FIRST
        },
        depth: 1,
        reply_to: ReplyTo::Relay,
        ..request(100, 100)
    };
    world.send(delegated);
    world.carry();
    let key = world.runs.pop().expect("it runs");
    world.server.take_request(key).expect("it was not stopped");
    (world.conn, world.peer) = (conn, peer);
    world.reply(key, &"straight".into());
    world.carry();
    assert_eq!(world.peer.counters().messages_received, 2);
    assert!(world.server.waits(older, Lane::Answers));
}

/// Room comes for one answer after the other, while so many other requests are refused some each time, another one first: who is told
/// of it, and who was to be.
fn told(refused: u64) -> (World, Vec<RequestKey>) {
    let mut held = Limits::default();
    held.waiting = 100 * (1_000 + 64);
    let mut world = World::with(1, held);
    let calls: Vec<RequestKey> = (1..=100 + refused).map(|call| world.call(call)).collect();
    let payload = Bytes::from(vec![7; 1_000]);
    let (mut waiting, mut others) = (Vec::new(), Vec::new());
    for (sequence, key) in (1..).zip(calls) {
        world.reply(key, &"first".into());
        match world.server.reply(key, payload.clone()) {
            Ok(()) => waiting.push(sequence),
            Err(error) => {
                assert_eq!(error, SendError::Full);
                others.push(key);
            }
        }
        world.server.flush(key);
    }
    assert!(others.len() >= refused as usize);
    let mut to_tell = others.clone();
    others.truncate(refused as usize);
    world.carry();
    for sequence in waiting.into_iter().take(20) {
        if world.spaces.len() == to_tell.len() {
            others.rotate_left(1);
            to_tell.extend(&others);
        }
        for key in &others {
            let sent = world.server.reply(*key, vec![7; 100_000].into());
            assert_eq!(sent, Err(SendError::Full));
        }
        world.peer.grant_call(call_id(sequence), 1, 5);
        world.carry();
    }
    (world, to_tell)
}

#[test]
fn room_is_told_of_at_once_where_few_were_refused_and_seldom_where_many_were() {
    let (world, to_tell) = told(5);
    assert!(to_tell.len() >= 20 * 5);
    assert_eq!(
        world.spaces, to_tell,
        "in the order in which they were refused"
    );
    let (mut world, to_tell) = told(400);
    let at_once = world.spaces.len();
    assert!((400..800).contains(&at_once), "{at_once}");
    // The others are told in their time.
    let due = world.server.poll_timeout().expect("something is due");
    assert!(due <= Duration::from_millis(100), "{due:?}");
    world.server.set_time(due);
    world.server.handle_timeout();
    world.carry();
    assert_eq!(world.spaces, to_tell);
}

/// They are told once more, as nothing comes of what they wait for, and leave nothing behind.
#[test]
fn requests_that_have_ended_wait_for_no_room() {
    let (mut world, mut to_tell) = told(5);
    let refused = to_tell[to_tell.len() - 5..].to_vec();
    for key in &refused {
        let sent = world.server.reply(*key, vec![7; 100_000].into());
        assert_eq!(sent, Err(SendError::Full));
        world.server.fail(*key, &Status::internal("it gives up"));
    }
    world.carry();
    to_tell.extend(refused);
    assert_eq!(world.spaces, to_tell);
    world.peer.grant_call(call_id(21), 1, 5);
    world.carry();
    assert_eq!(world.spaces, to_tell);
}

/// A message was refused for want of room to wait in. Then its peer grants credit: it needs no room any more.
#[test]
fn who_was_refused_is_told_of_credit() {
    let mut held = Limits::default();
    held.waiting = 10 * (1_000 + 64);
    let mut world = World::with(1, held);
    let payload = Bytes::from(vec![7; 1_000]);
    let refused = (1..100).find_map(|sequence| {
        let key = world.call(sequence);
        world.reply(key, &"first".into());
        let sent = world.server.reply(key, payload.clone());
        world.server.flush(key);
        match sent {
            Ok(()) => None,
            Err(error) => {
                assert_eq!(error, SendError::Full);
                Some((sequence, key))
            }
        }
    });
    let (sequence, key) = refused.expect("so much has no room");
    world.carry();
    // It may have been told of what the connection took meanwhile.
    let again = world.server.reply(key, payload.clone());
    assert_eq!(again, Err(SendError::Full));
    let before = world.spaces.len();
    world.peer.grant_call(call_id(sequence), 1, 5);
    world.carry();
    assert_eq!(world.spaces[before..], [key]);
    assert_eq!(world.server.reply(key, payload), Ok(()));
}

/// An answer was refused as much waits to be written. All of that leaves at once, without the peer being slow, and nothing waits for it.
#[test]
fn who_was_refused_is_told_when_the_output_was_written() {
    let mut narrow = Limits::default();
    narrow.waiting = 10_000;
    let mut world = World::with(u64::MAX / 2, narrow);
    let key = world.call(1);
    let payload = Bytes::from(vec![7; 60_000]);
    let sent = (0..100).map(|_| world.server.reply(key, payload.clone()));
    let sent = sent.take_while(Result::is_ok).count();
    assert!((1..100).contains(&sent), "{sent}");
    world.carry();
    assert_eq!(world.spaces, [key]);
    assert_eq!(world.server.reply(key, payload), Ok(()));
}

/// Servers that are dialled hold up no delegation to others, as long as there are not very many.
#[test]
fn who_delegates_waits_for_dials_only_after_many_delegations() {
    let mut world = World::new(1);
    let key = world.call(1);
    let method = Arc::new(method());
    for number in 0..100 {
        let there: Address = format!("mem://dialled-{number}")
            .parse()
            .expect("an address");
        let sent = world
            .server
            .delegate(key, there, &method, b"work".as_slice().into());
        assert_eq!(sent, Ok(()));
        // The latest one is held back, and none is dialled for it.
        assert_eq!(
            world.server.waits(key, Lane::Requests),
            number > 64,
            "{number}"
        );
    }
}

/// A server takes nothing, and calls of it end: their requests, which are never sent, leave room for those of others.
#[test]
fn requests_of_calls_that_have_ended_take_no_room() {
    let mut held = Limits::default();
    held.waiting = 10 * (1_000 + 64);
    let mut world = World::with(1, held);
    let client = &mut world.server;
    let [stuck, other]: [Address; 2] =
        ["mem://stuck", "mem://other"].map(|at| at.parse().expect("an address"));
    let options = CallOptions::default();
    let send = |client: &mut Endpoint<Attempts>, to: &Address| {
        let key = client.begin(&options).expect("room for calls");
        let payload = vec![7; 1_000].into();
        let sent = client.send_only(key, NewInitial::new(to, &Arc::new(method()), payload));
        (key, sent.map(drop))
    };
    for _ in 0..10 {
        let (key, sent) = send(client, &stuck);
        assert_eq!(sent, Ok(()));
        client.abort(key);
    }
    for _ in 0..10 {
        assert_eq!(
            send(client, &other).1,
            Ok(()),
            "what was given up takes none"
        );
    }
    assert!(send(client, &other).1.is_err(), "these live");
}

/// A shell has written a large request, and a server has executed it, before the shell comes to say that it was written. The server
/// leaves, and says how much it has read.
#[test]
fn what_may_have_been_written_is_not_called_unexecuted() {
    let mut world = World::new(1);
    let client = &mut world.server;
    let there: Address = "mem://there".parse().expect("an address");
    let key = client.begin(&CallOptions::default()).expect("room");
    let payload = vec![7; 300_000].into();
    let sent = client.send_only(key, NewInitial::new(&there, &Arc::new(method()), payload));
    sent.expect("it is sent");
    let dialled = std::iter::from_fn(|| client.poll_output()).find_map(|output| match output {
        Output::Dial(conn, _) => Some(conn),
        _ => None,
    });
    let conn = dialled.expect("it is dialled");
    let mut server = Connection::accept(hello(9, WireLimits::default()));
    let mut is_there = false;
    for _ in 0..100 {
        let mut output = Vec::new();
        client.take_output(conn, &mut output);
        let mut input = BytesMut::from(&output[..]);
        while let Some(event) = server.handle_input(&mut input).expect("legal") {
            is_there |= matches!(event, Event::Message(Message::Request(_)));
        }
        if is_there {
            break; // the shell says nothing of it yet
        }
        client.advance(conn, output.len());
        client.handle_written(conn);
        let back = server.output().len();
        let mut input = BytesMut::from(server.output());
        server.advance(back);
        client.handle_input(conn, &mut input);
    }
    assert!(is_there, "all of it has come");
    server.stop_reading();
    server.close("it leaves");
    let mut last = BytesMut::from(server.output());
    client.handle_input(conn, &mut last);
    client.handle_ended(conn, &mut last, StreamEnd::Closed);
    client.settle();
    if let Next::Answer(answer) = client.next_answer(key) {
        panic!("{:?}", answer.payload());
    }
}

#[test]
fn who_is_accepted_after_the_end_is_closed() {
    let mut world = World::new(1);
    world.server.close();
    while world.server.poll_output().is_some() {}
    let late = world.server.handle_accepted();
    let closes = std::iter::from_fn(|| world.server.poll_output())
        .filter(|output| matches!(output, Output::Close(conn, _) if *conn == late));
    assert_eq!(closes.count(), 1);
    assert_eq!(world.server.sizes().connections, 0);
}

/// Its calls still run, but it takes nobody's place.
#[test]
fn a_connection_that_was_needed_and_has_ended_takes_no_place() {
    let mut held = Limits::default();
    held.connections = 1;
    let mut world = World::with(1 << 20, held);
    let key = world.call(1);
    world.server.put_aside(key);
    world.server.returned(key, Ok(()));
    let mut other = Connection::dial(hello(3, WireLimits::default()), None);
    let mut input = BytesMut::from(other.output());
    let refused = world.server.handle_accepted();
    world.server.handle_input(refused, &mut input.clone());
    assert_eq!(world.server.peer(refused), None, "the only place is taken");
    world
        .server
        .handle_ended(world.conn, &mut BytesMut::new(), StreamEnd::Closed);
    let late = world.server.handle_accepted();
    world.server.handle_input(late, &mut input);
    assert!(
        world.server.peer(late).is_some(),
        "there is room for another"
    );
    assert!(world.server.request(key).is_some(), "the request goes on");
}

/// Somebody who is dialled shakes hands, takes what comes, and leaves, each time.
#[test]
fn who_leaves_each_time_is_not_dialled_all_the_time() {
    let mut world = World::new(1);
    let client = &mut world.server;
    let there: Address = "mem://there".parse().expect("an address");
    for _ in 0..10 {
        let key = client.begin(&CallOptions::default()).expect("room");
        let sent = client.send(key, &there, &Arc::new(method()), Bytes::new());
        sent.expect("it is sent");
        client.close_call(key);
    }
    let mut dials = Vec::new();
    for time in 0..10_000 {
        let now = Duration::from_millis(time);
        client.set_time(now);
        if client.poll_timeout().is_some_and(|due| due <= now) {
            client.handle_timeout();
        }
        while let Some(output) = client.poll_output() {
            let Output::Dial(conn, _) = output else {
                continue;
            };
            dials.push(time);
            assert!(dials.len() < 200, "at {time}: {dials:?}");
            let mut peer = Connection::accept(hello(9, WireLimits::default()));
            let mut there = BytesMut::from(client.output(conn));
            client.advance(conn, there.len());
            while let Ok(Some(_)) = peer.handle_input(&mut there) {}
            let mut back = BytesMut::from(peer.output());
            client.handle_input(conn, &mut back);
            let taken = client.output(conn).len();
            client.advance(conn, taken);
            client.handle_written(conn);
            client.handle_ended(conn, &mut BytesMut::new(), StreamEnd::Closed);
        }
    }
    let most = dials
        .windows(20)
        .filter(|dials| dials[19] - dials[0] < 1_000);
    assert_eq!(most.count(), 0, "{} dials: {dials:?}", dials.len());
}

/// A peer that does not take what its calls come to, and goes on to call: that is not read.
fn held_back() -> World {
    let mut held = Limits::default();
    held.output = 4 << 10;
    let mut world = World::with(1 << 20, held);
    world.takes = 0;
    let mut sequence = 0;
    while world.server.takes_input(world.conn) {
        sequence += 1;
        assert!(sequence < 2_000, "the peer is read for ever");
        let key = world.call(sequence);
        world.server.returned(key, Ok(()));
        while world.server.poll_output().is_some() {}
    }
    for later in 1..=40 {
        world.ask(sequence + later, 1);
    }
    world.carry();
    assert_eq!(world.runs, []);
    world
}

#[test]
fn what_a_peer_had_sent_that_takes_nothing_more_is_read() {
    let mut world = held_back();
    world.server.handle_write_failed(world.conn);
    world.carry();
    assert_eq!(world.runs.len(), 40);
    assert_eq!(world.server.output(world.conn), b"");
    // Who then goes on is hung up on.
    let closed = |world: &mut World| {
        let mut outputs = std::iter::from_fn(|| world.server.poll_output());
        outputs.find_map(|output| match output {
            Output::Close(_, closed) => Some(closed.why),
            _ => None,
        })
    };
    assert_eq!(closed(&mut world), None);
    world.server.set_time(Duration::from_millis(1_100));
    world.server.handle_timeout();
    let why = closed(&mut world).map(|why| why.to_string());
    assert!(
        why.as_ref()
            .is_some_and(|why| why.contains("it takes nothing more")),
        "{why:?}"
    );
}

#[test]
fn what_a_peer_had_sent_is_read_before_its_end() {
    let mut world = held_back();
    let mut input = std::mem::take(&mut world.to_server);
    world
        .server
        .handle_ended(world.conn, &mut input, StreamEnd::Closed);
    let outputs = std::iter::from_fn(|| world.server.poll_output());
    let runs = outputs.filter(|output| matches!(output, Output::Run(_)));
    assert_eq!(runs.count(), 40);
}
