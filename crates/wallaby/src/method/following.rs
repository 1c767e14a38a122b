//! What follows the requests of a method, as its type says: nothing, bytes, or items.

use bytes::BufMut;
use wallaby_proto::id::stable_hash;
use wallaby_proto::{Code, Status};

use super::sealed::{self, Followed};
use super::{Answers, Method, Target};
use crate::body::Body;
use crate::codec::Codec;
use crate::reflection::Follows;
use crate::streaming::{IntoStreaming, Streaming};

/// What follows each request of a method: nothing (`()`), bytes ([`Body`]), or items ([`Streaming`]).
///
/// It is part of what both sides must agree on: a caller with another type is refused, as one with other arguments is.
pub trait RequestBody: sealed::Sealed + Send + Sized + 'static {
    /// The fingerprint of arguments that it follows.
    #[doc(hidden)]
    fn fingerprint(arguments: u64) -> u64;

    /// What follows, for tools.
    #[doc(hidden)]
    fn follows() -> Follows;

    /// What the names in that mean: [`Codec::descriptors`].
    #[doc(hidden)]
    fn descriptors() -> &'static [u8] {
        &[]
    }

    /// What follows this request, for its handler.
    #[doc(hidden)]
    fn receive(request: &mut dyn Followed) -> Result<Self, Status>;
}

impl sealed::Sealed for () {}

impl RequestBody for () {
    fn fingerprint(arguments: u64) -> u64 {
        arguments
    }

    fn follows() -> Follows {
        Follows::Nothing
    }

    fn receive(_: &mut dyn Followed) -> Result<Self, Status> {
        Ok(())
    }
}

impl sealed::Sealed for Body {}

impl RequestBody for Body {
    fn fingerprint(arguments: u64) -> u64 {
        followed(arguments, "bytes", 0)
    }

    fn follows() -> Follows {
        Follows::Bytes
    }

    fn receive(request: &mut dyn Followed) -> Result<Self, Status> {
        request.take_body().ok_or_else(|| {
            let method = request.method();
            let message = format!(
                "{method}: a stream follows each of its requests, and none follows this one"
            );
            Status::new(Code::InvalidArgument, message)
        })
    }
}

impl<T, C> sealed::Sealed for Streaming<T, C> {}

impl<T: Send + 'static, C: Codec<T>> RequestBody for Streaming<T, C> {
    fn fingerprint(arguments: u64) -> u64 {
        followed(arguments, "items", C::fingerprint())
    }

    fn follows() -> Follows {
        Follows::ItemsOf(C::schema())
    }

    fn descriptors() -> &'static [u8] {
        C::descriptors()
    }

    fn receive(request: &mut dyn Followed) -> Result<Self, Status> {
        Ok(Self::received(Body::receive(request)?, request))
    }
}

/// The fingerprint of arguments behind which this follows. Never 0, which fits any: also where a codec knows no types, both
/// sides know whether something follows.
fn followed(arguments: u64, what: &str, item: u64) -> u64 {
    let mut shape = Vec::new();
    shape.put_u64(arguments);
    shape.put_slice(what.as_bytes());
    shape.put_u64(item);
    stable_hash(&shape).max(1)
}

impl<Args, A: Answers, C: Codec<Args> + Codec<A::Item>> Method<Args, A, C, Body> {
    /// A delegation target: this method with these arguments and these bytes behind them.
    pub fn target(&self, args: Args, body: impl Into<Body>) -> Target<A, C> {
        self.encoded(&args).with_body(body.into())
    }
}

impl<Args, A, C, T> Method<Args, A, C, Streaming<T, C>>
where
    A: Answers,
    C: Codec<Args> + Codec<A::Item> + Codec<T>,
    T: Send + 'static,
{
    /// A delegation target: this method with these arguments and these items behind them.
    pub fn target(&self, args: Args, items: impl IntoStreaming<T, C>) -> Target<A, C> {
        self.encoded(&args)
            .with_body(items.into_streaming().into_body())
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::codec::{Postcard, Raw};
    use crate::method::One;

    fn arguments<Args, A, C, B>(method: &Method<Args, A, C, B>) -> u64
    where
        A: Answers,
        C: Codec<Args> + Codec<A::Item>,
        B: RequestBody,
    {
        method.definition().arguments()
    }

    #[test]
    fn what_follows_is_part_of_the_signature() {
        let plain: Method<(u8,), One<u64>> = Method::new("a.B/c");
        let bytes: Method<(u8,), One<u64>, Postcard, Body> = Method::new("a.B/c");
        let items: Method<(u8,), One<u64>, Postcard, Streaming<u64>> = Method::new("a.B/c");
        let others: Method<(u8,), One<u64>, Postcard, Streaming<u32>> = Method::new("a.B/c");
        let found = [
            arguments(&plain),
            arguments(&bytes),
            arguments(&items),
            arguments(&others),
        ];
        for (index, fingerprint) in found.iter().enumerate() {
            assert!(!found[..index].contains(fingerprint), "{found:x?}");
        }
    }

    /// Peers of other releases must come to the same.
    #[test]
    fn the_fingerprint_of_what_follows_does_not_change() {
        assert_eq!(followed(0, "bytes", 0), 0x564c_1fcd_ab02_e4ea);
        assert_eq!(followed(1, "items", 2), 0x9b6c_3ddd_01a6_74df);
        let items: Method<(u8,), One<u64>, Postcard, Streaming<u64>> = Method::new("a.B/c");
        let own = <Postcard as Codec<(u8,)>>::fingerprint();
        let item = <Postcard as Codec<u64>>::fingerprint();
        assert_eq!(arguments(&items), followed(own, "items", item));
    }

    #[test]
    fn where_nothing_follows_the_fingerprint_is_that_of_the_arguments() {
        let plain: Method<(u8,), One<u64>> = Method::new("a.B/c");
        let own = <Postcard as Codec<(u8,)>>::fingerprint();
        assert_eq!(arguments(&plain), own);
        let raw: Method<(Bytes,), One<Bytes>, Raw> = Method::new("a.B/c");
        assert_eq!(arguments(&raw), 0, "it fits any");
        let raw: Method<(Bytes,), One<Bytes>, Raw, Body> = Method::new("a.B/c");
        assert_ne!(arguments(&raw), 0);
    }
}
