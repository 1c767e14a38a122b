//! Endpoints that handle what they have no names for, and names that are Wallaby's own.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use wallaby::intercept::{Admission, Incoming, Interceptor};
use wallaby::{
    Address, Body, Client, Code, Endpoint, Many, Method, MethodDefinition, One, RawRequest,
    Request, ServeError, Service, Status,
};

use crate::common::{Net, at, client, heap, patience, service, sorted, work};

over_every_transport!(
    a_gateway_passes_on_what_it_does_not_know,
    what_does_not_get_there_goes_elsewhere,
    what_is_served_by_its_name_is_not_caught,
);

/// Passes everything on.
fn gateway(behind: Address) -> Service {
    Service::new("gateway").catch_all(move |request: RawRequest| {
        let onward = request.pass_on(&behind);
        async move { Ok(onward.await?) }
    })
}

/// Answers with what is called.
fn names() -> Service {
    Service::new("names").catch_all(|request: RawRequest| async move {
        let definition = request.definition();
        let told = format!("{} in {}", request.method(), definition.codec());
        Ok(request.respond(told.into()).await?)
    })
}

fn raw(name: &str) -> Arc<MethodDefinition> {
    Arc::new(MethodDefinition::new(name, "raw", 0, 0).expect("a name"))
}

async fn ask(client: &Endpoint, server: &Endpoint, name: &str) -> Result<Bytes, Status> {
    let client = Client::new(client, at(server));
    let mut call = client.call_raw(&raw(name), Bytes::new());
    match call.next().await.expect("an answer") {
        Ok(answer) => Ok(answer.payload),
        Err(error) => Err(error.status().expect("a status").clone()),
    }
}

async fn a_gateway_passes_on_what_it_does_not_know(net: Net) {
    let behind = service()
        .method(
            &work::ONE,
            |request: Request<One<_>>, (what,): (String,)| async move {
                let given = request.continuation().unwrap_or_default();
                let told = format!("{what} {given:?} {}", request.metadata().iter().count());
                Ok(request.respond(told).await?)
            },
        )
        .method(
            &work::MANY,
            |request: Request<Many<_>>, (what,): (String,)| async move {
                request.reply(format!("{what} 1")).await?;
                Ok(request.respond(format!("{what} 2")).await?)
            },
        );
    let behind = net.serve(behind).await;
    let gateway = net.serve(gateway(at(&behind))).await;
    let client = net.endpoint().await;
    let to = client.caller().at(at(&gateway));
    let one = to.clone().continuation("rest").metadata("key", "value");
    let one = work::within(one).one("one".into()).await;
    assert_eq!(one, Ok(r#"one b"rest" 1"#.into()));
    let many = sorted(&mut work::within(to.clone()).many("many".into())).await;
    assert_eq!(many, (vec!["many 1".into(), "many 2".into()], vec![]));
    // Who serves it checks the types.
    static OTHER: Method<(u64,), One<u64>> = Method::new("test.Work/one");
    let refused = to.call(&OTHER, (1,)).await.expect_err("another type");
    assert_eq!(refused.code(), Code::Mismatch);
    assert_eq!(refused.server(), Some(&at(&behind)));
}

/// Hands everything on to a server, and what does not get there to another one.
fn front(first: Address, second: Address) -> Service {
    let elsewhere = raw("test.Front/elsewhere");
    let unless_sent = Arc::clone(&elsewhere);
    let first = move |request: RawRequest| {
        let payload = request.payload().clone();
        let onward = request.forward(&first, work::ONE.definition(), payload);
        let onward = onward.unless_sent(&unless_sent);
        async move { Ok(onward.await?) }
    };
    let second = move |request: RawRequest| {
        let second = second.clone();
        async move {
            let Some(why) = request.undelivered() else {
                return Err(Status::permission_denied("nobody else calls this"));
            };
            assert_eq!(why.method(), Some("test.Work/one"));
            if request.payload().is_empty() {
                return Err(why.with_message("nobody has it"));
            }
            let payload = request.payload().clone();
            let onward = request.forward(second, work::ONE.definition(), payload);
            Ok(onward.await?)
        }
    };
    Service::new("front")
        .raw(raw("test.Front/first"), first)
        .raw(elsewhere, second)
}

async fn what_does_not_get_there_goes_elsewhere(net: Net) {
    let echo =
        service().method(
            &work::ONE,
            |request: Request<One<_>>, (what,): (String,)| async move {
                Ok(request.respond(what).await?)
            },
        );
    let second = net.serve(echo).await;
    let gone = at(&net.serve(service()).await); // it is dropped
    let front = net.serve(front(gone.clone(), at(&second))).await;
    let client = net.endpoint().await;
    let client = Client::new(&client, at(&front));
    let ask = async |method: &str, payload: &'static [u8]| {
        let mut call = client.call_raw(&raw(method), Bytes::from_static(payload));
        let answer = call.next().await.expect("an answer");
        assert!(call.next().await.is_none());
        answer.map(|answer| answer.payload)
    };
    // In postcard's form.
    assert_eq!(ask("test.Front/first", b"\x01x").await, Ok("\x01x".into()));
    let lost = ask("test.Front/first", b"")
        .await
        .expect_err("nobody has it");
    let lost = lost.status().expect("a status").clone();
    assert_eq!(
        (lost.message(), lost.server()),
        ("nobody has it", Some(&gone))
    );
    assert!(lost.is_not_executed() && lost.method() == Some("test.Work/one"));
    let other = ask("test.Front/elsewhere", b"\x01x").await;
    let other = other.expect_err("it is for nobody else");
    assert_eq!(other.code(), Code::PermissionDenied);
}

#[tokio::test]
async fn bodies_pass_through_a_gateway() {
    let net = Net::tcp();
    let length = service().raw(
        Arc::clone(heap::ONE.definition()),
        |request: RawRequest| async move {
            let mut body = request.take_body().expect("a body follows");
            let mut whole = Vec::new();
            let read = tokio::io::AsyncReadExt::read_to_end(&mut body, &mut whole).await;
            read.map_err(|error| Status::internal(error.to_string()))?;
            Ok(request.respond(whole.into()).await?)
        },
    );
    let behind = net.serve(length).await;
    let gateway = net.serve(gateway(at(&behind))).await;
    let client = net.endpoint().await;
    let to = Client::new(&client, at(&gateway));
    let body = Body::from(Bytes::from_static(b"what follows"));
    let answer = to.call_with_body(&heap::ONE, (Bytes::new(),), body).await;
    assert_eq!(answer.expect("an answer"), "what follows");
}

async fn what_is_served_by_its_name_is_not_caught(net: Net) {
    let server = net.serve(names()).await;
    let client = net.endpoint().await;
    let caught = ask(&client, &server, "a.B/c").await;
    assert_eq!(caught.as_deref(), Ok(&b"a.B/c in raw"[..]));
    // What was caught on this connection has a handler of its own from now on.
    let own = Service::new("own").raw(raw("a.B/c"), |request: RawRequest| async move {
        Ok(request.respond("own".into()).await?)
    });
    server.serve(own).expect("the name is free");
    assert_eq!(ask(&client, &server, "a.B/c").await, Ok("own".into()));
    let caught = ask(&client, &server, "a.B/d").await;
    assert_eq!(caught.as_deref(), Ok(&b"a.B/d in raw"[..]));
    // Wallaby's own names are nobody else's.
    let refused = ask(&client, &server, "wallaby.B/c").await;
    assert_eq!(refused.expect_err("reserved").code(), Code::Unimplemented);
    let caught = ask(&client, &server, "wallabys.B/c").await;
    assert!(caught.is_ok());
}

#[tokio::test]
async fn what_was_refused_before_is_caught() {
    let net = Net::tcp();
    let server = net.endpoint().await;
    let client = net.endpoint().await;
    let refused = ask(&client, &server, "a.B/c").await;
    assert_eq!(refused.expect_err("not served").code(), Code::Unimplemented);
    server.serve(names()).expect("nothing is caught yet");
    assert!(ask(&client, &server, "a.B/c").await.is_ok());
    let taken = ServeError::Taken { name: "*".into() };
    assert_eq!(server.serve(names()), Err(taken.clone()));
    let twice = names().catch_all(|_: RawRequest| async { Ok(()) });
    assert_eq!(net.endpoint().await.serve(twice), Err(taken));
}

struct Notes(Arc<Mutex<Vec<String>>>);

impl Interceptor for Notes {
    fn concerns(&self, method: &MethodDefinition) -> bool {
        assert!(!method.name().ends_with("/fatal"), "as planned");
        !method.name().ends_with("/public")
    }

    fn admit(&self, request: &Incoming) -> Admission {
        let mut noted = self.0.lock().expect("nobody panics");
        noted.push(request.method().to_owned());
        match request.method() {
            "a.B/forbidden" => Admission::Refuse(Status::permission_denied("no")),
            _ => Admission::Run,
        }
    }
}

/// Interceptors see what is caught, as far as it concerns them, and traces name it.
#[tokio::test]
async fn what_is_caught_has_a_name() {
    let net = Net::tcp();
    let noted = Arc::default();
    let builder = Endpoint::builder().interceptor(Notes(Arc::clone(&noted)));
    let server = net.bind(builder.serve(names())).await;
    let client = net.endpoint().await;
    for (name, is_let_in) in [
        ("a.B/one", true),
        ("a.B/forbidden", false),
        ("a.B/public", true),
        ("a.B/fatal", false),
    ] {
        assert_eq!(ask(&client, &server, name).await.is_ok(), is_let_in);
    }
    let noted = std::mem::take(&mut *noted.lock().expect("nobody panics"));
    assert_eq!(noted, ["a.B/one", "a.B/forbidden"]);
    let to = Client::new(&client, at(&server)).traced();
    let mut call = to.call_raw(&raw("a.B/two"), Bytes::new());
    while let Some(answer) = call.next().await {
        answer.expect("an answer");
    }
    let trace = call.trace();
    let methods = trace.hops.iter().filter(|hop| hop.timing.is_some());
    let methods: Vec<_> = methods.filter_map(|hop| hop.method.as_deref()).collect();
    assert_eq!(methods, ["a.B/two"]);
}

#[tokio::test]
async fn names_of_wallaby_are_for_who_has_the_right() {
    let net = Net::tcp();
    let chain = || {
        Service::new("wallaby.Chain").raw(
            raw("wallaby.Chain/step"),
            |request: RawRequest| async move { Ok(request.respond("step".into()).await?) },
        )
    };
    let server = net.endpoint().await;
    let name = "wallaby.Chain/step".to_owned();
    let refused = Err(ServeError::Reserved { name });
    assert_eq!(server.serve(chain()), refused);
    for other in ["wallaby.Cha", "wallaby.Other", "wallaby"] {
        let right = wallaby::extension::Reserved::new(other);
        assert_eq!(server.serve(chain().reserved(right)), refused);
    }
    let right = wallaby::extension::Reserved::new("wallaby.Chain");
    server
        .serve(chain().reserved(right))
        .expect("it has the right");
    let client = net.endpoint().await;
    let step = ask(&client, &server, "wallaby.Chain/step").await;
    assert_eq!(step, Ok("step".into()));
}

/// Whoever calls ever new methods through a gateway does not take the names of its connection from others.
#[tokio::test]
async fn names_of_a_gateways_connection_do_not_run_out() {
    patience(async {
        let net = Net::mem();
        let behind = net.serve(names()).await;
        let gateway = net.serve(gateway(at(&behind))).await;
        let hostile = client();
        for number in 0..4100 {
            let name = format!("a.B/{number}");
            let answer = ask(&hostile, &gateway, &name).await;
            assert!(answer.is_ok(), "{answer:?}");
        }
        let answer = ask(&client(), &gateway, "another.One/method").await;
        assert_eq!(answer.as_deref(), Ok(&b"another.One/method in raw"[..]));
    })
    .await;
}
