//! Every small tree, delivered in every order.

use wallaby_proto::Token;

use super::deliver::{Step, check};
use super::enumerate::Plans;
use super::plan::Plan;
use super::run::Run;

/// Messages that a tree causes at most, the initial requests not counted. `WALLABY_TREES` asks for another size; 6 takes
/// some twenty times as long.
fn size() -> usize {
    std::env::var("WALLABY_TREES").map_or(5, |size| size.parse().expect("a number"))
}

#[test]
fn every_small_tree_in_every_order() {
    let plans = Plans::up_to(size());
    for size in 1..=size() {
        for plan in plans.of_size(size) {
            in_every_order(std::slice::from_ref(plan));
        }
    }
}

#[test]
fn every_small_pair_of_trees_in_every_order() {
    let plans = Plans::up_to(size() - 1);
    for size in 2..=size() {
        for first in 1..size {
            for one in plans.of_size(first) {
                for other in plans.of_size(size - first) {
                    in_every_order(&[one.clone(), other.clone()]);
                }
            }
        }
    }
}

fn in_every_order(roots: &[Plan]) {
    let run = Run::of(roots, Token::new(5));
    let mut order: Vec<usize> = (0..run.arrivals.len()).collect();
    permute(&mut order, 0, &mut |order| {
        let opening = roots.iter().map(|_| Step::Send).chain([Step::Close]);
        // Each message comes twice: once in its turn, once more right behind the next.
        let again = order.iter().enumerate().flat_map(|(turn, number)| {
            let before = turn
                .checked_sub(1)
                .map(|before| Step::Arrive(order[before]));
            [Some(Step::Arrive(*number)), before].into_iter().flatten()
        });
        check(&run, opening.chain(again));
    });
}

/// Calls `visit` with every order of the items from `start` on.
fn permute(items: &mut [usize], start: usize, visit: &mut impl FnMut(&[usize])) {
    if start == items.len() {
        return visit(items);
    }
    for next in start..items.len() {
        items.swap(start, next);
        permute(items, start + 1, visit);
        items.swap(start, next);
    }
}
