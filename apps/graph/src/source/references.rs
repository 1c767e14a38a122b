//! Whether a data set is whole: every vertex is there once, every edge has both its ends, and threads end at posts. What a
//! file has lost would otherwise be missing in results, and nobody would know.

use crate::model::{DEEPEST_THREAD, Insert, MessageId, PersonId, Place, Timestamp, Vertex};
use anyhow::{Context, bail, ensure};
use std::collections::{HashMap, HashSet};
use std::fmt::Display;

/// The kinds of vertices of which a data set has files: edges to others are not looked at.
#[derive(Clone, Copy, Debug, Default)]
pub struct Kinds {
    /// Forums.
    pub forums: bool,
    /// Posts and comments, both.
    pub messages: bool,
}

impl Kinds {
    /// All of them.
    pub const ALL: Self = Self {
        forums: true,
        messages: true,
    };
}

/// What was seen so far.
#[derive(Debug, Default)]
pub struct References {
    kinds: Kinds,
    vertices: HashSet<Vertex>,
    /// Since when; the lesser id is first.
    friends: HashMap<(PersonId, PersonId), Timestamp>,
    /// Each message with how many are above it, as far as that is known.
    depths: HashMap<MessageId, u32>,
    /// Comments that came before what they reply to.
    early: HashMap<MessageId, MessageId>,
}

impl References {
    /// Nothing was seen.
    pub fn new(kinds: Kinds) -> Self {
        Self {
            kinds,
            ..Self::default()
        }
    }

    /// Looks at what comes next, which must not be there already. Comments may come before what they reply to, everything
    /// else comes after what it refers to.
    pub fn see(&mut self, insert: &Insert) -> anyhow::Result<()> {
        match insert {
            Insert::Person(person) => self.once("person", person.name.id),
            Insert::Forum(forum) => {
                self.once("forum", forum.id)?;
                self.there("its moderator, person", forum.moderator)
            }
            Insert::Message(message) => {
                self.there("its creator, person", message.creator)?;
                self.once("message", message.id)?;
                self.place(message.id, message.place)
            }
            Insert::Friendship(one, other, since) => {
                ensure!(one != other, "{one} is no friend of {other}, but the same");
                self.there("one of them, person", *one)?;
                self.there("one of them, person", *other)?;
                // Both may name the other, if they agree.
                let pair = (*one.min(other), *one.max(other));
                let known = self.friends.insert(pair, *since).unwrap_or(*since);
                ensure!(
                    known == *since,
                    "{one} and {other} are friends already, since {known}"
                );
                Ok(())
            }
            Insert::Membership(person, forum, _) => {
                self.there("its forum,", *forum)?;
                self.there("the member, person", *person)
            }
            Insert::Like(person, message, _) => {
                self.there("who likes it, person", *person)?;
                self.there("the message,", *message)
            }
        }
    }

    /// Looks at what was put off until all had come: comments lead to posts.
    pub fn end(&mut self) -> anyhow::Result<()> {
        if !self.kinds.messages {
            return Ok(());
        }
        while let Some(&first) = self.early.keys().next() {
            self.settle(first)
                .with_context(|| format!("the thread of comment {first}"))?;
        }
        Ok(())
    }

    /// Looks at an insert into what has ended: also a comment comes after what it replies to.
    pub fn see_later(&mut self, insert: &Insert) -> anyhow::Result<()> {
        self.see(insert)?;
        self.end()
    }

    fn once<V: Copy + Display + Into<Vertex>>(&mut self, kind: &str, id: V) -> anyhow::Result<()> {
        let is_new = self.vertices.insert(id.into());
        ensure!(is_new, "{kind} {id} is there already");
        Ok(())
    }

    fn there<V: Copy + Display + Into<Vertex>>(&self, what: &str, id: V) -> anyhow::Result<()> {
        let vertex = id.into();
        let has_files = match vertex {
            Vertex::Person(_) => true,
            Vertex::Message(_) => self.kinds.messages,
            Vertex::Forum(_) => self.kinds.forums,
        };
        let is_there = !has_files || self.vertices.contains(&vertex);
        ensure!(is_there, "{what} {id}, is missing");
        Ok(())
    }

    fn place(&mut self, id: MessageId, place: Place) -> anyhow::Result<()> {
        match place {
            Place::Forum(forum) => {
                self.there("its forum,", forum)?;
                self.depths.insert(id, 0);
            }
            Place::Reply(to) => match self.depths.get(&to) {
                Some(&above) => drop(self.depths.insert(id, deeper(above)?)),
                None => drop(self.early.insert(id, to)),
            },
        }
        Ok(())
    }

    /// Finds out how deep a comment is that came early, and all those above it.
    fn settle(&mut self, first: MessageId) -> anyhow::Result<()> {
        let (mut way, mut at) = (Vec::new(), first);
        let mut above = loop {
            if let Some(above) = self.depths.get(&at) {
                break *above;
            }
            let Some(to) = self.early.remove(&at) else {
                match way.contains(&at) {
                    true => bail!("goes in a circle, by message {at}"),
                    false => bail!("message {at} is missing"),
                }
            };
            way.push(at);
            at = to;
        };
        for comment in way.into_iter().rev() {
            above = deeper(above)?;
            self.depths.insert(comment, above);
        }
        Ok(())
    }
}

/// The edges of a file that each belong to a vertex: a key that is left over has none.
pub fn none_left<K: Display + Ord, V>(
    left: &HashMap<K, V>,
    kind: &str,
    vertex: &str,
) -> anyhow::Result<()> {
    match left.keys().min() {
        None => Ok(()),
        Some(id) => bail!("{kind} tells of {vertex} {id}, which is missing"),
    }
}

fn deeper(above: u32) -> anyhow::Result<u32> {
    ensure!(
        above < DEEPEST_THREAD,
        "more than {DEEPEST_THREAD} messages are above it"
    );
    Ok(above + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Message;
    use crate::source::generated::generate;

    fn look<'a>(inserts: impl IntoIterator<Item = &'a Insert>) -> anyhow::Result<()> {
        let mut references = References::new(Kinds::ALL);
        for insert in inserts {
            references.see(insert)?;
        }
        references.end()
    }

    /// A comment on another message, by the first person of a network.
    fn comment(like: &Insert, id: i64, to: i64) -> Insert {
        let Insert::Message(mut message) = like.clone() else {
            unreachable!("it is a message");
        };
        message.id = MessageId(id);
        message.place = Place::Reply(MessageId(to));
        Insert::Message(message)
    }

    /// A network, one of its posts, and an id that no message has.
    fn network() -> (Vec<Insert>, Insert, i64) {
        let all: Vec<Insert> = generate(20, 7).collect();
        let is_post = |insert: &&Insert| match insert {
            Insert::Message(message) => matches!(message.place, Place::Forum(_)),
            _ => false,
        };
        let post = all.iter().find(is_post).cloned().unwrap();
        let ids = all.iter().filter_map(|insert| match insert {
            Insert::Message(message) => Some(message.id.0),
            _ => None,
        });
        let free = ids.max().unwrap() + 1;
        (all, post, free)
    }

    #[test]
    fn what_is_whole_is_taken_in_any_order_of_comments() {
        let (all, post, free) = network();
        look(&all).unwrap();
        let Insert::Message(Message { id, .. }) = &post else {
            unreachable!("it is a message");
        };
        let up = [(free + 2, free + 1), (free + 1, free), (free, id.0)];
        let comments = up.map(|(id, to)| comment(&post, id, to));
        look(all.iter().chain(&comments)).unwrap();
    }

    #[test]
    fn whatever_is_lost_or_twice_is_told() {
        let (all, ..) = network();
        let mut lost = 0;
        for (at, insert) in all.iter().enumerate() {
            let is_vertex = match insert {
                Insert::Person(_) | Insert::Forum(_) | Insert::Message(_) => true,
                Insert::Friendship(..) | Insert::Membership(..) | Insert::Like(..) => false,
            };
            let without = all[..at].iter().chain(&all[at + 1..]);
            lost += usize::from(look(without).is_err());
            let twice = all[..=at].iter().chain(&all[at..]);
            assert_eq!(look(twice).is_err(), is_vertex, "{insert:?}");
        }
        // Vertices to which no edge leads can be missing: nobody knows of them.
        assert!(lost > 20, "{lost} of {}", all.len());
    }

    #[test]
    fn friends_agree_since_when_they_are() {
        let (all, ..) = network();
        let again = |late| {
            let friends = all.iter().find_map(|insert| match insert {
                Insert::Friendship(one, other, since) => Some((*one, *other, *since)),
                _ => None,
            });
            let (one, other, Timestamp(since)) = friends.unwrap();
            let again = Insert::Friendship(other, one, Timestamp(since + late));
            look(all.iter().chain([&again]))
        };
        again(0).unwrap();
        again(1).unwrap_err();
    }

    #[test]
    fn threads_end_at_posts() {
        let (all, post, free) = network();
        for (up, reason) in [
            (vec![(free, free)], "goes in a circle"),
            (vec![(free, free + 1), (free + 1, free)], "goes in a circle"),
            (vec![(free, free + 1)], "is missing"),
        ] {
            let comments: Vec<Insert> = up
                .into_iter()
                .map(|(id, to)| comment(&post, id, to))
                .collect();
            let error = look(all.iter().chain(&comments)).unwrap_err();
            assert!(format!("{error:#}").contains(reason), "{error:#}");
        }
        let Insert::Message(Message { id: top, .. }) = &post else {
            unreachable!("it is a message");
        };
        let deepest = i64::from(DEEPEST_THREAD);
        let below = |number: i64| match number {
            0 => comment(&post, free, top.0),
            _ => comment(&post, free + number, free + number - 1),
        };
        let deep: Vec<Insert> = (0..deepest).map(below).collect();
        look(all.iter().chain(&deep)).unwrap();
        look(all.iter().chain(deep.iter().rev())).unwrap();
        let too_deep = [below(deepest)];
        assert!(look(all.iter().chain(&deep).chain(&too_deep)).is_err());
        assert!(look(all.iter().chain(&too_deep).chain(deep.iter().rev())).is_err());
    }

    #[test]
    fn edges_to_kinds_without_files_are_not_looked_at() {
        let (all, ..) = network();
        let is_there = |insert: &&Insert| !matches!(insert, Insert::Forum(_) | Insert::Message(_));
        let mut references = References::new(Kinds {
            forums: false,
            messages: false,
        });
        for insert in all.iter().filter(is_there) {
            references.see(insert).unwrap();
        }
        references.end().unwrap();
        let left = HashMap::from([(7, ())]);
        let error = none_left(&left, "forum_hasModerator_person", "forum").unwrap_err();
        let reason = "forum_hasModerator_person tells of forum 7, which is missing";
        assert_eq!(error.to_string(), reason);
    }
}
