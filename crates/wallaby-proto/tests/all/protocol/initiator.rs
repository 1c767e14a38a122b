//! What peers may not do to an initiator: contradict what is known, or exceed the call's budgets.

use bytes::Bytes;
use wallaby_proto::call::allowance::Budget;
use wallaby_proto::call::initiator::{Arrival, Initiator, LimitReached, Violation};
use wallaby_proto::call::server::undelivered;
use wallaby_proto::wire::{Budgets, End, MessageOptions, Response, TraceRecord};
use wallaby_proto::{Code, Facts, Manifest, Path, RequestId, Status};

use crate::protocol::samples::{self, bob, call, path, token};

/// A call that has sent one request and sends no more.
fn initiator(budgets: Budgets) -> Initiator {
    let mut initiator = Initiator::new(call(), token(), budgets);
    initiator.send().expect("within the budget");
    initiator.close();
    initiator
}

/// The call's own endpoint allows no more; no server is to blame.
fn over(budget: Budget, limit: u64) -> Violation {
    Violation::Limit(LimitReached::Budget { budget, limit })
}

fn response(indexes: &[u32], index: u32) -> Response {
    Response {
        index,
        last: false,
        ..samples::response(indexes)
    }
}

fn last(indexes: &[u32], index: u32) -> Response {
    Response {
        index,
        ..samples::response(indexes)
    }
}

fn end(indexes: &[u32], requests: u32, responses: u32) -> End {
    let request = RequestId {
        path: path(indexes),
        hop: 0,
    };
    let facts = Facts {
        requests,
        responses,
    };
    End {
        call: call(),
        distance: 0,
        token: None,
        request,
        facts,
        manifest: None,
        options: None,
    }
}

fn with_manifest(response: Response, owner: Path, requests: u32, responses: u32) -> Response {
    let facts = Facts {
        requests,
        responses,
    };
    Response {
        manifest: Some(Manifest { owner, facts }),
        ..response
    }
}

#[test]
fn facts_are_written_once() {
    let mut initiator = initiator(Budgets::default());
    assert_eq!(initiator.handle_end(&end(&[0], 2, 0)), Ok(()));
    assert_eq!(
        initiator.handle_end(&end(&[0], 2, 0)),
        Ok(()),
        "the same again is fine"
    );
    let (before, now) = (
        Facts {
            requests: 2,
            responses: 0,
        },
        Facts {
            requests: 1,
            responses: 0,
        },
    );
    let conflict = Violation::ConflictingFacts {
        path: path(&[0]),
        before,
        now,
    };
    assert_eq!(initiator.handle_end(&end(&[0], 1, 0)), Err(conflict));
    let from_child = with_manifest(last(&[0, 0], 0), path(&[0]), 1, 0);
    assert_eq!(initiator.handle_response(&from_child), Err(conflict));
}

/// COMPLETE is a walk from the root: what nobody on the way there has named is not waited for (docs/protocol.md, rule 8).
#[test]
fn facts_of_a_branch_that_nobody_expects_name_nothing_that_is_missing() {
    let mut initiator = initiator(Budgets::default());
    initiator.handle_end(&end(&[0, 7], 3, 2)).expect("facts");
    assert!(!initiator.is_complete());
    initiator.handle_response(&last(&[0], 0)).expect("the last");
    assert!(initiator.is_complete());
    assert_eq!(initiator.missing().count(), 0);
}

/// A few bytes are enough to say that thousands of requests came of one. While nobody asks about the call, they take no room
/// and no budget before their parent is known to exist.
#[test]
fn facts_of_a_branch_that_nobody_expects_add_no_branches() {
    let budgets = Budgets {
        requests: 5,
        ..Budgets::default()
    };
    let mut initiator = initiator(budgets);
    for invented in [7, 8] {
        let facts = end(&[0, invented], 4, 0);
        assert_eq!(initiator.handle_end(&facts), Ok(()));
    }
    assert_eq!(initiator.branches().count(), 3);
    initiator.handle_response(&last(&[0], 0)).expect("the last");
    assert!(initiator.is_complete());
}

#[test]
fn a_response_beyond_the_facts_is_refused_whichever_comes_first() {
    let unexpected = |index| Violation::UnexpectedResponse {
        path: path(&[0]),
        index,
        responses: 1,
    };
    let mut facts_first = initiator(Budgets::default());
    facts_first.handle_end(&end(&[0], 0, 1)).expect("facts");
    assert_eq!(
        facts_first.handle_response(&response(&[0], 1)),
        Err(unexpected(1))
    );
    let mut response_first = initiator(Budgets::default());
    assert_eq!(
        response_first.handle_response(&response(&[0], 5)),
        Ok(Arrival::New)
    );
    assert_eq!(
        response_first.handle_end(&end(&[0], 0, 1)),
        Err(unexpected(5))
    );
    let mut two_last = initiator(Budgets::default());
    two_last.handle_response(&last(&[0], 0)).expect("the last");
    assert_eq!(two_last.handle_response(&last(&[0], 1)), Err(unexpected(1)));
}

/// Else the request, once it is sent, would bring expectations of a peer's invention, which may not fit the budget.
#[test]
fn what_was_not_sent_has_no_facts() {
    let not_sent = Violation::NotSent { path: path(&[1]) };
    let mut initiator = Initiator::new(call(), token(), Budgets::default());
    initiator.send().expect("within the budget");
    assert_eq!(initiator.handle_end(&end(&[1], 500, 0)), Err(not_sent));
    assert_eq!(initiator.handle_response(&last(&[1], 0)), Err(not_sent));
    let carried = with_manifest(response(&[0], 0), path(&[1]), 1, 0);
    assert_eq!(initiator.handle_response(&carried), Err(not_sent));
    initiator.send().expect("within the budget");
    assert_eq!(initiator.handle_end(&end(&[1], 0, 1)), Ok(()));
}

/// Its facts would be those of the initial requests, which the initiator counts itself.
#[test]
fn the_initiators_own_place_has_no_facts() {
    let not_sent = Violation::NotSent { path: Path::ROOT };
    let mut initiator = Initiator::new(call(), token(), Budgets::default());
    initiator.send().expect("within the budget");
    assert_eq!(initiator.handle_end(&end(&[], 2, 0)), Err(not_sent));
    assert_eq!(initiator.handle_response(&last(&[], 0)), Err(not_sent));
    let carried = with_manifest(response(&[0], 0), Path::ROOT, 2, 0);
    assert_eq!(initiator.handle_response(&carried), Err(not_sent));
}

#[test]
fn an_initial_request_beyond_the_budget_changes_nothing() {
    let budgets = Budgets {
        requests: 2,
        ..Budgets::default()
    };
    let mut initiator = Initiator::new(call(), token(), budgets);
    initiator.send().expect("within the budget");
    initiator
        .handle_end(&end(&[0], 1, 0))
        .expect("within the budget");
    let limit = over(Budget::Requests, 2);
    assert_eq!(initiator.send(), Err(limit));
    assert_eq!(initiator.send(), Err(limit));
    initiator.close();
    initiator
        .handle_end(&end(&[0, 0], 0, 0))
        .expect("within the budget");
    assert!(initiator.is_complete());
}

#[test]
fn a_terminal_status_never_changes() {
    let mut initiator = initiator(Budgets::default());
    initiator
        .handle_response(&last(&[0], 0))
        .expect("the answer");
    assert!(initiator.is_complete());
    assert_eq!(
        initiator.handle_response(&last(&[0], 0)),
        Ok(Arrival::Duplicate)
    );
    assert!(initiator.handle_response(&last(&[0], 3)).is_err());
    assert!(initiator.handle_end(&end(&[0], 9, 9)).is_err());
    initiator
        .handle_end(&end(&[7, 7], 3, 3))
        .expect("nobody asked for it, but it may be early");
    assert!(initiator.is_complete());
    assert_eq!(initiator.responses(), (1, 0));
}

#[test]
fn requests_are_within_the_budget() {
    let budgets = Budgets {
        requests: 3,
        ..Budgets::default()
    };
    let limit = over(Budget::Requests, 3);
    let mut bomb = initiator(budgets);
    assert_eq!(bomb.handle_end(&end(&[0], u32::MAX, 0)), Err(limit));
    let mut wide = initiator(budgets);
    assert_eq!(wide.handle_end(&end(&[0], 2, 0)), Ok(()));
    assert_eq!(wide.handle_end(&end(&[0, 0], 1, 0)), Err(limit));
    // One that no facts name yet, with as many below it as there may be requests in all.
    let mut below = initiator(budgets);
    assert_eq!(below.handle_end(&end(&[0, 0], 3, 0)), Err(limit));
    let mut early = initiator(budgets);
    assert_eq!(
        early.handle_response(&response(&[0, 5], 0)),
        Ok(Arrival::New)
    );
    assert_eq!(
        early.handle_response(&response(&[0, 6], 0)),
        Ok(Arrival::New)
    );
    assert_eq!(early.handle_response(&response(&[0, 7], 0)), Err(limit));
    let mut own = Initiator::new(call(), token(), budgets);
    assert!((0..3).all(|_| own.send().is_ok()));
    assert_eq!(own.send(), Err(limit));
}

#[test]
fn responses_and_their_bytes_are_within_the_budget() {
    let few = Budgets {
        responses: 3,
        ..Budgets::default()
    };
    let limit = over(Budget::Responses, 3);
    let mut counted = initiator(few);
    for index in 0..3 {
        assert_eq!(
            counted.handle_response(&response(&[0], index)),
            Ok(Arrival::New)
        );
        assert_eq!(
            counted.handle_response(&response(&[0], index)),
            Ok(Arrival::Duplicate)
        );
    }
    assert_eq!(counted.handle_response(&response(&[0, 0], 0)), Err(limit));
    assert_eq!(
        initiator(few).handle_response(&response(&[0], 1_000_000)),
        Err(limit),
        "a number that cannot be"
    );
    let mut small = initiator(Budgets {
        bytes: 10,
        ..Budgets::default()
    });
    assert_eq!(small.handle_response(&response(&[0], 0)), Ok(Arrival::New));
    assert_eq!(
        small.handle_response(&response(&[0], 1)),
        Err(over(Budget::Bytes, 10))
    );
}

#[test]
fn trace_records_are_kept_up_to_a_limit() {
    let record = TraceRecord {
        request: RequestId::FIRST,
        node: bob(),
        server: None,
        method: String::new(),
        arrived_us: 0,
        queued_us: 0,
        ran_us: 0,
        parts: Vec::new(),
    };
    let options = MessageOptions {
        trace: vec![record; 32],
        ..MessageOptions::default()
    };
    let mut initiator = initiator(Budgets::default());
    for index in 0..1000 {
        let options = Some(Box::new(options.clone()));
        let traced = Response {
            options,
            ..response(&[0], index)
        };
        initiator
            .handle_response(&traced)
            .expect("within the budget");
    }
    assert_eq!(initiator.trace().len(), 4096);
}

#[test]
fn an_undelivered_request_is_answered_in_its_name() {
    let mut call = initiator(Budgets::default());
    // Bob has replied twice, forwards, and the next server cannot be reached; the request carried a manifest.
    for index in 0..2 {
        call.handle_response(&response(&[0], index))
            .expect("replies");
    }
    let request = wallaby_proto::wire::Request {
        id: RequestId {
            path: path(&[0]),
            hop: 1,
        },
        base: 2,
        depth: 1,
        payload: Bytes::new(),
        ..crate::protocol::limits::request(0)
    };
    let status = Status::new(Code::Unavailable, "connection refused");
    let answer = undelivered(&request, &status);
    assert_eq!((answer.index, answer.last, answer.status), (2, true, true));
    assert_eq!(call.handle_response(&answer), Ok(Arrival::New));
    assert!(call.is_complete());
    assert_eq!(call.responses(), (3, 1));
    assert_eq!(Status::from_payload(&answer.payload), Ok(status));
}

#[test]
fn an_answer_that_comes_again_as_a_status_is_told_from_a_duplicate() {
    for first_is_status in [false, true] {
        let mut initiator = initiator(Budgets::default());
        let first = Response {
            status: first_is_status,
            ..response(&[0], 0)
        };
        assert_eq!(initiator.handle_response(&first), Ok(Arrival::New));
        assert_eq!(initiator.handle_response(&first), Ok(Arrival::Duplicate));
        let other = Response {
            status: !first_is_status,
            ..first
        };
        assert_eq!(
            initiator.handle_response(&other),
            Ok(Arrival::Contradiction)
        );
    }
    // After answers, a status: those stay answers.
    let mut initiator = initiator(Budgets::default());
    let status = Response {
        status: true,
        ..last(&[0], 1)
    };
    assert_eq!(
        initiator.handle_response(&response(&[0], 0)),
        Ok(Arrival::New)
    );
    assert_eq!(initiator.handle_response(&status), Ok(Arrival::New));
    assert_eq!(
        initiator.handle_response(&response(&[0], 0)),
        Ok(Arrival::Duplicate)
    );
    assert_eq!(initiator.handle_response(&status), Ok(Arrival::Duplicate));
    // The same the other way round: a status may stand in place of an answer that was too large, and the branch go on.
    let mut initiator = self::initiator(Budgets::default());
    let status = Response {
        status: true,
        ..response(&[0], 0)
    };
    let after = last(&[0], 1);
    for expected in [Arrival::New, Arrival::Duplicate] {
        assert_eq!(initiator.handle_response(&status), Ok(expected));
        assert_eq!(initiator.handle_response(&after), Ok(expected));
    }
}

#[test]
fn bytes_are_counted_to_the_last_one_and_statuses_cost_none() {
    let limit = 10;
    let budgets = Budgets {
        bytes: limit,
        ..Budgets::default()
    };
    let of = |index, len: usize, status| Response {
        payload: vec![7; len].into(),
        status,
        ..response(&[0], index)
    };
    let mut initiator = initiator(budgets);
    for message in [of(0, 4, false), of(1, 100, true), of(2, 6, false)] {
        assert_eq!(initiator.handle_response(&message), Ok(Arrival::New));
    }
    let again = initiator.handle_response(&of(2, 6, false));
    assert_eq!(again, Ok(Arrival::Duplicate), "it counts once");
    let exceeded = over(Budget::Bytes, limit);
    assert_eq!(initiator.handle_response(&of(3, 1, false)), Err(exceeded));
}

#[test]
fn only_a_status_stands_behind_as_many_responses_as_a_branch_may_have() {
    let limit = 2;
    let arrives = |index, status| {
        let mut initiator = initiator(Budgets {
            responses: limit,
            ..Budgets::default()
        });
        let message = Response {
            status,
            ..response(&[0], index)
        };
        initiator.handle_response(&message)
    };
    let exceeded = Err(over(Budget::Responses, limit.into()));
    assert_eq!(
        [0, 1].map(|index| arrives(index, false)),
        [Ok(Arrival::New); 2]
    );
    assert_eq!(arrives(2, true), Ok(Arrival::New));
    assert_eq!(arrives(2, false), exceeded);
    assert_eq!([3, 4].map(|index| arrives(index, true)), [exceeded; 2]);
}

#[test]
fn a_branch_is_undelivered_if_a_status_has_said_so() {
    let with = |index, status, undelivered| {
        let options = MessageOptions {
            undelivered,
            trace: vec![samples::record(0)],
            ..MessageOptions::default()
        };
        Response {
            status,
            options: Some(Box::new(options)),
            ..response(&[0], index)
        }
    };
    let mut initiator = initiator(Budgets::default());
    let undelivered = |initiator: &Initiator| {
        let view = initiator.branch_view(&path(&[0])).expect("it was sent");
        view.undelivered
    };
    assert_eq!(initiator.branch_view(&path(&[5])), None);
    for message in [with(0, true, false), with(1, false, true)] {
        initiator.handle_response(&message).expect("new");
        assert!(!undelivered(&initiator), "{message:?}");
    }
    initiator
        .handle_response(&with(2, true, true))
        .expect("new");
    assert!(undelivered(&initiator));
    initiator
        .handle_response(&with(3, true, false))
        .expect("new");
    assert!(undelivered(&initiator), "it stays so");
}

#[test]
fn branches_whose_parents_become_known_are_told_once_if_that_is_wanted() {
    let mut initiator = Initiator::new(call(), token(), Budgets::default());
    initiator.note_adopted(true);
    initiator.send().expect("within the budget");
    initiator.send().expect("within the budget");
    initiator.close();
    assert!(!initiator.has_adopted(), "initial requests have no parent");
    initiator
        .handle_response(&response(&[0, 1], 0))
        .expect("it overtook its parent");
    assert!(!initiator.has_adopted());
    assert_eq!(initiator.take_adopted(), []);
    initiator.handle_end(&end(&[0], 2, 0)).expect("its parent");
    assert!(initiator.has_adopted());
    let mut adopted = initiator.take_adopted();
    adopted.sort_unstable();
    assert_eq!(adopted, [path(&[0, 0]), path(&[0, 1])]);
    assert!(!initiator.has_adopted());
    assert_eq!(initiator.take_adopted(), []);
    // Nobody wants to know.
    initiator.note_adopted(false);
    initiator.handle_end(&end(&[0, 1], 1, 1)).expect("a parent");
    assert!(!initiator.has_adopted());
}
