//! Record marking: every record comes out as it went in, however the stream is cut.

use bytes::BytesMut;
use proptest::prelude::*;
use wallaby_onc::record::{self, RecordReader, RecordTooLong};

fn written(message: &[u8], fragment: usize) -> BytesMut {
    let mut out = BytesMut::new();
    record::write(message, fragment, &mut out);
    out
}

#[test]
fn fragments_have_the_bytes_of_the_standard() {
    assert_eq!(written(b"abcd", 100), &b"\x80\0\0\x04abcd"[..]);
    assert_eq!(
        written(b"abcde", 2),
        &b"\0\0\0\x02ab\0\0\0\x02cd\x80\0\0\x01e"[..]
    );
    // No fragment follows that would be empty.
    assert_eq!(written(b"abcd", 2), &b"\0\0\0\x02ab\x80\0\0\x02cd"[..]);
    assert_eq!(written(b"", 2), &b"\x80\0\0\0"[..]);
    // A fragment of no bytes would never end the record.
    assert_eq!(written(b"ab", 0), &b"\0\0\0\x01a\x80\0\0\x01b"[..]);
}

#[test]
fn a_record_is_there_with_its_last_byte() {
    let mut records = RecordReader::new(10);
    assert!(records.is_between_records());
    for byte in b"\0\0\0\x02ab\0\0\0\0\x80\0\0\x01" {
        records.handle_input(&[*byte]);
        assert_eq!(records.poll_record(), Ok(None));
        assert!(!records.is_between_records());
    }
    records.handle_input(b"c");
    assert_eq!(records.poll_record(), Ok(Some("abc".into())));
    assert!(records.is_between_records());
}

#[test]
fn a_record_too_long_is_refused_by_its_header() {
    let error = RecordTooLong {
        limit: 10,
        found: 11,
    };
    let mut records = RecordReader::new(10);
    records.handle_input(b"\x80\0\0\x0a0123456789\x80\0\0\x0b");
    assert_eq!(records.poll_record(), Ok(Some("0123456789".into())));
    assert_eq!(records.poll_record(), Err(error.clone()));
    assert_eq!(records.poll_record(), Err(error.clone()), "it stays so");

    // Neither are fragments a way around the limit.
    let mut records = RecordReader::new(10);
    records.handle_input(b"\0\0\0\x06012345\x80\0\0\x05");
    assert_eq!(records.poll_record(), Err(error));

    let mut records = RecordReader::new(10);
    records.handle_input(&[0x7f, 0xff, 0xff, 0xff]);
    let found = 0x7fff_ffff;
    assert_eq!(
        records.poll_record(),
        Err(RecordTooLong { limit: 10, found })
    );
}

proptest! {
    #[test]
    fn records_come_out_as_they_went_in(
        messages in proptest::collection::vec((proptest::collection::vec(any::<u8>(), 0..200), 1_usize..300), 0..8),
        cuts in proptest::collection::vec(1_usize..100, 1..20),
    ) {
        let mut stream = BytesMut::new();
        for (message, fragment) in &messages {
            record::write(message, *fragment, &mut stream);
        }
        let mut records = RecordReader::new(200);
        let mut found = Vec::new();
        let mut cuts = cuts.into_iter().cycle();
        while !stream.is_empty() {
            let cut = cuts.next().map_or(1, |cut| cut.min(stream.len()));
            records.handle_input(&stream.split_to(cut));
            while let Some(record) = records.poll_record().unwrap() {
                found.push(record.to_vec());
            }
        }
        let sent: Vec<Vec<u8>> = messages.into_iter().map(|(message, _)| message).collect();
        prop_assert_eq!(found, sent);
        prop_assert!(records.is_between_records());
    }

    #[test]
    fn arbitrary_streams_are_read_or_refused(stream in proptest::collection::vec(any::<u8>(), 0..300)) {
        let mut records = RecordReader::new(100);
        records.handle_input(&stream);
        while let Ok(Some(record)) = records.poll_record() {
            prop_assert!(record.len() <= 100);
        }
    }
}
