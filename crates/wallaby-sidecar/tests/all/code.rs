//! Functions that clients bring with chains: run by a sidecar, or by another server in its place.

use wallaby::{Code, Endpoint};
use wallaby_chain::{ChainCode, Chains, Hop, Link, State, start};

use crate::world::{Raw, World, answer, soon};

/// It has `both`, which has a text printed and kept, and `join`.
const GLUE: &[u8] = include_bytes!("../../../wallaby-chain-wasm/tests/all/glue-1.wasm");

#[wallaby::service(package = "example")]
trait Text {
    async fn print(text: String) -> String;
    async fn keep(text: String) -> String;
}

#[wallaby::service(package = "http")]
trait Files {
    async fn get(path: String) -> Vec<u8>;
}

struct Server;

#[wallaby::serve]
impl Text for Server {
    async fn print(&self, text: String) -> String {
        format!("{text}, printed")
    }

    async fn keep(&self, text: String) -> String {
        format!("{text}, kept")
    }
}

/// The answer of a server of HTTP goes to two servers of Wallaby, by a function of the client that neither has: the sidecar has
/// it run by another sidecar, which has no servers, and the server has it run there, too.
#[tokio::test]
async fn a_sidecar_is_the_proxy_that_runs_functions_for_others() {
    let proxy = World::new("[code]\nallow = \"callers\"\n").await;
    let server = Endpoint::builder().serve(text::service(Server));
    let server = Chains::new().proxy(proxy.at(), |_| true).add_to(server);
    let server = server.listen("tcp://127.0.0.1:0").bind().await.unwrap();
    let raw = Raw::new(answer("200 OK", "", "hops"), true).await;
    let world = World::new(&format!(
        "[code]\nallow = \"callers\"\nat = \"{}\"\n[[http]]\nname = \"Files\"\nserver = \"http://{}\"\n",
        proxy.at(),
        raw.at
    ))
    .await;
    let at = server.address().unwrap();
    let chain = || {
        let state = State::new()
            .with("print", &Link::to(at, &text::PRINT))
            .unwrap();
        let state = state.with("keep", &Link::to(at, &text::KEEP)).unwrap();
        let first = Hop::to(world.at(), &files::GET, ("/".into(),));
        start::<String>(first.then(ChainCode::new(GLUE).function("both"), state))
    };
    let answer = soon(chain().call(world.client.caller()).unwrap()).await;
    assert_eq!(answer.unwrap(), "hops, printed; hops, kept");
    let hops = proxy.sidecar.endpoint().metrics().requests_received;
    assert_eq!(hops, 2, "the first function, and the one that joins");
    // Nobody may bring any where the file does not say so.
    let silent = World::new("").await;
    let first = Hop::to(silent.at(), &files::GET, ("/".into(),));
    let chain = start::<String>(first.then(ChainCode::new(GLUE).function("both"), State::new()));
    let refused = soon(chain.call(silent.client.caller()).unwrap()).await;
    assert_eq!(refused.unwrap_err().code(), Code::Unimplemented);
}

#[tokio::test]
async fn who_may_bring_functions_may_be_who_has_a_name() {
    let raw = Raw::new(answer("200 OK", "", "hops"), true).await;
    let world = World::new(&format!(
        "code = {{ allow = {{ names = [\"glue.example\"] }} }}\n[[http]]\nname = \"Files\"\nserver = \"http://{}\"\n",
        raw.at
    ))
    .await;
    let first = Hop::to(world.at(), &files::GET, ("/".into(),));
    let chain = start::<String>(first.then(ChainCode::new(GLUE).function("both"), State::new()));
    let refused = soon(chain.call(world.client.caller()).unwrap()).await;
    assert_eq!(refused.unwrap_err().code(), Code::PermissionDenied);
    assert_eq!(
        *raw.seen.lock().unwrap(),
        [""; 0],
        "nor has the server been asked"
    );
}

#[tokio::test]
async fn who_may_bring_functions_may_be_who_has_the_key_of_the_cluster() {
    let raw = Raw::new(answer("200 OK", "", "hops"), true).await;
    let folder = tempfile::tempdir().unwrap();
    let key = folder.path().join("key");
    std::fs::write(&key, "0123456789abcdef").unwrap();
    let world = World::new(&format!(
        "cluster_key = \"{}\"\ncode = {{ allow = \"cluster\" }}\n[[http]]\nname = \"Files\"\nserver = \"http://{}\"\n",
        key.display(),
        raw.at
    ))
    .await;
    let key = wallaby::ClusterKey::new(b"0123456789abcdef").unwrap();
    let member = Endpoint::builder().cluster_key(key).bind().await.unwrap();
    for (client, code, text) in [
        (
            &world.client,
            Code::PermissionDenied,
            "may not bring code here",
        ),
        // Its function runs, and finds nothing.
        (&member, Code::NotFound, "the state has no value print"),
    ] {
        let first = Hop::to(world.at(), &files::GET, ("/".into(),));
        let chain =
            start::<String>(first.then(ChainCode::new(GLUE).function("both"), State::new()));
        let refused = soon(chain.call(client.caller()).unwrap())
            .await
            .unwrap_err();
        assert_eq!(refused.code(), code, "{refused}");
        assert!(refused.to_string().contains(text), "{refused}");
    }
}
