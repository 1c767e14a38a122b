//! Who may bring chains.

use std::sync::Arc;

use wallaby::transport::Proven;
use wallaby::{Builder, ClusterKey, Code, Endpoint};
use wallaby_chain::{Chains, Hop, Link, State, pipe, start};

use crate::code::{Fake, code};
use crate::world::{Net, at, hosts, library, patience, status, texts, words};

/// A server takes chains of users of its own machine only, as the transport has proven it: over TCP nobody is.
fn local_users() -> Chains {
    Chains::new().allow(|request| matches!(request.identity().peer, Proven::LocalUser { .. }))
}

#[tokio::test]
async fn a_server_takes_chains_of_whom_it_allows_to_bring_them() {
    let guarded = Net::Tcp.serve(local_users()).await;
    let open = Net::Tcp.serve(Chains::new()).await;
    let client = Net::Tcp.client().await;
    // At once, and as a later link.
    for (chain, path) in [
        (
            pipe(at(&guarded), &words::REPEAT, (1,)),
            texts([&at(&guarded)]).to_vec(),
        ),
        (
            pipe(at(&open), &words::REPEAT, (1,)).then(at(&guarded), &words::SHOUT),
            texts([&at(&open), &at(&guarded)]).to_vec(),
        ),
    ] {
        let refused = status(chain.call(client.caller()).expect("it is small").await);
        assert_eq!(refused.code(), Code::PermissionDenied);
        assert!(
            refused.message().contains("may not bring chains here"),
            "{refused}"
        );
        assert_eq!(hosts(&refused), path);
    }
    // Others than chains are not asked about.
    let plain = words::at(&client, at(&guarded));
    assert_eq!(plain.shout("hop".into()).await, Ok("hop!".into()));
    let guarded = Net::Unix.serve(local_users()).await;
    let chain = pipe(at(&guarded), &words::REPEAT, (1,)).then(at(&guarded), &words::SHOUT);
    assert_eq!(
        chain.call(client.caller()).expect("it is small").await,
        Ok("x!".into())
    );
}

/// Who has the cluster's key may bring functions, also over a server that may.
#[tokio::test]
async fn a_server_runs_code_of_whom_it_shares_a_key_with() {
    let keyed = |byte| {
        let key = ClusterKey::new(&[byte; 16]).expect("16 bytes");
        Endpoint::builder().cluster_key(key)
    };
    let serve = async |builder: Builder| {
        let chains = Chains::new().function("last", |_, answer| {
            wallaby_chain::Step::end(&answer.read::<String>()?)
        });
        let chains = chains.code(Fake(Arc::default()), |request| request.is_sealed());
        let builder = chains.add_to(builder.serve(library()));
        Net::Tcp.bind(builder).await
    };
    patience(async {
        let (first, next) = (serve(keyed(1)).await, serve(keyed(1)).await);
        let chain = || {
            let state = State::new().with("left", &1u32);
            let state =
                state.and_then(|state| state.with("next", &Link::to(at(&next), &words::SHOUT)));
            let hop = Hop::to(at(&first), &words::SHOUT, ("a".into(),));
            start::<String>(hop.then(code(1).function("count"), state.expect("small")))
        };
        let member = Net::Tcp.bind(keyed(1)).await;
        let answer = chain().call(member.caller()).expect("it is small").await;
        assert_eq!(answer, Ok("a!!!".into()));
        for stranger in [keyed(2), Endpoint::builder()] {
            let stranger = Net::Tcp.bind(stranger).await;
            let refused = status(chain().call(stranger.caller()).expect("it is small").await);
            assert_eq!(refused.code(), Code::PermissionDenied, "{refused}");
            assert_eq!(hosts(&refused), texts([&at(&first)]));
            // Nor is a function handed on that the chain has further down, in the name of the server.
            let chain = pipe(at(&first), &words::REPEAT, (1,)).then(at(&next), &words::SHOUT);
            let chain = chain.catch(at(&next), code(1).function("count"), State::new());
            let refused = status(chain.call(stranger.caller()).expect("it is small").await);
            assert_eq!(refused.code(), Code::PermissionDenied, "{refused}");
            // Others than functions are not asked about.
            let chain = pipe(at(&first), &words::REPEAT, (1,)).then(at(&next), &words::SHOUT);
            let answer = chain.call(stranger.caller()).expect("it is small").await;
            assert_eq!(answer, Ok("x!".into()));
        }
        assert_eq!(first.metrics().unsealed_refused, 0, "no seal is required");
    })
    .await;
}
