//! One server's part of the graph, in memory: its vertices, each with the edges that leave it.
//!
//! Facts may come in any order, an edge before its vertex too, and more than once: the same facts always make the same
//! graph. The edges of a vertex are seen when it is there itself.

use crate::fact::Fact;
use crate::model::{Forum, ForumId, Message, MessageId, Name, Person, PersonId, Timestamp};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::ops::AddAssign;

/// Part of the graph.
#[derive(Debug, Default)]
pub struct Shard {
    persons: HashMap<PersonId, PersonVertex>,
    messages: HashMap<MessageId, MessageVertex>,
    forums: HashMap<ForumId, ForumVertex>,
    counts: Counts,
}

#[derive(Debug, Default)]
struct PersonVertex {
    person: Option<Person>,
    friends: BTreeMap<PersonId, Timestamp>,
    /// In the order in which they were written.
    messages: BTreeSet<(Timestamp, MessageId)>,
}

#[derive(Debug, Default)]
struct MessageVertex {
    message: Option<Message>,
    replies: BTreeSet<MessageId>,
    likes: BTreeMap<PersonId, Timestamp>,
}

#[derive(Debug, Default)]
struct ForumVertex {
    forum: Option<Forum>,
    members: BTreeMap<PersonId, Timestamp>,
}

/// How much there is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Persons.
    pub persons: u64,
    /// Posts and comments.
    pub messages: u64,
    /// Forums.
    pub forums: u64,
    /// Ends of friendships: two for each.
    pub friends: u64,
    /// Likes.
    pub likes: u64,
    /// Memberships.
    pub members: u64,
}

/// A fact that is already known otherwise: two persons with one id, say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict(Fact);

impl Shard {
    /// Whether a fact is new.
    ///
    /// # Errors
    ///
    /// If it contradicts what is known.
    pub fn is_new(&self, fact: &Fact) -> Result<bool, Conflict> {
        let equal = match fact {
            Fact::Person(person) => self.person(person.name.id).map(|known| known == person),
            Fact::Forum(forum) => self.forum(forum.id).map(|known| known == forum),
            Fact::Message(message) => self.message(message.id).map(|known| known == message),
            Fact::Friend { of, friend, since } => self
                .persons
                .get(of)
                .and_then(|person| person.friends.get(friend))
                .map(|known| known == since),
            Fact::Wrote {
                by,
                message,
                created,
            } => {
                let person = self.persons.get(by);
                let known = person.map(|person| person.messages.contains(&(*created, *message)));
                known.filter(|known| *known)
            }
            Fact::Reply { to, comment } => {
                let known = self.messages.get(to).map(|to| to.replies.contains(comment));
                known.filter(|known| *known)
            }
            Fact::Like {
                message,
                person,
                since,
            } => self
                .messages
                .get(message)
                .and_then(|message| message.likes.get(person))
                .map(|known| known == since),
            Fact::Member {
                forum,
                person,
                since,
            } => self
                .forums
                .get(forum)
                .and_then(|forum| forum.members.get(person))
                .map(|known| known == since),
        };
        match equal {
            None => Ok(true),
            Some(true) => Ok(false),
            Some(false) => Err(Conflict(fact.clone())),
        }
    }

    /// Learns a fact that [`is_new`](Self::is_new).
    pub fn learn(&mut self, fact: Fact) {
        let counts = &mut self.counts;
        match fact {
            Fact::Person(person) => {
                counts.persons += 1;
                let vertex = self.persons.entry(person.name.id).or_default();
                vertex.person = Some(person);
            }
            Fact::Forum(forum) => {
                counts.forums += 1;
                let vertex = self.forums.entry(forum.id).or_default();
                vertex.forum = Some(forum);
            }
            Fact::Message(message) => {
                counts.messages += 1;
                let vertex = self.messages.entry(message.id).or_default();
                vertex.message = Some(message);
            }
            Fact::Friend { of, friend, since } => {
                counts.friends += 1;
                let person = self.persons.entry(of).or_default();
                person.friends.insert(friend, since);
            }
            Fact::Wrote {
                by,
                message,
                created,
            } => {
                let person = self.persons.entry(by).or_default();
                person.messages.insert((created, message));
            }
            Fact::Reply { to, comment } => {
                self.messages.entry(to).or_default().replies.insert(comment);
            }
            Fact::Like {
                message,
                person,
                since,
            } => {
                counts.likes += 1;
                let message = self.messages.entry(message).or_default();
                message.likes.insert(person, since);
            }
            Fact::Member {
                forum,
                person,
                since,
            } => {
                counts.members += 1;
                let forum = self.forums.entry(forum).or_default();
                forum.members.insert(person, since);
            }
        }
    }

    /// A person, if known.
    pub fn person(&self, id: PersonId) -> Option<&Person> {
        self.persons.get(&id)?.person.as_ref()
    }

    /// A person's name.
    pub fn name(&self, id: PersonId) -> Option<&Name> {
        self.person(id).map(|person| &person.name)
    }

    /// A person's friends, each with the beginning of the friendship.
    pub fn friends(&self, of: PersonId) -> impl Iterator<Item = (PersonId, Timestamp)> + '_ {
        let person = self.known_person(of).into_iter();
        person.flat_map(|person| person.friends.iter().map(|(id, since)| (*id, *since)))
    }

    /// The messages that a person wrote, latest first, of equal age the one with the greatest id.
    pub fn latest_messages(&self, by: PersonId) -> impl Iterator<Item = MessageId> + '_ {
        let person = self.known_person(by).into_iter();
        person.flat_map(|person| person.messages.iter().rev().map(|(_, id)| *id))
    }

    /// A person of whom more is known than edges.
    fn known_person(&self, id: PersonId) -> Option<&PersonVertex> {
        let vertex = self.persons.get(&id);
        vertex.filter(|vertex| vertex.person.is_some())
    }

    /// A message, if known.
    pub fn message(&self, id: MessageId) -> Option<&Message> {
        self.messages.get(&id)?.message.as_ref()
    }

    /// The direct replies to a message.
    pub fn replies(&self, to: MessageId) -> impl Iterator<Item = MessageId> + '_ {
        let message = self.messages.get(&to);
        let message = message.filter(|vertex| vertex.message.is_some());
        message
            .into_iter()
            .flat_map(|message| message.replies.iter().copied())
    }

    /// A forum, if known.
    pub fn forum(&self, id: ForumId) -> Option<&Forum> {
        self.forums.get(&id)?.forum.as_ref()
    }

    /// How much there is.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// The ids of some persons, which ones does not matter.
    pub fn some_persons(&self, most: usize) -> Vec<PersonId> {
        let known = self
            .persons
            .values()
            .filter_map(|vertex| vertex.person.as_ref());
        known.map(|person| person.name.id).take(most).collect()
    }

    /// The ids of some messages, which ones does not matter.
    pub fn some_messages(&self, most: usize) -> Vec<MessageId> {
        let known = self
            .messages
            .values()
            .filter_map(|vertex| vertex.message.as_ref());
        known.map(|message| message.id).take(most).collect()
    }
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.persons = self.persons.saturating_add(other.persons);
        self.messages = self.messages.saturating_add(other.messages);
        self.forums = self.forums.saturating_add(other.forums);
        self.friends = self.friends.saturating_add(other.friends);
        self.likes = self.likes.saturating_add(other.likes);
        self.members = self.members.saturating_add(other.members);
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} persons, {} friendships, {} forums, {} members, {} messages, {} likes",
            self.persons,
            self.friends / 2,
            self.forums,
            self.members,
            self.messages,
            self.likes
        )
    }
}

impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "already known otherwise: {:?}", self.0)
    }
}

impl std::error::Error for Conflict {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Insert;
    use crate::source::generated::generate;

    fn wrote(created: i64, message: i64) -> Fact {
        Fact::Wrote {
            by: PersonId(1),
            message: MessageId(message),
            created: Timestamp(created),
        }
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
        let friend = |since| Fact::Friend {
            of: PersonId(1),
            friend: PersonId(2),
            since: Timestamp(since),
        };
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
        assert_eq!(shard.some_persons(9), []);
        assert_eq!(shard.counts().persons, 0);
    }
}
