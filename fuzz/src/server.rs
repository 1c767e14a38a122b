//! Requests and their handlers, to whose endpoint anything may be said at any time.

use std::time::Duration;

use bytes::Bytes;
use wallaby_proto::call::records::Remembered;
use wallaby_proto::endpoint::{Config, ConnId, Output, RequestKey};
use wallaby_proto::wire::{Message, MethodRef, Ping, ReplyTo, Request};
use wallaby_proto::{Code, NodeId, RequestId, Status, Token};

use crate::alone::{Alone, LONG, any};
use crate::choices::Choices;
use crate::things::{call, child, node, ping, request, request_id};

/// While its initiator has asked after it within so long, nobody gives a request up.
const PATIENCE: Duration = Duration::from_millis(500);

/// When nobody says anything, all is forgotten after so long.
const REST: Duration = Duration::from_secs(86_400);

struct Host {
    alone: Alone,
    config: Config,
    /// Requests that are put aside.
    handlers: Vec<RequestKey>,
    victim: Option<Victim>,
}

/// An initiator with a call, whose node id others claim. They do not know the call's token.
struct Victim {
    conn: ConnId,
    request: Request,
    key: RequestKey,
}

fn victim() -> NodeId {
    node(4)
}

pub(crate) fn run(bytes: &[u8]) {
    let mut choices = Choices::new(bytes);
    let mut config = Config::default();
    (config.remembered, config.kept_bytes) = match choices.below(3) {
        0 => (config.remembered, config.kept_bytes),
        1 => (4, 1500),
        _ => (20, 0),
    };
    let mut host = Host {
        alone: Alone::new(node(8), config.clone()),
        config,
        handlers: Vec::new(),
        victim: None,
    };
    host.begin(&mut choices);
    for number in 0..10 {
        host.alone.connect(claimed(number));
    }
    while !choices.is_empty() {
        host.step(&mut choices);
        host.settle();
        host.ask();
    }
    host.call_again();
    host.end();
}

/// Who is at the other end of a connection, as it says itself: two of them claim to be the victim.
fn claimed(number: u32) -> NodeId {
    node(u64::from(number / 2))
}

impl Host {
    fn step(&mut self, choices: &mut Choices<'_>) {
        let initiator = node(u64::from(choices.below(5)));
        let far = if choices.once_in(8) { 1 << 40 } else { 1 };
        let call = call(initiator, far + u64::from(choices.below(6)));
        match choices.below(12) {
            0..=2 => {
                let id = request_id(choices, call);
                let mut request = request(choices, call, id);
                // From whom a request is that says so has its place.
                if request.reply_to == ReplyTo::Peer && choices.once_in(2) {
                    request.depth = 0;
                }
                request.payload = Bytes::from(vec![1; 40 * usize::from(choices.byte() % 4)]);
                self.say(choices, Message::Request(request));
            }
            3 | 4 => {
                let ping = Message::Ping(ping(choices, call));
                self.say(choices, ping);
            }
            5..=7 => self.act(choices),
            8 | 9 => {
                let passed = choices.time();
                if passed >= PATIENCE {
                    self.victim_leaves();
                }
                self.alone.pass(passed);
            }
            10 => match (choices.once_in(2), self.any_peer(choices)) {
                (true, Some(conn)) => self.alone.cut(conn),
                _ => drop(self.alone.connect(claimed(choices.below(10)))),
            },
            _ => {
                if let Some(key) = any(&self.handlers, choices) {
                    self.alone.endpoint.progress(key);
                }
            }
        }
    }

    /// One of the connections, but not the victim's.
    fn any_peer(&self, choices: &mut Choices<'_>) -> Option<ConnId> {
        let own = self.victim.as_ref().map(|victim| victim.conn);
        self.alone.any_peer(choices, own)
    }

    fn say(&mut self, choices: &mut Choices<'_>, message: Message) {
        if let Some(conn) = self.any_peer(choices) {
            self.alone.say(conn, message);
        }
    }

    /// A handler goes on, and waits again or ends.
    fn act(&mut self, choices: &mut Choices<'_>) {
        let Some(key) = any(&self.handlers, choices) else {
            return;
        };
        let endpoint = &mut self.alone.endpoint;
        if !endpoint.resume(key) {
            return;
        }
        let payload = Bytes::from(vec![1; 40 * usize::from(choices.byte())]);
        let (to, method) = (child(choices).server, &self.alone.method);
        let (sent, ends) = match choices.below(8) {
            0 | 1 => (endpoint.reply(key, payload), false),
            2 | 3 => (endpoint.delegate(key, to, method, payload), false),
            4 => (Ok(()), false),
            5 => (endpoint.respond(key, payload), true),
            6 => (endpoint.forward(key, to, method, payload), true),
            _ => (Ok(()), true),
        };
        let failed = choices.once_in(4);
        match sent.map_err(Status::from) {
            Ok(()) if !ends => endpoint.put_aside(key),
            Err(_) if !failed => endpoint.put_aside(key),
            sent => {
                endpoint.returned(key, sent);
                self.handlers.retain(|other| *other != key);
            }
        }
    }

    /// The victim makes a call.
    fn begin(&mut self, choices: &mut Choices<'_>) {
        let conn = self.alone.connect(victim());
        self.settle();
        let call = call(victim(), 3);
        let request = Request {
            token: Token::new(1234),
            oldest: 3,
            depth: 0,
            base: 0,
            manifest: None,
            reply_to: ReplyTo::Peer,
            deadline: Some(LONG),
            options: None,
            method: MethodRef::Number(0),
            ..request(choices, call, RequestId::FIRST)
        };
        self.alone.say(conn, Message::Request(request.clone()));
        self.settle();
        let key = self.handlers.pop().expect("nothing else is there");
        self.victim = Some(Victim { conn, request, key });
    }

    /// It does not ask any more: its request is one like others.
    fn victim_leaves(&mut self) {
        let left = self.victim.take();
        self.handlers.extend(left.map(|victim| victim.key));
    }

    /// It asks after its request, which must be running.
    fn ask(&mut self) {
        let Some(victim) = &self.victim else { return };
        let (conn, request) = (victim.conn, &victim.request);
        let ping = Ping {
            call: request.call,
            token: request.token,
            request: request.id,
            abort: false,
            children_from: 0,
            missing: Vec::new(),
            shows: false,
        };
        self.alone.say(conn, Message::Ping(ping));
        let heard = self.settle();
        let pong = heard.into_iter().find_map(|(to, message)| match message {
            Message::Pong(pong) if to == conn && !pong.announced => Some(pong),
            _ => None,
        });
        let progress = pong.expect("it is answered").progress;
        let progress = progress.expect("it is known");
        assert!(!progress.finished && !progress.aborted);
    }

    /// Nothing that others have said keeps it from making another call.
    fn call_again(&mut self) {
        let Some(victim) = &self.victim else { return };
        let (conn, request) = (victim.conn, victim.request.clone());
        let before = self.handlers.len();
        self.alone.say(conn, Message::Request(request.clone()));
        self.settle();
        assert_eq!(self.handlers.len(), before, "it runs twice");
        let again = Request {
            call: call(crate::server::victim(), 4),
            ..request
        };
        self.alone.say(conn, Message::Request(again));
        self.settle();
        let roomy = self.config.remembered > 100;
        assert!(!roomy || self.handlers.len() > before, "it is refused");
    }

    /// What others are told of the victim's call: nothing.
    fn check(&self, to: ConnId, message: &Message) {
        let Some(victim) = &self.victim else { return };
        let (call, token) = (victim.request.call, victim.request.token);
        if to == victim.conn || message.call() != call {
            return;
        }
        // Others make calls of the same name, with a token of their own.
        let vouch = token.vouch(call, self.alone.endpoint.node());
        let told = match message {
            Message::Pong(pong) if pong.progress.is_none() => pong.token == Some(token),
            message => message
                .token()
                .is_some_and(|shown| shown == token || shown == vouch),
        };
        assert!(!told, "{message:?}");
    }

    /// Follows what was said, and sees whether all holds; what peers heard.
    fn settle(&mut self) -> Vec<(ConnId, Message)> {
        for output in self.alone.settle() {
            match output {
                Output::Run(key) if self.alone.endpoint.take_request(key).is_ok() => {
                    self.alone.endpoint.put_aside(key);
                    self.alone.endpoint.returned(key, Ok(()));
                    self.handlers.push(key);
                }
                Output::Stopped(key, status) => {
                    let own = self.victim.as_ref().map(|victim| victim.key);
                    assert_ne!(Some(key), own, "{status}");
                    self.handlers.retain(|other| *other != key);
                }
                _ => {}
            }
        }
        let heard = std::mem::take(&mut self.alone.heard);
        heard
            .iter()
            .for_each(|(to, message)| self.check(*to, message));
        let Remembered {
            requests,
            kept_bytes,
            ..
        } = self.alone.endpoint.sizes().remembered;
        assert!(requests <= self.config.remembered, "{requests} requests");
        assert!(kept_bytes <= self.config.kept_bytes, "{kept_bytes} bytes");
        heard
    }

    /// Handlers and connections end, and then nothing but time happens: all is forgotten.
    fn end(&mut self) {
        self.victim_leaves();
        for key in std::mem::take(&mut self.handlers) {
            self.alone
                .endpoint
                .fail(key, &Status::new(Code::Unavailable, "away"));
        }
        self.settle();
        self.alone.cut_all();
        self.settle();
        let end = self.alone.now + REST;
        loop {
            let sizes = self.alone.endpoint.sizes();
            if sizes.remembered == Remembered::default() && sizes.requests == 0 {
                return;
            }
            let due = self.alone.endpoint.poll_timeout();
            let due = due.filter(|due| *due < end);
            let due = due.unwrap_or_else(|| panic!("it is not forgotten: {sizes:?}"));
            self.alone.pass(due.saturating_sub(self.alone.now));
            self.settle();
        }
    }
}
