//! What a request sends is kept until it is committed, and sent again from a record.

use std::future::{Future, ready};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use wallaby::intercept::{
    Admission, DelegatedRequest, Exchange, Exit, Hold, HoldLimits, Incoming, Intent, SendFuture,
};
use wallaby::{
    Address, Body, Code, DialPolicy, Endpoint, Limits, Many, Request, SendError, Service, Status,
};

use crate::common::{Gate, Net, at, client, load, patience, service, sorted, status, until, work};
use crate::intercept::{Log, echo, encoded, lines, log, observe};

over_every_transport!(
    what_is_held_leaves_when_it_was_committed,
    what_is_not_committed_does_not_leave,
);

const LIMITS: HoldLimits = HoldLimits {
    messages: 10,
    bytes: 1000,
};

/// Answers, hands on, and does one of several things.
fn several(next: Address) -> Service {
    service().method(&work::MANY, move |request: Request<Many<_>>, (what,)| {
        let next = next.clone();
        async move {
            request.reply("first".into()).await?;
            request.delegate(&next, work::many("second".into())).await?;
            let what: String = what;
            match &*what {
                "fail" => return Err(Status::aborted("no")),
                "long" => request.reply("x".repeat(1000)).await?,
                "much" => {
                    for _ in 0..100 {
                        let _ = request.reply(String::new()).await;
                    }
                }
                "body" => {
                    let body = work::many(String::new())
                        .with_body(Body::from(Bytes::from_static(b"bytes")));
                    let _ = request.delegate(&next, body).await;
                }
                _ => {}
            }
            Ok(request.respond("last".into()).await?)
        }
    })
}

/// A server that holds what its handlers send until `commit` is done.
async fn holding<F>(
    net: &Net,
    commit: impl Fn(Arc<[Intent]>) -> F + Clone + Send + Sync + 'static,
) -> (Endpoint, Endpoint)
where
    F: Future<Output = Result<(), Status>> + Send + 'static,
{
    let leaf = net.serve(echo()).await;
    let hold = move |_: &Incoming| Admission::around(Hold::new(LIMITS, commit.clone()));
    let builder = Endpoint::builder().serve(several(at(&leaf)));
    (net.bind(builder.interceptor(hold)).await, leaf)
}

async fn what_is_held_leaves_when_it_was_committed(net: Net) {
    let gate = Gate::new();
    let (pass, seen) = (gate.clone(), Log::default());
    let record = Arc::clone(&seen);
    let commit = move |sent: Arc<[Intent]>| {
        let (pass, record) = (pass.clone(), Arc::clone(&record));
        async move {
            log(&record, format!("commits {}", sent.len()));
            pass.pass().await;
            Ok(())
        }
    };
    let (server, leaf) = holding(&net, commit).await;
    let client = client();
    let work = work::at(&client, at(&server));
    let mut call = work.many("x".into());
    until(|| !seen.lock().expect("no panic").is_empty()).await;
    assert_eq!(lines(&seen), ["commits 3"]);
    assert_eq!(server.load(), load(1, 0), "it keeps its place");
    assert_eq!(server.metrics().messages_sent, 0);
    assert_eq!(leaf.metrics().requests_received, 0);
    gate.open(1);
    let (answers, statuses) = sorted(&mut call).await;
    assert_eq!(
        (answers, statuses),
        (vec!["first".into(), "last".into(), "second".into()], vec![])
    );
    until(|| server.load().is_idle()).await;
    // So does the status of a handler that fails.
    gate.open(1);
    let (answers, statuses) = sorted(&mut work.many("fail".into())).await;
    assert_eq!(answers, ["first", "second"]);
    assert_eq!(statuses[0].code(), Code::Aborted);
    assert_eq!(lines(&seen), ["commits 3"]);
}

async fn what_is_not_committed_does_not_leave(net: Net) {
    let commit = |sent: Arc<[Intent]>| async move {
        match sent.len() {
            3 => Err(Status::unavailable("no database")),
            _ => panic!("the database has fallen asleep"),
        }
    };
    let (server, leaf) = holding(&net, commit).await;
    let client = client();
    let work = work::at(&client, at(&server));
    for (what, code) in [
        ("x", Code::Unavailable),
        ("long", Code::ResourceExhausted),
        ("much", Code::ResourceExhausted),
        ("body", Code::FailedPrecondition),
    ] {
        let (answers, statuses) = sorted(&mut work.many(what.into())).await;
        assert_eq!(answers, Vec::<String>::new(), "{what}");
        let codes: Vec<_> = statuses.iter().map(Status::code).collect();
        assert_eq!(codes, [code], "{what}");
    }
    assert_eq!(leaf.metrics().requests_received, 0);
    until(|| server.load().is_idle()).await;
}

/// What a commit records holds, whether anybody still waits for the answer.
#[tokio::test]
async fn a_commit_is_finished_though_its_call_is_aborted() {
    patience(async {
        let net = Net::tcp();
        let gate = Gate::new();
        let (pass, seen) = (gate.clone(), Log::default());
        let record = Arc::clone(&seen);
        let commit = move |_: Arc<[Intent]>| {
            let (pass, record) = (pass.clone(), Arc::clone(&record));
            async move {
                log(&record, "begins");
                pass.pass().await;
                log(&record, "is done");
                Ok(())
            }
        };
        let hold = move |_: &Incoming| Admission::around(Hold::new(LIMITS, commit.clone()));
        let leaf = net.serve(echo()).await;
        let builder = Endpoint::builder().serve(several(at(&leaf)));
        let builder = builder
            .interceptor(hold)
            .interceptor(observe("outer", &seen));
        let server = net.bind(builder).await;
        let client = client();
        let call = work::at(&client, at(&server)).many("x".into());
        let has = |line: &str| {
            seen.lock()
                .expect("no panic")
                .iter()
                .any(|seen| seen == line)
        };
        until(|| has("begins")).await;
        drop(call);
        until(|| has("outer goes")).await;
        // It keeps its place, and who drains the server waits for it.
        assert_eq!(server.load(), load(1, 0));
        let draining = tokio::spawn({
            let server = server.clone();
            async move { server.drain(Duration::from_secs(3600)).await }
        });
        while status(work::at(&client, at(&server)).one("x".into()).await).code()
            != Code::Unavailable
        {
            tokio::task::yield_now().await;
        }
        assert!(!draining.is_finished());
        gate.open(1);
        draining.await.expect("no panic").expect("it is drained");
        assert!(has("is done"));
        assert_eq!(leaf.metrics().requests_received, 0);
    })
    .await;
}

/// What may be kept is measured by all of it, and whoever has sent too much is not told to try again.
#[tokio::test]
async fn what_is_held_has_limits_and_their_errors_say_so() {
    patience(async {
        let net = Net::tcp();
        let leaf = net.serve(echo()).await;
        let next = at(&leaf);
        let errors = Log::default();
        let record = Arc::clone(&errors);
        let tries = service().method(&work::MANY, move |request: Request<Many<_>>, (_,)| {
            let (next, record) = (next.clone(), Arc::clone(&record));
            async move {
                let onward = || request.delegate(&next, work::many(String::new()));
                let long = onward().metadata("key", &"x".repeat(1000)).await;
                log(&record, long.expect_err("refused").to_string());
                let long = onward().continuation(vec![0; 1000]).await;
                log(&record, long.expect_err("refused").to_string());
                let tried = request.try_reply("x".repeat(1000));
                log(&record, tried.expect_err("refused").to_string());
                for _ in 0..11 {
                    if let Err(error) = request.reply(String::new()).await {
                        log(&record, error.to_string());
                    }
                }
                Ok(())
            }
        });
        let hold = |_: &Incoming| Admission::around(Hold::new(LIMITS, |_| ready(Ok(()))));
        let server = Endpoint::builder().serve(tries).interceptor(hold);
        let (server, client) = (net.bind(server).await, client());
        let mut call = work::at(&client, at(&server)).many(String::new());
        let (answers, statuses) = sorted(&mut call).await;
        assert_eq!(answers, Vec::<String>::new());
        assert_eq!(statuses[0].code(), Code::ResourceExhausted);
        let errors = lines(&errors);
        assert_eq!(errors.len(), 4, "{errors:?}");
        for error in errors {
            assert!(
                error.ends_with("at most 10 messages of 1000 bytes are kept"),
                "{error}"
            );
        }
    })
    .await;
}

/// What cannot be sent is an error where it is sent, and not when it was committed.
#[tokio::test]
async fn what_cannot_be_sent_is_not_held() {
    patience(async {
        let net = Net::tcp();
        let seen = Log::default();
        let record = Arc::clone(&seen);
        let tries = service().method(&work::MANY, move |request: Request<Many<_>>, (_,)| {
            let record = Arc::clone(&record);
            async move {
                let nowhere: Address = "tcp://224.0.0.1:1".parse().expect("an address");
                let long = request.reply("x".repeat(5000)).await;
                let forbidden = request.delegate(&nowhere, work::many(String::new())).await;
                assert!(matches!(long, Err(SendError::TooLarge { .. })), "{long:?}");
                let is_forbidden = matches!(forbidden, Err(SendError::Forbidden { .. }));
                assert!(is_forbidden, "{forbidden:?}");
                log(&record, "refused");
                Ok(request.respond("short".into()).await?)
            }
        });
        let record = Arc::clone(&seen);
        let hold = move |_: &Incoming| {
            let record = Arc::clone(&record);
            Admission::around(Hold::new(HoldLimits::default(), move |sent| {
                log(&record, format!("commits {}", sent.len()));
                ready(Ok(()))
            }))
        };
        let mut limits = Limits::default();
        limits.message = 4096;
        let server = Endpoint::builder()
            .serve(tries)
            .interceptor(hold)
            .limits(limits);
        let (server, client) = (net.bind(server).await, client());
        let mut call = work::at(&client, at(&server)).many(String::new());
        let (answers, statuses) = sorted(&mut call).await;
        assert_eq!((answers, statuses), (vec!["short".into()], vec![]));
        assert_eq!(lines(&seen), ["refused", "commits 1"]);
    })
    .await;
}

/// Sends work to another server before each answer, whatever happens.
struct Beside(DelegatedRequest);

impl Exchange for Beside {
    fn sending(&self, intent: Intent, exit: &Exit) -> SendFuture {
        let (onward, exit) = (self.0.clone(), exit.clone());
        Box::pin(async move {
            exit.send(onward.into()).await?;
            exit.send(intent).await
        })
    }
}

/// It is held and leaves like all else, though its server hands nothing on any more, or may not dial there.
#[tokio::test]
async fn what_goes_always_is_held_and_leaves() {
    patience(async {
        let net = Net::tcp();
        let leaf = net.serve(echo()).await;
        for permits in [true, false] {
            let (gate, seen) = (Gate::new(), Log::default());
            let pass = gate.clone();
            let slow = service().method(&work::MANY, move |request: Request<Many<_>>, (what,)| {
                let pass = pass.clone();
                async move {
                    pass.pass().await;
                    Ok(request.respond(what).await?)
                }
            });
            let method = Arc::clone(work::MANY.definition());
            let mut onward = DelegatedRequest::new(at(&leaf), method, encoded("leaf"));
            onward.options_mut().always = true;
            let beside = move |_: &Incoming| Admission::around(Beside(onward.clone()));
            let record = Arc::clone(&seen);
            let hold = move |_: &Incoming| {
                let record = Arc::clone(&record);
                Admission::around(Hold::new(LIMITS, move |sent| {
                    log(&record, format!("commits {}", sent.len()));
                    ready(Ok(()))
                }))
            };
            let builder = Endpoint::builder().serve(slow);
            let builder = builder.dial_policy(DialPolicy::default().only_if(move |_| permits));
            let (server, client) = (
                net.bind(builder.interceptor(beside).interceptor(hold))
                    .await,
                client(),
            );
            let mut call = work::at(&client, at(&server)).many("own".into());
            until(|| server.load() == load(1, 0)).await;
            let draining = tokio::spawn({
                let server = server.clone();
                async move { server.drain(Duration::from_secs(3600)).await }
            });
            while status(work::at(&client, at(&server)).one("x".into()).await).code()
                != Code::Unavailable
            {
                tokio::task::yield_now().await;
            }
            gate.open(1);
            let (answers, statuses) = sorted(&mut call).await;
            let codes: Vec<_> = statuses.iter().map(Status::code).collect();
            match permits {
                true => assert_eq!(
                    (answers, codes),
                    (vec!["leaf".into(), "own".into()], vec![])
                ),
                false => assert_eq!(
                    (answers, codes),
                    (vec!["own".into()], vec![Code::PermissionDenied])
                ),
            }
            assert_eq!(lines(&seen), ["commits 2"]);
            assert_eq!(draining.await.expect("no panic"), Ok(()));
        }
        assert_eq!(leaf.metrics().requests_received, 1);
    })
    .await;
}

/// A record has what a handler has said, and nothing of who has asked first.
#[tokio::test]
async fn a_record_is_sent_for_whoever_asks() {
    patience(async {
        let net = Net::tcp();
        let leaf = service().method(
            &work::MANY,
            |request: Request<Many<_>>, (_,): (String,)| async move {
                let metadata = request.metadata();
                let token = metadata.get("token").unwrap_or("none");
                let own = metadata.get("own").unwrap_or("none");
                let left = request.remaining().as_secs();
                let time = if left < 30 { "short" } else { "long" };
                let gone = metadata.get("gone").unwrap_or("none");
                let told = format!("{token} {own} {gone} {time}");
                Ok(request.respond(told).await?)
            },
        );
        let leaf = net.serve(leaf).await;
        let next = at(&leaf);
        let root = service().method(&work::MANY, move |request: Request<Many<_>>, (what,)| {
            let onward = request.forward(&next, work::many(what));
            let onward = onward.metadata("own", "x").without("gone");
            async move { Ok(onward.deadline(Duration::from_secs(30)).await?) }
        });
        let record: Arc<Mutex<Option<Arc<[Intent]>>>> = Arc::default();
        let kept = Arc::clone(&record);
        let records = move |_: &Incoming| {
            if let Some(known) = &*kept.lock().expect("no panic") {
                return Admission::Replay(known.to_vec());
            }
            let kept = Arc::clone(&kept);
            Admission::around(Hold::new(HoldLimits::default(), move |sent| {
                *kept.lock().expect("no panic") = Some(sent);
                ready(Ok(()))
            }))
        };
        let server = Endpoint::builder().serve(root).interceptor(records);
        let server = net.bind(server).await;
        for token in ["first", "second"] {
            let client = net.endpoint().await;
            let work = work::at(&client, at(&server)).metadata("token", token);
            let work = work
                .metadata("gone", "yes")
                .deadline(Duration::from_secs(3600));
            let (answers, statuses) = sorted(&mut work.many(String::new())).await;
            assert_eq!(statuses, []);
            assert_eq!(answers, [format!("{token} x none short")]);
        }
        let record = record.lock().expect("no panic");
        let Some([Intent::Delegation { to, .. }]) = record.as_deref() else {
            panic!("{record:?}");
        };
        let options = to.options().expect("it has its own");
        assert_eq!(options.deadline, Some(Duration::from_secs(30)));
    })
    .await;
}
