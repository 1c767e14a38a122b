//! The facts of a partition in a file, in the order in which they were learned: a redb database.
//!
//! A fact is in the file before it is acknowledged, so it outlives its server, however that ends. What was being written
//! when a server died, and was not acknowledged, is gone. Each opening compares all pages with their checksums: what is not
//! as it was written is [`Damage`].

use crate::fact::Fact;
use crate::placement::partition;
use anyhow::{Context, anyhow, bail, ensure};
use redb::backends::FileBackend;
use redb::{Builder, Database, ReadableDatabase, ReadableTable, StorageBackend, TableDefinition};
use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

/// Numbered from 0, postcard.
const FACTS: TableDefinition<u64, &[u8]> = TableDefinition::new("facts");
/// How much of a database is kept in memory, in bytes: each fact is read once.
const CACHE: usize = 1 << 20;

/// The file of a partition, open: for this process alone.
#[derive(Debug)]
pub struct Facts {
    database: Database,
    /// How many there are.
    count: u64,
}

/// A file that is not as it was written.
#[derive(Debug, thiserror::Error)]
#[error("{} is damaged: {reason}; load the graph again, by 'wallaby-graph load --replace'", file.display())]
pub struct Damage {
    /// Which one.
    pub file: PathBuf,
    /// What is wrong.
    pub reason: String,
}

impl Facts {
    /// Makes a file without facts of one that was [claimed](claim).
    pub fn create(file: File) -> anyhow::Result<Self> {
        file.set_len(0)?;
        let database = builder().create_with_backend(Unflushed(FileBackend::new(file)?))?;
        Ok(Self { database, count: 0 })
    }

    /// Opens the file of a partition, into which at least `loaded` facts were written, and hands them out.
    pub fn open(
        path: &Path,
        number: u32,
        loaded: u64,
        each: impl FnMut(Fact),
    ) -> anyhow::Result<Self> {
        let damage = |error| Damage {
            file: path.to_owned(),
            reason: format!("{error:#}"),
        };
        if !path.exists() {
            return Err(damage(anyhow!("there is no such file")).into());
        }
        let file = claim(path, OpenOptions::new().read(true).write(true))?;
        Ok(Self::read(file, number, loaded, each).map_err(damage)?)
    }

    fn read(
        file: File,
        number: u32,
        loaded: u64,
        mut each: impl FnMut(Fact),
    ) -> anyhow::Result<Self> {
        // Of an empty file a new database would be made.
        ensure!(file.metadata()?.len() > 0, "it is empty");
        let database = builder().create_with_backend(Unflushed(FileBackend::new(file)?))?;
        let table = database.begin_read()?.open_table(FACTS)?;
        let mut count = 0;
        for entry in table.iter()? {
            let (key, value) = entry?;
            ensure!(key.value() == count, "fact {count} is missing");
            let fact: Fact = postcard::from_bytes(value.value())?;
            let found = partition(fact.vertex());
            ensure!(found == number, "it has facts of partition {found}");
            each(fact);
            count += 1;
        }
        ensure!(
            count >= loaded,
            "{loaded} facts were loaded, it has {count}"
        );
        Ok(Self { database, count })
    }

    /// Adds facts, all or none.
    pub fn append(&mut self, facts: &[Fact]) -> anyhow::Result<()> {
        let mut count = self.count;
        let mut change = self.database.begin_write()?;
        // So that a change that is damaged later is not taken for one that was never completed.
        change.set_two_phase_commit(true);
        {
            let mut table = change.open_table(FACTS)?;
            for fact in facts {
                table.insert(count, &*postcard::to_allocvec(fact)?)?;
                count += 1;
            }
        }
        change.commit()?;
        self.count = count;
        Ok(())
    }

    /// How many there are.
    pub fn count(&self) -> u64 {
        self.count
    }
}

/// Opens a partition's file for this process alone. A cluster that was killed a moment ago may need another one to end.
pub fn claim(path: &Path, options: &OpenOptions) -> anyhow::Result<File> {
    const PATIENCE: Duration = Duration::from_secs(3);
    let begun = Instant::now();
    let file = options.open(path);
    let file = file.with_context(|| format!("{} can't be opened", path.display()))?;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) if begun.elapsed() < PATIENCE => {
                thread::sleep(Duration::from_millis(50));
            }
            Err(TryLockError::WouldBlock) => bail!(
                "{} is in use by another process, perhaps by a cluster that 'wallaby-graph up' has started: end it first",
                path.display()
            ),
            Err(TryLockError::Error(error)) => {
                let reason = format!("{} can't be locked", path.display());
                return Err(error).context(reason);
            }
        }
    }
}

fn builder() -> Builder {
    let mut builder = Database::builder();
    builder
        .set_cache_size(CACHE)
        .set_check_integrity_on_open(true);
    builder
}

/// A file whose writes the operating system brings to the disk when it likes: they outlive the process, but not always the
/// machine. An insert that waits for the disk takes many times as long.
#[derive(Debug)]
struct Unflushed(FileBackend);

impl StorageBackend for Unflushed {
    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.write(offset, data)
    }
}
