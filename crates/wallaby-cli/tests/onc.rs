//! `wallaby onc` as its users run it.
#![allow(clippy::unwrap_used, reason = "a test that fails says where")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Runs `wallaby onc gen` in a folder of its own with these files.
fn generate(folder: &str, files: &[(&str, &str)], arguments: &[&str]) -> (Output, PathBuf) {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(folder);
    fs::create_dir_all(folder.join("shared")).unwrap();
    for (name, text) in files {
        fs::write(folder.join(name), text).unwrap();
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_wallaby"));
    command.current_dir(&folder).args(["onc", "gen"]);
    (command.args(arguments).output().unwrap(), folder)
}

#[test]
fn an_interface_becomes_rust() {
    let clock = "program CLOCK { version CLOCK_V1 { hyper NOW(void) = 1; } = 1; } = 0x20000007;";
    let (output, _) = generate("onc-stdout", &[("clock.x", clock)], &["clock.x"]);
    let code = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && output.stderr.is_empty());
    assert!(code.contains("pub async fn now(&self)"), "{code}");
}

#[test]
fn constants_types_and_includes_come_from_the_command_line() {
    let files = [
        ("shared/sizes.x", "const SIZE = LENGTH;"),
        (
            "main.x",
            "#include <sizes.x>\n#ifdef WANTED\nstruct a { id ids[SIZE]; };\n#endif",
        ),
    ];
    let arguments = [
        "main.x", "--out", "main.rs", "-I", "shared", "-D", "LENGTH=7", "-D", "WANTED", "--type",
        "id=u64",
    ];
    let (output, folder) = generate("onc-options", &files, &arguments);
    assert!(
        output.status.success() && output.stdout.is_empty(),
        "{output:?}"
    );
    let code = fs::read_to_string(folder.join("main.rs")).unwrap();
    assert!(code.contains("pub ids: [u64; 7],"), "{code}");
}

#[test]
fn errors_look_like_a_compilers() {
    let (output, _) = generate(
        "onc-error",
        &[("bad.x", "struct a {\n\tint x\n};")],
        &["bad.x"],
    );
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        String::from_utf8(output.stderr).unwrap(),
        "bad.x:3:1: error: expected `;`, found `}`\n    3 | };\n      | ^\n"
    );
    let (output, _) = generate("onc-missing", &[], &["missing.x"]);
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.starts_with("missing.x: "), "{error}");
    let (output, _) = generate("onc-usage", &[], &["missing.x", "--type", "id"]);
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("expected NAME=PATH"), "{error}");
}
