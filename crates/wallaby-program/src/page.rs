//! Pages that tell other programs where a cluster is: files of JSON.

use anyhow::Context;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io;
use std::path::Path;

/// Writes a page.
///
/// # Errors
///
/// If that is not possible.
pub fn announce(page: &Path, told: &impl Serialize) -> anyhow::Result<()> {
    std::fs::write(page, serde_json::to_vec_pretty(told)?)
        .with_context(|| format!("{} can't be written", page.display()))
}

/// What a page tells, if there is one.
///
/// # Errors
///
/// If it cannot be read, or tells something else.
pub fn find<T: DeserializeOwned>(page: &Path) -> anyhow::Result<Option<T>> {
    let told = match std::fs::read(page) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        read => read.and_then(|told| Ok(serde_json::from_slice(&told)?)),
    };
    let told = told.with_context(|| format!("{} can't be read", page.display()))?;
    Ok(Some(told))
}

/// The cluster is gone. A page that tells of another one by now stays.
pub fn withdraw<T: DeserializeOwned + PartialEq>(page: &Path, told: &T) {
    if find(page).is_ok_and(|found: Option<T>| found.as_ref() == Some(told)) {
        // If the page stays, who reads it finds nobody there, and says so.
        let _ = std::fs::remove_file(page);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_that_tells_of_another_cluster_stays() -> anyhow::Result<()> {
        let folder = tempfile::tempdir()?;
        let page = folder.path().join("page.json");
        assert_eq!(find::<u32>(&page)?, None);
        announce(&page, &1)?;
        withdraw(&page, &2);
        assert_eq!(find(&page)?, Some(1));
        withdraw(&page, &1);
        assert_eq!(find::<u32>(&page)?, None);
        std::fs::write(&page, "nonsense")?;
        assert!(find::<u32>(&page).is_err());
        Ok(())
    }
}
