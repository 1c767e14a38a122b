//! A server's endpoint: the real records and the real requests, driven as their documentation says.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use wallaby_proto::call::records::{
    ConnId, Judgement, MessageOrigin, OutputMark, RecordAction, RecordLimits, Records,
    ReleasedMessage, Remembered,
};
use wallaby_proto::call::server::{Delegated, Outbound, undelivered};
use wallaby_proto::endpoint::How;
use wallaby_proto::endpoint::server::{
    Destination, HandedOn, HandledRequest, RequestContext, Sending,
};
use wallaby_proto::wire::{Message, PingSettings, ReplyTo, Request};
use wallaby_proto::{Code, Facts, Status};

use crate::letter::{CLIENT, Letter, METHOD, address, child, node};
use crate::local::Machine;
use crate::plan::{Step, Tree};
use crate::scope::{PERIOD, Scope, Variant};

/// What happens at a server.
#[derive(Debug, Clone)]
pub(crate) enum Event {
    Receive {
        from: u8,
        letter: Letter,
        now: Duration,
    },
    /// The connection with this server, which has crashed, ended when all that came over it was read.
    PeerGone {
        peer: u8,
        now: Duration,
    },
    /// The handler in this slot goes on until it yields or ends.
    Act {
        slot: u8,
        now: Duration,
    },
    Tick {
        now: Duration,
    },
    /// The connection with the initiator ended, and there is a new one.
    Reconnected {
        now: Duration,
    },
    /// All connections ended, and then nothing but time happens.
    Left {
        now: Duration,
    },
}

#[derive(Debug)]
pub(crate) enum Effect {
    Send {
        to: u8,
        letter: Letter,
    },
    /// A handler of a request of the tree started.
    Started {
        request: u8,
        /// Although this server had been told to stop the call.
        stopped: bool,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct View {
    /// Where handlers run: a bit for each slot.
    pub(crate) running: u16,
    /// Nothing is remembered.
    pub(crate) forgotten: bool,
}

#[derive(Debug, Clone)]
pub(crate) struct Seed {
    pub(crate) tree: Arc<Tree>,
    /// The endpoints that handle the tree's requests.
    pub(crate) places: Vec<u8>,
    pub(crate) ping: PingSettings,
    /// How long messages may be under way.
    pub(crate) transit: Duration,
    pub(crate) variant: Variant,
}

impl Seed {
    pub(crate) fn of(scope: &Scope, tree: &Arc<Tree>) -> Self {
        let requests = 0..tree.handlers.len() as u8;
        Self {
            tree: tree.clone(),
            places: requests
                .map(|request| scope.endpoint(tree, request))
                .collect(),
            ping: Scope::ping(),
            transit: PERIOD * u32::from(scope.delay.unwrap_or(0)),
            variant: scope.variant,
        }
    }
}

/// Timers that may fire until all is forgotten.
const MOST_TIMERS: usize = 1000;

#[derive(Debug)]
pub(crate) struct Host {
    seed: Seed,
    records: Records,
    handlers: Vec<Option<Handler>>,
    /// Counts the connections with the initiator.
    connections: u64,
    /// It was told to stop the call.
    stopped: bool,
}

#[derive(Debug)]
struct Handler {
    handled: HandledRequest,
    request: u8,
    next: usize,
}

impl Machine for Host {
    type Seed = Seed;
    type Input = Event;
    type Output = Effect;
    type View = View;

    fn new(seed: &Seed) -> Self {
        let limits = RecordLimits {
            ping: seed.ping,
            kept_bytes: 4096,
            ..RecordLimits::default()
        };
        let mut records = Records::new(limits);
        let endpoints = seed.places.iter().copied().max().unwrap_or(0);
        for peer in CLIENT..=endpoints {
            records.conn_opened(conn(peer, 0), node(peer));
        }
        Self {
            seed: seed.clone(),
            records,
            handlers: Vec::new(),
            connections: 0,
            stopped: false,
        }
    }

    fn view(&self) -> View {
        let slots = (0..).zip(&self.handlers);
        let running = slots.filter(|(_, handler)| handler.is_some());
        View {
            running: running.map(|(slot, _)| 1 << slot).sum(),
            forgotten: self.records.remembered() == Remembered::default(),
        }
    }

    fn handle(&mut self, event: &Event) -> Vec<Effect> {
        let mut effects = Vec::new();
        let now = match event {
            Event::Receive { from, letter, now } => {
                self.receive(*from, &letter.message, *now, &mut effects);
                now
            }
            Event::Act { slot, now } => {
                self.act(usize::from(*slot), *now, &mut effects);
                now
            }
            Event::Tick { now } => {
                self.records.handle_timeout(*now);
                now
            }
            Event::Left { now } => {
                self.leave(*now);
                now
            }
            Event::PeerGone { peer, now } => {
                if self.seed.variant != Variant::EndsUnnoticed {
                    self.records.conn_ended(conn(*peer, 0), *now);
                }
                now
            }
            Event::Reconnected { now } => {
                self.records.conn_ended(self.to_client(), *now);
                self.connections += 1;
                self.records.conn_opened(self.to_client(), node(CLIENT));
                now
            }
        };
        self.settle(*now, &mut effects);
        effects
    }
}

fn conn(peer: u8, connection: u64) -> ConnId {
    ConnId::from_number(u64::from(peer) + 100 * connection)
}

fn cancelled(text: impl ToString) -> Status {
    Status::new(Code::Cancelled, text.to_string())
}

impl Host {
    fn to_client(&self) -> ConnId {
        conn(CLIENT, self.connections)
    }

    fn receive(&mut self, from: u8, message: &Message, now: Duration, effects: &mut Vec<Effect>) {
        let origin = MessageOrigin {
            conn: match from {
                CLIENT => self.to_client(),
                peer => conn(peer, 0),
            },
            peer: node(from),
            transit: self.seed.transit,
        };
        match message {
            Message::Request(request) => self.admit(request.clone(), origin, now, effects),
            Message::Ping(ping) => {
                self.stopped |= ping.abort;
                let runs = self.handlers.iter().any(Option::is_some);
                if ping.abort && !runs && self.seed.variant == Variant::AbortsForgotten {
                    return;
                }
                self.records.handle_ping(ping, origin, now);
            }
            _ => {}
        }
    }

    fn leave(&mut self, mut now: Duration) {
        let peers = CLIENT..=self.seed.places.iter().copied().max().unwrap_or(0);
        for connection in 0..=self.connections {
            for peer in peers.clone() {
                self.records.conn_ended(conn(peer, connection), now);
            }
        }
        for _ in 0..MOST_TIMERS {
            while self.records.poll().is_some() {}
            let Some(next) = self.records.next_timeout() else {
                return;
            };
            now = now.max(next);
            self.records.handle_timeout(now);
        }
    }

    fn admit(
        &mut self,
        mut request: Request,
        origin: MessageOrigin,
        now: Duration,
        effects: &mut Vec<Effect>,
    ) {
        let ticket = match self.records.admit(&request, origin, now) {
            Judgement::Accepted(ticket) => ticket,
            Judgement::Duplicate if self.seed.variant == Variant::DuplicatesHandled => {
                // Some ticket that says nothing.
                let mut other = request.clone();
                other.id.hop += 100;
                match self.records.admit(&other, origin, now) {
                    Judgement::Accepted(ticket) => ticket,
                    _ => return,
                }
            }
            Judgement::Refused(status) => return to_client(refusal(&request, &status), effects),
            Judgement::Duplicate => return,
        };
        let number = number(&request.payload);
        let came = (origin.conn, Some(ticket));
        let handler = Handler {
            handled: HandledRequest::new(&mut request, came, None, now),
            request: number,
            next: 0,
        };
        effects.push(Effect::Started {
            request: number,
            stopped: self.stopped,
        });
        match self.handlers.iter_mut().find(|slot| slot.is_none()) {
            Some(slot) => *slot = Some(handler),
            None => self.handlers.push(Some(handler)),
        }
    }

    /// A handler goes on until it yields or ends.
    fn act(&mut self, slot: usize, now: Duration, effects: &mut Vec<Effect>) {
        loop {
            let Some(handler) = &mut self.handlers[slot] else {
                return;
            };
            let step = self.seed.tree.handlers[usize::from(handler.request)][handler.next];
            handler.next += 1;
            let (handled, context) = (&mut handler.handled, context(now));
            let sent = match step {
                Step::Reply(number) => Sending::Answer(payload(number)),
                Step::Delegate(request) => {
                    let server = address(self.seed.places[usize::from(request)]);
                    Sending::Delegation(Destination::new(server, &METHOD), payload(request))
                }
                Step::Flush => {
                    handled.flush(&context);
                    return self.release(slot, now, effects);
                }
                Step::Finish => {
                    handled.finish(&context);
                    return self.release(slot, now, effects);
                }
                Step::Fail(number) => {
                    let status = Status::new(Code::Internal, number.to_string());
                    handled.fail(&status, &context);
                    return self.release(slot, now, effects);
                }
            };
            let sent = handled.send(sent, How::More, &context);
            sent.expect("no budget is small");
            self.release(slot, now, effects);
        }
    }

    /// Sends what a request has released.
    fn release(&mut self, slot: usize, now: Duration, effects: &mut Vec<Effect>) {
        while let Some(handler) = &mut self.handlers[slot]
            && let Some(sent) = handler.handled.poll()
        {
            let message = match sent {
                Outbound::Response(response) => Message::Response(response),
                Outbound::End(end) => Message::End(end),
                Outbound::Request(delegated) => {
                    self.delegate(slot, delegated, now, effects);
                    continue;
                }
            };
            let ticket = handler.handled.ticket();
            let output = Some(OutputMark {
                conn: self.to_client(),
                mark: 0,
            });
            let is_end = matches!(message, Message::End(_));
            if !(is_end && self.seed.variant == Variant::EndsNotRecorded) {
                self.records.answer_released(ticket, &message, output, now);
            }
            to_client(message, effects);
        }
        self.handlers[slot].take_if(|handler| handler.handled.has_ended());
    }

    fn delegate(
        &mut self,
        slot: usize,
        delegated: Delegated<Destination>,
        now: Duration,
        effects: &mut Vec<Effect>,
    ) {
        let Some(handler) = &self.handlers[slot] else {
            return;
        };
        let to = self.seed.places[usize::from(number(&delegated.payload))];
        let onward = (child(to), ReplyTo::At(address(CLIENT)));
        let times = (now, now);
        let HandedOn {
            mut request, noted, ..
        } = (handler.handled).hand_on(&mut self.records, delegated, onward, times);
        request.deadline = None; // none passes here
        match noted {
            Ok(ticket) => {
                let output = OutputMark {
                    conn: conn(to, 0),
                    mark: 0,
                };
                let sent = ReleasedMessage::Delegation;
                self.records.placed(ticket, sent, output);
                let letter = Letter::new(Message::Request(request));
                effects.push(Effect::Send { to, letter });
            }
            Err(frozen) => to_client(refusal(&request, &frozen.status()), effects),
        }
    }

    /// Does what the records ask for.
    fn settle(&mut self, now: Duration, effects: &mut Vec<Effect>) {
        while let Some(action) = self.records.poll() {
            match action {
                RecordAction::Announce { .. } if self.seed.variant == Variant::NoAnnouncements => {}
                RecordAction::Pong { mut pong, .. } | RecordAction::Announce { mut pong, .. } => {
                    if let (Variant::EndsToldEarly, Some(progress)) =
                        (self.seed.variant, &mut pong.progress)
                    {
                        progress.facts.get_or_insert(Facts {
                            requests: progress.children.len() as u32,
                            responses: progress.count,
                        });
                    }
                    to_client(Message::Pong(pong), effects);
                }
                RecordAction::Resend {
                    ticket,
                    conn,
                    response,
                } => {
                    let output = OutputMark { conn, mark: 0 };
                    let sent = ReleasedMessage::Response(response.index);
                    self.records.placed(ticket, sent, output);
                    to_client(Message::Response(response), effects);
                }
                RecordAction::Stop { ticket, reason, .. } => {
                    let stopped = |handler: &Option<Handler>| {
                        let handler = handler.as_ref();
                        handler.is_some_and(|handler| handler.handled.ticket() == Some(ticket))
                    };
                    let Some(slot) = self.handlers.iter().position(stopped) else {
                        continue;
                    };
                    if let Some(handler) = &mut self.handlers[slot] {
                        handler.handled.fail(&cancelled(reason), &context(now));
                        self.release(slot, now, effects);
                    }
                }
            }
        }
    }
}

/// All servers say the same of themselves, so that their states can be compared.
fn context(now: Duration) -> RequestContext<'static> {
    RequestContext {
        node: node(u8::MAX),
        address: None,
        raw: now,
        epoch: Duration::ZERO,
        served: None,
    }
}

/// The number of a request or a response of the tree.
fn number(payload: &Bytes) -> u8 {
    payload.first().copied().unwrap_or_default()
}

fn payload(number: u8) -> Bytes {
    Bytes::copy_from_slice(&[number])
}

fn refusal(request: &Request, status: &Status) -> Message {
    Message::Response(undelivered(request, status))
}

fn to_client(message: Message, effects: &mut Vec<Effect>) {
    let letter = Letter::new(message);
    effects.push(Effect::Send { to: CLIENT, letter });
}
