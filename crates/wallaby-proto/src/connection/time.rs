//! Over a stream, times go ahead of requests: which one counts for which request.

use std::time::Duration;

use super::Connection;
use crate::carrier::transit::{EVERY, PeerTime};
use crate::varint::{self, Reader};
use crate::wire::{Request, WireError, kind};

impl Connection {
    /// Whether the time is told ahead of this request, so that [`set_time`](Self::set_time) is of use before it is sent.
    pub fn tells_time(&self, request: &Request) -> bool {
        self.peering.wants_time(request)
    }

    /// Tells the time ahead of a request; returns the time that was told last.
    #[inline(never)]
    pub(super) fn tell_time(&mut self) -> Option<Duration> {
        if let Some(time) = self.telling.due(self.peering.now?) {
            self.put_time(time);
        }
        self.telling.told
    }

    /// A request whose parts begin now was sent at this time: tells it again, unless it is what was told last.
    #[cold]
    pub(super) fn tell_again(&mut self, told: Duration) {
        if let Some(time) = self.telling.again(told) {
            self.put_time(time);
        }
    }

    fn put_time(&mut self, time: u64) {
        self.output
            .put_frame(kind::TIME, |out| varint::put(out, time));
    }

    /// The first time that comes says that others will: from now on this side's own time is asked for.
    #[inline(never)]
    pub(super) fn handle_time(&mut self, body: &[u8]) -> Result<(), WireError> {
        let mut reader = Reader::new(body);
        let told = reader.varint("time")?;
        reader.finish("time")?;
        match (&mut self.transit, self.peering.now) {
            (Some(transit), Some(now)) => transit.handle_time(told, now),
            _ => {
                self.transit.get_or_insert_default().note_time(told);
                self.peering.now = None;
            }
        }
        Ok(())
    }

    /// The latest time that the peer has told. What begins to arrive now was sent then, or less than [`EVERY`] later.
    pub(super) fn told(&self) -> Option<PeerTime> {
        self.transit.as_ref()?.told
    }

    /// How long a request that arrives now has waited at least, which began to arrive when this was the latest time.
    pub(super) fn waited_since(&self, told: Option<PeerTime>) -> Duration {
        let (Some(transit), Some(told), Some(now)) = (&self.transit, told, self.peering.now) else {
            return Duration::ZERO;
        };
        transit.waited_since(told, now).saturating_sub(EVERY)
    }
}
