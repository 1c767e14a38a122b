//! What subscribers of `tracing` see: spans around handlers and events, with call and hop ids.

use std::fmt::Debug;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::common::{Net, at, client, patience, service, until, work};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};
use wallaby::{Code, One, Request, Status};

/// Writes down all spans and events of Wallaby.
#[derive(Clone, Default)]
struct Notes {
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
        let name = if level == Level::WARN {
            "warning"
        } else {
            "event"
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
