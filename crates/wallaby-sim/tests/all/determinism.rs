//! The same seed gives the same world, byte for byte.

use wallaby_sim::{Options, Plan, run};

#[test]
fn a_seed_names_its_world_to_the_last_byte() {
    let options = Options {
        log: true,
        broken: None,
        ..Options::default()
    };
    for seed in 0..60 {
        let (plan, again) = (Plan::random(seed), Plan::random(seed));
        assert_eq!(plan, again, "seed {seed}");
        let (first, second) = (run(&plan, options), run(&again, options));
        assert!(!first.log.is_empty());
        assert_eq!(first.log, second.log, "seed {seed}");
        assert_eq!(first, second, "seed {seed}");
    }
}

#[test]
fn a_log_changes_nothing() {
    for seed in 0..60 {
        let plan = Plan::random(seed);
        let with = run(
            &plan,
            Options {
                log: true,
                broken: None,
                ..Options::default()
            },
        );
        let without = run(&plan, Options::default());
        assert_eq!(with.outcomes, without.outcomes, "seed {seed}");
        assert_eq!(with.coverage, without.coverage, "seed {seed}");
        assert_eq!(with.lasted, without.lasted, "seed {seed}");
    }
}
