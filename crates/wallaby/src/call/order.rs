//! Answers in the order in which they were sent, whatever has overtaken what.

use std::collections::BTreeMap;

use wallaby_proto::Path;

use super::{RawAnswer, State};

/// How many answers were taken of each branch: the next one has that number.
#[derive(Debug, Default)]
pub(super) struct Order(BTreeMap<Path, u32>);

impl State {
    /// The answer that the application gets next. One that has overtaken others waits for them: it costs the call's credit
    /// meanwhile, so that no more than its limit waits.
    pub(super) fn next_answer(&mut self) -> Option<RawAnswer> {
        match &mut self.order {
            None => self.answers.pop(),
            Some(order) => self.answers.take_first(|answer| order.is_next(answer)),
        }
    }
}

impl Order {
    /// Whether an answer is the next one of its branch, which it is once.
    fn is_next(&mut self, answer: &RawAnswer) -> bool {
        let next = self.0.entry(answer.request.path).or_default();
        let is_next = *next == answer.index;
        *next += u32::from(is_next);
        is_next
    }
}
