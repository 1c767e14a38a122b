//! Random trees, delivered in random orders with duplicates.

use proptest::prelude::*;
use wallaby_proto::Token;

use super::deliver::{Step, check};
use super::plan::{Plan, Shape};
use super::run::Run;
use crate::chance::Random;
use crate::protocol::strategies::config;

/// Runs the trees with this seed and delivers their messages in several orders.
fn check_seed(seed: u64, roots: u64, shape: Shape) {
    let mut random = Random(seed);
    let each = Shape {
        messages: shape.messages / roots,
        ..shape
    };
    let plans: Vec<Plan> = (0..roots)
        .map(|_| Plan::random(each, &mut random))
        .collect();
    let run = Run::of(&plans, Token::new(seed));
    for _ in 0..4 {
        check(&run, steps(&run, roots, &mut random));
    }
}

/// Any order that can happen: nothing comes of an initial request that was not sent yet.
fn steps(run: &Run, roots: u64, random: &mut Random) -> Vec<Step> {
    let mut order: Vec<usize> = (0..run.arrivals.len()).collect();
    let duplicates = order.clone().into_iter().filter(|_| random.below(4) == 0);
    order.extend(duplicates.collect::<Vec<_>>());
    random.shuffle(&mut order);
    if random.below(4) == 0 {
        order.sort_unstable(); // as they were sent, each duplicate behind its original
    }
    let mut steps = Vec::new();
    let mut sent = if random.below(2) == 0 {
        roots as usize
    } else {
        0
    };
    steps.extend(vec![Step::Send; sent]);
    for number in order {
        while sent <= run.arrivals[number].root {
            steps.push(Step::Send);
            sent += 1;
        }
        steps.push(Step::Arrive(number));
    }
    let last_send = steps
        .iter()
        .rposition(|step| *step == Step::Send)
        .expect("a call has a root");
    let place = last_send + 1 + random.index(steps.len() - last_send);
    steps.insert(place, Step::Close);
    steps
}

proptest! {
    #![proptest_config(config(300))]

    /// Depth to 12, fan-out to 12, any number of responses.
    #[test]
    fn a_call_is_complete_after_its_last_message_and_not_before(
        seed: u64,
        roots in 1..4u64,
        depth in 0..=12u64,
        fanout in 0..=12u64,
        replies in 0..6u64,
        messages in prop_oneof![4 => 1..60u64, 3 => 60..400u64, 1 => 400..2000u64],
    ) {
        check_seed(seed, roots, Shape { depth, fanout, replies, messages });
    }

    /// Deep and thin: paths that fold, long lines of single delegations.
    #[test]
    fn deep_calls_too(seed: u64, depth in 12..=60u64, fanout in 1..=3u64, replies in 0..3u64, messages in 50..300u64) {
        check_seed(seed, 1, Shape { depth, fanout, replies, messages });
    }
}

#[test]
fn random_trees_are_worth_their_name() {
    let mut random = Random(1);
    let shape = Shape {
        depth: 12,
        fanout: 12,
        replies: 4,
        messages: 2000,
    };
    let runs: Vec<Run> = (0..40)
        .map(|_| Run::of(&[Plan::random(shape, &mut random)], Token::new(1)))
        .collect();
    let largest = runs
        .iter()
        .map(|run| run.requests + run.arrivals.len())
        .max()
        .expect("some");
    assert!(
        (1000..6000).contains(&largest),
        "{largest} messages in the largest tree"
    );
    assert!(
        runs.iter().any(|run| run.branches < run.requests),
        "some branches go on"
    );
}

#[test]
fn deep_trees_fold() {
    let mut random = Random(2);
    let shape = Shape {
        depth: 60,
        fanout: 3,
        replies: 1,
        messages: 300,
    };
    let folds = |run: Run| {
        run.arrivals.iter().any(|arrival| match &arrival.message {
            wallaby_proto::wire::Message::Response(response) => response.request.path.is_folded(),
            _ => false,
        })
    };
    let folded =
        (0..100).filter(|_| folds(Run::of(&[Plan::random(shape, &mut random)], Token::new(2))));
    assert!(folded.count() > 10);
}
