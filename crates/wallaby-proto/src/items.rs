//! Items one behind the other in the bytes of a body: each follows its length, however the bytes are cut into chunks.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use thiserror::Error;

use crate::status::Code;
use crate::varint::{self, MAX_LEN, Reader, WireError};

/// What an item's length is called in errors.
const LENGTH: &str = "the item's length";

/// Why bytes are no item.
#[derive(Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ItemError {
    /// What stands where its length should is none.
    #[error(transparent)]
    Length(#[from] WireError),
    /// It is longer than the reader takes.
    #[error("it has {size} bytes: at most {limit} are taken")]
    TooLarge {
        /// Its length, in bytes.
        size: u64,
        /// The limit.
        limit: u64,
    },
    /// The stream ends inside it.
    #[error("it should have {expected} bytes: the stream ends after {came}")]
    Truncated {
        /// Its length, in bytes.
        expected: u64,
        /// How many came.
        came: u64,
    },
}

impl ItemError {
    /// What kind of error it is.
    pub fn code(&self) -> Code {
        match self {
            Self::Length(_) => Code::InvalidArgument,
            Self::TooLarge { .. } => Code::ResourceExhausted,
            Self::Truncated { .. } => Code::DataLoss,
        }
    }
}

/// Appends the length of an item, behind which its bytes follow.
pub fn put_length(out: &mut impl BufMut, length: usize) {
    varint::put(out, length as u64);
}

/// Finds the items in the chunks of a body. Of one that spans chunks it keeps what has come, and never makes room for what was
/// only announced.
#[derive(Debug)]
pub struct ItemReader {
    limit: u64,
    /// What has come of a length.
    head: ([u8; MAX_LEN], usize),
    /// The length of the item that has begun.
    length: Option<usize>,
    /// What has come of it.
    held: BytesMut,
}

impl ItemReader {
    /// One for items of at most so many bytes.
    pub fn new(limit: u64) -> Self {
        Self {
            limit,
            head: ([0; MAX_LEN], 0),
            length: None,
            held: BytesMut::new(),
        }
    }

    /// Takes no longer items than this, from the next one on.
    pub fn set_limit(&mut self, limit: u64) {
        self.limit = limit;
    }

    /// Takes the next item, or what there is of it, from the front of `chunk`; `None` once the chunk is used up.
    ///
    /// # Errors
    ///
    /// If there is no item, or a longer one than is taken. What follows cannot be told from it then.
    pub fn next(&mut self, chunk: &mut Bytes) -> Result<Option<Bytes>, ItemError> {
        let Some(length) = self.read_length(chunk)? else {
            return Ok(None);
        };
        if self.held.is_empty() && chunk.len() >= length {
            self.length = None;
            return Ok(Some(chunk.split_to(length)));
        }
        let missing = length - self.held.len();
        let came = chunk.split_to(missing.min(chunk.len()));
        self.held.extend_from_slice(&came);
        if self.held.len() < length {
            return Ok(None);
        }
        self.length = None;
        Ok(Some(std::mem::take(&mut self.held).freeze()))
    }

    /// The body is whole: no item may have begun.
    ///
    /// # Errors
    ///
    /// If one has.
    pub fn finish(&self) -> Result<(), ItemError> {
        if let Some(expected) = self.length {
            let (expected, came) = (expected as u64, self.held.len() as u64);
            return Err(ItemError::Truncated { expected, came });
        }
        match self.head.1 {
            0 => Ok(()),
            _ => Err(WireError::Truncated { what: LENGTH }.into()),
        }
    }

    /// The bytes of the item that has begun, its length first: what another reader needs to go on.
    pub fn into_begun(self) -> Bytes {
        let Some(length) = self.length else {
            return Bytes::copy_from_slice(&self.head.0[..self.head.1]);
        };
        let mut begun = BytesMut::with_capacity(MAX_LEN + self.held.len());
        put_length(&mut begun, length);
        begun.extend_from_slice(&self.held);
        begun.freeze()
    }

    /// The length of the item that has begun, or begins now; `None` while it has not come whole.
    fn read_length(&mut self, chunk: &mut Bytes) -> Result<Option<usize>, ItemError> {
        let (head, len) = &mut self.head;
        while self.length.is_none() && !chunk.is_empty() {
            let byte = chunk.get_u8();
            head[*len] = byte;
            *len += 1;
            if byte & 0x80 == 0 || *len == MAX_LEN {
                let length = Reader::new(&head[..*len]).varint(LENGTH)?;
                self.length = Some(within(length, self.limit)?);
                *len = 0;
            }
        }
        Ok(self.length)
    }
}

fn within(size: u64, limit: u64) -> Result<usize, ItemError> {
    let length = usize::try_from(size).ok().filter(|_| size <= limit);
    length.ok_or(ItemError::TooLarge { size, limit })
}

crate::debug_as_text!(ItemError);

#[cfg(test)]
mod tests {
    use super::*;

    fn written(items: &[&[u8]]) -> Bytes {
        let mut out = BytesMut::new();
        for item in items {
            put_length(&mut out, item.len());
            out.extend_from_slice(item);
        }
        out.freeze()
    }

    /// The items of chunks of this size, and how it ends.
    fn read(bytes: &Bytes, limit: u64, size: usize) -> (Vec<Bytes>, Result<(), ItemError>) {
        let mut reader = ItemReader::new(limit);
        let mut items = Vec::new();
        for chunk in bytes.chunks(size) {
            let mut chunk = bytes.slice_ref(chunk);
            loop {
                match reader.next(&mut chunk) {
                    Ok(Some(item)) => items.push(item),
                    Ok(None) => break,
                    Err(error) => return (items, Err(error)),
                }
            }
            assert!(chunk.is_empty());
        }
        (items, reader.finish())
    }

    fn check(bytes: &Bytes, limit: u64, expected: &[&[u8]], end: &Result<(), ItemError>) {
        for size in 1..=bytes.len().max(1) {
            let (items, found) = read(bytes, limit, size);
            assert_eq!(items, expected, "in chunks of {size}");
            assert_eq!(&found, end, "in chunks of {size}");
        }
    }

    #[test]
    fn the_bytes_of_items() {
        let long = [7; 200];
        let bytes = written(&[b"hop", b"", &long]);
        assert_eq!(bytes[..7], [3, b'h', b'o', b'p', 0, 0xc8, 0x01]);
        assert_eq!(bytes[7..], long);
    }

    #[test]
    fn items_are_the_same_however_they_are_cut() {
        let items: [&[u8]; 5] = [b"", b"a", &[2; 127], &[3; 128], b""];
        check(&written(&items), 128, &items, &Ok(()));
        check(&Bytes::new(), 0, &[], &Ok(()));
    }

    #[test]
    fn what_ends_too_early_says_where() {
        let bytes = written(&[b"whole", &[1; 300]]);
        let inside = ItemError::Truncated {
            expected: 300,
            came: 299,
        };
        check(
            &bytes.slice(..bytes.len() - 1),
            300,
            &[b"whole"],
            &Err(inside),
        );
        let none = ItemError::Truncated {
            expected: 300,
            came: 0,
        };
        check(&bytes.slice(..8), 300, &[b"whole"], &Err(none));
        let length = ItemError::Length(WireError::Truncated { what: LENGTH });
        check(&bytes.slice(..7), 300, &[b"whole"], &Err(length));
    }

    #[test]
    fn what_is_too_long_is_refused_before_it_comes() {
        let bytes = written(&[b"12345", b"123456"]);
        let error = ItemError::TooLarge { size: 6, limit: 5 };
        check(&bytes, 5, &[b"12345"], &Err(error));
        let most = Bytes::from_static(&[
            0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1, 0, 0,
        ]);
        let error = ItemError::TooLarge {
            size: u64::MAX,
            limit: 5,
        };
        check(&most, 5, &[], &Err(error));
    }

    #[test]
    fn only_the_shortest_length_is_one() {
        for bytes in [&[0x80, 0x00][..], &[0xff; 11]] {
            let (items, end) = read(&Bytes::copy_from_slice(bytes), 5, 1);
            assert!(items.is_empty());
            assert!(matches!(end, Err(ItemError::Length(_))), "{end:?}");
        }
    }

    #[test]
    fn another_reader_can_go_on_anywhere() {
        let items: [&[u8]; 4] = [b"one", b"", &[2; 300], b"four"];
        let bytes = written(&items);
        for cut in 0..=bytes.len() {
            let mut reader = ItemReader::new(300);
            let mut chunk = bytes.slice(..cut);
            let mut found = Vec::new();
            while let Some(item) = reader.next(&mut chunk).expect("items") {
                found.push(item);
            }
            let rest = [&reader.into_begun()[..], &bytes[cut..]].concat();
            let (others, end) = read(&rest.into(), 300, 7);
            found.extend(others);
            assert_eq!(end, Ok(()), "cut at {cut}");
            assert_eq!(found, items, "cut at {cut}");
        }
    }
}
