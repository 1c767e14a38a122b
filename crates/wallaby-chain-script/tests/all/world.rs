//! Services that know nothing of chains, and servers that run what anybody brings.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use wallaby::codec::{MessagePack, Raw};
use wallaby::{Address, CallError, Endpoint, One, Request, Status};
use wallaby_chain::{ChainCode, Chains, CodeLimits, Hop, State, start};
use wallaby_chain_script::{ScriptLimits, Scripts};

#[wallaby::service(package = "test")]
pub(crate) trait Text {
    async fn write(about: String) -> String;
    async fn print(text: String) -> String;
    async fn keep(text: String) -> String;
    async fn long(bytes: u32) -> Vec<u8>;
    async fn measure(bytes: Vec<u8>) -> u64;
    async fn nothing();
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum Kind {
    Plain,
    Sized { width: u32, height: u32 },
    Tagged(String),
    Pair(i64, u64),
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Item {
    pub(crate) name: String,
    pub(crate) price: Option<f64>,
    pub(crate) kinds: Vec<Kind>,
    pub(crate) stock: BTreeMap<String, u32>,
    pub(crate) by_number: BTreeMap<u8, bool>,
    pub(crate) large: u64,
    pub(crate) huge: i128,
    pub(crate) letter: char,
    pub(crate) float: f32,
    pub(crate) bytes: Vec<u8>,
    pub(crate) pair: (u8, ()),
    pub(crate) inside: Vec<Self>,
}

#[wallaby::service(package = "test")]
pub(crate) trait Shop {
    async fn put(item: Item) -> Item;
}

/// The same type, with names.
#[wallaby::service(package = "test", codec = MessagePack)]
pub(crate) trait Evolving {
    async fn put(item: Item) -> Item;
}

#[wallaby::service(package = "test", codec = Raw)]
pub(crate) trait Echo {
    async fn echo(bytes: Bytes) -> Bytes;
}

/// How often something was written.
#[derive(Clone, Default)]
pub(crate) struct Server(pub(crate) Arc<AtomicUsize>);

#[wallaby::serve]
impl Text for Server {
    async fn write(&self, about: String) -> String {
        self.0.fetch_add(1, Ordering::SeqCst);
        format!("a text about {about}")
    }

    async fn print(&self, text: String) -> Result<String, Status> {
        match text.contains("secrets") {
            true => Err(Status::permission_denied("it is secret")),
            false => Ok(format!("{text}, printed")),
        }
    }

    async fn keep(&self, text: String) -> String {
        format!("{text}, kept")
    }

    async fn long(&self, bytes: u32) -> Vec<u8> {
        (0..bytes).map(|byte| byte as u8).collect()
    }

    async fn measure(&self, bytes: Vec<u8>) -> u64 {
        let sum = bytes.iter().map(|byte| u64::from(*byte)).sum::<u64>();
        sum << 32 | bytes.len() as u64
    }

    async fn nothing(&self) {}
}

#[wallaby::serve]
impl Shop for Server {
    async fn put(&self, item: Item) -> Item {
        item
    }
}

#[wallaby::serve]
impl Evolving for Server {
    async fn put(&self, item: Item) -> Item {
        item
    }
}

#[wallaby::serve]
impl Echo for Server {
    async fn echo(&self, request: Request<One<Bytes>, Raw>, bytes: Bytes) -> Result<(), Status> {
        Ok(request.respond(bytes).await?)
    }
}

/// A server that runs what anybody brings.
pub(crate) async fn serve(limits: ScriptLimits) -> (Endpoint, Server) {
    serve_within(CodeLimits::default(), limits).await
}

pub(crate) async fn serve_within(code: CodeLimits, limits: ScriptLimits) -> (Endpoint, Server) {
    let server = Server::default();
    let limits_of_chains = wallaby_chain::ChainLimits {
        code,
        ..Default::default()
    };
    let chains = Chains::new()
        .limits(limits_of_chains)
        .code(Scripts::new(limits), |_| true)
        .function("shout", |_, answer| {
            wallaby_chain::Step::end(&answer.read::<String>()?.to_uppercase())
        });
    let builder = Endpoint::builder()
        .serve(text::service(server.clone()))
        .serve(shop::service(server.clone()))
        .serve(evolving::service(server.clone()))
        .serve(echo::service(server.clone()));
    let bound = chains.add_to(builder).listen("tcp://127.0.0.1:0").bind();
    (bound.await.expect("a port is free"), server)
}

pub(crate) async fn client() -> Endpoint {
    let bound = Endpoint::bind("tcp://127.0.0.1:0").await;
    bound.expect("a port is free")
}

pub(crate) fn at(endpoint: &Endpoint) -> Address {
    endpoint.address().expect("it listens").clone()
}

/// A script with these functions.
pub(crate) fn script(functions: &str) -> ChainCode {
    ChainCode::new(format!("// wallaby: rhai 1\n{functions}"))
}

/// What the function `run` makes of a text that a server has written.
pub(crate) async fn ask(
    client: &Endpoint,
    server: &Endpoint,
    code: &ChainCode,
    state: State,
) -> Result<String, CallError> {
    let first = Hop::to(at(server), &text::WRITE, ("hops".into(),));
    let chain = start::<String>(first.then(code.function("run"), state));
    chain.call(client.caller()).expect("it is small").await
}
