//! Trees that grow without end, ended by servers that keep to the budgets their requests were given.

use bytes::Bytes;
use proptest::prelude::*;
use wallaby_proto::call::allowance::{Budget, Exhausted};
use wallaby_proto::call::initiator::Initiator;
use wallaby_proto::call::server::{Inherited, Outbound, ServerHalf};
use wallaby_proto::wire::{Budgets, MessageOptions, MethodRef, ReplyTo, Request};
use wallaby_proto::{Code, RequestId, Status};

use crate::protocol::limits::request;
use crate::protocol::samples::{call, token};

/// What a handler does, step by step, until a budget is used up.
#[derive(Debug, Clone)]
enum Act {
    Reply(usize),
    Delegate,
    /// What is held back leaves: the handler waits.
    Flush,
    Announce(u32),
    /// Ends the request with an answer.
    Respond(usize),
    /// Ends the request with a tail call.
    Forward,
}

/// What came of a tree.
#[derive(Debug, Default)]
struct Ran {
    requests: u32,
    deepest: u32,
    answers: u32,
    bytes: u64,
    statuses: Vec<Status>,
    exhausted: Vec<Exhausted>,
    complete: bool,
}

/// Sends an initial request with these budgets and runs its tree; `acts` says what the handler of a request does.
fn run(
    stated: Option<Budgets>,
    most: Option<Budgets>,
    acts: impl Fn(u32, &Request) -> Vec<Act>,
) -> Ran {
    let counted = stated.map_or(Budgets::default(), |root| Budgets {
        requests: root.requests.saturating_add(1),
        depth: root.depth.saturating_add(1),
        ..root
    });
    let mut initiator = Initiator::new(call(), token(), counted);
    let id = initiator.send().expect("the first");
    initiator.close();
    let mut root = Request { id, ..request(0) };
    root.options = stated.map(|budgets| {
        Box::new(MessageOptions {
            budgets: Some(budgets),
            ..MessageOptions::default()
        })
    });
    let mut ran = Ran::default();
    let mut pending = vec![root];
    while let Some(mut request) = pending.pop() {
        ran.requests += 1;
        ran.deepest = ran.deepest.max(request.depth);
        let acts = acts(ran.requests, &request);
        let mut server = ServerHalf::bounded(&mut request, most.as_ref());
        let sent = handle(&mut server, acts, &mut ran.exhausted);
        for outbound in sent {
            match outbound {
                Outbound::Response(response) => {
                    initiator
                        .handle_response(&response)
                        .expect("honest servers exceed nothing");
                    if response.status {
                        let status = Status::from_payload(&response.payload).expect("a status");
                        ran.statuses.push(status);
                    } else {
                        ran.answers += 1;
                        ran.bytes += response.payload.len() as u64;
                    }
                }
                Outbound::End(end) => initiator.handle_end(&end).expect("within the budgets"),
                Outbound::Request(delegated) => {
                    let inherited = Inherited {
                        reply_to: ReplyTo::Relay,
                        deadline: None,
                        oldest: request.oldest,
                        options: request.options.clone(),
                    };
                    let method = MethodRef::Number(0);
                    pending.push(delegated.into_request(call(), token(), method, inherited).1);
                }
            }
        }
    }
    ran.complete = initiator.is_complete();
    ran
}

fn handle(
    server: &mut ServerHalf<()>,
    acts: Vec<Act>,
    exhausted: &mut Vec<Exhausted>,
) -> Vec<Outbound<()>> {
    let mut sent: Vec<Outbound<()>> = Vec::new();
    for act in acts {
        let afforded = match &act {
            Act::Reply(size) | Act::Respond(size) => server.afford_answer(*size),
            Act::Delegate | Act::Forward => server.afford_request(),
            Act::Flush | Act::Announce(_) => Ok(()),
        };
        match (afforded, act) {
            (Err(error), _) => {
                exhausted.push(error);
                sent.extend(server.exhaust(&error.into(), None));
            }
            (Ok(()), Act::Reply(size)) => sent.extend(server.reply(vec![0; size].into())),
            (Ok(()), Act::Delegate) => sent.extend(server.delegate((), Bytes::new())),
            (Ok(()), Act::Flush) => sent.extend(server.flush()),
            (Ok(()), Act::Announce(times)) => {
                if let Some(allowance) = server.allowance_mut() {
                    allowance.announce(times);
                }
            }
            (Ok(()), Act::Respond(size)) => {
                sent.extend(server.respond(vec![0; size].into(), None));
            }
            (Ok(()), Act::Forward) => sent.extend(server.forward((), Bytes::new(), None)),
        }
        if server.has_ended() {
            return sent;
        }
    }
    sent.push(server.finish(None));
    sent
}

const SMALL: Budgets = Budgets {
    requests: 200,
    responses: 1000,
    bytes: 1 << 20,
    depth: 50,
};

#[test]
fn a_tree_that_doubles_ends_by_itself() {
    for (waits, stated, most) in [
        (false, Some(SMALL), None),
        (true, Some(SMALL), None),
        // Its initiator states nothing, or too much.
        (false, None, Some(SMALL)),
        (true, Some(Budgets::default()), Some(SMALL)),
    ] {
        let ran = run(stated, most, |_, _| {
            if waits {
                vec![Act::Delegate, Act::Flush, Act::Delegate, Act::Flush]
            } else {
                vec![Act::Delegate, Act::Delegate]
            }
        });
        // The root was sent before there was anything to split.
        assert!(ran.requests <= 201, "{} requests", ran.requests);
        // Nobody knows of a handler that waits that it will delegate just once more.
        let least = if waits { 15 } else { 150 };
        assert!(ran.requests >= least, "{} requests", ran.requests);
        assert!(ran.complete);
        assert!(!ran.statuses.is_empty());
        for status in &ran.statuses {
            assert_eq!(status.code(), Code::ResourceExhausted);
            let text = status.message();
            assert!(
                text.contains("budget of requests") && text.contains("0 left"),
                "{text}"
            );
        }
    }
}

#[test]
fn a_loop_of_tail_calls_ends_by_itself() {
    let shallow = run(Some(SMALL), None, |_, _| vec![Act::Forward]);
    assert_eq!((shallow.requests, shallow.deepest), (51, 50));
    assert_eq!(shallow.exhausted[0].budget, Budget::Depth);
    let deep = Budgets {
        depth: 5000,
        ..SMALL
    };
    let long = run(Some(deep), None, |_, _| vec![Act::Reply(1), Act::Forward]);
    // Nothing is lost on the way of a line.
    assert_eq!((long.requests, long.answers), (201, 201));
    let exhausted = long.exhausted.iter();
    let exhausted: Vec<_> = exhausted
        .map(|error| (error.budget, error.wanted, error.left))
        .collect();
    assert_eq!(exhausted, [(Budget::Requests, 1, 0)]);
    assert!(long.complete && shallow.complete);
}

#[test]
fn a_line_of_two_thousand_needs_no_budgets() {
    let ran = run(None, None, |number, _| match number {
        2000 => vec![Act::Respond(1)],
        _ => vec![Act::Forward],
    });
    assert_eq!((ran.requests, ran.answers), (2000, 1));
    assert!(ran.complete && ran.statuses.is_empty());
}

#[test]
fn a_handler_that_never_stops_is_stopped_where_nothing_is_stated() {
    let ran = run(None, None, |number, _| match number {
        1 => vec![Act::Delegate; (1 << 16) + 1],
        _ => vec![Act::Flush],
    });
    assert_eq!(ran.exhausted.len(), 1);
    assert_eq!(ran.exhausted[0].budget, Budget::Requests);
}

/// A tree of a regular shape gets through if it is announced, with exactly what it needs.
#[test]
fn announced_trees_need_no_more_than_they_use() {
    let stated = Budgets {
        requests: 10 + 100,
        responses: 100 * 20,
        ..SMALL
    };
    let ran = run(Some(stated), None, |_, request| match request.depth {
        0 | 1 => {
            let mut acts = vec![Act::Announce(10)];
            acts.extend(vec![Act::Delegate; 10]);
            acts.push(Act::Reply(1));
            acts
        }
        _ => vec![Act::Respond(1)],
    });
    assert_eq!((ran.requests, ran.answers), (111, 111));
    assert!(ran.complete && ran.statuses.is_empty(), "{ran:?}");
}

#[test]
fn where_nothing_is_stated_the_last_that_is_allowed_still_goes_out() {
    let most = Budgets::default();
    let mut server: ServerHalf<()> = ServerHalf::new(&mut request(0));
    let mut delegated = 1; // the initial request counts
    while server.afford_request().is_ok() {
        drop(server.delegate((), Bytes::new()));
        delegated += 1;
    }
    assert_eq!(delegated, most.requests, "all but not one more");
}

#[test]
#[should_panic(expected = "a request that has ended sends nothing")]
fn who_has_responded_sends_nothing_more() {
    let mut server: ServerHalf<()> = ServerHalf::new(&mut request(0));
    drop(server.respond(Bytes::new(), None));
    drop(server.reply(Bytes::new()));
}

#[test]
fn a_handler_knows_how_deep_it_is_and_whether_it_is_traced() {
    for (depth, traced) in [(0, false), (7, true)] {
        let mut request = request(0);
        (request.depth, request.traced) = (depth, traced);
        let server: ServerHalf<()> = ServerHalf::new(&mut request);
        assert_eq!((server.depth(), server.is_traced()), (depth, traced));
    }
}

#[test]
fn a_request_without_budgets_hands_none_on() {
    let mut first = request(0);
    let mut server: ServerHalf<()> = ServerHalf::new(&mut first);
    server.afford_request().expect("nothing is stated");
    let Outbound::Request(delegated) = server.forward((), Bytes::new(), None).last else {
        panic!("a tail call is one message")
    };
    assert_eq!(delegated.budgets, None);
    assert_eq!(first.id, RequestId::FIRST);
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        2 => (0..200_usize).prop_map(Act::Reply),
        4 => Just(Act::Delegate),
        1 => Just(Act::Flush),
        1 => (0..6_u32).prop_map(Act::Announce),
        1 => (0..200_usize).prop_map(Act::Respond),
        1 => Just(Act::Forward),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    /// Whatever handlers do: no tree uses more than its root was given, and it completes, with statuses if it wanted more.
    #[test]
    fn no_tree_uses_more_than_its_root_was_given(
        handlers in proptest::collection::vec(proptest::collection::vec(act(), 0..8), 1..8),
        requests in 0..300_u32,
        responses in 0..300_u32,
        bytes in 0..20_000_u64,
        depth in 0..40_u32,
    ) {
        let given = Budgets { requests, responses, bytes, depth };
        let ran = run(Some(given), None, |number, _| {
            handlers[number as usize % handlers.len()].clone()
        });
        prop_assert!(ran.requests <= requests + 1);
        prop_assert!(ran.answers <= responses);
        prop_assert!(ran.bytes <= bytes);
        prop_assert!(ran.deepest <= depth);
        prop_assert!(ran.complete);
        prop_assert_eq!(ran.statuses.len(), ran.exhausted.len());
    }
}
