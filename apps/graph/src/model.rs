//! The social network: its vertices with their attributes, and the eight inserts that make it grow.
//!
//! As in LDBC's specification, as far as the short reads need it.

use serde::{Deserialize, Serialize};
use std::fmt;

macro_rules! ids {
    ($($(#[$doc:meta])+ $name:ident $(as $vertex:ident)?,)+) => {$(
        $(#[$doc])+
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub struct $name(pub i64);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        $(impl From<$name> for Vertex {
            fn from(id: $name) -> Self {
                Self::$vertex(id)
            }
        })?
    )+};
}

ids! {
    /// Names a person.
    PersonId as Person,
    /// Names a message. Posts and comments share one space of ids.
    MessageId as Message,
    /// Names a forum.
    ForumId as Forum,
    /// A moment in milliseconds since 1970, UTC; 0 where a data set does not say. LDBC's newer data sets write digits
    /// instead, 20101231235959999: then it is these, since all that is asked of moments is their order.
    Timestamp,
}

/// A vertex, of any kind: what a server is found by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Vertex {
    /// A person.
    Person(PersonId),
    /// A post or a comment.
    Message(MessageId),
    /// A forum.
    Forum(ForumId),
}

/// Who somebody is, as most queries want to know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Name {
    /// The person.
    pub id: PersonId,
    /// First name.
    pub first: String,
    /// Last name.
    pub last: String,
}

/// A person.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Person {
    /// Id and names.
    pub name: Name,
    /// `male` or `female`.
    pub gender: String,
    /// Midnight at the beginning of that day.
    pub birthday: Timestamp,
    /// When the person joined the network.
    pub joined: Timestamp,
    /// From where.
    pub location_ip: String,
    /// With which browser.
    pub browser: String,
    /// The city the person lives in.
    pub city: i64,
}

/// A place for posts: a person's wall, an album, or a group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Forum {
    /// Its id.
    pub id: ForumId,
    /// Its title.
    pub title: String,
    /// When it was made.
    pub created: Timestamp,
    /// Who moderates it.
    pub moderator: PersonId,
}

/// A post or a comment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// Its id.
    pub id: MessageId,
    /// Who wrote it.
    pub creator: PersonId,
    /// When.
    pub created: Timestamp,
    /// What queries show of it: the text, or the name of the image that a post has in its place.
    pub content: String,
    /// Where it stands.
    pub place: Place,
}

/// Where a message stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Place {
    /// It is a post in this forum.
    Forum(ForumId),
    /// It is a comment on this post or comment.
    Reply(MessageId),
}

/// More comments one below the other than any thread has: who follows them further goes in a circle. A call may have 4,096
/// hops.
pub const DEEPEST_THREAD: u32 = 4000;

/// What makes the network grow, each as one whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Insert {
    /// A person joins (IU1).
    Person(Person),
    /// A person likes a post (IU2) or a comment (IU3).
    Like(PersonId, MessageId, Timestamp),
    /// A forum is made (IU4).
    Forum(Forum),
    /// A person joins a forum (IU5).
    Membership(PersonId, ForumId, Timestamp),
    /// A post (IU6) or a comment (IU7) is written.
    Message(Message),
    /// Two persons become friends (IU8): neither is first.
    Friendship(PersonId, PersonId, Timestamp),
}
