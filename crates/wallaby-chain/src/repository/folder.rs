//! A folder as the backing of a repository.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::PathBuf;

use bytes::Bytes;
use wallaby::Status;

use super::Backing;
use crate::code::Hash;

/// Each module is a file, named by its hash.
pub(super) struct Folder(PathBuf);

impl Folder {
    /// It is made if there is none.
    pub(super) fn open(folder: PathBuf) -> io::Result<Self> {
        fs::create_dir_all(&folder)?;
        Ok(Self(folder))
    }

    /// All modules, in no order. Other files are not looked at.
    pub(super) fn files(&self) -> io::Result<Vec<(Hash, PathBuf)>> {
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.0)? {
            let path = entry?.path();
            let name = path.file_name().and_then(|name| name.to_str());
            let name = name.and_then(|name| name.strip_suffix(".wasm"));
            if let Some(Ok(hash)) = name.map(str::parse) {
                files.push((hash, path));
            }
        }
        Ok(files)
    }

    fn file(&self, hash: Hash) -> PathBuf {
        self.0.join(format!("{hash}.wasm"))
    }

    fn write(&self, hash: Hash, module: &[u8]) -> io::Result<()> {
        let part = self.0.join(format!("{hash}.part"));
        let mut to = File::create(&part)?;
        to.write_all(module)?;
        to.sync_all()?;
        fs::rename(part, self.file(hash))
    }
}

impl Backing for Folder {
    fn get(&self, hash: Hash) -> Result<Option<Bytes>, Status> {
        let module = there(fs::read(self.file(hash)))?;
        Ok(module.map(Bytes::from))
    }

    fn put(&self, hash: Hash, module: &Bytes) -> Result<(), Status> {
        self.write(hash, module).map_err(|error| failed(&error))
    }

    fn remove(&self, hash: Hash) -> Result<bool, Status> {
        let removed = there(fs::remove_file(self.file(hash)))?;
        Ok(removed.is_some())
    }

    fn list(&self, after: Option<Hash>, most: usize) -> Result<Vec<(Hash, u64)>, Status> {
        let mut files = self.files().map_err(|error| failed(&error))?;
        files.retain(|(hash, _)| after.is_none_or(|after| *hash > after));
        files.sort();
        let sized = files.into_iter().take(most).map(|(hash, path)| {
            let size = there(fs::metadata(path).map(|about| about.len()))?;
            Ok(size.map(|size| (hash, size)))
        });
        sized.filter_map(Result::transpose).collect()
    }
}

/// What a file has, if it is there.
fn there<T>(done: io::Result<T>) -> Result<Option<T>, Status> {
    match done {
        Ok(done) => Ok(Some(done)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed(&error)),
    }
}

fn failed(error: &io::Error) -> Status {
    Status::internal(format!("the repository's folder: {error}"))
}
