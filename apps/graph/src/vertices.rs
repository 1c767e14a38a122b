//! What a server tells about its own vertices: for the plain form of the queries, in which the client drives.

use crate::model::ForumId;
use crate::model::{Forum, Message, MessageId, Name, Person, PersonId, Timestamp};
use crate::server::Server;
use serde::{Deserialize, Serialize};

/// A person and the latest messages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Writer {
    /// Who.
    pub name: Name,
    /// What, latest first.
    pub messages: Vec<MessageId>,
}

/// Who wrote a message, and what replies to it there are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Thread {
    /// Who wrote the message.
    pub creator: PersonId,
    /// The direct replies.
    pub replies: Vec<MessageId>,
}

/// Tells about vertices and the edges that leave them. What is not known is `None`, or empty.
#[wallaby::service(package = "graph")]
pub trait Vertices {
    /// A person.
    async fn person(id: PersonId) -> Option<Person>;
    /// The names of those of these persons who are known.
    async fn names(ids: Vec<PersonId>) -> Vec<Name>;
    /// A person's friends, each with the beginning of the friendship.
    async fn friends(of: PersonId) -> Vec<(PersonId, Timestamp)>;
    /// A person's latest messages.
    async fn latest_messages(by: PersonId, most: u32) -> Option<Writer>;
    /// A message.
    async fn message(id: MessageId) -> Option<Message>;
    /// A message's replies.
    async fn replies(to: MessageId) -> Option<Thread>;
    /// A forum.
    async fn forum(id: ForumId) -> Option<Forum>;
}

#[wallaby::serve]
impl Vertices for Server {
    async fn person(&self, id: PersonId) -> Option<Person> {
        self.read(|shard| shard.person(id).cloned())
    }

    async fn names(&self, ids: Vec<PersonId>) -> Vec<Name> {
        self.read(|shard| {
            ids.iter()
                .filter_map(|id| shard.name(*id).cloned())
                .collect()
        })
    }

    async fn friends(&self, of: PersonId) -> Vec<(PersonId, Timestamp)> {
        self.read(|shard| shard.friends(of).collect())
    }

    async fn latest_messages(&self, by: PersonId, most: u32) -> Option<Writer> {
        self.read(|shard| {
            Some(Writer {
                name: shard.name(by)?.clone(),
                messages: shard.latest_messages(by).take(most as usize).collect(),
            })
        })
    }

    async fn message(&self, id: MessageId) -> Option<Message> {
        self.read(|shard| shard.message(id).cloned())
    }

    async fn replies(&self, to: MessageId) -> Option<Thread> {
        self.read(|shard| {
            Some(Thread {
                creator: shard.message(to)?.creator,
                replies: shard.replies(to).collect(),
            })
        })
    }

    async fn forum(&self, id: ForumId) -> Option<Forum> {
        self.read(|shard| shard.forum(id).cloned())
    }
}
