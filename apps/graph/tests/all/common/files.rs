//! Networks as LDBC's Datagen writes them: CsvComposite files and update streams.

use flate2::Compression;
use flate2::write::GzEncoder;
use std::collections::BTreeMap;
use std::fmt::{Display, Write as _};
use std::fs;
use std::io::Write;
use std::path::Path;
use wallaby_graph::model::{Insert, Message, Person, Place, Timestamp};

const IP: &str = "10.0.0.1";
const BROWSER: &str = "Firefox";

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
        Insert::Like(.., since) | Insert::Membership(.., since) | Insert::Friendship(.., since) => {
            *since
        }
    }
}

/// Fields between `|`.
fn line(fields: &[&dyn Display]) -> String {
    let fields: Vec<String> = fields.iter().map(|field| field.to_string()).collect();
    fields.join("|")
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
            Insert::Friendship(one, other, since) => {
                self.row("person_knows_person", &[one, other, since]);
            }
            Insert::Membership(person, forum, since) => {
                self.row("forum_hasMember_person", &[forum, person, since])
            }
            Insert::Like(person, message, since) => {
                self.row("person_likes_post", &[person, message, since])
            }
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
                &"en;de",
                &"a@example.com",
            ],
        );
        self.row("person_isLocatedIn_place", &[id, &person.city]);
    }

    fn add_message(&mut self, message: &Message) {
        let (id, created) = (&message.id, &message.created);
        match &message.place {
            Place::Forum(forum) => {
                let (image, text) = image_or_text(message);
                let fields: [&dyn Display; 8] = [
                    id,
                    &image,
                    created,
                    &IP,
                    &BROWSER,
                    &"en",
                    &text,
                    &text.len(),
                ];
                self.row("post", &fields);
                self.row("post_hasCreator_person", &[id, &message.creator]);
                self.row("post_isLocatedIn_place", &[id, &7]);
                self.row("forum_containerOf_post", &[forum, id]);
            }
            Place::Reply(to) => {
                let text = &message.content;
                self.row("comment", &[id, created, &IP, &BROWSER, text, &text.len()]);
                self.row("comment_hasCreator_person", &[id, &message.creator]);
                self.row("comment_isLocatedIn_place", &[id, &7]);
                // Which of the two files it is does not matter.
                self.row("comment_replyOf_comment", &[id, to]);
            }
        }
    }
}

/// A post is an image, or has a text.
fn image_or_text(message: &Message) -> (&str, &str) {
    match message.content.ends_with(".jpg") {
        true => (&message.content, ""),
        false => ("", &message.content),
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
            &"en;de",
            &"a@example.com",
            &"1;2",
            &"5,2010;6,2011",
            &"",
        ]),
        Insert::Like(person, message, since) => line(&[&2, person, message, since]),
        Insert::Forum(forum) => line(&[
            &4,
            &forum.id,
            &forum.title,
            &forum.created,
            &forum.moderator,
            &"",
        ]),
        Insert::Membership(person, forum, since) => line(&[&5, forum, person, since]),
        Insert::Message(message) => update_of_message(message),
        Insert::Friendship(one, other, since) => line(&[&8, one, other, since]),
    }
}

fn update_of_message(message: &Message) -> String {
    let (id, created, creator) = (&message.id, &message.created, &message.creator);
    match &message.place {
        Place::Forum(forum) => {
            let (image, text) = image_or_text(message);
            let length = text.len();
            line(&[
                &6, id, &image, created, &IP, &BROWSER, &"en", &text, &length, creator, forum, &7,
                &"1;2",
            ])
        }
        Place::Reply(to) => {
            let (text, length) = (&message.content, message.content.len());
            line(&[
                &7, id, created, &IP, &BROWSER, text, &length, creator, &7, &-1, to, &"",
            ])
        }
    }
}
