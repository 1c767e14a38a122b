//! IS3, a person's friends: since when, and who they are.
//!
//! ```text
//!   client ──▶ person ──┬─▶ some of the friends ──▶ client
//!                       └─▶ others, at another server ──▶ client
//! ```

use crate::client::{Answers, Client};
use crate::model::{Name, PersonId, Timestamp};
use crate::placement::Placement;
use crate::server::Server;
use crate::vertices::vertices;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use wallaby::{CallError, Many, Request, Status};

/// A friend.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Row {
    friend: Name,
    since: Timestamp,
}

/// The query's hops. An answer has the rows that one server knows.
#[wallaby::service(package = "graph")]
pub trait Friends {
    /// At the person's server.
    async fn person(id: PersonId) -> Many<Vec<Row>>;
    /// At each server that has friends of the person.
    async fn friends(friends: Vec<(PersonId, Timestamp)>) -> Many<Vec<Row>>;
}

#[wallaby::serve]
impl Friends for Server {
    async fn person(&self, request: Request<Many<Vec<Row>>>, id: PersonId) -> Result<(), Status> {
        let friends = self.read(|shard| shard.friends(id).collect());
        for (server, friends) in by_server(self.placement(), friends) {
            let server = &self.placement().servers()[server];
            request.delegate(server, friends::friends(friends)).await?;
        }
        Ok(())
    }

    async fn friends(&self, friends: Vec<(PersonId, Timestamp)>) -> Vec<Row> {
        self.read(|shard| {
            let row = |(id, since)| {
                let friend = shard.name(id)?.clone();
                Some(Row { friend, since })
            };
            friends.into_iter().filter_map(row).collect()
        })
    }
}

/// The query as one call.
///
/// # Errors
///
/// If it fails.
pub async fn by_dpc(client: &Client, person: PersonId) -> Result<Answers<Row>, CallError> {
    let call = friends::within(client.at(person)).person(person);
    let answers = client.collect(call).await?;
    let mut items = answers.items.concat();
    sort(&mut items);
    Ok(Answers {
        items,
        trace: answers.trace,
    })
}

/// The query as plain calls.
///
/// # Errors
///
/// If one of them fails.
pub async fn by_rpc(client: &Client, person: PersonId) -> Result<Vec<Row>, CallError> {
    let friends = vertices::within(client.at(person)).friends(person).await?;
    let since: HashMap<_, _> = friends.iter().copied().collect();
    let calls: Vec<_> = by_server(client.placement(), friends)
        .into_iter()
        .map(|(server, friends)| {
            let ids = friends.into_iter().map(|(id, _)| id).collect();
            vertices::within(client.server(server)).names(ids)
        })
        .collect();
    let mut rows = Vec::new();
    for names in calls {
        rows.extend(names.await?.into_iter().filter_map(|friend| {
            let since = *since.get(&friend.id)?;
            Some(Row { friend, since })
        }));
    }
    sort(&mut rows);
    Ok(rows)
}

/// The latest friendship first, of equal age the one with the least id.
fn sort(rows: &mut [Row]) {
    rows.sort_by_key(|row| (Reverse(row.since), row.friend.id));
}

fn by_server(
    placement: &Placement,
    friends: Vec<(PersonId, Timestamp)>,
) -> BTreeMap<usize, Vec<(PersonId, Timestamp)>> {
    let mut servers: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for friend in friends {
        let server = servers.entry(placement.index(friend.0)).or_default();
        server.push(friend);
    }
    servers
}

impl super::Row for Row {
    const COLUMNS: &'static [&'static str] = &[
        "personId",
        "firstName",
        "lastName",
        "friendshipCreationDate",
    ];

    fn values(self) -> Vec<Value> {
        vec![
            json!(self.friend.id),
            self.friend.first.into(),
            self.friend.last.into(),
            json!(self.since),
        ]
    }
}
