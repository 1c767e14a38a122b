//! The social network: its vertices with their attributes, and the eight inserts that make it grow.
//!
//! As in LDBC's specification, as far as the short reads and the inserts need it. Places, tags and organisations are
//! known by their ids.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::num::ParseIntError;
use std::str::FromStr;

macro_rules! ids {
    ($($(#[$doc:meta])+ $name:ident,)+) => {$(
        $(#[$doc])+
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub struct $name(pub i64);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl FromStr for $name {
            type Err = ParseIntError;

            fn from_str(text: &str) -> Result<Self, ParseIntError> {
                text.parse().map(Self)
            }
        }
    )+};
}

ids! {
    /// Names a person.
    PersonId,
    /// Names a message. Posts and comments share one space of ids.
    MessageId,
    /// Names a forum.
    ForumId,
    /// A moment in milliseconds since 1970, UTC; 0 where a data set does not say. LDBC's newer data sets write digits
    /// instead, 20101231235959999: then it is these, since all that is asked of moments is their order.
    Timestamp,
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
    /// Languages spoken, `en`.
    pub languages: Vec<String>,
    /// Addresses for e-mail.
    pub emails: Vec<String>,
    /// Tags the person is interested in.
    pub interests: Vec<i64>,
    /// Universities, each with the year of graduation.
    pub universities: Vec<(i64, i32)>,
    /// Employers, each with the year in which the work began.
    pub companies: Vec<(i64, i32)>,
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
    /// Its tags.
    pub tags: Vec<i64>,
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
    /// From where.
    pub location_ip: String,
    /// With which browser.
    pub browser: String,
    /// The text; empty where a post is an image.
    pub content: String,
    /// The length of the text, as the data set counts it.
    pub length: u32,
    /// The country it was written in; 0 where a data set does not say.
    pub country: i64,
    /// Its tags.
    pub tags: Vec<i64>,
    /// Where it stands.
    pub place: Place,
}

/// Where a message stands: at the top of a forum, or below another message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Place {
    /// It is a post.
    Forum {
        /// The forum that contains it.
        forum: ForumId,
        /// The name of its image; empty if it is a text.
        image: String,
        /// The language of its text; empty if it is an image.
        language: String,
    },
    /// It is a comment on this post or comment.
    Reply(MessageId),
}

impl Message {
    /// What queries show of it: its text, or the name of its image.
    pub fn shown(&self) -> &str {
        match &self.place {
            Place::Forum { image, .. } if self.content.is_empty() => image,
            _ => &self.content,
        }
    }
}

/// More comments one below the other than any thread has: who follows them further goes in a circle. A call may have 4,096
/// hops.
pub const DEEPEST_THREAD: u32 = 4000;

/// What makes the network grow, each as one whole.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Insert {
    /// A person joins (IU1).
    Person(Person),
    /// A person likes a post (IU2) or a comment (IU3).
    Like {
        /// Who.
        person: PersonId,
        /// What.
        message: MessageId,
        /// When.
        since: Timestamp,
    },
    /// A forum is made (IU4).
    Forum(Forum),
    /// A person joins a forum (IU5).
    Membership {
        /// Who.
        person: PersonId,
        /// Which.
        forum: ForumId,
        /// When.
        since: Timestamp,
    },
    /// A post (IU6) or a comment (IU7) is written.
    Message(Message),
    /// Two persons become friends (IU8): neither is first.
    Friendship {
        /// One.
        one: PersonId,
        /// The other.
        other: PersonId,
        /// When.
        since: Timestamp,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_shows_its_text_or_its_image() {
        let shown = |content: &str, place| {
            let message = Message {
                id: MessageId(1),
                creator: PersonId(2),
                created: Timestamp(3),
                location_ip: String::new(),
                browser: String::new(),
                content: content.into(),
                length: 0,
                country: 0,
                tags: Vec::new(),
                place,
            };
            message.shown().to_owned()
        };
        let post = |image: &str| Place::Forum {
            forum: ForumId(1),
            image: image.into(),
            language: String::new(),
        };
        assert_eq!(shown("", post("a.jpg")), "a.jpg");
        assert_eq!(shown("text", post("")), "text");
        assert_eq!(shown("", Place::Reply(MessageId(7))), "");
    }
}
