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
use serde_json::Value;
use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::slice;

/// The version of the files.
const VERSION: u64 = 3;
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
    version: u64,
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
    /// Each partition's file, and the facts that are not yet in it.
    partitions: Vec<(Facts, Vec<Fact>)>,
    loaded: Counts,
}

impl Store {
    /// The store in a folder, or `None` if nothing was loaded into it completely.
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

    /// What was loaded, and from where.
    pub fn describe(&self) -> String {
        format!("{} (from {})", self.page.loaded, self.page.source)
    }

    /// Opens one server's part.
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
    pub fn learn(&mut self, fact: Fact) -> anyhow::Result<()> {
        if self.shard.is_new(&fact)? {
            let facts = self.partitions.get_mut(&partition(fact.vertex()));
            let facts = facts.with_context(|| format!("{:?} is not kept here", fact.vertex()))?;
            facts
                .append(slice::from_ref(&fact))
                .context("it can't be stored")?;
            self.shard.learn(fact);
        }
        Ok(())
    }
}

impl Loader {
    /// Begins to fill a folder. What was in it of an earlier graph is removed.
    pub fn begin(folder: &Path) -> anyhow::Result<Self> {
        let failed = || format!("{} can't be written", folder.display());
        fs::create_dir_all(folder).with_context(failed)?;
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        let claimed = (0..PARTITIONS).map(|number| facts::claim(&file(folder, number), &options));
        // All or none: what a cluster serves stays as it is.
        let claimed: Vec<File> = claimed.collect::<anyhow::Result<_>>()?;
        let page = folder.join(PAGE);
        if page.exists() {
            fs::remove_file(page).with_context(failed)?;
        }
        let files = claimed.into_iter().map(Facts::create);
        let partitions = files.map(|facts| Ok((facts?, Vec::new())));
        let partitions = partitions.collect::<anyhow::Result<_>>();
        Ok(Self {
            folder: folder.to_owned(),
            partitions: partitions.with_context(failed)?,
            loaded: Counts::default(),
        })
    }

    /// Adds to the graph.
    pub fn insert(&mut self, insert: Insert) -> anyhow::Result<()> {
        for fact in insert.facts() {
            self.loaded.add(&fact);
            let (facts, waiting) = &mut self.partitions[partition(fact.vertex()) as usize];
            waiting.push(fact);
            if waiting.len() == AT_ONCE {
                facts
                    .append(waiting)
                    .context("the store can't be written")?;
                waiting.clear();
            }
        }
        Ok(())
    }

    /// Everything was loaded; `source` is where it came from.
    pub fn finish(mut self, source: &str) -> anyhow::Result<Store> {
        for (facts, waiting) in &mut self.partitions {
            facts
                .append(waiting)
                .context("the store can't be written")?;
        }
        let page = Page {
            version: VERSION,
            source: source.to_owned(),
            loaded: self.loaded,
            facts: self
                .partitions
                .iter()
                .map(|(facts, _)| facts.count())
                .collect(),
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

impl Page {
    /// What a page says, if it is one of this version.
    fn read(page: &[u8]) -> anyhow::Result<Self> {
        let page: Value = serde_json::from_slice(page)?;
        let version = page["version"].as_u64().unwrap_or_default();
        ensure!(
            version == VERSION,
            "it was written by another version of this program, with files of version {version}, expected {VERSION}"
        );
        let page: Self = serde_json::from_value(page)?;
        let partitions = page.facts.len();
        ensure!(
            partitions == PARTITIONS as usize,
            "it tells of {partitions} partitions, expected {PARTITIONS}"
        );
        Ok(page)
    }
}

/// The file of a partition.
fn file(folder: &Path, partition: u32) -> PathBuf {
    folder.join(format!("{partition:03}.redb"))
}
