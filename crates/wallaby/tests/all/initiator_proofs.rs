//! Who is taken for a call's initiator: answers go to who proves to be it, and to nobody else who says so.

use std::time::Duration;

use crate::common::raw::{Raw, hello, request};
use crate::common::{Net, at, client, load, patience, service, until, work};
use crate::hostile_peer::echo;
use wallaby::{CallId, NodeId, One, Request};
use wallaby_proto::Token;
use wallaby_proto::wire::{Message, Ping, ReplyTo};

/// A request of node 99, which does not listen, as a server on the way passes it on.
fn passed_on(sequence: u64) -> wallaby_proto::wire::Request {
    let initiator = NodeId::new(99).expect("not zero");
    let call = CallId {
        initiator,
        sequence,
    };
    wallaby_proto::wire::Request {
        reply_to: ReplyTo::Relay,
        depth: 1,
        ..request(call, &[1, b'x'])
    }
}

/// Whoever says that he is the initiator gets neither answers nor tokens, and is asked to show that he knows one. Who does
/// gets the answers of what comes the same way; not of what comes by others, who may have made up the call whose token that
/// is.
#[tokio::test]
async fn answers_go_to_who_proves_to_be_the_initiator() {
    patience(async {
        let net = Net::tcp();
        let server = echo(&net).await;
        let mut front = Raw::dial(&at(&server), hello(13)).await;
        let mut thief = Raw::dial(&at(&server), hello(99)).await;
        let mut initiator = Raw::dial(&at(&server), hello(99)).await;
        let one = work::ONE.definition();
        front.send_request(passed_on(1), one).await;
        let answer = front.response().await;
        assert_eq!(answer.token, Some(Token::new(4711)));
        for claiming in [&mut thief, &mut initiator] {
            let Message::Pong(pong) = claiming.message().await else {
                panic!("not asked")
            };
            assert_eq!(pong.call, answer.call);
            assert_ne!(pong.token, answer.token, "that would give it away");
            assert_eq!((pong.progress, pong.writing), (None, false));
        }
        // A wrong token proves nothing.
        let shown = |sequence, token| {
            let of = passed_on(sequence);
            Message::Ping(Ping {
                call: of.call,
                token: Token::new(token),
                request: of.id,
                abort: false,
                children_from: 0,
                missing: Vec::new(),
                shows: false,
            })
        };
        thief.send(shown(1, 5)).await;
        let Message::Pong(unknown) = thief.message().await else {
            panic!("not answered")
        };
        assert_eq!(unknown.progress, None);
        // Nor does that of a call that was brought by the thief's friend.
        let mut friend = Raw::dial(&at(&server), hello(14)).await;
        let made_up = wallaby_proto::wire::Request {
            token: Token::new(6),
            ..passed_on(77)
        };
        friend.send_request(made_up, one).await;
        friend.response().await;
        thief.message().await; // it is asked to prove it of that one, too
        initiator.message().await;
        thief.send(shown(77, 6)).await;
        thief.message().await;
        front.send_request(passed_on(2), one).await;
        assert_eq!(
            front.response().await.call.sequence,
            2,
            "still by the front"
        );
        initiator.send(shown(2, 4711)).await;
        let Message::Pong(known) = initiator.message().await else {
            panic!("not answered")
        };
        assert!(known.progress.expect("it is known").finished);
        front.send_request(passed_on(3), one).await;
        assert_eq!(initiator.response().await.call.sequence, 3);
    })
    .await;
}

/// An answer comes back to the server that has sent it, as those before it have forgotten the way. It waits there until the
/// initiator proves which connection is its own.
#[tokio::test]
async fn an_answer_that_comes_back_waits_for_its_initiator() {
    patience(async {
        let net = Net::tcp();
        let server = echo(&net).await;
        let mut front = Raw::dial(&at(&server), hello(13)).await;
        let mut initiator = Raw::dial(&at(&server), hello(99)).await;
        front
            .send_request(passed_on(1), work::ONE.definition())
            .await;
        let mut answer = front.response().await;
        answer.distance = 1;
        let payload = answer.payload.clone();
        for is_known in [false, true] {
            front.send_response(answer.clone()).await;
            if !is_known {
                // It is asked for a proof when the answer leaves, and when it is back.
                initiator.message().await;
                initiator.message().await;
                let of = passed_on(1);
                let shown = Ping {
                    call: of.call,
                    token: of.token,
                    request: of.id,
                    abort: false,
                    children_from: 0,
                    missing: Vec::new(),
                    shows: true,
                };
                initiator.send(Message::Ping(shown)).await;
            }
            assert_eq!(initiator.response().await.payload, payload);
        }
        assert_eq!(server.metrics().undeliverable, 0);
    })
    .await;
}

/// The initiator neither listens nor is known at the second server but by an earlier call. The first answer of that server
/// comes by the one before it, and from then on they come straight.
#[tokio::test]
async fn the_second_answer_to_who_does_not_listen_comes_straight() {
    patience(async {
        let net = Net::tcp();
        let far = echo(&net).await;
        let to = at(&far);
        let near = net
            .serve(
                service().method(&work::ONE, move |request: Request<One<_>>, (what,)| {
                    let to = to.clone();
                    async move { Ok(request.forward(to, work::one(what)).await?) }
                }),
            )
            .await;
        let client = client();
        work::at(&client, at(&far))
            .one("hello".into())
            .await
            .expect("an answer");
        let mut straight = 0;
        while straight < 3 {
            let before = near.metrics().relayed;
            let answer = work::at(&client, at(&near)).one("hop".into()).await;
            assert_eq!(answer.expect("an answer"), "hop");
            // Its proof may be under way still when the second call is made; once it has come, no call needs another.
            match near.metrics().relayed - before {
                0 => straight += 1,
                _ => assert_eq!(straight, 0),
            }
        }
        assert!(near.metrics().relayed > 0, "the first one");
        assert_eq!(client.metrics().forged_dropped, 0);
    })
    .await;
}

/// Four strangers say that they are the initiator, and came before it. The way by which its request came is gone: it is asked to
/// show its token, too.
#[tokio::test]
async fn strangers_that_claim_a_node_first_do_not_keep_it_from_being_asked() {
    patience(async {
        for thieves in [3, 4] {
            let net = Net::tcp();
            let gate = crate::common::Gate::new();
            let pass = gate.clone();
            let serve = service().method(&work::ONE, move |request: Request<One<_>>, (what,)| {
                let pass = pass.clone();
                async move {
                    pass.pass().await;
                    Ok(request.respond(what).await?)
                }
            });
            let server = net.serve(serve).await;
            let mut claiming = Vec::new();
            for _ in 0..thieves {
                claiming.push(Raw::dial(&at(&server), hello(99)).await);
            }
            let mut initiator = Raw::dial(&at(&server), hello(99)).await;
            let mut front = Raw::dial(&at(&server), hello(13)).await;
            front
                .send_request(passed_on(1), work::ONE.definition())
                .await;
            until(|| server.load() == load(1, 0)).await;
            let ended = server.metrics().connections_ended;
            drop(front);
            until(|| server.metrics().connections_ended > ended).await;
            gate.open(1);
            until(|| server.metrics().waited_for_routes == 1).await;
            let asked = tokio::time::timeout(Duration::from_secs(12), initiator.message()).await;
            assert!(
                asked.is_ok(),
                "{thieves} thieves: the initiator is not asked"
            );
        }
    })
    .await;
}
