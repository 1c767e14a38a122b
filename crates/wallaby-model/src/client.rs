//! The initiator's endpoint: the real call, driven as its documentation says.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;
use std::time::Duration;

use bytes::Bytes;
use wallaby_proto::call::initiator::Arrival;
use wallaby_proto::call::watch::{FailureKind, Found, Source, dismiss};
use wallaby_proto::connection::Mark;
use wallaby_proto::endpoint::client::{CallContext, ClientAction, ClientCall};
use wallaby_proto::endpoint::{self, CallOptions, Config, ConnId};
use wallaby_proto::error::{CallError, Failure};
use wallaby_proto::wire::{End, Message, Ping, Pong, Progress, Response};
use wallaby_proto::{Facts, Manifest, Path, RequestId, Status};

use crate::letter::{Letter, METHOD, address, call, endpoint_of, node, source, token};
use crate::local::Machine;
use crate::scope::{Scope, Variant};

/// How soon others are heard who have work of a server that is gone: what is under way arrives before the next tick.
const SOON: Duration = Duration::from_millis(50);

/// How a call ended, as its initiator says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// All that it will ever deliver was delivered.
    Completed,
    /// It cannot be completed.
    Failed,
    /// The application gave it up.
    Aborted,
}

/// What happens at the initiator's endpoint.
#[derive(Debug, Clone)]
pub(crate) enum Event {
    Send,
    Receive {
        from: u8,
        letter: Letter,
        now: Duration,
    },
    Tick {
        now: Duration,
    },
    Abort {
        now: Duration,
    },
    /// The connection with this server ended, and all that came over it was read.
    Disconnected {
        server: u8,
        now: Duration,
    },
    /// This server is gone.
    Gone {
        server: u8,
        now: Duration,
    },
}

#[derive(Debug)]
pub(crate) enum Effect {
    Send {
        to: u8,
        letter: Letter,
    },
    /// The application gets the response with this number of the tree.
    Deliver(u8),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct View {
    pub(crate) outcome: Option<Outcome>,
    /// Nothing more happens to the call: it is complete, or all of it is stopped.
    pub(crate) over: bool,
    /// A peer is said to have broken the protocol.
    pub(crate) accuses: bool,
}

/// Where the call's first request goes, and how it is watched.
#[derive(Debug, Clone)]
pub(crate) struct Seed {
    pub(crate) server: u8,
    pub(crate) options: CallOptions,
    pub(crate) variant: Variant,
}

impl Seed {
    pub(crate) fn of(scope: &Scope, server: u8) -> Self {
        let mut options = CallOptions::default();
        options.ping = Some(Scope::ping());
        Self {
            server,
            options,
            variant: scope.variant,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Client {
    seed: Seed,
    call: ClientCall,
    view: View,
    /// What broken variants go by.
    reports: Option<Reports>,
}

/// What the call asks about its endpoint, at this time: there is one connection with each server, which takes all at once.
struct Context(Duration);

static CONFIG: LazyLock<Config> = LazyLock::new(Config::default);

impl CallContext for Context {
    fn config(&self) -> &Config {
        &CONFIG
    }

    fn now(&self) -> Duration {
        self.0
    }

    fn raw(&self) -> Duration {
        self.0
    }

    fn source(&self, from: Option<ConnId>) -> Source {
        from.map_or_else(Source::default, |from| source(server_over(from)))
    }

    fn is_open(&self, _: ConnId) -> bool {
        true
    }

    fn messages_received(&self, _: ConnId) -> u64 {
        0
    }

    fn is_writing(&self, _: ConnId, _: Mark) -> bool {
        false
    }
}

fn conn(server: u8) -> ConnId {
    ConnId::from_number(server.into())
}

fn server_over(conn: ConnId) -> u8 {
    conn.number() as u8
}

impl Machine for Client {
    type Seed = Seed;
    type Input = Event;
    type Output = Effect;
    type View = View;

    fn new(seed: &Seed) -> Self {
        let variant = seed.variant;
        let reports = matches!(variant, Variant::CountsAlone | Variant::FactsOverwritten);
        Self {
            seed: seed.clone(),
            call: ClientCall::new(call(), token(), &seed.options, &CONFIG, Duration::ZERO),
            view: View {
                outcome: None,
                over: false,
                accuses: false,
            },
            reports: reports.then(Reports::default),
        }
    }

    fn view(&self) -> View {
        self.view
    }

    fn handle(&mut self, event: &Event) -> Vec<Effect> {
        let mut effects = Vec::new();
        let now = match event {
            Event::Send => Duration::ZERO,
            Event::Receive { now, .. }
            | Event::Tick { now }
            | Event::Abort { now }
            | Event::Disconnected { now, .. }
            | Event::Gone { now, .. } => *now,
        };
        let context = Context(now);
        match event {
            Event::Send => effects.push(self.send(&context)),
            Event::Receive { from, letter, .. } => {
                self.receive(*from, &letter.message, &context, &mut effects);
            }
            _ if self.view.over => {}
            Event::Tick { .. } => self.call.handle_timeout(&context),
            Event::Abort { .. } => {
                self.call.abort(&context);
                self.view.over |= self.seed.variant == Variant::QuietAtOnce;
            }
            Event::Disconnected { server, .. } => {
                let ended = (conn(*server), node(*server));
                self.call.handle_disconnect(ended, false, None, &context);
            }
            Event::Gone { server, .. } => {
                let gone = (node(*server), Found::Nobody);
                self.call.handle_gone(gone, Some(SOON), &context);
            }
        }
        self.settle(&context, &mut effects);
        effects
    }
}

impl Client {
    fn send(&mut self, context: &Context) -> Effect {
        let server = self.seed.server;
        let id = (self.call)
            .add_root(&address(server), &METHOD)
            .expect("within the budget");
        self.call.close();
        let mut request = (self.call).initial(id, Bytes::from_static(&[0]), None, context);
        request.oldest = call().sequence;
        let taken = (conn(server), Some(node(server)));
        (self.call).root_sent(id, taken, Mark::Written(0), context);
        send(server, Message::Request(request))
    }

    fn receive(
        &mut self,
        from: u8,
        message: &Message,
        context: &Context,
        effects: &mut Vec<Effect>,
    ) {
        if let Some(reports) = &mut self.reports {
            reports.note(message);
        }
        match message {
            Message::Response(response) if self.believes(response.request) => {
                let over = Some(conn(from));
                let received = (self.call).handle_answer(over, &mut message.clone(), context);
                let again = self.seed.variant == Variant::DuplicatesDelivered;
                if again && received.arrival == Some(Arrival::Duplicate) {
                    effects.extend(number_of(response).map(Effect::Deliver));
                }
            }
            Message::End(end) if self.believes(end.request) => {
                let over = Some(conn(from));
                (self.call).handle_answer(over, &mut message.clone(), context);
            }
            // Only its tree learns of it.
            Message::Response(response) => {
                let arrival = self.call.tree().handle_response(response);
                if arrival == Ok(Arrival::New) && self.view.outcome.is_none() {
                    effects.extend(number_of(response).map(Effect::Deliver));
                }
                self.call.close();
            }
            Message::End(end) => {
                let handled = self.call.tree().handle_end(end);
                self.view.accuses |= handled.is_err();
                self.call.close();
            }
            Message::Pong(pong) => self.receive_pong(from, pong, context, effects),
            Message::Request(_) | Message::Ping(_) | Message::Trace(_) => {}
        }
    }

    fn receive_pong(
        &mut self,
        from: u8,
        pong: &Pong,
        context: &Context,
        effects: &mut Vec<Effect>,
    ) {
        if self.view.over {
            let ping = dismiss(pong, token());
            effects.extend(pong.announced.then(|| send(from, Message::Ping(ping))));
            return;
        }
        let mut pong = pong.clone();
        let variant = self.seed.variant;
        if let (Variant::PongsWithoutFacts, Some(progress)) = (variant, &mut pong.progress) {
            progress.facts = None;
        }
        if self.believes(pong.request) {
            let over = (Some(conn(from)), false);
            self.call.handle_pong(over, &pong, context);
        }
        if variant == Variant::PongsAnswered {
            let ping = Ping {
                abort: false,
                ..dismiss(&pong, token())
            };
            effects.extend([(); 2].map(|()| send(from, Message::Ping(ping.clone()))));
        }
    }

    fn believes(&self, request: RequestId) -> bool {
        request.hop == 0 || self.seed.variant != Variant::HopsDoNotSupersede
    }

    /// Does what the call wants done, and sees whether it has ended.
    fn settle(&mut self, context: &Context, effects: &mut Vec<Effect>) {
        while let Some(action) = self.call.poll(context) {
            match action {
                ClientAction::Ping(asked) => {
                    let to = asked.0.node.map(endpoint_of);
                    effects.extend(to.map(|to| send(to, Message::Ping(asked.1))));
                }
                ClientAction::PingOver(over, ping) => {
                    effects.push(send(server_over(over), Message::Ping(*ping)));
                }
                ClientAction::Ended => self.ended(),
                ClientAction::Quiet => self.view.over = true,
                _ => {}
            }
        }
        while let Some(answer) = self.call.next_answer(u64::MAX) {
            let number = match answer.payload() {
                Ok(payload) => payload.first().copied(),
                Err(CallError::Status(status)) => status.message().parse().ok(),
                Err(_) => None,
            };
            // Statuses that nobody planned have no number.
            effects.extend(number.map(Effect::Deliver));
        }
        let complete = match (&self.reports, self.seed.variant) {
            (Some(reports), Variant::CountsAlone) => reports.counts_say_complete(),
            (Some(reports), _) => reports.walk_says_complete(),
            (None, Variant::StatusChanges) => self.call.tree().is_complete(),
            (None, _) => false,
        };
        let open = self.view.outcome.is_none() || self.seed.variant == Variant::StatusChanges;
        if complete && open {
            self.view.outcome = Some(Outcome::Completed);
            self.view.over = true;
        }
    }

    fn ended(&mut self) {
        let outcome = match self.call.outcome() {
            Some(endpoint::Outcome::Failed(failure)) => match failure {
                Failure::Aborted { .. } => Outcome::Aborted,
                Failure::Lost(loss) => {
                    self.view.accuses |= matches!(loss.kind, FailureKind::Violation(_));
                    Outcome::Failed
                }
                _ => Outcome::Failed,
            },
            // That others say when it is complete is what is broken.
            _ if self.reports.is_some() => return,
            _ => Outcome::Completed,
        };
        self.view.outcome.get_or_insert(outcome);
        self.view.over |= self.call.is_over();
    }
}

fn send(to: u8, message: Message) -> Effect {
    let letter = Letter::new(message);
    Effect::Send { to, letter }
}

/// The number of a response in its tree.
fn number_of(response: &Response) -> Option<u8> {
    match response.status {
        false => response.payload.first().copied(),
        true => {
            let status = Status::from_payload(&response.payload).ok()?;
            status.message().parse().ok()
        }
    }
}

/// What branches have reported, as broken variants remember it.
#[derive(Debug, Default)]
struct Reports {
    facts: BTreeMap<Path, Facts>,
    responses: BTreeSet<(Path, u32)>,
}

impl Reports {
    fn note(&mut self, message: &Message) {
        match message {
            Message::Response(response) => {
                let path = response.request.path;
                self.responses.insert((path, response.index));
                let last = Facts {
                    requests: 0,
                    responses: response.index + 1,
                };
                self.facts.extend(response.last.then_some((path, last)));
                self.manifest(response.manifest);
            }
            Message::End(End {
                request,
                facts,
                manifest,
                ..
            }) => {
                self.facts.insert(request.path, *facts);
                self.manifest(*manifest);
            }
            Message::Pong(Pong {
                request,
                progress: Some(progress),
                ..
            }) => {
                self.facts.insert(request.path, facts_so_far(progress));
                self.manifest(progress.manifest);
            }
            _ => {}
        }
    }

    fn manifest(&mut self, manifest: Option<Manifest>) {
        self.facts
            .extend(manifest.map(|manifest| (manifest.owner, manifest.facts)));
    }

    fn counts_say_complete(&self) -> bool {
        let sum = |of: fn(&Facts) -> u32| self.facts.values().map(of).sum::<u32>() as usize;
        let requests = 1 + sum(|facts| facts.requests);
        let responses = sum(|facts| facts.responses);
        self.facts.len() == requests && self.responses.len() == responses
    }

    fn walk_says_complete(&self) -> bool {
        let mut open = vec![Path::FIRST];
        while let Some(path) = open.pop() {
            let Some(facts) = self.facts.get(&path) else {
                return false;
            };
            if (0..facts.responses).any(|index| !self.responses.contains(&(path, index))) {
                return false;
            }
            open.extend((0..facts.requests).map(|index| path.child(index, call(), token())));
        }
        true
    }
}

fn facts_so_far(progress: &Progress) -> Facts {
    progress.facts.unwrap_or(Facts {
        requests: progress.children.len() as u32,
        responses: progress.count,
    })
}
