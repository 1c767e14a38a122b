//! What holds in every run of these scopes.

use wallaby_model::{Explored, Scope, Tree, explore};

/// Trees of up to this many messages, with time that passes.
fn timed(messages: usize) -> Scope {
    Scope {
        delay: Some(0),
        hints: true,
        ..Scope::of(Tree::all(messages))
    }
}

fn check(scope: Scope, least_states: usize) {
    let explored = explore(scope);
    println!("{explored}");
    let Explored {
        states,
        violations,
        missing,
        ..
    } = explored;
    for (property, run) in &violations {
        println!("does not hold: {property}\n{run}");
    }
    assert!(violations.is_empty());
    assert_eq!(missing, [""; 0], "the scope shows nothing");
    assert!(states >= least_states, "{states} states are too few");
}

/// Five messages in every order, one of them lost or there twice: completion alone.
#[test]
fn a_call_is_complete_when_all_has_arrived() {
    let scope = Scope {
        cut: false,
        crash: false,
        ..Scope::of(Tree::all(5)).with_faults(1)
    };
    check(scope, 30_000);
}

/// One message lost or there twice, one server crashed, one connection cut: at any point.
#[test]
fn one_fault_of_any_kind() {
    check(timed(4).with_faults(1), 50_000);
}

/// Two of them.
#[test]
fn two_faults_of_any_kind() {
    check(timed(3).with_faults(2), 50_000);
}

/// Handlers that are slower than the call timeout of three ticks.
#[test]
fn slow_handlers() {
    let scope = Scope {
        slow: 4,
        ..timed(3).with_faults(1)
    };
    check(scope, 200_000);
}

/// Requests, responses and ends that arrive later than pings and pongs.
#[test]
fn slow_messages() {
    let scope = Scope {
        delay: Some(1),
        ..timed(3).with_faults(1)
    };
    check(scope, 10_000);
}

/// All requests at one server, or at two.
#[test]
fn shared_servers() {
    for servers in [1, 2] {
        let scope = Scope {
            servers,
            ..timed(4).with_faults(1)
        };
        check(scope, 10_000);
    }
}

/// The application gives up at any point.
#[test]
fn abort() {
    let scope = Scope {
        abort: true,
        ..timed(3).with_faults(1)
    };
    check(scope, 30_000);
}

/// No faults, but handlers and messages as slow as can be, and an abort at any point.
#[test]
fn abort_without_faults() {
    let scope = Scope {
        abort: true,
        delay: Some(1),
        slow: 1,
        ..timed(3)
    };
    check(scope, 10_000);
}
