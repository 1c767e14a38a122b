//! What functions say besides, to who has started the chain.

use wallaby::{Address, Code as StatusCode, Endpoint, Status};
use wallaby_chain::{Chain, Chains, Event, Hop, Limits, Merge, Run, Running, State, Step, start};

use crate::world::{Net, at, patience, status, words};

/// Says what it hears, goes on to `shout` at the next server or splits there, and ends.
fn talking() -> Chains {
    Chains::new()
        .function("on", |state, answer| {
            let (next, heard): (Address, String) = (state.get("next")?, answer.read()?);
            let hop = Hop::to(&next, &words::SHOUT, (heard.clone(),)).then("end", state);
            let step = Step::from(hop).log(format!("heard {heard}")).log("goes on");
            step.tell(&heard)
        })
        .function("split", |state, answer| {
            let (next, heard): (Address, String) = (state.get("next")?, answer.read()?);
            let branch = |text: &str| {
                let to = (format!("{heard}{text}"),);
                Hop::to(&next, &words::SHOUT, to).then("end", State::new())
            };
            let step = Step::split([branch("a"), branch("b")], Merge::at(&next, "join", state));
            Ok(step.log("splits"))
        })
        .function("end", |_, answer| {
            let heard: String = answer.read()?;
            Ok(Step::end(&heard)?.log(format!("ends by {heard}")))
        })
        .function("deny", |_, _| Err(Status::permission_denied("not for you")))
        .function("large", |state, answer| {
            let (next, heard): (Address, String) = (state.get("next")?, answer.read()?);
            let large = State::new().with("large", &vec![0u8; 17_000])?;
            let hop = Hop::to(&next, &words::SHOUT, (heard,)).then("end", large);
            Ok(Step::from(hop).log("goes on"))
        })
        .function("much", |state, _| {
            let lines = state.get::<usize>("lines")?;
            let says = |step: Step, _| step.log("x".repeat(84));
            Ok((0..lines).fold(Step::end(&String::new())?, says))
        })
        .merging("join", |_, results| {
            let texts: Result<Vec<String>, Status> =
                results.iter().map(wallaby_chain::Answer::read).collect();
            Ok(Step::end(&texts?.join("+"))?.log("joins"))
        })
}

fn chain(a: &Endpoint, next: &Endpoint, function: &str) -> Chain<String> {
    let state = State::new().with("next", &at(next)).expect("an address");
    let first = Hop::to(at(a), &words::SHOUT, ("hop".to_owned(),));
    start(first.then(function, state))
}

/// All that it says, one text for each, in an order that does not depend on who was quicker; and how it ends.
async fn all(mut running: Running<String>) -> (Vec<String>, Result<String, Status>) {
    let (mut said, mut end) = (Vec::new(), None);
    while let Some(event) = running.next().await {
        match event {
            Ok(Event::Line(line)) => {
                said.push(format!("{} at {}: {}", line.chain, line.hop, line.text));
            }
            Ok(Event::Told(told)) => {
                let value: String = told.value.read().expect("text");
                said.push(format!("{} at {}: = {value}", told.chain, told.hop));
            }
            Ok(Event::End(text)) => end = Some(Ok(text)),
            Ok(_) => panic!("there are no others"),
            Err(error) => end = Some(Err(status::<()>(Err(error)))),
        }
    }
    said.sort_by_key(|said| said.split_once(':').map(|(at, _)| at.to_owned()));
    (said, end.expect("an end"))
}

#[tokio::test]
async fn what_functions_log_and_tell_comes_to_who_has_started_the_chain() {
    patience(async {
        let net = Net::Tcp;
        let (a, b) = (net.serve(talking()).await, net.serve(talking()).await);
        // One is dialled, the other is answered the way that its request went.
        for client in [net.client().await, Endpoint::client().expect("a client")] {
            let run = Run::new().lines().told();
            let mut running = chain(&a, &b, "on")
                .run(client.caller(), run.clone())
                .expect("small");
            let first = running.next().await.expect("it says something");
            let Ok(Event::Line(line)) = first else {
                panic!("{first:?}");
            };
            let expected = (Some(at(&a)), 1, "heard hop!");
            if line.hop == 1 {
                assert_eq!((line.host, line.hop, &*line.text), expected);
            }
            let (said, end) = all(chain(&a, &b, "on")
                .run(client.caller(), run.clone())
                .expect("small"))
            .await;
            let number = said[0].split(' ').next().expect("a number").to_owned();
            let expected = [
                "at 1: heard hop!",
                "at 1: goes on",
                "at 1: = hop!",
                "at 2: ends by hop!!",
            ];
            assert_eq!(said, expected.map(|said| format!("{number} {said}")));
            assert_eq!(end, Ok("hop!!".into()));
            let mut running = chain(&a, &b, "on")
                .run(client.caller(), run.clone())
                .expect("small");
            assert_eq!(running.answer().await, Ok("hop!!".into()));
        }
    })
    .await;
}

#[tokio::test]
async fn lines_of_branches_name_them() {
    patience(async {
        let net = Net::Tcp;
        let (a, b) = (net.serve(talking()).await, net.serve(talking()).await);
        let client = net.client().await;
        let run = Run::new().lines();
        let running = chain(&a, &b, "split").run(client.caller(), run);
        let (said, end) = all(running.expect("it is small")).await;
        let expected = [
            "1 at 1: splits",
            "1 at 3: joins",
            "1.1 at 2: ends by hop!a!",
            "1.2 at 2: ends by hop!b!",
        ];
        assert_eq!(said, expected);
        assert_eq!(end, Ok("hop!a!+hop!b!".into()));
    })
    .await;
}

/// What was said before something went wrong is what one wants to read then.
#[tokio::test]
async fn lines_come_though_the_chain_ends_by_an_exception() {
    patience(async {
        let net = Net::Tcp;
        let (a, client) = (net.serve(talking()).await, net.client().await);
        // One handler answers by its last message, the other one ends after it.
        let to = |text: &str| (text.to_owned(),);
        let ways = [
            Hop::to(at(&a), &words::SHOUT, to("hop")),
            Hop::to(at(&a), &words::EACH, to("hop")),
        ];
        for _ in 0..20 {
            for first in ways.clone() {
                let state = State::new().with("next", &at(&a)).expect("an address");
                let chain = start::<String>(first.then("large", state));
                let running = chain.run(client.caller(), Run::new().lines());
                let (said, end) = all(running.expect("it is small")).await;
                assert_eq!(said.len(), 1, "{said:?}");
                assert!(said[0].ends_with("at 1: goes on"), "{said:?}");
                assert_eq!(
                    end.expect_err("large").code(),
                    StatusCode::ResourceExhausted
                );
            }
        }
        let running = chain(&a, &a, "deny").run(client.caller(), Run::new().lines());
        let (said, end) = all(running.expect("it is small")).await;
        assert!(said.is_empty(), "{said:?}");
        assert_eq!(end.expect_err("no").code(), StatusCode::PermissionDenied);
    })
    .await;
}

/// Who has not asked for it gets none of it.
#[tokio::test]
async fn nothing_is_sent_that_nobody_wants() {
    patience(async {
        let net = Net::Tcp;
        let (a, b) = (net.serve(talking()).await, net.serve(talking()).await);
        for (run, messages, said) in [
            (None, 1, 0),
            (Some(Run::new()), 1, 0),
            (Some(Run::new().told()), 2, 1),
            (Some(Run::new().lines()), 3, 3),
        ] {
            let client = net.client().await;
            let chain = chain(&a, &b, "on");
            match &run {
                None => {
                    let answer = chain.call(client.caller()).expect("it is small").await;
                    assert_eq!(answer, Ok("hop!!".into()));
                }
                Some(run) => {
                    let running = chain
                        .run(client.caller(), run.clone())
                        .expect("it is small");
                    assert_eq!(all(running).await.0.len(), said);
                }
            }
            assert_eq!(client.metrics().responses_received, messages, "{run:?}");
        }
    })
    .await;
}

#[tokio::test]
async fn what_a_step_says_has_a_limit() {
    patience(async {
        let net = Net::Tcp;
        let limits = Limits {
            said: 1000,
            ..Limits::default()
        };
        let (a, client) = (
            net.serve(talking().limits(limits)).await,
            net.client().await,
        );
        for (lines, is_too_much) in [(10, false), (11, true)] {
            let state = State::new().with("lines", &lines).expect("a number");
            let first = Hop::to(at(&a), &words::SHOUT, ("hop".to_owned(),));
            let chain = start::<String>(first.then("much", state));
            let running = chain.run(client.caller(), Run::new().lines());
            let (said, end) = all(running.expect("it is small")).await;
            match is_too_much {
                false => assert_eq!((said.len(), end), (lines, Ok(String::new()))),
                true => {
                    let status = end.expect_err("too much");
                    assert_eq!(status.code(), StatusCode::ResourceExhausted);
                    let text = "a step logs and tells too much: at most 1000 bytes are allowed";
                    assert!(status.message().starts_with(text), "{status}");
                    assert!(said.is_empty(), "{said:?}");
                }
            }
        }
    })
    .await;
}
