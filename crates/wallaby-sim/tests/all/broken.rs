//! Each deliberate fault is noticed within a thousand seeds, by the rule that it breaks.
//!
//! | never (the design's list) | broken so |
//! |---|---|
//! | COMPLETE before all responses are in | `CountsAlone`, `ManifestTwice`, `LossUntold` |
//! | a handler run twice for one request | `ResendAfterReset` |
//! | a response delivered twice, to another call, to another incarnation | `ResponseTwice`, `AnyCall`, `AnyIncarnation` |
//! | a call that neither completes nor fails | `NoWatch` |
//! | a terminal status that changes | `OutcomeChanges` |
//! | a failure without a cause, or one that says what is not true | `UnknownFails`, `TimersFirst`, `PongListsHeld`, `GcFromArrival`, `Watermark`, `NoQuestion`; `ExecutionUntold` |
//! | a failure of what somebody has told the end of | `ManifestForgotten` |
//! | a failure of what a server has that lives | `SurvivorUnheard` |
//! | a failure that is told too late | `UnacknowledgedExcuses`, `NeverGone` |
//! | a status lost | `LostStatus` |
//! | memory that grows | `NeverForgets` |
//! | a body with a gap | `BodyGap` |
//! | something starts after an abort | `NoTombstone` |

use wallaby_sim::{Broken, Options, Plan, Rule, run, shrink};

/// Seeds within which a fault has to be noticed.
const SEEDS: u64 = 1000;

/// The first seed of a thousand whose world breaks one of these rules first.
fn caught(broken: Broken, from: u64, rules: &[Rule]) -> Option<u64> {
    let options = Options {
        log: false,
        broken: Some(broken),
        ..Options::default()
    };
    (from..from + SEEDS).find(|seed| {
        let plan = Plan::random(*seed);
        let breaks = |options| {
            run(&plan, options)
                .violations
                .first()
                .map(|violation| violation.rule)
        };
        // What is wrong without the fault proves nothing.
        breaks(options).is_some_and(|rule| rules.contains(&rule))
            && breaks(Options::default()).is_none()
    })
}

#[track_caller]
fn check(broken: Broken, rules: &[Rule]) {
    check_from(0, broken, rules);
}

#[track_caller]
fn check_from(first: u64, broken: Broken, rules: &[Rule]) {
    assert!(
        caught(broken, first, rules).is_some(),
        "{} was not noticed by {rules:?}",
        broken.name()
    );
}

#[test]
fn completion_by_counts_alone() {
    check(Broken::CountsAlone, &[Rule::EarlyCompletion]);
}

#[test]
fn a_manifest_that_counts_twice() {
    check(Broken::ManifestTwice, &[Rule::EarlyCompletion]);
}

#[test]
fn a_response_that_is_delivered_twice() {
    check(Broken::ResponseTwice, &[Rule::TwiceDelivered]);
}

#[test]
fn a_request_that_goes_out_again_after_a_reset() {
    check(Broken::ResendAfterReset, &[Rule::TwiceRun]);
}

#[test]
fn answers_for_a_former_incarnation() {
    check(Broken::AnyIncarnation, &[Rule::Misdelivered]);
}

#[test]
fn answers_of_another_call() {
    check(Broken::AnyCall, &[Rule::Corrupted, Rule::Misdelivered]);
}

#[test]
fn a_failure_that_says_what_is_not_true() {
    check(Broken::ExecutionUntold, &[Rule::WrongFailure]);
}

#[test]
fn refused_work_that_looks_done() {
    check(Broken::LostStatus, &[Rule::LostStatus]);
}

#[test]
fn a_watermark_that_is_off_by_one() {
    check(Broken::Watermark, &[Rule::FalseFailure]);
}

#[test]
fn an_abort_that_is_forgotten_before_its_request_comes() {
    check(Broken::NoTombstone, &[Rule::StartedAfterAbort]);
}

#[test]
fn a_pong_that_lists_a_message_held_back() {
    check(
        Broken::PongListsHeld,
        &[Rule::FalseFailure, Rule::WrongFailure],
    );
}

#[test]
fn collection_from_arrival_on() {
    check(Broken::GcFromArrival, &[Rule::FalseFailure]);
}

#[test]
fn tables_that_grow_for_ever() {
    check(Broken::NeverForgets, &[Rule::Leftover]);
}

#[test]
fn a_terminal_status_that_changes() {
    check(Broken::OutcomeChanges, &[Rule::OutcomeChanged]);
}

#[test]
fn calls_that_nobody_watches() {
    check(Broken::NoWatch, &[Rule::NeverEnded]);
}

#[test]
fn unknown_taken_for_a_verdict() {
    check(Broken::UnknownFails, &[Rule::FalseFailure]);
}

#[test]
fn timers_before_input() {
    check(Broken::TimersFirst, &[Rule::FalseFailure]);
}

#[test]
fn requests_into_a_session_that_its_peer_has_given_up() {
    check(Broken::NoQuestion, &[Rule::FalseFailure]);
}

/// A server that died before it acknowledged a delegation was missed only when the session ended, after ten seconds.
#[test]
fn silence_that_is_excused_until_an_acknowledgement_comes() {
    check(Broken::UnacknowledgedExcuses, &[Rule::LateFailure]);
}

#[test]
fn a_manifest_that_is_lost_with_the_message_that_took_it_along() {
    check_from(1300, Broken::ManifestForgotten, &[Rule::FalseFailure]);
}

#[test]
fn what_a_call_has_gone_on_without_and_does_not_tell() {
    check(Broken::LossUntold, &[Rule::EarlyCompletion]);
}

#[test]
fn calls_that_are_not_told_who_is_gone() {
    check(Broken::NeverGone, &[Rule::LateFailure]);
}

#[test]
fn who_has_a_request_of_a_server_that_is_gone_and_is_not_heard() {
    check(Broken::SurvivorUnheard, &[Rule::FalseFailure]);
}

#[test]
fn a_gap_in_a_body() {
    check(Broken::BodyGap, &[Rule::Corrupted]);
}

#[test]
fn a_failing_world_is_made_small() {
    let options = Options {
        log: false,
        broken: Some(Broken::UnknownFails),
        ..Options::default()
    };
    let seed = caught(Broken::UnknownFails, 0, &[Rule::FalseFailure]).expect("it is noticed");
    let plan = Plan::random(seed);
    let small = shrink(&plan, options).expect("it fails").plan;
    let rule = |plan: &Plan| {
        run(plan, options)
            .violations
            .first()
            .map(|violation| violation.rule)
    };
    assert_eq!(rule(&small), rule(&plan), "it breaks the same rule");
    assert!(small.calls.len() <= plan.calls.len() && small.faults.len() <= plan.faults.len());
    assert!(
        small.to_string().len() < plan.to_string().len(),
        "{plan}\nbecame\n{small}"
    );
    assert_eq!(
        shrink(&small, options).map(|again| again.plan),
        Some(small),
        "there is nothing left to take away"
    );
}

#[test]
fn a_world_without_violation_is_not_shrunk() {
    assert_eq!(shrink(&Plan::random(0), Options::default()), None);
}
