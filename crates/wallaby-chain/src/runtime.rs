//! What runs code that clients bring, and what a server has of it: each module is loaded once, and so many are kept.

use std::collections::HashMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::OnceCell;
use wallaby::intercept::Incoming;
use wallaby::{Client, Code, Status};

use crate::chains::Policy;
use crate::code::{ChainCode, Hash, Source, unpack};
use crate::engine::text_of;
use crate::limit::Limit;
use crate::place::Place;
use crate::repository::functions;
use crate::turns::{Turns, Who};

/// What runs modules: an engine for WebAssembly, as `wallaby-chain-wasm` has one, or for scripts, as `wallaby-chain-script`. Whoever
/// implements it sees to it that code which strangers have written does no harm, however it tries. A pair of two is one that has
/// both, and the first one's word is taken for what it [takes](Self::takes).
pub trait Runtime: Send + Sync + 'static {
    /// Whether a module is of the kind that this runs, as far as its first bytes show: asked where there are several.
    fn takes(&self, module: &[u8]) -> bool {
        let _any = module;
        true
    }

    /// Makes a module ready to run. It may take long: it has a thread of its own, and [`CodeLimits::compiling`] says how many
    /// there are at once.
    ///
    /// # Errors
    ///
    /// A status that says what is wrong with it.
    fn load(&self, module: &[u8]) -> Result<Arc<dyn Module>, Status>;
}

impl<A: Runtime, B: Runtime> Runtime for (A, B) {
    fn takes(&self, module: &[u8]) -> bool {
        self.0.takes(module) || self.1.takes(module)
    }

    fn load(&self, module: &[u8]) -> Result<Arc<dyn Module>, Status> {
        match self.0.takes(module) {
            true => self.0.load(module),
            false => self.1.load(module),
        }
    }
}

/// A module that is ready to run, by several threads at once.
pub trait Module: Send + Sync + 'static {
    /// Whether it exports a function of this name. It is asked before a link runs whose answer that is to get.
    ///
    /// # Errors
    ///
    /// A status that says why not.
    fn check(&self, function: &str) -> Result<(), Status>;

    /// Runs a function on the bytes of an [`Input`](wallaby_chain_guest::abi::Input); what it yields are those of an
    /// [`Output`](wallaby_chain_guest::abi::Output). Nothing of one run is there in the next.
    ///
    /// # Errors
    ///
    /// If it needs longer than that, or does something that it may not.
    fn run(&self, function: &str, input: &Bytes, effort: Effort) -> Result<Vec<u8>, Fault>;

    /// About how many bytes of memory it takes while it is kept.
    fn size(&self) -> usize;
}

/// How long a function may run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effort {
    /// So briefly that other requests of this thread can wait for it: well below a millisecond. Most functions need no more.
    Brief,
    /// As long as functions may: on a thread of its own, from the beginning.
    Full,
}

/// Why a function has not run to its end.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Fault {
    /// It needs longer than [`Effort::Brief`]. It is run again: a function changes nothing but what it yields.
    Longer,
    /// It is over.
    Status(Status),
}

/// Limits of the code that clients bring to a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CodeLimits {
    /// Bytes of a module. Default 256 KiB.
    pub bytes: usize,
    /// Modules that are kept. Of more, the one that was not used for longest goes. Default 1,024.
    pub kept: usize,
    /// Bytes that these take, as far as the runtime knows. Default 64 MiB.
    pub kept_bytes: usize,
    /// Modules that are fetched, wait to be compiled, or are. Others are refused meanwhile. Default 64.
    pub loading: usize,
    /// Modules that are compiled at once, each on a thread. Others wait, and have turns by who has sent their chains here, and has
    /// started them. Default 1.
    pub compiling: usize,
    /// How long a repository may take to send a module. Default 5 seconds.
    pub fetch: Duration,
    /// Functions that run at once for longer than briefly, each on a thread. Others wait, and have turns as those that are to be
    /// compiled. Default 1.
    pub long_runs: usize,
}

impl Default for CodeLimits {
    fn default() -> Self {
        Self {
            bytes: 256 << 10,
            kept: 1024,
            kept_bytes: 64 << 20,
            loading: 64,
            compiling: 1,
            fetch: Duration::from_secs(5),
            long_runs: 1,
        }
    }
}

/// What a server has of code.
pub(crate) struct Codes {
    runtime: Arc<dyn Runtime>,
    policy: Box<Policy>,
    limits: CodeLimits,
    table: Mutex<Table>,
    compiling: Arc<Turns>,
    long_runs: Arc<Turns>,
}

#[derive(Default)]
struct Table {
    known: HashMap<Hash, Known>,
    /// How many of them are loaded.
    loaded: usize,
    /// Bytes of these.
    bytes: usize,
    /// Rises with each use.
    now: u64,
}

/// Where a module is as soon as it is loaded.
type Slot = Arc<OnceCell<Arc<dyn Module>>>;

/// A module that is loaded, or will be.
struct Known {
    slot: Slot,
    used: u64,
    /// How many wait for it.
    waiting: usize,
    /// What it counts for, as soon as it is loaded.
    bytes: Option<usize>,
}

impl Codes {
    pub(crate) fn new(runtime: Arc<dyn Runtime>, policy: Box<Policy>, limits: CodeLimits) -> Self {
        Self {
            compiling: Turns::new(limits.compiling),
            long_runs: Turns::new(limits.long_runs),
            table: Mutex::default(),
            runtime,
            policy,
            limits,
        }
    }

    /// Whether who has sent this may bring code.
    pub(crate) fn allows(&self, request: &Incoming) -> bool {
        (self.policy)(request)
    }

    /// The module with this hash, if it is loaded.
    pub(crate) fn loaded(&self, hash: Hash) -> Option<Arc<dyn Module>> {
        let mut table = self.lock();
        table.now += 1;
        let now = table.now;
        let known = table.known.get_mut(&hash)?;
        known.used = now;
        known.slot.get().cloned()
    }

    /// The module with this hash; it is loaded if it is not. Whoever waits for the same one waits for the same load.
    pub(crate) async fn find(
        &self,
        hash: Hash,
        code: Option<&ChainCode>,
        place: Place<'_>,
    ) -> Result<Arc<dyn Module>, Status> {
        if let Some(module) = self.loaded(hash) {
            return Ok(module);
        }
        let loading = self.wait_for(hash)?;
        let load = || self.load(hash, code, place);
        let module = loading.slot.get_or_try_init(load).await.cloned()?;
        self.lock().keep(&loading, module.size(), &self.limits);
        Ok(module)
    }

    fn wait_for(&self, hash: Hash) -> Result<Loading<'_>, Status> {
        let mut table = self.lock();
        let most = self.limits.loading;
        let is_full = table.known.len() - table.loaded >= most;
        if is_full && !table.known.contains_key(&hash) {
            let message = format!("this server loads at most {most} functions at once");
            return Err(Limit::Load.exceeded(message));
        }
        let used = table.now;
        let known = table.known.entry(hash).or_insert_with(|| Known {
            slot: Arc::default(),
            used,
            waiting: 0,
            bytes: None,
        });
        known.waiting += 1;
        let slot = Arc::clone(&known.slot);
        Ok(Loading {
            codes: self,
            hash,
            slot,
        })
    }

    async fn load(
        &self,
        hash: Hash,
        code: Option<&ChainCode>,
        place: Place<'_>,
    ) -> Result<Arc<dyn Module>, Status> {
        let (bytes, is_packed) = match code.map(ChainCode::source) {
            Some(Source::Packed(module)) => (module.clone(), true),
            Some(Source::At(server)) => {
                let client = place.named(server).map_err(|error| {
                    let message = format!("code {hash} is not fetched from {server}: {error}");
                    Status::new(error.code(), message)
                })?;
                let client = client.deadline(self.limits.fetch.min(place.time()));
                (fetch(hash, client).await?.into(), false)
            }
            None => {
                let message = format!("code {hash} is not here, and nobody says where it is");
                return Err(Status::not_found(message));
            }
        };
        let (runtime, most) = (Arc::clone(&self.runtime), self.limits.bytes);
        on_a_thread((&self.compiling, place.who()), move || {
            let module = match is_packed {
                false => bytes,
                true => unpack(&bytes, most)
                    .map_err(|error| {
                        let message = format!("code {hash} cannot be unpacked: {error}");
                        Status::new(Code::DataLoss, message)
                    })?
                    .into(),
            };
            if module.len() > most {
                let message = format!(
                    "code {hash} has more than {most} bytes, the most that this server takes"
                );
                return Err(Limit::Code.exceeded(message));
            }
            let is = Hash::of(&module);
            if is != hash {
                let message = format!("code {hash} is not what was sent: that is {is}");
                return Err(Status::new(Code::DataLoss, message));
            }
            runtime.load(&module)
        })
        .await
    }

    /// Runs a function: at once, or on a thread of its own if it takes long.
    pub(crate) async fn run(
        &self,
        module: Arc<dyn Module>,
        (function, input): (String, Bytes),
        place: Place<'_>,
    ) -> Result<Vec<u8>, Status> {
        let run = AssertUnwindSafe(|| module.run(&function, &input, Effort::Brief));
        match catch_unwind(run).unwrap_or_else(|panic| Err(Fault::Status(panicked(&*panic)))) {
            Ok(output) => Ok(output),
            Err(Fault::Status(status)) => Err(status),
            Err(Fault::Longer) => {
                let run = move || module.run(&function, &input, Effort::Full);
                let run = move || run().map_err(Fault::into_status);
                on_a_thread((&self.long_runs, place.who()), run).await
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Codes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let table = self.lock();
        f.debug_struct("Codes")
            .field("loaded", &table.loaded)
            .field("bytes", &table.bytes)
            .finish_non_exhaustive()
    }
}

impl Fault {
    fn into_status(self) -> Status {
        match self {
            Self::Longer => Limit::Instructions.exceeded("the function runs for too long"),
            Self::Status(status) => status,
        }
    }
}

impl Table {
    /// It is loaded: others make room.
    fn keep(&mut self, loading: &Loading<'_>, size: usize, limits: &CodeLimits) {
        match self.get(loading) {
            Some(known) if known.bytes.is_none() => known.bytes = Some(size),
            _ => return,
        }
        self.loaded += 1;
        self.bytes = self.bytes.saturating_add(size);
        while self.loaded > limits.kept || self.bytes > limits.kept_bytes {
            let loaded = self.known.iter().filter(|(_, known)| known.bytes.is_some());
            let Some((&oldest, _)) = loaded.min_by_key(|(_, known)| known.used) else {
                return;
            };
            self.forget(oldest);
        }
    }

    /// What somebody waits for, if it is still there.
    fn get(&mut self, loading: &Loading<'_>) -> Option<&mut Known> {
        let known = self.known.get_mut(&loading.hash)?;
        Arc::ptr_eq(&known.slot, &loading.slot).then_some(known)
    }

    fn forget(&mut self, hash: Hash) {
        let known = self.known.remove(&hash);
        if let Some(bytes) = known.and_then(|known| known.bytes) {
            self.loaded -= 1;
            self.bytes = self.bytes.saturating_sub(bytes);
        }
    }
}

/// Somebody waits for a module.
struct Loading<'a> {
    codes: &'a Codes,
    hash: Hash,
    slot: Slot,
}

/// What came to nothing, and nobody waits for, is forgotten.
impl Drop for Loading<'_> {
    fn drop(&mut self) {
        let mut table = self.codes.lock();
        let Some(known) = table.get(self) else {
            return;
        };
        known.waiting -= 1;
        if known.waiting == 0 && known.bytes.is_none() {
            table.forget(self.hash);
        }
    }
}

/// A module from who has it.
async fn fetch(hash: Hash, client: Client) -> Result<Vec<u8>, Status> {
    let server = client.server().map(|server| format!(" from {server}"));
    let server = server.unwrap_or_default();
    let fetched = functions::within(client).fetch(hash).await;
    fetched.map_err(|error| {
        let message = format!("code {hash} could not be fetched{server}: {error}");
        Status::new(error.code(), message)
    })
}

/// Runs this on a thread when it is its initiator's turn. It runs to its end, also if nobody waits for it any more.
async fn on_a_thread<T: Send + 'static>(
    (turns, who): (&Arc<Turns>, Who),
    work: impl FnOnce() -> Result<T, Status> + Send + 'static,
) -> Result<T, Status> {
    let turn = turns.take(who).await;
    let done = tokio::task::spawn_blocking(move || {
        let _turn = turn;
        work()
    });
    match done.await {
        Ok(result) => result,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => Err(panicked(&*panic)),
            Err(_) => Err(Status::aborted("the server is being stopped")),
        },
    }
}

fn panicked(panic: &(dyn std::any::Any + Send)) -> Status {
    let message = format!("what runs functions has panicked: {}", text_of(panic));
    Status::new(Code::Panicked, message)
}
