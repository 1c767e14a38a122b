//! A graph on disk: a folder with the [`facts`] of each partition, and a page that says what was loaded.
//!
//! The graph itself is in memory, as the queries want it; what is on disk is only written, until the next start reads it
//! from one end to the other.

use crate::fact::Fact;
use crate::facts::{self, Facts};
use crate::model::Insert;
use crate::placement::{PARTITIONS, Seat, partition};
use crate::shard::{Counts, Shard};
use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// The version of the files.
const VERSION: u32 = 3;
const PAGE: &str = "graph.json";
/// How many facts of a partition are written at once when a graph is loaded.
const AT_ONCE: usize = 256;

/// A folder with a graph that was loaded completely.
#[derive(Clone, Debug)]
pub struct Store {
    folder: PathBuf,
    page: Page,
}

/// The page in the folder.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Page {
    version: u32,
    /// Where the graph came from.
    source: String,
    loaded: Counts,
    /// How many facts of each partition were loaded.
    facts: Vec<u64>,
}

/// One server's part of a store, open: what is inserted from now on is kept.
#[derive(Debug)]
pub struct Part {
    shard: Shard,
    partitions: HashMap<u32, Facts>,
}

/// A folder that is being filled.
#[derive(Debug)]
pub struct Loader {
    folder: PathBuf,
    partitions: Vec<Loading>,
    loaded: Counts,
}

/// A partition that is being filled.
#[derive(Debug)]
struct Loading {
    facts: Facts,
    /// Those that are not yet written.
    waiting: Vec<Fact>,
}

impl Store {
    /// The store in a folder, or `None` if nothing was loaded into it completely.
    ///
    /// # Errors
    ///
    /// If the folder cannot be read, is of another version, or its page is damaged.
    pub fn find(folder: &Path) -> anyhow::Result<Option<Self>> {
        let path = folder.join(PAGE);
        let page = match fs::read(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            read => read.with_context(|| format!("{} can't be read", path.display()))?,
        };
        let page = Page::read(&page).with_context(|| {
            let page = path.display();
            format!("{page} is no use: load the graph again, by 'wallaby-graph load --replace'")
        })?;
        let folder = folder.to_owned();
        Ok(Some(Self { folder, page }))
    }

    /// Where it is.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// What was loaded, and from where.
    pub fn describe(&self) -> String {
        format!("{} (from {})", self.page.loaded, self.page.source)
    }

    /// Opens one server's part.
    ///
    /// # Errors
    ///
    /// If a file is damaged, can't be read, or is in use by another server.
    pub fn open(&self, seat: Seat) -> anyhow::Result<Part> {
        let mut part = Part {
            shard: Shard::default(),
            partitions: HashMap::new(),
        };
        for number in seat.partitions() {
            let path = file(&self.folder, number);
            let loaded = self.page.facts[number as usize];
            let facts = Facts::open(&path, number, loaded, |fact| {
                // A data set may say something twice, and differently: what it says first holds.
                if part.shard.is_new(&fact) == Ok(true) {
                    part.shard.learn(fact);
                }
            })?;
            part.partitions.insert(number, facts);
        }
        Ok(part)
    }
}

impl Part {
    /// The vertices.
    pub fn shard(&self) -> &Shard {
        &self.shard
    }

    /// Closes the files: nothing can be learned any more.
    pub fn close(&mut self) {
        self.partitions.clear();
    }

    /// Learns a fact and keeps it, once.
    ///
    /// # Errors
    ///
    /// If it contradicts what is known, belongs to another server, or cannot be written. Nothing has changed then.
    pub fn learn(&mut self, fact: Fact) -> anyhow::Result<()> {
        if self.shard.is_new(&fact)? {
            let facts = self.partitions.get_mut(&partition(fact.vertex()));
            let facts = facts.with_context(|| format!("{:?} is not kept here", fact.vertex()))?;
            facts.append([&fact]).context("it can't be stored")?;
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
        // All or none: what a cluster serves stays as it is.
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        let claimed = (0..PARTITIONS).map(|number| facts::claim(&file(folder, number), &options));
        let claimed: Vec<File> = claimed.collect::<anyhow::Result<_>>()?;
        let begun = begin(folder, claimed);
        Ok(Self {
            partitions: begun.with_context(|| format!("{shown} can't be written"))?,
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
        for fact in insert.facts() {
            self.loaded.add(&fact);
            let loading = &mut self.partitions[partition(fact.vertex()) as usize];
            loading.waiting.push(fact);
            if loading.waiting.len() == AT_ONCE {
                loading.write()?;
            }
        }
        Ok(())
    }

    /// Everything was loaded; `source` is where it came from.
    ///
    /// # Errors
    ///
    /// If it cannot be written.
    pub fn finish(mut self, source: &str) -> anyhow::Result<Store> {
        self.partitions.iter_mut().try_for_each(Loading::write)?;
        let page = Page {
            version: VERSION,
            source: source.to_owned(),
            loaded: self.loaded,
            facts: self.partitions.iter().map(|of| of.facts.count()).collect(),
        };
        // Last, and at once: a folder without it was not loaded completely.
        let path = self.folder.join(PAGE);
        let temporary = path.with_extension("unfinished");
        fs::write(&temporary, serde_json::to_vec(&page)?)
            .and_then(|()| fs::rename(&temporary, &path))
            .with_context(|| format!("{} can't be written", path.display()))?;
        Ok(Store {
            folder: self.folder,
            page,
        })
    }
}

impl Loading {
    fn write(&mut self) -> anyhow::Result<()> {
        let written = self.facts.append(&self.waiting);
        written.context("the store can't be written")?;
        self.waiting.clear();
        Ok(())
    }
}

impl Page {
    /// What a page says, if it is one of this version.
    fn read(page: &[u8]) -> anyhow::Result<Self> {
        /// Of a page, what every version has.
        #[derive(Deserialize)]
        struct Version {
            version: u32,
        }
        let Version { version } = serde_json::from_slice(page)?;
        ensure!(
            version == VERSION,
            "it was written by another version of this program, with files of version {version}, expected {VERSION}"
        );
        let page: Self = serde_json::from_slice(page)?;
        let partitions = page.facts.len();
        ensure!(
            partitions == PARTITIONS as usize,
            "it tells of {partitions} partitions, expected {PARTITIONS}"
        );
        Ok(page)
    }
}

/// Makes a folder one in which nothing was loaded yet.
fn begin(folder: &Path, files: Vec<File>) -> anyhow::Result<Vec<Loading>> {
    match fs::remove_file(folder.join(PAGE)) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error.into()),
        _ => {}
    }
    let begin = |file| {
        Ok(Loading {
            facts: Facts::create(file)?,
            waiting: Vec::new(),
        })
    };
    files.into_iter().map(begin).collect()
}

/// The file of a partition.
fn file(folder: &Path, partition: u32) -> PathBuf {
    folder.join(format!("{partition:03}.redb"))
}
