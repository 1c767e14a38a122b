//! Where modules are kept: a service that anybody may run, the client itself, too.

mod folder;

use std::collections::BTreeMap;
use std::io;
use std::ops::Bound;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::sync::Semaphore;
use wallaby::{One, Request, RequestInfo, Service, Status};

use self::folder::Folder;
use crate::code::{ChainCode, Hash};

/// Modules that one answer of [`Functions::list`] names.
const PAGE: usize = 1000;

/// Modules that are looked for at once where the backing keeps them, and those that wait for that.
const LOOKS: usize = 8;
const MOST_LOOKS: usize = 64;

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
    /// Bytes of all. Default 64 MiB.
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

/// What keeps modules besides a [`Repository`]'s memory, and perhaps for other machines as well. It is asked on threads that may block,
/// by several at once. What it says goes to whoever fetches a module.
pub trait Backing: Send + Sync + 'static {
    /// The module with this hash, if it is there. Nobody relies on it that it has that hash.
    ///
    /// # Errors
    ///
    /// A status if that cannot be said now.
    fn get(&self, hash: Hash) -> Result<Option<Bytes>, Status>;

    /// Keeps a module, whole or not at all.
    ///
    /// # Errors
    ///
    /// A status if it is not kept.
    fn put(&self, hash: Hash, module: &Bytes) -> Result<(), Status>;

    /// Deletes a module; whether it was there.
    ///
    /// # Errors
    ///
    /// A status if it may still be there.
    fn remove(&self, hash: Hash) -> Result<bool, Status>;

    /// The hashes behind this one, in their order, and how many bytes their modules have; the first ones, if there are more.
    ///
    /// # Errors
    ///
    /// A status if that cannot be said now.
    fn list(&self, after: Option<Hash>, most: usize) -> Result<Vec<(Hash, u64)>, Status>;
}

type Policy = dyn Fn(&RequestInfo) -> bool + Send + Sync;

/// Keeps modules, in memory and, if it is told to, in a folder or by another [`Backing`]. Who knows the hash of one may fetch it. Nobody may upload, list or
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
    backing: Option<Arc<dyn Backing>>,
    looks: Arc<Looks>,
    managers: Option<Arc<Policy>>,
}

/// Places for those who look for a module that is not in memory.
struct Looks {
    all: Arc<Semaphore>,
    at_once: Arc<Semaphore>,
}

impl Default for Looks {
    fn default() -> Self {
        let places = |places| Arc::new(Semaphore::new(places));
        Self {
            all: places(LOOKS + MOST_LOOKS),
            at_once: places(LOOKS),
        }
    }
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

    /// In this folder as well, which is made if there is none. Each module is a file there, named by its hash. All of them are read.
    ///
    /// # Errors
    ///
    /// If the folder cannot be read, one of its modules is not what its name says, or there are more than the limits allow.
    pub fn in_folder(folder: impl Into<PathBuf>, limits: RepositoryLimits) -> io::Result<Self> {
        let folder = Folder::open(folder.into())?;
        let mut repository = Self::new().limits(limits);
        for (hash, path) in folder.files()? {
            let module = std::fs::read(&path)?;
            let wrong = |why: &str| {
                let message = format!("{}: {why}", path.display());
                io::Error::new(io::ErrorKind::InvalidData, message)
            };
            if Hash::of(&module) != hash {
                return Err(wrong("it is not what its name says"));
            }
            let kept = repository.keep(module);
            kept.map_err(|status| wrong(status.message()))?;
        }
        repository.backing = Some(Arc::new(folder));
        Ok(repository)
    }

    /// Where this keeps them, as `wallaby-etcd` does for several machines. Memory has those that were asked for. What others delete
    /// there may be known here until the process ends: a hash means the same module for ever.
    pub fn backed(backing: impl Backing) -> Self {
        Self {
            backing: Some(Arc::new(backing)),
            ..Self::default()
        }
    }

    /// How much it keeps, and how much of that is in memory. Who writes to a backing at the same time may go a little beyond it.
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

    /// Keeps a module. With a backing, it waits for that.
    ///
    /// # Errors
    ///
    /// `ResourceExhausted` if it is more than the limits allow, or what the backing says.
    pub fn keep(&self, module: impl Into<Bytes>) -> Result<ChainCode, Status> {
        let module = module.into();
        let code = ChainCode::new(module.clone());
        let hash = code.hash();
        let _alone = self.write_lock();
        let kept = self.kept(None, self.limits.modules)?;
        if kept.binary_search_by_key(&hash, |(hash, _)| *hash).is_err() {
            self.check_room(&kept, module.len())?;
            if let Some(backing) = &self.backing {
                backing.put(hash, &module)?;
            }
        }
        self.lock().insert(hash, module, &self.limits);
        Ok(code)
    }

    /// The module with this hash, if it is in memory.
    pub fn module(&self, hash: Hash) -> Option<Bytes> {
        self.lock().modules.get(&hash).cloned()
    }

    /// Deletes the module with this hash; whether there was one. With a backing, it waits for that.
    ///
    /// # Errors
    ///
    /// What the backing says.
    pub fn remove(&self, hash: Hash) -> Result<bool, Status> {
        let _alone = self.write_lock();
        let backed = self.backing.as_ref().map(|backing| backing.remove(hash));
        let backed = backed.transpose()?;
        let known = self.lock().remove(hash);
        Ok(backed.unwrap_or(known))
    }

    /// The hashes behind this one, and how many bytes their modules have.
    fn kept(&self, after: Option<Hash>, most: usize) -> Result<Vec<(Hash, u64)>, Status> {
        if let Some(backing) = &self.backing {
            return backing.list(after, most);
        }
        let behind = (
            after.map_or(Bound::Unbounded, Bound::Excluded),
            Bound::Unbounded,
        );
        let store = self.lock();
        let modules = store.modules.range(behind).take(most);
        Ok(modules
            .map(|(hash, module)| (*hash, module.len() as u64))
            .collect())
    }

    fn check_room(&self, kept: &[(Hash, u64)], size: usize) -> Result<(), Status> {
        let full = |message| Err(Status::resource_exhausted(message));
        let RepositoryLimits {
            modules,
            module_bytes,
            bytes,
        } = self.limits;
        if size > module_bytes {
            return full(format!(
                "a module of {size} bytes: at most {module_bytes} are allowed"
            ));
        }
        // Others may have said what they like of sizes.
        let held = (kept.iter()).fold(0_u64, |all, (_, size)| all.saturating_add(*size));
        if kept.len() >= modules || size as u64 > (bytes as u64).saturating_sub(held) {
            return full(format!(
                "the repository is full: {modules} modules, {bytes} bytes"
            ));
        }
        Ok(())
    }

    /// The module with this hash, wherever it is.
    async fn find(&self, hash: Hash) -> Result<Option<Bytes>, Status> {
        if let Some(module) = self.module(hash) {
            return Ok(Some(module));
        }
        let Some(backing) = self.backing.clone() else {
            return Ok(None);
        };
        // Anybody may ask. Who does not wait any more still has a thread until it is done.
        let place = Arc::clone(&self.looks.all).try_acquire_owned();
        let place = place.map_err(|_| {
            let most = LOOKS + MOST_LOOKS;
            Status::resource_exhausted(format!(
                "{most} modules are looked for at once: no more are"
            ))
        })?;
        let turn = Arc::clone(&self.looks.at_once).acquire_owned().await;
        let found = apart(move || {
            let _until_then = (place, turn);
            backing.get(hash)
        });
        let Some(module) = found.await? else {
            return Ok(None);
        };
        if Hash::of(&module) != hash {
            let message = format!("what is kept as module {hash} is another one");
            return Err(Status::data_loss(message));
        }
        self.lock().insert(hash, module.clone(), &self.limits);
        Ok(Some(module))
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
    /// It is known from now on. With a backing, others may go for that.
    fn insert(&mut self, hash: Hash, module: Bytes, limits: &RepositoryLimits) {
        self.remove(hash);
        let size = module.len();
        if limits.modules == 0 || size > limits.bytes {
            return;
        }
        while (self.modules.len() >= limits.modules
            || size > limits.bytes.saturating_sub(self.bytes))
            && let Some((_, other)) = self.modules.pop_first()
        {
            self.bytes -= other.len();
        }
        self.bytes += size;
        self.modules.insert(hash, module);
    }

    /// Whether it was there.
    fn remove(&mut self, hash: Hash) -> bool {
        let removed = self.modules.remove(&hash);
        self.bytes -= removed.as_ref().map_or(0, Bytes::len);
        removed.is_some()
    }
}

impl std::fmt::Debug for Repository {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let store = self.lock();
        f.debug_struct("Repository")
            .field("modules", &store.modules.len())
            .field("bytes", &store.bytes)
            .field("backing", &self.backing.is_some())
            .finish_non_exhaustive()
    }
}

/// Disks and other machines may take long.
async fn apart<T: Send + 'static>(
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
        let code = apart(move || repository.keep(module)).await?;
        Ok(request.respond(code.hash()).await?)
    }

    async fn fetch(&self, hash: Hash) -> Result<Vec<u8>, Status> {
        let module = self.find(hash).await?;
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
        let repository = self.clone();
        let listed = apart(move || repository.kept(after, PAGE)).await?;
        Ok(request.respond(listed).await?)
    }

    async fn delete(&self, request: Request<One<bool>>, hash: Hash) -> Result<(), Status> {
        self.managed_by(&request)?;
        let repository = self.clone();
        let deleted = apart(move || repository.remove(hash)).await?;
        Ok(request.respond(deleted).await?)
    }
}
