//! What is forgotten, and when: in time, or for want of room.

use std::time::Duration;

use crate::call::records::Records;

impl Records {
    /// Whether another request can be remembered, if need be after forgetting one that has ended.
    pub(super) fn has_room(&mut self, now: Duration) -> bool {
        self.table.records.len() < self.limits.requests || self.evict(now)
    }

    /// Forgets the request that ended first, or nearly, of all; `false` if all run.
    pub(super) fn evict(&mut self, now: Duration) -> bool {
        if self.running >= self.table.records.len() {
            return false;
        }
        let oldest = self
            .collections
            .iter()
            .find_map(|&(_, peer)| self.table.peers.get(peer).ended.first());
        let Some(slot) = oldest else {
            return false;
        };
        let gc_timeout = self.gc_timeout(slot);
        self.evicted_until = self.evicted_until.max(now.saturating_add(gc_timeout));
        self.forget(slot);
        true
    }

    /// Forgets an initiator of which nothing runs; `false` if there is none.
    pub(super) fn evict_peer(&mut self, now: Duration) -> bool {
        let idle = |peer: &u32| self.table.peers.get(*peer).running == 0;
        let Some(peer) = self.collections.iter().map(|entry| entry.1).find(idle) else {
            return false;
        };
        while let Some(slot) = self.table.peers.get(peer).ended.first() {
            let gc_timeout = self.gc_timeout(slot);
            self.evicted_until = self.evicted_until.max(now.saturating_add(gc_timeout));
            self.forget(slot);
        }
        if let Some(due) = self.table.peers.at(peer).collection.take() {
            self.collections.remove(&(due, peer));
        }
        self.table.remove_peer(peer);
        true
    }

    pub(super) fn gc_timeout(&self, slot: u32) -> Duration {
        let call = self.table.calls.get(self.table.records.get(slot).call);
        self.table.peers.get(call.peer).gc_timeout
    }

    pub(super) fn forget(&mut self, slot: u32) {
        let record = self.table.records.at(slot);
        let kept = record.kept.take();
        if let Some(due) = record.due.take() {
            self.queue.remove(&(due, slot));
        }
        if kept.is_some() {
            self.kept.forget(kept);
        }
        self.table.remove_record(slot, &mut self.fresh);
    }

    /// Sees to it that an initiator's requests are looked through when the first of them may be forgotten.
    pub(super) fn schedule_collection(&mut self, peer: u32, now: Duration) {
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
    }

    /// Forgets what has ended long enough ago, and an initiator of which nothing is left.
    pub(super) fn collect(&mut self, peer: u32, now: Duration) {
        let gc_timeout = self.table.peers.get(peer).gc_timeout;
        let over = |since: Duration| since.saturating_add(gc_timeout) <= now;
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
            self.schedule_collection(peer, now.saturating_add(gc_timeout / 8));
        }
    }
}
