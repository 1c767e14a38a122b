//! Runs the target that `WALLABY_FUZZ` names under libFuzzer.

#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use wallaby_fuzz::{TARGETS, Target};

static TARGET: LazyLock<&Target> = LazyLock::new(|| {
    let name = std::env::var("WALLABY_FUZZ").unwrap_or_default();
    let named = TARGETS.iter().find(|target| target.name == name);
    named.unwrap_or_else(|| {
        let names: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
        eprintln!(
            "WALLABY_FUZZ names no target: {name:?}; there are {}",
            names.join(", ")
        );
        std::process::exit(2)
    })
});

fuzz_target!(|bytes: &[u8]| (TARGET.run)(bytes));
