//! A graph on disk: a folder with a [`log`] for each partition, and a page that says what was loaded.
//!
//! The graph itself is in memory, as the queries want it; what is on disk is only written, until the next start reads it
//! from one end to the other. So it needs no database, whose merit is to find things on disk.

use crate::fact::Fact;
use crate::log::{self, Log};
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
const VERSION: u32 = 1;
const PAGE: &str = "graph.json";

/// A folder with a graph that was loaded completely.
#[derive(Clone, Debug)]
pub struct Store {
    folder: PathBuf,
    page: Page,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Page {
    version: u32,
    partitions: u32,
    /// Where the graph came from.
    source: String,
    loaded: Counts,
}

/// One server's part of a store, open: what is inserted from now on is kept.
#[derive(Debug)]
pub struct Part {
    /// Its vertices.
    shard: Shard,
    logs: HashMap<u32, Log>,
}

/// A folder that is being filled.
#[derive(Debug)]
pub struct Loader {
    folder: PathBuf,
    files: Vec<BufWriter<File>>,
    loaded: Counts,
}

impl Store {
    /// The store in a folder, or `None` if nothing was loaded into it completely.
    ///
    /// # Errors
    ///
    /// If the folder cannot be read or is of another version.
    pub fn find(folder: &Path) -> anyhow::Result<Option<Self>> {
        let path = folder.join(PAGE);
        let shown = path.display();
        let page = match fs::read(&path) {
            Ok(page) => page,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).with_context(|| format!("{shown} can't be read")),
        };
        let page: Page =
            serde_json::from_slice(&page).with_context(|| format!("{shown} can't be read"))?;
        ensure!(
            page.version == VERSION && page.partitions == PARTITIONS,
            "{shown} was written by another version of this program: load the graph again"
        );
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
        let mut shard = Shard::default();
        let mut logs = HashMap::new();
        for partition in seat.partitions() {
            let path = file(&self.folder, partition);
            // A data set may say something twice, and differently: what it says first holds.
            let log = Log::open(&path, |fact| {
                if shard.is_new(&fact) == Ok(true) {
                    shard.learn(fact);
                }
            })?;
            logs.insert(partition, log);
        }
        Ok(Part { shard, logs })
    }
}

impl Part {
    /// The vertices.
    pub fn shard(&self) -> &Shard {
        &self.shard
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
            let file = &mut self.files[partition(fact.vertex()) as usize];
            file.write_all(&log::record(&fact)?)
                .context("the store can't be written")?;
        }
        Ok(())
    }

    /// Everything was loaded; `source` is where it came from.
    ///
    /// # Errors
    ///
    /// If it cannot be written.
    pub fn finish(self, source: &str) -> anyhow::Result<Store> {
        for mut file in self.files {
            file.flush().context("the store can't be written")?;
        }
        let page = Page {
            version: VERSION,
            partitions: PARTITIONS,
            source: source.to_owned(),
            loaded: self.loaded,
        };
        // Last, and at once: a folder without it was not loaded completely.
        let path = self.folder.join(PAGE);
        let unfinished = path.with_extension("unfinished");
        fs::write(&unfinished, serde_json::to_vec_pretty(&page)?)
            .and_then(|()| fs::rename(&unfinished, &path))
            .with_context(|| format!("{} can't be written", path.display()))?;
        Ok(Store {
            folder: self.folder,
            page,
        })
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

/// Makes a folder one in which nothing was loaded yet.
fn begin(folder: &Path, files: Vec<File>) -> io::Result<Vec<BufWriter<File>>> {
    match fs::remove_file(folder.join(PAGE)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let begin = |file: File| {
        file.set_len(0)?;
        let mut file = BufWriter::new(file);
        file.write_all(log::beginning())?;
        Ok(file)
    };
    files.into_iter().map(begin).collect()
}

/// The file of a partition.
fn file(folder: &Path, partition: u32) -> PathBuf {
    folder.join(format!("{partition:03}.log"))
}
