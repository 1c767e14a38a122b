//! XDR, the external data representation of RFC 4506.
//!
//! Everything is big-endian and takes a multiple of four bytes. Whoever reads needs to know the type: the bytes do not
//! tell it. A [`Reader`] keeps to [`XdrLimits`] and allocates only for what arrived, whatever lengths the bytes claim.
//!
//! ```
//! use wallaby_onc::xdr::{self, XdrLimits, Text};
//!
//! let bytes = xdr::encode(&Text::from("hop"))?;
//! assert_eq!(&bytes[..], b"\0\0\0\x03hop\0");
//! assert_eq!(xdr::decode::<Text>(bytes, XdrLimits::default())?, "hop");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod error;
mod reader;
mod scalar;
mod text;
mod writer;

pub use error::{DecodeError, EncodeError, Malformed};
pub use reader::{Reader, XdrLimits};
pub use text::Text;
pub use writer::Writer;

use bytes::Bytes;

/// Most levels of values within values, while reading and while writing. Linked lists are one level, however long.
pub const MAX_DEPTH: u32 = 128;

/// A type with an XDR representation.
///
/// Implementations are generated from `.x` files; the scalar types, [`Text`] and `()` (`void`) have theirs here.
pub trait Xdr: Sized {
    /// Appends this value.
    ///
    /// # Errors
    /// The interface has no bytes for this value: it is longer than a stated limit, for example.
    fn encode(&self, writer: &mut Writer) -> Result<(), EncodeError>;

    /// Reads a value from the reader's place.
    ///
    /// # Errors
    /// The bytes are no such value, end too early, or exceed the reader's limits.
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError>;
}

/// The bytes of a value.
///
/// # Errors
/// As [`Xdr::encode`].
pub fn encode<T: Xdr>(value: &T) -> Result<Bytes, EncodeError> {
    let mut writer = Writer::new();
    value.encode(&mut writer)?;
    Ok(writer.into_bytes())
}

/// The value that takes up all of these bytes.
///
/// # Errors
/// As [`Xdr::decode`], and [`Malformed::Trailing`] if something follows the value.
pub fn decode<T: Xdr>(bytes: Bytes, limits: XdrLimits) -> Result<T, DecodeError> {
    let mut reader = Reader::new(bytes, limits);
    let value = T::decode(&mut reader)?;
    reader.finish()?;
    Ok(value)
}

/// How many bytes fill up the last unit of four.
const fn padding(length: usize) -> usize {
    length.wrapping_neg() & 3
}
