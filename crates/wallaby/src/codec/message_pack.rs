//! Types that change while programs of several versions run.

use bytes::{BufMut, Bytes, BytesMut};
use rmp_serde::{Deserializer, Serializer};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{Codec, CodecError, Format};
use crate::schema::{self, Schema};

/// How deep values may be nested: a peer must not use up the stack.
const MAX_DEPTH: usize = 128;

/// [MessagePack](https://msgpack.org), with the names of fields and variants: for types that change while programs of several
/// versions run. It takes more room and time than postcard, as the names travel with each value.
///
/// Nothing is compared before a call: each value is read by who gets it. So these changes are allowed, whichever side has them first:
///
/// | change | who has the older type | who has the newer type |
/// |---|---|---|
/// | a new field that is an `Option`, or has `#[serde(default)]` | ignores it | reads `None` or the default |
/// | such a field is removed | reads `None` or the default | ignores it |
/// | fields in another order | reads them | reads them |
/// | a new variant of an enum | cannot read that one | reads all |
/// | a number becomes wider, as `u32` to `u64` | cannot read what does not fit | reads it |
///
/// A field of the first kind that gets another name reads as `None` or the default at the other side, and nobody is told: it keeps its
/// name on the wire by `#[serde(rename)]`. `#[serde(deny_unknown_fields)]` makes a field that a type does not know an error.
///
/// What cannot be read is an error that names the field. A request that its server cannot read ends with a status of
/// [`Code::InvalidArgument`](crate::Code::InvalidArgument), an answer is [`CallError::Decode`](crate::CallError::Decode). The arguments of a method
/// are a tuple, whose length is fixed: a method that may get further arguments takes one struct.
///
/// ```
/// use serde::{Deserialize, Serialize};
/// use wallaby::codec::MessagePack;
///
/// #[derive(Serialize, Deserialize)]
/// struct Query {
///     text: String,
///     limit: Option<u32>, // came with version 2
/// }
///
/// #[wallaby::service(package = "shop", codec = wallaby::codec::MessagePack)]
/// trait Search {
///     async fn find(query: Query) -> Vec<String>;
/// }
/// # fn main() {}
/// ```
#[derive(Debug, Clone, Copy)]
pub struct MessagePack;

impl Format for MessagePack {
    const NAME: &'static str = "msgpack";
}

impl<T: Serialize + DeserializeOwned + 'static> Codec<T> for MessagePack {
    fn encode(value: &T) -> Result<Bytes, CodecError> {
        let mut out = BytesMut::new().writer();
        let written = value.serialize(&mut Serializer::new(&mut out).with_struct_map());
        written.map_err(|error| CodecError::new(Self::NAME, error.to_string()))?;
        Ok(out.into_inner().freeze())
    }

    fn decode(payload: Bytes) -> Result<T, CodecError> {
        let mut rest = &payload[..];
        let mut reader = Deserializer::new(&mut rest);
        reader.set_max_depth(MAX_DEPTH);
        let value = T::deserialize(&mut reader);
        let value = value.map_err(|error| CodecError::new(Self::NAME, error.to_string()))?;
        match rest.len() {
            0 => Ok(value),
            more => {
                let what = format!("{more} bytes after the value");
                Err(CodecError::new(Self::NAME, what))
            }
        }
    }

    fn schema() -> Option<Schema> {
        Some(schema::of::<T>())
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Nested(Vec<Self>);

    #[test]
    fn it_takes_exactly_one_value_of_limited_depth() {
        type Pair = (u32, String);
        let encoded = <MessagePack as Codec<Pair>>::encode(&(7, "hop".into())).expect("encodes");
        let read = <MessagePack as Codec<Pair>>::decode;
        assert_eq!(read(encoded.clone()), Ok((7, "hop".into())));
        let longer = [&encoded[..], &[0]].concat();
        let error = read(longer.into()).expect_err("a byte too many");
        assert!(
            error.to_string().contains("1 bytes after the value"),
            "{error}"
        );
        assert!(read(encoded.slice(..2)).is_err());
        let deep = |depth: usize| {
            let nested = (0..depth).fold(Nested(Vec::new()), |inner, _| Nested(vec![inner]));
            let encoded = <MessagePack as Codec<Nested>>::encode(&nested).expect("encodes");
            <MessagePack as Codec<Nested>>::decode(encoded)
        };
        assert!(deep(10).is_ok());
        assert!(deep(500).is_err(), "it is nested too deep");
    }
}
