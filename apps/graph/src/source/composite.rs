//! LDBC Datagen's "CsvComposite": a file for each kind of vertex and edge, languages and addresses as lists in the
//! person's line, all moments in milliseconds.

use super::csv::{self, Record};
use super::references::none_left;
use crate::model::{Forum, ForumId, Insert, Message, MessageId, Name, Person, PersonId, Place};
use anyhow::ensure;
use indicatif::ProgressBar;
use std::collections::HashMap;
use std::hash::Hash;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Whether a folder holds such files.
pub fn is_here(folder: &Path) -> bool {
    Files::of(folder).is_ok_and(|files| !files.table("person").is_empty())
}

/// The kinds of vertices and edges that queries need and of which there is no file.
///
/// # Errors
///
/// If the folder cannot be read.
pub fn missing(folder: &Path) -> anyhow::Result<Vec<&'static str>> {
    const NEEDED: [&str; 5] = ["person", "person_knows_person", "forum", "post", "comment"];
    let files = Files::of(folder)?;
    let missing = NEEDED.into_iter();
    Ok(missing
        .filter(|kind| files.table(kind).is_empty())
        .collect())
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
    let files = Files::of(folder)?;
    bar.set_length(csv::size(&files.paths));
    read_persons(&files, bar, each)?;
    read_forums(&files, bar, each)?;
    read_posts(&files, bar, each)?;
    read_comments(&files, bar, each)?;
    read_edges(&files, bar, each)
}

/// The files of a data set. Each kind may have several, `person_0_0.csv`, `person_1_0.csv`.
struct Files {
    paths: Vec<PathBuf>,
}

impl Files {
    fn of(folder: &Path) -> anyhow::Result<Self> {
        let dynamic = folder.join("dynamic");
        let folder = match dynamic.is_dir() {
            true => &dynamic,
            false => folder,
        };
        let paths = csv::files(folder, |name| table(name).is_some())?;
        Ok(Self { paths })
    }

    /// Those of a kind.
    fn table(&self, kind: &str) -> Vec<PathBuf> {
        let is_of = |path: &&PathBuf| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            table(name.strip_suffix(".gz").unwrap_or(&name)) == Some(kind)
        };
        self.paths.iter().filter(is_of).cloned().collect()
    }

    /// What there is to say when all vertices of a kind were read, if there are files of them.
    fn all_told(&self, kind: &str, say: impl Fn() -> anyhow::Result<()>) -> anyhow::Result<()> {
        match self.table(kind).is_empty() {
            true => Ok(()),
            false => say(),
        }
    }
}

/// What kind a file is of, by its name: `person` of `person_0_0.csv`.
fn table(name: &str) -> Option<&str> {
    let (rest, second) = name.strip_suffix(".csv")?.rsplit_once('_')?;
    let (kind, first) = rest.rsplit_once('_')?;
    let is_number = |part: &str| part.parse::<u32>().is_ok();
    (is_number(first) && is_number(second)).then_some(kind)
}

type Each<'a> = &'a mut dyn FnMut(Insert) -> anyhow::Result<()>;

fn read_persons(files: &Files, bar: &ProgressBar, each: Each<'_>) -> anyhow::Result<()> {
    let city: HashMap<PersonId, i64> = csv::pairs(&files.table("person_isLocatedIn_place"), bar)?;
    let mut interests = tags::<PersonId>(&files.table("person_hasInterest_tag"), bar)?;
    let with_year = |record: &Record<'_>| Ok((record.number(1)?, record.number(2)?));
    let mut universities =
        csv::lists::<PersonId, _>(&files.table("person_studyAt_organisation"), bar, with_year)?;
    let mut companies =
        csv::lists::<PersonId, _>(&files.table("person_workAt_organisation"), bar, with_year)?;
    for path in files.table("person") {
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
                languages: record.texts(8)?,
                emails: record.texts(9)?,
                interests: interests.remove(&id).unwrap_or_default(),
                universities: universities.remove(&id).unwrap_or_default(),
                companies: companies.remove(&id).unwrap_or_default(),
            }))
        })?;
    }
    Ok(())
}

fn read_forums(files: &Files, bar: &ProgressBar, each: Each<'_>) -> anyhow::Result<()> {
    let mut moderators: HashMap<ForumId, PersonId> =
        csv::pairs(&files.table("forum_hasModerator_person"), bar)?;
    let mut tags = tags::<ForumId>(&files.table("forum_hasTag_tag"), bar)?;
    for path in files.table("forum") {
        csv::read(&path, bar, |record| {
            let id: ForumId = record.number(0)?;
            each(Insert::Forum(Forum {
                id,
                title: record.text(1)?.to_owned(),
                created: record.number(2)?,
                moderator: known(&mut moderators, &id, "moderator")?,
                tags: tags.remove(&id).unwrap_or_default(),
            }))
        })?;
    }
    files.all_told("forum", || {
        none_left(&moderators, "forum_hasModerator_person", "forum")
    })
}

fn read_posts(files: &Files, bar: &ProgressBar, each: Each<'_>) -> anyhow::Result<()> {
    let mut creators: HashMap<MessageId, PersonId> =
        csv::pairs(&files.table("post_hasCreator_person"), bar)?;
    let countries: HashMap<MessageId, i64> =
        csv::pairs(&files.table("post_isLocatedIn_place"), bar)?;
    let mut tags = tags::<MessageId>(&files.table("post_hasTag_tag"), bar)?;
    let mut forums: HashMap<MessageId, ForumId> = HashMap::new();
    for path in files.table("forum_containerOf_post") {
        csv::read(&path, bar, |record| {
            let before = forums.insert(record.number(1)?, record.number(0)?);
            ensure!(before.is_none(), "{} is there already", record.text(1)?);
            Ok(())
        })?;
    }
    for path in files.table("post") {
        csv::read(&path, bar, |record| {
            let id: MessageId = record.number(0)?;
            each(Insert::Message(Message {
                id,
                creator: known(&mut creators, &id, "creator")?,
                created: record.number(2)?,
                location_ip: record.text(3)?.to_owned(),
                browser: record.text(4)?.to_owned(),
                content: record.text(6)?.to_owned(),
                length: record.number(7)?,
                country: countries.get(&id).copied().unwrap_or_default(),
                tags: tags.remove(&id).unwrap_or_default(),
                place: Place::Forum {
                    forum: known(&mut forums, &id, "forum")?,
                    image: record.text(1)?.to_owned(),
                    language: record.text(5)?.to_owned(),
                },
            }))
        })?;
    }
    files.all_told("post", || {
        none_left(&creators, "post_hasCreator_person", "post")?;
        none_left(&forums, "forum_containerOf_post", "post")
    })
}

fn read_comments(files: &Files, bar: &ProgressBar, each: Each<'_>) -> anyhow::Result<()> {
    let mut creators: HashMap<MessageId, PersonId> =
        csv::pairs(&files.table("comment_hasCreator_person"), bar)?;
    let countries: HashMap<MessageId, i64> =
        csv::pairs(&files.table("comment_isLocatedIn_place"), bar)?;
    let mut tags = tags::<MessageId>(&files.table("comment_hasTag_tag"), bar)?;
    let mut replied: HashMap<MessageId, MessageId> =
        csv::pairs(&files.table("comment_replyOf_post"), bar)?;
    for path in files.table("comment_replyOf_comment") {
        csv::read(&path, bar, |record| {
            let before = replied.insert(record.number(0)?, record.number(1)?);
            ensure!(before.is_none(), "{} is there already", record.text(0)?);
            Ok(())
        })?;
    }
    for path in files.table("comment") {
        csv::read(&path, bar, |record| {
            let id: MessageId = record.number(0)?;
            each(Insert::Message(Message {
                id,
                creator: known(&mut creators, &id, "creator")?,
                created: record.number(1)?,
                location_ip: record.text(2)?.to_owned(),
                browser: record.text(3)?.to_owned(),
                content: record.text(4)?.to_owned(),
                length: record.number(5)?,
                country: countries.get(&id).copied().unwrap_or_default(),
                tags: tags.remove(&id).unwrap_or_default(),
                place: Place::Reply(known(&mut replied, &id, "message that it replies to")?),
            }))
        })?;
    }
    files.all_told("comment", || {
        none_left(&creators, "comment_hasCreator_person", "comment")?;
        none_left(&replied, "comment_replyOf_post or _comment", "comment")
    })
}

fn read_edges(files: &Files, bar: &ProgressBar, each: Each<'_>) -> anyhow::Result<()> {
    let mut read = |kind: &str, insert: fn(&Record<'_>) -> anyhow::Result<Insert>| {
        let paths = files.table(kind);
        paths
            .iter()
            .try_for_each(|path| csv::read(path, bar, |record| each(insert(record)?)))
    };
    read("person_knows_person", |record| {
        Ok(Insert::Friendship {
            one: record.number(0)?,
            other: record.number(1)?,
            since: record.number(2)?,
        })
    })?;
    read("forum_hasMember_person", |record| {
        Ok(Insert::Membership {
            forum: record.number(0)?,
            person: record.number(1)?,
            since: record.number(2)?,
        })
    })?;
    for kind in ["person_likes_post", "person_likes_comment"] {
        read(kind, |record| {
            Ok(Insert::Like {
                person: record.number(0)?,
                message: record.number(1)?,
                since: record.number(2)?,
            })
        })?;
    }
    Ok(())
}

fn tags<K: FromStr + Eq + Hash>(
    paths: &[PathBuf],
    bar: &ProgressBar,
) -> anyhow::Result<HashMap<K, Vec<i64>>> {
    csv::lists(paths, bar, |record| record.number(1))
}

/// What an edge's file says of a vertex: once, so that what is left of the file belongs to none.
fn known<K: Eq + Hash, V>(map: &mut HashMap<K, V>, id: &K, what: &str) -> anyhow::Result<V> {
    let known = map.remove(id);
    known.ok_or_else(|| anyhow::anyhow!("its {what} is missing"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_told_by_names() {
        assert_eq!(table("person_0_0.csv"), Some("person"));
        assert_eq!(
            table("forum_containerOf_post_1_12.csv"),
            Some("forum_containerOf_post")
        );
        for other in ["person.csv", "person_0_0.txt", "person_x_0.csv"] {
            assert_eq!(table(other), None);
        }
    }
}
