//! Errors of handlers and of the framework, as the initiator sees them.

use crate::common::{Net, all, at, client, patience, service, sorted, status, until, work};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use wallaby::{Client, Code, Failure, Many, One, Outcome, Request, Status};

over_every_transport!(
    an_error_of_a_handler_is_a_status,
    a_panic_is_a_status_and_the_server_goes_on,
    one_that_is_not_answered_is_a_status,
    an_unknown_method_is_a_status,
    a_call_goes_on_after_statuses,
    a_handler_that_ends_with_its_runtime_has_not_ended_well,
    a_delegation_that_reaches_nobody_says_what_it_called,
);

async fn a_delegation_that_reaches_nobody_says_what_it_called(net: Net) {
    let gone = net.endpoint().await;
    gone.close();
    let nobody = at(&gone);
    let root = service().method(&work::ONE, move |request: Request<One<_>>, (what,)| {
        let nobody = nobody.clone();
        async move { Ok(request.forward(nobody, work::one(what)).await?) }
    });
    let root = net.serve(root).await;
    let status = status(work::at(&client(), at(&root)).one("x".into()).await);
    assert_eq!(status.code(), Code::Unavailable);
    assert_eq!(status.method(), Some("test.Work/one"), "{status}");
    assert_eq!(status.server(), Some(&at(&gone)));
}

async fn an_error_of_a_handler_is_a_status(net: Net) {
    let server = net
        .serve(service().method(&work::ONE, |_, (what,)| async move {
            Err(Status::new(Code::NotFound, format!("no {what} here")))
        }))
        .await;
    let client = client();
    let mut call = work::at(&client, at(&server)).one("word".into());
    let status = status(call.answer().await);
    assert_eq!(
        (status.code(), status.message()),
        (Code::NotFound, "no word here")
    );
    assert_eq!(status.server(), server.address());
    assert_eq!(status.request().expect("it travelled").to_string(), "0");
    assert!(call.next().await.is_none());
    assert_eq!(call.outcome(), Some(Outcome::Complete { statuses: 1 }));
    assert_eq!(server.metrics().statuses_sent, 1);
    assert_eq!(client.metrics().statuses_received, 1);
    assert_eq!(client.metrics().calls_completed, 1);
}

async fn a_panic_is_a_status_and_the_server_goes_on(net: Net) {
    let server = net
        .serve(
            service()
                .method(&work::ONE, |request, (what,): (String,)| {
                    assert!(what != "begin", "at the beginning");
                    async move {
                        assert!(what != "poll", "in its first poll");
                        tokio::task::yield_now().await;
                        assert!(what != "task", "in a task of its own");
                        Ok(request.respond(what).await?)
                    }
                })
                .blocking_method(&work::MANY, |_, (what,)| panic!("on a thread: {what}")),
        )
        .await;
    let client = client();
    let work = work::at(&client, at(&server));
    for (what, message) in [
        ("begin", "at the beginning"),
        ("poll", "in its first poll"),
        ("task", "in a task of its own"),
    ] {
        let status = status(work.one(what.into()).await);
        assert_eq!(status.code(), Code::Panicked, "{status}");
        assert!(status.message().contains(message), "{status}");
        assert_eq!(status.server(), server.address());
    }
    let mut call = work.many("x".into());
    let status = status(call.next().await.expect("a status"));
    assert_eq!(status.code(), Code::Panicked);
    assert!(status.message().contains("on a thread: x"), "{status}");
    assert!(call.next().await.is_none());

    assert_eq!(
        work.one("fine".into()).await.expect("the server goes on"),
        "fine"
    );
    assert_eq!(server.metrics().panics, 4);
    until(|| server.load().is_idle()).await;
}

async fn one_that_is_not_answered_is_a_status(net: Net) {
    let service = service().method(&work::ONE, |request, (what,): (String,)| async move {
        match &*what {
            "drop" => drop(request),
            "late" => {
                tokio::task::yield_now().await;
                drop(request);
            }
            "elsewhere" => drop(tokio::spawn(async move { drop(request) })),
            _ => {}
        }
        Ok(())
    });
    let server = net.serve(service).await;
    let client = client();
    for what in ["drop", "late", "elsewhere", "return"] {
        let status = status(work::at(&client, at(&server)).one(what.into()).await);
        assert_eq!(status.code(), Code::Unanswered, "{what}: {status}");
        assert!(status.message().contains("test.Work/one"), "{status}");
    }
}

async fn an_unknown_method_is_a_status(net: Net) {
    let server = net.endpoint().await;
    let client = client();
    let work = work::at(&client, at(&server));
    let refused = status(work.one("x".into()).await);
    assert_eq!(refused.code(), Code::Unimplemented);
    assert!(refused.message().contains("test.Work/one"), "{refused}");
    assert_eq!(refused.server(), server.address());

    // Over the same connection, as soon as it is there.
    let one = service().method(&work::ONE, |request: Request<_>, (what,)| async move {
        Ok(request.respond(what).await?)
    });
    server.serve(one).expect("nobody serves it");
    assert_eq!(work.one("x".into()).await.expect("served now"), "x");
    assert_eq!(client.metrics().connections_opened, 1);
}

async fn a_call_goes_on_after_statuses(net: Net) {
    let leaf = net
        .serve(
            service().method(&work::MANY, |request, (what,): (String,)| async move {
                match &*what {
                    "error" => Err(Status::new(Code::OutOfRange, "too far")),
                    "panic" => panic!("as the test wants it"),
                    _ => Ok(request.respond(what).await?),
                }
            }),
        )
        .await;
    let leaf_address = at(&leaf);
    let root = net
        .serve(service().method(&work::MANY, move |request, (_,)| {
            let leaf = leaf_address.clone();
            async move {
                for what in ["a", "error", "b", "panic", "c"] {
                    request.delegate(&leaf, work::many(what.into())).await?;
                }
                request.respond("root".into()).await?;
                Ok(())
            }
        }))
        .await;
    let endpoint = net.endpoint().await;
    let mut call = work::at(&endpoint, at(&root)).many(String::new());
    let (answers, statuses) = sorted(&mut call).await;
    assert_eq!(answers, ["a", "b", "c", "root"]);
    assert_eq!(statuses.len(), 2);
    for status in &statuses {
        let (code, path) = match status.code() {
            Code::OutOfRange => (Code::OutOfRange, "0.1"),
            _ => (Code::Panicked, "0.3"),
        };
        assert_eq!(status.code(), code);
        assert_eq!(status.request().expect("it travelled").to_string(), path);
        assert_eq!(status.server(), leaf.address());
        assert_eq!(status.method(), Some("test.Work/many"));
        let place = format!("(request {path} to test.Work/many at {})", at(&leaf));
        assert!(status.to_string().ends_with(&place), "{status}");
    }
    assert_eq!(call.outcome(), Some(Outcome::Complete { statuses: 2 }));
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct NotFound {
    what: String,
}

/// Its errors are its own.
#[wallaby::service(package = "test")]
trait Lookup {
    async fn find(what: String) -> Result<u32, NotFound>;
}

struct Finder;

#[wallaby::serve]
impl Lookup for Finder {
    async fn find(&self, what: String) -> Result<u32, NotFound> {
        if what == "here" {
            Ok(7)
        } else {
            Err(NotFound { what })
        }
    }
}

#[tokio::test]
async fn an_error_of_the_application_is_an_answer() {
    let net = Net::mem();
    let server = net.serve(lookup::service(Finder)).await;
    let client = client();
    let lookup = lookup::at(&client, at(&server));
    assert_eq!(lookup.find("here".into()).await.expect("an answer"), Ok(7));
    let mut call = lookup.find("there".into());
    let answer = call.answer().await.expect("an answer");
    assert_eq!(
        answer,
        Err(NotFound {
            what: "there".into()
        })
    );
    assert!(call.next().await.is_none());
    assert_eq!(call.outcome(), Some(Outcome::Complete { statuses: 0 }));
    assert_eq!(client.metrics().statuses_received, 0);
}

#[tokio::test]
async fn fail_fast_ends_with_the_first_status_and_stops_the_rest() {
    patience(async {
        let net = Net::mem();
        let failing = service().method(&work::MANY, |_, (_,)| async {
            Err(Status::new(Code::DataLoss, "gone"))
        });
        let failing = net.serve(failing).await;
        let leaf = at(&failing);
        let root = service().method(&work::MANY, move |request: Request<Many<_>>, (_,)| {
            let leaf = leaf.clone();
            async move {
                request.delegate(leaf, work::many(String::new())).await?;
                request.reply("and more".into()).await?;
                request.cancelled().await;
                Ok(())
            }
        });
        let root = net.serve(root).await;
        let endpoint = net.endpoint().await;
        let mut call = work::at(&endpoint, at(&root))
            .fail_fast()
            .many(String::new());
        let items = all(&mut call).await;
        let last = items.into_iter().last().expect("at least the status");
        assert_eq!(status(last).code(), Code::DataLoss);
        let outcome = call.outcome();
        assert_eq!(outcome, Some(Outcome::Failed(Failure::FailedFast)));
        assert_eq!(endpoint.metrics().calls_aborted, 1);
        // The handler at the root has seen that it was cancelled.
        until(|| root.load().is_idle()).await;
    })
    .await;
}

/// Only a status ends it without more words: who reads its answers must not take a part for all of them.
#[tokio::test]
async fn a_call_that_fails_fast_and_is_given_up_says_so() {
    patience(async {
        let net = Net::mem();
        let server = service().method(&work::MANY, |request: Request<Many<_>>, (_,)| async move {
            request.reply("a part".into()).await?;
            request.cancelled().await;
            Ok(())
        });
        let server = net.serve(server).await;
        let client = client();
        let caller = client.caller().fail_fast();
        let mut call = caller.begin();
        let sent = call.send(at(&server), work::MANY.definition(), vec![0].into());
        sent.await.expect("it is sent");
        call.close();
        let part = call.next().await.expect("an answer");
        part.expect("no status");
        call.abort();
        let end = call.next().await.expect("why there is no more");
        let end = end.expect_err("no answer");
        assert!(
            matches!(end.failure(), Some(Failure::Aborted { .. })),
            "{end}"
        );
        assert!(call.next().await.is_none());
    })
    .await;
}

/// docs/protocol.md, rule 10: what a handler had not released when it fails is not sent.
#[tokio::test]
async fn what_is_held_back_when_a_handler_fails_is_not_sent() {
    let net = Net::mem();
    let server = net
        .serve(service().method(
            &work::MANY,
            |request: Request<Many<String>>, (_,)| async move {
                request.reply("released by the next".into()).await?;
                request.reply("held back".into()).await?;
                Err(Status::new(Code::Aborted, "changed my mind"))
            },
        ))
        .await;
    let client = client();
    let mut call = work::at(&client, at(&server)).many(String::new());
    let (answers, statuses) = sorted(&mut call).await;
    assert_eq!(answers, ["released by the next"]);
    assert_eq!(statuses[0].code(), Code::Aborted);
    assert_eq!(call.outcome(), Some(Outcome::Complete { statuses: 1 }));
}

#[tokio::test]
async fn an_error_after_the_answer_is_counted() {
    patience(async {
        let net = Net::mem();
        let server = net
            .serve(service().method(
                &work::ONE,
                |request: Request<One<String>>, (what,)| async move {
                    request.respond(what).await?;
                    Err(Status::new(Code::Internal, "too late"))
                },
            ))
            .await;
        let client = client();
        let mut call = work::at(&client, at(&server)).one("x".into());
        assert_eq!(call.answer().await.expect("an answer"), "x");
        assert!(call.next().await.is_none());
        assert_eq!(call.outcome(), Some(Outcome::Complete { statuses: 0 }));
        until(|| server.metrics().late_errors == 1).await;
        assert_eq!(server.metrics().statuses_sent, 0);
    })
    .await;
}

#[tokio::test]
async fn a_handler_may_end_its_request_with_a_status_and_go_on() {
    patience(async {
        let net = Net::mem();
        let server = net
            .serve(service().method(
                &work::MANY,
                |request: Request<Many<String>>, (_,)| async move {
                    request.fail(&Status::new(Code::PermissionDenied, "not you"));
                    Ok(())
                },
            ))
            .await;
        let client = client();
        let mut call = work::at(&client, at(&server)).many(String::new());
        let (answers, statuses) = sorted(&mut call).await;
        assert!(answers.is_empty());
        assert_eq!(statuses[0].code(), Code::PermissionDenied);
        assert_eq!(server.metrics().late_errors, 0);
    })
    .await;
}

#[tokio::test]
async fn arguments_that_cannot_be_read_are_a_status() {
    let net = Net::mem();
    let server =
        net
            .serve(
                service().method(
                    &work::ONE,
                    |request: Request<One<String>>, (what,)| async move {
                        Ok(request.respond(what).await?)
                    },
                ),
            )
            .await;
    let client = client();
    let calls = Client::new(&client, at(&server));
    // A string of 5 bytes, of which there are 2.
    let mut call = calls.call_raw(work::ONE.definition(), Bytes::from_static(&[5, b'a', b'b']));
    let error = call.next().await.expect("a status").expect_err("a status");
    let status = error.status().expect("a status");
    assert_eq!(status.code(), Code::InvalidArgument);
    assert!(status.message().contains("postcard"), "{status}");
}

/// Cannot be written if it holds a 7.
#[derive(Debug, PartialEq, Deserialize)]
struct Fragile(u8);

impl Serialize for Fragile {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            7 => Err(serde::ser::Error::custom("seven")),
            number => serializer.serialize_newtype_struct("Fragile", &number),
        }
    }
}

/// Passes fragile things on.
#[wallaby::service(package = "test")]
trait Carrier {
    async fn add(one: Fragile, other: u8) -> Fragile;
    async fn several(to: u8) -> Many<Fragile>;
}

struct Carriers;

#[wallaby::serve]
impl Carrier for Carriers {
    async fn add(&self, one: Fragile, other: u8) -> Fragile {
        Fragile(one.0 + other)
    }

    async fn several(&self, request: Request<Many<Fragile>>, to: u8) -> Result<(), Status> {
        for number in 0..to {
            // A value that cannot be written harms no other.
            let _ = request.reply(Fragile(number)).await;
        }
        Ok(())
    }
}

#[tokio::test]
async fn a_server_may_be_named_by_text() {
    patience(async {
        let net = Net::mem();
        let server = net.serve(carrier::service(Carriers)).await;
        let (client, address) = (client(), at(&server).to_string());
        let added = carrier::at(&client, &address).add(Fragile(2), 3).await;
        assert_eq!(added, Ok(Fragile(5)));
        let nowhere = carrier::at(&client, "127.0.0.1:4000");
        let failed = crate::common::failure(nowhere.add(Fragile(2), 3).await);
        assert!(matches!(failed, Failure::Address(_)), "{failed}");
        assert_eq!(failed.code(), Code::InvalidArgument);
        let why = "the call was not made: \"127.0.0.1:4000\" is no address: expected tcp://";
        assert!(failed.to_string().starts_with(why), "{failed}");
        let mut several = nowhere.several(3);
        assert!(several.next().await.is_some_and(|answer| answer.is_err()));
        assert_eq!(several.next().await, None);
    })
    .await;
}

#[tokio::test]
async fn what_cannot_be_written_is_an_error_where_it_happens() {
    patience(async {
        let net = Net::mem();
        let server = net.serve(carrier::service(Carriers)).await;
        let client = client();
        let carrier = carrier::at(&client, at(&server));
        assert_eq!(carrier.add(Fragile(2), 3).await, Ok(Fragile(5)));
        let unsent = crate::common::failure(carrier.add(Fragile(7), 3).await);
        assert!(matches!(unsent, Failure::Codec(_)), "{unsent}");
        let unanswered = status(carrier.add(Fragile(4), 3).await);
        assert_eq!(unanswered.code(), Code::Internal, "{unanswered}");
        assert!(
            unanswered.message().contains("cannot encode"),
            "{unanswered}"
        );
        let several = carrier.several(9).collect().await.expect("the others");
        assert_eq!(several.len(), 8);
        assert_eq!(server.metrics().requests_received, 3);
    })
    .await;
}

/// Half of the answers are no complete call, whatever becomes of the server.
async fn a_handler_that_ends_with_its_runtime_has_not_ended_well(net: Net) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime");
    let service = service().method(&work::MANY, |request, (what,): (String,)| async move {
        request.reply(what).await?;
        std::future::pending::<()>().await;
        Ok(())
    });
    let serving = runtime.spawn(async move { (net.serve(service).await, net) });
    let (server, _net) = serving.await.expect("it serves");
    let client = client();
    let mut call = work::at(&client, at(&server)).many("half".into());
    assert_eq!(call.next().await.expect("an answer"), Ok("half".into()));
    runtime.shutdown_background();
    while call.next().await.is_some() {}
    let outcome = call.outcome().expect("it is over");
    assert_ne!(outcome, Outcome::Complete { statuses: 0 });
}

/// A handler that calls, and passes on what it got by `?`: the status is its own, and says where it comes from.
#[tokio::test]
async fn a_status_of_a_call_within_is_that_of_its_caller_and_names_the_other() {
    patience(async {
        let net = Net::tcp();
        let behind = service().method(&work::ONE, |_: Request<One<String>>, (what,)| async move {
            Err(Status::not_found(format!("no {what} here")))
        });
        let behind = net.serve(behind).await;
        let next = at(&behind);
        let front = net
            .serve(
                service().method(&work::ONE, move |request: Request<One<_>>, (what,)| {
                    let next = next.clone();
                    async move {
                        let answer = work::within(request.call().at(next)).one(what).await?;
                        Ok(request.respond(answer).await?)
                    }
                }),
            )
            .await;
        let client = client();
        let status = status(
            work::at(&client, at(&front))
                .one("word".into())
                .answer()
                .await,
        );
        assert_eq!(
            (status.code(), status.server()),
            (Code::NotFound, front.address())
        );
        let from = format!(
            "no word here ({} at {})",
            work::ONE.definition().name(),
            at(&behind)
        );
        assert_eq!(status.message(), from);
    })
    .await;
}
