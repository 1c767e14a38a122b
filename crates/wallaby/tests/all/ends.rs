//! The end of an endpoint, a runtime, a thread or a call, in the midst of something else.

use std::cell::OnceCell;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use wallaby::{Address, Endpoint, ExecutorConfig, Many, One, Request};

use crate::common::{Net, at, load, patience, process, service, until, work};

/// Somebody waits until a request has left, and has not taken an answer that came before: it learns of the end all the same.
#[tokio::test]
async fn who_waits_until_a_request_leaves_learns_that_its_call_has_failed() {
    patience(async {
        let net = Net::tcp();
        let server = service().method(
            &work::MANY,
            |request: Request<Many<_>>, (what,)| async move { Ok(request.respond(what).await?) },
        );
        let server = net.serve(server).await;
        let mute = TcpListener::bind("127.0.0.1:0").expect("a port");
        let mute = Address::Tcp(mute.local_addr().expect("it is bound"));
        let client = Endpoint::builder().dial_timeout(Duration::from_secs(60));
        let client = client.bind().await.expect("there is a runtime");
        let caller = client.caller().deadline(Duration::from_millis(300));
        let mut call = caller.begin();
        let method = work::MANY.definition();
        let sent = call.send(at(&server), method, vec![1, b'x'].into()).await;
        sent.expect("it is there");
        until(|| client.metrics().responses_received == 1).await;
        let sent = call.send(mute, method, vec![1, b'y'].into()).await;
        sent.expect_err("nobody takes it before the deadline");
    })
    .await;
}

/// What waits in the queue would only be taken along, too.
#[test]
fn no_handler_begins_because_the_runtime_ends() {
    let runtime = || {
        Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
    };
    let (servers, clients) = (runtime(), runtime());
    let (servers, clients) = (servers.expect("a runtime"), clients.expect("a runtime"));
    let begun = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&begun);
    let never = service().method(
        &work::ONE,
        move |request: Request<One<_>>, (_,): (String,)| {
            count.fetch_add(1, Ordering::SeqCst);
            async move {
                std::future::pending::<()>().await;
                Ok(request.respond(String::new()).await?)
            }
        },
    );
    let one = ExecutorConfig {
        concurrency: 1,
        ..ExecutorConfig::default()
    };
    let builder = Endpoint::builder().serve(never).executor(one);
    let server = servers.block_on(Net::tcp().bind(builder));
    clients.block_on(patience(async {
        let client = Endpoint::client().expect("there is a runtime");
        let work = work::at(&client, at(&server));
        let _calls: Vec<_> = (0..20).map(|number| work.one(number.to_string())).collect();
        until(|| server.load() == load(1, 19)).await;
        let ending = thread::spawn(move || servers.shutdown_timeout(Duration::from_secs(10)));
        ending.join().expect("it ends");
        assert_eq!(begun.load(Ordering::SeqCst), 1);
    }));
}

/// Whoever is let in while its server closes is told so, and does not wait for what nobody does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_that_come_while_a_server_closes_end() {
    patience(async {
        for net in [Net::mem(), Net::tcp(), Net::unix()] {
            for _ in 0..20 {
                let echo = service().method(
                    &work::ONE,
                    |request: Request<One<_>>, (what,): (String,)| async move {
                        Ok(request.respond(what).await?)
                    },
                );
                let server = net.serve(echo).await;
                let client = net.client().await;
                let work = work::at(&client, at(&server)).deadline(Duration::from_secs(120));
                let call = work.one("in time, or not".into());
                let closing = server.clone();
                let closing = thread::spawn(move || closing.close());
                let _ = call.await; // its deadline is longer than the test's patience
                closing.join().expect("it closes");
            }
        }
    })
    .await;
}

thread_local! {
    static KEPT: OnceCell<Endpoint> = const { OnceCell::new() };
}

const NAME: &str = "a_thread_that_ends_may_have_kept_an_endpoint";
const ALONE: &str = "WALLABY_TEST_ENDS";

/// It is dropped when much of the thread's own is gone. In a process of its own, which may abort.
#[test]
fn a_thread_that_ends_may_have_kept_an_endpoint() {
    if std::env::var(ALONE).is_err() {
        let child = process::only(module_path!(), NAME).env(ALONE, "").output();
        let child = child.expect("it starts");
        assert!(process::has_passed(&child.stdout), "{child:?}");
        return;
    }
    let runtime = Runtime::new().expect("a runtime");
    let handle = runtime.handle().clone();
    let thread = thread::spawn(move || {
        let _runtime = handle.enter();
        KEPT.with(|kept| {
            kept.get_or_init(|| Endpoint::client().expect("there is a runtime"));
        });
    });
    thread.join().expect("it ends");
}
