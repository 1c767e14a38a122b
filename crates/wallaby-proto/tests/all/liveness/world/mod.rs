//! A small world: machines with both halves of the protocol, sessions between them, faults, and virtual time.
//!
//! Everything is drawn from one seed. Times are milliseconds.

mod machine;
mod oracle;
mod plan;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use wallaby_proto::NodeId;
use wallaby_proto::call::records::{SessionNumber, Ticket};
use wallaby_proto::wire::{Message, PingSettings};

use crate::chance::Random;

pub(crate) use self::machine::Machine;
pub(crate) use self::oracle::Oracle;
pub(crate) use self::plan::{Act, Ending, Plan, Shape};

/// What the network and the machines do wrong.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Faults {
    /// Milliseconds that a message is under way at most.
    pub(crate) delay: u64,
    /// Messages overtake each other on one session too, as datagrams do; and some arrive twice.
    pub(crate) datagrams: bool,
    /// Percent of pings, pongs and announcements that are lost.
    pub(crate) control_loss: u64,
    /// Percent of ends that are lost without a trace.
    pub(crate) end_loss: u64,
    /// Whether kept responses are sent again.
    pub(crate) repair: bool,
    /// The timeout of all calls, in milliseconds; the ping period is 100.
    pub(crate) timeout: u64,
}

impl Faults {
    pub(crate) fn ping(&self) -> PingSettings {
        PingSettings {
            period: Duration::from_millis(100),
            timeout: Duration::from_millis(self.timeout),
        }
    }
}

pub(crate) struct World {
    pub(crate) seed: u64,
    pub(crate) random: Random,
    pub(crate) now: u64,
    pub(crate) faults: Faults,
    pub(crate) machines: Vec<Machine>,
    pub(crate) oracle: Oracle,
    plans: Vec<Plan>,
    links: BTreeMap<u64, Link>,
    /// By time, what comes first at the same time, and the order in which they were planned.
    events: BTreeMap<(u64, u8, u64), Event>,
    planned: u64,
    lives: BTreeMap<NodeId, usize>,
    pub(crate) logs: bool,
}

/// One session: a connection of two incarnations.
struct Link {
    ends: [(usize, NodeId); 2],
    open: bool,
    /// When the last message to each end arrives, control messages apart: they overtake others.
    arrivals: [[u64; 2]; 2],
    marks: [u64; 2],
}

#[derive(Debug, Clone)]
pub(crate) enum Event {
    Message {
        to: NodeId,
        from: NodeId,
        link: u64,
        message: Message,
    },
    /// A session ended for this end; all that came over it has been handled before.
    Ended {
        at: NodeId,
        peer: NodeId,
        link: u64,
    },
    /// A large answer has been written.
    Bulk {
        at: NodeId,
        ticket: Ticket,
        message: Message,
    },
    Step {
        at: NodeId,
        ticket: Ticket,
    },
    Timer {
        at: NodeId,
    },
    Call {
        machine: usize,
        plans: Vec<(usize, Plan)>,
    },
    Abort {
        machine: usize,
    },
    Crash {
        machine: usize,
    },
    Restart {
        machine: usize,
    },
    Cut {
        between: (usize, usize),
    },
    Stall {
        machine: usize,
        time: u64,
    },
}

impl World {
    pub(crate) fn new(seed: u64, machines: usize, faults: Faults) -> Self {
        let mut world = Self {
            seed,
            random: Random(seed),
            now: 0,
            faults,
            machines: Vec::new(),
            oracle: Oracle::default(),
            plans: Vec::new(),
            links: BTreeMap::new(),
            events: BTreeMap::new(),
            planned: 0,
            lives: BTreeMap::new(),
            logs: std::env::var("WALLABY_SEED").is_ok(),
        };
        for number in 0..machines {
            let life = world.new_life(number);
            world
                .machines
                .push(Machine::new(number, life, faults.ping()));
        }
        world
    }

    fn new_life(&mut self, machine: usize) -> NodeId {
        let life = loop {
            if let Some(life) = NodeId::new(self.random.next()) {
                break life;
            }
        };
        self.lives.insert(life, machine);
        life
    }

    pub(crate) fn log(&self, text: impl FnOnce() -> String) {
        if self.logs {
            println!("{:6} {}", self.now, text());
        }
    }

    pub(crate) fn plan(&mut self, at: u64, event: Event) {
        let class = match event {
            Event::Message { .. } | Event::Ended { .. } => 0,
            Event::Timer { .. } => 2,
            _ => 1,
        };
        self.planned += 1;
        self.events
            .insert((at.max(self.now), class, self.planned), event);
    }

    /// Runs until nothing happens any more.
    pub(crate) fn run(&mut self) {
        let mut steps = 0;
        while let Some(((at, class, number), event)) = self.events.pop_first() {
            steps += 1;
            assert!(
                steps < 200_000,
                "seed {}: the world does not come to rest",
                self.seed
            );
            self.now = at;
            if let Some(until) = self.stalled(&event) {
                self.events.insert((until, class, number), event);
                continue;
            }
            self.happen(event);
        }
    }

    /// Until when the machine that the event concerns does nothing.
    fn stalled(&self, event: &Event) -> Option<u64> {
        let (Event::Message { to: life, .. }
        | Event::Ended { at: life, .. }
        | Event::Bulk { at: life, .. }
        | Event::Step { at: life, .. }
        | Event::Timer { at: life }) = event
        else {
            return None;
        };
        let machine = &self.machines[*self.lives.get(life)?];
        (machine.life == Some(*life) && machine.stalled_until > self.now)
            .then_some(machine.stalled_until)
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Message {
                to,
                from,
                link,
                message,
            } => match self.alive(to) {
                Some(machine) => self.arrive(machine, from, link, message),
                None => self.lost(&message),
            },
            Event::Ended { at, peer, link } => {
                if let Some(machine) = self.alive(at) {
                    self.session_ended(machine, peer, link);
                }
            }
            Event::Bulk {
                at,
                ticket,
                message,
            } => match self.alive(at) {
                Some(machine) => self.bulk_written(machine, ticket, message),
                None => self.lost(&message),
            },
            Event::Step { at, ticket } => {
                if let Some(machine) = self.alive(at) {
                    self.step(machine, ticket);
                }
            }
            Event::Timer { at } => {
                if let Some(machine) = self.alive(at) {
                    self.time_out(machine);
                }
            }
            Event::Call { machine, plans } => self.begin_call(machine, plans),
            Event::Abort { machine } => self.abort_one(machine),
            Event::Crash { machine } => self.crash(machine),
            Event::Restart { machine } => {
                if self.machines[machine].life.is_none() {
                    let life = self.new_life(machine);
                    self.machines[machine] = Machine::new(machine, life, self.faults.ping());
                    self.log(|| format!("machine {machine} starts again"));
                }
            }
            Event::Cut { between } => self.cut(between),
            Event::Stall { machine, time } => {
                self.oracle.disturbed();
                self.log(|| format!("machine {machine} stops for {time}"));
                let stalled = &mut self.machines[machine].stalled_until;
                *stalled = (self.now + time).max(*stalled);
            }
        }
    }

    pub(crate) fn alive(&self, life: NodeId) -> Option<usize> {
        let machine = *self.lives.get(&life)?;
        (self.machines[machine].life == Some(life)).then_some(machine)
    }

    /// The open session between a machine and an incarnation, opened if need be; `None` if that incarnation cannot be reached.
    pub(crate) fn link_to(&mut self, from: usize, to: NodeId) -> Option<u64> {
        let own = self.machines[from].life?;
        let found = self.links.iter().rev().find(|(_, link)| {
            let lives = link.ends.map(|end| end.1);
            link.open && (lives == [own, to] || lives == [to, own])
        });
        if let Some((&number, _)) = found {
            return Some(number);
        }
        let machine = self.alive(to)?;
        let number = self.links.len() as u64 + 1;
        self.links.insert(
            number,
            Link {
                ends: [(from, own), (machine, to)],
                open: true,
                arrivals: [[0; 2]; 2],
                marks: [0; 2],
            },
        );
        self.machines[from].session_opened(number, to);
        if machine != from {
            self.machines[machine].session_opened(number, own);
        }
        Some(number)
    }

    /// Sends a message over a session; returns its mark. It has been written out.
    pub(crate) fn send(&mut self, from: usize, link: u64, message: Message) -> u64 {
        let control = matches!(message, Message::Ping(_) | Message::Pong(_));
        let faults = self.faults;
        let delay = 1 + self.random.below(faults.delay);
        let lost = control && self.random.percent(faults.control_loss)
            || matches!(message, Message::End(_)) && self.random.percent(faults.end_loss);
        let twice = faults.datagrams && self.random.one_in(10);
        let Some(state) = self.links.get_mut(&link) else {
            panic!("no link {link}")
        };
        let side = usize::from(state.ends[0].0 != from);
        let (own, other) = (state.ends[side].1, state.ends[1 - side].1);
        state.marks[side] += 1;
        let mark = state.marks[side];
        let mut arrival = self.now + delay;
        if !faults.datagrams {
            let last = &mut state.arrivals[1 - side][usize::from(control)];
            *last = arrival.max(*last);
            arrival = *last;
        }
        if lost {
            self.lost(&message);
            return mark;
        }
        let event = Event::Message {
            to: other,
            from: own,
            link,
            message,
        };
        if twice
            && !matches!(
                event,
                Event::Message {
                    message: Message::Ping(_),
                    ..
                }
            )
        {
            let again = self.now + 1 + self.random.below(2 * faults.delay);
            self.plan(again, event.clone());
        }
        self.plan(arrival, event);
        mark
    }

    fn lost(&mut self, message: &Message) {
        if self.faults.datagrams {
            return; // a copy that came too late
        }
        match message {
            Message::Request(request) => self.oracle.request_lost(request.call),
            Message::Response(response) => self.oracle.answer_lost(response.call),
            Message::End(end) => self.oracle.answer_lost(end.call),
            _ => return,
        }
        self.log(|| format!("lost: {message:?}"));
    }

    /// A session breaks: of what is under way the first part arrives; then each end learns of it.
    fn cut(&mut self, (one, other): (usize, usize)) {
        let broken: Vec<u64> = self
            .links
            .iter()
            .filter(|(_, link)| {
                let ends = link.ends.map(|end| end.0);
                link.open && (ends == [one, other] || ends == [other, one])
            })
            .map(|(&number, _)| number)
            .collect();
        for number in broken {
            self.oracle.count("sessions cut");
            self.log(|| format!("the session {number} of {one} and {other} breaks"));
            self.break_link(number);
        }
    }

    fn break_link(&mut self, number: u64) {
        let Some(link) = self.links.get_mut(&number) else {
            return;
        };
        link.open = false;
        let ends = link.ends;
        for side in 0..2 {
            let (life, peer) = (ends[side].1, ends[1 - side].1);
            // Nothing from the dead but what had been sent; to them nothing.
            let from_dead = self.alive(peer).is_none();
            let last = self.now + self.random.below(self.faults.delay + 1);
            let of_it: Vec<_> = self
                .events
                .iter()
                .filter(|(_, event)| {
                    matches!(event, Event::Message { to, link, .. } if *link == number && *to == life)
                })
                .map(|(&key, _)| key)
                .collect();
            let mut end = self.now + 1;
            for key in of_it {
                if key.0 > last || (self.alive(life).is_none() && !from_dead) {
                    if let Some(Event::Message { message, .. }) = self.events.remove(&key) {
                        self.lost(&message);
                    }
                } else {
                    end = end.max(key.0);
                }
            }
            self.plan(
                end,
                Event::Ended {
                    at: life,
                    peer,
                    link: number,
                },
            );
        }
    }

    fn crash(&mut self, machine: usize) {
        let Some(life) = self.machines[machine].life.take() else {
            return;
        };
        self.oracle.count("crashes");
        self.log(|| format!("machine {machine} ({life}) crashes"));
        self.oracle.crashed(life);
        self.machines[machine].clear();
        let broken: Vec<u64> = self
            .links
            .iter()
            .filter(|(_, link)| link.open && link.ends.iter().any(|end| end.1 == life))
            .map(|(&number, _)| number)
            .collect();
        broken
            .into_iter()
            .for_each(|number| self.break_link(number));
    }

    /// At rest nothing is remembered, and every call has ended.
    pub(crate) fn check_end(&self) {
        self.oracle.check_end();
        for machine in &self.machines {
            machine.check_empty();
        }
    }

    pub(crate) fn sessions_of(&self, machine: usize, peer: NodeId) -> BTreeSet<u64> {
        self.machines[machine].sessions_with(peer)
    }
}

pub(crate) fn session(link: u64) -> SessionNumber {
    SessionNumber(link)
}
