//! IS1, who a person is: first and last name, birthday, address, browser, city, gender, and since when.
//!
//! ```text
//!   client ──▶ person ──▶ client
//! ```

use crate::client::{Answers, Client};
use crate::model::{PersonId, Timestamp};
use crate::server::Server;
use crate::vertices::vertices;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use wallaby::CallError;

/// Who somebody is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Row {
    first: String,
    last: String,
    birthday: Timestamp,
    location_ip: String,
    browser: String,
    city: i64,
    gender: String,
    joined: Timestamp,
}

/// The query's hop.
#[wallaby::service(package = "graph")]
pub trait Profile {
    /// At the person's server.
    async fn person(id: PersonId) -> Option<Row>;
}

#[wallaby::serve]
impl Profile for Server {
    async fn person(&self, id: PersonId) -> Option<Row> {
        self.read(|shard| shard.person(id).cloned().map(Row::from))
    }
}

/// The query as a call of one hop.
///
/// # Errors
///
/// If it fails.
pub async fn by_dpc(client: &Client, person: PersonId) -> Result<Answers<Row>, CallError> {
    let call = profile::within(client.at(person)).person(person);
    Ok(client.collect(call).await?.found())
}

/// The query as a plain call.
///
/// # Errors
///
/// If it fails.
pub async fn by_rpc(client: &Client, person: PersonId) -> Result<Option<Row>, CallError> {
    let person = vertices::within(client.at(person)).person(person).await?;
    Ok(person.map(Row::from))
}

impl From<crate::model::Person> for Row {
    fn from(person: crate::model::Person) -> Self {
        Self {
            first: person.name.first,
            last: person.name.last,
            birthday: person.birthday,
            location_ip: person.location_ip,
            browser: person.browser,
            city: person.city,
            gender: person.gender,
            joined: person.joined,
        }
    }
}

impl super::Row for Row {
    const COLUMNS: &'static [&'static str] = &[
        "firstName",
        "lastName",
        "birthday",
        "locationIP",
        "browserUsed",
        "cityId",
        "gender",
        "creationDate",
    ];

    fn values(self) -> Vec<Value> {
        vec![
            self.first.into(),
            self.last.into(),
            json!(self.birthday),
            self.location_ip.into(),
            self.browser.into(),
            self.city.into(),
            self.gender.into(),
            json!(self.joined),
        ]
    }
}
