//! Who may bring chains.

use wallaby::Code;
use wallaby::transport::Proven;
use wallaby_chain::{Chains, pipe};

use crate::world::{Net, at, hosts, status, texts, words};

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
