//! What users of the macros read when something is wrong, as golden files: `macro_errors/*/NAME.stderr` beside
//! `NAME.rs`. `TRYBUILD=overwrite cargo test -p wallaby --test macro_errors` writes what is expected; review the diff.
//! Apart from other tests, as cargo takes all of the machine.
//!
//! | folder | whose errors |
//! |---|---|
//! | `service` | of `#[wallaby::service]` |
//! | `serve` | of `#[wallaby::serve]` |
//! | `types` | of the compiler, where a handler, target or client does not fit its service |

use std::process::Command;

#[test]
fn errors_of_the_macros() {
    let cases = trybuild::TestCases::new();
    cases.compile_fail("tests/macro_errors/service/*.rs");
    cases.compile_fail("tests/macro_errors/serve/*.rs");
}

/// The compiler words its errors anew now and then: what it says is compared for the version that this workspace names.
/// Another version has to refuse the same programs, which is what the documentation of the macros needs.
#[test]
fn errors_of_the_compiler() {
    let version = compiler_version();
    if version.starts_with(&format!("rustc {}.", env!("CARGO_PKG_RUST_VERSION"))) {
        trybuild::TestCases::new().compile_fail("tests/macro_errors/types/*.rs");
    } else {
        eprintln!(
            "not compared: these golden files are of rustc {}",
            env!("CARGO_PKG_RUST_VERSION")
        );
    }
}

fn compiler_version() -> String {
    let compiler = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(compiler)
        .arg("--version")
        .output()
        .expect("the compiler runs");
    String::from_utf8(output.stdout).expect("the compiler's version is text")
}
