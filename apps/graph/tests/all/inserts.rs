//! Inserts, while queries go on, and after a restart.
#![allow(clippy::unwrap_used, reason = "a test that fails says where")]

use crate::common::{Reference, cluster, network, store};
use serde_json::Value;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use wallaby::Code;
use wallaby_graph::census;
use wallaby_graph::client::Client;
use wallaby_graph::insert::insert;
use wallaby_graph::model::Insert;
use wallaby_graph::query::{Form, Query};

async fn result(query: Query, form: Form, client: &Client) -> Value {
    let outcome = query.ask(form, client).await;
    let outcome = outcome.unwrap_or_else(|error| panic!("{query} by {form}: {error}"));
    outcome.rows.into_iter().map(Value::from).collect()
}

#[tokio::test]
async fn what_is_inserted_is_found_and_outlives_the_servers() {
    let inserts = network(30, 11);
    let (loaded, inserted) = inserts.split_at(inserts.len() / 3);
    let reference = Reference::of(&inserts);
    let (_scratch, store) = store(loaded);
    let (servers, client) = cluster(&store, 4).await;
    for one in inserted {
        insert(&client, one.clone()).await.unwrap();
    }
    let counts = census::report(&client, 0).await.unwrap().counts;
    servers.end().await;
    // A restart, with another number of servers.
    let (servers, client) = cluster(&store, 3).await;
    assert_eq!(census::report(&client, 0).await.unwrap().counts, counts);
    for query in reference.queries() {
        for form in Form::BOTH {
            let found = result(query, form, &client).await;
            assert_eq!(found, reference.result(query), "{query} by {form}");
        }
    }
    servers.end().await;
}

#[tokio::test]
async fn inserts_may_be_repeated_and_come_in_any_order() {
    let inserts = network(20, 12);
    let reference = Reference::of(&inserts);
    let (_scratch, empty) = store(&[]);
    let (servers, client) = cluster(&empty, 3).await;
    for one in inserts.iter().rev().chain(&inserts) {
        insert(&client, one.clone()).await.unwrap();
    }
    for query in reference.queries() {
        assert_eq!(
            result(query, Form::Dpc, &client).await,
            reference.result(query),
            "{query}"
        );
    }
    let (_scratch, all) = store(&inserts);
    let (others, other) = cluster(&all, 2).await;
    let counts = census::report(&other, 0).await.unwrap().counts;
    assert_eq!(census::report(&client, 0).await.unwrap().counts, counts);
    servers.end().await;
    others.end().await;
}

#[tokio::test]
async fn an_id_cannot_be_taken_twice() {
    let inserts = network(5, 13);
    let (_scratch, store) = store(&inserts);
    let (servers, client) = cluster(&store, 3).await;
    let before = census::report(&client, 0).await.unwrap().counts;
    let mut refused = 0;
    for one in &inserts {
        let other = match one.clone() {
            Insert::Person(mut person) => {
                person.gender.push('x');
                Insert::Person(person)
            }
            Insert::Forum(mut forum) => {
                forum.title.push('x');
                Insert::Forum(forum)
            }
            Insert::Message(mut message) => {
                message.content.push('x');
                Insert::Message(message)
            }
            _ => continue,
        };
        let error = insert(&client, other).await.unwrap_err();
        assert_eq!(error.status().unwrap().code(), Code::AlreadyExists);
        refused += 1;
    }
    assert!(refused > 10);
    assert_eq!(census::report(&client, 0).await.unwrap().counts, before);
    servers.end().await;
}

/// A query that goes on while others insert finds what there was at some moment of its run.
#[tokio::test]
async fn queries_see_an_insert_wholly_or_not_at_all() {
    let inserts = network(40, 14);
    let begin = inserts.len() / 2;
    let (_scratch, store) = store(&inserts[..begin]);
    let (servers, client) = cluster(&store, 4).await;
    let histories = Arc::new(histories(&inserts, begin));
    let (sent, done) = (
        Arc::new(AtomicUsize::new(begin)),
        Arc::new(AtomicUsize::new(begin)),
    );
    let over = Arc::new(AtomicBool::new(false));
    let mut readers = tokio::task::JoinSet::new();
    for reader in 0..4 {
        let (histories, client) = (Arc::clone(&histories), client.clone());
        let (sent, done, over) = (Arc::clone(&sent), Arc::clone(&done), Arc::clone(&over));
        readers.spawn(async move {
            let mut read = 0;
            while !over.load(Ordering::SeqCst) {
                for (query, history) in histories.iter().skip(reader).step_by(2) {
                    let form = Form::BOTH[reader / 2];
                    let first = done.load(Ordering::SeqCst);
                    let found = result(*query, form, &client).await;
                    let last = sent.load(Ordering::SeqCst);
                    history.assert_has(&found, first, last, *query);
                    read += 1;
                }
            }
            read
        });
    }
    for (number, one) in inserts.iter().enumerate().skip(begin) {
        sent.store(number + 1, Ordering::SeqCst);
        insert(&client, one.clone()).await.unwrap();
        done.store(number + 1, Ordering::SeqCst);
    }
    over.store(true, Ordering::SeqCst);
    let read: usize = readers.join_all().await.into_iter().sum();
    assert!(read > 100, "{read} reads are too few to tell");
    servers.end().await;
}

/// The results that a query has had, each with the number of inserts since which.
#[derive(Default)]
struct History(Vec<(usize, Value)>);

impl History {
    /// What was found is a result that the query had between these numbers of inserts.
    ///
    /// Of replies, what there is and who knows whom are facts of different vertices: both as of some moment.
    fn assert_has(&self, found: &Value, first: usize, last: usize, query: Query) {
        let after = |(since, _): &&(usize, Value)| *since <= first;
        let begin = self.0.iter().take_while(after).count().saturating_sub(1);
        let had: Vec<&Value> = self.0[begin..]
            .iter()
            .take_while(|(since, _)| *since <= last)
            .map(|(_, result)| result)
            .collect();
        let is_had = match query {
            Query::Is7(_) => {
                had.iter()
                    .any(|had| without_flags(had) == without_flags(found))
                    && had.iter().any(|had| agree(&flags(had), &flags(found)))
            }
            _ => had.contains(&found),
        };
        assert!(is_had, "{query}: {found}\nof {had:?}");
    }
}

fn without_flags(result: &Value) -> Vec<&[Value]> {
    let rows = result.as_array().unwrap().iter();
    rows.map(|row| &row.as_array().unwrap()[..6]).collect()
}

/// By author of a reply: whether the author of the message is known.
fn flags(result: &Value) -> BTreeMap<i64, bool> {
    let mut flags = BTreeMap::new();
    for row in result.as_array().unwrap() {
        let (author, knows) = (row[3].as_i64().unwrap(), row[6].as_bool().unwrap());
        let other = flags.insert(author, knows);
        assert!(
            other.is_none_or(|other| other == knows),
            "half a friendship: {result}"
        );
    }
    flags
}

/// Who is in both has the same flag in both.
fn agree(one: &BTreeMap<i64, bool>, other: &BTreeMap<i64, bool>) -> bool {
    one.iter()
        .all(|(author, knows)| other.get(author).is_none_or(|other| other == knows))
}

/// The queries whose results grow most while all is inserted from `begin` on.
fn histories(inserts: &[Insert], begin: usize) -> Vec<(Query, History)> {
    const WATCHED: usize = 24;
    let mut reference = Reference::of(&inserts[..begin]);
    let end = Reference::of(inserts);
    let mut watched = end.queries();
    watched.retain(|query| matches!(query, Query::Is2(_) | Query::Is3(_) | Query::Is7(_)));
    let rows =
        |reference: &Reference, query| reference.result(query).as_array().map_or(0, Vec::len);
    watched.sort_by_cached_key(|query| Reverse(rows(&end, *query) - rows(&reference, *query)));
    watched.truncate(WATCHED);
    let mut histories: Vec<(Query, History)> = watched
        .into_iter()
        .map(|query| (query, History::default()))
        .collect();
    for number in begin..=inserts.len() {
        for (query, history) in &mut histories {
            let result = reference.result(*query);
            if history.0.last().is_none_or(|(_, last)| *last != result) {
                history.0.push((number, result));
            }
        }
        if let Some(next) = inserts.get(number) {
            reference.insert(next.clone());
        }
    }
    histories
}
