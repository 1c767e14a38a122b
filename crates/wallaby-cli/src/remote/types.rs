//! How the values of a method are written, by its codec.

use anyhow::{Context, bail};
use base64::prelude::{BASE64_STANDARD, Engine};
use bytes::Bytes;
use serde_json::{Value, json};
use wallaby::Client;
use wallaby::reflection::{Follows, MethodDescription, Signature};
use wallaby::schema::{Schema, Shape};

#[cfg(feature = "proto")]
use super::messages::{Message, Messages};
use super::{decode, encode};
use crate::output::plain;

/// The codecs whose payloads it can make and read.
#[cfg(feature = "proto")]
const KNOWN: &str = "'postcard' and 'msgpack' with types, 'protobuf', and 'raw'";
#[cfg(not(feature = "proto"))]
const KNOWN: &str =
    "'postcard' and 'msgpack' with types, and 'raw' ('protobuf' with its feature 'proto')";

/// A format that serde writes and reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    Postcard,
    MessagePack,
}

/// The types of a method's arguments, of the items that follow them, and of its answer.
pub(super) enum Types {
    Raw,
    Serde {
        format: Format,
        arguments: Schema,
        items: Option<Schema>,
        answer: Schema,
    },
    #[cfg(feature = "proto")]
    Protobuf(Messages),
}

/// The type of items.
pub(super) enum Items {
    Serde(Format, Schema),
    #[cfg(feature = "proto")]
    Protobuf(Message),
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
    pub(super) async fn of(client: &Client, method: &MethodDescription) -> anyhow::Result<Self> {
        let format = match &*method.codec {
            "raw" => return Ok(Self::Raw),
            #[cfg(feature = "proto")]
            "protobuf" => return Ok(Self::Protobuf(Messages::ask(client, method).await?)),
            "postcard" => Some(Format::Postcard),
            "msgpack" => Some(Format::MessagePack),
            _ => None,
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

    pub(super) fn are_raw(&self) -> bool {
        matches!(self, Self::Raw)
    }

    /// The payload of these arguments.
    pub(super) fn payload(&self, text: Vec<u8>) -> anyhow::Result<Bytes> {
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
            false => serde_json::from_slice(&text).context("this is no JSON")?,
        };
        let arguments = match (&schema.root, given) {
            // One argument need not be in an array.
            (Shape::Tuple(parts), given) if parts.len() == 1 && !given.is_array() => json!([given]),
            (Shape::Unit, Value::Array(none)) if none.is_empty() => Value::Null,
            (_, given) => given,
        };
        let payload = encode::encode(format, schema, &arguments, "arguments");
        Ok(payload.map_err(anyhow::Error::msg)?.into())
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
    pub(super) fn answer(&self, payload: &Bytes) -> Result<String, String> {
        match self {
            Self::Serde { format, answer, .. } => decode::decode(*format, answer, payload),
            #[cfg(feature = "proto")]
            Self::Protobuf(messages) => messages.answer(payload),
            Self::Raw => Ok(match std::str::from_utf8(payload) {
                Ok(text) => text.to_owned(),
                Err(_) => format!("base64:{}", BASE64_STANDARD.encode(payload)),
            }),
        }
    }
}

impl Items {
    /// The payload of an item, which is called so.
    pub(super) fn payload(&self, item: Value, name: &str) -> Result<Bytes, String> {
        match self {
            Self::Serde(format, schema) => {
                encode::encode(*format, schema, &item, name).map(Bytes::from)
            }
            #[cfg(feature = "proto")]
            Self::Protobuf(message) => {
                let payload = message.payload(item);
                payload.map_err(|error| format!("{name}: {error}"))
            }
        }
    }
}
