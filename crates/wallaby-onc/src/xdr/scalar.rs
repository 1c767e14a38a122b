//! The types without parts.

use super::{DecodeError, EncodeError, Malformed, Reader, Text, Writer, Xdr};

impl Xdr for () {
    fn encode(&self, _: &mut Writer) -> Result<(), EncodeError> {
        Ok(())
    }

    fn decode(_: &mut Reader) -> Result<Self, DecodeError> {
        Ok(())
    }
}

impl Xdr for bool {
    fn encode(&self, writer: &mut Writer) -> Result<(), EncodeError> {
        writer.u32(u32::from(*self));
        Ok(())
    }

    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        reader.bool()
    }
}

/// Types whose bits are those of an unsigned one.
macro_rules! bits {
    ($($type:ty: $read:ident, $to:expr, $from:expr;)*) => {$(
        impl Xdr for $type {
            fn encode(&self, writer: &mut Writer) -> Result<(), EncodeError> {
                writer.$read($to(*self));
                Ok(())
            }

            fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
                reader.$read().map($from)
            }
        }
    )*};
}

bits! {
    u32: u32, |value| value, |bits| bits;
    i32: u32, i32::cast_unsigned, u32::cast_signed;
    u64: u64, |value| value, |bits| bits;
    i64: u64, i64::cast_unsigned, u64::cast_signed;
    f32: u32, f32::to_bits, f32::from_bits;
    f64: u64, f64::to_bits, f64::from_bits;
}

/// C's small integers, which take four bytes like all others.
macro_rules! small {
    ($($type:ident as $wide:ident;)*) => {$(
        impl Xdr for $type {
            fn encode(&self, writer: &mut Writer) -> Result<(), EncodeError> {
                $wide::from(*self).encode(writer)
            }

            fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
                let found = $wide::decode(reader)?;
                Self::try_from(found).map_err(|_| {
                    let found = i64::from(found);
                    reader.error_before(Malformed::Range { expected: stringify!($type), found })
                })
            }
        }
    )*};
}

small! {
    i8 as i32;
    i16 as i32;
    u8 as u32;
    u16 as u32;
}

impl Xdr for Text {
    fn encode(&self, writer: &mut Writer) -> Result<(), EncodeError> {
        writer.text(self, None)
    }

    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        reader.text(None)
    }
}
