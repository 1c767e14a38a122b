//! One of several servers for each call: by load, around those that are not there, and as resolvers tell them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::common::{Gate, Net, at, client, failure, patience, service, until, work};
use bytes::Bytes;
use tokio::sync::mpsc;
use wallaby::{
    Address, Body, CallInterceptor, Client, Code, Dns, Endpoint, Failure, NoMore, One, Outgoing,
    Request, ResolveError, Resolver, Retry, Servers, Service, Static, Status,
};

/// Answers where it is once the gate lets it, and counts.
fn says_where(gate: &Gate, runs: &Arc<AtomicUsize>) -> Service {
    let (gate, runs) = (gate.clone(), Arc::clone(runs));
    service().method(
        &work::ONE,
        move |request: Request<One<_>>, (name,): (String,)| {
            let (gate, runs) = (gate.clone(), Arc::clone(&runs));
            async move {
                runs.fetch_add(1, Ordering::SeqCst);
                gate.pass().await;
                Ok(request.respond(name).await?)
            }
        },
    )
}

fn open() -> Gate {
    let gate = Gate::new();
    gate.open(10_000);
    gate
}

struct Fleet {
    endpoints: Vec<Endpoint>,
    runs: Vec<Arc<AtomicUsize>>,
}

impl Fleet {
    async fn start(net: &Net, count: usize, gate: &Gate) -> Self {
        let (mut endpoints, mut runs) = (Vec::new(), Vec::new());
        for _ in 0..count {
            let ran = Arc::default();
            endpoints.push(net.serve(says_where(gate, &ran)).await);
            runs.push(ran);
        }
        Self { endpoints, runs }
    }

    fn addresses(&self) -> Vec<Address> {
        self.endpoints.iter().map(at).collect()
    }

    fn runs(&self) -> Vec<usize> {
        let runs = self.runs.iter();
        runs.map(|runs| runs.load(Ordering::SeqCst)).collect()
    }
}

async fn nobody(net: &Net) -> Address {
    let endpoint = net.endpoint().await;
    let address = at(&endpoint);
    endpoint.close();
    address
}

fn under_way(servers: &Servers) -> Vec<usize> {
    servers.list().into_iter().map(|(_, calls)| calls).collect()
}

over_every_transport!(
    calls_go_where_fewer_are_under_way,
    a_server_that_is_not_there_is_gone_round,
    a_server_that_shuts_down_is_gone_round,
    one_that_has_failed_is_better_than_one_that_is_not_there,
    what_an_interceptor_sends_elsewhere_says_nothing_of_a_server,
    when_none_is_there_each_was_tried_once,
);

async fn calls_go_where_fewer_are_under_way(net: Net) {
    let gate = Gate::new();
    let fleet = Fleet::start(&net, 3, &gate).await;
    let servers = Servers::new(fleet.addresses()).expect("three");
    let caller = net.client().await;
    let work = work::within(Client::among(&caller, &servers));
    let calls: Vec<_> = (0..30).map(|_| work.one(String::new())).collect();
    let loads = under_way(&servers);
    assert_eq!(loads.iter().sum::<usize>(), 30);
    // The fullest of three is never chosen, by any throw of the dice.
    assert!(
        loads.iter().all(|load| (5..=15).contains(load)),
        "{loads:?}"
    );
    until(|| fleet.runs().iter().sum::<usize>() == 30).await;
    assert_eq!(fleet.runs(), loads);
    gate.open(30);
    for call in calls {
        call.await.expect("an answer");
    }
    until(|| under_way(&servers) == [0, 0, 0]).await;
    // One that is given up counts no longer.
    let given_up = work.one(String::new());
    assert_eq!(under_way(&servers).iter().sum::<usize>(), 1);
    drop(given_up);
    until(|| under_way(&servers) == [0, 0, 0]).await;
}

async fn a_server_that_is_not_there_is_gone_round(net: Net) {
    let fleet = Fleet::start(&net, 2, &open()).await;
    let mut all = fleet.addresses();
    all.insert(1, nobody(&net).await);
    let servers = Servers::new(all).expect("three");
    let caller = net
        .bind(Endpoint::builder().dial_timeout(Duration::from_millis(200)))
        .await;
    let work = work::within(Client::among(&caller, &servers));
    // All at once: more of them than the budget for retries would allow.
    let calls: Vec<_> = (0..60).map(|_| work.one("x".into())).collect();
    for call in calls {
        assert_eq!(call.await, Ok("x".into()));
    }
    assert_eq!(fleet.runs().iter().sum::<usize>(), 60, "{:?}", fleet.runs());
    let found_out = caller.metrics().retries;
    assert!(found_out >= 1);
    for _ in 0..20 {
        assert_eq!(work.one("y".into()).await, Ok("y".into()));
    }
    // It is left out for a second, and may be tried again after that.
    assert!(caller.metrics().retries <= found_out + 3);
}

async fn a_server_that_shuts_down_is_gone_round(net: Net) {
    let gate = Gate::new();
    let fleet = Fleet::start(&net, 2, &gate).await;
    let servers = Servers::new(fleet.addresses()).expect("two");
    let caller = net.client().await;
    let work = work::within(Client::among(&caller, &servers));
    let calls: Vec<_> = (0..4).map(|_| work.one("x".into())).collect();
    until(|| fleet.runs().iter().sum::<usize>() == 4).await;
    let drains = fleet.endpoints[0].drain(Duration::from_secs(60));
    let goes_on = async {
        until(|| fleet.endpoints[0].load().running > 0).await;
        gate.open(100);
        for _ in 0..20 {
            assert_eq!(work.one("y".into()).await, Ok("y".into()));
        }
        for call in calls {
            assert_eq!(call.await, Ok("x".into()));
        }
    };
    let (drained, ()) = tokio::join!(drains, goes_on);
    drained.expect("it was done");
}

/// A call with a body has one attempt.
#[tokio::test]
async fn what_is_not_made_again_goes_round_a_server_that_shuts_down() {
    let net = Net::tcp();
    let (gate, runs) = (Gate::new(), Arc::new(AtomicUsize::new(0)));
    let closing = net.serve(says_where(&gate, &runs)).await;
    let other = net.serve(says_where(&open(), &Arc::default())).await;
    let servers = Servers::new([at(&closing), at(&other)]).expect("two");
    let caller = net.client().await;
    let client = Client::among(&caller, &servers);
    let busy = work::at(&caller, at(&closing)).one("x".into());
    until(|| runs.load(Ordering::SeqCst) == 1).await;
    let drains = closing.drain(Duration::from_secs(60));
    let goes_on = async {
        let mut failed = 0;
        for _ in 0..20 {
            let target = work::one("y".into()).with_body(Body::from(Bytes::new()));
            failed += usize::from(client.call_target(target).await.is_err());
        }
        assert!(
            failed <= 1,
            "{failed} of 20 went to a server that shuts down"
        );
        gate.open(1);
        assert_eq!(busy.await, Ok("x".into()));
    };
    let (drained, ()) = tokio::join!(drains, goes_on);
    drained.expect("it was done");
}

async fn one_that_has_failed_is_better_than_one_that_is_not_there(net: Net) {
    let runs = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&runs);
    let fails_first =
        service().method(&work::ONE, move |request: Request<One<String>>, (name,)| {
            let is_odd = count.fetch_add(1, Ordering::SeqCst).is_multiple_of(2);
            async move {
                match is_odd {
                    true => Err(Status::new(Code::ResourceExhausted, "not now")),
                    false => Ok(request.respond(name).await?),
                }
            }
        });
    let server = net.serve(fails_first).await;
    let servers = Servers::new([at(&server), nobody(&net).await]).expect("two");
    let caller = net
        .bind(Endpoint::builder().dial_timeout(Duration::from_millis(200)))
        .await;
    let retry = Retry::idempotent(3).on(Code::ResourceExhausted);
    let retry = retry.backoff(Duration::ZERO, Duration::ZERO);
    let client = Client::among(&caller, &servers).retry(retry);
    for call in 0..10 {
        let answer = work::within(client.clone()).one("x".into()).await;
        assert_eq!(answer, Ok("x".into()), "call {call}");
    }
}

struct Elsewhere(Address);

impl CallInterceptor for Elsewhere {
    fn outgoing(&self, outgoing: &mut Outgoing) -> Result<(), Status> {
        outgoing.server = self.0.clone();
        Ok(())
    }
}

async fn what_an_interceptor_sends_elsewhere_says_nothing_of_a_server(net: Net) {
    let gate = Gate::new();
    let fleet = Fleet::start(&net, 2, &gate).await;
    let servers = Servers::new([at(&fleet.endpoints[0])]).expect("one");
    let there = at(&fleet.endpoints[1]);
    let caller = net
        .bind(Endpoint::builder().call_interceptor(Elsewhere(there)))
        .await;
    let call = work::within(Client::among(&caller, &servers)).one("x".into());
    until(|| fleet.runs() == [0, 1]).await;
    assert_eq!(under_way(&servers), [0]);
    gate.open(1);
    assert_eq!(call.await, Ok("x".into()));
}

async fn when_none_is_there_each_was_tried_once(net: Net) {
    let all = [nobody(&net).await, nobody(&net).await];
    let servers = Servers::new(all.clone()).expect("two");
    let caller = net
        .bind(Endpoint::builder().dial_timeout(Duration::from_millis(200)))
        .await;
    let client = Client::among(&caller, &servers);
    let failed = failure(work::within(client.clone()).one(String::new()).await);
    let Failure::Attempts(told) = &failed else {
        panic!("another failure: {failed}")
    };
    assert_eq!((told.made, told.why), (2, NoMore::Limit));
    assert_eq!(failed.code(), Code::Unavailable);
    let text = failed.to_string();
    assert!(
        all.iter().all(|server| text.contains(&server.to_string())),
        "{text}"
    );
    // What the client says of retries counts.
    let twice = client.retry(Retry::unexecuted(5).backoff(Duration::ZERO, Duration::ZERO));
    let mut call = work::within(twice).one(String::new());
    failure(call.answer().await);
    assert_eq!(call.attempts(), 5);
}

/// Tells what a test tells it; dropped, it says so.
struct Told {
    lists: mpsc::UnboundedReceiver<Result<Vec<Address>, ResolveError>>,
    _open: mpsc::Sender<()>,
}

impl Resolver for Told {
    async fn next(&mut self) -> Result<Vec<Address>, ResolveError> {
        match self.lists.recv().await {
            Some(list) => list,
            None => std::future::pending().await,
        }
    }
}

#[tokio::test]
async fn servers_come_and_go() {
    let net = Net::mem();
    let fleet = Fleet::start(&net, 3, &open()).await;
    let [a, b, c] = &fleet.addresses()[..] else {
        panic!("three were started")
    };
    let (tell, lists) = mpsc::unbounded_channel();
    let (_open, mut closed) = mpsc::channel(1);
    let told = |list: &[&Address]| Ok(list.iter().copied().cloned().collect());
    tell.send(told(&[a])).expect("it listens");
    let servers = Servers::watch(Told { lists, _open }).await.expect("a list");
    let work = work::within(Client::among(&client(), &servers));
    work.one(String::new()).await.expect("an answer");
    assert_eq!(fleet.runs(), [1, 0, 0]);
    tell.send(told(&[b, c, b])).expect("it listens");
    let is = |expected: &[&Address]| {
        let list: Vec<Address> = servers.list().into_iter().map(|(at, _)| at).collect();
        list.iter().eq(expected.iter().copied())
    };
    until(|| is(&[b, c])).await;
    for _ in 0..20 {
        work.one(String::new()).await.expect("an answer");
    }
    let runs = fleet.runs();
    assert!(runs[0] == 1 && runs[1] > 0 && runs[2] > 0, "{runs:?}");
    // What is no list changes nothing, and the next one is heard all the same.
    tell.send(told(&[])).expect("it listens");
    tell.send(told(&[c])).expect("it listens");
    patience(until(|| is(&[c]))).await;
    drop((servers, work));
    assert_eq!(closed.recv().await, None, "nobody wants to know any more");
}

#[tokio::test]
async fn without_a_server_there_is_nobody_to_call() {
    let none = Servers::new(Vec::<Address>::new());
    assert!(none.is_err());
    let none = Servers::watch(Static::new(Vec::<Address>::new())).await;
    let error = none.expect_err("there is none");
    assert_eq!(
        format!("{error:?}"),
        "cannot find the servers of a service: there are none"
    );
    let nowhere = "tcp://nobody.invalid:7000".parse().expect("an address");
    // Where no name server answers, that takes long.
    let found = Servers::watch(Dns::new(nowhere));
    if let Ok(found) = tokio::time::timeout(Duration::from_secs(5), found).await {
        let error = found.expect_err("there is none").to_string();
        assert!(error.contains("tcp://nobody.invalid:7000"), "{error}");
    }
}

/// Of the addresses of a host some may be those of nobody, as with `localhost` where only IPv4 is listened at.
#[tokio::test]
async fn the_addresses_of_a_name_are_servers() {
    let net = Net::tcp();
    let fleet = Fleet::start(&net, 1, &open()).await;
    let address = fleet.addresses()[0].to_string();
    let (_, port) = address.rsplit_once(':').expect("a port");
    let named = format!("tcp://localhost:{port}")
        .parse()
        .expect("an address");
    let often = Dns::new(named).every(Duration::from_millis(1));
    let servers = patience(Servers::watch(often)).await.expect("it is known");
    let all: BTreeMap<String, usize> = (servers.list().into_iter())
        .map(|(at, calls)| (at.to_string(), calls))
        .collect();
    assert!(all.contains_key(&address), "{all:?}");
    let work = work::within(Client::among(&client(), &servers));
    for _ in 0..10 {
        assert_eq!(
            patience(work.one("x".into()).into_future()).await,
            Ok("x".into())
        );
    }
    assert_eq!(fleet.runs(), [10]);
}
