//! What chains may use up, and what of them cannot be read.

use wallaby::{Address, Budgets, Code, Status};
use wallaby_chain::{
    Chain, ChainError, ChainLimits, Chains, Hop, Limit, Merge, State, Step, pipe, start,
};

use crate::world::{Net, at, hosts, patience, status, words};

/// Goes on at the same server for ever.
fn turning(limits: ChainLimits) -> Chains {
    let turn = |state: State, answer: wallaby_chain::Answer| {
        let _: u64 = answer.read()?;
        let at: Address = state.get("at")?;
        Ok(Hop::to(at, &words::LENGTH, ("x".to_owned(),))
            .then("turn", state)
            .into())
    };
    let grow = |mut state: State, _| {
        let mut grown: Vec<u8> = state.get("grown")?;
        grown.extend([7; 1000]);
        state.set("grown", &grown)?;
        let at: Address = state.get("at")?;
        Ok(Hop::to(at, &words::LENGTH, ("x".to_owned(),))
            .then("grow", state)
            .into())
    };
    Chains::new()
        .function("turn", turn)
        .function("grow", grow)
        .limits(limits)
}

fn turns(at: &Address, function: &str) -> Chain<u64> {
    let state = State::new()
        .with("at", at)
        .and_then(|state| state.with("grown", &Vec::<u8>::new()))
        .expect("it can be written");
    start(Hop::to(at, &words::LENGTH, ("x".to_owned(),)).then(function, state))
}

#[tokio::test]
async fn a_chain_without_end_ends_at_the_servers_limit() {
    patience(async {
        let net = Net::Unix;
        let client = net.client().await;
        for (limits, hops) in [
            (
                ChainLimits {
                    hops: 5,
                    ..ChainLimits::default()
                },
                5,
            ),
            (ChainLimits::default(), 2000),
        ] {
            let server = net.serve(turning(limits)).await;
            let chain = turns(&at(&server), "turn").call(client.caller());
            let refused = status(chain.expect("it is small").await);
            assert_eq!(refused.code(), Code::ResourceExhausted);
            let text = format!("a chain of more than {hops} hops, the most that this server takes");
            assert!(refused.message().starts_with(&text), "{refused}");
            assert_eq!(Limit::of(&refused), Some(Limit::Hops));
            assert_eq!(server.metrics().requests_received, hops + 1);
            assert_eq!(
                hosts(&refused).len(),
                if hops == 5 { 6 } else { 17 },
                "{refused}"
            );
        }
    })
    .await;
}

#[tokio::test]
async fn a_state_that_grows_without_end_is_an_exception() {
    patience(async {
        let net = Net::Tcp;
        let client = net.client().await;
        for (bytes, most) in [(3000, 2000), (16_384, 20_000)] {
            let limits = ChainLimits {
                bytes,
                state: most,
                ..ChainLimits::default()
            };
            let server = net.serve(turning(limits)).await;
            let chain = turns(&at(&server), "grow").call(client.caller());
            let refused = status(chain.expect("it is small").await);
            assert_eq!(refused.code(), Code::ResourceExhausted);
            let text = format!("bytes of state that follow it: at most {most} are allowed");
            assert!(refused.message().contains(&text), "{refused}");
            assert_eq!(Limit::of(&refused), Some(Limit::State));
            assert!(hosts(&refused).len() >= 2, "{refused}");
        }
    })
    .await;
}

#[tokio::test]
async fn a_chain_that_is_too_large_does_not_begin() {
    let net = Net::Tcp;
    let (server, client) = (net.serve(Chains::new()).await, net.client().await);
    let state = State::new()
        .with("much", &vec![0u8; 16 << 20])
        .expect("bytes");
    let first = Hop::to(at(&server), &words::REPEAT, (1,)).then("any", state);
    let error = start::<String>(first)
        .call(client.caller())
        .expect_err("too large");
    assert!(matches!(error, ChainError::TooLarge(_)));
    assert!(
        error.to_string().contains("at most 16777216 are allowed"),
        "{error}"
    );
    assert_eq!(Status::from(error).code(), Code::ResourceExhausted);
    assert_eq!(server.metrics().requests_received, 0);
}

/// More chains inside each other than a server takes.
#[tokio::test]
async fn the_stack_has_a_limit() {
    let net = Net::Tcp;
    let shallow = ChainLimits {
        levels: 2,
        ..ChainLimits::default()
    };
    let (server, client) = (
        net.serve(Chains::new().limits(shallow)).await,
        net.client().await,
    );
    let mut chain = pipe(at(&server), &words::REPEAT, (1,));
    for (levels, code) in [(1, None), (2, None), (3, Some(Code::ResourceExhausted))] {
        chain = chain.catch(at(&server), "any", State::new());
        let answer = chain
            .clone()
            .call(client.caller())
            .expect("it is small")
            .await;
        let refused = answer.err().map(|error| status::<()>(Err(error)));
        let told = refused.as_ref().map(Status::code);
        assert_eq!(told, code, "{levels} levels");
        if let Some(refused) = refused {
            assert_eq!(Limit::of(&refused), Some(Limit::Levels), "{refused}");
            assert_eq!(hosts(&refused), [at(&server).to_string()]);
        }
    }
}

/// Its bytes, and what a server that cannot run them says.
#[tokio::test]
async fn what_a_server_cannot_run_is_refused_before_a_link_runs() {
    let net = Net::Tcp;
    let (server, hanging) = net.serve_hanging(Chains::new()).await;
    let client = net.client().await;
    // Marked, no hops, no path, no branches, one level: a function of WebAssembly by its hash, without state; no code.
    let web_assembly = [
        b"wchn\x03\x01\0\0\0\0\x01\0\x02",
        &[0xab; 32][..],
        b"\x01f\0\0",
    ]
    .concat();
    for (bytes, code, text) in [
        (
            web_assembly,
            Code::Unimplemented,
            "code abababababababababababababababababababababababababababababababab comes with a client: this server runs pipes",
        ),
        (
            b"wchn\x05".to_vec(),
            Code::Unimplemented,
            "a chain of version 5: this server knows versions 3 and 4",
        ),
        (
            b"wchn\x03\x01".to_vec(),
            Code::InvalidArgument,
            "a chain that cannot be read: ",
        ),
    ] {
        let client = client.caller().at(at(&server)).continuation(bytes);
        let refused = status(client.call(&words::HANG, (String::new(),)).await);
        assert_eq!(refused.code(), code, "{refused}");
        assert!(refused.message().starts_with(text), "{refused}");
    }
    assert_eq!(hanging.available_permits(), 0);
}

/// Merges and exceptions are asked for by chains alone.
#[tokio::test]
async fn a_servers_own_methods_are_for_chains() {
    let net = Net::Tcp;
    let (server, client) = (net.serve(Chains::new()).await, net.client().await);
    for method in ["merge", "raise"] {
        let name = format!("wallaby.Chains/{method}");
        let method = wallaby::MethodDefinition::new(&name, "raw", 0, 0).expect("a name");
        let method = std::sync::Arc::new(method);
        for (continuation, code) in [
            (None, Code::InvalidArgument),
            (
                Some(&b"wchn\x03\x01\0\0\0\0\0\0"[..]),
                Code::InvalidArgument,
            ),
        ] {
            let mut to = client.caller().at(at(&server));
            if let Some(bytes) = continuation {
                to = to.continuation(bytes);
            }
            let mut call = to.call_raw(&method, "x".into());
            let refused = status(
                call.next()
                    .await
                    .expect("a status")
                    .map(|answer| answer.payload),
            );
            assert_eq!(refused.code(), code, "{name}: {refused}");
        }
    }
}

/// The call's budgets hold for all of its hops. Nobody catches it if one is used up: to tell who would takes a request more.
#[tokio::test]
async fn a_budget_that_is_used_up_ends_a_chain() {
    patience(async {
        let net = Net::Tcp;
        let (server, client) = (
            net.serve(turning(ChainLimits::default())).await,
            net.client().await,
        );
        let all = Budgets::default();
        for (budgets, received, name) in [
            (Budgets { requests: 5, ..all }, 5, "requests"),
            (Budgets { depth: 3, ..all }, 3, "depth"),
        ] {
            let caught = turns(&at(&server), "turn").catch(at(&server), "any", State::new());
            for chain in [turns(&at(&server), "turn"), caught] {
                let before = server.metrics().requests_received;
                let chain = chain.call(client.caller().budgets(budgets));
                let ended = status(chain.expect("it is small").await);
                assert_eq!(ended.code(), Code::ResourceExhausted, "{ended}");
                let text = format!("the request's budget of {name} is used up: 1 more wanted");
                assert!(ended.message().starts_with(&text), "{ended}");
                assert_eq!(Limit::of(&ended), Some(Limit::Budget));
                assert_eq!(ended.server(), Some(&at(&server)));
                assert_eq!(server.metrics().requests_received - before, received);
            }
        }
    })
    .await;
}

/// What a function catches says which limit it was, and each path has its host.
#[tokio::test]
async fn limits_are_told_from_each_other() {
    let net = Net::Unix;
    let which = |_: State, exception: wallaby_chain::Exception| {
        let hosts = exception.path().hosts().len();
        Step::end(&format!("{:?} after {hosts}", exception.limit()))
    };
    let into = |branches: usize| {
        move |state: State, _: wallaby_chain::Answer| {
            let at: Address = state.get("at")?;
            let branch =
                || Hop::to(&at, &words::LENGTH, ("x".to_owned(),)).then("two", state.clone());
            let branches: Vec<Hop> = (0..branches).map(|_| branch()).collect();
            Ok(Step::split(branches, Merge::at(&at, "none", State::new())))
        }
    };
    let chains = turning(ChainLimits {
        hops: 5,
        splits: 2,
        state: 2000,
        ..ChainLimits::default()
    });
    let chains = chains.function("many", into(65)).function("two", into(2));
    let chains = chains
        .catching("which", which)
        .function("says", |_, _| Ok(Step::end(&())?.log("x".repeat(70_000))));
    let (server, client) = (net.serve(chains).await, net.client().await);
    for (function, limit, hosts) in [
        ("turn", Limit::Hops, 6),
        ("grow", Limit::Hops, 6),
        ("many", Limit::Branches, 1),
        ("two", Limit::Splits, 3),
        ("says", Limit::Said, 1),
    ] {
        let state = State::new()
            .with("at", &at(&server))
            .and_then(|state| state.with("grown", &Vec::<u8>::new()))
            .expect("it can be written");
        let first = Hop::to(at(&server), &words::LENGTH, ("x".to_owned(),));
        let chain = start::<String>(first.then(function, state));
        let chain = chain.catch(at(&server), "which", State::new());
        let caught = chain.call(client.caller()).expect("it is small").await;
        let expected = format!("Some({limit:?}) after {hosts}");
        assert_eq!(caught, Ok(expected), "{function}");
    }
}
