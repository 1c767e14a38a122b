//! Files are compiled as reviewed, and what is wrong with them is said with its place.
#![allow(clippy::unwrap_used, reason = "a test that fails says where")]

use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;
use wallaby_build::{CompileError, Compiler};

const KINDS: &str = "tests/protos/kinds.proto";

/// `WALLABY_BLESS=1 cargo test -p wallaby-build` writes what is expected. `apps/library` compiles and runs it.
#[test]
fn services_and_messages_are_as_reviewed() {
    let code = Compiler::new().compile(&[KINDS]).unwrap();
    let golden = Path::new("tests/protos/kinds.txt");
    if std::env::var_os("WALLABY_BLESS").is_some_and(|value| value == "1") {
        fs::write(golden, &code).unwrap();
    }
    let expected = fs::read_to_string(golden).unwrap_or_default();
    assert!(
        code == expected,
        "kinds.txt is not what is generated; if it should be, rewrite it by WALLABY_BLESS=1 cargo test -p wallaby-build, \
         and review the diff:\n{code}"
    );
}

/// A folder with these files.
fn folder(files: &[(&str, &str)]) -> TempDir {
    let folder = TempDir::new().unwrap();
    for (name, text) in files {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    folder
}

/// What is said of these files, without the name of their folder.
fn refused(files: &[(&str, &str)], change: impl FnOnce(Compiler, &Path) -> Compiler) -> String {
    let folder = folder(files);
    let compiler = change(Compiler::new(), folder.path());
    let error = compiler.compile(&[folder.path().join("a.proto")]);
    let text = error.expect_err("it is wrong").to_string();
    text.replace(&format!("{}/", folder.path().display()), "")
}

/// A file with a service of this package, with these methods.
fn service(package: &str, methods: &str) -> String {
    format!(
        "syntax = \"proto3\";\n{package}\nimport \"google/protobuf/struct.proto\";\nmessage M {{}}\nmessage Body {{}}\n\
         service Shelf {{\n{methods}\n}}\n"
    )
}

#[test]
fn what_is_wrong_is_said_with_its_place() {
    let package = "package library;";
    for (text, expected) in [
        (
            "message A { strin a = 1 }".to_owned(),
            "a.proto:1:25: error: expected ",
        ),
        (
            "syntax = \"proto3\";\nmessage A { Missing a = 1; }".into(),
            "a.proto:2:13: error: name 'Missing' is not defined",
        ),
        (
            "syntax = \"proto3\";\nimport \"b.proto\";".into(),
            "a.proto:2:1: error: import 'b.proto' not found",
        ),
        (
            service(package, "rpc At(M) returns (M);"),
            "a.proto:7:1: error: method Shelf/At: expected another name: the module beside the service has a `at` of its own",
        ),
        (
            service(
                package,
                "rpc Get(M) returns (M);\n  rpc get(M) returns (M);",
            ),
            "a.proto:8:3: error: method Shelf/get: the method `get` is there already: expected another name",
        ),
        (
            service(package, "rpc Get(Body) returns (M);"),
            "a.proto:7:1: error: method Shelf/Get: expected a message with another name: as the type of a method `Body` \
             means something else in Rust",
        ),
        (
            service(package, "rpc Get(M) returns (google.protobuf.Struct);"),
            "a.proto:7:1: error: method Shelf/Get: expected a message that knows its name: put `google.protobuf.Struct` into \
             a message of its own",
        ),
        (
            service("", "rpc Get(M) returns (M);"),
            "a.proto:6:1: error: service Shelf: expected `package name;` in the file: peers know a service by its package and \
             its name",
        ),
        (
            service("package wallaby.own;", "rpc Get(M) returns (M);"),
            "a.proto:6:1: error: service Shelf: expected another package: `wallaby` is reserved for the framework's own \
             services",
        ),
    ] {
        let said = refused(&[("a.proto", &text)], |compiler, _| compiler);
        assert!(said.starts_with(expected), "{text}\n{said}");
    }
}

#[test]
fn all_flaws_of_services_are_said_at_once() {
    let text = service(
        "package library;",
        "rpc At(M) returns (M);\nrpc Get(Body) returns (Body);",
    );
    let said = refused(&[("a.proto", &text)], |compiler, _| compiler);
    assert_eq!(said.lines().count(), 3, "{said}");
}

#[test]
fn a_flaw_of_an_imported_file_has_its_path() {
    let files = [
        ("a.proto", "syntax = \"proto3\"; import \"b.proto\";"),
        (
            "lib/b.proto",
            "syntax = \"proto3\";\nmessage A { nonsense }",
        ),
    ];
    let said = refused(&files, |compiler, folder| {
        compiler.include(folder.join("lib"))
    });
    assert!(
        said.starts_with("lib/b.proto:2:22: error: expected "),
        "{said}"
    );
}

#[test]
fn a_missing_file_is_named() {
    let error = Compiler::new().compile(&["tests/protos/none.proto"]);
    let error = error.expect_err("there is none");
    assert!(
        matches!(&error, CompileError::File { path, .. } if path.ends_with("none.proto")),
        "{error:?}"
    );
    let text = error.to_string();
    assert!(text.starts_with("tests/protos/none.proto: "), "{text}");
}

#[test]
fn packages_come_from_elsewhere() {
    let compiler = Compiler::new().external("test.kinds.shared", "::shared::parts");
    let code = compiler.compile(&[KINDS]).unwrap();
    assert!(code.contains("message: ::shared::parts::Part"), "{code}");
    assert!(
        !code.contains("struct Part") && !code.contains("shared::Part"),
        "it is defined there: {code}"
    );
    let wrong = Compiler::new().external("test..kinds", "::shared");
    let error = wrong.compile(&[KINDS]).expect_err("it is no package");
    assert!(error.to_string().contains("test..kinds"), "{error}");
}

#[test]
fn wallaby_may_be_elsewhere() {
    let compiler = Compiler::new().wallaby("crate::facade::wallaby");
    let code = compiler.compile(&[KINDS]).unwrap();
    assert!(code.contains("crate = crate::facade::wallaby"), "{code}");
    let rest = code.replace("crate::facade::wallaby", "");
    assert!(!rest.contains("wallaby::"), "{code}");
}

#[test]
fn prost_can_be_told_how_to_write_messages() {
    let compiler = Compiler::new().prost(|config| {
        config.btree_map(["."]).bytes(["."]);
    });
    let code = compiler.compile(&[KINDS]).unwrap();
    assert!(
        code.contains("BTreeMap<") && code.contains("bytes::Bytes"),
        "{code}"
    );
}

#[test]
fn what_is_written_has_its_name_and_what_is_read_is_told() {
    let folder = TempDir::new().unwrap();
    let compiler = Compiler::new().name("kinds.v1");
    let mut read = compiler.build_in(&[KINDS], folder.path()).unwrap();
    read.sort();
    let expected = [KINDS, "tests/protos/shared/parts.proto"].map(PathBuf::from);
    assert_eq!(read, expected);
    let code = fs::read_to_string(folder.path().join("kinds.v1.rs")).unwrap();
    assert!(code.contains("include_bytes!(\"kinds.v1.bin\")"), "{code}");
    let descriptors = fs::metadata(folder.path().join("kinds.v1.bin")).unwrap();
    assert!(descriptors.len() > 100);
}
