//! What a server tells about its own vertices: for the plain form of the queries, in which the client drives.

use crate::model::ForumId;
use crate::model::{Forum, Message, MessageId, Name, Person, PersonId};
use crate::server::Server;

/// Tells about vertices and the edges that leave them. What is not known is `None`, or empty.
#[wallaby::service(package = "graph")]
pub trait Vertices {
    /// A person.
    async fn person(id: PersonId) -> Option<Person>;
    /// The names of those of these persons who are known.
    async fn names(ids: Vec<PersonId>) -> Vec<Name>;
    /// A message.
    async fn message(id: MessageId) -> Option<Message>;
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

    async fn message(&self, id: MessageId) -> Option<Message> {
        self.read(|shard| shard.message(id).cloned())
    }

    async fn forum(&self, id: ForumId) -> Option<Forum> {
        self.read(|shard| shard.forum(id).cloned())
    }
}
