//! What a server tells of its methods' messages of Protocol Buffers.

use std::collections::BTreeMap;

use anyhow::{Context, bail};
use bytes::Bytes;
use serde_json::Value;
use wallaby::reflection::{DESCRIPTORS, Follows, MethodDescription, Signature};
use wallaby::schema::Schema;
use wallaby::{Client, Code};
use wallaby_values::messages::{Files, MessageType, name_of};

use super::{MOST_TOLD, NO_JSON};

/// So many sets of files there are for a method at most: of what it takes, of what follows, and of what it gives.
const MOST_SETS: usize = 3;

/// The messages that a method takes and gives, and those that follow its requests.
pub(crate) struct Messages {
    argument: MessageType,
    items: Option<MessageType>,
    answer: MessageType,
}

/// Asks the server what the messages of so many methods look like, whose names begin with the prefix.
pub(super) async fn files(client: &Client, prefix: &str, methods: usize) -> anyhow::Result<Files> {
    let client = client.clone().budgets(MOST_TOLD);
    let mut sets = client.call(&DESCRIPTORS, (prefix.to_owned(),));
    let mut files = Files::default();
    let mut count = 0;
    while let Some(set) = sets.next().await {
        let set = match set {
            Err(error) if error.code() == Code::Unimplemented => {
                bail!("the server is too old to tell what messages look like")
            }
            set => set.context("cannot ask the server what messages look like")?,
        };
        let added = files.add(&set);
        added.context("what the server says of its messages is wrong")?;
        count += 1;
        if count >= methods * MOST_SETS {
            break;
        }
    }
    Ok(files)
}

/// The message that a schema names.
fn find(files: &Files, schema: Option<&Schema>) -> anyhow::Result<MessageType> {
    let name = schema.and_then(name_of);
    let name = name.context("the server does not name its messages")?;
    let message = files.message(name);
    message.with_context(|| format!("the server does not tell what a {name} looks like"))
}

/// What the messages of a method look like in a `.proto` file, and those inside them, by their full names.
pub(super) fn texts(
    files: &Files,
    method: &MethodDescription,
    texts: &mut BTreeMap<String, String>,
) {
    let Some(Signature {
        arguments,
        answer,
        follows,
        ..
    }) = &method.signature
    else {
        return;
    };
    let items = match follows {
        Follows::ItemsOf(items) => items.as_ref(),
        Follows::Nothing | Follows::Bytes => None,
    };
    let schemas = [arguments.as_ref(), items, answer.as_ref()];
    for name in schemas.into_iter().flatten().filter_map(name_of) {
        files.texts(name, texts);
    }
}

impl Messages {
    /// Asks the server what the messages of a method look like.
    pub(super) async fn ask(client: &Client, method: &MethodDescription) -> anyhow::Result<Self> {
        let Some(signature) = &method.signature else {
            bail!("the server does not tell the messages of {}", method.name);
        };
        let files = files(client, &method.name, 1).await?;
        let items = match &signature.follows {
            Follows::ItemsOf(items) => Some(find(&files, items.as_ref())?),
            Follows::Nothing | Follows::Bytes => None,
        };
        Ok(Self {
            argument: find(&files, signature.arguments.as_ref())?,
            items,
            answer: find(&files, signature.answer.as_ref())?,
        })
    }

    /// The payload for a text in JSON: a message, or an array of one or none.
    pub(super) fn payload(&self, text: &[u8]) -> anyhow::Result<Bytes> {
        let given = match text.iter().all(u8::is_ascii_whitespace) {
            true => Value::Array(Vec::new()),
            false => serde_json::from_slice(text).context(NO_JSON)?,
        };
        let message = match given {
            Value::Array(mut all) if all.len() < 2 => {
                all.pop().unwrap_or_else(|| self.argument.none())
            }
            given => given,
        };
        Ok(self.argument.write(message)?)
    }

    /// What the items are that follow.
    pub(super) fn items(&self) -> anyhow::Result<MessageType> {
        let items = self.items.clone();
        items.context("the server does not tell the type of the items")
    }

    /// Arguments as JSON.
    #[cfg(feature = "chain")]
    pub(super) fn arguments(&self, payload: &Bytes) -> anyhow::Result<String> {
        Ok(format!("[{}]", self.argument.read(payload)?))
    }

    /// The payload of this answer.
    #[cfg(feature = "chain")]
    pub(super) fn of_answer(&self, answer: &Value) -> anyhow::Result<Bytes> {
        Ok(self.answer.write(answer.clone())?)
    }

    /// An answer as JSON.
    pub(super) fn answer(&self, payload: &Bytes) -> anyhow::Result<String> {
        Ok(self.answer.read(payload)?)
    }
}
