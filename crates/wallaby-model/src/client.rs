//! The initiator's endpoint: the real client half and the real watch, driven as their documentation says.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use wallaby_proto::call::initiator::{Arrival, Initiator, Violation};
use wallaby_proto::call::watch::{Action, FailureKind, Found, Watch, WatchSettings, dismiss};
use wallaby_proto::wire::{
    Budgets, End, Message, MethodRef, Ping, Pong, Progress, ReplyTo, Request, Response,
};
use wallaby_proto::{Facts, Manifest, Path, RequestId, Status};

use crate::letter::{Letter, call, endpoint_of, node, source, token};
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
    pub(crate) settings: WatchSettings,
    pub(crate) variant: Variant,
}

impl Seed {
    pub(crate) fn of(scope: &Scope, server: u8) -> Self {
        Self {
            server,
            settings: WatchSettings {
                ping: scope.ping(),
                ..WatchSettings::default()
            },
            variant: scope.variant,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Client {
    seed: Seed,
    initiator: Initiator,
    watch: Option<Watch>,
    view: View,
    /// What broken variants go by.
    reports: Option<Reports>,
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
            initiator: Initiator::new(call(), token(), Budgets::default()),
            watch: None,
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
        match event {
            Event::Send => effects.push(self.send()),
            Event::Receive { from, letter, now } => {
                self.receive(*from, &letter.message, *now, &mut effects);
            }
            Event::Tick { now } => {
                if let Some((watch, initiator)) = self.watching(*now) {
                    watch.handle_timeout(initiator, *now);
                }
            }
            Event::Abort { now } => {
                if let Some((watch, initiator)) = self.watching(*now) {
                    watch.abort(initiator, *now);
                }
                self.view.outcome = Some(Outcome::Aborted);
                self.view.over |= self.seed.variant == Variant::QuietAtOnce;
            }
            Event::Disconnected { server, now } => {
                if let Some(watch) = &mut self.watch {
                    watch.handle_disconnect(&self.initiator, node(*server), *now);
                }
            }
            Event::Gone { server, now } => {
                if let Some(watch) = &mut self.watch {
                    watch.handle_gone_for_certain(
                        &self.initiator,
                        (node(*server), Found::Nobody),
                        SOON,
                        *now,
                    );
                }
            }
        }
        self.settle(&mut effects);
        effects
    }
}

impl Client {
    fn send(&mut self) -> Effect {
        let id = self.initiator.send().expect("within the budget");
        self.initiator.close();
        let request = Request {
            call: call(),
            token: token(),
            id,
            depth: 0,
            base: 0,
            reply_to: ReplyTo::Peer,
            manifest: None,
            deadline: None,
            oldest: call().sequence,
            traced: false,
            compressed: false,
            waited: Duration::ZERO,
            options: None,
            method: MethodRef::Number(0),
            payload: Bytes::from_static(&[0]),
        };
        Effect::Send {
            to: self.seed.server,
            letter: Letter::new(Message::Request(request)),
        }
    }

    /// The call's watch, which begins now if it has not yet; `None` once the call is over.
    fn watching(&mut self, now: Duration) -> Option<(&mut Watch, &mut Initiator)> {
        if self.view.over {
            return None;
        }
        if self.watch.is_none() {
            let servers = [source(self.seed.server).location];
            let watch = Watch::new(&mut self.initiator, self.seed.settings, servers, now);
            self.watch = Some(watch);
        }
        self.watch
            .as_mut()
            .map(|watch| (watch, &mut self.initiator))
    }

    fn receive(&mut self, from: u8, message: &Message, now: Duration, effects: &mut Vec<Effect>) {
        if let Some(reports) = &mut self.reports {
            reports.note(message);
        }
        match message {
            Message::Response(response) => {
                match self.initiator.handle_response(response) {
                    Ok(arrival) => self.deliver(response, arrival, effects),
                    Err(violation) => self.violated(response.request, violation, now),
                }
                self.heard(from, response.request, now);
            }
            Message::End(end) => {
                if let Err(violation) = self.initiator.handle_end(end) {
                    self.violated(end.request, violation, now);
                }
                self.heard(from, end.request, now);
            }
            Message::Pong(pong) => self.receive_pong(from, pong, now, effects),
            Message::Request(_) | Message::Ping(_) | Message::Trace(_) => {}
        }
    }

    fn receive_pong(&mut self, from: u8, pong: &Pong, now: Duration, effects: &mut Vec<Effect>) {
        if self.view.over {
            if pong.announced {
                let ping = dismiss(pong, token());
                let letter = Letter::new(Message::Ping(ping));
                effects.push(Effect::Send { to: from, letter });
            }
            return;
        }
        let mut pong = pong.clone();
        let variant = self.seed.variant;
        if let (Variant::PongsWithoutFacts, Some(progress)) = (variant, &mut pong.progress) {
            progress.facts = None;
        }
        if self.believes(pong.request)
            && let Some((watch, initiator)) = self.watching(now)
        {
            let stop = watch.handle_pong(initiator, &pong, &source(from), now);
            effects.extend(stop.map(|stop| Effect::Send {
                to: from,
                letter: Letter::new(Message::Ping(stop)),
            }));
        }
        if variant == Variant::PongsAnswered {
            let ping = Ping {
                abort: false,
                ..dismiss(&pong, token())
            };
            let letter = Letter::new(Message::Ping(ping));
            effects.extend([(); 2].map(|()| Effect::Send {
                to: from,
                letter: letter.clone(),
            }));
        }
    }

    fn heard(&mut self, from: u8, request: RequestId, now: Duration) {
        if self.believes(request)
            && let Some(watch) = &mut self.watch
        {
            watch.handle_heard(&mut self.initiator, request, &source(from), now);
        }
    }

    fn believes(&self, request: RequestId) -> bool {
        request.hop == 0 || self.seed.variant != Variant::HopsDoNotSupersede
    }

    fn violated(&mut self, request: RequestId, violation: Violation, now: Duration) {
        self.view.accuses = true;
        if let Some((watch, initiator)) = self.watching(now) {
            let kind = FailureKind::Violation(violation);
            watch.fail(initiator, request, kind, now);
        }
    }

    fn deliver(&self, response: &Response, arrival: Arrival, effects: &mut Vec<Effect>) {
        let again = self.seed.variant == Variant::DuplicatesDelivered;
        if self.view.outcome.is_some() || (arrival == Arrival::Duplicate && !again) {
            return;
        }
        let number = match response.status {
            false => response.payload.first().copied(),
            true => Status::from_payload(&response.payload)
                .ok()
                .and_then(|status| status.message().parse().ok()),
        };
        // Statuses that nobody planned have no number.
        effects.extend(number.map(Effect::Deliver));
    }

    /// Does what the watch asks for, and sees whether the call has ended.
    fn settle(&mut self, effects: &mut Vec<Effect>) {
        while let Some(action) = self.watch.as_mut().and_then(Watch::poll) {
            match action {
                Action::Ping { to, ping } => {
                    let to = to.node.map(endpoint_of);
                    let letter = Letter::new(Message::Ping(ping));
                    effects.extend(to.map(|to| Effect::Send { to, letter }));
                }
                Action::Failed(failure) => {
                    self.view.accuses |= matches!(failure.kind, FailureKind::Violation(_));
                    self.view.outcome.get_or_insert(Outcome::Failed);
                }
                Action::Quiet => self.view.over = true,
                Action::Lost(_) | Action::Frozen | Action::Retry { .. } => {}
            }
        }
        let complete = match (&self.reports, self.seed.variant) {
            (Some(reports), Variant::CountsAlone) => reports.counts_say_complete(),
            (Some(reports), _) => reports.walk_says_complete(),
            (None, _) => self.initiator.is_complete(),
        };
        let open = self.view.outcome.is_none() || self.seed.variant == Variant::StatusChanges;
        if complete && open {
            self.view.outcome = Some(Outcome::Completed);
            self.view.over = true;
            self.watch = None;
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
