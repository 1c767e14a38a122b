//! Endpoints of which one has few places for handlers, and streams between them. Handlers are the tests': what is to run is noted, and nothing runs by itself.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use wallaby_proto::connection::MethodDefinition;
use wallaby_proto::endpoint::{
    CallKey, CallOptions, Config, ConnId, Endpoint, InputOutcome, Limits, Next, Outcome, Output,
    RequestKey, Schemes, Seeds, Serving, StreamEnd, StuckHandler,
};
use wallaby_proto::error::{CallError, ConnectError};
use wallaby_proto::executor::{ExecutorConfig, Schedule};
use wallaby_proto::trace::Trace;
use wallaby_proto::{Address, NodeId, Status};

pub(crate) const MS: Duration = Duration::from_millis(1);

/// One end of a stream.
type End = (usize, ConnId);

/// What became of a call.
#[derive(Debug, Default)]
pub(crate) struct Heard {
    pub(crate) answers: Vec<Bytes>,
    pub(crate) statuses: Vec<Status>,
    pub(crate) trace: Option<Box<Trace>>,
    pub(crate) outcome: Option<Outcome>,
}

/// Endpoints, by the order in which they were added; each is reached at the address of its number.
pub(crate) struct World {
    pub(crate) now: Duration,
    pub(crate) endpoints: Vec<Endpoint>,
    pub(crate) method: Arc<MethodDefinition>,
    /// What is to run, by endpoint.
    pub(crate) runs: BTreeMap<usize, Vec<RequestKey>>,
    pub(crate) stopped: Vec<(RequestKey, Status)>,
    pub(crate) stuck: Vec<StuckHandler>,
    pub(crate) heard: BTreeMap<(usize, CallKey), Heard>,
    /// How often somebody was dialled.
    pub(crate) dials: usize,
    /// Whether connections may end.
    pub(crate) ends: bool,
    /// Those endpoints read nothing.
    pub(crate) deaf: Vec<usize>,
    others: BTreeMap<End, End>,
    input: BTreeMap<End, BytesMut>,
    ended: Vec<End>,
}

/// So many handlers at a time, and as many that wait.
pub(crate) fn executor(concurrency: usize, queue: usize, schedule: Schedule) -> ExecutorConfig {
    ExecutorConfig {
        concurrency,
        queue,
        schedule,
    }
}

impl World {
    /// A client, which is endpoint 0, and a server with this executor, which is endpoint 1.
    pub(crate) fn new(executor: ExecutorConfig) -> Self {
        Self::with(executor, Limits::default())
    }

    /// The same, and the server states these limits.
    pub(crate) fn with(executor: ExecutorConfig, limits: Limits) -> Self {
        let mut world = Self {
            now: Duration::ZERO,
            endpoints: Vec::new(),
            method: Arc::new(MethodDefinition::new("test.Work/do", "raw", 0, 0).expect("a name")),
            runs: BTreeMap::new(),
            stopped: Vec::new(),
            stuck: Vec::new(),
            heard: BTreeMap::new(),
            dials: 0,
            ends: false,
            deaf: Vec::new(),
            others: BTreeMap::new(),
            input: BTreeMap::new(),
            ended: Vec::new(),
        };
        world.add(ExecutorConfig::default(), Limits::default());
        world.add(executor, limits);
        world
    }

    /// Another endpoint: its number.
    pub(crate) fn add(&mut self, executor: ExecutorConfig, limits: Limits) -> usize {
        let number = self.endpoints.len();
        let seed = [number as u8 + 1; 16];
        let node = NodeId::new(number as u64 + 1).expect("not zero");
        let config = Config {
            limits,
            executor,
            schemes: Schemes::new(["mem"]),
            ..Config::default()
        };
        let seeds = Seeds {
            tokens: seed,
            cookies: seed,
        };
        let mut endpoint = Endpoint::new(config, node, Some(at(number)), seeds);
        let served = endpoint.serve(Arc::clone(&self.method), Serving::default());
        assert_eq!(served, Ok(0));
        endpoint.set_time(self.now);
        self.endpoints.push(endpoint);
        number
    }

    /// The server.
    pub(crate) fn server(&mut self) -> &mut Endpoint {
        &mut self.endpoints[1]
    }

    /// How many handlers of the server run, and how many requests wait there.
    pub(crate) fn load(&self) -> (usize, usize) {
        let load = self.endpoints[1].load();
        (load.running, load.waiting)
    }

    /// A call of endpoint 0 with one request to the server.
    pub(crate) fn call(&mut self, what: &str) -> CallKey {
        self.call_with(what, 1, &CallOptions::default())
    }

    pub(crate) fn call_with(&mut self, what: &str, to: usize, options: &CallOptions) -> CallKey {
        let client = &mut self.endpoints[0];
        let key = client.begin(options).expect("there is room");
        let payload = Bytes::copy_from_slice(what.as_bytes());
        client
            .send(key, &at(to), &self.method, payload)
            .expect("it is sent");
        client.close_call(key);
        self.settle();
        key
    }

    /// What was heard of a call of endpoint 0.
    pub(crate) fn heard(&self, call: CallKey) -> &Heard {
        static NOTHING: Heard = Heard {
            answers: Vec::new(),
            statuses: Vec::new(),
            trace: None,
            outcome: None,
        };
        self.heard.get(&(0, call)).unwrap_or(&NOTHING)
    }

    /// The only status that a call got.
    pub(crate) fn status(&self, call: CallKey) -> &Status {
        let [status] = &self.heard(call).statuses[..] else {
            panic!("{:?}", self.heard(call));
        };
        status
    }

    /// What is to run next at the server, if anything.
    pub(crate) fn next_run(&mut self) -> Option<RequestKey> {
        let runs = self.runs.entry(1).or_default();
        (!runs.is_empty()).then(|| runs.remove(0))
    }

    /// The server begins to handle what is next: its key and payload.
    pub(crate) fn take(&mut self) -> (RequestKey, String) {
        let key = self.next_run().expect("something is to run");
        let incoming = self.server().take_request(key).expect("it was not stopped");
        (
            key,
            String::from_utf8(incoming.payload.to_vec()).expect("text"),
        )
    }

    /// The server handles what is next, by an answer that says the same: what it was.
    pub(crate) fn run(&mut self) -> String {
        let (key, what) = self.take();
        self.answer(key, &what);
        what
    }

    /// A handler of the server answers, and is done.
    pub(crate) fn answer(&mut self, key: RequestKey, what: &str) {
        let payload = Bytes::copy_from_slice(what.as_bytes());
        let sent = self.server().respond(key, payload);
        self.server().returned(key, sent.map_err(Status::from));
        self.settle();
    }

    /// So much time passes, and what is due is done everywhere.
    pub(crate) fn pass(&mut self, time: Duration) {
        self.pass_at(time, &[0, 1, 2]);
        self.settle();
    }

    /// So much time passes, step by step.
    pub(crate) fn pass_slowly(&mut self, time: Duration) {
        let steps = time.as_millis() / 100;
        (0..steps).for_each(|_| self.pass(100 * MS));
    }

    /// So much time passes, but only these endpoints do what is due, and nothing is carried.
    pub(crate) fn pass_at(&mut self, time: Duration, those: &[usize]) {
        self.now += time;
        for (number, endpoint) in self.endpoints.iter_mut().enumerate() {
            if those.contains(&number) {
                endpoint.set_time(self.now);
                while endpoint.poll_timeout().is_some_and(|due| due <= self.now) {
                    endpoint.handle_timeout();
                }
            }
        }
        for number in those {
            if *number < self.endpoints.len() {
                self.follow(*number);
            }
        }
    }

    /// Does what endpoints want done, and carries what they send, until nothing more comes of it.
    pub(crate) fn settle(&mut self) {
        loop {
            for number in 0..self.endpoints.len() {
                self.follow(number);
            }
            let mut input = std::mem::take(&mut self.input);
            let unread = |(number, _): &End| self.deaf.contains(number);
            self.input = input.extract_if(.., |end, _| unread(end)).collect();
            let ended = std::mem::take(&mut self.ended);
            if input.values().all(|bytes| bytes.is_empty()) && ended.is_empty() {
                return;
            }
            for ((number, conn), mut bytes) in input {
                while self.endpoints[number].handle_input(conn, &mut bytes) == InputOutcome::More {}
                assert!(bytes.is_empty() || self.ends, "whole frames are carried");
            }
            for (number, conn) in ended {
                self.endpoints[number].handle_ended(conn, &mut BytesMut::new(), StreamEnd::Closed);
            }
        }
    }

    fn follow(&mut self, number: usize) {
        while let Some(output) = self.endpoints[number].poll_output() {
            match output {
                Output::Run(key) => self.runs.entry(number).or_default().push(key),
                Output::Call(call) => self.hear(number, call),
                Output::Stopped(key, status) => self.stopped.push((key, *status)),
                Output::Stuck(handler) => self.stuck.push(*handler),
                Output::Dial(conn, to) => self.dial((number, conn), &to),
                Output::Write(conn) => self.write((number, conn)),
                Output::Close(conn, _) if !self.others.contains_key(&(number, conn)) => {}
                Output::Close(conn, closed) if self.ends => {
                    let other = self.others[&(number, conn)];
                    let input = self.input.entry(other).or_default();
                    input.extend_from_slice(&closed.last_words);
                    self.ended.push(other);
                }
                Output::Close(conn, closed) => panic!("{conn:?} of {number} has ended: {closed:?}"),
                _ => {} // nothing is dialled over UDP, and the tests look by themselves
            }
        }
    }

    fn hear(&mut self, number: usize, call: CallKey) {
        let heard = self.heard.entry((number, call)).or_default();
        loop {
            match self.endpoints[number].next_answer(call) {
                Next::Answer(answer) => match answer.payload() {
                    Ok(payload) => heard.answers.push(payload),
                    Err(CallError::Status(status)) => heard.statuses.push(status),
                    Err(error) => panic!("{error}"),
                },
                Next::Trace(trace) => heard.trace = Some(trace),
                Next::Ended(outcome) => return heard.outcome = Some(outcome),
                Next::Pending => return,
            }
        }
    }

    fn dial(&mut self, from: End, to: &Address) {
        let number = (0..self.endpoints.len()).find(|number| at(*number) == *to);
        let Some(number) = number else {
            let (server, reason) = (to.clone(), "nobody is there".to_owned());
            let why = ConnectError::Refused { server, reason };
            return self.endpoints[from.0].handle_dial_failed(from.1, why);
        };
        let there = (number, self.endpoints[number].handle_accepted());
        self.others.insert(from, there);
        self.others.insert(there, from);
        self.dials += 1;
    }

    fn write(&mut self, from: End) {
        let endpoint = &mut self.endpoints[from.0];
        let Some(other) = self.others.get(&from) else {
            return; // nobody was there
        };
        let input = self.input.entry(*other).or_default();
        loop {
            let written = endpoint.output(from.1);
            input.extend_from_slice(written);
            let written = written.len();
            if !endpoint.advance(from.1, written) {
                break;
            }
        }
        endpoint.handle_written(from.1);
    }
}

/// Where the endpoint with this number is reached.
pub(crate) fn at(number: usize) -> Address {
    format!("mem://{number}").parse().expect("an address")
}
