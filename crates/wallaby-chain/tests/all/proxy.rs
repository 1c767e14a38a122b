//! Functions that clients bring, run by another server than the one that has what they are given.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use wallaby::{Client, Code, Endpoint, MethodDefinition};
use wallaby_chain::{ChainCode, Chains, CodeLimits, Link, State, hosts, pipe};

use crate::code::{Counts, Fake, ask, code, open};
use crate::world::{Net, at, status, texts, words};

#[tokio::test]
async fn code_runs_at_a_proxy_and_the_chain_goes_on_from_there() {
    let client = Net::Tcp.client().await;
    let (chains, counts) = open(CodeLimits::default());
    let proxy = Net::Tcp.bind(chains.add_to(Endpoint::builder())).await;
    let a = Chains::new().proxy(at(&proxy), |_| true);
    let a = Net::Tcp.serve(a).await;
    for function in ["end", "long"] {
        assert_eq!(ask(&client, &a, &code(1), function).await, Ok("a!".into()));
    }
    // The branches meet at the server, and what they have come to goes to the proxy.
    assert_eq!(
        ask(&client, &a, &code(1), "both").await,
        Ok("a!!+b!".into())
    );
    // Also with more than may travel within a request.
    let state = State::new()
        .with("shout", &Link::to(at(&a), &words::SHOUT))
        .and_then(|state| state.with("much", &vec![7u8; 40_000]));
    let chain = pipe(at(&a), &words::SHOUT, ("mail".into(),)).then(at(&a), &words::DENY);
    let chain = chain.catch(at(&a), code(1).function("rescue"), state.expect("a link"));
    let rescued = chain.call(client.caller()).expect("it is small").await;
    assert_eq!(rescued, Ok("mail! is not for you after 2 hosts!".into()));
    assert_eq!(counts.loads.load(Ordering::SeqCst), 1);
    for (module, function, text) in [
        ("malformed", "end", "it is malformed"),
        ("a", "missing", "there is no such function"),
        ("a", "panic", "has panicked"),
        ("a", "garbage", "cannot be read"),
    ] {
        let failed = status(ask(&client, &a, &ChainCode::new(module.as_bytes()), function).await);
        assert!(failed.message().contains(text), "{failed}");
        assert_eq!(hosts(&failed), texts([&at(&a), &at(&proxy)]), "{failed}");
    }
}

#[tokio::test]
async fn a_proxy_needs_leave_on_both_sides_and_hands_nothing_on() {
    let client = Net::Tcp.client().await;
    let (chains, _) = open(CodeLimits::default());
    let open = Net::Tcp.serve(chains).await;
    let counts = Arc::<Counts>::default();
    let guarded = Chains::new().code(Fake(Arc::clone(&counts)), |_| false);
    let guarded = Net::Tcp.serve(guarded).await;
    let second = Net::Tcp
        .serve(Chains::new().proxy(at(&open), |_| true))
        .await;
    let none = Net::Tcp.serve(Chains::new()).await;
    for (proxy, expected) in [
        (&guarded, Code::PermissionDenied),
        (&second, Code::Unimplemented),
        (&none, Code::Unimplemented),
    ] {
        let a = Net::Tcp
            .serve(Chains::new().proxy(at(proxy), |_| true))
            .await;
        let refused = status(ask(&client, &a, &code(1), "end").await);
        assert_eq!(refused.code(), expected, "{refused}");
        assert_eq!(hosts(&refused), texts([&at(&a), &at(proxy)]));
    }
    let closed = Net::Tcp
        .serve(Chains::new().proxy(at(&open), |_| false))
        .await;
    let refused = status(ask(&client, &closed, &code(1), "end").await);
    assert_eq!(refused.code(), Code::PermissionDenied, "{refused}");
    assert_eq!(hosts(&refused), texts([&at(&closed)]));
    // Nor by a way on which it is not on top.
    let state = State::new().with("shout", &Link::to(at(&open), &words::SHOUT));
    let chain = pipe(at(&closed), &words::SHOUT, ("mail".into(),)).then(at(&open), &words::DENY);
    let chain = chain.catch(
        at(&open),
        code(1).function("rescue"),
        state.expect("a link"),
    );
    let refused = status(chain.call(client.caller()).expect("it is small").await);
    assert_eq!(refused.code(), Code::PermissionDenied, "{refused}");
    assert_eq!(open.metrics().requests_received, 0);
    assert_eq!(counts.loads.load(Ordering::SeqCst), 0);
    let apply = MethodDefinition::new("wallaby.Chains/apply", "raw", 0, 0).expect("a name");
    let mut call = Client::new(&client, at(&open)).call_raw(&Arc::new(apply), "\0".into());
    let refused = call.next().await.expect("one").expect_err("no chain");
    assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
}

/// What a proxy is given is read as what a stranger says.
#[tokio::test]
async fn what_a_proxy_is_given_has_limits() {
    let client = Net::Tcp.client().await;
    let (chains, counts) = open(CodeLimits::default());
    let proxy = Net::Tcp.serve(chains).await;
    // One level, a function of code, without state; and the code, which is four bytes as they are.
    let level = [&b"wchn\x03\0\0\0\0\0\x01\0\x02"[..], code(2).hash().bytes()].concat();
    let source = [&b"\x04join\0\x01"[..], code(2).hash().bytes()].concat();
    let packed = [0, 9, 1, 4, 0, 0xfb, 0xff, 0, 0, 0, 2];
    let stack = [&level[..], &source, &packed].concat();
    let apply = MethodDefinition::new("wallaby.Chains/apply", "raw", 0, 0).expect("a name");
    let apply = Arc::new(apply);
    for (given, expected, text) in [
        (
            &[1, 65][..],
            Code::ResourceExhausted,
            "65 results to merge: at most 64 are allowed",
        ),
        (
            &[1, 0xff, 0xff, 0xff, 0x7f],
            Code::ResourceExhausted,
            "268435455 results to merge: at most 64 are allowed",
        ),
        (
            &[1, 64],
            Code::InvalidArgument,
            "what a function is given cannot be read",
        ),
        (
            &[3],
            Code::InvalidArgument,
            "what a function is given cannot be read",
        ),
        (
            &[],
            Code::InvalidArgument,
            "what a function is given cannot be read",
        ),
    ] {
        let to = client.caller().at(at(&proxy)).continuation(stack.clone());
        let mut call = to.call_raw(&apply, given.to_vec().into());
        let answer = call.next().await.expect("a status");
        let refused = status(answer.map(|answer| answer.payload));
        assert_eq!(refused.code(), expected, "{given:?}: {refused}");
        assert!(refused.message().starts_with(text), "{given:?}: {refused}");
    }
    assert_eq!(counts.loads.load(Ordering::SeqCst), 1);
}
