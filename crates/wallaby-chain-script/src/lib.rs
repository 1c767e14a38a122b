//! Runs chaining functions that clients bring as source text, which servers compile: by [Rhai](https://rhai.rs), within limits.
//!
//! Scripts run in the server's own process, so a flaw in the interpreter ends it: take them from clients that somebody answers for.
//! From strangers take WebAssembly only.
//!
//! ```
//! use wallaby::{Endpoint, transport::Proven};
//! use wallaby_chain::{ChainCode, Chains, Hop, State, start};
//! use wallaby_chain_script::{ScriptLimits, Scripts};
//!
//! #[wallaby::service(package = "example")]
//! trait Mail { async fn fetch(id: u32) -> String; }
//!
//! #[wallaby::service(package = "example")]
//! trait Ads { async fn pick(topic: String) -> String; }
//!
//! struct Server;
//!
//! #[wallaby::serve]
//! impl Mail for Server {
//!     async fn fetch(&self, id: u32) -> String { format!("mail {id} about hops") }
//! }
//!
//! #[wallaby::serve]
//! impl Ads for Server {
//!     async fn pick(&self, topic: String) -> String { format!("buy {topic}") }
//! }
//!
//! const GLUE: &str = r#"// wallaby: rhai 1
//!     fn advertise(state, mail) {
//!         state.mail = mail;
//!         next(state.ads, [mail.split(" ").pop()], "join", state)
//!     }
//!
//!     fn join(state, ad) {
//!         end(state.mail + "; " + ad)
//!     }
//! "#;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let socket = std::env::temp_dir().join(format!("wallaby-script-{}", std::process::id()));
//! # let socket = format!("unix://{}", socket.display());
//! // Users of this machine may bring code.
//! let chains = Chains::new().code(Scripts::new(ScriptLimits::default()), |request| {
//!     matches!(request.identity().peer, Proven::LocalUser { .. })
//! });
//! let server = Endpoint::builder().serve(mail::service(Server)).serve(ads::service(Server)).listen(&socket);
//! let server = chains.add_to(server).bind().await?;
//! let at = server.address().ok_or("it listens")?;
//!
//! let client = Endpoint::client()?;
//! let state = State::new().link("ads", at, &ads::PICK)?;
//! let first = Hop::to(at, &mail::FETCH, (7,)).then(ChainCode::new(GLUE).function("advertise"), state);
//! let page = start::<String>(first).call(client.caller())?.await?;
//! assert_eq!(page, "mail 7 about hops; buy hops");
//! # Ok(())
//! # }
//! ```
//!
//! `docs/chains.md` in the repository has the language, and what a script may use up. A server that takes WebAssembly, too, is given
//! a pair of both runtimes.

mod engine;
mod limits;
mod plain;
mod said;
mod values;

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::thread;

use bytes::Bytes;
use rhai::AST;
use wallaby::{Code, Status};
use wallaby_chain::{Effort, Fault, Limit, Module, Runtime};

pub use limits::ScriptLimits;

use crate::engine::{Ended, Library};

/// How the first line of a script begins: so its kind is known.
const KIND: &str = "// wallaby:";

/// The language and the version of what scripts are given.
const VERSION: &str = "rhai 1";

/// Compiles and runs scripts. Clones are the same, and several servers may share it.
#[derive(Clone)]
pub struct Scripts {
    library: Arc<Library>,
}

impl Scripts {
    /// Within these limits.
    pub fn new(limits: ScriptLimits) -> Self {
        let library = Arc::new(Library::new(limits));
        Self { library }
    }
}

impl fmt::Debug for Scripts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Scripts")
            .field(&self.library.limits)
            .finish()
    }
}

impl Runtime for Scripts {
    fn takes(&self, module: &[u8]) -> bool {
        module.starts_with(KIND.as_bytes())
    }

    fn load(&self, module: &[u8]) -> Result<Arc<dyn Module>, Status> {
        let most = self.library.limits.source;
        if module.len() > most {
            let message = format!(
                "a script of {} bytes: at most {most} are allowed",
                module.len()
            );
            return Err(Limit::Code.exceeded(message));
        }
        let text = str::from_utf8(module)
            .map_err(|error| Status::invalid_argument(format!("the code is no text: {error}")))?;
        check_version(text)?;
        let ast = on_a_stack(self.library.limits.stack, || self.library.compile(text))??;
        let mut functions = BTreeMap::<String, Vec<usize>>::new();
        for function in ast.iter_functions() {
            let known = functions.entry(function.name.to_owned()).or_default();
            known.push(function.params.len());
        }
        Ok(Arc::new(Script {
            library: Arc::clone(&self.library),
            size: 4096 + 64 * module.len(),
            functions,
            ast,
        }))
    }
}

fn check_version(text: &str) -> Result<(), Status> {
    let first = text.lines().next().unwrap_or_default();
    match first.strip_prefix(KIND).map(str::trim) {
        Some(VERSION) => Ok(()),
        Some(other) => {
            let message = format!("a script in {other:?}: this server knows {VERSION:?}");
            Err(Status::unimplemented(message))
        }
        None => Err(Status::invalid_argument(format!(
            "the code is no script: the first line of one is `{KIND} {VERSION}`"
        ))),
    }
}

/// On a thread with a stack of so many bytes.
fn on_a_stack<T: Send>(stack: usize, work: impl FnOnce() -> T + Send) -> Result<T, Status> {
    thread::scope(|scope| {
        let thread = thread::Builder::new()
            .name("wallaby-script".into())
            .stack_size(stack)
            .spawn_scoped(scope, work);
        let thread = thread.map_err(|error| {
            Limit::Load.exceeded(format!("there is no thread for a script: {error}"))
        })?;
        thread.join().map_err(|panic| panicked(&*panic))
    })
}

fn panicked(panic: &(dyn Any + Send)) -> Status {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    let why = text.unwrap_or("it says not why");
    Status::new(
        Code::Panicked,
        format!("what runs scripts has panicked: {why}"),
    )
}

/// A script that is compiled.
struct Script {
    library: Arc<Library>,
    ast: AST,
    /// How many parameters the functions of each name have.
    functions: BTreeMap<String, Vec<usize>>,
    size: usize,
}

impl Module for Script {
    fn check(&self, function: &str) -> Result<(), Status> {
        match self.functions.get(function) {
            Some(parameters) if parameters.contains(&2) => Ok(()),
            Some(_) => Err(Status::invalid_argument(format!(
                "{function:?} of the script is no chaining function: these have two parameters"
            ))),
            None => Err(Status::not_found(format!(
                "the script has no function {function:?}"
            ))),
        }
    }

    fn run(&self, function: &str, input: &Bytes, effort: Effort) -> Result<Vec<u8>, Fault> {
        let run = || self.library.run(&self.ast, function, input, effort);
        let ended = match effort {
            Effort::Brief => run(),
            Effort::Full => on_a_stack(self.library.limits.stack, run).map_err(Fault::Status)?,
        };
        ended.map_err(|ended| match ended {
            Ended::Limit(..) if effort == Effort::Brief => Fault::Longer,
            Ended::Limit(limit, what) => {
                Fault::Status(limit.exceeded(format!("function {function:?} of the script {what}")))
            }
            Ended::Status(status) => Fault::Status(status),
        })
    }

    fn size(&self) -> usize {
        self.size
    }
}

/// The programs of the page about chains compile and run.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/chains.md")]
struct ChainsPage;
