//! One call at its client: its tree, who watches over that, what its answers cost, and how it ends.
//!
//! A [`ClientCall`] is told what has come of the call and what became of what it sent, and says what is to be done
//! ([`ClientCall::poll`]). It knows connections by their keys and asks a [`CallContext`] about them; routes, connections and
//! alarms are its endpoint's.
//!
//! ```text
//! it begins:          ClientCall::new(..); add_root(..) and root_sent(..) for each initial request; close(..)
//! what comes:         handle_answer(..), handle_pong(..), handle_disconnect(..), handle_gone(..), handle_not_found(..)
//! its timers:         handle_timeout(..) at next_timeout(), when all input was read; handle_deadline(..)
//! the application:    next_answer(), abort(..)
//! after each of them: while let Some(action) = call.poll(..) { .. }
//! ```
//!
//! It is live until it [is over](ClientCall::is_over): complete, or it has failed and nothing of it runs any more.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::LONGEST;
pub use super::answers::Received;
use super::call_options::CallOptions;
use super::config::Config;
use super::event::{CallKey, IncomingAnswer, Outcome};
use super::order::Order;
use super::probe::Note;
use super::resending::Resending;
pub use super::resending::SentAgain;
use crate::call::allowance::Allowance;
use crate::call::initiator::{Initiator, Violation};
use crate::call::server::undelivered_initial;
use crate::call::ungranted::UngrantedAnswers;
use crate::call::watch::{Location, Loss, Source, Watch, WatchAction};
use crate::cold::Cold;
use crate::connection::{Mark, MethodDefinition};
use crate::error::{ConnectError, Failure};
use crate::fifo::Fifo;
use crate::numbers::{DEFAULT_DEADLINE, DEFAULT_PING};
use crate::wire::{
    Budgets, Heartbeats, MessageOptions, MethodRef, Ping, PingSettings, ReplyTo, Request, Response,
};
use crate::{Address, CallId, Code, ConnId, NodeId, Path, RequestId, Status, Token};

/// What a call asks about its endpoint.
pub trait CallContext {
    /// The settings.
    fn config(&self) -> &Config;

    /// The time of a [`Clock`](crate::call::clock::Clock), which stands still while the process does.
    fn now(&self) -> Duration;

    /// The time that goes on all the same: deadlines are kept by it.
    fn raw(&self) -> Duration;

    /// Who is at the other end of a connection; the endpoint itself if it is none.
    fn source(&self, from: Option<ConnId>) -> Source;

    /// Whether a connection has not ended.
    fn is_open(&self, conn: ConnId) -> bool;

    /// How many messages have come over a connection.
    fn messages_received(&self, conn: ConnId) -> u64;

    /// Whether what stands there in a connection's output has not left yet.
    fn is_writing(&self, conn: ConnId, mark: Mark) -> bool;
}

/// What is to be done for a call.
#[derive(Debug)]
pub enum ClientAction {
    /// So many more answers can be taken ([`ClientCall::next_answer`]).
    Answers(usize),
    /// A connection has taken an initial request that somebody waits for, or none will.
    Sent,
    /// Send an initial request again. If that cannot be, [`ClientCall::not_sent`].
    SendAgain(Box<SentAgain>),
    /// At this time, by [`CallContext::raw`], an initial request may be sent again: [`ClientCall::send_kept`].
    SendLater(RequestId, Duration),
    /// What was lost below an initial request is executed again: it needs this connection, which it went out over, no longer.
    ExecutedAgain(Option<ConnId>),
    /// This status takes the place of the answers of a request that was certainly not executed: it is to come as one of the
    /// endpoint's own.
    Replaced(Box<Response>),
    /// A connection may bring so many more answers of the call, and so many bytes of them.
    Grant(ConnId, u64, u64),
    /// Ask, by an open connection with the node or else at the address. If that is certain to reach nobody,
    /// [`ClientCall::handle_gone`] or [`ClientCall::handle_not_found`].
    Ping(Box<(Location, Ping)>),
    /// Say this over a connection.
    PingOver(ConnId, Box<Ping>),
    /// The call is watched over from now on: its timers count.
    Watched,
    /// Something happened that only a [`Probe`](super::Probe) wants to know.
    Noted(Note),
    /// It has come to its [outcome](ClientCall::outcome). What may still run elsewhere is stopped, unless it is over.
    Ended,
    /// After an abort or a failure: nothing of it runs any more, as far as its servers can be reached. Nothing follows.
    Quiet,
}

/// One call at its client.
#[derive(Debug)]
pub struct ClientCall {
    pub(super) initiator: Tree,
    /// How much time it had, and when that is over.
    pub(super) time: Duration,
    pub(super) deadline: Duration,
    /// What is not the default.
    pub(super) options: Option<Box<CallOptions>>,
    pub(super) roots: Fifo<InitialRequest>,
    state: CallState,
    /// Somebody waits until an initial request is sent.
    wants_sent: bool,
    /// What answers cost of the call's credit.
    pub(super) credit: UngrantedAnswers,
    /// When it is to be watched over, if no initial request had been sent when it was looked at.
    pub(super) begin_at: Option<Duration>,
    /// Connections over which its servers were asked: they need not show the token when they answer.
    pub(super) pinged: BTreeSet<ConnId>,
    pub(super) allowance: Option<Box<Allowance>>,
    /// What answers of this endpoint itself cost that the application has not taken.
    pub(super) own: u64,
    /// What is noted of a traced one.
    pub(super) traced: Option<Box<Traced>>,
    /// What is kept of one that may be sent again.
    pub(super) resending: Option<Box<Resending>>,
    /// Of one whose answers are told in order.
    pub(super) order: Option<Box<Order>>,
    /// Of one that goes on without what is lost.
    pub(super) tolerant: Option<Box<Tolerance>>,
    /// Answers that the application has not taken, and how many of them were not told of.
    pub(super) answers: Fifo<IncomingAnswer>,
    pub(super) untold: usize,
    pub(super) outcome: Option<Outcome>,
    /// The code of the first status among its answers.
    pub(super) status: Option<Code>,
    /// Its server takes no more requests, and has said so of this one.
    pub(super) turned_away: bool,
    /// What is to be done besides what follows from all this.
    actions: Cold<VecDeque<ClientAction>>,
}

/// What is known of a call's tree, with who watches over it once it lasts.
#[expect(
    clippy::large_enum_variant,
    reason = "most calls are over before they are watched: a box would be an allocation for each"
)]
#[derive(Debug)]
pub(super) enum Tree {
    Alone(Initiator),
    Watched(Box<Watch>),
}

impl Tree {
    #[inline]
    pub(super) fn watch(&self) -> Option<&Watch> {
        match self {
            Self::Alone(_) => None,
            Self::Watched(watch) => Some(watch),
        }
    }

    #[inline]
    pub(super) fn watch_mut(&mut self) -> Option<&mut Watch> {
        match self {
            Self::Alone(_) => None,
            Self::Watched(watch) => Some(watch),
        }
    }
}

impl Deref for Tree {
    type Target = Initiator;

    #[inline]
    fn deref(&self) -> &Initiator {
        match self {
            Self::Alone(tree) => tree,
            Self::Watched(watch) => watch.tree(),
        }
    }
}

impl DerefMut for Tree {
    #[inline]
    fn deref_mut(&mut self) -> &mut Initiator {
        match self {
            Self::Alone(tree) => tree,
            Self::Watched(watch) => watch.tree_mut(),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CallState {
    Live,
    /// It has come to its outcome, which is to be told; then what still runs is to be stopped.
    Ended,
    Told,
    /// What still runs is being stopped.
    Winding,
    /// Nothing of it runs any more.
    Over,
}

/// What is noted of a traced call.
#[derive(Debug)]
pub(super) struct Traced {
    /// When it began, and when it ended.
    pub(super) begun: Duration,
    pub(super) ended: Option<Duration>,
    /// When each branch's latest response arrived, since it began.
    pub(super) answered: BTreeMap<Path, Duration>,
}

/// What is known of a call that goes on without what is lost.
#[derive(Debug, Default)]
pub(super) struct Tolerance {
    /// Where its servers are, behind the first, if it is known that one follows another.
    pub(super) expected: Vec<Address>,
    pub(super) losses: Vec<Arc<Loss>>,
}

/// An initial request.
#[derive(Debug)]
pub(super) struct InitialRequest {
    pub(super) request: RequestId,
    pub(super) server: Address,
    pub(super) method: Arc<MethodDefinition>,
    /// The connection that it was sent on.
    pub(super) conn: Option<ConnId>,
    /// Its end in that connection's output.
    pub(super) sent: Mark,
    /// The end of the latest question about it there, or its own.
    pub(super) mark: Mark,
    /// Who was there.
    pub(super) node: Option<NodeId>,
    /// Its connection has ended; if it had none, it was certainly never sent.
    pub(super) lost: bool,
}

impl ClientCall {
    /// A call that has sent nothing yet; it is `raw` by the time that deadlines are kept by.
    #[inline]
    pub fn new(
        id: CallId,
        token: Token,
        options: &CallOptions,
        config: &Config,
        raw: Duration,
    ) -> Self {
        let budgets = options.budgets.unwrap_or_default();
        let time = config.time(options.deadline, None).min(LONGEST);
        let special = *options != CallOptions::default();
        Self {
            initiator: Tree::Alone(Initiator::new(id, token, budgets)),
            time,
            deadline: raw.saturating_add(time),
            options: special.then(|| Box::new(options.clone())),
            roots: Fifo::default(),
            state: CallState::Live,
            wants_sent: false,
            credit: UngrantedAnswers::default(),
            begin_at: None,
            pinged: BTreeSet::new(),
            allowance: options.budgets.map(|all| Box::new(Allowance::new(all))),
            own: 0,
            traced: options.traced.then(|| {
                Box::new(Traced {
                    begun: raw,
                    ended: None,
                    answered: BTreeMap::new(),
                })
            }),
            resending: (options.resend.clone()).map(|policy| Box::new(Resending::new(policy))),
            order: options.in_order.then(Box::default),
            tolerant: (options.tolerant && !options.fail_fast).then(Box::default),
            answers: Fifo::default(),
            untold: 0,
            outcome: None,
            status: None,
            turned_away: false,
            actions: Cold::NONE,
        }
    }

    /// What is known of its tree.
    pub fn tree(&mut self) -> &mut Initiator {
        &mut self.initiator
    }

    /// How it has ended; `None` while it goes on.
    pub fn outcome(&self) -> Option<&Outcome> {
        self.outcome.as_ref()
    }

    /// Whether it has come to its outcome.
    pub fn has_ended(&self) -> bool {
        self.state != CallState::Live
    }

    /// Whether nothing of it runs any more.
    pub fn is_over(&self) -> bool {
        self.state == CallState::Over
    }

    /// Whether its servers are asked about it.
    pub fn is_watched(&self) -> bool {
        self.initiator.watch().is_some()
    }

    pub(super) fn key(&self) -> CallKey {
        CallKey(self.initiator.call().sequence)
    }

    pub(super) fn ping(&self, default: PingSettings) -> PingSettings {
        let own = self.options.as_ref().and_then(|options| options.ping);
        own.unwrap_or(default)
    }

    // What is to be done.

    /// How many more answers can be taken than was told.
    #[inline]
    pub(super) fn take_untold(&mut self) -> usize {
        std::mem::take(&mut self.untold)
    }

    /// Whether there may be something to do, or to wait for.
    #[inline]
    pub(super) fn has_work(&self) -> bool {
        let has_news = self.untold > 0 || self.actions.is_some();
        let is_watched = self.is_watched() || self.begin_at.is_some();
        has_news || is_watched || matches!(self.state, CallState::Ended | CallState::Told)
    }

    /// What to do next; `None` when all is done.
    pub fn poll(&mut self, context: &impl CallContext) -> Option<ClientAction> {
        if self.untold > 0 {
            return Some(ClientAction::Answers(self.take_untold()));
        }
        if let Some(actions) = self.actions.get_mut() {
            match actions.pop_front() {
                None => self.actions = Cold::NONE,
                action => return action,
            }
        }
        match self.state {
            CallState::Ended => {
                if let Some(traced) = &mut self.traced {
                    traced.ended = Some(context.raw());
                }
                self.state = match &self.outcome {
                    // What was lost may run all the same.
                    Some(Outcome::Complete { .. }) if self.losses().is_empty() => CallState::Over,
                    _ => CallState::Told,
                };
                Some(ClientAction::Ended)
            }
            CallState::Told if !self.may_run() => {
                self.state = CallState::Over;
                Some(ClientAction::Quiet)
            }
            CallState::Told => {
                self.state = CallState::Winding;
                self.wind_down(context);
                self.poll(context)
            }
            CallState::Over => None,
            CallState::Live | CallState::Winding => self.poll_watch(context),
        }
    }

    fn poll_watch(&mut self, context: &impl CallContext) -> Option<ClientAction> {
        match self.initiator.watch_mut()?.poll() {
            Some(WatchAction::Ping { to, ping }) => {
                return Some(ClientAction::Ping(Box::new((to, ping))));
            }
            Some(WatchAction::Frozen) => return Some(ClientAction::Noted(Note::Frozen)),
            Some(WatchAction::Quiet) => {
                self.state = CallState::Over;
                return Some(ClientAction::Quiet);
            }
            Some(WatchAction::Failed(loss)) => self.lose(loss, context),
            Some(WatchAction::Lost(loss)) => self.note_loss(*loss),
            Some(WatchAction::Resend {
                request,
                attempt,
                failure,
            }) => self.begin_again(request, attempt, failure, context),
            // Of one that goes on without what is lost perhaps nothing else is missing.
            None if self.has_ended() || self.losses().is_empty() => return None,
            None if self.initiator.is_complete() => self.end(Ok(())),
            None => return None,
        }
        self.poll(context)
    }

    pub(super) fn push(&mut self, action: ClientAction) {
        self.actions.get_or_insert_default().push_back(action);
    }

    /// When [`handle_timeout`](Self::handle_timeout) has something to do, as far as it says: it is to be looked at once, when it has
    /// lasted a ping period.
    pub fn next_timeout(&self) -> Option<Duration> {
        match self.initiator.watch() {
            Some(watch) => watch.next_timeout(),
            None => self.begin_at,
        }
    }

    // Initial requests.

    /// A place for an initial request to this server.
    ///
    /// # Errors
    ///
    /// If no further one may come, or the call has as many as it may: then it has failed.
    pub fn add_root(
        &mut self,
        server: &Address,
        method: &Arc<MethodDefinition>,
    ) -> Result<RequestId, Failure> {
        if let Some(Outcome::Failed(failure)) = &self.outcome {
            return Err(failure.clone());
        }
        if self.has_ended() || self.initiator.is_closed() {
            return Err(Failure::CallClosed);
        }
        match self.initiator.send() {
            Ok(request) => {
                self.roots.push(InitialRequest {
                    request,
                    server: server.clone(),
                    method: Arc::clone(method),
                    conn: None,
                    sent: Mark::Written(0),
                    mark: Mark::Written(0),
                    node: None,
                    lost: false,
                });
                Ok(request)
            }
            Err(violation) => {
                let failure = match violation {
                    Violation::Limit(limit) => Failure::LimitReached(limit),
                    _ => Failure::CallClosed,
                };
                self.end(Err(failure.clone()));
                Err(failure)
            }
        }
    }

    /// The message for an initial request, with the options of its own in place of the call's, if these are given.
    pub fn initial(
        &mut self,
        id: RequestId,
        payload: Bytes,
        own: Option<&CallOptions>,
        context: &impl CallContext,
    ) -> Request {
        let budgets = self.share();
        let left = self.deadline.saturating_sub(context.raw());
        Request {
            call: self.initiator.call(),
            token: self.initiator.token(),
            id,
            depth: 0,
            base: 0,
            reply_to: ReplyTo::Peer,
            manifest: None,
            // The default of the protocol need not be stated.
            deadline: (self.time != DEFAULT_DEADLINE).then_some(left),
            oldest: 0, // its endpoint's business
            traced: self.traced.is_some(),
            compressed: false,
            waited: Duration::ZERO,
            options: self.request_options(budgets, context.config().ping, own, id),
            method: MethodRef::Number(0),
            payload,
        }
    }

    fn share(&mut self) -> Option<Budgets> {
        let allowance = self.allowance.as_mut()?;
        // Whether there may be one more is decided where all that arrives is counted, too.
        let _ = allowance.spend_request();
        Some(match allowance.announced() {
            1 => allowance.rest(),
            _ => allowance.share(),
        })
    }

    fn request_options(
        &self,
        budgets: Option<Budgets>,
        ping: PingSettings,
        own: Option<&CallOptions>,
        id: RequestId,
    ) -> Option<Box<MessageOptions>> {
        let ping = Some(self.ping(ping)).filter(|ping| *ping != DEFAULT_PING);
        let of_call = self.options.as_deref();
        let heartbeats = of_call.and_then(|options| options.heartbeats);
        let own = own.or(of_call);
        let travels = |own: &&CallOptions| {
            !own.metadata.is_empty() || own.continuation.is_some() || own.durable.is_some()
        };
        let own = own.filter(travels);
        if heartbeats.is_none() && own.is_none() && budgets.is_none() && ping.is_none() {
            return None;
        }
        let continuation = own.and_then(|own| own.continuation.as_ref());
        Some(Box::new(MessageOptions {
            ping,
            metadata: own.map(|own| own.metadata.clone()).unwrap_or_default(),
            continuation: continuation.map(|continuation| continuation.bytes().clone()),
            durable: own.and_then(|own| own.durable_of(id.path.initial_index().unwrap_or(0))),
            budgets,
            heartbeats: heartbeats.map(Heartbeats::bounded),
            ..MessageOptions::default()
        }))
    }

    /// No further initial request comes.
    pub fn close(&mut self) {
        if !self.has_ended() {
            self.initiator.close();
            self.complete();
        }
    }

    /// A connection with this node has taken an initial request, which stands there in its output. Whether that has consequences.
    pub fn root_sent(
        &mut self,
        request: RequestId,
        (conn, node): (ConnId, Option<NodeId>),
        mark: Mark,
        context: &impl CallContext,
    ) -> bool {
        if let Some(root) = self.root(request) {
            root.conn = Some(conn);
            (root.sent, root.mark) = (mark, mark);
            root.node = node;
            root.lost = false;
        }
        let mut has_news = std::mem::take(&mut self.wants_sent);
        if has_news {
            self.push(ClientAction::Sent);
        }
        if self.initiator.watch().is_some() {
            self.watch_root(request, context.now());
            has_news = true;
        } else if let Some(begin_at) = &mut self.begin_at {
            *begin_at = context.now();
            has_news = true;
        }
        has_news
    }

    /// An initial request of a call that is watched over was sent: so is that.
    #[cold]
    fn watch_root(&mut self, request: RequestId, now: Duration) {
        let at = self.server_of(request);
        // One that is sent again is known.
        if let Some(watch) = self.initiator.watch_mut()
            && watch.server_of(request).is_none()
        {
            watch.sent(request, at, now);
        }
    }

    /// The last part of an initial request has been added to the output.
    pub(super) fn root_left(&mut self, request: RequestId, mark: u64) {
        if let Some(root) = self.root(request) {
            (root.sent, root.mark) = (Mark::Written(mark), Mark::Written(mark));
        }
    }

    /// An initial request certainly reaches nobody.
    pub fn not_sent(
        &mut self,
        request: RequestId,
        error: ConnectError,
        context: &impl CallContext,
    ) {
        if !self.try_elsewhere(request, context) {
            self.root_lost(request, Failure::NotSent { request, error });
        }
    }

    /// Nothing comes of an initial request, and the call ends with that, unless it goes on without what is lost.
    pub(super) fn root_lost(&mut self, request: RequestId, failure: Failure) {
        if !self.tolerates(request, &failure) {
            self.end(Err(failure));
        }
    }

    /// One of several initial requests of a call that goes on without what is lost certainly reaches nobody: a status says so in
    /// its name. Whether it is so.
    #[cold]
    fn tolerates(&mut self, request: RequestId, failure: &Failure) -> bool {
        let is_only_one = self.initiator.is_closed() && self.roots.iter().count() < 2;
        if self.has_ended() || self.tolerant.is_none() || is_only_one {
            return false;
        }
        if let Some(root) = self.root(request) {
            root.lost = true;
        }
        self.note_sent();
        let message = match failure {
            Failure::NotSent { error, .. } => error.to_string(),
            other => other.to_string(),
        };
        let status = Status::new(failure.code(), message).by(failure.server());
        self.answer_in_its_name(request, &status);
        true
    }

    /// An initial request certainly is not executed: this status ends it.
    pub(super) fn answer_in_its_name(&mut self, request: RequestId, status: &Status) {
        let (call, token) = (self.initiator.call(), self.initiator.token());
        let response = undelivered_initial(call, token, request, status);
        self.push(ClientAction::Replaced(Box::new(response)));
    }

    /// Whether a connection has taken this initial request, or the call goes on without. If not, [`ClientAction::Sent`] says when.
    pub(super) fn is_sent(&mut self, request: RequestId) -> bool {
        let root = self.root(request);
        let is_sent = root.is_none_or(|root| root.conn.is_some() || root.lost);
        self.wants_sent |= !is_sent;
        is_sent
    }

    fn note_sent(&mut self) {
        if std::mem::take(&mut self.wants_sent) {
            self.push(ClientAction::Sent);
        }
    }

    pub(super) fn root(&mut self, request: RequestId) -> Option<&mut InitialRequest> {
        let index = request.path.initial_index()? as usize;
        let root = self.roots.get_mut(index)?;
        (root.request.path == request.path).then_some(root)
    }

    /// Whether any of it may have left.
    pub(super) fn was_sent(&self) -> bool {
        self.roots.iter().any(|root| root.conn.is_some())
    }

    // How it ends.

    /// All of it has come, perhaps: then it ends.
    pub(super) fn complete(&mut self) {
        if self.initiator.is_complete() {
            self.end(Ok(()));
        }
    }

    /// Gives it up.
    pub fn abort(&mut self, context: &impl CallContext) {
        if !self.has_ended() {
            let missing = self.missing(context);
            self.end(Err(Failure::Aborted { missing }));
        }
    }

    /// Its time is over.
    pub fn handle_deadline(&mut self, context: &impl CallContext) {
        if !self.has_ended() {
            let failure = Failure::Deadline {
                after: self.time,
                missing: self.missing(context),
            };
            self.end(Err(failure));
        }
    }

    /// It has come to its outcome, unless it had before: nothing changes that.
    pub fn end(&mut self, outcome: Result<(), Failure>) {
        if self.has_ended() {
            return;
        }
        if outcome.is_ok() {
            self.note_losses();
        }
        self.state = CallState::Ended;
        self.note_sent();
        let (losses, statuses) = (self.losses().len() as u64, self.initiator.responses().1);
        if losses > 0 || outcome.is_err() {
            self.grant_all();
        }
        self.outcome = Some(match outcome {
            Ok(()) => Outcome::Complete {
                statuses: statuses + losses,
            },
            Err(failure) => Outcome::Failed(match &mut self.resending {
                Some(resending) => resending.failure(failure, statuses),
                None => failure,
            }),
        });
    }

    /// What ended it if something was lost, or what it went on without first.
    pub(super) fn first_loss(&self) -> Option<&Loss> {
        let failed = match &self.outcome {
            Some(Outcome::Failed(failure)) => failure.loss(),
            _ => None,
        };
        failed.or_else(|| self.losses().first().map(|loss| &**loss))
    }

    pub(super) fn losses(&self) -> &[Arc<Loss>] {
        let tolerant = self.tolerant.as_ref();
        tolerant.map_or(&[], |tolerant| &tolerant.losses)
    }
}
