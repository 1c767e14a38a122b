//! LDBC Datagen's "CsvBasic" in files named after edges, as graph databases import it: moments are digits, and here the
//! files of messages themselves are not needed. What they alone would tell, texts and moments of messages, is then empty.

use super::csv;
use super::references::none_left;
use crate::model::{
    Forum, ForumId, Insert, Message, MessageId, Name, Person, PersonId, Place, Timestamp,
};
use anyhow::{Context, ensure};
use indicatif::ProgressBar;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// Whether a folder holds such files.
pub fn is_here(folder: &Path) -> bool {
    table(folder, "Person").is_ok_and(|files| !files.is_empty())
}

/// The kinds of vertices and edges that queries need and of which there is no file.
///
/// # Errors
///
/// If the folder cannot be read.
pub fn missing(folder: &Path) -> anyhow::Result<Vec<&'static str>> {
    const NEEDED: [&str; 8] = [
        "Person",
        "Person_knows_Person",
        "Forum",
        "Forum_containerOf_Post",
        "Post_hasCreator_Person",
        "Comment_hasCreator_Person",
        "Comment_replyOf_Post",
        "Comment_replyOf_Comment",
    ];
    let mut missing = Vec::new();
    for kind in NEEDED {
        if table(folder, kind)?.is_empty() {
            missing.push(kind);
        }
    }
    Ok(missing)
}

/// Hands out what is in a folder.
///
/// # Errors
///
/// If a file cannot be read, or what `each` says.
pub fn read(
    folder: &Path,
    bar: &ProgressBar,
    each: &mut dyn FnMut(Insert) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    bar.set_length(csv::size(&csv::files(folder, |name| {
        name.ends_with(".csv")
    })?));
    let city: HashMap<PersonId, i64> =
        csv::pairs(&table(folder, "Person_isLocatedIn_Place")?, bar)?;
    for path in table(folder, "Person")? {
        csv::read(&path, bar, |record| {
            let id: PersonId = record.number(0)?;
            each(Insert::Person(Person {
                name: Name {
                    id,
                    first: record.text(1)?.to_owned(),
                    last: record.text(2)?.to_owned(),
                },
                gender: record.text(3)?.to_owned(),
                birthday: record.number(4)?,
                joined: record.number(5)?,
                location_ip: record.text(6)?.to_owned(),
                browser: record.text(7)?.to_owned(),
                city: city.get(&id).copied().unwrap_or_default(),
                languages: Vec::new(),
                emails: Vec::new(),
                interests: Vec::new(),
                universities: Vec::new(),
                companies: Vec::new(),
            }))
        })?;
    }
    for path in table(folder, "Person_knows_Person")? {
        csv::read(&path, bar, |record| {
            each(Insert::Friendship {
                one: record.number(0)?,
                other: record.number(1)?,
                since: record.number(2)?,
            })
        })?;
    }
    let mut moderators: HashMap<ForumId, PersonId> =
        csv::pairs(&table(folder, "Forum_hasModerator_Person")?, bar)?;
    for path in table(folder, "Forum")? {
        csv::read(&path, bar, |record| {
            let id: ForumId = record.number(0)?;
            let moderator = moderators.remove(&id);
            each(Insert::Forum(Forum {
                id,
                title: record.text(1)?.to_owned(),
                created: record.number(2)?,
                moderator: moderator.context("its moderator is missing")?,
                tags: Vec::new(),
            }))
        })?;
    }
    let missing = missing(folder)?;
    if !missing.contains(&"Forum") {
        none_left(&moderators, "Forum_hasModerator_Person", "forum")?;
    }
    let mut places: HashMap<MessageId, Place> = HashMap::new();
    for path in table(folder, "Forum_containerOf_Post")? {
        csv::read(&path, bar, |record| {
            let place = Place::Forum {
                forum: record.number(0)?,
                image: String::new(),
                language: String::new(),
            };
            let before = places.insert(record.number(1)?, place);
            ensure!(before.is_none(), "{} is there already", record.text(1)?);
            Ok(())
        })?;
    }
    for kind in ["Comment_replyOf_Post", "Comment_replyOf_Comment"] {
        for path in table(folder, kind)? {
            csv::read(&path, bar, |record| {
                let place = Place::Reply(record.number(1)?);
                let before = places.insert(record.number(0)?, place);
                ensure!(before.is_none(), "{} is there already", record.text(0)?);
                Ok(())
            })?;
        }
    }
    for kind in ["Post_hasCreator_Person", "Comment_hasCreator_Person"] {
        for path in table(folder, kind)? {
            csv::read(&path, bar, |record| {
                let id: MessageId = record.number(0)?;
                let place = places.remove(&id);
                each(Insert::Message(Message {
                    id,
                    creator: record.number(1)?,
                    created: Timestamp(0),
                    location_ip: String::new(),
                    browser: String::new(),
                    content: String::new(),
                    length: 0,
                    country: 0,
                    tags: Vec::new(),
                    place: place.context("neither in a forum nor a reply")?,
                }))
            })?;
        }
    }
    const MESSAGES: [&str; 2] = ["Post_hasCreator_Person", "Comment_hasCreator_Person"];
    if !missing.iter().any(|kind| MESSAGES.contains(kind)) {
        none_left(&places, "a file of edges", "message")?;
    }
    Ok(())
}

/// The files of a kind: `Person.csv`, and `Person_1.csv` if it goes on there.
fn table(folder: &Path, kind: &str) -> anyhow::Result<Vec<PathBuf>> {
    csv::files(folder, |name| {
        let part = name
            .strip_prefix(kind)
            .and_then(|rest| rest.strip_suffix(".csv"));
        let number = part.map(|part| part.strip_prefix('_').map_or(part.is_empty(), is_number));
        number.unwrap_or(false)
    })
}

fn is_number(text: &str) -> bool {
    text.parse::<u32>().is_ok()
}
