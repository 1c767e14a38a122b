//! How values become payloads: postcard by default, MessagePack or Protocol Buffers for types that change, raw bytes always, others
//! by the same trait.

use bytes::{Bytes, BytesMut};
use serde::Serialize;
use serde::de::DeserializeOwned;
pub use wallaby_proto::error::CodecError;

use crate::fingerprint;
use crate::schema::{self, Schema};

#[cfg(feature = "msgpack")]
mod message_pack;
#[cfg(feature = "protobuf")]
mod protobuf;

#[cfg(feature = "msgpack")]
pub use self::message_pack::MessagePack;
#[cfg(feature = "protobuf")]
pub use self::protobuf::Protobuf;

/// A format of payloads.
pub trait Format: Send + Sync + 'static {
    /// Its name, which both sides of a method must agree on.
    const NAME: &'static str;
}

/// A format that can hold values of type `T`. Arguments are a tuple of all arguments, answers a single value.
pub trait Codec<T>: Format {
    /// Writes a value.
    ///
    /// # Errors
    ///
    /// If the format cannot hold it.
    fn encode(value: &T) -> Result<Bytes, CodecError>;

    /// Reads a value. The bytes come from a peer.
    ///
    /// # Errors
    ///
    /// If the bytes are not exactly one value.
    fn decode(payload: Bytes) -> Result<T, CodecError>;

    /// A number that differs, in all likelihood, for types that look different on the wire; 0 fits any.
    fn fingerprint() -> u64 {
        0
    }

    /// What values of type `T` look like, for tools that do not have it; none where the format knows no types. It is looked for
    /// each time.
    fn schema() -> Option<Schema> {
        None
    }

    /// What the names in the schema mean, in the format's own words, where the schema does not say it: for `Protobuf` a
    /// `FileDescriptorSet`. Empty where there is nothing to add.
    fn descriptors() -> &'static [u8] {
        &[]
    }
}

/// [postcard](https://docs.rs/postcard): compact and fast, for all that serde knows. The format does not describe itself;
/// fingerprints of the types guard against reading a changed struct: who has another one gets
/// [`Code::Mismatch`](crate::Code::Mismatch), which says what differs where the server tells its types: not of methods that
/// interceptors are asked about, those for metrics and traces included. For types that change while programs of several versions
/// run there are `MessagePack`, with the feature `msgpack`, and `Protobuf`, with the feature `protobuf`.
#[derive(Debug, Clone, Copy)]
pub struct Postcard;

impl Format for Postcard {
    const NAME: &'static str = "postcard";
}

impl<T: Serialize + DeserializeOwned + 'static> Codec<T> for Postcard {
    fn encode(value: &T) -> Result<Bytes, CodecError> {
        let bytes = postcard::to_extend(value, Extend(BytesMut::new()));
        Ok(bytes
            .map_err(|error| CodecError::new(Self::NAME, error.to_string()))?
            .0
            .freeze())
    }

    fn decode(payload: Bytes) -> Result<T, CodecError> {
        let fail = |what: &str| CodecError::new(Self::NAME, what);
        match postcard::take_from_bytes(&payload) {
            Ok((value, [])) => Ok(value),
            Ok((_, rest)) => Err(fail(&format!("{} bytes after the value", rest.len()))),
            Err(error) => Err(fail(&error.to_string())),
        }
    }

    fn fingerprint() -> u64 {
        fingerprint::of::<T>()
    }

    fn schema() -> Option<Schema> {
        Some(schema::of::<T>())
    }
}

/// `BytesMut` as postcard's output.
struct Extend(BytesMut);

impl std::iter::Extend<u8> for Extend {
    fn extend<I: IntoIterator<Item = u8>>(&mut self, bytes: I) {
        self.0.extend(bytes);
    }
}

/// Bytes as they are: for methods of one argument, [`Bytes`] or `Vec<u8>`, and for tools that know the format.
#[derive(Debug, Clone, Copy)]
pub struct Raw;

impl Format for Raw {
    const NAME: &'static str = "raw";
}

impl Codec<Bytes> for Raw {
    fn encode(value: &Bytes) -> Result<Bytes, CodecError> {
        Ok(value.clone())
    }

    fn decode(payload: Bytes) -> Result<Bytes, CodecError> {
        Ok(payload)
    }
}

impl Codec<Vec<u8>> for Raw {
    fn encode(value: &Vec<u8>) -> Result<Bytes, CodecError> {
        Ok(Bytes::copy_from_slice(value))
    }

    fn decode(payload: Bytes) -> Result<Vec<u8>, CodecError> {
        Ok(payload.into())
    }
}

impl<T> Codec<(T,)> for Raw
where
    Self: Codec<T>,
{
    fn encode((value,): &(T,)) -> Result<Bytes, CodecError> {
        Self::encode(value)
    }

    fn decode(payload: Bytes) -> Result<(T,), CodecError> {
        Self::decode(payload).map(|value| (value,))
    }
}

impl Codec<()> for Raw {
    fn encode((): &()) -> Result<Bytes, CodecError> {
        Ok(Bytes::new())
    }

    fn decode(payload: Bytes) -> Result<(), CodecError> {
        if payload.is_empty() {
            return Ok(());
        }
        Err(CodecError::new(
            Self::NAME,
            format!("{} bytes where none were expected", payload.len()),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn postcard_takes_exactly_one_value() {
        let payload =
            <Postcard as Codec<(u32, String)>>::encode(&(7, "hop".into())).expect("encodes");
        assert_eq!(
            <Postcard as Codec<(u32, String)>>::decode(payload.clone()),
            Ok((7, "hop".into()))
        );
        let mut longer = payload.to_vec();
        longer.push(0);
        assert!(<Postcard as Codec<(u32, String)>>::decode(longer.into()).is_err());
        assert!(<Postcard as Codec<(u32, String)>>::decode(payload.slice(..2)).is_err());
    }

    #[test]
    fn raw_keeps_bytes() {
        let payload = <Raw as Codec<(Vec<u8>,)>>::encode(&(vec![1, 2],)).expect("encodes");
        assert_eq!(
            <Raw as Codec<(Bytes,)>>::decode(payload),
            Ok((Bytes::from_static(&[1, 2]),))
        );
        assert!(<Raw as Codec<()>>::decode(Bytes::from_static(&[1])).is_err());
    }
}
