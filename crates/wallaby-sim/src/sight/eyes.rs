//! What is seen of an endpoint from inside, and what a broken one says and hears that is not so.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::time::Duration;

use wallaby_proto::call::records::Judgement;
use wallaby_proto::connection::{Hello, Mark};
use wallaby_proto::datagram::Cause;
use wallaby_proto::endpoint::{ConnId, Leaving, Note, Probe, Released};
use wallaby_proto::wire::{Child, End, Message, PingSettings, Pong, Request, Response};
use wallaby_proto::{CallId, Code, Facts, NodeId, RequestId, Status};

use crate::addresses::node_at;
use crate::broken::Broken;
use crate::plan::LinkPlan;
use crate::random::Random;
use crate::workload::Task;

/// Longer than any world lasts.
pub(crate) const FOR_EVER: PingSettings = PingSettings {
    period: PingSettings::LONGEST_PERIOD,
    timeout: PingSettings::LONGEST,
};

/// Something that an endpoint did, in the order in which it did it.
#[derive(Debug)]
pub(super) enum Fact {
    Opened(ConnId, NodeId),
    SessionEnded(ConnId, Cause),
    Came(Option<ConnId>, Message),
    /// What came is lost.
    Lost,
    Judged(Judged),
    /// A request sends a message; whether that is its last one, and its first.
    Released {
        by: (CallId, RequestId),
        what: Out,
        last: bool,
        first: bool,
    },
    Replaced(Response),
    Sent(ConnId, Message, Mark),
    Placed(ConnId, u64, u64),
    Waits(Message),
    Stranded(Message),
    Tells(Pong),
    Note(Note),
}

/// A message that a request sends.
#[derive(Debug)]
pub(super) enum Out {
    /// A request: for which task, and the node that it goes to.
    Request(RequestId, u32, u32),
    Response(Response),
    End(End),
}

/// A request that came, and what becomes of it.
#[derive(Debug)]
pub(super) struct Judged {
    pub(super) call: CallId,
    pub(super) id: RequestId,
    pub(super) task: Option<u32>,
    pub(super) attempt: u32,
    pub(super) judgement: Judgement,
}

/// A request that is handled.
#[derive(Debug)]
struct Running {
    arrived: Duration,
    ping: PingSettings,
    sent: u32,
}

/// Looks on at an endpoint.
#[derive(Debug)]
pub(crate) struct Eyes {
    node: NodeId,
    /// What is deliberately wrong here.
    broken: Option<Broken>,
    /// In how many of a million cases a request comes twice.
    echoes: u32,
    /// In how many what needs no credit is lost.
    words_lost: u32,
    random: Random,
    facts: Vec<Fact>,
    /// The task of the request that came last, and a copy of it if it is to come again.
    task: Option<u32>,
    echo: Option<Request>,
    /// The next one is such a copy.
    again: bool,
    running: BTreeMap<(CallId, RequestId), Running>,
    /// Requests that have announced themselves here.
    announced: BTreeSet<(CallId, RequestId)>,
    /// Where requests will delegate to next that wait for something before.
    pub(crate) upcoming: BTreeMap<(CallId, RequestId), Child>,
    /// Requests that have sent something of which it is not known that it has arrived.
    pub(crate) unconfirmed: BTreeSet<(CallId, RequestId)>,
    /// Calls of this node that live.
    pub(crate) calls: BTreeSet<CallId>,
    pub(crate) now: Duration,
}

impl Eyes {
    pub(crate) fn new(
        node: NodeId,
        broken: Option<Broken>,
        (links, random): (&LinkPlan, Random),
    ) -> Self {
        Self {
            node,
            broken,
            echoes: links.echoes,
            words_lost: links.words_lost,
            random,
            facts: Vec::new(),
            task: None,
            echo: None,
            again: false,
            running: BTreeMap::new(),
            announced: BTreeSet::new(),
            upcoming: BTreeMap::new(),
            unconfirmed: BTreeSet::new(),
            calls: BTreeSet::new(),
            now: Duration::ZERO,
        }
    }

    /// What has happened since this was asked last.
    pub(super) fn take(&mut self) -> Vec<Fact> {
        mem::take(&mut self.facts)
    }

    fn is(&self, broken: Broken) -> bool {
        self.broken == Some(broken)
    }

    fn runs(&self, call: CallId) -> bool {
        self.running.keys().any(|(running, _)| *running == call)
    }

    fn is_lost(&mut self, message: &Message) -> bool {
        let is_word = matches!(
            message,
            Message::Ping(_) | Message::Pong(_) | Message::End(_)
        );
        is_word && self.random.chance(self.words_lost)
    }

    /// Makes something else of what comes.
    fn spoil(&self, message: &mut Message) {
        match message {
            Message::Request(request) if self.is(Broken::NeverForgets) => {
                request.options.get_or_insert_default().ping = Some(FOR_EVER);
            }
            Message::Response(response) if self.is(Broken::AnyCall) => {
                if response.call.initiator == self.node
                    && !self.calls.contains(&response.call)
                    && let Some(other) = self.calls.first()
                {
                    (response.call, response.token) = (*other, None);
                }
            }
            Message::Response(response)
                if self.is(Broken::LostStatus) && response.call.initiator == self.node =>
            {
                if let Some(end) = lost_status(response) {
                    *message = Message::End(end);
                }
            }
            _ => {}
        }
    }
}

/// The code of a status.
pub(super) fn code(response: &Response) -> Option<Code> {
    let status = (response.status).then(|| Status::from_payload(&response.payload));
    Some(status?.ok()?.code())
}

/// What a status looks like that is lost: the word that no more comes. Only of work that was refused for want of room.
pub(super) fn lost_status(status: &Response) -> Option<End> {
    let is_status = status.status && status.last && status.index == 0;
    let reason = Status::from_payload(&status.payload).ok()?;
    (is_status && reason.code() == Code::ResourceExhausted).then(|| End {
        call: status.call,
        distance: status.distance,
        token: status.token,
        request: status.request,
        facts: Facts {
            requests: 0,
            responses: 0,
        },
        manifest: status.manifest,
        options: None,
    })
}

impl Probe for Eyes {
    fn opened(&mut self, conn: ConnId, hello: &Hello) {
        self.facts.push(Fact::Opened(conn, hello.node));
    }

    fn session_ended(&mut self, conn: ConnId, cause: &Cause) {
        self.facts.push(Fact::SessionEnded(conn, cause.clone()));
    }

    fn comes(&mut self, from: Option<ConnId>, message: &mut Message) -> bool {
        if from.is_some() && self.words_lost > 0 && self.is_lost(message) {
            self.facts.push(Fact::Lost);
            return false;
        }
        self.spoil(message);
        if let Message::Pong(pong) = message
            && pong.announced
            && self.announced.insert((pong.call, pong.request))
            && self.is(Broken::SurvivorUnheard)
        {
            return false;
        }
        if let Message::Request(request) = message {
            self.task = Task::from_payload(&request.payload).map(|task| task.number);
            // It must not come a third time.
            let echoed = !mem::take(&mut self.again) && self.random.chance(self.echoes);
            self.echo = echoed.then(|| request.clone());
        }
        self.facts.push(Fact::Came(from, message.clone()));
        let forgets = self.is(Broken::NoTombstone);
        !matches!(message, Message::Ping(ping) if forgets && ping.abort && !self.runs(ping.call))
    }

    fn echoes(&mut self) -> Option<Message> {
        self.again = self.echo.is_some();
        self.echo.take().map(Message::Request)
    }

    fn judged(&mut self, request: &Request, judgement: &Judgement) {
        let (call, id) = (request.call, request.id);
        let options = request.options.as_ref();
        match judgement {
            Judgement::Accepted(_) => {
                let ping = options.and_then(|options| options.ping);
                let (arrived, ping) = (self.now, ping.unwrap_or_default());
                let running = Running {
                    arrived,
                    ping,
                    sent: 0,
                };
                self.running.insert((call, id), running);
            }
            // What was refused is not remembered: only a session can tell that it comes again.
            _ => self.echo = None,
        }
        self.facts.push(Fact::Judged(Judged {
            call,
            id,
            task: self.task,
            attempt: options.map_or(0, |options| options.attempt),
            judgement: judgement.clone(),
        }));
    }

    fn released(&mut self, by: (CallId, RequestId), message: Released<'_>, last: bool) {
        let what = match message {
            Released::Request(id, server, payload) => {
                let task = Task::from_payload(payload).map_or(u32::MAX, |task| task.number);
                Out::Request(id, task, node_at(server).unwrap_or(u32::MAX))
            }
            Released::Response(response) => Out::Response(response.clone()),
            Released::End(end) => Out::End(end.clone()),
        };
        let running = self.running.get_mut(&by);
        let first = running.is_none_or(|running| mem::replace(&mut running.sent, 1) == 0);
        if last {
            self.running.remove(&by);
        }
        self.facts.push(Fact::Released {
            by,
            what,
            last,
            first,
        });
    }

    fn replaced(&mut self, status: &Response) {
        self.facts.push(Fact::Replaced(status.clone()));
    }

    fn leaves(&mut self, _: ConnId, mut message: Leaving<'_>) {
        if let Leaving::Response(response) = &mut message
            && self.is(Broken::NeverBegan)
            && code(response) == Some(Code::Unfinished)
        {
            response.options.get_or_insert_default().undelivered = true;
        }
        if let Leaving::Request(request) = message
            && self.is(Broken::Watermark)
            && request.call.initiator == self.node
            && request.depth == 0
        {
            request.oldest = request.call.sequence + 1;
        }
    }

    fn sent(&mut self, over: ConnId, message: Leaving<'_>, mark: Mark) {
        let message = match message {
            Leaving::Request(request) => Message::Request(request.clone()),
            Leaving::Response(response) => Message::Response(response.clone()),
            Leaving::Control(message) => message.clone(),
        };
        self.facts.push(Fact::Sent(over, message, mark));
    }

    fn placed(&mut self, over: ConnId, parts: u64, mark: u64) {
        self.facts.push(Fact::Placed(over, parts, mark));
    }

    fn waits(&mut self, message: Message) {
        self.facts.push(Fact::Waits(message));
    }

    fn stranded(&mut self, message: Message) {
        self.facts.push(Fact::Stranded(message));
    }

    fn tells(&mut self, pong: &mut Pong) {
        let key = (pong.call, pong.request);
        let running = self.running.get(&key);
        if self.is(Broken::UnacknowledgedExcuses) && self.unconfirmed.contains(&key) {
            pong.writing = true;
        }
        if self.is(Broken::GcFromArrival)
            && running.is_some_and(|run| self.now > run.arrived + run.ping.gc_timeout())
        {
            pong.progress = None;
        }
        if let Some(progress) = &mut pong.progress {
            if self.is(Broken::ManifestForgotten) && progress.finished {
                progress.manifest = None;
            }
            if self.is(Broken::PongListsHeld)
                && let Some(next) = self.upcoming.get(&key)
            {
                progress.children.push(next.clone());
            }
        }
        self.facts.push(Fact::Tells(pong.clone()));
    }

    fn notes(&mut self, note: Note) {
        self.facts.push(Fact::Note(note));
    }
}
