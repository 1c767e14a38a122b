//! Two honest gates and a network that loses, repeats, reorders and damages: at most once, as it was sent; and all of it
//! where the session lives, once the network heals.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use wallaby_proto::carrier::Carrier;
use wallaby_proto::connection::{Charge, Event};
use wallaby_proto::datagram::{Gate, GateSettings, SessionId};
use wallaby_proto::wire::{Message, MethodRef};

use crate::choices::Choices;
use crate::things::{hello, limits, method, node, numbered, size};

pub(crate) struct End {
    pub(crate) gate: Gate,
    sessions: Vec<SessionId>,
    /// What it sent and its peer has not got yet; without its session if that has ended.
    sent: Vec<(Option<SessionId>, Message)>,
}

impl End {
    /// What was sent in a session may be lost from now on.
    fn forget(&mut self, session: SessionId) {
        self.sessions.retain(|other| *other != session);
        let sent = self.sent.iter_mut();
        sent.filter(|sent| sent.0 == Some(session))
            .for_each(|sent| sent.0 = None);
    }

    fn waits(&self) -> bool {
        self.sent.iter().any(|sent| sent.0.is_some())
    }
}

pub(crate) struct Net {
    pub(crate) ends: [End; 2],
    /// Datagrams under way, each with the number of the end that it is for.
    pub(crate) flying: Vec<(usize, Vec<u8>)>,
    pub(crate) now: Duration,
}

/// The two sides name methods differently.
const UNNAMED: MethodRef = MethodRef::Number(0);

pub(crate) fn address(end: usize) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::new(10, 0, 0, 1), 1000 + end as u16))
}

impl Net {
    pub(crate) fn new(choices: &mut Choices<'_>) -> Self {
        let ends = [0, 1].map(|end| {
            let me = Arc::new(hello(node(end), limits(choices)));
            let settings = GateSettings {
                sessions: 4,
                unacknowledged: 100_000,
                ..GateSettings::default()
            };
            End {
                gate: Gate::new(me, [end as u8; 16], settings),
                sessions: Vec::new(),
                sent: Vec::new(),
            }
        });
        Self {
            ends,
            flying: Vec::new(),
            now: Duration::ZERO,
        }
    }

    pub(crate) fn dial(&mut self, from: usize) {
        let dialled = self.ends[from].gate.dial(self.now, address(1 - from), None);
        self.ends[from].sessions.extend(dialled);
    }

    /// Puts all that wants to leave on the network, and takes all that has arrived.
    pub(crate) fn settle(&mut self) {
        for from in 0..2 {
            let mut out = Vec::new();
            while let Some(transmit) = self.ends[from].gate.poll_transmit(self.now, &mut out) {
                let datagram = std::mem::take(&mut out);
                assert_eq!(datagram.len(), transmit.len);
                if transmit.to == address(1 - from) {
                    self.flying.push((1 - from, datagram));
                }
            }
            while let Some((session, event)) = self.ends[from].gate.poll_event() {
                self.take(from, session, event.map_err(|ended| ended.to_string()));
            }
        }
    }

    pub(crate) fn deliver(&mut self, place: usize) {
        let (to, datagram) = self.flying.swap_remove(place);
        let from = address(1 - to);
        self.ends[to]
            .gate
            .handle_datagram(self.now, from, Bytes::from(datagram));
    }

    pub(crate) fn pass(&mut self, time: Duration) {
        self.now += time;
        let now = self.now;
        self.ends
            .iter_mut()
            .for_each(|end| end.gate.handle_timeout(now));
    }

    fn take(&mut self, at: usize, session: SessionId, event: Result<Event, String>) {
        let [first, second] = &mut self.ends;
        let (me, peer) = if at == 0 {
            (first, second)
        } else {
            (second, first)
        };
        match event {
            Ok(Event::Opened(_)) if !me.sessions.contains(&session) => me.sessions.push(session),
            Ok(Event::Message(mut message)) => {
                if let Message::Request(request) = &mut message {
                    request.method = UNNAMED;
                }
                let Some(place) = peer.sent.iter().position(|sent| sent.1 == message) else {
                    panic!("{message:?} was not sent, or came before");
                };
                peer.sent.remove(place);
                let Some(session) = me.gate.session(session) else {
                    return;
                };
                match message {
                    Message::Request(request) => session.grant_request(request.payload.len()),
                    Message::Response(response) => {
                        session.grant_call(response.call, 1, response.payload.len() as u64);
                    }
                    _ => {}
                }
            }
            Ok(Event::TooLarge { message, size }) => panic!("{size} bytes: {message:?}"),
            Ok(_) => {}
            Err(_) => me.forget(session),
        }
    }

    fn send(&mut self, from: usize, choices: &mut Choices<'_>, number: u64) {
        let end = &mut self.ends[from];
        if end.sessions.is_empty() {
            return;
        }
        let id = end.sessions[choices.byte() as usize % end.sessions.len()];
        let Some(session) = end.gate.session(id) else {
            return;
        };
        let (me, peer) = (node(from as u64), node(1 - from as u64));
        let payload = size(choices);
        let Some(message) = numbered(choices, number, me, peer, payload) else {
            return;
        };
        let (message, sent) = match message {
            Message::Request(mut request) => {
                let sent = session.send_request(&mut request, &method(choices.below(3)));
                request.method = UNNAMED;
                (Message::Request(request), sent)
            }
            Message::Response(response) => {
                let sent = session.send_response(&response, Charge::Counted);
                (Message::Response(response), sent)
            }
            control => (control.clone(), session.send_control(control)),
        };
        if sent.is_ok() {
            end.sent.push((Some(id), message));
        }
    }

    /// The network heals: all that was sent arrives, unless its session has ended.
    fn heal(&mut self) {
        for _ in 0..3000 {
            self.settle();
            if self.flying.is_empty() {
                if !self.ends.iter().any(End::waits) {
                    return;
                }
                let next = self
                    .ends
                    .iter()
                    .filter_map(|end| end.gate.next_timeout())
                    .min();
                let next = next.expect("what is not acknowledged has a timer");
                self.pass(next.saturating_sub(self.now));
                continue;
            }
            self.pass(Duration::from_millis(1));
            while !self.flying.is_empty() {
                self.deliver(0);
            }
        }
        let sent = self.ends.iter().flat_map(|end| &end.sent);
        panic!("lost: {:?}", sent.collect::<Vec<_>>());
    }
}

pub(crate) fn run(bytes: &[u8]) {
    let mut choices = Choices::new(bytes);
    let mut net = Net::new(&mut choices);
    net.dial(0);
    if choices.once_in(2) {
        net.dial(1);
    }
    if choices.once_in(2) {
        for _ in 0..6 {
            net.settle();
            while !net.flying.is_empty() {
                net.deliver(0);
            }
        }
    }
    let mut number = 0;
    while !choices.is_empty() && number < 400 {
        let end = choices.below(2) as usize;
        match choices.below(8) {
            0..=2 => {
                number += 1;
                net.send(end, &mut choices, number);
            }
            6 => net.pass(choices.time()),
            7 if choices.once_in(16) => {
                let ended = net.ends[end].sessions.first().copied();
                if let Some(session) = ended.and_then(|id| net.ends[end].gate.session(id)) {
                    session.close("enough");
                    if let Some(id) = ended {
                        net.ends[end].forget(id);
                    }
                }
            }
            _ => disturb(&mut net, &mut choices),
        }
        net.settle();
    }
    net.heal();
}

/// Something happens to a datagram under way.
fn disturb(net: &mut Net, choices: &mut Choices<'_>) {
    if net.flying.is_empty() {
        return;
    }
    let place = choices.byte() as usize % net.flying.len();
    match choices.below(6) {
        0 => drop(net.flying.swap_remove(place)),
        1 => net.flying.push(net.flying[place].clone()),
        2 => {
            let at = usize::from(choices.byte()) * 5 % net.flying[place].1.len();
            net.flying[place].1[at] ^= 1 << choices.below(8);
        }
        _ => net.deliver(place),
    }
}
