//! Networks as LDBC's Datagen writes them: CsvComposite files and update streams.

use flate2::Compression;
use flate2::write::GzEncoder;
use std::collections::BTreeMap;
use std::fmt::{Display, Write as _};
use std::fs;
use std::io::Write;
use std::path::Path;
use wallaby_graph::model::{Insert, Message, Person, Place, Timestamp};

/// The files of a snapshot, each a text, by their names without `_0_0.csv`.
#[derive(Default)]
struct Tables(BTreeMap<&'static str, String>);

/// Writes a snapshot into a folder: some files compressed, others not.
pub fn write_snapshot(folder: &Path, inserts: &[Insert]) {
    let mut tables = Tables::default();
    for insert in inserts {
        tables.add(insert);
    }
    for (number, (name, lines)) in tables.0.into_iter().enumerate() {
        let text = format!("some.id|and|more\n{lines}");
        match number % 2 {
            0 => fs::write(folder.join(format!("{name}_0_0.csv")), text).unwrap(),
            _ => write_compressed(&folder.join(format!("{name}_0_0.csv.gz")), &text),
        }
    }
}

/// Writes update streams into a folder; the inserts in the order in which streams are merged.
pub fn write_streams(folder: &Path, inserts: &[Insert]) -> Vec<Insert> {
    let (mut persons, mut others) = (String::new(), String::new());
    for insert in inserts {
        let (stream, line) = match insert {
            Insert::Person(_) => (&mut persons, update(insert)),
            _ => (&mut others, update(insert)),
        };
        writeln!(stream, "{}|0|{line}", moment(insert)).unwrap();
    }
    fs::write(folder.join("updateStream_0_0_person.csv"), persons).unwrap();
    fs::write(folder.join("updateStream_0_0_forum.csv"), others).unwrap();
    let mut merged = inserts.to_vec();
    merged.sort_by_key(|insert| (moment(insert), !matches!(insert, Insert::Person(_))));
    merged
}

/// Writes a `.gz` file.
pub fn write_compressed(path: &Path, text: &str) {
    let mut file = GzEncoder::new(fs::File::create(path).unwrap(), Compression::fast());
    file.write_all(text.as_bytes()).unwrap();
    file.finish().unwrap();
}

fn moment(insert: &Insert) -> Timestamp {
    match insert {
        Insert::Person(person) => person.joined,
        Insert::Forum(forum) => forum.created,
        Insert::Message(message) => message.created,
        Insert::Like { since, .. }
        | Insert::Membership { since, .. }
        | Insert::Friendship { since, .. } => *since,
    }
}

/// Fields between `|`.
fn line(fields: &[&dyn Display]) -> String {
    let fields: Vec<String> = fields.iter().map(|field| field.to_string()).collect();
    fields.join("|")
}

fn list<T: Display>(values: &[T]) -> String {
    let values: Vec<String> = values.iter().map(ToString::to_string).collect();
    values.join(";")
}

fn years(pairs: &[(i64, i32)]) -> String {
    let pairs: Vec<String> = pairs
        .iter()
        .map(|(id, year)| format!("{id},{year}"))
        .collect();
    pairs.join(";")
}

impl Tables {
    fn row(&mut self, table: &'static str, fields: &[&dyn Display]) {
        let lines = self.0.entry(table).or_default();
        writeln!(lines, "{}", line(fields)).unwrap();
    }

    fn add(&mut self, insert: &Insert) {
        match insert {
            Insert::Person(person) => self.add_person(person),
            Insert::Forum(forum) => {
                self.row("forum", &[&forum.id, &forum.title, &forum.created]);
                self.row("forum_hasModerator_person", &[&forum.id, &forum.moderator]);
            }
            Insert::Message(message) => self.add_message(message),
            Insert::Friendship { one, other, since } => {
                self.row("person_knows_person", &[one, other, since]);
            }
            Insert::Membership {
                person,
                forum,
                since,
            } => self.row("forum_hasMember_person", &[forum, person, since]),
            Insert::Like {
                person,
                message,
                since,
            } => self.row("person_likes_post", &[person, message, since]),
        }
    }

    fn add_person(&mut self, person: &Person) {
        let id = &person.name.id;
        self.row(
            "person",
            &[
                id,
                &person.name.first,
                &person.name.last,
                &person.gender,
                &person.birthday,
                &person.joined,
                &person.location_ip,
                &person.browser,
                &list(&person.languages),
                &list(&person.emails),
            ],
        );
        self.row("person_isLocatedIn_place", &[id, &person.city]);
        for interest in &person.interests {
            self.row("person_hasInterest_tag", &[id, interest]);
        }
        for (university, year) in &person.universities {
            self.row("person_studyAt_organisation", &[id, university, year]);
        }
    }

    fn add_message(&mut self, message: &Message) {
        let (id, created) = (&message.id, &message.created);
        let (ip, browser) = (&message.location_ip, &message.browser);
        let (content, length) = (&message.content, &message.length);
        match &message.place {
            Place::Forum {
                forum,
                image,
                language,
            } => {
                let fields: [&dyn Display; 8] =
                    [id, image, created, ip, browser, language, content, length];
                self.row("post", &fields);
                self.row("post_hasCreator_person", &[id, &message.creator]);
                self.row("post_isLocatedIn_place", &[id, &message.country]);
                self.row("forum_containerOf_post", &[forum, id]);
            }
            Place::Reply(to) => {
                self.row("comment", &[id, created, ip, browser, content, length]);
                self.row("comment_hasCreator_person", &[id, &message.creator]);
                self.row("comment_isLocatedIn_place", &[id, &message.country]);
                // Which of the two files it is does not matter.
                self.row("comment_replyOf_comment", &[id, to]);
            }
        }
    }
}

/// An insert as it stands in a stream, from its kind on.
fn update(insert: &Insert) -> String {
    match insert {
        Insert::Person(person) => line(&[
            &1,
            &person.name.id,
            &person.name.first,
            &person.name.last,
            &person.gender,
            &person.birthday,
            &person.joined,
            &person.location_ip,
            &person.browser,
            &person.city,
            &list(&person.languages),
            &list(&person.emails),
            &list(&person.interests),
            &years(&person.universities),
            &years(&person.companies),
        ]),
        Insert::Like {
            person,
            message,
            since,
        } => line(&[&2, person, message, since]),
        Insert::Forum(forum) => line(&[
            &4,
            &forum.id,
            &forum.title,
            &forum.created,
            &forum.moderator,
            &list(&forum.tags),
        ]),
        Insert::Membership {
            person,
            forum,
            since,
        } => line(&[&5, forum, person, since]),
        Insert::Message(message) => update_of_message(message),
        Insert::Friendship { one, other, since } => line(&[&8, one, other, since]),
    }
}

fn update_of_message(message: &Message) -> String {
    let (id, created) = (&message.id, &message.created);
    let (ip, browser) = (&message.location_ip, &message.browser);
    let (content, length) = (&message.content, &message.length);
    let (creator, country, tags) = (&message.creator, &message.country, &list(&message.tags));
    match &message.place {
        Place::Forum {
            forum,
            image,
            language,
        } => line(&[
            &6, id, image, created, ip, browser, language, content, length, creator, forum,
            country, tags,
        ]),
        Place::Reply(to) => line(&[
            &7, id, created, ip, browser, content, length, creator, country, &-1, to, tags,
        ]),
    }
}
