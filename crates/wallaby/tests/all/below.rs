//! Servers below the first hop that end before the initiator has ever reached them: found out as soon as those that it
//! has, and not taken for dead where only others can reach them.

use std::time::Duration;

use crate::common::raw::{Raw, hello, response};
use crate::common::{Net, at, failure, load, patience, service, until, work};
use tokio::net::TcpListener;
use wallaby::{
    Address, Call, Endpoint, Failure, FailureKind, NodeId, One, Outcome, Request, RequestId,
    Service,
};
use wallaby_proto::wire::{Child, Message, Ping, Pong, Progress};

over_every_transport!(
    a_server_that_was_never_reached_is_gone_when_nobody_listens_there,
    a_server_that_was_never_reached_is_gone_when_another_life_is_there,
    a_server_that_was_never_reached_may_have_handed_its_work_on,
);

const PERIOD: Duration = Duration::from_millis(100);

/// No test waits for it: a call that fails by it hangs.
const TIMEOUT: Duration = Duration::from_secs(600);

/// Never answers.
fn mute() -> Service {
    service().method(&work::ONE, |request: Request<One<_>>, (_,)| async move {
        request.cancelled().await;
        Ok(())
    })
}

/// Hands everything on to another server.
fn forwarding(next: Address) -> Service {
    service().method(&work::ONE, move |request: Request<One<_>>, (what,)| {
        let next = next.clone();
        async move { Ok(request.forward(next, work::one(what)).await?) }
    })
}

/// It listens, so that servers which nobody knows yet can announce themselves.
async fn initiator(net: &Net) -> Endpoint {
    net.bind(Endpoint::builder().ping(PERIOD, TIMEOUT)).await
}

/// It fails as silent, and names the server and what became of it. By a stream its delegator tells of its end, so no ping period
/// passes before that; over datagrams three do.
async fn is_given_up(net: Net, again: impl AsyncFnOnce(&Address) -> Option<Endpoint>) {
    let last = net.serve(mute()).await;
    let first = net.serve(forwarding(at(&last))).await;
    let is_told = !at(&last).is_udp();
    let period = if is_told { TIMEOUT } else { PERIOD };
    let initiator = net.bind(Endpoint::builder().ping(period, TIMEOUT)).await;
    let mut call = work::at(&initiator, at(&first)).one(String::new());
    until(|| last.load() == load(1, 0)).await;
    let (address, node) = (at(&last), last.node());
    last.kill();
    let again = again(&address).await;
    let (failed, silence) = silent(&mut call, &address, node, is_told).await;
    assert!(is_told || silence >= 3 * PERIOD, "{failed}");
    drop(again);
}

/// It fails as silent, of this server.
async fn silent(
    call: &mut Call<One<String>>,
    server: &Address,
    node: NodeId,
    is_told: bool,
) -> (Failure, Duration) {
    let failed = failure(call.answer().await);
    let Failure::Lost(loss) = &failed else {
        panic!("another failure: {failed}")
    };
    let FailureKind::Silent { silence, absence } = loss.kind else {
        panic!("another kind: {failed}")
    };
    assert_eq!(loss.server.address.as_ref(), Some(server));
    assert_eq!(loss.server.node, Some(node));
    let is_certain = absence.is_some_and(|absence| absence.disconnected);
    assert!(is_certain || !is_told, "{failed}");
    assert_eq!(call.outcome(), Some(Outcome::Failed(failed.clone())));
    (failed, silence)
}

/// The first request's server dials the second one for it, so it learns of its life only when that has taken the request.
async fn a_server_that_was_never_reached_is_gone_when_nobody_listens_there(net: Net) {
    is_given_up(net, async |_| None).await;
}

async fn a_server_that_was_never_reached_is_gone_when_another_life_is_there(net: Net) {
    is_given_up(net, async |address| {
        let again = Endpoint::builder().serve(mute());
        let again = again.listen(&address.to_string()).bind().await;
        Some(again.expect("the address is free"))
    })
    .await;
}

/// A server that has forwarded and ended must not fail the call.
async fn a_server_that_was_never_reached_may_have_handed_its_work_on(net: Net) {
    let gate = crate::common::Gate::new();
    let opened = gate.clone();
    let waiting = service().method(&work::ONE, move |request: Request<One<_>>, (what,)| {
        let gate = opened.clone();
        async move {
            gate.pass().await;
            Ok(request.respond(what).await?)
        }
    });
    let last = net.serve(waiting).await;
    let second = net.serve(forwarding(at(&last))).await;
    let first = net.serve(forwarding(at(&second))).await;
    let initiator = initiator(&net).await;
    let call = work::at(&initiator, at(&first)).one("there".into());
    until(|| last.load() == load(1, 0)).await;
    second.kill();
    // Others are given up meanwhile, one after the other: they were reached, so no longer than a period is waited for.
    for _ in 0..2 {
        let gone = net.serve(mute()).await;
        let mut lost = work::at(&initiator, at(&gone)).one(String::new());
        until(|| gone.load() == load(1, 0)).await;
        gone.kill();
        silent(&mut lost, &at(&gone), gone.node(), false).await;
    }
    gate.open(1);
    assert_eq!(call.await.expect("an answer"), "there");
}

/// What a server says of a request that runs, or has gone on elsewhere.
fn progress(continuation: Option<Child>) -> Progress {
    Progress {
        finished: continuation.is_some(),
        aborted: false,
        base: 0,
        count: 0,
        children_from: 0,
        children: vec![],
        idle: continuation.is_none().then_some(Duration::ZERO),
        continuation,
        facts: None,
        manifest: None,
        lost: vec![],
        handled_by: None,
    }
}

fn pong(ping: &Ping, relayed: bool, progress: Progress) -> Message {
    Message::Pong(Pong {
        call: ping.call,
        distance: 0,
        token: relayed.then_some(ping.token),
        request: ping.request,
        attempt: 0,
        announced: false,
        writing: false,
        evicted: false,
        gone: false,
        heartbeats: false,
        progress: Some(progress),
    })
}

/// The first server relays for one that the initiator cannot reach: after its first word the initiator knows that, and
/// gives it the whole timeout, however often its own dials are refused.
#[tokio::test]
async fn a_server_that_only_others_reach_is_not_taken_for_dead() {
    patience(async {
        let net = Net::tcp();
        let nobody = net.endpoint().await;
        nobody.kill();
        let next = Child {
            server: at(&nobody),
            node: NodeId::new(9),
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a socket");
        let relay = Address::Tcp(listener.local_addr().expect("it has one"));
        let initiator = initiator(&net).await;
        let call = work::at(&initiator, relay).one(String::new());
        let mut first = Raw::accept(&listener, hello(7)).await;
        let request = first.request().await;
        let mut asked = 0;
        // An address that was refused is dialled again after a second.
        while asked < 20 {
            let Message::Ping(ping) = first.message().await else {
                continue;
            };
            if ping.request == RequestId::FIRST {
                let told = pong(&ping, false, progress(Some(next.clone())));
                first.send(told).await;
                continue;
            }
            asked += 1;
            if asked == 1 {
                first.send(pong(&ping, true, progress(None))).await;
            }
        }
        let mut answer = response(request.call, Some(request.token), b"\x05there");
        answer.request.hop = 1;
        first.send_response(answer).await;
        assert_eq!(call.await.expect("an answer"), "there");
    })
    .await;
}
