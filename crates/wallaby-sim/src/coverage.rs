//! What was exercised: each kind of fault and each state and transition of the protocol that matters, counted.

/// Declares [`Point`] and the words for each.
macro_rules! points {
    ($($name:ident: $words:literal,)*) => {
        /// Something that a sufficient number of seeds must reach.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Point {
            $(#[doc = $words] $name,)*
        }

        impl Point {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// What it is, in words.
            pub fn words(self) -> &'static str {
                match self {
                    $(Self::$name => $words,)*
                }
            }
        }
    };
}

points! {
    // Faults as they took effect.
    FaultProcessCrash: "fault: a process crashed",
    FaultMachineCrash: "fault: a machine crashed",
    FaultClosed: "fault: an endpoint was closed",
    FaultDrain: "fault: an endpoint was drained",
    Drained: "a drained endpoint came to rest",
    FaultRestart: "fault: another incarnation started at an address",
    FaultStall: "fault: a node stalled while input waited for it",
    FaultHeld: "fault: a partition held bytes back",
    FaultOneWay: "fault: a one-way partition held bytes back",
    FaultCut: "fault: a connection was cut",
    FaultCutInside: "fault: a connection was cut inside a frame",
    FaultHalfOpen: "fault: one end of a cut connection was never told",
    FaultSpike: "fault: bytes took much longer than usual",
    FaultSlowClock: "fault: a clock was slow or fast",
    FaultLoss: "fault: a datagram was lost",
    FaultDuplicate: "fault: a datagram arrived twice",
    FaultCorrupt: "fault: a datagram was damaged",
    FaultReorder: "fault: a datagram overtook another",
    FaultWordLost: "fault: a ping, a pong or an end was lost by itself",
    // Sessions over datagrams.
    SessionOpened: "session: opened",
    SessionClosed: "session: closed by the peer",
    SessionNoAnswer: "session: no answer",
    SessionUnreachable: "session: nobody listens",
    SessionSilent: "session: silent",
    SessionForgotten: "session: forgotten by the peer",
    SessionRestarted: "session: the peer was restarted",
    SessionWrongIncarnation: "session: another incarnation answers",
    // Connections.
    ConnectionOpened: "connection: opened",
    ConnectionRefused: "connection: refused",
    ConnectionTimedOut: "connection: no answer to a dial",
    ConnectionWrongIncarnation: "connection: another incarnation answered",
    ConnectionPieces: "connection: a frame arrived in pieces",
    ConnectionParts: "connection: a message travelled in parts",
    ConnectionBlockedRequest: "connection: a request waited for credit or room",
    ConnectionBlockedResponse: "connection: a response waited for credit or room",
    ConnectionSilent: "connection: given up, the peer is silent",
    ConnectionBufferFull: "connection: the transport took no more",
    // Where a request is in its tree.
    RequestInitial: "request: initial",
    RequestContinued: "request: its branch went on",
    RequestChild: "request: a child",
    RequestFolded: "request: its path is folded",
    RequestCarriesManifest: "request: carries a manifest",
    RequestRefused: "request: refused for want of room",
    RequestQueued: "request: waited for its turn",
    RequestAhead: "request: an interceptor decided about it",
    RequestAheadRefused: "request: refused after an interceptor had let it pass",
    HandlerWaits: "request: its handler waited for those that it had sent before",
    HandlerFull: "request: its handler waited until there was room",
    RequestQueueFull: "request: refused, as many waited as may",
    RequestDeadline: "request: stopped at its deadline",
    HandlerStuck: "request: its handler went on for long after it was stopped",
    RequestUndelivered: "request: certainly not delivered",
    RequestUnread: "request: its server was closed before it had read it",
    RequestNotExecuted: "request: its server was closed before it began",
    RequestUnfinished: "request: its server was closed while it ran",
    // Bodies that follow requests.
    BodyWhole: "body: read whole",
    BodyBroken: "body: broken off by its writer",
    BodyLost: "body: broken or lost with its call or its connection",
    BodyBlocked: "body: its writer waited for room",
    BodyStopped: "body: nobody wanted more of it",
    // How a branch ends.
    EndLast: "end: the last response says so",
    EndOwnManifest: "end: a response with the branch's own manifest",
    EndOwnManifestOnRequest: "end: a request with the branch's own manifest",
    EndNull: "end: a null response",
    EndLate: "end: told after the last message had left",
    EndStatus: "end: a status",
    EndPanic: "end: a panic",
    // What an initiator gets.
    AnswerCarriesManifest: "answer: carries an ancestor's manifest",
    AnswerAfterEnd: "answer: after its call had ended",
    AnswerDirect: "answer: over the connection of its request",
    AnswerProven: "answer: over a connection that is proven to be its initiator's",
    Invited: "answer: who says that it is the initiator is asked to prove it",
    TokenShown: "answer: its initiator proves who it is",
    AnswerDialledBack: "answer: over a connection dialled for it",
    DialHeld: "a node that others have named: not dialled again yet",
    AnswerRelayed: "answer: relayed",
    AnswerWaits: "answer: waits for a way to the initiator",
    AnswerFoundRoute: "answer: has found a way at last",
    AnswerNowhere: "answer: no way to the initiator",
    AnswerAfterOutcome: "answer: after its call's outcome, while that winds down",
    // Liveness, at the initiator.
    Watched: "watch: a call lasted a ping period, or was aborted",
    Ping: "watch: a ping",
    PingMissing: "watch: a ping that asks for missing responses",
    PingAbort: "watch: a ping that aborts",
    PingPassed: "records: a ping passed on to where the work went",
    Resent: "watch: an initial request is sent again",
    WatchDisconnect: "watch: a server's connection ended",
    WatchGone: "watch: a server is gone",
    WatchNotFound: "watch: a server is not where others say",
    ToldGone: "watch: who handed a request on says that its server is gone",
    FailureSilent: "watch: failed, silence",
    FailureResponseLost: "watch: failed, a response is lost",
    FailureStalled: "watch: failed, a handler makes no progress",
    FailureUndelivered: "watch: failed, a request was not delivered",
    WindingFrozen: "watch: frozen",
    WindingQuiet: "watch: quiet",
    AnnouncementDismissed: "watch: an announcement of a call that is over",
    // Liveness, at servers.
    PongUnknown: "records: unknown",
    PongRunning: "records: running",
    PongChildren: "records: children listed",
    PongContinued: "records: continued",
    PongFacts: "records: facts told",
    PongWriting: "records: still writing",
    PongManifest: "records: a manifest told that was passed on before",
    PongLost: "records: a response given up",
    Announced: "records: announced",
    ResponseResent: "records: a response sent again",
    StopAborted: "records: stopped, aborted",
    StopSilent: "records: stopped, the initiator is silent",
    DelegationFrozen: "records: a delegation refused after an abort",
    RequestDuplicate: "records: a duplicate dropped",
    // What was lost when a call failed, and told in time.
    LossOfHandler: "detection: a handler was lost with its server",
    LossOfRequest: "detection: a request was sent and never taken",
    LossOfAnswer: "detection: an answer was lost with its server",
    LossExcused: "detection: a sender had something left to write",
    LossPrompt: "detection: nothing but a crash was in the way",
    LossGone: "detection: the end of a connection told",
    LossUnknown: "detection: nothing was known of the branch that was lost",
    // Outcomes.
    OutcomeComplete: "outcome: complete",
    OutcomeStatuses: "outcome: complete, with statuses",
    LossTolerated: "outcome: gone on without what was lost",
    OutcomeDeadline: "outcome: deadline",
    OutcomeAborted: "outcome: aborted",
    OutcomeFailed: "outcome: failed",
    OutcomeTooLarge: "outcome: a request too large to be sent",
    OutcomeInitiatorGone: "outcome: the initiator crashed",
}

/// How often each point was reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Coverage([u64; Point::ALL.len()]);

impl Default for Coverage {
    fn default() -> Self {
        Self([0; Point::ALL.len()])
    }
}

impl Coverage {
    /// A point was reached.
    pub(crate) fn hit(&mut self, point: Point) {
        self.0[point as usize] += 1;
    }

    /// How often a point was reached.
    pub fn count(&self, point: Point) -> u64 {
        self.0[point as usize]
    }

    /// Adds what another world reached.
    pub fn add(&mut self, other: &Self) {
        for (count, more) in self.0.iter_mut().zip(other.0) {
            *count += more;
        }
    }

    /// Points that were never reached.
    pub fn uncovered(&self) -> impl Iterator<Item = Point> {
        Point::ALL
            .iter()
            .copied()
            .filter(|point| self.count(*point) == 0)
    }
}
