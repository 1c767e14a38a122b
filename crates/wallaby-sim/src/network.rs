//! Links between nodes: ordered byte streams that take time, break at any byte and may not tell both ends.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use bytes::Bytes;

use crate::coverage::{Coverage, Point};
use crate::plan::{Fault, LinkPlan, Plan};
use crate::queue::{Event, Queue};
use crate::random::Random;

/// Largest piece that travels as one.
const PIECE: usize = 32 * 1024;

/// A connection's place in the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LinkId(pub(crate) u32);

/// One of the two ends of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Side {
    Dialler,
    Acceptor,
}

impl Side {
    pub(crate) fn other(self) -> Self {
        match self {
            Self::Dialler => Self::Acceptor,
            Self::Acceptor => Self::Dialler,
        }
    }
}

/// One end of one connection, as its node holds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Socket {
    pub(crate) link: LinkId,
    pub(crate) side: Side,
}

/// All links.
#[derive(Debug)]
pub(crate) struct Network {
    plan: LinkPlan,
    links: Vec<Link>,
    partitions: Vec<Partition>,
    /// A bit for each machine that is off.
    dark: u64,
    random: Random,
    /// Who has sent datagrams to whom.
    spoken: BTreeSet<(u32, u32)>,
    /// When the last datagram of one node to another arrives.
    latest: BTreeMap<(u32, u32), Duration>,
}

#[derive(Debug)]
struct Partition {
    from: u64,
    to: u64,
    both: bool,
    begin: Duration,
    end: Duration,
}

#[derive(Debug)]
struct Link {
    ends: [End; 2],
    /// What is under way to the dialler, and to the acceptor.
    pipes: [Pipe; 2],
    /// Since when nothing passes any more.
    broken: Option<Duration>,
}

/// An incarnation of a node, as an end of a connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct End {
    pub(crate) node: u32,
    pub(crate) incarnation: u32,
    open: bool,
    giving_up: bool,
}

#[derive(Debug, Default)]
struct Pipe {
    segments: VecDeque<(Duration, Segment)>,
    /// When the last of them arrives: none overtakes another.
    last: Duration,
    /// When the line is free again.
    free: Duration,
    /// Bytes that were written and have not been read.
    unread: usize,
    /// The writer waits for room.
    full: bool,
}

/// What arrives at an end.
#[derive(Debug)]
pub(crate) enum Segment {
    Bytes(Bytes),
    /// Nothing comes any more.
    End,
}

impl Network {
    pub(crate) fn new(plan: &Plan) -> Self {
        let partitions = plan.faults.iter().filter_map(|fault| match fault {
            Fault::Partition {
                from,
                to,
                both,
                at,
                lasts,
            } => {
                let end = *at + *lasts;
                Some(Partition {
                    from: *from,
                    to: *to,
                    both: *both,
                    begin: *at,
                    end,
                })
            }
            _ => None,
        });
        Self {
            plan: plan.links,
            links: Vec::new(),
            partitions: partitions.collect(),
            dark: 0,
            random: Random::new(plan.seed).fork(0x6e65),
            spoken: BTreeSet::new(),
            latest: BTreeMap::new(),
        }
    }

    /// An incarnation dials a node; the answer comes as an event.
    pub(crate) fn dial(&mut self, from: (u32, u32), to: u32, queue: &mut Queue) -> LinkId {
        let end = |(node, incarnation)| End {
            node,
            incarnation,
            open: true,
            giving_up: false,
        };
        let link = LinkId(self.links.len() as u32);
        self.links.push(Link {
            ends: [end(from), end((to, 0))],
            pipes: Default::default(),
            broken: None,
        });
        let latency = self.latency();
        queue.after(latency, Event::Dialled(link));
        link
    }

    /// The incarnation at one end.
    pub(crate) fn end(&self, Socket { link, side }: Socket) -> End {
        self.links[link.0 as usize].ends[side as usize]
    }

    /// Until when nothing passes from one node to another; `None` if it does.
    pub(crate) fn closed_until(
        &self,
        from: u32,
        to: u32,
        now: Duration,
        coverage: &mut Coverage,
    ) -> Option<Duration> {
        let (from, to) = (1 << from, 1 << to);
        let closing = self.partitions.iter().filter(|partition| {
            let forth = partition.from & from != 0 && partition.to & to != 0;
            let back = partition.both && partition.from & to != 0 && partition.to & from != 0;
            (forth || back) && from != to && (partition.begin..partition.end).contains(&now)
        });
        let longest = closing.max_by_key(|partition| partition.end)?;
        coverage.hit(if longest.both {
            Point::FaultHeld
        } else {
            Point::FaultOneWay
        });
        Some(longest.end)
    }

    /// The dialled node answers: with an incarnation that accepts, or with a refusal.
    pub(crate) fn answer(&mut self, link: LinkId, incarnation: Option<u32>, queue: &mut Queue) {
        let latency = self.latency();
        let state = &mut self.links[link.0 as usize];
        match incarnation {
            Some(incarnation) => state.ends[1].incarnation = incarnation,
            None => state.ends[1].open = false,
        }
        queue.after(latency, Event::Answered(link, incarnation.is_some()));
        // What the acceptor writes does not overtake its answer.
        state.pipes[0].last = queue.now() + latency;
    }

    /// A side writes; returns how many bytes were taken.
    pub(crate) fn write(
        &mut self,
        Socket { link, side }: Socket,
        bytes: &[u8],
        queue: &mut Queue,
        coverage: &mut Coverage,
    ) -> usize {
        let buffer = self.plan.buffer;
        let state = &mut self.links[link.0 as usize];
        let to = side.other();
        let pipe = &mut state.pipes[to as usize];
        let taken = bytes.len().min(buffer.saturating_sub(pipe.unread));
        if taken < bytes.len() {
            pipe.full = true;
            coverage.hit(Point::ConnectionBufferFull);
        }
        pipe.unread += taken;
        let unacknowledged = pipe.unread > 0;
        if state.broken.is_some() || !state.ends[to as usize].open {
            // A machine that is there says that it knows nothing of the connection.
            let silent =
                state.broken.is_some() || self.dark & 1 << state.ends[to as usize].node != 0;
            let end = &mut state.ends[side as usize];
            if unacknowledged && !end.giving_up {
                end.giving_up = true;
                let after = if silent {
                    self.plan.patience
                } else {
                    2 * self.plan.latency
                };
                queue.after(after, Event::GivenUp(Socket { link, side }));
            }
            return taken;
        }
        let mut rest = &bytes[..taken];
        while !rest.is_empty() {
            let piece = match self.random.chance(self.plan.pieces) {
                true => self.random.between(1, rest.len().min(PIECE) as u64) as usize,
                false => rest.len().min(PIECE),
            };
            if piece < rest.len().min(PIECE) {
                coverage.hit(Point::ConnectionPieces);
            }
            let (bytes, more) = rest.split_at(piece);
            self.send(
                link,
                to,
                Segment::Bytes(Bytes::copy_from_slice(bytes)),
                queue,
                coverage,
            );
            rest = more;
        }
        taken
    }

    fn send(
        &mut self,
        link: LinkId,
        to: Side,
        segment: Segment,
        queue: &mut Queue,
        coverage: &mut Coverage,
    ) {
        let mut latency = self.latency();
        if self.random.chance(self.plan.spikes) {
            latency += self.random_up_to(self.plan.spike);
            coverage.hit(Point::FaultSpike);
        }
        let pipe = &mut self.links[link.0 as usize].pipes[to as usize];
        let len = match &segment {
            Segment::Bytes(bytes) => bytes.len() as u64,
            Segment::End => 0,
        };
        pipe.free = pipe.free.max(queue.now())
            + Duration::from_nanos(len * 1_000_000_000 / self.plan.bandwidth);
        let arrival = (pipe.free + latency).max(pipe.last);
        pipe.last = arrival;
        pipe.segments.push_back((arrival, segment));
        queue.at(arrival, Event::Arrived(Socket { link, side: to }));
    }

    /// What has arrived at a side by now.
    pub(crate) fn arrived(
        &mut self,
        Socket { link, side }: Socket,
        queue: &mut Queue,
        coverage: &mut Coverage,
    ) -> Option<Segment> {
        let now = queue.now();
        let state = &self.links[link.0 as usize];
        let (from, to) = (
            state.ends[side.other() as usize].node,
            state.ends[side as usize].node,
        );
        if state.pipes[side as usize]
            .segments
            .front()
            .is_none_or(|(at, _)| *at > now)
        {
            return None;
        }
        if let Some(end) = self.closed_until(from, to, now, coverage) {
            // Retransmission notices a while after the way is open again; all that waits comes in order then.
            let again = end + self.random_up_to(Duration::from_millis(200));
            let pipe = &mut self.links[link.0 as usize].pipes[side as usize];
            for (at, _) in &mut pipe.segments {
                *at = (*at).max(again);
                queue.at(*at, Event::Arrived(Socket { link, side }));
            }
            pipe.last = pipe.last.max(again);
            return None;
        }
        let pipe = &mut self.links[link.0 as usize].pipes[side as usize];
        pipe.segments.pop_front().map(|(_, segment)| segment)
    }

    /// A side has read so many bytes: there is room for more.
    pub(crate) fn read(&mut self, Socket { link, side }: Socket, bytes: usize, queue: &mut Queue) {
        let latency = self.latency();
        let pipe = &mut self.links[link.0 as usize].pipes[side as usize];
        pipe.unread -= bytes;
        if pipe.full {
            pipe.full = false;
            queue.after(
                latency,
                Event::Writable(Socket {
                    link,
                    side: side.other(),
                }),
            );
        }
    }

    /// A side closes: the other one reads what was written and then learns of it.
    pub(crate) fn close(
        &mut self,
        Socket { link, side }: Socket,
        queue: &mut Queue,
        coverage: &mut Coverage,
    ) {
        let state = &mut self.links[link.0 as usize];
        state.ends[side as usize].open = false;
        state.pipes[side as usize].segments.clear();
        if state.broken.is_none() && state.ends[side.other() as usize].open {
            self.send(link, side.other(), Segment::End, queue, coverage);
        }
    }

    /// Whether this side is still an end of the connection.
    pub(crate) fn is_open(&self, Socket { link, side }: Socket) -> bool {
        self.links[link.0 as usize].ends[side as usize].open
    }

    /// Connections that join two nodes, in either direction.
    pub(crate) fn between(&self, a: u32, b: u32) -> Vec<LinkId> {
        self.select(|link| {
            let [dialler, acceptor] = &link.ends;
            (dialler.node, acceptor.node) == (a, b) || (dialler.node, acceptor.node) == (b, a)
        })
    }

    /// Breaks a connection: of what is under way in each direction only the beginning arrives, cut at any byte.
    pub(crate) fn cut(&mut self, link: LinkId, queue: &mut Queue, coverage: &mut Coverage) {
        coverage.hit(Point::FaultCut);
        for side in [Side::Dialler, Side::Acceptor] {
            self.lose_tail(link, side, coverage);
            let told = match self.random.below(4) {
                0 => None,
                1 => Some(Duration::ZERO),
                _ => Some(self.random.millis(1, 500)),
            };
            match told {
                Some(after) => queue.after(after, Event::GivenUp(Socket { link, side })),
                None => coverage.hit(Point::FaultHalfOpen),
            }
        }
        self.links[link.0 as usize].broken = Some(queue.now());
        for side in [Side::Dialler, Side::Acceptor] {
            self.give_up_in_time(Socket { link, side }, queue);
        }
    }

    /// When a connection was cut, if it was.
    pub(crate) fn cut_since(&self, link: LinkId) -> Option<Duration> {
        self.links.get(link.0 as usize)?.broken
    }

    /// Nobody acknowledges what an end has written: it gives its connection up after a while.
    fn give_up_in_time(&mut self, Socket { link, side }: Socket, queue: &mut Queue) {
        let state = &mut self.links[link.0 as usize];
        let unacknowledged = state.pipes[side.other() as usize].unread > 0;
        let end = &mut state.ends[side as usize];
        if unacknowledged && end.open && !end.giving_up {
            end.giving_up = true;
            queue.after(self.plan.patience, Event::GivenUp(Socket { link, side }));
        }
    }

    /// A node sends a datagram to another, which may get it once, twice, damaged or never.
    pub(crate) fn send_datagram(
        &mut self,
        from: u32,
        to: u32,
        bytes: Bytes,
        queue: &mut Queue,
        coverage: &mut Coverage,
    ) {
        self.spoken.insert((from, to));
        let closed = self.closed_until(from, to, queue.now(), coverage).is_some();
        if closed || self.random.chance(self.plan.loss) {
            return coverage.hit(Point::FaultLoss);
        }
        if self.random.chance(self.plan.duplication) {
            coverage.hit(Point::FaultDuplicate);
            self.deliver_datagram(from, to, bytes.clone(), queue, coverage);
        }
        self.deliver_datagram(from, to, bytes, queue, coverage);
    }

    fn deliver_datagram(
        &mut self,
        from: u32,
        to: u32,
        mut bytes: Bytes,
        queue: &mut Queue,
        coverage: &mut Coverage,
    ) {
        if self.random.chance(self.plan.corruption) && !bytes.is_empty() {
            coverage.hit(Point::FaultCorrupt);
            let mut damaged = bytes.to_vec();
            let place = self.random.below(damaged.len() as u64) as usize;
            damaged[place] ^= 1 << self.random.below(8);
            bytes = damaged.into();
        }
        let mut latency = self.latency();
        if self.random.chance(self.plan.spikes) {
            latency += self.random_up_to(self.plan.spike);
            coverage.hit(Point::FaultSpike);
        }
        let nanos = bytes.len() as u64 * 1_000_000_000 / self.plan.bandwidth;
        let arrival = queue.now() + latency + Duration::from_nanos(nanos);
        let latest = self.latest.entry((from, to)).or_default();
        if *latest > arrival {
            coverage.hit(Point::FaultReorder);
        }
        *latest = arrival.max(*latest);
        queue.at(arrival, Event::Datagram { from, to, bytes });
    }

    /// Whether a node has sent datagrams to another: then it also gets those of the other, wherever it is.
    pub(crate) fn has_spoken(&self, from: u32, to: u32) -> bool {
        self.spoken.contains(&(from, to))
    }

    /// A machine is on again.
    pub(crate) fn restart(&mut self, node: u32) {
        self.dark &= !(1 << node);
    }

    /// Whether a machine is off.
    pub(crate) fn is_dark(&self, node: u32) -> bool {
        self.dark & 1 << node != 0
    }

    /// An incarnation of a node is over. Its peers are told, unless its whole machine is gone.
    pub(crate) fn crash(
        &mut self,
        node: u32,
        machine: bool,
        queue: &mut Queue,
        coverage: &mut Coverage,
    ) {
        if machine {
            self.dark |= 1 << node;
        }
        for link in self.select(|link| link.ends.iter().any(|end| end.node == node && end.open)) {
            for side in [Side::Dialler, Side::Acceptor] {
                if self.end(Socket { link, side }).node != node {
                    continue;
                }
                let other = side.other();
                self.links[link.0 as usize].ends[side as usize].open = false;
                self.links[link.0 as usize].pipes[side as usize]
                    .segments
                    .clear();
                if self.links[link.0 as usize].broken.is_some()
                    || !self.is_open(Socket { link, side: other })
                {
                    continue;
                }
                self.lose_tail(link, other, coverage);
                if machine {
                    coverage.hit(Point::FaultHalfOpen);
                    self.give_up_in_time(Socket { link, side: other }, queue);
                } else {
                    self.send(link, other, Segment::End, queue, coverage);
                }
            }
        }
    }

    /// Loses what is under way to a side from some byte on.
    fn lose_tail(&mut self, link: LinkId, side: Side, coverage: &mut Coverage) {
        let pipe = &mut self.links[link.0 as usize].pipes[side as usize];
        if pipe.segments.is_empty() {
            return;
        }
        let kept = self.random.below(pipe.segments.len() as u64 + 1) as usize;
        pipe.segments.truncate(kept);
        if let Some((_, Segment::Bytes(bytes))) = pipe.segments.back_mut() {
            let len = self.random.between(0, bytes.len() as u64) as usize;
            if 0 < len && len < bytes.len() {
                coverage.hit(Point::FaultCutInside);
            }
            bytes.truncate(len);
        }
    }

    fn select(&self, wanted: impl Fn(&Link) -> bool) -> Vec<LinkId> {
        let alive = |link: &Link| link.broken.is_none() && link.ends.iter().any(|end| end.open);
        let links = self.links.iter().enumerate();
        links
            .filter(|(_, link)| alive(link) && wanted(link))
            .map(|(index, _)| LinkId(index as u32))
            .collect()
    }

    fn latency(&mut self) -> Duration {
        self.plan.latency + self.random_up_to(self.plan.jitter)
    }

    fn random_up_to(&mut self, most: Duration) -> Duration {
        Duration::from_micros(self.random.between(0, most.as_micros() as u64))
    }
}
