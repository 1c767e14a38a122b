//! What functions say besides, to who has started the chain.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use wallaby::codec::Raw;
use wallaby::{
    Address, CallError, Code as StatusCode, Endpoint, Many, Method, One, RawRequest, Request,
    Service, Status,
};
use wallaby_chain::{
    Chain, ChainEvent, ChainLimits, Chains, Hop, Merge, Run, Running, State, Step, pipe, start,
};

use crate::recovery::caller;
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
            let large = "x".repeat(17_000); // a name, which cannot follow a request
            let hop = Hop::to(&next, &words::SHOUT, (heard,)).then(&*large, State::new());
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
            Ok(ChainEvent::Line(line)) => {
                said.push(format!("{} at {}: {}", line.chain, line.hop, line.text));
            }
            Ok(ChainEvent::Told(told)) => {
                let value: String = told.value.read().expect("text");
                said.push(format!("{} at {}: = {value}", told.chain, told.hop));
            }
            Ok(ChainEvent::End(text)) => end = Some(Ok(text)),
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
            let Ok(ChainEvent::Line(line)) = first else {
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
        let limits = ChainLimits {
            said: 1000,
            ..ChainLimits::default()
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

static SAYS: Method<(Bytes,), Many<Bytes>, Raw> = Method::new("test.Fake/says");

/// A chain whose server says this, and nothing else; it hangs then.
async fn saying(answers: Vec<Vec<u8>>) -> (Endpoint, Chain<Bytes, Raw>) {
    saying_at("tcp://127.0.0.1:0", answers).await
}

async fn saying_at(address: &str, answers: Vec<Vec<u8>>) -> (Endpoint, Chain<Bytes, Raw>) {
    let says = move |request: RawRequest| {
        let answers = answers.clone();
        async move {
            for answer in answers {
                request.reply(answer.into()).await?;
            }
            request.flush().await;
            request.cancelled().await;
            Ok(())
        }
    };
    let service = Service::new("test.Fake").raw(Arc::clone(SAYS.definition()), says);
    let builder = Endpoint::builder().serve(service).listen(address);
    let server = builder.bind().await.expect("the address is free");
    let chain = pipe(at(&server), &SAYS, (Bytes::new(),));
    (server, chain)
}

fn end(text: &[u8]) -> Vec<u8> {
    [b"\xc4chain\x01\x9e", text].concat()
}

/// What a step says, as others write it.
fn message(chain: &str, lines: &[&str], told: &[&[u8]]) -> Vec<u8> {
    message_at(7, chain, lines, told)
}

fn message_at(hop: u32, chain: &str, lines: &[&str], told: &[&[u8]]) -> Vec<u8> {
    let host: Option<Address> = None;
    let message = postcard::to_allocvec(&(chain, hop, host, lines, told)).expect("small");
    [b"\xc4chain\x02\x9e", &*message].concat()
}

/// What was owed besides is lost then, and the chain has ended all the same.
#[tokio::test]
async fn a_chain_that_has_ended_is_not_made_again() {
    patience(async {
        let (server, chain) = saying(vec![end(b"the end")]).await;
        let client = Net::Tcp.client().await;
        let caller = caller(&client);
        let run = Run::new().lines().retries(3).home(&talking().at_home());
        let mut running = chain.run(caller, run).expect("small");
        let Some(Ok(ChainEvent::End(text))) = running.next().await else {
            panic!("it has ended");
        };
        assert_eq!(text, "the end");
        server.kill();
        assert!(running.next().await.is_none(), "there is nothing else");
        assert_eq!(running.attempts(), 1);
    })
    .await;
}

#[tokio::test]
async fn a_chain_ends_once() {
    patience(async {
        let (_server, chain) = saying(vec![end(b"one"), end(b"two")]).await;
        let client = Net::Tcp.client().await;
        let mut running = chain.run(client.caller(), Run::new()).expect("small");
        assert!(matches!(running.next().await, Some(Ok(ChainEvent::End(_)))));
        let again = running
            .next()
            .await
            .expect("an error")
            .expect_err("another end");
        assert!(again.to_string().contains("it has ended before"), "{again}");
        assert!(running.next().await.is_none(), "it is over");
    })
    .await;
}

/// A server says what it likes; who has started the chain takes what it has asked for, and only so much.
#[tokio::test]
async fn what_a_server_says_has_bounds_where_it_is_heard() {
    patience(async {
        let client = Net::Tcp.client().await;
        let (lines, told) = (Run::new().lines(), Run::new().told());
        let (much, many) = ("x".repeat(70_000), vec![""; 5000]);
        let long = "x".repeat(3000);
        let (too_much, unasked) = ("says more than", "what nobody has asked for");
        for (run, said, why) in [
            (&lines, message("1", &["a", "b"], &[]), None),
            (&lines, message("1", &[&much], &[]), Some(too_much)),
            (&lines, message("1", &many, &[]), Some(too_much)),
            (&lines, message(&long, &["a", "b"], &[]), Some(too_much)),
            (&lines, message("1", &["a"], &[b"b"]), Some(unasked)),
            (&told, message("1", &["a"], &[b"b"]), Some(unasked)),
            (&Run::new(), message("1", &["a"], &[]), Some(unasked)),
            (
                &lines.clone().most_said(100_000),
                message("1", &[&much, "b"], &[]),
                None,
            ),
            (
                &lines.clone().most_said(10),
                message("1", &["a", "b"], &[]),
                Some("more than 10"),
            ),
        ] {
            let is_legal = why.is_none();
            let all = [said].into_iter().chain(is_legal.then(|| end(b"")));
            let (_server, chain) = saying(all.collect()).await;
            let mut running = chain.run(client.caller(), run.clone()).expect("small");
            let (mut lines, mut wrong) = (0, None);
            while let Some(event) = running.next().await {
                match event {
                    Ok(ChainEvent::Line(line)) => {
                        assert_eq!((&*line.chain, line.hop), ("1", 7));
                        lines += 1;
                    }
                    Ok(event) => {
                        assert!(matches!(event, ChainEvent::End(_)) && is_legal, "{event:?}")
                    }
                    Err(error @ CallError::Decode(_)) => wrong = Some(error.to_string()),
                    Err(error) => panic!("{error}"),
                }
                if is_legal && lines == 2 {
                    break;
                }
            }
            assert_eq!(lines, if is_legal { 2 } else { 0 });
            match (wrong, why) {
                (None, None) => {}
                (Some(wrong), Some(why)) => assert!(wrong.contains(why), "{wrong}"),
                both => panic!("{both:?}"),
            }
        }
    })
    .await;
}

/// Of so many steps it is known that they were heard: what others say is heard again, and takes no memory.
#[tokio::test]
async fn it_is_known_of_many_steps_that_they_were_heard() {
    patience(async {
        const KNOWN: u32 = 4096;
        let steps = || (0..KNOWN + 4).map(|hop| message_at(hop, "1", &["line"], &[]));
        let (server, chain) = saying(steps().collect()).await;
        let client = Net::Tcp.client().await;
        let run = Run::new().lines().retries(8);
        let mut running = chain.run(caller(&client), run).expect("small");
        for _ in 0..KNOWN + 4 {
            let heard = running.next().await;
            assert!(matches!(heard, Some(Ok(ChainEvent::Line(_)))), "{heard:?}");
        }
        server.kill();
        let again = async {
            let all = steps().chain([end(b"")]).collect();
            saying_at(&at(&server).to_string(), all).await
        };
        let heard = async {
            let mut lines = 0;
            while lines < 4 {
                match running.next().await {
                    Some(Ok(ChainEvent::Line(_))) => lines += 1,
                    Some(Ok(ChainEvent::End(_))) => {}
                    heard => panic!("{heard:?} after {lines} lines"),
                }
            }
        };
        let ((), _server) = tokio::join!(heard, again);
    })
    .await;
}

/// Answers by a chain of its own, and hears what that tells.
#[wallaby::service(package = "test")]
trait Clerk {
    async fn ask(text: String) -> String;
}

struct Desk {
    at: Address,
    next: Address,
}

#[wallaby::serve]
impl Clerk for Desk {
    async fn ask(&self, request: Request<One<String>>, text: String) -> Result<(), Status> {
        let state = State::new().with("next", &self.next)?;
        let hop = Hop::to(&self.next, &words::SHOUT, (text.clone(),)).then("on", state);
        let asked = State::new().with("asked", &text)?;
        let chain = start::<String>(hop).telling(&self.at, "hears", asked);
        Ok(chain.forward(request)?.await?)
    }
}

#[tokio::test]
async fn a_handler_hears_what_its_own_chain_tells() {
    patience(async {
        let net = Net::Unix;
        let next = net.serve(talking()).await;
        let here: Address = net.address().parse().expect("an address");
        let heard = Arc::new(Mutex::new(Vec::new()));
        let hears = Arc::clone(&heard);
        let chains = talking().hearing("hears", move |state, told| {
            let (asked, value): (String, String) = (state.get("asked")?, told.value.read()?);
            if asked == "nothing" {
                return Err(Status::permission_denied("it does not want to know"));
            }
            let mut heard = hears.lock().expect("no panic");
            heard.push(format!("{asked}: {value} at hop {}", told.hop));
            Ok(())
        });
        let desk = Desk {
            at: here.clone(),
            next: at(&next),
        };
        let builder = Endpoint::builder().serve(clerk::service(desk));
        let builder = chains.add_to(builder).listen(&here.to_string());
        let clerk = builder.bind().await.expect("the address is free");
        let client = net.client().await;
        // The outer chain tells its own to who has started it.
        let state = State::new().with("next", &at(&next)).expect("an address");
        let first = Hop::to(at(&clerk), &clerk::ASK, ("who".to_owned(),)).then("on", state);
        let chain = start::<String>(first).run(client.caller(), Run::new().told());
        let (said, end) = all(chain.expect("it is small")).await;
        assert_eq!(end, Ok("who!!!".into()));
        assert_eq!(said.len(), 1, "{said:?}");
        assert!(said[0].ends_with("at 3: = who!!"), "{said:?}");
        assert_eq!(*heard.lock().expect("no panic"), ["who: who! at hop 2"]);
        // Whoever does not want it ends the call.
        let refused = status(clerk::at(&client, at(&clerk)).ask("nothing".into()).await);
        assert_eq!(refused.code(), StatusCode::PermissionDenied);
        assert!(
            refused.message().starts_with("it does not want to know"),
            "{refused}"
        );
        assert_eq!(refused.server(), Some(&at(&clerk)));
    })
    .await;
}
