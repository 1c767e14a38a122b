//! A module that Rust has made: the example `glue` of wallaby-chain-guest, as that was when the version of the format was new.
//! Servers run it as long as they know that version.

use wallaby::{Endpoint, Status};
use wallaby_chain::{ChainCode, Link, Repository, State, pipe};
use wallaby_chain_wasm::WasmLimits;

use crate::world::{ask, at, client, serve, text};

const GLUE: &[u8] = include_bytes!("glue-1.wasm");

fn links(server: &Endpoint) -> Result<State, Status> {
    State::new()
        .with("print", &Link::to(at(server), &text::PRINT))?
        .with("keep", &Link::to(at(server), &text::KEEP))
}

#[tokio::test]
async fn a_module_of_rust_splits_merges_and_catches() {
    let ((a, _), (b, _)) = (
        serve(WasmLimits::default()).await,
        serve(WasmLimits::default()).await,
    );
    let client = client().await;
    let repository = Repository::new();
    client
        .serve(repository.service())
        .expect("nothing is served there");
    let kept = repository
        .keep(GLUE)
        .expect("there is room")
        .at(at(&client));
    for glue in [ChainCode::new(GLUE), kept] {
        for _ in 0..2 {
            let links = links(&b).expect("links");
            let answer = ask(&client, &a, &glue, "both", links).await;
            let expected = "a text about hops, printed; a text about hops, kept";
            assert_eq!(answer, Ok(expected.into()));
        }
        let state = links(&b).and_then(|links| links.with("text", &"a text".to_owned()));
        let chain = pipe(at(&a), &text::WRITE, ("secrets".into(),)).then(at(&b), &text::PRINT);
        let chain = chain.catch(at(&a), glue.function("rescue"), state.expect("small"));
        let answer = chain.call(client.caller()).expect("it is small").await;
        assert_eq!(answer, Ok("a text, not printed: it is secret, kept".into()));
    }
}

/// What it is not given it says.
#[tokio::test]
async fn a_function_of_rust_says_what_is_missing() {
    let ((server, _), client) = (serve(WasmLimits::default()).await, client().await);
    for (function, message) in [
        ("both", "the state has no value print"),
        (
            "join",
            "the function is for something else: answers, results or exceptions",
        ),
    ] {
        let answer = ask(
            &client,
            &server,
            &ChainCode::new(GLUE),
            function,
            State::new(),
        )
        .await;
        let status = answer.expect_err("it misses something").status().cloned();
        let status = status.expect("a status");
        assert!(status.message().starts_with(message), "{status}");
        assert_eq!(wallaby_chain::hosts(&status), [at(&server).to_string()]);
    }
}
