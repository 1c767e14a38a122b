//! Some endpoints, the streams and datagrams between them, and what they told their applications.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use wallaby_proto::connection::{
    ConnectionLimits as WireLimits, Features, Hello, MethodDefinition, VERSION,
};
use wallaby_proto::endpoint::{
    CallKey, CallOptions, Config, ConnId, Endpoint, InBody, IncomingRequest, InputOutcome, Limits,
    NewInitial, Next, OutBody, Outcome, Output, RequestKey, Schemes, Seeds, Serving, SocketId,
    StreamEnd,
};
use wallaby_proto::{Address, NodeId, Status};

/// How much of a body may be under way.
pub(crate) const WINDOW: usize = 64 << 10;

/// A request that a body follows.
pub(crate) fn followed<'a>(
    server: &'a Address,
    method: &'a Arc<MethodDefinition>,
    payload: Bytes,
) -> NewInitial<'a> {
    NewInitial {
        followed: true,
        ..NewInitial::new(server, method, payload)
    }
}

pub(crate) struct World {
    pub(crate) hosts: Vec<Host>,
    streams: Vec<[BytesMut; 2]>,
    pub(crate) method: Arc<MethodDefinition>,
    /// Whether requests are taken at once, and those that were not.
    pub(crate) takes: bool,
    pub(crate) waiting: Vec<RequestKey>,
    /// Nobody reaches it any more.
    pub(crate) gone: Option<usize>,
    now: Duration,
}

pub(crate) struct Host {
    socket: SocketId,
    pub(crate) endpoint: Endpoint,
    /// Which stream, and which end of it.
    conns: BTreeMap<ConnId, (usize, usize)>,
    pub(crate) runs: Vec<(RequestKey, IncomingRequest)>,
    /// What was told, in order.
    pub(crate) readable: Vec<InBody>,
    pub(crate) writable: Vec<OutBody>,
    pub(crate) stopped: Vec<(RequestKey, Status)>,
    pub(crate) answers: usize,
    pub(crate) ended: Vec<(CallKey, Outcome)>,
}

pub(crate) fn at(host: usize) -> Address {
    Address::Mem(host.to_string().into())
}

pub(crate) fn udp(host: usize) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, 1000 + host as u16))
}

fn node(host: usize) -> NodeId {
    NodeId::new(host as u64 + 1).expect("not zero")
}

/// What a peer says that is none of the world's endpoints.
pub(crate) fn hello(host: usize) -> Hello {
    let limits = WireLimits {
        call: WINDOW as u64,
        ..WireLimits::default()
    };
    Hello {
        versions: (VERSION, VERSION),
        node: node(host),
        expected: None,
        address: Some(at(host)),
        features: Features::TIME,
        limits,
    }
}

impl World {
    pub(crate) fn new(hosts: usize) -> Self {
        Self::with_connections(hosts, 100)
    }

    /// So many connections each may have at most.
    pub(crate) fn with_connections(hosts: usize, connections: usize) -> Self {
        let method = MethodDefinition::new("example.Store/put", "raw", 0, 0);
        let method = Arc::new(method.expect("a legal name"));
        let hosts = (0..hosts).map(|host| {
            let mut limits = Limits::default();
            limits.call = WINDOW as u64;
            limits.connections = connections;
            let config = Config {
                limits,
                schemes: Schemes::new(["mem", "udp"]),
                ..Config::default()
            };
            let seed = [host as u8 + 1; 16];
            let seeds = Seeds {
                tokens: seed,
                cookies: seed,
            };
            let mut endpoint = Endpoint::new(config, node(host), Some(at(host)), seeds);
            let served = endpoint.serve(Arc::clone(&method), Serving::default());
            assert_eq!(served, Ok(0));
            Host {
                socket: endpoint.add_listening_socket(udp(host)),
                endpoint,
                conns: BTreeMap::new(),
                runs: Vec::new(),
                readable: Vec::new(),
                writable: Vec::new(),
                stopped: Vec::new(),
                answers: 0,
                ended: Vec::new(),
            }
        });
        Self {
            hosts: hosts.collect(),
            streams: Vec::new(),
            method,
            takes: true,
            waiting: Vec::new(),
            gone: None,
            now: Duration::ZERO,
        }
    }

    pub(crate) fn endpoint(&mut self, host: usize) -> &mut Endpoint {
        &mut self.hosts[host].endpoint
    }

    /// A call with one request to this host, and a body that follows it.
    pub(crate) fn call(&mut self, from: usize, to: usize) -> (CallKey, OutBody) {
        self.call_with(from, to, Bytes::new(), &CallOptions::default())
    }

    pub(crate) fn call_with(
        &mut self,
        from: usize,
        to: usize,
        payload: Bytes,
        options: &CallOptions,
    ) -> (CallKey, OutBody) {
        let method = Arc::clone(&self.method);
        let endpoint = self.endpoint(from);
        let call = endpoint.begin(options).expect("room");
        let sent = endpoint.send_only(call, followed(&at(to), &method, payload));
        let (_, body) = sent.expect("it is sent");
        (call, body.expect("it was asked for"))
    }

    /// The oldest request that came to a host and was not looked at, put aside, and its body.
    pub(crate) fn take(&mut self, host: usize) -> (RequestKey, InBody) {
        let (key, incoming) = self.hosts[host].runs.remove(0);
        let endpoint = self.endpoint(host);
        endpoint.put_aside(key);
        endpoint.returned(key, Ok(()));
        (key, incoming.body.expect("a body follows it"))
    }

    /// Answers a request that was put aside.
    pub(crate) fn respond(&mut self, host: usize, key: RequestKey) {
        let endpoint = self.endpoint(host);
        assert!(endpoint.resume(key));
        endpoint.respond(key, Bytes::new()).expect("it is sent");
        endpoint.returned(key, Ok(()));
    }

    /// Someone who is no endpoint connects to a host: the stream, whose first end is its.
    pub(crate) fn connect(&mut self, host: usize) -> usize {
        let conn = self.endpoint(host).handle_accepted();
        let stream = self.streams.len();
        self.streams.push(Default::default());
        self.hosts[host].conns.insert(conn, (stream, 1));
        stream
    }

    /// What waits at one end of a stream.
    pub(crate) fn stream(&mut self, stream: usize, end: usize) -> &mut BytesMut {
        &mut self.streams[stream][end]
    }

    /// All of these hosts do all that there is to do now.
    pub(crate) fn turn(&mut self, hosts: &[usize]) {
        while hosts
            .iter()
            .fold(false, |any, host| self.go_on(*host) | any)
        {}
    }

    pub(crate) fn turn_all(&mut self) {
        let all: Vec<usize> = (0..self.hosts.len()).collect();
        self.turn(&all);
    }

    /// Time goes on, a little at a time.
    pub(crate) fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.now += Duration::from_millis(50);
            for host in 0..self.hosts.len() {
                let now = self.now;
                let endpoint = self.endpoint(host);
                endpoint.set_time(now);
                if endpoint.poll_timeout().is_some_and(|due| due <= now) {
                    endpoint.handle_timeout();
                }
            }
            self.turn_all();
        }
    }

    /// All streams of a host end, for everybody.
    pub(crate) fn cut(&mut self, host: usize) {
        let cut: Vec<usize> = (self.hosts[host].conns.values())
            .map(|place| place.0)
            .collect();
        for host in 0..self.hosts.len() {
            let conns = self.hosts[host].conns.clone();
            for (conn, (stream, _)) in conns {
                if cut.contains(&stream) {
                    self.endpoint(host).handle_ended(
                        conn,
                        &mut BytesMut::new(),
                        StreamEnd::Lost("it was cut".into()),
                    );
                }
            }
        }
    }

    /// Does what there is for one host; whether there was anything.
    fn go_on(&mut self, host: usize) -> bool {
        let mut any = false;
        for (conn, (stream, end)) in self.hosts[host].conns.clone() {
            let input = &mut self.streams[stream][end];
            let before = input.len();
            let endpoint = &mut self.hosts[host].endpoint;
            while endpoint.handle_input(conn, input) == InputOutcome::More {}
            any |= input.len() < before;
        }
        while let Some(output) = self.hosts[host].endpoint.poll_output() {
            any = true;
            self.follow(host, output);
        }
        any
    }

    fn transmit(&mut self, host: usize, socket: SocketId) {
        let mut datagram = Vec::new();
        while let Some(to) = self.endpoint(host).poll_datagram(socket, &mut datagram) {
            let there = self.hosts.iter_mut().enumerate();
            let there = there.map(|(there, host)| (udp(there), host));
            let bytes = Bytes::from(std::mem::take(&mut datagram));
            for (_, there) in there.filter(|(at, _)| *at == to.to) {
                let (socket, bytes) = (there.socket, bytes.clone());
                there.endpoint.handle_datagram(socket, udp(host), bytes);
            }
        }
    }

    fn follow(&mut self, host: usize, output: Output) {
        let this = &mut self.hosts[host];
        match output {
            Output::Run(key) if !self.takes => self.waiting.push(key),
            Output::Run(key) => {
                if let Ok(incoming) = this.endpoint.take_request(key) {
                    this.runs.push((key, incoming));
                }
            }
            Output::Call(call) => loop {
                match this.endpoint.next_answer(call) {
                    Next::Answer(_) => this.answers += 1,
                    Next::Trace(_) => {}
                    Next::Ended(outcome) => break this.ended.push((call, outcome)),
                    Next::Pending => break,
                }
            },
            Output::Stopped(key, status) => this.stopped.push((key, *status)),
            Output::Body(body) => this.readable.push(body),
            Output::BodyRoom(body) => this.writable.push(body),
            Output::Write(conn) => {
                if let Some((stream, end)) = this.conns.get(&conn).copied() {
                    loop {
                        let output = this.endpoint.output(conn);
                        if output.is_empty() {
                            break;
                        }
                        let written = output.len();
                        self.streams[stream][1 - end].extend_from_slice(output);
                        this.endpoint.advance(conn, written);
                    }
                }
                this.endpoint.handle_written(conn);
            }
            Output::Close(conn, closed) => {
                if let Some((stream, end)) = this.conns.remove(&conn) {
                    self.streams[stream][1 - end].extend_from_slice(&closed.last_words);
                }
            }
            Output::Socket(_, to) => panic!("its socket reaches {to}"),
            Output::Datagrams(socket) => self.transmit(host, socket),
            Output::Settled(_)
            | Output::Ended(..)
            | Output::Sent(_)
            | Output::Room(..)
            | Output::Space(_) => {}
            Output::Connected(..) | Output::Placed(..) | Output::Drained | Output::Stuck(_) => {}
            Output::Lost(..) => {}
            Output::Dial(conn, to) => {
                let there = (0..self.hosts.len()).find(|there| at(*there) == *to);
                let stream = self.streams.len();
                self.streams.push(Default::default());
                self.hosts[host].conns.insert(conn, (stream, 0));
                if let Some(there) = there.filter(|there| self.gone != Some(*there)) {
                    let accepted = self.endpoint(there).handle_accepted();
                    self.hosts[there].conns.insert(accepted, (stream, 1));
                }
            }
        }
    }
}
