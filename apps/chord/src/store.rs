//! What one node keeps: entries by key, in the order of the ring.

use crate::id::{RingId, Span};
use crate::message::Refusal;
use serde::{Deserialize, Serialize};
use siphasher::sip::SipHasher24;
use std::collections::BTreeMap;
use std::hash::Hasher;
use std::ops::Bound;

/// A key with its place, which orders keys as the ring does.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Key {
    /// Its place.
    pub id: RingId,
    /// What it is called.
    pub name: String,
}

/// One of two values of a key is the newer one: the greater version, and of equal versions, which only come about when two
/// nodes took themselves for the owner, the greater id of the put.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Version {
    /// Counts the puts of a key; the owner counts.
    pub count: u64,
    /// The put that made it.
    pub put: u64,
}

/// A value and where it comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// The value.
    pub value: Vec<u8>,
    /// Which of several values is the newest.
    pub version: Version,
    /// The latest puts, newest last: one that comes again is not done again. At most [`Entry::REMEMBERED`].
    pub puts: Vec<u64>,
}

/// A node's entries: its own and copies of others'.
#[derive(Clone, Debug)]
pub struct Store {
    entries: BTreeMap<Key, Kept>,
    limit: usize,
}

#[derive(Clone, Debug)]
struct Kept {
    entry: Entry,
    /// The round in which somebody last said that it belongs here.
    confirmed: u64,
}

impl Key {
    /// The key of this name.
    pub fn new(name: &str) -> Self {
        Self {
            id: RingId::of_key(name),
            name: name.to_owned(),
        }
    }
}

impl Entry {
    /// How many puts of a key are remembered.
    pub const REMEMBERED: usize = 8;

    /// About how many bytes it takes in a message.
    pub fn size(&self) -> usize {
        self.value.len() + 8 * self.puts.len() + 32
    }
}

impl Store {
    /// An empty one for at most so many keys.
    pub fn new(limit: usize) -> Self {
        Self {
            entries: BTreeMap::new(),
            limit,
        }
    }

    /// How many keys there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The value of a key.
    pub fn find(&self, key: &Key) -> Option<&Entry> {
        self.entries.get(key).map(|kept| &kept.entry)
    }

    /// Does a put, as the owner of the key: the entry that others are to copy. A put that was done already changes nothing.
    ///
    /// # Errors
    ///
    /// If there is no room for another key.
    pub fn put(
        &mut self,
        key: &Key,
        value: Vec<u8>,
        put: u64,
        round: u64,
    ) -> Result<Entry, Refusal> {
        let (count, mut puts) = match self.find(key) {
            Some(entry) if entry.puts.contains(&put) => return Ok(entry.clone()),
            Some(entry) => (entry.version.count, entry.puts.clone()),
            None => (0, Vec::new()),
        };
        puts.push(put);
        if puts.len() > Entry::REMEMBERED {
            puts.remove(0);
        }
        let count = count.saturating_add(1);
        let entry = Entry {
            value,
            version: Version { count, put },
            puts,
        };
        self.learn(key.clone(), entry.clone(), round)?;
        Ok(entry)
    }

    /// Keeps an entry that somebody sent, unless a newer one is here.
    ///
    /// # Errors
    ///
    /// If there is no room for another key.
    pub fn learn(&mut self, key: Key, mut entry: Entry, round: u64) -> Result<(), Refusal> {
        entry.puts.truncate(Entry::REMEMBERED);
        if let Some(kept) = self.entries.get_mut(&key) {
            kept.confirmed = round;
            if kept.entry.version < entry.version {
                kept.entry = entry;
            }
            return Ok(());
        }
        if self.entries.len() >= self.limit {
            return Err(Refusal::Full { limit: self.limit });
        }
        let confirmed = round;
        self.entries.insert(key, Kept { entry, confirmed });
        Ok(())
    }

    /// Forgets an entry if it is of this version still.
    pub fn forget(&mut self, key: &Key, version: Version) {
        if self.find(key).is_some_and(|entry| entry.version == version) {
            self.entries.remove(key);
        }
    }

    /// The entries of a span, clockwise.
    pub fn within(&self, span: Span) -> impl Iterator<Item = (&Key, &Entry)> {
        self.kept(span).map(|(key, kept)| (key, &kept.entry))
    }

    /// Somebody says that the entries of a span belong here.
    pub fn confirm(&mut self, span: Span, round: u64) {
        for (key, kept) in &mut self.entries {
            if span.contains(key.id) {
                kept.confirmed = round;
            }
        }
    }

    /// Whether somebody has said since a round that an entry belongs here.
    pub fn is_confirmed(&self, key: &Key, since: u64) -> bool {
        let kept = self.entries.get(key);
        kept.is_some_and(|kept| kept.confirmed >= since)
    }

    /// The first entry outside a span of which nobody has said since a round that it belongs here.
    pub fn stray(&self, own: Span, since: u64) -> Option<&Key> {
        let outside = self.entries.iter().filter(|(key, _)| !own.contains(key.id));
        let mut strays = outside.filter(|(_, kept)| kept.confirmed < since);
        strays.next().map(|(key, _)| key)
    }

    fn kept(&self, span: Span) -> impl Iterator<Item = (&Key, &Kept)> {
        let first = |id: RingId| Key {
            id,
            name: String::new(),
        };
        // A key behind every name of a place is the first of the next place.
        let behind = |id: RingId| match id.0.checked_add(1) {
            Some(next) => Bound::Excluded(first(RingId(next))),
            None => Bound::Unbounded,
        };
        let wraps = span.after >= span.to;
        let upper = match wraps {
            true => Bound::Unbounded,
            false => behind(span.to),
        };
        let start = span.after.0.checked_add(1);
        let start = start.map(|next| Bound::Included(first(RingId(next))));
        let begin = start.map(|start| self.entries.range((start, upper)));
        let rest = wraps.then(|| self.entries.range((Bound::Unbounded, behind(span.to))));
        begin
            .into_iter()
            .flatten()
            .chain(rest.into_iter().flatten())
    }
}

/// What tells whether two nodes have the same entries: keys and versions, in one number.
pub fn digest<'a>(entries: impl Iterator<Item = (&'a Key, &'a Entry)>) -> u64 {
    let mut hasher = SipHasher24::new();
    for (key, entry) in entries {
        hasher.write_u64(key.id.0);
        hasher.write(key.name.as_bytes());
        hasher.write_u8(0);
        hasher.write_u64(entry.version.count);
        hasher.write_u64(entry.version.put);
    }
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(id: u64) -> Key {
        Key {
            id: RingId(id),
            name: format!("k{id}"),
        }
    }

    fn filled(ids: &[u64]) -> Store {
        let mut store = Store::new(100);
        for id in ids {
            store.put(&key(*id), vec![1], 7, 0).unwrap();
        }
        store
    }

    #[test]
    fn spans_wrap() {
        let store = filled(&[0, 5, 10, u64::MAX]);
        let check = |after, to, expected: &[u64]| {
            let span = Span {
                after: RingId(after),
                to: RingId(to),
            };
            let found: Vec<u64> = store.within(span).map(|(key, _)| key.id.0).collect();
            assert_eq!(found, expected, "{span:?}");
        };
        check(0, 10, &[5, 10]);
        check(10, 5, &[u64::MAX, 0, 5]);
        check(5, 5, &[10, u64::MAX, 0, 5]);
        check(u64::MAX, 0, &[0]);
        check(u64::MAX, u64::MAX, &[0, 5, 10, u64::MAX]);
        check(10, u64::MAX, &[u64::MAX]);
        check(11, 12, &[]);
    }

    #[test]
    fn a_put_that_comes_again_is_not_done_again() {
        let mut store = Store::new(1);
        let first = store.put(&key(1), b"a".to_vec(), 11, 0).unwrap();
        let second = store.put(&key(1), b"b".to_vec(), 12, 0).unwrap();
        assert!(first.version < second.version);
        assert_eq!(store.put(&key(1), b"a".to_vec(), 11, 0), Ok(second.clone()));
        for put in 100..120 {
            store.put(&key(1), b"c".to_vec(), put, 0).unwrap();
        }
        assert_eq!(store.find(&key(1)).unwrap().puts.len(), Entry::REMEMBERED);
        // An older one does not replace a newer one.
        store.learn(key(1), second, 0).unwrap();
        assert_eq!(store.find(&key(1)).unwrap().value, b"c");
        assert_eq!(
            store.put(&key(2), vec![], 1, 0),
            Err(Refusal::Full { limit: 1 })
        );
    }

    #[test]
    fn digests_tell_versions_apart() {
        let whole = Span {
            after: RingId(0),
            to: RingId(0),
        };
        let (mut one, other) = (filled(&[1, 2]), filled(&[1, 2]));
        assert_eq!(digest(one.within(whole)), digest(other.within(whole)));
        one.put(&key(2), vec![1], 8, 0).unwrap();
        assert_ne!(digest(one.within(whole)), digest(other.within(whole)));
    }
}
