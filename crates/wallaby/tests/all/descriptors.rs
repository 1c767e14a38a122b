//! An endpoint whose process has no file descriptor left.

#![cfg(target_os = "linux")]

use std::fs::File;
use std::process::Stdio;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{Net, heap, process, service};
use bytes::Bytes;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use wallaby::{Address, Endpoint, One, Request};

const ALONE: &str = "WALLABY_TEST_ALONE";
const NAME: &str = "a_full_socket_that_cannot_be_waited_for_ends_its_connection";

/// To wait for room in a socket takes one more descriptor. In a process of its own, which may hang.
#[test]
fn a_full_socket_that_cannot_be_waited_for_ends_its_connection() {
    if std::env::var(ALONE).is_ok() {
        return alone();
    }
    let mut child = process::only(module_path!(), NAME)
        .env(ALONE, "")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let end = Instant::now() + Duration::from_secs(30);
    let status = loop {
        if let Some(status) = child.try_wait().expect("it is ours") {
            break status;
        }
        if Instant::now() >= end {
            child.kill().expect("it was not waited for");
            child.wait().expect("it was killed");
            panic!("it hangs");
        }
        thread::sleep(Duration::from_millis(5));
    };
    assert!(status.success());
    let output = child.wait_with_output().expect("it was waited for");
    assert!(process::has_passed(&output.stdout));
}

fn alone() {
    let net = Net::unix();
    let address = net.address();
    let (listening, listens) = mpsc::channel();
    let (busy, is_busy) = mpsc::channel();
    let (go_on, waits) = mpsc::channel::<()>();
    let listen = address.clone();
    // A server whose only thread is stuck reads nothing.
    let server = thread::spawn(move || {
        let waits = std::sync::Mutex::new(waits);
        let stuck = service().method(
            &heap::ONE,
            move |request: Request<One<_>, _>, (what,): (Bytes,)| {
                let _ = busy.send(());
                let _ = waits.lock().expect("one thread").recv();
                async move { Ok(request.respond(what).await?) }
            },
        );
        runtime().block_on(async {
            let endpoint = Endpoint::builder().serve(stuck).listen(&listen).bind();
            let _endpoint = endpoint.await.expect("a free address");
            listening.send(()).expect("somebody waits");
            std::future::pending::<()>().await;
        });
    });
    listens.recv().expect("it listens");
    runtime().block_on(async {
        let client = Endpoint::client().expect("a runtime");
        let heap = heap::at(&client, address.parse::<Address>().expect("one"));
        let _first = heap.one(Bytes::from_static(b"hop"));
        tokio::task::spawn_blocking(move || is_busy.recv())
            .await
            .expect("no panic")
            .expect("it is handled");
        let open = std::fs::read_dir("/proc/self/fd")
            .expect("it is there")
            .count();
        let maximum = getrlimit(Resource::Nofile).maximum;
        let current = Some(open as u64 + 10);
        setrlimit(Resource::Nofile, Rlimit { current, maximum }).expect("less is allowed");
        let all: Vec<File> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
        // More than the socket takes, as messages that do not travel in parts.
        let calls: Vec<_> = (0..200)
            .map(|_| heap.one(Bytes::from(vec![7; 8 << 10])))
            .collect();
        for call in calls {
            call.await.expect_err("there is no connection any more");
        }
        drop(all);
    });
    drop(go_on);
    drop(server);
}

fn runtime() -> tokio::runtime::Runtime {
    let builder = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    builder.expect("a runtime")
}
