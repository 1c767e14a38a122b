//! The bytes of a partition's file.
//!
//! ```text
//! "wallgrf2" | partition: u32 | checksum     ( length: u32 | checksum | fact, postcard | checksum )*
//! ```
//!
//! Integers are little-endian. A checksum is the CRC-32C of all that stands before it in the file, other checksums left out:
//! so it also tells of facts that are gone, or at another place. A length has its own, for a wrong one would make
//! damage look like the end of what was written.

use crate::fact::Fact;
use serde::{Deserialize, Serialize};
use std::io;

const MAGIC: &[u8; 8] = b"wallgrf2";
const CHECKSUM: usize = 4;
/// A length and its checksum.
const HEADER: usize = 4 + CHECKSUM;
/// Nothing that is inserted comes near this.
const LONGEST: usize = 16 << 20;

/// How far a file goes, and the checksum of that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extent {
    /// In bytes.
    pub length: u64,
    /// Of everything but checksums.
    pub checksum: u32,
}

/// What is wrong in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fault {
    /// All before this is as it was written.
    pub(super) offset: u64,
    pub(super) expected: String,
    pub(super) found: String,
}

/// Reads a file from its beginning on.
#[derive(Debug)]
pub(super) struct Reader<'a> {
    /// What was read, all of it whole.
    read: Extent,
    rest: &'a [u8],
}

impl Extent {
    /// The beginning of a file.
    pub fn begin(partition: u32) -> (Vec<u8>, Self) {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(partition.to_le_bytes());
        let checksum = crc32c::crc32c(&bytes);
        bytes.extend(checksum.to_le_bytes());
        let length = bytes.len() as u64;
        (bytes, Self { length, checksum })
    }

    /// The record of a fact that is added to a file, and how far that goes then.
    ///
    /// # Errors
    ///
    /// If the fact is too long.
    pub fn append(self, fact: &Fact) -> io::Result<(Vec<u8>, Self)> {
        let mut record = postcard::to_extend(fact, vec![0; HEADER]).map_err(io::Error::other)?;
        let length = record.len() - HEADER;
        if length > LONGEST {
            return Err(io::Error::other(format!(
                "a fact of {length} bytes, and {LONGEST} are the most"
            )));
        }
        let length = (length as u32).to_le_bytes();
        let checksum = crc32c::crc32c_append(self.checksum, &length);
        record[..4].copy_from_slice(&length);
        record[4..HEADER].copy_from_slice(&checksum.to_le_bytes());
        let checksum = crc32c::crc32c_append(checksum, &record[HEADER..]);
        record.extend(checksum.to_le_bytes());
        let length = self.length + record.len() as u64;
        Ok((record, Self { length, checksum }))
    }
}

impl<'a> Reader<'a> {
    /// Reads the beginning.
    pub(super) fn begin(bytes: &'a [u8], partition: u32) -> Result<Self, Fault> {
        let (beginning, read) = Extent::begin(partition);
        if let Some(rest) = bytes.strip_prefix(&beginning[..]) {
            return Ok(Self { read, rest });
        }
        let pairs = beginning.iter().zip(bytes);
        let offset = pairs.take_while(|(expected, found)| expected == found);
        let offset = offset.count();
        let byte = |of: &[u8]| of.get(offset).map(|byte| format!("the byte {byte:#04x}"));
        Err(Fault {
            offset: offset as u64,
            expected: byte(&beginning).unwrap_or_default()
                + &format!(" of the beginning of partition {partition}"),
            found: byte(bytes).unwrap_or_else(|| "the end of the file".to_owned()),
        })
    }

    /// What was read so far.
    pub(super) fn read(&self) -> Extent {
        self.read
    }

    /// Reads the next fact; `None` if nothing follows, or no more than the beginning of a record.
    pub(super) fn fact(&mut self) -> Result<Option<Fact>, Fault> {
        let Some((header, after)) = self.rest.split_first_chunk::<HEADER>() else {
            return Ok(None);
        };
        let [a, b, c, d, stored @ ..] = *header;
        let length = [a, b, c, d];
        let checksum = self.compare(self.read.checksum, &length, stored, "a length")?;
        let length = u32::from_le_bytes(length) as usize;
        let Some((fact, after)) = after.split_at_checked(length) else {
            return Ok(None);
        };
        let Some((stored, after)) = after.split_first_chunk::<CHECKSUM>() else {
            return Ok(None);
        };
        let checksum = self.compare(checksum, fact, *stored, "a fact")?;
        let fact = self.decode(fact)?;
        self.read.length += (self.rest.len() - after.len()) as u64;
        self.read.checksum = checksum;
        self.rest = after;
        Ok(Some(fact))
    }

    /// The checksum with these bytes, which must be the one that is stored.
    fn compare(&self, before: u32, bytes: &[u8], stored: [u8; 4], of: &str) -> Result<u32, Fault> {
        let checksum = crc32c::crc32c_append(before, bytes);
        let stored = u32::from_le_bytes(stored);
        if stored == checksum {
            return Ok(checksum);
        }
        Err(Fault {
            offset: self.read.length,
            expected: format!("{of} with the checksum {checksum:#010x}"),
            found: format!("{stored:#010x}"),
        })
    }

    fn decode(&self, bytes: &[u8]) -> Result<Fact, Fault> {
        let fault = |found| Fault {
            offset: self.read.length,
            expected: "a fact".to_owned(),
            found,
        };
        match postcard::take_from_bytes(bytes) {
            Ok((fact, [])) => Ok(fact),
            Ok((_, more)) => Err(fault(format!("one with {} bytes after it", more.len()))),
            Err(error) => Err(fault(format!("something else ({error})"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{MessageId, PersonId, Timestamp};

    #[test]
    fn the_bytes_are_these() {
        let (beginning, extent) = Extent::begin(7);
        assert_eq!(&beginning[..12], b"wallgrf2\x07\0\0\0");
        let fact = Fact::Wrote {
            by: PersonId(1),
            message: MessageId(2),
            created: Timestamp(3),
        };
        let (record, end) = extent.append(&fact).unwrap();
        // The fifth kind of fact and three integers, written zigzag.
        assert_eq!(record[..4], 4u32.to_le_bytes());
        assert_eq!(record[8..12], [4, 2, 4, 6]);
        let counted = [&beginning[..12], &record[..4], &record[8..12]].concat();
        let checksum = crc32c::crc32c(&counted);
        assert_eq!(record[12..], checksum.to_le_bytes());
        let length = (beginning.len() + record.len()) as u64;
        assert_eq!(end, Extent { length, checksum });
    }

    #[test]
    fn a_fact_that_no_program_wrote_is_told() {
        let (mut bytes, extent) = Extent::begin(0);
        let length = 1u32.to_le_bytes();
        let checksum = crc32c::crc32c_append(extent.checksum, &length);
        bytes.extend(length.into_iter().chain(checksum.to_le_bytes()));
        bytes.push(99);
        bytes.extend(crc32c::crc32c_append(checksum, &[99]).to_le_bytes());
        let mut reader = Reader::begin(&bytes, 0).unwrap();
        let fault = reader.fact().unwrap_err();
        assert_eq!((fault.offset, &*fault.expected), (16, "a fact"));
        assert!(fault.found.starts_with("something else"), "{fault:?}");
    }
}
