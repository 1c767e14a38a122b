//! A server in a process of its own is killed while it works at calls, or has just handed them on: how its callers learn of it.

#![cfg(target_os = "linux")]

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::time::Duration;

use crate::common::{Gate, Net, at, failure, load, patience, process, service, until, work};
use wallaby::{
    Address, Call, CallError, Client, Code, Endpoint, Failure, FailureKind, Many, One, Request,
    Service,
};

/// Where a process of this program listens, and for what.
const ADDRESS: &str = "WALLABY_TEST_KILLED_AT";

const LISTENS: &str = "listening at ";

/// Long, so that it shows which rule has ended a call: what a call says of its silence.
const PERIOD: Duration = Duration::from_secs(2);

/// Hands on what names a server. Anything else it never answers, but where many answers may come with one that it has begun.
fn handing_on() -> Service {
    let many = |request: Request<Many<String>>, (what,): (String,)| async move {
        if let Ok(next) = what.parse::<Address>() {
            return Ok(request.forward(next, work::many(String::new())).await?);
        }
        request.reply("begun".into()).await?;
        request.cancelled().await;
        Ok(())
    };
    service().method(&work::MANY, many).method(
        &work::ONE,
        |request: Request<One<String>>, (what,)| async move {
            if let Ok(next) = what.parse::<Address>() {
                return Ok(request.forward(next, work::one(String::new())).await?);
            }
            request.cancelled().await;
            Ok(())
        },
    )
}

/// A server in a process of its own, which is killed with this.
struct Server {
    process: Child,
    address: Address,
}

impl Server {
    fn start(address: &str) -> Self {
        let mut process = process::only(module_path!(), "is_a_server_if_it_is_asked_to")
            .env(ADDRESS, address)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let output = process.stdout.take().expect("it is piped");
        let lines = BufReader::new(output).lines();
        let mut said = lines.map(|line| line.expect("text"));
        let address = said.find_map(|line| Some(line.split_once(LISTENS)?.1.to_owned()));
        let address = address.expect("it has ended").parse();
        let address = address.expect("an address");
        Self { process, address }
    }

    /// Lets it end by itself: it drops its endpoint.
    fn end(&mut self) {
        drop(self.process.stdin.take());
        self.process.wait().expect("it ends");
    }

    fn kill(&mut self) {
        self.process.kill().expect("it was not waited for");
        self.process.wait().expect("it was killed");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// No test, but what [`Server`] runs.
#[test]
fn is_a_server_if_it_is_asked_to() {
    let Ok(address) = std::env::var(ADDRESS) else {
        return;
    };
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let builder = Endpoint::builder().serve(handing_on()).listen(&address);
    let endpoint = runtime.block_on(builder.bind()).expect("a free address");
    println!("{LISTENS}{}", at(&endpoint));
    let mut line = String::new();
    let _ = std::io::stdin().read_line(&mut line); // until who has started it is gone
}

/// It listens, so that servers which it does not know can tell it something.
async fn caller(net: &Net) -> Endpoint {
    net.bind(Endpoint::builder().ping(PERIOD, 300 * PERIOD))
        .await
}

/// Its server is missed, and named, long before it would have been for its silence.
async fn is_missed(mut call: Call<One<String>>, server: &Address) {
    names(&failure(call.answer().await), server);
}

fn names(failed: &Failure, server: &Address) {
    let Failure::Lost(loss) = failed else {
        panic!("another failure: {failed}")
    };
    let FailureKind::Silent { silence, .. } = loss.kind else {
        panic!("another kind: {failed}")
    };
    assert!(silence < 3 * PERIOD, "{failed}");
    let gone = ": its connection ended and its address refuses connections; ";
    assert!(failed.to_string().contains(gone), "{failed}");
    assert_eq!(loss.server.address.as_ref(), Some(server));
}

async fn over_each(test: impl AsyncFn(Net)) {
    for net in [Net::tcp(), Net::unix(), Net::shm()] {
        patience(test(net)).await;
    }
}

#[tokio::test]
async fn who_waits_for_it_learns_that_it_is_gone() {
    over_each(async |net| {
        let mut server = Server::start(&net.address());
        let client = net.client().await;
        let work = Client::new(&client, &server.address).ping(PERIOD, 300 * PERIOD);
        let call = work::within(work).one(String::new());
        until(|| client.metrics().connections_opened == 1).await;
        server.kill();
        is_missed(call, &server.address).await;
    })
    .await;
}

/// No rule for those that are gone is needed: it has said so itself. Over datagrams, too.
#[tokio::test]
async fn who_waits_for_one_that_ends_by_itself_is_told() {
    for net in [Net::tcp(), Net::unix(), Net::shm(), Net::udp()] {
        patience(async {
            let mut server = Server::start(&net.address());
            let builder = Endpoint::builder()
                .gone_after(600 * PERIOD)
                .ping(2 * PERIOD, 600 * PERIOD);
            let client = net.bind(builder).await;
            let mut call = work::at(&client, &server.address).many(String::new());
            assert_eq!(call.next().await, Some(Ok("begun".into())));
            server.end();
            let Some(Err(CallError::Status(unfinished))) = call.next().await else {
                panic!("it is a status")
            };
            assert_eq!(unfinished.code(), Code::Unfinished, "{unfinished}");
            assert_eq!(unfinished.server(), Some(&server.address), "{unfinished}");
            assert_eq!(call.next().await, None);
        })
        .await;
    }
}

/// The caller is connected with it. Who has handed the request on tells at once that it is gone, so that nobody waits until he
/// asks.
#[tokio::test]
async fn so_does_who_waits_for_it_further_down() {
    over_each(async |net| {
        let mut server = Server::start(&net.address());
        let front = net.serve(handing_on()).await;
        let client = net.client().await;
        client.connect(&server.address).await.expect("it listens");
        let work = Client::new(&client, at(&front)).ping(PERIOD, 300 * PERIOD);
        let mut call = work::within(work).many(server.address.to_string());
        assert_eq!(call.next().await, Some(Ok("begun".into())));
        server.kill();
        let Some(Err(CallError::Failed(failed))) = call.next().await else {
            panic!("it is gone")
        };
        names(&failed, &server.address);
    })
    .await;
}

/// It has handed a request on, and nobody has asked it for that: who has it now is heard when others are given up.
#[tokio::test]
async fn what_it_has_handed_on_goes_on() {
    over_each(async |net| {
        let mut server = Server::start(&net.address());
        let gate = Gate::new();
        let opened = gate.clone();
        let last = service().method(&work::ONE, move |request: Request<One<_>>, (_,)| {
            let gate = opened.clone();
            async move {
                gate.pass().await;
                Ok(request.respond("there".into()).await?)
            }
        });
        let last = net.serve(last).await;
        let caller = caller(&net).await;
        let work = work::at(&caller, &server.address);
        let lost = work.one(String::new());
        let call = work.one(at(&last).to_string());
        until(|| last.load() == load(1, 0)).await;
        server.kill();
        is_missed(lost, &server.address).await;
        gate.open(1);
        assert_eq!(call.await.expect("an answer"), "there");
    })
    .await;
}

/// Answers came back through it, as nobody can dial the caller. Who has the request now said with its first answer where it is, so the
/// caller asks there, and the next answers come that way.
#[tokio::test]
async fn so_it_does_for_a_caller_that_does_not_listen() {
    over_each(async |net| {
        let mut server = Server::start(&net.address());
        let gate = Gate::new();
        let opened = gate.clone();
        let last = service().method(&work::MANY, move |request: Request<Many<String>>, (_,)| {
            let gate = opened.clone();
            async move {
                request.reply("begun".into()).await?;
                gate.pass().await;
                request.reply("done".into()).await?;
                Ok(())
            }
        });
        let last = net.serve(last).await;
        let client = net.client().await;
        let mut call = work::at(&client, &server.address).many(at(&last).to_string());
        assert_eq!(call.next().await, Some(Ok("begun".into())));
        server.kill();
        until(|| last.metrics().connections_opened > 1).await;
        gate.open(1);
        assert_eq!(call.next().await, Some(Ok("done".into())));
        assert_eq!(call.next().await, None);
    })
    .await;
}

/// Its address refuses this endpoint, which has never met it. Who has handed the request on met it, and says that it is gone.
#[tokio::test]
async fn who_stops_a_call_does_not_wait_for_one_that_is_gone() {
    over_each(async |net| {
        for listens in [true, false] {
            let mut server = Server::start(&net.address());
            let front = net.serve(handing_on()).await;
            let client = match listens {
                true => caller(&net).await,
                false => net.client().await,
            };
            let work = Client::new(&client, at(&front)).ping(PERIOD / 20, 300 * PERIOD);
            let mut call = work::within(work).many(server.address.to_string());
            assert_eq!(call.next().await, Some(Ok("begun".into())));
            server.kill();
            let stopped = call.stop().await;
            if listens {
                assert_eq!(stopped, Ok(()), "nothing of it can run");
                continue;
            }
            // What the server may have handed on cannot reach this endpoint.
            let running = stopped.expect_err("it is not known");
            let [gone] = &running.unheard[..] else {
                panic!("one request: {running}")
            };
            assert!(gone.gone, "{running}");
            assert_eq!(gone.server.address.as_ref(), Some(&server.address));
        }
    })
    .await;
}
