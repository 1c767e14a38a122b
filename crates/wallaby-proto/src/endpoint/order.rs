//! Answers in the order in which they were sent, whatever has overtaken what.

use std::collections::BTreeMap;

use super::event::IncomingAnswer;
use crate::Path;

/// No answer has this number.
const GIVEN_UP: u32 = u32::MAX;

/// What comes next of each branch of a call whose answers are told in order.
#[derive(Debug, Default)]
pub(super) struct Order {
    /// How many answers were told of each branch: the next one has that number.
    told: BTreeMap<Path, u32>,
    /// Answers that have overtaken others. They cost the call's credit meanwhile, so that no more than its limit waits.
    held: BTreeMap<(Path, u32), IncomingAnswer>,
}

impl Order {
    /// An answer has arrived: those that are told now, one after the other by [`next`](Self::next), begin with the one that is
    /// returned, unless it has overtaken others.
    pub(super) fn arrive(&mut self, answer: IncomingAnswer) -> Option<IncomingAnswer> {
        let path = answer.request.path;
        let told = self.told.entry(path).or_default();
        if *told == GIVEN_UP {
            return Some(answer);
        }
        if answer.index != *told {
            self.held.insert((path, answer.index), answer);
            return None;
        }
        *told = told.saturating_add(1);
        Some(answer)
    }

    /// Something of this branch is lost: what has come of it waits no longer, and neither does what comes.
    #[cold]
    pub(super) fn give_up(&mut self, path: Path) -> Vec<IncomingAnswer> {
        self.told.insert(path, GIVEN_UP);
        let held = self.held.range((path, 0)..=(path, u32::MAX));
        let held: Vec<u32> = held.map(|((_, index), _)| *index).collect();
        let held = held.into_iter();
        held.filter_map(|index| self.held.remove(&(path, index)))
            .collect()
    }

    /// The answer behind the one of this branch that was told last, if it has come before.
    pub(super) fn next(&mut self, path: Path) -> Option<IncomingAnswer> {
        let told = self.told.get_mut(&path)?;
        let next = self.held.remove(&(path, *told))?;
        *told = told.saturating_add(1);
        Some(next)
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::endpoint::CallKey;
    use crate::{CallId, NodeId, RequestId, Token};

    #[test]
    fn whatever_comes_first_each_branch_is_in_order() {
        let first = RequestId::FIRST;
        let call = CallId {
            initiator: NodeId::new(1).expect("not zero"),
            sequence: 1,
        };
        let second = RequestId {
            path: first.path.child(0, call, Token::new(1)),
            ..first
        };
        let answer = |request, index| IncomingAnswer {
            call: CallKey(1),
            request,
            index,
            status: false,
            payload: Bytes::new(),
            from: None,
            method: None,
            root: None,
            loss: None,
            not_executed: false,
        };
        let mut order = Order::default();
        let mut told = Vec::new();
        let arrivals = [
            (first, 2),
            (second, 1),
            (first, 1),
            (second, 0),
            (first, 3),
            (first, 0),
            (second, 2),
        ];
        let mut by_arrival = Vec::new();
        for (request, index) in arrivals {
            let mut next = order.arrive(answer(request, index));
            while let Some(answer) = next {
                told.push((answer.request, answer.index));
                next = order.next(request.path);
            }
            by_arrival.push(told.len());
        }
        assert_eq!(by_arrival, [0, 0, 0, 2, 2, 6, 7]);
        let of = |request| told.iter().filter(move |told| told.0 == request);
        assert!(of(first).map(|told| told.1).eq(0..4));
        assert!(of(second).map(|told| told.1).eq(0..3));
        assert!(order.held.is_empty());
        // One is lost: what came behind it is told, and then whatever comes.
        assert!(order.arrive(answer(first, 6)).is_none());
        assert!(order.arrive(answer(first, 5)).is_none());
        assert!(order.arrive(answer(second, 5)).is_none());
        let held = order.give_up(first.path);
        assert!(held.iter().map(|held| held.index).eq([5, 6]));
        let late = order.arrive(answer(first, 8));
        assert!(late.is_some() && order.next(first.path).is_none());
    }
}
