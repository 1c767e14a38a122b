//! Where modules are kept: a service that anybody may run, the client itself, too.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use wallaby::{One, Request, RequestInfo, Service, Status};

use crate::code::{Code, Hash};

/// Modules that one answer of [`Functions::list`] names.
const PAGE: usize = 1000;

/// What a [`Repository`] serves. `functions::at(&endpoint, server)` makes a client of it.
#[wallaby::service(package = "wallaby_chain")]
pub trait Functions {
    /// Keeps a module, and says its hash.
    async fn upload(module: Vec<u8>) -> Hash;
    /// The module with this hash.
    async fn fetch(hash: Hash) -> Vec<u8>;
    /// The hashes behind this one, and how many bytes their modules have. At most 1,000.
    async fn list(after: Option<Hash>) -> Vec<(Hash, u64)>;
    /// Deletes the module with this hash; whether there was one.
    async fn delete(hash: Hash) -> bool;
}

/// Limits of a [`Repository`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RepositoryLimits {
    /// Modules. Default 1,024.
    pub modules: usize,
    /// Bytes of one. Default 256 KiB.
    pub module_bytes: usize,
    /// Bytes of all. They are in memory. Default 64 MiB.
    pub bytes: usize,
}

impl Default for RepositoryLimits {
    fn default() -> Self {
        Self {
            modules: 1024,
            module_bytes: 256 << 10,
            bytes: 64 << 20,
        }
    }
}

type Policy = dyn Fn(&RequestInfo) -> bool + Send + Sync;

/// Keeps modules, in memory and, if it is told to, in a folder. Who knows the hash of one may fetch it. Nobody may upload, list or
/// delete from outside, unless [`manage`](Self::manage) says who.
///
/// ```
/// use wallaby::Endpoint;
/// use wallaby_chain::Repository;
///
/// # async fn example(module: Vec<u8>) -> Result<(), Box<dyn std::error::Error>> {
/// // A client that brings functions, and has them for servers that do not know them yet.
/// let repository = Repository::new();
/// let client = Endpoint::builder().serve(repository.service()).listen("tcp://127.0.0.1:0").bind().await?;
/// let glue = repository.keep(module)?.at(client.address().expect("it listens"));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Default)]
pub struct Repository {
    store: Arc<Mutex<Store>>,
    /// Who writes does so alone; who reads does not wait for disks.
    writing: Arc<Mutex<()>>,
    limits: RepositoryLimits,
    folder: Option<Arc<Path>>,
    managers: Option<Arc<Policy>>,
}

#[derive(Default)]
struct Store {
    modules: BTreeMap<Hash, Bytes>,
    bytes: usize,
}

impl Repository {
    /// In memory.
    pub fn new() -> Self {
        Self::default()
    }

    /// In this folder as well, which is made if there is none. Each module is a file there, named by its hash.
    ///
    /// # Errors
    ///
    /// If the folder cannot be read, one of its modules is not what its name says, or there are more than the limits allow.
    pub fn in_folder(folder: impl Into<PathBuf>, limits: RepositoryLimits) -> io::Result<Self> {
        let folder: PathBuf = folder.into();
        fs::create_dir_all(&folder)?;
        let mut repository = Self::new().limits(limits);
        for entry in fs::read_dir(&folder)? {
            let path = entry?.path();
            let name = path.file_name().and_then(|name| name.to_str());
            let Some(Ok(hash)) = name
                .and_then(|name| name.strip_suffix(".wasm"))
                .map(str::parse)
            else {
                continue;
            };
            let module = fs::read(&path)?;
            let wrong = |why: String| {
                io::Error::new(
                    io::ErrorKind::InvalidData,
                    format!("{}: {why}", path.display()),
                )
            };
            if Hash::of(&module) != hash {
                return Err(wrong("it is not what its name says".into()));
            }
            let kept = repository.keep(module);
            kept.map_err(|status| wrong(status.message().into()))?;
        }
        repository.folder = Some(folder.into());
        Ok(repository)
    }

    /// How much it keeps.
    pub fn limits(mut self, limits: RepositoryLimits) -> Self {
        self.limits = limits;
        self
    }

    /// Who may upload, list and delete, by what the transport has proven of who asks
    /// ([`RequestInfo::identity`](wallaby::RequestInfo::identity)). Nobody may if nothing is said.
    pub fn manage(mut self, policy: impl Fn(&RequestInfo) -> bool + Send + Sync + 'static) -> Self {
        self.managers = Some(Arc::new(policy));
        self
    }

    /// What an endpoint serves.
    pub fn service(&self) -> Service {
        functions::service(self.clone())
    }

    /// Keeps a module. With a folder, it waits for the disk.
    ///
    /// # Errors
    ///
    /// `ResourceExhausted` if it is more than the limits allow, `Internal` if the folder cannot be written.
    pub fn keep(&self, module: impl Into<Bytes>) -> Result<Code, Status> {
        let module = module.into();
        let code = Code::new(module.clone());
        let _alone = self.write_lock();
        if self.module(code.hash()).is_none() {
            self.check_room(module.len())?;
            let written = self.write(code.hash(), &module);
            written.map_err(|error| failed(&error))?;
            self.lock().insert(code.hash(), module);
        }
        Ok(code)
    }

    /// The module with this hash.
    pub fn module(&self, hash: Hash) -> Option<Bytes> {
        self.lock().modules.get(&hash).cloned()
    }

    /// Deletes the module with this hash; whether there was one. With a folder, it waits for the disk.
    ///
    /// # Errors
    ///
    /// `Internal` if the file cannot be deleted.
    pub fn remove(&self, hash: Hash) -> Result<bool, Status> {
        let _alone = self.write_lock();
        if self.module(hash).is_none() {
            return Ok(false);
        }
        if let Some(folder) = &self.folder {
            fs::remove_file(file(folder, hash)).map_err(|error| failed(&error))?;
        }
        self.lock().remove(hash);
        Ok(true)
    }

    fn check_room(&self, size: usize) -> Result<(), Status> {
        let full = |message| Err(Status::resource_exhausted(message));
        let (store, limits) = (self.lock(), &self.limits);
        if size > limits.module_bytes {
            let most = limits.module_bytes;
            return full(format!(
                "a module of {size} bytes: at most {most} are allowed"
            ));
        }
        if store.modules.len() >= limits.modules || size > limits.bytes.saturating_sub(store.bytes)
        {
            let (most, bytes) = (limits.modules, limits.bytes);
            return full(format!(
                "the repository is full: {most} modules, {bytes} bytes"
            ));
        }
        Ok(())
    }

    /// Whole or not at all.
    fn write(&self, hash: Hash, module: &[u8]) -> io::Result<()> {
        let Some(folder) = &self.folder else {
            return Ok(());
        };
        let (part, whole) = (folder.join(format!("{hash}.part")), file(folder, hash));
        let mut to = File::create(&part)?;
        to.write_all(module)?;
        to.sync_all()?;
        fs::rename(part, whole)
    }

    fn managed_by(&self, request: &RequestInfo) -> Result<(), Status> {
        if self
            .managers
            .as_ref()
            .is_some_and(|managers| managers(request))
        {
            return Ok(());
        }
        let message = format!("{} may not manage this repository", request.identity());
        Err(Status::permission_denied(message))
    }

    fn write_lock(&self) -> MutexGuard<'_, ()> {
        self.writing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, Store> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Store {
    fn insert(&mut self, hash: Hash, module: Bytes) {
        self.bytes += module.len();
        self.modules.insert(hash, module);
    }

    fn remove(&mut self, hash: Hash) {
        let removed = self.modules.remove(&hash);
        self.bytes -= removed.map_or(0, |module| module.len());
    }
}

impl std::fmt::Debug for Repository {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let store = self.lock();
        f.debug_struct("Repository")
            .field("modules", &store.modules.len())
            .field("bytes", &store.bytes)
            .field("folder", &self.folder)
            .finish_non_exhaustive()
    }
}

fn file(folder: &Path, hash: Hash) -> PathBuf {
    folder.join(format!("{hash}.wasm"))
}

fn failed(error: &io::Error) -> Status {
    Status::internal(format!("the repository's folder: {error}"))
}

/// Disks may take long.
async fn by_disk<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Status> + Send + 'static,
) -> Result<T, Status> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| Status::internal(error.to_string()))?
}

#[wallaby::serve]
impl Functions for Repository {
    async fn upload(&self, request: Request<One<Hash>>, module: Vec<u8>) -> Result<(), Status> {
        self.managed_by(&request)?;
        let repository = self.clone();
        let code = by_disk(move || repository.keep(module)).await?;
        Ok(request.respond(code.hash()).await?)
    }

    async fn fetch(&self, hash: Hash) -> Result<Vec<u8>, Status> {
        let module = self.module(hash);
        let module =
            module.ok_or_else(|| Status::not_found(format!("there is no module {hash}")))?;
        Ok(module.into())
    }

    async fn list(
        &self,
        request: Request<One<Vec<(Hash, u64)>>>,
        after: Option<Hash>,
    ) -> Result<(), Status> {
        self.managed_by(&request)?;
        let behind = (
            after.map_or(Bound::Unbounded, Bound::Excluded),
            Bound::Unbounded,
        );
        let listed = {
            let store = self.lock();
            let modules = store.modules.range(behind).take(PAGE);
            modules
                .map(|(hash, module)| (*hash, module.len() as u64))
                .collect()
        };
        Ok(request.respond(listed).await?)
    }

    async fn delete(&self, request: Request<One<bool>>, hash: Hash) -> Result<(), Status> {
        self.managed_by(&request)?;
        let repository = self.clone();
        let deleted = by_disk(move || repository.remove(hash)).await?;
        Ok(request.respond(deleted).await?)
    }
}
