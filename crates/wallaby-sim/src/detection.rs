//! How late a failure may be told: what was lost of a call, when its initiator last heard of that for good reason, and until
//! when it has to give the call up.
//!
//! The promise (docs/protocol.md, rules 14 to 18, 20 and 24): a branch of which nobody alive holds anything fails within the
//! call's timeout of the last *news* of it. News is what nobody could have said without need: that the branch exists, that it
//! went on to a further hop, a response, its facts, and what its latest known server says of it. A server that says again what
//! is known of others is none, nor is one that knows nothing.
//!
//! What restarts the judgement besides is an *excuse*: whoever sent a request says that something of its own is still being
//! written. It holds only as long as that is true: until all its requests have left it and its answers have arrived.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use wallaby_proto::wire::{Child, Message, Pong};
use wallaby_proto::{CallId, Facts, Manifest, Path, RequestId, Token};

use crate::plan::{CallPlan, Fault, Manner, NodePlan, Plan};

/// Times are told to the microsecond, and timers fire a little later.
const PRECISION: Duration = Duration::from_micros(10);

/// To open a connection or a session, to ask and to be answered takes less than so many times on the way.
const TRIPS: u32 = 8;

/// To open a connection takes so many of them.
const OPENING: u32 = 3;

/// So long after a fault connections may still be making up for it.
const RECOVERY: Duration = Duration::from_secs(1);

/// So many of them may a server's initiator wait for others once it knows that the server is gone: the nodes' setting, and eight of
/// the longest round trips that it has seen, which to open a connection takes two of.
const GONE: u32 = 8 + 8 * 4;

/// What an initiator could know of its call's branches.
#[derive(Debug)]
pub(crate) struct Detection {
    call: CallId,
    token: Token,
    branches: BTreeMap<Path, Branch>,
    /// Requests whose servers say that their output is still being written.
    writing: BTreeMap<RequestId, Excuse>,
    /// When it began, and when it is first looked at if its initiator listens until then.
    begun: Duration,
    watched: Duration,
}

/// What is known of one branch.
#[derive(Debug, Default)]
struct Branch {
    /// When a message last brought news of it: that may have waited for credit for as long as it likes.
    heard: Duration,
    /// When a pong last did, which waits for nothing.
    told: Duration,
    /// The highest hop that was heard of; of most branches it is known first that they exist.
    top: Option<u32>,
    /// The highest hop whose node was named, and when.
    named: Option<(u32, Duration)>,
    /// How it ended is known.
    ended: bool,
}

/// What brings news.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum By {
    Message,
    Pong,
}

/// What a server says of output that it has.
#[derive(Debug, Default)]
struct Excuse {
    /// How many such pongs are under way that were true when they were sent.
    under_way: u32,
    /// When the last of them came.
    came: Option<Duration>,
}

/// Something of a call that nobody holds any more who lives, or that came to nobody.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Lost {
    pub(crate) path: Path,
    pub(crate) what: Cause,
    /// Since when no server can show life for its sake.
    pub(crate) since: Duration,
    /// How many requests led to it.
    pub(crate) depth: u32,
    /// The branch that it came of.
    pub(crate) above: Option<Path>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cause {
    /// Its handler's incarnation ended.
    Handler(RequestId),
    /// It left its sender and was never taken.
    Request(RequestId),
    /// Whoever had a response is gone.
    Response,
    /// Whoever had the word of how the branch ended is gone.
    End,
}

/// Until when a loss has to be told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub(crate) lost: Lost,
    pub(crate) news: Duration,
    pub(crate) excused: Option<Duration>,
    /// How long after these it is due.
    pub(crate) limit: Duration,
    pub(crate) due: Duration,
}

impl Detection {
    pub(crate) fn new(call: CallId, token: Token, begun: Duration, watched: Duration) -> Self {
        Self {
            call,
            token,
            begun,
            watched,
            branches: BTreeMap::new(),
            writing: BTreeMap::new(),
        }
    }

    /// The initiator itself begins a branch.
    pub(crate) fn begin(&mut self, path: Path, now: Duration) {
        self.exists(path, By::Message, now);
    }

    fn exists(&mut self, path: Path, by: By, now: Duration) {
        let mut fresh = Branch::default();
        fresh.note(by, now);
        self.branches.entry(path).or_insert(fresh);
    }

    /// A request has left this incarnation: if it is an initial one, its node is known before anybody else tells of it.
    pub(crate) fn left(&mut self, request: RequestId, now: Duration) {
        let is_initial = request.path.levels_below(&Path::ROOT) == Some(1);
        if request.hop == 0 && is_initial && now < self.watched {
            self.named(request, Duration::ZERO); // it is connected
        }
    }

    fn named(&mut self, request: RequestId, now: Duration) {
        let Some(branch) = self.branches.get_mut(&request.path) else {
            return;
        };
        if branch.named.is_none_or(|(hop, _)| hop < request.hop) {
            branch.named = Some((request.hop, now));
        }
    }

    /// A hop of a branch has shown itself.
    fn news(&mut self, request: RequestId, by: By, now: Duration) {
        let branch = self.branches.entry(request.path).or_default();
        branch.note(by, now);
        // Who watches a call only then looks for where its first requests are.
        if request.hop > 0 || now > self.watched {
            branch.top = branch.top.max(Some(request.hop));
        }
    }

    /// It is known how a branch ends.
    fn ends(&mut self, path: Path, facts: Facts, by: By, now: Duration) {
        let branch = self.branches.entry(path).or_default();
        if std::mem::replace(&mut branch.ended, true) {
            return;
        }
        branch.note(by, now);
        for index in 0..facts.requests {
            self.exists(path.child(index, self.call, self.token), by, now);
        }
    }

    fn manifest(&mut self, manifest: Option<Manifest>, by: By, now: Duration) {
        if let Some(Manifest { owner, facts }) = manifest {
            self.ends(owner, facts, by, now);
        }
    }

    /// A response or an end arrived that had not come before.
    pub(crate) fn heard(&mut self, message: &Message, now: Duration) {
        match message {
            Message::Response(response) => {
                self.news(response.request, By::Message, now);
                self.manifest(response.manifest, By::Message, now);
                if response.last {
                    let (requests, responses) = (0, response.index + 1);
                    let facts = Facts {
                        requests,
                        responses,
                    };
                    self.ends(response.request.path, facts, By::Message, now);
                }
            }
            Message::End(end) => {
                self.news(end.request, By::Message, now);
                self.manifest(end.manifest, By::Message, now);
                self.ends(end.request.path, end.facts, By::Message, now);
            }
            _ => {}
        }
    }

    /// A server says of a request that its output is still being written, and that is so.
    pub(crate) fn excuses(&mut self, request: RequestId) {
        self.writing.entry(request).or_default().under_way += 1;
    }

    /// The initiator's own output has held up what it asked about an initial request, until now: nobody could answer.
    pub(crate) fn asked_late(&mut self, request: RequestId, now: Duration) {
        if request.hop == 0 && request.path.levels_below(&Path::ROOT) == Some(1) {
            self.writing.entry(request).or_default().came = Some(now);
        }
    }

    /// A pong or an announcement arrived.
    pub(crate) fn ponged(&mut self, pong: &Pong, now: Duration) {
        let RequestId { path, hop } = pong.request;
        let Some(progress) = &pong.progress else {
            // Who passes a response on says so; who knows nothing says nothing.
            if pong.announced && self.is_latest(pong.request) {
                self.news(pong.request, By::Message, now);
            }
            return;
        };
        let excuse = self.writing.get_mut(&pong.request);
        if let Some(excuse) = excuse.filter(|excuse| pong.writing && excuse.under_way > 0) {
            excuse.under_way -= 1;
            excuse.came = Some(now);
        }
        if self.is_latest(pong.request) {
            self.news(pong.request, By::Pong, now);
        }
        if let Some(next) = &progress.continuation {
            self.is_at(RequestId { path, hop: hop + 1 }, next, now);
        }
        for (index, child) in (progress.children_from..).zip(&progress.children) {
            let path = path.child(index, self.call, self.token);
            self.is_at(RequestId { path, hop: 0 }, child, now);
        }
        self.manifest(progress.manifest, By::Pong, now);
        if let Some(facts) = progress.facts {
            self.ends(path, facts, By::Pong, now);
        }
    }

    /// Somebody tells where a request is: that is news once.
    fn is_at(&mut self, request: RequestId, server: &Child, now: Duration) {
        let known = self.branches.get(&request.path);
        if known.is_none_or(|branch| branch.top < Some(request.hop)) {
            self.news(request, By::Pong, now);
        } else if let Some(branch) = self.branches.get_mut(&request.path)
            && branch.named.is_none_or(|(hop, _)| hop < request.hop)
        {
            branch.note(By::Pong, now); // it is on the way to a later one of which only that is known
        }
        if server.node.is_some() {
            self.named(request, now);
        }
    }

    /// Whether no later hop of its branch is known.
    fn is_latest(&self, request: RequestId) -> bool {
        self.branches
            .get(&request.path)
            .is_none_or(|branch| branch.top <= Some(request.hop))
    }

    /// Until when the initiator has to tell what was lost, if it knows of that branch.
    pub(crate) fn verdict(&self, lost: Lost, terms: &Terms) -> Option<Verdict> {
        let branch = self.branches.get(&lost.path)?;
        if lost.what == Cause::End && branch.ended {
            return None; // a pong has told
        }
        let since = lost
            .since
            .max(self.watched + terms.stood_within(self.begun, self.watched));
        let limit = terms.learnt(since, lost.depth);
        let told = limit.map_or(branch.told, |limit| branch.told.min(limit));
        let news = branch.heard.max(told).max(since);
        let senders = self
            .writing
            .iter()
            .filter(|(request, _)| request.path == lost.path || Some(request.path) == lost.above);
        let excused = senders.filter_map(|(_, excuse)| excuse.came).max();
        let excused = excused.filter(|excused| *excused > news);
        let from = excused.unwrap_or(news);
        // A server that was dialled for the first time, and took the connection when it died, is not dialled again for a second.
        let opened = lost.since.saturating_sub(terms.to_open());
        let met = |hop| {
            branch
                .named
                .is_some_and(|(named, at)| named >= hop && at <= opened)
        };
        let limit = match (lost.what, terms.gone()) {
            (Cause::Handler(request), Some(gone)) if met(request.hop) => gone.min(terms.timeout),
            _ => terms.timeout,
        };
        let due = from + limit + terms.stood(from);
        Some(Verdict {
            lost,
            news,
            excused,
            limit,
            due,
        })
    }
}

/// What a call's initiator promises, in the world's time.
#[derive(Debug)]
pub(crate) struct Terms {
    /// How often it learns of all, or asks, and the timeout, by the initiator's clock.
    pub(crate) period: Duration,
    pub(crate) timeout: Duration,
    /// Longest time on the way, where nothing is slower than that and all that is alive can be reached.
    pub(crate) prompt: Option<Duration>,
    /// Whoever dies takes its connections with it, and their other ends are told: whoever asks is connected with all servers.
    ends: bool,
    /// When the initiator stood still, and for how long.
    pub(crate) stalls: Vec<(Duration, Duration)>,
}

impl Branch {
    fn note(&mut self, by: By, now: Duration) {
        match by {
            By::Message => self.heard = now,
            By::Pong => self.told = now,
        }
    }
}

impl Terms {
    /// Those of a call that lasts until now.
    pub(crate) fn of(plan: &Plan, initiator: u32, call: &CallPlan, now: Duration) -> Self {
        let drift = plan.nodes[initiator as usize].drift;
        let own = |time: Duration| {
            let micros = time.as_micros() as i128 * 1_000_000 / i128::from(1_000_000 + drift);
            Duration::from_micros(micros as u64 + 1) + PRECISION
        };
        let stalls = plan.faults.iter().filter_map(|fault| match fault {
            Fault::Stall { node, at, lasts } if *node == initiator => Some((*at, *lasts)),
            _ => None,
        });
        Self {
            period: own(call.round()),
            // What nobody has located by then counts as silent from its first question on.
            timeout: match call.heartbeats {
                true => own(call.timeout) + own(call.round()),
                false => own(call.timeout),
            },
            prompt: is_prompt(plan, call, now).then(|| plan.links.longest()),
            ends: !call.heartbeats && ends_connections(plan),
            stalls: stalls.collect(),
        }
    }

    /// Until when the servers that live have told what they know of a request: the round of a ping period reaches one server
    /// after the other, each of which may have to be dialled.
    fn learnt(&self, since: Duration, depth: u32) -> Option<Duration> {
        Some(since + self.period + self.prompt? * TRIPS * (depth + 1))
    }

    /// How long it takes to open a connection.
    fn to_open(&self) -> Duration {
        self.prompt.unwrap_or_default() * OPENING
    }

    /// How soon a process is missed whose connections end: a ping period at most.
    fn gone(&self) -> Option<Duration> {
        let trip = self.prompt.filter(|_| self.ends)?;
        Some(self.period.min(trip * GONE) + trip * TRIPS)
    }

    /// For how long it did not listen when that has concerned this time.
    fn stood_within(&self, from: Duration, to: Duration) -> Duration {
        let stalls = self.stalls.iter();
        let within = stalls.filter(|(at, lasts)| *at < to && *at + *lasts > from);
        within.map(|(_, lasts)| *lasts).sum()
    }

    /// For how long the initiator did not listen that late.
    fn stood(&self, from: Duration) -> Duration {
        let stalls = self.stalls.iter();
        let later = stalls.filter(|(at, lasts)| *at + *lasts > from);
        later.map(|(_, lasts)| *lasts).sum()
    }
}

/// Whether nothing but crashes has disturbed a call until now, and nothing of it can have been lost or held up on its way.
fn is_prompt(plan: &Plan, call: &CallPlan, now: Duration) -> bool {
    let links = &plan.links;
    let disturbs = |fault: &Fault| match fault {
        Fault::Crash { .. } | Fault::Drain { .. } => false,
        Fault::Cut { at, .. } => *at <= now,
        Fault::Stall { at, .. } | Fault::Partition { at, .. } => {
            *at <= now && fault.end() + RECOVERY > call.at
        }
    };
    let loses = links.loss + links.corruption > 0 && plan.nodes.iter().any(|node| node.udp);
    let is_roomy = plan.nodes.iter().all(NodePlan::is_roomy);
    links.is_wide() && is_roomy && !loses && !plan.faults.iter().any(disturbs)
}

/// Whether the end of a process is the end of its connections, which their other ends learn.
fn ends_connections(plan: &Plan) -> bool {
    let silent = |fault: &Fault| {
        matches!(
            fault,
            Fault::Crash {
                manner: Manner::Machine,
                ..
            }
        )
    };
    !plan.nodes.iter().any(|node| node.udp) && !plan.faults.iter().any(silent)
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            lost,
            news,
            excused,
            due,
            ..
        } = self;
        match lost.what {
            Cause::Handler(request) => write!(f, "the server of {request} died")?,
            Cause::Request(request) => write!(f, "{request} was sent, never to be taken,")?,
            Cause::Response => f.write_str("a response was lost with its server")?,
            Cause::End => f.write_str("an end was lost with its server")?,
        }
        write!(
            f,
            " at {:?}, the last news of its branch came at {news:?}",
            lost.since
        )?;
        if let Some(excused) = excused {
            write!(f, ", its sender was still writing at {excused:?}")?;
        }
        write!(f, "; it was to be told by {due:?}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use wallaby_proto::wire::Progress;
    use wallaby_proto::{Address, NodeId};

    fn token() -> Token {
        Token::new(7)
    }

    fn at(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn call() -> CallId {
        CallId {
            initiator: NodeId::new(1).expect("not zero"),
            sequence: 1,
        }
    }

    fn request(hop: u32) -> RequestId {
        let path = Path::ROOT.child(0, call(), token());
        RequestId { path, hop }
    }

    /// A call of one request, which is watched from 100 ms on.
    fn begun() -> Detection {
        let mut detection = Detection::new(call(), token(), at(0), at(100));
        detection.begin(request(0).path, at(0));
        detection
    }

    fn running() -> Progress {
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

    fn continued() -> Progress {
        Progress {
            finished: true,
            continuation: Some(Child {
                server: Address::Mem("m".into()),
                node: NodeId::new(2),
            }),
            idle: None,
            ..running()
        }
    }

    fn pong(hop: u32, progress: Option<Progress>) -> Pong {
        Pong {
            call: call(),
            distance: 0,
            token: None,
            request: request(hop),
            attempt: 0,
            announced: false,
            writing: false,
            evicted: false,
            gone: false,
            heartbeats: false,
            progress,
        }
    }

    fn terms() -> Terms {
        Terms {
            period: at(100),
            timeout: at(1000),
            prompt: None,
            ends: true,
            stalls: vec![],
        }
    }

    /// When the loss of this hop at this time has to be told.
    fn due(detection: &Detection, hop: u32, since: u64, terms: &Terms) -> Option<Duration> {
        let lost = Lost {
            path: request(hop).path,
            what: Cause::Handler(request(hop)),
            since: at(since),
            depth: hop,
            above: None,
        };
        Some(detection.verdict(lost, terms)?.due)
    }

    #[test]
    fn a_loss_is_due_a_timeout_after_the_last_news() {
        let mut detection = begun();
        assert_eq!(due(&detection, 0, 20, &terms()), Some(at(1100)), "watched");
        assert_eq!(due(&detection, 0, 300, &terms()), Some(at(1300)), "lost");
        detection.ponged(&pong(0, Some(running())), at(400));
        assert_eq!(due(&detection, 0, 300, &terms()), Some(at(1400)));
        detection.ponged(&pong(0, None), at(500));
        assert_eq!(due(&detection, 0, 300, &terms()), Some(at(1400)), "unknown");
    }

    #[test]
    fn that_a_branch_went_on_is_news_once() {
        let mut detection = begun();
        for time in [200, 300, 400] {
            detection.ponged(&pong(0, Some(continued())), at(time));
        }
        assert_eq!(due(&detection, 1, 150, &terms()), Some(at(1200)));
    }

    #[test]
    fn nothing_is_due_of_what_the_initiator_has_not_heard_of() {
        let unheard = Detection::new(call(), token(), at(0), at(100));
        assert_eq!(due(&unheard, 0, 300, &terms()), None);
    }

    #[test]
    fn a_sender_excuses_silence_while_it_is_true_that_it_writes() {
        let mut detection = begun();
        detection.ponged(&pong(0, Some(continued())), at(200));
        let mut writing = pong(0, Some(continued()));
        writing.writing = true;
        detection.excuses(request(0));
        detection.ponged(&writing, at(300));
        assert_eq!(due(&detection, 1, 150, &terms()), Some(at(1300)));
        detection.ponged(&writing, at(400));
        assert_eq!(due(&detection, 1, 150, &terms()), Some(at(1300)), "a lie");
    }

    #[test]
    fn where_all_is_prompt_late_words_excuse_nothing() {
        let prompt = Terms {
            prompt: Some(at(1)),
            ends: false,
            ..terms()
        };
        let mut detection = begun();
        detection.ponged(&pong(0, Some(continued())), at(5000));
        // A period, and eight times on the way for each of two servers.
        assert_eq!(due(&detection, 1, 150, &prompt), Some(at(1150 + 100 + 16)));
        assert_eq!(due(&detection, 1, 150, &terms()), Some(at(6000)));
    }

    #[test]
    fn who_is_known_to_be_gone_has_a_few_round_trips() {
        let prompt = Terms {
            prompt: Some(at(1)),
            ..terms()
        };
        let mut detection = begun();
        assert_eq!(
            due(&detection, 0, 300, &prompt),
            Some(at(1300)),
            "not named"
        );
        detection.left(request(0), at(10));
        assert_eq!(due(&detection, 0, 300, &prompt), Some(at(348)));
        assert_eq!(due(&detection, 0, 300, &terms()), Some(at(1300)));
    }

    #[test]
    fn an_initiator_that_stood_still_has_as_much_longer() {
        let stalls = Terms {
            stalls: vec![(at(50), at(100)), (at(900), at(700))],
            ..terms()
        };
        assert_eq!(due(&begun(), 0, 300, &stalls), Some(at(2000)));
    }
}
