//! Answers whose relay is gone wait for another way to their initiator, within limits.

use std::time::Duration;

use crate::common::{Gate, Net, at, client, load, service, until, work};
use wallaby::{Address, Client, Endpoint, Many, One, Outcome, Request, Service};

over_every_transport!(
    they_leave_when_the_initiator_connects,
    they_leave_when_the_initiator_asks,
    a_relay_keeps_them_too,
    no_more_wait_than_are_allowed,
    nor_larger_ones,
    nor_for_longer,
);

/// Answers when the gate is open.
fn gated(gate: &Gate) -> Service {
    let (one, many) = (gate.clone(), gate.clone());
    service()
        .method(&work::ONE, move |request: Request<One<_>>, (what,)| {
            let gate = one.clone();
            async move {
                gate.pass().await;
                Ok(request.respond(what).await?)
            }
        })
        .method(&work::MANY, move |request: Request<Many<_>>, (what,)| {
            let gate = many.clone();
            async move {
                gate.pass().await;
                Ok(request.respond(what).await?)
            }
        })
}

/// Hands everything on.
fn relay(next: Address) -> Service {
    let (one, many) = (next.clone(), next);
    service()
        .method(&work::ONE, move |request: Request<One<_>>, (what,)| {
            let next = one.clone();
            async move { Ok(request.forward(next, work::one(what)).await?) }
        })
        .method(&work::MANY, move |request: Request<Many<_>>, (what,)| {
            let next = many.clone();
            async move { Ok(request.forward(next, work::many(what)).await?) }
        })
}

/// A server that answers when the gate is open, a relay to it, an initiator that does not listen, and what waits.
struct Line {
    gate: Gate,
    leaf: Endpoint,
    relay: Endpoint,
    client: Endpoint,
}

impl Line {
    async fn new(net: &Net, leaf: impl FnOnce(wallaby::Builder) -> wallaby::Builder) -> Self {
        let gate = Gate::new();
        let builder = Endpoint::builder().serve(gated(&gate));
        let leaf = net.bind(leaf(builder)).await;
        let relay = net.serve(relay(at(&leaf))).await;
        // A call waits for so long for word of who has it from a relay that is gone.
        let while_gone = Duration::from_secs(5);
        let client = Endpoint::builder().ping(while_gone, 12 * while_gone);
        let client = client.gone_after(while_gone).bind().await;
        let client = client.expect("it does not listen");
        Self {
            gate,
            leaf,
            relay,
            client,
        }
    }

    /// The relay is gone, and so many handlers want to answer.
    async fn break_off(&self, answers: usize) {
        until(|| self.leaf.load() == load(answers, 0)).await;
        self.relay.kill();
        until(|| self.leaf.metrics().connections_ended == 1).await;
        self.gate.open(answers);
    }

    async fn until_waiting(&self, answers: u64) {
        until(|| self.leaf.metrics().waited_for_routes == answers).await;
    }
}

async fn they_leave_when_the_initiator_connects(net: Net) {
    let line = Line::new(&net, |leaf| leaf).await;
    let work = work::at(&line.client, at(&line.relay));
    let calls: Vec<_> = (0..3).map(|number| work.one(number.to_string())).collect();
    line.break_off(3).await;
    line.until_waiting(3).await;
    line.client
        .connect(at(&line.leaf))
        .await
        .expect("it listens");
    for (number, call) in calls.into_iter().enumerate() {
        assert_eq!(call.await.expect("an answer"), number.to_string());
    }
    assert_eq!(line.leaf.metrics().undeliverable, 0);
}

async fn they_leave_when_the_initiator_asks(net: Net) {
    let line = Line::new(&net, |leaf| leaf).await;
    let mut call = work::at(&line.client, at(&line.relay)).many("first".into());
    line.break_off(1).await;
    line.until_waiting(1).await;
    // Another call of the same initiator comes by: that shows nothing of the first one, whose token its initiator shows.
    let other = net.serve(relay(at(&line.leaf))).await;
    let often = Duration::from_millis(100);
    let second = Client::new(&line.client, at(&other)).ping(often, 600 * often);
    let second = work::within(second).one("second".into());
    assert_eq!(call.next().await, Some(Ok("first".into())));
    assert_eq!(call.next().await, None);
    assert_eq!(call.outcome(), Some(Outcome::Complete { statuses: 0 }));
    line.gate.open(1);
    assert_eq!(second.await.expect("an answer"), "second");
}

async fn a_relay_keeps_them_too(net: Net) {
    let gate = Gate::new();
    let leaf = net.serve(gated(&gate)).await;
    let near = net.serve(relay(at(&leaf))).await;
    let far = net.serve(relay(at(&near))).await;
    let client = client();
    let call = work::at(&client, at(&far)).one("late".into());
    until(|| leaf.load() == load(1, 0)).await;
    far.kill();
    until(|| near.metrics().connections_ended == 1).await;
    gate.open(1);
    until(|| near.metrics().waited_for_routes == 1).await;
    client.connect(at(&near)).await.expect("it listens");
    assert_eq!(call.await.expect("an answer"), "late");
    // It counts after it has passed the answer on: the client may be faster.
    until(|| near.metrics().relayed >= 1).await;
    assert_eq!(near.metrics().undeliverable, 0);
}

async fn no_more_wait_than_are_allowed(net: Net) {
    let minute = Duration::from_secs(60);
    let line = Line::new(&net, |leaf| leaf.wait_for_routes(2, 1 << 20, minute)).await;
    let work = work::at(&line.client, at(&line.relay));
    let _calls: Vec<_> = (0..5).map(|number| work.one(number.to_string())).collect();
    line.break_off(5).await;
    until(|| line.leaf.metrics().undeliverable == 3).await;
    assert_eq!(line.leaf.metrics().waited_for_routes, 2);
}

async fn nor_larger_ones(net: Net) {
    let minute = Duration::from_secs(60);
    let line = Line::new(&net, |leaf| leaf.wait_for_routes(100, 1200, minute)).await;
    let work = work::at(&line.client, at(&line.relay));
    let _calls: Vec<_> = (0..3).map(|_| work.one("x".repeat(400))).collect();
    line.break_off(3).await;
    until(|| line.leaf.metrics().undeliverable == 1).await;
    assert_eq!(line.leaf.metrics().waited_for_routes, 2);
}

async fn nor_for_longer(net: Net) {
    let short = Duration::from_millis(50);
    let line = Line::new(&net, |leaf| leaf.wait_for_routes(100, 1 << 20, short)).await;
    let _call = work::at(&line.client, at(&line.relay)).one("late".into());
    line.break_off(1).await;
    until(|| line.leaf.metrics().undeliverable == 1).await;
    assert_eq!(line.leaf.metrics().waited_for_routes, 1);
    until(|| line.leaf.load().is_idle()).await; // its handler goes on, and is done
}
