//! Social networks that are made up: of any size, the same for the same seed.
//!
//! They have what makes real ones hard: some persons with very many friends, threads some comments deep, and moments that
//! several events share, so that ties must be broken.

use crate::model::{
    Forum, ForumId, Insert, Message, MessageId, Name, Person, PersonId, Place, Timestamp,
};
use std::collections::HashSet;

const FIRST: [&str; 12] = [
    "Ada", "Ben", "Chen", "Dora", "Emre", "Fatou", "Goran", "Hiro", "Inés", "Jan", "Kim", "Lena",
];
const LAST: [&str; 10] = [
    "Alonso", "Berg", "Cruz", "Diaz", "Eriksen", "Fofana", "Garcia", "Horvat", "Ito", "Jansen",
];
const BROWSERS: [&str; 4] = ["Firefox", "Chrome", "Safari", "Opera"];
/// When everything begins: 2010.
const BEGINNING: i64 = 1_262_304_000_000;

/// What happens in a network that so many persons join, in the order in which it happens.
pub fn generate(persons: u32, seed: u64) -> impl Iterator<Item = Insert> {
    let mut network = Network::new(seed);
    (0..persons).flat_map(move |_| {
        network.join();
        network.befriend();
        for _ in 0..network.chance.below(4) {
            network.thread();
        }
        std::mem::take(&mut network.events)
    })
}

struct Network {
    chance: Chance,
    now: i64,
    persons: Vec<PersonId>,
    /// Both ends of all friendships: who has many friends is found here often.
    ends: Vec<PersonId>,
    forums: Vec<ForumId>,
    messages: i64,
    members: HashSet<(PersonId, ForumId)>,
    likes: HashSet<(PersonId, MessageId)>,
    /// What the newest person brings about.
    events: Vec<Insert>,
}

impl Network {
    fn new(seed: u64) -> Self {
        Self {
            chance: Chance(seed),
            now: BEGINNING,
            persons: Vec::new(),
            ends: Vec::new(),
            forums: Vec::new(),
            messages: 0,
            members: HashSet::new(),
            likes: HashSet::new(),
            events: Vec::new(),
        }
    }

    /// A moment later, or none.
    fn tick(&mut self) -> Timestamp {
        self.now += self.chance.below(3) as i64 * 1000;
        Timestamp(self.now)
    }

    /// A person joins and gets a wall.
    fn join(&mut self) {
        let number = self.persons.len() as i64;
        let (id, wall) = (PersonId(number * 7 + 1), ForumId(number * 3));
        let joined = self.tick();
        let first = self.chance.of(&FIRST).to_string();
        let person = Person {
            name: Name {
                id,
                first: first.clone(),
                last: self.chance.of(&LAST).to_string(),
            },
            gender: self.chance.of(&["female", "male"]).to_string(),
            birthday: Timestamp(self.chance.below(10_000) as i64 * 86_400_000),
            joined,
            location_ip: self.ip(),
            browser: self.chance.of(&BROWSERS).to_string(),
            city: self.chance.below(1400) as i64,
            languages: vec!["en".to_owned()],
            emails: vec![format!("{first}{id}@example.com")],
            interests: vec![self.chance.below(100) as i64],
            universities: vec![(self.chance.below(50) as i64, 2005)],
            companies: Vec::new(),
        };
        self.events.push(Insert::Person(person));
        self.events.push(Insert::Forum(Forum {
            id: wall,
            title: format!("Wall of {first}"),
            created: joined,
            moderator: id,
            tags: Vec::new(),
        }));
        self.persons.push(id);
        self.forums.push(wall);
    }

    /// The newest person finds friends: who has many finds more.
    fn befriend(&mut self) {
        let Some((&one, others)) = self.persons.split_last() else {
            return;
        };
        let mut friends = Vec::new();
        for _ in 0..self.chance.below(6) {
            let known = match self.chance.below(3) {
                0 => others,
                _ => &self.ends,
            };
            if let Some(&other) = self.chance.find(known)
                && other != one
                && !friends.contains(&other)
            {
                friends.push(other);
            }
        }
        for other in friends {
            let since = self.tick();
            self.events.push(Insert::Friendship { one, other, since });
            self.ends.extend([one, other]);
        }
    }

    /// Somebody posts something somewhere, some join, like it, and comment on it and on each other.
    fn thread(&mut self) {
        let (Some(&forum), Some(&author)) = (
            self.chance.find(&self.forums),
            self.chance.find(&self.persons),
        ) else {
            return;
        };
        if self.members.insert((author, forum)) {
            let since = self.tick();
            self.events.push(Insert::Membership {
                person: author,
                forum,
                since,
            });
        }
        let is_image = self.chance.below(3) == 0;
        let post = self.write(
            author,
            Place::Forum {
                forum,
                image: match is_image {
                    true => format!("photo{}.jpg", self.messages),
                    false => String::new(),
                },
                language: match is_image {
                    true => String::new(),
                    false => "en".to_owned(),
                },
            },
        );
        let mut thread = vec![post];
        for _ in 0..self.chance.below(8) {
            let (Some(&to), Some(&author)) =
                (self.chance.find(&thread), self.chance.find(&self.persons))
            else {
                return;
            };
            thread.push(self.write(author, Place::Reply(to)));
            if self.chance.below(2) == 0 && self.likes.insert((author, to)) {
                let since = self.tick();
                self.events.push(Insert::Like {
                    person: author,
                    message: to,
                    since,
                });
            }
        }
    }

    fn write(&mut self, creator: PersonId, place: Place) -> MessageId {
        let id = MessageId(self.messages * 5 + 2);
        self.messages += 1;
        let content = match &place {
            Place::Forum { image, .. } if !image.is_empty() => String::new(),
            _ => format!("message {id} of {creator}"),
        };
        let created = self.tick();
        let message = Message {
            id,
            creator,
            created,
            location_ip: self.ip(),
            browser: self.chance.of(&BROWSERS).to_string(),
            length: content.len() as u32,
            content,
            country: self.chance.below(110) as i64,
            tags: Vec::new(),
            place,
        };
        self.events.push(Insert::Message(message));
        id
    }

    fn ip(&mut self) -> String {
        format!("10.{}.{}.1", self.chance.below(256), self.chance.below(256))
    }
}

/// Random numbers from a seed (SplitMix64).
#[derive(Clone, Debug)]
pub struct Chance(pub u64);

impl Chance {
    /// A number below `end`, which is at least 1.
    pub fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (bits ^ (bits >> 31)) % end.max(1)
    }

    /// One of them, if there are any.
    pub fn find<'a, T>(&mut self, of: &'a [T]) -> Option<&'a T> {
        of.get(self.below(of.len() as u64) as usize)
    }

    fn of<'a, const N: usize>(&mut self, of: &[&'a str; N]) -> &'a str {
        of[self.below(N as u64) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_makes_the_same_network_each_time() {
        assert!(generate(50, 7).eq(generate(50, 7)));
        assert!(generate(50, 7).ne(generate(50, 8)));
        assert_eq!(generate(0, 7).count(), 0);
    }

    #[test]
    fn edges_lead_to_what_is_there() {
        let mut persons = Vec::new();
        let mut messages = Vec::new();
        for event in generate(200, 1) {
            match event {
                Insert::Person(person) => persons.push(person.name.id),
                Insert::Message(message) => {
                    assert!(persons.contains(&message.creator));
                    if let Place::Reply(to) = message.place {
                        assert!(messages.contains(&to));
                    }
                    messages.push(message.id);
                }
                Insert::Friendship { one, other, .. } => {
                    assert!(one != other && persons.contains(&one) && persons.contains(&other));
                }
                Insert::Like {
                    person, message, ..
                } => {
                    assert!(persons.contains(&person) && messages.contains(&message));
                }
                Insert::Forum(_) | Insert::Membership { .. } => {}
            }
        }
        assert!(messages.len() > 500, "{} messages", messages.len());
    }
}
