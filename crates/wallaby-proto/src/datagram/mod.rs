//! Messages over datagrams (UDP): each at most once, and exactly once while its session lives (thesis 4.6).
//!
//! A [`Gate`] is all that one socket does: it holds its *sessions*, each between this incarnation and another one, proves
//! addresses before it works for them, and answers strangers without remembering them. A session is a [`crate::carrier`] as
//! a stream's connection is, with the same events, limits and credit, but its messages go in datagrams: those of up to
//! [`MAX_MESSAGE`] bytes of payload, several in one datagram or one in several, acknowledged by what travels the other
//! way anyhow, sent again when lost, filtered when duplicated. They may overtake each other.
//!
//! | module | what is in it |
//! |---|---|
//! | `gate` | the sessions of a socket: who is it for, may it be opened, whose turn is it, what is the time |
//! | `session` | one session: what the driver may ask of it; `sending`: what it is given; `arriving` and `leaving`: its packets |
//! | `packet`, `checksum` | the bytes |
//! | `cookies` | addresses are proven without state; no session is opened twice |
//! | `window`, `received`, `assembly` | which messages, packets and pieces have arrived |
//! | `outbound`, `recovery` | which messages have not arrived; round trips, loss, congestion |
//!
//! # The driver
//!
//! Give the gate what arrives by [`Gate::handle_datagram`] and the time by [`Gate::handle_timeout`], input first: a
//! process that was asleep must not hold its own silence against its peers. Then take events by [`Gate::poll_event`]
//! until there are none, act on them, send by [`Gate::poll_transmit`] until it has none, and wait for input or for
//! [`Gate::next_timeout`]. Time is what has passed since any moment that does not change, and never goes back. Room for
//! one datagram is 64 KiB. Two gates and a network without loss:
//!
//! ```
//! use std::{net::SocketAddr, sync::Arc, time::Duration};
//! use wallaby_proto::NodeId;
//! use wallaby_proto::connection::{Event, Features, Hello, ConnectionLimits, VERSION};
//! use wallaby_proto::datagram::{Gate, GateSettings};
//!
//! let gate = |node, secret| {
//!     let hello = Hello {
//!         versions: (VERSION, VERSION), node: NodeId::new(node).unwrap(), expected: None, address: None,
//!         features: Features::default(), limits: ConnectionLimits::default(),
//!     };
//!     Gate::new(Arc::new(hello), secret, GateSettings::default())
//! };
//! let (alice_at, bob_at) = (SocketAddr::from(([10, 0, 0, 1], 1)), SocketAddr::from(([10, 0, 0, 2], 1)));
//! let (mut here, mut there) = ((gate(1, [1; 16]), alice_at), (gate(2, [2; 16]), bob_at));
//! let mut now = Duration::ZERO;
//! here.0.dial(now, bob_at, None).unwrap();
//! let mut opened = 0;
//! while opened < 2 {
//!     let mut bytes = Vec::new();
//!     while let Some(_transmit) = here.0.poll_transmit(now, &mut bytes) {
//!         there.0.handle_datagram(now, here.1, std::mem::take(&mut bytes).into());
//!     }
//!     there.0.handle_timeout(now);
//!     while let Some((session, event)) = there.0.poll_event() {
//!         match event {
//!             Ok(Event::Opened(_)) => opened += 1,
//!             Ok(_) => {} // messages, credit: act on them, by there.0.session(session)
//!             Err(ended) => panic!("{ended}"),
//!         }
//!     }
//!     std::mem::swap(&mut here, &mut there);
//!     now += Duration::from_micros(50); // in truth: when something arrives, or next_timeout()
//! }
//! ```
//!
//! # What it costs
//!
//! The first message to a peer waits one round trip for the peer's challenge; then it goes along with the proof, and
//! its answer comes back in the round trip after. A datagram costs about 25 bytes with its acknowledgement, a message in it 5.
//! Request and answer need no datagrams besides their own as long as the answer takes less than 10 ms; if it takes longer, or if
//! there is none, an acknowledgement is one more.
//!
//! # What it does not do
//!
//! Nothing is encrypted: who can read the datagrams can forge them. Who can't is kept out by session ids that nobody
//! can guess, and by cookies. A session belongs to two addresses: a peer whose address changes opens another one.

mod arriving;
mod assembly;
mod checksum;
mod cookies;
mod gate;
mod leaving;
mod outbound;
mod packet;
mod received;
mod recovery;
mod sending;
mod session;
mod sizing;
mod window;

use std::time::Duration;

use thiserror::Error;

use crate::connection;
use crate::id::NodeId;
use crate::wire::MAX_FRAME;

pub use self::gate::{
    Gate, GateCounters, IdHasher, SessionEvent, SessionId, TooManySessions, Transmit,
};
pub use self::recovery::PathStats;
pub use self::session::Session;

/// Longest payload of a message over datagrams, in bytes.
pub const MAX_MESSAGE: usize = MAX_FRAME;

/// Shortest and longest [`GateSettings::datagram`], in bytes.
pub const DATAGRAM_SIZES: (usize, usize) = (packet::ASK_LEN, 65_507);

/// A good [`GateSettings::loopback`]: half of what the interface carries in one, so that buffers of a usual size take several.
pub const LOOPBACK_DATAGRAM: usize = 32 << 10;

/// What a gate and its sessions keep to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GateSettings {
    /// Longest datagram that is sent, in bytes without the headers of IP and UDP; within [`DATAGRAM_SIZES`], else the
    /// nearer of them. Datagrams of any size are received.
    pub datagram: usize,
    /// The same to a peer at a loopback address, whose interface carries more in one: from when on a datagram of that
    /// length has come through. At least [`GateSettings::datagram`].
    pub loopback: usize,
    /// Most sessions that others opened, and most that this side opened.
    pub sessions: usize,
    /// Bytes of messages of a session that wait for their acknowledgement. At most so many are under way too.
    pub unacknowledged: usize,
    /// A session ends when its peer has acknowledged nothing for so long.
    pub patience: Duration,
    /// It ends too after so many datagrams in a row that asked for an acknowledgement in vain.
    pub probes: u32,
    /// A session asks whether its peer is still there if that has acknowledged nothing that was sent later than so long ago.
    pub idle: Duration,
    /// A request waits until its peer has said that it is still there if that has acknowledged nothing that was sent later than
    /// so long ago, and than eight round trips ago ([`Session::confirm`]).
    pub confirm_after: Duration,
}

impl Default for GateSettings {
    /// Datagrams of 1,200 bytes, which every path carries, to whomever; 4,096 sessions each way, 1 MiB unacknowledged; 10 seconds
    /// or 64 probes until a peer counts as gone; idle after a minute; asked before a request after 5 seconds.
    fn default() -> Self {
        Self {
            datagram: packet::ASK_LEN,
            loopback: packet::ASK_LEN,
            sessions: 4096,
            unacknowledged: 1 << 20,
            patience: Duration::from_secs(10),
            probes: 64,
            idle: Duration::from_secs(60),
            confirm_after: Duration::from_secs(5),
        }
    }
}

/// A session has ended: why, and what became of its messages.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{cause}")]
pub struct SessionEnd {
    /// Why.
    pub cause: Cause,
    /// The messages of this side that the other one did not acknowledge.
    pub pending: Vec<Pending>,
    /// How many messages it had acknowledged without a gap, as [`Session::acknowledged`].
    pub acknowledged: u64,
    /// What the session has carried.
    pub counters: connection::Carried,
}

/// A message that was not acknowledged when its session ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pending {
    /// Where it stood in the session's output.
    pub mark: connection::Mark,
    /// Whether any of it was sent: then the peer may have it. If not, it certainly has not.
    pub sent: bool,
}

/// Why a session ended.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Cause {
    /// The peer closed it, and says why.
    #[error("closed by the peer: {0}")]
    Closed(String),
    /// Nobody answered at that address.
    #[error("no answer for {0:?}")]
    NoAnswer(Duration),
    /// Nobody listens at that address.
    #[error("nobody listens there")]
    Unreachable,
    /// The peer does not acknowledge anything any more.
    #[error("nothing acknowledged for {silent:?}, after {probes} retransmissions")]
    Silent {
        /// For how long.
        silent: Duration,
        /// How often something was sent again meanwhile without an answer.
        probes: u32,
    },
    /// The peer's incarnation does not know the session: it has closed it, or lost it.
    #[error("node {0} does not know this session any more")]
    Forgotten(NodeId),
    /// Another incarnation answers at the peer's address: the peer was restarted.
    #[error("node {was} was restarted: node {now} answers at its address")]
    Restarted {
        /// The session's peer.
        was: NodeId,
        /// Who is there now.
        now: NodeId,
    },
    /// The peer broke the rules; it was told so.
    #[error("{0}")]
    Broken(connection::ConnectionError),
    /// The handshake failed.
    #[error(transparent)]
    Handshake(#[from] connection::ConnectionError),
}
