//! Where graphs come from.

pub mod basic;
pub mod composite;
pub mod csv;
pub mod generated;
pub mod references;
pub mod updates;

use crate::model::Insert;
use crate::store::{Loader, Store};
use anyhow::bail;
use indicatif::ProgressBar;
use references::{Kinds, References};
use std::path::{Path, PathBuf};

/// A graph to be loaded.
#[derive(Clone, Debug)]
pub enum Source {
    /// LDBC's files of the form "CsvComposite".
    Composite(PathBuf),
    /// LDBC's files of the form "CsvBasic", as far as they hold the structure.
    Basic(PathBuf),
    /// Made up: so many persons, by this seed.
    Generated(u32, u64),
}

impl Source {
    /// The data set in a folder.
    ///
    /// # Errors
    ///
    /// If there is none.
    pub fn find(folder: &Path) -> anyhow::Result<Self> {
        if composite::is_here(folder) {
            return Ok(Self::Composite(folder.to_owned()));
        }
        if basic::is_here(folder) {
            return Ok(Self::Basic(folder.to_owned()));
        }
        bail!(
            "{} holds no data set: neither person_0_0.csv (CsvComposite, also in a folder 'dynamic') nor Person.csv \
             (CsvBasic), nor one of them with .gz",
            folder.display()
        )
    }

    /// The files that such a data set has and this one does not, by their names without numbers and endings.
    ///
    /// # Errors
    ///
    /// If the folder cannot be read.
    pub fn missing(&self) -> anyhow::Result<Vec<&'static str>> {
        match self {
            Self::Composite(folder) => composite::missing(folder),
            Self::Basic(folder) => basic::missing(folder),
            Self::Generated(..) => Ok(Vec::new()),
        }
    }

    /// Loads it into a folder; what there is then to refer to. The bar tells how far that is.
    ///
    /// # Errors
    ///
    /// If it cannot be read or is not whole ([`references`]), or the folder cannot be written.
    pub fn load(&self, folder: &Path, bar: &ProgressBar) -> anyhow::Result<(Store, References)> {
        let mut loader = Loader::begin(folder)?;
        let mut references = References::new(self.kinds()?);
        self.read(bar, &mut |insert| {
            references.see(&insert)?;
            loader.insert(insert)
        })?;
        references.end()?;
        Ok((loader.finish(&self.describe())?, references))
    }

    /// The kinds of vertices that there are files of.
    fn kinds(&self) -> anyhow::Result<Kinds> {
        let missing = self.missing()?;
        let has = |kinds: &[&str]| !missing.iter().any(|kind| kinds.contains(kind));
        Ok(Kinds {
            forums: has(&["forum", "Forum"]),
            messages: has(&[
                "post",
                "comment",
                "Post_hasCreator_Person",
                "Comment_hasCreator_Person",
            ]),
        })
    }

    fn read(
        &self,
        bar: &ProgressBar,
        each: &mut dyn FnMut(Insert) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        match self {
            Self::Composite(folder) => composite::read(folder, bar, each),
            Self::Basic(folder) => basic::read(folder, bar, each),
            Self::Generated(persons, seed) => {
                bar.set_length(u64::from(*persons));
                generated::generate(*persons, *seed).try_for_each(|insert| {
                    if matches!(insert, Insert::Person(_)) {
                        bar.inc(1);
                    }
                    each(insert)
                })
            }
        }
    }

    fn describe(&self) -> String {
        match self {
            Self::Composite(folder) | Self::Basic(folder) => folder.display().to_string(),
            Self::Generated(persons, seed) => format!("{persons} persons, made up by seed {seed}"),
        }
    }
}
