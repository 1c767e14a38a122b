//! Chains that are lost on their way and made again: what their links have come to is known, and what breaks them is named.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Semaphore;
use wallaby::{
    Address, Caller, Code as StatusCode, DurableId, Endpoint, One, Request, Servers, Status,
};
use wallaby_chain::{
    Answer, Chain, Chains, Event, Hop, Limits, Merge, Run, State, Step, pipe, start,
};

use crate::world::{Net, at, patience, status, until};

/// Work that somebody counts.
#[wallaby::service(package = "test")]
trait Work {
    async fn add(text: String) -> String;
    /// The same, by another server perhaps, as a chain of this one.
    async fn pass(text: String) -> String;
    async fn refuse(text: String) -> String;
}

/// What a server has done, and whether it does it at once.
#[derive(Clone, Default)]
struct Worker(Arc<Inside>);

#[derive(Default)]
struct Inside {
    name: &'static str,
    /// How often it was begun.
    begun: AtomicU64,
    /// None if it waits for nothing.
    gate: Option<Semaphore>,
    backup: Option<Address>,
}

impl Worker {
    fn new(name: &'static str) -> Self {
        Self::with(Inside {
            name,
            ..Inside::default()
        })
    }

    /// It begins, and goes on when it is let.
    fn waiting(name: &'static str) -> Self {
        let gate = Some(Semaphore::new(0));
        Self::with(Inside {
            name,
            gate,
            ..Inside::default()
        })
    }

    fn with(work: Inside) -> Self {
        Self(Arc::new(work))
    }

    fn begun(&self) -> u64 {
        self.0.begun.load(Ordering::SeqCst)
    }

    async fn has_begun(&self, times: u64) {
        until(|| self.begun() >= times).await;
    }

    fn go_on(&self) {
        self.0.gate.as_ref().expect("it waits").add_permits(1000);
    }

    async fn serve_at(&self, address: &str, chains: Chains) -> Endpoint {
        let builder = Endpoint::builder().serve(work::service(self.clone()));
        let bound = chains.add_to(builder).listen(address).bind().await;
        bound.expect("the address is free")
    }

    async fn serve(&self, chains: Chains) -> Endpoint {
        self.serve_at("tcp://127.0.0.1:0", chains).await
    }
}

#[wallaby::serve]
impl Work for Worker {
    async fn add(&self, text: String) -> String {
        self.0.begun.fetch_add(1, Ordering::SeqCst);
        if let Some(gate) = &self.0.gate {
            gate.acquire().await.expect("it is open").forget();
        }
        format!("{text}.{}", self.0.name)
    }

    async fn pass(&self, request: Request<One<String>>, text: String) -> Result<(), Status> {
        self.0.begun.fetch_add(1, Ordering::SeqCst);
        let backup = self.0.backup.as_ref().ok_or(Status::internal("none"))?;
        Ok(pipe(backup, &work::ADD, (text,)).forward(request)?.await?)
    }

    async fn refuse(&self, text: String) -> Result<String, Status> {
        self.0.begun.fetch_add(1, Ordering::SeqCst);
        Err(Status::permission_denied(text))
    }
}

/// A client that misses servers soon.
fn caller(client: &Endpoint) -> Caller {
    let (period, timeout) = (Duration::from_millis(20), Duration::from_secs(2));
    client.caller().ping(period, timeout)
}

fn first(server: &Endpoint) -> Chain<String> {
    pipe(at(server), &work::ADD, ("text".to_owned(),))
}

async fn end(chain: Chain<String>, client: &Endpoint, run: Run) -> Result<String, Status> {
    let mut running = chain.run(caller(client), run).expect("it is small");
    running
        .answer()
        .await
        .map_err(|error| status::<()>(Err(error)))
}

/// What has been done stays done; what was lost is done where its server is again.
#[tokio::test]
async fn a_chain_that_was_lost_goes_on_where_it_broke() {
    patience(async {
        let (a, b, again, c) = (
            Worker::new("a"),
            Worker::waiting("b"),
            Worker::new("b again"),
            Worker::new("c"),
        );
        let (at_a, at_b, at_c) = (
            a.serve(Chains::new()).await,
            b.serve(Chains::new()).await,
            c.serve(Chains::new()).await,
        );
        let client = Net::Tcp.client().await;
        let chain = first(&at_a)
            .then(at(&at_b), &work::ADD)
            .then(at(&at_c), &work::ADD);
        let mut running = chain
            .run(caller(&client), Run::new().retries(8))
            .expect("small");
        let dies = async {
            b.has_begun(1).await;
            at_b.kill();
            again.serve_at(&at(&at_b).to_string(), Chains::new()).await
        };
        let (answer, _at_b) = tokio::join!(running.answer(), dies);
        assert_eq!(answer, Ok("text.a.b again.c".into()));
        assert_eq!([&a, &b, &again, &c].map(Worker::begun), [1; 4]);
        assert!(running.attempts() > 1);
        assert_eq!(running.broken(), None);
    })
    .await;
}

/// Branches that have arrived, and links before the split, are not done again.
#[tokio::test]
async fn a_branch_that_was_lost_is_made_again_alone() {
    patience(async {
        let (a, b, c, again) = (
            Worker::new("a"),
            Worker::new("b"),
            Worker::waiting("c"),
            Worker::new("c"),
        );
        let splits = || {
            Chains::new()
                .function("split", |state, answer| {
                    let (b, c): (Address, Address) = (state.get("b")?, state.get("c")?);
                    let text: String = answer.read()?;
                    let hops = [&b, &c].map(|to| Hop::to(to, &work::ADD, (text.clone(),)));
                    let step = Step::split(hops, Merge::at(&b, "join", State::new()));
                    Ok(step.log("splits"))
                })
                .merging("join", |_, results| {
                    let texts: Result<Vec<String>, Status> =
                        results.iter().map(Answer::read).collect();
                    Ok(Step::end(&texts?.join("+"))?.log("joins"))
                })
        };
        let (at_a, at_b, at_c) = (
            a.serve(splits()).await,
            b.serve(splits()).await,
            c.serve(splits()).await,
        );
        let client = Net::Tcp.client().await;
        let state = State::new().with("b", &at(&at_b));
        let state = state.and_then(|state| state.with("c", &at(&at_c)));
        let hop = Hop::to(at(&at_a), &work::ADD, ("text".to_owned(),));
        let chain = start::<String>(hop.then("split", state.expect("addresses")));
        let run = Run::new().retries(8).lines();
        let mut running = chain.run(caller(&client), run).expect("small");
        let (mut lines, mut answer) = (Vec::new(), None);
        let all = async {
            while let Some(event) = running.next().await {
                match event.expect("it goes on") {
                    Event::Line(line) => lines.push(line.text),
                    Event::End(text) => answer = Some(text),
                    event => panic!("{event:?}"),
                }
            }
        };
        let dies = async {
            c.has_begun(1).await;
            b.has_begun(1).await;
            at_c.kill();
            again.serve_at(&at(&at_c).to_string(), splits()).await
        };
        let ((), _at_c) = tokio::join!(all, dies);
        assert_eq!(answer, Some("text.a.b+text.a.c".into()));
        assert_eq!([&a, &b, &c, &again].map(Worker::begun), [1; 4]);
        assert_eq!(lines, ["splits", "joins"], "each is heard once");
    })
    .await;
}

/// Two servers can do the same: the chain goes on at the one that is left.
#[tokio::test]
async fn a_name_stands_for_servers_that_are_left() {
    patience(async {
        let workers = [Worker::waiting("one"), Worker::waiting("two")];
        let one = workers[0].serve(Chains::new()).await;
        let two = workers[1].serve(Chains::new()).await;
        let named = || {
            let both = Servers::new([at(&one), at(&two)]).expect("two");
            Chains::new().servers("work", both)
        };
        let a = Worker::new("a");
        let (at_a, client) = (a.serve(named()).await, Net::Tcp.client().await);
        let name: Address = "service://work".parse().expect("an address");
        let chain = first(&at_a).then(&name, &work::ADD);
        let mut running = chain
            .run(caller(&client), Run::new().retries(1))
            .expect("small");
        let begun = || (0..2).find(|&worker| workers[worker].begun() > 0);
        let dies = async {
            until(|| begun().is_some()).await;
            let lost = begun().expect("one has begun");
            workers[1 - lost].go_on();
            [&one, &two][lost].kill();
            workers[1 - lost].0.name
        };
        let (answer, left) = tokio::join!(running.answer(), dies);
        assert_eq!(answer, Ok(format!("text.a.{left}")));
        assert_eq!((running.attempts(), a.begun()), (2, 1));
        // The first link may have a name, too, if it is known at home.
        let home = named().at_home();
        for _ in 0..8 {
            let chain = pipe(&name, &work::ADD, ("text".to_owned(),));
            let answer = end(chain, &client, Run::new().retries(1).home(&home)).await;
            assert_eq!(answer, Ok(format!("text.{left}")));
        }
    })
    .await;
}

#[tokio::test]
async fn a_name_that_nobody_knows_is_an_error() {
    patience(async {
        let a = Worker::new("a");
        let (at_a, client) = (a.serve(Chains::new()).await, Net::Tcp.client().await);
        let name: Address = "service://work".parse().expect("an address");
        let chain = first(&at_a).then(&name, &work::ADD);
        let unknown = end(chain, &client, Run::new().retries(3))
            .await
            .expect_err("nobody");
        assert_eq!(unknown.code(), StatusCode::NotFound);
        let text = "no servers are known as \"work\" at this server [chain ";
        assert!(unknown.message().starts_with(text), "{unknown}");
        assert_eq!(a.begun(), 1);
        let home = Chains::new().at_home();
        let chain = pipe(&name, &work::ADD, ("text".to_owned(),));
        let unknown = chain.run(client.caller(), Run::new().home(&home));
        let unknown = unknown.expect_err("nobody").to_string();
        assert!(
            unknown.starts_with("no servers are known as \"work\" at home"),
            "{unknown}"
        );
    })
    .await;
}

#[tokio::test]
async fn the_link_that_breaks_a_chain_is_named() {
    patience(async {
        let (a, b) = (Worker::new("a"), Worker::waiting("b"));
        let (at_a, at_b) = (a.serve(Chains::new()).await, b.serve(Chains::new()).await);
        let client = Net::Tcp.client().await;
        let chain = || {
            first(&at_a)
                .then(at(&at_b), &work::ADD)
                .then(at(&at_a), &work::ADD)
        };
        let home = Chains::new().at_home();
        let run = Run::new().retries(1).home(&home);
        let mut running = chain().run(caller(&client), run.clone()).expect("small");
        let dies = async {
            b.has_begun(1).await;
            at_b.kill();
        };
        let (broken, ()) = tokio::join!(running.answer(), dies);
        let error = broken.expect_err("nobody does it");
        assert_eq!(error.server(), Some(&at(&at_b)), "{error}");
        let link = running.broken().expect("it was walked");
        let text = format!("link 2, test.Work/add at {}", at(&at_b));
        assert_eq!((link.number, link.to_string()), (2, text));
        assert_eq!((running.attempts(), a.begun()), (2, 1));
        assert!(running.next().await.is_none(), "it is over");
        // Without a home, the failure names the server.
        let mut running = chain()
            .run(caller(&client), Run::new().retries(1))
            .expect("small");
        let error = running.answer().await.expect_err("nobody does it");
        assert_eq!((error.server(), running.broken()), (Some(&at(&at_b)), None));
    })
    .await;
}

/// Walking it helps where the client knows servers that those on the way do not.
#[tokio::test]
async fn a_chain_that_is_walked_at_last_may_come_to_its_end() {
    patience(async {
        let (a, b) = (Worker::new("a"), Worker::new("b"));
        let at_b = b.serve(Chains::new()).await;
        let gone = Worker::new("gone").serve(Chains::new()).await;
        gone.kill();
        let named = |server| {
            let servers = Servers::new([at(server)]).expect("one");
            Chains::new().servers("work", servers)
        };
        let (at_a, client) = (a.serve(named(&gone)).await, Net::Tcp.client().await);
        let name: Address = "service://work".parse().expect("an address");
        let chain = first(&at_a)
            .then(&name, &work::ADD)
            .then(&name, &work::PASS);
        let backup = Worker::with(Inside {
            backup: Some(at(&at_b)),
            ..Inside::default()
        });
        // It forwards its work, and is a link all the same.
        let at_backup = backup.serve(Chains::new()).await;
        let chain = chain.then(at(&at_backup), &work::PASS);
        let home = named(&at_b).at_home();
        let mut running = chain
            .run(caller(&client), Run::new().retries(1).home(&home))
            .expect("small");
        let missing = status(running.answer().await);
        assert_eq!(
            missing.message().split(" [").next(),
            Some("none"),
            "{missing}"
        );
        let chain = first(&at_a)
            .then(&name, &work::ADD)
            .then(at(&at_backup), &work::PASS);
        let answer = end(chain, &client, Run::new().retries(1).home(&home)).await;
        assert_eq!(answer, Ok("text.a.b.b".into()));
        assert_eq!([&a, &b].map(Worker::begun), [2, 4]);
    })
    .await;
}

/// Later links have other names than the walk would give them: they would run twice.
#[tokio::test]
async fn a_chain_is_not_walked_behind_a_link_that_hands_its_work_on() {
    patience(async {
        let (b, c) = (Worker::new("b"), Worker::new("c"));
        let (at_b, at_c) = (b.serve(Chains::new()).await, c.serve(Chains::new()).await);
        let a = Worker::with(Inside {
            backup: Some(at(&at_b)),
            ..Inside::default()
        });
        let at_a = a.serve(Chains::new()).await;
        let gone = Worker::new("gone").serve(Chains::new()).await;
        gone.kill();
        let client = Net::Tcp.client().await;
        let chain = pipe(at(&at_a), &work::PASS, ("text".to_owned(),));
        let chain = chain.then(at(&at_c), &work::ADD);
        let chain = chain.then(at(&gone), &work::ADD);
        let home = Chains::new().at_home();
        let run = Run::new().retries(1).home(&home);
        let mut running = chain.run(caller(&client), run).expect("small");
        let error = running.answer().await.expect_err("nobody does it");
        assert_eq!(error.server(), Some(&at(&gone)), "{error}");
        assert_eq!((running.attempts(), running.broken()), (2, None));
        assert_eq!([&a, &b, &c].map(Worker::begun), [1; 3]);
    })
    .await;
}

/// An exception is the chain's end, as an answer is.
#[tokio::test]
async fn a_chain_that_ends_by_an_exception_is_not_made_again() {
    patience(async {
        let a = Worker::new("a");
        let (at_a, client) = (a.serve(Chains::new()).await, Net::Tcp.client().await);
        let chain = first(&at_a).then(at(&at_a), &work::REFUSE);
        let home = Chains::new().at_home();
        let run = Run::new().retries(5).home(&home);
        let mut running = chain.run(caller(&client), run).expect("small");
        let refused = status(running.answer().await);
        assert_eq!(refused.code(), StatusCode::PermissionDenied);
        assert_eq!((running.attempts(), a.begun()), (1, 2));
    })
    .await;
}

/// Asks for a link as a chain does that wants it to be recorded.
async fn ask(
    client: &Endpoint,
    server: &Endpoint,
    id: DurableId,
    text: &str,
) -> Result<String, Status> {
    // Not marked, no hops, no path, no branches, no levels, no code; it asks for records, and avoids nobody.
    let recorded = b"wchn\x04\0\0\0\0\0\0\0\x04\0".to_vec();
    let client = client
        .caller()
        .at(at(server))
        .durable(id)
        .continuation(recorded);
    let answer = client.call(&work::ADD, (text.to_owned(),)).await;
    answer.map_err(|error| status::<()>(Err(error)))
}

#[tokio::test]
async fn a_link_that_runs_is_waited_for_and_not_run_again() {
    patience(async {
        let a = Worker::waiting("a");
        let (at_a, client) = (a.serve(Chains::new()).await, Net::Tcp.client().await);
        let id = DurableId::new(7, 1);
        let two =
            async { tokio::join!(ask(&client, &at_a, id, "x"), ask(&client, &at_a, id, "x")) };
        let goes_on = async {
            until(|| at_a.metrics().requests_received == 2).await;
            a.go_on();
        };
        let (two, ()) = tokio::join!(two, goes_on);
        assert_eq!(two, (Ok("x.a".into()), Ok("x.a".into())));
        assert_eq!(ask(&client, &at_a, id, "x").await, Ok("x.a".into()));
        assert_eq!(a.begun(), 1);
        // Another request has no business with this one's record.
        let other = ask(&client, &at_a, id, "y").await.expect_err("not its own");
        assert_eq!(other.code(), StatusCode::FailedPrecondition);
        assert!(
            other
                .message()
                .starts_with("another request has this durable id"),
            "{other}"
        );
        assert_eq!(
            ask(&client, &at_a, DurableId::new(7, 2), "y").await,
            Ok("y.a".into())
        );
        assert_eq!(a.begun(), 2);
    })
    .await;
}

/// A request that is given up leaves nothing behind: the next one runs.
#[tokio::test]
async fn a_link_that_was_stopped_is_run_again() {
    patience(async {
        let a = Worker::waiting("a");
        let (at_a, client) = (a.serve(Chains::new()).await, Net::Tcp.client().await);
        let id = DurableId::new(7, 1);
        tokio::select! {
            answer = ask(&client, &at_a, id, "x") => panic!("{answer:?}"),
            () = a.has_begun(1) => {}
        }
        until(|| at_a.load().is_idle()).await;
        a.go_on();
        assert_eq!(ask(&client, &at_a, id, "x").await, Ok("x.a".into()));
        assert_eq!(a.begun(), 2);
    })
    .await;
}

#[tokio::test]
async fn records_have_limits() {
    patience(async {
        let few = |records, record_bytes, record_life| Limits {
            records,
            record_bytes,
            record_life,
            ..Limits::default()
        };
        let minute = Duration::from_secs(60);
        for (limits, kept) in [
            (Limits::default(), true),
            (few(1, 64 << 20, minute), false),
            (few(4096, 1, minute), false),
            (few(4096, 64 << 20, Duration::ZERO), false),
        ] {
            let a = Worker::new("a");
            let at_a = a.serve(Chains::new().limits(limits)).await;
            let client = Net::Tcp.client().await;
            let (first, second) = (DurableId::new(7, 1), DurableId::new(7, 2));
            for id in [first, second, first] {
                assert_eq!(ask(&client, &at_a, id, "x").await, Ok("x.a".into()));
            }
            assert_eq!(a.begun(), if kept { 2 } else { 3 }, "{kept}");
        }
    })
    .await;
}
