//! The server half: records and handlers, where anything may arrive at any time.

use std::time::Duration;

use bytes::Bytes;
use wallaby_proto::call::records::{
    Action, Admission, Origin, OutputMark, RecordLimits, Records, ReleasedMessage, Remembered,
    SessionNumber, Ticket,
};
use wallaby_proto::call::server::{Inherited, Outbound, Server, undelivered};
use wallaby_proto::wire::{Child, MethodRef, Ping, ReplyTo, Request};
use wallaby_proto::{Code, NodeId, RequestId, Status, Token};

use crate::choices::Choices;
use crate::things::{address, call, child, node, ping, request, request_id};

struct Host {
    records: Records,
    limits: RecordLimits,
    handlers: Vec<(Ticket, Server<Child>)>,
    /// Messages that have no place in a session's output yet.
    unplaced: Vec<(Ticket, ReleasedMessage)>,
    now: Duration,
    mark: u64,
    victim: Option<Victim>,
}

/// An initiator with a call, whose node id others claim. They do not know the call's token.
struct Victim {
    request: Request,
    ticket: Ticket,
    handler: Server<Child>,
}

const VICTIM: SessionNumber = SessionNumber(20);

/// While its initiator has asked after it within so long, nobody gives a request up.
const PATIENCE: Duration = Duration::from_millis(500);

fn victim() -> NodeId {
    node(4)
}

fn home() -> Origin {
    Origin {
        session: VICTIM,
        peer: victim(),
        transit: Duration::ZERO,
    }
}

pub(crate) fn run(bytes: &[u8]) {
    let mut choices = Choices::new(bytes);
    let limits = match choices.below(3) {
        0 => RecordLimits::default(),
        1 => RecordLimits {
            requests: 4,
            initiators: 2,
            kept_bytes: 1500,
            ..RecordLimits::default()
        },
        _ => RecordLimits {
            requests: 20,
            kept_bytes: 0,
            ..RecordLimits::default()
        },
    };
    let mut host = Host {
        records: Records::new(limits),
        limits,
        handlers: Vec::new(),
        unplaced: Vec::new(),
        now: Duration::ZERO,
        mark: 0,
        victim: None,
    };
    host.begin(&mut choices);
    while !choices.is_empty() {
        host.step(&mut choices);
        host.settle();
        host.ask();
    }
    host.call_again();
    host.end();
}

/// Who is at the other end of a session, as it says itself: two of them claim to be the victim.
fn peer(session: u32) -> NodeId {
    node(u64::from(session / 2))
}

fn origin(choices: &mut Choices<'_>) -> Origin {
    let number = choices.below(10);
    Origin {
        session: SessionNumber(u64::from(number)),
        peer: peer(number),
        transit: match choices.once_in(4) {
            true => choices.time(),
            false => Duration::ZERO,
        },
    }
}

impl Host {
    fn step(&mut self, choices: &mut Choices<'_>) {
        let initiator = node(u64::from(choices.below(5)));
        let far = if choices.once_in(8) { 1 << 40 } else { 1 };
        let call = call(initiator, far + u64::from(choices.below(6)));
        match choices.below(12) {
            0 | 1 => {
                let id = request_id(choices, call);
                let mut request = request(choices, call, id);
                let origin = origin(choices);
                match self.records.admit(&request, origin, self.now) {
                    Admission::Accepted(ticket) => {
                        self.handlers.push((ticket, Server::new(&mut request)));
                    }
                    Admission::Refused(status) => {
                        let answer = undelivered(&request, &status);
                        assert!(answer.last && answer.status);
                    }
                    Admission::Duplicate => {}
                }
            }
            2 | 3 => {
                let (ping, origin) = (ping(choices, call), origin(choices));
                self.records.handle_ping(&ping, origin, self.now);
            }
            4..=6 => self.act(choices),
            7 => {
                let passed = choices.time();
                self.now += passed;
                if passed >= PATIENCE {
                    self.victim_leaves();
                }
                self.time_out();
            }
            8 => {
                let number = choices.below(10);
                let (session, peer) = (SessionNumber(u64::from(number)), peer(number));
                match choices.once_in(2) {
                    true => self.records.session_ended(session, self.now),
                    false => self.records.session_opened(session, peer),
                }
            }
            9 => {
                let session = SessionNumber(u64::from(choices.below(8)));
                match choices.once_in(3) {
                    true => self.records.confirmed(session, self.mark),
                    false => self.records.written(session, self.mark),
                }
            }
            10 => self.place(choices),
            _ => {
                let number = choices.below(4) as usize;
                if let Some((ticket, _)) = self.handlers.get(number) {
                    self.records.progressed(*ticket, self.now);
                }
            }
        }
    }

    /// The victim makes a call.
    fn begin(&mut self, choices: &mut Choices<'_>) {
        self.records.session_opened(VICTIM, victim());
        let call = call(victim(), 3);
        let mut request = Request {
            token: Token::new(1234),
            oldest: 3,
            depth: 0,
            base: 0,
            manifest: None,
            reply_to: ReplyTo::Peer,
            options: None,
            ..request(choices, call, RequestId::FIRST)
        };
        let admission = self.records.admit(&request, home(), self.now);
        let Admission::Accepted(ticket) = admission else {
            panic!("{admission:?}")
        };
        let handler = Server::new(&mut request);
        self.victim = Some(Victim {
            request,
            ticket,
            handler,
        });
    }

    /// It does not ask any more: its request is one like others.
    fn victim_leaves(&mut self) {
        let left = self.victim.take();
        self.handlers
            .extend(left.map(|victim| (victim.ticket, victim.handler)));
    }

    /// It asks after its request, which must be running.
    fn ask(&mut self) {
        let Some(victim) = &self.victim else { return };
        let request = &victim.request;
        let ping = Ping {
            call: request.call,
            token: request.token,
            request: request.id,
            abort: false,
            children_from: 0,
            missing: Vec::new(),
            shows: false,
        };
        assert!(self.records.handle_ping(&ping, home(), self.now));
        while let Some(action) = self.records.poll() {
            if let Action::Pong { session, pong, .. } = action
                && session == VICTIM
            {
                let progress = pong.progress.expect("it is known");
                assert!(!progress.finished && !progress.aborted);
                return;
            }
        }
        panic!("no pong");
    }

    /// Nothing that others have said keeps it from making another call.
    fn call_again(&mut self) {
        let Some(victim) = &self.victim else { return };
        let again = self.records.admit(&victim.request, home(), self.now);
        assert!(matches!(again, Admission::Duplicate), "{again:?}");
        let mut request = Request {
            call: call(crate::server::victim(), 4),
            ..victim.request.clone()
        };
        let roomy = self.limits.requests > 100;
        match self.records.admit(&request, home(), self.now) {
            Admission::Accepted(ticket) => self.handlers.push((ticket, Server::new(&mut request))),
            refused => assert!(!roomy, "{refused:?}"),
        }
    }

    /// What others are told of the victim's call: nothing.
    fn check(&self, action: &Action) {
        let Some(victim) = &self.victim else { return };
        let request = &victim.request;
        match action {
            Action::Stop { ticket, reason, .. } => {
                assert_ne!(*ticket, victim.ticket, "{reason:?}");
            }
            Action::Pong { session, pong, .. } if pong.call == request.call => {
                let told = pong.progress.is_some() && pong.token == Some(request.token);
                assert!(*session == VICTIM || !told, "{pong:?}");
            }
            Action::Announce { session, pong, .. } if pong.token == Some(request.token) => {
                assert_eq!(*session, VICTIM);
            }
            _ => {}
        }
    }

    /// A handler does something.
    fn act(&mut self, choices: &mut Choices<'_>) {
        if self.handlers.is_empty() {
            return;
        }
        let index = choices.byte() as usize % self.handlers.len();
        let (ticket, server) = &mut self.handlers[index];
        let ticket = *ticket;
        let payload = Bytes::from(vec![1; 40 * usize::from(choices.byte())]);
        let to = child(choices);
        let mut released = Vec::new();
        match choices.below(8) {
            0 | 1 => released.extend(server.reply(payload)),
            2 | 3 => released.extend(server.delegate(to, payload)),
            4 => released.extend(server.flush()),
            5 => released.extend(server.respond(payload, None)),
            6 => released.extend(server.forward(to, payload, None)),
            _ => released.push(server.finish(None)),
        }
        let place = choices.once_in(2).then(|| {
            self.mark += 1;
            let session = SessionNumber(u64::from(choices.below(8)));
            OutputMark {
                session,
                mark: self.mark,
            }
        });
        for message in released {
            self.release(ticket, message, place, choices.once_in(4));
        }
        self.handlers.retain(|(_, server)| !server.has_ended());
    }

    fn release(
        &mut self,
        ticket: Ticket,
        message: Outbound<Child>,
        place: Option<OutputMark>,
        fails: bool,
    ) {
        let now = self.now;
        let sent = match message {
            Outbound::Response(response) => {
                self.records
                    .response_released(ticket, &response, place, now);
                ReleasedMessage::Response(response.index)
            }
            Outbound::End(end) => {
                self.records.end_released(ticket, &end, place, now);
                ReleasedMessage::End
            }
            Outbound::Request(delegated) => {
                let to = delegated.to.clone();
                let released =
                    self.records
                        .delegation_released(ticket, &delegated, to.clone(), place, now);
                if released.is_err() {
                    return;
                }
                if fails && place.is_none() {
                    let server = self.handlers.iter().find(|handler| handler.0 == ticket);
                    let Some((_, server)) = server else { return };
                    let inherited = Inherited {
                        reply_to: ReplyTo::Relay,
                        deadline: None,
                        oldest: self.records.oldest(ticket).unwrap_or(1),
                        options: None,
                    };
                    let (call, token) = (server.call(), server.token());
                    let (_, request) =
                        delegated.into_request(call, token, MethodRef::Number(0), inherited);
                    let answer = undelivered(&request, &Status::new(Code::Unavailable, "away"));
                    let own = Child {
                        server: address(9),
                        node: None,
                    };
                    let ticket = self
                        .records
                        .delegation_undelivered(ticket, &request, own, now);
                    if let Some(ticket) = ticket {
                        self.records.response_released(ticket, &answer, None, now);
                        self.unplaced
                            .push((ticket, ReleasedMessage::Response(answer.index)));
                    }
                    return;
                }
                ReleasedMessage::Delegation
            }
        };
        if place.is_none() {
            self.unplaced.push((ticket, sent));
        }
    }

    /// A message gets its place in a session's output, or none.
    fn place(&mut self, choices: &mut Choices<'_>) {
        if self.unplaced.is_empty() {
            return;
        }
        let index = choices.byte() as usize % self.unplaced.len();
        let (ticket, sent) = self.unplaced.swap_remove(index);
        if choices.once_in(4) {
            return self.records.dropped(ticket, sent);
        }
        self.mark += 1;
        let session = SessionNumber(u64::from(choices.below(8)));
        let mark = self.mark;
        self.records
            .placed(ticket, sent, OutputMark { session, mark });
    }

    fn time_out(&mut self) {
        self.records.handle_timeout(self.now);
        if let Some(next) = self.records.next_timeout() {
            assert!(
                next > self.now,
                "it is {:?}, and something is due at {next:?}",
                self.now
            );
        }
    }

    fn settle(&mut self) {
        while let Some(action) = self.records.poll() {
            drop(format!("{action:?}"));
            self.check(&action);
            match action {
                Action::Stop { ticket, .. } => {
                    let stopped = self.handlers.iter().position(|handler| handler.0 == ticket);
                    let stopped = stopped.expect("only what runs is stopped");
                    let (ticket, mut server) = self.handlers.swap_remove(stopped);
                    self.fail(ticket, &mut server);
                }
                Action::Resend {
                    ticket,
                    response,
                    session,
                } => {
                    assert_ne!(
                        response.request,
                        RequestId {
                            path: wallaby_proto::Path::ROOT,
                            hop: 0
                        }
                    );
                    let mark = self.mark;
                    let sent = ReleasedMessage::Response(response.index);
                    self.records
                        .placed(ticket, sent, OutputMark { session, mark });
                }
                Action::Pong { .. } | Action::Announce { .. } => {}
            }
        }
        let remembered = self.records.remembered();
        assert!(
            remembered.requests <= self.limits.requests,
            "{remembered:?}"
        );
        assert!(
            remembered.initiators <= self.limits.initiators,
            "{remembered:?}"
        );
        assert!(
            remembered.kept_bytes <= self.limits.kept_bytes,
            "{remembered:?}"
        );
    }

    fn fail(&mut self, ticket: Ticket, server: &mut Server<Child>) {
        let last = server.fail(&Status::new(Code::Cancelled, "stopped"), None);
        self.release(ticket, last, None, false);
    }

    /// All handlers end, all is written: in the end all is forgotten.
    fn end(&mut self) {
        self.victim_leaves();
        for (ticket, mut server) in std::mem::take(&mut self.handlers) {
            self.fail(ticket, &mut server);
        }
        for (ticket, sent) in std::mem::take(&mut self.unplaced) {
            self.records.dropped(ticket, sent);
        }
        let sessions = (0..10).map(SessionNumber).chain([VICTIM]);
        sessions.for_each(|session| self.records.session_ended(session, self.now));
        self.settle();
        for _ in 0..20_000 {
            let Some(next) = self.records.next_timeout() else {
                break;
            };
            self.now = self.now.max(next);
            self.time_out();
            self.settle();
        }
        assert_eq!(self.records.remembered(), Remembered::default());
    }
}
