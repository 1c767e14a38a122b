//! What travels with a request beside its arguments, and what of it comes to those that it leads to.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use wallaby::intercept::{
    Admission, Exchange, Exit, Hold, HoldLimits, Incoming, Intent, SendFuture,
};
use wallaby::{
    Address, CallError, Code, DurableId, Endpoint, Failure, Many, One, Request, RequestId, Service,
};
use wallaby_proto::connection::Event;
use wallaby_proto::wire::Message;

use crate::common::raw::{Raw, hello};
use crate::common::{Net, at, service, sorted, work};

over_every_transport!(
    a_continuation_is_of_one_request_only,
    a_delegation_has_metadata_of_its_own,
    a_delegation_tells_its_place,
    a_delegation_may_have_less_time,
    metadata_may_be_bytes,
    names_of_work_outlive_who_asks_for_it,
);

/// Says what it was given along, and delegates, calls and forwards to the next.
fn tells(next: Option<Address>) -> Service {
    service().method(&work::MANY, move |request: Request<Many<_>>, (name,)| {
        let next = next.clone();
        async move {
            let given = request.continuation();
            let given = given.as_deref().map(String::from_utf8_lossy);
            let told = format!("{name}: {given:?}");
            let Some(next) = next else {
                return Ok(request.respond(told).await?);
            };
            request.reply(told).await?;
            request
                .delegate(&next, work::many("delegated".into()))
                .await?;
            let mut called = work::within(request.call().at(&next)).many("called".into());
            while let Some(answer) = called.next().await {
                request.reply(answer?).await?;
            }
            Ok(request
                .forward(&next, work::many("forwarded".into()))
                .await?)
        }
    })
}

async fn a_continuation_is_of_one_request_only(net: Net) {
    let leaf = net.serve(tells(None)).await;
    let root = net.serve(tells(Some(at(&leaf)))).await;
    let client = net.endpoint().await;
    let client = client.caller().at(at(&root)).continuation("the rest");
    let mut call = client.call(&work::MANY, ("root".into(),));
    let (answers, statuses) = sorted(&mut call).await;
    assert!(statuses.is_empty(), "{statuses:?}");
    let expected = [
        "called: None",
        "delegated: None",
        "forwarded: None",
        "root: Some(\"the rest\")",
    ];
    assert_eq!(answers, expected);
}

#[tokio::test]
async fn each_initial_request_has_the_continuation_of_its_call() {
    let net = Net::tcp();
    let server = net.serve(tells(None)).await;
    let client = net.endpoint().await;
    let mut call = client.caller().continuation("rest").begin();
    for name in [b"\x01a", b"\x01b"] {
        let payload = Bytes::from_static(name); // postcard's form of the text
        let sent = call.send(at(&server), work::MANY.definition(), payload);
        sent.await.expect("there is a server");
    }
    call.close();
    let mut answers = Vec::new();
    while let Some(answer) = call.next().await {
        let payload = answer.expect("an answer").payload;
        answers.push(String::from_utf8_lossy(&payload[1..]).into_owned());
    }
    answers.sort();
    assert_eq!(answers, ["a: Some(\"rest\")", "b: Some(\"rest\")"]);
}

#[tokio::test]
async fn a_continuation_has_a_limit() {
    let net = Net::tcp();
    let length = service().method(
        &work::ONE,
        |request: Request<One<_>>, (_,): (String,)| async move {
            let length = request.continuation().map_or(0, |bytes| bytes.len());
            Ok(request.respond(length.to_string()).await?)
        },
    );
    let server = net.serve(length).await;
    let client = net.endpoint().await;
    let ask = |length: usize| {
        let client = client.caller().at(at(&server));
        let client = client.continuation(vec![7; length]);
        async move { client.call(&work::ONE, (String::new(),)).await }
    };
    assert_eq!(ask(16_384).await, Ok("16384".into()));
    let Err(CallError::Failed(error @ Failure::Continuation(_))) = ask(16_385).await else {
        panic!("it is too long");
    };
    assert_eq!(error.code(), Code::ResourceExhausted);
    let text = "the call was not made: a continuation of 16385 bytes: at most 16384 are allowed";
    assert!(error.to_string().contains(text), "{error}");
}

/// Metadata as text, in the order of their keys.
fn told<A, C>(request: &Request<A, C>) -> String {
    let metadata = request.metadata();
    let mut pairs: Vec<_> = metadata
        .iter()
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    pairs.sort();
    pairs.join(" ")
}

/// Says its place and its metadata.
fn says() -> Service {
    service().method(
        &work::MANY,
        |request: Request<Many<_>>, (name,): (String,)| async move {
            let told = format!("{name} at {}: {}", request.id(), told(&request));
            Ok(request.respond(told).await?)
        },
    )
}

async fn a_delegation_has_metadata_of_its_own(net: Net) {
    let leaf = net.serve(says()).await;
    let next = at(&leaf);
    let root = service().method(&work::MANY, move |request: Request<Many<String>>, (_,)| {
        let next = next.clone();
        async move {
            let own = request.delegate(&next, work::many("own".into()));
            own.metadata("a", "changed").without("b").await?;
            let plain = request.delegate(&next, work::many("plain".into()));
            plain.await?;
            let none = request.delegate(&next, work::many("none".into()));
            none.without("a").without("b").await?;
            let last = request.forward(&next, work::many("last".into()));
            Ok(last.metadata("c", "added").await?)
        }
    });
    let root = net.serve(root).await;
    let client = net.endpoint().await;
    let work = work::at(&client, at(&root))
        .metadata("a", "1")
        .metadata("b", "2");
    let (answers, statuses) = sorted(&mut work.many(String::new())).await;
    assert!(statuses.is_empty(), "{statuses:?}");
    let expected = [
        "last at 0.3: a=1 b=2 c=added",
        "none at 0.2: ",
        "own at 0.0: a=changed",
        "plain at 0.1: a=1 b=2",
    ];
    assert_eq!(answers, expected);
}

/// Each hop is the parent of the next one's span, by the metadata of the W3C trace context.
#[tokio::test]
async fn each_hop_has_a_span_of_its_own() {
    let net = Net::tcp();
    let mut next: Option<Address> = None;
    let mut servers = Vec::new();
    for span in ["c", "b", "a"] {
        let further = next.clone();
        let hop = service().method(&work::MANY, move |request: Request<Many<_>>, (_,)| {
            let further = further.clone();
            async move {
                let parent = request.metadata().get("traceparent").expect("a parent");
                request.reply(format!("{span} of {parent}")).await?;
                let Some(further) = further else {
                    return Ok(());
                };
                let onward = request.forward(further, work::many(String::new()));
                Ok(onward.metadata("traceparent", span).await?)
            }
        });
        let server = net.serve(hop).await;
        next = Some(at(&server));
        servers.push(server);
    }
    let client = net.endpoint().await;
    let first = next.expect("three servers");
    let work = work::at(&client, first).metadata("traceparent", "client");
    let (answers, _) = sorted(&mut work.many(String::new())).await;
    assert_eq!(answers, ["a of client", "b of a", "c of b"]);
}

#[tokio::test]
async fn what_cannot_travel_is_refused_and_the_handler_goes_on() {
    let net = Net::tcp();
    let leaf = net.serve(says()).await;
    let next = at(&leaf);
    let root = service().method(&work::MANY, move |request: Request<Many<String>>, (_,)| {
        let next = next.clone();
        async move {
            let delegate = || request.delegate(&next, work::many("x".into()));
            let long = "x".repeat(8192);
            for refused in [
                delegate().metadata("key", &long).await,
                delegate().metadata("", "no key").await,
                delegate().continuation(vec![0; 16_385]).await,
                delegate()
                    .continuation(vec![0; 16_385])
                    .placed()
                    .await
                    .map(drop),
            ] {
                request
                    .reply(refused.expect_err("refused").to_string())
                    .await?;
            }
            Ok(delegate().await?)
        }
    });
    let root = net.serve(root).await;
    let client = net.endpoint().await;
    let mut call = work::at(&client, at(&root)).many(String::new());
    let (answers, statuses) = sorted(&mut call).await;
    assert!(statuses.is_empty(), "{statuses:?}");
    let continuation = "not delegated: a continuation of 16385 bytes: at most 16384 are allowed";
    let expected = [
        continuation,
        continuation,
        "not delegated: a metadata key is empty",
        "not delegated: metadata of 8195 bytes: at most 8192 are allowed, and no setting raises that: what is larger \
         goes into the arguments",
        "x at 0+1: ",
    ];
    assert_eq!(answers, expected);
}

/// Who delegates learns the place that its delegation has, which is what its handler sees.
async fn a_delegation_tells_its_place(net: Net) {
    let leaf = net.serve(says()).await;
    let next = at(&leaf);
    let (places, mut placed) = tokio::sync::mpsc::unbounded_channel();
    let root = service().method(
        &work::MANY,
        move |request: Request<Many<String>>, (how,)| {
            let (next, places) = (next.clone(), places.clone());
            async move {
                let tell = |place: RequestId| places.send(place.to_string()).expect("it listens");
                if how == "alone" {
                    let onward = request.forward(&next, work::many(String::new()));
                    tell(onward.placed().await?);
                    return Ok(());
                }
                request.reply("here".into()).await?;
                for _ in 0..2 {
                    let onward = request.delegate(&next, work::many(String::new()));
                    tell(onward.placed().await?);
                }
                if how == "more" {
                    let onward = request.forward(&next, work::many(String::new()));
                    tell(onward.placed().await?);
                }
                Ok(())
            }
        },
    );
    let root = net.serve(root).await;
    let client = net.endpoint().await;
    let work = work::at(&client, at(&root));
    for (how, expected) in [
        ("alone", &["0+1"][..]),
        ("some", &["0.0", "0.1"]),
        ("more", &["0.0", "0.1", "0.2"]),
    ] {
        let (answers, statuses) = sorted(&mut work.many(how.into())).await;
        assert!(statuses.is_empty(), "{statuses:?}");
        for place in expected {
            assert_eq!(placed.recv().await.as_deref(), Some(*place));
            let told = format!(" at {place}: ");
            assert!(answers.contains(&told), "{answers:?} without {told:?}");
        }
    }
}

/// A delegation may have less time than its request, whose other work goes on.
async fn a_delegation_may_have_less_time(net: Net) {
    let hangs = service().method(
        &work::MANY,
        |request: Request<Many<String>>, (_,): (String,)| async move {
            request.cancelled().await;
            Ok(())
        },
    );
    let (hangs, leaf) = (net.serve(hangs).await, net.serve(says()).await);
    let (slow, quick) = (at(&hangs), at(&leaf));
    let root = service().method(&work::MANY, move |request: Request<Many<String>>, (_,)| {
        let (slow, quick) = (slow.clone(), quick.clone());
        async move {
            let short = request.delegate(&slow, work::many(String::new()));
            short.deadline(Duration::from_millis(20)).await?;
            let none = request.delegate(&slow, work::many(String::new()));
            none.deadline(Duration::ZERO).await?;
            Ok(request.forward(&quick, work::many("done".into())).await?)
        }
    });
    let root = net.serve(root).await;
    let client = net.endpoint().await;
    let mut call = work::at(&client, at(&root)).many(String::new());
    let (answers, statuses) = sorted(&mut call).await;
    assert_eq!(answers, ["done at 0.2: "]);
    let codes: Vec<Code> = statuses.iter().map(wallaby::Status::code).collect();
    assert_eq!(codes, [Code::DeadlineExceeded; 2], "{statuses:?}");
    assert!(
        statuses
            .iter()
            .all(|status| status.server() == Some(&at(&hangs)))
    );
}

#[tokio::test]
async fn a_delegation_never_has_more_time_than_its_request() {
    let net = Net::tcp();
    let leaf = service().method(
        &work::ONE,
        |request: Request<One<_>>, (_,): (String,)| async move {
            let left = request.remaining().as_secs();
            Ok(request.respond(left.to_string()).await?)
        },
    );
    let leaf = net.serve(leaf).await;
    let next = at(&leaf);
    let root = service().method(&work::ONE, move |request: Request<One<String>>, (_,)| {
        let next = next.clone();
        async move {
            let onward = request.forward(&next, work::one(String::new()));
            Ok(onward.deadline(Duration::from_secs(3600)).await?)
        }
    });
    let root = net.serve(root).await;
    let client = net.endpoint().await;
    let work = work::at(&client, at(&root)).deadline(Duration::from_secs(100));
    let left: u64 = work
        .one(String::new())
        .await
        .expect("an answer")
        .parse()
        .expect("seconds");
    assert!((50..=100).contains(&left), "{left} s");
}

/// Of a call that is not traced, what a traced delegation leads to tells its timings all the same.
#[tokio::test]
async fn a_delegation_may_be_traced_alone() {
    let net = Net::tcp();
    let leaf = net.serve(says()).await;
    let next = at(&leaf);
    let root = service().method(&work::MANY, move |request: Request<Many<String>>, (_,)| {
        let next = next.clone();
        async move {
            request.delegate(&next, work::many("plain".into())).await?;
            let traced = request.delegate(&next, work::many("traced".into()));
            Ok(traced.traced().await?)
        }
    });
    let root = net.serve(root).await;
    let client = net.endpoint().await;
    let mut call = work::at(&client, at(&root)).many(String::new());
    let (answers, statuses) = sorted(&mut call).await;
    assert_eq!((answers.len(), statuses.len()), (2, 0));
    let trace = call.trace();
    let timed = trace.hops.iter().filter(|hop| hop.timing.is_some());
    let timed: Vec<&str> = timed.map(|hop| &*hop.path).collect();
    assert_eq!(timed, ["0.1"]);
}

async fn metadata_may_be_bytes(net: Net) {
    let leaf = service().method(
        &work::ONE,
        |request: Request<One<_>>, (_,): (String,)| async move {
            let metadata = request.metadata();
            let bytes = metadata.iter_bin();
            let bytes: Vec<_> = bytes
                .map(|(key, value)| format!("{key}={value:?}"))
                .collect();
            let told = format!("{} {}", bytes.join(" "), told(&request));
            Ok(request.respond(told).await?)
        },
    );
    let leaf = net.serve(leaf).await;
    let next = at(&leaf);
    let root = service().method(&work::ONE, move |request: Request<One<_>>, (how,)| {
        let next = next.clone();
        async move {
            let onward = request.forward(&next, work::one(String::new()));
            let onward = match &*how {
                "changed" => onward.metadata_bin("a", vec![9]).without("b"),
                _ => onward,
            };
            Ok(onward.await?)
        }
    });
    let root = net.serve(root).await;
    let client = net.endpoint().await;
    let client = client.caller().at(at(&root)).metadata("a", "text");
    let client = client.metadata_bin("a", vec![0, 255]).metadata_bin("b", "");
    let work = work::within(client);
    let plain = work.one(String::new()).await;
    assert_eq!(plain, Ok(r#"a=b"\0\xff" b=b"" a=text"#.into()));
    let changed = work.one("changed".into()).await;
    assert_eq!(changed, Ok(r#"a=b"\t" a=text"#.into()));
}

/// A server of an earlier version; how many requests came when its peer has left.
async fn older_server() -> (Address, tokio::task::JoinHandle<usize>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
        .await
        .expect("a port");
    let server = Address::Tcp(listener.local_addr().expect("it is bound"));
    let serving = tokio::spawn(async move {
        let mut peer = Raw::accept(&listener, hello(77)).await;
        let mut requests = 0;
        while let Some(event) = peer.event().await {
            requests += usize::from(matches!(event, Event::Message(Message::Request(_))));
        }
        requests
    });
    (server, serving)
}

#[tokio::test]
async fn what_an_older_server_does_not_understand_is_not_sent_to_it() {
    let net = Net::tcp();
    let client = net.endpoint().await;
    let (older, seen) = older_server().await;
    let to = client.caller().at(older.clone());
    for (client, what) in [
        (
            to.clone().metadata_bin("key", "value"),
            "metadata whose values are bytes",
        ),
        (to.durable(DurableId::new(1, 2)), "a durable id"),
    ] {
        // Before there is a connection, and over it.
        for _ in 0..2 {
            let asked = client.call(&work::ONE, (String::new(),)).await;
            let Err(CallError::Failed(failure)) = asked else {
                panic!("{asked:?}");
            };
            assert_eq!(
                (failure.code(), failure.server()),
                (Code::Mismatch, Some(&older))
            );
            let text = format!("{older} does not understand {what}");
            assert!(failure.to_string().contains(&text), "{failure}");
        }
    }
    drop(client);
    assert_eq!(seen.await.ok(), Some(0));
}

#[tokio::test]
async fn what_an_older_server_does_not_understand_is_not_handed_on_to_it() {
    let net = Net::tcp();
    let (older, seen) = older_server().await;
    let next = older.clone();
    let root = service().method(&work::MANY, move |request: Request<Many<String>>, (_,)| {
        let next = next.clone();
        async move {
            request.reply("before".into()).await?;
            Ok(request.forward(&next, work::many(String::new())).await?)
        }
    });
    let root = net.serve(root).await;
    let client = net.endpoint().await;
    let to = client.caller().at(at(&root));
    for client in [
        to.clone().metadata_bin("key", "value"),
        to.durable(DurableId::new(1, 2)),
    ] {
        let mut call = client.call(&work::MANY, (String::new(),));
        let (answers, statuses) = sorted(&mut call).await;
        assert_eq!(answers, ["before"]);
        let [status] = &statuses[..] else {
            panic!("{statuses:?}");
        };
        assert_eq!(
            (status.code(), status.server()),
            (Code::Mismatch, Some(&older))
        );
        assert!(status.message().contains("does not understand"), "{status}");
    }
    drop((client, root));
    assert_eq!(seen.await.ok(), Some(0));
}

/// Says the name under which it was asked.
fn named() -> Service {
    service().method(
        &work::MANY,
        |request: Request<Many<_>>, (how,): (String,)| async move {
            let id = request.durable_id().expect("it has a name");
            let lease = (id.lease, id.acknowledged);
            assert_eq!(lease, (7, 3), "it travels down the tree");
            let told = format!("{how} {:?}", id.key());
            Ok(request.respond(told).await?)
        },
    )
}

/// Whoever asks again gives the same names to all that its request leads to, whenever handlers yield.
async fn names_of_work_outlive_who_asks_for_it(net: Net) {
    let leaf = net.serve(named()).await;
    let next = at(&leaf);
    let root = service().method(
        &work::MANY,
        move |request: Request<Many<_>>, (how,): (String,)| {
            let next = next.clone();
            async move {
                let pause = || async {
                    if how == "slow" {
                        tokio::task::yield_now().await;
                    }
                };
                let id = request.durable_id().expect("it has a name");
                request.reply(format!("root {:?}", id.key())).await?;
                pause().await;
                let onward = request.delegate(&next, work::many("first".into()));
                onward.await?;
                pause().await;
                let mut called = work::within(request.call().at(&next)).many("called".into());
                while let Some(answer) = called.next().await {
                    request.reply(answer?).await?;
                }
                pause().await;
                let onward = request.delegate(&next, work::many("last".into()));
                onward.await?;
                pause().await;
                Ok(())
            }
        },
    );
    let root = net.serve(root).await;
    let mut id = DurableId::new(1, 2);
    (id.lease, id.acknowledged) = (7, 3);
    let mut told = Vec::new();
    for how in ["quick", "slow"] {
        let life = net.endpoint().await;
        let client = life.caller().at(at(&root)).durable(id);
        let mut call = client.call(&work::MANY, (how.into(),));
        let (answers, statuses) = sorted(&mut call).await;
        assert!(statuses.is_empty(), "{statuses:?}");
        told.push(answers);
    }
    assert_eq!(told[0], told[1]);
    let keys = told[0]
        .iter()
        .map(|told| told.split_once(' ').expect("a name").1);
    assert_eq!(keys.collect::<BTreeSet<_>>().len(), 4, "{told:?}");
    let root = format!("root {:?}", id.key());
    assert!(told[0].contains(&root), "{told:?}");
}

/// Delegates, calls, and delegates again; all say their names.
fn names_what_it_leads_to(next: Address) -> Service {
    service().method(&work::MANY, move |request: Request<Many<_>>, (_,)| {
        let next = next.clone();
        async move {
            let onward = |name: &str| request.delegate(&next, work::many(name.into()));
            onward("first").await?;
            let mut called = work::within(request.call().at(&next)).many("called".into());
            while let Some(answer) = called.next().await {
                request.reply(answer?).await?;
            }
            Ok(onward("last").await?)
        }
    })
}

/// Passes on what is sent, behind a message of its own and a call.
struct Meddling(Address);

impl Exchange for Meddling {
    fn sending(&self, intent: Intent, exit: &Exit) -> SendFuture {
        let payload = Bytes::from_static(b"\x06meddle"); // postcard's form of the text
        let own = exit.delegate(&self.0, work::MANY.definition(), payload);
        let called = exit.call().at(&self.0);
        let exit = exit.clone();
        Box::pin(async move {
            let mut called = work::within(called).many("called".into());
            while let Some(answer) = called.next().await {
                answer.expect("an answer");
            }
            own.await?;
            exit.send(intent).await
        })
    }
}

/// Asks somebody before each request runs.
fn asks(next: Address) -> impl Fn(&Incoming) -> Admission {
    move |incoming| {
        let asked = incoming.call().at(&next);
        Admission::wait(async move {
            let mut asked = work::within(asked).many("asked".into());
            while let Some(answer) = asked.next().await {
                answer.expect("an answer");
            }
            Admission::Run
        })
    }
}

/// What a handler leads to has the names that follow from the handler alone, and a record of it has them, too.
#[tokio::test]
async fn names_do_not_depend_on_who_is_around_a_request() {
    let net = Net::tcp();
    let leaf = net.serve(named()).await;
    let next = at(&leaf);
    let mut id = DurableId::new(1, 2);
    (id.lease, id.acknowledged) = (7, 3);
    let told = |name: &str, index| format!("{name} {:?}", id.child(index).key());
    let whole = [told("called", 1), told("first", 0), told("last", 2)];
    let record = Arc::new(Mutex::new(Vec::new()));
    let recording = {
        let record = Arc::clone(&record);
        move |_: &Incoming| {
            let record = Arc::clone(&record);
            let limits = HoldLimits::default();
            Admission::around(Hold::new(limits, move |sent| async move {
                *record.lock().expect("nobody panics") = sent.to_vec();
                Ok(())
            }))
        }
    };
    let replaying = {
        let record = Arc::clone(&record);
        move |_: &Incoming| Admission::Replay(record.lock().expect("nobody panics").clone())
    };
    let meddling = {
        let next = next.clone();
        move |_: &Incoming| Admission::around(Meddling(next.clone()))
    };
    let endpoint = || Endpoint::builder().serve(names_what_it_leads_to(next.clone()));
    for server in [
        endpoint(),
        endpoint().interceptor(meddling),
        endpoint().interceptor(asks(next.clone())),
        endpoint().interceptor(recording),
        endpoint()
            .interceptor(replaying)
            .interceptor(asks(next.clone())),
    ] {
        let server = net.bind(server).await;
        let client = net.endpoint().await;
        let client = client.caller().at(at(&server)).durable(id);
        let mut call = client.call(&work::MANY, (String::new(),));
        let (mut answers, statuses) = sorted(&mut call).await;
        assert!(statuses.is_empty(), "{statuses:?}");
        answers.retain(|answer| !answer.starts_with("meddle"));
        assert_eq!(answers, whole);
    }
}

#[tokio::test]
async fn requests_of_a_call_have_names_of_their_own_and_attempts_one() {
    let net = Net::tcp();
    let (first, second) = (net.serve(named()).await, net.serve(named()).await);
    let client = net.endpoint().await;
    let mut id = DurableId::new(1, 2);
    (id.lease, id.acknowledged) = (7, 3);
    let caller = client.caller().durable(id);
    let mut names = BTreeSet::new();
    let mut call = caller.begin();
    for _ in 0..2 {
        let payload = Bytes::from_static(b"\x01x"); // postcard's form of "x"
        let sent = call.send(at(&first), work::MANY.definition(), payload);
        sent.await.expect("there is a server");
    }
    call.close();
    while let Some(answer) = call.next().await {
        names.insert(answer.expect("an answer").payload);
    }
    assert_eq!(names.len(), 2);
    let servers = [at(&first), at(&second)];
    let mut told = BTreeSet::new();
    let mut multicast = caller.multicast(servers, work::many("x".into()));
    while let Some(delivery) = multicast.next().await {
        told.insert(delivery.answer.expect("an answer"));
    }
    assert_eq!(told.len(), 2);

    let seen = Arc::new(Mutex::new(Vec::new()));
    let names = Arc::clone(&seen);
    let fails = service().method(&work::ONE, move |request: Request<One<String>>, (_,)| {
        let names = Arc::clone(&names);
        async move {
            let mut names = names.lock().expect("nobody panics");
            names.push(request.durable_id().expect("it has a name").key());
            Err(wallaby::Status::unavailable("not now"))
        }
    });
    let fails = net.serve(fails).await;
    let soon = Duration::from_millis(1);
    let retry = wallaby::Retry::idempotent(3)
        .backoff(soon, soon)
        .on(Code::Unavailable);
    let next = at(&fails);
    // On behalf of a request, whose next call has another name.
    let root = service().method(&work::ONE, move |request: Request<One<String>>, (_,)| {
        let (next, retry) = (next.clone(), retry.clone());
        async move {
            let client = request.call().at(&next).retry(retry);
            for _ in 0..2 {
                let failed = client.call(&work::ONE, (String::new(),)).await;
                assert!(failed.is_err());
            }
            Ok(request.respond(String::new()).await?)
        }
    });
    let root = net.serve(root).await;
    let client = client.caller().at(at(&root)).durable(id);
    client
        .call(&work::ONE, (String::new(),))
        .await
        .expect("an answer");
    let seen = seen.lock().expect("nobody panics");
    let (one, other) = (id.child(0).key(), id.child(1).key());
    assert_eq!(*seen, [one, one, one, other, other, other]);
}
