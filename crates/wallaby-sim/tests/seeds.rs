//! A first look at many worlds; `make test` runs more of them through the program.

use wallaby_sim::{Options, Point, Summary};

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
