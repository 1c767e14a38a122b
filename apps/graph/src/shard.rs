//! One server's part of the graph, in memory: its vertices, each with the edges that leave it.
//!
//! Facts may come in any order, an edge before its vertex too, and more than once: the same facts always make the same
//! graph. The edges of a vertex are seen when it is there itself.

use crate::fact::{Edge, Fact};
use crate::model::{Forum, ForumId, Message, MessageId, Name, Person, PersonId, Timestamp, Vertex};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::ops::AddAssign;

/// Part of the graph.
#[derive(Debug, Default)]
pub struct Shard {
    persons: HashMap<PersonId, Person>,
    messages: HashMap<MessageId, Message>,
    forums: HashMap<ForumId, Forum>,
    edges: HashMap<Vertex, BTreeMap<Vertex, Timestamp>>,
    counts: Counts,
}

/// How much there is of each of the [`KINDS`](Counts::KINDS).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts([u64; 6]);

/// A fact that is already known otherwise: two persons with one id, say.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("already known otherwise: {0:?}")]
pub struct Conflict(Fact);

impl Shard {
    /// Whether a fact is new.
    pub fn is_new(&self, fact: &Fact) -> Result<bool, Conflict> {
        let is_known = match fact {
            Fact::Person(person) => self.person(person.name.id).map(|known| known == person),
            Fact::Forum(forum) => self.forum(forum.id).map(|known| known == forum),
            Fact::Message(message) => self.message(message.id).map(|known| known == message),
            Fact::Edge(Edge { from, to, since }) => {
                let edges = self.edges.get(from);
                let known = edges.and_then(|edges| edges.get(to));
                known.map(|known| known == since)
            }
        };
        match is_known {
            None => Ok(true),
            Some(true) => Ok(false),
            Some(false) => Err(Conflict(fact.clone())),
        }
    }

    /// Learns a fact that [`is_new`](Self::is_new).
    pub fn learn(&mut self, fact: Fact) {
        self.counts.add(&fact);
        match fact {
            Fact::Person(person) => drop(self.persons.insert(person.name.id, person)),
            Fact::Forum(forum) => drop(self.forums.insert(forum.id, forum)),
            Fact::Message(message) => drop(self.messages.insert(message.id, message)),
            Fact::Edge(Edge { from, to, since }) => {
                self.edges.entry(from).or_default().insert(to, since);
            }
        }
    }

    /// A person, if known.
    pub fn person(&self, id: PersonId) -> Option<&Person> {
        self.persons.get(&id)
    }

    /// A person's name.
    pub fn name(&self, id: PersonId) -> Option<&Name> {
        self.person(id).map(|person| &person.name)
    }

    /// A person's friends, each with the beginning of the friendship.
    pub fn friends(&self, of: PersonId) -> impl Iterator<Item = (PersonId, Timestamp)> + '_ {
        let edges = self.edges_from(of.into());
        edges.filter_map(|(to, since)| match to {
            Vertex::Person(friend) => Some((friend, since)),
            Vertex::Message(_) | Vertex::Forum(_) => None,
        })
    }

    /// The messages that a person wrote, latest first, of equal age the one with the greatest id.
    pub fn latest_messages(&self, by: PersonId) -> impl Iterator<Item = MessageId> + '_ {
        let mut messages: Vec<(Timestamp, MessageId)> = self.messages_from(by.into()).collect();
        messages.sort_unstable();
        messages.into_iter().rev().map(|(_, message)| message)
    }

    /// A message, if known.
    pub fn message(&self, id: MessageId) -> Option<&Message> {
        self.messages.get(&id)
    }

    /// The direct replies to a message.
    pub fn replies(&self, to: MessageId) -> impl Iterator<Item = MessageId> + '_ {
        self.messages_from(to.into()).map(|(_, message)| message)
    }

    /// A forum, if known.
    pub fn forum(&self, id: ForumId) -> Option<&Forum> {
        self.forums.get(&id)
    }

    /// How much there is.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// The ids of all persons, in no order.
    pub fn persons(&self) -> impl Iterator<Item = PersonId> + '_ {
        self.persons.keys().copied()
    }

    /// The ids of all messages, in no order.
    pub fn messages(&self) -> impl Iterator<Item = MessageId> + '_ {
        self.messages.keys().copied()
    }

    fn messages_from(&self, from: Vertex) -> impl Iterator<Item = (Timestamp, MessageId)> + '_ {
        let edges = self.edges_from(from);
        edges.filter_map(|(to, since)| match to {
            Vertex::Message(message) => Some((since, message)),
            Vertex::Person(_) | Vertex::Forum(_) => None,
        })
    }

    /// The edges of a vertex that is there.
    fn edges_from(&self, from: Vertex) -> impl Iterator<Item = (Vertex, Timestamp)> + '_ {
        let is_there = match from {
            Vertex::Person(id) => self.persons.contains_key(&id),
            Vertex::Message(id) => self.messages.contains_key(&id),
            Vertex::Forum(id) => self.forums.contains_key(&id),
        };
        let edges = self.edges.get(&from).filter(|_| is_there);
        edges.into_iter().flatten().map(|(to, since)| (*to, *since))
    }
}

impl Counts {
    /// What is counted.
    pub const KINDS: [&str; 6] = [
        "persons",
        "friendships",
        "forums",
        "members",
        "messages",
        "likes",
    ];

    /// One more.
    pub fn add(&mut self, fact: &Fact) {
        let kind = match fact {
            Fact::Person(_) => 0,
            Fact::Forum(_) => 2,
            Fact::Message(_) => 4,
            Fact::Edge(Edge { from, to, .. }) => match (from, to) {
                // Each is an edge both ways.
                (Vertex::Person(one), Vertex::Person(other)) if one < other => 1,
                (Vertex::Forum(_), Vertex::Person(_)) => 3,
                (Vertex::Message(_), Vertex::Person(_)) => 5,
                _ => return,
            },
        };
        self.0[kind] += 1;
    }
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        for (count, more) in self.0.iter_mut().zip(other.0) {
            *count = count.saturating_add(more);
        }
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts = self.0.iter().zip(Self::KINDS);
        let counts: Vec<String> = counts
            .map(|(count, kind)| format!("{count} {kind}"))
            .collect();
        f.write_str(&counts.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Insert;
    use crate::source::generated::generate;

    fn wrote(created: i64, message: i64) -> Fact {
        Fact::edge(PersonId(1), MessageId(message), Timestamp(created))
    }

    #[test]
    fn latest_messages_come_first_and_of_equal_age_the_greatest_id() {
        let mut shard = Shard::default();
        for (created, message) in [(5, 1), (7, 2), (5, 3), (9, 0)] {
            shard.learn(wrote(created, message));
        }
        let early = shard.latest_messages(PersonId(1)).count();
        assert_eq!(early, 0, "the person is not there yet");
        let facts = generate(1, 1).flat_map(Insert::facts);
        let mut persons = facts.filter(|fact| matches!(fact, Fact::Person(_)));
        shard.learn(persons.next().unwrap());
        let latest: Vec<i64> = shard.latest_messages(PersonId(1)).map(|id| id.0).collect();
        assert_eq!(latest, [0, 2, 3, 1]);
        assert_eq!(shard.latest_messages(PersonId(2)).count(), 0);
    }

    #[test]
    fn facts_are_new_once_and_may_not_change() {
        let mut shard = Shard::default();
        let friend = |since| Fact::edge(PersonId(1), PersonId(2), Timestamp(since));
        assert_eq!(shard.is_new(&friend(5)), Ok(true));
        shard.learn(friend(5));
        assert_eq!(shard.is_new(&friend(5)), Ok(false));
        assert_eq!(shard.is_new(&friend(6)), Err(Conflict(friend(6))));
        assert_eq!(shard.is_new(&wrote(1, 1)), Ok(true));
        shard.learn(wrote(1, 1));
        assert_eq!(shard.is_new(&wrote(1, 1)), Ok(false));
        assert_eq!(shard.is_new(&wrote(1, 2)), Ok(true));
    }

    #[test]
    fn an_edge_does_not_make_a_vertex() {
        let mut shard = Shard::default();
        shard.learn(wrote(1, 1));
        assert_eq!(shard.person(PersonId(1)), None);
        assert_eq!(shard.persons().count(), 0);
        assert_eq!(shard.counts(), Counts::default());
    }
}
