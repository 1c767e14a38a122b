//! XDR as RFC 4506 draws it; what is read is what was written; nothing that arrives does harm.

use bytes::Bytes;
use proptest::prelude::*;
use wallaby_onc::xdr::{
    self, DecodeError, EncodeError, MAX_DEPTH, Malformed, Reader, Text, Writer, Xdr, XdrLimits,
};

/// Every kind of value, so that one round trip exercises all of them.
#[derive(Debug, Clone, PartialEq)]
struct Everything {
    scalars: (bool, i32, u32, i64, u64),
    small: (i8, u8, i16, u16),
    floats: (f32, f64),
    text: Text,
    data: Bytes,
    fixed: [u8; 5],
    numbers: Vec<u64>,
    pair: [Text; 2],
    list: Vec<u32>,
    next: Option<Box<Self>>,
}

impl Xdr for Everything {
    fn encode(&self, writer: &mut Writer) -> Result<(), EncodeError> {
        let (a, b, c, d, e) = &self.scalars;
        a.encode(writer)?;
        b.encode(writer)?;
        c.encode(writer)?;
        d.encode(writer)?;
        e.encode(writer)?;
        let (a, b, c, d) = &self.small;
        a.encode(writer)?;
        b.encode(writer)?;
        c.encode(writer)?;
        d.encode(writer)?;
        self.floats.0.encode(writer)?;
        self.floats.1.encode(writer)?;
        writer.text(&self.text, Some(20))?;
        writer.opaque(&self.data, None)?;
        writer.fixed_opaque(&self.fixed);
        writer.array(&self.numbers, Some(9), |writer, each| each.encode(writer))?;
        writer.fixed_array(&self.pair, |writer, each| writer.text(each, None))?;
        writer.list(&self.list, |writer, each| each.encode(writer))?;
        writer.optional(self.next.as_ref(), |writer, next| next.encode(writer))
    }

    fn decode(reader: &mut Reader) -> Result<Self, DecodeError> {
        Ok(Self {
            scalars: (
                Xdr::decode(reader)?,
                Xdr::decode(reader)?,
                Xdr::decode(reader)?,
                Xdr::decode(reader)?,
                Xdr::decode(reader)?,
            ),
            small: (
                Xdr::decode(reader)?,
                Xdr::decode(reader)?,
                Xdr::decode(reader)?,
                Xdr::decode(reader)?,
            ),
            floats: (Xdr::decode(reader)?, Xdr::decode(reader)?),
            text: reader.text(Some(20))?,
            data: reader.opaque(None)?,
            fixed: reader.fixed_opaque()?,
            numbers: reader.array(Some(9), u64::decode)?,
            pair: reader.fixed_array(|reader| reader.text(None))?,
            list: reader.list(u32::decode)?,
            next: reader.optional(|reader| Self::decode(reader).map(Box::new))?,
        })
    }
}

fn text(most: usize) -> impl Strategy<Value = Text> {
    proptest::collection::vec(any::<u8>(), 0..=most)
        .prop_map(|bytes| Text::from(Bytes::from(bytes)))
}

fn everything() -> impl Strategy<Value = Everything> {
    let bytes = proptest::collection::vec(any::<u8>(), 0..50).prop_map(Bytes::from);
    let leaf = (
        any::<(bool, i32, u32, i64, u64)>(),
        any::<(i8, u8, i16, u16)>(),
        // NaN is not equal to itself; that its bits pass is tested apart.
        (
            proptest::num::f32::NORMAL,
            proptest::num::f64::ANY.prop_filter("a number", |it| !it.is_nan()),
        ),
        text(20),
        bytes,
        any::<[u8; 5]>(),
        proptest::collection::vec(any::<u64>(), 0..=9),
        [text(9), text(3)],
        proptest::collection::vec(any::<u32>(), 0..30),
    )
        .prop_map(
            |(scalars, small, floats, text, data, fixed, numbers, pair, list)| Everything {
                scalars,
                small,
                floats,
                text,
                data,
                fixed,
                numbers,
                pair,
                list,
                next: None,
            },
        );
    proptest::collection::vec(leaf, 1..4).prop_map(|chain| {
        let linked = chain.into_iter().reduce(|next, mut each| {
            each.next = Some(Box::new(next));
            each
        });
        linked.expect("a chain has an element")
    })
}

proptest! {
    #[test]
    fn what_is_read_is_what_was_written(value in everything()) {
        let bytes = xdr::encode(&value).unwrap();
        prop_assert_eq!(bytes.len() % 4, 0);
        prop_assert_eq!(xdr::decode::<Everything>(bytes, XdrLimits::default()), Ok(value));
    }

    #[test]
    fn nothing_that_is_cut_off_is_read(value in everything(), cut in any::<prop::sample::Index>()) {
        let bytes = xdr::encode(&value).unwrap();
        let cut = cut.index(bytes.len());
        let read = xdr::decode::<Everything>(bytes.slice(..cut), XdrLimits::default());
        let is_end = matches!(&read, Err(DecodeError { offset, problem: Malformed::Ended { .. } }) if *offset <= cut);
        prop_assert!(is_end, "{:?}", read);
    }

    #[test]
    fn arbitrary_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let _ = xdr::decode::<Everything>(bytes.into(), XdrLimits::default());
    }

    #[test]
    fn damaged_bytes_are_read_or_refused(value in everything(), at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let mut bytes = xdr::encode(&value).unwrap().to_vec();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        let _ = xdr::decode::<Everything>(bytes.into(), XdrLimits::default());
    }
}

/// A value has these bytes, and they are read as that value.
fn check<T: Xdr + PartialEq + std::fmt::Debug>(value: T, bytes: &[u8]) {
    assert_eq!(xdr::encode(&value).expect("it has bytes"), bytes);
    let read = xdr::decode::<T>(Bytes::copy_from_slice(bytes), XdrLimits::default());
    assert_eq!(read, Ok(value));
}

#[test]
fn scalars_have_the_bytes_of_the_standard() {
    check((), &[]);
    check(true, &[0, 0, 0, 1]);
    check(-2_i32, &[0xff, 0xff, 0xff, 0xfe]);
    check(0x0102_0304_u32, &[1, 2, 3, 4]);
    check(-2_i64, &[255, 255, 255, 255, 255, 255, 255, 254]);
    check(0x0102_0304_0506_0708_u64, &[1, 2, 3, 4, 5, 6, 7, 8]);
    check(1.0_f32, &[0x3f, 0x80, 0, 0]);
    check(-2.5_f64, &[0xc0, 0x04, 0, 0, 0, 0, 0, 0]);
    check(-1_i8, &[255; 4]);
    check(255_u8, &[0, 0, 0, 255]);
    check(-32_768_i16, &[255, 255, 128, 0]);
    check(65_535_u16, &[0, 0, 255, 255]);
}

/// RFC 4506, section 7: the example of a file.
#[test]
fn strings_and_opaque_data_are_filled_up_to_four_bytes() {
    check(Text::from("sillyprog"), b"\0\0\0\x09sillyprog\0\0\0");
    check(Text::from("lisp"), b"\0\0\0\x04lisp");
    check(Text::from(""), b"\0\0\0\0");
    let mut writer = Writer::new();
    writer.fixed_opaque(b"(quit)");
    assert_eq!(writer.into_bytes(), &b"(quit)\0\0"[..]);
}

#[test]
fn every_bit_of_a_number_that_is_none_passes() {
    let bytes = [0x7f, 0xf0, 0, 0, 0, 0, 0, 1];
    let read: f64 = xdr::decode(Bytes::copy_from_slice(&bytes), XdrLimits::default()).unwrap();
    assert_eq!(xdr::encode(&read).unwrap(), &bytes[..]);
}

#[test]
fn what_fills_up_is_not_looked_at() {
    let bytes = Bytes::from_static(b"\0\0\0\x01x???");
    assert_eq!(
        xdr::decode::<Text>(bytes, XdrLimits::default()).unwrap(),
        "x"
    );
}

#[test]
fn strings_need_not_be_utf_8() {
    let name = Text::from(Bytes::from_static(b"caf\xe9 \""));
    assert!(name.as_str().is_err());
    assert_eq!(name.to_string(), "caf\u{fffd} \"");
    assert_eq!(format!("{name:?}"), r#""caf\xe9 \"""#);
    check(name, b"\0\0\0\x06caf\xe9 \"\0\0");
}

/// Reading these bytes fails with this message.
fn check_error<T: std::fmt::Debug>(
    bytes: &[u8],
    limits: XdrLimits,
    read: impl FnOnce(&mut Reader) -> Result<T, DecodeError>,
    message: &str,
) {
    let mut reader = Reader::new(Bytes::copy_from_slice(bytes), limits);
    let error = read(&mut reader).expect_err("the bytes are wrong");
    assert_eq!(error.to_string(), message);
}

#[test]
fn errors_say_what_was_expected_and_found_and_where() {
    let limits = XdrLimits::default();
    let second = |reader: &mut Reader| {
        reader.u32()?;
        bool::decode(reader)
    };
    check_error(
        &[0, 0, 0, 0, 0, 0, 0, 7],
        limits,
        second,
        "at byte 4: expected a bool, 0 or 1, found 7",
    );
    check_error(
        &[0, 0, 1, 0],
        limits,
        u8::decode,
        "at byte 0: expected u8, found 256",
    );
    check_error(
        &[0, 0, 0],
        limits,
        u32::decode,
        "at byte 0: expected 4 more bytes, found 3",
    );
    check_error(
        b"\0\0\0\x05abcde\0\0",
        limits,
        |reader| reader.text(None),
        "at byte 4: expected 8 more bytes, found 7",
    );
    check_error(
        b"\0\0\0\x05abcde\0\0\0",
        limits,
        |reader| reader.text(Some(4)),
        "at byte 0: expected at most 4 elements, found a length of 5",
    );
    let trailing = xdr::decode::<u32>(Bytes::from_static(&[0; 12]), limits).unwrap_err();
    assert_eq!(
        trailing.to_string(),
        "at byte 4: expected the end, found 8 more bytes"
    );
}

#[test]
fn values_within_values_have_a_limit() {
    fn nest(reader: &mut Reader) -> Result<(), DecodeError> {
        reader.optional(nest).map(drop)
    }
    let deep = [0, 0, 0, 1].repeat(MAX_DEPTH as usize + 1);
    let message = format!(
        "at byte {}: expected at most 128 levels of values within values, found more",
        deep.len()
    );
    check_error(&deep, XdrLimits::default(), nest, &message);

    fn nested(writer: &mut Writer, levels: &u32) -> Result<(), EncodeError> {
        let inner = levels.checked_sub(1);
        writer.optional(inner.as_ref(), nested)
    }
    assert_eq!(nested(&mut Writer::new(), &MAX_DEPTH), Ok(()));
    assert_eq!(
        nested(&mut Writer::new(), &(MAX_DEPTH + 1)),
        Err(EncodeError::TooDeep { limit: MAX_DEPTH })
    );
}

#[test]
fn lists_are_one_level_however_long() {
    let numbers: Vec<u32> = (0..100_000).collect();
    let mut writer = Writer::new();
    writer
        .list(&numbers, |writer, each| each.encode(writer))
        .unwrap();
    let mut reader = Reader::new(writer.into_bytes(), XdrLimits::default());
    assert_eq!(reader.list(u32::decode), Ok(numbers));
    assert_eq!(reader.finish(), Ok(()));
}

#[test]
fn memory_has_a_limit_also_for_elements_without_bytes() {
    let limits = XdrLimits {
        memory: 1000,
        length: u32::MAX,
    };
    let endless = [255; 4];
    let message = "at byte 4: expected a value of at most 1000 bytes of memory, found a larger one";
    check_error(
        &endless,
        limits,
        |reader| reader.array(None, <()>::decode),
        message,
    );

    // 200 optional values of 16 bytes of memory and 4 bytes on the wire, which may take 63 at most.
    let amplified = [&[0, 0, 0, 200][..], &[0; 800]].concat();
    let read = |reader: &mut Reader| {
        reader.array(None, |reader| {
            u32::decode(reader).map(|number| [u64::from(number); 2])
        })
    };
    let message =
        "at byte 252: expected a value of at most 1000 bytes of memory, found a larger one";
    check_error(&amplified, limits, read, message);
}

#[test]
fn values_that_the_interface_has_no_bytes_for_are_refused() {
    let mut writer = Writer::new();
    let error = writer.text(&Text::from("four"), Some(3)).unwrap_err();
    assert_eq!(error.to_string(), "expected at most 3 elements, found 4");
    assert!(writer.into_bytes().is_empty(), "nothing is written of it");
}
