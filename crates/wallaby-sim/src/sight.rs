//! What is seen of an endpoint, and what the oracle is told of it.

mod eyes;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use wallaby_proto::call::records::{Judgement, StopReason};
use wallaby_proto::call::watch;
use wallaby_proto::connection::Mark;
use wallaby_proto::datagram::Cause;
use wallaby_proto::endpoint::{ConnId, Note};
use wallaby_proto::wire::{MAX_FRAME, Message, Ping, Pong, Request, Response};
use wallaby_proto::{CallId, Code, NodeId, RequestId, Status, Token};

pub(crate) use self::eyes::{Eyes, FOR_EVER};
use self::eyes::{Fact, Judged, Out, code, lost_status};
use crate::applications::Applications;
use crate::broken::{Broken, Ghosts};
use crate::context::{Context, note};
use crate::coverage::Point;
use crate::node::Host;
use crate::oracle::{self, Place, Released, Rule, Sent};
use crate::plan::ROOMY;
use crate::short::Short;
use crate::trail::{Flight, Item};

/// Where messages that a node has sent stand, and who it talks to.
#[derive(Debug, Default)]
pub(crate) struct Sight {
    /// Who is at the other ends of connections.
    pub(crate) peers: BTreeMap<ConnId, NodeId>,
    /// The first incarnations that were met at servers, for a node that is broken so.
    pub(crate) met: BTreeMap<u32, u32>,
    /// What requests of this node have released, and calls of it: which request that was.
    own: BTreeMap<(CallId, Item), Option<RequestId>>,
    /// Requests that have delegated over sessions, until that is acknowledged: for a node that is broken so.
    unacknowledged: Vec<(ConnId, u64, (CallId, RequestId))>,
    /// Messages of its own that are being written, by where they stand.
    leaving: BTreeMap<ConnId, Vec<(Mark, CallId, Item)>>,
    /// What it asks about its calls' initial requests, until that is written, and since when it is not.
    asking: Vec<(ConnId, u64, Duration, (CallId, RequestId))>,
    /// Calls of which something came.
    pub(crate) touched: BTreeSet<CallId>,
}

impl Sight {
    /// Tells the oracle what has happened since the last time.
    pub(crate) fn see(
        &mut self,
        host: &mut Host,
        whose: (&mut Applications, &mut Ghosts),
        context: &mut Context<'_>,
    ) {
        let (applications, ghosts) = whose;
        for fact in host.endpoint.probe().take() {
            self.tell(fact, host, (&mut *applications, &mut *ghosts), context);
        }
    }

    fn tell(
        &mut self,
        fact: Fact,
        host: &Host,
        (applications, ghosts): (&mut Applications, &mut Ghosts),
        context: &mut Context<'_>,
    ) {
        match fact {
            Fact::Opened(conn, peer) => {
                context.hit(match host.streams.contains_key(&conn) {
                    true => Point::ConnectionOpened,
                    false => Point::SessionOpened,
                });
                note!(context, host.index, "is connected to {peer} ({conn:?})");
                self.peers.insert(conn, peer);
            }
            Fact::SessionEnded(conn, cause) => session_ended(conn, &cause, host, context),
            Fact::Came(from, message) => self.came(from, &message, (host, applications), context),
            Fact::Lost => context.hit(Point::FaultWordLost),
            Fact::Judged(judged) => judge(judged, host, context),
            Fact::Released {
                by,
                what,
                last,
                first,
            } => self.released(by, what, (last, first), host.id, context),
            Fact::Replaced(status) => self.replaced(&status, host, context),
            Fact::Sent(over, message, mark) => {
                if let (Message::Request(request), true) =
                    (&message, context.is(Broken::ResendAfterReset))
                {
                    ghosts.keep(over, request.clone());
                }
                self.sent(over, &message, mark, host, context);
            }
            Fact::Placed(over, parts, mark) => {
                let leaving = self.leaving.get_mut(&over).into_iter().flatten();
                for (at, ..) in leaving.filter(|(at, ..)| *at == Mark::Parts(parts)) {
                    *at = Mark::Written(mark);
                }
            }
            Fact::Waits(message) => {
                note!(context, host.index, "cannot send {} now", Short(&message));
                match message {
                    Message::Request(_) => context.hit(Point::ConnectionBlockedRequest),
                    Message::Response(_) => context.hit(Point::ConnectionBlockedResponse),
                    _ => {}
                }
            }
            Fact::Stranded(message) => {
                note!(context, host.index, "has no way for {}", Short(&message));
                if matches!(message, Message::Response(_) | Message::End(_)) {
                    context.hit(Point::AnswerWaits);
                }
                let now = context.now();
                context.oracle.relayed(now, &message, None);
            }
            Fact::Tells(pong) => tells(&pong, context),
            Fact::Note(note) => noted(note, host, context),
        }
    }

    /// A connection as the oracle calls it, for what goes out over it.
    fn flight(&self, over: ConnId, host: &Host) -> Option<Flight> {
        let link = host.streams.get(&over).map(|stream| stream.socket.link.0);
        let peer = *self.peers.get(&over)?;
        Some((host.id, peer, link.unwrap_or(u32::MAX)))
    }

    fn came(
        &mut self,
        from: Option<ConnId>,
        message: &Message,
        (host, applications): (&Host, &mut Applications),
        context: &mut Context<'_>,
    ) {
        note!(context, host.index, "gets {}", Short(message));
        let flight = from.and_then(|from| self.flight(from, host));
        if let Some((own, other, link)) = flight {
            context.oracle.came(message, (other, own, link));
        }
        let (call, now) = (message.call(), context.now());
        match message {
            Message::Request(request) => cover_request(request, context),
            Message::Ping(ping) if ping.abort => {
                let plan = context.plan;
                context.oracle.told_to_abort(now, host.id, call, plan);
            }
            Message::Ping(_) => {}
            message if call.initiator == host.id => {
                self.answer_came(message, from, (host, applications), context);
            }
            message => {
                context.hit(Point::AnswerRelayed);
                context.oracle.relayed(now, message, Some(host.id));
            }
        }
    }

    /// A message for one of this node's calls came.
    fn answer_came(
        &mut self,
        message: &Message,
        from: Option<ConnId>,
        (host, applications): (&Host, &mut Applications),
        context: &mut Context<'_>,
    ) {
        let (id, now) = (message.call(), context.now());
        context.oracle.taken(now, host.id, message);
        let token = Token::derive(host.secret, id.sequence);
        if !matches!(message, Message::Pong(_))
            && message.token().is_some_and(|shown| shown != token)
        {
            let what = format!("{} shows another token", Short(message));
            context.violate(Rule::Misdelivered, what);
        }
        if !applications.has(id) {
            return context.hit(Point::AnswerAfterEnd);
        }
        if let Message::Pong(pong) = message {
            let peer = from.and_then(|from| self.peers.get(&from).copied());
            let is_invitation =
                watch::is_vouched(pong, token, peer) && watch::show(pong, token).is_some();
            if !is_invitation {
                context.oracle.pong_arrived(now, pong);
            }
        } else {
            context.oracle.arrived(now, message);
        }
        self.touched.insert(id);
        applications.heard(message, host, context);
    }

    fn released(
        &mut self,
        (call, id): (CallId, RequestId),
        what: Out,
        (last, first): (bool, bool),
        by: NodeId,
        context: &mut Context<'_>,
    ) {
        cover_end(&what, id, (last, first), context);
        if let Out::Response(response) = &what {
            let options = response.options.as_ref();
            match code(response) {
                Some(Code::Unfinished) => context.hit(Point::RequestUnfinished),
                Some(_) if options.is_some_and(|options| options.undelivered) => {
                    context.hit(Point::RequestNotExecuted);
                }
                _ => {}
            }
        }
        let lost = match &what {
            Out::Response(response) if context.is(Broken::LostStatus) => lost_status(response),
            _ => None,
        };
        let sent = match &what {
            _ if lost.is_some() => Sent::Answer(Place::End(id.path), true),
            Out::Request(id, task, server) => Sent::Request(*id, *task, *server),
            Out::Response(response) => {
                let place = Place::Response(response.request.path, response.index);
                Sent::Answer(place, response.status)
            }
            Out::End(end) => Sent::Answer(Place::End(end.request.path), false),
        };
        let item = match &sent {
            Sent::Request(id, ..) => Item::Request(*id),
            Sent::Answer(place, _) => Item::Answer(*place),
        };
        self.own.insert((call, item), Some(id));
        let now = context.now();
        let released = Released {
            call,
            by,
            what: sent,
        };
        context.oracle.released(now, id, &released, last);
        if let Out::Response(response) = &what {
            context.oracle.says(response);
        }
    }

    /// This node answers in the name of a request that it could not deliver.
    fn replaced(&mut self, status: &Response, host: &Host, context: &mut Context<'_>) {
        let (call, request) = (status.call, status.request);
        let code = Status::from_payload(&status.payload).map(|status| status.code());
        note!(
            context,
            host.index,
            "cannot deliver request {request} of {call}"
        );
        context.hit(Point::RequestUndelivered);
        let (now, plan) = (context.now(), context.plan);
        if code == Ok(Code::Unavailable) {
            let what = "a server believes that the next one is not there";
            context.oracle.gave_up(now, call, plan, what);
        }
        let place = Place::Response(request.path, status.index);
        self.own.insert((call, Item::Answer(place)), Some(request));
        let lost = lost_status(status).filter(|_| context.is(Broken::LostStatus));
        context.oracle.replaced(now, host.id, status);
        if lost.is_some() {
            context.oracle.loses(status);
        }
    }

    /// A connection has taken a message.
    fn sent(
        &mut self,
        over: ConnId,
        message: &Message,
        mark: Mark,
        host: &Host,
        context: &mut Context<'_>,
    ) {
        note!(
            context,
            host.index,
            "has sent {} on {over:?}",
            Short(message)
        );
        let (call, now) = (message.call(), context.now());
        let sending = oracle::sending(message);
        if let Some(flight) = self.flight(over, host) {
            context.oracle.sent(now, sending, flight);
        }
        if let (call, Some(item)) = sending
            && self.own.contains_key(&(call, item))
        {
            self.leaving
                .entry(over)
                .or_default()
                .push((mark, call, item));
            context.oracle.leaves(call, item);
            if let (Some(Some(by)), Mark::Written(mark)) = (self.own.get(&(call, item)), mark)
                && context.is(Broken::UnacknowledgedExcuses)
            {
                self.unacknowledged.push((over, mark, (call, *by)));
            }
        }
        match message {
            Message::Request(request) if attempt(request) > 0 => {
                context.hit(Point::Resent);
                context.oracle.resends.again(call, attempt(request));
            }
            Message::Response(response) if response.status => context.oracle.says(response),
            Message::Ping(ping) if call.initiator == host.id => {
                if let (Mark::Written(mark), true) = (mark, host.streams.contains_key(&over)) {
                    let about = (call, ping.request);
                    self.asking.push((over, mark, now, about));
                }
                cover_ping(ping, context);
            }
            Message::Ping(_) => {
                context.hit(Point::PingPassed);
                context.oracle.relayed(now, message, Some(host.id));
            }
            _ => {}
        }
        if matches!(message, Message::Response(_) | Message::End(_))
            && self.peers.get(&over) == Some(&call.initiator)
        {
            let stream = host.streams.get(&over);
            let dialled = stream.is_some_and(|stream| stream.server.is_some());
            context.hit(match message.token() {
                None => Point::AnswerDirect,
                Some(_) if dialled => Point::AnswerDialledBack,
                Some(_) => Point::AnswerProven,
            });
        }
    }

    /// A call of this node sends its initial requests.
    pub(crate) fn begun(&mut self, call: CallId, roots: &[(RequestId, u32, u32)]) {
        let own = roots
            .iter()
            .map(|(id, ..)| ((call, Item::Request(*id)), None));
        self.own.extend(own);
    }

    /// Tells the oracle what has left, as far as that is known now.
    pub(crate) fn note_written(&mut self, host: &mut Host, context: &mut Context<'_>) {
        let (now, endpoint) = (context.now(), &host.endpoint);
        self.leaving.retain(|conn, leaving| {
            // What waits for a connection that has ended never leaves by it.
            let progress = endpoint.written(*conn).unwrap_or((u64::MAX, None));
            let (left, confirmed) = (progress.0, progress.1.unwrap_or(progress.0));
            leaving.retain(|(mark, call, item)| {
                let reached = match item {
                    Item::Request(_) => left,
                    Item::Answer(_) => confirmed,
                };
                let waits = match mark {
                    Mark::Written(mark) => *mark > reached,
                    Mark::Parts(_) => reached < u64::MAX,
                };
                if !waits {
                    context.oracle.left(now, *call, *item);
                }
                waits
            });
            !leaving.is_empty()
        });
        let endpoint = &host.endpoint;
        self.asking.retain(|(conn, mark, since, (call, request))| {
            let waits = endpoint
                .written(*conn)
                .is_some_and(|(left, _)| left < *mark);
            if !waits && *since < now {
                context.oracle.asked_late(now, *call, *request);
            }
            waits
        });
        self.unacknowledged.retain(|(conn, mark, _)| {
            let progress = endpoint.written(*conn);
            progress.is_some_and(|(_, confirmed)| confirmed.is_some_and(|upto| upto < *mark))
        });
        let waiting = self.unacknowledged.iter();
        host.endpoint.probe().unconfirmed = waiting.map(|(.., request)| *request).collect();
    }
}

fn session_ended(conn: ConnId, cause: &Cause, host: &Host, context: &mut Context<'_>) {
    note!(context, host.index, "loses session {conn:?}: {cause}");
    context.hit(match cause {
        Cause::Closed(_) => Point::SessionClosed,
        Cause::NoAnswer(_) => Point::SessionNoAnswer,
        Cause::Unreachable => Point::SessionUnreachable,
        // What came was too little, for as long as silence may last.
        Cause::Silent { .. } | Cause::Broken(_) => Point::SessionSilent,
        Cause::Forgotten(_) => Point::SessionForgotten,
        Cause::Restarted { .. } => Point::SessionRestarted,
        Cause::Handshake(_) => Point::SessionWrongIncarnation,
    });
    match cause {
        Cause::Handshake(error) | Cause::Broken(error) if error.is_violation() => {
            let what = format!("n{}: {error}", host.index);
            context.violate(Rule::FalseAccusation, what);
        }
        _ => {}
    }
}

/// What becomes of a request that came.
fn judge(judged: Judged, host: &Host, context: &mut Context<'_>) {
    let Judged {
        call,
        id,
        task,
        attempt,
        judgement,
    } = judged;
    let now = context.now();
    match judgement {
        Judgement::Duplicate => return context.hit(Point::RequestDuplicate),
        Judgement::Refused(status) => {
            context.hit(Point::RequestRefused);
            note!(context, host.index, "refuses {id} of {call}: {status}");
        }
        // A small table may have had to forget that a call was aborted.
        Judgement::Accepted(_) if host.plan.requests >= ROOMY => {
            context.oracle.runs(now, host.id, call, id);
        }
        Judgement::Accepted(_) => {}
    }
    context.oracle.resends.started(now, call, id, attempt);
    context.oracle.started(now, call, (id, host.id), task);
}

fn noted(note: Note, host: &Host, context: &mut Context<'_>) {
    let point = match note {
        Note::Queued => Point::RequestQueued,
        Note::QueueFull => Point::RequestQueueFull,
        Note::Watched => Point::Watched,
        Note::Disconnected => Point::WatchDisconnect,
        Note::Gone => Point::WatchGone,
        Note::NotFound => Point::WatchNotFound,
        Note::ToldGone => Point::ToldGone,
        Note::Frozen => Point::WindingFrozen,
        Note::Quiet => Point::WindingQuiet,
        Note::Invited => Point::Invited,
        Note::TokenShown => Point::TokenShown,
        Note::Dismissed => Point::AnnouncementDismissed,
        Note::FoundRoute => Point::AnswerFoundRoute,
        Note::Dropped => Point::AnswerNowhere,
        Note::DialHeld => Point::DialHeld,
        Note::RefusedDelegation => Point::DelegationFrozen,
        Note::Undelivered(..) => Point::RequestUndelivered,
        Note::Unread => Point::RequestUnread,
        Note::TimedOut(conn) if host.streams.contains_key(&conn) => return,
        Note::TimedOut(_) => Point::SessionNoAnswer,
        Note::Resent(call, request, index) => {
            let place = Place::Response(request.path, index);
            context.oracle.leaves(call, Item::Answer(place));
            Point::ResponseResent
        }
        Note::Stopped(.., StopReason::Aborted) => Point::StopAborted,
        Note::Stopped(call, _, StopReason::InitiatorSilent) => {
            let what = "a server believes that its initiator is dead";
            let (now, plan) = (context.now(), context.plan);
            context.oracle.gave_up(now, call, plan, what);
            Point::StopSilent
        }
        Note::Stopped(..) => return,
    };
    context.hit(point);
}

/// A server tells of a request.
fn tells(pong: &Pong, context: &mut Context<'_>) {
    context.oracle.pongs(context.queue.now(), pong);
    if pong.announced {
        return context.hit(Point::Announced);
    }
    context.hit(match &pong.progress {
        None => Point::PongUnknown,
        Some(progress) if !progress.lost.is_empty() => Point::PongLost,
        Some(progress) if progress.facts.is_some() => Point::PongFacts,
        Some(progress) if progress.continuation.is_some() => Point::PongContinued,
        Some(progress) if !progress.children.is_empty() => Point::PongChildren,
        Some(_) => Point::PongRunning,
    });
    if pong.writing {
        context.hit(Point::PongWriting);
    }
    if (pong.progress.as_ref()).is_some_and(|told| told.finished && told.manifest.is_some()) {
        context.hit(Point::PongManifest);
    }
}

/// Which attempt of its call a request belongs to.
fn attempt(request: &Request) -> u32 {
    request
        .options
        .as_ref()
        .map_or(0, |options| options.attempt)
}

fn cover_ping(ping: &Ping, context: &mut Context<'_>) {
    context.hit(match ping.abort {
        true => Point::PingAbort,
        false => Point::Ping,
    });
    if !ping.missing.is_empty() {
        context.hit(Point::PingMissing);
    }
}

fn cover_request(request: &Request, context: &mut Context<'_>) {
    if request.id.hop > 0 {
        context.hit(Point::RequestContinued);
    } else if request.depth > 0 {
        context.hit(Point::RequestChild);
    }
    if request.id.path.is_folded() {
        context.hit(Point::RequestFolded);
    }
    if let Some(manifest) = request.manifest {
        context.hit(Point::RequestCarriesManifest);
        let (call, owner) = (request.call, manifest.owner);
        context.oracle.given(call, request.id, owner);
    }
    if request.payload.len() > MAX_FRAME {
        context.hit(Point::ConnectionParts);
    }
}

/// Notes how a branch ends.
fn cover_end(what: &Out, id: RequestId, (last, first): (bool, bool), context: &mut Context<'_>) {
    if !last {
        return;
    }
    match what {
        Out::Response(response) if response.last => context.hit(Point::EndLast),
        Out::Response(_) => context.hit(Point::EndOwnManifest),
        Out::Request(next, ..) if next.path != id.path => {
            context.hit(Point::EndOwnManifestOnRequest);
        }
        Out::Request(..) => {}
        Out::End(_) if first => context.hit(Point::EndNull),
        Out::End(_) => context.hit(Point::EndLate),
    }
}
