//! What a server tells about its own vertices: for the plain form of the queries, in which the client drives.

use crate::model::{Forum, ForumId, Message, MessageId, Name, PersonId};
use crate::server::Server;

/// Tells about vertices: nothing of what is not known.
#[wallaby::service(package = "graph")]
pub trait Vertices {
    /// A person's name.
    async fn name(id: PersonId) -> Option<Name>;
    /// A message.
    async fn message(id: MessageId) -> Option<Message>;
    /// A forum.
    async fn forum(id: ForumId) -> Option<Forum>;
}

#[wallaby::serve]
impl Vertices for Server {
    async fn name(&self, id: PersonId) -> Option<Name> {
        self.read(|shard| shard.name(id).cloned())
    }

    async fn message(&self, id: MessageId) -> Option<Message> {
        self.read(|shard| shard.message(id).cloned())
    }

    async fn forum(&self, id: ForumId) -> Option<Forum> {
        self.read(|shard| shard.forum(id).cloned())
    }
}
