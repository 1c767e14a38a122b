//! Chains inside chains: a handler answers with a chain, and neither it nor who has called it knows of the other.

use wallaby::{Address, Endpoint, One, Request, Status};
use wallaby_chain::{Chains, Hop, State, Step, pipe, start};

use crate::world::{Net, at, hosts, library, status, texts, words};

/// Stores, and has what it stores copied.
#[wallaby::service(package = "test")]
pub(crate) trait Store {
    async fn put(text: String) -> String;
    async fn pass(text: String) -> String;
}

/// The first server of a store that has a second one.
pub(crate) struct Primary {
    pub(crate) backup: Address,
    pub(crate) catches: Option<Address>,
}

#[wallaby::serve]
impl Store for Primary {
    /// Its answer is that of a chain of its own.
    async fn put(&self, request: Request<One<String>>, text: String) -> Result<(), Status> {
        let state = State::new().with("text", &text)?;
        let target = match &*text {
            "bad!" => &words::DENY,
            _ => &words::SHOUT,
        };
        let copied = Hop::to(&self.backup, target, (text,)).then("copied", state.clone());
        let mut chain = start(copied);
        if let Some(here) = &self.catches {
            chain = chain.catch(here, "not copied", state);
        }
        Ok(chain.forward(request)?.await?)
    }

    /// It hands its work on, as it would without chains.
    async fn pass(&self, request: Request<One<String>>, text: String) -> Result<(), Status> {
        Ok(request.forward(&self.backup, words::shout(text)).await?)
    }
}

pub(crate) fn copying() -> Chains {
    Chains::new()
        .function("copied", |state, answer| {
            let (text, copy): (String, String) = (state.get("text")?, answer.read()?);
            Step::end(&format!("{text} is also {copy}"))
        })
        .catching("not copied", |state, exception| {
            let text: String = state.get("text")?;
            match exception.path().hosts().len() {
                0 => Err(exception.into()),
                hosts => Step::end(&format!(
                    "only {text}: {} after {hosts} hosts",
                    exception.message()
                )),
            }
        })
}

/// A primary, its backup, and another library: their addresses and themselves.
pub(crate) async fn store(net: Net, catches: bool) -> ([Address; 3], [Endpoint; 3]) {
    let backup = net.serve(copying()).await;
    let library = net.serve(Chains::new()).await;
    let here: Address = match net {
        Net::Tcp => {
            let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
            let port = free.local_addr().expect("an address").port();
            format!("tcp://127.0.0.1:{port}")
        }
        Net::Mem | Net::Unix => net.address(),
    }
    .parse()
    .expect("an address");
    let primary = Primary {
        backup: at(&backup),
        catches: catches.then(|| here.clone()),
    };
    let builder = Endpoint::builder().serve(crate::world::library());
    let builder = copying().add_to(builder.serve(store::service(primary)));
    let primary = builder
        .listen(&here.to_string())
        .bind()
        .await
        .expect("it is free");
    (
        [at(&primary), at(&backup), at(&library)],
        [primary, backup, library],
    )
}

/// Client, a, primary, backup, c, client: the primary's chain is a part of the client's.
#[tokio::test]
async fn a_chain_of_a_handler_becomes_a_part_of_the_callers() {
    for net in [Net::Tcp, Net::Unix] {
        let ([primary, _, library], servers) = store(net, false).await;
        let client = net.client().await;
        let chain = pipe(&library, &words::SHOUT, ("hop".to_owned(),))
            .then(&primary, &store::PUT)
            .then(&library, &words::SHOUT);
        let answer = chain.call(client.caller()).expect("it is small").await;
        assert_eq!(answer, Ok("hop! is also hop!!!".into()), "over {net:?}");
        assert_eq!(client.metrics().responses_received, 1);
        let received = servers
            .each_ref()
            .map(|server| server.metrics().requests_received);
        assert_eq!(received, [1, 1, 2]);
    }
}

/// Who calls the handler without a chain gets what its chain comes to.
#[tokio::test]
async fn a_chain_of_a_handler_answers_plain_calls() {
    let net = Net::Tcp;
    let ([primary, ..], _servers) = store(net, false).await;
    let client = net.client().await;
    let answer = store::at(&client, &primary).put("hop".into()).await;
    assert_eq!(answer, Ok("hop is also hop!".into()));
}

/// A link that forwards its request is still one: the chain goes on where the answer is given.
#[tokio::test]
async fn a_link_may_forward() {
    let net = Net::Tcp;
    let ([primary, _, library], _servers) = store(net, false).await;
    let client = net.client().await;
    let chain = pipe(&primary, &store::PASS, ("hop".to_owned(),)).then(&library, &words::LENGTH);
    let answer = chain.call(client.caller()).expect("it is small").await;
    assert_eq!(answer, Ok(4));
}

/// The handler that has started a chain catches its exceptions, and the caller's chain goes on with what it makes of them.
#[tokio::test]
async fn who_has_started_a_chain_catches_its_exceptions() {
    for net in [Net::Tcp, Net::Unix] {
        let ([primary, _, library], _servers) = store(net, true).await;
        let client = net.client().await;
        let chain = pipe(&library, &words::SHOUT, ("bad".to_owned(),))
            .then(&primary, &store::PUT)
            .then(&library, &words::SHOUT);
        let answer = chain.call(client.caller()).expect("it is small").await;
        let expected = "only bad!: bad! is not for you after 3 hosts!";
        assert_eq!(answer, Ok(expected.into()), "over {net:?}");
        let plain = store::at(&client, &primary).put("bad!".into()).await;
        assert_eq!(
            plain,
            Ok("only bad!: bad! is not for you after 1 hosts".into())
        );
    }
}

/// Without that it goes outward, with the hosts of both chains.
#[tokio::test]
async fn what_nobody_catches_comes_to_the_caller_with_its_path() {
    let net = Net::Tcp;
    let ([primary, backup, library], _servers) = store(net, false).await;
    let client = net.client().await;
    let chain = pipe(&library, &words::SHOUT, ("bad".to_owned(),)).then(&primary, &store::PUT);
    let status = status(chain.call(client.caller()).expect("it is small").await);
    assert_eq!(status.code(), wallaby::Code::PermissionDenied);
    assert!(
        status
            .message()
            .starts_with("bad! is not for you [chain 1: "),
        "{status}"
    );
    assert_eq!(hosts(&status), texts([&library, &primary, &backup]));
    assert_eq!(status.server(), Some(&backup));
}

/// A function that catches may fail, too: then the next one outward is asked.
#[tokio::test]
async fn an_exception_goes_outward_until_somebody_catches_it() {
    let net = Net::Tcp;
    let fails = || {
        copying()
            .catching("inner", |_, exception| {
                Err(Status::aborted(format!("inner: {}", exception.message())))
            })
            .catching("outer", |_, exception| {
                Step::end(&format!("outer: {}", exception.message()))
            })
    };
    let (a, client) = (net.serve(fails()).await, net.client().await);
    let first = || pipe(at(&a), &words::DENY, ("it".to_owned(),));
    let chain = first()
        .catch(at(&a), "inner", State::new())
        .catch(at(&a), "outer", State::new());
    let answer = chain.call(client.caller()).expect("it is small").await;
    assert_eq!(answer, Ok("outer: inner: it is not for you".into()));
    let chain = first().catch(at(&a), "unknown", State::new());
    let status = status(chain.call(client.caller()).expect("it is small").await);
    let text = "there is no catching function \"unknown\" at this server; it was to catch: it is not for you";
    assert!(status.message().starts_with(text), "{status}");
    assert_eq!(hosts(&status), texts([&at(&a), &at(&a)]));
}

/// A continuation that is no chain cannot become a part of one.
#[tokio::test]
async fn a_link_with_a_continuation_of_its_own_kind_is_an_exception() {
    let net = Net::Tcp;
    let other = net.bind(Endpoint::builder().serve(library())).await;
    let next = at(&other);
    let odd = wallaby::Service::new("test.Store").method(
        &store::PASS,
        move |request: Request<One<String>>, (text,): (String,)| {
            let next = next.clone();
            async move {
                let onward = request.forward(&next, words::shout(text));
                Ok(onward.continuation("odd").await?)
            }
        },
    );
    let server = net
        .bind(Chains::new().add_to(Endpoint::builder().serve(odd)))
        .await;
    let client = net.client().await;
    let chain = pipe(at(&server), &store::PASS, ("hop".to_owned(),));
    let status = status(chain.call(client.caller()).expect("it is small").await);
    assert_eq!(status.code(), wallaby::Code::FailedPrecondition);
    assert_eq!(hosts(&status), texts([&at(&server)]));
}
