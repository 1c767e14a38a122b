//! Servers that a chain does not get to: exceptions, which somebody may catch.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use wallaby::{Address, Code, DialPolicy, Endpoint, Servers};
use wallaby_chain::{Chain, Chains, Exception, Hop, Merge, State, Step, pipe, start};

use crate::composition::{Primary, copying, store};
use crate::process;
use crate::world::{Net, at, hosts, library, patience, status, texts, until, words};

const ADDRESS: &str = "WALLABY_CHAIN_TEST_UNSENT";

/// What an exception was, as a text.
fn told(exception: &Exception) -> String {
    let code = exception.code();
    format!("{code}: {} [{}]", exception.message(), exception.path())
}

/// Who catches says what it was, and has the chain go on to the server in its state, if there is one.
fn functions() -> Chains {
    Chains::new()
        .catching("say", |_, exception| Step::end(&told(&exception)))
        .catching("go on", |state, exception| {
            let next: Address = state.get("next")?;
            Ok(Hop::to(next, &words::SHOUT, (told(&exception),)).into())
        })
        .function("split", |state, _| {
            let (next, gone): (Address, Address) = (state.get("next")?, state.get("gone")?);
            let merge = Merge::at(state.get::<Address>("merge")?, "join", State::new());
            let branch = |at: &Address| Hop::to(at, &words::SHOUT, ("branch".to_owned(),));
            Ok(Step::split(
                [branch(&next), branch(&gone), branch(&next)],
                merge,
            ))
        })
        .merging("join", |_, results| Step::end(&results.len().to_string()))
}

async fn answer(chain: Chain<String>, client: &Endpoint) -> String {
    let answer = chain.call(client.caller()).expect("it is small").await;
    answer.expect("somebody catches it")
}

/// An address at which nobody is.
async fn gone(net: Net) -> Address {
    at(&net.client().await)
}

#[tokio::test]
async fn a_server_that_is_not_there_is_an_exception_that_is_caught() {
    patience(async {
        for net in [Net::Tcp, Net::Unix] {
            let (a, b, client) = (
                net.serve(functions()).await,
                net.serve(functions()).await,
                net.client().await,
            );
            let gone = gone(net).await;
            let next = State::new().with("next", &at(&a)).expect("small");
            let chain = || pipe(at(&a), &words::REPEAT, (1,)).then(&gone, &words::SHOUT);
            for (catcher, function) in [(&b, "say"), (&b, "go on"), (&a, "say"), (&a, "go on")] {
                let caught = chain().catch(at(catcher), function, next.clone());
                let text = answer(caught, &client).await;
                let begins = format!("unavailable: cannot connect to {gone}: ");
                assert!(text.starts_with(&begins), "{text}");
                let path = format!("[{} > {gone}]", at(&a));
                let path = if function == "say" { path } else { path + "!" };
                assert!(text.ends_with(&path), "{text}");
            }
            // What is behind it goes on.
            let caught = chain().catch(at(&b), "say", State::new());
            let length = caught.then(at(&a), &words::LENGTH);
            let length = length.call(client.caller()).expect("it is small").await;
            assert!(length.expect("a length") > 20);
            // Nobody catches it: as the protocol tells it, with the path.
            let lost = status(chain().call(client.caller()).expect("it is small").await);
            assert_eq!(
                (lost.code(), lost.server()),
                (Code::Unavailable, Some(&gone))
            );
            assert!(lost.is_not_executed() && lost.method() == Some("test.Words/shout"));
            assert_eq!(hosts(&lost), texts([&at(&a), &gone]), "{lost}");
        }
    })
    .await;
}

/// Which name stands for nobody, and what a server does not dial or has no transport for.
#[tokio::test]
async fn a_server_to_which_nothing_goes_is_an_exception_too() {
    patience(async {
        let net = Net::Unix;
        let (b, client) = (net.serve(functions()).await, net.client().await);
        let gone = gone(net).await;
        let ours = at(&b);
        let policy = DialPolicy::default().only_if(move |to| *to == ours);
        let names = Servers::new([gone.clone()]).expect("it is one");
        let builder = Endpoint::builder().dial_policy(policy).serve(library());
        let chains = functions().servers("gone", names);
        let a = net.bind(chains.add_to(builder)).await;
        for (to, begins, last) in [
            (
                "service://nobody",
                "not found: no servers are known as \"nobody\"",
                at(&a),
            ),
            ("service://gone", "permission denied: ", gone.clone()),
            (
                "unix:///elsewhere",
                "permission denied: ",
                "unix:///elsewhere".parse().unwrap(),
            ),
        ] {
            let to: Address = to.parse().expect("an address");
            let chain = || pipe(at(&a), &words::REPEAT, (1,)).then(&to, &words::SHOUT);
            let text = answer(chain().catch(at(&b), "say", State::new()), &client).await;
            assert!(text.starts_with(begins), "{text}");
            assert!(text.ends_with(&format!("{last}]")), "{text}");
            let lost = status(chain().call(client.caller()).expect("it is small").await);
            let lost = hosts(&lost).pop();
            assert_eq!(lost, Some(last.to_string()));
        }
    })
    .await;
}

/// No test, unless the test below has started this program.
#[tokio::test]
async fn is_a_server_if_it_is_asked_to() {
    let Ok(address) = std::env::var(ADDRESS) else {
        return;
    };
    let builder = Chains::new().add_to(Endpoint::builder().serve(library()));
    let _server = builder.listen(&address).bind().await.expect("it is free");
    println!("\nit listens");
    std::future::pending().await
}

/// It was there, and is killed before the chain comes to it.
#[tokio::test]
async fn a_server_that_was_killed_before_is_an_exception() {
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
        let (a, client) = (net.serve(functions()).await, net.client().await);
        let killed: Address = address.parse().expect("an address");
        let chain = || {
            let chain = pipe(at(&a), &words::REPEAT, (1,)).then(&killed, &words::SHOUT);
            chain.catch(at(&a), "say", State::new())
        };
        assert_eq!(answer(chain(), &client).await, "x!");
        child.kill().expect("it runs");
        child.wait().expect("it is gone");
        until(|| a.metrics().connections_ended > 0).await;
        let text = answer(chain(), &client).await;
        assert!(text.starts_with("unavailable: "), "{text}");
        assert!(text.ends_with(&format!("{killed}]")), "{text}");
    })
    .await;
}

/// It goes outward, with what it was.
#[tokio::test]
async fn who_was_to_catch_and_is_not_there_is_an_exception_too() {
    patience(async {
        let net = Net::Unix;
        let (a, b, client) = (
            net.serve(functions()).await,
            net.serve(functions()).await,
            net.client().await,
        );
        let (gone, catcher) = (gone(net).await, gone(net).await);
        let nobody: Address = "service://nobody".parse().expect("an address");
        let unconnected = format!("unavailable: cannot connect to {catcher}: ");
        let unknown = "not found: no servers are known as \"nobody\"";
        for (catcher, begins, last) in [
            (&catcher, unconnected.as_str(), &catcher),
            (&nobody, unknown, &at(&a)),
        ] {
            for (chain, what) in [
                (
                    pipe(at(&a), &words::DENY, ("hop".to_owned(),)),
                    "hop is not for you",
                ),
                (
                    pipe(at(&a), &words::REPEAT, (1,)).then(&gone, &words::SHOUT),
                    "cannot connect to unix:",
                ),
            ] {
                let chain = chain.catch(catcher, "say", State::new());
                let text = answer(chain.catch(at(&b), "say", State::new()), &client).await;
                assert!(text.starts_with(begins), "{text}");
                assert!(
                    text.contains(&format!("; it was to catch: {what}")),
                    "{text}"
                );
                assert!(
                    text.contains(&format!("{last}]")) || last != catcher,
                    "{text}"
                );
            }
        }
    })
    .await;
}

/// It is the exception of its branch: the others come to the merge host all the same.
#[tokio::test]
async fn a_branch_that_does_not_get_there_is_caught_once() {
    patience(async {
        let net = Net::Unix;
        let (a, b, client) = (
            net.serve(functions()).await,
            net.serve(functions()).await,
            net.client().await,
        );
        let gone = gone(net).await;
        let chain = |merge: Address| {
            let state = State::new()
                .with("next", &at(&b))
                .and_then(|state| state.with("gone", &gone))
                .and_then(|state| state.with("merge", &merge));
            let first = Hop::to(at(&a), &words::REPEAT, (1,));
            let chain = start::<String>(first.then("split", state.expect("small")));
            chain.catch(at(&a), "say", State::new())
        };
        for merge in [at(&b), at(&a)] {
            let text = answer(chain(merge), &client).await;
            assert!(text.starts_with("unavailable: "), "{text}");
            assert!(text.ends_with(&format!("[{} > {gone}]", at(&a))), "{text}");
        }
        // Of a merge host that is not there nobody knows which branches have heard: the caller is told.
        let chain = chain(gone.clone()).call(client.caller());
        let lost = status(chain.expect("it is small").await);
        assert_eq!(
            (lost.code(), lost.server()),
            (Code::Unavailable, Some(&gone))
        );
        assert_eq!(hosts(&lost).pop(), Some(gone.to_string()));
    })
    .await;
}

/// The chain of a handler does not get there, be that a link of another chain or not: the handler catches it.
#[tokio::test]
async fn a_chain_of_a_handler_that_does_not_get_there_is_caught_by_it() {
    patience(async {
        let net = Net::Unix;
        let client = net.client().await;
        let other = net.serve(copying()).await;
        let gone = gone(net).await;
        for catches in [true, false] {
            // Where it listens it is to be known before.
            let own: Address = net.address().parse().expect("an address");
            let primary = Primary {
                backup: gone.clone(),
                catches: catches.then(|| own.clone()),
            };
            let builder = Endpoint::builder()
                .serve(library())
                .serve(store::service(primary));
            let builder = copying().add_to(builder).listen(&own.to_string());
            let _primary = builder.bind().await.expect("it is free");
            let put = store::at(&client, &own).put("text".into()).await;
            let chain = pipe(at(&other), &words::SHOUT, ("text".to_owned(),));
            let chain = chain
                .then(&own, &store::PUT)
                .then(at(&other), &words::SHOUT);
            let chained = chain.call(client.caller()).expect("it is small").await;
            if catches {
                let (put, chained) = (put.expect("caught"), chained.expect("caught"));
                assert!(put.starts_with("only text: cannot connect to "), "{put}");
                assert!(put.ends_with("after 1 hosts"), "{put}");
                assert!(
                    chained.starts_with("only text!: cannot connect to "),
                    "{chained}"
                );
                assert!(chained.ends_with("after 3 hosts!"), "{chained}");
            } else {
                assert_eq!(hosts(&status(put)), texts([&gone]));
                assert_eq!(hosts(&status(chained)), texts([&at(&other), &own, &gone]));
            }
        }
    })
    .await;
}

/// The same where its name stands for nobody.
#[tokio::test]
async fn a_chain_of_a_handler_that_has_nobody_to_begin_with_is_caught_by_it() {
    patience(async {
        let net = Net::Unix;
        let client = net.client().await;
        let other = net.serve(copying()).await;
        let own: Address = net.address().parse().expect("an address");
        let primary = Primary {
            backup: "service://nobody".parse().expect("an address"),
            catches: Some(own.clone()),
        };
        let builder = Endpoint::builder()
            .serve(library())
            .serve(store::service(primary));
        let names = Servers::new([at(&other)]).expect("it is one");
        let chains = copying().servers("somebody", names);
        let builder = chains.add_to(builder).listen(&own.to_string());
        let _primary = builder.bind().await.expect("it is free");
        let put = store::at(&client, &own).put("text".into()).await;
        let put = put.expect("caught");
        assert!(
            put.starts_with("only text: no servers are known as \"nobody\""),
            "{put}"
        );
        let chain = pipe(at(&other), &words::SHOUT, ("text".to_owned(),)).then(&own, &store::PUT);
        let chained = chain.call(client.caller()).expect("it is small").await;
        let chained = chained.expect("caught");
        assert!(
            chained.starts_with("only text!: no servers are known as"),
            "{chained}"
        );
    })
    .await;
}
