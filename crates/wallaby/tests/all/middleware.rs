//! Interceptors of calls, and what travels with a call.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::common::{Net, at, client, patience, service, sorted, work};
use bytes::Bytes;
use wallaby::intercept::{Admission, Incoming};
use wallaby::{
    Address, CallError, CallInterceptor, Code, Endpoint, Failure, Many, One, Outgoing, Request,
    Status,
};

over_every_transport!(
    an_interceptor_may_change_what_is_sent,
    calls_begun_by_hand_pass_the_interceptors,
    an_interceptor_may_refuse_a_request,
    metadata_travels_down_the_tree,
);

const SHORT: Duration = Duration::from_secs(20);

type Log = Arc<Mutex<Vec<String>>>;

fn log(log: &Log, line: String) {
    log.lock()
        .unwrap_or_else(PoisonError::into_inner)
        .push(line);
}

fn lines(log: &Log) -> Vec<String> {
    std::mem::take(&mut log.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Lets nobody in without a password.
fn guard(request: &Incoming) -> Admission {
    match request.metadata().get("password") {
        Some("secret") => Admission::Run,
        _ => Admission::Refuse(Status::new(Code::Unauthenticated, "who are you?")),
    }
}

/// Puts a credential into what is sent, and sends what is for one server to another.
struct Stamp {
    log: Log,
    from: Address,
    to: Address,
}

impl CallInterceptor for Stamp {
    fn outgoing(&self, outgoing: &mut Outgoing) -> Result<(), Status> {
        log(&self.log, outgoing.method.name().to_string());
        Arc::make_mut(&mut outgoing.options)
            .metadata
            .insert("password", "secret")
            .expect("it is short");
        if outgoing.server == self.from {
            outgoing.server = self.to.clone();
        }
        Ok(())
    }
}

async fn an_interceptor_may_change_what_is_sent(net: Net) {
    let echo = || {
        service().method(&work::ONE, |request: Request<One<_>>, (what,)| async move {
            Ok(request.respond(what).await?)
        })
    };
    let guarded = net
        .bind(Endpoint::builder().serve(echo()).interceptor(guard))
        .await;
    let elsewhere: Address = "mem://nowhere".parse().expect("an address");
    let seen = Log::default();
    let stamp = || Stamp {
        log: Arc::clone(&seen),
        from: elsewhere.clone(),
        to: at(&guarded),
    };
    let client = net
        .bind(Endpoint::builder().call_interceptor(stamp()))
        .await;
    assert_eq!(
        work::at(&client, at(&guarded)).one("x".into()).await,
        Ok("x".into())
    );
    assert_eq!(
        work::at(&client, &elsewhere).one("y".into()).await,
        Ok("y".into())
    );
    assert_eq!(lines(&seen), ["test.Work/one", "test.Work/one"]);

    // Also around the calls that handlers make.
    let next = elsewhere.clone();
    let root = service().method(&work::ONE, move |request: Request<One<String>>, (what,)| {
        let next = next.clone();
        async move {
            let answer = work::within(request.call().at(next)).one(what).await?;
            Ok(request.respond(answer).await?)
        }
    });
    let root = net
        .bind(Endpoint::builder().serve(root).call_interceptor(stamp()))
        .await;
    let plain = crate::common::client();
    assert_eq!(
        work::at(&plain, at(&root)).one("z".into()).await,
        Ok("z".into())
    );
    assert_eq!(lines(&seen), ["test.Work/one"]);
}

/// Each request of such a call has the credential, wherever the interceptor sends it.
async fn calls_begun_by_hand_pass_the_interceptors(net: Net) {
    let echo = service().method(&work::ONE, |request: Request<One<_>>, (what,)| async move {
        Ok(request.respond(what).await?)
    });
    let guarded = net
        .bind(Endpoint::builder().serve(echo).interceptor(guard))
        .await;
    let elsewhere: Address = "mem://nowhere".parse().expect("an address");
    let seen = Log::default();
    let stamp = Stamp {
        log: Arc::clone(&seen),
        from: elsewhere.clone(),
        to: at(&guarded),
    };
    let client = net.bind(Endpoint::builder().call_interceptor(stamp)).await;
    let mut call = client.caller().metadata("purpose", "test").begin();
    for server in [at(&guarded), elsewhere] {
        let payload = Bytes::from_static(b"\x01x"); // postcard's form of "x"
        let sent = call.send(server, work::ONE.definition(), payload).await;
        sent.expect("there is a server");
    }
    call.close();
    let mut answers = 0;
    while let Some(answer) = call.next().await {
        answer.expect("the guard lets it pass");
        answers += 1;
    }
    assert_eq!(answers, 2);
    assert_eq!(lines(&seen), ["test.Work/one", "test.Work/one"]);
}

struct Refuse;

impl CallInterceptor for Refuse {
    fn outgoing(&self, _: &mut Outgoing) -> Result<(), Status> {
        Err(Status::new(Code::Unauthenticated, "no token yet"))
    }
}

/// Nothing leaves, and the error says who refused what.
async fn an_interceptor_may_refuse_a_request(net: Net) {
    let echo = service().method(
        &work::ONE,
        |_: Request<One<String>>, (_,): (String,)| async { panic!("nothing was sent") },
    );
    let server = net.serve(echo).await;
    let client = net.bind(Endpoint::builder().call_interceptor(Refuse)).await;
    let refused = |error: &CallError| {
        let CallError::Failed(Failure::Intercepted { method, status, .. }) = error else {
            return false;
        };
        assert_eq!(
            (error.code(), error.status()),
            (status.code(), Some(&**status))
        );
        (&**method, status.code()) == ("test.Work/one", Code::Unauthenticated)
    };
    let typed = work::at(&client, at(&server)).one("x".into()).await;
    assert!(typed.as_ref().is_err_and(refused), "{typed:?}");
    let mut call = client.caller().begin();
    let sent = call.send(at(&server), work::ONE.definition(), Bytes::new());
    let sent = sent.await;
    assert!(sent.as_ref().is_err_and(refused), "{sent:?}");
    let ended = call.next().await.expect("the failure");
    assert!(ended.as_ref().is_err_and(refused), "{ended:?}");
    assert_eq!(client.metrics().messages_sent, 0);
}

/// Says what it knows of the call, and asks on.
async fn metadata_travels_down_the_tree(net: Net) {
    let told = |request: &Request<Many<String>>| {
        let pairs: Vec<_> = request
            .metadata()
            .iter()
            .map(|(key, value)| format!("{key}={value}"))
            .collect();
        pairs.join(" ")
    };
    let leaf = service().method(
        &work::MANY,
        move |request: Request<Many<_>>, (name,)| async move {
            let told = format!("{name}: {}", told(&request));
            Ok(request.respond(told).await?)
        },
    );
    let leaf = net.serve(leaf).await;
    let next = at(&leaf);
    let root = service().method(&work::MANY, move |request: Request<Many<_>>, (_,)| {
        let next = next.clone();
        async move {
            request
                .delegate(&next, work::many("delegated".into()))
                .await?;
            let called = work::within(request.call().at(&next))
                .metadata("b", "changed")
                .metadata("c", "added");
            for answer in called
                .many("called".into())
                .collect()
                .await
                .expect("an answer")
            {
                request.reply(answer).await?;
            }
            let told = told(&request);
            Ok(request
                .forward(&next, work::many(format!("forwarded after {told}")))
                .await?)
        }
    });
    let root = net.serve(root).await;
    let endpoint = net.endpoint().await;
    let work = work::at(&endpoint, at(&root))
        .metadata("a", "first")
        .metadata("b", "second")
        .metadata("a", "again");
    let (answers, statuses) = sorted(&mut work.many(String::new())).await;
    assert!(statuses.is_empty(), "{statuses:?}");
    assert_eq!(
        answers,
        [
            "called: a=again b=changed c=added",
            "delegated: a=again b=second",
            "forwarded after a=again b=second: a=again b=second",
        ]
    );
    let (answers, _) = sorted(&mut work::at(&endpoint, at(&leaf)).many("plain".into())).await;
    assert_eq!(answers, ["plain: "]);
}

/// What an interceptor has changed is inherited whether the request goes on or not, and so is the deadline.
#[tokio::test]
async fn what_is_called_after_the_answer_inherits_the_same() {
    patience(async {
        let net = Net::tcp();
        let (tells, mut told) = tokio::sync::mpsc::unbounded_channel();
        let leaf = service().method(&work::ONE, move |request: Request<One<_>>, (what,)| {
            let pairs = request.metadata().iter();
            let pairs: Vec<_> = pairs.map(|(key, value)| format!("{key}={value}")).collect();
            let _ = tells.send((pairs.join(" "), request.remaining()));
            async move { Ok(request.respond(what).await?) }
        });
        let leaf = net.serve(leaf).await;
        let next = at(&leaf);
        let root = service().method(&work::ONE, move |request: Request<One<_>>, (what,)| {
            let long = request.call().deadline(Duration::from_secs(3600));
            let next = next.clone();
            async move {
                request.respond(what).await?;
                assert!(long.time() <= SHORT);
                work::within(long.at(next)).one("after".into()).await?;
                Ok(())
            }
        });
        let says = |incoming: &Incoming| {
            incoming.set_inherited("b", "said").expect("it is short");
            Admission::Run
        };
        let root = net
            .bind(Endpoint::builder().serve(root).interceptor(says))
            .await;
        let client = net.endpoint().await;
        let work = work::at(&client, at(&root)).metadata("a", "first");
        let answer = work.deadline(SHORT).one("x".into()).await;
        assert_eq!(answer.expect("it is sent before"), "x");
        let (pairs, left) = told.recv().await.expect("it is called");
        assert_eq!(pairs, "a=first b=said");
        assert!(left <= SHORT, "{left:?}");
    })
    .await;
}

/// What a request says of where it comes from.
#[tokio::test]
async fn a_request_knows_where_it_comes_from() {
    patience(async {
        let net = Net::tcp();
        let (said, mut facts) = tokio::sync::mpsc::unbounded_channel();
        let tell = move |request: &Request<One<String>>| {
            let facts = (
                request.initiator(),
                request.delegator(),
                request.depth(),
                request.id().to_string(),
            );
            said.send((request.call_id(), facts))
                .expect("the test listens");
        };
        let also = tell.clone();
        let leaf = service().method(&work::ONE, move |request: Request<One<String>>, (what,)| {
            tell(&request);
            async move { Ok(request.respond(what).await?) }
        });
        let leaf = net.serve(leaf).await;
        let next = at(&leaf);
        let root = service().method(&work::ONE, move |request: Request<One<String>>, (what,)| {
            also(&request);
            let next = next.clone();
            async move { Ok(request.forward(next, work::one(what)).await?) }
        });
        let root = net.serve(root).await;
        let client = client();
        let mut call = work::at(&client, at(&root)).one("x".into());
        call.answer().await.expect("an answer");
        let first = (client.node(), Some(client.node()), 0, "0".to_owned());
        let second = (client.node(), Some(root.node()), 1, "0+1".to_owned());
        assert_eq!(facts.recv().await, Some((call.id(), first)));
        assert_eq!(facts.recv().await, Some((call.id(), second)));
    })
    .await;
}
