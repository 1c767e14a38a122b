//! One call's watch, played to by hand: what it is told, and in words what it wants done.

use std::time::Duration;

use bytes::Bytes;
use wallaby_proto::call::initiator::Initiator;
use wallaby_proto::call::watch::{Location, Loss, Source, Watch, WatchAction, WatchSettings};
use wallaby_proto::wire::{Budgets, Child, End, Ping, PingSettings, Pong, Progress, Response};
use wallaby_proto::{Address, CallId, Facts, Manifest, NodeId, Path, RequestId, Token};

pub(crate) const PERIOD: u64 = 100;
pub(crate) const TIMEOUT: u64 = 500;

pub(crate) struct Desk {
    pub(crate) watch: Watch,
    pub(crate) now: u64,
    pub(crate) failure: Option<Box<Loss>>,
}

/// How a call is watched, if a test does not say otherwise.
pub(crate) fn settings() -> WatchSettings {
    WatchSettings {
        ping: PingSettings {
            period: Duration::from_millis(PERIOD),
            timeout: Duration::from_millis(TIMEOUT),
        },
        ..WatchSettings::default()
    }
}

/// A request by its child indexes and hop: `at("0.1+2")`.
pub(crate) fn at(text: &str) -> RequestId {
    let (path, hop) = text.split_once('+').unwrap_or((text, "0"));
    let path = path.split('.').fold(Path::ROOT, |path, index| {
        path.child(index.parse().expect("an index"), call(), token())
    });
    RequestId {
        path,
        hop: hop.parse().expect("a hop"),
    }
}

pub(crate) fn call() -> CallId {
    CallId {
        initiator: node(1),
        sequence: 7,
    }
}

pub(crate) fn token() -> Token {
    Token::new(42)
}

pub(crate) fn node(number: u64) -> NodeId {
    NodeId::new(number).expect("not zero")
}

pub(crate) fn address(server: u64) -> Address {
    Address::Mem(format!("m{server}").into())
}

/// Machine `server`, whose node id is ten times its number.
pub(crate) fn child(server: u64) -> Child {
    Child {
        server: address(server),
        node: Some(node(10 * server)),
    }
}

pub(crate) fn location(server: u64) -> Location {
    Location {
        address: Some(address(server)),
        node: Some(node(10 * server)),
    }
}

/// In place of a machine: what it said was passed on by others.
pub(crate) const NOWHERE: u64 = 0;

pub(crate) fn source(server: u64) -> Source {
    if server == NOWHERE {
        return Source::default();
    }
    Source {
        location: location(server),
        alone: true,
    }
}

/// What a server says of a request that runs and has sent nothing.
pub(crate) fn running() -> Progress {
    Progress {
        finished: false,
        aborted: false,
        base: 0,
        count: 0,
        children_from: 0,
        children: vec![],
        continuation: None,
        facts: None,
        manifest: None,
        idle: Some(Duration::ZERO),
        lost: vec![],
        handled_by: None,
    }
}

/// What a server says of a request that ended its branch.
pub(crate) fn ended(requests: u32, responses: u32) -> Progress {
    Progress {
        finished: true,
        count: responses,
        facts: Some(facts(requests, responses)),
        idle: None,
        ..running()
    }
}

/// What a server says of a request whose branch went on there.
pub(crate) fn continued(count: u32, server: u64) -> Progress {
    Progress {
        finished: true,
        count,
        continuation: Some(child(server)),
        idle: None,
        ..running()
    }
}

pub(crate) fn facts(requests: u32, responses: u32) -> Facts {
    Facts {
        requests,
        responses,
    }
}

pub(crate) fn pong(request: RequestId, progress: Option<Progress>) -> Pong {
    Pong {
        call: call(),
        distance: 0,
        token: None,
        request,
        attempt: 0,
        announced: false,
        writing: false,
        evicted: false,
        gone: false,
        heartbeats: false,
        progress,
    }
}

/// A response without a payload, perhaps with the manifest of this branch.
pub(crate) fn response(
    request: &str,
    index: u32,
    last: bool,
    manifest: Option<(&str, Facts)>,
) -> Response {
    Response {
        call: call(),
        distance: 0,
        token: None,
        request: at(request),
        index,
        last,
        manifest: manifest.map(|(owner, facts)| Manifest {
            owner: at(owner).path,
            facts,
        }),
        status: false,
        compressed: false,
        options: None,
        payload: Bytes::new(),
    }
}

fn words(ping: &Ping) -> String {
    let mut text = format!("ping {}", ping.request);
    if ping.abort {
        text += " abort";
    }
    if ping.children_from > 0 {
        text += &format!(" from {}", ping.children_from);
    }
    if !ping.missing.is_empty() {
        text += &format!(" missing {:?}", ping.missing);
    }
    text
}

impl Desk {
    /// A call of one request to machine 1, watched from 100 ms on.
    pub(crate) fn new() -> Self {
        Self::after(|_| {})
    }

    /// The same, and this has arrived before.
    pub(crate) fn after(arrived: impl FnOnce(&mut Initiator)) -> Self {
        Self::begin(settings(), Budgets::default(), arrived)
    }

    pub(crate) fn with(settings: WatchSettings) -> Self {
        Self::begin(settings, Budgets::default(), |_| {})
    }

    /// The same, of a call that may have so many requests.
    pub(crate) fn of_requests(requests: u32) -> Self {
        let budgets = Budgets {
            requests,
            ..Budgets::default()
        };
        Self::begin(settings(), budgets, |_| {})
    }

    fn begin(
        settings: WatchSettings,
        budgets: Budgets,
        arrived: impl FnOnce(&mut Initiator),
    ) -> Self {
        let mut initiator = Initiator::new(call(), token(), budgets);
        initiator.send().expect("within the budget");
        initiator.close();
        arrived(&mut initiator);
        let now = Duration::from_millis(PERIOD);
        let mut desk = Self {
            watch: Watch::new(initiator, settings, [location(1)], now),
            now: PERIOD,
            failure: None,
        };
        let asked: &[&str] = match settings.heartbeats {
            None => &["ping 0 at m1"],
            Some(_) => &[],
        };
        assert_eq!(desk.actions(), asked);
        desk
    }

    pub(crate) fn time(&self) -> Duration {
        Duration::from_millis(self.now)
    }

    /// What the watch wants done now.
    pub(crate) fn actions(&mut self) -> Vec<String> {
        let mut actions = Vec::new();
        while let Some(action) = self.watch.poll() {
            actions.push(match action {
                WatchAction::Ping { to, ping } => {
                    let at = format!("{} at {to}", ping.request).replace("mem://", "");
                    words(&ping).replacen(&ping.request.to_string(), &at, 1)
                }
                WatchAction::Lost(failure) => format!("lost: {} {}", failure.request, failure.kind),
                WatchAction::Failed(failure) => {
                    let text = format!("failed: {} {}", failure.request, failure.kind);
                    self.failure = Some(failure);
                    text
                }
                WatchAction::Resend {
                    request, attempt, ..
                } => format!("retry {request} attempt {attempt}"),
                WatchAction::Frozen => "frozen".to_owned(),
                WatchAction::Quiet => "quiet".to_owned(),
            });
        }
        actions
    }

    /// Lets time pass, timer by timer; what the watch wants done until then.
    pub(crate) fn until(&mut self, time: u64) -> Vec<String> {
        let mut actions = Vec::new();
        while let Some(due) = self.watch.next_timeout() {
            let due = due.as_micros().div_ceil(1000) as u64;
            if due > time {
                break;
            }
            assert!(
                due > self.now || actions.len() < 1000,
                "it does not come to rest"
            );
            self.now = due.max(self.now);
            let now = self.time();
            self.watch.handle_timeout(now);
            let now = self.now;
            actions.extend(
                self.actions()
                    .into_iter()
                    .map(|text| format!("{now}: {text}")),
            );
        }
        self.now = time;
        actions
    }

    /// A pong from machine `server`.
    pub(crate) fn pong(&mut self, server: u64, request: &str, progress: Progress) -> Vec<String> {
        self.hear(server, pong(at(request), Some(progress)))
    }

    pub(crate) fn unknown(&mut self, server: u64, request: &str) -> Vec<String> {
        self.hear(server, pong(at(request), None))
    }

    pub(crate) fn announce(
        &mut self,
        server: u64,
        request: &str,
        progress: Progress,
    ) -> Vec<String> {
        let mut pong = pong(at(request), Some(progress));
        pong.announced = true;
        self.hear(server, pong)
    }

    pub(crate) fn hear(&mut self, server: u64, pong: Pong) -> Vec<String> {
        let now = self.time();
        let back = self.watch.handle_pong(&pong, &source(server), now);
        let back = back.map(|ping| format!("back: {}", words(&ping)));
        self.actions().into_iter().chain(back).collect()
    }

    /// A response from machine `server`.
    pub(crate) fn response(
        &mut self,
        server: u64,
        request: &str,
        index: u32,
        last: bool,
        manifest: Option<(&str, Facts)>,
    ) -> Vec<String> {
        self.watch
            .tree_mut()
            .handle_response(&response(request, index, last, manifest))
            .expect("as the protocol says");
        self.heard(server, request)
    }

    pub(crate) fn end(&mut self, server: u64, request: &str, facts: Facts) -> Vec<String> {
        let end = End {
            call: call(),
            distance: 0,
            token: None,
            request: at(request),
            facts,
            manifest: None,
            options: None,
        };
        self.watch
            .tree_mut()
            .handle_end(&end)
            .expect("as the protocol says");
        self.heard(server, request)
    }

    pub(crate) fn heard(&mut self, server: u64, request: &str) -> Vec<String> {
        let now = self.time();
        self.watch.handle_heard(at(request), &source(server), now);
        self.actions()
    }

    pub(crate) fn abort(&mut self) -> Vec<String> {
        let now = self.time();
        self.watch.abort(now);
        self.actions()
    }
}
