//! Messages of Protocol Buffers.

use bytes::Bytes;

use super::{Codec, CodecError, Format};
use crate::fingerprint;
use crate::protobuf::NamedMessage;
use crate::schema::{Schema, Shape};

/// [Protocol Buffers](https://protobuf.dev), for types that change while programs of several versions run, and for services from
/// `.proto` files, which `wallaby-build` compiles. A method takes one message or none, and answers with messages.
///
/// Before a call both sides compare the full names of the messages, and nothing else. So what may change is what Protocol Buffers
/// let change, whichever side has it first:
///
/// | change | who has the older type | who has the newer type |
/// |---|---|---|
/// | a new field | ignores it | reads its default, or `None` if it is `optional` or a message |
/// | a field is removed, its number `reserved` | reads the default | ignores it |
/// | a field gets another name, and keeps its number | reads it | reads it |
/// | a new value of an enum | has its number, which is none of its values | reads all |
/// | another number or type of a field, another name of a message | misreads it, or is refused | misreads it, or is refused |
///
/// A message that is read and sent on has lost the fields that its reader does not know: a server that only hands work on either
/// knows the newest type, or passes payloads on unread ([`RawRequest`](crate::RawRequest)).
///
/// Bytes that are no such message are an error that names the field. A request that its server cannot read ends with a status of
/// [`Code::InvalidArgument`](crate::Code::InvalidArgument), an answer is [`CallError::Decode`](crate::CallError::Decode). Messages
/// are inside each other 100 levels deep at most.
///
/// What is decoded may take many times the memory of its bytes: an empty message in a `repeated` field has two bytes, and takes as
/// much memory as its struct. A server for strangers chooses [`Limits::message`](crate::Limits::message) by that.
///
/// ```
/// use wallaby::codec::Protobuf;
/// use wallaby::protobuf::prost;
///
/// #[derive(Clone, PartialEq, prost::Message)]
/// #[prost(prost_path = "prost")]
/// struct Query {
///     #[prost(string, tag = "1")]
///     text: String,
///     #[prost(uint32, optional, tag = "2")] // came with version 2
///     limit: Option<u32>,
/// }
///
/// impl prost::Name for Query {
///     const PACKAGE: &'static str = "shop";
///     const NAME: &'static str = "Query";
/// }
///
/// wallaby::protobuf::messages!(Query);
///
/// #[wallaby::service(package = "shop", codec = Protobuf)]
/// trait Search {
///     async fn count(query: Query) -> u64; // google.protobuf.UInt64Value
/// }
/// # fn main() {}
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Protobuf;

impl Format for Protobuf {
    const NAME: &'static str = "protobuf";
}

impl<M: NamedMessage> Codec<M> for Protobuf {
    fn encode(value: &M) -> Result<Bytes, CodecError> {
        Ok(value.encode_to_vec().into())
    }

    fn decode(payload: Bytes) -> Result<M, CodecError> {
        M::decode(payload).map_err(|error| {
            let (name, text) = (M::full_name(), error.to_string());
            let what = text.strip_prefix("failed to decode Protobuf message: ");
            let what = what.unwrap_or(&text);
            CodecError::new(Self::NAME, format!("this is no {name}: {what}"))
        })
    }

    fn fingerprint() -> u64 {
        fingerprint::of_name(&M::full_name())
    }

    fn schema() -> Option<Schema> {
        let root = match M::full_name() {
            empty if empty == "google.protobuf.Empty" => Shape::Unit,
            name => Shape::Named(name),
        };
        Some(Schema {
            root,
            ..Schema::default()
        })
    }

    fn descriptors() -> &'static [u8] {
        M::descriptors()
    }
}

/// The one argument of a method.
impl<M: NamedMessage> Codec<(M,)> for Protobuf {
    fn encode((value,): &(M,)) -> Result<Bytes, CodecError> {
        Self::encode(value)
    }

    fn decode(payload: Bytes) -> Result<(M,), CodecError> {
        Self::decode(payload).map(|value| (value,))
    }

    fn fingerprint() -> u64 {
        <Self as Codec<M>>::fingerprint()
    }

    fn schema() -> Option<Schema> {
        let mut schema = <Self as Codec<M>>::schema()?;
        schema.root = match schema.root {
            Shape::Unit => Shape::Unit,
            message => Shape::Tuple(vec![message]),
        };
        Some(schema)
    }

    fn descriptors() -> &'static [u8] {
        M::descriptors()
    }
}
