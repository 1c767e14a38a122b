//! Interceptors learn how requests and calls end, and what they set is inherited.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::common::{Net, at, client, patience, service, sorted, until, work};
use wallaby::intercept::{Admission, Incoming, RequestEnd};
use wallaby::{
    Address, CallEnd, CallInterceptor, Client, Code, Endpoint, ExecutorConfig, Many, One, Outcome,
    Outgoing, Request, Service, Status,
};

type Ends<T> = Arc<Mutex<Vec<T>>>;

fn taken<T>(ends: &Ends<T>) -> Vec<T> {
    std::mem::take(&mut ends.lock().unwrap_or_else(PoisonError::into_inner))
}

fn put<T>(ends: &Ends<T>, end: T) {
    ends.lock()
        .unwrap_or_else(PoisonError::into_inner)
        .push(end);
}

/// Notes how requests end.
fn watch(ends: &Ends<RequestEnd>) -> impl Fn(&Incoming) -> Admission + use<> {
    let ends = Arc::clone(ends);
    move |request| {
        let ends = Arc::clone(&ends);
        request.on_end(move |end| put(&ends, end.clone()));
        Admission::Run
    }
}

/// Notes how calls end.
struct Calls(Ends<CallEnd>);

impl CallInterceptor for Calls {
    fn outgoing(&self, outgoing: &mut Outgoing) -> Result<(), Status> {
        let ends = Arc::clone(&self.0);
        outgoing.on_end(move |end| put(&ends, end.clone()));
        Ok(())
    }
}

/// Does what it is told.
fn obedient() -> Service {
    service()
        .method(
            &work::ONE,
            |request: Request<One<String>>, (what,)| async move {
                match &*what {
                    "answer" => Ok(request.respond(what).await?),
                    "fail" => Err(Status::not_found("no such thing")),
                    "panic" => panic!("as it was told"),
                    "wait" => std::future::pending().await,
                    _ => Ok(()),
                }
            },
        )
        .method(
            &work::MANY,
            |request: Request<Many<String>>, (what,)| async move {
                request.reply(what).await?;
                Err(Status::data_loss("the rest is gone"))
            },
        )
}

#[tokio::test]
async fn an_interceptor_learns_how_requests_end() {
    patience(async {
        let ends = Ends::default();
        let net = Net::tcp();
        let builder = Endpoint::builder().serve(obedient());
        // What one refuses that is asked later is told, too.
        let refuse = |request: &Incoming| match request.metadata().get("refuse") {
            Some(_) => Admission::Refuse(Status::permission_denied("not you")),
            None => Admission::Run,
        };
        let one = ExecutorConfig {
            concurrency: 1,
            queue: 0,
            ..ExecutorConfig::default()
        };
        let builder = builder
            .interceptor(refuse)
            .interceptor(watch(&ends))
            .executor(one);
        let server = net.bind(builder).await;
        let client = client();
        let work = work::at(&client, at(&server));
        let told = |ends: &Ends<RequestEnd>| {
            let ends = taken(ends).into_iter();
            let codes = ends.map(|end| (end.status.map(|status| status.code()), end.ran.is_some()));
            codes.collect::<Vec<_>>()
        };
        // Each is told before its caller knows.
        work.one("answer".into()).await.expect("an answer");
        assert_eq!(told(&ends), [(None, true)]);
        for (what, code) in [
            ("fail", Code::NotFound),
            ("panic", Code::Panicked),
            ("nothing", Code::Unanswered),
        ] {
            let failed = work.one(what.into()).await.expect_err("no answer");
            assert_eq!(failed.code(), code, "{what}");
            assert_eq!(told(&ends), [(Some(code), true)], "{what}");
        }
        let (_, statuses) = sorted(&mut work.many("x".into())).await;
        assert_eq!(statuses.len(), 1);
        assert_eq!(told(&ends), [(Some(Code::DataLoss), true)]);
        let refused = work
            .clone()
            .metadata("refuse", "yes")
            .one("answer".into())
            .await;
        assert_eq!(
            refused.map_err(|error| error.code()),
            Err(Code::PermissionDenied)
        );
        assert_eq!(told(&ends), [(Some(Code::PermissionDenied), false)]);
        // One runs, so the next one is refused; the first is given up.
        let running = work.one("wait".into());
        until(|| server.load().running == 1).await;
        let full = work.one("answer".into()).await.expect_err("one runs");
        assert_eq!(full.code(), Code::ResourceExhausted);
        assert_eq!(told(&ends), [(Some(Code::ResourceExhausted), false)]);
        drop(running);
        until(|| !ends.lock().expect("nobody panics with it").is_empty()).await;
        assert_eq!(told(&ends), [(Some(Code::Cancelled), true)]);
        let late = work
            .deadline(Duration::from_millis(30))
            .one("wait".into())
            .await;
        assert_eq!(
            late.map_err(|error| error.code()),
            Err(Code::DeadlineExceeded)
        );
        until(|| !ends.lock().expect("nobody panics with it").is_empty()).await;
        assert!(matches!(
            told(&ends)[..],
            [(Some(Code::Cancelled | Code::DeadlineExceeded), true)]
        ));
    })
    .await;
}

#[tokio::test]
async fn an_interceptor_of_calls_learns_how_they_end() {
    patience(async {
        let ends = Ends::default();
        let net = Net::tcp();
        let server = net.serve(obedient()).await;
        let refuse = |outgoing: &Outgoing| outgoing.method.name().ends_with("many");
        struct Refuse<F>(F);
        impl<F: Fn(&Outgoing) -> bool + Send + Sync + 'static> CallInterceptor for Refuse<F> {
            fn outgoing(&self, outgoing: &mut Outgoing) -> Result<(), Status> {
                match (self.0)(outgoing) {
                    true => Err(Status::permission_denied("not that")),
                    false => Ok(()),
                }
            }
        }
        let builder = Endpoint::builder().call_interceptor(Refuse(refuse));
        let builder = builder.call_interceptor(Calls(Arc::clone(&ends)));
        let client = builder.bind().await.expect("there is a runtime");
        let work = work::at(&client, at(&server));
        let told = |ends: &Ends<CallEnd>| {
            let ends = taken(ends).into_iter();
            ends.map(|end| end.code()).collect::<Vec<_>>()
        };
        let mut call = work.one("answer".into());
        let id = call.id();
        call.answer().await.expect("an answer");
        let all = taken(&ends);
        assert_eq!(all.len(), 1);
        assert_eq!(
            (all[0].call, &all[0].outcome),
            (id, &Outcome::Complete { statuses: 0 })
        );
        work.one("fail".into()).await.expect_err("a status");
        assert_eq!(told(&ends), [Some(Code::NotFound)]);
        // Given up, by who drops it.
        let call = work.one("wait".into());
        until(|| server.load().running == 1).await;
        assert_eq!(told(&ends), []);
        drop(call);
        assert_eq!(told(&ends), [Some(Code::Cancelled)]);
        let late = work.clone().deadline(Duration::from_millis(10));
        late.one("wait".into()).await.expect_err("it hangs");
        assert_eq!(told(&ends), [Some(Code::DeadlineExceeded)]);
        // It may not leave.
        let refused = work.many("x".into()).collect().await;
        refused.expect_err("an interceptor says no");
        assert_eq!(told(&ends), [Some(Code::PermissionDenied)]);
        // Nobody there.
        let nobody = work::at(
            &client,
            "tcp://127.0.0.1:1".parse::<Address>().expect("an address"),
        );
        nobody
            .one("answer".into())
            .await
            .expect_err("nobody listens");
        assert_eq!(told(&ends), [Some(Code::Unavailable)]);
        assert!(client.metrics().dials_failed > 0);
        // It is over before anybody can wait for it.
        client.close();
        work.one("answer".into())
            .await
            .expect_err("the endpoint is closed");
        assert_eq!(told(&ends).len(), 1);
    })
    .await;
}

#[tokio::test]
async fn what_an_interceptor_sets_is_inherited_and_what_came_is_seen() {
    patience(async {
        let net = Net::tcp();
        let tell = |request: &Request<One<String>>| {
            let pairs = request.metadata().iter();
            let pairs: Vec<String> = pairs.map(|(key, value)| format!("{key}={value}")).collect();
            pairs.join(" ")
        };
        let leaf = service().method(&work::ONE, move |request: Request<One<String>>, (_,)| {
            let told = tell(&request);
            async move { Ok(request.respond(told).await?) }
        });
        let leaf = net.serve(leaf).await;
        let next = at(&leaf);
        let root = service().method(&work::ONE, move |request: Request<One<String>>, (what,)| {
            let (next, own) = (next.clone(), tell(&request));
            async move {
                assert_eq!(own, "span=client with=it");
                match &*what {
                    "call" => {
                        let called = work::within(request.call().at(next)).one(what).await?;
                        Ok(request.respond(called).await?)
                    }
                    _ => {
                        let forwarded = request.forward(next, work::one(what));
                        Ok(forwarded.metadata("own", "too").await?)
                    }
                }
            }
        });
        let set = |request: &Incoming| {
            let too_long = "x".repeat(9000);
            request
                .set_inherited("span", &too_long)
                .expect_err("too long");
            request.set_inherited("span", "root").expect("it is short");
            Admission::Run
        };
        let root = net
            .bind(Endpoint::builder().serve(root).interceptor(set))
            .await;
        let client = client();
        let work = work::within(Client::new(&client, at(&root)));
        let work = work.metadata("span", "client").metadata("with", "it");
        assert_eq!(
            work.one("call".into()).await,
            Ok("span=root with=it".into())
        );
        assert_eq!(
            work.one("forward".into()).await,
            Ok("span=root with=it own=too".into())
        );
    })
    .await;
}
