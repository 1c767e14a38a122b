//! Servers that die in the middle of a chain, and callers that give up.

use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::Duration;

use wallaby::{CallError, Failure};
use wallaby_chain::{Chains, pipe};

use crate::process;
use crate::world::{Net, at, patience, until, words};

const ADDRESS: &str = "WALLABY_CHAIN_TEST_ADDRESS";

/// No test, unless the test below has started this program.
#[tokio::test]
async fn is_a_server_if_it_is_asked_to() {
    let Ok(address) = std::env::var(ADDRESS) else {
        return;
    };
    let (service, hanging) = crate::world::hanging();
    let builder = Chains::new().add_to(wallaby::Endpoint::builder().serve(service));
    let _server = builder.listen(&address).bind().await.expect("it is free");
    println!("\nit listens");
    hanging.acquire().await.expect("it is open").forget();
    println!("\nit hangs");
    std::future::pending().await
}

/// Killed with a link of the chain in its hands.
#[tokio::test]
async fn a_server_that_is_killed_is_a_failure_that_names_it() {
    patience(async {
        let net = Net::Unix;
        let address = net.address();
        let mut child = process::only(module_path!(), "is_a_server_if_it_is_asked_to")
            .env(ADDRESS, &address)
            .stdout(Stdio::piped())
            .spawn()
            .expect("it can be started");
        let mut lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        assert!(lines.any(|line| line.expect("text") == "it listens"));
        let (a, client) = (net.serve(Chains::new()).await, net.client().await);
        let killed: wallaby::Address = address.parse().expect("an address");
        let chain = pipe(at(&a), &words::REPEAT, (1,))
            .then(&killed, &words::HANG)
            .then(at(&a), &words::SHOUT);
        let brief = client
            .caller()
            .ping(Duration::from_millis(20), Duration::from_secs(2));
        let call = chain.call(brief).expect("it is small");
        let hangs = tokio::task::spawn_blocking(move || {
            lines.any(|line| line.expect("text") == "it hangs")
        });
        assert!(hangs.await.expect("no panic"));
        child.kill().expect("it runs");
        child.wait().expect("it is gone");
        let file = address.strip_prefix("unix://").expect("a file");
        std::fs::remove_file(file).expect("nobody else has removed it");
        let error = call.await.expect_err("it never answers");
        let CallError::Failed(Failure::Lost(_)) = &error else {
            panic!("{error}");
        };
        assert!(error.to_string().contains(&address), "{error}");
    })
    .await;
}

#[tokio::test]
async fn an_abort_reaches_the_link_that_runs() {
    patience(async {
        let net = Net::Tcp;
        let (a, (b, hanging)) = (
            net.serve(Chains::new()).await,
            net.serve_hanging(Chains::new()).await,
        );
        let client = net.client().await;
        let chain = pipe(at(&a), &words::REPEAT, (1,)).then(at(&b), &words::HANG);
        let call = chain.call(client.caller()).expect("it is small");
        hanging.acquire().await.expect("it is open").forget();
        call.stop().await.expect("it is dropped");
        hanging.acquire().await.expect("it is open").forget();
        until(|| b.load().is_idle()).await;
    })
    .await;
}

#[tokio::test]
async fn the_deadline_of_the_call_holds_for_all_links() {
    patience(async {
        let net = Net::Tcp;
        let (a, (b, hanging)) = (
            net.serve(Chains::new()).await,
            net.serve_hanging(Chains::new()).await,
        );
        let client = net.client().await;
        let chain = pipe(at(&a), &words::REPEAT, (1,)).then(at(&b), &words::HANG);
        let brief = client.caller().deadline(Duration::from_millis(200));
        let error = chain
            .call(brief)
            .expect("it is small")
            .await
            .expect_err("late");
        assert_eq!(error.code(), wallaby::Code::DeadlineExceeded);
        // The handler has heard of it, if it had begun.
        until(|| b.load().is_idle() && hanging.available_permits() != 1).await;
    })
    .await;
}
