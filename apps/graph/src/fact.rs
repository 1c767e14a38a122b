//! What a vertex learns by an insert.
//!
//! A vertex and the edges that leave it are kept together, by one server. So an insert is cut into facts, one for each
//! vertex that it concerns, and a fact is what a server takes or leaves as a whole.

use crate::model::{Forum, Insert, Message, Person, Place, Timestamp, Vertex};
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
    /// An edge leaves a vertex.
    Edge(Edge),
}

/// An edge. Which kind it is is told by its ends: a person's friend, a message that a person wrote, a reply to a message,
/// a person who likes a message, a member of a forum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Edge {
    /// What learns it.
    pub from: Vertex,
    /// Where it leads.
    pub to: Vertex,
    /// Since when it is there.
    pub since: Timestamp,
}

impl Fact {
    /// An edge.
    pub fn edge(from: impl Into<Vertex>, to: impl Into<Vertex>, since: Timestamp) -> Self {
        Self::Edge(Edge {
            from: from.into(),
            to: to.into(),
            since,
        })
    }

    /// Who learns it.
    pub fn vertex(&self) -> Vertex {
        match self {
            Self::Person(person) => person.name.id.into(),
            Self::Forum(forum) => forum.id.into(),
            Self::Message(message) => message.id.into(),
            Self::Edge(edge) => edge.from,
        }
    }
}

impl Insert {
    /// What it tells each vertex. A new vertex comes first: so nobody who follows an edge finds nothing at its end.
    pub fn facts(self) -> Vec<Fact> {
        match self {
            Self::Person(person) => vec![Fact::Person(person)],
            Self::Forum(forum) => vec![Fact::Forum(forum)],
            Self::Like(person, message, since) => vec![Fact::edge(message, person, since)],
            Self::Membership(person, forum, since) => vec![Fact::edge(forum, person, since)],
            Self::Friendship(one, other, since) => {
                vec![Fact::edge(one, other, since), Fact::edge(other, one, since)]
            }
            Self::Message(message) => {
                let (id, creator, created) = (message.id, message.creator, message.created);
                let place = message.place;
                let mut facts = vec![Fact::Message(message)];
                if let Place::Reply(to) = place {
                    facts.push(Fact::edge(to, id, created));
                }
                facts.push(Fact::edge(creator, id, created));
                facts
            }
        }
    }
}
