//! `wallaby onc` as its users run it.
#![allow(clippy::unwrap_used, reason = "a test that fails says where")]

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

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
    assert!(!code.contains("pub mod methods"), "{code}");
    let arguments = ["clock.x", "--methods"];
    let (output, _) = generate("onc-methods", &[("clock.x", clock)], &arguments);
    let code = String::from_utf8(output.stdout).unwrap();
    assert!(code.contains("onc.536870919.1/1"), "{code}");
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

/// A process that does not outlive its test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn onc(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_wallaby"));
    command.arg("onc").args(arguments).output().unwrap()
}

fn told(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn an_rpcbind_is_listed_and_pinged() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let socket = folder.join(format!("onc-{}.sock", std::process::id()));
    let mut rpcbind = Command::new(env!("CARGO_BIN_EXE_wallaby"));
    rpcbind.args(["onc", "rpcbind", "--port", "0", "--json", "--socket"]);
    let mut rpcbind = Running(rpcbind.arg(&socket).stdout(Stdio::piped()).spawn().unwrap());
    let mut lines = BufReader::new(rpcbind.0.stdout.take().unwrap()).lines();
    let first: serde_json::Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
    let tcp = first["listening"][0].as_str().unwrap();
    let port = tcp.rsplit(':').next().unwrap();

    let listed = onc(&["list", "127.0.0.1", "--port", port]);
    assert!(listed.status.success(), "{listed:?}");
    assert!(
        told(&listed).contains("100000        4  local"),
        "{listed:?}"
    );
    let listed = onc(&["list", "127.0.0.1", "--port", port, "--udp", "--json"]);
    let rows: serde_json::Value = serde_json::from_str(&told(&listed)).unwrap();
    assert!(rows.as_array().unwrap().len() >= 9, "{rows}");

    for network in ["--tcp", "--udp"] {
        let direct = onc(&["ping", "127.0.0.1", "100000", "2", network, "--port", port]);
        assert!(told(&direct).contains("version 2 at"), "{direct:?}");
        let asked = ["ping", "127.0.0.1", "0x186a0", "4", network, "--count", "2"];
        let asked = onc(&[&asked[..], &["--rpcbind-port", port]].concat());
        assert_eq!(told(&asked).matches("answered in").count(), 2, "{asked:?}");
    }
    let missing = onc(&["ping", "127.0.0.1", "100003", "3", "--rpcbind-port", port]);
    assert_eq!(missing.status.code(), Some(1));
    let text = String::from_utf8_lossy(&missing.stderr);
    assert!(
        text.contains("program 100003 is not registered for TCP"),
        "{text}"
    );
    let other = onc(&["ping", "127.0.0.1", "100000", "9", "--port", port]);
    let text = String::from_utf8_lossy(&other.stderr);
    assert!(text.contains("versions 2 to 4 only"), "{text}");
    assert_eq!(
        onc(&["ping", "127.0.0.1", "nfs", "3"]).status.code(),
        Some(2)
    );

    let id = i32::try_from(rpcbind.0.id()).unwrap();
    // SAFETY: a signal to a process of ours that has not been waited for touches no memory.
    assert_eq!(unsafe { libc::kill(id, libc::SIGTERM) }, 0);
    assert!(rpcbind.0.wait().unwrap().success());
    let last: serde_json::Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
    assert!(last["calls"].as_u64().unwrap() >= 6, "{last}");
    assert!(!socket.exists());
}
