//! What users of the macros read when something is wrong, as golden files: `tests/macro_errors/*/NAME.stderr` beside
//! `NAME.rs`. `WALLABY_BLESS=1 cargo test -p wallaby --test all macro_errors::` writes what is expected; review the diff.
//!
//! | folder | whose errors |
//! |---|---|
//! | `service` | of `#[wallaby::service]` |
//! | `serve` | of `#[wallaby::serve]` |
//! | `types` | of the compiler, where a handler, target or client does not fit its service |
//!
//! The compiler is run here, with the library that this program itself is linked with: the crate trybuild would have cargo compile
//! all that Wallaby needs once more.

use std::ffi::OsStr;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

const CASES: &str = "tests/macro_errors";

#[test]
fn errors_of_the_macros() {
    check("service", true);
    check("serve", true);
}

/// The compiler words its errors anew now and then: what it says is compared for the version that this workspace names.
/// Another version has to refuse the same programs, which is what the documentation of the macros needs.
#[test]
fn errors_of_the_compiler() {
    let version = Command::new(compiler()).arg("--version").output();
    let version = String::from_utf8(version.expect("the compiler runs").stdout).expect("text");
    let named = concat!("rustc ", env!("CARGO_PKG_RUST_VERSION"), ".");
    check("types", version.starts_with(named));
}

/// Compiles each program of a folder, which must fail, and compares what the compiler says if its words are the expected ones.
fn check(folder: &str, words_matter: bool) {
    let folder = Path::new(CASES).join(folder);
    let library = newest_library();
    let mut wrong = String::new();
    let mut cases = 0;
    for entry in fs::read_dir(&folder).expect("a folder of cases") {
        let case = folder.join(entry.expect("an entry").file_name());
        if case.extension() != Some(OsStr::new("rs")) {
            continue;
        }
        cases += 1;
        let said = refuse(&case, &library);
        let golden = case.with_extension("stderr");
        if env::var_os("WALLABY_BLESS").is_some_and(|value| value == "1") {
            fs::write(&golden, said).expect("the golden file can be written");
        } else if words_matter && fs::read_to_string(&golden).ok().as_ref() != Some(&said) {
            writeln!(wrong, "== {}\n{said}", golden.display()).expect("text grows");
        }
    }
    assert!(cases > 0, "no cases in {}", folder.display());
    assert!(
        wrong.is_empty(),
        "the compiler says something else now:\n{wrong}"
    );
}

/// What the compiler says of a program that it must not compile.
fn refuse(case: &Path, library: &Path) -> String {
    let output = Command::new(compiler())
        .args([
            "--edition=2024",
            "--emit=metadata",
            "--color=never",
            "--diagnostic-width=140",
        ])
        .args(["--out-dir", env!("CARGO_TARGET_TMPDIR")])
        .arg("--extern")
        .arg(format!("wallaby={}", library.display()))
        .arg("-L")
        .arg(format!(
            "dependency={}",
            library.parent().expect("a folder").display()
        ))
        .arg(case)
        .output()
        .expect("the compiler runs");
    let said = String::from_utf8(output.stderr).expect("the compiler's errors are text");
    for without_library in ["E0463", "E0514"] {
        assert!(!said.contains(without_library), "{said}");
    }
    assert!(
        !output.status.success(),
        "{} compiles:\n{said}",
        case.display()
    );
    comparable(&said)
}

fn compiler() -> std::ffi::OsString {
    env::var_os("RUSTC").unwrap_or_else(|| "rustc".into())
}

/// The library as cargo has just made it for this program, beside which it is. Those with other features may be there, too.
fn newest_library() -> PathBuf {
    let program = env::current_exe().expect("this program is somewhere");
    fs::read_dir(program.parent().expect("in a folder"))
        .expect("which can be read")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| {
            let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
            name.starts_with("libwallaby-") && name.ends_with(".rlib")
        })
        .max_by_key(|path| path.metadata().and_then(|about| about.modified()).ok())
        .expect("the library is built before its tests")
}

/// Errors without lines in the library, whose numbers change with it, and without the sums at the end. What stands there in the
/// library the compiler does not show, as it looks for its files from the workspace on.
fn comparable(said: &str) -> String {
    let sums = [
        "error: aborting due to ",
        "Some errors have detailed ",
        "For more information about ",
    ];
    // Which types implement a trait depends on what else the library was built with.
    let mut of_a_list = false;
    let lines = said
        .lines()
        .filter(|line| !sums.iter().any(|sum| line.starts_with(sum)))
        .filter(|line| {
            let (was_of_list, is_of_list) = (of_a_list, line.starts_with("          "));
            of_a_list = line.contains("the following other types implement trait")
                || (was_of_list && is_of_list);
            !(was_of_list && is_of_list)
        })
        .map(|line| match line.split_once("--> crates/") {
            Some((before, place)) => format!(
                "{before}--> crates/{}",
                place.split(':').next().unwrap_or(place)
            ),
            None => line.to_owned(),
        });
    lines.collect::<Vec<_>>().join("\n").trim_end().to_owned() + "\n"
}
