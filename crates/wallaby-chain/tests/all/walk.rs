//! Chains whose links are called one by one from where they were started.

use wallaby::{Address, CallError, Code as StatusCode, Endpoint, Status};
use wallaby_chain::{
    Answer, Chain, ChainEvent, Chains, Home, Hop, Merge, State, Step, Stop, Walk, pipe, start,
};

use crate::world::{Net, at, hanging, hosts, library, patience, status, texts, words};

/// Splits what it hears, shouts each word, joins them, and shouts that; `deny` is refused.
fn joining() -> Chains {
    Chains::new()
        .function("split", |state, answer| {
            let (next, text): (Address, String) = (state.get("next")?, answer.read()?);
            let branch = |word: &str| {
                let (method, word) = match word {
                    "deny" => (&words::DENY, word),
                    _ => (&words::SHOUT, word),
                };
                Hop::to(&next, method, (word.to_owned(),)).then("echo", State::new())
            };
            let branches: Vec<Hop> = text.trim_end_matches('!').split(' ').map(branch).collect();
            let step = Step::split(branches, Merge::at(&next, "join", state));
            Ok(step.log(format!("splits {text}")))
        })
        .function("echo", |_, answer| Ok(Step::End(answer.bytes().clone())))
        .function("twice", |state, answer| {
            let (by, text): (String, String) = (state.get("by")?, answer.read()?);
            Step::end(&format!("{text}{by}{text}"))
        })
        .merging("join", |state, results| {
            let next: Address = state.get("next")?;
            let texts: Result<Vec<String>, Status> = results.iter().map(Answer::read).collect();
            Ok(Hop::to(&next, &words::SHOUT, (texts?.join("+"),)).into())
        })
        .catching("caught", |_, exception| {
            let hosts = exception.path().hosts().len();
            Step::end(&format!("{} after {hosts} hosts", exception.message()))
        })
}

fn splitting(server: &Endpoint, text: &str) -> Chain<String> {
    let state = State::new().with("next", &at(server)).expect("an address");
    let first = Hop::to(at(server), &words::SHOUT, (text.to_owned(),));
    start(first.then("split", state))
}

fn twice(server: &Endpoint) -> Chain<String> {
    let state = State::new().with("by", &"-".to_owned()).expect("text");
    start(Hop::to(at(server), &words::SHOUT, ("hop".to_owned(),)).then("twice", state))
}

/// Servers that know nothing of chains, and what runs here.
async fn world() -> (Endpoint, Endpoint, Home) {
    let server = Net::Tcp.bind(Endpoint::builder().serve(library())).await;
    (server, Net::Tcp.client().await, joining().at_home())
}

/// What it is about to do, and what it says.
async fn all(walk: &mut Walk<String>) -> Vec<String> {
    let mut seen = Vec::new();
    while let Some(stop) = walk.stop() {
        seen.push(match stop {
            Stop::Link { method, .. } => method.name().to_string(),
            Stop::Function { name, .. } => name.to_owned(),
            Stop::Exception(exception) => exception.message().to_owned(),
            _ => panic!("there are no others"),
        });
        for event in walk.step().await.expect("it goes on").expect("no error") {
            seen.push(match event {
                ChainEvent::Line(line) => line.text,
                ChainEvent::End(text) => text,
                event => panic!("{event:?}"),
            });
        }
    }
    assert!(walk.step().await.is_none(), "it is over");
    seen
}

#[tokio::test]
async fn each_link_and_each_function_is_a_step() {
    patience(async {
        let (server, client, home) = world().await;
        let mut walk = splitting(&server, "a b")
            .walk(client.caller(), &home)
            .expect("text");
        let (shout, echo) = ("test.Words/shout", "echo");
        let expected = [
            shout,
            "split",
            "splits a b!",
            shout,
            echo,
            shout,
            echo,
            shout,
            "a!+b!!",
        ];
        assert_eq!(all(&mut walk).await, expected);
        // A pipe has no functions.
        let piped = pipe(at(&server), &words::SHOUT, ("hop".to_owned(),));
        let piped = piped.then(at(&server), &words::SHOUT);
        let mut walk = piped.walk(client.caller(), &home).expect("text");
        assert_eq!(all(&mut walk).await, [shout, shout, "hop!!"]);
        let mut walk = splitting(&server, "a b")
            .walk(client.caller(), &home)
            .expect("text");
        assert_eq!(walk.answer().await, Ok("a!+b!!".into()));
    })
    .await;
}

#[tokio::test]
async fn what_comes_next_may_be_changed() {
    patience(async {
        let (server, client, home) = world().await;
        let other = Net::Tcp.bind(Endpoint::builder().serve(library())).await;
        let mut walk = twice(&server).walk(client.caller(), &home).expect("text");
        let Some(Stop::Link {
            server: to,
            arguments,
            ..
        }) = walk.stop()
        else {
            panic!("a link is first");
        };
        *to = at(&other);
        *arguments = postcard::to_allocvec(&("other",)).expect("text").into();
        walk.step().await.expect("it goes on").expect("no error");
        let Some(Stop::Function { state, answer, .. }) = walk.stop() else {
            panic!("a function is next");
        };
        assert_eq!(**answer, *b"\x06other!");
        *answer = postcard::to_allocvec("answer").expect("text").into();
        state.set("by", &"+".to_owned()).expect("text");
        assert_eq!(walk.answer().await, Ok("answer+answer".into()));
        let received = [&server, &other].map(|server| server.metrics().requests_received);
        assert_eq!(received, [0, 1]);
    })
    .await;
}

#[tokio::test]
async fn exceptions_are_caught_or_end_it() {
    patience(async {
        let (server, client, home) = world().await;
        let mut walk = splitting(&server, "a deny")
            .walk(client.caller(), &home)
            .expect("text");
        let refused = status(walk.answer().await);
        assert_eq!(refused.code(), StatusCode::PermissionDenied);
        assert!(
            refused.message().starts_with("deny is not for you [chain "),
            "{refused}"
        );
        assert!(refused.message().contains(".2: "), "{refused}");
        assert_eq!(hosts(&refused), texts([&at(&server), &at(&server)]));
        assert!(walk.stop().is_none(), "it is over");
        let chain = splitting(&server, "deny b deny");
        let chain = chain.catch(at(&server), "caught", State::new());
        let mut walk = chain.walk(client.caller(), &home).expect("text");
        assert_eq!(
            walk.answer().await,
            Ok("deny is not for you after 2 hosts".into())
        );
        // A function that is not here is missed before its link is called.
        let before = server.metrics().requests_received;
        let mut walk = twice(&server)
            .walk(client.caller(), &Chains::new().at_home())
            .expect("text");
        let missing = status(walk.answer().await);
        assert_eq!(missing.code(), StatusCode::NotFound);
        let text = "there is no chaining function \"twice\" at home";
        assert!(missing.message().starts_with(text), "{missing}");
        assert_eq!(server.metrics().requests_received, before);
        // A link answers once.
        let mut walk = pipe(at(&server), &words::EACH, ("a b".into(),))
            .walk(client.caller(), &home)
            .expect("text");
        let again = status(walk.answer().await);
        assert_eq!(again.code(), StatusCode::FailedPrecondition);
    })
    .await;
}

/// A server that is not there is no exception: it may be there later, or somewhere else.
#[tokio::test]
async fn a_link_that_cannot_be_called_comes_next_still() {
    patience(async {
        let (server, client, home) = world().await;
        let (service, hangs) = hanging();
        let dying = Net::Tcp.bind(Endpoint::builder().serve(service)).await;
        let chain = pipe(at(&server), &words::SHOUT, ("hop".to_owned(),));
        let chain = chain.then(at(&dying), &words::HANG);
        let mut walk = chain.walk(client.caller(), &home).expect("text");
        walk.step().await.expect("it goes on").expect("no error");
        let lost = tokio::select! {
            lost = walk.step() => lost,
            () = async {
                hangs.acquire().await.expect("it is open").forget();
                dying.kill();
                std::future::pending().await
            } => None,
        };
        let lost = lost.expect("it goes on").expect_err("nobody answers");
        assert_eq!(lost.server(), Some(&at(&dying)), "{lost}");
        let gone = walk
            .step()
            .await
            .expect("it goes on")
            .expect_err("nobody is there");
        assert!(matches!(gone, CallError::Failed(_)), "{gone}");
        let Some(Stop::Link {
            server: to, method, ..
        }) = walk.stop()
        else {
            panic!("it is next still");
        };
        *to = at(&server);
        *method = std::sync::Arc::clone(words::SHOUT.definition());
        assert_eq!(walk.answer().await, Ok("hop!!".into()));
    })
    .await;
}
