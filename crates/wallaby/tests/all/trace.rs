//! `call.trace()`: the tree of hops, as far as its initiator knows it.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::common::{Gate, Net, all, at, client, patience, service, sorted, until, work};
use wallaby::{Address, Endpoint, Many, One, Request, Service, Trace};

over_every_transport!(
    an_untraced_call_knows_its_tree,
    a_traced_call_knows_who_did_what,
    a_hop_tells_parts_of_its_time_apart,
    a_line_of_forwards_is_one_branch,
);

/// Parents come before their children, and each index is right.
fn check(trace: &Trace) {
    for (index, hop) in trace.hops.iter().enumerate() {
        if let Some(parent) = hop.parent {
            assert!(
                parent < index,
                "hop {index} comes before its parent {parent}: {trace:#?}"
            );
            let parent = &trace.hops[parent];
            let same_branch = parent.path == hop.path && parent.hop + 1 == hop.hop;
            let folded = hop.path.starts_with('~');
            let child = folded
                || hop
                    .path
                    .rsplit_once('.')
                    .is_some_and(|(above, _)| above == parent.path);
            assert!(same_branch || child, "{parent:?} is no parent of {hop:?}");
        }
        if let Some(timing) = hop.timing {
            assert!(
                timing.queued + timing.ran <= trace.elapsed + Duration::from_secs(1),
                "{hop:?}"
            );
        }
        assert!(
            hop.answered
                .is_none_or(|answered| answered <= trace.elapsed),
            "{hop:?}"
        );
    }
}

/// `2`: two levels of two children each, which all reply.
fn tree(next: Arc<OnceLock<Address>>) -> Service {
    service().method(
        &work::MANY,
        move |request: Request<Many<_>>, (what,): (String,)| {
            let next = next.get().expect("set").clone();
            async move {
                let levels: u32 = what.parse().expect("a number");
                if levels > 0 {
                    for _ in 0..2 {
                        request
                            .delegate(&next, work::many((levels - 1).to_string()))
                            .await?;
                    }
                }
                request.reply(what).await?;
                Ok(())
            }
        },
    )
}

async fn trees(net: &Net) -> Endpoint {
    let next = Arc::new(OnceLock::new());
    let server = net.serve(tree(Arc::clone(&next))).await;
    next.set(at(&server)).expect("set once");
    server
}

async fn an_untraced_call_knows_its_tree(net: Net) {
    let server = trees(&net).await;
    let initiator = net.endpoint().await;
    let mut call = work::at(&initiator, at(&server)).many("2".into());
    assert_eq!(all(&mut call).await.len(), 7);
    let trace = call.trace();
    check(&trace);
    assert_eq!(trace.call, call.id());
    let paths: Vec<_> = trace.hops.iter().map(|hop| hop.path.as_str()).collect();
    assert_eq!(
        paths,
        ["0", "0.0", "0.1", "0.0.0", "0.0.1", "0.1.0", "0.1.1"]
    );
    for hop in &trace.hops {
        let depth = hop.path.split('.').count();
        assert_eq!(
            (hop.responses, hop.delegated),
            (1, if depth < 3 { 2 } else { 0 }),
            "{hop:?}"
        );
        assert_eq!(hop.timing, None);
        assert_eq!(hop.parent.is_none(), depth == 1);
    }
    let root = &trace.hops[0];
    assert_eq!(root.server.as_ref(), server.address());
    assert_eq!(root.node, Some(server.node()));
    assert_eq!(root.method.as_deref(), Some("test.Work/many"));
}

async fn a_traced_call_knows_who_did_what(net: Net) {
    let server = trees(&net).await;
    let initiator = net.endpoint().await;
    let mut call = work::at(&initiator, at(&server)).traced().many("3".into());
    assert_eq!(all(&mut call).await.len(), 15);
    let trace = call.trace();
    check(&trace);
    assert_eq!(trace.hops.len(), 15);
    assert_eq!(call.trace().elapsed, trace.elapsed, "the call is over");
    for hop in &trace.hops {
        assert_eq!(hop.server.as_ref(), server.address(), "{hop:?}");
        assert_eq!(hop.node, Some(server.node()));
        assert_eq!(hop.method.as_deref(), Some("test.Work/many"));
        assert!(hop.timing.is_some(), "{hop:?}");
        assert!(hop.answered.is_some(), "{hop:?}");
    }
}

async fn a_hop_tells_parts_of_its_time_apart(net: Net) {
    let server = service().method(&work::ONE, |request: Request<One<_>>, (what,)| async move {
        let twice = [
            ("disk", 200),
            ("a name that is longer than thirty-two bytes", 7),
            ("disk", 300),
        ];
        for (name, micros) in twice {
            request.note_time(name, Duration::from_micros(micros));
        }
        Ok(request.respond(what).await?)
    });
    let server = net.serve(server).await;
    let initiator = net.endpoint().await;
    let mut call = work::at(&initiator, at(&server)).traced().one("x".into());
    call.answer().await.expect("an answer");
    let trace = call.trace();
    let parts: Vec<_> = (trace.hops[0].parts.iter())
        .map(|part| (&*part.name, part.took.as_micros()))
        .collect();
    let cut = "a name that is longer than thirt";
    assert_eq!(parts, [("disk", 500), (cut, 7)]);
    assert!(trace.to_string().contains("· disk"), "{trace}");
}

/// Each server forwards to the next; the last one answers.
async fn line(net: &Net, length: usize) -> Vec<Endpoint> {
    let mut servers: Vec<Endpoint> = Vec::new();
    for _ in 0..length {
        let next = servers.last().map(at);
        let server = service().method(&work::ONE, move |request: Request<One<_>>, (what,)| {
            let next = next.clone();
            async move {
                match next {
                    Some(next) => request.forward(next, work::one(what)).await?,
                    None => request.respond(what).await?,
                }
                Ok(())
            }
        });
        servers.push(net.serve(server).await);
    }
    servers.reverse();
    servers
}

async fn a_line_of_forwards_is_one_branch(net: Net) {
    let servers = line(&net, 4).await;
    let initiator = net.endpoint().await;
    let mut call = work::at(&initiator, at(&servers[0]))
        .traced()
        .one("x".into());
    call.answer().await.expect("an answer");
    let trace = call.trace();
    check(&trace);
    assert_eq!(trace.hops.len(), 4);
    for (index, (hop, server)) in trace.hops.iter().zip(&servers).enumerate() {
        assert_eq!((hop.path.as_str(), hop.hop as usize), ("0", index));
        assert_eq!(hop.parent, index.checked_sub(1));
        assert_eq!(hop.server.as_ref(), server.address());
        assert!(hop.timing.is_some());
        assert_eq!(hop.responses, u64::from(index == 3));
    }
    // Nobody asked: only what the call's messages tell anyway.
    let mut call = work::at(&initiator, at(&servers[0])).one("x".into());
    call.answer().await.expect("an answer");
    let trace = call.trace();
    check(&trace);
    assert!(trace.hops.iter().all(|hop| hop.timing.is_none()));
    assert_eq!(trace.hops.last().expect("at least one").hop, 3);
}

/// Deeper than a path can say in full.
#[tokio::test]
async fn deep_trees_keep_their_order() {
    patience(async {
        let net = Net::mem();
        let next = Arc::new(OnceLock::<Address>::new());
        let known = Arc::clone(&next);
        let server = service().method(
            &work::MANY,
            move |request: Request<Many<_>>, (what,): (String,)| {
                let next = known.get().expect("set").clone();
                async move {
                    let levels: u32 = what.parse().expect("a number");
                    if levels > 0 {
                        request
                            .delegate(&next, work::many((levels - 1).to_string()))
                            .await?;
                    }
                    // After the delegation: the branch does not go on there.
                    request.reply(what).await?;
                    Ok(())
                }
            },
        );
        let server = net.serve(server).await;
        next.set(at(&server)).expect("set once");
        let initiator = net.endpoint().await;
        for traced in [false, true] {
            let work = work::at(&initiator, at(&server));
            let work = if traced { work.traced() } else { work };
            let mut call = work.many("40".into());
            let (answers, statuses) = sorted(&mut call).await;
            assert_eq!((answers.len(), statuses.len()), (41, 0));
            let trace = call.trace();
            check(&trace);
            assert_eq!(trace.hops.len(), 41);
            let orphans = trace.hops.iter().filter(|hop| hop.parent.is_none()).count();
            assert_eq!(orphans, 1, "{trace:#?}");
            assert!(
                trace.hops.last().expect("41").path.starts_with('~'),
                "it is folded"
            );
        }
    })
    .await;
}

/// Only the newest records travel along a very long line.
#[tokio::test]
async fn a_long_line_is_traced_in_part() {
    patience(async {
        let net = Net::mem();
        let servers = line(&net, 60).await;
        let initiator = net.endpoint().await;
        let mut call = work::at(&initiator, at(&servers[0]))
            .traced()
            .one("x".into());
        call.answer().await.expect("an answer");
        let trace = call.trace();
        check(&trace);
        assert_eq!(trace.hops.last().expect("some").hop, 59);
        assert!(trace.hops.iter().filter(|hop| hop.timing.is_some()).count() >= 30);
    })
    .await;
}

#[tokio::test]
async fn a_call_that_goes_on_shows_what_is_known() {
    patience(async {
        let net = Net::mem();
        let gate = Gate::new();
        let opened = gate.clone();
        let server = service().method(&work::MANY, move |request: Request<Many<_>>, (_,)| {
            let gate = opened.clone();
            async move {
                request.reply("first".into()).await?;
                gate.pass().await;
                Ok(request.respond("second".into()).await?)
            }
        });
        let server = net.serve(server).await;
        let client = client();
        let mut call = work::at(&client, at(&server)).traced().many(String::new());
        let before = call.trace();
        check(&before);
        assert_eq!(before.hops.len(), 1, "the initiator knows what it has sent");
        assert_eq!(before.hops[0].server.as_ref(), server.address());
        call.next().await.expect("more").expect("an answer");
        let during = call.trace();
        assert_eq!((during.hops.len(), during.hops[0].responses), (1, 1));
        assert_eq!(during.hops[0].timing, None, "it has not ended");
        gate.open(1);
        assert_eq!(all(&mut call).await.len(), 1);
        let after = call.trace();
        assert_eq!((after.hops.len(), after.hops[0].responses), (1, 2));
        assert!(after.hops[0].timing.is_some());
        assert!(after.hops[0].answered >= during.hops[0].answered);
        until(|| server.load().is_idle()).await;
    })
    .await;
}
