//! What sessions over datagrams cost: gates that end in memory, without the network.
//!
//! `datagrams --list` names the scenarios, `datagrams SCENARIO COUNT` runs one and prints nanoseconds for each of so many
//! exchanges (or messages of 64 KiB), and under callgrind the instructions.

use std::error::Error;
use std::hint::black_box;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use wallaby_proto::carrier::Carrier;
use wallaby_proto::connection::{
    ConnectionLimits, Event, Features, Hello, MethodDefinition, VERSION,
};
use wallaby_proto::datagram::{Gate, SessionId, Settings};
use wallaby_proto::wire::{Message, MethodRef, ReplyTo, Request, Response};
use wallaby_proto::{CallId, NodeId, RequestId, Token};

/// As in the benchmarks of the thesis.
static SMALL: [u8; 100] = [7; 100];
static LARGE: [u8; 65_536] = [7; 65_536];

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["--list"] => println!("exchange\nlarge"),
        ["exchange", count] => run(count.parse()?, Line::exchange)?,
        ["large", count] => run(count.parse()?, Line::large)?,
        _ => return Err("usage: datagrams --list | datagrams SCENARIO COUNT".into()),
    }
    Ok(())
}

fn run(count: u64, one: fn(&mut Line, u64)) -> Result<(), Box<dyn Error>> {
    let mut line = Line::open()?;
    let start = Instant::now();
    (1..=count).for_each(|sequence| one(&mut line, sequence));
    println!("{}", start.elapsed().as_nanos() / u128::from(count.max(1)));
    Ok(())
}

/// A client and a server, and a session between them.
struct Line {
    now: Duration,
    client: Gate,
    server: Gate,
    session: SessionId,
    node: NodeId,
    method: MethodDefinition,
    written: Vec<u8>,
    arrived: BytesMut,
}

fn address(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

impl Line {
    fn open() -> Result<Self, Box<dyn Error>> {
        let hello = |node| Hello {
            versions: (VERSION, VERSION),
            node,
            expected: None,
            address: None,
            features: Features::default(),
            limits: ConnectionLimits::default(),
        };
        let node = |number| NodeId::new(number).ok_or("zero is no node id");
        let gate = |node, secret| Gate::new(Arc::new(hello(node)), secret, Settings::default());
        let mut client = gate(node(1)?, [1; 16]);
        let mut line = Self {
            now: Duration::ZERO,
            session: client.dial(Duration::ZERO, address(2), None)?,
            client,
            server: gate(node(2)?, [2; 16]),
            node: node(1)?,
            method: MethodDefinition::new("example.Door/knock", "raw", 1, 2).ok_or("a bad name")?,
            written: Vec::new(),
            arrived: BytesMut::new(),
        };
        for _ in 0..4 {
            line.carry();
        }
        while line.client.poll_event().is_some() || line.server.poll_event().is_some() {}
        Ok(line)
    }

    /// Carries all that both sides have to send.
    fn carry(&mut self) {
        self.now += Duration::from_micros(20);
        for to_server in [true, false] {
            let (from, to, port) = match to_server {
                true => (&mut self.client, &mut self.server, 1),
                false => (&mut self.server, &mut self.client, 2),
            };
            self.written.clear();
            while let Some(transmit) = from.poll_transmit(self.now, &mut self.written) {
                self.arrived.extend_from_slice(&self.written);
                let datagram = self.arrived.split_to(transmit.len).freeze();
                to.handle_datagram(self.now, address(port), datagram);
                self.written.clear();
            }
        }
    }

    fn request(&mut self, sequence: u64, payload: &'static [u8]) {
        let call = CallId {
            initiator: self.node,
            sequence,
        };
        let mut request = Request {
            call,
            token: Token::new(sequence),
            id: RequestId::FIRST,
            depth: 0,
            base: 0,
            reply_to: ReplyTo::Peer,
            manifest: None,
            deadline: None,
            oldest: sequence,
            traced: false,
            compressed: false,
            waited: Duration::ZERO,
            options: None,
            method: MethodRef::Number(0),
            payload: Bytes::from_static(payload),
        };
        if let Some(session) = self.client.session(self.session) {
            let sent = session.send_request(&mut request, &self.method);
            assert!(sent.is_ok(), "there is credit");
        }
    }

    fn answer(&mut self) -> bool {
        let mut answered = false;
        while let Some((id, event)) = self.server.poll_event() {
            let Ok(Event::Message(Message::Request(request))) = event else {
                continue;
            };
            answered = true;
            let Some(session) = self.server.session(id) else {
                continue;
            };
            session.grant_request(request.payload.len());
            let response = Response {
                call: request.call,
                distance: 0,
                token: None,
                request: request.id,
                index: 0,
                last: true,
                manifest: None,
                status: false,
                compressed: false,
                options: None,
                payload: Bytes::from_static(&SMALL),
            };
            let sent = session.send_response(&response, false);
            assert!(sent.is_ok(), "it is not counted");
        }
        answered
    }

    /// A request and its answer.
    fn exchange(&mut self, sequence: u64) {
        self.request(sequence, &SMALL);
        self.carry();
        assert!(self.answer(), "it has arrived");
        self.carry();
        while let Some(event) = self.client.poll_event() {
            black_box(&event);
        }
    }

    /// A request of 64 KiB and its small answer.
    fn large(&mut self, sequence: u64) {
        self.request(sequence, &LARGE);
        loop {
            self.carry();
            if self.answer() {
                break;
            }
        }
        self.carry();
        while let Some(event) = self.client.poll_event() {
            black_box(&event);
        }
    }
}
