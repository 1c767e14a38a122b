//! Every call ends by its deadline, and says what was missing; servers learn how much time is left.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::common::{
    Gate, Net, all, at, client, failure, load, patience, service, sorted, until, work,
};
use tokio::sync::mpsc;
use wallaby::{
    CallOptions, Client, Endpoint, ExecutorConfig, Failure, Many, One, Outcome, Request, Schedule,
};

/// Long enough for a request to arrive, short enough for a test to wait for its end.
const SHORT: Duration = Duration::from_millis(100);

/// Never reached.
const LONG: Duration = Duration::from_secs(3600);

over_every_transport!(
    a_call_without_an_end_fails_at_its_deadline,
    a_deep_request_without_an_end_is_named,
    servers_that_work_was_handed_to_are_named,
    a_slow_shard_is_named_in_one_line,
    a_mute_shard_is_named_however_short_the_deadline,
    time_left_travels_down_the_tree,
);

async fn a_call_without_an_end_fails_at_its_deadline(net: Net) {
    let (stopped, mut stops) = mpsc::unbounded_channel();
    let server = service().method(&work::MANY, move |request: Request<Many<_>>, (_,)| {
        let stopped = stopped.clone();
        async move {
            request.reply("so far".into()).await?;
            request.cancelled().await;
            let late = request.reply("too late".into()).await;
            stopped
                .send((request.is_cancelled(), late))
                .expect("the test listens");
            Ok(())
        }
    });
    let server = net.serve(server.shielded()).await;
    let client = client();
    let mut call = work::at(&client, at(&server))
        .deadline(SHORT)
        .many(String::new());
    assert_eq!(
        call.next().await.expect("an answer").expect("an answer"),
        "so far"
    );
    let Failure::Deadline { after, missing } = failure(call.next().await.expect("an error")) else {
        panic!("another failure: {:?}", call.outcome())
    };
    assert_eq!(after, SHORT);
    let line = format!("request 0 (test.Work/many) at {}: 1 answer, ", at(&server));
    let state = missing.to_string().replace(&line, "");
    // It was asked after half of its time.
    let told = ["running, no progress for ", "silent for "];
    assert!(told.iter().any(|told| state.starts_with(told)), "{missing}");
    let failed = Some(Outcome::Failed(Failure::Deadline { after, missing }));
    assert_eq!(call.outcome(), failed);
    assert_eq!(client.metrics().calls_failed, 1);
    assert!(call.next().await.is_none());
    let (cancelled, late) = stops.recv().await.expect("the handler goes on");
    assert!(cancelled);
    assert!(late.is_err(), "{late:?}");
    until(|| server.load().is_idle()).await;
}

async fn a_deep_request_without_an_end_is_named(net: Net) {
    let leaf = service().method(
        &work::MANY,
        |request: Request<Many<String>>, (_,)| async move {
            // It is shielded and ignores that it is cancelled, and so its server has nothing to say.
            std::future::pending::<()>().await;
            drop(request);
            Ok(())
        },
    );
    let leaf = net
        .bind(
            Endpoint::builder()
                .serve(leaf.shielded())
                .grace(Duration::from_millis(1)),
        )
        .await;
    let next = at(&leaf);
    let root = service().method(&work::MANY, move |request: Request<Many<_>>, (_,)| {
        let next = next.clone();
        async move {
            request.delegate(next, work::many(String::new())).await?;
            Ok(request.respond("root".into()).await?)
        }
    });
    let root = net.serve(root).await;
    let endpoint = net.endpoint().await;
    let mut call = work::at(&endpoint, at(&root))
        .deadline(SHORT)
        .many(String::new());
    let items = all(&mut call).await;
    assert_eq!(items[0].as_deref(), Ok("root"));
    assert_eq!(items.len(), 2);
    let Failure::Deadline { missing, .. } = failure(items[1].clone()) else {
        panic!("another failure: {:?}", items[1])
    };
    assert_eq!(missing.branches.len(), 1);
    assert_eq!(missing.branches[0].request.to_string(), "0.0");
    // The handler goes on, but does not keep others from running.
    until(|| leaf.load().is_idle()).await;
    assert_eq!(leaf.metrics().stuck, 1);
}

/// Whoever reads the error must look at the server that is slow, not at the one that passed the work on.
async fn servers_that_work_was_handed_to_are_named(net: Net) {
    let gate = Gate::new();
    let mut leaves = Vec::new();
    for _ in 0..2 {
        let gate = gate.clone();
        let leaf = service().method(
            &work::MANY,
            move |request: Request<Many<String>>, (_,): (String,)| {
                let gate = gate.clone();
                async move {
                    gate.pass().await;
                    drop(request);
                    Ok(())
                }
            },
        );
        leaves.push(net.serve(leaf.shielded()).await);
    }
    let to: Vec<_> = leaves.iter().map(at).collect();
    let root = service().method(&work::MANY, move |request: Request<Many<_>>, (how,)| {
        let to = to.clone();
        async move {
            if how == "forward" {
                return Ok(request.forward(&to[1], work::many(String::new())).await?);
            }
            for leaf in &to {
                request.delegate(leaf, work::many(String::new())).await?;
            }
            Ok(())
        }
    });
    let root = net.serve(root).await;
    let client = net.endpoint().await;
    for (how, expected) in [
        ("forward", vec![("0+1", 1)]),
        ("delegate", vec![("0.0", 0), ("0.1", 1)]),
    ] {
        let caller = Client::new(&client, at(&root))
            .ping(Duration::from_millis(20), LONG)
            .deadline(Duration::from_millis(1500));
        let mut call = work::within(caller).many(how.to_owned());
        let Failure::Deadline { missing, .. } = failure(call.next().await.expect("an error"))
        else {
            panic!("another failure: {:?}", call.outcome())
        };
        let expected = expected.into_iter();
        let expected = expected.map(|(id, leaf)| (id.to_owned(), Some(at(&leaves[leaf]))));
        let named = missing.branches.iter();
        let named = named.map(|branch| (branch.request.to_string(), branch.server.address.clone()));
        let named: BTreeSet<_> = named.collect(); // which has been silent for longer is by chance
        assert!(named.into_iter().eq(expected), "{missing}");
    }
    gate.open(3);
}

/// It has not answered yet, and the call has less time than a ping period. On a busy machine half of that may be too little.
async fn a_mute_shard_is_named_however_short_the_deadline(net: Net) {
    let shard = service().method(
        &work::MANY,
        |request: Request<Many<String>>, (_,)| async move {
            std::future::pending::<()>().await;
            drop(request);
            Ok(())
        },
    );
    let shard = net.serve(shard).await;
    let to = at(&shard);
    let front = service().method(&work::MANY, move |request: Request<Many<_>>, (_,)| {
        let to = to.clone();
        async move { Ok(request.delegate(to, work::many(String::new())).await?) }
    });
    let front = net.serve(front).await;
    let client = net.client().await;
    let mut time = Duration::from_millis(50);
    loop {
        let caller = Client::new(&client, at(&front))
            .ping(LONG, LONG)
            .deadline(time);
        let mut call = work::within(caller).many(String::new());
        let error = call
            .next()
            .await
            .expect("an end")
            .expect_err("nobody answers");
        let named = format!("request 0+1 (test.Work/many) at {}: ", at(&shard));
        if error.to_string().contains(&named) {
            break assert_eq!(error.server(), Some(&at(&shard)));
        }
        time *= 2; // its address may be known, and not yet what it was asked
    }
}

/// The commonest case of all: a front end asks three shards, and one of them does not end.
async fn a_slow_shard_is_named_in_one_line(net: Net) {
    let mut shards = Vec::new();
    for number in 0..3 {
        let shard = service().method(
            &work::MANY,
            move |request: Request<Many<String>>, (what,): (String,)| async move {
                request.reply(format!("{what} {number}")).await?;
                request.reply(format!("{what} {number}")).await?;
                if number == 1 {
                    request.cancelled().await;
                    std::future::pending::<()>().await;
                }
                Ok(())
            },
        );
        shards.push(net.serve(shard.shielded()).await);
    }
    let to: Vec<_> = shards.iter().map(at).collect();
    let front = service().method(
        &work::MANY,
        move |request: Request<Many<_>>, (what,): (String,)| {
            let to = to.clone();
            async move {
                for shard in &to {
                    request.delegate(shard, work::many(what.clone())).await?;
                }
                Ok(())
            }
        },
    );
    let front = net.serve(front).await;
    let slow = at(&shards[1]);
    for caller in [net.client().await, net.endpoint().await] {
        // However long the period, it is asked before the deadline.
        for period in [Duration::from_millis(20), LONG] {
            let mut call = work::within(
                Client::new(&caller, at(&front))
                    .ping(period, LONG)
                    .deadline(Duration::from_millis(500)),
            )
            .many("hit".into());
            let items = all(&mut call).await;
            assert_eq!(items.len(), 7, "two hits a shard: {items:?}");
            let error = items[6].clone().expect_err("an end");
            assert_eq!(error.server(), Some(&slow));
            let text = error.to_string();
            let shard = format!("request 0.1 (test.Work/many) at {slow}: 2 answers, ");
            let line = format!("no end within 500ms; missing: {shard}");
            let state = text.strip_prefix(&line).unwrap_or_else(|| panic!("{text}"));
            let running = state.starts_with("running, no progress for ");
            // The pongs may be late.
            assert!(running || state.starts_with("silent for "), "{text}");
            assert_eq!(text.lines().count(), 1);
            let trace = call.trace();
            let named = |hop: &&wallaby::TracedHop| hop.server.as_ref() == Some(&slow);
            let hop = trace.hops.iter().find(named).expect("the trace names it");
            assert_eq!(hop.method.as_deref(), Some("test.Work/many"));
        }
    }
}

/// Answers how many milliseconds were left where it was asked, and asks onward in each way there is.
async fn time_left_travels_down_the_tree(net: Net) {
    let left = |request: &Request<Many<String>>| request.remaining().as_millis().to_string();
    let leaf = service().method(
        &work::MANY,
        move |request: Request<Many<_>>, (what,)| async move {
            let left = format!("{what} {}", left(&request));
            Ok(request.respond(left).await?)
        },
    );
    // This server's own calls have less time; that is none of its callers' concern.
    let hasty = || Endpoint::builder().default_deadline(Duration::from_millis(1));
    let leaf = net.bind(hasty().serve(leaf)).await;
    let next = at(&leaf);
    let root = service().method(&work::MANY, move |request: Request<Many<_>>, (_,)| {
        let next = next.clone();
        async move {
            request.reply(format!("root {}", left(&request))).await?;
            request
                .delegate(&next, work::many("delegated".into()))
                .await?;
            for (name, deadline) in [
                ("called", None),
                ("longer", Some(LONG * 9)),
                ("shorter", Some(LONG / 4)),
            ] {
                let mut client = work::within(request.call().at(&next));
                if let Some(deadline) = deadline {
                    client = client.deadline(deadline);
                }
                for answer in client.many(name.into()).collect().await.expect("an answer") {
                    request.reply(answer).await?;
                }
            }
            Ok(())
        }
    });
    let root = net.bind(hasty().serve(root)).await;
    let endpoint = net.endpoint().await;
    for (deadline, all, shorter) in [(LONG, LONG, LONG / 4), (LONG / 9, LONG / 9, LONG / 9)] {
        let mut call = work::at(&endpoint, at(&root))
            .deadline(deadline)
            .many(String::new());
        let (answers, statuses) = sorted(&mut call).await;
        assert!(statuses.is_empty(), "{statuses:?}");
        assert_eq!(answers.len(), 5, "{answers:?}");
        for answer in answers {
            let (name, left) = answer.split_once(' ').expect("a name and a time");
            let left = Duration::from_millis(left.parse().expect("a number"));
            let expected = if name == "shorter" { shorter } else { all };
            assert!(left <= expected && left > expected / 2, "{name}: {left:?}");
        }
    }
    // A call that says nothing has 60 seconds everywhere.
    let (answers, _) = sorted(&mut work::at(&endpoint, at(&leaf)).many("plain".into())).await;
    let left: u64 = answers[0]
        .split_once(' ')
        .expect("a name and a time")
        .1
        .parse()
        .expect("a number");
    assert!((30_000..=60_000).contains(&left), "{left}");
}

#[tokio::test]
async fn an_endpoint_may_have_another_default() {
    patience(async {
        let net = Net::mem();
        let server = service().method(&work::ONE, |request: Request<One<_>>, (_,)| async move {
            request.cancelled().await;
            Ok(())
        });
        let server = net.serve(server).await;
        let hasty = net.bind(Endpoint::builder().default_deadline(SHORT)).await;
        let failed = failure(work::at(&hasty, at(&server)).one(String::new()).await);
        assert!(
            matches!(failed, Failure::Deadline { after: SHORT, .. }),
            "{failed}"
        );
    })
    .await;
}

#[tokio::test]
async fn no_time_at_all_is_a_deadline_too() {
    patience(async {
        let net = Net::mem();
        let server = service().method(&work::ONE, |request: Request<One<_>>, (_,)| async move {
            request.cancelled().await;
            Ok(())
        });
        let server = net.serve(server).await;
        let client = client();
        let error = work::at(&client, at(&server))
            .deadline(Duration::ZERO)
            .one(String::new())
            .await;
        let Failure::Deadline { after, .. } = failure(error) else {
            panic!("another failure")
        };
        assert_eq!(after, Duration::ZERO);
    })
    .await;
}

#[tokio::test]
async fn the_longest_deadline_is_no_overflow() {
    patience(async {
        let net = Net::mem();
        let server = service().method(&work::ONE, |request: Request<One<_>>, (what,)| async move {
            Ok(request.respond(what).await?)
        });
        let server = net.serve(server).await;
        let client = client();
        let call = work::at(&client, at(&server))
            .deadline(Duration::MAX)
            .one("x".into());
        assert_eq!(call.await.expect("an answer"), "x");
    })
    .await;
}

/// A server that accepts connections and says nothing.
#[tokio::test]
async fn a_silent_server_is_named() {
    patience(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
            .await
            .expect("a port is free");
        let server = wallaby::Address::Tcp(listener.local_addr().expect("it is bound"));
        let client = client();
        let call = work::at(&client, &server)
            .deadline(SHORT)
            .one(String::new());
        let Failure::Deadline { missing, .. } = failure(call.await) else {
            panic!("another failure")
        };
        let line = format!("request 0 (test.Work/one) at {server}: not sent yet");
        assert_eq!(missing.to_string(), line);

        let hasty = Endpoint::builder()
            .dial_timeout(SHORT)
            .bind()
            .await
            .expect("there is a runtime");
        let failed = failure(work::at(&hasty, &server).one(String::new()).await);
        assert!(matches!(failed, Failure::NotSent { .. }), "{failed}");
        assert!(failed.to_string().contains(&server.to_string()), "{failed}");
        drop(listener);
    })
    .await;
}

/// A request that waited for too long is not handled any more.
#[tokio::test]
async fn a_request_whose_deadline_passes_in_the_queue_is_not_run() {
    patience(async {
        let net = Net::mem();
        let (ran, mut runs) = mpsc::unbounded_channel();
        let gate = Gate::new();
        let opened = gate.clone();
        let server = service().method(
            &work::ONE,
            move |request: Request<One<_>>, (what,): (String,)| {
                let (ran, gate) = (ran.clone(), opened.clone());
                async move {
                    ran.send(what.clone()).expect("the test listens");
                    gate.pass().await;
                    Ok(request.respond(what).await?)
                }
            },
        );
        let executor = ExecutorConfig {
            concurrency: 1,
            queue: 9,
            schedule: Schedule::Fifo,
        };
        let server = net
            .bind(Endpoint::builder().serve(server).executor(executor))
            .await;
        let client = client();
        let work = work::at(&client, at(&server));
        let first = work.one("first".into());
        let late = work.clone().deadline(SHORT).one("late".into());
        let third = work.one("third".into());
        until(|| server.load() == load(1, 2)).await;
        late.await.expect_err("its deadline passes");
        // The server learns of it at once.
        until(|| server.metrics().statuses_sent == 1).await;
        gate.open(3);
        assert_eq!(first.await.expect("an answer"), "first");
        assert_eq!(third.await.expect("an answer"), "third");
        until(|| server.load().is_idle()).await;
        assert_eq!(runs.recv().await.as_deref(), Some("first"));
        assert_eq!(runs.recv().await.as_deref(), Some("third"));
    })
    .await;
}

/// What arrives after the deadline changes nothing.
#[tokio::test]
async fn late_answers_are_dropped_and_counted() {
    patience(async {
        let net = Net::mem();
        let gate = Gate::new();
        let opened = gate.clone();
        let server = service().method(&work::MANY, move |request: Request<Many<_>>, (_,)| {
            let gate = opened.clone();
            async move {
                gate.pass().await;
                Ok(request.respond("late".into()).await?)
            }
        });
        let server = net.serve(server).await;
        let client = client();
        let mut call = work::at(&client, at(&server))
            .deadline(SHORT)
            .many(String::new());
        let error = call.next().await.expect("an error").expect_err("an error");
        gate.open(1);
        until(|| client.metrics().late_dropped >= 1).await;
        assert!(call.next().await.is_none(), "after {error}");
        let outcome = call.outcome().expect("it has ended");
        until(|| server.load().is_idle()).await;
        assert_eq!(call.outcome(), Some(outcome), "the end is final");
    })
    .await;
}

/// A request that was moved into a task is stopped like any other.
#[tokio::test]
async fn a_request_in_a_task_is_stopped_at_its_deadline() {
    patience(async {
        let net = Net::mem();
        let (stopped, mut stops) = mpsc::unbounded_channel();
        let server = service().method(&work::MANY, move |request: Request<Many<String>>, (_,)| {
            let stopped = stopped.clone();
            async move {
                tokio::spawn(async move {
                    request.cancelled().await;
                    stopped
                        .send(request.is_cancelled())
                        .expect("the test listens");
                });
                Ok(())
            }
        });
        let server = net.serve(server).await;
        let client = client();
        let mut call = work::at(&client, at(&server))
            .deadline(SHORT)
            .many(String::new());
        call.next().await.expect("an error").expect_err("an error");
        assert_eq!(stops.recv().await, Some(true));
    })
    .await;
}

/// Those said before do not count any more.
#[tokio::test]
async fn options_can_be_given_as_one_value() {
    let net = Net::mem();
    let handler = |request: Request<One<_>>, (_,)| async move {
        let said = ["a", "b"].map(|key| request.metadata().get(key).map(str::to_owned));
        Ok(request.respond(format!("{said:?}")).await?)
    };
    let server = net.serve(service().method(&work::ONE, handler)).await;
    let mut options = CallOptions::default();
    options.metadata.insert("b", "2").expect("it is small");
    options.deadline = Some(Duration::ZERO);
    let work = work::at(&client(), at(&server)).metadata("a", "1");
    let work = work.options(options);
    let late = failure(work.one(String::new()).await);
    assert!(matches!(late, Failure::Deadline { .. }), "{late}");
    let said = work.deadline(LONG).one(String::new()).await;
    assert_eq!(said.expect("an answer"), r#"[None, Some("2")]"#);
}
