//! One machine: an endpoint's driver, as small as it can be.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use wallaby_proto::call::clock::Clock;
use wallaby_proto::call::initiator::{Arrival, Initiator};
use wallaby_proto::call::records::{
    Action as ServerAction, Admission, Origin, OutputMark, RecordLimits, Records, ReleasedMessage,
    Remembered, Ticket,
};
use wallaby_proto::call::server::{Inherited, Outbound, Server, undelivered};
use wallaby_proto::call::watch::{
    Action, FailureKind, Location, Source, Watch, WatchSettings, dismiss,
};
use wallaby_proto::wire::{
    Budgets, Child, Message, MethodRef, Options, PingSettings, ReplyTo, Request, Response,
};
use wallaby_proto::{Address, CallId, Code, NodeId, RequestId, Status, Token};

use super::oracle::Run;
use super::{Act, Ending, Event, Plan, World, session};

type Target = (usize, Plan);

pub(crate) struct Machine {
    number: usize,
    ping: PingSettings,
    pub(crate) life: Option<NodeId>,
    pub(crate) stalled_until: u64,
    clock: Clock,
    pub(crate) records: Records,
    handlers: BTreeMap<Ticket, Handler>,
    calls: BTreeMap<u64, ClientCall>,
    next_sequence: u64,
    /// When it has to wake up, by its own clock.
    due: Option<Duration>,
    /// Sessions that are open as far as it knows.
    open: BTreeSet<(NodeId, u64)>,
}

struct Handler {
    server: Server<Target>,
    request: Request,
    run: Run,
    acts: VecDeque<(u64, Act)>,
    ending: Ending,
}

struct ClientCall {
    initiator: Initiator,
    watch: Option<Watch>,
    servers: Vec<Location>,
    /// When it begins to be watched.
    watch_at: Duration,
    ping: PingSettings,
    settled: bool,
    gone: bool,
}

impl Machine {
    pub(crate) fn new(number: usize, life: NodeId, ping: PingSettings) -> Self {
        let limits = RecordLimits {
            ping,
            ..RecordLimits::default()
        };
        Self {
            number,
            ping,
            life: Some(life),
            stalled_until: 0,
            clock: Clock::default(),
            records: Records::new(limits),
            handlers: BTreeMap::new(),
            calls: BTreeMap::new(),
            next_sequence: 1,
            due: None,
            open: BTreeSet::new(),
        }
    }

    pub(crate) fn clear(&mut self) {
        *self = Self {
            life: None,
            ..Self::new(self.number, NodeId::new(1).expect("not zero"), self.ping)
        };
    }

    pub(crate) fn check_empty(&self) {
        assert_eq!(
            self.records.remembered(),
            Remembered::default(),
            "machine {}",
            self.number
        );
        assert!(self.handlers.is_empty() && self.calls.is_empty());
    }

    pub(crate) fn session_opened(&mut self, link: u64, peer: NodeId) {
        self.records.session_opened(session(link), peer);
        self.open.insert((peer, link));
    }

    pub(crate) fn sessions_with(&self, peer: NodeId) -> BTreeSet<u64> {
        let of_peer = |entry: &&(NodeId, u64)| entry.0 == peer;
        self.open
            .iter()
            .filter(of_peer)
            .map(|entry| entry.1)
            .collect()
    }

    fn oldest(&self) -> u64 {
        let first = self.calls.first_key_value();
        first.map_or(self.next_sequence, |(&sequence, _)| sequence)
    }
}

fn address(machine: usize) -> Address {
    Address::Mem(format!("m{machine}").into())
}

fn number(address: &Address) -> usize {
    address.to_string()[7..].parse().expect("a machine")
}

/// What a machine does when something happens.
impl World {
    /// The machine wakes up: its time for this turn.
    fn turn(&mut self, m: usize) -> Duration {
        let raw = Duration::from_millis(self.now);
        self.machines[m].clock.turn(raw)
    }

    /// Does all that the protocol asks for, and plans when to wake up next.
    fn settle(&mut self, m: usize, now: Duration) {
        loop {
            if let Some(action) = self.machines[m].records.poll() {
                self.serve(m, action, now);
                continue;
            }
            let calls = &mut self.machines[m].calls;
            let next = calls.iter_mut().find_map(|(&sequence, call)| {
                let action = call.watch.as_mut()?.poll()?;
                Some((sequence, action))
            });
            match next {
                Some((sequence, action)) => self.pursue(m, sequence, action, now),
                None => break,
            }
        }
        let machine = &mut self.machines[m];
        machine.calls.retain(|_, call| !call.gone);
        let Some(life) = machine.life else {
            return;
        };
        let watches = machine.calls.values().filter_map(|call| match &call.watch {
            Some(watch) => watch.next_timeout(),
            None => Some(call.watch_at),
        });
        let due = watches.chain(machine.records.next_timeout()).min();
        if due != machine.due {
            machine.due = due;
            machine.clock.arm(due);
            if let Some(due) = due {
                let raw = machine.clock.raw(due);
                let at = raw.as_micros().div_ceil(1000) as u64;
                self.plan(at, Event::Timer { at: life });
            }
        }
    }

    pub(crate) fn time_out(&mut self, m: usize) {
        let now = self.turn(m);
        let machine = &mut self.machines[m];
        if machine.due.is_none_or(|due| due > now) {
            return;
        }
        machine.due = None;
        machine.records.handle_timeout(now);
        for call in machine.calls.values_mut() {
            match &mut call.watch {
                Some(watch) => watch.handle_timeout(&mut call.initiator, now),
                None if call.watch_at <= now => call.begin_watch(now),
                None => {}
            }
        }
        self.settle(m, now);
    }

    pub(crate) fn session_ended(&mut self, m: usize, peer: NodeId, link: u64) {
        let now = self.turn(m);
        let machine = &mut self.machines[m];
        machine.open.remove(&(peer, link));
        machine.records.session_ended(session(link), now);
        for call in machine.calls.values_mut() {
            if let Some(watch) = &mut call.watch {
                watch.handle_disconnect(&call.initiator, peer, now);
            }
        }
        self.settle(m, now);
    }

    pub(crate) fn arrive(&mut self, m: usize, from: NodeId, link: u64, message: Message) {
        let now = self.turn(m);
        self.log(|| format!("machine {m} gets {}", describe(&message)));
        let origin = Origin {
            session: session(link),
            peer: from,
            transit: Duration::from_millis(self.faults.delay),
        };
        match message {
            Message::Request(request) => self.admit(m, origin, request, now),
            Message::Ping(ping) => {
                self.machines[m].records.handle_ping(&ping, origin, now);
            }
            Message::Response(_) | Message::End(_) | Message::Pong(_) => {
                self.hear(m, from, link, message, now);
            }
            Message::Trace(_) => {}
        }
        self.settle(m, now);
    }

    // The initiator's half.

    pub(crate) fn begin_call(&mut self, m: usize, plans: Vec<(usize, Plan)>) {
        let Some(life) = self.machines[m].life else {
            return;
        };
        let now = self.turn(m);
        let sequence = self.machines[m].next_sequence;
        self.machines[m].next_sequence += 1;
        let call = CallId {
            initiator: life,
            sequence,
        };
        self.oracle.count("calls");
        self.oracle.of(call);
        let token = Token::new(self.random.next());
        let client = ClientCall {
            initiator: Initiator::new(call, token, Budgets::default()),
            watch: None,
            servers: Vec::new(),
            watch_at: now + self.faults.ping().period,
            ping: self.faults.ping(),
            settled: false,
            gone: false,
        };
        self.machines[m].calls.insert(sequence, client);
        let mut refused = None;
        for (to, plan) in plans {
            let client = self.machines[m]
                .calls
                .get_mut(&sequence)
                .expect("just made");
            let id = client.initiator.send().expect("within the budget");
            let request = Request {
                call,
                token,
                id,
                depth: 0,
                base: 0,
                reply_to: ReplyTo::Peer,
                manifest: None,
                deadline: None,
                oldest: 0,
                traced: false,
                compressed: false,
                waited: Duration::ZERO,
                options: None,
                method: MethodRef::Number(0),
                payload: Bytes::new(),
            };
            match self.send_request(m, to, plan, request) {
                Ok(_) => {
                    let node = self.machines[to].life;
                    let client = self.machines[m]
                        .calls
                        .get_mut(&sequence)
                        .expect("just made");
                    client.servers.push(Location {
                        address: Some(address(to)),
                        node,
                    });
                }
                Err(_) => {
                    refused = Some(id);
                    break;
                }
            }
        }
        let client = self.machines[m]
            .calls
            .get_mut(&sequence)
            .expect("just made");
        client.initiator.close();
        if let Some(id) = refused {
            client.begin_watch(now);
            let watch = client.watch.as_mut().expect("just made");
            watch.fail(&mut client.initiator, id, FailureKind::Undelivered, now);
        }
        self.settle(m, now);
    }

    pub(crate) fn abort_one(&mut self, m: usize) {
        if self.machines[m].life.is_none() || self.machines[m].stalled_until > self.now {
            return;
        }
        let now = self.turn(m);
        let Some(call) = self.machines[m]
            .calls
            .values_mut()
            .find(|call| !call.settled)
        else {
            return;
        };
        let id = call.initiator.call();
        call.settled = true;
        if call.watch.is_none() {
            call.begin_watch(now);
        }
        let watch = call.watch.as_mut().expect("just made");
        watch.abort(&mut call.initiator, now);
        self.log(|| format!("machine {m} aborts {id}"));
        self.oracle.aborted(id);
        self.settle(m, now);
    }

    /// Something for the initiator of a call.
    fn hear(&mut self, m: usize, from: NodeId, link: u64, message: Message, now: Duration) {
        let at = self.lives[&from];
        let source = Source {
            location: Location {
                address: Some(address(at)),
                node: Some(from),
            },
            alone: self.sessions_of(m, from).iter().all(|&open| open == link),
        };
        let id = message.call();
        if self.machines[m].life != Some(id.initiator) {
            return;
        }
        let Some(call) = self.machines[m].calls.get_mut(&id.sequence) else {
            if let Message::Pong(pong) = &message
                && pong.announced
                && let Some(token) = pong.token
            {
                let ping = dismiss(pong, token);
                if self.link_is_open(link) {
                    self.send(m, link, Message::Ping(ping));
                }
            }
            return;
        };
        let request = match &message {
            Message::Response(response) => {
                let arrival = call
                    .initiator
                    .handle_response(response)
                    .unwrap_or_else(|violation| panic!("{id}: {violation}"));
                if arrival == Arrival::New && !call.settled {
                    let place = (response.request.path, response.index);
                    self.oracle.response_delivered(id, place);
                }
                Some(response.request)
            }
            Message::End(end) => {
                let ended = call.initiator.handle_end(end);
                ended.unwrap_or_else(|violation| panic!("{id}: {violation}"));
                Some(end.request)
            }
            _ => None,
        };
        let mut back = None;
        if let Some(watch) = &mut call.watch {
            match (&message, request) {
                (Message::Pong(pong), _) => {
                    back = watch.handle_pong(&mut call.initiator, pong, &source, now);
                }
                (_, Some(request)) => {
                    watch.handle_heard(&mut call.initiator, request, &source, now);
                }
                _ => {}
            }
        }
        if call.initiator.is_complete() && !call.settled {
            call.settled = true;
            call.gone = true;
            call.watch = None;
            self.log(|| format!("{id} is complete"));
            self.oracle.completed(id);
        }
        if let Some(stop) = back.filter(|_| self.link_is_open(link)) {
            self.send(m, link, Message::Ping(stop));
        }
    }

    /// Does what a call's watch asks for.
    fn pursue(&mut self, m: usize, sequence: u64, action: Action, now: Duration) {
        let call = self.machines[m]
            .calls
            .get_mut(&sequence)
            .expect("it has a watch");
        let id = call.initiator.call();
        match action {
            Action::Ping { to, ping } => {
                self.oracle.count("pings");
                let known = to.node.or_else(|| {
                    let machine = number(to.address.as_ref()?);
                    self.machines[machine].life
                });
                let Some(node) = known else {
                    return;
                };
                match self.link_to(m, node) {
                    Some(link) => {
                        self.send(m, link, Message::Ping(ping));
                    }
                    // Refused, or somebody else answers; but only when nothing more can come from there.
                    None if self.sessions_of(m, node).is_empty() => {
                        let call = self.machines[m].calls.get_mut(&sequence).expect("it has");
                        let watch = call.watch.as_mut().expect("it asks");
                        watch.handle_gone(&call.initiator, node, now);
                    }
                    None => {}
                }
            }
            Action::Retry { .. } | Action::Lost(_) => panic!("nobody allowed it"),
            Action::Failed(failure) => {
                call.settled = true;
                self.log(|| format!("{id}: {failure}"));
                self.oracle.failed(id, &failure);
            }
            Action::Frozen => self.oracle.count("frozen"),
            Action::Quiet => {
                call.gone = true;
                self.log(|| format!("{id} is quiet"));
                let certain = self.faults.control_loss == 0 && !self.faults.datagrams;
                self.oracle.quiet(id, certain);
            }
        }
    }

    // The servers' half.

    fn admit(&mut self, m: usize, origin: Origin, mut request: Request, now: Duration) {
        let machine = &mut self.machines[m];
        let life = machine.life.expect("it lives");
        let attempt = request
            .options
            .as_ref()
            .map_or(0, |options| options.attempt);
        let run = (request.id, attempt);
        match machine.records.admit(&request, origin, now) {
            Admission::Accepted(ticket) => {
                let payload: [u8; 8] = request.payload[..].try_into().expect("a plan's number");
                let plan = self.plans[u64::from_be_bytes(payload) as usize].clone();
                let handler = Handler {
                    server: Server::new(&mut request),
                    run,
                    acts: plan.acts.into(),
                    ending: plan.ending,
                    request,
                };
                self.oracle.handler_started(handler.request.call, run, life);
                self.machines[m].handlers.insert(ticket, handler);
                self.plan_step(m, ticket);
            }
            Admission::Duplicate => self.oracle.count("duplicates dropped"),
            Admission::Refused(status) => {
                self.oracle.count("requests refused");
                self.oracle.request_refused(request.call, run);
                self.refuse(m, &request, &status);
            }
        }
    }

    /// Answers a request in its name.
    fn refuse(&mut self, m: usize, request: &Request, status: &Status) {
        let response = undelivered(request, status);
        self.oracle
            .response_sent(request.call, (response.request.path, response.index));
        match self.link_to(m, request.call.initiator) {
            Some(link) => {
                self.send(m, link, Message::Response(response));
            }
            None => self.oracle.answer_lost(request.call),
        }
    }

    fn plan_step(&mut self, m: usize, ticket: Ticket) {
        let machine = &self.machines[m];
        let at = machine.life.expect("it lives");
        let time = machine.handlers[&ticket]
            .acts
            .front()
            .map_or(0, |act| act.0);
        self.plan(self.now + time, Event::Step { at, ticket });
    }

    /// A handler does what it does next.
    pub(crate) fn step(&mut self, m: usize, ticket: Ticket) {
        let now = self.turn(m);
        let Some(handler) = self.machines[m].handlers.get_mut(&ticket) else {
            return; // it was stopped
        };
        let server = &mut handler.server;
        let empty = Bytes::new;
        let mut sent: Vec<Outbound<Target>> = Vec::new();
        match handler.acts.pop_front() {
            Some((_, Act::Reply(time))) => {
                sent.extend(server.reply(payload_of(time)));
            }
            Some((_, Act::Delegate(to, plan))) => sent.extend(server.delegate((to, plan), empty())),
            Some((_, Act::Flush)) => sent.extend(server.flush()),
            None => match std::mem::take(&mut handler.ending) {
                Ending::Finish => sent.push(server.finish(None)),
                Ending::Respond(time) => {
                    sent.extend(server.respond(payload_of(time), None));
                }
                Ending::Forward(to, plan) => {
                    sent.extend(server.forward((to, *plan), empty(), None));
                }
                Ending::Fail => {
                    sent.push(server.fail(&Status::new(Code::Internal, "planned"), None));
                }
            },
        }
        // Who waits holds nothing back.
        if handler.acts.front().is_some_and(|act| act.0 > 0) {
            sent.extend(server.flush());
        }
        self.release(m, ticket, sent, now);
        if self.machines[m].handlers.contains_key(&ticket) {
            self.plan_step(m, ticket);
        }
        self.settle(m, now);
    }

    /// Sends what a request has released.
    fn release(&mut self, m: usize, ticket: Ticket, sent: Vec<Outbound<Target>>, now: Duration) {
        for message in sent {
            match message {
                Outbound::Response(response) => self.release_response(m, ticket, response, now),
                Outbound::End(end) => {
                    let link = self.link_to(m, end.call.initiator);
                    let records = &mut self.machines[m].records;
                    records.end_released(ticket, &end, None, now);
                    match link {
                        Some(link) => {
                            let mark = self.send(m, link, Message::End(end));
                            self.written(m, ticket, ReleasedMessage::End, link, mark);
                        }
                        None => {
                            self.oracle.answer_lost(end.call);
                            self.machines[m]
                                .records
                                .dropped(ticket, ReleasedMessage::End);
                        }
                    }
                }
                Outbound::Request(delegated) => self.release_delegation(m, ticket, delegated, now),
            }
        }
        let machine = &mut self.machines[m];
        if machine
            .handlers
            .get(&ticket)
            .is_some_and(|handler| handler.server.has_ended())
        {
            let handler = machine.handlers.remove(&ticket).expect("just seen");
            self.oracle.handler_ended(handler.request.call, handler.run);
        }
    }

    fn release_response(&mut self, m: usize, ticket: Ticket, response: Response, now: Duration) {
        self.oracle
            .response_sent(response.call, (response.request.path, response.index));
        let records = &mut self.machines[m].records;
        records.response_released(ticket, &response, None, now);
        let message = Message::Response(response);
        match time_to_write(&message) {
            0 => self.send_answer(m, ticket, message),
            time => {
                let at = self.machines[m].life.expect("it lives");
                self.plan(
                    self.now + time,
                    Event::Bulk {
                        at,
                        ticket,
                        message,
                    },
                );
            }
        }
    }

    pub(crate) fn bulk_written(&mut self, m: usize, ticket: Ticket, message: Message) {
        let now = self.turn(m);
        self.send_answer(m, ticket, message);
        self.settle(m, now);
    }

    fn send_answer(&mut self, m: usize, ticket: Ticket, message: Message) {
        let Message::Response(response) = &message else {
            return;
        };
        let sent = ReleasedMessage::Response(response.index);
        match self.link_to(m, response.call.initiator) {
            Some(link) => {
                let mark = self.send(m, link, message);
                self.written(m, ticket, sent, link, mark);
            }
            None => {
                self.oracle.answer_lost(response.call);
                self.machines[m].records.dropped(ticket, sent);
            }
        }
    }

    fn written(&mut self, m: usize, ticket: Ticket, sent: ReleasedMessage, link: u64, mark: u64) {
        let records = &mut self.machines[m].records;
        let session = session(link);
        records.placed(ticket, sent, OutputMark { session, mark });
        records.written(session, mark);
    }

    fn release_delegation(
        &mut self,
        m: usize,
        ticket: Ticket,
        delegated: wallaby_proto::call::server::Delegated<Target>,
        now: Duration,
    ) {
        let machine = &mut self.machines[m];
        let handler = &machine.handlers[&ticket];
        let (call, token) = (handler.request.call, handler.request.token);
        let attempt = handler.run.1;
        let reply_to = match &handler.request.reply_to {
            ReplyTo::Peer => ReplyTo::At(address(self.lives[&call.initiator])),
            other => other.clone(),
        };
        let to = delegated.to.0;
        let child = Child {
            server: address(to),
            node: self.machines[to].life,
        };
        let records = &mut self.machines[m].records;
        let quiet = records.quiet(ticket, now);
        let inherited = Inherited {
            reply_to,
            deadline: None,
            oldest: records.oldest(ticket).expect("it is known"),
            options: (quiet.is_some() || attempt > 0).then(|| {
                Box::new(Options {
                    quiet,
                    attempt,
                    ..Options::default()
                })
            }),
        };
        let released = records.delegation_released(ticket, &delegated, child, None, now);
        let ((to, plan), request) =
            delegated.into_request(call, token, MethodRef::Number(0), inherited);
        if released.is_err() {
            self.oracle.count("delegations frozen");
            let status = Status::new(Code::Cancelled, "aborted");
            return self.refuse(m, &request, &status);
        }
        match self.send_request(m, to, plan, request) {
            Ok((link, mark)) => self.written(m, ticket, ReleasedMessage::Delegation, link, mark),
            Err(request) => {
                let status = Status::new(Code::Unavailable, "nobody there");
                let own = Child {
                    server: address(m),
                    node: self.machines[m].life,
                };
                let records = &mut self.machines[m].records;
                let stand_in = records.delegation_undelivered(ticket, &request, own, now);
                let response = undelivered(&request, &status);
                match stand_in {
                    Some(ticket) => self.release_response(m, ticket, response, now),
                    None => self.refuse(m, &request, &status),
                }
            }
        }
    }

    /// Sends a request to whoever lives there; gives it back if that is nobody.
    fn send_request(
        &mut self,
        m: usize,
        to: usize,
        plan: Plan,
        mut request: Request,
    ) -> Result<(u64, u64), Box<Request>> {
        let Some(node) = self.machines[to].life else {
            return Err(Box::new(request));
        };
        self.plans.push(plan);
        request.payload = Bytes::from((self.plans.len() as u64 - 1).to_be_bytes().to_vec());
        if request.oldest == 0 {
            request.oldest = self.machines[m].oldest();
        }
        let attempt = request
            .options
            .as_ref()
            .map_or(0, |options| options.attempt);
        self.oracle
            .request_sent(request.call, (request.id, attempt));
        let link = self.link_to(m, node).expect("it lives");
        let mark = self.send(m, link, Message::Request(request));
        Ok((link, mark))
    }

    /// Does what the records ask for.
    fn serve(&mut self, m: usize, action: ServerAction, now: Duration) {
        match action {
            ServerAction::Pong { session, pong, .. } => {
                self.oracle.count("pongs");
                if self.link_is_open(session.0) {
                    self.send(m, session.0, Message::Pong(pong));
                }
            }
            ServerAction::Announce { pong, .. } => {
                self.oracle.count("announcements");
                if let Some(link) = self.link_to(m, pong.call.initiator) {
                    self.send(m, link, Message::Pong(pong));
                }
            }
            ServerAction::Resend {
                ticket,
                session,
                response,
            } => {
                let index = ReleasedMessage::Response(response.index);
                if !self.faults.repair || !self.link_is_open(session.0) {
                    self.machines[m].records.dropped(ticket, index);
                    return;
                }
                self.oracle.count("responses sent again");
                let mark = self.send(m, session.0, Message::Response(response));
                self.written(m, ticket, index, session.0, mark);
            }
            ServerAction::Stop { ticket, reason, .. } => {
                self.oracle.count("handlers stopped");
                let status = Status::new(Code::Cancelled, reason.to_string());
                if let Some(handler) = self.machines[m].handlers.get_mut(&ticket) {
                    let last = handler.server.fail(&status, None);
                    self.release(m, ticket, vec![last], now);
                }
            }
        }
    }

    fn link_is_open(&self, link: u64) -> bool {
        self.links.get(&link).is_some_and(|link| link.open)
    }
}

impl ClientCall {
    fn begin_watch(&mut self, now: Duration) {
        let settings = WatchSettings {
            ping: self.ping,
            ..WatchSettings::default()
        };
        let servers = self.servers.clone();
        self.watch = Some(Watch::new(&mut self.initiator, settings, servers, now));
    }
}

/// An answer says how long it takes to write.
fn payload_of(time: u64) -> Bytes {
    Bytes::from(time.to_be_bytes().to_vec())
}

fn time_to_write(message: &Message) -> u64 {
    let Message::Response(response) = message else {
        return 0;
    };
    match response.status {
        true => 0,
        false => response.payload[..]
            .try_into()
            .map_or(0, u64::from_be_bytes),
    }
}

fn describe(message: &Message) -> String {
    match message {
        Message::Request(request) => format!("request {} of {}", request.id, request.call),
        Message::Response(response) => {
            let RequestId { path, hop } = response.request;
            format!(
                "response {path}+{hop}[{}] of {}",
                response.index, response.call
            )
        }
        Message::End(end) => format!("end of {} {:?} of {}", end.request, end.facts, end.call),
        Message::Ping(ping) => format!(
            "ping {} abort {} of {}",
            ping.request, ping.abort, ping.call
        ),
        Message::Pong(pong) => format!("pong {} of {}: {pong:?}", pong.request, pong.call),
        Message::Trace(_) => "trace".to_owned(),
    }
}
