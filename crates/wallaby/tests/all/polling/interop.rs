//! Polling endpoints and endpoints on tokio, over real sockets: they call each other, serve each other, and forward.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use wallaby::polling::{self, CallOptions, Event, Wait};
use wallaby::{Address, CallError, Code, Many, One, Service, Status};

use super::alone::work;
use super::proxy::Path;

/// Over what servers are reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Over {
    Udp,
    Tcp,
    Unix,
    Shm,
    /// Each server by another.
    All,
}

/// Where a server listens: its number in the chain says where, if they differ.
fn somewhere(over: Over, number: usize) -> String {
    match over {
        Over::Udp => UDP.to_owned(),
        Over::Tcp => "tcp://127.0.0.1:0".to_owned(),
        Over::Unix => Path::new().text(), // who listens there removes it
        Over::Shm => Path::new().shared(),
        Over::All => {
            let all = [Over::Unix, Over::Udp, Over::Tcp, Over::Shm];
            somewhere(all[number % all.len()], number)
        }
    }
}

const ALL: [Over; 5] = [Over::Udp, Over::Tcp, Over::Unix, Over::Shm, Over::All];

/// A polling server on a thread of its own, until it is dropped.
struct Server {
    address: Address,
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Each request is handed on along `next`, and the last one answers. `many` also answers itself.
    fn start(next: Option<Address>, at: String) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let (tell, told) = mpsc::channel();
        let ends = Arc::clone(&over);
        let thread = thread::spawn(move || {
            let mut endpoint = polling::Endpoint::bind(&at).expect("a socket");
            serve(&mut endpoint, next);
            tell.send(endpoint.address()).expect("somebody waits");
            while !ends.load(Ordering::Relaxed) {
                endpoint
                    .turn(Wait::For(Duration::from_millis(20)))
                    .expect("the socket lives");
                while endpoint.next_event().is_some() {}
            }
        });
        Self {
            address: told.recv().expect("it starts"),
            over,
            thread: Some(thread),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(
            matches!(ended, Some(Ok(()))),
            "the server's thread panicked"
        );
    }
}

const UDP: &str = "udp://127.0.0.1:0";

fn serve(endpoint: &mut polling::Endpoint, next: Option<Address>) {
    let to = next.clone();
    let served = endpoint.serve(
        &work::ONE,
        move |request: polling::Request<'_, One<String>>, (what,)| {
            match (&to, &*what) {
                (_, "fail") => return Err(Status::new(Code::NotFound, "not here")),
                (Some(to), _) => request.forward(to.clone(), work::one(what))?,
                (None, _) => request.respond(&what)?,
            }
            Ok(())
        },
    );
    served.expect("no other has its name");
    let served = endpoint.serve(
        &work::MANY,
        move |mut request: polling::Request<'_, Many<String>>, (what,)| {
            for number in 0..3 {
                request.reply(&format!("{what} {number}"))?;
            }
            if let Some(next) = &next {
                request.delegate(next.clone(), work::one(what.clone()))?;
                request.delegate(next.clone(), work::many(what))?;
            }
            Ok(())
        },
    );
    served.expect("no other has its name");
}

/// The same on tokio.
async fn tokio_server(next: Option<Address>, at: &str) -> wallaby::Endpoint {
    let to = next.clone();
    let service = Service::new("test")
        .method(
            &work::ONE,
            move |request: wallaby::Request<One<String>>, (what,): (String,)| {
                let to = to.clone();
                async move {
                    match to {
                        _ if what == "fail" => return Err(Status::new(Code::NotFound, "not here")),
                        Some(to) => request.forward(to, work::one(what)).await?,
                        None => request.respond(what).await?,
                    }
                    Ok(())
                }
            },
        )
        .method(
            &work::MANY,
            move |request: wallaby::Request<Many<String>>, (what,): (String,)| {
                let next = next.clone();
                async move {
                    for number in 0..3 {
                        request.reply(format!("{what} {number}")).await?;
                    }
                    if let Some(next) = next {
                        request
                            .delegate(next.clone(), work::one(what.clone()))
                            .await?;
                        request.delegate(next, work::many(what)).await?;
                    }
                    Ok(())
                }
            },
        );
    let builder = wallaby::Endpoint::builder().listen(at).serve(service);
    builder.bind().await.expect("a socket")
}

fn at(endpoint: &wallaby::Endpoint) -> Address {
    endpoint.address().expect("it listens").clone()
}

async fn patience<T>(test: impl Future<Output = T>) -> T {
    let limit = Duration::from_secs(30);
    tokio::time::timeout(limit, test)
        .await
        .expect("the test hangs")
}

/// A chain of servers, by turns on tokio and polling, the last of which is polling or not.
async fn chain(
    over: Over,
    servers: usize,
    last_is_polling: bool,
) -> (Vec<Server>, Vec<wallaby::Endpoint>, Address) {
    let (mut polling, mut tokio, mut next) = (Vec::new(), Vec::new(), None);
    for number in 0..servers {
        next = Some(if (number % 2 == 0) == last_is_polling {
            polling.push(Server::start(next, somewhere(over, number)));
            polling[polling.len() - 1].address.clone()
        } else {
            tokio.push(tokio_server(next, &somewhere(over, number)).await);
            at(&tokio[tokio.len() - 1])
        });
    }
    (polling, tokio, next.expect("there are some"))
}

/// All answers to `many` at a chain of so many servers.
fn expected(servers: usize) -> Vec<String> {
    let mut all = Vec::new();
    for server in 0..servers {
        all.extend((0..3).map(|number| format!("hop {number}")));
        if server > 0 {
            all.push("hop".to_owned());
        }
    }
    all.sort();
    all
}

/// Chains of all kinds: over what, of how many servers, and whether the last one is polling.
fn cases() -> Vec<(Over, usize, bool)> {
    let mut all = Vec::new();
    for over in ALL {
        let chains = [
            (1, true),
            (1, false),
            (2, true),
            (2, false),
            (5, true),
            (5, false),
        ];
        all.extend(chains.map(|(servers, last_is_polling)| (over, servers, last_is_polling)));
    }
    all
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_initiator_on_tokio_calls_mixed_chains() {
    patience(async {
        for (over, servers, last_is_polling) in cases() {
            let here = somewhere(over, 0);
            let client = wallaby::Endpoint::bind(&here).await.expect("a socket");
            let (_polling, _tokio, first) = chain(over, servers, last_is_polling).await;
            for _ in 0..3 {
                let answer = work::at(&client, first.clone()).one("hop".into()).await;
                assert_eq!(answer.expect("an answer"), "hop");
            }
            let failed = work::at(&client, first.clone()).one("fail".into()).await;
            let Err(CallError::Status(status)) = failed else {
                panic!("{failed:?}")
            };
            assert_eq!(status.code(), Code::NotFound);
            let mut call = work::at(&client, first.clone()).many("hop".into());
            let mut answers = Vec::new();
            while let Some(answer) = call.next().await {
                answers.push(answer.expect("an answer"));
            }
            answers.sort();
            assert_eq!(answers, expected(servers));
        }
    })
    .await;
}

/// A polling initiator on the test's thread; the servers on tokio have theirs.
#[test]
fn a_polling_initiator_calls_mixed_chains() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build();
    let runtime = runtime.expect("a runtime");
    for (over, servers, last_is_polling) in cases() {
        let here = somewhere(over, 1);
        let mut client = polling::Endpoint::bind(&here).expect("a socket");
        let (_polling, _tokio, first) = runtime.block_on(chain(over, servers, last_is_polling));
        for wait in [Wait::Forever, Wait::Not] {
            let answer = client.ask(
                first.clone(),
                work::one("hop".into()),
                &CallOptions::default(),
                wait,
            );
            assert_eq!(answer.expect("an answer"), "hop");
        }
        let failed = client.ask(
            first.clone(),
            work::one("fail".into()),
            &CallOptions::default(),
            Wait::Forever,
        );
        let Err(CallError::Status(status)) = failed else {
            panic!("{failed:?}")
        };
        assert_eq!(status.code(), Code::NotFound);
        let call = client.call(first, work::many("hop".into()), &CallOptions::default());
        let call = call.expect("it is sent");
        let mut answers = Vec::new();
        loop {
            client.turn(Wait::Forever).expect("the socket lives");
            match client.next_event() {
                Some(Event::Answer(answer)) => answers.push(call.read(answer).expect("a word")),
                Some(Event::Complete { statuses: 0, .. }) => break,
                None => {}
                other => panic!("{other:?}"),
            }
        }
        answers.sort();
        assert_eq!(answers, expected(servers));
    }
}

/// Its answers come back through the polling servers that its requests went through.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_initiator_that_cannot_be_dialled_calls_through_polling_servers() {
    patience(async {
        for over in [UDP, "tcp://127.0.0.1:0"] {
            let client = wallaby::Endpoint::client().expect("there is a runtime");
            let last = Server::start(None, over.to_owned());
            let middle = Server::start(Some(last.address.clone()), over.to_owned());
            let first = Server::start(Some(middle.address.clone()), over.to_owned());
            let at = || work::at(&client, first.address.clone());
            for _ in 0..3 {
                assert_eq!(at().one("hop".into()).await.expect("an answer"), "hop");
                let mut answers = at().many("hop".into()).collect().await.expect("answers");
                answers.sort();
                assert_eq!(answers, expected(3));
            }
            let failed = at().one("fail".into()).await;
            let Err(CallError::Status(status)) = failed else {
                panic!("{failed:?}")
            };
            assert_eq!(status.code(), Code::NotFound);
        }
    })
    .await;
}

/// Behind a server on tokio that passes its answers on, a polling server serves such initiators too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_polling_server_answers_through_a_relay() {
    patience(async {
        let client = wallaby::Endpoint::client().expect("there is a runtime");
        let last = Server::start(None, UDP.to_owned());
        let relay = tokio_server(Some(last.address.clone()), UDP).await;
        let answer = work::at(&client, at(&relay)).one("hop".into()).await;
        assert_eq!(answer.expect("an answer"), "hop");
    })
    .await;
}

/// A request that runs for several ping periods: its server is asked, and answers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_calls_are_watched_over() {
    patience(async {
        let (tell, told) = mpsc::channel();
        let thread = thread::spawn(move || {
            let mut server = polling::Endpoint::bind("udp://127.0.0.1:0").expect("a socket");
            let (keep, kept) = mpsc::channel();
            let serve = server.serve(
                &work::ONE,
                move |request: polling::Request<'_, One<String>>, _| {
                    keep.send(request.hold()).expect("somebody waits");
                    Ok(())
                },
            );
            serve.expect("no other has its name");
            tell.send(server.address()).expect("somebody waits");
            let turn = |server: &mut polling::Endpoint| {
                let wait = Wait::For(Duration::from_millis(20));
                server.turn(wait).expect("the socket lives");
            };
            let key = loop {
                turn(&mut server);
                if let Ok(key) = kept.try_recv() {
                    break key;
                }
            };
            // Only pings and acknowledgements come from now on.
            let before = server.metrics().datagrams_received;
            while server.metrics().datagrams_received < before + 8 {
                turn(&mut server);
            }
            let request = server.request(key).expect("it was not given up");
            let late = bytes::Bytes::from_static(b"\x04late");
            request.respond(late).expect("it is sent");
            turn(&mut server);
        });
        let address = told.recv().expect("it starts");
        let builder = wallaby::Endpoint::builder().listen("udp://127.0.0.1:0");
        let builder = builder.ping(Duration::from_millis(20), Duration::from_secs(5));
        let client = builder.bind().await.expect("a socket");
        let answer = work::at(&client, address).one("hop".into()).await;
        assert_eq!(answer.expect("an answer"), "late");
        thread.join().expect("no panic");
    })
    .await;
}

/// Messages in parts, both ways, between the two drivers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_messages_pass_between_the_drivers() {
    patience(async {
        for over in [Over::Tcp, Over::Unix, Over::Shm] {
            let large = "a".repeat(3 << 20);
            let polling = Server::start(None, somewhere(over, 0));
            let tokio = tokio_server(None, &somewhere(over, 0)).await;
            let client = wallaby::Endpoint::client().expect("there is a runtime");
            let answer = work::at(&client, polling.address.clone());
            let answer = answer.one(large.clone()).await;
            assert!(answer.expect("an answer") == large);
            let to = at(&tokio);
            let asked = tokio::task::spawn_blocking(move || {
                let here = somewhere(over, 0);
                let mut client = polling::Endpoint::bind(&here).expect("a socket");
                let target = work::one(large.clone());
                let answer = client.ask(to, target, &CallOptions::default(), Wait::Forever);
                assert!(answer.expect("an answer") == large);
            });
            asked.await.expect("no panic");
        }
    })
    .await;
}

/// Its sockets are closed by the system: over a stream that is noticed at once, and who dials is refused.
#[test]
fn a_server_that_is_gone_is_noticed() {
    for over in [Over::Tcp, Over::Unix, Over::Shm] {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build();
        let runtime = runtime.expect("a runtime");
        let (told, heard) = mpsc::channel();
        let there = somewhere(over, 0);
        let server = runtime.block_on(async {
            let held = Service::new("test").method(
                &work::ONE,
                move |_request: wallaby::Request<One<String>>, (_,): (String,)| {
                    told.send(()).expect("somebody waits");
                    std::future::pending::<Result<(), Status>>()
                },
            );
            let builder = wallaby::Endpoint::builder().listen(&there).serve(held);
            builder.bind().await.expect("a socket")
        });
        let to = at(&server);
        let here = somewhere(over, 0);
        let builder = polling::Endpoint::builder();
        let builder = builder.ping(Duration::from_millis(20), Duration::from_secs(1000));
        let mut client = builder.bind(&here).expect("a socket");
        let call = client.call(to.clone(), work::one("hop".into()), &CallOptions::default());
        call.expect("it is sent");
        while heard.try_recv().is_err() {
            let wait = Wait::For(Duration::from_millis(20));
            client.turn(wait).expect("the sockets live");
        }
        drop(server);
        runtime.shutdown_background();
        // It may have said so itself, in its last words.
        loop {
            client.turn(Wait::Forever).expect("the sockets live");
            match client.next_event() {
                Some(Event::Failed { failure, .. }) => {
                    break assert!(matches!(*failure, wallaby::Failure::Lost(_)), "{failure}");
                }
                Some(Event::Complete { statuses, .. }) => break assert_eq!(statuses, 1),
                _ => {}
            }
        }
        let target = work::one("hop".into());
        let failed = client.ask(to, target, &CallOptions::default(), Wait::Forever);
        let Err(CallError::Failed(wallaby::Failure::NotSent { error, .. })) = failed else {
            panic!("{failed:?}")
        };
        let refused = matches!(error, wallaby::ConnectError::Refused { .. });
        assert!(refused, "{error}");
    }
}
