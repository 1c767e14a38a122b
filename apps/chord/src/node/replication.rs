//! How copies stay where they belong: with the owner of a key and the nodes behind it.
//!
//! An owner compares what it owns with each node that should keep a copy, and both end with the newer of each entry. A
//! copy that no owner has confirmed for long strays: it is offered to who owns it now, and only then forgotten.

use super::{Errand, Node, Phase, Purpose};
use crate::id::{RingId, Span};
use crate::message::{Ask, Peer, Refusal, Told, Trouble};
use crate::store::{Entry, Key, digest};

/// How many entries are compared or handed over at a time.
const BATCH: usize = 256;
/// How many bytes of entries are sent at a time, unless a single one is longer: they fit into a message over UDP.
const BATCH_BYTES: usize = 48 << 10;
/// A copy strays that was not confirmed in so many comparisons.
const STRAYS_AFTER: u64 = 3;

/// What is to be compared with the keepers of copies.
#[derive(Clone, Debug, Default)]
pub(super) struct Comparison {
    /// Something changed since the last one.
    pub(super) is_due: bool,
    /// The round of the last one.
    last: u64,
}

impl Node {
    /// Compares what this node owns with its copies, if it is time to, and brings strays home.
    pub(super) fn replicate(&mut self) -> Vec<Errand> {
        let mut errands: Vec<Errand> = self.bring_strays().into_iter().collect();
        let is_time = self.comparison.last + self.config.compare_every <= self.round;
        let is_busy = [Purpose::Compare, Purpose::Mend, Purpose::FetchNewer]
            .iter()
            .any(|purpose| self.is_under_way(purpose));
        let Some(span) = self.span() else {
            return errands;
        };
        if is_busy || !(is_time || self.comparison.is_due) {
            return errands;
        }
        self.comparison.is_due = false;
        self.comparison.last = self.round;
        // If some of it is another node's tomorrow, that one has time to say what belongs here.
        self.store.confirm(span, self.round);
        for keeper in self.keepers(&Default::default()) {
            errands.push(self.ask_compare(keeper, span));
        }
        errands
    }

    /// Compares the first part of a span with a keeper.
    fn ask_compare(&mut self, keeper: Peer, span: Span) -> Errand {
        let part = self.part(span);
        let digest = digest(self.store.within(part));
        self.errand(
            keeper,
            Ask::Compare { span: part, digest },
            Purpose::Compare,
        )
    }

    /// The first part of a span, with so many entries that they can be told at once.
    fn part(&self, span: Span) -> Span {
        let mut entries = self.store.within(span).skip(BATCH);
        let to = entries.next().map_or(span.to, |(key, _)| {
            // The last place of the part: the one before this entry's, so that no place is cut.
            RingId(key.id.0.wrapping_sub(1))
        });
        match to == span.after {
            true => span,
            false => Span { to, ..span },
        }
    }

    pub(super) fn compare(&mut self, span: Span, theirs: u64) -> Told {
        let round = self.round;
        self.store.confirm(span, round);
        if digest(self.store.within(span)) == theirs {
            return Told::Yes;
        }
        let mut versions = Vec::new();
        let mut bytes = 0;
        for (key, entry) in self.store.within(span) {
            bytes += key.name.len() + 32;
            if bytes > BATCH_BYTES && !versions.is_empty() {
                // The last place may be cut off in its middle: the next comparison begins with it.
                let last = versions
                    .last()
                    .map_or(span.to, |(key, _): &(Key, _)| key.id);
                let whole = RingId(last.0.wrapping_sub(1));
                let to = if whole == span.after { last } else { whole };
                return Told::Versions(versions, to);
            }
            versions.push((key.clone(), entry.version));
        }
        let to = span.to;
        Told::Versions(versions, to)
    }

    pub(super) fn handle_compared(
        &mut self,
        errand: &Errand,
        told: Result<Told, Trouble>,
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
                self.comparison.is_due = true;
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
    fn mend(
        &mut self,
        keeper: &Peer,
        span: Span,
        theirs: Vec<(Key, crate::store::Version)>,
    ) -> Vec<Errand> {
        let theirs: std::collections::BTreeMap<_, _> = theirs.into_iter().collect();
        let newer_here = |(key, entry): &(&Key, &Entry)| {
            theirs
                .get(*key)
                .is_none_or(|version| *version < entry.version)
        };
        let here = self.store.within(span).filter(newer_here);
        let batches = in_batches(here);
        let newer_there = theirs.iter().filter(|(key, version)| {
            span.contains(key.id)
                && self
                    .store
                    .find(key)
                    .is_none_or(|entry| entry.version < **version)
        });
        let keys: Vec<Key> = newer_there.map(|(key, _)| key.clone()).collect();
        let mut errands = Vec::new();
        for entries in batches {
            errands.push(self.errand(keeper.clone(), Ask::Keep { entries }, Purpose::Mend));
        }
        if !keys.is_empty() {
            // What came from there goes on to the other keepers.
            self.comparison.is_due = true;
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
        let mut batches = in_batches(found);
        Told::Entries(batches.drain(..).next().unwrap_or_default(), None)
    }

    pub(super) fn handle_fetched(&mut self, told: Result<Told, Trouble>) {
        match told {
            // A full store refuses; the copies that there are stay where they are.
            Ok(Told::Entries(entries, _)) => drop(self.keep(entries)),
            _ => self.comparison.is_due = true,
        }
    }

    /// What a node that joins before this one is to keep: all that is here and not this node's own.
    pub(super) fn hand_over(&self, span: Span) -> Told {
        let mut batches = in_batches(self.store.within(span));
        let more = batches.len() > 1;
        let first = batches.drain(..).next().unwrap_or_default();
        let last = first.last().map(|(key, _)| key.id);
        Told::Entries(first, last.filter(|_| more))
    }

    pub(super) fn handle_handed_over(
        &mut self,
        errand: &Errand,
        told: Result<Told, Trouble>,
    ) -> Vec<Errand> {
        if self.phase != Phase::TakingOver {
            return Vec::new();
        }
        match told {
            Ok(Told::Entries(entries, more)) => {
                if self.keep(entries).is_err() {
                    // It cannot answer for what it has no room for.
                    self.phase = Phase::Gone;
                    return Vec::new();
                }
                // Of a place with several keys some may be missing: it is asked for again.
                let again = |last: RingId| RingId(last.0.wrapping_sub(1));
                match more.map(again) {
                    Some(after) => return vec![self.ask_hand_over(errand.to.clone(), after)],
                    None => self.phase = Phase::Serving,
                }
            }
            _ => self.phase = Phase::Seeking,
        }
        Vec::new()
    }

    /// All that is here, in messages of a bounded size.
    pub(super) fn batches(&self) -> Vec<Vec<(Key, Entry)>> {
        let (after, to) = (self.me.id, self.me.id);
        in_batches(self.store.within(Span { after, to }))
    }

    fn bring_strays(&mut self) -> Option<Errand> {
        let patience = STRAYS_AFTER * self.config.compare_every;
        let since = self.round.checked_sub(patience)?;
        if self.finding_strays {
            return None;
        }
        let id = self.store.stray(self.span()?, since)?.id;
        self.finding_strays = true;
        let me = self.me.clone();
        let lookup = crate::message::Lookup::new(id, me.id, crate::message::Wish::Owner);
        let lookup = Box::new(lookup);
        Some(self.errand(me, Ask::Find { lookup }, Purpose::FindStrayOwner(id)))
    }

    pub(super) fn handle_stray_owner(
        &mut self,
        id: RingId,
        told: Result<Told, Trouble>,
    ) -> Vec<Errand> {
        self.finding_strays = false;
        let Ok(Told::Found(found)) = told else {
            return Vec::new();
        };
        let span = found.span.filter(|span| span.contains(id));
        let (Some(span), false) = (span, found.owner == self.me) else {
            return Vec::new();
        };
        let Some(entries) = in_batches(self.store.within(span)).drain(..).next() else {
            return Vec::new();
        };
        let versions = entries
            .iter()
            .map(|(key, entry)| (key.clone(), entry.version));
        let brought = Purpose::BringStray(versions.collect());
        self.finding_strays = true;
        vec![self.errand(found.owner, Ask::Keep { entries }, brought)]
    }

    pub(super) fn handle_strays_brought(
        &mut self,
        brought: &[(Key, crate::store::Version)],
        arrived: bool,
    ) {
        self.finding_strays = false;
        let Some(own) = self.span().filter(|_| arrived) else {
            return;
        };
        let patience = STRAYS_AFTER * self.config.compare_every;
        let since = self.round.saturating_sub(patience);
        for (key, version) in brought {
            if !own.contains(key.id) && !self.store.is_confirmed(key, since) {
                self.store.forget(key, *version);
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
