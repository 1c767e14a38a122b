//! LDBC Datagen's snapshots: a file for each kind of vertex and edge.
//!
//! Of the form "CsvComposite" (`person_0_0.csv`), with moments in milliseconds, everything is read. Of "CsvBasic" in files
//! named after edges (`Person.csv`), as graph databases import it, only the structure: moments are digits there, and what
//! the files of messages would tell, their texts and moments, is empty.

use super::csv;
use super::references::{Kinds, none_left};
use crate::model::{
    Forum, ForumId, Insert, Message, MessageId, Name, Person, PersonId, Place, Timestamp,
};
use ::csv::StringRecord;
use anyhow::{Context, ensure};
use serde::de::{DeserializeOwned, IgnoredAny as Skip};
use std::collections::HashMap;
use std::fmt::Display;
use std::hash::Hash;
use std::path::{Path, PathBuf};

/// The files of a snapshot.
#[derive(Clone, Debug)]
pub struct Snapshot {
    is_composite: bool,
    /// By kind, in small letters. Each kind may have several.
    files: Vec<(String, PathBuf)>,
}

/// What is done with each insert.
pub type Each<'a> = &'a mut dyn FnMut(Insert) -> anyhow::Result<()>;

impl Snapshot {
    /// The snapshot in a folder, if there is one.
    pub fn find(folder: &Path) -> anyhow::Result<Option<Self>> {
        for folder in [&folder.join("dynamic"), folder] {
            if folder.is_dir() {
                let files = csv::files(folder)?;
                let is_composite = files.iter().any(|(name, _)| name.starts_with("person_"));
                let kinds = files.into_iter();
                let kinds = kinds.filter_map(|(name, path)| Some((kind(&name)?, path)));
                let files = kinds.collect();
                let found = Self {
                    is_composite,
                    files,
                };
                if found.has("person") {
                    return Ok(Some(found));
                }
            }
        }
        Ok(None)
    }

    /// The kinds of vertices and edges that queries need and of which there is no file.
    pub fn missing(&self) -> Vec<&'static str> {
        let needed: &[&str] = match self.is_composite {
            true => &["person", "person_knows_person", "forum", "post", "comment"],
            false => &[
                "Person",
                "Person_knows_Person",
                "Forum",
                "Forum_containerOf_Post",
                "Post_hasCreator_Person",
                "Comment_hasCreator_Person",
                "Comment_replyOf_Post",
                "Comment_replyOf_Comment",
            ],
        };
        let missing = needed.iter().filter(|kind| !self.has(kind));
        missing.copied().collect()
    }

    /// The kinds of vertices that there are files of.
    pub fn kinds(&self) -> Kinds {
        Kinds {
            forums: self.has("forum"),
            messages: self.has(self.vertices("post")) && self.has(self.vertices("comment")),
        }
    }

    /// Hands out what is in the files.
    pub fn read(&self, each: Each<'_>) -> anyhow::Result<()> {
        self.read_persons(each)?;
        self.read_forums(each)?;
        self.read_posts(each)?;
        self.read_comments(each)?;
        self.read_edges(each)
    }

    fn read_persons(&self, each: Each<'_>) -> anyhow::Result<()> {
        let cities: HashMap<PersonId, i64> =
            self.column(&["person_isLocatedIn_place"], straight)?;
        self.rows("person", |record| {
            let (name, gender, birthday, joined, location_ip, browser): (Name, _, _, _, _, _) =
                record.deserialize(None)?;
            each(Insert::Person(Person {
                city: cities.get(&name.id).copied().unwrap_or_default(),
                name,
                gender,
                birthday,
                joined,
                location_ip,
                browser,
            }))
        })
    }

    fn read_forums(&self, each: Each<'_>) -> anyhow::Result<()> {
        const MODERATORS: &str = "forum_hasModerator_person";
        let mut moderators: HashMap<ForumId, PersonId> = self.column(&[MODERATORS], straight)?;
        self.rows("forum", |record| {
            let (id, title, created) = record.deserialize(None)?;
            each(Insert::Forum(Forum {
                id,
                title,
                created,
                moderator: taken(&mut moderators, id, "moderator")?,
            }))
        })?;
        self.all_taken(&moderators, MODERATORS, "forum")
    }

    fn read_posts(&self, each: Each<'_>) -> anyhow::Result<()> {
        const FORUMS: &str = "forum_containerOf_post";
        let mut forums = self.column(&[FORUMS], |(forum, post)| (post, Place::Forum(forum)))?;
        self.read_messages("post", &mut forums, each, |record| {
            let (id, image, created, Skip, Skip, Skip, text) = record.deserialize(None)?;
            Ok((id, created, super::shown(image, text)))
        })?;
        self.all_taken(&forums, FORUMS, "post")
    }

    fn read_comments(&self, each: Each<'_>) -> anyhow::Result<()> {
        const REPLIES: [&str; 2] = ["comment_replyOf_post", "comment_replyOf_comment"];
        let mut replies = self.column(&REPLIES, |(comment, to)| (comment, Place::Reply(to)))?;
        self.read_messages("comment", &mut replies, each, |record| {
            let (id, created, Skip, Skip, text) = record.deserialize(None)?;
            Ok((id, created, text))
        })?;
        self.all_taken(&replies, &REPLIES.join(" or "), "comment")
    }

    /// Messages of a kind: their own files have the texts, if they are read.
    fn read_messages(
        &self,
        kind: &'static str,
        places: &mut HashMap<MessageId, Place>,
        each: Each<'_>,
        text: impl Fn(&StringRecord) -> anyhow::Result<(MessageId, Timestamp, String)>,
    ) -> anyhow::Result<()> {
        let edges = format!("{kind}_hasCreator_person");
        let mut creators: HashMap<MessageId, PersonId> = match self.is_composite {
            true => self.column(&[&edges], straight)?,
            false => HashMap::new(),
        };
        self.rows(self.vertices(kind), |record| {
            let (id, created, content, creator) = match self.is_composite {
                true => {
                    let (id, created, content) = text(record)?;
                    (id, created, content, taken(&mut creators, id, "creator")?)
                }
                false => {
                    let (id, creator) = record.deserialize(None)?;
                    (id, Timestamp(0), String::new(), creator)
                }
            };
            each(Insert::Message(Message {
                id,
                creator,
                created,
                content,
                place: taken(places, id, "place")?,
            }))
        })?;
        self.all_taken(&creators, &edges, kind)
    }

    fn read_edges(&self, each: Each<'_>) -> anyhow::Result<()> {
        self.rows("person_knows_person", |record| {
            let (one, other, since) = record.deserialize(None)?;
            each(Insert::Friendship(one, other, since))
        })?;
        self.rows("forum_hasMember_person", |record| {
            let (forum, person, since) = record.deserialize(None)?;
            each(Insert::Membership(person, forum, since))
        })?;
        for kind in ["person_likes_post", "person_likes_comment"] {
            self.rows(kind, |record| {
                let (person, message, since) = record.deserialize(None)?;
                each(Insert::Like(person, message, since))
            })?;
        }
        Ok(())
    }

    /// The kind of the files that name all vertices of a kind.
    fn vertices(&self, kind: &'static str) -> &'static str {
        match kind {
            "post" if !self.is_composite => "post_hasCreator_person",
            "comment" if !self.is_composite => "comment_hasCreator_person",
            _ => kind,
        }
    }

    fn has(&self, kind: &str) -> bool {
        self.files_of(kind).next().is_some()
    }

    fn files_of(&self, kind: &str) -> impl Iterator<Item = &Path> {
        let files = self.files.iter();
        let files = files.filter(move |(of, _)| of.eq_ignore_ascii_case(kind));
        files.map(|(_, path)| &**path)
    }

    /// The records of all files of a kind.
    fn rows(
        &self,
        kind: &str,
        mut each: impl FnMut(&StringRecord) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        self.files_of(kind)
            .try_for_each(|path| csv::read(path, |record, _| each(record)))
    }

    /// The edges of some kinds, by the vertex that has only one of them.
    fn column<A, B, K, V>(
        &self,
        kinds: &[&str],
        turn: impl Fn((A, B)) -> (K, V),
    ) -> anyhow::Result<HashMap<K, V>>
    where
        (A, B): DeserializeOwned,
        K: Copy + Display + Eq + Hash,
    {
        let mut column = HashMap::new();
        for kind in kinds {
            self.rows(kind, |record| {
                let (key, value) = turn(record.deserialize(None)?);
                let before = column.insert(key, value);
                ensure!(before.is_none(), "{key} is there already");
                Ok(())
            })?;
        }
        Ok(column)
    }

    /// What is left of edges has no vertex, if there are files of the vertices.
    fn all_taken<K: Display + Ord, V>(
        &self,
        left: &HashMap<K, V>,
        edges: &str,
        vertex: &'static str,
    ) -> anyhow::Result<()> {
        match self.has(self.vertices(vertex)) {
            true => none_left(left, edges, vertex),
            false => Ok(()),
        }
    }
}

/// What kind a file is of, by its name: `person` of `person_0_0.csv`, `Person.csv` and `Person_1.csv`.
fn kind(name: &str) -> Option<String> {
    let is_number = |c: char| c == '_' || c.is_ascii_digit();
    let kind = name.strip_suffix(".csv")?.trim_end_matches(is_number);
    Some(kind.to_lowercase())
}

fn straight<K, V>(edge: (K, V)) -> (K, V) {
    edge
}

/// What an edge's file says of a vertex: once, so that what is left of the file belongs to none.
fn taken<K: Eq + Hash, V>(map: &mut HashMap<K, V>, id: K, what: &str) -> anyhow::Result<V> {
    let taken = map.remove(&id);
    taken.with_context(|| format!("its {what} is missing"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_told_by_names() {
        for name in ["person_0_0.csv", "Person.csv", "Person_1.csv"] {
            assert_eq!(kind(name).unwrap(), "person");
        }
        let long = kind("forum_containerOf_post_1_12.csv").unwrap();
        assert_eq!(long, "forum_containerof_post");
        assert_eq!(kind("person_0_0.txt"), None);
        assert_ne!(kind("person_x_0.csv").unwrap(), "person");
    }
}
