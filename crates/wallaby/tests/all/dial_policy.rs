//! Addresses that an endpoint does not dial because others say so.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::common::raw::{Raw, hello, request};
use crate::common::{Net, at, client, failure, patience, service, sorted, until, work};
use tokio::net::TcpListener;
use wallaby::{
    Address, CallId, Client, ConnectError, DialPolicy, Endpoint, Failure, Many, NodeId, One,
    Request, SendError, Service,
};
use wallaby_proto::connection::Event;
use wallaby_proto::wire::{Message, MessageOptions, ReplyTo};

/// Answers, or passes on to the first server named.
fn onward() -> Service {
    service()
        .method(&work::ONE, |request: Request<One<_>>, (what,)| async move {
            Ok(request.respond(what).await?)
        })
        .method(
            &work::MANY,
            |request: Request<Many<_>>, (what,): (String,)| async move {
                let Some((next, rest)) = what.split_once(' ') else {
                    return Ok(request.respond(what).await?);
                };
                let next: Address = next.parse().expect("an address");
                request.reply("passed on".to_string()).await?;
                match request.delegate(&next, work::many(rest.into())).await {
                    Err(SendError::Forbidden { server }) => {
                        assert_eq!(server, next);
                        request.reply("forbidden".into()).await?;
                    }
                    sent => sent?,
                }
                Ok(())
            },
        )
}

/// A server that dials no address that its peers name.
fn closed() -> DialPolicy {
    DialPolicy::default().only_if(|_| false)
}

/// The initiator listens, but the last server may not dial it: answers go back along the way.
async fn answers_go_back_along_the_way(net: Net) {
    let first = net.serve(onward()).await;
    let last = Endpoint::builder().dial_policy(closed()).serve(onward());
    let last = net.bind(last).await;
    let initiator = net.endpoint().await;
    let way = format!("{} end", at(&last));
    let mut call = work::at(&initiator, at(&first)).many(way);
    let (answers, statuses) = sorted(&mut call).await;
    assert_eq!((answers.len(), statuses), (2, vec![]));
    assert!(last.metrics().dials_forbidden >= 1, "counted");
    assert_eq!(first.metrics().relayed, 1);
    let opened = last.metrics().connections_opened;
    assert_eq!(opened, 1, "only the one that was opened to it");
}

/// A handler's delegation is an error for it, and the application's own calls are not restricted.
async fn delegations_are_an_error_for_the_handler(net: Net) {
    let policy = || Endpoint::builder().dial_policy(closed()).serve(onward());
    let (server, other) = (net.bind(policy()).await, net.serve(onward()).await);
    let initiator = net.bind(policy()).await;
    let way = format!("{} end", at(&other));
    let mut call = work::at(&initiator, at(&server)).many(way);
    let (answers, statuses) = sorted(&mut call).await;
    assert_eq!(answers, ["forbidden", "passed on"]);
    assert_eq!(statuses, []);
    assert_eq!(server.metrics().dials_forbidden, 1);
    assert_eq!(other.metrics().connections_opened, 0);
}

/// A handler that calls a server which somebody else has named asks the policy, though its own calls are not restricted.
async fn a_handler_asks_before_it_calls_whom_a_peer_names(net: Net) {
    let asks = |request: Request<One<String>>, (next,): (String,)| async move {
        let next: Address = next.parse().expect("an address");
        let asked = match request.client_named(&next) {
            Ok(next) => next.call(&work::ONE, ("asked".to_owned(),)).await?,
            Err(SendError::Forbidden { .. }) => "forbidden".to_owned(),
            Err(other) => return Err(other.into()),
        };
        Ok(request.respond(asked).await?)
    };
    let other = net.serve(onward()).await;
    let initiator = client();
    for (policy, expected) in [(DialPolicy::default(), "asked"), (closed(), "forbidden")] {
        let server = Endpoint::builder().dial_policy(policy);
        let server = net
            .bind(server.serve(service().method(&work::ONE, asks)))
            .await;
        let said = work::at(&initiator, at(&server)).one(at(&other).to_string());
        assert_eq!(said.await.expect("an answer"), expected);
    }
    assert_eq!(other.metrics().requests_received, 1);
}

over_every_transport!(
    answers_go_back_along_the_way,
    a_handler_asks_before_it_calls_whom_a_peer_names,
    delegations_are_an_error_for_the_handler,
);

/// A stranger wants a server to knock at doors: nobody comes, whatever the stranger says of itself and of the call.
/// Nobody has a transport for it: a handler's delegation there is an error, and so is a call.
#[tokio::test]
async fn a_scheme_without_a_transport_leads_nowhere() {
    let net = Net::tcp();
    let server = net.serve(onward()).await;
    let nowhere: Address = "quic://example.org:443".parse().expect("an address");
    let client = client();
    let expected = ConnectError::NoTransport {
        server: nowhere.clone(),
    };
    let call = work::at(&client, nowhere.clone()).one("x".into()).await;
    match failure(call) {
        Failure::NotSent { error, .. } => assert_eq!(error, expected),
        other => panic!("{other:?}"),
    }
    let mut call = work::at(&client, at(&server)).many(format!("{nowhere} end"));
    let (answers, statuses) = sorted(&mut call).await;
    assert!(answers.is_empty(), "what was held back goes with the error");
    let status = statuses.first().expect("a status");
    assert!(
        status.message().contains("quic://example.org:443"),
        "{status}"
    );
    let mut call = work::at(&client, at(&server)).many("end".into());
    assert_eq!(sorted(&mut call).await.0, ["end"], "the server serves on");
}

#[tokio::test]
async fn a_stranger_makes_nobody_knock_at_doors() {
    patience(async {
        let victim = TcpListener::bind("127.0.0.1:0")
            .await
            .expect("a port is free");
        let door = Address::Tcp(victim.local_addr().expect("it is bound"));
        let knocks = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&knocks);
        let listening = tokio::spawn(async move {
            while victim.accept().await.is_ok() {
                counted.fetch_add(1, Ordering::Relaxed);
            }
        });
        for (policy, forbidden) in [
            (DialPolicy::default().deny("127.0.0.0/8"), true),
            (Ok(DialPolicy::public()), true),
            (DialPolicy::default().allow("10.0.0.0/8"), true),
            (DialPolicy::default().allow("127.0.0.1"), false),
        ] {
            let policy = policy.expect("ranges");
            let server = Net::tcp()
                .bind(Endpoint::builder().dial_policy(policy).serve(onward()))
                .await;
            let mut stranger = Raw::dial(&at(&server), hello(9)).await;
            for sequence in 1..=20 {
                let call = CallId {
                    initiator: NodeId::new(100 + sequence).expect("not zero"),
                    sequence,
                };
                let mut aimed = request(call, b"\x01x");
                aimed.reply_to = ReplyTo::At(door.clone());
                stranger.send_request(aimed, work::ONE.definition()).await;
                if forbidden {
                    // It comes back to who sent the request.
                    let answer = stranger.response().await;
                    assert_eq!((answer.call, answer.status), (call, false));
                }
            }
            if forbidden {
                assert_eq!(server.metrics().dials_forbidden, 20);
                assert_eq!(knocks.load(Ordering::Relaxed), 0);
            } else {
                until(|| knocks.load(Ordering::Relaxed) > 0).await;
                assert_eq!(server.metrics().dials_forbidden, 0);
            }
        }
        listening.abort();
    })
    .await;
}

#[tokio::test]
async fn calls_of_the_application_are_restricted_if_that_is_asked_for() {
    patience(async {
        let net = Net::tcp();
        let server = net.serve(onward()).await;
        let strict = Endpoint::builder()
            .dial_policy(DialPolicy::public().for_calls())
            .bind()
            .await
            .expect("there is a runtime");
        let refused = failure(work::at(&strict, at(&server)).one("x".into()).await);
        let Failure::NotSent { error, .. } = &refused else {
            panic!("another failure: {refused}")
        };
        let server_address = at(&server);
        assert_eq!(
            *error,
            ConnectError::Forbidden {
                server: server_address
            }
        );
        assert_eq!(strict.metrics().dials_forbidden, 1);
        let free = client();
        let answer = Client::new(&free, at(&server));
        assert!(work::within(answer).one("x".into()).await.is_ok());
    })
    .await;
}

/// Also not one that passes a message down a line, whether or not its request may be sent again: that leaves at once, and
/// not with what the handler sends next.
#[tokio::test]
async fn nobody_is_made_to_pass_a_message_on_where_it_may_not_go() {
    patience(async {
        let relay = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let first = Address::Tcp(relay.local_addr().expect("it is bound"));
        let door = Net::tcp().endpoint().await;
        // What a message down a line looks like.
        let initiator = client();
        let line = [first, at(&door)];
        let call = initiator.caller().pipeline(line, work::one("x".into()));
        let mut seen = Raw::accept(&relay, hello(7)).await;
        let mut method = None;
        let head = loop {
            match seen.event().await.expect("a request") {
                Event::Method(_, definition) => method = Some(definition),
                Event::Message(Message::Request(request)) => break request.payload,
                _ => {}
            }
        };
        let method = method.expect("it is named before it is used");
        drop((call, seen));
        initiator.close();
        let closed = Endpoint::builder().dial_policy(closed()).serve(onward());
        let server = Net::tcp().bind(closed).await;
        let mut stranger = Raw::dial(&at(&server), hello(9)).await;
        for (sequence, repeatable) in [(1, false), (2, true)] {
            let call = CallId {
                initiator: NodeId::new(9).expect("not zero"),
                sequence,
            };
            let mut aimed = request(call, b"");
            aimed.payload = head.clone();
            aimed.options = Some(Box::new(MessageOptions {
                repeatable,
                ..MessageOptions::default()
            }));
            stranger.send_request(aimed, &method).await;
            let mut answers = [stranger.response().await, stranger.response().await];
            answers.sort_by_key(|answer| answer.request.path);
            let statuses = answers.map(|answer| answer.status);
            assert_eq!(statuses, [false, true], "{repeatable}");
            assert_eq!(server.metrics().dials_forbidden, sequence);
        }
        assert_eq!(server.metrics().connections_opened, 1, "the stranger's");
    })
    .await;
}
