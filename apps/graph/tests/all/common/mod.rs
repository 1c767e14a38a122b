//! What the tests share: a graph that is looked at in the plainest way, and clusters.
#![allow(
    unreachable_pub,
    clippy::unwrap_used,
    reason = "nobody else sees it; a test that fails says where"
)]

pub mod cluster;
pub mod files;

use cluster::Cluster;

use serde_json::{Value, json};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use tempfile::TempDir;
use wallaby::Endpoint;
use wallaby_graph::client::Client;
use wallaby_graph::model::{Forum, Insert, Message, MessageId, Person, PersonId, Place, Timestamp};
use wallaby_graph::placement::Placement;
use wallaby_graph::query::{Form, Query};
use wallaby_graph::source::generated::generate;
use wallaby_graph::store::{Loader, Store};

/// A network of so many persons.
pub fn network(persons: u32, seed: u64) -> Vec<Insert> {
    eprintln!("seed {seed}");
    generate(persons, seed).collect()
}

/// A store with these inserts, in a folder that goes with the first value.
pub fn store(inserts: &[Insert]) -> (TempDir, Store) {
    let scratch = tempfile::tempdir().unwrap();
    let mut loader = Loader::begin(scratch.path()).unwrap();
    for insert in inserts {
        loader.insert(insert.clone()).unwrap();
    }
    let store = loader.finish("a test").unwrap();
    (scratch, store)
}

/// Servers within this process, and a client.
pub async fn cluster(store: &Store, servers: u32) -> (Cluster, Client) {
    static CLUSTERS: AtomicU32 = AtomicU32::new(0);
    let number = CLUSTERS.fetch_add(1, Ordering::Relaxed);
    let cluster = Cluster::start(store, servers, |server| format!("mem://{number}-{server}"));
    let cluster = cluster.await;
    let endpoint = Endpoint::bind(&format!("mem://{number}-client"))
        .await
        .unwrap();
    let client = Client::new(endpoint, cluster.placement().clone());
    (cluster, client)
}

/// A graph without servers, edges or indexes: what is inserted, looked through from one end to the other.
#[derive(Debug, Default)]
pub struct Reference {
    persons: BTreeMap<PersonId, Person>,
    messages: BTreeMap<MessageId, Message>,
    forums: BTreeMap<i64, Forum>,
    friendships: Vec<(PersonId, PersonId, Timestamp)>,
}

/// Messages that a query takes: those of the client, and all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expected {
    pub client: u64,
    pub all: u64,
}

impl Reference {
    pub fn of(inserts: &[Insert]) -> Self {
        let mut reference = Self::default();
        inserts
            .iter()
            .for_each(|insert| reference.insert(insert.clone()));
        reference
    }

    pub fn insert(&mut self, insert: Insert) {
        match insert {
            Insert::Person(person) => drop(self.persons.insert(person.name.id, person)),
            Insert::Forum(forum) => drop(self.forums.insert(forum.id.0, forum)),
            Insert::Message(message) => drop(self.messages.insert(message.id, message)),
            Insert::Friendship(one, other, since) => self.friendships.push((one, other, since)),
            Insert::Like(..) | Insert::Membership(..) => {}
        }
    }

    /// Every query about every person and every message, and about some that are not there.
    pub fn queries(&self) -> Vec<Query> {
        let unknown = [-1, 4, i64::MAX];
        let persons = self.persons.keys().map(|id| id.0).chain(unknown);
        let persons = persons.flat_map(|id| ["is1", "is2", "is3"].map(|name| (name, id)));
        let messages = self.messages.keys().map(|id| id.0).chain(unknown);
        let messages = messages.flat_map(|id| ["is4", "is5", "is6", "is7"].map(|name| (name, id)));
        let queries = persons.chain(messages);
        queries
            .map(|(name, id)| Query::new(name, id).unwrap())
            .collect()
    }

    /// The result, as LDBC specifies it.
    pub fn result(&self, query: Query) -> Value {
        let rows: Vec<Value> = match query {
            Query::Is1(id) => self.persons.get(&id).map(is1).into_iter().collect(),
            Query::Is2(id) => self.is2(id),
            Query::Is3(id) => self.is3(id),
            Query::Is4(id) => {
                let message = self.messages.get(&id);
                let row = |message: &Message| json!([message.created, message.content]);
                message.map(row).into_iter().collect()
            }
            Query::Is5(id) => {
                let message = self.messages.get(&id);
                message
                    .map(|message| self.name(message.creator))
                    .into_iter()
                    .collect()
            }
            Query::Is6(id) => self.is6(id),
            Query::Is7(id) => self.is7(id),
        };
        rows.into()
    }

    fn is2(&self, id: PersonId) -> Vec<Value> {
        let mut own: Vec<&Message> = self
            .messages
            .values()
            .filter(|message| message.creator == id)
            .collect();
        own.sort_by_key(|message| Reverse((message.created, message.id)));
        let row = |message: &&Message| {
            let post = self.thread(message.id).pop().unwrap();
            let start = json!([message.id, message.content, message.created, post.id]);
            joined(start, self.name(post.creator))
        };
        own.iter().take(10).map(row).collect()
    }

    fn is3(&self, id: PersonId) -> Vec<Value> {
        let mut friends = self.friends(id);
        friends.sort_by_key(|(friend, since)| (Reverse(*since), *friend));
        friends
            .into_iter()
            .map(|(friend, since)| joined(self.name(friend), json!([since])))
            .collect()
    }

    fn is6(&self, id: MessageId) -> Vec<Value> {
        if !self.messages.contains_key(&id) {
            return Vec::new();
        }
        let post = self.thread(id).pop().unwrap();
        let Place::Forum(forum) = post.place else {
            panic!("a thread begins with a comment")
        };
        let forum = &self.forums[&forum.0];
        vec![joined(
            json!([forum.id, forum.title]),
            self.name(forum.moderator),
        )]
    }

    fn is7(&self, id: MessageId) -> Vec<Value> {
        let mut replies = self.replies(id);
        replies.sort_by_key(|reply| (Reverse(reply.created), reply.creator, reply.id));
        let row = |reply: &&Message| {
            let author = self.messages[&id].creator;
            let knows = self
                .friends(author)
                .iter()
                .any(|(friend, _)| *friend == reply.creator);
            let start = json!([reply.id, reply.content, reply.created]);
            joined(joined(start, self.name(reply.creator)), json!([knows]))
        };
        replies.iter().map(row).collect()
    }

    /// A message and those above it, up to the post.
    fn thread(&self, id: MessageId) -> Vec<&Message> {
        let mut thread = vec![&self.messages[&id]];
        while let Place::Reply(to) = thread[thread.len() - 1].place {
            thread.push(&self.messages[&to]);
        }
        thread
    }

    fn replies(&self, id: MessageId) -> Vec<&Message> {
        let replies = self.messages.values();
        replies
            .filter(|message| message.place == Place::Reply(id))
            .collect()
    }

    fn friends(&self, id: PersonId) -> Vec<(PersonId, Timestamp)> {
        let of = |(one, other, since): &(PersonId, PersonId, Timestamp)| match id {
            _ if *one == id => Some((*other, *since)),
            _ if *other == id => Some((*one, *since)),
            _ => None,
        };
        self.friendships.iter().filter_map(of).collect()
    }

    fn name(&self, id: PersonId) -> Value {
        let name = &self.persons[&id].name;
        json!([name.id, name.first, name.last])
    }

    /// The messages that a query takes: thesis table 6.3, for the fan-out and the depth that this one has, less what is saved
    /// since a server takes all steps that it can and asks each other one once.
    pub fn expected(&self, query: Query, form: Form, placement: &Placement) -> Expected {
        // Requests, and answers besides those, of the multi-hop form; plain calls.
        let (requests, answers, calls) = match query {
            Query::Is2(id) => Tree::of(self.is2_paths(id, placement)).counts(),
            Query::Is3(id) => {
                let friend = |(friend, _): &(PersonId, Timestamp)| {
                    vec![placement.index(id), placement.index(*friend)]
                };
                Tree::of(self.friends(id).iter().map(friend).collect()).counts()
            }
            Query::Is7(id) => Tree::of(self.is7_paths(id, placement)).counts(),
            _ => self.hops(query),
        };
        Expected::new(form, requests, answers, calls)
    }

    /// Where the rows of IS2 lead: to each message, to each above it, and to the author of the post, unless that is the
    /// person.
    fn is2_paths(&self, id: PersonId, placement: &Placement) -> Vec<Vec<usize>> {
        let rows = self.is2(id);
        let path = |row: &Value| {
            let thread = self.thread(MessageId(row[0].as_i64().unwrap()));
            let author = thread[thread.len() - 1].creator;
            let mut path = vec![placement.index(id)];
            path.extend(thread.iter().map(|message| placement.index(message.id)));
            path.extend((author != thread[0].creator).then(|| placement.index(author)));
            path
        };
        rows.iter().map(path).collect()
    }

    /// Where the parts of IS7 come from: each reply and its author, and the author of the message.
    fn is7_paths(&self, id: MessageId, placement: &Placement) -> Vec<Vec<usize>> {
        let replies = self.replies(id);
        if replies.is_empty() {
            return Vec::new();
        }
        let from = placement.index(id);
        let reply = |reply: &&Message| {
            vec![
                from,
                placement.index(reply.id),
                placement.index(reply.creator),
            ]
        };
        let mut paths: Vec<_> = replies.iter().map(reply).collect();
        paths.push(vec![from, placement.index(self.messages[&id].creator)]);
        paths
    }

    /// The same by a request for each vertex, as in the thesis: requests, answers besides those, plain calls.
    fn hops(&self, query: Query) -> (u64, u64, u64) {
        match query {
            Query::Is1(_) | Query::Is4(_) => (1, 1, 1),
            Query::Is2(id) => {
                let rows = self.is2(id);
                let hops = |row: &Value| {
                    let thread = self.thread(MessageId(row[0].as_i64().unwrap()));
                    let other = thread[0].creator != thread[thread.len() - 1].creator;
                    thread.len() as u64 + u64::from(other)
                };
                let requests = 1 + rows.iter().map(hops).sum::<u64>();
                (requests, rows.len().max(1) as u64, requests)
            }
            Query::Is3(id) => {
                let friends = self.friends(id).len() as u64;
                (1 + friends, friends.max(1), 1 + friends)
            }
            Query::Is5(id) => match self.messages.contains_key(&id) {
                true => (2, 1, 2),
                false => (1, 1, 1),
            },
            Query::Is6(id) => match self.messages.contains_key(&id) {
                true => {
                    let hops = self.thread(id).len() as u64 + 2;
                    (hops, 1, hops)
                }
                false => (1, 1, 1),
            },
            Query::Is7(id) => match self.replies(id).len() as u64 {
                0 => (1, 1, 1),
                replies => (2 + 2 * replies, 1 + replies, 2 + 2 * replies),
            },
        }
    }

    /// The messages that a query takes by a request for each vertex.
    pub fn one_by_one(&self, query: Query, form: Form) -> Expected {
        let (requests, answers, calls) = self.hops(query);
        Expected::new(form, requests, answers, calls)
    }
}

impl Expected {
    fn new(form: Form, requests: u64, answers: u64, calls: u64) -> Self {
        match form {
            Form::Dpc => Self {
                client: 1 + answers,
                all: requests + answers,
            },
            Form::Rpc => Self {
                client: 2 * calls,
                all: 2 * calls,
            },
        }
    }
}

/// Who asks whom, if the rows of a query lead from server to server on these paths: all that one server asks another about
/// at one time is a request.
struct Tree {
    answers: bool,
    children: Vec<Self>,
}

impl Tree {
    fn of(mut paths: Vec<Vec<usize>>) -> Self {
        let mut next: std::collections::BTreeMap<usize, Vec<Vec<usize>>> = Default::default();
        let mut answers = paths.is_empty();
        for path in &mut paths {
            let here = path[0];
            let stay = path.iter().take_while(|server| **server == here).count();
            path.drain(..stay);
            match path.first() {
                Some(server) => next.entry(*server).or_default().push(path.clone()),
                None => answers = true,
            }
        }
        Self {
            answers,
            children: next.into_values().map(Self::of).collect(),
        }
    }

    /// Requests, answers, and plain calls.
    fn counts(&self) -> (u64, u64, u64) {
        let mut counts = (1, u64::from(self.answers), 1);
        for child in &self.children {
            let (requests, answers, calls) = child.counts();
            counts = (counts.0 + requests, counts.1 + answers, counts.2 + calls);
        }
        counts
    }
}

fn is1(person: &Person) -> Value {
    json!([
        person.name.first,
        person.name.last,
        person.birthday,
        person.location_ip,
        person.browser,
        person.city,
        person.gender,
        person.joined,
    ])
}

fn joined(one: Value, other: Value) -> Value {
    let values = [one, other]
        .into_iter()
        .flat_map(|part| part.as_array().unwrap().clone());
    values.collect()
}
