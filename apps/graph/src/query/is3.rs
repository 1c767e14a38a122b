//! IS3, a person's friends: since when, and who they are.
//!
//! ```text
//!   client ──▶ person ──┬─▶ some of the friends ──▶ client
//!                       ├─▶ others, at another server ──▶ client
//!                       └─▶ client: those at the person's own
//! ```

use super::step::{self, ALL, Found, ONE_MESSAGE, by_calls};
use crate::client::{Answers, Client};
use crate::model::{Name, PersonId, Timestamp, Vertex};
use crate::server::Server;
use crate::shard::Shard;
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::sync::Arc;
use wallaby::{CallError, Many, Request, Status};

/// The query's hops. An answer has the rows that one server knows.
#[wallaby::service(package = "graph")]
pub trait Friends {
    /// At the person's server.
    async fn person(id: PersonId) -> Many<Vec<Row>>;
    /// At each other server that has friends of the person.
    async fn friends(steps: Vec<Step>) -> Many<Vec<Row>>;
    /// The same as a plain call: what is left to ask comes back.
    async fn find(steps: Vec<Step>) -> Found<Step, Row>;
}

#[wallaby::serve]
impl Friends for Server {
    async fn person(
        self: &Arc<Self>,
        request: Request<Many<Vec<Row>>>,
        id: PersonId,
    ) -> Result<(), Status> {
        self.friends(request, vec![Step::Person(id)]).await
    }

    async fn friends(
        &self,
        request: Request<Many<Vec<Row>>>,
        steps: Vec<Step>,
    ) -> Result<(), Status> {
        let found = self.follow(steps, ALL)?;
        for rows in found.rows {
            request.reply(rows).await?;
        }
        for (other, steps) in found.next {
            let rest = friends::friends(steps);
            request.delegate(self.numbered(other), rest).await?;
        }
        Ok(())
    }

    async fn find(&self, steps: Vec<Step>) -> Result<Found<Step, Row>, Status> {
        self.follow(steps, ONE_MESSAGE)
    }
}

/// The query as one call.
pub async fn by_dpc(client: &Client, person: PersonId) -> Result<Answers<Row>, CallError> {
    let call = friends::within(client.at(person)).person(person);
    let mut answers = client.rows(call).await?;
    sort(&mut answers.rows);
    Ok(answers)
}

/// The query as plain calls.
pub async fn by_rpc(client: &Client, person: PersonId) -> Result<Vec<Row>, CallError> {
    let find = |server, steps| async move { friends::within(server).find(steps).await };
    let mut rows = by_calls(client, Step::Person(person), find).await?;
    sort(&mut rows);
    Ok(rows)
}

/// The latest friendship first, of equal age the one with the least id.
fn sort(rows: &mut [Row]) {
    rows.sort_by_key(|row| (Reverse(row.since), row.friend.id));
}

/// What is asked of a server, each at one vertex.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Step {
    /// The person: which friends?
    Person(PersonId),
    /// One of them, and since when: what name?
    Friend(PersonId, Timestamp),
}

/// A friend.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Row {
    friend: Name,
    since: Timestamp,
}

columns!(Row {
    "personId": friend.id,
    "firstName": friend.first,
    "lastName": friend.last,
    "friendshipCreationDate": since,
});

impl step::Step for Step {
    type Row = Row;

    fn at(&self) -> Vertex {
        match self {
            Self::Person(id) | Self::Friend(id, _) => (*id).into(),
        }
    }

    fn take(self, shard: &Shard, rows: &mut Vec<Row>, next: &mut Vec<Self>) -> Result<(), Status> {
        match self {
            Self::Person(id) => {
                let friends = shard.friends(id);
                next.extend(friends.map(|(friend, since)| Self::Friend(friend, since)));
            }
            Self::Friend(id, since) => {
                let friend = shard.name(id).cloned();
                rows.extend(friend.map(|friend| Row { friend, since }));
            }
        }
        Ok(())
    }
}
