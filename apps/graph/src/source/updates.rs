//! LDBC's update streams: inserts (IU1 to IU8), each with the moment at which it happened.
//!
//! ```text
//! moment | moment of what it depends on | 1 to 8 | what is inserted
//! ```

use super::{csv, shown};
use crate::model::{Insert, Message, MessageId, Place, Timestamp};
use ::csv::StringRecord;
use anyhow::{Context, bail, ensure};
use serde::de::IgnoredAny as Skip;
use std::path::Path;

/// An insert, and where it stands.
#[derive(Debug)]
pub struct Update {
    /// What is inserted.
    pub insert: Insert,
    /// The file and the line, for errors to say.
    pub place: String,
}

/// The inserts of a data set's streams in the order in which they happened. Of what happened at the same moment, persons
/// come first.
pub fn read(folder: &Path) -> anyhow::Result<Vec<Update>> {
    let own = folder.join("update_streams");
    let folder = match own.is_dir() {
        true => &own,
        false => folder,
    };
    let mut updates: Vec<(Timestamp, Update)> = Vec::new();
    let mut streams = csv::files(folder)?;
    streams.retain(|(name, _)| name.starts_with("updateStream"));
    for kind in ["_person.csv", "_forum.csv"] {
        for (_, path) in streams.iter().filter(|(name, _)| name.ends_with(kind)) {
            csv::read(path, |record, line| {
                let (moment, Skip, kind) = record.deserialize(None)?;
                let rest: StringRecord = record.iter().skip(3).collect();
                let insert = insert(kind, &rest)?;
                let place = format!("{}, line {line}", path.display());
                updates.push((moment, Update { insert, place }));
                Ok(())
            })?;
        }
    }
    ensure!(
        !streams.is_empty(),
        "{} holds no update streams (updateStream_0_0_person.csv)",
        folder.display()
    );
    updates.sort_by_key(|(moment, _)| *moment);
    Ok(updates.into_iter().map(|(_, update)| update).collect())
}

/// The fields of persons and forums stand in a record in the order that the model has.
fn insert(kind: u8, record: &StringRecord) -> anyhow::Result<Insert> {
    Ok(match kind {
        1 => Insert::Person(record.deserialize(None)?),
        2 | 3 => {
            let (person, message, since) = record.deserialize(None)?;
            Insert::Like(person, message, since)
        }
        4 => Insert::Forum(record.deserialize(None)?),
        5 => {
            // The forum is first, in this kind of insert only.
            let (forum, person, since) = record.deserialize(None)?;
            Insert::Membership(person, forum, since)
        }
        6 => Insert::Message(post(record)?),
        7 => Insert::Message(comment(record)?),
        8 => {
            let (one, other, since) = record.deserialize(None)?;
            Insert::Friendship(one, other, since)
        }
        other => bail!("'{other}' is no kind of insert"),
    })
}

fn post(record: &StringRecord) -> anyhow::Result<Message> {
    let (id, image, created, Skip, Skip, Skip, text, Skip, creator, forum) =
        record.deserialize(None)?;
    Ok(Message {
        id,
        creator,
        created,
        content: shown(image, text),
        place: Place::Forum(forum),
    })
}

fn comment(record: &StringRecord) -> anyhow::Result<Message> {
    const NONE: MessageId = MessageId(-1);
    let (id, created, Skip, Skip, content, Skip, creator, Skip, post, comment) =
        record.deserialize(None)?;
    let to = [post, comment].into_iter().find(|id| *id != NONE);
    Ok(Message {
        id,
        creator,
        created,
        content,
        place: Place::Reply(to.context("a comment on nothing")?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{ForumId, PersonId};
    use std::fs;

    /// As LDBC's Datagen writes them, not as we do.
    #[test]
    fn edges_name_their_ends_in_the_order_of_their_kind() {
        let scratch = tempfile::tempdir().unwrap();
        let lines = "30|10|5|68719477243|4398046511147|30\n20|10|2|933|343597383680|20\n10|0|8|933|4139|10\n";
        fs::write(scratch.path().join("updateStream_0_0_forum.csv"), lines).unwrap();
        let updates = read(scratch.path()).unwrap();
        let place = &updates[2].place;
        assert!(
            place.ends_with("updateStream_0_0_forum.csv, line 1"),
            "{place}"
        );
        let inserts: Vec<Insert> = updates.into_iter().map(|update| update.insert).collect();
        let expected = [
            Insert::Friendship(PersonId(933), PersonId(4139), Timestamp(10)),
            Insert::Like(PersonId(933), MessageId(343_597_383_680), Timestamp(20)),
            Insert::Membership(
                PersonId(4_398_046_511_147),
                ForumId(68_719_477_243),
                Timestamp(30),
            ),
        ];
        assert_eq!(inserts, expected);
    }
}
