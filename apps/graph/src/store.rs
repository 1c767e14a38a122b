//! A graph on disk: a folder with a [`log`] for each partition, and a page that says what was loaded.
//!
//! The graph itself is in memory, as the queries want it; what is on disk is only written, until the next start reads it
//! from one end to the other. So it needs no database, whose merit is to find things on disk.

use crate::fact::Fact;
use crate::log::{self, Extent, Log, Unfinished};
use crate::model::Insert;
use crate::placement::{PARTITIONS, Seat, partition};
use crate::shard::{Counts, Shard};
use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

/// The version of the files.
const VERSION: u32 = 2;
const PAGE: &str = "graph.json";
const AGAIN: &str = "load the graph again, by 'wallaby-graph load --replace'";

/// A folder with a graph that was loaded completely.
#[derive(Clone, Debug)]
pub struct Store {
    folder: PathBuf,
    contents: Contents,
}

/// The page in the folder.
#[derive(Serialize, Deserialize)]
struct Page {
    version: u32,
    /// Of the contents, a CRC-32C.
    checksum: u32,
    contents: Contents,
}

/// Of a page, what every version has.
#[derive(Deserialize)]
struct Version {
    version: u32,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Contents {
    /// Where the graph came from.
    source: String,
    loaded: Counts,
    /// How much of each partition's file was loaded.
    files: Vec<Extent>,
}

/// One server's part of a store, open: what is inserted from now on is kept.
#[derive(Debug)]
pub struct Part {
    /// Its vertices.
    shard: Shard,
    logs: HashMap<u32, Log>,
    unfinished: Vec<Unfinished>,
}

/// A folder that is being filled.
#[derive(Debug)]
pub struct Loader {
    folder: PathBuf,
    files: Vec<Loading>,
    loaded: Counts,
}

/// A partition's file that is being filled.
#[derive(Debug)]
struct Loading {
    file: BufWriter<File>,
    written: Extent,
}

impl Store {
    /// The store in a folder, or `None` if nothing was loaded into it completely.
    ///
    /// # Errors
    ///
    /// If the folder cannot be read, is of another version, or its page is damaged.
    pub fn find(folder: &Path) -> anyhow::Result<Option<Self>> {
        let path = folder.join(PAGE);
        let shown = path.display();
        let page = match fs::read(&path) {
            Ok(page) => page,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).with_context(|| format!("{shown} can't be read")),
        };
        let contents = read_page(&page).with_context(|| format!("{shown} is no use"))?;
        let folder = folder.to_owned();
        Ok(Some(Self { folder, contents }))
    }

    /// Where it is.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// What was loaded, and from where.
    pub fn describe(&self) -> String {
        format!("{} (from {})", self.contents.loaded, self.contents.source)
    }

    /// Opens one server's part.
    ///
    /// # Errors
    ///
    /// If a file is damaged, can't be read, or is in use by another server.
    pub fn open(&self, seat: Seat) -> anyhow::Result<Part> {
        let mut part = Part {
            shard: Shard::default(),
            logs: HashMap::new(),
            unfinished: Vec::new(),
        };
        for partition in seat.partitions() {
            let path = file(&self.folder, partition);
            let loaded = self.contents.files[partition as usize];
            // A data set may say something twice, and differently: what it says first holds.
            let (log, unfinished) = Log::open(&path, partition, loaded, |fact| {
                if part.shard.is_new(&fact) == Ok(true) {
                    part.shard.learn(fact);
                }
            })?;
            part.logs.insert(partition, log);
            part.unfinished.extend(unfinished);
        }
        Ok(part)
    }
}

impl Part {
    /// The vertices.
    pub fn shard(&self) -> &Shard {
        &self.shard
    }

    /// What was cut off its files when they were opened: a server died while it wrote that.
    pub fn unfinished(&self) -> &[Unfinished] {
        &self.unfinished
    }

    /// Closes the files: nothing can be learned any more.
    pub fn close(&mut self) {
        self.logs.clear();
    }

    /// Learns a fact and keeps it, once.
    ///
    /// # Errors
    ///
    /// If it contradicts what is known, belongs to another server, or cannot be written. Nothing has changed then.
    pub fn learn(&mut self, fact: Fact) -> anyhow::Result<()> {
        if self.shard.is_new(&fact)? {
            let log = self.logs.get_mut(&partition(fact.vertex()));
            let log = log.with_context(|| format!("{:?} is not kept here", fact.vertex()))?;
            log.append(&fact).context("it can't be stored")?;
            self.shard.learn(fact);
        }
        Ok(())
    }
}

impl Loader {
    /// Begins to fill a folder. What was in it of an earlier graph is removed.
    ///
    /// # Errors
    ///
    /// If the files cannot be written or are in use by a server.
    pub fn begin(folder: &Path) -> anyhow::Result<Self> {
        let shown = folder.display();
        fs::create_dir_all(folder).with_context(|| format!("{shown} can't be made"))?;
        let claimed = (0..PARTITIONS).map(|partition| log::claim(&file(folder, partition)));
        let claimed: Vec<File> = claimed.collect::<anyhow::Result<_>>()?;
        let begun = begin(folder, claimed);
        Ok(Self {
            files: begun.with_context(|| format!("{shown} can't be written"))?,
            folder: folder.to_owned(),
            loaded: Counts::default(),
        })
    }

    /// Adds to the graph.
    ///
    /// # Errors
    ///
    /// If it cannot be written.
    pub fn insert(&mut self, insert: Insert) -> anyhow::Result<()> {
        self.loaded += Counts::of(&insert);
        for fact in insert.facts() {
            let loading = &mut self.files[partition(fact.vertex()) as usize];
            let (record, written) = loading.written.append(&fact)?;
            let done = loading.file.write_all(&record);
            done.context("the store can't be written")?;
            loading.written = written;
        }
        Ok(())
    }

    /// Everything was loaded; `source` is where it came from.
    ///
    /// # Errors
    ///
    /// If it cannot be written.
    pub fn finish(mut self, source: &str) -> anyhow::Result<Store> {
        for loading in &mut self.files {
            let flushed = loading.file.flush();
            flushed.context("the store can't be written")?;
        }
        let contents = Contents {
            source: source.to_owned(),
            loaded: self.loaded,
            files: self.files.iter().map(|loading| loading.written).collect(),
        };
        let page = Page {
            version: VERSION,
            checksum: contents.checksum()?,
            contents,
        };
        // Last, and at once: a folder without it was not loaded completely. Nothing is flushed to the disk for that: if the
        // machine dies, the lengths and checksums tell whether the files have arrived there.
        let path = self.folder.join(PAGE);
        let temporary = path.with_extension("unfinished");
        fs::write(&temporary, serde_json::to_vec(&page)?)
            .and_then(|()| fs::rename(&temporary, &path))
            .with_context(|| format!("{} can't be written", path.display()))?;
        Ok(Store {
            folder: self.folder,
            contents: page.contents,
        })
    }
}

impl Contents {
    fn checksum(&self) -> serde_json::Result<u32> {
        Ok(crc32c::crc32c(&serde_json::to_vec(self)?))
    }
}

impl Counts {
    /// What an insert adds.
    fn of(insert: &Insert) -> Self {
        let mut counts = Self::default();
        match insert {
            Insert::Person(_) => counts.persons = 1,
            Insert::Like { .. } => counts.likes = 1,
            Insert::Forum(_) => counts.forums = 1,
            Insert::Membership { .. } => counts.members = 1,
            Insert::Message(_) => counts.messages = 1,
            Insert::Friendship { .. } => counts.friends = 2,
        }
        counts
    }
}

/// What a page says, if it is one of this version and as it was written.
fn read_page(page: &[u8]) -> anyhow::Result<Contents> {
    let damaged = || format!("it is damaged: {AGAIN}");
    let Version { version } = serde_json::from_slice(page).with_context(damaged)?;
    ensure!(
        version == VERSION,
        "it was written by another version of this program, with files of version {version}, expected {VERSION}: {AGAIN}"
    );
    let page: Page = serde_json::from_slice(page).with_context(damaged)?;
    let (expected, found) = (page.contents.checksum()?, page.checksum);
    ensure!(
        expected == found,
        "it is damaged, expected the checksum {expected:#010x}, found {found:#010x}: {AGAIN}"
    );
    let files = page.contents.files.len();
    ensure!(
        files == PARTITIONS as usize,
        "it tells of {files} partitions, expected {PARTITIONS}: {AGAIN}"
    );
    Ok(page.contents)
}

/// Makes a folder one in which nothing was loaded yet.
fn begin(folder: &Path, files: Vec<File>) -> io::Result<Vec<Loading>> {
    match fs::remove_file(folder.join(PAGE)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let begin = |(partition, file): (u32, File)| {
        file.set_len(0)?;
        let mut file = BufWriter::new(file);
        let (beginning, written) = Extent::begin(partition);
        file.write_all(&beginning)?;
        Ok(Loading { file, written })
    };
    (0..).zip(files).map(begin).collect()
}

/// The file of a partition.
fn file(folder: &Path, partition: u32) -> PathBuf {
    folder.join(format!("{partition:03}.log"))
}
