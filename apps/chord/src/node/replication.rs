//! How copies stay where they belong: with the owner of a key and the nodes behind it.
//!
//! An owner compares what it owns with each node that should keep a copy, and both end with the newer of each entry. A
//! copy that no owner has confirmed for long strays: it is offered to who owns it now, and only then forgotten.

use super::{Errand, Node, Phase, Purpose};
use crate::id::{RingId, Span};
use crate::message::{Ask, Miss, Peer, Refusal, Told};
use crate::store::{Entry, Key, Version, digest};
use std::collections::BTreeMap;

/// How many entries are compared or handed over at a time.
const BATCH: usize = 256;
/// How many bytes of entries are sent at a time, unless a single one is longer: they fit into a message over UDP.
const BATCH_BYTES: usize = 48 << 10;
/// In how many rounds copies are compared once, if nothing has changed.
const COMPARE_EVERY: u64 = 8;
/// A copy strays that was not confirmed in so many rounds.
const STRAYS_AFTER: u64 = 3 * COMPARE_EVERY;

impl Node {
    /// Compares what this node owns with its copies, if it is time to, and brings strays home.
    pub(super) fn replicate(&mut self) -> Vec<Errand> {
        let mut errands: Vec<Errand> = self.find_stray().into_iter().collect();
        let is_time = self.compared + COMPARE_EVERY <= self.round;
        let is_busy = [Purpose::Compare, Purpose::Mend, Purpose::FetchNewer]
            .into_iter()
            .any(|purpose| self.is_under_way(purpose));
        let Some(span) = self.span() else {
            return errands;
        };
        if is_busy || !(is_time || self.comparison_is_due) {
            return errands;
        }
        self.comparison_is_due = false;
        self.compared = self.round;
        // If some of it is another node's tomorrow, that one has time to say what belongs here.
        self.store.confirm(span, self.round);
        for keeper in self.keepers(&Default::default()) {
            errands.push(self.ask_compare(keeper, span));
        }
        errands
    }

    /// Compares the first part of a span with a keeper.
    fn ask_compare(&mut self, keeper: Peer, span: Span) -> Errand {
        let span = self.part(span);
        let digest = digest(self.store.within(span));
        self.errand(keeper, Ask::Compare { span, digest }, Purpose::Compare)
    }

    /// The first part of a span whose entries fit into a message. No place is cut.
    fn part(&self, span: Span) -> Span {
        let (mut count, mut bytes) = (0, 0);
        let mut entries = self.store.within(span);
        let beyond = entries.find(|(key, entry)| {
            count += 1;
            bytes += key.name.len() + entry.size();
            count > BATCH || bytes > BATCH_BYTES && count > 1
        });
        let to = match beyond.map(|(key, _)| key.id) {
            None => span.to,
            Some(id) if span.after.distance_to(id) == 1 => id,
            Some(id) => RingId(id.0.wrapping_sub(1)),
        };
        Span { to, ..span }
    }

    pub(super) fn compare(&mut self, span: Span, theirs: u64) -> Told {
        self.store.confirm(span, self.round);
        if digest(self.store.within(span)) == theirs {
            return Told::Yes;
        }
        let part = self.part(span);
        let entries = self.store.within(part);
        let versions = entries.map(|(key, entry)| (key.clone(), entry.version));
        Told::Versions(versions.collect(), part.to)
    }

    pub(super) fn handle_compared(
        &mut self,
        errand: &Errand,
        told: Result<Told, Miss>,
    ) -> Vec<Errand> {
        let Ask::Compare { span, .. } = errand.ask else {
            return Vec::new();
        };
        let mut errands = Vec::new();
        let compared = match told {
            Ok(Told::Yes) => span.to,
            Ok(Told::Versions(versions, to)) => {
                errands = self.mend(&errand.to, Span { to, ..span }, versions);
                to
            }
            _ => {
                self.comparison_is_due = true;
                return Vec::new();
            }
        };
        if self.phase == Phase::Serving && compared != self.me.id {
            let (after, to) = (compared, self.me.id);
            errands.push(self.ask_compare(errand.to.clone(), Span { after, to }));
        }
        errands
    }

    /// Sends what is newer here, and asks for what is newer there.
    fn mend(&mut self, keeper: &Peer, span: Span, theirs: Vec<(Key, Version)>) -> Vec<Errand> {
        let theirs: BTreeMap<Key, Version> = theirs.into_iter().collect();
        let newer_here = self.store.within(span).filter(|(key, entry)| {
            let version = theirs.get(*key);
            version.is_none_or(|version| *version < entry.version)
        });
        let batches = in_batches(newer_here);
        let newer_there = theirs.iter().filter(|(key, version)| {
            let here = self.store.find(key);
            span.contains(key.id) && here.is_none_or(|entry| entry.version < **version)
        });
        let keys: Vec<Key> = newer_there.map(|(key, _)| key.clone()).collect();
        let mut errands = Vec::new();
        for entries in batches {
            errands.push(self.errand(keeper.clone(), Ask::Keep { entries }, Purpose::Mend));
        }
        if !keys.is_empty() {
            // What came from there goes on to the other keepers.
            self.comparison_is_due = true;
            errands.push(self.errand(keeper.clone(), Ask::Fetch { keys }, Purpose::FetchNewer));
        }
        errands
    }

    pub(super) fn keep(&mut self, entries: Vec<(Key, Entry)>) -> Result<(), Refusal> {
        for (key, entry) in entries {
            self.check_size(&key, &entry.value)?;
            self.store.learn(key, entry, self.round)?;
        }
        Ok(())
    }

    pub(super) fn fetch(&self, keys: Vec<Key>) -> Told {
        let found = keys
            .iter()
            .filter_map(|key| Some((key, self.store.find(key)?)));
        let first = in_batches(found).into_iter().next();
        Told::Entries(first.unwrap_or_default(), None)
    }

    pub(super) fn handle_fetched(&mut self, told: Result<Told, Miss>) {
        match told {
            // A full store refuses; the copies that there are stay where they are.
            Ok(Told::Entries(entries, _)) => drop(self.keep(entries)),
            _ => self.comparison_is_due = true,
        }
    }

    /// What a node that joins before this one is to keep: all that is here and not this node's own.
    pub(super) fn hand_over(&self, span: Span) -> Told {
        let part = self.part(span);
        let is_all = part.to == span.to;
        Told::Entries(self.entries(part), (!is_all).then_some(part.to))
    }

    pub(super) fn handle_handed_over(
        &mut self,
        errand: &Errand,
        told: Result<Told, Miss>,
    ) -> Vec<Errand> {
        if self.phase != Phase::TakingOver {
            return Vec::new();
        }
        let Ok(Told::Entries(entries, more)) = told else {
            self.phase = Phase::Seeking;
            return Vec::new();
        };
        // It cannot answer for what it has no room for.
        if self.keep(entries).is_err() {
            self.phase = Phase::Gone;
            return Vec::new();
        }
        if let Some(after) = more {
            return vec![self.ask_hand_over(errand.to.clone(), after)];
        }
        self.phase = Phase::Serving;
        Vec::new()
    }

    /// All that is here, in messages of a bounded size.
    pub(super) fn batches(&self) -> Vec<Vec<(Key, Entry)>> {
        let (after, to) = (self.me.id, self.me.id);
        in_batches(self.store.within(Span { after, to }))
    }

    fn entries(&self, span: Span) -> Vec<(Key, Entry)> {
        let entries = self.store.within(span);
        entries
            .map(|(key, entry)| (key.clone(), entry.clone()))
            .collect()
    }

    /// Who owns what nobody says belongs here?
    fn find_stray(&mut self) -> Option<Errand> {
        let since = self.round.checked_sub(STRAYS_AFTER)?;
        let is_busy =
            self.is_under_way(Purpose::FindStrayOwner) || self.is_under_way(Purpose::BringStrays);
        let stray = self.store.stray(self.span()?, since);
        let id = stray.filter(|_| !is_busy)?.id;
        Some(self.find(id, self.me.clone(), Purpose::FindStrayOwner))
    }

    pub(super) fn handle_stray_owner(&mut self, told: Result<Told, Miss>) -> Vec<Errand> {
        let Ok(Told::Found(found)) = told else {
            return Vec::new();
        };
        let Some(span) = found.span.filter(|_| found.owner != self.me) else {
            return Vec::new();
        };
        let entries = self.entries(self.part(span));
        vec![self.errand(found.owner, Ask::Keep { entries }, Purpose::BringStrays)]
    }

    pub(super) fn handle_strays_brought(&mut self, errand: &Errand, arrived: bool) {
        let Ask::Keep { entries } = &errand.ask else {
            return;
        };
        let Some(own) = self.span().filter(|_| arrived) else {
            return;
        };
        let since = self.round.saturating_sub(STRAYS_AFTER);
        for (key, entry) in entries {
            if !own.contains(key.id) && !self.store.is_confirmed(key, since) {
                self.store.forget(key, entry.version);
            }
        }
    }
}

/// Entries in messages of a bounded size.
fn in_batches<'a>(entries: impl Iterator<Item = (&'a Key, &'a Entry)>) -> Vec<Vec<(Key, Entry)>> {
    let mut batches = Vec::new();
    let mut batch = Vec::new();
    let mut bytes = 0;
    for (key, entry) in entries {
        let size = key.name.len() + entry.size();
        if batch.len() >= BATCH || (bytes + size > BATCH_BYTES && !batch.is_empty()) {
            batches.push(std::mem::take(&mut batch));
            bytes = 0;
        }
        bytes += size;
        batch.push((key.clone(), entry.clone()));
    }
    if !batch.is_empty() {
        batches.push(batch);
    }
    batches
}
