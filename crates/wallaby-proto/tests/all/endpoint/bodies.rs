//! Every byte of a body arrives once and in order; whatever happens, both sides learn how it ends, and nothing is left of it.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use wallaby_proto::carrier::Carrier;
use wallaby_proto::connection::{BodyRefusal, Connection, MAX_BODIES, MethodDefinition};
use wallaby_proto::endpoint::{
    BodyEnd, BodyNext, CallKey, CallOptions, Endpoint, How, InBody, NewDelegation, OutBody,
    Outcome, RequestKey, Resend,
};
use wallaby_proto::error::{Failure, SendError};
use wallaby_proto::wire::{MethodRef, ReplyTo, Request};
use wallaby_proto::{Address, CallId, Code, RequestId, Status, Token};

use crate::endpoint::world::{WINDOW, World, at, followed, hello, udp};

/// Long enough that a piece is a chunk of its own.
const PIECE: usize = 8 << 10;

fn pattern(len: usize) -> Bytes {
    (0..len).map(|place| (place / 7) as u8).collect()
}

fn broken(why: &str) -> BodyNext {
    BodyNext::End(Err(BodyEnd::Broken(why.into())))
}

fn ended() -> BodyNext {
    broken("its call has ended")
}

/// Delegates with a body.
fn delegate(
    endpoint: &mut Endpoint,
    key: RequestKey,
    server: Address,
    method: &Arc<MethodDefinition>,
    how: How,
) -> Result<OutBody, SendError> {
    let delegation = NewDelegation {
        server,
        method: Arc::clone(method),
        payload: Bytes::new(),
        options: None,
        followed: true,
    };
    let body = endpoint.delegate_with(key, delegation, how)?;
    Ok(body.expect("one follows"))
}

/// Reads all that is there; what came then.
fn read(world: &mut World, host: usize, body: InBody) -> (Vec<u8>, BodyNext) {
    let mut bytes = Vec::new();
    loop {
        match world.endpoint(host).read_body(body) {
            BodyNext::Chunk(chunk) => bytes.extend_from_slice(&chunk),
            next => return (bytes, next),
        }
    }
}

/// Writes as much as is taken at once; why not more.
fn write(world: &mut World, host: usize, body: OutBody, bytes: &mut Bytes) -> Option<BodyRefusal> {
    while !bytes.is_empty() {
        if let Err(refusal) = world.endpoint(host).write_body(body, bytes) {
            return Some(refusal);
        }
    }
    None
}

/// The same, each time that there is room again, until nothing more is taken.
fn write_on(world: &mut World, host: usize, body: OutBody, bytes: &mut Bytes) {
    loop {
        let before = bytes.len();
        write(world, host, body, bytes);
        world.turn_all();
        if bytes.len() == before {
            return;
        }
    }
}

/// Writes and reads until there is nothing left of either.
fn carry(world: &mut World, from: (usize, OutBody), to: (usize, InBody), bytes: &Bytes) {
    let mut left = bytes.clone();
    let mut arrived = Vec::new();
    while arrived.len() < bytes.len() {
        write(world, from.0, from.1, &mut left);
        world.turn_all();
        let (chunk, next) = read(world, to.0, to.1);
        arrived.extend_from_slice(&chunk);
        assert_eq!(next, BodyNext::Pending);
    }
    assert_eq!(arrived, *bytes);
    while world.endpoint(from.0).end_body(from.1, Ok(())) == Err(BodyRefusal::Blocked) {
        world.turn_all();
    }
    world.turn_all();
    let (rest, end) = read(world, to.0, to.1);
    assert_eq!((rest, end), (Vec::new(), BodyNext::End(Ok(()))));
}

fn bodies(world: &World) -> Vec<usize> {
    let hosts = world.hosts.iter();
    hosts.map(|host| host.endpoint.sizes().bodies).collect()
}

/// How the first call of a host ended that has.
fn outcome(world: &mut World, host: usize) -> (CallKey, Outcome) {
    world.hosts[host].ended.remove(0)
}

fn is_complete(world: &mut World, host: usize, call: CallKey) -> bool {
    let ended = outcome(world, host);
    ended.0 == call && matches!(ended.1, Outcome::Complete { .. })
}

/// A body that has begun to be read, with so much of it here.
fn begun(world: &mut World, len: usize) -> (CallKey, OutBody, InBody) {
    let (call, out) = world.call(0, 1);
    world.turn_all();
    let (_, body) = world.take(1);
    write_on(world, 0, out, &mut pattern(len));
    (call, out, body)
}

#[test]
fn a_body_arrives_as_it_was_written() {
    let mut world = World::new(2);
    let (call, out) = world.call(0, 1);
    let refused = world.endpoint(0).write_body(out, &mut pattern(1));
    assert_eq!(refused, Err(BodyRefusal::Blocked), "its request waits");
    world.turn_all();
    assert_eq!(std::mem::take(&mut world.hosts[0].writable), [out]);
    let (key, body) = world.take(1);
    assert_eq!(read(&mut world, 1, body), (Vec::new(), BodyNext::Pending));
    carry(&mut world, (0, out), (1, body), &pattern(20 * WINDOW + 13));
    world.respond(1, key);
    world.turn_all();
    assert!(is_complete(&mut world, 0, call));
    assert_eq!(bodies(&world), [0, 0]);
    // Their keys mean nothing any more.
    let late = world.endpoint(0).write_body(out, &mut pattern(1));
    assert_eq!(late, Err(BodyRefusal::Stopped));
    let (_, late) = read(&mut world, 1, body);
    assert!(matches!(late, BodyNext::End(Err(_))), "{late:?}");
}

#[test]
fn each_is_told_once_until_there_is_nothing_to_do() {
    let mut world = World::new(2);
    let (_, out) = world.call(0, 1);
    world.turn_all();
    let (_, body) = world.take(1);
    world.hosts[0].writable.clear();
    // Nobody has looked yet, so nobody is told.
    write_on(&mut world, 0, out, &mut pattern(100));
    assert!(world.hosts[1].readable.is_empty());
    assert_eq!(read(&mut world, 1, body).0, pattern(100));
    for _ in 0..3 {
        write_on(&mut world, 0, out, &mut pattern(100));
    }
    assert_eq!(std::mem::take(&mut world.hosts[1].readable), [body]);
    assert!(world.hosts[0].writable.is_empty(), "nothing was refused");
    let mut rest = pattern(2 * WINDOW);
    write_on(&mut world, 0, out, &mut rest);
    world.hosts[0].writable.clear();
    assert_eq!(
        write(&mut world, 0, out, &mut rest),
        Some(BodyRefusal::Blocked)
    );
    read(&mut world, 1, body);
    world.turn_all();
    assert_eq!(world.hosts[0].writable, [out]);
}

#[test]
fn the_window_is_the_receivers_and_is_granted_by_quarters() {
    let mut world = World::new(2);
    let (_, out) = world.call(0, 1);
    world.turn_all();
    let (_, body) = world.take(1);
    let mut left = pattern(3 * WINDOW);
    for _ in 0..WINDOW / PIECE {
        let mut piece = left.split_to(PIECE);
        assert_eq!(write(&mut world, 0, out, &mut piece), None);
        world.turn_all();
    }
    let refused = write(&mut world, 0, out, &mut left);
    assert_eq!(
        (refused, left.len()),
        (Some(BodyRefusal::Blocked), 2 * WINDOW)
    );
    world.hosts[0].writable.clear();
    for chunk in 1..=WINDOW / 4 / PIECE {
        assert!(world.hosts[0].writable.is_empty(), "before chunk {chunk}");
        let next = world.endpoint(1).read_body(body);
        assert!(matches!(next, BodyNext::Chunk(chunk) if chunk.len() == PIECE));
        world.turn_all();
    }
    assert_eq!(world.hosts[0].writable, [out]);
    write_on(&mut world, 0, out, &mut left);
    assert_eq!(left.len(), 2 * WINDOW - WINDOW / 4);
}

#[test]
fn one_that_is_not_wanted_is_stopped() {
    let mut world = World::new(2);
    let (_, out, body) = begun(&mut world, 100);
    world.hosts[0].writable.clear();
    assert!(world.endpoint(0).wants_body(out));
    world.endpoint(1).drop_body(body);
    world.turn_all();
    // Whether its writer waits for room or not.
    assert_eq!(world.hosts[0].writable, [out]);
    assert!(!world.endpoint(0).wants_body(out));
    let refused = write(&mut world, 0, out, &mut pattern(1));
    assert_eq!(refused, Some(BodyRefusal::Stopped));
    assert_eq!(bodies(&world), [0, 0]);
}

#[test]
fn one_that_its_writer_breaks_off_or_abandons_says_why() {
    let mut world = World::new(2);
    let (_, out, body) = begun(&mut world, 100);
    world
        .endpoint(0)
        .end_body(out, Err("no more disk"))
        .expect("taken");
    world.turn_all();
    let expected = (pattern(100).to_vec(), broken("no more disk"));
    assert_eq!(read(&mut world, 1, body), expected);
    // Before its request has left: it is told as soon as it has.
    let (_, out) = world.call_with(0, 1, pattern(300_000), &CallOptions::default());
    world.hosts[0].writable.clear();
    world.endpoint(0).abandon_body(out, "its program crashed");
    world.turn_all();
    let (_, body) = world.take(1);
    let expected = (Vec::new(), broken("its program crashed"));
    assert_eq!(read(&mut world, 1, body), expected);
    assert!(world.hosts[0].writable.is_empty(), "nobody is there");
    assert_eq!(bodies(&world), [0, 0]);
}

#[test]
fn an_abort_gives_bodies_up_at_every_hop() {
    let mut world = World::new(3);
    let (call, out) = world.call(0, 1);
    world.turn_all();
    let (key, body) = world.take(1);
    write_on(&mut world, 0, out, &mut pattern(100));
    let method = world.method.clone();
    assert!(world.endpoint(1).resume(key));
    let sent = delegate(world.endpoint(1), key, at(2), &method, How::More);
    let onward = sent.expect("it is sent");
    world.endpoint(1).put_aside(key);
    world.turn_all();
    let (_, further) = world.take(2);
    write_on(&mut world, 1, onward, &mut pattern(50));
    world.hosts[0].writable.clear();
    world.hosts[1].writable.clear();
    world.endpoint(0).abort(call);
    // The initiator's own breaks off at once.
    assert!(!world.endpoint(0).wants_body(out));
    world.turn_all();
    world.pass(Duration::from_millis(100));
    assert_eq!(world.hosts[1].stopped[0].0, key);
    assert_eq!(world.hosts[1].readable, [body]);
    assert!(world.endpoint(1).is_given_up(body));
    assert_eq!(read(&mut world, 1, body), (Vec::new(), ended()));
    assert_eq!(world.hosts[0].writable, [out]);
    assert_eq!(world.hosts[1].writable, [onward]);
    assert!(!world.endpoint(1).wants_body(onward));
    // That one was stopped, too.
    assert_eq!(read(&mut world, 2, further), (Vec::new(), ended()));
    assert_eq!(bodies(&world), [0, 0, 0]);
}

#[test]
fn a_deadline_gives_its_body_up() {
    let mut world = World::new(2);
    let mut options = CallOptions::default();
    options.deadline = Some(Duration::from_millis(300));
    let (_, out) = world.call_with(0, 1, Bytes::new(), &options);
    world.turn_all();
    let (key, body) = world.take(1);
    write_on(&mut world, 0, out, &mut pattern(100));
    world.pass(Duration::from_millis(500));
    assert_eq!(world.hosts[1].stopped[0].0, key);
    assert_eq!(read(&mut world, 1, body), (Vec::new(), ended()));
    let (_, ended) = outcome(&mut world, 0);
    assert!(matches!(ended, Outcome::Failed(_)), "{ended:?}");
    assert_eq!(bodies(&world), [0, 0]);
}

#[test]
fn a_delegations_body_outlives_its_request_until_the_deadline() {
    let mut world = World::new(3);
    let mut options = CallOptions::default();
    options.deadline = Some(Duration::from_secs(1));
    let (_, out) = world.call_with(0, 1, Bytes::new(), &options);
    world.turn_all();
    let (key, body) = world.take(1);
    world.endpoint(0).abandon_body(out, "unused");
    world.endpoint(1).drop_body(body);
    let method = world.method.clone();
    assert!(world.endpoint(1).resume(key));
    let sent = delegate(world.endpoint(1), key, at(2), &method, How::Last);
    let onward = sent.expect("it is sent");
    world.endpoint(1).returned(key, Ok(()));
    world.turn_all();
    let (_, further) = world.take(2);
    write_on(&mut world, 1, onward, &mut pattern(100));
    assert_eq!(read(&mut world, 2, further).0, pattern(100));
    // That its reader takes nothing any more is not known where it is written.
    world.pass(Duration::from_millis(900));
    assert!(world.endpoint(1).wants_body(onward));
    world.pass(Duration::from_millis(1500));
    assert!(!world.endpoint(1).wants_body(onward));
    assert_eq!(bodies(&world)[1], 0);
}

#[test]
fn a_call_that_ends_breaks_its_body_off() {
    let mut world = World::new(2);
    let (call, out) = world.call(0, 1);
    world.turn_all();
    let (key, body) = world.take(1);
    write_on(&mut world, 0, out, &mut pattern(100));
    world.hosts[0].writable.clear();
    world.respond(1, key);
    world.turn_all();
    assert!(is_complete(&mut world, 0, call));
    assert_eq!(world.hosts[0].writable, [out]);
    let refused = write(&mut world, 0, out, &mut pattern(1));
    assert_eq!(refused, Some(BodyRefusal::Stopped));
    // The request was not stopped: what had come is read.
    let expected = (pattern(100).to_vec(), ended());
    assert_eq!(read(&mut world, 1, body), expected);
    assert_eq!(bodies(&world), [0, 0]);
}

#[test]
fn the_end_of_a_connection_ends_its_bodies() {
    let mut world = World::new(2);
    let (_, out, body) = begun(&mut world, 100);
    world.hosts[0].writable.clear();
    world.cut(0);
    world.turn_all();
    assert_eq!(world.hosts[0].writable, [out]);
    let refused = write(&mut world, 0, out, &mut pattern(1));
    assert_eq!(refused, Some(BodyRefusal::Stopped));
    let lost = BodyNext::End(Err(BodyEnd::Lost("it was cut".into())));
    assert_eq!(read(&mut world, 1, body), (pattern(100).to_vec(), lost));
    assert_eq!(bodies(&world), [0, 0]);
}

#[test]
fn one_whose_request_is_not_sent_is_over_with_the_call() {
    let mut world = World::new(1);
    // Nobody is there: the dial goes on for a while.
    let (call, out) = world.call(0, 7);
    world.turn_all();
    assert!(world.endpoint(0).wants_body(out));
    let blocked = world.endpoint(0).end_body(out, Ok(()));
    assert_eq!(blocked, Err(BodyRefusal::Blocked));
    world.endpoint(0).abort(call);
    world.turn_all();
    assert_eq!(world.hosts[0].writable, [out]);
    let refused = world.endpoint(0).end_body(out, Ok(()));
    assert_eq!(refused, Err(BodyRefusal::Stopped));
    let (other, waits) = world.call(0, 7);
    world.pass(Duration::from_secs(3));
    assert!(!world.endpoint(0).wants_body(waits));
    let failed = world.hosts[0].ended.iter().find(|ended| ended.0 == other);
    assert!(
        matches!(failed, Some((_, Outcome::Failed(_)))),
        "{failed:?}"
    );
    assert_eq!(bodies(&world), [0]);
}

#[test]
fn bodies_do_not_go_over_udp() {
    let mut world = World::new(2);
    let method = world.method.clone();
    let endpoint = world.endpoint(0);
    let call = endpoint.begin(&CallOptions::default()).expect("room");
    let to = wallaby_proto::Address::Udp(udp(1));
    let sent = endpoint.send_with(call, followed(&to, &method, Bytes::new()));
    let (_, out) = sent.expect("it waits for a session");
    world.turn_all();
    let (_, ended) = outcome(&mut world, 0);
    let Outcome::Failed(failure) = ended else {
        panic!("{ended:?}")
    };
    let text = "a body can't follow a request over udp:";
    assert!(
        matches!(&failure, Failure::Refused { reason, .. } if reason.starts_with(text)),
        "{failure:?}"
    );
    assert!(out.is_some_and(|out| !world.endpoint(0).wants_body(out)));
    // Where the session is open it is told at once.
    let call = world.endpoint(0).begin(&CallOptions::default());
    let call = call.expect("room");
    let sent = world.endpoint(0).send(call, &to, &method, Bytes::new());
    sent.expect("it is sent");
    world.turn_all();
    let sent = world
        .endpoint(0)
        .send_with(call, followed(&to, &method, Bytes::new()));
    assert!(matches!(sent, Err(Failure::Refused { .. })), "{sent:?}");
    assert_eq!(bodies(&world), [0, 0]);
}

#[test]
fn the_body_of_a_request_that_is_refused_is_stopped() {
    let mut world = World::new(2);
    let unknown = MethodDefinition::new("example.Store/take", "raw", 0, 0);
    let unknown = std::sync::Arc::new(unknown.expect("a legal name"));
    let endpoint = world.endpoint(0);
    let call = endpoint.begin(&CallOptions::default()).expect("room");
    let sent = endpoint.send_with(call, followed(&at(1), &unknown, Bytes::new()));
    let (_, out) = sent.expect("it is sent");
    // The call may have further requests: it does not end yet.
    world.turn_all();
    assert!(world.hosts[1].runs.is_empty());
    assert!(out.is_some_and(|out| !world.endpoint(0).wants_body(out)));
    assert_eq!(bodies(&world), [0, 0]);
}

/// A connection of somebody who is no endpoint.
struct Stranger {
    connection: Connection,
    stream: usize,
}

impl Stranger {
    fn new(world: &mut World) -> Self {
        let hello = std::sync::Arc::new(hello(20));
        let mut stranger = Self {
            connection: Connection::dial(hello, None),
            stream: world.connect(1),
        };
        stranger.turn(world);
        stranger
    }

    fn turn(&mut self, world: &mut World) {
        for _ in 0..3 {
            let output = self.connection.output().to_vec();
            world.stream(self.stream, 1).extend_from_slice(&output);
            self.connection.advance(output.len());
            world.turn_all();
            let mut input: BytesMut = world.stream(self.stream, 0).split();
            while !input.is_empty() && self.connection.handle_input(&mut input) != Ok(None) {}
        }
    }

    /// The body's number.
    fn send(&mut self, world: &World, sequence: u64) -> u64 {
        let mut request = Request {
            call: CallId {
                initiator: hello(20).node,
                sequence,
            },
            token: Token::new(7),
            id: RequestId::FIRST,
            depth: 0,
            base: 0,
            reply_to: ReplyTo::Peer,
            manifest: None,
            deadline: None,
            oldest: 1,
            traced: false,
            compressed: false,
            waited: Duration::ZERO,
            options: None,
            method: MethodRef::Number(0),
            payload: Bytes::new(),
        };
        request.options.get_or_insert_default().body = Some(0);
        let sent = self.connection.send_request(&mut request, &world.method);
        sent.expect("room");
        let options = request.options.expect("it has some");
        options.body.expect("it has one")
    }
}

#[test]
fn the_body_of_a_duplicate_is_stopped() {
    let mut world = World::new(2);
    let mut stranger = Stranger::new(&mut world);
    let (first, second) = (stranger.send(&world, 1), stranger.send(&world, 1));
    stranger.turn(&mut world);
    assert!(stranger.connection.wants_body(first));
    assert!(!stranger.connection.wants_body(second));
    let (_, body) = world.take(1);
    stranger
        .connection
        .send_body(first, &mut pattern(10))
        .expect("room");
    stranger.turn(&mut world);
    assert_eq!(read(&mut world, 1, body).0, pattern(10));
    assert!(world.hosts[1].runs.is_empty());
}

/// Before its shell has taken the request, the body is the request's.
#[test]
fn a_body_that_nobody_takes_is_stopped_when_its_request_ends() {
    let mut world = World::new(2);
    world.takes = false;
    let (_, out) = world.call(0, 1);
    world.turn_all();
    let key = world.waiting.remove(0);
    assert_eq!(bodies(&world), [1, 1]);
    let status = Status::new(Code::Unavailable, "the queue is full");
    world.endpoint(1).fail(key, &status);
    world.turn_all();
    assert!(!world.endpoint(0).wants_body(out));
    // One whose call was aborted meanwhile is not given to anybody.
    let (call, out) = world.call(0, 1);
    world.turn_all();
    let key = world.waiting.remove(0);
    world.endpoint(0).abort(call);
    world.turn_all();
    assert!(world.endpoint(1).take_request(key).is_err());
    world.turn_all();
    assert!(!world.endpoint(0).wants_body(out));
    assert_eq!(bodies(&world), [0, 0]);
}

#[test]
fn a_request_with_a_body_is_never_sent_again() {
    let mut world = World::new(2);
    let mut options = CallOptions::default();
    options.resend = Some(Resend::deterministic(3));
    let (_, out) = world.call_with(0, 1, Bytes::new(), &options);
    world.turn_all();
    let (_, body) = world.take(1);
    world.gone = Some(1);
    world.cut(0);
    world.pass(Duration::from_secs(20));
    assert!(world.hosts[1].runs.is_empty(), "it runs once");
    let (_, ended) = outcome(&mut world, 0);
    let Outcome::Failed(failure) = ended else {
        panic!("{ended:?}")
    };
    assert!(failure.is_loss(), "{failure:?}");
    assert!(!world.endpoint(0).wants_body(out));
    let _ = read(&mut world, 1, body);
    assert_eq!(bodies(&world), [0, 0]);
}

/// Bodies as many as may be at a time, one more, and a request without one.
#[test]
fn others_wait_for_those_that_are_under_way() {
    let mut world = World::new(2);
    let calls: Vec<_> = (0..=MAX_BODIES).map(|_| world.call(0, 1)).collect();
    let (_, last) = calls[MAX_BODIES];
    world.turn_all();
    assert_eq!(world.hosts[1].runs.len(), MAX_BODIES);
    let refused = world.endpoint(0).write_body(last, &mut pattern(1));
    assert_eq!(refused, Err(BodyRefusal::Blocked));
    // It holds up nobody else.
    let method = world.method.clone();
    let endpoint = world.endpoint(0);
    let call = endpoint.begin(&CallOptions::default()).expect("room");
    let sent = endpoint.send(call, &at(1), &method, Bytes::new());
    sent.expect("it is sent");
    world.turn_all();
    assert!(world.hosts[1].runs.len() == MAX_BODIES + 1);
    assert!(world.hosts[1].runs[MAX_BODIES].1.body.is_none());
    world.hosts[0].writable.clear();
    world
        .endpoint(0)
        .end_body(calls[0].1, Ok(()))
        .expect("nothing was written");
    world.turn_all();
    assert_eq!(world.hosts[0].writable, [last]);
    world.hosts[1].runs.drain(..=MAX_BODIES);
    let (_, body) = world.take(1);
    carry(&mut world, (0, last), (1, body), &pattern(2 * WINDOW));
}

#[test]
fn one_that_waits_goes_another_way_with_a_number_of_its_own() {
    let mut world = World::new(2);
    let calls: Vec<_> = (0..=MAX_BODIES).map(|_| world.call(0, 1)).collect();
    let (_, last) = calls[MAX_BODIES];
    world.turn_all();
    world.hosts[1].runs.clear();
    world.cut(0);
    world.turn_all();
    let (_, body) = world.take(1);
    carry(&mut world, (0, last), (1, body), &pattern(2 * WINDOW));
    for (_, out) in &calls[..MAX_BODIES] {
        assert!(!world.endpoint(0).wants_body(*out));
    }
}

#[test]
fn a_connection_whose_body_is_read_is_not_idle() {
    let mut world = World::with_connections(3, 1);
    let (_, _) = world.call(0, 1);
    world.turn_all();
    let (key, body) = world.take(1);
    world.respond(1, key);
    // The request has ended, and its initiator does not know yet.
    world.turn(&[1]);
    let (other, out) = world.call(2, 1);
    world.turn(&[1, 2]);
    assert_eq!(world.endpoint(1).metrics().connections_refused, 1);
    assert!(!world.endpoint(2).wants_body(out));
    assert_eq!(outcome(&mut world, 2).0, other);
    world.endpoint(1).drop_body(body);
    world.turn(&[1]);
    let _ = world.call(2, 1);
    world.turn(&[1, 2]);
    assert_eq!(world.hosts[1].runs.len(), 1);
}

#[test]
fn a_connection_whose_body_is_written_is_not_idle() {
    let mut world = World::with_connections(3, 1);
    let (_, out) = world.call(0, 1);
    world.turn_all();
    let method = world.method.clone();
    let elsewhere = |world: &mut World| {
        let endpoint = world.endpoint(0);
        let call = endpoint.begin(&CallOptions::default()).expect("room");
        let sent = endpoint.send(call, &at(2), &method, Bytes::new());
        sent.expect("it is handed over");
        world.turn_all();
        world.hosts[2].runs.len()
    };
    assert_eq!(elsewhere(&mut world), 0);
    assert!(world.endpoint(0).wants_body(out));
    let (key, body) = world.take(1);
    let _ = (world.endpoint(1).drop_body(body), world.respond(1, key));
    world.turn_all();
    assert_eq!(elsewhere(&mut world), 1);
}

#[test]
fn a_peer_that_is_silent_loses_its_bodies() {
    let mut world = World::new(2);
    let mut stranger = Stranger::new(&mut world);
    let number = stranger.send(&world, 1);
    stranger.turn(&mut world);
    let (key, body) = world.take(1);
    world.respond(1, key);
    stranger.turn(&mut world);
    // It has heard all that was said to it: nothing but the body is waited for.
    stranger
        .connection
        .send_body(number, &mut pattern(10))
        .expect("room");
    stranger.turn(&mut world);
    world.pass(Duration::from_secs(20));
    let (bytes, end) = read(&mut world, 1, body);
    assert_eq!(bytes, pattern(10));
    let is_lost = matches!(&end, BodyNext::End(Err(BodyEnd::Lost(_))));
    assert!(is_lost, "{end:?}");
    assert_eq!(bodies(&world), [0, 0]);
}

#[test]
fn what_a_handler_held_back_when_it_failed_has_no_body() {
    let mut world = World::new(3);
    let (_, out) = world.call(0, 1);
    world.turn_all();
    let (key, incoming) = world.hosts[1].runs.remove(0);
    let method = world.method.clone();
    let endpoint = world.endpoint(1);
    endpoint.drop_body(incoming.body.expect("it has one"));
    let sent = delegate(endpoint, key, at(2), &method, How::More);
    let onward = sent.expect("it is held back");
    assert!(endpoint.wants_body(onward));
    let refused = endpoint.write_body(onward, &mut pattern(1));
    assert_eq!(refused, Err(BodyRefusal::Blocked));
    endpoint.returned(key, Err(Status::new(Code::Internal, "no")));
    world.turn_all();
    assert_eq!(world.hosts[1].writable, [onward]);
    assert!(!world.endpoint(1).wants_body(onward));
    assert!(!world.endpoint(0).wants_body(out));
    assert!(world.hosts[2].runs.is_empty());
    assert_eq!(bodies(&world), [0, 0, 0]);
}

#[test]
fn a_delegation_that_is_refused_has_no_body() {
    let mut world = World::new(2);
    let (_, _) = world.call(0, 1);
    world.turn_all();
    let (key, incoming) = world.hosts[1].runs.remove(0);
    let method = world.method.clone();
    let endpoint = world.endpoint(1);
    endpoint.drop_body(incoming.body.expect("it has one"));
    let elsewhere = "tcp://127.0.0.1:1".parse().expect("an address");
    let sent = delegate(endpoint, key, elsewhere, &method, How::Last);
    assert!(
        matches!(sent, Err(SendError::NoTransport { .. })),
        "{sent:?}"
    );
    endpoint.returned(key, Ok(()));
    let late = delegate(endpoint, key, at(0), &method, How::Last);
    assert!(matches!(late, Err(SendError::Ended(_))), "{late:?}");
    world.turn_all();
    assert_eq!(bodies(&world), [0, 0]);
}

/// A body follows the last part of a request that travels in parts.
#[test]
fn a_body_waits_for_a_request_in_parts() {
    let mut world = World::new(2);
    let (_, _) = world.call(0, 1); // the connection is open
    world.turn_all();
    world.hosts[1].runs.clear();
    let (_, out) = world.call_with(0, 1, pattern(300_000), &CallOptions::default());
    let refused = world.endpoint(0).write_body(out, &mut pattern(1));
    assert_eq!(refused, Err(BodyRefusal::Blocked));
    world.hosts[0].writable.clear();
    world.turn_all();
    assert_eq!(world.hosts[0].writable, [out]);
    let (_, body) = world.take(1);
    carry(&mut world, (0, out), (1, body), &pattern(WINDOW));
}

/// A whole body is there before anybody asks for it.
#[test]
fn messages_and_bodies_of_one_read_are_in_order() {
    let mut world = World::new(2);
    let mut stranger = Stranger::new(&mut world);
    let number = stranger.send(&world, 1);
    stranger
        .connection
        .send_body(number, &mut pattern(100))
        .expect("room");
    let _ = stranger.connection.output();
    stranger
        .connection
        .end_body(number, Ok(()))
        .expect("it has left");
    stranger.turn(&mut world);
    let (_, body) = world.take(1);
    let expected = (pattern(100).to_vec(), BodyNext::End(Ok(())));
    assert_eq!(read(&mut world, 1, body), expected);
}
