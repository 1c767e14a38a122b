//! Runs chaining functions that clients bring as WebAssembly, by wasmtime, in a sandbox.
//!
//! ```
//! use wallaby::Endpoint;
//! use wallaby::transport::Proven;
//! use wallaby_chain::Chains;
//! use wallaby_chain_wasm::{WasmLimits, WebAssembly};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // Users of this machine may bring code.
//! let chains = Chains::new().code(WebAssembly::new(WasmLimits::default())?, |request| {
//!     matches!(request.identity().peer, Proven::LocalUser { .. })
//! });
//! let server = chains.add_to(Endpoint::builder());
//! # Ok(())
//! # }
//! ```
//!
//! A module imports nothing, so that all it can do is compute on what it is given. What it uses up is limited by [`WasmLimits`]. Each
//! call has an instance of its own, which is gone afterwards.

use std::collections::HashMap;
use std::error::Error;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use wallaby::{Code, Status};
use wallaby_chain::{Effort, Fault, Limit, Module, Runtime};
use wallaby_chain_guest::abi::{EXPORT, VERSION};
use wasmtime::{
    Config, Engine, ExternType, FuncType, InstanceAllocationStrategy, InstancePre, Linker,
    OperatorCost, PoolingAllocationConfig, RegallocAlgorithm, Store, StoreLimits,
    StoreLimitsBuilder, Trap, TypedFunc, ValType,
};

/// Bytes of a page of WebAssembly's memory.
const PAGE: usize = 65_536;

/// What a function may use up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WasmLimits {
    /// Instructions of a function that runs where answers are sent. One that needs more is run again elsewhere. Default 100,000.
    pub brief: u64,
    /// Instructions of any function. Default 100 million. Of bulk operations each byte counts as one.
    pub instructions: u64,
    /// Bytes of memory, for what it is given, too. Default 16 MiB. It is rounded up to pages of 64 KiB.
    pub memory: usize,
    /// Bytes of stack, of that of the thread on which it runs. Default 256 KiB.
    pub stack: usize,
    /// Bytes of what it yields. Default 1 MiB.
    pub output: usize,
    /// Elements of its table. Default 4,096.
    pub table: usize,
    /// Functions that run at once, at all servers that share this. Default 64. Their memory is reserved, but not used.
    pub at_once: u32,
}

impl Default for WasmLimits {
    fn default() -> Self {
        Self {
            brief: 100_000,
            instructions: 100_000_000,
            memory: 16 << 20,
            stack: 256 << 10,
            output: 1 << 20,
            table: 4096,
            at_once: 64,
        }
    }
}

/// An engine for modules. Clones are the same one, and several servers may share it.
#[derive(Clone)]
pub struct WebAssembly {
    engine: Engine,
    linker: Arc<Linker<StoreLimits>>,
    limits: Arc<WasmLimits>,
}

/// Why there is no engine.
#[derive(Debug)]
pub struct EngineError(wasmtime::Error);

impl fmt::Display for EngineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WebAssembly cannot be run here: {:#}", self.0)
    }
}

impl Error for EngineError {}

impl WebAssembly {
    /// With these limits.
    ///
    /// # Errors
    ///
    /// If there is no engine for this processor, or not so much address space.
    pub fn new(mut limits: WasmLimits) -> Result<Self, EngineError> {
        limits.memory = limits.memory.next_multiple_of(PAGE);
        let engine = Engine::new(&config(&limits)).map_err(EngineError)?;
        Ok(Self {
            linker: Arc::new(Linker::new(&engine)),
            limits: Arc::new(limits),
            engine,
        })
    }
}

impl fmt::Debug for WebAssembly {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("WebAssembly").field(&self.limits).finish()
    }
}

fn config(limits: &WasmLimits) -> Config {
    let mut pool = PoolingAllocationConfig::new();
    pool.total_core_instances(limits.at_once)
        .total_memories(limits.at_once)
        .total_tables(limits.at_once)
        .max_memories_per_module(1)
        .max_tables_per_module(1)
        .max_memory_size(limits.memory)
        .table_elements(limits.table)
        // So much is zeroed by hand, which is quicker than asking the system for new pages.
        .linear_memory_keep_resident(2 * PAGE)
        .table_keep_resident(PAGE);
    // What costs more than an instruction is to count for more.
    let costs = OperatorCost {
        MemoryGrow: u8::MAX,
        TableGrow: u8::MAX,
        ..OperatorCost::default()
    };
    let mut config = Config::new();
    config
        .allocation_strategy(InstanceAllocationStrategy::Pooling(pool))
        .consume_fuel(true)
        .operator_cost(costs)
        .max_wasm_stack(limits.stack)
        // Functions are short: it is compiling that takes time.
        .cranelift_opt_level(wasmtime::OptLevel::None)
        .cranelift_regalloc_algorithm(RegallocAlgorithm::SinglePass)
        .native_unwind_info(false)
        .wasm_backtrace_max_frames(None)
        // An image of its memory would cost each module a file.
        .memory_init_cow(false)
        .memory_reservation(limits.memory as u64)
        .memory_guard_size(PAGE as u64)
        .wasm_multi_memory(false)
        .wasm_memory64(false)
        .wasm_tail_call(false)
        .wasm_extended_const(true);
    config
}

impl Runtime for WebAssembly {
    fn takes(&self, module: &[u8]) -> bool {
        module.starts_with(b"\0asm")
    }

    fn load(&self, module: &[u8]) -> Result<Arc<dyn Module>, Status> {
        let wrong = |error: &dyn fmt::Display| {
            Status::invalid_argument(format!(
                "the code is no module that can run here: {error:#}"
            ))
        };
        wasmtime::Module::validate(&self.engine, module).map_err(|error| wrong(&error))?;
        let compiled = wasmtime::Module::from_binary(&self.engine, module);
        let compiled = compiled.map_err(|error| {
            Limit::Code.exceeded(format!("the code needs more than is allowed: {error:#}"))
        })?;
        check_exports(&compiled)?;
        if let Some(import) = compiled.imports().next() {
            let (from, name) = (import.module(), import.name());
            return Err(wrong(&format_args!(
                "it imports {name:?} of {from:?}, but there is nothing to import"
            )));
        }
        let image = compiled.image_range();
        let size = (image.end as usize).saturating_sub(image.start as usize);
        let functions = compiled.exports().filter_map(|export| match export.ty() {
            ExternType::Func(function) => Some((
                export.name().to_owned(),
                is_of(&function, &["i32", "i32"], "i64"),
            )),
            _ => None,
        });
        let functions = functions.collect();
        let instances = self.linker.instantiate_pre(&compiled);
        let instances = instances.map_err(|error| wrong(&error))?;
        Ok(Arc::new(Compiled {
            instances,
            functions,
            size,
            limits: Arc::clone(&self.limits),
        }))
    }
}

/// Its version, and its memory.
fn check_exports(module: &wasmtime::Module) -> Result<(), Status> {
    let wrong = |message: String| Err(Status::invalid_argument(message));
    let versions = module
        .exports()
        .filter_map(|export| export.name().strip_prefix(EXPORT));
    let versions: Vec<&str> = versions.collect();
    match module.get_export(&format!("{EXPORT}{VERSION}")) {
        Some(ExternType::Func(room)) if is_of(&room, &["i32"], "i32") => {}
        None if !versions.is_empty() => {
            let (ours, theirs) = (VERSION, versions.join(", "));
            let message = format!("code of version {theirs}: this server knows version {ours}");
            return Err(Status::unimplemented(message));
        }
        _ => {
            return wrong(format!(
                "the code does not say by which rules it is called: it exports no function \
                     {EXPORT}{VERSION} that takes an i32 and returns one"
            ));
        }
    }
    match module.get_export("memory") {
        Some(ExternType::Memory(_)) => Ok(()),
        _ => wrong("the code exports no memory that is called \"memory\"".into()),
    }
}

fn is_of(function: &FuncType, given: &[&str], yields: &str) -> bool {
    let name = |value: ValType| value.to_string();
    function.params().map(name).eq(given.iter().copied())
        && function.results().map(name).eq([yields])
}

/// A module that is compiled.
struct Compiled {
    instances: InstancePre<StoreLimits>,
    /// Whether each is one that can be called.
    functions: HashMap<String, bool>,
    size: usize,
    limits: Arc<WasmLimits>,
}

impl Module for Compiled {
    fn check(&self, function: &str) -> Result<(), Status> {
        match self.functions.get(function) {
            Some(true) => Ok(()),
            Some(false) => Err(Status::invalid_argument(format!(
                "{function:?} of the code is no chaining function: these take two i32 and return an i64"
            ))),
            None => Err(Status::not_found(format!(
                "the code exports no function {function:?}"
            ))),
        }
    }

    fn run(&self, function: &str, input: &Bytes, effort: Effort) -> Result<Vec<u8>, Fault> {
        let fuel = match effort {
            Effort::Brief => self.limits.brief.min(self.limits.instructions),
            Effort::Full => self.limits.instructions,
        };
        self.call(function, input, fuel).map_err(|error| {
            let trap = error.downcast_ref::<Trap>();
            if trap == Some(&Trap::OutOfFuel) && effort == Effort::Brief {
                return Fault::Longer;
            }
            Fault::Status(self.status(function, &error))
        })
    }

    fn size(&self) -> usize {
        self.size
    }
}

impl Compiled {
    fn call(&self, function: &str, input: &[u8], fuel: u64) -> wasmtime::Result<Vec<u8>> {
        let limits = StoreLimitsBuilder::new()
            .memory_size(self.limits.memory)
            .table_elements(self.limits.table)
            .trap_on_grow_failure(true)
            .build();
        let mut store = Store::new(self.instances.module().engine(), limits);
        store.limiter(|limits| limits);
        store.set_fuel(fuel)?;
        let instance = self.instances.instantiate(&mut store)?;
        let wrong = |what: &'static str| wasmtime::Error::from(Wrong(what));
        let memory = instance.get_memory(&mut store, "memory");
        let memory = memory.ok_or_else(|| wrong("it has no memory"))?;
        let room: TypedFunc<u32, u32> =
            instance.get_typed_func(&mut store, &format!("{EXPORT}{VERSION}"))?;
        let run: TypedFunc<(u32, u32), u64> = instance.get_typed_func(&mut store, function)?;
        let length = u32::try_from(input.len());
        let length = length.map_err(|_| wrong("it cannot be given so much"))?;
        let place = room.call(&mut store, length)?;
        let written = memory.write(&mut store, place as usize, input);
        written.map_err(|_| wrong("where it wants to be given something is no memory"))?;
        let yielded = run.call(&mut store, (place, length))?;
        let (place, length) = ((yielded >> 32) as usize, yielded as u32 as usize);
        if length > self.limits.output {
            return Err(TooMuch(length).into());
        }
        let end = place.checked_add(length);
        let output = end.and_then(|end| memory.data(&store).get(place..end));
        let output = output.ok_or_else(|| wrong("where it says its answer is, is no memory"))?;
        Ok(output.to_vec())
    }

    /// What ends the chain.
    fn status(&self, function: &str, error: &wasmtime::Error) -> Status {
        let WasmLimits {
            instructions,
            memory,
            stack,
            output,
            at_once,
            ..
        } = *self.limits;
        let exhausted = |limit: Limit, what: String| {
            limit.exceeded(format!("function {function:?} of the code {what}"))
        };
        if let Some(Wrong(what)) = error.downcast_ref() {
            return Status::invalid_argument(format!("function {function:?} of the code: {what}"));
        }
        if let Some(TooMuch(length)) = error.downcast_ref() {
            let what = format!("yields {length} bytes: at most {output} are allowed");
            return exhausted(Limit::Output, what);
        }
        match error.downcast_ref::<Trap>() {
            Some(Trap::OutOfFuel) => exhausted(
                Limit::Instructions,
                format!("runs for more than {instructions} instructions"),
            ),
            Some(Trap::StackOverflow) => exhausted(
                Limit::Stack,
                format!("uses more than {stack} bytes of stack"),
            ),
            Some(trap) => {
                let message = format!("function {function:?} of the code has ended itself: {trap}");
                Status::new(Code::Panicked, message)
            }
            None if error.is::<wasmtime::PoolConcurrencyLimitError>() => {
                let message = format!("this server runs at most {at_once} functions at once");
                Limit::Load.exceeded(message)
            }
            None => exhausted(
                Limit::Memory,
                format!(
                    "asks for more than {memory} bytes of memory, or for too large a table: {error:#}"
                ),
            ),
        }
    }
}

/// What a module does that it must not.
#[derive(Debug)]
struct Wrong(&'static str);

/// It yields so many bytes.
#[derive(Debug)]
struct TooMuch(usize);

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl fmt::Display for TooMuch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0)
    }
}

impl Error for Wrong {}

impl Error for TooMuch {}

/// The programs of the guide's page compile, and those without code run.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/chains.md")]
struct GuidePage;
