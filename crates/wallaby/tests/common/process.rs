//! Tests in a process of their own, which others do not disturb.

use std::process::Command;

/// This program, to run one of its tests and nothing else. `module` is what `module_path!()` says where the test is.
pub(crate) fn only(module: &str, test: &str) -> Command {
    let program = std::env::current_exe().expect("this program");
    let name = match module.split_once("::") {
        Some((_, module)) => format!("{module}::{test}"),
        None => test.to_owned(),
    };
    let mut command = Command::new(program);
    command.args(["--exact", &name, "--nocapture"]);
    command
}

/// Whether the output of such a process says that its test was found and has passed.
pub(crate) fn has_passed(output: &[u8]) -> bool {
    String::from_utf8_lossy(output).contains("test result: ok. 1 passed")
}
