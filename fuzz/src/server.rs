//! The server half: records and handlers, where anything may arrive at any time.

use std::time::Duration;

use bytes::Bytes;
use wallaby_proto::call::records::{
    Action, Admission, Origin, Output, RecordLimits, Records, Remembered, Sent, Session, Ticket,
};
use wallaby_proto::call::server::{Inherited, Outbound, Server, undelivered};
use wallaby_proto::wire::{Child, MethodRef, ReplyTo};
use wallaby_proto::{Code, RequestId, Status};

use crate::choices::Choices;
use crate::things::{address, call, child, node, ping, request, request_id};

struct Host {
    records: Records,
    limits: RecordLimits,
    handlers: Vec<(Ticket, Server<Child>)>,
    /// Messages that have no place in a session's output yet.
    unplaced: Vec<(Ticket, Sent)>,
    now: Duration,
    mark: u64,
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
        records: Records::new(limits, [3; 16]),
        limits,
        handlers: Vec::new(),
        unplaced: Vec::new(),
        now: Duration::ZERO,
        mark: 0,
    };
    while !choices.is_empty() {
        host.step(&mut choices);
        host.settle();
    }
    host.end();
}

fn origin(choices: &mut Choices<'_>) -> Origin {
    let number = choices.below(8);
    Origin {
        session: Session(u64::from(number)),
        peer: node(u64::from(number / 2)),
        transit: match choices.once_in(4) {
            true => choices.time(),
            false => Duration::ZERO,
        },
    }
}

impl Host {
    fn step(&mut self, choices: &mut Choices<'_>) {
        let initiator = node(u64::from(choices.below(4)));
        let call = call(initiator, 1 + u64::from(choices.below(6)));
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
                self.now += choices.time();
                self.time_out();
            }
            8 => {
                let number = choices.below(8);
                let (session, peer) = (Session(u64::from(number)), node(u64::from(number / 2)));
                match choices.once_in(2) {
                    true => self.records.session_ended(session, self.now),
                    false => self.records.session_opened(session, peer),
                }
            }
            9 => {
                let session = Session(u64::from(choices.below(8)));
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
            let session = Session(u64::from(choices.below(8)));
            Output {
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
        place: Option<Output>,
        fails: bool,
    ) {
        let now = self.now;
        let sent = match message {
            Outbound::Response(response) => {
                self.records
                    .response_released(ticket, &response, place, now);
                Sent::Response(response.index)
            }
            Outbound::End(end) => {
                self.records.end_released(ticket, &end, place, now);
                Sent::End
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
                        self.unplaced.push((ticket, Sent::Response(answer.index)));
                    }
                    return;
                }
                Sent::Delegation
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
        let session = Session(u64::from(choices.below(8)));
        let mark = self.mark;
        self.records.placed(ticket, sent, Output { session, mark });
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
                    let sent = Sent::Response(response.index);
                    self.records.placed(ticket, sent, Output { session, mark });
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
        for (ticket, mut server) in std::mem::take(&mut self.handlers) {
            self.fail(ticket, &mut server);
        }
        for (ticket, sent) in std::mem::take(&mut self.unplaced) {
            self.records.dropped(ticket, sent);
        }
        (0..8).for_each(|number| self.records.session_ended(Session(number), self.now));
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
