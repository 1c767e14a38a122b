//! Sealed mode: servers that take only what their cluster has sealed.

use std::time::Duration;

use bytes::Bytes;

use crate::common::raw::{Raw, hello, request, response};
use crate::common::{Net, at, patience, service, sorted, status, until, work};
use tokio::net::TcpListener;
use wallaby::{
    Address, BindError, Budgets, Builder, CallId, Client, ClusterKey, Code, Endpoint, Many, NodeId,
    One, Request, Service,
};
use wallaby_proto::seal::{SealError, verify};
use wallaby_proto::wire::ReplyTo;

fn key(byte: u8) -> ClusterKey {
    ClusterKey::new(&[byte; 16]).expect("16 bytes")
}

fn with_keys(keys: &[u8]) -> Builder {
    keys.iter().fold(Endpoint::builder(), |builder, byte| {
        builder.cluster_key(key(*byte))
    })
}

/// Answers, or forwards to the servers named.
fn onward() -> Service {
    service()
        .method(&work::ONE, |request: Request<One<_>>, (what,)| async move {
            Ok(request.respond(what).await?)
        })
        .method(
            &work::MANY,
            |request: Request<Many<_>>, (what,): (String,)| async move {
                match what.split_once(' ') {
                    Some((next, rest)) => {
                        let next: Address = next.parse().expect("an address");
                        request.reply("passed on".to_string()).await?;
                        request.delegate(&next, work::many(rest.into())).await?;
                        request.forward(next, work::many(rest.into())).await?;
                    }
                    None => request.respond(what).await?,
                }
                Ok(())
            },
        )
}

/// Every hop seals anew what it delegates: less time and smaller budgets, for another server.
#[tokio::test]
async fn a_cluster_takes_what_its_members_send_and_delegate() {
    for net in [Net::tcp(), Net::mem(), Net::udp(), Net::unix()] {
        patience(async {
            let sealed = || with_keys(&[1]).require_seals().serve(onward());
            let servers = [
                net.bind(sealed()).await,
                net.bind(sealed()).await,
                net.bind(sealed()).await,
            ];
            let way = format!("{} {} end", at(&servers[1]), at(&servers[2]));
            // One that others can dial, and one that is answered back along the way.
            let listening = net.bind(with_keys(&[1])).await;
            let silent = with_keys(&[1]).bind().await.expect("there is a runtime");
            for client in [listening, silent] {
                let plain = Client::new(&client, at(&servers[0]));
                let stated = plain
                    .clone()
                    .deadline(Duration::from_secs(20))
                    .metadata("key", "value")
                    .budgets(Budgets::default());
                for client in [plain, stated] {
                    let mut call = work::within(client).many(way.clone());
                    let (answers, statuses) = sorted(&mut call).await;
                    assert_eq!(statuses, []);
                    assert_eq!(answers.len(), 1 + 2 + 4);
                }
            }
            let refused = servers
                .iter()
                .map(|server| server.metrics().unsealed_refused);
            assert_eq!(refused.sum::<u64>(), 0);
        })
        .await;
    }
}

/// With what it has of its own, for the server that gets it; the seal that its request came with is worth nothing there.
#[tokio::test]
async fn what_a_hop_delegates_is_sealed_anew() {
    patience(async {
        let net = Net::tcp();
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let next = Address::Tcp(listener.local_addr().expect("it is bound"));
        let hop = service().method(&work::MANY, move |request: Request<Many<_>>, (what,)| {
            let onward = request.forward(&next, work::many(what));
            let onward = onward.metadata("key", "own").without("secret");
            let onward = onward.continuation("rest");
            async move { Ok(onward.await?) }
        });
        let hop = net.bind(with_keys(&[1]).require_seals().serve(hop)).await;
        let client = net.bind(with_keys(&[1])).await;
        let client = Client::new(&client, at(&hop)).metadata("key", "value");
        let client = client.metadata("secret", "none");
        let call = work::within(client).many("work".into());
        let mut server = Raw::accept(&listener, hello(9)).await;
        let came = server.request().await;
        let own = came.options.as_ref().expect("a seal");
        assert_eq!(own.metadata.get("key"), Some("own"));
        assert_eq!(own.continuation.as_deref(), Some(&b"rest"[..]));
        let verdict = |request: &wallaby_proto::wire::Request, node| {
            let (name, node) = (work::MANY.definition().name(), NodeId::new(node));
            verify(&[key(1)], request, name, node.expect("not zero"), None)
        };
        assert_eq!(verdict(&came, 9), Ok(()));
        assert_eq!(verdict(&came, 8), Err(SealError::Wrong));
        let mut changed = came;
        changed.options.get_or_insert_default().continuation = None;
        assert_eq!(verdict(&changed, 9), Err(SealError::Wrong));
        drop(call);
    })
    .await;
}

#[tokio::test]
async fn who_does_not_have_the_key_is_refused_before_the_handler_runs() {
    patience(async {
        let net = Net::tcp();
        let server = net
            .bind(with_keys(&[1]).require_seals().serve(onward()))
            .await;
        for (keys, why) in [(&[][..], "not sealed"), (&[2], "wrong")] {
            let stranger = net.bind(with_keys(keys)).await;
            let refused = status(work::at(&stranger, at(&server)).one("what".into()).await);
            assert_eq!(refused.code(), Code::PermissionDenied);
            assert!(refused.message().contains(why), "{refused}");
            assert_eq!(refused.server(), server.address());
        }
        assert_eq!(server.metrics().unsealed_refused, 2);
        assert_eq!(server.remembered().requests, 0);
    })
    .await;
}

/// A member delegates to a server that requires another key: the initiator gets its status as a part of the call.
#[tokio::test]
async fn a_delegation_that_is_not_sealed_is_a_status() {
    patience(async {
        let net = Net::tcp();
        let open = net.bind(Endpoint::builder().serve(onward())).await;
        let closed = net
            .bind(with_keys(&[1]).require_seals().serve(onward()))
            .await;
        let client = net.bind(with_keys(&[1])).await;
        let way = format!("{} end", at(&closed));
        let mut call = work::at(&client, at(&open)).many(way);
        let (answers, statuses) = sorted(&mut call).await;
        assert_eq!(answers, ["passed on"]);
        assert_eq!(statuses.len(), 2);
        assert!(
            statuses
                .iter()
                .all(|status| status.code() == Code::PermissionDenied)
        );
        // The refusals came the way their requests went: nobody was dialled for them.
        assert_eq!(closed.metrics().connections_opened, 1);
    })
    .await;
}

/// One by one, endpoints get the new key as a second, then as the first, then lose the old one.
#[tokio::test]
async fn keys_are_replaced_while_calls_go_on() {
    patience(async {
        let net = Net::tcp();
        for (client, server) in [
            (&[1][..], &[1, 2][..]),
            (&[2, 1], &[1, 2]),
            (&[1, 2], &[2, 1]),
            (&[2], &[2, 1]),
        ] {
            let server = net
                .bind(with_keys(server).require_seals().serve(onward()))
                .await;
            let client = net.bind(with_keys(client)).await;
            let answer = work::at(&client, at(&server)).one("x".into()).await;
            assert_eq!(answer.expect("a known key"), "x");
        }
    })
    .await;
}

/// Where seals are not required, who decides about a request may ask for one.
#[tokio::test]
async fn a_server_that_takes_all_knows_what_its_cluster_has_sealed() {
    fn telling() -> Service {
        let tell = |request: Request<One<_>>, _: (String,)| async move {
            let sealed = request.is_sealed().to_string();
            Ok(request.respond(sealed).await?)
        };
        service().method(&work::ONE, tell)
    }
    patience(async {
        let net = Net::tcp();
        for (client, server, expected) in [
            (&[1][..], &[1][..], "true"),
            (&[1], &[2, 1], "true"),
            (&[1], &[2], "false"),
            (&[1], &[], "false"),
            (&[], &[1], "false"),
        ] {
            let server = net.bind(with_keys(server).serve(telling())).await;
            let client = net.bind(with_keys(client)).await;
            let answer = work::at(&client, at(&server)).one("x".into()).await;
            assert_eq!(answer, Ok(expected.into()));
            assert_eq!(server.metrics().unsealed_refused, 0);
        }
        // As it was sent, or not at all.
        let server = net.bind(with_keys(&[1]).serve(telling())).await;
        let mut peer = Raw::dial(&at(&server), hello(7)).await;
        for (sequence, changes, expected) in [(1, false, &b"\x04true"[..]), (2, true, b"\x05false")]
        {
            let initiator = NodeId::new(7).expect("not zero");
            let mut sent = request(
                CallId {
                    initiator,
                    sequence,
                },
                b"\x01x",
            );
            key(1).seal(
                &mut sent,
                work::ONE.definition().name(),
                server.node(),
                None,
            );
            if changes {
                sent.options.get_or_insert_default().continuation = Some(Bytes::from_static(b"x"));
            }
            peer.send_request(sent, work::ONE.definition()).await;
            assert_eq!(peer.response().await.payload, expected);
        }
    })
    .await;
}

#[tokio::test]
async fn seals_without_a_key_cannot_be_required() {
    let error = Endpoint::builder().require_seals().bind().await;
    assert!(matches!(error, Err(BindError::NoClusterKey)), "{error:?}");
}

/// An enemy has seen a sealed request. He cannot use it to make servers send answers to somebody else.
#[tokio::test]
async fn a_seal_that_was_seen_directs_nobody_to_strangers() {
    patience(async {
        let net = Net::tcp();
        let server = net
            .bind(with_keys(&[1]).require_seals().serve(onward()))
            .await;
        // A member's request, as an enemy on the way would see it.
        let member = NodeId::new(7).expect("not zero");
        let call = CallId {
            initiator: member,
            sequence: 1,
        };
        let victim = TcpListener::bind("127.0.0.1:0")
            .await
            .expect("a port is free");
        let stranger = Address::Tcp(victim.local_addr().expect("it is bound"));
        let mut seen = request(call, b"\x01x");
        let method = work::ONE.definition().name();
        key(1).seal(&mut seen, method, server.node(), None);

        // To another address, by its handshake or in the request; as another call; to another server.
        let mut as_member = hello(7);
        as_member.address = Some(stranger.clone());
        let mut peer = Raw::dial(&at(&server), as_member).await;
        peer.send_request(seen.clone(), work::ONE.definition())
            .await;
        assert!(peer.response().await.status);

        let mut peer = Raw::dial(&at(&server), hello(8)).await;
        let mut redirected = seen.clone();
        redirected.reply_to = ReplyTo::At(stranger);
        peer.send_request(redirected, work::ONE.definition()).await;
        assert!(peer.response().await.status);
        let mut other = seen.clone();
        other.reply_to = ReplyTo::Relay;
        other.call.sequence = 2;
        peer.send_request(other, work::ONE.definition()).await;
        assert!(peer.response().await.status);
        // With another argument, or a continuation.
        let mut peer = Raw::dial(&at(&server), hello(7)).await;
        let mut changed = seen.clone();
        changed.payload = Bytes::from_static(b"\x01y");
        peer.send_request(changed, work::ONE.definition()).await;
        assert!(peer.response().await.status);
        let mut changed = seen.clone();
        changed.options.get_or_insert_default().continuation = Some(Bytes::from_static(b"x"));
        peer.send_request(changed, work::ONE.definition()).await;
        assert!(peer.response().await.status);
        assert_eq!(server.metrics().unsealed_refused, 5);

        // As it was, from the same life: taken once, and dropped when it is shown again.
        peer.send_request(seen.clone(), work::ONE.definition())
            .await;
        let answer = peer.response().await;
        assert_eq!(answer.payload, response(call, None, b"\x01x").payload);
        let mut again = Raw::dial(&at(&server), hello(7)).await;
        again.send_request(seen, work::ONE.definition()).await;
        until(|| server.metrics().requests_dropped == 1).await;
        assert_eq!(server.metrics().unsealed_refused, 5);
    })
    .await;
}
