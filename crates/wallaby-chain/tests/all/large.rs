//! States that are too large to travel within a request.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use tokio::io::{AsyncRead, ReadBuf};
use wallaby::intercept::{Admission, Incoming};
use wallaby::transport::{Stream, Wrap, WriteHalf};
use wallaby::{Address, Body, Builder, Caller, Code, DurableId, Endpoint, One, Request, Status};
use wallaby_chain::{
    Answer, Chain, ChainEvent, ChainLimits, Chains, Hop, Merge, Run, State, Step, start,
};

use crate::world::{Net, at, hosts, library, patience, status, texts, words};

/// What a state has.
fn much(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at % 251) as u8).collect()
}

fn is_whole(state: &State) -> Result<(), Status> {
    let much: Vec<u8> = state.get("much")?;
    let size: usize = state.get("size")?;
    assert!(much == self::much(size), "{} bytes of {size}", much.len());
    assert_eq!(state.get::<String>("small")?, "as it was");
    Ok(())
}

/// Each function looks at the state and hands it on.
fn carrying() -> Chains {
    Chains::new()
        .function("on", |state, answer: Answer| {
            is_whole(&state)?;
            let hop = Hop::to(
                state.get::<Address>("next")?,
                &words::SHOUT,
                (answer.read::<String>()?,),
            );
            Ok(hop.then("end", state).into())
        })
        .function("end", |state, answer| {
            is_whole(&state)?;
            Step::end(&answer.read::<String>()?)
        })
        .function("split", |state, answer| {
            is_whole(&state)?;
            let (next, times): (Address, usize) = (state.get("next")?, state.get("times")?);
            let text: String = answer.read()?;
            let branches = (0..times)
                .map(|_| Hop::to(&next, &words::SHOUT, (text.clone(),)).then("end", state.clone()));
            Ok(Step::split(
                branches,
                Merge::at(&next, "join", state.clone()),
            ))
        })
        .merging("join", |state, results| {
            is_whole(&state)?;
            Step::end(&format!(
                "{} times {}",
                results.len(),
                results[0].read::<String>()?
            ))
        })
        .function("deny", |state, _| {
            is_whole(&state)?;
            let hop = Hop::to(
                state.get::<Address>("next")?,
                &words::DENY,
                ("this".to_owned(),),
            );
            Ok(hop.then("end", state).into())
        })
        .catching("caught", |state, exception| {
            is_whole(&state)?;
            Step::end(&format!("caught: {}", exception.message()))
        })
}

fn state(next: &Endpoint, size: usize, times: usize) -> State {
    let state = State::new()
        .with("next", &at(next))
        .and_then(|state| state.with("much", &much(size)))
        .and_then(|state| state.with("size", &size))
        .and_then(|state| state.with("times", &times))
        .and_then(|state| state.with("small", &"as it was".to_owned()));
    state.expect("it can be written")
}

fn chain(first: &Endpoint, function: &str, state: State) -> Chain<String> {
    let hop = Hop::to(at(first), &words::SHOUT, ("a".to_owned(),));
    start(hop.then(function, state))
}

/// Answers by a chain of its own, which has a large state as well.
#[wallaby::service(package = "test")]
trait Relay {
    async fn relay(text: String) -> String;
}

struct Relaying(Endpoint);

#[wallaby::serve]
impl Relay for Relaying {
    async fn relay(&self, request: Request<One<String>>, text: String) -> Result<(), Status> {
        let hop = Hop::to(at(&self.0), &words::SHOUT, (text,));
        let chain = start::<String>(hop.then("on", state(&self.0, 50_000, 1)));
        Ok(chain.forward(request)?.await?)
    }
}

#[tokio::test]
async fn a_large_state_is_where_functions_run() {
    patience(async {
        for net in [Net::Mem, Net::Tcp, Net::Unix] {
            let (first, next) = (net.serve(carrying()).await, net.serve(carrying()).await);
            let client = net.client().await;
            for size in [10_000, 16_200, 16_500, 150_000] {
                let chain = || chain(&first, "on", state(&next, size, 1));
                let answer = chain().call(client.caller()).expect("it may begin").await;
                assert_eq!(answer, Ok("a!!".into()), "{size} bytes over {net:?}");
                // The same if servers record what links come to.
                let how = Run::new().retries(1).lines();
                let mut running = chain().run(client.caller(), how).expect("it may begin");
                assert_eq!(running.answer().await, Ok("a!!".into()));
            }
            let split = chain(&first, "split", state(&next, 65_000, 8));
            let answer = split.call(client.caller()).expect("it may begin").await;
            assert_eq!(answer, Ok("8 times a!!".into()));
            let caught = chain(&first, "deny", state(&next, 65_000, 1));
            let caught = caught.catch(at(&first), "caught", state(&next, 20_000, 1));
            let answer = caught.call(client.caller()).expect("it may begin").await;
            assert_eq!(answer, Ok("caught: this is not for you".into()));
            // A chain inside another one, both with more than may travel within a request.
            let relaying = relay::service(Relaying(next.clone()));
            let relaying = carrying().add_to(Endpoint::builder().serve(relaying));
            let relaying = net.bind(relaying).await;
            let hop = Hop::to(at(&relaying), &relay::RELAY, ("a".to_owned(),));
            let outer = start::<String>(hop.then("on", state(&first, 40_000, 1)));
            let answer = outer.call(client.caller()).expect("it may begin").await;
            assert_eq!(answer, Ok("a!!!".into()));
            assert_eq!(
                relay::at(&client, at(&relaying)).relay("b".into()).await,
                Ok("b!!".into())
            );
        }
    })
    .await;
}

/// At most 64 bodies are on their way over a connection: those of branches that wait for others are not.
#[tokio::test]
async fn many_branches_with_large_states_do_not_wait_for_each_other() {
    patience(async {
        let net = Net::Tcp;
        let (first, next) = (net.serve(carrying()).await, net.serve(carrying()).await);
        let client = net.client().await;
        let calls: Vec<_> = (0..4)
            .map(|_| {
                let chain = chain(&first, "split", state(&next, 20_000, 60));
                chain.call(client.caller()).expect("it may begin")
            })
            .collect();
        for call in calls {
            assert_eq!(call.await, Ok("60 times a!!".into()));
        }
    })
    .await;
}

/// It is the same for who has started the chain, but for its time.
#[tokio::test]
async fn a_large_state_may_stay_at_home() {
    patience(async {
        let net = Net::Tcp;
        let (first, next) = (net.serve(carrying()).await, net.serve(carrying()).await);
        let client = net.client().await;
        let at_home = Arc::new(AtomicUsize::new(0));
        let ends = Arc::clone(&at_home);
        let home = carrying().function("end", move |state, answer| {
            ends.fetch_add(1, Ordering::Relaxed);
            is_whole(&state)?;
            Ok(Step::end(&answer.read::<String>()?)?.log("at home"))
        });
        let name = "x".repeat(17_000);
        let home = home.function(&name, |_, answer| Ok(Step::End(answer.bytes().clone())));
        let home = home.at_home();
        let run_by = async |caller: Caller, size, how: Run| {
            let chain = chain(&first, "on", state(&next, size, 1));
            let how = how.home(&home).adaptive();
            let mut running = chain.run(caller, how).expect("it may begin");
            let mut lines = 0;
            while let Some(event) = running.next().await {
                match event.expect("no error") {
                    ChainEvent::Line(_) => lines += 1,
                    ChainEvent::End(end) => assert_eq!(end, "a!!"),
                    other => panic!("{other:?}"),
                }
            }
            lines
        };
        let run = async |size, how| run_by(client.caller(), size, how).await;
        for times in 0..6 {
            assert_eq!(at_home.load(Ordering::Relaxed), times / 2);
            assert_eq!(run(40_000, Run::new().lines()).await, times % 2);
        }
        // Nobody hears what was not asked for.
        for _ in 0..2 {
            assert_eq!(run(20_000, Run::new()).await, 0);
        }
        assert_eq!(at_home.load(Ordering::Relaxed), 4);
        // Nor is one walked that has a name, as all of its links would have it.
        for number in 0..2 {
            let caller = client.caller().durable(DurableId::new(7, number));
            run_by(caller, 20_000, Run::new()).await;
        }
        // A small one travels; what cannot travel at all does not, such as a long name of a function.
        run(1000, Run::new()).await;
        assert_eq!(at_home.load(Ordering::Relaxed), 4);
        let hop = Hop::to(at(&first), &words::SHOUT, ("a".to_owned(),));
        let long = start::<String>(hop.then(&*name, State::new()));
        let long = long.run(client.caller(), Run::new().home(&home).adaptive());
        let answer = long.expect("it may begin").answer().await;
        assert_eq!(answer, Ok("a!".into()));
    })
    .await;
}

/// Lets so many bytes out, and the rest when it is opened.
#[derive(Debug, Default)]
struct Gate(Mutex<Passed>);

#[derive(Debug, Default)]
struct Passed {
    bytes: usize,
    is_open: bool,
    waits: Option<Waker>,
}

const PASS: usize = 100_000;

impl Gate {
    fn open(&self) {
        let mut passed = self.0.lock().expect("no panic");
        passed.is_open = true;
        passed.waits.take().into_iter().for_each(Waker::wake);
    }
}

struct Gated(Arc<Gate>);

impl Wrap for Gated {
    fn stream(&self, stream: Stream) -> Stream {
        let gate = Arc::clone(&self.0);
        stream.map_writer(|writer| Writer { gate, writer })
    }
}

#[derive(Debug)]
struct Writer {
    gate: Arc<Gate>,
    writer: Box<dyn WriteHalf>,
}

impl WriteHalf for Writer {
    fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        let mut passed = self.gate.0.lock().expect("no panic");
        let most = if passed.is_open {
            bytes.len()
        } else {
            PASS - passed.bytes
        };
        if most == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let written = self.writer.try_write(&bytes[..bytes.len().min(most)])?;
        passed.bytes += if passed.is_open { 0 } else { written };
        Ok(written)
    }

    fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut passed = self.gate.0.lock().expect("no panic");
        if !passed.is_open && passed.bytes == PASS {
            passed.waits = Some(cx.waker().clone());
            return Poll::Pending;
        }
        self.writer.poll_writable(cx)
    }

    fn shutdown(&self) {
        self.writer.shutdown();
    }
}

#[wallaby::service(package = "test")]
trait Door {
    async fn open() -> String;
}

struct Opens(Arc<Gate>);

#[wallaby::serve]
impl Door for Opens {
    async fn open(&self) -> String {
        self.0.open();
        "opened".into()
    }
}

/// What is refused whatever its state is, and what nobody catches, does not wait for that.
#[tokio::test]
async fn a_chain_is_refused_before_its_state_is_there() {
    patience(async {
        let (net, gate) = (Net::Tcp, Arc::<Gate>::default());
        let server = net.serve(carrying()).await;
        let gated = Endpoint::builder().wrap_transports(Arc::new(Gated(gate)));
        let client = net.bind(gated).await;
        let chain = chain(&server, "unknown", state(&server, 700_000, 1));
        let refused = status(chain.call(client.caller()).expect("it may begin").await);
        assert_eq!(refused.code(), Code::NotFound, "{refused}");
        assert_eq!(hosts(&refused), texts([&at(&server)]));
    })
    .await;
}

/// The rest of the state does not leave its sender before the link has run.
#[tokio::test]
async fn a_link_runs_while_its_state_arrives() {
    patience(async {
        let (net, gate) = (Net::Tcp, Arc::<Gate>::default());
        let next = net.serve(carrying()).await;
        let door = door::service(Opens(Arc::clone(&gate)));
        let builder = Endpoint::builder().serve(door).serve(library());
        let server = net.bind(carrying().add_to(builder)).await;
        let gated = Endpoint::builder().wrap_transports(Arc::new(Gated(gate)));
        let client = net.bind(gated).await;
        let hop = Hop::to(at(&server), &door::OPEN, ());
        let chain = start::<String>(hop.then("on", state(&next, 700_000, 1)));
        let answer = chain.call(client.caller()).expect("it may begin").await;
        assert_eq!(answer, Ok("opened!".into()));
    })
    .await;
}

#[tokio::test]
async fn what_may_be_on_its_way_to_a_server_has_limits() {
    patience(async {
        let net = Net::Tcp;
        let limits = ChainLimits {
            state: 50_000,
            states: 80_000,
            ..ChainLimits::default()
        };
        let (server, hanging) = net.serve_hanging(carrying().limits(limits)).await;
        let client = net.client().await;
        let refused = chain(&server, "end", state(&server, 60_000, 1));
        let refused = status(refused.call(client.caller()).expect("it may begin").await);
        assert_eq!(refused.code(), Code::ResourceExhausted);
        let text = "bytes of state that follow it: at most 50000 are allowed";
        assert!(refused.message().contains(text), "{refused}");
        assert_eq!(hosts(&refused), texts([&at(&server)]));

        let hop = Hop::to(at(&server), &words::HANG, ("a".to_owned(),));
        let hangs = start::<String>(hop.then("end", state(&server, 45_000, 1)));
        let hangs = hangs.call(client.caller()).expect("it may begin");
        hanging.acquire().await.expect("it hangs").forget();
        let another = || {
            let chain = chain(&server, "end", state(&server, 45_000, 1));
            chain.call(client.caller()).expect("it may begin")
        };
        let refused = status(another().await);
        assert_eq!(refused.code(), Code::ResourceExhausted);
        let text = "states of chains have 80000 bytes on their way here";
        assert!(refused.message().starts_with(text), "{refused}");
        // Small ones are not concerned, and there is room again when the call is over.
        let small = chain(&server, "end", state(&server, 1000, 1));
        let answer = small.call(client.caller()).expect("it may begin").await;
        assert_eq!(answer, Ok("a!".into()));
        hangs.stop().await.expect("it is dropped");
        loop {
            match another().await {
                Err(error) if error.code() == Code::ResourceExhausted => {}
                answer => return assert_eq!(answer, Ok("a!".into())),
            }
        }
    })
    .await;
}

/// Notes what came along with chains.
fn noting(builder: Builder) -> (Builder, Arc<Mutex<Option<Bytes>>>) {
    let noted = Arc::<Mutex<Option<Bytes>>>::default();
    let notes = Arc::clone(&noted);
    let builder = builder.interceptor(move |request: &Incoming| {
        *notes.lock().expect("no panic") = request.continuation();
        Admission::Run
    });
    (builder, noted)
}

/// So many bytes, and then an error.
struct Breaks(usize);

impl AsyncRead for Breaks {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match std::mem::take(&mut self.0) {
            0 => Poll::Ready(Err(io::Error::other("it is gone"))),
            bytes => {
                buffer.put_slice(&vec![7; bytes]);
                Poll::Ready(Ok(()))
            }
        }
    }
}

/// Nobody is asked to catch it: what was to catch it is not there.
#[tokio::test]
async fn what_is_no_state_is_an_exception() {
    patience(async {
        let net = Net::Tcp;
        let builder = carrying().add_to(Endpoint::builder().serve(library()));
        let (builder, noted) = noting(builder);
        let (server, client) = (net.bind(builder).await, net.client().await);
        let sent = chain(&server, "end", state(&server, 30_000, 1));
        let sent = sent.catch(at(&server), "caught", state(&server, 20_000, 1));
        let answer = sent.call(client.caller()).expect("it may begin").await;
        assert_eq!(answer, Ok("a!".into()));
        let continuation = noted.lock().expect("no panic").take().expect("a chain");
        let client = client.caller().at(at(&server)).continuation(continuation);
        let words = words::within(client.clone());
        let none = status(words.shout("a".into()).await);
        assert_eq!(none.code(), Code::InvalidArgument);
        assert!(
            none.message()
                .starts_with("a chain whose state does not follow it"),
            "{none}"
        );
        for (body, code, text) in [
            (
                Body::from(Bytes::from(much(50_000))),
                Code::DataLoss,
                "is not its state",
            ),
            (
                Body::from(Bytes::from(much(60_000))),
                Code::ResourceExhausted,
                "longer than",
            ),
            (Body::from_read(Breaks(1000)), Code::Aborted, "it is gone"),
        ] {
            let call = client.call_with_body(&words::SHOUT, ("a".into(),), body);
            let wrong = status(call.await);
            assert_eq!(wrong.code(), code, "{wrong}");
            assert!(wrong.message().contains(text), "{wrong}");
            assert_eq!(hosts(&wrong), texts([&at(&server)]));
        }
    })
    .await;
}

/// There is room for one body behind a request.
#[tokio::test]
async fn a_link_that_hands_on_a_body_of_its_own_is_an_exception_if_its_chain_has_one() {
    let net = Net::Tcp;
    let library = net.serve(carrying()).await;
    let next = at(&library);
    let hands_on = wallaby::Service::new("test.Relay").method(
        &relay::RELAY,
        move |request: Request<One<String>>, (text,): (String,)| {
            let target = words::shout(text).with_body(Body::from(Bytes::from_static(b"mine")));
            let next = next.clone();
            async move { Ok(request.forward(&next, target).await?) }
        },
    );
    let server = carrying().add_to(Endpoint::builder().serve(hands_on));
    let (server, client) = (net.bind(server).await, net.client().await);
    for (size, expected) in [(1000, None), (50_000, Some(Code::FailedPrecondition))] {
        let hop = Hop::to(at(&server), &relay::RELAY, ("a".to_owned(),));
        let chain = start::<String>(hop.then("end", state(&server, size, 1)));
        let answer = chain.call(client.caller()).expect("it may begin").await;
        let Some(expected) = expected else {
            assert_eq!(answer, Ok("a!".into()));
            continue;
        };
        let refused = status(answer);
        assert_eq!(refused.code(), expected, "{refused}");
        let text = "bytes of a chain's state are to follow a request that has a body of its own";
        assert!(refused.message().contains(text), "{refused}");
        assert_eq!(hosts(&refused), texts([&at(&server)]));
    }
}

/// Bodies do not go over it.
#[tokio::test]
async fn a_large_state_over_udp_is_an_error_that_says_so() {
    patience(async {
        let udp = carrying().add_to(Endpoint::builder().serve(library()));
        let udp = udp.listen("udp://127.0.0.1:0").bind().await;
        let udp = udp.expect("a port is free");
        let (first, client) = (Net::Tcp.serve(carrying()).await, Net::Tcp.client().await);
        for to in [&udp, &first] {
            let large = chain(to, "on", state(&udp, 20_000, 1)).call(client.caller());
            let error = large.expect("it may begin").await.expect_err("over UDP");
            let text = "a body can't follow a request over udp:";
            assert!(error.to_string().contains(text), "{error}");
            let small = chain(to, "on", state(&udp, 1000, 1)).call(client.caller());
            assert_eq!(small.expect("it may begin").await, Ok("a!!".into()));
        }
    })
    .await;
}
