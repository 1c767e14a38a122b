//! A first look at many worlds; `make test` runs more of them through the program.

use wallaby_sim::{Options, Point, Summary};

/// Who waits on a half-open connection; answers whose relay is gone, while their initiator comes by another way; a call that goes
/// on without what was not sent, and then fails; a call that waits behind a handler that is stuck.
#[test]
fn worlds_that_once_broke_a_rule_break_none() {
    for seed in [44_307, 151_697, 33_839, 28_603] {
        let summary = Summary::of(seed, 1, Options::default(), |_| {});
        assert!(summary.failed.is_empty(), "{summary}");
    }
}

#[test]
fn two_hundred_seeds_break_no_rule() {
    let summary = Summary::of(0, 200, Options::default(), |_| {});
    assert!(
        summary.failed.is_empty(),
        "{summary}\n{:#?}",
        summary.failed
    );
    for point in [
        Point::OutcomeComplete,
        Point::OutcomeFailed,
        Point::OutcomeAborted,
        Point::FaultRestart,
    ] {
        assert!(
            summary.coverage.count(point) > 0,
            "{} was never reached",
            point.words()
        );
    }
}
