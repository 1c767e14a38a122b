//! Items in the body of a request, whatever its bytes are.

use bytes::Bytes;
use wallaby_proto::items::{ItemError, ItemReader, put_length};

use crate::choices::Choices;

/// Items are the same however their bytes are cut, written again as the same bytes, and none is over the limit; a reader that
/// takes over anywhere goes on as the first would.
pub(crate) fn run(bytes: &[u8]) {
    let mut choices = Choices::new(bytes);
    let limit = u64::from(choices.number());
    let piece = usize::from(choices.byte().max(1));
    let cut = choices.number() as usize;
    let stream = Bytes::copy_from_slice(choices.rest());
    let at_once = read(limit, &stream, stream.len().max(1));
    assert_eq!(at_once, read(limit, &stream, piece));
    let (items, end) = at_once;
    let mut written = Vec::new();
    for item in &items {
        assert!(item.len() as u64 <= limit);
        put_length(&mut written, item.len());
        written.extend_from_slice(item);
    }
    assert!(stream.starts_with(&written));
    assert_eq!(end.is_ok(), written.len() == stream.len());
    hand_over(limit, &stream, cut.min(stream.len()), &items);
}

/// The items of a stream in pieces, and how it ends.
fn read(limit: u64, stream: &Bytes, piece: usize) -> (Vec<Bytes>, Result<(), ItemError>) {
    let mut reader = ItemReader::new(limit);
    let mut items = Vec::new();
    for chunk in stream.chunks(piece) {
        if let Err(error) = read_chunk(&mut reader, &stream.slice_ref(chunk), &mut items) {
            return (items, Err(error));
        }
    }
    (items, reader.finish())
}

fn read_chunk(
    reader: &mut ItemReader,
    chunk: &Bytes,
    items: &mut Vec<Bytes>,
) -> Result<(), ItemError> {
    let mut chunk = chunk.clone();
    while let Some(item) = reader.next(&mut chunk)? {
        items.push(item);
    }
    assert!(chunk.is_empty(), "{} bytes are left", chunk.len());
    Ok(())
}

fn hand_over(limit: u64, stream: &Bytes, cut: usize, expected: &[Bytes]) {
    let mut reader = ItemReader::new(limit);
    let mut items = Vec::new();
    if read_chunk(&mut reader, &stream.slice(..cut), &mut items).is_err() {
        return;
    }
    let begun = reader.into_begun();
    assert!(begun.len() <= cut, "more than has come");
    let rest = Bytes::from([&begun[..], &stream[cut..]].concat());
    items.extend(read(limit, &rest, rest.len().max(1)).0);
    assert_eq!(items, expected);
}
