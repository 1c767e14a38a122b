//! What subscribers of `tracing` see: spans around handlers and events, with call and hop ids.

use std::fmt::Debug;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::common::{Net, at, client, patience, service, until, work};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};
use wallaby::{Address, Code, Endpoint, ExecutorConfig, One, Request, Status};

/// Writes down all spans and events of Wallaby.
#[derive(Clone, Default)]
pub(crate) struct Notes {
    lines: Arc<Mutex<Vec<String>>>,
    spans: Arc<AtomicU64>,
}

#[derive(Default)]
struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0 += &format!(" {}={value:?}", field.name());
    }
}

impl Notes {
    fn note(&self, line: String) {
        self.lines
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(line);
    }

    /// What an operator reads: warnings and what is at INFO, since this was asked last.
    pub(crate) fn for_operators(&self) -> Vec<String> {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        let lines = std::mem::take(&mut *lines);
        let wanted = |line: &String| line.starts_with("warning") || line.starts_with("info");
        lines.into_iter().filter(wanted).collect()
    }

    fn has(&self, parts: &[&str]) -> bool {
        let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        lines
            .iter()
            .any(|line| parts.iter().all(|part| line.contains(part)))
    }
}

impl Subscriber for Notes {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("wallaby") || metadata.target().starts_with("tracing")
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut line = Line::default();
        span.record(&mut line);
        let number = self.spans.fetch_add(1, Ordering::Relaxed) + 1;
        self.note(format!(
            "span {number} {}{}",
            span.metadata().name(),
            line.0
        ));
        Id::from_u64(number)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line::default();
        event.record(&mut line);
        let level = *event.metadata().level();
        let name = match level {
            Level::WARN => "warning",
            Level::INFO => "info",
            _ => "event",
        };
        self.note(format!("{name}{}", line.0));
    }

    fn enter(&self, span: &Id) {
        self.note(format!("enter {}", span.into_u64()));
    }

    fn exit(&self, span: &Id) {
        self.note(format!("exit {}", span.into_u64()));
    }
}

#[tokio::test]
async fn spans_and_events_name_calls_and_hops() {
    let notes = Notes::default();
    // Of two, neither is asked alone who is interested: with one, `tracing` would ask only that of the thread which comes to a
    // place first, and the threads of other tests have none.
    let _other = tracing::Dispatch::new(Notes::default());
    let _subscribed = tracing::subscriber::set_default(notes.clone());
    patience(async {
        let net = Net::mem();
        let leaf = service().method(
            &work::ONE,
            |request: Request<One<String>>, (what,): (String,)| async move {
                tracing::info!("at work");
                if what == "late" {
                    request.respond(what).await?;
                }
                Err(Status::new(Code::NotFound, "nothing here"))
            },
        );
        let leaf = net.serve(leaf).await;
        let next = at(&leaf);
        let root = service().method(&work::ONE, move |request: Request<One<_>>, (what,)| {
            let next = next.clone();
            async move { Ok(request.forward(next, work::one(what)).await?) }
        });
        let root = net.serve(root).await;
        let client = client();
        let mut call = work::at(&client, at(&root)).one("x".into());
        call.answer().await.expect_err("a status");
        let id = call.id().to_string();
        for hop in ["request=0 depth=0", "request=0+1 depth=1"] {
            let span = [
                "span",
                "request",
                "method=\"test.Work/one\"",
                &format!("call={id}"),
                hop,
            ];
            assert!(notes.has(&span), "{hop}: {:#?}", notes.lines);
        }
        assert!(notes.has(&["enter"]) && notes.has(&["exit"]));
        assert!(
            notes.has(&["event", &id, "request=0+1", "not found: nothing here"]),
            "{:#?}",
            notes.lines
        );
        assert!(
            notes.has(&["event", &id, "ended", "Complete"]),
            "{:#?}",
            notes.lines
        );

        work::at(&client, at(&root))
            .one("late".into())
            .await
            .expect("an answer");
        until(|| leaf.metrics().late_errors == 1).await;
        assert!(
            notes.has(&["warning", "after the request ended", "nothing here"]),
            "{:#?}",
            notes.lines
        );
        // Whoever may read this must not be able to answer calls.
        assert!(!notes.has(&["Token(0"]), "{:#?}", notes.lines);
    })
    .await;
}

/// Does what it is told.
fn obedient() -> wallaby::Service {
    service().method(
        &work::ONE,
        |request: Request<One<String>>, (what,): (String,)| async move {
            match &*what {
                "panic" => panic!("as it was told"),
                "wait" => std::future::pending().await,
                "stick" => {
                    request.shield(std::future::pending::<()>()).await;
                    Ok(())
                }
                _ => Ok(request.respond(what).await?),
            }
        },
    )
}

/// Whether one line has all of these.
pub(crate) fn one_of(lines: &[String], parts: &[&str]) -> bool {
    let has = |line: &String| parts.iter().all(|part| line.contains(part));
    lines.iter().any(has)
}

#[tokio::test]
async fn an_operator_reads_what_is_wrong_and_who_comes_and_goes() {
    let notes = Notes::default();
    let _other = tracing::Dispatch::new(Notes::default());
    let _subscribed = tracing::subscriber::set_default(notes.clone());
    patience(async {
        let net = Net::tcp();
        let executor = ExecutorConfig {
            concurrency: 1,
            queue: 0,
            ..ExecutorConfig::default()
        };
        let builder = Endpoint::builder().serve(obedient()).executor(executor);
        let server = net.bind(builder.grace(Duration::from_millis(1))).await;
        let address = at(&server).to_string();
        let own = format!("endpoint={}", server.node());
        let read = notes.for_operators();
        assert!(
            one_of(&read, &["info", "listens", &address, &own]),
            "{read:#?}"
        );

        // A connection is news, calls over it are none.
        let client = client();
        let work = work::at(&client, at(&server));
        work.one("x".into()).await.expect("an answer");
        let read = notes.for_operators();
        assert!(
            one_of(&read, &["info", "is connected to a server", &address]),
            "{read:#?}"
        );
        let peer = "a peer has connected";
        assert!(
            one_of(&read, &["info", peer, &own, "from=127.0.0.1:"]),
            "{read:#?}"
        );
        for _ in 0..20 {
            work.one("x".into()).await.expect("an answer");
        }
        assert_eq!(notes.for_operators(), [] as [String; 0]);

        // Panics name the method and the call, ten a second.
        let mut call = work.one("panic".into());
        let id = format!("call={}", call.id());
        call.answer().await.expect_err("it panics");
        let read = notes.for_operators();
        let expected = [
            "warning",
            "panicked",
            "as it was told",
            "method=\"test.Work/one\"",
            &id,
        ];
        assert!(one_of(&read, &expected), "{read:#?}");
        for _ in 0..40 {
            work.one("panic".into()).await.expect_err("it panics");
        }
        let told = notes.for_operators().len();
        assert!((9..40).contains(&told), "{told} of 40 panics were told");

        // Overload.
        let waiting = work.one("wait".into());
        until(|| server.load().running == 1).await;
        let full = work.one("x".into()).await.expect_err("one runs");
        assert_eq!(full.code(), Code::ResourceExhausted);
        let read = notes.for_operators();
        assert!(
            one_of(&read, &["warning", "too many wait", &own, "times=1"]),
            "{read:#?}"
        );
        drop(waiting);
        until(|| server.load().running == 0).await;

        // A handler that does not stop.
        let stuck = work.one("stick".into());
        let id = format!("call={}", stuck.id());
        until(|| server.load().running == 1).await;
        drop(stuck);
        until(|| server.metrics().stuck == 1).await;
        let read = notes.for_operators();
        let expected = [
            "warning",
            "goes on for long",
            "method=\"test.Work/one\"",
            &id,
        ];
        assert!(one_of(&read, &expected), "{read:#?}");

        // A peer that does not keep to the protocol, and one that leaves.
        let Address::Tcp(socket) = at(&server) else {
            panic!("{address}");
        };
        let mut stranger = TcpStream::connect(socket).await.expect("it listens");
        let from = stranger.local_addr().expect("it is connected").to_string();
        stranger
            .write_all(b"GET / HTTP/1.1\r\n\r\n")
            .await
            .expect("it reads");
        let mut last_words = Vec::new();
        let _ = stranger.read_to_end(&mut last_words).await;
        let read = notes.for_operators();
        assert!(
            one_of(&read, &["warning", "does not keep to the protocol", &from]),
            "{read:#?}"
        );
        client.close();
        until(|| server.metrics().connections_ended == 1).await;
        let read = notes.for_operators();
        assert!(
            one_of(&read, &["info", "a connection has ended", &own]),
            "{read:#?}"
        );

        // Nobody there.
        let other = crate::common::client();
        let nobody: Address = "tcp://127.0.0.1:1".parse().expect("an address");
        work::at(&other, &nobody)
            .one("x".into())
            .await
            .expect_err("nobody listens");
        let read = notes.for_operators();
        let expected = ["warning", "dialled in vain", "server=tcp://127.0.0.1:1"];
        assert!(one_of(&read, &expected), "{read:#?}");

        // Somebody is there, and says nothing.
        let mute = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let mute = Address::Tcp(mute.local_addr().expect("it listens"));
        let impatient = Endpoint::builder().dial_timeout(Duration::from_millis(50));
        let impatient = impatient.bind().await.expect("a client");
        let call = work::at(&impatient, &mute).one("x".into());
        call.await.expect_err("nobody answers");
        let read = notes.for_operators();
        let at_it = format!("server={mute}");
        let expected = ["warning", "dialled in vain", &at_it, "no answer within"];
        assert!(one_of(&read, &expected), "{read:#?}");
        assert_eq!(impatient.metrics().dials_failed, 1);

        // One is killed that has begun something.
        let killed = net.serve(obedient()).await;
        let waiting = work::at(&other, at(&killed)).one("wait".into());
        until(|| killed.load().running == 1).await;
        killed.kill();
        waiting.await.expect_err("it is gone");
        let read = notes.for_operators();
        let at_it = format!("server={}", at(&killed));
        let expected = [
            "warning",
            "a part of a call is lost",
            "test.Work/one",
            &at_it,
        ];
        assert!(one_of(&read, &expected), "{read:#?}");

        // It shuts down, though somebody waits for it.
        let _waiting = work::at(&other, at(&server)).one("wait".into());
        until(|| server.load().running == 1).await;
        notes.for_operators();
        let drained = server.drain(Duration::from_millis(1)).await;
        drained.expect_err("one runs on");
        let read = notes.for_operators();
        for said in [
            "takes no more requests",
            "was not drained in time",
            "is closed",
        ] {
            assert!(one_of(&read, &[said, &own]), "{said}: {read:#?}");
        }
    })
    .await;
}

/// A handler that sleeps without waiting holds up all else; who operates the server is told what to look for.
#[tokio::test]
async fn a_runtime_that_was_blocked_is_told_of() {
    let notes = Notes::default();
    let _other = tracing::Dispatch::new(Notes::default());
    let _subscribed = tracing::subscriber::set_default(notes.clone());
    patience(async {
        let server = service().method(&work::ONE, |request: Request<One<String>>, (what,)| {
            std::thread::sleep(Duration::from_millis(1100));
            async move { Ok(request.respond(what).await?) }
        });
        let server = Net::mem().serve(server).await;
        let client = Endpoint::builder().ping(Duration::from_millis(20), Duration::from_secs(20));
        let client = client.bind().await.expect("it binds");
        let mut call = work::at(&client, at(&server)).one("x".into());
        call.answer().await.expect("an answer");
        until(|| notes.has(&["warning", "late=1.", "the runtime was blocked"])).await;
    })
    .await;
}
