//! The facts of a partition in a file, one after the other: `log/record.rs` has their bytes.
//!
//! What was loaded is written first, and the store knows how long that is and its checksum. Facts that are inserted follow,
//! each by one call of the operating system before it is acknowledged: so it outlives the process, but not always the
//! machine. A process that dies while it writes leaves the beginning of a record at the end of the file. Of that, nothing
//! was acknowledged, and it is cut off when the file is opened again. Everything else that is not as it was written is
//! damage: it is told, and the file stays as it is.

mod record;

pub use record::Extent;

use crate::fact::Fact;
use anyhow::Context;
use record::{Fault, Reader};
use std::fmt;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// The file of a partition, open and locked.
#[derive(Debug)]
pub struct Log {
    file: File,
    /// How far it goes, all facts whole.
    whole: Extent,
    /// What stands after `whole` could not be removed: nothing can be added.
    broken: bool,
}

/// A file that ended with a part of a record, which was cut off.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unfinished {
    /// Which one.
    pub file: PathBuf,
    /// Where it ends now.
    pub end: u64,
    /// How many bytes were cut off.
    pub bytes: u64,
}

/// A file that is not as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// Which one.
    pub file: PathBuf,
    /// All before this is as it was written.
    pub offset: u64,
    /// What should stand there.
    pub expected: String,
    /// What does.
    pub found: String,
    /// How much of it was loaded, in bytes: what follows was inserted.
    pub loaded: u64,
}

/// A file that belongs to another process, which has opened it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InUse(pub PathBuf);

impl Log {
    /// Opens a partition's file, of which so much was loaded, and hands out its facts. What was cut off its end is told.
    ///
    /// # Errors
    ///
    /// If it cannot be read or written, is [damaged](Damage), or is [in use](InUse). It has not changed then, and the facts
    /// are not all.
    pub fn open(
        path: &Path,
        partition: u32,
        loaded: Extent,
        each: impl FnMut(Fact),
    ) -> anyhow::Result<(Self, Option<Unfinished>)> {
        let shown = path.display();
        let damage = |fault: Fault| Damage {
            file: path.to_owned(),
            offset: fault.offset,
            expected: fault.expected,
            found: fault.found,
            loaded: loaded.length,
        };
        let mut file = match OpenOptions::new().read(true).write(true).open(path) {
            Ok(file) => lock(file, path)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(damage(ends(0, loaded, "no such file")).into());
            }
            Err(error) => return Err(error).with_context(|| format!("{shown} can't be opened")),
        };
        let mut bytes = Vec::new();
        let read = file.read_to_end(&mut bytes);
        read.with_context(|| format!("{shown} can't be read"))?;
        let whole = read_facts(&bytes, partition, loaded, each).map_err(damage)?;
        let mut log = Self {
            file,
            whole,
            broken: false,
        };
        let unfinished = Unfinished {
            file: path.to_owned(),
            end: whole.length,
            bytes: bytes.len() as u64 - whole.length,
        };
        if unfinished.bytes == 0 {
            return Ok((log, None));
        }
        let cut = log.cut();
        cut.with_context(|| format!("{shown} can't be written"))?;
        Ok((log, Some(unfinished)))
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
        let (record, whole) = self.whole.append(fact)?;
        if let Err(error) = self.file.write_all(&record) {
            self.broken = self.cut().is_err();
            return Err(error);
        }
        self.whole = whole;
        Ok(())
    }

    /// Removes what stands after the last whole fact.
    fn cut(&mut self) -> io::Result<()> {
        self.file.set_len(self.whole.length)?;
        self.file.seek(SeekFrom::Start(self.whole.length)).map(drop)
    }
}

/// Opens a partition's file, or makes it, for this process alone.
///
/// # Errors
///
/// If it cannot be opened or belongs to another process now.
pub fn claim(path: &Path) -> anyhow::Result<File> {
    let mut options = OpenOptions::new();
    let options = options.read(true).write(true).create(true).truncate(false);
    let file = options.open(path);
    lock(
        file.with_context(|| format!("{} can't be opened", path.display()))?,
        path,
    )
}

fn lock(file: File, path: &Path) -> anyhow::Result<File> {
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(InUse(path.to_owned()).into()),
        Err(TryLockError::Error(error)) => {
            Err(error).with_context(|| format!("{} can't be locked", path.display()))
        }
    }
}

/// Hands out the facts of a file; how far they go.
fn read_facts(
    bytes: &[u8],
    partition: u32,
    loaded: Extent,
    mut each: impl FnMut(Fact),
) -> Result<Extent, Fault> {
    let length = bytes.len() as u64;
    let mut reader = Reader::begin(bytes, partition)?;
    if length < loaded.length {
        return Err(ends(length, loaded, "its end"));
    }
    let mut confirmed = false;
    loop {
        let read = reader.read();
        if !confirmed && read.length >= loaded.length {
            confirm(read, loaded)?;
            confirmed = true;
        }
        match reader.fact()? {
            Some(fact) => each(fact),
            None if confirmed => return Ok(read),
            // It is long enough, but its last whole fact ends before.
            None => return Err(ends(read.length, loaded, "less")),
        }
    }
}

/// What was read must be what was loaded, not of another graph.
fn confirm(read: Extent, loaded: Extent) -> Result<(), Fault> {
    if read == loaded {
        return Ok(());
    }
    let shown = |extent: Extent| {
        let Extent { length, checksum } = extent;
        format!("{length} bytes of facts with the checksum {checksum:#010x}")
    };
    Err(Fault {
        offset: 0,
        expected: shown(loaded),
        found: shown(read),
    })
}

/// A file that does not have all that was loaded.
fn ends(offset: u64, loaded: Extent, found: &str) -> Fault {
    Fault {
        offset,
        expected: format!("the {} bytes that were loaded", loaded.length),
        found: found.to_owned(),
    }
}

impl fmt::Display for Unfinished {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} ended with {} bytes of an insert that was being written when its server died, and that was not \
             acknowledged: they were cut off at byte {}",
            self.file.display(),
            self.bytes,
            self.end
        )
    }
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            file,
            offset,
            expected,
            found,
            loaded,
        } = self;
        let file = file.display();
        write!(
            f,
            "{file} is damaged at byte {offset}: expected {expected}, found {found}; load the graph again, by \
             'wallaby-graph load --replace'"
        )?;
        if offset >= loaded {
            write!(
                f,
                ", or give up only what was inserted into this partition from there on, by 'truncate -s {offset} {file}'"
            )?;
        }
        Ok(())
    }
}

impl fmt::Display for InUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} is in use by another process, perhaps by a cluster that 'wallaby-graph up' has started: end it first",
            self.0.display()
        )
    }
}

impl std::error::Error for Damage {}

impl std::error::Error for InUse {}
