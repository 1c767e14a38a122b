//! Shared memory between processes: what becomes of it when one of them is killed, and what is left of it.

#![cfg(target_os = "linux")]

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::time::Duration;

use crate::common::{Net, all, at, heap, patience, process, service};
use bytes::Bytes;
use tokio::io::AsyncWriteExt;
use wallaby::{Address, CallError, ConnectError, Endpoint, Many, One, Request, Service};

/// Where a process of this program listens, and for what.
const ADDRESS: &str = "WALLABY_TEST_LISTENS_AT";

fn echo() -> Service {
    service()
        .method(
            &heap::ONE,
            |request: Request<One<_>, _>, (what,)| async move { Ok(request.respond(what).await?) },
        )
        .method(
            &heap::MANY,
            |request: Request<Many<Bytes>, _>, (what,): (Bytes,)| async move {
                for _ in 0..20 {
                    request.reply(what.clone()).await?;
                }
                Ok(())
            },
        )
}

/// A server in a process of its own, which is killed with this.
struct Server(Child);

impl Server {
    fn start(address: &str) -> Self {
        let mut server = process::only(module_path!(), "is_a_server_if_it_is_asked_to")
            .env(ADDRESS, address)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map(Self)
            .expect("it starts");
        let output = server.0.stdout.take().expect("it is piped");
        let mut lines = BufReader::new(output).lines();
        let ready = lines.any(|line| line.expect("text").contains("listening"));
        assert!(ready, "it has ended");
        server
    }

    fn kill(&mut self) {
        self.0.kill().expect("it was not waited for");
        self.0.wait().expect("it was killed");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// No test, but what [`Server`] runs.
#[test]
fn is_a_server_if_it_is_asked_to() {
    let Ok(address) = std::env::var(ADDRESS) else {
        return;
    };
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let builder = Endpoint::builder().serve(echo()).listen(&address);
    let _endpoint = runtime.block_on(builder.bind()).expect("a free address");
    println!("listening");
    let mut line = String::new();
    let _ = std::io::stdin().read_line(&mut line); // until who has started it is gone
}

/// Somebody else has the socket: the caller is told whose fault that is, and it is counted.
#[tokio::test]
async fn who_answers_something_else_is_at_fault() {
    let net = Net::shm();
    let address = net.address();
    let path = address.trim_start_matches("shm://");
    let other = tokio::net::UnixListener::bind(path).expect("a free path");
    let client = Endpoint::builder().bind().await.expect("a runtime");
    let server: Address = address.parse().expect("an address");
    let connecting = client.connect(server);
    let answering = async {
        let (mut stranger, _) = other.accept().await.expect("it dials");
        let said = stranger.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
        said.await.expect("room");
        stranger
    };
    let (failed, _stranger) = patience(async { tokio::join!(connecting, answering) }).await;
    let Err(ConnectError::Handshake { source, .. }) = failed else {
        panic!("{failed:?}");
    };
    assert!(source.is_violation(), "{source}");
    assert_eq!(client.metrics().connections_broken, 1);
}

/// The server is killed in the midst of small and large calls. All of them end, and the next server is found at the same
/// path, where the socket was left behind.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_killed_ends_its_calls() {
    let net = Net::shm();
    let address = net.address();
    let server: Address = address.parse().expect("an address");
    let client = Endpoint::builder().shared_memory(1);
    let client = client.ping(Duration::from_millis(50), Duration::from_millis(500));
    let client = client.bind().await.expect("a runtime");
    let heap = heap::at(&client, &server);
    for round in 0..6u32 {
        let mut process = Server::start(&address);
        let sizes = [100, 3_000, 20_000, 300_000];
        let calls: Vec<_> = (0..24)
            .map(|call| {
                let payload = Bytes::from(vec![call as u8; sizes[call % sizes.len()]]);
                let heap = heap.clone();
                tokio::spawn(async move {
                    let answers = all(&mut heap.many(payload.clone())).await;
                    check(&answers, &payload)
                })
            })
            .collect();
        // So that it dies at another point in each round.
        for _ in 0..3 * round {
            let answer = heap.one(Bytes::from_static(b"hop")).await;
            assert_eq!(answer.expect("it lives")[..], *b"hop");
        }
        process.kill();
        for call in calls {
            patience(call).await.expect("no panic");
        }
    }
    let _process = Server::start(&address);
    let answer = heap.one(Bytes::from_static(b"hop")).await;
    assert_eq!(answer.expect("it lives")[..], *b"hop");
}

/// What came is as it was sent; what did not come has a reason.
fn check(answers: &[Result<Bytes, CallError>], payload: &Bytes) {
    let (last, before) = answers.split_last().expect("an end");
    for answer in before {
        assert!(answer.as_ref().is_ok_and(|answer| answer == payload));
    }
    match last {
        Ok(answer) => assert!(answer == payload && answers.len() == 20),
        Err(error) => assert!(error.failure().is_some(), "{error}"),
    }
}

#[tokio::test]
async fn messages_pass_that_are_much_larger_than_the_rings() {
    patience(async {
        let net = Net::shm();
        let server = net.serve(echo()).await;
        for ring in [0, 5_000, usize::MAX] {
            let client = Endpoint::builder().shared_memory(ring).bind().await;
            let client = client.expect("a runtime");
            let payload = Bytes::from(vec![7; 3 << 20]);
            let answer = heap::at(&client, at(&server)).one(payload.clone()).await;
            assert!(answer.expect("an answer") == payload);
        }
    })
    .await;
}

/// A server that nobody reaches at the address that it tells, and one that is reached there, too.
#[tokio::test]
async fn who_is_on_the_same_host_is_found_by_its_address() {
    patience(async {
        let net = Net::unix();
        let folder = net.folder().to_str().expect("UTF-8");
        for address in [
            "tcp://127.0.0.1:1",
            "udp://127.0.0.1:1",
            "unix:///no/such/folder/socket",
        ] {
            let address: Address = address.parse().expect("an address");
            let server = Endpoint::builder().serve(echo()).advertise(address.clone());
            let server = server.listen(&Net::mem().address()).same_host(folder);
            let server = server.bind().await.expect("a free address");
            assert_eq!(server.address(), Some(&address));
            let far = Endpoint::builder().dial_timeout(Duration::from_millis(100));
            let far = far.bind().await.expect("a runtime");
            far.connect(&address).await.expect_err("not there");
            let near = Endpoint::builder().same_host(folder).bind().await;
            let near = near.expect("a runtime");
            // Over datagrams, it would be too large.
            let payload = Bytes::from(vec![7; 1 << 20]);
            let answer = heap::at(&near, &address).one(payload.clone()).await;
            assert!(answer.expect("an answer") == payload);

            let twice = Endpoint::builder()
                .advertise(address.clone())
                .same_host(folder);
            twice.bind().await.expect_err("the server is there");
            server.close();
            let left = std::fs::read_dir(folder).expect("a folder").count();
            assert_eq!(left, 0, "sockets");
        }
    })
    .await;
}

#[tokio::test]
async fn who_offers_no_shared_memory_is_dialled_as_ever() {
    patience(async {
        let net = Net::unix();
        let folder = net.folder().to_str().expect("UTF-8");
        let (tcp, udp) = (
            Net::tcp().serve(echo()).await,
            Net::udp().serve(echo()).await,
        );
        let client = || Endpoint::builder().same_host(folder).bind();
        let call = async |server: &Address| {
            let client = client().await.expect("a runtime");
            let answer = heap::at(&client, server)
                .one(Bytes::from_static(b"hop"))
                .await;
            assert_eq!(answer.expect("an answer")[..], *b"hop");
        };
        for server in [at(&tcp), at(&udp)] {
            call(&server).await;
            let path = net.folder().join(server.to_string().replace("//", ""));
            // A socket that was left behind, one that does not speak this, and one that says nothing.
            let left = std::os::unix::net::UnixListener::bind(&path).expect("a free path");
            drop(left);
            call(&server).await;
            std::fs::remove_file(&path).expect("it is still there");
            let other = tokio::net::UnixListener::bind(&path).expect("a free path");
            tokio::join!(call(&server), async {
                drop(other.accept().await.expect("somebody looks"));
            });
            tokio::join!(call(&server), async {
                let silent = other.accept().await.expect("somebody looks");
                crate::common::until(|| {
                    silent.0.try_read(&mut [0; 100]).is_ok_and(|read| read == 0)
                })
                .await;
            });
        }
    })
    .await;
}

#[tokio::test]
async fn a_server_that_does_not_answer_is_given_up() {
    let net = Net::shm();
    let server: Address = net.address().parse().expect("an address");
    let Address::Shm(path) = &server else {
        panic!("{server:?}")
    };
    let _silent = tokio::net::UnixListener::bind(&**path).expect("a free path");
    let client = Endpoint::builder().dial_timeout(Duration::from_millis(50));
    let client = client.bind().await.expect("a runtime");
    let error = patience(client.connect(&server))
        .await
        .expect_err("nobody answers");
    assert!(matches!(error, ConnectError::TimedOut { .. }), "{error}");
}

/// In a process of its own: other tests have connections, too.
#[test]
fn nothing_is_left_of_a_connection() {
    const ALONE: &str = "WALLABY_TEST_ALONE";
    if std::env::var(ALONE).is_err() {
        let mut alone = process::only(module_path!(), "nothing_is_left_of_a_connection");
        let output = alone.env(ALONE, "").stderr(Stdio::inherit()).output();
        assert!(process::has_passed(&output.expect("it starts").stdout));
        return;
    }
    let mapped = || {
        let maps = std::fs::read_to_string("/proc/self/maps").expect("it is there");
        maps.lines()
            .filter(|line| line.contains("memfd:wallaby"))
            .count()
    };
    let open = || {
        std::fs::read_dir("/proc/self/fd")
            .expect("it is there")
            .count()
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.expect("a runtime").block_on(async {
        let net = Net::shm();
        let server = net.serve(echo()).await;
        let Address::Shm(path) = at(&server) else {
            panic!("{server:?}")
        };
        let mut before = None;
        for _ in 0..5 {
            let client = Endpoint::client().expect("a runtime");
            let heap = heap::at(&client, at(&server));
            let answer = heap.one(Bytes::from_static(b"hop")).await;
            answer.expect("an answer");
            assert_eq!(mapped(), 2, "one for each side");
            drop((heap, client));
            patience(crate::common::until(|| mapped() == 0)).await;
            let now = open();
            assert_eq!(*before.get_or_insert(now), now, "descriptors");
        }
        assert!(std::fs::exists(&*path).expect("a folder"));
        drop(server);
        patience(crate::common::until(|| {
            !std::fs::exists(&*path).expect("a folder")
        }))
        .await;
    });
}
