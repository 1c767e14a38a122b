//! IS1, who a person is: first and last name, birthday, address, browser, city, gender, and since when.
//!
//! ```text
//!   client ──▶ person ──▶ client
//! ```

use crate::client::{Answers, Client};
use crate::model::{Person, PersonId};
use crate::server::Server;
use serde::{Deserialize, Serialize};
use wallaby::CallError;

/// The query's hop.
#[wallaby::service(package = "graph")]
pub trait Profile {
    /// At the person's server.
    async fn person(id: PersonId) -> Option<Row>;
}

#[wallaby::serve]
impl Profile for Server {
    async fn person(&self, id: PersonId) -> Option<Row> {
        let person = self.read(|shard| shard.person(id).cloned())?;
        Some(Row { person })
    }
}

/// The query as a call of one hop.
pub async fn by_dpc(client: &Client, person: PersonId) -> Result<Answers<Row>, CallError> {
    let call = profile::within(client.at(person)).person(person);
    client.rows(call).await
}

/// The query as a plain call: with one hop it is the same.
pub async fn by_rpc(client: &Client, person: PersonId) -> Result<Option<Row>, CallError> {
    profile::within(client.at(person)).person(person).await
}

/// Who somebody is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Row {
    person: Person,
}

columns!(Row {
    "firstName": person.name.first,
    "lastName": person.name.last,
    "birthday": person.birthday,
    "locationIP": person.location_ip,
    "browserUsed": person.browser,
    "cityId": person.city,
    "gender": person.gender,
    "creationDate": person.joined,
});
