//! UDP sockets: each with a gate of its own, which one an address is dialled from, and what shells tell of them.

use crate::ConnId;
use std::fmt;
use std::hash::Hasher;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use siphasher::sip128::{Hasher128, SipHasher24};

use super::Endpoint;
use super::conn::{Conn, Link};
use super::conns::note_progress;
use super::event::Output;
use super::probe::Probe;
use crate::call::clock::earliest;
use crate::carrier::Carrier;
use crate::connection::{Hello, Partials};
use crate::datagram::{Gate, GateSettings, Session, SessionEvent, SessionId, Transmit};
use crate::error::ConnectError;

/// What strangers are told by a socket that does not listen.
const DOES_NOT_LISTEN: &str = "this endpoint does not listen";

/// A UDP socket of an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SocketId(u32);

impl SocketId {
    /// Its number: the endpoint's first one has 0, the next one 1.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// Whether datagrams of a socket that is bound here may get to this address.
pub fn reaches(local: SocketAddr, to: SocketAddr) -> bool {
    let (here, there) = (local.ip(), to.ip());
    here.is_ipv4() == there.is_ipv4()
        && (here.is_unspecified() || here.is_loopback() == there.is_loopback())
}

/// All UDP sockets of an endpoint. There are few.
pub(super) struct Sockets {
    all: Vec<Socket>,
    /// What their gates are made from.
    hello: Arc<Hello>,
    cookies: [u8; 16],
    settings: GateSettings,
    partials: Partials,
    /// How many gates were made.
    gates: u64,
    /// What those have counted that are gone.
    past: DatagramCounts,
}

/// A socket. It keeps its place when it has failed.
#[derive(Debug)]
struct Socket {
    local: SocketAddr,
    purpose: Purpose,
    has_failed: bool,
    /// Its shell was told that there are datagrams.
    told: bool,
    gate: Gate,
}

/// What a socket is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Purpose {
    /// Others may open sessions.
    Listening,
    /// Others are dialled from it.
    Dialling,
    /// The same, and it was asked for because of a dial, and may be asked for again.
    OneDial,
}

/// Datagrams.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct DatagramCounts {
    pub(super) received: u64,
    pub(super) sent: u64,
    pub(super) dropped: u64,
}

impl DatagramCounts {
    fn add(&mut self, gate: &Gate) {
        let gate = gate.counters();
        let stray =
            gate.stray + gate.unknown + gate.refused + gate.duplicate + gate.overrun + gate.short;
        self.received += gate.received;
        self.sent += gate.sent;
        self.dropped += gate.corrupt + gate.malformed + stray;
    }
}

impl Socket {
    fn listens(&self) -> bool {
        self.purpose == Purpose::Listening
    }
}

impl Sockets {
    pub(super) fn new(
        hello: Arc<Hello>,
        cookies: [u8; 16],
        settings: GateSettings,
        partials: Partials,
    ) -> Self {
        Self {
            all: Vec::new(),
            hello,
            cookies,
            settings,
            partials,
            gates: 0,
            past: DatagramCounts::default(),
        }
    }

    /// A gate with a secret of its own: what one hands out is no good at another.
    fn make_gate(&mut self) -> Gate {
        let mut hasher = SipHasher24::new_with_key(&self.cookies);
        hasher.write_u64(self.gates);
        self.gates += 1;
        let secret = hasher.finish128().as_bytes();
        Gate::new(Arc::clone(&self.hello), secret, self.settings).sharing(self.partials.clone())
    }

    fn add(&mut self, local: SocketAddr, purpose: Purpose) -> SocketId {
        let id = SocketId(self.all.len() as u32);
        let gate = self.make_gate();
        self.all.push(Socket {
            local,
            purpose,
            has_failed: false,
            told: false,
            gate,
        });
        id
    }

    /// The socket over which this address is dialled: one that listens, so that the peer finds this endpoint where it says it
    /// is, or else another.
    fn towards(&self, to: SocketAddr) -> Option<SocketId> {
        let first = |listens| {
            let fits = |socket: &Socket| socket.listens() == listens && !socket.has_failed;
            (self.all.iter()).position(|socket| fits(socket) && reaches(socket.local, to))
        };
        let found = first(true).or_else(|| first(false));
        found.map(|index| SocketId(index as u32))
    }

    /// The place of a socket from which this address can be reached, which is to be opened: of each family there is one at most.
    fn place_for(&mut self, to: SocketAddr) -> SocketId {
        let again = |socket: &Socket| {
            let is_asked_for = socket.purpose == Purpose::OneDial;
            is_asked_for && socket.has_failed && reaches(socket.local, to)
        };
        if let Some(index) = self.all.iter().position(again) {
            self.all[index].has_failed = false;
            return SocketId(index as u32);
        }
        let ip: IpAddr = match to {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        self.add((ip, 0).into(), Purpose::OneDial)
    }

    #[inline]
    pub(super) fn gate(&self, id: SocketId) -> Option<&Gate> {
        self.all.get(id.index()).map(|socket| &socket.gate)
    }

    #[inline]
    pub(super) fn gate_mut(&mut self, id: SocketId) -> Option<&mut Gate> {
        self.all.get_mut(id.index()).map(|socket| &mut socket.gate)
    }

    #[inline]
    pub(super) fn poll_event(&mut self, id: SocketId) -> Option<SessionEvent> {
        self.gate_mut(id)?.poll_event()
    }

    /// A session, to send in it.
    pub(super) fn session(&mut self, socket: SocketId, session: SessionId) -> Option<&mut Session> {
        self.gate_mut(socket)?.session(session)
    }

    /// A session, only to ask it.
    pub(super) fn peek(&self, socket: SocketId, session: SessionId) -> Option<&Session> {
        self.gate(socket)?.peek(session)
    }

    pub(super) fn counts(&self) -> DatagramCounts {
        let mut counts = self.past;
        self.all.iter().for_each(|socket| counts.add(&socket.gate));
        counts
    }

    pub(super) fn put_off_timers(&mut self, until: Duration) {
        for socket in &mut self.all {
            socket.gate.put_off_timers(until);
        }
    }

    pub(super) fn next_timeout(&self) -> Option<Duration> {
        let due = self.all.iter().map(|socket| socket.gate.next_timeout());
        due.fold(None, earliest)
    }

    pub(super) fn handle_timeout(&mut self, raw: Duration) {
        for socket in &mut self.all {
            socket.gate.handle_timeout(raw);
        }
    }

    #[inline]
    pub(super) fn have_events(&self) -> bool {
        self.all.iter().any(|socket| socket.gate.has_events())
    }

    pub(super) fn ids(&self) -> impl Iterator<Item = SocketId> + use<> {
        (0..self.all.len() as u32).map(SocketId)
    }

    /// Whether a shell is to be told that a socket has datagrams.
    #[inline]
    pub(super) fn have_news(&self) -> bool {
        let is_news = |socket: &Socket| !socket.told && socket.gate.has_output();
        self.all.iter().any(is_news)
    }

    /// The first socket that has datagrams of which its shell was not told.
    #[inline]
    pub(super) fn tell(&mut self) -> Option<SocketId> {
        for (index, socket) in self.all.iter_mut().enumerate() {
            if !socket.told && socket.gate.has_output() {
                socket.told = true;
                return Some(SocketId(index as u32));
            }
        }
        None
    }

    /// A socket is gone, and its sessions with it.
    fn fail(&mut self, id: SocketId) {
        let gate = self.make_gate();
        if let Some(socket) = self.all.get_mut(id.index()) {
            let gone = std::mem::replace(&mut socket.gate, gate);
            (socket.has_failed, socket.told) = (true, false);
            self.past.add(&gone);
        }
    }
}

impl fmt::Debug for Sockets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.all).finish()
    }
}

impl<P: Probe> Endpoint<P> {
    /// A UDP socket is there from now on, bound here, over which others may open sessions.
    pub fn add_listening_socket(&mut self, local: SocketAddr) -> SocketId {
        self.sockets.add(local, Purpose::Listening)
    }

    /// The same to dial others from. Who opens a session is told "this endpoint does not listen".
    pub fn add_socket(&mut self, local: SocketAddr) -> SocketId {
        self.sockets.add(local, Purpose::Dialling)
    }

    /// A datagram arrived at a UDP socket.
    pub fn handle_datagram(&mut self, socket: SocketId, from: SocketAddr, datagram: Bytes) {
        if !self.is_closed()
            && let Some(socket) = self.sockets.all.get_mut(socket.index())
            && !socket.has_failed
        {
            socket.gate.handle_datagram(self.raw, from, datagram);
        }
    }

    /// The network says that nobody is at an address that datagrams were sent to.
    pub fn handle_unreachable(&mut self, socket: SocketId, at: SocketAddr) {
        if let Some(gate) = self.sockets.gate_mut(socket) {
            gate.handle_unreachable(self.raw, at);
        }
    }

    /// A socket could not be opened ([`Output::Socket`]), or is of no use any more: why. Its sessions end, and nothing is dialled
    /// from it. One that was to be opened for a dial is told of again with the next dial that needs it.
    pub fn handle_socket_failed(&mut self, socket: SocketId, why: String) {
        let of_it = |(id, conn): (ConnId, &Conn)| match conn.link {
            Link::Session(by, session) if by == socket => {
                let session = self.sockets.peek(by, session);
                let carried = session.map(|session| session.counters());
                Some((id, self.has_left(conn), carried.unwrap_or_default()))
            }
            _ => None,
        };
        let ended: Vec<_> = self.conns.iter().filter_map(of_it).collect();
        self.sockets.fail(socket);
        for (id, left, carried) in ended {
            self.metrics.add_carried(carried);
            if let Some(progress) = left {
                note_progress(&mut self.records, id, progress);
            }
            let reason = why.clone();
            let error = match self.server(id) {
                Some(server) => ConnectError::Local { server, reason },
                server @ None => ConnectError::Closed { server, reason },
            };
            self.remove_conn(id, error);
        }
        self.settle();
    }

    /// Whether a socket has datagrams to be sent.
    pub fn has_datagrams(&self, socket: SocketId) -> bool {
        self.sockets.gate(socket).is_some_and(Gate::has_output)
    }

    /// Whether there are sessions over UDP, or were a moment ago.
    pub fn has_sessions(&self) -> bool {
        let is_used = |socket: &Socket| !socket.gate.is_empty();
        self.sockets.all.iter().any(is_used)
    }

    /// The next datagram that a socket is to send is appended to `out`; where it goes.
    pub fn poll_datagram(&mut self, socket: SocketId, out: &mut Vec<u8>) -> Option<Transmit> {
        let socket = self.sockets.all.get_mut(socket.index())?;
        let transmit = socket.gate.poll_transmit(self.raw, out);
        socket.told &= transmit.is_some();
        transmit
    }

    /// The socket over which this address is dialled. If none reaches it, the shell is told to open one; what it is to send waits
    /// meanwhile.
    pub(super) fn socket_towards(&mut self, to: SocketAddr) -> SocketId {
        if let Some(known) = self.sockets.towards(to) {
            return known;
        }
        let id = self.sockets.place_for(to);
        self.outputs.push_back(Output::Socket(id, to));
        id
    }

    /// Whether a session that somebody else has opened over a socket goes on: if not, they are told so.
    pub(super) fn takes_strangers(&mut self, socket: SocketId, session: SessionId) -> bool {
        let listens = (self.sockets.all.get(socket.index())).is_some_and(Socket::listens);
        if !listens && let Some(session) = self.sockets.session(socket, session) {
            session.close(DOES_NOT_LISTEN);
        }
        listens
    }
}
