//! How the values of a method are written, by its codec.

use anyhow::{Context, bail};
use base64::prelude::{BASE64_STANDARD, Engine};
use bytes::Bytes;
use serde_json::{Value, json};
use wallaby::Client;
use wallaby::reflection::{Follows, MethodDescription, Signature};
use wallaby::schema::{Schema, Shape};
#[cfg(feature = "proto")]
use wallaby_values::messages::MessageType;
use wallaby_values::{Room, SerdeFormat, read, write};

use super::NO_JSON;
#[cfg(feature = "proto")]
use super::messages::Messages;
use crate::output::plain;

/// What an answer may take up, in bytes: a list of numbers of the longest message.
const ROOM: Room = Room { bytes: 1 << 30 };

/// The codecs whose payloads it can make and read.
#[cfg(feature = "proto")]
const KNOWN: &str = "'postcard' and 'msgpack' with types, 'protobuf', and 'raw'";
#[cfg(not(feature = "proto"))]
const KNOWN: &str =
    "'postcard' and 'msgpack' with types, and 'raw' ('protobuf' with its feature 'proto')";

/// The types of a method's arguments, of the items that follow them, and of its answer.
pub(crate) enum Types {
    Raw,
    Serde {
        format: SerdeFormat,
        arguments: Schema,
        items: Option<Schema>,
        answer: Schema,
    },
    #[cfg(feature = "proto")]
    Protobuf(Messages),
}

/// The type of items.
pub(super) enum Items {
    Serde(SerdeFormat, Schema),
    #[cfg(feature = "proto")]
    Protobuf(MessageType),
}

impl Types {
    #[cfg_attr(
        not(feature = "proto"),
        expect(
            unused_variables,
            clippy::unused_async,
            reason = "only messages are asked for"
        )
    )]
    pub(crate) async fn of(client: &Client, method: &MethodDescription) -> anyhow::Result<Self> {
        let format = match &*method.codec {
            "raw" => return Ok(Self::Raw),
            #[cfg(feature = "proto")]
            "protobuf" => return Ok(Self::Protobuf(Messages::ask(client, method).await?)),
            codec => SerdeFormat::of(codec),
        };
        if let Some(format) = format
            && let Some(Signature {
                arguments: Some(arguments),
                answer: Some(answer),
                follows,
                ..
            }) = &method.signature
        {
            return Ok(Self::Serde {
                format,
                arguments: arguments.clone(),
                items: match follows {
                    Follows::ItemsOf(items) => items.clone(),
                    Follows::Nothing | Follows::Bytes => None,
                },
                answer: answer.clone(),
            });
        }
        let (name, codec) = (&method.name, plain(&method.codec));
        bail!("{name} has the codec {codec:?} or no types: this program knows {KNOWN}")
    }

    pub(crate) fn are_raw(&self) -> bool {
        matches!(self, Self::Raw)
    }

    /// Whether the schemas in the method's description say all of it.
    #[cfg(feature = "chain")]
    pub(crate) fn are_of_serde(&self) -> bool {
        matches!(self, Self::Serde { .. })
    }

    /// Arguments as text, in an array.
    #[cfg(feature = "chain")]
    pub(crate) fn arguments(&self, payload: &Bytes) -> anyhow::Result<String> {
        match self {
            Self::Serde {
                format, arguments, ..
            } => Ok(read(*format, arguments, payload, ROOM, "arguments")?.to_string()),
            #[cfg(feature = "proto")]
            Self::Protobuf(messages) => messages.arguments(payload),
            Self::Raw => Ok(raw(payload)),
        }
    }

    /// The payload of this answer.
    #[cfg(feature = "chain")]
    pub(crate) fn of_answer(&self, answer: &Value) -> anyhow::Result<Bytes> {
        match self {
            Self::Serde {
                format,
                answer: schema,
                ..
            } => Ok(write(*format, schema, &answer.clone().into(), "the answer")?.into()),
            #[cfg(feature = "proto")]
            Self::Protobuf(messages) => messages.of_answer(answer),
            Self::Raw => match answer {
                Value::String(text) => Ok(text.clone().into()),
                _ => bail!("expected text"),
            },
        }
    }

    /// The payload of these arguments.
    pub(crate) fn payload(&self, text: Vec<u8>) -> anyhow::Result<Bytes> {
        let (format, schema) = match self {
            Self::Raw => return Ok(text.into()),
            #[cfg(feature = "proto")]
            Self::Protobuf(messages) => return messages.payload(&text),
            Self::Serde {
                format, arguments, ..
            } => (*format, arguments),
        };
        let given = match text.iter().all(u8::is_ascii_whitespace) {
            true => json!([]),
            false => serde_json::from_slice(&text).context(NO_JSON)?,
        };
        let arguments = match (&schema.root, given) {
            // One argument need not be in an array.
            (Shape::Tuple(parts), given) if parts.len() == 1 && !given.is_array() => json!([given]),
            (Shape::Unit, Value::Array(none)) if none.is_empty() => Value::Null,
            (_, given) => given,
        };
        Ok(write(format, schema, &arguments.into(), "arguments")?.into())
    }

    /// What becomes of the items that follow.
    pub(super) fn items(&self) -> anyhow::Result<Items> {
        Ok(match self {
            Self::Serde {
                format,
                items: Some(items),
                ..
            } => Items::Serde(*format, items.clone()),
            #[cfg(feature = "proto")]
            Self::Protobuf(messages) => Items::Protobuf(messages.items()?),
            _ => bail!("the server does not tell the type of the items"),
        })
    }

    /// An answer as text.
    pub(crate) fn answer(&self, payload: &Bytes) -> anyhow::Result<String> {
        match self {
            Self::Serde { format, answer, .. } => {
                Ok(read(*format, answer, payload, ROOM, "an answer")?.to_string())
            }
            #[cfg(feature = "proto")]
            Self::Protobuf(messages) => messages.answer(payload),
            Self::Raw => Ok(raw(payload)),
        }
    }
}

/// Text, or base64 of what is none.
pub(crate) fn raw(payload: &Bytes) -> String {
    match std::str::from_utf8(payload) {
        Ok(text) => text.to_owned(),
        Err(_) => format!("base64:{}", BASE64_STANDARD.encode(payload)),
    }
}

impl Items {
    /// The payload of an item, which is called so.
    pub(super) fn payload(&self, item: Value, name: &str) -> anyhow::Result<Bytes> {
        match self {
            Self::Serde(format, schema) => Ok(write(*format, schema, &item.into(), name)?.into()),
            #[cfg(feature = "proto")]
            Self::Protobuf(message) => {
                let payload = message.write(item);
                payload.map_err(|error| anyhow::anyhow!("{name}: {error}"))
            }
        }
    }
}
