//! Social networks that are made up: of any size, the same for the same seed.
//!
//! They have what makes real ones hard: some persons with very many friends, threads some comments deep, and moments that
//! several events share, so that ties must be broken.

use crate::model::{
    Forum, ForumId, Insert, Message, MessageId, Name, Person, PersonId, Place, Timestamp,
};
use fastrand::Rng;
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
    let mut network = Network {
        random: Rng::with_seed(seed),
        now: BEGINNING,
        ..Network::default()
    };
    (0..persons).flat_map(move |_| {
        network.join();
        network.befriend();
        for _ in 0..network.random.u32(..4) {
            network.thread();
        }
        std::mem::take(&mut network.events)
    })
}

#[derive(Default)]
struct Network {
    random: Rng,
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
    /// A moment later, or none.
    fn tick(&mut self) -> Timestamp {
        self.now += self.random.i64(0..3) * 1000;
        Timestamp(self.now)
    }

    /// A person joins and gets a wall.
    fn join(&mut self) {
        let number = self.persons.len() as i64;
        let (id, wall) = (PersonId(number * 7 + 1), ForumId(number * 3));
        let joined = self.tick();
        let (first, last) = (self.word(&FIRST), self.word(&LAST));
        let title = format!("Wall of {first}");
        let person = Person {
            name: Name { id, first, last },
            gender: self.word(&["female", "male"]),
            birthday: Timestamp(self.random.i64(0..10_000) * 86_400_000),
            joined,
            location_ip: format!("10.{}.{}.1", self.random.u8(..), self.random.u8(..)),
            browser: self.word(&BROWSERS),
            city: self.random.i64(0..1400),
        };
        self.events.push(Insert::Person(person));
        self.events.push(Insert::Forum(Forum {
            id: wall,
            title,
            created: joined,
            moderator: id,
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
        for _ in 0..self.random.u32(..6) {
            let known = match self.random.u32(..3) {
                0 => others,
                _ => &self.ends,
            };
            if let Some(&other) = self.random.choice(known)
                && other != one
                && !friends.contains(&other)
            {
                friends.push(other);
            }
        }
        for other in friends {
            let since = self.tick();
            self.events.push(Insert::Friendship(one, other, since));
            self.ends.extend([one, other]);
        }
    }

    /// Somebody posts something somewhere, some join, like it, and comment on it and on each other.
    fn thread(&mut self) {
        let author = self.random.choice(&self.persons).copied();
        let forum = self.random.choice(&self.forums).copied();
        let (Some(author), Some(forum)) = (author, forum) else {
            return;
        };
        if self.members.insert((author, forum)) {
            let since = self.tick();
            self.events.push(Insert::Membership(author, forum, since));
        }
        let mut thread = vec![self.write(author, Place::Forum(forum))];
        for _ in 0..self.random.u32(..8) {
            let author = self.random.choice(&self.persons).copied();
            let to = self.random.choice(&thread).copied();
            let (Some(author), Some(to)) = (author, to) else {
                return;
            };
            thread.push(self.write(author, Place::Reply(to)));
            if self.random.bool() && self.likes.insert((author, to)) {
                let since = self.tick();
                self.events.push(Insert::Like(author, to, since));
            }
        }
    }

    /// A third of all posts are images.
    fn write(&mut self, creator: PersonId, place: Place) -> MessageId {
        let id = MessageId(self.messages * 5 + 2);
        self.messages += 1;
        let is_image = matches!(place, Place::Forum(_)) && self.random.u32(..3) == 0;
        let content = match is_image {
            true => format!("photo{id}.jpg"),
            false => format!("message {id} of {creator}"),
        };
        let created = self.tick();
        self.events.push(Insert::Message(Message {
            id,
            creator,
            created,
            content,
            place,
        }));
        id
    }

    fn word(&mut self, of: &[&str]) -> String {
        of[self.random.usize(..of.len())].to_owned()
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
                Insert::Friendship(one, other, _) => {
                    assert!(one != other && persons.contains(&one) && persons.contains(&other));
                }
                Insert::Like(person, message, _) => {
                    assert!(persons.contains(&person) && messages.contains(&message));
                }
                Insert::Forum(_) | Insert::Membership(..) => {}
            }
        }
        assert!(messages.len() > 500, "{} messages", messages.len());
    }
}
