//! Where graphs come from.

pub mod csv;
pub mod generated;
pub mod references;
pub mod snapshot;
pub mod updates;

use crate::store::{Loader, Store};
use anyhow::Context;
use references::{Kinds, References};
use snapshot::{Each, Snapshot};
use std::path::{Path, PathBuf};

/// A graph to be loaded.
#[derive(Clone, Debug)]
pub enum Source {
    /// LDBC's files, in a folder.
    Snapshot(PathBuf, Snapshot),
    /// Made up: so many persons, by this seed.
    Generated(u32, u64),
}

impl Source {
    /// The data set in a folder.
    pub fn find(folder: &Path) -> anyhow::Result<Self> {
        let found = Snapshot::find(folder)?.with_context(|| {
            format!(
                "{} holds no data set: neither person_0_0.csv (CsvComposite, also in a folder 'dynamic') nor Person.csv \
                 (CsvBasic), nor one of them with .gz",
                folder.display()
            )
        })?;
        Ok(Self::Snapshot(folder.to_owned(), found))
    }

    /// The files that such a data set has and this one does not, by their names without numbers and endings.
    pub fn missing(&self) -> Vec<&'static str> {
        match self {
            Self::Snapshot(_, snapshot) => snapshot.missing(),
            Self::Generated(..) => Vec::new(),
        }
    }

    /// Loads it into a folder; what there is then to refer to.
    pub fn load(&self, folder: &Path) -> anyhow::Result<(Store, References)> {
        let mut loader = Loader::begin(folder)?;
        let (kinds, from) = match self {
            Self::Snapshot(folder, snapshot) => (snapshot.kinds(), folder.display().to_string()),
            Self::Generated(persons, seed) => {
                let from = format!("{persons} persons, made up by seed {seed}");
                (Kinds::ALL, from)
            }
        };
        let mut references = References::new(kinds);
        self.read(&mut |insert| {
            references.see(&insert)?;
            loader.insert(insert)
        })?;
        references.end()?;
        Ok((loader.finish(&from)?, references))
    }

    fn read(&self, each: Each<'_>) -> anyhow::Result<()> {
        match self {
            Self::Snapshot(_, snapshot) => snapshot.read(each),
            Self::Generated(persons, seed) => {
                generated::generate(*persons, *seed).try_for_each(each)
            }
        }
    }
}

/// What queries show of a post: its text, or the name of its image.
fn shown(image: String, text: String) -> String {
    match text.is_empty() {
        true => image,
        false => text,
    }
}
