//! Deliberately broken variants: each is found out, by the property that it breaks.

use wallaby_model::{
    AT_MOST_ONCE, COMPLETE, ENDS, FINAL, FORGOTTEN, NO_LIARS, NO_STORM, ONCE, QUIET, STOPPED,
    Scope, TRUE_FAILURE, Tree, Variant, explore,
};

/// The variant breaks this property in this scope. What is explored in `sound` holds in each of them without it.
fn check(variant: Variant, property: &str, scope: Scope) {
    let explored = explore(Scope { variant, ..scope });
    println!("{variant:?}: {explored}");
    let broken: Vec<&str> = explored.violations.iter().map(|found| found.0).collect();
    assert!(broken.contains(&property), "{broken:?}");
}

/// Trees of up to this many messages, and one fault.
fn timed(messages: usize) -> Scope {
    Scope {
        delay: Some(0),
        ..Scope::of(Tree::all(messages)).with_faults(1)
    }
}

#[test]
fn completion_by_counts_alone() {
    let scope = Scope::of(Tree::all(5));
    check(Variant::CountsAlone, COMPLETE, scope);
}

#[test]
fn facts_that_are_overwritten() {
    let scope = Scope {
        slow: 1,
        ..timed(3)
    };
    check(Variant::FactsOverwritten, COMPLETE, scope);
}

/// The server of the first hop crashes while the second one works.
#[test]
fn higher_hops_that_do_not_supersede() {
    let scope = Scope {
        slow: 4,
        ..timed(3)
    };
    check(Variant::HopsDoNotSupersede, TRUE_FAILURE, scope);
}

#[test]
fn pongs_whose_facts_do_not_count() {
    check(Variant::PongsWithoutFacts, ENDS, timed(3));
}

#[test]
fn servers_that_announce_nothing() {
    let scope = Scope {
        slow: 4,
        ..timed(3)
    };
    check(Variant::NoAnnouncements, TRUE_FAILURE, scope);
}

#[test]
fn who_has_a_request_of_a_server_that_is_gone_and_does_not_say_so() {
    let scope = Scope {
        slow: 4,
        hints: true,
        ..timed(3)
    };
    check(Variant::EndsUnnoticed, TRUE_FAILURE, scope);
}

#[test]
fn responses_that_are_delivered_twice() {
    check(Variant::DuplicatesDelivered, ONCE, timed(3));
}

#[test]
fn requests_that_are_handled_twice() {
    check(Variant::DuplicatesHandled, AT_MOST_ONCE, timed(3));
}

#[test]
fn a_terminal_status_that_changes() {
    let scope = Scope {
        abort: true,
        ..timed(2)
    };
    check(Variant::StatusChanges, FINAL, scope);
}

/// The first request is slow, its pong says that it has ended.
#[test]
fn ends_that_are_told_early() {
    let scope = Scope {
        slow: 1,
        faults: 0,
        ..timed(3)
    };
    check(Variant::EndsToldEarly, NO_LIARS, scope);
}

/// The abort overtakes the request.
#[test]
fn aborts_that_are_forgotten() {
    let scope = Scope {
        abort: true,
        delay: Some(1),
        faults: 0,
        ..timed(3)
    };
    check(Variant::AbortsForgotten, STOPPED, scope);
}

#[test]
fn aborts_that_count_as_quiet_at_once() {
    let scope = Scope {
        abort: true,
        ..timed(2)
    };
    check(Variant::QuietAtOnce, QUIET, scope);
}

#[test]
fn ends_that_are_not_recorded() {
    check(Variant::EndsNotRecorded, FORGOTTEN, timed(2));
}

#[test]
fn pongs_that_are_answered() {
    let scope = Scope {
        slow: 1,
        delay: Some(0),
        ..Scope::of(Tree::all(2)[..1].to_vec())
    };
    check(Variant::PongsAnswered, NO_STORM, scope);
}
