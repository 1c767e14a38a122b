//! Delivers the messages of a tree to the client half and checks after each step what must hold.

use wallaby_proto::call::initiator::{self, Initiator};
use wallaby_proto::wire::{Budgets, Message};

use super::run::{Arrival, Run};
use super::weights::Sum;

/// Something that happens at the initiator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// It sends its next initial request.
    Send,
    /// It sends no more of them.
    Close,
    /// The message with this number arrives, perhaps again.
    Arrive(usize),
}

/// Does these steps: the call is complete exactly when all of it has arrived, and each response is delivered once.
pub(super) fn check(run: &Run, steps: impl IntoIterator<Item = Step>) {
    let mut initiator = Initiator::new(run.call, run.token, Budgets::default());
    let mut arrived = vec![false; run.arrivals.len()];
    let mut sum = Sum::default();
    let mut responses = 0;
    for step in steps {
        match step {
            Step::Send => drop(initiator.send().expect("within the budget")),
            Step::Close => initiator.close(),
            Step::Arrive(number) => {
                let first = !std::mem::replace(&mut arrived[number], true);
                let arrival = &run.arrivals[number];
                if first {
                    sum.add(arrival.share);
                }
                responses += arrive(&mut initiator, arrival, first);
            }
        }
        let complete = initiator.is_closed() && sum.is_all();
        assert_eq!(initiator.is_complete(), complete, "after {step:?}");
        assert_eq!(initiator.responses().0, responses);
        assert!(
            !complete || initiator.missing().next().is_none(),
            "a complete call misses nothing"
        );
    }
    assert!(initiator.is_complete(), "all has arrived");
    assert_eq!(initiator.branches().count(), run.branches);
    assert!(initiator.branches().all(|branch| branch.facts.is_some()));
}

/// Hands a message over; returns how many responses were delivered by it.
fn arrive(initiator: &mut Initiator, arrival: &Arrival, first: bool) -> u64 {
    match &arrival.message {
        Message::Response(response) => {
            let expected = if first {
                initiator::Arrival::New
            } else {
                initiator::Arrival::Duplicate
            };
            assert_eq!(initiator.handle_response(response), Ok(expected));
            u64::from(first)
        }
        Message::End(end) => {
            assert_eq!(initiator.handle_end(end), Ok(()));
            0
        }
        other => panic!("{other:?} is not for the initiator"),
    }
}
