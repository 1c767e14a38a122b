//! Queries about whole made-up networks: the results that LDBC specifies, the same from both forms, and by as many
//! messages as their shape asks for.
#![allow(clippy::unwrap_used, reason = "a test that fails says where")]

use crate::common::cluster::Cluster;
use crate::common::{Expected, Reference, cluster, network, store};
use serde_json::Value;
use wallaby::{Code, Endpoint, Status};
use wallaby_graph::census::Meter;
use wallaby_graph::client::Client;
use wallaby_graph::fact::Fact;
use wallaby_graph::insert::inserts;
use wallaby_graph::model::{
    Forum, ForumId, Insert, Message, MessageId, Name, Person, PersonId, Place, Timestamp,
};
use wallaby_graph::placement::Placement;
use wallaby_graph::query::{Form, Query};

async fn result(query: Query, form: Form, client: &Client) -> Value {
    let outcome = query.ask(form, client).await;
    let outcome = outcome.unwrap_or_else(|error| panic!("{query} by {form}: {error}"));
    outcome.rows.into_iter().map(Value::from).collect()
}

#[tokio::test]
async fn results_are_those_that_ldbc_specifies() {
    for (servers, seed) in [(1, 1), (7, 2)] {
        let inserts = network(35, seed);
        let reference = Reference::of(&inserts);
        let (_scratch, store) = store(&inserts);
        let (servers, client) = cluster(&store, servers).await;
        for query in reference.queries() {
            let expected = reference.result(query);
            for form in Form::BOTH {
                let found = result(query, form, &client).await;
                assert_eq!(found, expected, "{query} by {form}");
            }
        }
        servers.end().await;
    }
}

#[tokio::test]
async fn results_are_the_same_over_every_transport() {
    let inserts = network(20, 4);
    let reference = Reference::of(&inserts);
    for transport in ["tcp", "unix", "udp"] {
        let (scratch, store) = store(&inserts);
        let listen = |server: u32| match transport {
            "unix" => format!("unix://{}/{server}.sock", scratch.path().display()),
            _ => format!("{transport}://127.0.0.1:0"),
        };
        let servers = Cluster::start(&store, 3, listen).await;
        let endpoint = Endpoint::bind(&listen(0)).await.unwrap();
        let client = Client::new(endpoint, servers.placement().clone());
        for query in reference.queries().into_iter().step_by(7) {
            for form in Form::BOTH {
                let found = result(query, form, &client).await;
                assert_eq!(
                    found,
                    reference.result(query),
                    "{query} by {form} over {transport}"
                );
            }
        }
        servers.end().await;
    }
}

#[tokio::test]
async fn a_client_that_does_not_listen_is_answered_too() {
    let inserts = network(20, 5);
    let reference = Reference::of(&inserts);
    let (_scratch, store) = store(&inserts);
    let (servers, client) = cluster(&store, 3).await;
    let deaf = Client::new(Endpoint::client().unwrap(), client.placement().clone());
    for query in reference.queries().into_iter().step_by(11) {
        assert_eq!(
            result(query, Form::Dpc, &deaf).await,
            reference.result(query),
            "{query}"
        );
    }
    servers.end().await;
}

/// Thesis table 6.3, per query, for the fan-out and depth that each has.
#[tokio::test]
async fn queries_take_as_many_messages_as_their_shape_asks_for() {
    let inserts = network(40, 6);
    let reference = Reference::of(&inserts);
    let (_scratch, store) = store(&inserts);
    let (servers, client) = cluster(&store, 5).await;
    for query in reference.queries().into_iter().step_by(13) {
        for form in Form::BOTH {
            let expected = reference.expected(query, form, client.placement());
            assert_eq!(
                count(query, form, &client).await,
                expected,
                "{query} by {form}"
            );
            let most = reference.one_by_one(query, form);
            assert!(
                expected.all <= most.all && expected.client <= most.client,
                "{query} by {form}: {expected:?}, {most:?}"
            );
        }
    }
    servers.end().await;
}

/// The messages of one query. Of three countings the least: now and then a connection also says how much it can take.
async fn count(query: Query, form: Form, client: &Client) -> Expected {
    // Connects who has not talked to each other yet.
    query.ask(form, client).await.unwrap();
    let mut least = Expected {
        client: u64::MAX,
        all: u64::MAX,
    };
    for _ in 0..3 {
        let meter = Meter::begin(client).await.unwrap();
        query.ask(form, client).await.unwrap();
        let messages = meter.end(client).await.unwrap();
        least.client = least.client.min(messages.client);
        least.all = least.all.min(messages.all);
    }
    least
}

/// The input that thesis table 6.3 assumes: ten messages, replies one deep, friends at ten servers.
#[tokio::test]
async fn messages_of_the_thesis_inputs_are_not_more_than_in_its_table() {
    let (_scratch, store) = store(&thesis_network());
    let (servers, client) = cluster(&store, 10).await;
    let table = [
        // Query, by DPC in total and at the client, by RPC.
        (Query::Is1(PersonId(0)), 4, 4, 4),
        (Query::Is2(PersonId(0)), 61, 21, 82),
        (Query::Is3(PersonId(0)), 22, 12, 22),
        (Query::Is4(MessageId(0)), 2, 2, 2),
        (Query::Is5(MessageId(0)), 3, 2, 4),
        (Query::Is6(MessageId(0)), 6, 3, 8),
        (Query::Is6(MessageId(1000)), 7, 3, 10),
        (Query::Is7(MessageId(0)), 54, 23, 66),
    ];
    for (query, all, at_client, rpc) in table {
        let dpc = count(query, Form::Dpc, &client).await;
        assert!(
            dpc.all <= all && dpc.client <= at_client,
            "{query}: {dpc:?}"
        );
        let plain = count(query, Form::Rpc, &client).await;
        assert!(
            plain.all <= rpc && dpc.all <= plain.all,
            "{query}: {plain:?}"
        );
        eprintln!("{query}: {dpc:?}, plain {plain:?}");
    }
    servers.end().await;
}

/// Person 0 has a hundred friends and wrote the comments 1000 to 1009, each on a post of another person; ten persons
/// commented on the post 0.
fn thesis_network() -> Vec<Insert> {
    let mut inserts: Vec<Insert> = (0..=100).map(|id| Insert::Person(person(id))).collect();
    inserts.push(Insert::Forum(Forum {
        id: ForumId(0),
        title: "Wall".to_owned(),
        created: Timestamp(0),
        moderator: PersonId(9),
    }));
    let post = Place::Forum(ForumId(0));
    for number in 0..10 {
        inserts.push(message(number, 1 + number, post));
    }
    for number in 0..10 {
        inserts.push(message(
            1000 + number,
            0,
            Place::Reply(MessageId(1 + number % 9)),
        ));
        inserts.push(message(
            2000 + number,
            20 + number,
            Place::Reply(MessageId(0)),
        ));
    }
    inserts.extend(
        (1..=100).map(|other| Insert::Friendship(PersonId(0), PersonId(other), Timestamp(other))),
    );
    inserts
}

/// Long texts go in messages that every transport takes, however many of them one server has.
#[tokio::test]
async fn long_replies_are_told_in_several_messages() {
    const REPLIES: i64 = 30;
    let mut inserts = vec![Insert::Person(person(1)), Insert::Person(person(2))];
    inserts.extend((0..=REPLIES).map(|id| {
        let place = match id {
            0 => Place::Forum(ForumId(404)),
            _ => Place::Reply(MessageId(0)),
        };
        match message(id, 1 + id % 2, place) {
            Insert::Message(message) => Insert::Message(Message {
                content: "ä".repeat(4_000),
                ..message
            }),
            other => other,
        }
    }));
    let (_scratch, store) = store(&inserts);
    let listen = |_| "udp://127.0.0.1:0".to_owned();
    let servers = Cluster::start(&store, 2, listen).await;
    let endpoint = Endpoint::bind(&listen(0)).await.unwrap();
    let client = Client::new(endpoint, servers.placement().clone());
    for form in Form::BOTH {
        for (query, rows) in [
            (Query::Is7(MessageId(0)), REPLIES as usize),
            (Query::Is2(PersonId(2)), 10),
        ] {
            let found = result(query, form, &client).await;
            assert_eq!(found.as_array().unwrap().len(), rows, "{query} by {form}");
        }
    }
    servers.end().await;
}

/// What is not there makes no row, wherever on the way it is missing.
#[tokio::test]
async fn rows_whose_vertices_are_missing_are_left_out() {
    let post = Place::Forum(ForumId(404));
    let friend = |friend| Insert::Friendship(PersonId(1), PersonId(friend), Timestamp(friend));
    let inserts = [
        Insert::Person(person(1)),
        Insert::Person(person(2)),
        message(1, 2, post),
        message(2, 404, post),
        message(3, 1, Place::Reply(MessageId(1))),
        message(4, 1, Place::Reply(MessageId(2))),
        message(5, 1, Place::Reply(MessageId(404))),
        message(6, 404, Place::Reply(MessageId(3))),
        friend(2),
        friend(404),
    ];
    let (_scratch, store) = store(&inserts);
    let (servers, client) = cluster(&store, 3).await;
    // An edge to what is nowhere; messages share the space of ids.
    let dangling = Fact::edge(MessageId(1), MessageId(405), Timestamp(0));
    inserts::within(client.at(MessageId(1)))
        .learn(vec![dangling])
        .await
        .unwrap();
    for (query, rows) in [
        (Query::Is2(PersonId(1)), 1),
        (Query::Is3(PersonId(1)), 1),
        (Query::Is3(PersonId(404)), 0),
        (Query::Is5(MessageId(2)), 0),
        (Query::Is6(MessageId(1)), 0),
        (Query::Is6(MessageId(5)), 0),
        (Query::Is7(MessageId(1)), 1),
        (Query::Is7(MessageId(3)), 0),
        (Query::Is7(MessageId(404)), 0),
    ] {
        for form in Form::BOTH {
            // A person who is only somebody's friend has friends, but is not there.
            let found = result(query, form, &client).await;
            assert_eq!(
                found.as_array().unwrap().len(),
                rows,
                "{query} by {form}: {found}"
            );
        }
    }
    servers.end().await;
}

/// Comments on each other in a circle: no data set has them, but who asks must not wait forever, and not hear of less
/// rows than there would be.
#[tokio::test]
async fn threads_without_an_end_are_an_error() {
    let inserts = [
        Insert::Person(person(1)),
        message(1, 1, Place::Reply(MessageId(2))),
        message(2, 1, Place::Reply(MessageId(1))),
    ];
    let (_scratch, store) = store(&inserts);
    // Within one server, which goes on by itself, and from one to the other.
    for number in [1, 2] {
        let (servers, client) = cluster(&store, number).await;
        for query in [Query::Is2(PersonId(1)), Query::Is6(MessageId(1))] {
            for form in Form::BOTH {
                let error = query.ask(form, &client).await.unwrap_err();
                let code = error.status().map(Status::code);
                assert_eq!(
                    code,
                    Some(Code::ResourceExhausted),
                    "{query} by {form}: {error}"
                );
            }
        }
        servers.end().await;
    }
}

#[test]
fn placements_are_by_hash() {
    let servers = (0..3).map(|server| format!("mem://{server}").parse().unwrap());
    let placement = Placement::new(servers.collect()).unwrap();
    let servers: Vec<usize> = (0..8).map(|id| placement.index(PersonId(id))).collect();
    // Stores on disk depend on it: it may not change.
    assert_eq!(servers, [0, 2, 0, 2, 0, 0, 1, 2]);
}

fn person(id: i64) -> Person {
    Person {
        name: Name {
            id: PersonId(id),
            first: "A".to_owned(),
            last: "B".to_owned(),
        },
        gender: "female".to_owned(),
        birthday: Timestamp(0),
        joined: Timestamp(0),
        location_ip: String::new(),
        browser: String::new(),
        city: 0,
    }
}

fn message(id: i64, creator: i64, place: Place) -> Insert {
    Insert::Message(Message {
        id: MessageId(id),
        creator: PersonId(creator),
        created: Timestamp(id),
        content: format!("message {id}"),
        place,
    })
}
