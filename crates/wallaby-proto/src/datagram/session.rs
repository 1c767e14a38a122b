//! One session of one incarnation with another: what the driver may ask of it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::carrier::output::OutputLimit;
use crate::carrier::transit::Transit;
use crate::carrier::{Mark, Peering};
use crate::connection::{Hello, NamedBy, Partials};
use crate::datagram::assembly::Assembly;
use crate::datagram::outbound::OutboundQueue;
use crate::datagram::received::ReceivedPackets;
use crate::datagram::recovery::{ASLEEP, PathStats, Recovery};
use crate::datagram::sizing::Sizing;
use crate::datagram::window::ReplayWindow;
use crate::datagram::{GateSettings, MAX_MESSAGE, Pending};
use crate::id::NodeId;

/// A peer is not asked whether it is still there before it was silent for so many round trips.
const ROUND_TRIPS: u32 = 8;

/// How long requests wait for a peer that is asked whether it is still there.
const ASKING: Duration = Duration::from_millis(500);

/// One session, as one of its two sides sees it. It is reached through its [`super::Gate`].
#[derive(Debug)]
pub struct Session {
    pub(super) peering: Peering,
    pub(super) remote: SocketAddr,
    /// The ids that this side and the other one know the session by.
    pub(super) local_id: u64,
    pub(super) remote_id: u64,
    pub(super) state: SessionState,
    pub(super) received: ReceivedPackets,
    pub(super) window: ReplayWindow,
    pub(super) assembly: Assembly,
    pub(super) outgoing: OutboundQueue,
    pub(super) recovery: Recovery,
    pub(super) sizing: Sizing,
    /// What the peer's times tell, once it has told one.
    pub(super) transit: Option<Box<Transit>>,
    /// The next packet asks for an acknowledgement even if it holds no message.
    pub(super) probe: bool,
    /// So many packets may leave whatever the congestion window says.
    pub(super) probes: u32,
    /// How long the packet is, without its checksum, that leaves before the next one; 0 if none leaves now.
    pub(super) length_before: usize,
    /// When it was opened, by this side's clock.
    pub(super) since: Duration,
    presence: Presence,
    pub(super) settings: GateSettings,
    /// It waits in its gate's queue of sessions that may have something to send.
    pub(super) queued: bool,
    /// The earliest of its gate's timers that will look at it, in nanoseconds.
    pub(super) armed: Option<u64>,
}

/// How far a session is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum SessionState {
    /// This side asks for it.
    Asking {
        hello: Bytes,
        /// The incarnation that is wanted, if not any.
        expected: Option<NodeId>,
        named_by: NamedBy,
        since: Duration,
        asked: Option<Duration>,
        tries: u32,
    },
    /// The peer has handed out its id, but may not have opened it yet: each packet carries what that needs.
    Opening {
        hello: Bytes,
        issued: u64,
        named_by: NamedBy,
    },
    /// Both sides know it; `issued` says when, if the other side asked for it.
    Open { issued: Option<u64> },
    /// This side has closed it, and tells the other.
    Closing {
        issued: Option<u64>,
        until: Option<Duration>,
    },
}

/// Whether the peer's incarnation goes on, as far as known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Presence {
    /// It does, unless it has shown no life for long.
    Assumed,
    /// It was asked then, and requests wait.
    Asked(Duration),
    /// It was asked then, in vain: requests are sent, and their calls find out what becomes of them.
    Unknown(Duration),
}

impl Session {
    pub(super) fn new(
        me: Arc<Hello>,
        remote: SocketAddr,
        ids: (u64, u64),
        (state, since): (SessionState, Duration),
        settings: &GateSettings,
        partials: &Partials,
    ) -> Self {
        let output = OutputLimit::of_session(settings.unacknowledged);
        Self {
            peering: Peering::new(me, MAX_MESSAGE as u64, output),
            remote,
            local_id: ids.0,
            remote_id: ids.1,
            state,
            received: ReceivedPackets::default(),
            window: ReplayWindow::default(),
            assembly: Assembly::new(partials.share()),
            outgoing: OutboundQueue::default(),
            recovery: Recovery::new(settings),
            sizing: Sizing::new(settings, remote),
            transit: None,
            probe: false,
            probes: 0,
            length_before: 0,
            since,
            presence: Presence::Assumed,
            settings: *settings,
            queued: false,
            armed: None,
        }
    }

    /// The application wants a session, too, that a peer's word has opened: it asks as often as for its own, and says as much.
    pub(crate) fn name_by_application(&mut self) {
        if let SessionState::Asking { named_by, .. } | SessionState::Opening { named_by, .. } =
            &mut self.state
        {
            *named_by = NamedBy::Application;
        }
    }

    /// Where the peer is.
    pub fn remote(&self) -> SocketAddr {
        self.remote
    }

    /// What it has found out about the way to the peer.
    pub fn path(&self) -> PathStats {
        self.recovery.path()
    }

    /// How many messages have left without a gap: its marks count them. One has when it was sent
    /// wholly; if it went in pieces of which some have arrived, when all have. What is lost on its way is sent again, but a
    /// peer that stays silent is not waited for (docs/protocol.md, rule 18): after five probes in vain all counts as having left.
    pub fn left(&self) -> u64 {
        match self.recovery.is_answered() {
            true => self.outgoing.left(),
            false => self.outgoing.next(),
        }
    }

    /// How many messages the peer has acknowledged without a gap.
    pub fn acknowledged(&self) -> u64 {
        self.outgoing.first()
    }

    /// The messages that the peer has not acknowledged.
    pub fn pending(&self) -> impl Iterator<Item = Pending> + '_ {
        self.outgoing.pending().map(|(number, sent)| Pending {
            mark: Mark::Written(number + 1),
            sent,
        })
    }

    /// Whether a request should be sent now. A peer that has shown no life for long is asked first whether it is still there,
    /// so that a request is not spent on an incarnation or a session that is over: nobody could tell whether that had executed it.
    /// When it has answered, or has not in half a second, [`crate::connection::Event::Credit`] says that requests may go on.
    ///
    /// A sign of life is that it has acknowledged something, as old as what it has acknowledged.
    pub fn confirm(&mut self, now: Duration) -> bool {
        self.peering.now = Some(now);
        let silent = now.saturating_sub(self.recovery.alive());
        match self.presence {
            Presence::Unknown(_) => true,
            Presence::Asked(_) => false,
            Presence::Assumed if self.is_established() && silent > self.confirm_after() => {
                self.ask(now);
                false
            }
            Presence::Assumed => true,
        }
    }

    /// Silence for longer than this, and the peer may be another incarnation by now.
    fn confirm_after(&self) -> Duration {
        let round_trips = self.recovery.round_trip() * ROUND_TRIPS;
        round_trips.max(self.settings.confirm_after)
    }

    /// Whether both sides have it and none has closed it, as far as known.
    fn is_established(&self) -> bool {
        matches!(
            self.state,
            SessionState::Opening { .. } | SessionState::Open { .. }
        )
    }

    /// The peer has acknowledged something; whether requests waited for that.
    pub(super) fn note_alive(&mut self) -> bool {
        let (Presence::Asked(asked) | Presence::Unknown(asked)) = self.presence else {
            return false;
        };
        if self.recovery.alive() < asked {
            return false; // that it has acknowledged before, or while nobody listened here
        }
        let before = std::mem::replace(&mut self.presence, Presence::Assumed);
        matches!(before, Presence::Asked(_))
    }

    /// When requests do not wait any longer for a peer that was asked.
    pub(super) fn asked_until(&self) -> Option<Duration> {
        match self.presence {
            Presence::Asked(since) => Some(since.saturating_add(ASKING)),
            Presence::Assumed | Presence::Unknown(_) => None,
        }
    }

    /// It is `now`; whether requests have waited long enough.
    pub(super) fn stop_asking(&mut self, now: Duration) -> bool {
        let Presence::Asked(asked) = self.presence else {
            return false;
        };
        let waited = now.saturating_sub(asked);
        if waited < ASKING {
            return false;
        }
        if waited > ASKING + ASLEEP {
            self.ask(now); // nobody listened for the answer
            return false;
        }
        self.presence = Presence::Unknown(asked);
        true
    }

    /// No request waits for a peer any more that is asked whether it is still there.
    pub(super) fn stop_waiting(&mut self) {
        self.presence = Presence::Assumed;
    }

    fn ask(&mut self, now: Duration) {
        self.presence = Presence::Asked(now);
        self.probes = self.probes.max(1);
    }
}
