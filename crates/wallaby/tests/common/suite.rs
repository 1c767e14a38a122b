//! What every transport of streams must be good for, Wallaby's own and those from outside.

use std::sync::Arc;

use bytes::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use wallaby::{
    Address, BindError, Body, Client, ConnectError, Endpoint, Failure, Many, One, Request, Service,
};

use super::{Gate, Net, all, at, failure, heap, service, sorted, until, work};

/// Runs all of this over the transport of a [`Net`].
macro_rules! transport_suite {
    ($name:ident, $net:expr) => {
        transport_suite!(
            $name,
            $net,
            small_messages_cross_several_servers,
            large_messages_travel_both_ways_at_once,
            a_slow_reader_makes_only_its_own_answers_wait,
            bodies_follow_requests,
            what_was_sent_before_the_end_arrives,
            the_end_of_a_server_is_noticed,
            who_is_not_there_is_named,
            an_address_is_taken_by_one_and_free_again,
            many_connect_at_once,
        );
    };
    ($name:ident, $net:expr, $($test:ident),+ $(,)?) => {
        mod $name { use super::*; $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                $crate::common::patience($crate::common::suite::$test($net)).await;
            }
        )+ }
    };
}

const MIB: usize = 1 << 20;

/// Bytes of which each eight say where they are.
fn pattern(size: usize) -> Bytes {
    let mut bytes = Vec::with_capacity(size + 8);
    for word in 0..=(size as u64 / 8) {
        bytes.extend_from_slice(&word.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
    }
    bytes.truncate(size);
    bytes.into()
}

fn echo() -> Service {
    service()
        .method(
            &heap::ONE,
            |request: Request<One<_>, _>, (what,)| async move { Ok(request.respond(what).await?) },
        )
        .method(&work::ONE, |request: Request<One<_>>, (what,)| async move {
            Ok(request.respond(what).await?)
        })
}

/// Answers, and hands the same on.
fn line(next: Option<Address>) -> Service {
    service().method(
        &work::MANY,
        move |request: Request<Many<_>>, (what,): (String,)| {
            let next = next.clone();
            async move {
                request.reply(format!("{what} here")).await?;
                if let Some(next) = next {
                    request.forward(next, work::many(what + ".")).await?;
                }
                Ok(())
            }
        },
    )
}

pub(crate) async fn small_messages_cross_several_servers(net: Net) {
    let mut servers: Vec<Endpoint> = Vec::new();
    for _ in 0..3 {
        let next = servers.last().map(at);
        servers.push(net.serve(line(next)).await);
    }
    let first = at(&servers[2]);
    for client in [net.client().await, net.endpoint().await] {
        for round in 0..50 {
            let mut call = work::at(&client, &first).many(round.to_string());
            let (answers, statuses) = sorted(&mut call).await;
            let expected = ["", ".", ".."].map(|dots| format!("{round}{dots} here"));
            assert_eq!((answers, statuses), (expected.to_vec(), vec![]));
        }
    }
}

pub(crate) async fn large_messages_travel_both_ways_at_once(net: Net) {
    let server = net.serve(echo()).await;
    let client = net.client().await;
    let heap = heap::at(&client, at(&server));
    let sizes = [0, 1, 16_384, 65_535, 65_536, 65_537, MIB, 3 * MIB, 3 * MIB];
    let calls = sizes.map(|size| (pattern(size), heap.one(pattern(size))));
    for (sent, call) in calls {
        let answer = call.await.expect("an answer");
        assert!(
            answer == sent,
            "{} bytes came back as they were",
            sent.len()
        );
    }
}

pub(crate) async fn a_slow_reader_makes_only_its_own_answers_wait(net: Net) {
    const ANSWERS: usize = 80;
    let slow = service().method(
        &heap::MANY,
        |request: Request<Many<Bytes>, _>, (_,)| async move {
            for _ in 0..ANSWERS {
                request.reply(pattern(100_000)).await?;
            }
            Ok(())
        },
    );
    let server = net.serve(echo()).await;
    server.serve(slow).expect("no other has its name");
    let client = net.client().await;
    let mut call = heap::at(&client, at(&server)).many(Bytes::new());
    let quick = work::at(&client, at(&server));
    for round in 0..20 {
        let answer = quick.one(round.to_string()).await.expect("an answer");
        assert_eq!(answer, round.to_string());
        let item = call.next().await.expect("more to come");
        assert!(item.expect("an answer") == pattern(100_000));
    }
    assert_eq!(all(&mut call).await.len(), ANSWERS - 20);
}

pub(crate) async fn bodies_follow_requests(net: Net) {
    let count = service().raw(
        Arc::clone(heap::ONE.definition()),
        |request: wallaby::RawRequest| async move {
            let mut body = request.take_body().expect("a body follows");
            let mut whole = Vec::new();
            let read = body.read_to_end(&mut whole).await;
            let same = read.is_ok() && whole == pattern(5 * MIB);
            Ok(request.respond(vec![u8::from(same)].into()).await?)
        },
    );
    let server = net.serve(count).await;
    let client = net.client().await;
    let content = pattern(5 * MIB);
    let (mut writer, reader) = tokio::io::duplex(10_000);
    let writing = tokio::spawn(async move { writer.write_all(&content).await });
    let body = Body::from_read(reader);
    let to = Client::new(&client, at(&server));
    let answer = to.call_with_body(&heap::ONE, (Bytes::new(),), body);
    assert_eq!(answer.await.expect("an answer"), [1][..]);
    writing.await.expect("no panic").expect("all was read");
}

pub(crate) async fn what_was_sent_before_the_end_arrives(net: Net) {
    let last = service().method(
        &heap::MANY,
        |request: Request<Many<Bytes>, _>, (_,)| async move {
            for _ in 0..8 {
                request.reply(pattern(50_000)).await?;
            }
            Ok(())
        },
    );
    let server = net.serve(last).await;
    let client = net.client().await;
    let mut call = heap::at(&client, at(&server)).many(Bytes::new());
    assert!(call.next().await.expect("an answer").is_ok());
    server
        .drain(std::time::Duration::from_secs(20))
        .await
        .expect("all is answered");
    assert_eq!(all(&mut call).await.len(), 7);
}

pub(crate) async fn the_end_of_a_server_is_noticed(net: Net) {
    let gate = Gate::new();
    let entered = gate.clone();
    let mute = service().method(&work::ONE, move |request: Request<One<String>>, (_,)| {
        let entered = entered.clone();
        async move {
            entered.open(1);
            request.cancelled().await;
            Ok(())
        }
    });
    let server = net.serve(mute).await;
    let client = net.client().await;
    let call = work::at(&client, at(&server)).one(String::new());
    let ends = async {
        gate.pass().await;
        server.kill();
    };
    let (outcome, ()) = tokio::join!(call, ends);
    assert!(matches!(failure(outcome), Failure::Lost(_)));
    until(|| client.metrics().connections_ended == 1).await;
}

pub(crate) async fn who_is_not_there_is_named(net: Net) {
    let gone = net.endpoint().await;
    let address = at(&gone);
    gone.close();
    until_free(&net, &address).await.close();
    let client = net.client().await;
    let error = client.connect(&address).await.expect_err("nobody is there");
    assert!(
        matches!(&error, ConnectError::Refused { server, .. } if *server == address),
        "{error:?}"
    );
}

pub(crate) async fn an_address_is_taken_by_one_and_free_again(net: Net) {
    let first = net.serve(echo()).await;
    let address = at(&first);
    let second = net.with(Endpoint::builder()).listen(&address.to_string());
    let error = second.bind().await.expect_err("it is taken");
    assert!(matches!(error, BindError::Listen { .. }), "{error}");
    first.close();
    let again = until_free(&net, &address).await;
    again.serve(echo()).expect("no other has its name");
    let client = net.client().await;
    let answer = work::at(&client, &address).one("again".into()).await;
    assert_eq!(answer.expect("an answer"), "again");
}

/// An endpoint at an address that is being given up.
async fn until_free(net: &Net, address: &Address) -> Endpoint {
    loop {
        let builder = net.with(Endpoint::builder()).listen(&address.to_string());
        match builder.bind().await {
            Ok(endpoint) => return endpoint,
            Err(BindError::Listen { .. }) => tokio::task::yield_now().await,
            Err(other) => panic!("{other}"),
        }
    }
}

pub(crate) async fn many_connect_at_once(net: Net) {
    let server = net.serve(echo()).await;
    let address = at(&server);
    let mut calls = tokio::task::JoinSet::new();
    for number in 0..20 {
        let (client, address) = (net.client().await, address.clone());
        calls.spawn(async move {
            let answer = work::at(&client, address).one(number.to_string()).await;
            assert_eq!(answer.expect("an answer"), number.to_string());
        });
    }
    while let Some(call) = calls.join_next().await {
        call.expect("no panic");
    }
    assert_eq!(server.metrics().connections_opened, 20);
}
