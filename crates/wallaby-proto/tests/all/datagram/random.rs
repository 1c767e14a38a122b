//! Many sides on networks that lose, duplicate, delay and damage datagrams, with crashes and restarts, from one seed.
//!
//! Each incarnation sends requests of all sizes to the others and answers those it gets. An oracle that sees what every incarnation
//! sends and receives says what must hold: nothing arrives twice, changed, or at another incarnation than the one it was sent
//! to; what was acknowledged has arrived; what was never sent has not; and once the network is good again, everything
//! arrives in each session that lives.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use wallaby_proto::NodeId;
use wallaby_proto::carrier::{Carrier, Mark};
use wallaby_proto::connection::{Charge, ConnectionLimits, Event};
use wallaby_proto::datagram::{Cause, GateSettings, SessionEnd, SessionId};
use wallaby_proto::wire::Message;

use crate::chance::Random;
use crate::datagram::messages::{method, named, node, request, response};
use crate::datagram::world::{Network, World, address, seeds};

const NODES: u64 = 3;

/// A message that was accepted for sending.
#[derive(Debug)]
struct Sent {
    /// The receiving incarnation.
    to: NodeId,
    /// The sender's address, session and place in its output.
    at: u64,
    session: SessionId,
    mark: Mark,
    payload: Bytes,
    arrived: u32,
    /// Its session has ended without it: whether it was sent at all.
    ended: Option<bool>,
    /// Its sender crashed: nobody asks what became of it.
    forgotten: bool,
}

struct Run {
    world: World,
    seed: u64,
    settings: GateSettings,
    /// The incarnation at each address.
    incarnations: BTreeMap<u64, u64>,
    next_incarnation: u64,
    /// By sender's incarnation, whether it is a response, and sequence.
    sent: BTreeMap<(u64, bool, u64), Sent>,
    sequences: BTreeMap<u64, u64>,
    /// Open sessions by address, with the peer's incarnation.
    sessions: BTreeMap<(u64, SessionId), NodeId>,
    statistics: Statistics,
}

#[derive(Debug, Default)]
struct Statistics {
    accepted: u64,
    arrived: u64,
    blocked: u64,
    crashes: u64,
    cuts: u64,
    ended: BTreeMap<&'static str, u64>,
}

impl Run {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        let network = Network {
            delay: Duration::from_micros(20 + random.below(3000)),
            jitter: Duration::from_micros(random.below(5000)),
            lost: random.below(31),
            duplicated: random.below(31),
            corrupted: random.below(31),
            bandwidth: random.percent(30).then_some((1_000_000, 30_000)),
            longest: usize::MAX,
        };
        let settings = GateSettings {
            datagram: if random.percent(70) { 1200 } else { 4000 },
            sessions: 64,
            unacknowledged: if random.percent(50) { 1 << 20 } else { 50_000 },
            patience: Duration::from_millis(2000 + random.below(8000)),
            ..GateSettings::default()
        };
        let mut run = Self {
            world: World::new(random.next(), network),
            seed,
            settings,
            incarnations: BTreeMap::new(),
            next_incarnation: 1,
            sent: BTreeMap::new(),
            sequences: BTreeMap::new(),
            sessions: BTreeMap::new(),
            statistics: Statistics::default(),
        };
        (1..=NODES).for_each(|at| run.start(at));
        run
    }

    /// Starts an incarnation at an address; the one that was there has crashed.
    fn start(&mut self, at: u64) {
        let incarnation = self.next_incarnation;
        self.next_incarnation += 1;
        if self.incarnations.insert(at, incarnation).is_some() {
            self.statistics.crashes += 1;
            self.sessions.retain(|(address, _), _| *address != at);
            let of_it = |sent: &&mut Sent| sent.at == at && sent.arrived == 0;
            (self.sent.values_mut())
                .filter(of_it)
                .for_each(|sent| sent.forgotten = true);
        }
        self.world
            .start(at, incarnation, ConnectionLimits::default(), self.settings);
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.world.random.below(limit)
    }

    /// Something that an application might do.
    fn act(&mut self, crashes: bool) {
        let at = 1 + self.below(NODES);
        match self.below(200) {
            0..=3 => {
                let to = 1 + (at + self.below(NODES - 1)) % NODES;
                let now = self.world.now;
                let _ = self.world.gate(at).dial(now, address(to), None);
            }
            4 if crashes => self.start(at),
            5 if crashes => {
                if let Some(session) = self.some_session(at) {
                    self.sessions.remove(&(at, session));
                    self.end_all(at, session, None);
                    let session = self.world.gate(at).session(session);
                    session.expect("open").close("enough");
                }
            }
            6 if crashes => self.cut(at),
            _ => self.send(at),
        }
    }

    /// One direction carries nothing for a while, perhaps longer than anybody is patient; perhaps the other too.
    fn cut(&mut self, from: u64) {
        let to = 1 + (from + self.below(NODES - 1)) % NODES;
        let until = self.world.now + Duration::from_millis(self.below(6000));
        let (from, to) = (address(from), address(to));
        self.world.cut.insert((from, to), until);
        if self.below(2) == 0 {
            self.world.cut.insert((to, from), until);
        }
        self.statistics.cuts += 1;
    }

    fn some_session(&mut self, at: u64) -> Option<SessionId> {
        let here: Vec<_> = (self.sessions.keys())
            .filter(|(address, _)| *address == at)
            .map(|(_, session)| *session)
            .collect();
        let index = self.below(here.len().max(1) as u64) as usize;
        here.get(index).copied()
    }

    fn send(&mut self, at: u64) {
        let Some(session) = self.some_session(at) else {
            return;
        };
        let (incarnation, to) = (self.incarnations[&at], self.sessions[&(at, session)]);
        let sequence = self.sequences.entry(incarnation).or_default();
        *sequence += 1;
        let sequence = *sequence;
        let payload = self.payload();
        let method = match self.below(3) {
            0 => named("demo.Index/other"),
            _ => method(),
        };
        let mut request = request(node(incarnation), sequence, payload.clone());
        let open = self.world.gate(at).session(session).expect("open");
        match open.send_request(&mut request, &method) {
            Ok(mark) => self.remember(
                at,
                incarnation,
                to,
                session,
                mark,
                payload,
                (false, sequence),
            ),
            Err(_) => self.statistics.blocked += 1,
        }
    }

    fn payload(&mut self) -> Bytes {
        let len = match self.below(20) {
            0 => self.below(65_537),
            1..=3 => self.below(5000),
            _ => self.below(300),
        };
        let first = self.below(256);
        (0..len).map(|index| (first + index % 251) as u8).collect()
    }

    #[expect(clippy::too_many_arguments, reason = "the fields of a record")]
    fn remember(
        &mut self,
        at: u64,
        incarnation: u64,
        to: NodeId,
        session: SessionId,
        mark: Mark,
        payload: Bytes,
        (response, sequence): (bool, u64),
    ) {
        self.statistics.accepted += 1;
        let sent = Sent {
            to,
            at,
            session,
            mark,
            payload,
            arrived: 0,
            ended: None,
            forgotten: false,
        };
        self.sent.insert((incarnation, response, sequence), sent);
    }

    fn look(&mut self) {
        for at in 1..=NODES {
            for (session, event) in self.world.events(at) {
                match event {
                    Ok(Event::Opened(peer)) => {
                        self.sessions.insert((at, session), peer.node);
                    }
                    Ok(Event::Message(message)) => self.receive(at, session, message),
                    Ok(Event::Method(..) | Event::Credit(_)) => {}
                    Ok(event) => panic!("seed {}: {event:?}", self.seed),
                    Err(ended) => self.end(at, session, &ended),
                }
            }
        }
    }

    fn receive(&mut self, at: u64, session: SessionId, message: Message) {
        let sender = self.sessions[&(at, session)];
        let (key, payload) = match &message {
            Message::Request(request) => (
                (sender.get(), false, request.call.sequence),
                &request.payload,
            ),
            Message::Response(response) => (
                (sender.get(), true, response.call.sequence),
                &response.payload,
            ),
            message => panic!("seed {}: {message:?}", self.seed),
        };
        let (seed, incarnation) = (self.seed, node(self.incarnations[&at]));
        let sent = self.sent.get_mut(&key).expect("something that was sent");
        sent.arrived += 1;
        assert_eq!(sent.arrived, 1, "seed {seed}: {key:?} arrived again");
        assert_eq!(
            sent.to, incarnation,
            "seed {seed}: {key:?} was for another incarnation"
        );
        assert_eq!(sent.payload, payload, "seed {seed}: {key:?} was changed");
        self.statistics.arrived += 1;
        if let Message::Request(request) = message {
            self.answer(
                at,
                session,
                sender,
                request.call.sequence,
                request.payload.len(),
            );
        }
    }

    fn answer(&mut self, at: u64, session: SessionId, to: NodeId, sequence: u64, len: usize) {
        let incarnation = self.incarnations[&at];
        // Sequences of several callers may be equal.
        let sequence = sequence * 1_000_000 + to.get();
        let payload = self.payload();
        let response = response(to, sequence, payload.clone());
        let Some(open) = self.world.gate(at).session(session) else {
            return;
        };
        open.grant_request(len);
        match open.send_response(&response, Charge::Free) {
            Ok(mark) => self.remember(
                at,
                incarnation,
                to,
                session,
                mark,
                payload,
                (true, sequence),
            ),
            Err(_) => self.statistics.blocked += 1,
        }
    }

    fn end(&mut self, at: u64, session: SessionId, ended: &SessionEnd) {
        let kind = match ended.cause {
            Cause::Closed(_) => "closed",
            Cause::NoAnswer(_) => "no answer",
            Cause::Silent { .. } => "silent",
            Cause::Forgotten(_) => "forgotten",
            Cause::Restarted { .. } => "restarted",
            ref cause => panic!("seed {}: {cause}", self.seed),
        };
        *self.statistics.ended.entry(kind).or_default() += 1;
        self.sessions.remove(&(at, session));
        self.end_all(at, session, Some(ended));
    }

    /// A session has ended: what was sent in it is unknown, or certainly not sent, as its end says.
    fn end_all(&mut self, at: u64, session: SessionId, ended: Option<&SessionEnd>) {
        let seed = self.seed;
        for (key, sent) in &mut self.sent {
            if sent.at != at || sent.session != session || sent.forgotten {
                continue;
            }
            match ended {
                None => sent.forgotten = sent.arrived == 0,
                Some(ended) => {
                    let pending = (ended.pending.iter()).find(|it| it.mark == sent.mark);
                    match pending {
                        Some(pending) => sent.ended = Some(pending.sent),
                        None => assert_eq!(sent.arrived, 1, "seed {seed}: {key:?} acknowledged"),
                    }
                    assert!(
                        sent.ended != Some(false) || sent.arrived == 0,
                        "seed {seed}: {key:?} arrived, but was not sent"
                    );
                }
            }
        }
    }

    /// Lets time pass until this moment, or until nothing happens any more.
    fn pass(&mut self, until: Duration) {
        while self.world.step(until) {
            self.look();
        }
        self.world.now = until;
        self.look();
    }

    /// Everything that may arrive has arrived.
    fn check(&self) {
        let seed = self.seed;
        for (key, sent) in &self.sent {
            let lives = self.sessions.contains_key(&(sent.at, sent.session)) && !sent.forgotten;
            if lives {
                assert_eq!(sent.arrived, 1, "seed {seed}: {key:?} is missing");
                let open = self.world.gates[&address(sent.at)].peek(sent.session);
                let open = open.expect("it lives");
                assert!(open.is_idle(), "seed {seed}: {key:?}");
            }
            if sent.ended == Some(false) {
                assert_eq!(sent.arrived, 0, "seed {seed}: {key:?} was never sent");
            }
        }
    }
}

fn run(seed: u64) -> Statistics {
    let mut run = Run::new(seed);
    let crashes = seed % 2 == 1;
    for at in 1..=NODES {
        let now = run.world.now;
        let to = address(1 + at % NODES);
        run.world.gate(at).dial(now, to, None).expect("room");
    }
    let actions = 200 + run.below(400);
    for _ in 0..actions {
        run.act(crashes);
        let pause = Duration::from_micros(run.below(20_000));
        let until = run.world.now + pause;
        run.pass(until);
    }
    // The network gets well, and everything that is under way arrives.
    run.world.network = Network::default();
    let until = run.world.now + Duration::from_secs(40);
    run.pass(until);
    run.check();
    run.statistics
}

#[test]
fn everything_arrives_once_or_its_session_ends() {
    let mut total = Statistics::default();
    let mut worlds = 0;
    for seed in seeds(60) {
        println!("WALLABY_SEED={seed}");
        worlds += 1;
        let statistics = run(seed);
        total.accepted += statistics.accepted;
        total.arrived += statistics.arrived;
        total.blocked += statistics.blocked;
        total.crashes += statistics.crashes;
        total.cuts += statistics.cuts;
        for (kind, count) in statistics.ended {
            *total.ended.entry(kind).or_default() += count;
        }
    }
    println!("{total:?}");
    if worlds >= 60 {
        assert!(total.arrived * 2 > total.accepted, "{total:?}: most arrive");
        for kind in ["closed", "silent", "forgotten", "restarted"] {
            assert!(
                total.ended.contains_key(kind),
                "{total:?}: {kind} is exercised"
            );
        }
    }
}
