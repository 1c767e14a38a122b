//! One server's records, played to by hand.

use std::time::Duration;

use bytes::Bytes;
use wallaby_proto::call::records::{
    ConnId, Judgement, MessageOrigin, OutputMark, RecordAction, RecordLimits, Records, Ticket,
};
use wallaby_proto::call::server::{Delegated, Outbound, ServerHalf};
use wallaby_proto::wire::{
    MessageOptions, MethodRef, Ping, PingSettings, Pong, Progress, ReplyTo, Request,
};
use wallaby_proto::{CallId, NodeId, RequestId, Token};

use crate::liveness::desk::{at, child, node, token};

/// A server's records, and the handlers that it runs.
pub(crate) struct Shelf {
    pub(crate) records: Records,
    pub(crate) now: u64,
}

/// A request that was accepted.
pub(crate) struct Handled {
    pub(crate) ticket: Ticket,
    pub(crate) server: ServerHalf<u64>,
    pub(crate) request: Request,
}

/// The connection of the initiator, node 1.
pub(crate) const HOME: ConnId = ConnId::from_number(1);

pub(crate) fn limits() -> RecordLimits {
    RecordLimits {
        ping: PingSettings {
            period: Duration::from_millis(100),
            timeout: Duration::from_millis(500),
        },
        ..RecordLimits::default()
    }
}

pub(crate) fn origin(conn: u64, peer: NodeId) -> MessageOrigin {
    MessageOrigin {
        conn: ConnId::from_number(conn),
        peer,
        transit: Duration::ZERO,
    }
}

/// The initiator's own connection.
pub(crate) fn home() -> MessageOrigin {
    origin(HOME.number(), node(1))
}

pub(crate) fn request(sequence: u64, id: &str) -> Request {
    Request {
        call: CallId {
            initiator: node(1),
            sequence,
        },
        token: token(),
        id: at(id),
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
    }
}

pub(crate) fn with_options(request: Request, set: impl FnOnce(&mut MessageOptions)) -> Request {
    let mut options = MessageOptions::default();
    set(&mut options);
    Request {
        options: Some(Box::new(options)),
        ..request
    }
}

impl Shelf {
    pub(crate) fn new() -> Self {
        Self::with(limits())
    }

    pub(crate) fn with(limits: RecordLimits) -> Self {
        let mut records = Records::new(limits);
        records.conn_opened(HOME, node(1));
        Self { records, now: 0 }
    }

    pub(crate) fn time(&self) -> Duration {
        Duration::from_millis(self.now)
    }

    pub(crate) fn admit(&mut self, request: &Request) -> Judgement {
        let now = self.time();
        self.records.admit(request, home(), now)
    }

    pub(crate) fn accept(&mut self, mut request: Request) -> Handled {
        match self.admit(&request) {
            Judgement::Accepted(ticket) => Handled {
                ticket,
                server: ServerHalf::new(&mut request),
                request,
            },
            other => panic!("{other:?}"),
        }
    }

    /// Notes what a handler released; all of it goes out on the initiator's connection, with this mark.
    pub(crate) fn release(
        &mut self,
        ticket: Ticket,
        sent: impl IntoIterator<Item = Outbound<u64>>,
        mark: u64,
    ) {
        let now = self.time();
        let output = Some(OutputMark { conn: HOME, mark });
        for message in sent {
            match message {
                Outbound::Response(response) => {
                    self.records
                        .response_released(ticket, &response, output, now);
                }
                Outbound::End(end) => self.records.end_released(ticket, &end, output, now),
                Outbound::Request(delegated) => {
                    self.delegate(ticket, &delegated)
                        .expect("it is not aborted");
                }
            }
        }
    }

    /// Notes a delegation; it has been written out.
    pub(crate) fn delegate(
        &mut self,
        ticket: Ticket,
        delegated: &Delegated<u64>,
    ) -> Result<(), wallaby_proto::call::records::Frozen> {
        let (now, to) = (self.time(), child(delegated.to));
        let output = Some(OutputMark {
            conn: HOME,
            mark: 0,
        });
        self.records
            .delegation_released(ticket, delegated, to, output, now)
    }

    /// Accepts a request and answers it; the answer goes out with this mark.
    pub(crate) fn answer(&mut self, request: Request, mark: u64) -> Handled {
        let mut handled = self.accept(request);
        let sent = handled.server.respond("answer".into(), None);
        self.release(handled.ticket, sent, mark);
        handled
    }

    pub(crate) fn actions(&mut self) -> Vec<RecordAction> {
        std::iter::from_fn(|| self.records.poll()).collect()
    }

    /// Lets time pass, timer by timer.
    pub(crate) fn until(&mut self, time: u64) -> Vec<(u64, RecordAction)> {
        let mut actions = Vec::new();
        while let Some(due) = self.records.next_timeout() {
            let due = due.as_micros().div_ceil(1000) as u64;
            if due > time {
                break;
            }
            self.now = due.max(self.now);
            let now = self.time();
            self.records.handle_timeout(now);
            let told = self.actions();
            assert!(actions.len() < 1000, "it does not come to rest");
            actions.extend(told.into_iter().map(|action| (due, action)));
        }
        self.now = time;
        actions
    }

    pub(crate) fn ping(&mut self, sequence: u64, id: &str) -> Pong {
        self.ask(ping(sequence, id)).0
    }

    /// The answer to a ping, and what else is to be done.
    pub(crate) fn ask(&mut self, ping: Ping) -> (Pong, Vec<RecordAction>) {
        self.ask_over(ping, home())
    }

    pub(crate) fn ask_over(
        &mut self,
        ping: Ping,
        origin: MessageOrigin,
    ) -> (Pong, Vec<RecordAction>) {
        let now = self.time();
        self.records.handle_ping(&ping, origin, now);
        let mut pong = None;
        let mut others = Vec::new();
        for action in self.actions() {
            match action {
                RecordAction::Pong {
                    conn, pong: told, ..
                } => {
                    assert_eq!(conn, origin.conn);
                    pong = Some(told);
                }
                other => others.push(other),
            }
        }
        (pong.expect("every ping is answered"), others)
    }

    pub(crate) fn known(&mut self, sequence: u64, id: &str) -> Progress {
        self.ping(sequence, id).progress.expect("it is known")
    }
}

pub(crate) fn ping(sequence: u64, id: &str) -> Ping {
    Ping {
        call: CallId {
            initiator: node(1),
            sequence,
        },
        token: token(),
        request: at(id),
        abort: false,
        children_from: 0,
        missing: vec![],
        shows: false,
    }
}

pub(crate) fn abort(sequence: u64, id: &str) -> Ping {
    Ping {
        abort: true,
        ..ping(sequence, id)
    }
}

pub(crate) fn stopped(actions: &[RecordAction]) -> Vec<RequestId> {
    actions
        .iter()
        .filter_map(|action| match action {
            RecordAction::Stop { request, .. } => Some(*request),
            _ => None,
        })
        .collect()
}

pub(crate) fn announced(actions: &[(u64, RecordAction)]) -> Vec<(u64, RequestId)> {
    actions
        .iter()
        .filter_map(|(time, action)| match action {
            RecordAction::Announce { pong, .. } => Some((*time, pong.request)),
            _ => None,
        })
        .collect()
}

pub(crate) fn other_token(request: Request) -> Request {
    Request {
        token: Token::new(666),
        ..request
    }
}
