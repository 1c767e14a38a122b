//! Whole endpoints over streams: honest ones, whose streams are slow, cut, or blocked, and one that sends any bytes. Whatever
//! happens, each call ends, no request runs twice, a call that is complete has all its answers, a body that is whole is as it was
//! written, and nothing is left.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use wallaby_proto::connection::{BodyRefusal, MethodDefinition, StrangerLimits};
use wallaby_proto::endpoint::{
    BodyNext, CallKey, CallOptions, Config, ConnId, Endpoint, How, InBody, InputOutcome, Limits,
    NewDelegation, NewInitial, Next, OutBody, Outcome, Output, RequestKey, Schemes, Seeds, Serving,
    StreamEnd,
};
use wallaby_proto::error::ConnectError;
use wallaby_proto::wire::{Budgets, PingSettings};
use wallaby_proto::{Address, CallId, Code, RequestId, Status};

use crate::choices::Choices;
use crate::things::{limits, method, node};

/// The last of them cannot be dialled.
const NODES: usize = 4;
/// How much waits in a stream before its writer is blocked.
const ROOM: usize = 16 << 10;
/// How many bytes follow a request whose program says so.
const BODY: usize = 5000;
/// Nothing lasts longer than this after the last choice.
const REST: Duration = Duration::from_secs(300);

struct World {
    nodes: Vec<Host>,
    streams: Vec<Stream>,
    method: Arc<MethodDefinition>,
    now: Duration,
    /// Which requests were run, and how many answers they have sent.
    ran: BTreeSet<(CallId, RequestId)>,
    sent: BTreeMap<CallId, u64>,
}

struct Host {
    endpoint: Endpoint,
    streams: BTreeMap<ConnId, (usize, usize)>,
    /// Answers of its calls so far.
    calls: BTreeMap<CallKey, (CallId, u64)>,
    aside: Vec<RequestKey>,
    answered: u64,
    /// How much was written of bodies, and read.
    written: BTreeMap<OutBody, usize>,
    read: BTreeMap<InBody, usize>,
}

/// What waits for each end, whose ends they are (nobody's is the one that sends any bytes), and who was told of the end.
struct Stream {
    input: [BytesMut; 2],
    ends: [Option<(usize, ConnId)>; 2],
    blocked: [bool; 2],
    closed: bool,
    /// Neither end is the one that sends any bytes.
    honest: bool,
}

fn address(host: usize) -> Address {
    Address::Mem(host.to_string().into())
}

impl World {
    fn new(choices: &mut Choices<'_>) -> Self {
        let method = Arc::new(method(0));
        let nodes = (0..NODES).map(|host| {
            let stated = limits(choices);
            let mut kept = Limits::default();
            (kept.message, kept.requests, kept.call) =
                (stated.message, stated.requests, stated.call);
            (kept.parts, kept.streams) = (stated.parts, stated.streams);
            let config = Config {
                limits: kept,
                ping: PingSettings {
                    period: Duration::from_millis(100),
                    timeout: Duration::from_secs(1),
                },
                strangers: StrangerLimits {
                    count: 3,
                    ..StrangerLimits::default()
                },
                max_budgets: Some(Budgets {
                    requests: 200,
                    depth: 20,
                    ..Budgets::default()
                }),
                schemes: Schemes::new(["mem"]),
                ..Config::default()
            };
            let seed = [host as u8 + 1; 16];
            let seeds = Seeds {
                tokens: seed,
                cookies: seed,
            };
            let told = (host + 1 < NODES).then(|| address(host));
            let mut endpoint = Endpoint::new(config, node(host as u64 + 1), told, seeds);
            let served = endpoint.serve(Arc::clone(&method), Serving::default());
            assert_eq!(served, Ok(0));
            Host {
                endpoint,
                streams: BTreeMap::new(),
                calls: BTreeMap::new(),
                aside: Vec::new(),
                answered: 0,
                written: BTreeMap::new(),
                read: BTreeMap::new(),
            }
        });
        Self {
            nodes: nodes.collect(),
            streams: Vec::new(),
            method,
            now: Duration::ZERO,
            ran: BTreeSet::new(),
            sent: BTreeMap::new(),
        }
    }

    fn begin(&mut self, host: usize, choices: &mut Choices<'_>) {
        let mut options = CallOptions::default();
        options.deadline = choices.once_in(4).then(|| choices.time());
        options.fail_fast = choices.once_in(8);
        options.traced = choices.once_in(4);
        let endpoint = &mut self.nodes[host].endpoint;
        let Ok(call) = endpoint.begin(&options) else {
            return;
        };
        let id = CallId {
            initiator: endpoint.node(),
            sequence: call.to_string().parse().expect("a number"),
        };
        self.nodes[host].calls.insert(call, (id, 0));
        for _ in 0..=choices.below(3) {
            let to = address(choices.below(NODES as u32) as usize);
            let program = Bytes::copy_from_slice(choices.bytes(24));
            let endpoint = &mut self.nodes[host].endpoint;
            let new = NewInitial {
                followed: is_followed(&program),
                ..NewInitial::new(&to, &self.method, program)
            };
            let sent = endpoint.send_with(call, new);
            if let Ok((_, Some(body))) = sent {
                self.nodes[host].written.insert(body, 0);
                self.write_body(host, body);
            }
        }
        self.nodes[host].endpoint.close_call(call);
        self.drain(host);
    }

    /// Does what an endpoint wants done.
    fn drain(&mut self, host: usize) {
        while let Some(output) = self.nodes[host].endpoint.poll_output() {
            match output {
                Output::Run(key) => self.run(host, key),
                Output::Call(call) => self.hear(host, call),
                Output::Stopped(key, _) => self.nodes[host].aside.retain(|other| *other != key),
                Output::Dial(conn, to) => self.dial(host, conn, &to),
                Output::Write(conn) => self.write(host, conn),
                Output::Close(conn, closed) => {
                    let Some((stream, end)) = self.nodes[host].streams.remove(&conn) else {
                        continue;
                    };
                    let stream = &mut self.streams[stream];
                    stream.ends[end] = None;
                    if !stream.closed {
                        stream.input[1 - end].extend_from_slice(&closed.last_words);
                        stream.closed = true;
                    }
                }
                Output::Body(body) => self.read_body(host, body),
                Output::BodyRoom(body) => self.write_body(host, body),
                _ => {} // nothing is dialled over UDP, and nobody waits
            }
        }
    }

    fn dial(&mut self, host: usize, conn: ConnId, to: &Address) {
        let there = (0..NODES - 1).find(|other| address(*other) == *to);
        let Some(there) = there else {
            let (server, reason) = (to.clone(), "nobody is there".to_owned());
            let refused = ConnectError::Refused { server, reason };
            return self.nodes[host].endpoint.handle_dial_failed(conn, refused);
        };
        let accepted = self.nodes[there].endpoint.handle_accepted();
        self.open([Some((host, conn)), Some((there, accepted))]);
    }

    fn open(&mut self, ends: [Option<(usize, ConnId)>; 2]) {
        for (end, of) in ends.iter().enumerate() {
            if let Some((host, conn)) = of {
                let place = (self.streams.len(), end);
                self.nodes[*host].streams.insert(*conn, place);
            }
        }
        self.streams.push(Stream {
            input: Default::default(),
            ends,
            blocked: [false; 2],
            closed: false,
            honest: ends.iter().all(Option::is_some),
        });
    }

    fn write(&mut self, host: usize, conn: ConnId) {
        let Host {
            endpoint, streams, ..
        } = &mut self.nodes[host];
        let Some((stream, end)) = streams.get(&conn).copied() else {
            return;
        };
        let stream = &mut self.streams[stream];
        let to = &mut stream.input[1 - end];
        stream.blocked[end] = loop {
            let room = ROOM.saturating_sub(to.len());
            let output = endpoint.output(conn);
            if output.is_empty() {
                break false;
            }
            if room == 0 {
                break true;
            }
            let written = output.len().min(room);
            to.extend_from_slice(&output[..written]);
            endpoint.advance(conn, written);
        };
        match stream.blocked[end] {
            true => endpoint.handle_blocked(conn),
            false => endpoint.handle_written(conn),
        };
    }

    /// Carries what waits for one end of a stream, at most so much; whether any was taken.
    fn carry(&mut self, stream: usize, end: usize, most: usize) -> bool {
        let Some((host, conn)) = self.streams[stream].ends[end] else {
            self.streams[stream].input[end].clear();
            return false;
        };
        let waiting = &mut self.streams[stream].input[end];
        let len = waiting.len().min(most);
        let mut input = waiting.split_to(len);
        loop {
            let read = self.nodes[host].endpoint.handle_input(conn, &mut input);
            self.drain(host);
            match read {
                InputOutcome::More => {}
                InputOutcome::All | InputOutcome::Held => break,
                InputOutcome::Ended => input.clear(),
            }
            if input.is_empty() {
                break;
            }
        }
        let some = input.len() < len;
        let left = &mut self.streams[stream];
        let rest = std::mem::replace(&mut left.input[end], input);
        left.input[end].extend_from_slice(&rest);
        let ended = left.closed && left.input[end].is_empty();
        if ended && left.ends[end].is_some() {
            self.nodes[host]
                .endpoint
                .handle_ended(conn, &mut BytesMut::new(), StreamEnd::Closed);
            self.drain(host);
        } else if let Some((writer, conn)) = left.ends[1 - end]
            && std::mem::take(&mut left.blocked[1 - end])
        {
            self.write(writer, conn);
            self.drain(writer);
        }
        some
    }

    /// A stream ends, and what was under way is lost.
    fn cut(&mut self, stream: usize) {
        self.streams[stream].closed = true;
        for end in [0, 1] {
            self.streams[stream].input[end].clear();
            if let Some((host, conn)) = self.streams[stream].ends[end] {
                self.nodes[host].endpoint.handle_ended(
                    conn,
                    &mut BytesMut::new(),
                    StreamEnd::Closed,
                );
                self.drain(host);
            }
        }
    }

    /// Writes as much of a body as is accepted.
    fn write_body(&mut self, host: usize, body: OutBody) {
        let Host {
            endpoint, written, ..
        } = &mut self.nodes[host];
        while let Some(done) = written.get_mut(&body) {
            let mut chunk = bytes(*done..BODY);
            let accepted = match chunk.is_empty() {
                true => endpoint.end_body(body, Ok(())),
                false => endpoint.write_body(body, &mut chunk),
            };
            let whole = *done == BODY;
            *done = BODY - chunk.len();
            match accepted {
                Ok(()) if !whole => {}
                Err(BodyRefusal::Blocked) => return,
                Ok(()) | Err(BodyRefusal::Stopped) => drop(written.remove(&body)),
            }
        }
    }

    /// Reads what has come of a body.
    fn read_body(&mut self, host: usize, body: InBody) {
        let Host { endpoint, read, .. } = &mut self.nodes[host];
        while let Some(done) = read.get_mut(&body) {
            match endpoint.read_body(body) {
                BodyNext::Chunk(chunk) => {
                    let end = *done + chunk.len();
                    assert_eq!(chunk, bytes(*done..end), "from {done} on");
                    *done = end;
                }
                BodyNext::Pending => return,
                BodyNext::End(how) => {
                    assert!(how.is_err() || *done == BODY, "{done} bytes are whole");
                    read.remove(&body);
                }
            }
        }
    }

    /// Hands work on, perhaps with a body behind it.
    fn delegate(&mut self, host: usize, key: RequestKey, to: Address, program: Bytes, how: How) {
        let endpoint = &mut self.nodes[host].endpoint;
        if !is_followed(&program) {
            let _ = match how {
                How::Last => endpoint.forward(key, to, &self.method, program),
                How::More => endpoint.delegate(key, to, &self.method, program),
            };
            return;
        }
        let delegation = NewDelegation {
            server: to,
            method: Arc::clone(&self.method),
            payload: program,
            options: None,
            followed: true,
        };
        if let Ok(Some(body)) = endpoint.delegate_with(key, delegation, how) {
            self.nodes[host].written.insert(body, 0);
            self.write_body(host, body);
        }
    }

    /// Runs a program: how many answers, where the rest of it goes, and how it ends.
    fn run(&mut self, host: usize, key: RequestKey) {
        let endpoint = &mut self.nodes[host].endpoint;
        let Ok(mut incoming) = endpoint.take_request(key) else {
            return;
        };
        let request = endpoint.request(key).expect("it was just taken");
        let (call, id, conn) = (request.call(), request.id(), request.conn());
        if let Some(body) = incoming.body {
            self.take_body(host, conn, body);
        }
        let endpoint = &mut self.nodes[host].endpoint;
        assert!(self.ran.insert((call, id)), "{id} of {call} runs twice");
        let first = incoming.payload.first().copied().unwrap_or(0);
        let program = incoming.payload.split_off(1.min(incoming.payload.len()));
        let sent = self.sent.entry(call).or_default();
        for _ in 0..first % 4 {
            let answer = match first & 0x40 {
                0 => Bytes::from_static(b"an answer"),
                _ => Bytes::from(vec![first; 3000]),
            };
            *sent += u64::from(endpoint.reply(key, answer).is_ok());
        }
        let children = usize::from(first >> 2 & 3).min(program.len());
        let last = first & 0x10 != 0 && children > 0;
        for child in 0..children {
            let share = (program.len() - 1) / children;
            let part = program.slice(1 + child * share..1 + (child + 1) * share);
            let to = address(usize::from(program[0] >> (2 * child)) % NODES);
            let how = match last && child + 1 == children {
                true => How::Last,
                false => How::More,
            };
            self.delegate(host, key, to, part, how);
        }
        let Host {
            endpoint, aside, ..
        } = &mut self.nodes[host];
        if first >> 5 == 1 && !last {
            endpoint.put_aside(key);
            aside.push(key);
        }
        endpoint.returned(
            key,
            match first >> 5 {
                0 => Err(Status::new(Code::Aborted, "as it was told")),
                _ => Ok(()),
            },
        );
    }

    /// A body has come with a request: what honest ones write is read, that of the one that sends any bytes is not.
    fn take_body(&mut self, host: usize, conn: ConnId, body: InBody) {
        let place = self.nodes[host].streams.get(&conn).copied();
        let is_honest = place.is_some_and(|(stream, _)| self.streams[stream].honest);
        match is_honest {
            true => {
                self.nodes[host].read.insert(body, 0);
                self.read_body(host, body);
            }
            false => self.nodes[host].endpoint.drop_body(body),
        }
    }

    fn hear(&mut self, host: usize, call: CallKey) {
        loop {
            let Host {
                endpoint,
                calls,
                answered,
                ..
            } = &mut self.nodes[host];
            match endpoint.next_answer(call) {
                Next::Pending => return,
                Next::Answer(answer) => {
                    let heard = calls.get_mut(&call).expect("it lives");
                    heard.1 += u64::from(answer.payload().is_ok());
                }
                Next::Trace(trace) => assert!(trace.hops.len() <= 100_000, "{trace:?}"),
                Next::Ended(outcome) => {
                    let (id, heard) = calls.remove(&call).expect("it ends once");
                    *answered += heard;
                    if let Outcome::Complete { statuses } = outcome {
                        // A status may stand for an answer that is too large.
                        let sent = self.sent.get(&id).copied().unwrap_or_default();
                        let all = heard <= sent && sent <= heard + statuses;
                        assert!(
                            all,
                            "{id}: {sent} were sent, {heard} came, {statuses} statuses"
                        );
                    }
                    return;
                }
            }
        }
    }

    /// The application comes back to a request that was put aside.
    fn resume(&mut self, host: usize) {
        if let Some(key) = self.nodes[host].aside.pop() {
            let endpoint = &mut self.nodes[host].endpoint;
            if endpoint.resume(key) {
                let call = endpoint.request(key).expect("it was resumed").call();
                let sent = endpoint.respond(key, Bytes::from_static(b"late"));
                *self.sent.entry(call).or_default() += u64::from(sent.is_ok());
                endpoint.returned(key, Ok(()));
            }
            self.drain(host);
        }
    }

    /// Time goes on, for all of them; nothing waits to be read.
    fn pass(&mut self, time: Duration) {
        self.now += time;
        for host in 0..NODES {
            let endpoint = &mut self.nodes[host].endpoint;
            endpoint.set_time(self.now);
            if endpoint.poll_timeout().is_some_and(|due| due <= self.now) {
                endpoint.handle_timeout();
                self.drain(host);
            }
        }
    }

    fn carry_all(&mut self) {
        let mut some = true;
        for _ in 0..10_000 {
            if !std::mem::take(&mut some) {
                return;
            }
            for stream in 0..self.streams.len() {
                for end in [0, 1] {
                    some |= self.carry(stream, end, usize::MAX);
                }
            }
        }
        panic!("they say more and more");
    }

    fn is_at_rest(&self) -> bool {
        self.nodes.iter().all(|host| {
            let sizes = host.endpoint.sizes();
            host.calls.is_empty() && sizes.calls == 0 && sizes.requests == 0 && sizes.bodies == 0
        })
    }
}

/// Whether a body follows the request of this program.
fn is_followed(program: &[u8]) -> bool {
    program.last().is_some_and(|last| last % 4 == 3)
}

/// These bytes of any body.
fn bytes(places: Range<usize>) -> Bytes {
    places.map(|place| (place % 251) as u8).collect()
}

pub(crate) fn run(bytes: &[u8]) {
    let mut choices = Choices::new(bytes);
    let mut world = World::new(&mut choices);
    while !choices.is_empty() {
        let host = choices.below(NODES as u32) as usize;
        let stream = choices.byte() as usize;
        let stream = (!world.streams.is_empty()).then(|| stream % world.streams.len());
        match (choices.below(16), stream) {
            (0..=2, _) => world.begin(host, &mut choices),
            (3..=6, _) => world.carry_all(),
            (7, Some(stream)) => {
                let most = usize::from(choices.byte());
                world.carry(stream, host % 2, most);
            }
            (8, Some(stream)) => world.cut(stream),
            (9, _) => {
                let call = world.nodes[host].calls.keys().next().copied();
                if let Some(call) = call {
                    world.nodes[host].endpoint.abort(call);
                    world.drain(host);
                }
            }
            (10 | 11, _) => world.resume(host),
            (12, _) => {
                let accepted = world.nodes[host].endpoint.handle_accepted();
                world.open([None, Some((host, accepted))]);
            }
            (13, Some(stream)) if world.streams[stream].ends[0].is_none() => {
                let len = usize::from(choices.byte());
                let any = choices.bytes(len);
                world.streams[stream].input[1].put_slice(any);
            }
            _ => {
                world.carry_all();
                let time = choices.time().min(Duration::from_secs(5));
                world.pass(time);
            }
        }
    }
    let end = world.now + REST;
    while !world.is_at_rest() {
        (0..NODES).for_each(|host| world.resume(host));
        world.carry_all();
        world.pass(Duration::from_millis(50));
        assert!(world.now < end, "it never ends");
    }
}
