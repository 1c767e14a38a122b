//! What is forgotten, and when: in time, or for want of room.

use crate::call::records::Records;
use crate::call::records::list::Linked;
use crate::call::records::table::OF_ENDED;
use crate::call::records::time::Nanoseconds;

/// Initiators, and ended requests of each, that are looked at to find one that can be forgotten.
const MOST_SEEN: usize = 8;

/// Initiators that are looked at to find one that can be forgotten with all of its requests.
const MOST_INITIATORS_SEEN: usize = 4096;

impl Records {
    /// Whether another request can be remembered, if need be after forgetting one that has ended.
    pub(super) fn has_room(&mut self, now: Nanoseconds) -> bool {
        self.table.records.len() < self.limits.requests || self.evict(now)
    }

    /// Forgets the request that ended first, or nearly, of all; `false` if all run or are being written.
    #[inline(never)]
    pub(super) fn evict(&mut self, now: Nanoseconds) -> bool {
        let Some(slot) = self.evictable() else {
            return false;
        };
        self.forget_early(slot, now);
        true
    }

    /// The ended request that is missed least.
    fn evictable(&self) -> Option<u32> {
        let ended = self.table.records.len() - self.running;
        let (mut oldest, mut seen) = (None, 0);
        for &(_, peer) in self.collections.iter().take(MOST_SEEN) {
            for slot in self.ended_of(peer).take(MOST_SEEN) {
                // Nobody else may know what is still under way.
                if !self.is_being_written(slot) {
                    return Some(slot);
                }
                oldest = oldest.or(Some(slot));
                seen += 1;
            }
        }
        // Those who do not read what they asked for keep nobody else out.
        oldest.filter(|_| seen < ended)
    }

    /// Forgets an initiator of which nothing runs or is being written; `false` if there is none.
    #[inline(never)]
    pub(super) fn evict_peer(&mut self, now: Nanoseconds) -> bool {
        let idle = |&peer: &u32| {
            let mut ended = self.ended_of(peer).take(MOST_SEEN);
            self.table.peers.get(peer).running == 0
                && !ended.any(|slot| self.is_being_written(slot))
        };
        let known = self.collections.iter().map(|entry| entry.1);
        let Some(peer) = known.take(MOST_INITIATORS_SEEN).find(idle) else {
            return false;
        };
        while let Some(slot) = self.table.peers.get(peer).ended.first() {
            self.forget_early(slot, now);
        }
        if let Some(due) = self.table.peers.at(peer).collection.take() {
            self.collections.remove(&(due, peer));
        }
        self.table.remove_peer(peer);
        true
    }

    fn forget_early(&mut self, slot: u32, now: Nanoseconds) {
        let gc_timeout = self.gc_timeout(slot);
        self.evicted_until = self.evicted_until.max(now.saturating_add(gc_timeout));
        self.forget(slot);
    }

    fn is_being_written(&self, slot: u32) -> bool {
        let outputs = &self.table.records.get(slot).outputs;
        outputs.are_being_written(&self.sessions)
    }

    /// The ended requests of an initiator, those first that ended first.
    fn ended_of(&self, peer: u32) -> impl Iterator<Item = u32> {
        let first = self.table.peers.get(peer).ended.first();
        std::iter::successors(first, |&slot| {
            Linked::<OF_ENDED>::links_of(&self.table.records, slot).next()
        })
    }

    pub(super) fn gc_timeout(&self, slot: u32) -> Nanoseconds {
        let call = self.table.calls.get(self.table.records.get(slot).call);
        self.table.peers.get(call.peer).gc_timeout
    }

    pub(super) fn forget(&mut self, slot: u32) {
        let record = self.table.records.at(slot);
        if let Some(due) = record.due.take() {
            self.queue.remove(&(due, slot));
        }
        if let Some(last) = record.kept.take() {
            self.kept.forget(last);
        }
        self.table.remove_record(slot, &mut self.fresh);
    }

    /// Sees to it that an initiator's requests are looked through when the first of them may be forgotten.
    #[inline(never)]
    pub(super) fn schedule_collection(&mut self, peer: u32, now: Nanoseconds) {
        let at_peer = self.table.peers.at(peer);
        if at_peer.collection.is_some() {
            return;
        }
        let since = match at_peer.ended.first() {
            Some(slot) => self.table.records.get(slot).since,
            None => at_peer.heard,
        };
        let due = since.saturating_add(at_peer.gc_timeout).max(now);
        at_peer.collection = Some(due);
        self.collections.insert((due, peer));
        self.note_due(due);
    }

    /// Forgets what has ended long enough ago, and an initiator of which nothing is left.
    pub(super) fn collect(&mut self, peer: u32, now: Nanoseconds) {
        let gc_timeout = self.table.peers.get(peer).gc_timeout;
        let over = |since: Nanoseconds| since.saturating_add(gc_timeout) <= now;
        while let Some(slot) = self.table.peers.get(peer).ended.first() {
            if !over(self.table.records.get(slot).since) {
                return self.schedule_collection(peer, now);
            }
            self.forget(slot);
        }
        let at_peer = self.table.peers.get(peer);
        if at_peer.calls.first().is_none() && over(at_peer.heard) {
            self.table.remove_peer(peer);
        } else {
            // Something runs, or it was heard of lately.
            self.schedule_collection(peer, now.saturating_add(gc_timeout.divided_by(8)));
        }
    }
}
