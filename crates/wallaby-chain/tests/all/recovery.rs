//! Chains that are lost on their way and made again: what their links have come to is known, and what breaks them is named.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Semaphore;
use wallaby::{
    Address, Caller, Code as StatusCode, DurableId, Endpoint, Method, One, Request, Servers, Status,
};
use wallaby_chain::{
    Answer, Chain, ChainError, ChainEvent, ChainLimits, Chains, Hop, Merge, Run, State, Step, pipe,
    start,
};

use crate::world::{Net, at, patience, status, until};

/// Work that somebody counts.
#[wallaby::service(package = "test")]
trait Work {
    async fn add(text: String) -> String;
    /// The same, by another server perhaps, as a chain of this one.
    async fn pass(text: String) -> String;
    async fn refuse(text: String) -> String;
    /// Another answer each time.
    async fn count(text: String) -> String;
    /// It goes on though it is stopped.
    async fn finish(text: String) -> String;
    /// So does this, on a thread.
    async fn block(text: String) -> String;
    /// How many milliseconds it has; it takes some.
    async fn late(text: String) -> String;
}

/// How long something takes.
const LATE: Duration = Duration::from_millis(300);

/// What a server has done, and whether it does it at once.
#[derive(Clone, Default)]
struct Worker(Arc<Inside>);

#[derive(Default)]
struct Inside {
    name: &'static str,
    /// How often it was begun.
    begun: AtomicU64,
    /// How much of it goes on now, and at most.
    busy: AtomicU64,
    busiest: AtomicU64,
    /// None if it waits for nothing.
    gate: Option<Semaphore>,
    backup: Option<Address>,
}

impl Inside {
    async fn wait(&self) {
        if let Some(gate) = &self.gate {
            gate.acquire().await.expect("it is open").forget();
        }
    }
}

/// Something is done, until this is dropped.
struct Busy<'a>(&'a Inside);

impl<'a> Busy<'a> {
    fn begin(inside: &'a Inside) -> Self {
        inside.begun.fetch_add(1, Ordering::SeqCst);
        let busy = inside.busy.fetch_add(1, Ordering::SeqCst) + 1;
        inside.busiest.fetch_max(busy, Ordering::SeqCst);
        Self(inside)
    }
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.busy.fetch_sub(1, Ordering::SeqCst);
    }
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
        self.0.wait().await;
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

    async fn count(&self, text: String) -> String {
        let begun = self.0.begun.fetch_add(1, Ordering::SeqCst);
        format!("{text}.{begun}")
    }

    async fn finish(&self, request: Request<One<String>>, text: String) -> Result<(), Status> {
        let _busy = Busy::begin(&self.0);
        request.shield(self.0.wait()).await;
        Ok(request.respond(text).await?)
    }

    fn block(&self, request: Request<One<String>>, text: String) -> Result<(), Status> {
        let _busy = Busy::begin(&self.0);
        tokio::runtime::Handle::current().block_on(self.0.wait());
        Ok(request.blocking_respond(text)?)
    }

    async fn late(&self, request: Request<One<String>>, text: String) -> Result<(), Status> {
        let left = request.remaining().as_millis();
        tokio::time::sleep(LATE).await;
        Ok(request.respond(format!("{text} {left}")).await?)
    }
}

/// A client that misses servers soon.
pub(crate) fn caller(client: &Endpoint) -> Caller {
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
                    ChainEvent::Line(line) => lines.push(line.text),
                    ChainEvent::End(text) => answer = Some(text),
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

/// A handler need not know whether it is called by a chain.
#[tokio::test]
async fn a_handler_may_answer_with_a_chain_that_begins_at_a_name() {
    patience(async {
        let b = Worker::new("b");
        let at_b = b.serve(Chains::new()).await;
        let client = Net::Tcp.client().await;
        let passing = |name: &str| {
            let backup = Some(name.parse().expect("an address"));
            Worker::with(Inside {
                backup,
                ..Inside::default()
            })
        };
        let servers = Servers::new([at(&at_b)]).expect("one");
        let named = || Chains::new().servers("work", servers.clone());
        let at_a = passing("service://work").serve(named()).await;
        let call = |server: &Endpoint| {
            let client = client.caller().at(at(server));
            client.call(&work::PASS, ("text".to_owned(),))
        };
        assert_eq!(call(&at_a).await, Ok("text.b".into()));
        let chain = pipe(at(&at_a), &work::PASS, ("text".to_owned(),));
        assert_eq!(end(chain, &client, Run::new()).await, Ok("text.b".into()));
        let at_a = passing("service://other").serve(named()).await;
        let unknown = status(call(&at_a).await);
        let text = "no servers are known as \"other\" at this server";
        assert!(unknown.message().contains(text), "{unknown}");
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
        assert_eq!(
            missing.message().matches(" [chain ").count(),
            1,
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
    ask_for(client, server, id, &work::ADD, text).await
}

async fn ask_for(
    client: &Endpoint,
    server: &Endpoint,
    id: DurableId,
    method: &'static Method<(String,), One<String>>,
    text: &str,
) -> Result<String, Status> {
    // Not marked, no hops, no path, no branches, no levels, no code; it asks for records, and avoids nobody.
    let recorded = b"wchn\x04\0\0\0\0\0\0\0\x04\0".to_vec();
    let client = client
        .caller()
        .at(at(server))
        .durable(id)
        .continuation(recorded);
    let answer = client.call(method, (text.to_owned(),)).await;
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
        // Another request has a record of its own.
        for (id, text) in [(id, "y"), (DurableId::new(7, 2), "x"), (id, "x")] {
            let answer = ask(&client, &at_a, id, text).await;
            assert_eq!(answer, Ok(format!("{text}.a")));
        }
        assert_eq!(a.begun(), 3);
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
        let few = |records, record_bytes, record_life| ChainLimits {
            records,
            record_bytes,
            record_life,
            ..ChainLimits::default()
        };
        let minute = Duration::from_secs(60);
        let one = |record| ChainLimits {
            record,
            ..ChainLimits::default()
        };
        for (limits, kept) in [
            (ChainLimits::default(), true),
            (few(4096, 64 << 20, Duration::MAX), true),
            (one(4096), true),
            (one(1), false),
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

/// As many run as there may be records of, and those above run as well: twice, if they come twice.
#[tokio::test]
async fn a_link_runs_though_there_is_no_room_to_record_it() {
    patience(async {
        let a = Worker::waiting("a");
        let limits = ChainLimits {
            records: 1,
            ..ChainLimits::default()
        };
        let at_a = a.serve(Chains::new().limits(limits)).await;
        let client = Net::Tcp.client().await;
        let asks = [1, 2, 3, 3].map(|number| {
            let id = DurableId::new(7, number);
            let (client, at_a) = (client.clone(), at_a.clone());
            tokio::spawn(async move { ask(&client, &at_a, id, "x").await })
        });
        a.has_begun(4).await;
        a.go_on();
        for ask in asks {
            assert_eq!(ask.await.expect("no panic"), Ok("x.a".into()));
        }
    })
    .await;
}

/// What the server that is lost was sent by has not been done anywhere else before.
#[tokio::test]
async fn a_link_that_is_done_is_asked_for_where_it_was_done() {
    patience(async {
        let [one, two, again] = ["one", "two", "c"].map(Worker::new);
        let (a, c) = (Worker::new("a"), Worker::waiting("c"));
        let (at_one, at_two) = (
            one.serve(Chains::new()).await,
            two.serve(Chains::new()).await,
        );
        let both = Servers::new([at(&at_one), at(&at_two)]).expect("two");
        // With what it stands for before it, as in an address.
        let named = || Chains::new().servers("service://work", both.clone());
        let (at_a, at_c) = (a.serve(named()).await, c.serve(Chains::new()).await);
        let (client, home) = (Net::Tcp.client().await, named().at_home());
        let name: Address = "service://work".parse().expect("an address");
        const CHAINS: u64 = 8;
        let chains = (0..CHAINS).map(|number| {
            let first = match number % 2 {
                0 => first(&at_a).then(&name, &work::ADD),
                _ => pipe(&name, &work::ADD, ("text".to_owned(),)),
            };
            let run = Run::new().retries(8).home(&home);
            let chain = first.then(at(&at_c), &work::ADD);
            let mut running = chain.run(caller(&client), run).expect("small");
            tokio::spawn(async move { running.answer().await })
        });
        let chains: Vec<_> = chains.collect();
        c.has_begun(CHAINS).await;
        at_c.kill();
        let _at_c = again.serve_at(&at(&at_c).to_string(), Chains::new()).await;
        for chain in chains {
            let answer = chain.await.expect("no panic").expect("it goes on");
            assert!(answer.ends_with(".c"), "{answer}");
        }
        assert_eq!(one.begun() + two.begun(), CHAINS);
        assert_eq!([&a, &again].map(Worker::begun), [CHAINS / 2, CHAINS]);
    })
    .await;
}

/// A link that has forgotten what it came to comes to something else: what follows is new, and no error.
#[tokio::test]
async fn what_is_asked_in_another_way_is_done() {
    patience(async {
        let [a, b, again] = ["a", "b", "c"].map(Worker::new);
        let c = Worker::waiting("c");
        let forgets = ChainLimits {
            record_life: Duration::ZERO,
            ..ChainLimits::default()
        };
        let at_a = a.serve(Chains::new().limits(forgets)).await;
        let (at_b, at_c) = (b.serve(Chains::new()).await, c.serve(Chains::new()).await);
        let client = Net::Tcp.client().await;
        let chain = pipe(at(&at_a), &work::COUNT, ("text".to_owned(),));
        let chain = chain
            .then(at(&at_b), &work::ADD)
            .then(at(&at_c), &work::ADD);
        let run = Run::new().retries(8);
        let mut running = chain.run(caller(&client), run).expect("small");
        let dies = async {
            c.has_begun(1).await;
            at_c.kill();
            again.serve_at(&at(&at_c).to_string(), Chains::new()).await
        };
        let (answer, _at_c) = tokio::join!(running.answer(), dies);
        let attempts = running.attempts();
        assert_eq!(answer, Ok(format!("text.{}.b.c", attempts - 1)));
        assert_eq!(b.begun(), u64::from(attempts));
    })
    .await;
}

/// So a function that passes it on says the same again.
#[tokio::test]
async fn an_exception_names_its_chain_the_same_in_each_attempt() {
    patience(async {
        let [a, b, again] = ["a", "b", "c"].map(Worker::new);
        let c = Worker::waiting("c");
        let (at_b, at_c) = (b.serve(Chains::new()).await, c.serve(Chains::new()).await);
        let to_b = at(&at_b);
        let caught = Chains::new().catching("caught", move |_, exception| {
            Ok(Hop::to(&to_b, &work::ADD, (exception.chain().to_owned(),)).into())
        });
        let at_a = a.serve(caught).await;
        let client = Net::Tcp.client().await;
        let chain = pipe(at(&at_a), &work::REFUSE, ("text".to_owned(),));
        let chain = chain
            .catch(at(&at_a), "caught", State::new())
            .then(at(&at_c), &work::ADD);
        let id = DurableId::new(7, 4711);
        let run = Run::new().retries(8);
        let mut running = chain.run(caller(&client).durable(id), run).expect("small");
        let dies = async {
            c.has_begun(1).await;
            at_c.kill();
            again.serve_at(&at(&at_c).to_string(), Chains::new()).await
        };
        let (answer, _at_c) = tokio::join!(running.answer(), dies);
        assert_eq!(answer, Ok("4711.b.c".into()), "by the durable id");
        assert_eq!([&a, &b, &again].map(Worker::begun), [1; 3]);
    })
    .await;
}

/// Who has a name for the chain may ask for it again.
#[tokio::test]
async fn a_chain_has_the_durable_id_of_its_caller() {
    patience(async {
        let a = Worker::new("a");
        let (at_a, client) = (a.serve(Chains::new()).await, Net::Tcp.client().await);
        for (number, begun) in [(1, 1), (1, 1), (2, 2)] {
            let caller = caller(&client).durable(DurableId::new(7, number));
            let mut running = first(&at_a)
                .run(caller, Run::new().retries(1))
                .expect("small");
            assert_eq!(running.answer().await, Ok("text.a".into()));
            assert_eq!(a.begun(), begun);
        }
        // Of a chain that is walked all links would have it.
        let caller = caller(&client).durable(DurableId::new(7, 1));
        let refused = first(&at_a).walk(caller, &Chains::new().at_home());
        assert_eq!(refused.expect_err("one for all"), ChainError::Durable);
    })
    .await;
}

/// What is not at home is no exception of the chain, so nobody catches it.
#[tokio::test]
async fn a_function_that_is_not_at_home_ends_the_last_walk_by_the_loss() {
    patience(async {
        let a = Worker::new("a");
        let gone = Worker::new("gone").serve(Chains::new()).await;
        gone.kill();
        let client = Net::Tcp.client().await;
        let to_gone = at(&gone);
        let goes = move |_, answer: Answer| {
            Ok(Hop::to(&to_gone, &work::ADD, (answer.read::<String>()?,)).into())
        };
        let splits = |state: State, answer: Answer| {
            let (a, text): (Address, String) = (state.get("a")?, answer.read()?);
            let hops = [1, 2].map(|_| Hop::to(&a, &work::ADD, (text.clone(),)));
            Ok(Step::split(hops, Merge::at(&a, "join", state)))
        };
        let catching = || {
            Chains::new().catching("caught", |_, exception| {
                Step::end(&format!("caught {}", exception.message()))
            })
        };
        let to_gone = at(&gone);
        let all = catching()
            .function("goes", goes)
            .function("splits", splits)
            .merging("join", move |_, _| {
                Ok(Hop::to(&to_gone, &work::ADD, ("joined".to_owned(),)).into())
            });
        let at_a = a.serve(all).await;
        let state = || State::new().with("a", &at(&at_a)).expect("an address");
        for (function, home) in [
            ("goes", catching()),
            ("splits", catching()),
            ("splits", catching().function("splits", splits)),
        ] {
            let hop = Hop::to(at(&at_a), &work::ADD, ("text".to_owned(),));
            let chain = start::<String>(hop.then(function, state()));
            let chain = chain.catch(at(&at_a), "caught", State::new());
            let run = Run::new().retries(1).home(&home.at_home());
            let mut running = chain.run(caller(&client), run).expect("small");
            let lost = running.answer().await.expect_err("nobody is there");
            assert_eq!(lost.server(), Some(&at(&gone)), "{lost}");
            assert_eq!((running.attempts(), running.broken()), (2, None));
        }
    })
    .await;
}

/// Its time is that of the chain, also where it is walked.
#[tokio::test]
async fn links_of_the_last_walk_have_what_time_is_left() {
    patience(async {
        let [a, b, gone] = ["a", "b", "gone"].map(Worker::new);
        let (at_b, gone) = (
            b.serve(Chains::new()).await,
            gone.serve(Chains::new()).await,
        );
        gone.kill();
        let named = |server| {
            let servers = Servers::new([at(server)]).expect("one");
            Chains::new().servers("work", servers)
        };
        let (at_a, client) = (a.serve(named(&gone)).await, Net::Tcp.client().await);
        let name: Address = "service://work".parse().expect("an address");
        let chain = first(&at_a)
            .then(&name, &work::LATE)
            .then(&name, &work::LATE);
        let run = Run::new().retries(1).home(&named(&at_b).at_home());
        let answer = end(chain, &client, run).await.expect("it is there");
        let left: Vec<u128> = answer
            .split(' ')
            .skip(1)
            .map(|left| left.parse().expect("a number"))
            .collect();
        assert!(left[0] >= left[1] + LATE.as_millis() / 2, "{answer}");
    })
    .await;
}

/// What will not be better next time is not tried again, and a name that nobody knows here is not sent.
#[tokio::test]
async fn what_cannot_be_sent_from_here_is_no_loss() {
    patience(async {
        let client = Net::Tcp.client().await;
        let to = |server: &str| {
            let server: Address = server.parse().expect("an address");
            pipe(server, &work::ADD, ("text".to_owned(),))
        };
        let run = Run::new().retries(3);
        let mut running = to("none://text")
            .run(caller(&client), run.clone())
            .expect("small");
        running.answer().await.expect_err("no transport");
        assert_eq!(running.attempts(), 1);
        let refused = to("service://work").run(caller(&client), run);
        assert!(matches!(
            refused.expect_err("a name"),
            ChainError::NoServers(_)
        ));
        let refused = to("service://work").call(client.caller());
        let text = "nobody knows here which servers are \"work\": `Run::home` says it";
        assert_eq!(refused.expect_err("a name").to_string(), text);
    })
    .await;
}

/// Which servers it avoids is said only where there is room for it.
#[tokio::test]
async fn a_chain_that_just_fits_is_made_again() {
    patience(async {
        let client = Net::Tcp.client().await;
        let gone = Worker::new("gone").serve(Chains::new()).await;
        gone.kill();
        let begin = |size: usize| {
            let hop = Hop::to(at(&gone), &work::ADD, ("text".to_owned(),));
            let hop = hop.then(&*"x".repeat(size), State::new());
            start::<String>(hop).run(caller(&client), Run::new().retries(1))
        };
        let mut running = (0..=16_384).rev().find_map(|size| begin(size).ok());
        let running = running.as_mut().expect("one fits");
        let lost = running.answer().await.expect_err("nobody is there");
        assert_eq!(
            (lost.server(), running.attempts()),
            (Some(&at(&gone)), 2),
            "{lost}"
        );
    })
    .await;
}

/// It avoids the latest ones: no more travel than a server takes.
#[tokio::test]
async fn a_chain_avoids_so_many_servers_and_no_more() {
    patience(async {
        let mut gone = Vec::new();
        for _ in 0..6 {
            let server = Worker::new("gone").serve(Chains::new()).await;
            gone.push(at(&server));
            server.kill();
        }
        let named = Chains::new().servers("work", Servers::new(gone.clone()).expect("six"));
        let a = Worker::new("a");
        let (at_a, client) = (a.serve(named).await, Net::Tcp.client().await);
        let name: Address = "service://work".parse().expect("an address");
        let chain = first(&at_a).then(&name, &work::ADD);
        let mut running = chain
            .run(caller(&client), Run::new().retries(5))
            .expect("small");
        let lost = running.answer().await.expect_err("nobody is there");
        assert!(
            gone.iter().any(|gone| lost.server() == Some(gone)),
            "{lost}"
        );
        assert_eq!((running.attempts(), a.begun()), (6, 1));
    })
    .await;
}

/// What cannot be stopped is waited for, so it is not done twice at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_link_that_goes_on_after_it_was_stopped_is_waited_for() {
    patience(async {
        for method in [&work::FINISH, &work::BLOCK] {
            let a = Worker::waiting("a");
            let (at_a, client) = (a.serve(Chains::new()).await, Net::Tcp.client().await);
            let id = DurableId::new(7, 1);
            tokio::select! {
                answer = ask_for(&client, &at_a, id, method, "x") => panic!("{answer:?}"),
                () = a.has_begun(1) => {}
            }
            let again = ask_for(&client, &at_a, id, method, "x");
            let goes_on = async {
                until(|| at_a.metrics().requests_received == 2).await;
                // A request after it has come to its handler, so that one has, or waits.
                let other = DurableId::new(7, 2);
                let other = ask_for(&client, &at_a, other, &work::COUNT, "y").await;
                a.go_on(); // before anything fails: threads are waited for
                other
            };
            let (again, other) = tokio::join!(again, goes_on);
            assert_eq!((again, other), (Ok("x".into()), Ok("y.1".into())));
            assert_eq!(a.0.busiest.load(Ordering::SeqCst), 1);
            assert_eq!(a.begun(), 3);
        }
    })
    .await;
}
