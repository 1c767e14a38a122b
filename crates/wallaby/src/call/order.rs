//! Answers in the order in which they were sent, whatever has overtaken what.

use std::collections::BTreeMap;

use wallaby_proto::Path;

use super::{RawAnswer, State};
use wallaby_proto::line::Line;

/// What the application gets next of each branch.
#[derive(Debug, Default)]
pub(super) struct Order {
    /// How many answers were taken of each branch: the next one has that number.
    taken: BTreeMap<Path, u32>,
    /// Answers that have overtaken others.
    held: BTreeMap<(Path, u32), Box<RawAnswer>>,
    /// The branch whose answer was taken last: only of that one the next may be held.
    latest: Option<Path>,
}

impl State {
    /// The answer that the application gets next. One that has overtaken others waits for them: it costs the call's credit
    /// meanwhile, so that no more than its limit waits.
    pub(super) fn next_answer(&mut self) -> Option<RawAnswer> {
        let order = self.rare.as_mut().and_then(|rare| rare.order.as_mut());
        let next = match order {
            None => self.answers.pop(),
            Some(order) => order.next(&mut self.answers),
        };
        next.map(|answer| *answer)
    }
}

impl Order {
    /// Looks at each answer once, however many wait for one that was overtaken.
    fn next(&mut self, answers: &mut Line<Box<RawAnswer>>) -> Option<Box<RawAnswer>> {
        if let Some(path) = self.latest.take() {
            let next = self.taken.get(&path).copied().unwrap_or_default();
            if let Some(answer) = self.held.remove(&(path, next)) {
                return Some(self.take(answer));
            }
        }
        while let Some(answer) = answers.pop() {
            let path = answer.request.path;
            if answer.index == self.taken.get(&path).copied().unwrap_or_default() {
                return Some(self.take(answer));
            }
            self.held.insert((path, answer.index), answer);
        }
        None
    }

    fn take(&mut self, answer: Box<RawAnswer>) -> Box<RawAnswer> {
        let path = answer.request.path;
        self.taken.insert(path, answer.index.saturating_add(1));
        self.latest = Some(path);
        answer
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use wallaby_proto::{CallId, NodeId, RequestId, Token};

    use super::*;

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
        let answer = |request, index| RawAnswer {
            request,
            index,
            payload: Bytes::new(),
            status: false,
            peer: None,
        };
        let (mut order, mut line) = (Order::default(), Line::default());
        let mut taken = Vec::new();
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
            line.push(Box::new(answer(request, index)));
            while let Some(next) = order.next(&mut line) {
                taken.push((next.request, next.index));
            }
            by_arrival.push(taken.len());
        }
        assert_eq!(by_arrival, [0, 0, 0, 2, 2, 6, 7]);
        let of = |request| taken.iter().filter(move |taken| taken.0 == request);
        assert!(of(first).map(|taken| taken.1).eq(0..4));
        assert!(of(second).map(|taken| taken.1).eq(0..3));
        assert!(order.held.is_empty());
    }
}
