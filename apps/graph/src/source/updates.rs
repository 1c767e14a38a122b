//! LDBC's update streams: inserts (IU1 to IU8), each with the moment at which it happened.
//!
//! ```text
//! moment | moment of what it depends on | 1 to 8 | what is inserted
//! ```

use super::csv::{self, Record};
use crate::model::{Forum, Insert, Message, MessageId, Name, Person, Place, Timestamp};
use anyhow::{Context, bail, ensure};
use indicatif::ProgressBar;
use std::path::Path;
use std::sync::Arc;

/// An insert, and where it stands.
#[derive(Debug)]
pub struct Update {
    /// What is inserted.
    pub insert: Insert,
    file: Arc<Path>,
    line: usize,
}

impl Update {
    /// The file and the line, for errors to say.
    pub fn place(&self) -> String {
        format!("{}, line {}", self.file.display(), self.line)
    }
}

/// The inserts of a data set's streams in the order in which they happened. Of what happened at the same moment, persons
/// come first.
///
/// # Errors
///
/// If there are no streams, or they cannot be read.
pub fn read(folder: &Path) -> anyhow::Result<Vec<Update>> {
    let own = folder.join("update_streams");
    let folder = match own.is_dir() {
        true => &own,
        false => folder,
    };
    let mut inserts: Vec<(Timestamp, Update)> = Vec::new();
    let mut streams = 0;
    for kind in ["_person.csv", "_forum.csv"] {
        let is_stream = |name: &str| name.starts_with("updateStream") && name.ends_with(kind);
        for path in csv::files(folder, is_stream)? {
            streams += 1;
            let file: Arc<Path> = path.as_path().into();
            csv::read(&path, &ProgressBar::hidden(), |record| {
                let update = Update {
                    insert: insert(record)?,
                    file: Arc::clone(&file),
                    line: record.line(),
                };
                inserts.push((record.number(0)?, update));
                Ok(())
            })?;
        }
    }
    ensure!(
        streams > 0,
        "{} holds no update streams (updateStream_0_0_person.csv)",
        folder.display()
    );
    inserts.sort_by_key(|(moment, _)| *moment);
    Ok(inserts.into_iter().map(|(_, insert)| insert).collect())
}

fn insert(record: &Record<'_>) -> anyhow::Result<Insert> {
    Ok(match record.text(2)? {
        "1" => Insert::Person(person(record)?),
        "2" | "3" => Insert::Like {
            person: record.number(3)?,
            message: record.number(4)?,
            since: record.number(5)?,
        },
        "4" => Insert::Forum(Forum {
            id: record.number(3)?,
            title: record.text(4)?.to_owned(),
            created: record.number(5)?,
            moderator: record.number(6)?,
            tags: record.numbers(7)?,
        }),
        "5" => Insert::Membership {
            // The forum is first, in this kind of insert only.
            forum: record.number(3)?,
            person: record.number(4)?,
            since: record.number(5)?,
        },
        "6" => Insert::Message(post(record)?),
        "7" => Insert::Message(comment(record)?),
        "8" => Insert::Friendship {
            one: record.number(3)?,
            other: record.number(4)?,
            since: record.number(5)?,
        },
        other => bail!("'{other}' is no kind of insert"),
    })
}

fn person(record: &Record<'_>) -> anyhow::Result<Person> {
    Ok(Person {
        name: Name {
            id: record.number(3)?,
            first: record.text(4)?.to_owned(),
            last: record.text(5)?.to_owned(),
        },
        gender: record.text(6)?.to_owned(),
        birthday: record.number(7)?,
        joined: record.number(8)?,
        location_ip: record.text(9)?.to_owned(),
        browser: record.text(10)?.to_owned(),
        city: record.number(11)?,
        languages: record.texts(12)?,
        emails: record.texts(13)?,
        interests: record.numbers(14)?,
        universities: record.pairs(15)?,
        companies: record.pairs(16)?,
    })
}

fn post(record: &Record<'_>) -> anyhow::Result<Message> {
    Ok(Message {
        id: record.number(3)?,
        creator: record.number(11)?,
        created: record.number(5)?,
        location_ip: record.text(6)?.to_owned(),
        browser: record.text(7)?.to_owned(),
        content: record.text(9)?.to_owned(),
        length: record.number(10)?,
        country: record.number(13)?,
        tags: record.numbers(14)?,
        place: Place::Forum {
            forum: record.number(12)?,
            image: record.text(4)?.to_owned(),
            language: record.text(8)?.to_owned(),
        },
    })
}

fn comment(record: &Record<'_>) -> anyhow::Result<Message> {
    const NONE: MessageId = MessageId(-1);
    let replied: [MessageId; 2] = [record.number(11)?, record.number(12)?];
    let replied = replied.into_iter().find(|id| *id != NONE);
    Ok(Message {
        id: record.number(3)?,
        creator: record.number(9)?,
        created: record.number(4)?,
        location_ip: record.text(5)?.to_owned(),
        browser: record.text(6)?.to_owned(),
        content: record.text(7)?.to_owned(),
        length: record.number(8)?,
        country: record.number(10)?,
        tags: record.numbers(13)?,
        place: Place::Reply(replied.context("a comment on nothing")?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{ForumId, PersonId};
    use crate::scratch::Scratch;
    use std::fs;

    /// As LDBC's Datagen writes them, not as we do.
    #[test]
    fn edges_name_their_ends_in_the_order_of_their_kind() {
        let scratch = Scratch::new("test").unwrap();
        let lines = "30|10|5|68719477243|4398046511147|30\n20|10|2|933|343597383680|20\n10|0|8|933|4139|10\n";
        fs::write(scratch.path().join("updateStream_0_0_forum.csv"), lines).unwrap();
        let updates = read(scratch.path()).unwrap();
        let place = updates[2].place();
        assert!(
            place.ends_with("updateStream_0_0_forum.csv, line 1"),
            "{place}"
        );
        let inserts: Vec<Insert> = updates.into_iter().map(|update| update.insert).collect();
        let expected = [
            Insert::Friendship {
                one: PersonId(933),
                other: PersonId(4139),
                since: Timestamp(10),
            },
            Insert::Like {
                person: PersonId(933),
                message: MessageId(343_597_383_680),
                since: Timestamp(20),
            },
            Insert::Membership {
                person: PersonId(4_398_046_511_147),
                forum: ForumId(68_719_477_243),
                since: Timestamp(30),
            },
        ];
        assert_eq!(inserts, expected);
    }
}
