//! `wallaby-graph load`: a data set becomes a store.

use super::StoreFolder;
use crate::source::Source;
use crate::source::references::References;
use crate::store::Store;
use anyhow::Context;
use clap::Args;
use std::path::{Path, PathBuf};
use wallaby_program::output::line;

/// What is loaded, and where to.
#[derive(Debug, Args)]
pub(super) struct Load {
    /// The folder of LDBC's files: CsvComposite, or the structure of a CsvBasic one; also compressed (.gz)
    #[arg(value_name = "DIR", required_unless_present = "generate")]
    data: Option<PathBuf>,
    /// Make a graph up in place of that, of so many persons
    #[arg(long, value_name = "PERSONS", conflicts_with = "data")]
    generate: Option<u32>,
    /// Which one: the same number makes the same graph
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,
    /// Load even if the store holds a graph already, which is lost then
    #[arg(long)]
    replace: bool,
    #[command(flatten)]
    to: StoreFolder,
}

impl Load {
    pub(super) fn run(self) -> anyhow::Result<()> {
        let folder = &self.to.store;
        let shown = folder.display();
        // What is to be replaced may be of another version, or damaged.
        if !self.replace
            && let Some(store) = Store::find(folder)?
        {
            let loaded = store.describe();
            return line(format_args!(
                "{shown} is loaded already: {loaded}\n(--replace loads it anew)"
            ));
        }
        let source = match (&self.data, self.generate) {
            (Some(data), _) => Source::find(data)?,
            (None, persons) => Source::Generated(persons.unwrap_or_default(), self.seed),
        };
        let (store, _) = load(&source, folder)?;
        line(format_args!("{shown}: {}", store.describe()))
    }
}

/// Loads, and tells which files there are not.
pub(super) fn load(source: &Source, folder: &Path) -> anyhow::Result<(Store, References)> {
    // Perhaps there are none; but who has forgotten to copy a file should not find that out by queries without rows.
    for kind in source.missing() {
        eprintln!("note: the data set has no file '{kind}': nothing of that is loaded");
    }
    let loaded = source.load(folder);
    loaded.with_context(|| format!("{} was not loaded", folder.display()))
}
