//! Services that know nothing of chains, and servers that run what anybody brings.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use wallaby::{Address, CallError, Endpoint, Status};
use wallaby_chain::{ChainCode, Chains, CodeLimits, Hop, State, start};
use wallaby_chain_wasm::{WasmLimits, WebAssembly};

#[wallaby::service(package = "test")]
pub(crate) trait Text {
    async fn write(about: String) -> String;
    async fn print(text: String) -> String;
    async fn keep(text: String) -> String;
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
}

/// A server that runs what anybody brings.
pub(crate) async fn serve(limits: WasmLimits) -> (Endpoint, Server) {
    serve_within(CodeLimits::default(), limits).await
}

pub(crate) async fn serve_within(code: CodeLimits, limits: WasmLimits) -> (Endpoint, Server) {
    let server = Server::default();
    let runtime = WebAssembly::new(limits).expect("it runs here");
    let limits = wallaby_chain::ChainLimits {
        code,
        ..Default::default()
    };
    let chains = Chains::new().limits(limits).code(runtime, |_| true);
    let builder = chains.add_to(Endpoint::builder().serve(text::service(server.clone())));
    let bound = builder.listen("tcp://127.0.0.1:0").bind().await;
    (bound.expect("a port is free"), server)
}

pub(crate) async fn client() -> Endpoint {
    let bound = Endpoint::bind("tcp://127.0.0.1:0").await;
    bound.expect("a port is free")
}

pub(crate) fn at(endpoint: &Endpoint) -> Address {
    endpoint.address().expect("it listens").clone()
}

/// What this function makes of a text that a server has written.
pub(crate) async fn ask(
    client: &Endpoint,
    server: &Endpoint,
    code: &ChainCode,
    function: &str,
    state: State,
) -> Result<String, CallError> {
    let first = Hop::to(at(server), &text::WRITE, ("hops".into(),));
    let chain = start::<String>(first.then(code.function(function), state));
    chain.call(client.caller()).expect("it is small").await
}
