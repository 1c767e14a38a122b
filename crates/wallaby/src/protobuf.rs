//! What messages of Protocol Buffers need to be arguments and answers of methods, for the codec
//! [`Protobuf`](crate::codec::Protobuf).
//!
//! Code that `wallaby-build` generates has all of it, and uses [`prost`] from here: a program does not need it as a dependency of its
//! own. It needs `prost-types` where its files use types of `google.protobuf` other than `Empty` and the wrappers of single values.

pub use prost;

#[doc(inline)]
pub use crate::__messages as messages;

/// A message that methods can take and answer with. [`messages!`](crate::protobuf::messages) implements it.
///
/// It is no blanket implementation for [`prost::Message`], since Rust would not let a codec have both messages and the tuple of one
/// message, which the arguments of a method are.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no message of Protocol Buffers that methods can take or give",
    note = "wallaby-build compiles .proto files; `wallaby::protobuf::messages!(..)` is for messages of prost that have a `prost::Name`"
)]
pub trait NamedMessage: prost::Message + prost::Name + Default + 'static {
    /// The files that define it, as a `FileDescriptorSet`, for tools that do not have it; empty where they are not known.
    fn descriptors() -> &'static [u8] {
        &[]
    }
}

/// Says of messages that methods can take them and answer with them: of types that implement [`prost::Message`],
/// [`prost::Name`](trait@prost::Name) and `Default`. With `descriptors = BYTES;` before them tools learn what they look like.
///
/// ```
/// use wallaby::protobuf::prost;
///
/// #[derive(Clone, PartialEq, prost::Message)]
/// #[prost(prost_path = "prost")]
/// struct Book {
///     #[prost(string, tag = "1")]
///     title: String,
/// }
///
/// impl prost::Name for Book {
///     const PACKAGE: &'static str = "library";
///     const NAME: &'static str = "Book";
/// }
///
/// wallaby::protobuf::messages!(Book);
/// ```
#[doc(hidden)]
#[macro_export]
macro_rules! __messages {
    (descriptors = $descriptors:expr; $($message:ty),* $(,)?) => {
        $(impl $crate::protobuf::NamedMessage for $message {
            fn descriptors() -> &'static [u8] {
                $descriptors
            }
        })*
    };
    ($($message:ty),* $(,)?) => {
        $(impl $crate::protobuf::NamedMessage for $message {})*
    };
}

// Of these, tools know what they are.
messages!(
    (),
    bool,
    u32,
    u64,
    i32,
    i64,
    f32,
    f64,
    String,
    Vec<u8>,
    bytes::Bytes
);
messages!(
    prost_types::Any,
    prost_types::Duration,
    prost_types::Timestamp
);

#[cfg(test)]
mod tests {
    use super::prost;
    use crate::codec::{Codec, CodecError, Protobuf};
    use bytes::Bytes;

    #[derive(Clone, PartialEq, prost::Message)]
    struct Book {
        #[prost(string, tag = "1")]
        title: String,
        #[prost(message, optional, boxed, tag = "2")]
        sequel: Option<Box<Self>>,
    }

    impl prost::Name for Book {
        const PACKAGE: &'static str = "library";
        const NAME: &'static str = "Book";
    }

    #[derive(Clone, PartialEq, prost::Message)]
    struct Newer {
        #[prost(string, tag = "1")]
        name: String,
        #[prost(message, optional, boxed, tag = "2")]
        sequel: Option<Box<Self>>,
        #[prost(uint32, optional, tag = "3")]
        year: Option<u32>,
    }

    impl prost::Name for Newer {
        const PACKAGE: &'static str = "library";
        const NAME: &'static str = "Book";
    }

    super::messages!(descriptors = b"a set"; Book, Newer);

    fn read<M>(bytes: &[u8]) -> Result<M, CodecError>
    where
        Protobuf: Codec<M>,
    {
        Protobuf::decode(Bytes::copy_from_slice(bytes))
    }

    /// What these bytes are said to be, by who expects a book.
    fn refused(bytes: &[u8]) -> String {
        read::<Book>(bytes).expect_err("no book").to_string()
    }

    #[test]
    fn a_message_of_another_version_is_read() {
        let newer = Newer {
            name: "Hopping".into(),
            sequel: None,
            year: Some(1971),
        };
        let encoded = Protobuf::encode(&(newer,)).expect("a message");
        assert_eq!(&encoded[..], b"\x0a\x07Hopping\x18\xb3\x0f");
        let (older,) = read::<(Book,)>(&encoded).expect("it has the same name");
        assert_eq!((&*older.title, &older.sequel), ("Hopping", &None));
        let encoded = Protobuf::encode(&older).expect("a message");
        assert_eq!(read::<Newer>(&encoded).expect("a book").year, None);
        assert_eq!(read::<Book>(b""), Ok(Book::default()), "all are defaults");
    }

    #[test]
    fn bytes_that_are_no_message_are_an_error_that_says_where() {
        for (bytes, what) in [
            (&b"\x0a\x07Hop"[..], "Book.title: buffer underflow"),
            (b"\x0a\x02\xff\xff", "Book.title: invalid string value"),
            (b"\x08\x01", "Book.title: invalid wire type"),
            (
                b"\x12\x03\x0a\x05H",
                "Book.title: Book.sequel: buffer underflow",
            ),
            (b"\xff", "invalid varint"),
            (b"\x0f", "invalid wire type"),
            (
                b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
                "Book.title: buffer underflow",
            ),
        ] {
            let error = refused(bytes);
            let expected = format!("protobuf: this is no library.Book: {what}");
            assert!(error.starts_with(&expected), "{bytes:x?}: {error}");
        }
    }

    #[test]
    fn messages_are_inside_each_other_so_deep() {
        let nested = |depth: usize| {
            let inside = |inner: Vec<u8>| {
                let mut outer = vec![0x12];
                prost::encode_length_delimiter(inner.len(), &mut outer).expect("it has room");
                outer.extend(inner);
                outer
            };
            (0..depth).fold(Vec::new(), |inner, _| inside(inner))
        };
        assert!(read::<Book>(&nested(99)).is_ok());
        let error = refused(&nested(5_000));
        assert!(error.ends_with("recursion limit reached"), "{error}");
    }

    #[test]
    fn types_are_told_apart_by_their_full_names() {
        fn of<M>() -> (u64, String)
        where
            Protobuf: Codec<M>,
        {
            let schema = <Protobuf as Codec<M>>::schema().expect("it knows types");
            (
                <Protobuf as Codec<M>>::fingerprint(),
                schema.root.to_string(),
            )
        }
        let (book, name) = of::<Book>();
        assert_eq!(of::<Newer>(), (book, "library.Book".into()));
        assert_eq!((of::<(Book,)>().0, name.as_str()), (book, "library.Book"));
        let (empty, nothing) = of::<()>();
        assert_eq!(nothing, "()");
        assert!(empty != 0 && empty != book && empty == of::<((),)>().0);
        assert_eq!(of::<u64>().1, "google.protobuf.UInt64Value");
        assert_eq!(<Protobuf as Codec<(Book,)>>::descriptors(), b"a set");
        assert_eq!(<Protobuf as Codec<u64>>::descriptors(), b"");
    }
}
