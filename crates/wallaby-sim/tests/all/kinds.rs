//! What comes of it where one thing alone goes wrong.

use wallaby_sim::{Kind, Options, Point, Summary, Verdict};

/// Worlds of each kind.
const WORLDS: u64 = 100;

/// Worlds of a kind, none of which breaks a rule; each of these points is reached in some.
#[track_caller]
fn check(kind: Kind, reached: &[Point]) -> Summary {
    let options = Options {
        kind: Some(kind),
        ..Options::default()
    };
    let summary = Summary::of(0, WORLDS, options, |_| {});
    let replay = format!("to repeat: wallaby-sim --kind {} --seed", kind.name());
    assert!(summary.failed.is_empty(), "{replay}\n{:#?}", summary.failed);
    for point in reached {
        assert!(summary.coverage.count(*point) > 0, "{}", point.words());
    }
    summary
}

/// No call of theirs ends otherwise than complete or so.
#[track_caller]
fn check_outcomes(summary: &Summary, besides: &[Verdict]) {
    let mut complete = 0;
    for (outcome, calls) in &summary.outcomes {
        match outcome {
            Verdict::Complete { .. } => complete += calls,
            other => assert!(besides.contains(other), "{summary}"),
        }
    }
    assert!(complete > 0, "{summary}");
}

fn calls(summary: &Summary, outcome: Verdict) -> u64 {
    summary.outcomes.get(&outcome).copied().unwrap_or(0)
}

#[test]
fn no_call_fails_while_nothing_goes_wrong() {
    let reached = [Point::Ping, Point::Announced, Point::ConnectionParts];
    let summary = check(Kind::Calm, &reached);
    check_outcomes(&summary, &[Verdict::TooLarge]);
}

#[test]
fn lost_pings_pongs_and_ends_fail_no_call() {
    let summary = check(Kind::LostWords, &[Point::FaultWordLost, Point::PongFacts]);
    check_outcomes(&summary, &[Verdict::TooLarge]);
}

#[test]
fn datagrams_that_overtake_each_other_and_come_twice_fail_no_call() {
    let reached = [
        Point::FaultReorder,
        Point::FaultDuplicate,
        Point::RequestDuplicate,
    ];
    let summary = check(Kind::Datagrams, &reached);
    check_outcomes(&summary, &[Verdict::TooLarge]);
}

#[test]
fn calls_end_when_servers_crash() {
    let summary = check(Kind::Crashes, &[Point::FailureSilent]);
    check_outcomes(&summary, &[Verdict::TooLarge, Verdict::Failed]);
}

#[test]
fn calls_end_when_servers_crash_and_come_back() {
    let summary = check(Kind::Restarts, &[Point::FaultRestart, Point::FailureSilent]);
    check_outcomes(&summary, &[Verdict::TooLarge, Verdict::Failed]);
}

#[test]
fn answers_lost_with_their_connection_are_sent_again() {
    let summary = check(Kind::Cuts, &[Point::FaultCut, Point::ResponseResent]);
    check_outcomes(&summary, &[Verdict::TooLarge, Verdict::Failed]);
}

#[test]
fn cut_connections_and_crashes_together() {
    let reached = [Point::FaultCut, Point::FaultProcessCrash];
    let summary = check(Kind::CutsAndCrashes, &reached);
    check_outcomes(&summary, &[Verdict::TooLarge, Verdict::Failed]);
}

#[test]
fn a_paused_initiator_fails_no_call() {
    let summary = check(Kind::Pauses, &[Point::FaultStall]);
    check_outcomes(&summary, &[Verdict::TooLarge]);
}

#[test]
fn aborted_calls_become_quiet() {
    let summary = check(Kind::Aborts, &[Point::StopAborted]);
    check_outcomes(&summary, &[Verdict::Aborted]);
    let quiet = summary.coverage.count(Point::WindingQuiet);
    assert_eq!(quiet, calls(&summary, Verdict::Aborted), "{summary}");
}

#[test]
fn aborts_and_crashes_together() {
    let summary = check(Kind::AbortsAndCrashes, &[Point::FaultRestart]);
    check_outcomes(&summary, &[Verdict::Aborted, Verdict::Failed]);
}

#[test]
fn servers_stop_when_the_initiator_is_dead() {
    let summary = check(Kind::DeadInitiators, &[Point::StopSilent]);
    let besides = [Verdict::TooLarge, Verdict::InitiatorGone];
    check_outcomes(&summary, &besides);
}

/// A server delegates twice and is gone; its manifest travels to the second child, whose end takes it along and is lost with its
/// connection. That child's server still holds it, and tells all of it when the connection has ended (docs/protocol.md, rules 12
/// and 17).
#[test]
fn a_manifest_that_was_carried_is_told_with_the_end_that_was_lost() {
    let summary = check(Kind::LostEnd, &[Point::PongManifest, Point::FaultCut]);
    check_outcomes(&summary, &[Verdict::Failed]);
    let complete = calls(&summary, Verdict::Complete { statuses: false });
    // Of its two calls one has no need of that. Who is not told that its connection was cut has nothing to tell.
    let worlds = summary.faults["machine crash"];
    assert_eq!(
        complete,
        worlds + summary.coverage.count(Point::PongManifest),
        "{summary}"
    );
}
