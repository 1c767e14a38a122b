//! What the protocol core alone costs: calls from handle to handle through connections that end in memory.
//!
//! `cost --list` names the scenarios, `cost SCENARIO CALLS` makes that many calls and prints nanoseconds per call.
//! `scripts/instructions.sh` counts the instructions of each.

use std::error::Error;
use std::hint::black_box;
use std::mem::take;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use wallaby_proto::call::initiator::Initiator;
use wallaby_proto::call::records::{
    ConnId, Judgement, MessageOrigin, OutputMark, RecordLimits, Records, Ticket,
};
use wallaby_proto::call::server::{Inherited, LastMessages, Outbound, ServerHalf};
use wallaby_proto::carrier::Carrier;
use wallaby_proto::connection::{
    Charge, Connection, ConnectionLimits, Event, Features, Hello, MethodDefinition, VERSION,
};
use wallaby_proto::wire::{Budgets, Message, MethodRef, ReplyTo, Request, Response};
use wallaby_proto::{Address, CallId, NodeId, Token};

/// As in the benchmarks of the thesis.
static PAYLOAD: [u8; 100] = [7; 100];

const ROUNDS: u64 = 50;

/// Bytes that can be read at once.
const ROOM: usize = 2048;

struct Scenario {
    name: &'static str,
    call: fn(&mut Cluster, u64),
}

const SCENARIOS: [Scenario; 7] = [
    Scenario {
        name: "one hop",
        call: one_hop,
    },
    Scenario {
        name: "two hops",
        call: two_hops,
    },
    Scenario {
        name: "fan-out to four",
        call: fan_out,
    },
    Scenario {
        name: "a request alone",
        call: request_alone,
    },
    Scenario {
        name: "a response alone",
        call: response_alone,
    },
    Scenario {
        name: "the halves alone",
        call: halves_alone,
    },
    Scenario {
        name: "a request remembered",
        call: request_remembered,
    },
];

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["--list"] => SCENARIOS
            .iter()
            .for_each(|scenario| println!("{}", scenario.name)),
        [name, calls] => {
            let calls: u64 = calls.parse()?;
            let scenario = SCENARIOS
                .iter()
                .find(|scenario| scenario.name == name)
                .ok_or("no such scenario")?;
            let mut cluster = Cluster::new()?;
            (scenario.call)(&mut cluster, 1); // names the methods
            println!(
                "{:.0}",
                median_round(calls, |sequence| (scenario.call)(&mut cluster, sequence))
            );
        }
        _ => return Err("usage: cost --list | cost SCENARIO CALLS".into()),
    }
    Ok(())
}

/// Makes this many calls in rounds and returns the nanoseconds per call of the median round: other programs on the
/// machine disturb some rounds, seldom most.
fn median_round(calls: u64, mut call: impl FnMut(u64)) -> f64 {
    let per_round = calls.div_ceil(ROUNDS);
    let mut sequence = 1;
    let mut rounds: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let start = Instant::now();
            for _ in 0..per_round {
                sequence += 1;
                call(sequence);
            }
            start.elapsed().as_nanos() as f64 / per_round as f64
        })
        .collect();
    rounds.sort_by(f64::total_cmp);
    rounds[rounds.len() / 2]
}

/// An initiator and two servers, each connected with each.
struct Cluster {
    initiator: NodeId,
    records: Records,
    remembered: Option<(Request, Response)>,
    method: MethodDefinition,
    reply_to: Address,
    /// Initiator to first server, first server to second, second server to initiator.
    first: Line,
    onward: Line,
    back: Line,
}

/// A connection and what its ends have received.
struct Line {
    dialer: Connection,
    acceptor: Connection,
    to_dialer: BytesMut,
    to_acceptor: BytesMut,
}

impl Cluster {
    fn new() -> Result<Self, Box<dyn Error>> {
        let node = |number| NodeId::new(number).ok_or("zero is no node id");
        let (initiator, one, two) = (node(1)?, node(2)?, node(3)?);
        Ok(Self {
            initiator,
            records: Records::new(RecordLimits::default()),
            remembered: None,
            method: MethodDefinition::new("example.Door/knock", "raw", 1, 2).ok_or("a bad name")?,
            reply_to: "tcp://10.0.0.1:4000".parse()?,
            first: Line::open(initiator, one)?,
            onward: Line::open(one, two)?,
            back: Line::open(two, initiator)?,
        })
    }

    fn call(&self, sequence: u64) -> Initiator {
        let call = CallId {
            initiator: self.initiator,
            sequence,
        };
        Initiator::new(call, Token::new(sequence), Budgets::default())
    }

    fn request(&self, initiator: &mut Initiator) -> Request {
        let Ok(id) = initiator.send() else {
            unreachable!("within the budget")
        };
        let call = initiator.call();
        Request {
            call,
            token: initiator.token(),
            id,
            depth: 0,
            base: 0,
            reply_to: ReplyTo::Peer,
            manifest: None,
            deadline: None,
            oldest: call.sequence,
            traced: false,
            compressed: false,
            waited: Duration::ZERO,
            options: None,
            method: MethodRef::Number(0),
            payload: Bytes::from_static(&PAYLOAD),
        }
    }

    fn inherited(&self, sequence: u64) -> Inherited {
        let reply_to = ReplyTo::At(self.reply_to.clone());
        Inherited {
            reply_to,
            deadline: None,
            oldest: sequence,
            options: None,
        }
    }
}

impl Line {
    fn open(dialer: NodeId, acceptor: NodeId) -> Result<Self, Box<dyn Error>> {
        let hello = |node| {
            let limits = ConnectionLimits {
                requests: u64::MAX,
                ..ConnectionLimits::default()
            };
            let versions = (VERSION, VERSION);
            Arc::new(Hello {
                versions,
                node,
                expected: None,
                address: None,
                features: Features::default(),
                limits,
            })
        };
        let mut line = Self {
            dialer: Connection::dial(hello(dialer), None),
            acceptor: Connection::accept(hello(acceptor)),
            to_dialer: BytesMut::new(),
            to_acceptor: BytesMut::new(),
        };
        carry(&mut line.dialer, &mut line.to_acceptor);
        line.acceptor.handle_input(&mut line.to_acceptor)?;
        carry(&mut line.acceptor, &mut line.to_dialer);
        line.dialer.handle_input(&mut line.to_dialer)?;
        Ok(line)
    }

    fn send_request(&mut self, request: &mut Request, method: &MethodDefinition) {
        let sent = self.dialer.send_request(request, method);
        assert!(sent.is_ok(), "the window is large");
        carry(&mut self.dialer, &mut self.to_acceptor);
    }

    /// Hands over the next request where it is read to: it is a large value.
    fn receive_request<T>(&mut self, handle: impl FnOnce(&mut Request) -> T) -> T {
        loop {
            match &mut self.acceptor.handle_input(&mut self.to_acceptor) {
                Ok(Some(Event::Message(Message::Request(request)))) => {
                    self.acceptor.grant_request(request.payload.len());
                    return handle(request);
                }
                Ok(Some(_)) => {}
                other => unreachable!("{other:?}"),
            }
        }
    }
}

/// What one end has written arrives in the other's buffer, which has room for more, as drivers' have.
fn carry(from: &mut Connection, to: &mut BytesMut) {
    let output = from.output();
    let len = output.len();
    if to.capacity() - to.len() < ROOM {
        to.reserve(2 * ROOM);
    }
    to.extend_from_slice(output);
    from.advance(len);
}

/// Hands over the next response where it is read to.
fn receive_response<T>(
    connection: &mut Connection,
    input: &mut BytesMut,
    handle: impl FnOnce(&Response) -> T,
) -> T {
    loop {
        match &connection.handle_input(input) {
            Ok(Some(Event::Message(Message::Response(response)))) => return handle(response),
            Ok(Some(_)) => {}
            other => unreachable!("{other:?}"),
        }
    }
}

/// The answer goes back over the connection that the request came on.
fn answer_directly(line: &mut Line, response: &mut Response, handle: impl FnOnce(&Response)) {
    response.token = None;
    let sent = line.acceptor.send_response(response, Charge::Free);
    assert!(sent.is_ok(), "an answer that is not counted");
    carry(&mut line.acceptor, &mut line.to_dialer);
    receive_response(&mut line.dialer, &mut line.to_dialer, handle);
}

/// The answer of the second server, over a connection of its own.
fn answer_from_afar(line: &mut Line, response: &Response, handle: impl FnOnce(&Response)) {
    let sent = line.dialer.send_response(response, Charge::Free);
    assert!(sent.is_ok(), "an answer that is not counted");
    carry(&mut line.dialer, &mut line.to_acceptor);
    receive_response(&mut line.acceptor, &mut line.to_acceptor, handle);
}

fn one_hop(cluster: &mut Cluster, sequence: u64) {
    let mut initiator = cluster.call(sequence);
    let mut request = cluster.request(&mut initiator);
    initiator.close();
    cluster.first.send_request(&mut request, &cluster.method);
    let mut released = cluster.first.receive_request(respond);
    answer_directly(
        &mut cluster.first,
        only_response(&mut released),
        |response| {
            finish(&mut initiator, response);
        },
    );
    assert!(initiator.is_complete());
}

/// The handler of a server that answers with what it got.
fn respond(request: &mut Request) -> LastMessages<()> {
    let mut server: ServerHalf<()> = ServerHalf::new(request);
    server.respond(take(&mut request.payload), None)
}

fn two_hops(cluster: &mut Cluster, sequence: u64) {
    let mut initiator = cluster.call(sequence);
    let mut request = cluster.request(&mut initiator);
    initiator.close();
    cluster.first.send_request(&mut request, &cluster.method);
    let released = cluster.first.receive_request(|request| {
        let mut server: ServerHalf<()> = ServerHalf::new(request);
        server.forward((), take(&mut request.payload), None)
    });
    respond_deep(cluster, &mut initiator, released.last);
    assert!(initiator.is_complete());
}

fn fan_out(cluster: &mut Cluster, sequence: u64) {
    let mut initiator = cluster.call(sequence);
    let mut request = cluster.request(&mut initiator);
    initiator.close();
    cluster.first.send_request(&mut request, &cluster.method);
    let (mut server, payload) = cluster.first.receive_request(|request| {
        let server: ServerHalf<()> = ServerHalf::new(request);
        (server, take(&mut request.payload))
    });
    for _ in 0..4 {
        if let Some(message) = server.delegate((), payload.clone()) {
            respond_deep(cluster, &mut initiator, message);
        }
    }
    let message = server.finish(None);
    respond_deep(cluster, &mut initiator, message);
    assert!(initiator.is_complete());
}

/// The first server sends a request onward, the second answers it.
fn respond_deep(cluster: &mut Cluster, initiator: &mut Initiator, message: Outbound<()>) {
    let Outbound::Request(delegated) = message else {
        unreachable!("it delegates")
    };
    let call = initiator.call();
    let inherited = cluster.inherited(call.sequence);
    let ((), mut request) =
        delegated.into_request(call, initiator.token(), MethodRef::Number(0), inherited);
    cluster.onward.send_request(&mut request, &cluster.method);
    let mut released = cluster.onward.receive_request(respond);
    answer_from_afar(
        &mut cluster.back,
        only_response(&mut released),
        |response| {
            finish(initiator, response);
        },
    );
}

fn only_response(released: &mut LastMessages<()>) -> &mut Response {
    let Outbound::Response(response) = &mut released.last else {
        unreachable!("it responds")
    };
    response
}

fn finish(initiator: &mut Initiator, response: &Response) {
    let arrived = initiator.handle_response(response);
    assert!(arrived.is_ok(), "as the protocol says");
    black_box(response);
}

/// A request from value to bytes to value, without the halves of a call.
fn request_alone(cluster: &mut Cluster, sequence: u64) {
    let mut request = cluster.request(&mut cluster.call(sequence));
    cluster.first.send_request(&mut request, &cluster.method);
    cluster.first.receive_request(|request| {
        black_box(request);
    });
}

/// A response from value to bytes to value.
fn response_alone(cluster: &mut Cluster, sequence: u64) {
    let mut response = Response {
        call: CallId {
            initiator: cluster.initiator,
            sequence,
        },
        distance: 0,
        token: None,
        request: wallaby_proto::RequestId::FIRST,
        index: 0,
        last: true,
        manifest: None,
        status: false,
        compressed: false,
        options: None,
        payload: Bytes::from_static(&PAYLOAD),
    };
    answer_directly(&mut cluster.first, &mut response, |response| {
        black_box(response);
    });
}

/// Both halves of a call of one hop, without bytes.
fn halves_alone(cluster: &mut Cluster, sequence: u64) {
    let mut initiator = cluster.call(sequence);
    let mut request = cluster.request(&mut initiator);
    initiator.close();
    finish(&mut initiator, only_response(&mut respond(&mut request)));
    assert!(initiator.is_complete());
}

/// What records add to a call of one hop: its request is admitted, its answer kept; the request before is forgotten, as
/// its call is over.
fn request_remembered(cluster: &mut Cluster, sequence: u64) {
    if cluster.remembered.is_none() {
        cluster.remembered = Some(one_answered(cluster, sequence));
    }
    let Some((request, response)) = &mut cluster.remembered else {
        unreachable!("just made")
    };
    request.call.sequence = sequence;
    request.oldest = sequence;
    response.call = request.call;
    let now = Duration::from_micros(sequence);
    let conn = ConnId::from_number(1);
    let origin = MessageOrigin {
        conn,
        peer: cluster.initiator,
        transit: Duration::ZERO,
    };
    let ticket: Ticket = match cluster.records.admit(request, origin, now) {
        Judgement::Accepted(ticket) => ticket,
        other => unreachable!("{other:?}"),
    };
    let output = OutputMark {
        conn,
        mark: sequence,
    };
    cluster
        .records
        .response_released(ticket, response, Some(output), now);
}

fn one_answered(cluster: &Cluster, sequence: u64) -> (Request, Response) {
    let mut request = cluster.request(&mut cluster.call(sequence));
    let payload = request.payload.clone();
    let Outbound::Response(response) = respond(&mut request).last else {
        unreachable!("it responds")
    };
    request.payload = payload;
    (request, response)
}
