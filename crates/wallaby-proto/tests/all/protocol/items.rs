//! Items in the body of a request are the same however its bytes are cut, and whoever reads on.

use bytes::Bytes;
use proptest::collection::vec;
use proptest::prelude::*;
use wallaby_proto::items::{ItemError, ItemReader, put_length};

use crate::protocol::strategies::config;

fn written(items: &[Vec<u8>]) -> Bytes {
    let mut out = Vec::new();
    for item in items {
        put_length(&mut out, item.len());
        out.extend_from_slice(item);
    }
    out.into()
}

/// Reads chunks of these lengths, over and over.
fn read(
    reader: &mut ItemReader,
    mut bytes: Bytes,
    cuts: &[usize],
) -> Result<Vec<Bytes>, ItemError> {
    let mut items = Vec::new();
    for cut in cuts.iter().cycle() {
        if bytes.is_empty() {
            break;
        }
        let mut chunk = bytes.split_to(bytes.len().min(*cut));
        while let Some(item) = reader.next(&mut chunk)? {
            items.push(item);
        }
    }
    Ok(items)
}

fn item() -> impl Strategy<Value = Vec<u8>> {
    let len = prop_oneof![0..4usize, 120..140usize, 0..3000usize];
    len.prop_flat_map(|len| vec(any::<u8>(), len))
}

proptest! {
    #![proptest_config(config(200))]

    #[test]
    fn items_are_those_that_were_written(
        items in vec(item(), 0..20),
        cuts in vec(prop_oneof![1..4usize, 1..2000usize], 1..20),
        stop in any::<prop::sample::Index>(),
    ) {
        let bytes = written(&items);
        let longest = items.iter().map(Vec::len).max().unwrap_or_default() as u64;
        let mut reader = ItemReader::new(longest);
        let all = read(&mut reader, bytes.clone(), &cuts);
        prop_assert_eq!(all, Ok(expected(&items)));
        prop_assert_eq!(reader.finish(), Ok(()));

        // Another one goes on where the first is stopped.
        let stop = stop.index(bytes.len() + 1);
        let mut first = ItemReader::new(longest);
        let mut found = read(&mut first, bytes.slice(..stop), &cuts).expect("items");
        let mut second = ItemReader::new(longest);
        let rest = [&first.into_begun()[..], &bytes[stop..]].concat();
        found.extend(read(&mut second, rest.into(), &cuts).expect("items"));
        prop_assert_eq!(found, expected(&items));

        // Cut short, it ends inside an item or behind one.
        let mut short = ItemReader::new(longest);
        let found = read(&mut short, bytes.slice(..stop), &cuts).expect("items");
        let whole = written(&items[..found.len()]);
        prop_assert_eq!(short.finish().is_ok(), whole.len() == stop);

        if longest > 0 {
            let refused = read(&mut ItemReader::new(longest - 1), bytes, &cuts);
            let (size, limit) = (longest, longest - 1);
            prop_assert_eq!(refused, Err(ItemError::TooLarge { size, limit }));
        }
    }
}

fn expected(items: &[Vec<u8>]) -> Vec<Bytes> {
    items
        .iter()
        .map(|item| Bytes::copy_from_slice(item))
        .collect()
}
