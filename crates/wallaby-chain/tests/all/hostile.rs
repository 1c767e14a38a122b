//! A chain that never stops splitting, beside those of others.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use wallaby::{Address, CallError, Endpoint};
use wallaby_chain::{Chain, Chains, Hop, Merge, State, Step, start};

use crate::world::{Net, at, patience, words};

/// How many chains of another client come to their end meanwhile.
const OTHERS: usize = 4;

/// How it splits.
const BRANCHES: usize = 8;
const DEPTH: u8 = 3;

/// Each branch splits again, three times; what all of them come to splits again from the beginning.
fn functions(splits: Arc<AtomicU64>) -> Chains {
    let split = move |state: &State| {
        let (at, depth): (Address, u8) = (state.get("at")?, state.get("depth")?);
        if depth == DEPTH {
            return Step::end(&0u64);
        }
        splits.fetch_add(1, Ordering::Relaxed);
        let deeper = state.clone().with("depth", &(depth + 1))?;
        let branch =
            || Hop::to(&at, &words::LENGTH, ("x".to_owned(),)).then("split", deeper.clone());
        let branches: Vec<Hop> = (0..BRANCHES).map(|_| branch()).collect();
        let merge = Merge::at(&at, "again", state.clone());
        Ok(Step::split(branches, merge))
    };
    let again = split.clone();
    Chains::new()
        .function("split", move |state, _| split(&state))
        .merging("again", move |state, _| match state.get::<u8>("depth")? {
            0 => again(&state),
            _ => Step::end(&0u64),
        })
        .function("twice", |state, answer| {
            let (at, text): (Address, String) = (state.get("at")?, answer.read()?);
            let branch = |text: &str| Hop::to(&at, &words::SHOUT, (text.to_owned(),));
            let merge = Merge::at(&at, "join", State::new());
            Ok(Step::split([branch(&text), branch("and")], merge))
        })
        .merging("join", |_, results| {
            let texts: Result<Vec<String>, _> = results.iter().map(|it| it.read()).collect();
            Step::end(&texts?.join(" "))
        })
}

fn hostile(at: &Address) -> Chain<u64> {
    let state = State::new().with("at", at);
    let state = state.and_then(|state| state.with("depth", &0u8));
    let first = Hop::to(at, &words::LENGTH, (String::new(),));
    start(first.then("split", state.expect("small")))
}

async fn answer(client: &Endpoint, server: &Address) -> Result<String, CallError> {
    let state = State::new().with("at", server).expect("small");
    let first = Hop::to(server, &words::SHOUT, ("hop".to_owned(),)).then("twice", state);
    let chain = start::<String>(first).call(client.caller());
    chain.expect("it is small").await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_chain_that_never_stops_splitting_holds_up_no_others() {
    patience(async {
        let net = Net::Unix;
        let splits = Arc::new(AtomicU64::new(0));
        let server = net.serve(functions(Arc::clone(&splits))).await;
        let (client, other) = (net.client().await, net.client().await);
        let server = at(&server);
        let hostile = async {
            loop {
                let ended = hostile(&server).call(client.caller()).expect("small").await;
                ended.expect_err("it has no end, but for what it may use up");
            }
        };
        let others = async {
            for number in 0..OTHERS {
                let before = splits.load(Ordering::Relaxed);
                let answer = answer(&other, &server).await;
                assert_eq!(answer, Ok("hop!! and!".into()), "chain {number}");
                // The other one has not waited for this one either.
                while splits.load(Ordering::Relaxed) == before {
                    tokio::task::yield_now().await;
                }
            }
        };
        tokio::select! {
            () = hostile => unreachable!("it goes on for ever"),
            () = others => {}
        }
    })
    .await;
}
