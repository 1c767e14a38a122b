//! Values whose types a program does not have: what they look like, it is told at run time, by a [`Schema`].
//!
//! ```
//! use wallaby::codec::{Codec, Postcard};
//! use wallaby_values::{SerdeFormat, Room, Value, read, write};
//!
//! // A server has told this schema by reflection, and has sent this payload.
//! let schema = <Postcard as Codec<(String, Vec<u32>)>>::schema().expect("postcard knows types");
//! let payload = Postcard::encode(&("hops".to_owned(), vec![1u32, 2]))?;
//!
//! let value = read(SerdeFormat::Postcard, &schema, &payload, Room::default(), "an answer")?;
//! assert_eq!(value.to_string(), r#"["hops",[1,2]]"#);
//! assert_eq!(write(SerdeFormat::Postcard, &schema, &value, "arguments")?, payload);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | part | what it is |
//! |---|---|
//! | [`Value`] | a value of any type; as text it is JSON |
//! | [`read`], [`Room`] | a payload becomes a value |
//! | [`write`](write()) | a value becomes a payload |
//! | `messages` | the same for Protocol Buffers, with the feature `protobuf` |
//!
//! Neither payloads nor schemas are trusted.

#[cfg(feature = "protobuf")]
pub mod messages;
mod read;
mod value;
mod write;

use std::fmt;

use thiserror::Error;
use wallaby::Code;

pub use read::{Room, read};
pub use value::Value;
pub use wallaby::schema::Schema;
pub use write::write;

/// How many values may be inside each other: their types come from a peer. In JSON it is less, by what does not show there.
const DEPTH: usize = 256;

/// A format of payloads that serde writes and reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SerdeFormat {
    /// The codec `postcard`: structs are their fields in order, variants numbers.
    Postcard,
    /// The codec `msgpack`: fields and variants have names.
    MessagePack,
}

impl SerdeFormat {
    /// The format of a codec, by its name.
    pub fn of(codec: &str) -> Option<Self> {
        match codec {
            "postcard" => Some(Self::Postcard),
            "msgpack" => Some(Self::MessagePack),
            _ => None,
        }
    }
}

/// Why a payload cannot be read, or a value not be written: where it is, what was expected and what is there.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct ValueError(pub(crate) String);

impl ValueError {
    /// Of a value that is called so, why it cannot be read or written.
    pub fn new(name: &str, why: &dyn fmt::Display) -> Self {
        Self(format!("{name}: {why}"))
    }

    /// What kind of error it is: always [`Code::InvalidArgument`].
    pub fn code(&self) -> Code {
        Code::InvalidArgument
    }
}
