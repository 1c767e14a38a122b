//! The facts of a partition in a file: one after the other, each with its length and its checksum.
//!
//! ```text
//! "wallgrf1"  ( length: u32 | crc32c: u32 | fact, postcard )*          integers are little-endian
//! ```
//!
//! A fact is written with one call of the operating system before it is acknowledged, so it survives the death of the
//! process, but not always that of the machine. What a death left unfinished at the end is cut off when the file is opened
//! again: that fact was not acknowledged, and is not there at all.

use crate::fact::Fact;
use anyhow::{Context, ensure};
use std::fmt;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

const MAGIC: &[u8; 8] = b"wallgrf1";
/// Length and checksum.
const HEADER: usize = 8;
/// Nothing that is inserted comes near this: a greater length is damage.
const LONGEST: usize = 16 << 20;

/// The file of a partition, open and locked.
#[derive(Debug)]
pub struct Log {
    file: File,
    /// How long it is, all facts whole.
    length: u64,
    /// What stands after `length` could not be removed: nothing can be added.
    broken: bool,
}

impl Log {
    /// Opens a partition's file, or makes it, and hands out its facts.
    ///
    /// # Errors
    ///
    /// If it cannot be read or written, is damaged, or belongs to another process now.
    pub fn open(path: &Path, mut each: impl FnMut(Fact)) -> anyhow::Result<Self> {
        let shown = path.display();
        let mut file = claim(path)?;
        let mut bytes = Vec::new();
        let read = file.read_to_end(&mut bytes);
        read.with_context(|| format!("{shown} can't be read"))?;
        let whole = read_facts(&bytes, &mut each).with_context(|| format!("{shown} is damaged"))?;
        let mut log = Self {
            file,
            length: whole,
            broken: false,
        };
        log.settle(bytes.len() as u64)
            .with_context(|| format!("{shown} can't be written"))?;
        Ok(log)
    }

    /// Adds a fact.
    ///
    /// # Errors
    ///
    /// If it cannot be written; it is not there then.
    pub fn append(&mut self, fact: &Fact) -> io::Result<()> {
        if self.broken {
            return Err(io::Error::other("an earlier fact was written in part"));
        }
        let record = record(fact)?;
        if let Err(error) = self.file.write_all(&record) {
            self.broken = self.cut().is_err();
            return Err(error);
        }
        self.length += record.len() as u64;
        Ok(())
    }

    /// Brings a file of `length` bytes to a state in which facts can be added.
    fn settle(&mut self, length: u64) -> io::Result<()> {
        if self.length == 0 {
            self.cut()?;
            self.file.write_all(MAGIC)?;
            self.length = MAGIC.len() as u64;
        } else if self.length < length {
            self.cut()?;
        }
        Ok(())
    }

    /// Removes what stands after the last whole fact.
    fn cut(&mut self) -> io::Result<()> {
        self.file.set_len(self.length)?;
        self.file.seek(SeekFrom::Start(self.length)).map(drop)
    }
}

/// Opens a partition's file, or makes it, for this process alone.
///
/// # Errors
///
/// If it cannot be opened or belongs to another process now.
pub fn claim(path: &Path) -> anyhow::Result<File> {
    let shown = path.display();
    let mut options = OpenOptions::new();
    let options = options.read(true).write(true).create(true).truncate(false);
    let file = options.open(path);
    let file = file.with_context(|| format!("{shown} can't be opened"))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(InUse(path.to_owned()).into()),
        Err(TryLockError::Error(error)) => {
            Err(error).with_context(|| format!("{shown} can't be locked"))
        }
    }
}

/// A file that belongs to another process, which has opened it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InUse(pub PathBuf);

impl fmt::Display for InUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} is in use by another process, perhaps by a cluster that 'wallaby-graph up' has started: end it first",
            self.0.display()
        )
    }
}

impl std::error::Error for InUse {}

/// The beginning of every file.
pub fn beginning() -> &'static [u8] {
    MAGIC
}

/// A fact as it stands in a file.
///
/// # Errors
///
/// If it is too long.
pub fn record(fact: &Fact) -> io::Result<Vec<u8>> {
    let mut record = postcard::to_extend(fact, vec![0; HEADER]).map_err(io::Error::other)?;
    let length = record.len() - HEADER;
    if length > LONGEST {
        return Err(io::Error::other(format!("a fact of {length} bytes")));
    }
    let checksum = crc32c::crc32c(&record[HEADER..]);
    record[..4].copy_from_slice(&(length as u32).to_le_bytes());
    record[4..HEADER].copy_from_slice(&checksum.to_le_bytes());
    Ok(record)
}

/// Hands out the facts of a file; how much of it they take up, 0 if not even its beginning is whole.
fn read_facts(bytes: &[u8], each: &mut impl FnMut(Fact)) -> anyhow::Result<u64> {
    let Some(mut rest) = bytes.strip_prefix(MAGIC) else {
        ensure!(MAGIC.starts_with(bytes), "it is no file of a graph");
        return Ok(0);
    };
    while let Some((header, after)) = rest.split_first_chunk::<HEADER>() {
        let offset = bytes.len() - rest.len();
        let [a, b, c, d, e, f, g, h] = *header;
        let length = u32::from_le_bytes([a, b, c, d]) as usize;
        let checksum = u32::from_le_bytes([e, f, g, h]);
        let Some((fact, following)) = after.split_at_checked(length) else {
            ensure!(length <= LONGEST, "a wrong length at byte {offset}");
            break;
        };
        if crc32c::crc32c(fact) != checksum {
            // The last fact may be there in part, and its length already whole.
            ensure!(following.is_empty(), "a wrong checksum at byte {offset}");
            break;
        }
        each(postcard::from_bytes(fact).with_context(|| format!("no fact at byte {offset}"))?);
        rest = following;
    }
    Ok((bytes.len() - rest.len()) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{MessageId, PersonId, Timestamp};

    fn path(name: &str) -> PathBuf {
        let path =
            std::env::temp_dir().join(format!("wallaby-graph-{}-{name}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        path
    }

    fn fact(number: i64) -> Fact {
        Fact::Wrote {
            by: PersonId(number),
            message: MessageId(2),
            created: Timestamp(3),
        }
    }

    fn facts(path: &Path) -> anyhow::Result<Vec<Fact>> {
        let mut facts = Vec::new();
        Log::open(path, |fact| facts.push(fact))?;
        Ok(facts)
    }

    #[test]
    fn facts_come_back_and_a_torn_end_does_not() {
        let path = path("torn");
        let mut log = Log::open(&path, |_| panic!("a new file is empty")).unwrap();
        log.append(&fact(1)).unwrap();
        log.append(&fact(2)).unwrap();
        drop(log);
        let whole = std::fs::read(&path).unwrap();
        let last = record(&fact(2)).unwrap().len();
        for missing in 1..=last {
            std::fs::write(&path, &whole[..whole.len() - missing]).unwrap();
            assert_eq!(facts(&path).unwrap(), [fact(1)], "{missing} bytes missing");
            let mut log = Log::open(&path, drop).unwrap();
            log.append(&fact(3)).unwrap();
            drop(log);
            assert_eq!(facts(&path).unwrap(), [fact(1), fact(3)]);
        }
        for length in 0..MAGIC.len() {
            std::fs::write(&path, &whole[..length]).unwrap();
            assert_eq!(facts(&path).unwrap(), []);
        }
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn damage_is_an_error_and_not_the_end() {
        let path = path("damage");
        let mut bytes = MAGIC.to_vec();
        bytes.extend(record(&fact(1)).unwrap());
        bytes.extend(record(&fact(2)).unwrap());
        for at in MAGIC.len()..MAGIC.len() + record(&fact(1)).unwrap().len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x40;
            std::fs::write(&path, damaged).unwrap();
            let read = facts(&path);
            // A wrong length may point behind the end, as that of a fact that was written in part does.
            assert!(read.is_err() || read.unwrap().is_empty(), "byte {at}");
        }
        std::fs::write(&path, "something else").unwrap();
        assert!(facts(&path).is_err());
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_file_has_one_owner() {
        let path = path("owner");
        let first = Log::open(&path, drop).unwrap();
        assert!(Log::open(&path, drop).unwrap_err().is::<InUse>());
        drop(first);
        Log::open(&path, drop).unwrap();
        std::fs::remove_file(path).unwrap();
    }
}
