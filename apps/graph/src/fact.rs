//! What a vertex learns by an insert.
//!
//! A vertex and the edges that leave it are kept together, by one server. So an insert is cut into facts, one for each
//! vertex that it concerns, and a fact is what a server takes or leaves as a whole.

use crate::model::{
    Forum, ForumId, Insert, Message, MessageId, Person, PersonId, Place, Timestamp,
};
use serde::{Deserialize, Serialize};

/// What one vertex learns by one insert.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Fact {
    /// A person is there.
    Person(Person),
    /// A forum is there.
    Forum(Forum),
    /// A message is there.
    Message(Message),
    /// A person has a friend. The friend has the same fact the other way round.
    Friend {
        /// Who learns it.
        of: PersonId,
        /// The other one.
        friend: PersonId,
        /// Since when they are friends.
        since: Timestamp,
    },
    /// A person wrote a message.
    Wrote {
        /// Who learns it.
        by: PersonId,
        /// What was written.
        message: MessageId,
        /// When.
        created: Timestamp,
    },
    /// A message has a reply.
    Reply {
        /// What learns it.
        to: MessageId,
        /// The reply.
        comment: MessageId,
    },
    /// A message is liked.
    Like {
        /// What learns it.
        message: MessageId,
        /// By whom.
        person: PersonId,
        /// Since when.
        since: Timestamp,
    },
    /// A forum has a member.
    Member {
        /// What learns it.
        forum: ForumId,
        /// Who.
        person: PersonId,
        /// Since when.
        since: Timestamp,
    },
}

/// A vertex, of any kind: what a server is found by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Vertex {
    /// A person.
    Person(PersonId),
    /// A post or a comment.
    Message(MessageId),
    /// A forum.
    Forum(ForumId),
}

impl Fact {
    /// Who learns it.
    pub fn vertex(&self) -> Vertex {
        match self {
            Self::Person(person) => person.name.id.into(),
            Self::Forum(forum) => forum.id.into(),
            Self::Message(message) => message.id.into(),
            Self::Friend { of, .. } => (*of).into(),
            Self::Wrote { by, .. } => (*by).into(),
            Self::Reply { to, .. } => (*to).into(),
            Self::Like { message, .. } => (*message).into(),
            Self::Member { forum, .. } => (*forum).into(),
        }
    }
}

impl Insert {
    /// What it tells each vertex. A new vertex comes first: so nobody who follows an edge finds nothing at its end.
    pub fn facts(self) -> Vec<Fact> {
        match self {
            Self::Person(person) => vec![Fact::Person(person)],
            Self::Forum(forum) => vec![Fact::Forum(forum)],
            Self::Like {
                person,
                message,
                since,
            } => vec![Fact::Like {
                message,
                person,
                since,
            }],
            Self::Membership {
                person,
                forum,
                since,
            } => vec![Fact::Member {
                forum,
                person,
                since,
            }],
            Self::Message(message) => {
                let wrote = Fact::Wrote {
                    by: message.creator,
                    message: message.id,
                    created: message.created,
                };
                let reply = match message.place {
                    Place::Reply(to) => Some(Fact::Reply {
                        to,
                        comment: message.id,
                    }),
                    Place::Forum { .. } => None,
                };
                let mut facts = vec![Fact::Message(message)];
                facts.extend(reply);
                facts.push(wrote);
                facts
            }
            Self::Friendship { one, other, since } => [(one, other), (other, one)]
                .map(|(of, friend)| Fact::Friend { of, friend, since })
                .into(),
        }
    }
}

impl From<PersonId> for Vertex {
    fn from(id: PersonId) -> Self {
        Self::Person(id)
    }
}

impl From<MessageId> for Vertex {
    fn from(id: MessageId) -> Self {
        Self::Message(id)
    }
}

impl From<ForumId> for Vertex {
    fn from(id: ForumId) -> Self {
        Self::Forum(id)
    }
}
